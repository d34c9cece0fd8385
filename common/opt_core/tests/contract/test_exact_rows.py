# SPDX-License-Identifier: Apache-2.0
"""The exact rows have the bits of the stock op: the proof behind the "stacks" of every exact cell.

On a stack that the tables list, one differing bit fails. On any other stack the rows must refuse by name, and the bits are looked at for the
report only.
"""
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from opt_core import Refused, _core, torch_glue  # noqa: E402

BENCH = Path(__file__).resolve().parents[4] / "bench"
sys.path.insert(0, str(BENCH))
import cases  # noqa: E402

ROWS = {"trimul": "exact_planes", "triattn_module": "exact_rows", "transition": "exact_rows"}
# 45^2 = 2025 rows (one block of the transition), 46^2 = 2116 (two), 91^2 and 129^2 with odd tails; attention goes in blocks of rows from N = 77 on,
# with odd remainders at 91, 101, 129, 160 and 238; 256 is the largest size of the exact cells
SIZES = (1, 2, 7, 8, 9, 15, 16, 17, 33, 45, 46, 65, 76, 91, 100, 101, 127, 128, 129, 130, 160, 238, 256)


def build(family, n):
    if family == "trimul":
        return [cases.trimul_case("f32", n, 128, outgoing, True) for outgoing in (True, False)]
    if family == "triattn_module":
        return [cases.triattn_module_case("f32", n, 128, 4, 32, ending) for ending in (False, True)]
    return [cases.transition_case("f32", n, 128, 4, "relu")]


def is_proven(family):
    return any(torch_glue.stack() in cell["stacks"] for cell in _core.cells(family) if cell["tier"] == "exact")


def first_difference(a, b):
    flat_a, flat_b = a.contiguous().view(torch.int32).flatten(), b.contiguous().view(torch.int32).flatten()
    index = int((flat_a != flat_b).nonzero()[0, 0])
    return f"element {index} of {flat_a.numel()}: {int(flat_a[index]):#010x} {int(flat_b[index]):#010x}, {int((flat_a != flat_b).sum())} differ"


@pytest.mark.parametrize("family", ROWS)
@pytest.mark.parametrize("threads", [1, 2])
def test_bits_equal_on_proven_stacks(family, threads):
    if not is_proven(family):
        pytest.skip(f"{family}: {torch_glue.stack()} is not among the proven stacks; the row refuses there (next test)")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    executed = 0
    try:
        with torch.no_grad():
            for n in SIZES:
                for case in build(family, n):
                    ours, stock = case.ours(ROWS[family])[0], case.stock()
                    assert torch.equal(ours.isnan(), stock.isnan())
                    assert torch.equal(ours.view(torch.int32) if ours.is_contiguous() else ours.contiguous().view(torch.int32),
                                       stock.contiguous().view(torch.int32)), f"n = {n}: {first_difference(ours, stock)}"
                    executed += 1
    finally:
        torch.set_num_threads(before)
    assert executed == len(SIZES) * (1 if family == "transition" else 2)


@pytest.mark.parametrize("family", ROWS)
def test_the_tier_serves_only_on_proven_stacks(family, monkeypatch):
    case_forms = {"trimul": ("biased+mask+outgoing", {"b": 1, "n": 129, "c": 128, "d": 128}),
                  "triattn_module": ("biased+gate+mask_subtract", {"b": 1, "n": 129, "h": 4, "d": 32, "c": 128}),
                  "transition": ("biased+relu+residual", {"n": 129**2, "c": 128, "d": 512})}
    form, dims = case_forms[family]
    cells = [cell for cell in _core.cells(family) if cell["tier"] == "exact"]
    assert cells, f"{family} has no exact cell"
    device = cells[0]["device"]
    for stack in {s for cell in cells for s in cell["stacks"]}:
        assert _core.select(family, "exact", device, "f32", form, dims, stack)[1] == ROWS[family]
    with pytest.raises(Refused) as refusal:
        _core.select(family, "exact", device, "f32", form, dims, "torch-0.0.0+nobody+avx512")
    assert refusal.value.word == "proof"


@pytest.mark.parametrize("family", ROWS)
def test_special_values_keep_their_bits(family):
    """Inf, NaN, -0, subnormals and a fully masked row pass through the same library calls: same bits, NaN where stock has NaN."""
    if not is_proven(family):
        pytest.skip(f"{torch_glue.stack()} is not among the proven stacks")
    with torch.no_grad():
        for case in build(family, 40):
            free = case.stock.__defaults__  # (x, ...): the tensors that the case was built from
            x = free[0]
            x[0, 3, 5, 7], x[0, 4, 4, 4], x[0, 9, 0, 0], x[0, 11, 1, 1] = float("inf"), float("nan"), -0.0, 1e-42
            if family != "transition":
                free[1][0, 6] = 0.0
            ours, stock = case.ours(ROWS[family])[0].contiguous(), case.stock().contiguous()
            assert torch.equal(ours.isnan(), stock.isnan()) and bool(stock.isnan().any()) and not bool(stock.isnan().all())
            keep = ~stock.isnan()
            assert torch.equal(ours[keep].view(torch.int32), stock[keep].view(torch.int32))

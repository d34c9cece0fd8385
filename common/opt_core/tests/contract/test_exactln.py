# SPDX-License-Identifier: Apache-2.0
"""ln's row exactln gives the bits of torch.nn.functional.layer_norm on a CPU: all widths, ordinary and extreme values."""

import pytest

torch = pytest.importorskip("torch")

from opt_core import Refused, _core  # noqa: E402
from opt_core.kernels.ln import ln  # noqa: E402

WIDTHS = (*range(1, 1025), 1025, 1536, 2048, 2500, 4096, 5120, 10000)
EXTREMES = (-0.0, 0.0, 1e-40, -1e-45, 3.4028234e38, -3.4028234e38, 1e30, 1.0, -2000.0, 6e4)
KINDS = ("normal", "large mean", "extremes", "inf and nan", "scales", "constant")
EPS = (1e-5, 1e-12, 1e-6)


@pytest.fixture(autouse=True)
def has_row():
    if not any(m["row"] == "exactln" for m in _core.members("ln")) or _core.cpu_facts()["isa"] == "generic":
        pytest.skip("no member of exactln for this processor")
    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        pytest.skip("torch runs below AVX2, where the order of its sums is another")


def rows(kind, width, generator, count=32):
    x = torch.randn(count, width, generator=generator)
    if kind == "large mean":
        x += 2000
    elif kind == "extremes":
        x = torch.tensor(EXTREMES)[torch.randint(0, len(EXTREMES), x.shape, generator=generator)]
    elif kind == "inf and nan":
        x[3, width // 2], x[5, width - 1], x[7, 0] = float("inf"), float("nan"), -float("inf")
    elif kind == "scales":
        x *= 10.0 ** torch.randint(-20, 18, (count, 1), generator=generator)
    elif kind == "constant":
        x = torch.full_like(x, 0.1)
    return x


def first_difference(got, want):
    """None, or the first place whose bits differ; a NaN equals a NaN of any payload, and nothing else."""
    differ = (got.contiguous().view(torch.int32) != want.contiguous().view(torch.int32)) & ~(got.isnan() & want.isnan())
    if not differ.any():
        return None
    at = tuple(int(i) for i in differ.nonzero()[0])
    return at, got[at].item(), want[at].item(), int(differ.sum())


def served(*arguments, **options):
    y, (_, row, member) = ln(*arguments, row="exactln", **options)
    assert (row, member) == ("exactln", "exactln_avx2")
    return y


@pytest.mark.parametrize("kind", KINDS)
def test_bits(kind):
    generator = torch.Generator().manual_seed(KINDS.index(kind))
    executed = 0
    for width in WIDTHS:
        x = rows(kind, width, generator)
        weight = torch.randn(width, generator=generator) if executed % 3 else None
        bias = torch.randn(width, generator=generator) if executed % 4 else None
        eps = EPS[executed % 5 % 3]
        want = torch.nn.functional.layer_norm(x, (width,), weight, bias, eps)
        difference = first_difference(served(x, weight, bias, eps=eps), want)
        assert difference is None, (width, eps, weight is None, bias is None, difference)
        executed += 1
    assert executed == len(WIDTHS) >= 1024


@pytest.mark.parametrize("threads", (1, 2, 3))
@pytest.mark.parametrize("layout", ("dense", "swapped", "columns", "step"))
def test_layouts_and_threads(layout, threads):
    generator = torch.Generator().manual_seed(9)
    x = torch.randn(33, 41, 128, generator=generator)
    x = {"dense": x, "swapped": x.transpose(0, 1), "columns": x.permute(2, 1, 0), "step": x[:, ::2, ::2]}[layout]
    weight, bias = torch.randn(2, x.shape[-1], generator=generator)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        want = torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)
        assert first_difference(served(x, weight, bias), want) is None
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("width", (5, 8, 128, 250, 1024))
def test_groups_of_rows(width):
    """The member takes rows in groups: any number of them, in place too, and each row as if it were alone."""
    generator = torch.Generator().manual_seed(width)
    weight, bias = torch.randn(2, width, generator=generator)
    executed = 0
    for count in (*range(1, 14), 31, 32, 33, 255, 257):
        x = torch.randn(count, width, generator=generator)
        x[count // 2] = float("nan")  # must stay in its row
        want = torch.nn.functional.layer_norm(x, (width,), weight, bias)
        assert first_difference(served(x, weight, bias), want) is None, count
        padded = torch.full((count, width + 3), 7.0)
        assert first_difference(served(x, weight, bias, out=padded[:, :width]), want) is None, count
        assert (padded[:, width:] == 7.0).all()
        assert first_difference(served(x, weight, bias, out=x), want) is None, count
        executed += 1
    assert executed == 18


@pytest.mark.parametrize("n", (1, 32, 76, 129, 238, 256))
def test_squares(n):
    """The sizes of the exact cells, in rows."""
    generator = torch.Generator().manual_seed(n)
    x = torch.randn(1, n, n, 128, generator=generator)
    weight, bias = torch.randn(2, 128, generator=generator)
    assert first_difference(served(x, weight, bias), torch.nn.functional.layer_norm(x, (128,), weight, bias)) is None


def test_a_changed_bit_is_seen():
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))
    y = torch.nn.functional.layer_norm(x, (64,))
    changed = y.clone()
    changed.view(torch.int32)[2, 5] ^= 1
    assert first_difference(y, y) is None
    assert first_difference(changed, y)[0] == (2, 5)
    nan = y.clone()
    nan[1, 1] = float("nan")
    assert first_difference(nan, y)[0] == first_difference(y, nan)[0] == (1, 1)


@pytest.mark.parametrize("word, options", (
    ("dtype", {"x": torch.bfloat16}), ("dtype", {"weight": torch.bfloat16}), ("dialect", {"rms": True}),
    ("dialect", {"fast_variance": True}), ("dialect", {"norm_round": "bf16"})), ids=str)
def test_refusals(word, options):
    x, weight = torch.randn(5, 16).to(options.pop("x", torch.float32)), torch.randn(16).to(options.pop("weight", torch.float32))
    with pytest.raises(Refused) as refused:
        ln(x, weight, None, row="exactln", **options)
    assert refused.value.word == word

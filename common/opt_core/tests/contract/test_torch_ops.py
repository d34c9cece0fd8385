# SPDX-License-Identifier: Apache-2.0
"""Served values against the float64 statement of each op, every member that this processor can run."""

import importlib
import itertools
import os

import pytest

torch = pytest.importorskip("torch")

import torch_cases as cases  # noqa: E402
import torch_reference  # noqa: E402

from opt_core import Refused, _core  # noqa: E402

OPS = {
    "ln": "ln",
    "transition": "transition",
    "trimul": "trimul",
    "triattn": "triattn",
    "triattn_module": "triattn",
    "apb": "apb",
}
LEVELS = ("generic", "avx2", "avx512", "avx512_bf16")


def entry(op):
    return getattr(importlib.import_module(f"opt_core.kernels.{OPS[op]}"), op)


def runnable():
    return LEVELS[: LEVELS.index(_core.cpu_facts()["isa"]) + 1]


def members(op):
    """Those that serve every dialect. An exact row serves its stock op's only, and has tests of its own."""
    return [
        m
        for m in _core.members(op)
        if m["device"] == "cpu" and m["isa"] in runnable() and "exact" not in m["flags"]
    ]


def test_hosted_rows_are_run_by_the_glue_and_refused_by_the_core():
    executed = 0
    for op in OPS:
        for m in [m for m in _core.members(op) if "hosted" in m["flags"]]:
            extra = dict(activation="relu") if op == "transition" else {}
            arguments = getattr(cases, op)(generator(14), **extra)
            if op == "transition":
                arguments["residual"] = arguments["x"]
            result, choice = entry(op)(**arguments, row=m["row"])
            assert choice == ("", m["row"], m["name"])
            assert cases.excess(result, reference(op, arguments)) <= 1
            out = torch.full_like(result, 7.0)
            assert entry(op)(**arguments, row=m["row"], out=out)[0] is out and torch.equal(out, result)
            views, scalars = _core.call_fields(op)
            with pytest.raises(ValueError):  # too few tensors are noticed before anything is left to the caller
                _core.serve(op, "exact", (result,), (), m["row"], hosted=True)
            executed += 1
    assert executed == 3


@pytest.fixture(
    params=[(op, m["row"], m["name"], m["isa"]) for op in OPS for m in members(op)], ids=lambda p: f"{p[0]}-{p[2]}"
)
def member(request, monkeypatch):
    """(op, serve) where serve runs exactly this member and checks that it did."""
    op, row, name, isa = request.param
    monkeypatch.setenv("OPT_CORE_ISA", isa)

    def serve(**arguments):
        with torch.no_grad():
            result, choice = entry(op)(**arguments, row=row)
        assert choice == ("", row, name)
        return result

    serve.inner = int(isa == "avx512_bf16" and op in ("triattn", "apb"))  # products of bf16 round the softmax weights
    return op, serve


def reference(op, arguments):
    return getattr(torch_reference, op)(**arguments)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def variants(op, g):
    """Every dialect of the op at odd sizes, in float32."""
    if op == "ln":
        for c in (1, 2, 3, 15, 17, 33, 65, 101, 127, 128, 129, 257, 384):
            yield cases.ln(g, c=c)
        for shape in ((1,), (7,), (2, 3), (1, 2, 1, 3)):
            yield cases.ln(g, c=37, shape=shape)
        yield dict(cases.ln(g), weight=None, bias=None)
        yield dict(cases.ln(g), bias=None)
        yield dict(cases.ln(g), rms=True)
        yield dict(cases.ln(g), norm_round="bf16")
    elif op == "transition":
        for c, hidden in ((1, 1), (17, 37), (33, 100), (64, 257), (128, 129)):
            yield cases.transition(g, c=c, hidden=hidden)
        for activation, biased, mask, residual in itertools.product(
            ("swiglu", "sigmoid_glu", "relu"), (False, True), (None, torch.bool, torch.float32), (False, True)
        ):
            yield cases.transition(g, activation=activation, biased=biased, mask=mask, residual=residual)
        yield cases.transition(g, norm_absent=True)
    elif op == "trimul":
        for n, c, ch in ((1, 3, 5), (2, 16, 16), (15, 17, 33), (17, 32, 31), (33, 24, 16)):
            for direction in ("outgoing", "incoming"):
                yield cases.trimul(g, n=n, c=c, ch=ch, direction=direction, b=2 if n < 16 else 1)
        for direction, biased, mask, residual in itertools.product(
            ("outgoing", "incoming"), (False, True), (None, torch.bool, torch.bfloat16), (False, True)
        ):
            yield cases.trimul(g, direction=direction, biased=biased, mask=mask, residual=residual)
        yield cases.trimul(g, direction="incoming", swapped=True, right_scale=1 / 9)
        yield cases.trimul(g, right_scale=0.25, mask=torch.int64)
    elif op == "triattn":
        for n, d in ((1, 4), (2, 8), (15, 24), (17, 32), (33, 48), (65, 16), (130, 8)):
            yield cases.triattn(g, n=n, d=d, i=3)
        for kind, bias, gate in itertools.product(cases.MASK_VALUES, (False, True), (False, True)):
            yield cases.triattn(
                g, mask_kind=kind, bias=bias, gate=gate, mask_dtype=torch.bool if gate else torch.float32
            )
        yield cases.triattn(g, n=19, nq=7, b=2)
    elif op == "triattn_module":
        for n, h, d in ((1, 1, 4), (7, 2, 16), (17, 3, 8), (33, 4, 32)):
            yield cases.triattn_module(g, n=n, h=h, d=d, b=2 if n < 9 else 1)
        for kind, biased, gate, untransposed in itertools.product(
            ("none", "subtract", "fill", "zero"), (False, True), (False, True), (False, True)
        ):
            yield cases.triattn_module(
                g, mask_kind=kind, biased=biased, gate=gate, untransposed=untransposed, residual=gate
            )
    else:
        for n, d in ((1, 4), (15, 24), (17, 48), (65, 32), (130, 24)):
            yield cases.apb(g, n=n, d=d)
        for kind, shared, gate, first in itertools.product(
            cases.MASK_VALUES, (False, True), (False, True), (False, True)
        ):
            yield cases.apb(g, mask_kind=kind, shared=shared, gate=gate, bias_first=first)
        yield cases.apb(g, n=19, nq=7)


EXECUTED = {"ln": 21, "transition": 42, "trimul": 36, "triattn": 28, "triattn_module": 36, "apb": 46}


def test_rows_exist():
    for op in OPS:
        assert {m["row"] for m in members(op)} >= {"cpu", "reference"}


def test_values_of_every_dialect(member):
    op, serve = member
    executed = 0
    for arguments in variants(op, generator(1)):
        assert cases.excess(serve(**arguments), reference(op, arguments)) <= 1, {
            k: v if not isinstance(v, torch.Tensor) else tuple(v.shape) for k, v in arguments.items()
        }
        executed += 1
    assert executed == EXECUTED[op]


def one_case(op, g, **extra):
    make = {
        "ln": dict(c=40, shape=(1, 6, 7)),
        "transition": dict(mask=torch.float32, residual=True),
        "trimul": {},
        "triattn": dict(mask_kind="subtract", gate=True),
        "triattn_module": {},
        "apb": dict(mask_kind="subtract", gate=True),
    }[op]
    return getattr(cases, op)(g, **make, **extra)


def test_strided_inputs_give_the_same_values(member):
    op, serve = member
    executed = 0
    for how in cases.LAYOUTS:
        arguments = one_case(op, generator(2))
        views = cases.layout(arguments, how)
        try:
            result = serve(**views)
        except Refused as refusal:  # a layout may be refused, by that name, never served wrongly
            assert refusal.word == "layout" and how != "contiguous"
            continue
        assert result.is_contiguous()
        assert cases.excess(result, reference(op, arguments)) <= 1, how
        executed += 1
    assert executed == len(cases.LAYOUTS)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_narrow_dtypes_are_served_with_one_rounding_or_refused(member, dtype):
    op, serve = member
    arguments = one_case(op, generator(3), dtype=dtype)
    must_serve = dtype is torch.bfloat16 or op == "ln"
    try:
        result = serve(**arguments)
    except Refused as refusal:
        assert refusal.word == "dtype" and not must_serve
        return
    assert result.dtype is dtype
    assert cases.excess(result, reference(op, arguments), serve.inner * (dtype is torch.bfloat16)) <= 1


def test_every_mix_of_dtypes_is_served_right_or_refused_by_name(member):
    """What autocast hands over: each tensor argument in another type than the first."""
    op, serve = member
    executed = served = 0
    for dtype, other in itertools.product((torch.float32, torch.bfloat16, torch.float16), repeat=2):
        arguments = one_case(op, generator(4), dtype=dtype)
        for name in [k for k, v in arguments.items() if isinstance(v, torch.Tensor) and k not in ("x", "q")]:
            mixed = {**arguments, name: arguments[name].to(other)}
            executed += 1
            try:
                result = serve(**mixed)
            except Refused as refusal:
                assert refusal.word == "dtype", name
                continue
            served += 1
            assert result.dtype is dtype
            inner = serve.inner * (dtype is torch.bfloat16)
            assert cases.excess(result, reference(op, mixed), inner) <= 1, (dtype, other, name)
    assert executed == 9 * sum(isinstance(v, torch.Tensor) for v in one_case(op, generator(4)).values()) - 9
    assert served >= executed // 5


@pytest.mark.parametrize(
    "kind,value", [("subtract", 1e9), ("subtract", 1e6), ("fill", float("-inf")), ("fill", -3e38), ("zero", 0.0)]
)
@pytest.mark.parametrize("op", ["triattn", "apb"])
def test_fully_masked_rows(op, kind, value):
    """A row without a kept key: as the stock op of that mask, and its neighbours do not change."""
    for m in members(op):
        arguments = {**getattr(cases, op)(generator(5), mask_kind=kind), "mask_value": value}
        mask = arguments["mask"].clone()
        mask[:, 1] = 0 if op == "triattn" else mask[:, 1]
        if op == "apb":
            mask[1] = 0
        arguments["mask"] = mask
        with torch.no_grad():
            result, choice = entry(op)(**arguments, row=m["row"])
        expected = masked_reference(op, arguments)
        assert cases.excess(result, expected) <= 1, choice
        lost = result[:, 1] if op == "triattn" else result[1]
        if kind == "zero":
            assert torch.equal(lost, torch.zeros_like(lost))
        if value == float("-inf"):
            assert torch.isnan(lost).all()


def masked_reference(op, arguments):
    """float64, except that a finite mask value absorbs what float32 absorbs: the softmax sees fl32(logit - value)."""
    q, k = arguments["q"], arguments["k"]
    if arguments["mask_kind"] != "subtract":
        return reference(op, arguments)
    pattern = "biqhd,bikhd->bihqk" if op == "triattn" else "bqhd,bkhd->bhqk"
    logits = (torch.einsum(pattern, q.double(), k.double()) * arguments["scale"]).float()
    mask, bias = arguments["mask"], arguments["bias"]
    keys = mask[:, :, None, None, :] if op == "triattn" else mask[:, None, None, :]
    logits = (logits + arguments["mask_value"] * (keys - 1)) + (bias[:, None] if op == "triattn" else bias)
    back = "bihqk,bikhd->biqhd" if op == "triattn" else "bhqk,bkhd->bqhd"
    return torch.einsum(back, torch.softmax(logits.double(), -1), arguments["v"].double())


def test_lse():
    executed = 0
    for m, kind in itertools.product(members("triattn"), ("none", "subtract", "zero")):
        arguments = cases.triattn(generator(6), mask_kind=kind)
        b, i, n, h, _ = arguments["q"].shape
        lse = torch.full((b, i, h, n), 7.0)
        out, _ = entry("triattn")(**arguments, lse=lse, row=m["row"])
        expected, expected_lse = torch_reference.triattn(**arguments, with_lse=True)
        assert cases.excess(out, expected) <= 1
        assert cases.excess(lse, expected_lse) <= 1
        executed += 1
    assert executed == 3 * len(members("triattn")) >= 6


def test_empty_and_single(member):
    op, serve = member
    empty = {
        "ln": dict(c=4, shape=(0,)),
        "transition": dict(n=0),
        "trimul": dict(n=0),
        "triattn": dict(i=0),
        "triattn_module": dict(n=0),
        "apb": dict(b=0),
    }[op]
    arguments = getattr(cases, op)(generator(7), **empty)
    result = serve(**arguments)
    first = arguments.get("x", arguments.get("q"))
    assert result.shape == first.shape and result.numel() == 0


@pytest.mark.parametrize("op", ["triattn", "apb"])
def test_no_keys_gives_zeros(op):
    for m in members(op):
        arguments = getattr(cases, op)(generator(8), n=0, nq=3)
        result, _ = entry(op)(**arguments, row=m["row"])
        assert torch.equal(result, torch.zeros_like(result)) and result.numel() > 0


@pytest.mark.parametrize("op", ["transition", "trimul", "triattn_module"])
def test_result_into_the_input(op):
    """out may be x, and may be the residual: same bits as into fresh memory."""
    for m in members(op):
        for target in ("x", "residual"):
            arguments = one_case(op, generator(9))
            fresh, _ = entry(op)(**arguments, row=m["row"])
            try:
                result, _ = entry(op)(**arguments, row=m["row"], out=arguments[target])
            except ValueError:
                assert op == "triattn_module"  # its header does not promise it
                continue
            assert result is arguments[target]
            assert torch.equal(result, fresh), (m, target)


def test_layernorm_hard_rows():
    g = generator(10)
    c = 384
    rows = torch.stack(
        [
            2000 + torch.randn(c, generator=g),
            1e4 + torch.arange(c) % 4,
            torch.zeros(c),
            torch.full((c,), 3.0),
            torch.cat([torch.tensor([6e4]), torch.randn(c - 1, generator=g)]),
            1e15 * torch.randn(c, generator=g),
            torch.full((c,), 1e-40),
            torch.randn(c, generator=g),
        ]
    )
    rows[-1, 5] = float("nan")
    weight, bias = cases.affine(g, c)
    for m in members("ln"):
        y, _ = entry("ln")(rows, weight, bias, row=m["row"])
        assert torch.isnan(y[-1]).all() and torch.isfinite(y[:-1]).all()
        assert torch.equal(y[2], bias) and torch.allclose(y[3], bias, atol=1e-4)
        expected = torch_reference.ln(rows, weight, bias)
        for i in range(len(rows) - 1):
            # rows 0 and 1: the sum's float32 spacing over the row's deviation; the reference sums in one straight line
            loss = (3e-3 if m["row"] == "reference" else 3e-4) if i in (0, 1) else 3e-5
            assert (y[i] - expected[i]).abs().max() <= loss, (m, i)


def test_threads_do_not_change_bits():
    for op in OPS:
        arguments = one_case(op, generator(11))
        before = torch.get_num_threads()
        try:
            torch.set_num_threads(1)
            one, _ = entry(op)(**arguments, row="cpu")
            torch.set_num_threads(3)
            three, _ = entry(op)(**arguments, row="cpu")
        finally:
            torch.set_num_threads(before)
        assert torch.equal(one, three)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.int32])
def test_gate_planes_equals_torch_bits(dtype):
    from opt_core.kernels.trimul import gate_planes

    g = generator(12)
    gate, proj = torch.rand(17, 17, 33, generator=g), cases.random(g, 17, 17, 33, scale=100)
    mask = cases.mask01(g, 17, 17, dtype=dtype)
    expected = ((mask.float()[..., None] * gate) * proj).permute(2, 0, 1)
    assert torch.equal(gate_planes(gate, proj, mask), expected)
    assert torch.equal(
        gate_planes(cases.strided(gate, "sliced"), proj.transpose(0, 1).contiguous().transpose(0, 1), mask), expected
    )
    assert torch.equal(gate_planes(gate, proj), (gate * proj).permute(2, 0, 1))


def test_uncovered_is_refused_and_covered_is_served():
    """Without a row the table in force decides; whatever it says is one of the two."""
    for op in OPS:
        ids = {cell["id"] for cell in _core.cells(op)}
        try:
            _, choice = entry(op)(**one_case(op, generator(13)))
        except Refused as refusal:
            assert refusal.word == "uncovered_cell" and refusal.detail.startswith(op + ":")
            continue
        assert choice[0] in ids


def test_isa_of_the_environment_is_obeyed(monkeypatch):
    for isa in runnable():
        monkeypatch.setenv("OPT_CORE_ISA", isa)
        _, choice = entry("transition")(**one_case("transition", generator(6)), row="cpu")
        assert choice[2] == f"cpu_{isa}"
    monkeypatch.setenv("OPT_CORE_ISA", "sse9")
    with pytest.raises(Refused, match="environment:OPT_CORE_ISA"):
        entry("ln")(torch.ones(2, 8), row="cpu")
    assert os.environ["OPT_CORE_ISA"] == "sse9"

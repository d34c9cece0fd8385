# SPDX-License-Identifier: Apache-2.0
"""Gradients of triattn and triattn_module, eager and as registered ops, against autograd through the statement."""

import itertools

import pytest

torch = pytest.importorskip("torch")

import torch_cases as cases  # noqa: E402
import torch_reference  # noqa: E402

from opt_core import Refused  # noqa: E402
from opt_core.kernels.triattn import backward, triattn, triattn_module  # noqa: E402

ENTRIES = {"triattn": triattn, "triattn_module": triattn_module}


def generator(seed):
    return torch.Generator().manual_seed(seed)


def registered(op):
    return getattr(torch.ops.opt_core, op).default


def floating(arguments):
    return {k: v for k, v in arguments.items() if isinstance(v, torch.Tensor) and v.is_floating_point()}


def wanting(arguments, names=None):
    """The same numbers as leaves that want gradients."""
    leaves = floating(arguments)
    return {
        k: v.detach().clone().requires_grad_() if k in leaves and (names is None or k in names) else v
        for k, v in arguments.items()
    }


def split(op, arguments):
    args, kwargs = [], {}
    for argument in registered(op)._schema.arguments:
        if not argument.kwarg_only:
            args.append(arguments.get(argument.name))
        elif argument.name in arguments:
            kwargs[argument.name] = arguments[argument.name]
    return tuple(args), kwargs


def statement(op, arguments):
    extra = {k: v for k, v in arguments.items() if k in ("rms", "fast_variance", "norm_round")}
    if not extra:
        return getattr(torch_reference, op)(**arguments)
    # the reference's module takes eps only: it is called with a norm of its own
    rest = {k: v for k, v in arguments.items() if k not in extra}
    plain = torch_reference.norm
    torch_reference.norm = lambda x, w, b, eps: plain(x, w, b, eps, extra.get("rms", False), None)
    try:
        return torch_reference.triattn_module(**rest)
    finally:
        torch_reference.norm = plain


def gradients(call, arguments, seed=3):
    arguments = wanting(arguments)
    result = call(**arguments)
    weight = torch.randn(result.shape, generator=generator(seed), dtype=torch.float64).to(result.dtype)
    (result * weight).sum().backward()
    return {k: v.grad for k, v in arguments.items() if isinstance(v, torch.Tensor) and v.requires_grad}


def assert_same_gradients(op, arguments, call, bound=1e-5):
    expected = gradients(lambda **a: statement(op, a), arguments)
    found = gradients(call, arguments)
    assert found.keys() == expected.keys() == floating(arguments).keys()
    for name, one in expected.items():
        if one is None:  # a mask that only selects
            assert name == "mask" and not found[name].any()
            continue
        assert found[name].shape == one.shape and found[name].dtype is one.dtype
        # a bias of k, or of the pair bias, shifts every logit of a row alike: its gradient is a sum that cancels
        scale = one.abs().mean() + (1 if name in ("to_k_bias", "to_bias_bias") else 1e-3)
        assert float((found[name] - one).abs().max() / scale) < bound * 30, name
        assert float((found[name] - one).abs().mean() / scale) < bound, name


def variants(op):
    g = generator(1)
    if op == "triattn":
        for kind, bias, gate in itertools.product(cases.MASK_VALUES, (False, True), (False, True)):
            yield cases.triattn(g, mask_kind=kind, bias=bias, gate=gate)
        yield cases.triattn(g, n=19, nq=7, b=2, mask_kind="subtract", gate=True)
        yield cases.triattn(g, mask_kind="zero", mask_dtype=torch.bool)
        yield cases.triattn(g, n=1, i=1, d=4)
    else:
        for kind, biased, gate, untransposed in itertools.product(
            ("none", "subtract", "fill", "zero"), (False, True), (False, True), (False, True)
        ):
            yield cases.triattn_module(
                g, mask_kind=kind, biased=biased, gate=gate, untransposed=untransposed, residual=gate
            )
        yield cases.triattn_module(g, n=5, b=2)
        yield {**cases.triattn_module(g), "rms": True}
        yield {**cases.triattn_module(g), "fast_variance": True}
        yield {k: v for k, v in cases.triattn_module(g).items() if not k.startswith("norm")}


EXECUTED = {"triattn": 23, "triattn_module": 36}


@pytest.mark.parametrize("op", ENTRIES)
def test_gradients_of_every_dialect(op):
    executed = 0
    for arguments in variants(op):
        # a mask value of 1e9 is absorbed in float32 and not in float64; both kill the weight
        if arguments["mask_kind"] == "subtract":
            arguments["mask_value"] = 30.0
        assert_same_gradients(op, arguments, lambda **a: ENTRIES[op](**a, row="cpu")[0])
        executed += 1
    assert executed == EXECUTED[op]


@pytest.mark.parametrize("op", ENTRIES)
def test_the_op_and_the_entry_give_the_same_gradients(op):
    for arguments in itertools.islice(variants(op), 4, 9):

        def as_op(**a):
            args, kwargs = split(op, a)
            return registered(op)(*args, **kwargs, row="cpu")

        first = gradients(as_op, arguments)
        second = gradients(lambda **a: ENTRIES[op](**a, row="cpu")[0], arguments)
        assert all(torch.equal(first[k], second[k]) for k in second) and first.keys() == second.keys()


@pytest.mark.parametrize("op", ENTRIES)
def test_only_what_is_wanted_is_computed(op):
    arguments = getattr(cases, op)(generator(2))
    everything = gradients(lambda **a: ENTRIES[op](**a, row="cpu")[0], arguments)
    for name in everything:
        some = wanting(arguments, (name,))
        result, choice = ENTRIES[op](**some, row="cpu")
        assert result.requires_grad and choice[1] == "cpu"
        weight = torch.randn(result.shape, generator=generator(3), dtype=torch.float64).to(result.dtype)
        (result * weight).sum().backward()
        assert torch.equal(some[name].grad, everything[name]), name


@pytest.mark.parametrize("op", ENTRIES)
def test_blocks_of_rows_change_nothing_but_the_order_of_one_sum(op, monkeypatch):
    arguments = getattr(cases, op)(generator(4), mask_kind="subtract")
    whole = gradients(lambda **a: ENTRIES[op](**a, row="cpu")[0], arguments)
    monkeypatch.setattr(backward, "BLOCK_BYTES", 1)
    rows = gradients(lambda **a: ENTRIES[op](**a, row="cpu")[0], arguments)
    for name, one in whole.items():
        torch.testing.assert_close(rows[name], one, rtol=1e-4, atol=1e-5 * float(one.abs().mean() + 1))


@pytest.mark.parametrize("op", ENTRIES)
def test_layouts(op):
    arguments = getattr(cases, op)(generator(5))
    expected = gradients(lambda **a: ENTRIES[op](**a, row="cpu")[0], arguments)
    for how in ("outer", "stepped"):

        def strided(**a):
            return ENTRIES[op](**cases.layout(a, how), row="cpu")[0]

        found = gradients(strided, arguments)
        for name, one in expected.items():
            torch.testing.assert_close(found[name], one, rtol=1e-4, atol=1e-5)


def test_narrow_dtypes_round_once():
    arguments = cases.triattn(generator(6), dtype=torch.bfloat16, gate=True)
    found = gradients(lambda **a: triattn(**a, row="cpu")[0], arguments)
    expected = gradients(lambda **a: torch_reference.triattn(**a), arguments)
    for name, one in found.items():
        assert one.dtype is arguments[name].dtype
        torch.testing.assert_close(one.double(), expected[name].double(), rtol=2**-7, atol=2e-2)


@pytest.mark.parametrize("op", ENTRIES)
def test_opcheck_with_gradients(op):
    executed = 0
    for arguments in (getattr(cases, op)(generator(7)), getattr(cases, op)(generator(7), mask_kind="fill")):
        args, kwargs = split(op, wanting(arguments))
        result = torch.library.opcheck(registered(op), args, {**kwargs, "row": "cpu"})
        assert set(result.values()) == {"SUCCESS"} and len(result) >= 4, result
        executed += 1
    assert executed == 2


@pytest.mark.parametrize("op", ENTRIES)
def test_opcheck_of_the_backward(op):
    arguments = getattr(cases, op)(generator(8))
    args, kwargs = split(op, arguments)
    backward_op = registered(f"{op}_backward")
    names = [a.name for a in backward_op._schema.arguments if a.kwarg_only]
    defaults = {a.name: a.default_value for a in registered(op)._schema.arguments if a.has_default_value()}
    settings = {name: kwargs.get(name, defaults.get(name)) for name in names if name != "wanted"}
    wanted = [tensor is not None and i % 2 == 0 for i, tensor in enumerate(args)]
    result = torch.library.opcheck(backward_op, (torch.ones_like(args[0]), *args), {**settings, "wanted": wanted})
    assert set(result.values()) == {"SUCCESS"}, result


@pytest.mark.parametrize("op", ENTRIES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_fullgraph_with_gradients(op, dynamic):
    torch.compiler.reset()
    served = ENTRIES[op]
    compiled = torch.compile(
        lambda **a: served(**a, row="cpu")[0] * 2, fullgraph=True, backend="aot_eager", dynamic=dynamic
    )
    for n in (9, 12) if dynamic else (9,):
        arguments = getattr(cases, op)(generator(9), n=n)
        found = gradients(compiled, arguments)
        expected = gradients(lambda **a: served(**a, row="cpu")[0] * 2, arguments)
        assert all(torch.equal(found[k], expected[k]) for k in expected)
    torch.compiler.reset()


def test_gradcheck_in_double():
    """The member reference takes float64 everywhere: finite differences agree with the statement's gradients."""
    g = generator(10)
    q, k, v = (torch.randn(1, 2, 3, 2, 4, generator=g, dtype=torch.float64).requires_grad_() for _ in range(3))
    bias = torch.randn(1, 2, 3, 3, generator=g, dtype=torch.float64).requires_grad_()
    gate = torch.randn(1, 2, 3, 2, 4, generator=g, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(
        lambda *a: triattn(a[0], a[1], a[2], a[3], None, a[4], scale=0.5, row="reference")[0], (q, k, v, bias, gate)
    )


# ---- what has none ---------------------------------------------------------------------------------------------------


def test_lse_has_no_gradient():
    arguments = wanting(cases.triattn(generator(11)))
    b, i, n, h, _ = arguments["q"].shape
    lse = torch.zeros(b, i, h, n)
    result, _ = triattn(**arguments, lse=lse, row="cpu")
    assert result.requires_grad and not lse.requires_grad and lse.any()
    with pytest.raises(Refused, match="^grad:argument 1 requires grad"):
        triattn(**arguments, lse=lse.requires_grad_(), row="cpu")


@pytest.mark.parametrize("op", ENTRIES)
def test_out_has_no_gradient(op):
    arguments = getattr(cases, op)(generator(12))
    out = torch.zeros_like(arguments.get("q", arguments.get("x")))
    with pytest.raises(Refused, match="^grad:out= is written behind autograd's back"):
        ENTRIES[op](**wanting(arguments), out=out, row="cpu")
    with pytest.raises(Refused, match="^grad:"):
        ENTRIES[op](**arguments, out=out.clone().requires_grad_(), row="cpu")
    with torch.no_grad():
        assert ENTRIES[op](**wanting(arguments), out=out, row="cpu")[0] is out


@pytest.mark.parametrize("op", ENTRIES)
def test_exact_has_no_gradient(op):
    """The backward recomputes: its bits are not the stock op's."""
    arguments = wanting(getattr(cases, op)(generator(15)))
    args, kwargs = split(op, arguments)
    for call in (
        lambda: ENTRIES[op](**arguments, tier="exact", row="cpu"),
        lambda: registered(op)(*args, **kwargs, tier="exact", row="cpu"),
    ):
        with pytest.raises(Refused, match="^grad:argument 0 requires grad"):
            call()
        with torch.no_grad():
            call()


@pytest.mark.parametrize("op", ENTRIES)
def test_a_second_derivative_is_refused(op):
    arguments = wanting(getattr(cases, op)(generator(13)))
    result, _ = ENTRIES[op](**arguments, row="cpu")
    with pytest.raises(Refused, match="^grad:"):
        torch.autograd.grad(result.sum(), list(floating(arguments).values()), create_graph=True)
    name = next(iter(floating(arguments)))
    with pytest.raises(Refused, match="^grad:"):  # keeps the graph of its backward
        torch.func.grad(lambda x: ENTRIES[op](**{**arguments, name: x}, row="cpu")[0].sum())(arguments[name].detach())


def test_no_graph_without_need():
    arguments = cases.triattn(generator(14))
    assert not triattn(**arguments, row="cpu")[0].requires_grad
    for off in (torch.no_grad, torch.inference_mode):
        with off():
            assert not triattn(**wanting(arguments), row="cpu")[0].requires_grad
    args, kwargs = split("triattn", arguments)
    assert not registered("triattn")(*args, **kwargs, row="cpu").requires_grad

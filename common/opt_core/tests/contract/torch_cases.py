# SPDX-License-Identifier: Apache-2.0
"""Random, asymmetric arguments for every op, and how close a served result has to be to the float64 statement."""

import torch


def random(generator, *shape, dtype=torch.float32, scale=1.0):
    return (torch.randn(*shape, generator=generator) * scale).to(dtype)


def weights(generator, out, inner, dtype=torch.float32):
    return random(generator, out, inner, dtype=dtype, scale=inner**-0.5)


def affine(generator, width, dtype=torch.float32):
    return (1 + 0.3 * torch.randn(width, generator=generator)).to(dtype), random(
        generator, width, dtype=dtype, scale=0.3
    )


def mask01(generator, *shape, dtype=torch.float32):
    """About a quarter masked; the first key of each row is kept, so that no row is empty."""
    mask = torch.rand(*shape, generator=generator) > 0.25
    mask[..., :1] = True
    return mask.to(dtype)


def strided(tensor, how):
    """The same numbers behind other strides."""
    if tensor is None or how == "contiguous":
        return tensor
    if how == "transposed":
        return tensor.transpose(-2, -1).contiguous().transpose(-2, -1) if tensor.dim() > 1 else tensor
    if how == "outer":  # first two long axes exchanged in memory, the ending node's layout
        return tensor.transpose(1, 2).contiguous().transpose(1, 2) if tensor.dim() > 3 else tensor
    if how == "sliced":  # out of a wider tensor, unaligned
        wider = tensor.new_full((*tensor.shape[:-1], tensor.shape[-1] + 3), 7)
        wider[..., 1:-2] = tensor
        return wider[..., 1:-2]
    assert how == "stepped"
    wider = tensor.new_full((*tensor.shape[:-1], 2 * tensor.shape[-1]), 7)
    wider[..., ::2] = tensor
    return wider[..., ::2]


LAYOUTS = ("contiguous", "transposed", "outer", "sliced", "stepped")


def layout(arguments, how):
    return {
        name: strided(value, how) if isinstance(value, torch.Tensor) else value for name, value in arguments.items()
    }


def ln(g, dtype=torch.float32, c=33, shape=(2, 5)):
    weight, bias = affine(g, c)
    return dict(x=random(g, *shape, c, dtype=dtype, scale=3), weight=weight, bias=bias)


def transition(
    g,
    dtype=torch.float32,
    weight_dtype=torch.float32,
    n=5,
    c=17,
    hidden=37,
    activation="swiglu",
    biased=True,
    mask=None,
    residual=False,
    norm_absent=False,
):
    w, b = affine(g, c)
    x = random(g, 2, n, n + 2, c, dtype=dtype)
    a = dict(
        x=x,
        up=weights(g, hidden, c, weight_dtype),
        down=weights(g, c, hidden, weight_dtype),
        activation=activation,
        norm_absent=norm_absent,
    )
    if not norm_absent:
        a.update(norm_weight=w, norm_bias=b)
    if activation != "relu":
        a["gate"] = weights(g, hidden, c, weight_dtype)
    if biased:
        a.update(up_bias=random(g, hidden), down_bias=random(g, c))
        if activation != "relu":
            a["gate_bias"] = random(g, hidden)
    if mask is not None:
        a["mask"] = mask01(g, 2, n, n + 2, dtype=mask)
    if residual:
        a["residual"] = random(g, 2, n, n + 2, c, dtype=dtype)
    return a


def trimul(
    g,
    dtype=torch.float32,
    weight_dtype=torch.float32,
    b=1,
    n=9,
    c=16,
    ch=24,
    direction="outgoing",
    swapped=False,
    biased=True,
    mask=torch.float32,
    residual=True,
    right_scale=1.0,
):
    a = dict(
        x=random(g, b, n, n, c, dtype=dtype), direction=direction, operands_swapped=swapped, right_scale=right_scale
    )
    a["norm_in_weight"], a["norm_in_bias"] = affine(g, c)
    a["norm_out_weight"], a["norm_out_bias"] = affine(g, ch)
    for name, out, inner in (
        ("a_proj", ch, c),
        ("a_gate", ch, c),
        ("b_proj", ch, c),
        ("b_gate", ch, c),
        ("out_proj", c, ch),
        ("out_gate", c, c),
    ):
        a[name] = weights(g, out, inner, weight_dtype)
        if biased:
            a[name + "_bias"] = random(g, out, scale=0.5)
    if mask is not None:
        a["mask"] = mask01(g, b, n, n, dtype=mask)
    if residual:
        a["residual"] = random(g, b, n, n, c, dtype=dtype)
    return a


MASK_VALUES = {"none": 0.0, "subtract": 1e9, "fill": float("-inf"), "zero": 0.0, "add": 0.0}


def triattn(
    g,
    dtype=torch.float32,
    b=1,
    i=5,
    n=13,
    nq=None,
    h=3,
    d=8,
    mask_kind="none",
    mask_dtype=torch.float32,
    bias=True,
    gate=False,
):
    nq = n if nq is None else nq
    a = dict(
        q=random(g, b, i, nq, h, d, dtype=dtype),
        k=random(g, b, i, n, h, d, dtype=dtype),
        v=random(g, b, i, n, h, d, dtype=dtype),
        scale=d**-0.5,
        mask_kind=mask_kind,
        mask_value=MASK_VALUES[mask_kind],
    )
    if bias:
        a["bias"] = random(g, b, h, nq, n)
    if gate:
        a["gate"] = random(g, b, i, nq, h, d, dtype=dtype)
    if mask_kind == "add":
        a["mask"] = random(g, b, i, n, scale=2)
    elif mask_kind != "none":
        a["mask"] = mask01(g, b, i, n, dtype=mask_dtype)
    return a


def triattn_module(
    g,
    dtype=torch.float32,
    weight_dtype=torch.float32,
    b=1,
    n=11,
    c=24,
    h=3,
    d=8,
    mask_kind="subtract",
    biased=True,
    gate=True,
    residual=True,
    untransposed=False,
):
    a = dict(
        x=random(g, b, n, n, c, dtype=dtype),
        heads=h,
        scale=d**-0.5,
        bias_untransposed_end=untransposed,
        mask_kind=mask_kind,
        mask_value=MASK_VALUES[mask_kind],
    )
    a["norm_weight"], a["norm_bias"] = affine(g, c)
    for name, out, inner in (
        ("to_q", h * d, c),
        ("to_k", h * d, c),
        ("to_v", h * d, c),
        ("to_bias", h, c),
        ("to_gate", h * d, c),
        ("out_proj", c, h * d),
    ):
        if name == "to_gate" and not gate:
            continue
        a[name] = weights(g, out, inner, weight_dtype)
        if biased:
            a[name + "_bias"] = random(g, out, scale=0.5)
    if mask_kind != "none":
        a["mask"] = mask01(g, b, n, n)
    if residual:
        a["residual"] = random(g, b, n, n, c, dtype=dtype)
    return a


def apb(
    g,
    dtype=torch.float32,
    b=2,
    n=13,
    nq=None,
    h=3,
    d=24,
    mask_kind="none",
    shared=False,
    gate=False,
    bias_first=False,
    bias_dtype=torch.float32,
):
    nq = n if nq is None else nq
    bias = random(g, 1 if shared else b, h, nq, n, dtype=bias_dtype)
    a = dict(
        q=random(g, b, nq, h, d, dtype=dtype),
        k=random(g, b, n, h, d, dtype=dtype),
        v=random(g, b, n, h, d, dtype=dtype),
        bias=bias.expand(b, h, nq, n),
        scale=d**-0.5,
        mask_kind=mask_kind,
        mask_value=MASK_VALUES[mask_kind],
        bias_first=bias_first,
    )
    if gate:
        a["gate"] = random(g, b, nq, h, d, dtype=dtype)
    if mask_kind == "add":
        a["mask"] = random(g, b, n, scale=2)
    elif mask_kind != "none":
        a["mask"] = mask01(g, b, n)
    return a


def excess(result, reference, inner=0):
    """Largest error in units of what is allowed: one rounding to the result's dtype and float32 sums before it.

    inner  roundings to bf16 on the way that the stock op does too (softmax weights): half a unit of the largest each

    NaN and infinities must be in the same places, with the same sign.
    """
    assert result.shape == reference.shape
    result, unit = result.double(), {torch.float32: 2**-24, torch.bfloat16: 2**-8, torch.float16: 2**-11}[result.dtype]
    finite = torch.isfinite(reference)
    assert torch.equal(torch.isfinite(result), finite)
    assert torch.equal(torch.nan_to_num(result[~finite], nan=1.5), torch.nan_to_num(reference[~finite], nan=1.5))
    if not finite.any():
        return 0.0
    scale = reference[finite].abs().mean() + 1e-30
    allowed = 1.01 * unit * reference[finite].abs() + 1e-5 * scale + 2**-149
    allowed += inner * 2**-9 * reference[finite].abs().max()
    return float(((result[finite] - reference[finite]).abs() / allowed).max())

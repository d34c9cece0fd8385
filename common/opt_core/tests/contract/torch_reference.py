# SPDX-License-Identifier: Apache-2.0
"""Every op as its header states it, in float64 and in the plainest torch: what the served results are held against."""

import torch

ROUND = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def wide(tensor):
    return None if tensor is None else tensor.double()


def norm(x, weight=None, bias=None, eps=1e-5, rms=False, rounded=None):
    x = wide(x)
    mean = torch.zeros_like(x[..., :1]) if rms else x.mean(-1, keepdim=True)
    y = (x - mean) / torch.sqrt(((x - mean) ** 2).mean(-1, keepdim=True) + eps)
    if weight is not None:
        y = y * wide(weight)
    if bias is not None:
        y = y + wide(bias)
    return y if rounded is None else y.to(ROUND[rounded]).double()


def linear(x, weight, bias=None):
    y = x @ wide(weight).T
    return y if bias is None else y + wide(bias)


def masked(logits, mask, kind, value):
    """The logits, and which keys have weight 0 whatever their logit. `mask` broadcasts against the logits."""
    if kind == "none":
        return logits, None
    if kind == "add":
        return logits + wide(mask), None
    if kind == "subtract":
        return logits + value * (wide(mask) - 1), None
    if kind == "fill":
        return torch.where(mask != 0, logits, torch.full_like(logits, value)), None
    return logits, (mask == 0).expand_as(logits)


def softmax(logits, dropped):
    if dropped is None:
        return torch.softmax(logits, -1)
    return torch.nan_to_num(torch.softmax(logits.masked_fill(dropped, float("-inf")), -1), nan=0.0)


def ln(x, weight=None, bias=None, *, eps=1e-5, rms=False, norm_round=None):
    return norm(x, weight, bias, eps, rms, norm_round)


def transition(
    x,
    up,
    down,
    gate=None,
    norm_weight=None,
    norm_bias=None,
    up_bias=None,
    gate_bias=None,
    down_bias=None,
    mask=None,
    residual=None,
    *,
    activation="swiglu",
    norm_absent=False,
    eps=1e-5,
):
    h = wide(x) if norm_absent else norm(x, norm_weight, norm_bias, eps)
    u = linear(h, up, up_bias)
    if activation == "relu":
        hidden = torch.relu(u)
    else:
        g = linear(h, gate, gate_bias)
        hidden = torch.sigmoid(g) * (g if activation == "swiglu" else 1.0) * u
    y = linear(hidden, down, down_bias)
    if mask is not None:
        y = y * wide(mask)[..., None]
    return y if residual is None else y + wide(residual)


def trimul(
    x,
    a_proj,
    a_gate,
    b_proj,
    b_gate,
    out_proj,
    out_gate,
    norm_in_weight=None,
    norm_in_bias=None,
    norm_out_weight=None,
    norm_out_bias=None,
    a_proj_bias=None,
    a_gate_bias=None,
    b_proj_bias=None,
    b_gate_bias=None,
    out_proj_bias=None,
    out_gate_bias=None,
    mask=None,
    residual=None,
    *,
    direction,
    operands_swapped=False,
    right_scale=1.0,
    eps_in=1e-5,
    eps_out=1e-5,
):
    h = norm(x, norm_in_weight, norm_in_bias, eps_in)
    kept = 1.0 if mask is None else wide(mask)[..., None]
    a = kept * torch.sigmoid(linear(h, a_gate, a_gate_bias)) * linear(h, a_proj, a_proj_bias)
    b = kept * torch.sigmoid(linear(h, b_gate, b_gate_bias)) * linear(h, b_proj, b_proj_bias) * right_scale
    if direction == "outgoing":
        t = torch.einsum("bikc,bjkc->bijc", a, b)
    elif operands_swapped:
        t = torch.einsum("bkjc,bkic->bijc", a, b)
    else:
        t = torch.einsum("bkic,bkjc->bijc", a, b)
    y = linear(norm(t, norm_out_weight, norm_out_bias, eps_out), out_proj, out_proj_bias)
    y = y * torch.sigmoid(linear(h, out_gate, out_gate_bias))
    return y if residual is None else y + wide(residual)


def triattn(q, k, v, bias=None, mask=None, gate=None, *, scale=1.0, mask_kind="none", mask_value=0.0, with_lse=False):
    logits = torch.einsum("biqhd,bikhd->bihqk", wide(q), wide(k)) * scale
    keys = None if mask is None else mask[:, :, None, None, :]
    logits, dropped = masked(logits, keys, mask_kind, mask_value)
    if bias is not None:
        logits = logits + wide(bias)[:, None]
    out = torch.einsum("bihqk,bikhd->biqhd", softmax(logits, dropped), wide(v))
    if gate is not None:
        out = out * torch.sigmoid(wide(gate))
    if not with_lse:
        return out
    return out, torch.logsumexp(logits if dropped is None else logits.masked_fill(dropped, float("-inf")), -1)


def triattn_module(
    x,
    to_q,
    to_k,
    to_v,
    to_bias,
    out_proj,
    to_gate=None,
    norm_weight=None,
    norm_bias=None,
    to_q_bias=None,
    to_k_bias=None,
    to_v_bias=None,
    to_bias_bias=None,
    to_gate_bias=None,
    out_proj_bias=None,
    mask=None,
    residual=None,
    *,
    heads,
    scale,
    bias_untransposed_end=False,
    mask_kind="none",
    mask_value=0.0,
    eps=1e-5,
):
    h = norm(x, norm_weight, norm_bias, eps)

    def split(t):
        return t.reshape(*t.shape[:-1], heads, -1)

    q, k, v = (split(linear(h, w, b)) for w, b in ((to_q, to_q_bias), (to_k, to_k_bias), (to_v, to_v_bias)))
    bias = linear(h, to_bias, to_bias_bias).permute(0, 3, 1, 2)
    if bias_untransposed_end:
        bias = bias.transpose(2, 3)
    gate = None if to_gate is None else split(linear(h, to_gate, to_gate_bias))
    o = triattn(q, k, v, bias, mask, gate, scale=scale, mask_kind=mask_kind, mask_value=mask_value)
    y = linear(o.flatten(-2), out_proj, out_proj_bias)
    return y if residual is None else y + wide(residual)


def apb(q, k, v, bias, mask=None, gate=None, *, scale=1.0, mask_kind="none", mask_value=0.0, bias_first=False):
    logits = torch.einsum("bqhd,bkhd->bhqk", wide(q), wide(k)) * scale
    keys = None if mask is None else mask[:, None, None, :]
    if bias_first:
        logits = logits + wide(bias)
    logits, dropped = masked(logits, keys, mask_kind, mask_value)
    if not bias_first:
        logits = logits + wide(bias)
    out = torch.einsum("bhqk,bkhd->bqhd", softmax(logits, dropped), wide(v))
    return out if gate is None else out * torch.sigmoid(wide(gate))

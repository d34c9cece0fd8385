# SPDX-License-Identifier: Apache-2.0
"""Gradients of the statement that the members compute: triattn and triattn_module.

computes   the derivatives of the formulas in triattn.h and module.h with respect to every floating input, from the
           inputs alone: the forward's intermediate values are recomputed
types      f32 (f64 for f64 inputs), rounded to the input's dtype once at the end. norm_round passes gradients through
memory     the logits of all rows are never held: rows go in blocks of at most BLOCK_BYTES of logits, of which about
           four copies live
exactness  none; the same bits on every run where torch's products give the same
errors     none of its own; a mask that only selects ("fill", "zero") gets zeros
source     none
"""

import torch

BLOCK_BYTES = 128 << 20


def core(grad, q, k, v, bias, mask, gate, *, scale, mask_kind, mask_value, wanted):
    """The wanted gradients of triattn, in the order of the inputs."""
    found = _core(grad, q, k, v, bias, mask, gate, scale, mask_kind, mask_value, wanted)[0]
    return _in_dtype(found, (q, k, v, bias, mask, gate), wanted)


def module(grad, *inputs, wanted, **settings):
    """The wanted gradients of triattn_module, in the order of the inputs."""
    return _in_dtype(_module(grad, *inputs, **settings), inputs, wanted)


def _in_dtype(found, inputs, wanted):
    return [
        (torch.zeros_like(tensor) if one is None else one.to(tensor.dtype)).contiguous()
        for one, tensor, want in zip(found, inputs, wanted)
        if want
    ]


def _work(tensor):
    return torch.float64 if tensor.dtype is torch.float64 else torch.float32


# ---- the core --------------------------------------------------------------------------------------------------------


def _core(grad, q, k, v, bias, mask, gate, scale, mask_kind, mask_value, wanted, with_out=False):
    """([dq, dk, dv, dbias, dmask, dgate], out or None), all in the work dtype."""
    work = _work(q)
    rows, logits_of_row = q.shape[1], q.shape[0] * q.shape[3] * q.shape[2] * k.shape[2]
    step = max(1, BLOCK_BYTES // max(1, logits_of_row * work.itemsize))
    wide = None if bias is None else bias.to(work).unsqueeze(1)
    parts = [[] for _ in range(7)]
    for start in range(0, max(rows, 1), step):
        block = [None if t is None else t[:, start : start + step] for t in (grad, q, k, v, mask, gate)]
        found = _core_block(*block, wide, scale, mask_kind, mask_value, work, wanted, with_out)
        for part, one in zip(parts, found):
            part.append(one)
    dq, dk, dv, dbias, dmask, dgate, out = parts
    joined = [_joined(part) for part in (dq, dk, dv, dmask, dgate, out)]
    dbias = None if dbias[0] is None else sum(dbias[1:], start=dbias[0])
    return [*joined[:3], dbias, *joined[3:5]], joined[5]


def _joined(part):
    return None if part[0] is None else part[0] if len(part) == 1 else torch.cat(part, 1)


def _masked(logits, keys, kind, value):
    """(logits after the mask, what passes gradients to q and k, what has weight 0)."""
    if kind == "add":
        return logits + keys, None, None
    if kind == "subtract":
        return logits + value * (keys - 1), None, None
    if kind == "fill":
        kept = keys != 0
        return torch.where(kept, logits, torch.full_like(logits, value)), kept, None
    return logits, None, (None if kind == "none" else keys == 0)


def _softmax(logits, dropped):
    if dropped is None:
        return torch.softmax(logits, -1)
    return torch.nan_to_num(torch.softmax(logits.masked_fill(dropped, float("-inf")), -1), nan=0.0)


def _core_block(grad, q, k, v, mask, gate, bias, scale, kind, value, work, wanted, with_out):
    """As _core for some rows, flat; [B, rows, H, N, D] inside."""
    grad, q, k, v = (tensor.to(work).transpose(2, 3) for tensor in (grad, q, k, v))
    keys = None if mask is None else mask.to(work)[:, :, None, None, :]
    logits, passes, dropped = _masked(torch.matmul(q, k.transpose(-1, -2)) * scale, keys, kind, value)
    if bias is not None:
        logits = logits + bias
    p = _softmax(logits, dropped)
    del logits
    out = dgate = None
    if gate is not None or with_out:
        out = torch.matmul(p, v)
    if gate is not None:
        sigmoid = torch.sigmoid(gate.to(work)).transpose(2, 3)
        dgate = (grad * out * sigmoid * (1 - sigmoid)).transpose(2, 3)
        grad = grad * sigmoid
        out = out * sigmoid
    dv = torch.matmul(p.transpose(-1, -2), grad).transpose(2, 3) if wanted[2] else None
    ds = torch.matmul(grad, v.transpose(-1, -2))
    ds = p * (ds - (ds * p).sum(-1, keepdim=True))
    del p
    dbias = ds.sum(1) if bias is not None and wanted[3] else None
    dmask = None
    if wanted[4] and kind in ("add", "subtract"):
        dmask = ds.sum((2, 3)) * (value if kind == "subtract" else 1)
    if passes is not None:
        ds = torch.where(passes, ds, torch.zeros_like(ds))
    dq = (torch.matmul(ds, k) * scale).transpose(2, 3) if wanted[0] else None
    dk = (torch.matmul(ds.transpose(-1, -2), q) * scale).transpose(2, 3) if wanted[1] else None
    return dq, dk, dv, dbias, dmask, dgate, out.transpose(2, 3) if with_out else None


# ---- the module ------------------------------------------------------------------------------------------------------


class _Norm:
    """The norm of module.h, and its gradients."""

    def __init__(self, x, weight, bias, eps, rms, fast_variance, norm_round):
        self.rms = rms
        mean = torch.zeros_like(x[..., :1]) if rms else x.mean(-1, keepdim=True)
        if rms or fast_variance:
            variance = (x * x).mean(-1, keepdim=True) - mean * mean
        else:
            variance = (x - mean).square().mean(-1, keepdim=True)
        self.scale = torch.rsqrt(variance + eps)
        self.normed = (x - mean) * self.scale
        self.weight = None if weight is None else weight.to(x.dtype)
        self.y = self.normed if weight is None else self.normed * self.weight
        self.y = self.y if bias is None else self.y + bias.to(x.dtype)
        if norm_round in ("bf16", "f16"):
            self.y = self.y.to({"bf16": torch.bfloat16, "f16": torch.float16}[norm_round]).to(x.dtype)

    def backward(self, grad):
        """(dx, dweight, dbias)."""
        axes = tuple(range(grad.dim() - 1))
        inner = grad if self.weight is None else grad * self.weight
        dx = inner - self.normed * (inner * self.normed).mean(-1, keepdim=True)
        if not self.rms:
            dx = dx - inner.mean(-1, keepdim=True)
        return dx * self.scale, (grad * self.normed).sum(axes), grad.sum(axes)


class _Linear:
    """y = x weight^T + bias, and its gradients; absent without a weight."""

    def __init__(self, x, weight, bias):
        self.x, self.weight = x, None if weight is None else weight.to(x.dtype)
        self.y = None
        if weight is not None:
            self.y = torch.nn.functional.linear(x, self.weight, None if bias is None else bias.to(x.dtype))

    def backward(self, grad):
        """(dx, dweight, dbias)."""
        if self.weight is None:
            return 0, None, None
        flat = grad.flatten(0, -2)
        return grad @ self.weight, flat.T @ self.x.flatten(0, -2), flat.sum(0)


def _module(
    grad,
    x,
    to_q,
    to_k,
    to_v,
    to_bias,
    out_proj,
    to_gate,
    norm_weight,
    norm_bias,
    to_q_bias,
    to_k_bias,
    to_v_bias,
    to_bias_bias,
    to_gate_bias,
    out_proj_bias,
    mask,
    residual,
    *,
    heads,
    scale,
    bias_untransposed_end,
    mask_kind,
    mask_value,
    eps,
    rms,
    fast_variance,
    norm_round,
):
    work = _work(x)
    grad = grad.to(work)
    norm = _Norm(x.to(work), norm_weight, norm_bias, eps, rms, fast_variance, norm_round)
    pairs = ((to_q, to_q_bias), (to_k, to_k_bias), (to_v, to_v_bias), (to_gate, to_gate_bias))
    q, k, v, gate = linears = [_Linear(norm.y, weight, bias) for weight, bias in pairs]
    pair_bias = _Linear(norm.y, to_bias, to_bias_bias)
    order = (0, 3, 2, 1) if bias_untransposed_end else (0, 3, 1, 2)
    split = [None if one.y is None else one.y.unflatten(-1, (heads, -1)) for one in linears]
    # the last projection's input does not exist yet; its gradient needs the weight alone
    inner = (grad @ out_proj.to(work)).unflatten(-1, (heads, -1))
    found, out = _core(
        inner, *split[:3], pair_bias.y.permute(order), mask, split[3], scale, mask_kind, mask_value, [True] * 6, True
    )
    dq, dk, dv, dbias, dmask, dgate = found
    last = _Linear(out.flatten(-2), out_proj, out_proj_bias)
    _, dout_proj, dout_proj_bias = last.backward(grad)
    steps = [one.backward(None if d is None else d.flatten(-2)) for one, d in zip(linears, (dq, dk, dv, dgate))]
    steps.append(pair_bias.backward(dbias.permute((0, 3, 2, 1) if bias_untransposed_end else (0, 2, 3, 1))))
    (_, wq, bq), (_, wk, bk), (_, wv, bv), (_, wg, bg), (_, wb, bb) = steps
    dx, dnorm_weight, dnorm_bias = norm.backward(sum(step[0] for step in steps))
    weights = [wq, wk, wv, wb, dout_proj, wg, dnorm_weight, dnorm_bias]
    return [dx, *weights, bq, bk, bv, bb, bg, dout_proj_bias, dmask, None if residual is None else grad.clone()]

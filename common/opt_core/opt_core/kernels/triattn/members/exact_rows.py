# SPDX-License-Identifier: Apache-2.0
"""triattn_module row `exact_rows`: the stock module's bits, a few rows of attention at a time.

The stock op forms the logits of all rows at once ([I, H, N, N], 215 MB at N = 238, H = 4) and walks them four times in
memory. Rows are independent, so the same calls on a few rows give the same bits as long as the library's batched product
treats each matrix alike whatever the batch count; tests/contract/test_exact_rows.py shows it stack by stack
(TRIATTN_MODULE_CELLS.json, "stacks"). The projections stay whole calls.

Stock op: h = LN(x); q = to_q(h) / sqrt(D); softmax(q k^T + mask_value * (mask - 1) + bias) v; out_proj(o * sigmoid(to_gate(h))),
and residual + that where there is a residual. A missing mask is a mask of ones there, and adds its zeros here too.
"""
from opt_core import Refused

# Logits at once: 7 MB. At N = 238, H = 4 that is 8 rows; 1, 4 and 16 rows take the same time within 10 %, 32 rows 40 % more.
LOGITS = 1_800_000


def run(tensors, scalars):
    """Tensors and scalars in the order of oc_triattn_module; x f32. Returns y, a new tensor. Refused dialect, dtype."""
    import math

    import torch
    import torch.nn.functional as F

    (x, _y, mask, residual, norm_weight, norm_bias, to_q, to_q_bias, to_k, to_k_bias, to_v, to_v_bias, to_bias, to_bias_bias, to_gate,
     to_gate_bias, out_proj, out_proj_bias) = tensors
    eps, rms, fast_variance, norm_round, heads, scale, untransposed, mask_kind, mask_value, _tf32 = scalars
    width = to_q.shape[0] // heads
    if rms or fast_variance or norm_round or untransposed or mask_kind not in ("none", "subtract") or scale != width**-0.5:
        raise Refused("dialect", "exact_rows serves plain LayerNorm, scale D^-0.5, mask none or subtract, transposed end bias")
    if x.dtype != torch.float32:
        raise Refused("dtype", f"exact_rows serves f32, not {x.dtype}")

    h = F.layer_norm(x, (x.shape[-1],), norm_weight, norm_bias, eps)
    batch, rows, n, _ = h.shape

    def heads_of(weight, bias):
        return F.linear(h, weight, bias).view(batch, rows, n, heads, width).transpose(-2, -3)

    q, k, v = heads_of(to_q, to_q_bias), heads_of(to_k, to_k_bias), heads_of(to_v, to_v_bias)
    q /= math.sqrt(width)
    mask_bias = 0.0 if mask is None else (mask_value * (mask - 1))[..., :, None, None, :]
    pair_bias = F.linear(h, to_bias, to_bias_bias).permute(0, 3, 1, 2).unsqueeze(-4)
    out = torch.empty(batch, rows, n, heads, width, dtype=x.dtype)
    step = max(1, LOGITS // max(1, heads * n * n))
    for first in range(0, rows, step):
        part = slice(first, min(first + step, rows))
        s = torch.matmul(q[:, part], k[:, part].transpose(-1, -2))
        s += mask_bias if mask is None else mask_bias[:, part]
        s += pair_bias
        torch.softmax(s, -1, out=s)
        out[:, part] = torch.matmul(s, v[:, part]).transpose(-2, -3)
    if to_gate is not None:
        out *= F.linear(h, to_gate, to_gate_bias).sigmoid_().view(out.shape)
    y = F.linear(out.view(batch, rows, n, heads * width), out_proj, out_proj_bias)
    return y if residual is None else residual + y

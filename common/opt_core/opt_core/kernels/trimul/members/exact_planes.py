# SPDX-License-Identifier: Apache-2.0
"""trimul row `exact_planes`: the stock module's bits with its copies removed.

Every product that rounds is the stock's own library call on the same values in the same order; only the copies between
them go. torch's matmul on permuted [C, N, N] operands clones each matrix and multiplies them one by one; here the gating
pass writes both operands as contiguous planes, and one `torch.bmm` multiplies those. That `bmm` gives the bits of the
stock's product is a fact about the library on a given processor, so the row serves only on stacks where
tests/contract/test_exact_rows.py has shown it (TRIMUL_CELLS.json, "stacks").

Stock op: z = LN(x); a = (mask * sigmoid(a_gate(z))) * a_proj(z), b likewise; t = matmul of the permuted a and b, permuted back;
out_proj(LN(t)) * sigmoid(out_gate(z)), and residual + that where there is a residual.
"""
from opt_core import Refused


def run(tensors, scalars):
    """Tensors and scalars in the order of oc_trimul; x f32 contiguous. Returns y, a new tensor. Refused dialect, layout, dtype."""
    import torch
    import torch.nn.functional as F

    (x, _y, mask, residual, in_weight, in_bias, out_weight, out_bias, a_proj, a_proj_bias, a_gate, a_gate_bias, b_proj, b_proj_bias,
     b_gate, b_gate_bias, out_proj, out_proj_bias, out_gate, out_gate_bias) = tensors
    (eps_in, rms_in, fast_in, round_in, eps_out, rms_out, fast_out, round_out, direction, swapped, right_scale, product) = scalars
    if rms_in or fast_in or round_in or rms_out or fast_out or round_out or swapped or right_scale != 1.0 or product:
        raise Refused("dialect", "exact_planes serves plain LayerNorm, unscaled and unswapped operands")
    if x.dtype != torch.float32 or not x.is_contiguous():
        raise Refused("layout", f"exact_planes wants contiguous f32, not {x.dtype} with strides {tuple(x.stride())}")

    z = F.layer_norm(x, (x.shape[-1],), in_weight, in_bias, eps_in)
    batch, n, _, _ = z.shape
    hidden = a_proj.shape[0]

    def planes(proj, proj_bias, gate, gate_bias, swap):
        """[B * Ch, N, N], as the product reads the operand; `swap` exchanges the two token axes on the way."""
        from opt_core import _core

        sigma, p = F.linear(z, gate, gate_bias).sigmoid_(), F.linear(z, proj, proj_bias)
        out = torch.empty(batch, hidden, n, n, dtype=x.dtype)
        for b in range(batch):
            inputs = (sigma[b], p[b], None if mask is None else mask[b])
            if swap:
                inputs = tuple(None if t is None else t.transpose(0, 1) for t in inputs)
            _core.trimul_gate_planes(*inputs, out[b], torch.get_num_threads())
        return out.view(batch * hidden, n, n)

    # outgoing: A[c] = a[:, :, c], B[c] = b[:, :, c] transposed; incoming: A[c] transposed, B[c] as it is
    outgoing = direction == "outgoing"
    a = planes(a_proj, a_proj_bias, a_gate, a_gate_bias, swap=not outgoing)
    t = torch.bmm(a, planes(b_proj, b_proj_bias, b_gate, b_gate_bias, swap=outgoing)).view(batch, hidden, n, n)
    del a
    t = F.layer_norm(t.permute(0, 2, 3, 1), (hidden,), out_weight, out_bias, eps_out)
    y = F.linear(t, out_proj, out_proj_bias)
    y *= F.linear(z, out_gate, out_gate_bias).sigmoid_()
    return y if residual is None else residual + y

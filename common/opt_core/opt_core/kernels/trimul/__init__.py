# SPDX-License-Identifier: Apache-2.0
"""trimul: triangle multiplication, LayerNorm-in to gated output (and residual)."""

from opt_core import _core, kernels


def select(device, dtype, form, dims, tier="fast", stack=""):
    """(cell, row, member, fallback) for a call class; pure. Refused uncovered_cell, proof or arch."""
    return _core.select("trimul", tier, device, dtype, form, dims, stack)


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
    product=None,
    eps_in=1e-5,
    eps_out=1e-5,
    fast_variance=False,
    norm_round=None,
    tier="fast",
    row=None,
    rows_off=(),
    out=None,
):
    """Triangle multiplication; returns (y, (cell, row, member)).

    computes   h = norm_in(x); a = mask * sigmoid(a_gate(h)) * a_proj(h), b likewise, times right_scale
               direction "outgoing": t[i,j] = sum_k a[i,k] * b[j,k]; "incoming": sum_k a[k,i] * b[k,j],
               operands_swapped:
               sum_k a[k,j] * b[k,i]; y = out_proj(norm_out(t)) * sigmoid(out_gate(h)) + residual
    shapes     x, y, residual [B, N, N, C]; mask [B, N, N] or None; a_*, b_* [Ch, C]; out_proj [C, Ch]; out_gate [C,
               C]. A
               packed weight is passed as views of it
    types      x, y, residual, weights f32 or bf16; mask bool, u8, i32, i64, f32 or bf16; product: dtype word that a
               and b are
               rounded to, None: f32; sums f32 (member cpu_avx512_bf16 on bf16: what leaves a norm is rounded)
    units      none
    ownership  y is new and contiguous, or `out`, which may be x or the residual itself
    threads    any; bits do not depend on the count. Stream: none (CPU)
    errors     Refused grad, no_device, dtype, layout, shape, dialect, uncovered_cell, proof, arch,
               off_by_user (the row that would serve is in rows_off); ValueError; TypeError
    exactness  none; see gate_planes for the exact assembly
    source     Jumper et al. 2021, algorithms 11 and 12; Abramson et al. 2024, algorithms 12 and 13
    """
    torch_glue = kernels.glue()
    if torch_glue.is_traced(x):
        return torch_glue.traced(
            "trimul",
            out,
            x,
            a_proj,
            a_gate,
            b_proj,
            b_gate,
            out_proj,
            out_gate,
            norm_in_weight,
            norm_in_bias,
            norm_out_weight,
            norm_out_bias,
            a_proj_bias,
            a_gate_bias,
            b_proj_bias,
            b_gate_bias,
            out_proj_bias,
            out_gate_bias,
            mask,
            residual,
            direction=direction,
            operands_swapped=operands_swapped,
            right_scale=right_scale,
            product=product,
            eps_in=eps_in,
            eps_out=eps_out,
            fast_variance=fast_variance,
            norm_round=norm_round,
            tier=tier,
            row=row,
            rows_off=rows_off,
        )
    y = torch_glue.output(out, x)
    tensors = (
        x,
        y,
        mask,
        residual,
        norm_in_weight,
        norm_in_bias,
        norm_out_weight,
        norm_out_bias,
        a_proj,
        a_proj_bias,
        a_gate,
        a_gate_bias,
        b_proj,
        b_proj_bias,
        b_gate,
        b_gate_bias,
        out_proj,
        out_proj_bias,
        out_gate,
        out_gate_bias,
    )
    scalars = (
        eps_in,
        False,
        fast_variance,
        norm_round,
        eps_out,
        False,
        fast_variance,
        norm_round,
        direction,
        operands_swapped,
        right_scale,
        product,
    )
    return torch_glue.serve("trimul", tier, tensors, scalars, row, rows_off, y, out)


def gate_planes(gate, proj, mask=None, out=None):
    """The elementwise half of the exact assembly; returns out.

    computes   out[c, r, s] = (mask[r, s] * gate[r, s, c]) * proj[r, s, c], each product rounded once
    shapes     gate (already a sigmoid), proj [N, N, C]; mask [N, N] or None; out [C, N, N], unit stride in its last
               axis
    types      gate, proj, out f32; mask bool, u8, i32, i64, f32 or bf16
    units      none
    ownership  out is new, or the caller's
    threads    any; bits do not depend on the count. Stream: none (CPU)
    errors     Refused grad, no_device, dtype, layout; ValueError; TypeError
    exactness  exact for every input
    source     none
    """
    import torch

    torch_glue = kernels.glue()
    torch_glue.refuse_grad((gate, proj, mask, out))
    if out is None:
        out = torch.empty(gate.permute(2, 0, 1).shape, dtype=gate.dtype, device=gate.device)
    _core.trimul_gate_planes(gate, proj, mask, out, torch.get_num_threads())
    return out


OPS = (
    (
        trimul,
        "trimul(Tensor x, Tensor a_proj, Tensor a_gate, Tensor b_proj, Tensor b_gate, Tensor out_proj, Tensor "
        "out_gate, "
        "Tensor? norm_in_weight=None, Tensor? norm_in_bias=None, Tensor? norm_out_weight=None, Tensor? "
        "norm_out_bias=None, "
        "Tensor? a_proj_bias=None, Tensor? a_gate_bias=None, Tensor? b_proj_bias=None, Tensor? b_gate_bias=None, "
        "Tensor? out_proj_bias=None, Tensor? out_gate_bias=None, Tensor? mask=None, Tensor? residual=None, *, "
        "str direction, "
        "bool operands_swapped=False, float right_scale=1.0, str? product=None, float eps_in=1e-05, float "
        "eps_out=1e-05, "
        "bool fast_variance=False, str? norm_round=None, str tier='fast', str? row=None) -> Tensor",
    ),
)

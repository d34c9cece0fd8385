# SPDX-License-Identifier: Apache-2.0
"""triattn: triangle attention with a pair bias and a key mask; the core, and the whole module."""

from opt_core import _core


def select(device, dtype, form, dims, tier="fast", stack="", family="triattn"):
    """(cell, row, member, fallback) for a call class of "triattn" or "triattn_module"; pure.

    Refused uncovered_cell, proof or arch.
    """
    return _core.select(family, tier, device, dtype, form, dims, stack)


def triattn(
    q,
    k,
    v,
    bias=None,
    mask=None,
    gate=None,
    *,
    scale=1.0,
    mask_kind="none",
    mask_value=0.0,
    tier="fast",
    row=None,
    rows_off=(),
    out=None,
    lse=None,
):
    """The attention core; returns (out, (cell, row, member)).

    computes   s = scale * q.k, masked, plus bias; p = softmax(s) over keys; out = p v, times sigmoid(gate) when given
               mask_kind "subtract": s += mask_value * (mask - 1); "fill": mask_value where not kept; "zero": weight
               0, a row
               without kept keys gives 0; "add": the mask is the addend; "none": mask is None
    shapes     q, gate, out [B, I, Nq, H, D]; k, v [B, I, Nk, H, D]; bias [B, H, Nq, Nk]; mask [B, I, Nk]; lse [B, I,
               H, Nq]
    types      q, k, v, gate, out f32 or bf16 (one dtype); bias f32 or bf16; lse f32; logits, softmax and sums f32
    units      none
    ownership  out is new and contiguous, or the caller's; lse, when given, is filled with log sum exp. No overlap
               with inputs
    threads    any; bits do not depend on the count. Stream: none (CPU)
    errors     Refused grad, no_device, dtype, layout, shape, dialect, uncovered_cell, proof, arch,
               off_by_user (the row that would serve is in rows_off); ValueError; TypeError
    exactness  none
    source     Jumper et al. 2021, algorithms 13 and 14; Dao et al. 2022
    """
    from opt_core import torch_glue

    if torch_glue.is_traced(q):
        if lse is not None:
            raise ValueError("triattn: lse is not part of the registered op; leave it out of a traced call")
        return torch_glue.traced(
            "triattn",
            out,
            q,
            k,
            v,
            bias,
            mask,
            gate,
            scale=scale,
            mask_kind=mask_kind,
            mask_value=mask_value,
            tier=tier,
            row=row,
            rows_off=rows_off,
        )
    y = torch_glue.output(out, q)
    return torch_glue.serve(
        "triattn", tier, (q, k, v, bias, mask, gate, y, lse), (scale, mask_kind, mask_value), row, rows_off, y, out
    )


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
    rms=False,
    fast_variance=False,
    norm_round=None,
    tier="fast",
    row=None,
    rows_off=(),
    out=None,
):
    """The whole module for one orientation; returns (y, (cell, row, member)).

    computes   h = norm(x); q, k, v, gate from h; bias[h,q,k] = to_bias(h)[q,k,h], or [k,q,h] with
               bias_untransposed_end;
               y = out_proj(core) + residual; scale multiplies q
    shapes     x, y, residual [B, N, N, C], for the ending node with axes 1 and 2 exchanged, mask [B, N, N] likewise;
               to_q, to_k, to_v, to_gate [H*D, C]; to_bias [H, C]; out_proj [C, H*D]
    types      x, y, residual, weights f32 or bf16; f32 inside, one rounding at the end
    units      none
    ownership  y is new and contiguous, or `out`, which may be x or the residual itself where the row allows it
    threads    any; bits do not depend on the count. Stream: none (CPU)
    errors     Refused grad, no_device, dtype, layout, shape, dialect, uncovered_cell, proof, arch,
               off_by_user (the row that would serve is in rows_off); ValueError; TypeError
    exactness  none
    source     Jumper et al. 2021, algorithms 13 and 14; Abramson et al. 2024, algorithms 14 and 15
    """
    from opt_core import torch_glue

    if torch_glue.is_traced(x):
        return torch_glue.traced(
            "triattn_module",
            out,
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
            heads=heads,
            scale=scale,
            bias_untransposed_end=bias_untransposed_end,
            mask_kind=mask_kind,
            mask_value=mask_value,
            eps=eps,
            rms=rms,
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
        norm_weight,
        norm_bias,
        to_q,
        to_q_bias,
        to_k,
        to_k_bias,
        to_v,
        to_v_bias,
        to_bias,
        to_bias_bias,
        to_gate,
        to_gate_bias,
        out_proj,
        out_proj_bias,
    )
    scalars = (eps, rms, fast_variance, norm_round, heads, scale, bias_untransposed_end, mask_kind, mask_value)
    return torch_glue.serve("triattn_module", tier, tensors, scalars, row, rows_off, y, out)


OPS = (
    (
        triattn,
        "triattn(Tensor q, Tensor k, Tensor v, Tensor? bias=None, Tensor? mask=None, Tensor? gate=None, *, "
        "float scale=1.0, "
        "str mask_kind='none', float mask_value=0.0, str tier='fast', str? row=None) -> Tensor",
    ),
    (
        triattn_module,
        "triattn_module(Tensor x, Tensor to_q, Tensor to_k, Tensor to_v, Tensor to_bias, Tensor out_proj, "
        "Tensor? to_gate=None, Tensor? norm_weight=None, Tensor? norm_bias=None, Tensor? to_q_bias=None, "
        "Tensor? to_k_bias=None, Tensor? to_v_bias=None, Tensor? to_bias_bias=None, Tensor? to_gate_bias=None, "
        "Tensor? out_proj_bias=None, Tensor? mask=None, Tensor? residual=None, *, int heads, float scale, "
        "bool bias_untransposed_end=False, str mask_kind='none', float mask_value=0.0, float eps=1e-05, bool "
        "rms=False, "
        "bool fast_variance=False, str? norm_round=None, str tier='fast', str? row=None) -> Tensor",
    ),
)

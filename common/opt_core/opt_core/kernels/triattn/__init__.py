# SPDX-License-Identifier: Apache-2.0
"""triattn: triangle attention with a pair bias and a key mask; the core, and the whole module.

Both have gradients (backward.py) and follow CUDA autocast; see opt_core.torch_glue.
"""

from opt_core import _core, kernels


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
    tf32=False,
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
               tf32: f32 operands may be rounded to TF32 in the products; the CPU rows never do
    shapes     q, gate, out [B, I, Nq, H, D]; k, v [B, I, Nk, H, D]; bias [B, H, Nq, Nk]; mask [B, I, Nk]; lse [B, I,
               H, Nq]
    types      q, k, v, gate, out f32, bf16 or f16 (one dtype); bias f32, bf16 or f16; lse f32; logits, softmax and sums
               f32, the softmax weights rounded to the operands' dtype on CUDA and by cpu_avx512_bf16. Under CUDA
               autocast q, k, v and gate are cast, and out has that dtype
    units      none
    ownership  out is new and contiguous, or the caller's; lse, when given, is filled with log sum exp. No overlap
               with inputs
    threads    any; bits do not depend on the count. Stream: CUDA tensors, the current one of their device
    gradients  for every floating input, by the recomputed statement; not through lse, not with out=, not under exact
    errors     Refused grad (out=, a forward-mode tangent), no_device, dtype, layout, shape, dialect, uncovered_cell,
               proof, arch, driver, no_prebuilt, digest, capture, off_by_user (the row that would serve is in
               rows_off); ValueError; TypeError
    exactness  none
    source     Jumper et al. 2021, algorithms 13 and 14; Dao et al. 2022
    """
    glue = kernels.glue()
    if glue.is_traced(q):
        if lse is not None:
            raise ValueError("triattn: lse is not part of the registered op; leave it out of a traced call")
        return glue.traced(
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
            tf32=tf32,
            tier=tier,
            row=row,
            rows_off=rows_off,
        )
    scalars = (scale, mask_kind, mask_value, tf32)
    if not glue.is_watched((q, k, v, bias, mask, gate, out, lse)):
        y = glue.output(out, q)
        return glue.run("triattn", tier, (q, k, v, bias, mask, gate, y, lse), scalars, row, rows_off, y, out)

    def call(*inputs):
        y = glue.output(out, inputs[0])
        return glue.run("triattn", tier, (*inputs, y, lse), scalars, row, rows_off, y, out)

    settings = dict(scale=scale, mask_kind=mask_kind, mask_value=mask_value)
    return glue.watched("triattn", call, (q, k, v, bias, mask, gate), settings, _recast, (out, lse), tier)


def _recast(dtype, q, k, v, bias=None, mask=None, gate=None):
    cast = kernels.glue().cast
    q = cast(q, dtype)
    return (q, cast(k, dtype), cast(v, dtype), bias, mask, cast(gate, dtype)), q.dtype


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
    tf32=False,
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
               y = out_proj(core) + residual; scale multiplies q; tf32 as in triattn, for every product
    shapes     x, y, residual [B, N, N, C], for the ending node with axes 1 and 2 exchanged, mask [B, N, N] likewise;
               to_q, to_k, to_v, to_gate [H*D, C]; to_bias [H, C]; out_proj [C, H*D]
    types      x, y, residual, weights f32, bf16 or f16, each on its own; f32 inside, one rounding at the end (on bf16
               the CUDA member and cpu_avx512_bf16 round what enters a product). Under
               CUDA autocast the weights of the projections are cast, and y has that dtype, or residual's where it is wider
    units      none
    ownership  y is new and contiguous, or `out`, which may be x or the residual itself where the row allows it
    threads    any; bits do not depend on the count. Stream: CUDA tensors, the current one of their device
    gradients  for every floating input, by the recomputed statement; not with out=, not under exact
    errors     Refused grad (out=, a forward-mode tangent), no_device, dtype, layout, shape, dialect, uncovered_cell,
               proof, arch, driver, no_prebuilt, digest, capture, off_by_user (the row that would serve is in
               rows_off); ValueError; TypeError
    exactness  none
    source     Jumper et al. 2021, algorithms 13 and 14; Abramson et al. 2024, algorithms 14 and 15
    """
    glue = kernels.glue()
    if glue.is_traced(x):
        return glue.traced(
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
            tf32=tf32,
            eps=eps,
            rms=rms,
            fast_variance=fast_variance,
            norm_round=norm_round,
            tier=tier,
            row=row,
            rows_off=rows_off,
        )
    inputs = (
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
    )
    scalars = (eps, rms, fast_variance, norm_round, heads, scale, bias_untransposed_end, mask_kind, mask_value, tf32)

    def call(*inputs):
        y = glue.output(out, inputs[0])
        tensors = (inputs[0], y, *(inputs[i] for i in _DESCRIPTOR))
        return glue.run("triattn_module", tier, tensors, scalars, row, rows_off, y, out)

    if not glue.is_watched((*inputs, out)):
        return call(*inputs)
    settings = dict(
        heads=heads,
        scale=scale,
        bias_untransposed_end=bias_untransposed_end,
        mask_kind=mask_kind,
        mask_value=mask_value,
        eps=eps,
        rms=rms,
        fast_variance=fast_variance,
        norm_round=norm_round,
    )
    return glue.watched("triattn_module", call, inputs, settings, _recast_module, (out,), tier)


_DESCRIPTOR = (15, 16, 7, 8, 1, 9, 2, 10, 3, 11, 4, 12, 6, 13, 5, 14)
"""What follows x and y in the descriptor: mask, residual, the norm, then weight and bias of each projection. Positions
among the arguments."""

_NORM = (7, 8)  # positions of norm_weight and norm_bias among the arguments after x
_LINEARS = tuple(i for i in range(1, 15) if i not in _NORM)


def _recast_module(dtype, *inputs):
    """The norm computes in f32 from what it is given; each projection casts its weights; the residual promotes."""
    cast = kernels.glue().cast
    inputs = [cast(tensor, dtype) if i in _LINEARS else tensor for i, tensor in enumerate(inputs)]
    residual = inputs[16] if len(inputs) > 16 else None
    promoted = kernels.glue().torch.promote_types
    return tuple(inputs), dtype if residual is None else promoted(dtype, residual.dtype)


def _backward(grad, *inputs, **settings):
    from opt_core.kernels.triattn import backward

    return backward.core(grad, *inputs, **settings)


def _module_backward(grad, *inputs, **settings):
    from opt_core.kernels.triattn import backward

    return backward.module(grad, *inputs, **settings)


OPS = ()
"""Those without gradients: none here."""

GRADIENT_OPS = (
    (
        triattn,
        "triattn(Tensor q, Tensor k, Tensor v, Tensor? bias=None, Tensor? mask=None, Tensor? gate=None, *, "
        "float scale=1.0, str mask_kind='none', float mask_value=0.0, bool tf32=False, str tier='fast', "
        "str? row=None) -> Tensor",
        _backward,
        "triattn_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? mask, Tensor? gate, *, "
        "float scale, str mask_kind, float mask_value, bool[] wanted) -> Tensor[]",
        _recast,
    ),
    (
        triattn_module,
        "triattn_module(Tensor x, Tensor to_q, Tensor to_k, Tensor to_v, Tensor to_bias, Tensor out_proj, "
        "Tensor? to_gate=None, Tensor? norm_weight=None, Tensor? norm_bias=None, Tensor? to_q_bias=None, "
        "Tensor? to_k_bias=None, Tensor? to_v_bias=None, Tensor? to_bias_bias=None, Tensor? to_gate_bias=None, "
        "Tensor? out_proj_bias=None, Tensor? mask=None, Tensor? residual=None, *, int heads, float scale, "
        "bool bias_untransposed_end=False, str mask_kind='none', float mask_value=0.0, bool tf32=False, "
        "float eps=1e-05, bool rms=False, bool fast_variance=False, str? norm_round=None, str tier='fast', "
        "str? row=None) -> Tensor",
        _module_backward,
        "triattn_module_backward(Tensor grad, Tensor x, Tensor to_q, Tensor to_k, Tensor to_v, Tensor to_bias, "
        "Tensor out_proj, Tensor? to_gate, Tensor? norm_weight, Tensor? norm_bias, Tensor? to_q_bias, "
        "Tensor? to_k_bias, Tensor? to_v_bias, Tensor? to_bias_bias, Tensor? to_gate_bias, Tensor? out_proj_bias, "
        "Tensor? mask, Tensor? residual, *, int heads, float scale, bool bias_untransposed_end, str mask_kind, "
        "float mask_value, float eps, bool rms, bool fast_variance, str? norm_round, bool[] wanted) -> Tensor[]",
        _recast_module,
    ),
)

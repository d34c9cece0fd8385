# SPDX-License-Identifier: Apache-2.0
"""apb: attention with a pair bias that may be shared across a batch."""

from opt_core import _core, kernels


def select(device, dtype, form, dims, tier="fast", stack=""):
    """(cell, row, member, fallback) for a call class; pure. Refused uncovered_cell, proof or arch."""
    return _core.select("apb", tier, device, dtype, form, dims, stack)


def apb(
    q,
    k,
    v,
    bias,
    mask=None,
    gate=None,
    *,
    scale=1.0,
    mask_kind="none",
    mask_value=0.0,
    bias_first=False,
    tier="fast",
    row=None,
    rows_off=(),
    out=None,
):
    """Attention with a pair bias; returns (out, (cell, row, member)).

    computes   s = scale * q.k, masked, plus bias (bias_first: bias, then mask); p = softmax(s) over keys; out = p v,
               times
               sigmoid(gate) when given. mask_kind as in triattn
    shapes     q, gate, out [B, Nq, H, D]; k, v [B, Nk, H, D]; bias [B, H, Nq, Nk], expanded (stride 0) when the batch
               shares
               it; mask [B, Nk]
    types      q, k, v, gate, out, bias f32 or bf16, each on its own; logits, softmax and sums f32
               (member cpu_avx512_bf16 on bf16: the softmax weights are rounded before their product with v)
    units      none
    ownership  out is new and contiguous, or the caller's. No overlap with inputs
    threads    any; bits do not depend on the count. Stream: none (CPU)
    errors     Refused grad, no_device, dtype, layout, shape, dialect, uncovered_cell, proof, arch,
               off_by_user (the row that would serve is in rows_off); ValueError; TypeError
    exactness  none
    source     Abramson et al. 2024, algorithm 24
    """
    torch_glue = kernels.glue()
    if torch_glue.is_traced(q):
        return torch_glue.traced(
            "apb",
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
            bias_first=bias_first,
            tier=tier,
            row=row,
            rows_off=rows_off,
        )
    y = torch_glue.output(out, q)
    return torch_glue.serve(
        "apb", tier, (q, k, v, bias, mask, gate, y), (scale, mask_kind, mask_value, bias_first), row, rows_off, y, out
    )


OPS = (
    (
        apb,
        "apb(Tensor q, Tensor k, Tensor v, Tensor bias, Tensor? mask=None, Tensor? gate=None, *, float scale=1.0, "
        "str mask_kind='none', float mask_value=0.0, bool bias_first=False, str tier='fast', str? row=None) -> Tensor",
    ),
)

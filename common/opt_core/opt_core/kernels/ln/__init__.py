# SPDX-License-Identifier: Apache-2.0
"""ln: LayerNorm / RMSNorm over the last axis."""

from opt_core import _core, kernels


def select(device, dtype, form, dims, tier="fast", stack=""):
    """(cell, row, member, fallback) for a call class; pure. Refused uncovered_cell, proof or arch."""
    return _core.select("ln", tier, device, dtype, form, dims, stack)


def ln(
    x,
    weight=None,
    bias=None,
    *,
    eps=1e-5,
    rms=False,
    fast_variance=False,
    norm_round=None,
    out_dtype=None,
    tier="fast",
    row=None,
    rows_off=(),
    out=None,
):
    """Layer normalisation; returns (y, (cell, row, member)).

    computes   y[..., c] = R_y((x - mean) / sqrt(var + eps) * weight + bias); rms: the mean is taken as 0
    shapes     x, y [..., C] of rank 1 to 5, any strides; weight, bias [C] or None
    types      x f32, bf16, f16; weight, bias f32, bf16, f16, each on its own; y as x, or out_dtype, or out's;
               statistics
               f32; norm_round: dtype word that the row is rounded to before y's own rounding
    units      none
    ownership  y is new and contiguous, or `out`, which may be x itself
    threads    any; bits do not depend on the count. Stream: none (CPU)
    errors     Refused grad, no_device, dtype, layout, shape, dialect, uncovered_cell, proof, arch,
               off_by_user (the row that would serve is in rows_off); ValueError; TypeError
    exactness  tier "exact": bits of torch.nn.functional.layer_norm on the proven stacks
    source     Ba, Kiros, Hinton 2016; Zhang, Sennrich 2019
    """
    torch_glue = kernels.glue()
    if torch_glue.is_traced(x):
        return torch_glue.traced(
            "ln",
            out,
            x,
            weight,
            bias,
            eps=eps,
            rms=rms,
            fast_variance=fast_variance,
            norm_round=norm_round,
            out_dtype=out_dtype,
            tier=tier,
            row=row,
            rows_off=rows_off,
        )
    y = torch_glue.output(out, x, out_dtype)
    return torch_glue.serve(
        "ln", tier, (x, y, weight, bias), (eps, rms, fast_variance, norm_round), row, rows_off, y, out
    )


OPS = (
    (
        ln,
        "ln(Tensor x, Tensor? weight=None, Tensor? bias=None, *, float eps=1e-05, bool rms=False, bool "
        "fast_variance=False, "
        "str? norm_round=None, ScalarType? out_dtype=None, str tier='fast', str? row=None) -> Tensor",
    ),
)

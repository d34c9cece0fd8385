# SPDX-License-Identifier: Apache-2.0
"""transition: LayerNorm, projections up, activation, projection down, mask, residual."""

from opt_core import _core, kernels


def select(device, dtype, form, dims, tier="fast", stack=""):
    """(cell, row, member, fallback) for a call class; pure. Refused uncovered_cell, proof or arch."""
    return _core.select("transition", tier, device, dtype, form, dims, stack)


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
    rms=False,
    fast_variance=False,
    norm_round=None,
    tier="fast",
    row=None,
    rows_off=(),
    out=None,
):
    """The transition; returns (y, (cell, row, member)).

    computes   h = norm(x); y = down(act(gate(h)) * up(h)) * mask + residual; activation "relu": down(max(up(h), 0))
               "swiglu": act = silu, "sigmoid_glu": act = sigmoid; norm_absent: h = x
    shapes     x, y, residual [..., C] of rank 2 to 5; up, gate [Hid, C]; down [C, Hid]; biases [Hid], [C] or None;
               mask [...]
    types      x, y, residual, weights f32 or bf16; mask bool, u8, i32, i64, f32 or bf16; sums f32, one rounding at
               the end (member cpu_avx512_bf16 on bf16: what enters a product too)
    units      none
    ownership  y is new and contiguous, or `out`, which may be x or the residual itself
    threads    any; bits do not depend on the count. Stream: none (CPU)
    errors     Refused grad, no_device, dtype, layout, shape, dialect, uncovered_cell, proof, arch,
               off_by_user (the row that would serve is in rows_off); ValueError; TypeError
    exactness  none
    source     Abramson et al. 2024, algorithm 11; Jumper et al. 2021, algorithm 15
    """
    torch_glue = kernels.glue()
    if torch_glue.is_traced(x):
        return torch_glue.traced(
            "transition",
            out,
            x,
            up,
            down,
            gate,
            norm_weight,
            norm_bias,
            up_bias,
            gate_bias,
            down_bias,
            mask,
            residual,
            activation=activation,
            norm_absent=norm_absent,
            eps=eps,
            rms=rms,
            fast_variance=fast_variance,
            norm_round=norm_round,
            tier=tier,
            row=row,
            rows_off=rows_off,
        )
    y = torch_glue.output(out, x)
    tensors = (x, y, mask, residual, norm_weight, norm_bias, up, up_bias, gate, gate_bias, down, down_bias)
    scalars = (eps, rms, fast_variance, norm_round, norm_absent, activation)
    return torch_glue.serve("transition", tier, tensors, scalars, row, rows_off, y, out)


OPS = (
    (
        transition,
        "transition(Tensor x, Tensor up, Tensor down, Tensor? gate=None, Tensor? norm_weight=None, Tensor? "
        "norm_bias=None, "
        "Tensor? up_bias=None, Tensor? gate_bias=None, Tensor? down_bias=None, Tensor? mask=None, Tensor? "
        "residual=None, *, "
        "str activation='swiglu', bool norm_absent=False, float eps=1e-05, bool rms=False, bool fast_variance=False, "
        "str? norm_round=None, str tier='fast', str? row=None) -> Tensor",
    ),
)

# SPDX-License-Identifier: Apache-2.0
"""transition row `exact_rows`: the stock module's bits, a block of rows at a time.

The stock op writes the hidden layer ([N * N, 4 C], 116 MB at N = 238, C = 128) three times. On blocks of rows the same calls
stay in cache. A row of a product has the same bits whatever the other rows, except where the library takes another path for
very few rows (one row is a matrix-vector product: measured, it differs); the cut below never makes a block shorter
than ROWS, and tests/contract/test_exact_rows.py walks the tails stack by stack (TRANSITION_CELLS.json, "stacks").

Stock op: x + down(relu(up(LN(x)))).
"""
from opt_core import Refused

ROWS = 1024  # 1024 x 512 floats = 2 MB of hidden layer; 1000 to 4096 rows take the same time, 256 rows 14 % more


def run(tensors, scalars):
    """Tensors and scalars in the order of oc_transition; x f32. Returns y, a new tensor. Refused dialect, layout, dtype."""
    import torch
    import torch.nn.functional as F

    x, _y, mask, residual, norm_weight, norm_bias, up, up_bias, _gate, _gate_bias, down, down_bias = tensors
    eps, rms, fast_variance, norm_round, norm_absent, activation = scalars
    if rms or fast_variance or norm_round or norm_absent or mask is not None or activation != "relu" or residual is not x:
        raise Refused("dialect", "exact_rows serves x + down(relu(up(LN(x)))) without a mask")
    if x.dtype != torch.float32 or not x.is_contiguous():
        raise Refused("layout", f"exact_rows wants contiguous f32, not {x.dtype} with strides {tuple(x.stride())}")

    channels = x.shape[-1]
    rows = x.view(-1, channels)
    y = torch.empty_like(rows)
    blocks = max(1, rows.shape[0] // ROWS)  # the last block takes the remainder: never fewer than ROWS rows
    for index in range(blocks):
        first, last = index * ROWS, rows.shape[0] if index == blocks - 1 else (index + 1) * ROWS
        block = rows[first:last]
        hidden = F.linear(F.layer_norm(block, (channels,), norm_weight, norm_bias, eps), up, up_bias).relu_()
        torch.add(block, F.linear(hidden, down, down_bias), out=y[first:last])
    return y.view(x.shape)

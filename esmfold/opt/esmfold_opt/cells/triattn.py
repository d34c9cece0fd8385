# SPDX-License-Identifier: Apache-2.0
"""triattn: EsmFoldTriangleAttention (biased gate and output, additive mask 1e9, the ending node's bias transposed, f32)."""
from . import ENGINE, MODULE, refuse_unbatched


def bind(lever):
    lever.pin(*ENGINE)
    owner = lever.expect_class(MODULE, "EsmFoldTriangleAttention", "forward",
                               ("x", "mask", "chunk_size", "use_memory_efficient_kernel", "use_lma", "inplace_safe"))
    linear = lever.expect_class(MODULE, "EsmFoldLinear", "forward", ("input",))
    attention = lever.expect_class(MODULE, "EsmFoldAttention", "forward", ("q_x", "kv_x", "biases"))
    from opt_core import Refused, torch_glue
    from opt_core.kernels.triattn import triattn_module
    from torch.nn import LayerNorm, Sigmoid

    lever.expect_cells(torch_glue.stack())
    parts = torch_glue.Parts({"layer_norm": LayerNorm, "linear": linear, "mha": attention})
    linears = dict.fromkeys(("linear_q", "linear_k", "linear_v", "linear_o", "linear_g"), linear)
    inner = torch_glue.Parts(linears | {"sigmoid": Sigmoid}, optional=("linear_g",))

    def attend(self, x, mask, chunk_size, use_memory_efficient_kernel, use_lma, inplace_safe):
        if use_memory_efficient_kernel or use_lma or inplace_safe:
            raise Refused("dialect", "use_memory_efficient_kernel, use_lma or inplace_safe")
        if chunk_size is not None and lever.mode == "exact":
            raise Refused("dialect", "chunk_size")  # the stock's bits depend on it: a product of few rows rounds differently
        refuse_unbatched(x, mask)
        norm, bias, mha = parts(self)
        q, k, v, out, gate, _ = inner(mha)
        if not self.starting:
            x = x.transpose(-2, -3)
            mask = None if mask is None else mask.transpose(-1, -2)
        y, served = triattn_module(
            x, q.weight, k.weight, v.weight, bias.weight, out.weight, None if gate is None else gate.weight,
            norm.weight, norm.bias, q.bias, k.bias, v.bias, bias.bias,
            None if gate is None else gate.bias, out.bias, mask=mask,
            heads=mha.no_heads, scale=mha.c_hidden**-0.5, mask_kind="none" if mask is None else "subtract",
            mask_value=self.inf, eps=norm.eps, tier=lever.mode, rows_off=lever.rows_off)
        return (y if self.starting else y.transpose(-2, -3)), served

    def make(stock):
        def forward(self, x, mask=None, chunk_size=None, use_memory_efficient_kernel=False, use_lma=False, inplace_safe=False):
            return lever.serve(
                lambda: attend(self, x, mask, chunk_size, use_memory_efficient_kernel, use_lma, inplace_safe),
                lambda: stock(self, x, mask, chunk_size, use_memory_efficient_kernel, use_lma, inplace_safe))
        return forward

    lever.patch(owner, "forward", make)

# SPDX-License-Identifier: Apache-2.0
"""triattn: EsmFoldTriangleAttention (biased gate and output, additive mask 1e9, the ending node's bias transposed, f32)."""
from . import ENGINE, MODULE


def bind(lever):
    lever.pin(*ENGINE)
    owner = lever.expect_class(MODULE, "EsmFoldTriangleAttention", "forward",
                               ("x", "mask", "chunk_size", "use_memory_efficient_kernel", "use_lma", "inplace_safe"))
    from opt_core import Refused, torch_glue
    from opt_core.kernels.triattn import triattn_module

    lever.expect_cells(torch_glue.stack())

    def attend(self, x, mask, use_memory_efficient_kernel, use_lma, inplace_safe):
        if use_memory_efficient_kernel or use_lma or inplace_safe:
            raise Refused("dialect", "use_memory_efficient_kernel, use_lma or inplace_safe")
        mha = self.mha
        gate = mha.linear_g
        if not self.starting:
            x = x.transpose(-2, -3)
            mask = None if mask is None else mask.transpose(-1, -2)
        y, served = triattn_module(
            x, mha.linear_q.weight, mha.linear_k.weight, mha.linear_v.weight, self.linear.weight, mha.linear_o.weight,
            None if gate is None else gate.weight, self.layer_norm.weight, self.layer_norm.bias,
            to_gate_bias=None if gate is None else gate.bias, out_proj_bias=mha.linear_o.bias, mask=mask,
            heads=mha.no_heads, scale=mha.c_hidden**-0.5, mask_kind="none" if mask is None else "subtract",
            mask_value=self.inf, eps=self.layer_norm.eps, tier=lever.mode)
        return (y if self.starting else y.transpose(-2, -3)), served

    def make(stock):
        def forward(self, x, mask=None, chunk_size=None, use_memory_efficient_kernel=False, use_lma=False, inplace_safe=False):
            return lever.serve(
                lambda: attend(self, x, mask, use_memory_efficient_kernel, use_lma, inplace_safe),
                lambda: stock(self, x, mask, chunk_size, use_memory_efficient_kernel, use_lma, inplace_safe))
        return forward

    lever.patch(owner, "forward", make)

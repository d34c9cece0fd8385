# SPDX-License-Identifier: Apache-2.0
"""trimul: EsmFoldTriangleMultiplicativeUpdate (six biased linears, mask * sigmoid(gate) * projection, f32)."""
from . import ENGINE, MODULE


def bind(lever):
    lever.pin(*ENGINE)
    owner = lever.expect_class(MODULE, "EsmFoldTriangleMultiplicativeUpdate", "forward",
                               ("z", "mask", "inplace_safe", "_add_with_inplace", "_inplace_chunk_size"))
    from opt_core import Refused, torch_glue
    from opt_core.kernels.trimul import trimul

    lever.expect_cells(torch_glue.stack())

    def update(self, z, mask, inplace_safe):
        if inplace_safe:  # the in-place form writes into z and may add it: its callers rely on the aliasing
            raise Refused("dialect", "inplace_safe")
        return trimul(
            z, self.linear_a_p.weight, self.linear_a_g.weight, self.linear_b_p.weight, self.linear_b_g.weight,
            self.linear_z.weight, self.linear_g.weight, self.layer_norm_in.weight, self.layer_norm_in.bias,
            self.layer_norm_out.weight, self.layer_norm_out.bias, self.linear_a_p.bias, self.linear_a_g.bias,
            self.linear_b_p.bias, self.linear_b_g.bias, self.linear_z.bias, self.linear_g.bias, mask,
            direction="outgoing" if self._outgoing else "incoming", eps_in=self.layer_norm_in.eps,
            eps_out=self.layer_norm_out.eps, tier=lever.mode)

    def make(stock):
        def forward(self, z, mask=None, inplace_safe=False, _add_with_inplace=False, _inplace_chunk_size=256):
            return lever.serve(lambda: update(self, z, mask, inplace_safe),
                               lambda: stock(self, z, mask, inplace_safe, _add_with_inplace, _inplace_chunk_size))
        return forward

    lever.patch(owner, "forward", make)

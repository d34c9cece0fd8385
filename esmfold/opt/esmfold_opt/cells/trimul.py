# SPDX-License-Identifier: Apache-2.0
"""trimul: EsmFoldTriangleMultiplicativeUpdate (six biased linears, mask * sigmoid(gate) * projection, f32)."""
from . import ENGINE, MODULE, refuse_unbatched


def bind(lever):
    lever.pin(*ENGINE)
    owner = lever.expect_class(MODULE, "EsmFoldTriangleMultiplicativeUpdate", "forward",
                               ("z", "mask", "inplace_safe", "_add_with_inplace", "_inplace_chunk_size"))
    linear = lever.expect_class(MODULE, "EsmFoldLinear", "forward", ("input",))
    from opt_core import Refused, torch_glue
    from opt_core.kernels.trimul import trimul
    from torch.nn import LayerNorm, Sigmoid

    lever.expect_cells(torch_glue.stack())
    names = ("linear_a_p", "linear_a_g", "linear_b_p", "linear_b_g", "linear_z", "linear_g")
    parts = torch_glue.Parts({"layer_norm_in": LayerNorm, "layer_norm_out": LayerNorm, "sigmoid": Sigmoid} | dict.fromkeys(names, linear))

    def update(self, z, mask, inplace_safe):
        if inplace_safe:  # the in-place form writes into z and may add it: its callers rely on the aliasing
            raise Refused("dialect", "inplace_safe")
        refuse_unbatched(z, mask)
        norm_in, norm_out, _, a_p, a_g, b_p, b_g, out, gate = parts(self)
        return trimul(
            z, a_p.weight, a_g.weight, b_p.weight, b_g.weight, out.weight, gate.weight, norm_in.weight, norm_in.bias,
            norm_out.weight, norm_out.bias, a_p.bias, a_g.bias, b_p.bias, b_g.bias, out.bias, gate.bias, mask,
            direction="outgoing" if self._outgoing else "incoming", eps_in=norm_in.eps, eps_out=norm_out.eps,
            tier=lever.mode, rows_off=lever.rows_off)

    def make(stock):
        def forward(self, z, mask=None, inplace_safe=False, _add_with_inplace=False, _inplace_chunk_size=256):
            return lever.serve(lambda: update(self, z, mask, inplace_safe),
                               lambda: stock(self, z, mask, inplace_safe, _add_with_inplace, _inplace_chunk_size))
        return forward

    lever.patch(owner, "forward", make)

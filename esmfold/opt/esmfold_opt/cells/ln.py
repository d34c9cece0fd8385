# SPDX-License-Identifier: Apache-2.0
"""ln: the LayerNorm over the pair representation in EsmFoldPairToSequence; its linear stays the framework's."""
from . import ENGINE, MODULE


def bind(lever):
    lever.pin(*ENGINE)
    owner = lever.expect_class(MODULE, "EsmFoldPairToSequence", "forward", ("pairwise_state",))
    from opt_core import torch_glue
    from opt_core.kernels.ln import ln
    from torch.nn import LayerNorm

    lever.expect_cells(torch_glue.stack())
    parts = torch_glue.Parts({"layernorm": LayerNorm})

    def project(self, pairwise_state):
        (norm,) = parts(self)
        z, served = ln(pairwise_state, norm.weight, norm.bias, eps=norm.eps, tier=lever.mode, rows_off=lever.rows_off)
        return self.linear(z), served

    def make(stock):
        def forward(self, pairwise_state):
            return lever.serve(lambda: project(self, pairwise_state), lambda: stock(self, pairwise_state))
        return forward

    lever.patch(owner, "forward", make)

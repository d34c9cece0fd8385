# SPDX-License-Identifier: Apache-2.0
"""transition: EsmFoldResidueMLP (LayerNorm, biased linear, ReLU, biased linear, residual inside), sequence and pair track."""
from . import ENGINE, MODULE


def bind(lever):
    lever.pin(*ENGINE)
    owner = lever.expect_class(MODULE, "EsmFoldResidueMLP", "forward", ("x",))
    from opt_core import Refused, torch_glue
    from opt_core.kernels.transition import transition
    from torch.nn import Dropout, LayerNorm, Linear, ReLU, Sequential

    lever.expect_cells(torch_glue.stack())
    parts = torch_glue.Parts({"mlp": Sequential})
    layers = torch_glue.Parts({"0": LayerNorm, "1": Linear, "2": ReLU, "3": Linear, "4": Dropout})

    def update(self, x):
        (mlp,) = parts(self)
        norm, up, _, down, dropout = layers(mlp)
        if len(mlp) != 5:
            raise Refused("dialect", f"EsmFoldResidueMLP.mlp: {len(mlp)} layers, not 5")
        if dropout.training and dropout.p > 0:
            raise Refused("dialect", f"dropout {dropout.p} in training")
        return transition(x, up.weight, down.weight, norm_weight=norm.weight, norm_bias=norm.bias, up_bias=up.bias,
                          down_bias=down.bias, residual=x, activation="relu", eps=norm.eps, tier=lever.mode,
                          rows_off=lever.rows_off)

    def make(stock):
        def forward(self, x):
            return lever.serve(lambda: update(self, x), lambda: stock(self, x))
        return forward

    lever.patch(owner, "forward", make)

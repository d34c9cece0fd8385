# SPDX-License-Identifier: Apache-2.0
"""dropout: EsmFoldDropout multiplies the update of the pair representation by a mask of ones in eval; x * 1 is x, bit for bit.

Each block makes four such products, each a pass over the pair representation and a fresh result of its size.
"""
from . import ENGINE, MODULE


def bind(lever):
    lever.pin(*ENGINE)
    owner = lever.expect_class(MODULE, "EsmFoldDropout", "forward", ("x",))
    import torch

    from opt_core import Refused, torch_glue

    parts = torch_glue.Parts({"dropout": torch.nn.Dropout})

    def keep(self, x):
        (dropout,) = parts(self)
        if dropout.training and dropout.p > 0:
            raise Refused("dialect", f"dropout {dropout.p} in training")
        torch_glue.refuse_grad((x,))  # the stock result is a new node of the graph
        return x, ("x", "identity", "identity")

    def make(stock):
        def forward(self, x):
            return lever.serve(lambda: keep(self, x), lambda: stock(self, x))
        return forward

    lever.patch(owner, "forward", make)
    return "identity"

# SPDX-License-Identifier: Apache-2.0
import opt_core

SERVED = ("toy_cell", "cpu", "cpu_generic")


def op(x):
    if x == -1:
        raise opt_core.Refused("uncovered_cell", "ln:toy_class")
    if x == -2:
        raise opt_core.Refused("dtype", "x f64")
    if x == -3:
        raise ValueError("bad")
    return ("toy", x + 1), SERVED


def bind(lever):
    layer = lever.expect_class("toyengine.layers", "Layer", "forward", ("x",))

    def make(stock):
        def forward(self, x):
            return lever.serve(lambda: op(x), lambda: stock(self, x))

        return forward

    lever.patch(layer, "forward", make)
    return "cpu"

# SPDX-License-Identifier: Apache-2.0
import os


def bind(lever):
    fault = os.environ.get("TOY_FAULT")
    if fault == "bind":
        raise KeyError("toy")
    if fault == "exit":
        raise SystemExit(0)
    if fault == "pin":
        lever.pin("toy-opt", ">=9")
    if fault == "moved":
        lever.expect_class("toyengine.moved", "Layer", "forward")
    if fault == "gone":
        lever.expect_class("toyengine.layers", "Gone", "forward")
    if fault == "object":
        lever.expect_class("toyengine.layers", "BODY_RAN", "forward")
    if fault == "compiled":
        lever.expect_class("toyengine.layers", "Exported", "forward")
    lever.expect_class("toyengine.layers", "Layer", "forward", ("x", "mask"))

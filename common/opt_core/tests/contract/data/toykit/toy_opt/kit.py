# SPDX-License-Identifier: Apache-2.0
import os

from opt_core.kit import Kit

kit = Kit(os.path.join(os.path.dirname(__file__), "kit.json"), "toy_opt")
enabled = 0


def enable():
    global enabled
    enabled += 1
    fault = os.environ.get("TOY_FAULT")
    if fault == "enable":
        raise RuntimeError("the toy kit is broken\non purpose")
    kit.enable()

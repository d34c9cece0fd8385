# SPDX-License-Identifier: Apache-2.0
import os

if os.environ.get("TOY_FAULT") == "body":
    raise OSError("the engine does not import")


class Layer:
    def forward(self, x):
        """The stock op."""
        return "stock", x + 1

    def __reduce__(self):
        return Layer, ()


class Exported:
    forward = len


BODY_RAN = True

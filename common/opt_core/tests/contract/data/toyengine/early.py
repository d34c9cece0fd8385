# SPDX-License-Identifier: Apache-2.0
"""Takes the class by value, and builds its model, before the kit may have been switched on."""

from toyengine.layers import Layer

LAYERS = [Layer() for _ in range(3)]

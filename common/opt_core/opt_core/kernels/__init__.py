# SPDX-License-Identifier: Apache-2.0
"""One interface an operation. `opt_core.kernels.<family>` holds `select` (pure) and the serving entries.

Importing a family imports nothing but the standard library and `opt_core._core`; torch is imported by the first call.
"""

from opt_core import _core

FAMILIES = ("ln", "transition", "trimul", "triattn", "apb")
"""Folders under this one, in the order in which their ops are registered."""


def prepare(family, device=None):
    """Loads what the family may launch on a CUDA device, so that a call inside a graph capture finds it loaded.

    computes   nothing; a second call costs a look-up. A family without CUDA members has nothing to load
    device     ordinal, "cuda:1" or torch.device; None: torch's current device
    threads    any. Call it before a capture, not inside one
    errors     Refused no_device, driver, no_prebuilt, digest, capture; ValueError for an unknown family
    """
    if not isinstance(device, int):
        device = glue().cuda_index(device)
    _core.cuda_prepare(device, family)


_glue = None


def glue():
    """`opt_core.torch_glue`, imported at the first need: it imports torch."""
    global _glue
    if _glue is None:
        from opt_core import torch_glue

        _glue = torch_glue
    return _glue

# SPDX-License-Identifier: Apache-2.0
"""One interface an operation. `opt_core.kernels.<family>` holds `select` (pure) and the serving entries.

Importing a family imports nothing but the standard library and `opt_core._core`; torch is imported by the first call.
"""

FAMILIES = ("ln", "transition", "trimul", "triattn", "apb")
"""Folders under this one, in the order in which their ops are registered."""

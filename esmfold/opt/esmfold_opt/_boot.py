# SPDX-License-Identifier: Apache-2.0
"""What the .pth line and the .start entry run at interpreter start: registers the kit, imports nothing heavy."""
import os

VARIABLE = "ESMFOLD_OPT"


def start():
    """Only the .pth line asks for the variable before it comes here; a .start entry (Python 3.15) always comes."""
    if os.environ.get(VARIABLE, "").strip() in ("", "0", "off"):
        return
    from ._core_gate import boot

    boot(VARIABLE, ("transformers.models.esm.modeling_esmfold",), "esmfold_opt:enable")

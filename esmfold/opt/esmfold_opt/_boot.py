# SPDX-License-Identifier: Apache-2.0
"""What the .pth line and the .start entry run at interpreter start: registers the kit, imports nothing heavy."""


def start():
    from ._core_gate import boot

    boot("ESMFOLD_OPT", ("transformers.models.esm.modeling_esmfold",), "esmfold_opt:enable")

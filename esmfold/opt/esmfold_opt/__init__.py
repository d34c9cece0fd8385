# SPDX-License-Identifier: Apache-2.0
"""esmfold_opt: switches transformers' EsmForProteinFolding over to opt_core. Importing this package patches nothing.

    ESMFOLD_OPT=exact|fast python your_script.py
"""

_kit = None


def kit():
    """The kit object of this process (made on first use)."""
    global _kit
    if _kit is None:
        from pathlib import Path

        from opt_core.kit import Kit

        _kit = Kit(Path(__file__).with_name("kit.json"), __name__)
    return _kit


def enable():
    """Activates the kit in the mode that ESMFOLD_OPT names. The import hook calls it; calling it by hand works too."""
    return kit().enable()

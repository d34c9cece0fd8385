# SPDX-License-Identifier: Apache-2.0
"""opt_core: the shared core that optimization kits for structure-prediction engines stand on.

Importing the package imports nothing. The C extension `opt_core._core` is loaded when one of its names is first
used, so that the import hook of a kit (`opt_core.autoload`) costs an interpreter that never runs the engine next to
nothing.
"""

__all__ = ["AccountingClosed", "Refused", "__version__"]


def __getattr__(name):
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import _core

    value = _core.version() if name == "__version__" else getattr(_core, name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(set(globals()) | set(__all__))

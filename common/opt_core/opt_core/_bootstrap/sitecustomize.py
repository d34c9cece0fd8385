# SPDX-License-Identifier: Apache-2.0
"""Starts the installed kits where no .pth is read: `opt_core run` puts this folder first on PYTHONPATH.

The `sitecustomize` of the user, which this one hides, runs after it. PYTHONPATH itself stays as it is, so that child
interpreters start the same way.
"""

import os
import sys


def _start_kits():
    import importlib
    import importlib.metadata

    for entry in importlib.metadata.entry_points(group="opt_core.kits"):
        package = entry.value.partition(":")[0].partition(".")[0]
        try:
            importlib.import_module(package + "._boot").start()
        except Exception as error:
            text = f"[opt_core] NOT ACTIVE: {entry.name}: hook:{type(error).__name__}: {' '.join(str(error).split())}\n"
            os.write(2, text.encode("ascii", "backslashreplace"))


def _run_hidden():
    here = os.path.realpath(os.path.dirname(__file__))
    sys.path[:] = [path for path in sys.path if os.path.realpath(path) != here]
    ours = sys.modules.pop(__name__)
    try:
        import sitecustomize  # noqa: F401
    except ImportError as error:
        if error.name != "sitecustomize":
            raise
    finally:
        sys.modules.setdefault(__name__, ours)


_start_kits()
_run_hidden()

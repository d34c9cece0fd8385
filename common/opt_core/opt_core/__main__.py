# SPDX-License-Identifier: Apache-2.0
"""`python -m opt_core` is the program `opt_core`: finds it beside the extension and becomes it."""

import os
import sys


def _candidates():
    """Where the program may lie: beside this package, beside the extension (an editable install keeps the two apart),
    and where the record of the installed distribution says."""
    here = os.path.dirname(os.path.abspath(__file__))
    yield os.path.join(here, "bin", "opt_core")
    try:
        import importlib.util

        spec = importlib.util.find_spec("opt_core._core")
    except (ImportError, ValueError):
        spec = None
    if spec is not None and spec.origin:
        yield os.path.join(os.path.dirname(os.path.abspath(spec.origin)), "bin", "opt_core")
    import importlib.metadata

    try:
        files = importlib.metadata.files("opt_core") or ()
    except importlib.metadata.PackageNotFoundError:
        files = ()
    for file in files:
        if file.parts[-3:] == ("opt_core", "bin", "opt_core"):
            yield os.fspath(file.locate())


def program():
    """Path of the program, or None."""
    return next((path for path in _candidates() if os.access(path, os.X_OK) and os.path.isfile(path)), None)


def environment(command):
    """What the program cannot know by itself: this interpreter, the folder of the hook, the variables of the kits."""
    here = os.path.dirname(os.path.abspath(__file__))
    added = {"OPT_CORE_PYTHON": sys.executable, "OPT_CORE_BOOTSTRAP": os.path.join(here, "_bootstrap")}
    if command == "run":  # to look for kits costs time that the other commands need not wait for
        from . import doctor

        added["OPT_CORE_KIT_VARIABLES"] = ",".join(kit["variable"] for kit in doctor.kits())
    return {**os.environ, **added}


def restore_signals():
    """Python ignores these two; the program, and what it runs, is to find them as a shell leaves them."""
    import signal

    for name in ("SIGPIPE", "SIGXFSZ"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_DFL)


def main():
    path = program()
    if path is None:
        sys.stderr.write("opt_core: the program opt_core/bin/opt_core is not installed; install the package again\n")
        return 2
    restore_signals()
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(path, ["opt_core", *sys.argv[1:]], environment(sys.argv[1] if len(sys.argv) > 1 else ""))


if __name__ == "__main__":
    sys.exit(main())

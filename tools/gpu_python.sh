#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# gpu_python.sh VENV [PACKAGE...]  Prints the Python to use on a machine with a GPU; everything else it says goes to standard error.
# PYTHON_GPU names one outright: a machine without network or compiler, where opt_core came as a wheel and torch is the system's, needs
# nothing built. Otherwise the environment of `make test` is made, and where that is impossible python3 is taken, if it has what is needed.
set -eu
venv=$1
shift
say() { echo "[gpu] $*" >&2; }
# Looks from a folder without an opt_core/ in it: the installed one counts.
missing() {
  python=$1
  shift
  (cd / && "$python" - "$@") <<'P'
import importlib
import sys
lacks = []
for name in ("opt_core._core", "torch", *sys.argv[1:]):
    try:
        importlib.import_module(name)
    except ImportError as failure:
        lacks.append(f"{name} ({failure})")
if not lacks and not importlib.import_module("torch").cuda.is_available():
    lacks.append("a GPU that torch can use")
print("; ".join(lacks))
P
}
absolute() { case $1 in */*) echo "$(cd "$(dirname "$1")" && pwd)/$(basename "$1")" ;; *) command -v "$1" || echo "$1" ;; esac; }
if [ -n "${PYTHON_GPU:-}" ]; then
  chosen=$(absolute "$PYTHON_GPU")
elif ${MAKE:-make} -s environment-test >&2; then
  chosen=$(absolute "$venv/bin/python")
else
  chosen=$(absolute python3)
  say "the environment could not be made here; trying $chosen (PYTHON_GPU=... names another)"
fi
lacks=$(missing "$chosen" "$@") || { say "$chosen does not run"; exit 1; }
if [ -n "$lacks" ]; then
  say "$chosen lacks: $lacks"
  case $lacks in *opt_core*) say "an installed wheel is enough: pip install --no-index --find-links dist opt-core" ;; esac
  exit 1
fi
say "using $chosen"
echo "$chosen"

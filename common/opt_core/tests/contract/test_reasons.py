# SPDX-License-Identifier: Apache-2.0
"""Every refusal word of the core is provoked here, one case a word; a word without a case fails the count."""
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from opt_core import Refused, _core  # noqa: E402

TABLE = {"schema": 1, "engine": "toy", "variable": "TOY_OPT", "version": "1.0", "triggers": ["toyengine"],
         "levers": [{"name": "soft", "family": "ln", "modes": {"fast": "record"}, "instances": 1, "help": "a lever"}]}
PROVOKERS = {}


def provokes(word):
    def keep(function):
        PROVOKERS[word] = function
        return function
    return keep


def child(program, tmp_path, **environment):
    """Runs a program that prints the refusal it caught; returns what it printed."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPT_CORE_")} | environment
    text = "import sys\nfrom opt_core import Refused, _core\ntry:\n" + textwrap.indent(textwrap.dedent(program), "    ")
    text += "\nexcept Refused as refusal:\n    print(refusal)\n"
    done = subprocess.run([sys.executable, "-c", text], env=env, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    raise_it = done.stdout.strip()
    word, _, detail = raise_it.partition(":")
    raise Refused(word, detail)


def with_fake_driver(program, tmp_path, **environment):
    """As child, with the C tests' driver without a device in place of the machine's."""
    source = Path(__file__).resolve().parents[1] / "unit/fake_cuda.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-pthread", "-o", "libcuda.so.1", str(source)], cwd=tmp_path, check=True)
    child(program, tmp_path, LD_LIBRARY_PATH=str(tmp_path), **environment)


def gate_of(tmp_path):
    """A copy of the template's gate in a package of its own, with a pin that names this core."""
    template = Path(__file__).resolve().parents[2] / "kit_template/_core_gate.py"
    package = tmp_path / "a_kit"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "_core_gate.py").write_bytes(template.read_bytes())
    return package


def gate_says(package, pin, path, *flags):
    """What the gate's check says in an interpreter whose sys.path is `path` alone."""
    (package / "_core_pin.json").write_text(json.dumps(pin))
    program = f"import sys; sys.path[:0] = {[str(p) for p in path]!r}\nfrom a_kit import _core_gate\n" \
              "try: print(_core_gate.check())\nexcept _core_gate.Unmet as unmet: print(unmet)"
    done = subprocess.run([sys.executable, "-I", *flags, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    word, _, detail = done.stdout.strip().partition(":")
    raise Refused(word, detail)


@provokes("mode")
def _(tmp_path):
    _core.mode_parse("fats")


@provokes("lever")
def _(tmp_path):
    _core.levers_off_check(_core.Kit(json.dumps(TABLE)), "sofd")


@provokes("environment")
def _(tmp_path):
    child("_core.environment_check()", tmp_path, OPT_CORE_ISO="avx2")


@provokes("kit_table")
def _(tmp_path):
    _core.Kit(json.dumps(TABLE | {"colour": "red"}))


@provokes("core_missing")
def _(tmp_path):
    gate_says(gate_of(tmp_path), {"version": ">=0.1"}, [tmp_path], "-S")


@provokes("core_too_old")
def _(tmp_path):
    import opt_core

    package = gate_of(tmp_path)
    core = Path(opt_core.__file__).resolve().parent
    stray = tmp_path / "old/opt_core"
    stray.mkdir(parents=True)
    (stray / "__init__.py").write_text('__version__ = "0.0.9"\n')
    assert core.exists()
    gate_says(package, {"version": ">=0.1", "path": str(tmp_path / "old")}, [tmp_path / "old", tmp_path], "-S")


@provokes("core_wrong_path")
def _(tmp_path):
    stray = tmp_path / "opt_core"
    stray.mkdir()
    (stray / "__init__.py").write_text('__version__ = "9.9"\n')
    gate_says(gate_of(tmp_path), {"version": ">=0.1"}, [tmp_path], "-S")


@provokes("off_by_user")
def _(tmp_path):
    _core.Run(_core.Kit(json.dumps(TABLE)), "fast", levers_off="soft", manifest=str(tmp_path / "m.json")).lever_begin(0)


@provokes("pin")
def _(tmp_path):
    _core.gate_pin("torch", "2.4.0", ">=2.11")


@provokes("engine_layout")
def _(tmp_path):
    from opt_core.kit import Lever

    Lever.expect_class(_lever(), "json", "NoSuchClass", "forward")


@provokes("hook")
def _(tmp_path):
    """A run whose command leaves no record: the hook could not act (here: an interpreter that reads no site files)."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("OPT_CORE_") and not k.endswith("_OPT")}
    env[first_kit_variable()] = "fast"
    done = subprocess.run([sys.executable, "-m", "opt_core", "run", "--", sys.executable, "-I", "-S", "-c", "pass"], env=env, cwd=tmp_path,
                          capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    line = next(line for line in done.stderr.splitlines() if "NOT ACTIVE" in line)
    raise Refused("hook", line.split("hook:", 2)[-1])


@provokes("host_floor")
def _(tmp_path):
    """A library that needs a symbol version this host does not have."""
    (tmp_path / "new.map").write_text("GLIBC_2.99 { global: from_the_future; };\n")
    (tmp_path / "libc.so.6.c").write_text("int from_the_future(void) { return 1; }\n")
    (tmp_path / "user.c").write_text("int from_the_future(void);\nint user(void) { return from_the_future(); }\n")
    subprocess.run(["gcc", "-shared", "-fPIC", "-nostdlib", "-Wl,-soname,libc.so.6", "-Wl,--version-script=new.map", "-o", "libfuture.so", "libc.so.6.c"],
                   cwd=tmp_path, check=True)
    subprocess.run(["gcc", "-shared", "-fPIC", "-nostdlib", "-o", "libuser.so", "user.c", "-L.", "-lfuture"], cwd=tmp_path, check=True)
    _core.gate_host_floor(str(tmp_path / "libuser.so"))


@provokes("no_prebuilt")
def _(tmp_path):
    (tmp_path / "PREBUILT.json").write_text(json.dumps({"schema": 1, "package": "toy", "binaries": {}}))
    _core.prebuilt_read(str(tmp_path), "sm_90a")


@provokes("digest")
def _(tmp_path):
    (tmp_path / "a.cubin").write_bytes(b"not the bytes")
    entry = {"file": "a.cubin", "sha256": "0" * 64, "bytes": 13}
    (tmp_path / "PREBUILT.json").write_text(json.dumps({"schema": 1, "package": "toy", "binaries": {"sm_90a": entry}}))
    _core.prebuilt_read(str(tmp_path), "sm_90a")


@provokes("no_device")
def _(tmp_path):
    child("_core.cuda_facts(99)", tmp_path)


@provokes("driver")
def _(tmp_path):
    with_fake_driver("_core.cuda_facts(0)", tmp_path, OC_FAKE_FAIL="cuInit", OC_FAKE_CODE="999")


@provokes("capture")
def _(tmp_path):
    """The legacy stream takes part in a capture (code 906) when the first kernel is to be loaded."""
    if all(member["device"] == "cpu" for member in _core.members("triattn")):
        pytest.skip("no CUDA member is built in")
    with_fake_driver("_core.cuda_prepare(0, 'triattn')", tmp_path, OC_FAKE_FAIL="cuStreamIsCapturing", OC_FAKE_CODE="906")


@provokes("arch")
def _(tmp_path):
    _core.gate_arch(100, "sm_90a")


@provokes("cells")
def _(tmp_path):
    (tmp_path / "cells.json").write_text('{"schema": 1, "family": "ln", "cells": [{"id": "x"}]}')
    child("_core.select('ln', 'fast', 'cpu-avx2', 'f32', 'affine', {'n': 4, 'c': 8})", tmp_path, OPT_CORE_CELLS=str(tmp_path / "cells.json"))


@provokes("uncovered_cell")
def _(tmp_path):
    _core.select("ln", "fast", "sm_90a", "f64", "affine", {"n": 4, "c": 8})


@provokes("proof")
def _(tmp_path):
    cell = next(c for c in _core.cells("trimul") if c["tier"] == "exact")
    _core.select("trimul", "exact", cell["device"], "f32", "biased+mask+outgoing", {"b": 1, "n": 64, "c": 128, "d": 128}, "torch-0.0")


def _ln(x, **options):
    from opt_core.kernels.ln import ln

    return ln(x, row="cpu", **options)


@provokes("dtype")
def _(tmp_path):
    _ln(torch.zeros(2, 8, dtype=torch.float64))


@provokes("layout")
def _(tmp_path):
    _ln(torch.zeros(2, 8), out=torch.zeros(16).as_strided((2, 8), (1, 1)))


@provokes("shape")
def _(tmp_path):
    from opt_core.kernels.apb import apb

    q = torch.zeros(1, 2, 1, 257)
    apb(q, q, q, torch.zeros(1, 1, 2, 2), row="cpu")


@provokes("dialect")
def _(tmp_path):
    _ln(torch.zeros(2, 8), norm_round="f64")


@provokes("grad")
def _(tmp_path):
    _ln(torch.zeros(2, 8, requires_grad=True))


@provokes("not_built")
def _(tmp_path):
    """A hosted row asked of the library, which does not run it."""
    x, w, z = torch.zeros(1, 4, 4, 8), torch.zeros(8, 8), None
    _core.serve("trimul", "fast", (x, x.clone(), z, z, z, z, z, z, w, z, w, z, w, z, w, z, w, z, w, z),
                (1e-5, False, False, None, 1e-5, False, False, None, "outgoing", False, 1.0, None), "exact_planes")


def _lever():
    class Standalone:
        refuse = staticmethod(lambda word, detail="": (_ for _ in ()).throw(Refused(word, detail)))
    return Standalone()


def first_kit_variable():
    import importlib.metadata

    for entry in importlib.metadata.entry_points(group="opt_core.kits"):
        return entry.name.upper() + "_OPT"
    pytest.skip("no kit is installed")


@pytest.mark.parametrize("word", sorted(_core.reasons()))
def test_word_is_provoked(word, tmp_path):
    assert word in PROVOKERS, f"no case provokes {word}"
    with pytest.raises(Refused) as refusal:
        PROVOKERS[word](tmp_path)
    assert refusal.value.word == word, refusal.value
    assert str(refusal.value) == (f"{word}:{refusal.value.detail}" if refusal.value.detail else word)


def test_every_case_is_a_word():
    assert sorted(PROVOKERS) == sorted(_core.reasons())
    assert all(help_text for help_text in _core.reasons().values())

# SPDX-License-Identifier: Apache-2.0
"""The core and a kit installed as users install them, into clean environments, without network."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import zipfile

import pytest
from conftest import CORE, DATA, REPOSITORY, copy_kit, unpack

from opt_core import _core

IMPORTS = """
import sys
before = set(sys.modules)
import opt_core
assert "opt_core._core" not in sys.modules
version = opt_core.__version__
import opt_core.autoload
new = set(sys.modules) - before
foreign = [m for m in new if m.partition(".")[0] not in sys.stdlib_module_names and m.partition(".")[0] != "opt_core"]
assert foreign == [], foreign
assert "opt_core._core" in new
assert issubclass(opt_core.Refused, Exception) and issubclass(opt_core.AccountingClosed, Exception)
print(version, opt_core._core.__file__)
"""


def add_engine(environment):
    shutil.copytree(DATA / "toyengine", environment.site / "toyengine", ignore=shutil.ignore_patterns("__pycache__"))


def assert_serves(environment):
    result = environment.run("-m", "toyengine", TOYENGINE_OPT="fast")
    assert result.status == 0, result.err
    assert json.loads(result.out) == [["toy", 2]]
    return result.manifest()


def test_wheel_contents(core_wheel):
    names = zipfile.ZipFile(core_wheel).namelist()
    assert "-cp310-abi3-" in core_wheel.name
    for name in (
        "opt_core/__init__.py",
        "opt_core/autoload.py",
        "opt_core/kit.py",
        "opt_core/_core.abi3.so",
        "opt_core/lib/libopt_core.so.0",
        "opt_core/lib/libjansson.so.4",
        "opt_core/lib/libz.so.1",
        "opt_core/lib/libgomp.so.1",
        "opt_core/_bootstrap/sitecustomize.py",
        "opt_core/include/opt_core/opt_core.h",
    ):
        assert name in names, name
    data = [path for path in (CORE / "opt_core").rglob("*") if path.suffix in (".json", ".py") and path.is_file()]
    data = [path for path in data if not path.name.startswith("test_") and "_core" not in path.parts]
    assert any(path.name == "opt_manifest.schema.json" for path in data)
    assert {str(path.relative_to(CORE)) for path in data} - set(names) == set()
    assert [name for name in names if name.endswith((".c", ".cu", ".cuh", ".inc", ".pth", ".ptx", ".pyc"))] == []
    assert [name for name in names if name.endswith(".h") and not name.startswith("opt_core/include/")] == []
    assert {name.partition("/")[0] for name in names} == {"opt_core", "opt_core-0.1.0.dist-info"}


def test_wheel_carries_each_cubin(core_wheel, tmp_path):
    """Beside libopt_core.so, with the committed digests, and no other: a user needs no compiler."""
    unpack(core_wheel, tmp_path)
    folder = tmp_path / "opt_core/lib/opt_core/cubin"
    indexes = sorted((CORE / "opt_core/kernels").glob("*/PREBUILT.json"))
    if not indexes:
        pytest.skip("no family has a CUDA member")
    if not folder.exists() and subprocess.run([sys.executable, CORE / "build_prebuilt.py", "--find"], capture_output=True).returncode:
        pytest.skip("no nvcc of the pinned release on this machine: the wheel was built without cubins")
    expected = {"PREBUILT.json", "PREBUILT_RECORD.json"}
    for index in indexes:
        family = index.parent.name
        assert (folder / family / "PREBUILT.json").read_bytes() == index.read_bytes()
        binaries = json.loads(index.read_text())["binaries"]
        assert {path.name for path in (folder / family).iterdir()} == expected | {entry["file"] for entry in binaries.values()}
        for key, entry in binaries.items():
            data = _core.prebuilt_read(folder / family, key)
            assert (len(data), hashlib.sha256(data).hexdigest()) == (entry["bytes"], entry["sha256"]), key
    assert {path.name for path in folder.iterdir()} == {index.parent.name for index in indexes}


NOTICES = {"libjansson": "Permission is hereby granted", "libsodium": "ISC", "libz": "zlib", "libgomp": "GCC Runtime Library Exception"}


@pytest.mark.skipif(not os.path.exists("/usr/share/doc/libc6/copyright"), reason="the notices come from Debian's packages")
def test_wheel_has_a_notice_of_each_library_in_it(core_wheel):
    archive = zipfile.ZipFile(core_wheel)
    found = [name for name in archive.namelist() if name.endswith(".notice")]
    assert sorted(found) == sorted(f"opt_core/lib/{name}.notice" for name in NOTICES)
    for name, words in NOTICES.items():
        text = " ".join(archive.read(f"opt_core/lib/{name}.notice").decode(errors="replace").split())
        assert words.lower() in text.lower(), name


SYSTEM_LIBRARIES = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2"}


def test_wheel_needs_nothing_but_the_c_library(core_wheel, tmp_path):
    """Every SONAME that a file of the wheel asks for lies in it, or is glibc's."""
    if not shutil.which("objdump"):
        pytest.skip("objdump is not installed")
    unpack(core_wheel, tmp_path)
    library = tmp_path / "opt_core" / "lib"
    files = [*library.glob("*.so*"), tmp_path / "opt_core" / "_core.abi3.so", tmp_path / "opt_core" / "bin" / "opt_core"]
    assert len(files) == 6
    for path in files:
        text = subprocess.run(["objdump", "-p", path], check=True, capture_output=True, text=True).stdout
        needed = {line.split()[1] for line in text.splitlines() if line.split()[:1] == ["NEEDED"]}
        assert needed - SYSTEM_LIBRARIES - {p.name for p in library.iterdir()} == set(), path.name


MAPPED = """
import ctypes, sys
for name in sys.argv[1].split(","):
    __import__(name)
from opt_core import _core
assert _core.cpu_threads() >= 1
import torch
torch.set_num_threads(2)
(torch.ones(300, 300) @ torch.ones(300, 300)).sum().item()
print(*sorted({line.split()[-1] for line in open("/proc/self/maps") if "/libgomp" in line}))
"""


@pytest.mark.parametrize("order", ["torch,opt_core._core", "opt_core._core,torch"])
def test_one_openmp_pool_with_torch(core_wheel, tmp_path, order):
    """The wheel carries libgomp.so.1 and so does torch: whichever comes first, one copy is mapped."""
    pytest.importorskip("torch")
    unpack(core_wheel, tmp_path)
    program = tmp_path / "mapped.py"
    program.write_text(MAPPED)
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONNOUSERSITE": "1", "OPT_CORE_AUTOLOAD": "0"}
    done = subprocess.run([sys.executable, program, order], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) == 1, done.stdout
    if order.startswith("opt_core"):
        assert done.stdout.strip().endswith("/opt_core/lib/libgomp.so.1")  # of an editable install, where there is one


def test_installed_from_wheels(make_environment, core_wheel, tmp_path):
    environment = make_environment("wheels")
    kit = copy_kit(tmp_path)
    environment.pip("wheel", "--no-index", "--no-deps", "--wheel-dir", tmp_path, kit)
    environment.pip("install", "--no-index", core_wheel, *tmp_path.glob("toy_opt-*.whl"))
    add_engine(environment)
    result = environment.run("-c", IMPORTS)
    assert result.status == 0, result.err
    assert result.out.startswith(f"0.1.0 {environment.site}/opt_core/_core")
    assert assert_serves(environment)["core"]["version"] == "0.1.0"
    where = environment.run(program=environment.root / "bin" / "toy-where")
    assert where.out.strip() == str(environment.site / "toy_opt" / "__init__.py")
    environment.pip("check")
    environment.pip("uninstall", "--yes", "toy-opt", "opt-core")
    left = [path.name for path in environment.site.iterdir() if "opt" in path.name]
    assert left == []


def test_without_pth_by_target_folder(make_environment, core_wheel, tmp_path):
    environment = make_environment("target")
    target = tmp_path / "carried"
    kit = copy_kit(tmp_path)
    environment.pip("install", "--no-index", "--target", target, core_wheel, kit)
    add_engine(environment)
    paths = os.pathsep.join([str(target / "opt_core" / "_bootstrap"), str(target)])
    result = environment.run("-m", "toyengine", TOYENGINE_OPT="fast", PYTHONPATH=paths)
    assert result.status == 0, result.err
    assert json.loads(result.out) == [["toy", 2]]


@pytest.mark.parametrize("kind", ["editable", "plain"])
def test_installed_from_source_without_isolation(make_environment, build_tools, tmp_path, kind):
    environment = make_environment(kind)
    kit = copy_kit(tmp_path, path=os.path.relpath(CORE, tmp_path / "toykit"))
    options = ["-e"] if kind == "editable" else []
    settings = ["--config-settings", f"build-dir={REPOSITORY}/build/contract-{{wheel_tag}}"]
    environment.pip(
        "install",
        "--no-index",
        "--no-build-isolation",
        *settings,
        *options,
        CORE,
        PYTHONPATH=build_tools,
        PATH=os.pathsep.join([os.path.dirname(os.path.realpath(os.sys.executable)), os.environ["PATH"]]),
    )
    environment.pip("install", "--no-index", "--no-build-isolation", *options, kit)
    add_engine(environment)
    result = environment.run("-c", IMPORTS)
    assert result.status == 0, result.err
    record = assert_serves(environment)
    assert record["core"]["version"] == "0.1.0"
    if kind == "editable":
        assert environment.run(
            "-c", "import opt_core, toy_opt; print(opt_core.__file__, toy_opt.__file__)"
        ).out.split() == [str(CORE / "opt_core" / "__init__.py"), str(kit / "toy_opt" / "__init__.py")]


def test_kit_installs_offline_with_isolation(make_environment, tmp_path):
    environment = make_environment("isolated")
    environment.pip("install", "--no-index", "-e", copy_kit(tmp_path))
    result = environment.run("-c", "import toy_opt; print(toy_opt.__file__)")
    assert result.out.strip() == str(tmp_path / "toykit" / "toy_opt" / "__init__.py")
    assert (environment.site / "toy_opt.pth").is_file() and (environment.site / "toy_opt.start").is_file()

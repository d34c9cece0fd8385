# SPDX-License-Identifier: Apache-2.0
"""The two ways to install the core and the kit without network, as docs/install.md gives them, into clean environments."""
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CORE, KIT = ROOT / "common/opt_core", ROOT / "esmfold/opt"
WHEELS = "pip install --no-index --find-links dist opt-core esmfold-opt"
SOURCES = "pip install --no-build-isolation --no-index -e common/opt_core -e esmfold/opt"


def variables(**extra):
    kept = {k: v for k, v in os.environ.items()
            if not k.endswith("_OPT") and not k.startswith(("OPT_CORE_", "MODEL_OPT_", "PIP_", "PYTHONPATH"))}
    return kept | {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONDONTWRITEBYTECODE": "1"} | extra


def run(*command, folder=ROOT, **extra):
    done = subprocess.run([str(word) for word in command], cwd=folder, env=variables(**extra), capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def documented(command):
    """The command, which must stand in the guide; its first word is `pip` of the environment at hand."""
    assert command in (ROOT / "docs/install.md").read_text()
    return command.split()[1:]


@pytest.fixture(scope="module")
def build_path():
    """Variables with which a clean environment finds this interpreter's build tools."""
    spec = importlib.util.find_spec("scikit_build_core")
    if spec is None:
        pytest.skip("scikit-build-core is not installed in the interpreter that runs the tests")
    return f"{Path(sys.executable).parent}:{os.environ['PATH']}", Path(spec.origin).parents[1]


@pytest.fixture(scope="module")
def dist(tmp_path_factory, build_path):
    """dist/ with both wheels; CONTRACT_WHEEL names a finished wheel of the core."""
    out = tmp_path_factory.mktemp("wheels") / "dist"
    given = os.environ.get("CONTRACT_WHEEL")
    sources = [KIT] if given else [CORE, KIT]
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", out, *sources, PATH=build_path[0])
    if given:
        shutil.copy(given, out)
    assert sorted(path.name.split("-")[0] for path in out.iterdir()) == ["esmfold_opt", "opt_core"]
    return out


def environment(folder):
    run(sys.executable, "-m", "venv", folder)
    return folder / "bin", next(folder.glob("lib/python*/site-packages"))


def assert_installed(programs, site, folder):
    """Both import, the command answers and finds the kit's hook, which lies where the interpreter reads it."""
    assert run(programs / "python", "-c", "import opt_core, esmfold_opt; print(opt_core.__version__)", folder=folder) == "0.1.0\n"
    page = run(programs / "opt_core", "doctor", "--json", folder=folder)
    assert str(site / "esmfold_opt.pth") in page
    hook = (KIT / "esmfold_opt.pth").read_bytes()
    assert (site / "esmfold_opt.pth").read_bytes() == hook
    assert (site / "esmfold_opt.start").read_bytes() == (KIT / "esmfold_opt.start").read_bytes()


def test_both_wheels_into_a_clean_environment(dist, tmp_path):
    programs, site = environment(tmp_path / "venv")
    run(programs / "python", "-m", "pip", *documented(WHEELS), folder=dist.parent)
    assert_installed(programs, site, tmp_path)
    for index in (site / "opt_core/lib/opt_core/cubin").glob("*/PREBUILT.json"):  # none where the wheel was built without nvcc
        files = [entry["file"] for entry in json.loads(index.read_text())["binaries"].values()]
        assert files and all((index.parent / name).is_file() for name in files)
    assert (site / "opt_core/_core.abi3.so").is_file() and (site / "esmfold_opt/__init__.py").is_file()


def test_both_sources_without_isolation(build_path, tmp_path):
    programs, site = environment(tmp_path / "venv")
    path, packages = build_path
    (site / "build_tools.pth").write_text(f"{packages}\n")
    run(programs / "python", "-m", "pip", *documented(SOURCES), PATH=path,
        SKBUILD_BUILD_DIR=str(ROOT / "build/wheels-test-{wheel_tag}"))
    assert_installed(programs, site, tmp_path)
    where = run(programs / "python", "-c", "import opt_core, esmfold_opt; print(opt_core.__file__, esmfold_opt.__file__)", folder=tmp_path)
    assert where.split() == [str(CORE / "opt_core/__init__.py"), str(KIT / "esmfold_opt/__init__.py")]

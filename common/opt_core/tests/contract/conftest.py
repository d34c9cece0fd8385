# SPDX-License-Identifier: Apache-2.0
"""Clean environments with the core and toy kits installed, in which the contract tests start interpreters."""

import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

HERE = pathlib.Path(__file__).resolve().parent
CORE = HERE.parents[1]
REPOSITORY = CORE.parents[1]
DATA = HERE / "data"
TEMPLATE = CORE / "kit_template"

LINE = re.compile(r"^\[opt_core\] (.*)$", re.M)


@dataclasses.dataclass
class Result:
    status: int
    out: str
    err: str
    folder: pathlib.Path

    def lines(self, start=""):
        return [line for line in LINE.findall(self.err) if line.startswith(start)]

    def manifests(self):
        return [json.loads(path.read_text()) for path in sorted(self.folder.glob("opt_manifest*.json"))]

    def manifest(self):
        found = self.manifests()
        assert len(found) == 1, (sorted(os.listdir(self.folder)), self.err)
        return found[0]


class Environment:
    """A virtual environment, and a scratch folder where its programs run."""

    def __init__(self, root, scratch):
        self.root = root
        self.scratch = scratch
        self.python = root / "bin" / "python"
        self.site = next(root.glob("lib/python*/site-packages"))
        self.runs = 0

    def variables(self, **extra):
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        return {**kept, "PYTHONDONTWRITEBYTECODE": "1", **{name: v for name, v in extra.items() if v is not None}}

    def folder(self):
        self.runs += 1
        folder = self.scratch / f"run{self.runs}"
        folder.mkdir()
        return folder

    def run(self, *arguments, code=None, folder=None, program=None, timeout=120, **variables):
        folder = folder or self.folder()
        if code is not None:
            (folder / "program.py").write_text(code)
            arguments = (*arguments, "program.py")
        done = subprocess.run(
            [program or self.python, *arguments],
            cwd=folder,
            env=self.variables(**variables),
            text=True,
            capture_output=True,
            timeout=timeout,
        )
        return Result(done.returncode, done.stdout, done.stderr, folder)

    def pip(self, *arguments, **variables):
        done = subprocess.run(
            [self.python, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments],
            env=self.variables(**variables),
            text=True,
            capture_output=True,
            timeout=900,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done


@pytest.fixture(scope="session")
def make_environment(tmp_path_factory):
    def make(name, pip=True):
        root = tmp_path_factory.mktemp(name)
        options = [] if pip else ["--without-pip"]
        subprocess.run([sys.executable, "-m", "venv", *options, root / "venv"], check=True, timeout=300)
        (root / "scratch").mkdir()
        return Environment(root / "venv", root / "scratch")

    return make


@pytest.fixture(scope="session")
def build_tools():
    """The folder from which an environment without network can import the core's build backend."""
    spec = importlib.util.find_spec("scikit_build_core")
    if spec is None:
        pytest.skip("scikit-build-core is not installed in the interpreter that runs the tests")
    return str(pathlib.Path(spec.origin).parents[1])


@pytest.fixture(scope="session")
def core_wheel(tmp_path_factory, build_tools):
    """The core's wheel, built once a session; CONTRACT_WHEEL names a finished one to test in its place."""
    given = os.environ.get("CONTRACT_WHEEL")
    if given:
        return pathlib.Path(given)
    out = tmp_path_factory.mktemp("core_wheel")
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "wheel",
            "--quiet",
            "--no-build-isolation",
            "--no-deps",
            "--no-index",
            "--config-settings",
            f"build-dir={REPOSITORY}/build/contract-{{wheel_tag}}",
            "--wheel-dir",
            out,
            CORE,
        ],
        check=True,
        timeout=1800,
    )
    (wheel,) = out.glob("*.whl")
    return wheel


def unpack(wheel, site):
    """What an installer does with a wheel that has neither scripts nor data: its files, at the top of site-packages."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)


def copy_kit(folder, name="toykit", words=(), **settings):
    """A toy kit's source tree with the template's two files. `words` are replaced in names and texts."""
    root = folder / name
    shutil.copytree(DATA / "toykit", root, ignore=shutil.ignore_patterns("__pycache__"))
    package = "toy_opt"
    for old, new in words:
        package = package.replace(old, new)
        for path in sorted(root.rglob("*"), key=lambda p: -len(p.parts)):
            if path.is_file():
                path.write_text(path.read_text().replace(old, new))
            path.rename(path.with_name(path.name.replace(old, new)))
    shutil.copy(TEMPLATE / "_build_backend.py", root)
    shutil.copy(TEMPLATE / "_core_gate.py", root / package)
    pyproject = root / "pyproject.toml"
    for key, value in settings.items():
        text, count = re.subn(rf'(?m)^{key} = ".*"$', f'{key} = "{value}"', pyproject.read_text())
        assert count, f"no {key} in {pyproject}"
        pyproject.write_text(text)
    return root


SPACE = (
    ("TOYENGINE_OPT", "TOYSPACE_OPT"),
    ("toy_opt", "space_opt"),
    ("toy-opt", "space-opt"),
    ("toyengine.layers", "toyspace.part"),
    ("toyengine", "toyspace"),
    ('"Layer"', '"Part"'),
)


def build_kit(root, out, hook="build_wheel"):
    """Calls the kit's backend as an installer does. Returns the path of the wheel."""
    name = subprocess.run(
        [sys.executable, "-c", f"import _build_backend as b; print(b.{hook}({str(out)!r}))"],
        cwd=root,
        check=True,
        text=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(root), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    return out / name.stdout.strip()


@pytest.fixture(scope="session")
def home(make_environment, core_wheel, tmp_path_factory):
    """The environment of most tests: the core, two kits, the engines of both."""
    environment = make_environment("home", pip=False)
    unpack(core_wheel, environment.site)
    kits = tmp_path_factory.mktemp("kits")
    for name, words in (("toykit", ()), ("spacekit", SPACE)):
        unpack(build_kit(copy_kit(kits, name, words), kits), environment.site)
    # an installer compiles what it installs
    subprocess.run([environment.python, "-m", "compileall", "-q", environment.site], check=True, timeout=300)
    for engine in ("toyengine", "toyspace"):
        shutil.copytree(DATA / engine, environment.site / engine, ignore=shutil.ignore_patterns("__pycache__"))
    return environment

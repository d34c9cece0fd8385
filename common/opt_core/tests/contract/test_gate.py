# SPDX-License-Identifier: Apache-2.0
"""The kit's gate: which core it accepts, and by which name it refuses."""

import hashlib
import json
import subprocess
import sys

import pytest
from conftest import REPOSITORY, TEMPLATE, build_kit, copy_kit, unpack


def fake_core(folder, version="0.1.0", text=None):
    (folder / "opt_core").mkdir(parents=True)
    (folder / "opt_core" / "__init__.py").write_text(text if text is not None else f"__version__ = {version!r}\n")
    return folder


def distribution(folder, version="0.1.0"):
    info = folder / f"opt_core-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: opt-core\nVersion: {version}\n")
    return folder


def check(path, *paths):
    """What the gate says, in an interpreter that has only `paths`: (version, directory) or a refusal."""
    code = """
import json, sys
sys.path[:0] = sys.argv[1:]
from toy_opt import _core_gate
try:
    print(json.dumps(_core_gate.check()))
except _core_gate.Unmet as unmet:
    print(json.dumps(str(unmet)))
"""
    done = subprocess.run(
        [sys.executable, "-S", "-I", "-c", code, str(path), *map(str, paths)],
        text=True,
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_pinned_path(tmp_path):
    kit = copy_kit(tmp_path)
    core = fake_core(tmp_path / "core")
    assert check(kit, core) == ["0.1.0", str(core / "opt_core")]


def test_pinned_path_through_a_symlink(tmp_path):
    kit = copy_kit(tmp_path)
    core = fake_core(tmp_path / "elsewhere")
    (tmp_path / "core").symlink_to(core)
    assert check(kit, core) == ["0.1.0", str(core / "opt_core")]


def test_installed_distribution_elsewhere(tmp_path):
    kit = copy_kit(tmp_path)
    site = distribution(fake_core(tmp_path / "site"))
    assert check(kit, site) == ["0.1.0", str(site / "opt_core")]


def test_editable_distribution_elsewhere(tmp_path):
    kit = copy_kit(tmp_path)
    source = fake_core(tmp_path / "a source tree")
    (tmp_path / "site").mkdir()
    site = distribution(tmp_path / "site")
    url = {"url": source.as_uri(), "dir_info": {"editable": True}}
    (site / "opt_core-0.1.0.dist-info" / "direct_url.json").write_text(json.dumps(url))
    assert check(kit, source, site) == ["0.1.0", str(source / "opt_core")]


def test_core_missing(tmp_path):
    assert check(copy_kit(tmp_path)) == "core_missing"


@pytest.mark.parametrize(
    "text", ["import _no_such_extension\n", "raise RuntimeError('broken\\nwheel')\n", "x = (\n", ""]
)
def test_core_that_does_not_load(tmp_path, text):
    kit = copy_kit(tmp_path)
    answer = check(kit, fake_core(tmp_path / "core", text=text))
    assert answer.startswith("core_missing:")
    assert "\n" not in answer


def test_stray_folder_is_the_wrong_path(tmp_path):
    kit = copy_kit(tmp_path)
    stray = fake_core(tmp_path / "stray")
    assert check(kit, stray) == f"core_wrong_path:{stray / 'opt_core'}"


def test_stray_folder_before_an_installed_core(tmp_path):
    kit = copy_kit(tmp_path)
    stray, site = fake_core(tmp_path / "stray"), distribution(fake_core(tmp_path / "site"))
    assert check(kit, stray, site) == f"core_wrong_path:{stray / 'opt_core'}"


def test_folder_without_init_is_the_wrong_path(tmp_path):
    kit = copy_kit(tmp_path)
    (tmp_path / "cwd" / "opt_core").mkdir(parents=True)
    assert check(kit, tmp_path / "cwd") == f"core_wrong_path:{tmp_path / 'cwd' / 'opt_core'}"


def test_path_with_a_common_prefix_is_not_within(tmp_path):
    kit = copy_kit(tmp_path)
    other = fake_core(tmp_path / "core2")
    assert check(kit, other).startswith("core_wrong_path:")


@pytest.mark.parametrize(
    "have, need, refusal",
    [
        ("0.1.0", ">=0.1", None),
        ("0.1", ">=0.1.0", None),
        ("0.10.0", ">=0.9", None),
        ("1.0", ">=0.1", None),
        ("0.1.0", ">=0.1,<0.2", None),
        ("0.1.0", "==0.1", None),
        ("0.1.0", "!=0.1.1", None),
        ("0.2.0rc1", ">=0.2", None),
        ("0.1.0", "", None),
        ("0.1.0", " >= 0.1 ", None),
        ("0.0.9", ">=0.1", "core_too_old:0.0.9<0.1"),
        ("0.9", ">=0.10", "core_too_old:0.9<0.10"),
        ("0.1.0", ">0.1", "core_too_old:0.1.0<0.1"),
        ("dev", ">=0.1", "core_too_old:dev<0.1"),
        ("0.2.0", ">=0.1,<0.2", "pin:opt_core0.2.0!>=0.1,<0.2"),
        ("0.1.0", "~0.1", "pin:opt_core0.1.0!~0.1"),
    ],
)
def test_version_floor(tmp_path, have, need, refusal):
    kit = copy_kit(tmp_path, version=need)
    pyproject = (kit / "pyproject.toml").read_text().replace(f'version = "{need}"', 'version = "0.2.0"', 1)
    (kit / "pyproject.toml").write_text(pyproject)  # the first one is the kit's own
    core = fake_core(tmp_path / "core", have)
    assert check(kit, core) == (refusal or [have, str(core / "opt_core")])


def test_kit_without_a_pin(tmp_path):
    kit = copy_kit(tmp_path)
    (kit / "pyproject.toml").unlink()
    assert check(kit, fake_core(tmp_path / "core")) == "core_missing:the kit carries no pin of the core"


def test_installed_kit_carries_its_floor(tmp_path):
    kit = copy_kit(tmp_path)
    site = tmp_path / "site"
    unpack(build_kit(kit, tmp_path), site)
    (site / "pyproject.toml").write_text("[tool.opt_core]\nversion = '>=99'\n")  # somebody else's
    distribution(fake_core(site, "0.0.1"), "0.0.1")
    assert check(site) == "core_too_old:0.0.1<0.1"


# ---- in a real interpreter: who is refused, and when -----------------------------------------------------------------


@pytest.fixture(scope="module")
def lonely(make_environment, tmp_path_factory):
    """A kit and its engine, without any core."""
    environment = make_environment("lonely", pip=False)
    folder = tmp_path_factory.mktemp("lonely_kit")
    unpack(build_kit(copy_kit(folder), folder), environment.site)
    for name in ("__init__", "layers", "model"):
        path = environment.site / "toyengine" / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text("" if name == "__init__" else "print('body ran')\n")
    return environment


ENDS = [
    "import toyengine.layers\n",
    "try:\n    import toyengine.layers\nexcept BaseException:\n    pass\nprint(1)\n",
    "import threading\nt = threading.Thread(target=__import__, args=('toyengine.layers',))\nt.start(); t.join()\n"
    "print(1)\n",
]


@pytest.mark.parametrize("end", ENDS, ids=["plain", "swallowed", "thread"])
def test_no_core_is_refused_at_the_trigger(lonely, end):
    result = lonely.run(code=end, TOYENGINE_OPT="fast")
    assert result.status == 3
    assert result.err == "[opt_core] NOT ACTIVE: toyengine: core_missing\n"
    assert result.out == ("" if end == ENDS[0] else "1\n")


def test_no_core_and_a_bystander(lonely):
    code = """
import importlib.util
assert importlib.util.find_spec("toyengine.layers").loader.get_source("toyengine.layers") == "print('body ran')\\n"
import toyengine, json, toyengine.model
"""
    result = lonely.run(code=code, TOYENGINE_OPT="fast")
    assert (result.status, result.out, result.err) == (0, "body ran\n", "")


def test_no_core_and_the_mode_off(lonely):
    result = lonely.run(code="import toyengine.layers\n", TOYENGINE_OPT="off")
    assert (result.status, result.out, result.err) == (0, "body ran\n", "")


def test_no_core_and_the_trigger_already_imported(lonely):
    code = """
import os, toyengine.layers
os.environ['TOYENGINE_OPT'] = 'fast'
import toy_opt._boot
toy_opt._boot.start()
"""
    result = lonely.run(code=code)
    assert (result.status, result.err) == (3, "[opt_core] NOT ACTIVE: toyengine: core_missing\n")


@pytest.mark.parametrize(
    "text, reason",
    [
        ("__version__ = '0.1.0'\n", "core_wrong_path:"),
        ("import toyengine\nraise OSError('half a wheel')\n", "core_wrong_path:"),
    ],
)
def test_stray_core_on_the_path(lonely, tmp_path, text, reason):
    stray = fake_core(tmp_path / "stray é", text=text)
    bystander = lonely.run("-c", "pass", TOYENGINE_OPT="fast", PYTHONPATH=str(stray))
    assert (bystander.status, bystander.err) == (0, "")
    result = lonely.run(code=ENDS[0], TOYENGINE_OPT="fast", PYTHONPATH=str(stray))
    assert (result.status, result.out) == (3, "")
    (line,) = result.err.splitlines()
    assert line.startswith(f"[opt_core] NOT ACTIVE: toyengine: {reason}")
    assert "stray %C3%A9/opt_core" in line


def test_kit_removed_but_for_its_hook(lonely, make_environment):
    """What a deletion by hand leaves: a bystander must not see it where the variable is unset."""
    environment = make_environment("leftover", pip=False)
    for suffix in ("pth", "start"):
        (environment.site / f"toy_opt.{suffix}").write_bytes((lonely.site / f"toy_opt.{suffix}").read_bytes())
    result = environment.run("-c", "pass")
    assert (result.status, result.err) == (0, "")
    result = environment.run("-c", "print(1)", TOYENGINE_OPT="fast")
    assert (result.status, result.out) == (0, "1\n")  # site reports it, nothing breaks
    assert "toy_opt" in result.err


def test_old_core_is_refused_before_any_of_its_kit_code_runs(home, make_environment, tmp_path):
    """An installed core that has a hook, but is below the floor of the kit."""
    environment = make_environment("old", pip=False)
    unpack(build_kit(copy_kit(tmp_path), tmp_path), environment.site)
    (environment.site / "toyengine").mkdir()
    (environment.site / "toyengine" / "layers.py").write_text("")
    core = fake_core(environment.site, "0.0.9")
    distribution(core, "0.0.9")
    (core / "opt_core" / "autoload.py").write_bytes((home.site / "opt_core" / "autoload.py").read_bytes())
    result = environment.run(code=ENDS[0], TOYENGINE_OPT="fast")
    assert (result.status, result.err) == (3, "[opt_core] NOT ACTIVE: toyengine: core_too_old:0.0.9<0.1\n")


# ---- copies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["_core_gate.py", "_build_backend.py"])
def test_every_copy_is_the_template(name):
    wanted = hashlib.sha256((TEMPLATE / name).read_bytes()).hexdigest()
    copies = [path for path in REPOSITORY.glob(f"*/opt/**/{name}") if "build" not in path.relative_to(REPOSITORY).parts]
    assert [path for path in copies if hashlib.sha256(path.read_bytes()).hexdigest() != wanted] == []
    kits = {path.parent for path in REPOSITORY.glob("*/opt/pyproject.toml")}
    assert {next(parent for parent in path.parents if parent.name == "opt") for path in copies} == kits
    assert len(copies) == len(kits) >= 1

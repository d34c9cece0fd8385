# SPDX-License-Identifier: Apache-2.0
"""The import hook in every way in which an engine is started, next to everything else that hangs on imports."""

import json
import os
import shutil
import subprocess
import sys

import pytest

SERVED = [["toy", 2]]
STOCK = [["stock", 2]]


def answer(result):
    return json.loads(result.out.strip().splitlines()[-1])


def assert_active(result, engine="toyengine", processes=1):
    assert result.status == 0, result.err
    assert len(result.lines(f"ACTIVE engine={engine} ")) == processes, result.err
    assert answer(result) == SERVED, result.err


def layer_counts(record):
    (lever,) = [lever for lever in record["levers"] if lever["name"] == "layer"]
    return lever["counts"]


def assert_no_trace(result):
    assert result.status == 0, result.err
    assert result.err == ""
    assert result.manifests() == []


MODEL = "import json\nfrom toyengine.model import run\nprint(json.dumps(run([1])))\n"


# ---- ways to start ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ("-m", "toyengine"),
        ("-m", "toyengine.model"),
        ("-m", "cProfile", "-o", "profile", "-m", "toyengine"),
        ("-c", MODEL),
        ("-I", "-m", "toyengine"),
        ("-E", "-m", "toyengine"),
        ("-s", "-m", "toyengine"),
        ("-P", "-m", "toyengine"),
        ("-X", "importtime", "-m", "toyengine"),
        ("-O", "-m", "toyengine"),
        ("-W", "error", "-m", "toyengine"),
    ],
    ids=" ".join,
)
def test_ways_to_start(home, arguments):
    if "-P" in arguments and sys.version_info < (3, 11):
        pytest.skip("-P came with Python 3.11")
    assert_active(home.run(*arguments, TOYENGINE_OPT="fast"))


def test_debugger_as_the_starter(home):
    folder = home.folder()
    done = subprocess.run(
        [home.python, "-m", "pdb", "-c", "continue", "-c", "quit", "-m", "toyengine"],
        cwd=folder,
        text=True,
        input="q\n",
        capture_output=True,
        env=home.variables(TOYENGINE_OPT="fast"),
        timeout=60,
    )
    assert '["toy", 2]' in done.stdout
    assert done.stderr.count("ACTIVE engine=toyengine") == 1


def test_console_script(home):
    script = home.folder() / "toy-run"
    script.write_text(f"#!{home.python}\nimport sys\nfrom toyengine.model import main\nsys.exit(main())\n")
    script.chmod(0o755)
    assert_active(home.run(program=script, TOYENGINE_OPT="fast"))


@pytest.mark.parametrize(
    "call",
    [
        "run_module('toyengine', run_name='__main__')",
        "run_module('toyengine.model', run_name='__main__', alter_sys=True)",
    ],
)
def test_runpy(home, call):
    assert_active(home.run(code=f"import runpy, sys\nsys.argv[1:] = []\nrunpy.{call}\n", TOYENGINE_OPT="fast"))


def test_without_site_there_is_no_hook_and_the_run_is_stock(home):
    result = home.run("-S", "-c", f"import sys; sys.path.append({str(home.site)!r})\n{MODEL}", TOYENGINE_OPT="fast")
    assert_no_trace(result)
    assert answer(result) == STOCK


@pytest.mark.parametrize("value", [None, "", "off", "0", "  ", " off ", "off\n"])
def test_off_leaves_no_trace(home, value):
    result = home.run(
        "-c",
        MODEL + "import sys\nassert not [m for m in sys.modules if m.startswith('opt_core')]\n",
        TOYENGINE_OPT=value,
    )
    assert_no_trace(result)
    assert answer(result) == STOCK


def test_autoload_switch(home):
    result = home.run("-c", MODEL, TOYENGINE_OPT="fast", OPT_CORE_AUTOLOAD="0")
    assert_no_trace(result)
    assert answer(result) == STOCK


@pytest.mark.parametrize("value", [" fast ", "fast\n", "exact", "big"])
def test_modes(home, value):
    if value == "big":  # the lever `gate` cannot run and is required there
        result = home.run("-c", MODEL, TOYENGINE_OPT=value)
        assert result.status == 3
        assert result.lines("NOT ACTIVE: gate: engine_layout:"), result.err
        return
    result = home.run("-c", MODEL, TOYENGINE_OPT=value)
    assert_active(result)
    assert result.manifest()["state"] == "finished"


@pytest.mark.parametrize("value", ["BIG", "big,unknown", "1", "true", "schnell", "f\xe4st", "x" * 100_000])
def test_unknown_mode_is_refused_at_the_trigger_only(home, value):
    bystander = home.run("-c", "print(1)", TOYENGINE_OPT=value)
    assert_no_trace(bystander)
    result = home.run("-c", MODEL, TOYENGINE_OPT=value, PYTHONUTF8="1")
    assert result.status == 3
    (line,) = result.lines("NOT ACTIVE: toyengine: mode:unknown:")
    for word in ("off", "exact", "fast", "big"):
        assert word in line
    assert len(line) < 4096
    assert result.out == ""


def test_bystander_imports_one_small_module(home):
    code = "import sys; print(sorted(m for m in sys.modules if 'opt' in m and not m.startswith('_')))"
    result = home.run("-c", code, TOYENGINE_OPT="fast")
    assert result.status == 0 and result.err == ""
    assert result.out.strip() == str(
        ["opt_core", "opt_core.autoload", "toy_opt", "toy_opt._boot", "toy_opt._core_gate"]
    )


# ---- order of things -------------------------------------------------------------------------------------------------


LATE = """
import os, json
from toyengine.early import LAYERS
before = LAYERS[0].forward(1)
os.environ["TOYENGINE_OPT"] = "fast"
import toy_opt._boot
toy_opt._boot.start()
toy_opt._boot.start()
print(json.dumps([before, *[layer.forward(1) for layer in LAYERS]]))
"""


def test_late_activation_reaches_what_exists_and_is_recorded(home):
    result = home.run(code=LATE)
    assert result.status == 0, result.err
    assert answer(result) == [["stock", 2]] + [["toy", 2]] * 3
    (line,) = result.lines("ACTIVE ")
    assert " late=1" in line
    assert result.manifest()["facts"]["late"] == "1"


def test_early_activation_is_not_called_late(home):
    result = home.run("-c", MODEL, TOYENGINE_OPT="fast")
    assert " late=" not in result.err
    assert "late" not in result.manifest()["facts"]


def test_class_taken_by_value(home):
    code = "import json\nfrom toyengine.early import LAYERS\nprint(json.dumps([LAYERS[2].forward(1)]))\n"
    assert_active(home.run(code=code, TOYENGINE_OPT="fast"))


def test_probing_does_not_activate(home):
    code = """
import importlib.util, sys, pickle
for name in ("toyengine", "toyengine.layers", "toyspace", "toyspace.part"):
    first, second = importlib.util.find_spec(name), importlib.util.find_spec(name)
    if first.loader is not None:
        assert first.loader == second.loader, name
        assert pickle.loads(pickle.dumps(first.loader)) == first.loader
assert "toyengine.layers" not in sys.modules
assert not [m for m in sys.modules if m.startswith("opt_core.kit")]
"""
    assert_no_trace(home.run(code=code, TOYENGINE_OPT="fast", TOYSPACE_OPT="fast"))


def test_reload_applies_again_and_counts_once(home):
    code = """
import importlib, json
import toyengine.layers
old = toyengine.layers.Layer
for _ in range(3):
    importlib.reload(toyengine.layers)
assert toyengine.layers.Layer is not old
assert not hasattr(toyengine.layers.Layer.forward.__wrapped__, "__wrapped__")
import toy_opt.kit
assert toy_opt.kit.enabled == 1
print(json.dumps([toyengine.layers.Layer().forward(1)]))
"""
    result = home.run(code=code, TOYENGINE_OPT="fast")
    assert_active(result)
    assert result.manifest()["state"] == "finished"


def test_import_again_after_removal_from_sys_modules(home):
    code = """
import json, sys
import toyengine.layers
del sys.modules["toyengine.layers"]
import toyengine.layers
print(json.dumps([toyengine.layers.Layer().forward(1)]))
"""
    assert_active(home.run(code=code, TOYENGINE_OPT="fast"))


def test_engine_whose_body_raises(home):
    code = """
try:
    import toyengine.layers
except OSError as error:
    print(error)
"""
    result = home.run(code=code, TOYENGINE_OPT="fast", TOY_FAULT="body")
    assert (result.status, result.err) == (0, "")
    assert result.out == "the engine does not import\n"


def test_folder_of_the_same_name_next_to_the_program(home):
    folder = home.folder()
    (folder / "toy_opt").mkdir()
    (folder / "opt_core").mkdir()
    assert_active(home.run(code=MODEL, folder=folder, TOYENGINE_OPT="fast"))


def test_hook_line_read_twice_activates_once(home):
    code = f"import site\nsite.addsitedir({str(home.site)!r})\n{MODEL}"
    result = home.run(code=code, TOYENGINE_OPT="fast")
    assert_active(result)


def test_namespace_package_as_trigger(home, tmp_path):
    stock = home.run(
        code="import toyspace as t\nprint(t.__file__, type(t.__loader__).__name__, t.__spec__.loader is t.__loader__,"
        " list(t.__path__), t.__spec__.origin)\n"
    )
    code = """
from opt_core import autoload
import hit
autoload.register(("SPACE_OPT", ("toyspace",), "hit:enable"))
import toyspace as t
assert hit.count == 1
print(t.__file__, type(t.__loader__).__name__, t.__spec__.loader is t.__loader__, list(t.__path__), t.__spec__.origin)
import toyspace.part
import importlib
importlib.reload(toyspace)
assert hit.count == 1
"""
    folder = home.folder()
    (folder / "hit.py").write_text("count = 0\n\n\ndef enable():\n    global count\n    count += 1\n")
    result = home.run(code=code, folder=folder)
    assert result.status == 0, result.err
    assert result.out == stock.out


def test_lazy_loader(home):
    code = """
import importlib.util, json, sys
spec = importlib.util.find_spec("toyengine.layers")
spec.loader = importlib.util.LazyLoader(spec.loader)
module = importlib.util.module_from_spec(spec)
sys.modules["toyengine.layers"] = module
spec.loader.exec_module(module)
import colorsys, wave
assert "opt_core.kit" not in sys.modules
layer = module.Layer()
assert "opt_core.kit" in sys.modules
assert type(module.__loader__).__name__ == "SourceFileLoader"
print(json.dumps([layer.forward(1)]))
"""
    assert_active(home.run(code=code, TOYENGINE_OPT="fast"))


def test_lazy_module_never_used_is_no_trigger(home):
    code = """
import importlib.util, sys
spec = importlib.util.find_spec("toyengine.layers")
spec.loader = importlib.util.LazyLoader(spec.loader)
module = importlib.util.module_from_spec(spec)
sys.modules["toyengine.layers"] = module
spec.loader.exec_module(module)
import colorsys
"""
    assert_no_trace(home.run(code=code, TOYENGINE_OPT="fast"))


# ---- other finders ---------------------------------------------------------------------------------------------------

FINDERS = {
    "without find_spec": "class Other:\n    find_module = lambda *a: None\nsys.meta_path.insert(0, Other())\n",
    "that raises for others": """
class Other:
    def find_spec(self, name, path=None, target=None):
        if name == "nowhere":
            raise RuntimeError(name)
sys.meta_path.insert(0, Other())
""",
    "that answers first": """
import importlib.machinery
class Other:
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.PathFinder.find_spec(name, path, target)
sys.meta_path.insert(0, Other())
""",
    "that delegates": """
import importlib.util
class Other:
    busy = False
    def find_spec(self, name, path=None, target=None):
        if self.busy:
            return None
        self.busy = True
        try:
            return importlib.util.find_spec(name)
        finally:
            self.busy = False
sys.meta_path.insert(0, Other())
""",
    "behind": """
class Other:
    def find_spec(self, name, path=None, target=None):
        assert not name.startswith("toyengine")
sys.meta_path.append(Other())
""",
    "that hooks paths": """
import importlib.machinery
class Loader(importlib.machinery.SourceFileLoader):
    def exec_module(self, module):
        super().exec_module(module)
        module.HOOKED = True
sys.path_hooks.insert(0, importlib.machinery.FileFinder.path_hook(
    (Loader, [".py"]), (importlib.machinery.ExtensionFileLoader, importlib.machinery.EXTENSION_SUFFIXES)))
sys.path_importer_cache.clear()
""",
}


@pytest.mark.parametrize("finder", FINDERS, ids=str)
def test_beside_another_finder(home, finder):
    code = "import sys\n" + FINDERS[finder] + MODEL
    if finder == "that hooks paths":
        code += "import toyengine.layers\nassert toyengine.layers.HOOKED\n"
    assert_active(home.run(code=code, TOYENGINE_OPT="fast"))


def test_finder_that_raises_for_the_trigger_raises_as_without_the_hook(home):
    code = """
import sys
class Other:
    def find_spec(self, name, path=None, target=None):
        if name == "toyengine.layers":
            raise KeyError(name)
sys.meta_path.insert(0, Other())
try:
    import toyengine.layers
except KeyError as error:
    print(error)
"""
    stock, hooked = home.run(code=code), home.run(code=code, TOYENGINE_OPT="fast")
    assert (
        (hooked.status, hooked.out, hooked.err)
        == (stock.status, stock.out, stock.err)
        == (0, "'toyengine.layers'\n", "")
    )


def test_meta_path_replaced_and_nothing_imported_since(home):
    code = (
        """
import sys
sys.meta_path = [finder for finder in sys.meta_path if type(finder).__module__ != "opt_core.autoload"]
"""
        + MODEL
    )
    result = home.run(code=code, TOYENGINE_OPT="fast")
    assert result.status == 3, result.err
    (line,) = result.lines()
    assert line.startswith("NOT ACTIVE: toyengine: hook:removed")
    assert answer(result) == STOCK


def test_meta_path_replaced_by_a_copy(home):
    assert_active(home.run(code="import sys\nsys.meta_path = list(sys.meta_path)\n" + MODEL, TOYENGINE_OPT="fast"))


def test_engine_that_ends_with_its_own_status_keeps_it_when_the_hook_was_removed(home):
    code = "import sys\nsys.meta_path = sys.meta_path[1:]\n" + MODEL + "raise ValueError('engine')\n"
    result = home.run(code=code, TOYENGINE_OPT="fast")
    assert result.status == 1
    assert result.lines("NOT ACTIVE: toyengine: hook:removed")


def test_trigger_that_is_the_main_program(home):
    result = home.run("-m", "toyengine.layers", TOYENGINE_OPT="fast")
    assert result.status == 3
    (line,) = result.lines()
    assert line.startswith("NOT ACTIVE: toyengine: hook:toyengine.layers ran as the main program")


# ---- a loader that behaves -------------------------------------------------------------------------------------------

BEHAVIOUR = """
import importlib.resources, inspect, linecache, pickle, pkgutil, re, traceback, sys
import toyengine.layers as m
import toyengine.model
print(type(m.__loader__).__name__, m.__spec__.loader is m.__loader__, sorted(vars(m.__loader__)))
print(m.__file__ == m.__spec__.origin)
print(inspect.getsource(m))
print(inspect.getsource(m.Layer), inspect.getsourcefile(m.Layer))
forward = m.Layer.forward
print(inspect.signature(forward), forward.__doc__, forward.__qualname__, forward.__module__)
print(pkgutil.get_data("toyengine", "data.txt"))
print(importlib.resources.files("toyengine").joinpath("data.txt").read_text())
print(type(pickle.loads(pickle.dumps(m.Layer()))).__qualname__, pickle.loads(pickle.dumps(m.Layer)) is m.Layer)
print(pickle.loads(pickle.dumps(m.Layer().forward)).__name__)
try:
    m.Exported().forward()
except TypeError:
    print(traceback.format_exc())
print(re.sub('0x[0-9a-f]+', '', str(m.__spec__)), m.__spec__.cached == m.__cached__, m.__spec__.has_location)
"""


def test_module_is_what_it_was(home):
    folder = home.folder()
    stock = home.run(code=BEHAVIOUR, folder=folder)
    assert stock.status == 0, stock.err
    hooked = home.run(code=BEHAVIOUR + "toyengine.model.run([1])\n", folder=folder, TOYENGINE_OPT="fast")
    assert hooked.status == 0, hooked.err
    assert hooked.out == stock.out
    assert len(hooked.lines("ACTIVE ")) == 1


def test_zipped_engine(home):
    folder = home.folder()
    shutil.make_archive(str(folder / "engine"), "zip", home.site, "toyengine")
    code = """
import sys, json, pkgutil, inspect, zipimport
sys.path.insert(0, "engine.zip")
import toyengine.layers as m
assert type(m.__loader__) is zipimport.zipimporter and m.__spec__.loader is m.__loader__, m.__loader__
assert "zip" in m.__file__ and b"stock op" in pkgutil.get_data("toyengine", "layers.py")
assert "stock op" in inspect.getsource(m)
print(json.dumps([m.Layer().forward(1)]))
"""
    assert_active(home.run(code=code, folder=folder, TOYENGINE_OPT="fast"))


RUN = "exec(SOURCE, vars(module))"
LOADERS = {
    "slotted": f"""
    __slots__ = ()
    def create_module(self, spec): return None
    def exec_module(self, module): {RUN}
""",
    "static": f"""
    create_module = staticmethod(lambda spec: None)
    exec_module = staticmethod(lambda module: {RUN})
""",
    "finder": f"""
    def find_spec(self, *a): return None
    def create_module(self, spec): return None
    def exec_module(self, module): {RUN}
""",
}


@pytest.mark.parametrize("kind", LOADERS)
def test_loaders_of_other_kinds(home, kind):
    code = f"""
import importlib.machinery, importlib.util, json, sys, toyengine
SOURCE = open(toyengine.__path__[0] + "/layers.py").read()
class Loader:
{LOADERS[kind]}
LOADER = Loader if {kind!r} == "static" else Loader()
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name in ("toyengine.layers", "toyengine.second"):
            return importlib.machinery.ModuleSpec(name, LOADER)
sys.meta_path.insert(0, Finder())
import colorsys
import toyengine.second
import toyengine.layers as m
assert m.__loader__ is LOADER and m.__spec__.loader is LOADER
assert toyengine.second.Layer().forward(1) == ("stock", 2)
print(json.dumps([m.Layer().forward(1)]))
"""
    assert_active(home.run(code=code, TOYENGINE_OPT="fast"))


@pytest.mark.skipif(sys.version_info >= (3, 15), reason="loaders with load_module alone are gone")
def test_loader_with_load_module_alone(home):
    code = """
import importlib.machinery, json, sys, types, toyengine, warnings
warnings.simplefilter("ignore")
SOURCE = open(toyengine.__path__[0] + "/layers.py").read()
class Loader:
    def load_module(self, name):
        module = sys.modules[name] = types.ModuleType(name)
        module.__loader__ = self
        module.__package__ = "toyengine"
        exec(SOURCE, vars(module))
        return module
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "toyengine.layers":
            return importlib.machinery.ModuleSpec(name, Loader())
sys.meta_path.insert(0, Finder())
import colorsys
import toyengine.layers as m
assert type(m.__spec__.loader) is Loader
print(json.dumps([m.Layer().forward(1)]))
"""
    assert_active(home.run(code=code, TOYENGINE_OPT="fast"))


# ---- several of everything -------------------------------------------------------------------------------------------


def test_two_kits_in_one_environment(home):
    code = """
import json
import toyengine.layers, toyspace.part
print(json.dumps([toyengine.layers.Layer().forward(1), toyspace.part.Part().forward(1)]))
"""
    one = home.run(code=code, TOYSPACE_OPT="fast")
    assert one.status == 0, one.err
    assert answer(one) == [["stock", 2], ["toy", 2]]
    assert [line.split()[1] for line in one.lines("ACTIVE ")] == ["engine=toyspace"]
    both = home.run(code=code, TOYENGINE_OPT="exact", TOYSPACE_OPT="fast")
    assert both.status == 0, both.err
    assert answer(both) == [["toy", 2], ["toy", 2]]
    assert sorted(line.split()[1] for line in both.lines("ACTIVE ")) == ["engine=toyengine", "engine=toyspace"]
    assert sorted(record["engine"] for record in both.manifests()) == ["toyengine", "toyspace"]
    assert {record["state"] for record in both.manifests()} == {"finished"}


def test_one_of_two_kits_fails_its_accounting(home):
    code = "import toyengine.layers, toyspace.part\ntoyengine.layers.Layer().forward(1)\n"
    result = home.run(code=code, TOYENGINE_OPT="exact", TOYSPACE_OPT="fast")
    assert result.status == 4, result.err
    assert {record["engine"]: record["state"] for record in result.manifests()} == {
        "toyengine": "finished",
        "toyspace": "closed",
    }


def test_threads_that_import_at_once(home):
    code = """
import json, threading
found, barrier = [], threading.Barrier(16)
def work():
    barrier.wait()
    from toyengine.layers import Layer
    found.append(Layer().forward(1))
threads = [threading.Thread(target=work) for _ in range(16)]
[t.start() for t in threads]; [t.join() for t in threads]
import toy_opt.kit
assert toy_opt.kit.enabled == 1
assert found == [("toy", 2)] * 16, found
print(json.dumps(found[:1]))
"""
    result = home.run(code=code, TOYENGINE_OPT="fast")
    assert_active(result)
    lever = layer_counts(result.manifest())
    assert (lever["calls"], lever["hits"]) == (16, 16)


WORKERS = """
import json, multiprocessing, os, sys
def work(x):
    from toyengine.layers import Layer
    return Layer().forward(x)
def target(queue):
    queue.put(work(1))
if __name__ == "__main__":
    {before}
    context = multiprocessing.get_context({method!r})
    queue = context.Queue()
    processes = [context.Process(target=target, args=(queue,)) for _ in range(2)]
    [p.start() for p in processes]
    found = [queue.get(timeout=60) for _ in processes]
    [p.join() for p in processes]
    assert [p.exitcode for p in processes] == [0, 0], [p.exitcode for p in processes]
    assert found == [("toy", 2)] * 2, found
    print(json.dumps(found[:1]))
"""


@pytest.mark.parametrize("before", ["pass", "work(1)"], ids=["parent idle", "parent active"])
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers(home, method, before):
    result = home.run(code=WORKERS.format(method=method, before=before), TOYENGINE_OPT="fast")
    parents = 1 if before != "pass" else 0
    activated = parents + (2 if method != "fork" or not parents else 0)
    assert_active(result, processes=activated)
    records = result.manifests()
    assert len(records) == parents + 2, sorted(os.listdir(result.folder))
    assert {record["state"] for record in records} == {"finished"}
    for record in records:
        lever = layer_counts(record)
        assert (lever["calls"], lever["hits"]) == (1, 1), record


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_worker_that_fails_keeps_its_status(home, method):
    code = """
import multiprocessing, sys
def target():
    from toyengine.layers import Layer
    Layer().forward(1)
    sys.exit(7)
if __name__ == "__main__":
    from toyengine.layers import Layer
    Layer().forward(1)
    process = multiprocessing.get_context({!r}).Process(target=target)
    process.start(); process.join()
    print(process.exitcode)
""".format(method)
    result = home.run(code=code, TOYENGINE_OPT="fast")
    assert (result.status, result.out) == (0, "7\n"), result.err
    assert sorted(record["exit_status"] for record in result.manifests()) == [0, 7]


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_worker_refused(home, method):
    code = """
import multiprocessing
def target():
    import toyengine.layers
if __name__ == "__main__":
    process = multiprocessing.get_context({!r}).Process(target=target)
    process.start(); process.join()
    print(process.exitcode)
""".format(method)
    result = home.run(code=code, TOYENGINE_OPT="wrong")
    assert (result.status, result.out) == (0, "3\n"), result.err
    assert len(result.lines("NOT ACTIVE: toyengine: mode:")) == 1


def test_child_with_another_folder_writes_beside_its_parent(home):
    code = """
import os, subprocess, sys
from toyengine.layers import Layer
Layer().forward(1)
os.mkdir("below")
program = "from toyengine.layers import Layer; Layer().forward(1)"
subprocess.run([sys.executable, "-c", program], cwd="below", check=True)
"""
    result = home.run(code=code, TOYENGINE_OPT="fast", OPT_CORE_MANIFEST="records/../opt_manifest.json")
    assert result.status == 0, result.err
    assert len(result.manifests()) == 2
    assert os.listdir(result.folder / "below") == []


def test_read_only_site_packages(home):
    def state():
        return sorted((str(p), p.stat().st_mtime_ns) for p in home.site.rglob("*"))

    before = state()
    result = home.run("-c", MODEL, TOYENGINE_OPT="fast", PYTHONDONTWRITEBYTECODE=None, PYTHONPYCACHEPREFIX="/dev/null")
    assert_active(result)
    assert state() == before


# ---- the bootstrap of `opt_core run` ---------------------------------------------------------------------------------


def test_bootstrap_where_no_pth_is_read(home):
    folder = home.folder()
    carried = folder / "carried"
    shutil.copytree(home.site, carried)
    (folder / "own").mkdir()
    (folder / "own" / "sitecustomize.py").write_text("print('the own sitecustomize ran')\n")
    paths = [str(carried / "opt_core" / "_bootstrap"), str(folder / "own"), str(carried)]
    bare = home.run(
        code=MODEL, folder=folder, program=sys._base_executable, TOYENGINE_OPT="fast", PYTHONPATH=str(carried)
    )
    assert answer(bare) == STOCK  # PYTHONPATH alone reads no .pth
    result = home.run(
        code=MODEL, folder=folder, program=sys._base_executable, TOYENGINE_OPT="fast", PYTHONPATH=os.pathsep.join(paths)
    )
    assert_active(result)
    assert "the own sitecustomize ran" in result.out


def test_beside_the_import_rewriting_of_pytest(home):
    folder = home.folder()
    (folder / "test_engine.py").write_text(
        "from toyengine.layers import Layer\n\n\ndef test_forward():\n    assert Layer().forward(1) == ('toy', 2)\n"
    )
    result = home.run(
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        folder=folder,
        program=sys.executable,
        TOYENGINE_OPT="fast",
        PYTHONPATH=f"{home.site / 'opt_core' / '_bootstrap'}{os.pathsep}{home.site}",
    )
    assert result.status == 0, result.out + result.err
    assert "1 passed" in result.out
    assert result.manifest()["state"] == "finished"


def test_bootstrap_and_pth_together_activate_once(home):
    code = MODEL + "import sys, sitecustomize\nassert not [p for p in sys.path if p.endswith('_bootstrap')]\n"
    result = home.run(code=code, TOYENGINE_OPT="fast", PYTHONPATH=str(home.site / "opt_core" / "_bootstrap"))
    assert_active(result)

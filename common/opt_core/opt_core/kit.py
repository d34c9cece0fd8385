# SPDX-License-Identifier: Apache-2.0
"""What a kit needs to switch an engine over: `Kit` runs the activation, a `Lever` is what an adapter works with.

A kit is a package with `kit.json` (the table), `_core_gate.py`, and one adapter a lever in `cells/<lever>.py`:

    def bind(lever):                                   # returns the row it will serve with, or None: chosen a call
        lever.pin("engine-package", ">=1.2,<2")
        block = lever.expect_class("engine.layers", "Block", "forward", ("x", "mask"))

        def make(stock):
            def forward(self, x, mask=None):
                return lever.serve(lambda: op(self, x, mask), lambda: stock(self, x, mask))
            return forward

        lever.patch(block, "forward", make)

`op` returns (result, (cell_id, row, member)) or raises Refused before it has written anything.
"""

import _thread
import atexit
import functools
import importlib
import importlib.metadata
import inspect
import itertools
import os
import platform
import sys

from . import _core, autoload

__all__ = ["Kit", "Lever", "close_all"]

# The call stays stock by design: nothing was claimed.
_STOCK_WORDS = frozenset(("uncovered_cell", "proof", "off_by_user"))
_DETAILS_MAX = 64  # different details that a lever's misses are counted by; the run has 4096 slots for all its levers
_MORE = "more"  # the detail of the rest
_kits = []  # activated in this process


def close_all(status):
    """Ends every run of this process, for an exit that the exit-status guard does not see."""
    for kit in _kits:
        kit.close(status)


class Kit:
    """One kit in one process.

    table     path of the kit's JSON table
    package   name of the kit's package, which holds `_core_gate` and `cells`
    packages  further distributions whose versions belong into the record
    """

    def __init__(self, table, package, packages=()):
        self.table = os.fspath(table)
        self.package = package
        self.packages = tuple(packages)
        self.engine = package
        self.mode = "off"
        self.run = None
        self.levers = ()
        self.levers_off = None
        self._once = _thread.allocate_lock()
        self._counted = False
        self._follows_workers = False

    @functools.cached_property
    def kit(self):
        """The parsed table (`_core.Kit`). Raises Refused kit_table:<where>."""
        with open(self.table, encoding="utf-8") as file:
            return _core.Kit(file.read())

    def enable(self):
        """Activates the kit in the mode that its variable names. A second call changes nothing.

        Ends with SystemExit(3) after a refusal that the mode table does not let pass; the process then ends with
        status 3 whoever swallows the exception.
        """
        if not self._once.acquire(False):
            return self
        _, directory = importlib.import_module(self.package + "._core_gate").require()
        try:
            self._open(directory)
        except _core.Refused as refusal:
            self._end_refused(self.engine, refusal)
        if self.run is not None:
            self._record_facts()
            self._bind_levers()
            self.run.activated()
        return self

    def disable(self):
        """Ends the run and gives the engine its own methods back. Returns {lever: counts}; {} in mode off."""
        if self.run is None:
            return {}
        self.close(0)
        for lever in self.levers:
            lever.undo()
        return {lever.name: self.run.counts(lever.index) for lever in self.levers}

    def close(self, status):
        """Counts what is still patched and ends the run. Returns the exit status that the process is to have.

        A second call, by hand or at exit, changes nothing and gives the same status.
        """
        self._count_patched()
        return self.run.close(status)

    # ---- activation ------------------------------------------------------------------------------------------------

    def _open(self, core_dir):
        self.engine = self.kit.engine
        self.mode = _core.mode_parse(os.environ.get(self.kit.variable))
        if self.mode == "off":
            return
        _core.environment_check()
        if all(self.kit.policy(name, self.mode) == "absent" for name in self.kit.levers):
            raise _core.Refused("mode", f"unserved:{self.mode} (no lever of {self.engine} takes part in it)")
        self.levers_off = os.environ.get("MODEL_OPT_LEVERS_OFF") or None
        _core.levers_off_check(self.kit, self.levers_off)
        is_child = _is_child()
        self.run = _core.Run(
            self.kit,
            self.mode,
            levers_off=self.levers_off,
            core_dir=core_dir,
            manifest=_manifest(),
            census=os.environ.get("OPT_CORE_CELL_CENSUS_PRINT") or None,
            is_child=is_child,
        )
        _core.exit_status_guard(self.run)
        os.environ["OPT_CORE_PARENT"] = str(os.getpid())
        _kits.append(self)
        atexit.register(self._count_patched)
        os.register_at_fork(after_in_child=self._follow_workers)
        self._follow_workers()
        self.levers = tuple(
            Lever(self, index, name)
            for index, name in enumerate(self.kit.levers)
            if self.kit.policy(name, self.mode) != "absent"
        )

    def _record_facts(self):
        cpu = _core.cpu_facts()
        facts = {
            "python": platform.python_version(),
            "platform": platform.platform(),
            "cpu.vendor": cpu.get("vendor"),
            "cpu.model": cpu.get("model"),
            "cpu.isa": _core.cpu_isa(),
            "cpu.threads": _core.cpu_threads(),
        }
        for key, value in facts.items():
            self.run.fact(key, str(value))
        self.run.fact("device", "cpu-" + _core.cpu_isa(), True)
        entry = autoload.registration(self.kit.variable)
        if entry is not None and entry.late:
            self.run.fact("late", "1", True)
        for name in dict.fromkeys(("torch", "jax", "numpy", *self._engine_packages(), *self.packages)):
            self.record_package(name)

    def _engine_packages(self):
        return dict.fromkeys(trigger.partition(".")[0] for trigger in self.kit.triggers)

    def record_package(self, name):
        """Version of an installed distribution, into the record. Returns it, or None."""
        try:
            have = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            return None
        self.run.fact("package." + name.lower().replace("-", "_"), have)
        return have

    def _bind_levers(self):
        for lever in self.levers:
            try:
                self.run.lever_begin(lever.index)
            except _core.Refused:
                continue  # off_by_user, which the run has written down
            try:
                row = importlib.import_module(f"{self.package}.cells.{lever.name}").bind(lever)
            except _core.Refused as refusal:
                self._lever_refused(lever, refusal.word, refusal.detail)
            except (Exception, SystemExit) as error:  # what an engine raises at import is not ours to choose
                self._lever_refused(lever, "hook", f"bind: {type(error).__name__}: {' '.join(str(error).split())}")
            else:
                lever.row = row or ""
                lever.stay_eager()
                self.run.lever_active(lever.index, lever.row)
                for what, count in lever.patched_counts().items():
                    self.run.patched(lever.index, what, count)

    def _lever_refused(self, lever, word, detail):
        lever.undo()
        if self.run.lever_refused(lever.index, word, detail):
            raise SystemExit(3)  # the guard holds the status

    def _end_refused(self, name, refusal):
        """A refusal of the whole run. Prints it; the process ends with status 3."""
        if self.run is None:
            _core.line_write("NOT ACTIVE", [name, str(refusal)], {})
            autoload.enforce(3)
        else:
            self.run.refuse(name, refusal.word, refusal.detail)
        raise SystemExit(3)

    # ---- the end of the process, and of its workers ------------------------------------------------------------------

    def _count_patched(self):
        if self._counted:
            return
        self._counted = True
        for lever in self.levers:
            for what, count in lever.still_patched_counts().items():
                self.run.still_patched(lever.index, what, count)

    def _follow_workers(self):
        """A worker of multiprocessing leaves by os._exit and runs no exit handler of Python or C: its own finalizers
        are the only ones. They are cleared when a worker starts, and the after-fork functions run after that."""
        util = sys.modules.get("multiprocessing.util")
        if util is None or self._follows_workers:
            return
        self._follows_workers = True
        util.register_after_fork(self, Kit._close_with_worker)
        if _is_worker():
            self._close_with_worker()

    def _close_with_worker(self):
        from multiprocessing import util

        util.Finalize(None, self._end_worker, exitpriority=-1)

    def _end_worker(self):
        error = sys.exc_info()[1]
        status = 0 if error is None else 1
        if isinstance(error, SystemExit):
            status = error.code if isinstance(error.code, int) else int(error.code is not None)
        verdict = self.close(status)
        if verdict != status:
            raise SystemExit(verdict)


def _manifest():
    """Path of the manifest, made absolute here: a child may run elsewhere."""
    text = os.environ.get("OPT_CORE_MANIFEST") or "opt_manifest.json"
    path = os.path.abspath(text) + ("/" if text.endswith("/") else "")
    os.environ["OPT_CORE_MANIFEST"] = path
    return path


def _is_child():
    parent = os.environ.get("OPT_CORE_PARENT", "")
    return _is_worker() or parent not in ("", str(os.getpid()))


def _is_worker():
    process = sys.modules.get("multiprocessing.process")
    return process is not None and process.parent_process() is not None


def _cuda_devices():
    """The architectures of the CUDA devices that the driver shows, as cells write them."""
    found = set()
    for ordinal in itertools.count():
        try:
            sm = _core.cuda_facts(ordinal)["sm"]
        except _core.Refused:  # one past the last
            return found
        found.add(f"sm_{sm}a" if sm == 90 else f"sm_{sm}")


class _Site:
    """One patched method: where it is, what it was."""

    __slots__ = ("owner", "method", "make", "wrapper", "stock", "inherited", "module", "qualname")

    def __init__(self, owner, method, make):
        self.method = method
        self.make = make
        self.module = owner.__module__
        self.qualname = owner.__qualname__
        self.put(owner)

    def put(self, owner):
        """Wraps the method of `owner`, which is another class than before when its module ran again."""
        self.owner = owner
        self.inherited = self.method not in vars(owner)
        self.stock = inspect.getattr_static(owner, self.method)
        kind = type(self.stock) if isinstance(self.stock, (staticmethod, classmethod)) else None
        function = self.stock.__func__ if kind else self.stock
        wrapper = functools.update_wrapper(self.make(function), function)
        self.wrapper = kind(wrapper) if kind else wrapper
        setattr(owner, self.method, self.wrapper)

    def current_owner(self):
        """The class that the engine's module holds under this name now."""
        found = sys.modules.get(self.module)
        for part in self.qualname.split("."):
            found = getattr(found, part, None)
        return found if isinstance(found, type) else self.owner

    def is_in_place(self, owner):
        """True when the wrapper is there, also beneath what others wrapped round it since."""
        found = inspect.getattr_static(owner, self.method, None)
        for _ in range(64):  # a chain of wrappers is short; a loop must not hang the exit
            if found is self.wrapper or found is None:
                break
            found = getattr(found, "__wrapped__", None)
        return found is self.wrapper

    def undo(self):
        if vars(self.owner).get(self.method) is not self.wrapper:
            return False  # somebody wrapped it again: taking ours out would take theirs
        if self.inherited:
            delattr(self.owner, self.method)
        else:
            setattr(self.owner, self.method, self.stock)
        return True


class Lever:
    """One switchable optimization of an activated kit, as its adapter sees it.

    name, family  words of the kit's table ("" where it binds no family)
    rows_off      rows of the family that MODEL_OPT_LEVERS_OFF switches off: every op takes them as `rows_off`
    mode          "exact", "fast" or "big": the tier word for the provider
    policy        "record" or "require"
    """

    def __init__(self, kit, index, name):
        self.name = name
        self.index = index
        self.mode = kit.mode
        self.family = kit.kit.family(name)
        self.policy = kit.kit.policy(name, kit.mode)
        self.row = ""
        self._kit = kit
        rows = dict.fromkeys(member["row"] for member in _core.members(self.family)) if self.family else ()
        self.rows_off = tuple(row for row in rows if self.row_off(row))
        self._run = kit.run
        self._call, self._claim, self._settle = kit.run.call, kit.run.claim, kit.run.settle
        self._hits = {}  # (cell_id, row, member) -> slot
        self._misses = {}  # (kind, word, detail) -> slot
        self._sites = []

    # ---- conditions ------------------------------------------------------------------------------------------------

    def refuse(self, word, detail=""):
        """Raises Refused: this lever cannot run here."""
        raise _core.Refused(word, detail)

    def pin(self, package, need):
        """Raises Refused pin:... unless the installed version is within `need` (">=1.2,<2")."""
        _core.gate_pin(package, self._kit.record_package(package), need)

    def row_off(self, row):
        """True when MODEL_OPT_LEVERS_OFF switches this row of the lever off."""
        return _core.levers_off_has(self._kit.levers_off, self.name, row)

    def expect_class(self, module, name, method, parameters=()):
        """The class module.name, whose Python method takes `parameters` first (after self).

        Raises Refused engine_layout:<what> when the engine looks otherwise: a class that moved, another signature, a
        compiled or exported object with no Python method to stand in for.
        """
        where = f"{module}.{name}"
        try:
            found = importlib.import_module(module)
        except ImportError as error:
            self.refuse("engine_layout", f"{where}: {' '.join(str(error).split())}")
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is None:
            self.refuse("engine_layout", f"{where} is not there")
        if not isinstance(found, type):
            self.refuse("engine_layout", f"{where} is a {type(found).__name__}, not a class")
        function = inspect.getattr_static(found, method, None)
        function = getattr(function, "__func__", function)
        if not inspect.isfunction(function):
            self.refuse("engine_layout", f"{where}.{method} is no Python method")
        have = [word for word in inspect.signature(function).parameters if word != "self"][: len(parameters)]
        if have != list(parameters):
            self.refuse("engine_layout", f"{where}.{method}({', '.join(have)}), not ({', '.join(parameters)})")
        return found

    def expect_cells(self, stack=""):
        """Raises Refused unless some measured cell of the lever's family serves this mode on this machine.

        stack  what exact proofs are keyed by (`opt_core.torch_glue.stack()`); looked at under `exact` only: a lever
               whose rows are proven on other stacks alone says `proof:<stack>` here, once, instead of at every call

        The CUDA devices are looked at only where the table has cells for some and none for this processor: the driver
        starts with the question, and a process that starts it must not fork.
        """
        device = "cpu-" + _core.cpu_isa()
        cells = [cell for cell in _core.cells(self.family) if cell["tier"] == self.mode]
        here = [cell for cell in cells if cell["device"] in (device, _core.device_below(device))]
        if not here and any(cell["device"].startswith("sm_") for cell in cells):
            found = _cuda_devices()
            here = [cell for cell in cells if cell["device"] in found]
        if not here:
            self.refuse("uncovered_cell", f"{self.family}:{self.mode}.{device}")
        if self.mode == "exact" and not any(stack in cell["stacks"] for cell in here):
            self.refuse("proof", stack)

    # ---- patching --------------------------------------------------------------------------------------------------

    def patch(self, owner, method, make):
        """Puts make(stock) in the place of owner.method, for every instance there is and will be.

        The wrapper keeps __name__, __qualname__, __doc__ and has the stock method as __wrapped__. When the class's
        module runs again (reload), the new class is patched; the record counts the method once.
        """
        for site in self._sites:
            if site.owner is owner and site.method == method:
                return
        site = _Site(owner, method, make)
        self._sites.append(site)
        autoload.watch(site.module, self._module_ran)

    def _module_ran(self, module):
        for site in self._sites:
            owner = site.current_owner()
            if site.module == module and owner is not site.owner and not site.is_in_place(owner):
                site.put(owner)

    def undo(self):
        """Gives every patched class its own method back. Returns how many."""
        restored = [site for site in self._sites if site.undo()]
        self._sites = [site for site in self._sites if site not in restored]
        return len(restored)

    def patched_counts(self):
        return self._counts(lambda site: 1)

    def still_patched_counts(self):
        return self._counts(lambda site: int(site.is_in_place(site.current_owner())))

    def _counts(self, count):
        counts = {}
        for site in self._sites:
            what = f"{site.qualname}.{site.method}"
            counts[what] = counts.get(what, 0) + count(site)
        return counts

    # ---- serving ---------------------------------------------------------------------------------------------------

    def serve(self, op, stock):
        """Runs op, or stock where op refuses, and keeps the books. Returns the result of the one that ran.

        uncovered_cell, proof and off_by_user leave the call stock. Any other refusal is a fallback by name; under
        `require` it ends the process with status 3. What else op raises is counted and passed on.
        """
        self._call(self.index)
        try:
            result, served = op()
            if served is None:  # the op only stands in a graph: what it will do there cannot be counted
                self.refuse("dialect", "a tracer watches the call")
        except _core.Refused as refusal:
            self._missed(refusal)
        except BaseException as error:
            self._claim(self.index)
            self._settle(self._miss_slot("fallback", "raised", type(error).__name__))
            raise
        else:
            self._claim(self.index)
            slot = self._hits.get(served)
            self._settle(self._hit_slot(served) if slot is None else slot)
            return result
        return stock()

    def stay_eager(self, _module=None):
        """Keeps `serve` out of torch.compile, now or once that is loaded.

        A graph runs Python when it is made, not when it is used, and would count nothing: a compiled engine breaks its
        graph round each call, which is served as ever.
        """
        disable = getattr(sys.modules.get("torch._dynamo"), "disable", None)
        if disable is not None:
            self.serve = disable(Lever.serve.__get__(self), reason="opt_core counts every call")
        autoload.watch("torch._dynamo", self.stay_eager)

    def _missed(self, refusal):
        word, detail = refusal.word, refusal.detail
        if word in _STOCK_WORDS:
            self._settle(self._miss_slot("stock", word, detail))
            return
        self._claim(self.index)
        self._settle(self._miss_slot("fallback", word, detail))
        if self.policy == "require":
            self._run.refuse(self.name, word, detail)
            raise SystemExit(3)

    def _hit_slot(self, served):
        cell, row, _member = served
        slot = self._hits[served] = self._run.slot(self.index, "hit", self.family or self.name, row, cell)
        return slot

    def _miss_slot(self, kind, word, detail):
        slot = self._misses.get((kind, word, detail))
        if slot is None:
            if len(self._misses) >= _DETAILS_MAX and detail != _MORE:
                return self._miss_slot(kind, word, _MORE)
            slot = self._misses[kind, word, detail] = self._open_miss_slot(kind, word, detail)
        return slot

    def _open_miss_slot(self, kind, word, detail):
        if kind == "stock":
            return self._run.slot(self.index, "stock", self.family or self.name, detail.removeprefix(self.family + ":") or "-", word)
        reason = f"{word}:{detail}" if detail else word
        return self._run.slot(self.index, "fallback", self.family or self.name, self.row or "-", reason)

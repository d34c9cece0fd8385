# SPDX-License-Identifier: Apache-2.0
"""One meta-path finder for all kits: runs a kit's `enable()` once, after a trigger module's body has run.

The finder never loads anything. It asks the other finders of `sys.meta_path` and hangs a step behind the body of the
module that they found: on the loader instance where that belongs to one module alone, else by a small proxy. Both are
taken away before the body runs, so that `module.__loader__` and `module.__spec__.loader` are what they are without it.

Start-up parses nothing and loads no extension: it puts a finder in place and waits for a trigger.
Threads: every function may be called from any thread; no lock is ever held while foreign code runs.
"""

import _thread
import atexit
import os
import sys

__all__ = ["enforce", "finder_installed", "register", "registration", "registrations", "watch"]

_LINE_MAX = 4096  # OC_LINE_MAX of the record grammar

_entries = {}  # (variable, target) -> Registration, in order of registration
_watched = {}  # module name -> callables, run with the name after each run of its body
_running = set()  # modules whose body runs now
_asking = set()  # (thread, module) for which the other finders are being asked
_exit_status = 0  # status that the process is to end with when no run of the core says so


class Registration:
    """A kit that waits for one of its triggers. `state`: waiting, enabling, enabled, refused, failed."""

    __slots__ = ("variable", "engine", "triggers", "target", "state", "late", "_once")

    def __init__(self, variable, triggers, target):
        self.variable = variable
        self.engine = (variable[:-4] if variable.endswith("_OPT") else variable).lower()
        self.triggers = tuple(triggers)
        self.target = target
        self.state = "waiting"
        self.late = False
        self._once = _thread.allocate_lock()

    def body_ran(self, _name):
        self.enable(late=False)

    def enable(self, late):
        """Runs the target, once a process. A second thread does not wait: it may hold the import lock of a module that
        the first one needs."""
        if not self._once.acquire(False):
            return
        self.state = "enabling"
        self.late = late
        try:
            _resolve(self.target)()
            self.state = "enabled"
        except SystemExit as stop:
            self.state = "refused"
            if stop.code != 3:
                not_active(self.engine, f"hook:{self.target} left with status {stop.code}")
            _stop()
        except Exception as error:
            self.state = "failed"
            not_active(self.engine, _reason(error))
            _stop()
        finally:
            if self.state == "enabling":
                self.state = "failed"

    def give_up(self):
        """Takes the one chance to enable away, at the end of the process. False when somebody has it already."""
        return self._once.acquire(False)


def register(kit_spec):
    """Registers a kit: (variable, triggers, "package.module:callable"). The same kit twice is one registration.

    A trigger that is already imported activates at once, which the record shows as `late=1`.
    """
    variable, triggers, target = kit_spec
    fresh = Registration(variable, triggers, target)
    entry = _entries.setdefault((variable, target), fresh)
    if entry is not fresh:
        return entry
    for name in entry.triggers:
        watch(name, entry.body_ran)
    _install()
    if any(_is_loaded(name) for name in entry.triggers):
        entry.enable(late=True)
    return entry


def watch(name, callback):
    """Calls callback(name) after every later run of the body of module `name` (import, reload)."""
    callbacks = _watched.setdefault(name, [])
    if callback not in callbacks:
        callbacks.append(callback)
    _install()


def registrations():
    return list(_entries.values())


def registration(variable):
    """The first registration of a kit by its variable, or None (a kit that was enabled by hand)."""
    return next((entry for entry in registrations() if entry.variable == variable), None)


def finder_installed():
    return any(finder is _finder for finder in sys.meta_path)


def enforce(status):
    """Makes the process end with `status` even where SystemExit is swallowed or raised in a thread.

    For refusals without a run; a run has `_core.exit_status_guard`, which knows the process's own status.
    """
    global _exit_status
    _exit_status = _exit_status or status
    _install()


def not_active(name, reason):
    """Prints `[opt_core] NOT ACTIVE: <name>: <reason>` by one write, with the core's printer where that loads."""
    reason = reason[: _LINE_MAX // 8]
    try:
        from . import _core

        _core.line_write("NOT ACTIVE", [name, reason], {})
    except Exception:
        text = f"[opt_core] NOT ACTIVE: {_escaped(name, keep='')}: {_escaped(reason, keep=' ')}\n"
        try:
            os.write(2, text.encode("ascii"))
        except OSError:
            pass  # standard error is closed: the exit status still says it


def _escaped(text, keep):
    raw = text.encode("utf-8", "surrogateescape")
    return "".join(chr(b) if (0x21 <= b <= 0x7E and b != 0x25) or chr(b) in keep else f"%{b:02X}" for b in raw)


def _reason(error):
    """Text of a refusal, or `hook:<type>: <message> (<file>:<line>)` of the innermost frame for anything else."""
    core = sys.modules.get(__package__ + "._core")
    if core is not None and isinstance(error, core.Refused):
        return str(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = f" ({os.path.basename(trace.tb_frame.f_code.co_filename)}:{trace.tb_lineno})" if trace is not None else ""
    message = " ".join(str(error).split())
    return f"hook:{type(error).__name__}: {message}{place}"


def _stop():
    enforce(3)
    raise SystemExit(3) from None


def _resolve(target):
    import importlib

    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)


def _is_loaded(name):
    """True when the module's body has run to its end. Asks a lazy module nothing: that would load it."""
    module = sys.modules.get(name)
    if module is None or name in _running or type(module).__name__ == "_LazyModule":
        return False
    return not getattr(getattr(module, "__spec__", None), "_initializing", False)


# ---- the finder ------------------------------------------------------------------------------------------------------


class _Finder:
    def find_spec(self, name, path=None, target=None):
        if name not in _watched:
            self._catch_up()
            return None
        key = (_thread.get_ident(), name)
        if key in _asking:  # another delegating finder asks back
            return None
        _asking.add(key)
        try:
            spec = _ask_others(name, path, target)
        finally:
            _asking.discard(key)
        if spec is not None:
            _follow(spec, name)
        return spec

    def _catch_up(self):
        """Triggers that a finder in front of this one has loaded meanwhile. Moves back to the front for the next."""
        if sys.meta_path and sys.meta_path[0] is not self and finder_installed():
            # import_ iterates by index: the finders before this one shift by one, those after it stay where they are
            # and one assignment, so that no other thread ever meets the list without this finder
            sys.meta_path[:] = [self, *(finder for finder in sys.meta_path if finder is not self)]
        for entry in registrations():
            if entry.state == "waiting" and any(_is_loaded(name) for name in entry.triggers):
                entry.enable(late=True)


_finder = _Finder()


def _ask_others(name, path, target):
    """The first answer of the other finders. When one raises: None, and the import system, which asks next, meets the
    same exception at the same place as without this finder."""
    for finder in list(sys.meta_path):
        find_spec = None if finder is _finder else getattr(finder, "find_spec", None)
        if find_spec is None:
            continue
        try:
            spec = find_spec(name, path, target)
        except Exception:
            return None
        if spec is not None:
            return spec
    return None


def _follow(spec, name):
    """Hangs the step behind the body onto the spec's loader."""
    loader = spec.loader
    if loader is None:
        if spec.submodule_search_locations is not None:
            spec.loader = _namespace_loader(spec, name)
    elif isinstance(loader, _Proxy) or isinstance(getattr(loader, "__dict__", {}).get("exec_module"), _Body):
        pass
    elif not hasattr(loader, "exec_module"):
        spec.loader = _LegacyProxy(loader, spec, name)
    elif not (_serves_one_module(loader, name) and _Body.put(loader, name)):
        spec.loader = _ExecProxy(loader, spec, name)


def _serves_one_module(loader, name):
    return not isinstance(loader, type) and not hasattr(loader, "find_spec") and getattr(loader, "name", None) == name


def _body_ran(name):
    for callback in tuple(_watched.get(name, ())):
        callback(name)


class _Body:
    """Shadows `exec_module` on one loader instance until the body runs."""

    __slots__ = ("loader", "name", "before")

    @classmethod
    def put(cls, loader, name):
        body = cls()
        body.loader = loader
        body.name = name
        body.before = getattr(loader, "__dict__", {}).get("exec_module")
        try:
            loader.exec_module = body
        except (AttributeError, TypeError):
            return False
        return True

    def take_away(self):
        shadows = self.loader.__dict__
        if shadows.get("exec_module") is self:
            if self.before is None:
                del shadows["exec_module"]
            else:
                shadows["exec_module"] = self.before

    def __call__(self, module):
        self.take_away()
        _running.add(self.name)
        try:
            self.loader.exec_module(module)
        finally:
            _running.discard(self.name)
        _body_ran(self.name)

    # File loaders compare by their attributes: two specs of one module stay equal, as without the hook.
    def __eq__(self, other):
        return isinstance(other, _Body) and other.name == self.name

    def __hash__(self):
        return hash(self.name)


class _NamespaceBody(_Body):
    __slots__ = ()

    def __call__(self, module):
        self.take_away()
        module.__file__ = None  # as the import system sets it for a namespace package
        _body_ran(self.name)


def _namespace_loader(spec, name):
    import importlib.machinery

    kind = getattr(importlib.machinery, "NamespaceLoader", None)
    if kind is None:  # Python 3.10
        kind = sys.modules["importlib._bootstrap_external"]._NamespaceLoader
    loader = kind.__new__(kind)  # no finder of ours to recompute the path with: the spec's own path does that
    loader._path = spec.submodule_search_locations
    _NamespaceBody.put(loader, name)
    return loader


class _Proxy:
    """Stands before a loader that serves several modules, or that takes no attributes."""

    def __init__(self, loader, spec, name):
        self._loader = loader
        self._spec = spec
        self._name = name

    def __getattr__(self, attribute):
        if attribute.startswith("__") or attribute in ("_loader", "_spec", "_name"):
            raise AttributeError(attribute)  # copying and pickling ask before __init__ has run
        return getattr(self._loader, attribute)

    def _step_aside(self, module=None):
        for spec in (self._spec, getattr(module, "__spec__", None)):
            if spec is not None and spec.loader is self:
                spec.loader = self._loader
        if module is not None and getattr(module, "__loader__", None) is self:
            module.__loader__ = self._loader


class _ExecProxy(_Proxy):
    def exec_module(self, module):
        self._step_aside(module)
        _running.add(self._name)
        try:
            self._loader.exec_module(module)
        finally:
            _running.discard(self._name)
        _body_ran(self._name)


class _LegacyProxy(_Proxy):
    def load_module(self, name):
        self._step_aside()
        module = self._loader.load_module(name)
        _body_ran(self._name)
        return module


# ---- start and end of the process ------------------------------------------------------------------------------------

_exit_registered = False


def _install():
    global _exit_registered
    if not finder_installed():
        sys.meta_path.insert(0, _finder)
    if not _exit_registered:
        _exit_registered = True
        atexit.register(_at_exit)  # registered at start-up, so it runs after everybody else's


def _at_exit():
    """Says which kit was asked for and passed by, and enforces the status of a refusal."""
    main = getattr(getattr(sys.modules.get("__main__"), "__spec__", None), "name", None)
    for entry in registrations():
        if entry.state != "waiting" or not entry.give_up():
            continue
        seen = next((name for name in entry.triggers if _is_loaded(name)), None)
        if seen is not None:
            not_active(entry.engine, f"hook:removed, {seen} was imported past it")
            enforce(3)
        elif main in entry.triggers:
            not_active(entry.engine, f"hook:{main} ran as the main program, not as a module")
            enforce(3)
    if _exit_status and getattr(sys, "last_type", None) is None:  # an uncaught exception has a status of its own
        _end(_exit_status)


def _end(status):
    kit = sys.modules.get(__package__ + ".kit")
    if kit is not None:
        kit.close_all(status)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            pass  # closed or broken stream: nothing left to tell it
    os._exit(status)

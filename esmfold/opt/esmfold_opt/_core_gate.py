# SPDX-License-Identifier: Apache-2.0
"""The kit's gate to the core: is there an importable opt_core, new enough, from the place that the kit pins?

Every kit carries this file byte for byte. It needs the standard library only, because it speaks when there is no core.

The pin is `[tool.opt_core]` (path, version) of the kit's pyproject.toml where the kit runs from its source tree, else
`_core_pin.json`, which the build backend wrote into the wheel. Refusals, printed as one line, exit status 3:
  core_missing                 nothing importable, or its extension does not load (the detail says why)
  core_too_old:<have><<need>   below the floor
  core_wrong_path:<dir>        neither the pinned path nor an installed distribution `opt-core`
"""

import os
import sys

_target = None  # what enable() runs once the core is known to be good: "package.module:callable"
_engine = __package__.rpartition("_opt")[0] or __package__
_OFF = ("", "0", "off")


class Unmet(Exception):
    """str(error) is the refusal: `word` or `word:detail`."""


def boot(variable, triggers, target):
    """Called at interpreter start. Does nothing unless the variable selects a mode.

    The core is not judged here: an interpreter that never imports a trigger must live whatever the core is like.
    """
    global _target, _engine
    if os.environ.get(variable, "").strip() in _OFF or os.environ.get("OPT_CORE_AUTOLOAD", "").strip() == "0":
        return
    _target = target
    _engine = variable.rpartition("_OPT")[0].lower() or variable.lower()
    try:
        from opt_core.autoload import register
    except Exception:
        _refuse_at(triggers)
    else:
        register((variable, tuple(triggers), __name__ + ":enable"))


def enable():
    """What the import hook runs at the trigger: the gate first, then the kit."""
    import importlib

    require()
    module, _, name = _target.partition(":")
    return getattr(importlib.import_module(module), name)()


def require():
    """Returns (version, directory) of the core, or prints the refusal and ends with status 3."""
    try:
        return check()
    except Unmet as unmet:
        _refuse(str(unmet))


def check():
    """Returns (version, directory) of the core that `import opt_core` gives. Raises Unmet."""
    import importlib.util

    pin = _pin()
    module = sys.modules.get("opt_core")
    spec = getattr(module, "__spec__", None) or importlib.util.find_spec("opt_core")
    if spec is None:
        raise Unmet("core_missing")
    if spec.origin is None:  # a folder without __init__.py
        raise Unmet("core_wrong_path:" + os.path.abspath(next(iter(spec.submodule_search_locations or ()), "")))
    directory = os.path.dirname(os.path.abspath(spec.origin))
    if not (_is_within(directory, pin.get("path")) or _is_installed(directory)):
        raise Unmet("core_wrong_path:" + directory)
    try:
        have = importlib.import_module("opt_core").__version__
    except Exception as error:
        raise Unmet(f"core_missing:{type(error).__name__}: {' '.join(str(error).split())}") from None
    _check_version(have, pin.get("version", ""))
    return have, directory


def _pin():
    here = os.path.dirname(os.path.abspath(__file__))
    if os.path.exists(os.path.join(here, "_core_pin.json")):
        import json

        with open(os.path.join(here, "_core_pin.json"), encoding="utf-8") as file:
            return json.load(file)
    root = os.path.dirname(here)
    try:
        with open(os.path.join(root, "pyproject.toml"), "rb") as file:
            pin = _toml().load(file)["tool"]["opt_core"]
    except (OSError, KeyError):
        raise Unmet("core_missing:the kit carries no pin of the core") from None
    path = pin.get("path")
    return {"path": path and os.path.join(root, path), "version": pin.get("version", "")}


def _toml():
    try:
        import tomllib
    except ImportError:  # Python 3.10
        try:
            from pip._vendor import tomli as tomllib
        except ImportError:
            import tomli as tomllib
    return tomllib


def _is_within(directory, root):
    if not root:
        return False
    root = os.path.realpath(root)
    return os.path.commonpath([root, os.path.realpath(directory)]) == root


def _is_installed(directory):
    """True when the directory belongs to a distribution `opt-core`, plain or editable."""
    import importlib.metadata
    import json
    import urllib.parse
    import urllib.request

    for found in importlib.metadata.distributions(name="opt-core"):
        if os.path.realpath(str(found.locate_file("opt_core"))) == os.path.realpath(directory):
            return True
        url = json.loads(found.read_text("direct_url.json") or "{}")
        if url.get("dir_info", {}).get("editable"):
            path = urllib.request.url2pathname(urllib.parse.urlparse(url["url"]).path)
            if _is_within(directory, path):
                return True
    return False


def _check_version(have, need):
    for bound in filter(None, (part.strip() for part in need.split(","))):
        operator = bound.rstrip("0123456789.").strip()
        limit = bound[len(operator) :].strip()
        a, b = _numbers(have), _numbers(limit)
        holds = {">=": a >= b, ">": a > b, "<=": a <= b, "<": a < b, "==": a == b, "!=": a != b}
        if not holds.get(operator, False):
            word = "core_too_old:{0}<{1}" if operator in (">=", ">") else "pin:opt_core{0}!{2}"
            raise Unmet(word.format(have, limit, need))


def _numbers(version):
    numbers = []
    for part in version.split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        numbers.append(int(digits))
        if digits != part:
            break
    return tuple(numbers + [0] * (6 - len(numbers)))


# ---- refusing without a core -----------------------------------------------------------------------------------------


def _refuse(reason):
    """One line on standard error, then the end with status 3, also where SystemExit is swallowed."""
    line = f"[opt_core] NOT ACTIVE: {_engine}: {_escaped(reason)[:2048]}\n"
    try:
        os.write(2, line.encode("ascii"))
    except OSError:
        pass  # standard error is closed: the status still says it
    try:
        from opt_core.autoload import enforce

        enforce(3)
    except Exception:
        import atexit

        atexit.register(_end)
    raise SystemExit(3)


def _end():
    if getattr(sys, "last_type", None) is None:  # an uncaught exception has a status of its own
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:
                pass
        os._exit(3)


def _escaped(text):
    raw = text.encode("utf-8", "surrogateescape")
    return "".join(chr(b) if 0x20 <= b <= 0x7E and b != 0x25 else f"%{b:02X}" for b in raw)


def _refuse_at(triggers):
    """Without a core: refuses when a trigger's body is about to run. Looking for its spec changes nothing."""
    if any(name in sys.modules for name in triggers):
        require()
    sys.meta_path.insert(0, _Finder(triggers))


class _Finder:
    def __init__(self, triggers):
        self._triggers = frozenset(triggers)
        self._asking = False

    def find_spec(self, name, path=None, target=None):
        if name not in self._triggers or self._asking:
            return None
        self._asking = True
        try:
            spec = _ask_others(self, name, path, target)
        finally:
            self._asking = False
        if spec is not None:
            spec.loader = _Refusing(spec.loader)
        return spec


def _ask_others(asking, name, path, target):
    for finder in list(sys.meta_path):
        find_spec = None if finder is asking else getattr(finder, "find_spec", None)
        try:
            spec = find_spec(name, path, target) if find_spec else None
        except Exception:
            return None  # the import system asks next and meets the same exception
        if spec is not None:
            return spec
    return None


class _Refusing:
    def __init__(self, loader):
        self._loader = loader

    def __getattr__(self, name):
        if name.startswith("__") or name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        require()
        # A core that appeared between start and trigger (a path set by the program): the hook was not in place.
        _refuse("hook:the core was not importable when the interpreter started")

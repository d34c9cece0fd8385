# SPDX-License-Identifier: Apache-2.0
"""What this interpreter says about the hook and the kits: `python -m opt_core.doctor [--json]`.

Standard library only; imports no kit and no engine. `opt_core doctor` runs it and prints it with the machine's part.
"""

import importlib.metadata
import importlib.util
import json
import os
import platform
import site
import sys

PACKAGES = ("opt_core", "torch", "jax", "jaxlib", "triton", "numpy")
MODES = ("", "0", "off", "exact", "fast", "big")
FAR = 3  # edits from which on two variables are no typo of one another


def site_dirs():
    """Folders whose .pth files this interpreter reads."""
    dirs = list(site.getsitepackages()) if hasattr(site, "getsitepackages") else []
    if site.ENABLE_USER_SITE:
        dirs.append(site.getusersitepackages())
    return list(dict.fromkeys(os.path.realpath(path) for path in dirs if os.path.isdir(path)))


def kits():
    """The installed kits, one dict each: engine, version, variable, value, package, file."""
    found = {}
    for entry in importlib.metadata.entry_points(group="opt_core.kits"):
        if entry.name in found:  # an editable install is seen from its source folder too
            continue
        package = entry.value.partition(":")[0].partition(".")[0]
        variable = _variable(entry.name, package)
        distribution = getattr(entry, "dist", None)
        found[entry.name] = {
            "engine": entry.name, "version": distribution.version if distribution else "", "variable": variable,
            "value": os.environ.get(variable, ""), "package": package, "file": start_file(package, variable) or "none"}
    return sorted(found.values(), key=lambda kit: kit["engine"])


def _variable(engine, package):
    """From the kit's table; a kit that keeps it elsewhere follows the rule <ENGINE>_OPT."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        spec = None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        try:
            with open(os.path.join(folder, "kit.json"), encoding="utf-8") as file:
                variable = json.load(file).get("variable")
        except (OSError, ValueError, AttributeError):
            continue
        if isinstance(variable, str):
            return variable
    return engine.upper().replace("-", "_") + "_OPT"


def start_file(package, variable):
    """The file that starts the kit in this interpreter, as it is read here: `.start` from Python 3.15 on, else `.pth`."""
    endings = (".start", ".pth") if sys.version_info >= (3, 15) else (".pth",)
    for folder in site_dirs():
        for ending in endings:
            for name in _listed(folder, ending):
                if _mentions(os.path.join(folder, name), package, variable, ending):
                    return os.path.join(folder, name)
    return None


def _listed(folder, ending):
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(ending))
    except OSError:
        return []


def _mentions(path, package, variable, ending):
    """True when a line of the file runs code of the package; a plain path line runs nothing."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = file.read(65536).splitlines()
    except OSError:
        return False
    if ending == ".start":
        return any(line.strip().startswith((package + ".", package + ":")) for line in lines)
    return any(line.startswith(("import ", "import\t")) and (package in line or variable in line) for line in lines)


def hook_problems(found):
    """Why a kit would not start here, in words."""
    problems = []
    flags = sys.flags
    if os.environ.get("OPT_CORE_AUTOLOAD") == "0":
        problems.append("hook:OPT_CORE_AUTOLOAD=0 switches the hook off")
    if flags.no_site:
        problems.append("hook:-S: this interpreter reads no .pth; use `python -m opt_core run -- CMD`")
    if importlib.util.find_spec("opt_core.autoload") is None:
        problems.append("hook:opt_core.autoload cannot be imported")
    for kit in found:
        if kit["file"] == "none" and not flags.no_site:
            problems.append(f"hook:{kit['engine']}: no .pth or .start of {kit['package']} in a site folder; "
                            "use `python -m opt_core run -- CMD`")
    return problems


def distance(a, b):
    """Edits (insert, delete, replace, exchange of neighbours) that turn a into b."""
    rows = [list(range(len(b) + 1))]
    for i, x in enumerate(a, 1):
        row = [i]
        for j, y in enumerate(b, 1):
            best = min(row[-1] + 1, rows[-1][j] + 1, rows[-1][j - 1] + (x != y))
            if i > 1 and j > 1 and x == b[j - 2] and a[i - 2] == y:
                best = min(best, rows[-2][j - 2] + 1)
            row.append(best)
        rows.append(row)
    return rows[-1][-1]


def typos(found, environment):
    """Variables ending like a kit's that are near to one and are none, and values that are no mode."""
    known = [kit["variable"] for kit in found] + ["MODEL_OPT_LEVERS_OFF"]
    problems = []
    for name in sorted(environment):
        if name in known or not name.upper().endswith(("_OPT", "_OPT_LEVERS_OFF")) or len(name) > 80:
            continue
        near = min(known, key=lambda word: distance(name.upper(), word))
        if distance(name.upper(), near) < FAR:
            problems.append(f"environment:{name} is no variable of an installed kit; meant {near}?")
    for kit in found:
        if kit["value"].strip() not in MODES:
            problems.append(f"mode:unknown:{kit['variable']}={kit['value'].strip()[:40]} (accepted: off exact fast big)")
    return problems


def packages():
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def report():
    found = kits()
    problems = hook_problems(found) + typos(found, os.environ)
    hook = "runs in this interpreter" if found else "no kit is installed that would need it"
    if any(text.startswith("hook:") for text in problems):
        hook = "does not run here"
    note = "`python -S` starts no hook; `python -I` reads the .pth but not the PYTHONPATH that `opt_core run` sets"
    return {"schema": 1, "executable": sys.executable, "version": platform.python_version(), "prefix": sys.prefix,
            "hook": hook, "note": note, "site_dirs": site_dirs(), "kits": found, "packages": packages(), "problems": problems}


def main(arguments):
    if arguments not in ([], ["--json"]):
        sys.stderr.write("usage: python -m opt_core.doctor [--json]\n")
        return 2
    facts = report()
    if arguments:
        print(json.dumps(facts, indent=2))
    else:
        for key, value in facts.items():
            print(f"{key:12s} {value}")
    return 1 if facts["problems"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

# SPDX-License-Identifier: Apache-2.0
"""Build backend of a kit (PEP 517 and PEP 660): standard library only, no build requirement, no network.

Every kit carries this file byte for byte beside its pyproject.toml. The package is the one folder that holds
`_core_gate.py`. `<stem>.pth` and `<stem>.start` beside pyproject.toml go to the top of site-packages, for normal and
editable installs alike. `_core_pin.json` carries the version floor of `[tool.opt_core]` into the wheel.
The same sources give the same bytes: names are sorted, dates are fixed.
"""

import base64
import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import tarfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent
_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip file can hold


# ---- the hooks -------------------------------------------------------------------------------------------------------


def get_requires_for_build_wheel(config_settings=None):
    try:
        _toml()
    except ImportError:
        return ["tomli>=1.1"]  # Python 3.10 in an isolated build
    return []


get_requires_for_build_editable = get_requires_for_build_wheel
get_requires_for_build_sdist = get_requires_for_build_wheel


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    kit = _Kit()
    files = {f"{kit.package}/{name}": data for name, data in kit.package_files().items()}
    files[f"{kit.package}/_core_pin.json"] = kit.pin()
    return _write_wheel(wheel_directory, kit, files)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    kit = _Kit()
    # `site` reads .pth files in the order of their names: the path has to come before the kit's own line.
    return _write_wheel(wheel_directory, kit, {f"__editable__.{kit.stem}.pth": f"{ROOT}\n".encode()})


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    kit = _Kit()
    for name, data in kit.dist_info().items():
        path = pathlib.Path(metadata_directory, kit.dist_info_name, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return kit.dist_info_name


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


def build_sdist(sdist_directory, config_settings=None):
    kit = _Kit()
    top = f"{kit.file_name}-{kit.version}"
    files = {name: (ROOT / name).read_bytes() for name in kit.source_files()}
    files["PKG-INFO"] = kit.metadata()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(files):
            entry = tarfile.TarInfo(f"{top}/{name}")
            entry.size = len(files[name])
            entry.mode = 0o644
            archive.addfile(entry, io.BytesIO(files[name]))
    name = f"{top}.tar.gz"
    with open(os.path.join(sdist_directory, name), "wb") as file:
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as stream:
            stream.write(packed.getvalue())
    return name


# ---- the kit's description -------------------------------------------------------------------------------------------


def _toml():
    try:
        import tomllib
    except ImportError:  # Python 3.10
        try:
            from pip._vendor import tomli as tomllib
        except ImportError:
            import tomli as tomllib
    return tomllib


class _Kit:
    def __init__(self):
        table = _toml().loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        self.project = table["project"]
        self.core = table["tool"]["opt_core"]
        self.name = self.project["name"]
        self.version = self.project["version"]
        self.file_name = re.sub(r"[-_.]+", "_", self.name).lower()
        self.dist_info_name = f"{self.file_name}-{self.version}.dist-info"
        self.package = _only("folder with _core_gate.py", (p.parent.name for p in ROOT.glob("*/_core_gate.py")))
        self.stem = _only(".pth file", (p.stem for p in ROOT.glob("*.pth")))
        if not (ROOT / f"{self.stem}.start").is_file():
            raise ValueError(f"{self.stem}.start is missing beside {self.stem}.pth: the two share one base name")
        if not self.stem[0].islower():
            raise ValueError(f"{self.stem}.pth would be read before the path files of editable installs")

    def package_files(self):
        base = ROOT / self.package
        return {p.relative_to(base).as_posix(): p.read_bytes() for p in _files(base)}

    def source_files(self):
        names = ["pyproject.toml", "_build_backend.py", f"{self.stem}.pth", f"{self.stem}.start"]
        names += [name for name in [self.project.get("readme"), "LICENSE"] if name and (ROOT / name).is_file()]
        return names + [p.relative_to(ROOT).as_posix() for p in _files(ROOT / self.package)]

    def pin(self):
        return (json.dumps({"version": self.core.get("version", "")}) + "\n").encode()

    def dist_info(self):
        files = {"METADATA": self.metadata(), "WHEEL": _WHEEL, "entry_points.txt": self.entry_points()}
        if (ROOT / "LICENSE").is_file():
            files["licenses/LICENSE"] = (ROOT / "LICENSE").read_bytes()
        return files

    def metadata(self):
        project = self.project
        lines = ["Metadata-Version: 2.4", f"Name: {self.name}", f"Version: {self.version}"]
        lines += [f"Summary: {project['description']}"] if "description" in project else []
        lines += [f"License-Expression: {project['license']}"] if "license" in project else []
        lines += ["License-File: LICENSE"] if (ROOT / "LICENSE").is_file() else []
        lines += [f"Requires-Python: {project['requires-python']}"] if "requires-python" in project else []
        lines += [f"Requires-Dist: {need}" for need in project.get("dependencies", [])]
        for extra, needs in sorted(project.get("optional-dependencies", {}).items()):
            lines.append(f"Provides-Extra: {extra}")
            lines += [f"Requires-Dist: {_with_extra(need, extra)}" for need in needs]
        readme = project.get("readme")
        if readme:
            lines += [f"Description-Content-Type: {'text/markdown' if readme.endswith('.md') else 'text/plain'}", ""]
            lines.append((ROOT / readme).read_text(encoding="utf-8"))
        return ("\n".join(lines) + "\n").encode()

    def entry_points(self):
        groups = dict(self.project.get("entry-points", {}))
        groups["console_scripts"] = self.project.get("scripts", {})
        blocks = []
        for group, entries in sorted(groups.items()):
            if entries:
                blocks.append(
                    f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in sorted(entries.items()))
                )
        return "\n".join(blocks).encode()


def _with_extra(need, extra):
    requirement, _, marker = (part.strip() for part in need.partition(";"))
    return f'{requirement}; ({marker}) and extra == "{extra}"' if marker else f'{requirement}; extra == "{extra}"'


def _only(what, found):
    found = sorted(found)
    if len(found) != 1:
        raise ValueError(f"a kit has exactly one {what}, {ROOT} has {len(found)}: {' '.join(found)}")
    return found[0]


def _files(base):
    kept = (p for p in base.rglob("*") if p.is_file() and "__pycache__" not in p.parts and p.suffix != ".pyc")
    return sorted(kept, key=lambda p: p.relative_to(base).as_posix())


# ---- the wheel -------------------------------------------------------------------------------------------------------

_WHEEL = b"Wheel-Version: 1.0\nGenerator: opt_core-kit\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def _write_wheel(directory, kit, files):
    for suffix in ("pth", "start"):
        files[f"{kit.stem}.{suffix}"] = (ROOT / f"{kit.stem}.{suffix}").read_bytes()
    info = {f"{kit.dist_info_name}/{name}": data for name, data in kit.dist_info().items()}
    entries = sorted(files.items()) + sorted(info.items())  # metadata last, as the wheel format asks
    record = "".join(f"{name},sha256={_digest(data)},{len(data)}\n" for name, data in entries)
    record_name = f"{kit.dist_info_name}/RECORD"
    entries.append((record_name, f"{record}{record_name},,\n".encode()))
    name = f"{kit.file_name}-{kit.version}-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as archive:
        for path, data in entries:
            entry = zipfile.ZipInfo(path, _DATE)
            entry.external_attr = 0o100644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return name


def _digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()

# SPDX-License-Identifier: Apache-2.0
"""Builds the cubins of the CUDA members and keeps their digests.

Sources   opt_core/kernels/<family>/members/<module>.cu; a line near the top names the architectures:
          `// cubin: sm_80 sm_90a`. Files that it includes by "name" count as its source.
Binaries  <family>.<module>.<arch>.cubin, never committed. The key of a binary is `<module>.<arch>`.
Committed PREBUILT.json beside the family's sources: file, SHA-256 and size by key, what src/activation/prebuilt.c reads;
          PREBUILT_RECORD.json: compiler, flags, digests of the sources, registers and shared memory of each kernel.
Compiler  nvcc 13.0.88, and no other: the bytes are compared. Looked for on PATH, in CUDA_HOME, in /usr/local/cuda and
          among the Python packages (pip install nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88
          nvidia-cuda-runtime==13.0.96: all four, a newer part makes ptxas refuse). nvcc needs a host compiler.

A build fails on a spill, a stack frame, an ignored setmaxnreg or any other performance warning of ptxas, any compiler
warning, a kernel without __launch_bounds__ or extern "C", and a floating-point atomic. The same sources give the same
bytes in any directory: nvcc derives the names of file-local symbols from the absolute path, so the PTX is made first
and that part of the names is replaced before ptxas sees it.

Exit status: 0 done; 1 a kernel or a digest is not as demanded; 2 wrong usage; 3 no fitting compiler.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

CORE = Path(__file__).resolve().parent
KERNELS = CORE / "opt_core/kernels"
VERSION = "13.0.88"
# Part of what a cubin is made from: a change here changes digests. No -lineinfo: it would embed paths. The host compiler only
# preprocesses, and leaves no trace in device code: a newer one than nvcc knows may do that.
FLAGS = ("-O3", "-std=c++17", "-allow-unsupported-compiler")
PTXAS_FLAGS = ("-Xptxas", "-v,-warn-spills")
RULES = 3  # raise when this file judges or rewrites differently: results in the cache are then made again
CACHE_KEEPS = 6  # builds of one binary
INDEX, RECORD = "PREBUILT.json", "PREBUILT_RECORD.json"
# What changes nvcc's answer from outside.
FOREIGN = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")


class Failed(Exception):
    """One line a person can act on; `status` ends the program."""

    def __init__(self, text: str, status: int = 1):
        super().__init__(text)
        self.status = status


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# ---- the compiler ----------------------------------------------------------------------------------------------------


def candidates():
    yield shutil.which("nvcc")
    if os.environ.get("CUDA_HOME"):
        yield os.path.join(os.environ["CUDA_HOME"], "bin/nvcc")
    yield "/usr/local/cuda/bin/nvcc"
    yield "/usr/local/cuda-13.0/bin/nvcc"
    for folder in filter(None, sys.path):
        yield os.path.join(folder, "nvidia/cu13/bin/nvcc")


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in FOREIGN} | {"LC_ALL": "C"}


def version_of(nvcc: str) -> str:
    try:
        done = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=60, env=clean_environment())
    except (OSError, subprocess.TimeoutExpired) as failure:
        return str(failure)
    found = re.search(r"release [\d.]+, V([\d.]+)", done.stdout)
    return found.group(1) if found else "no version"


def find_nvcc() -> str:
    seen = {}
    for path in candidates():
        if path and os.access(path, os.X_OK) and path not in seen:
            seen[path] = version_of(path)
            if seen[path] == VERSION:
                return path
    found = ", ".join(f"{path} is {version}" for path, version in seen.items()) or "none found"
    raise Failed(f"no_nvcc: nvcc {VERSION} is needed ({found}); PATH, CUDA_HOME, /usr/local/cuda and the Python packages"
                 " were searched", 3)


# ---- sources ---------------------------------------------------------------------------------------------------------


@dataclass
class Binary:
    family: str
    source: Path
    arch: str
    sources: dict[str, bytes]
    kernels: dict[str, dict[str, int]] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    path: Path | None = None  # the bytes, in the cache
    sha256: str = ""
    bytes: int = 0
    cached: bool = False

    @property
    def key(self) -> str:
        return f"{self.source.stem}.{self.arch}"

    @property
    def file(self) -> str:
        return f"{self.family}.{self.key}.cubin"

    @property
    def name(self) -> str:
        return f"{self.family}@{self.key}"

    def digest(self, compiler: str, defines: list[str]) -> str:
        """Over everything that the bytes depend on."""
        parts = [str(RULES), compiler, *FLAGS, *PTXAS_FLAGS, *defines, self.file]
        parts += [f"{name}:{sha256(data)}" for name, data in sorted(self.sources.items())]
        return sha256("\n".join(parts).encode())


def architectures(source: Path) -> list[str]:
    head = source.read_text().splitlines()[:20]
    lines = [line for line in head if line.startswith("// cubin:")]
    if len(lines) != 1:
        raise Failed(f"{source}: {len(lines)} lines `// cubin: sm_80 sm_90a` among the first 20, needs one")
    words = lines[0].removeprefix("// cubin:").split()
    wrong = [word for word in words if not re.fullmatch(r"sm_\d{2,3}[af]?", word)]
    if wrong or not words or len(set(words)) != len(words):
        raise Failed(f"{source}: `{lines[0]}` names no list of architectures like sm_80 sm_90a")
    return words


def source_files(source: Path) -> dict[str, bytes]:
    """The file and what it includes by "name", each by its path from the file's folder."""
    found: dict[str, bytes] = {}
    waiting = [source.name]
    while waiting:
        name = os.path.normpath(waiting.pop())
        path = source.parent / name
        if name in found or not path.is_file():  # what is not there is nvcc's own, or nvcc's to complain about
            continue
        found[name] = path.read_bytes()
        for included in re.findall(rb'^[ \t]*#[ \t]*include[ \t]*"([^"\n]+)"', found[name], re.M):
            waiting.append(os.path.join(os.path.dirname(name), included.decode()))
    return found


def find_binaries(kernels: Path) -> list[Binary]:
    """Every binary that the sources ask for, in a fixed order."""
    found = []
    for source in sorted(kernels.glob("*/members/*.cu")):
        sources = source_files(source)
        found += [Binary(source.parents[1].name, source, arch, sources) for arch in architectures(source)]
    return found


# ---- judging what the compiler said ----------------------------------------------------------------------------------


def parse_report(text: str) -> tuple[dict[str, dict[str, int]], dict[str, dict[str, int]]]:
    """ptxas -v: (kernels, every function), each by name with what it uses."""
    kernels: dict[str, dict[str, int]] = {}
    functions: dict[str, dict[str, int]] = {}
    kernel = function = ""
    for line in text.splitlines():
        if found := re.search(r"Compiling entry function '(\w+)'", line):
            kernel = found.group(1)
        elif found := re.search(r"Function properties for (\S+)", line):
            function = found.group(1)
        elif found := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            functions[function] = dict(zip(("stack_bytes", "spill_store_bytes", "spill_load_bytes"), map(int, found.groups())))
        elif found := re.search(r"Used (\d+) registers", line):
            shared = re.search(r"(\d+) bytes smem", line)
            kernels[kernel] = {"registers": int(found.group(1)), "static_shared_bytes": int(shared.group(1)) if shared else 0}
    return kernels, functions


def judge_report(text: str) -> list[str]:
    faults = []
    kernels, functions = parse_report(text)
    if not kernels:
        faults.append("no kernel in it")
    for name, used in functions.items():
        if used["spill_store_bytes"] or used["spill_load_bytes"]:
            faults.append(f"{name} spills registers: {used['spill_store_bytes']} bytes stored, {used['spill_load_bytes']} bytes loaded")
        if used["stack_bytes"]:
            faults.append(f"{name} has a stack frame of {used['stack_bytes']} bytes")
    for line in text.splitlines():
        if "Potential Performance Loss" in line:
            faults.append(line.split(" : ", 1)[-1].strip())
        elif re.search(r"\bwarning\b", line, re.I) and "Registers are spilled" not in line and not line.startswith("Remark:"):
            faults.append(line.strip())
    return faults


def judge_ptx(ptx: str) -> list[str]:
    faults = []
    if f"V{VERSION}" not in ptx[:600] and "NVVM Compiler" in ptx[:600]:
        faults.append(f"nvvm is not of release {VERSION}: install the four packages in the pinned versions")
    for name, directives in re.findall(r"\.entry\s+(\w+)\s*\(.*?\)\s*([^{]*)\{", ptx, re.S):
        if name.startswith("_Z"):
            faults.append(f'kernel {name} is not extern "C"')
        if ".maxntid" not in directives:
            faults.append(f"kernel {name} has no __launch_bounds__")
    atomics = re.findall(r"^\s*(?:@!?%p\d+\s+)?((?:atom|red)\.[\w.:]*\.(?:bf16x2|bf16|f16x2|f16|f32|f64))\b", ptx, re.M)
    faults += [f"floating-point atomic {text}: the order of its sum is not fixed" for text in sorted(set(atomics))]
    return faults


# ---- compiling -------------------------------------------------------------------------------------------------------


def run_nvcc(binary: Binary, command: list[str], folder: Path) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=clean_environment())
    if done.returncode:
        raise Failed(f"{binary.name}: nvcc ended with status {done.returncode}:\n{(done.stdout + done.stderr).strip()[-6000:]}")
    return done.stdout + done.stderr


def compile_binary(binary: Binary, nvcc: str, defines: list[str], target: Path) -> dict:
    """Writes the cubin to `target`; returns what the kernels use and what is wrong with them."""
    virtual = binary.arch.replace("sm_", "compute_")
    with tempfile.TemporaryDirectory(prefix="opt_core_cubin_") as scratch:
        ptx, cubin = Path(scratch) / f"{binary.source.stem}.ptx", Path(scratch) / "out.cubin"
        first = [nvcc, "-ptx", *FLAGS, f"-gencode=arch={virtual},code={virtual}", *defines, "-o", str(ptx), binary.source.name]
        said = run_nvcc(binary, first, binary.source.parent)
        # eight digits made from the source's absolute path, in the names of file-local symbols
        text = re.sub(r"(_INTERNAL_|_GLOBAL__N__)[0-9a-f]{8}_", r"\g<1>00000000_", ptx.read_text())
        ptx.write_text(text)
        second = [nvcc, "-cubin", *FLAGS, f"-gencode=arch={virtual},code={binary.arch}", *PTXAS_FLAGS, "-o", cubin.name, ptx.name]
        said += run_nvcc(binary, second, Path(scratch))
        data = cubin.read_bytes()
    put(target, data)
    kernels, functions = parse_report(said)
    return {"sha256": sha256(data), "bytes": len(data), "faults": judge_ptx(text) + judge_report(said),
            "kernels": {name: kernels[name] | functions[name] for name in sorted(kernels)}}


def put(path: Path, data: bytes) -> bool:
    """Writes the file in one step; a file that already holds the bytes keeps its time. True when it wrote."""
    if path.is_file() and path.read_bytes() == data:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as draft:
        draft.write(data)
    os.chmod(draft.name, 0o644)
    os.replace(draft.name, path)
    return True


def as_json(value: dict) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def forget_old(cache: Path, binary: Binary) -> None:
    made = sorted(cache.glob(f"{binary.file}.*.json"), key=lambda path: path.stat().st_mtime)
    for path in made[:-CACHE_KEEPS]:
        path.unlink(missing_ok=True)
        path.with_suffix(".cubin").unlink(missing_ok=True)


def build(binary: Binary, nvcc: str, defines: list[str], cache: Path) -> Binary:
    """From the cache when sources, flags and compiler are those of an earlier build and its bytes are intact."""
    digest = binary.digest(version_of(nvcc), defines)
    stamp = cache / f"{binary.file}.{digest[:16]}.json"
    binary.path = stamp.with_suffix(".cubin")
    try:
        made = json.loads(stamp.read_text())
        binary.cached = made["digest"] == digest and sha256(binary.path.read_bytes()) == made["sha256"]
    except (OSError, ValueError, KeyError):
        binary.cached = False
    if not binary.cached:
        made = {"digest": digest} | compile_binary(binary, nvcc, defines, binary.path)
        put(stamp, as_json(made))
        forget_old(cache, binary)
    binary.sha256, binary.bytes, binary.kernels, binary.faults = made["sha256"], made["bytes"], made["kernels"], made["faults"]
    return binary


# ---- index and record ------------------------------------------------------------------------------------------------


def read_index(path: Path, name: str) -> dict:
    """The `binaries` of an index or record; empty when there is none."""
    try:
        return json.loads(path.read_text())[name]
    except FileNotFoundError:
        return {}
    except (ValueError, KeyError, TypeError) as failure:
        raise Failed(f"{path}: {failure}") from None


def index_entry(binary: Binary) -> dict:
    return {"file": binary.file, "sha256": binary.sha256, "bytes": binary.bytes}


def record_entry(binary: Binary) -> dict:
    return {"sources": {name: sha256(data) for name, data in sorted(binary.sources.items())}, "kernels": binary.kernels}


def index_of(family: str, entries: dict) -> bytes:
    return as_json({"schema": 1, "package": family, "binaries": dict(sorted(entries.items()))})


def record_of(family: str, entries: dict, defines: list[str]) -> bytes:
    flags = [*FLAGS, "-gencode=arch=compute_<arch>,code=sm_<arch>", *PTXAS_FLAGS, *defines]
    return as_json({"schema": 1, "package": family, "compiler": f"nvcc {VERSION}", "flags": flags, "binaries": dict(sorted(entries.items()))})


def differences(built: list[Binary], kernels: Path, partial: bool) -> list[str]:
    """Between what was built and what is committed, a line each."""
    lines = []
    for family in sorted({binary.family for binary in built} | {path.parent.name for path in kernels.glob(f"*/{INDEX}")}):
        mine = {binary.key: index_entry(binary) for binary in built if binary.family == family}
        committed = read_index(kernels / family / INDEX, "binaries")
        for key in sorted(mine.keys() | (set() if partial else committed.keys())):
            new, old = mine.get(key), committed.get(key)
            if new != old:
                said = [f"{entry['sha256'][:12]} ({entry['bytes']} bytes)" if entry else "nothing" for entry in (new, old)]
                lines.append(f"{family}@{key}: built {said[0]}, committed {said[1]}")
    return lines


def commit_tables(built: list[Binary], wanted: list[Binary], kernels: Path) -> list[Path]:
    """Brings the committed files of each family up to date; keys that no source asks for leave. Returns what changed."""
    changed = []
    for family in sorted({binary.family for binary in built}):
        keys = {binary.key for binary in wanted if binary.family == family}
        mine = [binary for binary in built if binary.family == family]
        for name, entry, text in ((INDEX, index_entry, index_of), (RECORD, record_entry, lambda f, e: record_of(f, e, []))):
            path = kernels / family / name
            kept = {key: value for key, value in read_index(path, "binaries").items() if key in keys}
            if put(path, text(family, kept | {binary.key: entry(binary) for binary in mine})):
                changed.append(path)
    if built == wanted:  # all were built: an index without sources is left over
        families = {binary.family for binary in wanted}
        for path in [*kernels.glob(f"*/{INDEX}"), *kernels.glob(f"*/{RECORD}")]:
            if path.parent.name not in families:
                path.unlink()
                changed.append(path)
    return changed


def lay_out(built: list[Binary], out: Path, kernels: Path, own_digests: bool, partial: bool, defines: list[str]) -> None:
    """OUT/<family>/: cubins, index, record, and (unless only a part was built) nothing else."""
    for family in sorted({binary.family for binary in built}):
        mine = [binary for binary in built if binary.family == family]
        folder = out / family
        for binary in mine:
            put(folder / binary.file, binary.path.read_bytes())
        if own_digests:
            old = [read_index(folder / name, "binaries") if partial else {} for name in (INDEX, RECORD)]
            put(folder / INDEX, index_of(family, old[0] | {binary.key: index_entry(binary) for binary in mine}))
            put(folder / RECORD, record_of(family, old[1] | {binary.key: record_entry(binary) for binary in mine}, defines))
        else:
            for name in (INDEX, RECORD):
                if (kernels / family / name).is_file():
                    put(folder / name, (kernels / family / name).read_bytes())
        if not partial:
            forget(folder, {INDEX, RECORD, *(binary.file for binary in mine)})
    if not partial and out.is_dir():
        for folder in out.iterdir():
            if folder.name not in {binary.family for binary in built}:
                forget(folder, set())


def forget(folder: Path, keep: set[str]) -> None:
    """Takes from a folder what an earlier build wrote there, and the folder when that was all."""
    if not (folder / INDEX).is_file():
        return
    for path in [*folder.glob("*.cubin"), folder / INDEX, folder / RECORD]:
        if path.name not in keep:
            path.unlink(missing_ok=True)
    if not any(folder.iterdir()):
        folder.rmdir()


# ---- the command -----------------------------------------------------------------------------------------------------


def tell(lines: list[str]) -> None:
    sys.stdout.flush()
    for line in lines:
        print(f"[cubins] {line}", file=sys.stderr)


def print_table(built: list[Binary]) -> None:
    rows = [("binary", "kernel", "registers", "shared", "spills", "bytes", "")]
    for binary in built:
        for name, used in binary.kernels.items():
            rows.append((binary.name, name, str(used["registers"]), str(used["static_shared_bytes"]),
                         str(used["spill_store_bytes"] + used["spill_load_bytes"]), str(binary.bytes), "kept" if binary.cached else ""))
    widths = [max(len(row[column]) for row in rows) for column in range(7)]
    for row in rows:
        left = [row[column].ljust(widths[column]) for column in (0, 1)]
        right = [row[column].rjust(widths[column]) for column in (2, 3, 4, 5)]
        print("  ".join([*left, *right, row[6]]).rstrip())


def checkout() -> Path | None:
    """The project's root, when this file lies in a checkout that can be written."""
    root = Path(*CORE.parts[:-2])
    return root if root / "common/opt_core" == CORE and (root / "Makefile").is_file() and os.access(root, os.W_OK) else None


def cache_folder(given: str | None, out: Path) -> Path:
    root = checkout()
    for path in (given, os.environ.get("OPT_CORE_CUBIN_CACHE"), root and root / "build/cubin/cache", f"{out}.cache"):
        if path:
            try:
                Path(path).mkdir(parents=True, exist_ok=True)
            except OSError:
                continue
            if os.access(path, os.W_OK):
                return Path(path).resolve()
    raise Failed(f"no folder can be written for what is compiled: give one by --cache (tried beside {out})", 2)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Builds the cubins of the CUDA members and keeps their digests in PREBUILT.json.")
    parser.add_argument("--check", action="store_true", help="compare with the committed digests, change nothing in the tree")
    parser.add_argument("--dev", action="store_true",
                        help="for work in progress: digests beside the cubins in OUT only; spills and the like are told, not refused")
    parser.add_argument("--find", action="store_true", help="print the nvcc that would be used; status 3 when there is none")
    parser.add_argument("--family", action="append", help="only this family; may be repeated")
    parser.add_argument("--key", action="append", help="only this key, e.g. native.sm_90a; may be repeated")
    parser.add_argument("--out", help="cubins go to OUT/<family>/ (in a checkout: build/cubin)")
    parser.add_argument("--cache", help="where compiled cubins are kept (in a checkout: build/cubin/cache)")
    parser.add_argument("--kernels", default=str(KERNELS), help="folder of the families")
    parser.add_argument("--nvcc", help="use this compiler, whatever its version (--dev only)")
    parser.add_argument("--define", action="append", default=[], metavar="NAME=VALUE", help="a macro (--dev only)")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    given = parser.parse_args(arguments)
    if (given.nvcc or given.define) and not given.dev:
        parser.error("--nvcc and --define make other bytes than the committed ones: they need --dev")
    if given.dev and given.check:
        parser.error("--dev and --check exclude each other")
    if given.out and Path(given.out).resolve() == Path(given.kernels).resolve():
        parser.error("--out is the folder of the sources: cubins lie beside the library, never there")
    if not given.out and given.dev:
        parser.error("--dev needs --out")
    if not given.out and not given.find and not checkout():
        parser.error("--out is needed outside a checkout")
    return given


def select(binaries: list[Binary], families: list[str] | None, keys: list[str] | None) -> list[Binary]:
    for name, given, known in (("--family", families, {b.family for b in binaries}), ("--key", keys, {b.key for b in binaries})):
        unknown = sorted(set(given or ()) - known)
        if unknown:
            raise Failed(f"{name} {unknown[0]}: no source asks for it (there are: {', '.join(sorted(known)) or 'none'})", 2)
    return [b for b in binaries if (not families or b.family in families) and (not keys or b.key in keys)]


def build_all(chosen: list[Binary], nvcc: str, defines: list[str], cache: Path, jobs: int) -> tuple[list[Binary], list[str]]:
    """All are built even when one fails, so that every fault is told at once. Returns what could be built, and the errors."""
    def one(binary: Binary):
        try:
            return build(binary, nvcc, defines, cache)
        except Failed as failure:
            return failure

    with ThreadPoolExecutor(max(1, jobs)) as pool:
        done = list(pool.map(one, chosen))
    return [b for b in done if isinstance(b, Binary)], [str(failure) for failure in done if isinstance(failure, Failed)]


def work(given: argparse.Namespace) -> None:
    if given.find:
        print(find_nvcc())
        return
    kernels = Path(given.kernels).resolve()
    wanted = find_binaries(kernels)
    chosen = select(wanted, given.family, given.key)
    partial = chosen != wanted
    out = Path(given.out).resolve() if given.out else checkout() / "build/cubin"
    built: list[Binary] = []
    if chosen:
        defines = [f"-D{text}" for text in given.define]
        built, errors = build_all(chosen, given.nvcc or find_nvcc(), defines, cache_folder(given.cache, out), given.jobs)
        print_table(built)
        faults = [f"{binary.name}: {fault}" for binary in built for fault in binary.faults]
        if errors or (faults and not given.dev):
            raise Failed("\n".join(errors + faults))
        tell(faults)  # work in progress may be tried on a GPU as it is
    if given.check:
        lines = differences(built, kernels, partial)
        if lines:
            raise Failed("\n".join(lines) + "\nthe sources and the committed digests differ: run `make cubins` and commit the tables"
                         " that it changes; while you work on a kernel, build with -DOPT_CORE_CUBINS=DEV")
    elif not given.dev:
        for path in commit_tables(built, wanted, kernels):
            print(f"changed {path}: commit it" if path.exists() else f"removed {path}")
    lay_out(built, out, kernels, given.dev, partial, [f"-D{text}" for text in given.define])
    print(f"{len(built)} cubins, {sum(not binary.cached for binary in built)} compiled, in {out}")


def main(arguments: list[str] | None = None) -> int:
    given = parse(arguments)
    try:
        work(given)
    except Failed as failure:
        if given.out and failure.status == 1:  # what an earlier build left there is not what was asked for
            for folder in Path(given.out).glob("*"):
                forget(folder, set())
        tell(str(failure).splitlines())
        return failure.status
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Builds every CUDA module with a fault in it and demands that the ladder turns red on it.

    python tools/mutants_gpu.py --build DIR            # where nvcc is: DIR/<module>.<arch>.<fault>/<family>/
    python tools/mutants_gpu.py --run DIR              # where the GPU is, with opt_core installed; nothing is compiled
    python tools/mutants_gpu.py --build DIR --run DIR  # both

OC_MUTANT=1 swapped operand, 2 shifted index, 3 dropped tail, 4 lost mask; the .cu files name the places. A fault that a module has no
place for is printed as absent. The faulty cubin stands in a copy of the installed package, so the installed one stays as it is.
"""
from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "common/opt_core"
LADDER = CORE / "tests/gpu/ladder.py"
FAULTS = {1: "swapped operand", 2: "shifted index", 3: "dropped tail", 4: "lost mask"}
FAMILY = "triattn"
# Each class of operands and each way of masking, at sizes inside a tile and across tiles.
CORE_CASES = [f"n={n},i=5,d={d},dtype={dtype},data=free{data},mask={mask},value={value},lse=1"
              for n, d in ((33, 32), (130, 32), (100, 64)) for dtype in ("bf16", "f16", "f32") for data in ("", "_first")
              for mask, value in (("zero", 0.0), ("subtract", 1e6))]
# Logits of order_free lie outside the range in which the wgmma core keeps its own result: random ones are what it computes.
BOUND_CASES = [f"n={n},i=5,mask={mask},value={value},lse=1,bias={bias}" for n in (33, 130) for mask, value, bias in (("zero", 0.0, "f32"), ("subtract", 1e9, "bf16"))]
MODULE_CASES = [f"n={n},biased={biased},ending={ending}" for n in (33, 130) for biased, ending in ((0, 0), (1, 1))]


def places(source: Path) -> list[int]:
    """The faults that a module names: `OC_MUTANT == 2` in the file or in what it includes by name."""
    text = source.read_text()
    for name in re.findall(r'^\s*#\s*include\s+"([^"]+)"', text, re.M):
        if (source.parent / name).is_file():
            text += (source.parent / name).read_text()
    return sorted({int(k) for k in re.findall(r"OC_MUTANT\s*==\s*(\d)", text)} & FAULTS.keys())


def build(folder: Path, arch: str) -> None:
    for source in sorted((CORE / "opt_core/kernels" / FAMILY / "members").glob("*.cu")):
        if not re.search(rf"^// cubin:.*\b{arch}\b", source.read_text(), re.M):
            continue
        for fault in places(source):
            out = folder / f"{source.stem}.{arch}.{fault}"
            command = [sys.executable, str(CORE / "build_prebuilt.py"), "--dev", "--family", FAMILY, "--key", f"{source.stem}.{arch}", "--define", f"OC_MUTANT={fault}",
                       "--out", str(out), "--cache", str(folder / "cache")]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            print(f"built {out.name}", flush=True)
    shutil.rmtree(folder / "cache", ignore_errors=True)


def installed() -> Path:
    import opt_core

    return Path(opt_core.__file__).parent


def with_fault(package: Path, mutant: Path, into: Path) -> Path:
    """A copy of the installed package with the mutant's cubin in the place of the good one; returns what goes onto PYTHONPATH."""
    shutil.copytree(package, into / "opt_core", symlinks=True)
    cubins = into / "opt_core/lib/opt_core/cubin" / FAMILY
    index = json.loads((cubins / "PREBUILT.json").read_text())
    faulty = json.loads((mutant / FAMILY / "PREBUILT.json").read_text())
    for key, entry in faulty["binaries"].items():
        assert index["binaries"][key]["sha256"] != entry["sha256"], f"{mutant.name}: the fault changes nothing"
        shutil.copy(mutant / FAMILY / entry["file"], cubins / entry["file"])
        index["binaries"][key] = entry
    (cubins / "PREBUILT.json").write_text(json.dumps(index))
    return into


def is_red(path: Path | None, rows: dict[str, list[str]]) -> str | None:
    """The first rung that is red, or None."""
    env = dict(os.environ)
    if path is not None:
        env["PYTHONPATH"] = f"{path}:{env.get('PYTHONPATH', '')}"
    for rung, family, cases in (("bound", "triattn", BOUND_CASES), ("order_free", "triattn", CORE_CASES), ("module_bound", "triattn_module", MODULE_CASES)):
        for row in rows[family]:
            done = subprocess.run([sys.executable, str(LADDER), rung, "--row", row, *cases], env=env, capture_output=True, text=True, timeout=300)
            if done.returncode:
                return f"{rung} {row}: {(done.stdout.strip().splitlines() or done.stderr.strip().splitlines() or ['?'])[-2:][0][:140]}"
    return None


def run(folder: Path) -> int:
    sys.path.insert(0, str(LADDER.parent))
    import ladder

    rows = {family: ladder.rows_here(family, "cuda") for family in ("triattn", "triattn_module")}
    good = is_red(None, rows)
    if good:
        sys.exit(f"mutants_gpu: red without a fault: {good}")
    killed, survivors = 0, []
    for mutant in sorted(p for p in folder.iterdir() if (p / FAMILY).is_dir()):
        with tempfile.TemporaryDirectory(prefix="opt_core_mutant_") as scratch:
            red = is_red(with_fault(installed(), mutant, Path(scratch)), rows)
        module, arch, fault = mutant.name.rsplit(".", 2)
        print(f"{module:8} {arch:7} {FAULTS[int(fault)]:16} {'killed: ' + red if red else 'SURVIVED'}", flush=True)
        killed += bool(red)
        if not red:
            survivors.append(mutant.name)
    print(f"{killed} killed, {len(survivors)} survived")
    return 1 if survivors or not killed else 0


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--build", type=Path)
    p.add_argument("--run", type=Path)
    p.add_argument("--arch", default="sm_90a")
    args = p.parse_args()
    for source in sorted((CORE / "opt_core/kernels" / FAMILY / "members").glob("*.cu")):
        for fault in FAULTS.keys() - set(places(source)):
            print(f"{source.stem:8} {FAULTS[fault]:16} absent: the module names no place for it")
    if args.build:
        build(args.build.resolve(), args.arch)
    return run(args.run.resolve()) if args.run else 0


if __name__ == "__main__":
    sys.exit(main())

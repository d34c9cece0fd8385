# SPDX-License-Identifier: Apache-2.0
"""Paired timings of our rows, the stock torch form and torch's best peer, interleaved in one process, medians.

    python bench/bench.py --family trimul            # writes bench/results/<machine>-trimul.json
    python bench/bench.py --family engine            # trunk of the first kit's engine, stock against exact and fast
    python bench/bench.py --device cuda --family all # triangle attention on a GPU, with its peers: gpu.py

Each instruction set runs in a process of its own, with torch and its libraries held to the same set: a processor without AVX-512 has a
torch without AVX-512 too.
"""
from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench/results"
LIMITS = {  # the levels, highest first
    "avx512_bf16": {},
    "avx512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_VNNI"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2", "ONEDNN_MAX_CPU_ISA": "AVX2"},
    "generic": {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2", "ONEDNN_MAX_CPU_ISA": "SSE41"},
}
# Freed memory stays in the process: at 32 MB and above glibc would map fresh pages for every result, and the page faults of both sides would hide
# what is measured. The stock op gains more from it than we do.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 33)}
FAMILIES = ("ln", "transition", "trimul", "triattn", "triattn_module", "apb")


def machine() -> tuple[str, str]:
    """(short word for file names, description)."""
    from opt_core import _core

    cpu = _core.cpu_facts()
    word = "xeon-amx" if cpu.get("has_amx_bf16") else {"AuthenticAMD": "zen", "GenuineIntel": "intel"}.get(cpu["vendor"], "cpu") + "-" + cpu["isa"]
    return word, f"{os.cpu_count()} cores of {cpu['model'] or cpu['vendor']}, {cpu['isa']}" + (", AMX" if cpu.get("has_amx_bf16") else "")


def interleaved(calls: dict, least: int, budget_s: float) -> dict[str, list[float]]:
    """Seconds of each call, one after the other in turn; one warm round first; at least `least` rounds, then until the budget ends."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    began = time.perf_counter()
    for turn in range(1000):
        if turn == 1:
            began = time.perf_counter()
        for name, call in calls.items():
            t = time.perf_counter()
            call()
            if turn:
                times[name].append(time.perf_counter() - t)
        if turn == 0 and time.perf_counter() - began > 4.0:
            least = min(least, 3)
        if turn >= least and time.perf_counter() - began > budget_s:
            break
    return times


def rms(a, truth) -> float:
    return float((a.double() - truth).pow(2).mean().sqrt())


def time_case(case, isa: str, args) -> dict:
    import torch

    with torch.no_grad():
        result, (_, _, member) = case.ours("cpu")
        truth = case.truth()
        calls = {"stock": case.stock, "ours": lambda: case.ours("cpu")}
        peers = {}
        for name, call in case.peers.items():
            if name == "torch_compile" and not args.compile:
                continue
            try:
                call()
                calls[name] = call
            except Exception as error:  # a peer that fails carries its error text
                peers[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
        err, stock_err = rms(result, truth), rms(case.stock(), truth)
        del result, truth
        times = interleaved(calls, args.least, args.budget)
    us = {name: statistics.median(t) * 1e6 for name, t in times.items()}
    ratios = [s / o for s, o in zip(times["stock"], times["ours"])]
    ceiling = args.ceilings[isa]
    floor = max(case.flop / ceiling["f32_gflops"] / 1e3, case.moved / ceiling["copy_gbs"] / 1e3)
    row = {"op": case.op, "form": case.form, "dtype": case.dtype, "shape": case.shape, "isa": isa, "row": "cpu", "member": member, "us": round(us["ours"], 1),
           "floor_us": round(floor, 1), "err": err, "stock_err": stock_err, "ratio": round(statistics.median(ratios), 3), "n": len(ratios),
           "peers": {"torch_eager": round(us["stock"], 1)} | {k: round(us[k], 1) for k in case.peers if k in us} | peers}
    print(f"{case.op:15} {case.dtype:5} {isa:8} {str(case.shape):48} {us['ours'] / 1e3:9.2f} ms  stock {us['stock'] / 1e3:9.2f} ms  "
          f"{row['ratio']:5.2f}x  floor {floor / 1e3:8.2f} ms  err {err:.1e} / {stock_err:.1e}"
          + "".join(f"  {k} {us[k] / 1e3:.2f}" for k in case.peers if k in us), flush=True)
    return row


def ceilings() -> dict:
    """What this process reaches: a large f32 product and a copy of 256 MB, best of five."""
    import torch

    def best(call):
        seconds = []
        for _ in range(6):
            t = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - t)
        return min(seconds)

    a, b = torch.randn(2048, 2048), torch.randn(64 << 20)
    c = torch.empty_like(b)
    return {"f32_gflops": round(2 * 2048**3 / best(lambda: a @ a) / 1e9, 1), "copy_gbs": round(8 * b.numel() / best(lambda: c.copy_(b)) / 1e9, 1)}


def child(args) -> None:
    """One instruction set, one family: rows as JSON into args.into."""
    sys.path.insert(0, str(ROOT / "bench"))
    import cases

    isa = os.environ["OPT_CORE_ISA"]
    args.ceilings = {isa: ceilings()}
    rows = []
    for build in cases.cases(args.family):
        case = build()
        # below AVX-512 torch's bf16 products have no fast path: seconds a call, and one size says it
        if args.largest and case.shape["n"] > (args.largest if case.dtype == "f32" else 128):
            continue
        rows.append(time_case(case, isa, args))
    Path(args.into).write_text(json.dumps({"ceilings": args.ceilings, "rows": rows}))


def head(command: str) -> dict:
    import torch

    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return {"schema": 1, "date": time.strftime("%Y-%m-%d"), "device": machine()[1], "driver": "none",
            "stack": {"torch": torch.__version__, "python": sys.version.split()[0], "threads": torch.get_num_threads(), "allocator": "glibc, freed memory kept"}, "command": command, "commit": commit}


def write_result(name: str, content: dict) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{machine()[0]}-{name}.json"
    temporary = path.with_suffix(".tmp")
    rows = ",\n  ".join(json.dumps(r) for r in content.pop("rows"))
    temporary.write_text(json.dumps(content, indent=1)[:-2] + f',\n "rows": [\n  {rows}\n ]\n}}\n')
    temporary.rename(path)
    print(f"written: {path.relative_to(ROOT)}")


def bench_family(family: str, args) -> None:
    from opt_core import _core

    levels = [*reversed(LIMITS)]
    have = levels[: levels.index(_core.cpu_facts()["isa"]) + 1]
    rows, found = [], {}
    for isa in reversed(have):
        if args.isa and isa not in args.isa.split(","):
            continue
        with tempfile.NamedTemporaryFile(suffix=".json") as into:
            env = dict(os.environ, OPT_CORE_ISA=isa, **LIMITS[isa], **ALLOCATOR)
            extra = ["--compile"] if args.compile and isa == have[-1] else []
            command = [sys.executable, __file__, "--child", "--family", family, "--into", into.name, "--least", str(args.least), "--budget", str(args.budget)]
            largest = {"generic": ["--largest", "130"], "avx2": ["--largest", "256"]}.get(isa, [])
            subprocess.run([*command, *extra, *largest], env=env, check=True)
            part = json.loads(Path(into.name).read_text())
        rows += part["rows"]
        found |= part["ceilings"]
    write_result(family, head(f"make bench FAMILY={family}") | {"ceilings": found, "rows": rows})


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--family", default="all")
    p.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    p.add_argument("--isa", default="", help="comma-joined; default: all that this machine has")
    p.add_argument("--least", type=int, default=9, help="rounds at the least")
    p.add_argument("--budget", type=float, default=1.0, help="seconds of timed rounds a case")
    p.add_argument("--compile", action="store_true", help="time torch.compile as a peer too (slow to start)")
    p.add_argument("--largest", type=int, default=0)
    gpu = p.add_argument_group("--device cuda")
    gpu.add_argument("--quick", action="store_true", help="a few sizes, no peer that tunes itself; under 40 s")
    gpu.add_argument("--no-peers", action="store_true", help="our rows and the torch form only")
    gpu.add_argument("--dry", action="store_true", help="tiny sizes on the CPU: shows that the script runs, measures nothing")
    gpu.add_argument("--sizes", default="", help="comma-joined N instead of the default")
    gpu.add_argument("--rows", default="", help="comma-joined; default: all that this device has")
    gpu.add_argument("--deadline", type=float, default=280, help="seconds after which no case is begun")
    gpu.add_argument("--results", default="", help="folder of the result files; default: bench/results")
    gpu.add_argument("--commit", default="", help="written into the results; default: what git says")
    p.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    p.add_argument("--into", help=argparse.SUPPRESS)
    args = p.parse_args()
    if args.child:
        return child(args)
    sys.path.insert(0, str(ROOT / "bench"))
    if args.device == "cuda":
        import gpu

        args.command = "make bench DEVICE=cuda FAMILY=" + args.family
        families = list(gpu.FAMILIES) if args.family == "all" else args.family.split(",")
        if unknown := set(families) - set(gpu.FAMILIES):
            raise SystemExit(f"[bench] no CUDA member to time in {', '.join(sorted(unknown))}; there are: {', '.join(gpu.FAMILIES)}")
        return gpu.bench(families, args)
    import engine

    special = {"engine": engine.bench, "exact": engine.bench_exact}
    for family in (*FAMILIES, *special) if args.family == "all" else [args.family]:
        if family in special:
            special[family](args, head, write_result, interleaved)
        else:
            bench_family(family, args)


if __name__ == "__main__":
    main()

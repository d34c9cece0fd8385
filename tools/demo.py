# SPDX-License-Identifier: Apache-2.0
"""Fold three proteins stock, exact and fast with the unchanged engine; compare the outputs; write a table and an HTML page.

Each mode is a process of its own that differs from the others in one environment variable. A fourth run in float64 is the
truth that both errors are measured against.
"""
from __future__ import annotations

import argparse
import html
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SEQUENCES = ["ubiquitin", "lysozyme", "gfp"]
MODES = [("stock", "off"), ("exact", "exact"), ("fast", "fast")]


def arguments() -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--out", default="build/demo")
    p.add_argument("--blocks", type=int, default=4, help="trunk blocks (default: %(default)s); the weights are random, so depth is free")
    p.add_argument("--recycles", type=int, default=0)
    p.add_argument("--repeats", type=int, default=3, help="timed forwards a sequence; the table shows medians")
    p.add_argument("--no-truth", action="store_true", help="leave out the float64 run")
    return p.parse_args()


class Progress:
    """One line a stage, with the seconds that it has taken so far; on a terminal the line is rewritten in place."""

    def __init__(self, label: str):
        self.label, self.began, self.done = label, time.perf_counter(), threading.Event()
        self.thread = threading.Thread(target=self._tick, daemon=True)

    def _tick(self) -> None:
        while not self.done.wait(1.0):
            if sys.stdout.isatty():
                print(f"\r{self.label} ... {time.perf_counter() - self.began:3.0f} s", end="", flush=True)

    def __enter__(self):
        print(f"{self.label} ...", end="" if sys.stdout.isatty() else "\n", flush=True)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.done.set()
        self.thread.join()
        print(f"\r{self.label}: {time.perf_counter() - self.began:.0f} s" + " " * 8, flush=True)


def fold(out: Path, mode: str, args: argparse.Namespace, extra: list[str]) -> None:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    env = {k: v for k, v in os.environ.items() if not k.endswith("_OPT") and not k.startswith(("OPT_CORE_", "MODEL_OPT_"))}
    env.update(ESMFOLD_OPT=mode, OPT_CORE_MANIFEST=str(out / "opt_manifest.json"))
    command = [sys.executable, str(ROOT / "examples/fold.py"), *[f"{s}.fasta" for s in SEQUENCES], "--out", str(out),
               "--blocks", str(args.blocks), "--recycles", str(args.recycles), *extra]
    with open(out / "run.log", "w") as log:
        status = subprocess.run(command, env=env, stdout=log, stderr=subprocess.STDOUT).returncode
    if status != 0:
        print((out / "run.log").read_text())
        sys.exit(f"demo: the run with ESMFOLD_OPT={mode} ended with status {status}")


def compare(a: Path, b: Path, exact: bool) -> dict:
    command = [sys.executable, "-m", "opt_core", "compare", str(a), str(b), "--json"]
    rules = ROOT / ("examples/compare_rules_exact.json" if exact else "examples/compare_rules.json")
    done = subprocess.run([*command, "--rules", str(rules)], capture_output=True, text=True)
    if done.returncode not in (0, 1):
        sys.exit(f"demo: compare failed ({done.returncode}): {done.stderr}")
    return json.loads(done.stdout)


def tensor_errors(run: Path, truth: Path) -> float:
    """Root mean square error of the pair representation against the float64 run, relative to its own scale."""
    import numpy as np
    from safetensors.numpy import load_file

    a, t = load_file(run / "tensors.safetensors")["s_z"], load_file(truth / "tensors.safetensors")["s_z"]
    return float(np.sqrt(np.mean((a - t) ** 2)) / np.sqrt(np.mean(t**2)))


def collect(out: Path, args: argparse.Namespace) -> list[dict]:
    rows = []
    for name in SEQUENCES:
        stock = json.loads((out / "stock" / name / "timing.json").read_text())
        for mode, _ in MODES:
            timing = json.loads((out / mode / name / "timing.json").read_text())
            ratios = [s / t for s, t in zip(stock["trunk_s"], timing["trunk_s"])]
            row = {"name": name, "residues": timing["residues"], "mode": mode,
                   "wall_s": statistics.median(timing["forward_s"]), "trunk_s": statistics.median(timing["trunk_s"]),
                   "speedup": statistics.median(ratios), "largest": None, "verdict": "-", "error": None}
            if mode != "stock":
                result = compare(out / "stock" / name, out / mode / name, exact=mode == "exact")
                row["largest"], row["verdict"] = result["largest"], result["verdict"]
            if not args.no_truth:
                row["error"] = tensor_errors(out / mode / name, out / "float64" / name)
            rows.append(row)
    return rows


HEADINGS = ["protein", "residues", "mode", "wall s", "trunk s", "trunk speed-up", "largest difference", "compare", "error vs float64"]


def cells_of(row: dict) -> list[str]:
    return [row["name"], str(row["residues"]), row["mode"], f"{row['wall_s']:.2f}", f"{row['trunk_s']:.2f}",
            f"{row['speedup']:.2f}x", "-" if row["largest"] is None else f"{row['largest']:.1e}", row["verdict"],
            "-" if row["error"] is None else f"{row['error']:.1e}"]


def print_table(rows: list[dict]) -> None:
    table = [HEADINGS, *[cells_of(r) for r in rows]]
    widths = [max(len(r[i]) for r in table) for i in range(len(HEADINGS))]
    for index, r in enumerate(table):
        print("  ".join(c.ljust(w) if i in (0, 2, 7) else c.rjust(w) for i, (c, w) in enumerate(zip(r, widths))))
        if index == 0:
            print("  ".join("-" * w for w in widths))


def bars(rows: list[dict]) -> str:
    longest = max(r["trunk_s"] for r in rows)
    colour = {"stock": "#8a8f98", "exact": "#2f6fb0", "fast": "#2a8f5b"}
    parts, y = [], 0
    for row in rows:
        width = 420 * row["trunk_s"] / longest
        parts.append(f'<text x="150" y="{y + 14}" text-anchor="end">{row["name"]} {row["mode"]}</text>'
                     f'<rect x="160" y="{y}" width="{width:.1f}" height="18" fill="{colour[row["mode"]]}"/>'
                     f'<text x="{166 + width:.1f}" y="{y + 14}">{row["trunk_s"]:.2f} s ({row["speedup"]:.2f}x)</text>')
        y += 30 if row["mode"] == "fast" else 22
    return f'<svg viewBox="0 0 720 {y}" width="720" height="{y}" role="img" aria-label="trunk time">{"".join(parts)}</svg>'


def write_html(path: Path, rows: list[dict], out: Path) -> None:
    body = "".join("<tr>" + "".join(f"<td>{html.escape(c)}</td>" for c in cells_of(r)) + "</tr>" for r in rows)
    head = "".join(f"<th>{h}</th>" for h in HEADINGS)
    records = ""
    for mode in ("exact", "fast"):
        lines = [l for l in (out / mode / "run.log").read_text().splitlines() if l.startswith("[opt_core]")]
        records += f"<h2>Run record, {mode}</h2><pre>{html.escape(chr(10).join(lines))}</pre>"
    path.write_text(f"""<!doctype html><html lang="en"><meta charset="utf-8"><title>opt_core demo</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}}
table{{border-collapse:collapse}}td,th{{padding:.2rem .7rem;border-bottom:1px solid #ddd;text-align:right}}
td:first-child,th:first-child{{text-align:left}}pre{{background:#f4f5f7;padding:1rem;overflow-x:auto;font-size:12px}}svg text{{font-size:13px}}</style>
<h1>The same engine, three ways</h1>
<p>{html.escape(platform.platform())}, {os.cpu_count()} processors, {time.strftime("%Y-%m-%d %H:%M")}. Random weights; the numbers
show speed and agreement, not protein structures.</p>
{bars(rows)}<h2>Numbers</h2><table><tr>{head}</tr>{body}</table>
<p>Speed-up: median over repeats of stock trunk time divided by the mode's. Error: root mean square of the pair representation against
a float64 run of the same weights, relative to its own scale.</p>{records}</html>
""")


def main() -> int:
    args = arguments()
    out = Path(args.out).resolve()
    timing = ["--repeats", str(args.repeats)]
    jobs = [(f"fold with ESMFOLD_OPT={word}", mode, word, timing) for mode, word in MODES]
    if not args.no_truth:
        jobs.append(("fold stock in float64 (the truth)", "float64", "off", ["--dtype", "float64"]))
    for index, (label, directory, word, extra) in enumerate(jobs):
        with Progress(f"[{index + 1}/{len(jobs)}] {label}"):
            fold(out / directory, word, args, extra)
    rows = collect(out, args)
    print()
    print_table(rows)
    write_html(out / "report.html", rows, out)
    (out / "table.json").write_text(json.dumps(rows, indent=1) + "\n")
    print(f"\nreport: {out / 'report.html'}")
    bad = [r for r in rows if r["mode"] == "exact" and r["verdict"] != "equal" or r["mode"] == "fast" and r["verdict"] not in ("equal", "within")]
    for r in bad:
        print(f"demo: {r['name']} {r['mode']}: {r['verdict']}", file=sys.stderr)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

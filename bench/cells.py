# SPDX-License-Identifier: Apache-2.0
"""Turns measured rows into cells: bench/results/<machine>-<family>.json -> kernels/<family>/<FAMILY>_CELLS.json.

    python bench/cells.py trimul [--machine xeon-amx,h200] # the results of these machines that are there, in one table

A measured size covers the sizes round it, up to the geometric mean with its neighbours; the largest covers up to 32 times itself: above it only the
bound by products and bytes grows. A size at which the row is not faster than the stock op, or has more than 1.5 times its error, gets no cell: the stock op
serves there. Exact cells reach as far as the proof and no further: from 1 to the largest size that tests/contract/test_exact_rows.py compares, at the
widths that it compares, on the stack that it ran on. The written table is what is reviewed and edited.

A GPU's result has several rows a size: the fastest that passes in every form measured and takes every call of the class gets the cell. Heads only multiply the work there; a head width
covers those below it down to the next measured one, since it is padded up; the module's widths reach no further than measured.
"""
from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = {"triattn_module": "triattn"}
# The dimensions that tell measured rows of a family apart besides n, and how far a measured value reaches: [value/2, 2*value).
KEYS = {"ln": "c", "transition": "cd", "trimul": "c", "triattn": "hd", "triattn_module": "c", "apb": "d"}
EXACT_KEYS = {"ln": "c", "transition": "cd", "trimul": "cd", "triattn_module": "hdc"}
FASTER = 1.05  # a row must beat the stock op by this ratio, or the noise decides


def ranges(values: list[int], reach: int, first: int = 1) -> dict[int, tuple[int, int]]:
    values = sorted(set(values))
    edges = [first, *(math.ceil(math.sqrt(a * b)) for a, b in zip(values, values[1:])), values[-1] * reach]
    return {v: (edges[i], edges[i + 1]) for i, v in enumerate(values)}


def side_ranges(values: list[int]) -> dict[int, tuple[int, int]]:
    return ranges(values, reach=2, first=max(1, min(values) // 2))


def keys_of(row: dict, family: str) -> str:
    return (EXACT_KEYS if row["tier"] == "exact" else KEYS)[family]


def group(row: dict, family: str) -> tuple:
    return row["tier"], row["isa"], row["dtype"], *(row["shape"][k] for k in keys_of(row, family))


def cells_of(family: str, rows: list[dict], content: dict, result: str) -> list[dict]:
    cells = []
    for key in dict.fromkeys(group(r, family) for r in rows):
        members = [r for r in rows if group(r, family) == key]
        keys, is_exact = keys_of(members[0], family), key[0] == "exact"
        side = {k: {v: (v, v + 1) for v in (r["shape"][k] for r in rows)} if is_exact
                else side_ranges([r["shape"][k] for r in rows if r["tier"] == key[0]]) for k in keys}
        reach = ranges([r["shape"]["n"] for r in members], reach=1 if is_exact else 32)
        largest = max(reach)
        if is_exact:
            reach[largest] = (reach[largest][0], largest + 1)
        for n, (low, high) in reach.items():
            same = [r for r in members if r["shape"]["n"] == n]  # directions and forms of one size
            if min(r["ratio"] for r in same) < FASTER or any(r["err"] > 1.5 * r["stock_err"] for r in same):
                continue
            slowest = min(same, key=lambda r: r["ratio"])
            tier, isa, dtype, *values = key
            label = "".join(f"-{k}{v}" for k, v in zip(keys, values))
            cell = {"id": f"{family}-{tier}-{isa}-{dtype}{label}-n{n}", "tier": tier, "device": f"cpu-{isa}", "dtype": dtype,
                    "form": slowest.get("cell_form", "*"), "n": [low, high]}
            if family in ("ln", "transition"):
                cell["n"] = [low * low, high * high]  # they count rows, the bench names the side of a square
            cell |= {k: list(side[k][v]) for k, v in zip(keys, values)}
            cell |= {"row": slowest["row"], "fallback": "stock", "us": slowest["us"], "peer_us": slowest["peers"]["torch_eager"],
                     "err": slowest["err"], "stock_err": slowest["stock_err"],
                     "evidence": {"date": content["date"], "machine": content["device"], "stack": f"torch-{content['stack']['torch']}",
                                  "command": content["command"], "result": result}}
            if tier == "exact":
                cell["stacks"] = slowest["stacks"]
            cells.append(cell)
    return cells


NARROW = {"cuda_sm90a"}  # refuses some calls of a cell's class (head widths, masks, strides) that a general row serves: gets no cell
GPU_DEVICES = {"h200": "sm_90a"}  # result files by the machine's word -> the device of a call class


def passes(row: dict) -> bool:
    return "error" not in row and row["ratio"] is not None and row["ratio"] >= FASTER and 0 <= row["err"] <= 1.5 * row["stock_err"]


def gpu_row(rows: list[dict]) -> list[dict]:
    """Of one size, the measurements of the row that passes in every form and takes the least time in all; [] for none."""
    names = dict.fromkeys(r["row"] for r in rows if r["row"] not in NARROW)
    forms = {name: [r for r in rows if r["row"] == name] for name in names}
    widest = max((len(f) for f in forms.values()), default=0)
    good = [f for f in forms.values() if len(f) == widest and all(passes(r) for r in f)]
    total = [sum(r["us"] for r in f) for f in good]
    # rows within 3 % are equal to the clock: the first in the bench's order serves, it takes the most call classes
    return next((f for f, us in zip(good, total) if us <= 1.03 * min(total)), [])


def padded_ranges(values: list[int]) -> dict[int, tuple[int, int]]:
    values = sorted(set(values))
    return {v: (low + 1, v + 1) for low, v in zip([0, *values], values)}


def gpu_cells(family: str, rows: list[dict], content: dict, result: str, device: str) -> list[dict]:
    rows = [r for r in rows if "tf32" not in r["form"]]  # a class of its own on the same row: what serves f32 serves it
    cells = []
    for dtype in dict.fromkeys(r["dtype"] for r in rows):
        of_dtype = [r for r in rows if r["dtype"] == dtype]
        widths = padded_ranges([r["shape"]["d"] for r in of_dtype])
        for d in widths:
            of_width = [r for r in of_dtype if r["shape"]["d"] == d]
            for n, reach in ranges([r["shape"]["n"] for r in of_width], reach=32).items():
                chosen = gpu_row([r for r in of_width if r["shape"]["n"] == n])
                if not chosen:
                    continue
                slowest = min(chosen, key=lambda r: r["ratio"])
                shape = slowest["shape"]
                side = {"h": [1, 129], "d": list(widths[d])} if family == "triattn" else {k: [shape[k], shape[k] + 1] for k in "hdc"}
                cells.append({"id": f"{family}-fast-{device}-{dtype}-d{d}-n{n}", "tier": "fast", "device": device, "dtype": dtype, "form": "*", "n": list(reach), **side,
                              "row": slowest["row"], "fallback": "stock", "us": slowest["us"], "peer_us": slowest["peers"][slowest["stock"]],
                              "err": slowest["err"], "stock_err": slowest["stock_err"],
                              "evidence": {"date": content["date"], "machine": f"{content['device']}, driver {content['driver']}", "stack": f"torch-{content['stack']['torch']}",
                                           "command": content["command"], "result": result}})
    return cells


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("family")
    p.add_argument("--machine", default="xeon-amx,zen-avx512_bf16,h200")
    args = p.parse_args()
    cells = []
    for machine, (name, tier) in ((m, t) for m in args.machine.split(",") for t in ((args.family, "fast"), ("exact", "exact"))):
        path = ROOT / f"bench/results/{machine}-{name}.json"
        if not path.exists():
            continue
        content = json.loads(path.read_text())
        rows = [dict(r, tier=tier) for r in content["rows"] if r["op"] == args.family]
        if rows and machine in GPU_DEVICES:
            cells += gpu_cells(args.family, rows, content, str(path.relative_to(ROOT)), GPU_DEVICES[machine])
        elif rows:
            cells += cells_of(args.family, rows, content, str(path.relative_to(ROOT)))
    table = ROOT / "common/opt_core/opt_core/kernels" / FOLDER.get(args.family, args.family) / f"{args.family.upper()}_CELLS.json"
    lines = ",\n  ".join(json.dumps(c) for c in cells)
    table.write_text(f'{{"schema": 1, "family": "{args.family}",\n "cells": [\n  {lines}\n ]}}\n')
    print(f"{table.relative_to(ROOT)}: {len(cells)} cells")


if __name__ == "__main__":
    main()

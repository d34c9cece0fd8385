# SPDX-License-Identifier: Apache-2.0
"""Writes the README's numbers from bench/results; --check ends with status 1 when they are not current."""
from __future__ import annotations

import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- numbers: tools/readme_numbers.py -->", "<!-- end of the numbers -->"
MACHINE = "xeon-amx"


def table() -> str:
    engine = json.loads((ROOT / f"bench/results/{MACHINE}-engine.json").read_text())
    rows = {(r["form"].rsplit(":", 1)[1], r["shape"]["n"]): r for r in engine["rows"]}
    lines = [f"Trunk of ESMFold, eight blocks and the structure module, f32, {engine['device']}, torch {engine['stack']['torch']}, {engine['date']} "
             f"([result](bench/results/{MACHINE}-engine.json)); stock and kit interleaved in one process, medians of paired ratios:", "",
             "| residues | stock, ms | exact, ms | exact / stock | fast, ms | fast / stock | error of fast / error of stock |", "|---|---|---|---|---|---|---|"]
    for n in sorted({n for _, n in rows}):
        exact, fast = rows["exact", n], rows["fast", n]
        lines.append(f"| {n} | {fast['peers']['stock_torch'] / 1e3:.0f} | {exact['us'] / 1e3:.0f} | {exact['ratio']:.2f}x, "
                     f"{'same bits' if exact['equal_bits'] else 'other bits'} | {fast['us'] / 1e3:.0f} | {fast['ratio']:.2f}x | {fast['err'] / fast['stock_err']:.2f} |")
    return "\n".join([BEGIN, *lines, END])


def main() -> int:
    path = ROOT / "README.md"
    text = path.read_text()
    before, _, rest = text.partition(BEGIN)
    current = before + table() + rest.partition(END)[2]
    if current == text:
        return 0
    if "--check" in sys.argv:
        print("README.md: the numbers are not those of bench/results; run tools/readme_numbers.py")
        return 1
    path.write_text(current)
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""The first kit's engine, and the exact rows: stock and switched-over calls interleaved in one process."""
from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = 8  # the real model has 48; the structure module behind the trunk's blocks costs the same at any depth
RESIDUES = {"ubiquitin": 76, "lysozyme": 129, "gfp": 238}


class Switch:
    """Puts a kit's wrappers in and takes them out, for interleaved timing of one process.

    The allocator's setting goes with them: without the kit, glibc raises its own threshold to 32 MB as soon as a block of that size was freed, and
    that is what stock gets here from the start.
    """

    def __init__(self, kit):
        from opt_core import _core

        self.sites = [site for lever in kit.levers for site in lever._sites]
        self._keep = _core.malloc_keep

    def on(self):
        self._keep(1 << 30)
        for site in self.sites:
            setattr(site.owner, site.method, site.wrapper)

    def off(self):
        self._keep(32 << 20)
        for site in self.sites:
            setattr(site.owner, site.method, site.stock)


def trunk_rows(mode: str, interleaved, least: int) -> list[dict]:
    """Called in a process of its own with ESMFOLD_OPT=mode."""
    sys.path.insert(0, str(ROOT / "examples"))
    import torch

    import esmfold_opt
    import fold

    model = fold.build_model(BLOCKS, 0, 0, None)
    twin = fold.build_model(BLOCKS, 0, 0, None).double()
    switch = Switch(esmfold_opt.kit())
    trunk = fold.TrunkTimer(model.trunk)
    rows = []
    for name in RESIDUES:
        (_, sequence), = fold.read_fasta(f"{name}.fasta")
        spent: dict[str, list[float]] = {"stock": [], "ours": []}

        def run(which):
            (switch.on if which == "ours" else switch.off)()
            trunk.seconds = 0.0
            output = model.infer(sequence)
            spent[which].append(trunk.seconds)
            return output

        interleaved({"stock": lambda: run("stock"), "ours": lambda: run("ours")}, least, 0.0)
        ours, stock = run("ours"), run("stock")
        switch.off()
        truth = twin.infer(sequence)
        switch.on()
        seconds = {k: v[1:] for k, v in spent.items()}  # the first round warms up
        ratios = [s / o for s, o in zip(seconds["stock"], seconds["ours"])]
        error = lambda out: float((out["s_z"].double() - truth["s_z"]).pow(2).mean().sqrt())
        row = {"op": "engine", "form": f"esmfold:trunk:{mode}", "dtype": "f32", "shape": {"b": 1, "n": len(sequence), "blocks": BLOCKS},
               "us": round(statistics.median(seconds["ours"]) * 1e6, 1), "ratio": round(statistics.median(ratios), 3), "n": len(ratios),
               "err": error(ours), "stock_err": error(stock), "equal_bits": all(torch.equal(ours[k], stock[k]) for k in fold.KEPT),
               "peers": {"stock_torch": round(statistics.median(seconds["stock"]) * 1e6, 1)}}
        print(f"{row['form']:24} n={len(sequence):4} {row['us'] / 1e3:9.1f} ms  stock {row['peers']['stock_torch'] / 1e3:9.1f} ms  {row['ratio']:.2f}x  "
              f"err {row['err']:.2e} / {row['stock_err']:.2e}  equal bits: {row['equal_bits']}", flush=True)
        rows.append(row)
    return rows


def exact_rows(interleaved, least: int) -> list[dict]:
    """The exact members, op by op, with their bits checked against the stock form in the same process."""
    sys.path.insert(0, str(ROOT / "bench"))
    import torch

    import cases
    from opt_core import _core, torch_glue

    rows = []
    builders = [("trimul", "exact_planes", lambda n: cases.trimul_case("f32", n, 128, n % 2 == 0, True)),
                ("triattn_module", "exact_rows", lambda n: cases.triattn_module_case("f32", n, 128, 4, 32, n % 2 == 0)),
                ("transition", "exact_rows", lambda n: cases.transition_case("f32", n, 128, 4, "relu")),
                ("ln", "exactln", lambda n: cases.ln_case("f32", n, 128))]
    for op, row_name, build in builders:
        for n in (32, 76, 129, 238, 256):
            case = build(n)
            with torch.no_grad():
                result, (_, _, member) = case.ours(row_name)
                equal = torch.equal(result, case.stock())
                times = interleaved({"stock": case.stock, "ours": lambda: case.ours(row_name)}, least, 1.0)
                truth = case.truth()
                err = float((case.stock().double() - truth).pow(2).mean().sqrt())
            us = {k: statistics.median(v) * 1e6 for k, v in times.items()}
            ratio = statistics.median(s / o for s, o in zip(times["stock"], times["ours"]))
            rows.append({"op": op, "form": case.form, "cell_form": FORMS[op], "dtype": "f32", "shape": case.shape, "isa": _core.cpu_facts()["isa"],
                         "row": row_name, "member": member, "us": round(us["ours"], 1), "err": err, "stock_err": err, "ratio": round(ratio, 3),
                         "n": len(times["ours"]), "equal_bits": equal, "stacks": [torch_glue.stack()], "peers": {"torch_eager": round(us["stock"], 1)}})
            print(f"{op:15} {row_name:13} n={n:4} {us['ours'] / 1e3:9.2f} ms  stock {us['stock'] / 1e3:9.2f} ms  {ratio:.2f}x  equal bits: {equal}", flush=True)
    return rows


# The forms that each exact row serves; its cells accept these only.
FORMS = {"trimul": ["biased+mask+outgoing", "biased+incoming+mask", "biased+outgoing", "biased+incoming"],
         "triattn_module": ["biased+gate+mask_subtract", "biased+gate"],
         "transition": ["biased+relu+residual"],
         "ln": ["affine"]}


def bench(args, head, write_result, interleaved) -> None:
    rows = []
    for mode in ("fast", "exact"):
        with tempfile.TemporaryDirectory() as directory:
            into = Path(directory) / "rows.json"
            env = dict(os.environ, ESMFOLD_OPT=mode, OPT_CORE_MANIFEST=str(Path(directory) / "opt_manifest.json"))
            subprocess.run([sys.executable, __file__, mode, str(into), str(args.least)], env=env, check=True)
            rows += json.loads(into.read_text())
    write_result("engine", head("make bench FAMILY=engine") | {"rows": rows})


def bench_exact(args, head, write_result, interleaved) -> None:
    write_result("exact", head("make bench FAMILY=exact") | {"rows": exact_rows(interleaved, args.least)})


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "bench"))
    from bench import interleaved as interleave

    Path(sys.argv[2]).write_text(json.dumps(trunk_rows(sys.argv[1], interleave, int(sys.argv[3]))))

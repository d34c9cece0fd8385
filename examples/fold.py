# SPDX-License-Identifier: Apache-2.0
"""Fold FASTA sequences with the unmodified ESMFold of `transformers` and random weights.

    ESMFOLD_OPT=fast python examples/fold.py ubiquitin.fasta

The weights are random with a fixed seed, so nothing is downloaded and any machine gives the same model; the trunk has the
real widths (c_s 1024, c_z 128, 4 heads of 32) and as many blocks as asked for. Nothing in this file knows opt_core: the
environment variable alone switches the kit on. Written for each sequence: <out>/<name>/structure.pdb, tensors.safetensors
and timing.json (seconds of the whole forward and of the trunk).
"""
from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("fasta", nargs="+", help="FASTA files (a bare name is also looked for beside this script)")
    p.add_argument("--out", default="fold_out", help="output directory (default: %(default)s)")
    p.add_argument("--blocks", type=int, default=4, help="trunk blocks (default: %(default)s; the real model has 48)")
    p.add_argument("--recycles", type=int, default=0, help="extra passes through the trunk (default: %(default)s)")
    p.add_argument("--repeats", type=int, default=1, help="timed forwards a sequence; timing.json holds them all")
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--dtype", choices=["float32", "float64"], default="float32", help="float64: the truth to compare with")
    p.add_argument("--threads", type=int, default=0, help="torch threads (default: torch's own choice)")
    p.add_argument("--chunk", type=int, default=None, help="row chunk of the stock triangle attention (default: none)")
    return p.parse_args(argv)


def read_fasta(name: str) -> list[tuple[str, str]]:
    path = Path(name)
    if not path.exists():
        path = Path(__file__).resolve().parent / name
    if not path.exists():
        sys.exit(f"fold.py: no such FASTA file: {name}")
    records: list[tuple[str, str]] = []
    for line in path.read_text().splitlines():
        if line.startswith(">"):
            records.append((line[1:].split()[0], ""))
        elif line.strip():
            records[-1] = (records[-1][0], records[-1][1] + line.strip())
    return records


def build_model(blocks: int, seed: int, recycles: int, chunk: int | None):
    """EsmForProteinFolding with a small language model in front of a trunk of the real width, every parameter random."""
    import torch
    from transformers import EsmConfig
    from transformers.models.esm.modeling_esmfold import EsmForProteinFolding

    vocabulary = ["<cls>", "<pad>", "<eos>", "<unk>", *"LAGVSERTIDPKQNFYMHWCXBUZO.-", "<null_1>", "<mask>"]
    config = EsmConfig(
        vocab_size=len(vocabulary), vocab_list=vocabulary, mask_token_id=vocabulary.index("<mask>"), pad_token_id=1,
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, max_position_embeddings=1026,
        position_embedding_type="rotary", token_dropout=True, emb_layer_norm_before=False, is_folding_model=True,
        esmfold_config={"trunk": {"num_blocks": blocks, "max_recycles": recycles + 1, "chunk_size": chunk}, "fp16_esm": False},
    )
    model = EsmForProteinFolding(config).eval()
    randomise(model, seed)
    return model


def randomise(model, seed: int) -> None:
    """Every parameter anew: matrices N(0, 1/fan_in), norm weights 1 + 0.1 N, biases 0.1 N. A zero-initialised output layer
    would hide whatever an optimised block computes."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in sorted(model.named_parameters()):
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float32)
            if p.dim() > 1:
                p.copy_(noise / p.shape[-1] ** 0.5)
            elif name.endswith("weight"):
                p.copy_(1.0 + 0.1 * noise)
            else:
                p.copy_(0.1 * noise)


class TrunkTimer:
    """Adds up the wall time spent inside the trunk."""

    def __init__(self, module):
        self.seconds = 0.0
        module.register_forward_pre_hook(self._start)
        module.register_forward_hook(self._stop)

    def _start(self, *_):
        self._at = time.perf_counter()

    def _stop(self, *_):
        self.seconds += time.perf_counter() - self._at


KEPT = ("positions", "s_s", "s_z", "plddt", "ptm_logits", "lm_logits")


def write_outputs(directory: Path, output, timing: dict, model) -> None:
    from safetensors.torch import save_file

    directory.mkdir(parents=True, exist_ok=True)
    tensors = {k: output[k].contiguous() for k in KEPT}
    tensors["positions"] = output["positions"][-1].contiguous()
    save_file(tensors, directory / "tensors.safetensors")
    (directory / "structure.pdb").write_text(model.output_to_pdb(output)[0])
    (directory / "timing.json").write_text(json.dumps(timing, indent=1) + "\n")


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    records = [record for name in args.fasta for record in read_fasta(name)]
    import torch

    if args.threads:
        torch.set_num_threads(args.threads)
    model = build_model(args.blocks, args.seed, args.recycles, args.chunk).to(getattr(torch, args.dtype))
    trunk = TrunkTimer(model.trunk)
    if args.repeats > 1:
        model.infer(records[0][1])  # warm: allocator, thread pool, first-call set-up
    for name, sequence in records:
        timing = {"residues": len(sequence), "blocks": args.blocks, "forward_s": [], "trunk_s": []}
        for _ in range(args.repeats):
            trunk.seconds, began = 0.0, time.perf_counter()
            output = model.infer(sequence)
            timing["forward_s"].append(time.perf_counter() - began)
            timing["trunk_s"].append(trunk.seconds)
        write_outputs(Path(args.out) / name, output, timing, model)
        print(f"{name}: {len(sequence)} residues, trunk {min(timing['trunk_s']):.2f} s, pLDDT mean {float(output['plddt'].mean()):.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Runs of examples/fold.py, each in a process of its own."""
import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SEQUENCES = ("ubiquitin", "lysozyme", "gfp")


@dataclasses.dataclass
class Run:
    out: Path
    status: int
    stdout: str
    stderr: str

    @property
    def lines(self):
        return [line for line in self.stderr.splitlines() if line.startswith("[opt_core]")]

    @property
    def manifest(self):
        return json.loads((self.out / "opt_manifest.json").read_text())

    def tensors(self, name):
        from safetensors.numpy import load_file

        return load_file(self.out / name / "tensors.safetensors")


def clean_environment(**extra):
    env = {k: v for k, v in os.environ.items() if not k.endswith("_OPT") and not k.startswith(("OPT_CORE_", "MODEL_OPT_"))}
    return env | {k: v for k, v in extra.items() if v is not None}


def run_python(arguments, cwd, **environment):
    done = subprocess.run([sys.executable, *map(str, arguments)], cwd=cwd, env=clean_environment(**environment), capture_output=True, text=True, timeout=900)
    return Run(Path(cwd), done.returncode, done.stdout, done.stderr)


def fold(out, *arguments, sequences=SEQUENCES, **environment):
    out.mkdir(parents=True, exist_ok=True)
    return run_python([ROOT / "examples/fold.py", *(f"{s}.fasta" for s in sequences), "--out", out, *arguments], out, **environment)

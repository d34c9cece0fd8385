# SPDX-License-Identifier: Apache-2.0
"""Builds every CPU member with a fault in it and demands that the family's C test turns red.

OC_MUTANT=1 swapped operand, 2 shifted index, 3 dropped tail, 4 lost mask (members/cpu.c of each family names the place).
A mutant that a family does not have (ln has no mask) is listed in ABSENT and printed as such.
"""
from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "common/opt_core"
FAMILIES = ["ln", "transition", "trimul", "triattn", "apb"]
FAULTS = {1: "swapped operand", 2: "shifted index", 3: "dropped tail", 4: "lost mask"}
ABSENT = {("ln", 4)}


def build(directory: Path, fault: int) -> None:
    generate = ["cmake", "-S", str(CORE), "-B", str(directory), "-G", "Ninja", "-DOPT_CORE_TESTS=ON", "-DOPT_CORE_CUBINS=OFF", f"-DOPT_CORE_MUTANT={fault}"]
    subprocess.run(generate, check=True, stdout=subprocess.DEVNULL)  # only the members are compiled again
    targets = [f"test_{family}" for family in FAMILIES]
    done = subprocess.run(["cmake", "--build", str(directory), "--target", *targets], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"mutants: the build with fault {fault} failed:\n{done.stdout[-3000:]}")


def test_status(directory: Path, family: str) -> int:
    """0 when the family's test is green. Ends at the first test that fails."""
    env = dict(os.environ, OC_TEST_QUICK="1")
    run = subprocess.Popen([str(directory / f"test_{family}")], env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace")
    with run:
        for line in run.stdout:
            if line.startswith("[  FAILED  ]"):  # cmocka goes on with the other tests; one is enough
                run.kill()
                return 1
    return run.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", default="build/mutants")
    directory = Path(parser.parse_args().build).resolve()
    survivors, killed = [], 0
    for fault in (0, *FAULTS):
        build(directory, fault)
        for family in FAMILIES:
            if (family, fault) in ABSENT:
                print(f"{family:12} {FAULTS[fault]:16} absent: the family has no such step")
                continue
            status = test_status(directory, family)
            if fault == 0 and status != 0:
                sys.exit(f"mutants: test_{family} is red without a fault (status {status})")
            if fault and status == 0:
                survivors.append((family, FAULTS[fault]))
            killed += bool(fault and status)
            if fault:
                print(f"{family:12} {FAULTS[fault]:16} {'killed' if status else 'SURVIVED'}", flush=True)
    expected = len(FAMILIES) * len(FAULTS) - len(ABSENT)
    print(f"{killed} passed, {len(survivors)} failed")
    return 0 if not survivors and killed == expected else 1


if __name__ == "__main__":
    sys.exit(main())

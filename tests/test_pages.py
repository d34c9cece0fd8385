# SPDX-License-Identifier: Apache-2.0
"""Every command in a README or guide is known here and runs in a test; links lead somewhere; generated tables are current."""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("*/opt/README.md")), ROOT / "CONTRIBUTING.md",
         *sorted((ROOT / "common/opt_core").glob("*.md")), *sorted((ROOT / "common/opt_core/opt_core/kernels").glob("*/README.md"))]

# Commands that this file runs itself, and commands that another test runs (named, and checked to exist).
ELSEWHERE = {
    "make demo": "tests/test_demo.py",
    "make test": ".ci/run",
    "pip install -e common/opt_core -e esmfold/opt": "tools/environment.sh",
    "pip install --no-build-isolation --no-index -e common/opt_core -e esmfold/opt": "tests/test_wheels.py",
    "pip install --no-index --find-links dist opt-core esmfold-opt": "tests/test_wheels.py",
    "cmake -S common/opt_core -B build/lib -DCMAKE_INSTALL_PREFIX=/usr/local && cmake --build build/lib && cmake --install build/lib":
        "common/opt_core/tests/contract/test_headers.py",
}
HERE = {
    "ESMFOLD_OPT=fast python examples/fold.py ubiquitin.fasta",
    "python -m opt_core run -- python your_script.py",
}
# Commands for a machine with a GPU; on others they say that they are skipped, which is what is tested.
GPU = ("make test-gpu", "make sanitize-gpu", "make bench DEVICE=cuda FAMILY=triattn")


def commands():
    for page in PAGES:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.S):
            for line in block.replace("\\\n", " ").splitlines():
                line = line.split("#")[0].strip()
                if line:
                    yield page, line


def test_every_command_is_known():
    found = list(commands())
    assert len(found) >= 8
    unknown = [f"{page.relative_to(ROOT)}: {line}" for page, line in found if line not in {*HERE, *ELSEWHERE, *GPU} and not line.startswith(("opt_core ", "python -m opt_core "))]
    assert unknown == []
    for place in ELSEWHERE.values():
        assert (ROOT / place).exists(), place


def clean(**extra):
    kept = {k: v for k, v in os.environ.items() if not k.endswith("_OPT") and not k.startswith(("OPT_CORE_", "MODEL_OPT_"))}
    return kept | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"} | extra


def test_the_fold_command(tmp_path):
    done = subprocess.run("ESMFOLD_OPT=fast python examples/fold.py ubiquitin.fasta --out " + str(tmp_path), shell=True, cwd=ROOT,
                          env=clean(OPT_CORE_MANIFEST=str(tmp_path / "opt_manifest.json")), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kinds = [line.split()[1] for line in done.stderr.splitlines() if line.startswith("[opt_core]")]
    assert kinds.count("ACTIVE") == 1 and kinds.count("LEVER") == 6 and kinds.count("CELLS") == 1 and kinds[-1] == "EXIT"


def test_the_run_command(tmp_path):
    (tmp_path / "your_script.py").write_text("import sys\nprint('ran', len(sys.argv))\n")
    done = subprocess.run("python -m opt_core run -- python your_script.py", shell=True, cwd=tmp_path, env=clean(), capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ran 1\n"), done.stderr


@pytest.mark.parametrize("command", GPU)
def test_the_gpu_commands_say_what_they_skip(command):
    if shutil.which("nvidia-smi"):
        pytest.skip("a GPU may be here; the command itself is the test")
    done = subprocess.run(command, shell=True, cwd=ROOT, env=clean(), capture_output=True, text=True)
    assert done.returncode == 0 and "skipped: no NVIDIA GPU" in done.stdout, done.stdout + done.stderr


def test_the_code_of_the_torch_page():
    """In order, as one program. What is for CUDA runs where a GPU is."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/torch.md").read_text(), re.S)
    assert len(blocks) == 6
    done = subprocess.run([sys.executable, "-c", "".join(blocks)], env=clean(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.relative_to(ROOT)}: {target}"


def test_generated_tables_are_current():
    done = subprocess.run([sys.executable, ROOT / "tools/family_tables.py", "--check"], env=clean(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_numbers_of_the_readme_come_from_result_files():
    """Each row of the README's table is recomputed from bench/results."""
    done = subprocess.run([sys.executable, ROOT / "tools/readme_numbers.py", "--check"], env=clean(), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_results_have_a_birth_certificate():
    import json

    files = sorted((ROOT / "bench/results").glob("*.json"))
    assert len(files) >= 7
    for path in files:
        content = json.loads(path.read_text())
        assert content["schema"] == 1 and re.fullmatch(r"\d{4}-\d\d-\d\d", content["date"])
        assert all(content[k] for k in ("device", "stack", "command", "commit")) and content["rows"], path.name


def test_cells_cite_a_committed_result():
    from opt_core import _core

    cited = 0
    for family in ("ln", "transition", "trimul", "triattn", "triattn_module", "apb"):
        for cell in _core.cells(family):
            assert (ROOT / cell["result"]).exists(), cell["id"]
            assert cell["err"] <= 1.5 * cell["stock_err"], cell["id"]
            cited += 1
    assert cited > 20

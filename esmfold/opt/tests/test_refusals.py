# SPDX-License-Identifier: Apache-2.0
"""How the kit refuses and how its accounting fails closed, with the exit statuses of the specification."""
from conftest import fold, run_python

IMPORT = "import transformers.models.esm.modeling_esmfold"


def test_unknown_mode(tmp_path):
    run = fold(tmp_path, "--blocks", "1", sequences=["ubiquitin"], ESMFOLD_OPT="fats")
    assert run.status == 3
    assert any(line.startswith("[opt_core] NOT ACTIVE: esmfold: mode:unknown:fats") and "fast" in line for line in run.lines), run.stderr


def test_mode_without_levers_is_refused(tmp_path):
    run = run_python(["-c", IMPORT], tmp_path, ESMFOLD_OPT="big")
    assert run.status == 3
    assert any("NOT ACTIVE: esmfold: mode:" in line and "big" in line for line in run.lines), run.stderr


def test_unknown_lever_names_the_nearest(tmp_path):
    run = run_python(["-c", IMPORT], tmp_path, ESMFOLD_OPT="fast", MODEL_OPT_LEVERS_OFF="trimull")
    assert run.status == 3
    assert any("lever:unknown:trimull" in line and "trimul" in line.replace("trimull", "") for line in run.lines), run.stderr


def test_unknown_variable(tmp_path):
    run = run_python(["-c", IMPORT], tmp_path, ESMFOLD_OPT="fast", OPT_CORE_MANFEST="x")
    assert run.status == 3
    assert any("environment:OPT_CORE_MANFEST" in line for line in run.lines), run.stderr


def test_a_lever_that_serves_nothing_closes_the_run(tmp_path):
    run = run_python(["-c", IMPORT], tmp_path, ESMFOLD_OPT="fast")
    assert run.status == 4
    assert sum(line.startswith("[opt_core] ACCOUNTING ") for line in run.lines) == 4, run.stderr
    assert run.manifest["state"] == "closed"


def test_a_method_that_lost_its_patch_closes_the_run(tmp_path):
    program = f"{IMPORT} as m\nm.EsmFoldResidueMLP.forward = lambda self, x: x"
    run = run_python(["-c", program], tmp_path, ESMFOLD_OPT="fast")
    assert run.status == 4
    assert any("ACCOUNTING transition" in line and "patched" in line for line in run.lines), run.stderr


def test_the_engine_keeps_its_own_status(tmp_path):
    run = run_python(["-c", f"{IMPORT}\nimport sys\nsys.exit(7)"], tmp_path, ESMFOLD_OPT="fast")
    assert run.status == 7


BLOCK = """
import torch
from transformers.models.esm.configuration_esm import TrunkConfig
from transformers.models.esm.modeling_esmfold import EsmFoldTriangularSelfAttentionBlock
torch.manual_seed(0)
block = EsmFoldTriangularSelfAttentionBlock(TrunkConfig(num_blocks=1)).eval()
s, z, mask = torch.randn(1, 9, 1024), torch.randn(1, 9, 9, 128), torch.ones(1, 9)
"""


def test_gradients_stay_with_the_stock_op_and_are_counted(tmp_path):
    program = BLOCK + "out = block(s, z, mask=mask)[1]\nout.sum().backward()\nassert block.mlp_pair.mlp[1].weight.grad is not None\n"
    run = run_python(["-c", program + "with torch.no_grad(): block(s, z, mask=mask)\n"], tmp_path, ESMFOLD_OPT="exact")
    if not any(lever["state"] == "served" for lever in run.manifest["levers"]):
        assert all(lever["reason"].startswith(("proof", "uncovered_cell")) for lever in run.manifest["levers"])
        return
    assert run.status == 0, run.stderr
    assert "NAMED_FALLBACK:transition:" in run.stderr and ":grad" in run.stderr.replace("%3A", ":")


def test_gradients_under_require_end_the_run(tmp_path):
    run = run_python(["-c", BLOCK + "block(s, z, mask=mask)"], tmp_path, ESMFOLD_OPT="fast")
    assert run.status == 3
    assert any("NOT ACTIVE" in line and "grad" in line for line in run.lines), run.stderr


def test_a_call_outside_the_table_is_stock_and_counted(tmp_path):
    """float64 has no cell: the call stays stock, and a lever that then has served nothing closes the run."""
    run = run_python(["-c", BLOCK + "with torch.no_grad(): block.double()(s.double(), z.double(), mask=mask.double())"], tmp_path, ESMFOLD_OPT="fast")
    assert run.status == 4, run.stderr
    assert "UNCOVERED_CELL:trimul:" in run.stderr

# SPDX-License-Identifier: Apache-2.0
"""How the kit refuses and how its accounting fails closed, with the exit statuses of the specification."""
import json

import pytest
from folding import ROOT, fold, run_python

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
    assert sum(line.startswith("[opt_core] ACCOUNTING ") for line in run.lines) == 6, run.stderr
    assert run.manifest["state"] == "closed"


def test_a_method_that_lost_its_patch_closes_the_run(tmp_path):
    program = f"{IMPORT} as m\nm.EsmFoldResidueMLP.forward = lambda self, x: x"
    run = run_python(["-c", program], tmp_path, ESMFOLD_OPT="fast")
    assert run.status == 4
    assert any("ACCOUNTING transition" in line and "patched" in line for line in run.lines), run.stderr


def test_the_engine_keeps_its_own_status(tmp_path):
    run = run_python(["-c", f"{IMPORT}\nimport sys\nsys.exit(7)"], tmp_path, ESMFOLD_OPT="fast")
    assert run.status == 7


@pytest.fixture
def proven_here(tmp_path):
    """An overlay in which every exact cell is one of this processor and stack. What these tests ask of an exact row is that it is bound and
    steps aside, not its bits, and that must not depend on which processors somebody has proven it on."""
    from opt_core import _core, torch_glue

    tables = [json.loads(path.read_text()) for path in sorted((ROOT / "common/opt_core/opt_core/kernels").glob("*/*_CELLS.json"))]
    for table in tables:
        table["cells"] = [cell | {"device": f"cpu-{_core.cpu_isa()}", "stacks": [torch_glue.stack()]} for cell in table["cells"] if cell["tier"] == "exact"]
    overlay = tmp_path / "cells.json"
    overlay.write_text(json.dumps({"tables": [table for table in tables if table["cells"]]}))
    return str(overlay)


# A block by itself never calls the trunk, and some programs call a part of a block only: what they do not call is switched off.
NO_TRUNK = "allocator"
NO_BLOCK = "allocator,dropout"

BLOCK = """
import sys
import torch
N = int(sys.argv[1])
from transformers.models.esm.configuration_esm import TrunkConfig
from transformers.models.esm.modeling_esmfold import EsmFoldTriangularSelfAttentionBlock
torch.manual_seed(0)
block = EsmFoldTriangularSelfAttentionBlock(TrunkConfig(num_blocks=1)).eval()
s, z, mask = torch.randn(1, N, 1024), torch.randn(1, N, N, 128), torch.ones(1, N)
"""


def test_gradients_stay_with_the_stock_op_and_are_counted(tmp_path, proven_here):
    program = BLOCK + "out = block(s, z, mask=mask)[1]\nout.sum().backward()\nassert block.mlp_pair.mlp[1].weight.grad is not None\n"
    run = run_python(["-c", program + "with torch.no_grad(): block(s, z, mask=mask)\n", 178], tmp_path, ESMFOLD_OPT="exact",
                     MODEL_OPT_LEVERS_OFF=NO_TRUNK, OPT_CORE_CELLS=proven_here)
    assert run.status == 0, run.stderr
    assert "NAMED_FALLBACK:transition:" in run.stderr and ":grad" in run.stderr.replace("%3A", ":")


def test_gradients_under_require_end_the_run(tmp_path):
    run = run_python(["-c", BLOCK + "block(s, z, mask=mask)", 9], tmp_path, ESMFOLD_OPT="fast")
    assert run.status == 3
    assert any("NOT ACTIVE" in line and "grad" in line for line in run.lines), run.stderr


def test_a_call_outside_the_table_is_stock_and_counted(tmp_path):
    """float64 has no cell: each call stays stock, and a required lever that could serve none of its calls is refused."""
    run = run_python(["-c", BLOCK + "with torch.no_grad(): block.double()(s.double(), z.double(), mask=mask.double())", 9], tmp_path, ESMFOLD_OPT="fast",
                     MODEL_OPT_LEVERS_OFF=NO_TRUNK)
    assert run.status == 3, run.stderr
    assert "UNCOVERED_CELL:trimul:" in run.stderr
    assert any(line.startswith("[opt_core] NOT ACTIVE: trimul: uncovered_cell:") for line in run.lines), run.stderr


SERVING = """
import copy, json, sys
import torch
from transformers.models.esm.configuration_esm import TrunkConfig
from transformers.models.esm.modeling_esmfold import EsmFoldTriangularSelfAttentionBlock
torch.manual_seed(0)
torch.set_grad_enabled(False)
block = EsmFoldTriangularSelfAttentionBlock(TrunkConfig(num_blocks=1)).eval()
for p in block.parameters():
    p.normal_(0, 0.05)
s, z, mask = torch.randn(1, 178, 1024), torch.randn(1, 178, 178, 128), torch.ones(1, 178)  # exact rows serve all of it
tri = torch.ones(1, 178, 178)
kit = sys.modules["esmfold_opt"].kit()
index = {lever.name: lever.index for lever in kit.levers}
counts = lambda name: kit.run.counts(index[name])

def against_stock(lever, module, *arguments, **more):
    # the same bits as the stock method, counted as a fallback
    expected = type(module).forward.__wrapped__(module, *arguments, **more)
    before = counts(lever)
    got = module(*arguments, **more)
    after = counts(lever)
    same = got.dtype == expected.dtype and got.shape == expected.shape and torch.equal(got, expected)
    return [same, *(after[word] - before[word] for word in ("calls", "fallbacks"))]

class LowRank(torch.nn.Module):
    # keeps the layer's weight in reach and adds to its result
    def __init__(self, base):
        super().__init__()
        self.base, self.add = base, torch.nn.Linear(base.in_features, base.out_features)
    weight = property(lambda self: self.base.weight)
    bias = property(lambda self: self.base.bias)
    def forward(self, x):
        return self.base(x) + self.add(x)

double = lambda module, arguments, result: result * 2
"""

CHANGES = """
changes = {
    "hook": ("trimul", "tri_mul_out", lambda m: m.linear_z.register_forward_hook(double)),
    "low rank": ("trimul", "tri_mul_in", lambda m: setattr(m, "linear_z", LowRank(m.linear_z))),
    "parametrization": ("triattn", "tri_att_end", lambda m: torch.nn.utils.parametrizations.weight_norm(m.mha.linear_q)),
    "container": ("triattn", "tri_att_start", lambda m: m.mha.register_forward_hook(double)),
    "own forward": ("transition", "mlp_pair", lambda m: setattr(m.mlp[3], "forward", lambda x: x[..., :128])),
    "another layer": ("transition", "mlp_pair", lambda m: m.mlp.__setitem__(2, torch.nn.SiLU())),
    "one more layer": ("transition", "mlp_pair", lambda m: m.mlp.append(torch.nn.SiLU())),
}
result = {}
for name, (lever, path, change) in changes.items():
    module = copy.deepcopy(getattr(block, path))
    arguments = (z,) if lever == "transition" else (z, tri)
    module(*arguments)
    plain = against_stock(lever, module, *arguments)[1:]
    change(module)
    result[name] = [plain, against_stock(lever, module, *arguments)]
print(json.dumps(result))
"""

REFUSED = """
result = {"chunks": against_stock("triattn", block.tri_att_end, z, tri, chunk_size=64)}
result["unbatched trimul"] = against_stock("trimul", block.tri_mul_out, z[0], tri[0])
result["unbatched triattn"] = against_stock("triattn", block.tri_att_end, z[0], tri[0])
result["broadcast mask"] = against_stock("triattn", block.tri_att_start, z, tri[0])
with torch.autocast("cpu", torch.bfloat16):
    result["autocast"] = against_stock("trimul", block.tri_mul_out, z, tri)
block.tri_mul_out(z, tri), block.tri_att_start(z, tri), block.mlp_pair(z), block.pair_to_sequence(z)
print(json.dumps(result))
"""


def test_a_changed_submodule_is_not_read_past(tmp_path, proven_here):
    """The stock result of the changed engine comes out, and the record says why."""
    run = run_python(["-c", SERVING + CHANGES], tmp_path, ESMFOLD_OPT="exact", MODEL_OPT_LEVERS_OFF=NO_BLOCK + ",ln", OPT_CORE_CELLS=proven_here)
    assert run.status == 0, run.stderr
    result = json.loads(run.stdout)
    assert len(result) == 7
    for name, (plain, changed) in result.items():
        assert (plain, changed) == ([1, 0], [True, 1, 1]), name
    text = run.stderr.replace("%20", " ")
    assert "linear_z: hooks round its forward" in text and "linear_z: LowRank, not EsmFoldLinear" in text


def test_a_changed_submodule_ends_a_required_run(tmp_path):
    program = SERVING + "block.tri_att_end.layer_norm.register_forward_hook(double)\nblock.tri_att_end(z, tri)"
    run = run_python(["-c", program], tmp_path, ESMFOLD_OPT="fast")
    assert run.status == 3
    assert any("NOT ACTIVE: triattn: dialect:EsmFoldTriangleAttention.layer_norm: hooks round" in line for line in run.lines), run.stderr


def test_what_the_stock_op_takes_and_the_row_does_not(tmp_path, proven_here):
    """Unbatched input, a mask that broadcasts, autocast, and chunks where bits are promised: stock's own result."""
    run = run_python(["-c", SERVING + REFUSED], tmp_path, ESMFOLD_OPT="exact", MODEL_OPT_LEVERS_OFF=NO_BLOCK, OPT_CORE_CELLS=proven_here)
    assert run.status == 0, run.stderr
    result = json.loads(run.stdout)
    assert len(result) == 5
    for name, counted in result.items():
        assert counted == [True, 1, 1], name
    text = run.stderr.replace("%20", " ")
    for what in ("dtype:autocast cpu bfloat16", "shape:rank 3", "dialect:chunk_size"):
        assert what in text, run.stderr


def test_chunks_are_served_under_fast(tmp_path):
    program = SERVING + """
block.tri_att_end(z, tri, chunk_size=64)
print(json.dumps(counts("triattn")))
block.tri_mul_out(z, tri), block.mlp_pair(z), block.pair_to_sequence(z)
"""
    run = run_python(["-c", program], tmp_path, ESMFOLD_OPT="fast", MODEL_OPT_LEVERS_OFF=NO_BLOCK)
    assert run.status == 0, run.stderr
    assert json.loads(run.stdout)["hits"] == 1


def test_a_compiled_block_is_served_and_counted(tmp_path):
    program = SERVING + """
s, z, mask = s[:, :76], z[:, :76, :76], mask[:, :76]
eager = block(s, z, mask=mask)
before = counts("trimul")
compiled = torch.compile(block, backend="aot_eager")
for _ in range(3):
    for a, b in zip(compiled(s, z, mask=mask), eager):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-4), (a - b).abs().max()
print(json.dumps([before, counts("trimul"), counts("triattn"), counts("ln")]))
"""
    run = run_python(["-c", program], tmp_path, ESMFOLD_OPT="fast", MODEL_OPT_LEVERS_OFF=NO_TRUNK)
    assert run.status == 0, run.stderr
    before, *after = json.loads(run.stdout)
    assert before["hits"] == 2
    assert [(c["calls"], c["hits"]) for c in after] == [(8, 8), (8, 8), (4, 4)]

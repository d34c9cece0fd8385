# SPDX-License-Identifier: Apache-2.0
"""The unchanged engine, stock, off, exact and fast: what is printed, what is recorded, which bits and which errors."""
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from folding import ROOT, SEQUENCES, clean_environment, fold, run_python

LEVERS = {"triattn", "trimul", "transition", "ln", "dropout", "allocator"}


def words(run, kind):
    from opt_core import _core

    return [(w, pairs) for k, w, pairs in map(_core.line_parse, run.lines) if k == kind]


@pytest.mark.parametrize("mode", ["stock", "off"])
def test_without_a_mode_nothing_is_left_behind(runs, mode):
    run = runs(mode)
    assert run.status == 0, run.stderr
    assert "opt_core" not in run.stderr + run.stdout
    assert not list(run.out.glob("opt_manifest*"))


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_lines_of_a_run(runs, mode):
    run = runs(mode)
    assert run.status == 0, run.stderr
    (_, active), = words(run, "ACTIVE")
    assert (active["engine"], active["mode"], active["core"]) == ("esmfold", mode, "0.1.0")
    assert active["device"].startswith("cpu-")
    assert {w[0] for w, _ in words(run, "LEVER")} == LEVERS
    assert len(words(run, "CELLS")) == 1
    (_, exit_pairs), = words(run, "EXIT")
    assert exit_pairs["status"] == "0" and exit_pairs["state"] == "finished"


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_manifest_validates_against_the_published_schema(runs, mode):
    import jsonschema

    import opt_core

    schema = json.loads((Path(opt_core.__file__).parent / "schema/opt_manifest.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    manifest = runs(mode).manifest
    jsonschema.Draft202012Validator(schema).validate(manifest)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate(manifest | {"state": "perhaps"})
    assert manifest["state"] == "finished" and manifest["engine"] == "esmfold"


def test_fast_serves_what_the_table_covers(runs):
    manifest = runs("fast").manifest
    for lever in manifest["levers"]:
        assert lever["state"] == "served", lever
        counts = lever["counts"]
        # two blocks, three sequences; each block has two triangle operations of a kind, two transitions and four dropouts
        assert counts["calls"] == {"ln": 6, "dropout": 24, "allocator": 3}.get(lever["name"], 12) and counts["fallbacks"] == 0
        # the sequence track's transition is left to the stock op where no row is measured to be faster
        assert counts["hits"] + counts["stock"] == counts["calls"]
        assert counts["stock"] in ((0, 6) if lever["name"] == "transition" else (0,)), lever


def test_exact_says_which_levers_could_engage(runs):
    for lever in runs("exact").manifest["levers"]:
        if lever["state"] == "served":
            assert lever["counts"]["hits"] > 0
        else:
            assert lever["state"] == "refused" and lever["reason"].split(":")[0] in ("proof", "uncovered_cell"), lever


@pytest.mark.parametrize("name", SEQUENCES)
def test_exact_has_the_bits_of_stock(runs, name):
    stock, exact = runs("stock").tensors(name), runs("exact").tensors(name)
    assert stock.keys() == exact.keys() and len(stock) == 6
    for key, value in stock.items():
        assert value.tobytes() == exact[key].tobytes(), key
    assert (runs("stock").out / name / "structure.pdb").read_bytes() == (runs("exact").out / name / "structure.pdb").read_bytes()


@pytest.mark.parametrize("name", SEQUENCES)
def test_fast_is_in_the_numerics_class_of_stock(runs, name):
    stock, fast, truth = (runs(mode).tensors(name) for mode in ("stock", "fast", "float64"))
    for key in ("s_z", "s_s", "positions", "ptm_logits"):
        error = {mode: np.sqrt(np.mean((t[key] - truth[key]) ** 2)) for mode, t in (("stock", stock), ("fast", fast))}
        assert error["fast"] <= 1.5 * error["stock"], (key, error)
        assert not np.array_equal(stock[key], fast[key])  # the kernels really ran


def test_compare_command_on_the_output_trees(runs):
    def compare(a, b, rules):
        command = [sys.executable, "-m", "opt_core", "compare", runs(a).out / "gfp", runs(b).out / "gfp", "--rules", ROOT / "examples" / rules, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, env=clean_environment())
        return done.returncode, json.loads(done.stdout)["verdict"]

    assert compare("stock", "exact", "compare_rules_exact.json") == (0, "equal")
    assert compare("stock", "fast", "compare_rules.json") == (0, "within")
    assert compare("stock", "fast", "compare_rules_exact.json") == (1, "different")


def test_trunk_is_twice_as_fast_at_238_residues(tmp_path):
    """Paired in one process, stock and fast in turn. The measured ratio is in bench/results; here only the promise is held."""
    run = run_python([ROOT / "bench/engine.py", "fast", tmp_path / "rows.json", 3], tmp_path, ESMFOLD_OPT="fast")
    assert run.status == 0, run.stderr
    rows = {row["shape"]["n"]: row for row in json.loads((tmp_path / "rows.json").read_text())}
    assert rows.keys() == {76, 129, 238}
    assert rows[238]["ratio"] >= 2.0, rows[238]
    assert all(row["err"] <= 1.5 * row["stock_err"] for row in rows.values())


def test_each_lever_alone(tmp_path, runs):
    """The run with every other lever off: the error stays in class, and the record names what was switched off."""
    truth, stock = runs("float64").tensors("ubiquitin")["s_z"], runs("stock").tensors("ubiquitin")["s_z"]
    for lever in sorted(LEVERS):
        run = fold(tmp_path / lever, "--blocks", "2", sequences=["ubiquitin"], ESMFOLD_OPT="fast", MODEL_OPT_LEVERS_OFF=",".join(LEVERS - {lever}))
        assert run.status == 0, run.stderr
        states = {entry["name"]: entry["state"] for entry in run.manifest["levers"]}
        assert states == {name: "served" if name == lever else "off" for name in LEVERS}
        ours = run.tensors("ubiquitin")["s_z"]
        error = lambda t: np.sqrt(np.mean((t - truth) ** 2))
        assert error(ours) <= 1.5 * error(stock)
        assert np.array_equal(ours, stock) == (lever in ("dropout", "allocator"))  # these two change no bit


PEPTIDE = ">peptide\nMKTAYIAKQRQISFVKSHFSRQLEERLGLIE\n"


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_a_peptide_alone(tmp_path, mode):
    """31 residues: what has no measured cell stays stock by name, and the run is a good one."""
    (tmp_path / "peptide.fasta").write_text(PEPTIDE)
    outputs = {}
    for word in (None, mode):
        out = tmp_path / str(word)
        out.mkdir()
        run = run_python([ROOT / "examples/fold.py", tmp_path / "peptide.fasta", "--out", out, "--blocks", "2"], out, ESMFOLD_OPT=word)
        assert run.status == 0, run.stderr
        outputs[word] = run.tensors("peptide")
    assert run.manifest["state"] == "finished" and {lever["name"] for lever in run.manifest["levers"]} == LEVERS
    for key, value in outputs[None].items():
        if mode == "exact":
            assert value.tobytes() == outputs[mode][key].tobytes(), key
    assert np.isfinite(outputs[mode]["s_z"]).all()


@pytest.mark.parametrize("name", SEQUENCES)
def test_exact_serves_a_sequence_alone(tmp_path, runs, name):
    run = fold(tmp_path, "--blocks", "2", sequences=[name], ESMFOLD_OPT="exact")
    assert run.status == 0, run.stderr
    assert run.manifest["state"] == "finished"
    for key, value in runs("stock").tensors(name).items():
        assert value.tobytes() == run.tensors(name)[key].tobytes(), key


def test_a_row_switched_off_leaves_its_calls_stock(tmp_path, runs):
    run = fold(tmp_path, "--blocks", "2", sequences=["gfp"], ESMFOLD_OPT="fast", MODEL_OPT_LEVERS_OFF="transition:cpu")
    assert run.status == 0, run.stderr
    levers = {lever["name"]: lever for lever in run.manifest["levers"]}
    counts = levers["transition"]["counts"]
    assert (counts["calls"], counts["stock"], counts["hits"], counts["fallbacks"]) == (4, 4, 0, 0)
    assert levers["transition"]["state"] == "off" and levers["transition"]["reason"].startswith("off_by_user"), levers["transition"]
    # the pair track's two calls, and the sequence track's where a row is measured to be faster
    assert any(f"transition:cpu:off_by_user={n}" in line for line in run.lines for n in (2, 4)), run.stderr
    trimul = levers["trimul"]
    assert trimul["state"] == "served" and trimul["counts"]["hits"] == trimul["counts"]["calls"] == 4

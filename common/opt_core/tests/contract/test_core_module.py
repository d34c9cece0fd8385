# SPDX-License-Identifier: Apache-2.0
"""The extension `opt_core._core`: each function, each exception, and the verdict at process exit."""

import copy
import errno
import hashlib
import json
import os
import pathlib
import pickle
import subprocess
import sys
import threading

import pytest

import opt_core
from opt_core import AccountingClosed, Refused, _core

KIT = {
    "schema": 1,
    "engine": "toy",
    "variable": "TOY_OPT",
    "version": "0.1.0",
    "triggers": ["toy.model", "toy.late"],
    "levers": [
        {"name": "norm", "family": "ln", "modes": {"exact": "record", "fast": "require"}, "instances": 1, "help": "h"},
        {"name": "host", "modes": {"fast": "record"}, "help": "h"},
    ],
}


@pytest.fixture
def kit():
    return _core.Kit(json.dumps(KIT))


@pytest.fixture
def lines():
    written = []
    _core.set_sink(written.append)
    yield written
    _core.set_sink(None)


@pytest.fixture
def run(kit, tmp_path):
    return _core.Run(kit, "fast", manifest=tmp_path)


def refused(call, word, text=""):
    with pytest.raises(Refused) as caught:
        call()
    assert caught.value.word == word, str(caught.value)
    assert text in str(caught.value)
    return caught.value


# ---- exceptions ------------------------------------------------------------------------------------------------------


def test_refused():
    refusal = Refused("grad", "x wants gradients")
    assert (refusal.word, refusal.detail, str(refusal)) == ("grad", "x wants gradients", "grad:x wants gradients")
    assert str(Refused("grad")) == "grad" and Refused("grad").detail == ""
    assert Refused(word="a", detail="b").args == ("a", "b")
    assert isinstance(refusal, Exception) and not isinstance(refusal, ValueError)
    for same in (copy.copy(refusal), pickle.loads(pickle.dumps(refusal))):
        assert type(same) is Refused and same.args == refusal.args
    with pytest.raises(TypeError):
        Refused()
    with pytest.raises(TypeError):
        Refused(3)
    with pytest.raises(AttributeError):
        refusal.word = "other"

    class Own(Refused):
        pass

    assert str(Own("dtype", "f64")) == "dtype:f64"


def test_accounting_closed():
    closed = AccountingClosed("calls 3, settled 2")
    assert closed.detail == str(closed) == "calls 3, settled 2"
    assert pickle.loads(pickle.dumps(closed)).detail == closed.detail
    assert not issubclass(AccountingClosed, Refused)


def test_each_status_has_its_exception(tmp_path):
    refused(lambda: _core.gate_arch(90, "sm_80"), "arch", "arch:sm_90!=sm_80")
    with pytest.raises(ValueError):
        _core.gate_pin("torch", "2.11", "about 3")
    with pytest.raises(FileNotFoundError) as caught:
        _core.digest_file(tmp_path / "missing")
    assert caught.value.errno == errno.ENOENT and "missing" in str(caught.value)
    with pytest.raises(TypeError):
        _core.gate_arch("90", "sm_80")


def test_the_package_exports_the_same_classes():
    assert opt_core.Refused is _core.Refused and opt_core.AccountingClosed is _core.AccountingClosed
    assert opt_core.__version__ == _core.version()


# ---- facts and gates -------------------------------------------------------------------------------------------------


def test_facts():
    assert _core.version().count(".") == 2 and _core.abi_version() >= 1
    assert {"json", "sodium"} <= set(_core.build_parts())
    words = _core.reasons()
    assert len(words) == 27 and words["grad"] == "the call asks for gradients, the row has none"
    cpu = _core.cpu_facts()
    assert set(cpu) == {"vendor", "model", "isa", "has_avx512_bf16", "has_amx_bf16"} and isinstance(
        cpu["has_amx_bf16"], bool
    )
    assert _core.cpu_threads() >= 1


def test_isa_follows_the_environment(monkeypatch):
    monkeypatch.setenv("OPT_CORE_ISA", "generic")
    assert _core.cpu_isa() == "generic"
    monkeypatch.setenv("OPT_CORE_ISA", "mmx")
    refused(_core.cpu_isa, "environment", "OPT_CORE_ISA=mmx")
    monkeypatch.delenv("OPT_CORE_ISA")
    assert _core.cpu_isa() == _core.cpu_facts()["isa"]


def test_cuda_facts_or_a_named_refusal():
    try:
        assert _core.cuda_facts(0)["sm"] >= 50
    except Refused as refusal:
        assert refusal.word in ("no_device", "driver")


@pytest.mark.parametrize(
    "text,mode",
    [
        (None, "off"),
        ("", "off"),
        ("0", "off"),
        ("off", "off"),
        (" fast ", "fast"),
        ("exact\n", "exact"),
        ("big", "big"),
    ],
)
def test_mode_parse(text, mode):
    assert _core.mode_parse(text) == mode


@pytest.mark.parametrize("text", ["quick", "FAST", "fast,big", "1", "true", "f\xe4st", "f\udcffst", "x" * 100000])
def test_mode_parse_refuses(text):
    refusal = refused(lambda: _core.mode_parse(text), "mode", "mode:unknown:")
    assert "off exact fast big" in refusal.detail and len(refusal.detail) < 200 and refusal.detail.isascii()


def test_mode_parse_wants_text():
    with pytest.raises(TypeError):
        _core.mode_parse(3)
    with pytest.raises(ValueError):
        _core.mode_parse("fa\0st")


def test_environment_check(monkeypatch):
    for name in [n for n in os.environ if n.startswith("OPT_CORE_")]:
        monkeypatch.delenv(name)
    assert _core.environment_check() is None
    monkeypatch.setenv("OPT_CORE_NO_SUCH_SWITCH", "1")
    refused(_core.environment_check, "environment", "OPT_CORE_NO_SUCH_SWITCH")


def test_gates():
    assert _core.gate_pin("torch", "2.11.0+cu130", ">=2.11,<3") is None
    refused(lambda: _core.gate_pin("torch", "2.10", ">=2.11"), "pin", "pin:torch2.10!>=2.11")
    refused(lambda: _core.gate_pin("jax", None, ">=0.4"), "pin", "none")
    assert _core.gate_arch(90, "sm_90a") is None and _core.gate_arch(86, "sm_80") is None
    assert _core.version_compare("0.10.2", "0.9") > 0 > _core.version_compare("1", "1.0.1")
    assert _core.version_compare("1.0", "1") == 0


def test_host_floor():
    floor = _core.gate_host_floor(_core.__file__)
    assert set(floor) == {"glibc", "glibcxx", "cxxabi"} and floor["glibc"].startswith("2.") and floor["glibcxx"] == ""
    with pytest.raises(ValueError):
        _core.gate_host_floor(__file__)


def test_digest_and_prebuilt(tmp_path):
    data = os.urandom(3000)
    (tmp_path / "a.bin").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    assert _core.digest_file(tmp_path / "a.bin") == _core.digest_file(os.fsencode(tmp_path / "a.bin")) == digest
    table = {
        "schema": 1,
        "package": "toy",
        "binaries": {"sm_90a": {"file": "a.bin", "sha256": digest, "bytes": len(data)}},
    }
    (tmp_path / "PREBUILT.json").write_text(json.dumps(table))
    assert _core.prebuilt_read(tmp_path, "sm_90a") == data
    refused(lambda: _core.prebuilt_read(tmp_path, "sm_80"), "no_prebuilt", "no_prebuilt:toy@sm_80")
    (tmp_path / "a.bin").write_bytes(data[:-1] + b"?")
    refused(lambda: _core.prebuilt_read(tmp_path, "sm_90a"), "digest", "digest:toy@sm_90a")


# ---- kits ------------------------------------------------------------------------------------------------------------


def test_kit(kit):
    assert (kit.engine, kit.variable, kit.version) == ("toy", "TOY_OPT", "0.1.0")
    assert kit.triggers == ("toy.model", "toy.late") and kit.levers == ("norm", "host")
    assert kit.family("norm") == kit.family(0) == "ln" and kit.family("host") == ""
    assert [kit.policy("norm", mode) for mode in ("exact", "fast", "big")] == ["record", "require", "absent"]
    for bad in (2, -1, "nope"):
        with pytest.raises(ValueError):
            kit.family(bad)
    refused(lambda: kit.policy("norm", "quick"), "mode")
    refused(lambda: _core.Kit("{}"), "kit_table")
    refused(lambda: _core.Kit(b"\xff"), "kit_table")
    with pytest.raises(TypeError):
        _core.Kit(KIT)


def test_levers_off(kit):
    assert _core.levers_off_check(kit, None) is None and _core.levers_off_check(kit, "norm,host") is None
    refused(lambda: _core.levers_off_check(kit, "norn"), "lever", "norm")
    assert _core.levers_off_has("norm,host", "norm") is True
    assert _core.levers_off_has("norm:cpu", "norm") is False and _core.levers_off_has("norm:cpu", "norm", "cpu") is True
    assert _core.levers_off_has(None, "norm") is False
    with pytest.raises(TypeError):
        _core.levers_off_check("kit", None)


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_a_run_from_open_to_close(run, lines, tmp_path):
    assert run.manifest_path == str(tmp_path / "opt_manifest.json")
    run.fact("torch.version", "2.11.0", True)
    run.fact("note", "quiet")
    run.binary(tmp_path / "a.cubin", "0" * 64)
    run.lever_begin(0)
    run.lever_active(0, "cpu")
    assert run.lever_refused(1, "pin", "torch2.1!>=2.11") is False
    run.patched(0, "Norm", 3)
    run.activated()
    assert json.load(open(run.manifest_path))["state"] == "running"
    hit, stock = run.slot(0, "hit", "ln", "cpu", "cell-1"), run.slot(0, "stock", "ln", "ln.fast.cpu", "uncovered_cell")
    fallback = run.slot(0, "fallback", "ln", "cpu", "shape:c")
    assert len({hit, stock, fallback}) == 3 and run.slot(0, "hit", "ln", "cpu", "cell-1") == hit
    for slot, count in ((hit, 5), (fallback, 2), (stock, 3)):
        for _ in range(count):
            run.call(0)
            if slot != stock:
                run.claim(0)
            run.settle(slot)
    assert run.counts(0) == {"calls": 10, "claims": 7, "hits": 5, "fallbacks": 2, "stock": 3}
    run.still_patched(0, "Norm", 3)
    assert run.close(0) == 0 and run.close(0) == 0
    kinds = [_core.line_parse(line)[0] for line in lines]
    assert kinds.count("ACTIVE") == kinds.count("EXIT") == kinds.count("CELLS") == 1 and "NOT ACTIVE" in kinds
    assert json.load(open(run.manifest_path))["state"] == "finished"


def test_the_manifest_says_what_runs_on_cuda_devices(run, lines):
    """The modules that are loaded, and the process's own copies of the framework's libraries; by the schema."""
    jsonschema = pytest.importorskip("jsonschema")
    run.activated()
    run.close(0)
    manifest = json.load(open(run.manifest_path))
    schema = pathlib.Path(opt_core.__file__).parent / "schema" / "opt_manifest.schema.json"
    jsonschema.validate(manifest, json.loads(schema.read_text()))
    assert manifest["cuda"] == {"modules": _core.cuda_modules(), "libraries": _core.cuda_libraries()}


def test_bad_indices_never_reach_the_library(run):
    slot = run.slot(0, "hit", "ln", "cpu", "c")
    for call in (
        lambda: run.call(2),
        lambda: run.call(-1),
        lambda: run.claim(99),
        lambda: run.call(2**40),
        lambda: run.counts(-1),
        lambda: run.settle(slot + 1),
        lambda: run.settle(-1),
        lambda: run.lever_begin(2),
        lambda: run.lever_active(7, ""),
        lambda: run.lever_refused(3, "pin", ""),
        lambda: run.patched(2, "x", 1),
        lambda: run.slot(2, "hit", "", "", ""),
        lambda: run.slot(0, "miss", "ln", "cpu", ""),
        lambda: run.lever_refused(0, "nonsense", ""),
    ):
        with pytest.raises(ValueError):
            call()
    with pytest.raises(TypeError):
        run.call("0")


def test_a_required_lever_that_refuses_ends_with_three(run, lines):
    run.lever_begin(0)
    assert run.lever_refused(0, "arch", "cpu-avx2") is True
    run.activated()
    assert run.close(0) == 3
    assert any(line.startswith("[opt_core] NOT ACTIVE: norm: arch:cpu-avx2") for line in lines)


def test_a_lever_that_served_nothing_ends_with_four(run, lines):
    run.lever_begin(0)
    run.lever_active(0, "cpu")
    run.activated()
    assert run.close(0) == 4
    assert any(line.startswith("[opt_core] ACCOUNTING norm: ") for line in lines)


def test_a_refused_run_and_the_engines_own_status(kit, tmp_path, lines):
    first = _core.Run(kit, "fast", manifest=tmp_path / "a.json")
    first.refuse("toy", "engine_layout", "no class Model")
    assert first.close(0) == 3
    second = _core.Run(kit, "fast", manifest=tmp_path / "b.json")
    second.activated()
    assert second.close(7) == 7


def test_levers_off_refuses_by_name(kit, tmp_path, lines):
    refused(lambda: _core.Run(kit, "fast", levers_off="nope", manifest=tmp_path), "lever", "nope")
    refused(lambda: _core.Run(kit, "quick", manifest=tmp_path), "mode")
    run = _core.Run(kit, "fast", "norm", manifest=tmp_path)
    refused(lambda: run.lever_begin(0), "off_by_user")
    with pytest.raises(ValueError):
        _core.Run(kit, "off", manifest=tmp_path)


def test_counting_from_many_threads(run, lines):
    slot = run.slot(0, "hit", "ln", "cpu", "c")

    def work():
        for _ in range(20000):
            run.call(0)
            run.claim(0)
            run.settle(slot)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert run.counts(0) == {"calls": 80000, "claims": 80000, "hits": 80000, "fallbacks": 0, "stock": 0}


# ---- lines -----------------------------------------------------------------------------------------------------------


def test_lines_go_to_the_sink_and_read_back(lines):
    _core.line_write("NOTE", ["two words", "a=b"], {"key": "v w", "empty": ""})
    _core.line_write("NOT ACTIVE", ["norm", "pin:torch2.1!>=2.11 (spaces stay)"])
    assert _core.line_parse(lines[0]) == ("NOTE", ["two words", "a=b"], {"key": "v w", "empty": ""})
    assert _core.line_parse(lines[1].strip()) == ("NOT ACTIVE", ["norm", "pin:torch2.1!>=2.11 (spaces stay)"], {})
    for bad in (
        lambda: _core.line_write("SHOUT", []),
        lambda: _core.line_write("NOTE", ["x" * 5000]),
        lambda: _core.line_write("NOTE", ["w"] * 200),
        lambda: _core.line_parse("no prefix"),
    ):
        with pytest.raises(ValueError):
            bad()
    assert len(lines) == 2


def test_a_failing_sink_hurts_nobody(monkeypatch):
    def broken(line):
        raise RuntimeError("no room")

    seen = []
    monkeypatch.setattr(sys, "unraisablehook", lambda args: seen.append(str(args.exc_value)))
    _core.set_sink(broken)
    try:
        assert _core.line_write("NOTE", ["x"]) is None
    finally:
        _core.set_sink(None)
    assert seen == ["no room"]
    with pytest.raises(TypeError):
        _core.set_sink(3)


def test_default_sink_is_standard_error(capfd):
    _core.line_write("NOTE", ["here"])
    assert capfd.readouterr().err == "[opt_core] NOTE here\n"


# ---- exit status -----------------------------------------------------------------------------------------------------

PROGRAM = """
import json, os, sys
from opt_core import _core
kit = _core.Kit(sys.argv[1])
run = _core.Run(kit, "fast", manifest=sys.argv[2])
_core.exit_status_guard(run)
_core.exit_status_guard(run)
_core.set_sink(lambda line: sys.stderr.write("sink " + line))
run.lever_begin(0)
def active():
    run.lever_active(0, "cpu"); run.patched(0, "Norm", 1); run.still_patched(0, "Norm", 1); run.activated()
def served(n=1):
    slot = run.slot(0, "hit", "ln", "cpu", "c")
    for _ in range(n): run.call(0); run.claim(0); run.settle(slot)
exec(sys.argv[3])
"""


@pytest.mark.parametrize(
    "program,status,state",
    [
        ("active(); served()", 0, "finished"),
        ("active(); served(); sys.exit(7)", 7, "finished"),
        ("active(); served(); raise SystemError('engine')", 1, "finished"),
        ("active()", 4, "closed"),
        ("active(); sys.exit(9)", 9, None),
        ("active(); served(); run.call(0)", 4, "closed"),
        ("run.lever_refused(0, 'arch', 'x'); run.activated()", 3, "refused"),
        ("run.lever_refused(0, 'arch', 'x'); run.activated(); print('out'); sys.exit(0)", 3, "refused"),
        ("active(); served(); run.close(0)", 0, "finished"),
        ("active(); served(); del run, kit", 0, "finished"),
        ("active(); served(); pid = os.fork(); sys.exit(0 if pid == 0 else os.waitpid(pid, 0)[1])", 0, "finished"),
        ("active(); served(); import threading; threading.Thread(target=served, args=(1000,)).start()", 0, "finished"),
    ],
)
def test_the_verdict_becomes_the_exit_status(program, status, state, tmp_path):
    manifest = tmp_path / "m.json"
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(KIT), str(manifest), program],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == status, result.stderr
    assert "Fatal" not in result.stderr
    if state:
        assert json.loads(manifest.read_text())["state"] == state
    if "print" in program:
        assert result.stdout == "out\n"


def test_two_guarded_runs_end_with_the_worse_verdict(kit, tmp_path):
    program = (
        "active()\nrun2 = _core.Run(kit, 'fast', manifest=sys.argv[2] + '2')\n"
        "_core.exit_status_guard(run2)\n_core.exit_status_guard(run2)\n"
        "run2.refuse('toy', 'pin', 'x1!>=2')\nserved()"
    )
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(KIT), str(tmp_path / "m.json"), program],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 3, result.stderr
    assert json.loads((tmp_path / "m.json").read_text())["state"] == "finished"
    assert json.loads((tmp_path / "m.json2").read_text())["state"] == "refused"


# ---- providers -------------------------------------------------------------------------------------------------------

FAMILIES = ("ln", "trimul", "triattn", "triattn_module", "transition", "apb")


@pytest.mark.parametrize("family", FAMILIES)
def test_members_and_fields(family):
    members = _core.members(family)
    assert {"cpu", "reference"} <= {m["row"] for m in members}
    for member in members:
        assert set(member) == {"row", "name", "device", "isa", "flags"}
        assert set(member["flags"]) <= {"exact", "deterministic", "rowwise", "reference", "hosted"}
        assert ("reference" in member["flags"]) == (member["row"] == "reference")
    views, scalars = _core.call_fields(family)
    assert len(set(views)) == len(views) and not set(views) & set(scalars)
    assert views[:2] == {"triattn": ("q", "k"), "apb": ("q", "k")}.get(family, ("x", "y"))


@pytest.mark.parametrize("family", FAMILIES)
def test_select_is_pure_and_agrees_with_the_table(family):
    chosen = 0
    for cell in _core.cells(family):
        assert set(cell) == {
            "id",
            "tier",
            "device",
            "dtype",
            "form",
            "row",
            "fallback",
            "date",
            "machine",
            "stack",
            "command",
            "result",
            "us",
            "peer_us",
            "err",
            "stock_err",
            "dims",
            "stacks",
        }
        dims = {letter: low for letter, (low, high) in cell["dims"].items()}
        stack = cell["stacks"][0] if cell["stacks"] else ""
        for form in cell["form"].split("|"):
            call = (family, cell["tier"], cell["device"], cell["dtype"], "" if form == "*" else form, dims, stack)
            answer = _core.select(*call)
            assert answer == _core.select(*call)
            assert answer[:2] == (cell["id"], cell["row"]) and answer[3] == cell["fallback"]
        chosen += 1
    assert chosen == len(_core.cells(family))
    refused(lambda: _core.select(family, "fast", "cpu-nothing", "f64", "nowhere", {"n": 1}), "uncovered_cell", family)


def test_select_checks_its_arguments():
    good = ["ln", "fast", "cpu-avx2", "f32", "affine", {"n": 1}]
    for position, bad in (
        (0, "nope"),
        (1, "slow"),
        (2, "d" * 60),
        (3, "f99"),
        (4, "f" * 90),
        (5, {"z": 1}),
        (5, {"n": -1}),
    ):
        with pytest.raises(ValueError):
            _core.select(*good[:position], bad, *good[position + 1 :])
    with pytest.raises((TypeError, AttributeError)):
        _core.select(*good[:5], 3)
    for function in (_core.cells, _core.members, _core.call_fields):
        with pytest.raises(ValueError):
            function("nope")
    assert _core.cells_overlay_digest() in ("", _core.cells_overlay_digest())


def test_serve_needs_torch_bound_first():
    program = (
        "from opt_core import _core\n"
        "try: _core.serve('ln', 'fast', (1, 2, None, None), (1e-5, False, False, None), 'reference')\n"
        "except RuntimeError as error: print(error)\n"
        "try: _core.bind_torch(3, int, int)\n"
        "except TypeError as error: print(error)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert out[0] == "bind_torch has not been called" and "dlpack_exchange_api" in out[1]


# ---- compare ---------------------------------------------------------------------------------------------------------


def test_compare(tmp_path):
    for side, value in (("a", 1.0), ("b", 1.5)):
        (tmp_path / side).mkdir()
        (tmp_path / side / "scores.json").write_text(json.dumps({"plddt": [value, 2.0], "name": "x"}))
    same = _core.compare(tmp_path / "a", tmp_path / "a")
    assert same["verdict"] == "equal" and same["differences"] == [] and same["numbers"] == 2
    result = _core.compare(str(tmp_path / "a"), str(tmp_path / "b"))
    assert result["verdict"] == "different" and result["differing"] == 1 and result["largest"] == 0.5
    [difference] = [d for d in result["differences"] if d["verdict"] == "different"]
    assert difference["file"] == "scores.json" and "plddt" in difference["field"]
    assert (difference["a"], difference["b"], difference["largest"], difference["count"]) == (1.0, 1.5, 0.5, 1)
    assert _core.compare(tmp_path / "a", tmp_path / "b", abs=0.6)["verdict"] == "within"
    rules = json.dumps({"*.json": {"*": {"abs": 1.0, "rel": 0}}})
    assert _core.compare(tmp_path / "a", tmp_path / "b", rules=rules)["verdict"] == "within"
    with pytest.raises(ValueError):
        _core.compare(tmp_path / "a", tmp_path / "b", rules="{")
    with pytest.raises(OSError):
        _core.compare(tmp_path / "a", tmp_path / "none")


# ---- the binary ------------------------------------------------------------------------------------------------------


def test_import_is_standard_library_only():
    program = (
        "import sys; before = set(sys.modules); from opt_core import _core\n"
        "new = set(sys.modules) - before  # an editable install finds the package with more of the standard library\n"
        "print(sorted(m for m in new if m.partition('.')[0] not in sys.stdlib_module_names))"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "['opt_core', 'opt_core._core']"


def test_no_symbol_of_a_framework_and_only_the_init_is_exported():
    names = subprocess.run(["nm", "-D", _core.__file__], capture_output=True, text=True)
    if names.returncode != 0:
        pytest.skip("no nm on this machine")
    symbols = [line.split() for line in names.stdout.splitlines()]
    assert [s[-1] for s in symbols if s[-2] == "T"] == ["PyInit__core"]
    assert not [s[-1] for s in symbols if s[-1].startswith("_Z")]  # C++, a framework's or its library's
    assert any(s[-1].split("@")[0] == "oc_ln_serve" for s in symbols)
    assert ".abi3." in os.path.basename(_core.__file__)

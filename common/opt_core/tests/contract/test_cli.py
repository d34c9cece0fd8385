# SPDX-License-Identifier: Apache-2.0
"""The program `opt_core`: exit statuses, what goes to which stream, and the files made from its tables."""
import functools
import importlib.util
import json
import os
import pathlib
import pty
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

CORE = pathlib.Path(__file__).parents[2]
GOLDEN = CORE / "tests" / "golden" / "compare"
COMMANDS = ("run", "compare", "cells", "census", "doctor", "completion")
OWN = ("OPT_CORE_", "NO_COLOR", "COLUMNS", "ARGP_HELP_FMT")


def load(name):
    """A module of the package by its path, so that its functions are tested where the package is not installed too."""
    spec = importlib.util.spec_from_file_location("opt_core_" + name, CORE / "opt_core" / (name + ".py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


doctor = load("doctor")
entry = load("__main__")


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """OPT_CORE_CLI, or the program of the installed package, or one that is built here."""
    if os.environ.get("OPT_CORE_CLI"):
        return os.environ["OPT_CORE_CLI"]
    installed = entry.program()
    if installed:
        return installed
    build = tmp_path_factory.mktemp("build")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    subprocess.run(["cmake", "-S", CORE, "-B", build, *generator], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", build, "--parallel", "2"], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--install", build, "--prefix", build / "prefix"], check=True, stdout=subprocess.DEVNULL)
    return str(build / "prefix" / "bin" / "opt_core")


@pytest.fixture
def cli(program, tmp_path):
    def call(*words, env=None, cwd=None, **options):
        clean = {key: value for key, value in os.environ.items() if not key.startswith(OWN) and not key.endswith("_OPT")}
        return subprocess.run([program, *map(str, words)], capture_output=True, text=True, cwd=cwd or tmp_path, timeout=60,
                              env={**clean, **(env or {})}, **options)

    return call


# ---- usage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [
    [], ["frob"], ["--frob"], ["run"], ["run", "--frob", "true"], ["compare"], ["compare", "a"], ["compare", "a", "b", "c"],
    ["compare", "a", "b", "--abs=x"], ["compare", "a", "b", "--abs=-1"], ["compare", "a", "b", "--rel=nan"],
    ["compare", "a", "b", "--rules=/nonexistent"], ["compare", "/nonexistent", "/nonexistent"], ["cells"], ["cells", "frob"],
    ["cells", "show", "frob"], ["cells", "show", "ln", "ln"], ["census"], ["census", "/nonexistent"], ["doctor", "x"],
    ["completion", "x"]])
def test_wrong_usage_is_2_and_says_so_on_stderr(cli, words):
    done = cli(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("opt_core")


@pytest.mark.parametrize("words", [[]] + [[command] for command in COMMANDS])
def test_help_and_version(cli, words):
    done = cli(*words, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Usage: opt_core")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert re.fullmatch(r"opt_core \d+\.\d+\.\d+\n", cli(*words, "--version").stdout)


def test_help_names_every_command_variable_and_status(cli):
    text = cli("--help").stdout
    header = (CORE / "include" / "opt_core" / "activation.h").read_text()
    variables = re.findall(r"X\((OPT_CORE_\w+),", header)
    assert len(variables) >= 10
    for word in (*COMMANDS, *variables):
        assert re.search(rf"^  {word}\b", text, re.M), word
    for status in range(5):
        assert re.search(rf"^  {status}  ", text, re.M)


def test_a_full_disk_is_no_success(program):
    with open("/dev/full", "w") as full:
        done = subprocess.run([program, "completion"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "standard output" in done.stderr


# ---- compare ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other, words, status, verdict", [
    ("stock", [], 0, "equal"), ("same", [], 0, "equal"), ("close", [], 1, "different"), ("close", ["--abs=1e-3"], 0, "within"),
    ("close", ["--rel=1e-5"], 0, "within"), ("close", ["--abs=1e-9"], 1, "different"), ("far", ["--abs=1e9"], 1, "extra")])
def test_compare_status_and_verdict(cli, other, words, status, verdict):
    done = cli("compare", GOLDEN / "stock", GOLDEN / other, *words)
    assert (done.returncode, done.stderr) == (status, "")
    assert done.stdout.splitlines()[-1].startswith(verdict + ": ")
    assert "\033" not in done.stdout


def test_compare_json(cli):
    done = cli("compare", "--json", GOLDEN / "stock", GOLDEN / "far")
    result = json.loads(done.stdout, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert done.returncode == 1
    assert (result["schema"], result["verdict"], result["files"], result["numbers"], result["differing"]) == (1, "extra", 8, 109, 4)
    assert result["largest"] == "inf"
    found = {(item["file"], item["field"]): item for item in result["differences"]}
    assert found["scores.json", "plddt[1]"]["b"] == "nan"
    assert found["pair.npy", "array[1,2,3]"]["ulps"] == 1
    assert found["sub/result.npz", "file"]["verdict"] == "missing"
    assert len(found) == 7


@pytest.mark.parametrize("a, b", [("[NaN]", "[1.0]"), ("[1.0]", "[NaN]")])
def test_nan_against_a_number_differs_both_ways(cli, tmp_path, a, b):
    (tmp_path / "a.json").write_text(a)
    (tmp_path / "b.json").write_text(b)
    assert cli("compare", "a.json", "b.json", "--abs=1e300").returncode == 1


def tree(path, **files):
    path.mkdir()
    for name, text in files.items():
        (path / name).write_text(text)
    return path


def test_missing_extra_empty_and_unfinished(cli, tmp_path):
    full, part, none = tree(tmp_path / "f", x="1\n", y="2\n"), tree(tmp_path / "p", x="1\n"), tree(tmp_path / "n")
    for a, b, verdict in ((full, part, "missing"), (part, full, "extra"), (full, none, "missing"), (none, none, "missing")):
        done = cli("compare", a, b)
        assert (done.returncode, done.stdout.splitlines()[-1].split(":")[0]) == (1, verdict)
    (part / "opt_manifest.json").write_text('{"state": "running"}')
    done = cli("compare", part, part)
    assert done.returncode == 1 and done.stdout.splitlines()[-1].startswith("unfinished: ")
    (part / "opt_manifest.json").write_text('{"state": "finished"}')
    assert cli("compare", part, part).returncode == 0
    late = time.time() + 60
    os.utime(part / "x", (late, late))
    done = cli("compare", part, part)
    assert done.returncode == 1 and "changed after the record was written" in done.stdout


def test_rules_file(cli, tmp_path):
    rules = tmp_path / "rules.json"
    rules.write_text('{"scores.json": {"plddt": {"abs": 1e-3}}, "*": {"*": {"rel": 1e-5, "abs": 1e-5}}}')
    assert cli("compare", GOLDEN / "stock", GOLDEN / "close", "--rules", rules).returncode == 0
    rules.write_text('{"scores.json": {"plddt": "exact"}, "*": {"*": {"abs": 1}}}')
    done = cli("compare", GOLDEN / "stock", GOLDEN / "close", "--rules", rules)
    assert done.returncode == 1 and done.stdout.count("different  scores.json: plddt[0]") == 1
    rules.write_text('{"*": {"*": {"abs": "x"}}}')
    done = cli("compare", GOLDEN / "stock", GOLDEN / "close", "--rules", rules)
    assert done.returncode == 2 and "abs is not a number" in done.stderr


def test_a_long_list_is_cut_unless_all_is_asked(cli, tmp_path):
    a = tree(tmp_path / "a", **{f"f{i:02d}": "1\n" for i in range(30)})
    b = tree(tmp_path / "b", **{f"f{i:02d}": "2\n" for i in range(30)})
    short, whole = cli("compare", a, b).stdout.splitlines(), cli("compare", a, b, "--all").stdout.splitlines()
    assert (len(short), len(whole)) == (22, 31)
    assert "10 fields more" in short[20]


def test_file_names_of_any_bytes(cli, tmp_path):
    a, b = tree(tmp_path / "a"), tree(tmp_path / "b")
    with open(os.fsencode(a) + b"/\xff\n\033.txt", "w") as file:
        file.write("1")
    names = [item["file"] for item in json.loads(cli("compare", "--json", a, b).stdout)["differences"]]
    assert names == ["\\xff\n\033.txt"]
    done = cli("compare", a, b, errors="surrogateescape")
    assert "\\x0a\\x1b.txt: file" in done.stdout and "\033" not in done.stdout


def on_terminal(program, env, *words):
    main, side = pty.openpty()
    done = subprocess.run([program, *map(str, words)], stdout=side, stderr=subprocess.DEVNULL, env=env)
    os.close(side)
    text = os.read(main, 1 << 16).decode()
    os.close(main)
    return done.returncode, text


def test_colour_only_on_a_terminal_that_wants_it(program):
    plain = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    status, text = on_terminal(program, plain, "compare", GOLDEN / "stock", GOLDEN / "stock")
    assert status == 0 and "\033[32mequal\033[0m" in text
    status, text = on_terminal(program, {**plain, "NO_COLOR": "1"}, "compare", GOLDEN / "stock", GOLDEN / "stock")
    assert status == 0 and "\033" not in text and "equal" in text


# ---- cells, census, doctor -------------------------------------------------------------------------------------------


def families():
    header = (CORE / "include" / "opt_core" / "provider.h").read_text()
    return re.findall(r'X\(\w+, "(\w+)", "\w+"\)', header)


def test_cells(cli, tmp_path):
    listed = json.loads(cli("cells", "list", "--json").stdout)
    assert list(listed["families"]) == families() and len(families()) >= 6
    for family, count in listed["families"].items():
        shown = json.loads(cli("cells", "show", family, "--json").stdout)["families"]
        assert list(shown) == [family] and len(shown[family]) == count
        assert len(cli("cells", "show", family).stdout.splitlines()) == count
        for cell in shown[family]:
            assert cell["row"] and cell["date"] and cell["tier"] in ("exact", "fast", "big")
    assert len(cli("cells", "list").stdout.splitlines()) == len(families())
    (tmp_path / "overlay.json").write_text("{")
    done = cli("cells", "list", env={"OPT_CORE_CELLS": str(tmp_path / "overlay.json")})
    assert done.returncode == 3 and done.stderr.startswith("[opt_core] NOT ACTIVE: cells: cells:")


def test_census_reads_a_record_and_nothing_else(cli, tmp_path):
    assert cli("run", "--", "true", env=switched_on(tmp_path)).returncode == 3
    done = cli("census", tmp_path / "opt_manifest.json")
    assert (done.returncode, done.stderr) == (0, "")
    (tmp_path / "other.json").write_text("{}")
    done = cli("census", tmp_path / "other.json")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.startswith("opt_core: census: ")


def test_doctor_says_which_members_serve(cli):
    done = cli("doctor", "--json")
    facts = json.loads(done.stdout)
    assert done.returncode == 0 and facts["problems"] == [] and facts["python"] is None
    served = {member["family"] for member in facts["members"] if member["refusal"] is None}
    assert served == set(families())
    assert "refusal" in facts["cuda"] or facts["cuda"]["sm"] >= 50
    page = cli("doctor").stdout
    for member in facts["members"]:
        assert re.search(rf"{member['family']} +{member['row']} +{member['name']} ", page)


def test_doctor_names_the_word_of_members_that_refuse(cli):
    facts = json.loads(cli("doctor", "--json", env={"OPT_CORE_ISA": "generic"}).stdout)
    refused = [member for member in facts["members"] if member["refusal"]]
    higher = [member for member in facts["members"] if member["device"] == "cpu" and member["isa"] != "generic"]
    assert len(refused) >= len(higher)
    for member in higher:
        assert member["refusal"] == f"arch:generic!={member['isa']}"


def test_doctor_asks_cuda_members_for_the_architecture(cli, tmp_path):
    """Device 0 of the C tests' driver is an sm_90; without a driver the members say that there is none."""
    source = CORE / "tests/unit/fake_cuda.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-pthread", "-o", "libcuda.so.1", str(source)], cwd=tmp_path, check=True)
    facts = json.loads(cli("doctor", "--json", env={"LD_LIBRARY_PATH": str(tmp_path)}).stdout)
    assert facts["cuda"]["sm"] == 90
    said = {(member["device"], member["refusal"]) for member in facts["members"] if member["device"] != "cpu"}
    assert said == {("sm_90a", None), ("sm_80", "arch:sm_90!=sm_80")}
    (tmp_path / "libcuda.so.1").write_text("not a library")  # hides a real driver of the machine
    facts = json.loads(cli("doctor", "--json", env={"LD_LIBRARY_PATH": str(tmp_path)}).stdout)
    assert {member["refusal"] for member in facts["members"] if member["device"] != "cpu"} == {"no_device:libcuda"}


def test_doctor_names_every_unknown_variable(cli):
    done = cli("doctor", "--json", env={"OPT_CORE_MANIFST": "x", "OPT_CORE_ISA": "sse9", "OPT_CORE_AUTOLOAD": "1"})
    problems = json.loads(done.stdout)["problems"]
    assert done.returncode == 1
    assert any(text.startswith("environment:OPT_CORE_MANIFST is unknown (nearest: OPT_CORE_MANIFEST)") for text in problems)
    assert any(text.startswith("environment:OPT_CORE_ISA=sse9") for text in problems)
    assert not any("AUTOLOAD" in text for text in problems)


def script(path, text):
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return str(path)


def test_doctor_asks_the_interpreter(cli, tmp_path):
    answer = {"executable": "P", "version": "3.x", "hook": "runs", "kits": [], "packages": {"numpy": None}, "problems": ["hook:why"]}
    python = script(tmp_path / "python", f"test \"$*\" = '-m opt_core.doctor --json' && echo '{json.dumps(answer)}'\n")
    done = cli("doctor", "--json", env={"OPT_CORE_PYTHON": python})
    assert done.returncode == 1 and json.loads(done.stdout)["python"] == answer
    assert "hook:why" in cli("doctor", env={"OPT_CORE_PYTHON": python}).stdout
    done = cli("doctor", "--json", env={"OPT_CORE_PYTHON": script(tmp_path / "mute", "exit 1\n")})
    assert done.returncode == 1 and "did not answer" in json.loads(done.stdout)["problems"][0]
    done = cli("doctor", "--json", env={"OPT_CORE_PYTHON": "/nonexistent/python"})
    assert done.returncode == 1 and "not found" in json.loads(done.stdout)["problems"][0]


# ---- the Python side of doctor ---------------------------------------------------------------------------------------


KIT = {"engine": "demo", "version": "1", "variable": "DEMOFOLD_OPT", "value": "", "package": "demo_opt", "file": "/x.pth"}


@pytest.mark.parametrize("name, found", [
    ("DEMOFLOD_OPT", True), ("DEMOFOLD_OTP_OPT", False), ("demofold_OPT", True), ("DMEOFOLD_OPT", True), ("DEMOFOL_OPT", True),
    ("DEMOFOLD_OPT", False), ("JAVA_OPT", False), ("MODEL_OPT_LEVERS_OF", False), ("MODL_OPT_LEVERS_OFF", True)])
def test_typos_of_kit_variables(name, found):
    assert bool(doctor.typos([KIT], {name: "fast"})) == found


@pytest.mark.parametrize("value, bad", [("", False), ("fast", False), (" big ", False), ("0", False), ("BIG", True), ("1", True),
                                        ("big,x", True)])
def test_values_that_are_no_mode(value, bad):
    assert bool(doctor.typos([{**KIT, "value": value}], {})) == bad


def test_edit_distance():
    assert [doctor.distance(a, b) for a, b in (("", "abc"), ("abc", "abc"), ("abc", "acb"), ("abc", "xbc"), ("abcd", "bcd"))] == \
        [3, 0, 1, 1, 1]


def test_kits_are_found_without_importing_them(tmp_path):
    package = tmp_path / "demo_opt"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    (package / "kit.json").write_text('{"variable": "DEMO_FOLD_OPT"}')
    info = tmp_path / "demo_opt-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: demo-opt\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[opt_core.kits]\ndemo = demo_opt:kit\nbare = gone_opt:kit\n")
    code = f"import runpy, json; m = runpy.run_path({str(CORE / 'opt_core' / 'doctor.py')!r}); print(json.dumps(m['kits']()))"
    env = {**os.environ, "PYTHONPATH": str(tmp_path), "DEMO_FOLD_OPT": "fast"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    kits = {kit["engine"]: kit for kit in json.loads(done.stdout)}
    assert (kits["demo"]["variable"], kits["demo"]["value"], kits["demo"]["version"]) == ("DEMO_FOLD_OPT", "fast", "1.2")
    assert kits["bare"]["variable"] == "BARE_OPT"
    assert kits["demo"]["file"] == "none"


@pytest.mark.parametrize("text, found", [
    ("import os; os.environ.get('DEMOFOLD_OPT') and __import__('demo_opt._boot')\n", True), ("/some/path/demo_opt\n", False),
    ("# import demo_opt\n", False), ("import other\n", False)])
def test_pth_lines(tmp_path, text, found):
    (tmp_path / "x.pth").write_text(text)
    assert doctor._mentions(str(tmp_path / "x.pth"), "demo_opt", "DEMOFOLD_OPT", ".pth") == found


def test_hook_problems(monkeypatch):
    monkeypatch.setenv("OPT_CORE_AUTOLOAD", "0")
    problems = doctor.hook_problems([{**KIT, "file": "none"}])
    assert any("OPT_CORE_AUTOLOAD=0" in text for text in problems)
    assert any("no .pth or .start of demo_opt" in text for text in problems)


# ---- run -------------------------------------------------------------------------------------------------------------


def switched_on(tmp_path, **more):
    bootstrap = tmp_path / "bootstrap"
    bootstrap.mkdir(exist_ok=True)
    (bootstrap / "sitecustomize.py").write_text("")
    return {"OPT_CORE_BOOTSTRAP": str(bootstrap), "OPT_CORE_KIT_VARIABLES": "DEMO_OPT,OTHER_OPT", "DEMO_OPT": "fast", **more}


@pytest.mark.parametrize("command, status", [("exit 0", 0), ("exit 7", 7), ("exit 3", 3), ("kill -9 $$", 137), ("kill -15 $$", 143)])
def test_run_hands_on_the_status(cli, command, status):
    assert cli("run", "--", "sh", "-c", command).returncode == status


def test_run_names_a_command_that_cannot_start(cli, tmp_path):
    assert cli("run", "--", "no-such-command-here").returncode == 127
    (tmp_path / "plain").write_text("")
    done = cli("run", "./plain")
    assert done.returncode == 126 and "./plain" in done.stderr


def test_run_takes_no_option_of_the_command(cli):
    assert cli("run", "sh", "-c", "echo $0 $1", "--help", "--json").stdout == "--help --json\n"


def test_run_puts_the_hook_first(cli, tmp_path):
    env = switched_on(tmp_path, PYTHONPATH="/before", DEMO_OPT="")
    assert cli("run", "--", "sh", "-c", "echo $PYTHONPATH", env=env).stdout == f"{tmp_path}/bootstrap:/before\n"
    (tmp_path / "bootstrap" / "sitecustomize.py").write_text("print('hook')")
    assert cli("run", "--", sys.executable, "-c", "print('body')", env=env).stdout == "hook\nbody\n"


def test_run_off_leaves_no_trace(cli, tmp_path):
    for value in ("", "0", "off"):
        done = cli("run", "--", "sh", "-c", "echo ${OPT_CORE_MANIFEST-unset}", env=switched_on(tmp_path, DEMO_OPT=value))
        assert (done.returncode, done.stdout, done.stderr) == (0, "unset\n", "")
    assert list(tmp_path.glob("*.json")) == []


def test_run_without_a_record_is_refused(cli, tmp_path):
    done = cli("run", "--", "true", env=switched_on(tmp_path))
    assert done.returncode == 3
    assert "[opt_core] NOT ACTIVE: hook: hook:absent, DEMO_OPT=fast" in done.stderr
    record = json.loads((tmp_path / "opt_manifest.json").read_text())
    assert (record["state"], record["engine"], record["exit_status"]) == ("refused", "demo", 3)
    assert "hook:absent" in json.dumps(record)
    done = cli("run", "--", "sh", "-c", "exit 7", env=switched_on(tmp_path))
    assert done.returncode == 7 and "hook:absent" in done.stderr


def test_run_ending_with_3_and_no_record_is_refused_by_name(cli, tmp_path):
    """3 is a refusal of opt_core only where a record says so; a program may end with it for reasons of its own."""
    done = cli("run", "--", "sh", "-c", "exit 3", env=switched_on(tmp_path))
    assert done.returncode == 3 and done.stderr.count("NOT ACTIVE: hook: hook:absent") == 1
    record = json.loads((tmp_path / "opt_manifest.json").read_text())
    assert (record["state"], record["engine_status"], record["exit_status"]) == ("refused", 3, 3)
    env = switched_on(tmp_path, OPT_CORE_MANIFEST="own.json")
    done = cli("run", "--", "sh", "-c", "echo '{}' > own.json; exit 3", env=env)
    assert (done.returncode, done.stderr) == (3, "")


@pytest.mark.parametrize("setting, wrote", [
    (None, "opt_manifest.json"), (None, "opt_manifest.4711.json"), (None, "opt_manifest.rank3.json"), ("sub/", "sub/opt_manifest.json"),
    ("sub", "sub/opt_manifest.json"), ("sub/mine.json", "sub/mine.json"), ("sub/mine.json", "sub/mine.12.json")])
def test_run_with_a_record_is_the_commands_own(cli, tmp_path, setting, wrote):
    (tmp_path / "sub").mkdir()
    env = switched_on(tmp_path, **({"OPT_CORE_MANIFEST": setting} if setting else {}))
    command = f"cd / && echo '{{}}' > {tmp_path}/{wrote}"
    done = cli("run", "--", "sh", "-c", command, env=env)
    assert (done.returncode, done.stderr) == (0, "")


def test_run_counts_only_a_record_of_this_run(cli, tmp_path):
    (tmp_path / "opt_manifest.json").write_text('{"state": "finished"}')
    done = cli("run", "--", "true", env=switched_on(tmp_path))
    assert done.returncode == 3 and "hook:absent" in done.stderr
    (tmp_path / "opt_manifest.old").write_text("")
    (tmp_path / "opt_manifested.json").write_text("")
    assert cli("run", "--", "sh", "-c", "echo > opt_manifested.json", env=switched_on(tmp_path)).returncode == 3


def test_run_sets_an_absolute_place_for_the_record(cli, tmp_path):
    command = "echo $OPT_CORE_MANIFEST; echo > opt_manifest.json"
    assert cli("run", "--", "sh", "-c", command, env=switched_on(tmp_path)).stdout == f"{tmp_path}/opt_manifest.json\n"


@pytest.mark.parametrize("env, word", [
    ({"DEMO_OPT": "fsat"}, "mode:unknown:fsat"), ({"OTHER_OPT": "1"}, "mode:unknown:1"), ({"OPT_CORE_NOPE": "1"}, "environment:OPT_CORE_NOPE"),
    ({"OPT_CORE_BOOTSTRAP": "/nonexistent"}, "hook:no sitecustomize.py in /nonexistent")])
def test_run_refuses_before_the_command_starts(cli, tmp_path, env, word):
    done = cli("run", "--", "touch", "started", env={**switched_on(tmp_path), **env})
    assert done.returncode == 3 and word in done.stderr and not (tmp_path / "started").exists()


def test_run_without_a_list_of_kits_knows_mode_words_only(cli, tmp_path):
    env = {**switched_on(tmp_path), "OPT_CORE_KIT_VARIABLES": "", "JAVA_OPT": "-Xmx1g"}
    assert cli("run", "--", "true", env={**env, "DEMO_OPT": "-O2"}).returncode == 0
    assert cli("run", "--", "true", env=env).returncode == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_run_forwards_signals(program, number):
    code = ("import signal, sys, time\n"
            f"signal.signal({int(number)}, lambda *a: sys.exit(40 + {int(number)}))\n"
            "print('ready', flush=True)\ntime.sleep(30)\n")
    # a test run in the background ignores SIGINT, and what is ignored is inherited
    heed = functools.partial(signal.signal, number, signal.SIG_DFL)
    with subprocess.Popen([program, "run", "--", sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, preexec_fn=heed) as child:
        assert child.stdout.readline() == "ready\n"
        child.send_signal(number)
        assert child.wait(timeout=20) == 40 + number


def test_run_says_which_signal_ended_the_command(program):
    code = "import time; print('ready', flush=True); time.sleep(30)"
    with subprocess.Popen([program, "run", "--", sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "ready\n"
        child.terminate()
        assert child.wait(timeout=20) == 128 + signal.SIGTERM


# ---- made files ------------------------------------------------------------------------------------------------------


def test_completion_is_current_and_lists_every_command_and_option(cli):
    text = cli("completion").stdout
    assert text == (CORE / "cli" / "completion.bash").read_text()
    for command in COMMANDS:
        words = re.search(rf"^    {command}\) words='(.*)' ;;$", text, re.M).group(1).split()
        options = set(re.findall(r"--[a-z]+", cli(command, "--help").stdout)) - {"--help", "--usage", "--version"}
        assert options <= set(words), command
    assert "words='" + " ".join(COMMANDS) in text


def test_completion_in_bash(cli, tmp_path):
    (tmp_path / "c").write_text(cli("completion").stdout)
    complete = "source c; COMP_WORDS=(opt_core {}); COMP_CWORD={}; _opt_core; echo ${{COMPREPLY[*]}}"
    for words, index, answer in (("c", 1, "compare cells census completion"), ("compare --r", 2, "--rel --rules"), ("cells sh", 2, "show")):
        done = subprocess.run(["bash", "-c", complete.format(words, index)], cwd=tmp_path, capture_output=True, text=True)
        assert done.stdout.split() == answer.split()


def test_manual_page_is_current(cli):
    page = (CORE / "cli" / "opt_core.1").read_text().replace("\\-", "-").replace("\\e", "\\")
    checked = 0
    for command in ((), *((command,) for command in COMMANDS)):
        for option in set(re.findall(r"(?<!\w)--[a-z]+(?:=[A-Z]+)?", cli(*command, "--help").stdout)):
            assert option in page, option
            checked += 1
    assert checked >= 25
    assert set(re.findall(r"^\.SS \"opt_core (\w+)\"$", page, re.M)) == set(COMMANDS)
    in_page = set(re.findall(r"(?<!\w)--[a-z]+", page))
    in_help = set(re.findall(r"(?<!\w)--[a-z]+", "".join(cli(*c, "--help").stdout for c in ((), *((c,) for c in COMMANDS)))))
    assert in_page == in_help
    for variable in re.findall(r"^  (OPT_CORE_\w+)", cli("--help").stdout, re.M):
        assert variable in page


# ---- python -m opt_core ----------------------------------------------------------------------------------------------


def is_installed():
    """Asked from another folder, where the source tree is not importable by chance."""
    return subprocess.run([sys.executable, "-c", "import opt_core"], cwd="/", stderr=subprocess.DEVNULL).returncode == 0


@pytest.mark.skipif(not is_installed(), reason="the package is not installed in this interpreter")
def test_python_m_is_the_same_program(tmp_path):
    env = {key: value for key, value in os.environ.items() if not key.startswith(OWN) and not key.endswith("_OPT")}

    def call(*words):
        return subprocess.run([sys.executable, "-m", "opt_core", *map(str, words)], capture_output=True, text=True, cwd=tmp_path, env=env)

    assert re.fullmatch(r"opt_core \d+\.\d+\.\d+\n", call("--version").stdout)
    assert call("compare", GOLDEN / "stock", GOLDEN / "close").returncode == 1
    assert call("frob").returncode == 2
    facts = json.loads(call("doctor", "--json").stdout)
    assert os.path.realpath(facts["python"]["executable"]) == os.path.realpath(sys.executable)
    assert facts["python"]["packages"]["opt_core"] == facts["version"]
    assert facts["environment"]["OPT_CORE_BOOTSTRAP"].endswith("_bootstrap")
    assert call("run", "--", "sh", "-c", "kill -13 $$; exit 5").returncode == 128 + signal.SIGPIPE  # not ignored, as Python has it
    assert call("run", "--", "sh", "-c", "echo ${OPT_CORE_KIT_VARIABLES-unset}").stdout != "unset\n"

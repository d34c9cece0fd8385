# SPDX-License-Identifier: Apache-2.0
"""The kit API: what an activation writes down, what a lever counts, how each ends."""

import json
import os

import pytest


def program(values, before="", after=""):
    return f"""
import json, sys
{before}
from toyengine.model import run
out = []
for x in {values!r}:
    try:
        out.append(run([x])[0][0])
    except ValueError as error:
        out.append(str(error))
print(json.dumps(out))
{after}
"""


def levers(result):
    return {lever["name"]: {**lever, **lever["counts"]} for lever in result.manifest()["levers"]}


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_record_of_a_run(home, mode):
    result = home.run(code=program([1, 2]), TOYENGINE_OPT=mode)
    assert result.status == 0, result.err
    assert [line.split()[0] for line in result.lines()] == ["LEVER", "LEVER", "NOT", "ACTIVE", "CELLS", "EXIT"], (
        result.err
    )
    record = result.manifest()
    assert (record["engine"], record["mode"], record["state"], record["exit_status"]) == (
        "toyengine",
        mode,
        "finished",
        0,
    )
    facts = record["facts"]
    assert facts["python"].count(".") == 2
    assert facts["device"] == "cpu-" + facts["cpu.isa"]
    assert record["core"]["version"] == "0.1.0"
    assert record["core"]["dir"] == str(home.site / "opt_core")
    assert [(entry["what"], entry["patched"], entry["still_patched"]) for entry in record["instances"]] == [
        ("Layer.forward", 1, 1)
    ]
    assert int(facts["cpu.threads"]) >= 1
    assert "package.torch" not in facts  # not installed there
    layer = levers(result)["layer"]
    assert (layer["state"], layer["calls"], layer["hits"]) == ("served", 2, 2)
    assert levers(result)["gate"]["state"] == "refused"


def test_calls_are_settled_by_kind(home):
    result = home.run(code=program([1, 1, -1, -1, -1, -2, -3, 5]), TOYENGINE_OPT="exact")
    assert result.status == 0, result.err
    assert json.loads(result.out) == ["toy", "toy", "stock", "stock", "stock", "stock", "bad", "toy"]
    layer = levers(result)["layer"]
    assert (layer["calls"], layer["hits"], layer["stock"], layer["fallbacks"]) == (8, 3, 3, 2)
    (cells,) = result.lines("CELLS")
    assert "CELL_HIT:ln:cpu=3" in cells
    assert "UNCOVERED_CELL:ln:toy_class=3" in cells
    assert "NAMED_FALLBACK:ln:cpu:dtype" in cells and "NAMED_FALLBACK:ln:cpu:raised" in cells


def test_required_lever_that_refuses_a_call_ends_the_process(home):
    result = home.run(code=program([1, -2, 1]), TOYENGINE_OPT="fast")
    assert (result.status, result.out) == (3, "")
    assert result.lines("NOT ACTIVE: layer: dtype:x f64")
    assert result.manifest()["state"] == "refused"


def test_lever_that_serves_nothing_fails_closed(home):
    result = home.run(code="import toyengine.layers\n", TOYENGINE_OPT="fast")
    assert result.status == 4
    assert result.lines("ACCOUNTING layer: ")
    assert result.manifest()["state"] == "closed"


def test_engine_status_wins(home):
    result = home.run(code=program([1], after="sys.exit(9)"), TOYENGINE_OPT="fast")
    assert result.status == 9
    assert result.manifest()["exit_status"] == 9


UNPATCH = {
    "assigned over": ("toyengine.layers.Layer.forward = lambda self, x: ('other', x)", 4),
    "class replaced": ("toyengine.layers.Layer = type('Layer', (), {'forward': lambda self, x: ('other', x)})", 4),
    "wrapped again": (
        "import functools\nours = toyengine.layers.Layer.forward\n"
        "toyengine.layers.Layer.forward = functools.wraps(ours)(lambda self, x: ours(self, x))",
        0,
    ),
}


@pytest.mark.parametrize("how", UNPATCH)
def test_every_patch_is_still_there_at_exit(home, how):
    code, status = UNPATCH[how]
    result = home.run(code=program([1], after="import toyengine.layers\n" + code), TOYENGINE_OPT="fast")
    assert result.status == status, result.err
    assert bool(result.lines("ACCOUNTING layer: ")) == (status == 4)


@pytest.mark.parametrize(
    "fault, reason",
    [
        (None, "engine_layout:toyengine.layers.Layer.forward(x), not (x, mask)"),
        ("bind", "hook:bind: KeyError: 'toy'"),
        ("exit", "hook:bind: SystemExit: 0"),
        ("moved", "engine_layout:toyengine.moved.Layer: No module named 'toyengine.moved'"),
        ("gone", "engine_layout:toyengine.layers.Gone is not there"),
        ("object", "engine_layout:toyengine.layers.BODY_RAN is a bool, not a class"),
        ("pin", "pin:toy-opt0.2.0!>=9"),
        ("compiled", "engine_layout:toyengine.layers.Exported.forward is no Python method"),
    ],
)
def test_adapter_that_cannot_bind(home, fault, reason):
    recorded = home.run(code=program([1]), TOYENGINE_OPT="fast", TOY_FAULT=fault)
    assert recorded.status == 0, recorded.err
    assert recorded.lines("NOT ACTIVE: ") == [f"NOT ACTIVE: gate: {reason}"]
    required = home.run(code=program([1]), TOYENGINE_OPT="big", TOY_FAULT=fault)
    assert required.status == 3
    assert required.lines("NOT ACTIVE: ") == [f"NOT ACTIVE: gate: {reason}"]
    assert required.out == ""


@pytest.mark.parametrize("words, state", [("gate", ("served", "off")), ("layer", ("off", "refused"))])
def test_levers_off(home, words, state):
    result = home.run(code=program([1]), TOYENGINE_OPT="exact", MODEL_OPT_LEVERS_OFF=words)
    assert result.status == 0, result.err
    assert (levers(result)["layer"]["state"], levers(result)["gate"]["state"]) == state
    assert json.loads(result.out) == ["toy" if state[0] == "served" else "stock"]


def test_unknown_lever_in_levers_off(home):
    result = home.run(code=program([1]), TOYENGINE_OPT="fast", MODEL_OPT_LEVERS_OFF="layre")
    assert (result.status, result.out) == (3, "")
    (line,) = result.lines()
    assert line.startswith("NOT ACTIVE: toyengine: lever:unknown:layre")
    assert "layer" in line.partition("layre")[2]


def test_unknown_core_variable(home):
    result = home.run(code=program([1]), TOYENGINE_OPT="fast", OPT_CORE_MANIFST="x")
    assert result.status == 3
    assert result.lines("NOT ACTIVE: toyengine: environment:OPT_CORE_MANIFST")


def test_row_off(home):
    code = program(
        [1],
        after="import toy_opt.kit\nlever = toy_opt.kit.kit.levers[0]\n"
        "print([lever.row_off(r) for r in ('cpu', 'reference')], lever.rows_off)",
    )
    result = home.run(code=code, TOYENGINE_OPT="fast", MODEL_OPT_LEVERS_OFF="layer:cpu")
    assert result.status == 0, result.err
    assert result.out.splitlines()[-1] == "[True, False] ('cpu',)"


def test_a_call_whose_row_is_off_stays_stock(home):
    code = """
from toyengine.layers import Layer
import opt_core, toy_opt.kit
lever = toy_opt.kit.kit.levers[0]
Layer().forward(1)
def off():
    raise opt_core.Refused("off_by_user", "cpu")
assert [lever.serve(off, lambda: i) for i in range(3)] == [0, 1, 2]
"""
    result = home.run(code=code, TOYENGINE_OPT="fast")  # `require` does not mind: the user asked for it
    assert result.status == 0, result.err
    layer = levers(result)["layer"]
    assert (layer["calls"], layer["claims"], layer["hits"], layer["stock"]) == (4, 1, 1, 3)


def test_a_call_that_a_tracer_watches(home):
    code = """
from toyengine.layers import Layer
import toy_opt.kit
lever = toy_opt.kit.kit.levers[0]
Layer().forward(1)
print(lever.serve(lambda: ("a node of a graph", None), lambda: "stock"))
"""
    result = home.run(code=code, TOYENGINE_OPT="exact")
    assert (result.status, result.out) == (0, "stock\n"), result.err
    assert levers(result)["layer"]["fallbacks"] == 1
    assert home.run(code=code, TOYENGINE_OPT="fast").status == 3


@pytest.mark.parametrize("status", [0, 7])
def test_closing_by_hand_is_final_and_counts_once(home, status):
    code = f"""
import sys
from toyengine.layers import Layer
import toy_opt.kit
Layer().forward(1)
kit = toy_opt.kit.kit
assert [kit.close(0), kit.close(0)] == [0, 0]
kit._count_patched()
sys.exit({status})
"""
    result = home.run(code=code, TOYENGINE_OPT="fast")
    assert result.status == status and "Traceback" not in result.err, result.err
    assert [entry["still_patched"] for entry in result.manifest()["instances"]] == [1]
    assert len(result.lines("EXIT ")) == 1


def test_disable_gives_the_engine_back(home):
    code = """
import toyengine.layers as m, toy_opt.kit
wrapper = m.Layer.forward
first = m.Layer().forward(1)
counts = toy_opt.kit.kit.disable()
assert m.Layer.forward is wrapper.__wrapped__
print(first, m.Layer().forward(1), counts["layer"]["calls"], counts["layer"]["hits"])
"""
    result = home.run(code=code, TOYENGINE_OPT="fast")
    assert result.status == 0, result.err
    assert result.out == "('toy', 2) ('stock', 2) 1 1\n"
    assert result.manifest()["state"] == "finished"


def test_kit_enabled_by_hand_follows_its_variable(home):
    code = """
import os, toyengine.layers as m, toy_opt.kit
kit = toy_opt.kit.kit
if "TOYENGINE_OPT" not in os.environ:
    assert kit.enable() is kit and kit.mode == "off" and kit.disable() == {}
    assert not hasattr(m.Layer.forward, "__wrapped__")
else:
    os.environ["TOYENGINE_OPT"] = "off"
    assert kit.enable() is kit and kit.mode == "exact"
print(m.Layer().forward(1))
"""
    assert home.run(code=code).out == "('stock', 2)\n"
    result = home.run(code=code, TOYENGINE_OPT="exact", OPT_CORE_AUTOLOAD="1")
    assert (result.status, result.out) == (0, "('toy', 2)\n"), result.err
    by_hand = home.run(
        code="import toy_opt.kit\ntoy_opt.kit.kit.enable()\nfrom toyengine.layers import Layer\n"
        "print(Layer().forward(1))\n",
        TOYENGINE_OPT="exact",
        OPT_CORE_AUTOLOAD="0",
    )
    assert (by_hand.status, by_hand.out) == (0, "('toy', 2)\n"), by_hand.err


def test_record_that_cannot_be_written_is_said(home):
    result = home.run(code=program([1]), TOYENGINE_OPT="fast", OPT_CORE_MANIFEST="/proc/no/such/place.json")
    assert (result.status, result.out) == (0, '["toy"]\n'), result.err
    (line,) = result.lines("NOTE manifest")
    assert "path=/proc/no/such/place.json" in line


PATCHES = """
from toyengine.layers import Layer
import toy_opt.kit
lever = toy_opt.kit.kit.levers[0]
Layer().forward(1)
class Base:
    def plain(self): return "plain"
    @staticmethod
    def static(x): return x
    @classmethod
    def of_class(cls): return cls.__name__
class Below(Base):
    pass
def make(stock):
    return lambda *a: ("patched", stock(*a))
for owner, method in ((Below, "plain"), (Base, "static"), (Base, "of_class")):
    lever.patch(owner, method, make)
    lever.patch(owner, method, make)
print(Below().plain(), Base().plain(), Base.static(1), Base().static(2), Below.of_class())
print(Below.plain.__qualname__, Base.static.__name__)
print(lever.undo(), Below().plain(), Base.static(1), Below.of_class(), "plain" in vars(Below))
toy_opt.kit.kit.disable()
"""


def test_methods_of_every_kind(home):
    result = home.run(code=PATCHES, TOYENGINE_OPT="exact")
    assert result.out.splitlines() == [
        "('patched', 'plain') plain ('patched', 1) ('patched', 2) ('patched', 'Below')",
        "Base.plain static",
        "4 plain 1 Below False",
    ], result.err


def test_more_reasons_than_the_census_holds(home):
    code = """
from toyengine.layers import Layer
import opt_core, toy_opt.kit
lever = toy_opt.kit.kit.levers[0]
Layer().forward(1)
def refuse(i):
    raise opt_core.Refused("shape", f"n={i}")
assert [lever.serve(lambda: refuse(i), lambda: i) for i in range(5000)] == list(range(5000))
"""
    result = home.run(code=code, TOYENGINE_OPT="exact", OPT_CORE_CELL_CENSUS_PRINT="0")
    assert result.status == 0, result.err
    assert levers(result)["layer"]["fallbacks"] == 5000


def test_bookkeeping_of_a_call_is_cheap(home):
    code = """
import timeit
from toyengine.layers import Layer
import toy_opt.kit
lever = toy_opt.kit.kit.levers[0]
Layer().forward(1)
answer = (None, ("toy_cell", "cpu", "cpu_generic"))
op, stock = (lambda: answer), (lambda: None)
print(min(timeit.repeat(lambda: lever.serve(op, stock), number=20000, repeat=7)) / 20000 * 1e6)
"""
    result = home.run(code=code, TOYENGINE_OPT="exact")
    assert result.status == 0, result.err
    assert float(result.out) < 5.0  # microseconds; about 1 on an idle core


def test_manifest_path_is_resolved_at_activation(home):
    code = program(
        [1],
        after="import os\nprint(os.environ['OPT_CORE_MANIFEST'], os.environ['OPT_CORE_PARENT'] == str(os.getpid()))\n"
        "os.mkdir('elsewhere'); os.chdir('elsewhere')",
    )
    result = home.run(code=code, TOYENGINE_OPT="fast", OPT_CORE_MANIFEST="my.json")
    assert result.status == 0, result.err
    assert result.out.splitlines()[-1] == f"{os.path.realpath(result.folder)}/my.json True"
    assert json.loads((result.folder / "my.json").read_text())["state"] == "finished"


def test_helper_processes_touch_no_record(home):
    code = program([1], after="import subprocess\nsubprocess.run([sys.executable, '-c', 'pass'], check=True)")
    result = home.run(code=code, TOYENGINE_OPT="fast")
    assert result.status == 0, result.err
    assert len(result.lines("ACTIVE ")) == 1 and result.manifest()["state"] == "finished"

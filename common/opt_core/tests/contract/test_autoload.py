# SPDX-License-Identifier: Apache-2.0
"""What the hook costs, and what a fault inside it does."""

import os
import statistics

import pytest

TRIGGER = "import toyengine.layers\nprint('after')\n"


PAIRS, ATTEMPTS, BOUND_MS = 30, 4, 2.0


def start_ms(environment, variables):
    """Processor time of an interpreter start, which a busy machine disturbs less than the clock on the wall."""
    child = os.posix_spawn(environment.python, [environment.python, "-c", "pass"], variables)
    _, status, usage = os.wait4(child, 0)
    assert status == 0
    return 1e3 * (usage.ru_utime + usage.ru_stime)


def median_difference_ms(bare, hooked, value):
    plain, asked = bare.variables(), hooked.variables(TOYENGINE_OPT=value)
    differences = []
    for number in range(PAIRS):  # which of the two goes first alternates
        first = start_ms(bare, plain) if number % 2 else start_ms(hooked, asked)
        second = start_ms(hooked, asked) if number % 2 else start_ms(bare, plain)
        differences.append(second - first if number % 2 else first - second)
    return statistics.median(differences)


@pytest.fixture(scope="module")
def bare(make_environment):
    """An environment without any hook."""
    return make_environment("bare", pip=False)


@pytest.mark.parametrize("value", [None, "", "off"])
def test_start_costs_under_two_milliseconds(home, bare, value):
    """Two kits installed against none, interleaved. Noise only adds, so one quiet attempt is enough."""
    start_ms(bare, bare.variables()), start_ms(home, home.variables(TOYENGINE_OPT=value))  # reads the files from disk
    medians = []
    while not medians or (medians[-1] >= BOUND_MS and len(medians) < ATTEMPTS):
        medians.append(median_difference_ms(bare, home, value))
    assert medians[-1] < BOUND_MS, medians


def test_the_measurement_sees_a_slow_start(home, bare):
    slow = {**home.variables(), "TOYENGINE_OPT": "fast", "TOYSPACE_OPT": "fast"}
    assert start_ms(home, slow) > 0
    costs = [
        start_ms(home, {**slow, "PYTHONPATH": str(home.site / "opt_core" / "_bootstrap")})
        - start_ms(bare, bare.variables())
        for _ in range(PAIRS)
    ]
    assert statistics.median(costs) > BOUND_MS  # reading the entry points of all distributions takes longer than that


def test_unset_imports_nothing(home):
    result = home.run("-X", "importtime", "-c", "pass")
    assert result.status == 0
    assert "site" in result.err
    assert "toy_opt" not in result.err and "opt_core" not in result.err


def test_off_imports_the_boot_module_only(home):
    result = home.run("-X", "importtime", "-c", "pass", TOYENGINE_OPT="off")
    names = [line.split("|")[-1].strip() for line in result.err.splitlines() if "|" in line]
    assert {name for name in names if name.startswith("toy_opt")} == {"toy_opt", "toy_opt._boot"}
    assert "opt_core" not in names


def test_fault_inside_enable_is_one_line_and_status_3(home):
    result = home.run(code=TRIGGER, TOYENGINE_OPT="fast", TOY_FAULT="enable")
    assert (result.status, result.out) == (3, "")
    (line,) = result.err.splitlines()
    assert line.startswith(
        "[opt_core] NOT ACTIVE: toyengine: hook:RuntimeError: the toy kit is broken on purpose (kit.py:"
    )


SWALLOWED = {
    "bare except": "try:\n    import toyengine.layers\nexcept BaseException:\n    pass\nprint('went on')\n",
    "thread": """
import threading
def work():
    import toyengine.layers
thread = threading.Thread(target=work)
thread.start(); thread.join()
print('went on')
""",
    "explicit success": "import sys\ntry:\n    import toyengine.layers\nfinally:\n    sys.exit(0)\n",
}


@pytest.mark.parametrize("fault", ["enable", "mode", "lever"])
@pytest.mark.parametrize("how", SWALLOWED)
def test_status_3_holds_when_the_exit_is_swallowed(home, how, fault):
    variables = {
        "enable": {"TOYENGINE_OPT": "fast", "TOY_FAULT": "enable"},
        "mode": {"TOYENGINE_OPT": "quick"},
        "lever": {"TOYENGINE_OPT": "big"},
    }[fault]
    result = home.run(code=SWALLOWED[how], **variables)
    assert result.status == 3, result.err
    assert len(result.lines("NOT ACTIVE: ")) == 1, result.err
    assert result.out == ("" if how == "explicit success" else "went on\n")  # buffered output is not lost


def test_status_of_an_engine_that_dies_after_a_swallowed_refusal(home):
    result = home.run(code=SWALLOWED["bare except"] + "raise LookupError\n", TOYENGINE_OPT="quick")
    assert result.status == 1
    assert len(result.lines("NOT ACTIVE: ")) == 1


def test_standard_error_closed(home):
    code = "import os\nos.close(2)\nimport toyengine.layers\n"
    assert home.run(code=code, TOYENGINE_OPT="quick").status == 3
    assert home.run(code=code, TOYENGINE_OPT="fast", TOY_FAULT="enable").status == 3


REGISTER = """
from opt_core import autoload
import counter
{0}
print(counter.count, [r.state for r in autoload.registrations()])
"""


def counted(home, body, **variables):
    folder = home.folder()
    (folder / "counter.py").write_text("count = 0\n\n\ndef enable():\n    global count\n    count += 1\n")
    for name in ("first", "second", "third"):
        (folder / f"trigger_{name}.py").write_text("import colorsys\n")
    return home.run(code=REGISTER.format(body), folder=folder, **variables)


@pytest.mark.parametrize(
    "body, answer",
    [
        ("", "0 []"),
        ("autoload.register(('X_OPT', ('trigger_first',), 'counter:enable'))", "0 ['waiting']"),
        (
            "for _ in range(3): autoload.register(('X_OPT', ('trigger_first',), 'counter:enable'))\n"
            "import trigger_first",
            "1 ['enabled']",
        ),
        (
            "autoload.register(('X_OPT', ('trigger_first', 'trigger_second'), 'counter:enable'))\n"
            "import trigger_second, trigger_first",
            "1 ['enabled']",
        ),
        ("import trigger_first\nautoload.register(('X_OPT', ('trigger_first',), 'counter:enable'))", "1 ['enabled']"),
        (
            "autoload.register(('X_OPT', ('trigger_first',), 'counter:enable'))\n"
            "autoload.register(('Y_OPT', ('trigger_first',), 'counter:enable'))\nimport trigger_first",
            "2 ['enabled', 'enabled']",
        ),
        (
            "autoload.register(('X_OPT', ('no.such.module',), 'counter:enable'))\n"
            "try:\n    import no.such.module\nexcept ModuleNotFoundError:\n    pass",
            "0 ['waiting']",
        ),
    ],
    ids=range(7),
)
def test_registration(home, body, answer):
    result = counted(home, body)
    assert (result.status, result.err) == (0, "")
    assert result.out.strip() == answer


def test_watch_runs_after_every_body(home):
    body = """
seen = []
autoload.watch("trigger_first", seen.append)
autoload.watch("trigger_first", seen.append)
import importlib, trigger_first
importlib.reload(trigger_first)
assert seen == ["trigger_first"] * 2, seen
assert autoload.finder_installed()
"""
    result = counted(home, body)
    assert (result.status, result.err, result.out.strip()) == (0, "", "0 []")


def test_registration_inside_the_trigger_itself_waits_for_its_end(home):
    folder = home.folder()
    (folder / "counter.py").write_text("count = 0\n\n\ndef enable():\n    global count\n    count += 1\n")
    (folder / "trigger_first.py").write_text(
        "from opt_core import autoload\nautoload.register(('X_OPT', ('trigger_first',), 'counter:enable'))\n"
        "import colorsys, counter\nassert counter.count == 0\n"
    )
    result = home.run(code="import trigger_first\nimport wave, counter\nassert counter.count == 1\n", folder=folder)
    assert (result.status, result.err) == (0, "")


def test_two_threads_two_triggers_do_not_wait_for_each_other(home):
    """Each enable imports the trigger of the other thread: a lock held over foreign code would hang here."""
    folder = home.folder()
    (folder / "deadlock.py").write_text(
        "import importlib, sys\ncount = 0\n\n\ndef enable():\n    global count\n    count += 1\n"
        "    importlib.import_module('side_a')\n    importlib.import_module('side_b')\n"
    )
    for name in "ab":
        (folder / f"side_{name}.py").write_text("import time\ntime.sleep(0.2)\n")
    code = """
import threading, importlib
from opt_core import autoload
import deadlock
autoload.register(("X_OPT", ("side_a", "side_b"), "deadlock:enable"))
threads = [threading.Thread(target=importlib.import_module, args=("side_" + name,)) for name in "ab"]
[t.start() for t in threads]; [t.join(20) for t in threads]
print([t.is_alive() for t in threads], deadlock.count)
"""
    result = home.run(code=code, folder=folder, timeout=60)
    assert (result.status, result.err, result.out) == (0, "", "[False, False] 1\n")

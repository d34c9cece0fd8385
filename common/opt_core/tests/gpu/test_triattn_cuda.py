# SPDX-License-Identifier: Apache-2.0
"""The ladder of triangle attention, core and module, for every row that this machine's GPU has a member for.

Without a GPU the same rungs run on the CPU's row at a few sizes, and the ladder itself is held against statements with a
known fault. `-m quick` or OC_TEST_QUICK=1 takes fewer cases. Each item runs hundreds of cases and stops at the first failure,
whose message has the command that reproduces it.
"""
import dataclasses
import itertools
import json
import os
import statistics
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import ladder  # noqa: E402
from ladder import Case, ModuleCase, Red, Tally  # noqa: E402

from opt_core import Refused  # noqa: E402
from opt_core.kernels.triattn import triattn  # noqa: E402

QUICK = os.environ.get("OC_TEST_QUICK") == "1"
CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
ROWS, MODULE_ROWS = ladder.rows_here("triattn", DEVICE), ladder.rows_here("triattn_module", DEVICE)
needs_gpu = pytest.mark.skipif(not CUDA, reason="no NVIDIA GPU on this machine")
each_row = pytest.mark.parametrize("row", ROWS)
each_module_row = pytest.mark.parametrize("row", MODULE_ROWS)
quick = pytest.mark.quick

if not CUDA:
    SIZES = MIDDLE = FEW = (1, 17, 33)
elif QUICK:
    SIZES, MIDDLE, FEW = (1, 16, 33, 64, 65, 127, 129, 257, 400, 1023), (33, 130), (130, 257)
else:
    SIZES, MIDDLE, FEW = ladder.SIZES, (17, 33, 130), (33, 130, 257, 400)


@pytest.fixture
def say(capsys):
    def line(text):
        with capsys.disabled():
            print(f"\n    {text}", end="", flush=True)

    return line


def guarded(rung, case, row, tally):
    """A failure of the device is told with the case that it came to light in."""
    try:
        rung(case, row, DEVICE, tally)
    except Red:
        raise
    except Exception as failure:
        raise Red(f"{type(failure).__name__}: {failure}\n  {ladder.reproduce(rung.__name__, case, row, DEVICE)}") from failure


def climb(rung, cases, row, say, count):
    """Runs all cases, as many as the test was written for (without a GPU, quick, full); each that a row must serve has run."""
    tally = Tally()
    with torch.no_grad():
        for case in cases:
            guarded(rung, case, row, tally)
    worst = f"; error against the stock form's: median {statistics.median(tally.ratios):.2f}, most {max(tally.ratios):.3g}" if tally.ratios else ""
    say(f"{rung.__name__} {row}: {tally}{worst}")
    assert tally.count == len(cases)
    assert tally.ran >= sum(ladder.must_serve(case, row) for case in cases)
    assert len(cases) == count[0 if not CUDA else 1 if QUICK else 2]
    return tally


# ---- the core --------------------------------------------------------------------------------------------------------


@quick
@each_row
def test_bound_sizes(row, say):
    climb(ladder.bound, ladder.sweep(SIZES), row, say, (24, 80, 176))


@quick
@each_row
def test_bound_dialects(row, say):
    cases = ladder.dialects(MIDDLE)
    climb(ladder.bound, cases if CUDA else cases[::9], row, say, (91, 544, 816))


@quick
@each_row
def test_bound_adversarial(row, say):
    cases = ladder.adversarial(FEW)
    climb(ladder.bound, cases if CUDA else cases[::5], row, say, (113, 376, 752))


@quick
@each_row
def test_extreme(row, say):
    cases, tally = ladder.extreme(FEW), Tally()
    with torch.no_grad():
        for rung, case in cases:
            guarded(rung, case, row, tally)
    say(f"extreme {row}: {tally}")
    assert tally.ran == sum(ladder.must_serve(case, row) for _, case in cases) and tally.count == len(cases)
    assert len(cases) == (72 if not CUDA else 48 if QUICK else 96)


@quick
@each_row
def test_bound_drawn(row, say):
    sizes = SIZES if not CUDA else [n for n in ladder.SIZES if n <= 400]
    climb(ladder.bound, ladder.drawn(100 if QUICK or not CUDA else 600, 20261201, sizes), row, say, (100, 100, 600))


@quick
@each_row
def test_order_free(row, say):
    cases = ladder.free(SIZES)
    climb(ladder.order_free, cases if CUDA else cases[::9], row, say, (92, 1732, 2760))


@quick
@each_row
def test_like_the_reference_row(row, say):
    cases = [Case(n=n, d=d, h=h, dtype=dtype, mask=mask, value=value, data="free", seed=n) for n, d, h in ((1, 32, 4), (17, 16, 3), (65, 32, 4), (100, 64, 1))
             for dtype in ("bf16", "f16") for mask, value in (("none", 0.0), ("zero", 0.0), ("fill", float("-inf")), ("subtract", 1e4))]
    climb(ladder.like_reference, cases, row, say, (32, 32, 32))


@quick
@each_row
def test_rerun(row, say):
    times = 3 if not CUDA else 200 if QUICK else 1000
    sizes = ((33, 3),) if not CUDA else ((130, 7), (257, 16)) if QUICK else ((33, 3), (130, 130), (257, 16), (400, 400))
    cases = [Case(n=n, i=i, dtype=dtype, tf32=tf32, lse=1, gate=1) for n, i in sizes for dtype, tf32 in ladder.CLASSES]
    cases.append(Case(n=257 if CUDA else 17, data="outlier_far", lse=1))  # what a first guess does not fit is computed again

    def rerun(case, row, device, tally):
        one = Tally()
        ladder.rerun(case, row, device, one, times)
        assert one.ran == times or one.ran == 0 and not ladder.must_serve(case, row)
        tally.ran += one.ran // times
        tally.add(one)

    climb(rerun, cases, row, say, (5, 9, 17))


@quick
@each_row
def test_invariance(row, say):
    if not ladder.is_rowwise(row, DEVICE):
        pytest.skip(f"{row} does not promise that rows i leave each other's bits alone")
    cases = [Case(n=n, i=i, b=b, dtype=dtype, tf32=tf32, data=data, gate=1, mask=mask, keep="random" if mask == "none" else "some")
             for n, i, b in (((17, 5, 2),) if not CUDA else ((33, 7, 2), (130, 9, 1), (257, 130, 1)))
             for dtype, tf32 in ladder.CLASSES for data, mask in (("random", "zero"), ("outlier_far", "none"))]
    climb(ladder.invariance, cases, row, say, (8, 24, 24))


@quick
@each_row
def test_refusals(row):
    tally = Tally()
    ladder.refusals(row, DEVICE, tally)
    assert tally.ran == (12 if CUDA else 10)


@needs_gpu
@each_row
def test_last_rows_of_large_inputs(row, say):
    """Beyond 2^31 elements of q, k and v; the last two rows i, all queries, against float64."""
    cases = [Case(n=2897, i=2897, lse=1), Case(n=2897, i=2897, layout="ending", out="ending", bias="bf16"), Case(n=4097, i=4097)]
    cases += [] if QUICK else [Case(n=2897, i=2897, dtype="f16"), Case(n=4097, i=2, lse=1), Case(n=4097, i=2, dtype="f32"), Case(n=4097, i=2, dtype="f32", tf32=1)]
    cases = [case for case in cases if ladder.must_serve(case, row)]
    for case in cases:
        a = ladder.make(case, DEVICE)
        with torch.no_grad():
            out = torch.full((1, case.i, case.n, 4, 32), float("nan"), device=DEVICE, dtype=a.q.dtype)
            out = out.transpose(1, 2) if case.out == "ending" else out
            lse = torch.full((1, case.i, 4, case.n), float("nan"), device=DEVICE) if case.lse else None
            ladder.serve(case, a, row, out, lse)
            rows = [case.i - 2, case.i - 1]
            want, want_lse = ladder.truth(case, a, rows)
            stock, stock_lse = ladder.stock(case, a, rows)
            said = ladder.check_bound(out[:, rows], want, stock, out.dtype, "out")
            if lse is not None:
                said = said or ladder.check_bound(lse[:, rows], want_lse, stock_lse, torch.float32, "lse", 4)
            assert said is None, f"{case}: {said}"
            assert bool(torch.isfinite(out).all()), f"{case}: an element was not written"
        del a, out, lse, want, want_lse, stock, stock_lse
        torch.cuda.empty_cache()
    say(f"last rows {row}: {len(cases)} cases")


# ---- streams, graphs, cost of a call -----------------------------------------------------------------------------------


def measured_case(n):
    case = Case(n=n, i=n)
    a = ladder.make(case, DEVICE)
    return case, a, torch.empty(a.q.shape, dtype=a.q.dtype, device=DEVICE)


@quick
@needs_gpu
@each_row
def test_graph_capture(row):
    """A captured call replays with the bits of an eager one, on new inputs in the same place."""
    case, a, out = measured_case(129)
    want, _ = ladder.serve(case, a, row)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ladder.serve(case, a, row, out)
    out.fill_(float("nan"))
    graph.replay()
    assert ladder.compare_bits(out, want, "replay") is None
    other = ladder.make(dataclasses.replace(case, seed=5), DEVICE)
    a.q.copy_(other.q), a.v.copy_(other.v)
    graph.replay()
    want, _ = ladder.serve(case, a, row)
    assert ladder.compare_bits(out, want, "replay on new inputs") is None


@quick
@needs_gpu
@each_row
def test_the_current_device_and_stream_stay(row):
    case, a, out = measured_case(65)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        ladder.serve(case, a, row, out)
        assert torch.cuda.current_stream() == side
    assert torch.cuda.current_device() == 0
    torch.cuda.current_stream().wait_stream(side)
    assert ladder.check_bound(out, ladder.truth(case, a)[0], ladder.stock(case, a)[0], out.dtype, "out") is None


@quick
@needs_gpu
@each_row
def test_eager_is_near_its_replay(row, say):
    case, a, out = measured_case(256)

    def median(call, times):
        spans = []
        for _ in range(times):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record(), call(), end.record()
            spans.append((begin, end))
        torch.cuda.synchronize()
        return statistics.median(b.elapsed_time(e) for b, e in spans) * 1e3

    call = lambda: ladder.serve(case, a, row, out)  # noqa: E731
    for _ in range(20):
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    tries = []
    for _ in range(5):
        tries.append((median(call, 100), median(graph.replay, 100)))
    eager, replay = min(tries, key=lambda t: t[0] - t[1])
    say(f"N = 256 {row}: eager {eager:.1f} us, replay {replay:.1f} us")
    assert eager - replay < 15, f"{eager:.1f} us against {replay:.1f} us"


@quick
@needs_gpu
@each_row
def test_extra_memory(row, say):
    case, a, out = measured_case(1024)
    ladder.serve(case, a, row, out)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    ladder.serve(case, a, row, out)
    torch.cuda.synchronize()
    extra = torch.cuda.max_memory_allocated() - before
    inputs = sum(t.numel() * t.element_size() for t in (a.q, a.k, a.v, a.bias, a.mask))
    say(f"N = 1024 {row}: {extra / 2**20:.2f} MB beside {inputs / 2**20:.0f} MB of inputs, {extra / inputs:.2%}")
    assert extra <= 0.01 * inputs


FIRST = """
import json, sys, time
import torch
torch.zeros(1, device="cuda"); torch.cuda.synchronize()
t0 = time.perf_counter()
from opt_core import torch_glue
from opt_core.kernels.triattn import triattn
t1 = time.perf_counter()
q, k, v = (torch.randn(1, 256, 256, 4, 32).bfloat16().cuda() for _ in range(3))
bias, mask = torch.randn(1, 4, 256, 256).cuda(), torch.ones(1, 256, 256, dtype=torch.bool).cuda()
torch.cuda.synchronize()
t2 = time.perf_counter()
with torch.no_grad():
    triattn(q, k, v, bias, mask, scale=32**-0.5, mask_kind="zero", row=sys.argv[1])
torch.cuda.synchronize()
print(json.dumps({"import_ms": (t1 - t0) * 1e3, "call_ms": (time.perf_counter() - t2) * 1e3}))
"""


@quick
@needs_gpu
@each_row
def test_first_call_of_a_process(row, say):
    done = [subprocess.run([sys.executable, "-c", FIRST, row], capture_output=True, text=True, check=True) for _ in range(1 if QUICK else 2)]
    found = [json.loads(d.stdout.splitlines()[-1]) for d in done]
    best = min(found, key=lambda f: f["call_ms"])
    say(f"first call {row}: {best['call_ms']:.1f} ms after an import of {best['import_ms']:.1f} ms")
    assert best["call_ms"] < 50


@quick
@needs_gpu
def test_cells_choose_a_row_of_this_device():
    """Without a row the measured cells decide; a class that none covers is refused by name."""
    case, a, out = measured_case(512)
    try:
        _, (cell, row, member) = triattn(a.q, a.k, a.v, a.bias, a.mask, scale=a.scale, mask_kind="zero", out=out)
    except Refused as refusal:
        assert refusal.word in ("uncovered_cell", "arch")
    else:
        assert row in ROWS and cell and member
        assert ladder.check_bound(out[:, -2:], ladder.truth(case, a, [510, 511])[0], ladder.stock(case, a, [510, 511])[0], out.dtype, "out") is None


# ---- the module ------------------------------------------------------------------------------------------------------


@quick
@each_module_row
def test_module_bound(row, say):
    sizes = (1, 17, 33) if not CUDA else (1, 16, 33, 65, 130, 257) if QUICK else (1, 2, 15, 16, 17, 33, 63, 64, 65, 100, 101, 127, 128, 129, 130, 255, 256, 257, 400, 777)
    cases = ladder.module_cases(sizes)
    climb(ladder.module_bound, cases if CUDA else cases[::5], row, say, (37, 208, 548))


@quick
@each_module_row
def test_module_rerun(row, say):
    times = 2 if not CUDA else 50 if QUICK else 300
    cases = [ModuleCase(n=n, dtype=dtype, tf32=tf32, ending=ending) for n in ((130, 257) if CUDA else (17,)) for dtype, tf32 in ladder.CLASSES for ending in (0, 1)]

    def module_rerun(case, row, device, tally):
        one = Tally()
        ladder.module_rerun(case, row, device, one, times)
        assert one.ran in (0, times)
        tally.ran += one.ran // times
        tally.add(one)

    climb(module_rerun, cases, row, say, (8, 16, 16))


# ---- the ladder itself -----------------------------------------------------------------------------------------------


def statement(fault=None):
    """triattn in torch, with a fault in it."""
    calls = itertools.count()

    def run(q, k, v, bias, mask, gate, *, scale, mask_kind, mask_value, row, out, lse, tf32=False):
        case = Case(n=k.shape[2], mask=mask_kind, value=mask_value)
        if fault == "swapped operand":
            k, v = v, k
        if fault == "shifted index" and bias is not None:
            bias = bias.roll(1, -1)
        if fault == "dropped tail":
            q = torch.cat([q[:, :, :-1], torch.zeros_like(q[:, :, -1:])], 2)
        if fault == "lost mask" and mask is not None:
            mask = torch.ones_like(mask) if mask_kind != "add" else torch.zeros_like(mask)
        if fault == "swapped bias" and bias is not None and bias.shape[2] == bias.shape[3]:
            bias = bias.transpose(2, 3)
        if fault == "head mixed" and k.shape[3] > 1:
            k = k.roll(1, 3)
        y, z = ladder.truth(case, ladder.Arguments(q, k, v, bias, mask, gate, None if mask is None else mask != 0, scale))
        y = torch.where(y.abs() < 1e-12, 0.0, y).to(out.dtype)
        if fault == "drifts" and next(calls) % 3 == 2:
            y.view(torch.int16 if y.element_size() == 2 else torch.int32)[..., 0] += 1
        if fault == "refuses late":
            out.copy_(y)
            raise Refused("layout", "after writing")
        out.copy_(y)
        if lse is not None:
            lse.copy_(z)
        if fault == "writes beside":
            torch.as_strided(out, (1,), (1,), out.storage_offset() + out.numel()).fill_(1)
        return out, ("", row, "statement")

    return run


FAULTS = {
    "swapped operand": ladder.order_free,
    "shifted index": ladder.order_free,
    "dropped tail": ladder.order_free,
    "lost mask": ladder.order_free,
    "swapped bias": ladder.order_free,
    "head mixed": ladder.order_free,
    "writes beside": ladder.bound,
    "drifts": ladder.rerun,
    "refuses late": ladder.bound,
}


@pytest.mark.skipif(CUDA, reason="the ladder's own test needs no GPU")
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_turns_its_rung_red(fault, monkeypatch):
    extra = dict(layout="offset") if fault == "refuses late" else {}
    for dtype in ("bf16", "f32"):
        case = Case(n=33, dtype=dtype, data="free" if FAULTS[fault] is ladder.order_free else "random", **extra)
        more = (20,) if fault == "drifts" else ()
        monkeypatch.setattr(ladder, "triattn", statement())
        FAULTS[fault](case, "statement", "cpu", Tally(), *more)
        monkeypatch.setattr(ladder, "triattn", statement(fault))
        with pytest.raises(Red) as red:
            FAULTS[fault](case, "statement", "cpu", Tally(), *more)
        assert "ladder.py " + FAULTS[fault].__name__ in str(red.value)


@pytest.mark.skipif(CUDA, reason="the ladder's own test needs no GPU")
def test_a_case_is_read_back_from_its_text():
    for case in [*ladder.drawn(50, 3), *ladder.adversarial((33,)), Case()]:
        assert ladder.parse(Case, str(case)) == case
    for case in ladder.module_cases((17,)):
        assert ladder.parse(ModuleCase, str(case)) == case


@pytest.mark.skipif(CUDA, reason="the ladder's own test needs no GPU")
def test_a_narrow_row_may_refuse_what_it_is_not_made_for(monkeypatch):
    """Counted apart; inside its class, by another word, or from a general row a refusal is red."""

    def refuse(word):
        def run(*arguments, **options):
            raise Refused(word, "not this one")

        monkeypatch.setattr(ladder, "triattn", run)

    others = [Case(dtype="f16"), Case(d=64), Case(mask="add", mask_dtype="f32"), Case(mask="fill", value=-1e4), Case(mask="subtract", value=10.0)]
    for rung, word in itertools.product((ladder.bound, ladder.rerun), ladder.MAY_REFUSE):
        refuse(word)
        tally = Tally()
        for case in others:
            rung(case, "cuda_sm90a", "cpu", tally)
        assert (tally.ran, tally.outside[word], sum(tally.refused.values())) == (0, len(others), 0)
        for case, row in ((Case(), "cuda_sm90a"), (Case(dtype="f16"), "triattn_native")):
            with pytest.raises(Red, match=f"refused {word}: not this one"):
                rung(case, row, "cpu", Tally())
    refuse("arch")
    with pytest.raises(Red):
        ladder.bound(others[0], "cuda_sm90a", "cpu", Tally())

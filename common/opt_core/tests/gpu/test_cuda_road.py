# SPDX-License-Identifier: Apache-2.0
"""On a machine with a GPU: loading, captures and contexts as the real driver has them. What needs no driver is in tests/unit/test_cuda_*.c.
Each case is a process of its own: kernels stay loaded for a process's life."""
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
import opt_core  # noqa: E402
from opt_core import _core  # noqa: E402

if not torch.cuda.is_available():
    pytest.skip("no NVIDIA GPU on this machine", allow_module_level=True)


def rows_here():
    """Rows of the core that have a member for this GPU."""
    sm, rows = _core.cuda_facts(0)["sm"], []
    for member in _core.members("triattn"):
        if member["device"] == "cpu":
            continue
        try:
            _core.gate_arch(sm, member["device"])
        except opt_core.Refused:
            continue
        rows.append(member["row"])
    return sorted(set(rows))


ROWS = rows_here()
pytestmark = [pytest.mark.quick, pytest.mark.skipif(not ROWS, reason="no CUDA member of triattn is built for this GPU")]

PRELUDE = """
import json, sys, threading, time
import torch
from opt_core import Refused, _core, torch_glue
from opt_core.kernels.triattn import triattn
torch.manual_seed(1)
row = sys.argv[1]

def case(device):
    q, k, v = (torch.randn(1, 8, 65, 4, 32, device=device, dtype=torch.bfloat16) for _ in range(3))
    bias, mask = torch.randn(1, 4, 65, 65, device=device), torch.ones(1, 8, 65, device=device, dtype=torch.bool)
    return lambda out: triattn(q, k, v, bias, mask, scale=32**-0.5, mask_kind="zero", row=row, out=out), torch.empty_like(q)
"""


def run(program, row):
    done = subprocess.run([sys.executable, "-c", PRELUDE + program, row], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("row", ROWS)
def test_a_first_call_inside_a_capture_is_refused_and_harms_nothing(row):
    """The refusal comes before anything that would break the capture: the graph ends well, and works once prepared."""
    said = run("""
call, out = case("cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    doubled = out.zero_() + 1
    try:
        call(out)
        word = "served"
    except Refused as refusal:
        word = str(refusal)
graph.replay()
torch.cuda.synchronize()
intact = bool((doubled == 1).all())
_core.cuda_prepare(0, "triattn")
second = torch.cuda.CUDAGraph()
with torch.cuda.graph(second):
    call(out)
second.replay()
replayed = out.clone()
call(out)
print(json.dumps({"word": word, "intact": intact, "same": bool(torch.equal(replayed, out))}))
""", row)
    assert said["word"].startswith("capture:triattn."), said
    assert said["intact"] and said["same"], said


@pytest.mark.parametrize("row", ROWS)
def test_loading_does_not_break_another_threads_capture(row):
    said = run("""
call, out = case("cuda")
graph, failure = torch.cuda.CUDAGraph(), []
def load():
    try:
        _core.cuda_prepare(0, "triattn")
    except BaseException as error:
        failure.append(str(error))
with torch.cuda.graph(graph):  # mode global: unsafe calls of any thread are forbidden
    total = out.zero_() + 1
    loader = threading.Thread(target=load)
    loader.start(), loader.join()
    total = total + 1
graph.replay()
torch.cuda.synchronize()
print(json.dumps({"failure": failure, "intact": bool((total == 2).all()), "loaded": len(_core.cuda_modules())}))
""", row)
    assert said["failure"] == [] and said["intact"] and said["loaded"] > 0, said


@pytest.mark.parametrize("row", ROWS[:1])
def test_preparing_twice_and_what_is_loaded(row):
    """Every binary that is listed is the installed file; a second time costs look-ups only."""
    said = run("""
t0 = time.perf_counter()
_core.cuda_prepare(0, "triattn")
t1 = time.perf_counter()
_core.cuda_prepare(0, "triattn")
t2 = time.perf_counter()
print(json.dumps({"modules": _core.cuda_modules(), "first_ms": (t1 - t0) * 1e3, "second_us": (t2 - t1) * 1e6, "libraries": _core.cuda_libraries()}))
""", row)
    print(f"prepare {said['first_ms']:.1f} ms, again {said['second_us']:.1f} us")
    assert said["modules"] and said["second_us"] < 200
    for module in said["modules"]:
        folder = Path(opt_core.__file__).parent / "lib/opt_core/cubin" / module["package"]
        assert hashlib.sha256((folder / f"{module['package']}.{module['key']}.cubin").read_bytes()).hexdigest() == module["sha256"]
    for word, path in said["libraries"].items():
        assert Path(path).is_file() and word in path


@pytest.mark.parametrize("row", ROWS)
def test_four_threads_start_together(row):
    said = run("""
torch.zeros(1, device="cuda")
gate, outs, failure = threading.Barrier(4), [None] * 4, []
def work(i):
    try:
        torch.manual_seed(1)
        with lock:
            call, out = case("cuda")
        torch.cuda.synchronize()
        gate.wait()
        call(out)
        torch.cuda.synchronize()
        outs[i] = out
    except BaseException as error:
        failure.append(str(error))
lock = threading.Lock()
threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
for t in threads: t.start()
for t in threads: t.join()
keys = [m["key"] for m in _core.cuda_modules()]
print(json.dumps({"failure": failure, "once": len(keys) == len(set(keys)), "finite": all(o is not None and bool(o.isfinite().all()) for o in outs)}))
""", row)
    assert said == {"failure": [], "once": True, "finite": True}


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one GPU")
@pytest.mark.parametrize("row", ROWS)
def test_the_tensors_device_not_the_current_one(row):
    said = run("""
call, out = case("cuda:1")
torch.cuda.set_device(0)
call(out)
torch.cuda.synchronize(1)
same_device = torch.cuda.current_device() == 0
q = torch.randn(1, 2, 4, 2, 32, dtype=torch.bfloat16)
try:
    triattn(q.cuda(0), q.cuda(1), q.cuda(0), scale=1.0, row=row)
    word = "served"
except (Refused, ValueError) as error:
    word = str(error)
print(json.dumps({"finite": bool(out.isfinite().all()), "same_device": same_device, "devices": [m["device"] for m in _core.cuda_modules()], "word": word}))
""", row)
    assert said["finite"] and said["same_device"] and set(said["devices"]) == {1}, said
    assert "cuda:1" in said["word"] and "cuda:0" in said["word"], said

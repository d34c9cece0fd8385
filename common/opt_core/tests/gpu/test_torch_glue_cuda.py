# SPDX-License-Identifier: Apache-2.0
"""On a machine with a GPU: the torch glue on CUDA tensors. Streams, devices, captures, the registered ops, gradients,
autocast, views, and what is refused. How right the members are is test_triattn_cuda.py's matter."""

import itertools
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no NVIDIA GPU on this machine", allow_module_level=True)

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "contract"))
import torch_cases as cases  # noqa: E402
import torch_reference  # noqa: E402

from opt_core import Refused, _core, kernels, torch_glue  # noqa: E402
from opt_core.kernels.triattn import triattn, triattn_module  # noqa: E402


def rows_here(family):
    """Rows with a member for this GPU."""
    sm, rows = _core.cuda_facts(0)["sm"], set()
    for member in _core.members(family):
        try:
            if member["device"] != "cpu":
                _core.gate_arch(sm, member["device"])
                rows.add(member["row"])
        except Refused:
            pass
    return sorted(rows)


ROWS, MODULE_ROWS = rows_here("triattn"), rows_here("triattn_module")
TWO = torch.cuda.device_count() > 1
each_row = pytest.mark.parametrize("row", ROWS)
each_module_row = pytest.mark.parametrize("row", MODULE_ROWS)
two_devices = pytest.mark.skipif(not TWO, reason="one GPU")
quick = pytest.mark.quick
pytestmark = pytest.mark.skipif(not ROWS, reason="no CUDA member of triattn is built for this GPU")
BF16 = torch.bfloat16
GENERAL = "triattn_native"  # the row that takes every class of calls; others take some and refuse the rest by name


def case(seed=1, dtype=BF16, n=65, i=9, device="cuda", **extra):
    """Arguments that every row takes: bf16, D = 32, an f32 pair bias, a boolean key mask."""
    made = cases.triattn(
        torch.Generator().manual_seed(seed), dtype=dtype, n=n, i=i, h=4, d=32, mask_kind="zero", mask_dtype=torch.bool
    )
    return {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in {**made, **extra}.items()}


def module_case(seed=1, dtype=BF16, n=40, **extra):
    made = cases.triattn_module(
        torch.Generator().manual_seed(seed), dtype=dtype, weight_dtype=dtype, n=n, c=128, h=4, d=32, mask_kind="zero"
    )
    return {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in {**made, **extra}.items()}


def take(served, must):
    """The result, or a skip where the row may say by name that it does not take such a call."""
    try:
        return served()
    except Refused as refusal:
        if not must and refusal.word in ("dtype", "shape", "dialect", "layout"):
            pytest.skip(str(refusal))
        raise


def split(op, arguments):
    args, kwargs = [], {}
    for argument in op._schema.arguments:
        if not argument.kwarg_only:
            args.append(arguments.get(argument.name))
        elif argument.name in arguments:
            kwargs[argument.name] = arguments[argument.name]
    return tuple(args), kwargs


OP = torch.ops.opt_core.triattn.default
MODULE_OP = torch.ops.opt_core.triattn_module.default


def spin(milliseconds):
    torch.cuda._sleep(int(milliseconds * 1.5e6))


# ---- streams and devices ---------------------------------------------------------------------------------------------


@quick
@each_row
def test_the_call_is_on_the_current_stream_and_waits_for_nothing(row):
    """Inputs that a side stream writes late are read after that; the result is there for that stream's next work."""
    a = case()
    want = triattn(**a, row=row)[0]
    late = {**a, "q": torch.zeros_like(a["q"])}
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        spin(20)
        late["q"].copy_(a["q"])
        start = time.perf_counter()
        out = triattn(**late, row=row)[0]
        took = time.perf_counter() - start
        busy = not side.query()
        copy = out.clone()
    side.synchronize()
    assert torch.equal(copy, want)
    assert busy, f"the call took {took * 1e3:.1f} ms: it waited"


@quick
@each_row
def test_a_busy_default_stream_does_not_hold_a_side_stream(row):
    a = case()
    out, side = torch.empty_like(a["q"]), torch.cuda.Stream()
    triattn(**a, row=row, out=out)
    torch.cuda.synchronize()
    spin(200)
    busy = torch.cuda.Event()
    busy.record()
    with torch.cuda.stream(side):
        triattn(**a, row=row, out=out)
    side.synchronize()
    assert not busy.query(), "the work went to the default stream"
    torch.cuda.synchronize()


@quick
@each_row
def test_scratch_of_calls_in_flight_is_their_own(row):
    """Calls in turn on two streams, all enqueued before the first has ended, each with the bits of a call alone."""
    arguments = [case(seed) for seed in range(4)]
    want = [triattn(**a, row=row)[0] for a in arguments]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    results = []
    for stream in streams:
        with torch.cuda.stream(stream):
            spin(5)
    for turn in range(40):
        with torch.cuda.stream(streams[turn % 2]):
            results.append(triattn(**arguments[turn % 4], row=row)[0])
    torch.cuda.synchronize()
    assert all(torch.equal(one, want[turn % 4]) for turn, one in enumerate(results))


@quick
@each_row
def test_threads_have_their_own_streams(row):
    arguments = [case(seed) for seed in range(3)]
    want = [triattn(**a, row=row)[0] for a in arguments]
    torch.cuda.synchronize()
    wrong = []

    def work(index):
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(30):
                out = triattn(**arguments[index], row=row)[0]
                stream.synchronize()
                if not torch.equal(out, want[index]):
                    wrong.append(index)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@quick
@two_devices
@each_row
def test_the_tensors_device_need_not_be_the_current_one(row):
    a = case()
    want = triattn(**a, row=row)[0]
    there = {k: v.to("cuda:1") if isinstance(v, torch.Tensor) else v for k, v in a.items()}
    assert torch.cuda.current_device() == 0
    side = torch.cuda.Stream(1)
    for stream in (torch.cuda.current_stream(1), side):
        stream.wait_stream(torch.cuda.current_stream(1))
        with torch.cuda.device(1), torch.cuda.stream(stream):
            torch.cuda.set_device(0)  # the stream stays device 1's current one
            out, choice = triattn(**there, row=row)
        assert torch.cuda.current_device() == 0
        stream.synchronize()
        assert out.device.index == 1 and torch.equal(out.cpu(), want.cpu()), choice
    assert torch.ones(1, device="cuda").device.index == 0


@quick
@each_row
def test_tensors_of_two_devices_are_refused(row):
    a = case()
    others = ["cpu", "cuda:1"] if TWO else ["cpu"]
    for other, name in itertools.product(others, ("k", "v", "bias", "mask")):
        with pytest.raises(Refused, match=f"^no_device:tensors.*{other.split(':')[0]}"):
            triattn(**{**a, name: a[name].to(other)}, row=row)
    with pytest.raises(Refused, match="^no_device:"):
        triattn(**a, row=row, out=torch.empty_like(a["q"], device="cpu"))
    with pytest.raises(Refused, match="^no_device:"):
        triattn(**{**a, "q": a["q"].cpu()}, row=row)


@quick
def test_rows_of_the_other_kind_of_device_are_refused_by_name():
    a = case()
    with pytest.raises(Refused, match="^no_device:tensors.0. .q. is a cuda:0 tensor, row cpu of triattn runs on cpu$"):
        triattn(**a, row="cpu")
    with pytest.raises(Refused, match="^no_device:"):
        triattn(**case(device="cpu"), row=ROWS[0])
    with pytest.raises(ValueError, match="has no row"):
        triattn(**a, row="nope")


@quick
@each_row
def test_memory_that_is_not_there_is_an_error_that_python_knows(row):
    """Scratch comes from torch's allocator: what torch may not take, the call does not get."""
    a = case(n=257, i=64)
    out = torch.empty_like(a["q"])
    triattn(**a, row=row, out=out)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    triattn(**a, row=row, out=out)
    if torch.cuda.memory_stats()["allocation.all.allocated"] == before:
        pytest.skip("this row takes no scratch")
    torch.cuda.empty_cache()
    held = torch.cuda.memory_reserved() / torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(held)
    hoard = []
    try:
        for size in (1 << 24, 1 << 20, 1 << 16, 512):  # fills what is reserved already, to the last block
            with pytest.raises(torch.OutOfMemoryError):
                while True:
                    hoard.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        with pytest.raises(MemoryError, match="^scratch: "):
            triattn(**a, row=row, out=out)
    finally:
        hoard.clear()
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.equal(triattn(**a, row=row, out=out)[0], triattn(**a, row=row)[0])


# ---- graphs ----------------------------------------------------------------------------------------------------------


@quick
@each_row
def test_prepare_then_capture_then_replay(row):
    a, other = case(1), case(2)
    kernels.prepare("triattn")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = triattn(**a, row=row)[0]
    for name in ("q", "k", "v", "bias", "mask"):
        a[name].copy_(other[name])
    graph.replay()
    first = out.clone()
    for _ in range(3):
        graph.replay()
    assert torch.equal(first, triattn(**other, row=row)[0]) and torch.equal(out, first)


@quick
def test_prepare_names_its_device():
    for device in (None, 0, "cuda", "cuda:0", torch.device("cuda", 0)):
        kernels.prepare("triattn", device)
    kernels.prepare("ln", 0)
    with pytest.raises(Refused, match="^no_device:"):
        kernels.prepare("triattn", torch.cuda.device_count())
    with pytest.raises(Refused, match="^no_device:"):
        kernels.prepare("triattn", "cpu")
    with pytest.raises(ValueError):
        kernels.prepare("nope", 0)


UNPREPARED = """
import sys, torch
from opt_core import Refused, kernels
from opt_core.kernels.triattn import triattn
q = torch.randn(1, 4, 33, 4, 32, device="cuda", dtype=torch.bfloat16)
out = torch.full_like(q, 7.0)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    other = q + 1
    try:
        triattn(q, q, q, row=sys.argv[1], out=out)
    except Refused as refusal:
        print(refusal.word)
graph.replay()
torch.cuda.synchronize()
print(bool((out == 7).all()), bool((other == q + 1).all()))
kernels.prepare("triattn")
second = torch.cuda.CUDAGraph()
with torch.cuda.graph(second):
    triattn(q, q, q, row=sys.argv[1], out=out)
second.replay()
print(bool(torch.isfinite(out).all()), bool((out != 7).any()))
"""


@quick
@each_row
def test_a_capture_without_prepare_is_refused_by_name(row):
    done = subprocess.run([sys.executable, "-c", UNPREPARED, row], capture_output=True, text=True, timeout=300)
    assert done.stdout.split() == ["capture", "True", "True", "True", "True"], done.stdout + done.stderr


# ---- the registered ops ----------------------------------------------------------------------------------------------


@each_row
@pytest.mark.parametrize("dtype", [BF16, torch.float32, torch.float16], ids=str)
def test_opcheck(row, dtype):
    a = case(dtype=dtype, n=17, i=3)
    take(lambda: triattn(**a, row=row), row == GENERAL)
    for how in ("contiguous", "outer"):
        args, kwargs = split(OP, cases.layout(a, how))
        result = torch.library.opcheck(OP, args, {**kwargs, "row": row})
        assert set(result.values()) == {"SUCCESS"} and len(result) >= 4, result
    leaves = {k: v.requires_grad_() if k in ("q", "k", "v", "bias") else v for k, v in a.items()}
    args, kwargs = split(OP, leaves)
    if dtype is torch.float32:  # opcheck compares gradients of two runs to f32 tolerances
        result = torch.library.opcheck(OP, args, {**kwargs, "row": row})
        assert set(result.values()) == {"SUCCESS"}, result


@quick
@each_row
def test_op_and_entry_give_the_same_bits(row):
    a = case()
    args, kwargs = split(OP, a)
    result, choice = triattn(**a, row=row)
    assert torch.equal(OP(*args, **kwargs, row=row), result) and choice[:2] == ("", row)
    assert result.is_contiguous() and result.device == a["q"].device


@each_row
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_compile_fullgraph(row, backend):
    torch.compiler.reset()
    compiled = torch.compile(lambda **a: triattn(**a, row=row)[0] * 2, fullgraph=True, backend=backend)
    a = case()
    with torch.no_grad():
        try:
            found = compiled(**a)
        except torch._inductor.exc.InductorError as error:
            pytest.skip(f"inductor has no working compiler here: {str(error).splitlines()[0][:80]}")
        assert torch.equal(found, triattn(**a, row=row)[0] * 2)
    torch.compiler.reset()


@each_row
def test_compile_as_a_cuda_graph(row):
    """What `mode="reduce-overhead"` does: the op is captured by torch itself."""
    kernels.prepare("triattn")
    torch.compiler.reset()
    compiled = torch.compile(lambda **a: triattn(**a, row=row)[0] + 1, fullgraph=True, mode="reduce-overhead")
    with torch.no_grad():
        for seed in (1, 2, 3, 4):
            a = case(seed)
            try:
                found = compiled(**a).clone()
            except torch._inductor.exc.InductorError as error:
                pytest.skip(f"inductor has no working compiler here: {str(error).splitlines()[0][:80]}")
            assert torch.equal(found, triattn(**a, row=row)[0] + 1), seed
    torch.compiler.reset()


@each_module_row
def test_module_op(row):
    a = module_case()
    result, choice = take(lambda: triattn_module(**a, row=row), True)
    args, kwargs = split(MODULE_OP, a)
    assert torch.equal(MODULE_OP(*args, **kwargs, row=row), result) and choice[:2] == ("", row)
    checked = torch.library.opcheck(MODULE_OP, args, {**kwargs, "row": row})
    assert set(checked.values()) == {"SUCCESS"} and len(checked) >= 4, checked


# ---- gradients -------------------------------------------------------------------------------------------------------


def gradients(call, arguments, names):
    leaves = {k: v.detach().clone().requires_grad_() if k in names else v for k, v in arguments.items()}
    result = call(**leaves)
    weight = torch.randn(result.shape, generator=torch.Generator().manual_seed(3)).to(result.device)
    (result * weight.to(result.dtype)).sum().backward()
    return {name: leaves[name].grad for name in names}


def assert_near(found, expected, unit):
    for name, one in expected.items():
        assert found[name].dtype is one.dtype and found[name].shape == one.shape
        error = (found[name].double() - one.double()).abs()
        scale = float(one.double().abs().mean()) + 1e-3
        assert float(error.mean()) < 4 * unit * scale and float(error.max()) < 64 * unit * scale, (name, error.max())


@quick
@each_row
@pytest.mark.parametrize("dtype,unit", [(torch.float32, 2.0**-20), (BF16, 2.0**-8)], ids=str)
def test_gradients_against_torch(row, dtype, unit):
    names = ("q", "k", "v", "bias", "gate")
    a = case(dtype=dtype, n=33, i=5)
    a["gate"] = torch.randn(a["q"].shape, device="cuda").to(dtype)
    take(lambda: triattn(**a, row=row), row == GENERAL)
    allowed, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, False
    try:
        expected = gradients(torch_reference.triattn, a, names)
        assert_near(gradients(lambda **a: triattn(**a, row=row)[0], a, names), expected, unit)

        def as_op(**a):
            args, kwargs = split(OP, a)
            return OP(*args, **kwargs, row=row)

        assert_near(gradients(as_op, a, names), expected, unit)
        torch.compiler.reset()
        compiled = torch.compile(lambda **a: triattn(**a, row=row)[0], fullgraph=True, backend="aot_eager")
        assert_near(gradients(compiled, a, names), expected, unit)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
        torch.compiler.reset()


@quick
@each_module_row
def test_module_gradients_against_torch(row):
    a = module_case(n=24)
    take(lambda: triattn_module(**a, row=row), True)
    names = [k for k, v in a.items() if isinstance(v, torch.Tensor) and k != "mask" and "k_bias" not in k]
    expected = gradients(torch_reference.triattn_module, a, names)
    expected.pop("to_bias_bias", None)  # a sum that cancels
    names = list(expected)
    assert_near(gradients(lambda **a: triattn_module(**a, row=row)[0], a, names), expected, 2.0**-7)


# ---- autocast --------------------------------------------------------------------------------------------------------


@quick
@each_row
def test_autocast_casts_what_a_product_would_cast(row):
    a = case(dtype=torch.float32)
    low = {**a, **{k: a[k].to(BF16) for k in ("q", "k", "v")}}
    want = triattn(**low, row=row)[0]
    args, kwargs = split(OP, a)
    with torch.autocast("cuda", dtype=BF16):
        result, choice = triattn(**a, row=row)
        assert result.dtype is BF16 and torch.equal(result, want) and choice[1] == row
        assert torch.equal(OP(*args, **kwargs, row=row), want)
        assert torch.equal(triattn(**low, row=row)[0], want)
        with torch.autocast("cuda", enabled=False):
            assert torch.equal(triattn(**low, row=row)[0], want)
    with torch.autocast("cpu", dtype=BF16):  # concerns other tensors
        assert torch.equal(triattn(**low, row=row)[0], want)
    with torch.autocast("cuda", dtype=BF16):
        found = gradients(lambda **a: triattn(**a, row=row)[0], a, ("q", "bias"))
    expected = gradients(lambda **a: triattn(**a, row=row)[0], low, ("q", "bias"))
    assert found["q"].dtype is torch.float32 and torch.equal(found["q"], expected["q"].float())
    torch.compiler.reset()
    compiled = torch.compile(lambda **a: triattn(**a, row=row)[0], fullgraph=True, backend="aot_eager")
    with torch.autocast("cuda", dtype=BF16):
        assert torch.equal(compiled(**a), want)
    torch.compiler.reset()


def stock_module(
    x, to_q, to_k, to_v, to_bias, out_proj, to_gate, *, heads, scale, mask, mask_kind, residual=None, **rest
):
    """The module in the statements that engines write; what each product rounds to is autocast's matter."""
    assert mask_kind == "zero", mask_kind
    linear, split_heads = torch.nn.functional.linear, lambda t: t.unflatten(-1, (heads, -1)).transpose(2, 3)
    h = torch.nn.functional.layer_norm(x, x.shape[-1:], rest["norm_weight"], rest["norm_bias"])
    q, k, v = (
        split_heads(linear(h, w, rest.get(f"{name}_bias")))
        for name, w in (("to_q", to_q), ("to_k", to_k), ("to_v", to_v))
    )
    bias = linear(h, to_bias, rest.get("to_bias_bias")).permute(0, 3, 1, 2)[:, None]
    logits = ((q * scale) @ k.transpose(-1, -2) + bias).masked_fill(mask[:, :, None, None, :] == 0, float("-inf"))
    o = (torch.softmax(logits, -1).nan_to_num() @ v).transpose(2, 3).flatten(-2)
    y = linear(o * torch.sigmoid(linear(h, to_gate, rest.get("to_gate_bias"))), out_proj, rest.get("out_proj_bias"))
    return y if residual is None else y + residual


def rms(found, want):
    return float((found.double() - want).square().mean().sqrt())


@quick
@each_module_row
@pytest.mark.parametrize("dtype", [BF16, torch.float32], ids=str)
def test_autocast_of_the_module(row, dtype):
    """f32 weights: the stock's type comes out, as near to float64 as the stock under autocast. Not its bits, nor those of
    weights cast by hand: the two round in other places."""
    a = module_case(dtype=dtype)
    linears = [k for k in a if k.startswith(("to_", "out_proj"))]
    wide = {**a, **{k: a[k].to(BF16).float() for k in linears}}
    want = torch_reference.triattn_module(**wide)
    with torch.autocast("cuda", dtype=BF16):
        result = take(lambda: triattn_module(**wide, row=row), dtype is BF16)[0]
        stock = stock_module(**wide)
        args, kwargs = split(MODULE_OP, wide)
        assert torch.equal(MODULE_OP(*args, **kwargs, row=row), result)
    assert result.dtype is stock.dtype
    allowed = 1.5 * rms(stock, want)
    assert rms(result, want) <= allowed, f"{rms(result, want):.3e}, at most {allowed:.3e}"


@quick
def test_autocast_is_refused_where_it_has_no_meaning():
    from opt_core.kernels.ln import ln

    x = torch.ones(2, 8, device="cuda")
    with torch.autocast("cuda", dtype=BF16), pytest.raises(Refused, match="^dtype:autocast cuda bfloat16$"):
        ln(x)
    with pytest.raises(Refused, match="^no_device:.*cuda:0"):
        ln(x)


# ---- views -----------------------------------------------------------------------------------------------------------


@quick
@each_row
def test_the_ending_nodes_views(row):
    """q, k, v behind exchanged axes and a transposed bias, no copies: the bits of the contiguous call, or refused."""
    a = case(n=48, i=48)
    ending = {k: v.transpose(1, 2).contiguous().transpose(1, 2) for k, v in a.items() if k in ("q", "k", "v")}
    ending["bias"] = a["bias"].transpose(2, 3).contiguous().transpose(2, 3)
    ending["mask"] = a["mask"].transpose(1, 2).contiguous().transpose(1, 2)
    want = triattn(**a, row=row)[0]
    result = triattn(**{**a, **ending}, row=row)[0]
    assert result.is_contiguous() and torch.equal(result, want)
    packed = torch.stack([a[k] for k in ("q", "k", "v")], 3)  # [B, I, N, 3, H, D]: one projection's output
    views = dict(zip(("q", "k", "v"), packed.unbind(3)))
    assert torch.equal(triattn(**{**a, **views}, row=row)[0], want)
    out = torch.empty(48, 48, 1, 4, 32, dtype=BF16, device="cuda").permute(2, 1, 0, 3, 4)
    try:
        assert torch.equal(triattn(**a, row=row, out=out)[0], want) and not out.is_contiguous()
    except Refused as refusal:
        assert refusal.word == "layout"


# ---- cost and record -------------------------------------------------------------------------------------------------


@quick
@each_row
def test_what_a_call_costs_the_host(row, capsys):
    """Time until the call returns, device idle and queue short: Python, allocation and launches together."""
    a = case(n=16, i=1)
    out = torch.empty_like(a["q"])
    args, kwargs = split(OP, a)
    costs = {}
    with torch.no_grad():
        for name, call in (
            ("entry", lambda: triattn(**a, row=row)),
            ("entry with out", lambda: triattn(**a, row=row, out=out)),
            ("op", lambda: OP(*args, **kwargs, row=row)),
            ("empty_like", lambda: torch.empty_like(a["q"])),
        ):
            times = []
            for turn in range(600):
                if turn % 50 == 0:
                    torch.cuda.synchronize()
                start = time.perf_counter_ns()
                call()
                times.append(time.perf_counter_ns() - start)
            costs[name] = round(statistics.median(times) / 1000, 1)
    with capsys.disabled():
        print(f"\n{row}: host us a call {costs}")
    assert costs["entry"] < 60, costs


@quick
def test_what_is_loaded_is_known():
    triattn(**case(), row=ROWS[0])
    loaded = _core.cuda_modules()
    assert any(m["package"] == "triattn" and m["device"] == 0 and len(m["sha256"]) == 64 for m in loaded), loaded
    torch.ones(8, 8, device="cuda") @ torch.ones(8, 8, device="cuda")
    assert Path(_core.cuda_libraries()["cublas"]).name.startswith("libcublas.so")
    assert torch_glue.stack(0).startswith("torch-") and torch_glue.stack(0).endswith(f"+sm_{_core.cuda_facts(0)['sm']}")

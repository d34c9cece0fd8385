# SPDX-License-Identifier: Apache-2.0
"""The glue: op registration, compilation, what is refused by name, and what a call costs."""

import importlib
import inspect
import statistics
import subprocess
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch")

import torch_cases as cases  # noqa: E402
import torch_reference  # noqa: E402

from opt_core import Refused, _core, kernels, torch_glue  # noqa: E402

OPS = {
    "ln": "ln",
    "transition": "transition",
    "trimul": "trimul",
    "triattn": "triattn",
    "triattn_module": "triattn",
    "apb": "apb",
}


def entry(op):
    return getattr(importlib.import_module(f"opt_core.kernels.{OPS[op]}"), op)


def registered(op):
    return getattr(torch.ops.opt_core, op).default


def samples(op, seed=1):
    """Contiguous, transposed, bf16 and masked arguments."""
    g = torch.Generator().manual_seed(seed)
    make = getattr(cases, op)
    masked = {
        "ln": {},
        "transition": dict(mask=torch.bool, residual=True),
        "trimul": dict(mask=torch.bool),
        "triattn": dict(mask_kind="zero", mask_dtype=torch.bool, gate=True),
        "triattn_module": dict(mask_kind="subtract"),
        "apb": dict(mask_kind="fill", gate=True),
    }[op]
    yield "contiguous", make(g)
    yield "transposed", cases.layout(make(g), "outer" if op != "ln" else "transposed")
    yield "stepped", cases.layout(make(g), "stepped")
    yield "bf16", make(g, dtype=torch.bfloat16)
    yield "masked", make(g, **masked)


def split(op, arguments):
    """(args, kwargs) as the schema wants them: tensors by position."""
    args, kwargs = [], {}
    for argument in registered(op)._schema.arguments:
        if argument.kwarg_only:
            if argument.name in arguments:
                kwargs[argument.name] = arguments[argument.name]
        else:
            args.append(arguments.get(argument.name))
    return tuple(args), kwargs


@pytest.mark.parametrize("op", OPS)
def test_schema_is_the_entrys_signature(op):
    """Same names, same order, same defaults; the entry adds where the result goes and which rows are switched off."""
    schema = {a.name: a for a in registered(op)._schema.arguments}
    signature = dict(inspect.signature(entry(op)).parameters)
    assert signature.pop("out").default is None
    assert signature.pop("rows_off").default == ()
    if op == "triattn":
        assert signature.pop("lse").default is None
    assert list(schema) == list(signature)
    for name, parameter in signature.items():
        assert schema[name].kwarg_only == (parameter.kind is inspect.Parameter.KEYWORD_ONLY)
        assert schema[name].has_default_value() == (parameter.default is not inspect.Parameter.empty)
        if schema[name].has_default_value():
            assert schema[name].default_value == parameter.default
    assert torch.Tag.pt2_compliant_tag in registered(op).tags


@pytest.mark.parametrize("op", OPS)
def test_tensor_order_is_the_descriptors(op):
    """The entry hands tensors and scalars over in the order that the core names."""
    views, scalars = _core.call_fields(op)
    seen = {}

    def record(family, tier, tensors, values, row, rows_off, y, out):
        seen.update(family=family, tensors=tensors, values=values)
        return y, ("", "", "")

    arguments = next(samples(op))[1]
    original, torch_glue.run = torch_glue.run, record
    try:
        result, _ = entry(op)(**arguments)
    finally:
        torch_glue.run = original
    assert seen["family"] == op and len(seen["tensors"]) == len(views) and len(seen["values"]) == len(scalars)
    checked = 0
    for view, tensor in zip(views, seen["tensors"]):
        if view in ("y", "out"):
            assert tensor is result
            continue
        name = (
            view
            if view in arguments or "." not in view
            else {"weight": view.split(".")[0], "bias": view.replace(".", "_")}[view.split(".")[1]]
        )
        if view.startswith("norm"):
            name = view.replace(".", "_") if op != "ln" else view.split(".")[1]
        assert tensor is arguments.get(name), view
        checked += tensor is not None
    assert checked == sum(isinstance(a, torch.Tensor) for a in arguments.values())


@pytest.mark.parametrize("op", OPS)
def test_opcheck(op):
    executed = 0
    for name, arguments in samples(op):
        args, kwargs = split(op, arguments)
        result = torch.library.opcheck(registered(op), args, {**kwargs, "row": "cpu"})
        assert set(result.values()) == {"SUCCESS"} and len(result) >= 4, (name, result)
        executed += 1
    assert executed == 5


@pytest.mark.parametrize("op", OPS)
def test_fake_kernel_is_the_real_one(op):
    """Shape, stride and dtype; the checker of torch has missed strides on a CPU."""
    from torch._subclasses import FakeTensorMode

    executed = 0
    for name, arguments in samples(op):
        args, kwargs = split(op, arguments)
        real = registered(op)(*args, **kwargs, row="cpu")
        with FakeTensorMode() as mode:
            fake = registered(op)(
                *(mode.from_tensor(a) if isinstance(a, torch.Tensor) else a for a in args), **kwargs, row="cpu"
            )
        assert (fake.shape, fake.stride(), fake.dtype, fake.device) == (
            real.shape,
            real.stride(),
            real.dtype,
            real.device,
        ), name
        assert real.is_contiguous()
        executed += 1
    assert executed == 5
    wide = registered("ln")(torch.ones(2, 3, dtype=torch.bfloat16), out_dtype=torch.float32, row="cpu")
    assert wide.dtype is torch.float32


@pytest.mark.parametrize("op", OPS)
def test_op_and_entry_give_the_same_bits(op):
    for name, arguments in samples(op):
        args, kwargs = split(op, arguments)
        eager, choice = entry(op)(**arguments, row="cpu")
        assert torch.equal(registered(op)(*args, **kwargs, row="cpu"), eager), name
        assert choice[:2] == ("", "cpu")


@pytest.mark.parametrize("op", OPS)
def test_compile_fullgraph(op):
    """One graph, two sizes, the entry itself traced; values as in eager mode."""
    torch.compiler.reset()
    served = entry(op)
    compiled = torch.compile(
        lambda **a: served(**a, row="cpu")[0] * 2, fullgraph=True, backend="aot_eager", dynamic=True
    )
    sizes = {
        "ln": ("shape", [(2, 5), (3, 7)]),
        "transition": ("n", [5, 8]),
        "trimul": ("n", [9, 12]),
        "triattn": ("n", [13, 18]),
        "triattn_module": ("n", [11, 14]),
        "apb": ("n", [13, 18]),
    }[op]
    for size in sizes[1]:
        arguments = getattr(cases, op)(torch.Generator().manual_seed(2), **{sizes[0]: size})
        with torch.no_grad():
            assert torch.equal(compiled(**arguments), entry(op)(**arguments, row="cpu")[0] * 2)
    torch.compiler.reset()


def test_compile_with_inductor():
    torch.compiler.reset()
    arguments = cases.transition(torch.Generator().manual_seed(3))
    ln, transition = entry("ln"), entry("transition")

    def block(x, **rest):
        return ln(transition(x + 1, **rest, row="cpu")[0].transpose(1, 2), row="cpu")[0] * 2

    try:
        compiled = torch.compile(block, fullgraph=True)(**arguments)
    except torch._inductor.exc.InductorError as error:
        pytest.skip(f"inductor has no working compiler here: {str(error).splitlines()[0][:80]}")
    torch.testing.assert_close(compiled, block(**arguments), rtol=1e-5, atol=1e-5)
    torch.compiler.reset()


def test_compile_writes_into_out():
    torch.compiler.reset()
    x, out = torch.randn(4, 8), torch.zeros(4, 8)
    ln = entry("ln")
    compiled = torch.compile(lambda a, b: ln(a, row="cpu", out=b)[0], fullgraph=True, backend="aot_eager")
    compiled(x, out)
    assert torch.equal(out, ln(x, row="cpu")[0])
    torch.compiler.reset()


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", [op for op in OPS if not op.startswith("triattn")])
def test_gradients_are_refused_and_only_while_autograd_is_on(op):
    arguments = next(samples(op))[1]
    name = {"ln": "weight", "apb": "bias", "transition": "down", "trimul": "b_gate"}[op]
    wanting = {**arguments, name: torch.nn.Parameter(arguments[name].clone())}
    args, kwargs = split(op, wanting)
    with pytest.raises(Refused, match="^grad:"):
        entry(op)(**wanting, row="cpu")
    with pytest.raises(Refused, match="^grad:"):
        registered(op)(*args, **kwargs, row="cpu")
    plain = entry(op)(**arguments, row="cpu")[0]
    for off in (torch.no_grad, torch.inference_mode):
        with off():
            assert torch.equal(registered(op)(*args, **kwargs, row="cpu"), plain)
            assert torch.equal(entry(op)(**wanting, row="cpu")[0], plain)


def test_forward_mode_tangents_are_refused():
    from torch.autograd import forward_ad

    x, w = torch.ones(2, 3), torch.ones(3)
    plain = entry("ln")(x, w, row="cpu")[0]
    with torch.no_grad(), forward_ad.dual_level():
        assert torch.equal(entry("ln")(x, w, row="cpu")[0], plain)
        for arguments, position in (((forward_ad.make_dual(x, x), w), 0), ((x, forward_ad.make_dual(w, w)), 2)):
            with pytest.raises(Refused, match=f"^grad:argument {position} carries a forward-mode tangent$"):
                entry("ln")(*arguments, row="cpu")
        with pytest.raises(Refused, match="^grad:"):
            registered("ln")(forward_ad.make_dual(x, x), w, row="cpu")
    with torch.no_grad(), pytest.raises(Refused):
        torch.func.jvp(lambda x: entry("ln")(x, w, row="cpu")[0], (x,), (x,))
    attention = cases.triattn(torch.Generator().manual_seed(1))
    with torch.no_grad(), forward_ad.dual_level():
        attention["v"] = forward_ad.make_dual(attention["v"], attention["v"])
        args, kwargs = split("triattn", attention)
        for call in (lambda: entry("triattn")(**attention, row="cpu"), lambda: registered("triattn")(*args, **kwargs)):
            with pytest.raises(Refused, match="^grad:argument 2 carries a forward-mode tangent$"):
                call()


@pytest.mark.parametrize("op", OPS)
def test_a_row_that_is_switched_off_is_refused(op):
    arguments = next(samples(op))[1]
    served = entry(op)(**arguments, row="reference", rows_off=("cpu", "other"))
    assert served[1][1] == "reference"
    out = torch.full_like(served[0], 7.0)
    with pytest.raises(Refused, match="^off_by_user:reference$"):
        entry(op)(**arguments, row="reference", rows_off=("cpu", "reference"), out=out)
    assert bool((out == 7.0).all())


def test_a_row_that_the_table_chose_may_be_off():
    x = torch.ones(1, 64, 64, 128)
    w = torch.ones(128)
    try:
        row = entry("ln")(x, w, w)[1][1]
    except Refused as refusal:
        pytest.skip(f"no cell on this processor: {refusal}")
    with pytest.raises(Refused, match=f"^off_by_user:{row}$"):
        entry("ln")(x, w, w, rows_off=(row,))


def test_rows_off_cannot_be_traced():
    torch.compiler.reset()
    traced = torch.compile(lambda x: entry("ln")(x, rows_off=("cpu",))[0], backend="eager")
    with pytest.raises(Exception, match="rows_off is not part of the registered op"):
        traced(torch.ones(2, 3))


# ---- what an adapter reads past --------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.gate = torch.nn.LayerNorm(4), torch.nn.Linear(4, 4), None


class LowRank(torch.nn.Module):
    """What a fine-tune puts in the place of a layer: it keeps the layer's `weight` and `bias` in reach."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down, self.up = torch.nn.Linear(4, 1), torch.nn.Linear(1, 4)

    weight = property(lambda self: self.base.weight)
    bias = property(lambda self: self.base.bias)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


def strange_parameter(block):
    block.up._parameters["weight"] = torch.ones(4, 4).as_subclass(Watching)  # what quantizers put there


STRANGE = {
    "forward hook": (lambda b: b.up.register_forward_hook(lambda *a: None), "up: hooks round its forward"),
    "pre-hook": (lambda b: b.norm.register_forward_pre_hook(lambda *a: None), "norm: hooks round its forward"),
    "low rank": (lambda b: setattr(b, "up", LowRank(b.up)), "up: LowRank, not Linear"),
    "parametrization": (
        lambda b: torch.nn.utils.parametrizations.weight_norm(b.up),
        "up: ParametrizedLinear, not Linear",
    ),
    "old weight norm": (lambda b: torch.nn.utils.weight_norm(b.up), "up: hooks round its forward"),
    "forward of its own": (lambda b: setattr(b.up, "forward", lambda x: x), "up: a forward of its own"),
    "subclass": (lambda b: setattr(b, "up", type("Mine", (torch.nn.Linear,), {})(4, 4)), "up: Mine, not Linear"),
    "identity": (lambda b: setattr(b, "norm", torch.nn.Identity()), "norm: Identity, not LayerNorm"),
    "gone": (lambda b: setattr(b, "norm", None), "norm: NoneType, not LayerNorm"),
    "function": (lambda b: b.__dict__.update(gate=lambda x: x), "gate: NoneType, not Linear"),
    "parameter": (strange_parameter, "up: a parameter is a Watching"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", STRANGE)
def test_parts_that_are_not_what_their_class_says(how):
    parts = torch_glue.Parts(
        {"norm": torch.nn.LayerNorm, "up": torch.nn.Linear, "gate": torch.nn.Linear}, optional=("gate",)
    )
    block = Block()
    assert parts(block) == [block.norm, block.up, None]
    change, what = STRANGE[how]
    change(block)
    with pytest.raises(Refused) as caught:
        parts(block)
    assert (caught.value.word, caught.value.detail) == ("dialect", "Block." + what)


def test_parts_under_a_change_to_every_module(monkeypatch):
    parts, block = torch_glue.Parts({"up": torch.nn.Linear}), Block()
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *a: None)
    with pytest.raises(Refused, match="^dialect:hooks round every module's forward$"):
        parts(block)
    handle.remove()
    assert parts(block) == [block.up]
    monkeypatch.setattr(torch.nn.Linear, "forward", lambda self, x: x)
    with pytest.raises(Refused, match="^dialect:Block.up: its class's forward was replaced$"):
        parts(block)


def test_a_hook_that_is_removed_lets_the_part_pass_again():
    parts, block = torch_glue.Parts({"up": torch.nn.Linear}), Block()
    handle = block.up.register_forward_hook(lambda *a: None)
    with pytest.raises(Refused):
        parts(block)
    handle.remove()
    assert parts(block) == [block.up]


def test_parts_are_cheap():
    parts, block = torch_glue.Parts({"norm": torch.nn.LayerNorm, "up": torch.nn.Linear}), Block()
    times = []
    for _ in range(2000):
        start = time.perf_counter_ns()
        parts(block)
        times.append(time.perf_counter_ns() - start)
    assert statistics.median(times) / 2 / 1000 < 6, "microseconds a part; about 0.5 on an idle core"


class Watching(torch.Tensor):
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        return super().__torch_function__(function, types, args, kwargs or {})


class Plain(torch.Tensor):
    pass


def lend(tensor):
    """How the core takes one tensor: the mask of gate_planes."""
    square = torch.ones(2, 2, 1)
    out = torch.zeros(1, 2, 2)
    _core.trimul_gate_planes(square, square, tensor, out)
    return out[0]


def test_what_may_be_lent():
    mask = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    for tensor in (
        mask,
        torch.nn.Parameter(mask),
        mask.as_subclass(Plain),
        torch.nn.Buffer(mask),
        mask.T.contiguous().T,
        mask.flip(0).flip(0),
        mask.long(),
        mask.double().bfloat16(),
    ):
        assert torch.equal(lend(tensor.detach() if tensor.requires_grad else tensor), mask)
    assert torch.equal(lend(torch.tensor([2.0]).expand(2, 2)), torch.full((2, 2), 2.0))
    for dtype in (torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32, torch.bfloat16):
        assert torch.equal(lend(torch.tensor([[0, 1], [1, 0]]).to(dtype)), torch.tensor([[0.0, 1.0], [1.0, 0.0]]))


@pytest.mark.parametrize("stranger", [3, "x", [1.0], object()], ids=lambda s: type(s).__name__)
def test_anything_but_a_tensor_is_a_type_error_with_its_position(stranger):
    x = torch.ones(2, 3)
    with pytest.raises(TypeError, match=r"tensors\[2\] \(norm.weight\)"):
        _core.serve("ln", "fast", (x, x.clone(), stranger, None), (1e-5, False, False, None), "reference")


def test_numpy_and_watching_subclasses_are_type_errors():
    numpy = pytest.importorskip("numpy")
    for stranger in (numpy.ones((2, 2)), torch.ones(2, 2).as_subclass(Watching)):
        with pytest.raises(TypeError, match="mask: need a plain torch.Tensor"):
            lend(stranger)


@pytest.mark.parametrize(
    "word,make",
    [
        ("layout", lambda: torch.complex(torch.ones(2, 2), torch.ones(2, 2)).conj().imag),
        ("layout", lambda: torch.eye(2).to_sparse()),
        ("layout", lambda: torch.ones(2, 2).to_mkldnn()),
        ("layout", lambda: torch.ones(2, 2, device="meta")),
        ("dtype", lambda: torch.ones(2, 2, dtype=torch.complex64)),
        ("dtype", lambda: torch.ones(2, 2, dtype=torch.int16)),
        ("dtype", lambda: torch.ones(2, 2).to(torch.float8_e4m3fn)),
    ],
)
def test_tensors_without_plain_numbers_are_refused_by_name(word, make):
    with pytest.raises(Refused) as caught:
        lend(make())
    assert caught.value.word == word and caught.value.detail.startswith("mask")


def test_a_positive_imaginary_view_is_served():
    """Only the lazily negated view stores other numbers than it shows."""
    view = torch.complex(torch.ones(2, 2), torch.full((2, 2), 5.0)).imag
    assert torch.equal(lend(view), torch.full((2, 2), 5.0))


def test_rank_over_six_is_a_value_error():
    with pytest.raises(ValueError, match="rank 7, at most 6"):
        lend(torch.ones(1, 1, 1, 1, 1, 1, 1))


def test_cuda_tensor_is_refused_by_name():
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    with pytest.raises(Refused, match="^no_device:.*cuda:0"):
        entry("ln")(torch.ones(2, 3, device="cuda"), row="cpu")


def test_serve_checks_its_arguments():
    x = torch.ones(2, 3)
    good = dict(
        family="ln",
        tier="fast",
        tensors=(x, x.clone(), None, None),
        scalars=(1e-5, False, False, None),
        row="reference",
    )
    assert _core.serve(**good) == ("", "reference", "reference")
    for change, error in (
        (dict(family="nope"), ValueError),
        (dict(tier="nope"), ValueError),
        (dict(tensors=(x,)), ValueError),
        (dict(scalars=(1e-5,)), ValueError),
        (dict(row="nope"), ValueError),
        (dict(tensors=[x]), TypeError),
        (dict(scalars=("a", False, False, None)), TypeError),
        (dict(stack="s" * 200, row=None), ValueError),
        (dict(scalars=(1e-5, False, False, "f99")), ValueError),
        (dict(tensors=(None, x, None, None)), ValueError),
        (dict(rows_off=["reference"]), TypeError),
        (dict(rows_off=(1,)), TypeError),
        (dict(rows_off=("r",) * 32), ValueError),
        (dict(threads="2"), TypeError),
        (dict(rows_off=("cpu", "reference")), Refused),
    ):
        with pytest.raises(error):
            _core.serve(**{**good, **change})
    with pytest.raises(ValueError, match="direction: unknown word 'sideways'"):
        entry("trimul")(**{**cases.trimul(torch.Generator()), "direction": "sideways"}, row="reference")


def test_old_torch_is_refused_by_name():
    program = (
        "import torch; torch.__version__ = '2.10.1+cu128'\n"
        "from opt_core import Refused\n"
        "try:\n    from opt_core import torch_glue\n"
        "except Refused as refusal: print(refusal)\n"
    )
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "pin:torch2.10.1+cu128!>=2.11"


def test_importing_the_kernels_imports_no_torch():
    modules = ", ".join(f"opt_core.kernels.{folder}" for folder in kernels.FAMILIES)
    program = f"import sys, {modules}; print('torch' in sys.modules, 'numpy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert out.stdout.split() == ["False", "False"]


# ---- autocast, versions, threads, cost -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_refused_by_name(dtype):
    """The framework's op would return another type there; switched off again inside, the bits are the plain ones."""
    for op in OPS:
        arguments = next(samples(op))[1]
        args, kwargs = split(op, arguments)
        plain = entry(op)(**arguments, row="cpu")[0]
        with torch.autocast("cpu", dtype=dtype):
            for call in (
                lambda: registered(op)(*args, **kwargs, row="cpu"),
                lambda: entry(op)(**arguments, row="cpu"),
            ):
                with pytest.raises(Refused, match=f"^dtype:autocast cpu {str(dtype)[6:]}$"):
                    call()
            with torch.autocast("cpu", enabled=False):
                assert torch.equal(entry(op)(**arguments, row="cpu")[0], plain)
                assert torch.equal(registered(op)(*args, **kwargs, row="cpu"), plain)


def test_a_jit_trace_is_refused():
    with pytest.raises(Refused, match="^dialect:torch.jit.trace$"):
        torch.jit.trace(lambda x: entry("ln")(x, row="cpu")[0] + 1, (torch.ones(2, 3),), check_trace=False)


THREADS = """
import os, sys, threading, torch
import torch_cases as cases
from opt_core.kernels.trimul import gate_planes, trimul
arguments = cases.trimul(torch.Generator().manual_seed(1), n=48, c=32, ch=32)
torch.set_num_threads(int(sys.argv[1]))
alive = lambda: len(os.listdir("/proc/self/task"))
made = []
x = torch.ones(64, 64, 32)  # here, so that torch itself needs no threads in the ones below
def work():
    for call in (lambda: trimul(**arguments, row="cpu"), lambda: gate_planes(x, x)):
        before = alive()
        call()
        made.append(alive() - before)
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(made)
"""


@pytest.mark.skipif(_core.cpu_threads() < 2, reason="one processor")
@pytest.mark.parametrize("threads, made", [(1, [0, 0]), (2, [1, 0])])
def test_threads_are_torchs(threads, made):
    """What torch.set_num_threads says in one thread holds in another; seen by the threads that a call leaves behind."""
    done = subprocess.run(
        [sys.executable, "-c", THREADS, str(threads)],
        cwd=str(cases.__file__).rpartition("/")[0],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.strip() == str(made), done.stderr


def test_a_write_into_out_is_seen_by_autograd():
    out = torch.zeros(2, 3)
    before = out._version
    entry("ln")(torch.ones(2, 3), out=out, row="cpu")
    assert out._version > before


def test_out_keeps_its_layout():
    arguments = cases.trimul(torch.Generator().manual_seed(4))
    plain = entry("trimul")(**arguments, row="cpu")[0]
    out = torch.full(plain.shape, 7.0).transpose(1, 2)
    assert torch.equal(entry("trimul")(**arguments, row="cpu", out=out)[0], plain) and not out.is_contiguous()


def test_the_gil_is_released_while_a_member_runs():
    arguments = cases.trimul(torch.Generator().manual_seed(5), n=80, c=32, ch=32)  # 90 ms where n=48 takes 20
    entry("trimul")(**arguments, row="reference")
    done = threading.Event()

    def work():
        entry("trimul")(**arguments, row="reference")
        done.set()

    thread = threading.Thread(target=work)
    start = last = time.perf_counter()
    gap = 0.0
    thread.start()
    while not done.is_set():
        now = time.perf_counter()
        gap, last = max(gap, now - last), now
    thread.join()
    assert last - start > 0.02, "the call is too short to show anything"
    assert gap < 0.5 * (last - start)


def test_many_threads_get_their_own_scratch():
    arguments = cases.triattn_module(torch.Generator().manual_seed(6), n=33)
    expected = entry("triattn_module")(**arguments, row="cpu")[0]
    wrong = []

    def work():
        for _ in range(20):
            if not torch.equal(entry("triattn_module")(**arguments, row="cpu")[0], expected):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_scratch_is_kept_and_trimmed():
    _core.scratch_trim()
    assert _core.scratch_kept_bytes() == 0
    entry("trimul")(**cases.trimul(torch.Generator().manual_seed(7), n=33), row="cpu")
    kept = _core.scratch_kept_bytes()
    assert kept > 0
    entry("trimul")(**cases.trimul(torch.Generator().manual_seed(7), n=9), row="cpu")
    assert _core.scratch_kept_bytes() == kept
    assert _core.scratch_trim() == kept and _core.scratch_kept_bytes() == 0


def test_a_call_is_cheap():
    """Entry to result for a call whose arithmetic is next to nothing; several times the 15 us that it should take."""
    x, w, b = torch.ones(1, 8), torch.ones(8), torch.zeros(8)
    fn, op = entry("ln"), registered("ln")
    costs = {}
    for name, call in (("entry", lambda: fn(x, w, b, row="cpu")), ("op", lambda: op(x, w, b, row="cpu"))):
        call()
        times = []
        for _ in range(2000):
            start = time.perf_counter_ns()
            call()
            times.append(time.perf_counter_ns() - start)
        costs[name] = statistics.median(times) / 1000
    print(costs)
    assert costs["entry"] < 60 and costs["op"] < 90, costs


def test_stack_names_what_bits_depend_on():
    word = torch_glue.stack()
    assert word.startswith(f"torch-{torch.__version__.split('+')[0]}+") and ":" not in word and " " not in word
    assert word.endswith(torch.backends.cpu.get_cpu_capability().lower()) and word.count("+") == 2


def test_the_statement_of_the_ops_is_not_vacuous():
    """A reference that ignored an argument would accept a member that ignores it: every argument matters."""
    for op in OPS:
        for name, arguments in samples(op, seed=8):
            expected = getattr(torch_reference, op)(**arguments)
            for key, value in arguments.items():
                if isinstance(value, torch.Tensor):
                    other = (1 - value.to(torch.float32)).to(value.dtype) if key == "mask" else value.roll(1, -1)
                    changed = getattr(torch_reference, op)(**{**arguments, key: other})
                    assert not torch.equal(torch.nan_to_num(changed), torch.nan_to_num(expected)), (op, name, key)

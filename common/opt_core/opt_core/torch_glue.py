# SPDX-License-Identifier: Apache-2.0
"""PyTorch for the families: tensors become views without a copy, and each family becomes an op of `torch.library`.

computes   nothing; `opt_core._core.serve` does
binds      torch's DLPack exchange table, present from torch 2.11 on. No C++ symbol of torch is used
ops        opt_core::ln, ::transition, ::trimul, ::triattn, ::triattn_module, ::apb. Functional; the result is a new
           contiguous tensor with the shape of the first argument. `torch.compile(fullgraph=True)` keeps them whole
gradients  triattn and triattn_module: the forward is the member's, the backward recomputes the statement
           (kernels/triattn/backward.py) and is an op of its own, ::triattn_backward, ::triattn_module_backward. lse has
           none. The other families refuse, and so does the tier exact: its promise is about bits
autocast   triattn and triattn_module on CUDA tensors cast what the framework's products would cast (q, k, v, gate; the
           weights of the projections) and return the autocast dtype. Everything else refuses
ownership  the caller's tensors are borrowed for the call; a result belongs to the caller
threads    any; the GIL is released while a member runs, on at most torch.get_num_threads() threads
stream     CUDA tensors: the current stream of their device, whatever the current device is; nothing waits. A member's
           scratch comes from torch's allocator
errors     on import: Refused pin:torch<have>!>=2.11. In a call: Refused grad (an input wants gradients while autograd
           is on, or carries a forward-mode tangent), no_device (tensors on two devices, or on one that no row of the
           family runs on), dtype (also under autocast), layout, shape, dialect, uncovered_cell, proof, arch, driver,
           no_prebuilt, digest, capture, off_by_user (a row of rows_off); ValueError for malformed shapes; TypeError
           for anything but a plain tensor
exactness  the served row's
source     none
"""

import functools
import importlib

from opt_core import Refused, _core, kernels

import torch
import torch.autograd.forward_ad as _forward_ad

TORCH_FLOOR = "2.11"  # the first with torch.Tensor.__dlpack_c_exchange_api__


def _bind():
    _core.gate_pin("torch", torch.__version__, f">={TORCH_FLOOR}")
    table = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
    if table is None:  # a development build that carries the number but not the table
        raise Refused("pin", f"torch{torch.__version__}!>={TORCH_FLOOR} (no DLPack exchange table)")
    _core.bind_torch(table, torch.Tensor, torch.nn.Parameter)


@functools.lru_cache(maxsize=None)
def stack(device=None):
    """What exact proofs are keyed by.

    On the processor `torch-<version>+<vendor>+<torch's instruction set>`; on the CUDA device of that ordinal
    `torch-<version>+cuda-<toolkit>+sm_<nn>`.
    """
    version = torch.__version__.split("+")[0]
    if device is not None:
        return f"torch-{version}+cuda-{torch.version.cuda}+sm_{_core.cuda_facts(device)['sm']}"
    vendor = _core.cpu_facts()["vendor"]
    vendor = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}.get(vendor, vendor.lower() or "unknown")
    return f"torch-{version}+{vendor}+{torch.backends.cpu.get_cpu_capability().lower()}"


def cuda_index(device=None):
    """The ordinal that a device word, a torch.device or None (the current device) stands for."""
    device = torch.device("cuda" if device is None else device)
    if device.type != "cuda":
        raise Refused("no_device", f"{device} is no CUDA device")
    if device.index is not None:
        return device.index
    if not torch.cuda.is_available():  # else torch raises something of its own
        raise Refused("no_device", "torch finds no CUDA device")
    return torch.cuda.current_device()


# ---- what a call must not pass by ------------------------------------------------------------------------------------


def _any_requires_grad(*tensors):
    return any(isinstance(tensor, torch.Tensor) and tensor.requires_grad for tensor in tensors)


_grad_mode = torch.is_grad_enabled
_any_requires_grad = getattr(torch._C, "_any_requires_grad", _any_requires_grad)  # the same in C, a fifth of the time
_any_autocast = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)  # True: look closer


def is_watched(tensors):
    """True when autograd, forward mode or autocast may have to see the call. None entries are skipped."""
    return (_grad_mode() and _any_requires_grad(*tensors)) or _any_autocast() or _forward_ad._current_level >= 0


def wants_grad(tensors):
    """True when autograd would have to record the call. Refused grad for a forward-mode tangent."""
    if _forward_ad._current_level >= 0:
        _refuse_tangent(tensors)
    return _grad_mode() and _any_requires_grad(*tensors)


def refuse_grad(tensors):
    """Refused grad when autograd would have to record one of the tensors, or to push a tangent through it.

    None entries are skipped.
    """
    if wants_grad(tensors):
        position = [isinstance(t, torch.Tensor) and t.requires_grad for t in tensors].index(True)
        raise Refused("grad", f"argument {position} requires grad; call under torch.no_grad() or detach it")


def _refuse_tangent(tensors):
    for position, tensor in enumerate(tensors):
        if isinstance(tensor, torch.Tensor) and _forward_ad.unpack_dual(tensor).tangent is not None:
            raise Refused("grad", f"argument {position} carries a forward-mode tangent")


def autocast_dtype(tensor):
    """What the framework's products cast to on the tensor's device; None when they do not cast."""
    device = tensor.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def refuse_autocast(tensor):
    """Refused dtype under autocast: the framework's op would compute, and return, another type than it is given."""
    dtype = autocast_dtype(tensor)
    if dtype is not None:
        raise Refused("dtype", f"autocast {tensor.device.type} {str(dtype).removeprefix('torch.')}")


def cast(tensor, dtype):
    """The tensor as autocast hands it to a product: floating point, but not float64, in that dtype."""
    if tensor is None or not tensor.is_floating_point() or tensor.dtype is torch.float64:
        return tensor
    return tensor.to(dtype)


def is_traced(tensor):
    """True when a compiler or a tensor that stands for another one watches: then the registered op must be called."""
    if torch.compiler.is_compiling():
        return True
    return type(tensor) is not torch.Tensor and (
        getattr(type(tensor), "__torch_dispatch__", None) is not torch.Tensor.__torch_dispatch__
    )


def traced(name, out, *args, rows_off=(), **kwargs):
    """The registered op, for callers that are traced. The choice is made when the graph runs, so it is None here."""
    if rows_off:
        raise ValueError(f"{name}: rows_off is not part of the registered op; leave it out of a traced call")
    result = getattr(torch.ops.opt_core, name).default(*args, **kwargs)
    return (result if out is None else out.copy_(result)), None


def output(out, like, dtype=None):
    """`out`, or a new contiguous tensor shaped as `like`."""
    if out is None:
        return torch.empty_like(like, dtype=dtype, memory_format=torch.contiguous_format)
    if not out.is_inference():
        torch.autograd.graph.increment_version(out)  # written behind autograd's back
    return out


@functools.lru_cache(maxsize=None)
def _hosted(family, row):
    """`run` of a hosted row, a member whose code is Python because its products are torch's; None for any other."""
    if not any(m["row"] == row and "hosted" in m["flags"] for m in _core.members(family)):
        return None
    folder = "triattn" if family == "triattn_module" else family
    return importlib.import_module(f"opt_core.kernels.{folder}.members.{row}").run


def serve(family, tier, tensors, scalars, row, rows_off, y, out):
    """`run` for a family without gradients and without a meaning under autocast: both are refused."""
    if is_watched(tensors):
        refuse_grad(tensors)
        refuse_autocast(y)
    return run(family, tier, tensors, scalars, row, rows_off, y, out)


def run(family, tier, tensors, scalars, row, rows_off, y, out):
    """Serves the call into `y`; returns (result, (cell, row, member)). `out` is what the caller gave for the result."""
    if _tracing():  # what a member writes is not recorded: the trace would hold it as a constant
        raise Refused("dialect", "torch.jit.trace")
    proof = (stack(y.device.index) if y.is_cuda else stack()) if tier == "exact" else ""
    choice = _core.serve(family, tier, tensors, scalars, row, proof, True, rows_off, _num_threads())
    hosted = _hosted(family, choice[1])
    if hosted is None:
        return y, choice
    result = hosted(tensors, scalars)
    return (result if out is None else out.copy_(result)), choice


_tracing, _num_threads = torch.jit.is_tracing, torch.get_num_threads


# ---- gradients -------------------------------------------------------------------------------------------------------


class _Recomputed(torch.autograd.Function):
    """forward(*inputs) as it is; backward(grad, inputs, wanted) recomputes what it needs from the inputs."""

    @staticmethod
    def forward(forward, backward, *inputs):
        return forward(*inputs)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.recompute = inputs[1]
        ctx.save_for_backward(*inputs[2:])

    @staticmethod
    def backward(ctx, grad):
        inputs = ctx.saved_tensors
        wanted = [need and tensor is not None for need, tensor in zip(ctx.needs_input_grad[2:], inputs)]
        found = iter(ctx.recompute(grad, inputs, wanted))
        return None, None, *(next(found) if want else None for want in wanted)


def _recorded(name, forward, inputs, scalars):
    """forward(*inputs), recorded by autograd; the gradients are those of the op <name>_backward(..., **scalars)."""
    return _Recomputed.apply(forward, _backward(name, scalars), *inputs)


def watched(name, call, inputs, scalars, recast, outputs, tier):
    """call(*inputs) -> (result, choice) for inputs that are watched: what autocast and autograd make of it.

    recast     (dtype, *inputs) -> (inputs as the framework's products take them, dtype of its result)
    outputs    (out, ...) that the caller gave, None entries included
    tier       "exact": gradients are refused, the recomputed ones have other bits than the stock op's
    """
    dtype = autocast_dtype(inputs[0])
    if dtype is not None:
        if not inputs[0].is_cuda:
            refuse_autocast(inputs[0])
        inputs, dtype = recast(dtype, *inputs)
    refuse_grad((*inputs, *outputs) if tier == "exact" else outputs)
    choice = None

    def forward(*inputs):
        nonlocal choice
        result, choice = call(*inputs)
        return result

    if not wants_grad(inputs):
        result = forward(*inputs)
    elif outputs[0] is None:
        result = _recorded(name, forward, inputs, scalars)
    else:
        raise Refused("grad", "out= is written behind autograd's back; leave it out, or call under torch.no_grad()")
    return (result if dtype is None or outputs[0] is not None else result.to(dtype)), choice


def _backward(name, scalars):
    op = getattr(torch.ops.opt_core, f"{name}_backward").default
    return lambda grad, inputs, wanted: op(grad, *inputs, **scalars, wanted=wanted)


# ---- the modules round an op -----------------------------------------------------------------------------------------


class Parts:
    """Submodules that an adapter bypasses: it reads their parameters and does not call them.

        parts = Parts({"norm": torch.nn.LayerNorm, "up": torch.nn.Linear, "gate": torch.nn.Linear}, optional=("gate",))
        norm, up, gate = parts(self)        # at every call; gate is None where the module has none

    That gives the module's numbers only while each of them is what its class says. Raises Refused
    dialect:<path>: <what> for a submodule of another type (a wrapper, a parametrization, a fine-tune's adapter), with
    hooks round its forward, with a forward of its own, with a class whose forward was replaced since, or with
    parameters that are no plain ones.
    """

    __slots__ = ("_parts",)

    def __init__(self, kinds, optional=()):
        self._parts = tuple((name, kind, kind.forward, name in optional) for name, kind in kinds.items())

    def __call__(self, owner):
        if _modules._global_forward_hooks or _modules._global_forward_pre_hooks:
            raise Refused("dialect", "hooks round every module's forward")
        children = owner._modules
        found = []
        for name, kind, forward, optional in self._parts:
            module = children.get(name)
            if type(module) is kind:
                what = _strange(module.__dict__, kind, forward)
            elif module is None and optional and owner.__dict__.get(name) is None:
                what = None
            else:
                what = f"{type(module).__name__}, not {kind.__name__}"
            if what is not None:
                raise Refused("dialect", f"{type(owner).__name__}.{name}: {what}")
            found.append(module)
        return found


_modules = torch.nn.modules.module


def _strange(state, kind, forward):
    """Why the module with this __dict__ may compute something else than its class, or None."""
    if state["_forward_hooks"] or state["_forward_pre_hooks"]:
        return "hooks round its forward"
    if "forward" in state:
        return "a forward of its own"
    if kind.forward is not forward:
        return "its class's forward was replaced"
    for parameter in state["_parameters"].values():
        if parameter is not None and type(parameter) is not torch.nn.Parameter:
            return f"a parameter is a {type(parameter).__name__}"
    return None


# ---- registration --------------------------------------------------------------------------------------------------

_library = torch.library.Library("opt_core", "DEF")
_DEVICES = ("CPU", "CUDA")


def _fake(first, *tensors, out_dtype=None, **scalars):
    return torch.empty_like(first, dtype=out_dtype, memory_format=torch.contiguous_format)


def _define(name, schema, function, fake):
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    for key in _DEVICES:
        _library.impl(name, function, key)
    torch.library.register_fake(f"opt_core::{name}", fake, lib=_library)
    return getattr(torch.ops.opt_core, name).default


_BELOW_AUTOGRAD = torch._C._after_autograd_keyset


def _below(op, keyset, args, kwargs):
    """The op's own kernel. Callers have seen that autograd has nothing to record, or hold it off themselves."""
    return op.redispatch(keyset & _BELOW_AUTOGRAD, *args, **kwargs)


def _register(function, schema):
    name = function.__name__
    op = _define(name, schema, lambda *args, **kwargs: function(*args, **kwargs)[0], _fake)

    def check_grad(keyset, *args, **kwargs):
        refuse_grad(args)
        return _below(op, keyset, args, kwargs)

    _library.impl(name, check_grad, "Autograd", with_keyset=True)


def _register_gradient(function, schema, backward, backward_schema, recast):
    """As _register, with gradients and with a meaning under CUDA autocast."""
    name = function.__name__
    op = _define(name, schema, lambda *args, **kwargs: function(*args, **kwargs)[0], _fake)
    arguments = op._schema.arguments
    inputs = [argument.name for argument in arguments if not argument.kwarg_only]
    defaults = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    _register_backward(f"{name}_backward", backward_schema, backward)
    scalars = [argument.name for argument in getattr(torch.ops.opt_core, f"{name}_backward").default._schema.arguments]
    scalars = [word for word in scalars if word in {argument.name for argument in arguments} and word not in inputs]

    def record(keyset, *args, **kwargs):
        if kwargs.get("tier") == "exact":
            refuse_grad(args)
        if not wants_grad(args):
            return _below(op, keyset, args, kwargs)
        args += tuple(defaults[word] for word in inputs[len(args) :])  # the dispatcher drops defaults
        settings = {word: kwargs.get(word, defaults.get(word)) for word in scalars}
        return _recorded(name, lambda *args: _below(op, keyset, args, kwargs), args, settings)

    def cast_down(*args, **kwargs):
        dtype = autocast_dtype(args[0])
        with torch.autocast("cuda", enabled=False):
            if dtype is None:
                return op(*args, **kwargs)
            args, dtype = recast(dtype, *args)
            return op(*args, **kwargs).to(dtype)

    _library.impl(name, record, "Autograd", with_keyset=True)
    _library.impl(name, cast_down, "AutocastCUDA")


def _register_backward(name, schema, backward):
    def run(grad, *inputs, wanted, **scalars):
        with torch.autocast(grad.device.type, enabled=False):
            return backward(grad, *inputs, wanted=wanted, **scalars)

    def fake(grad, *inputs, wanted, **scalars):
        return [
            torch.empty_like(tensor, memory_format=torch.contiguous_format)
            for tensor, want in zip(inputs, wanted)
            if want
        ]

    op = _define(name, schema, run, fake)

    def check_grad(keyset, *args, **kwargs):  # a second derivative would be wrong in silence
        refuse_grad(args)
        return _below(op, keyset, args, kwargs)

    _library.impl(name, check_grad, "Autograd", with_keyset=True)


_bind()
for _folder in kernels.FAMILIES:
    _module = importlib.import_module(f"opt_core.kernels.{_folder}")
    for _function, _schema in _module.OPS:
        _register(_function, _schema)
    for _entry in getattr(_module, "GRADIENT_OPS", ()):
        _register_gradient(*_entry)

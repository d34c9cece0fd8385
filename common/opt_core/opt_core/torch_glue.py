# SPDX-License-Identifier: Apache-2.0
"""PyTorch for the families: tensors become views without a copy, and each family becomes an op of `torch.library`.

computes   nothing; `opt_core._core.serve` does
binds      torch's DLPack exchange table, present from torch 2.11 on. No C++ symbol of torch is used
ops        opt_core::ln, ::transition, ::trimul, ::triattn, ::triattn_module, ::apb. Functional; the result is a new
           contiguous tensor with the shape of the first argument. `torch.compile(fullgraph=True)` keeps them whole
ownership  the caller's tensors are borrowed for the call; a result belongs to the caller
threads    any; the GIL is released while a member runs, on at most torch.get_num_threads() threads. Stream: none (CPU)
errors     on import: Refused pin:torch<have>!>=2.11. In a call: Refused grad (an input wants gradients while autograd
           is on, or carries a forward-mode tangent), no_device (not a CPU tensor), dtype (also under CPU autocast),
           layout, shape, dialect, uncovered_cell, proof, arch, off_by_user (a row of rows_off); ValueError for
           malformed shapes; TypeError for anything but a plain tensor
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
def stack():
    """What exact proofs here are keyed by: `torch-<version>+<processor vendor>+<torch's instruction set>`."""
    vendor = _core.cpu_facts()["vendor"]
    vendor = {"GenuineIntel": "intel", "AuthenticAMD": "amd"}.get(vendor, vendor.lower() or "unknown")
    return f"torch-{torch.__version__.split('+')[0]}+{vendor}+{torch.backends.cpu.get_cpu_capability().lower()}"


def refuse_grad(tensors):
    """Refused grad when autograd would have to record one of the tensors, or to push a tangent through it.

    None entries are skipped.
    """
    if _forward_ad._current_level >= 0:
        _refuse_tangent(tensors)
    if torch.is_grad_enabled():
        for position, tensor in enumerate(tensors):
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                raise Refused("grad", f"argument {position} requires grad; call under torch.no_grad() or detach it")


def _refuse_tangent(tensors):
    for position, tensor in enumerate(tensors):
        if isinstance(tensor, torch.Tensor) and _forward_ad.unpack_dual(tensor).tangent is not None:
            raise Refused("grad", f"argument {position} carries a forward-mode tangent")


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


def _refuse_context():
    """Refused in contexts that give the framework's own op another meaning than its arguments say."""
    if torch.is_autocast_enabled("cpu"):  # it would compute, and return, another type than the one it is given
        word = str(torch.get_autocast_dtype("cpu")).removeprefix("torch.")
        raise Refused("dtype", f"autocast cpu {word}")
    if torch.jit.is_tracing():  # what a member writes is not recorded: the trace would hold it as a constant
        raise Refused("dialect", "torch.jit.trace")


def serve(family, tier, tensors, scalars, row, rows_off, y, out):
    """Serves the call into `y`; returns (result, (cell, row, member)). `out` is what the caller gave for the result."""
    refuse_grad(tensors)
    _refuse_context()
    proof = stack() if tier == "exact" else ""
    choice = _core.serve(family, tier, tensors, scalars, row, proof, True, rows_off, torch.get_num_threads())
    hosted = _hosted(family, choice[1])
    if hosted is None:
        return y, choice
    result = hosted(tensors, scalars)
    return (result if out is None else out.copy_(result)), choice


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


def _fake(first, *tensors, out_dtype=None, **scalars):
    return torch.empty_like(first, dtype=out_dtype, memory_format=torch.contiguous_format)


def _register(function, schema):
    name = function.__name__
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    op = getattr(torch.ops.opt_core, name).default

    def run(*args, **kwargs):
        return function(*args, **kwargs)[0]

    def check_grad(*args, **kwargs):
        refuse_grad(args)
        with torch._C._AutoDispatchBelowAutograd():
            return op(*args, **kwargs)

    for key in ("CPU", "CUDA"):  # a CUDA tensor reaches the core too, and is refused by name there
        _library.impl(name, run, key)
    _library.impl(name, check_grad, "Autograd")
    torch.library.register_fake(f"opt_core::{name}", _fake, lib=_library)


_bind()
for _folder in kernels.FAMILIES:
    for _function, _schema in importlib.import_module(f"opt_core.kernels.{_folder}").OPS:
        _register(_function, _schema)

# SPDX-License-Identifier: Apache-2.0
"""What the glue says about CUDA tensors on a machine without a GPU: types and devices of fake tensors, and refusals."""

import contextlib

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses import FakeTensorMode  # noqa: E402

from opt_core import Refused, _core, kernels, torch_glue  # noqa: E402
from opt_core.kernels.triattn import triattn  # noqa: E402

OP = torch.ops.opt_core.triattn.default
MODULE_OP = torch.ops.opt_core.triattn_module.default
BF16 = torch.bfloat16


@contextlib.contextmanager
def autocast(dtype=BF16):
    """torch.autocast("cuda") switches itself off where there is no GPU."""
    torch.set_autocast_enabled("cuda", True)
    torch.set_autocast_dtype("cuda", dtype)
    try:
        yield
    finally:
        torch.set_autocast_enabled("cuda", False)


def core(**extra):
    q = torch.empty(1, 3, 5, 2, 8, device="cuda", **extra)
    return q, torch.empty(1, 2, 5, 5, device="cuda")


def module(dtype=torch.float32):
    x = torch.empty(1, 5, 5, 16, device="cuda", dtype=dtype)
    square, flat = torch.empty(16, 16, device="cuda"), torch.empty(2, 16, device="cuda")
    return x, (square, square, square, flat, square)


def test_results_are_where_the_inputs_are():
    with FakeTensorMode():
        q, bias = core()
        result = OP(q.transpose(1, 2), q.transpose(1, 2), q.transpose(1, 2), None)
        assert (result.device.type, result.dtype, result.is_contiguous()) == ("cuda", torch.float32, True)


@pytest.mark.parametrize("dtype", [BF16, torch.float16], ids=str)
def test_autocast_gives_the_type_that_a_product_gives(dtype):
    with FakeTensorMode():
        q, bias = core()
        assert OP(q, q, q, bias).dtype is torch.float32
        with autocast(dtype):
            assert OP(q, q, q, bias).dtype is dtype
            assert OP(q.to(dtype), q, q, bias, None, q).dtype is dtype
            assert OP(q.double(), q.double(), q.double(), bias).dtype is torch.float64
            assert OP(q.cpu(), q.cpu(), q.cpu(), bias.cpu()).dtype is torch.float32
        with autocast(dtype):
            recorded = OP(*core(requires_grad=True)[:1] * 3, bias)
        assert recorded.dtype is dtype and recorded.requires_grad


def test_autocast_of_the_module():
    """The stock's linears give the autocast type; adding a wider residual widens it again."""
    with FakeTensorMode():
        x, weights = module()
        narrow, _ = module(BF16)
        plain = MODULE_OP(x, *weights, heads=2, scale=1.0)
        assert plain.dtype is torch.float32
        with autocast():
            assert MODULE_OP(x, *weights, heads=2, scale=1.0).dtype is BF16
            assert MODULE_OP(x, *weights, residual=x, heads=2, scale=1.0).dtype is torch.float32
            assert MODULE_OP(narrow, *weights, residual=narrow, heads=2, scale=1.0).dtype is BF16


def test_what_autocast_casts():
    """Seen in the graph: q, k, v and gate, not the bias; of the module the projections, not the norm nor x."""
    from torch.fx.experimental.proxy_tensor import make_fx

    def casts(function, *arguments):
        graph = make_fx(function)(*arguments).graph
        return sum(node.target is torch.ops.aten._to_copy.default for node in graph.nodes)

    with FakeTensorMode():
        q, bias = core()
        x, weights = module()
        norm = torch.empty(16, device="cuda")
        with autocast():
            assert casts(lambda q, b: OP(q, q, q, b, None, q), q, bias) == 4
            assert casts(lambda q, b: OP(q.bfloat16(), q, q, b), q, bias) == 3
            assert casts(lambda x, n: MODULE_OP(x, *weights, None, n, n, heads=2, scale=1.0), x, norm) == 5 + 1
            # the last one: x's type to the result's
        assert casts(lambda q, b: OP(q, q, q, b), q, bias) == 0


def test_autocast_of_another_device_changes_nothing():
    q = torch.randn(1, 2, 3, 2, 8)
    plain = triattn(q, q, q, row="cpu")[0]
    with autocast():
        assert torch.equal(triattn(q, q, q, row="cpu")[0], plain)
        assert torch.equal(OP(q, q, q, row="cpu"), plain)


def test_prepare():
    if torch.cuda.is_available():
        pytest.skip("tests/gpu has this with a GPU")
    kernels.prepare("ln", 0)  # nothing to load
    with pytest.raises(ValueError, match="unknown family"):
        kernels.prepare("nope", 0)
    for device, detail in (("cpu", "cpu is no CUDA device"), (None, "torch finds no CUDA device")):
        with pytest.raises(Refused, match=f"^no_device:{detail}$"):
            kernels.prepare("triattn", device)
    if any(m["device"] != "cpu" for m in _core.members("triattn")):
        for device in (0, "cuda:0", torch.device("cuda", 0)):
            with pytest.raises(Refused, match="^no_device:"):
                kernels.prepare("triattn", device)


def test_what_is_loaded():
    assert _core.cuda_modules() == [] or torch.cuda.is_available()
    for word, path in _core.cuda_libraries().items():
        assert word in ("cublas", "cublasLt", "nvrtc", "nccl") and f"lib{word}.so" in path


def test_tf32_is_a_word_of_the_class_and_changes_no_bits_on_the_processor():
    q = torch.randn(1, 2, 3, 2, 8)
    assert torch.equal(triattn(q, q, q, row="cpu", tf32=True)[0], triattn(q, q, q, row="cpu")[0])
    with pytest.raises(Refused, match="^uncovered_cell:.*tf32"):
        triattn(q, q, q, tf32=True)


def test_torchs_own_table_has_the_layout_that_the_extension_declares():
    """On the processor: its version, memory from its allocator, the way back, an error's way, the stream of nobody."""
    import ctypes

    import exchange_table as x

    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    table = x.Table.from_address(get(torch.Tensor.__dlpack_c_exchange_api__, b"dlpack_exchange_api"))
    assert table.major == 1 and table.minor >= 2
    stream = ctypes.c_void_p(7)
    assert table.stream(x.CPU, 0, ctypes.byref(stream)) == 0 and stream.value is None
    told = []
    report = x.REPORT(lambda context, kind, message: told.append((kind, message)))
    for bytes_, failed in ((1000, False), (1 << 60, True)):
        shape = (ctypes.c_int64 * 1)(bytes_)
        prototype = x.DlTensor(device_type=x.CPU, rank=1, code=1, bits=8, lanes=1, shape=shape)
        managed = ctypes.POINTER(x.Managed)()
        assert (table.allocate(ctypes.byref(prototype), ctypes.byref(managed), None, report) != 0) is failed
        assert bool(told) is failed
        if not failed:
            got = managed[0].tensor
            assert (got.device_type, got.rank, got.code, got.bits, got.shape[0]) == (x.CPU, 1, 1, 8, bytes_)
            ctypes.memset(got.data + got.byte_offset, 1, bytes_)
            managed[0].release(managed)
    assert told[0][0] == b"MemoryError", told


def test_private_names_of_torch_that_make_calls_cheap_are_there():
    """Where they go away the glue still works, slower; this says when."""
    assert torch_glue._any_requires_grad is torch._C._any_requires_grad
    assert torch_glue._any_autocast is torch._C._is_any_autocast_enabled

# SPDX-License-Identifier: Apache-2.0
"""Checks and times the two kernels of triattn's module.cu alone: torch and libcuda, nothing else of this library.

    python tests/gpu/module_smoke.py [module.cubin] [--no-times]

Without a cubin, nvcc builds one. Reference: float64 on operands rounded to bf16 as the kernels round them.
Prints failures, one line a timing, one summary line. Exit status: 1 when something failed.
"""
import argparse
import ctypes as C
import itertools
import math
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

SOURCE = Path(__file__).resolve().parents[2] / "opt_core/kernels/triattn/members/module.cu"
DTYPES = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
WORDS = {torch.float32: "f32", torch.bfloat16: "bf16", torch.float16: "f16"}
HEADS, INNER, TILE = 4, 128, 64
LOG2E = math.log2(math.e)
EXCLUDED = -(2 - 2 ** -7) * 2.0 ** 127  # a key without weight
RATE = 4.273e12  # bytes a second: device copy

# ---- module.h --------------------------------------------------------------------------------------------------------


class Vector(C.Structure):
    _fields_ = [("data", C.c_void_p), ("stride", C.c_longlong), ("dtype", C.c_longlong)]


class Matrix(C.Structure):
    _fields_ = [("data", C.c_void_p), ("row", C.c_longlong), ("column", C.c_longlong), ("dtype", C.c_longlong)]


class Linear(C.Structure):
    _fields_ = [("weight", Matrix), ("bias", Vector)]


class PrologueParams(C.Structure):
    _fields_ = [("x", C.c_void_p), ("x_stride", C.c_longlong * 3), ("out", C.c_void_p * 4), ("pair", C.c_void_p),
                ("to", Linear * 4), ("to_pair", Linear), ("norm_weight", Vector), ("norm_bias", Vector),
                ("eps", C.c_float), ("rms", C.c_int), ("fast_variance", C.c_int),
                ("n", C.c_int), ("heads", C.c_int), ("exchanged", C.c_int), ("groups", C.c_int),
                ("pixels", C.c_uint), ("tiles", C.c_uint), ("batch", C.c_int), ("fill", C.c_int)]


class EpilogueParams(C.Structure):
    _fields_ = [("o", C.c_void_p), ("y", C.c_void_p), ("residual", C.c_void_p), ("y_stride", C.c_longlong * 3),
                ("residual_stride", C.c_longlong * 3), ("out", Linear * 2), ("y_dtype", C.c_int),
                ("residual_dtype", C.c_int), ("n", C.c_uint), ("pixels", C.c_uint), ("tiles", C.c_uint),
                ("fill", C.c_int)]


def vector(t):
    return Vector() if t is None else Vector(t.data_ptr(), t.stride(0) * t.element_size(), DTYPES[t.dtype])


def linear(weight, bias):
    size = weight.element_size()
    matrix = Matrix(weight.data_ptr(), weight.stride(0) * size, weight.stride(1) * size, DTYPES[weight.dtype])
    return Linear(matrix, vector(bias))


def fill_of(weights):
    first = weights[0].dtype
    good = all(w.dtype == first and w.stride(1) == 1 and w.stride(0) * w.element_size() % 16 == 0
               and w.data_ptr() % 16 == 0 for w in weights)
    return DTYPES[first] if good else 0


def byte_strides(t):
    return (C.c_longlong * 3)(*(s * t.element_size() for s in t.stride()[:3]))


def threads_of(channels):
    return 256 if channels == 256 else 384


def groups_of(channels):
    return 2 if channels == 256 else 4


def stages_of(c):
    return threads_of(c) // 32 * 3 * 2048


def prologue_shared(c):
    return groups_of(c) * (c // 64) * 16384 + c // 64 * 1024 + c * 8 + groups_of(c) * 512 + 32 + stages_of(c) + 1024


def epilogue_shared(c):
    return (c // 256 * 2 + 2) * 16384 + c * 4 + stages_of(c) + 1024


# ---- driver ----------------------------------------------------------------------------------------------------------

cuda = C.CDLL("libcuda.so.1")


def check(code, what):
    if code:
        text = C.c_char_p()
        cuda.cuGetErrorString(code, C.byref(text))
        sys.exit(f"{what}: {code} {text.value!r}")


class Kernels:
    def __init__(self, cubin):
        torch.zeros(1, device="cuda")
        self.module, self.functions = C.c_void_p(), {}
        check(cuda.cuModuleLoadData(C.byref(self.module), cubin), "cuModuleLoadData")
        self.blocks = torch.cuda.get_device_properties(0).multi_processor_count

    def launch(self, name, grid, threads, shared, params):
        function = self.functions.get(name)
        if function is None:
            function = C.c_void_p()
            check(cuda.cuModuleGetFunction(C.byref(function), self.module, name.encode()), name)
            check(cuda.cuFuncSetAttribute(function, 8, shared), f"{name}: shared {shared}")
            self.functions[name] = function
        pointer = (C.c_void_p * 1)(C.cast(C.pointer(params), C.c_void_p))
        stream = C.c_void_p(torch.cuda.current_stream().cuda_stream)
        check(cuda.cuLaunchKernel(function, *grid, 1, threads, 1, 1, shared, stream, pointer, None), name)


# ---- the two calls ---------------------------------------------------------------------------------------------------


def prologue_call(k, x, scratch, pair, weights, biases, norm, eps, exchanged, rms=False, fast=False):
    """weights, biases: q, k, v, gate (or None), pair; returns a function that launches."""
    batch, n, _, channels = x.shape
    p = PrologueParams(x=x.data_ptr(), x_stride=byte_strides(x), pair=pair.data_ptr(), eps=eps, n=n, heads=HEADS,
                       rms=rms, fast_variance=fast, exchanged=exchanged, batch=batch)
    p.groups = 3 if weights[3] is None else 4
    for g in range(p.groups):
        p.out[g], p.to[g] = scratch[g].data_ptr(), linear(weights[g], biases[g])
    p.to_pair = linear(weights[4], biases[4])
    p.norm_weight, p.norm_bias = vector(norm[0]), vector(norm[1])
    p.pixels = batch * n * n
    p.tiles = -(-p.pixels // TILE)
    p.fill = fill_of(weights[:p.groups])
    parts = 4 // groups_of(channels)
    grid = min(p.tiles, k.blocks // parts), parts
    name = f"oc_module_prologue_{WORDS[x.dtype]}_{channels}"
    return lambda: k.launch(name, grid, threads_of(channels), prologue_shared(channels), p)


def epilogue_call(k, o, y, residual, weight, bias):
    batch, n, _, channels = y.shape
    p = EpilogueParams(o=o.data_ptr(), y=y.data_ptr(), y_stride=byte_strides(y), y_dtype=DTYPES[y.dtype], n=n)
    if residual is not None:
        p.residual, p.residual_stride = residual.data_ptr(), byte_strides(residual)
        p.residual_dtype = DTYPES[residual.dtype]
    p.out[0] = linear(weight, bias)
    if channels > 128:
        p.out[1] = linear(weight[128:], None if bias is None else bias[128:])
    p.pixels = batch * n * n
    p.tiles = -(-p.pixels // TILE)
    p.fill = fill_of([weight])
    name = f"oc_module_epilogue_{'wide' if y.dtype == torch.float32 else 'narrow'}_{channels}"
    return lambda: k.launch(name, (min(p.tiles, k.blocks), 1), threads_of(channels),
                            epilogue_shared(channels), p)


# ---- reference -------------------------------------------------------------------------------------------------------


def normed(x, norm, eps, rms=False):
    x = x.double()
    mean = 0 if rms else x.mean(-1, keepdim=True)
    y = (x - mean) / torch.sqrt((x - mean).square().mean(-1, keepdim=True) + eps)
    if norm[0] is not None:
        y = y * norm[0].double()
    return y if norm[1] is None else y + norm[1].double()


def bf16(t):
    return t.bfloat16().double()


def project(h, weight, bias):
    y = h @ bf16(weight).T
    return y if bias is None else y + bias.double()


def unpack(pair, batch, n):
    """The packed bias as [B, H, 64 QT, 64 KT]."""
    tiles = -(-n // 64)
    words = pair.view(torch.int32)
    t = torch.stack((words & -0x10000, words << 16), -1).view(torch.float32)  # of k, without what follows; of k + 8
    # q tile, k tile, vector, warp, l / 4, l % 4, r, k, k + 8
    t = t.view(batch, HEADS, tiles, tiles, 4, 4, 8, 4, 2, 2, 2)
    return t.permute(0, 1, 2, 5, 8, 6, 3, 4, 10, 7, 9).reshape(batch, HEADS, tiles * 64, tiles * 64)


failures, checks = [], 0


def expect(what, got, want, relative, floor):
    """|got - want| <= relative * |want| + floor * rms(want), everywhere."""
    global checks
    checks += 1
    got, want = got.double(), want.double()
    excess = (got - want).abs() - relative * want.abs() - floor * want.square().mean().sqrt()
    if not bool((excess <= 0).all()):  # also false for NaN
        bad = ~(excess <= 0)
        where = tuple(int(i) for i in bad.nonzero()[0])
        failures.append(f"{what}: {int(bad.sum())} of {bad.numel()} wrong, first {where}: {got[where]} for {want[where]}")


def same(what, ok):
    global checks
    checks += 1
    if not ok:
        failures.append(what)


# ---- checks ----------------------------------------------------------------------------------------------------------


def tensor(*shape, dtype=torch.float32, factor=1.0, offset=0.0):
    return (torch.randn(*shape, device="cuda") * factor + offset).to(dtype)


def exchanged_view(t, ending):
    """The same values in a tensor whose axes 1 and 2 lie exchanged in memory."""
    return t.transpose(1, 2).contiguous().transpose(1, 2) if ending else t


def check_prologue(k, n, channels, dtype, pick):
    batch = 2 if n <= 130 else 1
    weight_dtype = pick.choice([torch.bfloat16, torch.float32, torch.float16])
    strided, mixed, ending, exchanged, affine, biased, gated, rms, fast = (pick.random() < share for share in (
        0.2, 0.2, 0.5, 0.5, 0.6, 0.5, 0.8, 0.1, 0.15))
    fast = fast and not rms
    what = (f"prologue n={n} c={channels} x={WORDS[dtype]} w={WORDS[weight_dtype]}"
            + "".join(f" {word}" for word, on in (("strided", strided), ("mixed", mixed), ("ending", ending),
                                                  ("exchanged", exchanged), ("affine", affine), ("biased", biased),
                                                  ("gate", gated), ("rms", rms), ("fast", fast)) if on))
    x = exchanged_view(tensor(batch, n, n, channels, dtype=dtype, factor=2.0, offset=0.5), ending)
    weights = []
    for index, rows in enumerate((INNER, INNER, INNER, INNER, HEADS)):
        w = tensor(rows, channels, dtype=torch.float16 if mixed and index == 1 else weight_dtype, factor=channels ** -0.5)
        weights.append(w.T.contiguous().T if strided else w)
    if not gated:
        weights[3] = None
    biases = [tensor(rows, dtype=weight_dtype) if biased else None for rows in (INNER, INNER, INNER, INNER, HEADS)]
    norm = (tensor(channels, factor=0.3, offset=1.0), tensor(channels, factor=0.3)) if affine else (None, None)
    eps = 1e-5
    scratch = torch.full((4, batch, n, n, INNER), math.nan, dtype=torch.bfloat16, device="cuda")
    tiles = -(-n // 64)
    pair = torch.full((batch * HEADS * tiles * tiles * 4096,), math.nan, dtype=torch.bfloat16, device="cuda")
    call = prologue_call(k, x, scratch, pair, weights, biases, norm, eps, exchanged, rms, fast)
    call()
    torch.cuda.synchronize()
    h = bf16(normed(x, norm, eps, rms))
    for g in range(4 if gated else 3):
        expect(f"{what}: {'qkvg'[g]}", scratch[g], project(h, weights[g], biases[g]), 2 ** -8, 0.015)
    same(f"{what}: touched the fourth plane", gated or bool(scratch[3].isnan().all()))
    full = unpack(pair, batch, n)
    want = project(h, weights[4], biases[4]).permute(0, 3, 1, 2) * LOG2E
    expect(f"{what}: pair", full[:, :, :n, :n], want.transpose(2, 3) if exchanged else want, 2 ** -7, 0.015)
    same(f"{what}: keys past the end", bool((full[..., n:] == EXCLUDED).all()))
    same(f"{what}: queries past the end", bool(full[:, :, n:, :n].isfinite().all()))
    first = scratch[:3].clone(), pair.clone()
    call()
    torch.cuda.synchronize()
    same(f"{what}: rerun", torch.equal(first[0], scratch[:3]) and torch.equal(first[1].view(torch.int16), pair.view(torch.int16)))


def check_limits(k):
    """The packed bias has no -inf and keeps +inf and NaN."""
    n, channels = 65, 128
    x = tensor(1, n, n, channels, dtype=torch.bfloat16)
    weights = [tensor(INNER, channels, factor=0.1) for _ in range(4)] + [torch.zeros(HEADS, channels, device="cuda")]
    biases = [None] * 4 + [torch.tensor([1e6, math.inf, math.nan, -math.inf], device="cuda")]
    scratch = torch.empty((4, 1, n, n, INNER), dtype=torch.bfloat16, device="cuda")
    pair = torch.zeros(HEADS * 4 * 4096, dtype=torch.bfloat16, device="cuda")
    prologue_call(k, x, scratch, pair, weights, biases, (None, None), 1e-5, False)()
    torch.cuda.synchronize()
    full = unpack(pair, 1, n)[0, :, :n, :n]
    same("limits: +finite", bool(((full[0] / (1e6 * LOG2E) - 1).abs() < 2 ** -7).all()))
    same("limits: inf", bool((full[1] == math.inf).all()))
    same("limits: NaN", bool(full[2].isnan().all()))
    same("limits: -inf", bool((full[3] == EXCLUDED).all()))


def check_large_mean(k):
    """Two passes: a mean of 1000 deviations costs no accuracy."""
    n, channels = 33, 128
    x = tensor(1, n, n, channels, offset=1000.0)
    weights = [tensor(INNER, channels, factor=0.1) for _ in range(4)] + [tensor(HEADS, channels, factor=0.1)]
    scratch = torch.empty((4, 1, n, n, INNER), dtype=torch.bfloat16, device="cuda")
    pair = torch.zeros(HEADS * 4096, dtype=torch.bfloat16, device="cuda")
    prologue_call(k, x, scratch, pair, weights, [None] * 5, (None, None), 1e-5, False)()
    torch.cuda.synchronize()
    expect("large mean: q", scratch[0], project(bf16(normed(x, (None, None), 1e-5)), weights[0], None), 2 ** -8, 0.015)


def check_epilogue(k, n, channels, dtype, pick):
    batch = 2 if n <= 130 else 1
    weight_dtype = pick.choice([torch.bfloat16, torch.float32, torch.float16])
    residual_dtype = pick.choice([None] + [d for d in DTYPES if d.itemsize == dtype.itemsize])
    strided, ending, biased, in_place = (pick.random() < share for share in (0.2, 0.5, 0.5, 0.3))
    in_place = in_place and residual_dtype is not None
    if in_place:
        residual_dtype = dtype
    what = (f"epilogue n={n} c={channels} y={WORDS[dtype]} w={WORDS[weight_dtype]} "
            f"residual={WORDS.get(residual_dtype, 'none')}"
            + "".join(f" {word}" for word, on in (("strided", strided), ("ending", ending), ("biased", biased),
                                                  ("in place", in_place)) if on))
    o = tensor(batch, n, n, INNER, dtype=torch.bfloat16)
    weight = tensor(channels, INNER, dtype=weight_dtype, factor=INNER ** -0.5)
    weight = weight.T.contiguous().T if strided else weight
    bias = tensor(channels, dtype=weight_dtype) if biased else None
    y = exchanged_view(torch.full((batch, n, n, channels), math.nan, dtype=dtype, device="cuda"), ending)
    want = project(o.double(), weight, bias)
    residual = None
    if residual_dtype is not None:
        residual = exchanged_view(tensor(batch, n, n, channels, dtype=residual_dtype), not ending)
        if in_place:
            y.copy_(residual)
            residual = y
        want = want + residual.double()
    epilogue_call(k, o, y, residual, weight, bias)()
    torch.cuda.synchronize()
    expect(what, y, want, {torch.float32: 1e-6, torch.bfloat16: 2 ** -8, torch.float16: 2 ** -10}[dtype], 1e-5)


# ---- times -----------------------------------------------------------------------------------------------------------


def median_us(calls):
    """Median over rounds of the mean time of one call; the calls of a round use different memory."""
    calls[0]()
    count, times = max(len(calls), 12), []
    for _ in range(9):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(1_000_000)  # the queue fills meanwhile
        start.record()
        for c in range(count):
            calls[c % len(calls)]()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) * 1000 / count)
    return statistics.median(times)


def time_size(k, n, dtype=torch.bfloat16, channels=128, exchanged=False, ending=False):
    sets = max(2, math.ceil(200e6 / (n * n * channels * 2))) if n < 1024 else 2
    tiles = -(-n // 64)
    weights = [tensor(rows, channels, dtype=torch.bfloat16, factor=0.09) for rows in (INNER,) * 4 + (HEADS,)]
    norm = tensor(channels, offset=1.0), tensor(channels)
    out_weight = tensor(channels, INNER, dtype=torch.bfloat16, factor=0.09)
    before, after = [], []
    for _ in range(sets):
        x = exchanged_view(tensor(1, n, n, channels, dtype=dtype), ending)
        scratch = torch.empty(4, n * n * INNER, dtype=torch.bfloat16, device="cuda")
        scratch[3].normal_()
        pair = torch.empty(HEADS * tiles * tiles * 4096, dtype=torch.bfloat16, device="cuda")
        y = exchanged_view(torch.empty(1, n, n, channels, dtype=dtype, device="cuda"), ending)
        before.append(prologue_call(k, x, scratch, pair, weights, [None] * 5, norm, 1e-5, exchanged))
        after.append(epilogue_call(k, scratch[3], y, x, out_weight, None))
        before[-1].keep = after[-1].keep = (x, scratch, pair, y)
    size = torch.finfo(dtype).bits // 8
    bytes_before = n * n * (channels * size + 4 * INNER * 2) + HEADS * tiles * tiles * 8192
    bytes_after = n * n * (INNER * 2 + 2 * channels * size)
    second, first = median_us(after), median_us(before)
    words = f"{WORDS[dtype]} c={channels}" + " exchanged" * exchanged + " ending" * ending
    print(f"n={n:5d} {words:24s} prologue {first:8.1f} us {first * RATE / 1e6 / bytes_before:5.2f} x bytes, "
          f"epilogue {second:8.1f} us {second * RATE / 1e6 / bytes_after:5.2f} x bytes", flush=True)


def time_ceiling(n):
    """What torch reaches with the prologue's mix of traffic: a quarter read, the rest written."""
    x = tensor(n * n * INNER // 2, dtype=torch.float32).view(torch.bfloat16)
    out = torch.empty(4, x.numel(), dtype=torch.bfloat16, device="cuda")
    us = median_us([lambda: out.copy_(x.expand(4, -1))])
    print(f"n={n:5d} torch: read 1, write 4 planes {us:8.1f} us {us * RATE / 1e6 / (x.numel() * 10):5.2f} x bytes")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cubin", nargs="?")
    parser.add_argument("--no-times", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.cubin or f"{folder}/module.cubin"
        if not args.cubin:
            nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
            subprocess.run([nvcc, "-cubin", "-O3", "-std=c++17", "-gencode", "arch=compute_90a,code=sm_90a", "-o", path,
                            str(SOURCE)], check=True)
        cubin = Path(path).read_bytes()
    torch.manual_seed(7)
    pick, k = random.Random(7), Kernels(cubin)
    check_limits(k)
    check_large_mean(k)
    for n, channels, dtype in itertools.product((1, 15, 33, 64, 65, 130, 257, 512), (64, 128, 256), DTYPES):
        if dtype != torch.float16:
            check_prologue(k, n, channels, dtype, pick)
        check_epilogue(k, n, channels, dtype, pick)
    for line in failures[:40]:
        print("FAILED", line)
    print(f"module_smoke: {checks - len(failures)} of {checks} checks passed", flush=True)
    if not args.no_times:
        torch.cuda.empty_cache()
        for n in (256, 512, 1024, 2048):
            time_size(k, n)
            torch.cuda.empty_cache()
        time_size(k, 1024, ending=True)
        time_size(k, 1024, ending=True, exchanged=True)
        time_size(k, 1024, torch.float32)
        time_size(k, 777)
        time_size(k, 512, channels=64)
        time_size(k, 512, channels=256)
        time_ceiling(1024)
        print(f"module_smoke: {checks - len(failures)} of {checks} checks passed, times above")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()

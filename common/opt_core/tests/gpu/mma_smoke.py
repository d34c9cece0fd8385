# SPDX-License-Identifier: Apache-2.0
"""Checks and times the kernels of triattn's mma.cu alone: torch and libcuda, nothing else of this library.

    python tests/gpu/mma_smoke.py [mma.cubin] [--no-times] [--only TEXT]

Without a cubin, nvcc builds one for the device. Reference: logits as reference.c orders them (the sum over d in
float64, every later step rounded to f32), the rest in float64, on the operands as they are. Prints failures first, then
errors over long rows, times, one summary line. Exit status: 1 when something failed.
"""
import argparse
import ctypes as C
import itertools
import math
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

SOURCE = Path(__file__).resolve().parents[2] / "opt_core/kernels/triattn/members/mma.cu"
NONE, SUBTRACT, FILL, ZERO, ADD = range(5)
KINDS = ("none", "subtract", "fill", "zero", "add")
CODES = {None: 0, torch.float32: 1, torch.bfloat16: 2, torch.float16: 3, torch.bool: 4, torch.uint8: 4, torch.int32: 5,
         torch.int64: 6}
OPERANDS = {"bf16": torch.bfloat16, "f16": torch.float16, "tf32": torch.float32, "f32": torch.float32}
LIMITS = {"bf16": 6e-3, "f16": 8e-4, "tf32": 1.2e-3, "f32": 1e-6}
LSE_LIMITS = {"bf16": 1e-5, "f16": 1e-5, "tf32": 1e-3, "f32": 1e-6}
PACKED = 7
VEC_KV, PAIR_Q, PAIR_GATE, PAIR_OUT, PAIR_BIAS, QUAD_BIAS = 1, 2, 4, 8, 16, 32

# ---- mma.h -----------------------------------------------------------------------------------------------------------

# operands -> wide -> (rows, warps, keys)
NARROW = {16: (2, 8, 32), 32: (2, 8, 32), 64: (1, 8, 32), 128: (1, 4, 64)}
ENTRIES = {"bf16": NARROW, "f16": NARROW,
           "tf32": {16: (2, 8, 32), 32: (2, 8, 32), 64: (1, 4, 32), 128: (1, 4, 32)},
           "f32": {16: (2, 4, 32), 32: (2, 4, 32), 64: (1, 4, 32), 128: (1, 4, 32)}}
FIXUP = (1, 4, 32)


def shared_bytes(operands, wide, rows, warps, keys):
    size = OPERANDS[operands].itemsize
    parts = 2 if operands == "f32" and wide <= 64 else 1 if size == 4 and wide != 64 else 0
    sums = 256 * rows * warps if operands == "f32" and rows > 1 else 0
    return 2 * 2 * rows * keys * (wide * size + 16) + parts * rows * 16 * warps * wide * 4 + 32 + rows * 256 + sums


def packed(bias):
    """Blocks of 64 queries x 64 keys of bias * log2(e), as members/native.h has them: u32 [b, h, qt, kt, 2048]."""
    b, h, nq, nk = bias.shape
    qt, kt = math.ceil(nq / 64), math.ceil(nk / 64)
    x = torch.full((b, h, qt * 64, kt * 64), -math.inf, device="cuda")
    x[..., :nk] = 0
    x[:, :, :nq, :nk] = bias.float() * math.log2(math.e)
    # query 16 w + g + 8 r, key 16 v + 8 low + 2 t + e: word [v, w, g, t, r, e]
    x = x.view(b, h, qt, 4, 2, 8, kt, 4, 2, 4, 2).permute(0, 1, 2, 6, 7, 3, 5, 9, 4, 10, 8)
    bits = x.to(torch.bfloat16).contiguous().view(torch.int16).to(torch.int64) & 0xFFFF
    bits = torch.where(x == -math.inf, 0xFF7F, bits)
    low = bits[..., 1]
    # the word nearest to x that ends in low
    near = (x[..., 0].contiguous().view(torch.int32).to(torch.int64) & 0x7FFFFFFF) - low + 0x8000
    high = torch.where(x[..., 0].abs() < 2.0**-100, 0, near >> 16 | (x[..., 0] < 0).to(torch.int64) << 15)
    high = torch.where(x[..., 0] == -math.inf, 0xFF7F, high)
    words = high << 16 | low
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32).contiguous()


class Params(C.Structure):
    _fields_ = ([(n, C.c_void_p) for n in ("q", "k", "v", "bias", "mask", "gate", "out", "lse", "flags")]
                + [(n + "_stride", C.c_longlong * 5) for n in ("q", "k", "v", "gate", "out")]
                + [(n + "_stride", C.c_longlong * axes) for n, axes in (("bias", 4), ("mask", 3), ("lse", 4))]
                + [(n, C.c_int) for n in ("batches", "rows", "heads", "queries", "keys", "depth", "bias_type",
                                          "mask_type", "mask_kind", "paths", "key_tiles")]
                + [("scale", C.c_float), ("mask_value", C.c_float)])


# ---- driver ----------------------------------------------------------------------------------------------------------

cuda = C.CDLL("libcuda.so.1")


def call(name, *args):
    code = getattr(cuda, name)(*args)
    if code != 0:
        raise RuntimeError(f"{name}: {code}")


class Kernels:
    def __init__(self, path):
        torch.zeros(1, device="cuda")
        self.module = C.c_void_p()
        call("cuModuleLoadData", C.byref(self.module), Path(path).read_bytes())
        self.functions = {}

    def get(self, symbol, shared):
        if symbol not in self.functions:
            f = C.c_void_p()
            call("cuModuleGetFunction", C.byref(f), self.module, symbol.encode())
            call("cuFuncSetAttribute", f, 8, shared)
            self.functions[symbol] = f
        return self.functions[symbol]

    def launch(self, symbol, blocks, threads, shared, params):
        pointer = (C.c_void_p * 1)(C.cast(C.byref(params), C.c_void_p))
        call("cuLaunchKernel", self.get(symbol, shared), blocks, 1, 1, threads, 1, 1, shared,
             C.c_void_p(torch.cuda.current_stream().cuda_stream), pointer, None)


def moves(t, size):
    if t is None or t.data_ptr() % size or (t.shape[-1] > 1 and t.stride(-1) != 1):
        return False
    return all(n == 1 or s * t.element_size() % size == 0 for n, s in zip(t.shape[:-1], t.stride()[:-1]))


class Call:
    """One launch of the entry for `operands`; flags: the fix-up instead."""

    def __init__(self, kernels, operands, c, flags=None, blocks_of_bias=None):
        q, k = c["q"], c["k"]
        size, depth = q.element_size(), q.shape[4]
        wide = next(w for w in (16, 32, 64, 128) if w >= depth)
        rows, warps, keys = FIXUP if flags is not None else ENTRIES[operands][wide]
        p = Params(scale=c["scale"], mask_value=c["mask_value"], mask_kind=c["kind"])
        for name in ("q", "k", "v", "bias", "mask", "gate", "out", "lse"):
            t = c[name]
            if t is not None:
                setattr(p, name, t.data_ptr())
                strides = [s if n > 1 else 0 for n, s in zip(t.shape, t.stride())]
                setattr(p, name + "_stride", (C.c_longlong * t.dim())(*strides))
        p.batches, p.rows, p.queries, p.heads, p.depth, p.keys = *q.shape, k.shape[2]
        p.bias_type = CODES[c["bias"].dtype if c["bias"] is not None else None]
        p.mask_type = CODES[c["mask"].dtype if c["mask"] is not None else None]
        p.paths = VEC_KV if depth * size % 16 == 0 and moves(k, 16) and moves(c["v"], 16) else 0
        for name, bit in (("q", PAIR_Q), ("gate", PAIR_GATE), ("out", PAIR_OUT)):
            p.paths |= bit if depth % 2 == 0 and moves(c[name], 2 * size) else 0
        if c["bias"] is not None and moves(c["bias"], 2 * c["bias"].element_size()):
            p.paths |= PAIR_BIAS
            p.paths |= QUAD_BIAS if c["bias"].dtype == torch.float32 and moves(c["bias"], 16) else 0
        shared = shared_bytes(operands, wide, rows, warps, keys)
        blocks = math.ceil(p.queries / (16 * warps)) * math.ceil(p.rows / rows) * p.heads * p.batches
        symbol = f"triattn_mma_{operands}_d{wide}"
        if flags is not None:
            p.flags, symbol, shared = flags.data_ptr(), f"triattn_mma_fixup_{operands}_d{wide}", shared + 16 * warps
            blocks = min(2 * torch.cuda.get_device_properties(0).multi_processor_count, math.ceil(flags.numel() / 32))
        if blocks_of_bias is not None:
            p.bias, p.bias_type, p.key_tiles = blocks_of_bias.data_ptr(), PACKED, math.ceil(p.keys / 64)
        self.blocks_of_bias = blocks_of_bias
        self.run = lambda: kernels.launch(symbol, blocks, 32 * warps, shared, p)
        self.keep = c


# ---- cases -----------------------------------------------------------------------------------------------------------


def strided(shape, order, dtype, fill, pad=0, offset=0):
    """A view [shape] whose memory runs over the axes in `order` (slowest first), the last one padded."""
    sizes = [shape[a] for a in order]
    sizes[-1] += pad
    memory = fill(math.prod(sizes) + offset).to(dtype)[offset:].view(sizes)
    memory = memory.narrow(-1, 0, shape[order[-1]])
    return memory.permute([order.index(a) for a in range(len(shape))])


def normal(n):
    return torch.randn(n, device="cuda")


LAYOUTS = {"dense": ((0, 1, 2, 3, 4), 0, 0), "ending": ((0, 2, 1, 3, 4), 0, 0), "heads": ((0, 1, 3, 2, 4), 0, 0),
           "odd": ((0, 1, 2, 3, 4), 1, 1), "columns": ((0, 1, 3, 4, 2), 0, 0)}


def make(operands, b, i, nq, nk, h, d, kind, mask_dtype, bias, gate, lse, layout, value, empty_row, bias_scale=1.0):
    dtype = OPERANDS[operands]
    order, pad, offset = LAYOUTS[layout]
    t = {name: strided((b, i, n, h, d), order, dtype, normal, pad, offset)
         for name, n in (("q", nq), ("k", nk), ("v", nk), ("gate", nq), ("out", nq))}
    if not gate:
        t["gate"] = None
    turned = layout == "ending"
    t["bias"] = None if bias is None else strided(
        (b, h, nq, nk), (0, 1, 3, 2) if turned else (0, 1, 2, 3), bias, lambda n: normal(n) * bias_scale,
        1 if layout == "odd" else 0)
    t["lse"] = torch.full((b, i, nq, h), 777.0, device="cuda").transpose(2, 3) if lse else None
    t["mask"] = None
    if kind == ADD:
        t["mask"] = (torch.randn(b, i, nk, device="cuda") * 3).to(mask_dtype)
    elif kind != NONE:
        kept = torch.rand(b, i, nk, device="cuda") > 0.2
        if nk > 64:
            kept[:, :, 32:64] = True
        if empty_row:
            kept[0, 0] = False
        t["mask"] = (torch.rand(b, i, nk, device="cuda") if value == 4.0 else kept).to(mask_dtype)
    t.update(kind=kind, mask_value=value, scale=1 / math.sqrt(d))
    return t


def reference(c, rows=None):
    rows = slice(None) if rows is None else rows
    q, k, v = (c[n][:, rows].double() for n in ("q", "k", "v"))
    f32 = torch.float32
    s = (torch.einsum("biqhd,bikhd->bihqk", q, k).to(f32) * torch.tensor(c["scale"], dtype=f32, device="cuda"))
    kind, value = c["kind"], c["mask_value"]
    m = None if c["mask"] is None else c["mask"][:, rows, None, None, :].to(f32)
    if kind == SUBTRACT:
        s = s + torch.tensor(value, dtype=f32, device="cuda") * (m - 1)
    elif kind == ADD:
        s = s + m
    elif kind == FILL:
        s = torch.where(m != 0, s, torch.tensor(value, dtype=f32, device="cuda"))
    if c["bias"] is not None:
        s = s + c["bias"][:, None].to(f32)
    s = s.double()
    if kind == ZERO:
        s = torch.where(m != 0, s, -math.inf)
    if s.shape[-1] == 0:
        p, lse = s, torch.full(s.shape[:-1], -math.inf, device="cuda", dtype=s.dtype)
    else:
        top = s.amax(-1, keepdim=True)
        if kind == ZERO:
            top = torch.where((m != 0).any(-1, keepdim=True), top, 0.0)
        p = torch.exp(s - top)
        total = p.sum(-1, keepdim=True)
        lse = (top + total.log())[..., 0]
        p = p / (torch.where(total == 0, 1.0, total) if kind == ZERO else total)
    o = torch.einsum("bihqk,bikhd->biqhd", p, v)
    if c["gate"] is not None:
        o = o * torch.sigmoid(c["gate"][:, rows].double())
    return o, lse


def distance(got, want):
    """Relative error over what is a number in both; inf where NaNs differ."""
    got = got.double()
    if bool((got.isnan() != want.isnan()).any()) or bool((got.isinf() != want.isinf()).any()):
        return math.inf
    fine = torch.isfinite(want)
    d, w = torch.where(fine, got - want, 0.0).norm().item(), torch.where(fine, want, 0.0).norm().item()
    return d / w if w > 0 else d


def cases():
    rng = random.Random(1)
    sizes = (1, 15, 17, 33, 64, 65, 130, 257)
    kinds = list(itertools.product((NONE, SUBTRACT, FILL, ZERO, ADD)))
    masks = (torch.bool, torch.uint8, torch.int32, torch.int64, torch.float32, torch.bfloat16, torch.float16)
    biases = (torch.float32, torch.bfloat16, torch.float16, None)
    depths = {16: (16, 8, 5), 32: (32, 24, 31, 17), 64: (64, 48, 40, 33), 128: (128, 96, 127)}
    out, n = [], 0
    for operands, wide in itertools.product(OPERANDS, depths):
        for layout in LAYOUTS:
            kind = kinds[n % len(kinds)][0]
            value = {SUBTRACT: 1e9 if operands == "tf32" or n % 2 else 1e6,
                     FILL: (-math.inf, torch.finfo(torch.float32).min, -1e9)[n % 3]}.get(kind, 0.0)
            mask = rng.choice((torch.float32, torch.bfloat16, torch.float16)) if kind == ADD else masks[n % len(masks)]
            nq, nk = rng.choice(sizes), sizes[n % len(sizes)]
            out.append((operands, rng.choice((1, 2)), rng.choice((1, 2, 3, 5)), nq, nk, rng.choice((1, 2, 4)),
                        depths[wide][n % len(depths[wide])], kind, mask, biases[(n // 2) % 4], n % 2 == 0, n % 3 != 0,
                        layout, value, n % 3 == 1))
            n += 1
    for operands in OPERANDS:  # a mask between 0 and 1
        out.append((operands, 1, 3, 70, 130, 2, 32, SUBTRACT, torch.float32, torch.bfloat16, False, True, "dense", 4.0,
                    False))
    for operands in OPERANDS:  # no keys; long rows; strong logits that leave the fast exponent
        out.append((operands, 1, 2, 20, 0, 2, 32, SUBTRACT, torch.bool, torch.float32, True, True, "dense", 1e9, False))
        out.append((operands, 1, 2, 99, 2050, 1, 32, FILL, torch.bool, torch.float32, True, True, "dense", -1e9, False))
        out.append((operands, 1, 3, 130, 257, 2, 32, ZERO, torch.bool, torch.float32, False, True, "dense", 0.0, True,
                    100.0))
    return out


def word(case):
    operands, b, i, nq, nk, h, d, kind, mask, bias, gate, lse, layout, value, empty = case[:15]
    return (f"{operands} b{b} i{i} nq{nq} nk{nk} h{h} d{d} {KINDS[kind]}={value:g} {str(mask)[6:]} "
            f"bias={str(bias)[6:] if bias else None} gate{int(gate)} lse{int(lse)} {layout}"
            f"{' empty' if empty else ''}{' strong' if len(case) > 15 else ''}")


class Report:
    def __init__(self):
        self.failed, self.done, self.worst = 0, 0, {}

    def judge(self, text, operands, error, lse_error, strong=False):
        # Strong logits: a rounding of the logit itself (2^-24 of a few hundred) is a relative error of the weight.
        factor = {"f32": 60.0, "tf32": 60.0}.get(operands, 4.0) if strong else 1.0
        self.done += 1
        if not strong:
            self.worst[operands] = max(self.worst.get(operands, 0.0), error)
        if not (error < LIMITS[operands] * factor and lse_error < LSE_LIMITS[operands] * factor):
            self.failed += 1
            print(f"FAIL {text}: err {error:.2e} lse {lse_error:.2e}", flush=True)


def check(kernels, report, only):
    for case in cases():
        text = word(case)
        if only and only not in text:
            continue
        try:
            torch.manual_seed(7)
            c = make(*case)
            launch = Call(kernels, case[0], c)
            launch.run()
            first = c["out"].clone()
            launch.run()
            torch.cuda.synchronize()
            o, lse = reference(c)
            same = torch.equal(first.nan_to_num(), c["out"].nan_to_num())
            lse_error = distance(c["lse"], lse) if c["lse"] is not None else 0.0
            report.judge(text + ("" if same else " (two runs differ)"), case[0],
                         distance(c["out"], o) if same else math.inf, lse_error, len(case) > 15)
        except RuntimeError as error:  # a faulting launch ends the context: nothing later can run
            report.failed += 1
            print(f"FAIL {text}: {error}", flush=True)
            return


def flags_of(share, *shape):
    """A byte a warp of 16 queries: one of a flagged tile's four is set."""
    flagged = torch.rand(*shape, device="cuda") < share
    which = torch.randint(0, 4, shape, device="cuda")
    return ((torch.arange(4, device="cuda") == which[..., None]) & flagged[..., None]).to(torch.uint8)


def check_fixup(kernels, report):
    plans = ((NONE, 130, 257, 0.5), (SUBTRACT, 257, 257, 0.1), (FILL, 64, 64, 1.0), (ZERO, 130, 130, 0.0),
             (NONE, 512, 257, 0.01))
    for (kind, nq, nk, share), form in itertools.product(plans, ("view", "packed", "packed, a query without keys")):
        torch.manual_seed(3)
        c = make("bf16", 2, 5, nq, nk, 4, 32, kind, torch.bool, torch.float32, True, True, "dense", 1e9, True)
        blocks_of_bias = None
        if form != "view":
            if form != "packed":
                c["bias"][0, 1, 5] = -math.inf
                c["bias"][:, :, :, ::7] = -math.inf
            blocks_of_bias = packed(c["bias"])
        flags = flags_of(share, 2, 4, 5, math.ceil(nq / 64))
        before, before_lse = c["out"].clone(), c["lse"].clone()
        Call(kernels, "bf16", c, flags, blocks_of_bias).run()
        torch.cuda.synchronize()
        o, lse = reference(c)
        on = flags.any(-1).repeat_interleave(64, -1)[..., :nq].transpose(1, 2)  # b, i, h, q
        o = torch.where(on.bool().transpose(2, 3)[..., None], o, before.double())
        lse_error = distance(c["lse"], torch.where(on.bool(), lse, before_lse.double()))
        # the packed bias has a bf16's digits
        report.judge(f"fixup {KINDS[kind]} nq{nq} nk{nk} share {share} {form}", "bf16", distance(c["out"], o),
                     lse_error if form == "view" else lse_error / 1000)


def check_long(kernels, report):
    """The error must not grow with the keys."""
    for operands, n in itertools.product(("tf32", "f32", "bf16", "f16"), (512, 4096)):
        torch.manual_seed(5)
        c = make(operands, 1, 2, n, n, 2, 32, NONE, torch.bool, torch.float32, False, True, "dense", 0.0, False)
        Call(kernels, operands, c).run()
        o, lse = reference(c)
        error, mean = distance(c["out"], o), ((c["out"].double() * o).sum() / (o * o).sum() - 1).item()
        print(f"  {operands:5s} n {n:5d}: error {error:.2e}, scale of the result {mean:+.1e}")
        report.judge(f"long {operands} {n}", operands, error, distance(c["lse"], lse))


# ---- times -----------------------------------------------------------------------------------------------------------


def time_us(launch, repeats):
    launch()
    torch.cuda.synchronize()
    samples = []
    for _ in range(7):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(repeats):
            launch()
        stop.record()
        stop.synchronize()
        samples.append(start.elapsed_time(stop) * 1000 / repeats)
    return statistics.median(samples)


def times(kernels):
    f32, bf16 = torch.float32, torch.bfloat16
    plans = [("bf16", 32, f32, SUBTRACT, "dense"), ("bf16", 32, bf16, SUBTRACT, "dense"),
             ("bf16", 32, bf16, NONE, "dense"), ("bf16", 32, f32, FILL, "dense"), ("bf16", 32, bf16, NONE, "ending"),
             ("bf16", 32, bf16, NONE, "odd"), ("f16", 32, f32, SUBTRACT, "dense"), ("bf16", 16, bf16, NONE, "dense"),
             ("bf16", 64, f32, SUBTRACT, "dense"), ("bf16", 128, f32, SUBTRACT, "dense"),
             ("tf32", 32, f32, SUBTRACT, "dense"), ("tf32", 32, f32, NONE, "dense"),
             ("f32", 32, f32, SUBTRACT, "dense"), ("f32", 32, f32, NONE, "dense"), ("tf32", 64, f32, NONE, "dense"),
             ("f32", 64, f32, NONE, "dense"), ("f32", 128, f32, NONE, "dense")]
    for n in (512, 1024):
        for operands, d, bias, kind, layout in plans:
            if n == 1024 and (layout != "dense" or d == 128):
                continue
            torch.manual_seed(9)
            c = make(operands, 1, n, n, n, 4, d, kind, torch.bool, bias, False, False, layout, 1e9, False)
            launch = Call(kernels, operands, c)
            us = time_us(launch.run, 4 if n == 512 else 1)
            rows = slice(0, 4)
            o, _ = reference(c, rows)
            print(f"  n {n:4d} d {d:3d} {operands:4s} bias {str(bias)[6:]:8s} {KINDS[kind]:8s} {layout:7s} {us:9.0f} us"
                  f"   error {distance(c['out'][:, rows], o):.2e}", flush=True)
            del c, launch, o
        c = make("bf16", 1, n, n, n, 4, 32, NONE, torch.bool, f32, False, False, "dense", 1e9, False)
        flags = torch.zeros(16 * n * math.ceil(n / 64), dtype=torch.uint8, device="cuda")
        none = time_us(Call(kernels, "bf16", c, flags).run, 10)
        print(f"  n {n:4d} fix-up with no flag {none:6.1f} us,", end="")
        flags[::400] = 1
        print(f" one in 100 {time_us(Call(kernels, 'bf16', c, flags).run, 4):6.1f} us,", end="")
        flags[:] = 1
        print(f" all {time_us(Call(kernels, 'bf16', c, flags).run, 1):6.0f} us")


def build():
    major, minor = torch.cuda.get_device_capability()
    arch = "sm_90a" if (major, minor) == (9, 0) else f"sm_{major}{minor}"
    cubin = Path(tempfile.mkdtemp()) / "mma.cubin"
    subprocess.run(["nvcc", "-cubin", f"-arch={arch}", "-O3", "-std=c++17", "-o", cubin, SOURCE], check=True)
    return cubin


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("cubin", nargs="?")
    parser.add_argument("--no-times", action="store_true")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    start = time.time()
    torch.backends.cuda.matmul.allow_tf32 = False
    kernels, report = Kernels(args.cubin or build()), Report()
    check(kernels, report, args.only)
    if not args.only and not report.failed:
        check_fixup(kernels, report)
        check_long(kernels, report)
    checked = time.time()
    if not args.no_times:
        try:
            times(kernels)
        except RuntimeError as error:
            report.failed += 1
            print(f"FAIL times: {error}")
    worst = " ".join(f"{name} {error:.1e}" for name, error in report.worst.items())
    print(f"mma: {report.done} checks, {report.failed} failed; worst error {worst}; {checked - start:.0f} s of checks,"
          f" {time.time() - checked:.0f} s of times")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())

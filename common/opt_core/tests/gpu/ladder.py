# SPDX-License-Identifier: Apache-2.0
"""The ladder for triangle attention on any device: cases, their float64 truth, the stock torch form, and the rungs.

A rung runs a case on one row and raises `Red` with the first failure and a command that reproduces it:

    python common/opt_core/tests/gpu/ladder.py bound --row cuda_sm90a n=129,i=3,dtype=f16,mask=fill,value=-inf

guards      bytes round out and lse keep their poison; a refusal leaves the outputs poisoned too
order_free  logits whose differences are 0 or at least 128, small integer values: the result is a mean of few integers,
            whatever the order of the sums; bits of the float64 result after one rounding (f32: to 2^-9, as the
            exponential of a tie may be off by the rounding of a logit of some thousands)
rerun       same bits again, at other addresses, on another stream, on a busy device
invariance  rows i alone, in chunks or backwards, and a batch alone: the bits of the whole call, where the row promises it
bound       error against float64 at most 1.5 times the stock form's in the same dtype

A row may refuse a case by name where `must_serve` says so; the tally counts what ran and what was refused, and apart from that
what is outside the class of calls that a row is made for.
"""
from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import math
import random
import sys

import torch

from opt_core import Refused, _core
from opt_core.kernels.triattn import triattn, triattn_module

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "bool": torch.bool, "u8": torch.uint8,
          "i32": torch.int32, "i64": torch.int64}
UNIT = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
SIZES = (1, 2, 15, 16, 17, 33, 63, 64, 65, 100, 101, 127, 128, 129, 130, 255, 256, 257, 384, 400, 777, 1023)
DEPTHS = (16, 24, 32, 48, 64, 128)
POISON = 0xA5
GUARD_BYTES = 512
MAY_REFUSE = ("layout", "dtype", "shape", "dialect")


class Red(AssertionError):
    """A rung that does not hold."""


def rows_here(family: str, device: str) -> list[str]:
    """The rows of the family that have a member for this device, the reference left out."""
    wanted = {"cpu"}
    if device != "cpu":
        major, minor = torch.cuda.get_device_capability(device)
        wanted = {"sm_90a"} if (major, minor) == (9, 0) else {"sm_80"} if major == 8 else set()
    found = [m["row"] for m in _core.members(family)
             if m["device"] in wanted and "exact" not in m["flags"] and "hosted" not in m["flags"] and m["row"] != "reference"]
    return list(dict.fromkeys(found))


# ---- cases of the core -----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    n: int = 33  # keys
    nq: int = 0  # queries; 0: n
    i: int = 3
    b: int = 1
    h: int = 4
    d: int = 32
    dtype: str = "bf16"
    tf32: int = 0
    bias: str = "f32"  # or none, bf16, f16
    bias_how: str = "plain"  # swapped: a transposed view; last: [B, N, N, H] in memory; shared: one batch for all
    mask: str = "zero"  # none, zero, fill, subtract, add
    value: float = 0.0
    mask_dtype: str = "bool"
    mask_how: str = "plain"  # shared: one mask for all rows i, stride 0
    keep: str = "random"  # first: first 64 or 128 keys masked; last: only the last kept; some: rows without any key
    gate: int = 0
    lse: int = 0
    layout: str = "plain"  # of q, k, v, gate: heads, ending, packed, wide, offset
    out: str = "plain"  # ending, wide, offset
    data: str = "random"
    seed: int = 1

    def __str__(self):
        changed = [(f.name, getattr(self, f.name)) for f in dataclasses.fields(self) if getattr(self, f.name) != f.default]
        return ",".join(f"{name}={value}" for name, value in changed) or "n=33"

    @property
    def queries(self):
        return self.nq or self.n

    @property
    def must(self):
        """True where a general row has to serve; elsewhere it may refuse by name."""
        return (self.layout in ("plain", "heads", "ending", "packed") and self.out in ("plain", "ending")
                and self.bias_how in ("plain", "swapped", "shared") and self.d in DEPTHS)


# Rows made for one class of calls: whether a case is of that class. They refuse the others by a word of MAY_REFUSE.
NARROW = {
    "cuda_sm90a": lambda case: case.dtype == "bf16" and case.d == 32 and (
        case.mask in ("none", "zero") or case.mask == "subtract" and case.value >= 1e4 or case.mask == "fill" and case.value <= -1e8),
}


def is_outside(case, row: str) -> bool:
    """Whether the row is made for other calls than this one."""
    return isinstance(case, Case) and row in NARROW and not NARROW[row](case)


def must_serve(case, row: str) -> bool:
    """Whether the row has to serve the case; elsewhere it may refuse by name."""
    return case.must and not is_outside(case, row)


def parse(kind, text: str):
    fields = {f.name: f.type for f in dataclasses.fields(kind)}
    read = {"int": int, "str": str, "float": float}
    return kind(**{name: read[fields[name]](value) for name, value in (word.split("=") for word in text.split(",") if word)})


def laid(values: torch.Tensor, how: str) -> torch.Tensor:
    """The same numbers [B, I, N, H, D] behind other strides."""
    b, i, n, h, d = values.shape
    if how == "plain":
        return values.contiguous()
    if how == "heads":
        return values.transpose(2, 3).contiguous().transpose(2, 3)
    if how == "ending":
        return values.transpose(1, 2).contiguous().transpose(1, 2)
    if how == "packed":  # one of q, k, v, gate behind a joint projection
        wider = values.new_full((b, i, n, 3, h, d), 7)
        wider[:, :, :, 1] = values
        return wider[:, :, :, 1]
    if how == "wide":  # the rows of a wider tensor, aligned
        wider = values.new_full((b, i, n, h * d + 8), 7)
        wider[..., : h * d] = values.reshape(b, i, n, h * d)
        return wider[..., : h * d].unflatten(-1, (h, d))
    assert how == "offset", how  # one element into the storage: not even 4 bytes aligned
    storage = values.new_full((values.numel() + 1,), 7)
    storage[1:] = values.reshape(-1)
    return storage[1:].view(values.shape)


def core_values(case: Case, g, device):
    """q, k, v, bias in float32, before rounding; and the scale."""
    b, i, n, nq, h, d = case.b, case.i, case.n, case.queries, case.h, case.d

    def normal(*shape):
        return torch.randn(*shape, generator=g, device=device)

    def pick(low, high, *shape):
        return torch.randint(low, high + 1, shape, generator=g, device=device).float()

    if case.data.startswith("free"):  # see order_free above: q.k * scale is a multiple of 512, the bias one of 128
        width = min(3, d)
        chosen = torch.rand(b, i, nq, h, d, generator=g, device=device).topk(width, -1).indices
        sign = pick(0, 1, b, i, nq, h, width) * 2 - 1
        if case.data == "free_first":  # key 0 ties with the best of all: the first tile knows the maximum
            sign = torch.ones_like(sign)
        q = torch.zeros(b, i, nq, h, d, device=device).scatter_(-1, chosen, 32 * sign)
        k, v = 64 * pick(-1, 1, b, i, n, h, d), pick(-4, 4, b, i, n, h, d)
        bias = -128.0 * pick(0, 2, b, h, nq, n)
        if case.data == "free_first":
            k[:, :, 0], bias[..., 0] = 64, 0
        if case.data == "free_last":
            bias[..., -1] = 8192
        elif case.data == "free_far":  # two biases that f16 could not tell apart once divided by the scale
            bias[..., -1], bias[..., n // 2] = 24576, 32768
        return q, k, v, bias, 0.25
    q, k, v = normal(b, i, nq, h, d), normal(b, i, n, h, d), normal(b, i, n, h, d)
    bias, scale = normal(b, h, nq, n), d**-0.5
    step = torch.arange(n, device=device) / 2
    if case.data == "huge":
        q = q * 50
    elif case.data in ("up", "down"):  # a common offset of every logit
        bias = bias + (200 if case.data == "up" else -200)
    elif case.data == "bias1e4":
        bias = bias + 1e4 * (pick(0, 1, b, h, nq, n) * 2 - 1)
    elif case.data == "ramp":
        bias = bias + step
    elif case.data == "fall":
        bias = bias - step
    elif case.data == "bias_inf":  # keys that the bias drops: half of them for every second query, the first tile too
        bias = torch.where(torch.rand(bias.shape, generator=g, device=device) < 0.1, -math.inf, bias)
        bias[:, :, ::2, : max(n // 2, min(n - 1, 64))] = -math.inf
        bias[..., -1] = 0
    elif case.data.startswith("outlier"):  # the last key outweighs all others, by about e^68 or (far) e^300
        side = torch.ones(d, device=device)
        side[1::2] = -1
        q = q + 2 * side
        k[:, :, -1] = (27 if case.data == "outlier_far" else 6) * side * (32 / d) ** 0.5
        if case.data == "outlier_values":  # large values too: products with weights that were not made small first overflow
            v = v * (2.0**10 if case.dtype == "f16" else 2.0**40)
    elif case.data == "nan":
        q[0, 0, min(5, nq - 1), 0, 0] = math.nan
    else:
        assert case.data == "random", case.data
    return q, k, v, bias, scale


def keep_values(case: Case, g, device):
    b, i, n = case.b, case.i, case.n
    keep = torch.rand(b, i, n, generator=g, device=device) > 0.25
    keep[..., 0] = True
    if case.keep == "first":
        keep[..., : 128 if n > 128 else 64 if n > 64 else n // 2] = False
        keep[..., -1] = True
    elif case.keep == "last":
        keep[:] = False
        keep[..., -1] = True
    elif case.keep == "some":
        keep[:, ::2] = False
    return keep[:, :1].expand(b, i, n) if case.mask_how == "shared" else keep


@dataclasses.dataclass
class Arguments:
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    bias: torch.Tensor | None
    mask: torch.Tensor | None
    gate: torch.Tensor | None
    keep: torch.Tensor | None
    scale: float


def make(case: Case, device: str) -> Arguments:
    g = torch.Generator(device).manual_seed(case.seed * 7919 + case.n)
    dtype = DTYPES[case.dtype]
    q, k, v, bias, scale = core_values(case, g, device)
    gate = torch.randn(q.shape, generator=g, device=device)
    if case.data.startswith("free"):  # sigmoid gives 1/2, 1 and 0 without rounding
        gate = torch.tensor([0.0, 64.0, -200.0], device=device)[torch.randint(0, 3, q.shape, generator=g, device=device)]
    if case.bias == "none":
        bias = None
    else:
        bias = bias.to(DTYPES[case.bias])
        if case.bias_how == "swapped":
            bias = bias.transpose(2, 3).contiguous().transpose(2, 3)
        elif case.bias_how == "last":
            bias = bias.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
        elif case.bias_how == "shared":
            bias = bias[:1].expand(case.b, -1, -1, -1)
    keep = mask = None
    if case.mask != "none":
        keep = keep_values(case, g, device)
        if case.mask == "add":
            low = -math.inf if case.value == -math.inf else -1e9 if case.mask_dtype != "f16" else -1e4
            mask = torch.where(keep, (torch.randn(keep.shape, generator=g, device=device) if not case.data.startswith("free")
                                      else torch.zeros(keep.shape, device=device)), torch.full((), low, device=device))
            if case.mask_how == "shared":
                mask = mask[:, :1].expand(keep.shape)
        else:
            mask = keep
        mask = mask.to(DTYPES[case.mask_dtype])
        mask = mask[:, :1].contiguous().expand(keep.shape) if case.mask_how == "shared" else mask.contiguous()
    q, k, v, gate = (laid(t.to(dtype), case.layout) for t in (q, k, v, gate))
    return Arguments(q, k, v, bias, mask, gate if case.gate else None, keep, scale)


def serve(case: Case, a: Arguments, row: str, out=None, lse=None):
    extra = {"tf32": True} if case.tf32 else {}
    return triattn(a.q, a.k, a.v, a.bias, a.mask, a.gate, scale=a.scale, mask_kind=case.mask, mask_value=case.value, row=row,
                   out=out, lse=lse, **extra)


# ---- truth and stock -------------------------------------------------------------------------------------------------


def truth(case: Case, a: Arguments, rows=slice(None)):
    """(out, lse) in float64 of the rows i given, as triattn.h states them."""
    q, k, v = (t[:, rows].double().transpose(2, 3) for t in (a.q, a.k, a.v))
    s = q @ k.transpose(-1, -2)
    s *= a.scale
    keep = None if a.keep is None else a.keep[:, rows, None, None, :]
    bias = 0 if a.bias is None else a.bias.double()[:, None]
    if case.mask == "subtract":
        s_masked = s + case.value * (keep.double() - 1)
        if case.value >= 1e8:  # a row without keys: f32 absorbs the logits, as in the stock op
            s_masked = torch.where(keep.any(-1, keepdim=True), s_masked, (s.float() - case.value).double())
        s = s_masked
    elif case.mask == "fill":
        s = torch.where(keep, s, case.value)
    elif case.mask == "add":
        s = s + a.mask[:, rows, None, None, :].double()
    s = s + bias
    if case.mask == "subtract" and case.value >= 1e8:
        s = torch.where(keep.any(-1, keepdim=True), s, s.float().double())
    if case.mask == "zero":
        s.masked_fill_(~keep, -math.inf)
    lse = torch.logsumexp(s, -1)
    p = torch.softmax(s, -1)
    del s
    if case.mask == "zero":
        p = torch.where(keep.any(-1, keepdim=True), p, 0.0)
    out = (p @ v).transpose(2, 3)
    if a.gate is not None:
        out = out * torch.sigmoid(a.gate[:, rows].double())
    return out, lse


def product(a: torch.Tensor, b: torch.Tensor, tf32) -> torch.Tensor:
    """a @ b; with tf32 both are rounded to its 10 bits of fraction first, to nearest, whatever kernel torch would take for the shape."""
    if tf32:
        a, b = ((t.contiguous().view(torch.int32) + 0x1000 & ~0x1FFF).view(torch.float32) for t in (a, b))
    return a @ b


def stock(case: Case, a: Arguments, rows=slice(None)):
    """(out, lse) by the torch statements that engines write, every step in the dtype of q."""
    q, k, v = (t[:, rows].transpose(2, 3) for t in (a.q, a.k, a.v))
    s = product(q * a.scale, k.transpose(-1, -2), case.tf32)
    keep = None if a.keep is None else a.keep[:, rows, None, None, :]
    if case.mask == "subtract":
        s = s + (case.value * (keep.float() - 1)).to(s.dtype)
    elif case.mask == "fill":
        s = s.masked_fill(~keep, case.value)
    elif case.mask == "add":
        s = s + a.mask[:, rows, None, None, :].to(s.dtype)
    if a.bias is not None:
        s = s + a.bias.to(s.dtype)[:, None]
    if case.mask == "zero":
        s = s.masked_fill(~keep, -math.inf)
    p = torch.softmax(s, -1)
    if case.mask == "zero":
        p = torch.where(keep.any(-1, keepdim=True), p, 0.0)
    out = product(p, v, case.tf32).transpose(2, 3)
    if a.gate is not None:
        out = out * torch.sigmoid(a.gate[:, rows])
    return out, torch.logsumexp(s.float(), -1)


# ---- comparing -------------------------------------------------------------------------------------------------------


def first(bad: torch.Tensor) -> tuple:
    return tuple(int(x) for x in bad.nonzero()[0])


def compare_bits(got: torch.Tensor, want: torch.Tensor, what: str) -> str | None:
    """None, or the first coordinate, both patterns, their distance and the count. A zero's sign is not compared, nor
    which NaN it is."""
    integer = {2: torch.int16, 4: torch.int32}[got.element_size()]
    same = (got == want) | (got.isnan() & want.isnan())
    if bool(same.all()):
        return None
    at = first(~same)
    bits = [int(t[at].reshape(1).view(integer)[0]) & (1 << 8 * t.element_size()) - 1 for t in (got, want)]
    return (f"{what}: {int((~same).sum())} of {same.numel()} differ, first at {at}: got {float(got[at])!r} ({bits[0]:#x}), wanted "
            f"{float(want[at])!r} ({bits[1]:#x}), {abs(bits[0] - bits[1])} apart")


def errors(got: torch.Tensor, want: torch.Tensor):
    """(largest, rms) of the difference where both are finite; infinities and NaN have to agree, else infinite."""
    got = got.double()
    odd = ~torch.isfinite(want)
    agree = torch.where(want.isnan(), got.isnan(), got == want) | ~odd
    if not bool(agree.all()) or not bool(torch.isfinite(got)[~odd].all()):
        return math.inf, math.inf
    difference = torch.where(odd, 0.0, got - want)
    return float(difference.abs().max()), float(difference.square().mean().sqrt())


def check_bound(got, want, stock_value, dtype, what: str, units: float = 1.0) -> str | None:
    """Root mean square of the error at most 1.5 times the stock form's, the largest (one element's luck) at most 3
    times; below `units` half units of the last place (largest: four times that) of the largest value nothing is asked.
    An lse counts as 1 at least: an error of a logarithm is a relative error of the sum, also where the sum is near 1."""
    largest, rms = errors(got, want)
    if largest == math.inf:
        odd = torch.where(want.isnan(), ~got.isnan(), torch.where(want.isinf(), got.double() != want, ~torch.isfinite(got)))
        at = first(odd)
        return f"{what}: {int(odd.sum())} of {odd.numel()} are not where NaN or infinity belongs, first at {at}: got {float(got[at])!r}, wanted {float(want[at])!r}"
    stock_largest, stock_rms = errors(stock_value, want)
    finite = torch.isfinite(want)
    value = float(want[finite].abs().max()) if bool(finite.any()) else 0.0
    floor = 4 * units * UNIT[dtype] * (max(value, 1.0) if what == "lse" else value)
    if rms <= max(1.5 * stock_rms, 0.25 * floor) and largest <= max(3 * stock_largest, floor):
        return None
    at = first((got.double() - want).abs().nan_to_num(nan=-1.0, posinf=-1.0) >= largest)
    return (f"{what}: rms {rms:.3e}, largest {largest:.3e} at {at} (got {float(got[at])!r}, wanted {float(want[at])!r}); stock: rms "
            f"{stock_rms:.3e}, largest {stock_largest:.3e}; values up to {value:.3g}")


# ---- guarded outputs -------------------------------------------------------------------------------------------------


class Guarded:
    """A poisoned output between guard bytes, of any of the layouts of `laid`."""

    def __init__(self, shape, dtype, device, how="plain"):
        front = 1 if how == "offset" else 0
        if how in ("plain", "offset"):
            stride = torch.empty(shape, device="meta").stride()
        else:
            b, i, n, h, d = shape
            if how == "ending":
                stride = (i * n * h * d, h * d, i * h * d, d, 1)
            else:
                assert how == "wide", how
                stride = (i * n * (h * d + 8), n * (h * d + 8), h * d + 8, d, 1)
        size = torch.empty((), dtype=dtype).element_size()
        span = front + 1 + sum((x - 1) * s for x, s in zip(shape, stride)) if math.prod(shape) else front
        total = 2 * GUARD_BYTES + (span * size + 15) // 16 * 16
        self.storage = torch.full((total,), POISON, dtype=torch.uint8, device=device)
        self.geometry = (tuple(shape), stride, GUARD_BYTES // size + front)
        self.view = self.of(self.storage, dtype)

    def of(self, storage, dtype):
        return storage.view(dtype).as_strided(*self.geometry)

    def refill(self):
        self.storage.fill_(POISON)

    def untouched(self) -> bool:
        return bool((self.storage == POISON).all())

    def check(self, what: str) -> str | None:
        rest = self.storage.clone()
        integer = {2: torch.int16, 4: torch.int32}[self.view.element_size()]
        self.of(rest, integer).fill_(int.from_bytes(bytes([POISON]) * self.view.element_size(), sys.byteorder, signed=True))
        bad = rest != POISON
        if bool(bad.any()):
            at = first(bad)[0] - GUARD_BYTES
            return f"{what}: {int(bad.sum())} bytes outside every element were written, first at byte {at} from the first element"
        return None


# ---- rungs -----------------------------------------------------------------------------------------------------------


class Tally:
    def __init__(self):
        self.ran = 0
        self.refused = collections.Counter()
        self.outside = collections.Counter()  # refused, and the row is made for other calls
        self.ratios = []

    @property
    def count(self):
        return self.ran + sum(self.refused.values()) + sum(self.outside.values())

    def refuse(self, case, row: str, word: str) -> None:
        (self.outside if is_outside(case, row) else self.refused)[word] += 1

    def add(self, other: Tally) -> None:
        self.refused.update(other.refused)
        self.outside.update(other.outside)

    def __str__(self):
        told = f"{self.ran} cases ran"
        for words, what in ((self.refused, "refused"), (self.outside, "outside the row's class")):
            said = ", ".join(f"{count} {word}" for word, count in words.items())
            if said or words is self.refused:
                told += f", {sum(words.values())} {what}{' (' + said + ')' if said else ''}"
        return told


def reproduce(rung: str, case, row: str, device: str) -> str:
    return f"python common/opt_core/tests/gpu/ladder.py {rung} --device {device} --row {row} {case}"


def fail(rung, case, row, device, what):
    raise Red(f"{rung}, {row}: {what}\n  {reproduce(rung, case, row, device)}")


def judge_refusal(rung, case, row: str, device: str, refusal: Refused) -> None:
    """Red unless the row may refuse this case, and by this word."""
    if must_serve(case, row) or refusal.word not in MAY_REFUSE:
        fail(rung, case, row, device, f"refused {refusal.word}: {refusal.detail}")


def outputs(case: Case, device: str):
    dtype = DTYPES[case.dtype]
    out = Guarded((case.b, case.i, case.queries, case.h, case.d), dtype, device, case.out)
    lse = Guarded((case.b, case.i, case.h, case.queries), torch.float32, device) if case.lse else None
    return out, lse


def run_guarded(rung: str, case: Case, row: str, device: str, tally: Tally, a: Arguments):
    """(out, lse) after one call into guarded, poisoned outputs; None when the row refused as it may."""
    out, lse = outputs(case, device)
    try:
        serve(case, a, row, out.view, lse.view if lse else None)
    except Refused as refusal:
        judge_refusal(rung, case, row, device, refusal)
        if not out.untouched() or (lse and not lse.untouched()):
            fail(rung, case, row, device, f"refused {refusal.word}: {refusal.detail}, but an output was written")
        tally.refuse(case, row, refusal.word)
        return None
    for guarded, name in ((out, "out"), (lse, "lse")):
        said = guarded and guarded.check(name)
        if said:
            fail(rung, case, row, device, said)
    tally.ran += 1
    return out.view, lse.view if lse else None


def bound(case: Case, row: str, device: str, tally: Tally) -> None:
    a = make(case, device)
    got = run_guarded("bound", case, row, device, tally, a)
    if got is None:
        return
    (want, want_lse), (stock_out, stock_lse) = truth(case, a), stock(case, a)
    said = check_bound(got[0], want, stock_out, got[0].dtype, "out")
    if said is None and got[1] is not None:
        told = ~want.isnan().any(-1).transpose(2, 3)  # a NaN row's lse is nobody's promise
        said = check_bound(torch.where(told, got[1], 0), torch.where(told, want_lse, 0), torch.where(told, stock_lse, 0), torch.float32, "lse", 4)
    if said:
        fail("bound", case, row, device, said)
    if device != "cpu" and case.data == "random":
        tally.ratios.append(errors(got[0], want)[1] / max(errors(stock_out, want)[1], 1e-300))


def order_free(case: Case, row: str, device: str, tally: Tally) -> None:
    a = make(case, device)
    got = run_guarded("order_free", case, row, device, tally, a)
    if got is None:
        return
    want, want_lse = truth(case, a)
    want = torch.where(want.abs() < 1e-12, 0.0, want)  # a sum of 1/m that float64 did not cancel
    want_bits = want.to(got[0].dtype)
    if case.dtype == "f32":
        distance = (got[0].double() - want).abs()
        said = None if bool((distance <= 2.0**-9).all()) and bool((got[0].isnan() == want.isnan()).all()) else compare_bits(got[0], want_bits, "out")
    else:
        said = compare_bits(got[0], want_bits, "out")
    if said is None and got[1] is not None:
        near = ((got[1].double() - want_lse).abs() <= 2.0**-8) | (got[1].double() == want_lse) | want.isnan().any(-1).transpose(2, 3)
        if not bool(near.all()):
            at = first(~near)
            said = f"lse: {int((~near).sum())} of {near.numel()} are off, first at {at}: got {float(got[1][at])!r}, wanted {float(want_lse[at])!r}"
    if said:
        fail("order_free", case, row, device, said)


def like_reference(case: Case, row: str, device: str, tally: Tally) -> None:
    """order_free against the row `reference` on the CPU, bits, after a copy to the host."""
    a = make(case, device)
    got = run_guarded("like_reference", case, row, device, tally, a)
    if got is None:
        return
    host = Arguments(**{name: t.cpu() if isinstance(t, torch.Tensor) else t for name, t in vars(a).items()})
    want, _ = serve(dataclasses.replace(case, tf32=0), host, "reference")
    said = compare_bits(got[0].cpu(), want, "out")
    if said:
        fail("like_reference", case, row, device, said)


def equal_bits(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A tensor with one truth value: no wait for the device."""
    integer = {2: torch.int16, 4: torch.int32}[a.element_size()]
    return (a.view(integer) == b.view(integer)).all()


def rerun(case: Case, row: str, device: str, tally: Tally, times: int = 1000) -> None:
    """The same bits `times` times: other addresses of inputs and output, two streams, a device busy with products."""
    a = make(case, device)
    is_cuda = device != "cpu"
    out, lse = outputs(case, device)
    lse_of = (lambda x: x.view) if lse else (lambda x: None)
    try:
        serve(case, a, row, out.view, lse_of(lse))
    except Refused as refusal:
        judge_refusal("rerun", case, row, device, refusal)
        tally.refuse(case, row, refusal.word)
        return
    want, want_lse = out.view.clone(), lse.view.clone() if lse else None
    moved = make(case, device)  # the same values elsewhere
    sets = [(x, *outputs(case, device)) for x in (a, moved, a, moved)]
    differs = torch.zeros((), dtype=torch.bool, device=device)
    streams = [torch.cuda.current_stream(), torch.cuda.Stream()] if is_cuda else [None]
    noise, noise_stream = (torch.randn(1024, 1024, device=device), torch.cuda.Stream()) if is_cuda else (None, None)
    if is_cuda:
        torch.cuda.synchronize()
    for turn in range(times):
        x, y, z = sets[turn % len(sets)]
        stream = streams[turn // 16 % len(streams)]
        if is_cuda and turn % 8 == 0:
            with torch.cuda.stream(noise_stream):
                noise @ noise
        with torch.cuda.stream(stream) if is_cuda else contextlib.nullcontext():
            serve(case, x, row, y.view, z.view if z else None)
            differs |= ~equal_bits(y.view, want)
            if z:
                differs |= ~equal_bits(z.view, want_lse)
        if is_cuda and turn % 16 == 15:  # a change of streams: the next one reuses the outputs
            torch.cuda.synchronize()
    tally.ran += times
    if bool(differs):
        fail("rerun", case, row, device, f"bits changed within {times} runs")


def is_rowwise(row: str, device: str) -> bool:
    """Whether every member of the row for this device promises that rows i do not change each other's bits."""
    members = [m for m in _core.members("triattn") if m["row"] == row and (m["device"] == "cpu") == (device == "cpu")]
    return bool(members) and all("rowwise" in m["flags"] for m in members)


def invariance(case: Case, row: str, device: str, tally: Tally) -> None:
    """Rows i alone, in chunks and in another order, and batches apart: the bits of the whole call."""
    a = make(case, device)
    whole, _ = serve(case, a, row)

    def part(batches, rows, what):
        cut = lambda t: None if t is None else t[batches][:, rows]  # noqa: E731
        bias = None if a.bias is None else a.bias[batches]
        got, _ = serve(case, Arguments(cut(a.q), cut(a.k), cut(a.v), bias, cut(a.mask), cut(a.gate), cut(a.keep), a.scale), row)
        said = compare_bits(got, whole[batches][:, rows], what)
        if said:
            fail("invariance", case, row, device, said)

    everything = slice(None)
    for begin, end in ((0, 1), (case.i - 1, case.i), (0, case.i // 2), (case.i // 2, case.i), (1, min(6, case.i))):
        part(everything, slice(begin, end), f"rows {begin}..{end - 1} alone")
    part(everything, torch.arange(case.i - 1, -1, -1, device=device), "rows backwards")
    for batch in range(case.b):
        part(slice(batch, batch + 1), everything, f"batch {batch} alone")
    tally.ran += 1


def refusals(row: str, device: str, tally: Tally) -> None:
    """What no row takes is refused by name or as a bad argument, and nothing is written."""
    case = Case(lse=1)
    a = make(case, device)

    def attempt(expected, changed, out=None, lse=None, **scalars):
        guarded_out, guarded_lse = outputs(case, device)
        arguments = dict(q=a.q, k=a.k, v=a.v, bias=a.bias, mask=a.mask, gate=None) | changed
        options = dict(scale=a.scale, mask_kind="zero", mask_value=0.0) | scalars
        try:
            triattn(**arguments, **options, row=row, out=guarded_out.view if out is None else out, lse=guarded_lse.view if lse is None else lse)
        except Refused as refusal:
            said = refusal.word
        except ValueError:
            said = "ValueError"
        else:
            said = "served"
        if said not in expected:
            raise Red(f"refusals, {row}: {said} for {sorted(changed) or scalars or 'an output'}, expected {expected}")
        if not guarded_out.untouched() or not guarded_lse.untouched():
            raise Red(f"refusals, {row}: an output was written before {sorted(changed) or scalars} was refused")
        tally.ran += 1

    attempt(("dtype",), {"k": a.k.float(), "v": a.v.float()})
    attempt(("dtype",), {"q": a.q.to(torch.float64), "k": a.k.to(torch.float64), "v": a.v.to(torch.float64)})
    attempt(("ValueError",), {"k": a.k[:, :, :-1]})
    attempt(("ValueError",), {"bias": a.bias[..., :-1]})
    attempt(("ValueError",), {"mask": a.mask[..., :-1]})
    attempt(("ValueError",), {}, mask_kind="none")
    attempt(("ValueError",), {}, mask_kind="subtract", mask_value=math.inf)
    attempt(("layout", "ValueError"), {}, out=torch.zeros(1, device=device, dtype=a.q.dtype).expand(a.q.shape))
    attempt(("ValueError",), {}, out=a.q)
    if device != "cpu":
        attempt(("no_device", "ValueError"), {"bias": a.bias.cpu()})
        attempt(("no_device", "ValueError"), {}, out=torch.empty(a.q.shape, dtype=a.q.dtype))
    wide = torch.randn(1, 2, 3, 1, 257, device=device, dtype=torch.bfloat16)
    attempt(("shape",), {"q": wide, "k": wide, "v": wide, "bias": None, "mask": torch.ones(1, 2, 3, device=device)}, out=torch.empty_like(wide),
            lse=torch.empty(1, 2, 1, 3, device=device))


# ---- lists of cases --------------------------------------------------------------------------------------------------


def rows_of(n: int, h: int = 4, budget: float = 1.5e7) -> int:
    """How many rows i fit the budget of float64 logits (the truth's memory), at least 2."""
    return max(2, min(n + 1, 6, int(budget / (h * n * n))))


CLASSES = (("bf16", 0), ("f16", 0), ("f32", 0), ("f32", 1))


def fill_value(dtype: str, choice: int) -> float:
    return (-math.inf, float(torch.finfo(DTYPES[dtype]).min), -1e4)[choice % 3]


def sweep(sizes, data="random") -> list[Case]:
    """Every size in every class of operands, bias in f32 and bf16 in turn, with what changes slowest beside it."""
    found = []
    for index, n in enumerate(sizes):
        for kind, (dtype, tf32) in enumerate(CLASSES):
            for bias in ("f32", "bf16"):
                found.append(Case(n=n, i=rows_of(n), dtype=dtype, tf32=tf32, bias=bias, lse=(index + kind) % 2, gate=(index // 2 + kind) % 2,
                                  bias_how=("plain", "swapped")[index % 2], data=data, seed=index + 1))
    return found


def dialects(sizes, data="random") -> list[Case]:
    """Mask kinds, mask dtypes, heads, widths, batches, layouts and unequal sides, each with a few of the others."""
    found = []
    for n in sizes:
        for dtype, tf32 in CLASSES:
            base = Case(n=n, i=rows_of(n, budget=4e6), dtype=dtype, tf32=tf32, data=data, seed=n)
            r = lambda **change: found.append(dataclasses.replace(base, **change))  # noqa: E731
            r(mask="none"), r(mask="none", bias="none"), r(bias="none"), r(bias="f16"), r(mask="none", bias="bf16", gate=1, lse=1)
            for number, mask_dtype in enumerate(("bool", "u8", "i32", "i64", "f32", "bf16")):
                r(mask_dtype=mask_dtype, mask_how=("plain", "shared")[number % 2])
                r(mask="fill", value=fill_value(dtype, number), mask_dtype=mask_dtype, lse=number % 2)
                r(mask="subtract", value=1e4 if dtype == "f16" else (1e9, 1e6, 1e4)[number % 3], mask_dtype=mask_dtype, gate=number % 2)
            r(mask="add", mask_dtype="f32"), r(mask="add", mask_dtype="bf16", mask_how="shared"), r(mask="add", mask_dtype="f32", value=-math.inf)
            for d in DEPTHS:
                r(d=d), r(d=d, gate=1, lse=1, mask="fill", value=-math.inf, bias="bf16")
            for h in (1, 3, 8):
                r(h=h, bias_how="swapped"), r(h=h, d=64, bias="bf16")
            r(b=2), r(b=2, bias_how="shared", lse=1), r(b=2, bias_how="swapped", bias="bf16", mask="subtract", value=1e4)
            for layout in ("heads", "ending", "packed", "wide", "offset"):
                r(layout=layout, gate=1), r(layout=layout, b=2, bias="bf16", out="ending" if layout == "ending" else "plain")
            for out in ("ending", "wide", "offset"):
                r(out=out, lse=1)
            r(bias_how="last"), r(bias_how="last", bias="bf16")
            r(nq=max(1, n // 2)), r(nq=n + 37, gate=1, lse=1), r(nq=1), r(nq=max(1, n - 1), layout="heads", bias_how="swapped")
            r(i=1), r(i=7, h=1)
    return found


def adversarial(sizes) -> list[Case]:
    found = []
    for n in sizes:
        for dtype, tf32 in CLASSES:
            base = Case(n=n, i=rows_of(n, budget=4e6), dtype=dtype, tf32=tf32, lse=1, seed=n + 3)
            r = lambda **change: found.append(dataclasses.replace(base, **change))  # noqa: E731
            for data in ("huge", "up", "down", "bias1e4", "ramp", "fall", "outlier", "outlier_far", "nan"):
                r(data=data), r(data=data, mask="none", lse=0), r(data=data, bias="bf16", keep="first")
            for keep in ("first", "last", "some"):
                r(keep=keep), r(keep=keep, mask="fill", value=-math.inf), r(keep=keep, mask="fill", value=fill_value(dtype, 1))
                r(keep=keep, mask="subtract", value=1e4 if dtype == "f16" else 1e9), r(keep=keep, mask="add", mask_dtype="f32")
                r(keep=keep, mask="add", mask_dtype="f32", value=-math.inf)
            r(keep="first", data="outlier", d=64), r(keep="some", mask_how="shared")
    return found


def extreme(sizes) -> list[tuple]:
    """(rung, case): corners that no engine feeds on purpose, but that the header does not exclude."""
    found = []
    for n in sizes:
        for dtype, tf32 in CLASSES:
            base = Case(n=n, i=rows_of(n, budget=4e6), dtype=dtype, tf32=tf32, lse=1, seed=n + 5)
            for data in ("bias_inf", "outlier_values"):
                for mask in ("zero", "none"):
                    found.append((bound, dataclasses.replace(base, data=data, mask=mask, keep="random")))
            found.append((order_free, dataclasses.replace(base, data="free_far", mask="none")))
            found.append((bound, dataclasses.replace(base, data="bias_inf", bias="bf16", keep="first")))
    return found


def free(sizes) -> list[Case]:
    """order_free: the same lists, with data whose sums are exact."""
    found = []
    for data in ("free", "free_first", "free_last"):
        found += sweep(sizes, data)
        for case in dialects([n for n in sizes if n in (33, 130, 257)], data):
            # a finite addend that is no multiple of 128 may bring a masked key near a kept one
            if not (case.mask == "fill" and case.value != -math.inf or data == "free_last" and case.mask == "subtract"):
                found.append(case)
        found += [Case(n=n, data=data, keep="some", mask=mask, value=value) for n in (17, 129) for mask, value in (("zero", 0.0), ("fill", -math.inf))]
    return found


def drawn(count: int, seed: int, sizes=SIZES) -> list[Case]:
    """Random corners of the whole space."""
    g = random.Random(seed)
    found = []
    while len(found) < count:
        n = g.choice(sizes)
        dtype, tf32 = g.choice(CLASSES)
        mask = g.choice(("none", "zero", "zero", "fill", "subtract", "add"))
        case = Case(n=n, nq=g.choice((0, 0, 0, 1, max(1, n // 3), n + 5)), i=g.randint(1, rows_of(n, budget=3e6)), b=g.choice((1, 1, 2)), h=g.choice((1, 3, 4, 8)),
                    d=g.choice(DEPTHS), dtype=dtype, tf32=tf32, bias=g.choice(("f32", "bf16", "f16", "none")),
                    bias_how=g.choice(("plain", "swapped", "shared", "last")), mask=mask,
                    value={"fill": fill_value(dtype, g.randrange(3)), "subtract": 1e4 if dtype == "f16" else g.choice((1e9, 1e6, 1e4))}.get(mask, 0.0),
                    mask_dtype=g.choice(("f32", "bf16")) if mask == "add" else g.choice(("bool", "u8", "i32", "i64", "f32", "bf16")),
                    mask_how=g.choice(("plain", "shared")), keep=g.choice(("random", "random", "first", "last")), gate=g.randrange(2), lse=g.randrange(2),
                    layout=g.choice(("plain", "heads", "ending", "packed", "wide")), out=g.choice(("plain", "plain", "ending", "wide")),
                    data=g.choice(("random", "random", "ramp", "outlier", "nan")), seed=g.randrange(1000))
        found.append(case)
    return found


# ---- the module ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ModuleCase:
    n: int = 33
    b: int = 1
    c: int = 128
    h: int = 4
    d: int = 32
    dtype: str = "bf16"
    tf32: int = 0
    weights: str = "same"  # f32: weights in f32 whatever x is
    biased: int = 0
    gate: int = 1
    norm: int = 1
    mask: str = "zero"
    value: float = 0.0
    keep: str = "random"  # some: rows without any key
    residual: int = 1
    ending: int = 0  # x and y with axes 1 and 2 exchanged, as strided views
    untransposed: int = 0
    into: str = "new"  # residual, x: written in place
    seed: int = 1

    __str__ = Case.__str__

    @property
    def must(self):
        """f32 and f16 may be refused; served, they are held against the stock form in that dtype."""
        return self.dtype == "bf16" and self.c == 128 and self.h == 4 and self.d == 32 and self.into == "new"


LINEARS = ("to_q", "to_k", "to_v", "to_bias", "out_proj", "to_gate")


def make_module(case: ModuleCase, device: str) -> dict:
    g = torch.Generator(device).manual_seed(case.seed * 104729 + case.n)
    dtype = DTYPES[case.dtype]
    weight_dtype = torch.float32 if case.weights == "f32" else dtype
    wide = case.h * case.d

    def normal(*shape, scale=1.0, shift=0.0):
        return shift + scale * torch.randn(*shape, generator=g, device=device)

    def pair(tensor):
        return tensor.transpose(1, 2).contiguous().transpose(1, 2) if case.ending else tensor

    a = {"x": pair(normal(case.b, case.n, case.n, case.c).to(dtype)), "heads": case.h, "scale": case.d**-0.5}
    shapes = {"to_q": (wide, case.c), "to_k": (wide, case.c), "to_v": (wide, case.c), "to_bias": (case.h, case.c), "out_proj": (case.c, wide), "to_gate": (wide, case.c)}
    for name, (out, into) in shapes.items():
        weight, offset = normal(out, into, scale=into**-0.5).to(weight_dtype), normal(out, scale=0.3).to(weight_dtype)
        if name != "to_gate" or case.gate:
            a[name] = weight
            if case.biased:
                a[name + "_bias"] = offset
    norm = normal(case.c, scale=0.2, shift=1.0).to(weight_dtype), normal(case.c, scale=0.2).to(weight_dtype)
    if case.norm:
        a["norm_weight"], a["norm_bias"] = norm
    keep = torch.rand(case.b, case.n, case.n, generator=g, device=device) > 0.1
    keep[..., 0] = True
    if case.keep == "some":
        keep[:, ::2] = False
    if case.mask != "none":
        a |= {"mask": pair(keep.to(torch.float32) if case.mask == "subtract" else keep), "mask_kind": case.mask, "mask_value": case.value}
    residual = pair(normal(case.b, case.n, case.n, case.c).to(dtype))
    if case.residual:
        a["residual"] = residual
    if case.untransposed:
        a["bias_untransposed_end"] = True
    return a


def module_statement(a: dict, rows, double: bool, tf32=0):
    """The module for the rows i given, in float64 or by the stock statements in the dtype of x."""
    x, heads = a["x"], a["heads"]
    to = (lambda t: t.double()) if double else (lambda t: t.to(x.dtype))

    def linear(t, name):
        y = product(t, to(a[name]).T, tf32)
        return y + to(a[name + "_bias"]) if name + "_bias" in a else y

    scale = to(a["norm_weight"]) if "norm_weight" in a else None
    shift = to(a["norm_bias"]) if "norm_bias" in a else None
    h = torch.nn.functional.layer_norm(to(x), x.shape[-1:], scale, shift, 1e-5)
    bias = linear(h, "to_bias").permute(0, 3, 1, 2)
    if a.get("bias_untransposed_end"):
        bias = bias.transpose(2, 3)
    h = h[:, rows]
    split = lambda t: t.unflatten(-1, (heads, -1)).transpose(2, 3)  # noqa: E731
    q, k, v = (split(linear(h, name)) for name in ("to_q", "to_k", "to_v"))
    s = product(q * a["scale"], k.transpose(-1, -2), tf32)
    kind, value = a.get("mask_kind", "none"), a.get("mask_value", 0.0)
    keep = None if kind == "none" else a["mask"][:, rows, None, None, :] != 0
    if kind == "subtract":
        s = s + (value * (keep.to(torch.float64 if double else torch.float32) - 1)).to(s.dtype)
        if double and value >= 1e8:
            s = torch.where(keep.any(-1, keepdim=True), s, -value)
    elif kind == "fill":
        s = s.masked_fill(~keep, value)
    s = s + (torch.where(keep.any(-1, keepdim=True), bias[:, None], 0.0) if double and kind == "subtract" and value >= 1e8 else bias[:, None])
    if kind == "zero":
        s = s.masked_fill(~keep, -math.inf)
    p = torch.softmax(s, -1)
    if kind == "zero":
        p = torch.where(keep.any(-1, keepdim=True), p, 0.0)
    o = product(p, v, tf32).transpose(2, 3).flatten(-2)
    if "to_gate" in a:
        o = o * torch.sigmoid(linear(h, "to_gate"))
    y = linear(o, "out_proj")
    return y + to(a["residual"])[:, rows] if "residual" in a else y


def module_bound(case: ModuleCase, row: str, device: str, tally: Tally) -> None:
    a = make_module(case, device)
    rows = torch.arange(case.n, device=device)
    if case.n > 130:
        rows = rows[sorted({0, 1, case.n // 2, case.n - 2, case.n - 1})]
    want, plain = module_statement(a, rows, True), module_statement(a, rows, False, case.tf32)
    dtype = DTYPES[case.dtype]
    guarded = Guarded((*a["x"].shape, 1), dtype, device, "ending" if case.ending else "plain")
    y = guarded.view.squeeze(-1)
    given = dict(a)
    if case.into in ("residual", "x"):
        y.copy_(a[case.into])
        given[case.into] = y
    try:
        triattn_module(**given, row=row, out=y, **({"tf32": True} if case.tf32 else {}))
    except Refused as refusal:
        judge_refusal("module_bound", case, row, device, refusal)
        kept = guarded.untouched() if case.into == "new" else torch.equal(y, a[case.into])
        if not kept:
            fail("module_bound", case, row, device, f"refused {refusal.word}: {refusal.detail}, but the output was written")
        tally.refuse(case, row, refusal.word)
        return
    tally.ran += 1
    said = guarded.check("y") or check_bound(y[:, rows], want, plain, dtype, "y")
    if said:
        fail("module_bound", case, row, device, said)
    if device != "cpu":
        tally.ratios.append(errors(y[:, rows], want)[1] / max(errors(plain, want)[1], 1e-300))


def module_rerun(case: ModuleCase, row: str, device: str, tally: Tally, times: int = 200) -> None:
    a, moved = make_module(case, device), make_module(case, device)
    extra = {"tf32": True} if case.tf32 else {}
    try:
        want = triattn_module(**a, row=row, **extra)[0].clone()
    except Refused as refusal:
        judge_refusal("module_rerun", case, row, device, refusal)
        tally.refuse(case, row, refusal.word)
        return
    differs = torch.zeros((), dtype=torch.bool, device=device)
    side = torch.cuda.Stream() if device != "cpu" else None
    for turn in range(times):
        here = turn // 16 % 2 == 1 and side is not None
        if side is not None and turn % 16 == 0:
            torch.cuda.synchronize()
        with torch.cuda.stream(side) if here else contextlib.nullcontext():
            differs |= ~equal_bits(triattn_module(**(a, moved)[turn % 2], row=row, **extra)[0], want)
    if side is not None:
        torch.cuda.synchronize()
    tally.ran += times
    if bool(differs):
        fail("module_rerun", case, row, device, f"bits changed within {times} runs")


def module_cases(sizes) -> list[ModuleCase]:
    found = []
    for index, n in enumerate(sizes):
        for dtype, tf32 in CLASSES if n <= 257 else CLASSES[:1]:
            base = ModuleCase(n=n, dtype=dtype, tf32=tf32, seed=index + 1)
            r = lambda **change: found.append(dataclasses.replace(base, **change))  # noqa: E731
            r(), r(ending=1, untransposed=index % 2)
            if n not in (17, 33, 100, 129, 130):
                continue
            r(biased=1), r(biased=1, ending=1, residual=0), r(gate=0), r(norm=0), r(residual=0, mask="none")
            r(mask="fill", value=-math.inf), r(mask="subtract", value=1e4 if dtype == "f16" else 1e9), r(untransposed=1, ending=1, biased=1)
            r(keep="some"), r(keep="some", mask="subtract", value=1e4 if dtype == "f16" else 1e9, biased=1)
            r(b=2), r(b=2, ending=1, mask="subtract", value=1e4), r(into="residual"), r(into="x"), r(into="residual", ending=1)
            if dtype != "f32":
                r(weights="f32"), r(weights="f32", biased=1, ending=1)
            r(c=64, h=2, d=32), r(c=256, h=8, d=32), r(c=128, h=8, d=16), r(c=96, h=3, d=48)
    return found


# ---- the command -----------------------------------------------------------------------------------------------------

RUNGS = {"bound": (bound, Case), "order_free": (order_free, Case), "like_reference": (like_reference, Case), "rerun": (rerun, Case), "invariance": (invariance, Case),
         "module_bound": (module_bound, ModuleCase), "module_rerun": (module_rerun, ModuleCase)}


def main() -> int:
    p = argparse.ArgumentParser(description="Runs one case of a rung, as a red test prints it.")
    p.add_argument("rung", choices=RUNGS)
    p.add_argument("case", nargs="+", help="name=value, comma-joined")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    p.add_argument("--row", required=True)
    given = p.parse_args()
    run, kind = RUNGS[given.rung]
    for text in given.case:
        tally = Tally()
        try:
            run(parse(kind, text), given.row, given.device, tally)
        except Red as red:
            print(red)
            return 1
        print(f"{given.rung} {given.row} {text}: holds; {tally}" + (f"; {tally.ratios[0]:.2f} of the stock form's error" if tally.ratios else ""))
    return 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""What is timed: for each family a list of cases with our call, the stock torch form, the best torch peer, and the float64 truth.

A case is built from plain tensors only. Weights are N(0, 1/fan_in), norm affines 1 + 0.1 N, inputs N(0, 1), asymmetric; masks drop
about one key in twenty. `work` is (flop, bytes): the floor of a case is the larger of both over the machine's ceilings.
"""
from __future__ import annotations

import dataclasses
import math
from typing import Callable

import torch
import torch.nn.functional as F


@dataclasses.dataclass
class Case:
    op: str
    form: str
    dtype: str
    shape: dict
    ours: Callable  # row=... -> (tensor, choice)
    stock: Callable  # -> tensor, the engine's own torch form
    peers: dict  # name -> callable
    truth: Callable  # -> float64 tensor
    flop: float
    moved: float  # bytes that must be read and written once


DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


class Maker:
    """Random tensors of one dtype, and the same values in float64."""

    def __init__(self, dtype: str, seed: int = 7):
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype = DTYPES[dtype]

    def normal(self, *shape, scale=1.0, shift=0.0):
        return (shift + scale * torch.randn(*shape, generator=self.generator)).to(self.dtype)

    def linear(self, out, into, bias=True):
        return self.normal(out, into, scale=into**-0.5), self.normal(out, scale=0.1) if bias else None

    def norm(self, c):
        return self.normal(c, scale=0.1, shift=1.0), self.normal(c, scale=0.1)

    def mask(self, *shape):
        return (torch.rand(*shape, generator=self.generator) > 0.05).to(torch.float32)


def wide(value):
    """The same values in float64, through tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return value.double()
    if isinstance(value, (tuple, list)):
        return type(value)(wide(v) for v in value)
    if isinstance(value, dict):
        return {k: wide(v) for k, v in value.items()}
    return value


def ln_case(dtype: str, n: int, c: int) -> Case:
    from opt_core.kernels.ln import ln

    m = Maker(dtype)
    x, (w, b) = m.normal(1, n, n, c), m.norm(c)
    stock = lambda x=x, w=w, b=b: F.layer_norm(x, (c,), w, b, 1e-5)
    return Case("ln", "affine", dtype, {"b": 1, "n": n, "c": c}, lambda row: ln(x, w, b, row=row), stock, {},
                lambda: F.layer_norm(x.double(), (c,), w.double(), b.double(), 1e-5), 8.0 * x.numel(), 2.0 * x.numel() * x.element_size())


def transition_case(dtype: str, n: int, c: int, expansion: int, activation: str) -> Case:
    from opt_core.kernels.transition import transition

    m = Maker(dtype)
    biased = activation == "relu"
    x, norm = m.normal(1, n, n, c), m.norm(c)
    up, down = m.linear(expansion * c, c, biased), m.linear(c, expansion * c, biased)
    gate = m.linear(expansion * c, c, False) if activation == "swiglu" else (None, None)

    def stock(x=x, norm=norm, up=up, gate=gate, down=down):
        h = F.layer_norm(x, (c,), *norm, 1e-5)
        hidden = F.relu(F.linear(h, *up)) if activation == "relu" else F.silu(F.linear(h, *gate)) * F.linear(h, *up)
        return x + F.linear(hidden, *down)

    products = 3 if activation == "swiglu" else 2
    return Case("transition", activation + ("+biased" if biased else "") + "+residual", dtype, {"b": 1, "n": n, "c": c, "d": expansion * c},
                lambda row: transition(x, up[0], down[0], gate[0], *norm, up_bias=up[1], down_bias=down[1], residual=x, activation=activation, row=row),
                stock, {"torch_compile": torch.compile(stock)}, lambda: stock(*wide((x, norm, up, gate, down))),
                2.0 * products * n * n * c * expansion * c, 2.0 * x.numel() * x.element_size())


def trimul_case(dtype: str, n: int, c: int, outgoing: bool, biased: bool) -> Case:
    from opt_core.kernels.trimul import trimul

    m = Maker(dtype)
    x, mask, norm_in, norm_out = m.normal(1, n, n, c), m.mask(1, n, n), m.norm(c), m.norm(c)
    linears = {k: m.linear(c, c, biased) for k in ("a_proj", "a_gate", "b_proj", "b_gate", "out_proj", "out_gate")}

    def stock(x=x, mask=mask, norm_in=norm_in, norm_out=norm_out, w=linears):
        z = F.layer_norm(x, (c,), *norm_in, 1e-5)
        keep = mask.unsqueeze(-1)
        a = keep * torch.sigmoid(F.linear(z, *w["a_gate"])) * F.linear(z, *w["a_proj"])
        b = keep * torch.sigmoid(F.linear(z, *w["b_gate"])) * F.linear(z, *w["b_proj"])
        a, b = a.to(x.dtype), b.to(x.dtype)
        a, b = (a.permute(0, 3, 1, 2), b.permute(0, 3, 2, 1)) if outgoing else (a.permute(0, 3, 2, 1), b.permute(0, 3, 1, 2))
        t = F.layer_norm(torch.matmul(a, b).permute(0, 2, 3, 1), (c,), *norm_out, 1e-5)
        return F.linear(t, *w["out_proj"]) * torch.sigmoid(F.linear(z, *w["out_gate"]))

    weights = {k: v[0] for k, v in linears.items()}
    biases = {k + "_bias": v[1] for k, v in linears.items()}
    narrow = dtype if dtype != "f32" else None  # the stock form rounds what leaves a norm, and both operands
    form = ("biased+" if biased else "") + ("mask+outgoing" if outgoing else "incoming+mask")
    return Case("trimul", form, dtype, {"b": 1, "n": n, "c": c, "d": c},
                lambda row: trimul(x, **weights, **biases, norm_in_weight=norm_in[0], norm_in_bias=norm_in[1], norm_out_weight=norm_out[0],
                                   norm_out_bias=norm_out[1], mask=mask, direction="outgoing" if outgoing else "incoming", product=narrow, norm_round=narrow, row=row),
                stock, {"torch_compile": torch.compile(stock)}, lambda: stock(*wide((x, mask, norm_in, norm_out, linears))),
                2.0 * n * n * c * (6 * c + n), 2.0 * x.numel() * x.element_size())


def attention_inputs(m: Maker, rows: int, n: int, h: int, d: int):
    q, k, v = (m.normal(1, rows, n, h, d) for _ in range(3))
    return q, k, v, m.normal(1, h, n, n).float(), m.mask(1, rows, n)


def triattn_case(dtype: str, n: int, h: int, d: int) -> Case:
    from opt_core.kernels.triattn import triattn

    q, k, v, bias, mask = attention_inputs(Maker(dtype), n, n, h, d)
    bias = bias.to(q.dtype)

    def stock(q=q, k=k, v=v, bias=bias, mask=mask):
        q, k, v = (t.transpose(-2, -3) for t in (q * d**-0.5, k, v))
        s = torch.matmul(q, k.transpose(-1, -2))
        s += (1e9 * (mask - 1))[..., None, None, :].to(s.dtype)
        s += bias.unsqueeze(1)
        return torch.matmul(torch.softmax(s, -1), v).transpose(-2, -3)

    added = (1e9 * (mask - 1))[0, :, None, None, :].to(q.dtype) + bias  # [I, H, N, N]: what the fused op wants to be given

    def sdpa():
        q_, k_, v_ = (t[0].transpose(1, 2) for t in (q, k, v))
        return F.scaled_dot_product_attention(q_, k_, v_, attn_mask=added, scale=d**-0.5).transpose(1, 2)[None]

    size = q.element_size()
    return Case("triattn", "bias+mask_subtract", dtype, {"b": 1, "s": n, "n": n, "h": h, "d": d},
                lambda row: triattn(q, k, v, bias, mask, scale=d**-0.5, mask_kind="subtract", mask_value=1e9, row=row),
                stock, {"torch_sdpa": sdpa}, lambda: stock(*wide((q, k, v, bias, mask))), 4.0 * n**3 * h * d, 4.0 * q.numel() * size + n * n * h * 4)


def triattn_module_case(dtype: str, n: int, c: int, h: int, d: int, ending: bool) -> Case:
    from opt_core.kernels.triattn import triattn_module

    m = Maker(dtype)
    x, mask, norm = m.normal(1, n, n, c), m.mask(1, n, n), m.norm(c)
    w = {k: m.linear(h * d, c, False) for k in ("to_q", "to_k", "to_v")}
    w |= {"to_bias": m.linear(h, c, False), "to_gate": m.linear(h * d, c), "out_proj": m.linear(c, h * d)}

    def stock(x=x, mask=mask, norm=norm, w=w):
        if ending:
            x, mask = x.transpose(1, 2), mask.transpose(1, 2)
        z = F.layer_norm(x, (c,), *norm, 1e-5)
        q, k, v = (F.linear(z, *w[t]).view(*z.shape[:-1], h, d).transpose(-2, -3) for t in ("to_q", "to_k", "to_v"))
        s = torch.matmul(q / math.sqrt(d), k.transpose(-1, -2))
        s += (1e9 * (mask - 1))[..., None, None, :].to(s.dtype)
        s += F.linear(z, *w["to_bias"]).permute(0, 3, 1, 2).unsqueeze(1)
        o = torch.matmul(torch.softmax(s, -1), v).transpose(-2, -3).reshape(*z.shape[:-1], h * d)
        y = F.linear(o * torch.sigmoid(F.linear(z, *w["to_gate"])), *w["out_proj"])
        return y.transpose(1, 2) if ending else y

    def ours(row):
        x_, mask_ = (x.transpose(1, 2), mask.transpose(1, 2)) if ending else (x, mask)
        y, choice = triattn_module(x_, *(w[t][0] for t in ("to_q", "to_k", "to_v", "to_bias", "out_proj", "to_gate")), *norm,
                                   to_gate_bias=w["to_gate"][1], out_proj_bias=w["out_proj"][1], mask=mask_, heads=h, scale=d**-0.5,
                                   mask_kind="subtract", mask_value=1e9, row=row)
        return (y.transpose(1, 2) if ending else y), choice

    return Case("triattn_module", "biased+gate+mask_subtract", dtype, {"b": 1, "n": n, "h": h, "d": d, "c": c}, ours, stock, {},
                lambda: stock(*wide((x, mask, norm, w))), 2.0 * n * n * c * 5 * h * d + 4.0 * n**3 * h * d, 2.0 * x.numel() * x.element_size())


def apb_case(dtype: str, batch: int, n: int, h: int, d: int) -> Case:
    from opt_core.kernels.apb import apb

    m = Maker(dtype)
    q, k, v = (m.normal(batch, n, h, d) for _ in range(3))
    bias, mask = m.normal(1, h, n, n), m.mask(batch, n)

    def stock(q=q, k=k, v=v, bias=bias, mask=mask):
        s = torch.einsum("bihd,bjhd->bhij", q, k) * d**-0.5
        s = s + (1e9 * (mask - 1))[:, None, None, :].to(s.dtype) + bias
        return torch.einsum("bhij,bjhd->bihd", torch.softmax(s, -1), v)

    added = (1e9 * (mask - 1))[:, None, None, :].to(q.dtype) + bias

    def sdpa():
        return F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), attn_mask=added, scale=d**-0.5).transpose(1, 2)

    shared = bias.expand(batch, h, n, n)
    return Case("apb", "mask_subtract+shared_bias" if batch > 1 else "bias+mask_subtract", dtype, {"b": batch, "n": n, "h": h, "d": d},
                lambda row: apb(q, k, v, shared, mask, scale=d**-0.5, mask_kind="subtract", mask_value=1e9, row=row), stock, {"torch_sdpa": sdpa},
                lambda: stock(*wide((q, k, v, bias, mask))), 4.0 * batch * n * n * h * d, 4.0 * q.numel() * q.element_size() + bias.numel() * 4)


def cases(family: str):
    """Builders, so that only one case's tensors exist at a time."""
    for dtype in ("f32", "bf16"):
        if family == "ln":
            for n, c in ((32, 128), (128, 64), (128, 128), (256, 128), (64, 384), (24, 1024)):
                yield lambda n=n, c=c, t=dtype: ln_case(t, n, c)
        elif family == "transition":
            for n in (24, 128, 238, 512):
                for activation in ("relu", "swiglu"):
                    yield lambda n=n, a=activation, t=dtype: transition_case(t, n, 128, 4, a)
            yield lambda t=dtype: transition_case(t, 16, 1024, 4, "relu")
        elif family == "trimul":
            for n in (32, 100, 128, 238, 256, 512):
                for outgoing in (True, False):
                    yield lambda n=n, o=outgoing, t=dtype: trimul_case(t, n, 128, o, True)
            yield lambda t=dtype: trimul_case(t, 128, 128, True, False)
        elif family == "triattn":
            for n in (32, 128, 256, 400):
                yield lambda n=n, t=dtype: triattn_case(t, n, 4, 32)
        elif family == "triattn_module":
            for n in (32, 100, 128, 238, 256, 512):
                for ending in (False, True):
                    yield lambda n=n, e=ending, t=dtype: triattn_module_case(t, n, 128, 4, 32, e)
        elif family == "apb":
            for batch, n, h, d in ((1, 128, 16, 24), (1, 512, 16, 24), (1, 512, 16, 48), (5, 256, 16, 48)):
                yield lambda s=(batch, n, h, d), t=dtype: apb_case(t, *s)


FAMILIES = ("ln", "transition", "trimul", "triattn", "triattn_module", "apb")

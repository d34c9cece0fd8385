# SPDX-License-Identifier: Apache-2.0
"""Triangle attention on a GPU: our rows, the torch form and every peer that can be imported, interleaved in one process.

    python bench/bench.py --device cuda --family triattn           # writes bench/results/<device>-triattn.json
    python bench/bench.py --device cuda --family all --quick       # a few sizes, no peer that tunes itself
    python bench/bench.py --device cuda --family all --dry         # tiny sizes on the CPU: does the script run

The protocol is in README.md. Peers that are not installed are absent; those that are in peers_h200.json are quoted from there, as `recorded`.
"""
from __future__ import annotations

import dataclasses
import gc
import importlib.metadata
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Callable

import torch
import torch.nn.functional as F

ROOT = Path(__file__).resolve().parents[1]
RECORDED = json.loads((ROOT / "bench/peers_h200.json").read_text())
FAMILIES = ("triattn", "triattn_module")
SIZES = (64, 128, 256, 384, 512, 768, 777, 896, 1024, 1536, 2048)
QUICK_SIZES = (256, 512, 777, 1024)
DRY_SIZES = (32, 48)
HEADS, DEPTH, CHANNELS = 4, 32, 128
ROTATE_BYTES = 180e6  # one round over the input sets is three times the L2
GRAPH_BELOW_US = 3000
CHUNK = 128  # rows i at a time in the stock form above 512: the logits would not fit, and engines do the same
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


# ---- clock -----------------------------------------------------------------------------------------------------------


class Clock:
    """Spans of device time: event pairs on a GPU, the host's clock on a CPU (dry runs)."""

    def __init__(self, device: str):
        self.is_cuda = device == "cuda"

    def span(self, call: Callable):
        if not self.is_cuda:
            began = time.perf_counter()
            call()
            return (time.perf_counter() - began) * 1e6
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        return begin, end

    def us(self, span) -> float:
        return span[0].elapsed_time(span[1]) * 1e3 if self.is_cuda else span

    def sync(self) -> None:
        if self.is_cuda:
            torch.cuda.synchronize()


def forget(clock: Clock) -> None:
    gc.collect()
    if clock.is_cuda:
        torch.cuda.empty_cache()


def short(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"[:160]


@dataclasses.dataclass
class Entry:
    """One thing that is timed: `call` on each of `sets` in turn."""

    name: str
    call: Callable
    sets: list
    check: Callable | None = None  # result of the first set -> error
    first_ms: float = 0.0
    extra_mb: float = 0.0
    err: float | None = None
    graph: object = None
    error: str = ""
    graph_us: list = dataclasses.field(default_factory=list)
    eager_us: list = dataclasses.field(default_factory=list)

    def warm(self, clock: Clock) -> None:
        """First call, memory, error, and the graph over all sets where calls are short."""
        clock.sync()
        began = time.perf_counter()
        result = self.call(*self.sets[0])
        clock.sync()
        self.first_ms = (time.perf_counter() - began) * 1e3
        if self.check is not None:
            self.err = self.check(result)
        del result
        if clock.is_cuda:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            result = self.call(*self.sets[0])
            clock.sync()
            kept = result.numel() * result.element_size() if torch.cuda.memory_allocated() > before else 0
            self.extra_mb = (torch.cuda.max_memory_allocated() - before - kept) / 2**20
            del result
        for chosen in self.sets[1:]:
            self.call(*chosen)
        span = clock.span(lambda: self.call(*self.sets[-1]))
        clock.sync()
        self.estimate_us = max(clock.us(span), 1.0)
        if clock.is_cuda and self.estimate_us < GRAPH_BELOW_US:
            self.capture(clock)

    def capture(self, clock: Clock) -> None:
        """All sets in one graph; what cannot be captured is timed by eager calls alone."""
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                for chosen in self.sets:
                    self.call(*chosen)
            graph.replay()
            clock.sync()
            self.graph = graph
        except Exception as error:  # noqa: BLE001
            print(f"    {self.name}: no graph: {short(error)}", flush=True)
            clock.sync()

    @property
    def us(self) -> float:
        return min(statistics.median(t) for t in (self.graph_us, self.eager_us) if t)


def timed(entries: list[Entry], clock: Clock, budget_ms: float, least: int = 5) -> list[Entry]:
    """Rounds over all entries in turn; those that fail carry their error and leave."""
    alive = []
    for entry in entries:
        try:
            entry.warm(clock)
            alive.append(entry)
        except Exception as error:  # noqa: BLE001 a peer that fails carries its error text
            entry.error = short(error)
            entry.graph = None
            print(f"    {entry.name}: {entry.error}", flush=True)
            try:
                clock.sync()
            except Exception:  # noqa: BLE001
                raise SystemExit(f"the device does not answer after {entry.name}: {entry.error}") from error
    round_ms = sum(e.estimate_us * (len(e.sets) * bool(e.graph) + eager_calls(e)) for e in alive) / 1e3
    for turn in range(int(min(60, max(least, budget_ms / max(round_ms, 1e-3))))):
        spans = []
        for e in alive:
            if e.graph is not None:
                spans.append((e.graph_us, len(e.sets), clock.span(e.graph.replay)))
            for k in range(eager_calls(e)):
                chosen = e.sets[(turn + k) % len(e.sets)]
                spans.append((e.eager_us, 1, clock.span(lambda: e.call(*chosen))))  # noqa: B023 called at once
        clock.sync()
        for into, calls, span in spans:
            into.append(clock.us(span) / calls)
    for e in entries:
        e.graph = None
    return alive


def eager_calls(e: Entry) -> int:
    return int(min(8, max(1, 2000 / e.estimate_us)))


def set_count(bytes_of_one: float) -> int:
    return max(1, min(8, math.ceil(ROTATE_BYTES / bytes_of_one)))


def relative(whole, got, want) -> float:
    """Frobenius norm of the difference over that of the truth, on the rows that the truth has; -1 when any element of the whole is not finite."""
    got = got.double()
    return float((got - want).norm() / want.norm()) if bool(torch.isfinite(whole).all()) else -1.0


# ---- peers -----------------------------------------------------------------------------------------------------------


def importable(*names: str) -> dict:
    found = {}
    for name in names:
        try:
            found[name] = __import__(name)
        except Exception as error:  # noqa: BLE001 absent, or broken on this stack
            print(f"  peer {name} is absent: {short(error)}", flush=True)
    return found


class Core:
    """Inputs of one core case in each peer's layout, the truth on some rows i, and the entries."""

    def __init__(self, n: int, device: str, dtype="bf16", d=DEPTH, seed=0):
        g = torch.Generator(device).manual_seed(seed + n)
        self.n, self.d, self.dtype, self.scale = n, d, dtype, d**-0.5
        t = DTYPES[dtype]
        size = torch.empty((), dtype=t).element_size()
        keep = torch.rand(n, device=device, generator=g) > 0.05
        keep[0] = True
        self.mask = keep.expand(1, n, n).contiguous()
        self.sets = []
        for _ in range(set_count(4 * n * n * HEADS * d * size)):
            q, k, v = (torch.randn(1, n, n, HEADS, d, device=device, generator=g, dtype=t) for _ in range(3))
            bias = torch.randn(1, HEADS, n, n, device=device, generator=g).bfloat16().float()
            self.sets.append((q, k, v, bias))
        self.rows = torch.tensor(sorted({0, 1, n - 1, *range(0, n, max(1, n // 12))}), device=device)
        self.want = self.truth()

    def truth(self):
        q, k, v, bias = self.sets[0]
        parts = []
        for rows in self.rows.split(max(1, int(2**27 / (HEADS * self.n**2)))):
            q_, k_, v_ = (t[0, rows].double().transpose(1, 2) for t in (q, k, v))
            s = q_ @ k_.transpose(-1, -2) * self.scale + bias[0].double()
            s.masked_fill_(~self.mask[0, rows, None, None, :], -math.inf)
            parts.append((torch.softmax(s, -1) @ v_).transpose(1, 2))
        return torch.cat(parts)

    def check(self, pick=lambda o: o[0]):
        return lambda result: relative(result, pick(result)[self.rows], self.want)

    def with_bias(self, bias: str):
        t = DTYPES[bias]
        return [(q, k, v, b if b.dtype == t else b.to(t)) for q, k, v, b in self.sets]

    def laid(self, change, bias: str):
        return [(*(change(t) for t in (q, k, v)), b) for q, k, v, b in self.with_bias(bias)]

    # ours

    def ours(self, row: str, bias: str, tf32=False):
        from opt_core.kernels.triattn import triattn

        out = torch.empty_like(self.sets[0][0])
        extra = {"tf32": True} if tf32 else {}
        choice = {}

        def call(q, k, v, b):
            result, choice["member"] = triattn(q, k, v, b, self.mask, scale=self.scale, mask_kind="zero", row=row, out=out, **extra)
            return result

        entry = Entry(f"{row}/{bias}", call, self.with_bias(bias), self.check())
        entry.choice, entry.row, entry.bias = choice, row, bias
        return entry

    # the torch form that engines write

    def stock_name(self):
        return "torch_eager" if self.n <= 512 else f"torch_eager_chunk{CHUNK}"

    def stock(self, tf32=False):
        chunk = self.n if self.n <= 512 else CHUNK

        def call(q, k, v, b):
            with tf32_products(tf32):
                out = torch.empty_like(q)
                for i in range(0, self.n, chunk):
                    q_, k_, v_ = (t[0, i : i + chunk].transpose(1, 2) for t in (q, k, v))
                    s = (q_ * self.scale) @ k_.transpose(-1, -2)
                    s += b
                    s.masked_fill_(~self.mask[0, i : i + chunk, None, None, :], -math.inf)
                    out[0, i : i + chunk] = (torch.softmax(s, -1) @ v_).transpose(1, 2)
            return out

        return Entry("stock", call, self.with_bias(self.dtype), self.check())

    # peers

    def flex(self):
        from torch.nn.attention.flex_attention import flex_attention

        keep = self.mask[0]

        def statement(q, k, v, b):
            pair = b[0]
            return flex_attention(q[0], k[0], v[0], score_mod=lambda s, r, h, i, j: torch.where(keep[r, j], s + pair[h, i, j], -math.inf), scale=self.scale)

        return Entry("flex_compiled", torch.compile(statement, dynamic=False), self.laid(heads_first, self.dtype), self.check(lambda o: o.transpose(1, 2)))

    def cuequivariance(self, library, name="cuequivariance", tf32=False):
        mask = self.mask.view(1, self.n, 1, 1, self.n)

        def call(q, k, v, b):
            with tf32_products(tf32):
                return library.triangle_attention(q, k, v, b[:, None], mask, self.scale)

        return Entry(name, call, self.laid(heads_first, "f32"), self.check(lambda o: o[0].transpose(1, 2)))

    def trifast(self, library):
        dropped = ~self.mask
        sets = self.laid(lambda t: t.permute(0, 3, 1, 2, 4).contiguous(), self.dtype)
        return Entry("trifast", lambda q, k, v, b: library.triangle_attention(q, k, v, b, dropped), sets, self.check(lambda o: o[0].permute(1, 2, 0, 3)))

    def sdpa(self, name: str):
        """The combined mask [N, H, N, N] is built outside the timed call."""
        from torch.nn.attention import SDPBackend, sdpa_kernel

        backend = {"sdpa_mem_efficient": SDPBackend.EFFICIENT_ATTENTION, "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION}[name]
        both = torch.zeros(self.n, 1, 1, self.n, device=self.mask.device, dtype=DTYPES[self.dtype])
        both = both.masked_fill_(~self.mask[0, :, None, None, :], -math.inf) + self.sets[0][3].to(both.dtype)

        def call(q, k, v, b):
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q[0], k[0], v[0], attn_mask=both, scale=self.scale)

        return Entry(name, call, self.laid(heads_first, self.dtype)[:1], self.check(lambda o: o.transpose(1, 2)))


def heads_first(t):
    return t.transpose(2, 3).contiguous()


class tf32_products:  # noqa: N801 a context, cheap enough to sit inside a timed call
    def __init__(self, on):
        self.on = on

    def __enter__(self):
        self.was = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = self.on

    def __exit__(self, *_):
        torch.backends.cuda.matmul.allow_tf32 = self.was


# ---- the module --------------------------------------------------------------------------------------------------------


class Module:
    """LayerNorm to residual, C = 128, one key mask for all rows; weights that bf16 holds exactly."""

    def __init__(self, n: int, device: str, ending=False, seed=0):
        g = torch.Generator(device).manual_seed(seed + n)
        self.n, self.ending = n, ending
        normal = lambda *shape: torch.randn(*shape, device=device, generator=g)  # noqa: E731
        wide = HEADS * DEPTH
        shapes = {"to_q": (wide, CHANNELS), "to_k": (wide, CHANNELS), "to_v": (wide, CHANNELS), "to_bias": (HEADS, CHANNELS), "out_proj": (CHANNELS, wide), "to_gate": (wide, CHANNELS)}
        self.w = {name: (normal(*shape) / shape[1] ** 0.5).bfloat16() for name, shape in shapes.items()}
        self.w |= {"norm_weight": (1 + 0.1 * normal(CHANNELS)).bfloat16(), "norm_bias": (0.1 * normal(CHANNELS)).bfloat16()}
        keep = torch.rand(n, device=device, generator=g) > 0.05
        keep[0] = True
        self.mask = keep.expand(1, n, n).contiguous()
        self.sets = [(normal(1, n, n, CHANNELS).bfloat16(),) for _ in range(set_count(4 * n * n * CHANNELS))]
        self.rows = torch.tensor(sorted({0, 1, n - 1, *range(0, n, max(1, n // 8))}), device=device)
        self.want = self.statement(self.view(self.sets[0][0]), self.rows, torch.float64)

    def view(self, x):
        return x.transpose(1, 2) if self.ending else x

    def statement(self, x, rows, dtype):
        """x + update for the rows i given, in `dtype` throughout."""
        w = {name: t.to(dtype) for name, t in self.w.items()}
        h = F.layer_norm(x.to(dtype), (CHANNELS,), w["norm_weight"], w["norm_bias"])
        bias = F.linear(h, w["to_bias"]).permute(0, 3, 1, 2)
        parts = []
        for some in rows.split(max(1, int(2**27 / (HEADS * self.n**2))) if dtype == torch.float64 else CHUNK if self.n > 512 else self.n):
            part = h[:, some]
            q, k, v = (F.linear(part, w[name]).unflatten(-1, (HEADS, DEPTH)).transpose(2, 3) for name in ("to_q", "to_k", "to_v"))
            s = (q * DEPTH**-0.5) @ k.transpose(-1, -2)
            s += bias[:, None]
            s.masked_fill_(~self.mask[:, some, None, None, :], -math.inf)
            o = (torch.softmax(s, -1) @ v).transpose(2, 3).flatten(-2)
            parts.append(x[:, some] + F.linear(o * torch.sigmoid(F.linear(part, w["to_gate"])), w["out_proj"]))
        return torch.cat(parts, 1)

    def check(self):
        return lambda result: relative(result, self.view(result)[:, self.rows], self.want)

    def stock(self):
        every = torch.arange(self.n, device=self.mask.device)
        return Entry("stock", lambda x: self.view(self.statement(self.view(x), every, x.dtype)), self.sets, self.check())

    def with_core(self, library):
        mask = self.mask.view(1, self.n, 1, 1, self.n)

        def call(x):
            x, w, n = self.view(x), self.w, self.n
            h = F.layer_norm(x, (CHANNELS,), w["norm_weight"], w["norm_bias"])
            q, k, v = (F.linear(h, w[name]).view(1, n, n, HEADS, DEPTH).transpose(2, 3) for name in ("to_q", "to_k", "to_v"))
            bias = F.linear(h, w["to_bias"]).permute(0, 3, 1, 2)[:, None].float()
            o = library.triangle_attention(q, k, v, bias, mask, DEPTH**-0.5).transpose(2, 3).reshape(1, n, n, HEADS * DEPTH)
            return self.view(x + F.linear(o * torch.sigmoid(F.linear(h, w["to_gate"])), w["out_proj"]))

        return Entry("torch_cuequivariance_core", call, self.sets, self.check())

    def ours(self, row: str):
        from opt_core.kernels.triattn import triattn_module

        out, choice = torch.empty_like(self.sets[0][0]), {}

        def call(x):
            x_ = self.view(x)
            result, choice["member"] = triattn_module(x_, **self.w, mask=self.mask, residual=x_, heads=HEADS, scale=DEPTH**-0.5, mask_kind="zero", row=row, out=self.view(out))
            return out

        entry = Entry(row, call, self.sets, self.check())
        entry.choice, entry.row = choice, row
        return entry


# ---- rows of the result ------------------------------------------------------------------------------------------------


def core_floor_us(n: int, d: int, size: int, bias_size: int) -> float:
    """The largest of products, exponentials and bytes over the ceilings; f32 operands by the TF32 rate."""
    c = RECORDED["ceilings"]
    rate = c["bf16_tflops"] if size == 2 else c["tf32_tflops"]
    moved = 4 * n * n * HEADS * d * size + HEADS * n * n * bias_size + n * n
    return max(4 * n**3 * HEADS * d / rate / 1e6, n**3 * HEADS / c["exp_gops"] / 1e3, moved / c["copy_gbs"] / 1e3)


def module_floor_us(n: int) -> float:
    """The same for the whole module: x read and written once, every product at the peak."""
    c, wide = RECORDED["ceilings"], HEADS * DEPTH
    flop = 2 * n * n * CHANNELS * (5 * wide + HEADS) + 4 * n**3 * wide
    return max(flop / c["bf16_tflops"] / 1e6, n**3 * HEADS / c["exp_gops"] / 1e3, 4 * n * n * CHANNELS / c["copy_gbs"] / 1e3)


def rounded(value, digits=1):
    return None if value is None else round(value, digits)


class Report:
    """The rows of one family, written after every case: a run that is cut keeps what it measured."""

    def __init__(self, family: str, args, content: dict):
        self.family, self.args, self.content, self.rows = family, args, content, []

    def add(self, entries: list[Entry], form: str, dtype: str, shape: dict, floor_us: Callable, recorded: dict, stock_name: str, **more) -> None:
        stock = next((e for e in entries if e.name == "stock" and e.eager_us), None)
        peers = {stock_name if e.name == "stock" else e.name: e.error or round(e.us, 1) for e in entries if not hasattr(e, "choice")}
        peer_errors = {e.name: float(f"{e.err:.3g}") for e in entries if e.err is not None and not hasattr(e, "choice") and e.name != "stock"}
        for e in entries:
            if not hasattr(e, "choice"):
                continue
            bias = {"bias": e.bias} if hasattr(e, "bias") else {}
            row = {"op": self.family, "form": form, "dtype": dtype, "shape": shape, **bias, "row": e.row}
            if e.error:
                row |= {"error": e.error}
            else:
                row |= {"member": e.choice["member"][2], "us": rounded(e.us, 2), "us_graph": rounded(statistics.median(e.graph_us), 2) if e.graph_us else None,
                        "us_eager": rounded(statistics.median(e.eager_us), 2), "floor_us": rounded(floor_us(e), 2), "err": e.err,
                        "stock_err": stock.err if stock else None, "ratio": rounded(stock.us / e.us, 3) if stock else None, "n": len(e.eager_us),
                        "extra_mb": rounded(e.extra_mb, 2), "first_ms": rounded(e.first_ms, 2)}
            row |= {"stock": stock_name, "peers": peers, "peer_errors": peer_errors} | more
            if recorded:
                row |= {"recorded": recorded, "recorded_from": RECORDED["peers_from"]}
            self.rows.append(row)
        print("  " + f"{self.family} {form} {dtype} {shape}: " + "  ".join(f"{e.name} {e.us:.1f}" for e in entries if not e.error), flush=True)
        self.write()

    def write(self) -> None:
        folder = Path(self.args.results or ROOT / "bench/results")
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{device_word(self.args)}-{self.family}.json"
        lines = ",\n  ".join(json.dumps(r) for r in self.rows)
        draft = path.with_suffix(".tmp")
        draft.write_text(json.dumps(self.content | {"seconds": round(time.time() - STARTED, 1)}, indent=1)[:-2] + f',\n "rows": [\n  {lines}\n ]\n}}\n')
        draft.rename(path)
        self.path = path


STARTED = time.time()


def device_word(args) -> str:
    if args.dry:
        return "dry"
    name = torch.cuda.get_device_name().lower().removeprefix("nvidia").strip()
    return name.split()[0].replace("/", "-") + ("-quick" if args.quick else "")


def version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def birth(args) -> dict:
    stack = {"python": sys.version.split()[0], "torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    stack |= {name: version(name) for name in ("triton", "cuequivariance-torch", "cuequivariance-ops-torch-cu13", "trifast", "opt-core") if version(name)}
    content = {"schema": 1, "date": time.strftime("%Y-%m-%d"), "device": "dry run on a CPU" if args.dry else torch.cuda.get_device_name(), "driver": "none", "stack": stack,
               "command": args.command, "commit": args.commit or commit_here(), "ceilings": dict(RECORDED["ceilings"])}
    if args.dry:
        return content
    query = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.draw,power.limit,temperature.gpu,memory.total,ecc.mode.current"
    done = subprocess.run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], capture_output=True, text=True)
    values = dict(zip(query.split(","), (v.strip() for v in done.stdout.splitlines()[0].split(",")))) if done.returncode == 0 and done.stdout else {}
    content["driver"] = values.pop("driver_version", "unknown")
    content["clocks"] = values
    content["ceilings"] |= ceilings()
    content["ceilings_quoted"] = ["tf32_tflops", "exp_gops"]
    return content


def commit_here() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def ceilings() -> dict:
    """What this device reaches now: a copy of 2 GB, a product of 8192^3."""
    clock = Clock("cuda")

    def median(call):
        for _ in range(3):
            call()
        spans = [clock.span(call) for _ in range(10)]
        clock.sync()
        return statistics.median(clock.us(s) for s in spans)

    x = torch.randn(2**30, device="cuda", dtype=torch.bfloat16)
    y = torch.empty_like(x)
    copy = 4 * x.numel() / median(lambda: y.copy_(x)) / 1e3
    del x, y
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product = 2 * 8192**3 / median(lambda: a @ b) / 1e6
    forget(clock)
    return {"copy_gbs": round(copy), "bf16_tflops": round(product)}


# ---- what is run -------------------------------------------------------------------------------------------------------


def rows_of(family: str, args) -> list[str]:
    sys.path.insert(0, str(ROOT / "common/opt_core/tests/gpu"))
    import ladder

    rows = ladder.rows_here(family, args.where)
    return [r for r in rows if r in args.rows.split(",")] if args.rows else rows


def core_entries(c: Core, rows, libraries, args, biases, sdpa=False) -> list[Entry]:
    """Peers' entries are built one by one: one that cannot be built is told and left out."""
    entries = [c.ours(row, bias) for row in rows for bias in biases] + [c.stock()]
    makers = []
    if not args.dry and not args.no_peers:
        makers.append(c.flex)
        if "cuequivariance_torch" in libraries:
            makers.append(lambda: c.cuequivariance(libraries["cuequivariance_torch"]))
        if "trifast" in libraries and c.dtype == "bf16" and c.d == DEPTH:
            makers.append(lambda: c.trifast(libraries["trifast"]))
    if sdpa:
        makers += [lambda name=name: c.sdpa(name) for name in ("sdpa_mem_efficient", "sdpa_cudnn")]
    for maker in makers:
        try:
            entries.append(maker())
        except Exception as error:  # noqa: BLE001
            print("    " + short(error), flush=True)
    return entries


def late(args) -> bool:
    return time.time() - STARTED > args.deadline


def bench_core(args, content) -> Report:
    report, clock = Report("triattn", args, content), Clock(args.where)
    rows = rows_of("triattn", args)
    libraries = importable(*([] if args.dry or args.quick or args.no_peers else ["cuequivariance_torch", "trifast"]))
    sizes = args.sizes or (DRY_SIZES if args.dry else QUICK_SIZES if args.quick else SIZES)

    def case(n, dtype="bf16", d=DEPTH, biases=("f32", "bf16"), sdpa=False):
        if late(args):
            print(f"  skipped: N = {n} {dtype} d = {d}, past the deadline", flush=True)
            return
        c = Core(n, args.where, dtype, d)
        entries = core_entries(c, rows, libraries, args, biases, sdpa)
        timed(entries, clock, args.budget)
        size = DTYPES[dtype].itemsize
        recorded = RECORDED["triattn"].get(str(n), {}) if dtype == "bf16" and d == DEPTH else {}
        report.add(entries, "bias+mask_zero", dtype, {"b": 1, "s": n, "n": n, "h": HEADS, "d": d}, lambda e: core_floor_us(n, d, size, 4 if e.bias == "f32" else 2), recorded, c.stock_name())
        del c, entries
        forget(clock)

    def case_f32(n):
        if late(args):
            return
        for tf32 in (True, False):
            c = Core(n, args.where, "f32")
            entries = [c.ours(row, "f32", tf32) for row in rows] + [c.stock(tf32)]
            word = "tf32" if tf32 else "f32"
            if "cuequivariance_torch" in libraries:
                entries.append(c.cuequivariance(libraries["cuequivariance_torch"], "cuequivariance_" + word, tf32))
            timed(entries, clock, args.budget)
            recorded = {k: v for k, v in RECORDED["triattn_f32"].get(str(n), {}).items() if k.endswith("_" + word)}
            report.add(entries, "bias+mask_zero" + ("+tf32" if tf32 else ""), "f32", {"b": 1, "s": n, "n": n, "h": HEADS, "d": DEPTH}, lambda e: core_floor_us(n, DEPTH, 4, 4), recorded, c.stock_name())
            del c, entries
            forget(clock)

    for n in sizes:
        case(n, sdpa=not args.quick and not args.no_peers and n in (256, 512, 1024) or args.dry)
    if not args.quick:
        for n in DRY_SIZES[:1] if args.dry else args.sizes or (64, 256, 512, 1024):
            case_f32(n)
            case(n, "f16", biases=("f32",))
        for d in (16, 64, 128):
            for n in DRY_SIZES[:1] if args.dry else args.sizes or (256, 1024):
                case(n, d=d, biases=("f32",))
    return report


def bench_module(args, content) -> Report:
    report, clock = Report("triattn_module", args, content), Clock(args.where)
    rows = rows_of("triattn_module", args)
    libraries = importable(*([] if args.dry or args.quick or args.no_peers else ["cuequivariance_torch"]))
    sizes = args.sizes or (DRY_SIZES if args.dry else QUICK_SIZES if args.quick else SIZES)
    for n in sizes:
        for ending in (False, True) if n in (512, 1024) or args.dry else (False,):
            if late(args):
                print(f"  skipped: N = {n}, past the deadline", flush=True)
                continue
            m = Module(n, args.where, ending)
            entries = [m.ours(row) for row in rows] + [m.stock()]
            if "cuequivariance_torch" in libraries and not ending:
                entries.append(m.with_core(libraries["cuequivariance_torch"]))
            timed(entries, clock, args.budget)
            report.add(entries, "gate+mask_zero+residual", "bf16", {"b": 1, "n": n, "h": HEADS, "d": DEPTH, "c": CHANNELS}, lambda e: module_floor_us(n),
                       {} if ending else RECORDED["triattn_module"].get(str(n), {}), "torch_eager" if n <= 512 else f"torch_eager_chunk{CHUNK}", node="ending" if ending else "starting")
            del m, entries
            forget(clock)
    return report


FIRST = """
import sys, time
import torch
torch.zeros(1, device="cuda"); torch.cuda.synchronize()
from opt_core import torch_glue
from opt_core.kernels.triattn import triattn
q, k, v = (torch.randn(1, 512, 512, 4, 32).bfloat16().cuda() for _ in range(3))
bias, mask = torch.randn(1, 4, 512, 512).cuda(), torch.ones(1, 512, 512, dtype=torch.bool).cuda()
torch.cuda.synchronize()
t = time.perf_counter()
with torch.no_grad():
    triattn(q, k, v, bias, mask, scale=32**-0.5, mask_kind="zero", row=sys.argv[1])
torch.cuda.synchronize()
print((time.perf_counter() - t) * 1e3)
"""


def first_calls(rows: list[str]) -> dict:
    """Milliseconds of the first call in a fresh process after torch's own start, N = 512."""
    found = {}
    for row in rows:
        done = subprocess.run([sys.executable, "-c", FIRST, row], capture_output=True, text=True)
        found[row] = round(float(done.stdout.split()[-1]), 1) if done.returncode == 0 else done.stderr.strip().splitlines()[-1][:160]
    return found


# ---- the table at the end ------------------------------------------------------------------------------------------------


def fastest_peer(row: dict) -> tuple[str, float]:
    """Among those timed in this run and those quoted; the torch form is no peer."""
    times = {f"{name} (recorded)": us for name, us in row.get("recorded", {}).items()} | {name: us for name, us in row["peers"].items() if isinstance(us, float)}
    times = {name: us for name, us in times.items() if not name.startswith("torch_eager")} or times
    name = min(times, key=times.get)
    return name, times[name]


def table(report: Report) -> None:
    print(f"\n{report.family}: {report.path}")
    print(f"{'form':24} {'dtype':5} {'N':>5} {'D':>3} {'bias':4} {'row':15} {'us':>9} {'eager':>9} {'floor':>8} {'x':>5} {'fastest peer':>34} {'ratio':>6} {'stock':>7} {'err':>8} {'stock':>8} {'MB':>6}")
    for r in report.rows:
        head = f"{r['form']:24} {r['dtype']:5} {r['shape']['n']:5} {r['shape']['d']:3} {r.get('bias', '-'):4} {r['row']:15}"
        if "error" in r:
            print(f"{head} {r['error']}")
            continue
        name, us = fastest_peer(r)
        print(f"{head} {r['us']:9.1f} {r['us_eager']:9.1f} {r['floor_us']:8.1f} {r['us'] / r['floor_us']:5.2f} {name + f' {us:.0f}':>34} {us / r['us']:6.2f} {r['ratio'] or 0:7.1f} "
              f"{r['err']:8.1e} {r['stock_err'] or 0:8.1e} {r['extra_mb']:6.1f}")
    for line in at_777(report.rows):
        print(line)


def at_777(rows: list[dict]) -> list[str]:
    """N = 777 against the straight line between 768 and 896."""
    lines = []
    for row, bias in dict.fromkeys((r["row"], r.get("bias")) for r in rows):
        us = {r["shape"]["n"]: r["us"] for r in rows if r["row"] == row and r.get("bias") == bias and r["dtype"] == "bf16" and r["shape"]["d"] == DEPTH and "us" in r and r.get("node") != "ending"}
        if {768, 777, 896} <= us.keys():
            line = us[768] + (us[896] - us[768]) * 9 / 128
            lines.append(f"N = 777, {row} bias {bias or '-'}: {us[777]:.1f} us, {us[777] / line - 1:+.1%} of the line between 768 and 896")
    return lines


def bench(families: list[str], args) -> None:
    """Called by bench.py."""
    torch.backends.cuda.matmul.allow_tf32 = False
    args.where = "cpu" if args.dry else "cuda"
    args.sizes = tuple(int(x) for x in args.sizes.split(",")) if args.sizes else ()
    args.budget = 20 if args.dry else 150 if args.quick else 300
    if not args.dry and not torch.cuda.is_available():
        raise SystemExit("[bench] no GPU that torch can use")
    if not args.dry:
        from torch import _dynamo

        _dynamo.config.recompile_limit = 64
    content = birth(args)
    if not args.dry and not args.quick and "triattn" in families:
        content["first_call_ms"] = first_calls(rows_of("triattn", args))
        print(f"  first call in a fresh process, ms: {content['first_call_ms']}", flush=True)
    reports = []
    with torch.no_grad():
        for family in families:
            reports.append({"triattn": bench_core, "triattn_module": bench_module}[family](args, content))
    for report in reports:
        if report.rows:
            table(report)
    print(f"{time.time() - STARTED:.0f} s")
    sys.stdout.flush()
    if not args.dry:
        os._exit(0)  # compiled peers leave worker processes that are slow to end

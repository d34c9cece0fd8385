# SPDX-License-Identifier: Apache-2.0
"""Every row of triangle attention once in each form, at the sizes given (33 and 130): what tools/sanitize_gpu.sh runs.

    compute-sanitizer --tool memcheck python common/opt_core/tests/gpu/sanitize_triattn.py 33 130

Inputs are made on the CPU and copied, so that few kernels beside ours are instrumented. Ends with status 1 when a result
is not finite where it should be or a row refuses what it has to serve; what the sanitizer finds is its own to say.
"""
import dataclasses
import sys

import torch

import ladder
from ladder import Case, ModuleCase

from opt_core import Refused
from opt_core.kernels.triattn import triattn_module


def forms(n: int) -> list[Case]:
    """Each class of operands, width, mask kind, layout and optional part at least once."""
    base = Case(n=n, i=3)
    changes = [dict(lse=1, gate=1), dict(bias="bf16", mask="fill", value=float("-inf"), mask_dtype="f32"), dict(bias="none", mask="none"),
               dict(dtype="f16", bias="f16", mask="subtract", value=1e4, mask_dtype="bf16", gate=1), dict(dtype="f32", lse=1), dict(dtype="f32", tf32=1, mask="add", mask_dtype="f32"),
               dict(layout="ending", out="ending", bias_how="swapped"), dict(layout="packed", d=64, lse=1), dict(layout="heads", d=16, h=3), dict(d=128, gate=1), dict(d=24), dict(d=48, dtype="f16"),
               dict(nq=n - 17, b=2, bias_how="shared", lse=1), dict(data="outlier_far", lse=1), dict(keep="some", mask_dtype="i64"), dict(dtype="f32", d=128, gate=1), dict(layout="offset", out="offset")]
    return [dataclasses.replace(base, **change) for change in changes]


def module_forms(n: int) -> list[ModuleCase]:
    base = ModuleCase(n=n)
    changes = [dict(), dict(biased=1, ending=1, untransposed=1), dict(dtype="f16", gate=0, residual=0), dict(dtype="f32", biased=1), dict(dtype="f32", tf32=1, ending=1),
               dict(b=2, weights="f32", mask="subtract", value=1e9), dict(into="residual", norm=0)]
    return [dataclasses.replace(base, **change) for change in changes]


def to_device(tensor, device):
    """A copy with the same strides; what lies between the elements is copied too."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    flat = tensor.as_strided((span,), (1,), tensor.storage_offset()).to(device)
    return flat.as_strided(tensor.shape, tensor.stride())


def main() -> int:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = [int(word) for word in sys.argv[1:]] or [33, 130]
    ran, refused, outside, wrong = 0, [], 0, []

    def attempt(name, case, call):
        nonlocal ran, outside
        try:
            result = call()
        except Refused as refusal:
            if ladder.must_serve(case, name) or refusal.word not in ladder.MAY_REFUSE:
                wrong.append(f"refused what it has to serve: {name} {case}: {refusal}")
            elif ladder.is_outside(case, name):
                outside += 1
            else:
                refused.append(f"{name} {case}: {refusal}")
            return
        ran += 1
        if not bool(torch.isfinite(result.cpu()).all()):
            wrong.append(f"not finite: {name} {case}")

    with torch.no_grad():
        for n in sizes:
            for row in ladder.rows_here("triattn", device):
                for case in forms(n):
                    a = ladder.Arguments(**{name: to_device(value, device) for name, value in vars(ladder.make(case, "cpu")).items()})
                    shape, dtype = (case.b, case.i, case.queries, case.h, case.d), ladder.DTYPES[case.dtype]
                    pattern = torch.empty(case.b, case.queries, case.i, case.h, case.d, dtype=dtype, device=device).transpose(1, 2) if case.out == "ending" else None
                    out = pattern if pattern is not None else torch.empty(shape, dtype=dtype, device=device)
                    lse = torch.empty(case.b, case.i, case.h, case.queries, device=device) if case.lse else None
                    attempt(row, case, lambda: ladder.serve(case, a, row, out, lse)[0])  # noqa: B023
            for row in ladder.rows_here("triattn_module", device):
                for case in module_forms(n):
                    a = {name: to_device(value, device) for name, value in ladder.make_module(case, "cpu").items()}
                    into = {"out": a["residual"]} if case.into == "residual" else {}
                    extra = {"tf32": True} if case.tf32 else {}
                    attempt(row, case, lambda: triattn_module(**a, **into, **extra, row=row)[0])  # noqa: B023
    for line in refused:
        print("refused:", line)
    for line in wrong:
        print(line)
    print(f"sanitize_triattn: {ran} calls ran, {len(refused)} refused, {outside} outside the row's class, {len(wrong)} wrong, sizes {sizes}")
    return 1 if wrong or not ran else 0


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""Which machines a lever's table is for, as its adapter asks before it patches."""

import types

import pytest

from opt_core import Refused, _core, kit

STACK = "torch-2.11.0+amd+avx512"


class Core:
    """The core's answers: cells by device, CUDA devices by compute capability."""

    Refused = _core.Refused

    def __init__(self, cells, devices=()):
        self._cells = [dict(tier=tier, device=device, stacks=stacks) for tier, device, stacks in cells]
        self._devices, self.asked, self.isa = devices, 0, "avx512"

    def cells(self, family):
        return self._cells

    def cpu_isa(self):
        return self.isa

    def device_below(self, device):
        return _core.device_below(device)

    def cuda_facts(self, ordinal):
        self.asked += 1
        if ordinal < len(self._devices):
            return {"sm": self._devices[ordinal]}
        raise Refused("no_device", f"{len(self._devices)} devices, asked for ordinal {ordinal}")


def ask(monkeypatch, core, mode="fast", stack=STACK):
    monkeypatch.setattr(kit, "_core", core)
    lever = types.SimpleNamespace(family="ln", mode=mode)
    lever.refuse = lambda word, detail: kit.Lever.refuse(lever, word, detail)
    kit.Lever.expect_cells(lever, stack)


def test_cells_of_this_processor_leave_the_driver_alone(monkeypatch):
    core = Core([("fast", "cpu-avx512", []), ("fast", "sm_90a", [])], devices=(90,))
    ask(monkeypatch, core)
    assert core.asked == 0


def test_cells_of_the_device_below_count(monkeypatch):
    core = Core([("fast", "cpu-avx512", [])])
    core.isa = "avx512_bf16"
    ask(monkeypatch, core)
    core = Core([("fast", "cpu-avx2", [])])
    core.isa = "avx512_bf16"
    with pytest.raises(Refused, match="^uncovered_cell:ln:fast.cpu-avx512_bf16$"):
        ask(monkeypatch, core)


def test_a_table_without_cuda_cells_leaves_the_driver_alone(monkeypatch):
    core = Core([("fast", "cpu-avx2", []), ("exact", "sm_90a", [])], devices=(90,))
    with pytest.raises(Refused, match="^uncovered_cell:ln:fast.cpu-avx512$"):
        ask(monkeypatch, core)
    assert core.asked == 0


@pytest.mark.parametrize(
    "devices,served", [((), False), ((80,), False), ((80, 90), True), ((90,), True), ((86,), True)]
)
def test_cells_of_a_cuda_device_that_is_here(monkeypatch, devices, served):
    core = Core([("fast", "sm_90a", []), ("fast", "sm_86", [])], devices)
    if served:
        ask(monkeypatch, core)
    else:
        with pytest.raises(Refused, match="^uncovered_cell:"):
            ask(monkeypatch, core)
    assert core.asked == len(devices) + 1


def test_exact_looks_at_the_stacks_of_the_cells_that_are_for_this_machine(monkeypatch):
    cells = [("exact", "cpu-avx512", ["other"]), ("exact", "sm_90a", [STACK])]
    with pytest.raises(Refused, match="^proof:"):
        ask(monkeypatch, Core(cells, (90,)), "exact")
    ask(monkeypatch, Core(cells, (90,)), "exact", "other")

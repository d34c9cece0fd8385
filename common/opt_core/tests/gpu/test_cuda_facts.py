# SPDX-License-Identifier: Apache-2.0
"""On a machine with a GPU: the driver's facts agree with torch's, nothing is initialised by asking, CUDA tensors are refused by name."""
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
from opt_core import Refused, _core  # noqa: E402

if not torch.cuda.is_available():
    pytest.skip("no NVIDIA GPU on this machine", allow_module_level=True)


@pytest.mark.parametrize("ordinal", range(torch.cuda.device_count()))
def test_facts_agree_with_torch(ordinal):
    facts, properties = _core.cuda_facts(ordinal), torch.cuda.get_device_properties(ordinal)
    assert facts["name"] == properties.name
    assert facts["sm"] == properties.major * 10 + properties.minor
    assert facts["memory_bytes"] >= properties.total_memory > 0.9 * facts["memory_bytes"]
    assert facts["uuid"].removeprefix("GPU-") == str(properties.uuid)


def test_one_past_the_last_device():
    with pytest.raises(Refused) as refusal:
        _core.cuda_facts(torch.cuda.device_count())
    assert refusal.value.word == "no_device"


def test_visible_devices_are_respected():
    program = "from opt_core import Refused, _core\ntry: print(_core.cuda_facts(0)['name'])\nexcept Refused as r: print(r)"
    hidden = subprocess.run([sys.executable, "-c", program], env=dict(os.environ, CUDA_VISIBLE_DEVICES=""), capture_output=True, text=True)
    assert hidden.stdout.startswith("no_device:"), hidden.stdout + hidden.stderr
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert shown.stdout.strip() == torch.cuda.get_device_properties(0).name


def test_asking_creates_no_context():
    """Another process's memory stays as it was: the facts come without a context (a context holds hundreds of MB)."""
    before = torch.cuda.mem_get_info(0)[0]
    for _ in range(100):
        _core.cuda_facts(0)
    program = "import time\nfrom opt_core import _core\n_core.cuda_facts(0)\nprint('ready', flush=True)\ntime.sleep(20)"
    asker = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert asker.stdout.readline() == "ready\n"
        assert before - torch.cuda.mem_get_info(0)[0] < 64 << 20
    finally:
        asker.kill()
        asker.wait()


@pytest.mark.parametrize("family", ["ln", "transition"])
def test_cuda_tensors_are_refused_by_name(family):
    from opt_core.kernels.ln import ln
    from opt_core.kernels.transition import transition

    x = torch.ones(2, 3, 8, device="cuda")
    calls = {"ln": lambda: ln(x), "transition": lambda: transition(x, x[0].new_ones(16, 8), x[0].new_ones(8, 16), activation="relu")}
    with pytest.raises(Refused) as refusal:
        calls[family]()
    assert refusal.value.word == "no_device" and "cuda:0" in refusal.value.detail


def test_gate_on_this_device():
    sm = _core.cuda_facts(0)["sm"]
    _core.gate_arch(sm, f"sm_{sm}a")
    with pytest.raises(Refused) as refusal:
        _core.gate_arch(sm, f"sm_{sm + 1}a")
    assert refusal.value.word == "arch"

# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors on their way through the extension, with a table of the test's own and a driver without a device.

What a GPU would do with the launch is tests/gpu's matter; here: which stream, whose memory, when it goes back, and
every refusal on the way.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from opt_core import _core

HERE = pathlib.Path(__file__).resolve().parent
FAKE = HERE.parent / "unit" / "fake_cuda.c"

PROGRAM = """
import ctypes, json, sys
sys.path.insert(0, sys.argv[1])
import exchange_table as x
from exchange_table import BF16, BOOL, CPU, CUDA, F32, Tensor
from opt_core import _core

x.streams.update({0: 0x1230, 4: 0x4560})
names = _core.call_fields("triattn")[0]
row = next(m["row"] for m in _core.members("triattn") if m["device"] == "sm_90a")

def call(device=(CUDA, 0), row=row, **change):
    q = Tensor(1, 3, 64, 2, 32, device=device)
    given = dict(q=q, k=q, v=q, bias=Tensor(1, 2, 64, 64, element=F32, device=device), gate=None, lse=None,
                 mask=Tensor(1, 3, 64, element=BOOL, device=device),
                 out=Tensor(1, 3, 64, 2, 32, device=device, at=0x5000_0000_0000)) | change
    x.calls.clear()
    try:
        return _core.serve("triattn", "fast", tuple(given[name] for name in names), (1.0, "zero", 0.0, False), row)
    except Exception as error:
        return type(error).__name__ + " " + str(error)

def ln(device):
    tensor = Tensor(2, 3, element=F32, device=device)
    try:
        return _core.serve("ln", "fast", (tensor, tensor, None, None), (1e-5, False, False, None))
    except Exception as error:
        return type(error).__name__ + " " + str(error)

said = {"row": row}
x.bind()
for device in (0, 4):
    said[f"device {device}"] = call((CUDA, device))
    said[f"calls {device}"] = list(x.calls)
try:
    launch = ctypes.CDLL("libcuda.so.1").fake_last_launch
    launch.restype = ctypes.c_void_p
    # struct fake_launch: grid, block, shared_bytes, cluster, two ints, then the stream
    said["stream"] = ctypes.c_void_p.from_address(launch() + 40).value
except Exception as error:
    said["stream"] = str(error)
said["other arch"] = call((CUDA, 2))
said["no such device"] = call((CUDA, 9))
said["no such ordinal"] = call((CUDA, -1))
said["another kind"] = call((8, 0))
said["host row"] = call(row="cpu")
said["host tensors"] = call((CPU, 0))
said["two devices"] = call(k=Tensor(1, 3, 64, 2, 32, device=(CUDA, 1)))
said["host mask"] = call(mask=Tensor(1, 3, 64, element=BOOL, device=(CPU, 0)))
said["no row"] = call(row="nope")
said["family"] = ln((CUDA, 0))
x.failure = (b"MemoryError", b"no room\\nmore")
said["no memory"] = call()
said["no memory calls"] = list(x.calls)
x.failure = (b"RuntimeError", b"odd")
said["odd"] = call()
x.failure = None
x.bind(minor=1)
said["old table"] = call()
x.bind(minor=3)
said["again"] = call()
said["held"] = len([key for key in x._alive if not isinstance(key, tuple)])
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    if not any(m["device"] == "sm_90a" for m in _core.members("triattn")):
        pytest.skip("this build has no sm_90a member")
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("no C compiler for the driver without a device")
    folder = tmp_path_factory.mktemp("driver")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", folder / "libcuda.so.1", FAKE, "-lpthread"],
        check=True,
    )
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(HERE)],
        env={**os.environ, "LD_LIBRARY_PATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout)


def is_served(answer):
    """A build without cubins names that, after everything that is asked of torch."""
    return isinstance(answer, list) or answer.startswith("Refused no_prebuilt:")


@pytest.mark.parametrize("device", [0, 4])
def test_the_tensors_device_names_the_stream_and_the_memory(said, device):
    assert is_served(said[f"device {device}"]), said
    stream, *rest = said[f"calls {device}"]
    assert stream == ["stream", 2, device]
    if rest:  # a row without scratch asks for none
        (what, kind, ordinal, code, bits, lanes, shape), (release, owner) = rest
        assert (what, kind, ordinal, code, bits, lanes) == ("allocate", 2, device, 1, 8, 1)
        assert len(shape) == 1 and shape[0] > 0 and release == "release"


def test_the_launch_is_on_that_stream(said):
    if not isinstance(said["device 4"], list):
        pytest.skip(said["device 4"])
    assert said["stream"] == 0x4560


def test_refusals_on_the_way(said):
    row = said["row"]
    assert said["no such device"].startswith("Refused no_device:8 devices")
    for key, device in (("no such ordinal", "2:-1"), ("another kind", "8:0")):
        assert said[key] == f"Refused no_device:tensors[0] (q) is on DLPack device {device}, rows run on cpu and cuda"
    assert said["host row"] == "Refused no_device:tensors[0] (q) is a cuda:0 tensor, row cpu of triattn runs on cpu"
    assert said["host tensors"].startswith(f"Refused no_device:tensors[0] (q) is a cpu tensor, row {row} of triattn runs")
    assert said["two devices"] == "Refused no_device:tensors[1] (k) is on cuda:1, tensors[0] (q) on cuda:0"
    assert said["host mask"] == "Refused no_device:tensors[4] (mask) is on cpu, tensors[0] (q) on cuda:0"
    assert said["no row"] == "ValueError triattn has no row 'nope'"
    assert said["family"] == "Refused no_device:tensors[0] (x) is a cuda:0 tensor, every row of ln runs on cpu"
    assert is_served(said["other arch"]) or said["other arch"] == f"Refused arch:row {row} has no member for sm_86"


def test_memory_and_tables(said):
    if [word[0] for word in said["no memory calls"]] == ["stream"]:
        pytest.skip("the row takes no scratch")
    assert said["no memory"] == "MemoryError scratch: no room"
    assert said["odd"] == "RuntimeError scratch: RuntimeError: odd"
    assert said["held"] == 0


def test_a_table_without_streams_is_refused(said):
    assert said["old table"] == (
        "Refused pin:torch's exchange table is DLPack 1.1, streams and an allocator come with 1.2"
    )
    assert is_served(said["again"])

# SPDX-License-Identifier: Apache-2.0
"""An exchange table and tensors made of ctypes: what torch gives the core, without torch and without a GPU.

`bind()` hands the table to the core for the rest of the process. `calls` lists what the core asked of it.
"""

import ctypes

from opt_core import _core


class DlTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class Managed(ctypes.Structure):
    pass


RELEASE = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
Managed._fields_ = [
    ("major", ctypes.c_uint32),
    ("minor", ctypes.c_uint32),
    ("owner", ctypes.c_void_p),
    ("release", RELEASE),
    ("flags", ctypes.c_uint64),
    ("tensor", DlTensor),
]
REPORT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)
ALLOCATE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(DlTensor), ctypes.POINTER(ctypes.POINTER(Managed)), ctypes.c_void_p, REPORT
)
BORROW = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DlTensor))
STREAM = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))


class Table(ctypes.Structure):
    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("previous", ctypes.c_void_p),
        ("allocate", ALLOCATE),
        ("from_object", ctypes.c_void_p),
        ("to_object", ctypes.c_void_p),
        ("borrow", BORROW),
        ("stream", STREAM),
    ]


BF16, F32, BOOL = (4, 16), (2, 32), (6, 8)  # element codes and bits
CPU, CUDA = 1, 2


class Tensor:
    """Names memory that is never touched: `at` is its address."""

    __torch_dispatch__ = None

    @classmethod
    def __torch_function__(cls, *arguments):
        raise AssertionError("it names memory and computes nothing")

    def __init__(self, *shape, element=BF16, device=(CUDA, 0), at=0x7000_0000_0000):
        self.element, self.device, self.at = element, device, at
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        steps, step = [], 1
        for size in reversed(shape):
            steps.append(step)
            step *= size
        self.strides = (ctypes.c_int64 * len(shape))(*reversed(steps))

    def is_neg(self):
        return False


class Parameter(Tensor):
    pass


calls = []
streams = {}  # device: CUstream
failure = None  # (kind, message) of the next allocation
scratch_at = 0x6000_0000_0000
_alive = {}


@BORROW
def borrow(tensor, out):
    t = out[0]
    t.data, t.byte_offset = tensor.at, 0
    t.device_type, t.device_id = tensor.device
    t.code, t.bits = tensor.element
    t.lanes, t.rank, t.shape, t.strides = 1, len(tensor.shape), tensor.shape, tensor.strides
    return 0


@RELEASE
def release(managed):
    calls.append(("release", managed[0].owner))
    _alive.pop(managed[0].owner)


@ALLOCATE
def allocate(prototype, out, context, report):
    p = prototype[0]
    calls.append(("allocate", p.device_type, p.device_id, p.code, p.bits, p.lanes, [p.shape[i] for i in range(p.rank)]))
    if failure:
        report(context, *failure)
        return -1
    managed = Managed(1, 3, len(_alive) + 1, release, 0, p)
    managed.tensor.data, managed.tensor.byte_offset = scratch_at - 256, 256
    _alive[managed.owner] = managed
    out[0] = ctypes.pointer(managed)
    return 0


@STREAM
def stream(device_type, device_id, out):
    calls.append(("stream", device_type, device_id))
    out[0] = streams.get(device_id, 0)
    return 0


def bind(minor=3):
    table = Table(1, minor, None, allocate, None, None, borrow, stream)
    _alive[("table", minor)] = table  # for ever
    new = ctypes.pythonapi.PyCapsule_New
    new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    _core.bind_torch(new(ctypes.addressof(table), b"dlpack_exchange_api", None), Tensor, Parameter)

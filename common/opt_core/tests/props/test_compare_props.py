# SPDX-License-Identifier: Apache-2.0
"""`opt_core compare` against a model in Python: what numpy and json wrote, changed at one place or at many."""
import importlib.util
import json
import math
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

np = pytest.importorskip("numpy")
CORE = pathlib.Path(__file__).parents[2]
SETTINGS = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
executed = {"arrays": 0, "json": 0, "text": 0, "safetensors": 0}


def find_program():
    if os.environ.get("OPT_CORE_CLI"):
        return os.environ["OPT_CORE_CLI"]
    spec = importlib.util.spec_from_file_location("opt_core_main", CORE / "opt_core" / "__main__.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.program() or shutil.which("opt_core")


PROGRAM = find_program()
pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no opt_core program: set OPT_CORE_CLI or install the package")


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as path:
        yield pathlib.Path(path)


def compare(a, b, *words):
    done = subprocess.run([PROGRAM, "compare", "--json", *words, a, b], capture_output=True, text=True, timeout=60)
    result = json.loads(done.stdout)
    assert done.returncode == (0 if result["verdict"] in ("equal", "within") else 1)
    return result


def model(a, b, absolute, relative):
    """Verdict and count of a pair of arrays of one type, from the definitions in docs/compare.md."""
    worst, count = "equal", 0
    same_bits = a.view(np.uint8).reshape(a.size, a.itemsize) == b.view(np.uint8).reshape(b.size, b.itemsize)
    for i, (x, y) in enumerate(zip(a.tolist(), b.tolist())):
        if same_bits[i].all():
            continue
        if isinstance(x, float) and (math.isnan(x) or math.isnan(y)):
            near = math.isnan(x) and math.isnan(y)
        elif isinstance(x, float) and (math.isinf(x) or math.isinf(y)):
            near = x == y
        else:
            near = abs(x - y) <= absolute + relative * abs(x)
        if near and (absolute or relative):
            worst = max(worst, "within", key=("equal", "within", "different").index)
        else:
            worst, count = "different", count + 1
    return worst, count


DTYPES = ("<f8", ">f8", "<f4", ">f4", "<f2", "<i8", ">i4", "<i2", "|i1", "<u8", ">u2", "|u1", "|b1")


@st.composite
def array_pairs(draw):
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(st.sampled_from(((), (0,), (1,), (7,), (3, 4), (2, 3, 2), (4, 1, 3), (2, 0))))
    size = int(np.prod(shape)) * dtype.itemsize
    raw = bytearray(draw(st.binary(min_size=size, max_size=size)))
    if dtype.kind == "b":
        raw = bytearray(byte & 1 for byte in raw)
    other = bytearray(raw)
    for at in draw(st.lists(st.integers(0, max(size - 1, 0)), max_size=3)) if size else ():
        other[at] = draw(st.integers(0, 1 if dtype.kind == "b" else 255))
    return np.frombuffer(bytes(raw), dtype).reshape(shape), np.frombuffer(bytes(other), dtype).reshape(shape)


@SETTINGS
@given(pair=array_pairs(), fortran=st.booleans(), zipped=st.booleans(), tolerance=st.sampled_from(((0, 0), (0.5, 0), (0, 1e-3), (1e4, 0.1))))
def test_arrays_against_the_model(folder, pair, fortran, zipped, tolerance):
    a, b = pair
    stored = np.asfortranarray(b) if fortran and b.ndim else b  # it would make one axis of none
    ending = "npz" if zipped else "npy"
    for name, array, save in (("a", a, np.savez), ("b", stored, np.savez_compressed)):
        if zipped:
            save(folder / f"{name}.npz", array=array)
        else:
            np.save(folder / f"{name}.npy", array)
    result = compare(folder / f"a.{ending}", folder / f"b.{ending}", f"--abs={tolerance[0]}", f"--rel={tolerance[1]}")
    verdict, count = model(np.atleast_1d(a).ravel(), np.atleast_1d(b).ravel(), *tolerance)
    assert (result["verdict"], result["differing"], result["numbers"]) == (verdict, count, a.size)
    executed["arrays"] += 1


numbers = st.one_of(st.floats(width=64), st.integers(-2**63, 2**63 - 1))
documents = st.recursive(
    st.one_of(numbers, st.booleans(), st.none(), st.text(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text("abcé._[]*", max_size=3), inner, max_size=4)), max_leaves=12)


def count_numbers(value):
    if isinstance(value, dict):
        return sum(map(count_numbers, value.values()))
    if isinstance(value, list):
        return sum(map(count_numbers, value))
    return int(isinstance(value, (int, float)) and not isinstance(value, bool))


@SETTINGS
@given(document=documents, indent=st.sampled_from((None, 2)))
def test_json_is_equal_to_itself_written_another_way(folder, document, indent):
    (folder / "a.json").write_text(json.dumps(document))
    (folder / "b.json").write_text(json.dumps(document, indent=indent, ensure_ascii=False), encoding="utf-8")
    result = compare(folder / "a.json", folder / "b.json")
    assert result["verdict"] == "equal" and result["numbers"] == count_numbers(document)
    executed["json"] += 1


@SETTINGS
@given(values=st.lists(st.floats(width=64), min_size=1, max_size=8), at=st.integers(0, 7), new=st.floats(width=64))
def test_one_changed_number_in_text_is_found_where_it_is(folder, values, at, new):
    other = list(values)
    other[at % len(values)] = new
    for name, row in (("a", values), ("b", other)):
        (folder / f"{name}.json").write_text(json.dumps({"k": row}))
        (folder / f"{name}.txt").write_text("".join(f"k = {value!r}\n" for value in row))
    same = struct.pack("<d", values[at % len(values)]) == struct.pack("<d", new)
    same = same or (math.isnan(values[at % len(values)]) and math.isnan(new))  # text has one NaN
    for ending, where in (("json", f"k[{at % len(values)}]"), ("txt", f"text line {at % len(values) + 1}")):
        result = compare(folder / f"a.{ending}", folder / f"b.{ending}")
        assert result["verdict"] == ("equal" if same else "different")
        assert [item["field"] for item in result["differences"]] == ([] if same else [where])
        assert result["differing"] == (0 if same else 1)
    executed["text"] += 1


@SETTINGS
@given(raw=st.binary(min_size=8, max_size=8), other=st.binary(min_size=8, max_size=8),
       dtype=st.sampled_from(("F64", "F32", "F16", "BF16", "I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8")))
def test_safetensors_count_their_numbers(folder, raw, other, dtype):
    width = int("".join(filter(str.isdigit, dtype))) // 8
    for name, data in (("a", raw), ("b", other)):
        header = json.dumps({"t": {"dtype": dtype, "shape": [8 // width], "data_offsets": [0, 8]}}).encode()
        (folder / f"{name}.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + data)
    result = compare(folder / "a.safetensors", folder / "b.safetensors")
    differing = sum(raw[i:i + width] != other[i:i + width] for i in range(0, 8, width))
    assert (result["numbers"], result["differing"]) == (8 // width, differing)
    assert (result["verdict"] == "equal") == (differing == 0)
    executed["safetensors"] += 1


def test_the_cases_ran():
    assert all(count >= 20 for count in executed.values()), executed

# SPDX-License-Identifier: Apache-2.0
"""The cubins of the CUDA members: what is committed about them, what the build refuses, what the library refuses.

What needs nvcc 13.0.88 is skipped without it and says so; what compares committed files with each other runs anywhere.
"""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest
from conftest import CORE, REPOSITORY

from opt_core import Refused, _core

sys.path.insert(0, str(CORE))
import build_prebuilt as tool  # noqa: E402

TOOL = CORE / "build_prebuilt.py"
KERNELS = CORE / "opt_core/kernels"
FAMILIES = sorted({path.parents[1].name for path in KERNELS.glob("*/members/*.cu")})

HEAD = "// SPDX-License-Identifier: Apache-2.0\n// cubin: {arches}\n"
GOOD = """
#include "toy.h"
static __device__ float table[4] = {1, 2, 3, FOURTH};
static __device__ __noinline__ float scaled(float x, int i) { return x * table[i & 3]; }
extern "C" __global__ void __launch_bounds__(128) toy_scale(float *out, const float *in) {
  __shared__ float tile[128];
  tile[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = scaled(tile[127 - threadIdx.x], threadIdx.x);
}
"""
# 64 values live across a barrier, 32 registers
SPILL = """
extern "C" __global__ void __launch_bounds__(1024, 2) toy_spill(float *out, const float *in) {
  float a[64];
#pragma unroll
  for (int i = 0; i < 64; i++) a[i] = in[threadIdx.x + i * 1024];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; i++) out[threadIdx.x + i * 1024] = a[i] * a[(i + 1) & 63];
}
"""
STACK = """
extern "C" __global__ void __launch_bounds__(128) toy_stack(float *out, int k) {
  float a[64];
#pragma unroll 1
  for (int i = 0; i < 64; i++) a[(i * k) & 63] = out[i];
  out[threadIdx.x] = a[k & 63];
}
"""
# No cap on the registers at entry: ptxas cannot tell what a warpgroup gives back.
SETMAXNREG = """
extern "C" __global__ void toy_roles(float *out) {
  if (threadIdx.x < 128) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
  else asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
  out[threadIdx.x] = 1;
}
"""
ATOMIC = """
extern "C" __global__ void __launch_bounds__(128) toy_sum(float *out, unsigned *count) {
  atomicAdd(count, 1u);
  atomicAdd(out, 1.0f);
}
"""
MANGLED = "__global__ void __launch_bounds__(128) toy_name(float *out) { *out = 1; }\n"
UNBOUND = 'extern "C" __global__ void toy_free(float *out) { *out = 1; }\n'
WARNING = 'extern "C" __global__ void __launch_bounds__(128) toy_unused(float *out) { int nothing; *out = 1; }\n'


def has_nvcc():
    try:
        return bool(tool.find_nvcc())
    except tool.Failed:
        return False


needs_nvcc = pytest.mark.skipif(not has_nvcc(), reason=f"no nvcc {tool.VERSION} on this machine: nothing can be compiled and compared")


def run(*arguments, **variables):
    return subprocess.run([sys.executable, TOOL, *map(str, arguments)], capture_output=True, text=True, timeout=900,
                          env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"} | variables)


def family_folder(root, text, arches="sm_90a", name="native", family="toy", fourth="4"):
    """A tree of families with one source in it."""
    members = root / family / "members"
    members.mkdir(parents=True, exist_ok=True)
    (members / f"{name}.cu").write_text(HEAD.format(arches=arches) + text)
    (members / "toy.h").write_text(f"#define FOURTH {fourth}\n")
    return root


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def refused(call, word, text):
    with pytest.raises(Refused) as caught:
        call()
    assert caught.value.word == word and text in str(caught.value), str(caught.value)


# ---- what is committed -----------------------------------------------------------------------------------------------


def test_index_and_sources_belong_together():
    """A family has an index exactly when it has CUDA sources."""
    for name in (tool.INDEX, tool.RECORD):
        assert sorted(path.parent.name for path in KERNELS.glob(f"*/{name}")) == FAMILIES, name


@pytest.mark.parametrize("folder", sorted(path.parent.name for path in KERNELS.glob("*/members")))
def test_each_module_has_its_host_part(folder):
    """<module>.cu, <module>.c and a line in cuda_modules.inc: a binary that nothing can launch is not built."""
    modules = sorted(path.stem for path in (KERNELS / folder / "members").glob("*.cu"))
    assert all((KERNELS / folder / f"members/{module}.c").is_file() for module in modules)
    listed = re.findall(r"^OC_CUDA_MODULE\((\w+)\)", (KERNELS / folder / "cuda_modules.inc").read_text(), re.M)
    assert sorted(listed) == modules


@pytest.mark.parametrize("family", FAMILIES)
def test_committed_index(family):
    """Valid, in the tool's own form, one entry for each source and architecture, and no architecture offered that no source names."""
    wanted = {binary.key: binary for binary in tool.find_binaries(KERNELS) if binary.family == family}
    text = (KERNELS / family / tool.INDEX).read_bytes()
    index = json.loads(text)
    assert list(index) == ["schema", "package", "binaries"] and (index["schema"], index["package"]) == (1, family)
    assert text == tool.index_of(family, index["binaries"])
    assert sorted(index["binaries"]) == sorted(wanted)
    for key, entry in index["binaries"].items():
        assert sorted(entry) == ["bytes", "file", "sha256"]
        assert entry["file"] == f"{family}.{key}.cubin" == wanted[key].file
        assert len(entry["sha256"]) == 64 and set(entry["sha256"]) <= set("0123456789abcdef")
        assert 0 < entry["bytes"] < 16 << 20
        arch = key.rpartition(".")[2]
        assert arch in ("sm_80", "sm_90a"), "another architecture needs a member that gates it"


@pytest.mark.parametrize("family", FAMILIES)
def test_committed_record(family):
    """The record was made from the sources as they are, by the pinned compiler, and no kernel in it spills."""
    record = json.loads((KERNELS / family / tool.RECORD).read_text())
    assert record["compiler"] == f"nvcc {tool.VERSION}"
    assert not any("lineinfo" in flag or flag.startswith("-D") or flag == "-G" for flag in record["flags"])
    for binary in tool.find_binaries(KERNELS):
        if binary.family == family:
            entry = record["binaries"][binary.key]
            assert entry["sources"] == tool.record_entry(binary)["sources"], f"{binary.name}: the source changed; run `make cubins`"
            assert entry["kernels"]
            for name, used in entry["kernels"].items():
                assert used["stack_bytes"] == used["spill_store_bytes"] == used["spill_load_bytes"] == 0, name
                assert 0 < used["registers"] <= 255


def test_no_binary_is_committed():
    if not (REPOSITORY / ".git").exists() or not shutil.which("git"):
        pytest.skip("no git checkout")
    def git(*words):
        return subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True)

    assert git("ls-files", "*.cubin", "*.ptx", "*.fatbin").stdout == ""
    assert git("check-ignore", "-q", "common/opt_core/opt_core/kernels/triattn/members/native.cubin").returncode == 0


@needs_nvcc
@pytest.mark.skipif(not FAMILIES, reason="no family has a CUDA member")
def test_committed_digests_are_those_of_the_sources(tmp_path):
    """Every binary; what this checkout has compiled from the same sources and flags is taken from its cache."""
    done = run("--check", "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    for family in FAMILIES:
        index = json.loads((KERNELS / family / tool.INDEX).read_text())["binaries"]
        assert (tmp_path / "out" / family / tool.INDEX).read_bytes() == (KERNELS / family / tool.INDEX).read_bytes()
        for key, entry in index.items():
            data = _core.prebuilt_read(tmp_path / "out" / family, key)
            assert hashlib.sha256(data).hexdigest() == entry["sha256"] and len(data) == entry["bytes"]


@needs_nvcc
@pytest.mark.skipif(not FAMILIES, reason="no family has a CUDA member")
def test_committed_digest_from_another_directory(tmp_path, cache):
    """The smallest binary, compiled anew from a copy of the sources that lies elsewhere."""
    binary = min(tool.find_binaries(KERNELS), key=lambda b: (sum(map(len, b.sources.values())), b.name))
    shutil.copytree(KERNELS / binary.family, tmp_path / "copy" / binary.family)
    done = run("--check", "--kernels", tmp_path / "copy", "--key", binary.key, "--out", tmp_path / "out", "--cache", cache)
    assert done.returncode == 0, done.stderr
    assert "1 cubins, 1 compiled" in done.stdout


# ---- what the build does ---------------------------------------------------------------------------------------------


@needs_nvcc
def test_same_bytes_from_two_directories(tmp_path):
    """File-local symbols included, whose names nvcc makes from the path; and whatever the caller's environment appends."""
    for place, variables in (("a", {}), ("b/deeper", {"NVCC_APPEND_FLAGS": "-lineinfo", "CPATH": str(tmp_path)})):
        kernels = family_folder(tmp_path / place / "kernels", GOOD, "sm_80 sm_90a")
        done = run("--kernels", kernels, "--out", tmp_path / place / "out", "--cache", tmp_path / place / "cache", **variables)
        assert done.returncode == 0 and "2 cubins, 2 compiled" in done.stdout, done.stderr
    first, second = (sorted((tmp_path / place).rglob("out/**/*.*")) for place in ("a", "b/deeper"))
    assert [path.name for path in first] == [path.name for path in second] == [
        "PREBUILT.json", "PREBUILT_RECORD.json", "toy.native.sm_80.cubin", "toy.native.sm_90a.cubin"]
    for one, other in zip(first, second):
        assert one.read_bytes() == other.read_bytes(), one.name
    for path in first[2:]:
        data = path.read_bytes()
        assert f"-arch {path.name.split('.')[2]} ".encode() in data  # what ptxas noted it was asked for
        for trace in (b"debug_line", str(tmp_path).encode(), os.path.dirname(tool.find_nvcc()).encode()):
            assert trace not in data, trace


def test_flags_are_fixed():
    flags = " ".join(tool.FLAGS + tool.PTXAS_FLAGS)
    assert "lineinfo" not in flags and "fast-math" not in flags and "fmad" not in flags
    assert {"-O3", "-std=c++17"} <= set(tool.FLAGS) and "warn-spills" in flags


FAULTS = {
    "spill": (SPILL, "toy_spill spills registers: ", "bytes stored"),
    "stack": (STACK, "toy_stack has a stack frame of 256 bytes", ""),
    "setmaxnreg": (SETMAXNREG, "'setmaxnreg' ignored", ""),
    "atomic": (ATOMIC, "floating-point atomic atom.global.add.f32", ""),
    "mangled": (MANGLED, 'kernel _Z8toy_namePf is not extern "C"', ""),
    "unbound": (UNBOUND, "kernel toy_free has no __launch_bounds__", ""),
    "warning": (WARNING, '"nothing" was declared but never referenced', ""),
    "error": ("nonsense\n", "nvcc ended with status", "nonsense"),
    "empty": ("// nothing\n", "no kernel in it", ""),
}


@needs_nvcc
@pytest.mark.parametrize("fault", FAULTS)
def test_a_kernel_that_may_not_be_shipped_fails_the_build(tmp_path, cache, fault):
    text, *words = FAULTS[fault]
    done = run("--kernels", family_folder(tmp_path / "kernels", text), "--out", tmp_path / "out", "--cache", cache)
    assert done.returncode == 1, done.stdout
    for word in ("[cubins] toy@native.sm_90a: ", *words):
        assert word in done.stderr
    assert "atom.global.add.u32" not in done.stderr  # an integer sum has one order
    again = run("--kernels", tmp_path / "kernels", "--out", tmp_path / "out", "--cache", cache)  # nothing is forgotten by keeping
    assert (again.returncode, again.stderr) == (1, done.stderr)
    assert [*tmp_path.glob("out/**/*.cubin"), *tmp_path.glob("kernels/**/*.json")] == []
    dev = run("--kernels", tmp_path / "kernels", "--out", tmp_path / "out", "--cache", cache, "--dev")
    assert dev.returncode == (fault == "error")
    assert list(tmp_path.glob("kernels/**/*.json")) == []


@needs_nvcc
def test_the_bench_of_the_loop_compiles(tmp_path):
    """bench/hopper_tile.cu runs by hand on a Hopper GPU; here it must not rot. Its products are waited for one by one, on purpose: C7514 says so."""
    done = subprocess.run([tool.find_nvcc(), "-cubin", "-O3", "-std=c++17", "-gencode", "arch=compute_90a,code=sm_90a", "-I", str(CORE / "opt_core/kernels/triattn/members"),
                           "-o", str(tmp_path / "tile.cubin"), str(REPOSITORY / "bench/hopper_tile.cu")], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "tile.cubin").stat().st_size > 10000


@needs_nvcc
def test_only_what_changed_is_compiled(tmp_path, cache):
    kernels, out = family_folder(tmp_path / "kernels", GOOD, "sm_80 sm_90a"), tmp_path / "out"
    call = ("--kernels", kernels, "--out", out, "--cache", cache)
    assert "2 cubins, 2 compiled" in run(*call).stdout
    written = {path: path.stat().st_mtime_ns for path in out.rglob("*.*")}
    assert "2 cubins, 0 compiled" in run(*call).stdout
    assert written == {path: path.stat().st_mtime_ns for path in out.rglob("*.*")}
    # a header is part of the source
    before = json.loads((kernels / "toy" / tool.INDEX).read_text())["binaries"]
    family_folder(kernels, GOOD, "sm_80 sm_90a", fourth="5")
    assert "2 cubins, 2 compiled" in run(*call).stdout
    after = json.loads((kernels / "toy" / tool.INDEX).read_text())["binaries"]
    assert all(before[key]["sha256"] != after[key]["sha256"] for key in before)
    # a file in the cache that is not what it was is made again
    damaged = [path for path in cache.glob("*.cubin") if hashlib.sha256(path.read_bytes()).hexdigest() == after["native.sm_80"]["sha256"]]
    damaged[0].write_bytes(b"damaged")
    assert "2 cubins, 1 compiled" in run(*call).stdout
    assert json.loads((kernels / "toy" / tool.INDEX).read_text())["binaries"] == after


@needs_nvcc
def test_check_tells_a_difference_and_leaves_nothing_usable(tmp_path, cache):
    kernels, out = family_folder(tmp_path / "kernels", GOOD, "sm_80 sm_90a"), tmp_path / "out"
    call = ("--kernels", kernels, "--out", out, "--cache", cache)
    assert run(*call).returncode == 0 and run(*call, "--check").returncode == 0
    family_folder(kernels, GOOD, "sm_80 sm_90a", fourth="5")
    committed = (kernels / "toy" / tool.INDEX).read_bytes()
    done = run(*call, "--check")
    assert done.returncode == 1 and "run `make cubins` and commit" in done.stderr
    assert done.stderr.count(", committed ") == 2 and "toy@native.sm_90a: built " in done.stderr
    assert (kernels / "toy" / tool.INDEX).read_bytes() == committed and list(out.rglob("*.cubin")) == []
    # work in progress: digests of its own beside the binaries, the tree stays as it is
    assert run(*call, "--dev").returncode == 0
    assert (kernels / "toy" / tool.INDEX).read_bytes() == committed
    assert len(_core.prebuilt_read(out / "toy", "native.sm_90a")) > 1000
    # an architecture less in the source: its key is left over
    family_folder(kernels, GOOD, "sm_90a", fourth="4")
    done = run(*call, "--check")
    assert done.returncode == 1 and "toy@native.sm_80: built nothing" in done.stderr and "native.sm_90a" not in done.stderr
    assert run(*call).returncode == 0
    assert list(json.loads((kernels / "toy" / tool.INDEX).read_text())["binaries"]) == ["native.sm_90a"]
    # and a family that lost its last CUDA source loses its tables
    (kernels / "toy/members/native.cu").unlink()
    assert run(*call).returncode == 0
    assert list((kernels / "toy").glob("*.json")) == [] and not (out / "toy").exists()


@needs_nvcc
def test_one_key(tmp_path, cache):
    kernels, out = family_folder(tmp_path / "kernels", GOOD, "sm_80 sm_90a"), tmp_path / "out"
    call = ("--kernels", kernels, "--out", out, "--cache", cache)
    done = run(*call, "--key", "native.sm_90a")
    assert done.returncode == 0 and "1 cubins, 1 compiled" in done.stdout
    index = json.loads((kernels / "toy" / tool.INDEX).read_text())["binaries"]
    assert list(index) == ["native.sm_90a"]
    assert run(*call, "--key", "native.sm_80").returncode == 0
    both = json.loads((kernels / "toy" / tool.INDEX).read_text())["binaries"]
    assert both["native.sm_90a"] == index["native.sm_90a"] and sorted(both) == ["native.sm_80", "native.sm_90a"]
    done = run(*call, "--key", "native.sm_90")
    assert done.returncode == 2 and "no source asks for it" in done.stderr


@pytest.mark.parametrize("line", ["", "// cubin: sm_90a\n// cubin: sm_80\n", "// cubin:\n", "// cubin: 90a\n", "// cubin: sm_80 sm_80\n"])
def test_a_source_names_its_architectures(tmp_path, line):
    family_folder(tmp_path / "kernels", GOOD)
    (tmp_path / "kernels/toy/members/native.cu").write_text(line + GOOD)
    done = run("--kernels", tmp_path / "kernels", "--out", tmp_path / "out")
    assert done.returncode == 1 and "native.cu: " in done.stderr and "sm_80" in done.stderr


def test_without_a_fitting_compiler(tmp_path, monkeypatch, capsys):
    """The compiler's version is part of the digests: another release is told apart and not used."""
    old = tmp_path / "nvcc"
    old.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 12.4, V12.4.131'\n")
    old.chmod(0o755)
    monkeypatch.setattr(tool, "candidates", lambda: [None, str(old), str(tmp_path / "absent")])
    assert tool.main(["--find"]) == 3
    text = capsys.readouterr().err
    assert text.startswith("[cubins] no_nvcc: nvcc 13.0.88 is needed") and f"{old} is 12.4.131" in text
    assert tool.main(["--kernels", str(family_folder(tmp_path / "kernels", GOOD)), "--out", str(tmp_path / "out")]) == 3
    assert tool.main(["--kernels", str(tmp_path / "no_family"), "--out", str(tmp_path / "out")]) == 0  # nothing to compile


@pytest.mark.parametrize("arguments", [("--dev",), ("--define", "A=1", "--out", "x"), ("--nvcc", "nvcc", "--out", "x"), ("--dev", "--check", "--out", "x"),
                                       ("--out", KERNELS)])
def test_wrong_usage(arguments):
    assert run(*arguments).returncode == 2


def test_the_pinned_packages_are_one_release():
    """build_prebuilt.py, its page and pyproject.toml name the same compiler."""
    import tomllib

    pins = tomllib.loads((CORE / "pyproject.toml").read_text())["project"]["optional-dependencies"]["cubin"]
    assert {pin.partition("==")[0] for pin in pins} == {"nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-runtime"}
    assert {pin.partition("==")[2].rpartition(".")[0] for pin in pins} == {"13.0"} and f"nvidia-cuda-nvcc=={tool.VERSION}" in pins
    assert all(pin in " ".join(TOOL.read_text().split()) for pin in pins)


def configure(folder, word, *targets):
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    command = ["cmake", "-S", CORE, "-B", folder, *generator, f"-DOPT_CORE_CUBINS={word}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    for target in targets if done.returncode == 0 else ():
        subprocess.run(["cmake", "--build", folder, "--target", target], check=True, capture_output=True, timeout=1800)
    return done


needs_cmake = pytest.mark.skipif(not shutil.which("cmake"), reason="cmake is not installed")


@needs_cmake
def test_option_words(tmp_path):
    done = configure(tmp_path, "MAYBE")
    assert done.returncode != 0 and "OPT_CORE_CUBINS is MAYBE, not AUTO, ON, OFF or DEV" in done.stderr


@needs_cmake
@needs_nvcc
@pytest.mark.skipif(not FAMILIES, reason="no family has a CUDA member")
def test_cubins_lie_beside_the_library_of_this_build_only(tmp_path):
    done = configure(tmp_path, "ON", "opt_core_cubins")
    assert done.returncode == 0 and "cubins by " in done.stdout, done.stderr
    for family in FAMILIES:
        assert (tmp_path / f"opt_core/cubin/{family}/PREBUILT.json").read_bytes() == (KERNELS / family / tool.INDEX).read_bytes()
    assert "no cubins" in configure(tmp_path, "OFF").stdout
    assert not (tmp_path / "opt_core/cubin").exists()


# ---- what the library does with them ---------------------------------------------------------------------------------


@pytest.fixture
def layout(tmp_path):
    """A family's folder as it lies beside the library; the bytes stand for a cubin's."""
    folder = tmp_path / "triattn"
    folder.mkdir()
    binary = tool.Binary("triattn", pathlib.Path("native.cu"), "sm_90a", {})
    data = os.urandom(4096)
    binary.sha256, binary.bytes = hashlib.sha256(data).hexdigest(), len(data)
    (folder / binary.file).write_bytes(data)
    (folder / tool.INDEX).write_bytes(tool.index_of("triattn", {binary.key: tool.index_entry(binary)}))
    return folder, binary, data


def test_binary_is_read_by_its_key(layout):
    folder, binary, data = layout
    assert _core.prebuilt_read(folder, binary.key) == data


@pytest.mark.parametrize("arch", ["sm_90", "sm_100", "sm_100a", "sm_80", "sm_90A", ""])
def test_another_architecture_has_no_binary(layout, arch):
    """sm_90a code is for 9.0 with its own instructions: it is not what sm_90 or sm_100 asks for."""
    refused(lambda: _core.prebuilt_read(layout[0], f"native.{arch}"), "no_prebuilt", f"no_prebuilt:triattn@native.{arch}")


def test_a_key_without_its_file(layout):
    folder, binary, _ = layout
    (folder / binary.file).unlink()
    refused(lambda: _core.prebuilt_read(folder, binary.key), "no_prebuilt", "no_prebuilt:triattn@native.sm_90a")


@pytest.mark.parametrize("change", ["bit", "longer", "shorter", "empty"])
def test_tampered_binary_is_refused(layout, change):
    folder, binary, data = layout
    flipped = data[:2000] + bytes([data[2000] ^ 1]) + data[2001:]
    (folder / binary.file).write_bytes({"bit": flipped, "longer": data + b"\0", "shorter": data[:-1], "empty": b""}[change])
    refused(lambda: _core.prebuilt_read(folder, binary.key), "digest", "digest:triattn@native.sm_90a")

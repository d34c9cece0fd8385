# SPDX-License-Identifier: Apache-2.0
"""The public headers compile as C11 and C++ with every warning on, and an installed library is found by pkg-config and CMake."""
import os
import shutil
import subprocess
from pathlib import Path

import pytest

CORE = Path(__file__).resolve().parents[2]
PROGRAM = """
#include <opt_core/opt_core.h>
#include <stdio.h>
#include <string.h>
int main(void) {
  float x[4] = {1, 2, 3, 6}, y[4] = {0};
  int64_t shape[2] = {1, 4};
  oc_ln call;
  memset(&call, 0, sizeof call);
  call.x = oc_view_dense(x, OC_F32, 2, shape);
  call.y = oc_view_dense(y, OC_F32, 2, shape);
  call.norm.eps = 0.0f;
  oc_choice choice;
  memset(&choice, 0, sizeof choice);
  choice.member = oc_member_find(OC_FAMILY_LN, "reference", OC_ISA_GENERIC);
  oc_exec exec;
  memset(&exec, 0, sizeof exec);
  oc_err err;
  memset(&err, 0, sizeof err);
  if (oc_ln_serve(&call, &choice, &exec, &err) != OC_OK) { puts(err.detail); return 1; }
  printf("%s %.4f %.4f\\n", oc_version(), (double)y[0], (double)y[3]);
  return 0;
}
"""


def header_dir(tmp_path):
    target = tmp_path / "include/opt_core"
    target.mkdir(parents=True)
    headers = [*CORE.glob("include/opt_core/*.h"), *(h for h in CORE.glob("opt_core/kernels/*/*.h") if not h.name.endswith("_internal.h"))]
    for header in headers:
        shutil.copy(header, target)
    return tmp_path / "include", [h.name for h in headers]


@pytest.mark.parametrize("compiler, language, standard", [
    ("gcc", "c", "c11"), ("g++", "c++", "c++11"), ("clang", "c", "c11"), ("clang++", "c++", "c++17")])
def test_each_header_compiles_alone(tmp_path, compiler, language, standard):
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    include, names = header_dir(tmp_path)
    assert len(names) >= 15
    for name in names:
        done = subprocess.run(
            [compiler, "-x", language, f"-std={standard}", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror", "-fsyntax-only",
             "-I", str(include), "-"], input=f"#include <opt_core/{name}>\n#include <opt_core/{name}>\n", text=True, capture_output=True)
        assert done.returncode == 0, f"{name}: {done.stderr}"


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    if not shutil.which("cmake"):
        pytest.skip("cmake is not installed")
    root = tmp_path_factory.mktemp("install")
    generator = ["-G", "Ninja"] if shutil.which("ninja") else []
    subprocess.run(["cmake", "-S", CORE, "-B", root / "build", *generator, f"-DCMAKE_INSTALL_PREFIX={root}/usr",
                    "-DCMAKE_INSTALL_LIBDIR=lib"], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", root / "build", "-j2"], check=True, capture_output=True)
    subprocess.run(["cmake", "--install", root / "build"], check=True, capture_output=True)
    return root / "usr"


def run_program(path, prefix):
    done = subprocess.run([path], env=dict(os.environ, LD_LIBRARY_PATH=str(prefix / "lib")), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    version, low, high = done.stdout.split()
    assert version == "0.1.0"
    assert (float(low), float(high)) == (-1.069, 1.6036)  # (x - 3) / sqrt(3.5)


def test_pkg_config_consumer(tmp_path, prefix):
    (tmp_path / "p.c").write_text(PROGRAM)
    env = dict(os.environ, PKG_CONFIG_PATH=str(prefix / "lib/pkgconfig"))
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", "opt_core"], env=env, check=True, capture_output=True, text=True).stdout.split()
    subprocess.run(["gcc", "-std=c11", tmp_path / "p.c", "-o", tmp_path / "p", *flags], check=True)
    run_program(tmp_path / "p", prefix)


def test_cmake_consumer(tmp_path, prefix):
    (tmp_path / "p.c").write_text(PROGRAM)
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.18)\nproject(p C)\nfind_package(opt_core 0.1 REQUIRED)\n"
        "add_executable(p p.c)\ntarget_link_libraries(p opt_core::opt_core)\n")
    subprocess.run(["cmake", "-S", tmp_path, "-B", tmp_path / "b", f"-DCMAKE_PREFIX_PATH={prefix}"], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", tmp_path / "b"], check=True, capture_output=True)
    run_program(tmp_path / "b/p", prefix)


def test_only_oc_names_leave_the_library(prefix):
    library = next((prefix / "lib").glob("libopt_core.so"))
    listing = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    names = [line.split()[-1].split("@")[0] for line in listing.splitlines()]
    exported = [n for n in names if n != "OPT_CORE_0"]
    assert len(exported) > 60
    assert [n for n in exported if not n.startswith("oc_") or n.startswith("oc__")] == []
    soname = subprocess.run(["readelf", "-d", library], check=True, capture_output=True, text=True).stdout
    assert "libopt_core.so.0" in soname


def test_no_exit_abort_or_print_in_the_library(prefix):
    """Looked for in our own objects: the static libsodium in the library has an assert of its own."""
    objects = [o for o in (prefix.parent / "build").rglob("*.o") if "opt_core_cli" not in str(o)]
    assert len(objects) > 60
    listing = subprocess.run(["nm", "--undefined-only", *objects], check=True, capture_output=True, text=True).stdout
    names = {line.split()[-1] for line in listing.splitlines() if " U " in line}
    assert "memcpy" in names  # the list is a list
    assert names.isdisjoint({"exit", "_exit", "quick_exit", "abort", "printf", "puts", "putchar", "__printf_chk", "__assert_fail"})


def test_no_instruction_above_the_baseline_outside_dispatched_objects(prefix):
    """Only objects of the levels avx2 and avx512 may use YMM or ZMM registers; the rest runs on any x86-64-v2 machine."""
    import platform
    import re

    if platform.machine() != "x86_64":
        pytest.skip("x86-64 only")
    wide = re.compile(r"%[yz]mm\d")
    objects = list((prefix.parent / "build").rglob("*.o"))
    plain = [o for o in objects if not any(f"members_{level}" in str(o) for level in ("avx2", "avx512"))]
    dispatched = [o for o in objects if "members_avx512" in str(o)]
    assert len(plain) > 40 and len(dispatched) >= 5
    pairs = [o for o in objects if "members_avx512_bf16" in str(o)]
    assert len(pairs) == 4

    text = {o: subprocess.run(["objdump", "-d", o], check=True, capture_output=True, text=True).stdout for o in objects}

    # exactln_avx2 is dispatched too: its functions carry a target attribute in an object of their own
    assert [str(o) for o in plain if wide.search(text[o]) and o.name != "exactln.c.o"] == []
    assert all(wide.search(text[o]) for o in dispatched)  # the search can find something
    assert [o for o in objects if "vdpbf16ps" in text[o]] == pairs

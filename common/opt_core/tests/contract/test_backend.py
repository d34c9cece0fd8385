# SPDX-License-Identifier: Apache-2.0
"""The kits' build backend: what lies in a wheel, and that the same sources give the same bytes."""

import base64
import email
import hashlib
import shutil
import tarfile
import zipfile

import pytest
from conftest import build_kit, copy_kit

INFO = "toy_opt-0.2.0.dist-info/"


def wheel_of(folder, hook="build_wheel", **settings):
    kit = copy_kit(folder, **settings)
    return zipfile.ZipFile(build_kit(kit, folder, hook))


def test_normal_wheel(tmp_path):
    wheel = wheel_of(tmp_path)
    assert wheel.filename.endswith("/toy_opt-0.2.0-py3-none-any.whl")
    assert wheel.testzip() is None
    assert sorted(wheel.namelist()) == sorted(
        [
            "toy_opt.pth",
            "toy_opt.start",
            *(
                f"toy_opt/{name}"
                for name in (
                    "__init__.py",
                    "_boot.py",
                    "_core_gate.py",
                    "_core_pin.json",
                    "cells/__init__.py",
                    "cells/gate.py",
                    "cells/layer.py",
                    "kit.json",
                    "kit.py",
                )
            ),
            *(INFO + name for name in ("METADATA", "WHEEL", "entry_points.txt", "RECORD")),
        ]
    )
    assert wheel.namelist()[-1] == INFO + "RECORD"
    assert wheel.read("toy_opt/_core_pin.json") == b'{"version": ">=0.1"}\n'


def test_hook_files(tmp_path):
    for folder, hook in (("normal", "build_wheel"), ("editable", "build_editable")):
        (tmp_path / folder).mkdir()
        wheel = wheel_of(tmp_path / folder, hook)
        pth, start = wheel.read("toy_opt.pth").decode(), wheel.read("toy_opt.start").decode()
        assert len(pth.splitlines()) == 1 and pth.startswith("import os; os.environ.get(")
        for word in ("http", "exec", "eval", "base64", "subprocess", "socket", "compile"):
            assert word not in pth
        assert start == "toy_opt._boot:start\n"


def test_editable_wheel(tmp_path):
    wheel = wheel_of(tmp_path, "build_editable")
    assert sorted(wheel.namelist()) == sorted(
        [
            "__editable__.toy_opt.pth",
            "toy_opt.pth",
            "toy_opt.start",
            *(INFO + name for name in ("METADATA", "WHEEL", "entry_points.txt", "RECORD")),
        ]
    )
    assert wheel.read("__editable__.toy_opt.pth").decode() == f"{tmp_path / 'toykit'}\n"
    assert sorted(wheel.namelist())[0] == "__editable__.toy_opt.pth"  # `site` reads it before the kit's line


def test_record_covers_every_file(tmp_path):
    wheel = wheel_of(tmp_path)
    rows = [line.split(",") for line in wheel.read(INFO + "RECORD").decode().splitlines()]
    assert {row[0] for row in rows} == set(wheel.namelist())
    for name, digest, size in rows[:-1]:
        data = wheel.read(name)
        assert digest == "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert int(size) == len(data)
    assert rows[-1] == [INFO + "RECORD", "", ""]


def test_metadata(tmp_path):
    message = email.message_from_bytes(wheel_of(tmp_path).read(INFO + "METADATA"))
    assert message["Name"] == "toy-opt" and message["Version"] == "0.2.0"
    assert message["Requires-Python"] == ">=3.10"
    assert message["License-Expression"] == "Apache-2.0"
    assert message.get_all("Requires-Dist") == [
        "numpy>=1; (python_version >= '3.10') and extra == \"extra\"",
        'six; extra == "extra"',
    ]
    assert message["Description-Content-Type"] == "text/markdown"
    assert message.get_payload() == "# A kit for a toy engine\n\n"


def test_entry_points(tmp_path):
    assert wheel_of(tmp_path).read(INFO + "entry_points.txt").decode() == (
        "[console_scripts]\ntoy-where = toy_opt:where\n\n[opt_core.kits]\ntoyengine = toy_opt.kit:kit\n"
    )


@pytest.mark.parametrize("hook", ["build_wheel", "build_sdist"])
def test_reproducible_from_another_folder(tmp_path, hook):
    digests = set()
    for place in ("one", "another/deep"):
        (tmp_path / place).mkdir(parents=True)
        kit = copy_kit(tmp_path / place)
        (kit / "toy_opt" / "__pycache__").mkdir()
        (kit / "toy_opt" / "__pycache__" / f"junk.{len(place)}.pyc").write_text(place)
        digests.add(hashlib.sha256(build_kit(kit, tmp_path / place, hook).read_bytes()).hexdigest())
    assert len(digests) == 1


def test_licence_file(tmp_path):
    kit = copy_kit(tmp_path)
    (kit / "LICENSE").write_text("the licence\n")
    wheel = zipfile.ZipFile(build_kit(kit, tmp_path))
    assert wheel.read(INFO + "licenses/LICENSE") == b"the licence\n"
    assert email.message_from_bytes(wheel.read(INFO + "METADATA"))["License-File"] == "LICENSE"


def test_sdist_builds_the_same_wheel(tmp_path):
    kit = copy_kit(tmp_path)
    first = build_kit(kit, tmp_path).read_bytes()
    sdist = build_kit(kit, tmp_path, "build_sdist")
    assert sdist.name == "toy_opt-0.2.0.tar.gz"
    (tmp_path / "out").mkdir()
    with tarfile.open(sdist) as archive:
        names = archive.getnames()
        archive.extractall(tmp_path / "out")
    assert names == sorted(names) and "toy_opt-0.2.0/PKG-INFO" in names
    assert build_kit(tmp_path / "out" / "toy_opt-0.2.0", tmp_path / "out").read_bytes() == first


@pytest.mark.parametrize(
    "spoil, complaint",
    [
        (lambda kit: (kit / "toy_opt.start").unlink(), "toy_opt.start is missing"),
        (lambda kit: (kit / "other.pth").write_text(""), "exactly one .pth file"),
        (lambda kit: (kit / "toy_opt.pth").unlink(), "exactly one .pth file"),
        (lambda kit: shutil.copytree(kit / "toy_opt", kit / "second"), "exactly one folder with _core_gate.py"),
        (
            lambda kit: [(kit / f"toy_opt.{x}").rename(kit / f"0_opt.{x}") for x in ("pth", "start")],
            "would be read before",
        ),
    ],
    ids=["no start", "two pth", "no pth", "two packages", "name"],
)
def test_kits_that_are_no_kits(tmp_path, spoil, complaint, capfd):
    import subprocess

    kit = copy_kit(tmp_path)
    spoil(kit)
    with pytest.raises(subprocess.CalledProcessError) as error:
        build_kit(kit, tmp_path)
    assert complaint in error.value.stderr

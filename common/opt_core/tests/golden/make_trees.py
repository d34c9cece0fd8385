# SPDX-License-Identifier: Apache-2.0
"""Writes the small output trees under compare/ that the tests of `compare` read. Run it where numpy is installed:

    python make_trees.py

stock   one file of each format
same    the same numbers, written another way (axis order, byte order, compression, spelling, header version)
close   every float moved by about one part in a million
far     a NaN for a number, a number for a NaN, another shape, a key missing, a key extra, a file missing, a file extra
"""
import json
import pathlib
import shutil
import struct
import zipfile

import numpy as np

HERE = pathlib.Path(__file__).parent / "compare"
DATE = (2026, 1, 1, 0, 0, 0)


def npy(array, version=(1, 0)):
    import io

    out = io.BytesIO()
    np.lib.format.write_array(out, array, version=version)
    return out.getvalue()


def npz(path, members, method):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, array in members.items():
            info = zipfile.ZipInfo(name + ".npy", DATE)
            info.compress_type = method
            archive.writestr(info, npy(array))


def safetensors(path, tensors, metadata):
    header, data = {"__metadata__": metadata}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def bf16(values):
    bits = np.asarray(values, np.float32).view(np.uint32)
    return (bits >> 16).astype(np.uint16).tobytes()


def atom(serial, name, x, y, z, b):
    return f"ATOM  {serial:5d}  {name:<3s} MET A   1    {x:8.3f}{y:8.3f}{z:8.3f}{1.0:6.2f}{b:6.2f}           {name[0]}  \n"


def write(name, scale=1.0, other_way=False):
    tree = HERE / name
    shutil.rmtree(tree, ignore_errors=True)
    (tree / "sub").mkdir(parents=True)
    base = (np.arange(24, dtype=np.float64).reshape(2, 3, 4) - 7.25) * scale
    plddt = [90.5 * scale, 71.25 * scale, float("nan"), 12.0]
    pae = [[0.25 * scale * i + j for j in range(3)] for i in range(3)]
    document = {"name": "demo", "plddt": plddt, "chains": [{"id": "A", "pae": pae}, {"id": "B", "pae": pae}], "seed": 9007199254740993,
                "done": True}
    text = json.dumps(document, indent=1)
    if other_way:
        text = json.dumps(document).replace("90.5", "9.05e1").replace("71.25", "71.250")
    (tree / "scores.json").write_text(text)
    array = base.astype(np.float32)
    (tree / "pair.npy").write_bytes(npy(np.asfortranarray(array).astype(">f4") if other_way else array, (2, 0) if other_way else (1, 0)))
    members = {"coords": base, "half": base.astype(np.float16), "mask": base > 0, "ids": np.array([1, 2**62, -3], np.int64),
               "names": np.array(["CA", "CB"])}
    npz(tree / "sub" / "result.npz", members, zipfile.ZIP_STORED if other_way else zipfile.ZIP_DEFLATED)
    f32 = (base.reshape(6, 4) / 3).astype(np.float32)
    tensors = {"w": ("F32", [6, 4], f32.tobytes()), "b": ("BF16", [4], bf16([1.0, -2.5, 3.0, float("inf")])),
               "k": ("BOOL", [3], b"\1\0\1"), "n": ("I64", [2], struct.pack("<qq", 5, -6))}
    if other_way:
        tensors = dict(reversed(tensors.items()))
    safetensors(tree / "weights.safetensors", tensors, {"format": "pt"})
    lines = ["REMARK   1 demo\n"] + [atom(i + 1, n, 1.5 * i * scale, -2.25 * scale, 3.0 + i, 80.5) for i, n in enumerate(("N", "CA", "C"))]
    (tree / "model.pdb").write_text("".join(lines + ["END\n"]), newline="\r\n" if other_way else "\n")
    rows = "".join(f"ATOM {i + 1} {n} A {1.5 * i * scale:.6f} {'-2.2500' if other_way and scale == 1 else f'{-2.25 * scale:.6f}'} {3.0 + i} 80.5\n"
                   for i, n in enumerate(("N", "CA", "\"O5'\"" if other_way else "O5'")))
    (tree / "model.cif").write_text(
        "data_demo\n#\n_entry.id demo\n_struct.title 'a dog''s tail'\n_struct.text\n;two\nlines\n;\nloop_\n_atom_site.group_PDB\n"
        "_atom_site.id\n_atom_site.label_atom_id\n_atom_site.label_asym_id\n_atom_site.Cartn_x\n_atom_site.Cartn_y\n"
        f"_atom_site.Cartn_z\n_atom_site.B_iso_or_equiv\n{rows}#\n")
    gap = "    " if other_way else " "
    (tree / "log.txt").write_text(f"recycle 1:{gap}loss{gap}{1.25 * scale!r}\nrecycle 2: loss {0.5 * scale!r} nan\n")


def write_far():
    write("far")
    tree = HERE / "far"
    document = json.loads((tree / "scores.json").read_text())
    document["plddt"][1], document["plddt"][2] = float("nan"), 3.0
    document["extra"] = 1
    del document["done"]
    (tree / "scores.json").write_text(json.dumps(document))
    array = np.load(tree / "pair.npy")
    array[1, 2, 3] = np.nextafter(array[1, 2, 3], np.float32(np.inf)).astype(np.float32)
    (tree / "pair.npy").write_bytes(npy(array))
    (tree / "sub" / "result.npz").unlink()
    (tree / "added.txt").write_text("new\n")
    rows = (tree / "model.cif").read_text().splitlines(keepends=True)
    (tree / "model.cif").write_text("".join(rows[:-2] + rows[-1:]))  # an atom fewer


if __name__ == "__main__":
    write("stock")
    write("same", other_way=True)
    write("close", scale=1 + 2.0**-20)
    write_far()

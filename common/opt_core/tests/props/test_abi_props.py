# SPDX-License-Identifier: Apache-2.0
"""Properties of the C functions over arbitrary input, driven through the extension."""

import json

import pytest

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given, settings, strategies as st  # noqa: E402

from opt_core import Refused, _core  # noqa: E402

settings.register_profile("core", deadline=None, max_examples=200)
settings.load_profile("core")

KINDS = ("ACTIVE", "LEVER", "CELLS", "EXIT", "NOTE")
text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
word = text.filter(bool)


def written(kind, words, pairs=None):
    lines = []
    _core.set_sink(lines.append)
    try:
        _core.line_write(kind, words, pairs or {})
    finally:
        _core.set_sink(None)
    assert len(lines) == 1
    return lines[0]


@given(st.sampled_from(KINDS), st.lists(word, max_size=6), st.dictionaries(word, text, max_size=6))
def test_a_line_that_is_printed_reads_back(kind, words, pairs):
    line = written(kind, words, pairs)
    assert line.startswith("[opt_core] ") and line.endswith("\n") and line.count("\n") == 1 and line.isascii()
    assert _core.line_parse(line) == (kind, words, pairs)


@given(st.text(st.characters(codec="utf-8"), max_size=200), st.booleans())
def test_the_parser_accepts_only_what_the_printer_prints(body, prefixed):
    line = ("[opt_core] " if prefixed else "") + body
    try:
        kind, words, pairs = _core.line_parse(line)
    except ValueError:
        return
    assert written(kind, words, pairs).rstrip("\n") == line.rstrip("\n")


@given(
    st.sampled_from(("NOT ACTIVE", "ACCOUNTING")),
    st.from_regex(r"[a-z_]{1,20}", fullmatch=True),
    st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E, exclude_characters="%"), min_size=1, max_size=80),
)
def test_reasons_keep_their_text(kind, name, reason):
    assert _core.line_parse(written(kind, [name, reason])) == (kind, [name, reason], {})


numbers = st.lists(st.integers(0, 10**12), min_size=1, max_size=5)


@given(numbers, numbers)
def test_versions_compare_like_tuples(a, b):
    width = max(len(a), len(b))
    left, right = a + [0] * (width - len(a)), b + [0] * (width - len(b))
    got = _core.version_compare(".".join(map(str, a)), ".".join(map(str, b)))
    assert (got > 0) - (got < 0) == (left > right) - (left < right)


@given(numbers, st.sampled_from((">=", ">", "<=", "<", "==", "!=")), numbers)
def test_pins_are_the_comparison(have, operator, need):
    have_text, need_text = ".".join(map(str, have)), ".".join(map(str, need))
    order = _core.version_compare(have_text, need_text)
    holds = {">=": order >= 0, ">": order > 0, "<=": order <= 0, "<": order < 0, "==": order == 0, "!=": order != 0}[
        operator
    ]
    try:
        _core.gate_pin("p", have_text, operator + need_text)
    except Refused as refusal:
        assert refusal.word == "pin" and not holds
    else:
        assert holds


@given(st.text(max_size=30))
def test_modes_are_four_words_or_a_refusal(value):
    if "\0" in value or any(0xD800 <= ord(c) < 0xDC80 or 0xDCFF < ord(c) <= 0xDFFF for c in value):
        with pytest.raises(ValueError):
            _core.mode_parse(value)
        return
    try:
        assert _core.mode_parse(value) in ("off", "exact", "fast", "big")
    except Refused as refusal:
        assert refusal.word == "mode" and len(refusal.detail.encode()) < 192


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
KIT = {
    "schema": 1,
    "engine": "toy",
    "variable": "TOY_OPT",
    "version": "0.1.0",
    "triggers": ["toy.model"],
    "levers": [{"name": "norm", "family": "ln", "modes": {"fast": "require"}, "instances": 1, "help": "h"}],
}


@given(st.sampled_from(sorted(KIT)), json_values)
def test_a_damaged_kit_table_is_refused_by_name(key, value):
    try:
        kit = _core.Kit(json.dumps({**KIT, key: value}))
    except Refused as refusal:
        assert refusal.word == "kit_table" and refusal.detail
    else:
        assert kit.levers == ("norm",) or key == "levers"


@given(st.binary(max_size=64))
def test_bytes_that_are_no_kit_are_refused(data):
    with pytest.raises(Refused, match="^kit_table:"):
        _core.Kit(data)


# ---- views -----------------------------------------------------------------------------------------------------------


@st.composite
def strided_case(draw):
    """Sizes, and for each operand a permutation of its axes in memory, a step and an offset."""
    n, c = draw(st.integers(0, 9)), draw(st.integers(0, 9))
    plan = [
        (draw(st.permutations(range(rank))), draw(st.integers(1, 3)), draw(st.integers(0, 3))) for rank in (3, 3, 2)
    ]
    return (
        n,
        c,
        plan,
        draw(st.sampled_from(("float32", "bfloat16", "bool", "uint8", "int32", "int64", "absent"))),
        draw(st.integers(0, 99)),
    )


def place(torch, tensor, order, step, offset):
    """The same numbers in memory with the axes in another order, spread by a step, behind an offset."""
    inner = tensor.permute(order).contiguous()
    room = torch.full((inner.numel() * step + offset,), 3.0).to(tensor.dtype)
    flat = room[offset:][::step][: inner.numel()]
    flat.copy_(inner.flatten())
    back = [order.index(axis) for axis in range(len(order))]
    return flat.as_strided(inner.shape, [s * step for s in inner.stride()], offset).permute(back)


@given(strided_case())
def test_any_strides_give_the_bits_of_the_dense_tensors(case):
    torch = pytest.importorskip("torch")
    from opt_core import torch_glue  # noqa: F401  binds torch

    n, c, plan, mask_dtype, seed = case
    g = torch.Generator().manual_seed(seed)
    gate, proj = torch.rand(n, n, c, generator=g), torch.randn(n, n, c, generator=g) * 100
    mask = None if mask_dtype == "absent" else (torch.rand(n, n, generator=g) > 0.3).to(getattr(torch, mask_dtype))
    kept = 1.0 if mask is None else mask.float()[..., None]
    expected = ((kept * gate) * proj).permute(2, 0, 1)
    out = torch.full((c, n, n), 7.0)
    views = [place(torch, t, *how) if t is not None else None for t, how in zip((gate, proj, mask), plan)]
    for view, dense in zip(views, (gate, proj, mask)):
        assert dense is None or torch.equal(view, dense)
    _core.trimul_gate_planes(*views, out)
    assert torch.equal(out, expected)

"""What docs/onednn-defects.md says of oneDNN, looked at once more with the library that is installed.

A case is the least that shows a defect, asked for as `defects.py` would decline it. Where it has become right, a newer
library has mended it: take out the row there, the reason in the code and the case here.
"""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mezzo.ops import DType
from mezzo.ops.errors import InputError
from mezzo.ops.types import f32
from mezzo.runtime.backends.onednn import defects, memory
from mezzo.runtime.backends.onednn.api import ATTR_ZERO_POINTS, DST, SRC, SRC_1, WEIGHTS, Refused
from mezzo.runtime.backends.onednn.defects import DEFECTS, WRONG, defect
from mezzo.runtime.backends.onednn.library import library
from mezzo.runtime.backends.onednn.memory import ANY, Memory, nbytes
from mezzo.runtime.backends.onednn.primitive import (
    Attributes,
    Descriptor,
    Draft,
    Operand,
    PostOp,
    bind,
    described,
    repacked,
)
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder
from mezzo.runtime.memory.pool import aligned_empty

ROOT = Path(__file__).parent.parent
Array = np.ndarray[Any, Any]
Case = tuple[Draft, Callable[..., Array]]  # and what it should make of its inputs and of the operand of the post-op


def _draft(
    kind: str, settings: tuple[Any, ...], *operands: Memory, beside: Memory | None = None, post: PostOp | None = None
) -> Draft:
    """Sources, then the result; `beside` is added to it, or another post-op follows."""
    *sources, target = operands
    arguments = (SRC, SRC_1 if kind == "binary" else WEIGHTS)
    given = [Operand(a, ("in", i), m) for i, (a, m) in enumerate(zip(arguments, sources, strict=False))]
    added = None if beside is None else PostOp("binary_add", other=beside, place=("in", 9))
    posts = tuple(p for p in (added, post) if p)
    return Draft(kind, (*given, Operand(DST, ("out", 0), target)), settings, Attributes(posts))


def _m(*dims: int, layout: str = "", strides: tuple[int, ...] | None = None) -> Memory:
    return Memory(dims, DType.FLOAT, layout, strides)


def _softmax(x: Array, axis: int) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    made: Array = e / e.sum(axis, keepdims=True)
    return made


ONE = ((1, 1), (1, 1), (0, 0), (0, 0), (0, 0))  # a window of one pixel
PAIR = ((1,), (2,), (0,), (1,), (0,))  # one of two, the first beside the border
WINDOW = ("convolution_direct", (1,), (0,), (0,), (0,))
SIGMOID = PostOp("eltwise_logistic")
pooled, image, rows = _m(3, 8, 5, layout="acb"), _m(2, 8, 4, 5), _m(2, 8, 5, layout="bac")


def _summed() -> Case:
    draft = _draft("pooling_forward", ("pooling_avg_exclude_padding", *PAIR), pooled, pooled)
    sums = Attributes((PostOp("sum", other=pooled, place=("in", 9)),))

    def want(x: Array, c: Array) -> Array:
        means = np.concatenate([x[..., :1], (x[..., :-1] + x[..., 1:]) / 2], -1)
        return means + c

    return Draft(draft.kind, draft.operands, draft.settings, sums), want


def _sigmoid(x: Array) -> Array:
    made: Array = 1 / (1 + np.exp(-x))
    return made


def _steps() -> Case:
    """Numbers of 8 bits with a zero point, written as floats in another order of axes."""
    dims, zero = (1, 16, 5, 33), 128
    steps, floats = Memory(dims, DType.UINT8, "acdb"), _m(*dims, layout="abdc")
    draft, point = _draft("reorder", (), steps, floats), Memory((1,), DType.INT32)
    number = ATTR_ZERO_POINTS | SRC
    source, target = draft.operands
    given = Operand(number, ("given", number), point, value=np.int32(zero).tobytes())
    attributes = Attributes(zero_points=((SRC, 0),))
    return Draft(draft.kind, (source, given, target), attributes=attributes), lambda x: x - np.float32(zero)


def _in_groups(x: Array, w: Array) -> Array:
    """A convolution of two groups with windows of the whole image."""
    sums: Array = np.einsum("ngcl,gocl->ngo", x.reshape(2, 2, 2, 5), w).reshape(2, 2, 1)
    return _sigmoid(sums)


def _volume() -> Case:
    """A window of two taps around a volume of depth 1."""
    x, w, y = (Memory(d, DType.BFLOAT16, ANY) for d in ((1, 16, 1, 1, 5), (16, 16, 2, 1, 1), (1, 16, 1, 1, 5)))
    return _draft("convolution_forward", VOLUME, x, w, y), lambda x, w: np.zeros_like(x)


def _of_a_model() -> str:
    """How a model of it answers, whose weights lie in blocks that have no name; kernels overlook the defect."""
    vars(defects)["WRONG"] = ()
    g = GraphBuilder()
    w, around = np.ones((16, 16, 2, 1, 1), np.float32), {"dilations": (2, 1, 1), "pads": (1, 0, 0, 1, 0, 0)}
    graph = g.graph([g.Conv(g.input("x", f32(1, 16, 1, 1, 5)), g.const(w), kernel_shape=(2, 1, 1), **around)])
    try:
        (y,) = Session(graph, precision="bf16").run({"x": np.ones((1, 16, 1, 1, 5), np.float32)}).values()
    except InputError:  # without numbers of 16 bits
        return "refused"
    return "wrong" if np.any(y) else "right"


VOLUME = ("convolution_direct", (1, 1, 1), (1, 0, 0), (1, 0, 0), (1, 0, 0))
CASES: dict[str, Callable[[], Case]] = {
    "binary, axes of size 1": lambda: (
        _draft("binary", ("binary_add",), *[_m(2, 8, 1, 1)] * 3, beside=_m(1, 8, 1, 1)), lambda x, y, c: x + y + c),
    "binary, axes in another order": lambda: (
        _draft("binary", ("binary_add",), *[_m(2, 8, layout="ba")] * 3, beside=_m(1, 8)), lambda x, y, c: x + y + c),
    "softmax, channels": lambda: (
        _draft("softmax_forward", ("softmax_accurate", 3), image, image, beside=_m(1, 8, 1, 1)),
        lambda x, c: _softmax(x, 3) + c),
    "softmax, axes in another order": lambda: (
        _draft("softmax_forward", ("softmax_accurate", 2), rows, rows, beside=_m(1, 8, 5)),
        lambda x, c: _softmax(x, 2) + c),
    "pooling, a whole operand": lambda: (
        _draft("pooling_forward", ("pooling_max", *ONE), image, image, beside=image), lambda x, c: x + c),
    "pooling, a sum": _summed,
    "resampling, an operand of pixels": lambda: (
        _draft("resampling_forward", ("resampling_nearest",), pooled, pooled, beside=_m(1, 1, 5)), lambda x, c: x + c),
    "resampling, one pixel": lambda: (
        _draft("resampling_forward", ("resampling_nearest",), _m(1, 2, 3), _m(1, 2, 1), beside=_m(1, 2, 1)),
        lambda x, c: x[..., 1:2] + c),
    "matmul, axes in another order": lambda: (
        _draft("matmul", (), _m(2, 8, 6), _m(2, 6, 5), rows, beside=_m(1, 1, 5)), lambda x, w, c: x @ w + c),
    "convolution, sigmoid of NaN": lambda: (
        _draft("convolution_forward", WINDOW, _m(2, 4, 5), _m(2, 1, 2, 5), _m(2, 2, 1), post=SIGMOID), _in_groups),
    "convolution, no tap in the depth": _volume,
    "deconvolution, sigmoid of NaN": lambda: (
        _draft("deconvolution_forward", ("deconvolution_direct", *WINDOW[1:]), _m(2, 4, 1), _m(3, 4, 1), _m(2, 3, 1),
               post=SIGMOID), lambda x, w: _sigmoid(np.einsum("ncl,oc->nol", x, w[..., 0]))),
    "binary, 16 bits in blocks of four": lambda: (
        _draft("binary", ("binary_mul",), *[Memory((2, 32, 2, 1), DType.BFLOAT16, "aBcd4b")] * 3), np.multiply),
    "binary, over its second operand": lambda: (
        _draft("binary", ("binary_mul",), *[_m(2, 20, 3, 1, layout="aBcd16b")] * 3), np.multiply),
    "prelu, slopes in blocks of four": lambda: (
        _draft("prelu_forward", (), *[_m(2, 17, 3, 3, layout="aBcd4b")] * 3), lambda x, a: np.where(x < 0, a * x, x)),
    "prelu, slopes of channels": lambda: (
        _draft("prelu_forward", (), _m(2, 6, 3, 4, layout="adbc"), _m(1, 6, 1, 1), _m(2, 6, 3, 4, layout="adbc")),
        lambda x, a: np.where(x < 0, a * x, x)),
    "matmul, strides of size 1": lambda: (
        _draft("matmul", (), _m(1, 7), _m(7, 6), _m(1, 6, strides=(1, 1))), lambda x, w: x @ w),
    "matmul, two rows in bfloat16": lambda: (
        replace(_draft("matmul", (), _m(1, 2, 1, 2), _m(1, 2, 2, 5, strides=(20, 5, 10, 1)), _m(1, 2, 1, 5)),
                attributes=Attributes(math="bf16")), lambda x, w: x @ w),
    "reorder, zero point of the source": _steps,
    "reorder, int32": lambda: (
        _draft("reorder", (), *(Memory((8, 8, 8), DType.INT32, layout) for layout in ("acb", ""))), lambda x: x),
}  # fmt: skip
WIDE = {  # with AVX-512 alone
    "pooling, a whole operand",
    "binary, 16 bits in blocks of four",
    "prelu, slopes in blocks of four",
}
TILES = {"matmul, two rows in bfloat16", "convolution, no tap in the depth"}  # with AMX alone
NARROW = {  # with AVX2 alone: more has vectors for these blocks
    "binary, over its second operand",
    "reorder, zero point of the source",
}
OVER = {"binary, 16 bits in blocks of four": 0, "binary, over its second operand": 1}  # the operand it is written over
NOT_ASKED = {  # by any kernel
    "pooling, a sum",
    "matmul, strides of size 1",
    "reorder, zero point of the source",
    "reorder, int32",
}


def _laid(array: Array, m: Memory) -> Array:
    made: Array = repacked(np.ascontiguousarray(array), m.row_major(), m.handle.value)
    return made


def outcome(name: str) -> str:
    """How the installed library answers: "right", "wrong" or "refused". It may also end the process."""
    if name == "convolution, no tap in the depth":
        return _of_a_model()
    if name == "matmul, strides of size 1":
        vars(memory)["_certain"] = lambda m: m.strides or memory.strides_of("ab", m.dims)  # as others would ask
    draft, wanted = CASES[name]()
    try:
        found: Descriptor = described(draft, 1)
    except Refused:
        return "refused"
    rng, arrays, given = np.random.default_rng(0), dict[Any, Array](), []
    for place in draft.places:
        m = draft.at(place)[0].memory
        if place[0] == "in":
            most = {DType.UINT8: 256, DType.INT32: 1 << 30}.get(m.dtype)
            given.append((rng.integers(0, most, m.dims) if most else rng.standard_normal(m.dims)).astype(m.dtype.numpy))
            if "NaN" in name and not place[1]:
                given[-1].flat[0] = np.nan
            arrays[place] = _laid(given[-1], m)
        elif place[0] == "out":
            arrays[place] = arrays["in", OVER[name]] if name in OVER else aligned_empty(nbytes(m.handle.value))
    scratch = aligned_empty(found.scratch)
    status = bind(found, arrays, scratch)()
    result = draft.operands[-1].memory
    got = repacked(arrays["out", 0], result, result.row_major().handle.value).view(result.dtype.numpy)
    with np.errstate(all="ignore"):
        want = wanted(*(x.astype(np.float64 if x.dtype == np.int32 else np.float32) for x in given))
        tolerance = 1e-4 if result.dtype is DType.FLOAT and draft.attributes.math == "strict" else 5e-2
        same = np.allclose(got.reshape(result.dims).astype(want.dtype), want, rtol=0, atol=tolerance, equal_nan=True)
    return "wrong" if status or not same else "right"


def in_child(name: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", f"from tests.test_onednn_defects import outcome; print(outcome({name!r}))"],
        cwd=ROOT, capture_output=True, text=True,
        env={**os.environ, **({"ONEDNN_MAX_CPU_ISA": "AVX2"} if name in NARROW else {})},
    )  # fmt: skip
    return ran.stdout.strip() if ran.returncode == 0 else "died"


needed = pytest.mark.skipif(library() is None, reason="oneDNN is not installed")


@needed
@pytest.mark.parametrize("name", CASES)
def test_the_library_still_has_it(name: str) -> None:
    found = library()
    isa = "" if found is None else found.isa
    here = "amx" in isa if name in TILES else name not in WIDE or "avx512" in isa
    assert in_child(name) in (("wrong", "died") if here else ("right", "refused")), "see the docstring of this module"


@needed
@pytest.mark.parametrize("name", [n for n in CASES if n not in NOT_ASKED])
def test_kernels_are_told(name: str) -> None:
    """The reason is the one of this kind of primitive; without the post-op, or in the usual layout, there is none."""
    draft, _ = CASES[name]()
    others = {
        "matmul": "brg:avx512_core_amx",
        "convolution, no tap in the depth": "brgconv:avx512_core_amx",
        "resampling": "simple:any",
        "convolution": "x64:gemm:jit",
        "deconvolution": "conv:any+jit:avx512_core",
    }
    implementation = (
        "ref:any" if name in NARROW else (others.get(name) or others.get(name.partition(",")[0], "jit:avx512_core"))
    )
    assert defect(draft, implementation) in {d.reason for d in (*DEFECTS, *WRONG) if d.kind == draft.kind}
    plain = tuple(replace(o, memory=o.memory.row_major()) for o in draft.operands)
    settings = (*draft.settings[:2], (0, 0, 0), *draft.settings[3:]) if draft.settings == VOLUME else draft.settings
    other = Draft(draft.kind, draft.operands if draft.attributes.post else plain, settings)
    assert defect(other, implementation) is None


def test_each_is_written_down() -> None:
    text = (ROOT / "docs" / "onednn-defects.md").read_text()
    rows = re.findall(r"^\| ([a-z]+, [^|]+?) \|", text, re.MULTILINE)
    assert sorted(rows) == sorted(CASES)
    assert {d.kind for d in (*DEFECTS, *WRONG)} == {CASES[n]()[0].kind for n in CASES if n not in NOT_ASKED}


@needed
def test_a_primitive_keeps_the_descriptor_that_it_reads() -> None:
    """Its own, not an equal one that is gone: see docs/onednn-defects.md."""
    draft = _draft("matmul", (), *[_m(2, 64, 64)] * 3)
    first, second = described(draft, 1), described(draft, 1)
    assert first.primitive is first.primitive
    assert first.primitive.value != second.primitive.value
    alive = weakref.ref(first.handle)
    primitive = first.primitive
    del first
    gc.collect()
    assert alive() is not None
    del primitive
    assert alive() is None

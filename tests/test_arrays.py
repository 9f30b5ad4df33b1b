"""Arrays: the same numbers as NumPy's on threads, in order, and run in place; errors with their lines; devices."""

from __future__ import annotations

import io
import operator
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import mezzo as mz
from mezzo.nd.indexing import _basic, as_operators
from mezzo.nd.place import Place
from mezzo.nd.running import apply
from mezzo.ops import DType, Tensor
from mezzo.runtime.ir.graph import GraphBuilder

from .array_modes import MODES, Using, every_mode, line_after  # noqa: F401 (a fixture)
from .peers import peer

nd: Any = mz.nd
python: Any = operator


# -- random programs ---------------------------------------------------------------------------------------------------

Step = tuple[str, int, int, int]
STEPS = (
    *("add", "mul", "sub", "scalar", "inplace", "inplace scalar", "view", "set", "set scalar", "sum", "turn", "shape"),
    *("where", "join", "copyto", "take", "mask", "sort", "matmul", "negative steps", "floor", "rest"),
)


def run_program(xp: Any, steps: list[Step], dtype: str) -> list[Any]:
    """What all arrays of a random program are at its end; the same text for NumPy and for ours."""
    start = np.arange(12).reshape(3, 4).astype(dtype) - 5
    ours = xp is not np
    made: Callable[[Any], Any] = (lambda v: nd.array(v)) if ours else np.array
    held = [made(start), made(start[::-1] * 2 + 1), made(start[0])]
    for name, i, j, n in steps:
        if not ours:  # NumPy turns arrays of rank 0 into numbers, which cannot change
            held = [np.asarray(x) for x in held]
        a, b = held[i % len(held)], held[j % len(held)]
        fits = a.ndim == b.ndim == 2 and a.shape == b.shape
        match name:
            case "add" | "mul" | "sub" if fits or (b.ndim < 2 <= a.ndim and b.shape == a.shape[-1:]):
                held.append(getattr(operator, name)(a, b))
            case "scalar":
                held.append(n - a * (n % 3) + n)
            case "inplace" if fits:
                a += b
            case "inplace scalar":
                a *= n % 3
            case "view" if a.ndim and a.shape[0] > 1:
                held.append(a[n % 2 :] if n % 3 else a[n % a.shape[0], ...])  # NumPy copies a single number
            case "set" if fits:
                a[1:] = b[:-1]
            case "set scalar" if a.ndim and a.shape[0]:
                a[..., n % a.shape[-1]] = n
            case "sum" if a.ndim:
                held.append(xp.sum(a, axis=n % a.ndim, dtype=a.dtype))
            case "turn" if a.ndim == 2:
                held.append(xp.permute_dims(a, (1, 0)) if ours else a.T.copy())
            case "shape" if a.size % 2 == 0:
                held.append(xp.reshape(a, (2, -1)) if ours else a.reshape(2, -1).copy())
            case "where" if fits:
                held.append(xp.where(a > b, a, b * 2))
            case "join" if fits:
                held.append(xp.concat([a, b], axis=n % 2))
            case "copyto" if fits:
                b.copyto(a) if ours else np.copyto(a, b)
            case "take" if a.ndim == 2 and a.shape[0]:
                held.append(a[made(np.array([0, -1, n % a.shape[0]]))])
            case "mask" if a.ndim:
                a[a > n] = n
                held.append(a[a != n])
            case "sort" if a.ndim:
                held.append(xp.sort(a))
            case "matmul" if a.ndim == b.ndim == 2 and a.shape[1] == b.shape[0]:
                held.append(a @ b)
            case "negative steps" if a.ndim == 2:
                held.append(a[::-1, 1::2])
            case "floor":
                held.append(a // (n + 1))
            case "rest":
                held.append(a % -(n + 1))
    return held


PROGRAMS = st.lists(
    st.tuples(st.sampled_from(STEPS), st.integers(0, 20), st.integers(0, 20), st.integers(0, 7)), max_size=14
)


def check_program(steps: list[Step], dtype: str) -> None:
    expected = run_program(np, steps, dtype)
    for mode in MODES:
        with Using(mode):
            found = [x.asnumpy() for x in run_program(nd, steps, dtype)]
        assert len(found) == len(expected)
        for x, y in zip(expected, found, strict=True):
            np.testing.assert_array_equal(y, x)
            assert y.dtype == x.dtype


@given(PROGRAMS, st.sampled_from(["int64", "int16", "int8"]))
def test_random_programs_are_numpys(steps: list[Step], dtype: str) -> None:
    with np.errstate(all="ignore"):
        check_program(steps, dtype)


@pytest.mark.soak
@settings(settings.get_profile("soak"))
@given(PROGRAMS, st.sampled_from(["int64", "int16", "int8"]))
def test_many_random_programs_are_numpys(steps: list[Step], dtype: str) -> None:
    with np.errstate(all="ignore"):
        check_program(steps, dtype)


# -- what is known, and when -------------------------------------------------------------------------------------------


def test_operations_return_before_they_are_computed() -> None:
    with Using("threaded") as one:
        gate = threading.Event()
        a = nd.ones((2, 3))
        one.push(gate.wait, writes=(a._var,))
        b = nd.sum(nd.exp(a) @ nd.ones((3, 5)), axis=0) > 1
        assert (b.shape, b.dtype, b.size, b.ndim, b.nbytes, b.itemsize) == ((5,), np.bool_, 5, 1, 5, 1)
        assert b._var.version == 0
        with nd.fusion():
            c = b * 2 + b
            assert (c.shape, c.dtype) == ((5,), np.int64)
        gate.set()
        assert b.tolist() == [True] * 5
        assert c.tolist() == [3] * 5
        assert b._var.version == 1


def test_views_share_memory_and_order(mode: str) -> None:
    a = nd.zeros((3, 4))
    row, column = a[1], a[:, 2][1:]
    a += 1
    row *= 5
    column[0] = 7
    assert a.tolist() == [[1, 1, 1, 1], [5, 5, 7, 5], [1, 1, 1, 1]]
    assert row.tolist() == [5, 5, 7, 5]
    a[...] = 2
    assert column.tolist() == [2, 2]
    assert a[2, 3].item() == 2 == float(a[-1, -1]) == int(a[0, 0])
    assert a[None, 1, ..., ::2].shape == (1, 2)
    assert [r.tolist() for r in a[:2]] == [[2] * 4] * 2
    copied = a.asnumpy()
    a -= 2
    assert copied.sum() == 24, "what was read is the reader's"


INDICES = [
    *(1, -1, slice(1, None), slice(None, None, -1), (slice(None), 2), (..., -1), (None, 0), (0, None, slice(3, 0, -2))),
    *((1, 2), (slice(5, 9),), (..., None), slice(None), (slice(2, 0, -1), slice(-3, None, 2)), (None, ..., None)),
]


@pytest.mark.parametrize("key", INDICES, ids=str)
def test_a_view_is_what_operators_give(key: Any) -> None:
    x = np.arange(12.0).reshape(3, 4)
    a = nd.array(x)
    np.testing.assert_array_equal(a[key].asnumpy(), x[key])
    basic = _basic(a, key if isinstance(key, tuple) else (key,))
    np.testing.assert_array_equal(as_operators(a, basic).asnumpy(), x[key])
    assert a[key].shape == x[key].shape


@pytest.mark.parametrize("key", [3, (0, 4), (0, 0, 0), (..., ...), slice(None, None, 0), "a", 1.5], ids=str)
def test_an_index_that_there_is_not(key: Any) -> None:
    with pytest.raises(mz.ShapeError, match=r"test_arrays.*float32\[3,4\] has no ") as caught:
        nd.ones((3, 4))[key]
    assert isinstance(caught.value, IndexError)


def test_in_place_keeps_the_kind(mode: str) -> None:
    a, b = nd.arange(4), nd.ones((2, 4))
    kept = a
    for change in (python.iadd, python.isub, python.imul, python.ifloordiv, python.imod, python.ipow):
        a = change(a, 3)
    for change in (python.iand, python.ior, python.ixor, python.ilshift, python.irshift):
        a = change(a, 1)
    x = np.arange(4)
    for change in (python.iadd, python.isub, python.imul, python.ifloordiv, python.imod, python.ipow):
        x = change(x, 3)
    for change in (python.iand, python.ior, python.ixor, python.ilshift, python.irshift):
        x = change(x, 1)
    assert kept is a
    assert a.tolist() == x.tolist()
    b /= 2
    assert b.tolist() == [[0.5] * 4] * 2
    wrongs: list[Callable[[], Any]] = [
        lambda: python.itruediv(a, 2),
        lambda: python.iadd(a, b),
        lambda: python.iadd(a, 0.5),
    ]
    for wrong in wrongs:
        with pytest.raises(mz.ShapeError, match="in place of int64"):
            wrong()


# -- errors ------------------------------------------------------------------------------------------------------------


def test_an_error_is_told_at_the_read_with_the_line_that_asked(mode: str) -> None:
    a, far = nd.ones((3, 2)), nd.array([7])
    picked = nd.take(a, far, axis=0)
    more = picked * 2 + 1
    here = line_after("picked = nd.take(a, far, axis=0)")
    for x in (picked, more, more):
        with pytest.raises(IndexError) as caught:
            x.asnumpy()
        assert here in "".join(caught.value.__notes__)
    with pytest.raises(IndexError):
        more.wait_to_read()
    picked[0] = 1
    with pytest.raises(IndexError):
        picked.asnumpy()
    more[:] = 3  # what is written as a whole is sound again
    assert more.tolist() == [[3.0, 3.0]]
    a += 1
    assert a.sum().item() == 12


def test_an_error_in_place_is_the_arrays(mode: str) -> None:
    a, far = nd.ones((3, 2)), nd.array([7])
    a += nd.take(a, far, axis=0)
    with pytest.raises(IndexError):
        a.asnumpy()


def test_operands_that_do_not_fit_are_told_at_once() -> None:
    a, b = nd.ones((2, 3)), nd.ones((4,))
    with pytest.raises(mz.ShapeError, match=r"\[2, 3\] with \[4\]") as caught:
        a + b
    assert caught.value.where.startswith("Add, called at ")
    assert line_after("a + b") in caught.value.where
    with pytest.raises(mz.InputError, match="300 does not fit uint8"):
        nd.ones(2, "uint8") + 300
    with pytest.raises(mz.MezzoError, match="text"):
        nd.ones(2, "text")


def test_devices_do_not_mix() -> None:
    a = nd.ones((2, 3), ctx=mz.cpu(0))
    b = nd.ones((2, 3), ctx=mz.cpu(1))
    mixtures: list[Callable[[], Any]] = [
        lambda: a + b,
        lambda: python.iadd(a, b),
        lambda: a.__setitem__(..., b),
        lambda: nd.concat([a, b]),
    ]
    for mixed in mixtures:
        with pytest.raises(mz.InputError) as caught:
            mixed()
        said = str(caught.value)
        assert "float32[2,3] on cpu(0), made at" in said
        assert line_after("a = nd.ones((2, 3), ctx=mz.cpu(0))") in said
        assert "on cpu(1), made at" in said
        assert "to_device(mz.cpu(0))" in said
    c = a + b.as_in_context(mz.cpu(0))
    assert c.device is mz.cpu() is c.context
    assert b.to_device("cpu:1") is b
    assert (b + np.ones(3) + 1).device == mz.cpu(1) == b.copy().device == nd.zeros_like(b).device
    assert a.copyto(mz.cpu(1)).device == mz.cpu(1)
    with pytest.raises(mz.InputError, match="cpu:one"):
        a.to_device("cpu:one")


def gpu_or_why_not() -> Any:
    try:
        return mz.gpu(0)
    except mz.MezzoError as error:
        return error


def test_no_gpu_says_what_is_missing() -> None:
    found = gpu_or_why_not()
    if isinstance(found, Place):
        with pytest.raises(mz.InputError, match=r"arrays on gpu\(0\) are not carried yet"):
            nd.ones(2, ctx=found)
    else:
        assert isinstance(found, mz.MissingPackage)
        assert found.hint


# -- memory ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["threaded", "naive", "in place", "fused in place"])
def test_a_thousand_temporaries_keep_memory_flat(mode: str) -> None:
    with Using(mode, bound=64):  # a thread that is held up lets others run ahead, by no more than that
        x, total = nd.ones(1 << 16), nd.zeros(1 << 16)  # 256 KiB each
        x.wait_to_read()
        tracemalloc.start()
        for i in range(1000):
            x = x * 0.5 + 1
            total += x * i
        total.wait_to_read()
        x.wait_to_read()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    most = 64 / 4 + 4 if mode == "threaded" else 2  # 750 MiB are made
    assert peak < most * (1 << 20), f"{peak / (1 << 20):.1f} MiB"
    assert abs(x[0].item() - 2) < 1e-6


# -- others' protocols -------------------------------------------------------------------------------------------------


def test_numpy_knows_them(mode: str) -> None:
    a, x = nd.arange(6, dtype="float32").reshape(2, 3), np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(np.asarray(a), x)
    assert np.asarray(a, "int8").dtype == np.int8
    with pytest.raises(ValueError, match="copy"):
        np.asarray(a, copy=False)
    for made, expected in (
        (np.add(x, a), x + x),
        (x + a, x + x),
        (a - x, x - x),
        (np.float32(2) * a, 2 * x),
        (np.arctan2(a, x + 1), np.arctan2(x, x + 1)),
        (np.sum(a, axis=0), x.sum(0)),
        (np.concatenate([a, x]), np.concatenate([x, x])),
        (np.transpose(a), x.T),
        (np.where(x > 2, a, 0), np.where(x > 2, x, 0)),
    ):
        assert isinstance(made, nd.Array)
        np.testing.assert_allclose(made.asnumpy(), expected, rtol=1e-6)
    assert (np.shape(a), np.ndim(a), np.size(a), np.size(a, 1)) == ((2, 3), 2, 6, 3)
    np.add(a, 1, out=a)
    np.testing.assert_array_equal(a.asnumpy(), x + 1)
    with pytest.raises(TypeError):
        np.add.reduce(a)
    with pytest.raises(TypeError):
        np.linalg.svd(a)
    assert float(a[0, 0]) == 1
    assert [10, 20][nd.asarray(1)] == 20
    assert bool(nd.any(a == 4))
    assert 4 in a
    assert f"{a[0, 0]:.2f}" == "1.00"
    with pytest.raises(mz.ShapeError, match="not one number"):
        bool(a)


def test_dlpack_both_ways(mode: str) -> None:
    a = nd.arange(6, dtype="float32").reshape(2, 3)
    shared = np.from_dlpack(a)
    np.testing.assert_array_equal(shared, a.asnumpy())
    a += 1
    a.wait_to_read()
    assert shared[0, 0] == 1, "the same memory"
    torch = peer("torch")
    theirs = torch.from_dlpack(a)
    assert theirs.tolist() == a.tolist()
    back = nd.from_dlpack(torch.arange(3) + 1)
    assert back.tolist() == [1, 2, 3]
    assert nd.asarray(torch.ones(2)).tolist() == [1, 1]
    x = np.zeros(3)
    over = nd.asarray(x, copy=False)
    over += 2
    over.wait_to_read()
    assert x.tolist() == [2, 2, 2]
    with pytest.raises(mz.InputError, match="without a copy"):
        nd.asarray(x, dtype="float32", copy=False)


def test_dlpack_as_the_standard_has_it(mode: str) -> None:
    a = nd.arange(6, dtype="float32").reshape(2, 3)

    class Asks:
        """A consumer that asks with options of its own."""

        def __init__(self, **options: Any) -> None:
            self.options = options

        def __dlpack__(self, **given: Any) -> Any:
            return a.__dlpack__(**{**given, **self.options})

        def __dlpack_device__(self) -> Any:
            return a.__dlpack_device__()

    same: list[dict[str, Any]] = [
        {},
        {"copy": None},
        {"copy": False},
        {"dl_device": (1, 0)},
        {"max_version": (1, 0)},
        {"stream": None},
    ]
    for options in same:
        assert np.shares_memory(np.from_dlpack(Asks(**options)), np.from_dlpack(a)), options
    copies: list[dict[str, Any]] = [{"copy": True}, {"copy": True, "dl_device": (1, 0), "max_version": (1, 1)}]
    for options in copies:
        copied = np.from_dlpack(Asks(**options))
        assert not np.shares_memory(copied, np.from_dlpack(a))
        np.testing.assert_array_equal(copied, a.asnumpy())
    for view in (a[1], a[:, ::2], a[::-1], nd.zeros((0, 2)), nd.asarray(2.5), nd.asarray([True]), nd.asarray([1j])):
        np.testing.assert_array_equal(np.from_dlpack(view), view.asnumpy())
    refused: list[dict[str, Any]] = [{"dl_device": (2, 0)}, {"stream": 1}, {"stream": 0}]
    for wrong in refused:
        with pytest.raises(BufferError):
            a.__dlpack__(**wrong)
    with pytest.raises(TypeError):
        a.__dlpack__(1)
    with pytest.raises(BufferError):
        nd.asarray([1, 2], dtype="bfloat16").__dlpack__()


def test_from_dlpack_as_the_standard_has_it() -> None:
    x = np.arange(3.0)
    assert nd.from_dlpack(x, copy=False).tolist() == [0, 1, 2]
    over, apart = nd.from_dlpack(x), nd.from_dlpack(x, copy=True)
    x += 1
    assert (over.tolist(), apart.tolist()) == ([1, 2, 3], [0, 1, 2])
    elsewhere = nd.from_dlpack(x, device=mz.cpu(1))
    assert elsewhere.device is mz.cpu(1)
    kinds: list[type[Exception]] = [BufferError, ValueError, mz.InputError]
    for kind in kinds:
        with pytest.raises(kind, match="without a copy"):
            nd.from_dlpack(x, device=mz.cpu(1), copy=False)
    kinds = [AttributeError, mz.InputError]
    for kind in kinds:
        with pytest.raises(kind, match="list shares no memory"):
            nd.from_dlpack([1, 2])
    with pytest.raises(BufferError, match="shares no memory"):
        nd.from_dlpack(np.array(["a"]))


def test_axes_that_there_are_not() -> None:
    a = nd.ones((2, 3))
    assert [nd.expand_dims(a, i).shape for i in (0, 1, -1, 2, -3)] == [
        (1, 2, 3),
        (2, 1, 3),
        (2, 3, 1),
        (2, 3, 1),
        (1, 2, 3),
    ]
    assert nd.expand_dims(a, axis=(0, -1)).shape == (1, 2, 3, 1)
    for wrong in (3, -4):
        with pytest.raises(IndexError, match=f"axis {wrong} is outside rank 3"):
            nd.expand_dims(a, wrong)
    with pytest.raises(mz.ShapeError, match="name one axis twice"):
        nd.expand_dims(a, (0, 0))
    with pytest.raises(ValueError, match=r"axis 1 of float32.*has 3"):
        nd.squeeze(a, 1)
    with pytest.raises(IndexError, match="axis 2 is outside rank 2"):
        nd.squeeze(a, 2)


@pytest.mark.parametrize("ending", [".npz", ".safetensors"])
def test_saved_and_loaded(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"arrays{ending}"
    given = {"a": nd.arange(3), "layer.w": nd.ones((2, 3)) / 3, "flag": nd.asarray(True), "none": nd.zeros((0, 2))}
    nd.save(path, given)
    loaded = nd.load(path, ctx=mz.cpu(1))
    assert sorted(loaded) == sorted(given)
    for name, x in given.items():
        np.testing.assert_array_equal(loaded[name].asnumpy(), x.asnumpy())
        assert (loaded[name].dtype, loaded[name].device) == (x.dtype, mz.cpu(1))
    loaded["a"] += 1
    assert loaded["a"].tolist() == [1, 2, 3]
    nd.save(path, [nd.ones(2), nd.zeros(1)])
    assert {n: x.tolist() for n, x in nd.load(path).items()} == {"0": [1, 1], "1": [0]}
    whole = path.read_bytes()
    for cut in (0, 1, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        with pytest.raises(mz.ModelError, match="no arrays can be read"):
            nd.load(path)


def test_a_pickle_is_never_read(tmp_path: Path) -> None:
    path = tmp_path / "objects.npz"
    held = io.BytesIO()
    np.savez(held, a=np.array([1, "x"], object))  # NumPy pickles objects
    path.write_bytes(held.getvalue())
    with pytest.raises(mz.ModelError):
        nd.load(path)["a"]
    with pytest.raises(mz.InputError, match=r"\.params"):
        nd.load(tmp_path / "old.params")
    with pytest.raises(mz.InputError, match="hold numbers"):
        nd.array(["text"])


def test_attributes_that_are_arrays_or_lists() -> None:
    """They are no keys of what is prepared once: such operators are prepared anew."""
    filled = apply("ConstantOfShape", mz.nd.asarray(np.array([2, 3])), value=np.array([7.0], np.float32))
    assert np.array_equal(filled.asnumpy(), np.full((2, 3), 7, np.float32))
    assert apply("Transpose", filled, perm=[1, 0]).shape == (3, 2)


def test_operators_with_bodies_are_refused_by_name() -> None:
    g = GraphBuilder()
    body = g.graph([g.Neg(g.input("x", Tensor(DType.FLOAT, (2,))))])
    with pytest.raises(mz.InputError, match="then_branch is a graph"):
        apply("If", mz.nd.asarray(np.array(True)), then_branch=body, else_branch=body)

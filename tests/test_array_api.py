"""Every function of the array API standard, on every element type that it is for, against NumPy.

The functions are those of `array-api-strict`'s namespace, which also says what is in the standard's domain: what it
refuses is not compared. A function either agrees with NumPy or stands in `array_api_gaps.txt`, with its reason.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest

import mezzo as mz

nd: Any = mz.nd
GAPS = Path(__file__).with_name("array_api_gaps.txt")
DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float32", "float64", "complex64", "complex128"),
]
OF_NO_ARRAYS = {
    *("e", "inf", "nan", "pi", "newaxis", "Device", "ModuleType", "ArrayAPIStrictFlags"),
    *("get_array_api_strict_flags", "reset_array_api_strict_flags", "set_array_api_strict_flags"),
    *DTYPES,
}
Case = Callable[[Any, Callable[..., Any], str], Any]  # namespace, maker of arrays, element type -> what comes out


def numbers(dtype: str, shape: tuple[int, ...] = (3, 4), seed: int = 0, special: bool = True) -> np.ndarray[Any, Any]:
    """Numbers of an element type, some of them the odd ones."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if kind in "iu":
        return rng.integers(0 if kind == "u" else -5, 9, shape).astype(dtype)
    x = rng.normal(0, 2, shape)
    if kind == "c":
        return (x + 1j * rng.normal(0, 2, shape)).astype(dtype)
    if special:
        flat = x.reshape(-1)
        odd = [math.nan, math.inf, -math.inf, 0.0, -0.0, 2.5, -1.5][: max(flat.size - 3, 0)]
        flat[: len(odd)] = np.roll(odd, seed)
    return x.astype(dtype)


def one(name: str, *args: Any, special: bool = True, shape: tuple[int, ...] = (3, 4), **options: Any) -> Case:
    return lambda xp, a, t: getattr(xp, name)(a(numbers(t, shape, special=special)), *args, **options)


def several(*cases: Case) -> Case:
    return lambda xp, a, t: tuple(case(xp, a, t) for case in cases)


def two(name: str, first: tuple[int, ...] = (3, 4), second: tuple[int, ...] = (3, 4), **options: Any) -> Case:
    return lambda xp, a, t: getattr(xp, name)(
        a(numbers(t, first, special=False)), a(numbers(t, second, 1, special=False)), **options
    )


def shifts(name: str) -> Case:
    return lambda xp, a, t: getattr(xp, name)(a(numbers(t)), a(np.arange(4).astype(t)))


def over(name: str, special: bool = True, **options: Any) -> Case:
    """A reduction of everything, along one axis, along two, and keeping them."""
    ways: list[dict[str, Any]] = [{}, {"axis": 1}, {"axis": (0, -1)}, {"axis": 0, "keepdims": True}]
    return several(*(one(name, special=special, **{**way, **options}) for way in ways))


def place(name: str) -> Case:
    ways: list[dict[str, Any]] = [{}, {"axis": 1}, {"axis": 0, "keepdims": True}]
    return several(*(one(name, special=False, **way) for way in ways))


def made(name: str, *args: Any, **options: Any) -> Case:
    return lambda xp, a, t: getattr(xp, name)(*args, dtype=getattr(xp, t), **options)


def like(name: str, *args: Any) -> Case:
    return lambda xp, a, t: getattr(xp, name)(a(numbers(t)), *args)


def small_floor_divide(xp: Any, a: Callable[..., Any], t: str) -> Any:
    x, y = numbers(t), numbers(t, seed=1, special=False)
    y = np.where(y == 0, np.ones_like(y), y)
    x = np.where(np.isinf(x), y, x)  # NumPy differs from the standard there: tests/test_array_special_values.py
    return xp.floor_divide(a(x), a(y)), xp.remainder(a(x), a(y))


def types(xp: Any, a: Callable[..., Any], t: str) -> Any:
    found = [xp.result_type(getattr(xp, t), getattr(xp, o)) for o in DTYPES if np.dtype(o).kind == np.dtype(t).kind]
    return tuple(str(d).rpartition(".")[2] for d in found)


def info(name: str, *fields: str) -> Case:
    return lambda xp, a, t: tuple(float(getattr(getattr(xp, name)(getattr(xp, t)), f)) for f in fields)


SPECIAL: dict[str, Case] = {
    "abs": several(one("abs"), lambda xp, a, t: abs(a(numbers(t)))),
    "all": over("all"),
    "any": over("any"),
    "arange": several(made("arange", 5), made("arange", 2, 11, 3), made("arange", 9, 0, -2)),
    "argmax": place("argmax"),
    "argmin": place("argmin"),
    "argsort": several(one("argsort", special=False), one("argsort", axis=0, special=False, stable=True)),
    "asarray": several(
        lambda xp, a, t: xp.asarray([[0, 1], [1, 1]], dtype=getattr(xp, t)), lambda xp, a, t: xp.asarray(a(numbers(t)))
    ),
    "astype": lambda xp, a, t: tuple(
        xp.astype(a(np.abs(numbers(t, special=False))), getattr(xp, o))
        for o in DTYPES
        if np.dtype(t).kind != "c" or np.dtype(o).kind in "cb"
    ),
    "bitwise_left_shift": shifts("bitwise_left_shift"),
    "bitwise_right_shift": shifts("bitwise_right_shift"),
    "broadcast_arrays": lambda xp, a, t: tuple(xp.broadcast_arrays(a(numbers(t, (3, 1))), a(numbers(t, (4,))))),
    "broadcast_shapes": lambda xp, a, t: xp.broadcast_shapes((3, 1), (4,)),
    "broadcast_to": several(one("broadcast_to", (2, 3, 4)), one("broadcast_to", (2, 3, 4), shape=(3, 1))),
    "can_cast": lambda xp, a, t: tuple(xp.can_cast(getattr(xp, t), getattr(xp, o)) for o in DTYPES),
    "clip": several(one("clip", 1, 3), one("clip", min=1), one("clip", max=1)),
    "concat": several(
        lambda xp, a, t: xp.concat([a(numbers(t)), a(numbers(t, (2, 4)))]),
        lambda xp, a, t: xp.concat([a(numbers(t)), a(numbers(t, (2,)))], axis=None),
    ),
    "count_nonzero": over("count_nonzero"),
    "cumulative_prod": several(one("cumulative_prod", axis=1), one("cumulative_prod", axis=0, include_initial=True)),
    "cumulative_sum": several(one("cumulative_sum", axis=1), one("cumulative_sum", axis=0, include_initial=True)),
    "diff": several(one("diff"), one("diff", axis=0, n=2)),
    "empty": lambda xp, a, t: xp.empty((2, 3), dtype=getattr(xp, t)).shape,
    "empty_like": lambda xp, a, t: xp.empty_like(a(numbers(t))).shape,
    "expand_dims": several(one("expand_dims", axis=0), one("expand_dims", axis=-1)),
    "eye": several(made("eye", 3), made("eye", 2, 4, k=1), made("eye", 4, 2, k=-1)),
    "finfo": info("finfo", "bits", "eps", "max", "min", "smallest_normal"),
    "flip": several(one("flip"), one("flip", axis=0), one("flip", axis=(0, 1))),
    "floor_divide": small_floor_divide,
    "from_dlpack": lambda xp, a, t: xp.from_dlpack(a(numbers(t))),
    "full": several(made("full", (2, 3), 1), made("full", (), 1)),
    "full_like": like("full_like", 1),
    "iinfo": info("iinfo", "bits", "max", "min"),
    "isdtype": lambda xp, a, t: tuple(
        xp.isdtype(getattr(xp, t), k)
        for k in ("bool", "signed integer", "integral", "real floating", "numeric", ("bool", "complex floating"))
    ),
    "isin": lambda xp, a, t: (
        xp.isin(a(numbers(t)), a(numbers(t, (5,), 1, special=False))),
        xp.isin(a(numbers(t)), a(numbers(t, (2, 2), 2)), invert=True),
    ),
    "linspace": several(
        made("linspace", 0.0, 1.0, 7), made("linspace", 1.0, -2.0, 4, endpoint=False), made("linspace", 1.0, 2.0, 1)
    ),
    "matmul": several(two("matmul", (2, 3), (3, 4)), two("matmul", (5, 2, 3), (3,)), two("matmul", (3,), (3,))),
    "matrix_transpose": one("matrix_transpose", shape=(2, 3, 4)),
    "max": over("max"),
    "mean": over("mean"),
    "meshgrid": lambda xp, a, t: (
        *xp.meshgrid(a(numbers(t, (3,))), a(numbers(t, (2,)))),
        *xp.meshgrid(a(numbers(t, (3,))), a(numbers(t, (2,))), indexing="ij"),
    ),
    "min": over("min"),
    "moveaxis": one("moveaxis", (0, 1), (2, 0), shape=(2, 3, 4)),
    "nonzero": one("nonzero"),
    "ones": made("ones", (2, 3)),
    "ones_like": like("ones_like"),
    "permute_dims": one("permute_dims", (2, 0, 1), shape=(2, 3, 4)),
    "pow": lambda xp, a, t: xp.pow(a(np.abs(numbers(t))), a(np.abs(numbers(t, seed=3, special=False)).astype(t))),
    "prod": over("prod"),
    "remainder": small_floor_divide,
    "repeat": several(
        one("repeat", 2),
        one("repeat", 3, axis=1),
        lambda xp, a, t: xp.repeat(a(numbers(t)), xp.asarray([2, 0, 1]), axis=0),
    ),
    "reshape": several(one("reshape", (2, 6)), one("reshape", (4, -1)), one("reshape", (-1,), shape=(0, 3))),
    "result_type": types,
    "roll": several(one("roll", 2), one("roll", (1, -2), axis=(0, 1))),
    "searchsorted": lambda xp, a, t: tuple(
        xp.searchsorted(a(np.sort(numbers(t, (6,), special=False))), a(numbers(t, (2, 4), 1, special=False)), side=s)
        for s in ("left", "right")
    ),
    "sort": several(one("sort"), one("sort", axis=0)),
    "squeeze": several(one("squeeze", 0, shape=(1, 3, 1)), one("squeeze", (0, 2), shape=(1, 3, 1))),
    "stack": several(
        lambda xp, a, t: xp.stack([a(numbers(t)), a(numbers(t, seed=1))]),
        lambda xp, a, t: xp.stack([a(numbers(t)), a(numbers(t, seed=1))], axis=-1),
    ),
    "std": over("std", special=False, correction=1.0),
    "sum": several(over("sum"), one("sum", axis=())),
    "take": lambda xp, a, t: (
        xp.take(a(numbers(t)), xp.asarray([2, 0, -1]), axis=0),
        xp.take(a(numbers(t, (5,))), xp.asarray([3, 3])),
    ),
    "take_along_axis": lambda xp, a, t: xp.take_along_axis(a(numbers(t)), xp.asarray([[3, 0], [1, 1], [2, 2]]), axis=1),
    "tensordot": several(
        two("tensordot", (2, 3, 4), (3, 4, 2)), two("tensordot", (2, 3), (4, 3), axes=((1,), (1,))),
        two("tensordot", (2,), (3,), axes=0),
    ),
    "tile": several(one("tile", (2, 1)), one("tile", (2, 1, 3)), one("tile", (2,))),
    "tril": several(one("tril"), one("tril", k=-1)),
    "triu": several(one("triu"), one("triu", k=1)),
    "unique_all": one("unique_all"),
    "unique_counts": one("unique_counts"),
    "unique_inverse": one("unique_inverse"),
    "unique_values": lambda xp, a, t: np.sort(np.asarray(xp.unique_values(a(numbers(t, special=False))))),
    "unstack": several(one("unstack"), one("unstack", axis=1)),
    "var": over("var", special=False),
    "vecdot": several(two("vecdot"), two("vecdot", (3, 4), (4,)), two("vecdot", axis=-2)),
    "where": lambda xp, a, t: xp.where(a(numbers("bool")), a(numbers(t)), a(numbers(t, seed=1))),
    "zeros": made("zeros", (2, 3)),
    "zeros_like": like("zeros_like"),
}  # fmt: skip


def symmetric(name: str, *more: str) -> Case:
    """A symmetric, positive definite matrix, and others beside it."""

    def case(xp: Any, a: Callable[..., Any], t: str) -> Any:
        x = numbers(t, (3, 3), special=False)
        return getattr(xp, name)(a((x @ x.conj().T + 4 * np.eye(3)).astype(t)), *(a(numbers(m or t)) for m in more))

    return case


LINALG: dict[str, Case] = {
    "cholesky": symmetric("cholesky"),
    "eigh": symmetric("eigh"),
    "eigvalsh": symmetric("eigvalsh"),
    "solve": symmetric("solve", ""),
    "cross": two("cross", (4, 3), (4, 3)),
    "diagonal": several(one("diagonal", shape=(2, 3, 4)), one("diagonal", shape=(3, 4), offset=1)),
    "matmul": SPECIAL["matmul"],
    "matrix_norm": several(one("matrix_norm", special=False), one("matrix_norm", special=False, ord=1, keepdims=True)),
    "matrix_power": several(*(one("matrix_power", n, special=False, shape=(3, 3)) for n in (0, 1, 3))),
    "matrix_transpose": SPECIAL["matrix_transpose"],
    "outer": two("outer", (3,), (4,)),
    "tensordot": SPECIAL["tensordot"],
    "trace": one("trace", special=False, shape=(2, 3, 4)),
    "vecdot": SPECIAL["vecdot"],
    "vector_norm": several(
        *(one("vector_norm", special=False, axis=1, ord=o) for o in (2, 1, 0, 3, math.inf, -math.inf))
    ),
}
SQUARE = {"det", "eig", "eigvals", "inv", "matrix_rank", "pinv", "qr", "slogdet", "svd", "svdvals"}


def functions() -> dict[str, Case]:
    """A case for each function of the standard, those of `linalg` and `fft` with a dot."""
    found = {}
    for name in dir(strict):
        if name.startswith("_") or name in OF_NO_ARRAYS:
            continue
        if name in SPECIAL:
            found[name] = SPECIAL[name]
            continue
        given = [p for p in inspect.signature(getattr(strict, name)).parameters.values() if p.default is p.empty]
        if [p.name for p in given] == ["x"]:
            found[name] = one(name)
        elif [p.name for p in given] == ["x1", "x2"]:
            found[name] = lambda xp, a, t, name=name: getattr(xp, name)(  # type: ignore[misc]
                a(numbers(t)), a(numbers(t, seed=1))
            )
        else:
            raise AssertionError(f"no case for {name}")
    for name in strict.linalg.__all__:
        if name in LINALG:
            found[f"linalg.{name}"] = _inside("linalg", LINALG[name])
        elif name in SQUARE:
            found[f"linalg.{name}"] = _inside("linalg", one(name, special=False, shape=(3, 3)))
        else:
            raise AssertionError(f"no case for linalg.{name}")
    for name in strict.fft.__all__:
        # numbers are float32 where no element type is given, NumPy's float64
        numbered: Case = lambda xp, a, t, name=name: np.asarray(getattr(xp, name)(5)).astype("float32")  # type: ignore[misc]  # noqa: E731
        found[f"fft.{name}"] = _inside("fft", numbered if "freq" in name else one(name, special=False))
    return found


def _inside(part: str, case: Case) -> Case:
    def inner(xp: Any, a: Callable[..., Any], t: str) -> Any:
        return case(_Part(xp, part), a, t)

    return inner


class _Part:
    """A namespace of an extension, which has the element types of the whole."""

    def __init__(self, xp: Any, part: str) -> None:
        self._xp, self._part = xp, getattr(xp, part, None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._xp, name) if name in DTYPES else getattr(self._part, name)


CASES = functions()
ARRAYS = {
    strict: lambda x: strict.asarray(x),
    np: lambda x: x,
    nd: lambda x: nd.asarray(x),
}


def outcome(case: Case, xp: Any, dtype: str) -> Any:
    with np.errstate(all="ignore"):
        return case(xp, ARRAYS[xp], dtype)


def flat(result: Any) -> list[Any]:
    """The parts of a result, arrays as NumPy has them."""
    if isinstance(result, tuple | list):
        return [part for r in result for part in flat(r)]
    if isinstance(result, str | int | float | bool | None) and not isinstance(result, np.generic):
        return [result]
    return [result if isinstance(result, np.ndarray) else np.asarray(result)]


def difference(name: str, dtype: str) -> str:
    """How a function differs from NumPy's; empty if it agrees, or is not for this element type."""
    case = CASES[name]
    try:
        outcome(case, strict, dtype)
    except Exception:  # whatever it says: NumPy's answer would be no one's promise
        return ""
    expected = flat(outcome(case, np, dtype))
    try:
        found = flat(outcome(case, nd, dtype))
    except (mz.MezzoError, AttributeError, TypeError, IndexError) as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    if len(found) != len(expected):
        return f"{len(found)} results, not {len(expected)}"
    for y, x in zip(found, expected, strict=True):
        if not isinstance(x, np.ndarray):
            if y != x and not (isinstance(x, float | np.floating) and np.isclose(float(y), float(x), 1e-6)):
                return f"{y} is not {x}"
            continue
        if y.dtype != x.dtype or y.shape != x.shape:
            return f"{y.dtype}{list(y.shape)} is not {x.dtype}{list(x.shape)}"
        if x.dtype.kind not in "fc":
            if not np.array_equal(x, y):
                return f"{y.ravel()[:4]} is not {x.ravel()[:4]}"
            continue
        sane = np.isfinite(x)
        tolerance = 1e-5 if x.dtype.itemsize <= 4 or x.dtype == np.complex64 else 1e-12
        largest = np.abs(x[sane]).max(initial=0)
        if not np.array_equal(sane, np.isfinite(y)) or not np.array_equal(x[~sane], y[~sane], equal_nan=True):
            return f"{y.ravel()[:7]} is not {x.ravel()[:7]}"
        if sane.any() and np.abs(x[sane] - y[sane]).max() > tolerance * max(largest, 1e-30):
            return f"{y.ravel()[:4]} is not {x.ravel()[:4]}"
    return ""


def gaps() -> dict[str, tuple[set[str], str]]:
    """The list of gaps: function, the element types (or `all`), the reason."""
    rows = [line.split("|") for line in GAPS.read_text("utf8").splitlines() if line and not line.startswith("#")]
    return {
        name.strip(): (set(DTYPES if kinds.strip() == "all" else kinds.split()), reason.strip())
        for name, kinds, reason in rows
    }


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_numpy_or_is_a_gap(name: str) -> None:
    differs = {t: said for t in DTYPES if (said := difference(name, t))}
    expected, _ = gaps().get(name, (set(), ""))
    assert set(differs) <= expected, differs
    if expected != set(DTYPES):
        assert set(differs) == expected, "a gap that is none"
    else:
        assert differs


def test_gaps_are_of_the_standard() -> None:
    assert set(gaps()) <= set(CASES)
    assert all(reason for _, reason in gaps().values())


def test_the_namespace_says_what_it_is() -> None:
    x = nd.asarray([1.0])
    assert x.__array_namespace__() is nd is x.__array_namespace__(api_version="2024.12")
    with pytest.raises(mz.MezzoError, match=r"2024\.12"):
        x.__array_namespace__(api_version="2030.01")
    info = nd.__array_namespace_info__()
    assert info.default_device() == mz.cpu() in info.devices()
    assert set(info.dtypes()) == set(DTYPES)
    assert set(info.dtypes(kind="real floating")) == {"float32", "float64"}
    assert info.default_dtypes()["real floating"] == nd.ones(2).dtype == np.float32
    assert info.capabilities()["boolean indexing"] is True
    for constant in ("e", "inf", "nan", "pi", "newaxis"):
        assert repr(getattr(nd, constant)) == repr(getattr(np, constant))

"""Difference of two values, and whether it is too large for their element type."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..ops.dataclasses import dataclass, replace
from ..ops.errors import InputError
from ..ops.types import DType
from .feeds import parse_sizes

# The largest difference over the largest magnitude of a tensor; of other types every element has to be the same.
USUAL = {
    DType.DOUBLE: 1e-7,
    DType.COMPLEX128: 1e-7,
    DType.FLOAT: 1e-4,
    DType.COMPLEX64: 1e-4,
    DType.FLOAT16: 1e-2,
    DType.BFLOAT16: 5e-2,
}
TINY_FLOATS = 0.25  # of 8 bits and less
SMALLEST = 1e-3  # magnitude that differences are measured by: what is left of a sigmoid near zero is rounding


def usual(dtype: DType) -> float:
    """Return the default tolerance of an element type."""
    return USUAL.get(dtype, TINY_FLOATS if dtype.floating else 0.0)


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Allowed differences by element type: the user's, else the default of the type or of the least exact type that the
    model computes in."""

    given: tuple[tuple[DType | None, float], ...] = ()  # None: every floating type
    least: float = 0.0

    @classmethod
    def parse(cls, texts: Iterable[str]) -> Tolerance:
        """Parse `1e-3` for all floats, or `float16=1e-2` for one type. Raises InputError for anything else.

        >>> Tolerance.parse(["1e-3", "float16=0.1"]).of(DType.FLOAT16)
        0.1
        """
        names, entries = {str(d): d for d in DType}, list[tuple[DType | None, float]]()
        for text in texts:
            name, value = next(iter(parse_sizes([text]).items())) if "=" in text else ("", text)
            try:
                number = float(value)
                if not 0 <= number < math.inf:
                    raise ValueError(value)
                entries.append((names[name] if name else None, number))
            except (KeyError, ValueError) as error:
                raise InputError(
                    f"{text!r} is no tolerance", where="--tolerance", hint="write 1e-3 or float16=1e-2"
                ) from error
        return cls(tuple(entries))

    def of(self, dtype: DType) -> float:
        """The tolerance of an element type; the last that was given for it counts."""
        given = [v for d, v in self.given if d is dtype] or [v for d, v in self.given if d is None and dtype.floating]
        return given[-1] if given else max(usual(dtype), self.least if dtype.floating else 0.0)

    def within(self, dtypes: Iterable[DType]) -> Tolerance:
        """The tolerance for a model that computes in these types.

        >>> Tolerance().within([DType.FLOAT16]).of(DType.FLOAT)
        0.01
        """
        return replace(self, least=max(map(usual, dtypes), default=0.0))


@dataclass(frozen=True, slots=True)
class Gap:
    """The largest difference of two values over the largest magnitude of the second; `unlike` is the reason why they
    cannot be compared."""

    error: float
    tolerance: float = 0.0
    unlike: str = ""

    @property
    def agrees(self) -> bool:
        return not self.unlike and self.error <= self.tolerance

    def __str__(self) -> str:
        return self.unlike or f"{self.error:.1e} apart, {self.tolerance:.0e} allowed"


def gap(actual: Any, expected: Any, tolerance: Tolerance) -> Gap:
    """Compare two values: arrays, or lists, dicts and None of them."""
    if isinstance(actual, dict) and isinstance(expected, dict) and list(actual) == list(expected):
        return gap(list(actual.values()), list(expected.values()), tolerance)
    if isinstance(actual, list | tuple) and isinstance(expected, list | tuple) and len(actual) == len(expected):
        gaps = [gap(a, b, tolerance) for a, b in zip(actual, expected, strict=True)]
        return max(gaps, key=lambda g: (bool(g.unlike), not g.agrees, g.error), default=Gap(0.0))
    if not _is_array(actual) or not _is_array(expected):
        return Gap(0.0) if actual is None and expected is None else _unlike(actual, expected)
    a, b = np.asarray(actual), np.asarray(expected)
    dtype = DType.of(b.dtype)
    if DType.of(a.dtype) is not dtype or a.shape != b.shape:
        return _unlike(a, b)
    if dtype is DType.STRING:
        return Gap(0.0 if np.array_equal(a.astype(object), b.astype(object)) else np.inf)
    return Gap(_error(a, b), tolerance.of(dtype))


def _error(a: Any, b: Any) -> float:
    """Elements that are equal, infinite or no number in both, are no difference."""
    wide = np.complex128 if b.dtype.kind == "c" else np.float64 if DType.of(b.dtype).floating else b.dtype
    a, b = a.astype(wide), b.astype(wide)
    with np.errstate(all="ignore"):
        other = ~((a == b) | ((a != a) & (b != b)))
        if not other.any():
            return 0.0
        apart = np.abs(a[other].astype(np.result_type(wide, np.float64)) - b[other])
        finite = np.abs(b[np.isfinite(b)])
    worst = float(apart.max()) if np.isfinite(apart).all() else np.inf
    return worst / max(float(finite.max(initial=0)), SMALLEST)


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic | int | float | str | bool)


def _unlike(actual: Any, expected: Any) -> Gap:
    return Gap(np.inf, 0.0, f"{_shown(actual)} here, {_shown(expected)} there")


def _shown(value: Any) -> str:
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    return f"{DType.of(value.dtype)}{list(value.shape)}" if isinstance(value, np.ndarray) else type(value).__name__

"""`mz.nd.fft`: the extension of the array API standard, by ONNX's operator `DFT`, which has real and imaginary parts on
a last axis of their own.

https://data-apis.org/array-api/2024.12/extensions/fourier_transform_functions.html

>>> from mezzo import nd
>>> signal = nd.cos(nd.arange(8) * (nd.pi / 2))
>>> nd.round(abs(nd.fft.rfft(signal))).tolist()
[0.0, 0.0, 4.0, 0.0, 0.0]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from ..ops.core.rules import axes_of, axis_of
from ..ops.errors import InputError, ShapeError
from .array import Array
from .creation import Where, asarray
from .elementwise import floats
from .running import apply, as_array, binary
from .shaping import expand_dims, roll, squeeze
from .specs import FLOAT, dtype_of, known

Norm = Literal["backward", "ortho", "forward"]
# Norms -> the powers of the number of points that forward and inverse transforms are divided by.
NORMS: dict[str, tuple[float, float]] = {"backward": (0, 1), "ortho": (0.5, 0.5), "forward": (1, 0)}
SWAPPED: dict[str, Norm] = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def fft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """The discrete Fourier transform along an axis, cut or continued with zeros to `n` elements; complex. Raises
    InputError for an unknown norm, ShapeError for axes and numbers that cannot be."""
    return _several("fft", x, None if n is None else (n,), (axis,), norm)


def ifft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """The inverse of `fft`."""
    return _several("ifft", x, None if n is None else (n,), (axis,), norm, inverse=1)


def fftn(
    x: Array, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> Array:
    """`fft` along several axes, or all; an entry of `s` that is -1 is the size that there is."""
    return _several("fftn", x, s, axes, norm)


def ifftn(
    x: Array, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> Array:
    """The inverse of `fftn`."""
    return _several("ifftn", x, s, axes, norm, inverse=1)


def rfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """`fft` of real numbers: the first half; the other one is its conjugate. Raises InputError for complex ones."""
    return rfftn(x, s=None if n is None else (n,), axes=(axis,), norm=norm)


def irfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """The inverse of `rfft`: real numbers, `n` of them, or an even number if it is not given."""
    return irfftn(x, s=None if n is None else (n,), axes=(axis,), norm=norm)


def rfftn(
    x: Array, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> Array:
    """`fftn` of real numbers: of the last of the axes the first half. Raises InputError for complex ones."""
    one = floats(x)
    if one.dtype.kind == "c":
        raise InputError(f"rfft of {one.where}", where="mezzo.nd.fft", hint="complex numbers have fft")
    at, sizes = _axes("rfftn", one, s, axes)
    pairs = _dft(expand_dims(one, axis=-1), at[-1], sizes[-1], onesided=1)
    for axis, size in zip(at[:-1], sizes[:-1], strict=True):
        pairs = _dft(pairs, axis, size)
    return _complex(_scaled(pairs, sizes, norm))


def irfftn(
    x: Array, /, *, s: Sequence[int] | None = None, axes: Sequence[int] | None = None, norm: Norm = "backward"
) -> Array:
    """The inverse of `rfftn`: real numbers."""
    one = floats(x)
    at, sizes = _axes("irfftn", one, s, axes, half=True)
    return _real(_pairs(one), at, sizes, norm)


def hfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """`fft` of what is the conjugate of itself turned round, of which the first half is given: real numbers."""
    one = floats(x)
    at, sizes = _axes("hfft", one, None if n is None else (n,), (axis,), half=True)
    return _real(_conjugated(_pairs(one)), at, sizes, SWAPPED.get(norm, norm))


def ihfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: Norm = "backward") -> Array:
    """The inverse of `hfft`: of real numbers the first half. Raises InputError for complex ones."""
    transformed = rfft(x, n=n, axis=axis, norm=SWAPPED.get(norm, norm))
    return _complex(_conjugated(_pairs(transformed)))


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Where = None) -> Array:
    """The frequencies that `fft` of `n` numbers at distances of `d` tells of. Raises ShapeError for none."""
    return _frequencies(n, np.fft.fftfreq, d, dtype, device)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Where = None) -> Array:
    """The frequencies that `rfft` of `n` numbers at distances of `d` tells of. Raises ShapeError for none."""
    return _frequencies(n, np.fft.rfftfreq, d, dtype, device)


def fftshift(x: Array, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """The frequency of zero moved to the middle of some axes, or all."""
    return _shifted(x, axes, 1)


def ifftshift(x: Array, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """The inverse of `fftshift`."""
    return _shifted(x, axes, -1)


def _several(
    name: str, x: Any, s: Sequence[int] | None, axes: Sequence[int] | None, norm: str, inverse: int = 0
) -> Array:
    """Transforms along axes, one after the other."""
    one = floats(x)
    at, sizes = _axes(name, one, s, axes)
    pairs = _pairs(one)
    for axis, size in zip(at, sizes, strict=True):
        pairs = _dft(pairs, axis, size, inverse=inverse)
    return _complex(_scaled(pairs, sizes, norm, inverse))


def _real(pairs: Array, axes: Sequence[int], sizes: Sequence[int], norm: str) -> Array:
    """The inverse transform to real numbers, of which the first half of the last axis is given."""
    for axis, size in zip(axes[:-1], sizes[:-1], strict=True):
        pairs = _dft(pairs, axis, size, inverse=1)
    pairs = _dft(pairs, axes[-1], sizes[-1], inverse=1, onesided=1)
    return squeeze(_scaled(pairs, sizes, norm, 1), axis=-1)


def _axes(
    name: str, x: Array, s: Sequence[int] | None, axes: Sequence[int] | None, half: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Axes from the front, and how many points each transform has; `half` says that of the last axis half is there."""
    given = tuple(range(-len(s), 0) if s is not None else range(x.ndim)) if axes is None else tuple(axes)
    at = axes_of(given, x.ndim)
    sizes = [x.shape[a] for a in at]
    if half and sizes:
        sizes[-1] = 2 * (sizes[-1] - 1)
    if s is not None:
        if len(s) != len(at):
            raise ShapeError(f"{len(s)} sizes for {len(at)} axes", where=f"mezzo.nd.fft.{name}")
        sizes = [own if n == -1 else int(n) for n, own in zip(s, sizes, strict=True)]
    if not at or min(sizes) < 1:
        raise ShapeError(
            f"a transform of {sizes} points of {x.where}", where=f"mezzo.nd.fft.{name}", hint="give n=, s= or axes="
        )
    return at, tuple(sizes)


def _dft(pairs: Array, axis: int, points: int, inverse: int = 0, onesided: int = 0) -> Array:
    return apply("DFT", pairs, known(points), known(axis), inverse=inverse, onesided=onesided)


def _scaled(pairs: Array, sizes: Sequence[int], norm: str, inverse: int = 0) -> Array:
    """Return the result of DFT, which divides inverse transforms by the number of points, in another norm."""
    if norm not in NORMS:
        raise InputError(f"norm {norm!r}", where="mezzo.nd.fft", hint=f"give one of {', '.join(NORMS)}")
    power = inverse - NORMS[norm][inverse]
    return binary("Mul", pairs, float(math.prod(sizes)) ** power) if power else pairs


def _pairs(x: Array) -> Array:
    """Real and imaginary parts on a last axis; of real numbers the former alone."""
    return apply("RealImag", x, domain="mezzo") if x.dtype.kind == "c" else expand_dims(x, axis=-1)


def _complex(pairs: Array) -> Array:
    return apply("Complex", pairs, domain="mezzo")


def _conjugated(pairs: Array) -> Array:
    if pairs.shape[-1] == 1:
        return pairs
    return binary("Mul", pairs, as_array(np.array([1, -1], pairs.dtype), pairs.device))


def _frequencies(n: int, numpys: Any, d: float, dtype: Any, device: Where) -> Array:
    if n < 1:
        raise ShapeError(f"frequencies of {n} numbers", where="mezzo.nd.fft")
    return asarray(numpys(n, d=d).astype(FLOAT if dtype is None else dtype_of(dtype)), device=device)


def _shifted(x: Array, axes: int | Sequence[int] | None, way: int) -> Array:
    given = range(x.ndim) if axes is None else (axes,) if isinstance(axes, int) else axes
    at = [axis_of(a, x.ndim) for a in given]
    return roll(x, [way * (x.shape[a] // 2) for a in at], axis=at)


__all__ = [
    "fft",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfftn",
    "rfft",
    "rfftfreq",
    "rfftn",
]

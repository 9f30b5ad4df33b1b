"""Layers that change sizes: adaptive pooling, upsampling, pixel shuffle, reflection padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ...nd import functions as nd
from ...nd.array import Array
from ...nd.running import apply
from ...nd.specs import known
from ...ops.errors import InputError
from ..hybrid import HybridBlock
from .conv import Sizes, _many


class _Adaptive(HybridBlock):
    """Pooling to `output_size`, whatever the input's size: window i of n over N elements reaches from i N / n, rounded
    down, to (i + 1) N / n, rounded up, as in PyTorch. None keeps a size."""

    axes: ClassVar[int]
    op: ClassVar[str]

    def __init__(self, output_size: int | Sequence[int | None] = 1) -> None:
        super().__init__()
        given = (output_size,) * self.axes if isinstance(output_size, int) else tuple(output_size)
        if len(given) != self.axes or any(n is not None and n < 1 for n in given):
            raise InputError(f"output_size {output_size}", where=type(self).__name__, hint=f"{self.axes} sizes")
        self._sizes = given

    def forward(self, x: Array) -> Array:
        if x.ndim != 2 + self.axes:
            raise InputError(f"rank {x.ndim}", where=type(self).__name__, hint="[batch, channels, sizes...]")
        given = x.shape[2:]
        wanted = tuple(n if n is not None else size for n, size in zip(self._sizes, given, strict=True))
        if set(wanted) == {1}:  # whatever the input's size is, in exported files too
            whole: Array = apply(f"Global{self.op}", x)
            return whole
        if all(size % n == 0 for size, n in zip(given, wanted, strict=True)):
            windows = tuple(size // n for size, n in zip(given, wanted, strict=True))
            y: Array = apply(self.op, x, kernel_shape=windows, strides=windows)
            return y
        for axis, (size, n) in enumerate(zip(given, wanted, strict=True), 2):
            if size != n:
                x = self.pooled(x, axis, [(i * size // n, -(-(i + 1) * size // n)) for i in range(n)])
        return x

    def pooled(self, x: Array, axis: int, windows: Sequence[tuple[int, int]]) -> Array:
        """One axis in windows that may overlap."""
        raise NotImplementedError

    def extra(self) -> str:
        return f"{self._sizes}"


class _AdaptiveAvg(_Adaptive):
    op = "AveragePool"

    def pooled(self, x: Array, axis: int, windows: Sequence[tuple[int, int]]) -> Array:
        """A product with a matrix of shares."""
        shares = np.zeros((x.shape[axis], len(windows)))
        for i, (begin, end) in enumerate(windows):
            shares[begin:end, i] = 1 / (end - begin)
        matrix = nd.asarray(shares.astype(x.dtype), device=x.device)
        return nd.moveaxis(nd.matmul(nd.moveaxis(x, axis, -1), matrix), -1, axis)


class _AdaptiveMax(_Adaptive):
    op = "MaxPool"

    def pooled(self, x: Array, axis: int, windows: Sequence[tuple[int, int]]) -> Array:
        """The largest of the elements of each window; a short one has its last more than once."""
        longest = max(end - begin for begin, end in windows)
        places = [[min(begin + i, end - 1) for i in range(longest)] for begin, end in windows]
        index = nd.asarray(np.array(places).reshape(-1), device=x.device)
        spread = nd.take(x, index, axis=axis)
        shape = (*x.shape[:axis], len(windows), longest, *x.shape[axis + 1 :])
        return nd.max(nd.reshape(spread, shape), axis=axis + 1)


class AdaptiveAvgPool1D(_AdaptiveAvg):
    """Means over one axis."""

    axes = 1


class AdaptiveAvgPool2D(_AdaptiveAvg):
    """Means over two axes."""

    axes = 2


class AdaptiveAvgPool3D(_AdaptiveAvg):
    """Means over three axes."""

    axes = 3


class AdaptiveMaxPool1D(_AdaptiveMax):
    """Maxima over one axis."""

    axes = 1


class AdaptiveMaxPool2D(_AdaptiveMax):
    """Maxima over two axes."""

    axes = 2


class AdaptiveMaxPool3D(_AdaptiveMax):
    """Maxima over three axes."""

    axes = 3


# PyTorch's modes, as Resize has them.
MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "trilinear": "linear", "bicubic": "cubic"}


class Upsample(HybridBlock):
    """Enlarge each channel by `scale` (one number, or one for each axis), or to `size`: `mode` nearest, linear (also
    bilinear, trilinear) or bicubic, as in PyTorch. With `align_corners` the outermost pixels keep their places."""

    def __init__(
        self,
        scale: float | Sequence[float] | None = None,
        size: Sizes | None = None,
        mode: str = "nearest",
        align_corners: bool = False,
    ) -> None:
        super().__init__()
        if mode not in MODES or (scale is None) == (size is None) or (align_corners and mode == "nearest"):
            raise InputError(
                f"scale={scale}, size={size}, mode={mode!r}, align_corners={align_corners}",
                where="Upsample",
                hint=f"give scale or size, and a mode of {', '.join(MODES)}; nearest aligns no corners",
            )
        self._scale, self._size, self._mode, self._corners = scale, size, mode, align_corners

    def forward(self, x: Array) -> Array:
        axes = x.ndim - 2
        kind = MODES[self._mode]
        attrs: dict[str, Any] = {"mode": kind, "nearest_mode": "floor"}
        usual = "asymmetric" if kind == "nearest" else "half_pixel"
        attrs["coordinate_transformation_mode"] = "align_corners" if self._corners else usual
        if kind == "cubic":
            attrs["cubic_coeff_a"] = -0.75
        if self._size is not None:
            sizes = known((*x.shape[:2], *_many(self._size, axes)))
            y: Array = apply("Resize", x, None, None, sizes, **attrs)
            return y
        assert self._scale is not None
        scales = (self._scale,) * axes if isinstance(self._scale, int | float) else tuple(self._scale)
        y = apply("Resize", x, None, known([1.0, 1.0, *scales], np.float32), **attrs)
        return y


class _PixelShuffle(HybridBlock):
    """Move channels into pixels (Shi et al. 2016): [batch, channels * factors, sizes...] becomes [batch, channels,
    sizes times factors...]."""

    axes: ClassVar[int]

    def __init__(self, factor: Sizes) -> None:
        super().__init__()
        self._factors = _many(factor, self.axes)

    def forward(self, x: Array) -> Array:
        n, factors, sizes = self.axes, self._factors, x.shape[2:]
        count = int(np.prod(factors))
        if x.ndim != 2 + n or x.shape[1] % count:
            raise InputError(
                f"shape {x.shape} with factors {factors}",
                where=type(self).__name__,
                hint=f"{n} axes of sizes, and a multiple of {count} channels",
            )
        x = nd.reshape(x, (x.shape[0], x.shape[1] // count, *factors, *sizes))
        pairs = [axis for i in range(n) for axis in (2 + n + i, 2 + i)]
        x = nd.permute_dims(x, (0, 1, *pairs))
        return nd.reshape(x, (*x.shape[:2], *(s * f for s, f in zip(sizes, factors, strict=True))))

    def extra(self) -> str:
        return f"{self._factors}"


class PixelShuffle1D(_PixelShuffle):
    """Move channels into elements of one axis."""

    axes = 1


class PixelShuffle2D(_PixelShuffle):
    """Move channels into pixels."""

    axes = 2


class PixelShuffle3D(_PixelShuffle):
    """Move channels into voxels."""

    axes = 3


class ReflectionPad2D(HybridBlock):
    """A border of `padding` pixels that mirror those inside: one number, or (left, right, top, bottom)."""

    def __init__(self, padding: Sizes = 0) -> None:
        super().__init__()
        self._padding = _many(padding, 4)

    def forward(self, x: Array) -> Array:
        left, right, top, bottom = self._padding
        y: Array = apply("Pad", x, known((0, 0, top, left, 0, 0, bottom, right)), mode="reflect")
        return y

"""Complex numbers as pairs: real and imaginary parts on a last axis of two, as DFT and STFT of ONNX have them.

What takes complex numbers apart and puts them together. The gradient of a complex number is that of its real part plus
1j times that of its imaginary part, as PyTorch has it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.complexes import COMPLEX
from ..core.rules import widen
from ..errors import ShapeError
from ..op import Builder, Context, Sample, Value, op
from ..types import Array, DType, Tensor, f32

_PARTS = {DType.COMPLEX64: DType.FLOAT, DType.COMPLEX128: DType.DOUBLE}
_NUMBERS = np.array([[1 + 2j, -3.5, 0.25j], [0, 1 - 1j, -2 - 0.5j]], np.complex64)
SAMPLES = [Sample([_NUMBERS]), Sample([_NUMBERS[0, 0]]), Sample([_NUMBERS[:, :0]])]


@op("RealImag", domain="mezzo", complex_numbers="measured", samples=SAMPLES)
def real_imag(k: Context, X: Array) -> Array:
    """Real and imaginary parts, beside each other on a new last axis."""
    return k.xp.array(X, order="C")[..., None].view(X.real.dtype)


@real_imag.infer
def _(X: Tensor) -> Tensor:
    if X.dtype not in COMPLEX:
        raise ShapeError(f"{X} has no imaginary parts", hint="cast it to complex64 or complex128 first")
    return Tensor(_PARTS[X.dtype], None if X.dims is None else (*X.dims, 2))


@real_imag.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    return (g.Complex(dys[0], domain="mezzo"),)


@op(
    "Complex",
    domain="mezzo",
    complex_numbers="direct",
    samples=[Sample([f32(2, 3, 2)]), Sample([f32(2)]), Sample([f32(0, 2)])],
)
def complex_(k: Context, X: Array) -> Array:
    """Complex numbers of real and imaginary parts that lie beside each other on the last axis."""
    x = k.xp.array(widen(X), order="C")
    return x.view(DType.COMPLEX128.numpy if x.dtype.itemsize == 8 else DType.COMPLEX64.numpy)[..., 0]


@complex_.infer
def _(X: Tensor) -> Tensor:
    if not X.dtype.floating:
        raise ShapeError(f"{X} holds no real and imaginary parts", hint="cast it to float32 or float64 first")
    dtype = DType.COMPLEX128 if X.dtype is DType.DOUBLE else DType.COMPLEX64
    if X.dims is None:
        return Tensor(dtype, None)
    if not X.dims or (isinstance(X.dims[-1], int) and X.dims[-1] != 2):
        raise ShapeError(f"the last axis of {X} holds the real and the imaginary part, which are two")
    return Tensor(dtype, X.dims[:-1])


@complex_.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    return (g.CastLike(g.RealImag(dys[0], domain="mezzo"), xs[0]),)


@op("Conj", domain="mezzo", complex_numbers="direct", samples=SAMPLES)
def conj(k: Context, X: Array) -> Array:
    """Complex conjugates."""
    return k.xp.conjugate(k.xp.array(X, order="C"))


@conj.body
def _(g: Builder, xs: Any, types: Any) -> Value:
    pairs = g.RealImag(xs[0], domain="mezzo")
    return g.Complex(g.Mul(pairs, g.CastLike(g.const([1, -1]), pairs)), domain="mezzo")


@conj.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    return (g.Conj(dys[0], domain="mezzo"),)

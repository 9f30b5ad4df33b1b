"""Matrix products.

https://onnx.ai/onnx/operators/onnx__MatMul.html, https://onnx.ai/onnx/operators/onnx__Gemm.html
"""

from __future__ import annotations

from .errors import ShapeError
from .op import Context, Sample, broadcast_dims, op
from .rules import has_rank, narrow, same, widen
from .types import Array, Tensor, f32, i64


@op(
    "MatMul",
    since=13,
    samples=[
        Sample([f32(2, 3), f32(3, 4)]),
        Sample([f32(5, 2, 3), f32(3, 4)]),
        Sample([f32(5, 1, 2, 3), f32(6, 3, 4)]),
        Sample([f32(3), f32(3)]),
        Sample([f32(2, 3), f32(3)]),
        Sample([f32(3), f32(2, 3, 4)]),
        Sample([i64(2, 3), i64(3, 2)]),
        Sample([f32(2, 0), f32(0, 3)]),
    ],
)
def matmul(k: Context, A: Array, B: Array) -> Array:
    return narrow(k.xp.asarray(k.xp.matmul(widen(A), widen(B))), A.dtype)


@matmul.infer
def _(A: Tensor, B: Tensor) -> Tensor:
    if not A.shape or not B.shape:
        raise ShapeError(f"{A} times {B}: a scalar has no rows")
    inner = B.shape[-2] if B.rank > 1 else B.shape[0]
    same(A.shape[-1], inner, f"{A} times {B}: inner sizes differ")
    lead = broadcast_dims(A.shape[:-2], B.shape[:-2]) or ()
    rows = A.shape[-2:-1]
    columns = B.shape[-1:] if B.rank > 1 else ()
    return A.of((*lead, *rows, *columns))


@op(
    "Gemm",
    since=13,
    samples=[
        Sample([f32(2, 3), f32(3, 4)]),
        Sample([f32(3, 2), f32(4, 3), f32(4)], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
        Sample([f32(2, 3), f32(3, 4), f32(2, 1)]),
        Sample([f32(2, 3), f32(3, 4), f32()], {"beta": -1.0}),
        Sample([f32(2, 0), f32(0, 4), f32(4)]),
    ],
)
def gemm(
    k: Context,
    A: Array,
    B: Array,
    C: Array | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    a, b = widen(A), widen(B)
    y = (a.T if transA else a) @ (b.T if transB else b)
    if alpha != 1:
        y = y * alpha
    if C is not None and beta != 0:
        y = y + (C if beta == 1 else widen(C) * beta)
    return narrow(y, A.dtype)


@gemm.infer
def _(
    A: Tensor,
    B: Tensor,
    C: Tensor | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Tensor:
    for t in (A, B):
        has_rank(t, 2)
    (m, inner), (other, n) = A.dims or (None, None), B.dims or (None, None)
    m, inner = (inner, m) if transA else (m, inner)
    other, n = (n, other) if transB else (other, n)
    same(inner, other, f"{A} times {B} (transA={transA}, transB={transB}): inner sizes differ")
    if C is not None and C.dims is not None:
        whole = broadcast_dims((m, n), C.dims)
        if (
            whole is None
            or len(whole) != 2
            or any(isinstance(d, int) and isinstance(w, int) and d != w for d, w in zip((m, n), whole, strict=True))
        ):
            raise ShapeError(f"{C} does not broadcast to the product's dims {[m, n]}")
    return A.of((m, n))

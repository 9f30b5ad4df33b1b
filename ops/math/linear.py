"""Matrix products.

https://onnx.ai/onnx/operators/onnx__MatMul.html, https://onnx.ai/onnx/operators/onnx__Gemm.html
"""

from __future__ import annotations

from typing import Any

from ..core import weights
from ..core.rules import has_rank, narrow, same, widen
from ..errors import ShapeError
from ..op import Builder, Context, Sample, Value, broadcast_dims, op
from ..types import Array, Tensor, f32, i64


@op(
    "MatMul",
    complex_numbers="holomorphic",
    weights=weights.matmul,
    kind="matmul",
    quantized="QLinearMatMul",
    planned_from=4096,
    since=13,
    samples=[
        Sample([f32(2, 3), f32(3, 4)]),
        Sample([f32(5, 2, 3), f32(3, 4)]),
        Sample([f32(5, 1, 2, 3), f32(6, 3, 4)]),
        Sample([f32(3), f32(3)]),
        Sample([f32(2, 3), f32(3)]),
        Sample([f32(3), f32(2, 3, 4)]),
        Sample([f32(2, 2, 3), f32(3)]),
        Sample([f32(3), f32(3, 2)]),
        Sample([f32(1, 3, 2, 3), f32(2, 1, 3, 2)]),
        Sample([f32(4, 0, 3), f32(3, 2)]),
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


@matmul.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value | None, ...]:
    (dY,), (A, B) = dys, xs
    vectors = g.rank_of(A) == 1, g.rank_of(B) == 1
    a = g.Unsqueeze(A, g.const([0])) if vectors[0] else A
    b = g.Unsqueeze(B, g.const([1])) if vectors[1] else B
    lost = [axis for axis, vector in zip((-2, -1), vectors, strict=True) if vector]
    dy = g.Unsqueeze(dY, g.const(lost)) if lost else dY
    if g.rank_of(b) == 2:  # one matrix for all rows: two products of matrices, and no sum over a batch
        rows, drows = (v if g.rank_of(v) == 2 else g.Flatten(v, axis=-1) for v in (a, dy))
        dA = g.Reshape(g.Gemm(drows, b, transB=1), g.shape_of(A), allowzero=1) if g.wants[0] else None
        dB = g.Gemm(rows, drows, transA=1) if g.wants[1] else None
        return dA, g.Squeeze(dB, g.const([1])) if vectors[1] and dB is not None else dB
    dA = g.sum_to(g.MatMul(dy, _turned(g, b)), a) if g.wants[0] else None
    dB = g.sum_to(g.MatMul(_turned(g, a), dy), b) if g.wants[1] else None
    return g.Squeeze(dA, g.const([0])) if vectors[0] and dA is not None else dA, dB


def _turned(g: Builder, x: Value) -> Value:
    """Each matrix transposed."""
    rank = g.rank_of(x)
    return g.Transpose(x, perm=[*range(rank - 2), rank - 1, rank - 2])


@op(
    "Gemm",
    complex_numbers="taken",
    weights=weights.gemm,
    kind="matmul",
    quantized="com.microsoft::QGemm",
    planned_from=4096,
    since=13,
    samples=[
        Sample([f32(2, 3), f32(3, 4)]),
        Sample([f32(3, 2), f32(4, 3), f32(4)], {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}),
        Sample([f32(3, 2), f32(3, 4)], {"transA": 1}),
        Sample([f32(2, 3), f32(4, 3), f32(2, 4)], {"transB": 1, "alpha": 2.0}),
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
def _(A: Tensor, B: Tensor, C: Tensor | None = None, *, transA: int = 0, transB: int = 0) -> Tensor:
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


@gemm.grad
def _(
    g: Builder, dys: Any, ys: Any, xs: Any, *, alpha: float = 1.0, beta: float = 1.0, transA: int = 0, transB: int = 0
) -> tuple[Value | None, ...]:
    (dY,), (A, B, C) = dys, xs
    dA = dB = dC = None
    if g.wants[0] and transA:
        dA = g.Gemm(B, dY, alpha=alpha, transA=transB, transB=1)
    elif g.wants[0]:
        dA = g.Gemm(dY, B, alpha=alpha, transB=1 - transB)
    if g.wants[1] and transB:
        dB = g.Gemm(dY, A, alpha=alpha, transA=1, transB=transA)
    elif g.wants[1]:
        dB = g.Gemm(A, dY, alpha=alpha, transA=1 - transA)
    if g.wants[2]:
        dC = g.sum_to(dY if beta == 1 else g.Mul(dY, g.scalar(beta, dY)), C)
    return dA, dB, dC

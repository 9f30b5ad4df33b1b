"""Operators of the domain com.microsoft with quantised weights and float activations: MatMulNBits, DynamicQuantizeLSTM.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.formula import Arrays
from ..errors import ShapeError
from ..op import OPS, Builder, Context, Sample, Value, op
from ..recurrent.recurrent import CoupledCell, Frame, LstmCell, recur
from ..types import Array, DType, Tensor
from .fused import Types, dtype_of
from .quantized import numbers


def _unpacked(packed: Array, bits: int, count: int) -> Array:
    """Numbers of `bits` bits out of bytes, lowest bits first, `count` of each last axis."""
    if bits not in (2, 4, 8):
        raise ShapeError(f"{bits} bits are not supported", hint="quantise the weights to 2, 4 or 8 bits")
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    apart = (packed[..., None] >> shifts) & np.uint8(2**bits - 1)
    return apart.reshape(*packed.shape[:-1], packed.shape[-1] * len(shifts))[..., :count]


def _blocks(K: int, block_size: int) -> int:
    return -(-K // block_size)


def _quantised(B: Array, zero_points: Array | None, N: int, K: int, bits: int, block_size: int) -> tuple[Array, Array]:
    """The weights (N, K) as whole numbers, and the zero point of each block."""
    blocks = _blocks(K, block_size)
    weights = _unpacked(B.reshape(N, -1), bits, blocks * block_size)[:, :K]
    if zero_points is None:
        return weights, np.full((N, blocks), 2 ** (bits - 1), np.uint8)
    if zero_points.dtype == np.uint8:
        return weights, _unpacked(zero_points.reshape(N, -1), bits, blocks)
    return weights, zero_points.reshape(N, blocks)


def dense_weights(
    B: Array,
    scales: Array,
    zero_points: Array | None,
    g_idx: Array | None,
    *,
    K: int,
    N: int,
    bits: int,
    block_size: int,
) -> Array:
    """The weights (N, K) of MatMulNBits in float32."""
    weights, zeros = _quantised(B, zero_points, N, K, bits, block_size)
    block = np.arange(K) // block_size if g_idx is None else g_idx[:K]
    each = scales.reshape(N, -1).astype(np.float32)[:, block]
    made: Array = (weights.astype(np.float32) - zeros.astype(np.float32)[:, block]) * each
    return made


N_BITS = {"K": 32, "N": 3, "block_size": 16}


@op(
    "MatMulNBits", domain="com.microsoft",
    since=1,
    samples=[
        Sample([Tensor(DType.FLOAT, (2, 32)), numbers(3, 2, 8), Tensor(DType.FLOAT, (3, 2))], {**N_BITS, "bits": 4}),
        Sample(
            [Tensor(DType.FLOAT, (2, 3, 32)), numbers(3, 2, 8), Tensor(DType.FLOAT, (6,)), numbers(3)],
            {**N_BITS, "bits": 4, "accuracy_level": 1},
        ),
        Sample(
            [Tensor(DType.FLOAT, (1, 40)), numbers(5, 2, 32), Tensor(DType.FLOAT, (5, 2)), numbers(5, 2)],
            {"K": 40, "N": 5, "block_size": 32, "bits": 8},
        ),
        Sample(
            [Tensor(DType.FLOAT, (2, 32)), numbers(3, 2, 8), Tensor(DType.FLOAT, (3, 2)),
             Tensor(DType.FLOAT, (3, 2)), None, Tensor(DType.FLOAT, (3,))],
            N_BITS,
        ),
    ],
)  # fmt: skip
def matmul_n_bits(
    k: Context,
    A: Array,
    B: Array,
    scales: Array,
    zero_points: Array | None = None,
    g_idx: Array | None = None,
    bias: Array | None = None,
    *,
    K: int,
    N: int,
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
) -> Array:
    dense = dense_weights(B, scales, zero_points, g_idx, N=N, K=K, bits=bits, block_size=block_size)
    y = k.xp.matmul(A.astype(np.float32), dense.T)
    return (y if bias is None else y + bias.astype(np.float32)).astype(A.dtype)


@matmul_n_bits.infer
def _(
    A: Tensor,
    B: Tensor,
    scales: Tensor,
    zero_points: Tensor | None = None,
    g_idx: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    K: int,
    N: int,
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
) -> Tensor:
    if weight_prepacked:
        raise ShapeError("weights that are packed for one kind of GPU cannot be read", hint="export them unpacked")
    if A.dims is None:
        return A.of(None)
    if not A.dims or (isinstance(A.dims[-1], int) and A.dims[-1] != K):
        raise ShapeError(f"{A} should have {K} columns (attribute K)")
    expected = N * _blocks(K, block_size) * block_size * bits // 8
    if B.elements not in (expected, None):
        raise ShapeError(f"{B} has {B.elements} bytes; N={N}, K={K} in blocks of {block_size} take {expected}")
    return A.of((*A.dims[:-1], N))


@matmul_n_bits.body
def _(
    g: Builder,
    xs: Sequence[Value | None],
    types: Types,
    *,
    K: int,
    N: int,
    accuracy_level: int = 0,
    bits: int = 4,
    block_size: int,
    weight_prepacked: int = 0,
) -> Value | None:
    A, _, scales, _, g_idx, bias = xs
    stored = [t.value if isinstance(t, Tensor) else None for t in types]
    given = stored[3] is None or stored[3].dtype == np.uint8
    if stored[1] is None or (xs[3] is not None and stored[3] is None) or g_idx is not None or not given:
        return None  # the bits have to be known, since no standard operator takes them apart
    kind = {2: DType.UINT2, 4: DType.UINT4, 8: DType.UINT8}[bits]
    weights, zeros = (np.asarray(x) for x in _quantised(stored[1], stored[3], N, K, bits, block_size))
    rows = g.Reshape(scales, g.const([N, _blocks(K, block_size)]))
    dense = g.DequantizeLinear(
        g.const(weights, kind), g.Cast(rows, to=DType.FLOAT.onnx), g.const(zeros, kind), axis=1, block_size=block_size
    )
    dtype = dtype_of(types)
    y = g.MatMul(A, g.Transpose(dense if dtype is DType.FLOAT else g.Cast(dense, to=dtype.onnx), perm=(1, 0)))
    return y if bias is None else g.Add(y, bias)


# LSTM


def _rounded(xp: Any, x: Array) -> Array:
    """Numbers as DynamicQuantizeLinear keeps them: whole numbers of steps, in float32 again."""
    least, most = min(float(x.min(initial=0)), 0.0), max(float(x.max(initial=0)), 0.0)
    step = np.float32((most - least) / 255)
    if not step:
        return x
    zero = np.clip(np.rint(-np.float32(least) / step), 0, 255)
    return (xp.clip(xp.rint(x / step) + zero, 0, 255) - zero).astype(np.float32) * step


LSTM_WEIGHTS = [numbers(1, 3, 20), numbers(1, 5, 20)]
LSTM_SCALES: list[Any] = [np.array([0.01], np.float32), np.array([128], np.uint8)] * 2
LSTM_X = Tensor(DType.FLOAT, (4, 2, 3))
NO_STATES: list[Any] = [None] * 4


@op(
    "DynamicQuantizeLSTM", domain="com.microsoft",
    since=1,
    outputs=("Y?", "Y_h?", "Y_c?"),
    samples=[
        Sample([LSTM_X, *LSTM_WEIGHTS, None, *NO_STATES, *LSTM_SCALES], {"hidden_size": 5}, 3),
        Sample(
            [LSTM_X, *(w.view(np.int8) for w in LSTM_WEIGHTS), Tensor(DType.FLOAT, (1, 40)), *NO_STATES,
             *(np.array([0.01], np.float32), np.array([0], np.int8)) * 2],
            {"hidden_size": 5, "direction": "reverse"}, 3,
        ),
        Sample(
            [LSTM_X, *(np.concatenate([w, w[:, ::-1]]) for w in LSTM_WEIGHTS), Tensor(DType.FLOAT, (2, 40)), None,
             Tensor(DType.FLOAT, (2, 2, 5)), Tensor(DType.FLOAT, (2, 2, 5)), None,
             *(np.array([0.01, 0.02], np.float32), np.array([128, 120], np.uint8)) * 2],
            {"hidden_size": 5, "direction": "bidirectional"}, 3,
        ),
    ],
)  # fmt: skip
def dynamic_quantize_lstm(
    k: Context,
    X: Array,
    W: Array,
    R: Array,
    B: Array | None,
    sequence_lens: Array | None,
    initial_h: Array | None,
    initial_c: Array | None,
    P: Array | None,
    W_scale: Array,
    W_zero_point: Array,
    R_scale: Array,
    R_zero_point: Array,
    *,
    activation_alpha: Sequence[float] | None = None,
    activation_beta: Sequence[float] | None = None,
    activations: Sequence[str] | None = None,
    clip: float | None = None,
    direction: str = "forward",
    hidden_size: int | None = None,
    input_forget: int = 0,
) -> tuple[Array, ...]:
    dense = _dense(W, W_scale, W_zero_point), _dense(R, R_scale, R_zero_point)

    class Rounded(CoupledCell if input_forget else LstmCell):  # type: ignore[misc]
        def step(self, x: Array, states: list[Array]) -> tuple[list[Array], list[Array]]:
            h, c = states
            made: tuple[list[Array], list[Array]] = super().step(x, [_rounded(k.xp, h), c])
            return made

    frame = Frame(Rounded, activation_alpha=activation_alpha, activation_beta=activation_beta,
                  activations=activations, clip=clip, direction=direction)  # fmt: skip
    return recur(Arrays(k.xp), frame, _rounded(k.xp, X), *dense, B, sequence_lens, [initial_h, initial_c], P)


def _dense(weights: Array, scale: Array, zero: Array) -> Array:
    """(directions, inputs, gates) of steps as (directions, gates, inputs) of numbers."""
    shape = (weights.shape[0], 1, -1)
    apart = weights.astype(np.float32) - zero.astype(np.float32).reshape(shape)
    return np.ascontiguousarray((apart * scale.reshape(shape)).swapaxes(1, 2))


@dynamic_quantize_lstm.infer
def _(
    X: Tensor,
    W: Tensor,
    R: Tensor,
    B: Tensor | None,
    sequence_lens: Tensor | None,
    initial_h: Tensor | None,
    initial_c: Tensor | None,
    P: Tensor | None,
    W_scale: Tensor,
    W_zero_point: Tensor,
    R_scale: Tensor,
    R_zero_point: Tensor,
    **attrs: Any,
) -> Any:
    w, r = (
        Tensor(DType.FLOAT, None if t.dims is None else (t.dims[0], t.dims[2], t.dims[1]))
        if t.dims is None or len(t.dims) == 3
        else t
        for t in (W, R)
    )
    return OPS["", "LSTM"].inferred(X, w, r, B, sequence_lens, initial_h, initial_c, P, **attrs)

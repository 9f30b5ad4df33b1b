"""DynamicQuantizeLSTM of the domain com.microsoft: quantised weights and float activations.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.DynamicQuantizeLSTM
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..core.formula import Arrays
from ..op import OPS, Context, Sample, op
from ..recurrent.recurrent import CoupledCell, Frame, LstmCell, recur
from ..types import Array, DType, Tensor
from .quantized import numbers


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

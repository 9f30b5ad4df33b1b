"""DynamicQuantizeLSTM of the domain com.microsoft: quantised weights and float activations.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.DynamicQuantizeLSTM
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.formula import Arrays
from ..op import Context, Sample, op
from ..recurrent.recurrent import RECURRENT, CoupledCell, Frame, LstmCell, lstm, operands, recur
from ..types import Array, DType, Tensor
from .quantized import numbers


def _rounded(xp: Any, x: Array) -> Array:
    """Numbers as DynamicQuantizeLinear keeps them: integers of steps, in float32 again."""
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
    inputs=(
        *("X", "W", "R", "B?", "sequence_lens?", "initial_h?", "initial_c?", "P?"),
        *("W_scale", "W_zero_point", "R_scale", "R_zero_point"),
    ),
    attributes={name: default for name, default in RECURRENT.items() if name != "layout"},
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
def dynamic_quantize_lstm(k: Context, *inputs: Array | None, input_forget: int = 0, **attrs: Any) -> tuple[Array, ...]:
    X, W, R, *others = inputs[:8]
    W_scale, W_zero_point, R_scale, R_zero_point = inputs[8:]
    dense = _dense(W, W_scale, W_zero_point), _dense(R, R_scale, R_zero_point)

    class Rounded(CoupledCell if input_forget else LstmCell):  # type: ignore[misc]
        def step(self, x: Array, states: list[Array]) -> tuple[list[Array], list[Array]]:
            h, c = states
            stepped: tuple[list[Array], list[Array]] = super().step(x, [_rounded(k.xp, h), c])
            return stepped

    return recur(Arrays(k.xp), Frame(Rounded, **attrs), *operands(lstm, [_rounded(k.xp, X), *dense, *others]))


def _dense(weights: Array, scale: Array, zero: Array) -> Array:
    """(directions, inputs, gates) of steps as (directions, gates, inputs) of numbers."""
    shape = (weights.shape[0], 1, -1)
    apart = weights.astype(np.float32) - zero.astype(np.float32).reshape(shape)
    return np.ascontiguousarray((apart * scale.reshape(shape)).swapaxes(1, 2))


@dynamic_quantize_lstm.infer
def _(X: Tensor, W: Tensor, R: Tensor, *others: Tensor | None, **attrs: Any) -> Any:
    w, r = (
        Tensor(DType.FLOAT, None if t.dims is None else (t.dims[0], t.dims[2], t.dims[1]))
        if t.dims is None or len(t.dims) == 3
        else t
        for t in (W, R)
    )
    return lstm.inferred(X, w, r, *others[:5], **attrs)

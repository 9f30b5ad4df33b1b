"""Signals: Fourier transforms, windows, mel scales.

https://onnx.ai/onnx/operators/onnx__DFT.html, https://onnx.ai/onnx/operators/onnx__STFT.html
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.rules import axis_of, ints, same, widen
from ..errors import ShapeError
from ..op import Builder, Context, Op, Sample, Value, op
from ..tensor.cast import convert
from ..tensor.movement import size_of
from ..types import Array, Dim, DType, Tensor, f32


def _complex(x: Array) -> Array:
    """Numbers whose real and imaginary parts lie along the last axis; an axis of 1 has no imaginary part."""
    if x.shape[-1] not in (1, 2):
        raise ShapeError(f"the last axis holds the real and the imaginary part, not {x.shape[-1]} elements")
    return x[..., 0] if x.shape[-1] == 1 else x[..., 0] + 1j * x[..., 1]


def _parts(xp: Any, y: Array, dtype: Any) -> Array:
    return xp.array(xp.stack([y.real, y.imag], -1).astype(dtype), order="C")


def _scalar(x: Array | None) -> int | None:
    return None if x is None else ints(x)[0]


@op(
    "DFT",
    since=20,
    outputs=("output",),
    samples=[
        Sample([f32(2, 5, 1)]),
        Sample([f32(2, 5, 2)]),
        Sample([f32(2, 6, 1)], {"onesided": 1}),
        Sample([f32(2, 5, 2)], {"inverse": 1}),
        Sample([f32(2, 4, 2)], {"inverse": 1, "onesided": 1}),
        Sample([f32(2, 4, 2), np.array(7)], {"inverse": 1, "onesided": 1}),
        Sample([f32(4, 3, 1), np.array(6), np.array(0)], {"onesided": 1}),
        Sample([f32(5, 3, 2), np.array(3, np.int32), np.array(-3)]),
        Sample([f32(2, 5, 1), None, np.array(1)]),
        Sample([f32(2, 0, 1)]),
        Sample([f32(2, 0, 2)], {"inverse": 1}),
        Sample([f32(2, 1, 2)], {"inverse": 1, "onesided": 1}),
        Sample([f32(2, 3, 2), np.array(5), np.array(0)], {"inverse": 1, "onesided": 1}),
        Sample([f32(6, 3, 1), np.array(5), np.array(0)], {"inverse": 1}),
    ],
)
def dft(
    k: Context,
    input: Array,
    dft_length: Array | None = None,
    axis: Array | None = None,
    *,
    inverse: int = 0,
    onesided: int = 0,
) -> Array:
    at = _signal_axis(_scalar(axis), input.ndim)
    x, count, fft = _complex(widen(input)), _scalar(dft_length), k.xp.fft
    along = x.shape[at]
    points = count if count is not None else 2 * (along - 1) if inverse and onesided else along
    if points < 1 and (points < 0 or count is not None or (onesided and not inverse)):
        raise ShapeError(f"a transform of {points} points", hint="give it at least one")
    if not points or not along:  # nothing comes of nothing, zeros of as many points; NumPy's would be what lay there
        bins = points // 2 + 1 if onesided and not inverse else points
        shape = [bins if a == at else n for a, n in enumerate(input.shape[:-1])]
        return k.xp.zeros((*shape, 1 if inverse and onesided else 2), input.dtype)
    if inverse and onesided:
        return fft.irfft(x, count, at)[..., None].astype(input.dtype)
    if inverse:
        return _parts(k.xp, fft.ifft(x, count, at), input.dtype)
    if onesided and input.shape[-1] == 2:
        raise ShapeError("a complex input has no one-sided transform")
    return _parts(k.xp, (fft.rfft if onesided else fft.fft)(x, count, at), input.dtype)


def _signal_axis(axis: int | None, rank: int) -> int:
    at = axis_of(-2 if axis is None else axis, rank)
    if at == rank - 1:
        raise ShapeError(f"axis {axis} is the one of real and imaginary parts")
    return at


@dft.infer
def _(
    input: Tensor, dft_length: Tensor | None = None, axis: Tensor | None = None, *, inverse: int = 0, onesided: int = 0
) -> Tensor:
    dims: list[Dim] = [*input.shape[:-1], 1 if inverse and onesided else 2]
    given = None if axis is None else axis.ints()
    if axis is not None and given is None:
        return input.of((*(None for _ in dims[:-1]), dims[-1]))
    at = _signal_axis(given[0] if given else None, input.rank)
    if dft_length is not None:
        lengths = dft_length.ints()
        count: Dim = lengths[0] if lengths else None
    else:
        count = dims[at]
        if inverse and onesided:
            count = 2 * (count - 1) if isinstance(count, int) else None
    if onesided and not inverse:
        count = count // 2 + 1 if isinstance(count, int) else None
    dims[at] = count
    return input.of(dims)


@dft.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, inverse: int = 0, onesided: int = 0) -> tuple[Value | None, ...]:
    (dy,), (input, dft_length, axis) = dys, xs
    at = g.const([-2]) if axis is None else _vector(g, axis)
    along = g.Gather(g.shape_of(input), at)
    count = along if dft_length is None else _vector(g, dft_length)
    if inverse and onesided:
        whole = count if dft_length is not None else g.Mul(g.Sub(along, g.const(1)), g.const(2))
        dx = _halved(g, dy, g.Max(whole, g.const(1)), axis, at)
    elif inverse:
        dx = _by_length(g.Div, g, g.DFT(dy, dft_length, axis), count)
    else:
        points = g.Squeeze(count) if onesided else dft_length
        dx = _by_length(g.Mul, g, g.DFT(dy, points, axis, inverse=1), count)
    if dft_length is not None:  # the input was cut, or continued by zeros
        dx = g.Pad(dx, g.Concat(g.const([0]), g.Sub(along, g.Gather(g.shape_of(dx), at)), axis=0), None, at)
    return _parts_of(g, dx, input), None, None


def _vector(g: Builder, x: Value) -> Value:
    """A single number as a list of one int64."""
    return g.Cast(g.Reshape(x, g.const([1])), to=DType.INT64.onnx)


def _by_length(by: Callable[[Value, Value], Value], g: Builder, x: Value, length: Value) -> Value:
    return by(x, g.CastLike(length, x))


def _parts_of(g: Builder, x: Value, like: Value) -> Value:
    """The complex numbers x, or only their real parts where `like` holds real numbers."""
    return g.Slice(x, g.const([0]), size_of(g, like, -1), g.const([-1]))


def _halved(g: Builder, dy: Value, points: Value, axis: Value | None, at: Value) -> Value:
    """The transpose of an inverse transform of one half: each bin but the first and the middle one stands for two."""
    bins = g.DFT(dy, g.Squeeze(points), axis, onesided=1)
    count = g.Gather(g.shape_of(bins), at)
    k = g.Range(g.const(0), g.Squeeze(count), g.const(1))
    once = g.Or(g.Equal(k, g.const(0)), g.Equal(g.Add(k, k), points))
    weight = g.Where(once, g.scalar(1, dy), g.scalar(2, dy))
    shape = g.ScatterElements(g.const([1] * g.rank_of(dy)), at, count)
    return _by_length(g.Div, g, g.Mul(bins, g.Reshape(weight, shape)), points)


_WINDOW = np.hanning(4).astype(np.float32)


@op(
    "STFT",
    since=17,
    outputs=("output",),
    samples=[
        Sample([f32(2, 12, 1), np.array(3), _WINDOW]),
        Sample([f32(2, 12, 1), np.array(4), None, np.array(6)]),
        Sample([f32(1, 9, 1), np.array(2, np.int32), _WINDOW, np.array(4, np.int32)], {"onesided": 0}),
        Sample([f32(1, 9, 2), np.array(2), _WINDOW], {"onesided": 0}),
        Sample([f32(1, 8, 1), np.array(2)]),
        Sample([f32(1, 9, 2), np.array(4), None, np.array([5])], {"onesided": 0}),
    ],
)
def stft(
    k: Context,
    signal: Array,
    frame_step: Array,
    window: Array | None = None,
    frame_length: Array | None = None,
    *,
    onesided: int = 1,
) -> Array:
    if onesided and signal.shape[-1] == 2:
        raise ShapeError("a complex input has no one-sided transform", hint="set onesided=0")
    x = _complex(signal.astype(np.float64))
    size, step = _frame(signal.shape[1], window, _scalar(frame_length)), ints(frame_step)[0]
    count = _frames(signal.shape[1], size, step)
    places = k.xp.arange(count)[:, None] * step + k.xp.arange(size)
    frames = x[:, places]
    if window is not None:
        frames = frames * window.astype(np.float64)
    return _parts(k.xp, (k.xp.fft.rfft if onesided else k.xp.fft.fft)(frames), signal.dtype)


def _frame(length: int, window: Any, frame_length: int | None) -> int:
    """The length of a frame; a window that is given has the same."""
    if window is None:
        return length if frame_length is None else frame_length
    if frame_length is not None and frame_length != window.shape[0]:
        raise ShapeError(f"a window of {window.shape[0]} does not fit frames of {frame_length}")
    return int(window.shape[0])


def _frames(length: int, size: int, step: int) -> int:
    if size > length or step < 1:
        raise ShapeError(f"a signal of {length} has no frames of {size} every {step}")
    return (length - size) // step + 1


@stft.infer
def _(
    signal: Tensor,
    frame_step: Tensor,
    window: Tensor | None = None,
    frame_length: Tensor | None = None,
    *,
    onesided: int = 1,
) -> Tensor:
    if signal.dims is not None and len(signal.dims) != 3:
        raise ShapeError(f"a signal is [batch, length, 1 or 2], not {signal}")
    batch, length, _ = signal.dims or (None, None, None)
    step = frame_step.ints()
    size: Dim = length
    if frame_length is not None:
        sizes = frame_length.ints()
        size = sizes[0] if sizes else None
    if window is not None:
        along = None if window.dims is None else window.dims[0]
        size = along if frame_length is None else same(size, along, f"{window} does not fit the length of frames")
    exact = isinstance(length, int) and isinstance(size, int)
    frames = (
        _frames(length, size, step[0]) if exact and step and isinstance(length, int) and isinstance(size, int) else None
    )
    bins = (size // 2 + 1 if isinstance(size, int) else None) if onesided else size
    return signal.of((batch, frames, bins, 2))


@stft.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, onesided: int = 1) -> tuple[Value | None, ...]:
    signal, frame_step, window, frame_length = xs
    size = _vector(g, frame_length) if frame_length is not None else size_of(g, *(
        (signal, 1) if window is None else (window, 0)))  # fmt: skip
    moved = _by_length(g.Mul, g, g.DFT(dys[0], g.Squeeze(size), inverse=1), size)
    frames = _parts_of(g, moved, signal)

    def upto(n: Value) -> Value:
        return g.Range(g.const(0), g.Squeeze(n), g.const(1))

    starts = g.Mul(upto(size_of(g, ys[0], 1)), _vector(g, frame_step))
    places = g.Add(g.Unsqueeze(starts, g.const([1])), upto(size))
    slope = None
    if window is not None:
        if g.wants[2]:
            slope = g.ReduceSum(g.Mul(frames, g.Gather(signal, places, axis=1)), g.const([0, 1, 3]), keepdims=0)
        frames = g.Mul(frames, g.Unsqueeze(window, g.const([1])))
    return g.GatherGrad(frames, places, g.shape_of(signal), axis=1, domain="mezzo"), None, slope, None


def _mel(hertz: float) -> float:
    return 2595 * math.log10(1 + hertz / 700)


_BINS: list[Any] = [np.array(8), np.array(16), np.array(8192), np.float32(0), np.float32(4096)]


@op(
    "MelWeightMatrix",
    since=17,
    outputs=("output",),
    samples=[
        Sample(_BINS),
        Sample(_BINS, {"output_datatype": DType.DOUBLE.onnx}),
        Sample(
            [np.array(3, np.int32), np.array(9, np.int32), np.array(8000, np.int32), np.float32(100), np.float32(3000)]
        ),
    ],
)
def mel_weight_matrix(
    k: Context,
    num_mel_bins: Array,
    dft_length: Array,
    sample_rate: Array,
    lower_edge_hertz: Array,
    upper_edge_hertz: Array,
    *,
    output_datatype: int = 1,
) -> Array:
    count, length, rate = (ints(x)[0] for x in (num_mel_bins, dft_length, sample_rate))
    low, high = _mel(float(lower_edge_hertz)), _mel(float(upper_edge_hertz))
    mels = low + np.arange(count + 2) * (
        (high - low) / (count + 2)
    )  # the official vectors divide by two more than bins
    edges = np.floor((length + 1) * (700 * (10 ** (mels / 2595) - 1)) / rate).astype(np.int64)
    bins = np.arange(length // 2 + 1)[:, None]
    left, peak, right = edges[:-2], edges[1:-1], edges[2:]
    with np.errstate(divide="ignore", invalid="ignore"):
        rising, falling = (bins - left) / (peak - left), (right - bins) / (right - peak)
    weights = np.where((bins >= left) & (bins < peak), rising, 0)
    weights = np.where((bins > peak) & (bins < right), falling, weights)
    weights = np.where(bins == peak, 1, weights)
    return k.xp.asarray(convert(np, weights, DType.from_onnx(output_datatype)))


@mel_weight_matrix.infer
def _(
    num_mel_bins: Tensor,
    dft_length: Tensor,
    sample_rate: Tensor,
    lower_edge_hertz: Tensor,
    upper_edge_hertz: Tensor,
    *,
    output_datatype: int = 1,
) -> Tensor:
    count, length = num_mel_bins.ints(), dft_length.ints()
    return Tensor(
        DType.from_onnx(output_datatype), (length[0] // 2 + 1 if length else None, count[0] if count else None)
    )


@mel_weight_matrix.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, output_datatype: int = 1) -> tuple[None, ...]:
    return (None,) * 5  # edges fall on whole bins


WINDOW_SAMPLES = [
    Sample([np.array(10)]),
    Sample([np.array(7, np.int32)], {"periodic": 0}),
    Sample([np.array(5)], {"output_datatype": DType.DOUBLE.onnx}),
    Sample([np.array(0)]),
]


OPERATORS = "HannWindow HammingWindow BlackmanWindow"


def window(name: str, *factors: float) -> Op:
    """A window that is a sum of cosines: of 0, 1, 2... periods, with alternating signs."""

    def reference(k: Context, size: Array, *, output_datatype: int = 1, periodic: int = 1) -> Array:
        (count,) = ints(size)
        turn = 2 * math.pi * np.arange(count) / max(count if periodic else count - 1, 1)
        values = sum((-1) ** i * f * np.cos(i * turn) for i, f in enumerate(factors))
        return k.xp.asarray(convert(np, np.asarray(values), DType.from_onnx(output_datatype)))

    record = op(name, since=17, outputs=("output",), samples=WINDOW_SAMPLES)(reference)

    @record.infer
    def _(size: Tensor, *, output_datatype: int = 1) -> Tensor:
        count = size.ints()
        return Tensor(DType.from_onnx(output_datatype), (count[0] if count else None,))

    return record


hann_window = window("HannWindow", 0.5, 0.5)
hamming_window = window("HammingWindow", 25 / 46, 21 / 46)
blackman_window = window("BlackmanWindow", 0.42, 0.5, 0.08)

"""ONNX operators as PyTorch writes them, for bench/gradients.py: tensors and attributes in, what ONNX defines out.

A function that raises, or that answers otherwise, says nothing about the sample that it was given.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

Function = Callable[..., Any]


def _axes(x: Any, axes: Any, noop: int) -> list[int]:
    return axes.tolist() if axes is not None and len(axes) else [] if noop else list(range(x.ndim))


def _reduced(f: Function) -> Function:
    def reduce(x: Any, axes: Any = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0) -> Any:
        over = _axes(x, axes, noop_with_empty_axes)
        return f(x, over, bool(keepdims)) if over else f(x[None], [0], False)

    return reduce


def _prod(x: Any, axes: list[int], keep: bool) -> Any:
    for axis in sorted((a % x.ndim for a in axes), reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


def _folded(f: Function) -> Function:
    def fold(*xs: Any) -> Any:
        total = xs[0]
        for x in xs[1:]:
            total = f(total, x)
        return total

    return fold


def _cumulated(f: Function, first: float) -> Function:
    def run(x: Any, axis: Any, *, exclusive: int = 0, reverse: int = 0) -> Any:
        at = int(axis)
        y = x.flip(at) if reverse else x
        if exclusive:
            y = torch.cat([torch.full_like(y.narrow(at, 0, 1), first), y.narrow(at, 0, y.shape[at] - 1)], at)
        y = f(y, at)
        return y.flip(at) if reverse else y

    return run


def _gemm(a: Any, b: Any, c: Any = None, *, alpha: float = 1, beta: float = 1, transA: int = 0, transB: int = 0) -> Any:
    y = alpha * ((a.T if transA else a) @ (b.T if transB else b))
    return y if c is None else y + beta * c


def _windows(rank: int, kernel: Any, strides: Any, pads: Any, dilations: Any) -> tuple[Any, ...]:
    pads = pads or (0,) * (2 * rank)
    if tuple(pads[:rank]) != tuple(pads[rank:]):
        raise NotImplementedError("other padding behind than before")
    return kernel, tuple(strides or (1,) * rank), tuple(pads[:rank]), tuple(dilations or (1,) * rank)


def _conv(x: Any, w: Any, b: Any = None, *, group: int = 1, strides: Any = None, pads: Any = None,
          dilations: Any = None, kernel_shape: Any = None) -> Any:  # fmt: skip
    rank = x.ndim - 2
    _, step, pad, dilation = _windows(rank, None, strides, pads, dilations)
    return (F.conv1d, F.conv2d, F.conv3d)[rank - 1](x, w, b, step, pad, dilation, group)


def _conv_transpose(x: Any, w: Any, b: Any = None, *, group: int = 1, strides: Any = None, pads: Any = None,
                    dilations: Any = None, kernel_shape: Any = None, output_padding: Any = 0) -> Any:  # fmt: skip
    rank = x.ndim - 2
    _, step, pad, dilation = _windows(rank, None, strides, pads, dilations)
    functions = F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d
    return functions[rank - 1](x, w, b, step, pad, output_padding, group, dilation)


def _average_pool(x: Any, *, kernel_shape: Any, strides: Any = None, pads: Any = None, ceil_mode: int = 0,
                  count_include_pad: int = 0) -> Any:  # fmt: skip
    rank = x.ndim - 2
    kernel, step, pad, _ = _windows(rank, kernel_shape, strides, pads, None)
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[rank - 1]
    return pool(x, kernel, step, pad, bool(ceil_mode), bool(count_include_pad))


def _max_pool(x: Any, *, kernel_shape: Any, strides: Any = None, pads: Any = None, ceil_mode: int = 0,
              dilations: Any = None, storage_order: int = 0) -> Any:  # fmt: skip
    rank = x.ndim - 2
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[rank - 1]
    return pool(x, *_windows(rank, kernel_shape, strides, pads, dilations), bool(ceil_mode))


def _lp_pool(x: Any, *, kernel_shape: Any, strides: Any = None, p: int = 2, ceil_mode: int = 0) -> Any:
    step = tuple(strides or (1,) * len(kernel_shape))
    pool = (F.lp_pool1d, F.lp_pool2d)[x.ndim - 3]
    if x.ndim == 3:
        kernel_shape, step = kernel_shape[0], step[0]
    return pool(x, p, kernel_shape, step, bool(ceil_mode))


def _max_unpool(x: Any, places: Any, *, kernel_shape: Any, strides: Any = None) -> Any:
    per_image = math.prod(s * (n - 1) + k for n, s, k in zip(x.shape[2:], strides, kernel_shape, strict=True))
    return F.max_unpool2d(x, places % per_image, kernel_shape, strides)


def _group_norm(x: Any, scale: Any, bias: Any, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1) -> Any:
    return F.group_norm(x, num_groups, scale, bias, epsilon)


def _batch_norm(x: Any, scale: Any, b: Any, mean: Any, var: Any, *, epsilon: float = 1e-5, momentum: float = 0.9,
                training_mode: int = 0) -> Any:  # fmt: skip
    if training_mode:
        return F.batch_norm(x, mean.detach().clone(), var.detach().clone(), scale, b, True, 1 - momentum, epsilon)
    mean, var, scale, b = (v.reshape(-1, *[1] * (x.ndim - 2)) for v in (mean, var, scale, b))
    return (x - mean) * torch.rsqrt(var + epsilon) * scale + b


def _layer_norm(
    x: Any, scale: Any, b: Any = None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Any:
    return F.layer_norm(x, x.shape[axis:], scale.expand(x.shape[axis:]), b, epsilon)


def _rms_norm(x: Any, scale: Any, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1) -> Any:
    return F.rms_norm(x, x.shape[axis:], scale.expand(x.shape[axis:]), epsilon)


def _mean_variance(x: Any, *, axes: Any = (0, 2, 3)) -> Any:
    return (x - x.mean(axes, True)) / (x.var(axes, unbiased=False, keepdim=True).sqrt() + 1e-9)


def _slice(x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    count = len(starts)
    over = axes.tolist() if axes is not None else range(count)
    by = steps.tolist() if steps is not None else [1] * count
    for a, b, axis, step in zip(starts.tolist(), ends.tolist(), over, by, strict=True):
        n = x.shape[axis]
        low, high = (b if b >= 0 else max(b + n, -1)), a if a >= 0 else a + n
        places = range(n)[a:b:step] if step > 0 else range(min(high, n - 1), low if b >= -n else -1, step)
        x = x.index_select(axis, torch.tensor(list(places), dtype=torch.int64))
    return x


def _pad(x: Any, pads: Any, value: Any = None, axes: Any = None, *, mode: str = "constant") -> Any:
    rank, given = x.ndim, pads.tolist()
    over = [a % rank for a in axes.tolist()] if axes is not None else list(range(rank))
    both = dict.fromkeys(range(rank), (0, 0)) | {a: (given[i], given[i + len(over)]) for i, a in enumerate(over)}
    flat = [n for a in reversed(range(rank)) for n in both[a]]
    if mode == "constant":
        return F.pad(x, flat) if value is None else F.pad(x - value, flat) + value
    spare = 0
    while flat[-2:] == [0, 0]:
        flat, spare = flat[:-2], spare + 1
    more = max(0, len(flat) // 2 + 1 - x.ndim)
    lifted = x[(None,) * (more + (1 if spare < 1 else 0))]
    made = F.pad(lifted, flat, {"edge": "replicate", "reflect": "reflect", "wrap": "circular"}[mode])
    return made.reshape(made.shape[made.ndim - rank :])


def _gather_nd(x: Any, at: Any, *, batch_dims: int = 0) -> Any:
    if batch_dims:
        return torch.stack([_gather_nd(a, i, batch_dims=batch_dims - 1) for a, i in zip(x, at, strict=True)])
    return x[tuple(at[..., i] for i in range(at.shape[-1]))]


REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scatter_elements(x: Any, at: Any, updates: Any, *, axis: int = 0, reduction: str = "none") -> Any:
    at = torch.where(at < 0, at + x.shape[axis], at)
    if reduction == "none":
        return x.scatter(axis, at, updates)
    return x.scatter_reduce(axis, at, updates, REDUCTIONS[reduction], include_self=True)


def _scatter_nd(x: Any, at: Any, updates: Any, *, reduction: str = "none") -> Any:
    if reduction not in ("none", "add"):
        raise NotImplementedError(reduction)
    return x.index_put(tuple(at[..., i] for i in range(at.shape[-1])), updates, accumulate=reduction == "add")


def _depth_to_space(x: Any, *, blocksize: int, mode: str = "DCR") -> Any:
    n, c, h, w = x.shape
    if mode == "DCR":
        x = x.reshape(n, blocksize**2, -1, h, w).transpose(1, 2).reshape(n, c, h, w)
    return F.pixel_shuffle(x, blocksize)


def _space_to_depth(x: Any, *, blocksize: int, mode: str = "DCR") -> Any:
    y = F.pixel_unshuffle(x, blocksize)
    if mode == "CRD":
        return y
    return y.reshape(x.shape[0], x.shape[1], blocksize**2, *y.shape[2:]).transpose(1, 2).reshape(y.shape)


def _resize(x: Any, roi: Any = None, scales: Any = None, sizes: Any = None, *, mode: str = "nearest",
            coordinate_transformation_mode: str = "half_pixel", antialias: int = 0) -> Any:  # fmt: skip
    how = {"linear": ("linear", "bilinear", "trilinear")[x.ndim - 3], "cubic": "bicubic"}[mode]
    if coordinate_transformation_mode not in ("half_pixel", "align_corners"):
        raise NotImplementedError(coordinate_transformation_mode)
    corners = coordinate_transformation_mode == "align_corners"
    target = [int(n * f) for n, f in zip(x.shape, scales.tolist(), strict=True)] if sizes is None else sizes.tolist()
    return F.interpolate(x, size=target[2:], mode=how, align_corners=corners, antialias=bool(antialias))


def _grid_sample(
    x: Any, grid: Any, *, mode: str = "linear", padding_mode: str = "zeros", align_corners: int = 0
) -> Any:
    how = {"linear": "bilinear", "cubic": "bicubic", "nearest": "nearest"}[mode]
    return F.grid_sample(x, grid, how, padding_mode, bool(align_corners))


def _loss(f: Function) -> Function:
    def run(x: Any, target: Any, weight: Any = None, *, ignore_index: int = -100, reduction: str = "mean") -> Any:
        loss = f(x, target.long(), None if weight is None else weight.detach(), None, ignore_index, None, reduction)
        return (loss, torch.log_softmax(x, 1)) if f is F.cross_entropy else loss

    return run


def _shrink(x: Any, *, bias: float = 0.0, lambd: float = 0.5) -> Any:
    return (
        F.hardshrink(x, lambd) if bias == 0 else torch.where(x < -lambd, x + bias, torch.where(x > lambd, x - bias, 0))
    )


def _dft(x: Any, length: Any = None, axis: Any = None, *, inverse: int = 0, onesided: int = 0) -> Any:
    at = -2 if axis is None else int(axis)
    at = at if at >= 0 else at + x.ndim
    z = torch.view_as_complex(x.contiguous()) if x.shape[-1] == 2 else x[..., 0]
    n = None if length is None else int(length)
    if onesided:
        return torch.view_as_real(torch.fft.rfft(z, n, at))
    return torch.view_as_real((torch.fft.ifft if inverse else torch.fft.fft)(z, n, at))


def _attention(q: Any, k: Any, v: Any, mask: Any = None, *, is_causal: int = 0, scale: float | None = None) -> Any:
    if q.ndim != 4:
        raise NotImplementedError("heads in one axis")
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, mask, 0.0, bool(is_causal), scale=scale, enable_gqa=grouped)


def _recurrent(kind: type[Any], order: list[int]) -> Function:
    """A network of one layer; ONNX's gates in the order of PyTorch's."""

    def gates(w: Any, hidden: int) -> Any:
        return torch.cat([w[g * hidden : (g + 1) * hidden] for g in order])

    def run(x: Any, w: Any, r: Any, b: Any = None, lens: Any = None, h: Any = None, c: Any = None, *,
            hidden_size: int | None = None, direction: str = "forward", layout: int = 0,
            linear_before_reset: int = 0) -> Any:  # fmt: skip
        if lens is not None or direction == "reverse" or layout or (kind is torch.nn.GRU and not linear_before_reset):
            raise NotImplementedError(direction)
        hidden, both = r.shape[-1], direction == "bidirectional"
        net = kind(x.shape[-1], hidden, bidirectional=both).double()
        given = {}
        for d in range(w.shape[0]):
            end = "_l0" + "_reverse" * d
            given |= {f"weight_ih{end}": gates(w[d], hidden), f"weight_hh{end}": gates(r[d], hidden)}
            halves = (
                (b[d][: len(order) * hidden], b[d][len(order) * hidden :]) if b is not None else (0 * w[d, :, 0],) * 2
            )
            given |= {f"bias_ih{end}": gates(halves[0], hidden), f"bias_hh{end}": gates(halves[1], hidden)}
        first = None if h is None else h if c is None else (h, c)
        y, last = torch.func.functional_call(net, given, (x, first) if first is not None else (x,))
        n, batch = y.shape[0], y.shape[1]
        y = y.reshape(n, batch, w.shape[0], hidden).transpose(1, 2)
        return (y, *last) if isinstance(last, tuple) else (y, last)

    return run


def _reverse(x: Any, lens: Any, *, batch_axis: int = 1, time_axis: int = 0) -> Any:
    x = x.movedim((time_axis, batch_axis), (0, 1))
    rows = [torch.cat([x[:n, i].flip(0), x[n:, i]]) for i, n in enumerate(lens.tolist())]
    return torch.stack(rows, 1).movedim((0, 1), (time_axis, batch_axis))


def _split(x: Any, sizes: Any = None, *, axis: int = 0, num_outputs: int = 0) -> Any:
    return x.split(sizes.tolist() if sizes is not None else -(-x.shape[axis] // num_outputs), axis)


def _pieces(x: Any, sizes: Any = None, *, axis: int = 0, keepdims: int = 1) -> Any:
    if sizes is None:
        return list(x.split(1, axis)) if keepdims else list(x.unbind(axis))
    return list(x.split(sizes.tolist() if sizes.ndim else int(sizes), axis))


def _compress(x: Any, keep: Any, *, axis: int | None = None) -> Any:
    rows = x.reshape(-1) if axis is None else x
    return rows.index_select(axis or 0, keep.nonzero().reshape(-1))


def _normalize(x: Any, *, axis: int = -1, p: int = 2) -> Any:
    length = torch.linalg.vector_norm(x, p, axis, True)
    return x / torch.where(length == 0, 1, length)


def _clip(x: Any, low: Any = None, high: Any = None) -> Any:
    return x if low is None and high is None else torch.clamp(x, low, high)


def _dropout(x: Any, ratio: Any = None, training: Any = None) -> Any:
    if training is not None and bool(training):
        raise NotImplementedError("random numbers are each library's own")
    return x * 1


def _reshape(x: Any, shape: Any, *, allowzero: int = 0) -> Any:
    return x.reshape([x.shape[i] if n == 0 and not allowzero else n for i, n in enumerate(shape.tolist())])


def _squeeze(x: Any, axes: Any = None) -> Any:
    return x.squeeze() if axes is None else x.squeeze(tuple(axes.tolist()))


def _unsqueeze(x: Any, axes: Any) -> Any:
    rank = x.ndim + len(axes)
    for a in sorted(a % rank for a in axes.tolist()):
        x = x.unsqueeze(a)
    return x


def _dequantize(x: Any, scale: Any, zero: Any = None, *, axis: int = 1) -> Any:
    if scale.numel() > 1 and x.ndim > 1:
        scale, zero = (v if v is None else v.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
                       for v in (scale, zero))  # fmt: skip
    return (x.double() - (0 if zero is None else zero.double())) * scale


TORCH: dict[str, Function] = {
    **{n: getattr(torch, n.lower()) for n in "Abs Acos Acosh Asin Asinh Atan Atanh Cos Cosh Exp Erf Log Neg Reciprocal "
       "Sigmoid Sin Sinh Sqrt Tan Tanh Mul Sub Div Where".split()},
    "Add": torch.add,
    "AffineGrid": lambda theta, size, align_corners=0: F.affine_grid(theta, size.tolist(), bool(align_corners)),
    "Attention": _attention,
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Cast": lambda x, to, **_: x * 1,
    "CastLike": lambda x, like: x * 1,
    "Celu": lambda x, alpha=1.0: F.celu(x, alpha),
    "Clip": _clip,
    "Col2Im": lambda x, image, block, dilations=(1, 1), pads=(0, 0), strides=(1, 1): F.fold(
        x, image.tolist(), block.tolist(), dilations, tuple(pads[:2]), strides
    ),
    "Compress": _compress,
    "Concat": lambda *xs, axis: torch.cat(xs, axis),
    "ConcatFromSequence": lambda xs, axis, new_axis=0: (torch.stack if new_axis else torch.cat)(xs, axis),
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "CumProd": _cumulated(torch.cumprod, 1),
    "CumSum": _cumulated(torch.cumsum, 0),
    "DFT": _dft,
    "DepthToSpace": _depth_to_space,
    "DequantizeLinear": _dequantize,
    "Det": torch.linalg.det,
    "Dropout": _dropout,
    "Einsum": lambda *xs, equation: torch.einsum(equation, *xs),
    "Elu": lambda x, alpha=1.0: F.elu(x, alpha),
    "Expand": lambda x, shape: x.expand(torch.broadcast_shapes(x.shape, tuple(shape.tolist()))),
    "Flatten": lambda x, axis=1: x.reshape(math.prod(x.shape[:axis]), -1),
    "GRU": _recurrent(torch.nn.GRU, [1, 0, 2]),
    "Gather": lambda x, at, axis=0: x.movedim(axis, 0)[at].movedim(
        list(range(at.ndim)), [axis % x.ndim + i for i in range(at.ndim)]
    ),
    "GatherElements": lambda x, at, axis=0: torch.gather(x, axis, torch.where(at < 0, at + x.shape[axis], at)),
    "GatherND": _gather_nd,
    "Gelu": lambda x, approximate="none": F.gelu(x, approximate=approximate),
    "Gemm": _gemm,
    "GlobalAveragePool": lambda x: x.mean(tuple(range(2, x.ndim)), keepdim=True),
    "GlobalLpPool": lambda x, p=2: torch.linalg.vector_norm(x, p, tuple(range(2, x.ndim)), True),
    "GlobalMaxPool": lambda x: x.amax(tuple(range(2, x.ndim)), keepdim=True),
    "GridSample": _grid_sample,
    "GroupNormalization": _group_norm,
    "HardSigmoid": lambda x, alpha=0.2, beta=0.5: torch.clamp(alpha * x + beta, 0, 1),
    "HardSwish": F.hardswish,
    "Identity": lambda x: x * 1,
    "InstanceNormalization": lambda x, s, b, epsilon=1e-5: F.instance_norm(x, None, None, s, b, True, 0.1, epsilon),
    "LRN": lambda x, size, alpha=1e-4, beta=0.75, bias=1.0: F.local_response_norm(x, size, alpha, beta, bias),
    "LSTM": _recurrent(torch.nn.LSTM, [0, 2, 3, 1]),
    "LayerNormalization": _layer_norm,
    "LeakyRelu": lambda x, alpha=0.01: F.leaky_relu(x, alpha),
    "LogSoftmax": lambda x, axis=-1: F.log_softmax(x, axis),
    "LpNormalization": _normalize,
    "LpPool": _lp_pool,
    "MatMul": torch.matmul,
    "Max": _folded(torch.maximum),
    "MaxPool": _max_pool,
    "MaxUnpool": _max_unpool,
    "Mean": lambda *xs: sum(xs[1:], xs[0]) / len(xs),
    "MeanVarianceNormalization": _mean_variance,
    "Min": _folded(torch.minimum),
    "Mish": F.mish,
    "NegativeLogLikelihoodLoss": _loss(F.nll_loss),
    "PRelu": lambda x, slope: torch.where(x < 0, x * slope, x),
    "Pad": _pad,
    "Pow": lambda x, y: torch.pow(x, y),
    "RMSNormalization": _rms_norm,
    "RNN": _recurrent(torch.nn.RNN, [0]),
    "ReduceL1": _reduced(lambda x, axes, keep: torch.linalg.vector_norm(x, 1, axes, keep)),
    "ReduceL2": _reduced(lambda x, axes, keep: torch.linalg.vector_norm(x, 2, axes, keep)),
    "ReduceLogSum": _reduced(lambda x, axes, keep: torch.log(x.sum(axes, keep))),
    "ReduceLogSumExp": _reduced(torch.logsumexp),
    "ReduceMax": _reduced(torch.amax),
    "ReduceMean": _reduced(torch.mean),
    "ReduceMin": _reduced(torch.amin),
    "ReduceProd": _reduced(_prod),
    "ReduceSum": _reduced(torch.sum),
    "ReduceSumSquare": _reduced(lambda x, axes, keep: (x * x).sum(axes, keep)),
    "Relu": F.relu,
    "Reshape": _reshape,
    "Resize": _resize,
    "ReverseSequence": _reverse,
    "STFT": lambda x, step, window=None, length=None, onesided=1: torch.view_as_real(
        torch.stft(x.squeeze(-1), len(window) if length is None else int(length), int(step), window=window,
                   center=False, onesided=bool(onesided), return_complex=True)
    ).transpose(1, 2),
    "ScatterElements": _scatter_elements,
    "ScatterND": _scatter_nd,
    "Selu": lambda x: F.selu(x),
    "SequenceAt": lambda xs, at: xs[int(at)] * 1,
    "SequenceConstruct": lambda *xs: [x * 1 for x in xs],
    "SequenceErase": lambda xs, at=-1: [x * 1 for i, x in enumerate(xs) if i != int(at) % len(xs)],
    "SequenceInsert": lambda xs, x, at=None: (
        [*xs, x] if at is None else [*xs[: int(at) % (len(xs) + 1)], x, *xs[int(at) % (len(xs) + 1) :]]
    ),
    "Shrink": _shrink,
    "Slice": _slice,
    "Softmax": lambda x, axis=-1: F.softmax(x, axis),
    "SoftmaxCrossEntropyLoss": _loss(F.cross_entropy),
    "Softplus": F.softplus,
    "Softsign": F.softsign,
    "SpaceToDepth": _space_to_depth,
    "Split": _split,
    "SplitToSequence": _pieces,
    "Squeeze": _squeeze,
    "Sum": lambda *xs: sum(xs[1:], xs[0]) * 1,
    "SwiGLU": lambda a, b, alpha=1.0: a * torch.sigmoid(alpha * a) * b,
    "Swish": lambda x, alpha=1.0: F.silu(x) if alpha == 1 else x * torch.sigmoid(alpha * x),
    "ThresholdedRelu": lambda x, alpha=1.0: F.threshold(x, alpha, 0.0),
    "Tile": lambda x, repeats: x.repeat(tuple(repeats.tolist())),
    "TopK": lambda x, k, axis=-1, largest=1, sorted=1: torch.topk(x, int(k), axis, bool(largest)),
    "Transpose": lambda x, perm=None: x.permute(tuple(perm or range(x.ndim)[::-1])),
    "Trilu": lambda x, k=0, upper=1: (torch.triu if upper else torch.tril)(x, int(k)),
    "Unsqueeze": _unsqueeze,
}  # fmt: skip

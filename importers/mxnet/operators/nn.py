"""Layers: dense and convolutional ones, pooling, normalisations, dropout, losses' outputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....ops.errors import ModelError, UnsupportedModel
from ..converter import Converter, Value
from ..rules import REQUIRED, rule


@rule("FullyConnected", "_sparse_FullyConnected", "_npx_fully_connected")
def fully_connected(
    c: Converter,
    data: str,
    weight: str,
    bias: str | None = None,
    *,
    num_hidden: int,
    no_bias: bool = False,
    flatten: bool = True,
) -> Any:
    """data[n, k] times the transposed weight[h, k], plus bias[h]."""
    bias = None if no_bias else bias
    c.agree(weight, 0, num_hidden, "num_hidden")
    if flatten or c.rank(data) == 2:
        flat = data if c.rank(data) == 2 else c.Flatten(data, axis=1)
        return c.Gemm(flat, weight, bias, transB=1)
    product = c.MatMul(data, c.transpose(weight, (1, 0)))
    return product if bias is None else c.Add(product, bias)


def spread(value: Sequence[int], count: int, default: int) -> list[int]:
    """One number for each spatial axis."""
    numbers = list(value) or [default] * count
    if len(numbers) != count:
        raise ModelError(f"{tuple(value)} has not one number for each of {count} axes")
    return numbers


# Attributes of windows, and of what has weights for them besides.
WINDOW = {"kernel": REQUIRED, "stride": (), "dilate": (), "pad": ()}
WEIGHTED = {**WINDOW, "num_filter": REQUIRED, "num_group": 1}


def in_onnx(
    kernel: Sequence[int], stride: Sequence[int] = (), dilate: Sequence[int] = (), pad: Sequence[int] = (), **_: Any
) -> dict[str, Any]:
    """The moves of windows as ONNX has them."""
    count = len(kernel)
    strides, dilations = tuple(spread(stride, count, 1)), tuple(spread(dilate, count, 1))
    return {"strides": strides, "dilations": dilations, "pads": tuple(spread(pad, count, 0)) * 2}


def weighted(num_group: int = 1, **window: Any) -> dict[str, Any]:
    """The attributes of a convolution as ONNX has them."""
    return {"kernel_shape": tuple(window["kernel"]), **in_onnx(**window), "group": num_group}


@rule("Convolution", "Convolution_v1", "_npx_convolution", attributes=WEIGHTED)
def convolution(
    c: Converter,
    data: str,
    weight: str,
    bias: str | None = None,
    *,
    no_bias: bool = False,
    layout: Any = None,
    **window: Any,
) -> Any:
    count = len(window["kernel"])
    data, back = c.channels_first(data, layout)
    if layout is not None and layout.index("C") != 1:  # the weight lies as the data does: O...I
        weight = c.transpose(weight, [0, count + 1, *range(1, count + 1)])
    c.agree(weight, 0, window["num_filter"], "num_filter")
    result = c.Conv(data, weight, None if no_bias else bias, **weighted(**window))
    return c.transpose(result, back)


@rule("Deconvolution", "_npx_deconvolution", attributes=WEIGHTED)
def deconvolution(
    c: Converter,
    data: str,
    weight: str,
    bias: str | None = None,
    *,
    adj: tuple[int, ...] = (),
    target_shape: tuple[int, ...] = (),
    no_bias: bool = True,
    layout: Any = None,
    **window: Any,
) -> Any:
    """`target_shape` takes the place of `pad` and `adj`: what is too much is cut off, the larger half in front."""
    attrs = weighted(**window)
    kernel = attrs["kernel_shape"]
    count, more = len(kernel), spread(adj, len(kernel), 0)
    c.agree(weight, 1, window["num_filter"] // attrs["group"], "num_filter / num_group")
    if layout is not None and layout.index("C") != 1:
        raise UnsupportedModel(f"transposed convolutions of the layout {layout!r} are not known")
    if any(target_shape):
        why = "where a transposed convolution has a target_shape"
        spans = [
            s * (c.size(data, i + 2, why) - 1) + (k - 1) * d + 1
            for i, (s, k, d) in enumerate(zip(attrs["strides"], kernel, attrs["dilations"], strict=True))
        ]
        excess = [span - target for span, target in zip(spans, spread(target_shape, count, 0), strict=True)]
        if min(excess) < 0:
            raise ModelError(f"target_shape={target_shape} is larger than the {spans} that the kernel reaches")
        attrs["pads"], more = (*((e + 1) // 2 for e in excess), *(e // 2 for e in excess)), [0] * count
    return c.ConvTranspose(data, weight, None if no_bias else bias, **attrs, output_padding=tuple(more))


@rule("Pooling", "Pooling_v1", "_npx_pooling", keeps_axes=True)
def pooling(
    c: Converter,
    data: str,
    *,
    kernel: tuple[int, ...] = (),
    pool_type: str = "max",
    stride: tuple[int, ...] = (),
    pad: tuple[int, ...] = (),
    global_pool: bool = False,
    pooling_convention: str = "valid",
    count_include_pad: Any = None,
    p_value: Any = None,
    layout: Any = None,
) -> Any:
    """`full` rounds the number of windows up, also where the last one begins behind the data."""
    data, back = c.channels_first(data, layout)
    if pool_type == "lp":
        power = {1: _itself, 2: _square, 3: _cube}.get(p_value)
        if power is None:
            raise UnsupportedModel(f"pooling of the norm {p_value!r} is not known")
        summed = _pooled(c, power(c, data), kernel, "sum", stride, pad, global_pool, pooling_convention, True)
        root = {1: _itself, 2: _square_root, 3: _cube_root}[p_value]
        return c.transpose(root(c, summed), back)
    counted = count_include_pad is None or bool(count_include_pad)
    result = _pooled(c, data, kernel, pool_type, stride, pad, global_pool, pooling_convention, counted)
    return c.transpose(result, back)


def _itself(c: Converter, x: str) -> Value:
    return x


def _square(c: Converter, x: str) -> Value:
    return c.Mul(x, x)


def _square_root(c: Converter, x: str) -> Value:
    return c.Sqrt(x)


def _cube_root(c: Converter, x: str) -> Value:
    return c.Pow(x, c.number(1 / 3, x))


def _cube(c: Converter, x: str) -> Value:
    return c.Mul(c.Mul(x, x), x)


def _pooled(
    c: Converter,
    x: str,
    kernel: Sequence[int],
    kind: str,
    stride: Sequence[int],
    pad: Sequence[int],
    whole: bool,
    convention: str,
    counted: bool,
) -> Value:
    if kind not in ("max", "avg", "sum"):
        raise UnsupportedModel(f"pooling of the kind {kind!r} is not known")
    if whole:
        if kind == "sum":
            return c.ReduceSum(x, c.ints(*range(2, c.rank(x))), keepdims=1)
        return c.op("GlobalMaxPool" if kind == "max" else "GlobalAveragePool", x)
    if convention not in ("valid", "full"):
        raise UnsupportedModel(f"pooling_convention={convention!r} is not known")
    count = len(kernel)
    strides, pads = spread(stride, count, 1), spread(pad, count, 0)
    ends, up, factors = list(pads), 0, None
    if convention == "full":
        if all(p + s <= k for p, s, k in zip(pads, strides, kernel, strict=True)) and (kind != "sum"):
            up = 1  # no window begins behind the data: ONNX's rounding up is the same
        else:
            ends, factors = _reached(c, x, kernel, strides, pads)
    attrs: dict[str, Any] = {
        "kernel_shape": tuple(kernel),
        "strides": tuple(strides),
        "pads": (*pads, *ends),
        "ceil_mode": up,
    }
    if kind == "max":
        pooled: str = c.MaxPool(x, **attrs)  # a window of padding alone: MXNet's least number
        return pooled if factors is None else c.Max(pooled, c.number(float(np.finfo(c.dtype(x).numpy).min), x))
    if kind == "avg" and not counted:
        return c.AveragePool(x, **attrs, count_include_pad=0)
    average: str = c.AveragePool(x, **attrs, count_include_pad=1)
    size = math.prod(kernel)
    if kind == "sum":
        return c.Mul(average, c.number(size, x))
    return average if factors is None else c.Mul(average, c.array(size / factors, x))


def _reached(
    c: Converter, x: str, kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int]
) -> tuple[list[int], np.ndarray[Any, Any]]:
    """Padding behind, so that all windows of `full` fit, and how many elements of data and `pad` each window has."""
    ends, counts = [], []
    for i, (k, s, p) in enumerate(zip(kernel, strides, pads, strict=True)):
        size = c.size(x, i + 2, "where pooling_convention='full' has windows behind the data")
        windows = 1 + math.ceil((size + 2 * p - k) / s)
        ends.append(max(p, (windows - 1) * s + k - size - p))
        starts = np.arange(windows) * s - p
        counts.append(np.maximum(np.minimum(starts + k, size + p) - starts, 1))
    grid = counts[0].astype(np.float64)
    for more in counts[1:]:
        grid = grid[..., None] * more
    return ends, grid


@rule("_contrib_AdaptiveAvgPooling2D")
def adaptive_pooling(c: Converter, data: str, *, output_size: tuple[int, ...] = ()) -> Any:
    """Means over windows from floor(i n / m) to ceil((i + 1) n / m): a product with a matrix for each axis."""
    rows, columns = (*output_size, *output_size)[:2] if output_size else (1, 1)
    if (rows, columns) == (1, 1):
        return c.GlobalAveragePool(data)
    why = "where it is pooled to a given size"
    high, wide = (_means(c.size(data, axis, why), out) for axis, out in ((2, rows), (3, columns)))
    return c.MatMul(c.MatMul(c.array(high, data), data), c.array(wide.T, data))


def _means(size: int, out: int) -> np.ndarray[Any, Any]:
    matrix = np.zeros((out, size))
    for i in range(out):
        first, last = i * size // out, -(-(i + 1) * size // out)
        matrix[i, first:last] = 1 / (last - first)
    return matrix


def _batch_norm(
    c: Converter,
    data: str,
    gamma: str,
    beta: str,
    moving_mean: str,
    moving_var: str,
    *,
    relu: bool,
    eps: float = 1e-3,
    momentum: float = 0.9,
    fix_gamma: bool = True,
    use_global_stats: bool = False,
    output_mean_var: bool = False,
    axis: int = 1,
    key: Any = None,
    ndev: int = 1,
) -> Any:
    """With `fix_gamma`, MXNet's default, the scale is 1 whatever the file holds; with `use_global_stats` training
    leaves the statistics alone."""
    axis, rank = c.axis(data, axis), c.rank(data)
    if fix_gamma:
        gamma = c.constant(c.like(gamma, 1) if c.known(gamma) is None else c.const(np.ones_like(c.known(gamma))))
    if use_global_stats:
        column = [-1 if i == axis else 1 for i in range(rank)]
        mean, variance = (c.reshape(c.constant(s), column) for s in (moving_mean, moving_var))
        centred = c.Div(c.Sub(data, mean), c.Sqrt(c.Add(variance, c.number(eps, data))))
        result = c.Add(c.Mul(centred, c.reshape(gamma, column)), c.reshape(beta, column))
    else:
        order = [0, axis, *(i for i in range(1, rank) if i != axis)] if axis else [1, 0, *range(2, rank)]
        back = [order.index(i) for i in range(rank)]
        moved = c.transpose(data, order)
        normal = c.BatchNormalization(moved, gamma, beta, moving_mean, moving_var, epsilon=eps, momentum=momentum)
        result = c.transpose(normal, back)
    if relu:
        result = c.Relu(result)
    if not output_mean_var:
        return result
    return result, moving_mean, c.Reciprocal(c.Sqrt(c.Add(moving_var, c.number(eps, data))))


rule("BatchNorm", "_npx_batch_norm", relu=False, keeps_axes=True)(_batch_norm)
rule("BatchNorm_v1", "_contrib_SyncBatchNorm", relu=False, keeps_axes=True)(_batch_norm)
rule("_contrib_BatchNormWithReLU", relu=True, keeps_axes=True)(_batch_norm)


@rule("LayerNorm", "_npx_layer_norm", keeps_axes=True)
def layer_norm(
    c: Converter, data: str, gamma: str, beta: str, *, axis: int = -1, eps: float = 1e-5, output_mean_var: bool = False
) -> Any:
    at, rank = c.axis(data, axis), c.rank(data)
    if at == rank - 1 and not output_mean_var:
        return c.LayerNormalization(data, gamma, beta, axis=at, epsilon=eps)
    over, column = c.ints(at), [-1 if i == at else 1 for i in range(rank)]
    mean = c.ReduceMean(data, over, keepdims=1)
    centred = c.Sub(data, mean)
    spread_ = c.Sqrt(c.Add(c.ReduceMean(c.Mul(centred, centred), over, keepdims=1), c.number(eps, data)))
    result = c.Add(c.Mul(c.Div(centred, spread_), c.reshape(gamma, column)), c.reshape(beta, column))
    return (result, c.squeeze(mean, at), c.squeeze(spread_, at)) if output_mean_var else result


@rule("GroupNorm", keeps_axes=True)
def group_norm(
    c: Converter,
    data: str,
    gamma: str,
    beta: str,
    *,
    num_groups: int = 1,
    eps: float = 1e-5,
    output_mean_var: bool = False,
) -> Any:
    """A scale and an offset for each group, as MXNet 1.9 has them."""
    if output_mean_var:
        raise UnsupportedModel("the means and variances of GroupNorm are not carried")
    attrs: dict[str, Any] = {"num_groups": num_groups, "epsilon": eps}
    return c.op("GroupNormalizationPerGroup", data, gamma, beta, domain="mezzo", **attrs)


@rule("InstanceNorm", keeps_axes=True)
def instance_norm(c: Converter, data: str, gamma: str, beta: str, *, eps: float = 1e-3) -> Any:
    return c.InstanceNormalization(data, gamma, beta, epsilon=eps)


@rule("L2Normalization", keeps_axes=True)
def l2_normalization(c: Converter, data: str, *, eps: float = 1e-10, mode: str = "instance") -> Any:
    axes = {"instance": range(1, c.rank(data)), "channel": [1], "spatial": range(2, c.rank(data))}.get(mode)
    if axes is None:
        raise UnsupportedModel(f"L2Normalization of mode {mode!r} is not known")
    total = c.ReduceSumSquare(data, c.ints(*axes), keepdims=1)
    return c.Div(data, c.Sqrt(c.Add(total, c.number(eps, data))))


@rule("LRN", keeps_axes=True)
def lrn(c: Converter, data: str, *, nsize: int, alpha: float = 1e-4, beta: float = 0.75, knorm: float = 2.0) -> Any:
    return c.LRN(data, size=nsize, alpha=alpha, beta=beta, bias=knorm)


@rule("Dropout", "_npx_dropout", keeps_axes=True)
def dropout(c: Converter, data: str, *, p: float = 0.5, mode: str = "training", axes: tuple[int, ...] = ()) -> Any:
    """`axes` share one draw; mode "always" drops outside of training too."""
    ratio = c.const(np.float32(p))
    always = (c.const(np.array(True)),) if mode == "always" else ()
    if not axes:
        return c.Dropout(data, ratio, *always)
    shared = c.axes(data, axes)
    sizes = [c.ints(1) if i in shared else c.dim(data, i) for i in range(c.rank(data))]
    return c.Mul(data, c.Dropout(c.full(c.shape_with(sizes), 1, c.dtype(data)), ratio, *always))


# Outputs that carry a loss in MXNet: here what they answer. The label is no input then.


@rule("SoftmaxOutput", "Softmax")
def softmax_output(
    c: Converter,
    data: str,
    label: str | None = None,
    *,
    grad_scale: float = 1.0,
    ignore_label: float = -1.0,
    multi_output: bool = False,
    use_ignore: bool = False,
    preserve_shape: bool = False,
    normalization: str = "null",
    out_grad: bool = False,
    smooth_alpha: float = 0.0,
) -> Any:
    if multi_output:
        return c.Softmax(data, axis=1)
    if preserve_shape or c.rank(data) == 2:
        return c.Softmax(data, axis=-1)
    return c.Reshape(c.Softmax(c.Flatten(data, axis=1), axis=1), c.shape_of(data))


@rule("SoftmaxActivation")
def softmax_activation(c: Converter, data: str, *, mode: str = "instance") -> Any:
    return softmax_output(c, data, multi_output=mode == "channel")


@rule("LinearRegressionOutput", "MAERegressionOutput", "_sparse_LinearRegressionOutput", "_sparse_MAERegressionOutput")
def regression_output(c: Converter, data: str, label: str | None = None, *, grad_scale: float = 1.0) -> Any:
    return c.Identity(data)


@rule("LogisticRegressionOutput", "_sparse_LogisticRegressionOutput")
def logistic_output(c: Converter, data: str, label: str | None = None, *, grad_scale: float = 1.0) -> Any:
    return c.Sigmoid(data)


@rule("SVMOutput")
def svm_output(
    c: Converter,
    data: str,
    label: str | None = None,
    *,
    margin: float = 1.0,
    regularization_coefficient: float = 1.0,
    use_linear: bool = False,
) -> Any:
    return c.Identity(data)


@rule("MakeLoss", "_sparse_make_loss")
def make_loss(
    c: Converter, data: str, *, grad_scale: float = 1.0, valid_thresh: float = 0.0, normalization: str = "null"
) -> Any:
    return c.Identity(data)


@rule("IdentityAttachKLSparseReg")
def kl_regularised(
    c: Converter, data: str, *, sparseness_target: float = 0.1, penalty: float = 0.001, momentum: float = 0.9
) -> Any:
    return c.Identity(data)


# Attention of GluonNLP: heads and their queries, keys and values lie beside one another


def _heads(c: Converter, x: str, heads: int, parts: int) -> list[str]:
    """[length, batch, heads * parts * size] as `parts` arrays [batch * heads, length, size]."""
    width = c.dims(x)[2]
    apart = c.reshape(x, [0, 0, heads, parts, width // (heads * parts) if isinstance(width, int) else -1])
    split = [c.squeeze(c.slice(apart, 3, i, i + 1), 3) for i in range(parts)]
    length = c.dim(x, 0)
    return [c.Reshape(c.transpose(p, (1, 2, 0, 3)), c.shape_with([-1, length, c.dim(p, 3)])) for p in split]


def _scaled(c: Converter, queries: str, keys: str, width: int, heads: int) -> Value:
    root = math.sqrt(width // heads)
    return c.MatMul(c.Div(queries, c.number(root, queries)), c.transpose(keys, (0, 2, 1)))


def _joined(c: Converter, attention: str, values: str, heads: int) -> Value:
    """[batch * heads, length, size] as [length, batch, heads * size]."""
    product = c.MatMul(attention, values)
    apart = c.Reshape(product, c.shape_with([-1, heads, c.dim(product, 1), c.dim(product, 2)]))
    return c.reshape(c.transpose(apart, (2, 0, 1, 3)), [0, 0, -1])


@rule("_contrib_interleaved_matmul_selfatt_qk")
def selfatt_qk(c: Converter, queries_keys_values: str, *, heads: int) -> Any:
    queries, keys, _ = _heads(c, queries_keys_values, heads, 3)
    width = c.size(queries_keys_values, 2, "to divide by the root of a head's size") // 3
    return _scaled(c, queries, keys, width, heads)


@rule("_contrib_interleaved_matmul_selfatt_valatt")
def selfatt_valatt(c: Converter, queries_keys_values: str, attention: str, *, heads: int) -> Any:
    return _joined(c, attention, _heads(c, queries_keys_values, heads, 3)[2], heads)


@rule("_contrib_interleaved_matmul_encdec_qk")
def encdec_qk(c: Converter, queries: str, keys_values: str, *, heads: int) -> Any:
    width = c.size(queries, 2, "to divide by the root of a head's size")
    return _scaled(c, _heads(c, queries, heads, 1)[0], _heads(c, keys_values, heads, 2)[0], width, heads)


@rule("_contrib_interleaved_matmul_encdec_valatt")
def encdec_valatt(c: Converter, keys_values: str, attention: str, *, heads: int) -> Any:
    return _joined(c, attention, _heads(c, keys_values, heads, 2)[1], heads)

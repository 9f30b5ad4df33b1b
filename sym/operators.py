"""Functions that make symbols: operators by name, and MXNet's layers, which add their own weight variables."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..nd import named
from ..ops import OPS, DType, Op
from ..ops.errors import InputError
from ..ops.nn import names
from .expression import NAMES, Body, Dims, Entry, Use, Variable, line
from .names import nearest
from .symbol import Symbol, use

Function = Callable[..., Symbol]
LAYERS: dict[str, Function] = {}


def layer(function: Function) -> Function:
    """Enter a function in the table of layers, under its name."""
    LAYERS[function.__name__] = function
    return function


def find(name: str) -> Function:
    """The layer of this name, or the operator. Raises AttributeError with the nearest names."""
    function = LAYERS.get(name)
    if function is not None:
        return function
    domain = named.domain_of(name)
    if domain is None:
        near = nearest(name, {*LAYERS, *named.names()})
        raise AttributeError(f"there is no operator or layer {name!r}{near}")
    return operator(name, domain)


def operator(name: str, domain: str = "") -> Function:
    """The function of an operator of any domain, as `mezzo.nd.operator`. Raises InputError if it is not carried."""
    record = OPS.get((domain, name))
    if record is None:
        raise InputError(f"there is no operator {domain or 'ai.onnx'}::{name}", where=line())
    return functools.partial(_use, record)


def _use(record: Op, *operands: Any, **attrs: Any) -> Symbol:
    """A use of an operator; how many outputs it has is told by `outputs`, or by what it has at least."""
    outputs = attrs.pop("outputs", None) or record.results(operands, attrs)
    return use(record.name, *operands, domain=record.domain, outputs=outputs, **attrs)


def variable(
    name: str,
    shape: Sequence[int] | None = None,
    dtype: Any = np.float32,
    init: str = "",
    *,
    auxiliary: bool = False,
) -> Symbol:
    """An argument of the expression. `shape` may be open, as a whole or in sizes given as 0; `init` names the
    initialiser of one that is learnt."""
    dims = None if shape is None else tuple(int(d) or None for d in shape)
    return Symbol([(Variable(name, dims, DType.of(np.dtype(dtype)), auxiliary, init, line()), 0)])


def group(symbols: Sequence[Symbol]) -> Symbol:
    """Several symbols as one, with the outputs of all."""
    return Symbol([e for s in symbols for e in s.entries])


def own(given: Symbol | None, name: str, part: str, dims: Dims | None, init: str, **more: Any) -> Symbol:
    """A layer's variable: the one that is given, or a new one `NAME_PART`."""
    if given is not None:
        return given
    return Symbol([(Variable(f"{name}_{part}", dims, init=init, where=line(), **more), 0)])


def _many(value: int | Sequence[int] | None, count: int, usual: int) -> tuple[int, ...]:
    if value is None or (not isinstance(value, int) and not len(value)):
        return (usual,) * count
    return (value,) * count if isinstance(value, int) else tuple(value)


@layer
def FullyConnected(  # noqa: N802 (MXNet's name)
    data: Symbol,
    weight: Symbol | None = None,
    bias: Symbol | None = None,
    *,
    num_hidden: int,
    no_bias: bool = False,
    flatten: bool = True,
    name: str = "",
) -> Symbol:
    """y = x w^T + b, x flattened to a matrix or (`flatten=False`) over its last axis; w is [num_hidden, inputs]."""
    name = name or NAMES.fresh("FullyConnected")
    w = own(weight, name, "weight", (num_hidden, None), "xavier")
    b = None if no_bias else own(bias, name, "bias", (num_hidden,), "zeros")
    if flatten:
        flat = use("Flatten", data, name=f"{name}_flat", axis=1)
        return use("Gemm", flat, w, b, name=name, transB=1)
    turned = use("Transpose", w, name=f"{name}_turned", perm=(1, 0))
    if b is None:
        return use("MatMul", data, turned, name=name)
    return use("Add", use("MatMul", data, turned, name=f"{name}_product"), b, name=name)


@layer
def Convolution(  # noqa: N802
    data: Symbol,
    weight: Symbol | None = None,
    bias: Symbol | None = None,
    *,
    kernel: Sequence[int],
    num_filter: int,
    stride: int | Sequence[int] | None = None,
    pad: int | Sequence[int] | None = None,
    dilate: int | Sequence[int] | None = None,
    num_group: int = 1,
    no_bias: bool = False,
    name: str = "",
) -> Symbol:
    """A convolution of [batch, channels, ...]; weights are [num_filter, channels / num_group, *kernel]."""
    name, n = name or NAMES.fresh("Convolution"), len(kernel)
    w = own(weight, name, "weight", (num_filter, None, *kernel), "xavier")
    b = None if no_bias else own(bias, name, "bias", (num_filter,), "zeros")
    return use(
        "Conv", data, w, b, name=name, kernel_shape=tuple(kernel), strides=_many(stride, n, 1),
        pads=_many(pad, n, 0) * 2, dilations=_many(dilate, n, 1), group=num_group,
    )  # fmt: skip


@layer
def Deconvolution(  # noqa: N802
    data: Symbol,
    weight: Symbol | None = None,
    bias: Symbol | None = None,
    *,
    kernel: Sequence[int],
    num_filter: int,
    stride: int | Sequence[int] | None = None,
    pad: int | Sequence[int] | None = None,
    adj: int | Sequence[int] | None = None,
    dilate: int | Sequence[int] | None = None,
    num_group: int = 1,
    no_bias: bool = True,
    name: str = "",
) -> Symbol:
    """A transposed convolution; weights are [channels, num_filter / num_group, *kernel]."""
    name, n = name or NAMES.fresh("Deconvolution"), len(kernel)
    w = own(weight, name, "weight", (None, num_filter // num_group, *kernel), "xavier")
    b = None if no_bias else own(bias, name, "bias", (num_filter,), "zeros")
    return use(
        "ConvTranspose", data, w, b, name=name, kernel_shape=tuple(kernel), strides=_many(stride, n, 1),
        pads=_many(pad, n, 0) * 2, dilations=_many(dilate, n, 1), output_padding=_many(adj, n, 0), group=num_group,
    )  # fmt: skip


ACTIVATIONS = {name: names.ACTIVATIONS[name] for name in ("relu", "sigmoid", "tanh", "softrelu", "softsign")}


def _one_of(kind: str, table: Sequence[str] | dict[str, Any], what: str) -> str:
    if kind not in table:
        raise InputError(f"{what} {kind!r} is none of {', '.join(table)}", where=line())
    return kind


@layer
def Activation(data: Symbol, *, act_type: str, name: str = "") -> Symbol:  # noqa: N802
    """relu, sigmoid, tanh, softrelu or softsign."""
    op = ACTIVATIONS[_one_of(act_type, ACTIVATIONS, "act_type")]
    return use(op, data, name=name or NAMES.fresh("Activation"))


@layer
def LeakyReLU(data: Symbol, *, act_type: str = "leaky", slope: float = 0.25, name: str = "") -> Symbol:  # noqa: N802
    """leaky or elu with a slope, selu or gelu."""
    ops: dict[str, tuple[str, dict[str, Any]]] = {
        "leaky": ("LeakyRelu", {"alpha": slope}), "elu": ("Elu", {"alpha": slope}), "selu": ("Selu", {}),
        "gelu": ("Gelu", {}),
    }  # fmt: skip
    op, attrs = ops[_one_of(act_type, ops, "act_type")]
    return use(op, data, name=name or NAMES.fresh("LeakyReLU"), **attrs)


@layer
def Pooling(  # noqa: N802
    data: Symbol,
    *,
    kernel: Sequence[int] = (),
    pool_type: str = "max",
    global_pool: bool = False,
    stride: int | Sequence[int] | None = None,
    pad: int | Sequence[int] | None = None,
    pooling_convention: str = "valid",
    count_include_pad: bool = True,
    p_value: int = 2,
    name: str = "",
) -> Symbol:
    """max, avg or lp; the convention `full` rounds the number of windows up."""
    _one_of(pool_type, ("max", "avg", "lp"), "pool_type")
    _one_of(pooling_convention, ("valid", "full"), "pooling_convention")
    name, n = name or NAMES.fresh("Pooling"), len(kernel)
    op = {"max": "Max", "avg": "Average", "lp": "Lp"}[pool_type] + "Pool"
    more: dict[str, Any] = {"p": p_value} if pool_type == "lp" else {}
    if global_pool:
        return use(f"Global{op}", data, name=name, **more)
    if not n:
        raise InputError("Pooling needs a kernel", where=line(), hint="give kernel=(2, 2), or global_pool=True")
    if pool_type == "avg":
        more["count_include_pad"] = int(count_include_pad)
    return use(
        op, data, name=name, kernel_shape=tuple(kernel), strides=_many(stride, n, 1), pads=_many(pad, n, 0) * 2,
        ceil_mode=int(pooling_convention == "full"), **more,
    )  # fmt: skip


@layer
def BatchNorm(  # noqa: N802
    data: Symbol,
    gamma: Symbol | None = None,
    beta: Symbol | None = None,
    moving_mean: Symbol | None = None,
    moving_var: Symbol | None = None,
    *,
    eps: float = 1e-3,
    momentum: float = 0.9,
    fix_gamma: bool = True,
    name: str = "",
) -> Symbol:
    """Normalisation of each channel (axis 1); with `fix_gamma` the scale is 1 and is not learnt."""
    name = name or NAMES.fresh("BatchNorm")
    weights = (
        own(gamma, name, "gamma", None, "ones", fixed=fix_gamma),
        own(beta, name, "beta", None, "zeros"),
        own(moving_mean, name, "moving_mean", None, "zeros", auxiliary=True),
        own(moving_var, name, "moving_var", None, "ones", auxiliary=True),
    )
    return use("BatchNormalization", data, *weights, name=name, epsilon=eps, momentum=momentum)


@layer
def Dropout(data: Symbol, *, p: float = 0.5, name: str = "") -> Symbol:  # noqa: N802
    """Set a share p of the elements to zero, and scale up the others, in training."""
    return use("Dropout", data, np.float32(p), name=name or NAMES.fresh("Dropout"))


@layer
def Concat(*data: Symbol, dim: int = 1, axis: int | None = None, name: str = "") -> Symbol:  # noqa: N802
    """Symbols behind each other along an axis (`dim` in MXNet's words)."""
    return use("Concat", *data, name=name or NAMES.fresh("Concat"), axis=dim if axis is None else axis)


@layer
def Reshape(data: Symbol, shape: Any = None, *, name: str = "", **attrs: Any) -> Symbol:  # noqa: N802
    """Another shape: 0 keeps a size, -1 is what is left."""
    if isinstance(shape, list | tuple):
        if any(d < -1 for d in shape):
            raise InputError(f"shape {tuple(shape)}", where=line(), hint="sizes, 0 and -1 are understood")
        shape = np.array(shape, np.int64)
    return use("Reshape", data, shape, name=name or NAMES.fresh("Reshape"), **attrs)


@layer
def Embedding(  # noqa: N802
    data: Symbol, weight: Symbol | None = None, *, input_dim: int, output_dim: int, name: str = ""
) -> Symbol:
    """Rows of a table [input_dim, output_dim] by their numbers."""
    name = name or NAMES.fresh("Embedding")
    whole = use("Cast", data, name=f"{name}_index", to=DType.INT64.onnx)
    return use("Gather", own(weight, name, "weight", (input_dim, output_dim), "normal"), whole, name=name, axis=0)


@layer
def LayerNorm(  # noqa: N802
    data: Symbol,
    gamma: Symbol | None = None,
    beta: Symbol | None = None,
    *,
    axis: int = -1,
    eps: float = 1e-5,
    name: str = "",
) -> Symbol:
    """Normalisation over the axes from `axis` on."""
    name = name or NAMES.fresh("LayerNorm")
    weights = own(gamma, name, "gamma", None, "ones"), own(beta, name, "beta", None, "zeros")
    return use("LayerNormalization", data, *weights, name=name, axis=axis, epsilon=eps)


# -- heads: outputs whose gradient is that of a loss ----------------------------------------------------------------


def _head(op: str, data: Symbol, name: str, loss: Symbol, **attrs: Any) -> Symbol:
    return use(op, data, name=name, loss=loss.entry, **attrs)


def _label(label: Symbol | None, name: str) -> Symbol:
    return label if label is not None else Symbol([(Variable(f"{name}_label", None, where=line()), 0)])


@layer
def SoftmaxOutput(  # noqa: N802
    data: Symbol,
    label: Symbol | None = None,
    *,
    grad_scale: float = 1.0,
    ignore_label: int = -1,
    use_ignore: bool = False,
    normalization: str = "null",
    multi_output: bool = False,
    name: str = "",
) -> Symbol:
    """Probabilities over axis 1; the gradient is that of the cross entropy with `label` (numbers of classes), summed
    over the batch, or (`normalization`) its mean: `batch`, or `valid` without those that are ignored. With
    `multi_output` it is a mean over the places of an example, but where those that are ignored are left out."""
    _one_of(normalization, ("null", "batch", "valid"), "normalization")
    name = name or NAMES.fresh("SoftmaxOutput")
    classes = use("Cast", _label(label, name), name=f"{name}_classes", to=DType.INT64.onnx)
    attrs: dict[str, Any] = {"ignore_index": ignore_label} if use_ignore else {}
    attrs["reduction"] = "mean" if normalization == "valid" else "sum"
    loss = use("SoftmaxCrossEntropyLoss", data, classes, name=f"{name}_entropy", **attrs)
    if normalization == "batch":
        batch = use("Squeeze", use("Shape", data, name=f"{name}_shape", start=0, end=1), name=f"{name}_batch")
        loss = use("Div", loss, use("CastLike", batch, loss, name=f"{name}_count"), name=f"{name}_mean")
    if multi_output and normalization != "valid":
        places = use("ReduceProd", use("Shape", data, name=f"{name}_places", start=2), name=f"{name}_many", keepdims=0)
        loss = use("Div", loss, use("CastLike", places, loss, name=f"{name}_wide"), name=f"{name}_each")
    if grad_scale != 1.0:
        loss = use("Mul", loss, np.float32(grad_scale), name=f"{name}_loss")
    return _head("Softmax", data, name, loss, axis=1)


def _regression(
    op: str, data: Symbol, label: Symbol | None, grad_scale: float, name: str, *, squared: bool = True
) -> Symbol:
    """The gradient (prediction - label) over the number of outputs of one example, as MXNet has it: half the squares
    for a line, the cross entropy for a probability; its sign, if not `squared`."""
    target = _label(label, name)
    if not squared:
        each = use("Abs", use("Sub", data, target, name=f"{name}_away"), name=f"{name}_each")
    elif op == "Identity":
        away = use("Sub", data, target, name=f"{name}_away")
        each = use("Mul", use("Mul", away, away, name=f"{name}_square"), np.float32(0.5), name=f"{name}_each")
    else:  # log(1 + e^x) - x y
        each = use("Sub", use("Softplus", data, name=f"{name}_plus"), use("Mul", data, target, name=f"{name}_part"),
                   name=f"{name}_each")  # fmt: skip
    by_example = use("ReduceMean", use("Flatten", each, name=f"{name}_flat", axis=1), np.array([1]),
                     name=f"{name}_examples", keepdims=0)  # fmt: skip
    loss = use("ReduceSum", by_example, name=f"{name}_sum", keepdims=0)
    return _head(op, data, name, use("Mul", loss, np.float32(grad_scale), name=f"{name}_loss"))


@layer
def LinearRegressionOutput(  # noqa: N802
    data: Symbol, label: Symbol | None = None, *, grad_scale: float = 1.0, name: str = ""
) -> Symbol:
    """The data; the gradient is that of half the squared distance to `label`."""
    return _regression("Identity", data, label, grad_scale, name or NAMES.fresh("LinearRegressionOutput"))


@layer
def LogisticRegressionOutput(  # noqa: N802
    data: Symbol, label: Symbol | None = None, *, grad_scale: float = 1.0, name: str = ""
) -> Symbol:
    """The sigmoid of the data; the gradient is that of the cross entropy with `label`."""
    return _regression("Sigmoid", data, label, grad_scale, name or NAMES.fresh("LogisticRegressionOutput"))


@layer
def MAERegressionOutput(  # noqa: N802
    data: Symbol, label: Symbol | None = None, *, grad_scale: float = 1.0, name: str = ""
) -> Symbol:
    """The data; the gradient is that of the distance to `label`."""
    return _regression("Identity", data, label, grad_scale, name or NAMES.fresh("MAERegressionOutput"), squared=False)


@layer
def SVMOutput(  # noqa: N802
    data: Symbol,
    label: Symbol | None = None,
    *,
    margin: float = 1.0,
    regularization_coefficient: float = 1.0,
    use_linear: bool = False,
    name: str = "",
) -> Symbol:
    """The data [n, classes]; the gradient is that of the hinge of each class against the others, summed: squared, or
    (`use_linear`) not."""
    name = name or NAMES.fresh("SVMOutput")
    classes = use("Cast", _label(label, name), name=f"{name}_classes", to=DType.INT64.onnx)
    depth = use("Shape", data, name=f"{name}_depth", start=1, end=2)
    ways = use("OneHot", classes, depth, np.array([-1, 1], np.float32), name=f"{name}_ways", axis=1)
    short = use("Relu", use("Sub", np.float32(margin), use("Mul", data, ways, name=f"{name}_far"), name=f"{name}_near"),
                name=f"{name}_short")  # fmt: skip
    each = short if use_linear else use("Mul", short, short, name=f"{name}_square")
    loss = use("ReduceSum", each, name=f"{name}_sum", keepdims=0)
    return _head("Identity", data, name, use("Mul", loss, np.float32(regularization_coefficient), name=f"{name}_loss"))


@layer
def MakeLoss(data: Symbol, *, grad_scale: float = 1.0, name: str = "") -> Symbol:  # noqa: N802
    """The data, whose sum is to fall."""
    name = name or NAMES.fresh("MakeLoss")
    loss = use("ReduceSum", data, name=f"{name}_sum", keepdims=0)
    return _head("Identity", data, name, use("Mul", loss, np.float32(grad_scale), name=f"{name}_loss"))


__all__ = ["LAYERS", "Body", "Entry", "Use", "find", "group", "variable"]

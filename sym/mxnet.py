"""MXNet's operators as symbols, by their names there, and symbols from MXNet's own JSON (0.8 and later).

A symbol is an expression before shapes are known, so that these are the operators whose form does not depend on them.
`mz.load` and `mz.mxnet.load` carry many more (docs/mxnet.md), with the parameters at hand.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..importers.mxnet.converter import element_type
from ..importers.mxnet.rules import WITHOUT_MEANING, literal
from ..importers.mxnet.symbol import SymbolGraph, SymbolNode, read_symbol
from ..ops import DType
from ..ops.errors import ModelError, UnsupportedModel
from . import rules
from .expression import Variable, group_around, grouped, line, variables
from .operators import LAYERS, variable
from .symbol import Symbol, use

Function = Callable[..., Symbol]
FUNCTIONS: dict[str, Function] = dict(LAYERS)  # by MXNet's names
USUAL = (False, None, "NCHW")  # values of attributes that say nothing more than their absence

# The operators of ONNX, each with its names in MXNet: of one operand, of two, with a number, with a number first.
ONE = """
Relu relu|Sigmoid sigmoid|Tanh tanh|Exp exp|Log log|Sqrt sqrt|Abs abs|Neg negative|Floor floor|Ceil ceil|Sign sign
Sin sin|Cos cos|Tan tan|Asin arcsin|Acos arccos|Atan arctan|Sinh sinh|Cosh cosh|Erf erf|Softsign softsign
Reciprocal reciprocal|Identity _copy identity make_loss
"""
TWO = """
Add elemwise_add _plus _Plus _add broadcast_add broadcast_plus _grad_add
Sub elemwise_sub _minus _Minus _sub broadcast_sub broadcast_minus
Mul elemwise_mul _mul _Mul broadcast_mul|Div elemwise_div _div _Div broadcast_div
Pow _power _Power broadcast_power|Max _maximum _Maximum broadcast_maximum maximum
Min _minimum _Minimum broadcast_minimum minimum
"""
SCALAR = """
Add _plus_scalar _PlusScalar|Sub _minus_scalar _MinusScalar|Mul _mul_scalar _MulScalar|Div _div_scalar _DivScalar
Pow _power_scalar _PowerScalar|Max _maximum_scalar _MaximumScalar|Min _minimum_scalar _MinimumScalar
"""
TURNED = "Sub _rminus_scalar _RMinusScalar|Div _rdiv_scalar _RDivScalar|Pow _rpower_scalar _RPowerScalar"
REDUCING = "ReduceSum sum sum_axis|ReduceMean mean|ReduceMax max max_axis|ReduceMin min min_axis|ReduceProd prod"


def function(*names: str) -> Callable[[Function], Function]:
    """Enter a function under names of MXNet."""

    def enter(write: Function) -> Function:
        FUNCTIONS.update(dict.fromkeys(names, write))
        return write

    return enter


def _named(op: str, *operands: Any, name: str = "", **attrs: Any) -> Symbol:
    return use(op, *operands, name=name, **attrs)


def _of_one(op: str) -> Function:
    return lambda data, *, name="": _named(op, data, name=name)


def _of_two(op: str) -> Function:
    return lambda lhs, rhs, *, name="": _named(op, lhs, rhs, name=name)


def _of_scalar(op: str, turned: bool) -> Function:
    def write(data: Symbol, *, scalar: float = 1.0, is_int: bool = True, name: str = "") -> Symbol:
        number = float(scalar)
        return _named(op, number, data, name=name) if turned else _named(op, data, number, name=name)

    return write


def _reducing(op: str) -> Function:
    def write(data: Symbol, *, axis: Any = None, keepdims: bool = False, name: str = "") -> Symbol:
        axes = None if axis is None or axis == () else np.atleast_1d(np.asarray(axis, np.int64))
        if axes is None and not keepdims:  # one axis is left, as MXNet leaves it
            whole = use(op, data, None, keepdims=0)
            return _named("Reshape", whole, np.array([1]), name=name)
        return _named(op, data, axes, name=name, keepdims=int(keepdims))

    return write


def _entered(table: str, make: Callable[[str], Function]) -> None:
    for entry in table.strip().replace("\n", "|").split("|"):
        op, *names = entry.split()
        function(*names)(make(op))


_entered(ONE, _of_one)
_entered(TWO, _of_two)
_entered(SCALAR, lambda op: _of_scalar(op, turned=False))
_entered(TURNED, lambda op: _of_scalar(op, turned=True))
_entered(REDUCING, _reducing)


@function("square")
def square(data: Symbol, *, name: str = "") -> Symbol:
    return _named("Mul", data, data, name=name)


@function("BlockGrad", "stop_gradient")
def block_grad(data: Symbol, *, name: str = "") -> Symbol:
    return _named("StopGradient", data, name=name, domain="mezzo")


@function("Flatten", "flatten")
def flatten(data: Symbol, *, name: str = "") -> Symbol:
    return _named("Flatten", data, name=name, axis=1)


@function("concat")
def concat(*data: Symbol, dim: int = 1, num_args: int = 0, name: str = "") -> Symbol:
    return _named("Concat", *data, name=name, axis=dim)


@function("add_n", "ElementWiseSum")
def add_n(*args: Symbol, num_args: int = 0, name: str = "") -> Symbol:
    return _named("Sum", *args, name=name)


@function("reshape")
def reshape(data: Symbol, *, shape: Any, name: str = "") -> Symbol:
    return LAYERS["Reshape"](data, shape, name=name)


@function("transpose")
def transpose(data: Symbol, *, axes: Sequence[int] = (), name: str = "") -> Symbol:
    return _named("Transpose", data, name=name, **({"perm": tuple(axes)} if axes else {}))


@function("expand_dims")
def expand_dims(data: Symbol, *, axis: int, name: str = "") -> Symbol:
    return _named("Unsqueeze", data, np.array([axis]), name=name)


@function("squeeze")
def squeeze(data: Symbol, *, axis: Any = None, name: str = "") -> Symbol:
    return _named("Squeeze", data, None if axis is None else np.atleast_1d(axis), name=name)


@function("SliceChannel", "split")
def slice_channel(
    data: Symbol, *, num_outputs: int, axis: int = 1, squeeze_axis: bool = False, name: str = ""
) -> Symbol:
    parts = _named("Split", data, name=name, axis=axis, num_outputs=num_outputs, outputs=num_outputs)
    if not squeeze_axis:
        return parts
    return Symbol([use("Squeeze", p, np.array([axis])).entry for p in parts])


@function("slice_axis")
def slice_axis(data: Symbol, *, axis: int, begin: int, end: Any, name: str = "") -> Symbol:
    edge = 1 << 62 if end is None else end
    return _named("Slice", data, np.array([begin]), np.array([edge]), np.array([axis]), name=name)


@function("softmax")
def softmax(data: Symbol, *, axis: int = -1, name: str = "") -> Symbol:
    return _named("Softmax", data, name=name, axis=axis)


@function("log_softmax")
def log_softmax(data: Symbol, *, axis: int = -1, name: str = "") -> Symbol:
    return _named("LogSoftmax", data, name=name, axis=axis)


@function("SoftmaxActivation")
def softmax_activation(data: Symbol, *, mode: str = "instance", name: str = "") -> Symbol:
    if mode == "channel":
        return _named("Softmax", data, name=name, axis=1)
    return _named("Softmax", use("Flatten", data, axis=1), name=name, axis=1)


@function("dot", "batch_dot")
def dot(lhs: Symbol, rhs: Symbol, *, transpose_a: bool = False, transpose_b: bool = False, name: str = "") -> Symbol:
    """A product of matrices, or of stacks of them."""
    if transpose_a or transpose_b:
        raise UnsupportedModel("a product that transposes is no symbol before its ranks are known", where=name or "dot")
    return _named("MatMul", lhs, rhs, name=name)


@function("clip")
def clip(data: Symbol, *, a_min: float, a_max: float, name: str = "") -> Symbol:
    return _named("Clip", data, np.float32(a_min), np.float32(a_max), name=name)


@function("Cast", "cast")
def cast(data: Symbol, *, dtype: Any, name: str = "") -> Symbol:
    return _named("Cast", data, name=name, to=element_type(dtype).onnx)


@function("LRN")
def lrn(
    data: Symbol, *, nsize: int, alpha: float = 1e-4, beta: float = 0.75, knorm: float = 2.0, name: str = ""
) -> Symbol:
    return _named("LRN", data, name=name, size=nsize, alpha=alpha, beta=beta, bias=knorm)


@function("UpSampling")
def upsampling(data: Symbol, *, scale: int, sample_type: str = "nearest", num_args: int = 1, name: str = "") -> Symbol:
    if sample_type != "nearest":
        raise UnsupportedModel(f"upsampling of the kind {sample_type!r} is no symbol", where=name or "UpSampling")
    scales = np.array([1, 1, scale, scale], np.float32)
    return _named("Resize", data, None, scales, name=name, mode="nearest",
                  coordinate_transformation_mode="asymmetric", nearest_mode="floor")  # fmt: skip


@function("where")
def where(condition: Symbol, x: Symbol, y: Symbol, *, name: str = "") -> Symbol:
    return _named("Where", use("Cast", condition, to=DType.BOOL.onnx), x, y, name=name)


@function("zeros_like")
def zeros_like(data: Symbol, *, name: str = "") -> Symbol:
    return _named("Mul", data, 0.0, name=name)


# Symbols from files


def from_json(text: str | bytes, where: str = "load_json") -> Symbol:
    """The symbol that MXNet's JSON holds. Raises UnsupportedModel naming all operators that are no symbols here, and
    ModelError for malformed text."""
    try:
        graph = read_symbol(text.encode() if isinstance(text, str) else text)
    except ModelError as error:
        error.where = where
        raise
    missing = sorted({n.op for n in graph.nodes if not n.variable and not _carried(n)})
    if missing:
        raise UnsupportedModel(
            f"operators of MXNet that are no symbols: {', '.join(missing)}",
            where=where,
            hint="mz.load(path, params=...) runs the model, mz.mxnet.load makes a graph of it",
        )
    return _Reader(graph, where).read()


def _carried(node: SymbolNode) -> bool:
    return node.op in FUNCTIONS or (rules.carried(node.op) and not node.subgraphs)


class _Reader:
    """Nodes of a file as symbols, one after the other."""

    def __init__(self, graph: SymbolGraph, where: str) -> None:
        self.graph, self.where = graph, where
        self.made: list[Symbol] = []
        self.asked: dict[int, Variable] = {}  # variables that layers would make themselves, as they would make them
        for node in graph.nodes:
            if node.op in LAYERS and node.op not in ("Concat", "Reshape") and not self.unknown(node):
                self.ask(node)
            elif not node.variable and rules.carried(node.op):
                for entry, part in zip(node.inputs, rules.made(node.op), strict=False):
                    if part.init:
                        self.asked.setdefault(entry.node, part)

    def ask(self, node: SymbolNode) -> None:
        try:
            own = LAYERS[node.op](variable("x"), name="own", **self.attrs(node))
        except TypeError as error:
            raise ModelError(f"{node.op} {node.name!r}: {error}", where=self.where) from error
        parts = [v for v in variables(own.entries) if v.name != "x"]
        for entry, part in zip(node.inputs[1:], parts, strict=False):
            self.asked.setdefault(entry.node, part)

    def read(self) -> Symbol:
        for index, node in enumerate(self.graph.nodes):
            with grouped(node.attrs.get("__ctx_group__", "")):
                self.made.append(self.variable(index, node) if node.variable else self.use(node))
        return Symbol([e for h in self.graph.heads for e in self.made[h.node][h.output].entries])

    def variable(self, index: int, node: SymbolNode) -> Symbol:
        shape = literal(node.attrs.get("__shape__", "None"))
        number = literal(node.attrs.get("__dtype__", "0"))
        asked = self.asked.get(index, Variable(""))
        dims = tuple(d or None for d in shape) if isinstance(shape, tuple) and shape else asked.dims
        dtype = element_type(number) if isinstance(number, int) and number >= 0 else DType.FLOAT
        more = {k[2:-2]: v for k, v in node.attrs.items() if k.startswith("__") and k not in ("__shape__", "__dtype__")}
        made = replace(asked, name=node.name, dims=dims, dtype=dtype, where=line(), attrs=more, group=group_around())
        return Symbol([(made, 0)])

    def unknown(self, node: SymbolNode) -> list[str]:
        """Attributes with a meaning that the function of the operator does not take."""
        parameters = inspect.signature(FUNCTIONS[node.op]).parameters
        told = [k for k in node.attrs if k not in parameters and k not in WITHOUT_MEANING and not k.startswith("__")]
        return [k for k in told if literal(node.attrs[k]) not in USUAL]

    def attrs(self, node: SymbolNode) -> dict[str, Any]:
        """Attributes that the function of the operator takes."""
        for key in self.unknown(node):
            told = f"{node.op}'s attribute {key}={node.attrs[key]!r} is not known"
            raise UnsupportedModel(told, where=f"{self.where}: {node.name}")
        parameters = inspect.signature(FUNCTIONS[node.op]).parameters
        return {k: _like(literal(v), parameters[k].default) for k, v in node.attrs.items() if k in parameters}

    def use(self, node: SymbolNode) -> Symbol:
        operands = [self.made[e.node][e.output] for e in node.inputs]
        if rules.carried(node.op) and (node.op not in FUNCTIONS or self.unknown(node)):
            told = {k: v for k, v in node.attrs.items() if not k.startswith("__")}
            return rules.symbol(node.op, *operands, name=node.name, **told)
        try:
            return FUNCTIONS[node.op](*operands, name=node.name, **self.attrs(node))
        except TypeError as error:
            raise ModelError(f"{node.op} {node.name!r}: {error}", where=self.where) from error


def _like(value: Any, default: Any) -> Any:
    if isinstance(default, bool) and isinstance(value, int | float):
        return bool(value)
    return (value,) if isinstance(default, tuple) and isinstance(value, int) else value

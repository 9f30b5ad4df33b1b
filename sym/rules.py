"""Operators of MXNet of which the form depends on the sizes of their operands, as symbols: uses of the domain `mxnet`,
which the importer's rules write once types are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..nd.array import Array
from ..ops import Tensor, Type
from ..ops.errors import InputError, MezzoError, ModelError, ShapeError
from ..runtime.ir.graph import Node
from .expression import NAMES, Dims, Entry, Use, Variable, line
from .symbol import Symbol, operand
from .typed import Typed

if TYPE_CHECKING:
    from ..importers.mxnet.converter import Converter
    from ..importers.mxnet.rules import Rule

DOMAIN = "mxnet"
GATES = {"rnn_relu": 1, "rnn_tanh": 1, "gru": 3, "lstm": 4}
# What variables are that an operator makes for inputs which are left out, beside an argument with an initialiser.
MADE: dict[str, dict[str, Any]] = {
    "moving_mean": {"auxiliary": True, "init": "zeros"}, "moving_var": {"auxiliary": True, "init": "ones"},
    "gamma": {"init": "ones"}, "beta": {"init": "zeros"}, "bias": {"init": "zeros"}, "weight": {"init": "xavier"},
    "parameters": {"init": "xavier"},
}  # fmt: skip


def _rules() -> Mapping[str, Rule]:
    from ..importers.mxnet.operators import RULES  # with the first of them

    return RULES


def literal(text: str) -> Any:
    """The value that an attribute's text stands for."""
    from ..importers.mxnet.rules import literal

    return literal(text)


def carried(name: str) -> bool:
    """True for operators that can be symbols: losses are those of `sym/operators.py`, or none."""
    from ..importers.mxnet.build import LABELLED

    return name in _rules() and name not in LABELLED


def symbol(op: str, *operands: Any, name: str = "", **settings: Any) -> Symbol:
    """A use of an operator by its name in MXNet; variables `NAME_INPUT` stand for inputs that it needs and is not
    given. Raises InputError for what it does not take."""
    rule = _rules()[op]
    name = name or NAMES.fresh(op.lstrip("_"))
    try:
        inputs, attrs = rule.arranged(operands, settings, lambda x: _operand(x, op))
        values = _values(rule, attrs)
    except ModelError as error:
        raise InputError(error.message, where=line()) from None
    wanted = rule.inputs[: rule.needed]
    if (op == "LeakyReLU" and values["act_type"] == "prelu") or values.get("no_bias") is False:
        wanted = rule.inputs[: rule.needed + 1]
    if op == "RNN" and values["mode"] == "lstm":
        wanted = rule.inputs[:4]
    inputs += [None] * (len(wanted) - len(inputs))
    for i, part in enumerate(wanted):
        if inputs[i] is None:
            inputs[i] = (Variable(f"{name}_{part}", where=line(), **MADE.get(part, {})), 0)
    if op.startswith("BatchNorm"):
        inputs[1] = _fixed(inputs[1], bool(values["fix_gamma"]))
    outputs = _outputs(rule, values)
    maker = Use(op, name, tuple(inputs), attrs, DOMAIN, outputs, line())
    return Symbol([(maker, i) for i in range(outputs)])


def _values(rule: Rule, attrs: Mapping[str, str]) -> dict[str, Any]:
    """All attributes of a use."""
    return {**rule.attrs, **rule.bind(attrs)}


def made(op: str) -> list[Variable]:
    """Variables as an operator would make them for its inputs."""
    return [Variable("", **MADE.get(part, {})) for part in _rules()[op].inputs]


def _operand(x: Any, op: str) -> Entry | None:
    return operand(x, op) if isinstance(x, Symbol | Array | np.ndarray) else None


def _fixed(entry: Entry, fixed: bool) -> Entry:
    return (replace(entry[0], fixed=True), 0) if fixed and isinstance(entry[0], Variable) else entry


def _outputs(rule: Rule, values: Mapping[str, Any]) -> int:
    """The number of results of a use."""
    count = COUNTS.get(rule.name)
    return 1 if count is None else count(values)


def _parts(values: Mapping[str, Any]) -> int:
    sections = values.get("sections") or 0
    return int(sections) if sections else len(values["indices"]) + int(values["indices"][:1] != (0,))


COUNTS: dict[str, Callable[[Mapping[str, Any]], int]] = {
    **dict.fromkeys(("SliceChannel", "split", "amp_multicast"), lambda v: v["num_outputs"]),
    "_split_v2": _parts,
    "topk": lambda v: 2 if v["ret_typ"] == "both" else 1,
    **dict.fromkeys(("moments", "_linalg_slogdet", "linalg_slogdet", "_linalg_syevd", "_linalg_gelqf",
                     "linalg_gelqf"), lambda v: 2),
    "RNN": lambda v: 1 + (2 if v["mode"] == "lstm" else 1) * bool(v["state_outputs"]),
    "_contrib_MultiBoxTarget": lambda v: 3,
    "_contrib_Proposal": lambda v: 1 + bool(v["output_score"]),
    "_contrib_MultiProposal": lambda v: 1 + bool(v["output_score"]),
}  # fmt: skip


# -- what operators ask of their weights ----------------------------------------------------------------------------


def asked(maker: Use, dims: Sequence[Dims | None]) -> Sequence[Dims | None]:
    """Shapes of the operands, as far as an operator tells them."""
    data = dims[0]
    if data is None:
        return ()
    values = _values(_rules()[maker.op], maker.attrs)
    shapes = WEIGHTS.get(maker.op)
    if shapes is not None:
        return [None, *shapes(values, data)]
    if maker.op in ("InstanceNorm", "LeakyReLU"):
        return [None, *[(data[1],)] * (len(dims) - 1)] if len(data) > 1 else ()
    if maker.op.startswith("BatchNorm"):
        return [None, *[(data[values["axis"]],)] * 4]
    if maker.op == "LayerNorm":
        return [None, *[(data[values["axis"]],)] * 2]
    if maker.op == "RNN":
        return _of_recurrent(values, data)
    return ()


def _dense(values: Mapping[str, Any], data: Dims) -> list[Dims]:
    inner = data[1:] if values["flatten"] else data[-1:]
    width = None if None in inner else math.prod(n or 0 for n in inner)
    return [(values["num_hidden"], width), (values["num_hidden"],)]


def _convolved(values: Mapping[str, Any], data: Dims) -> list[Dims]:
    channels, groups, layout = data[1], values["num_group"], values["layout"]
    if layout is not None and layout.index("C") != 1:
        return [None, (values["num_filter"],)]  # type: ignore[list-item]
    inputs = None if channels is None else channels // groups
    return [(values["num_filter"], inputs, *values["kernel"]), (values["num_filter"],)]


def _deconvolved(values: Mapping[str, Any], data: Dims) -> list[Dims]:
    return [(data[1], values["num_filter"] // values["num_group"], *values["kernel"]), (values["num_filter"],)]


WEIGHTS: dict[str, Callable[[Mapping[str, Any], Dims], list[Dims]]] = {
    "FullyConnected": _dense, "Convolution": _convolved, "Deconvolution": _deconvolved,
    "Embedding": lambda values, data: [(values["input_dim"], values["output_dim"])],
}  # fmt: skip


def _of_recurrent(values: Mapping[str, Any], data: Dims) -> Sequence[Dims | None]:
    ways, hidden, layers = 1 + bool(values["bidirectional"]), values["state_size"], values["num_layers"]
    state = (layers * ways, data[1], hidden)
    if data[2] is None:
        return [None, None, state, state]
    widths = [data[2], *[hidden * ways] * (layers - 1)]
    size = sum(ways * GATES[values["mode"]] * hidden * (w + hidden + 2) for w in widths)
    return [None, (size,), state, state]


# -- types and nodes --------------------------------------------------------------------------------------------------


def types(maker: Use, inferred: Typed) -> Sequence[Type]:
    """The types of the results, as far as those of the operands tell them."""
    known = [None if e is None else inferred.entries[e] for e in maker.inputs]
    try:
        c, results = _written(maker, inferred, [f"x{i}" for i in range(len(known))])
    except ShapeError:
        if all(isinstance(t, Tensor) and t.dims is not None for t in known if t is not None):
            raise
        first = next(t for t in known if isinstance(t, Tensor))
        return [Tensor(first.dtype, None)] * maker.outputs
    if len(results) != maker.outputs:
        raise ShapeError(f"{maker.op} has {len(results)} results here, and {maker.outputs} were expected")
    return [c.types[r] for r in results]


def nodes(maker: Use, inferred: Typed, names: Sequence[str], outputs: Sequence[str]) -> Converter:
    """A builder with the nodes of a use, over operands and results of these names."""
    c, results = _written(maker, inferred, names)
    for result, output in zip(results, outputs, strict=True):
        c.add(Node("Identity", (result,), (output,), name=output))
    return c


def _written(maker: Use, inferred: Typed, names: Sequence[str]) -> tuple[Converter, tuple[str, ...]]:
    from ..importers.mxnet.converter import Converter

    c, given = Converter(), list[Any]()
    c.stem = c.where = maker.name
    for entry, name in zip(maker.inputs, names, strict=True):
        given.append(name if entry is not None else None)
        if entry is None or name in c.types:
            continue
        if entry[0] in inferred.constants:
            c.hold(name, inferred.constants[entry[0]])
        else:
            c.input(name, inferred.entries[entry])
    while given and given[-1] is None:
        given.pop()
    try:
        made = _rules()[maker.op](c, given, maker.attrs)
    except MezzoError as error:
        error.where = error.where or maker.where
        raise
    return c, made if isinstance(made, tuple) else (made,)


__all__ = ["DOMAIN", "asked", "carried", "nodes", "symbol", "types"]

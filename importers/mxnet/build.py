"""A symbol of MXNet and its arrays as a graph of ONNX's operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ...ops import DType, Tensor
from ...ops.budget import Budget
from ...ops.dataclasses import replace
from ...ops.errors import MezzoError, ModelError, UnsupportedModel
from ...ops.types import Array, Dim
from ...runtime.ir.graph import PRODUCER, Graph, Node
from ...runtime.ir.prune import prune
from .converter import Converter, Part, element_type
from .inputs import guessed_type
from .operators import RULES
from .rules import literal
from .sizes import UnknownSize
from .symbol import Entry, SymbolGraph, SymbolNode

PREFIXES = ("arg:", "aux:")
# Outputs that carry a loss: their label is no input of what they answer.
LABELLED = {
    "SoftmaxOutput", "Softmax", "LinearRegressionOutput", "MAERegressionOutput", "LogisticRegressionOutput",
    "SVMOutput", "_sparse_LinearRegressionOutput", "_sparse_MAERegressionOutput", "_sparse_LogisticRegressionOutput",
}  # fmt: skip


def build(
    symbol: SymbolGraph,
    arrays: Mapping[str, Array],
    *,
    shapes: Mapping[str, Sequence[Dim]] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    name: str = "",
    budget: Budget | None = None,
) -> Graph:
    """Return the graph of a symbol. `arrays` are its parameters and auxiliary states, by name or with the prefixes of
    files; variables without an array are inputs, of the sizes in `shapes`, or of those that the file tells, or with
    open sizes where their first use shows how many axes they have.

    Raises UnsupportedModel that lists all operators that are not carried, ModelError for what does not fit.
    """
    values = _plain(arrays)
    _check_operators(symbol, name)
    _check_shapes(symbol, values, shapes or {}, name)
    c = Converter()
    builder = _Builder(c, symbol, values, dict(shapes or {}), dict(dtypes or {}), name)
    outputs = builder.run()
    graph = c.graph(outputs)
    return prune(replace(graph, name=name or "mxnet", metadata={PRODUCER: "Apache MXNet"}))


def inputs_of(symbol: SymbolGraph, arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    """Names and element types of the variables that are no parameters and no labels, without shapes."""
    builder = _Builder(Converter(), symbol, _plain(arrays), {}, {}, "")
    names = {i: n for i, n in enumerate(symbol.nodes) if n.variable and n.name not in builder.values}
    return {n.name: Tensor(builder.dtype_of(n), None) for i, n in names.items() if i not in builder.labels}


def _plain(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Arrays by name, without the prefixes of files. Raises ModelError for two arrays of one name."""
    plain: dict[str, Array] = {}
    for key, array in arrays.items():
        name = key.split(":", 1)[1] if key.startswith(PREFIXES) else key
        if name in plain:
            raise ModelError(f"the parameters have two arrays called {name!r}", hint="leave the one out that is old")
        plain[name] = array
    return plain


def operators_of(symbol: SymbolGraph) -> Counter[str]:
    """Names of the operators that a symbol uses, those of subgraphs included, with how many nodes use them."""
    names = Counter(n.op for n in symbol.nodes if not n.variable)
    for node in symbol.nodes:
        for part in node.subgraphs:
            names.update(operators_of(part))
    return names


def _check_operators(symbol: SymbolGraph, where: str) -> None:
    missing = [op for op in operators_of(symbol) if op not in RULES]
    if missing:
        raise UnsupportedModel(
            f"operators of MXNet that are not carried: {', '.join(missing)}",
            where=where,
            hint="write that part of the network with other operators, and save the symbol again",
        )


def _check_shapes(symbol: SymbolGraph, values: Mapping[str, Array], shapes: Mapping[str, Any], where: str) -> None:
    names = symbol.arguments()
    unknown = [n for n in shapes if n not in names]
    if unknown:
        inputs = [n for n in names if n not in values]
        raise ModelError(f"shapes names {unknown[0]!r}; the inputs are {', '.join(inputs)}", where=where)


class _Builder:
    """Writes one symbol: nodes in order, each by its rule."""

    def __init__(
        self,
        c: Converter,
        symbol: SymbolGraph,
        values: Mapping[str, Array],
        shapes: dict[str, Sequence[Dim]],
        dtypes: dict[str, Any],
        where: str,
    ) -> None:
        self.c, self.symbol, self.values, self.where = c, symbol, values, where
        self.shapes, self.dtypes = shapes, dtypes
        self.results: list[tuple[str, ...] | None] = [None] * len(symbol.nodes)
        self.labels = self._labels()
        self.given: Mapping[int, str] = {}  # what variables of a subgraph stand for

    def _labels(self) -> set[int]:
        """Variables that only losses read, as labels, or that nothing reads."""
        readers: dict[int, list[bool]] = {}
        for node in self.symbol.nodes:
            for position, entry in enumerate(node.inputs):
                readers.setdefault(entry.node, []).append(node.op in LABELLED and position == 1)
        heads = {h.node for h in self.symbol.heads}
        variables = [i for i, n in enumerate(self.symbol.nodes) if n.variable and i not in heads]
        return {i for i in variables if all(readers.get(i, ()))}

    def run(self) -> list[str]:
        return self._named(self.write())

    def write(self) -> list[str]:
        """Write all nodes; returns the values of the heads."""
        for i, node in enumerate(self.symbol.nodes):
            place = f"{self.where}: node {node.name!r} ({node.op})" if self.where else f"node {node.name!r} ({node.op})"
            try:
                self.results[i] = self._variable(i, node) if node.variable else self._operator(node)
            except MezzoError as error:
                error.where = place if not error.where or error.where.startswith("node") else error.where
                raise
        return [self._value(h, "a head") for h in self.symbol.heads]

    def _named(self, heads: list[str]) -> list[str]:
        """The results under MXNet's names for them: `fc1_output`."""
        names = []
        for head, value in zip(self.symbol.heads, heads, strict=True):
            node = self.symbol.nodes[head.node]
            many = len(self.results[head.node] or ()) > 1
            wanted = f"{node.name}_output{head.output if many else ''}"
            while wanted in self.c.types:
                wanted += "_"
            self.c.add(Node("Identity", (value,), (wanted,), name=wanted))
            names.append(wanted)
        return names

    def _value(self, entry: Entry, what: str) -> str:
        results = self.results[entry.node]
        if results is None:
            raise ModelError(f"{what} is a label that only a loss reads, and is left out")
        if entry.output >= len(results):
            node = self.symbol.nodes[entry.node]
            raise UnsupportedModel(f"{what} is output {entry.output} of {node.op} {node.name!r}, which is not carried")
        return results[entry.output]

    def _variable(self, index: int, node: SymbolNode) -> tuple[str, ...] | None:
        if index in self.given:
            return (self.given[index],)
        if node.name in self.c.types:
            raise ModelError(f"two variables are called {node.name!r}")
        if node.name in self.values:
            self.c.hold(node.name, self.values[node.name])
            return (node.name,)
        if index in self.labels:
            return None
        return (self.c.input(node.name, self._input_type(index, node)),)

    def dtype_of(self, node: SymbolNode) -> DType:
        """The element type of an input: what is given, what the file tells, or else float32."""
        if node.name in self.dtypes:
            return element_type(self.dtypes[node.name])
        number = literal(node.attrs.get("__dtype__", "-1"))
        return element_type(number) if isinstance(number, int) and number >= 0 else DType.FLOAT

    def _input_type(self, index: int, node: SymbolNode) -> Tensor:
        declared = literal(node.attrs.get("__shape__", "()"))
        dtype = self.dtype_of(node)
        if node.name in self.shapes:
            return Tensor(dtype, tuple(self.shapes[node.name]))
        if isinstance(declared, tuple) and declared and all(isinstance(d, int) and d > 0 for d in declared):
            return Tensor(dtype, declared)
        guess = guessed_type(self.symbol, index, self.values)
        if guess is None:
            raise UnknownSize(
                f"nothing tells the shape of the input {node.name!r}",
                hint=f"give it: shapes={{{node.name!r}: (1, 3, 224, 224)}}; a name or None is an open size",
            )
        return Tensor(dtype, guess)

    def _operator(self, node: SymbolNode) -> tuple[str, ...]:
        self.c.stem = node.name
        inputs = [
            "" if self.results[e.node] is None and node.op in LABELLED else self._value(e, f"an input of {node.name!r}")
            for e in node.inputs
        ]
        while inputs and not inputs[-1]:
            inputs.pop()
        rule = RULES[node.op]
        open_fills = [self.c.partial[i] for i in inputs if i in self.c.partial]
        if open_fills and not rule.fills:
            raise UnsupportedModel(f"an operand is a fill of the shape {open_fills[0]}, of which MXNet infers a part")
        self.c.parts = tuple(self._part(p) for p in node.subgraphs)
        results = rule(self.c, inputs, node.attrs)
        self.c.stem, self.c.parts = "", ()
        return results if isinstance(results, tuple) else (results,)

    def _part(self, symbol: SymbolGraph) -> Part:
        """A subgraph, which takes all that it reads as operands, in the order of its variables."""

        def write(c: Converter, operands: Sequence[str]) -> list[str]:
            inner = _Builder(c, symbol, {}, {}, {}, self.where)
            inner.labels = set()
            inner.given = dict(zip((i for i, n in enumerate(symbol.nodes) if n.variable), operands, strict=True))
            stem = c.stem
            results = inner.write()
            c.stem = stem
            return results

        uses = tuple((n.op, n.attrs) for n in symbol.nodes if not n.variable)
        return Part(len(symbol.arguments()), write, uses)

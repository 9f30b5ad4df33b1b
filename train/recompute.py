"""Recomputation: values that the backward part reads are computed again from others that are kept anyway, where the
memory plan shrinks by it (Chen et al. 2016, arXiv 1604.06174; MXNet's "mirroring" without the cases in which it
loses)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from ..ops import Tensor, Type
from ..ops.errors import InputError
from ..ops.types import Dim
from ..runtime.compile.lower import Options
from ..runtime.compile.specialize import compile_graph, specialise
from ..runtime.ir.graph import AGAIN, Graph, Node

DEPTH = 4  # of operators that run again for one value
NEVER = ("", "view", "blocks", "pick")  # views need no memory, and the others are not cheap


def _pointwise(node: Node) -> bool:
    return node.record.elementwise and node.domain == ""


def _normalising(node: Node) -> bool:
    return _pointwise(node) or node.record.kind == "normalization"


def _moving(node: Node) -> bool:
    return _normalising(node) or (node.record.moves not in NEVER and not node.domain)


Cheap = Callable[[Node], bool]
WAYS: tuple[Cheap, ...] = (_pointwise, _normalising, _moving)  # more and more is made again


def made_again(nodes: Sequence[Node], loss: str, cheap: Cheap) -> tuple[Node, ...]:
    """The nodes of a training step in which the ones behind `loss` read copies of what cheap operators made before it.

    A copy stands before its first reader. A value is made again only from inputs, parameters and values that are read
    behind the loss anyway.
    """
    border = next(i for i, n in enumerate(nodes) if loss in n.outputs)
    before, after = nodes[: border + 1], nodes[border + 1 :]
    maker = {o: n for n in before for o in n.outputs if o}
    kept = {name for n in after for name in n.reads() if name in maker}
    copies: dict[str, str] = {}
    copied: list[Node] = []

    def again(value: str, depth: int) -> str | None:
        """The name under which a value is to be had behind the loss."""
        if value not in maker or value in copies:
            return copies.get(value, value)
        node = _forward(maker[value], value, kept)
        if node is None or not depth or not cheap(maker[value]) or not node.record.deterministic or node.bodies:
            return value if value in kept else None
        inputs = [again(i, depth - 1) if i else "" for i in node.inputs]
        if None in inputs:
            return value if value in kept else None
        copies[value] = value + AGAIN
        outputs = tuple(o + AGAIN if o else "" for o in node.outputs)
        copied.append(replace(node, inputs=tuple(i or "" for i in inputs), outputs=outputs, name=node.name + AGAIN))
        return copies[value]

    ordered = list(before)
    for node in after:
        copied.clear()
        for name in node.reads():
            again(name, DEPTH)
        ordered += [*copied, _reading(node, copies)]
    return tuple(ordered)


def _forward(node: Node, value: str, kept: set[str]) -> Node | None:
    """Return a node that computes a value again: the operator itself, or normalisation by the statistics of the batch.
    None if there is none."""
    if node.op == "BatchNormalizationTrain":
        mean, var = node.outputs[3:5]
        if value != node.outputs[0] or not {mean, var} <= kept:
            return None
        attrs = {a: v for a, v in node.attrs.items() if a == "epsilon"}
        inputs = (*node.inputs[:3], mean, var)
        return replace(node, op="BatchNormalization", domain="", inputs=inputs, outputs=(value,), attrs=attrs)
    if value != node.outputs[0] or not all(p.optional for p in node.record.outputs[1 : len(node.outputs)]):
        return None
    return replace(node, outputs=(value,))  # what else it made, statistics or masks, is kept


def _reading(node: Node, names: Mapping[str, str]) -> Node:
    return Graph((), (), (node,)).rename(names).nodes[0] if any(n in names for n in node.reads()) else node


def smallest(graphs: Sequence[Graph], types: Mapping[str, Type], options: Options) -> int:
    """Return the index of the graph whose plan needs the fewest bytes for inputs of these types; the first of
    equals."""
    sizes = [specialise(compile_graph(g, options=options), types).program.arena_bytes for g in graphs]
    return sizes.index(min(sizes))


def chosen(
    steps: Callable[..., Graph], plain: Graph, types: Mapping[str, Type], options: Options
) -> tuple[Graph, Cheap | None]:
    """The graph of a step whose plan needs the fewest bytes, of the `plain` one and those that `steps(again=way)`
    makes; and its way, None for the plain one."""
    ways: tuple[Cheap | None, ...] = (None, *WAYS)
    graphs = [plain, *(steps(again=way) for way in WAYS)]
    at = smallest(graphs, types, options)
    return graphs[at], ways[at]


def sized(graph: Graph, shapes: Mapping[str, Sequence[int]]) -> dict[str, Type]:
    """The types of a graph's inputs with these shapes; other inputs follow by the names of their dims.

    Raises InputError for names that are no inputs, and where sizes stay open.

    >>> from mezzo.ops.types import f32
    >>> from mezzo.runtime.ir.graph import GraphBuilder
    >>> g = GraphBuilder()
    >>> x, y = g.input("x", f32("n", 3)), g.input("y", f32("n"))
    >>> print(sized(g.graph([x, y]), {"x": (8, 3)})["y"])
    float32[8]
    """
    types = {n: graph.types[n] for n in graph.inputs}
    known: dict[Dim, Dim] = {}
    for name, shape in shapes.items():
        was = types.get(name)
        if not isinstance(was, Tensor) or (was.dims is not None and len(was.dims) != len(shape)):
            raise InputError(
                f"{name!r} is no input of rank {len(shape)}", where="recompute", hint="give inputs' shapes"
            )
        known |= {d: n for d, n in zip(was.dims or (), shape, strict=False) if isinstance(d, str)}
        types[name] = was.of(shape)
    sized_types = {n: t.of(known.get(d, d) for d in t.dims) if isinstance(t, Tensor) and t.dims is not None else t
            for n, t in types.items()}  # fmt: skip
    loose = [n for n, t in sized_types.items() if not (isinstance(t, Tensor) and t.static)]
    if loose:
        raise InputError(
            f"the sizes of {', '.join(loose)} are open", where="recompute", hint="give their shapes: {name: (8, 3)}"
        )
    return sized_types

"""The backward pass: the entries between some arrays and their inputs become one graph, which is differentiated as any
other; for a known graph the plan is cached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ops import Tensor, Type
from ...ops.dataclasses import dataclass, replace
from ...ops.errors import InputError
from ...ops.types import differentiable
from ...runtime.execution.functions import FUNCTIONS
from ...runtime.ir.autodiff import gradients
from ...runtime.ir.graph import Graph, Node
from ...runtime.ir.prune import prune
from ...runtime.ir.row_gradients import as_rows, makers_of, reads_of
from ...runtime.ir.typed import TypedBuilder, prefixed
from ..array import Array
from ..compiled import CompiledFunction
from ..place import Place
from ..recording import RECORDING
from ..running import adopt, assign, inplace
from ..sparse import RowSparse
from ..specs import spec_of
from .tape import Entry, Fragment, Leaf, Origin, mode, note

Value = tuple[Entry, int]


@dataclass(frozen=True, slots=True, eq=False)
class PlannedPiece:
    """A planned part of the backward pass: the values that it is fed, and those that it returns gradients of, by
    number; those of `rows` as rows."""

    run: CompiledFunction
    feeds: tuple[int, ...]
    wrt: tuple[int, ...]
    rows: frozenset[int]
    fragment: Fragment


class Sums:
    """Accumulated gradients, by the origin of their value."""

    def __init__(self) -> None:
        self.of: dict[Origin, Any] = {}

    def add(self, origin: Origin, gradient: Array | RowSparse) -> None:
        before = self.of.get(origin)
        if before is None:
            self.of[origin] = gradient
        else:  # rows know how to be added to an array
            self.of[origin] = gradient + before if isinstance(gradient, RowSparse) else before + gradient

    def take(self, origin: Origin) -> Array | None:
        gradient: Array | None = self.of.pop(origin, None)
        return gradient


def back(
    heads: Sequence[Array],
    head_grads: Sequence[Any] | None,
    *,
    retain: bool,
    create: bool,
    wanted: Sequence[Origin] = (),
) -> Sums:
    """The gradients of the sum of `heads` to all leaves, or to `wanted` alone. With `create` they are recorded too.

    Raises InputError where nothing was recorded, a tape was let go of, or a value was changed in place.
    """
    sums = Sums()
    for i, head in enumerate(heads):
        if head._origin is None:
            if RECORDING.trace is not None:
                RECORDING.trace.broke(
                    "backward through what was recorded outside of the block", "record, and go back, inside of it"
                )
            raise InputError(
                f"{head.where} does not depend on anything that has a gradient",
                where="autograd",
                hint="attach_grad() before, and compute it under autograd.record()",
            )
        given = None if head_grads is None else head_grads[i]
        if given is None and head._spec.dtype.kind == "c":
            raise InputError(
                f"{head.where} is complex: which way is its gradient to go?",
                where="autograd",
                hint="go back from real numbers, such as nd.abs(y).sum(), or give the gradient: y.backward(dy)",
            )
        sums.add(head._origin, _ones(head) if given is None else given)
    order = ordered([h._origin[0] for h in heads if isinstance(h._origin, tuple)])
    for entry in order:
        entry.check()
    with mode(on=create, training=None):
        for piece in reversed(_pieces(order, create)):
            if create and piece[0].back is not None:
                _refuse_draws(piece[0])
            _through(piece, sums, create, {*wanted})
    if not retain:
        for entry in order:
            entry.release()
    return sums


def _refuse_draws(entry: Entry) -> None:
    """Raise InputError for a block that draws random numbers: its graph, run again to be differentiated twice, would
    draw others."""
    if entry.fragment is not None and any(not n.record.deterministic for n in entry.fragment.nodes):
        raise InputError(
            f"second derivatives through {entry.name} that draws random numbers",
            where="autograd.grad",
            hint="hybridize(False), or keep the block that draws imperative",
        )


def _ones(like: Array) -> Array:
    return adopt(np.ones(like.shape, like.dtype), like._place)


def ordered(roots: Sequence[Entry]) -> list[Entry]:
    """Return all entries that these depend on, operands first."""
    finished: dict[Entry, None] = {}
    todo: list[tuple[Entry, bool]] = [(e, False) for e in roots]
    while todo:
        entry, ready = todo.pop()
        if entry in finished:
            continue
        if ready:
            finished[entry] = None
            continue
        todo.append((entry, True))
        todo += [(o[0], False) for o in entry.origins if isinstance(o, tuple) and o[0] not in finished]
    return list(finished)


def _pieces(order: Sequence[Entry], create: bool) -> list[list[Entry]]:
    """Runs of operators, and what knows its own way back, one by one."""
    pieces: list[list[Entry]] = []
    for entry in order:
        if _alone(entry, create) or not pieces or _alone(pieces[-1][0], create):
            pieces.append([entry])
        else:
            pieces[-1].append(entry)
    return pieces


def _alone(entry: Entry, create: bool) -> bool:
    """True if an entry computes its gradient itself: a Function, or a block with a planned backward program (unless the
    gradient is to be differentiated again)."""
    return entry.fragment is None or (entry.back is not None and not create)


def _through(piece: list[Entry], sums: Sums, create: bool, wanted: set[Origin]) -> None:
    """Carry the gradients of a piece's results over to what it was made of."""
    if _alone(piece[0], create):
        (entry,) = piece
        dys = [sums.take((entry, i)) for i in range(len(entry.outputs))]
        if any(dy is not None for dy in dys):
            for origin, dx in zip(entry.origins, entry.back(dys), strict=True):
                if origin is not None and dx is not None:
                    sums.add(origin, dx)
        return
    walk = Walk(piece)
    seeds = {n: dy for value, n in walk.computed.items() if (dy := sums.take(value)) is not None}
    if not seeds:
        return
    inner = {walk.computed[v] for v in wanted if isinstance(v, tuple) and v in walk.computed}
    place = next(x._place for x in (*seeds.values(), *walk.values) if isinstance(x, Array))
    dense = create or bool(wanted) or RECORDING.trace is not None
    rows = frozenset(n for o, n in walk.outside.items() if isinstance(o, Leaf) and o.rows and not dense)
    key = ("backward", place, tuple(walk.key), tuple(seeds), tuple(walk.outside.values()), tuple(sorted(inner)), rows)
    planned: PlannedPiece = FUNCTIONS.get(key, lambda: _planned(walk, seeds, sorted(inner), place, rows))
    given = [seeds[-1 - n] if n < 0 else walk.values[n] for n in planned.feeds]
    trace = RECORDING.trace
    outs = planned.run(given) if trace is None else trace.graph(planned.fragment, given, lambda: planned.run(given))
    if create:
        origins = [seeds[-1 - n] if n < 0 else walk.arrays[n] for n in planned.feeds]
        note("backward", planned.fragment, origins, outs)
    by_number: dict[int, list[Origin]] = {}
    for origin, number in walk.outside.items():
        by_number.setdefault(number, []).append(origin)
    for origin, number in walk.computed.items():
        by_number.setdefault(number, []).append(origin)
    gradients_of_piece = iter(outs)
    for number in planned.wrt:
        out: Any = next(gradients_of_piece)
        if number in planned.rows:
            out = RowSparse(out, next(gradients_of_piece), walk.values[number].shape)
        for origin in by_number[number]:
            sums.add(origin, out)


class Walk:
    """The values of a part by number, in the order in which its entries name them."""

    def __init__(self, piece: Sequence[Entry]) -> None:
        self.piece = piece
        self.key: list[Any] = []
        self.values: list[Any] = []  # by number: the numbers that were computed
        self.arrays: list[Any] = []  # and arrays that know where they came from
        self.computed: dict[Value, int] = {}
        self.outside: dict[Origin, int] = {}
        self._others: dict[int, int] = {}
        for entry in piece:
            assert entry.inputs is not None
            ins = [self._input(x, o) for x, o in zip(entry.inputs, entry.origins, strict=True)]
            for i, out in enumerate(entry.outputs):
                self.computed[entry, i] = self._number(out, (entry, i))
            self.key.append((entry.fragment, *ins))

    def _number(self, value: Any, origin: Origin | None) -> int:
        self.values.append(value)
        array = value
        if origin is not None and isinstance(value, Array):
            array = Array(value._var, value._spec, value._place, value._view)
            array._code, array._at, array._origin = value._code, value._at, origin
        self.arrays.append(array)
        return len(self.values) - 1

    def _input(self, x: Any, origin: Origin | None) -> int:
        if isinstance(origin, tuple) and origin in self.computed:
            return self.computed[origin]
        if origin is not None:
            if origin not in self.outside:
                self.outside[origin] = self._number(x, origin)
            return self.outside[origin]
        key = id(x._var) if isinstance(x, Array) and not x._view else id(x)
        if key not in self._others:
            self._others[key] = self._number(x, None)
        return self._others[key]


def forward(walk: Walk) -> tuple[TypedBuilder, list[Node]]:
    """The nodes of a piece over values named `v0`, `v1`, ..., and a builder that knows their types."""
    nodes: list[Node] = []
    types: dict[str, Type] = {}
    constants: dict[str, np.ndarray[Any, Any]] = {}
    for at, (entry, (fragment, *ins)) in enumerate(zip(walk.piece, walk.key, strict=True)):
        outs = [walk.computed[entry, i] for i in range(len(entry.outputs))]
        given = dict(zip((*fragment.inputs, *fragment.outputs), (f"v{n}" for n in (*ins, *outs)), strict=True))
        part = placed(fragment, f"e{at}/", given)
        nodes += part.nodes
        constants |= part.initializers
        types |= part.types
    types |= {f"v{n}": _type(value) for n, value in enumerate(walk.values)}
    g = TypedBuilder(types, prefix="d/")
    for name, array in constants.items():
        g.hold(name, array)
    return g, nodes


def _planned(
    walk: Walk, seeds: dict[int, Array], inner: Sequence[int], place: Place, rows: frozenset[int]
) -> PlannedPiece:
    """The graph of a piece with its gradients, without what was computed on the way forward."""
    g, nodes = forward(walk)
    types, names = g.types, {n: f"v{n}" for n in range(len(walk.values))}
    starts = {names[n]: f"dy{n}" for n in seeds}
    g.types.update({dy: types[y].forget() for y, dy in starts.items() if isinstance(types[y], Tensor)})  # type: ignore[union-attr]
    wrt = [n for n in (*dict.fromkeys(walk.outside.values()), *inner) if differentiable(types[names[n]])]
    grads = gradients(g, nodes, starts, [names[n] for n in wrt])
    fed = {names[n] for n in range(len(walk.values))}
    arrived = [n for n in wrt if names[n] in grads]
    ends = {n: as_ends(g, grads[names[n]], n in rows) for n in arrived}
    graph = without(g, fed | {*starts.values()}, [end for several in ends.values() for end in several])
    numbers = {name: n for n, name in names.items()}
    numbers |= {dy: -1 - n for n, dy in zip(seeds, starts.values(), strict=True)}
    feeds = tuple(numbers[i] for i in graph.inputs)
    fragment = Fragment(graph.nodes, graph.inputs, graph.outputs, dict(graph.types), dict(graph.initializers))
    run = CompiledFunction(graph, "backward", place)
    return PlannedPiece(run, feeds, tuple(arrived), frozenset(n for n in arrived if len(ends[n]) > 1), fragment)


def as_ends(g: TypedBuilder, gradient: str, rows: bool) -> tuple[str, ...]:
    """A gradient as the end of a graph or, where `rows` are wanted and it is made of some, their numbers and they."""
    reads = reads_of(g, gradient, makers_of(g)) if rows else None
    return (gradient,) if reads is None else as_rows(g, gradient, reads)


def placed(fragment: Fragment, prefix: str, given: dict[str, str]) -> Graph:
    """A fragment under names of its own, but for what it shares with the values around."""
    whole = Graph(fragment.inputs, fragment.outputs, fragment.nodes, fragment.constants, fragment.types)
    apart = prefixed(whole, prefix)
    turned = {prefix + inside: outside for inside, outside in given.items()}

    def new(names: Sequence[str]) -> tuple[str, ...]:
        return tuple(turned.get(n, n) for n in names)

    moved = tuple(
        replace(n, inputs=new(n.inputs), outputs=new(n.outputs), name=f"{prefix}{n.name}")
        for n in apart.rename(turned).nodes
    )
    kinds = {turned.get(n, n): t for n, t in apart.types.items()}
    return apart.but(inputs=(), outputs=(), nodes=moved, types=kinds)


def without(g: TypedBuilder, fed: set[str], outputs: Sequence[str]) -> Graph:
    """The graph of these outputs, in which the values `fed` are inputs."""
    nodes: list[Node] = []
    for node in g.nodes():
        node_outputs = [o for o in node.outputs if o]
        if all(o in fed for o in node_outputs):
            continue
        if any(o in fed for o in node_outputs):  # what else it makes is computed again, beside what is known
            node = replace(node, outputs=tuple(f"{o}@again" if o in fed else o for o in node.outputs))
            g.types.update({f"{o}@again": g.types[o] for o in node_outputs if o in fed})
        nodes.append(node)
    results: list[str] = []
    for i, name in enumerate(outputs):
        results.append(f"dx{i}")
        nodes.append(Node("Identity", (name,), (f"dx{i}",), name=f"dx{i}"))
        g.types[f"dx{i}"] = g.types[name]
    types = {n: t.forget() if isinstance(t, Tensor) and n in fed else t for n, t in g.types.items()}
    graph = prune(Graph((), tuple(results), tuple(nodes), g.constants(), types))
    read = dict.fromkeys(n for n in graph.reads() if n in fed)
    return graph.but(inputs=tuple(read)).verify()


def _type(value: Any) -> Type:
    if isinstance(value, Array):
        return value._spec.tensor
    return spec_of(value.dtype, value.shape).tensor


def into_leaves(sums: Sums) -> None:
    """Write, or add, the gradients of leaves where they belong."""
    for origin, gradient in sums.of.items():
        if isinstance(origin, Leaf):
            if isinstance(origin.grad, RowSparse):
                origin.grad.assign(origin.grad + gradient if origin.request == "add" else gradient)
            elif origin.request == "add":
                inplace("Add", origin.grad, gradient)
            else:
                assign(origin.grad, gradient)

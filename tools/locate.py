"""Origin of a difference: the first node whose result differs while all of its operands agree."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..ops import Tensor
from ..ops.dataclasses import dataclass, field
from ..ops.errors import MezzoError
from ..ops.types import Array, DType
from ..runtime.ir.graph import Graph, Node
from .gaps import Gap, Tolerance, gap
from .sides import Side, constants, digests

AT_ONCE = 256 << 20  # bytes of values that are kept together; where there are more, the graph is bisected
PICKS = 7  # values that one step of the bisection looks at


@dataclass(frozen=True, slots=True)
class Changed:
    """A weight that differs between the two sides, and the node that reads it."""

    name: str
    reader: Node | None
    how: str

    def __str__(self) -> str:
        read = f", which {self.reader.place} reads" if self.reader else ""
        return f"the weight {self.name!r}{read}, {self.how}"


@dataclass(frozen=True, slots=True)
class Located:
    """The node and value where a difference begins. `unseen` names the values in between that only one side has."""

    node: Node
    value: str
    gap: Gap
    unseen: tuple[str, ...] = ()


def changed_weights(graph: Graph, other: Graph | Mapping[str, str], tolerance: Tolerance) -> list[Changed]:
    """The weights of the same name that differ, by their elements or by the digests of a recording."""
    ours = constants(graph)
    changed: list[tuple[str, str]] = []
    if isinstance(other, Graph):
        for name, array in constants(other).items():
            if name in ours and not _same(ours[name], array):
                changed.append((name, f"differs: {gap(ours[name], array, tolerance)}"))
    elif other:
        changed = [(n, "differs") for n, digest in digests(graph).items() if other.get(n, digest) != digest]
    if not changed:
        return []
    readers: dict[str, Node] = {}
    for _, node in graph.walk():
        for name in node.inputs:
            readers.setdefault(name, node)
    return [Changed(n, readers.get(n), how) for n, how in changed]


def _same(a: Array, b: Array) -> bool:
    """Bit by bit, a piece at a time: weights are mapped files, and may be larger than memory."""
    if a is b or a.dtype != b.dtype or a.shape != b.shape:
        return a is b
    if a.dtype == object:
        return bool(np.array_equal(a, b))
    x, y = (np.ascontiguousarray(v).reshape(-1).view(np.uint8) for v in (a, b))
    return all(np.array_equal(x[i : i + (1 << 24)], y[i : i + (1 << 24)]) for i in range(0, x.size, 1 << 24))


@dataclass(slots=True)
class Probe:
    """Comparison of values by name; asks each side once for each value and keeps the difference."""

    ours: Side
    theirs: Side
    feeds: Mapping[str, Any]
    tolerance: Tolerance
    gaps: dict[str, Gap | None] = field(default_factory=dict[str, Gap | None])  # None: a side does not give it

    def differing(self, names: Sequence[str]) -> list[str]:
        """Return those of these values that differ, in this order."""
        new = [n for n in names if n not in self.gaps]
        if new:
            self._ask(new)
        return [n for n in names if (difference := self.gaps[n]) is not None and not difference.agrees]

    def _ask(self, names: list[str]) -> None:
        try:
            mine, other = (side.run(self.feeds, names) for side in (self.ours, self.theirs))
        except MezzoError:  # a side cannot give one of them, a list for one: which?
            if len(names) == 1:
                self.gaps[names[0]] = None
                return
            self._ask(names[: len(names) // 2])
            self._ask(names[len(names) // 2 :])
            return
        for name in names:
            self.gaps[name] = gap(mine[name], other[name], self.tolerance)


def locate(graph: Graph, outputs: Iterable[str], probe: Probe) -> Located | None:
    """The node at which the difference of these outputs begins; `graph` has the types of this run. None where the
    sides agree as soon as they keep their values: then the difference comes from nodes that are computed as one."""
    makers = graph.producers()
    seen = {n for n in makers if _comparable(graph, n, probe)}
    value = _earliest(graph, outputs, seen, probe)
    while value is not None:  # what stands beside a value that agrees may differ all the same
        inputs, unseen = _upstream(makers, makers[value], seen)
        earlier = probe.differing(inputs)
        if not earlier:
            difference = probe.gaps[value]
            assert difference is not None
            return Located(makers[value], value, difference, tuple(unseen))
        value = _earliest(graph, earlier[:1], seen, probe)
    return None


def _earliest(graph: Graph, values: Iterable[str], seen: set[str], probe: Probe) -> str | None:
    """An early value that differs among these and all that they depend on: the first, where all fit into memory."""
    order = [names for n in _before(graph, values) if (names := [o for o in n.outputs if o in seen])]
    flat = [name for names in order for name in names]
    if sum(_nbytes(graph, n) for n in flat) > AT_ONCE:
        return _bisected(order, probe)
    return next(iter(probe.differing(flat)), None)


def _bisected(order: Sequence[Sequence[str]], probe: Probe) -> str | None:
    """A value that differs, the one before it in some of the steps agreeing: a few nodes are looked at in each step,
    since a run costs more than a value."""
    low, high = 0, len(order) - 1
    if not probe.differing(list(order[high])):
        return None
    while low < high:
        picks = sorted({low + (high - low) * i // (PICKS + 1) for i in range(1, PICKS + 1)} | {low})
        bad = set(probe.differing([n for i in picks for n in order[i]]))
        first = next((i for i in picks if not bad.isdisjoint(order[i])), None)
        agreeing = [i for i in picks if first is None or i < first]
        low, high = (agreeing[-1] + 1 if agreeing else low), (high if first is None else first)
    return probe.differing(list(order[high]))[0]


def _before(graph: Graph, outputs: Iterable[str]) -> Iterator[Node]:
    """The nodes that these outputs depend on, in the order of the graph."""
    needed, kept = set(outputs), list[Node]()
    for node in reversed(graph.nodes):
        if not needed.isdisjoint(node.outputs):
            kept.append(node)
            needed.update(node.reads())
    return reversed(kept)


def _upstream(makers: Mapping[str, Node], node: Node, seen: set[str]) -> tuple[list[str], list[str]]:
    """The values that a node was made of, as near as they can be compared, and those between that cannot."""
    nearest, unseen = dict[str, None](), dict[str, None]()
    todo = list(node.reads())
    while todo:
        name = todo.pop()
        if name in nearest or name in unseen or name not in makers:
            continue
        if name in seen:
            nearest[name] = None
        else:
            unseen[name] = None
            todo += makers[name].reads()
    return list(nearest), list(unseen)


def _comparable(graph: Graph, name: str, probe: Probe) -> bool:
    known = graph.types.get(name)
    return name in probe.ours.values and name in probe.theirs.values and isinstance(known, Tensor)


def _nbytes(graph: Graph, name: str) -> int:
    """Bytes of a value on both sides; of unknown sizes none."""
    known = graph.types.get(name)
    static = isinstance(known, Tensor) and known.static and known.dtype is not DType.STRING
    return 2 * known.nbytes if isinstance(known, Tensor) and static else 0

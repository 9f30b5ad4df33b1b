"""Placements that fit the memory of devices: cuts of a graph in the order of its nodes, where few bytes go across.

A cut is chosen by an estimate, and what each device needs is then read from the plan. Where a device needs more than it
has room for, the estimate is corrected by what was planned, and cuts are chosen anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf
from typing import Any

from ...ops import Tensor
from ...ops.dataclasses import dataclass, field, replace
from ...ops.errors import BudgetError, InputError
from ...ops.types import Array
from ..ir.graph import Graph, Signature
from .parts import device_order
from .program import Program

AUTO = "auto"
CHUNKS = 96  # places at which a graph may be cut, at most: each is the cheapest of a stretch of nodes
ROUNDS = 16  # plans that are tried, at most; a few do
Needs = Callable[[Graph], Mapping[str, "DeviceNeed"]]


@dataclass(frozen=True, slots=True)
class AutoPlace:
    """A placement that is to be found. `room` has the bytes of each device that may be taken, by its name; without it
    these are what is free on the GPUs of this machine, less a sixteenth. `shapes` are those of inputs that the model
    leaves open.

    >>> AutoPlace({"gpu:10": 1 << 30, "gpu:2": 1 << 30}).devices
    ('gpu:2', 'gpu:10')
    """

    room: Mapping[str, int] = field(default_factory=dict[str, int])
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict[str, Sequence[int]])

    def __post_init__(self) -> None:
        sizes: Any = self.room
        wrong = not isinstance(sizes, Mapping) or not all(isinstance(n, int) and n > 0 for n in sizes.values())
        if wrong:
            raise InputError(f"room={self.room!r} has no bytes by device", where="AutoPlace", hint="{'gpu:0': 8 << 30}")
        object.__setattr__(self, "room", {n if ":" in n else f"{n}:0": size for n, size in self.room.items()})
        shapes: Any = self.shapes
        if not isinstance(shapes, Mapping) or not all(isinstance(s, list | tuple) for s in shapes.values()):
            hint = "{'image': (64, 3, 224, 224)}"
            raise InputError(f"shapes={shapes!r} has no shapes by input", where="AutoPlace", hint=hint)

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices, by number."""
        return tuple(sorted(self.room, key=device_order))


@dataclass(frozen=True, slots=True)
class DeviceNeed:
    """Bytes that a program takes on a device, as they are planned."""

    weights: int
    states: int
    arena: int

    @property
    def total(self) -> int:
        return self.weights + self.states + self.arena

    def __str__(self) -> str:
        return f"{self.total} bytes (weights {self.weights}, states {self.states}, arena {self.arena})"


def is_auto(place: object) -> bool:
    """True for a placement that is to be found."""
    return place == AUTO or isinstance(place, AutoPlace)


def needs_of(program: Program, constants: Mapping[str, Array], device: str) -> dict[str, DeviceNeed]:
    """Return what each device needs for a program; `device` is the one where it has one alone."""

    def need(part: Program) -> DeviceNeed:
        states = [t for n in part.states if isinstance(t := part.types[n], Tensor)]
        weights = sum(constants[n].nbytes for n in part.all_weights())
        return DeviceNeed(weights, sum(t.nbytes for t in states), part.arena_bytes)

    return {d: need(p) for d, p in program.parts.items()} or {device: need(program)}


def filled_shapes(signature: Signature, given: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor that is fed: as it is given, or of the sizes that dims of the same name have there.
    Raises InputError for sizes that stay open."""
    known = {n: t for n, t in signature.inputs.items() if isinstance(t, Tensor)}
    sizes: dict[Any, int] = {}
    for name, shape in given.items():
        if name in known:
            sizes |= dict(zip(known[name].dims or (), shape, strict=False))
    found, opened = dict[str, tuple[int, ...]](), list[str]()
    for name, kind in known.items():
        open_: tuple[Any, ...] = (None,) if kind.dims is None else kind.dims
        dims: Sequence[Any] = given.get(name) or [d if isinstance(d, int) else sizes.get(d) for d in open_]
        if any(d is None for d in dims):
            opened.append(f"{name}: {kind}")
        found[name] = tuple(int(d) for d in dims if d is not None)
    if opened:
        raise InputError(f"the sizes of {', '.join(opened)} are not known", where="place='auto'",
                         hint="give them: AutoPlace(room, shapes={NAME: SIZES})")  # fmt: skip
    return found


def proposed(graph: Graph, asked: AutoPlace, needs: Needs, *, training: bool = False) -> Graph:
    """The graph, whose types are known, with a device for each node, so that no device needs more than its room, as
    `needs` plans it. Of those few bytes travel. Raises BudgetError with the numbers where nothing fits."""
    devices, rooms, tried = asked.devices, [asked.room[d] for d in asked.devices], ""
    cuts = Cuts(graph, training)
    learned = PlannedNeeds(cuts)
    for _ in range(ROUNDS):
        ends = cuts.best(rooms, learned.need) or cuts.best(rooms, learned.least)
        if ends is None:
            break
        placed = cuts.placed(ends, devices)
        found = needs(placed)
        if all(n.total <= asked.room[d] for d, n in found.items()):
            return placed
        learned.learn({e: found[d] for e, d in zip(ends, devices, strict=True) if d in found})
        tried = "; tried: " + ", ".join(f"{d} needs {n} of {asked.room[d]}" for d, n in found.items())
    shown = ", ".join(f"{d} {asked.room[d]}" for d in devices)
    count = len(graph.nodes)
    raise BudgetError(
        f"no placement fits: about {cuts.held(0, count) + cuts.values(0, count)} bytes are needed (weights "
        f"{cuts.weights[-1]}), and there is room for {sum(rooms)} ({shown}){tried}",
        where=f"place='auto' of {graph.name or 'a model'}",
        hint="give more devices or more room, or smaller shapes",
    )


@dataclass(slots=True)
class PlannedNeeds:
    """Needs of stretches: as they were planned, or by an estimate that is corrected by those that were. Weights are
    packed and have states beside them, which grows with them; workspaces of an arena are there once."""

    cuts: Cuts
    rate: float = 1.0  # bytes of weights and states that were planned, for each of the estimate
    beside: int = 0  # bytes of an arena beside the estimate
    planned: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])

    def learn(self, found: Mapping[tuple[int, int], DeviceNeed]) -> None:
        """Learn from what was planned for each stretch."""
        self.planned |= {ends: need.total for ends, need in found.items()}
        kept = sum(need.weights + need.states for need in found.values())
        self.rate = kept / max(1, sum(self.cuts.held(*ends) for ends in found))
        self.beside = max(need.arena - self.cuts.values(*ends) for ends, need in found.items())

    def need(self, begin: int, end: int) -> float:
        """The bytes that a stretch takes, as far as is known."""
        if (begin, end) in self.planned:
            return self.planned[begin, end]
        guess = self.cuts.held(begin, end) * self.rate + self.cuts.values(begin, end) + self.beside
        return max(guess, self._within(begin, end))

    def least(self, begin: int, end: int) -> float:
        """The bytes that a stretch takes at least: its weights, or what a part of it was planned to take. Its values
        may share memory, or never be made."""
        return self.planned.get((begin, end), max(self.cuts.held(begin, end), self._within(begin, end)))

    def _within(self, begin: int, end: int) -> int:
        return max((n for (b, e), n in self.planned.items() if begin <= b and e <= end), default=0)


class Cuts:
    """Places at which a graph may be cut, what its stretches need as an estimate, and what goes across each cut.

    A stretch needs its weights and the values that live at its widest place, in a training all values that it makes.
    """

    def __init__(self, graph: Graph, training: bool) -> None:
        self._graph, self._training, count = graph, training, len(graph.nodes)
        made, last, first = dict[str, int](), dict[str, int](), dict[str, int]()
        for i, node in enumerate(graph.nodes):
            for name in node.reads():
                last[name] = i
                first.setdefault(name, i)
            made |= dict.fromkeys(filter(None, node.outputs), i)
        last |= dict.fromkeys((o for o in graph.outputs if o in made), count)
        self.across, own, weights = [0] * (count + 1), [0] * (count + 1), [0] * (count + 1)
        for name, i in made.items():
            size = _bytes(graph, name)
            own[i + 1] += size
            for cut in range(i + 1, min(last.get(name, i), count - 1) + 1):
                self.across[cut] += size
        for name, i in first.items():
            if name in graph.initializers:
                weights[i + 1] += graph.initializers[name].nbytes
        self.weights, self._own = _sums(weights), _sums(own)
        self._at = self._places(count)

    def _places(self, count: int) -> list[int]:
        """Numbers of nodes before which the graph may be cut: the cheapest of each stretch, and both ends. Stretches
        have as many bytes each, or nodes."""
        whole, size = max(self._size(0, count), 1), max(1, -(-count // CHUNKS))
        best: dict[tuple[int, int], int] = {}
        for cut in range(1, count):
            node, former = self._graph.nodes[cut], self._graph.nodes[cut - 1]
            if node.record.elementwise and not {*former.outputs}.isdisjoint(node.inputs):
                continue  # kernels compute both as one, on the device of the latter
            key = cut // size, self._size(0, cut) * CHUNKS // whole
            if key not in best or self.across[cut] < self.across[best[key]]:
                best[key] = cut
        cheap = sorted(best.values(), key=lambda cut: self.across[cut])[: 2 * CHUNKS]
        return [0, *sorted(cheap), count]

    def held(self, begin: int, end: int) -> int:
        """Bytes of the weights of a stretch of nodes."""
        return self.weights[end] - self.weights[begin]

    def values(self, begin: int, end: int) -> int:
        """Bytes of the values of a stretch of nodes, as an estimate."""
        if self._training:
            return self._own[end] - self._own[begin]
        return max(self.across[begin : end + 1], default=0)

    def _size(self, begin: int, end: int) -> int:
        return self.held(begin, end) + self.values(begin, end)

    def best(self, rooms: Sequence[float], need: Callable[[int, int], float]) -> list[tuple[int, int]] | None:
        """The stretch of each device, which may be empty, so that all fit and the fewest bytes go across; None where
        nothing fits."""
        at, before = self._at, dict[int, tuple[float, list[tuple[int, int]]]]()
        sizes = {(i, j): need(at[i], at[j]) for i in range(len(at)) for j in range(i + 1, len(at))}
        before[0] = 0.0, []
        for room in rooms:
            now = dict[int, tuple[float, list[tuple[int, int]]]]()
            for i, (cost, ends) in before.items():
                for j in range(i, len(at)):
                    price = cost + (self.across[at[i]] if j > i and i else 0)
                    if price < now.get(j, (inf, ends))[0] and (i == j or sizes[i, j] <= room):
                        now[j] = price, [*ends, (at[i], at[j])]
            before = now
        answer = before.get(len(at) - 1)
        return None if answer is None else answer[1]

    def placed(self, ends: Sequence[tuple[int, int]], devices: Sequence[str]) -> Graph:
        """The graph with the device of each node."""
        nodes = [
            replace(node, device=device)
            for (begin, end), device in zip(ends, devices, strict=True)
            for node in self._graph.nodes[begin:end]
        ]
        return self._graph.but(nodes=tuple(nodes))


def _bytes(graph: Graph, name: str) -> int:
    known = graph.types.get(name)
    return known.nbytes if isinstance(known, Tensor) and known.static else 0


def _sums(sizes: Sequence[int]) -> list[int]:
    total, found = 0, list[int]()
    for size in sizes:
        total += size
        found.append(total)
    return found

"""Micro-batches: a batch in parts, which go through the devices of a placed model one behind the other (1F1B).

Narayanan et al. 2019 (PipeDream, SOSP); the schedule with one update at the end is PipeDream-Flush (2021, arXiv
2006.09503).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..ops.errors import InputError
from ..runtime.ir.graph import Graph, Node


@dataclass(frozen=True, slots=True)
class Turn:
    """The forward or the backward part of a micro-batch on one device (`stage`), at a `time` if all take as long."""

    time: int
    stage: int
    forward: bool
    part: int

    def __str__(self) -> str:
        return f"{'F' if self.forward else 'B'}{self.part}"


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The schedule of a batch in parts over devices: each runs a backward part as soon as it may, and a forward one
    only while fewer are in flight than there are devices from it to the last. The update is at the end.

    >>> print(Pipeline(("gpu:0", "gpu:1"), 3))
    3 micro-batches over 2 devices, in 8 turns
    gpu:0  F0 F1 .. B0 F2 B1 .. B2  2 in flight
    gpu:1  .. F0 B0 F1 B1 F2 B2 ..  1 in flight
    """

    devices: tuple[str, ...]
    parts: int

    @property
    def turns(self) -> tuple[Turn, ...]:
        """All turns, in an order in which each finds what it reads."""
        last, done = len(self.devices) - 1, list[Turn]()
        forward, backward = [0] * (last + 1), [0] * (last + 1)  # the next one of each device
        time = 0
        while backward[0] < self.parts:
            now = list[Turn]()
            for s in range(last + 1):
                f, b = forward[s], backward[s]
                if b < (f if s == last else backward[s + 1]):
                    now.append(Turn(time, s, False, b))
                elif f < (self.parts if s == 0 else forward[s - 1]) and f - b <= last - s:
                    now.append(Turn(time, s, True, f))
            for turn in now:
                (forward if turn.forward else backward)[turn.stage] += 1
            done += now
            time += 1
        return tuple(done)

    def of(self, device: str) -> tuple[Turn, ...]:
        """The turns of one device."""
        stage = self.devices.index(device)
        return tuple(t for t in self.turns if t.stage == stage)

    def in_flight(self, device: str) -> int:
        """The most parts that have run forward on a device and not yet backward: so many keep their activations."""
        most = held = 0
        for turn in self.of(device):
            held += 1 if turn.forward else -1
            most = max(most, held)
        return most

    def __str__(self) -> str:
        length, wide = 1 + self.turns[-1].time, max(map(len, self.devices))
        size = len(str(self.parts - 1)) + 1
        devices = f"{len(self.devices)} device{'s' * (len(self.devices) > 1)}"
        rows = [f"{self.parts} micro-batches over {devices}, in {length} turns"]
        for device in self.devices:
            at = {t.time: str(t) for t in self.of(device)}
            shown = " ".join(at.get(i, "." * size).ljust(size) for i in range(length))
            rows.append(f"{device.ljust(wide)}  {shown}  {self.in_flight(device)} in flight")
        return "\n".join(rows)


def pipeline_of(graph: Graph, parts: int, device: str = "") -> Pipeline:
    """The pipeline of a graph whose nodes have devices, or all are on this `device`. Raises InputError where values go
    from a device to others and back."""
    makers = {o: n.device for n in graph.nodes for o in n.outputs if o}
    before: dict[str, set[str]] = {d: set() for d in graph.devices}
    for node in graph.nodes:
        if node.device:
            before[node.device] |= {at for n in node.reads() if (at := makers.get(n, "")) not in ("", node.device)}
    order = list[str]()
    while len(order) < len(before):
        ready = [d for d in before if d not in order and before[d] <= {*order}]
        if not ready:
            left = ", ".join(d for d in before if d not in order)
            raise InputError(f"values go from device to device in a circle: {left}", where="micro_batches=",
                             hint="place parts that follow each other, so that each device comes once")  # fmt: skip
        order.append(ready[0])
    return Pipeline(tuple(order) or (device,), parts)


def in_turns(nodes: Sequence[Node], pipeline: Pipeline, turn_of: dict[str, tuple[str, bool, int]]) -> tuple[Node, ...]:
    """The nodes in the order of the turns that make their values: `turn_of` tells the device, whether it is forward,
    and the part. Others run just before who reads them first or, where they need a turn, behind all."""
    numbers = {(pipeline.devices[t.stage], t.forward, t.part): i for i, t in enumerate(pipeline.turns)}
    end = len(numbers)
    known = {v: numbers[turn] for v, turn in turn_of.items()}
    first: dict[str, int] = {}  # who reads a value
    after = set[str]()  # what needs a turn, and has none
    for node in nodes:
        if not any(o in known for o in node.outputs) and any(n in known or n in after for n in node.reads()):
            after.update(node.outputs)
    place = [0] * len(nodes)
    for i in reversed(range(len(nodes))):
        outputs = [o for o in nodes[i].outputs if o]
        turns = [known[o] for o in outputs if o in known]
        if turns:
            place[i] = max(turns)
        elif not after.isdisjoint(outputs):
            place[i] = end
        else:
            place[i] = min((first.get(o, end) for o in outputs), default=end)
        for name in nodes[i].reads():
            first[name] = min(first.get(name, end), place[i])
    return tuple(nodes[i] for i in sorted(range(len(nodes)), key=lambda i: (place[i], i)))

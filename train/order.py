"""The order of a training step's nodes: updates early, sends to other workers earlier, receives late."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..ops.training.exchange import AWAIT, DOMAIN, EMIT
from ..runtime.ir.graph import Node

Place = tuple[int, int]


def soon(
    nodes: Sequence[Node], states: Mapping[str, str], ends: set[str], gradients: set[str], *, overlap: bool = True
) -> tuple[Node, ...]:
    """The nodes with each update as early as it may run: when its gradient is there and the last reader of what it
    overwrites is done. So a gradient lives only as long as it must.

    `states` maps the value that a state is read as to the one it is written as, `ends` are the written ones, and
    `gradients` what the backward part makes. With `overlap` what is emitted goes as early, so that it travels while the
    rest of the backward part runs. Awaits stand behind all that needs none of them, each before what only it holds up.
    """
    makers = {o: i for i, n in enumerate(nodes) for o in n.outputs if o}
    late = _behind_awaits(nodes)
    movable = {i for i, n in enumerate(nodes) if ends & set(n.outputs)} | late
    if overlap:
        movable |= _before_emits(nodes, max((makers[n] for n in gradients), default=len(nodes)))
    readers: dict[str, list[int]] = {}
    for i, node in enumerate(nodes):
        for name in node.reads():
            readers.setdefault(name, []).append(i)
    overwritten: dict[int, set[str]] = {}
    for read, write in states.items():
        if write in makers:
            overwritten.setdefault(makers[write], set()).add(read)
    place: dict[int, Place] = {i: (i, 0) for i in range(len(nodes)) if i not in movable}
    awaits = 0
    for i in sorted(movable):
        before = [place[makers[n]][0] for n in nodes[i].reads() if n in makers]
        waiting = [r for o in nodes[i].outputs for r in readers.get(o, ()) if r not in movable]
        stop = min(waiting, default=len(nodes))  # who reads what it makes stands still
        before += [
            place[r][0]
            for name in overwritten.get(i, ())
            for r in readers.get(name, ())
            if r in place and i != r < stop
        ]
        if _is(nodes[i], AWAIT):
            before.append(len(nodes) + awaits)
            awaits += 1
        place[i] = (max(before, default=-1), 1 + i)
    return tuple(nodes[i] for i in sorted(range(len(nodes)), key=place.__getitem__))


def _before_emits(nodes: Sequence[Node], backward: int) -> set[int]:
    """The Emits, and what stands between them and the last node of the backward part."""
    before: set[int] = set()
    read: set[str] = set()
    for i in range(len(nodes) - 1, backward, -1):
        if _is(nodes[i], EMIT) or not read.isdisjoint(nodes[i].outputs):
            before.add(i)
            read.update(nodes[i].reads())
    return before


def _behind_awaits(nodes: Sequence[Node]) -> set[int]:
    """The Awaits, and what reads what they make."""
    behind: set[int] = set()
    arrived: set[str] = set()
    for i, node in enumerate(nodes):
        if _is(node, AWAIT) or not arrived.isdisjoint(node.reads()):
            behind.add(i)
            arrived.update(node.outputs)
    return behind


def _is(node: Node, op: str) -> bool:
    return node.domain == DOMAIN and node.op == op

"""The CUDA graphs of the steps of several devices, and how reductions lie beside the backward part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mezzo as mz
from mezzo.ops.training.exchange import AWAIT, EMIT

WIDTH = 64  # characters of a drawn step
NUMBERS = "0123456789abcdefghijklmnopqrstuvwxyz"
BESIDE = ("wait", "record")  # nodes that compute nothing


@dataclass(frozen=True, slots=True)
class Row:
    """The step of one rank: its CUDA graphs and their nodes, the reductions by the key of their bucket, with the number
    of the step of the program behind which each begins, and the steps at which the backward part begins and ends."""

    rank: int
    graphs: int
    nodes: tuple[str, ...]
    begins: dict[str, int]
    backward: tuple[int, int]
    steps: int

    @property
    def calls(self) -> list[str]:
        """The calls of NCCL among the nodes."""
        return [node for node in self.nodes if node.startswith("nccl")]

    @property
    def apart(self) -> int:
        """How many calls of NCCL have a kernel of the step between them and the one before."""
        count, between = 0, True
        for node in self.nodes:
            if node.startswith("nccl"):
                count, between = count + between, False
            elif node not in BESIDE and not node.startswith("sum_of_ranks"):
                between = True
        return count

    def drawn(self) -> str:
        """A line: `-` forward, `=` backward, `.` update, and the number of each bucket where its reduction begins."""
        begin, end = self.backward
        line = ["-" if s < begin else "=" if s <= end else "." for s in range(self.steps)]
        shown = [line[i * self.steps // WIDTH] for i in range(WIDTH)]
        for number, at in enumerate(self.begins.values()):
            shown[at * WIDTH // self.steps] = NUMBERS[number % len(NUMBERS)]
        return f"gpu:{self.rank}  {self.graphs} graph, {len(self.nodes):5} nodes  {''.join(shown)}"


def table(trainer: mz.Trainer) -> list[Row]:
    """The rows of all ranks, after two steps."""
    rows = []
    for rank, one in enumerate(trainer._ranks):
        session: Any = one._update
        instance, steps = session._arenas.instance(session.executable), session.program.steps
        nodes = tuple(node for graph in instance.graphs for node in graph.nodes)
        begins = {str(s.node.attrs["key"]): i for i, s in enumerate(steps) if s.node.op == EMIT}
        made = [one.loss in s.writes() or any(one.loss in n for n in s.node.origin) for s in steps]
        awaited = next(i for i, s in enumerate(steps) if s.node.op == AWAIT)
        last = max(i for i in range(awaited) if steps[i].node.op != EMIT)
        rows.append(Row(rank, len(instance.graphs), nodes, begins, (made.index(True) + 1, last), len(steps)))
    return rows


def check(rows: list[Row]) -> None:
    """One graph for each rank, with the same calls; reductions begin in turn, between kernels, and all but the last
    before the backward part ends."""
    picture = "\n".join(row.drawn() for row in rows)
    for row in rows:
        assert row.graphs == 1, picture
        assert row.calls == rows[0].calls, picture
        at = [i for key, i in row.begins.items() if key.startswith("bucket ")]
        begin, end = row.backward
        assert len(at) > 1, picture
        assert [begin, *at] == sorted([begin, *at]), picture
        assert all(i < end for i in at[:-1]), picture
        assert row.apart >= len(at), picture

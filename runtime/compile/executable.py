"""The result of compilation, made by planning or read from a file: a program with its constants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...ops.dataclasses import dataclass, field
from ...ops.types import Array
from ..ir.graph import Graph
from ..memory.shared_constants import constant
from .lower import Learned, Options, lower
from .program import Program

STORED = "variant"  # begins the origin of what was read from a file


@dataclass(frozen=True, slots=True, eq=False)
class Executable:
    """A program for one input signature, its constants, and the graph that it was made from.

    `origin` tells whether the program was read as a variant of a file, or bound from the graph (and why): it begins
    with one of these words.
    """

    program: Program
    constants: Mapping[str, Array] = field(repr=False)
    graph: Graph = field(repr=False)
    origin: str = "graph"

    @property
    def stored(self) -> bool:
        """True if the constants are a file's, mapped rather than held by the process."""
        return self.origin.startswith(STORED)


def executable_of(graph: Graph, options: Options, outputs: Sequence[str], learned: Learned) -> Executable:
    """Lower a rewritten graph, and collect its constants."""
    program, packed = lower(graph, options, names=outputs, learned=learned)
    wanted = program.all_weights()
    constants = {n: a for n, a in packed.items() if n in wanted}

    def collect(part: Graph) -> None:
        for n, a in part.initializers.items():
            if n in wanted:
                constants[n] = constant(a)
        for node in part.nodes:
            for body in node.bodies.values():
                collect(body)

    collect(graph)
    return Executable(program, constants, graph)


def declined(executable: Executable) -> bool:
    """True if nothing computes a chain of operators as a whole, which was taken over from other sizes."""
    return any(s.node.op == "Fused" and not s.choice.implementation for s in executable.program.all_steps())

"""The result of compilation, made by planning or read from a file: a program with its constants."""

from __future__ import annotations

from collections.abc import Mapping

from ...ops.dataclasses import dataclass, field
from ...ops.types import Array
from ..ir.graph import Graph
from .program import Program


@dataclass(frozen=True, slots=True, eq=False)
class Executable:
    """A program for one input signature, its constants, and the graph that it was made from.

    `origin` tells whether the program was read as a variant of a file, or bound from the graph (and why).
    """

    program: Program
    constants: Mapping[str, Array] = field(repr=False)
    graph: Graph = field(repr=False)
    origin: str = "graph"

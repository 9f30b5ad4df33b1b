"""Passes over typed graphs, one per file; a pass returns the graph itself when nothing changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..ir.graph import Graph
from ..ir.prune import prune
from .cse import merge_equal
from .fold import fold
from .identities import RULES
from .inline import inline_known_branches
from .rewrite import Rule, rewrite

Pass = Callable[[Graph], Graph]


def remove_identities(graph: Graph) -> Graph:
    """Drop nodes that return an input unchanged."""
    return rewrite(graph, RULES)


TYPED: tuple[Pass, ...] = (inline_known_branches, fold, remove_identities)  # what they do depends on types
PIPELINE: tuple[Pass, ...] = (*TYPED, prune, merge_equal)


def simplify(graph: Graph, passes: Sequence[Pass] = PIPELINE, *, rounds: int = 4) -> Graph:
    """Run the passes over a typed graph until none changes it (at most `rounds` times each)."""
    for _ in range(rounds):
        before = graph
        for step in passes:
            graph = step(graph)
        if graph is before:
            break
    return graph


__all__ = ["PIPELINE", "RULES", "TYPED", "Pass", "Rule", "rewrite", "simplify"]

"""Functions compiled from graphs for the product's own use: sessions that no user asks for, and the one cache of them.

Those over arrays of `mz.nd` are built on these in nd/compiled.py.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from ..caches import LatestCache
from ..ir.graph import Graph
from .session import Session

MOST: Final = 512  # each keeps its memory: a program that goes on making new shapes compiles them anew

# Functions by what their makers know of graph and types; a key begins with the maker's name. Functions over memory of
# somebody's own (states) are kept by its owner, and not here.
FUNCTIONS: Final[LatestCache[Any]] = LatestCache("compiled functions", MOST)


def compiled(
    graph: Graph, *, device: str = "cpu", states: Mapping[str, Any] | None = None, instances: int | None = None
) -> Session:
    """Compile a graph for a device; `states` lie where they are given, of a GPU as arrays of CuPy. Runs take arrays by
    name. Where it is wanted again, ask for it through `FUNCTIONS.get(key, lambda: compiled(...))`."""
    return Session(graph, device=device, states=None if states is None else {**states}, instances=instances)


def save_compiled(graph: Graph, path: str | os.PathLike[str], *, source: str = "") -> None:
    """Write a graph to a `.mezzo` file, with its program where all sizes are known; see `Session.save`."""
    compiled(graph).save(path, source=source)

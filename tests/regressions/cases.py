"""`check`: a graph of a few lines under many settings, against the oracle of tests/random_graphs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from mezzo.ops import DType, Tensor
from mezzo.runtime.ir.graph import Graph
from mezzo.runtime.ir.infer import infer

from ..random_graphs.drawing import Property
from ..random_graphs.maker import Case
from ..random_graphs.oracle import FLOAT32, Worlds, evaluated
from ..random_graphs.printed import numbers
from ..random_graphs.properties import Asked, copied, like, repeated, type_like, unchanged
from ..random_graphs.switches import Switches, sample

__all__ = ["check", "fed", "numbers"]

# As a session is by itself, and combinations in which every two settings meet; narrow floats are asked for by name.
USUAL = (Switches(), *(Switches(s.onednn, s.strategy, s.fuse, s.threads) for s in sample(np.random.default_rng(0))))


def fed(graph: Graph, **dims: int) -> dict[str, Any]:
    """Numbers for every input; `dims` are the sizes of open dims."""
    made = {}
    for name in graph.inputs:
        known = graph.types[name]
        assert isinstance(known, Tensor)
        sizes = tuple(d if isinstance(d, int) else dims[str(d)] for d in known.shape)
        x = numbers(*sizes)
        if known.dtype is DType.BOOL:
            made[name] = x > 0
        else:
            made[name] = (x if known.dtype.floating else np.abs(np.round(x))).astype(known.dtype.numpy)
    return made


def check(
    graph: Graph,
    *runs: Mapping[str, Any],
    switches: Iterable[Switches] = USUAL,
    also: Iterable[Property] = (),
    **dims: int,
) -> None:
    """Run under each of the switches and compare with the operators one by one.

    All `runs` go through one session, in turn and then the first again: by default those of `fed`. What is fed and what
    was answered stays as it is, and what is run again answers the same to the last bit. `also` are further properties.
    """
    given = [dict(feeds) for feeds in runs or (fed(graph, **dims),)]
    wanted = [_expected(graph, feeds) for feeds in given]
    for chosen in switches:
        asked = Asked(Case(0, graph, given[0]), chosen, np.random.default_rng(0))
        if not chosen.narrow:
            asked.worlds[asked.noise] = wanted[0]
        try:
            session = asked.session()
            repeated(asked, session)
            first = session.run(given[0])
            kept = copied(first)
            for feeds, worlds in zip(given[1:], wanted[1:], strict=True):
                like(session.run(feeds), worlds if not chosen.narrow else _expected(graph, feeds, asked.noise))
                unchanged(kept, first, "a run of other sizes changed what an earlier one had answered")
            unchanged(kept, session.run(given[0]), "the first run again answers otherwise")
            for wanted_too in also:
                wanted_too(asked, session)
        except Exception as error:
            error.add_note(f"with {dict(chosen.given)}")
            raise


def _expected(graph: Graph, feeds: Mapping[str, Any], noise: float = FLOAT32) -> Worlds:
    types = {**graph.types, **{n: type_like(x) for n, x in feeds.items()}}
    return evaluated(infer(graph.but(types=types)), feeds, noise)

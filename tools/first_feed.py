"""Sessions of models whose inputs have no sizes until they are fed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..ops import Tensor
from ..ops.dataclasses import dataclass
from ..ops.errors import PlanError, ShapeError
from ..ops.types import Dim
from ..runtime.compile.program import Port
from ..runtime.execution.feeds import checked, planned_types
from ..runtime.execution.session import Session
from ..runtime.ir.graph import Graph, Signature

MOST = 8  # sessions that are kept, one for each set of sizes that had to be known
Shapes = dict[str, tuple[Dim, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class _Sized:
    """A session, and the shapes that its graph was made for."""

    shapes: Shapes
    session: Session

    def takes(self, sizes: Mapping[str, tuple[int, ...]]) -> bool:
        return all(
            len(dims) == len(fed := sizes[name])
            and all(isinstance(d, str) or d == n for d, n in zip(dims, fed, strict=True))
            for name, dims in self.shapes.items()
        )


class FirstFeedSession(Session):
    """A session whose graph is made when the sizes of its inputs are known: by the first run, or by `warmup`. It runs
    with open sizes where the model allows that; where it does not, other sizes make another graph, of which the latest
    few are kept. All else is that of the session that ran last, and a PlanError before the first run.

    `inputs` are the names of the inputs and their types, without shapes; `graph_for(shapes)` makes the graph, and
    raises ShapeError where the shapes do not do; `make(graph)` makes a session of it.
    """

    def __init__(
        self,
        inputs: Mapping[str, Tensor],
        graph_for: Callable[[Mapping[str, Sequence[Dim]]], Graph],
        make: Callable[[Graph], Session],
        name: str = "",
    ) -> None:
        self._graph_for, self._make = graph_for, make
        self._unsized = Signature(name, dict(inputs), (), {}, {})
        self._made: list[_Sized] = []  # the one that ran last stands first
        self._making = threading.RLock()

    def __getattribute__(self, name: str) -> Any:
        if name in OWN or name.startswith("__"):
            return object.__getattribute__(self, name)
        sized = self._made
        if sized:
            return getattr(sized[0].session, name)
        if not hasattr(Session, name):
            raise AttributeError(f"{type(self).__name__!r} has no attribute {name!r}")
        raise PlanError(
            f"the sizes of its inputs are not known yet: there is no {name}",
            where=self._unsized.name,
            hint="run once, call warmup({name: shape}), or give mz.load(..., shapes={name: shape})",
        )

    def __repr__(self) -> str:
        return f"<Session of {self._unsized.name or 'a model'}: {', '.join(self._unsized.inputs)} -> ...>"

    @property
    def inputs(self) -> tuple[Port, ...]:
        """Names and types of the inputs, without shapes before the first run."""
        sized = self._made
        return sized[0].session.inputs if sized else tuple(Port(n, t) for n, t in self._unsized.inputs.items())

    def __call__(self, *inputs: Any) -> Any:
        """Run on positional inputs; returns the output, or a tuple of several."""
        feeds = dict(zip(self._unsized.inputs, inputs, strict=False))
        return self._for(self._sizes(feeds))(*inputs)

    def run(self, feeds: Mapping[str, Any], **options: Any) -> dict[str, Any]:
        """Run once, as Session.run does, which has the arguments."""
        return self._for(self._sizes(feeds)).run(feeds, **options)

    def run_async(self, feeds: Mapping[str, Any], **options: Any) -> Any:
        """`run` as a workload of the engine, as Session.run_async is."""
        return self._for(self._sizes(feeds)).run_async(feeds, **options)

    def warmup(self, shapes: Mapping[str, Sequence[int]]) -> Any:
        """Make the graph for these input shapes, and plan it."""
        types = planned_types(self._unsized, shapes)
        missing = [n for n in types if n not in shapes]
        if missing:
            raise ShapeError(f"nothing tells the shape of the input {missing[0]!r}", where=self._unsized.name)
        return self._for({n: tuple(map(int, shapes[n])) for n in types}).warmup(shapes)

    def _sizes(self, feeds: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Shapes of the feeds. Raises InputError for feeds that are none of the model's."""
        names = self._unsized.inputs
        if feeds.keys() != names.keys() or not all(hasattr(x, "shape") for x in feeds.values()):
            feeds = checked(self._unsized, feeds)
        return {n: tuple(np.shape(feeds[n])) for n in names}

    def _for(self, sizes: Mapping[str, tuple[int, ...]]) -> Session:
        sized = self._made
        if sized and sized[0].takes(sizes):
            return sized[0].session
        with self._making:
            chosen = next((s for s in self._made if s.takes(sizes)), None) or self._sized(sizes)
            self._made = [chosen, *(s for s in self._made if s is not chosen)][:MOST]
            return chosen.session

    def _sized(self, sizes: Mapping[str, tuple[int, ...]]) -> _Sized:
        """A session for these sizes, and as many others as the model allows."""
        known: Shapes = {n: tuple(dims) for n, dims in sizes.items()}
        for open_axes in (None, 1):  # all of them, or the first
            shapes: Shapes = {
                n: (*(f"{n}_{i}" for i, _ in enumerate(dims[:open_axes])), *dims[len(dims[:open_axes]) :])
                for n, dims in known.items()
            }
            try:
                return _Sized(shapes, self._make(self._graph_for(shapes)))
            except ShapeError:
                continue
        return _Sized(known, self._make(self._graph_for(known)))


OWN = frozenset(vars(FirstFeedSession)) | {"_graph_for", "_make", "_unsized", "_made", "_making"}

"""Sizes that are rounded up (`buckets="auto"`): any axis of an input left open, at sizes that are padded by three."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np

from mezzo.ops import Tensor
from mezzo.runtime.compile import padded, padded_program, padding, padding_rules
from mezzo.runtime.compile.sizes import NormalSizes
from mezzo.runtime.compile.template import Traced
from mezzo.runtime.execution.saving import content
from mezzo.runtime.execution.session import Session
from mezzo.runtime.file import Opened
from mezzo.runtime.ir.graph import Graph
from mezzo.runtime.ir.infer import infer

from .oracle import Worlds, evaluated
from .properties import Asked, Feeds, NotHere, copied, fits, like, type_like, unchanged

SIZES = (2, 3, 5, 6, 9, 17)
STORED = 0.3  # of the sessions are written to a file, too
ODD = 0.5  # of the sessions have NaN in the padding of inputs, where zeros would hide that it is read
Axes = Mapping[str, int]


def rounded(a: Asked, session: Session) -> None:
    """Three sizes of an open axis, and the first again, in one session that rounds them up where that is proven to
    change nothing. The first axis is rounded too, which users have as it is."""
    axes = _axes(a)
    types = dict(a.graph.types)
    for name, axis in axes.items():
        known = types[name]
        assert isinstance(known, Tensor)
        assert known.dims
        types[name] = known.of("open" if i == axis else d for i, d in enumerate(known.dims))
    graph = a.graph.but(types=types)
    walk = []
    for size in a.rng.choice(SIZES, 3, replace=False).tolist():
        try:
            walk.append((size, *_resized(a, graph, axes, size)))
        except NotHere:
            continue
    if not walk:
        raise NotHere
    with _rounding(odd=a.rng.random() < ODD):
        opened = a.session(graph, buckets="auto")
        for size, feeds, worlds in [*walk, walk[0]]:
            given = copied(feeds)
            answer = opened.run(feeds)
            like(answer, worlds, what=f"with {dict(axes)} at {size} ")
            unchanged(given, feeds, "the run changed what it was fed")
            unchanged(copied(answer), opened.run(feeds), f"a second run at {size} answered otherwise")
        if a.rng.random() < STORED:
            _stored(a, opened, [feeds for _, feeds, _ in walk])


def _stored(a: Asked, opened: Session, walk: list[Feeds]) -> None:
    """The session's file answers as it does."""
    session = a.session(Opened(b"".join(content(opened, portable=False, source="", producer=""))))  # type: ignore[arg-type]
    for feeds in walk:
        unchanged(copied(opened.run(feeds)), session.run(feeds), "the file of a session answers otherwise")
    if opened.stats().rounded and not session.stats().rounded:
        raise AssertionError("the file of a session that rounds sizes up has no programs for that")


@contextmanager
def _rounding(*, odd: bool) -> Iterator[None]:
    """Any axis is rounded up, and by three; with `odd`, inputs have NaN as padding."""
    with patch.object(padded, "open_symbols", _every), patch.object(padding, "rounded_up", _by_three):
        if not odd:
            yield
            return
        with patch.object(padded_program, "_grown", _grown), patch.object(padding_rules, "INPUT_PADDING", None):
            yield


def _grown(array: Any, known: Tensor, *, room: bool = False) -> Any:
    """The array with NaN, or 1, up to the sizes of a type."""
    grown = np.full(known.sizes, np.nan if array.dtype.kind == "f" else 1, array.dtype)
    grown[tuple(map(slice, array.shape))] = array
    return grown


def _by_three(size: int) -> int:
    return size if size <= 1 else size + 3


def _every(trace: Traced, normal: NormalSizes, name: str, axis: int) -> set[int]:
    """The symbols of any axis."""
    known = trace.symbols.types[name]
    assert isinstance(known, Tensor)
    size = normal.of(known.shape[axis])
    return set() if isinstance(size, int) else normal.symbols(size)


def _axes(a: Asked) -> Axes:
    """The batch, or an axis of one input, with those of others that have its size. Raises NotHere if there is none."""
    arrays = {n: x for n, x in a.case.feeds.items() if isinstance(x, np.ndarray) and x.dtype != object and x.size}
    inputs = [n for n, x in arrays.items() if x.ndim]
    if not inputs:
        raise NotHere
    batched = {n: 0 for n in a.case.batched if n in inputs}
    if batched and a.rng.random() < 0.3:
        axes = batched
    else:
        first = str(a.rng.choice(inputs))
        at = int(a.rng.integers(arrays[first].ndim))
        axes = {first: at}
        if a.rng.random() < 0.6:
            size = arrays[first].shape[at]
            axes |= {n: arrays[n].shape.index(size) for n in inputs if n != first and size in arrays[n].shape}
    if len({arrays[n].shape[axis] for n, axis in axes.items()}) > 1:
        raise NotHere
    return axes


def _resized(a: Asked, graph: Graph, axes: Axes, size: int) -> tuple[Feeds, Worlds]:
    """The feeds with these axes at another size, and what comes of them. Raises NotHere where the graph does not fit
    it."""
    feeds = dict(a.case.feeds)
    for name, axis in axes.items():
        rows = np.moveaxis(feeds[name], axis, 0)
        more = np.resize(rows[::-1], (size, *rows.shape[1:]))
        feeds[name] = np.ascontiguousarray(np.moveaxis(more, 0, axis))
    try:
        infer(graph)
        closed = graph.but(types={**graph.types, **{n: type_like(x) for n, x in feeds.items()}})
        worlds = evaluated(infer(closed), feeds, a.noise)
        fits(graph, worlds)
    except Exception as error:  # sizes that stand in the graph: references raise what they like
        raise NotHere from error
    return feeds, worlds

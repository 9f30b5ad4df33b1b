"""States of a loop whose size changes: the values that each iteration started from, for its derivative."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from ..op import Body, Builder, GraphBody, Value
from ..types import DType, Tensor, Type, i64
from ..types import Sequence as SequenceType

BOOL = Tensor(DType.BOOL, ())
Reader = Callable[[Builder, Value], Value]  # the carried value that an iteration, of this number, started from


def parted(values: Sequence[Value], *counts: int) -> Iterator[list[Value]]:
    """Lists of so many values, one after another."""
    rest = iter(values)
    for count in counts:
        yield list(islice(rest, count))


def several(results: Any, count: int) -> tuple[Value, ...]:
    """The results of a builder's call that asked for `count` outputs."""
    return (results,) if count == 1 else tuple(results)


def saved(
    g: Builder, body: GraphBody, M: Value, cond: Value, initial: list[Value], types: list[Type], which: list[int]
) -> dict[int, Reader]:
    """For carried values whose size changes, those that the iterations started from: the loop runs once more for them.

    Tensors are kept in a sequence. ONNX has no sequences of sequences: those are laid end to end, with a sequence of
    the places where they end.
    """
    if not which:
        return {}
    n, listed = len(initial), [k for k in which if isinstance(types[k], SequenceType)]
    width = n + len(which) + len(listed)

    def build(b: Builder, i: Value, go: Value, *inside: Value) -> list[Value]:
        states, kept, ends = parted(inside, n, len(which), len(listed))
        again, *after = b.again(body, [i, go, *states])
        longer = [
            _appended(b, all_, states[k]) if k in listed else b.SequenceInsert(all_, states[k])
            for all_, k in zip(kept, which, strict=True)
        ]
        more = [
            b.SequenceInsert(e, b.SequenceLength(longer[which.index(k)])) for e, k in zip(ends, listed, strict=True)
        ]
        return [again, *after[:n], *longer, *more]

    empty = [_none_of(g, types[k]) if k in listed else g.SequenceErase(g.SequenceConstruct(initial[k])) for k in which]
    zero = [g.SequenceConstruct(g.const(0)) for _ in listed]
    inside = [i64(), BOOL, *types, *(types[k] if k in listed else SequenceType(types[k]) for k in which)]
    inside += [SequenceType(i64()) for _ in listed]
    results = several(g.Loop(M, cond, *initial, *empty, *zero, body=Body(inside, build), outputs=width), width)
    kept, ends = dict(zip(which, results[n:], strict=False)), dict(zip(listed, results[n + len(which) :], strict=True))

    def reader(k: int) -> Reader:
        if k in listed:
            return lambda b, at: _part(b, kept[k], ends[k], at, types[k])
        return lambda b, at: b.SequenceAt(kept[k], at)

    return {k: reader(k) for k in which}


def _appended(b: Builder, all_: Value, some: Value) -> Value:
    """A sequence with the elements of another one behind its own."""

    def build(c: Builder, j: Value, go: Value, longer: Value) -> list[Value]:
        return [go, c.SequenceInsert(longer, c.SequenceAt(some, j))]

    return b.Loop(b.SequenceLength(some), None, all_, body=Body([i64(), BOOL, b.type_of(all_)], build))


def _part(b: Builder, all_: Value, ends: Value, number: Value, type: Type) -> Value:
    """One of the sequences that lie end to end."""
    start, end = b.SequenceAt(ends, number), b.SequenceAt(ends, b.Add(number, b.const(1)))

    def build(c: Builder, j: Value, go: Value, longer: Value) -> list[Value]:
        return [go, c.SequenceInsert(longer, c.SequenceAt(all_, c.Add(start, j)))]

    return b.Loop(b.Sub(end, start), None, _none_of(b, type), body=Body([i64(), BOOL, type], build))


def _none_of(g: Builder, type: Type) -> Value:
    """An empty sequence, of which the rank of an element is known as far as the type tells."""
    assert isinstance(type, SequenceType)
    if not isinstance(type.element, Tensor) or type.element.dims is None:
        return g.SequenceEmpty(dtype=getattr(type.element, "dtype", DType.FLOAT).onnx)
    like = np.zeros([d if isinstance(d, int) else 0 for d in type.element.dims], type.element.dtype.numpy)
    return g.SequenceErase(g.SequenceConstruct(g.const(like)))

"""Bucketing: open dims are padded up to one of a few sizes, and the results cut back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ops import MezzoError, Tensor, Type
from ...ops.errors import InputError
from ...ops.symbolic import NotSymbolic, SymbolicSize, concrete, is_symbolic, tracing
from ...ops.types import Dim
from ..caches import CacheKey
from ..ir.infer import infer
from .program import Port
from .template import NoTemplate, Symbols, filled

if TYPE_CHECKING:
    from .specialize import Compiled

Buckets = Mapping[str, Sequence[int]]


def check_buckets(buckets: Buckets, inputs: Sequence[Port]) -> dict[str, tuple[int, ...]]:
    """Buckets by dim name, each in order; InputError for a dim that no input has, or for sizes that are none."""
    known = {d for p in inputs if isinstance(p.type, Tensor) for d in p.type.dims or () if isinstance(d, str)}
    unknown = [name for name in buckets if name not in known]
    if unknown:
        raise InputError(
            f"no input has a dim {unknown[0]!r}", where="buckets", hint=f"the open dims are {', '.join(sorted(known))}"
        )
    return {name: tuple(sorted(_sizes(name, sizes))) for name, sizes in buckets.items()}


def _sizes(name: str, given: Iterable[Any]) -> list[int]:
    try:
        sizes = [index(size) for size in given]
    except TypeError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise InputError(f"the buckets of {name!r} are not sizes", where="buckets", hint="give for example (1, 8)")
    return sizes


def padded(
    buckets: Mapping[str, tuple[int, ...]], inputs: Sequence[Port], arrays: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, int]]:
    """The arrays with zeros up to the next bucket of each dim, and the sizes that the padded dims had.

    A size above the largest bucket stays as it is.
    """
    had: dict[str, int] = {}
    feeds = dict(arrays)
    for port in inputs:
        array = arrays[port.name]
        if not isinstance(port.type, Tensor) or not port.type.dims:
            continue
        wide = [(0, 0)] * array.ndim
        for axis, dim in enumerate(port.type.dims):
            if isinstance(dim, str) and dim in buckets:
                size = array.shape[axis]
                up = next((b for b in buckets[dim] if b >= size), size)
                wide[axis] = (0, up - size)
                if up > size:
                    had[dim] = size
        if any(more for _, more in wide):
            feeds[port.name] = np.pad(array, wide)
    return feeds, had


def cut(
    compiled: Compiled, types: Mapping[str, Type], results: Mapping[str, Any], had: Mapping[str, int]
) -> dict[str, Any]:
    """The results with the axes that follow padded dims at the sizes that these had. `types` are those of the padded
    inputs. Raises InputError for an axis that depends on a padded dim in another way, or may, and for a result that has
    another shape without padding."""
    symbols, outputs = compiled.padded.get(CacheKey(*types.values()), lambda: _symbolic(compiled, types))
    shapes = _without_padding(compiled, types, had, symbols, outputs)
    answers = dict[str, Any]()
    for name, value in zip(compiled.outputs, compiled.graph.outputs, strict=True):
        declared, result = compiled.graph.types[value], results[name]
        if not isinstance(declared, Tensor) or declared.dims == ():
            answers[name] = result
            continue
        known = outputs.get(value)
        dims = known.dims if isinstance(known, Tensor) and known.dims is not None else (None,) * result.ndim
        named = declared.dims if declared.dims is not None else (None,) * result.ndim
        axes = zip(named, dims, result.shape, strict=True)
        ends = [_end(name, axis, *sizes, symbols, had) for axis, sizes in enumerate(axes)]
        answers[name] = np.ascontiguousarray(result[tuple(map(slice, ends))])
        expected = shapes[value]
        dims = expected.dims if isinstance(expected, Tensor) and expected.dims is not None else answers[name].shape
        if any(d not in (None, n) for d, n in zip(dims, answers[name].shape, strict=True)):
            how = f"is {expected} without padding, and was {result.shape} with it, so that it depends"
            raise _mixed(name, how, had)
    return answers


def _without_padding(
    compiled: Compiled,
    types: Mapping[str, Type],
    had: Mapping[str, int],
    symbols: Symbols,
    outputs: Mapping[str, Type],
) -> Mapping[str, Type]:
    """The types of the outputs for inputs of the sizes that they had: those of the symbols if these hold for them, else
    inferred. Raises ShapeError where such inputs do not fit the model."""
    graph, actual = compiled.graph, dict(types)
    for name in graph.inputs:
        declared, padded = graph.types[name], types[name]
        if isinstance(declared, Tensor) and declared.dims is not None and isinstance(padded, Tensor):
            actual[name] = padded.of(
                had.get(d, n) if isinstance(d, str) else n for d, n in zip(declared.dims, padded.sizes, strict=True)
            )
    values = symbols.values(actual) if outputs else None
    if values is not None:
        put = concrete(symbols.trace, values)
        return {name: filled(type, put) for name, type in outputs.items()}
    key = CacheKey("actual", *actual.values())
    types = compiled.padded.get(key, lambda: infer(graph, actual, budget=compiled.budget).types)
    return types


def _symbolic(compiled: Compiled, types: Mapping[str, Type]) -> tuple[Symbols, Mapping[str, Type]]:
    """Symbols for the open dims of a graph, and the types of its outputs; none where sizes become numbers."""
    graph, symbols = compiled.graph, Symbols()
    try:
        for name in graph.inputs:
            symbols.add(name, graph.types[name], types[name])
        with tracing():
            typed = infer(graph, symbols.types, budget=compiled.budget).types
        return symbols, {name: typed[name] for name in graph.outputs}
    except (NoTemplate, NotSymbolic, MezzoError):
        return Symbols(), {}


def _end(name: str, axis: int, named: Dim, dim: Any, size: int, symbols: Symbols, had: Mapping[str, int]) -> int | None:
    """The place at which an axis of a result is cut; None if it is not."""
    if isinstance(named, str) and named in had:
        return had[named]
    for padded, before in had.items():
        symbol = symbols.named.get(padded)
        if dim is None or type(symbol) is not SymbolicSize:
            if not isinstance(named, int) and size > before:
                raise _mixed(name, f"may depend in axis {axis}", (padded,))
        elif is_symbolic(dim) and dim.terms == symbol.terms:
            return before
        elif is_symbolic(dim) and symbol.trace.depends(dim.terms, symbol.terms):
            raise _mixed(name, f"has {dim} in axis {axis} ({symbol} being {padded}), and depends", (padded,))
    return None


def _mixed(name: str, how: str, padded: Iterable[str]) -> InputError:
    return InputError(
        f"output {name!r} {how} on the padded dim {' or '.join(map(repr, padded))}",
        where="buckets", hint="what the padding came to cannot be cut off: feed the sizes as they are",
    )  # fmt: skip

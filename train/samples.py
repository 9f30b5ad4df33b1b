"""Samples of a batch that is split, over devices or into micro-batches: along which axis of each input they lie, and
which losses are means over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from ..ops import Tensor, Type
from ..ops.errors import InputError, MezzoError
from ..runtime.ir.graph import Graph
from ..runtime.ir.infer import infer
from ..runtime.ir.interpreter import Eager
from .judged import COUNTED, Term
from .shares import Samples, batch_axis

MOST = 4  # inputs whose first dims have names of their own: each doubles the number of trials
BATCH, OTHER, REST = 48, 32, 16  # sizes of trials


def samples_of(graph: Graph, named: Sequence[str], terms: Sequence[Term] = ()) -> Samples:
    """The axes along which samples lie in the inputs of a graph with its loss. The first of `named` has the batch
    first. An input whose dims do not have its name has its samples first, unless the model takes other sizes there,
    too: rows of a memory, say. Raises InputError for a loss that adds samples up."""
    known: list[tuple[str, Any]] = [(n, graph.types[n]) for n in graph.inputs if n not in graph.initializers]
    types = {n: t for n, t in known if isinstance(t, Tensor)}
    first = next((t for n in named if (t := types.get(n)) is not None and t.dims), None)
    batch = None if first is None or first.dims is None else first.dims[0]
    axes = {n: axis for n, t in types.items() if (axis := batch_axis(t, batch)) is not None}
    unsure = [n for n in axes if isinstance(batch, str) and batch not in (types[n].dims or ())]
    for name in _apart(graph, types, batch, unsure[:MOST]):
        del axes[name]
    for term in terms:
        _check_mean(graph, term, batch)
    counted = [n for n in graph.initializers if n.startswith(COUNTED + "/loss")]
    return Samples(batch, axes, counted[0] if counted and len(terms) == 1 else "")


def _apart(graph: Graph, types: Mapping[str, Tensor], batch: Any, unsure: Sequence[str]) -> set[str]:
    """Those of the unsure inputs whose first dim may be of another size than the batch."""

    def goes(other: set[Any]) -> bool:
        def size(dim: Any, own: Any) -> Any:
            return dim if isinstance(dim, int) else BATCH if dim == batch else own.get(dim, REST)

        own = {d: OTHER if d in other else BATCH for d in names.values()}
        sized = dict[str, Type]()
        for n, t in types.items():
            first, *rest = t.dims or (None,)
            head = own[names[n]] if n in names else size(first, own)
            sized[n] = t.of([head, *(size(d, own) for d in rest)]) if t.dims else t
        try:
            infer(graph, sized)
        except MezzoError:
            return False
        return True

    names = {n: (types[n].dims or (None,))[0] or n for n in unsure}
    dims = [*dict.fromkeys(names.values())]
    if not dims or not goes(set()):
        return set()
    free = set[Any]()
    for choice in product((False, True), repeat=len(dims)):
        other = {d for d, taken in zip(dims, choice, strict=True) if taken}
        if other - free and goes(other):
            free |= other
    return {n for n, d in names.items() if d in free}


def _check_mean(graph: Graph, term: Term, batch: Any) -> None:
    """Raise InputError for a function that adds up samples: the same ones twice are twice the loss."""
    if term.loss.anew is None:
        return
    rng, twice = np.random.default_rng(0), list[list[Any]]()
    kinds = [graph.types[n] for n in (*term.outputs, *filter(None, [term.target]))]
    for kind in kinds:
        if not isinstance(kind, Tensor) or kind.dims is None:
            return
        shape = [d if isinstance(d, int) else 2 for d in kind.dims]
        drawn = rng.uniform(0.25, 0.75, shape) if kind.dtype.floating else np.zeros(shape)
        axis = batch_axis(kind, batch)
        one = drawn.astype(kind.dtype.numpy)
        twice.append([one, one if axis is None else np.concatenate([one, one], axis)])
    try:
        single, double = (float(term.loss.build(Eager(), *operands)) for operands in zip(*twice, strict=True))
    except Exception:  # it is told where it is made
        return
    if single and abs(double / single - 2) < 1e-3:
        raise InputError(
            "the loss adds samples up, and parts of a batch are averaged", where="loss",
            hint="return the loss of each sample, whose mean counts, and multiply the rate by the samples of a batch",
        )  # fmt: skip

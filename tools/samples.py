"""Samples of operator records as arrays, and as graphs of one node."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ops import Body, DType, Held, Op, Sample, Tensor
from ..ops.types import type_of
from ..runtime.ir.graph import Graph, GraphBuilder


def hosted(op: Op, sample: Sample) -> bool:
    """True if lists, dicts or optionals are inputs or outputs (tests/test_host_ops.py)."""
    if any(isinstance(x, Held) for x in sample.inputs):
        return True
    if any(isinstance(v, Body) for v in sample.attrs.values()):
        return False
    types = [x if x is None or isinstance(x, Tensor) else type_of(x, known=True) for x in sample.inputs]
    inferred = op.infer_types(types, sample.attrs, (True,) * sample.outputs)
    return not all(isinstance(t, Tensor) for t in inferred)


def arrays(sample: Sample, seed: int = 0) -> list[Any]:
    """The inputs of a sample as arrays; types are filled at random."""
    rng = np.random.default_rng(seed)

    def one(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x if x is None or isinstance(x, Held) else np.asarray(x)
        values = rng.uniform(-2, 2, x.sizes)
        if x.dtype is DType.BOOL:
            return values > 0
        return (values if x.dtype.floating else np.floor(values)).astype(x.dtype.numpy)

    return [one(x) for x in sample.inputs]


def sample_graph(op: Op, sample: Sample, *, fed: str = "all") -> tuple[Graph, dict[str, Any]]:
    """A graph of one node, and its feeds. `fed` = "all" feeds every input, "types" only those that the sample gives as
    types (the others become initialisers), "dynamic" passes every input through a cut whose size only the run knows."""
    g = GraphBuilder(op.name)
    names: list[str | None] = []
    feeds: dict[str, Any] = {}
    for i, (given, x) in enumerate(zip(sample.inputs, arrays(sample), strict=True)):
        if x is None:
            names.append(None)
        elif isinstance(given, Held):
            names.append(g.input(f"x{i}", given.type))
            feeds[f"x{i}"] = given.value
        elif fed == "types" and not isinstance(given, Tensor):
            names.append(g.const(x))
        else:
            name = g.input(f"x{i}", Tensor(DType.of(x.dtype), x.shape))
            feeds[name] = x
            if fed == "dynamic" and x.ndim and x.dtype != object:
                feeds[f"{name}_rows"] = np.ones(len(x), bool)
                name = _hidden(g, name, x)
            names.append(name)
    results = g.op(op.name, *names, domain=op.domain, outputs=sample.outputs, **sample.attrs)
    return g.graph([results] if sample.outputs == 1 else list(results)), feeds


def _hidden(g: GraphBuilder, name: str, x: Any) -> str:
    """The same elements under a first dim that inference cannot know: the rows where a fed mask is true (all)."""
    mask = g.input(f"{name}_rows", Tensor(DType.BOOL, (len(x),)))
    hidden: str = g.Gather(name, g.Squeeze(g.NonZero(mask), g.const([0])), axis=0)
    return hidden

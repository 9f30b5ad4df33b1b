"""A failing graph as lines of Python, for tests/regressions/."""

from __future__ import annotations

from typing import Any

import numpy as np

from mezzo.ops import DType
from mezzo.runtime.ir.graph import Graph, Node

from .maker import Array
from .search import Failure

TYPES = {DType.FLOAT: "f32", DType.INT64: "i64"}


def numbers(*shape: int) -> Array:
    """Floats that a shape alone tells, between -2 and 2 and none of them tiny."""
    rng = np.random.default_rng(list(shape))
    made: Array = (rng.uniform(0.1, 2.0, shape) * rng.choice((-1, 1), shape)).astype(np.float32)
    return made


def lines(failure: Failure) -> str:
    """A test of a few lines, with the seed and the switches that it was found under."""
    case, graph = failure.case, failure.case.graph
    what = f", {failure.property.__name__}" if failure.property else ""
    switches = ", ".join(f"{n}={v!r}" for n, v in failure.switches.given.items())
    body = [f"# seed {case.seed}{what}; Session({switches}): {failure.kind}: {failure.said.splitlines()[0][:160]}"]
    body.append("g = GraphBuilder()")
    names: dict[str, str] = {}
    for n in graph.inputs:
        names[n] = f"x{len(names)}"
        known = graph.types[n]
        dims = ", ".join(str(d) for d in getattr(known, "dims", ()) or ())
        dtype = getattr(known, "dtype", None)
        made = f"{TYPES[dtype]}({dims})" if dtype in TYPES else f"Tensor({dtype!r}, ({dims}{',' if dims else ''}))"
        body.append(f'{names[n]} = g.input("{names[n]}", {made})')
    body += [_line(node, names, graph) for node in graph.nodes]
    outputs = ", ".join(names[o] for o in graph.outputs)
    feeds = ", ".join(f'"{names[n]}": {_array(case.feeds[n])}' for n in graph.inputs)
    body.append(f"check(g.graph([{outputs}]), {{{feeds}}})")
    return "\n".join(f"    {line}" for line in body)


def _line(node: Node, names: dict[str, str], graph: Graph) -> str:
    def operand(n: str) -> str:
        if not n:
            return "None"
        return names[n] if n in names else _const(graph.initializers[n])

    given = [operand(i) for i in node.inputs]
    given += [f"{a}={v!r}" if not isinstance(v, Graph) else f"{a}=...  # {v}" for a, v in node.attrs.items()]
    if node.domain:
        given.append(f"domain={node.domain!r}")
    if len(node.outputs) > 1:
        given.append(f"outputs={len(node.outputs)}")
    made = []
    for i, o in enumerate(node.outputs):
        made.append(f"y{len(names)}" if o else f"_{i}")
        if o:
            names[o] = made[-1]
    known = node.op.isidentifier() and not node.domain and len(node.outputs) == 1
    call = f"g.{node.op}(" if known else f'g.op("{node.op}", '
    return f"{', '.join(made)} = {call}{', '.join(given)})"


def _drawn(x: Array) -> str:
    """The array as `numbers` makes it; empty if it does not."""
    if x.dtype == np.float32 and x.ndim:
        made, dims = numbers(*x.shape), ", ".join(map(str, x.shape))
        if np.array_equal(x, made):
            return f"numbers({dims})"
        if np.array_equal(x, abs(made)):
            return f"abs(numbers({dims}))"
    return ""


def _values(x: Array) -> str:
    if x.dtype.kind != "f":
        return str(x.tolist())
    return str(np.array([float(str(v)) for v in x.reshape(-1)], object).reshape(x.shape).tolist())


def _const(x: Any) -> str:
    dtype = DType.of(x.dtype)
    given = "" if dtype is DType.INT64 else f", {dtype!r}"
    return _drawn(x) or f"g.const({_values(x)}{given})"


def _array(x: Any) -> str:
    if not isinstance(x, np.ndarray):
        return repr(x)
    return _drawn(x) or f"np.array({_values(x)}, {str(DType.of(x.dtype))!r})"

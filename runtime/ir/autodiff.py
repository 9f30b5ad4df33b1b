"""Reverse-mode differentiation of graphs, by the gradient rules on the operators' records.

Linnainmaa 1970; here as in the MXNet paper (arXiv 1512.01274, section 3.1): the backward part is nodes of the same
graph, so that it is simplified, planned and exported like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...ops import OPS, DType, Op, Tensor, Type
from ...ops.core.broadcast import zeros_like
from ...ops.core.complexes import derived
from ...ops.errors import InputError, MezzoError, UnsupportedModel
from ...ops.types import differentiable
from .graph import Graph, Node
from .infer import TypedBody, infer
from .prune import prune
from .standard_form import expanded
from .typed import TypedBuilder

ONES = ""  # the gradient of a value to itself


def grad(graph: Graph, loss: str, wrt: Sequence[str]) -> Graph:
    """The graph with the gradient of `loss` to each value of `wrt` as further outputs, named `VALUE_grad`.

    `loss` names a floating tensor of the graph; where it has several elements, the gradient is that of their sum.
    `wrt` names inputs, initialisers or other values. The ranks of the values between must be known, their sizes need
    not be. A value that `loss` does not depend on gets zeros. Raises UnsupportedModel listing every operator on the
    way that has no derivative, and InputError for names that the graph does not have.

    >>> from mezzo.ops.types import f32
    >>> from mezzo.runtime.ir.graph import GraphBuilder
    >>> g = GraphBuilder()
    >>> x = g.input("x", f32("n"))
    >>> d = grad(g.graph([g.Exp(g.Neg(x))]), "Exp_1", ["x"])
    >>> print(d.outputs, d.types["x_grad"])
    ('Exp_1', 'x_grad') float32[n]
    """
    graph = infer(graph)
    for name in (loss, *wrt):
        if name not in graph.types:
            raise InputError(
                f"there is no value {name!r}", where=graph.name, hint="loss and wrt name values of the graph"
            )
        if not differentiable(graph.types[name]):
            raise InputError(f"{name!r} is {graph.types[name]}", where=graph.name, hint="only floats have gradients")
    taken = set(graph.types)
    g = TypedBuilder(graph.types, prefix=unused_name("grad/", taken))
    derivatives = gradients(g, graph.nodes, {loss: ONES}, wrt)
    names = {n: unused_name(f"{n}_grad", taken) for n in dict.fromkeys(wrt)}
    for n, name in names.items():
        value = derivatives.get(n) or zeros_like(g, n)
        g.add(Node("Identity", (value,), (name,), name=name))
    return prune(
        graph.but(
            nodes=g.nodes(),
            initializers={**graph.initializers, **g.constants()},
            types=g.types,
            outputs=(*graph.outputs, *(names[n] for n in wrt)),
        )
    ).verify()


def unused_name(stem: str, taken: set[str]) -> str:
    """A name (or a prefix) like this one that nothing has yet; it is taken then."""
    name, count = stem, 1
    while any(t == name or (stem.endswith("/") and t.startswith(name)) for t in taken):
        count += 1
        name = f"{stem[:-1]}{count}/" if stem.endswith("/") else f"{stem}{count}"
    taken.add(name)
    return name


def gradients(g: TypedBuilder, nodes: Sequence[Node], seeds: Mapping[str, str], wrt: Sequence[str]) -> dict[str, str]:
    """Add the nodes to `g`, and after them those of the gradients of `seeds` (value -> its gradient) to `wrt`.

    A seed of ONES stands for ones. Nodes that a gradient passes through may become their twins, or be written out as
    their bodies. Returns the gradients that arrive, by value. Raises UnsupportedModel listing every operator that has
    no derivative.
    """
    OPS.load()  # rules may stand in modules of their own
    g.differentiate = gradients
    forward, refused = [], []
    depends, leads = _dependants(g, nodes, wrt), _sources(nodes, seeds)
    for node in nodes:
        if depends.isdisjoint(node.outputs) or leads.isdisjoint(node.outputs):
            g.add(node, _known(g, node))
            continue
        prepared = _prepared(g, node, depends)
        if prepared is None:
            refused.append(node)
        else:
            forward += prepared
    if refused:
        hint = "freeze what lies before these nodes, or give the operators a rule (Op.grad)"
        names = [f"{n.domain or 'ai.onnx'}::{n.op}" for n in refused]
        raise UnsupportedModel(
            "no derivative: " + "; ".join(f"{op} at {n.place}" for op, n in zip(names, refused, strict=True)),
            hint=hint,
            parts=[
                UnsupportedModel(f"{op} has no derivative", where=n.place, hint=hint)
                for op, n in zip(names, refused, strict=True)
            ],
        )
    depends = _dependants(g, forward, wrt, depends)
    arrived = {v: [dy or g.Expand(g.scalar(1, v), g.shape_of(v))] for v, dy in seeds.items()}
    for node in reversed(forward):
        if not any(o in arrived for o in node.outputs):
            continue
        dys = [_collected(g, arrived, o) for o in node.outputs]
        for name, dx in _backward(g, node, dys, depends):
            arrived.setdefault(name, []).append(dx)
    return {v: total for v in dict.fromkeys(wrt) if (total := _collected(g, arrived, v)) is not None}


def has_derivative(node: Node, types: Mapping[str, Type]) -> bool:
    """True if gradients pass through a node whose values have these types: by a rule, a twin, or a standard form."""
    OPS.load()
    near = {n: types[n] for n in (*node.reads(), *node.outputs) if n in types}
    return node.record.derives([near.get(i) for i in node.inputs]) or (
        _prepared(TypedBuilder(near), node, set(node.reads())) is not None
    )


def _known(g: TypedBuilder, node: Node) -> list[Type] | None:
    """The types of a node's outputs, if it stood in the graph before; those of absent ones do not matter."""
    if any(o and o not in g.types for o in node.outputs):
        return None
    return [g.types.get(o) or Tensor(DType.FLOAT, None) for o in node.outputs]


def _collected(g: TypedBuilder, arrived: dict[str, list[str]], name: str) -> str | None:
    """The whole gradient of a value: what arrived over all its uses."""
    parts = arrived.get(name)
    if not name or not parts:
        return None
    if len(parts) > 1:
        arrived[name] = parts = [g.total(parts)]
    return parts[0]


def _dependants(g: TypedBuilder, nodes: Iterable[Node], wrt: Iterable[str], known: Iterable[str] = ()) -> set[str]:
    """The values that the values `wrt` reach through floats."""
    reached = {*wrt, *known}
    for node in nodes:
        if not reached.isdisjoint(node.reads()):
            reached.update(o for o in node.outputs if o and (o not in g.types or differentiable(g.types[o])))
    return reached


def _sources(nodes: Sequence[Node], seeds: Iterable[str]) -> set[str]:
    """The values that lead to the seeds."""
    needed = set(seeds)
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            needed.update(node.outputs, node.reads())
    return needed - {""}


def _prepared(g: TypedBuilder, node: Node, depends: set[str]) -> list[Node] | None:
    """Add what runs forward in place of a node: itself, its twin, or its body; returns the nodes that gradients pass
    through. None if it has no derivative. `depends` names the values that have gradients."""
    record = node.record
    types = [g.types[i] if i else None for i in node.inputs]
    twin = record.twin_rule(types, node.wanted, **_bound(g, node)) if record.twin_rule else None
    if twin is not None:
        stem = next(filter(None, node.outputs))
        outputs = [
            node.outputs[i] if i < len(node.outputs) and node.outputs[i] else f"{g.prefix}{stem}:{i}"
            for i in range(twin.outputs)
        ]
        node = replace(node, op=twin.op, domain=twin.domain, attrs=twin.attrs, outputs=tuple(outputs))
        if node.record.grad_rule is not None:
            g.add(node)
            return [node]
        record = node.record
    if record.derives(types):
        g.add(node, _known(g, node))
        return [node]
    body = expanded(node, g.types)
    if body is None:
        return None
    parts, constants = body
    for name, array in constants.items():
        g.hold(name, array)
    forward: list[Node] = []
    inside = set(depends)
    for part in parts:
        results = g.scope.node(part)
        if inside.isdisjoint(part.reads()) or not any(map(differentiable, results)):
            g.add(part, results)
            continue
        inner = _prepared(g, part, inside)
        if inner is None:
            return None
        forward += inner
        inside.update(o for o in part.outputs if o)
    return forward


def _backward(g: TypedBuilder, node: Node, dys: Sequence[str | None], depends: set[str]) -> list[tuple[str, str]]:
    """Add the gradient of one node; returns the gradients of values, by name."""
    record = node.record
    xs = padded(record, node.inputs)
    ys = [o or None for o in node.outputs]
    inside = dict.fromkeys(n for body in node.bodies.values() for n in body.captures())
    captured = tuple(n for n in inside if n in depends and differentiable(g.types[n]))
    wants = tuple(x in depends and differentiable(g.types[x]) if x else False for x in xs)
    kept, g.captured, g.wants = (g.captured, g.where, g.device), captured, wants
    g.device = node.device
    g.where = g.where or f"the gradient of {node.place}"
    try:
        dxs = derived(record, g, _filled(record, dys), _filled(record, ys), xs, **_bound(g, node))
    except MezzoError as error:
        raise error.at(f"the gradient of {node.place}") from error.__cause__
    finally:
        g.captured, g.where, g.device = kept
    pairs: list[tuple[str, str]] = []
    for i, (x, dx) in enumerate(zip((*xs, *captured), dxs, strict=True)):
        if x is None or dx is None or (i < len(wants) and not wants[i]):
            continue
        if record.tree is not None and len(xs) > 1:  # broadcast inputs; a single one is not
            dx = g.sum_to(dx, x)
        known, slope = g.types[x], g.types[dx]
        if isinstance(known, Tensor) and isinstance(slope, Tensor):  # a gradient has the shape of its value
            g.types[dx] = Tensor(slope.dtype, known.dims if known.dims is not None else slope.dims, slope.value)
        elif not isinstance(known, Tensor):
            g.types[dx] = known
        pairs.append((x, dx))
    return pairs


def _bound(g: TypedBuilder, node: Node) -> dict[str, Any]:
    """The attributes as rules take them: bodies infer in the scope of `g`."""
    return node.record.bind({**node.attrs, **{a: TypedBody(b, g.scope) for a, b in node.bodies.items()}})


def padded(record: Op, inputs: Sequence[Any]) -> list[Any]:
    """The inputs as a rule takes them: None where one is absent."""
    operands = [x if x is not None and (not isinstance(x, str) or x) else None for x in inputs]
    if not any(p.variadic for p in record.inputs):
        operands += [None] * (len(record.inputs) - len(operands))
    return operands


def _filled(record: Op, values: Sequence[Any]) -> list[Any]:
    """The outputs, or their gradients, as a rule takes them: None where one is absent."""
    missing = 0 if any(p.variadic for p in record.outputs) else len(record.outputs) - len(values)
    return [*values, *[None] * missing]

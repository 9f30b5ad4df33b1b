"""The training step: forward, loss, backward, clipping and update in one graph with states, planned like any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..ops import DType, Tensor
from ..ops.errors import InputError
from ..ops.training.exchange import AWAIT, DOMAIN, EMIT, SUM_ROWS
from ..ops.types import Array
from ..runtime.ir.autodiff import ONES, gradients, unused_name
from ..runtime.ir.graph import Graph, Node, State
from ..runtime.ir.infer import infer
from ..runtime.ir.prune import prune
from ..runtime.ir.row_gradients import as_rows, makers_of, reads_of
from ..runtime.ir.typed import TypedBuilder
from ..runtime.passes.place import spread
from .building import (
    COUNT,
    NORM,
    SCALE,
    SHARE,
    Build,
    Held,
    Shared,
    Step,
    clipped,
    dtype_of,
    gathered,
    unscaled,
    update,
    with_rate,
)
from .micro import Micro
from .order import soon
from .recompute import made_again
from .sharded import sharded, with_layout

MANY = 1024  # rows: a smaller table is stepped whole as fast


def training_step(
    graph: Graph,
    loss: str,
    params: Sequence[str],
    step: Step,
    *,
    updates: bool = True,
    again: Callable[[Node], bool] | None = None,
) -> Graph:
    """The graph that trains: its states are the parameters, those of the optimizer and those of the model.

    `loss` names a scalar of the graph, `params` the initialisers to learn. A run returns the graph's outputs and moves
    the parameters. With `updates=False` it only adds its gradients to the gathered ones (see `Step.gather`): that
    graph has the same states. `again` tells which operators may run a second time for the backward part (see
    recompute.py). Raises UnsupportedModel listing every operator between them without a derivative,
    and InputError for names that are not in the graph.
    """
    graph = _with_parameters(graph, loss, params)
    taken = set(graph.types)
    g = TypedBuilder(graph.types, prefix=unused_name("train/", taken))
    build = Build(g)
    for p in params:
        build.state(p, graph.initializers[p])
    count = build.state(COUNT, np.int64(0))
    scale = build.state(SCALE, np.float32(step.scaling.first)) if step.scaling else None
    t = g.Cast(count, to=DType.DOUBLE.onnx)
    if step.shared is None or not step.shared.on_store:
        step = with_rate(build, step)
    seed, micro = ONES, None
    if step.micro_batches > 1:
        assert step.samples is not None
        micro = Micro(g, graph, loss, step.micro_batches, step.samples)
    if scale is not None:
        seed = g.Cast(scale, to=dtype_of(g, loss).onnx)
    if step.shared is not None and step.shared.workers > 1:  # what the workers' gradients add up to is their mean
        part = 1 / step.shared.workers
        if step.shared.collective:
            share = g.Cast(build.state(SHARE, np.float64(part)), to=dtype_of(g, loss).onnx)
        else:
            share = g.scalar(part, loss)
        seed = g.Expand(share, g.shape_of(loss)) if seed is ONES else g.Mul(seed, share)
    if micro is not None:
        batch_grads = micro.gradients(params, None if seed is ONES else seed)
        graph = micro.graph
    else:
        batch_grads = gradients(g, graph.nodes, {loss: seed}, params)
    lost = [p for p in params if p not in batch_grads]
    if lost:
        raise InputError(
            f"the loss does not depend on {', '.join(lost)}", where=graph.name, hint="freeze these parameters"
        )
    batch_grads, ids = _in_rows(build, step, batch_grads, updates)
    shards = sharded(build, step, batch_grads) if step.shared is not None and step.shared.collective else None
    if shards is not None:
        shards.add(params, batch_grads, scale, t, updates)
        grads = {}
    else:
        grads = gathered(build, step, params, batch_grads, updates)
    if updates and step.shared is not None and shards is None:
        grads, ids = _exchanged(build, step.shared, grads, batch_grads, ids)
    if updates and grads:
        grads, finite = unscaled(build, step, scale, grads)
        if step.norm:
            g.add(Node("TotalNorm", (*grads.values(),), (NORM,), {}, domain="mezzo", name=NORM))
        update(build, step, params, clipped(g, step, grads), t, finite, ids)
    elif updates and shards is None:
        build.after[COUNT] = g.Add(COUNT, g.const(1))
    states = [*graph.states, *(State(n, n, after) for n, after in build.after.items())]
    nodes = made_again(g.nodes(), loss, again) if again else g.nodes()
    nodes = nodes if micro is None else micro.ordered(nodes)
    outputs = (*graph.outputs, *([NORM] if NORM in g.types else []))
    whole = prune(
        graph.but(
            outputs=outputs,
            nodes=soon(
                nodes,
                {s.input: s.output for s in states},
                set(build.after.values()),
                set(batch_grads.values()),
                overlap=step.shared is None or step.shared.overlap,
            ),
            initializers={**graph.initializers, **g.constants(), **build.first},
            states=tuple(states),
            types=g.types,
        )
    ).verify()
    return with_layout(whole, shards.layout) if shards is not None else whole


def ids_of(gradient: str) -> str:
    """The name of the numbers of rows of a gradient."""
    return f"{gradient}:ids"


def update_graph(
    params: Mapping[str, Array],
    step: Step,
    gradient: Callable[[str], str],
    sparse: Sequence[str] = (),
    missed: Mapping[str, int] | None = None,
) -> Graph:
    """The graph that updates parameters by gradients which lie in states of their own, named by `gradient`; its input
    `scale` is what they are multiplied with first, and `rate` the rate, unless a schedule of the optimizer tells it.
    Its states are the parameters, the gradients, and the optimizer's. The gradients of `sparse` are rows, and inputs
    with their numbers (`ids_of`), of any number. They are stepped alone where that is the same, or asked for.
    `missed` tells how many updates a parameter has not had: its own number of this one is so much less.
    """
    g = TypedBuilder(prefix="train/")
    build = Build(g)
    ids: dict[str, str] = {}
    for i, (p, value) in enumerate(params.items()):
        build.state(p, value)
        if p in sparse:
            known = f"rows {i}"
            ids[p] = g.input(ids_of(gradient(p)), Tensor(DType.INT64, (known,)))
            g.input(gradient(p), Tensor(DType.of(value.dtype), (known, *value.shape[1:])))
        else:
            build.state(gradient(p), np.zeros_like(value))
    count = build.state(COUNT, np.int64(0))
    scale, inputs = g.input("scale", Tensor(DType.DOUBLE, ())), ["scale", *ids.values(), *map(gradient, ids)]
    loss_scale = build.state(SCALE, np.float32(step.scaling.first)) if step.scaling else None
    if isinstance(step.optimizer.rate, int | float):
        inputs.append(g.input("rate", Tensor(DType.DOUBLE, ())))
        step = replace(step, optimizer=replace(step.optimizer, rate=Held(inputs[-1])))
    t = g.Cast(count, to=DType.DOUBLE.onnx)
    grads = {p: g.Mul(gradient(p), g.Cast(scale, to=dtype_of(g, p).onnx)) for p in params}
    grads, finite = unscaled(build, step, loss_scale, grads)
    grads = clipped(g, step, grads)
    for p in [*ids]:
        optimizer = step.optimizer.of(p)
        if not (optimizer.lazy_update or optimizer.still):
            grads[p] = _whole(g, p, ids.pop(p), grads[p])
    update(build, step, list(params), grads, t, finite, ids, missed)
    states = tuple(State(n, n, after) for n, after in build.after.items())
    return prune(
        Graph(tuple(inputs), (), g.nodes(), {**g.constants(), **build.first}, g.types, states, name="update")
    ).verify()


def _whole(g: TypedBuilder, p: str, ids: str, rows: str) -> str:
    """The table of which these are rows; behind its last one comes what is no row."""
    known = g.type_of(p)
    assert isinstance(known, Tensor)
    size, *dims = known.sizes
    zeros = g.Expand(g.scalar(0, p), g.const([size + 1, *dims]))
    table = g.ScatterND(zeros, g.Unsqueeze(ids, g.const([-1])), rows)
    whole: str = g.Slice(table, g.const([0]), g.const([size]), g.const([0]))
    return whole


def _with_parameters(graph: Graph, loss: str, params: Sequence[str]) -> Graph:
    """The typed graph, in which the elements of parameters are not known: they will change."""
    unknown = [n for n in params if n not in graph.initializers]
    if unknown:
        raise InputError(
            f"there is no initialiser {unknown[0]!r}", where=graph.name, hint="parameters are initialisers"
        )
    states = tuple(State(p, p, p) for p in params)
    typed = infer(graph.but(states=(*graph.states, *states)))
    if loss not in typed.types:
        raise InputError(f"there is no value {loss!r}", where=graph.name, hint="loss names a value of the graph")
    known = typed.types[loss]
    if not isinstance(known, Tensor) or not known.dtype.floating:
        raise InputError(f"the loss {loss!r} is {known}", where=graph.name, hint="a loss is a floating number")
    return spread(typed.but(states=graph.states))  # what goes back through a node is where the node is


def _in_rows(
    build: Build, step: Step, batch_grads: Mapping[str, str], updates: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """The gradients, of which some are rows now: those of tables that are stepped at the rows that were read; and the
    numbers of these rows, by parameter. Behind the last one they are zeros, which change no norm.

    Gradients that are gathered over several batches are sums of whole tables, and states tell which rows were read.
    """
    g, grads, ids = build.g, dict(batch_grads), dict[str, str]()
    makers = makers_of(g)
    for p, dw in batch_grads.items():
        reads = reads_of(g, dw, makers)
        if reads is None:
            continue
        optimizer, size = step.optimizer.of(p), len(build.first[p])
        if optimizer.lazy_update and step.gather > 1:
            touched = build.state(f"optimizer/touched/{p}", np.zeros(size, np.bool_))
            now = touched
            for node in reads:
                places = g.Unsqueeze(node.inputs[1], g.const([-1]))
                now = g.ScatterND(now, places, g.Expand(g.const(True), g.shape_of(node.inputs[1])))
            build.after[touched] = g.Expand(g.const(False), g.const([size])) if updates else now
            ids[p] = g.Where(now, g.const(np.arange(size)), g.const(size))
        elif optimizer.lazy_update or (
            step.rows and step.gather == 1 and step.shared is None and size >= MANY and optimizer.still
        ):
            ids[p], grads[p] = as_rows(g, dw, reads)
    return grads, ids


def _alone(step: Step) -> bool:
    """True if a gradient goes from the backward part straight to its update, with no sum of whole tables in between."""
    return step.gather == 1 and step.shared is None


def _exchanged(
    build: Build, shared: Shared, grads: Mapping[str, str], batch_grads: Mapping[str, str], ids: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """The gradients of all workers together, and the numbers of the rows of some; none where the store updates the
    parameters. They are awaited in the order in which they are emitted, and rows behind them."""
    g = build.g
    order = {o: i for i, n in enumerate(g.nodes()) for o in n.outputs}
    first = sorted((p for p in grads if p not in ids), key=lambda p: order[batch_grads[p]])
    sent = {p: g.op(EMIT, grads[p], domain=DOMAIN, key=p) for p in first}
    if shared.on_store:
        for p in first:
            build.after[p] = g.op(AWAIT, p, sent[p], domain=DOMAIN, key=p)
    whole = {} if shared.on_store else {p: g.op(AWAIT, sent[p], domain=DOMAIN, key=p) for p in first}
    numbers: dict[str, str] = {}
    for p, rows in ids.items():
        about = {"key": p, "size": len(build.first[p]), "workers": shared.workers}
        numbers[p], whole[p] = g.op(SUM_ROWS, rows, grads[p], domain=DOMAIN, outputs=2, **about)
        if shared.on_store:  # these are the rows as the store has stepped them
            build.after[p] = g.op("UpdateRows", p, numbers[p], whole[p], g.scalar(0, p), domain=DOMAIN, rule="-> dW")
    if shared.on_store:
        return {}, {}
    return {p: whole[p] for p in grads}, numbers

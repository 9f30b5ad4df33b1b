"""The training step: forward, loss, backward, clipping and update in one graph with states, planned like any other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..ops import DType, Tensor
from ..ops.errors import InputError
from ..ops.op import Builder, Value
from ..ops.training.exchange import AWAIT, DOMAIN, EMIT, SUM_ROWS
from ..ops.types import Array
from ..runtime.ir.autodiff import ONES, fresh, gradients
from ..runtime.ir.graph import Graph, Node, State
from ..runtime.ir.infer import infer
from ..runtime.ir.prune import prune
from ..runtime.ir.row_gradients import as_rows, makers_of, reads_of
from ..runtime.ir.typed import TypedBuilder
from ..runtime.optimizer import Optimizer
from ..runtime.optimizer.record import states_of
from ..runtime.optimizer.schedule import Schedule
from .order import soon
from .recompute import made_again

COUNT, SCALE, RATE = "optimizer/updates", "optimizer/scale", "optimizer/rate"  # names of states
NORM = "train/norm"  # name of an output
MANY = 1024  # rows: a smaller table is stepped whole as fast


@dataclass(frozen=True, slots=True)
class Scaling:
    """Loss scaling for gradients in float16 (Micikevicius et al. 2017, arXiv 1710.03740): the loss is multiplied by a
    scale that halves when a gradient overflows (that update is skipped) and doubles after `patience` good updates."""

    first: float = 65536.0
    factor: float = 2.0
    patience: int = 2000


@dataclass(frozen=True, slots=True)
class Shared:
    """A step of `workers`, each with its share of the batch. The shares are equal, so that the mean of the workers'
    gradients is the gradient of the whole batch (1: each worker's push is an update by itself).

    With `on_store` the optimizer runs where the store keeps the parameters: gradients go there, parameters come back.
    Without `overlap` gradients travel when the backward part is done, as measurements want it.
    """

    workers: int
    on_store: bool = False
    overlap: bool = True


@dataclass(frozen=True, slots=True)
class Step:
    """Settings of a training step besides forward and backward.

    `clip_norm` bounds the norm of all gradients together, `clip_value` each of their elements. `gather` is how many
    batches one update takes: the gradients of the others are summed in states, and their mean counts. `shared` splits
    the step by Emit and Await, with the parameters' names as keys (see ops/training/exchange.py). `norm` makes the norm
    of all gradients together an output. A large table that only Gather reads is stepped at the rows that were read,
    where that is the same (unless `rows` is False) or the optimizer is lazy.
    """

    optimizer: Optimizer
    clip_norm: float | None = None
    clip_value: float | None = None
    gather: int = 1
    scaling: Scaling | None = None
    shared: Shared | None = None
    norm: bool = False
    rows: bool = True

    def __post_init__(self) -> None:
        if self.optimizer.lazy_update and not self.optimizer.elementwise:
            raise InputError(
                f"{self.optimizer.kind} measures whole tensors, of which lazy_update steps some rows",
                where="optimizer",
                hint="leave out lazy_update",
            )
        if self.shared is None or not self.shared.on_store:
            return
        whole = {"clip_norm": self.clip_norm, "clip_value": self.clip_value, "float16 (loss scaling)": self.scaling}
        for what, given in whole.items():
            if given is not None:
                raise InputError(
                    f"{what} looks at the gradients of all workers together, which no worker sees when the optimizer "
                    "runs on the store",
                    where="update_on_kvstore=True",
                    hint="leave it out, or let the workers update: update_on_kvstore=False",
                )


@dataclass(slots=True)
class _Build:
    """A graph under construction: the builder, the states with their first values, and the new value of each."""

    g: TypedBuilder
    first: dict[str, Array] = field(default_factory=dict[str, Array])
    after: dict[str, str] = field(default_factory=dict[str, str])

    def state(self, name: str, value: Any) -> str:
        """Declare a state; until `after` says otherwise it stays as it is."""
        array = np.asarray(value)
        self.first[name] = array
        self.after[name] = name
        self.g.types[name] = Tensor(DType.of(array.dtype), array.shape)
        return name


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
    g = TypedBuilder(graph.types, prefix=fresh("train/", taken))
    made = _Build(g)
    for p in params:
        made.state(p, graph.initializers[p])
    count = made.state(COUNT, np.int64(0))
    scale = made.state(SCALE, np.float32(step.scaling.first)) if step.scaling else None
    t = g.Cast(count, to=DType.DOUBLE.onnx)
    if step.shared is None or not step.shared.on_store:
        step = _with_rate(made, step)
    seed = ONES
    if scale is not None:
        seed = g.Cast(scale, to=_dtype(g, loss).onnx)
    if step.shared is not None and step.shared.workers > 1:  # what the workers' gradients add up to is their mean
        share = g.scalar(1 / step.shared.workers, loss)
        seed = g.Expand(share, g.shape_of(loss)) if seed is ONES else g.Mul(seed, share)
    found = gradients(g, graph.nodes, {loss: seed}, params)
    lost = [p for p in params if p not in found]
    if lost:
        raise InputError(
            f"the loss does not depend on {', '.join(lost)}", where=graph.name, hint="freeze these parameters"
        )
    found, ids = _in_rows(made, step, found, updates)
    grads = _gathered(made, step, params, found, updates)
    if updates and step.shared is not None:
        grads, ids = _exchanged(made, step.shared, grads, found, ids)
    if updates and grads:
        grads, finite = _unscaled(made, step, scale, grads)
        if step.norm:
            g.add(Node("TotalNorm", (*grads.values(),), (NORM,), {}, domain="mezzo", name=NORM))
        _update(made, step, params, _clipped(g, step, grads), t, finite, ids)
    elif updates:
        made.after[COUNT] = g.Add(COUNT, g.const(1))
    states = [*graph.states, *(State(n, n, after) for n, after in made.after.items())]
    nodes = made_again(g.nodes(), loss, again) if again else g.nodes()
    outputs = (*graph.outputs, *([NORM] if NORM in g.types else []))
    return prune(
        graph.but(
            outputs=outputs,
            nodes=soon(
                nodes,
                {s.input: s.output for s in states},
                set(made.after.values()),
                set(found.values()),
                overlap=step.shared is None or step.shared.overlap,
            ),
            initializers={**graph.initializers, **g.constants(), **made.first},
            states=tuple(states),
            types=g.types,
        )
    ).verify()


def ids_of(gradient: str) -> str:
    """The name of the numbers of rows of a gradient."""
    return f"{gradient}:ids"


def update_graph(
    params: Mapping[str, Array], step: Step, gradient: Callable[[str], str], sparse: Sequence[str] = ()
) -> Graph:
    """The graph that updates parameters by gradients which lie in states of their own, named by `gradient`; its input
    `scale` is what they are multiplied with first, and `rate` the rate, unless a schedule of the optimizer tells it.
    Its states are the parameters, the gradients, and the optimizer's. The gradients of `sparse` are rows, and inputs
    with their numbers (`ids_of`), of any number. They are stepped alone where that is the same, or asked for.
    """
    g = TypedBuilder(prefix="train/")
    made = _Build(g)
    ids: dict[str, str] = {}
    for i, (p, value) in enumerate(params.items()):
        made.state(p, value)
        if p in sparse:
            known = f"rows {i}"
            ids[p] = g.input(ids_of(gradient(p)), Tensor(DType.INT64, (known,)))
            g.input(gradient(p), Tensor(DType.of(value.dtype), (known, *value.shape[1:])))
        else:
            made.state(gradient(p), np.zeros_like(value))
    count = made.state(COUNT, np.int64(0))
    scale, inputs = g.input("scale", Tensor(DType.DOUBLE, ())), ["scale", *ids.values(), *map(gradient, ids)]
    loss_scale = made.state(SCALE, np.float32(step.scaling.first)) if step.scaling else None
    if isinstance(step.optimizer.rate, int | float):
        inputs.append(g.input("rate", Tensor(DType.DOUBLE, ())))
        step = replace(step, optimizer=replace(step.optimizer, rate=Held(inputs[-1])))
    t = g.Cast(count, to=DType.DOUBLE.onnx)
    grads = {p: g.Mul(gradient(p), g.Cast(scale, to=_dtype(g, p).onnx)) for p in params}
    grads, finite = _unscaled(made, step, loss_scale, grads)
    grads = _clipped(g, step, grads)
    for p in [*ids]:
        optimizer = step.optimizer.of(p)
        if not (optimizer.lazy_update or optimizer.still):
            grads[p] = _whole(g, p, ids.pop(p), grads[p])
    _update(made, step, list(params), grads, t, finite, ids)
    states = tuple(State(n, n, after) for n, after in made.after.items())
    return prune(
        Graph(tuple(inputs), (), g.nodes(), {**g.constants(), **made.first}, g.types, states, name="update")
    ).verify()


def _whole(g: TypedBuilder, p: str, ids: str, rows: str) -> str:
    """The table of which these are rows; behind its last one comes what is no row."""
    known = g.type_of(p)
    assert isinstance(known, Tensor)
    size, *rest = known.sizes
    zeros = g.Expand(g.scalar(0, p), g.const([size + 1, *rest]))
    table = g.ScatterND(zeros, g.Unsqueeze(ids, g.const([-1])), rows)
    whole: str = g.Slice(table, g.const([0]), g.const([size]), g.const([0]))
    return whole


def _dtype(g: TypedBuilder, name: str) -> DType:
    known = g.type_of(name)
    assert isinstance(known, Tensor)
    return known.dtype


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
    return typed.but(states=graph.states)


def _in_rows(
    made: _Build, step: Step, found: Mapping[str, str], updates: bool
) -> tuple[dict[str, str], dict[str, str]]:
    """The gradients, of which some are rows now: those of tables that are stepped at the rows that were read; and the
    numbers of these rows, by parameter. Behind the last one they are zeros, which change no norm.

    Gradients that are gathered over several batches are sums of whole tables, and states tell which rows were read.
    """
    g, grads, ids = made.g, dict(found), dict[str, str]()
    makers = makers_of(g)
    for p, dw in found.items():
        reads = reads_of(g, dw, makers)
        if reads is None:
            continue
        optimizer, size = step.optimizer.of(p), len(made.first[p])
        if optimizer.lazy_update and step.gather > 1:
            touched = made.state(f"optimizer/touched/{p}", np.zeros(size, np.bool_))
            now = touched
            for node in reads:
                places = g.Unsqueeze(node.inputs[1], g.const([-1]))
                now = g.ScatterND(now, places, g.Expand(g.const(True), g.shape_of(node.inputs[1])))
            made.after[touched] = g.Expand(g.const(False), g.const([size])) if updates else now
            ids[p] = g.Where(now, g.const(np.arange(size)), g.const(size))
        elif optimizer.lazy_update or (
            step.rows and step.gather == 1 and step.shared is None and size >= MANY and optimizer.still
        ):
            ids[p], grads[p] = as_rows(g, dw, reads)
    return grads, ids


def _alone(step: Step) -> bool:
    """True if a gradient goes from the backward part straight to its update, with no sum of whole tables in between."""
    return step.gather == 1 and step.shared is None


def _gathered(
    made: _Build, step: Step, params: Sequence[str], found: Mapping[str, str], updates: bool
) -> dict[str, str]:
    """The gradients of all batches of one update: their mean."""
    if step.gather == 1:
        return dict(found)
    g, grads = made.g, dict[str, str]()
    for p in params:
        held = made.state(f"optimizer/gathered/{p}", np.zeros_like(made.first[p]))
        total = g.Add(held, found[p])
        made.after[held] = g.Expand(g.scalar(0, p), g.shape_of(p)) if updates else total
        grads[p] = g.Mul(total, g.scalar(1 / step.gather, p)) if updates else total
    return grads


def _exchanged(
    made: _Build, shared: Shared, grads: Mapping[str, str], found: Mapping[str, str], ids: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """The gradients of all workers together, and the numbers of the rows of some; none where the store updates the
    parameters. They are awaited in the order in which they are emitted, and rows behind them."""
    g = made.g
    order = {o: i for i, n in enumerate(g.nodes()) for o in n.outputs}
    first = sorted((p for p in grads if p not in ids), key=lambda p: order[found[p]])
    sent = {p: g.op(EMIT, grads[p], domain=DOMAIN, key=p) for p in first}
    if shared.on_store:
        for p in first:
            made.after[p] = g.op(AWAIT, p, sent[p], domain=DOMAIN, key=p)
    whole = {} if shared.on_store else {p: g.op(AWAIT, sent[p], domain=DOMAIN, key=p) for p in first}
    numbers: dict[str, str] = {}
    for p, rows in ids.items():
        about = {"key": p, "size": len(made.first[p]), "workers": shared.workers}
        numbers[p], whole[p] = g.op(SUM_ROWS, rows, grads[p], domain=DOMAIN, outputs=2, **about)
        if shared.on_store:  # these are the rows as the store has stepped them
            made.after[p] = g.op("UpdateRows", p, numbers[p], whole[p], g.scalar(0, p), domain=DOMAIN, rule="-> dW")
    if shared.on_store:
        return {}, {}
    return {p: whole[p] for p in grads}, numbers


def _unscaled(
    made: _Build, step: Step, scale: str | None, grads: Mapping[str, str]
) -> tuple[dict[str, str], str | None]:
    """The gradients without the loss scale, and whether all of them are finite; the scale's next value."""
    if scale is None or step.scaling is None:
        return dict(grads), None
    g, s = made.g, step.scaling
    sums = [g.ReduceSum(g.Mul(dw, g.scalar(0, dw)), keepdims=0) for dw in grads.values()]  # NaN where one is not finite
    finite = g.Not(g.IsNaN(g.Sum(*(g.Cast(x, to=DType.FLOAT.onnx) for x in sums))))
    good = made.state("optimizer/good", np.int64(0))
    more = g.Add(good, g.const(1))
    patient = g.GreaterOrEqual(more, g.const(s.patience))
    grown = g.Where(patient, g.Mul(scale, g.const(s.factor, DType.FLOAT)), scale)
    shrunk = g.Mul(scale, g.const(1 / s.factor, DType.FLOAT))
    made.after[scale] = g.Where(finite, grown, shrunk)
    made.after[good] = g.Where(g.And(finite, g.Not(patient)), more, g.const(0))
    inverse = g.Reciprocal(scale)
    return {p: g.Mul(dw, g.Cast(inverse, to=_dtype(g, dw).onnx)) for p, dw in grads.items()}, finite


@dataclass(frozen=True, slots=True)
class Held:
    """A learning rate that is a value of the graph, or a schedule's rate times that value."""

    value: str
    schedule: Schedule | None = None

    def rate(self, g: Builder, t: Value) -> Value:
        return self.value if self.schedule is None else g.Mul(self.schedule.rate(g, t), self.value)


def _with_rate(made: _Build, step: Step) -> Step:
    """The step whose rate is a state: a constant one itself, else a factor of what the schedule says."""
    rate = step.optimizer.rate
    first, schedule = (float(rate), None) if isinstance(rate, int | float) else (1.0, rate)
    held = Held(made.state(RATE, np.float64(first)), schedule)
    return replace(step, optimizer=replace(step.optimizer, rate=held))


def _clipped(g: TypedBuilder, step: Step, grads: Mapping[str, str]) -> dict[str, str]:
    """The gradients within their bounds (Pascanu, Mikolov and Bengio 2012, arXiv 1211.5063)."""
    made = dict(grads)
    if step.clip_value is not None:
        made = {p: g.Clip(dw, g.scalar(-step.clip_value, dw), g.scalar(step.clip_value, dw)) for p, dw in made.items()}
    if step.clip_norm is not None:
        norm = g.op("TotalNorm", *made.values(), domain="mezzo")
        wide = _dtype(g, norm)
        share = g.Div(g.const(step.clip_norm, wide), g.Add(norm, g.const(1e-6, wide)))
        share = g.Min(share, g.const(1.0, wide))
        made = {p: g.Mul(dw, g.Cast(share, to=_dtype(g, dw).onnx)) for p, dw in made.items()}
    return made


def _update(
    made: _Build,
    step: Step,
    params: Sequence[str],
    grads: Mapping[str, str],
    t: str,
    finite: str | None,
    ids: Mapping[str, str],
) -> None:
    """Add the optimizer's operator for each parameter; `ids` tell which rows the gradients of some are of."""
    g, optimizer = made.g, step.optimizer
    rate, *numbers = optimizer.numbers_at(g, t)
    cast: dict[tuple[str, DType], str] = {}

    def number(value: str, dtype: DType) -> str:
        if (value, dtype) not in cast:
            cast[value, dtype] = g.Cast(value, to=dtype.onnx)
        return cast[value, dtype]

    scaled = {1.0: rate}
    for p in params:
        scale, dtype = optimizer.group(p).scale, _dtype(g, p)
        if scale not in scaled:
            scaled[scale] = g.Mul(rate, g.const(scale, DType.DOUBLE))
        first = states_of(optimizer, made.first[p])
        slots = [made.state(f"optimizer/{s}/{p}", value) for s, value in first.items()]
        given = [number(v, dtype) for v in (scaled[scale], *numbers)]
        g.where = f"the update of {p!r}"
        draws = [g.RandomNormalLike(grads[p]) for _ in range(optimizer.draws)]
        rows = ids.get(p)
        if rows is not None and finite is not None:  # no row is stepped by what is not finite
            rows = g.Where(finite, rows, g.const(len(made.first[p])))
        results = optimizer.of(p).add(g, p, grads[p], given, draws, slots, rows)
        g.where = ""
        for name, value in zip((p, *slots), results, strict=True):
            made.after[name] = value if finite is None or rows is not None else g.Where(finite, value, name)
    more = g.Add(COUNT, g.const(1))
    made.after[COUNT] = more if finite is None else g.Where(finite, more, COUNT)

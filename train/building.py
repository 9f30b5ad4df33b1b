"""The parts of training steps: their settings, states under construction, and what happens to gradients until the
update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..ops import DType, Tensor
from ..ops.errors import InputError
from ..ops.op import Builder, Value
from ..ops.types import Array
from ..runtime.ir.typed import TypedBuilder
from ..runtime.optimizer import Optimizer
from ..runtime.optimizer.record import states_of
from ..runtime.optimizer.schedule import Schedule
from .shares import Samples

COUNT, SCALE, RATE = "optimizer/updates", "optimizer/scale", "optimizer/rate"  # names of states
SHARE = "train/share"  # name of a state
NORM = "train/norm"  # name of an output


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

    With `collective` gradients travel over a communicator, in flat buckets (of `most` bytes, 0: by their sizes; see
    buckets.py), as `wire` if that is given, and shares may differ: a state (SHARE) has this worker's part of the batch.
    `zero` shares out what the workers keep, and this is worker `rank`: 1 the optimizer's states, 2 the sums of
    gradients too (sharded.py).
    """

    workers: int
    on_store: bool = False
    overlap: bool = True
    collective: bool = False
    most: int = 0
    wire: DType | None = None
    zero: int = 0
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """Settings of a training step besides forward and backward.

    `clip_norm` bounds the norm of all gradients together, `clip_value` each of their elements. `gather` is how many
    batches one update takes: the gradients of the others are summed in states, and their mean counts. `shared` splits
    the step by Emit and Await, with the parameters' names as keys (see ops/training/exchange.py). `norm` makes the norm
    of all gradients together an output. A large table that only Gather reads is stepped at the rows that were read,
    where that is the same (unless `rows` is False) or the optimizer is lazy. Each batch is taken in `micro_batches`,
    one behind the other (micro.py), along the axes of `samples`.
    """

    optimizer: Optimizer
    clip_norm: float | None = None
    clip_value: float | None = None
    gather: int = 1
    scaling: Scaling | None = None
    shared: Shared | None = None
    norm: bool = False
    rows: bool = True
    micro_batches: int = 1
    samples: Samples | None = None

    def __post_init__(self) -> None:
        for name, bound in (("clip_norm", self.clip_norm), ("clip_value", self.clip_value)):
            if bound is not None and not bound > 0:
                raise InputError(f"{name}={bound!r}", where="Trainer", hint="a number above 0; None bounds nothing")
        gather: Any = self.gather
        if not isinstance(gather, int) or gather < 1:
            raise InputError(
                f"gather={self.gather!r}", where="Trainer", hint="how many calls make an update: 1, 2, ..."
            )
        if self.optimizer.lazy_update and not self.optimizer.elementwise:
            raise InputError(
                f"{self.optimizer.kind} measures whole tensors, of which lazy_update steps some rows",
                where="optimizer",
                hint="leave out lazy_update",
            )
        self._check_micro_batches()
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

    def _check_micro_batches(self) -> None:
        count: Any = self.micro_batches
        if not isinstance(count, int) or count < 1:
            raise InputError(f"micro_batches={count!r}", where="Trainer", hint="parts of each batch: 1, 2, ...")
        beside = {"kvstore= or several devices": self.shared, "lazy_update": self.optimizer.lazy_update}
        for what, given in beside.items():
            if given and count > 1:
                raise InputError(f"micro_batches= beside {what}", where="Trainer", hint="leave one of them out")

    def check(self, feeds: Mapping[str, Any], size: int) -> None:
        """Raise InputError for a batch of so few samples that a micro-batch has none, and for a feed that has others
        than the batch."""
        if size < self.micro_batches:
            raise InputError(f"a batch of {size} in {self.micro_batches} micro-batches", where="step",
                             hint="give each a sample, or leave this batch out")  # fmt: skip
        if self.samples is not None:
            self.samples.check(feeds, size)


@dataclass(slots=True)
class Build:
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


def dtype_of(g: TypedBuilder, name: str) -> DType:
    known = g.type_of(name)
    assert isinstance(known, Tensor)
    return known.dtype


def gathered(
    build: Build, step: Step, params: Sequence[str], batch_grads: Mapping[str, str], updates: bool
) -> dict[str, str]:
    """The gradients of all batches of one update: their mean."""
    if step.gather == 1:
        return dict(batch_grads)
    g, grads = build.g, dict[str, str]()
    for p in params:
        held = build.state(f"optimizer/gathered/{p}", np.zeros_like(build.first[p]))
        total = g.Add(held, batch_grads[p])
        build.after[held] = g.Expand(g.scalar(0, p), g.shape_of(p)) if updates else total
        grads[p] = g.Mul(total, g.scalar(1 / step.gather, p)) if updates else total
    return grads


def unscaled(
    build: Build, step: Step, scale: str | None, grads: Mapping[str, str], finite: str | None = None
) -> tuple[dict[str, str], str | None]:
    """The gradients without the loss scale, and whether all of them are finite, unless that is known; the scale's next
    value."""
    if scale is None or step.scaling is None:
        return dict(grads), None
    g, s = build.g, step.scaling
    if finite is None:  # a sum is NaN where one is not
        sums = [g.ReduceSum(g.Mul(dw, g.scalar(0, dw)), keepdims=0) for dw in grads.values()]
        finite = g.Not(g.IsNaN(g.Sum(*(g.Cast(x, to=DType.FLOAT.onnx) for x in sums))))
    good = build.state("optimizer/good", np.int64(0))
    more = g.Add(good, g.const(1))
    patient = g.GreaterOrEqual(more, g.const(s.patience))
    grown = g.Where(patient, g.Mul(scale, g.const(s.factor, DType.FLOAT)), scale)
    shrunk = g.Mul(scale, g.const(1 / s.factor, DType.FLOAT))
    build.after[scale] = g.Where(finite, grown, shrunk)
    build.after[good] = g.Where(g.And(finite, g.Not(patient)), more, g.const(0))
    inverse = g.Reciprocal(scale)
    return {p: g.Mul(dw, g.Cast(inverse, to=dtype_of(g, dw).onnx)) for p, dw in grads.items()}, finite


@dataclass(frozen=True, slots=True)
class Held:
    """A learning rate that is a value of the graph, or a schedule's rate times that value."""

    value: str
    schedule: Schedule | None = None

    def rate(self, g: Builder, t: Value) -> Value:
        return self.value if self.schedule is None else g.Mul(self.schedule.rate(g, t), self.value)


def with_rate(build: Build, step: Step) -> Step:
    """The step whose rate is a state: a constant one itself, else a factor of what the schedule says."""
    rate = step.optimizer.rate
    first, schedule = (float(rate), None) if isinstance(rate, int | float) else (1.0, rate)
    held = Held(build.state(RATE, np.float64(first)), schedule)
    return replace(step, optimizer=replace(step.optimizer, rate=held))


def clipped(g: TypedBuilder, step: Step, grads: Mapping[str, str], norm: str | None = None) -> dict[str, str]:
    """The gradients within their bounds (Pascanu, Mikolov and Bengio 2012, arXiv 1211.5063); `norm` is that of all
    together, if it is known and no value is clipped before."""
    bounded = dict(grads)
    if step.clip_value is not None:
        bounded = {
            p: g.Clip(dw, g.scalar(-step.clip_value, dw), g.scalar(step.clip_value, dw)) for p, dw in bounded.items()
        }
    if step.clip_norm is not None:
        norm = norm or g.op("TotalNorm", *bounded.values(), domain="mezzo")
        wide = dtype_of(g, norm)
        share = g.Div(g.const(step.clip_norm, wide), g.Add(norm, g.const(1e-6, wide)))
        share = g.Min(share, g.const(1.0, wide))
        bounded = {p: g.Mul(dw, g.Cast(share, to=dtype_of(g, dw).onnx)) for p, dw in bounded.items()}
    return bounded


def number_of(
    build: Build, optimizer: Optimizer, t: str, missed: Mapping[str, int] | None = None
) -> Callable[[str, DType], list[str]]:
    """The rate and the other numbers of update `t`, as a parameter's group has them, in an element type. Of one that
    has `missed` updates, the others are those of its own number."""
    g = build.g
    rate, *numbers = optimizer.numbers_at(g, t)
    late = {
        n: optimizer.numbers_at(g, g.Sub(t, g.const(float(n), DType.DOUBLE)))[1:] for n in {*(missed or {}).values()}
    }
    cast: dict[tuple[str, DType], str] = {}
    scaled = {1.0: rate}

    def number(value: str, dtype: DType) -> str:
        if (value, dtype) not in cast:
            cast[value, dtype] = g.Cast(value, to=dtype.onnx)
        return cast[value, dtype]

    def of(p: str, dtype: DType) -> list[str]:
        scale = optimizer.group(p).scale
        if scale not in scaled:
            scaled[scale] = g.Mul(rate, g.const(scale, DType.DOUBLE))
        own = late[missed[p]] if missed and p in missed else numbers
        return [number(v, dtype) for v in (scaled[scale], *own)]

    return of


def update(
    build: Build,
    step: Step,
    params: Sequence[str],
    grads: Mapping[str, str],
    t: str,
    finite: str | None,
    ids: Mapping[str, str],
    missed: Mapping[str, int] | None = None,
) -> None:
    """Add the optimizer's operator for each parameter; `ids` tell which rows the gradients of some are of."""
    g, optimizer = build.g, step.optimizer
    number = number_of(build, optimizer, t, missed)
    for p in params:
        first = states_of(optimizer, build.first[p])
        slots = [build.state(f"optimizer/{s}/{p}", value) for s, value in first.items()]
        given = number(p, dtype_of(g, p))
        g.where = f"the update of {p!r}"
        draws = [g.RandomNormalLike(grads[p]) for _ in range(optimizer.draws)]
        rows = ids.get(p)
        if rows is not None and finite is not None:  # no row is stepped by what is not finite
            rows = g.Where(finite, rows, g.const(len(build.first[p])))
        results = optimizer.of(p).add(g, p, grads[p], given, draws, slots, rows)
        g.where = ""
        for name, value in zip((p, *slots), results, strict=True):
            build.after[name] = value if finite is None or rows is not None else g.Where(finite, value, name)
    more = g.Add(COUNT, g.const(1))
    build.after[COUNT] = more if finite is None else g.Where(finite, more, COUNT)

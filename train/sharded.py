"""The collective part of a training step: gradients that travel in flat buckets, and with ZeRO updates of which every
worker does a part.

| zero | travels | each worker keeps |
|---|---|---|
| 0 | sums of gradients, to all | everything |
| 1 | sums of gradients, to all; then parts of parameters | its part of the optimizer's states |
| 2 | sums of gradients, each part to one; then parts of parameters | its part of states and of gradients' sums |

The calls of a step have one order on all workers: that in which gradients are made, then the norm, then parameters.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..ops import DType
from ..ops.errors import InputError
from ..ops.training.exchange import ALL, AWAIT, DOMAIN, EMIT, PART, SUM
from ..runtime.ir.graph import Graph, Node
from ..runtime.optimizer import Optimizer
from ..runtime.optimizer.record import states_of
from .buckets import Bucket, buckets_of
from .building import COUNT, NORM, Build, Shared, Step, clipped, dtype_of, gathered, number_of, unscaled, update

TOTAL = "norm"  # the key of the sum of squares
CLIPPED = "norm of clipped values"
PARAMETERS = "parameters of "  # before the key of a bucket
LAYOUT = "mezzo.buckets"  # of the metadata of a step's graph


def sharded(build: Build, step: Step, batch_grads: Mapping[str, str]) -> Collectives:
    """The collective part of a step, whose gradients `batch_grads` are, in the order in which the graph makes them.

    Raises InputError where the optimizer cannot step parts of tensors by themselves.
    """
    shared = step.shared
    assert shared is not None
    check(step.optimizer, shared.zero)
    order = {o: i for i, n in enumerate(build.g.nodes()) for o in n.outputs}
    names = sorted(batch_grads, key=lambda p: order.get(batch_grads[p], -1))
    optimizer = step.optimizer

    def alike(name: str) -> object:
        return (optimizer.decay(name), optimizer.group(name).scale) if shared.zero else None

    parameters = {n: build.first[n] for n in names}
    return Collectives(build, step, shared, buckets_of(parameters, names, alike, shared.workers, shared.most))


def check(optimizer: Optimizer, zero: int) -> None:
    """Raise InputError where an optimizer cannot be shared out so far."""
    if zero not in (0, 1, 2):
        raise InputError(f"zero={zero}", where="Trainer", hint="0 (nothing), 1 (states) or 2 (and gradients)")
    why = ""
    if zero and not optimizer.elementwise:
        why = "measures whole tensors"
    elif zero and optimizer.draws:
        why = "draws numbers for whole tensors"
    elif optimizer.lazy_update:
        why = "steps rows of tables alone (lazy_update)"
    if why:
        raise InputError(
            f"{optimizer.kind} {why}, and buckets lay them out flat", where="zero=" if zero else "buckets=",
            hint="leave zero= and buckets= out, or take another optimizer",
        )  # fmt: skip


@dataclass(slots=True)
class Collectives:
    """Gradients, norms and parameters that travel between the workers of a step."""

    build: Build
    step: Step
    shared: Shared
    buckets: tuple[Bucket, ...]
    latest: str = ""  # of what has arrived

    @property
    def layout(self) -> tuple[Bucket, ...]:
        """The buckets whose states are shared out."""
        return self.buckets if self.shared.zero else ()

    def add(
        self, params: Sequence[str], batch_grads: Mapping[str, str], scale: str | None, t: str, updates: bool
    ) -> None:
        """Add everything from the gradients to the new parameters."""
        if self.shared.zero == 2:
            self._add_parts(batch_grads, scale, t, updates)
            return
        build, step, g = self.build, self.step, self.build.g
        grads = gathered(build, step, params, batch_grads, updates)
        if not updates:
            return
        sent = [self._sent(bucket, self._concat(bucket, grads), SUM) for bucket in self.buckets]
        sums: dict[str, str] = {}
        for bucket, value in zip(self.buckets, sent, strict=True):
            sums |= self._split(bucket, self._awaited(bucket, value, SUM))
        grads, finite = unscaled(build, step, scale, {p: sums[p] for p in params})
        if step.norm:
            g.add(Node("TotalNorm", (*grads.values(),), (NORM,), {}, domain="mezzo", name=NORM))
        grads = clipped(g, step, grads)
        if not self.shared.zero:
            update(build, step, params, grads, t, finite, {})
            return
        self._step_parts({b.key: self._part(b, grads) for b in self.buckets}, t, finite)

    def _add_parts(self, batch_grads: Mapping[str, str], scale: str | None, t: str, updates: bool) -> None:
        """Add the same where each worker has its part of the sums alone."""
        build, step, g = self.build, self.step, self.build.g
        sent = [self._sent(bucket, self._concat(bucket, batch_grads, pad=True), PART) for bucket in self.buckets]
        parts = {b.key: self._awaited(b, v, PART) for b, v in zip(self.buckets, sent, strict=True)}
        if step.gather > 1:
            for b in self.buckets:
                held = build.state(f"optimizer/gathered/{b.key}", np.zeros(b.each, b.dtype.numpy))
                total = g.Add(held, parts[b.key])
                build.after[held] = g.Expand(g.scalar(0, held), g.shape_of(held)) if updates else total
                parts[b.key] = g.Mul(total, g.scalar(1 / step.gather, held))
        if not updates:
            return
        total = self._norm(parts) if step.norm or step.clip_norm is not None or scale is not None else None
        parts, finite, total = unscaled_parts(build, step, scale, parts, total)
        if step.norm and total is not None:
            g.add(Node("Identity", (g.Cast(total, to=self._wide.onnx),), (NORM,), {}, name=NORM))
        if step.clip_value is not None and step.clip_norm is not None:  # the norm is that of what is within its bounds
            parts, step = clipped(g, replace(step, clip_norm=None), parts), replace(step, clip_value=None)
            total = self._norm(parts, CLIPPED)
        self._step_parts(clipped(g, step, parts, total), t, finite)

    @property
    def _wide(self) -> DType:
        return DType.DOUBLE if any(b.dtype is DType.DOUBLE for b in self.buckets) else DType.FLOAT

    def _norm(self, parts: Mapping[str, str], key: str = TOTAL) -> str:
        """The norm of all gradients, of which each worker has parts: float64."""
        g = self.build.g
        mine = g.Cast(g.op("TotalNorm", *parts.values(), domain="mezzo"), to=DType.DOUBLE.onnx)
        squares = g.Reshape(g.Mul(mine, mine), g.const([1]))
        sent = g.op(EMIT, squares, domain=DOMAIN, key=key)
        self.latest = total = g.op(AWAIT, sent, domain=DOMAIN, key=key)
        norm: str = g.Sqrt(g.Reshape(total, g.const(np.zeros(0, np.int64))))
        return norm

    # -- travel

    def _concat(self, bucket: Bucket, values: Mapping[str, str], pad: bool = False) -> str:
        """The flat values of a bucket's parameters."""
        g = self.build.g
        flat = [g.Reshape(values[n], g.const([-1])) for n in bucket.names]
        if pad and bucket.padding:
            flat.append(g.const(np.zeros(bucket.padding, bucket.dtype.numpy)))
        whole: str = flat[0] if len(flat) == 1 else g.Concat(*flat, axis=0)
        return whole

    def _sent(self, bucket: Bucket, value: str, verb: str, key: str = "", after: str = "") -> str:
        """The value on its way. `after` is there first: so calls have one order, whatever a worker's part reads."""
        g, wire = self.build.g, self.shared.wire
        if wire is not None and not key and wire is not bucket.dtype:
            value = g.Cast(value, to=wire.onnx)
        about: dict[str, Any] = {} if verb == SUM else {"verb": verb}
        sent: str = g.op(EMIT, value, *([after] if after else []), domain=DOMAIN, key=key or bucket.key, **about)
        return sent

    def _awaited(self, bucket: Bucket, sent: str, verb: str, key: str = "") -> str:
        g, shared = self.build.g, self.shared
        about: dict[str, Any] = {} if verb == SUM else {"verb": verb, "workers": shared.workers, "rank": shared.rank}
        value: str = g.op(AWAIT, sent, domain=DOMAIN, key=key or bucket.key, **about)
        if not key:
            self.latest = value
        if dtype_of(g, value) is not bucket.dtype:
            value = g.Cast(value, to=bucket.dtype.onnx)
        return value

    def _split(self, bucket: Bucket, flat: str) -> dict[str, str]:
        """The values of a bucket's parameters."""
        g, axis = self.build.g, self.build.g.const([0])
        split = {}
        for (name, at), size, shape in zip(bucket.places.items(), bucket.sizes, bucket.shapes, strict=True):
            part = flat if len(bucket.names) == 1 and not bucket.padding else None
            if part is None:
                part = g.Slice(flat, g.const([at]), g.const([at + size]), axis)
            split[name] = g.Reshape(part, g.const(np.array(shape, np.int64)))
        return split

    # -- updates of parts

    def _part(self, bucket: Bucket, values: Mapping[str, str]) -> str:
        """This worker's part of a bucket of values."""
        g, axis, parts = self.build.g, self.build.g.const([0]), list[str]()
        filled = 0
        for piece in bucket.pieces(self.shared.rank):
            flat = g.Reshape(values[piece.name], g.const([-1]))
            parts.append(g.Slice(flat, g.const([piece.begin]), g.const([piece.end]), axis))
            filled += piece.end - piece.begin
        if filled < bucket.each:
            parts.append(g.const(np.zeros(bucket.each - filled, bucket.dtype.numpy)))
        return parts[0] if len(parts) == 1 else g.Concat(*parts, axis=0)

    def _step_parts(self, grads: Mapping[str, str], t: str, finite: str | None) -> None:
        """Step this worker's part of each bucket, and give it to the others."""
        build, g, optimizer = self.build, self.build.g, self.step.optimizer
        number = number_of(build, optimizer, t)
        weights = {n: n for b in self.buckets for n in b.names}
        sent: list[str] = []
        for bucket in self.buckets:
            name, part = bucket.names[0], self._part(bucket, weights)
            first = states_of(optimizer, np.zeros(bucket.each, bucket.dtype.numpy))
            slots = [build.state(f"optimizer/{s}/{bucket.key}", value) for s, value in first.items()]
            g.where = f"the update of {bucket.key}"
            results = optimizer.of(name).add(g, part, grads[bucket.key], number(name, bucket.dtype), (), slots)
            g.where = ""
            kept = [v if finite is None else g.Where(finite, v, old)
                    for v, old in zip(results, (part, *slots), strict=True)]  # fmt: skip
            build.after.update(zip(slots, kept[1:], strict=True))
            sent.append(self._sent(bucket, kept[0], ALL, PARAMETERS + bucket.key, self.latest))
        for bucket, value in zip(self.buckets, sent, strict=True):
            whole = self._awaited(bucket, value, ALL, PARAMETERS + bucket.key)
            build.after.update(self._split(bucket, whole))
        more = g.Add(COUNT, g.const(1))
        build.after[COUNT] = more if finite is None else g.Where(finite, more, COUNT)


def unscaled_parts(
    build: Build, step: Step, scale: str | None, parts: Mapping[str, str], total: str | None
) -> tuple[dict[str, str], str | None, str | None]:
    """The parts without the loss scale, whether the gradients of all workers are finite, and their norm."""
    if scale is None or total is None:
        return dict(parts), None, total
    g = build.g
    off = g.Or(g.IsNaN(total), g.IsInf(total))
    grads, finite = unscaled(build, step, scale, parts, g.Not(off))
    return grads, finite, g.Div(total, g.Cast(scale, to=DType.DOUBLE.onnx))


def with_layout(graph: Graph, buckets: Sequence[Bucket]) -> Graph:
    """The graph of a step that tells how its buckets are filled."""
    return graph.but(metadata={**graph.metadata, LAYOUT: json.dumps([[b.key, *b.names] for b in buckets])})

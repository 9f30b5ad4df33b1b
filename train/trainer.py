"""The Trainer: fine-tunes an imported model, keeps its place, and gives the model back."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..exporters import save_onnx
from ..importers import load_onnx
from ..ops import DType, Tensor
from ..ops.errors import InputError
from ..ops.types import Array, type_of
from ..runtime.autodiff import fresh
from ..runtime.graph import Graph, State
from ..runtime.infer import infer
from ..runtime.instance import Observer
from ..runtime.lower import Options
from ..runtime.optimizer import Adam, Optimizer
from ..runtime.passes import modes
from ..runtime.seats import usual_threads
from ..runtime.session import Session
from ..runtime.typed import TypedBuilder
from . import checkpoint
from .amp import Policy, mixed, policy_named
from .exchange import Exchange
from .head import logits_of, output_of
from .learning import learning as learning_of
from .loss import Loss, loss_named
from .overflow import Overflow, overflows
from .prepare import prepared
from .recompute import WAYS, sized, smallest
from .step import COUNT, SCALE, Scaling, Step, training_step

if TYPE_CHECKING:
    from ..kvstore.store import KVStore

Feeds = Mapping[str, Any]
TARGET = "target"
SEEN, TOTAL, RIGHT = "metrics/seen", "metrics/loss", "metrics/right"


@dataclass(frozen=True, slots=True)
class Metrics:
    """Over the samples since the last `reset`: how many, their mean loss, and the share of right answers (None where
    the loss has no classes)."""

    samples: int
    loss: float
    accuracy: float | None

    def __str__(self) -> str:
        shown = f"loss {self.loss:.4f}"
        return shown if self.accuracy is None else f"{shown}, accuracy {self.accuracy:.2%}"


class Trainer:
    """Trains a graph, or an ONNX file, by a loss on one of its outputs.

    `loss` is a name of `train.loss.LOSSES` or a Loss; what was asked for is fed as `target`. A cross-entropy takes
    numbers of classes, which are axis 1 of the output, and reads what a Softmax before the output reads. `train` and
    `freeze` are patterns of weights' names (shell wildcards); by default all learn that lead to the output. `gather` is
    how many calls of `step` make one update. `amp` is "bf16", "fp16" (with dynamic loss scaling) or a Policy.
    `statistics=False` leaves batch normalisation to its running statistics. Dropout and batch normalisation are in
    training mode here, and in inference mode in `graph()` and `export`. `device`, `threads` and `onednn` are those
    of Session.

    `kvstore` (a store of `mezzo.kv.create`, or the kind of one) trains together with the other workers of a job. Each
    gives `step` its share of the batch, as many samples as the others (`train.shares.Share`); gradients are means over
    the whole batch. The optimizer runs on every worker, or with `update_on_kvstore=True` where the store keeps the
    parameters (what looks at all gradients is refused then): the numbers are the same. All begin with the parameters
    of rank 0; random numbers differ by rank. Statistics of batch normalisation, losses and metrics are this worker's
    own, where nothing else is said. Gradients travel while the rest of the backward part runs, unless `overlap` is
    False.

    `recompute` lets cheap operators run a second time for the backward part, where the memory plan shrinks by it: True,
    or the shapes of the inputs to plan for, by name, if the model leaves them open.

    Raises UnsupportedModel listing every operator on the way that has no derivative, InputError for names and patterns
    that fit nothing.

    >>> from mezzo.models.digits import digits_model, held_out
    >>> from mezzo.runtime.optimizer import SGD
    >>> digits = held_out()
    >>> trainer = Trainer(digits_model(), optimizer=SGD(rate=0.05), freeze=["0.*"])
    >>> losses = [trainer.step({"image": digits.inputs, "target": digits.labels}) for _ in range(5)]
    >>> losses[-1] < losses[0]
    True
    """

    def __init__(
        self,
        model: Graph | str | os.PathLike[str] | bytes,
        *,
        loss: str | Loss = "cross_entropy",
        optimizer: Optimizer | None = None,
        output: str | None = None,
        train: Sequence[str] | None = None,
        freeze: Sequence[str] = (),
        clip_norm: float | None = None,
        clip_value: float | None = None,
        gather: int = 1,
        amp: str | Policy | None = None,
        statistics: bool = True,
        recompute: bool | Mapping[str, Sequence[int]] = False,
        seed: int = 0,
        device: str = "cpu",
        threads: int | None = None,
        onednn: bool = True,
        kvstore: KVStore | str | None = None,
        update_on_kvstore: bool | None = None,
        overlap: bool = True,
    ) -> None:
        given = model if isinstance(model, Graph) else load_onnx(model)
        self.source = infer(prepared(given, train or ()))
        policy = None if amp is None else policy_named(amp)
        scaling = Scaling() if policy is not None and policy.dtype is DType.FLOAT16 else None
        self.exchange = None if kvstore is None else Exchange(kvstore, update_on_kvstore, overlap)
        shared = self.exchange.shared if self.exchange else None
        self.plan = Step(optimizer or Adam(), clip_norm, clip_value, gather, scaling, shared)
        self.output, self.seed = output_of(self.source, output), seed
        in_training = modes.training(self.source, statistics=statistics)
        if policy is not None:
            in_training = mixed(in_training, policy)
        self._loss, self._classes = loss_named(loss), loss == "cross_entropy"
        with_loss, value = self._judged(in_training)
        self.loss = value
        self.learning = learning_of(self.source, with_loss, [value], train, freeze)
        self.trained = [*self.learning.trained]
        if not self.trained:
            raise InputError("there is nothing to learn", where=self.source.name, hint="loosen train= and freeze=")
        if self.learning.warning:
            warnings.warn(self.learning.warning, stacklevel=2)
        steps = partial(training_step, with_loss, value, self.trained, self.plan)
        self.graph_of_step, again = steps(), None
        if recompute:
            types = sized(with_loss, {} if isinstance(recompute, bool) else recompute)
            exchanges = self.exchange is not None
            options = Options(threads=threads or usual_threads(), onednn=onednn, exchange=exchanges)
            ways = (None, *WAYS)
            graphs = [self.graph_of_step, *(steps(again=way) for way in WAYS)]
            at = smallest(graphs, types, options)
            self.graph_of_step, again = graphs[at], ways[at]
        how: dict[str, Any] = {"seed": seed, "device": device, "threads": threads, "onednn": onednn}
        self._update = Session(self.graph_of_step, **how, exchange=self.exchange)
        self.states = self._update.states
        self._gather: Session | None = None
        if gather > 1:
            self._gather = Session(steps(updates=False, again=again), states=self.states, **how, exchange=self.exchange)
        self._how, self._calls = how, 0
        self._kept: Path | None = None  # the store's part of a checkpoint, until the first step
        self._evaluation: Session | None = None
        self.notes: dict[str, Any] = {}

    # -- the graphs -------------------------------------------------------------------------------------------------

    def _judged(self, graph: Graph) -> tuple[Graph, str]:
        """The graph with the loss as its output, and with metrics as states; the name of the loss."""
        graph = infer(graph)
        value = logits_of(graph, self.output) if self._classes else self.output
        known = graph.types[value]
        if not isinstance(known, Tensor) or not known.dtype.floating:
            raise InputError(f"the output {self.output!r} is {known}", where=graph.name, hint="a loss needs floats")
        taken = set(graph.types)
        g = TypedBuilder(graph.types, prefix=fresh("loss/", taken))
        wide = g.Cast(value, to=DType.FLOAT.onnx) if known.dtype.narrow else value
        if TARGET in taken:
            raise InputError(f"the model has a value {TARGET!r} already", where=graph.name, hint="rename it")
        target = g.input(TARGET, self._loss.target(known if wide == value else known.to(DType.FLOAT)))
        loss = self._loss.build(g, wide, target)
        states, first = self._metrics(g, wide, target, loss)
        made = graph.but(
            inputs=(*graph.inputs, TARGET),
            outputs=(loss,),
            nodes=(*graph.nodes, *g.nodes()),
            initializers={**graph.initializers, **g.constants(), **first},
            types={**{n: t for n, t in g.types.items() if n not in first}, **{n: type_of(a) for n, a in first.items()}},
            states=(*graph.states, *states),
        )
        return made, loss

    def _metrics(self, g: TypedBuilder, value: str, target: str, loss: str) -> tuple[list[State], dict[str, Array]]:
        """States that gather what `metrics` tells."""
        first: dict[str, Array] = {SEEN: np.array(0, np.int64), TOTAL: np.array(0.0, np.float64)}
        if self._classes:
            first[RIGHT] = np.array(0, np.int64)
        g.types.update({n: type_of(a) for n, a in first.items()})
        count = g.Squeeze(g.Gather(g.Shape(target), g.const([0]), axis=0))
        total = g.Mul(g.Cast(loss, to=DType.DOUBLE.onnx), g.Cast(count, to=DType.DOUBLE.onnx))
        states = [State(SEEN, SEEN, g.Add(SEEN, count)), State(TOTAL, TOTAL, g.Add(TOTAL, total))]
        if self._classes:
            right = g.Cast(g.Equal(g.ArgMax(value, axis=1, keepdims=0), target), to=DType.FLOAT.onnx)
            share = g.ReduceMean(right, keepdims=0)  # of pixels, where each has a class
            hits = g.Cast(g.Round(g.Mul(share, g.Cast(count, to=DType.FLOAT.onnx))), to=DType.INT64.onnx)
            states.append(State(RIGHT, RIGHT, g.Add(RIGHT, hits)))
        return states, first

    def graph(self) -> Graph:
        """The model as it was given, with what it has learned: for inference and export."""
        own = self.source.initializers
        learned = {n: np.array(a) for n, a in self.states.items() if n in own}
        return modes.inference(self.source.but(initializers={**own, **learned}))

    def export(self, path: str | os.PathLike[str], *, opset: int | None = None) -> None:
        """Write the model as ONNX, with what it has learned."""
        save_onnx(self.graph(), path, opset=opset)

    def export_step(self, path: str | os.PathLike[str], *, opset: int | None = None) -> None:
        """Write the training step as one ONNX model of standard operators: batch and states in, loss and states out.

        States begin as they are now. With `gather`, it is the step that ends an update.
        """
        now = {n: np.array(a) for n, a in self.states.items()}
        graph = self.graph_of_step
        save_onnx(graph.but(initializers={**graph.initializers, **now}), path, opset=opset, standard=True)

    # -- training ---------------------------------------------------------------------------------------------------

    @property
    def updates(self) -> int:
        """How many updates the parameters have had."""
        return int(self.states[COUNT])

    @property
    def frozen(self) -> Mapping[str, str]:
        """The floating initialisers that do not learn, and why each does not."""
        return self.learning.frozen

    @property
    def parameters(self) -> dict[str, Array]:
        """The learned weights by name: the arrays themselves, which the next step changes."""
        return {n: self.states[n] for n in self.trained}

    def step(self, feeds: Feeds, *, observe: Observer | None = None) -> float:
        """Learn from one batch: the model's inputs by name, and `target`. Returns the loss before the update.

        `observe` is told before and after each step of the program. With a store the batch is this worker's share, and
        the loss is that of the share; every worker calls this, and the first call gives all the parameters of rank 0.
        Raises InputError where the shares were not equal, DeadlineError or PeerError naming who did not come.
        """
        number = self._calls + 1
        session = self._update if self._gather is None or number % self.plan.gather == 0 else self._gather
        session.next_run = number
        fed, exchange = _fed(feeds), self.exchange
        if exchange is None:
            loss = float(session.run(fed, observe=observe)[self.loss])
        else:
            if not exchange.joined:
                exchange.join(self.parameters, self.plan.optimizer, self._kept)
            sizes = exchange.sizes_begin(len(fed[TARGET]))
            loss = float(session.run(fed, observe=observe)[self.loss])
            exchange.sizes_end(sizes)
        self._calls = number
        return loss

    @property
    def loss_scale(self) -> float | None:
        """What the loss is multiplied by in float16 (see `train.step.Scaling`); None in other precisions."""
        return float(self.states[SCALE]) if SCALE in self.states else None

    def overflow(self, feeds: Feeds, *, loss_scale: float | None = None) -> tuple[Overflow, ...]:
        """Try the next step on copies of the states, and tell where numbers first ceased to be finite: operators in
        the order of execution, none if all is finite. `loss_scale` is tried in place of the present one. Slow: the
        step is planned anew. Raises InputError for a loss scale where there is none."""
        states = {n: np.array(a) for n, a in self.states.items()}
        if loss_scale is not None:
            if SCALE not in states:
                raise InputError("this training has no loss scale", where="overflow", hint='it comes with amp="fp16"')
            states[SCALE][...] = loss_scale
        session = Session(self.graph_of_step, states=states, **self._how)
        session.next_run = self._calls + 1
        return overflows(session, _fed(feeds))

    def fit(
        self,
        batches: Iterable[Feeds] | Callable[[int], Iterable[Feeds]],
        *,
        epochs: int = 1,
        on_step: Callable[[int, float], Any] | None = None,
        on_epoch: Callable[[int, Metrics], Any] | None = None,
    ) -> list[Metrics]:
        """Learn from all batches, `epochs` times; returns the metrics of each epoch.

        `batches` is a sequence of feeds, or a function that makes them for an epoch's number. A truthy answer of
        `on_step(number of the call, loss)` or `on_epoch(number, metrics)` ends the training.
        """
        found: list[Metrics] = []
        for epoch in range(epochs):
            self.reset_metrics()
            for feeds in batches(epoch) if callable(batches) else batches:
                loss = self.step(feeds)
                if on_step is not None and on_step(self._calls, loss):
                    return [*found, self.metrics()]
            found.append(self.metrics())
            if on_epoch is not None and on_epoch(epoch, found[-1]):
                break
        return found

    def metrics(self, *, everywhere: bool = False) -> Metrics:
        """What was seen since the last reset: by this worker or, if every worker asks, `everywhere`."""
        return self._metrics_of(self.states, everywhere)

    def reset_metrics(self) -> None:
        """Count from nothing."""
        for name in (SEEN, TOTAL, RIGHT):
            if name in self.states:
                self.states[name][...] = 0

    def evaluate(self, batches: Iterable[Feeds], *, everywhere: bool = False) -> Metrics:
        """The metrics of the model in inference mode on other data; nothing is learned. With `everywhere` each worker
        gives batches of its own, perhaps none, and all get the metrics over all."""
        if self._evaluation is None:
            plain, _ = self._judged(modes.inference(self.source))
            own = [n for n in self.states if n in plain.initializers and not n.startswith("metrics/")]
            kept = tuple(State(n, n, n) for n in own)
            shared = {n: self.states[n] for n in own}
            self._evaluation = Session(plain.but(states=(*plain.states, *kept)), states=shared, **self._how)
        session = self._evaluation
        for name in (SEEN, TOTAL, RIGHT):
            if name in session.states:
                session.states[name][...] = 0
        for feeds in batches:
            session.run(_fed(feeds))
        return self._metrics_of(session.states, everywhere)

    def _metrics_of(self, states: Mapping[str, Array], everywhere: bool) -> Metrics:
        classes = RIGHT in states
        numbers = [float(states[SEEN]), float(states[TOTAL]), float(states[RIGHT]) if classes else 0.0]
        if everywhere and self.exchange is not None:
            numbers = self.exchange.total(numbers)
        seen, total, right = numbers
        return Metrics(int(seen), total / max(seen, 1), right / max(seen, 1) if classes else None)

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write a checkpoint, from which a Trainer made in the same way goes on to the same bits. What the caller has
        put into `notes` (a position in the data, ...) goes with it, as JSON.

        Of a job every worker calls it, and rank 0 writes: its parameters are those of all, its statistics of batch
        normalisation are its own. What the optimizer keeps on the store is written beside.
        """
        exchange = self.exchange
        if exchange is None or exchange.rank == 0:
            optimizer = self.plan.optimizer.to_dict()
            made = checkpoint.Checkpoint(self.states, self._calls, self._digest(), optimizer, dict(self.notes))
        if exchange is None:
            checkpoint.save(folder, made)
            return
        if exchange.on_store and exchange.joined:
            Path(folder).mkdir(parents=True, exist_ok=True)
            exchange.store.save_optimizer_states(_beside(folder, self._calls))
        if exchange.rank == 0:
            checkpoint.save(folder, made)
            for former in Path(folder).glob(_beside(folder, "*").name):
                if former != _beside(folder, self._calls):
                    former.unlink(missing_ok=True)
        exchange.store.barrier()

    def resume(self, folder: str | os.PathLike[str]) -> Mapping[str, Any]:
        """Go on from a checkpoint; returns its notes. InputError where it belongs to another model or plan.

        Of a job every worker calls it, with a folder that all of them see; with the optimizer on the store before the
        first step.
        """
        if self.exchange is not None and self.exchange.on_store and self.exchange.joined:
            raise InputError(
                "the store has its parameters already", where="resume", hint="resume before the first step"
            )
        found = checkpoint.load(folder)
        if found.graph != self._digest():
            raise InputError(
                "the checkpoint was written by a training of another graph",
                where=str(folder),
                hint="make the Trainer with the model and the options that it had",
            )
        for name, array in self.states.items():
            if name not in found.arrays or type_of(found.arrays[name]) != type_of(array):
                raise InputError(f"the checkpoint has no {type_of(array)} {name!r}", where=str(folder))
        for name, array in self.states.items():
            array[...] = found.arrays[name]
        self._calls, self.notes = found.run, dict(found.notes)
        beside = _beside(folder, self._calls)
        self._kept = beside if beside.exists() else None
        return self.notes

    def _digest(self) -> str:
        """What the training step computes, as a number: its nodes, constants apart from states, and the seed."""
        graph = self.graph_of_step
        first = {s.input for s in graph.states}
        made = hashlib.blake2b(f"{self.seed} {graph.inputs} {graph.outputs} {graph.states}".encode(), digest_size=16)
        for node in graph.nodes:
            attrs = sorted((a, str(v)) for a, v in node.attrs.items())
            made.update(f"{node.domain} {node.op} {node.inputs} {node.outputs} {attrs}".encode())
        for name, array in sorted(graph.initializers.items()):
            made.update(f"{name} {type_of(array)}".encode())
            if name not in first:
                made.update(np.ascontiguousarray(array).tobytes() if array.dtype != object else str(array).encode())
        return made.hexdigest()


def _beside(folder: str | os.PathLike[str], run: int | str) -> Path:
    """Where the states of an optimizer on the store lie, beside the checkpoint of a run."""
    return Path(folder) / f"optimizer-{run}.states"


def _fed(feeds: Feeds) -> Feeds:
    """Feeds whose classes, if the target is classes, are int64 as losses take them."""
    target = np.asarray(feeds.get(TARGET, 0.0))
    if target.dtype == np.int64 or target.dtype.kind not in "iu":
        return feeds
    return {**feeds, TARGET: target.astype(np.int64)}

"""The Trainer: fine-tunes an imported model, writes and resumes checkpoints, and exports the model."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ..exporters import save_onnx
from ..kvstore.recording import learns_from
from ..ops import DType, Tensor
from ..ops.errors import InputError
from ..ops.types import Array, type_of
from ..runtime.compile.auto_place import is_auto
from ..runtime.devices import Placement, options_for, session_device
from ..runtime.environment import threads_for
from ..runtime.execution.instance import Observer
from ..runtime.execution.session import Session
from ..runtime.ir.graph import Graph
from ..runtime.optimizer import Optimizer, create
from ..runtime.optimizer import schedule as schedules
from ..runtime.passes import modes
from ..runtime.passes.place import unplaced
from ..runtime.passes.straight_through import straight_through
from . import checkpoint
from .agree import digest, digest_of_step
from .amp import Policy, check_products, mixed, policy_named
from .automatic import automatic
from .building import COUNT, NORM, RATE, SCALE, SHARE, Scaling, Step
from .collective import Collective
from .exchange import COMPARED, LOST, Exchange
from .exchanges import Exchanging, exchanges_of
from .feeding import fed
from .following import NO_BATCHES, Callback, Functions, Resumed, Run, check_repeatable, follow, states_of
from .from_mxnet import take_up
from .integers import with_integer_weights
from .judged import METRICS, SEEN, Asked, judged, measure, measures_of, terms_of, zeroed
from .learning import learning as learning_of
from .metrics import Asked as Measured
from .metrics import Metrics, StepMetrics
from .micro import pipelined
from .names import FIT, TRAINER, absent, refuse
from .overflow import Overflow, overflows, tried
from .parts import collected, own_snapshots, read, whole_snapshots
from .prepare import listed, placed_source
from .quantize import shares, with_scales
from .recompute import chosen, sized
from .rejoin import joined, rejoining
from .samples import samples_of
from .team import Team, devices_of, threads_of
from .tensor import own_states, shared_products, whole_states
from .totals import evaluation_of, metrics_of
from .ways import Ways

if TYPE_CHECKING:
    from ..kvstore.collective.communicator import Communicator
    from ..kvstore.store import KVStore
    from ..nd.place import Place

Feeds = Mapping[str, Any] | Sequence[Any]  # by name, or in the order of inputs and targets


class Trainer:
    """Trains a graph, or an ONNX file, by a loss on one of its outputs.

    `loss` is a name of `train.loss.LOSSES` or a Loss; what was asked for is fed as `target`. A cross-entropy takes
    numbers of classes, which are axis 1 of the output, and reads what a Softmax before the output reads. `train` and
    `freeze` are patterns of weights' names (shell wildcards); by default all learn that lead to the output. `gather` is
    how many calls of `step` make one update, `micro_batches` how many parts of a batch go through one behind the other.
    `amp` is "bf16", "fp16" (with dynamic loss scaling) or a Policy. `statistics=False` leaves batch normalisation to
    its running statistics. Dropout and it are in training mode here, and in inference mode in `graph()` and `export`. A
    quantised model learns through its steps: its weights are floats here, and integers in `graph()` and `export`; with
    `learn_scales` its scales learn too. `device`, `threads` and `onednn` are those of Session, and so is `precision`:
    "auto", "fp32", or on GPUs "tf32"; 16 bits are `amp`. Several devices ("gpu:0,gpu:1", or a list) share each batch;
    `place` shares out the model.

    `kvstore` (a store of `mezzo.kv.create`, or the kind of one) trains together with the other workers of a job. Each
    gives `step` its share of the batch, as many samples as the others (`train.shares.Share`); gradients are means over
    the whole batch. The optimizer runs on every worker, or with `update_on_kvstore=True` where the store keeps the
    parameters (what looks at all gradients is refused then): the numbers are the same. All begin with the parameters
    of rank 0; random numbers differ by rank. Statistics of batch normalisation, losses and metrics are this worker's
    own, where nothing else is said. Gradients travel while the rest of the backward part runs (`overlap`), or after it
    (False); by default, on processors, whichever took less time in the first steps. Every `compare_every` steps
    (0: never), and before a checkpoint, digests of the parameters are compared. With `buckets` (True, or bytes) they
    travel in flat buckets over a communicator, with `wire` ("bf16", "fp16") as 16 bits; `zero` 1 shares out the
    optimizer's states among the workers, 2 also sums of gradients (docs/multi-gpu.md). Shares may differ then.

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
        loss: Asked = "cross_entropy",
        optimizer: Optimizer | str | None = None,
        output: str | None = None,
        sample_weights: bool = False,
        metrics: Sequence[Measured] | Mapping[str, Sequence[Measured]] = (),
        train: Sequence[str] | None = None,
        freeze: Sequence[str] = (),
        clip_norm: float | None = None,
        clip_value: float | None = None,
        norm: bool = True,
        gather: int = 1,
        micro_batches: int = 1,
        amp: str | Policy | None = None,
        statistics: bool = True,
        learn_scales: bool = False,
        recompute: bool | Mapping[str, Sequence[int]] = False,
        seed: int = 0,
        device: str | Place | Sequence[str | Place] = "cpu",
        place: Placement | None = None,
        precision: str = "auto",
        threads: int | None = None,
        onednn: bool = True,
        kvstore: KVStore | Communicator | str | None = None,
        update_on_kvstore: bool | None = None,
        overlap: bool | None = None,
        zero: int = 0,
        buckets: bool | int = False,
        wire: str | None = None,
        compare_every: int = COMPARED,
        **others: Any,
    ) -> None:
        refuse(others, "Trainer", TRAINER, Trainer.__init__.__annotations__)
        if is_auto(place):
            model, place = automatic(Trainer, locals()), None
        train, freeze = listed(train), listed(freeze) or ()
        beside = {"device": device != "cpu", "kvstore": kvstore, "recompute": recompute}
        self.source = placed_source(model, train or (), place, **beside)
        devices, policy = devices_of(device), None if amp is None else policy_named(amp)
        scaling = Scaling() if policy is not None and policy.dtype is DType.FLOAT16 else None
        how: dict[str, Any] = {"zero": zero, "buckets": buckets, "wire": wire, "devices": devices}
        exchanges = exchanges_of(kvstore, update_on_kvstore, overlap is not False, compare_every, **how)
        self.exchange: Exchanging | None = exchanges[0]
        shared = self.exchange.shared if self.exchange else None
        self.plan = Step(
            *(create(optimizer or "adam"), clip_norm, clip_value, gather, scaling, shared),
            norm=norm or clip_norm is not None,
            micro_batches=micro_batches,
        )
        self.terms, self.sample_weights, self.seed = terms_of(self.source, loss, output), sample_weights, seed
        self.output = self.terms[0].outputs[0]
        in_training = modes.training(self.source, statistics=statistics)
        if policy is not None:
            in_training = mixed(in_training, policy)
        with_loss, value = self._judged(in_training)
        self.loss, self._precision = value, "float32" if policy is None else policy
        self._measures = measures_of(self.terms, metrics)
        self._reads = tuple(dict.fromkeys(term.outputs[0] for term, _ in self._measures))
        with_loss = with_loss.but(outputs=(*with_loss.outputs, *self._reads))
        targets = {t.target: with_loss.types[t.target] for t in self.terms if t.target}
        self._classes = [n for n, kind in targets.items() if isinstance(kind, Tensor) and kind.dtype is DType.INT64]
        self._named = (*targets, *self.source.inputs)  # the first one fed tells how many samples there are
        self._own = {s.input for s in self.source.states}
        self._order = (*self.source.inputs, *targets, *["sample_weight"] * bool(sample_weights))  # of a tuple
        self.learning = learning_of(self.source, with_loss, [value], train, freeze, learn_scales)
        self.trained = [*self.learning.trained]
        samples = samples_of(with_loss, self._named, self.terms) if micro_batches > 1 or len(devices) > 1 else None
        scaled = with_scales(self.plan.optimizer, shares(in_training, self.trained))
        self.plan = replace(self.plan, optimizer=scaled, samples=samples)
        if not self.trained:
            raise InputError("there is nothing to learn", where=self.source.name, hint="loosen train= and freeze=")
        if self.learning.warning:
            warnings.warn(self.learning.warning, stacklevel=2)
        self.pipeline = pipelined(with_loss, micro_batches, session_device(devices[0]), recompute=recompute)
        self._learned_by = digest(with_loss, self.trained) if self.exchange and self.exchange.workers > 1 else ""
        self._optimizer = self.plan.optimizer  # with the groups that it was given
        whole_step = with_loss, value, self.trained, self.plan
        self._products, steps, self.trained, self.plan = shared_products(*whole_step, place)
        self.graph_of_step, again = steps(), None
        if recompute:
            types = sized(with_loss, {} if isinstance(recompute, bool) else recompute)
            about = {"threads": threads_for(threads), "onednn": onednn, "exchange": self.exchange is not None}
            self.graph_of_step, again = chosen(steps, self.graph_of_step, types, options_for("cpu", **about))
        self._steps = partial(steps, again=again)
        check_products(precision)
        self._how: dict[str, Any] = {
            "seed": seed, "device": session_device(devices[0]), "threads": threads_of(devices, threads),
            "onednn": onednn, "precision": precision,
        }  # fmt: skip
        self._open()
        self._ways: Ways | None = None
        timed = overlap is None and shared is not None and not shared.collective
        if timed and shared is not None and self.exchange and self.exchange.workers > 1 and devices[0] == "cpu":
            late = self._steps(step=replace(self.plan, shared=replace(shared, overlap=False)))
            after = Session(late, states=self.states, **self._how, exchange=self.exchange)
            self._ways = Ways((self._update, after))
        begun = self.graph_of_step.initializers.get(RATE)  # nothing is read from a device for it
        self._calls, self._held = 0, self._rate_state() if begun is None else float(begun)
        self._last: tuple[int, float, Any, float] | None = None
        self.history: list[tuple[Metrics, Metrics | None]] = []
        self._kept: Path | None = None  # the store's part of a checkpoint, until the first step
        self.notes: dict[str, Any] = {}
        self._callbacks: Sequence[Callback] = ()  # of the latest fit
        self._lost: Mapping[str, Array] = {}  # by compression before a checkpoint, until the store is there
        self._resumed: Mapping[str, Any] = {}  # their states in a checkpoint, until the next fit
        self._team: Team | None = None
        self._rejoining = rejoining(self)
        self._ranks: tuple[Trainer, ...] = (self,)  # of this process
        if samples is not None and len(devices) > 1:
            self._ranks = self, *(self._twin(*pair) for pair in zip(devices[1:], exchanges[1:], strict=True))
            self._team = Team(self._ranks, samples)

    def _open(self, states: dict[str, Array] | None = None) -> None:
        """Make the sessions of a device, and its states unless they are given."""
        self._update = Session(self.graph_of_step, states=states, **self._how, exchange=self.exchange)
        self.states = self._update.states
        self._fraction = float("nan")  # of the batch that is this rank's: not told yet
        self._gather: Session | None = None
        if self.plan.gather > 1:
            self._gather = Session(self._steps(updates=False), states=self.states, **self._how, exchange=self.exchange)
        self._evaluation: Session | None = None

    def _twin(self, device: str, exchange: Exchanging | None) -> Trainer:
        """The same training on another device of this process, as another rank."""
        twin, shared = copy(self), None if exchange is None else exchange.shared
        twin.exchange, twin.plan = exchange, replace(self.plan, shared=shared)
        twin._steps = partial(self._steps, step=twin.plan)
        if shared is not None and shared.zero:  # its part of the states is another one
            twin.graph_of_step = twin._steps()
        twin._measures = [(term, [copy(m) for m in metrics]) for term, metrics in self._measures]
        twin._how = {**self._how, "device": session_device(device)}
        twin._ranks = (twin,)
        twin._open()
        return twin

    def _everywhere(self, call: Callable[[Trainer], Any]) -> list[Any]:
        """Call something of each rank of this process, all at once, as they wait for each other; return the answers."""
        return [call(self)] if self._team is None else self._team.run(call)

    def __repr__(self) -> str:
        learned = f"{len(self.trained)} tensors learn, {self.updates} updates"
        return f"<Trainer of {self.source.name or 'a model'}: {learned}>"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise absent(self, name)

    def _judged(self, graph: Graph) -> tuple[Graph, str]:
        """The graph with the loss as its output, and with metrics as states; the name of the loss."""
        return judged(graph, self.terms, self.sample_weights)

    def graph(self) -> Graph:
        """The model as it was given, with what it has learned: for inference and export."""
        own = self.source.initializers
        learned = {n: np.array(a) for n, a in whole_states(self._products, self.states).items() if n in own}
        return with_integer_weights(modes.inference(unplaced(self.source).but(initializers={**own, **learned})))

    def export(self, path: str | os.PathLike[str], *, opset: int | None = None) -> None:
        """Write the model as ONNX, with what it has learned."""
        save_onnx(self.graph(), path, opset=opset)

    def export_step(self, path: str | os.PathLike[str], *, opset: int | None = None) -> None:
        """Write the training step as one ONNX model of standard operators: batch and states in, loss and states out.

        States begin as they are now. With `gather`, it is the step that ends an update.
        """
        now, graph = self.snapshot(), self.graph_of_step
        if self._team is not None:  # that of one device
            graph = self._steps(step=replace(self.plan, shared=None))
        graph = graph if self._products is None else self._products.steps()
        save_onnx(graph.but(initializers={**graph.initializers, **now}), path, opset=opset, standard=True)

    # -- training ---------------------------------------------------------------------------------------------------

    @property
    def updates(self) -> int:
        """Number of updates that the parameters have had."""
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
        """Learn from one batch: the model's inputs and `target` by name, or as a tuple in this order. Returns the loss
        before the update.

        `observe` is told before and after each step of the program. With a store the batch is this worker's share, and
        the loss is that of the share; every worker calls this, and the first call gives all the parameters of rank 0.
        Raises InputError where the shares were not equal, DeadlineError or PeerError naming who did not come.
        """
        fed, size = self._fed(feeds)
        self.plan.check(fed, size)
        if self._team is None:
            once = partial(self._step, fed, size, observe)
            return once() if self._rejoining is None else self._rejoining.step(once)
        loss = self._team.step(fed, size, observe)
        assert self._last is not None
        self._last = self._last[0], loss, *self._last[2:]
        return loss

    def join(self) -> Mapping[str, Any]:
        """Meet the other workers, as the first step does otherwise: all get the parameters of rank 0 or, in a job that
        goes on after a death (`mezzo launch --rejoin`), this one what the others have learned, and their notes, which
        are returned. Every worker calls it, after `resume`."""
        joined(self)
        return self.notes

    def _session_of_next(self) -> Session:
        return (self._gather if (self._calls + 1) % self.plan.gather else None) or self._update

    def _step(self, fed: Mapping[str, Any], size: int, observe: Observer | None) -> float:
        """A step of this rank. With no sample of its own it only takes part, and nothing of it counts."""
        number, session, exchange = self._calls + 1, self._session_of_next(), self.exchange
        counted = () if size else (n for n in self.states if n.startswith(METRICS) or n in self._own)
        kept = {n: np.array(self.states[n]) for n in counted}

        def run(session: Session) -> dict[str, Any]:
            session.next_run = number
            return session.run(fed, observe=observe)

        if exchange is None:
            session.next_run = number
            found = session.run(fed, observe=observe)
        else:
            self.join()
            learns_from(fed)
            if isinstance(exchange, Collective) and SHARE in self.states:  # one rank alone has none
                fraction = exchange.fraction(size)
                if fraction != self._fraction:
                    self.states[SHARE][...] = self._fraction = fraction
            sizes = exchange.sizes_begin(size)
            with exchange.watched(number):
                found = self._together(run, session, exchange)
            exchange.sizes_end(sizes)
            exchange.compare(self.parameters, number)
            exchange.stepped(float(found[self.loss]))
        self._calls, loss = number, float(found[self.loss])
        self._last = number, loss, found.get(NORM), self._held
        for name, array in kept.items():
            self.states[name][...] = array
        if size:
            measure(self._measures, found, fed)
        return loss

    def _together(self, run: Callable[[Session], Any], session: Session, exchange: Exchanging) -> Any:
        """Run a step with the other workers: in either way at first, then in the one that took less time of all."""
        ways = self._ways
        if ways is None or session is not self._update:
            return run(session)
        found = ways.run(run)
        if ways.measured:
            times = ways.medians if exchange.on_store else exchange.total(ways.medians)
            self._update, self._ways = ways.quickest(times), None
        return found

    def _fed(self, batch: Feeds) -> tuple[dict[str, Any], int]:
        """A batch by name, and how many samples it has."""
        return fed(batch, self._order, self._named, self._classes)

    @property
    def last(self) -> StepMetrics:
        """Result of the last step: its loss, the rate of its update, the norm of its gradients."""
        if self._last is None:
            raise InputError("there was no step yet", where="last")
        number, loss, norm, held = self._last
        rate = schedules.now(self.plan.optimizer.rate, max(self.updates - 1, 0), held)
        return StepMetrics(number, loss, rate, None if norm is None else float(norm))

    @property
    def rate(self) -> float:
        """The rate of the next update, before groups scale it. Setting it holds from there on: a schedule goes on from
        it in proportion. Raises InputError where the optimizer runs on a store, which has the rate."""
        return schedules.now(self.plan.optimizer.rate, self.updates, self._held)

    @rate.setter
    def rate(self, value: float) -> None:
        if RATE not in self.states:
            raise InputError("the optimizer runs on the store, and so does its rate", where="rate",
                             hint="let the workers update: update_on_kvstore=False")  # fmt: skip
        self._held = schedules.held(self.plan.optimizer.rate, value, self.updates)
        for rank in self._ranks:
            rank.states[RATE][...] = rank._held = self._held

    def _rate_state(self) -> float:
        rate = self.plan.optimizer.rate
        if RATE in self.states:
            return float(self.states[RATE])
        return float(rate) if isinstance(rate, int | float) else 1.0

    @property
    def loss_scale(self) -> float | None:
        """Factor on the loss in float16 (see `train.step.Scaling`); None in other precisions."""
        return float(self.states[SCALE]) if SCALE in self.states else None

    def overflow(self, feeds: Feeds, *, loss_scale: float | None = None) -> tuple[Overflow, ...]:
        """Try the next step on copies of the states, and tell where numbers first ceased to be finite: operators in
        the order of execution, none if all is finite. `loss_scale` is tried in place of the present one. Slow: the
        step is planned anew. Raises InputError for a loss scale where there is none."""
        session = Session(self.graph_of_step, states=tried(self.states, loss_scale), **self._how)
        session.next_run = self._calls + 1
        return overflows(session, self._fed(feeds)[0])

    def fit(
        self,
        batches: Iterable[Feeds] | Callable[[int], Iterable[Feeds]],
        *,
        epochs: int = 1,
        validate: Iterable[Feeds] | None = None,
        callbacks: Sequence[Callback] = (),
        on_step: Callable[[int, float], Any] | None = None,
        on_epoch: Callable[[int, Metrics], Any] | None = None,
        **others: Any,
    ) -> list[Metrics]:
        """Learn from all batches, `epochs` times; returns the metrics of each epoch.

        `batches` is a sequence of feeds, or a function that makes them for an epoch's number. With `validate` other
        data are evaluated after each epoch. `callbacks` (see `mz.callbacks`) are told the begin and the end of each
        step, epoch and fit; a truthy answer of `on_step(number of the call, loss)` or `on_epoch(number, metrics)` ends
        the training. With a store that sums, callbacks see numbers over all workers, so that all decide alike.
        """
        refuse(others, "fit", FIT, Trainer.fit.__annotations__)
        check_repeatable(batches, validate, epochs)
        told = [*callbacks, *([Functions(on_step, on_epoch)] if on_step or on_epoch else [])]
        back, self._callbacks, self._resumed = Resumed(told, self._resumed), told, {}
        exchange = self.exchange if callbacks else None
        whole = exchange is not None and exchange.workers > 1 and not exchange.on_store

        def step(feeds: Feeds) -> StepMetrics:
            self.step(feeds)
            return self.last

        run = follow(
            Run(self, epochs),
            batches if callable(batches) else lambda epoch: batches,
            [*told, back],
            begin=self.reset_metrics,
            step=step,
            ended=lambda: self.metrics(everywhere=whole),
            validated=lambda: None if validate is None else self.evaluate(validate, everywhere=whole),
        )
        self.history = run.history
        return [metrics for metrics, _ in run.history]

    def snapshot(self) -> dict[str, Array]:
        """A copy of all states: what is learned, the optimizer's numbers, running statistics."""
        if self._team is None:
            return {n: np.array(a) for n, a in whole_states(self._products, self.states).items()}
        found: list[dict[str, Array]] = self._everywhere(
            lambda r: whole_snapshots({n: np.array(a) for n, a in r.states.items()}, r.graph_of_step, r.exchange)
        )
        return found[0]

    def restore(self, snapshot: Mapping[str, Array]) -> None:
        """Go back to a copy of the states."""
        snapshot = own_states(self._products, snapshot)
        for rank in self._ranks:
            one = self._team is None  # else the copy has the states of one device
            own = snapshot if one else own_snapshots(snapshot, rank.states, rank.graph_of_step, rank.exchange)
            for name, array in own.items():
                rank.states[name][...] = array
            rank._fraction = float("nan")  # the copy has that of its batch
            rank._held = rank._rate_state()

    def metrics(self, *, everywhere: bool = False) -> Metrics:
        """Return the metrics since the last reset: of this worker or, if every worker asks, `everywhere`."""
        everywhere = everywhere or self._team is not None
        found: list[Metrics] = self._everywhere(
            lambda rank: metrics_of(rank.states, rank._measures, self.terms, rank.exchange if everywhere else None)
        )
        return found[0]

    def reset_metrics(self) -> None:
        """Count from nothing."""
        for rank in self._ranks:
            zeroed(rank.states, rank._measures)

    def evaluate(self, batches: Iterable[Feeds], *, everywhere: bool = False) -> Metrics:
        """The metrics of the model in inference mode on other data; nothing is learned. With `everywhere` each worker
        gives batches of its own, perhaps none, and all get the metrics over all."""
        if self._evaluation is None:
            plain, _ = self._judged(modes.inference(straight_through(self.source)))
            plain = plain if self._products is None else self._products.graph(plain)
            graph, states = evaluation_of(plain, self._reads, self.states)
            self._evaluation = Session(graph, states=states, **self._how)
        session = self._evaluation
        measures = [(term, [copy(m) for m in metrics]) for term, metrics in self._measures]
        zeroed(session.states, measures)
        for feeds in batches:
            fed, _ = self._fed(feeds)
            measure(measures, session.run(fed), fed)
        if self.exchange is None and not float(session.states[SEEN]):
            raise InputError("nothing to evaluate: no batches", where="evaluate", hint=NO_BATCHES)
        several = everywhere and self._team is None  # a team's first device has seen them all
        return metrics_of(session.states, measures, self.terms, self.exchange if several else None)

    # -- checkpoints ------------------------------------------------------------------------------------------------

    def save(self, folder: str | os.PathLike[str], *, keep: int = 1) -> None:
        """Write a checkpoint, from which a Trainer made in the same way goes on to the same bits. What the caller has
        put into `notes` (a position in the data, ...) goes with it, as JSON, and so does what callbacks of `fit` count.
        The newest `keep` stay, and the newest that is whole is resumed.

        Of a job every worker calls it, and rank 0 writes: its parameters are those of all, its statistics of batch
        normalisation are its own. What the optimizer keeps on the store is written beside.
        """
        exchange = self.exchange
        states, parts = self._everywhere(lambda rank: rank._gathered(folder))[0]
        told = whole_snapshots(states_of(self._callbacks) or self._resumed, self.graph_of_step, exchange)
        if exchange is None or exchange.rank == 0:
            how = digest_of_step(self), self._optimizer.to_dict()
            made = checkpoint.Checkpoint(states, self._calls, *how, dict(self.notes), told, parts)
        if exchange is None:
            checkpoint.save(folder, made, keep)
            return
        if isinstance(exchange, Exchange) and exchange.on_store and exchange.joined:
            Path(folder).mkdir(parents=True, exist_ok=True)
            exchange.store.save_optimizer_states(checkpoint.beside(folder, self._calls))
        if exchange.rank == 0:
            checkpoint.save(folder, made, keep)
            checkpoint.tidy_beside(folder, self._calls, keep)
        if self._team is None:
            exchange.barrier()

    def _gathered(self, folder: str | os.PathLike[str]) -> tuple[dict[str, Array], checkpoint.Parts | None]:
        """The states of a checkpoint, and the parts of all ranks, of which this one writes its own."""
        if self.exchange is not None:
            self.exchange.compare(self.parameters)
        own = folder, self.states, self.graph_of_step, self.exchange, self._lost
        states, parts = collected(*own, -self._calls % self.plan.gather)
        return dict(whole_states(self._products, states)), parts

    def resume(self, folder: str | os.PathLike[str]) -> Mapping[str, Any]:
        """Go on from a checkpoint; returns its notes. InputError where it belongs to another model or plan. The next
        `fit` gives its callbacks the counts that they had.

        Of a job every worker calls it, with a folder that all of them see; with the optimizer on the store before the
        first step.
        """
        for other in self._ranks[1:]:
            other.resume(folder)
        if self.exchange is not None:
            self.exchange.drop_losses()
        if self.exchange is not None and self.exchange.on_store and self.exchange.joined:
            hint = "resume before the first step"
            raise InputError("the store has its parameters already", where="resume", hint=hint)
        found = checkpoint.load(folder)
        if found.graph != digest_of_step(self):
            hint = "make the Trainer with the model and the options that it had"
            raise InputError("the checkpoint was written by a training of another graph", where=str(folder), hint=hint)
        arrays = own_states(self._products, read(found, self.states, self.graph_of_step, self.exchange))
        for name, array in self.states.items():
            if name not in arrays or type_of(arrays[name]) != type_of(array):
                raise InputError(f"the checkpoint has no {type_of(array)} {name!r}", where=str(folder))
        for name, array in self.states.items():
            array[...] = arrays[name]
        self._calls, self.notes, self._held = found.run, dict(found.notes), self._rate_state()
        self._callbacks = ()
        self._resumed = found.callbacks
        if self._team is None:
            self._resumed = own_snapshots(found.callbacks, self.states, self.graph_of_step, self.exchange)
        self._lost = {n: a for n, a in found.arrays.items() if n.startswith(LOST)}
        if self.exchange is not None and self.exchange.joined:
            self.exchange.give_losses(self._lost)
        beside = checkpoint.beside(folder, self._calls)
        self._kept = beside if beside.exists() else None
        return self.notes

    def load_states(
        self, source: str | os.PathLike[str] | bytes, names: Sequence[str] = (), *, updates: int | None = None
    ) -> None:
        """Take up a file of states that MXNet's Trainer or module has written, whose parameters are the model's: see
        `take_up` in train/from_mxnet.py for `names` and `updates`. InputError where they are not of this training."""
        if self.exchange is not None:
            raise InputError("states of MXNet with a kvstore", where="load_states", hint="save, and resume the job")
        rates = partial(schedules.now, self.plan.optimizer.rate, held=self._held)
        take_up(source, self.states, self.plan.optimizer, self.trained, rates, names, updates)

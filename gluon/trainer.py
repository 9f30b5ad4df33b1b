"""The trainer of blocks: takes the gradients that backward has left in parameters, and updates the parameters in one
program."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import nd
from ..kvstore.recording import begins
from ..nd.array import Array
from ..nd.compiled import CompiledFunction, initial_value
from ..nd.files import ending_of_content
from ..nd.random import generator
from ..nd.running import one_place
from ..nd.sparse import RowSparse
from ..ops.arguments import check_arguments
from ..ops.errors import InputError
from ..ops.math.random import mix
from ..runtime import optimizer as optimizers
from ..runtime.optimizer import Group, Optimizer, schedule
from ..runtime.optimizer.names import RENAMED
from ..runtime.optimizer.schedule import Schedule
from ..train.agree import agree, code
from ..train.building import COUNT, SCALE, Scaling, Shared, Step
from ..train.exchange import COMPARED, check_sums, prefix_of_next, take_store
from ..train.step import ids_of, update_graph
from .names import TRAINER
from .parameter import Parameter

if TYPE_CHECKING:
    from ..kvstore.drift import Drift
    from ..kvstore.store import KVStore


class Trainer:
    """Updates parameters by an optimizer: `step(batch_size)` after each backward.

    `optimizer` is one of mz.optimizer, or a name with `optimizer_params`; parameters' `lr_mult` and `wd_mult` weigh its
    rate and decay. A parameter whose `grad_req` becomes "null" keeps its numbers and the optimizer's until it learns
    again, and what it has missed is no update of it; over a store all workers do so at the same step. With a `kvstore`
    the gradients of all workers are summed first, or (`update_on_kvstore`) the optimizer runs there. `clip_norm` bounds
    the norm of all gradients together, `clip_value` each of their elements, after the mean is taken. `gather` is how
    many calls of `step` make one update, by the mean over all their examples. `scaling` (True, or a Scaling of mz.amp)
    expects gradients of a loss that is multiplied by `loss_scale`, as float16 wants it: an update whose gradients
    overflow is left out. All workers begin with the numbers of the first: those of parameters whose shapes are open are
    told after the first backward, so give `in_units` and the like, or the same seed to all. Every `compare_every`
    updates (0: never) workers compare digests of the parameters, where a sequential store keeps them alike.

    >>> from mezzo.gluon import nn
    >>> from mezzo import autograd, nd
    >>> net = nn.Dense(1, use_bias=False, in_units=2).initialize("ones")
    >>> trainer = Trainer(net.collect_params(), "sgd", {"learning_rate": 0.5})
    >>> with autograd.record():
    ...     loss = net(nd.ones((4, 2)))
    >>> loss.backward()
    >>> trainer.step(4)
    >>> net.weight.data().asnumpy()
    array([[0.5, 0.5]], dtype=float32)
    """

    def __init__(
        self,
        params: Mapping[str, Parameter] | Sequence[Parameter],
        optimizer: Optimizer | str = "sgd",
        optimizer_params: Mapping[str, Any] | None = None,
        kvstore: KVStore | str | None = None,
        update_on_kvstore: bool = False,
        clip_norm: float | None = None,
        clip_value: float | None = None,
        gather: int = 1,
        scaling: Scaling | bool = False,
        compare_every: int = COMPARED,
        **others: Any,
    ) -> None:
        check_arguments(type(self), others, TRAINER)
        named = dict(params) if isinstance(params, Mapping) else {p.name: p for p in params}
        if not isinstance(params, Mapping) and len(named) < len(params):
            raise InputError("two parameters of one name", where="Trainer", hint="give collect_params()")
        self._all = named
        self._used: dict[str, tuple[Any, int]] = {}  # the gradients of the last step, to know them again
        self._stale: set[str] = set()  # what a step that ignores them leaves alone
        chosen = _optimizer(optimizer, optimizer_params or {})
        shared = Shared(1, on_store=True) if update_on_kvstore else None
        scales = Scaling() if scaling is True else scaling or None
        self._step = Step(chosen, clip_norm, clip_value, scaling=scales, shared=shared)
        if gather < 1 or (gather > 1 and any(p.grad_req == "add" for p in self.params.values())):
            raise InputError(
                f"gather={gather}" + " of gradients that are added" * (gather > 1),
                where="Trainer",
                hint="a number above 0; with grad_req='add' call step() when an update is due",
            )
        self._gather, self._calls, self._examples = gather, 0, 0
        self._gathered: dict[str, Any] = {}
        self._updates, self._seed = 0, 0
        self._function: CompiledFunction | None = None
        self._states: dict[str, Any] = {}  # the memory of parameters, gradients, and what the optimizer keeps
        self._program: dict[str, tuple[Any, ...]] = {}  # what of the parameters is part of the function
        self._missed: dict[
            str, int
        ] = {}  # updates that a parameter has not had, while it learns; else those it has had
        self._on_store, self._kv = update_on_kvstore, _store(kvstore)
        self._prefix = "" if self._kv is None else prefix_of_next(self._kv)
        self._joined: set[str] = set()  # the parameters that the store has
        self._on_store_as: Optimizer | None = None  # to the store
        alike = self._kv is not None and self._kv.num_workers > 1 and {*self._kv.consistency} == {"sequential"}
        self._compare_every = compare_every if alike else 0
        self._drifts: dict[tuple[str, ...], Drift] = {}
        if update_on_kvstore and self._kv is None:
            raise InputError("update_on_kvstore without a kvstore", where="Trainer")
        if self._kv is not None and self._kv.rejoins and self._kv.num_workers > 1:
            warnings.warn(
                "when a worker dies, all begin again: mz.Trainer goes on, gluon.Trainer does not", stacklevel=2
            )
        if self._kv is not None and all(p.known and p._data is not None for p in self._all.values()):
            self._join(self._kv, [*self._all])

    @property
    def params(self) -> dict[str, Parameter]:
        """The parameters that learn now."""
        return {n: p for n, p in self._all.items() if p.grad_req != "null" and n not in self._stale}

    @property
    def optimizer(self) -> Optimizer:
        """Its optimizer, with a group for each parameter that has weights of its own."""
        return _weighed(self._step.optimizer, self._all)

    @property
    def learning_rate(self) -> float:
        """The rate of the next update; set it to another number at any time.

        >>> from mezzo.gluon import nn
        >>> trainer = Trainer(nn.Dense(1, in_units=1).initialize().collect_params(), "adam")
        >>> trainer.learning_rate /= 10
        >>> trainer.learning_rate
        0.0001
        """
        return schedule.at(self._step.optimizer.rate, self.updates)

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        self.set_learning_rate(rate)

    @property
    def updates(self) -> int:
        """Number of updates that the parameters have had, without those skipped because a gradient overflowed."""
        return self._updates if self._step.scaling is None else int(self._state(COUNT))

    @property
    def loss_scale(self) -> float:
        """Factor on the loss before backward (mz.amp.scale_loss applies it): 1 without `scaling`."""
        return 1.0 if self._step.scaling is None else float(self._state(SCALE))

    def _state(self, name: str) -> Any:
        """A number of the program, when all updates that were asked for are made."""
        _, arrays = self._ready()
        for a in arrays.values():
            a.wait_to_read()
        return self._states[name]

    def set_learning_rate(self, rate: Schedule | float) -> None:
        """Have another rate, or a schedule of them, from the next update on. Raises InputError where the optimizer runs
        on the store."""
        if self._on_store:
            raise InputError(
                "the optimizer runs on the store with the rate that it was given",
                where="Trainer.learning_rate",
                hint="give a schedule of mz.schedule, or let the workers update: update_on_kvstore=False",
            )
        chosen = self._step.optimizer
        former, now = chosen.rate, float(rate) if isinstance(rate, int | float) else rate
        self._step = replace(self._step, optimizer=replace(chosen, rate=now))
        if not (isinstance(former, int | float) and isinstance(now, float)):
            self._function = None  # a schedule is part of the program, which is made anew

    def step(self, batch_size: int = 1, ignore_stale_grad: bool = False) -> None:
        """Update by the mean of the gradients over the examples of this call: `batch_size` are those of this worker,
        and the gradients of all are summed and divided by all of them, where there are several. With `gather` only
        every so many calls do; the others add this call's gradients to those that wait.

        Raises InputError for a parameter whose gradient nothing has written since the last step;
        `ignore_stale_grad=True` leaves it alone in this one, as if it were frozen."""
        with self._over_fresh(ignore_stale_grad):
            self._take_step(batch_size)

    def _take_step(self, batch_size: int) -> None:
        examples = self._together(batch_size)
        if not examples:
            return
        if self._kv is None:
            self._update(examples)
            return
        self._exchange(examples)
        if self._on_store:
            self._updates += 1
        else:
            self._update(examples * self._kv.num_workers)
        if self._compare_every and self._updates % self._compare_every == 0:
            self._compare(self._kv)
        self._kv.stepped()

    @contextmanager
    def _over_fresh(self, ignore: bool) -> Iterator[None]:
        """Have `params` without those whose gradients are of an earlier step. Raises InputError naming them, unless
        they are to be ignored."""
        stale = [n for n, p in self.params.items() if _mark(p) == self._used.get(n, (None, 0))]
        if stale and not ignore:
            told = ", ".join(stale[:4]) + ", ..." * (len(stale) > 4)
            raise InputError(
                f"no backward has written the gradients of {told} since the last step",
                where="Trainer.step",
                hint="step(n, ignore_stale_grad=True) leaves them alone; so does grad_req = 'null', for longer",
            )
        self._stale = {*stale}
        try:
            yield
        finally:
            self._used |= {n: _mark(p) for n, p in self.params.items()}
            self._stale = set()

    def _compare(self, kv: KVStore) -> None:
        """PeerError naming the first parameter that differs among workers, and the ranks."""
        params = self.params
        drift = self._drifts.get((*params,))
        if drift is None:
            from ..kvstore.drift import Drift

            drift = Drift(kv, [*params], f"{self._prefix}parameters{len(self._drifts) or ''}")
            self._drifts[(*params,)] = drift
        drift.check({n: p.data().asnumpy() for n, p in params.items()}, f" after update {self._updates}")

    def _together(self, batch_size: int) -> int:
        """The examples of an update that is due, whose gradients lie in the parameters; 0 where none is."""
        if batch_size < 1:
            raise InputError(f"a batch of {batch_size} examples", where="Trainer.step")
        if self._gather == 1:
            return batch_size
        self._calls, self._examples = self._calls + 1, self._examples + batch_size
        due = self._calls % self._gather == 0
        for name, p in self.params.items():
            if name not in self._gathered:
                self._gathered[name] = p.grad().copy()
            else:
                held = self._gathered[name]
                held += p.grad()
            if due:
                p.set_grad(self._gathered[name])
        if not due:
            return 0
        examples, self._examples = self._examples, 0
        self._gathered.clear()
        return examples

    def allreduce_grads(self) -> None:
        """The mean of all workers' gradients, to look at before `update`."""
        if self._kv is None or self._on_store:
            raise InputError("there is no store that sums gradients", where="Trainer", hint="give kvstore=")
        self._exchange(1)
        for p in self.params.values():
            gradient = p.grad()
            gradient /= self._kv.num_workers

    def update(self, batch_size: int = 1, ignore_stale_grad: bool = False) -> None:
        """Update by this worker's gradients, of which the same holds as in `step`. Raises InputError where the
        optimizer runs on the store."""
        if self._on_store:
            raise InputError("the optimizer runs on the store", where="Trainer.update", hint="call step()")
        with self._over_fresh(ignore_stale_grad):
            self._update(batch_size)

    def _update(self, batch_size: int) -> None:
        params, rate = self.params, self._step.optimizer.rate
        if not params:
            return
        function, _ = self._ready()
        feeds: dict[str, Any] = {"scale": np.array(1 / batch_size)}
        if isinstance(rate, int | float):
            feeds["rate"] = np.array(rate, np.float64)
        for n, p in params.items():
            p.data()._var.edition += 1
            if p.grad_stype != "default":
                feeds |= _rows(n, p.grad())
        self._updates += 1
        function([feeds[n] for n in function.inputs], (self._seed, self._updates))

    def _ready(self) -> tuple[CompiledFunction, dict[str, Array]]:
        params = self.params
        arrays = {n: p.data() for n, p in params.items()}
        arrays |= {_gradient(n): p.grad() for n, p in params.items() if p.grad_stype == "default"}
        program = {n: (p.lr_mult, p.wd_mult, p.grad_stype) for n, p in params.items()}
        if self._function is None or program != self._program or not self._function.over(arrays):
            self._count_apart({*self._program} ^ {*program})
            missed = {n: self._missed[n] for n in params if self._missed.get(n)}
            sparse = [n for n, p in params.items() if p.grad_stype != "default"]
            values, step = {n: initial_value(arrays[n]) for n in params}, replace(self._step, optimizer=self.optimizer)
            graph = update_graph(values, step, _gradient, sparse, missed)
            place = one_place("Trainer", [*arrays.values()])
            if step.optimizer.draws and not self._seed:
                self._seed = mix(generator(place).advance())[0]
            kept = {s.input: self._states[s.input] for s in graph.states if s.input in self._states}
            self._function = CompiledFunction(graph, "update", place, arrays, kept)
            self._states |= {n: x for n, x in self._function.session.states.items() if n not in arrays}
            self._program = program
        return self._function, arrays

    def _count_apart(self, names: Iterable[str]) -> None:
        """These parameters begin or cease to learn: each has an own number of updates from there on."""
        if COUNT in self._states:
            for p in self._all.values():
                if p._data is not None:
                    p._data.wait_to_read()
            count = int(self._states[COUNT])
            self._missed |= {n: count - self._missed.get(n, 0) for n in names}

    def _facts(self) -> dict[str, str]:
        """Return the facts that all workers of a job must have in common."""
        step = self._step
        return {
            "the optimizer": f"{self.optimizer}" + " on the store" * self._on_store,
            "clipping and gathering": f"clip_norm={step.clip_norm}, clip_value={step.clip_value}, "
            f"gather={self._gather}, scaling={step.scaling}",
            "what learns": ", ".join(f"{n} {p.dtype}{list(p.shape or ())}" for n, p in self.params.items()),
            "the code of mezzo": code(),
        }

    def _joined_store(self) -> KVStore:
        assert self._kv is not None
        if new := [n for n in self._all if n not in self._joined and (not self._joined or n in self.params)]:
            self._join(self._kv, new)
        return self._kv

    def _settled(self) -> KVStore:
        """The store, when all updates that were asked for are made there."""
        kv = self._joined_store()
        for p in self.params.values():
            p.data().wait_to_read()
        return kv

    def _join(self, kv: KVStore, names: Sequence[str]) -> None:
        """Have parameters in the store, from which all workers take them."""
        first = not self._joined
        if first:
            agree(kv, self._prefix, self._facts())
        data = {self._prefix + n: self._all[n].data() for n in names}
        kv.init(data)
        if first:
            self._on_store_as = self.optimizer if self._on_store else None
            take_store(kv, self, self._prefix, self._on_store_as)
        kv.pull(data)
        if first:
            begins(lambda: {n: p.data() for n, p in self.params.items()})
        self._joined |= {*names}

    def _exchange(self, batch_size: int) -> None:
        """Workloads of the engine: those of a parameter wait for its gradient, and what reads it next waits for them.
        The first parameters are wanted first."""
        kv = self._joined_store()
        if not self._on_store:
            check_sums(kv)
        elif self.optimizer != self._on_store_as:
            raise InputError(
                "the store steps by the lr_mult and wd_mult that parameters had at first",
                where="Trainer.step",
                hint="set them before the Trainer is made, or let the workers update: update_on_kvstore=False",
            )
        for number, (name, p) in enumerate(self.params.items()):
            key = self._prefix + name
            if self._on_store:
                kv.push(key, p.grad() / (batch_size * kv.num_workers), priority=-number)
                kv.pull(key, p.data(), priority=-number)
            else:
                kv.pushpull(key, p.grad(), p.grad(), priority=-number)

    def save_states(self, path: str | os.PathLike[str]) -> None:
        """Write the optimizer's states to a file of any name: safetensors, or .npz where it is called so. Where the
        optimizer runs on the store, its states are there: every worker calls this, and rank 0 writes safetensors."""
        if self._gathered:
            raise InputError(
                f"{self._calls % self._gather} of {self._gather} calls of an update are made",
                where="Trainer.save_states",
                hint="save after a step that updates",
            )
        if self._on_store:
            self._settled().save_optimizer_states(path)
            return
        _, arrays = self._ready()
        for a in arrays.values():
            a.wait_to_read()
        kept = {n: nd.asarray(np.array(v)) for n, v in self._states.items()}
        count = int(self._states[COUNT])
        for n in self._all:
            had = count - self._missed.get(n, 0) if n in self.params else self._missed.get(n, 0)
            if had != count and any(_slot(s, n) in kept for s in self._step.optimizer.slots):
                kept[_own(n)] = nd.asarray(np.array(had))
        nd.save(path, kept, ending=".npz" if str(path).endswith(".npz") else ".safetensors")

    def load_states(
        self, path: str | os.PathLike[str], names: Sequence[str] = (), *, updates: int | None = None
    ) -> None:
        """Take up states that `save_states` has written, or MXNet has, for which `names` and `updates` are
        explained at `take_up` in train/from_mxnet.py. Raises InputError where they are not those of this trainer,
        ModelError where the optimizer runs on the store; every worker calls it then."""
        ending = None if self._on_store else ending_of_content(path)
        if ending is None and not self._on_store and not str(path).endswith((".npz", ".safetensors")):
            from ..train.from_mxnet import take_up

            self._ready()
            for p in self.params.values():
                p.data().wait_to_read()
            rates = partial(schedule.at, self.optimizer.rate)
            self._updates = take_up(path, self._states, self.optimizer, [*self.params], rates, names, updates)
            self._missed, self._function = {}, None
            return
        if names or updates is not None:
            raise InputError("names= and updates= are for states of MXNet", where=str(path), hint="leave them out")
        if self._on_store:
            from ..kvstore.states import read_states

            self._settled().load_optimizer_states(path)
            counts = read_states(path).updates
            self._updates = max((counts.get(self._prefix + name, 0) for name in self.params), default=0)
            return
        _, arrays = self._ready()
        for a in arrays.values():
            a.wait_to_read()
        stored = nd.load(path, ending=ending)
        assert isinstance(stored, Mapping)
        own = {n: int(stored[_own(n)].item()) for n in self._all if _own(n) in stored}
        given = {n: x for n, x in stored.items() if n not in {*map(_own, own)}}
        resting = {n: [_slot(s, n) for s in self._step.optimizer.slots] for n in self._all if n not in self.params}
        odd = ({*self._states} ^ {*given}) - {slot for slots in resting.values() for slot in slots}
        if odd:
            told = ", ".join(sorted(odd)[:4])
            raise InputError(f"other states: {told}", where=str(path), hint="the same optimizer and parameters")
        for n, x in given.items():
            if n in self._states:
                self._states[n][...] = x.asnumpy()
            else:  # of a parameter that does not learn now
                self._states[n] = x.asnumpy().copy()
        self._updates = count = int(self._states[COUNT])
        self._missed = {n: count for n, slots in resting.items() if any(slot in given for slot in slots)}
        self._missed |= {n: had if n in resting else count - had for n, had in own.items()}
        self._function = None


def _mark(p: Parameter) -> tuple[Any, int]:
    """A mark of the gradient of a parameter, which is another one when it has been written; (None, 0) before that."""
    grad = p.grad()
    if isinstance(grad, RowSparse):
        return grad._rows._var, 1
    return (grad._var, grad._var.edition) if grad._var.edition else (None, 0)


def _slot(slot: str, name: str) -> str:
    return f"optimizer/{slot}/{name}"


def _own(name: str) -> str:
    """The name of the updates that a parameter has had, where these are not those of the trainer."""
    return f"optimizer/updates/{name}"


def _gradient(name: str) -> str:
    return f"{name}@gradient"


def _rows(name: str, gradient: RowSparse) -> dict[str, Array]:
    """A gradient of rows as the update's program is fed with it."""
    return {ids_of(_gradient(name)): gradient._ids, _gradient(name): gradient._rows}


def _optimizer(given: Optimizer | str, params: Mapping[str, Any]) -> Optimizer:
    if isinstance(given, Optimizer):
        if params:
            raise InputError("optimizer_params beside an optimizer", where="Trainer", hint="give them to the optimizer")
        return given
    settings = {RENAMED.get(n, n): v for n, v in params.items()}
    return optimizers.create(given, **settings)


def _weighed(optimizer: Optimizer, params: Mapping[str, Parameter]) -> Optimizer:
    """The optimizer with a group for each parameter that has weights of its own."""
    own = [(n, p) for n, p in params.items() if (p.lr_mult, p.wd_mult) != (1.0, 1.0)]
    if not own:
        return optimizer
    groups = tuple(Group((n,), optimizer.group(n).scale * p.lr_mult, optimizer.decay(n) * p.wd_mult) for n, p in own)
    return replace(optimizer, groups=(*groups, *optimizer.groups))


def _store(kvstore: KVStore | str | None) -> KVStore | None:
    if not isinstance(kvstore, str):
        return kvstore
    from ..kvstore.create import create

    return create(kvstore)

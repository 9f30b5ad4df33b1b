"""The trainer of blocks: takes the gradients that backward has left in parameters, and updates them in one program."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..ops.errors import InputError
from ..runtime import arrays as nd
from ..runtime import optimizer as optimizers
from ..runtime.arrays.array import Array
from ..runtime.arrays.running import memory, one_place
from ..runtime.arrays.runs import first
from ..runtime.arrays.runs import states as of_arrays
from ..runtime.engine import engine
from ..runtime.optimizer import Group, Optimizer
from ..runtime.session import Session
from ..train.exchange import prefix_of_next
from ..train.step import Step, update_graph
from .parameter import Parameter

if TYPE_CHECKING:
    from ..kvstore.store import KVStore

NAMED = {n.lower(): n for n in ("SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adadelta", "LAMB", "LARS", "Lion")}
OLD = {"learning_rate": "rate", "wd": "weight_decay"}  # MXNet's words


class Trainer:
    """Updates parameters by an optimizer: `step(batch_size)` after each backward.

    `optimizer` is one of mz.optimizer, or a name with `optimizer_params`; parameters' `lr_mult` and `wd_mult` weigh its
    rate and decay. With a `kvstore` the gradients of all workers are summed first, or (`update_on_kvstore`) the
    optimizer runs there. All workers begin with the numbers of the first: those of parameters whose shapes are open are
    told after the first backward, so give `in_units` and the like, or the same seed to all.

    >>> from mezzo.gluon import nn
    >>> from mezzo.runtime import arrays as nd, autograd
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
    ) -> None:
        named = dict(params) if isinstance(params, Mapping) else {p.name: p for p in params}
        if not isinstance(params, Mapping) and len(named) < len(params):
            raise InputError("two parameters of one name", where="Trainer", hint="give collect_params()")
        self.params = {n: p for n, p in named.items() if p.grad_req != "null"}
        self._step = Step(_weighed(_optimizer(optimizer, optimizer_params or {}), self.params), clip_norm=clip_norm)
        self._session: Session | None = None
        self._memory: dict[str, Any] = {}
        self._on_store, self._kv = update_on_kvstore, _store(kvstore)
        self._prefix = "" if self._kv is None else prefix_of_next(self._kv)
        self._joined = False
        if update_on_kvstore and self._kv is None:
            raise InputError("update_on_kvstore without a kvstore", where="Trainer")
        if self._kv is not None and all(p.known and p._data is not None for p in self.params.values()):
            self._join(self._kv)

    @property
    def optimizer(self) -> Optimizer:
        return self._step.optimizer

    @property
    def learning_rate(self) -> float:
        """The rate. Raises InputError where a schedule decides it."""
        if not isinstance(self.optimizer.rate, int | float):
            raise InputError("the rate follows a schedule", where="Trainer.learning_rate")
        return float(self.optimizer.rate)

    def step(self, batch_size: int = 1) -> None:
        """Sum the gradients of all workers, if there are several; update by their mean over `batch_size` examples."""
        if self._kv is None:
            self.update(batch_size)
            return
        self._exchange(batch_size)
        if not self._on_store:
            self.update(batch_size * self._kv.num_workers)

    def allreduce_grads(self) -> None:
        """The mean of all workers' gradients, to look at before `update`."""
        if self._kv is None or self._on_store:
            raise InputError("there is no store that sums gradients", where="Trainer", hint="give kvstore=")
        self._exchange(1)
        for p in self.params.values():
            gradient = p.grad()
            gradient /= self._kv.num_workers

    def update(self, batch_size: int = 1) -> None:
        """Update by this worker's gradients."""
        session, arrays = self._ready()
        reads = [a._var for a in arrays.values()]
        writes = [p.data()._var for p in self.params.values()]
        for p in self.params.values():
            p.data()._var.edition += 1
        scale = np.float64(1 / batch_size)
        engine().push(lambda: session.run({"scale": scale}), reads, writes, name="update")

    def _ready(self) -> tuple[Session, dict[str, Array]]:
        arrays = {n: p.data() for n, p in self.params.items()}
        arrays |= {_gradient(n): p.grad() for n, p in self.params.items()}
        lies = {n: memory(a) for n, a in arrays.items()}
        if self._session is None or any(self._memory.get(n) is not m for n, m in lies.items()):
            graph = update_graph({n: first(lies[n]) for n in self.params}, self._step, _gradient)
            kept = {} if self._session is None else self._session.states
            states = {s.input: kept.get(s.input, np.array(graph.initializers[s.input])) for s in graph.states}
            place = one_place("Trainer", [*arrays.values()])
            held = {**states, **of_arrays(lies)}
            self._session, self._memory = Session(graph, states=held, device=place.device), lies
        return self._session, arrays

    def _join(self, kv: KVStore) -> None:
        data = {self._prefix + n: p.data() for n, p in self.params.items()}
        kv.init(data)
        if self._on_store:
            kv.set_optimizer(self._step.optimizer)
        kv.pull(data)
        self._joined = True

    def _exchange(self, batch_size: int) -> None:
        """Workloads of the engine: those of a parameter wait for its gradient, and what reads it next waits for them.
        The first parameters are wanted first."""
        kv = self._kv
        assert kv is not None
        if not self._joined:
            self._join(kv)
        for number, (name, p) in enumerate(self.params.items()):
            key = self._prefix + name
            if self._on_store:
                kv.push(key, p.grad() / (batch_size * kv.num_workers), priority=-number)
                kv.pull(key, p.data(), priority=-number)
            else:
                kv.pushpull(key, p.grad(), p.grad(), priority=-number)

    def save_states(self, path: str | os.PathLike[str]) -> None:
        """Write the optimizer's states to a file (.safetensors or .npz)."""
        session, arrays = self._ready()
        for a in arrays.values():
            a.wait_to_read()
        nd.save(path, {n: nd.asarray(np.array(v)) for n, v in session.states.items() if n not in arrays})

    def load_states(self, path: str | os.PathLike[str]) -> None:
        """Take up states that `save_states` has written. Raises InputError where they are not those of this trainer."""
        session, arrays = self._ready()
        stored = nd.load(path)
        assert isinstance(stored, Mapping)
        mine = {n for n in session.states if n not in arrays}
        if mine != {*stored}:
            odd = ", ".join(sorted(mine ^ {*stored})[:4])
            raise InputError(f"other states: {odd}", where=str(path), hint="the same optimizer and parameters")
        for n in mine:
            session.states[n][...] = stored[n].asnumpy()


def _gradient(name: str) -> str:
    return f"{name}@gradient"


def _optimizer(given: Optimizer | str, params: Mapping[str, Any]) -> Optimizer:
    if isinstance(given, Optimizer):
        if params:
            raise InputError("optimizer_params beside an optimizer", where="Trainer", hint="give them to the optimizer")
        return given
    if given.lower() not in NAMED:
        raise InputError(f"there is no optimizer {given!r}", where="Trainer", hint=f"one of {', '.join(NAMED)}")
    found: Optimizer = getattr(optimizers, NAMED[given.lower()])(**{OLD.get(n, n): v for n, v in params.items()})
    return found


def _weighed(optimizer: Optimizer, params: Mapping[str, Parameter]) -> Optimizer:
    """The optimizer with a group for each parameter that has weights of its own."""
    own = [(n, p) for n, p in params.items() if (p.lr_mult, p.wd_mult) != (1.0, 1.0)]
    if not own:
        return optimizer
    groups = tuple(Group((n,), p.lr_mult, optimizer.decay(n) * p.wd_mult) for n, p in own)
    return replace(optimizer, groups=(*groups, *optimizer.groups))


def _store(kvstore: KVStore | str | None) -> KVStore | None:
    if not isinstance(kvstore, str):
        return kvstore
    from ..kvstore.create import create

    return create(kvstore)

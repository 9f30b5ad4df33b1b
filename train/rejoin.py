"""Going on when another worker has died: what a Trainer keeps for that, and how it meets the others again.

The store forgets everything when its job gathers again (`KVStore.rejoin`). A step is whole or has not happened: before
each one a Trainer copies its states, and goes back to the copy when the step fails. Then all tell how many steps they
have behind them. Nobody is more than one step ahead, since every step needs all; whoever is furthest gives its states
to those who are not as far, the new worker among them. Sums of gradients, and with them parameters and the optimizer's
states, are the same on all, so that they are to the bit what they would have been.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from ..kvstore.recording import begins
from ..ops.errors import InputError, MezzoError
from ..ops.types import Array
from ..runtime.tensors import decode, encode
from .agree import common_facts
from .exchange import Exchange
from .judged import METRICS

if TYPE_CHECKING:
    from .trainer import Trainer

ABOUT = "about"  # beside the states that are given on: their number, and the notes


class Rejoining:
    """The states of a Trainer before the step under way, and how it goes on from there."""

    def __init__(self, trainer: Trainer, exchange: Exchange) -> None:
        self._trainer, self._exchange = trainer, exchange
        self._kept: dict[str, Array] = {}
        self._theirs: Mapping[str, Array] | None = None  # after a step that this worker has still to make
        self.amid = False  # a step

    def keep(self) -> None:
        """Copy the states as they are."""
        states = self._trainer.states
        if not self._kept:
            self._kept = {name: np.array(array) for name, array in states.items()}
        for name, array in states.items():
            self._kept[name][...] = array

    def step(self, once: Callable[[], float]) -> float:
        """Make a step, if need be again; its loss."""
        self.keep()
        self.amid = True
        try:
            while True:
                try:
                    return once() if self._theirs is None else self._caught_up(once, self._theirs)
                except MezzoError as error:
                    self.meet_again(error)
        finally:
            self.amid = False

    def meet_again(self, error: MezzoError) -> None:
        """Go back to where the step began, and join the job again. Raises the error where it does not go on."""
        while True:
            try:
                self._exchange.rejoin()
            except MezzoError as last:
                raise error from last
            self._theirs = None
            self._restore()
            self._trainer._open(self._trainer.states)
            try:
                _join(self._trainer)
                return
            except MezzoError as another:  # one more has died
                error = another

    def _restore(self) -> None:
        for name, array in self._trainer.states.items():
            array[...] = self._kept[name]

    def _caught_up(self, once: Callable[[], float], theirs: Mapping[str, Array]) -> float:
        """Make a step that the others have behind them: for what is this worker's own of it, with nobody else."""
        self._exchange.alone = True
        try:
            loss = once()
        finally:
            self._exchange.alone = False
        self._take(theirs, own=False)
        self._theirs = None
        return loss

    def _take(self, theirs: Mapping[str, Array], *, own: bool) -> None:
        """Have the states of another worker; those that are each worker's own as well, if this one has none yet."""
        for name, array in self._trainer.states.items():
            if not name.startswith(METRICS) and (own or name not in self._trainer._own):
                array[...] = theirs[name]

    def begin(self) -> None:
        """The workers are about to join, and to get the parameters of rank 0."""
        if not self._kept:
            self.keep()

    def met(self) -> None:
        """The workers have joined. In a job that has gathered again, find out who is furthest, and be as far."""
        trainer, exchange = self._trainer, self._exchange
        if exchange.store.gathering:
            calls = [0.0] * exchange.workers
            calls[exchange.rank] = trainer._calls
            calls = exchange.total(calls)
            most = int(max(calls))
            if most:
                self._restore()
            if min(calls) < most:
                theirs = self._given_on(calls.index(most))
                if trainer._calls < most:
                    self._be_as_far(theirs, most)
        self.keep()

    def _given_on(self, first: int) -> dict[str, Array]:
        """The states of a rank, and what else its Trainer has."""
        trainer, exchange, data = self._trainer, self._exchange, b""
        if exchange.rank == first:
            about = json.dumps({"held": trainer._held, "notes": trainer.notes}).encode()
            data = encode({**trainer.states, ABOUT: np.frombuffer(about, np.uint8)})
        size = int(exchange.total([float(len(data))])[0])
        words = np.frombuffer(data.ljust(-(-size // 8) * 8, b"\0"), np.int64) if data else None
        return decode(exchange.sum_words("trainer/states", words, size))[0]

    def _be_as_far(self, theirs: dict[str, Array], most: int) -> None:
        trainer, about = self._trainer, json.loads(theirs.pop(ABOUT).tobytes())
        if self.amid:
            if trainer._calls + 1 < most:
                raise InputError(
                    f"the other workers have {most} steps behind them, and this one has {trainer._calls}",
                    where=f"rank {self._exchange.rank}",
                    hint="call join() before the first step, and go on from the position that its notes tell",
                )
            self._theirs = theirs  # for the end of the step
            return
        self._take(theirs, own=True)
        trainer._calls, trainer._held, trainer.notes = most, about["held"], about["notes"]


def joined(trainer: Trainer) -> None:
    """Have a Trainer meet the other workers, if it has not yet; outside of a step once more where one of them dies."""
    try:
        _join(trainer)
    except MezzoError as error:
        if trainer._rejoining is None or trainer._rejoining.amid:
            raise
        trainer._rejoining.meet_again(error)


def _join(trainer: Trainer) -> None:
    exchange, again = trainer.exchange, trainer._rejoining
    if exchange is None or exchange.joined:
        return
    if again is not None:
        again.begin()
    learned = trainer.parameters
    facts = common_facts(trainer.plan, str(trainer._precision), trainer.source, learned, trainer._learned_by)
    exchange.join(learned, trainer.plan.optimizer, trainer._kept, facts)
    exchange.give_losses(trainer._lost)
    begins(lambda: {name: np.array(array) for name, array in trainer.parameters.items()})
    if again is not None:
        again.met()


def rejoining(trainer: Trainer) -> Rejoining | None:
    """Return what a Trainer keeps where its job waits for others in the place of workers that die; None where it does
    not or, with a warning, where this training could not go on."""
    exchange = trainer.exchange
    if not isinstance(exchange, Exchange) or not exchange.store.rejoins or exchange.workers == 1:
        return None
    reasons = {
        "the optimizer runs on the store, which forgets": exchange.on_store,
        f"gather={trainer.plan.gather}: each worker has sums of its own": trainer.plan.gather > 1,
        "the store has another Trainer": not exchange.first,
    }
    why = [reason for reason, holds in reasons.items() if holds]
    if why:
        warnings.warn(f"when a worker dies, all begin again, from a checkpoint: {why[0]}", stacklevel=3)
        return None
    trainer._ways = None  # a worker that comes later would measure alone
    return Rejoining(trainer, exchange)

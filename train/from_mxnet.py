"""States of optimizers that MXNet saved, taken up by a trainer: what the file keeps of each parameter in the places of
ours, and the number of updates."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..importers.mxnet import OptimizerStates, read_states
from ..ops.dataclasses import dataclass
from ..ops.errors import InputError
from ..ops.types import Array
from ..runtime.optimizer import SGD, Optimizer
from .building import COUNT

Source = str | os.PathLike[str] | bytes

HINT = "give the trainer the optimizer and the parameters that MXNet's had"


@dataclass(frozen=True, slots=True)
class Kept:
    """The states of a class of MXNet in its order, by our names, and which of them are our state times the rate of the
    update, or times -1: MXNet adds its steps, and has the rate in them."""

    ours: str
    slots: tuple[str, ...]
    stepped: tuple[str, ...] = ()
    negative: tuple[str, ...] = ()


KINDS = {
    "SGD": Kept("SGD", ("velocity",), stepped=("velocity",)),
    "NAG": Kept("NAG", ("velocity",), stepped=("velocity",)),
    "Signum": Kept("Signum", ("mean",), negative=("mean",)),
    "Adam": Kept("Adam", ("mean", "square")),
    "LAMB": Kept("LAMB", ("mean", "square")),
    "AdaGrad": Kept("Adagrad", ("square",)),
    "AdaDelta": Kept("Adadelta", ("square", "step")),
    "RMSProp": Kept("RMSprop", ("square", "mean", "velocity"), stepped=("velocity",)),
    "Ftrl": Kept("Ftrl", ("z", "square")),
}
# Their settings, where they give the states a meaning, and how they are called here.
SETTINGS = {
    "momentum": "momentum", "beta1": "beta1", "beta2": "beta2", "gamma1": "alpha", "gamma2": "momentum", "rho": "rho",
    "centered": "centered",
}  # fmt: skip


def take_up(
    source: Source,
    states: Mapping[str, Array],
    optimizer: Optimizer,
    trained: Sequence[str],
    rate_at: Callable[[int], float],
    names: Sequence[str] = (),
    updates: int | None = None,
) -> int:
    """Put the states of a file into those of a trainer, which learns `trained`; returns the number of updates.

    MXNet numbers parameters; `names` are those of its trainer in its order (Gluon's: `sorted(net.collect_params())`, a
    module's: `symbol.list_arguments()` without data and labels), needed where the file has no names. `updates` is how
    many there were, where the file does not tell; `rate_at` tells the rate of an update. Nothing is changed by what
    does not fit: InputError, and ModelError for a file that is no such.
    """
    where = "load_states" if isinstance(source, bytes) else str(source)
    read = read_states(source)
    kept = _kept(read, optimizer, where)
    by_name = _by_name(read, names, where)
    missing = [n for n in trained if n not in by_name]
    strange = [n for n in by_name if n not in trained]
    if missing or strange:
        lists = ("there are none of", missing), ("nothing learns", strange)
        differing = "; ".join(f"{what} {', '.join(map(repr, which[:4]))}" for what, which in lists if which)
        raise InputError(f"the states are of other parameters: {differing}", where=where, hint=HINT)
    count = _updates(read, optimizer, updates, where)
    converted: dict[str, Array] = {}
    for name in trained:
        arrays = _arrays(name, by_name[name], kept, optimizer, where)
        for slot, array in arrays.items():
            place = f"optimizer/{slot}/{name}"
            if place not in states:
                raise InputError(f"no state {place!r} is here", where=where, hint="take states up in one process")
            if array.shape != states[place].shape:
                shapes = f"the {slot} of {name!r} has the shape {array.shape}, not {states[place].shape}"
                raise InputError(shapes, where=where, hint="give names= in the order of MXNet's trainer")
            converted[place] = _ours(array, slot, kept, rate_at(count) * optimizer.group(name).scale, where)
    for place, array in converted.items():
        states[place][...] = array
    states[COUNT][...] = count
    return count


def _kept(read: OptimizerStates, optimizer: Optimizer, where: str) -> Kept:
    """The states of MXNet's optimizer; InputError where ours is another one, or has other settings."""
    ours = "NAG" if isinstance(optimizer, SGD) and optimizer.nesterov else optimizer.kind
    theirs = getattr(optimizer, "mxnet", "")  # a rule of MXNet's keeps what MXNet's does
    kinds = {theirs: Kept(ours, KINDS[theirs].slots)} if theirs else KINDS
    if read.optimizer:
        kept = kinds.get(read.optimizer)
        if kept is None:
            message = f"what {read.optimizer} of MXNet keeps is not taken up"
            raise InputError(message, where=where, hint=f"there are {', '.join(kinds)}; train on from the parameters")
        if kept.ours != ours:
            message = f"the states are those of {read.optimizer}, the trainer's optimizer is {ours}"
            raise InputError(message, where=where, hint=f"make the trainer with mz.optimizer.{kept.ours}")
    else:
        kept = next((k for k in kinds.values() if k.ours == ours), None)
        if kept is None:
            raise InputError(f"MXNet has no optimizer with the states of {ours}", where=where, hint=HINT)
    for theirs, name in SETTINGS.items():
        value, own = read.settings.get(theirs), getattr(optimizer, name, None)
        if theirs == "gamma2" and not read.settings.get("centered"):
            continue  # it has no part in the plain rule
        if value is not None and own is not None and value != own:
            message = f"{theirs} is {value} in the file, {name} is {own} here"
            raise InputError(message, where=where, hint=f"make the optimizer with {name}={value}")
    return kept


def _by_name(read: OptimizerStates, names: Sequence[str], where: str) -> dict[str, Any]:
    """The states by the names of parameters."""
    idx2name = read.settings.get("idx2name") or {}
    states: dict[str, Any] = {}
    for key, state in read.states.items():
        name = key if isinstance(key, str) else idx2name.get(key)
        if name is None and names:
            if not 0 <= int(key) < len(names):
                raise InputError(f"parameter {key} is beyond the {len(names)} of names=", where=where, hint=HINT)
            name = names[int(key)]
        if not isinstance(name, str):
            hint = "give names=: sorted(net.collect_params()) of Gluon, list_arguments() of a module without data"
            raise InputError("the file numbers parameters, and has no names", where=where, hint=hint)
        if name in states:
            raise InputError(f"there are two states of {name!r}", where=where, hint="give each name once")
        states[name] = state
    return states


def _updates(read: OptimizerStates, optimizer: Optimizer, updates: int | None, where: str) -> int:
    """The number of updates, which rules and schedules look at."""
    looks = bool(optimizer._numbers()) or not isinstance(optimizer.rate, int | float)
    counts = read.settings.get("_index_update_count")
    counts = {n for key, n in counts.items() if key in read.states} if isinstance(counts, dict) else set()
    if looks and len(counts) > 1:
        message = f"parameters have had {min(counts)} to {max(counts)} updates, and have one count here"
        raise InputError(message, where=where, hint="train on from the parameters")
    count = counts.pop() if len(counts) == 1 else read.updates
    if updates is not None:
        if updates < 0 or (read.settings and updates != count):
            raise InputError(f"updates={updates}, and the file tells {count}", where=where, hint="leave it out")
        return updates
    if looks and not read.settings:
        raise InputError("the file does not tell how many updates there were", where=where, hint="give updates=")
    if not isinstance(count, int) or count < 0:
        raise InputError(f"a parameter has had {count!r} updates", where=where, hint=HINT)
    return count


def _arrays(name: str, state: Any, kept: Kept, optimizer: Optimizer, where: str) -> dict[str, Array]:
    """The arrays of a parameter's state, by our names of them."""
    parts = () if state is None else state if isinstance(state, tuple) else (state,)
    slots = kept.slots[: len(parts)]
    if len(slots) != len(parts) or {*slots} != {*optimizer.slots}:
        message = (
            f"{len(parts)} states of {name!r}, of which the optimizer keeps {', '.join(optimizer.slots) or 'none'}"
        )
        raise InputError(message, where=where, hint="give the optimizer the settings that MXNet's had")
    for slot, part in zip(slots, parts, strict=True):
        if not isinstance(part, np.ndarray) or part.dtype.kind != "f":
            raise InputError(f"the {slot} of {name!r} is no array of floats", where=where, hint=HINT)
    return dict(zip(slots, parts, strict=True))


def _ours(array: Array, slot: str, kept: Kept, rate: float, where: str) -> Array:
    """A state in our terms."""
    if slot in kept.stepped and np.any(array):
        if not rate:
            message = "the rate of the next update is 0, and MXNet has rates in what it keeps"
            raise InputError(message, where=where, hint="give the optimizer a rate above 0")
        return array / -rate
    return -array if slot in kept.negative else array

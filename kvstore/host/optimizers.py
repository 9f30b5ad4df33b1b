"""Optimizers of a group: each member steps its parts, and has their states."""

from __future__ import annotations

import numpy as np

from ...ops.types import Array
from ..states import Saved
from ..updater import UpdateRule
from . import memory
from .group import DROP, Group
from .values import HostValue


def take_rule(group: Group, rule: UpdateRule, saved: Saved | None = None) -> None:
    """Set the update rule and its states for the following rounds. All members call it between the same rounds."""
    with group._lock:
        group._check()
        group._until(lambda: not group._busy(), group._unfinished)
        group.rule = rule
        for value in group._values.values():
            states = {} if saved is None else saved.states.get(value.name, {})
            value.states = {name: state.reshape(-1)[value.part].copy() for name, state in states.items()}
            value.updates = 0 if saved is None else saved.updates.get(value.name, 0)


def gather(group: Group, rule: UpdateRule) -> Saved:
    """The states of all parts, for member 0; all members call it."""
    with group._lock:
        group._check()
        group._until(lambda: not group._busy(), group._unfinished)
        large = [v for v in group._values.values() if not v.alone and v.states]
        mine = [(v, name, state) for v in large for name, state in v.states.items()] if group.me else []
        segment = group._share(sum(-(-state.nbytes // memory.ALIGN) * memory.ALIGN for _, _, state in mine))
        places, at = [], 0
        for value, name, state in mine:
            segment.array(at, state.shape, state.dtype)[...] = state
            places.append([value.number, name, value.part.start, at, state.size])
            at += -(-state.nbytes // memory.ALIGN) * memory.ALIGN
    said = group.together("save_optimizer_states", {"segment": segment.number, "places": places})
    values = [v for v in group._values.values() if not v.own]
    whole = {v.name: {name: _widened(v, state) for name, state in v.states.items()} for v in values}
    for member, theirs in said.items():
        for number, name, low, at, size in theirs["places"] if group.me == 0 else ():
            value = group._values[number]
            part = group._foreign[member, theirs["segment"]].array(at, (size,), value.dtype)
            whole[value.name][name].reshape(-1)[low : low + size] = part
    saved = Saved(rule.data, whole, {v.name: v.updates for v in values})
    group.barrier()
    with group._lock:
        group.mesh.tell(group._others(), DROP, 0, 0, segment.number)
    return saved


def _widened(value: HostValue, state: Array) -> Array:
    """A state of the whole value, with this member's part of it."""
    made = np.zeros(value.shape, value.dtype)
    made.reshape(-1)[value.part] = state
    return made

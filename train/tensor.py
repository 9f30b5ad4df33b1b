"""Trainings whose products several devices share: each has parts of weights, of their gradients and of what the
optimizer keeps. A checkpoint, a snapshot and an export have whole weights, as those of one device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ..ops.errors import InputError
from ..ops.types import Array
from ..runtime.ir.graph import Graph
from ..runtime.ir.infer import infer
from ..runtime.optimizer import Optimizer
from ..runtime.passes.place import TensorParallel
from ..runtime.passes.split import (
    SplitGraph,
    part_names,
    split_array,
    tensor_parallel,
    whole_array,
)
from .building import Step
from .step import training_step

Steps = Callable[..., Graph]  # a training step, with settings of `training_step`


@dataclass(slots=True)
class SharedProducts:
    """The parts of a training's weights: `steps` makes the step of the whole model."""

    asked: TensorParallel
    steps: Steps
    split: SplitGraph

    @property
    def _count(self) -> int:
        return len(self.asked.devices)

    def graph(self, graph: Graph) -> Graph:
        """Another graph of the same weights, whose products are shared in the same way."""
        return tensor_parallel(infer(graph), self.asked, self.split.weights).graph

    def whole(self, states: Mapping[str, Array]) -> dict[str, Array]:
        """The states, in which those of weights are whole; others are not copied."""
        first = {part_names(w, self._count)[0]: w for w in self.split.weights}
        others = {p for w in self.split.weights for p in part_names(w, self._count)[1:]}
        whole = dict[str, Array]()
        for name, array in states.items():
            prefix, parameter = _parameter(name)
            if parameter in first:
                weight = first[parameter]
                parts = [states[prefix + part] for part in part_names(weight, self._count)]
                whole[prefix + weight] = whole_array(parts, self.split.weights[weight])
            elif parameter not in others:
                whole[name] = array
        return whole

    def parts(self, states: Mapping[str, Array]) -> dict[str, Array]:
        """The states with the parts of weights in place of those that are whole."""
        own = dict[str, Array]()
        for name, array in states.items():
            split = self.split.weights.get(_parameter(name)[1])
            if split is None:
                own[name] = array
            else:
                pieces = split_array(array, split, self._count)
                own |= dict(zip(part_names(name, self._count), pieces, strict=True))
        return own


def _parameter(state: str) -> tuple[str, str]:
    """The name of the parameter that a state is, or belongs to, behind what stands before it.

    >>> _parameter("optimizer/mean/0/weight"), _parameter("0/weight")
    (('optimizer/mean/', '0/weight'), ('', '0/weight'))
    """
    kind, _, rest = state.partition("/")
    slot, slash, name = rest.partition("/")
    return (f"{kind}/{slot}/", name) if kind == "optimizer" and slash else ("", state)


def whole_states(shared: SharedProducts | None, states: Mapping[str, Array]) -> Mapping[str, Array]:
    """States with whole weights, where devices have parts of them."""
    return states if shared is None else shared.whole(states)


def own_states(shared: SharedProducts | None, states: Mapping[str, Array]) -> Mapping[str, Array]:
    """States with parts of weights, where devices have them."""
    return states if shared is None else shared.parts(states)


def shared_products(
    graph: Graph, loss: str, trained: Sequence[str], step: Step, place: object
) -> tuple[SharedProducts | None, Steps, list[str], Step]:
    """The products of a step that are shared out, if `place` asks for it; the step, what it learns, and its settings.
    Raises InputError for what looks at whole weights."""
    whole = partial(training_step, graph, loss, list(trained))
    if not isinstance(place, TensorParallel):
        return None, partial(whole, step=step), [*trained], step
    if not step.optimizer.elementwise:
        raise InputError(f"{step.optimizer.kind} measures whole weights, of which devices have parts",
                         where="place=TensorParallel", hint="one that steps each element by itself")  # fmt: skip
    if step.micro_batches > 1:
        raise InputError("micro_batches= beside TensorParallel", where="Trainer", hint="leave one of them out")
    split = tensor_parallel(infer(graph), place)
    names = [p for n in trained for p in split.parts(n)]
    shared = SharedProducts(place, partial(whole, step=step), split)
    own = replace(step, optimizer=_grouped(step.optimizer, split, trained))
    return shared, partial(training_step, split.graph, loss, names, step=own), names, own


def _grouped(optimizer: Optimizer, split: SplitGraph, trained: Sequence[str]) -> Optimizer:
    """The optimizer whose groups hold the parts of what they hold."""
    groups = [
        replace(group, patterns=(*group.patterns, *(p for n in trained if group.holds(n) for p in split.parts(n))))
        for group in optimizer.groups
    ]
    return replace(optimizer, groups=tuple(groups)) if groups else optimizer

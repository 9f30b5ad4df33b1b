"""Forests of decision trees as flat arrays, and the walk of many rows through all trees at once, level by level."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from ..dataclasses import dataclass
from ..errors import ShapeError
from ..op import Context
from ..types import Array

ROWS = 1 << 18  # rows times trees that are walked together: what the walk needs of memory

# BRANCH_LEQ and so on, by the number that TreeEnsemble-5 gives them.
COMPARE: tuple[Callable[[Array, Array], Array], ...] = (
    np.less_equal,
    np.less,
    np.greater_equal,
    np.greater,
    np.equal,
    np.not_equal,
)
MEMBER = 6
MODES = {f"BRANCH_{n}": i for i, n in enumerate(("LEQ", "LT", "GTE", "GT", "EQ", "NEQ", "MEMBER"))}


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """All nodes of all trees. A leaf is its own child on both sides, so that rows which have arrived stay.

    `votes` are the leaves' (node, target, weight) in the order of the nodes, `first` and `count` say which of them
    belong to each node. `sets` holds the members that a node of mode MEMBER asks for. `lone` is the target of all
    votes, if there is one; `shares` tells if no vote is below zero.
    """

    roots: Array
    feature: Array
    split: Array
    mode: Array
    yes: Array
    no: Array
    nan_is_yes: Array
    targets: Array
    weights: Array
    first: Array
    count: Array
    sets: dict[int, Array]
    depth: int
    lone: int | None
    shares: bool

    def leaves(self, x: Array) -> Array:
        """The leaf that each row of `x` reaches in each tree: nodes [rows, trees]."""
        at = np.broadcast_to(self.roots, (len(x), len(self.roots))).copy()
        modes = np.unique(self.mode[self.yes != np.arange(len(self.yes))]).tolist()
        rows = np.arange(len(x))[:, None]
        for _ in range(self.depth):
            value, mode = x[rows, self.feature[at]], self.mode[at]
            goes = np.isnan(value) & self.nan_is_yes[at]
            for m in modes:
                chosen: Any = ... if len(modes) == 1 else mode == m
                if m == MEMBER:
                    goes[chosen] |= self._is_member(at[chosen], value[chosen])
                else:
                    goes[chosen] |= COMPARE[m](value[chosen], self.split[at[chosen]])
            at = np.where(goes, self.yes[at], self.no[at])
        return at

    def _is_member(self, nodes: Array, values: Array) -> Array:
        member = np.zeros(nodes.shape, bool)
        for node in np.unique(nodes).tolist():
            here = nodes == node
            member[here] = np.isin(values[here], self.sets.get(node, ()))
        return member

    def scores(self, x: Array, targets: int, aggregate: str) -> tuple[Array, Array]:
        """The votes of all trees, [rows, targets]; and where there was any.

        Sums are taken tree by tree in the element type of the weights: the shares of an even forest then meet at
        exactly one half, where a class begins.
        """
        if x.ndim != 2:
            x = x.reshape(1, -1)
        if len(self.feature) and self.feature.max(initial=0) >= x.shape[1]:
            raise ShapeError(f"the trees ask for feature {self.feature.max()}, and a row has {x.shape[1]}")
        if self.targets.max(initial=-1) >= targets:
            raise ShapeError(f"a leaf votes for target {self.targets.max()}, and there are {targets}")
        votes, seen = np.zeros((len(x), targets), self.weights.dtype), np.zeros((len(x), targets), bool)
        step = max(ROWS // max(len(self.roots), 1), 1)
        for start in range(0, len(x), step):
            part = slice(start, start + step)
            votes[part], seen[part] = self._aggregated(self.leaves(x[part]), targets, aggregate)
        return votes, seen

    def _aggregated(self, leaves: Array, targets: int, aggregate: str) -> tuple[Array, Array]:
        start = {"MIN": np.inf, "MAX": -np.inf}.get(aggregate, 0.0)
        combine = {"MIN": np.minimum, "MAX": np.maximum}.get(aggregate, np.add)
        total = np.full((len(leaves), targets), start, self.weights.dtype)
        seen = np.zeros((len(leaves), targets), bool)
        rows = np.broadcast_to(np.arange(len(leaves))[:, None], leaves.shape)
        for vote in range(int(self.count.max(initial=0))):
            voting = self.count[leaves] > vote
            index = (self.first[leaves] + vote)[voting]
            at = (rows[voting], self.targets[index])
            combine.at(total, at, self.weights[index])
            seen[at] = True
        if aggregate == "AVERAGE":
            total /= len(self.roots)
        return np.where(seen, total, 0), seen


def scores_of(k: Context, forest: Forest, x: Array, targets: int, aggregate: str) -> tuple[Array, Array]:
    """`Forest.scores`, or what a kernel has in its place."""
    if k.scores is not None:
        return k.scores(forest, x, targets, aggregate)
    return forest.scores(x, targets, aggregate)


def depth_of(yes: Array, no: Array, leaf: Array) -> int:
    """Nodes on the longest way to a leaf; ShapeError where a way comes round to where it was."""
    inner = np.flatnonzero(~leaf)
    parents = np.bincount(np.concatenate([yes[inner], no[inner]]), minlength=len(leaf))
    level, left, depth = np.flatnonzero(parents == 0), len(leaf), 0
    while len(level):
        left -= len(level)
        inner = level[~leaf[level]]
        children = np.concatenate([yes[inner], no[inner]])
        np.subtract.at(parents, children, 1)
        level = np.unique(children)
        level = level[parents[level] == 0]
        depth += bool(len(inner))
    if left:
        raise ShapeError("the nodes of a tree form a circle", hint="export the model again")
    return depth


def alike(kind: str, lists: Mapping[str, Any], optional: Any = None) -> None:
    """Raise ShapeError unless there are all of these lists, of one length; `optional` may be None instead."""
    sizes = {name: -1 if values is None else len(values) for name, values in lists.items()}
    if optional is not None:
        sizes["nodes_missing_value_tracks_true"] = len(optional)
    if len(set(sizes.values())) > 1 or -1 in sizes.values():
        told = ", ".join(f"{name} {'is missing' if n < 0 else f'has {n}'}" for name, n in sizes.items())
        raise ShapeError(f"the lists of {kind} differ in their length: {told}", hint="export the model again")


def checked(name: str, places: Array, size: int) -> Array:
    """Places inside of a list of this size; ShapeError otherwise."""
    if len(places) and (places.min() < 0 or places.max() >= size):
        raise ShapeError(f"{name} names places outside of the {size} that there are", hint="export the model again")
    return places


class _Same:
    """A key that compares an attribute by identity, not by its many elements; holds it, so that its id is not
    reused."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __hash__(self) -> int:
        return id(self.value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.value is self.value


def remembered(build: Callable[..., Forest], **attrs: Any) -> Forest:
    """The forest that `build` makes of these attributes; the last ones are kept, since nodes come again and again."""
    return _remembered(build, *((a, _Same(v)) for a, v in attrs.items()))


@lru_cache(maxsize=16)
def _remembered(build: Callable[..., Forest], *attrs: tuple[str, _Same]) -> Forest:
    forest: Hashable = build(**{a: v.value for a, v in attrs})
    assert isinstance(forest, Forest)
    return forest

"""Forests of decision trees: TreeEnsemble, TreeEnsembleRegressor and TreeEnsembleClassifier.

Sums are taken tree by tree in float32, as the reference takes them: the bits are the same where each leaf has one vote,
or one for each target in their order.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Any, Final

import numpy as np

from ....ops import Context, DType, Tensor
from ....ops.dataclasses import dataclass
from ....ops.errors import MezzoError
from ....ops.ml.forest import MEMBER, Forest
from ....ops.ml.trees import AGGREGATES, forest_by_ids, forest_by_lists
from ....ops.types import Array
from ...compile.kernel import Call, Choice, Declined, KernelArgs, KernelRequest
from ...ir.graph import Node
from ...memory.liveness import aligned
from .blobs import Loaded, loaded
from .blocks import Chunked, Trees, words
from .call import MachineCall, address, code_for, parallel

LEQ, LT, GTE, GT, EQ, NEQ = range(6)
LARGEST: Final = 0xFFFFFFFF
CHUNK = 64  # rows that a thread takes at a time
ALONE = 20_000  # rows times trees below which a second thread is not woken
COPIES = 4  # places of a node that several others lead to, times all nodes


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """A forest as emit/trees.py walks it."""

    nodes: Array
    roots: Array
    votes: Array
    targets: Array
    weights: Array
    depth: int
    features: int  # that rows need to have
    width: int  # targets that scores need to have


def keys_of(x: Array) -> Array:
    """float32 as unsigned numbers in the same order; NaN is 0."""
    bits = (x.astype(np.float32) + np.float32(0)).view(np.uint32)
    keys = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31)).astype(np.int64)
    return np.where(np.isnan(x), 0, keys)


def _ranges(forest: Forest, inner: Array) -> tuple[Array, Array, Array] | str:
    """The least key for which each inner node is true, the largest, and whether it is false there instead."""
    mode, nan = forest.mode[inner], forest.nan_is_yes[inner]
    split = forest.split[inner]
    if np.isnan(split).any():
        return "a node compares with NaN"
    if (mode == MEMBER).any():
        return "a node asks for members of a set"
    if (nan & (mode == EQ)).any():
        return "a node asks for a number or NaN"
    key = keys_of(split)
    below, around = (mode == LEQ) | (mode == LT), (mode == EQ) | (mode == NEQ)
    swapped = (~below & ~around & nan) | (mode == NEQ)  # NaN lies below all keys: it is taken with what is not true
    first = np.where(below, np.where(nan, 0, 1), np.where(around, key, np.where(nan, 1, key + (mode == GT))))
    last = np.where(mode == LEQ, key, key - 1)
    last = np.where(around, key, np.where(below, last, np.where(nan, key - (mode == GTE), LARGEST)))
    return first, last, swapped


@lru_cache(maxsize=16)
def tables(forest: Forest) -> Tables | str:
    """The tables of a forest, or why it has none: children are copied to lie behind each other, level by level."""
    own = np.arange(len(forest.yes))
    inner = forest.yes != own
    if forest.split.dtype != np.float32 or forest.weights.dtype != np.float32:
        return "numbers that are not float32"
    if not len(forest.roots):
        return "no trees"
    if min(forest.feature.min(initial=0), forest.targets.min(initial=0)) < 0:
        return "features or targets below zero"
    ranges = _ranges(forest, np.flatnonzero(inner))
    if isinstance(ranges, str):
        return ranges
    first, last = np.zeros(len(own), np.int64), np.full(len(own), LARGEST)
    swapped = np.zeros(len(own), bool)
    first[inner], last[inner], swapped[inner] = ranges
    left, right = (np.where(swapped, a, b) for a, b in ((forest.no, forest.yes), (forest.yes, forest.no)))
    level, levels, children = forest.roots.astype(np.int64), list[Array](), list[Array]()
    count = len(level)
    while len(level):
        goes = inner[level]
        levels.append(level)
        begin = count + 2 * (np.cumsum(goes) - 1)
        children.append(np.where(goes, begin, np.arange(count - len(level), count)))
        level = np.stack([left[level[goes]], right[level[goes]]], 1).reshape(-1)
        count += len(level)
        if count > COPIES * len(own) + len(forest.roots):
            return "trees that share their nodes"
    places = np.concatenate(levels)
    nodes = np.zeros((len(places), 4), np.uint32)
    nodes[:, 0] = np.where(inner[places], forest.feature[places], 0)
    nodes[:, 1] = first[places]
    nodes[:, 2] = last[places] - first[places]
    nodes[:, 3] = np.concatenate(children)
    starts = np.cumsum(np.concatenate([[0], forest.count[places]]))
    order = np.repeat(forest.first[places], forest.count[places])
    order += np.arange(len(order)) - np.repeat(starts[:-1], forest.count[places])
    return Tables(
        nodes,
        np.arange(len(forest.roots), dtype=np.uint32),
        starts.astype(np.uint32),
        forest.targets[order].astype(np.uint32),
        np.ascontiguousarray(forest.weights[order]),
        forest.depth,
        int(forest.feature.max(initial=0)) + 1,
        int(forest.targets.max(initial=0)) + 1,
    )


def forest_of(node: Node) -> Forest:
    """The forest of a node."""
    if node.op == "TreeEnsemble":
        return forest_by_lists(node.attrs)
    return forest_by_ids(node.attrs, "target" if node.op.endswith("Regressor") else "class")


class TreeEnsembles:
    """A walk of machine code, and behind it what the record does with the scores; where that is nothing but a division
    or a sum, the code does it too and nothing is allocated."""

    name = "machine.trees"

    def serves(self, node: Node) -> bool:
        return node.domain == "ai.onnx.ml" and node.op.startswith("TreeEnsemble")

    def select(self, request: KernelRequest) -> Choice | Declined:
        code = code_for(request)
        if isinstance(code, str):
            return Declined(code)
        x = request.inputs[0]
        if not isinstance(x, Tensor) or not x.static or x.dtype is not DType.FLOAT or len(x.sizes) != 2:
            return Declined("the rows are no matrix of float32 of known size")
        try:
            ensemble, ending = tables(forest_of(request.node)), _ending(request.node)
        except (ArithmeticError, LookupError, MezzoError, TypeError, ValueError) as error:
            return Declined(f"the reference tells what is wrong with the forest: {error}")  # an attribute is missing
        if isinstance(ensemble, str):
            return Declined(ensemble)
        if isinstance(ending, str):
            return Declined(ending)
        if ensemble.features > x.sizes[1] or ensemble.width > ending.targets:
            return Declined("the trees ask for features, or vote for targets, that there are not")
        rows, columns = x.sizes
        room = aligned(4 * rows * columns) + aligned(rows * ending.targets)
        room += 0 if ending.whole else aligned(4 * rows * ending.targets)
        return Choice(self.name, {"code": code.tier.name}, workspace=room, allocates=not ending.whole)

    def prepare(self, args: KernelArgs) -> Call:
        code = loaded()
        assert isinstance(code, Loaded), code
        (x,) = args.inputs
        assert x is not None
        ensemble, ending = tables(forest_of(args.node)), _ending(args.node)
        assert isinstance(ensemble, Tables) and isinstance(ending, Ending)
        keys, seen = args.scratch(DType.UINT32, x.shape), args.scratch(DType.UINT8, (len(x), ending.targets))
        threads = args.request.target.threads
        if ending.whole:
            (y,) = args.outputs
            assert y is not None
            return _walk(code, ensemble, (x, keys, y, seen), ending, threads)
        totals = args.scratch(DType.FLOAT, (len(x), ending.targets))
        walk = _walk(code, ensemble, (x, keys, totals, seen), ending, threads)
        answer = totals, seen.view(bool)

        def scores(forest: Forest, rows: Array, targets: int, aggregate: str) -> tuple[Array, Array]:
            walk()
            return answer

        record, node = args.node.record, args.node
        attrs = record.bind(node.attrs)
        k = Context(np, node.wanted, check=args.check, scores=scores)

        def run() -> tuple[Any, ...]:
            result = record.reference(k, x, **attrs)
            return result if isinstance(result, tuple) else (result,)

        return run


@dataclass(frozen=True, slots=True, eq=False)
class Ending:
    """The end of a walk: how many targets there are, by how much sums are divided, and what is added to them. Unless
    they are the `whole` answer then, the record goes on from them."""

    targets: int
    divisor: int = 1
    base: Array | None = None
    whole: bool = False


def _ending(node: Node) -> Ending | str:
    """The end of a node's walk, or why there is none."""
    attrs: Mapping[str, Any] = {**node.record.attrs, **node.attrs}
    if node.op.endswith("Classifier"):
        return Ending(len(attrs.get("classlabels_strings") or attrs.get("classlabels_int64s") or ()))
    if node.op.endswith("Regressor"):
        aggregate, plain = attrs["aggregate_function"], attrs["post_transform"] == "NONE"
        targets = attrs.get("n_targets") or 1
    else:
        number, plain = attrs["aggregate_function"], attrs["post_transform"] == 0
        aggregate = AGGREGATES[number] if 0 <= number < len(AGGREGATES) else f"aggregate {number}"
        targets = attrs.get("n_targets") or max(attrs["leaf_targetids"]) + 1
    if aggregate not in ("SUM", "AVERAGE"):
        return f"{aggregate} of the votes"
    divisor = len(forest_of(node).roots) if aggregate == "AVERAGE" else 1
    given = attrs.get("base_values_as_tensor")
    given = attrs.get("base_values") if given is None else given
    if given is None or not len(given):
        return Ending(targets, divisor, None, plain)
    if not plain or len(given) != targets:
        return Ending(targets, divisor)  # added by the record
    return Ending(targets, divisor, np.asarray(given, np.float32), True)


class _TreesCall(MachineCall):
    """A walk, with what it reads."""

    held: tuple[Any, ...]


def _walk(
    code: Loaded, ensemble: Tables, arrays: tuple[Array, Array, Array, Array], ending: Ending, threads: int
) -> _TreesCall:
    """The call over rows, keys, scores and marks."""
    x, keys, scores, seen = arrays
    work = len(x) * len(ensemble.roots)
    count = threads if work > ALONE else 1
    values: dict[IntEnum, int] = {
        Chunked.CHUNKS: -(-len(x) // CHUNK), Chunked.THREADS: count, Chunked.PARALLEL: parallel() if count > 1 else 0,
        Trees.X: address(x), Trees.KEYS: address(keys), Trees.SCORES: address(scores), Trees.SEEN: address(seen),
        Trees.NODES: address(ensemble.nodes), Trees.ROOTS: address(ensemble.roots),
        Trees.VOTES: address(ensemble.votes), Trees.TARGETS: address(ensemble.targets),
        Trees.WEIGHTS: address(ensemble.weights), Trees.BASE: address(ending.base), Trees.ROWS: len(x),
        Trees.FEATURES: x.shape[1], Trees.COUNT: ending.targets, Trees.TREES: len(ensemble.roots),
        Trees.DEPTH: ensemble.depth, Trees.CHUNK: CHUNK, Trees.DIVISOR: ending.divisor,
    }  # fmt: skip
    places = {("in", 0): Trees.X, ("out", 0): Trees.SCORES}
    call = _TreesCall(code.functions["trees"], words(values), places, count, short=work < ALONE // 10)
    call.held = ensemble, ending
    return call

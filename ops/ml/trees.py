"""TreeEnsemble, and the deprecated TreeEnsembleClassifier and TreeEnsembleRegressor, which converters still write.

https://onnx.ai/onnx/operators/onnx_aionnxml_TreeEnsemble.html. The classifier's treatment of two classes that one score
tells apart is not in the text; it follows ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import ShapeError
from ..op import REQUIRED, Context, Sample, op
from ..types import Array, Tensor
from .forest import MEMBER, MODES, Forest, alike, checked, depth_of, remembered, scores_of
from .scores import TRANSFORMS, Ints, Strings, both_classes, classified, labels_of, regressed, transform

AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
X = np.array([[0.5, 1], [2, -1], [2, 3], [np.nan, 0]], np.float32)


def _forest(
    roots: Array, split: Array, votes: tuple[Array, Array, Array], sets: dict[int, Array], leaf: Array, **nodes: Array
) -> Forest:
    """Put the votes (node, target, weight) in the order of their nodes, and measure the trees."""
    node, target, weight = votes
    for what, places in (("nodes_featureids", nodes["feature"]), ("the list of what leaves vote for", target)):
        if places.min(initial=0) < 0:
            raise ShapeError(f"{what} has {places.min()}", hint="export the model again")
    order = np.argsort(node, kind="stable")
    count = np.bincount(node, minlength=len(split))
    first = np.cumsum(count) - count
    depth = depth_of(nodes["yes"], nodes["no"], leaf)
    lone = int(target[0]) if len(target) and (target == target[0]).all() else None
    return Forest(roots, nodes["feature"], split, nodes["mode"], nodes["yes"], nodes["no"], nodes["nan_is_yes"],
                  target[order], weight[order], first, count, sets, depth, lone, bool((weight >= 0).all()))  # fmt: skip


def _from_ids(
    tree: Any,
    node: Any,
    feature: Any,
    mode: Any,
    split: Any,
    yes: Any,
    no: Any,
    nan_is_yes: Any,
    vote_tree: Any,
    vote_node: Any,
    vote_target: Any,
    weight: Any,
) -> Forest:
    """Trees whose nodes are named by pairs (tree, node). A tree's root is its first node that is nobody's child."""
    alike(
        "nodes",
        {"nodes_treeids": tree, "nodes_nodeids": node, "nodes_featureids": feature, "nodes_modes": mode,
         "nodes_values": split, "nodes_truenodeids": yes, "nodes_falsenodeids": no},
        nan_is_yes,
    )  # fmt: skip
    alike("leaves", {"treeids": vote_tree, "nodeids": vote_node, "ids": vote_target, "weights": weight})
    trees, nodes = np.asarray(tree, np.int64), np.asarray(node, np.int64)
    ids = np.unique(trees), np.unique(nodes)

    def rank(ids: Array, wanted: Array) -> Array:
        at = np.minimum(np.searchsorted(ids, wanted), max(len(ids) - 1, 0))
        if len(wanted) and (not len(ids) or (ids[at] != wanted).any()):
            raise ShapeError("a tree refers to a node that it lacks", hint="export the model again")
        return at

    def named(tree: Array, node: Array) -> Array:
        return rank(ids[0], tree) * len(ids[1]) + rank(ids[1], node)

    names = named(trees, nodes)
    order = np.argsort(names, kind="stable")
    names = names[order]
    if (twice := np.flatnonzero(names[1:] == names[:-1])).size:
        one = order[twice[0]]
        raise ShapeError(f"tree {trees[one]} has two nodes {nodes[one]}", hint="export the model again")

    def place(tree: Array, node: Array) -> Array:
        return order[rank(names, named(tree, node))]

    own = np.arange(len(nodes))
    leaf = np.asarray([m == "LEAF" for m in mode], bool)
    unknown = {m for m in mode if m not in MODES and m != "LEAF"} | ({"BRANCH_MEMBER"} & set(mode))
    if unknown:
        raise ShapeError(f"nodes_modes has {', '.join(sorted(unknown))}", hint=f"modes are {', '.join(MODES)}")
    true, false = own.copy(), own.copy()
    inner = np.flatnonzero(~leaf)
    true[inner] = place(trees[inner], np.asarray(yes, np.int64)[inner])
    false[inner] = place(trees[inner], np.asarray(no, np.int64)[inner])
    child = np.zeros(len(nodes), bool)
    child[true[inner]] = child[false[inner]] = True
    tops = np.flatnonzero(~child)
    _, firsts = np.unique(trees[tops], return_index=True)
    votes = place(np.asarray(vote_tree, np.int64), np.asarray(vote_node, np.int64))
    return _forest(
        tops[np.sort(firsts)],
        _numbers(split),
        (votes, np.asarray(vote_target, np.int64), _numbers(weight)),
        {},
        leaf,
        feature=np.where(leaf, 0, np.asarray(feature, np.int64)),
        mode=np.asarray([MODES.get(m, 0) for m in mode], np.int64),
        yes=true,
        no=false,
        nan_is_yes=np.asarray(nan_is_yes, bool) if nan_is_yes is not None else np.zeros(len(nodes), bool),
    )


def _either(attrs: Mapping[str, Any], name: str) -> Any:
    """An attribute that may be given as a list or as a tensor."""
    tensor = attrs.get(f"{name}_as_tensor")
    return attrs.get(name) if tensor is None else tensor


def _attributes(votes: str) -> dict[str, None]:
    """The attributes of trees whose nodes are named by pairs, and of the `votes` of their leaves: none is required."""
    numbers = ("base_values", "nodes_hitrates", "nodes_values", f"{votes}_weights")
    lists = "falsenodeids featureids missing_value_tracks_true modes nodeids treeids truenodeids"
    names = [f"nodes_{name}" for name in lists.split()] + [f"{votes}_{name}" for name in ("ids", "nodeids", "treeids")]
    return dict.fromkeys((*names, *numbers, *(f"{name}_as_tensor" for name in numbers)))


def forest_by_ids(attrs: Mapping[str, Any], votes: str) -> Forest:
    """The forest of attributes whose trees have nodes named by pairs; `votes` is what its leaves vote for: a target or
    a class."""

    return remembered(
        _from_ids,
        tree=attrs.get("nodes_treeids"),
        node=attrs.get("nodes_nodeids"),
        feature=attrs.get("nodes_featureids"),
        mode=attrs.get("nodes_modes"),
        split=_either(attrs, "nodes_values"),
        yes=attrs.get("nodes_truenodeids"),
        no=attrs.get("nodes_falsenodeids"),
        nan_is_yes=attrs.get("nodes_missing_value_tracks_true"),
        vote_tree=attrs.get(f"{votes}_treeids"),
        vote_node=attrs.get(f"{votes}_nodeids"),
        vote_target=attrs.get(f"{votes}_ids"),
        weight=_either(attrs, f"{votes}_weights"),
    )


def forest_by_lists(attrs: Mapping[str, Any]) -> Forest:
    """The forest of a TreeEnsemble."""
    return remembered(
        _from_lists,
        roots=attrs.get("tree_roots"),
        feature=attrs.get("nodes_featureids"),
        mode=attrs.get("nodes_modes"),
        split=attrs.get("nodes_splits"),
        yes=attrs.get("nodes_truenodeids"),
        no=attrs.get("nodes_falsenodeids"),
        yes_leaf=attrs.get("nodes_trueleafs"),
        no_leaf=attrs.get("nodes_falseleafs"),
        nan_is_yes=attrs.get("nodes_missing_value_tracks_true"),
        target=attrs.get("leaf_targetids"),
        weight=attrs.get("leaf_weights"),
        members=attrs.get("membership_values"),
    )


def _numbers(values: Any) -> Array:
    """A list of floats is one of float32; an array has its own type."""
    return np.asarray(() if values is None else values, values.dtype if isinstance(values, np.ndarray) else np.float32)


def _features(X: Array) -> Array:
    """Rows as floats: float32 unless they are float64."""
    x = X if X.dtype == np.float64 else X.astype(np.float32)
    return x if x.ndim == 2 else x.reshape(1, -1)


def _small(prefix: str, **more: Any) -> dict[str, Any]:
    """Two trees over two features; what their leaves vote for is called `prefix`."""
    return {
        "nodes_treeids": (0, 0, 0, 0, 0, 1, 1, 1),
        "nodes_nodeids": (0, 1, 2, 3, 4, 0, 1, 2),
        "nodes_featureids": (0, 0, 1, 0, 0, 1, 0, 0),
        "nodes_modes": ("BRANCH_LEQ", "LEAF", "BRANCH_LT", "LEAF", "LEAF", "BRANCH_GT", "LEAF", "LEAF"),
        "nodes_values": (1.0, 0.0, 2.0, 0.0, 0.0, 0.5, 0.0, 0.0),
        "nodes_truenodeids": (1, 0, 3, 0, 0, 1, 0, 0),
        "nodes_falsenodeids": (2, 0, 4, 0, 0, 2, 0, 0),
        "nodes_missing_value_tracks_true": (1, 0, 0, 0, 0, 0, 0, 0),
        f"{prefix}_treeids": (0, 0, 0, 1, 1),
        f"{prefix}_nodeids": (1, 3, 4, 1, 2),
        f"{prefix}_weights": (0.25, -1.0, 2.0, 0.5, 0.125),
        **more,
    }


ONE_TARGET = _small("target", target_ids=(0,) * 5, n_targets=1)


@op(
    "TreeEnsembleRegressor",
    domain="ai.onnx.ml",
    attributes=_attributes("target"),
    since=5,
    samples=[
        *(
            Sample([X], _small("target", target_ids=(0, 1, 1, 0, 1), n_targets=2, aggregate_function=a))
            for a in AGGREGATES
        ),
        Sample([X], {**ONE_TARGET, "base_values": (3.0,), "post_transform": "LOGISTIC"}),
        Sample([X[:3].astype(np.int64)], ONE_TARGET),
        Sample([X[:0]], ONE_TARGET),
    ],
)
def tree_ensemble_regressor(
    k: Context,
    X: Array,
    *,
    aggregate_function: str = "SUM",
    n_targets: int | None = None,
    post_transform: str = "NONE",
    **nodes: Any,
) -> Array:
    forest, base = forest_by_ids(nodes, "target"), _either(nodes, "base_values")
    if aggregate_function not in AGGREGATES:
        raise ShapeError(f"aggregate_function {aggregate_function!r} is none of {', '.join(AGGREGATES)}")
    targets = n_targets or 1
    scores, _ = scores_of(k, forest, _features(X), targets, aggregate_function)
    if base is not None and len(base) not in (0, targets):
        raise ShapeError(f"{len(base)} base_values for {targets} targets", hint="give one for each target, or none")
    if base is not None and len(base):
        scores = scores + np.asarray(base, scores.dtype)
    return transform(scores, post_transform).astype(np.float32)


@tree_ensemble_regressor.infer
def _(X: Tensor, **attrs: Any) -> Tensor:
    return regressed(X, attrs.get("n_targets") or 1)


@op(
    "TreeEnsembleClassifier",
    domain="ai.onnx.ml",
    attributes=_attributes("class"),
    since=5,
    outputs=("Y", "Z"),
    samples=[
        *(
            Sample([X], _small("class", class_ids=(0, 1, 2, 0, 1), classlabels_int64s=(5, 6, 7), post_transform=t), 2)
            for t in TRANSFORMS[:4]
        ),
        *(
            Sample([X], _small("class", class_ids=(0,) * 5, classlabels_strings=("no", "yes"), **more), 2)
            for more in (
                {},
                {"post_transform": "LOGISTIC"},
                {"base_values": (0.75,)},
                {"class_weights": (0.25, 0.5, 0.125, 0.5, 0.125)},
                {"class_weights": (0.25, 0.5, 0.125, 0.5, 0.125), "post_transform": "LOGISTIC"},
            )
        ),
        Sample([X], _small("class", class_ids=(0, 1, 1, 0, 1), classlabels_int64s=(0, 1), base_values=(0.5, -0.5)), 2),
        Sample([X], _small("class", class_ids=(0,) * 5, classlabels_int64s=(0, 1), base_values=(0.5, -0.5)), 2),
    ],
)
def tree_ensemble_classifier(
    k: Context,
    X: Array,
    *,
    classlabels_int64s: Ints = None,
    classlabels_strings: Strings = None,
    post_transform: str = "NONE",
    **nodes: Any,
) -> tuple[Array, Array]:
    forest, given = forest_by_ids(nodes, "class"), _either(nodes, "base_values")
    labels = labels_of(classlabels_int64s, classlabels_strings)
    scores, seen = scores_of(k, forest, _features(X), len(labels), "SUM")
    base = np.asarray(() if given is None else given, scores.dtype)
    if len(labels) == 2 and forest.lone is not None:
        # every vote is for one class: its score tells both apart
        target = forest.lone
        score = scores[:, target] + (base[min(target, len(base) - 1)] if len(base) else 0)
        shares = forest.shares
        best = (score > (0.5 if shares else 0)).astype(int)
        made = both_classes(score, post_transform, shares=shares)
        if len(base) == 2:  # of ONNX Runtime's scores one is missing then; this follows the reference
            made = transform(np.stack([1 - score if post_transform == "NONE" else -score, score], 1), post_transform)
            best = made.argmax(1)
    else:
        scores = scores + base if len(base) else scores
        # of three and more, a class that no leaf voted for is not chosen, even if the others have less than its zero
        best = (scores if len(base) or len(labels) == 2 else np.where(seen, scores, -np.inf)).argmax(1)
        made = transform(scores, post_transform)
    return labels[best], made.astype(np.float32)


@tree_ensemble_classifier.infer
def _(X: Tensor, **attrs: Any) -> tuple[Tensor, Tensor]:
    numbers, words = attrs.get("classlabels_int64s"), attrs.get("classlabels_strings")
    return classified(X, numbers, words, len(labels_of(numbers, words)))


def _from_lists(
    roots: Any,
    feature: Any,
    mode: Any,
    split: Any,
    yes: Any,
    no: Any,
    yes_leaf: Any,
    no_leaf: Any,
    nan_is_yes: Any,
    target: Any,
    weight: Any,
    members: Any,
) -> Forest:
    """Trees of inner nodes and, apart from them, leaves: a forest numbers the leaves after the nodes."""
    alike(
        "nodes",
        {"nodes_featureids": feature, "nodes_modes": mode, "nodes_splits": split, "nodes_truenodeids": yes,
         "nodes_falsenodeids": no, "nodes_trueleafs": yes_leaf, "nodes_falseleafs": no_leaf},
        nan_is_yes,
    )  # fmt: skip
    alike("leaves", {"leaf_targetids": target, "leaf_weights": weight})
    nodes, leaves = len(feature), len(target)

    def child(place: Any, is_leaf: Any) -> Array:
        at, last = np.asarray(place, np.int64), np.asarray(is_leaf, bool)
        checked("a leaf", at[last], leaves)
        checked("a node", at[~last], nodes)
        return np.concatenate([np.where(last, at + nodes, at), np.arange(nodes, nodes + leaves)])

    def padded(values: Any, dtype: Any) -> Array:
        return np.concatenate([np.asarray(values).astype(dtype), np.zeros(leaves, dtype)])

    kinds = checked("nodes_modes", padded(mode, np.int64), MEMBER + 1)
    asked = np.flatnonzero(kinds[:nodes] == MEMBER)
    listed = np.asarray(() if members is None else members)
    parts = np.split(listed, np.flatnonzero(np.isnan(listed)))
    if len(parts) > len(asked) and not np.any(parts[-1] == parts[-1]):
        parts.pop()  # NaN ends the last set too
    if len(asked) and len(parts) != len(asked):
        raise ShapeError(
            f"membership_values has {len(parts)} sets, and {len(asked)} nodes ask for one",
            hint="export the model again",
        )
    sets = {int(n): part[~np.isnan(part)] for n, part in zip(asked, parts, strict=False)}
    return _forest(
        checked("tree_roots", np.asarray(roots, np.int64), nodes),
        padded(split, np.asarray(split).dtype),
        (np.arange(nodes, nodes + leaves), np.asarray(target, np.int64), np.asarray(weight)),
        sets,
        np.arange(nodes + leaves) >= nodes,
        feature=padded(feature, np.int64),
        mode=kinds,
        yes=child(yes, yes_leaf),
        no=child(no, no_leaf),
        nan_is_yes=padded(np.zeros(nodes) if nan_is_yes is None else nan_is_yes, bool),
    )


ENSEMBLE = {
    "leaf_targetids": (0, 1, 0, 1),
    "leaf_weights": np.array([5.25, 12.5, -1, 0.5], np.float32),
    "n_targets": 2,
    "nodes_falseleafs": (0, 1, 1),
    "nodes_falsenodeids": (2, 2, 3),
    "nodes_featureids": (0, 0, 1),
    "nodes_modes": np.array([0, 3, 5], np.uint8),
    "nodes_splits": np.array([1.5, 0.75, 3], np.float32),
    "nodes_trueleafs": (0, 1, 1),
    "nodes_truenodeids": (1, 0, 1),
    "tree_roots": (0,),
}
MEMBERS = {
    "membership_values": np.array([0.5, 2, np.nan, 3, np.nan], np.float32),
    "nodes_modes": np.array([MEMBER, 0, MEMBER], np.uint8),
}


@op(
    "TreeEnsemble",
    domain="ai.onnx.ml",
    attributes={
        **dict.fromkeys(("membership_values", "nodes_hitrates", "nodes_missing_value_tracks_true")),
        **dict.fromkeys(("leaf_weights", "nodes_modes", "nodes_splits", "tree_roots"), REQUIRED),
        **dict.fromkeys((f"nodes_{side}" for side in ("falseleafs", "falsenodeids", "featureids")), REQUIRED),
        **dict.fromkeys((f"nodes_{side}" for side in ("trueleafs", "truenodeids")), REQUIRED),
    },
    since=5,
    samples=[
        Sample([X], ENSEMBLE),
        Sample([X], {**ENSEMBLE, **MEMBERS, "nodes_missing_value_tracks_true": (1, 1, 0)}),
        *(Sample([X], {**ENSEMBLE, "tree_roots": (0, 1), "aggregate_function": a}) for a in (0, 2, 3)),
        Sample([X], {**ENSEMBLE, "post_transform": 1}),
        Sample(
            [X.astype(np.float64)],
            {
                **ENSEMBLE,
                "leaf_weights": np.array([5.25, 12.5, -1, 0.5]),
                "nodes_splits": np.array([1.5, 0.75, 3]),
            },
        ),
    ],
)
def tree_ensemble(
    k: Context,
    X: Array,
    *,
    aggregate_function: int = 1,
    leaf_targetids: Ints,
    n_targets: int | None = None,
    post_transform: int = 0,
    **nodes: Any,
) -> Array:
    forest = forest_by_lists({"leaf_targetids": leaf_targetids, **nodes})
    targets = n_targets or max(leaf_targetids or (0,)) + 1
    for name, chosen, names in (
        ("aggregate_function", aggregate_function, AGGREGATES),
        ("post_transform", post_transform, TRANSFORMS),
    ):
        if not 0 <= chosen < len(names):
            raise ShapeError(f"{name} {chosen} is none of 0 to {len(names) - 1}: {', '.join(names)}")
    scores, _ = scores_of(k, forest, _features(X), targets, AGGREGATES[aggregate_function])
    return transform(scores, TRANSFORMS[post_transform]).astype(X.dtype)


@tree_ensemble.infer
def _(X: Tensor, **attrs: Any) -> Tensor:
    return regressed(X, attrs.get("n_targets") or max(attrs["leaf_targetids"]) + 1).to(X.dtype)

"""Forests whose lists do not fit each other: refused with the reason by the reference and by machine code alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mezzo.ops import MezzoError
from mezzo.ops.ml.trees import ENSEMBLE, ONE_TARGET, X
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder

NAN = float("nan")
BY_IDS: list[tuple[str, dict[str, Any], str]] = [
    ("a way back to the root", {"nodes_truenodeids": (1, 0, 0, 0, 0, 1, 0, 0)}, "form a circle"),
    ("a node that is its own child", {"nodes_truenodeids": (1, 0, 2, 0, 0, 1, 0, 0)}, "form a circle"),
    ("a root that is its own child", {"nodes_truenodeids": (0, 0, 3, 0, 0, 1, 0, 0)}, "form a circle"),
    ("two nodes of one name", {"nodes_nodeids": (0, 1, 2, 3, 4, 0, 1, 1)}, "tree 1 has two nodes 1"),
    (
        "a name of another tree",
        {"nodes_nodeids": (0, 1, 2, 3, 4, 0, 1, -1), "target_nodeids": (1, 3, 4, 1, -6)},
        "lacks",
    ),
    ("a feature below zero", {"nodes_featureids": (-1, 0, 1, 0, 0, 1, 0, 0)}, "nodes_featureids has -1"),
    ("a target below zero", {"target_ids": (0, -1, 0, 0, 0)}, "vote for has -1"),
    ("a target beyond the last", {"target_ids": (0, 0, 3, 0, 0)}, "target 3, and there are 1"),
    ("one feature for all", {"nodes_featureids": (0,)}, "nodes_featureids has 1"),
    ("no features", {"nodes_featureids": None}, "nodes_featureids is missing"),
    ("too many splits", {"nodes_values": (0.0,) * 9}, "nodes_values has 9"),
    ("too many weights", {"target_weights": (0.0,) * 9}, "weights has 9"),
    ("too many ways of NaN", {"nodes_missing_value_tracks_true": (1,) * 9}, "tracks_true has 9"),
]
BY_LISTS: list[tuple[str, dict[str, Any], str]] = [
    ("a node that is its own child", {"nodes_truenodeids": (0, 0, 1), "nodes_trueleafs": (0, 1, 1)}, "form a circle"),
    ("a way back", {"nodes_trueleafs": (0, 0, 1)}, "form a circle"),
    ("a mode that there is not", {"nodes_modes": np.array([0, 9, 5], np.uint8)}, "nodes_modes"),
    ("too few modes", {"nodes_modes": np.array([0], np.uint8)}, "nodes_modes has 1"),
    ("too few splits", {"nodes_splits": np.array([1], np.float32)}, "nodes_splits has 1"),
    ("too few ways of NaN", {"nodes_missing_value_tracks_true": (1,)}, "tracks_true has 1"),
    ("too many weights", {"leaf_weights": np.ones(6, np.float32)}, "leaf_weights has 6"),
    ("a feature below zero", {"nodes_featureids": (-1, 0, 1)}, "nodes_featureids has -1"),
    ("a target below zero", {"leaf_targetids": (0, 1, -1, 1)}, "vote for has -1"),
    ("sets that are missing", {"nodes_modes": np.array([6, 6, 6], np.uint8)}, "3 nodes ask for one"),
    (
        "sets that nobody asks for",
        {"nodes_modes": np.array([6, 0, 0], np.uint8), "membership_values": np.array([1, NAN, 2, NAN], np.float32)},
        "1 nodes ask for one",
    ),
]


def answer(op: str, attrs: dict[str, Any], onednn: bool) -> Any:
    g = GraphBuilder()
    given = {name: value for name, value in attrs.items() if value is not None}
    return Session(g.graph([g.op(op, g.input("x", f32("n", 2)), domain="ai.onnx.ml", **given)]), onednn=onednn)(X)


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize(
    ("op", "attrs", "reason"),
    [
        *(pytest.param("TreeEnsembleRegressor", {**ONE_TARGET, **more}, why, id=name) for name, more, why in BY_IDS),
        *(pytest.param("TreeEnsemble", {**ENSEMBLE, **more}, why, id=f"lists, {name}") for name, more, why in BY_LISTS),
    ],
)
def test_a_malformed_forest_is_refused(op: str, attrs: dict[str, Any], reason: str, onednn: bool) -> None:
    with pytest.raises(MezzoError, match=reason):
        answer(op, attrs, onednn)


def test_names_of_any_size_are_told_apart() -> None:
    """Of nodes and trees that count from below zero, or as far as 64 bits go."""
    want = answer("TreeEnsembleRegressor", ONE_TARGET, False)
    trees, nodes = np.array([-7, 2**62]), np.array([-5, -1, 3, 2**61, 2**62])
    named = {
        name: tuple((trees if name.endswith("treeids") else nodes)[list(values)].tolist()) if "ids" in name else values
        for name, values in ONE_TARGET.items()
        if name not in ("target_ids", "nodes_featureids")
    }
    np.testing.assert_array_equal(answer("TreeEnsembleRegressor", {**ONE_TARGET, **named}, False), want)


def test_a_large_circle_is_found_soon() -> None:
    """No level is walked twice: this took minutes."""
    n = 20_000
    away = np.random.default_rng(0).integers(0, n, (2, n))
    yes, no = (tuple(row.tolist()) for row in away)
    nodes = {"treeids": (0,) * n, "nodeids": tuple(range(n)), "featureids": (0,) * n, "modes": ("BRANCH_LEQ",) * n,
             "values": (0.0,) * n, "truenodeids": yes, "falsenodeids": no}  # fmt: skip
    attrs = {f"nodes_{name}": values for name, values in nodes.items()}
    attrs |= {"target_treeids": (0,), "target_nodeids": (0,), "target_ids": (0,), "target_weights": (1.0,)}
    with pytest.raises(MezzoError, match="form a circle"):
        answer("TreeEnsembleRegressor", attrs, False)

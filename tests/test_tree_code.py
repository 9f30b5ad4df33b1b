"""Forests walked by machine code: the bits of the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mezzo.ops import DType, Tensor
from mezzo.ops.types import Array
from mezzo.runtime.backends.machine.blobs import loaded
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder

F32 = np.float32
ML = "ai.onnx.ml"
MODES = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")
ODD = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 3.4e38], F32)
pytestmark = pytest.mark.skipif(isinstance(loaded(), str), reason=f"no machine code here: {loaded()}")


def trees(rng: np.random.Generator, count: int, depth: int, features: int, modes: Any, targets: int) -> dict[str, Any]:
    """Attributes of trees that stop where they like, with up to as many votes of a leaf as there are targets."""
    nodes: dict[str, list[Any]] = {n: [] for n in ("tree", "node", "feature", "mode", "value", "yes", "no", "nan")}
    votes: dict[str, list[Any]] = {n: [] for n in ("tree", "node", "target", "weight")}
    for tree in range(count):
        made = 0

        def grow(level: int, tree: int = tree) -> int:
            nonlocal made
            mine, made = made, made + 1
            inner = level < depth and (level == 0 or rng.random() < 0.85)
            yes, no = (grow(level + 1, tree), grow(level + 1, tree)) if inner else (0, 0)
            mode = str(rng.choice(modes)) if inner else "LEAF"
            value = F32(rng.choice(ODD[1:])) if rng.random() < 0.1 else F32(rng.integers(-4, 5) / 2)
            nan = int(rng.random() < 0.5 and mode != "BRANCH_EQ")
            row = (tree, mine, int(rng.integers(features)), mode, float(value), yes, no, nan)
            for name, one in zip(nodes, row, strict=True):
                nodes[name].append(one)
            if not inner:
                for target in rng.permutation(targets)[: rng.integers(1, targets + 1)]:
                    for name, one in zip(votes, (tree, mine, int(target), float(F32(rng.normal()))), strict=True):
                        votes[name].append(one)
            return mine

        grow(0)
    return {"nodes": nodes, "votes": votes}


def attributes(found: dict[str, Any], prefix: str) -> dict[str, Any]:
    nodes, votes = found["nodes"], found["votes"]
    names = {"tree": "treeids", "node": "nodeids", "feature": "featureids", "mode": "modes", "value": "values",
             "yes": "truenodeids", "no": "falsenodeids", "nan": "missing_value_tracks_true"}  # fmt: skip
    made = {f"nodes_{names[n]}": tuple(v) for n, v in nodes.items()}
    ends = {"tree": "treeids", "node": "nodeids", "target": "ids", "weight": "weights"}
    return made | {f"{prefix}_{ends[n]}": tuple(v) for n, v in votes.items()}


def both(op: str, x: Array, attrs: dict[str, Any], exact: bool = True) -> None:
    """The same answers, with the kernel and without it."""
    g = GraphBuilder()
    node = g.op(op, g.input("x", Tensor(DType.FLOAT, ("n", x.shape[1]))), domain=ML, outputs=2 if "Cl" in op else 1,
                **attrs)  # fmt: skip
    graph = g.graph(list(node) if isinstance(node, tuple | list) else [node])
    for threads in (1, 2):
        session = Session(graph, threads=threads)
        found, want = session.run({"x": x}), Session(graph, onednn=False).run({"x": x})
        assert [s.choice.kernel for s in session.program.steps] == ["machine.trees"], session.program.steps[0].declined
        for name, one in want.items():
            assert (found[name].dtype, found[name].shape) == (one.dtype, one.shape)
            if exact or one.dtype.kind != "f":
                np.testing.assert_array_equal(found[name], one)
            else:  # the order of a leaf's votes is that of sums, too
                np.testing.assert_allclose(found[name], one, rtol=1e-5, atol=1e-5)


def rows(rng: np.random.Generator, count: int, features: int) -> Array:
    x = (rng.integers(-9, 10, (count, features)) / 4).astype(F32)
    return np.where(rng.random(x.shape) < 0.1, rng.choice(ODD, x.shape), x)


@pytest.mark.parametrize("modes", [*((m,) for m in MODES), MODES], ids=lambda m: "all" if len(m) > 1 else m[0])
@pytest.mark.parametrize("count", [1, 13])
def test_every_comparison(modes: tuple[str, ...], count: int) -> None:
    rng = np.random.default_rng(len(modes[0]) + count)
    attrs = attributes(trees(rng, count, 6, 5, modes, 1), "target")
    for n in (1, 9, 70):
        both("TreeEnsembleRegressor", rows(rng, n, 5), {**attrs, "n_targets": 1})


@pytest.mark.parametrize(
    "more",
    [
        {"aggregate_function": "AVERAGE", "base_values": (0.5, -1.0, 2.0)},
        {"aggregate_function": "SUM", "post_transform": "LOGISTIC"},
        {"aggregate_function": "SUM", "base_values": (0.25, 3.0, -1.5)},
    ],
)
def test_several_targets_and_what_follows(more: dict[str, Any]) -> None:
    rng = np.random.default_rng(7)
    attrs = attributes(trees(rng, 20, 5, 4, MODES, 3), "target")
    both("TreeEnsembleRegressor", rows(rng, 37, 4), {**attrs, "n_targets": 3, **more}, exact=False)


@pytest.mark.parametrize("labels", [{"classlabels_int64s": (4, 5, 9)}, {"classlabels_strings": ("a", "b", "c")}])
def test_classifiers(labels: dict[str, Any]) -> None:
    rng = np.random.default_rng(8)
    attrs = attributes(trees(rng, 20, 5, 4, MODES[:4], 3), "class")
    both("TreeEnsembleClassifier", rows(rng, 37, 4), {**attrs, **labels, "post_transform": "SOFTMAX"}, exact=False)


def test_a_deep_tree_of_one_branch() -> None:
    """Rows leave it at different depths."""
    depth = 200
    nodes = {
        "nodes_treeids": (0,) * (2 * depth + 1),
        "nodes_nodeids": tuple(range(2 * depth + 1)),
        "nodes_featureids": (0,) * (2 * depth + 1),
        "nodes_modes": tuple("BRANCH_LEQ" if i % 2 == 0 and i < 2 * depth else "LEAF" for i in range(2 * depth + 1)),
        "nodes_values": tuple(float(i // 2) for i in range(2 * depth + 1)),
        "nodes_truenodeids": tuple(i + 1 if i % 2 == 0 and i < 2 * depth else 0 for i in range(2 * depth + 1)),
        "nodes_falsenodeids": tuple(i + 2 if i % 2 == 0 and i < 2 * depth else 0 for i in range(2 * depth + 1)),
    }
    leaves = [i for i in range(2 * depth + 1) if nodes["nodes_modes"][i] == "LEAF"]
    votes = {
        "target_treeids": (0,) * len(leaves),
        "target_nodeids": tuple(leaves),
        "target_ids": (0,) * len(leaves),
        "target_weights": tuple(float(i) for i in range(len(leaves))),
    }
    x = np.linspace(-3, depth + 3, 50, dtype=F32)[:, None]
    both("TreeEnsembleRegressor", x, {**nodes, **votes, "n_targets": 1})


def test_targets_and_features_that_are_not_there_are_declined() -> None:
    rng = np.random.default_rng(9)
    attrs = attributes(trees(rng, 3, 3, 4, MODES[:1], 3), "target")
    for features, targets in ((2, 3), (4, 2)):
        g = GraphBuilder()
        x = g.input("x", Tensor(DType.FLOAT, (1, features)))
        session = Session(g.graph([g.op("TreeEnsembleRegressor", x, domain=ML, n_targets=targets, **attrs)]))
        (step,) = session.program.steps
        assert "that there are not" in dict(step.declined)["machine.trees"]

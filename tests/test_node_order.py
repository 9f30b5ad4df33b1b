"""Files whose nodes do not stand in an order in which they can run, in graphs, subgraphs and functions."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import pytest
from click.testing import CliRunner

import mezzo as mz
from mezzo.importers import OutOfOrder, load_onnx
from mezzo.ops.errors import ModelError
from mezzo.tools.cli import cli

from .models import BOOL, FLOAT, INT64, model, node, ort_run, subgraph, value


def whole() -> onnx.ModelProto:
    """A function with a branch in it, a branch that reads what is made around it, and a loop inside of that."""
    tall = subgraph([node("Exp", "f_in", "e"), node("Sqrt", "e", "s")], [], [value("s", None)])
    low = subgraph([node("Neg", "f_h", "n"), node("Abs", "n", "m")], [], [value("m", None)])
    function = onnx.helper.make_function(
        "own", "F", ["f_in", "f_c"], ["f_out"],
        [node("Abs", "f_in", "f_h"), node("If", "f_c", "f_if", then_branch=tall, else_branch=low),
         node("Add", "f_if f_h", "f_out")],
        [onnx.helper.make_opsetid("", 17)],
    )  # fmt: skip
    turn = subgraph(
        [node("Identity", "going", "on"), node("Add", "v h", "a"), node("Mul", "a half", "b"), node("Neg", "b", "c2")],
        [value("i", kind=INT64), value("going", kind=BOOL), value("v", None)],
        [value("on", kind=BOOL), value("c2", None)],
    )
    yes = subgraph([node("Relu", "h", "r"), node("Loop", "trips - r", "l", body=turn), node("Add", "l r", "t")],
                   [], [value("t", None)])  # fmt: skip
    no = subgraph([node("Neg", "h", "r2"), node("Exp", "r2", "t2")], [], [value("t2", None)])
    nodes = [
        node("Add", "x w", "g", name="first"),
        node("F", "g c", "h", domain="own"),
        node("If", "c", "k", then_branch=yes, else_branch=no),
        node("Mul", "k h", "y", name="last"),
    ]
    weights: dict[str, Any] = {"w": np.array([0.5, -2], np.float32), "half": np.array(0.5, np.float32)}
    return model(nodes, [value("x", 2), value("c", kind=BOOL), value("trips", kind=INT64)], [value("y", 2)],
                 initializers=weights, domains={"own": 1}, functions=[function])  # fmt: skip


def lists(proto: onnx.ModelProto) -> Iterator[Any]:
    """The lists of nodes in a model."""
    waiting = [proto.graph.node, *(f.node for f in proto.functions)]
    while waiting:
        nodes = waiting.pop()
        yield nodes
        waiting += [a.g.node for n in nodes for a in n.attribute if a.HasField("g")]


@pytest.mark.parametrize("seed", range(6))
def test_nodes_in_any_order_give_the_same_numbers(seed: int) -> None:
    want, shuffled, draw = load_onnx(whole()), whole(), random.Random(seed)
    for nodes in lists(shuffled):
        mixed = list(nodes)
        draw.shuffle(mixed)
        del nodes[:]
        nodes.extend(mixed)
    before = shuffled.SerializeToString(deterministic=True)
    with pytest.warns(OutOfOrder, match="before nodes that they read from") as said:
        graph = load_onnx(shuffled)
    assert len(said) == 1
    assert shuffled.SerializeToString(deterministic=True) == before  # it is the caller's
    assert {(n.op, n.name) for n in graph.nodes} == {(n.op, n.name) for n in want.nodes}
    first, second = mz.Session(want), mz.Session(graph)
    for c, trips in ((True, 0), (True, 3), (False, 3)):
        feeds = {"x": np.array([1.5, -0.25], np.float32), "c": np.array(c), "trips": np.array(trips)}
        np.testing.assert_array_equal(second.run(feeds)["y"], first.run(feeds)["y"])
        np.testing.assert_allclose(second.run(feeds)["y"], ort_run(whole(), feeds)["y"], rtol=1e-6)


def test_an_order_that_runs_is_kept() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph = load_onnx(whole())
    assert [n.name for n in graph.nodes if n.name in ("first", "last")] == ["first", "last"]


def test_a_node_moves_no_further_than_it_must() -> None:
    nodes = [node(op, f"{x}", y) for op, x, y in [("Neg", "x", "a"), ("Exp", "d", "b"), ("Abs", "x", "c"),
                                                  ("Add", "b c", "y"), ("Cast", "a", "d")]]  # fmt: skip
    nodes[-1] = node("Cast", "a", "d", to=FLOAT)
    with pytest.warns(OutOfOrder, match=r"node 1 '' \(Exp\) stands before"):
        graph = load_onnx(model(nodes, [value("x", 2)], [value("y", 2)]))
    assert [n.op for n in graph.nodes] == ["Neg", "Cast", "Exp", "Abs", "Add"]


def test_a_circle_among_such_nodes_is_an_error() -> None:
    nodes = [node("Add", "x b", "a", name="p"), node("Neg", "a", "b", name="q"), node("Abs", "d", "y"),
             node("Exp", "b", "d")]  # fmt: skip
    with pytest.raises(ModelError, match=r"in a circle: node . 'p'.*'q'"):
        load_onnx(model(nodes, [value("x", 2)], [value("y", 2)]))
    inner = subgraph([node("Neg", "v", "u"), node("Neg", "u", "v")], [], [value("v", None)])
    with pytest.raises(ModelError, match="then_branch: the nodes wait for one another in a circle"):
        load_onnx(model([node("If", "c", "y", then_branch=inner, else_branch=inner)], [value("c", kind=BOOL)],
                        [value("y", None)]))  # fmt: skip


def test_check_tells_it(tmp_path: Path) -> None:
    proto = model([node("Neg", "a", "y", name="late"), node("Relu", "x", "a", name="early")], [value("x", 2)],
                  [value("y", 2)])  # fmt: skip
    onnx.save(proto, tmp_path / "m.onnx")
    done = CliRunner().invoke(cli, ["check", str(tmp_path / "m.onnx"), "--json"])
    assert done.exit_code == 0, done.output
    (said,) = json.loads(done.stdout)["models"]
    assert "'late' (Neg) stands before" in said["order"]

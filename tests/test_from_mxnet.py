"""The table of docs/from-mxnet.md: every name in it is there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import mezzo
import mezzo.compat.mxnet as mx

PAGE = Path(__file__).parents[1] / "docs/from-mxnet.md"
ROWS = [line.strip().strip("|").split("|") for line in PAGE.read_text("utf8").splitlines() if line.startswith("| ")]
OLD = sorted({n for row in ROWS[1:] for n in re.findall(r"`([\w.]+)`", row[1])})
NEW = sorted({n for row in ROWS[1:] for n in re.findall(r"`([\w.]+)`", row[2])})


def looked_up(root: Any, name: str) -> Any:
    for part in name.split("."):
        root = getattr(root, part)
    return root


@pytest.mark.parametrize(("root", "names"), [(mx, OLD), (mezzo, NEW)], ids=["old", "new"])
def test_every_name_is_there(root: Any, names: list[str]) -> None:
    assert len(names) > 60
    missing = []
    for name in names:
        try:
            looked_up(root, name)
        except AttributeError:
            missing.append(name)
    assert not missing


def test_what_is_not_there_is_missing() -> None:
    with pytest.raises(AttributeError):
        looked_up(mx, "nd.no_such_function")


def test_refused_operators_are_named() -> None:
    """The list of docs/mxnet.md is MXNet's registry without what is carried."""
    path = PAGE.parents[2] / "shared/mxnet-fixtures/op_registry_1.9.1.json"
    if not path.exists():
        pytest.skip("../shared is not here")
    from mezzo.importers.mxnet.operators import RULES

    registry = json.loads(path.read_text("utf8"))
    names: dict[str, list[str]] = {}
    for name, known in registry.items():
        names.setdefault(known["canonical"], []).append(name)
    forward = {n for n in names if "backward" not in n}
    refused = {n for n in forward if RULES.keys().isdisjoint(names[n])}
    text = (PAGE.parent / "mxnet.md").read_text("utf8")
    section = text.split("## What is refused")[1].split("## ")[0]
    assert refused == {n for n in re.findall(r"`(\w+)`", section) if n in forward}
    numpys = {n for n in forward if n.startswith("_np")}
    others = forward - numpys
    told = f"{len(others - refused)} of the {len(others)}", f"{len(numpys - refused)} of the {len(numpys)}"
    assert all(t in text for t in told), told


def test_arrays_have_mxnets_keywords_and_rounding() -> None:
    from mezzo.compat.mxnet import nd

    x = nd.array([0.5, 1.5, -0.5, -2.4, 0.49999997])
    assert nd.round(x).asnumpy().tolist() == [1, 2, -1, -2, 0], "halves go away from zero"
    assert nd.sort(nd.array([1, 3, 2]), is_ascend=False).asnumpy().tolist() == [3, 2, 1]
    assert nd.clip(nd.array([1, 5]), a_min=2, a_max=3).asnumpy().tolist() == [2, 3]
    assert nd.repeat(nd.array([1, 2]), repeats=2).asnumpy().tolist() == [1, 1, 2, 2]
    assert nd.tile(nd.array([1, 2]), reps=(2,)).asnumpy().tolist() == [1, 2, 1, 2]

"""Operators are imported when they are asked for, and found without a table of them."""

from __future__ import annotations

import compileall
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from mezzo.ops import OPS

ROOT = Path(__file__).parents[1]
# The package of operators alone, from a folder or an archive: the front door of the real one imports some of them.
FRONT = """
import sys, types
front = types.ModuleType("mezzo")
front.__path__ = [{path!r}]
sys.modules["mezzo"] = front
import json
from mezzo.ops import OPS
"""
# Where each operator is defined: the module that is being run when its record is entered.
DEFINED = """
import importlib, pkgutil
import mezzo.ops
from mezzo.ops.registry import Operators
where = {}
def entered(self, key, record):
    frame = sys._getframe(1)
    while frame.f_code.co_name != "<module>":
        frame = frame.f_back
    module = frame.f_globals["__name__"].removeprefix("mezzo.ops.")
    where.setdefault(module, []).append("::".join(key) if key[0] else key[1])
    dict.__setitem__(self, key, record)
Operators.__setitem__ = entered
before = len(dict.keys(OPS))
index = {"::".join(key) if key[0] else key[1]: module for key, module in OPS.index.items()}
unread = not [m for m in sys.modules if m in {f"mezzo.ops.{name}" for name in index.values()}]
for module in pkgutil.walk_packages(mezzo.ops.__path__, "mezzo.ops."):
    importlib.import_module(module.name)
print(json.dumps([before, unread, where, index]))
"""


def told(code: str) -> Any:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_the_index_says_where_each_operator_is() -> None:
    before, unread, where, index = told(FRONT.format(path=str(ROOT)) + DEFINED)
    assert not before  # nothing is defined before it is asked for
    assert unread  # the index imports no module
    defined = {name: module for module, names in where.items() for name in names}
    assert len(defined) == sum(map(len, where.values()))  # no name stands in two modules
    wrong = {name: module for name, module in defined.items() if index.get(name) != module}
    assert not wrong, f"name and domain begin the decorator, or stand in OPERATORS (ops/registry.py): {wrong}"
    assert not index.keys() - defined.keys()


PLANTED = """
from ..core.expr import Expr, Expressions
from ..op import pointwise

OPERATORS = "Third mezzo::Fourth"


@pointwise("Planted", since=1)
def planted(e: Expressions, X: Expr) -> Expr:
    return X * 2


@pointwise(
    "Second",
    domain="mezzo",
    since=1,
)
def second(e: Expressions, X: Expr) -> Expr:
    return X * 3


third = pointwise("T" + "hird")(lambda e, X: X)
fourth = pointwise("F" + "ourth", domain="mezzo")(lambda e, X: X)
"""
LOOKED_UP = """
import numpy as np
from mezzo.ops import Context
early = "mezzo.ops.nn.planted" in sys.modules
names = [("", "Planted"), ("mezzo", "Second"), ("", "Third"), ("mezzo", "Fourth"), ("", "Softmax")]
runs = [float(OPS[name].run(Context(), [np.ones(1, np.float32)], {})[0][0]) for name in names]
print(json.dumps([early, runs, ("", "Nothing") in OPS, {*names} <= {*OPS}, len(OPS), OPS.outside()]))
"""


@pytest.mark.parametrize("kind", ["text", "archive", "compiled"])
def test_an_operator_needs_no_second_file(kind: str, tmp_path: Path) -> None:
    ops = tmp_path / "ops"
    shutil.copytree(ROOT / "ops", ops, ignore=shutil.ignore_patterns("__pycache__"))
    (ops / "nn" / "planted.py").write_text(PLANTED)
    path = tmp_path
    if kind == "archive":
        shutil.make_archive(str(tmp_path / "ops"), "zip", tmp_path, "ops")
        path = tmp_path / "ops.zip"
    elif kind == "compiled":
        assert compileall.compile_dir(ops, quiet=1, legacy=True)
        for text in ops.rglob("*.py"):
            text.unlink()
    early, *rest = told(FRONT.format(path=str(path)) + LOOKED_UP)
    assert (early, rest) == (False, [[2, 3, 1, 1, 1], False, True, len(OPS.index) + 4, []])


def test_one_operator_is_found_without_the_others() -> None:
    code = """
import json, sys
from mezzo.ops import OPS
record, late = OPS["", "NonMaxSuppression"], "mezzo.ops.math.signal" in sys.modules
found = ["", "DFT"] in [list(k) for k in OPS], ("", "Nothing") in OPS, OPS.get(("", "Nothing")) is None
print(json.dumps([record.name, late, found, len(OPS)]))
"""
    assert told(code) == ["NonMaxSuppression", False, [True, False, True], len(OPS.index)]


def test_gradients_and_standard_forms_of_other_modules_are_found() -> None:
    code = """
import json
from mezzo.ops.types import f32
from mezzo.runtime.ir.autodiff import grad
from mezzo.runtime.ir.graph import GraphBuilder
from mezzo.runtime.ir.infer import infer
g = GraphBuilder()
y = g.ReduceSum(g.Conv(g.input("x", f32(1, 2, 5, 5)), g.input("w", f32(3, 2, 3, 3))), keepdims=0)
made = grad(infer(g.graph([y])), y, ["w"])
print(json.dumps(sorted({n.op for n in made.nodes})))
"""
    assert "ConvGradWeights" in told(code)


def test_what_was_taken_out_stays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ("", "Exp") in OPS
    monkeypatch.delitem(OPS, ("", "Exp"))
    assert ("", "Exp") not in OPS
    with pytest.raises(KeyError):
        OPS["", "Exp"]

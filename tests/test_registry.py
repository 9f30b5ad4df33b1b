"""Operators are imported when they are asked for, from where the table says that they are."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from mezzo.ops import OPS
from mezzo.ops.registry import INDEX, MODULES

# Where each operator is defined: the module that is being run when its record is entered.
DEFINED = """
import importlib, importlib.util, json, pkgutil, sys, types
front = types.ModuleType("mezzo")  # the real one imports some operators
front.__path__ = importlib.util.find_spec("mezzo").submodule_search_locations
sys.modules["mezzo"] = front
import mezzo.ops
from mezzo.ops.registry import MODULES, Operators
where = {}
def entered(self, key, record):
    frame = sys._getframe(1)
    while frame.f_code.co_name != "<module>":
        frame = frame.f_back
    module = frame.f_globals["__name__"].removeprefix("mezzo.ops.")
    where.setdefault(module, []).append("::".join(key) if key[0] else key[1])
    dict.__setitem__(self, key, record)
Operators.__setitem__ = entered
before = len(dict.keys(mezzo.ops.OPS))
for module in pkgutil.walk_packages(mezzo.ops.__path__, "mezzo.ops."):
    importlib.import_module(module.name)
print(json.dumps([before, where]))
"""


def told(code: str) -> Any:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_the_table_says_where_each_operator_is() -> None:
    before, where = told(DEFINED)
    assert not before  # nothing is defined before it is asked for
    wrong = {m: " ".join(n) for m, n in where.items() if sorted(n) != sorted(MODULES.get(m, "").split())}
    assert not wrong, f"MODULES in ops/registry.py lacks these lines: {json.dumps(wrong, indent=4)}"
    assert not MODULES.keys() - where.keys()


def test_one_operator_is_found_without_the_others() -> None:
    code = """
import json, sys
from mezzo.ops import OPS
record, late = OPS["", "NonMaxSuppression"], "mezzo.ops.math.signal" in sys.modules
found = ["", "DFT"] in [list(k) for k in OPS], ("", "Nothing") in OPS, OPS.get(("", "Nothing")) is None
print(json.dumps([record.name, late, found, len(OPS)]))
"""
    assert told(code) == ["NonMaxSuppression", False, [True, False, True], len(INDEX)]


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

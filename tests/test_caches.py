"""Caches of the process: all are listed and bounded, and new ones that are not are noticed."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import partial

import numpy as np

import mezzo as mz
from mezzo.ops.types import f32
from mezzo.runtime.caches import Cache, HeavyCache, LatestCache, bounded
from mezzo.runtime.ir.graph import GraphBuilder

from .house import ROOT, House

# Tables that hold what users register or a module declares, not what calls leave behind.
REGISTERED = {
    "ops.upgrade._OPSETS_OF", "ops.upgrade.rules.RULES", "runtime.file.layout.TABLES", "runtime.optimizer.record.KINDS",
    "runtime.caches._TABLES", "sym.operators.LAYERS", "importers.registry.IMPORTERS", "gluon.initializer.KINDS",
    "gluon.export.WRITERS", "importers.mxnet.rules.RULES", "tools.mx.custom.KINDS",
}  # fmt: skip
# Tables whose keys are few: devices, streams of devices, element types; and those whose entries live as long as arrays
# or stores.
FEW_KEYS = {
    "runtime.backends.cuda.arrays._STREAMS", "nd.place._PLACES", "nd.random._generators", "nd.running._WITH_SCALARS",
    "runtime.compile.padding_rules.OWN_RULES", "runtime.passes.split_rules.RULES", "runtime.passes.split_rules.TRAITS",
    "runtime.execution.session.NO_BUFFERS",
    "ops.op.NO_ATTRIBUTES", "runtime.memory.shared_constants._derived", "kvstore.packing.SCHEMES",
    "tools.mx.blocks._KINDS", "kvstore.at_exit._open",
}  # fmt: skip


def unlisted(house: House) -> Iterator[str]:
    """Dicts of modules that begin empty and are not given to `bounded`."""
    for module in house.files:
        for node in house.tree(module).body:
            match node:
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.Dict(keys=[])):
                    yield f"{module}.{name}"
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict(keys=[])):
                    yield f"{module}.{name}"


# Functions with `functools.cache`, of names of operators, element types, classes or functions of a library.
FEW_ARGUMENTS = {
    "ops.op._keywords", "ops.op._expression", "ops.types._of", "ops.types._numpy", "ops.core.rules.is_narrow",
    "runtime.file.confirm._recalls", "runtime.compile.target._knows_layouts", "runtime.backends.onednn.api.function",
    "runtime.backends.onednn.api.getter", "runtime.backends.onednn.search._function",
    "runtime.backends.cuda.cudnn.library.properties",
    "importers.operators.schema_opset", "exporters.lower.schema_of", "kvstore.protocol.one_key._staleness",
    "kvstore.protocol.keys.element", "tools.cells._makers", "tools.halve.policy", "ops.contrib.weights._fours",
    "runtime.backends.machine.emit.compiler._machine", "kvstore.collective.gpu_sums.summing",
    "kvstore.collective.gpu_sums._sm",
}  # fmt: skip

UNBOUNDED = {"cache", "functools.cache", "lru_cache(None)", "lru_cache(maxsize=None)"}


def unbounded(house: House) -> Iterator[str]:
    """Functions of modules that keep an answer for whatever arguments they were given."""
    for module in house.files:
        for node in house.tree(module).body:
            keeps = isinstance(node, ast.FunctionDef) and {ast.unparse(d) for d in node.decorator_list} & UNBOUNDED
            if isinstance(node, ast.FunctionDef) and keeps and node.args.args:
                yield f"{module}.{node.name}"


def test_no_function_remembers_without_bound() -> None:
    assert set(unbounded(House(ROOT))) - FEW_ARGUMENTS == set()


def test_no_table_grows_unseen() -> None:
    assert set(unlisted(House(ROOT))) - REGISTERED - FEW_KEYS == set()


def test_what_runs_is_listed_and_forgotten() -> None:
    g = GraphBuilder()
    session = mz.Session(g.graph([g.Relu(g.input("x", f32(2, 3)))]))
    fed = {"x": -np.ones((2, 3), np.float32)}
    session.run(fed)
    assert (mz.nd.ones((2, 3)) + 1).asnumpy().sum() == 12
    found = mz.caches()
    assert {"kernel choices", "arrays: prepared operators", "compiled functions", "ops.layouts.parse"} <= {*found}
    assert 0 < found["kernel choices"].count <= found["kernel choices"].bound
    assert str(found).count("\n") == len(found) - 1
    found.clear()
    assert not any(c.count for c in mz.caches().values())
    (y,) = session.run(fed).values()
    assert (y == 0).all()
    assert (mz.nd.ones((2, 3)) + 1).asnumpy().sum() == 12


def test_a_cache_keeps_its_bound() -> None:
    cache: Cache[int] = Cache("of this test", 3)
    assert [cache.get(i, partial(pow, i, 2)) for i in (1, 2, 3, 2, 4)] == [1, 4, 9, 4, 16]
    assert len(cache) == 1
    assert mz.caches()["of this test"].count == 1
    mz.caches()["of this test"].clear()
    assert len(cache) == 0


def test_the_latest_are_kept() -> None:
    cache: LatestCache[int] = LatestCache("of another test", 3)
    assert [cache.get(i, partial(pow, i, 2)) for i in (1, 2, 3, 1, 4, 1)] == [1, 4, 9, 1, 16, 1]
    assert cache.get(2, lambda: 0) == 0, "it was not asked for longest"
    assert mz.caches()["of another test"].count == 3
    mz.caches()["of another test"].clear()
    assert len(cache) == 0


def test_a_dict_is_listed() -> None:
    from mezzo.runtime import caches

    table = bounded("a dict of this test", 4, {"a": 1})
    try:
        assert mz.caches()["a dict of this test"].count == 1
    finally:
        del caches._TABLES["a dict of this test"]
    assert table == {"a": 1}
    assert "a dict of this test" not in mz.caches()


def test_functions_are_found_once() -> None:
    """A function that other modules import is listed under the module that defines it."""
    names = [name for name in mz.caches() if name.endswith("layouts.parse")]
    assert names == ["ops.layouts.parse"]
    assert "mezzo.ops.layouts" in sys.modules


def test_heavy_values_stay_by_their_bytes_and_while_others_have_them() -> None:
    class Value:
        def __init__(self, nbytes: int) -> None:
            self.nbytes = nbytes

    cache: HeavyCache[Value] = HeavyCache("of a heavy test", 10, 3)
    first = cache.get("a", lambda: Value(6))
    cache.get("b", lambda: Value(6))
    assert len(cache) == 1
    assert cache.get("a", lambda: Value(0)) is first is cache.alive("a")
    cache.get("c", lambda: Value(20))
    assert (len(cache), cache.alive("b")) == (1, None)
    cache.clear()
    assert cache.get("a", lambda: Value(1)) is not first
    for key in "defg":
        cache.get(key, lambda: Value(1))
    assert len(cache) == 3

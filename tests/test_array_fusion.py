"""Runs of operations as one expression, and operators with the kernels of graphs."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.nd import pending, prepared
from mezzo.nd.planned import Planned
from mezzo.nd.running import apply
from mezzo.nd.specs import known
from mezzo.ops import OPS, Context, Sample, Tensor
from mezzo.runtime.backends.onednn.library import library

from .array_modes import Using, every_mode, line_after  # noqa: F401 (a fixture)
from .test_ops import fill

nd: Any = mz.nd


def expressions(dtype: str, rows: int) -> Iterator[Any]:
    """Runs of operations of several sorts: long ones, shared parts, operands that are repeated, and parts of arrays."""
    rng = np.random.default_rng(0)
    x, y = (nd.array(rng.normal(size=(rows, 300)).astype(dtype)) for _ in range(2))
    row, column, number = x[0] * 2, y[:, :1] + 1, nd.asarray(np.array(0.5, dtype))
    yield nd.tanh(x * 2 + y) * 0.5 - nd.exp(-x * x) / (1 + y * y)
    yield nd.where(x > y, x * row, nd.sqrt(abs(y)) + column) * number
    yield (x * number + y[:1, :1]) * x - y[:1, 0]
    yield (x[::2] + y[::2] * 3)[:, ::-1] - 1
    z = x
    for i in range(60):
        z = z * 0.99 + (y if i % 3 else row)
    yield z
    kept = [x + y]
    for _ in range(4):
        kept.append(kept[-1] * kept[-1] - x)
    yield kept[2] + kept[4]
    yield nd.logical_and(x > 0, nd.isfinite(1 / (y - y[0])))
    yield (x * 100).astype("int8") * 3 + 1


@pytest.mark.parametrize("rows", [2, 500])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("mode", ["threaded", "in place"])
def test_fused_operations_have_the_same_bits(mode: str, dtype: str, rows: int) -> None:
    assert (rows * 300 > prepared.PIECE) == (rows == 500)
    with Using(mode):
        expected = [x.asnumpy() for x in expressions(dtype, rows)]
        with nd.fusion():
            found = list(expressions(dtype, rows))
            assert any(x._lazy is not None for x in found), "nothing was gathered"
            found = [x.asnumpy() for x in found]
    for x, y in zip(expected, found, strict=True):
        assert x.dtype == y.dtype
        assert x.tobytes() == y.tobytes()


def test_a_run_of_operations_is_one_workload() -> None:
    with Using("fused") as one:
        a, b = nd.ones((2, 3)), nd.ones((2, 3))
        nd.waitall()
        with one.trace() as trace:
            c = (a + b) * 2 - a
            d = c / 4
            assert pending.waiting
            e = d @ b.mT
            e.wait_to_read()
            nd.waitall()
        names = [event["name"] for event in trace.events() if event["ph"] == "X"]
    assert sorted(names) == ["Div", "MatMul", "Sub of 3", "Transpose"], "c is held, d reads it"
    assert c.tolist() == [[3] * 3] * 2


def test_a_smaller_operand_is_computed_once_and_then_repeated() -> None:
    with Using("fused") as one:
        x, row = nd.ones((4, 3)), nd.ones(3)
        nd.waitall()
        with one.trace() as trace:
            y = (x * nd.exp(row * 2) + 1).wait_to_read()
            nd.waitall()
        names = [event["name"] for event in trace.events() if event["ph"] == "X"]
    assert names == ["Exp of 2", "Add of 2"]
    np.testing.assert_allclose(y.asnumpy(), np.exp(2) + np.ones((4, 3)), rtol=1e-6)


def test_writes_come_after_what_was_gathered_before_them() -> None:
    for mode in ("fused", "fused in place"):
        with Using(mode):
            a = nd.ones(3)
            part = a[1:]
            b = a * 2 + 1
            part[:] = 9
            c = a * 2
            a -= 1
            assert (a.tolist(), b.tolist(), c.tolist()) == ([0, 8, 8], [3, 3, 3], [2, 18, 18])


def test_an_error_in_a_run_names_the_line_that_asked_for_the_operation() -> None:
    with Using("fused"):
        a = nd.arange(4)
        powers = a ** nd.asarray([1, 0, -1, 2])
        more = powers * 2 + a
        del powers
        with pytest.raises(ValueError, match="negative integer powers") as caught:
            more.asnumpy()
        assert line_after("powers = a ** nd.asarray([1, 0, -1, 2])") in "".join(caught.value.__notes__)
        assert "'Pow'" in "".join(caught.value.__notes__)


def test_what_nobody_holds_is_not_computed_and_not_kept() -> None:
    with Using("fused") as one:
        a = nd.ones(1 << 16)
        nd.waitall()
        tracemalloc.start()
        with one.trace() as trace:
            for i in range(500):
                a * i
            nd.waitall()
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
        tracemalloc.stop()
        assert not [e for e in trace.events() if e["ph"] == "X"]


SAMPLES = [
    pytest.param(name, sample, id=f"{name}-{i}")
    for (_, name), record in OPS.items()
    if record.planned_from is not None
    for i, sample in enumerate(record.samples)
    if all(x is None or isinstance(x, Tensor | np.ndarray | np.generic) for x in sample.inputs)
]


@pytest.mark.parametrize(("name", "sample"), SAMPLES)
def test_planned_operators_are_their_references(name: str, sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    record = OPS["", name]
    monkeypatch.setattr(record, "planned_from", 0)
    prepared._PREPARED.clear()
    xs = [None if x is None else np.asarray(x) for x in fill(sample)]
    operands = [
        x if x is None else known(x.tolist(), x.dtype.type) if x.ndim < 2 and x.size < 5 else nd.array(x) for x in xs
    ]
    attrs: dict[str, Any] = {a: tuple(v) if isinstance(v, list) else v for a, v in sample.attrs.items()}
    found = apply(name, *operands, outputs=sample.outputs, **attrs)
    expected = record.run(Context(np, (True,) * sample.outputs), xs, sample.attrs)
    for y, x in zip(found if sample.outputs > 1 else (found,), expected, strict=False):
        y = y.asnumpy()
        assert (y.dtype, y.shape) == (x.dtype, x.shape)
        largest = np.abs(x[np.isfinite(x)]).max(initial=1e-30)
        np.testing.assert_allclose(y, x, rtol=0, atol=1e-5 * largest)
    prepared._PREPARED.clear()


def test_large_operands_have_the_kernels_of_graphs(mode: str) -> None:
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(2, 3, 16, 16)).astype("float32"), rng.normal(size=(4, 3, 3, 3)).astype("float32")
    first = apply("Conv", nd.array(x), nd.array(w), pads=(1, 1, 1, 1))
    again = apply("Conv", nd.array(x), nd.array(w), pads=(1, 1, 1, 1))
    assert first.asnumpy().tobytes() == again.asnumpy().tobytes()
    made = next(p for p in prepared._PREPARED.values() if p.name == "Conv" and p.outs[0] is first._spec)
    assert isinstance(made.call, Planned)
    kernels = {s.choice.kernel for s in made.call.session.program.steps}
    assert kernels <= ({"onednn.conv", "onednn.reorder"} if library() else {"reference"})
    small = nd.ones((2, 2)) @ nd.ones((2, 2))
    assert not isinstance(prepared.prepared("MatMul", (small._spec, small._spec)).call, Planned)

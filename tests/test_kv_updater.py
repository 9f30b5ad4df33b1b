"""An optimizer where values live gives what a training program gives, bit for bit; and it travels as plain data."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mezzo as mz
from mezzo.kvstore.updater import UpdateRule, flat, nested
from mezzo.ops import DType, Tensor
from mezzo.ops.types import Array
from mezzo.runtime import optimizer as o
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder
from mezzo.runtime.optimizer.schedule import Cosine, Exponential, MultiStep, OneCycle, WarmUp
from mezzo.train.building import Step
from mezzo.train.step import training_step

GROUPS = (o.Group(("b*",), 0.3, 0.02),)
OPTIMIZERS = [
    o.SGD(rate=0.05, weight_decay=0.01),
    o.SGD(rate=WarmUp(Cosine(0.1, 30), 3), momentum=0.9, nesterov=True, groups=GROUPS),
    o.SGD(rate=Exponential(0.1, 0.97), momentum=0.8, dampening=0.2),
    o.Adam(rate=OneCycle(0.01, 40), weight_decay=0.1),
    o.AdamW(rate=0.003, groups=GROUPS),
    o.Adagrad(rate=0.1, rate_decay=0.1, initial=0.5),
    o.RMSprop(centered=True, momentum=0.5),
    o.Adadelta(),
    o.Lion(rate=MultiStep(0.01, (2, 4)), weight_decay=0.1),
    o.NAG(weight_decay=0.01),
    o.Nadam(groups=GROUPS),
    o.Ftrl(weight_decay=0.1),
    o.Signum(rate=0.003, wd_lh=0.1),
    o.DCASGD(momentum=0.5),
]
FIRST = {"a": np.linspace(-1, 1, 40_000), "b": np.linspace(1, 2, 5)}  # several blocks and a rest; a group of its own
STEPS = 6


def gradients(update: int, dtype: str) -> dict[str, Array]:
    rng = np.random.default_rng(update)
    return {name: rng.standard_normal(value.shape).astype(dtype) for name, value in FIRST.items()}


def trained(optimizer: o.Optimizer, dtype: DType) -> dict[str, Array]:
    """The parameters, and their states, after training: the loss is the sum of each parameter times an input."""
    g = GraphBuilder()
    made = {name: g.const(value.astype(dtype.numpy)) for name, value in FIRST.items()}
    inputs = {name: g.input(f"d{name}", Tensor(dtype, value.shape)) for name, value in FIRST.items()}
    loss = g.Sum(*(g.ReduceSum(g.Mul(made[name], inputs[name]), keepdims=0) for name in FIRST))
    graph = g.graph([loss])
    names = {old: new for new, old in made.items()}
    constants = {names.get(n, n): a for n, a in graph.initializers.items()}
    graph = graph.rename(names).but(initializers=constants).verify()
    session = Session(training_step(graph, loss, list(FIRST), Step(optimizer)))
    for update in range(STEPS):
        session.run({f"d{name}": dw for name, dw in gradients(update, str(dtype.numpy)).items()})
    return session.states


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda x: x.kind)
@pytest.mark.parametrize("dtype", [DType.FLOAT, DType.DOUBLE], ids=str)
def test_the_same_bits_as_a_training_program(optimizer: o.Optimizer, dtype: DType) -> None:
    expected = trained(optimizer, dtype)
    rule = UpdateRule(nested(flat(optimizer.to_dict())))
    assert rule.optimizer == optimizer
    values = {name: value.astype(dtype.numpy) for name, value in FIRST.items()}
    states = {name: rule.states(name, value) for name, value in values.items()}
    for update in range(STEPS):
        for name, dw in gradients(update, str(dtype.numpy)).items():
            cut = dw.size // 3  # a part at a time, as they arrive
            for part in (slice(0, cut), slice(cut, None)):
                held = {slot: s[part] for slot, s in states[name].items()}
                rule.step(name, update, values[name][part], dw[part], held)
    for name in FIRST:
        assert not np.array_equal(values[name], FIRST[name].astype(dtype.numpy))
        np.testing.assert_array_equal(values[name], expected[name])
        for slot, state in states[name].items():
            np.testing.assert_array_equal(state, expected[f"optimizer/{slot}/{name}"])


@pytest.mark.parametrize(
    "optimizer", [o.LAMB(weight_decay=0.1, groups=GROUPS), o.LARS(), o.LBFGS(rate=0.1, history=3)], ids=lambda x: x.kind
)
def test_what_measures_whole_tensors_steps_whole_tensors(optimizer: o.Optimizer) -> None:
    expected = trained(optimizer, DType.FLOAT)
    rule = UpdateRule(nested(flat(optimizer.to_dict())))
    assert not rule.elementwise
    values = {name: value.astype(np.float32) for name, value in FIRST.items()}
    states = {name: rule.states(name, value) for name, value in values.items()}
    for update in range(STEPS):
        for name, dw in gradients(update, "float32").items():
            rule.step(name, update, values[name], dw, states[name])
    for name in FIRST:
        np.testing.assert_array_equal(values[name], expected[name])
        for slot, state in states[name].items():
            np.testing.assert_array_equal(state, expected[f"optimizer/{slot}/{name}"])


def test_integers_do_not_learn() -> None:
    with pytest.raises(mz.ShapeError, match="int32 cannot learn"):
        UpdateRule(o.SGD().to_dict()).states("k", np.zeros(2, np.int32))


WRONG: list[dict[str, Any]] = [
    {},
    {"kind": "Newton"},
    {**o.SGD().to_dict(), "speed": 1},
    {**o.SGD().to_dict(), "groups": 3},
]


@pytest.mark.parametrize("data", WRONG, ids=str)
def test_other_data_are_refused(data: dict[str, Any]) -> None:
    with pytest.raises(mz.InputError, match="describes no optimizer"):
        UpdateRule(data)


names = st.text("abc_[]0", min_size=1, max_size=3).filter(lambda n: n != "[]")
scalars = st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text("x*.", max_size=3)
trees = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, min_size=1, max_size=3)
)


@given(st.dictionaries(names, trees, max_size=4))
def test_flat_and_nested_are_inverse(data: dict[str, Any]) -> None:
    assert nested(flat(data)) == data


@given(st.dictionaries(st.text("ab.[]01", max_size=6), scalars, max_size=6))
def test_any_table_is_understood_or_refused(table: dict[str, Any]) -> None:
    with contextlib.suppress(mz.InputError):
        nested(table)

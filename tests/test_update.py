"""The operator of all optimizers and its kernels: rules as text, and blocks of tensors to the last bit."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mezzo.ops import OPS, Context, DType, Tensor
from mezzo.ops.core.expr import E, inputs
from mezzo.ops.errors import InputError, MezzoError
from mezzo.ops.training.update import LONGEST, SHOWN, names_of, read, text_of
from mezzo.ops.types import f32
from mezzo.runtime.backends.cpu.update import BLOCK, update_in_place
from mezzo.runtime.backends.onednn.library import library
from mezzo.runtime.backends.onednn.update import BLOCK as PIECE
from mezzo.runtime.backends.onednn.update import FEW
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.runtime.ir.interpreter import evaluate
from mezzo.runtime.optimizer import KINDS, SGD, Adam, Lion, Optimizer, RMSprop

Array = np.ndarray[Any, Any]

ELEMENTWISE: dict[str, Optimizer] = {
    **{name: kind() for name, kind in KINDS.items() if kind().elementwise},
    "decayed": Adam(weight_decay=0.1),
    "velocity": SGD(momentum=0.9, dampening=0.1, nesterov=True, weight_decay=0.1),
    "all of RMSprop": RMSprop(centered=True, momentum=0.5),
}


def one_update(
    optimizer: Optimizer, shape: tuple[int, ...], dtype: DType, seed: int = 0
) -> tuple[Graph, dict[str, Array]]:
    """A graph of one update, and its feeds."""
    rng, g = np.random.default_rng(seed), GraphBuilder(optimizer.kind)
    count = len(optimizer.numbers_at(GraphBuilder(), "t")) - 1
    feeds = dict[str, Array]()
    for name in names_of(count, optimizer.draws, len(optimizer.slots)):
        scalar = name == "rate" or name.startswith("n")
        drawn = rng.uniform(0.1, 1) if scalar else rng.standard_normal(shape)
        held = np.abs(drawn) + 1 if name.startswith("s") else drawn  # squares and velocities
        feeds[name] = np.asarray(held).astype(dtype.numpy)
        g.input(name, Tensor(dtype, feeds[name].shape))
    W, dW, rate, *rest = feeds
    numbers, draws = rest[:count], rest[count : count + optimizer.draws]
    made = optimizer.add(g, W, dW, [rate, *numbers], draws, rest[count + optimizer.draws :])
    return g.graph([*made]), feeds


def kernel_equals_reference(graph: Graph, feeds: dict[str, Array], session: Session | None = None) -> None:
    kernel = "numpy.update" if session is None else "onednn.update"
    session = session or Session(graph, onednn=False)
    got = session.run({n: x.copy() for n, x in feeds.items()})
    with np.errstate(all="ignore"):
        want = evaluate(graph, feeds)
    assert [s.choice.kernel for s in session.program.steps] == [kernel]
    for name, y in want.items():
        assert got[name].dtype == y.dtype
        assert got[name].tobytes() == y.tobytes(), name


@pytest.mark.parametrize("dtype", [DType.FLOAT, DType.DOUBLE, DType.FLOAT16, DType.BFLOAT16], ids=str)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_blocks_of_large_tensors(name: str, dtype: DType) -> None:
    """Two blocks and a bit: the kernel does what the expressions say, to the last bit, in all element types."""
    kernel_equals_reference(*one_update(ELEMENTWISE[name], (2 * BLOCK + 13,), dtype))


@pytest.mark.skipif(library() is None, reason="oneDNN is not installed")
@pytest.mark.parametrize("size", [FEW, 2 * PIECE + 13], ids=["one piece", "two pieces and a bit"])
@pytest.mark.parametrize("name", [n for n in ELEMENTWISE if n not in ("Lion", "Signum", "Ftrl")])  # they ask for signs
def test_chains_of_onednn(name: str, size: int) -> None:
    """They do what the expressions say to the last bit too, and where the arrays lie elsewhere in the next run."""
    optimizer = ELEMENTWISE[name]
    graph, feeds = one_update(optimizer, (size,), DType.FLOAT)
    session = Session(graph)
    kernel_equals_reference(graph, feeds, session)
    kernel_equals_reference(graph, one_update(optimizer, (size,), DType.FLOAT, 1)[1], session)


@pytest.mark.skipif(library() is None, reason="oneDNN is not installed")
def test_where_chains_are_declined() -> None:
    for optimizer, size, dtype in (
        (Lion(), FEW, DType.FLOAT),
        (Adam(), FEW - 1, DType.FLOAT),
        (Adam(), FEW, DType.BFLOAT16),
    ):
        session = Session(one_update(optimizer, (size,), dtype)[0])
        assert [s.choice.kernel for s in session.program.steps] == ["numpy.update"]


@given(
    name=st.sampled_from([*ELEMENTWISE]),
    shape=st.lists(st.integers(0, 9), max_size=4).map(tuple),
    seed=st.integers(0, 99),
)
def test_tensors_of_any_shape(name: str, shape: tuple[int, ...], seed: int) -> None:
    kernel_equals_reference(*one_update(ELEMENTWISE[name], shape, DType.FLOAT, seed))


@pytest.mark.parametrize(
    "rule", ["mul s0 0.5; add #0 dW; sub W #1 -> #2 #1 s0", "add W dW -> s1 W s0", "add s0 dW -> s0 s1 s0"]
)
def test_states_that_become_one_another(rule: str) -> None:
    """The next value of a state is the value of another one before the step, whichever is written first."""
    w, d, s, t = np.random.default_rng(0).standard_normal((4, 9))
    given = [w, d, np.asarray(0.1), s, t]
    want = OPS["mezzo", "Update"].run(Context(), given, {"rule": rule, "states": 2})
    update_in_place(rule, given, 2)
    np.testing.assert_array_equal([w, s, t], want)


def test_a_gradient_of_another_shape_is_refused() -> None:
    g = GraphBuilder()
    w, dw, rate = g.input("w", f32(2, 3)), g.input("dw", f32(3)), g.input("rate", f32())
    with pytest.raises(MezzoError, match="Update"):
        Session(g.graph([g.op("Update", w, dw, rate, domain="mezzo", rule=SHOWN[0][0])]))


# Rules as text


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_rules_are_read_as_they_were_written(name: str) -> None:
    optimizer = ELEMENTWISE[name]
    count = len(optimizer.numbers_at(GraphBuilder(), "t")) - 1
    names = names_of(count, optimizer.draws, len(optimizer.slots))
    leaves = dict(zip(names, inputs([DType.DOUBLE] * len(names)), strict=True))
    trees = read(optimizer.rule(), {n: leaf for n, leaf in leaves.items() if leaf is not None})
    assert text_of(trees, names) == optimizer.rule()


LEAVES = dict(zip(("W", "dW", "rate"), (leaf for leaf in inputs([DType.FLOAT] * 3) if leaf), strict=True))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mul W dW",
        "mul W dW -> #1",
        "mul W -> #0",
        "mul W other -> #0",
        "eval W -> #0",
        "greater W dW; mul #0 W -> #1",
        "where W dW rate -> W",
        "cast W 1 -> #0",
        "add W dW -> #0 -> #0",
        "mul W 1.0;" * LONGEST + " -> #0",
        "mul W W; " * 600 + " -> #0",
    ],
    ids=lambda text: text[:20],
)
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="no rule"):
        read(text, LEAVES)


@given(st.text("mulWd0#;-> .se", max_size=40))
def test_any_text_is_a_rule_or_refused(text: str) -> None:
    with contextlib.suppress(InputError):
        read(text, LEAVES)


def test_what_has_no_standard_form_is_no_rule() -> None:
    with pytest.raises(InputError, match="expm1"):
        text_of([E.expm1(LEAVES["W"])], ("W",))

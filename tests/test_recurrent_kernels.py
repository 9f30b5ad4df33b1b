"""The training kernels of recurrent networks, prepared by hand over poisoned memory: float32 and bfloat16, odd sizes,
another input, and what they decline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mezzo.models.training import LESSONS
from mezzo.ops import OPS, DType, Tensor
from mezzo.ops.types import type_of
from mezzo.runtime.backends.onednn import KERNELS
from mezzo.runtime.backends.onednn.library import library
from mezzo.runtime.compile.kernel import Choice, Declined, Kernel, KernelArgs, KernelRequest, TargetSpec
from mezzo.runtime.ir.graph import GraphBuilder, Node
from mezzo.runtime.ir.interpreter import evaluate

found = library()
needed = pytest.mark.skipif(found is None, reason="oneDNN is not installed")
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
# steps, batch, inputs, hidden; the last one runs back in spans of steps
SIZES = [(5, 3, 7, 9), (1, 1, 1, 1), (2, 17, 5, 33), (5, 128, 16, 64)]
KINDS = [(dtype, s) for dtype in (DType.FLOAT, DType.BFLOAT16) for s in SIZES if dtype is DType.FLOAT or s[3] > 1]
BOTH = {"direction": "bidirectional"}
CASES: list[tuple[str, dict[str, Any], bool]] = [  # operator, attributes, and whether biases and first states are given
    ("LSTM", {}, True),
    ("LSTM", BOTH, True),
    ("LSTM", {"direction": "reverse"}, False),
    ("GRU", {"linear_before_reset": 1, **BOTH}, True),
    ("GRU", {"linear_before_reset": 1, "direction": "reverse"}, False),
    ("GRU", BOTH, True),
    ("GRU", {}, False),
    ("RNN", BOTH, True),
    ("RNN", {"activations": ["Relu"]}, False),
]


def operands(op: str, sizes: Sequence[int], attrs: dict[str, Any], given: bool) -> list[Any]:
    """What the operator reads."""
    steps, batch, inputs, hidden = sizes
    d, rows = 2 if attrs.get("direction") == "bidirectional" else 1, GATES[op] * hidden
    rng = np.random.default_rng(hidden)

    def numbers(*shape: int) -> Any:
        return rng.uniform(-0.5, 0.5, shape).astype(np.float32)

    weights = [numbers(d, rows, inputs), numbers(d, rows, hidden) / max(1, hidden**0.5)]
    made = [numbers(steps, batch, inputs), *weights]
    if given:
        states = [numbers(d, batch, hidden) for _ in range(2 if op == "LSTM" else 1)]
        made += [numbers(d, 2 * rows), None, *states]
    return made


def node_of(op: str, attrs: dict[str, Any], inputs: Sequence[Any]) -> Node:
    names = tuple("" if x is None else f"x{i}" for i, x in enumerate(inputs))
    results = tuple(p.name for p in OPS["mezzo", op].outputs if p.name != "dP")
    return Node(op, names, results, attrs, "mezzo")


def exact(node: Node, inputs: Sequence[Any]) -> list[Any]:
    """The reference's results for the same numbers in float64."""
    g, feeds = GraphBuilder(), dict[str, Any]()
    names: list[str | None] = []
    for i, x in enumerate(inputs):
        feeds[f"x{i}"] = x if x is None else x.astype(np.float64)
        names.append(None if x is None else g.input(f"x{i}", type_of(feeds[f"x{i}"])))
    made = g.op(node.op, *names, domain="mezzo", outputs=len(node.outputs), **node.attrs)
    return list(evaluate(g.graph(list(made)), {n: x for n, x in feeds.items() if x is not None}).values())


def kernel_of(node: Node) -> Kernel:
    return next(k for k in KERNELS if k.serves(node))


def poisoned(shape: Sequence[int], dtype: DType) -> Any:
    """Memory that holds no number yet."""
    return np.full(shape, np.nan, dtype.numpy) if dtype.floating else np.full(shape, 255, dtype.numpy)


def check(node: Node, inputs: Sequence[Any], tolerance: float, threads: int = 1) -> list[Any]:
    """The results of the kernel: twice, and again for another input."""
    types = [None if x is None else type_of(x) for x in inputs]
    outputs = list(node.record.infer_types(types, node.attrs, (True,) * len(node.outputs)))
    request = KernelRequest(node, types, outputs, target=TargetSpec(threads=threads))
    kernel = kernel_of(node)
    choice = kernel.select(request)
    assert isinstance(choice, Choice), choice
    assert "ref" not in choice.implementation
    results = [poisoned(t.sizes, t.dtype) for t in outputs if isinstance(t, Tensor)]
    workspace: list[Any] = []

    def scratch(dtype: DType, shape: tuple[int, ...]) -> Any:
        workspace.append(poisoned(shape, dtype))
        return workspace[-1]

    run = kernel.prepare(KernelArgs(request, choice, inputs, results, scratch))
    assert sum(a.nbytes for a in workspace) <= choice.workspace
    for turn in range(3):
        if turn == 2:  # the input lies elsewhere, the workspace has served others
            inputs = [(inputs[0] * 0.5).astype(inputs[0].dtype), *inputs[1:]]
            run.rebind(("in", 0), inputs[0])  # type: ignore[attr-defined]
            for a in workspace:
                a[...] = poisoned(a.shape, DType.of(a.dtype))
        for a in results:
            a[...] = np.nan
        assert not run()
        for name, got, want in zip(node.outputs, results, exact(node, inputs), strict=True):
            worst = np.abs(got.astype(np.float64) - want).max()
            assert worst <= tolerance * np.abs(want).max(), (turn, name, worst)
    return results


@needed
@pytest.mark.parametrize(("dtype", "sizes"), KINDS, ids=str)
@pytest.mark.parametrize(("op", "attrs", "given"), CASES)
def test_forward_and_back(op: str, attrs: dict[str, Any], given: bool, dtype: DType, sizes: Sequence[int]) -> None:
    if dtype is DType.BFLOAT16 and not (found and found.bf16):
        pytest.skip("this machine computes no bfloat16")
    tolerance = 1e-5 if dtype is DType.FLOAT else 3e-2
    inputs = [None if x is None else x.astype(dtype.numpy) for x in operands(op, sizes, attrs, given)]
    kept = check(node_of(f"{op}Train", attrs, inputs), inputs, tolerance)
    record = OPS["mezzo", f"{op}Grad"]
    whole = [*inputs, *[None] * (len(OPS["", op].inputs) - len(inputs))]
    states = 2 if op == "LSTM" else 1
    rng = np.random.default_rng(1)
    dys = [rng.uniform(-1, 1, y.shape).astype(dtype.numpy) for y in kept[: 1 + states]]
    if not given:
        dys[0] = None  # nothing arrives but at the last states
    back = [*whole, kept[0], *kept[1 + states :], *dys]
    assert len(back) <= len(record.inputs)
    check(node_of(f"{op}Grad", attrs, back), back, tolerance, threads=2)


@needed
@pytest.mark.parametrize("op", GATES)
def test_small_numbers_keep_their_digits(op: str) -> None:
    """Each result is as exact as its size: a tanh near zero is none less one."""
    operand = operands(op, (5, 3, 7, 9), {}, given=False)
    check(node_of(f"{op}Train", {}, operand), [operand[0] * np.float32(1e-5), *operand[1:]], 1e-5)


@needed
@pytest.mark.parametrize(
    ("op", "attrs", "why"),
    [
        ("LSTM", {"clip": 0.5}, "clip is set"),
        ("LSTM", {"layout": 1}, "layout is set"),
        ("LSTM", {"input_forget": 1}, "input_forget is set"),
        ("LSTM", {"activations": ["Sigmoid", "Relu", "Tanh"]}, "the activations are Sigmoid, Relu, Tanh"),
        ("GRU", {"activations": ["Sigmoid", "Relu"]}, "the activations are Sigmoid, Relu"),
        ("RNN", {"activations": ["Softsign"]}, "the activations are Softsign"),
    ],
)
def test_other_forms_are_declined_with_the_reason(op: str, attrs: dict[str, Any], why: str) -> None:
    node = node_of(f"{op}Train", attrs, operands(op, SIZES[0], {}, False))
    inputs = [None if x is None else type_of(x) for x in operands(op, SIZES[0], {}, False)]
    outputs = node.record.infer_types(inputs, attrs, (True,) * len(node.outputs))
    answer = kernel_of(node).select(KernelRequest(node, inputs, outputs, target=TargetSpec()))
    assert answer == Declined(why)


@needed
def test_lengths_and_peepholes_are_declined() -> None:
    for index, x in ((4, np.array([5, 4, 3], np.int32)), (7, np.ones((1, 27), np.float32))):
        inputs = [*operands("LSTM", SIZES[0], {}, True), None]
        inputs[index] = x
        node = node_of("LSTMTrain", {}, inputs)
        types = [None if x is None else type_of(x) for x in inputs]
        outputs = node.record.infer_types(types, {}, (True,) * len(node.outputs))
        answer = kernel_of(node).select(KernelRequest(node, types, outputs, target=TargetSpec()))
        assert answer == Declined("sequences have lengths of their own, or cells peepholes")


def test_mixed_precision_has_them_in_bfloat16_and_not_in_float16() -> None:
    lesson = LESSONS["lstm_classifier"]
    feeds = lesson.feeds(4, small=True)
    losses = {}
    for amp, dtype in (("bf16", DType.BFLOAT16), ("fp16", DType.FLOAT), (None, DType.FLOAT)):
        trainer = lesson.trainer(4, small=True, amp=amp)
        types = trainer.graph_of_step.types
        made = [o for n in trainer.graph_of_step.nodes if n.op in ("LSTMTrain", "LSTMGrad") for o in n.outputs if o]
        assert len(made) > 5
        assert {t.dtype for t in map(types.get, made) if isinstance(t, Tensor)} == {dtype}
        losses[amp] = [trainer.step(feeds) for _ in range(5)]
    assert losses["bf16"] == pytest.approx(losses[None], rel=0.02)

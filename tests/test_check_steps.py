"""`mezzo check --against steps`: a wrong step of a planned program is named, with its kernel and its nodes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.exporters import save_onnx
from mezzo.models.digits import digits_model, held_out
from mezzo.ops import Body, DType, Tensor
from mezzo.ops.layouts import nbytes, padded, parse
from mezzo.ops.types import f32, i64
from mezzo.runtime.backends.onednn import postops
from mezzo.runtime.backends.onednn.library import library
from mezzo.runtime.execution import instance
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder, Node
from mezzo.runtime.passes import simplify
from mezzo.tools.check import check
from mezzo.tools.check_options import Options
from mezzo.tools.steps import Checked, Wrong, check_steps, in_order
from mezzo.tools.verdict import DIFFERENT, GOOD

from .random_graphs.generate import generate
from .random_graphs.switches import sample
from .test_cli import mezzo

Spoil = Callable[[instance.Instance, Any], None]


def image_net(size: int, name: str = "net") -> Graph:
    """Two convolutions with what follows them, and a product; of a size that no other test has."""
    rng, g = np.random.default_rng(size), GraphBuilder(name)

    def weight(*sizes: int) -> str:
        return g.const(rng.standard_normal(sizes).astype(np.float32) / 4)

    x = g.input("x", f32(2, 3, size, size))
    for channels, before in ((16, 3), (24, 16)):
        y = g.Conv(x, weight(channels, before, 3, 3), weight(channels), pads=[1, 1, 1, 1])
        x = g.Relu(g.Add(y, weight(channels, 1, 1)))
    return g.graph([g.MatMul(g.Flatten(g.MaxPool(x, kernel_shape=[2, 2])), weight(24 * (size - 1) ** 2, 5))])


def feeds_of(graph: Graph) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {n: rng.standard_normal(t.sizes, np.float32) for n, t in graph.types.items() if n in graph.inputs}  # type: ignore[union-attr]


def checked(graph: Graph, **options: Any) -> Checked:
    return check_steps(Session(graph, instances=1, threads=1, **options), feeds_of(graph))


def spoiled(monkeypatch: pytest.MonkeyPatch, kernel: str, spoil: Spoil) -> None:
    """Do something after each step of a kernel."""
    prepared = instance.Instance._prepared

    def wrapped(self: Any, i: int) -> Any:
        call, step = prepared(self, i), self.program.steps[i]
        if step.choice.kernel != kernel:
            return call

        def run() -> None:
            call()
            spoil(self, step)

        return run

    monkeypatch.setattr(instance.Instance, "_prepared", wrapped)


def names(wrong: Wrong) -> list[str]:
    """The operators of the nodes that are named."""
    return [place.rsplit("(", 1)[1].rstrip(")") for place in wrong.origin]


@pytest.fixture
def onednn() -> None:
    if library() is None:
        pytest.skip("there is no oneDNN")


# ------------------------------------------------------------------------------------------------ what is right


@pytest.mark.parametrize("seed", range(40))
def test_right_graphs_name_nothing(seed: int) -> None:
    case = generate(5000 + seed, most=20)
    switches = sample(np.random.default_rng(seed))[0]
    found = check_steps(Session(case.graph, instances=1, **switches.given), case.feeds)
    assert not found.wrong, "\n".join(map(str, found.wrong))
    assert not found.left


@pytest.mark.parametrize("options", [{}, {"onednn": False}, {"fuse": True}, {"strategy": "none"}])
def test_right_models_name_nothing(options: dict[str, Any]) -> None:
    found = checked(image_net(19), **options)
    assert (found.wrong, found.left) == ((), ())
    assert found.said == f"{found.right} steps agree with their operators"


def test_right_models_in_bfloat16_name_nothing() -> None:
    found = library()
    if found is None or not found.bf16:
        pytest.skip("this machine computes no bfloat16")
    for precision in ("bf16", "bf16-math"):
        assert checked(image_net(19), precision=precision).wrong == ()


# ------------------------------------------------------------------------------------------------ planted defects


def scale(self: instance.Instance, step: Any) -> None:
    self.arrays[step.node.outputs[0]].view(np.float32)[...] *= np.float32(1.01)


@pytest.mark.usefixtures("onednn")
def test_a_wrong_fused_kernel_is_named_with_its_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each convolution by itself, and nothing of what comes after it."""
    spoiled(monkeypatch, "onednn.conv", scale)
    session = Session(image_net(21), instances=1)
    found = check_steps(session, feeds_of(session.graph))
    first, second = found.wrong
    steps = session.program.steps
    for wrong in (first, second):
        assert wrong.step is steps[wrong.number]
        assert names(wrong) == ["Conv", "Add", "Relu"]
        assert wrong.step.choice.kernel == "onednn.conv"
        assert wrong.step.choice.implementation in str(wrong)
        assert str(wrong).startswith(f"step {wrong.number} (onednn.conv, ")
    assert first.number < second.number
    assert len(steps) == found.right + 2


@pytest.mark.usefixtures("onednn")
def test_a_wrong_post_op_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(postops.ELTWISE, "Relu", lambda n: ("eltwise_relu", 0.125, 0.0))
    found = checked(image_net(23))
    assert [names(w) for w in found.wrong] == [["Conv", "Add", "Relu"]] * 2


@pytest.mark.usefixtures("onednn")
def test_a_weight_that_is_packed_wrongly_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from mezzo.runtime.backends.onednn.conv import Conv

    pack = Conv.pack

    def wrong(self: Any, request: Any, choice: Any, index: int, array: Any) -> Any:
        return pack(self, request, choice, index, array[::-1] if index == 1 else array)

    monkeypatch.setattr(Conv, "pack", wrong)
    assert [names(w)[0] for w in checked(image_net(25)).wrong] == ["Conv", "Conv"]


def branches() -> Graph:
    """Two values of one size that live at one time, and what reads both."""
    g = GraphBuilder("branches")
    x = g.input("x", f32(7, 9))
    a, b = g.Exp(x), g.Sin(x)
    return g.graph([g.MatMul(g.Softmax(g.Cos(b)), g.Transpose(a))])


def test_bytes_that_change_are_named_with_who_may_have_written_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan that gives away bytes that are still read; and a kernel that writes where it should not."""
    session = Session(branches(), instances=1, onednn=False, strategy="none")
    program = session.program
    makers = {s.node.op: s.node.outputs[0] for s in program.steps}
    spoil, victim = makers["Sin"], makers["Exp"]
    assert not check_steps(session, feeds_of(session.graph)).wrong

    def beyond(self: instance.Instance, step: Any) -> None:
        if step.node.outputs[0] == spoil:
            self.arrays[victim][2, 3] += 1

    kernel = next(s.choice.kernel for s in program.steps if s.node.outputs[0] == spoil)
    with monkeypatch.context() as m:
        spoiled(m, kernel, beyond)
        (wrong,) = checked(branches(), onednn=False, strategy="none").wrong
    assert (wrong.value, names(wrong)) == (victim, ["Transpose"])
    assert "writes where it should not" in wrong.how

    slots = program.plan.by_value
    object.__setattr__(slots[spoil], "offset", slots[victim].offset)
    session.trim()
    (wrong, *_) = check_steps(session, feeds_of(session.graph)).wrong
    assert wrong.value == victim
    assert f"has {spoil!r} in the same bytes" in wrong.how


def test_a_wrong_pass_is_told_from_a_wrong_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every step does what it stands for, which is not what the model says."""

    def wrong(graph: Graph, *args: Any, **options: Any) -> Graph:
        made = simplify(graph, *args, **options)
        return made.but(nodes=tuple(_as(n, "Cosh") if n.op == "Sinh" else n for n in made.nodes))

    monkeypatch.setattr("mezzo.runtime.compile.specialize.simplify", wrong)
    g = GraphBuilder("rewritten")
    graph = g.graph([g.Softmax(g.Sinh(g.Softmax(g.input("x", f32(5, 7)))))])
    (wrong_step,) = checked(graph).wrong
    assert "a pass is wrong" in wrong_step.how
    assert wrong_step.step.node.op in ("Cosh", "Fused")


def _as(node: Node, op: str) -> Node:
    return Node(op, node.inputs, node.outputs, node.attrs, node.domain, node.name, node.where, node.origin)


def test_a_wrong_step_inside_of_a_loop_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    g = GraphBuilder("loop")
    body = Body([i64(), Tensor(DType.BOOL, ()), f32(3, 4)], lambda g, i, go, x: (g.Identity(go), g.Sin(g.Exp(x))))
    graph = g.graph([g.Neg(g.Loop(g.const(3), None, g.input("x", f32(3, 4)), body=body))])
    assert not checked(graph).wrong
    inner = next(s for s in Session(graph).program.all_steps() if s.node.op in ("Sin", "Fused"))
    spoiled(monkeypatch, inner.choice.kernel, lambda self, step: scale(self, step) if "Sin" in str(step.node) else None)
    (wrong,) = checked(graph).wrong
    assert "Sin" in str(wrong.step.node)
    assert "of the body of step" in str(wrong)


# ------------------------------------------------------------------------------------------------ as a command


def test_the_command_names_step_kernel_and_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, recorded = tmp_path / "net.onnx", tmp_path / "ref.npz"
    save_onnx(image_net(27), path)
    assert check(path, Options(record=str(recorded), round_trip=False)).code == GOOD
    sound = check(path, Options(against="steps"))
    assert sound.code == GOOD
    assert "steps agree with their operators" in sound.parts["numbers"]
    assert "agree with their operators" in mezzo("check", str(path), "--against", "steps")

    kernel = next(s.choice.kernel for s in Session(image_net(27)).program.steps if s.node.op in ("Fused", "Conv"))
    spoiled(monkeypatch, kernel, scale)
    verdict = check(path, Options(against="steps", round_trip=False))
    assert verdict.code == DIFFERENT
    for problem in verdict.problems:
        assert f"({kernel}" in problem.message
        assert "(Conv)" in problem.message
        assert "net.onnx: node" in problem.where
    # and where another side differs: final outputs are enough now
    ends = ("x", *mz.load(path).graph.outputs)
    np.savez(tmp_path / "outputs.npz", **{n: a for n, a in np.load(recorded).items() if n in ends})
    for against in (recorded, tmp_path / "outputs.npz"):
        (problem,) = check(path, Options(against=str(against), round_trip=False)).problems
        assert f"({kernel}" in problem.message
        assert "output" in problem.message
        assert "(Conv)" in problem.message


def test_other_devices_are_refused() -> None:
    session = Session(image_net(29), device="gpu:0@sm_90")
    with pytest.raises(mz.InputError, match="on the CPU"):
        check_steps(session, {})


def test_digits_agree() -> None:
    assert not check_steps(mz.load(digits_model()), {"image": held_out().inputs[:4]}).wrong


# ------------------------------------------------------------------------------------------------ layouts


@pytest.mark.parametrize(
    ("layout", "sizes"),
    [
        ("ba", (3, 5)),
        ("acdb", (2, 3, 4, 5)),
        ("cbad", (2, 3, 4, 5)),
        ("aBcd16b", (2, 19, 2, 3)),
        ("ABcd16b16a", (17, 19, 2, 1)),
        ("ABcd4b16a4b", (17, 33, 1, 2)),
        ("Acdb16a+64", (18, 3, 2, 2)),
        ("BA16a64b4a", (70, 65)),
    ],
)
@pytest.mark.parametrize("dtype", [DType.FLOAT, DType.BFLOAT16, DType.INT8])
def test_any_layout_is_read_back(layout: str, sizes: tuple[int, ...], dtype: DType) -> None:
    """Element by element, where the notation says that it lies."""
    order, blocks, _ = parse(layout, len(sizes))
    whole = padded(layout, sizes)
    known = Tensor(dtype, sizes, layout=layout)
    memory = np.zeros(nbytes(layout, sizes, dtype.itemsize), np.uint8)
    flat = memory[: int(np.prod(whole)) * dtype.itemsize].view(dtype.numpy)
    want = np.random.default_rng(0).integers(-100, 100, sizes).astype(dtype.numpy)
    inner = [int(np.prod([n for d, n in blocks if d == dim])) for dim in range(len(sizes))]
    for index in product(*map(range, sizes)):
        left, at = [i % n for i, n in zip(index, inner, strict=True)], 0
        for dim in order:
            at = at * (whole[dim] // inner[dim]) + index[dim] // inner[dim]
        below = list(inner)
        for dim, n in blocks:
            below[dim] //= n
            at = at * n + left[dim] // below[dim]
            left[dim] %= below[dim]
        flat[at] = want[index]
    np.testing.assert_array_equal(in_order(memory, known), want)

"""One network, three ways: eager, hybridized, and exported and run elsewhere. Every layer, loss, activation, optimizer,
function of `mz.nd` and operator, and random compositions, on inputs that differ in values, labels, masks and batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mezzo import nd
from mezzo.gluon import Trainer, loss, nn
from mezzo.gluon.block import Block
from mezzo.gluon.hybrid import GraphBroken, HybridBlock
from mezzo.nd import autograd, random
from mezzo.nd.array import Array
from mezzo.nd.named import attributes
from mezzo.nd.running import apply
from mezzo.nd.specs import known
from mezzo.ops import OPS, Tensor
from mezzo.ops.errors import MezzoError, UnsupportedModel
from mezzo.ops.types import f32
from mezzo.runtime.ir.graph import Graph, GraphBuilder
from mezzo.runtime.optimizer.record import OURS
from mezzo.tools.load import load

from . import gluon_recipes as recipes
from .gluon_recipes import BATCHES, arrays_of
from .models import ort_run, referee
from .random_graphs.generate import generate
from .test_gluon_traces import Of

TOLERANCE = 2e-5


Rounding = Callable[[str], float]


def close(
    name: str, a: Any, b: Any, tolerance: float = TOLERANCE, least: float = 1e-6, rounding: Rounding | None = None
) -> None:
    a, b = np.asarray(a), np.asarray(b)
    assert (a.shape, a.dtype) == (b.shape, b.dtype), name
    if a.dtype.kind not in "fc":
        assert np.array_equal(a, b), name
        return
    finite = np.isfinite(b)
    assert np.array_equal(np.isfinite(a), finite), name
    off = np.abs(np.where(finite, a, 0) - np.where(finite, b, 0)).max(initial=0)
    bound = tolerance * max(np.abs(b[finite]).max(initial=0), least)
    if off > bound and rounding is not None:
        bound = max(bound, rounding(name))
    assert off <= bound, f"{name}: off by {off}"


@dataclass
class Answer:
    """What a run has given: outputs, gradients of inputs and of parameters, and what states have become."""

    outputs: list[Any]
    gradients: dict[str, Any]

    def values(self) -> dict[str, Any]:
        return {f"output {i}": a for i, a in enumerate(self.outputs)} | self.gradients

    def same(self, other: Answer, rounding: Rounding | None = None) -> None:
        """What is off by more than the tolerance may be so by `rounding`, where that is given."""
        assert len(self.outputs) == len(other.outputs)
        for i, (a, b) in enumerate(zip(self.outputs, other.outputs, strict=True)):
            close(f"output {i}", a, b, rounding=rounding)
        assert self.gradients.keys() == other.gradients.keys()
        largest = max((np.abs(g).max(initial=0) for g in other.gradients.values() if g.dtype.kind == "f"), default=0.0)
        for n, a in self.gradients.items():  # some are zero but for rounding: that of a key's bias, or before a norm
            close(n, a, other.gradients[n], least=max(1e-2 * float(largest), 1e-6), rounding=rounding)


class Moved:
    """Measure of rounding: twice as far as an eager block's numbers move where the last bits of its inputs do. Sums
    that cancel move far; what is wrong is further off."""

    def __init__(self, net: Block, inputs: Sequence[Array], answer: Answer) -> None:
        self._net, self._inputs, self._answer = net, inputs, answer
        self._others: list[Answer] = []

    def __call__(self, name: str) -> float:
        if not self._others:
            rng = np.random.default_rng(0)
            given = [tuple(self._beside(rng, x.asnumpy()) for x in self._inputs) for _ in range(3)]
            self._others = [ran(self._net, xs, False) for xs in given]
        here = self._answer.values()[name]
        return 2 * float(max(np.abs(other.values()[name] - here).max(initial=0) for other in self._others))

    def _beside(self, rng: np.random.Generator, x: Any) -> Array:
        if x.dtype.kind == "f":
            x = np.nextafter(x, rng.choice(np.array([-np.inf, np.inf], x.dtype), x.shape))
        return nd.asarray(x)


def states(net: Block) -> dict[str, Any]:
    return {n: p.data().asnumpy() for n, p in net.collect_params().items() if p.grad_req == "null"}


def ran(net: Block, given: Sequence[Array], training: bool) -> Answer:
    """A run from a seed of its own, with the gradients of a weighed sum of all outputs; states go back."""
    before = states(net)
    net.zero_grad()
    xs = [nd.asarray(x.asnumpy()) for x in given]
    random.seed(7)
    for x in xs:
        if x.dtype.kind == "f":
            x.attach_grad()
    with autograd.record(train_mode=training):
        outs = arrays_of(net(*xs))
        led = [y for y in outs if y._origin is not None]
        totals = [(y * (nd.arange(y.size).reshape(y.shape) % 7 + 1.0).astype(y.dtype)).sum() for y in led]
    found = {f"leads back {i}": np.asarray(y._origin is not None) for i, y in enumerate(outs)}
    if totals:
        autograd.backward(totals)
        found |= {f"gradient of input {i}": x.grad.asnumpy() for i, x in enumerate(xs) if x.grad is not None}
        found |= {n: p.grad().asnumpy() for n, p in net.collect_params().items() if p.grad_req != "null"}
    found |= {f"state {n}": v for n, v in states(net).items()}
    answer = Answer([y.asnumpy() for y in outs], found)
    for n, value in before.items():
        net.collect_params()[n].set_data(value)
    return answer


def check(net: Block, inputs: Sequence[Sequence[Array]], *, thorough: bool = False) -> None:
    """Eager is hybridized: in training with gradients, and in prediction; `thorough` with gradients there too, and
    over again."""
    net(*inputs[0])  # the shapes
    for training in (True, False):
        run = ran if training or thorough else predicted
        net.hybridize(False)
        expected = [run(net, xs, training) for xs in inputs]
        net.hybridize(fullgraph=True)
        for xs, answer in [*zip(inputs, expected, strict=True)] * (2 if thorough else 1):
            run(net, xs, training).same(answer)
    if isinstance(net, HybridBlock):
        assert net.report() == "everything is traced"
    net.hybridize(False)


def predicted(net: Block, given: Sequence[Array], training: bool = False) -> Answer:
    """A run in prediction."""
    return Answer([y.asnumpy() for y in arrays_of(net(*given))], {})


def elsewhere(net: HybridBlock, inputs: Sequence[Sequence[Array]], path: Path, run: Callable[..., list[Any]]) -> None:
    """What was exported for the first of some inputs is right for all of its shapes."""
    net(*inputs[0])
    shapes = {tuple(x.shape for x in xs): xs for xs in inputs}
    for shape, first in shapes.items():
        net.export(path, *first)
        for xs in inputs:
            if tuple(x.shape for x in xs) == shape:
                feeds = {f"x{i}": x.asnumpy() for i, x in enumerate(xs)}
                for i, (a, b) in enumerate(zip(run(path, feeds), arrays_of(net(*xs)), strict=True)):
                    close(f"output {i}", a, b.asnumpy())


def in_mezzo(path: Path, feeds: dict[str, Any]) -> list[Any]:
    session = load(path)
    read = {p.name for p in session.inputs}
    return [*session.run({n: x for n, x in feeds.items() if n in read}).values()]


def in_onnx_runtime(path: Path, feeds: dict[str, Any]) -> list[Any]:
    return [*ort_run(path, feeds).values()]


def some(make: recipes.Make, name: str) -> list[tuple[Array, ...]]:
    rng = np.random.default_rng(sum(name.encode()))
    return [make(rng, n) for n in BATCHES]


# -- layers and losses ------------------------------------------------------------------------------------------------

RECIPES: dict[str, Callable[[], tuple[Callable[[], Block], recipes.Make]]] = {
    **{n: (lambda n=n: recipes.layer(n)) for n in recipes.layers()},  # type: ignore[misc]
    **{n: (lambda n=n: recipes.measured(n)) for n in recipes.losses()},  # type: ignore[misc]
}


@pytest.mark.parametrize("name", RECIPES)
def test_blocks(name: str, tmp_path: Path) -> None:
    make, inputs = RECIPES[name]()
    random.seed(1)
    net, several = make().initialize("xavier"), some(inputs, name)
    check(net, several)
    if isinstance(net, HybridBlock):
        elsewhere(net, [several[0], several[2]], tmp_path / "net.onnx", in_mezzo)


@pytest.mark.soak
@pytest.mark.parametrize("name", RECIPES)
def test_blocks_thoroughly(name: str, tmp_path: Path) -> None:
    make, inputs = RECIPES[name]()
    random.seed(1)
    net, several = make().initialize("xavier"), some(inputs, name)
    check(net, several, thorough=True)
    if isinstance(net, HybridBlock):
        elsewhere(net, several, tmp_path / "net.mezzo", in_mezzo)
        elsewhere(net, several, tmp_path / "net.onnx", in_mezzo)


@pytest.mark.parametrize("name", RECIPES)
def test_exported_blocks_in_onnx_runtime(name: str, tmp_path: Path) -> None:
    referee()
    make, inputs = RECIPES[name]()
    net, several = make().initialize("xavier"), some(inputs, name)
    if isinstance(net, HybridBlock):
        elsewhere(net, [several[0], several[2]], tmp_path / "net.onnx", in_onnx_runtime)


# -- functions and operators ------------------------------------------------------------------------------------------

Calls = Sequence[tuple[Callable[..., Any], Sequence[tuple[Array, ...]]]]  # with their inputs for each of several runs


def together(calls: Calls) -> tuple[Of, list[tuple[Array, ...]]]:
    """Several calls as one block: one plan is quicker than many."""
    counts = [len(inputs[0]) for _, inputs in calls]

    def forward(*xs: Array) -> list[Any]:
        rest = iter(xs)
        return [call(*[next(rest) for _ in range(n)]) for (call, _), n in zip(calls, counts, strict=True)]

    several = [tuple(x for _, inputs in calls for x in inputs[i]) for i in range(len(calls[0][1]))]
    return Of(forward), several


def parts(names: Sequence[str], size: int = 16) -> list[list[str]]:
    return [[*names[i : i + size]] for i in range(0, len(names), size)]


def functional(name: str) -> tuple[Callable[..., Any], list[tuple[Array, ...]]]:
    call, inputs = recipes.function(name)
    return call, some(inputs, name)


TRACED = [n for n in recipes.functions() if n not in recipes.DECIDED]


@pytest.mark.parametrize("names", parts(TRACED), ids=lambda names: f"{names[0]} to {names[-1]}")
def test_functions(names: list[str], tmp_path: Path) -> None:
    for some_names, file in of_formats(names):
        net, several = together([functional(n) for n in some_names])
        check(net, several)
        elsewhere(net, [several[0], several[2]], tmp_path / file, in_mezzo)


def of_formats(names: Sequence[str]) -> list[tuple[list[str], str]]:
    """Functions that ONNX has operators for, and others, with the files that they are exported to."""
    inside = [n for n in names if n not in recipes.WITHOUT_ONNX]
    others = [n for n in names if n in recipes.WITHOUT_ONNX]
    return [(some, file) for some, file in ((inside, "net.onnx"), (others, "net.mezzo")) if some]


@pytest.mark.parametrize("name", sorted(recipes.WITHOUT_ONNX))
def test_functions_that_onnx_has_no_operators_for(name: str, tmp_path: Path) -> None:
    call, several = functional(name)
    with pytest.raises(UnsupportedModel, match=r"is no operator of ONNX(.|\n)*\.mezzo"):
        Of(call).export(tmp_path / "net.onnx", *several[0])


@pytest.mark.parametrize("name", sorted(recipes.DECIDED))
def test_functions_whose_size_the_numbers_decide(name: str) -> None:
    call, several = functional(name)
    net = Of(call)
    expected = [predicted(net, xs) for xs in several]
    net.hybridize()
    with pytest.warns(GraphBroken, match="the size of what"):
        predicted(net, several[0])
    for xs, answer in zip(several, expected, strict=True):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", GraphBroken)
            predicted(net, xs).same(answer)


@pytest.mark.soak
@pytest.mark.parametrize("name", TRACED)
def test_functions_thoroughly(name: str, tmp_path: Path) -> None:
    call, several = functional(name)
    check(Of(call), several, thorough=True)
    ((_, file),) = of_formats([name])
    elsewhere(Of(call), several, tmp_path / file, in_mezzo)


@pytest.mark.soak
@pytest.mark.parametrize("name", [n for n in TRACED if n not in recipes.WITHOUT_ONNX])
def test_exported_functions_in_onnx_runtime(name: str, tmp_path: Path) -> None:
    referee()
    call, several = functional(name)
    elsewhere(Of(call), several, tmp_path / "net.onnx", in_onnx_runtime)


def operators() -> list[str]:
    OPS.load()
    return sorted(n for (domain, n), record in OPS.items() if not domain and record.samples and record.deterministic)


def operator(name: str) -> tuple[Callable[..., Any], list[tuple[Array, ...]]] | None:
    """An operator with the operands of one of its samples: floats and typed ones are given, and drawn anew for each
    call; small whole numbers are known. None where arrays do not run it."""
    rng = np.random.default_rng(sum(name.encode()))
    for sample in OPS["", name].samples:
        operands = [_sampled(x) for x in sample.inputs]
        if any(o is None and x is not None for o, x in zip(operands, sample.inputs, strict=True)):
            continue
        given = [o for o in operands if callable(o)]

        def call(*xs: Array, operands: Any = operands, sample: Any = sample) -> Any:
            rest = iter(xs)
            inputs = [next(rest) if callable(o) else o for o in operands]
            return apply(name, *inputs, outputs=sample.outputs, **attributes(sample.attrs))

        several = [tuple(nd.asarray(draw(rng)) for draw in given) for _ in range(3)]
        try:
            found = [y.asnumpy() for xs in several for y in arrays_of(call(*xs))]
        except (MezzoError, ValueError, TypeError, IndexError):
            continue
        if given and found:
            return call, several
    return None


def _sampled(x: Any) -> Any:
    """An operand of a sample: a function that draws one like it, what is known beforehand, or None."""
    if isinstance(x, Tensor) and x.static and x.dtype.numpy.kind in "fiub":
        dtype, shape = x.dtype.numpy, x.sizes
        if dtype.kind == "f":
            return lambda rng: rng.uniform(0.1, 0.9, shape).astype(dtype)
        return lambda rng: rng.integers(0, 2, shape).astype(dtype)
    if not isinstance(x, np.ndarray | np.generic) or x.dtype.kind not in "fiub":
        return None
    if x.dtype.kind == "f" and x.ndim:
        return lambda rng: (x * rng.uniform(0.8, 1.2)).astype(x.dtype)
    if x.ndim > 1:
        return lambda rng: x
    return known(tuple(x.tolist()) if x.ndim else x.item(), x.dtype.type)


# Operators that arrays do not run: operands or results are no arrays, they hold graphs, or all is known beforehand.
WITHOUT_ARRAYS = {
    "BlackmanWindow", "ConcatFromSequence", "Constant", "ConstantOfShape", "HammingWindow", "HannWindow", "If",
    "ImageDecoder", "Loop", "MelWeightMatrix", "Optional", "Range", "RegexFullMatch", "Scan", "SequenceAt",
    "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength", "SequenceMap",
    "SplitToSequence", "StringConcat", "StringNormalizer", "StringSplit",
}  # fmt: skip
DECIDED = {
    "Compress",
    "NonMaxSuppression",
    "NonZero",
    "Resize",
    "Unique",
}  # the size of the result is the data's choice
OPERATORS = [n for n in operators() if n not in WITHOUT_ARRAYS]


def test_operators_without_arrays_are_those() -> None:
    assert {n for n in WITHOUT_ARRAYS if operator(n) is None} == WITHOUT_ARRAYS


@pytest.mark.parametrize("names", parts(OPERATORS), ids=lambda names: f"{names[0]} to {names[-1]}")
def test_operators(names: list[str]) -> None:
    calls = []
    for name in names:
        found = operator(name)
        assert found is not None, f"no sample of {name} runs on arrays: see WITHOUT_ARRAYS"
        if name not in DECIDED:
            calls.append(found)
    net, several = together(calls)
    expected = [predicted(net, xs) for xs in several]
    net.hybridize(fullgraph=True)
    for xs, answer in zip(several, expected, strict=True):
        predicted(net, xs).same(answer)


@pytest.mark.soak
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_with_gradients(name: str) -> None:
    found = operator(name)
    assert found is not None
    call, several = found
    net = Of(call)
    run = ran
    try:
        expected = [run(net, xs, False) for xs in several]
    except MezzoError:  # it has no derivative
        run = predicted
        expected = [run(net, xs, False) for xs in several]
    net.hybridize()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphBroken)
        for xs, answer in [*zip(several, expected, strict=True)] * 2:
            run(net, xs, False).same(answer)
    assert all("the size of what" in b.reason for b in net.breaks)


# -- optimizers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(OURS))
def test_optimizers(name: str) -> None:
    rng = np.random.default_rng(4)
    batches = [(rng.standard_normal((n, 5)).astype(np.float32), rng.integers(0, 3, n)) for n in (4, 6, 4, 3, 4)]
    found = []
    for hybrid in (False, True):
        random.seed(2)
        net = nn.HybridSequential(nn.Dense(6, "tanh", in_units=5), nn.Dropout(0.2), nn.Dense(3, in_units=6))
        net.initialize("xavier")
        measure = loss.SoftmaxCrossEntropyLoss()
        for block in (net, measure):
            block.hybridize(hybrid, fullgraph=True)
        trainer = Trainer(net.collect_params(), name)
        for x, label in batches:
            with autograd.record():
                total = measure(net(nd.asarray(x)), nd.asarray(label))
            total.backward()
            trainer.step(len(x))
        found.append({n: p.data().asnumpy() for n, p in net.collect_params().items()})
    for n, value in found[0].items():
        close(n, found[1][n], value)


# -- compositions -----------------------------------------------------------------------------------------------------


class Composed(HybridBlock):
    """A random graph as array code: its nodes one by one; what is learnt are parameters, or arrays made anew."""

    def __init__(self, graph: Graph) -> None:
        super().__init__()
        self._names = graph.inputs
        self._nodes = graph.nodes
        self._outputs = graph.outputs
        self._constants = dict(graph.initializers)

    def forward(self, *xs: Array) -> Any:
        values: dict[str, Any] = dict(zip(self._names, xs, strict=True))
        for node in self._nodes:
            given = [self._operand(values, i) for i in node.inputs]
            made = apply(node.op, *given, domain=node.domain, outputs=len(node.outputs), **node.attrs)
            values.update(zip(node.outputs, (made,) if isinstance(made, Array) else made, strict=True))
        return [values[o] for o in self._outputs]

    def _operand(self, values: dict[str, Any], name: str) -> Any:
        if not name:
            return None
        if name in values:
            return values[name]
        value = self._constants[name]
        if value.dtype.kind == "f" or value.ndim > 1:
            return nd.asarray(value)
        return known(tuple(value.tolist()) if value.ndim else value.item(), value.dtype.type)


def composed(seed: int) -> tuple[Composed, list[tuple[Array, ...]]] | None:
    """A block of a seed and what it is fed; None for graphs that arrays do not run."""
    case = generate(seed, most=9)
    plain = all(isinstance(x, np.ndarray) and x.dtype.kind in "fiub" for x in case.feeds.values())
    if not plain or not case.feeds or any(n.bodies or not n.record.deterministic for n in case.graph.nodes):
        return None
    if any(v.size > 4096 for v in case.graph.initializers.values()):
        return None
    net, rng = Composed(case.graph), np.random.default_rng(seed)
    several = []
    for part in (1.0, 0.75, 0.5):
        feeds = []
        for name in case.graph.inputs:
            x = case.feeds[name]
            x = np.asarray(x * part, x.dtype) if x.dtype.kind == "f" else x
            feeds.append(nd.asarray(rng.permutation(x) if x.ndim and name in case.batched else x))
        several.append(tuple(feeds))
    try:
        for xs in several:
            for y in net(*xs):
                if not np.isfinite(y.asnumpy().astype(np.float64)).all():
                    return None
        ran(net, several[0], False)
    except MezzoError:
        return None
    return net, several


def compositions(seeds: Sequence[int], tmp_path: Path) -> int:
    count = 0
    for seed in seeds:
        found = composed(seed)
        if found is None:
            continue
        net, several = found
        try:
            expected = [ran(net, xs, False) for xs in several]
            eager = copy(net)
            net.hybridize()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", GraphBroken)
                for xs, answer in zip(several, expected, strict=True):
                    ran(net, xs, False).same(answer, Moved(eager, xs, answer))
            if net.breaks:
                assert "the size of what" in net.report()
                continue
            net.hybridize(False)
            elsewhere(net, several, tmp_path / "net.onnx", in_mezzo)
            count += 1
        except Exception as error:
            error.add_note(f"composition {seed}")
            raise
    return count


def test_compositions(tmp_path: Path) -> None:
    assert compositions(range(16), tmp_path) > 4


def attention() -> tuple[Composed, tuple[Array, ...]]:
    """An attention to whose keys one number is added in each column, and what it is fed: that number is input 3."""
    g, rng = GraphBuilder(), np.random.default_rng(0)
    q, k, v = (g.input(n, f32(2, size, 32)) for n, size in (("q", 3), ("k", 5), ("v", 5)))
    scores = g.MatMul(q, g.Transpose(g.Add(k, g.input("added", f32(1, 1, 32))), perm=(0, 2, 1)))
    net = Composed(g.graph([g.MatMul(g.Softmax(scores, axis=-1), v)]))
    shapes = (2, 3, 32), (2, 5, 32), (2, 5, 32), (1, 1, 32)
    return net, tuple(nd.asarray(rng.standard_normal(s).astype(np.float32)) for s in shapes)


def test_a_composition_whose_gradient_cancels() -> None:
    """Of a number that is added to all keys of an attention: it is zero, and what rounding leaves of many terms. A
    gradient that is wrong by as much as its tolerance anywhere else is found."""
    net, fed = attention()
    answer = ran(net, fed, False)
    name = "gradient of input 3"
    moved = Moved(net, fed, answer)
    assert 1e-6 < moved(name) < 1e-3
    assert np.abs(answer.gradients[name]).max() < moved(name), "nothing but rounding"
    eager = copy(net)
    net.hybridize()
    ran(net, fed, False).same(answer, Moved(eager, fed, answer))
    wrong = Answer(answer.outputs, {**answer.gradients, name: answer.gradients[name] + np.float32(2e-3)})
    with pytest.raises(AssertionError, match=r"gradient of input 3: off by 0\.00"):
        wrong.same(answer, Moved(eager, fed, answer))


@pytest.mark.soak
def test_many_compositions(tmp_path: Path) -> None:
    assert compositions(range(16, 1200), tmp_path) > 300

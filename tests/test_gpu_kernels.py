"""The GPU's own kernels without a GPU: their source runs on the processor and agrees with the references computed in
float64, and NVRTC compiles it for the architectures that are served. What only a device can show is not shown here:
that threads race nowhere, and that anything is fast."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mezzo.ops import OPS, Body, Context, DType, Op, Tensor
from mezzo.ops.errors import ExecutionError, MezzoError, MissingPackage
from mezzo.ops.expr import PRIMITIVES, E, Expr, evaluate, inputs
from mezzo.ops.types import f32, i64
from mezzo.runtime.gpu import cache, nvrtc, pointwise, reduce
from mezzo.runtime.gpu.generated import Generated
from mezzo.runtime.gpu.kernels import GPU_KERNELS
from mezzo.runtime.gpu.launch import In, Launch, Operand, Out, Source, Written
from mezzo.runtime.gpu.source import Unwritten, element_of, rounded, write
from mezzo.runtime.graph import Node
from mezzo.runtime.kernels import Ask, Declined

from .cuda_shim import Run, ask, load, missing, run_all, written_by
from .gpu_cases import CASES as COMPUTED
from .gpu_cases import Case
from .gpu_template_cases import TEMPLATES
from .graphs import arrays, hosted
from .test_ops import WIDTH_MATTERS

CASES = {**COMPUTED, **TEMPLATES}
GENERATED = [k for k in GPU_KERNELS if isinstance(k, Generated)]
ARCHITECTURES = ("sm_80", "sm_90")
# max|a - b| <= tolerance * max|b| for every tensor; narrow floats are compared with what float64 rounds to
TOLERANCE = {DType.DOUBLE: 1e-11, DType.FLOAT: 1e-5, DType.FLOAT16: 4e-3, DType.BFLOAT16: 3e-2}
NARROW = (DType.FLOAT16, DType.BFLOAT16)
FLOATS = (DType.FLOAT, DType.DOUBLE, *NARROW)
WHOLE = tuple(d for d in DType if d.integer and d.bits >= 8)
on_the_processor = pytest.mark.skipif(bool(missing()), reason=missing() or "runs")
families = pytest.mark.parametrize("kernel", GENERATED, ids=lambda k: k.name)


# Questions


def filled(x: Any, rng: Any) -> Any:
    """Random elements for a type; arrays as they are."""
    if not isinstance(x, Tensor):
        return x if x is None else np.asarray(x)
    made = rng.uniform(-2, 2, x.sizes)
    if x.dtype is DType.BOOL:
        return made > 0
    return (made if x.dtype.floating else np.floor(made * (2 if x.dtype.signed else 1) + 2)).astype(x.dtype.numpy)


def cases(kernel: Generated) -> Iterator[Case]:
    """Those of the family's list, and all samples of operators that it serves."""
    yield from CASES.get(kernel.name, ())
    for o in OPS.values():
        for sample in o.samples:
            if not kernel.serves(Node(o.name, ("x",), ("y",), sample.attrs, o.domain)):
                continue
            if not hosted(o, sample) and not any(isinstance(v, Body) for v in sample.attrs.values()):
                yield Case(o.name, arrays(sample), sample.attrs, sample.outputs)


def retyped(case: Case, dtype: DType) -> Case | None:
    """The case with its float32 operands in another float type, or its int64 ones in another whole type; None where it
    has none, or one has numbers that the type lacks."""
    of = DType.FLOAT if dtype.floating else DType.INT64

    def is_of(x: Any) -> bool:
        return x is not None and (x.dtype if isinstance(x, Tensor) else DType.of(np.asarray(x).dtype)) is of

    def one(x: Any) -> Any:
        if not is_of(x):
            return x
        return x.to(dtype) if isinstance(x, Tensor) else x.astype(dtype.numpy)

    numbers = [x for x in case.inputs if is_of(x) and not isinstance(x, Tensor)]
    with np.errstate(all="ignore"):
        lost = not dtype.floating and any((x.astype(dtype.numpy) != x).any() for x in numbers)
    return replace(case, inputs=[one(x) for x in case.inputs]) if any(map(is_of, case.inputs)) and not lost else None


def domain_of(case: Case) -> str:
    return "" if ("", case.op) in OPS else next(d for d, name in OPS if name == case.op)


def question(case: Case, seed: int = 0) -> tuple[Ask, list[Any]]:
    """What the device is asked, and arrays for it. What a case gives as an array is constant."""
    xs = [filled(x, np.random.default_rng([seed, i])) for i, x in enumerate(case.inputs)]
    layouts = [*case.layouts, *[""] * (len(xs) + case.outputs - len(case.layouts))]
    constants = [x is not None and not isinstance(x, Tensor) for x in case.inputs]
    domain = domain_of(case)
    asked = ask(case.op, xs, case.attrs, domain=domain, outputs=case.outputs, layouts=layouts, known=constants)
    return replace(asked, constants=constants), xs


def runs(kernel: Generated, given: Sequence[Case]) -> list[tuple[Case, Run]]:
    """What a family makes of the cases that it serves."""
    found = []
    for case in given:
        try:
            asked, xs = question(case)
        except MezzoError:  # the operator has no such element type
            continue
        if kernel.serves(asked.node) and not isinstance(kernel.written(asked), Declined):
            found.append((case, written_by(kernel, asked, xs)))
    return found


# Answers


def reference(o: Op, xs: Sequence[Any], case: Case, wide: bool) -> tuple[Any, ...]:
    """The operator's own answer; with `wide`, to its floats in float64."""

    def exact(x: Any) -> Any:
        widened = wide and x is not None and o.name not in WIDTH_MATTERS and DType.of(x.dtype).floating
        return x.astype(np.float64) if widened else x

    with np.errstate(all="ignore"):
        return o.run(Context(np, (True,) * case.outputs), [exact(x) for x in xs], case.attrs)


def assert_answers(answers: Sequence[tuple[Case, Run]]) -> None:
    """Run all, and compare each with its reference."""
    got = run_all([run for _, run in answers])
    for (case, run), ys in zip(answers, got, strict=True):
        o = OPS[domain_of(case), case.op]
        plain, wide = (reference(o, run.inputs, case, w) for w in (False, True))
        for y, like, exact in zip(ys, plain, wide, strict=False):
            said = f"{case} by {' + '.join(map(str, run.written.launches))}"
            assert (y.shape, y.dtype) == (like.shape, like.dtype), said
            dtype = DType.of(y.dtype)
            if not dtype.floating:
                np.testing.assert_array_equal(y, like, said)
            else:
                assert_close(y, exact, TOLERANCE[dtype], said)


def assert_close(y: Any, exact: Any, tolerance: float, said: str) -> None:
    """max|a - b| <= tolerance * max|b|; what is no finite number has to be the same one."""
    with np.errstate(over="ignore"):
        like = exact.astype(y.dtype).astype(np.float64)
    a, odd = y.astype(np.float64), ~np.isfinite(like)
    np.testing.assert_array_equal(a[odd], like[odd], said)
    worst, most = np.abs(a[~odd] - exact[~odd]).max(initial=0), np.abs(exact[~odd]).max(initial=0)
    assert worst <= tolerance * most, f"{said}: off by {worst / most:.2e}"


@on_the_processor
@families
def test_answers(kernel: Generated) -> None:
    """Each family in the types of its cases and of the operators' samples."""
    own = CASES.get(kernel.name, [])
    for case in own:
        refused = kernel.written(question(case)[0])
        assert not isinstance(refused, Declined), f"{case}: {refused.reason}"
    found = runs(kernel, list(cases(kernel)))
    assert found
    assert_answers(found)


@on_the_processor
@families
def test_answers_in_narrow_floats(kernel: Generated) -> None:
    """The cases of the family's own list in float16 and bfloat16 by turns."""
    given = [retyped(case, NARROW[i % 2]) for i, case in enumerate(CASES.get(kernel.name, ()))]
    assert_answers(runs(kernel, [case for case in given if case is not None]))


@on_the_processor
@pytest.mark.soak
@pytest.mark.parametrize("dtype", [*FLOATS[1:], *WHOLE], ids=str)
@families
def test_answers_in_all_types(kernel: Generated, dtype: DType) -> None:
    given = [retyped(case, dtype) for case in cases(kernel)]
    assert_answers(runs(kernel, [case for case in given if case is not None]))


@on_the_processor
@pytest.mark.soak
@families
def test_nothing_is_undefined(kernel: Generated) -> None:
    """No number overflows, no address is misaligned, nothing is read behind a buffer; in a process of its own."""
    code = f"""
from tests import cuda_shim, test_gpu_kernels as t
cuda_shim.STRICT = True
kernel = next(k for k in t.GENERATED if k.name == {kernel.name!r})
given = list(t.cases(kernel))
given += [case for case in (t.retyped(c, t.NARROW[i % 2]) for i, c in enumerate(given)) if case]
t.assert_answers(t.runs(kernel, given))
"""
    root = Path(__file__).parents[1]
    ran = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert not ran.returncode, ran.stderr[-4000:]
    assert "runtime error" not in ran.stderr


# What is written, seen without running it


def family(name: str) -> Generated:
    return next(k for k in GENERATED if k.name == name)


def written(name: str, case: Case) -> Written:
    """What a family makes of types alone."""
    types = [x if x is None or isinstance(x, Tensor) else np.asarray(x) for x in case.inputs]
    layouts = [*case.layouts, *[""] * (len(types) + case.outputs - len(case.layouts))]
    constants = [x is not None and not isinstance(x, Tensor) for x in case.inputs]
    asked = ask(case.op, types, case.attrs, domain=domain_of(case), outputs=case.outputs, layouts=layouts)
    found = family(name).written(replace(asked, constants=constants))
    assert isinstance(found, Written)
    return found


@pytest.mark.parametrize("layout", ["", "acdb"])
@pytest.mark.parametrize("dtype", [DType.FLOAT, DType.FLOAT16, DType.INT8, DType.DOUBLE], ids=str)
def test_pointwise_operators_move_16_bytes(dtype: DType, layout: str) -> None:
    """Of tensors that lie alike, as one loop, whatever their layout; the result lies as they do, or in place of one."""
    x = Tensor(dtype, (2, 64, 7, 7))
    found = written("gpu.pointwise", Case("Add", [x, x], layouts=[layout, layout]))
    (launch,) = found.launches
    assert found.layouts == ((layout,) * 3 if layout else ())
    assert f"alignas(16) pack_of_{element_of(dtype).stored.strip('_').replace(' ', '_')}" in launch.source.text
    assert " % " not in launch.source.text
    assert launch.grid[0] == -(-(x.elements or 0) * dtype.itemsize // 16 // 256)
    assert [(a.output, a.input) for a in found.aliases] == [(0, 0), (0, 1)]


def test_what_may_not_lie_in_place() -> None:
    """What is broadcast, of another type or another layout, read twice, or a constant."""
    x, y = f32(4, 8, 3, 3), f32(8, 1, 1)
    for case, count in [
        (Case("Add", [x, y]), 1),
        (Case("Less", [x, x]), 0),
        (Case("Add", [x, x], layouts=["acdb", ""]), 1),
        (Case("Add", [np.ones((4, 2), np.float32), f32(4, 2)]), 1),
    ]:
        assert len(written("gpu.pointwise", case).aliases) == count, case
    asked = ask("Mul", [x, x])
    twice = family("gpu.pointwise").written(replace(asked, node=replace(asked.node, inputs=("x", "x"))))
    assert isinstance(twice, Written)
    assert not twice.aliases


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("gpu.pointwise", Case("Add", [f32(3, 1 << 30), f32(1 << 30)])),
        ("gpu.pointwise", Case("Relu", [Tensor(DType.INT8, (1 << 32,))])),
        ("gpu.reduce", Case("ReduceSum", [f32(1 << 16, 1 << 16), np.array([0])])),
        ("gpu.reduce", Case("ReduceMax", [f32(1 << 16, 1 << 16), np.array([1])])),
        ("gpu.reduce", Case("ReduceMean", [f32(1 << 32), np.array([0])])),
    ],
)
def test_places_of_large_tensors_are_counted_in_64_bits(name: str, case: Case) -> None:
    for launch in written(name, case).launches:
        assert re.search(r"const long long (i|row) = \(long long\)blockIdx.x \*", launch.source.text)
        assert launch.grid[0] < 2**31


@on_the_processor
@pytest.mark.parametrize("name", ["gpu.pointwise", "gpu.reduce"])
def test_answers_counted_in_64_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (pointwise, reduce):
        monkeypatch.setattr(module, "index_type", lambda *_: "long long")
    assert_answers(runs(family(name), CASES[name][:: 3 if name == "gpu.reduce" else 2]))


def test_what_is_declined_is_told() -> None:
    small = Tensor(DType.FLOAT8E4M3FN, (2, 3))
    unknown = f32("n", 3)
    for name, asked, reason in [
        ("gpu.pointwise", ask("Cast", [f32(2, 3)], {"to": small.dtype.onnx}), "float8_e4m3fn"),
        ("gpu.pointwise", ask("Relu", [unknown]), "sizes are not known"),
        ("gpu.reduce", ask("ReduceSum", [f32(2, 3), i64(1)]), "axes are no constant"),
        ("gpu.reduce", ask("ReduceSum", [Tensor(DType.BOOL, (2, 3)), np.array([1])]), "truth values"),
    ]:
        found = family(name).written(asked)
        assert isinstance(found, Declined)
        assert reason in found.reason


# Expressions

_EDGES = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, -3.0, 7.25, 100.0, -100.0, np.inf, -np.inf, np.nan]
UNARY = "neg abs sign exp expm1 log log1p sqrt reciprocal floor ceil rint sin cos tan asin acos atan sinh cosh tanh \
asinh acosh atanh isnan isinf not bit_not".split()
# what NumPy widens to floats and back: no operator of ONNX asks for it
FLOATS_ALONE = {*UNARY[3:9], *UNARY[11:24]}


def edges(dtype: DType) -> tuple[Any, Any]:
    """All pairs of numbers at which something may go wrong."""
    if dtype is DType.BOOL:
        one = np.array([False, True])
    elif dtype.floating:
        one = np.array(_EDGES, dtype.numpy)
    else:
        low, high = (-(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1) if dtype.signed else (0, (1 << dtype.bits) - 1)
        known = [low, low + 1, -3, -2, -1, 0, 1, 2, 3, 7, 8, 31, 63, 64, 100, high - 1, high]
        one = np.array(sorted({n for n in known if low <= n <= high}), dtype.numpy)
    return np.repeat(one, len(one)), np.tile(one, len(one))


def elementwise(trees: Sequence[Expr], xs: Sequence[Any], name: str) -> tuple[Written, Ask]:
    """One kernel for all of these trees, each to an output of its own."""
    read = [element_of(DType.of(x.dtype)) for x in xs]
    made = [element_of(t.dtype) for t in trees]
    code = write(trees, [f"v{i}" for i in range(len(xs))])
    parameters = [f"const {e.stored}* x{i}" for i, e in enumerate(read)]
    parameters += [f"{e.stored}* y{i}" for i, e in enumerate(made)]
    lines = ["int i = blockIdx.x * 64 + threadIdx.x;", f"if (i >= {xs[0].size}) return;"]
    lines += [f"const {e.wide} v{i} = {e.read(f'x{i}[i]')};" for i, e in enumerate(read)]
    lines += [
        *code.lines,
        *(f"y{i}[i] = {e.write(r)};" for i, (e, r) in enumerate(zip(made, code.results, strict=True))),
    ]
    headers = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n"
    text = f'{headers}{code.functions}extern "C" __global__ void {name}({", ".join(parameters)}) {{\n'
    operands: tuple[Operand, ...] = (*(In(i) for i in range(len(xs))), *(Out(i) for i in range(len(made))))
    grid = (-(-xs[0].size // 64), 1, 1)
    launch = Launch(Source(name, text + "\n".join(lines) + "\n}\n"), grid, (64, 1, 1), operands)
    types = [Tensor(DType.of(x.dtype), x.shape) for x in xs]
    like = ask("Add", types[:1] * 2)
    node = replace(
        like.node, inputs=tuple(f"x{i}" for i in range(len(xs))), outputs=tuple(f"y{i}" for i in range(len(made)))
    )
    return Written((launch,)), Ask(node, types, [Tensor(t.dtype, xs[0].shape) for t in trees])


def primitives(dtype: DType) -> Iterator[Expr]:
    """Every primitive that there is of an element type."""
    x, y = inputs([dtype, dtype])
    assert x is not None and y is not None  # noqa: PT018
    for kind in PRIMITIVES:
        floats_alone = kind in FLOATS_ALONE and not dtype.floating
        power_of_less = kind == "pow" and not dtype.floating  # NumPy refuses negative ones: compared below
        if not floats_alone and not power_of_less:
            yield E.make(kind, x) if kind in UNARY else E.make(kind, x, y)
    yield E.where(E.less(x, y), x, y)


def answered(tree: Expr, xs: Sequence[Any]) -> Any:
    """What NumPy answers, or None where it has no such primitive."""
    try:
        return np.broadcast_to(evaluate(tree, np, xs), xs[0].shape)
    except TypeError:
        return None


@on_the_processor
@pytest.mark.filterwarnings("ignore")
def test_every_primitive_in_every_type() -> None:
    """What `evaluate` answers at the edges of each type: signs, zeros, infinities, wrap-around, shifts."""
    asked, wanted = [], []
    for dtype in (*FLOATS, *WHOLE, DType.BOOL):
        xs = edges(dtype)
        trees, likes = [], []
        for tree in primitives(dtype):
            like = answered(tree, xs)
            if like is None:  # and neither have we
                continue
            try:
                write([tree], ["x", "y"])
            except Unwritten:
                assert dtype is DType.BOOL or tree.kind in ("rint", "reciprocal"), f"{tree} of {dtype}"
                continue
            trees.append(tree)
            likes.append(like)
        asked.append(Run(*elementwise(trees, xs, f"primitives_{dtype}"), xs))
        wanted.append((trees, likes))
    for run, ys, (trees, likes) in zip(asked, run_all(asked), wanted, strict=True):
        for tree, y, like in zip(trees, ys, likes, strict=True):
            said = f"{tree} of {run.inputs[0].dtype}"
            if tree.dtype.floating:
                rtol = {DType.FLOAT: 1e-6, DType.DOUBLE: 1e-14, DType.FLOAT16: 1e-3, DType.BFLOAT16: 8e-3}[tree.dtype]
                np.testing.assert_allclose(
                    y.astype(np.float64),
                    like.astype(np.float64),
                    rtol,
                    1e-7,
                    err_msg=said,
                )
            else:  # of nothing but zeros as divisors, NumPy makes one thing of one number and another of many
                told = run.inputs[1] != 0 if tree.kind == "div" else slice(None)
                np.testing.assert_array_equal(y[told], like[told], said)


@on_the_processor
@pytest.mark.filterwarnings("ignore")
def test_powers_of_whole_numbers() -> None:
    asked, wanted = [], []
    for dtype in WHOLE:
        x, n = edges(dtype)
        keep = n >= 0
        xs = (x[keep], n[keep])
        tree = E.pow(*(leaf for leaf in inputs([dtype, dtype]) if leaf is not None))
        asked.append(Run(*elementwise([tree], xs, f"powers_{dtype}"), xs))
        wanted.append(evaluate(tree, np, xs))
    for (y,), like in zip(run_all(asked), wanted, strict=True):
        np.testing.assert_array_equal(y, like)


_NUMBERS = [-1.5, -0.5, 0.1, 255.7, 256.9, -129.0, 300.0, 40000.0, 70000.0, -70000.0, 2.0**31 - 1, 2.0**31 + 5]
_NUMBERS += [3e9, 5e9, -3e9, 2.0**63, 1.5 * 2.0**63, 2.0**64, 1e20, -1e20, -(2.0**63), np.inf, -np.inf, np.nan]


@on_the_processor
@pytest.mark.filterwarnings("ignore")
def test_casts_between_all_types() -> None:
    """As NumPy casts one number; of many at once it casts those that do not fit otherwise here and there."""
    every = (*FLOATS, *WHOLE, DType.BOOL)
    asked, wanted = [], []
    for of in every:
        x = np.array(_NUMBERS, of.numpy) if of.floating else edges(of)[0]
        (leaf,) = inputs([of])
        assert leaf is not None
        trees = [rounded(leaf, to) for to in every]
        asked.append(Run(*elementwise(trees, [x], f"casts_{of}"), [x]))
        wanted.append([np.array([v[None].astype(to.numpy)[0] for v in x]) for to in every])
    for run, ys, likes in zip(asked, run_all(asked), wanted, strict=True):
        for to, y, like in zip(every, ys, likes, strict=True):
            a, b = (v.astype(np.float64) if to.floating else v for v in (y, like))
            np.testing.assert_array_equal(a, b, f"{run.inputs[0].dtype} to {to}")


def random_tree(rng: Any, leaves: Sequence[Expr], want: DType, depth: int) -> Expr:
    """A random tree of an element type, as tests/test_expr.py draws them."""

    def tree(dtype: DType) -> Expr:
        return random_tree(rng, leaves, dtype, depth - 1)

    own = [leaf for leaf in leaves if leaf.dtype is want]
    if not depth or rng.random() < 0.15:
        if own and rng.random() < 0.8:
            return own[int(rng.integers(len(own)))]
        return Expr("const", (), want, bool(rng.integers(2)) if want is DType.BOOL else int(rng.integers(-3, 4)))
    kinds = (DType.FLOAT, DType.DOUBLE, DType.INT64, DType.BOOL)
    choice = rng.integers(4)
    if choice == 0:
        return E.cast(tree(kinds[(kinds.index(want) + rng.integers(1, 4)) % 4]), want)
    if choice == 1:
        return E.where(tree(DType.BOOL), tree(want), tree(want))
    if choice == 2 and want is not DType.INT64:
        unary = ["not"] if want is DType.BOOL else ["neg", "abs", "exp", "tanh", "sqrt", "floor"]
        return E.make(str(rng.choice(unary)), tree(want))
    if want is DType.BOOL:
        kind = kinds[rng.integers(4)]
        found = ["and", "or", "xor"] if kind is DType.BOOL else ["equal", "less", "greater_equal"]
        return E.make(str(rng.choice(found)), tree(kind), tree(kind))
    found = ["add", "sub", "mul", "max", "min"]
    return E.make(str(rng.choice(found)), tree(want), tree(want))


@on_the_processor
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seeds", [range(60), pytest.param(range(60, 3000), marks=pytest.mark.soak)], ids=len)
def test_random_expressions(seeds: range) -> None:
    kinds = (DType.FLOAT, DType.DOUBLE, DType.INT64, DType.BOOL)
    leaves = [leaf for leaf in inputs(kinds) if leaf is not None]
    xs = [np.random.default_rng(i).integers(-3, 4, 64).astype(d.numpy) for i, d in enumerate(kinds)]
    made = [random_tree(np.random.default_rng(seed), leaves, kinds[seed % 4], 5) for seed in seeds]
    parts = [made[i : i + 60] for i in range(0, len(made), 60)]
    ran = [Run(*elementwise(part, xs, f"random_{seeds[0]}_{i}"), xs) for i, part in enumerate(parts)]
    for tree, y in zip(made, itertools.chain.from_iterable(run_all(ran)), strict=True):
        like = np.broadcast_to(evaluate(tree, np, xs), y.shape)
        if whole_from_floats(tree):
            continue
        np.testing.assert_allclose(y.astype(np.float64), like.astype(np.float64), 1e-5, 1e-6, err_msg=str(tree))


def whole_from_floats(tree: Expr) -> bool:
    """Whether floats that differ in their last bit may become numbers that differ by one, or a test of them."""
    steps = ("exp", "tanh", "sqrt")
    todo = [(tree, False)]
    while todo:
        node, sharp = todo.pop()
        if node.kind in steps and sharp:
            return True
        sharp = sharp or node.dtype is DType.BOOL or node.dtype.integer or node.kind == "floor"
        todo += [(a, sharp) for a in node.args]
    return False


# Compiling


def nvrtc_missing() -> str:
    try:
        nvrtc.version()
    except MissingPackage as error:
        return str(error)
    return ""


by_nvrtc = pytest.mark.skipif(bool(nvrtc_missing()), reason=nvrtc_missing() or "runs")


@pytest.fixture
def empty_cache(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("MEZZO_CACHE", str(tmp_path))
    return tmp_path


def sources(kernel: Generated, given: Sequence[Case]) -> list[Source]:
    """What a family would compile for the cases that it serves."""
    return [launch.source for _, run in runs(kernel, given) for launch in run.written.launches]


@by_nvrtc
@pytest.mark.parametrize("arch", ARCHITECTURES)
@families
def test_compiles(kernel: Generated, arch: str, empty_cache: Any) -> None:
    """The family's own cases, some in float16 and bfloat16, and the first sample of each operator, for one of the
    architectures each."""
    own = list(CASES.get(kernel.name, ()))
    firsts = {case.op: case for case in reversed(list(cases(kernel))[len(own) :])}
    half = ARCHITECTURES.index(arch)
    narrow = [retyped(case, NARROW[i % 2]) for i, case in enumerate(own)]
    given = [*own, *(case for case in narrow if case is not None), *firsts.values()]
    found = sources(kernel, given)[half::2]
    assert set(nvrtc.compiled(found, arch)) == {s.name for s in found}


@by_nvrtc
@pytest.mark.soak
@pytest.mark.parametrize("arch", ARCHITECTURES)
@families
def test_compiles_in_all_types(kernel: Generated, arch: str, empty_cache: Any) -> None:
    every = list(cases(kernel))
    made = [retyped(case, dtype) for case in every for dtype in (*FLOATS[1:], *WHOLE)]
    found = sources(kernel, [*every, *(case for case in made if case is not None)])
    assert set(nvrtc.compiled(found, arch)) == {s.name for s in found}


GOOD = Source("good", 'extern "C" __global__ void good(float* y) { *y = 1; }')
BAD = Source("bad", 'extern "C" __global__ void bad(float* y) { *y = nothing_of_the_kind; }')


@by_nvrtc
def test_a_source_that_does_not_compile_says_which(empty_cache: Any) -> None:
    with pytest.raises(ExecutionError, match=r"bad: NVRTC .* refuses bad for sm_90") as caught:
        nvrtc.compiled([GOOD, BAD], "sm_90")
    assert "nothing_of_the_kind" in str(caught.value)


@by_nvrtc
def test_what_was_compiled_is_kept(empty_cache: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    image = nvrtc.compiled([GOOD], "sm_90")["good"]
    assert image[:4] == b"\x7fELF"
    (file,) = (empty_cache / "nvrtc").glob("*.cubin")
    monkeypatch.setattr(nvrtc, "_compile", lambda *_: pytest.fail("it is kept"))
    assert nvrtc.compiled([GOOD], "sm_90")["good"] == image
    monkeypatch.undo()
    monkeypatch.setenv("MEZZO_CACHE", str(empty_cache))
    file.write_bytes(file.read_bytes()[:-1] + b"?")  # damaged: made again
    assert nvrtc.compiled([GOOD], "sm_90")["good"] == image
    assert cache.read("nvrtc", file.name) == image


def test_kernels_are_kept_apart_in_one_unit() -> None:
    """Headers come first and once; helpers of one name do not meet."""
    text = "#include <cuda_fp16.h>\n__device__ int helper() { return 0; }\n"
    unit = nvrtc.joined([Source("a", text), Source("b", text)])
    assert unit.startswith("#include <cuda_fp16.h>\nnamespace in_a {")
    assert unit.count("#include") == 1


# The shim itself


def broken(old: str, new: str) -> Written:
    """A sum over rows that is right, with a part of its source replaced."""
    text = """
extern "C" __global__ void NAME(const float* x, float* y, int n) {
    __shared__ float sums[4];
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += 128) sum += x[blockIdx.x * n + i];
    for (int m = 16; m; m >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, m);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x == 0) y[blockIdx.x] = sums[0] + sums[1] + sums[2] + sums[3];
}"""
    assert old in text
    name = f"shim_{abs(hash((old, new)))}"
    source = Source(name, text.replace(old, new).replace("NAME", name))
    return Written((Launch(source, (5, 1, 1), (128, 1, 1), (In(0), Out(0), np.int32(300))),))


def check_sums(written: Written) -> None:
    """The sums of some rows."""
    inputs = [ROWS, np.array([1])]
    ((y,),) = run_all([Run(written, ask("ReduceSum", inputs, {"keepdims": 0}), inputs)])
    np.testing.assert_allclose(y, ROWS.sum(1), 1e-6)


ROWS = np.random.default_rng(0).random((5, 300), np.float32)


@on_the_processor
def test_the_shim_runs_blocks_of_threads() -> None:
    check_sums(broken("sum", "sum"))


@on_the_processor
@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("__syncthreads();", "", "another order of threads"),
        ("y[blockIdx.x] = sums", "y[blockIdx.x + 1] = sums", "bytes beside output 0"),
        ("y[blockIdx.x] = sums", "((float*)x)[blockIdx.x] = sums", "input 0 was written"),
        ("if (threadIdx.x == 0) y", "if (threadIdx.x == 0 && blockIdx.x) y", "nan"),
        ("0xffffffffu, sum", "0x0000ffffu, sum", "a lane is not in the mask"),
        ("for (int m = 16", "if (threadIdx.x % 32 == 31) return;\n for (int m = 16", "has returned already"),
        ("int n)", "long long n)", "for a parameter of 8 bytes"),
        ("sum += x[", "sum += z[", "was not declared"),
    ],
)
def test_the_shim_finds(old: str, new: str, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_sums(broken(old, new))


@on_the_processor
def test_equal_names_are_equal_texts() -> None:
    load([GOOD])
    with pytest.raises(AssertionError, match="two texts are named good"):
        load([replace(GOOD, text=BAD.text)])

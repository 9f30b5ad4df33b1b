"""oneDNN's kernels against the references computed in float64: samples, odd and even shapes, layouts, threads."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from mezzo.ops import OPS, DType, Sample, Tensor
from mezzo.ops.types import f32
from mezzo.runtime.backends.onednn import KERNELS
from mezzo.runtime.backends.onednn import library as onednn_library
from mezzo.runtime.backends.onednn.library import library
from mezzo.runtime.backends.onednn.memory import Memory
from mezzo.runtime.backends.onednn.primitive import repacked
from mezzo.runtime.compile.kernel import Choice, Kernel, KernelArgs, KernelRequest, TargetSpec, anchor
from mezzo.runtime.compile.lazy_kernel import itself
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder, Node
from mezzo.runtime.ir.interpreter import evaluate

from .graphs import arrays, hosted, in_float64, wide
from .onednn_cases import CASES, DOUBLED, IMAGES

Array = np.ndarray[Any, Any]
TOLERANCE = 1e-5
needed = pytest.mark.skipif(library() is None, reason="oneDNN is not installed")

# what needs layouts or other types than float32, and is served in tests of its own below
ELSEWHERE = {"onednn.reorder", "onednn.split", "onednn.cast", "onednn.update", "onednn.matmul_n_bits"}
# oneDNN's name for its recurrent networks over its own matrix product, the fastest for a sequence on its own
GOOD_REFERENCES = {"onednn.recurrent": "ref"}


def floats(kernels: Sequence[Kernel] = KERNELS) -> list[Kernel]:
    """The kernels of float tensors; those of 8-bit numbers have tests of their own."""
    return [k for k in map(itself, kernels) if not type(k).__module__.rpartition(".")[2].startswith("quantised")]


def test_the_table_names_every_family_and_operator() -> None:
    assert {*CASES, *ELSEWHERE} == {k.name for k in floats() if not k.name.startswith("layout.")}  # those are views
    for kernel in floats():
        for op in {op for op, _ in CASES.get(kernel.name, [])}:
            assert kernel.serves(Node(op, (), ("y",), domain=domain_of(op))), f"{kernel.name} no longer serves {op}"


def domain_of(op: str) -> str:
    """Where an operator of the tables belongs."""
    return "" if ("", op) in OPS else "mezzo"


def graph_of(op: str, sample: Sample, constants: bool) -> tuple[Graph, dict[str, Any]]:
    """One node; everything but the first input is a constant, or is fed where the sample gives no elements."""
    g, feeds = GraphBuilder(op), dict[str, Any]()
    names: list[str | None] = []
    for i, (given, x) in enumerate(zip(sample.inputs, arrays(sample), strict=True)):
        if x is None:
            names.append(None)
        elif i and (constants or not isinstance(given, Tensor)):
            names.append(g.const(x))
        else:
            names.append(g.input(f"x{i}", Tensor(DType.of(x.dtype), x.shape)))
            feeds[f"x{i}"] = x
    made = g.op(op, *names, domain=domain_of(op), outputs=sample.outputs, **sample.attrs)
    return g.graph([made] if sample.outputs == 1 else list(made)), feeds


def assert_exact(graph: Graph, feeds: Mapping[str, Any], threads: int = 1, tolerance: float = TOLERANCE) -> Session:
    """A session's answers, twice, against float64."""
    session = Session(graph, threads=threads)
    want = evaluate(in_float64(graph), {n: wide(x) for n, x in feeds.items()})
    for _ in range(2):  # the second run rebinds what the first prepared
        assert_close(session.run(dict(feeds)), want, tolerance)
    return session


def assert_close(got: Mapping[str, Any], want: Mapping[str, Any], tolerance: float = TOLERANCE) -> None:
    """max|a-b| <= tol * max|b| for every tensor; what is no number must be none in both."""
    assert set(got) == set(want)
    for name, y in want.items():
        x = got[name]
        assert x.shape == y.shape
        odd = ~np.isfinite(y) if y.dtype.kind == "f" else np.zeros(y.shape, bool)
        assert np.array_equal(x[odd], y[odd].astype(x.dtype), equal_nan=True)
        worst = np.abs(x[~odd].astype(np.float64) - y[~odd]).max(initial=0)
        assert worst <= tolerance * np.abs(y[~odd].astype(np.float64)).max(initial=0), (name, worst)


def kernel_of(session: Session, op: str) -> tuple[str, str]:
    """The kernel and the implementation that run an operator."""
    steps = [s for s in session.program.steps if anchor(s.node)[1] == op]
    return (steps[0].choice.kernel, steps[0].choice.implementation) if steps else ("", "")


def float_samples(op: str) -> Iterator[Sample]:
    record = OPS[domain_of(op), op]
    for sample in record.samples:
        first = sample.inputs[0]
        kind = getattr(first, "dtype", None)
        if kind in (DType.FLOAT, np.float32) and not hosted(record, sample):
            yield sample


def has_avx512() -> bool:
    """Return True if the processor has AVX-512: the library has fast kernels of some families there alone."""
    found = library()
    return found is not None and found.isa.startswith("avx512")


def slow_here(session: Session, name: str) -> bool:
    """Return True if a kernel of this family declined a step since the library has only slow ones on this processor."""
    reasons = [why for s in session.program.steps for kernel, why in s.declined if kernel == name]
    return not has_avx512() and any(why.startswith("only ") and why.endswith(" would do") for why in reasons)


def check_family(name: str, *, threads: int = 1, served: bool = True) -> None:
    """Every case and every sample of a family's operators, second operands constant or not."""
    for op, sample in CASES[name]:
        for constants in (True, False):
            session = assert_exact(*graph_of(op, sample, constants), threads)
            kernel, implementation = kernel_of(session, op)
            # arithmetic with a number that is not known is none with a constant
            if served and (constants or name != "onednn.eltwise") and not slow_here(session, name):
                assert kernel == name, (op, sample, session.program.steps[-1].declined)
                good = GOOD_REFERENCES.get(name, "any name")
                assert not implementation.startswith("ref") or implementation.startswith(good), implementation


@needed
@pytest.mark.parametrize("name", CASES)
def test_cases(name: str) -> None:
    check_family(name)


@needed
@pytest.mark.parametrize("name", ["onednn.conv", "onednn.matmul", "onednn.recurrent", "onednn.pool", "onednn.reduce"])
def test_cases_on_two_threads(name: str) -> None:
    check_family(name, threads=2)


@needed
@pytest.mark.parametrize("name", CASES)
def test_operator_samples(name: str) -> None:
    for op in dict.fromkeys(op for op, _ in CASES[name]):
        for sample in float_samples(op):
            for constants in (True, False):
                assert_exact(*graph_of(op, sample, constants))


# Layouts: kernels called by hand, with operands that lie as a neighbour left them

LAYOUTS = ["", "acdb", "aBcd8b", "aBcd16b"]


def lay(array: Array, layout: str) -> Array:
    """The bytes of an array in a layout."""
    dtype = DType.of(array.dtype)
    if not layout:
        return np.ascontiguousarray(array)
    return cast(Array, repacked(array, Memory(array.shape, dtype), Memory(array.shape, dtype, layout).handle.value))


def unlay(array: Array, type: Tensor, layout: str) -> Array:
    """The elements of a result that lies in a layout."""
    if layout:
        plain = Memory(type.sizes, type.dtype).handle.value
        array = repacked(array, Memory(type.sizes, type.dtype, layout), plain)
    return cast(Array, array.view(type.dtype.numpy).reshape(type.sizes))


def call(kernel: Kernel, node: Node, given: Sequence[Array], layouts: Sequence[str], outputs: Sequence[Tensor]) -> Any:
    """The results of a kernel for operands at hand in these layouts, and its choice; None where it declines."""
    types = [Tensor(DType.of(a.dtype), a.shape).laid(x) for a, x in zip(given, layouts, strict=True)]
    choice = kernel.select(KernelRequest(node, types, outputs, target=TargetSpec()))
    if not isinstance(choice, Choice):
        return None
    wanted = choice.layouts or ("",) * (len(given) + len(outputs))
    inputs = [lay(a, x) for a, x in zip(given, wanted, strict=False)]
    results = [t.laid(x) for t, x in zip(outputs, wanted[len(given) :], strict=True)]
    buffers = [np.full(t.nbytes, 7, np.uint8) for t in results]
    request = KernelRequest(
        node, [Tensor(t.dtype, t.dims).laid(x) for t, x in zip(types, wanted, strict=False)], results
    )
    workspace: list[Array] = []  # calls know where it begins, and do not keep it

    def scratch(dtype: DType, shape: tuple[int, ...]) -> Array:
        workspace.append(np.empty(shape, dtype.numpy))
        return workspace[-1]

    run = kernel.prepare(KernelArgs(request, choice, inputs, buffers, scratch))
    assert not run()
    assert sum(a.nbytes for a in workspace) <= choice.workspace
    return choice, [unlay(b, t, t.layout) for b, t in zip(buffers, results, strict=True)]


@needed
@pytest.mark.parametrize("layout", LAYOUTS)
def test_operands_in_any_layout(layout: str) -> None:
    served: dict[str, set[str]] = {}
    for op, shapes, attrs, count in IMAGES:
        given = arrays(Sample([f32(*s) for s in shapes]))
        domain = domain_of(op)
        node = Node(op, tuple(f"x{i}" for i in range(len(given))), tuple(f"y{i}" for i in range(count)), attrs, domain)
        record = OPS[domain, op]
        made_types = record.infer_types([f32(*s) for s in shapes], attrs, (True,) * count)
        outputs = [t for t in made_types if isinstance(t, Tensor)]
        layouts = [layout if len(s) == 4 and s[0] == shapes[0][0] else "" for s in shapes]
        exact = GraphBuilder()
        names = [exact.input(n, f32(*s)) for n, s in zip(node.inputs, shapes, strict=True)]
        made = exact.op(op, *names, domain=domain, outputs=count, **attrs)
        graph = exact.graph([made] if count == 1 else list(made))
        want = list(evaluate(in_float64(graph), {n: wide(a) for n, a in zip(names, given, strict=True)}).values())
        for kernel in (k for k in floats() if k.serves(node)):
            answer = call(kernel, node, given, layouts, outputs)
            if answer is None:
                continue
            choice, results = answer
            for got, y in zip(results, want, strict=True):
                assert_close({"y": got.astype(np.float64)}, {"y": y})
            if layout in choice.layouts:
                served.setdefault(op, set()).add(kernel.name)
    # the layouts that convolutions give here are read as they are by all that follow them
    found = library()
    if layout == "acdb" or (found and layout == ("aBcd16b" if "avx512" in found.isa else "aBcd8b")):
        least = {"Relu", "Add", "Mul", "MaxPool", "GlobalAveragePool", "Concat", "Split", "PRelu", "Mean", "ReluGrad"}
        assert least <= set(served), least - set(served)


@needed
def test_an_output_is_read_on_in_the_layout_that_it_was_made_in() -> None:
    g = GraphBuilder()
    x, rng = g.input("x", f32(1, 16, 8, 8)), np.random.default_rng(0)
    first, second = (g.const(rng.random((16, 16, 3, 3), np.float32) - 0.5) for _ in range(2))
    kept = g.Relu(g.Conv(x, first))
    graph = g.graph([kept, g.Conv(kept, second)])
    session = Session(graph)
    feeds = {"x": rng.random((1, 16, 8, 8), np.float32)}
    found, expected = session.run(feeds), evaluate(graph, feeds)
    for name, y in expected.items():
        np.testing.assert_allclose(found[name], y, rtol=0, atol=TOLERANCE * np.abs(y).max())
    conv = session.program.steps[-2 if session.program.steps[-1].node.op == "Reorder" else -1].node
    assert not [s for s in session.program.steps if s.node.inputs == (kept,) and s.node.outputs[0] in conv.inputs]


@needed
def test_parts_in_a_blocked_layout_are_views() -> None:
    concat, split = (next(k for k in KERNELS if k.name == f"onednn.{n}") for n in ("concat", "split"))
    types = [f32(1, 32, 3, 3).laid("aBcd16b"), f32(1, 16, 3, 3).laid("aBcd16b")]
    choice = concat.select(KernelRequest(Node("Concat", ("a", "b"), ("y",), {"axis": 1}), types, [f32(1, 48, 3, 3)]))
    assert isinstance(choice, Choice)
    assert [(a.kind, a.delta) for a in choice.aliases] == [("part", 0), ("part", 32 * 9 * 4)]
    node, x = Node("Split", ("y",), ("a", "b"), {"axis": 1}), f32(1, 48, 3, 3).laid("aBcd16b")
    choice = split.select(KernelRequest(node, [x], [f32(1, 32, 3, 3), f32(1, 16, 3, 3)]))
    assert isinstance(choice, Choice)
    assert [(a.kind, a.delta) for a in choice.aliases] == [("view", 0), ("view", 32 * 9 * 4)]


@needed
@pytest.mark.parametrize(
    ("before", "after"), list(itertools.permutations(("", "acdb", "abdc", "aBcd8b", "aBcd16b"), 2))
)
def test_reorder(before: str, after: str) -> None:
    reorder = next(k for k in KERNELS if k.name == "onednn.reorder")
    (x,) = arrays(Sample([f32(2, 19, 4, 5)]))
    node = Node("Reorder", ("x",), ("y",), {"layout": after}, "mezzo")
    choice, (y,) = call(reorder, node, [x], [before], [f32(2, 19, 4, 5)])
    assert choice.layouts == (before, after)
    assert np.array_equal(x, y)


@needed
@pytest.mark.parametrize(("before", "after"), [("FLOAT", "BFLOAT16"), ("BFLOAT16", "FLOAT")])
def test_casts_round_as_the_reference_does(before: str, after: str) -> None:
    rng = np.random.default_rng(0)
    odd = [np.nan, np.inf, -np.inf, 0, -0.0, 1.00390625, 1.01171875, 3.4e38, 2**-126]
    wanted, given = DType[after], DType[before]
    with np.errstate(over="ignore"):
        x = np.concatenate([rng.standard_normal(4000) * 2.0 ** rng.integers(-100, 100, 4000), odd]).astype(given.numpy)
        y = x.astype(wanted.numpy)
    g = GraphBuilder()
    session = Session(g.graph([g.Cast(g.input("x", Tensor(given, x.shape)), to=wanted.onnx)]))
    (got,) = session.run({"x": x}).values()
    assert np.array_equal(got.astype(np.float32), y.astype(np.float32), equal_nan=True)
    assert kernel_of(session, "Cast")[0] == "onednn.cast" or slow_here(session, "onednn.cast")


@needed
def test_resize_where_both_look_at_the_same_elements() -> None:
    """Every rule of ONNX over odd and even sizes: exact where oneDNN takes it, and it takes the common ones."""
    taken = set()
    sizes = [(14, 18), (7, 9), (3, 4), (10, 11), (21, 27), (1, 1)]
    rules = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "half_pixel_symmetric")
    for mode, rule, to in itertools.product(("nearest", "linear"), rules, sizes):
        for nearest in (
            ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil") if mode == "nearest" else ("floor",)
        ):
            attrs = {"mode": mode, "coordinate_transformation_mode": rule, "nearest_mode": nearest, "axes": [2, 3]}
            graph, feeds = graph_of("Resize", Sample([f32(1, 6, 7, 9), None, None, np.array(to)], attrs), True)
            session = Session(graph)
            (got,), (want,) = session.run(feeds).values(), evaluate(graph, feeds).values()
            if mode == "nearest":
                assert np.array_equal(got, want), attrs
            else:
                assert_close({"y": got}, {"y": want})
            if kernel_of(session, "Resize")[0] == "onednn.resize":
                taken.add((mode, rule, nearest, to))
    assert ("nearest", "asymmetric", "floor", (14, 18)) in taken
    assert ("linear", "half_pixel", "floor", (10, 11)) in taken
    assert ("linear", "align_corners", "floor", (10, 11)) not in taken
    assert ("nearest", "asymmetric", "ceil", (14, 18)) not in taken


# Whole networks


def network(batch: int, channels: int) -> tuple[Graph, dict[str, Any]]:
    """Convolutions with branches that meet, are cut, grow and shrink: images stay in the layout of convolutions."""
    rng = np.random.default_rng(channels)

    def weights(*dims: int) -> Any:
        return g.const((rng.standard_normal(dims) / np.sqrt(np.prod(dims[1:]))).astype(np.float32))

    g = GraphBuilder()
    x = g.input("x", f32(batch, 3, 16, 20))
    x = g.Relu(g.Conv(x, weights(channels, 3, 3, 3), weights(channels), strides=[2, 2], pads=[1, 1, 1, 1]))
    left = g.MaxPool(g.Conv(x, weights(channels, channels, 1, 1)), kernel_shape=[2, 2], strides=[2, 2])
    right = g.Sigmoid(g.Conv(x, weights(2 * channels, channels, 3, 3), strides=[2, 2], pads=[1, 1, 1, 1]))
    both = g.Concat(left, right, axis=1)
    first, second = g.op("Split", both, g.const([channels, 2 * channels]), outputs=2, axis=1)
    grown = g.Resize(first, None, g.const(DOUBLED), coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    merged = g.Concat(g.Add(x, grown), g.Conv(x, weights(channels, channels, 3, 3), pads=[1, 1, 1, 1]), axis=1)
    y = g.Conv(merged, weights(8, 2 * channels, 1, 1))
    z = g.ReduceMean(g.Conv(second, weights(8, 2 * channels, 1, 1)), g.const([2, 3]), keepdims=0)
    pooled = g.Flatten(g.GlobalAveragePool(y))
    last = g.Transpose(y, perm=[0, 2, 3, 1])
    graph = g.graph([g.Gemm(pooled, weights(8, 5), weights(5)), z, g.Softmax(last, axis=-1)])
    return graph, {"x": rng.standard_normal((batch, 3, 16, 20)).astype(np.float32)}


@needed
@pytest.mark.parametrize(("batch", "channels", "threads"), [(1, 16, 1), (2, 16, 2), (1, 17, 1), (2, 12, 1)])
def test_networks(batch: int, channels: int, threads: int) -> None:
    session = assert_exact(*network(batch, channels), threads)
    kernels = [s.choice.kernel for s in session.program.steps]
    assert {"onednn.conv", "onednn.concat", "onednn.pool", "onednn.resize", "onednn.reduce"} <= set(kernels)
    assert kernels.count("onednn.reorder") <= 8
    assert not any(s.choice.implementation.startswith("ref") for s in session.program.steps)


@needed
@pytest.mark.parametrize("threads", [1, 2])
def test_threads_share_a_session(threads: int) -> None:
    graph, feeds = network(2, 16)
    session = Session(graph, threads=threads)
    rng = np.random.default_rng(1)
    images = [{"x": rng.standard_normal(feeds["x"].shape).astype(np.float32)} for _ in range(8)]
    alone = [session.run(i) for i in images]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(session.run, images * 4))
    for i, got in enumerate(together):
        for name, y in alone[i % 8].items():
            assert np.array_equal(got[name], y)
    other = Session(graph, threads=3 - threads).run(images[0])
    assert_close(other, alone[0])


# Other machines, in processes of their own

CHECK = """
import sys
from tests import test_onednn as t
from mezzo.runtime.backends.onednn.library import find
"""


def process(code: str, **environment: str) -> str:
    """What a new Python process prints."""
    root = Path(__file__).parent.parent
    ran = subprocess.run(
        [sys.executable, "-c", CHECK + code],
        cwd=root,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@needed
def test_with_avx2_alone() -> None:
    names = ["onednn.conv", "onednn.matmul", "onednn.recurrent", "onednn.pool", "onednn.reduce", "onednn.binary"]
    code = f"""
for name in {names}: t.check_family(name, served=False)
for batch, channels in ((1, 16), (2, 17)): session = t.assert_exact(*t.network(batch, channels), 2)
kernels = {{s.choice.kernel for s in session.program.steps}}
assert {{"onednn.conv", "onednn.concat", "onednn.pool"}} <= kernels, kernels
print(find().isa)
"""
    assert process(code, ONEDNN_MAX_CPU_ISA="AVX2").split() == ["avx2"]


def test_switched_off() -> None:
    code = """
session = t.assert_exact(*t.network(1, 16))
for step in session.program.all_steps(): assert not step.choice.kernel.startswith(("onednn", "layout")), step
print(find())
"""
    assert process(code, MEZZO_ONEDNN="off").split() == ["MEZZO_ONEDNN=off"]


@needed
def test_without_the_library_that_is_installed_with_it_the_first_model_warns() -> None:
    code = """
import warnings
from mezzo.runtime.backends.onednn import library
library.find.cache_clear()
library._FILES = library._SYSTEM = ()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        g = t.GraphBuilder()
        graph = g.graph([g.MatMul(g.input("a", t.f32(2, 2)), g.input("b", t.f32(2, 2)))])
        t.Session(graph).run({"a": t.np.eye(2, dtype="f"), "b": t.np.eye(2, dtype="f")})
(warning,) = caught
assert warning.category is library.SlowKernels
assert str(warning.message).startswith("oneDNN is not found (it is not installed): NumPy computes"), warning
print("warned once")
"""
    assert process(code) == "warned once\n"


def test_the_library_is_found_where_pip_puts_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By `--prefix`, and wherever the record of its wheel says."""
    packages = tmp_path / "lib/python3/site-packages"
    module = packages / "mezzo/runtime/backends/onednn/library.py"
    recorded = tmp_path / "elsewhere/lib/libdnnl.so.3"
    wheel = packages / "onednn_cpu_gomp-2023.2.0.dist-info"
    for file in (tmp_path / "lib/libdnnl.so.3", module, recorded, wheel / "METADATA"):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    (wheel / "METADATA").write_text("Metadata-Version: 2.1\nName: onednn-cpu-gomp\nVersion: 2023.2.0\n")
    (wheel / "RECORD").write_text("../../../elsewhere/lib/libdnnl.so.3,,\n")
    monkeypatch.setattr(onednn_library, "__file__", str(module))
    monkeypatch.syspath_prepend(str(packages))
    found = [os.path.realpath(path) for path in onednn_library._candidates()]
    assert {str(tmp_path / "lib/libdnnl.so.3"), str(recorded)} <= {*found}


@needed
def test_a_square_operand_transposed_twice() -> None:
    """By a Transpose that is only another layout, and by the product itself: dims alone do not tell them apart."""
    g = GraphBuilder("twice")
    x, w = (g.input(n, f32(16, 16)) for n in "xw")
    graph = g.graph([g.Gemm(x, g.Transpose(w, perm=[1, 0]), transB=1)])
    assert_exact(graph, dict(zip("xw", arrays(Sample([f32(16, 16), f32(16, 16)])), strict=True)))


@needed
def test_a_batch_of_one_takes_the_product_that_two_take() -> None:
    """The stride of an axis of size 1 is one of many; with the wrong one a product of attention was a slower one."""

    def product(batch: int) -> tuple[str, str]:
        g = GraphBuilder()
        q, k = (g.input(n, f32(batch, 32, 4, 16)) for n in "qk")
        scores = g.MatMul(g.Transpose(q, perm=[0, 2, 1, 3]), g.Transpose(k, perm=[0, 2, 3, 1]))
        graph = g.graph([scores])
        feeds = {n: np.random.default_rng(0).random((batch, 32, 4, 16), np.float32) for n in "qk"}
        return kernel_of(assert_exact(graph, feeds), "MatMul")

    assert product(1) == product(2)

"""What kernels of the GPU are made of: expressions as CUDA C++, their compiler and what it keeps, and the shim under
which tests run them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mezzo.ops import DType, Tensor
from mezzo.ops.core.evaluate import evaluate
from mezzo.ops.core.expr import PRIMITIVES, E, Expr, inputs
from mezzo.ops.core.lowered import lower
from mezzo.ops.errors import ExecutionError
from mezzo.runtime.backends.cuda import cache, nvrtc
from mezzo.runtime.backends.cuda.launch import In, Launch, Operand, Out, Source, Written
from mezzo.runtime.backends.cuda.source import Unwritten, element_of, rounded, write
from mezzo.runtime.compile.kernel import KernelRequest

from .cuda_shim import Run, ask, load, run_all
from .test_gpu_kernels import FLOATS, WHOLE, by_nvrtc, on_the_processor

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


def elementwise(trees: Sequence[Expr], xs: Sequence[Any], name: str) -> tuple[Written, KernelRequest]:
    """One kernel for all of these trees, each to an output of its own."""
    read = [element_of(DType.of(x.dtype)) for x in xs]
    made = [element_of(t.dtype) for t in trees]
    code = write(lower(trees, len(xs)), [f"v{i}" for i in range(len(xs))])
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
    return Written((launch,)), KernelRequest(node, types, [Tensor(t.dtype, xs[0].shape) for t in trees])


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


def numpy_says(tree: Expr, xs: Sequence[Any]) -> Any:
    (result,) = evaluate(lower([tree], len(xs)), np, xs)
    return result


def answered(tree: Expr, xs: Sequence[Any]) -> Any:
    """What NumPy answers, or None where it has no such primitive."""
    try:
        return np.broadcast_to(numpy_says(tree, xs), xs[0].shape)
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
                write(lower([tree], 2), ["x", "y"])
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
        wanted.append(numpy_says(tree, xs))
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
        like = np.broadcast_to(numpy_says(tree, xs), y.shape)
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

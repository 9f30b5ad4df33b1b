"""Matrix products of cuBLASLt: what the descriptors say, through a stand-in that computes it (cublaslt_standin.py); how
algorithms are chosen and kept; and, where the bindings are installed, that they take these descriptors."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mezzo as mz
from mezzo.ops import OPS, Tensor
from mezzo.ops.types import f32
from mezzo.runtime.backends.cuda.cublaslt import kernel as kernel_module
from mezzo.runtime.backends.cuda.cublaslt.kernel import Products
from mezzo.runtime.backends.cuda.cublaslt.product import LtRefused
from mezzo.runtime.backends.cuda.cublaslt.written import written
from mezzo.runtime.compile.kernel import Choice, Declined, KernelRequest
from mezzo.runtime.ir.graph import GraphBuilder

from .cublaslt_standin import LtStandin, forget
from .cuda_shim import ask
from .cupy_standin import Standin
from .gpu_cases import Case, chain
from .gpu_steps import on, reference, run_step

TOLERANCE = {"float32": 2e-6, "float64": 1e-12, "float16": 1e-3, "bfloat16": 8e-3}
TYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.fixture
def lt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[LtStandin]:
    monkeypatch.setenv("MEZZO_CACHE", str(tmp_path))
    device = Standin(computes=True)
    device.install(monkeypatch)
    made = LtStandin(device)
    made.install(monkeypatch)
    yield made
    forget()


def samples(op: str, domain: str = "") -> list[Case]:
    """The samples of an operator that have elements and are floats."""
    found = [Case(f"{domain}::{op}" if domain else op, s.inputs, s.attrs) for s in OPS[domain, op].samples]

    def served(x: Any) -> bool:
        return x is None or (isinstance(x, Tensor) and x.dtype.floating and 0 not in x.sizes)

    return [c for c in found if all(map(served, c.inputs))]


number = np.float32
ROWS, COLUMNS = f32(2, 3, 5, 8), f32(2, 3, 8, 6)
CASES = [
    *samples("MatMul"), *samples("Gemm"), *samples("FusedMatMul", "com.microsoft"),
    Case("MatMul", [f32(7), f32(7)]),
    Case("MatMul", [f32(7), f32(2, 3, 7, 5)]),
    Case("MatMul", [f32(2, 3, 5, 7), f32(7)]),
    Case("MatMul", [f32(2, 3, 5, 7), f32(7, 4)]),
    Case("MatMul", [f32(1, 3, 5, 7), f32(2, 1, 7, 4)]),
    Case("MatMul", [f32(2, 1, 5, 7), f32(3, 7, 4)]),
    Case("MatMul", [f32(5, 7), f32(2, 3, 7, 4)]),
    Case("MatMul", [ROWS, COLUMNS]),
    # orders of axes: heads beside one another, and turned
    Case("MatMul", [ROWS, COLUMNS], layouts=["acbd", "acbd"]),
    Case("MatMul", [ROWS, COLUMNS], layouts=["", "abdc", "acbd"]),
    Case("MatMul", [ROWS, COLUMNS], layouts=["acbd", "acdb", ""]),
    Case("MatMul", [f32(5, 8), f32(8, 6)], layouts=["ba", "ba"]),
    Case("MatMul", [f32(5, 8), f32(8, 6)], layouts=["", "", "ba"]),
    Case("MatMul", [f32(9, 2, 5, 8), f32(9, 2, 8, 6)], layouts=["acbd", ""]),  # too many calls: copied first
    chain([f32(2, 5, 8), f32(8, 6), f32(6)], ("MatMul", (0, 1)), ("Add", (-1, 2))),
    chain([f32(2, 5, 8), f32(8, 6), f32(1, 1, 6)], ("MatMul", (0, 1)), ("Add", (2, -1)), ("Relu", (-1,))),
    chain([f32(2, 5, 8), f32(8, 6), f32(6)],
          ("MatMul", (0, 1)), ("Add", (-1, 2)), ("Gelu", (-1,), {"approximate": "tanh"})),
    chain([f32(2, 5, 8), f32(8, 6), f32(6), f32(2, 5, 6)],
          ("MatMul", (0, 1)), ("Add", (-1, 2)), ("Add", (3, -1)), ("Relu", (-1,))),
    chain([ROWS, COLUMNS, number(4)], ("MatMul", (0, 1)), ("Div", (-1, 2))),
    chain([ROWS, COLUMNS, number(4), f32(2, 3, 5, 6)], ("MatMul", (0, 1)), ("Mul", (2, -1)), ("Add", (-1, 3))),
    chain([f32(5, 8), f32(6, 8), f32(6)],
          ("Gemm", (0, 1, 2), {"transB": 1, "alpha": 0.5}), ("Gelu", (-1,), {"approximate": "tanh"})),
    chain([f32(8, 5), f32(8, 6), f32(5, 6)], ("Gemm", (0, 1, 2), {"transA": 1, "beta": 0.5}), ("Relu", (-1,))),
]  # fmt: skip


def arrays(case: Case, kind: Any) -> list[Any]:
    rng = np.random.default_rng(0)

    def array(x: Any) -> Any:
        return rng.uniform(-1, 1, x.sizes).astype(kind) if isinstance(x, Tensor) else np.asarray(x, kind)

    return [None if x is None else array(x) for x in case.inputs]


def question(case: Case, held: Sequence[Any], math: str = "strict", **how: Any) -> KernelRequest:
    known = [not isinstance(x, Tensor) for x in case.inputs]
    domain, _, op = case.op.rpartition("::")
    asked = ask(op, held, case.attrs, known=known, layouts=case.layouts, domain=domain or None)
    return on(asked, math, **how)


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c.op}-{'-'.join(map(str, c.inputs))}"[:60])
@pytest.mark.parametrize("dtype", TYPES)
def test_products(case: Case, dtype: str, lt: LtStandin) -> None:
    """Each product is that of the operator's body in float64, whatever lies in which order."""
    held = arrays(case, TYPES[dtype])
    asked = question(case, held)
    found = run_step(lt._standin, Products(), asked, held)
    if isinstance(found, Declined):
        # a third operand spread over rows, axes of a batch permuted; float64 with an epilogue
        only = (("spread", "Gemm"), ("permuted", "FusedMatMul"), *((("float64", ""),) if dtype == "float64" else ()))
        assert any(reason in found.reason and op in case.op for reason, op in only), found.reason
        return
    choice, got = found
    want = reference(asked, held)
    assert got.shape == want.shape
    assert np.abs(got.astype(np.float64) - want).max(initial=0) <= TOLERANCE[dtype] * np.abs(want).max(initial=0)
    assert lt._standin.races == []
    assert choice.implementation.startswith("cuBLASLt algorithm")


def test_calls() -> None:
    """One call where a batch has one stride; rows of a batch that share B are rows of one product."""
    for case, calls, batch, rows in (
        (Case("MatMul", [f32(2, 3, 5, 7), f32(7, 4)]), 1, 1, 30),
        (Case("MatMul", [ROWS, COLUMNS]), 1, 6, 5),
        (Case("MatMul", [ROWS, COLUMNS], layouts=["acbd", "acbd"]), 2, 3, 5),
        (Case("MatMul", [f32(2, 1, 5, 7), f32(3, 7, 4)]), 2, 3, 5),
        (Case("MatMul", [f32(5, 7), f32(2, 3, 7, 4)]), 1, 6, 5),
    ):
        found = written(question(case, arrays(case, np.float32)))
        assert (len(found.starts), found.batch, found.a.rows) == (calls, batch, rows), case


def test_math(lt: LtStandin) -> None:
    """TF32 only where it is asked for, and only of float32."""
    case = Case("MatMul", [f32(4, 8), f32(8, 4)])
    seen = {}
    for dtype in TYPES:
        for math in ("strict", "tf32"):
            kernel_module.ALGORITHMS.forget()
            created: list[Any] = []
            lt.matmul_desc_create = lambda *given, to=created: to.append(given) or lt.create(*given)  # type: ignore[method-assign]
            held = arrays(case, TYPES[dtype])
            Products().select(question(case, held, math))
            seen[dtype, math] = created[0][0].name
    assert seen.pop(("float32", "tf32")) == "COMPUTE_32F_FAST_TF32"
    assert {seen.pop(("float64", m)) for m in ("strict", "tf32")} == {"COMPUTE_64F"}
    assert set(seen.values()) == {"COMPUTE_32F"}


def test_algorithms_are_timed_once(lt: LtStandin) -> None:
    """A trial takes the heuristics' first, a step the fastest; another process reads it from the disk."""
    lt.workspaces, lt.times = (0, 256, 64 << 20, 512), (3.0, 2.0, 0.5, 1.0)
    case, kernel = CASES[-3], Products()
    held = arrays(case, np.float32)
    trial = kernel.select(question(case, held, trial=True))
    assert isinstance(trial, Choice)
    assert (trial.workspace, lt.ran) == (0, [])
    step = kernel.select(question(case, held))
    assert isinstance(step, Choice)
    assert (step.workspace, step.params["milliseconds"]) == (512, 1.0)  # the third asks for more than it may have
    assert step.implementation == "cuBLASLt algorithm 4"
    assert set(lt.ran) == {1, 2, 4}
    assert lt.asked[-1]["REDUCTION_SCHEME_MASK"] == 2
    assert {lt.asked[-1][f"MIN_ALIGNMENT_{c}_BYTES"] for c in "ABCD"} == {16}
    ran, asked = len(lt.ran), len(lt.asked)
    assert kernel.select(question(case, held)) == step
    kernel_module.ALGORITHMS.forget()
    assert kernel.select(question(case, held)) == step
    assert (len(lt.ran), len(lt.asked)) == (ran, asked)
    # a stored program gets what it names, though another is faster now
    lt.times = (0.1, 2.0, 0.5, 1.0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_module, "read", lambda kind, key: None)
        kernel_module.ALGORITHMS.forget()
        kernel.recall(question(case, held), step)
        assert kernel.select(question(case, held)) == step
        with pytest.raises(LtRefused):
            kernel.recall(question(case, held), replace(step, params={}))


def test_a_residual_is_overwritten_where_it_dies(lt: LtStandin) -> None:
    """C and D may be one place: the choice says so, and nothing else may be."""
    found = [Products().select(question(c, arrays(c, np.float32))) for c in CASES if c.op == "Fused"]
    aliases = [[(a.output, a.input) for a in f.aliases] for f in found if isinstance(f, Choice)]
    assert [] in aliases
    assert [(0, 3)] in aliases


def test_why_it_declines(lt: LtStandin) -> None:
    for case, reason in (
        (chain([f32(5, 8), f32(8, 6)], ("MatMul", (0, 1)), ("Gelu", (-1,))), "Gelu"),
        (chain([f32(5, 8), f32(8, 6), f32(6)], ("MatMul", (0, 1)), ("Relu", (-1,)), ("Add", (-1, 2))), "activation"),
        (chain([f32(5, 8), f32(8, 6), f32(5, 1)], ("MatMul", (0, 1)), ("Add", (-1, 2))), "spread"),
        (Case("MatMul", [f32(0, 8), f32(8, 6)]), "no elements"),
    ):
        found = Products().select(question(case, arrays(case, np.float32)))
        assert isinstance(found, Declined)
        assert reason in found.reason


def test_without_cublaslt() -> None:
    """A plan for a GPU says what workspace is kept; a GPU itself gets the line to run."""
    forget()
    case = Case("MatMul", [f32(4, 8), f32(8, 4)])
    held = arrays(case, np.float32)
    planned = Products().select(question(case, held, device="gpu:0@sm_90"))
    assert isinstance(planned, Choice)
    assert (planned.workspace, planned.implementation) == (32 << 20, "cuBLASLt, by rule")
    if importlib.util.find_spec("nvmath") is None:
        declined = Products().select(question(case, held))
        assert isinstance(declined, Declined)
        assert "pip install" in declined.reason


def test_a_session(lt: LtStandin) -> None:
    """Products in a session, captured and replayed: the CPU's numbers."""
    g, rng = GraphBuilder(), np.random.default_rng(0)
    x = g.input("x", f32(4, 8))
    weights = [g.const(rng.normal(size=d).astype(np.float32)) for d in ((8, 16), (16,), (16, 8), (8,))]
    y = g.Relu(g.Add(g.MatMul(x, weights[0]), weights[1]))
    y = g.Gemm(y, weights[2], weights[3])
    graph, fed = g.graph([g.Add(g.MatMul(y, g.const(np.eye(8, dtype=np.float32))), x)]), {"x": np.ones((4, 8), "f4")}
    session, want = mz.Session(graph, device="gpu:0"), mz.Session(graph).run(fed)
    assert {s.choice.kernel for s in session.program.steps} == {"cublaslt.matmul"}
    lt._standin.log.clear()  # of captures that were timed
    for _ in range(3):
        for name, got in session.run(fed).items():
            assert np.abs(np.asarray(got) - want[name]).max() <= 1e-5 * np.abs(want[name]).max()
    assert lt._standin.count("capture") == 1


DESCRIPTORS = """
import sys, tempfile
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[1])
from cudnn_plans import stand_in_for_the_driver

with tempfile.TemporaryDirectory() as made:
    stand_in_for_the_driver(Path(made))
from mezzo.runtime.backends.cuda.cublaslt.library import Descriptors, Library
from mezzo.runtime.backends.cuda.cublaslt.product import Matrix, Product
from mezzo.ops import DType
from nvmath import CudaDataType
from nvmath.bindings import cublas, cublasLt

def value(get, dtype, made, attribute):
    held, written = np.zeros(1, dtype(attribute)), np.zeros(1, np.uint64)
    get(made, attribute, held.ctypes.data, held.itemsize, written.ctypes.data)
    return int(held[0])

library = Library(cublasLt, cublas, CudaDataType, "here")
a = Matrix(("in", 0), DType.FLOAT16, 5, 8, False, 8, 40)
b = Matrix(("in", 1), DType.FLOAT16, 8, 6, True, 8, 0)
d = Matrix(("out", 0), DType.FLOAT16, 5, 6, False, 6, 30)
made = Descriptors(library, Product(a, b, d, bias=("in", 2), batch=3, epilogue="gelu"))
made.point_bias(4096)
name, lt = cublasLt.MatmulDescAttribute, cublasLt
told = [value(lt.matmul_desc_get_attribute, lt.get_matmul_desc_attribute_dtype, made.operation, n)
        for n in (name.TRANSA, name.TRANSB, name.EPILOGUE, name.BIAS_POINTER, name.BIAS_DATA_TYPE)]
assert told == [cublas.Operation.T, cublas.Operation.N, lt.Epilogue.GELU_BIAS, 4096, CudaDataType.CUDA_R_16F], told
name = cublasLt.MatrixLayoutAttribute
laid = {key: [value(lt.matrix_layout_get_attribute, lt.get_matrix_layout_attribute_dtype, made.layouts[key], n)
              for n in (name.ROWS, name.COLS, name.LD, name.BATCH_COUNT, name.STRIDED_BATCH_OFFSET)] for key in "abcd"}
assert laid == {"a": [8, 6, 8, 3, 0], "b": [8, 5, 8, 3, 40], "c": [6, 5, 6, 3, 30], "d": [6, 5, 6, 3, 30]}, laid
made.close()
"""


def test_descriptors_of_the_bindings() -> None:
    """The bindings take the descriptors and give them back; that needs no GPU, and a library in place of the driver: in
    a process of its own."""
    if importlib.util.find_spec("nvmath") is None:
        pytest.skip("the bindings are not installed: pip install 'mezzo[cuda13]'")
    command = [sys.executable, "-c", DESCRIPTORS, str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]

"""Graphs of cuDNN: what they mean, through a stand-in that computes them with NumPy (cudnn_standin.py); how plans are
chosen and kept; and, where cuDNN is installed, that it has plans for what networks ask of it (cudnn_plans.py)."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import mezzo as mz
from mezzo.ops import OPS, DType, Tensor
from mezzo.ops.types import f32
from mezzo.runtime.backends.cuda import timing
from mezzo.runtime.backends.cuda.cudnn import KERNELS, PRODUCTS
from mezzo.runtime.backends.cuda.cudnn import plans as plans_module
from mezzo.runtime.backends.cuda.cudnn.draft import GraphDraft, GraphRefused, GraphTensor
from mezzo.runtime.backends.cuda.cudnn.plans import CudnnPlan, nbytes
from mezzo.runtime.compile.kernel import Choice, Declined, KernelRequest
from mezzo.runtime.ir.graph import GraphBuilder

from .cuda_shim import ask, missing
from .cudnn_standin import CudnnStandin, forget
from .cupy_standin import Standin
from .gpu_cases import Case, chain
from .gpu_steps import on, reference, run_step

Array = np.ndarray[Any, Any]
TOLERANCE = {"float32": 2e-6, "float64": 1e-12, "float16": 1e-3, "bfloat16": 8e-3}
TYPES = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
BY_NAME = {kernel.name: kernel for kernel in (*KERNELS, *PRODUCTS)}


@pytest.fixture
def cudnn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[CudnnStandin]:
    monkeypatch.setenv("MEZZO_CACHE", str(tmp_path))
    device = Standin(computes=True)
    device.install(monkeypatch)
    made = CudnnStandin(device)
    made.install(monkeypatch)
    yield made
    forget()


def samples(op: str) -> list[Case]:
    """The samples of an operator that have elements."""
    record = next(OPS[domain, op] for domain in ("", "mezzo") if (domain, op) in OPS)
    cases = [Case(op, s.inputs, s.attrs, s.outputs) for s in record.samples]
    return [c for c in cases if c.outputs == 1 and not any(isinstance(x, Tensor) and 0 in x.sizes for x in c.inputs)]


IMAGE, FILTERS, BIAS, MADE = f32(2, 3, 6, 5), f32(4, 3, 3, 3), f32(4), f32(2, 4, 6, 5)
SAME = {"pads": (1, 1, 1, 1)}


def followed(*links: Any, inputs: Sequence[Any] = ()) -> Case:
    """A convolution with bias, and what follows."""
    return chain([IMAGE, FILTERS, BIAS, *inputs], ("Conv", (0, 1, 2), SAME), *links)


number = np.float32
CHAINS = [
    followed(("Relu", (-1,))),
    followed(("Add", (-1, 3)), ("Relu", (-1,)), inputs=[MADE]),
    followed(("Add", (3, -1)), ("Sigmoid", (-1,)), inputs=[MADE]),
    followed(("Relu", (-1,)), ("Add", (-1, 3)), inputs=[MADE]),
    followed(("Clip", (-1, 3, 4)), inputs=[number(0), number(0.4)]),
    followed(("Clip", (-1, 3, 4)), inputs=[number(-0.3), number(0.4)]),
    followed(("Clip", (-1, -2, 3)), inputs=[number(0.4)]),
    followed(("Clip", (-1, 3)), inputs=[number(0.1)]),
    *(followed((op, (-1,))) for op in ("Tanh", "Elu", "HardSwish", "Abs", "Exp", "Gelu", "Neg", "Sin")),
    followed(("Gelu", (-1,), {"approximate": "tanh"})),
    followed(("LeakyRelu", (-1,), {"alpha": 0.2})),
    followed(("Swish", (-1,), {"alpha": 0.7})),
    followed(("HardSigmoid", (-1,), {"alpha": 0.3, "beta": 0.4})),
    followed(("Mul", (-1, 3)), ("Sub", (4, -1)), inputs=[f32(4, 1, 1), number(2)]),
    followed(("Div", (-1, 3)), ("Max", (-1, 4)), inputs=[number(3), f32(2, 1, 6, 1)]),
    followed(("Mul", (-1, -1))),
    chain([IMAGE, FILTERS], ("Conv", (0, 1), SAME), ("Relu", (-1,))),
    chain([f32(1, 6, 9), f32(4, 3, 3), f32(4), f32(1, 4, 9)],
          ("Conv", (0, 1, 2), {"pads": (1, 1), "group": 2}), ("Add", (-1, 3)), ("Relu", (-1,))),
    chain([f32(1, 4, 6, 6), f32(4, 1, 3, 3), f32(4), number(0), number(6)],
          ("Conv", (0, 1, 2), {"group": 4, "strides": (2, 2), **SAME}), ("Clip", (-1, 3, 4))),
    chain([f32(1, 4, 3, 4), f32(4, 2, 3, 3), f32(2)],
          ("ConvTranspose", (0, 1, 2), {"strides": (2, 2), "output_padding": (1, 0)}), ("Relu", (-1,))),
]  # fmt: skip


def arrays(case: Case, kind: Any, seed: int = 0) -> list[Any]:
    """The inputs of a case, floats in this type; constants stay what they are."""
    rng = np.random.default_rng(seed)
    made: list[Any] = []
    for x in case.inputs:
        if x is None:
            made.append(None)
        elif isinstance(x, Tensor):
            made.append(rng.uniform(-1, 1, x.sizes).astype(kind))
        else:
            whole = np.asarray(x).dtype.kind == "i"
            made.append(np.asarray(x) if whole else np.asarray(x).astype(kind))
    return made


def question(case: Case, held: Sequence[Any]) -> KernelRequest:
    known = [not isinstance(x, Tensor) for x in case.inputs]
    return ask(case.op, held, case.attrs, known=known)


def serving(asked: KernelRequest) -> Any:
    return next(k for k in (*KERNELS, *PRODUCTS) if k.serves(asked.node))


def agree(case: Case, dtype: str, math: str, cudnn: CudnnStandin) -> Choice:
    held = arrays(case, TYPES[dtype])
    asked = on(question(case, held), math)
    found = run_step(cudnn.device, serving(asked), asked, held)
    assert not isinstance(found, Declined), found.reason
    choice, got = found
    want = reference(asked, held)
    assert got.shape == want.shape
    assert np.isfinite(got.astype(np.float64)).all()
    assert np.abs(got.astype(np.float64) - want).max() <= TOLERANCE[dtype] * np.abs(want).max()
    return choice


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "ConvGradInput", "ConvGradWeights"])
@pytest.mark.parametrize(
    ("dtype", "math"),
    [("float32", "strict"), ("float32", "tf32"), ("float16", "strict"), ("bfloat16", "strict"), ("float64", "strict")],
)
def test_samples(op: str, dtype: str, math: str, cudnn: CudnnStandin) -> None:
    """Every sample, in the layout that is asked first for its type; 32 bits and 64 strict are row-major."""
    taken = 0
    for case in samples(op):
        held = arrays(case, TYPES[dtype])
        if isinstance(serving(question(case, held)).select(on(question(case, held), math)), Declined):
            # what is no gradient of a convolution, and what is cut off the image: the only reasons to decline one
            assert op == "ConvTranspose" or case.attrs.get("pads") == [-1, -2]
            continue
        choice = agree(case, dtype, math, cudnn)
        plain = dtype == "float64" or (dtype == "float32" and math == "strict")
        assert any(choice.layouts) is not plain or not choice.layouts
        taken += 1
    assert taken >= (6 if op.startswith("ConvGrad") else 8)


@pytest.mark.parametrize("case", CHAINS, ids=lambda c: "-".join(link[1] for link in c.attrs["chain"]))
@pytest.mark.parametrize(("dtype", "math"), [("float32", "strict"), ("float32", "tf32"), ("float16", "strict")])
def test_chains(case: Case, dtype: str, math: str, cudnn: CudnnStandin) -> None:
    choice = agree(case, dtype, math, cudnn)
    if choice.layouts:  # what has the result's size lies as the result does: nothing is copied for it
        whole = [i for i, x in enumerate(case.inputs) if isinstance(x, Tensor) and x.sizes == MADE.sizes]
        assert {choice.layouts[i] for i in whole} <= {choice.layouts[-1]}


PRODUCTS_WITH = [
    chain([f32(2, 5, 6), f32(6, 7), f32(7)], ("MatMul", (0, 1)), ("Add", (-1, 2)), ("Gelu", (-1,))),
    chain([f32(5, 6), f32(6, 7), f32(7)], ("MatMul", (0, 1)), ("Add", (2, -1)), ("Sigmoid", (-1,))),
    chain([f32(3, 2, 4, 6), f32(6, 9)], ("MatMul", (0, 1)), ("Gelu", (-1,)), ("Mul", (-1, -1))),
    Case("MatMul", [f32(4, 6), f32(6, 3)]),
]


@pytest.mark.parametrize("case", PRODUCTS_WITH, ids=lambda c: f"{len(c.inputs)}-{c.inputs[0]}")
@pytest.mark.parametrize(("dtype", "math"), [("float32", "tf32"), ("float16", "strict"), ("bfloat16", "strict")])
def test_products(case: Case, dtype: str, math: str, cudnn: CudnnStandin) -> None:
    choice = agree(case, dtype, math, cudnn)
    assert (choice.kernel, choice.layouts) == ("cudnn.matmul", ())
    strict = on(question(case, arrays(case, np.float32)), "strict")
    assert isinstance(BY_NAME["cudnn.matmul"].select(strict), Declined)


@pytest.mark.parametrize("case", [followed(("Relu", (-1,))), followed(("Clip", (-1, 3)), inputs=[number(0.1)])])
def test_what_writes_states_loses_no_nan(case: Case, cudnn: CudnnStandin) -> None:
    """A NaN of a training that a rectifier made a number of would never be seen: the operator is left to others."""
    asked = on(question(case, arrays(case, np.float32)))
    assert isinstance(serving(asked).select(asked), Choice)
    assert isinstance(serving(asked).select(replace(asked, target=replace(asked.target, nan="kept"))), Declined)
    g = GraphBuilder()
    graph = g.graph(
        [g.Relu(g.Add(g.MatMul(g.input("x", f32(4, 8)), g.const(np.ones((8, 8), "f4"))), g.const(number(1))))]
    )
    assert len(mz.Session(graph, device="gpu:0@sm_90").program.steps) == 1
    g = GraphBuilder()
    count = g.state("count", np.zeros((), np.float32))
    g.update("count", g.Add(count, g.const(number(1))))
    product = g.MatMul(g.input("x", f32(4, 8)), g.const(np.ones((8, 8), "f4")))
    program = mz.Session(g.graph([g.Relu(g.Add(product, g.const(number(1))))]), device="gpu:0@sm_90").program
    assert [s.choice.kernel for s in program.steps if s.node.op != "Add"][-1] == "gpu.pointwise"


HEADS = [f32(2, 4, 5, 8), f32(2, 2, 7, 8), f32(2, 2, 7, 16)]
ATTENTION = [
    *(c for c in samples("Attention") if not any(x is None or not isinstance(x, Tensor) for x in c.inputs)),
    Case("Attention", HEADS),
    Case("Attention", [*HEADS, f32(2, 1, 1, 7)]),
    Case("Attention", [*HEADS, f32(5, 7)], {"scale": 0.2}),
    Case("Attention", [f32(2, 4, 5, 8)] * 3, {"is_causal": 1}),
    Case("Attention", HEADS, {"is_causal": 1}),
    Case("Attention", [f32(2, 6, 16)] * 3, {"q_num_heads": 2, "kv_num_heads": 2, "scale": 0.3}),
    Case("Attention", HEADS, layouts=["acbd", "acbd", "", "acbd"]),
    Case("Attention", [f32(2, 4, 5, 8)] * 3, layouts=["abdc", "", ""]),
]


@pytest.mark.parametrize("case", ATTENTION, ids=lambda c: f"{'-'.join(map(str, c.inputs))}-{'-'.join(c.attrs)}"[:70])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_attention(case: Case, dtype: str, cudnn: CudnnStandin) -> None:
    """Scaled, masked, causal, of packed and shared heads; what cuDNN does not know is declined."""
    held = arrays(case, TYPES[dtype])
    asked = on(ask(case.op, held, case.attrs, known=[False] * len(held), layouts=case.layouts))
    found = run_step(cudnn.device, BY_NAME["cudnn.attention"], asked, held)
    if isinstance(found, Declined):
        assert {"softcap", "left_window_size", "softmax_precision"} & {*case.attrs} or "mask" in found.reason
        return
    choice, got = found
    want = reference(asked, held)
    assert np.abs(got.astype(np.float64) - want).max() <= TOLERANCE[dtype] * np.abs(want).max()
    if case.layouts[:1] == ["acbd"]:
        assert choice.layouts == ("acbd", "acbd", "", "acbd")


def test_attention_of_float32_is_left_to_others(cudnn: CudnnStandin) -> None:
    found = BY_NAME["cudnn.attention"].select(on(question(ATTENTION[0], arrays(ATTENTION[0], np.float32))))
    assert isinstance(found, Declined)


def test_every_draft_means_the_same(cudnn: CudnnStandin) -> None:
    """Not only the first one: where cuDNN refuses, the next is taken."""
    seen: set[str] = set()
    for case in (CHAINS[1], CHAINS[4], CHAINS[-2], CHAINS[-1]):
        asked = on(question(case, arrays(case, np.float32)))
        count = sum(1 for _ in drafts(asked))
        for skipped in range(count):
            plans_module.PLANS.forget()
            cudnn.device.log.clear()
            left = list(range(skipped))
            cudnn.refuses = lambda graph, left=left: bool(left and left.pop() >= 0)  # type: ignore[misc]
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(plans_module, "read", lambda kind, key: None)
                choice = agree(case, "float32", "strict", cudnn)
            seen.add(f"{choice.params['draft']} of {count}")
    assert {"0 of 2", "1 of 2", "3 of 4"} <= seen


def drafts(asked: KernelRequest) -> Iterator[GraphDraft]:
    from mezzo.runtime.backends.onednn.postops import chain as links_of

    found: Iterator[GraphDraft] = serving(asked).drafts(asked, links_of(asked.node))
    return found


def conv_ask(dtype: Any = np.float32, math: str = "strict", **how: Any) -> KernelRequest:
    return on(question(CHAINS[0], arrays(CHAINS[0], dtype)), math, **how)


def test_what_a_strict_draft_bars(cudnn: CudnnStandin) -> None:
    """Float32 strictly: no tensor cores and nothing rounded before; always: the same sums at each run."""
    kernel = BY_NAME["cudnn.conv"]
    for dtype, math, note, barred in (
        (np.float32, "strict", "TENSOR_CORE", True),
        (np.float32, "strict", "DOWN_CONVERT_INPUTS", True),
        (np.float32, "tf32", "TENSOR_CORE", False),
        (np.float32, "tf32", "NONDETERMINISTIC", True),
        (np.float16, "strict", "TENSOR_CORE", False),
        (np.float16, "strict", "REDUCED_PRECISION_REDUCTION", True),
        (np.float16, "strict", "NONDETERMINISTIC", True),
    ):
        plans_module.PLANS.forget()
        cudnn.notes = {"eng0": note}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plans_module, "read", lambda kind, key: None)
            choice = kernel.select(conv_ask(dtype, math, trial=True))
        assert isinstance(choice, Choice)
        assert (choice.params["plan"] == "eng1") is barred, (dtype, math, note)


def test_plans_are_timed_once(cudnn: CudnnStandin) -> None:
    """A trial takes the heuristics' first; a step the fastest, whose name, time and workspace are its choice's."""
    cudnn.times = {"eng0": 3.0, "eng1": 1.0, "eng2": 2.0}
    kernel = BY_NAME["cudnn.conv"]
    trial = kernel.select(conv_ask(trial=True))
    assert isinstance(trial, Choice)
    assert (trial.params["plan"], trial.workspace, cudnn.run) == ("eng0", 0, [])
    step = kernel.select(conv_ask())
    assert isinstance(step, Choice)
    assert step.params == {"draft": 0, "plan": "eng1", "milliseconds": 1.0}
    assert step.workspace == 640
    assert set(cudnn.run) == {"eng0", "eng1", "eng2"}
    ran, built = len(cudnn.run), len(cudnn.built)
    assert kernel.select(conv_ask()) == step
    assert kernel.select(conv_ask(trial=True)) == step
    assert (len(cudnn.run), len(cudnn.built)) == (ran, built)


def test_a_second_process_builds_nothing(cudnn: CudnnStandin) -> None:
    """What was chosen, or refused, lies on the disk."""
    kernel = BY_NAME["cudnn.conv"]
    first = kernel.select(conv_ask())
    cudnn.refuses = lambda graph: True
    declined = kernel.select(conv_ask(np.float16))
    assert isinstance(declined, Declined)
    built = len(cudnn.built)
    plans_module.PLANS.forget()  # as another process begins
    cudnn.refuses = lambda graph: pytest.fail("cuDNN is asked again")
    assert kernel.select(conv_ask()) == first
    assert kernel.select(conv_ask(np.float16)) == declined
    assert len(cudnn.built) == built


def test_what_fails_for_the_moment_is_asked_again(cudnn: CudnnStandin) -> None:
    """For want of memory, say: neither this process nor another one keeps the refusal. Nor is a plan that could not be
    timed taken for timed."""
    kernel = BY_NAME["cudnn.conv"]
    cudnn.refuses, cudnn.says = lambda graph: True, lambda words: RuntimeError("CUDNN_STATUS_ALLOC_FAILED")
    assert isinstance(kernel.select(conv_ask()), Declined)
    cudnn.refuses = lambda graph: False
    cudnn.times = {"eng0": 3.0, "eng1": 1.0, "eng2": 2.0}
    room, cudnn.device.memory = cudnn.device.memory, cudnn.device.used + 600
    untimed = kernel.select(conv_ask())
    assert isinstance(untimed, Choice)
    assert untimed.params == {"draft": 0, "plan": "eng0"}
    cudnn.device.memory = room
    timed = kernel.select(conv_ask())
    assert isinstance(timed, Choice)
    assert timed.params == {"draft": 0, "plan": "eng1", "milliseconds": 1.0}


def test_plans_are_timed_as_graphs(cudnn: CudnnStandin) -> None:
    """Of copies, each behind a write over the second-level cache, whose own time does not count."""
    BY_NAME["cudnn.conv"].select(conv_ask())
    captures = [e.detail for e in cudnn.device.log if e.what == "capture"]
    assert captures == [f"{2 * timing.COPIES} nodes", f"{timing.COPIES} nodes"] * 3
    assert len(cudnn.run) == 3 * (1 + timing.RUNS * timing.COPIES)
    cudnn.device.log.clear()
    with pytest.MonkeyPatch.context() as patch:  # what cannot be captured is launched as often
        patch.setattr(timing, "_graph", lambda calls, stream: 1 / 0)
        plans_module.PLANS.forget()
        patch.setattr(plans_module, "read", lambda kind, key: None)
        choice = BY_NAME["cudnn.conv"].select(conv_ask())
    assert isinstance(choice, Choice)
    assert choice.params["milliseconds"] == 1.0


def test_threads_that_capture_have_their_handle_before(cudnn: CudnnStandin) -> None:
    """A handle cannot be made in a capture, and each thread has one of its own."""
    g = GraphBuilder()
    graph = g.graph([g.Conv(g.input("x", IMAGE), g.const(np.ones((4, 3, 3, 3), np.float32)))])
    # in strict float32, for which images stay row-major: the convolution is the only step
    session, fed = mz.Session(graph, device="gpu:0", precision="fp32"), {"x": np.ones((2, 3, 6, 5), np.float32)}
    assert [s.choice.kernel for s in session.program.steps] == ["cudnn.conv"]
    for _ in range(3):
        with ThreadPoolExecutor(1) as other:
            other.submit(session.run, fed).result()
    assert session.uncaptured() == ()


def test_a_stored_choice_is_taken_again(cudnn: CudnnStandin) -> None:
    """A program from a file names its plan: it gets that one, though another would be chosen here."""
    kernel = BY_NAME["cudnn.conv"]
    cudnn.times = {"eng0": 3.0, "eng1": 1.0, "eng2": 2.0}
    stored = kernel.select(conv_ask())
    assert isinstance(stored, Choice)
    plans_module.PLANS.forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plans_module, "read", lambda kind, key: None)
        cudnn.times = {"eng0": 1.0, "eng1": 3.0, "eng2": 3.0}
        kernel.recall(conv_ask(), stored)  # type: ignore[attr-defined]
        assert kernel.select(conv_ask()) == stored
        with pytest.raises(GraphRefused, match="eng9"):
            kernel.recall(conv_ask(), replace(stored, params={**stored.params, "plan": "eng9"}))  # type: ignore[attr-defined]
        with pytest.raises(GraphRefused):
            kernel.recall(conv_ask(), replace(stored, params={}))  # type: ignore[attr-defined]


def test_why_it_declines(cudnn: CudnnStandin) -> None:
    kernel = BY_NAME["cudnn.conv"]
    for case, reason in (
        (followed(("Softmax", (-1,))), "Softmax"),
        (followed(("Elu", (-1,), {"alpha": 0.5})), "alpha"),
        (chain([IMAGE, FILTERS], ("Conv", (0, 1), {"pads": (-1, 0, 0, 0)})), "negative"),
        (Case("Conv", [f32(1, 2, 2, 2, 2, 2), f32(1, 2, 1, 1, 1, 1)]), "spatial"),
        (Case("Conv", [f32(0, 3, 5, 5), f32(4, 3, 3, 3)]), "no elements"),
    ):
        found = kernel.select(on(question(case, arrays(case, np.float32))))
        assert isinstance(found, Declined)
        assert reason in found.reason


def test_without_cudnn() -> None:
    """A plan for a GPU goes by a rule; a GPU itself gets the line to run."""
    forget()
    kernel = BY_NAME["cudnn.conv"]
    planned = kernel.select(conv_ask(np.float16, device="gpu:0@sm_90"))
    assert isinstance(planned, Choice)
    assert planned.layouts == ("acdb", "acdb", "", "acdb")
    if importlib.util.find_spec("cudnn") is None:
        assert planned.implementation == "cuDNN, by rule"
        declined = kernel.select(conv_ask())
        assert isinstance(declined, Declined)
        assert "cuDNN" in declined.reason


def test_bytes_of_an_operand() -> None:
    """Up to the end of the last element."""
    assert nbytes(GraphTensor(("in", 0), (1, 3, 2, 2), (12, 1, 6, 3), DType.FLOAT16)) == 24
    assert nbytes(GraphTensor(("in", 0), (1, 4, 1, 1), (4, 1, 4, 4), DType.FLOAT)) == 16
    assert "data" not in repr(CudnnPlan("eng0", 0, b"123"))


def test_a_network(cudnn: CudnnStandin) -> None:
    """Convolutions in a session: constants packed by channels, graphs captured, the CPU's numbers."""
    g, rng = GraphBuilder(), np.random.default_rng(0)

    def constant(*dims: int) -> str:
        return g.const(rng.normal(size=dims).astype(np.float32))

    x = g.input("x", f32(1, 8, 9, 9))
    y = g.Relu(g.Conv(x, constant(8, 8, 3, 3), constant(8), pads=(1, 1, 1, 1)))
    y = g.Relu(g.Add(g.Conv(y, constant(8, 8, 3, 3), constant(8), pads=(1, 1, 1, 1)), x))
    y = g.ConvTranspose(y, constant(8, 4, 3, 3), constant(4), strides=(2, 2))
    graph, fed = g.graph([y]), {"x": rng.normal(size=(1, 8, 9, 9)).astype(np.float32)}
    want = mz.Session(graph).run(fed)
    for precision in ("fp32", "tf32"):
        session = mz.Session(graph, device="gpu:0", precision=precision)
        kernels = [s.choice.kernel for s in session.program.steps if "cudnn" in s.choice.kernel]
        assert kernels == ["cudnn.conv", "cudnn.conv", "cudnn.conv_transpose"]
        if precision == "tf32" and missing():
            continue  # its copies between layouts are kernels of ours
        for _ in range(3):
            for name, got in session.run(fed).items():
                assert np.abs(np.asarray(got) - want[name]).max() <= 1e-5 * np.abs(want[name]).max()
    assert cudnn.device.races == []


@pytest.mark.parametrize("scaled", ["Mul", "Div", ""])
@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("order", [(0, 1, 3, 2), (0, 2, 3, 1)])
def test_attention_in_parts(scaled: str, masked: bool, order: tuple[int, ...], cudnn: CudnnStandin) -> None:
    """Two products around a Softmax are one Attention, with the numbers of the parts; not if scores are read."""
    half = DType.FLOAT16

    def written(also: bool = False) -> Any:
        g = GraphBuilder()
        q, v = (g.input(n, Tensor(half, (2, 4, length, 8))) for n, length in (("q", 5), ("v", 7)))
        k = g.input("k", Tensor(half, (2, 4, 7, 8) if order == (0, 1, 3, 2) else (2, 7, 4, 8)))
        scores = g.MatMul(q, g.Transpose(k, perm=order))
        plain, number = scores, g.const(np.float16(0.5))
        if scaled:
            scores = g.Mul(number, scores) if scaled == "Mul" else g.Div(scores, number)
        if masked:
            scores = g.Add(scores, g.input("m", Tensor(half, (2, 1, 1, 7))))
        return g.graph([g.MatMul(g.Softmax(scores), v), *([plain] if also else [])])

    graph, rng = written(), np.random.default_rng(0)
    session = mz.Session(graph, device="gpu:0")
    kernels = [s.choice.kernel for s in session.program.steps]
    assert kernels.count("cudnn.attention") == 1
    assert set(kernels) <= {"cudnn.attention", "gpu.copy"}
    assert "Attention" not in str(mz.Session(written(also=True), device="gpu:0@sm_90").program)
    sizes = {p.name: p.type.sizes for p in session.program.inputs if isinstance(p.type, Tensor)}
    fed = {name: rng.normal(size=dims).astype(np.float16) for name, dims in sizes.items()}
    got, want = session.run(fed), mz.Session(graph).run(fed)
    for name, found in got.items():
        assert np.abs(np.asarray(found, np.float32) - want[name]).max() <= 4e-3 * np.abs(want[name]).max()


PLANS_PROGRAM = Path(__file__).with_name("cudnn_plans.py")


def plans_without_a_gpu(*which: str) -> list[dict[str, Any]]:
    """What cuDNN answers for a GPU that is described to it, in a process of its own: one line for each question."""
    if importlib.util.find_spec("cudnn") is None:
        pytest.skip("cuDNN is not installed: pip install 'mezzo[cuda13]'")
    if not shutil.which("cc"):
        pytest.skip("no C compiler makes the stand-in for a driver")
    command = [sys.executable, str(PLANS_PROGRAM), *which]
    found = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    return [json.loads(line) for line in found.stdout.splitlines() if line.startswith("{")]


def test_plans_of_networks_without_a_gpu() -> None:
    """Each convolution of ResNet-50 and MobileNetV2 has a plan, with its whole epilogue, and the rule agrees."""
    found = plans_without_a_gpu("float16")
    assert len(found) >= 40
    assert [f for f in found if not f["plan"] or not f["same"]] == []


@pytest.mark.soak
@pytest.mark.parametrize("dtype", ["float32", "tf32", "bfloat16", "attention"])
def test_more_plans_of_networks_without_a_gpu(dtype: str) -> None:
    found = plans_without_a_gpu(dtype)
    assert found
    assert [f for f in found if not f["plan"] or not f["same"]] == []

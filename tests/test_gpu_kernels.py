"""The GPU's own kernels without a GPU: their source runs on the processor and agrees with the references computed in
float64, and NVRTC compiles it for the architectures that are served. What only a device can show is not shown here:
that threads race nowhere, and that anything is fast."""

from __future__ import annotations

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
from mezzo.ops.errors import MezzoError, MissingPackage
from mezzo.ops.training.update import SHOWN
from mezzo.ops.types import f32
from mezzo.runtime.backends.cuda import nvrtc, pointwise, reduce
from mezzo.runtime.backends.cuda.generated import Generated
from mezzo.runtime.backends.cuda.kernels import GPU_KERNELS
from mezzo.runtime.backends.cuda.launch import Source, Written
from mezzo.runtime.backends.cuda.source import element_of
from mezzo.runtime.compile.kernel import Declined, KernelRequest
from mezzo.runtime.ir.graph import Node

from .cuda_shim import Run, ask, missing, run_all, written_by
from .gpu_cases import CASES as COMPUTED
from .gpu_cases import Case
from .gpu_image_cases import DETERMINANT, FOURIER, IMAGES, LINEAR
from .gpu_recurrent_cases import RECURRENCE
from .gpu_template_cases import TEMPLATES
from .graphs import arrays, hosted
from .test_ops import WIDTH_MATTERS

CASES = {
    **COMPUTED, **TEMPLATES, "gpu.recurrence": RECURRENCE, "gpu.images": IMAGES, "gpu.determinant": DETERMINANT,
    "gpu.linear_attention": LINEAR, "gpu.fourier": FOURIER,
}  # fmt: skip
GENERATED = [k for k in GPU_KERNELS if isinstance(k, Generated)]
ARCHITECTURES = ("sm_80", "sm_90")
# max|a - b| <= tolerance * max|b| for every tensor; narrow floats are compared with what float64 rounds to
TOLERANCE = {DType.DOUBLE: 1e-11, DType.FLOAT: 1e-5, DType.FLOAT16: 4e-3, DType.BFLOAT16: 3e-2}
NARROW = (DType.FLOAT16, DType.BFLOAT16)
FLOATS = (DType.FLOAT, DType.DOUBLE, *NARROW)
WHOLE = tuple(d for d in DType if d.integer and d.bits >= 8)


def nvrtc_missing() -> str:
    """Why nothing is compiled for GPUs here; empty where it is."""
    try:
        nvrtc.version()
    except MissingPackage as error:
        return str(error)
    return ""


by_nvrtc = pytest.mark.skipif(bool(nvrtc_missing()), reason=nvrtc_missing() or "runs")
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
        found = [one(x) for x in case.inputs]
    return replace(case, inputs=found) if any(map(is_of, case.inputs)) and not lost else None


def domain_of(case: Case) -> str:
    usual = next((d for d in ("", "mezzo") if (d, case.op) in OPS), None)
    return next(d for d, name in OPS if name == case.op) if usual is None else usual


def question(case: Case, seed: int = 0) -> tuple[KernelRequest, list[Any]]:
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
        assert_answer(case, run, ys)


def assert_answer(case: Case, run: Run, ys: Sequence[Any]) -> None:
    """Compare what a run gave with its reference."""
    o = OPS[domain_of(case), case.op]
    plain, wide = (reference(o, run.inputs, case, w) for w in (False, True))
    for y, like, exact in zip(ys, plain, wide, strict=False):
        said = f"{case} by {' + '.join(map(str, run.written.launches))}"
        assert (y.shape, y.dtype) == (like.shape, like.dtype), said
        dtype = DType.of(y.dtype)
        if not dtype.floating:
            np.testing.assert_array_equal(y, like, said)
        else:
            # statistics in float32, whatever is normalised
            stash = dtype is DType.DOUBLE and "stash_type" in o.attrs
            assert_close(y, exact, TOLERANCE[DType.FLOAT if stash else dtype], said)


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
def test_a_label_that_is_no_class_adds_nothing() -> None:
    """The CPU refuses it. A kernel cannot raise, but none counts from the last class."""
    kernel = next(k for k in GPU_KERNELS if k.name == "gpu.losses")
    assert isinstance(kernel, Generated)
    case = Case("SoftmaxCrossEntropyLoss", [f32(4, 5), np.array([1, -1, 5, -100])], {"reduction": "none"})
    ((loss, *_),) = run_all([written_by(kernel, *question(case))])
    assert loss[0] > 0
    assert not loss[1:].any()


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


def test_an_update_lies_in_place_of_what_it_renews() -> None:
    """And not in that of the gradient, which has the same type."""
    one, rule = f32(), SHOWN[2][0]
    found = written(
        "gpu.pointwise",
        Case("Update", [f32(3, 5), f32(3, 5), one, one, one, f32(3, 5), f32(3, 5)], {"rule": rule, "states": 2}, 3),
    )
    assert [(a.output, a.input) for a in found.aliases] == [(0, 0), (1, 5), (2, 6)]
    image = f32(4, 8, 3, 3)  # the gradient of weights may lie as images do: neither it nor the weights are copied
    types = [image, image, one, one, one, image, image]
    found = written("gpu.pointwise", Case("Update", types, {"rule": rule, "states": 2}, 3, layouts=["", "acdb"]))
    assert found.layouts == ("", "acdb", *[""] * 8)
    assert [(a.output, a.input) for a in found.aliases] == [(0, 0), (1, 5), (2, 6)]


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
        ("gpu.reduce", ask("ReduceSum", [Tensor(DType.BOOL, (2, 3)), np.array([1])]), "truth values"),
    ]:
        found = family(name).written(asked)
        assert isinstance(found, Declined)
        assert reason in found.reason


# Compiling


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

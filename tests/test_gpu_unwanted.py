"""Each output of each kernel for GPUs dropped in turn, and each alone: what is left is right, and nothing else is
written."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mezzo.ops import OPS, DType, Tensor
from mezzo.ops.errors import MezzoError
from mezzo.ops.types import f32
from mezzo.runtime.backends.cuda import nvrtc
from mezzo.runtime.backends.cuda.generated import Generated
from mezzo.runtime.backends.cuda.launch import Out
from mezzo.runtime.compile.kernel import Declined

from .cuda_shim import Run, run_all, without, written_by
from .gpu_cases import Case
from .test_gpu_kernels import (
    GENERATED,
    TOLERANCE,
    assert_close,
    by_nvrtc,
    cases,
    domain_of,
    on_the_processor,
    question,
    reference,
)

Part = tuple[Case, Run, list[int]]  # a case, its launches, and the numbers of the outputs that are wanted
# operators whose outputs take several shapes of launches that no sample has: one output or two, over many parts
MORE = [
    Case("LayerNormalization", [f32(3, 129), f32(129)], {}, 3),
    Case("SoftmaxCrossEntropyLoss", [f32(9000, 3), np.arange(9000) % 3], {"reduction": "sum"}, 2),
    Case("BatchNormalizationTrain", [f32(300, 5), *[f32(5)] * 3, np.full(5, 0.7, np.float32)], {}, 5),
    Case("BatchNormalizationTrain", [f32(2, 17, 5, 3), *[f32(17)] * 3, np.ones(17, "f")], {}, 5, layouts=["acdb"]),
    Case("MaxPool", [f32(2, 5, 14, 15)], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, 2, layouts=["acdb"]),
    Case("TopK", [f32(2, 3000), np.array([7])], {}, 2),
    Case("Split", [f32(2, 40, 9, 11)], {"axis": 1, "num_outputs": 3}, 3, layouts=["acdb"]),
]


def parts(kernel: Generated, given: Collection[Case]) -> Iterator[Part]:
    """The launches of a family for each output left out, and for each alone."""
    for case in given:
        try:
            asked, xs = question(case)
        except MezzoError:  # the operator has no such element type
            continue
        every = range(case.outputs)
        if not kernel.serves(asked.node) or isinstance(kernel.written(asked), Declined) or len(every) < 2:
            continue
        kept = dict.fromkeys(tuple(j for j in every if j != i) for i in every) | {(i,): None for i in every}
        for wanted in kept:
            part = without(asked, [i for i in every if i not in wanted])
            assert not isinstance(kernel.written(part), Declined), f"{case} with outputs {wanted} alone is declined"
            yield case, written_by(kernel, part, xs), list(wanted)


def few(kernel: Generated) -> list[Case]:
    """One case of several outputs for each operator of a family, and some of their own."""
    own = [case for case in cases(kernel) if case.outputs > 1]
    return [*{case.op: case for case in reversed(own)}.values(), *(c for c in MORE if _serves(kernel, c))]


def _serves(kernel: Generated, case: Case) -> bool:
    return kernel.serves(question(case)[0].node)


def assert_parts(found: list[Part]) -> None:
    """Nothing is written that nobody wants, and what is wanted is the operator's own answer."""
    for case, run, _ in found:
        names = run.request.node.outputs
        touched = {o.index for launch in run.written.launches for o in launch.operands if isinstance(o, Out)}
        touched |= {a.output for a in run.written.aliases}
        assert all(i < len(names) and names[i] for i in touched), f"{case}: {run.written} for {names}"
    answers = run_all([run for _, run, _ in found])
    for (case, run, wanted), ys in zip(found, answers, strict=True):
        o = OPS[domain_of(case), case.op]
        plain, wide = (reference(o, run.inputs, case, w) for w in (False, True))
        for i, y in zip(wanted, ys, strict=True):
            said = f"output {i} of {case} where {wanted} are wanted"
            assert (y.shape, y.dtype) == (plain[i].shape, plain[i].dtype), said
            dtype = DType.of(y.dtype)
            if dtype.floating:
                assert_close(y, wide[i], TOLERANCE[dtype], said)
            else:
                np.testing.assert_array_equal(y, plain[i], said)


several = pytest.mark.parametrize("kernel", [k for k in GENERATED if few(k)], ids=lambda k: k.name)


@on_the_processor
@several
def test_each_output_dropped(kernel: Generated) -> None:
    assert_parts(list(parts(kernel, few(kernel))))


@on_the_processor
@pytest.mark.soak
@several
def test_each_output_dropped_in_all_cases(kernel: Generated) -> None:
    assert_parts(list(parts(kernel, [case for case in cases(kernel) if case.outputs > 1])))


@by_nvrtc
def test_compiled_with_each_output_dropped(empty_cache: Any) -> None:
    """A name that nothing declares may be a function of CUDA's, such as the Bessel functions y0 and y1: the compiler
    of the device is asked, too."""
    found = [part for kernel in GENERATED for part in parts(kernel, few(kernel)[:1])]
    sources = {launch.source.name: launch.source for _, run, _ in found for launch in run.written.launches}
    assert set(nvrtc.compiled(sources.values(), "sm_90")) == set(sources)


def test_what_nobody_wants_takes_workspace() -> None:
    """As much as it is large, behind what the launches take themselves."""
    (pool,) = (k for k in GENERATED if k.name == "gpu.pool")
    asked = question(Case("MaxPool", [f32(1, 2, 9, 9)], {"kernel_shape": [3, 3]}, 2))[0]
    whole, part = pool.written(asked), pool.written(without(asked, [0]))
    assert not isinstance(whole, Declined)
    assert not isinstance(part, Declined)
    y = asked.outputs[0]
    assert isinstance(y, Tensor)
    assert (whole.workspace, part.workspace) == (0, y.nbytes)
    assert replace(part, launches=(), workspace=0) == replace(whole, launches=(), layouts=part.layouts)

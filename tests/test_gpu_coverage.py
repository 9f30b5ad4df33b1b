"""Which operators have no kernel on a GPU: one sample of each is planned, and this is the list of those that the host
runs. Nothing here needs a GPU."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

import mezzo as mz
from mezzo.ops import OPS, DType, Op, Sample, Tensor
from mezzo.ops.errors import PlanError
from mezzo.runtime.ir.graph import GraphBuilder

from .graphs import hosted

# whose results have sizes that data decide (where they are constants, such a result is one too and takes no step), or
# are no tensors of numbers; those with bodies; rows, whose numbers are sorted
HOST_ALONE = """
    BlackmanWindow Compress HammingWindow HannWindow If ImageDecoder Loop MelWeightMatrix NonMaxSuppression NonZero
    OptionalGetElement Range RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer Unique
    com.microsoft::Tokenizer mezzo::ScanRows
"""
LACKING = """
    com.microsoft::DynamicQuantizeLSTM mezzo::GroupedRows mezzo::KeepBoxes
    mezzo::Complex mezzo::Conj mezzo::RealImag
    mezzo::Cholesky mezzo::Eigh mezzo::PInv mezzo::QR mezzo::SVD mezzo::SlogDet mezzo::Solve
"""


def planned(o: Op, sample: Sample) -> bool | None:
    """Whether the device runs all of a sample; None where nothing is planned for its types."""
    g = GraphBuilder()
    xs: list[Any] = [g.input(f"x{i}", x) if isinstance(x, Tensor) else x for i, x in enumerate(sample.inputs)]
    if not any(isinstance(x, str) for x in xs):  # something has to be unknown
        i, first = next((i, np.asarray(x)) for i, x in enumerate(xs) if x is not None)
        xs[i] = g.input("x", Tensor(DType.of(first.dtype), first.shape))
    made = g.op(o.name, *xs, domain=o.domain, outputs=sample.outputs, **sample.attrs)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            session = mz.Session(g.graph([made] if isinstance(made, str) else list(made)), device="gpu:0@sm_90")
        return all(step.choice.capturable for step in session.program.all_steps())
    except PlanError:
        return None


def test_operators_without_a_kernel_on_gpus() -> None:
    """Every operator runs on the device for some sample, itself or in its parts, but for these."""
    found = set()
    for o in OPS.values():
        samples = [s for s in o.samples if not hosted(o, s) and any(x is not None for x in s.inputs)]
        if o.domain not in ("", "mezzo", "com.microsoft") or not samples:
            continue
        if not any(planned(o, s) for s in samples):
            found.add(f"{o.domain}::{o.name}" if o.domain else o.name)
    lacking = found - set(HOST_ALONE.split())
    print(f"{len(lacking)} operators have no kernel on a GPU:", *sorted(lacking))
    assert lacking == set(LACKING.split())
    assert found >= set(HOST_ALONE.split())

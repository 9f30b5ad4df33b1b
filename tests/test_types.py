"""Element types: which of those that its schema allows each operator runs in; and their bytes in files."""

from __future__ import annotations

import warnings
from collections.abc import Mapping

import numpy as np
import onnx
import onnx.numpy_helper
import pytest

from mezzo.exporters.proto import tensor
from mezzo.importers.tensors import TensorReader
from mezzo.ops import DType, Op
from mezzo.ops.budget import Budget
from mezzo.ops.tensor.cast import convert
from mezzo.tools.retype import LEAF, allowed, schema_of

from .element_types import ran
from .test_ops import STANDARD
from .type_gaps import GAPS

DEVICES = ("cpu",)


def gaps_of(o: Op, types: Mapping[str, list[str]]) -> set[tuple[str, str]]:
    """The types of an operator that the table of gaps names, with their type parameters."""
    rows = [(p, words) for name, p, words, _ in GAPS if name == o.name]
    return {(p, t) for p, words in rows for t in (types[p] if words == "all" else words.split())}


def test_operators_by_element_types() -> None:
    """Every type that a schema allows ran, or has a row in the table of gaps; and no row is there in vain."""
    lines, lacking, idle, wrong = [], list[str](), [], list[str]()
    with warnings.catch_warnings(action="ignore"):
        for o in STANDARD:
            types, (done, differing) = allowed(schema_of(o)), ran(o)
            wrong += differing
            gap = {(p, t) for p in types for t in types[p] if t not in done[p]}
            known = gaps_of(o, types)
            for p in types:
                short = [LEAF.sub(r"\1", t) for t in types[p] if t in done[p]]
                lines.append(f"{o.domain}::{o.name:26} {p:6} {DEVICES[0]} {' '.join(short)}")
            lacking += [f"{o.name} {p}: {t}" for p, t in sorted(gap - known)]
            idle += [f"{o.name} {p}: {t}" for p, t in sorted(known - gap)]
    print("\n".join(lines))
    assert not wrong
    assert not lacking
    assert not idle


@pytest.mark.parametrize("dtype", [d for d in DType if 0 < d.bits < 8], ids=str)
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 9])
def test_packed_elements_are_those_of_onnx(dtype: DType, count: int) -> None:
    low, high = (-2, 2) if dtype.signed else (0, 4)
    array = np.random.default_rng(count).integers(low, high, count).astype(np.float32).astype(dtype.numpy)
    theirs, reader = onnx.numpy_helper.from_array(array, "a"), TensorReader("made", None, Budget())
    assert tensor("a", array) == theirs
    np.testing.assert_array_equal(reader.read(theirs).astype(np.float32), array.astype(np.float32))
    if dtype.bits == 6 and count:  # without raw_data each is an entry of its own
        spread = onnx.TensorProto(data_type=dtype.onnx, dims=[count], int32_data=array.view(np.uint8).tolist())
        np.testing.assert_array_equal(reader.read(spread).astype(np.float32), array.astype(np.float32))


@pytest.mark.parametrize("dtype", [d for d in DType if d.floating and d.bits == 8], ids=str)
def test_nan_of_eight_bits_is_0_as_a_whole_number(dtype: DType) -> None:
    numbers = np.array([np.nan, 2], np.float32).astype(dtype.numpy)
    for to in (DType.INT32, DType.INT64, DType.UINT8):
        assert convert(np, numbers, to).tolist() == [0, 2]

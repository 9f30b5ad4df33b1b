"""Element types: which of those that its schema allows each operator runs in; and their bytes in files."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import pytest

from mezzo.exporters.proto import tensor
from mezzo.importers.tensors import TensorReader
from mezzo.ops import OPSETS, DType, MezzoError, Op, Sample
from mezzo.ops.budget import Budget
from mezzo.ops.cast import convert
from mezzo.ops.types import type_of

from .graphs import hosted
from .test_ops import STANDARD, cast_to, compatible, fill, plain, run
from .type_gaps import GAPS

DEVICES = ("cpu",)


def allowed(o: Op) -> tuple[str, list[DType]]:
    """The main type parameter of an operator, that of its first input that has one, and its element types."""
    schema = onnx.defs.get_schema(o.name, OPSETS[o.domain], o.domain)
    words = {c.type_param_str: c.allowed_type_strs for c in schema.type_constraints}
    for formal in (*schema.inputs, *schema.outputs):
        found = [d for d in DType if f"tensor({d.name.lower()})" in words.get(formal.type_str, ())]
        if found:
            return formal.type_str, found
    return "", []


def ran(o: Op, parameter: str) -> set[DType]:
    """The element types in which some sample ran: its own, and those that its numbers could be turned into."""
    schema: Any = onnx.defs.get_schema(o.name, OPSETS[o.domain], o.domain)
    found = set[DType]()
    for sample in o.samples:
        if not plain(sample) or hosted(o, sample):
            continue
        formals = [*schema.inputs, *schema.inputs[-1:] * len(sample.inputs)]
        xs = fill(sample)
        of_it = [i for i, x in enumerate(xs) if x is not None and formals[i].type_str == parameter]
        if not of_it:
            results = zip(run(o, sample, xs), schema.outputs, strict=False)
            found |= {DType.of(y.dtype) for y, formal in results if formal.type_str == parameter}
            continue
        found |= {d for d in set(allowed(o)[1]) - found if runs_in(o, sample, xs, of_it, d)}
    return found


def runs_in(o: Op, sample: Sample, xs: list[Any], which: list[int], dtype: DType) -> bool:
    """Whether a sample runs with some inputs in another element type, as inference says that it does."""

    def turned(x: Any) -> Any:
        if DType.of(x.dtype) is dtype:
            return x
        if x.dtype == object:
            x = np.array([len(str(v)) for v in x.reshape(-1)]).reshape(x.shape)
        x = x if x.dtype.isbuiltin == 1 else x.astype(np.float32)
        return cast_to(x if dtype.signed or x.dtype == bool else np.abs(x), dtype)

    given = [turned(x) if i in which else x for i, x in enumerate(xs)]
    types = [None if x is None else type_of(x, known=True) for x in given]
    try:
        with np.errstate(all="ignore"):
            ys = run(o, sample, given)
        said = o.infer_types(types, sample.attrs, (True,) * sample.outputs)
    except (MezzoError, TypeError, ValueError):  # a bare reference leaves the wording of refusals to who runs it
        return False
    return not any(compatible(t, y) for t, y in zip(said, ys, strict=False))


def test_operators_by_element_types() -> None:
    """Every type that a schema allows ran, or has a row in the table of gaps; and no row is there in vain."""
    lines, lacking, idle = [], dict[str, list[str]](), []
    with warnings.catch_warnings(action="ignore"):
        for o in STANDARD:
            parameter, dtypes = allowed(o)
            done = ran(o, parameter) if dtypes else set()
            gap = {d.name for d in dtypes} - {d.name for d in done}
            row = GAPS.get(o.name, ("", ""))[0]
            known = {d.name for d in dtypes} if row == "all" else set(row.split())
            lines.append(f"{o.domain}::{o.name:26} {DEVICES[0]} {' '.join(str(d) for d in dtypes if d in done)}")
            if gap - known:
                lacking[o.name] = sorted(gap - known)
            idle += [f"{o.name} {d}" for d in known - gap]
    print("\n".join(lines))
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

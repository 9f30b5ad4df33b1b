"""Resize kernels: each element of the result is a weighted sum of a few elements of the input along each axis.

The weights come from the operator's definition (ops/nn/resize.py), as tables in the source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ....ops import DType, Tensor
from ....ops.nn.resize import resamplings
from ...compile.kernel import Declined, KernelRequest, listed
from .generated import Generated, operands
from .launch import In, Out, Written
from .text import FEW, Element, dot, each, permuted, reads, strides_of, writes

TABLES = 1 << 15  # numbers that stand in one source
Table = tuple[list[int], list[list[float]]]  # for each place its first tap, and the weights from there on


class Resize(Generated):
    """Resize in every mode, by constant scales or sizes."""

    name = "gpu.resize"
    operators = listed("Resize")

    def write(self, request: KernelRequest) -> Written | Declined:
        forms, x, y = operands(request, request.inputs[:1])
        if forms[0].dtype is DType.BOOL:
            return Declined("an operand is of truth values")
        layout = permuted(x)
        layouts = (layout, *[""] * (len(request.inputs) - 1), layout) if layout else ()
        if not y.elements:
            return Written((), layouts=layouts)
        known: list[Any] = [_value(request, i) for i in (1, 2, 3)]
        if any(v is False for v in known) or not x.elements:
            return Declined("scales or sizes are no small constants")
        attrs = {a: v for a, v in request.node.attrs.items() if a != "extrapolation_value"}
        tables: dict[int, Table] = {}
        outside: dict[int, Sequence[bool]] = {}
        e, mode = forms[0], attrs.get("mode", "nearest")
        for axis, how, beyond in resamplings(x.sizes, *known, **attrs):
            if how is not None:
                tables[axis.axis] = _nearest(how) if how.ndim == 1 else _weighted(how)
            if beyond is not None and beyond.any():
                outside[axis.axis] = beyond.tolist()
        if sum(len(f) * (1 + len(w[0])) for f, w in tables.values() for w in (w or [[]],)) > TABLES:
            return Declined("tables of weights are too long")
        body, before = _body(e, x, y, layout, tables, outside, mode, request.node.attrs.get("extrapolation_value", 0.0))
        parameters = [reads(e, "x", In(0)), writes(e, "y", Out(0))]
        resized = each(
            "resize", parameters, y.sizes, "\n".join(body), layout=layout, largest=x.elements or 0, before=before
        )
        return Written((resized,), layouts=layouts)


def _value(request: KernelRequest, i: int) -> Any:
    """The elements of an optional constant: None where it is absent, False where it is not at hand."""
    t = request.inputs[i] if i < len(request.inputs) else None
    if not isinstance(t, Tensor) or t.elements == 0:
        return None
    at_hand = request.constant(i) and t.value is not None and (t.elements or FEW + 1) <= FEW
    return np.asarray(t.value) if at_hand else False


def _nearest(how: Any) -> Table:
    return how.tolist(), []


def _weighted(matrix: Any) -> Table:
    """The rows of a matrix [out, size] without the zeros around them, all of one width."""
    taken = matrix != 0
    first = np.where(taken.any(1), taken.argmax(1), 0)
    last = np.where(taken.any(1), matrix.shape[1] - 1 - taken[:, ::-1].argmax(1), 0)
    width = int((last - first).max()) + 1
    first = np.minimum(first, matrix.shape[1] - width)
    return first.tolist(), [row[f : f + width].tolist() for row, f in zip(matrix, first, strict=True)]


def _body(
    e: Element,
    x: Tensor,
    y: Tensor,
    layout: str,
    tables: dict[int, Table],
    outside: dict[int, Sequence[bool]],
    mode: str,
    fill: float,
) -> tuple[list[str], str]:
    """Return the statements of a thread, and the tables before the kernel."""
    strides, before, loops, weights = strides_of(x.sizes, layout), "", [], []
    steps = [0 if d in tables else s for d, s in enumerate(strides)]
    places = [dot(steps, "c", y.sizes)]
    for d, (first, rows) in tables.items():
        before += _table("int", f"first{d}", map(str, first))
        if rows:
            width = len(rows[0])
            before += _table("float", f"weight{d}", (f"{w!r}f" for row in rows for w in row))
            loops.append(f"for (int k{d} = 0; k{d} < {width}; ++k{d})")
            weights.append(f"KERNEL_weight{d}[(int)c{d} * {width} + k{d}]")
            places.append(f"(KERNEL_first{d}[c{d}] + k{d}) * {strides[d]}")
        else:
            places.append(f"KERNEL_first{d}[c{d}] * {strides[d]}")
    at = e.read(f"x[{' + '.join(places)}]")
    body = []
    if mode == "nearest":
        result = at
    else:
        kind = "double" if e.wide == "double" else "float"
        product = " * ".join([f"({kind}){at}", *weights])
        body = [f"{kind} sum = 0;", f"{' '.join(loops)} sum += {product};"]
        result = "sum"
        if not e.dtype.floating:
            low, high = np.iinfo(e.dtype.numpy).min, np.iinfo(e.dtype.numpy).max
            result = f"fmin(fmax(rint((double)sum), {float(low)!r}), {float(high)!r})"
    value = e.write(result)
    if outside:
        tests = []
        for d, mask in outside.items():
            before += _table("bool", f"outside{d}", ("true" if m else "false" for m in mask))
            tests.append(f"KERNEL_outside{d}[c{d}]")
        filled = e.write(e.number(fill if e.dtype.floating else int(fill)))
        value = f"{' || '.join(tests)} ? {filled} : {value}"
    return [*body, f"y[i] = {value};"], before


def _table(kind: str, name: str, values: Any) -> str:
    return f"__device__ const {kind} KERNEL_{name}[] = {{{', '.join(values)}}};\n"

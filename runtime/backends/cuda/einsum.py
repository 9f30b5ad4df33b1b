"""Einsum of one or two operands: a matrix product whose rows, columns and sums are several axes each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....ops import DType, Tensor
from ....ops.math.algebra import terms_of
from ...compile.kernel import Declined, KernelRequest, listed
from .gemm import GemmProduct
from .generated import Generated, operands
from .launch import In, Out, Written
from .text import Element, coordinates, reads, strides_of, writes

Axes = dict[str, tuple[int, int]]  # label -> size and stride; an ellipsis has one label for each axis


class Einsum(Generated):
    """Labels of both operands and the result are batch axes, those of one operand and the result are rows or columns,
    and those that the result lacks are summed over."""

    name = "gpu.einsum"
    operators = listed("Einsum")

    def write(self, request: KernelRequest) -> Written | Declined:
        forms, _, y = operands(request)
        if forms[0].dtype is DType.BOOL:
            return Declined("an operand is of truth values")
        tensors = [t for t in request.inputs if isinstance(t, Tensor)]
        if len(tensors) > 2:
            return Declined("more than two operands")
        if max(t.elements or 0 for t in (*tensors, y)) >= 2**31:
            return Declined("too many elements for 32-bit indices")
        if not y.elements:
            return Written(())
        terms, result = terms_of(request.node.attrs["equation"], len(tensors))
        a, *others = (_axes(t, term) for t, term in zip(tensors, terms, strict=True))
        b = others[0] if others else {}
        return Written((_product(forms[0], a, b, _axes(y, result), bool(others)).launch(),))


def _axes(t: Tensor, term: str) -> Axes:
    """Sizes and strides by label; an axis of size 1 is repeated, a label that stands twice walks along a diagonal."""
    axes: Axes = {}
    at = term.find(".")
    batch = t.rank - len(term.replace(".", ""))
    labels = list(term) if at < 0 else [*term[:at], *(f".{batch - i}" for i in range(batch)), *term[at + 1 :]]
    for label, n, stride in zip(labels, t.sizes, strides_of(t.sizes), strict=True):
        size, step = axes.get(label, (1, 0))
        axes[label] = max(size, n) if n != 0 else 0, step + (stride if n != 1 else 0)
    return axes


def _product(e: Element, a: Axes, b: Axes, y: Axes, two: bool) -> GemmProduct:
    sizes = {label: n for axes in (a, b) for label, (n, _) in axes.items() if n != 1}
    labels = list(dict.fromkeys([*y, *a, *b]))
    batch = [c for c in labels if c in y and c in a and c in b]
    rows = [c for c in labels if c in y and c in a and c not in b]
    columns = [c for c in labels if c in y and c not in a]
    inner = [c for c in labels if c not in y]

    def size(group: Sequence[str]) -> int:
        return math.prod(sizes.get(c, 1) for c in group)

    def taken(group: Sequence[str], number: str, prefix: str) -> list[str]:
        return coordinates("int", number, [sizes.get(c, 1) for c in group], prefix)

    def place(axes: Axes, *groups: tuple[Sequence[str], str]) -> str:
        parts = [
            f"{prefix}{i} * {axes[c][1]}"
            for group, prefix in groups
            for i, c in enumerate(group)
            if c in axes and axes[c][1] and sizes.get(c, 1) != 1
        ]
        return " + ".join(parts) or "0"

    kind = e.sums
    z, r, c, k = (batch, "z"), (rows, "r"), (columns, "c"), (inner, "k")
    left = [*taken(rows, "row", "r"), *taken(inner, "k", "k"), f"value = ({kind}){e.read(f'a[{place(a, z, r, k)}]')};"]
    right = [*taken(columns, "column", "c"), *taken(inner, "k", "k")]
    right.append(f"value = ({kind}){e.read(f'b[{place(b, z, c, k)}]')};" if two else "value = 1;")
    parameters = [reads(e, "a", In(0)), *([reads(e, "b", In(1))] if two else []), writes(e, "y", Out(0))]
    store = [*taken(rows, "row", "r"), *taken(columns, "column", "c"), f"y[{place(y, z, r, c)}] = {e.write('sum')};"]
    return GemmProduct(
        *("einsum", kind, size(batch), size(rows), size(columns), size(inner)),
        " ".join(left),
        " ".join(right),
        " ".join(store),
        tuple(parameters),
        tuple(taken(batch, "z", "z")),
    )

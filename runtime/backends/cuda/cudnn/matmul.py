"""Matrix products with what follows them, where cuBLASLt has no such epilogue: Gelu by the error function, and others.

https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/operations/Matmul.html
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from .....ops import DType
from ....compile.kernel import KernelRequest
from ...onednn.postops import Link
from .draft import GraphDraft, GraphRefused, GraphTensor, Place, Writer
from .epilogue import Epilogue
from .kernel import CuDnn, floats, result


class MatMul(CuDnn):
    """MatMul by one matrix, on tensor cores: all rows of the other operand together."""

    name = "cudnn.matmul"
    ops = frozenset({"MatMul"})

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[GraphDraft]:
        """One form, row-major throughout."""
        link, y = links[0], result(request)
        a, b = floats(request, link.operands[:2])
        if len({a.dtype, b.dtype, y.dtype}) > 1 or a.dtype is DType.DOUBLE:
            raise GraphRefused(f"{a} and {b} make {y}")
        if a.dtype is DType.FLOAT and request.target.math != "tf32":
            raise GraphRefused("float32 that is not rounded has no tensor cores")
        if len(b.sizes) != 2 or len(a.sizes) < 2:
            raise GraphRefused("the second operand is no matrix, or the first has no rows")
        inner, columns = b.sizes
        rows, sizes = math.prod(a.sizes[:-1]), (1, math.prod(a.sizes[:-1]), columns)

        def matrix(place: Place, high: int, wide: int) -> GraphTensor:
            return GraphTensor(place, (1, high, wide), (high * wide, wide, 1), a.dtype)

        writer = Writer()
        left = writer.read(matrix(("in", link.operands[0]), rows, inner))
        right = writer.read(matrix(("in", link.operands[1]), inner, columns))
        value = writer.add("matmul", left, right, sizes=sizes)
        Epilogue(request, writer, sizes, sizes, "", False).follow(links[1:], value)
        yield writer.draft(matrix(("out", 0), rows, columns), request.target.math)

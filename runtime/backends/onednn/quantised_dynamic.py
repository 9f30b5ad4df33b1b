"""Dynamic quantisation: DynamicQuantizeLinear, and DynamicQuantizeMatMul of com.microsoft.

Scale and zero point are found in the data before each call and handed to the primitives, which read them when they run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ....ops import DType, Tensor
from ....ops.types import Array
from ...compile.kernel import Call, Choice, KernelArgs, KernelRequest, TargetSpec, anchor
from ...ir.graph import Node
from .api import ATTR_SCALES, ATTR_ZERO_POINTS, BIAS, DST, SRC, SRC_1, WEIGHTS, Refused
from .invalid import keeping_flag
from .kernel import WORK, Calls, OneDnn, chosen
from .memory import ANY, Memory
from .primitive import Attributes, Bound, Draft, Operand, Place, PostOp, repacked
from .quantised import BYTES, MICROSOFT, output, signed, tensors, values, whole_products, zero_of

LIVE = "live"  # ("live", 0): the scale, 1: the zero point in float32, 2: in int32
_ONE = (1,)


def _quantised(x: Tensor, dims: tuple[int, ...], place: Place) -> Draft:
    """The draft that turns the first input into steps, as QuantizeLinear does (see quantised_elements.py)."""
    number = Memory((1,) * len(dims), DType.FLOAT)
    zero = PostOp("binary_add", other=number, place=(LIVE, 1))
    operands = (
        Operand(SRC, ("in", 0), Memory(dims, DType.FLOAT)),
        Operand(SRC_1, (LIVE, 0), number),
        Operand(DST, place, Memory(dims, DType.UINT8)),
    )
    return Draft("binary", operands, ("binary_div",), Attributes((PostOp("eltwise_round"), zero)))


class Dynamic(OneDnn):
    """Kernels that find the range of their first input before they quantise it."""

    def serves(self, node: Node) -> bool:
        domain, op = anchor(node)
        return domain in ("", MICROSOFT) and op in self.ops

    def prepare(self, args: KernelArgs) -> Call:
        """The primitives over the buffers of the step, behind a look at the input."""
        live = [np.ones(1, np.float32), np.zeros(1, np.float32), np.zeros(1, np.int32)]
        x = args.inputs[0]
        assert x is not None
        calls = self._bound(args, {(LIVE, i): a for i, a in enumerate(live)})
        return Looking(calls, x, live, [a for a in args.outputs[1:] if a is not None], args.request.target)

    def pack(self, request: KernelRequest, choice: Choice, index: int, array: Array) -> Array:
        """Weights as signed numbers, in the layout that the product reads."""
        product = chosen(choice, request.target)[-1]
        (operand,) = product.draft.at(("in", index))
        if array.dtype == np.uint8:
            array = (np.asarray(array) ^ np.uint8(128)).view(np.int8)
        assert operand.source is not None
        assert operand.memory.layout == ANY
        return repacked(np.ascontiguousarray(array), operand.source, product.memory(operand.argument))


class Looking(Calls):
    """Primitives that run after the range of the input is known."""

    def __init__(
        self, calls: Sequence[Bound], x: Array, live: Sequence[Array], outputs: Sequence[Array], target: TargetSpec
    ) -> None:
        super().__init__(calls)
        self._x, self._live, self._outputs = x, live, list(outputs)
        self._look = keeping_flag(self._find_range, target)

    def __call__(self) -> int:
        self._look()
        return super().__call__()

    def _find_range(self) -> None:
        least, most = np.minimum(self._x.min(), np.float32(0)), np.maximum(self._x.max(), np.float32(0))
        scale = (most - least) / np.float32(255) or np.float32(1)
        zero = np.rint(-least / scale)
        self._live[0][0], self._live[1][0] = scale, zero
        self._live[2][0] = zero if np.isfinite(zero) else 0  # the result is not finite either
        for array, value in zip(self._outputs, (scale, self._live[2][0]), strict=False):
            array[...] = value

    def rebind(self, place: Place, array: Array) -> None:
        """Look at another input, write to other outputs."""
        if place == ("in", 0):
            self._x = array
        elif place[0] == "out" and place[1]:
            self._outputs[place[1] - 1] = array
        super().rebind(place, array)


class DynamicQuantize(Dynamic):
    """DynamicQuantizeLinear."""

    name = "onednn.dynamic_quantize"
    ops = frozenset({"DynamicQuantizeLinear"})

    def plans(self, request: KernelRequest) -> Iterator[tuple[Draft, ...]]:
        """One division."""
        (x,) = tensors(request, (0,), (DType.FLOAT,))
        if not x.sizes or len(request.outputs) != 3:
            raise Refused("a single number, or a result that nobody reads")
        yield (_quantised(x, x.sizes, ("out", 0)),)


class DynamicMatMul(Dynamic):
    """DynamicQuantizeMatMul with constant weights: a division and a product of 8-bit numbers."""

    name = "onednn.dynamic_matmul"
    ops = frozenset({"DynamicQuantizeMatMul"})

    def plans(self, request: KernelRequest) -> Iterator[tuple[Draft, ...]]:
        """The rows as one matrix."""
        whole_products()
        (a,), (b,) = tensors(request, (0,), (DType.FLOAT,)), tensors(request, (1,), BYTES)
        y, inputs = output(request, (DType.FLOAT,)), request.node.inputs
        if len(b.sizes) != 2 or len(a.sizes) < 2 or not request.constant(1):
            raise Refused("the weights are no constant matrix")
        rows, count, columns = math.prod(a.sizes[:-1]), *b.sizes
        scales = values(request, 2).astype(np.float32).reshape(-1)
        zero = zero_of(request, 3) if len(inputs) > 3 and inputs[3] else 0
        zero -= 128 if b.dtype is DType.UINT8 else 0
        operands = [
            Operand(SRC, (WORK, 0), Memory((rows, count), DType.UINT8)),
            signed(request, 1, Tensor(DType.UINT8, (rows, count)), Memory(b.sizes, DType.INT8), True),
            Operand(ATTR_SCALES | SRC, (LIVE, 0), Memory(_ONE, DType.FLOAT)),
            Operand(ATTR_ZERO_POINTS | SRC, (LIVE, 2), Memory(_ONE, DType.INT32)),
            _value_operand(ATTR_SCALES | WEIGHTS, scales, DType.FLOAT),
        ]
        zeros = [(SRC, 0)]
        if zero:
            operands.append(_value_operand(ATTR_ZERO_POINTS | WEIGHTS, zero, DType.INT32))
            zeros.append((WEIGHTS, 0))
        if len(inputs) > 4 and inputs[4]:
            operands.append(Operand(BIAS, ("in", 4), Memory((1, columns), DType.FLOAT)))
        operands.append(Operand(DST, ("out", 0), Memory((rows, columns), y.dtype)))
        masks = ((SRC, 0), (WEIGHTS, 2 if scales.size > 1 else 0))
        attributes = Attributes(scales=masks, zero_points=tuple(zeros))
        yield _quantised(a, (rows, count), (WORK, 0)), Draft("matmul", tuple(operands), attributes=attributes)


def _value_operand(argument: int, value: Any, dtype: DType) -> Operand:
    flat = np.ascontiguousarray(value, dtype.numpy).reshape(-1)
    return Operand(argument, ("given", argument), Memory(flat.shape, dtype), value=flat.tobytes())

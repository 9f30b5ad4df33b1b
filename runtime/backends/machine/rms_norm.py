"""RMSNormalization, and SkipSimplifiedLayerNormalization of com.microsoft, in float32."""

from __future__ import annotations

import math
from enum import IntEnum

import numpy as np

from ....ops import DType, Tensor
from ...compile.kernel import Call, Choice, Declined, KernelArgs, KernelRequest, Listed, listed, tensors
from ...ir.graph import Node
from .blobs import Loaded, loaded
from .blocks import Chunked, RmsNorm, words
from .call import MachineCall, address, code_for, parallel

ALONE = 16_000  # numbers below which a second thread is not woken
CHUNKS = 4  # of each thread


class RmsNormalization(Listed):
    """Rows that are read once from memory, and once more from the first cache."""

    name = "machine.rms_norm"
    operators = listed("RMSNormalization com.microsoft::SkipSimplifiedLayerNormalization")

    def select(self, request: KernelRequest) -> Choice | Declined:
        code = code_for(request)
        if isinstance(code, str):
            return Declined(code)
        inputs = tensors([t for t in request.inputs if t is not None])
        if inputs is None or any(not t.static or t.dtype is not DType.FLOAT for t in inputs):
            return Declined("an operand is not float32 of known size")
        x, node = inputs[0], request.node
        first = _first(node, x)
        if not 0 <= first < len(x.sizes) or not x.elements:
            return Declined("nothing to normalise")
        width = math.prod(x.sizes[first:])
        if _skips(node):
            skip, scale = inputs[1:3]
            if not node.outputs[0] or any(node.outputs[1:3]):
                return Declined("means or deviations are wanted, or nothing is normalised")
            if skip.sizes != x.sizes and (skip.sizes[-2:] != x.sizes[-2:] or math.prod(skip.sizes[:-2]) != 1):
                return Declined("the skipped rows are others")
            if len(inputs) > 3 and inputs[3].elements != width:
                return Declined("a bias that is not one row")
        else:
            scale = inputs[1]
            if {**node.record.attrs, **node.attrs}["stash_type"] != DType.FLOAT.onnx:
                return Declined("a first stage in another type")
        if scale.elements != width or scale.sizes != x.sizes[len(x.sizes) - len(scale.sizes) :]:
            return Declined("the scale is not one row")
        return Choice(self.name, {"code": code.tier.name})

    def prepare(self, args: KernelArgs) -> Call:
        code, node = loaded(), args.node
        assert isinstance(code, Loaded), code
        known = args.request.inputs[0]
        assert isinstance(known, Tensor)
        x, (y, *_, total) = args.inputs[0], (*args.outputs, None, None, None, None)[:4]
        assert x is not None and y is not None
        width = math.prod(known.sizes[_first(node, known) :])
        rows, skips = x.size // width, _skips(node)
        count = args.request.target.threads if x.size > ALONE else 1
        chunk = max(1, -(-rows // (CHUNKS * count))) if count > 1 else rows
        operands = [RmsNorm.X, RmsNorm.SKIP, RmsNorm.SCALE, RmsNorm.BIAS] if skips else [RmsNorm.X, RmsNorm.SCALE]
        places = {("in", i): word for i, word in enumerate(operands)} | {("out", 0): RmsNorm.Y, ("out", 3): RmsNorm.SUM}
        epsilon = np.float32({**node.record.attrs, **node.attrs}["epsilon"])
        skip = args.inputs[1] if skips else None
        values: dict[IntEnum, int] = {
            Chunked.CHUNKS: -(-rows // chunk), Chunked.THREADS: count,
            Chunked.PARALLEL: parallel() if count > 1 else 0, RmsNorm.Y: address(y), RmsNorm.SUM: address(total),
            RmsNorm.ROWS: rows, RmsNorm.WIDTH: width, RmsNorm.SKIP_ROWS: 1 if skip is None else skip.size // width,
            RmsNorm.EPSILON: int(epsilon.view(np.uint32)), RmsNorm.CHUNK: chunk,
        }  # fmt: skip
        values |= {word: address(array) for word, array in zip(operands, args.inputs, strict=False)}
        return MachineCall(code.functions["rms_norm"], words(values), places, count, short=x.size < 8 * ALONE)


def _skips(node: Node) -> bool:
    return node.domain == "com.microsoft"


def _first(node: Node, x: Tensor) -> int:
    """The first axis that is normalised over."""
    axis = -1 if _skips(node) else int({**node.record.attrs, **node.attrs}["axis"])
    return axis + len(x.sizes) if axis < 0 else axis

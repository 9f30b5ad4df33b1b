"""Normalisation in training: forward with the statistics that the gradient reads, and the gradients.

https://oneapi-src.github.io/oneDNN/dev_guide_batch_normalization.html,
https://oneapi-src.github.io/oneDNN/dev_guide_layer_normalization.html
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ....ops import DType, Tensor
from ...compile.kernel import Call, KernelArgs, KernelRequest
from .api import DIFF_DST, DIFF_SCALE, DIFF_SHIFT, DIFF_SRC, DST, MEAN, SCALE, SHIFT, SRC, VARIANCE, Refused
from .conv_grads import Training
from .elementwise_grads import Overwriting
from .invalid import keeping_flag
from .kernel import Calls, OneDnn, channels_last, floats
from .memory import Memory
from .postops import Link, alone, chain
from .primitive import Draft, Operand

USE_BOTH = 2 | 4  # scale and shift


def _float32(request: KernelRequest, *at: int) -> None:
    """Refused where one of these inputs is not in float32, as oneDNN keeps statistics and scales."""
    for i in at:
        operand = request.inputs[i]
        if not isinstance(operand, Tensor) or operand.dtype is not DType.FLOAT:
            raise Refused(f"{operand} is not in float32")


def _images(x: Tensor) -> tuple[str, ...]:
    if len(x.sizes) < 2:
        raise Refused("there are no channels")
    return tuple(dict.fromkeys((x.layout, channels_last(len(x.sizes)), "")))


class BatchNormTrain(Training):
    """`mezzo.BatchNormalizationTrain`; the running statistics follow in NumPy, a few numbers per channel."""

    name = "onednn.batch_norm_train"
    ops = frozenset({"BatchNormalizationTrain"})

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """Yield drafts in the layout of the input first."""
        link = alone(links)
        (x,) = floats(request, link.operands[:1])
        _float32(request, 1, 2, 3, 4)
        wanted = request.node.wanted
        if len(wanted) < 5 or not all(wanted[i] for i in (0, 3, 4)):
            raise Refused("one of its results is not asked for")
        channel = Memory((x.sizes[1],), DType.FLOAT)
        numbers = (
            Operand(SCALE, ("in", 1), channel),
            Operand(SHIFT, ("in", 2), channel),
            Operand(MEAN, ("out", 3), channel),
            Operand(VARIANCE, ("out", 4), channel),
        )
        for layout in _images(x):
            image = Memory(x.sizes, x.dtype, layout)
            ends = Operand(SRC, ("in", 0), image, layout), Operand(DST, ("out", 0), image, layout)
            yield Draft("batch_normalization_training", (*ends, *numbers), (link.attr("epsilon"), USE_BOTH))

    def prepare(self, args: KernelArgs) -> Call:
        """The primitive, and the running statistics after it."""
        call, kept = super().prepare(args), float(chain(args.node)[0].attr("momentum"))
        triples = [
            (old, new, out)
            for old, new, out in zip(args.inputs[3:5], args.outputs[3:5], args.outputs[1:3], strict=True)
            if out is not None
        ]
        running = keeping_flag(_Running(triples, kept), args.request.target)
        return Calls([call, running]).__call__


class _Running:
    """Running means of the old statistics and those of the batch."""

    def __init__(self, triples: list[tuple[Any, Any, Any]], kept: float) -> None:
        self._triples, self._kept = triples, kept
        self._share = [np.empty_like(out) for *_, out in triples]

    def __call__(self) -> None:
        for (old, new, out), share in zip(self._triples, self._share, strict=True):
            np.multiply(new, 1 - self._kept, out=share, casting="unsafe")
            np.multiply(old, self._kept, out=out, casting="unsafe")
            np.add(out, share, out=out)


class BatchNormGrad(Overwriting):
    """`mezzo.BatchNormalizationGrad`."""

    name = "onednn.batch_norm_grad"
    ops = frozenset({"BatchNormalizationGrad"})

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """Yield drafts in the layout of the forward input first."""
        link = alone(links)
        dy, x = floats(request, link.operands[:2])
        _float32(request, 2, 3, 4)
        _all_wanted(request)
        channel = Memory((x.sizes[1],), DType.FLOAT)
        numbers = (
            Operand(SCALE, ("in", 2), channel),
            Operand(MEAN, ("in", 3), channel),
            Operand(VARIANCE, ("in", 4), channel),
            Operand(DIFF_SCALE, ("out", 1), channel),
            Operand(DIFF_SHIFT, ("out", 2), channel),
        )
        if dy.dtype is not x.dtype:
            raise Refused(f"the gradient is {dy.dtype}, the value {x.dtype}")
        for layout in dict.fromkeys((x.layout, dy.layout, *_images(x))):
            image = Memory(x.sizes, x.dtype, layout)
            images = (
                Operand(DIFF_DST, ("in", 0), image, layout),
                Operand(SRC, ("in", 1), image, layout),
                Operand(DIFF_SRC, ("out", 0), image, layout),
            )
            yield Draft("batch_normalization_backward", (*images, *numbers), (link.attr("epsilon"), USE_BOTH))


class LayerNormTrain(OneDnn):
    """LayerNormalization with its statistics."""

    name = "onednn.layer_norm_train"
    ops = frozenset({"LayerNormalization"})
    remembers = True

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """Yield the draft of a matrix whose rows are normalised; the variance is written to the memory of its inverse
        root."""
        link = alone(links)
        (x,) = floats(request, link.operands[:1])
        if len(request.node.outputs) != 3 or not all(request.node.outputs) or link.attr("stash_type") != 1:
            raise Refused("statistics are not requested, or in another type than float32")
        if len(link.operands) != 3:
            raise Refused("there is no bias")
        _float32(request, 1, 2)
        matrix, row = _matrix(x, link.attr("axis"))
        column = Memory((matrix.dims[1],), DType.FLOAT)
        if any(isinstance(t, Tensor) and t.elements != matrix.dims[1] for t in request.inputs[1:]):
            raise Refused("the scale is spread over the columns")
        operands = (
            Operand(SRC, ("in", 0), matrix),
            Operand(SCALE, ("in", 1), column),
            Operand(SHIFT, ("in", 2), column),
            Operand(DST, ("out", 0), matrix),
            Operand(MEAN, ("out", 1), row),
            Operand(VARIANCE, ("out", 2), row),
        )
        yield Draft("layer_normalization_forward", operands, (link.attr("epsilon"), USE_BOTH))

    def prepare(self, args: KernelArgs) -> Call:
        """The primitive, and the inverse of the deviation in place of the variance."""
        call, spread = super().prepare(args), args.outputs[2]
        assert spread is not None
        epsilon = np.float32(chain(args.node)[0].attr("epsilon"))
        one = np.float32(1)

        def inverse() -> None:
            np.add(spread, epsilon, out=spread)
            np.sqrt(spread, out=spread)
            np.divide(one, spread, out=spread)

        return Calls([call, keeping_flag(inverse, args.request.target)]).__call__


class LayerNormGrad(Overwriting):
    """`mezzo.LayerNormalizationGrad`: the variance for oneDNN is computed from the inverse deviation, without an
    epsilon."""

    name = "onednn.layer_norm_grad"
    ops = frozenset({"LayerNormalizationGrad"})

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """Yield the draft of a matrix whose rows are normalised."""
        link = alone(links)
        dy, x = floats(request, link.operands[:2])
        _float32(request, 2, 3, 4)
        _all_wanted(request)
        if dy.dtype is not x.dtype:
            raise Refused(f"the gradient is {dy.dtype}, the value {x.dtype}")
        matrix, row = _matrix(x, link.attr("axis"))
        column = Memory((matrix.dims[1],), DType.FLOAT)
        scale = request.inputs[2]
        if not isinstance(scale, Tensor) or scale.elements != matrix.dims[1]:
            raise Refused("the scale is spread over the columns")
        operands = (
            Operand(DIFF_DST, ("in", 0), matrix),
            Operand(SRC, ("in", 1), matrix),
            Operand(SCALE, ("in", 2), column),
            Operand(SHIFT, ("in", 2), column),  # it is asked for, and not read
            Operand(MEAN, ("in", 3), row),
            Operand(VARIANCE, (VARIANCES, 0), row),
            Operand(DIFF_SRC, ("out", 0), matrix),
            Operand(DIFF_SCALE, ("out", 1), column),
            Operand(DIFF_SHIFT, ("out", 2), column),
        )
        yield Draft("layer_normalization_backward", operands, (0.0, USE_BOTH))

    def prepare(self, args: KernelArgs) -> Call:
        """The variance, then the primitive."""
        inverse = args.inputs[4]
        assert inverse is not None
        variance = np.empty(inverse.size, np.float32)
        flat = inverse.reshape(-1)
        calls = self._bound(args, {(VARIANCES, 0): variance})

        def undo() -> None:
            np.multiply(flat, flat, out=variance)
            np.reciprocal(variance, out=variance)

        return Calls([keeping_flag(undo, args.request.target), *calls]).__call__


VARIANCES = "variances"  # ("variances", 0): made from what is at hand


def _matrix(x: Tensor, axis: int) -> tuple[Memory, Memory]:
    """Return the normalised tensor as a matrix of rows, and one number for each row."""
    at = axis % len(x.sizes)
    rows, columns = max(math.prod(x.sizes[:at]), 1), math.prod(x.sizes[at:])
    return Memory((rows, columns), x.dtype), Memory((rows,), DType.FLOAT)


def _all_wanted(request: KernelRequest) -> None:
    if len(request.outputs) != 3:
        raise Refused("one of the gradients is not requested")

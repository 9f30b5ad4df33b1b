"""Resize of images, where oneDNN reads exactly the elements that ONNX does.

https://oneapi-src.github.io/oneDNN/dev_guide_resampling.html. oneDNN knows one rule (half a pixel, nearest away from
zero), ONNX many; which elements go into each result, and how much of them, is worked out by both and compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ....ops import Tensor
from ....ops.core.fused import ABSENT
from ....ops.layouts import channels_last
from ....ops.nn.resize import ROUNDINGS, Axis, Vector, coordinates, filters, resized
from ...compile.kernel import KernelRequest
from .api import DST, SRC, Refused
from .frames import as_it_is, images
from .kernel import OneDnn, floats, result
from .memory import Memory
from .postops import Link, post_ops
from .primitive import Attributes, Draft, Operand

EXACT = 1e-6  # weights of linear interpolation that are taken for equal


class Resize(OneDnn):
    """Resize by the nearest element or linearly, of one to three spatial axes."""

    name = "onednn.resize"
    ops = frozenset({"Resize"})
    remembers = True

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """Yield drafts in the layout of the input first, then channels-last."""
        link, y = links[0], result(request)
        (x,) = floats(request, link.operands[:1])
        if not 3 <= len(x.sizes) <= 5 or x.sizes[:2] != y.sizes[:2]:
            raise Refused("other axes than those of an image are resized")
        mode = link.attr("mode")
        for axis in _axes(request, link, x):
            if axis.out != y.sizes[axis.axis] or not _same(axis, link, mode):
                raise Refused(f"oneDNN has other coordinates for {axis.size} to {axis.out} elements")
        for layout in images(x.sizes, x.layout, channels_last(len(x.sizes)), ""):
            source = Operand(SRC, ("in", link.operands[0]), Memory(x.sizes, x.dtype, layout), layout)
            target = Operand(DST, ("out", 0), Memory(y.sizes, y.dtype, layout), layout)
            post = post_ops(request, links[1:], as_it_is(y.sizes, layout))
            yield Draft("resampling_forward", (source, target), (f"resampling_{mode}",), Attributes(post))


def _axes(request: KernelRequest, link: Link, x: Tensor) -> list[Axis]:
    """The axes that change, from scales or sizes that are known."""
    if link.attr("mode") not in ("nearest", "linear") or link.attr("antialias"):
        raise Refused(f"mode {link.attr('mode')}, antialias {link.attr('antialias')}")
    transform = link.attr("coordinate_transformation_mode")
    if transform == "tf_crop_and_resize":
        raise Refused("a part of the image is taken")
    policy, axes = link.attr("keep_aspect_ratio_policy"), link.attr("axes")
    resized_axes = resized(x.sizes, axes, _list(request, link, 2), _list(request, link, 3), None, policy, transform)
    return [a for a in resized_axes if a.axis > 1]


def _list(request: KernelRequest, link: Link, i: int) -> list[Any] | None:
    """Scales or sizes, if they are given."""
    known = request.inputs[link.operand(i)] if link.operand(i) != ABSENT else None
    if not isinstance(known, Tensor) or not known.elements:
        return None
    if known.value is None:
        raise Refused("scales or sizes are not known")
    numbers: list[Any] = np.asarray(known.value).ravel().tolist()
    return numbers


def _same(x: Axis, link: Link, mode: str) -> bool:
    """True if both read the same elements along an axis."""
    at = coordinates(x, link.attr("coordinate_transformation_mode"))
    if mode == "nearest":
        theirs = ROUNDINGS[link.attr("nearest_mode")](at).clip(0, x.size - 1)
        return np.array_equal(theirs, _nearest(x))
    unchanged = x.size == x.out and np.array_equal(at, np.arange(x.size))  # then ONNX leaves the axis as it is
    wanted = np.eye(x.size) if unchanged else filters(x, at, mode, 0.0, link.attr("exclude_outside"), 0)
    return bool(abs(wanted - _linear(x)).max() <= EXACT)


def _centres(x: Axis) -> Vector:
    """Return the centres of the new elements in the coordinates of the old, as oneDNN computes them in float32."""
    half = np.float32(0.5)
    return (np.arange(x.out, dtype=np.float32) + half) * np.float32(x.size) / np.float32(x.out) - half


def _nearest(x: Axis) -> Vector:
    at = _centres(x)
    nearest: Vector = (np.sign(at) * np.floor(abs(at) + np.float32(0.5))).clip(0, x.size - 1)
    return nearest


def _linear(x: Axis) -> Vector:
    """The matrix [out, size] of the weights."""
    at, rows = _centres(x), np.arange(x.out)
    left, right = np.floor(at).clip(0, None), np.ceil(at).clip(None, x.size - 1)
    part = abs(at - left)
    matrix = np.zeros((x.out, x.size))
    np.add.at(matrix, (rows, left.astype(np.int64)), 1 - part)
    np.add.at(matrix, (rows, right.astype(np.int64)), part)
    return matrix

"""Convolution, Relu and max pooling in strips: only a few rows of the convolution exist at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....ops import DType, Tensor
from ...compile.kernel import Call, Choice, Declined, KernelArgs, KernelRequest, Listed, listed
from ...ir.graph import Node
from ...memory.liveness import aligned

PATCHES = 256 << 10  # bytes of patches at a time: they stay in a core's second-level cache


class ConvReluPool(Listed):
    """Tiles of pooled pixels: patches of the input, one matrix product, the maximum; all in the workspace."""

    name = "numpy.conv_relu_pool"
    operators = listed("mezzo::ConvReluPool")

    def select(self, request: KernelRequest) -> Choice | Declined:
        node, inputs, outputs = request.node, request.inputs, request.outputs
        x, w, y = inputs[0], inputs[1], outputs[0]
        if not all(isinstance(t, Tensor) and t.static and t.dtype is DType.FLOAT for t in (x, w, y)):
            return Declined("an operand is not float32 of known sizes")
        assert isinstance(w, Tensor) and isinstance(y, Tensor)
        tile = _tile(node, w.sizes, y.sizes)
        depth, pixels = int(np.prod(w.sizes[1:])), _pixels(node, tile)
        workspace = aligned(depth * pixels * 4) + aligned(w.sizes[0] * pixels * 4)
        return Choice(self.name, {"tile": tile}, workspace=workspace)

    def prepare(self, args: KernelArgs) -> Call:
        x, w, b = (*args.inputs, None)[:3]
        (y,) = args.outputs
        assert x is not None and w is not None and y is not None
        return _Strips(args.node, args.choice.params["tile"], x, w, b, y, args).run


def _attrs(node: Node) -> dict[str, Any]:
    return {**node.record.attrs, **node.attrs}


def _tile(node: Node, weights: tuple[int, ...], pooled: tuple[int, ...]) -> tuple[int, int]:
    """Rows and columns of pooled pixels at a time: a row if its patches fit, else a part of one."""
    depth, columns = int(np.prod(weights[1:])) * 4, pooled[3]
    while columns > 1 and depth * _pixels(node, (1, columns)) > PATCHES:
        columns = -(-columns // 2)
    rows = 1
    while rows < pooled[2] and columns == pooled[3] and depth * _pixels(node, (rows + 1, columns)) <= PATCHES:
        rows += 1
    return rows, columns


def _pixels(node: Node, tile: tuple[int, int]) -> int:
    """Pixels of the convolution below a tile of pooled ones."""
    a = _attrs(node)
    spans = [(n - 1) * s + k for n, s, k in zip(tile, a["pool_strides"], a["pool_shape"], strict=True)]
    return int(spans[0] * spans[1])


class _Strips:
    def __init__(self, node: Node, tile: tuple[int, int], x: Any, w: Any, b: Any, y: Any, args: KernelArgs) -> None:
        a = _attrs(node)
        self.x, self.y, self.tile = x, y, tile
        self.pads, self.strides = a["pads"][:2], a["strides"]
        self.window, self.hop = a["pool_shape"], a["pool_strides"]
        self.kernel = w.shape[2:]
        self.weights = w.reshape(len(w), -1)
        self.bias = None if b is None else b.reshape(-1, 1)
        pixels = _pixels(node, tile)
        self.patches = args.scratch(DType.FLOAT, (self.weights.shape[1] * pixels,))
        self.sums = args.scratch(DType.FLOAT, (len(w) * pixels,))

    def run(self) -> None:
        high, wide = self.y.shape[2:]
        for image, pooled in zip(self.x, self.y, strict=True):
            for top in range(0, high, self.tile[0]):
                for left in range(0, wide, self.tile[1]):
                    part = pooled[:, top : top + self.tile[0], left : left + self.tile[1]]
                    self._tile(image, part, top * self.hop[0], left * self.hop[1])

    def _tile(self, image: Any, pooled: Any, top: int, left: int) -> None:
        """One tile: `pooled` are its pixels, (top, left) the first pixel of the convolution below it."""
        rows, columns = ((n - 1) * s + k for n, s, k in zip(pooled.shape[1:], self.hop, self.window, strict=True))
        patches = self.patches[: self.weights.shape[1] * rows * columns]
        taps = patches.reshape(len(image), *self.kernel, rows, columns)
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                self._tap(image, taps[:, i, j], top * self.strides[0] + i, left * self.strides[1] + j)
        sums = self.sums[: len(self.weights) * rows * columns].reshape(len(self.weights), rows * columns)
        np.matmul(self.weights, patches.reshape(self.weights.shape[1], -1), out=sums)
        if self.bias is not None:
            np.add(sums, self.bias, out=sums)
        below = sums.reshape(len(sums), rows, columns)
        for i in range(self.window[0]):
            for j in range(self.window[1]):
                seen = below[:, i : i + rows - self.window[0] + 1 : self.hop[0]]
                seen = seen[:, :, j : j + columns - self.window[1] + 1 : self.hop[1]]
                np.copyto(pooled, seen) if i == j == 0 else np.maximum(pooled, seen, out=pooled)
        np.maximum(pooled, 0, out=pooled)  # the largest of the rectified is the rectified largest

    def _tap(self, image: Any, tap: Any, top: int, left: int) -> None:
        """The pixels that one weight meets; outside of the image they are zero."""
        (y0, y1, r0, r1), (x0, x1, c0, c1) = (
            _inside(n, count, start - pad, step)
            for n, count, start, pad, step in zip(
                image.shape[1:], tap.shape[1:], (top, left), self.pads, self.strides, strict=True
            )
        )
        if (r0, r1, c0, c1) != (0, tap.shape[1], 0, tap.shape[2]):
            tap[...] = 0
        np.copyto(tap[:, r0:r1, c0:c1], image[:, y0 : y1 : self.strides[0], x0 : x1 : self.strides[1]])


def _inside(size: int, count: int, start: int, step: int) -> tuple[int, int, int, int]:
    """Return the range, within `size`, of `count` positions from `start` on, and their indices."""
    first = max(0, -(start // step)) if start < 0 else 0
    last = min(count, max(first, (size - 1 - start) // step + 1))
    return start + first * step, start + (last - 1) * step + 1 if last > first else start + first * step, first, last

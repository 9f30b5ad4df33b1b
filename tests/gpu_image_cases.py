"""Cases of the kernels for images, determinants, transforms and linear attention: more than a block has, odd sizes,
repeated places."""

from __future__ import annotations

import numpy as np

from mezzo.ops.types import f32

from .gpu_cases import Case

_RNG = np.random.default_rng(11)
_SINGULAR = np.array([[1, 2, 3], [2, 4, 6], [0, 1, 1]], np.float32)
_ROIS = np.array([[0, -3, 2, 9, 4], [1, 2.5, 0.5, 30, 30]], np.float32)
IMAGES = [
    Case("AffineGrid", [f32(2, 3, 4), np.array([2, 1, 5, 1, 7])], {"align_corners": 1}),
    Case(
        "Col2Im",
        [f32(2, 18, 96), np.array([14, 11]), np.array([3, 2])],
        {"strides": [2, 1], "dilations": [1, 2], "pads": [1, 2, 2, 1]},
    ),
    Case("MaxUnpool", [f32(1, 2, 20), _RNG.integers(-80, 60, (1, 2, 20))], {"kernel_shape": [3], "strides": [2]}),
    Case(
        "MaxUnpool",
        [f32(1, 1, 3, 3), _RNG.integers(0, 36, (1, 1, 3, 3)), np.array([1, 2, 4, 9])],
        {"kernel_shape": [2, 2], "strides": [2, 2]},
    ),
    Case("MaxRoiPool", [f32(2, 3, 9, 11), _ROIS], {"pooled_shape": [4, 3], "spatial_scale": 0.75}),
    Case(
        "DeformConv",
        [f32(2, 6, 9, 8), f32(10, 3, 3, 3), f32(2, 54, 9, 8), f32(10), f32(2, 27, 9, 8)],
        {"group": 2, "offset_group": 3, "pads": [1, 1, 1, 1]},
    ),
    Case("DeformConv", [f32(1, 2, 5, 4, 3), f32(3, 2, 2, 1, 2), f32(1, 12, 4, 4, 2)]),
]
DETERMINANT = [
    Case("Det", [f32(2, 41, 41)]),
    Case("Det", [_SINGULAR]),
    Case("Det", [np.stack([np.eye(17)[::-1], np.diag(np.arange(17))]).astype(np.float32)]),
    Case("Det", [f32(3, 0, 0)]),
]
FOURIER = [
    Case("DFT", [f32(3, 37, 5, 2), np.array(50), np.array(1)]),
    Case("DFT", [f32(3, 37, 5, 2), np.array(20), np.array(1)], {"inverse": 1, "onesided": 1}),
    Case("DFT", [f32(2, 300, 1), np.array(256)], {"onesided": 1}),
    Case("STFT", [f32(2, 700, 1), np.array(64), f32(200)]),
    Case("STFT", [f32(1, 90, 2), np.array(7), None, np.array(33)], {"onesided": 0}),
]
_HEADS = {"q_num_heads": 6, "kv_num_heads": 3}
_FADES, _LEARNS = -_RNG.random((3, 5, 15), np.float32), _RNG.random((3, 5, 1), np.float32) / 9
LINEAR = [
    Case("LinearAttention", [f32(2, 7, 30), f32(2, 7, 15), f32(2, 7, 300)], {**_HEADS, "update_rule": "linear"}, 2),
    Case(
        "LinearAttention",
        [f32(3, 5, 30), f32(3, 5, 15), f32(3, 5, 21), f32(3, 3, 5, 7), _FADES, _LEARNS],
        _HEADS,
        2,
    ),
    Case("LinearAttention", [f32(2, 1, 6), f32(2, 1, 3), f32(2, 1, 9)], {**_HEADS, "update_rule": "linear"}),
]

"""Cases of the families that are written from templates: sizes that take each of their forms, odd sizes, layouts."""

from __future__ import annotations

from typing import Any

import numpy as np

from mezzo.ops import DType, Tensor
from mezzo.ops.types import f32, i64

from .gpu_cases import Case, half, truth

NHWC = "acdb"
_RNG = np.random.default_rng(7)
_ODD = np.array([[-np.inf] * 3, [1, np.inf, 2], [np.nan, 1, 2], [-np.inf, 3, -np.inf]], np.float32)
_LEVEL = _RNG.uniform(0.5, 2, 17).astype(np.float32)


def whole(*values: int) -> Any:
    return np.array(values, np.int64)


def places(size: int, *dims: int) -> Any:
    """Indices of an axis, some of them counted from its end."""
    return _RNG.integers(-size, size, dims)


_ROWS = [((3, 129), 1), ((7, 1500), 1), ((2, 40, 70), 1), ((2, 64, 5, 7), 1), ((2, 33000), 1), ((2, 5, 40000), 1),
         ((1100, 40), 1), ((5, 8, 32), 1)]  # fmt: skip
SOFTMAX = [
    *(Case(name, [f32(*dims)], {"axis": axis}) for dims, axis in _ROWS for name in ("Softmax", "LogSoftmax")),
    *(Case(name, [x], {"axis": a}) for name in ("Softmax", "LogSoftmax") for x, a in ((_ODD, 1), (_ODD.T.copy(), 0))),
    Case("Softmax", [np.tile(_ODD, (1, 15000))]),
    *(Case(f"{n}Grad", [f32(2, 40, 70)] * 2, {"axis": a}) for n, a in (("Softmax", 1), ("LogSoftmax", 2))),
]
NORMALISATION = [
    *(Case("LayerNormalization", [f32(3, n), f32(n), f32(n)], {}, outputs) for n, outputs in ((768, 1), (129, 3))),
    Case("LayerNormalization", [f32(2, 40000), f32(40000)], {}, 2),
    Case("LayerNormalization", [f32(5, 7, 33), f32(7, 1), f32(33)], {"axis": 1}),
    Case("RMSNormalization", [f32(3, 300), f32(300)]),
    Case("GroupNormalization", [f32(2, 32, 9, 9), f32(32), f32(32)], {"num_groups": 8}),
    Case("InstanceNormalization", [f32(2, 3, 50, 41), f32(3), f32(3)]),
    Case("MeanVarianceNormalization", [f32(3, 40, 17, 5)]),
    *(Case("LpNormalization", [f32(3, 300, 40)], {"axis": a, "p": p}) for a, p in ((1, 2), (2, 1))),
]
BATCH = [
    Case("BatchNormalization", [f32(2, 17, 5, 3), f32(17), f32(17), f32(17), _LEVEL], layouts=[layout])
    for layout in ("", NHWC)
]
_IMAGES = [(2, 17, 5, 3), (4, 64, 9, 11), (300, 5), (3, 2, 70, 80), (40, 32, 16, 16)]
BATCH_TRAINING = [
    *(
        Case("BatchNormalizationTrain", [f32(*d), *[f32(d[1])] * 3, np.full(d[1], 0.7, np.float32)], {}, 5, layouts=[a])
        for d in _IMAGES for a in ("", NHWC)[: len(d) // 2]
    ),
    *(
        Case("BatchNormalizationGrad", [f32(*d), f32(*d), f32(d[1]), f32(d[1]), np.linspace(0.5, 2, d[1], dtype="f")],
             {"epsilon": 0.01}, 3, layouts=[a, a])
        for d in _IMAGES[::2] for a in ("", NHWC)[: len(d) // 2]
    ),
]  # fmt: skip
LRN = [Case("LRN", [f32(2, 20, 3, 3)], {"size": 5}, layouts=[layout]) for layout in ("", NHWC)]
COPY = [
    *(
        Case("Transpose", [f32(*dims)], {"perm": perm})
        for dims, perm in (((33, 65), (1, 0)), ((2, 40, 3, 70), (3, 1, 2, 0)))
    ),
    *(Case("Transpose", [f32(2, 12, 5, 16)], {"perm": perm}, layouts=[NHWC]) for perm in ((0, 2, 3, 1), (0, 2, 1, 3))),
    *(
        Case("Reorder", [x(2, 40, 9, 11)], {"layout": to}, layouts=[of, to])
        for x in (f32, half)
        for of, to in (("", NHWC), (NHWC, ""), (NHWC, "acbd"))
    ),
    Case("Concat", [f32(3, 64, 5), f32(3, 16, 5), f32(3, 7, 5)], {"axis": 1}),
    Case("Concat", [f32(16, 4), f32(32, 4)], {"axis": 0}),
    Case("Concat", [f32(2, 8, 3, 5), f32(2, 40, 3, 5)], {"axis": 1}, layouts=[NHWC, ""]),
    Case("Split", [f32(2, 40, 9, 11)], {"axis": 1, "num_outputs": 2}, 2, layouts=[NHWC]),
    Case("Split", [half(4, 96)], {"axis": 1, "num_outputs": 3}, 3),
    Case("Slice", [f32(5, 64, 7), whole(1, 60, 0), whole(4, 2, 7), whole(0, 1, 2), whole(1, -7, 2)]),
    Case("Squeeze", [f32(2, 8, 1, 5), whole(2)], layouts=[NHWC]),
    Case("Reshape", [f32(2, 8, 3, 5), whole(2, -1)], layouts=[NHWC]),
    Case("Tile", [f32(4, 8), whole(3, 5)]),
]
PAD = [
    *(Case("Pad", [f32(7, 9), whole(-2, 12, 15, -3)], {"mode": m}) for m in ("reflect", "edge", "wrap", "constant")),
    *(Case("Pad", [f32(1, 9), whole(2, 12, 3, 3)], {"mode": m}) for m in ("reflect", "edge", "wrap")),
    *(
        Case("Pad", [f32(2, 8, 5, 3), whole(0, 0, 1, 2, 0, 0, 3, -1)], {"mode": m}, layouts=[NHWC])
        for m in ("constant", "edge")
    ),
]
_THREES = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
POOL = [
    *(Case(op, [f32(2, 5, 14, 15)], _THREES, layouts=[a]) for op in ("MaxPool", "AveragePool") for a in ("", NHWC)),
    *(
        Case(op, [x(1, 32, 66, 66)], {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}, layouts=[NHWC])
        for op, x in (("MaxPool", half), ("AveragePool", f32))  # several channels in a thread
    ),
    Case("MaxPool", [f32(2, 5, 14, 15)], _THREES, 2, layouts=[NHWC]),
    Case("MaxPool", [f32(2, 5, 14, 15)], {"kernel_shape": [3, 2], "storage_order": 1, "dilations": [2, 3]}, 2),
]
_OVER = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
_SLOPES = (half(1, 32, 66, 66), _RNG.integers(0, 9, (1, 32, 66, 66)).astype(np.uint8), whole(1, 32, 66, 66))
POOL_GRADIENTS = [
    *(
        Case(f"{kind}PoolGrad", [f32(2, 5, 7, 8), *place, whole(2, 5, 14, 15)], _THREES, layouts=[a] * len(at))
        for kind, place in (("Max", [_RNG.integers(0, 9, (2, 5, 7, 8)).astype(np.uint8)]), ("Average", []))
        for a in ("", NHWC)
        for at in [[0, *place]]
    ),
    Case("MaxPoolGrad", _SLOPES, _OVER, layouts=[NHWC, NHWC]),  # several channels in a thread
    Case("AveragePoolGrad", [_SLOPES[0], _SLOPES[2]], {**_OVER, "count_include_pad": 1}, layouts=[NHWC]),
    Case(
        "MaxPoolGrad",
        [f32(2, 3, 4, 12), _RNG.integers(0, 6, (2, 3, 4, 12)).astype(np.uint8), whole(2, 3, 17, 13)],
        {"kernel_shape": [3, 2], "dilations": [2, 3], "strides": [4, 1], "pads": [0, 1, 0, 1]},
    ),
]
GLOBAL = [
    Case(f"Global{kind}Pool", [f32(2, c, 7, 7)], layouts=[layout])
    for kind, c, layout in (("Average", 64, ""), ("Average", 64, NHWC), ("Max", 5, NHWC), ("Average", 5, ""))
]
GATHER = [
    Case("Gather", [f32(50, 32), places(50, 3, 7)]),
    Case("Gather", [half(5, 50, 3), places(50, 3, 7).astype(np.int32)], {"axis": 1}),
    Case("Gather", [f32(8, 64), np.array(-2)]),
    Case("GatherElements", [f32(5, 9, 3), places(9, 5, 20, 3)], {"axis": 1}),
]
_PAIRS = np.stack([places(5, 40), places(9, 40)], 1)
_ADDED = {"reduction": "add"}
SCATTER = [
    *(Case("ScatterND", [f32(5, 9, 3), _PAIRS, f32(40, 3)], {"reduction": r}) for r in ("none", "add", "max")),
    Case("ScatterND", [i64(5, 9, 3), _PAIRS, i64(40, 3)], {"reduction": "mul"}),
    *(
        Case("ScatterElements", [f32(5, 9, 3), places(9, 4, 20, 3), f32(4, 20, 3)], {"axis": 1, "reduction": r})
        for r in ("none", "add")
    ),
    # more updates than a block sorts, most of them for one row
    Case("ScatterND", [f32(5, 9, 3), np.concatenate([_PAIRS] * 30 + [_PAIRS[:1]] * 900), f32(2100, 3)], _ADDED),
    Case("ScatterND", [i64(7), places(7, 3000, 1), i64(3000)], {"reduction": "max"}),
    Case("GatherGrad", [f32(2, 1500, 5), places(40, 1500), whole(2, 40, 5)], {"axis": 1}),
    Case("GatherGrad", [half(1200, 3), places(6000, 1200).astype(np.int32), whole(6000, 3)]),
]
_FEW = np.where(_RNG.random(2600) < 0.5, 3, _RNG.integers(-70, 71, 2600))  # 70 is no row
NORMS = [
    Case("TotalNorm", [f32(3, 9000), half(5), f32(0), f32(2, 8, 3, 5)], layouts=["", "", "", NHWC]),
    Case("TotalNorm", [f32(i % 5 + 1) for i in range(300)]),  # more than one launch takes
]
DYNAMIC = [Case("DynamicQuantizeLinear", [f32(n)], {}, 3) for n in (5000, 40001)]
ROWS = [
    Case("GatherGradRows", [f32(2600, 5), _FEW, whole(70, 5)], {}, 2),
    Case("GatherGradRows", [f32(2, 20, 3), places(5000, 2, 20).astype(np.int32), whole(5000, 3)], {}, 2),
]
GEMM = [
    Case("MatMul", [f32(70, 33), f32(33, 81)]),
    Case("MatMul", [f32(3, 1, 70, 33), f32(2, 33, 17)]),
    Case("MatMul", [i64(70, 33), i64(33, 81)]),
    Case("Gemm", [f32(33, 70), f32(81, 33), f32(81)], {"transA": 1, "transB": 1, "alpha": 0.5}),
]
CONV = [
    Case("Conv", [f32(2, 20, 9, 11), f32(36, 20, 3, 3), f32(36)], {"pads": [1, 1, 1, 1], "strides": [2, 1]}),
    *(
        Case("Conv", [f32(2, 20, 9, 11), f32(20, 1, 3, 3), f32(20)], {"pads": [1, 1, 1, 1], "group": 20}, layouts=[a])
        for a in ("", NHWC)
    ),
    Case("ConvTranspose", [f32(2, 20, 5, 6), f32(20, 17, 3, 3), f32(34)], {"strides": [2, 2], "group": 2}),
]
_TIES = _RNG.integers(-3, 4, (3, 70)).astype(np.float32)
_TIES[:, ::9], _TIES[:, ::13], _TIES[:, ::17] = np.nan, np.inf, -0.0
TOP_K = [
    *(Case("TopK", [_TIES, whole(33)], {"largest": way}, 2) for way in (0, 1)),
    Case("TopK", [f32(2, 5000), whole(7)], {}, 2),
    Case("TopK", [f32(1, 4500), whole(400)], {"largest": 0}, 2),
    Case("TopK", [f32(1, 2100, 2), whole(2000)], {"axis": 1}, 2),
]
_NEAR_ONE = _RNG.uniform(0.99, 1.01, (3, 3000)).astype(np.float32)
CUMULATED = [
    *(Case("CumProd", [_NEAR_ONE, np.array(1)], {"exclusive": x, "reverse": r}) for x, r in ((0, 0), (1, 0), (0, 1))),
    Case("CumSum", [i64(3, 3000), np.array(1)], {"exclusive": 1, "reverse": 1}),
    Case("CumSum", [f32(3, 300, 40), np.array(1)]),
]
PLACES = [
    *(Case(n, [_RNG.integers(0, 5, (3, 300, 40)).astype(np.float32)], {"axis": a, "select_last_index": last})
      for n in ("ArgMax", "ArgMin") for a, last in ((1, 0), (1, 1), (2, 0))),
    Case("ArgMax", [f32(2, 9000)], {"axis": 1}),
    Case("ArgMin", [_TIES], {"axis": 1}),
    Case("Hardmax", [_TIES]),
]  # fmt: skip
RESIZE = [
    Case("Resize", [x(2, 5, 14, 15), None, np.array([1, 1, 2, 0.7], np.float32)], {"mode": m}, layouts=[a])
    for m, x, a in (("nearest", f32, ""), ("linear", f32, NHWC), ("cubic", half, ""))
]
_LABELS, _FEW = _RNG.integers(0, 12, (9, 7)), np.arange(300) % 5 - 1
LOSSES = [
    *(
        Case(op, [f32(9, 12, 7), _LABELS, weights], {"reduction": r, "ignore_index": 4}, outputs)
        for op, outputs in (("NegativeLogLikelihoodLoss", 1), ("SoftmaxCrossEntropyLoss", 2))
        for r, weights in (("none", None), ("sum", f32(12)), ("mean", f32(12)))
    ),
    Case("SoftmaxCrossEntropyLoss", [f32(300, 5), _FEW.astype(np.int32)], {"ignore_index": -1}),
    Case("SoftmaxCrossEntropyLoss", [f32(3, 5000), np.array([0, 1, 4999])], {}, 2),
    Case("SoftmaxCrossEntropyLoss", [_ODD, np.array([0, 1, 2, 0])], {"reduction": "none"}, 2),
    *(Case(op, [f32(2, 3, 60, 50), _RNG.integers(0, 3, (2, 60, 50)), w], {}, n)  # more than one block adds
      for op, w, n in (("NegativeLogLikelihoodLoss", f32(3), 1), ("SoftmaxCrossEntropyLoss", None, 2))),
    *(Case("SoftmaxCrossEntropyGrad", [f32(9, 7) if r == "none" else f32(), f32(9, 12, 7), _LABELS, w],
           {"reduction": r, "ignore_index": 4})
      for r, w in (("none", f32(12)), ("sum", None), ("mean", f32(12)))),
    Case("SoftmaxCrossEntropyGrad", [f32(), f32(2, 3, 60, 50), _RNG.integers(0, 3, (2, 60, 50)), f32(3)], {}),
]  # fmt: skip
EINSUM = [
    Case("Einsum", [f32(2, 3, 20, 17), f32(2, 3, 33, 17)], {"equation": "bhid,bhjd->bhij"}),
    Case("Einsum", [half(2, 20, 3, 17), half(2, 33, 3, 17)], {"equation": "bihd,bjhd->bhij"}),
]
_SHARES = np.array([[0, 0.5, 1, 0.25, 1e-8] * 9], np.float32)
_TRAINS = np.array(True)
RANDOM = [
    *(Case("RandomUniform", [], {"shape": s, "low": -3.0, "high": 7.5, "dtype": d.onnx})
      for s, d in (((3, 7), DType.FLOAT), ((1030,), DType.DOUBLE), ((5,), DType.FLOAT16), ((9,), DType.BFLOAT16))),
    *(Case("RandomNormal", [], {"shape": s, "mean": 2.0, "scale": 0.3, "dtype": d.onnx})
      for s, d in (((2047,), DType.FLOAT), ((33, 63), DType.DOUBLE), ((7,), DType.FLOAT16), ((1,), DType.BFLOAT16))),
    Case("RandomNormalLike", [f32(40, 30)], {"seed": 1.5}),
    Case("RandomUniformLike", [i64(40, 30)], {"low": -9.0, "high": 9.0, "seed": 3.0}),
    *(Case("Bernoulli", [_SHARES.astype(t)], {"dtype": d.onnx})
      for t, d in ((np.float32, DType.BOOL), (np.float64, DType.INT64), (np.float16, DType.FLOAT16))),
    *(Case("Dropout", [t, r, _TRAINS], {"seed": 7}, n)
      for t, r, n in ((f32(3, 1025), np.float32(0.3), 2), (half(515), None, 1), (f32(2, 3), np.float64(1), 2),
                      (Tensor(DType.DOUBLE, (77,)), np.float16(0.1), 2))),
    Case("Dropout", [f32(40), np.float32(0.5), truth()], {}, 2),
    *(Case("Multinomial", [f32(*s)], {"sample_size": n, "dtype": d.onnx, "seed": 2.0})
      for s, n, d in (((3, 5), 41, DType.INT32), ((2, 1000), 7, DType.INT64), ((4, 1), 3, DType.INT32))),
    Case("Multinomial", [np.zeros((2, 4), np.float64)], {"sample_size": 1000}),
    Case("Multinomial", [np.full((2, 3), np.nan, np.float32)], {"sample_size": 9}),
]  # fmt: skip
TEMPLATES = {
    "gpu.softmax": SOFTMAX, "gpu.normalisation": NORMALISATION, "gpu.batch_normalisation": BATCH, "gpu.lrn": LRN,
    "gpu.copy": COPY, "gpu.pad": PAD, "gpu.pool": POOL, "gpu.global_pool": GLOBAL,
    "gpu.pool_gradients": POOL_GRADIENTS, "gpu.gather": GATHER,
    "gpu.scatter": SCATTER, "gpu.gather_rows": ROWS,
    "gpu.dynamic_quantise": DYNAMIC, "gpu.total_norm": NORMS, "gpu.gemm": GEMM, "gpu.conv": CONV, "gpu.top_k": TOP_K,
    "gpu.cumulated": CUMULATED, "gpu.places": PLACES, "gpu.resize": RESIZE, "gpu.einsum": EINSUM, "gpu.losses": LOSSES,
    "gpu.batch_training": BATCH_TRAINING,
    "gpu.random": RANDOM,
}  # fmt: skip

"""What each family of oneDNN's kernels must serve, in more shapes than the samples of the operators have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mezzo.ops import Sample
from mezzo.ops.types import f32

Cases = list[tuple[str, Sample]]

DOUBLED = np.array([1, 1, 2, 2], np.float32)
WINDOW = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
FLOOR = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
BOTH = {"direction": "bidirectional"}


def each(ops: str, *samples: Sample) -> Cases:
    """The same samples for several operators."""
    return [(op, sample) for op in ops.split() for sample in samples]


def recurrent(gates: int, inputs: int, hidden: int, directions: int = 1) -> list[Any]:
    """Weights and biases small enough that errors do not grow from step to step."""
    rng = np.random.default_rng(inputs)
    sizes = ((gates * hidden, inputs), (gates * hidden, hidden), (2 * gates * hidden,))
    return [(rng.standard_normal((directions, *s)) / 8).astype(np.float32) for s in sizes]


def around_one(*dims: int) -> Any:
    """Numbers whose product and logarithm are tame."""
    return np.random.default_rng(5).uniform(0.8, 1.2, dims).astype(np.float32)


def axes(*values: int) -> Any:
    return np.array(values, np.int64)


def lstm(*inputs: Any, **attrs: Any) -> tuple[str, Sample]:
    return "LSTM", Sample(inputs, attrs, 3)


REDUCTIONS = "ReduceSum ReduceMean ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum"
FUNCTIONS = "Abs Elu Exp HardSigmoid HardSwish LeakyRelu Mish Neg Relu Round Sigmoid Swish Tanh"
PEEPHOLES = np.linspace(-1, 1, 24, dtype=np.float32)[None]


def _wide(*dims: Sequence[int], **attrs: Any) -> Sample:
    return Sample([f32(*d) for d in dims], attrs)


CASES: dict[str, Cases] = {
    "onednn.conv": each(
        "Conv",
        _wide((1, 3, 17, 19), (16, 3, 3, 3), (16,), strides=[2, 2], pads=[1, 1, 1, 1]),
        _wide((2, 32, 8, 8), (48, 32, 1, 1)),
        _wide((2, 6, 9, 7), (6, 1, 3, 3), (6,), group=6, dilations=[2, 1], auto_pad="VALID"),
        _wide((1, 8, 7, 7), (12, 4, 3, 3), group=2),
        _wide((2, 5, 31), (7, 5, 4), (7,), strides=[3]),
        _wide((2, 16, 30, 1), (24, 16, 5, 1), (24,), strides=[2, 1], pads=[1, 0, 2, 0]),
        _wide((1, 6, 30, 1), (6, 1, 3, 1), group=6, dilations=[2, 1]),
        _wide((1, 4, 5, 6, 7), (8, 4, 3, 3, 3), pads=[1, 0, 1, 1, 0, 1]),
    ),
    "onednn.conv_transpose": each(
        "ConvTranspose",
        _wide((2, 6, 5, 7), (6, 4, 3, 2), (4,), strides=[2, 3], pads=[1, 0, 0, 1]),
        _wide((1, 16, 4, 4), (16, 16, 4, 4), strides=[2, 2], pads=[1, 1, 1, 1]),
    ),
    "onednn.matmul": each(
        "MatMul",
        _wide((7, 33), (33, 5)),
        _wide((2, 3, 16, 8), (8, 24)),
        _wide((2, 3, 5, 8), (2, 3, 8, 6)),
        _wide((3, 1, 5, 8), (2, 8, 4)),
    ),
    "onednn.gemm": each(
        "Gemm",
        _wide((5, 31), (31, 9), (9,)),
        _wide((32, 4), (16, 32), (4, 16), transA=1, transB=1, alpha=0.5),
    ),
    "onednn.pool": [
        *each("MaxPool AveragePool", _wide((2, 17, 9, 8), **WINDOW), _wide((1, 16, 12), kernel_shape=[3], ceil_mode=1)),
        *each("AveragePool", _wide((2, 8, 9, 8), count_include_pad=1, **WINDOW)),
        *each("GlobalAveragePool GlobalMaxPool", _wide((2, 19, 7, 5))),
    ],
    "onednn.softmax": each(
        "Softmax LogSoftmax",
        _wide((3, 17), axis=1),
        _wide((2, 5, 7), axis=1),
        _wide((1, 16, 4, 30), axis=1),
        _wide((4, 6), axis=0),
    ),
    "onednn.layer_norm": each(
        "LayerNormalization",
        _wide((3, 5, 33), (33,), (33,)),
        _wide((2, 4, 6), (4, 6), axis=1, epsilon=0.01),
    ),
    "onednn.channel_norm": [
        *each("InstanceNormalization", _wide((2, 5, 7, 3), (5,), (5,)), _wide((1, 16, 30), (16,), (16,))),
        *each("GroupNormalization", _wide((2, 6, 5, 3), (6,), (6,), num_groups=3)),
        *each("GroupNormalization", _wide((2, 8, 4, 4, 3), (8,), (8,), num_groups=1, epsilon=0.1)),
    ],
    "onednn.lrn": each("LRN", _wide((2, 17, 5, 4), size=5, alpha=0.1), _wide((1, 32, 6, 6), size=3)),
    "onednn.prelu": each("PRelu", _wide((2, 6, 5, 3), (6, 1, 1)), _wide((2, 5, 7), (2, 5, 7))),
    "onednn.sum": each("Mean", _wide((3, 17), (3, 17), (3, 17))),
    "onednn.eltwise": [
        *each(f"{FUNCTIONS} Gelu", _wide((3, 17)), _wide((2, 16, 5))),
        *each("Gelu", _wide((3, 17), approximate="tanh")),
        *each("Sqrt", Sample([np.linspace(0, 9, 51, dtype=np.float32)])),
        *each("Clip", Sample([f32(3, 17), np.float32(-1), np.float32(0.5)])),
        *each("Pow Mul Add Sub Div", Sample([f32(3, 17), np.float32(3)])),
    ],
    "onednn.binary": each(
        "Add Sub Mul Div Max Min",
        _wide((3, 17), (3, 17)),
        _wide((2, 16, 5), (5,)),
        _wide((2, 3, 4, 5), (3, 1, 1)),
    ),
    "onednn.concat": each("Concat", _wide((2, 3, 5), (2, 4, 5), axis=1), _wide((3, 2), (3, 5), axis=-1)),
    "onednn.reduce": [
        *each(
            f"{REDUCTIONS} ReduceProd",
            Sample([around_one(5, 33), axes(1)]),
            Sample([around_one(2, 3, 4, 6), axes(2, 3)], {"keepdims": 0}),
            Sample([around_one(2, 6, 7), axes(1, -1)]),
        ),
        *each(
            REDUCTIONS,
            Sample([around_one(3, 5, 17), axes(0)]),
            Sample([around_one(2, 6, 5, 4), axes(0, 2)], {"keepdims": 0}),
            Sample([around_one(2, 6, 5, 4), axes(1, 3)]),
        ),
        *each("GlobalAveragePool", _wide((1, 16, 7)), _wide((2, 5, 33))),
        *each("ReduceSum ReduceMean", Sample([around_one(4, 1, 6), axes(1)], {"keepdims": 0})),
    ],
    "onednn.resize": each(
        "Resize",
        Sample([f32(2, 5, 7, 6), None, DOUBLED], FLOOR),
        Sample([f32(1, 16, 5, 5), None, DOUBLED], {"mode": "linear"}),
        Sample([f32(1, 3, 9, 10), None, None, axes(1, 3, 13, 7)], {"mode": "linear"}),
        Sample([f32(2, 3, 9), None, None, axes(20)], {"axes": [2]}),
    ),
    "onednn.recurrent": [
        lstm(f32(5, 2, 7), *recurrent(4, 7, 9), hidden_size=9),
        lstm(f32(1, 1, 16), *recurrent(4, 16, 32), None, f32(1, 1, 32), f32(1, 1, 32)),
        lstm(f32(6, 3, 4), *recurrent(4, 4, 8, 2), **BOTH),
        lstm(f32(3, 6, 4), *recurrent(4, 4, 8, 2), layout=1, **BOTH),
        lstm(f32(9, 1, 32), *recurrent(4, 32, 64), None, f32(1, 1, 64), direction="reverse"),
        lstm(f32(3, 2, 4), *recurrent(4, 4, 8)[:2], None, None, None, None, PEEPHOLES),
        ("GRU", Sample([f32(5, 2, 7), *recurrent(3, 7, 9)], {"hidden_size": 9}, 2)),
        ("GRU", Sample([f32(5, 1, 7), *recurrent(3, 7, 9)], {"linear_before_reset": 1}, 2)),
        ("GRU", Sample([f32(4, 3, 8), *recurrent(3, 8, 16, 2)], {"linear_before_reset": 1, **BOTH}, 2)),
        ("RNN", Sample([f32(5, 2, 7), *recurrent(1, 7, 9)], {"hidden_size": 9}, 2)),
        ("RNN", Sample([f32(4, 3, 8), *recurrent(1, 8, 16, 2)], {"activations": ["Relu", "Relu"], **BOTH}, 2)),
        ("RNN", Sample([f32(4, 1, 8), *recurrent(1, 8, 16)], {"direction": "reverse", "activations": ["LeakyRelu"]})),
    ],
}

IMAGE = np.array([2, 32, 9, 8], np.int64)
SQUARE = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
POSITIONS = np.random.default_rng(3).choice([4, 5, 7, 8], (2, 32, 5, 4)).astype(np.uint8)  # inside, wherever the window


def _between(*dims: int) -> Any:
    """What gates show."""
    return np.random.default_rng(7).uniform(0.1, 0.9, dims).astype(np.float32)


def back(gates: int, kept: Sequence[int], steps: int, batch: int, inputs: int, hidden: int, **attrs: Any) -> Sample:
    """Everything that the gradient of a recurrent network reads, but for peepholes and lengths; `kept` are the widths
    of what is kept."""
    d, n, h, states = 2 if attrs.get("direction") == "bidirectional" else 1, batch, hidden, 2 if gates == 4 else 1
    peepholes = [None] * (gates == 4)
    given = [f32(steps, n, inputs), *recurrent(gates, inputs, h, d), None, *[_between(d, n, h) / 2] * states]
    rows = [_between(steps, d, n, width * h) for width in (1, *kept)]
    return Sample([*given, *peepholes, *rows, f32(steps, d, n, h), *[f32(d, n, h)] * states], attrs, 4 + states)


def lstm_grad(*sizes: int, **attrs: Any) -> Sample:
    return back(4, (4, 1), *sizes, **attrs)


def gru_grad(*sizes: int, **attrs: Any) -> Sample:
    return back(3, (1, 1, 1), *sizes, **attrs)


LINEAR = {"linear_before_reset": 1}
RELU = {"activations": ["Relu", "Relu"]}

CASES |= {
    "onednn.lstm_train": each(
        "LSTMTrain",
        Sample([f32(5, 3, 7), *recurrent(4, 7, 9)], {"hidden_size": 9}, 5),
        Sample([f32(5, 3, 7), *recurrent(4, 7, 16, 2), None, f32(2, 3, 16), f32(2, 3, 16)], BOTH, 5),
        Sample([f32(4, 1, 8), *recurrent(4, 8, 16)[:2]], {"direction": "reverse"}, 5),
    ),
    "onednn.lstm_grad": each(
        "LSTMGrad", lstm_grad(5, 3, 7, 9), lstm_grad(4, 2, 8, 16, **BOTH), lstm_grad(3, 1, 4, 8, direction="reverse")
    ),
    "onednn.gru_train": each(
        "GRUTrain",
        Sample([f32(5, 3, 7), *recurrent(3, 7, 9)], {"hidden_size": 9}, 5),
        Sample([f32(5, 3, 7), *recurrent(3, 7, 16, 2), None, f32(2, 3, 16)], {**BOTH, **LINEAR}, 5),
        Sample([f32(4, 1, 8), *recurrent(3, 8, 16)[:2]], {"direction": "reverse", **LINEAR}, 5),
        Sample([f32(1, 2, 3), *recurrent(3, 3, 5, 2), None, f32(2, 2, 5)], BOTH, 5),
    ),
    "onednn.gru_grad": each(
        "GRUGrad",
        gru_grad(5, 3, 7, 9),
        gru_grad(4, 2, 8, 16, **BOTH, **LINEAR),
        gru_grad(3, 1, 4, 8, direction="reverse", **LINEAR),
        gru_grad(1, 2, 3, 5, **BOTH),
    ),
    "onednn.rnn_train": each(
        "RNNTrain",
        Sample([f32(5, 3, 7), *recurrent(1, 7, 9)], {"hidden_size": 9}, 2),
        Sample([f32(4, 3, 7), *recurrent(1, 7, 16, 2), None, f32(2, 3, 16)], {**BOTH, **RELU}, 2),
    ),
    "onednn.rnn_grad": each(
        "RNNGrad", back(1, (), 5, 3, 7, 9), back(1, (), 4, 2, 8, 16, **BOTH, **RELU), back(1, (), 3, 1, 4, 8)
    ),
    "onednn.conv_grad_input": each(
        "ConvGradInput",
        Sample([f32(2, 16, 5, 4), f32(16, 32, 3, 3), IMAGE], {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        Sample([f32(2, 48, 9, 8), f32(48, 32, 1, 1), IMAGE]),
        Sample([f32(2, 32, 9, 8), f32(32, 1, 3, 3), IMAGE], {"group": 32, "pads": [1, 1, 1, 1]}),
    ),
    "onednn.conv_grad_weights": each(
        "ConvGradWeights",
        Sample([f32(2, 16, 5, 4), f32(2, 32, 9, 8), axes(16, 32, 3, 3)], {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
        Sample([f32(2, 48, 9, 8), f32(2, 32, 9, 8), axes(48, 32, 1, 1)]),
        Sample([f32(2, 16, 9, 8), f32(2, 3, 9, 8), axes(16, 3, 3, 3)], {"pads": [1, 1, 1, 1]}),
    ),
    "onednn.max_pool_train": each("MaxPoolTrain", Sample([f32(2, 32, 9, 8)], SQUARE, 2)),
    "onednn.max_pool_grad": each("MaxPoolGrad", Sample([f32(2, 32, 5, 4), POSITIONS, IMAGE], SQUARE)),
    "onednn.average_pool_grad": each("AveragePoolGrad", Sample([f32(2, 32, 5, 4), IMAGE], SQUARE)),
    "onednn.eltwise_grad": each(
        "EluGrad GeluGrad HardSwishGrad LeakyReluGrad MishGrad ReluGrad SigmoidGrad SwishGrad TanhGrad",
        _wide((2, 33, 7), (2, 33, 7)),
        _wide((5,), (5,)),
    ),
    "onednn.softmax_grad": each("SoftmaxGrad LogSoftmaxGrad", _wide((4, 33), (4, 33)), _wide((2, 3, 65), (2, 3, 65))),
    "onednn.batch_norm_train": each(
        "BatchNormalizationTrain",
        Sample([f32(4, 32, 5, 6), *[around_one(32)] * 4], {}, 5),
        Sample([f32(4, 7, 9), *[around_one(7)] * 4], {"momentum": 0.5}, 5),
    ),
    "onednn.batch_norm_grad": each(
        "BatchNormalizationGrad",
        Sample([f32(4, 32, 5, 6), f32(4, 32, 5, 6), *[around_one(32)] * 3], {}, 3),
    ),
    "onednn.layer_norm_train": each(
        "LayerNormalization", Sample([f32(4, 3, 32), around_one(32), around_one(32)], {}, 3)
    ),
    "onednn.layer_norm_grad": each(
        "LayerNormalizationGrad",
        Sample([f32(4, 3, 32), f32(4, 3, 32), around_one(32), f32(4, 3, 1), around_one(4, 3, 1)], {}, 3),
    ),
}

# operators of one to three images, in which layouts do not matter to the result
IMAGES: list[tuple[str, list[tuple[int, ...]], dict[str, Any], int]] = [
    ("Relu", [(2, 32, 5, 6)], {}, 1),
    ("Add", [(2, 32, 5, 6), (2, 32, 5, 6)], {}, 1),
    ("Mul", [(2, 32, 5, 6), (32, 1, 1)], {}, 1),
    ("MaxPool", [(2, 32, 9, 6)], {"kernel_shape": [2, 2], "strides": [2, 2]}, 1),
    ("GlobalAveragePool", [(2, 32, 9, 6)], {}, 1),
    ("Softmax", [(2, 32, 3, 5)], {"axis": 1}, 1),
    ("Concat", [(2, 32, 5, 6), (2, 16, 5, 6), (2, 48, 5, 6)], {"axis": 1}, 1),
    ("Concat", [(1, 32, 5, 6), (1, 16, 5, 6)], {"axis": 1}, 1),
    ("Concat", [(2, 7, 5, 6), (2, 9, 5, 6)], {"axis": 1}, 1),
    ("Concat", [(2, 7, 5, 6), (2, 7, 4, 6)], {"axis": 2}, 1),
    ("Concat", [(1, 7, 5, 6), (1, 7, 4, 6)], {"axis": 2}, 1),
    ("Split", [(2, 32, 5, 6)], {"axis": 1, "num_outputs": 2}, 2),
    ("Split", [(1, 32, 5, 6)], {"axis": 1, "num_outputs": 2}, 2),
    ("Split", [(2, 10, 5, 6)], {"axis": 1, "num_outputs": 2}, 2),
    ("Split", [(1, 8, 6, 5)], {"axis": 2, "num_outputs": 3}, 3),
    ("ReduceMean", [(2, 32, 5, 6)], {}, 1),
    ("ReduceL2", [(2, 9, 5, 6)], {"keepdims": 0}, 1),
    ("LRN", [(2, 32, 5, 6)], {"size": 5, "alpha": 0.1}, 1),
    ("PRelu", [(2, 32, 5, 6), (32, 1, 1)], {}, 1),
    ("Mean", [(2, 32, 5, 6), (2, 32, 5, 6), (2, 32, 5, 6)], {}, 1),
    ("Conv", [(2, 32, 5, 6), (16, 32, 3, 3)], {}, 1),
    ("ReluGrad", [(2, 32, 5, 6), (2, 32, 5, 6)], {}, 1),
    ("LogSoftmaxGrad", [(2, 32, 3, 5), (2, 32, 3, 5)], {"axis": 1}, 1),
]

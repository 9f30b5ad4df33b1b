"""Activations by the names that layers take."""

from __future__ import annotations

ACTIVATIONS = {
    "relu": "Relu", "sigmoid": "Sigmoid", "tanh": "Tanh", "softrelu": "Softplus", "softsign": "Softsign",
    "gelu": "Gelu", "silu": "Swish", "softmax": "Softmax", "log_softmax": "LogSoftmax", "elu": "Elu", "selu": "Selu",
    "leaky": "LeakyRelu", "mish": "Mish", "hard_sigmoid": "HardSigmoid", "hard_swish": "HardSwish", "erf": "Erf",
}  # fmt: skip

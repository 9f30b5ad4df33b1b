"""Gemm with the activation that follows it, as ONNX Runtime's optimiser writes the two into classifiers' heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..core.composed import composed
from ..errors import ShapeError
from ..math.linear import gemm
from ..op import REQUIRED, Builder, Sample, Value
from ..types import Tensor, Type, f32

# Activation -> its attributes, which the fused operator has too, called activation_alpha and so on.
ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Selu": ("alpha", "gamma"),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": ("alpha",),
}


def _activation(attrs: dict[str, Any]) -> tuple[str, dict[str, float]]:
    """The activation and its attributes, taken out of those of the operator; the standard has defaults for others."""
    name = attrs.pop("activation")
    if name not in ACTIVATIONS:
        raise ShapeError(f"activation {name!r} is none of {', '.join(ACTIVATIONS)}")
    given = {part: attrs.pop(f"activation_{part}", None) for part in ("alpha", "beta", "gamma")}
    return name, {part: value for part in ACTIVATIONS[name] if (value := given[part]) is not None}


@composed(
    "FusedGemm",
    domain="com.microsoft",
    inputs=("A", "B", "C?"),
    attributes={
        "activation": REQUIRED,
        "activation_alpha": None,
        "activation_beta": None,
        "activation_gamma": None,
        **gemm.attrs,
    },
    written_out=True,
    samples=[
        Sample([f32(2, 3), f32(3, 4), f32(4)], {"activation": "Tanh"}),
        Sample([f32(3, 2), f32(4, 3), f32(4)], {"transA": 1, "transB": 1, "activation": "Relu"}),
        Sample([f32(2, 3), f32(3, 4), f32(2, 1)], {"alpha": 0.5, "beta": 2.0, "activation": "Sigmoid"}),
        Sample([f32(2, 3), f32(3, 4)], {"activation": "LeakyRelu", "activation_alpha": 0.25}),
        Sample(
            [f32(2, 3), f32(4, 3), f32(4)],
            {"transB": 1, "activation": "Selu", "activation_alpha": 1.5, "activation_gamma": 1.25},
        ),
        Sample([f32(2, 3), f32(3, 4)], {"activation": "HardSigmoid", "activation_alpha": 0.3, "activation_beta": 0.4}),
    ],
)
def fused_gemm(g: Builder, xs: Sequence[Value | None], types: Sequence[Type | None], **attrs: Any) -> Value:
    name, params = _activation(attrs)
    return getattr(g, name)(g.Gemm(*xs, **attrs), **params)


@fused_gemm.infer
def _(A: Tensor, B: Tensor, C: Tensor | None = None, **attrs: Any) -> Any:
    _activation(attrs)
    return gemm.inferred(A, B, C, **attrs)

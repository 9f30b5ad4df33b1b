"""Gemm with the activation that follows it, as ONNX Runtime's optimiser writes the two into classifiers' heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import ShapeError
from ..math.linear import gemm
from ..op import OPS, Builder, Context, Sample, Value, op
from ..types import Array, Tensor, Type, f32

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


def _parameters(activation: str, given: dict[str, float | None]) -> dict[str, float]:
    """The attributes of an activation; those that are not given keep the standard's default."""
    if activation not in ACTIVATIONS:
        raise ShapeError(f"activation {activation!r} is none of {', '.join(ACTIVATIONS)}")
    return {name: value for name in ACTIVATIONS[activation] if (value := given[name]) is not None}


@op(
    "FusedGemm",
    domain="com.microsoft",
    written_out=True,
    since=1,
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
def fused_gemm(
    k: Context,
    A: Array,
    B: Array,
    C: Array | None = None,
    *,
    activation: str,
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
) -> Array:
    y: Array = gemm.reference(k, A, B, C, alpha=alpha, beta=beta, transA=transA, transB=transB)
    given = {"alpha": activation_alpha, "beta": activation_beta, "gamma": activation_gamma}
    found: Array = OPS["", activation].run(k, [y], _parameters(activation, given))[0]
    return found


@fused_gemm.infer
def _(
    A: Tensor,
    B: Tensor,
    C: Tensor | None = None,
    *,
    activation: str,
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    **attrs: Any,
) -> Any:
    _parameters(activation, {"alpha": activation_alpha, "beta": activation_beta, "gamma": activation_gamma})
    return gemm.inferred(A, B, C, **attrs)


@fused_gemm.body
def _(
    g: Builder,
    xs: Sequence[Value | None],
    types: Sequence[Type | None],
    *,
    activation: str,
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    **attrs: Any,
) -> Value:
    y = g.Gemm(*xs, **attrs)
    given = {"alpha": activation_alpha, "beta": activation_beta, "gamma": activation_gamma}
    return getattr(g, activation)(y, **_parameters(activation, given))

"""Activations as blocks."""

from __future__ import annotations

from collections.abc import Callable

from ...nd.activations import elu, leaky_relu, prelu, selu
from ...nd.array import Array
from ...nd.running import apply
from ...ops.errors import InputError
from ...ops.nn.names import ACTIVATIONS
from ..hybrid import HybridBlock
from ..initializer import Constant, Initializer
from ..parameter import Parameter

NAMED = ACTIVATIONS


class Activation(HybridBlock):
    """An activation by name (relu, sigmoid, tanh, softrelu, softsign, gelu, silu, softmax over the last axis, and
    more), or a function of an array. Every layer with an activation takes both.

    >>> from mezzo import nd
    >>> Activation(lambda x: x * x)(nd.asarray([2.0, -3.0])).tolist()
    [4.0, 9.0]
    """

    def __init__(self, activation: str | Callable[[Array], Array]) -> None:
        super().__init__()
        if not callable(activation) and activation not in NAMED:
            hint = f"a function, or one of {', '.join(NAMED)}"
            raise InputError(f"there is no activation {activation!r}", where="nn", hint=hint)
        self.activation = activation

    def forward(self, x: Array) -> Array:
        of = self.activation
        y: Array = of(x) if callable(of) else apply(NAMED[of], x)
        return y

    def extra(self) -> str:
        return self.activation if isinstance(self.activation, str) else getattr(self.activation, "__name__", "")


class LeakyReLU(HybridBlock):
    """A rectifier with a slope below zero."""

    def __init__(self, alpha: float = 0.01) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Array) -> Array:
        return leaky_relu(x, self.alpha)


class PReLU(HybridBlock):
    """A rectifier with a learnt slope below zero, one for all channels or one for each."""

    def __init__(self, in_channels: int = 1, alpha_initializer: Initializer | str | None = None) -> None:
        super().__init__()
        self.alpha = Parameter("alpha", shape=(in_channels,), init=alpha_initializer or Constant(0.25))

    def forward(self, x: Array) -> Array:
        return prelu(x, self.alpha.data())


class ELU(HybridBlock):
    """A rectifier that is exponential below zero (Clevert et al. 2015)."""

    def __init__(self, alpha: float = 1.0) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Array) -> Array:
        return elu(x, self.alpha)


class SELU(HybridBlock):
    """ELU that normalises itself (Klambauer et al. 2017)."""

    def forward(self, x: Array) -> Array:
        return selu(x)


class GELU(HybridBlock):
    """x times the normal distribution at x; `tanh` approximates it."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = approximate

    def forward(self, x: Array) -> Array:
        return apply("Gelu", x, approximate=self.approximate)


class Swish(HybridBlock):
    """x times the sigmoid of beta x."""

    def __init__(self, beta: float = 1.0) -> None:
        super().__init__()
        self.beta = beta

    def forward(self, x: Array) -> Array:
        return apply("Swish", x, alpha=float(self.beta))


SiLU = Swish

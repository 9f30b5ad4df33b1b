"""Normalisations."""

from __future__ import annotations

from typing import Any

from ...nd.array import Array
from ...nd.recording import RECORDING
from ...nd.running import apply
from ..hybrid import HybridBlock
from ..parameter import Parameter
from ..trace import move


class _Scaled(HybridBlock):
    """Base of normalisations with a scale and a shift for each channel."""

    def __init__(self, epsilon: float, center: bool, scale: bool, in_channels: int) -> None:
        super().__init__()
        self._epsilon = float(epsilon)
        self.gamma = Parameter("gamma", shape=(in_channels,), init="ones", grad_req="write" if scale else "null")
        self.beta = Parameter("beta", shape=(in_channels,), init="zeros", grad_req="write" if center else "null")

    def _weights(self, channels: int) -> tuple[Array, Array]:
        for p in (self.gamma, self.beta):
            if not p.known:
                p.finish((channels,))
        return self.gamma.data(), self.beta.data()


class BatchNorm(_Scaled):
    """Batch normalisation: by the statistics of the batch in training, by running ones in prediction; axis 1 is the
    channels."""

    def __init__(
        self,
        momentum: float = 0.9,
        epsilon: float = 1e-5,
        center: bool = True,
        scale: bool = True,
        use_global_stats: bool = False,
        in_channels: int = 0,
    ) -> None:
        super().__init__(epsilon, center, scale, in_channels)
        self._momentum, self._global = float(momentum), use_global_stats
        self.running_mean = Parameter("running_mean", shape=(in_channels,), init="zeros", grad_req="null")
        self.running_var = Parameter("running_var", shape=(in_channels,), init="ones", grad_req="null")

    def forward(self, x: Array) -> Array:
        gamma, beta = self._weights(x.shape[1])
        for p in (self.running_mean, self.running_var):
            if not p.known:
                p.finish((x.shape[1],))
        running = self.running_mean.data(), self.running_var.data()
        attrs: dict[str, Any] = {"epsilon": self._epsilon, "momentum": self._momentum}
        if not RECORDING.training or self._global:
            y: Array = apply("BatchNormalization", x, gamma, beta, *running, **attrs)
            return y
        if RECORDING.trace is None:  # what a tape has read must not change in place, and these do
            running = running[0].copy(), running[1].copy()
        y, mean, var = apply("BatchNormalization", x, gamma, beta, *running, outputs=3, training_mode=1, **attrs)
        move(self.running_mean, mean)
        move(self.running_var, var)
        return y


class LayerNorm(_Scaled):
    """Normalisation over the last axis (Ba et al. 2016)."""

    def __init__(self, epsilon: float = 1e-5, center: bool = True, scale: bool = True, in_channels: int = 0) -> None:
        super().__init__(epsilon, center, scale, in_channels)

    def forward(self, x: Array) -> Array:
        return apply("LayerNormalization", x, *self._weights(x.shape[-1]), axis=-1, epsilon=self._epsilon)


class RMSNorm(HybridBlock):
    """Normalisation by the root mean square over the last axis (Zhang and Sennrich 2019)."""

    def __init__(self, epsilon: float = 1e-5, in_channels: int = 0) -> None:
        super().__init__()
        self._epsilon = float(epsilon)
        self.gamma = Parameter("gamma", shape=(in_channels,), init="ones")

    def forward(self, x: Array) -> Array:
        if not self.gamma.known:
            self.gamma.finish(x.shape[-1:])
        return apply("RMSNormalization", x, self.gamma.data(), axis=-1, epsilon=self._epsilon)


class InstanceNorm(_Scaled):
    """Normalisation of each channel of each example (Ulyanov et al. 2016)."""

    def __init__(self, epsilon: float = 1e-5, center: bool = True, scale: bool = True, in_channels: int = 0) -> None:
        super().__init__(epsilon, center, scale, in_channels)

    def forward(self, x: Array) -> Array:
        return apply("InstanceNormalization", x, *self._weights(x.shape[1]), epsilon=self._epsilon)


class GroupNorm(_Scaled):
    """Normalisation over groups of channels of each example (Wu and He 2018)."""

    def __init__(
        self, num_groups: int = 1, epsilon: float = 1e-5, center: bool = True, scale: bool = True, in_channels: int = 0
    ) -> None:
        super().__init__(epsilon, center, scale, in_channels)
        self._groups = num_groups

    def forward(self, x: Array) -> Array:
        weights = self._weights(x.shape[1])
        return apply("GroupNormalization", x, *weights, num_groups=self._groups, epsilon=self._epsilon)

"""Convolutions, transposed convolutions, and pooling, over one to three axes; axis 1 is the channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from ...nd.array import Array
from ...nd.running import apply
from ..hybrid import HybridBlock
from ..initializer import Initializer
from ..parameter import Parameter
from .activations import Activation

Sizes = int | Sequence[int]


def _many(value: Sizes, count: int) -> tuple[int, ...]:
    return (value,) * count if isinstance(value, int) else tuple(value)


class _Conv(HybridBlock):
    axes: ClassVar[int]
    transposed: ClassVar[bool] = False

    def __init__(
        self,
        channels: int,
        kernel_size: Sizes,
        strides: Sizes = 1,
        padding: Sizes = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        activation: str | Callable[[Array], Array] | None = None,
        use_bias: bool = True,
        weight_initializer: Initializer | str | None = None,
        bias_initializer: Initializer | str | None = "zeros",
        in_channels: int = 0,
        **more: Any,
    ) -> None:
        super().__init__()
        n = self.axes
        kernel = _many(kernel_size, n)
        self._channels, self._groups, self._kernel = channels, groups, kernel
        self._attrs = {
            "kernel_shape": kernel, "strides": _many(strides, n), "pads": _many(padding, n) * 2,
            "dilations": _many(dilation, n), "group": groups, **more,
        }  # fmt: skip
        self.weight = Parameter("weight", shape=self._shape(in_channels), init=weight_initializer)
        self.bias = Parameter("bias", shape=(channels,), init=bias_initializer) if use_bias else None
        self.act = Activation(activation) if activation else None

    def _shape(self, inputs: int) -> tuple[int, ...]:
        if self.transposed:
            return (inputs, self._channels // self._groups, *self._kernel)
        return (self._channels, inputs // self._groups, *self._kernel)

    def forward(self, x: Array) -> Array:
        if not self.weight.known:
            self.weight.finish(self._shape(x.shape[1]))
        bias = None if self.bias is None else self.bias.data()
        op = "ConvTranspose" if self.transposed else "Conv"
        y: Array = apply(op, x, self.weight.data(), bias, **self._attrs)
        return y if self.act is None else self.act(y)

    def extra(self) -> str:
        return f"{self._channels}, kernel {self._kernel}"


class Conv1D(_Conv):
    """A convolution of [batch, channels, width]."""

    axes = 1


class Conv2D(_Conv):
    """A convolution of [batch, channels, height, width]."""

    axes = 2


class Conv3D(_Conv):
    """A convolution of [batch, channels, depth, height, width]."""

    axes = 3


class _ConvTranspose(_Conv):
    transposed = True

    def __init__(
        self, channels: int, kernel_size: Sizes, *args: Any, output_padding: Sizes = 0, **options: Any
    ) -> None:
        super().__init__(channels, kernel_size, *args, output_padding=_many(output_padding, self.axes), **options)


class Conv1DTranspose(_ConvTranspose):
    """A transposed convolution over one axis."""

    axes = 1


class Conv2DTranspose(_ConvTranspose):
    """A transposed convolution over two axes."""

    axes = 2


class Conv3DTranspose(_ConvTranspose):
    """A transposed convolution over three axes."""

    axes = 3


class _Pool(HybridBlock):
    axes: ClassVar[int]
    op: ClassVar[str]

    def __init__(
        self,
        pool_size: Sizes = 2,
        strides: Sizes | None = None,
        padding: Sizes = 0,
        ceil_mode: bool = False,
        **more: Any,
    ) -> None:
        super().__init__()
        n, size = self.axes, _many(pool_size, self.axes)
        self._attrs = {
            "kernel_shape": size, "strides": size if strides is None else _many(strides, n),
            "pads": _many(padding, n) * 2, "ceil_mode": int(ceil_mode), **more,
        }  # fmt: skip

    def forward(self, x: Array) -> Array:
        y: Array = apply(self.op, x, **self._attrs)
        return y


class MaxPool1D(_Pool):
    """The maximum of each window."""

    axes, op = 1, "MaxPool"


class MaxPool2D(_Pool):
    """The maximum of each window."""

    axes, op = 2, "MaxPool"


class MaxPool3D(_Pool):
    """The maximum of each window."""

    axes, op = 3, "MaxPool"


class _AvgPool(_Pool):
    op = "AveragePool"

    def __init__(self, *args: Any, count_include_pad: bool = True, **options: Any) -> None:
        super().__init__(*args, count_include_pad=int(count_include_pad), **options)


class AvgPool1D(_AvgPool):
    """The mean of each window."""

    axes = 1


class AvgPool2D(_AvgPool):
    """The mean of each window."""

    axes = 2


class AvgPool3D(_AvgPool):
    """The mean of each window."""

    axes = 3


class _GlobalPool(HybridBlock):
    op: ClassVar[str]

    def forward(self, x: Array) -> Array:
        return apply(self.op, x)


class GlobalMaxPool1D(_GlobalPool):
    """The maximum of each channel."""

    op = "GlobalMaxPool"


class GlobalAvgPool1D(_GlobalPool):
    """The mean of each channel."""

    op = "GlobalAveragePool"


GlobalMaxPool2D = GlobalMaxPool3D = GlobalMaxPool1D
GlobalAvgPool2D = GlobalAvgPool3D = GlobalAvgPool1D

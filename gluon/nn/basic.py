"""Dense layers, containers, dropout, embeddings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...nd import functions as nd
from ...nd.array import Array
from ...nd.random import generator
from ...nd.recording import RECORDING
from ...nd.running import apply
from ..block import Block
from ..hybrid import HybridBlock
from ..initializer import Initializer
from ..parameter import Parameter
from .activations import Activation


class _Chain(Block):
    """Blocks one after the other."""

    def __init__(self, *blocks: Block) -> None:
        super().__init__()
        self.add(*blocks)

    def add(self, *blocks: Block) -> None:
        """Append blocks."""
        for block in blocks:
            self.register_child(block)

    def forward(self, x: Any, *more: Any) -> Any:
        for block in self._children.values():
            x = block(x, *more)
            more = ()
            if isinstance(x, tuple | list):
                x, more = x[0], tuple(x[1:])
        return (x, *more) if more else x

    def __len__(self) -> int:
        return len(self._children)

    def __iter__(self) -> Iterator[Block]:
        return iter(self._children.values())

    def __getitem__(self, key: int | slice) -> Any:
        chosen = list(self._children.values())[key]
        return type(self)(*chosen) if isinstance(chosen, list) else chosen


class Sequential(_Chain):
    """Blocks one after the other; hybrid ones among them are traced one by one.

    >>> net = Sequential(Dense(4), Dense(2))
    >>> len(net), net[1]._units
    (2, 2)
    """


class HybridSequential(HybridBlock, _Chain):
    """Blocks one after the other, traced as one."""

    def __init__(self, *blocks: Block) -> None:
        HybridBlock.__init__(self)
        self.add(*blocks)


class Dense(HybridBlock):
    """A dense layer, y = act(x w^T + b); x is flattened to a matrix, or (`flatten=False`) multiplied over its last
    axis."""

    def __init__(
        self,
        units: int,
        activation: str | Callable[[Array], Array] | None = None,
        use_bias: bool = True,
        flatten: bool = True,
        dtype: Any = "float32",
        weight_initializer: Initializer | str | None = None,
        bias_initializer: Initializer | str | None = "zeros",
        in_units: int = 0,
    ) -> None:
        super().__init__()
        self._units, self._flatten = units, flatten
        self.weight = Parameter("weight", shape=(units, in_units), dtype=dtype, init=weight_initializer)
        self.bias = Parameter("bias", shape=(units,), dtype=dtype, init=bias_initializer) if use_bias else None
        self.act = Activation(activation) if activation else None

    def forward(self, x: Array) -> Array:
        if not self.weight.known:
            self.weight.finish((self._units, int(np.prod(x.shape[1:])) if self._flatten else x.shape[-1]))
        bias = None if self.bias is None else self.bias.data()
        if self._flatten or x.ndim == 2:
            if x.ndim != 2:
                x = apply("Flatten", x, axis=1)
            y: Array = apply("Gemm", x, self.weight.data(), bias, transB=1)
        else:
            y = nd.matmul(x, nd.permute_dims(self.weight.data(), (1, 0)))
            y = y if bias is None else y + bias
        return y if self.act is None else self.act(y)

    def extra(self) -> str:
        return f"{self.weight.shape[1] if self.weight.shape else 0} -> {self._units}"


class Dropout(HybridBlock):
    """Set a share `rate` of the elements to zero, and scale up the others, in training. All elements along `axes` are
    dropped together."""

    def __init__(self, rate: float = 0.5, axes: tuple[int, ...] = ()) -> None:
        super().__init__()
        self._rate, self._axes = float(rate), tuple(axes)

    def forward(self, x: Array) -> Array:
        if not RECORDING.training or not self._rate:
            return x
        if not self._axes:
            return generator(x.device).dropout(x, self._rate)
        shape = tuple(1 if i in self._axes else n for i, n in enumerate(x.shape))
        kept = generator(x.device).uniform(shape=shape) >= self._rate
        return x * (kept.astype(x.dtype) * (1 / (1 - self._rate)))

    def extra(self) -> str:
        return f"rate {self._rate}"


class Embedding(HybridBlock):
    """Rows of a table by index. With `sparse_grad` the gradient of the table is a RowSparse of the rows that were read.
    The update by an optimizer does not change by that (see `lazy_update` of optimizers).

    >>> from mezzo import autograd, nd
    >>> words = Embedding(1000, 2, sparse_grad=True).initialize()
    >>> with autograd.record():
    ...     y = words(nd.array([[7, 3, 7]])).sum()
    >>> y.backward()
    >>> words.weight.grad().indices.tolist(), words.weight.grad().data.tolist()
    ([3, 7], [[1.0, 1.0], [2.0, 2.0]])
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        dtype: Any = "float32",
        weight_initializer: Initializer | str | None = None,
        sparse_grad: bool = False,
    ) -> None:
        super().__init__()
        self.weight = Parameter(
            "weight",
            shape=(input_dim, output_dim),
            dtype=dtype,
            init=weight_initializer,
            grad_stype="row_sparse" if sparse_grad else "default",
        )

    def forward(self, x: Array) -> Array:
        index = x if x.dtype.kind in "iu" else x.astype("int64")
        return apply("Gather", self.weight.data(), index, axis=0)


class Flatten(HybridBlock):
    """Flatten all axes but the first into one."""

    def forward(self, x: Array) -> Array:
        return apply("Flatten", x, axis=1)


class Identity(HybridBlock):
    """Return the input."""

    def forward(self, x: Array) -> Array:
        return x


class Lambda(Block):
    """A function as a block."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


class HybridLambda(HybridBlock):
    """A function as a hybrid block."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)

"""Recurrent layers over whole sequences: `RNN`, `LSTM`, `GRU`, of several layers and both directions; and the cells of
cells.py, one step at a time."""

from __future__ import annotations

from typing import Any, ClassVar

from ..nd import functions as nd
from ..nd.array import Array
from ..nd.running import apply
from ..ops.errors import InputError
from .cells import (
    BidirectionalCell,
    DropoutCell,
    GRUCell,
    HybridSequentialRNNCell,
    LSTMCell,
    ModifierCell,
    RecurrentCell,
    ResidualCell,
    RNNCell,
    SequentialRNNCell,
    ZoneoutCell,
)
from .hybrid import HybridBlock
from .nn.basic import Dropout
from .parameter import Parameter


class _Recurrent(HybridBlock):
    op: ClassVar[str]
    gates: ClassVar[int]
    states: ClassVar[int] = 1

    def __init__(
        self,
        hidden_size: int,
        num_layers: int = 1,
        layout: str = "TNC",
        dropout: float = 0.0,
        bidirectional: bool = False,
        input_size: int = 0,
        **attrs: Any,
    ) -> None:
        super().__init__()
        if layout not in ("TNC", "NTC"):
            raise InputError(f"layout {layout!r}", where=type(self).__name__, hint="TNC or NTC")
        self.hidden_size, self.num_layers, self.layout, self.attrs = hidden_size, num_layers, layout, attrs
        self.directions = 2 if bidirectional else 1
        wide = self.gates * hidden_size
        for i in range(num_layers):
            inputs = input_size if i == 0 else self.directions * hidden_size
            setattr(self, f"l{i}_i2h_weight", Parameter("i2h_weight", shape=(self.directions, wide, inputs)))
            setattr(self, f"l{i}_h2h_weight", Parameter("h2h_weight", shape=(self.directions, wide, hidden_size)))
            setattr(self, f"l{i}_bias", Parameter("bias", shape=(self.directions, 2 * wide), init="zeros"))
        self.drop = Dropout(dropout)

    def begin_state(self, batch_size: int = 1, dtype: Any = "float32") -> list[Array]:
        """Zeros for all states: [layers * directions, batch, hidden]."""
        shape = (self.num_layers * self.directions, batch_size, self.hidden_size)
        return [nd.zeros(shape, dtype=dtype) for _ in range(self.states)]

    def forward(self, x: Array, states: Any = None) -> Any:
        """The hidden states of the last layer at all steps; with `states` given also those at the end."""
        given = [states] if isinstance(states, Array) else states
        if self.layout == "NTC":
            x = nd.permute_dims(x, (1, 0, 2))
        ends: list[list[Array]] = [[] for _ in range(self.states)]
        for i in range(self.num_layers):
            weights: list[Parameter] = [getattr(self, f"l{i}_{n}") for n in ("i2h_weight", "h2h_weight", "bias")]
            if not weights[0].known:
                weights[0].finish((self.directions, self.gates * self.hidden_size, x.shape[-1]))
            at = slice(i * self.directions, (i + 1) * self.directions)
            first = [None] * self.states if given is None else [s[at] for s in given]
            y, *last = apply(
                self.op, x, *(p.data() for p in weights), None, *first, outputs=1 + self.states,
                hidden_size=self.hidden_size, direction="bidirectional" if self.directions == 2 else "forward",
                **self.attrs,
            )  # fmt: skip
            steps, directions, batch, hidden = y.shape
            if directions == 1:
                x = nd.reshape(y, (steps, batch, hidden))
            else:
                x = nd.reshape(nd.permute_dims(y, (0, 2, 1, 3)), (steps, batch, 2 * hidden))
            if i < self.num_layers - 1:
                x = self.drop(x)
            for end, value in zip(ends, last, strict=True):
                end.append(value)
        out = nd.permute_dims(x, (1, 0, 2)) if self.layout == "NTC" else x
        if given is None:
            return out
        return out, [end[0] if len(end) == 1 else nd.concat(end, axis=0) for end in ends]


class RNN(_Recurrent):
    """A plain recurrent network: tanh, or relu."""

    op, gates = "RNN", 1

    def __init__(self, hidden_size: int, num_layers: int = 1, activation: str = "tanh", **options: Any) -> None:
        directions = 2 if options.get("bidirectional") else 1
        super().__init__(hidden_size, num_layers, activations=(activation.capitalize(),) * directions, **options)


class LSTM(_Recurrent):
    """Long short-term memory; gates are in ONNX's order: input, output, forget, candidate."""

    op, gates, states = "LSTM", 4, 2


class GRU(_Recurrent):
    """Gated recurrent units, whose reset comes after the product, as in cuDNN; gates: update, reset, candidate."""

    op, gates = "GRU", 3

    def __init__(self, hidden_size: int, num_layers: int = 1, **options: Any) -> None:
        super().__init__(hidden_size, num_layers, linear_before_reset=1, **options)


__all__ = [
    "GRU", "LSTM", "RNN", "BidirectionalCell", "DropoutCell", "GRUCell", "HybridSequentialRNNCell", "LSTMCell",
    "ModifierCell", "RNNCell", "RecurrentCell", "ResidualCell", "SequentialRNNCell", "ZoneoutCell",
]  # fmt: skip

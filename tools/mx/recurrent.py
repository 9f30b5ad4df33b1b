"""`mx.gluon.rnn` layers over whole sequences: with MXNet's parameters, by their names and shapes, which its fused
operator reads in one blob."""

from __future__ import annotations

from typing import Any

from ...nd.array import Array
from ...ops.errors import InputError
from . import arrays
from .blocks import HybridBlock, Parameter, layer_settings, share
from .operators import function

GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}
PARTS = ("i2h_weight", "h2h_weight", "i2h_bias", "h2h_bias")


class _Recurrent(HybridBlock):
    """Layers, in both directions if `bidirectional`; `l0_i2h_weight` is the first of the parameters."""

    mode = ""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__()
        options = layer_settings(type(self).__name__, args, settings)
        self._hidden, self._layers = int(options["hidden_size"]), int(options.get("num_layers", 1))
        self._layout, self._dropout = options.get("layout", "TNC"), float(options.get("dropout", 0))
        self._ways = 2 if options.get("bidirectional") else 1
        self._mode = self.mode or f"rnn_{options.get('activation', 'relu')}"
        if self._layout not in ("TNC", "NTC") or self._mode not in GATES:
            raise InputError(f"layout {self._layout!r} of {self._mode!r}", where=type(self).__name__, hint="TNC or NTC")
        rows, inputs = GATES[self._mode] * self._hidden, int(options.get("input_size", 0))
        for number in range(self._layers):
            width = inputs if number == 0 else self._hidden * self._ways
            for way in "lr"[: self._ways]:
                for part, sizes in zip(PARTS, ((rows, width), (rows, self._hidden), (rows,), (rows,)), strict=True):
                    first = options.get(f"{part}_initializer", "zeros" if part.endswith("bias") else None)
                    name = f"{way}{number}_{part}"
                    setattr(self, name, Parameter(name, shape=sizes, init=first))
        share(self, settings.get("params"))

    def begin_state(self, batch_size: int = 0, func: Any = None, **settings: Any) -> list[Any]:
        """Zeros (or what `func` makes) for all states: [layers * directions, batch, hidden]."""
        shape = (self._layers * self._ways, batch_size, self._hidden)
        make = func or arrays.zeros
        return [make(shape=shape, **settings) for _ in range(1 + (self._mode == "lstm"))]

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        shape = (self._layers * self._ways, batch_size, self._hidden)
        return [{"shape": shape, "__layout__": "LNC"}] * (1 + (self._mode == "lstm"))

    def forward(self, inputs: Array, states: Any = None, **_: Any) -> Any:
        """The sequence, and behind it the last states where `states` are given."""
        x = arrays.swapaxes(inputs, 0, 1) if self._layout == "NTC" else inputs
        for way in "lr"[: self._ways]:
            first = getattr(self, f"{way}0_i2h_weight")
            if not first.known:
                first.finish((first.shape[0], x.shape[2]))
        given = [states] if isinstance(states, Array) else states
        known = given or self.begin_state(x.shape[1], ctx=x.device, dtype=x.dtype)
        blob = arrays.concat(*(arrays.reshape(p.data(), shape=(-1,)) for p in self._ordered()), dim=0)
        fused = function("RNN")
        assert fused is not None
        out, *last = fused(
            x, blob, *known, mode=self._mode, num_layers=self._layers, state_size=self._hidden,
            bidirectional=self._ways == 2, p=self._dropout, state_outputs=True,
        )  # fmt: skip
        out = arrays.swapaxes(out, 0, 1) if self._layout == "NTC" else out
        return out if given is None else (out, last)

    def _ordered(self) -> list[Any]:
        """Parameters as the blob has them: all weights, then all biases."""
        stems = [f"{way}{n}" for n in range(self._layers) for way in "lr"[: self._ways]]
        pairs = [(s, part) for kind in ("weight", "bias") for s in stems for part in PARTS if part.endswith(kind)]
        return [getattr(self, f"{s}_{part}") for s, part in pairs]


class RNN(_Recurrent):
    pass


class LSTM(_Recurrent):
    mode = "lstm"


class GRU(_Recurrent):
    mode = "gru"


__all__ = ["GRU", "LSTM", "RNN"]

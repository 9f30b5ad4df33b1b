"""The fused recurrent operator: LSTM, GRU and plain cells in layers and directions, with one blob of parameters."""

from __future__ import annotations

from typing import Any

from ....ops.errors import ModelError, UnsupportedModel
from ..converter import Converter, Value
from ..rules import rule

GATES = {"rnn_relu": 1, "rnn_tanh": 1, "lstm": 4, "gru": 3}
# Where ONNX has the gates that MXNet lays down as i, f, c, o and r, z, n: as i, o, f, c and z, r, h.
ORDER = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn_relu": (0,), "rnn_tanh": (0,)}


@rule("RNN", "_npx_rnn", fills=True)
def rnn(
    c: Converter,
    data: str,
    parameters: str,
    state: str,
    state_cell: str | None = None,
    sequence_length: str | None = None,
    *,
    mode: str,
    num_layers: int,
    state_size: int,
    bidirectional: bool = False,
    p: float = 0.0,
    state_outputs: bool = False,
    projection_size: Any = None,
    lstm_state_clip_min: Any = None,
    lstm_state_clip_max: Any = None,
    lstm_state_clip_nan: bool = False,
    use_sequence_length: bool = False,
) -> Any:
    """data[length, batch, inputs] to [length, batch, directions * state_size], and with `state_outputs` the last
    states. The blob has the weights of all layers (inputs to gates, states to gates, direction by direction), then
    their biases."""
    if mode not in GATES:
        raise UnsupportedModel(f"recurrent layers of mode {mode!r} are not known")
    if projection_size is not None or lstm_state_clip_min is not None or lstm_state_clip_max is not None:
        raise UnsupportedModel("projections and clipped states of recurrent layers are not carried")
    if use_sequence_length and mode != "lstm" and sequence_length is None:
        sequence_length, state_cell = state_cell, None
    directions = 1 + bidirectional
    blob = _Blob(c, parameters, mode, state_size, num_layers, directions)
    whole = c.shape_with([num_layers * directions, c.dim(data, 1), state_size])
    state = c.Expand(state, whole) if state in c.partial else state
    state_cell = c.Expand(state_cell, whole) if state_cell in c.partial else state_cell
    x, lasts, cells = data, [], []
    for layer in range(num_layers):
        if layer and p:
            x = c.Dropout(x, c.const(p, c.dtype(x)))
        width = blob.inputs if layer == 0 else state_size * directions
        weights, states, biases = blob.layer(layer, width)
        first = layer * directions
        initial = c.slice(state, 0, first, first + directions)
        operands = [x, weights, states, biases, None, initial]
        if use_sequence_length and sequence_length is not None:
            operands[4] = c.op("Cast", sequence_length, to=6)
        attrs: dict[str, Any] = {
            "hidden_size": state_size, "direction": "bidirectional" if bidirectional else "forward",
        }  # fmt: skip
        if mode == "lstm":
            assert state_cell is not None
            operands.append(c.slice(state_cell, 0, first, first + directions))
            y, last, cell = c.op("LSTM", *operands, outputs=3, **attrs)
            cells.append(cell)
        elif mode == "gru":
            y, last = c.op("GRU", *operands, outputs=2, linear_before_reset=1, **attrs)
        else:
            attrs["activations"] = ("Relu" if mode == "rnn_relu" else "Tanh",) * directions
            y, last = c.op("RNN", *operands, outputs=2, **attrs)
        lasts.append(last)
        x = c.reshape(c.transpose(y, (0, 2, 1, 3)), [0, 0, -1])
    if not state_outputs:
        return x
    states_ = tuple(c.op("Concat", *parts, axis=0) for parts in (lasts, cells) if parts)
    return (x, *states_)


class _Blob:
    """Parameters of all layers in one vector."""

    def __init__(self, c: Converter, blob: str, mode: str, hidden: int, layers: int, directions: int) -> None:
        self.c, self.blob, self.mode = c, c.reshape(blob, [-1]), mode
        self.hidden, self.rows, self.layers, self.directions = hidden, GATES[mode] * hidden, layers, directions
        total = c.size(blob, 0, "for recurrent layers") if c.rank(blob) == 1 else len(c.dims(blob))
        later = (layers - 1) * directions * self.rows * (hidden * directions + hidden + 2)
        left = total - later - directions * self.rows * (hidden + 2)
        self.inputs, remainder = divmod(left, directions * self.rows)
        if remainder or self.inputs < 1:
            raise ModelError(f"{total} parameters do not fit {layers} layers of {mode} with {hidden} units")

    def layer(self, layer: int, width: int) -> tuple[str, str, str]:
        """W[directions, gates * hidden, width], R[directions, gates * hidden, hidden], B[directions, 2 * ...]."""
        rows, hidden, directions = self.rows, self.hidden, self.directions
        first = directions * rows * (self.inputs + hidden)
        each = directions * rows * (hidden * directions + hidden)
        at = 0 if layer == 0 else first + (layer - 1) * each
        biases = first + (self.layers - 1) * each + layer * directions * rows * 2
        weights, states, offsets = [], [], []
        for _ in range(directions):
            weights.append(self.part(at, width))
            states.append(self.part(at + rows * width, hidden))
            at += rows * (width + hidden)
            offsets.append(self.c.op("Concat", self.part(biases, 1), self.part(biases + rows, 1), axis=1))
            biases += rows * 2
        c = self.c
        stacked = [c.op("Concat", *parts, axis=0) if directions > 1 else parts[0] for parts in (weights, states)]
        joined = c.op("Concat", *offsets, axis=0) if directions > 1 else offsets[0]
        return stacked[0], stacked[1], c.squeeze(joined, 2)

    def part(self, at: int, width: int) -> Value:
        """[1, rows, width] from the blob, the gates in ONNX's order."""
        c = self.c
        block = c.reshape(c.slice(self.blob, 0, at, at + self.rows * width), [1, self.rows, width])
        order = ORDER[self.mode]
        if len(order) == 1:
            return block
        gates = c.op("Split", block, outputs=len(order), axis=1, num_outputs=len(order))
        return c.op("Concat", *(gates[i] for i in order), axis=1)

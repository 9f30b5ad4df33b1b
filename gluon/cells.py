"""Recurrent cells, one step at a time, with Gluon's interface: `cell(x, states)` returns the output and the next
states, and `unroll` runs over a sequence.

Weights are [gates * hidden, inputs], in the order of Gluon and PyTorch: LSTM input, forget, candidate, output; GRU
reset, update, candidate (whose reset comes after the product). The layers of `gluon.rnn` keep ONNX's order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from ..nd import functions as nd
from ..nd.array import Array
from ..nd.recording import RECORDING
from ..nd.running import apply
from ..ops.errors import InputError
from .block import Block
from .hybrid import HybridBlock
from .initializer import Initializer
from .nn.activations import Activation
from .nn.basic import Dropout
from .parameter import Parameter

States = list[Array]
Init = Initializer | str | None
Function = str | Callable[[Array], Array]  # an activation


class RecurrentCell(HybridBlock):
    """Base of all cells. A subclass defines `forward(x, states)` and its `state_shapes`."""

    def state_shapes(self, batch_size: int) -> list[tuple[int, ...]]:
        """The shape of each state."""
        raise NotImplementedError

    def state_info(self, batch_size: int = 0) -> list[dict[str, Any]]:
        """The same as Gluon tells it."""
        return [{"shape": shape, "__layout__": "NC"} for shape in self.state_shapes(batch_size)]

    def begin_state(self, batch_size: int = 1, func: Callable[..., Array] = nd.zeros, **options: Any) -> States:
        """The states before the first step: zeros, or what `func(shape, **options)` makes."""
        return [func(shape, **options) for shape in self.state_shapes(batch_size)]

    def reset(self) -> None:
        """Forget what a sequence left behind: nothing, since states are handed on."""

    def unroll(
        self,
        length: int,
        inputs: Array | Sequence[Array],
        begin_state: States | None = None,
        layout: str = "NTC",
        merge_outputs: bool | None = None,
        valid_length: Array | None = None,
    ) -> tuple[Any, States]:
        """Walk over `length` steps: the outputs and the last states.

        `inputs` are one array of this layout (NTC or TNC), or one array [batch, ...] for each step. Outputs come in one
        array, or (`merge_outputs=False`) as a list; by default as the inputs came. With `valid_length` (of each
        example) outputs behind it are zeros, and states are those of the last step within. Raises InputError where the
        inputs have another length.
        """
        steps, merge = _steps(length, inputs, layout, merge_outputs)
        first = steps[0]
        if begin_state is None:
            begin_state = self.begin_state(first.shape[0], dtype=first.dtype, device=first.device)
        outputs, states = self._walk(steps, list(begin_state), valid_length)
        return (nd.stack(outputs, axis=layout.index("T")) if merge else outputs), states

    def _walk(
        self, steps: list[Array], states: States, valid_length: Array | None = None
    ) -> tuple[list[Array], States]:
        """The outputs of all steps, and the last states."""
        outputs: list[Array] = []
        for t, x in enumerate(steps):
            y, after = self(x, states)
            if valid_length is not None:
                inside = nd.greater(valid_length, t)
                y = _where(inside, y, None)
                after = [_where(inside, a, b) for a, b in zip(after, states, strict=True)]
            outputs.append(y)
            states = after
        return outputs, states


def _steps(length: int, inputs: Array | Sequence[Array], layout: str, merge: bool | None) -> tuple[list[Array], bool]:
    """The inputs of each step, and whether outputs come in one array."""
    if layout not in ("NTC", "TNC"):
        raise InputError(f"layout {layout!r}", where="unroll", hint="NTC or TNC")
    if isinstance(inputs, Array):
        steps = [inputs[:, t] if layout == "NTC" else inputs[t] for t in range(inputs.shape[layout.index("T")])]
    else:
        steps = list(inputs)
    if not steps or len(steps) != length:
        raise InputError(f"{len(steps)} steps of inputs for length={length}", where="unroll")
    return steps, isinstance(inputs, Array) if merge is None else merge


def _unrolled(
    cell: RecurrentCell, steps: list[Array], states: States, valid_length: Array | None
) -> tuple[list[Array], States]:
    """A cell over a sequence, by its own `unroll`, which may be another than ours."""
    outputs, after = cell.unroll(len(steps), steps, states, merge_outputs=False, valid_length=valid_length)
    return list(outputs), after


def _where(inside: Array, y: Array, other: Array | None) -> Array:
    """The rows that are inside of y, else those of the other (zeros if None)."""
    mask = nd.reshape(inside, (-1, *(1,) * (y.ndim - 1)))
    return nd.where(mask, y, nd.zeros_like(y) if other is None else other)


class _GatedCell(RecurrentCell):
    """A cell whose gates are sums of two products."""

    gates: ClassVar[int]
    states: ClassVar[int] = 1

    def __init__(
        self,
        hidden_size: int,
        i2h_weight_initializer: Init = None,
        h2h_weight_initializer: Init = None,
        i2h_bias_initializer: Init = "zeros",
        h2h_bias_initializer: Init = "zeros",
        input_size: int = 0,
    ) -> None:
        super().__init__()
        self._hidden = hidden_size
        wide = self.gates * hidden_size
        self.i2h_weight = Parameter("i2h_weight", shape=(wide, input_size), init=i2h_weight_initializer)
        self.h2h_weight = Parameter("h2h_weight", shape=(wide, hidden_size), init=h2h_weight_initializer)
        self.i2h_bias = Parameter("i2h_bias", shape=(wide,), init=i2h_bias_initializer)
        self.h2h_bias = Parameter("h2h_bias", shape=(wide,), init=h2h_bias_initializer)

    def state_shapes(self, batch_size: int) -> list[tuple[int, ...]]:
        return [(batch_size, self._hidden)] * self.states

    def _products(self, x: Array, h: Array) -> tuple[Array, Array]:
        """The input's and the state's share of all gates."""
        if not self.i2h_weight.known:
            self.i2h_weight.finish((self.gates * self._hidden, x.shape[-1]))
        ours, theirs = (self.i2h_weight, self.i2h_bias), (self.h2h_weight, self.h2h_bias)
        a, b = (apply("Gemm", y, w.data(), bias.data(), transB=1) for y, (w, bias) in ((x, ours), (h, theirs)))
        return a, b

    def _gates(self, x: Array) -> tuple[Array, ...]:
        parts: tuple[Array, ...] = apply("Split", x, outputs=self.gates, axis=1, num_outputs=self.gates)
        return parts

    def extra(self) -> str:
        return f"{self.i2h_weight.shape[1] if self.i2h_weight.shape else 0} -> {self._hidden}"


class RNNCell(_GatedCell):
    """h' = act(W x + b + U h + c)."""

    gates = 1

    def __init__(self, hidden_size: int, activation: Function = "tanh", *args: Any, **options: Any) -> None:
        super().__init__(hidden_size, *args, **options)
        self.act = Activation(activation)

    def forward(self, x: Array, states: States) -> tuple[Array, States]:
        a, b = self._products(x, states[0])
        h = self.act(a + b)
        return h, [h]


class _TwoActivations(_GatedCell):
    """A cell with separate activations for the gates and for the states."""

    def __init__(
        self,
        hidden_size: int,
        *args: Any,
        activation: Function = "tanh",
        recurrent_activation: Function = "sigmoid",
        **options: Any,
    ) -> None:
        super().__init__(hidden_size, *args, **options)
        self.act, self.gate = Activation(activation), Activation(recurrent_activation)


class LSTMCell(_TwoActivations):
    """Long short-term memory (Hochreiter and Schmidhuber 1997): states are the output and the memory."""

    gates, states = 4, 2

    def forward(self, x: Array, states: States) -> tuple[Array, States]:
        a, b = self._products(x, states[0])
        enter, forget, candidate, leave = self._gates(a + b)
        c = self.gate(forget) * states[1] + self.gate(enter) * self.act(candidate)
        h = self.gate(leave) * self.act(c)
        return h, [h, c]


class GRUCell(_TwoActivations):
    """Gated recurrent units (Cho et al. 2014), with the reset after the product, as in cuDNN."""

    gates = 3

    def forward(self, x: Array, states: States) -> tuple[Array, States]:
        h = states[0]
        ours, theirs = (self._gates(y) for y in self._products(x, h))
        reset, update = (self.gate(a + b) for a, b in zip(ours[:2], theirs[:2], strict=True))
        candidate = self.act(ours[2] + reset * theirs[2])
        after = (1 - update) * candidate + update * h
        return after, [after]


class SequentialRNNCell(RecurrentCell):
    """A stack of cells; their states are concatenated in one list."""

    def __init__(self, *cells: RecurrentCell) -> None:
        super().__init__()
        self.add(*cells)

    def add(self, *cells: RecurrentCell) -> None:
        """Put cells on top."""
        for cell in cells:
            self.register_child(cell)

    def _cells(self) -> Iterator[RecurrentCell]:
        return (cell for cell in self._children.values() if isinstance(cell, RecurrentCell))

    def __len__(self) -> int:
        return len(self._children)

    def __getitem__(self, key: int) -> Block:
        return list(self._children.values())[key]

    def state_shapes(self, batch_size: int) -> list[tuple[int, ...]]:
        return [shape for cell in self._cells() for shape in cell.state_shapes(batch_size)]

    def forward(self, x: Array, states: States) -> tuple[Array, States]:
        after: States = []
        for cell in self._cells():
            at = len(after)
            x, its = cell(x, list(states[at : at + len(cell.state_shapes(0))]))
            after += its
        return x, after

    def _walk(
        self, steps: list[Array], states: States, valid_length: Array | None = None
    ) -> tuple[list[Array], States]:
        """Layer by layer, since a cell may look at whole sequences (BidirectionalCell)."""
        after: States = []
        for cell in self._cells():
            at = len(after)
            its = states[at : at + len(cell.state_shapes(0))]
            steps, its = _unrolled(cell, steps, its, valid_length)
            after += its
        return steps, after


HybridSequentialRNNCell = SequentialRNNCell


class DropoutCell(RecurrentCell):
    """Dropout between cells: no states."""

    def __init__(self, rate: float, axes: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.drop = Dropout(rate, axes)

    def state_shapes(self, batch_size: int) -> list[tuple[int, ...]]:
        return []

    def forward(self, x: Array, states: States) -> tuple[Array, States]:
        return self.drop(x), list(states)


class ModifierCell(RecurrentCell):
    """A cell that wraps another one, `base_cell`."""

    def __init__(self, base_cell: RecurrentCell) -> None:
        super().__init__()
        self.base_cell = base_cell

    def state_shapes(self, batch_size: int) -> list[tuple[int, ...]]:
        return self.base_cell.state_shapes(batch_size)


class ResidualCell(ModifierCell):
    """Add the input to the output (Wu et al. 2016, arXiv 1609.08144); both have the same size."""

    def forward(self, x: Array, states: States) -> tuple[Array, States]:
        y, after = self.base_cell(x, states)
        return y + x, after

    def _walk(
        self, steps: list[Array], states: States, valid_length: Array | None = None
    ) -> tuple[list[Array], States]:
        """The base cell's outputs over the sequence, and its inputs added."""
        outputs, after = _unrolled(self.base_cell, steps, states, valid_length)
        if valid_length is not None:
            steps = [_where(nd.greater(valid_length, t), x, None) for t, x in enumerate(steps)]
        return [y + x for y, x in zip(outputs, steps, strict=True)], after


class ZoneoutCell(ModifierCell):
    """Keep some of the outputs and states of the last step, in training, each with this probability (Krueger et al.
    2016, arXiv 1606.01305). If `zoneout_outputs` is above 0, the last output is one more state, behind those of the
    cell."""

    def __init__(self, base_cell: RecurrentCell, zoneout_outputs: float = 0.0, zoneout_states: float = 0.0) -> None:
        super().__init__(base_cell)
        self._outputs = bool(zoneout_outputs)
        self.outputs, self.kept = Dropout(zoneout_outputs), Dropout(zoneout_states)
        if isinstance(base_cell, BidirectionalCell):
            raise InputError("zoneout of a bidirectional cell", where="ZoneoutCell", hint="put it into its cells")

    def state_shapes(self, batch_size: int) -> list[tuple[int, ...]]:
        shapes = super().state_shapes(batch_size)
        return [*shapes, *shapes[:1]] if self._outputs else shapes

    def forward(self, x: Array, states: States) -> tuple[Array, States]:
        before, last = (list(states[:-1]), states[-1]) if self._outputs else (list(states), None)
        y, after = self.base_cell(x, before)
        after = [_mixed(self.kept, a, b) for a, b in zip(after, before, strict=True)]
        if last is not None:
            y = _mixed(self.outputs, y, last)
            after = [*after, y]
        return y, after


def _mixed(drop: Dropout, new: Array, old: Array) -> Array:
    """Elements of the new array, and of the old one where dropout hits."""
    if not RECORDING.training or not drop._rate:
        return new
    return nd.where(drop(nd.ones_like(new)) != 0, new, old)


class BidirectionalCell(RecurrentCell):
    """Two cells over a sequence, one of them from its end; outputs are concatenated. It has no single step."""

    def __init__(self, l_cell: RecurrentCell, r_cell: RecurrentCell) -> None:
        super().__init__()
        self.l_cell, self.r_cell = l_cell, r_cell

    def state_shapes(self, batch_size: int) -> list[tuple[int, ...]]:
        return [*self.l_cell.state_shapes(batch_size), *self.r_cell.state_shapes(batch_size)]

    def forward(self, x: Array, states: States) -> tuple[Array, States]:
        """Raises InputError: there is no step from the end before the end is there."""
        raise InputError("a cell that looks both ways has no single step", where="BidirectionalCell", hint="unroll it")

    def _walk(
        self, steps: list[Array], states: States, valid_length: Array | None = None
    ) -> tuple[list[Array], States]:
        """Both cells over the sequence; with `valid_length`, the backward one begins at each example's own end."""
        at = len(self.l_cell.state_shapes(0))
        left, ends = _unrolled(self.l_cell, steps, states[:at], valid_length)
        right, more = _unrolled(self.r_cell, _turned(steps, valid_length), states[at:], valid_length)
        pairs = zip(left, _turned(right, valid_length), strict=True)
        return [nd.concat([a, b], axis=-1) for a, b in pairs], [*ends, *more]


def _turned(steps: Sequence[Array], valid_length: Array | None) -> list[Array]:
    """The steps from last to first: of each example those within its length, the others in their places."""
    if valid_length is None:
        return list(steps)[::-1]
    whole = nd.stack(list(steps), axis=0)
    turned = apply("ReverseSequence", whole, valid_length.astype(np.int64), batch_axis=1, time_axis=0)
    return [turned[t] for t in range(len(steps))]

"""`mx.rnn`: recurrent cells over symbols, unrolled step by step, and batches of sentences by their length."""

from __future__ import annotations

import bisect
import random
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ...ops.errors import InputError
from . import arrays, initializers, symbols
from .batches import DataBatch, DataDesc, DataIter


def _op(name: str) -> Any:
    return getattr(symbols, name)


class RNNParams:
    """Variables that cells share, made when they are first asked for."""

    def __init__(self, prefix: str = "") -> None:
        self._prefix, self._made = prefix, dict[str, Any]()

    def get(self, name: str, **settings: Any) -> Any:
        name = self._prefix + name
        if name not in self._made:
            self._made[name] = symbols.Variable(name, **settings)
        return self._made[name]


class BaseRNNCell:
    """Base of cells: `cell(inputs, states)` is a step, `unroll` all of a sequence."""

    gates = 1

    def __init__(self, prefix: str = "", params: RNNParams | None = None) -> None:
        self._prefix, self.params = prefix, RNNParams(prefix) if params is None else params
        self.reset()

    def reset(self) -> None:
        """Count steps from the first again."""
        self._steps = 0

    @property
    def state_info(self) -> list[dict[str, Any]]:
        raise NotImplementedError

    @property
    def state_shape(self) -> list[Any]:
        return [info["shape"] for info in self.state_info]

    def __call__(self, inputs: Any, states: Sequence[Any]) -> Any:
        raise NotImplementedError

    def begin_state(self, func: Any = None, **settings: Any) -> list[Any]:
        """Symbols that `func` makes by name; without one, None for each: zeros for as many rows as the data has."""
        if func is None:
            return [None] * len(self.state_info)
        return [func(name=f"{self._prefix}begin_state_{i}", **settings) for i in range(len(self.state_info))]

    def unroll(
        self, length: int, inputs: Any, begin_state: Any = None, layout: str = "NTC", merge_outputs: bool | None = None
    ) -> Any:
        """Outputs of all steps, in one symbol where they are merged, and the last states."""
        self.reset()
        steps = _apart(length, inputs, layout)
        states = self._begun(begin_state, steps[0])
        outputs = []
        for x in steps:
            output, states = self(x, states)
            outputs.append(output)
        return _together(outputs, layout, merge_outputs), states

    def _begun(self, states: Any, x: Any) -> list[Any]:
        given = self.begin_state() if states is None else states
        shapes = (info["shape"][1] for info in self.state_info)
        return [_zeros(x, width) if s is None else s for s, width in zip(given, shapes, strict=True)]

    def _next(self) -> str:
        self._steps += 1
        return f"{self._prefix}t{self._steps - 1}_"


def _zeros(x: Any, width: int) -> Any:
    """Zeros in as many rows as a step of the data has."""
    column = _op("zeros_like")(_op("sum")(x, axis=1, keepdims=True))
    return _op("broadcast_axis")(column, axis=1, size=width)


def _apart(length: int, inputs: Any, layout: str) -> list[Any]:
    if isinstance(inputs, list | tuple):
        if len(inputs) != length:
            raise InputError(f"{len(inputs)} inputs for {length} steps", where="unroll", hint="one for each step")
        return list(inputs)
    axis = layout.index("T")
    parts = _op("SliceChannel")(inputs, axis=axis, num_outputs=length, squeeze_axis=True)
    return [parts[i] for i in range(length)] if length > 1 else [parts]


def _together(outputs: list[Any], layout: str, merge: bool | None) -> Any:
    if not merge:
        return outputs
    axis = layout.index("T")
    return _op("Concat")(*(_op("expand_dims")(o, axis=axis) for o in outputs), dim=axis)


class _Gated(BaseRNNCell):
    """A cell with one product for the data and one for the state, of all gates."""

    def __init__(self, num_hidden: int, prefix: str, params: RNNParams | None = None, forget_bias: Any = None) -> None:
        super().__init__(prefix, params)
        first = None if forget_bias is None else initializers.LSTMBias(forget_bias)
        self._hidden = num_hidden
        self._weights = {
            side: (self.params.get(f"{side}_weight"), self.params.get(f"{side}_bias", **more))
            for side, more in (("i2h", {"init": first} if first else {}), ("h2h", {}))
        }

    @property
    def state_info(self) -> list[dict[str, Any]]:
        return [{"shape": (0, self._hidden), "__layout__": "NC"}]

    def _products(self, x: Any, state: Any) -> tuple[str, Any, Any]:
        stem, products = self._next(), []
        for value, (side, (weight, bias)) in zip((x, state), self._weights.items(), strict=True):
            products.append(_op("FullyConnected")(value, weight, bias, num_hidden=self.gates * self._hidden,
                                              name=f"{stem}{side}"))  # fmt: skip
        return stem, products[0], products[1]

    def _sliced(self, x: Any, name: str) -> list[Any]:
        parts = _op("SliceChannel")(x, num_outputs=self.gates, name=name)
        return [parts[i] for i in range(self.gates)]


def _activation(x: Any, kind: str) -> Any:
    return _op("Activation")(x, act_type=kind)


class RNNCell(_Gated):
    """A cell with one activation."""

    def __init__(
        self, num_hidden: int, activation: str = "tanh", prefix: str = "rnn_", params: RNNParams | None = None
    ) -> None:
        super().__init__(num_hidden, prefix, params)
        self._activation = activation

    def __call__(self, inputs: Any, states: Sequence[Any]) -> Any:
        _, i2h, h2h = self._products(inputs, states[0])
        output = _activation(i2h + h2h, self._activation)
        return output, [output]


class LSTMCell(_Gated):
    """A cell with a memory."""

    gates = 4

    def __init__(
        self, num_hidden: int, prefix: str = "lstm_", params: RNNParams | None = None, forget_bias: float = 1.0
    ) -> None:
        super().__init__(num_hidden, prefix, params, forget_bias)

    @property
    def state_info(self) -> list[dict[str, Any]]:
        return [{"shape": (0, self._hidden), "__layout__": "NC"}] * 2

    def __call__(self, inputs: Any, states: Sequence[Any]) -> Any:
        stem, i2h, h2h = self._products(inputs, states[0])
        enter, keep, new, leave = self._sliced(i2h + h2h, f"{stem}slice")
        memory = _activation(keep, "sigmoid") * states[1] + _activation(enter, "sigmoid") * _activation(new, "tanh")
        output = _activation(leave, "sigmoid") * _activation(memory, "tanh")
        return output, [output, memory]


class GRUCell(_Gated):
    """A cell that resets and updates its state."""

    gates = 3

    def __init__(self, num_hidden: int, prefix: str = "gru_", params: RNNParams | None = None) -> None:
        super().__init__(num_hidden, prefix, params)

    def __call__(self, inputs: Any, states: Sequence[Any]) -> Any:
        stem, i2h, h2h = self._products(inputs, states[0])
        (i_reset, i_update, i_new), (h_reset, h_update, h_new) = (
            self._sliced(v, f"{stem}{side}_slice") for v, side in ((i2h, "i2h"), (h2h, "h2h"))
        )
        update = _activation(i_update + h_update, "sigmoid")
        new = _activation(i_new + _activation(i_reset + h_reset, "sigmoid") * h_new, "tanh")
        output = (1.0 - update) * new + update * states[0]
        return output, [output]


class _CellOfCells(BaseRNNCell):
    """A cell whose states are those of others."""

    def __init__(self, cells: Sequence[BaseRNNCell], params: RNNParams | None) -> None:
        self._cells = [*cells]
        super().__init__("", params)

    def reset(self) -> None:
        super().reset()
        for cell in self._cells:
            cell.reset()

    @property
    def state_info(self) -> list[dict[str, Any]]:
        return [info for cell in self._cells for info in cell.state_info]


class SequentialRNNCell(_CellOfCells):
    """Cells one behind the other."""

    def __init__(self, params: RNNParams | None = None) -> None:
        super().__init__((), params)

    def add(self, cell: BaseRNNCell) -> None:
        self._cells.append(cell)

    def begin_state(self, func: Any = None, **settings: Any) -> list[Any]:
        return [s for cell in self._cells for s in cell.begin_state(func, **settings)]

    def __call__(self, inputs: Any, states: Sequence[Any]) -> Any:
        self._steps += 1
        after: list[Any] = []
        at = 0
        for cell in self._cells:
            count = len(cell.state_info)
            inputs, new = cell(inputs, states[at : at + count])
            after, at = [*after, *new], at + count
        return inputs, after


class DropoutCell(BaseRNNCell):
    """Dropout between cells."""

    def __init__(self, dropout: float, prefix: str = "dropout_", params: RNNParams | None = None) -> None:
        super().__init__(prefix, params)
        self.dropout = dropout

    @property
    def state_info(self) -> list[dict[str, Any]]:
        return []

    def __call__(self, inputs: Any, states: Sequence[Any]) -> Any:
        return (_op("Dropout")(inputs, p=self.dropout) if self.dropout > 0 else inputs), list(states)


class ResidualCell(BaseRNNCell):
    """A cell whose output has its input added."""

    def __init__(self, base_cell: BaseRNNCell) -> None:
        self.base_cell = base_cell
        super().__init__(base_cell._prefix, base_cell.params)

    def reset(self) -> None:
        super().reset()
        self.base_cell.reset()

    @property
    def state_info(self) -> list[dict[str, Any]]:
        return self.base_cell.state_info

    def __call__(self, inputs: Any, states: Sequence[Any]) -> Any:
        output, states = self.base_cell(inputs, states)
        return output + inputs, states


class BidirectionalCell(_CellOfCells):
    """A cell forwards and another backwards, side by side."""

    def __init__(
        self, l_cell: BaseRNNCell, r_cell: BaseRNNCell, params: RNNParams | None = None, output_prefix: str = "bi_"
    ) -> None:
        super().__init__((l_cell, r_cell), params)

    def __call__(self, inputs: Any, states: Sequence[Any]) -> Any:
        raise InputError("it has no single steps", where="BidirectionalCell", hint="unroll it")

    def unroll(
        self, length: int, inputs: Any, begin_state: Any = None, layout: str = "NTC", merge_outputs: bool | None = None
    ) -> Any:
        self.reset()
        steps = _apart(length, inputs, layout)
        states = self._begun(begin_state, steps[0])
        forward, backward = self._cells
        count = len(forward.state_info)
        left, after = forward.unroll(length, steps, states[:count], layout)
        right, more = backward.unroll(length, steps[::-1], states[count:], layout)
        outputs = [_op("Concat")(a, b, dim=1) for a, b in zip(left, right[::-1], strict=True)]
        return _together(outputs, layout, merge_outputs), [*after, *more]


def encode_sentences(
    sentences: Iterable[Sequence[Any]], vocab: dict[Any, int] | None = None, invalid_label: int = -1,
    invalid_key: Any = "\n", start_label: int = 0, unknown_token: Any = None,
) -> tuple[list[list[int]], dict[Any, int]]:  # fmt: skip
    """Sentences as numbers of their words, and the vocabulary, which grows where none is given."""
    known, grows, following = dict(vocab or {invalid_key: invalid_label}), vocab is None, start_label
    coded: list[list[int]] = []
    for sentence in sentences:
        coded.append([])
        for word in sentence:
            if word not in known and not grows and unknown_token is None:
                raise InputError(f"the vocabulary lacks {word!r}", where="encode_sentences", hint="unknown_token=")
            if word not in known and not grows:
                word = unknown_token
            elif word not in known:
                following += following == invalid_label
                known[word] = following
                following += 1
            coded[-1].append(known[word])
    return coded, known


class BucketSentenceIter(DataIter):
    """Batches of sentences of about one length, of which each word is to tell the next."""

    def __init__(
        self, sentences: Sequence[Sequence[int]], batch_size: int, buckets: Sequence[int] | None = None,
        invalid_label: int = -1, data_name: str = "data", label_name: str = "softmax_label", dtype: Any = "float32",
        layout: str = "NT",
    ) -> None:  # fmt: skip
        super().__init__(batch_size)
        counts = np.bincount([len(s) for s in sentences])
        self.buckets = sorted(buckets or [i for i, n in enumerate(counts) if n >= batch_size])
        rows: list[list[Any]] = [[] for _ in self.buckets]
        for sentence in sentences:
            place = bisect.bisect_left(self.buckets, len(sentence))
            if place < len(self.buckets):  # a longer one is left out
                row = np.full(self.buckets[place], invalid_label, dtype)
                row[: len(sentence)] = sentence
                rows[place].append(row)
        self._rows, self._first = [np.asarray(r, dtype) for r in rows], layout.index("N")
        self._names, self._invalid = (data_name, label_name), invalid_label
        self.default_bucket_key = max(self.buckets)
        self.provide_data, self.provide_label = self._described(self.default_bucket_key)
        self._order = [
            (i, at) for i, r in enumerate(self._rows) for at in range(0, len(r) - batch_size + 1, batch_size)
        ]
        self.reset()

    def _described(self, length: int) -> tuple[list[DataDesc], list[DataDesc]]:
        shape = (self.batch_size, length) if self._first == 0 else (length, self.batch_size)
        data, label = ([DataDesc(name, shape)] for name in self._names)
        return data, label

    def reset(self) -> None:
        """Begin again, in another order."""
        self._at = 0
        random.shuffle(self._order)
        for rows in self._rows:
            np.random.shuffle(rows)  # as MXNet does, whose programs seed NumPy

    def next(self) -> DataBatch:
        if self._at == len(self._order):
            raise StopIteration
        place, row = self._order[self._at]
        self._at += 1
        data = self._rows[place][row : row + self.batch_size]
        label = np.concatenate([data[:, 1:], np.full((len(data), 1), self._invalid, data.dtype)], 1)
        parts = [arrays.array(v if self._first == 0 else v.T) for v in (data, label)]
        descriptions = self._described(self.buckets[place])
        return DataBatch([parts[0]], [parts[1]], 0, None, self.buckets[place], *descriptions)


__all__ = [
    "BaseRNNCell", "BidirectionalCell", "BucketSentenceIter", "DropoutCell", "GRUCell", "LSTMCell", "RNNCell",
    "RNNParams", "ResidualCell", "SequentialRNNCell", "encode_sentences",
]  # fmt: skip

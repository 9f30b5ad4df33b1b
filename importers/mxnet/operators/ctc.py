"""CTC: the chance of a text over all its alignments."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....ops import Body, DType, Tensor
from ....ops.errors import ModelError
from ..converter import Converter, Value
from ..rules import rule
from .reductions import positions

NEVER = -1e30  # the logarithm of no chance, of which differences are numbers


def _sum_of_chances(c: Any, *logs: str) -> Value:
    """The logarithm of the sum of chances whose logarithms are given."""
    most = c.Max(*logs)
    parts = [c.Exp(c.Sub(v, most)) for v in logs]
    whole = parts[0]
    for part in parts[1:]:
        whole = c.Add(whole, part)
    return c.Add(most, c.Log(whole))


@rule("CTCLoss", "ctc_loss", "_contrib_CTCLoss", "_contrib_ctc_loss")
def ctc_loss(
    c: Converter,
    data: str,
    label: str,
    *lengths: str,
    use_data_lengths: bool = False,
    use_label_lengths: bool = False,
    blank_label: str = "first",
) -> Any:
    """Losses by example of scores [time, batch, letters] before the softmax. Labels end at the first 0 (blank first)
    or -1 (blank last) where no lengths are given. A text that is too long for its frames has the loss 0."""
    if len(lengths) != use_data_lengths + use_label_lengths:
        raise ModelError(f"it has {len(lengths)} inputs of lengths, and says {use_data_lengths + use_label_lengths}")
    given = list(lengths)
    frames = c.whole(given.pop(0)) if use_data_lengths else None
    letters = c.whole(label)
    place = positions(c, label, 1)  # [1, labels]
    if use_label_lengths:
        counts = c.unsqueeze(c.whole(given.pop(0)), 1)
    else:
        padding = c.const(np.array(0 if blank_label == "first" else -1))
        ends = c.CumSum(c.cast(c.Equal(letters, padding), DType.INT64), c.const(np.array(1)))
        counts = c.ReduceSum(c.cast(c.Equal(ends, c.const(np.array(0))), DType.INT64), c.ints(1), keepdims=1)
    inside = c.Less(place, counts)
    size = c.squeeze(c.dim(data, 2), 0)
    blank = c.const(np.array(0)) if blank_label == "first" else c.Sub(size, c.const(np.array(1)))
    letters = c.Where(inside, letters, blank)

    # Blank, letter, blank, ..., blank.
    blanks = c.Expand(blank, c.shape_of(letters))
    woven = c.reshape(c.op("Concat", c.unsqueeze(blanks, 2), c.unsqueeze(letters, 2), axis=2), [0, -1])
    states = c.op("Concat", woven, c.slice(blanks, 1, 0, 1), axis=1)  # [batch, 2 labels + 1]
    before = c.op("Concat", c.slice(blanks, 1, 0, 1), c.slice(letters, 1, 0, -1), axis=1)
    leaps = c.And(inside, c.Not(c.Equal(letters, before)))  # letters that the one before them can go to at once
    first = c.Equal(place, c.const(np.array(0)))
    none = c.like(inside, 0, DType.BOOL)
    leap = c.op("Concat", c.unsqueeze(none, 2), c.unsqueeze(c.And(leaps, c.Not(first)), 2), axis=2)
    leap = c.op("Concat", c.reshape(leap, [0, -1]), c.slice(none, 1, 0, 1), axis=1)

    logs = c.cast(c.LogSoftmax(data, axis=2), DType.FLOAT)
    indices = c.Expand(c.unsqueeze(states, 0), c.shape_with([c.dim(data, 0), 1, 1]))
    chances = c.GatherElements(logs, indices, axis=2)  # [time, batch, states]
    never = c.const(np.float32(NEVER))
    begin = c.Less(positions(c, states, 1), c.const(np.array(2)))
    start = c.Where(begin, c.squeeze(c.slice(chances, 0, 0, 1), 0), never)
    tail, times = c.slice(chances, 0, 1, None), c.slice(c.reshape(positions(c, data, 0), [-1]), 0, 1, None)
    dims = c.dims(start)

    def step(g: Any, alpha: str, row: str, time: str) -> tuple[str, ...]:
        edge = np.array([0, 1, 0, 0])
        one = g.Slice(g.Pad(alpha, edge, never), np.array([0]), np.array([-1]), np.array([1]))
        two = g.Slice(g.Pad(alpha, 2 * edge, never), np.array([0]), np.array([-2]), np.array([1]))
        next_alpha = g.Add(_sum_of_chances(g, alpha, one, g.Where(leap, two, never)), row)
        if frames is None:
            return (next_alpha,)
        return (g.Where(g.Less(time, g.Unsqueeze(frames, np.array([1]))), next_alpha, alpha),)

    types = [Tensor(DType.FLOAT, dims), Tensor(DType.FLOAT, dims), Tensor(DType.INT64, ())]
    last = c.Scan(start, tail, times, body=Body(types, step), num_scan_inputs=2)
    twice = c.Add(counts, counts)
    ends = [c.GatherElements(last, twice, axis=1)]
    some = c.Greater(counts, c.const(np.array(0)))
    at = c.Max(c.Sub(twice, c.const(np.array(1))), c.const(np.array(0)))
    ends.append(c.Where(some, c.GatherElements(last, at, axis=1), never))
    loss = c.squeeze(c.Neg(_sum_of_chances(c, *ends)), 1)

    repeats = c.And(c.And(inside, c.Equal(letters, before)), c.Not(first))
    needed = c.Add(c.squeeze(counts, 1), c.ReduceSum(c.cast(repeats, DType.INT64), c.ints(1), keepdims=0))
    fits = c.Not(c.Greater(needed, c.dim(data, 0) if frames is None else frames))
    return c.cast(c.Where(fits, loss, c.number(0, loss)), c.dtype(data))

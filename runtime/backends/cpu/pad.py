"""Pad: the tensor is copied into its place, then each border from the constant or from elements already there."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ....ops import Tensor
from ....ops.tensor.pad import pad_indices, pad_pairs
from ....ops.types import Array
from ...compile.kernel import Call, Choice, Declined, KernelArgs, KernelRequest, Listed, listed, tensors

Run = tuple[slice, slice]


class Pad(Listed):
    """Pad by known widths, in every mode."""

    name = "numpy.pad"
    operators = listed("Pad")
    remembers = True

    def select(self, request: KernelRequest) -> Choice | Declined:
        """Choose the kernel if widths and axes are known, and there are elements to copy."""
        operands = tensors([t for t in (*request.inputs, *request.outputs) if t is not None])
        if operands is None or not all(t.static for t in operands):
            return Declined("an operand is no tensor of numbers, or its sizes are not known")
        if any(isinstance(t, Tensor) and t.value is None for t in (request.inputs[1], *request.inputs[3:4])):
            return Declined("widths or axes are not known before the run")
        x, y = operands[0], operands[-1]
        if not x.elements or not y.elements:
            return Declined("there are no elements")
        # as they are known now: what computes them may run only just before
        known = {n: t.ints() for n, t in zip(("pads", "axes"), (request.inputs[1], *request.inputs[3:4]), strict=False)
                 if isinstance(t, Tensor)}  # fmt: skip
        return Choice(self.name, {n: tuple(v) for n, v in known.items() if v is not None})

    def prepare(self, args: KernelArgs) -> Call:
        """Copies and fills of slices."""
        x, _, value = (*args.inputs, None)[:3]
        (out,) = args.outputs
        assert x is not None and out is not None
        pads, axes = args.choice.params["pads"], args.choice.params.get("axes")
        pairs = pad_pairs(list(pads), None if axes is None else list(axes), x.ndim)
        mode = args.node.attrs.get("mode", "constant")
        inner = tuple(slice(max(b, 0), n - max(a, 0)) for (b, a), n in zip(pairs, out.shape, strict=True))
        middle = tuple(slice(max(-b, 0), n - max(-a, 0)) for (b, a), n in zip(pairs, x.shape, strict=True))
        if any(s.start >= s.stop for s in inner):  # nothing of the tensor is left
            inner = middle = (slice(0, 0),) * x.ndim
        copies: list[tuple[Array, Array]] = [(out[inner], x[middle])]
        fill = np.zeros((), out.dtype) if value is None else value.reshape(())
        for axis, ((before, after), n) in enumerate(zip(pairs, x.shape, strict=True)):
            full, later = (slice(None),) * axis, inner[axis + 1 :]
            if mode == "constant":
                borders = slice(0, inner[axis].start), slice(inner[axis].stop, None)
                copies.extend((out[(*inner[:axis], border)], fill) for border in borders)
                continue
            # earlier axes are whole already, later ones are filled from what this one gives
            at = pad_indices(mode, n, before, after) - max(-before, 0) + max(before, 0)
            for target, source in _runs(at.tolist(), inner[axis]):
                copies.append((out[(*full, target, *later)], out[(*full, source, *later)]))
        copies = [(d, s) for d, s in copies if d.size]

        def run() -> None:
            for target, source in copies:
                np.copyto(target, source)

        return run


def _runs(at: list[int], inner: slice) -> Iterator[Run]:
    """Yield the places outside of `inner` with the places that they copy, as runs of equal steps."""
    place = 0
    while place < len(at):
        if inner.start <= place < inner.stop:
            place = inner.stop
            continue
        end = len(at) if place >= inner.stop else inner.start
        stop = place + 1
        step = at[stop] - at[place] if stop < end else 1
        while stop < end and at[stop] - at[stop - 1] == step:
            stop += 1
        first, last = at[place], at[stop - 1]
        if step == 0:
            yield slice(place, stop), slice(first, first + 1)
        else:
            behind = last + (1 if step > 0 else -1)
            yield slice(place, stop), slice(first, behind if behind >= 0 else None, step)
        place = stop

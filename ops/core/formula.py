"""Formulas that are written once: over arrays they are an operator's reference, over values of a graph its standard
body.

A formula takes `m`, an `Arrays` or a `Nodes`, and uses the arithmetic of its operands and the functions of `m`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..op import Body, Builder, Value
from ..types import Array, DType, Tensor, Type
from .rules import narrow, widen

Operand = Any  # an array, or a `Term`
Step = Callable[[list[Operand], Mapping[str, Operand]], tuple[list[Operand], list[Operand]]]


class Arrays:
    """Formulas over arrays of the module `xp`; `check()` raises where a scan is to end."""

    def __init__(self, xp: Any, check: Callable[[], None] | None = None) -> None:
        self.xp, self._check = xp, check

    def widened(self, x: Array) -> Array:
        """Cast to the element type that sums are taken in."""
        return widen(x)

    def like(self, x: Array, model: Array) -> Array:
        """Cast to the element type of another array."""
        return self.xp.asarray(narrow(x, model.dtype), order="C")

    def pick(self, x: Array, i: int, axis: int = 0) -> Array:
        """One entry along an axis, which goes."""
        return x[(slice(None),) * axis + (i,)]

    def stack(self, xs: Sequence[Array], axis: int) -> Array:
        return self.xp.stack(xs, axis)

    def split(self, x: Array, count: int) -> list[Array]:
        """Equal parts of the last axis."""
        return list(self.xp.split(x, count, -1))

    def join(self, xs: Sequence[Array], axis: int = -1) -> Array:
        return self.xp.concatenate(xs, axis)

    def swap(self, x: Array) -> Array:
        """The last two of two axes exchanged."""
        return x.swapaxes(-1, -2)

    def lead(self, x: Array, rank: int) -> Array:
        """The first two of `rank` axes exchanged."""
        return x.swapaxes(0, 1)

    def heads(self, x: Array, heads: int, groups: int = 0) -> Array:
        """[batch, steps, heads * size] as [steps, batch, heads, size]; with `groups` the heads in so many groups."""
        batch, steps, width = x.shape
        split = (groups, heads // groups) if groups else (heads,)
        return x.reshape(batch, steps, *split, width // heads).swapaxes(0, 1)

    def beside(self, x: Array) -> Array:
        """[steps, batch, groups, heads, size] as [batch, steps, all heads beside each other]."""
        steps, batch, *sizes = x.shape
        return x.swapaxes(0, 1).reshape(batch, steps, math.prod(sizes))

    def insert(self, x: Array, axis: int) -> Array:
        """One more axis of size 1."""
        return self.xp.expand_dims(x, axis)

    def sum(self, x: Array, axis: int) -> Array:
        """The sum over an axis, which stays."""
        return x.sum(axis, keepdims=True)

    def scaled(self, x: Array, scale: float) -> Array:
        """x * scale; without a scale over the root of the size of the last axis."""
        return x * (scale or 1 / math.sqrt(x.shape[-1]))

    def where(self, condition: Array, a: Array, b: Any) -> Array:
        return self.xp.where(condition, a, b)

    def exp(self, x: Array) -> Array:
        return self.xp.exp(x)

    def product(self, x: Array, w: Array) -> Array:
        """x @ w for a matrix w and any x."""
        flat = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        return (flat @ w).reshape(*x.shape[:-1], w.shape[1])

    def outer(self, x: Array, y: Array) -> Array:
        """The sum over the first two of three axes of the products of each element of x with each of y."""
        a, b = (v.reshape(v.shape[0] * v.shape[1], v.shape[2]) for v in (x, y))
        return a.T @ b

    def total(self, x: Array) -> Array:
        """The sum over the first two axes."""
        return x.sum((0, 1))

    def zeros(self, like: Array, *sizes: tuple[Array, int]) -> Array:
        """Zeros of the element type of `like`; each size is that of an axis of a value."""
        return self.xp.zeros([v.shape[axis] for v, axis in sizes], like.dtype)

    def alive(self, lengths: Array, x: Array) -> Array:
        """Return where a step of each sequence is before its end, as booleans [steps, batch, 1]."""
        return (self.xp.arange(x.shape[0])[:, None] < lengths)[:, :, None]

    def reverse(self, x: Array, lengths: Array | None) -> Array:
        """The steps of [steps, batch, ...] from the last to the first, of each sequence in its own length."""
        if lengths is None:
            return x[::-1]
        at, most = self.xp.arange(x.shape[0])[:, None], self.xp.asarray(lengths).astype(np.int64)
        return x[self.xp.where(at < most, most - 1 - at, at), self.xp.arange(x.shape[1])]

    def shift(self, first: Array, x: Array) -> Array:
        """The steps one later, `first` before them."""
        return self.xp.concatenate([first[None], x[: len(x) - 1]]) if len(x) else x

    def scan(
        self, step: Step, states: list[Array], rows: Mapping[str, Array], count: int, backwards: bool = False
    ) -> tuple[list[Array], list[Array]]:
        """Run over the first axis of `rows`: the states at the end, and the `count` results of all steps."""
        length = len(next(iter(rows.values())))
        if not length:
            none = {n: self.xp.zeros(x.shape[1:], x.dtype) for n, x in rows.items()}
            return states, [self.xp.zeros((0, *y.shape), y.dtype) for y in step(states, none)[1]]
        collected: list[Array] = []
        for t in reversed(range(length)) if backwards else range(length):
            if self._check is not None:
                self._check()
            states, results = step(states, {n: x[t] for n, x in rows.items()})
            collected = collected or [self.xp.empty((length, *y.shape), y.dtype) for y in results]
            for whole, y in zip(collected, results, strict=True):
                whole[t] = y
        return states, collected


class Term:
    """A value of a graph, with the arithmetic of arrays."""

    __slots__ = ("m", "name")

    def __init__(self, m: Nodes, name: Value) -> None:
        self.m, self.name = m, name

    def __add__(self, other: Operand) -> Term:
        return self.m.op("Add", self, other)

    def __radd__(self, other: Operand) -> Term:
        return self if isinstance(other, int) and not other else self.m.op("Add", other, self)

    def __sub__(self, other: Operand) -> Term:
        return self.m.op("Sub", self, other)

    def __rsub__(self, other: Operand) -> Term:
        return self.m.op("Sub", other, self)

    def __mul__(self, other: Operand) -> Term:
        return self.m.op("Mul", self, other)

    def __rmul__(self, other: Operand) -> Term:
        return self.m.op("Mul", other, self)

    def __truediv__(self, other: Operand) -> Term:
        return self.m.op("Div", self, other)

    def __matmul__(self, other: Term) -> Term:
        return self.m.op("MatMul", self, other)

    def __neg__(self) -> Term:
        return self.m.op("Neg", self)

    def __abs__(self) -> Term:
        return self.m.op("Abs", self)

    def __gt__(self, other: Operand) -> Term:
        return self.m.op("Greater", self, other)


class Nodes:
    """Formulas over values of the graph that `g` builds."""

    def __init__(self, g: Builder) -> None:
        self.g = g

    def of(self, values: Sequence[Value | None]) -> list[Any]:
        """The values as operands of formulas; None stays."""
        return [None if v is None else Term(self, v) for v in values]

    def names(self, terms: Sequence[Any]) -> tuple[Value | None, ...]:
        """The values again."""
        return tuple(None if t is None else t.name for t in terms)

    def ints(self, *values: int) -> Term:
        return Term(self, self.g.const(np.array(values, np.int64)))

    def op(self, name: str, *given: Any, **attrs: Any) -> Term:
        """One operator; numbers among the operands take the element type of the others."""
        like = next((x.name for x in given if isinstance(x, Term) and self.type_of(x).dtype is not DType.BOOL), None)
        names = [x.name if isinstance(x, Term) else x if x is None else self.g.scalar(x, like) for x in given]
        return Term(self, getattr(self.g, name)(*names, **attrs))

    def type_of(self, x: Term) -> Any:
        return self.g.type_of(x.name)

    def widened(self, x: Term) -> Term:
        return self.op("Cast", x, to=DType.FLOAT.onnx) if self.type_of(x).dtype.narrow else x

    def like(self, x: Term, model: Term) -> Term:
        kind = self.type_of(model).dtype
        return x if self.type_of(x).dtype is kind else self.op("Cast", x, to=kind.onnx)

    def pick(self, x: Term, i: int, axis: int = 0) -> Term:
        return self.op("Gather", x, Term(self, self.g.const(i)), axis=axis)

    def stack(self, xs: Sequence[Term], axis: int) -> Term:
        return self.join([self.op("Unsqueeze", x, self.ints(axis)) for x in xs], axis)

    def split(self, x: Term, count: int) -> list[Term]:
        parts = self.g.Split(x.name, axis=-1, num_outputs=count, outputs=count)
        return [x] if count == 1 else self.of(parts)

    def join(self, xs: Sequence[Term], axis: int = -1) -> Term:
        return xs[0] if len(xs) == 1 else self.op("Concat", *xs, axis=axis)

    def swap(self, x: Term) -> Term:
        return self.op("Transpose", x, perm=(1, 0))

    def lead(self, x: Term, rank: int) -> Term:
        return self.op("Transpose", x, perm=(1, 0, *range(2, rank)))

    def heads(self, x: Term, heads: int, groups: int = 0) -> Term:
        split = (groups, heads // groups) if groups else (heads,)
        return self.lead(self.op("Reshape", x, self.ints(0, 0, *split, -1)), 3 + len(split))

    def beside(self, x: Term) -> Term:
        turned = self.lead(x, 5)
        parts = [
            self.op("Shape", turned, start=0, end=2),
            *(self.op("Shape", x, start=i, end=i + 1) for i in (2, 3, 4)),
        ]
        shape = self.join([parts[0], parts[1] * parts[2] * parts[3]], 0)
        return self.op("Reshape", turned, shape, allowzero=1)

    def insert(self, x: Term, axis: int) -> Term:
        return self.op("Unsqueeze", x, self.ints(axis))

    def sum(self, x: Term, axis: int) -> Term:
        return self.op("ReduceSum", x, self.ints(axis), keepdims=1)

    def scaled(self, x: Term, scale: float) -> Term:
        size = self.type_of(x).dims[-1]
        if scale or isinstance(size, int):
            return x * (scale or 1 / math.sqrt(size))
        return x / self.op("Sqrt", self.op("CastLike", self.op("Squeeze", self.op("Shape", x, start=-1)), x))

    def where(self, condition: Term, a: Term, b: Any) -> Term:
        return self.op("Where", condition, a, b)

    def exp(self, x: Term) -> Term:
        return self.op("Exp", x)

    def product(self, x: Term, w: Term) -> Term:
        return x @ w

    def outer(self, x: Term, y: Term) -> Term:
        a, b = (self.op("Flatten", v, axis=2) for v in (x, y))
        return self.swap(a) @ b

    def total(self, x: Term) -> Term:
        return self.op("ReduceSum", x, self.ints(0, 1), keepdims=0)

    def zeros(self, like: Term, *sizes: tuple[Term, int]) -> Term:
        shape = self.join([self.op("Shape", v, start=axis, end=axis + 1) for v, axis in sizes], 0)
        return Term(self, self.g.Expand(self.g.scalar(0, like.name), shape.name))

    def alive(self, lengths: Term, x: Term) -> Term:
        steps = self.op("Squeeze", self.op("Shape", x, start=0, end=1))
        at = self.op("Range", self.pick(self.ints(0), 0), steps, self.pick(self.ints(1), 0))
        before = self.op("Less", self.op("Unsqueeze", at, self.ints(1)), self._counts(lengths))
        return self.op("Unsqueeze", before, self.ints(2))

    def _counts(self, lengths: Term) -> Term:
        return lengths if self.type_of(lengths).dtype is DType.INT64 else self.op("Cast", lengths, to=DType.INT64.onnx)

    def reverse(self, x: Term, lengths: Term | None) -> Term:
        if lengths is not None:
            return self.op("ReverseSequence", x, self._counts(lengths), batch_axis=1, time_axis=0)
        least = self.ints(np.iinfo(np.int64).min)
        return self.op("Slice", x, self.ints(-1), least, self.ints(0), self.ints(-1))

    def shift(self, first: Term, x: Term) -> Term:
        longer = self.join([self.op("Unsqueeze", first, self.ints(0)), x], 0)
        return self.op("Slice", longer, self.ints(0), self.ints(-1), self.ints(0))

    def scan(
        self, step: Step, states: list[Term], rows: Mapping[str, Term], count: int, backwards: bool = False
    ) -> tuple[list[Term], list[Term]]:
        def build(b: Builder, *inside: Value) -> list[Value]:
            outer, self.g = self.g, b  # what a step makes belongs into the body
            try:
                given = self.of(inside)
                after, results = step(given[: len(states)], dict(zip(rows, given[len(states) :], strict=True)))
            finally:
                self.g = outer
            return [x.name for x in (*after, *results)]

        def part(x: Term) -> Type:
            known: Tensor = self.type_of(x)
            return known.of(None if known.dims is None else known.dims[1:])

        inside = [*(self.type_of(s).forget() for s in states), *map(part, rows.values())]
        values = self.g.Scan(
            *(x.name for x in (*states, *rows.values())),
            body=Body(inside, build),
            num_scan_inputs=len(rows),
            scan_input_directions=(int(backwards),) * len(rows),
            scan_output_directions=(int(backwards),) * count,
            outputs=len(states) + count,
        )
        terms = self.of(values)
        return terms[: len(states)], terms[len(states) :]


Arithmetic = Arrays | Nodes

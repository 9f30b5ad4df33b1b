"""Evaluation of lowered expressions with NumPy: into fresh arrays, into given ones, and block by block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from ..types import Array, DType
from .expr import PRIMITIVES, Expr
from .lowered import Instruction, Lowered, lower

Step = tuple[Callable[..., Any], tuple[int, ...], int]  # a function, the registers of its operands and of its result
BoundCall = tuple[Callable[..., Any], list[Any], Any]  # a function, and the arrays
Scalars = tuple[dict[int, Any], Sequence[BoundCall]]  # arrays by value, and the calls that compute them


def evaluate(code: Lowered, xp: Any, xs: Sequence[Any]) -> tuple[Array, ...]:
    """Run code on arrays of the module `xp`, every result fresh; broadcasting as NumPy does."""
    inputs, values = len(code.inputs), [*xs]
    with xp.errstate(all="ignore"):
        for one in code.code:
            values.append(_fresh(one, xp, [values[a] for a in one.args]))

    def own(output: int, root: int) -> bool:
        return root >= inputs and code.code[root - inputs].kind != "const" and root not in code.roots[:output]

    return tuple([values[r] if own(i, r) else xp.array(values[r]) for i, r in enumerate(code.roots)])


def _fresh(one: Instruction, xp: Any, args: list[Any]) -> Any:
    if one.kind == "const":
        return xp.asarray(one.value, dtype=one.dtype.numpy)
    if one.kind == "where":
        return xp.where(*args)
    if one.kind == "cast":
        return args[0].astype(one.dtype.numpy)
    # the result type is given because NumPy widens some (small integers in `power`, bool in `add`)
    result = xp.asarray(getattr(xp, PRIMITIVES[one.kind][0])(*args))
    if result.dtype == object:  # symbolic sizes
        return result
    return result.astype(one.dtype.numpy, copy=False)


class Steps:
    """Code as calls of NumPy that write into given arrays.

    Registers are the inputs that are `given` (all by default), outputs, temporaries and scalars, in this order.
    """

    __slots__ = ("_fixed", "_scalars", "code", "each")

    def __init__(self, code: Lowered, given: Sequence[int] | None = None) -> None:
        self.code = code
        self.each: list[Step] = []
        self._scalars: list[tuple[int, Instruction]] = []
        inputs = len(code.inputs)
        given = range(inputs) if given is None else given
        outs, temps = len(given), len(given) + len(code.roots)
        place = {i: at for at, i in enumerate(given)}
        for me, (one, register) in enumerate(zip(code.code, code.registers, strict=True), inputs):
            if code.scalar[me]:
                place[me] = temps + len(code.temps) + len(self._scalars)
                self._scalars.append((me, one))
            else:
                place[me] = temps + register if register >= 0 else outs - 1 - register
                self.each.append((_function(one, code), tuple([place[a] for a in one.args]), place[me]))
        for output, root in enumerate(code.roots):
            if place[root] != outs + output:
                self.each.append((_copy, (place[root],), outs + output))
        self._fixed: Scalars | None = None
        if not any(code.scalar[:inputs]):
            self._fixed = self.scalars(())
            call_all(self._fixed[1])

    def scalars(self, xs: Sequence[Any]) -> Scalars:
        """The arrays of scalars by value, and the calls that compute them from inputs."""
        if self._fixed is not None:
            return self._fixed[0], ()
        arrays: dict[int, Any] = dict(enumerate(xs))
        calls: list[BoundCall] = []
        for me, one in self._scalars:
            if one.kind == "const":
                arrays[me] = np.asarray(one.value, one.dtype.numpy)
                continue
            args = [arrays[a] for a in one.args]
            arrays[me] = np.empty(np.broadcast_shapes(*(x.shape for x in args)), one.dtype.numpy)
            calls.append((_function(one, self.code), args, arrays[me]))
        return {me: arrays[me] for me, _ in self._scalars}, calls

    def run(self, xs: Sequence[Any], outs: Sequence[Any], temps: Sequence[Any]) -> None:
        """Compute the outputs now."""
        scalars, calls = self.scalars(xs)
        call_all(calls)
        self.on((*xs, *outs, *temps, *scalars.values()))

    def on(self, registers: Sequence[Any]) -> None:
        """Compute the outputs in registers."""
        for function, sources, result in self.each:
            function(*[registers[s] for s in sources], out=registers[result])

    def bound(self, registers: Sequence[Any]) -> list[BoundCall]:
        """The calls that compute the outputs in registers."""
        return [(f, [registers[s] for s in sources], registers[result]) for f, sources, result in self.each]


def steps_of(tree: Callable[..., Expr], dtypes: Sequence[DType | None], attrs: Mapping[str, Any]) -> Steps:
    """The steps of a pointwise operator for operands of these element types, None where one is absent."""
    items = tuple(attrs.items())
    try:
        return _steps_of(tree, tuple(dtypes), items, repr(items))
    except TypeError:  # an attribute is a list
        return Steps(lower([tree(dtypes, **attrs)], len(dtypes)))


@lru_cache(maxsize=4096)
def _steps_of(
    tree: Callable[..., Expr], dtypes: tuple[DType | None, ...], attrs: tuple[tuple[str, Any], ...], shown: str
) -> Steps:
    """The same, cached; 0.0 and -0.0 are the same attributes but for how they are shown."""
    return Steps(lower([tree(dtypes, **dict(attrs))], len(dtypes)))


def call_all(calls: Sequence[BoundCall]) -> None:
    for function, sources, result in calls:
        function(*sources, out=result)


def _function(one: Instruction, code: Lowered) -> Callable[..., Any]:
    """A function of the operands, and of `out`, the array of the result."""
    if one.kind in ("cast", "where"):
        return _copy if one.kind == "cast" else _select
    ufunc: Any = getattr(np, PRIMITIVES[one.kind][0])
    # NumPy has other types for some results of others than these (small integers in `power`, quotients of integers)
    return ufunc if code.dtype(one.args[0]) in (DType.FLOAT, DType.DOUBLE) else partial(ufunc, casting="unsafe")


def _copy(x: Any, out: Any) -> None:
    np.copyto(out, x, casting="unsafe")


def _select(condition: Any, x: Any, y: Any, out: Any) -> None:
    np.copyto(out, y)
    np.copyto(out, x, where=condition)


class Blocks:
    """Code over flat arrays, at most `most` elements at a time, so that what is computed in between stays in the cache.
    Scalars among `xs` have any shape; `temps` are as large as a block, or as outputs that are smaller."""

    def __init__(self, steps: Steps, xs: Sequence[Any], outs: Sequence[Any], temps: Sequence[Any], most: int) -> None:
        self._steps, self._outs, self._temps, self._most = steps, outs, temps, most
        scalar, (self._scalars, self._once) = steps.code.scalar, steps.scalars(xs)
        self._xs = [(x, x is None or scalar[i]) for i, x in enumerate(xs)]
        self._numbers = {i: x for i, x in enumerate(xs) if scalar[i]} | self._scalars
        self._whole = steps.bound(self._registers(0, outs[0].size)) if 0 < outs[0].size <= most else None

    def run(self) -> None:
        """Run all blocks."""
        call_all(self._once)
        self.each_block()

    def numbers(self) -> dict[int, Any]:
        """Compute the scalars: their arrays by value, which stay the same."""
        call_all(self._once)
        return self._numbers

    def each_block(self) -> None:
        """Run all blocks on the scalars as they are."""
        if self._whole is not None:
            call_all(self._whole)
            return
        size = self._outs[0].size
        for start in range(0, size, self._most):
            self._steps.on(self._registers(start, min(start + self._most, size)))

    def _registers(self, start: int, stop: int) -> tuple[Any, ...]:
        return (
            *[x if whole else x[start:stop] for x, whole in self._xs],
            *[out[start:stop] for out in self._outs],
            *[t if len(t) == stop - start else t[: stop - start] for t in self._temps],
            *self._scalars.values(),
        )

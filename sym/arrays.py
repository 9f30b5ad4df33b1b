"""Arrays by name, with arithmetic array by array.

Sums, differences and products are put off (see nd/pending.py): a change in place of all arrays,
`w -= rate * g`, is one workload, which goes through memory once.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

import numpy as np

from ..nd import lazy, pending
from ..nd.array import Array
from ..nd.prepared import Pieces, Prepared
from ..nd.recording import RECORDING
from ..nd.running import alike, inplace, pair, ready, run_unseen, scalar
from ..nd.specs import MOST, TensorSpec, spec_of
from ..ops.errors import InputError
from ..runtime.caches import bounded
from ..runtime.engine import engine

NOW: dict[str, Callable[[Any, Any], Any]] = {"Add": operator.add, "Sub": operator.sub, "Mul": operator.mul}
_CALLS: dict[Any, list[Pieces]] = bounded("symbols: fused updates", MOST, {})  # of changes that were met before


class Arrays(Mapping[str, Array]):
    """Arrays by name, with arithmetic array by array: `w -= rate * g`.

    >>> from mezzo import nd
    >>> a = Arrays({"x": nd.ones(2)})
    >>> a -= 0.5 * a
    >>> a["x"].asnumpy()
    array([0.5, 0.5], dtype=float32)
    """

    __slots__ = ("__weakref__", "_arrays", "_here", "_kinds", "_later", "_length", "_names")

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays = dict(arrays)
        self._names, self._kinds = tuple(arrays), [x._spec for x in arrays.values()]
        self._here = all(x._place.name == "cpu" for x in arrays.values())
        self._later: tuple[str, Any, Any] | None = None  # an operator on Arrays and numbers, while it is put off
        self._length = 0  # operators that are put off

    def __getitem__(self, name: str) -> Array:
        self.push()
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def push(self) -> None:
        """Compute what is put off."""
        with pending.lock:
            if self._later is None:
                return
            (op, left, right), self._later = self._later, None
            for name in self._names:
                a, b = alike(*(x[name] if isinstance(x, Arrays) else x for x in (left, right)))
                self._arrays[name] = run_unseen(pair(op, a, b), (a, b))

    # -- arithmetic ---------------------------------------------------------------------------------------------------

    def _others(self, other: Any) -> Any:
        if not isinstance(other, Arrays):
            return [other] * len(self)
        if other._names != self._names:
            raise InputError(f"{', '.join(self)} with {', '.join(other)}", where="Arrays", hint="names have to agree")
        return list(other.values())

    def _alike(self, other: Any) -> bool:
        """True if results of an operation with `other` have the types and shapes of these arrays, and NumPy has the
        arithmetic."""
        if isinstance(other, Arrays):
            same = other._here and other._names == self._names and all(map(operator.is_, self._kinds, other._kinds))
        else:
            same = other.__class__ in (int, float)
        return same and self._here and not RECORDING.noted and all(k.dtype.kind == "f" for k in self._kinds)

    def _made(self, op: str, other: Any, turned: bool = False) -> Arrays:
        length = 1 + self._length + getattr(other, "_length", 0)
        if length < lazy.LONGEST and self._alike(other):
            later = Arrays({})
            later._names, later._kinds, later._length = self._names, self._kinds, length
            later._later = (op, other, self) if turned else (op, self, other)
            pending.put_off(later)
            return later
        return self._at_once(NOW[op], other, turned)

    def _at_once(self, op: Callable[[Any, Any], Any], other: Any, turned: bool = False) -> Arrays:
        pairs = zip(self.items(), self._others(other), strict=True)
        return Arrays({n: op(b, a) if turned else op(a, b) for (n, a), b in pairs})

    def __add__(self, other: Any) -> Arrays:
        return self._made("Add", other)

    def __sub__(self, other: Any) -> Arrays:
        return self._made("Sub", other)

    def __mul__(self, other: Any) -> Arrays:
        return self._made("Mul", other)

    def __truediv__(self, other: Any) -> Arrays:
        return self._at_once(operator.truediv, other)

    def __radd__(self, other: Any) -> Arrays:
        return self._made("Add", other, turned=True)

    def __rsub__(self, other: Any) -> Arrays:
        return self._made("Sub", other, turned=True)

    def __rmul__(self, other: Any) -> Arrays:
        return self._made("Mul", other, turned=True)

    def __neg__(self) -> Arrays:
        return self._made("Mul", -1)

    # -- in place -----------------------------------------------------------------------------------------------------

    def _in_place(self, op: str, other: Any) -> Self:
        if not (isinstance(other, Arrays) and self._alike(other) and _change(self, op, other)):
            for array, b in zip(self.values(), self._others(other), strict=True):
                inplace(op, array, b)
        return self

    def __iadd__(self, other: Any) -> Self:
        return self._in_place("Add", other)

    def __isub__(self, other: Any) -> Self:
        return self._in_place("Sub", other)

    def __imul__(self, other: Any) -> Self:
        return self._in_place("Mul", other)

    def __itruediv__(self, other: Any) -> Self:
        return self._in_place("Div", other)


Form = int | tuple[str, Any, Any]  # a leaf by its number, or an operator on two forms


def _change(targets: Arrays, op: str, other: Arrays) -> bool:
    """Have arrays changed by what is put off, which stays so: who holds it may read it later. False, and nothing is
    changed, where nothing is put off, or it reads one of the targets."""
    with pending.lock:
        pending.flush(but=other)
        if other._later is None or targets._later is not None:
            return False
        leaves: list[Any] = []
        form = _form(other, leaves)
        changed = [x._variable for x in targets._arrays.values()]
        reads = [x._variable for leaf in leaves if isinstance(leaf, Arrays) for x in leaf._arrays.values()]
        places = {x._place for leaf in (*leaves, targets) if isinstance(leaf, Arrays) for x in leaf._arrays.values()}
        if len(places) > 1 or not set(reads).isdisjoint(changed):
            return False
        numbers = {d: [scalar(x, d) for x in leaves if not isinstance(x, Arrays)] for d in _dtypes(targets)}
        parts: list[list[Any]] = []
        for name, target in targets._arrays.items():
            known = iter(numbers[target._spec.dtype])
            parts.append([leaf._arrays[name] if isinstance(leaf, Arrays) else next(known) for leaf in leaves])
            parts[-1].append(target)
        key = (op, form, *targets._kinds)
        calls = _CALLS.get(key)
        if calls is None:
            if len(_CALLS) >= MOST:
                _CALLS.clear()
            whole: Form = (op, len(leaves), form)
            calls = _CALLS[key] = [_call(whole, p, k) for p, k in zip(parts, targets._kinds, strict=True)]
        for var in changed:
            var.edition += 1
        engine().push(_compute, [*reads, *changed], changed, name=f"{op} in place", args=(calls, parts))
    return True


def _dtypes(arrays: Arrays) -> set[np.dtype[Any]]:
    return {k.dtype for k in arrays._kinds}


def _form(x: Any, leaves: list[Any]) -> Form:
    if isinstance(x, Arrays) and x._later is not None:
        op, left, right = x._later
        return op, _form(left, leaves), _form(right, leaves)
    leaves.append(x)
    return len(leaves) - 1


def _call(form: Form, leaves: Sequence[Any], kind: TensorSpec) -> Pieces:
    """Return the call that computes a form over these leaves, with results all of one type and shape."""
    steps: list[tuple[Prepared, tuple[int, ...]]] = []

    def operand(of: Form) -> tuple[int, TensorSpec]:
        if isinstance(of, int):
            leaf = leaves[of]
            return ~of, spec_of(leaf.dtype, leaf.shape)
        op, *sides = of
        (a, one), (b, two) = map(operand, sides)
        steps.append((ready(op, (one, two)), (a, b)))
        return len(steps) - 1, kind

    operand(form)
    return lazy.fused(tuple(steps), leaves, kind, renews=True)


def _compute(calls: Sequence[Pieces], parts: Sequence[Sequence[Any]]) -> None:
    for call, leaves in zip(calls, parts, strict=True):
        values = [x if x.__class__ is np.ndarray else x._look(x._variable.value) for x in leaves]
        call.into(values, values[-1])

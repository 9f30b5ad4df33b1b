"""Symbolic sizes: integers that rules and passes calculate with as with others, while it is noted what was decided.

A graph that is rewritten for one set of sizes is right for others only if everything that was decided on the way would
be decided the same again. A `SymbolicSize` stands in a type's dims where an input's size is open. It has the value of
today's size, answers arithmetic with polynomials, and each comparison becomes a guard of its trace. It is no `int` to
code in C: whatever would take the number behind it (an index, an array of numbers, a loop) raises NotSymbolic instead,
so that no number is taken over unnoticed. PyTorch's compiler has symbolic shapes with guards as well
(https://docs.pytorch.org/docs/stable/torch.compiler_dynamic_shapes.html).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np

Terms = tuple[tuple[tuple[int, ...], int], ...]  # monomials (numbers of symbols, ascending) and their factors
_numbers = count()
_tracing, _lock = 0, threading.Lock()


class NotSymbolic(Exception):
    """Raised where the number behind a symbolic size would be taken."""


class SizeTrace:
    """The symbols of one trace, the quotients that were formed of them, and the guards: what was decided.

    >>> trace = SizeTrace()
    >>> n, m = trace.symbol(6), trace.symbol(2)
    >>> print(2 * n + n * m, n // 4, n > m, trace.guards)
    2*s0+s0*s1 s2 True {((((0,), 1), ((1,), -1)), '>'): True}
    >>> trace.values([7, 3]), trace.values([3, 7])
    ([7, 3, 1], None)
    """

    def __init__(self) -> None:
        self.number = next(_numbers)
        self.hints: list[int] = []  # of symbols, then of quotients
        self.quotients: dict[int, tuple[Terms, Terms]] = {}
        self.guards: dict[tuple[Terms, str], bool] = {}

    def symbol(self, hint: int) -> SymbolicSize:
        """Return a new symbol with today's size."""
        self.hints.append(hint)
        return SymbolicSize(self, (((len(self.hints) - 1,), 1),))

    def value(self, terms: Terms, values: Sequence[int]) -> int:
        """The number that terms are for these values of symbols and quotients. Raises NotSymbolic for one that int64
        does not hold: it would wrap."""
        value = sum(factor * math.prod([values[s] for s in symbols]) for symbols, factor in terms)
        if not -(1 << 63) <= value < 1 << 63:
            raise NotSymbolic
        return value

    def values(self, sizes: Sequence[int]) -> list[int] | None:
        """The values of symbols and quotients for these sizes of the symbols; None unless all is decided for them as it
        was."""
        if min(sizes, default=1) < 1:  # nothing was decided for empty ones: see `_always`
            return None
        values = list(sizes)
        try:
            for i in range(len(sizes), len(self.hints)):
                above, below = self.quotients[i]
                values.append(self.value(above, values) // self.value(below, values))
            for (terms, how), outcome in self.guards.items():
                if _decided(self.value(terms, values), how) is not outcome:
                    return None
        except (NotSymbolic, ZeroDivisionError):
            return None
        return values

    def decide(self, terms: Terms, how: str) -> bool:
        """Return whether terms are 0 ('=') or above it ('>'), which becomes a guard unless it is so for all sizes."""
        settled = self._always(terms, how)
        if settled is not None:
            return settled
        outcome = _decided(self.value(terms, self.hints), how)
        self.guards[terms, how] = outcome
        return outcome

    def _always(self, terms: Terms, how: str) -> bool | None:
        """Return the decision that holds for all sizes of 1 and more; None if sizes decide."""
        if any(s in self.quotients for symbols, _ in terms for s in symbols):
            return None
        factors = [f for _, f in terms]
        if min(factors, default=0) >= 0:  # it grows with each size
            return how == ">" if sum(factors) > 0 else None if factors else how == "="
        if max(factors) <= 0 and sum(factors) < 0:
            return False
        return None

    def depends(self, terms: Terms, on: Terms) -> bool:
        """True if terms change with a symbol, quotients included."""
        ((symbol,), _) = on[0]
        return any(
            s == symbol or (s in self.quotients and any(self.depends(part, on) for part in self.quotients[s]))
            for symbols, _ in terms
            for s in symbols
        )

    def quotient(self, above: Terms, below: Terms) -> SymbolicSize:
        """Return the symbol of a quotient, rounded down."""
        for number, known in self.quotients.items():
            if known == (above, below):
                return SymbolicSize(self, (((number,), 1),))
        number = len(self.hints)
        self.quotients[number] = above, below
        self.hints.append(self.value(above, self.hints) // self.value(below, self.hints))
        return SymbolicSize(self, (((number,), 1),))


def _decided(value: int, how: str) -> bool:
    return value == 0 if how == "=" else value > 0


def _never(self: Any, *others: Any) -> Any:
    raise NotSymbolic


class SymbolicSize:
    """A size that is a polynomial of symbols. Code in Python takes it for an int (`isinstance` says so), code in C does
    not."""

    __slots__ = ("terms", "trace")

    def __init__(self, trace: SizeTrace, terms: Terms) -> None:
        self.trace, self.terms = trace, terms

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def __str__(self) -> str:
        def one(symbols: tuple[int, ...], factor: int) -> str:
            names = [f"s{s}" for s in symbols]
            return "*".join(([str(factor)] if factor != 1 or not names else []) + names)

        return "+".join(one(*term) for term in self.terms).replace("+-", "-")

    __repr__ = __str__

    def __format__(self, how: str) -> str:
        return format(str(self), how)

    def __hash__(self) -> int:
        return hash((self.trace.number, self.terms))

    def _operand(self, other: Any) -> Terms | None:
        """The terms of an operand; None if it is nothing to calculate with."""
        if type(other) is SymbolicSize:
            return other.terms if other.trace is self.trace else None
        if isinstance(other, (int, np.integer)):
            return (((), int(other)),) if other else ()
        return None

    def _sum(self, other: Any, factor: int = 1, own: int = 1) -> Any:
        terms = self._operand(other)
        if terms is None:
            raise NotSymbolic
        totals: dict[tuple[int, ...], int] = {m: own * f for m, f in self.terms}
        for symbols, f in terms:
            totals[symbols] = totals.get(symbols, 0) + factor * f
        return self._of(totals)

    def _of(self, totals: Mapping[tuple[int, ...], int]) -> Any:
        terms = tuple(sorted((m, f) for m, f in totals.items() if f))
        if not terms or (len(terms) == 1 and not terms[0][0]):
            return terms[0][1] if terms else 0
        return SymbolicSize(self.trace, terms)

    def __add__(self, other: Any) -> Any:
        return self._sum(other)

    def __sub__(self, other: Any) -> Any:
        return self._sum(other, -1)

    def __rsub__(self, other: Any) -> Any:
        return self._sum(other, 1, -1)

    def __mul__(self, other: Any) -> Any:
        terms = self._operand(other)
        if terms is None:
            raise NotSymbolic
        totals: dict[tuple[int, ...], int] = {}
        for m, f in self.terms:
            for n, g in terms:
                symbols = tuple(sorted(m + n))
                totals[symbols] = totals.get(symbols, 0) + f * g
        return self._of(totals)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Any:
        return self * -1

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return -self if self < 0 else self

    def __floordiv__(self, other: Any) -> Any:
        return self._divided(self.terms, self._operand(other))

    def __rfloordiv__(self, other: Any) -> Any:
        return self._divided(self._operand(other), self.terms)

    def _divided(self, above: Terms | None, below: Terms | None) -> Any:
        if above is None or below is None:
            raise NotSymbolic
        if self.trace.decide(below, "="):
            raise ZeroDivisionError
        if above == below:
            return 1
        exact = _exact(above, below)
        return self.trace.quotient(above, below) if exact is None else self._of(exact)

    def __mod__(self, other: Any) -> Any:
        return self - self // other * other

    def __rmod__(self, other: Any) -> Any:
        return other - other // self * self

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def fmod(self, other: Any) -> Any:
        """The remainder with the sign of the dividend: what NumPy calls for `fmod` of objects."""
        rest = abs(self) % abs(other)
        return rest if self >= 0 else -rest

    def __bool__(self) -> bool:
        return not self.trace.decide(_upright(self.terms), "=")

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (float, np.floating)):
            raise NotSymbolic
        if self._operand(other) is None:
            return False
        difference = self._sum(other, -1)
        if type(difference) is not SymbolicSize:
            return bool(difference == 0)
        return self.trace.decide(_upright(difference.terms), "=")

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __gt__(self, other: Any) -> bool:
        return self._positive(self - other)

    def __lt__(self, other: Any) -> bool:
        return self._positive(other - self)

    def _positive(self, difference: Any) -> bool:
        return self.trace.decide(difference.terms, ">") if type(difference) is SymbolicSize else bool(difference > 0)

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def __le__(self, other: Any) -> bool:
        return not self > other

    __int__ = __index__ = __float__ = __complex__ = __trunc__ = __round__ = __ceil__ = __floor__ = _never
    __truediv__ = __rtruediv__ = __pow__ = __rpow__ = __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = _never
    __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __invert__ = _never


def _exact(above: Terms, below: Terms) -> dict[tuple[int, ...], int] | None:
    """The quotient of two polynomials that leaves nothing; None where there is a rest.

    >>> _exact((((0, 0), 1), ((1, 1), -1)), (((0,), 1), ((1,), 1)))
    {(1,): -1, (0,): 1}
    """

    def order(term: tuple[tuple[int, ...], int]) -> tuple[int, tuple[int, ...]]:
        return len(term[0]), term[0]

    left, found = dict(above), dict[tuple[int, ...], int]()
    by, factor = max(below, key=order)
    while left:  # the largest monomial of what is left becomes smaller each time
        symbols, f = max(left.items(), key=order)
        rest = _without(symbols, by)
        if rest is None or f % factor:
            return None
        found[rest] = f // factor
        for others, g in below:
            product = tuple(sorted(rest + others))
            left[product] = left.get(product, 0) - found[rest] * g
            if not left[product]:
                del left[product]
    return found


def _without(symbols: tuple[int, ...], by: tuple[int, ...]) -> tuple[int, ...] | None:
    """The product without the factors `by`; None if it lacks one."""
    rest = list(symbols)
    for s in by:
        if s not in rest:
            return None
        rest.remove(s)
    return tuple(rest)


def _upright(terms: Terms) -> Terms:
    """The terms, or their negatives if the first factor is below 0: both are 0 at once."""
    return tuple((m, -f) for m, f in terms) if terms and terms[0][1] < 0 else terms


def is_symbolic(value: Any) -> bool:
    """True for a symbolic size, and for an array that holds one."""
    if type(value) is SymbolicSize:
        return True
    return isinstance(value, np.ndarray) and value.dtype == object and any(type(v) is SymbolicSize for v in value.flat)


def may_be_symbolic(value: Any) -> bool:
    """`is_symbolic` while a graph is traced; else False, without a look at each text of an array of objects."""
    return _tracing > 0 and is_symbolic(value)


@contextmanager
def tracing() -> Iterator[None]:
    """A context in which symbolic sizes may be met."""
    global _tracing
    with _lock:
        _tracing += 1
    try:
        yield
    finally:
        with _lock:
            _tracing -= 1


def is_large(value: Any) -> bool:
    """True for a symbolic size with a factor or summand of 31 bits and more: int64, which wraps, might not hold it."""
    return type(value) is SymbolicSize and any(abs(factor) >= 1 << 31 for _, factor in value.terms)


def sizes_array(dims: Iterable[Any]) -> np.ndarray[Any, Any]:
    """Dims as an array of int64, or of objects where one is symbolic."""
    values = list(dims)
    if any(type(d) is SymbolicSize for d in values):
        array = np.empty(len(values), object)
        array[:] = values
        return array
    return np.array(values, np.int64)


Concrete = Callable[[Any], Any]


def concrete(trace: SizeTrace, values: Sequence[int]) -> Concrete:
    """Return the function that puts numbers in the place of symbolic sizes: in sizes, tuples of dims, arrays (int64
    comes out); all else stays as it is. `values` are those of `SizeTrace.values`. It raises NotSymbolic for a number
    that int64 does not hold."""
    known: dict[Terms, int] = {}

    def number(size: SymbolicSize) -> int:
        value = known.get(size.terms)
        if value is None:
            value = known[size.terms] = trace.value(size.terms, values)
        return value

    def put(value: Any) -> Any:
        if type(value) is SymbolicSize:
            return number(value)
        if type(value) is tuple:
            return tuple([number(v) if type(v) is SymbolicSize else v for v in value])
        if is_symbolic(value):
            return np.array([put(v) for v in value.ravel().tolist()], np.int64).reshape(value.shape)
        return value

    return put

"""Normal forms of symbolic sizes: what a trace has found equal is written the same way."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...ops.symbolic import SizeTrace, SymbolicSize, Terms, is_symbolic

Size = int | Terms
Term = tuple[tuple[int, ...], int]  # a product of symbols and a number


class NormalSizes:
    """Sizes in terms of as few symbols as the guards of a trace leave: where these say that `s1 == 1` and that
    `s2 == s0 + s1`, only `s0` is left.

    >>> trace = SizeTrace()
    >>> n, m = trace.symbol(6), trace.symbol(1)
    >>> m == 1, NormalSizes(trace).of(n * m + m)
    (True, (((), 1), ((0,), 1)))
    """

    def __init__(self, trace: SizeTrace) -> None:
        self.trace = trace
        self._known: dict[int, Terms] = {}
        self._multiples: dict[int, tuple[int, Terms]] = {}  # so many times a quotient are other terms
        for (terms, how), outcome in trace.guards.items():
            if how == "=" and outcome:
                self._solve(self._put_in(terms))
        for number, (above, below) in trace.quotients.items():  # of which some divide once that is known
            quotient = over(self._put_in(above), self._put_in(below))
            known = quotient is None or number in self._known
            if quotient is not None and not known and not self._reaches(as_terms(quotient), number):
                self._known = {s: self._replaced(t, number, as_terms(quotient)) for s, t in self._known.items()}
                self._known[number] = as_terms(quotient)
        for (terms, how), outcome in trace.guards.items():
            if how == "=" and outcome:
                self._divide(self._put_in(terms))

    def of(self, dim: Any) -> Size:
        """The normal form of a size; an int where it is the same for all."""
        if not is_symbolic(dim):
            return int(dim)
        assert type(dim) is SymbolicSize
        return as_size(self._put_in(dim.terms))

    def multiple(self, size: Size, count: int) -> Size:
        """So many times a size."""
        return as_size(self._put_in(times(as_terms(size), as_terms(count))))

    def left(self, count: int) -> list[int]:
        """The first `count` symbols without those that are expressed by others."""
        return [s for s in range(count) if s not in self._known]

    def symbols(self, terms: Terms) -> set[int]:
        """The symbols of inputs that terms depend on, those behind quotients included."""
        reached = set[int]()
        for s in {s for symbols, _ in terms for s in symbols}:
            parts = self.trace.quotients.get(s)
            reached |= {s} if parts is None else set().union(*(self.symbols(self._put_in(p)) for p in parts))
        return reached

    def at(self, terms: Terms, values: Sequence[int]) -> int:
        """The number that terms in normal form are for these values of the symbols of inputs, those of quotients made
        of them."""

        def number(symbol: int) -> int:
            parts = self.trace.quotients.get(symbol)
            if parts is None:
                return values[symbol]
            above, below = (self.at(self._put_in(part), values) for part in parts)
            return above // below

        return sum(factor * math.prod(map(number, symbols)) for symbols, factor in terms)

    def rises(self, terms: Terms, sign: int = 1) -> bool:
        """True if it is plain that terms (for a `sign` of -1, their negatives) grow with the sizes of inputs."""
        return all(
            (self._symbol_rises(symbols[0], sign if factor > 0 else -sign) if len(symbols) == 1 else
             factor * sign > 0 and all(self._symbol_rises(s, 1) for s in symbols))
            for symbols, factor in terms
            if symbols
        )  # fmt: skip

    def _symbol_rises(self, symbol: int, sign: int) -> bool:
        parts = self.trace.quotients.get(symbol)
        if parts is None:
            return sign > 0
        above, below = map(self._put_in, parts)
        return len(below) == 1 and not below[0][0] and below[0][1] > 0 and self.rises(above, sign)

    def _put_in(self, terms: Terms) -> Terms:
        if not any(s in self._known for symbols, _ in terms for s in symbols):
            return self._joined(terms)
        total: Mapping[tuple[int, ...], int] = {}
        for symbols, factor in terms:
            product: Terms = (((), factor),)
            for s in symbols:
                product = times(product, self._known.get(s, (((s,), 1),)))
            total = _added(total, product)
        return self._joined(_sorted(total))

    def _joined(self, terms: Terms) -> Terms:
        """The terms without whole multiples of quotients that are known."""
        for symbols, factor in terms if self._multiples else ():
            for s in symbols:
                many, others = self._multiples.get(s, (0, ()))
                if many and abs(factor) >= many:
                    count = abs(factor) // many * (1 if factor > 0 else -1)
                    left = list(symbols)
                    left.remove(s)
                    total = _added(dict(terms), ((symbols, -count * many),))
                    return self._joined(_sorted(_added(total, times(others, ((tuple(left), count),)))))
        return terms

    def _solve(self, terms: Terms) -> None:
        """Express one symbol of terms that are 0 by the others."""
        for symbols, factor in reversed(terms):
            if len(symbols) == 1 and abs(factor) == 1 and sum(symbols[0] in others for others, _ in terms) == 1:
                solution = tuple((m, -f * factor) for m, f in terms if m != symbols)
                if self._reaches(solution, symbols[0]):
                    continue
                self._known = {s: self._replaced(t, symbols[0], solution) for s, t in self._known.items()}
                self._known[symbols[0]] = solution
                return

    def _divide(self, terms: Terms) -> None:
        """Note that so many times the last quotient among terms that are 0 are the others."""
        last = max((s for symbols, _ in terms for s in symbols), default=-1)
        parts = [(symbols, factor) for symbols, factor in terms if last in symbols]
        if last in self.trace.quotients and len(parts) == 1 and parts[0][0] == (last,) and abs(parts[0][1]) > 1:
            sign = -1 if parts[0][1] > 0 else 1
            others = tuple((m, f * sign) for m, f in terms if m != (last,))
            self._multiples.setdefault(last, (abs(parts[0][1]), others))

    def _reaches(self, terms: Terms, symbol: int) -> bool:
        """True if a symbol is among terms or what their quotients are made of."""
        return any(
            s == symbol or any(self._reaches(self._put_in(part), symbol) for part in self.trace.quotients.get(s, ()))
            for symbols, _ in self._put_in(terms)
            for s in symbols
        )

    def _replaced(self, terms: Terms, symbol: int, by: Terms) -> Terms:
        former, self._known = self._known, {symbol: by}
        try:
            return self._put_in(terms)
        finally:
            self._known = former


def times(a: Terms, b: Terms) -> Terms:
    """The product of two sizes."""
    total: Mapping[tuple[int, ...], int] = {}
    for m, f in a:
        total = _added(total, tuple((tuple(sorted(m + n)), f * g) for n, g in b))
    return _sorted(total)


def minus(a: Terms, b: Terms) -> Terms:
    """The difference of two sizes."""
    return _sorted(_added(dict(a), tuple((m, -f) for m, f in b)))


def as_size(terms: Terms) -> Size:
    """Terms as a size."""
    if not terms or (len(terms) == 1 and not terms[0][0]):
        return terms[0][1] if terms else 0
    return terms


def as_terms(size: Size) -> Terms:
    """A size as terms."""
    return (((), size),) if isinstance(size, int) else size


def over(above: Size, below: Size) -> Size | None:
    """The quotient of two sizes, of which one is a product of symbols and a number; None where it has a remainder.

    >>> n, b = (((0,), 1),), (((1,), 1),)
    >>> over(times(n, b), n), over(12, 4), over(n, b)
    ((((1,), 1),), 3, None)
    """
    top, bottom = as_terms(above), as_terms(below)
    if len(bottom) == 1:
        parts = [_product_over(term, bottom[0]) for term in top]
        quotient = tuple(part for part in parts if part is not None)
        if len(quotient) < len(top):
            return None
    else:
        part = _product_over(top[0], bottom[0]) if top else None
        if part is None or times((part,), bottom) != top:
            return None
        quotient = (part,)
    return quotient[0][1] if len(quotient) == 1 and not quotient[0][0] else _sorted(dict(quotient))


def _product_over(term: Term, by: Term) -> Term | None:
    """The quotient of two products of symbols and a number; None where it has a remainder."""
    left = list(term[0])
    for s in by[0]:
        if s not in left:
            return None
        left.remove(s)
    return (tuple(left), term[1] // by[1]) if by[1] and not term[1] % by[1] else None


def _added(total: Mapping[tuple[int, ...], int], terms: Terms) -> dict[tuple[int, ...], int]:
    result = dict(total)
    for m, f in terms:
        result[m] = result.get(m, 0) + f
    return result


def _sorted(total: Mapping[tuple[int, ...], int]) -> Terms:
    return tuple(sorted((m, f) for m, f in total.items() if f))

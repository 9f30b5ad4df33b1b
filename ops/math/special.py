"""Special functions as scalar expressions, so that they fuse like any other: the error function.

https://dlmf.nist.gov/7.2; for float64 the approximations of W. J. Cody (1969),
https://www.ams.org/journals/mcom/1969-23-107/S0025-5718-1969-0247736-4/
"""

from __future__ import annotations

from collections.abc import Sequence

from ..core.expr import Expr, Expressions
from ..types import DType

# erf(x)/x = P(x*x)/Q(x*x) for |x| < 3.92, fitted by weighted least squares: off by 2e-8 in exact arithmetic, by 4e-7
# of the result in float32. From there on erf is 1 in float32. Highest power first.
_SINGLE = (
    (2.0500877e-06, 0.00028488346, 0.003765637, 0.052748784, 0.19040689, 1.1283791),
    (3.8091755e-05, 0.0011625409, 0.014969257, 0.11410929, 0.50207645, 1.0),
)
# Cody: erf(x)/x over x*x for |x| <= 0.46875; erfc(x)*exp(x*x) over x beyond, exact enough up to 6, where erf is 1
_INNER = (
    (1.85777706184603153e-1, 3.16112374387056560, 1.13864154151050156e2, 3.77485237685302021e2, 3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3),
)
_OUTER = (
    (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594, 6.61191906371416295e1,
     2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
     1.23033935479799725e3),
    (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
     3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3),
)  # fmt: skip


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Evaluate a polynomial by Horner's rule; the highest power comes first."""
    first, second, *rest = coefficients
    total = (x if first == 1 else x * first) + second
    for c in rest:
        total = total * x + c
    return total


def _ratio(x: Expr, parts: Sequence[Sequence[float]]) -> Expr:
    return _polynomial(x, parts[0]) / _polynomial(x, parts[1])


def erf(e: Expressions, x: Expr) -> Expr:
    """The error function, to 4e-7 of the result in float32 and 1e-15 in float64."""
    if x.dtype is not DType.DOUBLE:
        near = e.max(e.min(x, 3.92), -3.92)
        return e.max(e.min(near * _ratio(near * near, _SINGLE), 1), -1)
    size = e.min(e.abs(x), 6.0)
    square = size * size
    far = 1 - e.exp(-square) * _ratio(size, _OUTER)
    return e.where(e.less_equal(size, 0.46875), x * _ratio(square, _INNER), e.where(e.less(x, 0), -far, far))

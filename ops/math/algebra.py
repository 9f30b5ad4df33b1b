"""Linear algebra beyond the product of two matrices: Einstein sums and determinants.

https://onnx.ai/onnx/operators/onnx__Einsum.html, https://onnx.ai/onnx/operators/onnx__Det.html
"""

from __future__ import annotations

import math
from string import ascii_letters
from typing import Any

import numpy as np

from ..core.rules import narrow, same, widen
from ..errors import ShapeError
from ..op import Builder, Context, Sample, Value, broadcast_dims, op
from ..types import Array, Dim, Tensor, f32, i64


def terms_of(equation: str, count: int) -> tuple[list[str], str]:
    """The labels of each operand and of the result; an ellipsis is one label, written as a dot."""
    left, arrow, right = equation.replace(" ", "").replace("...", ".").partition("->")
    terms = left.split(",")
    if len(terms) != count:
        raise ShapeError(f"the equation {equation!r} has {len(terms)} terms for {count} operands")
    letters = left.replace(",", "")
    wrong = [c for c in letters + right if not (c.isascii() and c.isalpha()) and c != "."]
    if wrong or any(t.count(".") > 1 for t in (*terms, right)):
        raise ShapeError(f"the equation {equation!r} is malformed", hint="terms are letters, and one ellipsis at most")
    if not arrow:
        right = "." * ("." in letters) + "".join(sorted(c for c in set(letters) - {"."} if letters.count(c) == 1))
    lost = [c for c in right if c not in letters]
    if lost or any(right.count(c) > 1 for c in right):
        raise ShapeError(f"the result of {equation!r} names {' and '.join(lost) or 'a label twice'}")
    return terms, right


@op(
    "Einsum",
    kind="einsum",
    written_out=True,
    since=28,
    outputs=("Output",),
    samples=[
        Sample([f32(2, 3), f32(3, 4)], {"equation": "ij,jk->ik"}),
        Sample([f32(2, 3)], {"equation": "ij"}),
        Sample([f32(3, 2)], {"equation": "ba"}),
        Sample([f32(3, 3)], {"equation": "ii->i"}),
        Sample([f32(3, 3)], {"equation": "ii"}),
        Sample([f32(2, 3), f32(2, 3)], {"equation": "ij, ij -> "}),
        Sample([f32(2, 5, 3), f32(1, 3, 4)], {"equation": "...ij,...jk->...ik"}),
        Sample([f32(4, 2, 5, 3), f32(1, 5, 4)], {"equation": "a...k,...a"}),
        Sample([f32(2, 3), f32(4, 3), f32(4, 5)], {"equation": "iA,jA,jB->Bi"}),
        Sample([i64(2, 3), i64(3)], {"equation": "ij,j"}),
        Sample([f32(2, 0), f32(0, 3)], {"equation": "ij,jk"}),
        Sample([f32(2, 3), f32(4)], {"equation": "ij,k->k"}),
        Sample([f32(2, 3), f32(1, 4)], {"equation": "ij,jk->ik"}),
        Sample([f32(2, 3), f32(2, 1)], {"equation": "ij,ij->i"}),
        Sample([f32(3, 2, 3), f32(3)], {"equation": "iji,i->j"}),
        Sample([f32(2, 2, 2)], {"equation": "iii"}),
        Sample([f32(3, 4), f32(2, 1, 4)], {"equation": "...a,...a->a..."}),
        Sample([f32(2, 5, 3, 4), f32(2, 6, 3, 4)], {"equation": "bqhd,bkhd->bhqk"}),
        Sample([f32(2, 3, 5, 6), f32(2, 6, 3, 4)], {"equation": "bhqk,bkhd->bqhd"}),
        Sample([f32(2, 3, 4), f32(5, 3, 4)], {"equation": "bij,kij->kb"}),
        Sample([f32(2, 3, 4, 5), f32(4, 6, 5, 7)], {"equation": "abcd,cedf->ebaf"}),
        Sample([f32(4, 3, 2)], {"equation": "abc->ca"}),
        Sample([f32(2, 1, 3), f32(4, 5, 1)], {"equation": "abc,dbe->aecd"}),
    ],
)
def einsum(k: Context, *Inputs: Array, equation: str) -> Array:
    terms, result = terms_of(equation, len(Inputs))
    spelt = f"{','.join(terms)}->{result}".replace(".", "...")
    wide = [widen(x) for x in Inputs]
    # two large ones meet in a product of matrices; to look for it takes longer than small ones take
    large = len(wide) == 2 and sum(x.size for x in wide) > 4096
    y = k.xp.einsum(spelt, *wide, optimize=len(wide) > 2 or large)
    return k.xp.array(narrow(k.xp.asarray(y), Inputs[0].dtype), order="C")


def _along(a: Dim, b: Dim, what: str) -> Dim:
    """The size of two axes with one label; an axis of 1 is repeated."""
    return b if a == 1 else a if b == 1 else same(a, b, what)


@einsum.infer
def _(*Inputs: Tensor, equation: str) -> Tensor:
    terms, result = terms_of(equation, len(Inputs))
    sizes: dict[str, Dim] = {}
    spread: list[tuple[Dim, ...] | None] = []
    for term, t in zip(terms, Inputs, strict=True):
        letters = term.replace(".", "")
        if t.dims is None:
            spread += [None] * ("." in term)
            for c in letters:
                sizes.setdefault(c, None)
            continue
        rest = len(t.dims) - len(letters)
        if rest < 0 or (rest and "." not in term):
            raise ShapeError(f"the term {term.replace('.', '...')!r} does not fit {t}")
        at = term.find(".") if "." in term else len(letters)
        spread += [t.dims[at : at + rest]] * ("." in term)
        for c, d in zip(letters, (*t.dims[:at], *t.dims[at + rest :]), strict=True):
            sizes[c] = _along(sizes[c], d, f"axes {c!r} of {equation!r}") if c in sizes else d
    dims: list[Dim] = []
    for c in result:
        if c != ".":
            dims.append(sizes[c])
            continue
        lead = broadcast_dims(*spread)
        if lead is None:
            return Inputs[0].of(None)
        dims += lead
    return Inputs[0].of(dims)


@einsum.older
def _(g: Builder, xs: Any, types: Any, *, equation: str) -> Value | None:
    """Sums, then one product of matrices, or of elements; None for diagonals, and for three operands and more, of which
    only the sizes tell which two meet first."""
    if len(xs) > 2 or any(t.dims is None or 0 in t.dims or not t.dtype.floating for t in types):
        return None
    terms, result = terms_of(equation, len(xs))
    spread = max((len(t.dims) - len(term) + 1 for t, term in zip(types, terms, strict=True) if "." in term), default=0)
    terms, result = _spelt(equation, [len(t.dims) for t in types], len(result) - ("." in result) + spread)
    if any(len({*term}) < len(term) for term in terms) or (spread and "." not in terms_of(equation, len(xs))[1]):
        return None
    sizes = [dict(zip(term, t.dims, strict=True)) for term, t in zip(terms, types, strict=True)]
    for i, term in enumerate(terms):
        alone = [axis for axis, c in enumerate(term) if not any(c in o for o in (*terms[:i], *terms[i + 1 :], result))]
        if alone and len(xs) > 1 and types[0].dtype.narrow:
            return None  # the sums would be rounded
        if alone:
            xs = [*xs[:i], g.ReduceSum(xs[i], g.const(alone), keepdims=0), *xs[i + 1 :]]
            terms[i] = "".join(c for axis, c in enumerate(term) if axis not in alone)
    if len(xs) == 1:
        return _moved(g, xs[0], terms[0], result)
    summed = "".join(c for c in terms[0] if c not in result)
    if not summed:  # elements meet where labels do
        return g.Mul(*(_spread(g, x, term, result) for x, term in zip(xs, terms, strict=True)))
    both = "".join(c for c in result if c in terms[0] and c in terms[1])
    rows, columns = ("".join(c for c in result if c in term and c not in both) for term in terms)
    if any(sizes[0][c] is None or sizes[0][c] != sizes[1][c] for c in summed):
        return None  # an axis of 1 may be repeated along the other's
    left = _matrices(g, xs[0], terms[0], both, (rows, summed), sizes[0])
    right = _matrices(g, xs[1], terms[1], both, (summed, columns), sizes[1])
    if left is None or right is None:
        return None
    y = g.MatMul(left, right)
    if len(rows) != 1 or len(columns) != 1:
        known = {**sizes[1], **sizes[0]}
        split = [d if isinstance(d := known[c], int) else -1 for c in rows + columns]
        if split.count(-1) > 1:
            return None
        y = g.Reshape(y, g.const(np.array([0] * len(both) + split, np.int64)))
    return _moved(g, y, both + rows + columns, result)


def _moved(g: Builder, x: Value, term: str, wanted: str) -> Value:
    """The axes of a value in another order."""
    return x if term == wanted else g.Transpose(x, perm=tuple(map(term.index, wanted)))


def _spread(g: Builder, x: Value, term: str, wanted: str) -> Value:
    """A value with axes of 1 for the labels that it lacks."""
    x = _moved(g, x, term, "".join(c for c in wanted if c in term))
    missing = [axis for axis, c in enumerate(wanted) if c not in term]
    return g.Unsqueeze(x, g.const(missing)) if missing else x


def _matrices(
    g: Builder, x: Value, term: str, both: str, groups: tuple[str, str], sizes: dict[str, Dim]
) -> Value | None:
    """Matrices whose rows and columns are axes of a value, several in one; None where their sizes are not known."""
    x = _moved(g, x, term, both + "".join(groups))
    if all(len(group) == 1 for group in groups):
        return x
    if all(len(group) <= 1 for group in groups):
        return g.Unsqueeze(x, g.const([len(both) + i for i, group in enumerate(groups) if not group]))
    known = {c: d for c, d in sizes.items() if isinstance(d, int)}
    if any(c not in known for group in groups for c in group):
        return None
    merged = [math.prod(known[c] for c in group) for group in groups]
    return g.Reshape(x, g.const([0] * len(both) + merged))


@einsum.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any, *, equation: str) -> tuple[Value | None, ...]:
    terms, result = _spelt(equation, [g.rank_of(x) for x in xs], g.rank_of(ys[0]))
    grads: list[Value | None] = [None] * len(xs)
    for i, x in enumerate(xs):
        if g.wants[i]:
            others = [(t, v) for j, (t, v) in enumerate(zip(terms, xs, strict=True)) if j != i]
            grads[i] = _einsum_gradient(g, x, terms[i], [(result, dys[0]), *others])
    return tuple(grads)


def _spelt(equation: str, ranks: list[int], rank: int) -> tuple[list[str], str]:
    """The terms and the result with letters for the axes of ellipses, of which the last ones line up."""
    terms, result = terms_of(equation, len(ranks))
    free = "".join(c for c in ascii_letters if c not in equation)

    def spelt(term: str, rank: int) -> str:
        return term.replace(".", free[len(free) - (rank - len(term) + 1) :]) if "." in term else term

    return [spelt(t, r) for t, r in zip(terms, ranks, strict=True)], spelt(result, rank)


def _einsum_gradient(g: Builder, x: Value, term: str, factors: list[tuple[str, Value]]) -> Value:
    """The sum of products of the gradient with all other operands, along the axes of one operand."""
    free = iter(c for c in ascii_letters if not any(c in t for t, _ in [(term, x), *factors]))
    own = ""
    for axis, c in enumerate(term):  # where a label comes again only the diagonal counts
        own += next(free) if c in own else c
        if own[axis] != c:
            places = g.Range(g.const(0), g.Gather(g.shape_of(x), g.const(axis), axis=0), g.const(1))
            diagonal = g.Equal(g.Unsqueeze(places, g.const([1])), places)
            factors = [*factors, (c + own[axis], g.CastLike(diagonal, x))]
    given = "".join(t for t, _ in factors)
    left, right = ",".join(t for t, _ in factors), "".join(c for c in own if c in given)
    dx = g.Einsum(*(v for _, v in factors), equation=f"{left}->{right}")
    missing = [axis for axis, c in enumerate(own) if c not in given]
    dx = g.Unsqueeze(dx, g.const(missing)) if missing else dx
    if any(c not in factors[0][0] for c in own):  # summed: others may lack the axis, or be repeated along it
        dx = g.Expand(dx, g.shape_of(x))
    return g.sum_to(dx, x)


@op(
    "Det",
    complex_numbers="holomorphic",
    since=22,
    samples=[Sample([f32(3, 3)]), Sample([f32(2, 4, 2, 2)]), Sample([f32(0, 2, 2)]), Sample([f32(1, 1)])],
)
def det(k: Context, X: Array) -> Array:
    return narrow(k.xp.asarray(k.xp.linalg.det(widen(X))), X.dtype)


@det.infer
def _(X: Tensor) -> Tensor:
    if X.rank < 2:
        raise ShapeError(f"{X} is no matrix")
    same(X.shape[-1], X.shape[-2], f"{X} has no determinant")
    return X.of(X.shape[:-2])


@det.grad
def _(g: Builder, dys: Any, ys: Any, xs: Any) -> tuple[Value, ...]:
    dY = g.Unsqueeze(dys[0], g.const([-2, -1]))
    return (g.Mul(dY, g.Cofactors(xs[0], domain="mezzo")),)


@op(
    "Cofactors",
    domain="mezzo",
    complex_numbers="taken",
    samples=[*det.samples, Sample([np.array([[1, 2, 3], [2, 4, 6], [0, 1, 1]], np.float32)])],
)
def cofactors(k: Context, X: Array) -> Array:
    """For each element of square matrices the determinant of what is left without its row and column, with the sign of
    a chessboard: the derivative of the determinant. By singular values, so that singular matrices have them too; NaN
    where an element is not finite, for which LAPACK may search singular values without an end."""
    n, wide = X.shape[-1], widen(X)
    finite = k.xp.isfinite(wide).all((-2, -1), keepdims=True)
    u, s, vt = k.xp.linalg.svd(k.xp.where(finite, wide, 0))
    others = k.xp.where(k.xp.eye(n, dtype=bool), 1, s[..., None, :]).prod(-1)  # for each value the product of the rest
    sign = k.xp.linalg.det(u) * k.xp.linalg.det(vt)
    y = k.xp.matmul(k.xp.conj(u) * (others * sign[..., None])[..., None, :], k.xp.conj(vt))
    y = k.xp.where(finite, y, math.nan) if n > 1 else y
    return k.xp.array(narrow(y.astype(wide.dtype, copy=False), X.dtype), order="C")


@cofactors.body
def _(g: Builder, xs: Any, types: Any) -> Value | None:
    """Determinants of the matrix in which row i is all zeros but for a one in column j."""
    (X,), (known,) = xs, types
    if known is None or known.dims is None:
        return None
    n = g.Gather(g.shape_of(X), g.const(-1), axis=0)
    places = g.Range(g.const(0), n, g.const(1))
    same = g.Equal(g.Unsqueeze(places, g.const([1])), places)
    row = g.Unsqueeze(same, g.const([1, 3]))  # i, 1, rows, 1
    column = g.CastLike(g.Unsqueeze(same, g.const([0, 2])), X)  # 1, j, 1, columns
    return g.Det(g.Where(row, column, g.Unsqueeze(X, g.const([-4, -3]))))

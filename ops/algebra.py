"""Linear algebra beyond the product of two matrices: Einstein sums and determinants.

https://onnx.ai/onnx/operators/onnx__Einsum.html, https://onnx.ai/onnx/operators/onnx__Det.html
"""

from __future__ import annotations

from .errors import ShapeError
from .op import Context, Sample, broadcast_dims, op
from .rules import narrow, same, widen
from .types import Array, Dim, Tensor, f32, i64


def _terms(equation: str, count: int) -> tuple[list[str], str]:
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
    ],
)
def einsum(k: Context, *Inputs: Array, equation: str) -> Array:
    terms, result = _terms(equation, len(Inputs))
    spelt = f"{','.join(terms)}->{result}".replace(".", "...")
    wide = [widen(x) for x in Inputs]
    y = k.xp.einsum(spelt, *wide, optimize=len(wide) > 2)
    return k.xp.array(narrow(k.xp.asarray(y), Inputs[0].dtype), order="C")


def _along(a: Dim, b: Dim, what: str) -> Dim:
    """The size of two axes with one label; an axis of 1 is repeated."""
    return b if a == 1 else a if b == 1 else same(a, b, what)


@einsum.infer
def _(*Inputs: Tensor, equation: str) -> Tensor:
    terms, result = _terms(equation, len(Inputs))
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


@op(
    "Det",
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

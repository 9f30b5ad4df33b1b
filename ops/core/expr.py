"""Scalar expressions: one tree per pointwise operator, from which every executable form is generated.

A tree is built once the element types are known, so a rule may look at `x.dtype`. `lower` (ops/core/lowered.py) turns
trees into straight-line code, which evaluators read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..dataclasses import dataclass, field
from ..errors import ShapeError
from ..types import DType

Scalar = int | float | bool

# primitive -> (ufunc of the array module, "same" element type as the operands or "bool")
PRIMITIVES: dict[str, tuple[str, str]] = {
    "add": ("add", "same"),
    "sub": ("subtract", "same"),
    "mul": ("multiply", "same"),
    "div": ("divide", "same"),
    "floor_div": ("floor_divide", "same"),
    "fmod": ("fmod", "same"),
    "mod": ("remainder", "same"),
    "pow": ("power", "same"),
    "max": ("maximum", "same"),
    "min": ("minimum", "same"),
    "neg": ("negative", "same"),
    "abs": ("absolute", "same"),
    "sign": ("sign", "same"),
    "exp": ("exp", "same"),
    "expm1": ("expm1", "same"),
    "log": ("log", "same"),
    "log1p": ("log1p", "same"),
    "sqrt": ("sqrt", "same"),
    "reciprocal": ("reciprocal", "same"),
    "floor": ("floor", "same"),
    "ceil": ("ceil", "same"),
    "rint": ("rint", "same"),
    "sin": ("sin", "same"),
    "cos": ("cos", "same"),
    "tan": ("tan", "same"),
    "asin": ("arcsin", "same"),
    "acos": ("arccos", "same"),
    "atan": ("arctan", "same"),
    "sinh": ("sinh", "same"),
    "cosh": ("cosh", "same"),
    "tanh": ("tanh", "same"),
    "asinh": ("arcsinh", "same"),
    "acosh": ("arccosh", "same"),
    "atanh": ("arctanh", "same"),
    "equal": ("equal", "bool"),
    "less": ("less", "bool"),
    "less_equal": ("less_equal", "bool"),
    "greater": ("greater", "bool"),
    "greater_equal": ("greater_equal", "bool"),
    "isnan": ("isnan", "bool"),
    "isinf": ("isinf", "bool"),
    "and": ("logical_and", "bool"),
    "or": ("logical_or", "bool"),
    "xor": ("logical_xor", "bool"),
    "not": ("logical_not", "bool"),
    "bit_and": ("bitwise_and", "same"),
    "bit_or": ("bitwise_or", "same"),
    "bit_xor": ("bitwise_xor", "same"),
    "bit_not": ("invert", "same"),
    # shifts are total: by a negative number, or by all bits and more, they leave what shifting bit by bit would leave
    "shift_left": ("left_shift", "same"),
    "shift_right": ("right_shift", "same"),
}
# Primitives whose result is exact in the element type of their operands, so that a narrow float loses nothing.
EXACT = {"max", "min", "neg", "abs", "sign", "floor", "ceil", "rint", "where"} | {
    kind for kind, (_, result) in PRIMITIVES.items() if result == "bool"
}


@dataclass(frozen=True, slots=True)
class Expr:
    """A node of a scalar expression: an input (`value` = its index), a constant, a cast, a select or a primitive."""

    kind: str
    args: tuple[Expr, ...]
    dtype: DType
    value: Scalar | None = None
    _hash: int = field(default=0, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:  # once: trees share subtrees, and hashing a whole tree at each node is slow
        object.__setattr__(self, "_hash", hash((self.kind, self.args, self.dtype, self.value)))

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: Expr | Scalar) -> Expr:
        return E.make("add", self, other)

    def __radd__(self, other: Scalar) -> Expr:
        return E.make("add", other, self)

    def __sub__(self, other: Expr | Scalar) -> Expr:
        return E.make("sub", self, other)

    def __rsub__(self, other: Scalar) -> Expr:
        return E.make("sub", other, self)

    def __mul__(self, other: Expr | Scalar) -> Expr:
        return E.make("mul", self, other)

    def __rmul__(self, other: Scalar) -> Expr:
        return E.make("mul", other, self)

    def __truediv__(self, other: Expr | Scalar) -> Expr:
        return E.make("div", self, other)

    def __rtruediv__(self, other: Scalar) -> Expr:
        return E.make("div", other, self)

    def __neg__(self) -> Expr:
        return E.make("neg", self)

    def __str__(self) -> str:
        if self.kind == "input":
            return f"x{self.value}"
        if self.kind == "const":
            return repr(self.value)
        return f"{self.kind}({', '.join(map(str, self.args))})"


class Expressions:
    """The namespace `e` in a pointwise rule: `e.exp(x)`, `e.max(a, b)`, `e.where(c, a, b)`, `e.cast(x, dtype)`, `x * 2
    + 1`."""

    def make(self, kind: str, *operands: Expr | Scalar) -> Expr:
        """A primitive of PRIMITIVES over expressions; Python scalars take the element type of the others."""
        dtype = next(o.dtype for o in operands if isinstance(o, Expr))
        args = tuple(o if isinstance(o, Expr) else Expr("const", (), dtype, o) for o in operands)
        if any(a.dtype is not dtype for a in args):
            raise ShapeError(f"{kind} of {' and '.join(str(a.dtype) for a in args)}: element types differ")
        return Expr(kind, args, DType.BOOL if PRIMITIVES[kind][1] == "bool" else dtype)

    def where(self, condition: Expr, x: Expr | Scalar, y: Expr | Scalar) -> Expr:
        """`x` where the condition holds, else `y`."""
        dtype = next(o.dtype for o in (x, y) if isinstance(o, Expr))
        chosen = tuple(o if isinstance(o, Expr) else Expr("const", (), dtype, o) for o in (x, y))
        if any(a.dtype is not dtype for a in chosen):
            raise ShapeError(f"where of {' and '.join(str(a.dtype) for a in chosen)}: element types differ")
        return Expr("where", (condition, *chosen), dtype)

    def number(self, value: Scalar, like: Expr) -> Expr:
        """A constant in the element type of an expression, where no other operand tells it."""
        return Expr("const", (), like.dtype, value)

    def cast(self, x: Expr, dtype: DType) -> Expr:
        """The same numbers in another element type, as C casts them."""
        return x if x.dtype is dtype else Expr("cast", (x,), dtype)

    def __getattr__(self, kind: str) -> Callable[..., Expr]:
        kind = kind.rstrip("_")  # `e.and_`, `e.or_`, `e.not_` are keywords otherwise
        if kind not in PRIMITIVES:
            raise AttributeError(kind)
        return lambda *operands: self.make(kind, *operands)


E = Expressions()


def inputs(dtypes: Sequence[DType | None]) -> list[Expr | None]:
    """One leaf per present input."""
    return [None if d is None else Expr("input", (), d, i) for i, d in enumerate(dtypes)]


def tree_of(rule: Callable[..., Expr], dtypes: Sequence[DType | None], **attrs: Any) -> Expr:
    """The tree that a pointwise rule makes. In floats of 16 bits or less, a tree of several steps is computed in
    float32 and rounded once, at its end."""
    tree = rule(E, *inputs(dtypes), **attrs)
    if not any(d is not None and d.narrow for d in dtypes) or not _rounds(tree):
        return tree
    wide = [leaf and (E.cast(leaf, DType.FLOAT) if leaf.dtype.narrow else leaf) for leaf in inputs(dtypes)]
    return E.cast(rule(E, *wide, **attrs), tree.dtype)


def _rounds(tree: Expr) -> bool:
    """True if a tree has several steps, of which one rounds."""
    if not any(a.args for a in tree.args) and all(a.kind != "const" for a in tree.args):
        return False
    todo = [tree]
    while todo:
        node = todo.pop()
        if node.args and node.kind not in EXACT:
            return True
        todo += node.args
    return False


def substitute(tree: Expr, leaves: Mapping[int, Expr] | Sequence[Expr | None]) -> Expr:
    """The tree with other expressions in place of its inputs."""
    done: dict[Expr, Expr] = {}

    def replaced(node: Expr) -> Expr:
        if node not in done:
            if node.kind == "input":
                leaf = leaves[int(node.value or 0)]
                assert leaf is not None
                done[node] = leaf
            else:
                args = tuple(map(replaced, node.args))
                done[node] = node if args == node.args else Expr(node.kind, args, node.dtype, node.value)
        return done[node]

    return replaced(tree)

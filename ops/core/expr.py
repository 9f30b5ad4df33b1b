"""Scalar expressions: one tree per pointwise operator, from which every executable form is generated.

A tree is built once the element types are known, so a rule may look at `x.dtype`. `evaluate` runs it on arrays with
fresh results (the reference); `lower` turns it into a list of instructions over registers (the allocation-free form).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..dataclasses import dataclass, field
from ..errors import ShapeError
from ..types import Array, DType

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


def evaluate(expr: Expr, xp: Any, xs: Sequence[Array]) -> Array:
    """Run a tree on arrays of the module `xp`, every result fresh; broadcasting as numpy does."""
    done: dict[Expr, Array] = {}

    def run(node: Expr) -> Array:
        if node not in done:
            done[node] = compute(node)
        return done[node]

    def compute(node: Expr) -> Array:
        if node.kind == "input":
            return xs[int(node.value or 0)]
        if node.kind == "const":
            return xp.asarray(node.value, dtype=node.dtype.numpy)
        args = [run(a) for a in node.args]
        if node.kind == "where":
            return xp.where(*args)
        if node.kind == "cast":
            return args[0].astype(node.dtype.numpy)
        # the result type is given because numpy widens some (small integers in `power`, bool in `add`)
        result = getattr(xp, PRIMITIVES[node.kind][0])(*args)
        return xp.asarray(result).astype(node.dtype.numpy, copy=False)

    with xp.errstate(all="ignore"):
        result = run(expr)
    return xp.array(result) if expr.kind in ("input", "const") else result


@dataclass(frozen=True, slots=True)
class Register:
    """Operand or result of an instruction: input number `index`, a temporary, the output, or a constant."""

    space: str  # "input" | "temp" | "out" | "const"
    index: int = 0
    dtype: DType = DType.FLOAT
    value: Scalar | None = None


@dataclass(frozen=True, slots=True)
class Instruction:
    """`dst = ufunc(*srcs)`; `copy` also casts, `put` writes its first source where its second is true."""

    ufunc: str
    srcs: tuple[Register, ...]
    dst: Register


@dataclass(frozen=True, slots=True)
class Lowered:
    """A tree as straight-line code. `temps` lists the element type of each temporary (of the output's shape);
    `inplace` lists the inputs whose bytes the output may take."""

    code: tuple[Instruction, ...]
    temps: tuple[DType, ...]
    inplace: tuple[int, ...]


def _instructions(node: Expr, srcs: list[Register], dst: Register) -> list[Instruction]:
    if node.kind == "where":
        return [Instruction("copy", (srcs[2],), dst), Instruction("put", (srcs[1], srcs[0]), dst)]
    if node.kind in ("cast", "input", "const"):
        return [Instruction("copy", (srcs[0],), dst)]
    return [Instruction(PRIMITIVES[node.kind][0], tuple(srcs), dst)]


def lower(expr: Expr) -> Lowered:
    """Order the tree, share equal subtrees, and give each intermediate value a register.

    The output serves as scratch wherever its element type fits, so that most operators need no temporary at all.
    """
    order: list[Expr] = []

    seen: set[Expr] = set()

    def visit(node: Expr) -> None:
        if node.kind not in ("input", "const") and node not in seen:
            seen.add(node)
            for arg in node.args:
                visit(arg)
            order.append(node)

    visit(expr)
    if not order:
        order = [expr]
    last = {arg: i for i, node in enumerate(order) for arg in node.args}
    out = Register("out", 0, expr.dtype)
    where: dict[Expr, Register] = {}
    temps: list[DType] = []
    free: list[Register] = [out]
    code: list[Instruction] = []

    def read(node: Expr) -> Register:
        if node.kind in ("input", "const"):
            space = int(node.value or 0) if node.kind == "input" else 0
            return Register(node.kind, space, node.dtype, node.value if node.kind == "const" else None)
        return where[node]

    for i, node in enumerate(order):
        leaf = node.kind in ("input", "const")
        srcs = [read(node)] if leaf else [read(a) for a in node.args]
        # a select reads its condition and its first operand after its first write: they keep their registers meanwhile
        dying = [a for a in node.args if last.get(a) == i and a in where]
        early = [a for a in dying if node.kind != "where" or a not in node.args[:2]]
        free += [where[a] for a in dict.fromkeys(early)]
        if i == len(order) - 1:
            if out not in free and node.kind == "where":  # its condition or operand sits in the output: move it
                moved = next(a for a in node.args if where.get(a) == out)
                spare = Register("temp", len(temps), moved.dtype)
                temps.append(moved.dtype)
                code.append(Instruction("copy", (out,), spare))
                srcs = [spare if s == out else s for s in srcs]
            dst = out
        else:
            fit = [r for r in free if r.dtype is node.dtype]
            if fit:
                dst = fit[0]
                free.remove(dst)
            else:
                dst = Register("temp", len(temps), node.dtype)
                temps.append(node.dtype)
        code += _instructions(node, srcs, dst)
        free += [where[a] for a in dict.fromkeys(dying) if a not in early]
        where[node] = dst
    first_write = next(i for i, c in enumerate(code) if c.dst == out)
    last_read: dict[int, int] = {s.index: i for i, c in enumerate(code) for s in c.srcs if s.space == "input"}
    inplace = tuple(i for i, at in sorted(last_read.items()) if at <= first_write)
    return Lowered(tuple(code), tuple(temps), inplace)

"""One operator for all optimizers: a step of one tensor by a rule, which is data; and the same for some rows of one.

`(W, dW, rate, numbers..., draws..., states...) -> (W, states...)`. Behind W, `UpdateRows` has the numbers of the rows
that dW and the draws are of; it leaves the others alone. The rule tells the scalar expressions of the new
tensor and the new states; it is a text, so that it lies in files and travels to servers where no code does. Rates and
other numbers have rank 0 and the element type of W. Reference, inference, standard form and kernels come from the
expressions. runtime/optimizer/ has the optimizers that Mezzo knows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from ..core import expr
from ..core.evaluate import Steps, evaluate
from ..core.expr import PRIMITIVES, Expr
from ..core.lowered import lower
from ..core.rules import in_table
from ..core.standard import STANDARD
from ..dataclasses import replace
from ..errors import InputError, ShapeError
from ..op import Builder, Context, Sample, Value, as_standard, op
from ..types import Array, DType, Tensor, Type, f32

LONGEST, MOST_PARTS = 1 << 14, 512  # characters and parts of a rule that is believed
WHERE = "rule of an optimizer"
# Which operands are truth values, of the primitives that have any.
TRUTHS = {**dict.fromkeys(("and", "or", "xor"), (True, True)), "not": (True,), "where": (True, False, False)}


def text_of(roots: Sequence[Expr], names: Sequence[str]) -> str:
    """Expressions as text, their inputs by these names: parts in the order of their making, each a primitive and its
    operands (a name, a number, or the part of that number), and behind `->` what the results are.

    >>> w, dw, rate = (Expr("input", (), DType.DOUBLE, i) for i in range(3))
    >>> text_of((w - rate * (dw + w * 0.1),), ("W", "dW", "rate"))
    'mul W 0.1; add dW #0; mul rate #1; sub W #2 -> #3'
    """
    words, parts = [*names], list[str]()
    code = lower(roots, len(names))
    for one in code.code:
        if one.kind == "const":
            words.append(repr(float(one.value or 0)))
            continue
        if one.kind not in STANDARD:
            raise InputError(f"{one.kind!r} has no standard form", where=WHERE, hint=f"there are {', '.join(STANDARD)}")
        words.append(f"#{len(parts)}")
        parts.append(" ".join([one.kind, *(words[a] for a in one.args)]))
    return f"{'; '.join(parts)} -> {' '.join(words[root] for root in code.roots)}"


def read(text: str, leaves: Mapping[str, Expr]) -> tuple[Expr, ...]:
    """The expressions that `text_of` has told, over these inputs. Raises InputError for any other text."""
    try:
        if len(text) > LONGEST:
            raise ValueError(f"it has {len(text)} characters")
        before, ends = text.split("->")
        rows = [row.split() for row in before.split(";") if row.strip()]
        if len(rows) > MOST_PARTS:
            raise ValueError(f"it has {len(rows)} parts")
        steps: list[Expr] = []
        dtype = next(iter(leaves.values())).dtype

        def operand(word: str) -> Expr:
            if word.startswith("#"):
                return steps[int(word[1:])]
            return leaves[word] if word in leaves else Expr("const", (), dtype, float(word))

        for kind, *words in rows:
            if kind not in STANDARD:
                raise ValueError(f"{kind!r} is no primitive")
            operands = [operand(w) for w in words]
            if len(operands) != _arity(kind):
                raise ValueError(f"{kind} of {len(operands)} operands")
            for one, truth in zip(operands, TRUTHS.get(kind, (False,) * len(operands)), strict=True):
                if (one.dtype is DType.BOOL) != truth:
                    raise ValueError(f"{kind} of {one.dtype}")
            steps.append(expr.E.where(*operands) if kind == "where" else expr.E.make(kind, *operands))
        return tuple(operand(word) for word in ends.split())
    except (ValueError, IndexError, StopIteration, ShapeError) as error:
        raise InputError(f"this is no rule: {error}", where=WHERE) from error


@lru_cache(maxsize=64)
def _arity(kind: str) -> int:
    return 3 if kind == "where" else int(getattr(np, PRIMITIVES[kind][0]).nin)


def names_of(numbers: int, draws: int, states: int) -> tuple[str, ...]:
    """Return the names of the operator's inputs in a rule."""
    several = (("n", numbers), ("z", draws), ("s", states))
    return ("W", "dW", "rate", *(f"{letter}{i}" for letter, count in several for i in range(count)))


def still(rule: str, numbers: int, draws: int, states: int) -> bool:
    """True if a rule leaves an element with a zero gradient unchanged, and its states too, for all finite numbers. This
    is derived from the rule by identities of zero, without evaluating it.

    >>> descent, adam = SHOWN[0], SHOWN[2]
    >>> still(*descent), still(*adam)
    (True, False)
    """
    names = names_of(numbers, draws, states)
    leaves = dict(zip(names, expr.inputs([DType.DOUBLE] * len(names)), strict=True))
    known = {n: leaf for n, leaf in leaves.items() if leaf is not None}
    zero = Expr("const", (), DType.DOUBLE, 0.0)
    done: dict[Expr, Expr] = {}

    def simple(e: Expr) -> Expr:
        if e not in done:
            done[e] = simplified(replace(e, args=tuple(map(simple, e.args))))
        return done[e]

    def simplified(e: Expr) -> Expr:
        none = [a.kind == "const" and a.value == 0 for a in e.args]
        if (e.kind == "mul" and any(none)) or (e.kind in ("div", "sqrt", "sign", "abs", "neg") and none[0]):
            return zero
        if e.kind == "sub" and e.args[0] == e.args[1]:
            return zero
        if e.kind in ("add", "sub") and none[1]:
            return e.args[0]
        if e.kind == "add" and none[0]:
            return e.args[1]
        return e.args[1] if e.kind == "where" and e.args[1] == e.args[2] else e

    results = [simple(e) for e in read(rule, {**known, "dW": zero})]
    return results == [known["W"], *(known[f"s{i}"] for i in range(states))]


def trees(dtypes: Sequence[DType], attrs: Mapping[str, Any]) -> tuple[Expr, ...]:
    """The expressions of an update's outputs for these element types. Narrow floats are computed in float32."""
    states, draws = attrs.get("states", 0), attrs.get("draws", 0)
    leaves = [leaf for leaf in expr.inputs(dtypes) if leaf is not None]
    wide = [expr.E.cast(leaf, DType.FLOAT) if leaf.dtype.narrow else leaf for leaf in leaves]
    names = names_of(len(leaves) - 3 - draws - states, draws, states)
    if len(names) != len(leaves):
        raise ShapeError(f"an update of {states} states and {draws} draws has {len(leaves)} operands")
    results = read(attrs["rule"], dict(zip(names, wide, strict=True)))
    kept = [leaves[0], *leaves[len(leaves) - states :]]
    if len(results) != len(kept):
        raise ShapeError(f"an update of {states} states has {len(results)} results")
    return tuple(expr.E.cast(m, k.dtype) for m, k in zip(results, kept, strict=True))


@lru_cache(maxsize=256)
def steps_of(dtypes: tuple[DType, ...], rule: str, states: int = 0, draws: int = 0) -> Steps:
    """The steps of an update for these element types. Rates and other numbers are scalars; results may overwrite the
    tensor and its states."""
    results, count = trees(dtypes, {"rule": rule, "states": states, "draws": draws}), len(dtypes)
    return Steps(lower(results, count, range(2, count - draws - states), (0, *range(count - states, count))))


_ONE = np.array([0.7, -0.2, 1.5], np.float32)
_RATE, _HALF = np.float32(0.1), np.float32(0.5)
SHOWN = (  # rule, numbers, draws, states: what the samples show
    ("mul rate dW; sub W #0 -> #1", 0, 0, 0),
    ("mul W 0.1; add dW #0; mul s0 0.9; mul #1 n0; add #2 #3; mul #4 0.9; add #1 #5; mul rate #6; sub W #7 -> #8 #4",
     1, 0, 1),
    ("mul s0 0.9; mul dW 0.1; add #0 #1; div rate n0; mul #2 #3; mul s1 0.999; mul dW dW; mul #6 0.001; add #5 #7;"
     " sqrt #8; div #9 n1; add #10 1e-08; div #4 #11; sub W #12 -> #13 #2 #8", 2, 0, 2),
    ("sign dW; abs s0; greater #1 0.1; mul rate #0; sub W #3; where #2 #4 W; add s0 dW -> #5 #6", 0, 0, 1),
    ("mul dW 0.5; mul rate #0; sub W #1; sqrt rate; mul z0 #3; add #2 #4 -> #5", 0, 1, 0),
)  # fmt: skip


def _samples() -> list[Sample]:
    samples = []
    for rule, numbers, draws, states in SHOWN:
        given: list[Any] = [f32(3), f32(3), _RATE, *[_HALF] * numbers, *[f32(3)] * draws, *[_ONE**2] * states]
        samples.append(Sample(given, {"rule": rule, "states": states, "draws": draws}, 1 + states))
    return samples


@op("Update", domain="mezzo", outputs=("W_new", "states_new*"), samples=_samples())
def update(
    k: Context, W: Array, dW: Array, rate: Array, *rest: Array, rule: str, states: int = 0, draws: int = 0
) -> tuple[Array, ...]:
    """A step of an optimizer: `rest` are numbers, `draws` tensors of random numbers, `states` states."""
    xs = [W, dW, rate, *rest]
    return evaluate(steps_of(tuple(DType.of(x.dtype) for x in xs), rule, states, draws).code, k.xp, xs)


@update.infer
def _(*types: Tensor, states: int = 0, draws: int = 0) -> tuple[Type, ...]:
    first = len(types) - draws - states
    if first < 3:
        raise ShapeError(f"an update of {states} states and {draws} draws has {len(types)} operands")
    W = types[0]
    for t in (types[1], *types[first:]):
        if t.dims is not None and W.dims is not None and len(t.dims) != len(W.dims):
            raise ShapeError(f"an update of {W} with {t}")
    return tuple(t.forget() for t in (W, *types[len(types) - states :]))


@update.body
def _(g: Builder, xs: Any, types: Any, **attrs: Any) -> tuple[Value, ...] | None:
    if any(t is None for t in types):
        return None
    return as_standard(g, trees([t.dtype for t in types], attrs), xs)


def _samples_of_rows() -> list[Sample]:
    """Of four rows the second and the last, and one that is none."""
    samples = []
    for rule, numbers, draws, states in SHOWN:
        given: list[Any] = [f32(4, 2), np.array([1, 3, 4]), f32(3, 2), _RATE, *[_HALF] * numbers, *[f32(3, 2)] * draws]
        samples.append(
            Sample([*given, *[_TABLE**2] * states], {"rule": rule, "states": states, "draws": draws}, 1 + states)
        )
    return samples


_TABLE = np.linspace(-2, 2, 8, dtype=np.float32).reshape(4, 2)


@op("UpdateRows", domain="mezzo", outputs=("W_new", "states_new*"), samples=_samples_of_rows())
def update_rows(
    k: Context, W: Array, ids: Array, dW: Array, rate: Array, *rest: Array, rule: str, states: int = 0, draws: int = 0
) -> tuple[Array, ...]:
    """A step of the rows `ids` of W and of its states, each at most once; the number of rows of W is no row. `dW` and
    the draws have a row for each of them."""
    in_table(ids, 0, len(W))
    kept = ids < len(W)
    at, first = ids[kept], len(rest) - states
    drawn = [z[kept] for z in rest[first - draws : first]]
    given = [W[at], dW[kept], rate, *rest[: first - draws], *drawn, *(s[at] for s in rest[first:])]
    updated = evaluate(steps_of(tuple(DType.of(x.dtype) for x in given), rule, states, draws).code, k.xp, given)
    news = tuple([k.xp.array(x) for x in (W, *rest[first:])])
    for new, rows in zip(news, updated, strict=True):
        new[at] = rows
    return news


@update_rows.infer
def _(W: Tensor, ids: Tensor, *types: Tensor, states: int = 0, draws: int = 0) -> tuple[Type, ...]:
    first = len(types) - draws - states
    if first < 2:
        raise ShapeError(f"an update of {states} states and {draws} draws has {len(types) + 2} operands")
    if W.dims is not None and ids.dims is not None and (not W.dims or len(ids.dims) != 1):
        raise ShapeError(f"rows {ids} of {W}")
    for t in (types[0], *types[first:]):
        if t.dims is not None and W.dims is not None and len(t.dims) != len(W.dims):
            raise ShapeError(f"an update of {W} with {t}")
    return tuple(t.forget() for t in (W, *types[len(types) - states :]))


@update_rows.body
def _(g: Builder, xs: Any, types: Any, *, rule: str, states: int = 0, draws: int = 0) -> tuple[Value, ...] | None:
    """Over tables with a row more, which is what is no row."""
    if any(t is None for t in types):
        return None
    W, ids, *rest = xs
    first, one = len(rest) - states, g.const([1])
    size = g.Slice(g.shape_of(W), g.const([0]), one)
    row = g.Concat(one, g.Slice(g.shape_of(W), one, g.const([2**31 - 1])), axis=0)
    tables = [g.Concat(x, g.Expand(g.scalar(0, x), row), axis=0) for x in (W, *rest[first:])]
    held, *slots = (g.Gather(x, ids) for x in tables)
    dtypes = [types[0].dtype, *(t.dtype for t in types[2:])]
    updated = as_standard(
        g, trees(dtypes, {"rule": rule, "states": states, "draws": draws}), [held, *rest[:first], *slots]
    )
    if updated is None:
        return None
    places = g.Unsqueeze(ids, g.const([-1]))
    return tuple(
        g.Slice(g.ScatterND(x, places, new), g.const([0]), size) for x, new in zip(tables, updated, strict=True)
    )

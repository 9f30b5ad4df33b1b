"""Attention: each query takes the average of the values, weighted by how well it matches their keys.

https://onnx.ai/onnx/operators/onnx__Attention.html
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.composed import composed
from ..core.rules import has_rank, narrow, product, same, total, widen
from ..errors import ShapeError
from ..op import Body, Builder, Context, Sample, Subgraph, Value, op
from ..types import Array, Dim, DType, Tensor, Type, f32


def softmax(xp: Any, scores: Array) -> Array:
    """Weights that add up to 1 along the last axis; all 0 where every score is -inf."""
    if not scores.size:
        return scores
    largest = scores.max(-1, keepdims=True)
    e = xp.exp(scores - xp.where(largest == -math.inf, 0, largest))
    sums = e.sum(-1, keepdims=True)
    return e / xp.where(sums == 0, 1, sums)


def _scores(xp: Any, q: Array, key: Array, scale: float | None) -> Array:
    """Return the score of each query against each key. Several query heads in a row may share one head of keys."""
    batch, heads, length, size = q.shape
    root = np.asarray(math.sqrt(1 / math.sqrt(max(size, 1)) if scale is None else scale), q.dtype)
    grouped = (q * root).reshape(batch, key.shape[1], heads // max(key.shape[1], 1), length, size)
    scores = xp.matmul(grouped, (key * root).swapaxes(2, 3)[:, :, None])
    return scores.reshape(batch, heads, length, key.shape[2])


def _average(xp: Any, weights: Array, value: Array) -> Array:
    batch, heads, length, count = weights.shape
    grouped = weights.reshape(batch, value.shape[1], heads // max(value.shape[1], 1), length, count)
    return xp.matmul(grouped, value[:, :, None]).reshape(batch, heads, length, value.shape[3])


_Q, _KV = f32(2, 3, 4, 8), f32(2, 3, 6, 8)
_GROUPED = [f32(2, 4, 3, 8), f32(2, 2, 5, 8), f32(2, 2, 5, 6)]
_HEADS = {"q_num_heads": 6, "kv_num_heads": 3}
_CACHED = [f32(2, 4, 3, 8), f32(2, 2, 3, 8), f32(2, 2, 3, 6)]
_PAST = [f32(2, 2, 4, 8), f32(2, 2, 4, 6)]
_BOOLS = np.array([[1, 1, 0, 1, 0, 1], [0] * 6, [1] * 6, [0, 1, 1, 0, 0, 1]], bool)


@composed(
    "Attention", kind="attention", planned_from=0, written_out=True,
    since=25,
    inputs=("Q", "K", "V", "attn_mask?", "past_key?", "past_value?", "nonpad_kv_seqlen?"),
    outputs=("Y", "present_key?", "present_value?", "qk_matmul_output?"),
    samples=[
        Sample([_Q, _KV, _KV]),
        Sample([_Q, _KV, _KV], {"scale": 0.3, "softcap": 2.0}),
        Sample([_Q, _KV, _KV, _BOOLS]),
        Sample([_Q, _KV, _KV, f32(2, 1, 4, 6)], {"is_causal": 1}),
        Sample([_Q, _KV, _KV, f32(4, 5)]),
        Sample(_GROUPED, {"is_causal": 1}),
        Sample([f32(2, 4, 24), f32(2, 6, 12), f32(2, 6, 9)], _HEADS),
        *(Sample([*_CACHED, None, *_PAST], {"is_causal": 1, "qk_matmul_output_mode": m}, 4) for m in range(4)),
        Sample([*_CACHED, f32(3, 7), *_PAST], {"softcap": 1.5, "qk_matmul_output_mode": 2}, 4),
        Sample([f32(2, 1, 12), f32(2, 1, 6), f32(2, 1, 4), None, f32(2, 2, 3, 3), f32(2, 2, 3, 2)],
               {"q_num_heads": 4, "kv_num_heads": 2}, 3),
        Sample([_Q, _KV, _KV, None, None, None, np.array([6, 2])], {"is_causal": 1}),
        Sample([_Q, _KV, _KV, f32(4, 4), None, None, np.array([4, 3])]),
        Sample([_Q, _KV, _KV], {"left_window_size": 1, "right_window_size": 2}),
        Sample([_Q, _KV, _KV], {"softmax_precision": 11}),
        Sample([f32(0, 2, 3, 4), f32(0, 2, 5, 4), f32(0, 2, 5, 4)]),
    ],
)  # fmt: skip
def attention(
    g: Builder,
    xs: Any,
    types: Any,
    *,
    is_causal: int = 0,
    kv_num_heads: int | None = None,
    left_window_size: int = -1,
    q_num_heads: int | None = None,
    qk_matmul_output_mode: int = 0,
    right_window_size: int = -1,
    scale: float | None = None,
    softcap: float = 0.0,
    softmax_precision: int | None = None,
) -> tuple[Value, ...] | None:
    if any(t is not None and t.dims is None for t in types[:5]):
        return None  # packed heads or not: the ranks tell
    Q, K, V, mask, past_key, past_value, filled = xs
    kind = types[0].dtype
    wide = DType.FLOAT if kind.narrow else kind
    key, value = (
        fresh if past is None else g.Concat(past, fresh, axis=2)
        for past, fresh in ((past_key, _heads(g, K, kv_num_heads)), (past_value, _heads(g, V, kv_num_heads)))
    )
    q, k, v = (_in(g, x, wide) for x in (_heads(g, Q, q_num_heads), key, value))
    shapes = [_dims_of(g, x) for x in (q, key, value)]
    heads = [_known(g, x)[1] for x in (q, key)]
    grouped = not (isinstance(heads[0], int) and heads[0] == heads[1])  # several heads of queries to one of keys
    raw = _grouped(
        g, g.Mul(q, _scale(g, q, scale)), g.Transpose(k, perm=(0, 1, 3, 2)), shapes[0], shapes[1], 2, grouped
    )
    capped = raw if not softcap else g.Mul(g.Tanh(g.Div(raw, g.scalar(softcap, raw))), g.scalar(softcap, raw))
    seen = _seen(g, shapes, past_key, filled, is_causal, left_window_size, right_window_size)
    shown, dead = _bias(g, capped, mask, seen, _known(g, key)[2], shapes[1][2])
    masked = _hidden(g, capped, shown)
    if dead is not None and (mask is not None or filled is not None or left_window_size >= 0):
        somewhere = g.Or(shown, dead) if _is_bool(g, shown) else g.Where(dead, g.scalar(0, shown), shown)
        exact = _hidden(g, capped, somewhere)  # scores of queries that see nothing: any, of which nothing is shown
    else:
        exact, dead = masked, None
    if softmax_precision is not None:
        exact = _in(g, g.Cast(exact, to=softmax_precision), wide)
    weights = g.Softmax(exact, axis=-1)
    y = _grouped(g, weights, v, shapes[0], shapes[2], 3, grouped)
    if dead is not None:
        y, weights = (g.Where(dead, g.scalar(0, x), x) for x in (y, weights))
    if len(types[0].dims) == 3:
        batch, _, length, _ = shapes[0]
        y = g.Reshape(g.Transpose(y, perm=(0, 2, 1, 3)), g.Concat(
            batch, length, g.Mul(shapes[0][1], shapes[2][3]), axis=0), allowzero=1)  # fmt: skip
    return _in(g, y, kind), key, value, _in(g, (raw, capped, masked, weights)[qk_matmul_output_mode], kind)


def _head_dims(t: Tensor, heads: int | None) -> tuple[Dim, ...]:
    """The dims of [batch, heads, length, size], of a tensor that may have the heads packed into its last of three."""
    if t.dims is None:
        return (None, heads, None, None)
    has_rank(t, 3, 4)
    if len(t.dims) == 4:
        return t.dims
    batch, length, hidden = t.dims
    if not heads:
        raise ShapeError(f"{t} needs the number of heads", hint="set q_num_heads, kv_num_heads")
    if isinstance(hidden, int) and hidden % heads:
        raise ShapeError(f"the last dim of {t} does not divide into {heads} heads")
    return batch, heads, length, hidden // heads if isinstance(hidden, int) else None


def _match(q: tuple[Dim, ...], key: tuple[Dim, ...], value: tuple[Dim, ...]) -> None:
    same(q[3], key[3], "queries and keys differ in size")
    same(key[2], value[2], "keys and values differ in number")
    same(key[1], value[1], "keys and values differ in heads")
    if isinstance(q[1], int) and isinstance(key[1], int) and q[1] % max(key[1], 1):
        raise ShapeError(f"{q[1]} heads of queries do not divide among {key[1]} heads of keys")


@attention.infer
def _(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    attn_mask: Tensor | None = None,
    past_key: Tensor | None = None,
    past_value: Tensor | None = None,
    nonpad_kv_seqlen: Tensor | None = None,
    **attrs: Any,
) -> tuple[Tensor, ...]:
    heads = attrs.get("kv_num_heads")
    q, key, value = _head_dims(Q, attrs.get("q_num_heads")), _head_dims(K, heads), _head_dims(V, heads)
    _match(q, key, value)
    if attrs.get("qk_matmul_output_mode", 0) not in range(4):
        raise ShapeError(f"qk_matmul_output_mode is {attrs['qk_matmul_output_mode']}, there are 0 to 3")
    count: Dim = key[2]
    if past_key is not None:
        count = None if past_key.dims is None else total((past_key.dims[2], count))
        if past_key.dims and past_value is not None and past_value.dims:
            same(past_key.dims[2], past_value.dims[2], f"there are {past_key} of past keys and {past_value} of values")
    last = attn_mask.dims[-1] if attn_mask is not None and attn_mask.dims else None
    if isinstance(last, int) and isinstance(count, int) and last > count:
        raise ShapeError(f"the mask {attn_mask} is longer than the {count} keys")
    joined: tuple[Dim, ...] | None = None
    if Q.dims is not None:
        joined = (q[0], q[2], product((q[1], value[3]))) if len(Q.dims) == 3 else (*q[:3], value[3])
    return (
        Q.of(joined),
        K.of((*key[:2], count, key[3])),
        V.of((*value[:2], count, value[3])),
        Q.of((*q[:3], count)),
    )


def _in(g: Builder, x: Value, dtype: DType) -> Value:
    known = g.type_of(x)
    return x if isinstance(known, Tensor) and known.dtype is dtype else g.Cast(x, to=dtype.onnx)


def _is_bool(g: Builder, x: Value) -> bool:
    known = g.type_of(x)
    return isinstance(known, Tensor) and known.dtype is DType.BOOL


def _known(g: Builder, x: Value) -> tuple[Dim, ...]:
    """The dims of a tensor of four, as far as they are known."""
    known = g.type_of(x)
    return (None,) * 4 if not isinstance(known, Tensor) or known.dims is None else known.dims


def _dims_of(g: Builder, x: Value) -> list[Value]:
    """Each size as a list of one."""
    return [g.Shape(x, start=i, end=i + 1) for i in range(g.rank_of(x))]


def _heads(g: Builder, x: Value, heads: int | None) -> Value:
    """[batch, heads, length, size] of a tensor that may have the heads packed into its last of three dims."""
    if g.rank_of(x) == 4:
        return x
    if not heads:
        raise ShapeError("an input of 3 dims needs the number of heads", hint="set q_num_heads, kv_num_heads")
    width = _known(g, x)[2]
    each = width // heads if isinstance(width, int) else -1
    return g.Transpose(g.Reshape(x, g.const([0, 0, heads, each])), perm=(0, 2, 1, 3))


def _scale(g: Builder, q: Value, scale: float | None) -> Value:
    size = _known(g, q)[3]
    if scale is not None or isinstance(size, int):
        return g.scalar(1 / math.sqrt(max(size, 1)) if scale is None and isinstance(size, int) else scale or 0.0, q)
    count = g.Max(g.Squeeze(g.Shape(q, start=3, end=4)), g.const(1))
    return g.Reciprocal(g.Sqrt(g.CastLike(count, q)))


def _grouped(g: Builder, x: Value, y: Value, q: list[Value], other: list[Value], last: int, grouped: bool) -> Value:
    """x @ y, where several heads of x in a row may share one of y: then their queries stand below one another.

    `q` and `other` are the sizes of the queries and of the keys or values, `last` which of these are columns."""
    if not grouped:
        return g.MatMul(x, y)
    rows = g.Mul(g.Div(q[1], g.Max(other[1], g.const([1]))), q[2])
    together = g.Concat(q[0], other[1], rows, g.Shape(x, start=3, end=4), axis=0)
    product = g.MatMul(g.Reshape(x, together, allowzero=1), y)
    return g.Reshape(product, g.Concat(*q[:3], other[last], axis=0), allowzero=1)


def _seen(
    g: Builder,
    shapes: list[list[Value]],
    past: Value | None,
    filled: Value | None,
    is_causal: int,
    left: int,
    right: int,
) -> Value | None:
    """Return the mask of the keys that each query may see, as [batch or 1, 1, queries, keys]; None for all of them.

    A query's place among the keys is its number plus the keys that came before this block of queries.
    """
    if filled is None and not is_causal and left < 0 and right < 0:
        return None

    def numbers(count: Value) -> Value:
        return g.Range(g.const(0), g.Squeeze(count), g.const(1))

    length, count = shapes[0][2], shapes[1][2]
    at, first = numbers(count), g.const([0]) if past is None else g.Shape(past, start=2, end=3)
    ends = None if filled is None else g.Unsqueeze(g.Cast(filled, to=DType.INT64.onnx), g.const([1, 2, 3]))
    if past is None and ends is not None:
        first = g.Sub(ends, length)
    place = g.Add(first, g.Unsqueeze(numbers(length), g.const([1])))
    conditions = [] if ends is None else [g.Less(at, ends)]
    if is_causal:
        conditions.append(g.LessOrEqual(at, place))
    if left >= 0:
        conditions.append(g.GreaterOrEqual(at, g.Sub(place, g.const(left))))
    if right >= 0:
        conditions.append(g.LessOrEqual(at, g.Add(place, g.const(right))))
    seen = conditions[0]
    for more in conditions[1:]:
        seen = g.And(seen, more)
    return seen


def _bias(
    g: Builder, scores: Value, mask: Value | None, seen: Value | None, columns: Dim, count: Value
) -> tuple[Value | None, Value | None]:
    """Return the mask of keys (booleans, true where seen, or numbers to add), and the mask of queries that see no key.

    All of it in the shape of the mask, which is often smaller than the scores.
    """
    if mask is None:
        shown = seen
    else:
        known = g.type_of(mask)
        assert isinstance(known, Tensor)
        mask = mask if known.dtype is DType.BOOL else g.CastLike(mask, scores)
        if columns is None or known.dims is None or known.dims[-1] != columns:  # keys past the end of it are hidden
            none = g.const(False) if known.dtype is DType.BOOL else g.scalar(-math.inf, mask)
            more = g.Sub(count, g.Shape(mask, start=-1))
            mask = g.Pad(mask, g.Concat(g.const([0]), more, axis=0), none, g.const([-1]))
        shown = mask
        if seen is not None:
            boolean = known.dtype is DType.BOOL
            shown = g.And(mask, seen) if boolean else g.Where(seen, mask, g.scalar(-math.inf, mask))
    if shown is None:
        return None, None
    numbers = g.CastLike(shown, scores) if _is_bool(g, shown) else shown
    least = g.scalar(0 if _is_bool(g, shown) else -math.inf, numbers)
    return shown, g.Equal(g.ReduceMax(numbers, g.const([-1]), keepdims=1), least)


def _hidden(g: Builder, scores: Value, shown: Value | None) -> Value:
    """The scores, -inf where a mask or a place forbids to look. A mask of numbers is added, with -inf where a place
    forbids it: as the standard's function body does, a score of +inf there is NaN."""
    if shown is None:
        return scores
    return g.Where(shown, scores, g.scalar(-math.inf, scores)) if _is_bool(g, shown) else g.Add(scores, shown)


def _shift(g: Builder, scores: Any) -> tuple[Any, ...]:
    return (g.Add(scores, g.const(0.5, DType.FLOAT)),)


def _half(g: Builder, weights: Any) -> tuple[Any, ...]:
    return (g.Mul(weights, g.const(0.5, DType.FLOAT)),)


def _body(build: Callable[..., Any]) -> Body:
    return Body([f32(None, None, None, None)], build)


@op(
    "FlexAttention",
    domain="ai.onnx.preview",
    since=1,
    samples=[
        Sample([_Q, _KV, _KV]),
        Sample(_GROUPED, {"scale": 0.5}),
        Sample([_Q, _KV, _KV], {"score_mod": _body(_shift)}),
        Sample(_GROUPED, {"score_mod": _body(_shift), "prob_mod": _body(_half)}),
        Sample([_Q, _KV, _KV], {"softmax_precision": 11}),
    ],
)
def flex_attention(
    k: Context,
    Q: Array,
    K: Array,
    V: Array,
    *,
    prob_mod: Subgraph | None = None,
    scale: float | None = None,
    score_mod: Subgraph | None = None,
    softmax_precision: int | None = None,
) -> Array:
    exact = _precision(DType.of(Q.dtype), softmax_precision).numpy
    q, key, value = (widen(x) for x in (Q, K, V))
    scores = _scores(k.xp, q, key, scale).astype(exact, copy=False)
    if score_mod is not None:
        (scores,) = k.run(score_mod, scores)
    weights = softmax(k.xp, widen(scores)).astype(exact, copy=False)
    if prob_mod is not None:
        (weights,) = k.run(prob_mod, weights)
    return narrow(_average(k.xp, weights.astype(value.dtype, copy=False), value), Q.dtype)


def _precision(dtype: DType, softmax_precision: int | None) -> DType:
    if softmax_precision is not None:
        return DType.from_onnx(softmax_precision)
    return DType.DOUBLE if dtype is DType.DOUBLE else DType.FLOAT


@flex_attention.infer
def _(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    *,
    prob_mod: Subgraph | None = None,
    score_mod: Subgraph | None = None,
    softmax_precision: int | None = None,
) -> Tensor:
    for t in (Q, K, V):
        has_rank(t, 4)
    q, key, value = (_head_dims(t, None) for t in (Q, K, V))
    _match(q, key, value)
    scores = Tensor(_precision(Q.dtype, softmax_precision), (*q[:3], key[2]))
    for body in (score_mod, prob_mod):
        if body is not None:
            _check_same(body.infer(scores), scores)
    return Q.of((*q[:3], value[3]))


def _check_same(results: tuple[Type, ...], like: Tensor) -> None:
    """Refuse a body that changes the element type or a size."""
    if len(results) != 1 or not isinstance(results[0], Tensor) or results[0].dtype is not like.dtype:
        raise ShapeError(f"the body makes {', '.join(map(str, results))} of {like}, which should keep its type")
    for a, b in zip(results[0].dims or (), like.shape, strict=False):
        same(a, b, f"the body makes {results[0]} of {like}")

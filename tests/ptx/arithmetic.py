"""What instructions compute: for each, a function of arrays with an element for each thread.

`operation(instruction)` names the types of its result and of its operands, and the function `f(*operands)`, which gives
the result. Approximations are as far off as the manual lets them be (at most, and to either side by the bits of their
operand), so that what depends on better ones shows. Unknown is raised for instructions that are not here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from .parse import Instruction

Array = np.ndarray[Any, Any]
Form = tuple[str, tuple[str, ...], Callable[..., Any]]
KINDS: dict[str, Any] = {
    **{f"{k}{n}": np.dtype(f"u{n // 8}") for k in "bu" for n in (8, 16, 32, 64)},
    **{f"s{n}": np.dtype(f"i{n // 8}") for n in (8, 16, 32, 64)},
    "f16": np.dtype("f2"), "f32": np.dtype("f4"), "f64": np.dtype("f8"), "pred": np.dtype(bool),
    "bf16": np.dtype(ml_dtypes.bfloat16),
}  # fmt: skip
WIDER = {"s16": "s32", "u16": "u32", "s32": "s64", "u32": "u64"}
SMALLEST = {"f32": np.float32(2.0**-126), "f64": np.float64(0)}


class Unknown(Exception):
    """An instruction that the interpreter lacks."""


def bits_of(kind: str) -> int:
    return int(kind.lstrip("busf"))


# Whole numbers


def _low(x: Any, bits: int) -> Any:
    return x.astype(np.uint64) if isinstance(x, np.ndarray) else np.uint64(int(x) % (1 << bits))


def high(a: Any, b: Any, kind: str) -> Any:
    """The upper half of a product."""
    bits, dtype = bits_of(kind), KINDS[kind]
    if bits < 64:
        wide = KINDS[WIDER[kind]]
        return (np.multiply(a, b, dtype=wide) >> wide.type(bits)).astype(dtype)
    u = np.uint64
    x, y = (np.asarray(n).astype(u) for n in (a, b))
    half, mask = u(32), u(0xFFFFFFFF)
    lows = (x & mask) * (y & mask)
    middle = (x >> half) * (y & mask) + (lows >> half)
    other = (x & mask) * (y >> half) + (middle & mask)
    found = (x >> half) * (y >> half) + (middle >> half) + (other >> half)
    if kind[0] == "s":
        found = found - np.where(np.asarray(a) < 0, y, u(0)) - np.where(np.asarray(b) < 0, x, u(0))
    return found.astype(dtype)


def quotient(a: Any, b: Any) -> Any:
    """Towards zero; what a division by zero gives is anybody's guess."""
    b = np.where(b == 0, np.ones((), np.asarray(b).dtype), b)
    rest = np.fmod(a, b)
    return (a - rest) // b


def rest(a: Any, b: Any) -> Any:
    return np.fmod(a, np.where(b == 0, np.ones((), np.asarray(b).dtype), b))


def shifted_left(a: Any, n: Any) -> Any:
    bits = np.asarray(a).dtype.itemsize * 8
    return np.where(n < bits, a << np.minimum(n, bits - 1).astype(a.dtype), np.zeros((), a.dtype))


def shifted_right(a: Any, n: Any) -> Any:
    a = np.asarray(a)
    bits = a.dtype.itemsize * 8
    if a.dtype.kind == "i":
        return a >> np.minimum(n, bits - 1).astype(a.dtype)
    return np.where(n < bits, a >> np.minimum(n, bits - 1).astype(a.dtype), np.zeros((), a.dtype))


def permuted(a: Any, b: Any, selector: Any) -> Any:
    """Bytes of b and a by their numbers, as prmt."""
    both = _low(a, 32) | _low(b, 32) << np.uint64(32)
    found: Any = np.uint64(0)
    for i in range(4):
        pick = _low(selector, 32) >> np.uint64(4 * i) & np.uint64(15)
        byte = both >> (pick & np.uint64(7)) * np.uint64(8) & np.uint64(255)
        sign = np.where(byte >> np.uint64(7), np.uint64(255), np.uint64(0))
        found = found | np.where(pick & np.uint64(8), sign, byte) << np.uint64(8 * i)
    return found.astype(np.uint32)


def inserted(a: Any, b: Any, place: Any, length: Any) -> Any:
    """The low bits of a in those of b from a place on, as bfi."""
    b = np.asarray(b)
    bits = b.dtype.itemsize * 8
    p, n = (np.asarray(x).astype(np.int64) & 255 for x in (place, length))
    ones = np.where(n >= bits, ~np.uint64(0), (np.uint64(1) << np.minimum(n, 63).astype(np.uint64)) - np.uint64(1))
    at = np.minimum(p, 63).astype(np.uint64)
    mask = np.where(p < bits, ones << at, np.uint64(0))
    moved = _low(np.asarray(a), bits) << at
    return ((_low(b, bits) & ~mask) | (moved & mask)).astype(b.dtype)


def extracted(a: Any, place: Any, length: Any) -> Any:
    """Bits of a from a place on, with their sign if a has one, as bfe."""
    a = np.asarray(a)
    bits = a.dtype.itemsize * 8
    p, n = (np.asarray(x).astype(np.int64) & 255 for x in (place, length))
    value = a.astype(np.int64) if a.dtype.kind == "i" else a.astype(np.uint64).astype(np.int64)
    value = shifted_right(value if a.dtype.kind == "i" else value.astype(np.uint64), np.minimum(p, bits - 1)).astype(
        np.int64
    )
    gone = (64 - np.minimum(n, bits)).astype(np.int64)
    up = np.where(n > 0, value << np.minimum(gone, 63), 0)
    down = (
        up >> np.minimum(gone, 63)
        if a.dtype.kind == "i"
        else (up.astype(np.uint64) >> np.minimum(gone, 63).astype(np.uint64)).astype(np.int64)
    )
    return down.astype(a.dtype)


def leading(a: Any) -> Any:
    """Zeros before the first bit that is set."""
    a = np.asarray(a)
    bits = a.dtype.itemsize * 8
    found, value = np.zeros(a.shape, np.uint32), a.astype(np.uint64)
    for step in (32, 16, 8, 4, 2, 1):
        above = value >> np.uint64(step)
        found += np.where(above > 0, np.uint32(step), np.uint32(0))
        value = np.where(above > 0, above, value)
    return np.where(a == 0, np.uint32(bits), np.uint32(bits - 1) - found)


def logic(a: Any, b: Any, c: Any, table: Any) -> Any:
    """Any function of three bits, by its table, as lop3."""
    found = np.zeros((), np.uint32)
    for i in range(8):
        if int(table) >> i & 1:
            found = found | (a if i & 4 else ~a) & (b if i & 2 else ~b) & (c if i & 1 else ~c)
    return found


# Floats


def directed(exact: Any, how: str, dtype: Any) -> Any:
    """A float64 as a narrower float, rounded to nearest, to zero, down or up."""
    near = np.asarray(exact).astype(dtype)
    if how == "rn":
        return near
    over, wide = near.astype(np.float64), exact
    low, high_ = dtype.type(-np.inf), dtype.type(np.inf)
    if how == "rm":
        return np.where(over > wide, np.nextafter(near, low), near)
    if how == "rp":
        return np.where(over < wide, np.nextafter(near, high_), near)
    return np.where(np.abs(over) > np.abs(wide), np.nextafter(near, dtype.type(0)), near)


def multiplied_and_added(a: Any, b: Any, c: Any, kind: str, how: str) -> Any:
    """a * b + c, rounded once."""
    if kind == "f32":
        product = np.multiply(a, b, dtype=np.float64)
        return directed(product + c, how, KINDS[kind])
    if kind == "f16":
        return directed(np.multiply(a, b, dtype=np.float64) + c, how, KINDS[kind])
    product = np.multiply(a, b)
    big = np.float64(134217729)
    ah, bh = (lambda t, x: t - (t - x))(big * a, a), (lambda t, x: t - (t - x))(big * b, b)
    below = ((ah * bh - product) + ah * (b - bh) + (a - ah) * bh) + (a - ah) * (b - bh)
    total = product + c
    back = total - product
    lost = (product - (total - back)) + (c - back)
    better = total + (below + lost)
    return np.where(np.isfinite(better), better, total)


def flushed(x: Any) -> Any:
    """Numbers below the smallest normal one as zeros."""
    return np.where(np.abs(x) < SMALLEST["f32"], np.copysign(np.float32(0), x), x)


def near(x: Any, exact: Any) -> Any:
    """Float32 numbers one step beside the exact ones, or on them, as the bits of x say."""
    made = np.asarray(exact).astype(np.float32)
    step = (np.asarray(x).astype(np.float32).view(np.uint32) * np.uint32(2654435761) >> np.uint32(30)).astype(np.int32)
    moved = np.where(
        step == 0, np.nextafter(made, np.float32(0)), np.where(step == 3, np.nextafter(made, np.float32(np.inf)), made)
    )
    round_ = (made == 0) | (np.frexp(made)[0] == 0.5)  # powers of two come out as they are
    return np.where(np.isfinite(made) & ~round_, moved, made)


APPROXIMATE: dict[str, Callable[[Any], Any]] = {
    "ex2": np.exp2, "lg2": np.log2, "sin": np.sin, "cos": np.cos, "tanh": np.tanh, "sqrt": np.sqrt,
    "rcp": lambda x: 1 / x, "rsqrt": lambda x: 1 / np.sqrt(x),
}  # fmt: skip
EXACT: dict[str, Callable[[Any], Any]] = {
    "sqrt": np.sqrt,
    "rcp": lambda x: x.dtype.type(1) / x,
}


def approximate(op: str, flushes: bool) -> Callable[..., Any]:
    def function(x: Any) -> Any:
        x = flushed(x) if flushes else x
        made = near(x, APPROXIMATE[op](np.asarray(x, np.float64)))
        return flushed(made) if flushes else made

    def divided(a: Any, b: Any) -> Any:
        a, b = (flushed(a), flushed(b)) if flushes else (a, b)
        made = near(a, np.divide(a, b, dtype=np.float64))
        made = np.where(np.abs(b) > 2.0**126, np.where(np.isfinite(b), np.float32(0) * made, made), made)
        return flushed(made) if flushes else made

    return divided if op == "div" else function


def copied_sign(sign: Any, size: Any) -> Any:
    return np.copysign(size, sign)


# Comparisons and conversions

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip


def comparison(how: str, kind: str) -> Callable[[Any, Any], Any]:
    """As setp compares: false if an operand is NaN, or (`equ`, `ltu`, ...) true."""
    if kind[0] != "f":
        return _COMPARE[how]
    if how == "num":
        return lambda a, b: (a == a) & (b == b)
    if how == "nan":
        return lambda a, b: (a != a) | (b != b)
    if how == "ne":
        return lambda a, b: (a != b) & (a == a) & (b == b)
    if how.endswith("u"):
        compare = _COMPARE[how[:2]]
        return lambda a, b: compare(a, b) | (a != a) | (b != b)
    return _COMPARE[how]


def conversion(to: str, of: str, how: str, saturates: bool) -> Callable[[Any], Any]:
    """As cvt."""
    target = KINDS[to]
    floats = "f" in to, "f" in of
    ROUND: dict[str, Any] = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
    if floats == (False, True):

        def whole(x: Any) -> Any:
            wide = ROUND[how](np.asarray(x).astype(np.float64))
            limits = np.iinfo(target)
            high_ = wide >= float(limits.max)
            low = wide <= float(limits.min)
            nan = limits.min if of == "f64" or bits_of(to) == 64 else 0
            if to[0] == "u" and nan:
                nan = 1 << bits_of(to) - 1
            safe = np.where(high_ | low | np.isnan(wide), 0, wide).astype(target)
            safe = np.where(high_, target.type(limits.max), np.where(low, target.type(limits.min), safe))
            return np.where(np.isnan(wide), target.type(nan), safe)

        return whole
    if floats == (True, True):
        if how in ROUND:
            return lambda x: ROUND[how](x).astype(target)
        if saturates:
            return lambda x: np.where(x > 0, np.minimum(x, x.dtype.type(1)), x.dtype.type(0)).astype(target)
        if bits_of(to.lstrip("b")) < bits_of(of.lstrip("b")):
            if how != "rn":
                return lambda x: directed(np.asarray(x).astype(np.float64), how, target)
            return lambda x: np.asarray(x).astype(target)
        return lambda x: np.asarray(x).astype(target)
    if saturates and not floats[0]:
        limits = np.iinfo(target)
        return lambda x: np.clip(np.asarray(x).astype(np.int64), limits.min, limits.max).astype(target)
    return lambda x: np.asarray(x).astype(target)


# The table

_BITS: dict[str, Any] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}
ROUNDS = ("rn", "rz", "rm", "rp")


def operation(i: Instruction) -> Form:
    """The types and the function of an instruction without memory and without other threads. Raises Unknown."""
    op, m = i.op, i.modifiers
    kind = m[-1] if m else ""
    if kind not in KINDS:
        raise Unknown(i.name)
    floats, how = kind[0] in "f" or kind == "bf16", next((r for r in m if r in ROUNDS), "rn")
    flushes = "ftz" in m
    known = set(m[:-1]) - {how, "ftz", "lo", "hi", "wide", "approx", "full", "sat", "rni", "rzi", "rmi", "rpi"}
    if op in ("add", "sub", "mul") and floats and not known and kind != "bf16" and not {"approx", "sat"} & set(m):
        call = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[op]
        if how == "rn":
            return kind, (kind, kind), (lambda a, b: flushed(call(flushed(a), flushed(b)))) if flushes else call
        return kind, (kind, kind), lambda a, b: directed(call(np.asarray(a, np.float64), b), how, KINDS[kind])
    if op in ("add", "sub") and not floats and not known and "sat" not in m:
        return kind, (kind, kind), np.add if op == "add" else np.subtract
    if op in ("mul", "mad") and not floats:
        if "wide" in m:
            wide = WIDER[kind]
            product: Any = lambda a, b: np.multiply(a, b, dtype=KINDS[wide])  # noqa: E731
        elif "hi" in m:
            wide, product = kind, lambda a, b: high(a, b, kind)
        else:
            wide, product = kind, np.multiply
        if op == "mul":
            return wide, (kind, kind), product
        return wide, (kind, kind, wide), lambda a, b, c: product(a, b) + c
    if op == "fma" and kind != "bf16" and not known and "sat" not in m:
        return kind, (kind,) * 3, lambda a, b, c: multiplied_and_added(a, b, c, kind, how)
    if op == "div":
        if not floats:
            return kind, (kind, kind), quotient
        if {"approx", "full"} & set(m):
            return kind, (kind, kind), approximate("div", flushes)
        return kind, (kind, kind), np.divide
    if op == "rem":
        return kind, (kind, kind), rest
    if op in ("min", "max") and not known:
        if floats:
            return kind, (kind, kind), np.fmin if op == "min" else np.fmax
        return kind, (kind, kind), np.minimum if op == "min" else np.maximum
    if op in ("abs", "neg") and not known:
        if op == "neg":
            return kind, (kind,), np.negative
        return kind, (kind,), np.fabs if floats else np.abs
    if op == "copysign":
        return kind, (kind, kind), copied_sign
    if op in _BITS:
        return kind, (kind, kind), _BITS[op]
    if op == "not":
        return kind, (kind,), np.logical_not if kind == "pred" else np.invert
    if op == "cnot":
        return kind, (kind,), lambda a: (a == 0).astype(a.dtype)
    if op == "shl":
        return kind, (kind, "u32"), shifted_left
    if op == "shr":
        return kind, (kind, "u32"), shifted_right
    if op == "prmt" and m == ("b32",):
        return kind, (kind,) * 3, permuted
    if op == "bfi":
        return kind, (kind, kind, "u32", "u32"), inserted
    if op == "bfe":
        return kind, (kind, "u32", "u32"), extracted
    if op == "lop3" and m == ("b32",):
        return kind, (kind,) * 3 + ("u32",), logic
    if op == "clz":
        return "u32", (kind,), leading
    if op == "popc":
        return "u32", (kind,), lambda a: np.bitwise_count(np.asarray(a)).astype(np.uint32)
    if op == "brev":
        return (
            kind,
            (kind,),
            lambda a: np.asarray([int(f"{int(x):0{bits_of(kind)}b}"[::-1], 2) for x in np.ravel(a)], KINDS[kind]),
        )
    if op in APPROXIMATE and "approx" in m and kind == "f32":
        return kind, (kind,), approximate(op, flushes)
    if op in EXACT and "rn" in m and not flushes:
        return kind, (kind,), EXACT[op]
    if op == "mov":
        return kind, (kind,), lambda a: a
    if op == "selp":
        return kind, (kind, kind, "pred"), lambda a, b, p: np.where(p, a, b)
    if op == "setp" and len(m) == 2:
        return "pred", (kind, kind), comparison(m[0], kind)
    if op == "cvt" and len(m) >= 2:
        rounding = next((r for r in m[:-2] if r.startswith("r")), "")
        if set(m[:-2]) - {rounding, "sat", "ftz"}:
            raise Unknown(i.name)
        return m[-2], (kind,), conversion(m[-2], kind, rounding or "rn", "sat" in m)
    raise Unknown(i.name)

"""Normalisation of rows by their root mean square, of x or of its sum with what is skipped to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager

from ..blocks import RmsNorm
from ..tiers import Tier
from .ir import F32, I32, PTR, Function, Value, number, vector
from .team import shared

APART = 4  # sums that do not wait for each other


def functions(tier: Tier) -> list[Function]:
    """The function for all widths."""
    lanes = tier.lanes

    def chunk(f: Function, a: Value, taken: Value) -> None:
        size, width = f.word(a, RmsNorm.CHUNK), f.word(a, RmsNorm.WIDTH)
        first = f.binary("mul", taken, size)
        last = f.binary("add", first, size)
        last = f.choose(f.compare("slt", last, f.word(a, RmsNorm.ROWS)), last, f.word(a, RmsNorm.ROWS))
        x, y, scale = (f.word(a, word, PTR) for word in (RmsNorm.X, RmsNorm.Y, RmsNorm.SCALE))
        epsilon = f.convert("bitcast", f.convert("trunc", f.word(a, RmsNorm.EPSILON), I32), F32)
        with f.loop(first, last) as row:
            begin = f.binary("mul", row, width)
            source = _summed(f, a, f.at(x, begin, F32), f.at(y, begin, F32), row, lanes)
            mean = f.binary("fdiv", _squares(f, source, width, lanes), f.convert("sitofp", width, F32))
            root = f.call(F32, "llvm.sqrt.f32", f.binary("fadd", mean, epsilon))
            inverse = f.binary("fdiv", number(1.0), root)
            for i, many in _parts(f, width, lanes):
                with i as at:
                    one = f.load(f.at(source, at, F32), vector(many, F32))
                    each = f.load(f.at(scale, at, F32), vector(many, F32))
                    scaled = f.binary("fmul", f.binary("fmul", one, f.splat(inverse, many)), each)
                    f.store(scaled, f.at(f.at(y, begin, F32), at, F32))

    return shared("rms_norm", chunk)


def _parts(f: Function, width: Value, lanes: int) -> Iterator[tuple[AbstractContextManager[Value], int]]:
    """Loops over a row, in vectors and then one by one."""
    whole = f.binary("and", width, -lanes)
    yield f.loop(0, whole, lanes), lanes
    yield f.loop(whole, width), 1


def _summed(f: Function, a: Value, x: Value, y: Value, row: Value, lanes: int) -> Value:
    """The place of a row of x, or of its sum with SKIP and BIAS, which is written to SUM, or to the result's place."""
    width, skip, bias = f.word(a, RmsNorm.WIDTH), f.word(a, RmsNorm.SKIP, PTR), f.word(a, RmsNorm.BIAS, PTR)
    place = f.variable(Value(PTR, "null"))
    f.set(place, x)
    with f.when(f.value("i1", f"icmp ne {skip}, null")):
        beside = f.binary("mul", f.binary("urem", row, f.word(a, RmsNorm.SKIP_ROWS)), width)
        beside = f.at(skip, beside, F32)
        kept = f.word(a, RmsNorm.SUM, PTR)
        apart = f.value("i1", f"icmp ne {kept}, null")
        target = f.choose(apart, f.at(kept, f.binary("mul", row, width), F32), y)
        more = f.value("i1", f"icmp ne {bias}, null")
        for i, many in _parts(f, width, lanes):
            with i as at:
                wide = vector(many, F32)
                total = f.variable(number(0, wide))
                one = f.load(f.at(x, at, F32), wide)
                f.set(total, f.binary("fadd", one, f.load(f.at(beside, at, F32), wide)))
                with f.when(more):
                    f.set(total, f.binary("fadd", f.get(total), f.load(f.at(bias, at, F32), wide)))
                f.store(f.get(total), f.at(target, at, F32))
        f.set(place, target)
    return f.get(place)


def _squares(f: Function, source: Value, width: Value, lanes: int) -> Value:
    wide = vector(lanes, F32)
    totals = [f.variable(number(0, wide)) for _ in range(APART)]
    remainder = f.variable(number(0))
    for total in totals:
        f.set(total, number(0, wide))
    f.set(remainder, number(0))
    several = f.binary("and", width, -lanes * APART)
    with f.loop(0, several, lanes * APART) as at:
        for i, total in enumerate(totals):
            one = f.load(f.at(source, f.binary("add", at, i * lanes), F32), wide)
            f.set(total, f.fma(one, one, f.get(total)))
    with f.loop(several, f.binary("and", width, -lanes), lanes) as at:
        one = f.load(f.at(source, at, F32), wide)
        f.set(totals[0], f.fma(one, one, f.get(totals[0])))
    with f.loop(f.binary("and", width, -lanes), width) as at:
        single = f.load(f.at(source, at, F32), F32)
        f.set(remainder, f.fma(single, single, f.get(remainder)))
    sums = [f.get(total) for total in totals]
    while len(sums) > 1:
        sums = [f.binary("fadd", one, other) for one, other in zip(sums[::2], sums[1::2], strict=True)]
    return f.binary("fadd", f.reduce("fadd", sums[0]), f.get(remainder))

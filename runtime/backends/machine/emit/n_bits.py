"""Products with weights of 4 or 8 bits, read in the packing of MatMulNBits: y = x * ((q - z) * s) + bias.

A vector of eight words of the weights has `per` numbers in each word. Number j of every word is masked where it
stands, so that it counts 2**(bits * j) times; the activations wait in that order, divided by as much, which is exact.
A block's sum begins with what its zero point takes away. Rows of x whose numbers leave no room for that (near the ends
of float32, or not finite) are computed number by number, as the reference does. Where x has many rows, a few rows of
weights at a time become float32 in a panel on the stack, scaled and counted as above.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from ..blocks import NBits
from ..n_bits import WORDS as LANES
from ..n_bits import name_of
from ..tiers import Tier
from .ir import F32, I8, I32, I64, PTR, Function, Value, number, numbers, vector
from .team import shared

AHEAD = 2048  # bytes that are fetched before they are needed
ROWS, COLUMNS = 4, 3  # of a tile, where there are so many rows of x
MANY = 6  # rows of x that a panel is worth its making for
PIECE = 1024  # numbers of a row of weights in a panel, which stays in the first cache
_LARGE, _SMALL = (struct.unpack("<i", struct.pack("<f", x))[0] for x in (2.0**100, 2.0**-90))


def variants() -> Iterator[tuple[int, int, bool]]:
    """Bits, words of a vector with one scale (at most 8), and whether there are packed zero points."""
    for bits in (4, 8):
        for words in (2, 4, 8):
            if words * 32 // bits >= 16:
                yield from ((bits, words, zeros) for zeros in (False, True))


def functions(tier: Tier) -> list[Function]:
    """The functions of all variants."""
    emitted: list[Function] = []
    for variant in variants():
        emitter = _NBits(*variant)
        emitted += [emitter.single(), *shared(name_of(*variant), emitter.chunk, emitter.arrange)]
    return emitted


@dataclass(frozen=True, slots=True)
class _Weights:
    """A row of weights: its bits, scales, zero points, and how many vectors have one scale, as a power of two."""

    bits: Value
    scales: Value
    zeros: Value | None
    shift: Value


class _NBits:
    def __init__(self, bits: int, words: int, zeros: bool) -> None:
        self.bits, self.words, self.zeros = bits, words, zeros
        self.per = 32 // bits
        self.numbers = LANES * self.per  # of a vector
        self.piece = PIECE // self.numbers  # vectors of a panel
        self.name = name_of(bits, words, zeros)
        self.scales = LANES // words  # of a vector
        self._usual = -1.0 if zeros else -(2.0 ** (bits - 1))  # times a sum of x, what a block's begins with

    # the activations, in the order of the words

    def arrange(self, f: Function, a: Value) -> None:
        """Rows of x in the order of the words, behind each vector's the sums that zero points take away; whether a row
        is odd."""
        rows, columns, vectors, stride = (f.word(a, i) for i in (NBits.M, NBits.K, NBits.VECTORS, NBits.STRIDE))
        x, work = f.word(a, NBits.X, PTR), f.word(a, NBits.WORK, PTR)
        whole = f.binary("udiv", columns, self.numbers)
        whole = f.choose(f.compare("slt", whole, vectors), whole, vectors)
        with f.loop(0, rows) as m:
            source = f.at(x, f.binary("mul", m, columns), F32)
            target = f.at(work, f.binary("mul", m, stride), F32)
            self._odd(f, source, columns, f.at(work, f.binary("add", f.binary("mul", rows, stride), m), F32))
            with f.loop(0, whole) as v:
                base = f.at(source, f.binary("mul", v, self.numbers), F32)
                lanes = [
                    [f.load(f.at(base, lane * self.per + j, F32), F32) for lane in range(LANES)]
                    for j in range(self.per)
                ]
                self._put(f, [self._vector(f, one) for one in lanes], target, v)
            with f.loop(whole, vectors) as v:
                self._one_by_one(f, source, columns, target, v)

    def _one_by_one(self, f: Function, source: Value, columns: Value, target: Value, v: Value) -> None:
        """The same for a vector beyond whose end there is nothing: zeros stand for that."""
        place = f.at(target, f.binary("mul", v, LANES * (self.per + 1)), F32)
        start = f.binary("mul", v, self.numbers)
        with f.loop(0, number(LANES * (self.per + 1), I64)) as i:
            f.store(number(0), f.at(place, i, F32))
        with f.loop(start, columns) as k:
            inside = f.binary("sub", k, start)
            lane, j = f.binary("udiv", inside, self.per), f.binary("urem", inside, self.per)
            x, total = f.load(f.at(source, k, F32), F32), f.at(place, lane, F32)
            f.store(f.binary("fadd", f.load(total, F32), f.binary("fmul", x, self._usual)), total)
            last = f.compare("eq", j, self.per - 1)
            power = f.binary("sub", number(127, I64), f.binary("mul", f.choose(last, number(0, I64), j), self.bits))
            scale = f.convert("bitcast", f.convert("trunc", f.binary("shl", power, 23), I32), F32)
            apart = f.binary("add", f.binary("mul", f.binary("add", j, 1), LANES), lane)
            f.store(f.binary("fmul", x, scale), f.at(place, apart, F32))

    @staticmethod
    def _vector(f: Function, lanes: list[Value]) -> Value:
        v = Value(vector(LANES, F32), "poison")
        for i, lane in enumerate(lanes):
            v = f.value(v.type, f"insertelement {v}, {lane}, i64 {i}")
        return v

    def _put(self, f: Function, lanes: list[Value], target: Value, v: Value) -> None:
        place = f.at(target, f.binary("mul", v, LANES * (self.per + 1)), F32)
        total = lanes[0]
        for one in lanes[1:]:
            total = f.binary("fadd", total, one)
        f.store(f.binary("fmul", total, self._usual), place)
        for j, one in enumerate(lanes):
            scaled = f.binary("fmul", one, 2.0 ** (-self.bits * j)) if j < self.per - 1 else one
            f.store(scaled, f.at(place, (j + 1) * LANES, F32))

    @staticmethod
    def _odd(f: Function, source: Value, columns: Value, flag: Value) -> None:
        most, lanes = f.variable(number(0, vector(LANES, I32))), vector(LANES, I32)
        f.set(most, number(0, lanes))
        whole = f.binary("and", columns, -LANES)

        def larger(one: Value, other: Value) -> Value:
            return f.choose(f.compare("sgt", one, other), one, other)

        with f.loop(0, whole, LANES) as k:
            f.set(most, larger(f.get(most), f.binary("and", f.load(f.at(source, k, F32), lanes), 0x7FFFFFFF)))
        largest = f.variable(number(0, I32))
        f.set(largest, number(0, I32))
        with f.loop(whole, columns) as k:
            f.set(largest, larger(f.get(largest), f.binary("and", f.load(f.at(source, k, F32), I32), 0x7FFFFFFF)))
        top = f.get(largest)
        for lane in range(LANES):
            top = larger(top, f.lane(f.get(most), lane))
        small = f.binary("and", f.compare("sgt", top, 0), f.compare("slt", top, _SMALL))
        odd = f.binary("or", f.compare("sge", top, _LARGE), small)
        f.store(f.convert("zext", odd, I32), flag)

    # one product, number by number

    def single(self) -> Function:
        """A function for the sum of products of row m of x and row n of the weights, from number k on."""
        f = Function(f"{self.name}.single", (PTR, I64, I64, I64), F32, inside=True)
        a, m, n, first = f.arguments
        columns = f.word(a, NBits.K)
        x = f.at(f.word(a, NBits.X, PTR), f.binary("mul", m, columns), F32)
        row = f.at(f.word(a, NBits.BITS, PTR), f.binary("mul", n, f.word(a, NBits.ROW)), I8)
        blocks = f.binary("udiv", f.binary("add", columns, f.binary("sub", f.word(a, NBits.BLOCK), number(1, I64))),
                          f.word(a, NBits.BLOCK))  # fmt: skip
        scales = f.at(f.word(a, NBits.SCALES, PTR), f.binary("mul", n, blocks), F32)
        total = f.variable(number(0))
        with f.loop(first, columns) as k:
            block = f.binary("udiv", k, f.word(a, NBits.BLOCK))
            weight = self._packed(f, row, k)
            if self.zeros:
                zeros = f.at(f.word(a, NBits.ZEROS, PTR), f.binary("mul", n, f.word(a, NBits.ZERO_ROW)), I8)
                apart = f.binary("sub", weight, self._packed(f, zeros, block))
            else:
                apart = f.binary("sub", weight, 1 << (self.bits - 1))
            each = f.binary("fmul", f.convert("sitofp", apart, F32), f.load(f.at(scales, block, F32), F32))
            f.set(total, f.fma(each, f.load(f.at(x, k, F32), F32), f.get(total)))
        f.give(f.get(total))
        return f

    def _packed(self, f: Function, row: Value, k: Value) -> Value:
        """Number k of packed ones."""
        if self.bits == 8:
            return f.convert("zext", f.load(f.at(row, k, I8), I8), I32)
        byte = f.convert("zext", f.load(f.at(row, f.binary("lshr", k, 1), I8), I8), I32)
        shift = f.binary("shl", f.convert("trunc", f.binary("and", k, 1), I32), 2)
        return f.binary("and", f.binary("lshr", byte, shift), 15)

    # a chunk of rows of the weights

    def chunk(self, f: Function, a: Value, taken: Value) -> None:
        """Some rows of the weights with all rows of x: straight from the packing, or, where there are rows enough to
        share it, from a panel of float32."""
        rows, size, vectors = f.word(a, NBits.M), f.word(a, NBits.CHUNK), f.word(a, NBits.VECTORS)
        first = f.binary("mul", taken, size)
        last = f.binary("add", first, size)
        last = f.choose(f.compare("slt", last, f.word(a, NBits.N)), last, f.word(a, NBits.N))
        self._begin(f, a, first, last)
        few, many, out = f.either(f.compare("slt", rows, MANY))
        f.mark(few)
        with f.loop(0, rows) as m, f.loop(first, last) as n:
            self._row(f, a, m, n, vectors)
        f.go(out)
        f.mark(many)
        self._many(f, a, first, last)
        f.go(out)
        f.mark(out)
        self._end(f, a, first, last)

    def _many(self, f: Function, a: Value, first: Value, last: Value) -> None:
        rows, vectors = f.word(a, NBits.M), f.word(a, NBits.VECTORS)
        panel = f.room(F32, COLUMNS * self.piece * LANES * self.per)
        tiled = f.binary("and", rows, -ROWS)
        width = f.binary("sub", last, first)
        whole = f.binary("sub", last, f.binary("urem", width, COLUMNS))
        with f.loop(0, vectors, self.piece) as v:
            end = f.binary("add", v, self.piece)
            end = f.choose(f.compare("slt", end, vectors), end, vectors)
            for columns, begin, stop in ((COLUMNS, first, whole), (1, whole, last)):
                with f.loop(begin, stop, columns) as n:
                    for c in range(columns):
                        self._unpack(f, a, f.binary("add", n, c), v, end, self._column(f, panel, c))
                    with f.loop(0, tiled, ROWS) as m:
                        self._tile(f, a, m, ROWS, n, columns, v, end, panel)
                    with f.loop(tiled, rows) as m:
                        self._tile(f, a, m, 1, n, columns, v, end, panel)

    def _column(self, f: Function, panel: Value, c: int) -> Value:
        """Place of a row of weights in the panel."""
        return f.at(panel, c * self.piece * LANES * self.per, F32)

    def _unpack(self, f: Function, a: Value, n: Value, first: Value, end: Value, target: Value) -> None:
        """Weights of a row as float32, each as many times as its place in a word counts."""
        w = self._weights(f, a, n)
        with f.loop(first, end) as v:
            packed = f.load(f.at(w.bits, f.binary("mul", v, 32), I8), vector(LANES, I32), 1)
            scale = self._spread(f, w.scales, v, w.shift)
            if w.zeros is None:
                less = f.binary("fmul", scale, self._usual)
            else:
                less = f.binary("fmul", f.binary("fmul", scale, -1.0), self._points(f, w.zeros, v, w.shift))
            place = f.at(target, f.binary("mul", f.binary("sub", v, first), LANES * self.per), F32)
            for j in range(self.per):
                counted = f.binary("fmul", less, 2.0 ** (self.bits * j)) if 0 < j < self.per - 1 else less
                f.store(f.fma(self._masked(f, packed, j), scale, counted), f.at(place, j * LANES, F32))

    def _tile(
        self,
        f: Function,
        a: Value,
        m: Value,
        rows: int,
        n: Value,
        columns: int,
        first: Value,
        end: Value,
        panel: Value,
    ) -> None:
        """Rows of x with weights of the panel."""
        wide, stride, work = vector(LANES, F32), f.word(a, NBits.STRIDE), f.word(a, NBits.WORK, PTR)
        begin = f.binary("mul", first, LANES * (self.per + 1))
        near = [
            f.at(work, f.binary("add", f.binary("mul", f.binary("add", m, r), stride), begin), F32) for r in range(rows)
        ]
        beside = [self._column(f, panel, c) for c in range(columns)]
        totals = [[f.variable(number(0, wide)) for _ in beside] for _ in near]
        for total in (t for row in totals for t in row):
            f.set(total, number(0, wide))
        with f.loop(0, f.binary("sub", end, first)) as v:
            at, there = (f.binary("mul", v, LANES * each) for each in (self.per + 1, self.per))
            for j in range(self.per):
                ws = [f.load(f.at(f.at(one, there, F32), j * LANES, F32), wide) for one in beside]
                for r, one in enumerate(near):
                    x = f.load(f.at(f.at(one, at, F32), (j + 1) * LANES, F32), wide)
                    for c, w in enumerate(ws):
                        f.set(totals[r][c], f.fma(w, x, f.get(totals[r][c])))
        for r in range(rows):
            for c in range(columns):
                self._add(f, a, f.binary("add", m, r), f.binary("add", n, c), f.get(totals[r][c]))

    def _add(self, f: Function, a: Value, m: Value, n: Value, total: Value) -> None:
        place = self._result(f, a, f.word(a, NBits.Y, PTR), m, n)
        f.store(f.binary("fadd", f.load(place, F32), f.reduce("fadd", total)), place)

    def _begin(self, f: Function, a: Value, first: Value, last: Value) -> None:
        bias, y = f.word(a, NBits.BIAS, PTR), f.word(a, NBits.Y, PTR)
        given = f.value("i1", f"icmp ne {bias}, null")
        with f.loop(0, f.word(a, NBits.M)) as m, f.loop(first, last) as n:
            start = f.variable(number(0))
            f.set(start, number(0))
            with f.when(given):
                f.set(start, f.load(f.at(bias, n, F32), F32))
            f.store(f.get(start), self._result(f, a, y, m, n))

    @staticmethod
    def _result(f: Function, a: Value, y: Value, m: Value, n: Value) -> Value:
        return f.at(y, f.binary("add", f.binary("mul", m, f.word(a, NBits.N)), n), F32)

    def _weights(self, f: Function, a: Value, n: Value) -> _Weights:
        """A row of weights."""
        size = f.binary("udiv", f.word(a, NBits.BLOCK), self.numbers)
        zeros = None
        if self.zeros:
            zeros = f.at(f.word(a, NBits.ZEROS, PTR), f.binary("mul", n, f.word(a, NBits.ZERO_ROW)), I8)
        return _Weights(
            f.at(f.word(a, NBits.BITS, PTR), f.binary("mul", n, f.word(a, NBits.ROW)), I8),
            f.at(f.word(a, NBits.SCALES, PTR), f.binary("mul", n, self._blocks(f, a)), F32),
            zeros,
            f.call(I64, "llvm.cttz.i64", size, Value("i1", "false")),
        )

    def _row(self, f: Function, a: Value, m: Value, n: Value, end: Value) -> None:
        """One row of x with one row of weights."""
        wide, whole = vector(LANES, F32), vector(LANES, I32)
        source = f.at(f.word(a, NBits.WORK, PTR), f.binary("mul", m, f.word(a, NBits.STRIDE)), F32)
        w = self._weights(f, a, n)
        total = f.variable(number(0, wide))
        f.set(total, number(0, wide))
        f.uses.add("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        with f.loop(0, end) as v:
            at = f.at(w.bits, f.binary("mul", v, 32), I8)
            packed = f.load(at, whole, 1)
            f.line(f"call void @llvm.prefetch.p0({f.at(at, AHEAD, I8)}, i32 0, i32 3, i32 1)")
            near = f.at(source, f.binary("mul", v, LANES * (self.per + 1)), F32)
            block = f.load(near, wide)
            if w.zeros is not None:
                block = f.binary("fmul", block, self._points(f, w.zeros, v, w.shift))
            for j in range(self.per):
                block = f.fma(self._masked(f, packed, j), f.load(f.at(near, (j + 1) * LANES, F32), wide), block)
            f.set(total, f.fma(block, self._spread(f, w.scales, v, w.shift), f.get(total)))
        self._add(f, a, m, n, f.get(total))

    def _blocks(self, f: Function, a: Value) -> Value:
        """Blocks of a row."""
        size = f.word(a, NBits.BLOCK)
        return f.binary("udiv", f.binary("sub", f.binary("add", f.word(a, NBits.K), size), number(1, I64)), size)

    def _masked(self, f: Function, packed: Value, j: int) -> Value:
        """Number j of each word, 2**(bits * j) times; the last one once."""
        if j == self.per - 1:
            whole = f.binary("lshr", packed, 32 - self.bits)
        else:
            whole = f.binary("and", packed, ((1 << self.bits) - 1) << (self.bits * j))
        return f.convert("sitofp", whole, vector(LANES, F32))

    def _spread(self, f: Function, scales: Value, v: Value, shift: Value) -> Value:
        """The scale of each word of a vector."""
        if self.scales == 1:
            return f.splat(f.load(f.at(scales, f.binary("lshr", v, shift), F32), F32), LANES)
        some = f.load(f.at(scales, f.binary("mul", v, self.scales), F32), vector(self.scales, F32))
        return f.shuffle(some, [i // self.words for i in range(LANES)])

    def _points(self, f: Function, zeros: Value, v: Value, shift: Value) -> Value:
        """The zero point of each word of a vector."""
        whole = vector(LANES, I32)
        if self.scales == 1:
            return f.splat(f.convert("sitofp", self._packed(f, zeros, f.binary("lshr", v, shift)), F32), LANES)
        size = self.scales * self.bits  # bits of the points of a vector
        at = f.binary("lshr", f.binary("mul", v, size), 3)
        some = f.load(f.at(zeros, at, I8), f"i{size}", 1)
        lanes = f.splat(f.convert("zext", some, I32) if size < 32 else some, LANES)
        shifts = numbers([i // self.words * self.bits for i in range(LANES)])
        apart = f.binary("and", f.binary("lshr", lanes, shifts), (1 << self.bits) - 1)
        assert apart.type == whole
        return f.convert("sitofp", apart, vector(LANES, F32))

    def _end(self, f: Function, a: Value, first: Value, last: Value) -> None:
        """The numbers behind the last whole vector, and the odd rows."""
        rows, columns = f.word(a, NBits.M), f.word(a, NBits.K)
        y, bias = f.word(a, NBits.Y, PTR), f.word(a, NBits.BIAS, PTR)
        regular = f.binary("mul", f.word(a, NBits.VECTORS), self.numbers)
        flags = f.at(f.word(a, NBits.WORK, PTR), f.binary("mul", rows, f.word(a, NBits.STRIDE)), F32)
        given = f.value("i1", f"icmp ne {bias}, null")
        with f.loop(0, rows) as m:
            odd = f.compare("ne", f.load(f.at(flags, m, I32), I32), 0)
            begin = f.choose(odd, number(0, I64), regular)
            with f.when(f.compare("slt", begin, columns)), f.loop(first, last) as n:
                place = self._result(f, a, y, m, n)
                more = f.value(F32, f"call float @{self.name}.single({a}, {m}, {n}, {begin})")
                start = f.variable(number(0))
                f.set(start, f.load(place, F32))
                with f.when(odd):
                    f.set(start, number(0))
                    with f.when(given):
                        f.set(start, f.load(f.at(bias, n, F32), F32))
                f.store(f.binary("fadd", f.get(start), more), place)

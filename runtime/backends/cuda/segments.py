"""Updates sorted by the rows that they are for, so that each row reads its own one after the other: sums have one order
and need no atomics, and their cost does not depend on how many rows there are.

A key is the number of a row and, in its lower half, that of the update: no two are equal. Blocks sort parts of the
keys, each key then counts those before it in all parts, which is its place. What belongs to one row is a segment; its
whole pieces are summed first, so that a row with most of the updates is not one long loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ....ops.dataclasses import dataclass
from ...memory.liveness import aligned
from .launch import Launch, Operand, Out, Scratch
from .text import Element, each, launch, reads, writes

CHUNK = 1024  # keys that a block sorts
PIECE = 32  # updates that are summed ahead if they are for one row
PATIENCE = 2**32  # steps from part to part, of all keys together
KEY = "unsigned long long"
Parameter = tuple[str, str, Operand]
Step = Callable[[str, str], str]  # the source of a sum and one more update


def bearable(count: int, rows: int) -> bool:
    """True if so many updates of so many rows are sorted in good time."""
    return count * -(-count // CHUNK) <= PATIENCE and count < 2**31 and rows < 2**31 - 1


@dataclass(frozen=True, slots=True)
class Segments:
    """The launches that sort `count` updates of `rows` rows. The keys lie at `keys` in the workspace, the first key of
    each of `many` segments at `starts`, and behind them the end of the last; `workspace` is what is taken so far."""

    count: int
    rows: int
    many: int
    launches: tuple[Launch, ...]
    keys: Scratch
    starts: Scratch
    workspace: int

    @classmethod
    def of(cls, read: Sequence[Parameter], row: Sequence[str], count: int, rows: int, numbers: Out | None) -> Segments:
        """Sort. The statements `row` tell the row of update `i` in `row`, -1 for none, from what `read` reads. Each row
        is a segment, without updates too; but where `numbers` are wanted, the 64-bit numbers of the rows that have any,
        only those are: ascending, and then `rows`, as often as there is room."""
        many = rows if numbers is None else min(count, rows)
        size, chunks = aligned(8 * count), -(-count // CHUNK)
        keys, starts = Scratch(size if chunks > 1 else 0), Scratch((2 if chunks > 1 else 1) * size)
        launches = [_sorting(read, row, count, rows)]
        if chunks > 1:
            launches.append(_merging(count, chunks, keys))
        parameters = [reads(KEY, "keys", keys), writes("int", "starts", starts)]
        if numbers is None:
            launches.append(
                each("row_starts", parameters, (rows + 1,), f"starts[i] = {_before(count)};", before=_FIRST)
            )
        else:
            launches.append(_numbering([*parameters, writes("long long", "ids", numbers)], count, rows, many))
        return cls(count, rows, many, tuple(launches), keys, starts, starts.offset + aligned(4 * (many + 1)))

    def summed(
        self, family: str, e: Element, step: Step, before: int, inner: int, first: str, more: Sequence[Parameter],
        news: Operand, result: Out,
    ) -> tuple[tuple[Launch, ...], int]:  # fmt: skip
        """The launches that add the updates `news` of [before, count, inner] to each segment, and all workspace. A sum
        begins as `first`, the source of an element from what `more` reads."""
        pieces, launches, workspace = self.count // PIECE, list[Launch](), self.workspace
        read = [reads(KEY, "keys", self.keys), reads(e, "news", news)]
        update = e.read(f"news[(c0 * {self.count}ll + (int)keys[m]) * {inner} + c2]")
        take = [f"update = {update};", "++m;"]
        if pieces:
            part = Scratch(workspace)
            workspace += aligned(before * pieces * inner * (8 if e.wide in ("double", "long long", KEY) else 4))
            body = f"""
int m = (int)c1 * {PIECE};
if (keys[m] >> 32 != keys[m + {PIECE - 1}] >> 32) return;
{e.wide} update, sum;
{take[0]}
sum = update;
while (++m < ((int)c1 + 1) * {PIECE}) {{
    {take[0]}
    sum = {step("sum", "update")};
}}
parts[i] = sum;
"""
            piece = each("row_pieces", [*read, writes(e.wide, "parts", part)], (before, pieces, inner), body)
            launches.append(piece)
            read.append(reads(e.wide, "parts", part))
            whole = f"parts[(c0 * {pieces}ll + m / {PIECE}) * {inner} + c2]"
            take = [
                f"if (m % {PIECE} == 0 && m + {PIECE} <= end) {{ update = {whole}; m += {PIECE}; }}",
                f"else {{ {' '.join(take)} }}",
            ]
        body = f"""
{e.wide} sum = {first};
const int end = starts[c1 + 1];
for (int m = starts[c1]; m < end; ) {{
    {e.wide} update;
    {take[0]}
    {take[1]}
    sum = {step("sum", "update")};
}}
y[i] = {e.write("sum")};
"""
        parameters = [*more, *read, reads("int", "starts", self.starts), writes(e, "y", result)]
        most = self.count * inner * before
        launches.append(each(family, parameters, (before, self.many, inner), body, largest=most))
        return tuple(launches), workspace


# The number of keys before a key, which are sorted from place `first` on.
_FIRST = f"""
__device__ __forceinline__ int KERNEL_before(const {KEY}* keys, int count, {KEY} key) {{
    int low = 0, high = count;
    while (low < high) {{
        const int middle = (low + high) >> 1;
        if (keys[middle] < key) low = middle + 1; else high = middle;
    }}
    return low;
}}
"""


def _before(count: int, row: str = "i") -> str:
    """The source of the number of keys of rows before one."""
    return f"KERNEL_before(keys, {count}, ({KEY}){row} << 32)"


def _sorting(read: Sequence[Parameter], row: Sequence[str], count: int, rows: int) -> Launch:
    """Parts of the keys, each sorted by a block: what is for no row stands behind."""
    half = CHUNK // 2
    body = f"""
__shared__ {KEY} part[{CHUNK}];
for (int j = threadIdx.x; j < {CHUNK}; j += {half}) {{
    const long long i = (long long)blockIdx.x * {CHUNK} + j;
    {KEY} key = ~0ull;
    if (i < {count}) {{
        {" ".join(row)}
        key = ({KEY})(row < 0 ? {rows}ll : row) << 32 | ({KEY})i;
    }}
    part[j] = key;
}}
for (int k = 2; k <= {CHUNK}; k <<= 1) for (int step = k >> 1; step; step >>= 1) {{
    __syncthreads();
    const int a = 2 * (int)threadIdx.x - (threadIdx.x & step - 1), b = a + step;
    const {KEY} x = part[a], y = part[b];
    if ((x > y) == !(a & k)) {{ part[a] = y; part[b] = x; }}
}}
__syncthreads();
for (int j = threadIdx.x; j < {CHUNK}; j += {half}) {{
    const long long i = (long long)blockIdx.x * {CHUNK} + j;
    if (i < {count}) chunks[i] = part[j];
}}
"""
    return launch("sort_rows", [*read, writes(KEY, "chunks", Scratch(0))], body, -(-count // CHUNK), half)


def _merging(count: int, chunks: int, keys: Scratch) -> Launch:
    """Each key to its place among all."""
    body = f"""
const {KEY} key = chunks[i];
int place = i % {CHUNK};
for (int c = 0; c < {chunks}; ++c) {{
    if (c == i / {CHUNK}) continue;
    place += KERNEL_before(chunks + c * {CHUNK}, min({CHUNK}, {count} - c * {CHUNK}), key);
}}
keys[place] = key;
"""
    return each(
        "merge_rows", [reads(KEY, "chunks", Scratch(0)), writes(KEY, "keys", keys)], (count,), body, before=_FIRST
    )


def _numbering(parameters: Sequence[Parameter], count: int, rows: int, many: int) -> Launch:
    """The numbers of the rows that have updates, and where these begin: by one block, whose threads take equal shares
    and count what begins in those before theirs."""
    threads = int(min(1024, max(32, 2 ** np.ceil(np.log2(count)))))
    share = -(-count // threads)
    begins = "keys[m] >> 32 != (m ? keys[m - 1] >> 32 : ~0ull)"
    body = f"""
__shared__ int counts[{threads}];
const int thread = threadIdx.x, valid = {_before(count, str(rows))};
const int first = thread * {share}, end = min(first + {share}, valid);
int own = 0;
for (int m = first; m < end; ++m) own += {begins};
counts[thread] = own;
for (int step = 1; step < {threads}; step <<= 1) {{
    __syncthreads();
    const int other = thread >= step ? counts[thread - step] : 0;
    __syncthreads();
    counts[thread] += other;
}}
__syncthreads();
int place = counts[thread] - own;
for (int m = first; m < end; ++m) if ({begins}) {{
    ids[place] = (long long)(keys[m] >> 32);
    starts[place++] = m;
}}
for (int u = counts[{threads - 1}] + thread; u <= {many}; u += {threads}) {{
    if (u < {many}) ids[u] = {rows};
    starts[u] = valid;
}}
"""
    return launch("number_rows", parameters, body, 1, threads, before=_FIRST)

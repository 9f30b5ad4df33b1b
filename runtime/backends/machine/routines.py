"""Machine code for x86-64 (System V calls), where no library has such a function: the processor's flag, OpenMP's thread
count, a search of an array, and a loop over calls."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from functools import cache, partial
from itertools import chain
from typing import Any, Final

from ...memory.executable_code import ExecutableCode

# int look(int *flags): the flags of this thread are added to *flags, and taken down; answers the one asked for
LOOK: Final = (
    "4883ec08"  # sub rsp, 8
    "0fae1c24"  # stmxcsr [rsp]
    "8b0424"  # mov eax, [rsp]
    "832424c0"  # and dword [rsp], ~63: all flags down
    "0fae1424"  # ldmxcsr [rsp]
    "83e001"  # and eax, 1: invalid operation
    "f00907"  # lock or [rdi], eax
    "4883c408"  # add rsp, 8
    "c3"  # ret
)
# void alone(int *before, int (*tells)(void), void (*becomes)(int)): *before = tells(); becomes(1)
ALONE: Final = (
    "53" "4154" "4883ec08"  # push rbx; push r12; sub rsp, 8
    "4889fb" "4989d4"  # mov rbx, rdi; mov r12, rdx
    "ffd6" "8903"  # call rsi; mov [rbx], eax
    "bf01000000" "41ffd4"  # mov edi, 1; call r12
    "4883c408" "415c" "5b" "c3"  # add rsp, 8; pop r12; pop rbx; ret
)  # fmt: skip
# void together(int *before, int (*tells)(void), void (*becomes)(int)): becomes(*before) and *before = 0, unless it is 0
TOGETHER: Final = (
    "8b07" "85c0" "740a"  # mov eax, [rdi]; test eax, eax; jz to ret
    "c70700000000"  # mov dword [rdi], 0
    "89c7" "ffe2"  # mov edi, eax; jmp rdx
    "c3"  # ret
)  # fmt: skip
# void everywhere(int *flags, int threads, int (*tells)(void), void (*parallel)(f, void *, unsigned, unsigned)):
# parallel(LOOK, flags, max(threads, tells()), 0)
EVERYWHERE: Final = (
    "53" "4154" "4155"  # push rbx; push r12; push r13
    "4889fb" "4189f4" "4989cd"  # mov rbx, rdi; mov r12d, esi; mov r13, rcx
    "ffd2"  # call rdx
    "4439e0" "410f4cc4"  # cmp eax, r12d; cmovl eax, r12d
    "488d3d10000000"  # lea rdi, [rip + 16]: LOOK, behind the end
    "4889de" "89c2" "31c9"  # mov rsi, rbx; mov edx, eax; xor ecx, ecx
    "41ffd5"  # call r13
    "415d" "415c" "5b" "c3"  # pop r13; pop r12; pop rbx; ret
    + LOOK
)  # fmt: skip
# int tell(int *flags): *flags
TELL: Final = "8b07c3"  # mov eax, [rdi]; ret
# int search(struct {void *x; int64 bytes; char flip[16], mask[16], limit[16];} *): not 0 if ((e ^ flip) & mask) > limit
# for an element e of x; elements, and the numbers beside them, have four bytes, or two
_SEARCH: Final = (
    "488b7708" "f30f6f4f10" "f30f6f5720" "f30f6f5f30"  # mov rsi, [rdi+8]; movdqu xmm1 to 3, [rdi+16], [rdi+32], ...
    "488b3f" "660fefe4"  # mov rdi, [rdi]; pxor xmm4, xmm4
    "4883ee10" "7c1a"  # next: sub rsi, 16; jl rest
    "f30f6f07" "660fefc1" "660fdbc2" "{gt}" "660febe0"  # movdqu xmm0, [rdi]; pxor, pand, pcmpgt 0 and 1 to 3; por 4, 0
    "4883c710" "ebe0"  # add rdi, 16; jmp next
    "4883c610"  # rest: add rsi, 16
    "4883ee{size}" "7c{out}"  # one: sub rsi, size; jl out
    "660fefc0" "{load}"  # pxor xmm0, xmm0; movd xmm0, [rdi], or pinsrw xmm0, [rdi], 0
    "660fefc1" "660fdbc2" "{gt}" "660febe0" "4883c7{size}" "eb{back}"  # as above; add rdi, size; jmp one
    "660fd7c4" "c3"  # out: pmovmskb eax, xmm4; ret
)  # fmt: skip
SEARCH: Final = _SEARCH.format(gt="660f66c3", size="04", load="660f6e07", out="1e", back="dc")
SEARCH_HALVES: Final = _SEARCH.format(gt="660f65c3", size="02", load="660fc40700", out="1f", back="db")
# int64 run(row *rows, int64 count): row->function(row->a, ...) for each, until its answer & row->mask is not 0; then
# (number of the row, from 1) << 32 | that; else 0
RUN: Final = (
    "53" "4154" "4155"  # push rbx; push r12; push r13
    "4889fb" "4989f4" "4531ed"  # mov rbx, rdi; mov r12, rsi; xor r13d, r13d
    "4d39e5" "7d20"  # next: cmp r13, r12; jge done
    "488b7b08" "488b7310" "488b5318" "488b4b20"  # mov rdi, [rbx+8]; mov rsi, [rbx+16]; mov rdx, ...; mov rcx, [rbx+32]
    "ff13"  # call [rbx]
    "49ffc5"  # inc r13
    "234328" "750a"  # and eax, [rbx+40]; jnz failed
    "4883c330" "ebdb"  # add rbx, 48; jmp next
    "31c0" "eb07"  # done: xor eax, eax; jmp out
    "49c1e520" "4c09e8"  # failed: shl r13, 32; or rax, r13
    "415d" "415c" "5b" "c3"  # out: pop r13; pop r12; pop rbx; ret
)  # fmt: skip


# A call of `RUN`: a function, four words as arguments, and the bits of its answer that end the loop (0 for functions
# without an answer).
Row = tuple[int, int, int, int, int, int]
ROW_BYTES: Final = 48


class Routine(partial[Any]):
    """A native function with its arguments, ready to be called; `rows` are the same call for `RUN`."""

    rows: tuple[Row, ...] = ()


def address_of(function: Any) -> int:
    """The address of a library's function."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def row(function: int, a: int = 0, b: int = 0, c: int = 0, d: int = 0, *, mask: int = 0) -> Row:
    """Return a row; `mask` as for `Row`."""
    return function, a, b, c, d, mask


def table(rows: Sequence[Row]) -> Any:
    """The rows as `RUN` reads them."""
    return (ctypes.c_uint64 * (6 * len(rows)))(*chain.from_iterable(rows))


_MAKING = threading.Lock()  # a second page, made by another thread, would go while its addresses are in use


def _page() -> tuple[dict[str, int], ExecutableCode]:
    with _MAKING:
        return _written()


@cache
def _written() -> tuple[dict[str, int], ExecutableCode]:
    """The addresses of the routines, and the memory that holds them."""
    text, places = b"", dict[str, int]()
    for code in (LOOK, ALONE, TOGETHER, EVERYWHERE, TELL, SEARCH, SEARCH_HALVES, RUN):
        places[code] = len(text)
        text += bytes.fromhex(code)
        text += bytes(-len(text) % 16)
    memory = ExecutableCode(text)
    return {code: memory.address + place for code, place in places.items()}, memory


def routine(code: str) -> int:
    """The address of a routine. Raises OSError where no memory may be executed."""
    return _page()[0][code]

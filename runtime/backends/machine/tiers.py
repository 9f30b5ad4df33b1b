"""Tiers of instruction sets that machine code is compiled for, and the one that this processor has.

A tier has a name, since a processor's own name may be a virtual machine's invention; LLVM is told features.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import Final

from ....ops.dataclasses import dataclass
from ...memory.executable_code import ExecutableCode


@dataclass(frozen=True, slots=True)
class Tier:
    """A set of instructions: its name, LLVM's triple, processor and features, and the lanes of float32 in a vector.

    `ran` tells if code for it was ever run by the tests; what was not is never chosen.
    """

    name: str
    triple: str
    cpu: str
    features: str
    lanes: int
    ran: bool


AVX2: Final = Tier("x86-64-avx2", "x86_64-unknown-linux-gnu", "x86-64-v3", "+prefer-256-bit", 8, True)
AVX512: Final = Tier("x86-64-avx512", "x86_64-unknown-linux-gnu", "x86-64-v4", "", 16, False)
NEON: Final = Tier("aarch64-neon", "aarch64-unknown-linux-gnu", "generic", "+neon", 4, False)
TIERS: Final = (AVX2,)  # of which blobs are made

# void cpuid(uint32 *r): leaf r[0], subleaf r[1]; r[0..3] = eax, ebx, ecx, edx
_CPUID: Final = (
    "53"  # push rbx
    "8b07" "8b4f04"  # mov eax, [rdi]; mov ecx, [rdi+4]
    "0fa2"  # cpuid
    "8907" "895f04" "894f08" "89570c"  # mov [rdi], eax; [rdi+4], ebx; [rdi+8], ecx; [rdi+12], edx
    "5b" "c3"  # pop rbx; ret
)  # fmt: skip
# void xgetbv(uint32 *r): r[0] = eax of register 0
_XGETBV: Final = "31c90f01d08907c3"  # xor ecx, ecx; xgetbv; mov [rdi], eax; ret
_OSXSAVE, _AVX, _FMA, _F16C, _MOVBE = (1 << n for n in (27, 28, 12, 29, 22))  # leaf 1, ecx
_BMI1, _AVX2, _BMI2 = (1 << n for n in (3, 5, 8))  # leaf 7, ebx
_LZCNT = 1 << 5  # leaf 0x80000001, ecx
_YMM = 6  # the system keeps xmm and ymm


@cache
def tier_here() -> Tier | str:
    """The best tier of this machine that tests have run, or why there is none."""
    if sys.platform != "linux" or os.uname().machine != "x86_64":
        return "there are only kernels for Linux on x86-64"
    try:
        code = ExecutableCode(b"".join(bytes.fromhex(text).ljust(32, b"\xcc") for text in (_CPUID, _XGETBV)))
    except OSError as error:
        return f"the system grants no memory for machine code ({error})"
    ask = (ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(code.address + 32 * i) for i in range(2))
    cpuid, xgetbv = ask

    def leaf(number: int) -> list[int]:
        words = (ctypes.c_uint32 * 4)(number, 0)
        cpuid(words)
        return list(words)

    need = _OSXSAVE | _AVX | _FMA | _F16C | _MOVBE
    if leaf(0)[0] < 7 or leaf(1)[2] & need != need:
        return "the processor has no AVX2 and FMA"
    kept = (ctypes.c_uint32 * 4)()
    xgetbv(kept)
    more = _BMI1 | _AVX2 | _BMI2
    if kept[0] & _YMM != _YMM or leaf(7)[1] & more != more or not leaf(0x80000001)[2] & _LZCNT:
        return "the processor has no AVX2 and FMA"
    return AVX2

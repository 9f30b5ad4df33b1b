"""Object files of x86-64 and AArch64 as code that runs wherever it lies: sections are joined, what refers from one to
another is resolved, and what refers to anything outside is refused.

https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html, the processors' supplements for the relocations.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from .....ops.errors import PlanError

_HEADER, _SECTION, _SYMBOL, _RELA = (
    struct.Struct("<16sHHIQQQIHHHHHH"),
    struct.Struct("<IIQQQQIIQQ"),
    struct.Struct("<IBBHQQ"),
    struct.Struct("<QQq"),
)
_PROGBITS, _SYMTAB, _RELATED, _NOBITS = 1, 2, 4, 8
_ALLOCATED, _WRITTEN = 2, 1
X86_64, AARCH64 = 62, 183
PAGE = 4096


@dataclass(frozen=True, slots=True)
class Section:
    """A section: its kind and flags, its bytes, its alignment; and for tables, the section that it is about."""

    name: str
    kind: int
    flags: int
    data: bytes
    align: int
    about: int
    link: int


@dataclass(frozen=True, slots=True)
class Code:
    """Joined code, and the places of its functions."""

    data: bytes
    functions: Mapping[str, int]


def joined(file: bytes) -> Code:
    """The code of an object file. Raises PlanError where it needs anything from outside, or cannot be joined."""
    machine, sections = _sections(file)
    places: dict[int, int] = {}
    data = bytearray()
    for i, section in enumerate(sections):
        if not section.flags & _ALLOCATED or section.name.startswith(".eh_frame"):
            continue
        if section.flags & _WRITTEN or section.kind == _NOBITS:
            if section.data or section.kind == _NOBITS:
                raise _refused(f"{section.name} is written to")
            continue
        # addresses of pages are part of AArch64's instructions: what they name stays where it is within a page
        align = PAGE if machine == AARCH64 and section.data else max(section.align, 16)
        data += bytes(-len(data) % align)
        places[i] = len(data)
        data += section.data
    functions: dict[str, int] = {}
    for i, section in enumerate(sections):
        if section.kind == _SYMTAB:
            symbols = list(_SYMBOL.iter_unpack(section.data))
            names = sections[section.link].data
            for name, info, _, at, value, _ in symbols:
                if info >> 4 == 1 and at in places:
                    functions[_text(names, name)] = places[at] + value
            for related in sections:
                if related.kind == _RELATED and related.link == i and related.about in places:
                    _resolve(machine, data, places, related, symbols, names)
    return Code(bytes(data), functions)


def _refused(why: str) -> PlanError:
    return PlanError(f"this code does not stand alone: {why}", where="machine code")


def _text(names: bytes, at: int) -> str:
    return names[at : names.index(b"\0", at)].decode()


def _sections(file: bytes) -> tuple[int, list[Section]]:
    ident, _, machine, _, _, _, start, _, _, _, _, _, count, names_at = _HEADER.unpack_from(file)
    if ident[:6] != b"\x7fELF\x02\x01" or machine not in (X86_64, AARCH64):
        raise _refused("not an object file of x86-64 or AArch64")
    rows = [_SECTION.unpack_from(file, start + i * _SECTION.size) for i in range(count)]
    names = file[rows[names_at][4] :][: rows[names_at][5]]
    return machine, [
        Section(_text(names, name), kind, flags, b"" if kind == _NOBITS else file[at : at + size], align, about, link)
        for name, kind, flags, _, at, size, link, about, align, _ in rows
    ]


def _resolve(
    machine: int,
    data: bytearray,
    places: Mapping[int, int],
    related: Section,
    symbols: list[tuple[int, int, int, int, int, int]],
    names: bytes,
) -> None:
    base = places[related.about]
    for offset, info, addend in _RELA.iter_unpack(related.data):
        name, _, _, section, value, _ = symbols[info >> 32]
        if section not in places:
            raise _refused(f"it needs {_text(names, name) or 'a section that is not read-only'}")
        at, target, kind = base + offset, places[section] + value + addend, info & 0xFFFFFFFF
        if machine == X86_64:
            if kind not in (2, 4):  # R_X86_64_PC32, R_X86_64_PLT32
                raise _refused(f"relocation {kind}")
            struct.pack_into("<i", data, at, target - at)
        else:
            (word,) = struct.unpack_from("<I", data, at)
            struct.pack_into("<I", data, at, _instruction(word, kind, at, target))


def _instruction(word: int, kind: int, at: int, target: int) -> int:
    """An instruction of AArch64 with the place that it refers to."""
    if kind == 275:  # R_AARCH64_ADR_PREL_PG_HI21
        pages = target // PAGE - at // PAGE
        return word | (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5
    shifts = {277: 0, 278: 0, 284: 1, 285: 2, 286: 3, 299: 4}  # R_AARCH64_ADD_ABS_LO12_NC, LDST8 to LDST128
    if kind in shifts:
        return word | (target % PAGE >> shifts[kind]) << 10
    if kind in (282, 283):  # R_AARCH64_JUMP26, R_AARCH64_CALL26
        return word | (target - at) >> 2 & 0x3FFFFFF
    if kind == 261:  # R_AARCH64_PREL32: entries of jump tables
        return (target - at) & 0xFFFFFFFF
    raise _refused(f"relocation {kind}")

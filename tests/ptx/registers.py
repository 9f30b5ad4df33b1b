"""Registers and operands of the threads of a launch."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .arithmetic import KINDS, Unknown
from .memory import BASE, Fault, Space
from .parse import SIZES, Body, Instruction, Variable

Array = np.ndarray[Any, Any]
Where = Any  # True for all threads, or an array of truth values
RUNS, AT_BARRIER, IN_WARP, DONE, ABSENT = range(5)
APART = 64  # bytes between variables
OWN = re.compile(r"(?:shfl|vote|match|bar|barrier|redux|activemask)$")  # instructions that other threads take part in


@dataclass(frozen=True, slots=True)
class Shape:
    """A launch: blocks, threads in a block, bytes of dynamic shared memory."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0


@dataclass(slots=True)
class Part:
    """Instructions in a row without a way in or out, and what may end them."""

    steps: list[Callable[[Where], None]] = field(default_factory=list)
    last: Instruction | None = None


def laid_out(variables: Sequence[Variable], dynamic: int = 0) -> tuple[dict[str, int], list[tuple[int, int]], int]:
    """Where variables lie: their places, the bytes that exist as (begin, size), the size of all."""
    places, held, at = dict[str, int](), list[tuple[int, int]](), 0
    for v in [*(v for v in variables if not v.extern), *(v for v in variables if v.extern)]:
        at = -(-at // max(v.align, 16)) * max(v.align, 16)
        places[v.name] = at
        size = dynamic if v.extern else v.nbytes
        held.append((at, size))
        if not v.extern:
            at += size + APART
    return places, held, at + dynamic + APART


def units_of(body: Body) -> dict[str, int]:
    """The narrowest access of a kernel to each space, in bytes."""
    found = {"global": 16, "shared": 16, "local": 16}
    for i in body.code:
        if i.op in ("ld", "st", "atom", "red"):
            for space in found:
                if space in i.modifiers:
                    found[space] = min(found[space], KINDS[i.modifiers[-1]].itemsize)
    return found


class Registers:
    """Threads of some blocks of a launch, and what they hold: registers, operands, memory. `numbers` are those of the
    blocks in the grid."""

    def __init__(
        self, body: Body, shape: Shape, arguments: Sequence[np.generic], memory: Space, constants: dict[str, int],
        variables: Sequence[Variable], numbers: Array, rng: Any,
    ) -> None:  # fmt: skip
        self.body, self.memory, self._constants, self._rng = body, memory, constants, rng
        threads = int(np.prod(shape.block))
        if threads > body.threads:
            raise Fault(f"{threads} threads in a block, where the kernel was compiled for {body.threads}")
        if len(arguments) != len(body.parameters):
            raise Fault(f"{len(arguments)} operands for {len(body.parameters)} parameters")
        self.across = -(-threads // 32) * 32
        blocks = len(numbers)
        self.count = self.across * blocks
        thread = np.tile(np.arange(self.across), blocks)
        self.block = np.repeat(np.arange(blocks), self.across)
        self.lanes = np.repeat(numbers, self.across) * self.across + thread  # over the grid
        self.state = np.where(thread < threads, RUNS, ABSENT).astype(np.int8)
        self.place, self.epoch = np.zeros(self.count, np.int32), np.zeros(self.count, np.int32)
        self.index = np.arange(self.count)
        number = np.repeat(numbers, self.across)
        self._special: dict[str, Any] = {
            "%laneid": (thread % 32).astype(np.uint32),
            "%warpid": (thread // 32).astype(np.uint32),
        }
        for axis, name in enumerate("xyz"):
            before = [int(np.prod(s[:axis], dtype=np.int64)) for s in (shape.block, shape.grid)]
            self._special |= {
                f"%tid.{name}": (thread // before[0] % shape.block[axis]).astype(np.uint32),
                f"%ctaid.{name}": (number // before[1] % shape.grid[axis]).astype(np.uint32),
                f"%ntid.{name}": np.uint32(shape.block[axis]), f"%nctaid.{name}": np.uint32(shape.grid[axis]),
            }  # fmt: skip
        self._arguments = {name: a for (name, _), a in zip(body.parameters, arguments, strict=True)}
        for (name, kind), argument in zip(body.parameters, arguments, strict=True):
            if argument.dtype.itemsize != SIZES.get(kind):
                raise Fault(f"{argument!r} for {name}, which is {kind}")
        units = units_of(body)
        own = [*variables, *body.variables]
        self._shared, held, self._shared_size = laid_out([v for v in own if v.space == "shared"], shape.shared)
        self._spaces = {
            "global": memory,
            "shared": Space("shared", self._shared_size * blocks, units["shared"], self.across),
        }
        self._local, kept, self._local_size = laid_out([v for v in body.variables if v.space == "local"])
        self._spaces["local"] = Space("local", self._local_size * self.count, units["local"], 0)
        for space, ranges, size, many in (
            ("shared", held, self._shared_size, blocks),
            ("local", kept, self._local_size, self.count),
        ):
            inside = np.zeros(size // self._spaces[space].unit + 1, bool)[: size // self._spaces[space].unit]
            for begin, length in ranges:
                inside[begin // self._spaces[space].unit : (begin + length) // self._spaces[space].unit] = True
            there = np.tile(inside, many)
            self._spaces[space].inside[: len(there)] = self._spaces[space].writable[: len(there)] = there
        self.registers: dict[str, Array] = {}
        self._all = np.ones(self.count, bool)
        self.unknown: dict[str, Array] = {}
        for name, kind in body.registers.items():
            self._new(name, kind)
        self.carry = np.zeros(self.count, np.uint64)
        self.executed = 0

    # -- registers and operands -------------------------------------------------------------------------------------

    def _new(self, name: str, kind: str) -> None:
        dtype = KINDS["pred"] if kind == "pred" else np.dtype(f"u{SIZES[kind]}")
        self.registers[name] = (
            np.zeros(self.count, bool)
            if kind == "pred"
            else np.full(self.count, 0xCDCDCDCDCDCDCDCD >> (64 - 8 * dtype.itemsize), dtype)
        )
        self.unknown[name] = self._all

    def register(self, name: str, kind: str) -> Array:
        """A register as elements of a type; of a narrower one, its lowest bits."""
        held, dtype = self.registers[name], KINDS[kind]
        if held.dtype == bool or held.dtype.itemsize == dtype.itemsize:
            same: Array = held.view(dtype)
            return same
        if held.dtype.itemsize < dtype.itemsize:
            raise Unknown(f"{name} as {kind}")
        low: Array = held.view(dtype)[:: held.dtype.itemsize // dtype.itemsize]
        return low

    def value(self, operand: str, kind: str) -> Any:
        """The elements of an operand: a register, a number, an address."""
        dtype = KINDS[kind]
        if operand in self.registers:
            return self.register(operand, kind)
        if operand in self._special:
            return self._special[operand].view(dtype) if dtype.itemsize == 4 else self._special[operand].astype(dtype)
        if operand[:2] in ("0f", "0d") and len(operand) in (10, 18):
            return (
                np.array(int(operand[2:], 16), f"u{(len(operand) - 2) // 2}")
                .view(f"f{(len(operand) - 2) // 2}")[()]
                .astype(dtype)
            )
        if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)U?", operand):
            number = int(operand.rstrip("U"), 0)
            if kind == "pred":
                return np.bool_(number)
            return np.array(number % (1 << 8 * dtype.itemsize), f"u{dtype.itemsize}").view(dtype)[()]
        for places in (self._shared, self._local):
            if operand in places:
                return dtype.type(places[operand])
        if operand in self._constants:
            return dtype.type(self._constants[operand])
        raise Unknown(f"operand {operand}")

    def names(self, operands: Sequence[str]) -> list[str]:
        return [o for o in operands if o in self.registers]

    def mark(self, result: str, unknown: Any, where: Where) -> None:
        """Whether a register means anything, in the threads of `where`."""
        if unknown is not None and not (unknown.any() if where is True else (unknown & where).any()):
            unknown = None
        held = self.unknown.get(result)
        if unknown is None:
            if held is None:
                return
            if where is True:
                del self.unknown[result]
                return
            left = held & ~where
            if left.any():
                self.unknown[result] = left
            else:
                del self.unknown[result]
        else:
            left = np.zeros(self.count, bool) if held is None else held.copy()
            np.copyto(left, unknown, where=where)
            self.unknown[result] = left

    def of(self, names: Sequence[str]) -> Any:
        """In which threads one of these registers means nothing; None for nowhere."""
        found = None
        for name in names:
            if name in self.unknown:
                found = self.unknown[name] if found is None else found | self.unknown[name]
        return found

    def need(self, names: Sequence[str], where: Where, what: str) -> None:
        unknown = self.of(names)
        if unknown is not None:
            bad = unknown & self._live() if where is True else unknown & where
            if bad.any():
                raise Fault(f"{what} depends on what nobody has written, thread {self.lanes[np.flatnonzero(bad)[0]]}")

    def _live(self) -> Array:
        return self.state < DONE


def address_of(operand: str) -> tuple[str, int]:
    found = re.fullmatch(r"\[\s*([^\s+\]]+)\s*(?:\+\s*(-?\w+))?\s*\]", operand)
    if found is None:
        raise Unknown(operand)
    return found[1], int(found[2] or "0", 0)


def width_of(held: Array) -> str:
    return f"u{8 * held.dtype.itemsize}"


def global_space(nbytes: int, unit: int, across: int) -> Space:
    """The memory that all blocks share."""
    return Space("global", nbytes, unit, across, BASE)

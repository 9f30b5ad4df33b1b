"""Blocks of threads that run a kernel of PTX, all of them at once or warp by warp in a random order.

Each thread has a place of its own in the code. Those that are at the lowest go on together; a barrier lets nobody
through until all threads of the block have come, and who waits in a warp waits for the threads that it names. A
register means nothing until it is written; such a value may be moved about, but no address, branch or result may depend
on it, and that is told as a fault.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .arithmetic import KINDS, Unknown, operation
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


class Machine:
    """Some blocks of a launch, which run together. `numbers` are those of the blocks in the grid."""

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
        self._special = {"%laneid": (thread % 32).astype(np.uint32), "%warpid": (thread // 32).astype(np.uint32)}
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
        self._parts, self._starts = self._bound()

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
            return held.view(dtype)
        if held.dtype.itemsize < dtype.itemsize:
            raise Unknown(f"{name} as {kind}")
        return held.view(dtype)[:: held.dtype.itemsize // dtype.itemsize]

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

    # -- instructions -----------------------------------------------------------------------------------------------

    def _bound(self) -> tuple[list[Part], dict[int, int]]:
        code, targets = self.body.code, set(self.body.labels.values())
        for i, instruction in enumerate(code):
            if OWN.match(instruction.op):
                targets |= {i, i + 1}
            elif instruction.op in ("bra", "ret", "exit"):
                targets.add(i + 1)
        parts, starts = list[Part](), dict[int, int]()
        for i in range(len(code) + 1):
            if i == 0 or i in targets:
                starts[i] = len(parts)
                parts.append(Part())
            if i == len(code):
                break
            instruction = code[i]
            if OWN.match(instruction.op) or instruction.op in ("bra", "ret", "exit"):
                parts[-1].last = instruction
            else:
                parts[-1].steps.append(self._step(instruction, i))
        return parts, starts

    def _step(self, i: Instruction, at: int) -> Callable[[Where], None]:
        plain = self._plain(i)
        if not i.guard:
            return plain
        guard, negated = self.registers[i.guard], i.negated

        def guarded(where: Where) -> None:
            self.need([i.guard], where, str(i))
            mine = ~guard if negated else guard.copy()
            mine &= self._live() if where is True else where
            if mine.any():
                plain(mine)

        return guarded

    def _plain(self, i: Instruction) -> Callable[[Where], None]:
        if i.op in ("ld", "st", "atom", "red"):
            return self._memory(i)
        if i.op == "cvta":
            if i.modifiers not in (("to", "global", "u64"), ("to", "local", "u64"), ("to", "shared", "u64")):
                raise Unknown(i.name)
            i = Instruction("mov", ("u64",), i.operands)
        if i.op in ("trap", "brkpt"):
            raise Unknown(i.name)
        if i.op == "mov" and any("{" in o for o in i.operands):
            return self._packed(i)
        if i.op in ("addc", "subc", "madc") or "cc" in i.modifiers:
            return self._carried(i)
        if i.op in ("and", "or") and i.modifiers == ("pred",):
            return self._both(i)
        result, operands = i.operands[0], i.operands[1:]
        kind, kinds, function = operation(i)
        values = [self.value(o, k) for o, k in zip(operands, kinds, strict=True)]
        sources = self.names(operands)
        divides = i.op in ("div", "rem") and kind[0] not in "f"
        target = self._target(result, kind)
        ufunc = isinstance(function, np.ufunc) and target.dtype == KINDS[kind]
        chosen = i.op == "selp"

        def step(where: Where) -> None:
            if divides and not np.all(values[1]):
                bad = (np.asarray(values[1]) == 0) & (self._live() if where is True else where)
                if bad.any():
                    raise Fault(f"{i}: a division by zero")
            unknown = self._chosen(operands, values) if chosen else self.of(sources)
            if ufunc:
                function(*values, out=target, where=where)
            else:
                np.copyto(target, function(*values), where=where, casting="unsafe")
            self.mark(result, unknown, where)

        return step

    def _target(self, result: str, kind: str) -> Array:
        """Where a result goes: the whole register, signs and zeros before a narrower number."""
        held = self.registers[result]
        if held.dtype == bool or held.dtype.itemsize == KINDS[kind].itemsize:
            return held.view(KINDS[kind])
        return held.view(f"i{held.dtype.itemsize}") if kind[0] == "s" else held

    def _chosen(self, operands: Sequence[str], values: Sequence[Any]) -> Any:
        one, other, by = (self.unknown.get(o) for o in operands)
        if one is None and other is None and by is None:
            return None
        none = np.zeros(self.count, bool)
        found = np.where(values[2], none if one is None else one, none if other is None else other)
        return found if by is None else found | by

    def _both(self, i: Instruction) -> Callable[[Where], None]:
        """`and` and `or` of truth values: a false or a true one decides, whatever the other is."""
        result, *operands = i.operands
        a, b = (self.value(o, "pred") for o in operands)
        target, join = self.registers[result], np.logical_and if i.op == "and" else np.logical_or
        sources = self.names(operands)

        def step(where: Where) -> None:
            unknown = self.of(sources)
            if unknown is not None:
                none = np.zeros(self.count, bool)
                ua, ub = (self.unknown.get(o, none) for o in operands)
                decides = (lambda x: ~x) if i.op == "and" else (lambda x: x)
                unknown = unknown & ~(decides(a) & ~ua) & ~(decides(b) & ~ub)
            join(a, b, out=target, where=where)
            self.mark(result, unknown, where)

        return step

    def _packed(self, i: Instruction) -> Callable[[Where], None]:
        result, source = i.operands
        parts = [p.strip() for p in (result if "{" in result else source).strip("{}").split(",")]
        size = KINDS[i.modifiers[-1]].itemsize
        kind = f"u{8 * size // len(parts)}"
        bits = 8 * size // len(parts)
        whole = f"u{8 * size}"

        def apart(where: Where) -> None:
            held, unknown = self.value(source, whole), self.of(self.names([source]))
            for n, part in enumerate(parts):
                if part != "_":
                    np.copyto(
                        self.register(part, kind), (held >> held.dtype.type(n * bits)).astype(KINDS[kind]), where=where
                    )
                    self.mark(part, unknown, where)

        def together(where: Where) -> None:
            made: Any = KINDS[whole].type(0)
            for n, part in enumerate(parts):
                made = made | np.asarray(self.value(part, kind)).astype(KINDS[whole]) << KINDS[whole].type(n * bits)
            np.copyto(self.register(result, whole), made, where=where)
            self.mark(result, self.of(self.names(parts)), where)

        return apart if "{" in result else together

    def _carried(self, i: Instruction) -> Callable[[Where], None]:
        """Sums and products of 32 bits whose carry goes on to the next."""
        result, *operands = i.operands
        kind = i.modifiers[-1]
        if kind not in ("u32", "s32"):
            raise Unknown(i.name)
        values, sources = [self.value(o, "u32") for o in operands], self.names(operands)
        takes, gives = i.op.endswith("c"), "cc" in i.modifiers
        target, op = self.register(result, "u32"), i.op.removesuffix("c") if i.op != "mad" else "mad"

        def step(where: Where) -> None:
            u = np.uint64
            wide = [np.asarray(v).astype(u) for v in values]
            carry = self.carry if takes else u(0)
            if op == "sub":
                total = wide[0] - wide[1] - carry
            elif op == "add":
                total = wide[0] + wide[1] + carry
            else:
                product = wide[0] * wide[1]
                half = product >> u(32) if "hi" in i.modifiers else product & u(0xFFFFFFFF)
                total = half + wide[2] + carry
            unknown = self.of([*sources, *(["CC"] if takes else [])])
            np.copyto(target, total.astype(np.uint32), where=where)
            if gives:
                np.copyto(self.carry, total >> u(32) & u(1), where=where)
                self.mark("CC", unknown, where)
            self.mark(result, unknown, where)

        return step

    def _memory(self, i: Instruction) -> Callable[[Where], None]:
        known = {"global", "shared", "local", "param", "const", "nc", "v2", "v4", "volatile", "relaxed", "gpu", "cta"}
        known |= {"L1", "L2", "no_allocate", "evict_first", "evict_last", "cs", "ca", "cg", "128B", "256B", "64B"}
        kind = i.modifiers[-1]
        name = next((s for s in ("global", "shared", "local", "param") if s in i.modifiers), "")
        atomic = i.op in ("atom", "red")
        if not name or kind not in KINDS or (not atomic and set(i.modifiers[:-1]) - known) or "volatile" in i.modifiers:
            raise Unknown(i.name)
        address = i.operands[0] if i.op in ("st", "red") else i.operands[1]
        base, offset = _address(address)
        if name == "param":
            return self._parameter(i, base, offset, kind)
        where_from = self.value(
            base, "u64" if name == "global" or not base.startswith("%") else _width(self.registers[base])
        )
        space = self._spaces[name]
        sizes = {"shared": self._shared_size, "local": self._local_size, "global": 0}

        def places(index: Array) -> Array:
            held = np.broadcast_to(where_from, (self.count,))[index].astype(np.int64) + offset
            size = sizes[name]
            if size:
                if ((held < 0) | (held >= size)).any():
                    raise Fault(f"{i}: beyond {name} memory")
                held = held + (self.block[index] if name == "shared" else index) * size
            return held

        if atomic:
            return self._atomic(i, base, space, places, kind)
        registers = [r.strip() for r in (i.operands[1] if i.op == "st" else i.operands[0]).strip("{}").split(",")]
        constant = "nc" in i.modifiers

        def load(where: Where) -> None:
            index = self._index(where)
            self.need([base], where, f"the address of {i}")
            values, unknown = space.load(
                places(index), KINDS[kind], len(registers), self.lanes[index], self.epoch[index], constant
            )
            for n, register in enumerate(registers):
                self._target(register, kind)[index] = values[n]
                none = None
                if unknown is not None:
                    none = np.zeros(self.count, bool)
                    none[index] = unknown[n]
                self.mark(register, none, where)

        sources = self.names(registers)

        def store(where: Where) -> None:
            index = self._index(where)
            self.need([base], where, f"the address of {i}")
            values = np.stack([np.broadcast_to(self.value(r, kind), (self.count,))[index] for r in registers])
            unknown = None
            if self.of(sources) is not None:
                none = np.zeros(self.count, bool)
                unknown = np.stack([self.unknown.get(r, none)[index] for r in registers])
            space.store(places(index), values, unknown, self.lanes[index], self.epoch[index])

        return store if i.op == "st" else load

    def _parameter(self, i: Instruction, base: str, offset: int, kind: str) -> Callable[[Where], None]:
        if base in self._arguments:
            if offset or i.op == "st":
                raise Unknown(str(i))
            register, held = i.operands[0], self._arguments[base]
            value = held.view(KINDS[kind]) if held.dtype.itemsize == KINDS[kind].itemsize else None
            if value is None:
                raise Unknown(str(i))
            target = self._target(register, kind)

            def load(where: Where) -> None:
                np.copyto(target, value, where=where)
                self.mark(register, None, where)

            return load
        cell = f"{base}+{offset}"
        if cell not in self.registers:
            self._new(cell, kind)
        to, of = (cell, i.operands[1]) if i.op == "st" else (i.operands[0], cell)
        return self._plain(Instruction("mov", (kind,), (to, of)))

    def _atomic(self, i: Instruction, base: str, space: Space, places: Any, kind: str) -> Callable[[Where], None]:
        result, operands = ("", i.operands[1:]) if i.op == "red" else (i.operands[0], i.operands[2:])
        how = next((m for m in i.modifiers if m in ("add", "max", "min", "and", "or", "xor", "exch", "cas")), "")
        if not how or set(i.modifiers) - {how, kind, "global", "shared", "relaxed", "gpu", "cta"}:
            raise Unknown(i.name)
        changes: dict[str, Any] = {
            "add": np.add, "max": np.maximum, "min": np.minimum, "and": np.bitwise_and, "or": np.bitwise_or,
            "xor": np.bitwise_xor, "exch": lambda old, new: new,
            "cas": lambda old, expected, new: new if old == expected else old,
        }  # fmt: skip

        def step(where: Where) -> None:
            index = self._index(where)
            index = self._rng.permutation(index)
            self.need([base, *operands], where, str(i))
            given = [np.broadcast_to(self.value(o, kind), (self.count,))[index] for o in operands]
            dtype = KINDS[kind]

            def change(old: Any, n: int) -> Any:
                return changes[how](old, *(g[n] for g in given))

            old, unknown = space.update(places(index), dtype, change, self.lanes[index], self.epoch[index])
            if unknown is not None:
                raise Fault(f"{i}: of memory that nobody has written")
            if result and result in self.registers:
                self._target(result, kind)[index] = old
                self.mark(result, None, where)

        return step

    def _index(self, where: Where) -> Array:
        return np.flatnonzero(self._live() if where is True else where)

    # -- running ----------------------------------------------------------------------------------------------------

    def run(self, groups: int = 1) -> None:
        """Until all threads have returned; warps in so many groups, which go on one after the other. Raises Fault."""
        warps = self.count // 32
        with np.errstate(all="ignore"):
            while (self.state == RUNS).any():
                of = np.repeat(self._rng.integers(0, groups, warps), 32)
                for group in range(groups):
                    self._advance(of == group if groups > 1 else self._all)
                self._release()
        if ((self.state == IN_WARP) | (self.state == AT_BARRIER)).any():
            raise Fault("threads wait for ever")

    def _advance(self, mine: Array) -> None:
        """All threads of some warps, until they wait or have returned."""
        while True:
            ready = (self.state == RUNS) & mine
            if not ready.any():
                if ((self.state == IN_WARP) & mine).any():
                    raise Fault("threads of a warp wait for others of it that never come")
                return
            at = int(self.place[ready].min())
            here = ready & (self.place == at)
            part = self._parts[at]
            where: Where = True if here.sum() == (self.state < DONE).sum() else here
            for step in part.steps:
                step(where)
            self.executed += len(part.steps) + 1
            self.place[here] = at + 1
            if at + 1 == len(self._parts) and part.last is None:
                self.state[here] = DONE
            elif part.last is not None:
                self._end(part.last, at, here)

    def _end(self, i: Instruction, at: int, here: Array) -> None:
        if i.op in ("bra", "ret", "exit"):
            if i.guard:
                self.need([i.guard], here, f"a branch, {i},")
                held = self.registers[i.guard]
                here = here & (~held if i.negated else held)
            if i.op == "bra":
                self.place[here] = self._starts[self.body.labels[i.operands[0]]]
            else:
                self.state[here] = DONE
            return
        if i.guard:
            raise Unknown(str(i))
        if i.op in ("bar", "barrier") and "warp" not in i.modifiers:
            if i.operands[1 if "red" in i.modifiers else 0] != "0" or set(i.modifiers) - {
                "sync",
                "red",
                "popc",
                "u32",
                "and",
                "or",
                "pred",
                "cta",
                "aligned",
            }:
                raise Unknown(str(i))
            self.state[here] = AT_BARRIER
            return
        self._meet(i, at, here)

    def _meet(self, i: Instruction, at: int, here: Array) -> None:
        """Threads of warps that take part in one instruction, once all that they name have come."""
        self.state[here] = IN_WARP
        self.place[here] = at
        waiting = (self.state == IN_WARP) & (self.place == at)
        named = i.operands[0] if i.op == "bar" else i.operands[-1]
        if i.op not in ("shfl", "vote", "bar", "match") or (i.op != "bar" and "sync" not in i.modifiers):
            raise Unknown(i.name)
        self.need(self.names(i.operands[1:]) if i.op != "shfl" else self.names([named]), waiting, str(i))
        mask = np.broadcast_to(self.value(named, "u32"), (self.count,))
        lane = (self.index % 32).astype(np.uint32)
        bit = np.uint32(1) << lane

        def bits(which: Array) -> Array:
            return np.repeat(np.where(which, bit, np.uint32(0)).reshape(-1, 32).sum(1, dtype=np.uint32), 32)

        if (waiting & (mask & bit == 0)).any():
            raise Fault(f"{i}: a thread is not among those that it names")
        if (waiting & (mask & bits(self.state == DONE) != 0)).any():
            raise Fault(f"{i}: names a thread that has returned")
        ready = waiting & (mask & bits(self.state < DONE) & ~bits(waiting) == 0)
        if not ready.any():
            return
        self.state[ready] = RUNS
        self.place[ready] = at + 1
        if i.op == "shfl":
            self._shuffle(i, ready, lane)
        elif i.op == "vote":
            self._vote(i, ready, mask & bits(ready))
        elif i.op == "match":
            self._match(i, ready, mask & bits(ready))

    def _shuffle(self, i: Instruction, ready: Array, lane: Array) -> None:
        result, _, truth = i.operands[0].partition("|")
        value, by, clamp = (np.broadcast_to(self.value(o, "u32"), (self.count,)) for o in i.operands[1:4])
        self.need(self.names(i.operands[2:4]), ready, str(i))
        n, b, c = (x.astype(np.int64) for x in (lane, by & 31, clamp))
        segment = c >> 8 & 31
        most, least = (n & segment) | (c & 31 & ~segment), n & segment
        how = next(m for m in i.modifiers if m in ("up", "down", "bfly", "idx"))
        of = {"up": n - b, "down": n + b, "bfly": n ^ b, "idx": least | (b & ~segment)}[how]
        inside = of >= most if how == "up" else of <= most
        of = np.where(inside, of, n) + self.index // 32 * 32
        unknown = ~ready[of]
        held = self.of(self.names([i.operands[1]]))
        unknown = unknown if held is None else unknown | held[of]
        np.copyto(self.register(result, "u32"), value[of], where=ready)
        self.mark(result, unknown, ready)
        if truth:
            np.copyto(self.registers[truth], inside, where=ready)
            self.mark(truth, None, ready)

    def _vote(self, i: Instruction, ready: Array, mask: Array) -> None:
        result, truth = i.operands[0], i.operands[1]
        held = np.broadcast_to(self.value(truth, "pred"), (self.count,)) & ready
        ballot = np.where(held, np.uint32(1) << (self.index % 32).astype(np.uint32), np.uint32(0))
        ballot = np.repeat(ballot.reshape(-1, 32).sum(1, dtype=np.uint32), 32) & mask
        made = {"ballot": ballot, "any": ballot != 0, "all": ballot == mask}.get(
            next(m for m in i.modifiers if m != "sync")
        )
        if made is None:
            raise Unknown(i.name)
        np.copyto(self.registers[result], made, where=ready)
        self.mark(result, None, ready)

    def _match(self, i: Instruction, ready: Array, mask: Array) -> None:
        if i.modifiers[:2] != ("any", "sync"):
            raise Unknown(i.name)
        held = np.broadcast_to(self.value(i.operands[1], i.modifiers[-1]), (self.count,)).reshape(-1, 32)
        same = held[:, :, None] == held[:, None, :]
        bits = np.where(same, (np.uint32(1) << np.arange(32, dtype=np.uint32)), np.uint32(0)).sum(2, dtype=np.uint32)
        np.copyto(self.registers[i.operands[0]], bits.reshape(-1) & mask, where=ready)
        self.mark(i.operands[0], None, ready)

    def _release(self) -> None:
        """Barriers where all threads of a block wait; a Fault where one has returned, or waits at another."""
        state, place = self.state.reshape(-1, self.across), self.place.reshape(-1, self.across)
        waiting = state == AT_BARRIER
        some = waiting.any(1)
        if ((state == DONE).any(1) & some).any():
            raise Fault("a barrier for which threads do not come: they have returned")
        whole = some & (waiting == (state < DONE)).all(1)
        first = np.where(waiting, place, len(self._parts)).min(1)
        if (whole & (np.where(waiting, place, 0).max(1) != first)).any():
            raise Fault("threads of a block wait at different barriers")
        for block in np.flatnonzero(whole).tolist() if any("red" in i.modifiers for i in self.body.code) else ():
            i = self._parts[int(first[block]) - 1].last
            if i is not None and "red" in i.modifiers:
                self._reduce(i, waiting.reshape(-1) & (self.block == block))
        there = (waiting & whole[:, None]).reshape(-1)
        self.epoch[there] += 1
        self.state[there] = RUNS

    def _reduce(self, i: Instruction, there: Array) -> None:
        result, _, truth = i.operands[:3]
        self.need(self.names([truth]), there, str(i))
        held = np.broadcast_to(self.value(truth, "pred"), (self.count,))[there]
        made: Any = held.sum() if "popc" in i.modifiers else held.all() if "and" in i.modifiers else held.any()
        self.registers[result][there] = made
        self.mark(result, None, there)


def _address(operand: str) -> tuple[str, int]:
    found = re.fullmatch(r"\[\s*([^\s+\]]+)\s*(?:\+\s*(-?\w+))?\s*\]", operand)
    if found is None:
        raise Unknown(operand)
    return found[1], int(found[2] or "0", 0)


def _width(held: Array) -> str:
    return f"u{8 * held.dtype.itemsize}"


def global_space(nbytes: int, unit: int, across: int) -> Space:
    """The memory that all blocks share."""
    return Space("global", nbytes, unit, across, BASE)

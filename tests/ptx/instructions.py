"""Instructions as steps over the registers of all threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .arithmetic import KINDS, Unknown, operation
from .memory import Fault, Space
from .parse import Instruction
from .registers import OWN, Array, Part, Registers, Where, address_of, width_of


class Instructions(Registers):
    """The instructions of a kernel, each as a step."""

    def __init__(self, *operands: Any, **named: Any) -> None:
        super().__init__(*operands, **named)
        self._parts, self._starts = self._bound()

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
                one, other = (~a, ~b) if i.op == "and" else (a, b)  # which decide
                unknown = unknown & ~(one & ~ua) & ~(other & ~ub)
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
        base, offset = address_of(address)
        if name == "param":
            return self._parameter(i, base, offset, kind)
        where_from = self.value(
            base, "u64" if name == "global" or not base.startswith("%") else width_of(self.registers[base])
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

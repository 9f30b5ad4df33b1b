"""Blocks of threads that run a kernel of PTX, all of them at once or warp by warp in a random order.

Each thread has a place of its own in the code. Those that are at the lowest go on together; a barrier lets nobody
through until all threads of the block have come, and who waits in a warp waits for the threads that it names. A
register means nothing until it is written; such a value may be moved about, but no address, branch or result may depend
on it, and that is told as a fault.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .arithmetic import Unknown
from .instructions import Instructions
from .memory import Fault
from .parse import Instruction
from .registers import AT_BARRIER, DONE, IN_WARP, RUNS, Array, Where


class Machine(Instructions):
    """Some blocks of a launch, which run together. `numbers` are those of the blocks in the grid."""

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

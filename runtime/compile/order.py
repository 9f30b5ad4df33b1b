"""Orders of execution that lower the peak of live memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from .program import ProgramStep

LARGEST = 5000  # steps: above it the order of the graph stands


def needs(steps: Sequence[ProgramStep]) -> list[list[int]]:
    """Return, for each step, the steps whose results it reads."""
    maker = {value: i for i, step in enumerate(steps) for value in step.writes()}
    return [sorted({maker[n] for n in step.reads() if n in maker}) for step in steps]


def as_given(steps: Sequence[ProgramStep], nbytes: Mapping[str, int]) -> list[int]:
    """The order of the graph."""
    return list(range(len(steps)))


def greedy(steps: Sequence[ProgramStep], nbytes: Mapping[str, int]) -> list[int]:
    """List scheduling: of the steps that can run, the one that frees most beyond what it makes; then the earliest."""
    before = needs(steps)
    waiting = [len(b) for b in before]
    after: list[list[int]] = [[] for _ in steps]
    for i, b in enumerate(before):
        for j in b:
            after[j].append(i)
    readers: dict[str, int] = {}
    for step in steps:
        for name in step.reads():
            readers[name] = readers.get(name, 0) + 1
    written = [sum([nbytes.get(o, 0) for o in step.writes()]) for step in steps]

    def growth(i: int) -> int:
        return written[i] - sum([nbytes.get(n, 0) for n in steps[i].reads() if readers[n] == 1])

    ready = [i for i, n in enumerate(waiting) if not n]
    done: list[int] = []
    while ready:
        best = min(ready, key=lambda i: (growth(i), i))
        ready.remove(best)
        done.append(best)
        for name in steps[best].reads():
            readers[name] -= 1
        for i in after[best]:
            waiting[i] -= 1
            if not waiting[i]:
                ready.append(i)
    return done


def deepest(steps: Sequence[ProgramStep], nbytes: Mapping[str, int]) -> list[int]:
    """Depth first from the last steps backwards, the operand whose making needs most first (as Sethi and Ullman number
    the registers of an expression)."""
    before = needs(steps)
    peak = [0] * len(steps)
    for i, b in enumerate(before):
        held = 0
        written = sum(nbytes.get(o, 0) for o in steps[i].writes())
        for j in sorted(b, key=lambda j: -peak[j]):
            peak[i] = max(peak[i], held + peak[j])
            held += sum(nbytes.get(o, 0) for o in steps[j].writes())
        peak[i] = max(peak[i], held + written)
    done: list[int] = []
    seen: set[int] = set()
    read = {j for b in before for j in b}
    roots = [i for i in range(len(steps)) if i not in read]
    for root in roots:
        stack = [(root, False)]
        while stack:
            i, expanded = stack.pop()
            if expanded:
                done.append(i)
            elif i not in seen:
                seen.add(i)
                stack.append((i, True))
                stack += [(j, False) for j in sorted(before[i], key=lambda j: peak[j]) if j not in seen]
    return done


# Orders worth planning for, each a permutation of the steps; the mapping gives the size of each value of the arena.
Order = Callable[[Sequence[ProgramStep], Mapping[str, int]], list[int]]
ORDERS: tuple[Order, ...] = (as_given, greedy, deepest)

"""Checks of the processor's flag for invalid operations, between the calls of a program."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Container, Mapping, Sequence
from operator import itemgetter
from typing import Any

from ....ops import Tensor
from ...compile.kernel import nothing
from ...compile.program import Program, ProgramStep
from ...execution.alarm import raise_alarm
from ...memory.liveness import Space
from ..machine.routines import Row
from .invalid import Look, LookAtAll, LowerAll, lowered
from .postops import ROWS, chain, loses, noisy, operators
from .search import searches
from .teams import Order


class FlagWatch:
    """Places where a program checks the flag: after `losing`, the steps that may have replaced a NaN by a number.

    NumPy takes the flag of its thread down before it computes, and leaves it up after a NaN: so it is taken down before
    each stretch of the library's calls with such a step, and looked at behind it. Where the program is to be `careful`,
    stretches end before steps that may raise the flag for no reason (`noisy`). NumPy computes in no other thread: the
    workers of OpenMP are asked once, at the end, if such a step was shared among them; or before noisy steps that they
    share, and lowered behind these.

    A Softmax leaves at least one NaN of a row that has one, and should make all of them NaN: its result is looked at
    itself, unless only products along the rows read it, which make NaN of the whole row in any case.
    """

    def __init__(self, program: Program, arrays: Mapping[str, Any], careful: bool = True) -> None:
        target = program.target
        watches = target.onednn and not target.sm and target.nan == "watched"
        steps = enumerate(program.steps)
        self._careful = careful
        self.losing = frozenset(i for i, step in steps if watches and _loses(program, step))
        self._noisy = [
            i for i, s in enumerate(program.steps) if i not in self.losing and self._may_be_noisy(program, s)
        ]
        self._end = len(program.steps)
        rows = _spread(program) if watches else []
        self._rows = {i: LookAtRows(program, arrays, name, dtype) for i, name, dtype in rows}
        self._stretches = _stretches(program, self.losing, frozenset(self._noisy))
        self._ends: tuple[LookAtAll, LowerAll] | None = None

    def _may_be_noisy(self, program: Program, step: ProgramStep) -> bool:
        if not (self._careful and self.losing and step.choice.implementation):
            return False
        return noisy(step.node, [program.types.get(o) for o in step.node.outputs])

    def order(self, calls: Sequence[Callable[[], Any]], alone: Sequence[bool | None]) -> Order:
        """The numbers of the steps whose calls do something, each with None, and the looks in between: each with the
        number of the step that it stands before. `alone` tells of each call how `teams.alone` answers."""
        steps = [(i, 9, None) for i, call in enumerate(calls) if call is not nothing]
        events: list[tuple[int, int, Callable[[], Any] | None]] = [(i + 1, 2, rows) for i, rows in self._rows.items()]
        events += [(begin, 3, lowered) for begin, _, _ in self._stretches]
        events += [(end, 1, look) for _, end, look in self._stretches]
        shared = {i for i, call in enumerate(calls) if alone[i] is False or getattr(call, "threads", 1) > 1}
        if not self.losing.isdisjoint(shared):
            events += self._of_workers(shared, calls)
        final = steps[-1][0] if steps else 0
        return [(min(i, final), call) for i, _, call in sorted([*steps, *events], key=itemgetter(0, 1))]

    def _of_workers(self, shared: set[int], calls: Sequence[Any]) -> list[tuple[int, int, Callable[[], Any]]]:
        """Looks at the workers' flags behind each group of losing steps with no noise between them. The first expects
        them down, as the last leaves them: another program's noise costs a second run, and no number."""
        last, down = self._all(calls)
        events: list[tuple[int, int, Callable[[], Any]]] = []
        losing, noise = sorted(self.losing & shared), [i for i in self._noisy if i in shared]
        begin, up = 0, False
        for i in [*noise, self._end]:
            if bisect_left(losing, begin) < bisect_left(losing, i):
                if up:
                    events.append((begin, 0, down))
                events.append((i, 2, last))
                up = False
            up, begin = up or i < self._end, i + 1
        return [*events, (self._end, 0, down)] if up else events

    def _all(self, calls: Sequence[Any]) -> tuple[LookAtAll, LowerAll]:
        """A look at the flags of all threads that the calls use, and what takes them down."""
        if self._ends is None:
            threads = max(getattr(call, "threads", 1) for call in calls)
            self._ends = LookAtAll(threads), LowerAll(threads)
        return self._ends

    def around(self, i: int, calls: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
        """The call of step `i` with looks around it, for runs that are observed: others compute between the steps."""
        call = calls[i]
        behind: list[Callable[[], Any]] = [self._rows[i]] if i in self._rows else []
        before: Callable[[], Any] = nothing
        if i in self.losing:
            flags, before = self._all(calls)
            behind.insert(0, flags)
        if not behind:
            return call

        def looked() -> Any:
            before()
            status = call()
            for look in behind:
                look()
            return status

        return looked


def _loses(program: Program, step: ProgramStep) -> bool:
    return bool(step.choice.implementation) and loses(step.node, [program.types.get(o) for o in step.node.outputs])


def _stretches(program: Program, losing: frozenset[int], noise: Container[int]) -> list[tuple[int, int, Look]]:
    """Return the first and last step of each stretch between checks of the flag, with its check. A stretch ends before
    a step of noise, or of NumPy, which would take the flag down."""
    stretches: list[tuple[int, int, Look]] = []
    begin = 0
    for i, step in enumerate([*program.steps, None]):
        if step is None or i in noise or not (step.choice.implementation or _view(step)):
            if not losing.isdisjoint(range(begin, i)):
                stretches.append((begin, i, Look()))
            begin = i + 1
    return stretches


def _spread(program: Program) -> list[tuple[int, str, Any]]:
    """The steps with a Softmax whose rows may be read one element at a time; their results, with the type of NumPy."""
    results = []
    steps = [(i, s) for i, s in enumerate(program.steps) if s.choice.implementation]
    rows = [(i, s, s.node.outputs[0]) for i, s in steps if not ROWS.isdisjoint(operators(s.node))]
    readers: dict[str, list[ProgramStep]] = {name: [] for _, _, name in rows}
    for step in program.steps if rows else ():
        for name in step.reads():
            if name in readers:
                readers[name].append(step)
    for i, step, name in rows:
        known = program.types.get(name)
        if not isinstance(known, Tensor):
            continue
        if name in program.results or not all(_along_rows(s, step, name, known.rank) for s in readers[name]):
            results.append((i, name, known.dtype.numpy))
    return results


def _along_rows(reader: ProgramStep, step: ProgramStep, name: str, rank: int) -> bool:
    """Return True if a step that reads the result of a Softmax only multiplies whole rows of it."""
    product, rows = chain(reader.node)[0], chain(step.node)[0]
    first = product.operands[0]
    by_rows = first >= 0 and reader.node.inputs[first] == name and reader.node.inputs.count(name) == 1
    return product.op == "MatMul" and not product.domain and by_rows and rows.attr("axis") in (-1, rank - 1)


class LookAtRows:
    """A call that raises InvalidOperation if a value has a NaN; its other elements are probabilities, or their
    logarithms. `rows` are there where its place is fixed."""

    def __init__(self, program: Program, arrays: Mapping[str, Any], name: str, dtype: Any) -> None:
        self._arrays, self._name = arrays, name
        (self._search,) = searches(("nan",), dtype)
        slot = program.plan.by_value.get(name)
        self._fixed = name in program.staged or (slot is not None and slot.life.space is Space.ARENA)
        self.rows: tuple[Row, ...] = ()
        if self._fixed:
            self._search.bind(arrays[name])
            self.rows, self.short = self._search.rows, self._search.short

    def __call__(self) -> None:
        if self._fixed:
            odd = self._search()
        else:
            array = self._arrays.get(self._name)
            if array is None:
                return  # of a size that was not planned for, and already given back
            self._search.bind(array)
            odd = self._search()
            self._search.let_go()
        if odd:
            raise_alarm()

    def met(self, number: int, status: int) -> None:
        """Raise InvalidOperation, unless this thread has muted it."""
        raise_alarm()


def _view(step: ProgramStep) -> bool:
    """Return True if a step computes nothing: its result is in place already."""
    return any(a.kind == "view" for a in step.choice.aliases)

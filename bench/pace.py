"""What it costs to know what a step is made of (kvstore/pace.py): microseconds of an operation and of a step.

`operation` waits for an operation that has ended already, as a store does and without its clocks; `step` tells of the
end of a step beside an empty call, without the one message in a second. Rounds take turns; figures are medians.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial

from rows import Row, arguments, machine, show

from mezzo.kvstore.pace import Pace
from mezzo.kvstore.ticket import ENDED, Ended


def timed(call: Callable[[], object], times: int) -> float:
    """Microseconds of one call."""
    began = time.perf_counter()
    for _ in range(times):
        call()
    return 1e6 * (time.perf_counter() - began) / times


def plain(ticket: Ended) -> object:
    """What a store without clocks does."""
    return ticket.wait()


def main() -> None:
    args = arguments(__doc__)
    rounds, times = (15, 2_000) if args.quick else (31, 20_000)
    pace = Pace()
    pace.stepped(0.5)
    pace._due = float("inf")
    cases: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "operation": (partial(pace.wait, ENDED), partial(plain, ENDED)),
        "step": (partial(pace.stepped, 0.5), partial(float, 0.5)),
    }
    rows, notes = list[Row](), [machine()]
    for name, (ours, theirs) in cases.items():
        pairs = [(timed(ours, times), timed(theirs, times)) for _ in range(rounds)]
        with_, without = (statistics.median(each) for each in zip(*pairs, strict=True))
        rows.append(Row(name, "us", with_, {"without": without}))
        notes.append(f"{name}: {statistics.median(a - b for a, b in pairs):.3f} us more")
    show(rows, args, notes)


if __name__ == "__main__":
    main()

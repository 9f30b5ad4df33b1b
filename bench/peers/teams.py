"""How the workers of `bench/kvstore.py` are spoken to: a line of JSON asks for calls, a line of JSON tells their times.

Read by three Pythons (MXNet's is 3.9 at the least), so it imports nothing but the standard library.
"""

import json
import os
import sys
from time import perf_counter

WARM = 3


def answer(measure, told=lambda asked: None, together=lambda times: times):
    """Serve the controller: `measure(size, how)` gives a call that is one push and pull, waited for, and its check.

    The line that comes back has the times in milliseconds. Where one process speaks for all, `told` hands a request on
    (None: the end), and `together` makes the answer of all of its own times.
    """
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    calls = {}
    print(json.dumps("ready"), file=out, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        told(asked)
        size, how = asked["size"], asked["how"]
        if (size, how) not in calls:
            calls[size, how] = measure(size, how)
        print(json.dumps(together(timed(calls[size, how], asked["count"]))), file=out, flush=True)
    told(None)


def timed(call, count):
    """The milliseconds of so many calls, some before them not counted."""
    for _ in range(WARM):
        call()
    times = []
    for _ in range(count):
        at = perf_counter()
        call()
        times.append((perf_counter() - at) * 1e3)
    return times

"""The side of a comparison that runs inside an engine's own process: it loads, then answers requests to run.

This file needs Python 3.9 and NumPy alone, so that engines which live in environments of their own can take it from its
path (`runpy.run_path(path)["serve"]`). Requests and answers are JSON, a line each, over standard input and the standard
output that the process began with; whatever the engine prints goes to standard error. `tools/compare.py` asks.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

Answer = dict[str, Any]


class Ready(NamedTuple):
    """A loaded model: a function that runs it once on its inputs, one that converts its answer to arrays, the time that
    loading took (without imports), and facts to report (version, precision)."""

    call: Callable[[], Any]
    arrays: Callable[[Any], list[Any]]
    load_seconds: float
    facts: dict[str, str]


Make = Callable[[Answer, dict[str, Any]], Ready]


def serve(make: Make) -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    child = _Child(make)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = getattr(child, "do_" + request.pop("do"))(**request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def peak_bytes() -> int | None:
    """The most memory that this process has held; None where the system does not tell."""
    try:
        with open("/proc/self/status") as status:
            for line in status:
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return None


def percentiles(times: list[float]) -> Answer:
    """Return the count, p50 and p99 of times in seconds."""
    p50, p99 = (float(v) for v in np.percentile(times, [50, 99]))
    return {"calls": len(times), "p50": p50, "p99": p99}


class _Child:
    """Handlers of requests, one method for each."""

    def __init__(self, make: Make) -> None:
        self.make = make
        self.times: list[float] = []

    def do_load(self, feeds: str, **settings: Any) -> Answer:
        """Make the engine; `feeds` is an .npz file."""
        with np.load(feeds, allow_pickle=False) as stored:
            inputs = {name: stored[name] for name in stored.files}
        self.ready = self.make(settings, inputs)
        return {"load_seconds": self.ready.load_seconds, "facts": self.ready.facts}

    def do_answer(self, to: str, runs: int) -> Answer:
        """Run once, or more often where a run leaves something behind, and write what comes out to an .npz file; also
        the time of the first run."""
        arrays: list[Any] = []
        times: list[float] = []
        for _ in range(runs):
            at = perf_counter()
            result = self.ready.call()
            times.append(perf_counter() - at)
            arrays += [np.array(a) for a in self.ready.arrays(result)]
        # objects are strings; element types that NumPy does not have are small floats
        other = {"O": np.str_, "V": np.float32}
        plain: dict[str, Any] = {f"o{i:04d}": a.astype(other.get(a.dtype.kind, a.dtype)) for i, a in enumerate(arrays)}
        np.savez(to, **plain)
        return {"first_seconds": times[0]}

    def do_run(self, seconds: float) -> Answer:
        """Run again and again for so long, at least once; a tenth of that before it, untimed, since the other engines
        have had the caches since the last round."""
        call, now = self.ready.call, perf_counter
        end = now() + seconds / 10
        call()
        while now() < end:
            call()
        times: list[float] = []
        keep = times.append
        begin = now()
        last, end = begin, begin + seconds
        while last < end:
            call()
            at = now()
            keep(at - last)
            last = at
        self.times += times
        return {"median": float(np.median(times)), "mean": (last - begin) / len(times), "calls": len(times)}

    def do_crowd(self, seconds: float, threads: int) -> Answer:
        """Run in many threads at once for so long: calls per second and the times of single calls."""
        call, now = self.ready.call, perf_counter
        gate = threading.Barrier(threads + 1)
        kept: list[list[float]] = [[] for _ in range(threads)]
        failed: list[BaseException] = []

        def client(keep: list[float]) -> None:
            try:
                call()
                gate.wait()
                end = now() + seconds
                at = now()
                while at < end:
                    call()
                    done = now()
                    keep.append(done - at)
                    at = done
            except BaseException as error:
                failed.append(error)
                gate.abort()

        crowd = [threading.Thread(target=client, args=(keep,)) for keep in kept]
        for thread in crowd:
            thread.start()
        with contextlib.suppress(threading.BrokenBarrierError):
            gate.wait()
        begin = now()
        for thread in crowd:
            thread.join()
        took = now() - begin
        if failed:
            raise failed[0]
        times = [t for keep in kept for t in keep]
        self.times += times
        return {"per_second": len(times) / took, **percentiles(times)}

    def do_stats(self) -> Answer:
        """Over all timed runs so far."""
        return {**(percentiles(self.times) if self.times else {"calls": 0}), "peak_bytes": peak_bytes()}

"""Counters, gauges and histograms in Prometheus' text format, 0.0.4.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

Labels = tuple[tuple[str, str], ...]
SECONDS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
ROWS: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)


@lru_cache(1000)
def _sorted(labels: Labels) -> Labels:
    return tuple(sorted(labels))


def _key(labels: dict[str, str]) -> Labels:
    return _sorted(tuple(labels.items()))


def _shown(labels: Labels, more: str = "") -> str:
    escaped = [
        f'{n}="{v}"'
        for n, v in ((n, v.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")) for n, v in labels)
    ]
    inside = ",".join([*escaped, more] if more else escaped)
    return f"{{{inside}}}" if inside else ""


class Tally:
    """A number by labels; a gauge where `kind` says so.

    >>> c = Tally("requests_total", "Requests.")
    >>> c.add(code="200")
    >>> print(*c.lines(), sep="\\n")
    # HELP requests_total Requests.
    # TYPE requests_total counter
    requests_total{code="200"} 1
    """

    def __init__(self, name: str, about: str, kind: str = "counter") -> None:
        self.name, self.about, self.kind = name, about, kind
        self.values: dict[Labels, float] = {}

    def add(self, **labels: str) -> None:
        key = _key(labels)
        self.values[key] = self.values.get(key, 0) + 1

    def set(self, value: float, **labels: str) -> None:
        self.values[_key(labels)] = value

    def lines(self) -> Iterable[str]:
        yield f"# HELP {self.name} {self.about}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, value in self.values.items():
            yield f"{self.name}{_shown(labels)} {value:.10g}"


class Histogram:
    """Values by labels, counted below each of some bounds."""

    def __init__(self, name: str, about: str, bounds: tuple[float, ...] = SECONDS) -> None:
        self.name, self.about, self.bounds = name, about, bounds
        self.counts: dict[Labels, list[int]] = {}
        self.sums: dict[Labels, float] = {}

    def see(self, value: float, **labels: str) -> None:
        key = _key(labels)
        self.counts.setdefault(key, [0] * (len(self.bounds) + 1))[bisect_left(self.bounds, value)] += 1
        self.sums[key] = self.sums.get(key, 0.0) + value

    def lines(self) -> Iterable[str]:
        yield f"# HELP {self.name} {self.about}"
        yield f"# TYPE {self.name} histogram"
        for labels, counts in self.counts.items():
            total = 0
            for bound, count in zip((*self.bounds, None), counts, strict=True):
                total += count
                le = "+Inf" if bound is None else f"{bound:g}"
                quoted = f'le="{le}"'
                yield f"{self.name}_bucket{_shown(labels, quoted)} {total}"
            yield f"{self.name}_sum{_shown(labels)} {self.sums[labels]:.10g}"
            yield f"{self.name}_count{_shown(labels)} {total}"


class Metrics:
    """All counters of a server."""

    def __init__(self) -> None:
        self.requests = Tally("mezzo_requests_total", "Requests for inference, by status code.")
        self.seconds = Histogram("mezzo_request_seconds", "From the whole request to its response.")
        self.waited = Histogram("mezzo_wait_seconds", "Until a request ran.")
        self.rows = Histogram("mezzo_batch_rows", "Rows that ran together.", ROWS)
        self.waiting = Tally("mezzo_waiting", "Requests in line.", "gauge")
        self.ready = Tally("mezzo_model_ready", "1 for a version that answers.", "gauge")
        self.loads = Tally("mezzo_loads_total", "Versions that were loaded, or failed to be.")
        self.held = Tally("mezzo_request_bytes", "Bytes of requests that are held now.", "gauge")
        self.memory = Tally("mezzo_session_bytes", "Arenas and programs of a version.", "gauge")

    def text(self) -> str:
        return "\n".join(line for each in vars(self).values() for line in each.lines()) + "\n"

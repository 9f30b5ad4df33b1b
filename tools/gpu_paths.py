"""The paths between the GPUs of this host as tables: what they are, how fast, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..ops.errors import MissingPackage
from ..runtime.backends.cuda.driver import count, cupy
from ..runtime.backends.cuda.nvml import topology_here
from ..runtime.backends.cuda.topology import Topology, choose, findings
from .report import Table

BYTES, TIMES = 64 << 20, 5  # of a copy that is measured

Pairs = Mapping[tuple[int, int], float]  # bytes a second from the first to the second


def path_tables() -> tuple[Table, ...]:
    """The tables of this host with what its copies reach; none where there are fewer than two GPUs, and one that says
    what is missing where NVML cannot be asked."""
    devices = count()
    if devices < 2:
        return ()
    try:
        topology = topology_here(devices)
    except MissingPackage as error:
        return (Table("Paths between GPUs", ("path", "state", "why"), [("all", "not known", str(error))]),)
    return tables_of(topology, measured(devices))


def tables_of(topology: Topology, rates: Pairs) -> tuple[Table, ...]:
    """A row for each GPU: the path to every other, with gigabytes a second where they were measured. Then the ring that
    a training takes, and what slows it."""
    indices = [g.index for g in topology.gpus]

    def cell(a: int, b: int) -> str:
        if a == b:
            return "-"
        rate = rates.get((a, b))
        return f"{topology.link(a, b)}" + (f" {rate / 1e9:.0f} GB/s" if rate else "")

    rows = [
        (f"gpu:{g.index} {g.name}", *(cell(g.index, b) for b in indices), g.node, f"{g.lanes} of {g.most_lanes}")
        for g in topology.gpus
    ]
    columns = ("GPU", *(f"gpu:{i}" for i in indices), "NUMA node", "PCIe lanes")
    best = choose(topology, len(indices))
    layout = [("ring", ", ".join(map(str, best.gpus)), f"{best.rate / 1e9:.0f} GB/s by a model")]
    layout += [("finding", f.what, f.remedy) for f in findings(topology)]
    return (
        Table("Paths between GPUs", columns, rows),
        Table("Layout of GPUs", ("kind", "what", "note"), layout),
    )


def measured(devices: int) -> dict[tuple[int, int], float]:
    """Bytes a second of copies from each GPU to each other."""
    cp = cupy()
    runtime, places = cp.cuda.runtime, []
    for i in range(devices):
        with cp.cuda.Device(i):
            places.append((cp.cuda.alloc(BYTES), cp.cuda.Stream(non_blocking=True)))
    rates = {}
    for a in range(devices):
        for b in range(devices):
            if a != b:
                with cp.cuda.Device(a):
                    rates[a, b] = BYTES * TIMES / _copies(cp, runtime, places, a, b)
    return rates


def _copies(cp: Any, runtime: Any, places: list[Any], a: int, b: int) -> float:
    """Seconds of the copies, after one that is not counted."""
    (source, stream), (target, _) = places[a], places[b]
    begin, end = cp.cuda.Event(), cp.cuda.Event()

    def copy() -> None:
        runtime.memcpyPeerAsync(target.ptr, b, source.ptr, a, BYTES, stream.ptr)

    copy()
    begin.record(stream)
    for _ in range(TIMES):
        copy()
    end.record(stream)
    end.synchronize()
    return max(float(cp.cuda.get_elapsed_time(begin, end)), 1e-6) / 1e3

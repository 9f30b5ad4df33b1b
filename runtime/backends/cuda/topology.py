"""Topology of the GPUs of a host: the paths between them, which of them to use, and in which order.

`read_topology` (nvml.py) fills it in; the rest is arithmetic. Rates are those with which NCCL plans its own rings
(https://github.com/NVIDIA/nccl/blob/master/src/graph/topo.h): a model until `mezzo doctor --gpu` has measured them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from itertools import combinations, permutations

from ....ops.dataclasses import dataclass, field
from ....ops.errors import InputError

GB = 1e9
LANE = {1: 0.19 * GB, 2: 0.38 * GB, 3: 0.75 * GB, 4: 1.5 * GB, 5: 3.0 * GB, 6: 6.0 * GB}  # of a PCIe generation
SOCKETS = 10 * GB  # between the processors of a host: those of Skylake, the least of today's
THROUGH_PROCESSOR = 1.2  # packets of 64 bytes, where a processor hands them on: so many times the bytes
EXHAUSTIVE = 8  # GPUs whose orders are all tried
CHOICES = 128  # sets of GPUs that are all tried


class Path(IntEnum):
    """Kind of path between two devices, the nearest first; values are NVML's levels, NVLink apart."""

    NVLINK = 1
    SWITCH = 10
    SWITCHES = 20
    BRIDGE = 30
    NODE = 40
    SYSTEM = 50

    @property
    def short(self) -> str:
        """The word of `nvidia-smi topo -m`."""
        return {10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}.get(self, "NV")


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU: its number for CUDA, name, NUMA node (-1: not known), PCIe generation, lanes that it has and may have."""

    index: int
    name: str = "GPU"
    node: int = -1
    generation: int = 4
    lanes: int = 16
    most_lanes: int = 16


@dataclass(frozen=True, slots=True)
class GpuLink:
    """Connection of two GPUs: a path, and for NVLink how many links of which rate (bytes a second, one way)."""

    path: Path
    count: int = 0
    rate: float = 0.0

    def __str__(self) -> str:
        return f"{self.path.short}{self.count or ''}"


@dataclass(frozen=True, slots=True)
class Network:
    """A network device: its name, NUMA node, bytes a second."""

    name: str
    node: int = -1
    rate: float = 0.0


@dataclass(frozen=True, slots=True)
class Topology:
    """The GPUs of one host. `links` has each pair once, the lower number first; `down` the NVLinks that are inactive,
    as (GPU, number of the link)."""

    gpus: tuple[Gpu, ...] = ()
    links: Mapping[tuple[int, int], GpuLink] = field(default_factory=dict[tuple[int, int], GpuLink])
    networks: tuple[Network, ...] = ()
    down: tuple[tuple[int, int], ...] = ()

    def link(self, a: int, b: int) -> GpuLink:
        """The link of two different GPUs. Raises InputError where one is not there."""
        known = self.links.get((min(a, b), max(a, b)))
        if known is None:
            there = ", ".join(str(g.index) for g in self.gpus)
            raise InputError(f"no path between GPUs {a} and {b} is known", hint=f"there are GPUs {there or 'none'}")
        return known

    def rate(self, a: int, b: int) -> float:
        """Bytes a second from one GPU to another."""
        link = self.link(a, b)
        if link.path is Path.NVLINK:
            return link.count * link.rate
        ends = [g for g in self.gpus if g.index in (a, b)]
        lanes = min(LANE.get(g.generation, LANE[3]) * g.lanes for g in ends)
        if link.path <= Path.SWITCHES:
            return lanes
        return (min(lanes, SOCKETS) if link.path is Path.SYSTEM else lanes) / THROUGH_PROCESSOR


@dataclass(frozen=True, slots=True)
class Ring:
    """An order of GPUs, and the bytes a second of its slowest link."""

    gpus: tuple[int, ...]
    rate: float


@dataclass(frozen=True, slots=True)
class Finding:
    """Fault of a layout, and what to do."""

    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


def ring(topology: Topology, gpus: Sequence[int]) -> Ring:
    """The order of GPUs whose slowest link is the fastest; among equals, the one with fewer slow links, then the lowest
    numbers. Beyond eight GPUs each is followed by the nearest that is left."""
    first, *others = sorted(gpus)
    if not others:
        return Ring((first,), math.inf)
    rate_between = {(a, b): topology.rate(a, b) for a, b in permutations(gpus, 2)}

    def rates(order: Sequence[int]) -> list[float]:
        return sorted(rate_between[pair] for pair in _pairs(order))

    if len(gpus) <= EXHAUSTIVE:
        orders = ((first, *p) for p in permutations(others) if p[0] <= p[-1])
        best = max(orders, key=lambda o: (rates(o), [-i for i in o]))
    else:
        best = _grown(topology, first, others, len(gpus))
    return Ring(best, rates(best)[0])


def _grown(topology: Topology, first: int, others: Iterable[int], count: int) -> tuple[int, ...]:
    """So many GPUs, each the nearest to the one before it."""
    order, left = [first], set(others)
    while len(order) < count:
        order.append(max(left, key=lambda g: (topology.rate(order[-1], g), -g)))
        left.remove(order[-1])
    return tuple(order)


def choose(topology: Topology, count: int) -> Ring:
    """So many GPUs of a host with the fastest ring. Raises InputError where there are fewer."""
    indices = [g.index for g in topology.gpus]
    if not 1 <= count <= len(indices):
        raise InputError(f"{count} GPUs are asked for, and {len(indices)} are there", hint="see `mezzo doctor`")
    if math.comb(len(indices), count) <= CHOICES:
        sets: Iterable[tuple[int, ...]] = combinations(indices, count)
    else:
        sets = {tuple(sorted(_grown(topology, i, {*indices} - {i}, count))) for i in indices}
    rings = (ring(topology, some) for some in sets)
    return max(rings, key=lambda r: (r.rate, [-i for i in sorted(r.gpus)]))


def findings(topology: Topology, gpus: Sequence[int] | None = None) -> list[Finding]:
    """Return what slows a training over these GPUs (default: all) that another choice or the hardware could mend."""
    chosen = [g.index for g in topology.gpus] if gpus is None else list(gpus)
    there = {g.index: g for g in topology.gpus}
    advice = [
        Finding(f"NVLink {number} of GPU {index} is down", "look at `nvidia-smi nvlink -s` and the kernel's log")
        for index, number in topology.down
        if index in chosen
    ]
    for index in chosen:
        g = there[index]
        if g.lanes < g.most_lanes:
            told = f"GPU {index} has {g.lanes} of {g.most_lanes} PCIe lanes"
            advice.append(Finding(told, "look at its slot, its riser and what it shares lanes with"))
    if len(chosen) < 2:
        return advice
    mine = ring(topology, chosen)
    slowest = min(((topology.rate(a, b), a, b) for a, b in _pairs(mine.gpus)), default=None)
    best = choose(topology, len(chosen))
    if slowest is not None and best.rate > 1.1 * mine.rate:
        _, a, b = slowest
        told = f"the ring over GPUs {_named(chosen)} is as slow as {topology.link(a, b)} between {a} and {b}"
        gain = best.rate / mine.rate
        advice.append(Finding(told, f"GPUs {_named(best.gpus)} have a ring {gain:.1f} times as fast"))
    linked = [(a, b) for a, b in _pairs(mine.gpus) if topology.link(a, b).path is Path.NVLINK]
    if linked and len(linked) < len(_pairs(mine.gpus)):
        apart = ", ".join(f"{a} and {b}" for a, b in _pairs(mine.gpus) if (a, b) not in linked)
        advice.append(Finding(f"no NVLink joins GPUs {apart}", "the whole ring goes at the rate of PCIe"))
    nodes = {there[i].node for i in chosen} - {-1}
    for network in topology.networks:
        if network.node not in (-1, *nodes) and nodes:
            told = f"network {network.name} is at processor {network.node}, the GPUs at {_named(nodes)}"
            advice.append(Finding(told, "bytes for other hosts cross between processors"))
    return advice


def _pairs(order: Sequence[int]) -> list[tuple[int, int]]:
    """Neighbours in a ring, each pair once."""
    pairs = zip(order, (*order[1:], order[0]), strict=True)
    return list(dict.fromkeys((min(p), max(p)) for p in pairs))


def _named(numbers: Iterable[int]) -> str:
    return ", ".join(str(n) for n in sorted(numbers))

"""A model of how long a training step takes over many GPUs: no measurement, and labelled so wherever it is shown.

The steps of one rank's program take what gpu_time.py expects of them. Values that are sent travel one after the other
on a stream of their own; what awaits one waits for its end. Rings take the start and the seconds of a hop with which
NCCL chooses between its algorithms (https://github.com/NVIDIA/nccl/blob/master/src/graph/tuning.cc: rings, simple).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ..ops import Tensor
from ..ops.errors import InputError
from ..ops.training.exchange import ALL, AWAIT, DOMAIN, EMIT, PART, SUM, SUM_ROWS
from ..runtime.compile.program import Program
from .gpu_time import Card, step_times
from .report import Table

START = 8.4e-6  # seconds before the first byte of a ring moves
ROUNDS = {SUM: 2, PART: 1, ALL: 1}  # how often a ring goes around
COLUMNS = ("workers", "step ms", "waiting ms", "efficiency %", "no overlap %", "one level %")
WALK = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class Fabric:
    """Connection of many GPUs: how many are in a host; bytes a second of a ring within it, and of all its networks
    together, one way; seconds of a hop within and between hosts."""

    name: str
    per_host: int
    within: float
    between: float
    hop: float = 3.4e-6
    far_hop: float = 9.6e-6


# https://docs.nvidia.com/dgx/dgxa100-user-guide/, .../dgxh100-user-guide/: 12 and 18 NVLinks of a GPU, eight adapters
# of 200 and 400 Gbit/s; rates of a link as NCCL has them. NCCL counts on no more than 235 GB/s on an A100.
FABRICS: Mapping[str, Fabric] = MappingProxyType({
    "A100": Fabric("DGX A100", 8, 235e9, 8 * 24e9),
    "H100": Fabric("DGX H100", 8, 18 * 20.6e9, 8 * 48e9),
    "H200": Fabric("DGX H200", 8, 18 * 20.6e9, 8 * 48e9),
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class StepPrediction:
    """Expected seconds of a step of one rank, of its computing alone, and for which it waits for other ranks."""

    seconds: float
    computing: float

    @property
    def waiting(self) -> float:
        return self.seconds - self.computing


def travel_seconds(verb: str, nbytes: int, workers: int, fabric: Fabric, two_levels: bool = True) -> float:
    """Seconds in which so many bytes of each worker are summed (`all_reduce`), or summed or gathered in parts.

    On two levels parts are summed within each host, then each part between the hosts, then gathered within; else one
    ring goes through all GPUs.

    >>> f = FABRICS["A100"]
    >>> travel_seconds("all_reduce", 100 << 20, 8, f) < travel_seconds("all_reduce", 100 << 20, 16, f)
    True
    """
    if workers <= 1 or not nbytes:
        return 0.0
    rounds, hosts = ROUNDS[verb], -(-workers // fabric.per_host)
    if hosts == 1:
        return START + _ring(rounds, workers, nbytes, fabric.within, fabric.hop)
    if not two_levels:
        hops = rounds * ((workers - hosts) * fabric.hop + hosts * fabric.far_hop)
        slowest = min(fabric.within, fabric.between)
        return START + hops + rounds * (workers - 1) / workers * nbytes / slowest
    here = min(workers, fabric.per_host)
    near = _ring(rounds, here, nbytes, fabric.within, fabric.hop)
    far = _ring(rounds, hosts, nbytes // here, fabric.between / here, fabric.far_hop)
    return (1 + rounds) * START + near + far


def _ring(rounds: int, members: int, nbytes: int, rate: float, hop: float) -> float:
    return rounds * (members - 1) * (hop + nbytes / members / rate)


def predict(
    program: Program, card: Card, fabric: Fabric, workers: int, overlap: bool = True, two_levels: bool = True
) -> StepPrediction:
    """The step of one of so many ranks, whose program says what is sent and awaited. Without `overlap` the rank stops
    while its values travel."""
    clock = free = computing = 0.0
    arrives: dict[str, float] = {}
    for expected in step_times(program, card):
        node = expected.step.node
        at = (node.domain, node.op)
        if at == (DOMAIN, EMIT) or at == (DOMAIN, SUM_ROWS):
            verb = node.attrs.get("verb", SUM) if node.op == EMIT else ALL
            value = program.types[node.inputs[0]]
            nbytes = value.nbytes if isinstance(value, Tensor) else 0
            whole = nbytes * workers if verb == ALL else nbytes
            free = max(clock, free) + travel_seconds(verb, whole, workers, fabric, two_levels)
            arrives[node.attrs["key"]] = free
            if node.op == SUM_ROWS or not overlap:
                clock = free
        elif at == (DOMAIN, AWAIT):
            clock = max(clock, arrives.get(node.attrs["key"], 0.0))
        else:
            clock += expected.seconds
            computing += expected.seconds
    return StepPrediction(max(clock, free), computing)


def scaling_table(program: Program, card: Card, most: int, walk: Iterable[int] = WALK) -> Table:
    """Table of a step over 1 to `most` ranks with the batch of each unchanged: expected time, how long a rank waits,
    the share of the time in which it computes, and what that would be without overlap and on one level.

    Raises InputError where the card's hosts are not known.
    """
    fabric = FABRICS.get(card.name)
    if fabric is None:
        raise InputError(f"no host of {card.name} is known", hint=f"there are {', '.join(FABRICS)}")
    rows = []
    for workers in sorted({*(n for n in walk if n < most), most}):
        best = predict(program, card, fabric, workers)
        others = (
            predict(program, card, fabric, workers, overlap=False),
            predict(program, card, fabric, workers, two_levels=False),
        )
        shares = (round(100 * p.computing / p.seconds, 1) if p.seconds else 100.0 for p in (best, *others))
        rows.append((workers, round(best.seconds * 1e3, 3), round(best.waiting * 1e3, 3), *shares))
    title = f"Expected time of a step on hosts like {fabric.name}, by a model: nothing was measured"
    return Table(title, COLUMNS, rows)

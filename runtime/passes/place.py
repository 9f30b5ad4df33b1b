"""Placement: the device of every node, from patterns of names, or from what lies near; how products are to be shared.

A node that no pattern names goes where most bytes of what it reads are made; of equals, where the last of them is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from ...ops import DType, Tensor
from ...ops.dataclasses import dataclass
from ...ops.errors import InputError
from ..ir.graph import Graph, Node
from ..ir.typed import TypedBuilder
from ..optimizer.record import matches

OPEN = 64  # elements that an open dim counts for, where operands are compared


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """A placement in which products of matrices are shared out among devices, each with a part of their weights.

    `devices` are two or more, of one kind; what is not split is on the first. `weights` are patterns of the names of
    weights that may be split (shell wildcards).

    >>> TensorParallel(["gpu:0", "gpu:1"]).devices
    ('gpu:0', 'gpu:1')
    """

    devices: Sequence[str]
    weights: Sequence[str] = ("*",)

    def __post_init__(self) -> None:
        given: Any = self.devices
        names = given.split(",") if isinstance(given, str) else [*given] if isinstance(given, list | tuple) else []
        if len(names) < 2 or len({*names}) < len(names) or not all(isinstance(d, str) and d for d in names):
            raise InputError(f"devices={given!r}", where="TensorParallel", hint="two or more: ['gpu:0', 'gpu:1']")
        object.__setattr__(self, "devices", tuple(n if ":" in n else f"{n}:0" for n in names))
        patterns = [self.weights] if isinstance(self.weights, str) else self.weights
        object.__setattr__(self, "weights", tuple(patterns))


def placed(graph: Graph, place: Mapping[str, str]) -> Graph:
    """The graph with a device for each node whose name fits a pattern, or that of a value that it makes or of a weight
    that it reads.

    Raises InputError for a pattern that fits nothing, and for a node that is told two devices.
    """
    told: Any = place
    if not isinstance(told, Mapping) or not all(isinstance(d, str) for d in told.values()):
        raise InputError(
            f"{place!r} maps no patterns to devices",
            where="place=",
            hint='{"encoder.*": "gpu:0"}, "auto", or mz.AutoPlace',
        )
    unused = {*place}

    def device(node: Node) -> str:
        names = [node.name, *node.outputs, *(n for n in node.inputs if n in graph.initializers)]
        fits = {p: d for p, d in place.items() if any(name and matches(name, p) for name in names)}
        unused.difference_update(fits)
        if len({*fits.values()}) > 1:
            told = ", ".join(f"{p!r}: {d!r}" for p, d in fits.items())
            raise InputError(f"{node.place} is told several devices, by {told}", where="place=",
                             hint="patterns must not overlap; nodes that none fits go near the others")  # fmt: skip
        return next(iter(fits.values()), "")

    nodes = tuple(replace(node, device=device(node)) for node in graph.nodes)
    if unused or not place:
        shown = [n.name or n.outputs[0] for n in graph.nodes]
        raise InputError(
            "no node and no weight matches " + ", ".join(map(repr, sorted(unused)))
            if unused
            else "no pattern is given",
            where="place=",
            hint=f"patterns are those of a shell; the nodes are {', '.join(shown[:8])}{', ...' * (len(shown) > 8)}",
        )
    return graph.but(nodes=nodes)


def renamed_devices(graph: Graph, names: Mapping[str, str]) -> Graph:
    """The graph with other names of devices."""
    return graph.but(nodes=tuple(replace(n, device=names.get(n.device, n.device)) for n in graph.nodes))


def unplaced(graph: Graph) -> Graph:
    """The graph whose nodes run wherever a session is told to."""
    if not graph.devices:
        return graph
    return graph.but(nodes=tuple(replace(n, device="") for n in graph.nodes))


def spread(graph: Graph) -> Graph:
    """The graph with a device for the nodes that have none, where any has one: that of most bytes that they read, else
    that of whoever reads them first, else again of what they read, which has a device by then, else the first one."""
    if not graph.devices:
        return graph
    first = graph.devices[0]
    readers = first_readers(graph)
    at = {s.input: readers[s.input] for s in graph.states if s.input in readers}  # of values
    devices = [n.device for n in graph.nodes]
    for i, node in enumerate(graph.nodes):
        devices[i] = devices[i] or _near(graph, node, at)
        if devices[i]:
            at |= dict.fromkeys(node.outputs, devices[i])
            for name in node.reads():
                if name in graph.initializers:
                    at.setdefault(name, devices[i])
    for i in reversed(range(len(devices))):
        devices[i] = devices[i] or next((readers[o] for o in graph.nodes[i].outputs if o in readers), "")
        if devices[i]:
            readers |= dict.fromkeys(graph.nodes[i].reads(), devices[i])
    for i, node in enumerate(graph.nodes):  # what nobody reads is where what it reads is
        devices[i] = devices[i] or _near(graph, node, at) or first
        at |= dict.fromkeys(node.outputs, devices[i])
    return graph.but(nodes=tuple(replace(n, device=d) for n, d in zip(graph.nodes, devices, strict=True)))


def _near(graph: Graph, node: Node, at: Mapping[str, str]) -> str:
    sizes: dict[str, int] = {}
    for name in node.reads():
        if name in at:
            sizes[at[name]] = sizes.pop(at[name], 0) + _bytes(graph.types.get(name))
    return max(reversed(sizes), key=lambda device: sizes[device], default="")


def _bytes(known: Any) -> int:
    if not isinstance(known, Tensor) or known.dims is None:
        return OPEN
    return prod(d if isinstance(d, int) else OPEN for d in known.dims) * known.dtype.itemsize


def norms_apart(graph: Graph) -> Graph:
    """The graph whose norms of many tensors are made of each device's norm, in float64: no gradient travels for them,
    and what is rounded to float32 is the norm of one device."""
    at = {o: n.device for n in graph.nodes for o in n.outputs}
    g = TypedBuilder(graph.types, prefix="norms/")
    for node in graph.nodes:
        devices = dict.fromkeys(at.get(i, node.device) for i in node.inputs)
        if (node.domain, node.op) != ("mezzo", "TotalNorm") or len(devices) == 1:
            known: Any = [graph.types.get(o) for o in node.outputs]
            g.add(node, known)
            continue
        norms, wide = list[str](), g.const(0.0, DType.DOUBLE)
        for device in devices:
            g.device = device
            own = [i for i in node.inputs if at.get(i, node.device) == device]
            norms.append(g.op("TotalNorm", *own, wide, domain="mezzo"))
        g.device = node.device
        whole = g.op("TotalNorm", *norms, domain="mezzo")
        made: Any = graph.types[node.outputs[0]]
        g.add(replace(node, op="Cast", domain="", inputs=(whole,), attrs={"to": made.dtype.onnx}))
    return graph.but(nodes=g.nodes(), initializers={**graph.initializers, **g.constants()}, types=g.types)


def places_of(graph: Graph) -> dict[str, str]:
    """The device of each node by its name, of each value that nodes make, and of each state by the value that a run
    reads: where it is said to lie, else where its first reader is."""
    found: dict[str, str] = {}
    for node in graph.nodes:
        found |= dict.fromkeys(filter(None, (node.name, *node.outputs)), node.device)
    readers = first_readers(graph)
    first = next(iter(graph.devices), "")
    return found | {s.input: s.device or readers.get(s.input) or found.get(s.output, first) for s in graph.states}


def first_readers(graph: Graph) -> dict[str, str]:
    """The device of the first node with one that reads each value."""
    return {name: node.device for node in reversed(graph.nodes) if node.device for name in node.reads()}

"""Programs over several devices: the steps of each, with copies of what one reads and another makes.

Steps are cut after their kernels and layouts are chosen: they are those of one device, and so are the bits. On each
device they keep their order. What is sent is said to be there as soon as it is made, and lies there until the run ends;
it is brought just before its first reader. So no device waits for one that waits for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from ...ops import Tensor, Type
from ...ops.dataclasses import dataclass, replace
from ...ops.errors import UnsupportedModel
from ...ops.training.copy import COPY, DOMAIN
from ..ir.graph import Graph, Node
from ..memory.liveness import aligned
from ..memory.plan import MemoryPlan, Slot
from .kernel import Alias, Choice, Declined, KernelRequest, Listed, TargetSpec, listed
from .program import Port, Program, ProgramStep

KERNEL = "copy"  # of each device: the step that sends, and the one that receives


class CopyKernel(Listed):
    """Base of the kernels for both ends of a copy. Planning chooses them."""

    name = KERNEL
    operators = listed(f"{DOMAIN}::{COPY}")

    def select(self, request: KernelRequest) -> Choice | Declined:
        return Declined("one device copies nothing to others")


@dataclass(frozen=True, slots=True, eq=False)
class DevicePart:
    """The steps of one device: what it reads from outside, which results and states it has, what it sends and
    receives, as `lower` takes them to plan."""

    device: str
    graph: Graph
    steps: list[ProgramStep]
    sent: tuple[str, ...]


def device_order(device: str) -> tuple[str, int, str]:
    """The key by which devices are ordered: by kind, and then by number.

    >>> sorted(["gpu:10", "gpu:2", "cpu"], key=device_order)
    ['cpu', 'gpu:2', 'gpu:10']
    """
    kind, _, rest = device.partition(":")
    number = rest.partition("@")[0]
    return kind, int(number) if number.isdecimal() else -1, rest


def located(steps: Iterable[ProgramStep], place: Mapping[str, str]) -> dict[str, str]:
    """The device of each value that steps make, and of states: as it is placed, or near what it is made of."""
    at = {n: d for n, d in place.items() if d}
    first = next(iter(at.values()))
    for step in steps:
        node = step.node
        named = next((at[n] for n in (*node.outputs, node.name, *node.origin) if n in at), "")
        near = next((at[n] for n in reversed(step.reads()) if n in at), first)
        at |= dict.fromkeys(step.writes(), named or near)
    return at


def parted(
    graph: Graph, steps: Sequence[ProgramStep], states: Mapping[str, str], at: dict[str, str], dynamic: set[str]
) -> tuple[Graph, list[DevicePart]]:
    """The steps by device; the graph with the types of what is copied. Raises UnsupportedModel for a value that cannot
    be sent: its size is not known before the run, or the body of a loop reads it from outside."""
    types = dict(graph.types)
    made = {o for s in steps for o in s.writes()} | {*states}
    order: dict[str, list[tuple[float, ProgramStep]]] = {}
    sent: dict[str, list[str]] = {}
    brought: set[str] = set()
    makers = {o: i for i, s in enumerate(steps) for o in s.writes()}

    def send(name: str, device: str) -> None:
        """Say on the device of a value that it is there: a state's as it is when the run begins."""
        source, copy = at[name], f"{name}@sent"
        if copy in types:
            return
        types[copy] = types[name]
        state = name in states
        choice = Choice(KERNEL, aliases=() if state else (Alias(0, 0, "view"),), capturable=False)
        node = Node(COPY, (name,), (copy,), {"key": name}, DOMAIN, copy, origin=(name,), device=source)
        moment = -0.5 if state else makers[name] + 0.5
        order.setdefault(source, []).append((moment, ProgramStep(node, _laid(choice, types[name], 2))))
        sent.setdefault(source, []).append(copy)

    def bring(name: str, device: str, i: int) -> str:
        copy, step = f"{name}@{device}", steps[i]
        if copy in brought:
            return copy
        if name in dynamic or not isinstance(types[name], Tensor):
            why = f"{name!r} goes from {at[name]} to {device}, and its size is only known when it is made"
            raise UnsupportedModel(why, where=step.node.place, hint="place both nodes on one device")
        send(name, device)
        brought.add(copy)
        types[copy], at[copy] = types[name], device
        about = {"key": name, "device": device}
        node = Node(COPY, (), (copy,), about, DOMAIN, copy, origin=(name,), device=device)
        choice = _laid(Choice(KERNEL, capturable=False), types[name], 1)
        order.setdefault(device, []).append((i - 0.5, ProgramStep(node, choice)))
        return copy

    for i, step in enumerate(steps):
        device = at[next(iter(step.writes()))]
        renamed = {n: bring(n, device, i) for n in filter(None, step.node.inputs) if n in made and at[n] != device}
        inside = [c for b in step.bodies.values() for c in b.captures if c in made and at[c] != device]
        if inside:
            why = f"a subgraph on {device} reads {inside[0]!r} of {at[inside[0]]}"
            raise UnsupportedModel(why, where=step.node.place, hint="place both nodes on one device")
        inputs = tuple(renamed.get(n, n) for n in step.node.inputs)
        node = replace(step.node, inputs=inputs, device=device)
        order.setdefault(device, []).append((float(i), replace(step, node=node)))
    whole = graph.but(types=types)
    parts = []
    for device in sorted(order, key=device_order):
        own = [s for _, s in sorted(order[device], key=lambda pair: pair[0])]
        reads = {n for s in own for n in s.reads()}
        part = whole.but(
            inputs=tuple(n for n in graph.inputs if n in reads),
            outputs=tuple(n for n in graph.outputs if at[n] == device),
        )
        parts.append(DevicePart(device, part, own, tuple(sent.get(device, ()))))
    return whole, parts


def _laid(choice: Choice, type: Type, operands: int) -> Choice:
    layout = type.layout if isinstance(type, Tensor) else ""
    return replace(choice, layouts=(layout,) * operands) if layout else choice


def joined(graph: Graph, names: Sequence[str], parts: Mapping[str, Program], target: TargetSpec) -> Program:
    """One program of those of several devices, whose arenas and steps lie behind each other."""
    slots, begin, steps = dict[str, Slot](), 0, list[ProgramStep]()
    types = {n: graph.types[n] for n in graph.inputs}
    states: dict[str, str] = {}
    for program in parts.values():
        for slot in program.plan.slots:
            life = slot.life
            moved = replace(life, first=life.first + len(steps), last=life.last + len(steps))
            slots.setdefault(life.value, replace(slot, life=moved, offset=slot.offset + begin))
        steps += program.steps
        begin += aligned(program.plan.size)
        types |= program.types
        states |= program.states
    plans = [p.plan for p in parts.values()]
    shared = tuple(s for p in plans for s in p.shared)
    floor, bound = sum(p.floor for p in plans), sum(p.bound for p in plans)
    return Program(
        inputs=tuple(Port(n, graph.types[n]) for n in graph.inputs),
        outputs=tuple(Port(name, graph.types[value]) for name, value in zip(names, graph.outputs, strict=True)),
        steps=tuple(steps),
        plan=MemoryPlan(begin, tuple(slots.values()), shared, bound, plans[0].strategy, floor=floor),
        types=types,
        weights=tuple(sorted({n for p in parts.values() for n in p.weights})),
        states=states,
        results=graph.outputs,
        target=target,
        parts=parts,
    )


def receives(node: Node) -> bool:
    """True for a copy that brings a value from another device."""
    return (node.domain, node.op) == (DOMAIN, COPY) and not node.inputs


@dataclass(frozen=True, slots=True)
class DeviceCopy:
    """A value that each run brings from one device to another."""

    value: str
    source: str
    device: str
    type: Tensor


def copies(program: Program) -> list[DeviceCopy]:
    """Return what a run brings from device to device, in the order of the steps that receive it."""
    nodes = [s.node for s in program.steps if (s.node.domain, s.node.op) == (DOMAIN, COPY)]
    sources = {n.attrs["key"]: n.device for n in nodes if n.inputs}
    found = []
    for node in nodes:
        known = program.types[node.outputs[0]]
        if receives(node) and isinstance(known, Tensor):
            key = str(node.attrs["key"])
            found.append(DeviceCopy(key, sources[key], node.device, known))
    return found

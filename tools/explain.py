"""`mezzo explain`: the graph, the kernels and the memory of a model as tables, with the reasons of each choice."""

from __future__ import annotations

import tracemalloc
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..ops import Tensor
from ..ops.errors import InputError
from ..runtime.backends.cuda.host import HostCopy, HostFallback, host_fallbacks
from ..runtime.compile.auto_place import needs_of
from ..runtime.compile.parts import copies
from ..runtime.compile.program import Program, ProgramStep, sharings
from ..runtime.execution.instance import Instance
from ..runtime.execution.session import Session
from ..runtime.memory.plan import Space, Strategy, plan
from .report import Report, Table

DEVICE_COLUMNS = ("device", "steps", "arena bytes", "weights bytes", "states bytes", "bytes", "room")


def explain(
    session: Session,
    feeds: Mapping[str, Any],
    parts: Sequence[str] = ("graph", "kernels", "memory"),
    *,
    card: str = "",
    room: Mapping[str, int] | None = None,
) -> Report:
    """Report on the program that these feeds take; runs it once to measure what the references allocate. With the part
    "time", what a model expects of it on a GPU: on a `card` of gpu_time.CARDS, or the usual one. `room` has the bytes
    of devices that a placement was found for."""
    if session.device.runs:
        allocated = reference_bytes(session, feeds)
    else:  # a plan for a device that is not here
        allocated = {}
        session.warmup({n: np.shape(a) for n, a in feeds.items()})
    program = session.program
    facts: dict[str, Any] = {
        "inputs": ", ".join(map(str, program.inputs)),
        "outputs": ", ".join(map(str, program.outputs)),
        "bound_from": session.bound_from,
        "steps": len(program.all_steps()),
        "allocating_steps": program.allocating,
        "dynamic_steps": program.dynamic,
        "kernel_defects": program.defects,
    }
    tables: list[Table] = []
    if program.parts:
        moved = copies(program)
        facts["bytes_between_devices"] = sum(c.type.nbytes for c in moved)
        rows = [(c.value, c.source, c.device, str(c.type), c.type.nbytes) for c in moved]
        tables.append(Table("Between devices", ("value", "from", "to", "type", "bytes"), rows))
        needs = needs_of(program, session.executable.constants, "")
        arenas = [(d, len(p.steps), n.arena, n.weights, n.states, n.total, (room or {}).get(d, ""))
                  for (d, n), p in zip(needs.items(), program.parts.values(), strict=True)]  # fmt: skip
        tables.append(Table("Devices", DEVICE_COLUMNS, arenas))
    if program.target.sm:
        fallbacks = host_fallbacks(program)
        facts |= {"device": f"{session.device.name}, sm_{program.target.sm}", "host_steps": len(fallbacks)}
        facts |= {"copied_bytes": sum(c.nbytes or 0 for a in fallbacks for c in (*a.copies.down, *a.copies.up))}
        if "kernels" in parts:
            tables.append(_on_host(fallbacks))
            tables += _not_captured(session, feeds) if session.device.runs else []
    if "time" in parts:
        from .gpu_time import card_for, times_table

        if not program.target.sm:
            raise InputError("expected times are those of GPUs", hint="add --device gpu:0@sm_90")
        about, table = times_table(program, card_for(program, card), operators)
        facts |= about
        tables.append(table)
    if "graph" in parts:
        tables.append(_graph(session))
    if "kernels" in parts:
        tables.append(_kernels(program))
    if "memory" in parts:
        facts |= _memory_facts(session, program, allocated)
        tables += [_strategies(program), _spaces(program), _slots(program), _references(program, allocated)]
    return Report(session.graph.name or "model", facts, tables)


def reference_bytes(session: Session, feeds: Mapping[str, Any]) -> dict[int, int]:
    """Bytes that each allocating step of the program has alive at its worst moment, by step number; measured."""
    peaks: dict[int, int] = {}
    before = 0

    def observe(phase: str, index: int, step: ProgramStep, instance: Instance) -> None:
        nonlocal before
        if instance.program not in (session.program, *session.program.parts.values()) or not step.choice.allocates:
            return
        if phase == "before":
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
        else:
            peaks[index] = tracemalloc.get_traced_memory()[1] - before

    session.run(feeds)
    already = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        session.run(feeds, observe=observe)
    finally:
        if not already:
            tracemalloc.stop()
    return peaks


def _graph(session: Session) -> Table:
    before = Counter(n.op for _, n in session.graph.walk())
    after = Counter(n.op for _, n in session.executable.graph.walk())
    rows = [(op, n, after.get(op, 0)) for op, n in before.most_common()]
    rows += [(op, 0, n) for op, n in after.items() if op not in before]
    return Table("Graph", ("operator", "imported", "planned"), rows)


def _kernels(program: Program) -> Table:
    rows = []
    for i, step in enumerate(program.all_steps()):
        marks = " ".join(m for m, on in (("allocates", step.choice.allocates), ("dynamic", step.dynamic)) if on)
        reasons = "; ".join(f"{kernel}: {reason}" for kernel, reason in step.declined)
        choice = step.choice
        row = (i, operators(step), step.node.name, choice.kernel, choice.implementation, marks, reasons)
        rows.append((*row, step.node.device) if program.parts else row)
    columns = ("step", "operator", "node", "kernel", "implementation", "marks", "declined")
    return Table("Kernels", (*columns, "device") if program.parts else columns, rows)


def _on_host(fallbacks: Sequence[HostFallback]) -> Table:
    """Steps of a program for a GPU that the host computes; each ends one captured graph and begins another."""

    def shown(copies: Sequence[HostCopy]) -> str:
        return ", ".join(map(str, copies))

    rows = [
        (a.index, operators(a.step), a.step.node.name, a.reason, shown(a.copies.down), shown(a.copies.up))
        for a in fallbacks
    ]
    return Table("On the host", ("step", "operator", "node", "why", "copied to the host", "copied to the device"), rows)


def _not_captured(session: Session, feeds: Mapping[str, Any]) -> list[Table]:
    """Other steps that a CUDA graph refused, tried in a run."""
    session.run(feeds)
    steps, host = session.program.steps, {a.index for a in host_fallbacks(session.program)}
    rows = [(i, operators(steps[i]), steps[i].node.name, why) for i, why in session.uncaptured() if i not in host]
    return [Table("Not captured", ("step", "operator", "node", "why"), rows)]


def operators(step: ProgramStep) -> str:
    """The operator of a step, or those that are fused in it."""
    chain = step.node.attrs.get("chain", ()) if step.node.op == "Fused" else ()
    return "+".join(link[1] for link in chain) or step.node.op


def _memory_facts(session: Session, program: Program, allocated: Mapping[int, int]) -> dict[str, Any]:
    memory = program.plan
    return {
        "arena_bytes": memory.size,
        "largest_sum_of_live_bytes": memory.bound,
        "arena_over_bound": round(memory.size / memory.bound, 4) if memory.bound else 1.0,
        "without_reuse_bytes": memory.total(),
        "weights_bytes": sum(session.executable.constants[n].nbytes for n in program.all_weights()),
        "program_bytes": session.stats().program_bytes,
        "references_allocate_at_most_bytes": max(allocated.values(), default=0),
    }


def _strategies(program: Program) -> Table:
    """The same program under each strategy of the MXNet paper."""
    memory = program.plan
    lives = [s.life for s in memory.slots]
    pairs = sharings(program.steps)
    rows = []
    for strategy in Strategy:
        planned = plan(lives, pairs, strategy)
        rows.append((strategy.value, planned.size, round(planned.size / planned.bound, 3) if planned.bound else 1.0))
    return Table("Strategies", ("strategy", "arena bytes", "over bound"), rows)


def _spaces(program: Program) -> Table:
    count: Counter[tuple[str, str]] = Counter()
    total: Counter[tuple[str, str]] = Counter()
    for slot in program.plan.slots:
        known = program.types.get(slot.life.value)
        dtype = str(known.dtype) if isinstance(known, Tensor) else "workspace" if known is None else str(known)
        key = (slot.life.space.value, dtype)
        count[key] += 1
        total[key] += slot.life.nbytes
    rows = [(space, dtype, count[space, dtype], total[space, dtype]) for space, dtype in sorted(count)]
    return Table("Spaces", ("space", "element type", "values", "bytes"), rows)


def _slots(program: Program) -> Table:
    rows = [
        (s.life.value, str(program.types.get(s.life.value, "")), s.offset, s.life.nbytes, s.life.first, s.life.last)
        for s in program.plan.slots
        if s.life.space is Space.ARENA
    ]
    return Table(
        "Arena", ("value", "type", "offset", "bytes", "first step", "last step"), sorted(rows, key=lambda r: r[2])
    )


def _references(program: Program, allocated: Mapping[int, int]) -> Table:
    worst: dict[str, list[int]] = {}
    for index, nbytes in allocated.items():
        worst.setdefault(program.steps[index].node.op, []).append(nbytes)
    rows = [(op, len(v), max(v)) for op, v in sorted(worst.items(), key=lambda item: -max(item[1]))]
    return Table("References", ("operator", "steps", "most allocated bytes"), rows)

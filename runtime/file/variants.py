"""Variants: planned programs of a file, each for one kind of machine and one signature of inputs."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...ops import Type
from ...ops.budget import Budget
from ...ops.dataclasses import dataclass, replace
from ...ops.types import Array, type_of
from ..compile.executable import STORED, Executable
from ..compile.lower import Options
from ..compile.program import Program
from ..ir.graph import Graph, Node, Signature
from ..version import __version__
from .confirm import Differs, confirm
from .graphs import flat, grouped
from .pool import ConstantPool, Indexed, PoolWriter
from .programs import ProgramWriter, check_storable, read_program
from .table import Table, malformed

ISA = platform.machine()
PRECISION = "as the model"
THREADS = " threads"


@dataclass(frozen=True, slots=True)
class VariantKey:
    """Key of a variant. `isa` is the processor (or the sm of a GPU), `kernels` names the kernels and the versions of
    the libraries behind them (ours too: our operators folded the constants), `strategy` is that of the planner,
    `signature` has the inputs' types and the outputs."""

    device: str
    isa: str
    kernels: str
    precision: str
    strategy: str
    signature: str

    @property
    def threads(self) -> int:
        """The number of threads of a step; 0 if the key does not tell."""
        number = self.kernels.partition(THREADS)[0].rpartition(", ")[2]
        return int(number) if number.isdecimal() else 0

    @property
    def of_any_threads(self) -> VariantKey:
        """The key without its number of threads."""
        before, word, after = self.kernels.partition(THREADS)
        return replace(self, kernels=before.rpartition(", ")[0] + word + after)

    def origin(self, options: Options) -> str:
        """Origin of programs of this key, for people, where they run with these options."""
        return STORED if self.threads == options.threads else f"{STORED} for {self.threads}{THREADS}"

    def nearest(self, others: Iterable[VariantKey]) -> list[VariantKey]:
        """Those of the other keys that differ in the number of threads at most, the same number first."""
        own = self.of_any_threads
        same = [k for k in others if k.of_any_threads == own]
        return sorted(same, key=lambda k: abs(k.threads - self.threads))

    def differs_from(self, other: VariantKey) -> str:
        """The first field in which another key differs, with both sides; empty if none does."""
        for name in self.__slots__:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine != theirs:
                return f"{name} {theirs!r}, here {mine!r}" if name != "signature" else "other input types or outputs"
        return ""


def key_here(options: Options, outputs: Sequence[str], types: Mapping[str, Type]) -> VariantKey:
    """The key of programs that this machine makes with these options."""
    target = options.target
    how = {"fused": options.fuse, "parallel": options.parallel, "in given order": not options.reorder}
    how["with a store"] = options.exchange
    outside = [f"{value!r} in {buffer!r}" for value, buffer in sorted((options.extern or {}).items())]
    how_many = f"{options.threads}{THREADS}{'' if options.onednn else ', no oneDNN'}"
    names = ", ".join(k.name for k in target.kernels)
    shown = "; ".join(f"{name!r}: {t}" for name, t in types.items())
    return VariantKey(
        device=target.name,
        isa=f"sm_{target.sm}" if target.sm else ISA,
        kernels=f"mezzo {__version__}, numpy {np.__version__}, {how_many}: {names}",
        precision=PRECISION if options.precision == "fp32" else options.precision,
        strategy=", ".join([options.strategy.value, *(word for word, on in how.items() if on), *outside]),
        signature=f"{shown} -> {', '.join(map(repr, outputs))}",
    )


def variant_content(key: VariantKey, executable: Executable, array: Callable[[Array], int]) -> dict[str, Any]:
    """The Variant table of a bound program."""
    pool = PoolWriter(array)
    programs = ProgramWriter(pool)
    check_storable(executable.program)
    programs.add(executable.program)
    constants = flat((pool.text(n), array(a)) for n, a in executable.constants.items())
    return {
        **{name: getattr(key, name) for name in VariantKey.__slots__},
        "constants": constants,
        "programs": programs.tables,
        "pool": pool.content(),
    }


def read_key(table: Table) -> VariantKey:
    """Return the key of a variant."""
    return VariantKey(*(table.text(name) for name in VariantKey.__slots__))


def read_variant(
    table: Table,
    arrays: Indexed,
    signature: Signature,
    options: Options,
    outputs: Sequence[str],
    types: Mapping[str, Type],
    budget: Budget,
) -> Executable:
    """The program of a variant, confirmed.

    Raises Differs where this build would make another one, ModelError or PlanError where the variant contradicts
    itself or the signature, BudgetError where a value is too large.
    """
    table = table.rewound()
    pool = ConstantPool(table.table("pool"), arrays, budget)
    constants = {pool.strings[n]: arrays[a] for n, a in grouped(table.column("constants"), 2)}
    tables = table.tables("programs")
    budget.check("nodes", sum(len(t.table("steps").raw("kernel")) for t in tables), "steps of a stored program")
    program = read_program(tables, pool, options.spec)
    inputs = [p.name for p in program.inputs]
    if {p.name: p.type for p in program.inputs} != dict(types) or inputs != list(signature.inputs):
        raise malformed("a variant has other inputs than its key says")
    if [p.name for p in program.outputs] != list(outputs):
        raise malformed("a variant has other outputs than its key says")
    first = {n: type_of(a) for n, a in signature.states.items()}
    if {n: program.types.get(n) for n in program.states} != {n: first.get(n) for n in program.states}:
        raise malformed("a variant has other states than the graph")
    program = confirm(program, options, constants, budget)
    return Executable(program, constants, planned_graph(program, constants), read_key(table).origin(options))


def planned_graph(program: Program, constants: Mapping[str, Array]) -> Graph:
    """The graph that a program runs: its steps as nodes, bodies as subgraphs; for looking at."""

    def nodes(part: Program) -> tuple[Node, ...]:
        return tuple(
            Node(n.op, n.inputs, n.outputs, {**n.attrs, **{a: body(b) for a, b in s.bodies.items()}}, n.domain, n.name,
                 n.where, n.origin, n.device) if s.bodies else n
            for s in part.steps
            for n in (s.node,)
        )  # fmt: skip

    def body(part: Program) -> Graph:
        own = {n: constants[n] for n in part.weights if n in constants}
        return Graph(tuple(p.name for p in part.inputs), part.results, nodes(part), own, part.types)

    return body(program)


__all__ = ["Differs", "VariantKey", "key_here", "read_key", "read_variant", "variant_content"]

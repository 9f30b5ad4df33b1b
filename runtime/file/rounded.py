"""Patterns of a file: programs for rounded sizes, and what tells which of them serves which sizes.

All facts are lists of numbers and strings, which are taken apart here piece by piece: a file may contradict itself
anywhere. What such a program makes of true sizes keeps to the budget, and is of the types that its kernels expect.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, Final

import numpy as np

from ...ops import Tensor
from ...ops.budget import Budget
from ...ops.dataclasses import dataclass
from ...ops.symbolic import NotSymbolic, SizeTrace, SymbolicSize, Terms, is_symbolic
from ...ops.types import Array
from ..compile.executable import Executable
from ..compile.growing import Growing
from ..compile.lower import Options
from ..compile.padded import RoundedSize, SizePattern
from ..compile.padded_program import PaddedProgram, SizeFacts
from ..compile.padding import Axis
from ..compile.program import Port, Program
from ..compile.sizes import Size
from ..compile.template import Symbols
from ..ir.graph import Signature
from .confirm import Differs, confirm
from .graphs import NodeWriter, flat, grouped, read_nodes
from .pool import ConstantPool, Indexed, PoolWriter
from .programs import ProgramWriter, check_storable, read_program
from .table import Table, malformed
from .variants import VariantKey, planned_graph, read_key

MOST_FACTORS: Final = 64  # of a product of sizes


@dataclass(frozen=True, slots=True, eq=False)
class StoredPattern:
    """A pattern as a file keeps it, with its programs by their keys, and the outputs of the model."""

    pattern: SizePattern
    programs: Mapping[tuple[int, ...], PaddedProgram]
    outputs: tuple[Port, ...]


# Writing


def pattern_content(key: VariantKey, stored: StoredPattern, array: Callable[[Array], int]) -> dict[str, Any]:
    """The Pattern table."""
    pool, pattern = PoolWriter(array), stored.pattern
    symbols, trace = pattern.symbols, pattern.symbols.trace
    count = len(symbols.places)
    facts = (
        tuple(symbols.places),
        tuple(symbols.equal),
        tuple(symbols.empty),
        tuple(trace.quotients[i] for i in range(count, len(trace.hints))),
        tuple((terms, how, outcome) for (terms, how), outcome in trace.guards.items()),
        tuple((r.terms, r.rows) for r in pattern.rounded),
        pattern.closed,
        tuple(stored.programs),
    )
    return {
        **{name: getattr(key, name) for name in VariantKey.__slots__},
        "outputs": flat((pool.text(p.name), pool.type(p.type)) for p in stored.outputs),
        "facts": list(map(pool.value, facts)),
        "programs": [_program_content(p, array) for p in stored.programs.values()],
        "pool": pool.content(),
    }


def _program_content(program: PaddedProgram, array: Callable[[Array], int]) -> dict[str, Any]:
    pool, facts, executable = PoolWriter(array), program.facts, program.executable
    programs, nodes = ProgramWriter(pool), NodeWriter(pool)
    check_storable(executable.program)
    programs.add(executable.program)
    for node in program.sized:
        nodes.add(node)
    symbolic = {n: a for n, a in program.read.items() if is_symbolic(a)}
    told = (
        tuple(facts.planned.items()),
        tuple(facts.rounded),
        tuple(facts.counts.items()),
        tuple((name, *_sizes_of(a)) for name, a in facts.numbers.items()),
        tuple(facts.shares.items()),
        tuple((n, s if isinstance(s, str) else _sizes_of(s), axes, e) for n, (s, axes, e) in facts.places.items()),
        tuple(facts.axes.items()),
        tuple((name, *_sizes_of(a)) for name, a in symbolic.items()),
    )
    return {
        "facts": list(map(pool.value, told)),
        "read": flat((pool.text(n), array(a)) for n, a in program.read.items() if n not in symbolic),
        "sized": nodes.content(),
        "constants": flat((pool.text(n), array(a)) for n, a in executable.constants.items()),
        "programs": programs.tables,
        "pool": pool.content(),
    }


def _sizes_of(array: Array) -> tuple[tuple[int, ...], tuple[Size, ...]]:
    """The shape and the elements of an array of sizes."""
    sizes = [v.terms if type(v) is SymbolicSize else int(v) for v in array.ravel().tolist()]
    return array.shape, tuple(sizes)


# Reading


class _Facts:
    """Reader of facts in which there are `symbols` symbols."""

    def __init__(self, table: Table, pool: ConstantPool, count: int, symbols: int = 0) -> None:
        self.values = [pool.values[i] for i in table.column("facts")]
        self.symbols = symbols
        if len(self.values) != count:
            raise malformed(f"there are {len(self.values)} facts of sizes, not {count}")

    def rows(self, number: int, *width: int) -> list[tuple[Any, ...]]:
        """The rows of a fact, which is a list of lists; each of this width, if one is given."""
        rows = [_list(row) for row in _list(self.values[number])]
        if width and any(len(row) != width[0] for row in rows):
            raise malformed("a fact of sizes has another number of parts")
        return rows

    def terms(self, value: Any) -> Terms:
        """A size in terms of the symbols."""
        terms = [_pair(term) for term in _list(value)]
        return tuple((tuple(self.symbol(s) for s in _list(product, MOST_FACTORS)), _int(f)) for product, f in terms)

    def size(self, value: Any) -> Size:
        return self.terms(value) if isinstance(value, tuple) else _int(value)

    def symbol(self, value: Any) -> int:
        if not 0 <= _int(value) < self.symbols:
            raise malformed(f"there is no symbol {value}")
        return _int(value)

    def axes(self, value: Any) -> tuple[Axis, ...]:
        return tuple(tuple(self.size(s) for s in _list(axis)) for axis in _list(value))

    def array(self, trace: SizeTrace, shape: Any, sizes: Any) -> Array:
        """An array of sizes."""
        dims = tuple(map(_int, _list(shape, 64)))
        elements = [self.size(s) for s in _list(sizes)]
        if min(dims, default=0) < 0 or math.prod(dims) != len(elements):
            raise malformed(f"{len(elements)} sizes lie in an array of {list(dims)}")
        array = np.empty(len(elements), object)
        array[:] = [s if isinstance(s, int) else SymbolicSize(trace, s) for s in elements]
        return (array if is_symbolic(array) else array.astype(np.int64)).reshape(dims)


def _list(value: Any, most: int | None = None) -> tuple[Any, ...]:
    if not isinstance(value, tuple) or (most is not None and len(value) > most):
        raise malformed("a fact of sizes is no list, or too long")
    return value


def _pair(value: Any) -> tuple[Any, Any]:
    first, second = _list(value)  # ValueError: of another length
    return first, second


def _int(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise malformed(f"{value!r} stands where a number should")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise malformed(f"{value!r} stands where a name should")
    return value


@contextmanager
def _evaluated(reading: Callable[[], AbstractContextManager[None]]) -> Iterator[None]:
    """Tell every way in which facts can contradict the sizes of a run as `reading` does."""
    with reading():
        try:
            yield
        except (NotSymbolic, ArithmeticError, TypeError) as error:
            raise malformed(f"the facts of sizes do not fit: {type(error).__name__}: {error}") from error


def read_outputs(table: Table, pool: ConstantPool) -> tuple[Port, ...]:
    """The outputs of the model of a pattern."""
    return tuple(Port(pool.strings[n], pool.types[t]) for n, t in grouped(table.column("outputs"), 2))


def read_pattern(
    table: Table,
    arrays: Indexed,
    signature: Signature,
    options: Options,
    outputs: Sequence[str],
    budget: Budget,
    reading: Callable[[], AbstractContextManager[None]],
) -> SizePattern:
    """A pattern; its programs are read and confirmed when they are needed, inside of `reading`. Raises ModelError where
    it contradicts itself."""
    table = table.rewound()
    pool = ConstantPool(table.table("pool"), arrays, budget)
    facts = _Facts(table, pool, 8)
    symbols = Symbols()
    for name, axis in facts.rows(0, 2):
        symbols.places.append((_input(signature, name), _axis(signature, name, axis)))
        symbols.trace.symbol(1)
    facts.symbols = len(symbols.places)
    symbols.equal += [(_input(signature, n), _axis(signature, n, a), facts.symbol(s)) for n, a, s in facts.rows(1, 3)]
    symbols.empty += [(_input(signature, n), _axis(signature, n, a)) for n, a in facts.rows(2, 2)]
    trace = symbols.trace
    for above, below in facts.rows(3, 2):  # each is made of symbols before it
        trace.quotients[facts.symbols] = facts.terms(above), facts.terms(below)
        trace.hints.append(1)
        facts.symbols += 1
    for terms, how, outcome in facts.rows(4, 3):
        if how not in ("=", ">") or not isinstance(outcome, bool):
            raise malformed("a guard of sizes is none")
        trace.guards[facts.terms(terms), how] = outcome
    rounded = tuple(RoundedSize(facts.terms(terms), rows is True) for terms, rows in facts.rows(5, 2))
    closed = tuple(map(facts.symbol, _list(facts.values[6])))
    tables, keys = table.tables("programs"), [tuple(map(_int, row)) for row in facts.rows(7)]
    if len(keys) != len(tables):
        raise malformed("a pattern has not one key for each program")

    origin = read_key(table).origin(options)

    def load(program: Table) -> PaddedProgram | str:
        with reading():
            try:
                return _read_program(
                    program, arrays, signature, options, tuple(outputs), budget, trace, facts.symbols, reading, origin
                )
            except Differs as reason:
                return str(reason)

    stored = {key: partial(load, program) for key, program in zip(keys, tables, strict=True)}
    return SizePattern(symbols, rounded, closed, None, OrderedDict(), stored)


def _input(signature: Signature, name: Any) -> str:
    if _text(name) not in signature.inputs:
        raise malformed(f"a symbol stands for a size of {name!r}, which is no input")
    return _text(name)


def _axis(signature: Signature, name: str, axis: Any) -> int:
    known = signature.inputs[name]
    if not isinstance(known, Tensor) or known.dims is None or not 0 <= _int(axis) < len(known.dims):
        raise malformed(f"a symbol stands for axis {axis} of {name!r}, which is {known}")
    return _int(axis)


def _read_program(
    table: Table,
    arrays: Indexed,
    signature: Signature,
    options: Options,
    outputs: tuple[str, ...],
    budget: Budget,
    trace: SizeTrace,
    symbols: int,
    reading: Callable[[], AbstractContextManager[None]],
    origin: str,
) -> PaddedProgram:
    """A program for rounded sizes, confirmed. Raises as read_variant does."""
    table = table.rewound()
    pool = ConstantPool(table.table("pool"), arrays, budget)
    told = _Facts(table, pool, 8, symbols)
    facts = _size_facts(told, trace)
    read = {pool.strings[n]: arrays[a] for n, a in grouped(table.column("read"), 2)}
    read |= {_text(name): told.array(trace, shape, sizes) for name, shape, sizes in told.rows(7, 3)}
    sized = read_nodes(table.table("sized"), pool, _no_body)
    constants = {pool.strings[n]: arrays[a] for n, a in grouped(table.column("constants"), 2)}
    tables = table.tables("programs")
    steps = sum(len(t.table("steps").raw("kernel")) for t in tables)
    budget.check("nodes", steps + len(sized), "steps of a stored program")
    program = read_program(tables, pool, options.spec)
    computed = {*read}
    for node in sized:
        if node.bodies or not node.record.deterministic or not computed.issuperset(filter(None, node.inputs)):
            raise malformed(f"{node.op} does not follow from sizes alone")
        computed.update(node.outputs)
    _check_ports(program, signature, outputs, facts.names | computed)
    sources = [source for source, _, _ in facts.places.values() if isinstance(source, str)]
    if not computed.issuperset(sources):
        raise malformed("places are told by a value that nothing makes")
    program = confirm(program, options, constants, budget)
    executable = Executable(program, constants, planned_graph(program, constants), origin)
    growing = Growing.of(program)
    checked = partial(_evaluated, reading)
    return PaddedProgram(executable, facts, tuple(sized), read, outputs, growing, budget=budget, checked=checked)


def _no_body(number: int) -> Any:
    raise malformed("a node that follows from sizes has a subgraph")


def _size_facts(told: _Facts, trace: SizeTrace) -> SizeFacts:
    facts = SizeFacts(
        trace,
        {told.terms(terms): _int(size) for terms, size in told.rows(0, 2)},
        frozenset(map(told.terms, _list(told.values[1]))),
        {told.terms(terms): _text(name) for terms, name in told.rows(2, 2)},
        {_text(name): told.array(trace, shape, sizes) for name, shape, sizes in told.rows(3, 3)},
        {_text(name): tuple(map(told.terms, _list(sizes))) for name, sizes in told.rows(4, 2)},
        {
            _text(name): (
                source if isinstance(source, str) else told.array(trace, *_pair(source)),
                told.axes(axes),
                each is True,
            )
            for name, source, axes, each in told.rows(5, 4)
        },
        {_text(name): told.axes(axes) for name, axes in told.rows(6, 2)},
    )
    used: Iterable[Axis] = [a for axes in facts.axes.values() for a in axes]
    used = [*used, *(a for _, axes, _ in facts.places.values() for a in axes), *facts.shares.values()]
    if any(size not in facts.planned for axis in used for size in axis if not isinstance(size, int)):
        raise malformed("a size has no number in its program")
    return facts


def _check_ports(program: Program, signature: Signature, outputs: Sequence[str], extra: set[str]) -> None:
    """Check that a program takes inputs of the model as they are declared, and others that are made for it."""
    for port in program.inputs:
        declared, known = signature.inputs.get(port.name), port.type
        if not isinstance(known, Tensor) or not known.static:
            raise malformed(f"{port} of a rounded program has no sizes")
        if isinstance(declared, Tensor):
            same = declared.dtype is known.dtype and (declared.dims is None or len(declared.dims) == known.rank)
            if not same or port.name in extra:
                raise malformed(f"{port} of a rounded program is {declared} in the model")
        elif port.name not in extra:
            raise malformed(f"nothing makes {port} of a rounded program")
    if [p.name for p in program.outputs] != list(outputs) or program.states:
        raise malformed("a rounded program has other outputs than its key says, or states")

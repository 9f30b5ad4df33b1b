"""Whole files: a graph and its variants to bytes, and bytes (mapped or in memory) to a graph and its variants.

0   magic (8), version (u32), reserved (u32)
16  end of the flatbuffer (u64), end of the small arrays (u64), size of the file (u64), reserved (u64)
48  reserved (16)
64  digest of bytes 0 to 64 and 128 to the end of the small arrays (64)
128 the flatbuffer (docs/mezzo.fbs), padded; the small arrays; the large ones, each aligned to 64 bytes
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ops import OPS, OPSETS, MezzoError, Type
from ...ops.budget import Budget
from ...ops.dataclasses import dataclass, field
from ...ops.errors import ModelError, UnsupportedModel
from ...ops.regular import open_regular
from ...ops.types import Array
from ..compile.executable import Executable
from ..compile.lower import Options
from ..compile.target import Target
from ..digests import blake2b
from ..ir.graph import Graph, Signature
from ..version import __version__
from .arrays import Arrays, ArrayWriter, Stored, aligned, digest_of
from .graphs import GraphWriter, read_graph, read_signature
from .layout import FILE, FORMAT, MAGIC
from .pool import ConstantPool, same_length
from .table import Table, malformed, root
from .variants import Differs, VariantKey, key_here, read_key, read_variant, variant_content
from .write import pack

if TYPE_CHECKING:
    from ..compile.padded import SizePattern
    from ..compile.program import Port
    from .rounded import StoredPattern

PREAMBLE = struct.Struct("<8sII4Q16x")
BEGIN = PREAMBLE.size + 64  # the digest lies between
NOT_OURS = "give a file that `mezzo compile` or Session.save wrote"


@contextmanager
def reading(where: str) -> Iterator[None]:
    """Tell every way in which a file can contradict itself as a ModelError that names the file."""
    try:
        yield
    except MezzoError as error:
        raise error.at(where) from error.__cause__
    except (IndexError, KeyError, ValueError, OverflowError, struct.error) as error:
        raise malformed(f"the parts of the file do not fit: {type(error).__name__}: {error}").at(where) from error


# Writing


def encode(
    graph: Graph,
    variants: Sequence[tuple[VariantKey, Executable]] = (),
    patterns: Sequence[tuple[VariantKey, StoredPattern]] = (),
    *,
    source: str = "",
    producer: str = "",
) -> Iterator[Any]:
    """The bytes of a file, piece by piece, without copies of the weights. Raises ModelError for what it cannot hold.

    >>> from mezzo.runtime.ir.graph import GraphBuilder
    >>> from mezzo.ops.types import f32
    >>> g = GraphBuilder("double")
    >>> x = g.input("x", f32("n"))
    >>> data = b"".join(encode(g.graph([g.Add(x, x)])))
    >>> print(Opened(data).graph)
    graph double(x: float32[n]) -> Add_0
      Add_0 = Add(x, x)
    """
    from .rounded import pattern_content  # of a start, some ms

    arrays = ArrayWriter()
    graphs = GraphWriter(arrays)
    graphs.add(graph)
    uses = sorted({(n.domain, n.op) for _, n in graph.walk()})
    domains = sorted({d for d, _ in uses})
    rows = [(graphs.pool.text(d), graphs.pool.text(op)) for d, op in uses]
    content: dict[str, Any] = {
        "about": {
            "written_by": f"mezzo {__version__}",
            "source": source,
            "producer": producer,
            "vocabulary": domains,
            "versions": [OPSETS.get(d, graph.opsets.get(d, 1)) for d in domains],
        },
        "operators": [n for row in rows for n in row],
        "since": [OPS[use].since if use in OPS else 0 for use in uses],
        "variants": [variant_content(k, b, arrays) for k, b in variants],
        "patterns": [pattern_content(k, p, arrays) for k, p in patterns],
        "graphs": graphs.tables,
        "pool": graphs.pool.content(),
    }
    places, _, _ = arrays.places(0)
    # where the arrays lie depends on the length of the description, which does not depend on where they lie
    begin = aligned(BEGIN + len(pack(FILE, {**content, "arrays": arrays.content(places)})))
    places, small, end = arrays.places(begin)
    packed = pack(FILE, {**content, "arrays": arrays.content(places)})
    preamble = PREAMBLE.pack(MAGIC, FORMAT, 0, BEGIN + len(packed), small, end, 0)
    head = b"".join([packed, b"\0" * (begin - BEGIN - len(packed)), *map(bytes, arrays.parts(small=True))])
    assert BEGIN + len(head) == small
    yield preamble + _digest(preamble, head) + head
    yield from arrays.parts(small=False)


def _digest(preamble: bytes, head: Any) -> bytes:
    hasher = blake2b(preamble)
    hasher.update(head)
    return hasher.digest()


# Reading


@dataclass(frozen=True, slots=True)
class About:
    """Origin of a file: the program that wrote it, the source model and its producer, the vocabulary of its graph."""

    written_by: str
    source: str
    producer: str
    vocabulary: Mapping[str, int]


@dataclass(eq=False)
class Opened:
    """A file with a valid digest: `about`, `signature`, `variants` by their keys, and its arrays.

    `data` is the whole file, in memory or mapped; all arrays are views of it. The graph and the programs are read when
    somebody asks for them: a session that finds its program in the file needs no graph. Raises ModelError if the file
    is malformed, UnsupportedModel if it needs what is not carried, BudgetError if it passes a limit; `graph` and
    `find` raise the same, of what they read.
    """

    data: Any
    name: str = "model"
    budget: Budget = field(default_factory=Budget)
    about: About = field(init=False)
    signature: Signature = field(init=False)
    variants: dict[VariantKey, Table] = field(init=False)
    problem: str = ""
    _patterns: list[tuple[VariantKey, Table]] = field(init=False, repr=False)
    _graphs: list[Table] = field(init=False, repr=False)
    _pool: ConstantPool = field(init=False, repr=False)
    _arrays: Arrays = field(init=False, repr=False)

    def __post_init__(self) -> None:
        with reading(self.name):
            flat = _head(memoryview(self.data), self.name)
            top = root(flat, FILE)
            self.about = _about(top.table("about"))
            self._arrays = Arrays(top.table("arrays"), self.data, aligned(BEGIN + len(flat)), self.budget)
            self._pool = ConstantPool(top.table("pool"), self._arrays, self.budget)
            self._check_operators(top)
            self._graphs = top.tables("graphs")
            self.signature = read_signature(self._graphs[-1], self._pool, self._arrays)
            self.variants = {read_key(t): t for t in top.tables("variants")}
            self._patterns = [(read_key(t), t) for t in top.tables("patterns")]
        if self._older():
            self.problem = "the file was written for older opsets"

    @cached_property
    def graph(self) -> Graph:
        """The graph as it was imported, in today's opsets and verified."""
        with reading(self.name):
            self.budget.check("nodes", sum(len(t.table("nodes").raw("op")) for t in self._graphs), "nodes")
            graph = read_graph(self._graphs, self._pool, self._arrays, self._check_nesting)
            if older := self._older():
                from .opsets import upgraded  # of a start, some ms

                graph = upgraded(graph, older)
            return _verified(graph)

    @cached_property
    def devices(self) -> tuple[str, ...]:
        """The devices of the graph's nodes; none where it runs on any one."""
        with reading(self.name):
            numbers = dict.fromkeys(self._graphs[-1].table("nodes").column("device"))
            return tuple(filter(None, (self._pool.strings[i] for i in numbers)))

    @property
    def stored(self) -> list[Stored]:
        """Locations of the arrays."""
        with reading(self.name):
            return self._arrays.stored

    def _older(self) -> dict[str, int]:
        return {d: v for d, v in self.about.vocabulary.items() if v < OPSETS.get(d, v)}

    def _check_nesting(self, depth: int) -> None:
        self.budget.check("nesting", depth, "subgraphs inside subgraphs")

    def _check_operators(self, top: Table) -> None:
        names, since = top.column("operators"), top.column("since")
        same_length(names[::2], names[1::2], since)
        strings = self._pool.strings
        uses = [(strings[a], strings[b]) for a, b in zip(names[::2], names[1::2], strict=True)]
        refuse_operators(dict(zip(uses, since, strict=True)), self.about.vocabulary, self.name)

    def find(
        self, options: Options, outputs: Sequence[str], types: Mapping[str, Type], budget: Budget
    ) -> tuple[Executable | None, str]:
        """The stored program for these inputs and this machine, or None and the reason why the graph must be bound."""
        if self.problem or not self.variants:
            return None, self.problem or "the file holds no variant"
        key = key_here(options, outputs, types)
        nearest = key.nearest(self.variants)
        if not nearest:
            same = [k for k in self.variants if k.signature == key.signature]
            return None, key.differs_from(same[0]) if same else "no variant has these input types"
        reasons = list[str]()
        for near in nearest:
            table = self.variants[near]
            with reading(self.name):
                try:
                    return read_variant(table, self._arrays, self.signature, options, outputs, types, budget), ""
                except Differs as reason:
                    reasons.append(str(reason))
        return None, reasons[0]

    @property
    def rounds(self) -> int:
        """The number of patterns by which sizes are rounded up."""
        return len(self._patterns)

    @cached_property
    def outputs(self) -> tuple[Port, ...]:
        """The outputs with their types, if a pattern tells them."""
        from .rounded import read_outputs

        with reading(self.name):
            for _, table in self._patterns:
                pool = ConstantPool(table.rewound().table("pool"), self._arrays, self.budget)
                ports = read_outputs(table, pool)
                if tuple(p.name for p in ports) == self.signature.outputs:
                    return ports
        return ()

    def patterns(self, options: Options, outputs: Sequence[str], budget: Budget) -> list[SizePattern]:
        """The patterns for these outputs and this machine, whose programs are read when they are needed."""
        from .rounded import read_pattern

        if self.problem or self.signature.states:
            return []
        key = key_here(options, outputs, self.signature.inputs)
        nearest = next(iter(key.nearest(known for known, _ in self._patterns)), key)
        within = partial(reading, self.name)
        with within():
            return [
                read_pattern(table, self._arrays, self.signature, options, outputs, budget, within)
                for known, table in self._patterns
                if known == nearest
            ]

    def holds(self, options: Options, outputs: Sequence[str], types: Mapping[str, Type]) -> bool:
        """True if a variant was made for exactly these inputs and options, and this machine, with any number of
        threads."""
        return not self.problem and bool(key_here(options, outputs, types).nearest(self.variants))

    def fits(self, key: VariantKey, target: Target) -> bool:
        """True if a variant of this key, which is for this target, can be used on this machine."""
        if self.problem:
            return False
        own = key_here(Options(target), (), {})
        return (key.isa, key.kernels, key.precision) == (own.isa, own.kernels, own.precision)

    def place_of(self, array: Array) -> int:
        """Return the offset of an array of this file; any other number for an array that is not from it."""
        return int(array.ctypes.data - np.frombuffer(self.data, np.uint8).ctypes.data)

    def damaged(self) -> list[Stored]:
        """The arrays whose bytes are not those that were written; reads them all."""
        data = np.frombuffer(self.data, np.uint8)
        return [
            s
            for s in self.stored
            if digest_of(data[s.at : s.at + s.nbytes]) != s.digest or data[s.at + s.nbytes : s.at + s.extent].any()
        ]


def refuse_operators(since: Mapping[tuple[str, str], int], vocabulary: Mapping[str, int], where: str) -> None:
    """Raise UnsupportedModel that names all operators which are not carried, or changed after the opsets of ours."""
    problems = []
    for (domain, op), changed in since.items():
        shown = f"{domain or 'ai.onnx'}::{op}"
        if not _carried(domain, op):
            problems.append(f"{shown} is not carried")
            continue
        own = domain not in OPSETS  # an operator of somebody's own counts for itself
        ours = OPS[domain, op].since if own else OPSETS[domain]
        if changed > ours and (own or vocabulary.get(domain, 0) > ours):
            problems.append(f"{shown} changed at opset {changed}, and is carried as of opset {ours}")
    if problems:
        hint = "install a newer Mezzo, or compile the model again with this one"
        raise UnsupportedModel("; ".join(problems), where=where, hint=hint)


def _carried(domain: str, op: str) -> bool:
    if OPS.loaded((domain, op)) or (domain, op) in OPS.index:  # which import no module
        return True
    from ...ops import upgrade  # of a start, some ms

    return upgrade.carried(domain, op)


def _head(data: memoryview, name: str) -> bytes:
    """The flatbuffer of a file, copied so that it stays what was checked."""
    if len(data) < BEGIN or data[:8] != MAGIC:
        raise ModelError("this is no .mezzo file, or only a part of one", where=name, hint=NOT_OURS)
    if sys.byteorder != "little":
        raise ModelError("files hold little-endian numbers, and this machine has others", hint="load the ONNX file")
    preamble = bytes(data[: PREAMBLE.size])
    _, version, reserved, flat, small, end, padding = PREAMBLE.unpack(preamble)
    if version > FORMAT:
        raise UnsupportedModel(
            f"the file has format version {version}, and this is made for versions up to {FORMAT}",
            where=name,
            hint="install a newer Mezzo, or compile the model again with this one",
        )
    if end != len(data):
        raise ModelError(
            f"the file has {len(data)} bytes, and was written with {end}", where=name, hint="copy the file again"
        )
    if version < 1 or reserved or padding or any(preamble[48:]) or not BEGIN <= flat <= small <= end:
        raise malformed("the first bytes of the file do not fit one another")
    if _digest(preamble, data[BEGIN:small]) != data[PREAMBLE.size : BEGIN]:
        raise ModelError(
            "the file is damaged: its digest is not that of what it holds", where=name, hint="copy or make it again"
        )
    return bytes(data[BEGIN:flat])


def _about(table: Table) -> About:
    domains, versions = table.strings("vocabulary"), table.column("versions")
    return About(
        table.text("written_by"),
        table.text("source"),
        table.text("producer"),
        dict(zip(domains, versions, strict=True)),
    )


def _verified(graph: Graph) -> Graph:
    try:
        return graph.verify()
    except MezzoError as error:
        raise ModelError(error.message, where=error.where, hint=error.hint or "make the file again") from error


def is_mezzo(source: Any) -> bool:
    """True if a path or bytes begin like a `.mezzo` file; False for unreadable sources."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        return bytes(source[:8]) == MAGIC
    try:
        status = os.stat(source)
        if not stat.S_ISREG(status.st_mode):
            return False
        with open(source, "rb", buffering=0) as file:
            return file.read(8) == MAGIC
    except (OSError, TypeError, ValueError):
        return False


def open_file(
    source: str | os.PathLike[str] | bytes, budget: Budget | None = None, *, at: int = 0, size: int | None = None
) -> Opened:
    """Open a file, or a file inside another (`size` bytes from `at` on); it is mapped, and no weight is read.

    Raises as Opened does.
    """
    limits = Budget.of(budget)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return Opened(bytes(source), budget=limits)
    name = os.fspath(source)
    try:
        with open_regular(source) as file:
            status = os.fstat(file.fileno())
            if not status.st_size:
                raise ModelError("the file is empty", where=name, hint=NOT_OURS)
            limits.check("file_bytes", status.st_size, "bytes of the model file", where=name)
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise ModelError(f"the file cannot be read: {error}", where=name, hint="check the path") from error
    return Opened(mapped[at : len(mapped) if size is None else at + size], os.path.basename(name), limits)


__all__ = ["About", "Opened", "encode", "is_mezzo", "open_file"]

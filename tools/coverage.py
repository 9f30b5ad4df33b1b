"""Coverage by operator: cells of opset, element type and device, each filled in by running a sample.

A cell says yes only if a sample ran in it in the very run that made the table (tools/cells.py); what nobody tried says
so. `mezzo coverage` prints it, docs/coverage.md holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum

from ..ops import OPSETS
from ..ops.dataclasses import dataclass
from ..ops.errors import InputError, MissingPackage
from ..runtime.backends.onednn.library import library
from ..runtime.devices import DEVICES, device_named

CELLS_OF = ("run", "train", "export")
DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")  # those that ONNX has schemas of
KINDS_OF_DEVICES = ("cpu", "gpu")


class Mark(StrEnum):
    """Result in a cell. NONE: there is nothing to try, such as a derivative of integers."""

    YES = "yes"
    NO = "no"
    NONE = "none"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Cell:
    """One operator on one device, as the schema of one opset has it, with one element type for one of its type
    parameters. `why` lists the errors, `judges` the runtimes that confirmed the numbers besides our own reference,
    `kernels` the kernel families that the planned programs chose."""

    device: str
    opset: int
    parameter: str
    type: str
    run: Mark
    train: Mark
    export: Mark
    kernels: tuple[str, ...] = ()
    judges: tuple[str, ...] = ()
    why: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Opset, parameter and type in short."""
        return f"opset {self.opset}, {self.parameter}: {self.type}"


@dataclass(frozen=True, slots=True)
class OperatorCoverage:
    """Coverage of one operator: its cells, and the attributes that no sample shows or no sample can show.

    `combinations` counts the pairs of values of two attributes that ran, and all that its schema documents; `gaps`
    names values and pairs that did not. `digest` is that of its samples and schemas: another one makes this stale."""

    domain: str
    operator: str
    opsets: tuple[int, ...]
    samples: int
    digest: str
    cells: tuple[Cell, ...]
    gaps: tuple[str, ...] = ()
    combinations: tuple[int, int] = (0, 0)

    @property
    def name(self) -> str:
        """`Relu`, or `ai.onnx.ml::Scaler`."""
        return f"{self.domain}::{self.operator}" if self.domain else self.operator

    def count(self, what: str, device: str = "cpu") -> tuple[int, int]:
        """Return the number of cells of a device that say yes, and of those where there was something to try."""
        marks = [getattr(c, what) for c in self.cells if c.device == device]
        asked = [m for m in marks if m is not Mark.NONE]
        return sum(m is Mark.YES for m in asked), len(asked)

    def problems(self) -> Iterator[str]:
        """Everything that is not covered, one line each."""
        for cell in self.cells:
            if Mark.NO in (cell.run, cell.train, cell.export):
                yield f"{cell.place}: {'; '.join(cell.why) or 'no sample can be written'}"
        yield from self.gaps


@dataclass(frozen=True, slots=True)
class Coverage:
    """The coverage table of all requested operators. `devices` says of each kind of device whether it was present,
    `versions` lists the packages that took part."""

    operators: tuple[OperatorCoverage, ...]
    devices: dict[str, Mark]
    versions: dict[str, str]

    def __str__(self) -> str:
        from .coverage_page import report
        from .report import text

        return text(report(self))

    def __getitem__(self, name: str) -> OperatorCoverage:
        """The operator of this name."""
        for found in self.operators:
            if name in (found.name, found.operator):
                return found
        raise KeyError(name)


def names(operators: Iterable[str] = ()) -> list[tuple[str, str]]:
    """Domain and name of these operators, of all by default: those that ONNX has or had and that can be read. Raises
    InputError for one that is not known."""
    known = _known()
    found = list[tuple[str, str]]()
    for name in operators:
        domain, _, op = name.rpartition("::")
        matching = [(d, o) for d, o in known if o == op and (not domain or domain == (d or "ai.onnx"))]
        if not matching:
            raise InputError(
                f"there is no operator {name!r}",
                where="coverage",
                hint="names are those of ONNX: Relu, ai.onnx.ml::Scaler",
            )
        found += matching
    return found or known


def _known() -> list[tuple[str, str]]:
    import onnx.defs

    from .one_node import records, versions

    every = sorted({(s.domain, s.name) for s in onnx.defs.get_all_schemas_with_history() if s.domain in DOMAINS})
    return [(d, n) for d, n in every if d in OPSETS and versions(d, n) and records(d, n)]


def coverage(*operators: str, jobs: int | None = None, tell: Callable[[str, int], object] | None = None) -> Coverage:
    """Run the samples of operators (of all by default) in every cell, and say what came of it.

    Each sample is written as an ONNX model of one node at each opset at which the schema of its operator changed, in
    the element types that this schema allows; it is imported, planned and run, exported and imported again, and
    differentiated. Numbers are compared with the operator's reference, with ONNX Runtime (where it is installed) or
    ONNX's reference evaluator, gradients with finite differences. Several operators run in `jobs` processes; `tell`
    hears of each that is done, and of how many there are. All of them take minutes.

    Raises InputError for a name that is no operator.

    >>> relu = coverage("Relu")["Relu"]
    >>> relu.opsets, relu.count("run"), relu.count("train")
    ((1, 6, 13, 14), (18, 18), (14, 14))
    """
    from .cells import cells_of, died
    from .processes import each

    asked = names(operators)
    found: dict[int, OperatorCoverage] = {}
    for i, made in each(cells_of, asked, jobs):
        found[i] = made or died(*asked[i])
        if tell is not None:
            tell(found[i].name, len(asked))
    ran = {kind: Mark.YES if available(kind) else Mark.NOT_RUN for kind in KINDS_OF_DEVICES}
    return Coverage(tuple(found[i] for i in range(len(asked))), ran, versions())


def available(kind: str) -> str:
    """The name of a device of this kind that runs programs; empty where there is none."""
    if kind == "gpu" and kind not in DEVICES:
        try:
            return device_named("gpu:0").name
        except MissingPackage:
            return ""
    return next((name for name, d in DEVICES.items() if name.partition(":")[0] == kind and d.runs), "")


def processor() -> str:
    """The family of instruction sets that oneDNN uses here, which decides for a few operators who computes them; empty
    without oneDNN."""
    found = library()
    return found.isa.partition("_")[0] if found else ""


def versions() -> dict[str, str]:
    """The packages that took part, and the processor."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"processor": processor() or "without oneDNN"}
    for package in ("mezzo", "onnx", "onnxruntime", "numpy", "onednn-cpu-gomp"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "absent"
    return found

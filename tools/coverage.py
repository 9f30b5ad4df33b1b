"""Coverage by operator: cells of opset, element type and device, each filled in by running a sample.

A cell says yes only if a sample ran in it in the very run that made the table (tools/cells.py); what nobody tried says
so. `mezzo coverage` prints it, docs/coverage.md holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..ops import OPSETS
from ..ops.dataclasses import dataclass
from ..ops.errors import InputError
from ..runtime.backends.onednn.library import library
from .coverage_cells import KINDS_OF_DEVICES, Mark, OperatorCoverage, available

DOMAINS = ("", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training")  # those that ONNX has schemas of


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
        for operator in self.operators:
            if name in (operator.name, operator.operator):
                return operator
        raise KeyError(name)


def names(operators: Iterable[str] = ()) -> list[tuple[str, str]]:
    """Domain and name of these operators, of all by default: those that ONNX has or had and that can be read. Raises
    InputError for one that is not known."""
    known = _known()
    selected = list[tuple[str, str]]()
    for name in operators:
        domain, _, op = name.rpartition("::")
        matching = [(d, o) for d, o in known if o == op and (not domain or domain == (d or "ai.onnx"))]
        if not matching:
            raise InputError(
                f"there is no operator {name!r}",
                where="coverage",
                hint="names are those of ONNX: Relu, ai.onnx.ml::Scaler",
            )
        selected += matching
    return selected or known


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
    covered: dict[int, OperatorCoverage] = {}
    for i, result in each(cells_of, asked, jobs):
        covered[i] = result or died(*asked[i])
        if tell is not None:
            tell(covered[i].name, len(asked))
    ran = {kind: Mark.YES if available(kind) else Mark.NOT_RUN for kind in KINDS_OF_DEVICES}
    return Coverage(tuple(covered[i] for i in range(len(asked))), ran, versions())


def processor() -> str:
    """The family of instruction sets that oneDNN uses here, which decides for a few operators who computes them; empty
    without oneDNN."""
    onednn = library()
    return onednn.isa.partition("_")[0] if onednn else ""


def versions() -> dict[str, str]:
    """The packages that took part, and the processor."""
    from importlib.metadata import PackageNotFoundError, version

    facts = {"processor": processor() or "without oneDNN"}
    for package in ("mezzo", "onnx", "onnxruntime", "numpy", "onednn-cpu-gomp"):
        try:
            facts[package] = version(package)
        except PackageNotFoundError:
            facts[package] = "absent"
    return facts

"""Cells of the coverage table: what came of one operator at one opset, in one element type, on one device."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

from ..ops.dataclasses import dataclass
from ..ops.errors import MissingPackage
from ..runtime.devices import DEVICES, device_named

CELLS_OF = ("run", "train", "export")
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
        """Yield one line for everything that is not covered."""
        for cell in self.cells:
            if Mark.NO in (cell.run, cell.train, cell.export):
                yield f"{cell.place}: {'; '.join(cell.why) or 'no sample can be written'}"
        yield from self.gaps


def available(kind: str) -> str:
    """The name of a device of this kind that runs programs; empty where there is none."""
    if kind == "gpu" and kind not in DEVICES:
        try:
            return device_named("gpu:0").name
        except MissingPackage:
            return ""
    return next((name for name, d in DEVICES.items() if name.partition(":")[0] == kind and d.runs), "")

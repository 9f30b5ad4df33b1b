"""Launches as data: the source of a kernel, its grid, its operands. Nothing here needs a GPU or CuPy.

The same data is compiled for a device, compiled as C++ by the tests, counted in reports, and found again when a step is
prepared: it follows from the types alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....ops.dataclasses import dataclass, field
from ...compile.kernel import Alias

Extent = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Source:
    """One kernel in CUDA C++: `extern "C" __global__ void NAME(...)` within `text`. Equal names have equal texts, and
    only the name is printed."""

    name: str
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class In:
    """The address of an input of the step."""

    index: int


@dataclass(frozen=True, slots=True)
class Out:
    """The address of an output of the step."""

    index: int


@dataclass(frozen=True, slots=True)
class Scratch:
    """An address within the step's workspace, `offset` bytes (a multiple of 64) from its beginning."""

    offset: int


@dataclass(frozen=True, slots=True)
class LaunchKey:
    """The address of the two words of 32 bits that are the step's random key; they change with each run."""


Operand = (
    In | Out | Scratch | LaunchKey | np.generic
)  # what a kernel's parameters are; numbers as NumPy scalars of C's types


@dataclass(frozen=True, slots=True)
class Launch:
    """One call of a kernel: blocks in the grid, threads in a block, bytes of dynamic shared memory. If the launch only
    copies an alias, `copies` is that alias: where the plan has put both ends into one place (`in_place`), nothing is
    launched."""

    source: Source
    grid: Extent
    block: Extent
    operands: tuple[Operand, ...]
    shared: int = 0
    copies: Alias | None = None

    def in_place(self, inputs: Sequence[int], outputs: Sequence[int]) -> bool:
        """True if the copied bytes are in place already, given the addresses of the step's operands."""
        if self.copies is None:
            return False
        ahead = self.copies.delta if self.copies.kind == "view" else -self.copies.delta
        return outputs[self.copies.output] == inputs[self.copies.input] + ahead

    def __str__(self) -> str:
        return f"{self.source.name}<<<{self.grid}, {self.block}, {self.shared}>>>"


@dataclass(frozen=True, slots=True)
class Written:
    """A step as a sequence of launches, with their shared workspace in bytes and its aliases. `layouts` are those of
    Choice: of all inputs, then of all outputs; empty if all are row-major."""

    launches: tuple[Launch, ...]
    workspace: int = 0
    aliases: tuple[Alias, ...] = ()
    layouts: tuple[str, ...] = ()

    @property
    def draws(self) -> bool:
        """True if the step draws random numbers."""
        return any(operand.__class__ is LaunchKey for launch in self.launches for operand in launch.operands)

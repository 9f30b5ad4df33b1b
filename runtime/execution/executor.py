"""Executors: where the bytes of programs come from on a device, and how instances of programs are made there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from ...ops.dataclasses import dataclass
from ...ops.errors import BudgetError, InputError
from ...ops.types import Array
from ..compile.program import Program
from ..compile.target import Target
from ..ir.graph import Node
from .call_order import CallOrder
from .instance import ExecutionContext, Instance


@dataclass(frozen=True, slots=True)
class Executor:
    """A device on which programs for `target` run; `allocate(nbytes)` gives the bytes of an arena.

    This one is for devices in the memory of the host. `host` runs the subgraphs of control flow, where those run on
    another device than their node.
    """

    target: Target
    allocate: Callable[[int], Array]
    host: Executor | None = None

    @property
    def name(self) -> str:
        """The name of the device."""
        return self.target.name

    @property
    def sm(self) -> int:
        """The architecture of a GPU, 90 for sm_90; 0 for all others."""
        return self.target.sm

    @property
    def runs(self) -> bool:
        """True if programs run here; False for a device that is only planned for."""
        return True

    @property
    def precisions(self) -> tuple[str, ...]:
        """The values of `precision` that sessions on this device take."""
        return ("fp32",)

    @property
    def usual_precision(self) -> str:
        """Return the precision that `precision="auto"` means on this device."""
        return "fp32"

    @property
    def place(self) -> Mapping[str, str]:
        """The device of each node, value and state, where this one is several together."""
        return {}

    def check_precision(self, precision: str, onednn: bool) -> str:
        """Return the precision, the device's usual one for "auto". Raises InputError if it is none, or this machine
        computes none such; `onednn` tells whether libraries may be used."""
        if precision == "auto":
            return self.usual_precision
        if precision not in self.precisions:
            raise InputError(
                f"precision {precision!r} is none of auto, {', '.join(self.precisions)}",
                where="Session",
                hint="for int8, give mz.load calibration data, or load a quantised model as it is",
            )
        return precision

    def making_ahead(self, onednn: bool) -> AbstractContextManager[None]:
        """A context for reading a stored program, in which a library may be loaded and make primitives in a thread of
        its own."""
        return nullcontext()

    def call_order(self, program: Program, arrays: Mapping[str, Any], careful: bool) -> CallOrder:
        """The order in which an instance calls what was prepared for its steps."""
        return CallOrder(program, arrays)

    def held(self, program: Program) -> Mapping[Any, int]:
        """Bytes of what is made for the steps of a program outside of Python's memory, as far as there is any now; by
        keys that are equal where several programs have the same."""
        return {}

    def may_lose_nan(self, node: Node) -> bool:
        """True if a kernel of this device or its host may make a number of a NaN or an infinity that the node meets."""
        return self.host is not None and self.host.may_lose_nan(node)

    def instantiate(
        self, program: Program, arena: Any, context: ExecutionContext, states: Mapping[str, Array] | None = None
    ) -> Any:
        """An instance of a program over an arena of this device."""
        return Instance(program, arena, context, self, states)

    def keep(self, states: Mapping[str, Array]) -> Mapping[str, Array]:
        """States where programs of this device read and write them."""
        return states

    def report(self, program: Program) -> bool:
        """Warn of steps of a program that run elsewhere; return whether there are any."""
        return False

    def fast_path(self, executable: Any, feeds: Any, outputs: Any, arena: Any, instance: Any) -> Any:
        """A guard by which runs of arrays like these go straight to an instance, entered into the arena's replays; None
        where there is none."""
        return None

    def explain(self, error: BudgetError, session: Any, program: Program) -> BudgetError:
        """Add what is known of the device to the error of a run that found no room."""
        return error

    def from_dlpack(self, value: Any) -> Any:
        """An array that programs of this device take, of one that offers DLPack: one of NumPy here."""
        return np.from_dlpack(value)

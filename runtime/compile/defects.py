"""Defects of kernels: failures while a kernel chooses or prepares a step. Another kernel then takes the step.

An exception that no kernel foresees is no fault of the model. It is counted, stands among the reasons why kernels
declined (`mezzo explain --kernels` shows them), and is named once in a warning; a suite that makes warnings errors
stops at it.
"""

from __future__ import annotations

import warnings
from typing import Final

from ...ops.errors import PlanError
from ..ir.graph import Node
from .kernel import Choice, anchor

MARK: Final = "a defect"  # how the reason begins with which such a kernel is listed as declined


class KernelDefect(UserWarning):
    """Warning: a kernel failed to choose or prepare a step, and another one took it."""


class Unprepared(PlanError):
    """A chosen kernel could not be prepared; after replanning, another one takes the step."""


class Defects:
    """The defects of this process so far."""

    def __init__(self) -> None:
        self.count = 0
        self._named: set[tuple[str, str, str]] = set()
        self._unprepared: list[tuple[str, tuple[str, str], Choice]] = []

    def note(self, kernel: str, node: Node, doing: str, error: Exception) -> str:
        """Count a defect and warn of the first of its kind; returns the reason to list."""
        self.count += 1
        reason = f"{MARK}, while it {doing}: {type(error).__name__}: {error}"
        key = kernel, node.op, doing
        if key not in self._named:
            warnings.warn(
                f"{node.place}: {kernel} has {reason}. Another kernel runs this step, with the same results; please "
                "report this line",
                KernelDefect,
                stacklevel=2,
            )
            self._named.add(key)
        return reason

    def exclude(self, choice: Choice, node: Node, reason: str) -> None:
        """Let this choice not be taken again for such a node."""
        self._unprepared.append((reason, anchor(node), _made(choice)))

    def excluded(self, choice: Choice, node: Node) -> str | None:
        """Why a choice cannot be taken, if it could not be prepared before."""
        if not self._unprepared:
            return None
        asked = anchor(node), _made(choice)
        return next((reason for reason, *request in self._unprepared if tuple(request) == asked), None)

    def forget(self) -> None:
        """Let go of all; for tests."""
        self.count = 0
        self._named.clear()
        self._unprepared.clear()


def _made(choice: Choice) -> Choice:
    """Return a choice without the parts that depend on the plan."""
    return Choice(choice.kernel, choice.params, implementation=choice.implementation, primitives=choice.primitives)


DEFECTS: Final = Defects()

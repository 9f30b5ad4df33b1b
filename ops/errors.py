"""All exceptions of Mezzo, under MezzoError: bad models, shapes, inputs, limits, deadlines, lost peers.

MezzoError
├── ModelError            the file is wrong, or cannot be read
│   └── UnsupportedModel  the file is valid, and needs what is not supported
├── ShapeError            operands do not fit an operator (types, ranks, sizes, attributes)
├── InputError            feeds do not fit the model's signature
│   └── ArgumentError     ONNX Runtime would refuse the argument too, or it would be ignored here
├── BudgetError           a limit would be exceeded; raised before the memory or time is taken
├── ExecutionError        a step failed while it ran
├── DeadlineError         a wait or a run passed its deadline
├── Cancelled             the caller ended a run
├── ForkedProcess         used in a child forked from a process that had run a program
├── MissingPackage        an optional package is absent; the hint is the line that installs it
├── WireError             a message of another process is malformed
├── PeerError             another process of the job is gone, or has failed
└── PlanError             a graph or a plan fails its own check: our bug
"""

from __future__ import annotations

from collections.abc import Sequence


class MezzoError(Exception):
    """Base of all errors of this package: `except mz.MezzoError` catches ours and nothing else.

    `where` names the file, node or value; `message` says what is wrong, with both sides of a conflict; `hint` says
    what to do about it. An error that tells several problems has them one by one in `parts`.

    >>> print(MezzoError("3 is not 4", where="node 'add'", hint="make them equal"))
    node 'add': 3 is not 4
      hint: make them equal
    """

    def __init__(self, message: str, *, where: str = "", hint: str = "", parts: Sequence[MezzoError] = ()) -> None:
        self.message, self.where, self.hint, self.parts = message, where, hint, tuple(parts)
        super().__init__(message)

    def __str__(self) -> str:
        head = f"{self.where}: {self.message}" if self.where else self.message
        return f"{head}\n  hint: {self.hint}" if self.hint else head

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.where, self.hint, self.parts))

    def at(self, where: str) -> MezzoError:
        """Name the place, unless one closer to the fault has been named already."""
        self.where = self.where or where
        return self


def _rebuild(
    kind: type[MezzoError], message: str, where: str, hint: str, parts: tuple[MezzoError, ...] = ()
) -> MezzoError:
    return kind(message, where=where, hint=hint, parts=parts)


class ModelError(MezzoError):
    """The model file is malformed or unreadable."""


class UnsupportedModel(ModelError):
    """The model is valid, and needs an operator, opset or feature that is not supported."""


class ShapeError(MezzoError):
    """Operand types or attributes do not fit the operator."""


class InputError(MezzoError):
    """The feeds or arguments do not fit the model's inputs or the call."""


class ArgumentError(InputError, ValueError, RuntimeError):
    """An argument of a call that ONNX Runtime has too is wrong, or would be ignored. As in ONNX Runtime, it is a
    ValueError (for malformed values) and a RuntimeError (for unknown names)."""


class BudgetError(MezzoError):
    """A limit on elements, bytes, nesting or steps would be exceeded."""


class ExecutionError(MezzoError):
    """A step failed while it ran."""


class OutOfRange(ExecutionError, IndexError):
    """An element of the indices that a step reads lies outside of its axis. It is an IndexError, as in NumPy."""


class DeadlineError(MezzoError):
    """A wait or a run passed its deadline."""


class Cancelled(MezzoError):
    """The caller ended a run."""


class ForkedProcess(MezzoError):
    """A runtime that has run was used in a forked child."""


class MissingPackage(MezzoError):
    """An optional package is not installed."""


class WireError(MezzoError):
    """A message of another process is malformed, or breaks the protocol."""


class PeerError(MezzoError):
    """Another process of the job is gone, has failed, or refused a request."""


class PlanError(MezzoError):
    """A graph or a memory plan failed its own check."""

"""Errors by the names that ONNX Runtime gives them.

Each that is raised is also the MezzoError that a session raises: `except mz.InputError` catches what `except
InvalidArgument` does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ...ops.errors import (
    ArgumentError,
    Cancelled,
    ExecutionError,
    InputError,
    MezzoError,
    ModelError,
    OutOfRange,
    ShapeError,
    UnsupportedModel,
)


class Fail(MezzoError):
    """A call failed, for a reason without a name of its own."""


class InvalidArgument(ArgumentError):
    """Feeds, outputs or buffers do not fit the model."""


class NoSuchFile(ModelError):
    """The model file is missing."""


class InvalidProtobuf(ModelError):
    """The model file is no ONNX file."""


class InvalidGraph(ModelError, Fail):
    """The model is malformed."""


class NotImplemented(UnsupportedModel):
    """The model needs an operator, opset or feature that is not supported."""


class RuntimeException(ExecutionError):
    """A step of a run failed."""


class RuntimeIndexException(OutOfRange, RuntimeException, InvalidArgument):
    """A step read an element that its axis does not have: an invalid argument, to ONNX Runtime."""


class UnsupportedGraph(NotImplemented, InvalidGraph):
    """The model needs what is not supported: ONNX Runtime says one or the other."""


class MisfitGraph(ShapeError, Fail):
    """Operands of the model do not fit an operator."""


class Terminated(Cancelled, Fail):
    """RunOptions.terminate ended a run."""


class Unknown(ArgumentError, AttributeError):
    """There is no option of this name."""


class WrongType(ArgumentError, TypeError):
    """An argument is of another type."""


class NoModel(ModelError):
    """ONNX Runtime's, never raised here."""


class EngineError(MezzoError):
    """ONNX Runtime's, never raised here."""


class ModelLoaded(MezzoError):
    """ONNX Runtime's, never raised here."""


class EPFail(MezzoError):
    """ONNX Runtime's, never raised here: no provider fails apart from its session."""


class DeviceReset(MezzoError):
    """ONNX Runtime's, never raised here."""


class ModelLoadCanceled(MezzoError):
    """ONNX Runtime's, never raised here."""


class ModelRequiresCompilation(MezzoError):
    """ONNX Runtime's, never raised here."""


class NotFound(MezzoError):
    """ONNX Runtime's, never raised here."""


# The most special come first.
NAMED: tuple[tuple[type[MezzoError], type[MezzoError]], ...] = (
    (UnsupportedModel, UnsupportedGraph),
    (ModelError, InvalidGraph),
    (ShapeError, MisfitGraph),
    (InputError, InvalidArgument),
    (Cancelled, Terminated),
    (OutOfRange, RuntimeIndexException),
    (ExecutionError, RuntimeException),
)


def renamed(error: MezzoError) -> MezzoError:
    """The same error by ONNX Runtime's name.

    >>> renamed(InputError("input 'x' is int64", where="feeds"))
    InvalidArgument("input 'x' is int64")
    """
    if isinstance(error, (Fail, Unknown, WrongType)):
        return error
    kind = next((k for of, k in NAMED if isinstance(error, of)), None)
    if kind is None or isinstance(error, kind):
        return error
    return kind(error.message, where=error.where, hint=error.hint, parts=error.parts)


@contextmanager
def opening() -> Iterator[None]:
    """Raise errors of loading by ONNX Runtime's names."""
    try:
        yield
    except MezzoError as error:
        cause = error.__cause__
        kind = NoSuchFile if isinstance(cause, FileNotFoundError) else InvalidProtobuf
        # the other error is protobuf's, which may not be here
        if type(error) is ModelError and (kind is NoSuchFile or type(cause).__name__ == "DecodeError"):
            raise kind(error.message, where=error.where, hint=error.hint) from error
        raise renamed(error) from error

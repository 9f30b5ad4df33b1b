"""Element types by the names that `NodeArg.type` has, for programs that allocate buffers themselves."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ops.types import DType
from .errors import InvalidArgument

if TYPE_CHECKING:
    from .session import InferenceSession

# What NodeArg.type calls the types whose names differ from NumPy's.
_NAMES = {"float": DType.FLOAT, "double": DType.DOUBLE, "string": DType.STRING}


def _kind(ort_type: str) -> DType:
    """The element type of `tensor(float)`. Raises InvalidArgument for what is none."""
    name = ort_type.removeprefix("tensor(").removesuffix(")")
    kind = _NAMES.get(name) or next((k for k in DType if k.value[0] == name), None)
    if kind is None or f"tensor({name})" != ort_type:
        raise InvalidArgument(f"{ort_type!r} is no type of a tensor", where="TypeHelper", hint="give NodeArg.type")
    return kind


class TypeHelper:
    """Types of a session's inputs and outputs.

    >>> TypeHelper.ort_type_to_numpy_type("tensor(int64)")
    <class 'numpy.int64'>
    """

    @staticmethod
    def get_input_type(ort_session: InferenceSession, name: str) -> str:
        return _of(name, ort_session.get_inputs())

    @staticmethod
    def get_output_type(ort_session: InferenceSession, name: str) -> str:
        return _of(name, ort_session.get_outputs())

    @staticmethod
    def ort_type_to_numpy_type(ort_type: str) -> Any:
        return np.dtype(_kind(ort_type).numpy).type

    @staticmethod
    def ort_type_to_torch_type(ort_type: str) -> Any:
        """The type of PyTorch, which whoever asks has imported."""
        return getattr(sys.modules["torch"], _kind(ort_type).value[0])

    @staticmethod
    def get_io_numpy_type_map(ort_session: InferenceSession) -> dict[str, Any]:
        """NumPy's types of all inputs and outputs by name."""
        ports = [*ort_session.get_inputs(), *ort_session.get_outputs()]
        return {port.name: TypeHelper.ort_type_to_numpy_type(port.type) for port in ports}


def _of(name: str, ports: Iterable[Any]) -> str:
    for port in ports:
        if port.name == name:
            return str(port.type)
    raise InvalidArgument(f"there is no {name!r}", where="TypeHelper")

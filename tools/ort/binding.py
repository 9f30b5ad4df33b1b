"""ONNX Runtime's IOBinding: feeds and buffers for results, given once for many runs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ops import DType
from ...ops.errors import ArgumentError
from ...ops.types import Array
from .devices import OrtDevice
from .values import OrtValue, OrtValueVector, element_type

if TYPE_CHECKING:
    from .options import RunOptions
    from .session import InferenceSession

Answers = Callable[..., dict[str, Any]]


def _at(address: int, kind: Any, shape: Sequence[int]) -> Array:
    """The array at an address, which its owner keeps alive."""
    dtype, sizes = element_type(kind), [int(n) for n in shape]
    if dtype is DType.STRING or address == 0:
        text = f"Only binding non-string Tensors is possible: {dtype}{sizes} at {address:#x}"
        raise ArgumentError(text, where="IOBinding", hint="give memory that holds numbers")
    count = int(np.prod(sizes, dtype=np.int64))
    held = (ctypes.c_uint8 * (count * dtype.numpy.itemsize)).from_address(address)
    return np.ctypeslib.as_array(held).view(dtype.numpy).reshape(sizes)


class IOBinding:
    """Feeds and outputs of a session, bound by name. A run writes into the value that is bound to an output, or makes
    one.

    >>> from mezzo.models.digits import digits_model, held_out
    >>> from mezzo.tools.ort.session import InferenceSession
    >>> session = InferenceSession(digits_model())
    >>> binding = session.io_binding()
    >>> binding.bind_cpu_input("image", held_out().inputs[:2])
    >>> binding.bind_output("logits")
    >>> session.run_with_iobinding(binding)
    >>> binding.get_outputs()[0].shape()
    [2, 10]
    """

    def __init__(self, session: InferenceSession) -> None:
        self.session = session
        self._feeds: dict[str, Any] = {}
        self._bound: dict[str, OrtValue | None] = {}  # outputs, in the order in which they were bound first
        self._buffers: dict[str, Any] = {}
        self._results: dict[str, Any] = {}

    # -- inputs -----------------------------------------------------------------------------------------------------

    def bind_cpu_input(self, name: str, arr_on_cpu: Array) -> None:
        """Feed this array, which is not copied: runs read what it holds then."""
        if not isinstance(arr_on_cpu, np.ndarray):
            raise ArgumentError(f"a {type(arr_on_cpu).__name__} is no array", where=f"input {name!r}", hint="np.array")
        self._input(name, np.ascontiguousarray(arr_on_cpu).reshape(arr_on_cpu.shape))

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Feed the memory at an address, which the caller keeps alive."""
        OrtDevice.make(device_type, device_id).on_host()
        self._input(name, _at(buffer_ptr, element_type, shape))

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Feed this value, which is not copied."""
        self._input(name, ortvalue._value)

    def _input(self, name: str, value: Any) -> None:
        known = self.session.session.signature.inputs
        if name not in known:
            raise ArgumentError(f"there is no input {name!r}", where="IOBinding", hint=f"{', '.join(known)}")
        self._feeds[name] = value

    def clear_binding_inputs(self) -> None:
        self._feeds.clear()

    def synchronize_inputs(self) -> None:
        """Nothing is under way: values lie in the memory of the host."""

    # -- outputs ----------------------------------------------------------------------------------------------------

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for this output: in the memory at an address, which the caller keeps alive, or where the run makes it."""
        OrtDevice.make(device_type, device_id).on_host()
        if buffer_ptr is None:
            self._output(name, None)
            return
        if element_type is None or shape is None:
            hint = "give element_type= and shape= too"
            raise ArgumentError("memory of an unknown size", where=f"output {name!r}", hint=hint)
        self._output(name, OrtValue(_at(buffer_ptr, element_type, shape)))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Ask for this output, in this value."""
        self._output(name, ortvalue)

    def _output(self, name: str, value: OrtValue | None) -> None:
        known = self.session.session.signature.outputs
        if name not in known:
            raise ArgumentError(f"there is no output {name!r}", where="IOBinding", hint=f"{', '.join(known)}")
        self._bound[name] = value
        self._buffers = {n: v.numpy() for n, v in self._bound.items() if v is not None}

    def clear_binding_outputs(self) -> None:
        self._bound, self._buffers, self._results = {}, {}, {}

    def synchronize_outputs(self) -> None:
        """Nothing is under way: runs end before they return."""

    def get_outputs(self) -> list[OrtValue]:
        """Results of the latest run, in the order in which they were bound."""
        return [self._bound.get(name) or OrtValue(value) for name, value in self._results.items()]

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        """`get_outputs`, in a list of another name."""
        return OrtValueVector(self.get_outputs())

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Copies of the results of the latest run."""
        return [value.copy() if isinstance(value, np.ndarray) else value for value in self._results.values()]

    # -- running ----------------------------------------------------------------------------------------------------

    def run(self, answers: Answers, run_options: RunOptions | None) -> None:
        """Run by the session's `answers` (see InferenceSession.run_with_iobinding)."""
        if not self._bound:
            raise ArgumentError("no output is bound", where="run_with_iobinding", hint="bind_output(name)")
        results = answers(self._bound, self._feeds, self._buffers or None, run_options)
        self._results = {name: results[name] for name in self._bound}

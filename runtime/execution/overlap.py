"""Feeds and the caller's buffers for results: memory that they share is not written while it is still to be read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...ops import Tensor, Type
from ...ops.errors import InputError
from ...ops.types import Array, type_of
from ..compile.program import Port
from ..memory.allocate import new_array

if TYPE_CHECKING:
    from .executor import Executor


def share(a: Any, b: Any) -> bool:
    """True if two contiguous arrays, of NumPy or of a GPU, have bytes in common."""
    first, second = _begin(a), _begin(b)
    if first is None or second is None or first[0] != second[0]:
        return False
    return bool(first[1] < second[1] + b.nbytes and second[1] < first[1] + a.nbytes)


def _begin(array: Any) -> tuple[str, int] | None:
    """The kind of memory of an array, and where it begins; None for what is no array."""
    for kind in ("__array_interface__", "__cuda_array_interface__"):
        interface = getattr(array, kind, None)
        if interface is not None:
            return kind, int(interface["data"][0])
    return None


def apart(feeds: Mapping[str, Any], buffers: Mapping[str, Array], owner: str) -> dict[str, Any]:
    """The feeds, as copies where a buffer has bytes of theirs: a result may be written before the last step reads them,
    and a run that meets NaN is made again. Raises InputError where two buffers share bytes."""
    given = [*buffers.items()]
    for i, (name, buffer) in enumerate(given):
        for other, second in given[:i]:
            if share(buffer, second):
                text = f"the buffers of {other!r} and {name!r} share memory"
                raise InputError(text, where=f"{owner}: outputs", hint="give each its own")
    return {n: x.copy() if any(share(x, b) for _, b in given) else x for n, x in feeds.items()}


def own_buffers(
    ports: Sequence[Port], given: Mapping[str, Any] | None, device: Executor, owner: str
) -> dict[str, Array]:
    """The caller's buffers for results of a run, by name. Raises InputError for one that nothing could be written into,
    or of a result that the run does not have."""
    known = {p.name: p for p in ports}
    unknown = [repr(n) for n in given or () if n not in known]
    if unknown:
        raise InputError(
            f"this run has no output {', '.join(unknown)} to write",
            where=f"{owner}: outputs",
            hint=f"its outputs are {', '.join(known)}",
        )
    return {n: _own_buffer(known[n], buffer, device, owner) for n, buffer in (given or {}).items()}


def _own_buffer(port: Port, buffer: Any, device: Executor, owner: str) -> Array:
    where, want = f"{owner}: outputs[{port.name!r}]", port.type
    if not isinstance(want, Tensor):
        raise InputError(f"{port} is no array", where=where, hint="leave it out of outputs=, and take the answer")
    hint = f"give an array of {want.dtype} that is contiguous and writable"
    if want.static:
        hint = f"give np.empty({want.sizes}, {str(want.dtype)!r})"
    array = buffer
    if not isinstance(buffer, np.ndarray):
        try:
            array = device.from_dlpack(buffer) if hasattr(buffer, "__dlpack__") else np.asarray(buffer)
        except (TypeError, ValueError, BufferError, RuntimeError) as error:
            raise InputError(f"the buffer for {port} is no array: {error}", where=where, hint=hint) from error
        if isinstance(array, np.ndarray) and array.base is None:
            text = f"the buffer for {port} is a {type(buffer).__name__}, which has no memory to write into"
            raise InputError(text, where=where, hint=hint)
    writable = not isinstance(array, np.ndarray) or (array.flags.writeable and array.dtype.isnative)
    if not (array.flags.c_contiguous and writable and _may_be(type_of(array), want)):
        text = f"the buffer for {port} is a {type_of(array)}, or is not contiguous and writable"
        raise InputError(text, where=where, hint=hint)
    return array


def _may_be(have: Type, want: Tensor) -> bool:
    """True if an array of this type may be a result that is declared so: the size of which data may decide."""
    if not isinstance(have, Tensor) or have.dtype is not want.dtype:
        return False
    if want.dims is None:
        return True
    pairs = zip(want.dims, have.sizes, strict=False)
    return have.rank == len(want.dims) and all(d == n for d, n in pairs if isinstance(d, int))


def result_buffer(port: Port, own: Mapping[str, Array], owner: str) -> Array | None:
    """The caller's buffer for a result, or a fresh one that `owner` accounts for; None where data decide the size."""
    if not (isinstance(port.type, Tensor) and port.type.static):
        return None
    return own[port.name] if port.name in own else new_array(port.type.sizes, port.type.dtype.numpy, owner)


def delivered(results: dict[str, Any], own: Mapping[str, Array], owner: str) -> dict[str, Any]:
    """The results of a run, those of which data decided the size too in the caller's buffers. Raises InputError for a
    buffer of another size."""
    for name, buffer in own.items():
        result = results[name]
        if result is buffer:
            continue
        if result.shape != buffer.shape:
            raise InputError(
                f"the result is {type_of(result)}, and the buffer for it {type_of(buffer)}",
                where=f"{owner}: outputs[{name!r}]",
                hint="data decide its size: leave it out of outputs=, and take the answer",
            )
        buffer[...] = result
        results[name] = buffer
    return results

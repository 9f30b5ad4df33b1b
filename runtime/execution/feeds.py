"""Validation of a caller's feeds against the inputs of a model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from numbers import Integral, Real
from time import monotonic
from typing import Any

import numpy as np

from ...ops import DType, Map, Optional, Tensor, Type
from ...ops import Sequence as ListType
from ...ops.errors import InputError
from ...ops.types import Array, native, type_of
from ..compile.growing import GrowingArray
from ..ir.graph import Signature

Taken = Callable[[Any], Any]


def checked(signature: Signature, feeds: Mapping[str, Any], taken: Taken = np.from_dlpack) -> dict[str, Any]:
    """The feeds in the model's order as operators take them; InputError lists all that does not fit.

    Arrays are taken as they are (anything with DLPack or the buffer protocol without a copy, if it is contiguous);
    Python numbers and nested lists take the input's element type. Inputs with an initialiser may be left out. `taken`
    makes an array of what offers DLPack: on a GPU it may be one of CuPy.
    """
    known = signature.inputs
    problems = [f"there is no input {n!r}" for n in feeds if n not in known]
    arrays: dict[str, Any] = {}
    sizes: dict[str, tuple[int, str]] = {}
    for name, type in known.items():
        if name not in feeds:
            if name in signature.defaults:
                arrays[name] = signature.defaults[name]
            else:
                problems.append(f"input {name!r} ({type}) is not fed")
            continue
        try:
            arrays[name] = _as_array(feeds[name], type, taken)
        except (TypeError, ValueError, BufferError, RuntimeError) as error:  # the last: of bfloat16's DLPack
            problems.append(f"input {name!r} is no array: {error}")
            continue
        problems += _misfits(name, type, arrays[name], sizes)
    if problems:
        takes = ", ".join(f"{n}: {t}" for n, t in known.items())
        raise InputError("; ".join(problems), where=signature.name, hint=f"the model takes {takes or 'no inputs'}")
    return arrays


ONE_DICT, ONE_LIST = (dict, type(None)), (list, tuple, type(None))  # what a run need not look at further


def by_name(owner: str, feeds: Any, outputs: Any, names: Any) -> None:
    """Raise InputError for feeds and buffers that are not given by name, and for names that are no list of them."""
    for what, given in (("feeds", feeds), ("outputs", {} if outputs is None else outputs)):
        if not isinstance(given, Mapping):
            text = f"{what} are a mapping, not a {type(given).__name__}"
            raise InputError(text, where=owner, hint="give {name: array}")
    if names is None:
        return
    listed = isinstance(names, Collection) and not isinstance(names, str) and getattr(names, "shape", None) != ()
    if not listed or not all(isinstance(n, str) for n in names):
        raise InputError(f"names are a list of outputs, not {names!r}", where=owner, hint="give [name]")


def check_draw(owner: str, draw: Any) -> None:
    """Raise InputError for what begins no random numbers."""
    if not isinstance(draw, tuple) or not all(isinstance(n, Integral) for n in draw):
        raise InputError(f"draw={draw!r}", where=owner, hint="give a tuple of integers, or None")


def ends_at(owner: str, deadline: Any, cancel: Any, observe: Any) -> float | None:
    """Return the moment at which a run has to end, if any. Raises InputError for what says nothing of that."""
    if deadline is not None and not (isinstance(deadline, Real) and deadline == deadline):
        raise InputError(f"deadline={deadline!r}", where=owner, hint="give seconds from now, or None")
    if cancel is not None and not callable(getattr(cancel, "is_set", None)):
        raise InputError(f"cancel={cancel!r}", where=owner, hint="give a threading.Event, or None")
    if observe is not None and not callable(observe):
        raise InputError(f"observe={observe!r}", where=owner, hint="give a function, or None")
    return None if deadline is None else monotonic() + float(deadline)


def chosen(signature: Signature, names: Sequence[Any] | None) -> tuple[str, ...]:
    """The outputs that a run computes: those named, or all. InputError lists names that the model does not have."""
    unknown = [repr(n) for n in names or () if not isinstance(n, str) or n not in signature.outputs]
    if unknown:
        raise InputError(
            f"there is no output {', '.join(unknown)}",
            where=signature.name,
            hint=f"the outputs are {', '.join(signature.outputs)}",
        )
    return tuple(signature.outputs if names is None else names)


def planned_types(signature: Signature, shapes: Mapping[str, Any]) -> dict[str, Type]:
    """The types of all inputs, with these shapes of some. InputError lists what the model does not have or take."""
    if not isinstance(shapes, Mapping):
        raise InputError(f"shapes are a mapping, not {shapes!r}", where=signature.name, hint="give {name: sizes}")
    known = {n: t for n, t in signature.inputs.items() if isinstance(t, Tensor)}
    unknown = [repr(n) for n in shapes if n not in known]
    if unknown:
        takes = ", ".join(f"{n}: {t}" for n, t in signature.inputs.items())
        text = f"there is no input {', '.join(unknown)} with a shape"
        raise InputError(text, where=signature.name, hint=f"the model takes {takes or 'no inputs'}")
    together = dict[str, tuple[int, str]]()
    for name, sizes in shapes.items():
        dims, hint = known[name].dims, f"it is {known[name]}"
        whole = isinstance(sizes, Sequence) and all(isinstance(d, (int, np.integer)) and d >= 0 for d in sizes)
        if not whole or (dims is not None and len(dims) != len(sizes)):
            raise InputError(f"{sizes!r} is no shape of the input {name!r}", where=signature.name, hint=hint)
        if misfits := _misplaced(name, known[name], sizes, together):
            raise InputError("; ".join(misfits), where=signature.name, hint=hint)
    given = {n: known[n].of(tuple(int(d) for d in sizes)) for n, sizes in shapes.items()}
    return {**signature.inputs, **given}


def signature_type(declared: Type, value: Any) -> Type:
    """Return the type that a program is planned for: sizes of arrays, but only the declared type of host objects."""
    return type_of(value) if isinstance(declared, Tensor) else declared


def _as_array(value: Any, type: Type, taken: Taken) -> Any:
    """A feed as operators take it: an array, or a list, dict or None of such."""
    match type:
        case Optional():
            return None if value is None else _as_array(value, type.element, taken)
        case ListType():
            if not isinstance(value, (list, tuple)):
                raise TypeError(f"a {type} is a list, not a {value.__class__.__name__}")
            return [_as_array(v, type.element, taken) for v in value]
        case Map():
            if not isinstance(value, dict):
                raise TypeError(f"a {type} is a dict, not a {value.__class__.__name__}")
            return _as_map(value, type, taken)
    if value.__class__ is GrowingArray or (value.__class__ is np.ndarray and _as_is(value, type)):
        return value
    if not isinstance(value, np.ndarray):
        if hasattr(value, "__dlpack__") and not hasattr(value, "__array_interface__"):
            value = taken(value)
            if not isinstance(value, np.ndarray):
                return value
        if value is None:
            raise TypeError("it is None")
        # Python numbers and lists take the input's type; other arrays keep theirs, which is then checked
        value = np.asarray(value, type.dtype.numpy if isinstance(value, (bool, int, float, list, tuple)) else None)
    elif value.__class__ is not np.ndarray and np.ma.is_masked(value):
        raise ValueError("some elements are masked, which no operator knows: fill them first (`x.filled(...)`)")
    if type.dtype is DType.STRING:
        if value.dtype.kind == "S":
            return np.char.decode(value, "utf8").astype(object)
        return value.astype(object) if value.dtype.kind in "UT" else _texts(value)
    return native(np.ascontiguousarray(value).reshape(value.shape))


def _as_map(value: dict[Any, Any], type: Map, taken: Taken) -> dict[Any, Any]:
    """A dict whose keys and values are of the types that the model says; single ones are texts, or NumPy's numbers."""
    kinds: Any = str if type.key is DType.STRING else (int, np.integer)
    if wrong := [key for key in value if not isinstance(key, kinds)]:
        raise TypeError(f"its key {wrong[0]!r} is a {wrong[0].__class__.__name__}, and the model looks up {type.key}")
    element = type.element
    if not isinstance(element, Tensor) or element.dims or element.dtype is DType.STRING:
        return {key: _as_array(v, element, taken)[()] for key, v in value.items()}
    numbers = {}
    for key, v in value.items():
        if isinstance(v, (str, bytes)) or np.ndim(v):
            raise TypeError(f"{v!r} at the key {key!r} is no {element.dtype}")
        numbers[key] = element.dtype.numpy.type(v)
    return numbers


def _texts(array: Array) -> Array:
    """An array of objects whose elements are texts; bytes become such. TypeError for others: no operator knows them."""
    if array.dtype != object or all(isinstance(x, str) for x in array.flat):
        return array
    texts = np.empty(array.shape, object)
    for i, x in enumerate(array.flat):
        if not isinstance(x, (str, bytes)):
            raise TypeError(f"element {i} is {x!r}, a {type(x).__name__} and no text")
        texts.flat[i] = x if isinstance(x, str) else x.decode()
    return texts


def _as_is(array: Array, type: Tensor) -> bool:
    """True for an array that operators take as it is; most are."""
    return array.dtype is type.dtype.numpy and type.dtype is not DType.STRING and array.flags.c_contiguous


def _misfits(name: str, want: Type, array: Array, sizes: dict[str, tuple[int, str]]) -> list[str]:
    """Return the errors of one feed; named dims must agree over all inputs."""
    if isinstance(want, Optional):
        return [] if array is None else _misfits(name, want.element, array, sizes)
    if isinstance(want, ListType):
        return [p for i, v in enumerate(array) for p in _misfits(f"{name}[{i}]", want.element, v, {})]
    if not isinstance(want, Tensor):
        return []
    if not isinstance(array, np.ndarray) or array.dtype is not want.dtype.numpy:
        try:
            have = type_of(array)
        except Exception as error:
            return [f"input {name!r}: {error}"]
        assert isinstance(have, Tensor)
        if have.dtype is not want.dtype:
            return [f"input {name!r} is {have.dtype}, expected {want.dtype}"]
    if want.dims is not None and len(want.dims) != len(array.shape):
        return [f"input {name!r} is {type_of(array)}, expected rank {len(want.dims)} ({want})"]
    return _misplaced(name, want, array.shape, sizes)


def _misplaced(name: str, want: Tensor, shape: Sequence[int], sizes: dict[str, tuple[int, str]]) -> list[str]:
    """Return what is wrong with a shape of the right rank."""
    conflicts = []
    for axis, (dim, size) in enumerate(zip(want.dims or (), shape, strict=False)):
        if isinstance(dim, int) and dim != size:
            conflicts.append(f"input {name!r} has {size} in axis {axis}, expected {dim} ({want})")
        elif isinstance(dim, str):
            before = sizes.setdefault(dim, (size, name))
            if before[0] != size:
                conflicts.append(f"dim {dim!r} is {before[0]} in input {before[1]!r} and {size} in input {name!r}")
    return conflicts

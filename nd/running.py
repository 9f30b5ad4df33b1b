"""Execution of operators on arrays: on the engine, or directly in the caller's thread where that is equivalent.

`apply` is the gate that every operator on arrays goes through; `run` is what it does once the operator is prepared.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from types import CodeType
from typing import Any, overload

import numpy as np

from ..ops import DType
from ..ops.errors import InputError, MezzoError, OutOfRange, ShapeError
from ..ops.types import native
from ..runtime.caches import bounded
from ..runtime.engine import Engine, Variable, engine
from ..runtime.memory.allocate import copied
from . import lazy, pending, recording
from .array import Array
from .place import Place, cpu
from .prepared import Call, Prepared, prepared
from .reading import copied_to, read, value_of
from .recording import RECORDING
from .sites import line_of, site
from .specs import MOST, Scalar, TensorSpec, dtype_of, known, spec_of, spec_of_value, together

Operand = Any  # an Array, an np.ndarray without axes (a scalar that differs from call to call), a Known, or None
SCALARS = (bool, int, float, complex)


# -- operators --------------------------------------------------------------------------------------------------------


@overload
def apply(
    name: str, *operands: Operand, domain: str = "", outputs: int, place: Place | None = None, **attrs: Any
) -> Any: ...


@overload
def apply(name: str, *operands: Operand, domain: str = "", place: Place | None = None, **attrs: Any) -> Array: ...


def apply(
    name: str, *operands: Operand, domain: str = "", outputs: int = 1, place: Place | None = None, **attrs: Any
) -> Any:
    """Run an operator on arrays: an array, or a tuple of `outputs` many; returns before they are computed.

    Attributes are as the operator has them, lists as tuples. `place` is where the results are if no operand is an
    array. Raises ShapeError where operands do not fit, InputError for arrays of several devices.
    """
    template = tuple([spec_of(x.dtype, x.shape) if isinstance(x, np.ndarray) else _spec(x) for x in operands])
    return run(ready(name, template, tuple(attrs.items()), domain, outputs), _given(operands), place)


def _spec(x: Operand) -> Any:
    return x._spec if isinstance(x, Array) else x


def _given(operands: Sequence[Operand]) -> tuple[Any, ...]:
    return tuple([x for x in operands if isinstance(x, Array | np.ndarray)])


def ready(
    name: str,
    template: tuple[Any, ...],
    attrs: tuple[tuple[str, Any], ...] = (),
    domain: str = "",
    outputs: int = 1,
) -> Prepared:
    """`prepared`, whose errors name the user's line."""
    try:
        return prepared(name, template, attrs, domain, outputs)
    except MezzoError as error:
        raise error.at(f"{name}, called at {line_of(*site())}") from error.__cause__


def run(operator: Prepared, given: tuple[Any, ...], place: Place | None = None, call: Call | None = None) -> Any:
    """Run a prepared operator on arrays of its kinds, and scalars; `call` computes in its place if given."""
    if RECORDING.noted:
        return recording.run(operator, given, place, call)
    return run_unseen(operator, given, place, call)


def run_unseen(operator: Prepared, given: tuple[Any, ...], place: Place | None = None, call: Call | None = None) -> Any:
    """`run` that nobody remembers."""
    first = True
    for x in given:
        if x.__class__ is np.ndarray:
            continue
        if first:
            place, first = x._place, False
        elif x._place is not place:
            raise several_places(operator.name, given)
    place = place or cpu()
    if operator.tree is not None and lazy.fusing() and call is None and place.name == "cpu":
        return _gathered(operator, given, place)
    if pending.waiting:
        pending.flush()
    one, call = engine(), call or (operator.call if place.name == "cpu" else operator.on(place))
    if one.only_calls():
        result = _right_here(one, operator, given, place, call)
        if result is not None:
            return result
    reads: list[Variable] = []
    writes: list[Variable] = []
    outs: list[Array] = []
    for x in given:
        if x.__class__ is not np.ndarray:
            reads.append(x._variable)  # noqa: PERF401 (a comprehension is a call of Python's)
    for kind in operator.outs:
        var = Variable(one, operator.name, None)
        writes.append(var)
        outs.append(Array(var, kind or UNKNOWN, place))
    work = one.push(_compute, reads, writes, name=operator.name, args=(call, given, outs))
    for out in outs:
        out._code, out._at = work._code, work._at
        if out._spec is UNKNOWN:
            one.wait(out._var)
            out._spec = spec_of_value(out._var.value)
    return outs[0] if len(outs) == 1 else tuple(outs)


def _gathered(operator: Prepared, given: tuple[Any, ...], place: Place) -> Array:
    """An array that is computed later, with others."""
    kind = operator.outs[0]
    assert kind is not None
    out = Array(None, kind, place)
    out._code, out._at = site()
    lazy.gather(operator, given, out)
    return out


UNKNOWN = TensorSpec(np.dtype(np.bool_), (0,))  # until the elements are known


def _right_here(one: Engine, operator: Prepared, given: tuple[Any, ...], place: Place, call: Call) -> Any:
    """Run a call directly instead of by a push; return None if an operand has an error, or the call fails."""
    values = []
    for x in given:
        if x.__class__ is not np.ndarray:
            var = x._variable
            if var._failure is not None:
                return None
            x = x._look(var._value) if x._view else var._value
        values.append(x)
    try:
        results = call(*values)
    except Exception:
        return None
    code, at = site(4)  # run, which run_unseen and this are called by, is called by others of ours
    outs = operator.outs
    if len(outs) == 1:
        return _computed(one, operator.name, results, outs[0], place, code, at)
    return tuple([_computed(one, operator.name, r, k, place, code, at) for r, k in zip(results, outs, strict=True)])


def _computed(
    one: Engine, name: str, value: Any, kind: TensorSpec | None, place: Place, code: CodeType, at: int
) -> Array:
    """An array that is computed already."""
    var = Variable(one, name, value)
    var.version = 1
    out = Array(var, kind or spec_of_value(value), place)
    out._code, out._at = code, at
    return out


def _compute(call: Call, given: tuple[Any, ...], outs: list[Array]) -> None:
    try:
        results = call(*map(value_of, given))
    except IndexError as error:
        raise OutOfRange(f"{error}", where=outs[0]._var.name) from error
    for out, result in zip(outs, (results,) if len(outs) == 1 else results, strict=True):
        out._var.value = result


def several_places(name: str, given: Sequence[Any]) -> InputError:
    """The error for arrays of several devices in one operation."""
    arrays = [x for x in given if isinstance(x, Array)]
    first = arrays[0]
    other = next(x for x in arrays if x._place is not first._place)
    return InputError(
        f"{name} of arrays on two devices: {first.where}, and {other.where}",
        where=f"{name}, called at {line_of(*site())}",
        hint=f"bring one to the other: b.to_device(mz.{first._place})",
    )


def one_place(name: str, arrays: Sequence[Array]) -> Place:
    """The place of these arrays, or cpu(0) where there are none. Raises InputError for several."""
    if any(x._place is not arrays[0]._place for x in arrays):
        raise several_places(name, arrays)
    return arrays[0]._place if arrays else cpu()


# -- operands of several sorts ----------------------------------------------------------------------------------------


def unary(name: str, x: Operand, **attrs: Any) -> Array:
    """An operator of one operand."""
    one = as_array(x)
    result: Array = run(ready(name, (one._spec,), tuple(attrs.items())), (one,))
    return result


def binary(name: str, a: Operand, b: Operand, **attrs: Any) -> Array:
    """An operator of two operands of one element type, to which they are brought."""
    if a.__class__ is not Array or b.__class__ is not Array or a._spec.dtype is not b._spec.dtype:
        a, b = alike(a, b)
    result: Array = run(pair(name, a, b, tuple(attrs.items())), (a, b))
    return result


def pair(name: str, a: Operand, b: Operand, attrs: tuple[tuple[str, Any], ...] = (), domain: str = "") -> Prepared:
    """Return the prepared operator of two operands: arrays, or scalars in NumPy."""
    key = (
        name,
        spec_of(a.dtype, ()) if a.__class__ is np.ndarray else a._spec,
        spec_of(b.dtype, ()) if b.__class__ is np.ndarray else b._spec,
        attrs,
    )
    operator = _PAIRS.get(key)
    if operator is None:
        if len(_PAIRS) >= MOST:
            _PAIRS.clear()
        operator = _PAIRS[key] = ready(name, key[1:3], attrs, domain)
    return operator


_PAIRS: dict[tuple[Any, ...], Prepared] = bounded("arrays: prepared operators of two operands", MOST, {})


def alike(*operands: Operand, floating: bool = False) -> list[Any]:
    """Operands of one element type: arrays, and scalars as NumPy arrays without axes.

    Python's numbers take the element type of the arrays, or the least sort that holds them; `floating` turns whole
    numbers into float64. Raises ShapeError where there is no common element type.
    """
    if len(operands) == 2 and not floating:  # the common cases
        x: Any = operands[0]
        y: Any = operands[1]
        if x.__class__ is Array and y.__class__ is Array and x._spec.dtype is y._spec.dtype:
            return [x, y]
        sort: Any = y.__class__
        if x.__class__ is Array and sort in _NUMBERS:
            dtype = _with_scalar(x._spec.dtype, y)
            return [x if dtype is x._spec.dtype else cast(x, dtype), scalar(y, dtype)]
    place = next((x._place for x in operands if isinstance(x, Array)), None)
    xs = [x if isinstance(x, (Array, *SCALARS)) else as_array(x, place) for x in operands]
    if not any(isinstance(x, Array) for x in xs):
        xs[0] = as_array(xs[0], place)
    dtype = common(xs)
    if floating and dtype.kind in "iub":
        dtype = np.dtype(np.float64)
    return [cast(x, dtype) if isinstance(x, Array) else scalar(x, dtype) for x in xs]


_NUMBERS = frozenset(SCALARS)
_WITH_SCALARS: dict[tuple[np.dtype[Any], type], np.dtype[Any]] = {}


def _with_scalar(dtype: np.dtype[Any], value: Scalar) -> np.dtype[Any]:
    promoted = _WITH_SCALARS.get((dtype, value.__class__))
    if promoted is None:  # of a number of Python only the sort counts
        promoted = _WITH_SCALARS[dtype, value.__class__] = together(dtype, value.__class__(0))
    return promoted


def common(xs: Sequence[Array | Scalar]) -> np.dtype[Any]:
    """The element type that these are brought to."""
    return together(*(x._spec.dtype if isinstance(x, Array) else x for x in xs))


def scalar(value: Scalar, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """A number of Python as an operand. Raises InputError where the element type does not hold it."""
    try:
        return np.asarray(value, dtype)
    except (OverflowError, TypeError) as error:
        raise InputError(f"{value} does not fit {dtype}", where="mezzo.nd", hint="cast the array first") from error


def cast(x: Array, dtype: np.dtype[Any]) -> Array:
    """The array in this element type: itself, if it has it."""
    if x._spec.dtype == dtype:
        return x
    return apply("Cast", x, to=DType.of(dtype).onnx)


def as_array(x: Any, place: Place | None = None) -> Array:
    """An array of whatever NumPy takes for one; Python's floats are float32. Raises InputError."""
    if isinstance(x, Array):
        return x
    if isinstance(x, np.ndarray | np.generic):
        if x.__class__ is not np.ndarray and np.ma.is_masked(x):
            raise InputError("some elements are masked", where="mezzo.nd", hint="fill them first: x.filled(...)")
        return adopt(copied(np.asarray(x), "asarray"), place or cpu())
    try:
        value = np.array(x)
    except ValueError as error:
        raise InputError(f"no array: {error}", where="mezzo.nd") from error
    if value.dtype.kind in "fc" and not _holds_numpy(x):
        value = value.astype(np.float32 if value.dtype.kind == "f" else np.complex64)
    return adopt(value, place or cpu())


def as_arrays(xs: Sequence[Any]) -> list[Array]:
    """Arrays of each, where the first one of them that is ours is."""
    place = next((x._place for x in xs if isinstance(x, Array)), None)
    return [as_array(x, place) for x in xs]


def _holds_numpy(x: Any) -> bool:
    while isinstance(x, list | tuple) and x:
        x = x[0]
    return hasattr(x, "dtype")


def adopt(value: Any, place: Place) -> Array:
    """An array over memory that is there, and that nobody else writes; on a GPU, a copy of what lies on the host. Bytes
    in the other order than this machine's are copied into it."""
    if isinstance(value, np.ndarray):
        value = native(value)
    if place.name != "cpu" and isinstance(value, np.ndarray):
        value = copied_to(value, place)
    array = _computed(engine(), "array", value, spec_of_value(value), place, *site())
    if RECORDING.trace is not None:
        RECORDING.trace.made(array)
    return array


# -- writing -----------------------------------------------------------------------------------------------------------


def assign(target: Array, value: Operand) -> None:
    """Write numbers into an array; they are broadcast, and cast as NumPy casts on assignment. Raises ShapeError where
    they do not fit, InputError for an array on another device."""
    if isinstance(value, SCALARS):
        source: Any = scalar(value, target._spec.dtype)
    else:
        source = numbers_for(target, value) if isinstance(value, list | tuple) else as_array(value, target._place)
        if source._place is not target._place:
            raise several_places("assignment", (target, source))
        if source.shape != target.shape and _stretched(source.shape, target.shape) != target.shape:
            raise ShapeError(
                f"{source._spec} does not fit into {target._spec}", where=f"assignment at {line_of(*site())}"
            )
    if target._place.name != "cpu":  # cast and repeated by our kernels: what is left is a copy
        source = as_array(source, target._place) if source.__class__ is np.ndarray else source
        source = cast(source, target._spec.dtype)
        source = source if source.shape == target.shape else apply("Expand", source, known(target.shape))
    if RECORDING.trace is not None:
        value = cast(as_array(source, target._place), target._spec.dtype)
        value = value if value.shape == target.shape else apply("Expand", value, known(target.shape))
        RECORDING.trace.write(target, value)
    write(target, _same, (source,), not target._view)


def numbers_for(target: Array, value: Operand) -> Array:
    """An array of what is to be written into another one, in its element type: numbers of Python are not rounded to
    float32 on the way. Raises InputError."""
    if isinstance(value, SCALARS):
        return adopt(scalar(value, target._spec.dtype), target._place)
    if isinstance(value, list | tuple) and not _holds_numpy(value):
        try:
            return adopt(np.array(value, target._spec.dtype), target._place)
        except (OverflowError, TypeError, ValueError) as error:
            raise InputError(f"no {target._spec.dtype}: {error}", where=f"assignment at {line_of(*site())}") from error
    return cast(as_array(value, target._place), target._spec.dtype)


def _stretched(*shapes: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        return None


def _same(x: Any) -> Any:
    return x


def inplace(name: str, target: Array, other: Operand, floating: bool = False, domain: str = "") -> Array:
    """`target = name(target, other)` in the memory of the target. Raises ShapeError if the result has another kind."""
    a, b = alike(target, other, floating=floating)
    operator = pair(name, a, b, domain=domain)
    if operator.outs[0] is not target._spec:
        raise ShapeError(
            f"{operator.outs[0]} does not fit in place of {target._spec}",
            where=f"{name}, called at {line_of(*site())}",
            hint="write a = a + b",
        )
    if b.__class__ is Array and b._place is not target._place:
        raise several_places(name, (target, b))
    place = target._place
    if RECORDING.trace is not None:
        RECORDING.trace.write(target, run(operator, (a, b)))
    write(target, operator.on(place), (a, b), False, name, operator.into if place.name == "cpu" else None)
    return target


def memory(x: Array) -> Any:
    """The memory of an array, once it is computed: for programs that read and write it where it lies. That of an array
    on a GPU is an array of CuPy."""
    return x.wait_to_read()._look(x._var._value)


def refuse_recorded(target: Array) -> None:
    """Raise InputError for an array that a gradient goes back through."""
    if target._origin is not None:
        raise InputError(
            f"{target.where} is changed in place while operations on it are recorded",
            where=f"called at {line_of(*site())}",
            hint="write a = a + b, or change it outside of autograd.record()",
        )


def write(
    target: Array, call: Call, given: tuple[Any, ...], whole: bool, name: str = "write", into: Call | None = None
) -> None:
    """Put what `call` makes of some operands into an array; `whole` says that nothing of what it was is left. `into`
    does so without a copy (see Prepared).

    Raises InputError while recording, for an array that a gradient goes back through.
    """
    if RECORDING.on:
        refuse_recorded(target)
    one = engine()
    target._var.edition += 1
    if one.only_calls() and all(x.__class__ is np.ndarray or x._var._failure is None for x in (*given, target)):
        try:
            _put(target, call, given, into)
        except Exception:
            pass  # pushed, it fails again, and the error is the array's
        else:
            target._var.version += 1
            return
    reads = [x._var for x in given if x.__class__ is not np.ndarray]
    reads = reads if whole else [*reads, target._var]
    one.push(_put, reads, (target._var,), name=name, args=(target, call, given, into))


def _put(target: Array, call: Call, given: tuple[Any, ...], into: Call | None) -> None:
    root = target._var.value
    if into is not None and root is not None:
        into(*map(value_of, given), target._look(root))
        return
    result = call(*map(value_of, given))
    if root is None:  # what should have made it has failed
        kind, place = target._spec, target._place
        here = place.name == "cpu"
        target._var.value = (
            np.array(np.broadcast_to(result, kind.shape), kind.dtype) if here else copied_to(result, place)
        )
    elif target._place.name == "cpu":
        np.copyto(target._look(root), result, casting="unsafe")
    else:
        from ..runtime.backends.cuda.arrays import write as write_there

        write_there(target._look(root), result)


def moved(x: Array, place: Place, copy: bool = False) -> Array:
    """The array on a device: itself if it is there and no copy is wanted."""
    if x._place is place:
        if not copy:
            return x
        if RECORDING.trace is not None:
            return x.copy()
    elif RECORDING.trace is not None:
        RECORDING.trace.broke(f"an array moves from {x._place} to {place}", "move it outside of the block")
    one = engine()
    out = Array(Variable(one, "copy", None), x._spec, place)
    call = partial(copied_to, place=place)
    work = one.push(_compute, (x._var,), (out._var,), resource="copy", name="copy", args=(call, (x,), [out]))
    out._code, out._at = work._code, work._at
    return out


def waitall() -> None:
    """Wait until all work of the engine is done. Raises the first error that has not been raised."""
    pending.flush()
    engine().wait_all()


__all__ = ["adopt", "apply", "as_array", "binary", "dtype_of", "read", "run", "unary", "waitall"]

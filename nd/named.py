"""Operators on arrays, by their names: `mz.nd.Softmax(x, axis=-1)`, as `mz.sym` has them on symbols."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from ..ops import OPS, DType
from ..ops.errors import InputError
from .array import Array
from .creation import asarray
from .running import apply
from .sites import line_of, site
from .specs import dtype_of, known

ELEMENT_TYPES = {"to", "dtype", "output_dtype"}  # attributes that are the number of an element type


def operator(name: str, domain: str = "") -> Callable[..., Any]:
    """The function of an operator: arrays, numbers, lists and None for inputs, then attributes by name.

    Numbers of Python take the element type of the first array; lists, and NumPy's scalars, are small constants of
    their own (axes, shapes). Operators of ONNX are names of `mezzo.nd` too, and so are those of a domain of your own
    if no other domain has the name. Raises InputError for an operator that is not carried.

    >>> from mezzo import nd
    >>> nd.Softmax(nd.zeros((2, 2)), axis=-1).tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    >>> nd.Reshape(nd.Clip(nd.arange(6), 1, 4), [2, -1]).shape
    (2, 3)
    >>> values, indices = nd.TopK(nd.asarray([1, 3, 2]), [2])
    >>> values.tolist(), indices.tolist()
    ([3, 2], [1, 2])
    """
    if (domain, name) not in OPS:
        raise InputError(f"there is no operator {domain or 'ai.onnx'}::{name}", where=f"called at {line_of(*site())}")
    return partial(_call, (domain, name))


def domain_of(name: str) -> str | None:
    """The domain of an operator that is called by its name alone: ONNX's own, else the one in which it was registered
    from outside; None if nobody has it. Raises AttributeError if several have."""
    if ("", name) in OPS:
        return ""
    domains = [domain for domain, op in OPS.outside() if op == name]
    if len(domains) > 1:
        first, *_ = domains
        raise AttributeError(
            f"{name!r} is an operator of {' and '.join(domains)}: say which, operator({name!r}, {first!r})"
        )
    return domains[0] if domains else None


def names() -> set[str]:
    """The operators that are called by their names alone."""
    return {op for domain, op in OPS if not domain} | {op for _, op in OPS.outside()}


def attributes(given: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as operators have them: lists as tuples, element types as ONNX's numbers.

    >>> attributes({"to": "float16", "perm": [1, 0]})
    {'to': 10, 'perm': (1, 0)}
    """
    converted: dict[str, Any] = {}
    for name, value in given.items():
        if name in ELEMENT_TYPES and not isinstance(value, int):
            converted[name] = DType.of(dtype_of(value)).onnx
        else:
            converted[name] = tuple(value) if isinstance(value, list) else value
    return converted


def _call(key: tuple[str, str], *operands: Any, **attrs: Any) -> Any:
    record, (domain, name) = OPS[key], key
    like = next((x for x in operands if isinstance(x, Array)), None)
    given = [x if x is None or isinstance(x, Array) else _operand(name, x, like) for x in operands]
    if not record.deterministic and not _known_to_repeat(key, given):
        raise InputError(
            f"{name} draws random numbers",
            where=f"called at {line_of(*site())}",
            hint="mz.random has generators for arrays; for dropout in training there is gluon.nn.Dropout",
        )
    array = next((a for a, v in attrs.items() if isinstance(v, np.ndarray)), None)
    if array is not None:
        raise InputError(
            f"{name}: an array is no attribute ({array})",
            where=f"called at {line_of(*site())}",
            hint="nd.asarray and nd.full make arrays",
        )
    outputs = attrs.pop("outputs", None) or record.results(operands, attrs)
    return apply(name, *given, domain=domain, outputs=outputs, **attributes(attrs))


def _known_to_repeat(key: tuple[str, str], given: list[Any]) -> bool:
    """Dropout outside of training is the identity."""
    return key == ("", "Dropout") and (len(given) < 3 or given[2] is None)


def _operand(name: str, x: Any, like: Array | None) -> Any:
    """Convert an operand that is no Array: a NumPy array becomes one, a number or a list of Python becomes a
    constant."""
    if isinstance(x, np.ndarray | np.generic) and x.ndim:
        return asarray(x)
    value = np.asarray(x)
    if value.dtype.kind not in "biuf":
        raise InputError(
            f"{name} of {type(x).__name__}",
            where=f"called at {line_of(*site())}",
            hint="give arrays, numbers, lists of numbers or None",
        )
    if value.dtype.kind == "b":
        return known(_nested(value), np.bool_)
    if value.ndim == 0 and like is not None and not isinstance(x, np.generic):
        if value.dtype.kind == "f" and like.dtype.kind in "biu":
            raise InputError(
                f"{x} beside an array of {like.dtype}",
                where=f"called at {line_of(*site())}",
                hint="x.astype('float32') first",
            )
        return value.astype(like.dtype) if like.dtype.kind not in "biu" else known(_nested(value), like.dtype)
    if isinstance(x, np.generic):
        return known(_nested(value), value.dtype)
    return known(_nested(value), np.float32 if value.dtype.kind == "f" else np.int64)


def _nested(value: np.ndarray[Any, Any]) -> Any:
    return value.item() if value.ndim == 0 else tuple(value.tolist())

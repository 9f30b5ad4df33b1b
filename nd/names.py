"""Names of arguments in NumPy, PyTorch and MXNet, mapped to those of functions of arrays here."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import FunctionType
from typing import Any, TypeVar

from ..ops.arguments import strange_argument
from ..ops.errors import InputError

F = TypeVar("F", bound=Callable[..., Any])
OURS = {
    "dim": "axis=", "dims": "axis=", "keepdim": "keepdims=", "ddof": "correction=", "unbiased": "correction=1",
    "out": "nothing: write what is returned, y[...] = ...", "sections": "num_outputs=", "squeeze": "squeeze_axis=",
    "ascending": "descending=, the other way round", "largest": "is_ascend=, the other way round",
    "fill": "fill_value=", "num_classes": "depth=", "lambda_": "lambd=", "slope": "negative_slope=",
    "exclude": "axis=, the axes themselves", "a_min": "min=", "a_max": "max=",
    "requires_grad": "attach_grad() of what is returned", "tau": "temperature=",
    "where": "mz.nd.where beforehand", "order": "nothing: elements lie in the order of C", "mean": "loc=",
    "std": "scale=", "casting": "astype beforehand", "sigma": "scale=", "mu": "loc=", "size": "shape=",
    "output_size": "shape=", "generator": "mz.random.seed beforehand",
}  # fmt: skip


def naming(function: F) -> F:
    """The function, that answers arguments which it has not with those that it has, and no bare TypeError."""
    code = function.__code__ if isinstance(function, FunctionType) else None
    if code is None or code.co_flags & CO_VARKEYWORDS:  # it takes all that comes
        return function
    many, all_of_them, name = code.co_argcount, code.co_argcount + code.co_kwonlyargcount, function.__name__
    places = code.co_varnames[:many]
    known = [n for n in code.co_varnames[code.co_posonlyargcount : all_of_them] if n != "self"]

    @wraps(function)
    def named(*given: Any, **options: Any) -> Any:
        try:
            return function(*given, **options)
        except TypeError:
            strange = next((n for n in options if n not in known), None)
            if strange in places:
                raise InputError(f"{strange} is given by its place", where=name, hint="without its name") from None
            if strange is not None:
                raise strange_argument(name, strange, known, OURS) from None
            if len(given) > many and not code.co_flags & CO_VARARGS:
                hint = f"give {', '.join(f'{n}=' for n in known)}" if known else "fewer of them"
                raise InputError(f"{len(given)} arguments by their places, of {many}", where=name, hint=hint) from None
            raise

    return named  # type: ignore[return-value]


def name_all(namespace: dict[str, Any], names: Iterable[str], home: str = "") -> None:
    """Have functions of a namespace answer so; `home` is where others find them."""
    for name in names:
        function = namespace[name]
        named = naming(function) if isinstance(function, FunctionType) else function
        if named is not function:
            namespace[name] = named
            named.__module__ = home or named.__module__

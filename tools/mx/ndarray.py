"""MXNet's array: ours, with what MXNet's operators and methods answer where that is another thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ... import nd as ours
from ...nd.array import Array
from ...nd.recording import RECORDING
from ...ops.errors import InputError

T = TypeVar("T")


class NDArray(Array):
    """An array whose comparisons answer 1 and 0 in its element type, whose integers have whole quotients, whose
    reductions of all axes leave one axis, and whose positions are floats.

    >>> from mezzo.compat.mxnet import nd
    >>> (nd.array([1, 2]) > 1).asnumpy(), nd.ones((2, 2)).sum().shape
    (array([0., 1.], dtype=float32), (1,))
    """

    __slots__ = ()

    def __repr__(self) -> str:
        sizes = "x".join(map(str, self.shape))
        if RECORDING.trace is not None:  # it has no numbers yet
            return f"<NDArray {sizes} @{self.context}>"
        return f"\n{self.asnumpy()}\n<NDArray {sizes} @{self.context}>"

    __str__ = __repr__

    def __reduce__(self) -> Any:
        """Copies and other processes have the numbers."""
        return _again, (self.asnumpy(),)

    __hash__ = object.__hash__  # type: ignore[assignment]

    @property
    def T(self) -> Any:  # noqa: N802
        """The axes the other way round."""
        return self.transpose()

    @property
    def grad(self) -> Any:
        return own(super().grad)

    @property
    def stype(self) -> str:
        """The kind of its storage: all elements."""
        return "default"

    def tostype(self, stype: str) -> Any:
        """The array itself. Raises InputError for another storage than `default`."""
        if stype != "default":
            raise dense_only(stype)
        return self

    def astype(self, dtype: Any, copy: bool = True) -> Any:  # type: ignore[override]
        return own(ours.astype(self, dtype, copy=copy))

    def asscalar(self) -> Any:
        """The only element, as a number of NumPy."""
        return self.asnumpy().reshape(-1)[0] if self.size == 1 else self.item()

    def copyto(self, other: Any) -> Any:
        return own(super().copyto(other))

    def __eq__(self, other: object) -> Any:
        return False if other is None else _truths("equal", self, other)

    def __ne__(self, other: object) -> Any:
        return True if other is None else _truths("not_equal", self, other)

    def __lt__(self, other: Any) -> Any:
        return _truths("less", self, other)

    def __le__(self, other: Any) -> Any:
        return _truths("less_equal", self, other)

    def __gt__(self, other: Any) -> Any:
        return _truths("greater", self, other)

    def __ge__(self, other: Any) -> Any:
        return _truths("greater_equal", self, other)

    def __truediv__(self, other: Any) -> Any:
        return quotient(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return quotient(other, self)

    def __mod__(self, other: Any) -> Any:
        return remainder(self, other)

    def __rmod__(self, other: Any) -> Any:
        return remainder(other, self)

    def __getitem__(self, key: Any) -> Any:
        """A part; of one element an axis is left."""
        part = super().__getitem__(key)
        return own(part if part.shape or not self.shape else ours.reshape(part, (1,)))

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write into a part; an array of one element fits everywhere."""
        super().__setitem__(key, ours.reshape(value, ()) if isinstance(value, Array) and value.size == 1 else value)

    def __bool__(self) -> bool:
        return bool(self.asscalar())

    def __contains__(self, value: Any) -> bool:
        return bool((self.asnumpy() == value).any())


def _again(numbers: Any) -> Any:
    return own(ours.asarray(numbers))


def dense_only(stype: Any) -> InputError:
    """The error for a storage that arrays do not have."""
    return InputError(
        f"arrays are not stored as {stype!r}",
        where="mx.nd",
        hint="leave stype out; Embedding(sparse_grad=True) is there",
    )


def own(x: T) -> T:
    """Arrays, those in lists, tuples and dicts too, as MXNet's: the same objects, with its methods."""
    if x.__class__ is Array:
        x.__class__ = NDArray  # type: ignore[assignment]
    elif isinstance(x, list | tuple):
        for part in x:
            own(part)
    elif isinstance(x, dict):
        for part in x.values():
            own(part)
    return x


def owned(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, whose arrays are MXNet's."""

    def called(*args: Any, **settings: Any) -> Any:
        return own(function(*args, **settings))

    called.__name__, called.__qualname__, called.__doc__ = function.__name__, function.__qualname__, function.__doc__
    return called


def _truths(name: str, a: Any, b: Any) -> Any:
    like = next(x for x in (a, b) if isinstance(x, Array))
    return own(ours.astype(getattr(ours, name)(a, b), like.dtype))


def quotient(a: Any, b: Any) -> Any:
    """Of integers the quotient without what is behind the point, as C has it."""
    like = next(x for x in (a, b) if isinstance(x, Array))
    a, b = whole(a, like), whole(b, like)
    result = ours.divide(a, b)
    return own(ours.astype(ours.trunc(result), like.dtype) if like.dtype.kind in "iu" else result)


def remainder(a: Any, b: Any) -> Any:
    """The remainder with the sign of the divisor; 0 where that is 0."""
    like = next(x for x in (a, b) if isinstance(x, Array))
    a, b = whole(a, like), whole(b, like)
    none = ours.equal(b, 0) if isinstance(b, Array) else ours.asarray(b == 0)
    result = ours.remainder(a, ours.where(none, 1, b) if isinstance(b, Array) else b or 1)
    return own(ours.where(none, ours.zeros_like(result), result))


def whole(x: Any, like: Array) -> Any:
    """A number beside an array of whole ones loses what is behind its point."""
    return int(x) if isinstance(x, float) and like.dtype.kind in "iu" else x


def _beside(method: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda self, other: own(method(self, whole(other, self)))


def _attach() -> None:
    """Python's operators of arrays, and methods that answer with arrays."""
    for name in "add sub mul pow".split():
        for side in ("", "r"):
            setattr(NDArray, f"__{side}{name}__", _beside(getattr(Array, f"__{side}{name}__")))
    for name in ("__matmul__", "__rmatmul__", "__neg__", "__abs__", "copy", "detach", "to_device", "as_in_context"):
        setattr(NDArray, name, owned(getattr(Array, name)))


_attach()

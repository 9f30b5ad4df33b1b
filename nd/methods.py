"""Methods of arrays, attached to the class once the functions they call are there.

`Array` itself holds data and reads it; what computes stands here, in `nd/operators.py`, and in the functions that are
methods too, under the names of MXNet's NDArray: `x.expand_dims(1)`, `x.softmax()`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

from ..ops.errors import ShapeError
from . import functions, indexing, protocols
from .array import Array
from .names import naming
from .operators import ArrayOperators, Operand
from .place import Place, place_of
from .running import apply, assign, moved


class ArrayMethods(ArrayOperators):
    """Methods of `Array` that compute. `self` is an array; it is Any where a function asks for one."""

    if TYPE_CHECKING:  # FUNCTIONS and NEURAL

        def __getattr__(self, name: str) -> Any: ...

    @property
    def T(self: Any) -> Array:  # noqa: N802 (the standard's name)
        """The matrix transposed. Raises ShapeError for other ranks."""
        if self.ndim != 2:
            raise ShapeError(f"T of {self._spec}", where="mezzo.nd", hint="permute_dims, or mT for stacks of matrices")
        return functions.permute_dims(self, (1, 0))

    @property
    def mT(self: Any) -> Array:  # noqa: N802
        """Each matrix transposed."""
        return functions.matrix_transpose(self)

    # -- elements and views -------------------------------------------------------------------------------------------

    def __getitem__(self: Any, key: Any) -> Array:
        return indexing.get(self, key)

    def __setitem__(self: Any, key: Any, value: Operand) -> None:
        indexing.put(self, key, value)

    def __iter__(self: Any) -> Iterator[Array]:
        return (self[i] for i in range(len(self)))

    def __contains__(self, value: Any) -> bool:
        return bool(functions.any(self == value))

    # -- moving and copying -------------------------------------------------------------------------------------------

    def astype(self: Any, dtype: Any, *, copy: bool = True, device: Place | None = None) -> Array:
        """The same numbers in another element type."""
        return functions.astype(self, dtype, copy=copy, device=device)

    def copy(self) -> Array:
        """A copy of its own."""
        return apply("Identity", self)

    def __copy__(self) -> Array:
        return self.copy()

    def __deepcopy__(self: Any, memo: dict[int, Any]) -> Array:
        """A copy of its own; a parameter's has a gradient of its own."""
        copied: Array = self.copy()
        if self.grad is not None:
            stype = "default" if isinstance(self.grad, Array) else "row_sparse"
            copied.attach_grad(self._origin.request, stype=stype)
        return copied

    def __reduce__(self: Any) -> Any:
        """The elements as NumPy pickles them, for programs that do. The product itself reads no pickle."""
        return functions.asarray, (self.asnumpy(),)

    def copyto(self: Any, other: Array | Place) -> Array:
        """Copy into another array of this shape, which is returned, or to a device. Both may be on different ones."""
        if isinstance(other, Place):
            return moved(self, place_of(other), copy=True)
        assign(other, moved(self, other._place))
        return other

    def to_device(self: Any, device: Place | str, /, *, stream: Any = None) -> Array:
        """Return this array if it is on the device, else a copy there."""
        return moved(self, place_of(device))

    def as_in_context(self: Any, context: Place) -> Array:
        """`to_device`, as MXNet calls it."""
        return moved(self, place_of(context))

    # -- functions with arguments of their own ------------------------------------------------------------------------

    def reshape(self: Any, *shape: Any) -> Array:
        """A copy in another shape, given as a tuple or as numbers; -1 is what is left."""
        sizes = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return functions.reshape(self, tuple(sizes))

    def sum(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        return functions.sum(self, axis=axis, keepdims=keepdims)

    def mean(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        return functions.mean(self, axis=axis, keepdims=keepdims)

    def max(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        return functions.max(self, axis=axis, keepdims=keepdims)

    def min(self, axis: Any = None, *, keepdims: bool = False) -> Array:
        return functions.min(self, axis=axis, keepdims=keepdims)

    def argmax(self, axis: int | None = None, *, keepdims: bool = False) -> Array:
        return functions.argmax(self, axis=axis, keepdims=keepdims)

    # -- gradients ----------------------------------------------------------------------------------------------------

    def attach_grad(self: Any, grad_req: str = "write", stype: str = "default") -> None:
        """Let backward write its gradient (`add`: add it) to `grad`: see `mz.autograd`."""
        from .autograd import attach_grad  # with the first gradient

        attach_grad(self, grad_req, stype=stype)

    def backward(self, out_grad: Operand = None, retain_graph: bool = False) -> None:
        """The gradients of (the sum of) this array: see `mz.autograd.backward`."""
        from .autograd import backward

        backward(self, out_grad, retain_graph)

    def detach(self: Any) -> Array:
        """The same numbers, shared, through which no gradient goes back."""
        from .autograd import detach

        return detach(self)

    # -- protocols ----------------------------------------------------------------------------------------------------

    def __array_namespace__(self, /, *, api_version: str | None = None) -> Any:
        return functions.namespace(api_version)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        return protocols.ufunc(ufunc, method, inputs, out, options)

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return protocols.function(function, args, kwargs)


FUNCTIONS: Final = """
    abs all any argmin argsort broadcast_to ceil clip cos dot exp expand_dims expm1 flip floor log log1p log2 log10 norm
    ones_like prod reciprocal repeat round sign sin sort sqrt square squeeze std take tan tanh tile trunc var zeros_like
""".split()
NEURAL: Final = """
    batch_dot broadcast_like cumsum flatten gather_nd log_softmax logsumexp one_hot pick relu reshape_like rsqrt sigmoid
    slice_axis softmax softmin split swapaxes topk transpose
""".split()


def attach(functions: Mapping[str, Any]) -> None:
    """Give the class its methods: as members of its own, so that a call costs what it costs without this step.
    `functions` are those of the namespace."""
    for owner in (ArrayOperators, ArrayMethods):
        for name, member in vars(owner).items():
            if isinstance(member, FunctionType):
                setattr(Array, name, member if name.startswith("_") else naming(member))
            elif isinstance(member, property):
                setattr(Array, name, member)
    for name in (*FUNCTIONS, *NEURAL):
        setattr(Array, name, functions[name])

"""Parameters: arrays that blocks own, with their gradients; their shapes may be inferred from the first input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..nd.array import Array
from ..nd.autograd import attach_grad
from ..nd.place import Place, place_of
from ..nd.recording import RECORDING
from ..nd.running import as_array, assign
from ..nd.sparse import RowSparse
from ..ops.errors import InputError
from . import initializer
from .initializer import Initializer


class Parameter:
    """A trainable array (`grad_req` write or add), or a state that only runs change (`null`).

    Sizes of 0 in `shape` are open until the first input tells them. `lr_mult` and `wd_mult` weigh the optimizer's rate
    and decay. With the `grad_stype` row_sparse its gradient is a RowSparse (see mz.autograd.attach_grad).

    >>> p = Parameter("weight", shape=(2, 3), init="ones")
    >>> p.initialize()
    >>> p.data().asnumpy().sum()
    np.float32(6.0)
    """

    def __init__(
        self,
        name: str = "weight",
        *,
        shape: Sequence[int] | None = None,
        dtype: Any = "float32",
        init: Initializer | str | None = None,
        grad_req: str = "write",
        lr_mult: float = 1.0,
        wd_mult: float = 1.0,
        grad_stype: str = "default",
    ) -> None:
        self.name, self.dtype, self.init = name, np.dtype(dtype), init
        self.shape = None if shape is None else tuple(int(n) for n in shape)
        self.lr_mult, self.wd_mult, self.grad_stype = lr_mult, wd_mult, grad_stype
        self._request = grad_req
        self._data: Array | None = None
        self._waits: tuple[Initializer, Place] | None = None  # for a shape

    def __repr__(self) -> str:
        return f"Parameter({self.name}, shape={self.shape}, dtype={self.dtype})"

    @property
    def grad_req(self) -> str:
        """The effect of backward on the gradient: write, add, or null."""
        return self._request

    @grad_req.setter
    def grad_req(self, request: str) -> None:
        self._request = request
        if self._data is not None:
            attach_grad(self._data, request, stype=self.grad_stype)

    @property
    def known(self) -> bool:
        """True if every size is known."""
        return self.shape is not None and all(self.shape)

    def initialize(
        self,
        init: Initializer | str | None = None,
        ctx: Place | str | None = None,
        default_init: Initializer | str = "uniform",
        force_reinit: bool = False,
    ) -> None:
        """Make its array: by `init`, else its own initialiser, else `default_init`; at the first input, if its shape is
        open. One that has an array keeps it, but for `force_reinit`."""
        if self._data is not None and not force_reinit:
            return
        chosen = initializer.create(init if self.init is None else self.init, default_init)
        self._waits = (chosen, place_of(ctx))
        if self.known:
            self._make()

    def finish(self, shape: Sequence[int]) -> None:
        """Tell the sizes that were open. Raises InputError where they do not fit those that are known."""
        sizes = tuple(int(n) for n in shape)
        known = self.shape or (0,) * len(sizes)
        if len(known) != len(sizes) or any(a and a != b for a, b in zip(known, sizes, strict=True)):
            raise InputError(f"{self.name!r} is {known}, and the input asks for {sizes}", where="Parameter")
        self.shape = sizes
        if self._waits is not None and self._data is None:
            self._make()

    def _make(self) -> None:
        assert self._waits is not None
        assert self.shape is not None
        init, place = self._waits
        self._hold(init(self.name, self.shape, self.dtype, place))

    def _hold(self, data: Array) -> None:
        self._data, self._waits = data, None
        if self._request != "null":
            attach_grad(data, self._request, stype=self.grad_stype)

    def data(self, ctx: Place | None = None) -> Array:
        """Return the array. Raises InputError before there is one."""
        if RECORDING.trace is not None and (standing := RECORDING.trace.data(self)) is not None:
            return standing
        if self._data is None:
            if self._waits is not None:
                raise InputError(
                    f"the shape of {self.name!r} {self.shape} is not known yet", where="Parameter",
                    hint="run the block on an input once, or give the sizes of its inputs (in_units=, in_channels=)",
                )  # fmt: skip
            raise InputError(f"{self.name!r} has no numbers", where="Parameter", hint="call initialize() of its block")
        return self._data

    def list_data(self) -> list[Array]:
        return [self.data()]

    def grad(self) -> Any:
        """The gradient: an Array, or a RowSparse. Raises InputError if the parameter has none."""
        grad = self.data().grad if self._data is None else self._data.grad
        if grad is None:
            raise InputError(f"{self.name!r} has no gradient: grad_req is {self._request}", where="Parameter")
        return grad

    def list_grad(self) -> list[Any]:
        return [self.grad()]

    def zero_grad(self) -> None:
        """Set its gradient to zero."""
        if self._request != "null":
            self.set_grad(0)

    def set_grad(self, value: Any) -> None:
        """Write its gradient."""
        grad = self.grad()
        if isinstance(grad, RowSparse):
            grad.assign(value)
        else:
            assign(grad, value)

    def set_data(self, data: Any) -> None:
        """Take other numbers, in the memory that it has. Raises InputError for another shape."""
        given = as_array(data)
        if self._data is None:
            self.finish(given.shape)
            self._hold(as_array(given.asnumpy().astype(self.dtype)))
            return
        if given.shape != self.shape:
            raise InputError(f"{self.name!r} is {self.shape}, and is given {given.shape}", where="Parameter")
        assign(self._data, given)

    def reset_ctx(self, ctx: Place | str) -> None:
        """Move to a device."""
        self._hold(self.data().to_device(ctx))

    def cast(self, dtype: Any) -> None:
        """Be of another element type from now on."""
        self.dtype = np.dtype(dtype)
        if self._data is not None:
            self._hold(self._data.detach().astype(self.dtype))

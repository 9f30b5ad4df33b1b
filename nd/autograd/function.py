"""Functions with a user-defined gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ops.errors import InputError
from ..array import Array
from ..recording import RECORDING
from ..running import adopt
from ..sites import line_of, site
from .tape import mode, note, plain, tracked


class Function:
    """An operation in array code, with its gradient: subclass it, and call an instance once.

    >>> from mezzo import nd
    >>> from mezzo.nd.autograd import record
    >>> class Cube(Function):
    ...     def forward(self, x):
    ...         self.save_for_backward(x)
    ...         return x * x * x
    ...     def backward(self, dy):
    ...         (x,) = self.saved_tensors
    ...         return dy * 3 * x * x
    >>> x = nd.asarray(2.0)
    >>> x.attach_grad()
    >>> with record():
    ...     y = Cube()(x)
    >>> y.backward()
    >>> x.grad.item()
    12.0
    """

    _saved: tuple[Array, ...] = ()

    def save_for_backward(self, *arrays: Array) -> None:
        """Keep arrays for `backward`."""
        self._saved = tuple(map(plain, arrays))

    @property
    def saved_tensors(self) -> tuple[Array, ...]:
        return self._saved

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """The results: one array, or a tuple. Nothing inside is recorded."""
        raise NotImplementedError

    def backward(self, *dys: Any, **options: Any) -> Any:
        """Return the gradients of the inputs from those of the results, one for each input (None for none)."""
        raise NotImplementedError

    def __call__(self, *inputs: Array) -> Any:
        if RECORDING.trace is not None:
            RECORDING.trace.broke(
                "an autograd.Function is a part of it", "keep that part imperative, or write it with operators"
            )
        with mode(on=False, training=None):
            results = self.forward(*inputs)
        outs = [results] if isinstance(results, Array) else list(results)
        if any(o is x for o in outs for x in inputs):
            raise InputError("forward hands on an input", where=line_of(*site()), hint="return x.copy()")
        if RECORDING.on and tracked(inputs):
            kept = [*map(plain, outs)]
            note(type(self).__name__, None, inputs, outs, back=lambda dys: self._back(inputs, kept, dys))
        return outs[0] if isinstance(results, Array) else tuple(outs)

    def _back(self, inputs: Sequence[Array], outs: Sequence[Array], dys: Sequence[Array | None]) -> list[Any]:
        filled = [
            adopt(np.zeros(o.shape, o.dtype), o._place) if d is None else d for o, d in zip(outs, dys, strict=True)
        ]
        answer = self.backward(*filled)
        gradients = [answer] if isinstance(answer, Array) or answer is None else list(answer)
        if len(gradients) != len(inputs):
            raise InputError(
                f"backward of {type(self).__name__} returns {len(gradients)} gradients for {len(inputs)} inputs",
                where="autograd.Function",
            )
        for x, d in zip(inputs, gradients, strict=True):
            if d is not None and d.shape != x.shape:
                raise InputError(
                    f"backward of {type(self).__name__} returns a {d._spec} for a {x._spec}", where="autograd.Function"
                )
        return gradients

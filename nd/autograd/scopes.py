"""The public functions: record, pause, train, attach, backward, grad."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ...ops.errors import InputError
from ...ops.types import differentiable
from ..array import Array
from ..recording import RECORDING
from ..running import adopt, as_array, cast
from ..sparse import no_rows
from .gradients import back, into_leaves
from .tape import Leaf, mode, plain

REQUESTS = ("write", "add", "null")
STYPES = ("default", "row_sparse")


def record(train_mode: bool = True) -> AbstractContextManager[None]:
    """Inside, operations on arrays that lead back to `attach_grad` are remembered, and layers train (`train_mode`)."""
    return mode(True, train_mode)


def pause(train_mode: bool = False) -> AbstractContextManager[None]:
    """Inside, nothing is remembered."""
    return mode(False, train_mode)


def train_mode() -> AbstractContextManager[None]:
    """Inside, layers behave as in training (dropout, batch statistics)."""
    return mode(None, True)


def predict_mode() -> AbstractContextManager[None]:
    """Inside, layers behave as in prediction."""
    return mode(None, False)


def is_recording() -> bool:
    trace = RECORDING.trace
    return RECORDING.on if trace is None or RECORDING.inside is not None else trace.recorded()


def is_training() -> bool:
    return RECORDING.training


def attach_grad(x: Array, grad_req: str = "write", grad: Array | None = None, stype: str = "default") -> None:
    """Let an array have a gradient, in `x.grad`: each backward writes it anew (`write`), adds to it (`add`), or there
    is none (`null`). With the `stype` row_sparse it is a RowSparse: of what Gather has read along the first axis the
    rows, of anything else all of them. The gradient of a complex number is dL/dRe + 1j * dL/dIm. How the array came to
    be is forgotten. Raises InputError for integers, unknown requests and stypes, and rows of a single number.
    """
    if stype not in STYPES or (stype != "default" and (grad is not None or not x.shape)):
        raise InputError(f"a gradient of stype {stype!r} for {x.where}", where="attach_grad", hint=" or ".join(STYPES))
    if grad_req not in REQUESTS:
        raise InputError(f"grad_req {grad_req!r} is none of {', '.join(REQUESTS)}", where="attach_grad")
    if not differentiable(x._spec.tensor):
        raise InputError(f"{x.where}: only floats have gradients", where="attach_grad", hint="astype('float32')")
    if grad_req == "null":
        x._origin = None
        return
    if stype != "default":
        x._origin = Leaf(no_rows(x), grad_req)
        return
    if grad is None:
        grad = adopt(np.zeros(x.shape, x.dtype), x._place)
    elif (grad.shape, grad.dtype) != (x.shape, x.dtype):
        raise InputError(f"a gradient {grad._spec} for {x.where}", where="attach_grad")
    x._origin = Leaf(grad, grad_req)


def mark_variables(variables: Any, gradients: Any, grad_reqs: Any = "write") -> None:
    """`attach_grad` for several arrays, with the arrays that their gradients go to."""
    several = [variables] if isinstance(variables, Array) else list(variables)
    into = [gradients] if isinstance(gradients, Array) else list(gradients)
    requests = [grad_reqs] * len(several) if isinstance(grad_reqs, str) else list(grad_reqs)
    for x, g, r in zip(several, into, requests, strict=True):
        attach_grad(x, r, g)


def detach(x: Array) -> Array:
    """The same numbers, shared, through which no gradient goes back."""
    out = plain(x)
    if RECORDING.trace is not None:
        RECORDING.trace.stopped(out)
    return out


def backward(heads: Any, head_grads: Any = None, retain_graph: bool = False, train_mode: bool = True) -> None:
    """The gradients of the sum of `heads` (weighed by `head_grads`) into the arrays that were attached.

    What was kept for the way back is let go of, but for `retain_graph`. Raises InputError where nothing leads back.
    """
    several, weights = _heads(heads, head_grads)
    into_leaves(back(several, weights, retain=retain_graph, create=False))


def grad(
    heads: Any,
    variables: Any,
    head_grads: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool = False,
    train_mode: bool = True,
) -> Any:
    """The gradients of `heads` to `variables`, as arrays; `x.grad` stays as it is. With `create_graph` they are
    recorded, and can be differentiated again.

    >>> from mezzo import nd
    >>> x = nd.asarray(3.0)
    >>> x.attach_grad()
    >>> with record():
    ...     y = x * x * x
    ...     slope = grad(y, x, create_graph=True)
    >>> slope.backward()
    >>> slope.item(), x.grad.item()
    (27.0, 18.0)
    """
    several, weights = _heads(heads, head_grads)
    one = isinstance(variables, Array)
    wanted: Sequence[Array] = [variables] if one else list(variables)
    for x in wanted:
        if x._origin is None:
            raise InputError(f"{x.where} was not recorded, and has no attach_grad()", where="autograd.grad")
    keep = create_graph if retain_graph is None else retain_graph
    sums = back(several, weights, retain=keep, create=create_graph, wanted=[x._origin for x in wanted if x._origin])
    gradients = []
    for x in wanted:
        assert x._origin is not None
        gradient = sums.of.get(x._origin)
        gradients.append(adopt(np.zeros(x.shape, x.dtype), x._place) if gradient is None else gradient)
    return gradients[0] if one else gradients


def _heads(heads: Any, head_grads: Any) -> tuple[list[Array], list[Any] | None]:
    several = [heads] if isinstance(heads, Array) else list(heads)
    if head_grads is None:
        return several, None
    given = [head_grads] if isinstance(heads, Array) else list(head_grads)
    weights = []
    for head, g in zip(several, given, strict=True):
        weight = None if g is None else cast(as_array(g, head._place), head.dtype)
        if weight is not None and weight.shape != head.shape:
            raise InputError(f"a gradient {weight._spec} for {head.where}", where="backward")
        weights.append(weight)
    return several, weights

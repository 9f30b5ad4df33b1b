"""Arrays of `mz.nd` that lie on GPUs, for the stores of one process, which keep values in memory of the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ops.types import Array
from ..runtime.engine import Ordered

HostCopies = list[tuple[Any, Array]]  # arrays of GPUs, and the array of the host that is filled for each


def to_host(given: Any, together: bool) -> Any:
    """Values, or lists of them, with those of GPUs as arrays of the host. With `together` a list of values of GPUs is
    added up on the first one's GPU, in the order of the list, and comes down as one."""
    if _lies_there(given):
        return given.asnumpy()
    if not isinstance(given, list | tuple):
        return given
    if together and len(given) > 1 and all(_lies_there(x) for x in given) and len({_kind(x) for x in given}) == 1:
        total, *others = given
        for other in others:
            total = total + other.to_device(total.device)
        return total.asnumpy()
    return [to_host(x, together) for x in given]


def host_copies(out: Any, copies: HostCopies) -> Any:
    """The arrays to fill, with one of the host for each of a GPU, which is added to `copies`."""
    if _lies_there(out):
        copies.append((out, np.empty(out.shape, out.dtype)))
        return copies[-1][1]
    return [host_copies(x, copies) for x in out] if isinstance(out, list | tuple) else out


def copy_back(copies: HostCopies) -> None:
    """Fill the arrays of GPUs with what has come."""
    for array, came in copies:
        array[...] = came


def _lies_there(given: Any) -> bool:
    return isinstance(given, Ordered) and given.device.name != "cpu"


def _kind(array: Any) -> Any:
    return array.shape, array.dtype

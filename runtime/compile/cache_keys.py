"""Cache keys of kernel requests: a network asks for the same kernel for many of its nodes."""

from __future__ import annotations

from typing import Final

import numpy as np

from ...ops import Tensor, Type
from ..caches import CacheKey
from .kernel import KernelRequest

FEW: Final = 16  # elements of which kernels look at the values


def cache_key(request: KernelRequest) -> CacheKey | None:
    """Return the key of everything that a choice depends on: all but the names of values and the elements of large
    ones. None if that cannot be compared: operators of users, whose records change, and nodes with bodies or arrays."""
    if not request.keys:
        request.keys.append(_key(request))
    key: CacheKey | None = request.keys[0]
    return key


def kind_of(request: KernelRequest) -> CacheKey | None:
    """Return the part of the key that depends on no types."""
    node = request.node
    if node.domain not in ("", "mezzo"):
        return None
    try:
        return CacheKey(
            node.domain,
            node.op,
            tuple(sorted(node.attrs.items())),
            tuple(map(node.inputs.index, node.inputs)),
            node.wanted,
            tuple(request.constants),
            request.target,
        )
    except TypeError:
        return None


def _key(request: KernelRequest) -> CacheKey | None:
    kind, types = kind_of(request), (*request.inputs, *request.outputs)
    if kind is None:
        return None
    known = (t.forget() if isinstance(t, Tensor) and t.value is not None else t for t in types)
    try:
        return CacheKey(kind, *known, *map(few_elements, request.inputs))
    except TypeError:
        return None


def few_elements(type: Type | None) -> bytes | bool:
    """The elements of a small value; of others, whether they are known."""
    if type is None or not isinstance(type, Tensor) or (value := type.value) is None:
        return False
    return np.asarray(value).tobytes() if np.size(value) <= FEW else True

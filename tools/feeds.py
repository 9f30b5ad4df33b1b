"""Inputs for a model from its own signature: sizes for unknown dims, random elements."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..ops import DType, Tensor
from ..ops.errors import InputError
from ..runtime.execution.session import Session
from .choices import choices


def parse_sizes(given: Iterable[str]) -> dict[str, str]:
    """`name=text` arguments as a dict; InputError for anything else."""
    pairs = {}
    for text in given:
        name, equals, value = text.rpartition("=")
        if not equals or not name:
            raise InputError(f"{text!r} is not NAME=VALUE", hint="write for example image=1,3,224,224")
        pairs[name] = value
    return pairs


def shapes(session: Session, given: Mapping[str, str]) -> dict[str, tuple[int, ...]]:
    """A shape for each tensor input.

    `given` maps an input's name to its whole shape (`"1,3,224,224"`), or the name of a dim to its size (`"8"`). What
    neither says is 1.
    """
    sizes: dict[str, tuple[int, ...]] = {}
    for port in session.inputs:
        if not isinstance(port.type, Tensor):
            raise InputError(f"input {port} is no tensor", hint="feed it from Python with Session.run")
        if port.name in given:
            texts = [n for n in given[port.name].replace("x", ",").split(",") if n]
            sizes[port.name] = tuple(_size(f"{port.name}={given[port.name]}", n, "1,3,224,224") for n in texts)
        else:
            dims = port.type.dims or ()
            sizes[port.name] = tuple(d if isinstance(d, int) else _dim(d, given) for d in dims)
    known = {p.name for p in session.inputs} | {
        d for p in session.inputs if isinstance(p.type, Tensor) for d in p.type.dims or () if isinstance(d, str)
    }
    unknown = [n for n in given if n not in known]
    if unknown:
        raise InputError(f"there is no input or dim {unknown[0]!r}", hint=f"there are {', '.join(sorted(known))}")
    return sizes


def _dim(name: str | None, given: Mapping[str, str]) -> int:
    """The size that is given for a dim, or 1."""
    text = None if name is None else given.get(name)
    return 1 if text is None else _size(f"{name}={text}", text, "8")


def _size(argument: str, text: str, example: str) -> int:
    """The size that an argument gives."""
    if not text.strip().isdecimal():
        name = argument.partition("=")[0]
        raise InputError(f"{argument}: {text!r} is no size", hint=f"give whole numbers from 0 on: {name}={example}")
    return int(text)


def random_feeds(session: Session, sizes: Mapping[str, tuple[int, ...]], seed: int = 0) -> dict[str, Any]:
    """Arrays of these shapes: uniform in 0..1 for floats, digits for strings, 0 or 1 for booleans and for integers of
    which the graph tells nothing (see tools/choices.py)."""
    rng, meant = np.random.default_rng(seed), choices(session.graph)
    feeds: dict[str, Any] = {}
    for port in session.inputs:
        if port.name in session.signature.defaults:
            continue
        assert isinstance(port.type, Tensor)
        shape, dtype = sizes[port.name], port.type.dtype
        if dtype is DType.STRING:
            feeds[port.name] = rng.integers(0, 10, shape).astype(str).astype(object)
        elif port.name in meant:
            feeds[port.name] = np.asarray(rng.choice(meant[port.name], shape)).astype(dtype.numpy)
        elif dtype.integer or dtype is DType.BOOL:
            feeds[port.name] = rng.integers(0, 2, shape).astype(dtype.numpy)
        else:
            feeds[port.name] = rng.random(shape, np.float32).astype(dtype.numpy)
    return feeds

"""Feeds that ONNX Runtime takes and our sessions do not: values, texts that are objects or bytes, one element for a
scalar, nothing for an optional, and sizes of one name that differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ...ops import DType, Map, Optional, Tensor, Type
from ...runtime.compile.program import Port
from ...runtime.ir.graph import Graph
from .values import OrtValue


def odd(value: Any) -> bool:
    """True for a feed that no session takes as it is: a value, or an array of objects or of raw bytes."""
    kind = value.__class__
    return kind is OrtValue or (kind is np.ndarray and (value.dtype.hasobject or value.dtype.type is np.void))


def plain(value: Any) -> Any:
    """Feed of a session: the array of a value, and texts of objects and bytes that are none, as ONNX Runtime makes
    them."""
    if value.__class__ is OrtValue:
        return value._value
    if not odd(value) or value.dtype.names is not None:
        return value
    texts = np.empty(value.shape, object)
    for i, x in enumerate(value.flat):
        x = x.tobytes() if isinstance(x, np.void) else x
        texts.flat[i] = x if isinstance(x, (str, bytes)) else str(x)
    return texts


def loose(ports: Iterable[Port]) -> dict[str, Type]:
    """The inputs that are scalars, of which ONNX Runtime looks at no rank, or optional, which it lets be left out."""
    return {p.name: p.type for p in ports if isinstance(p.type, Optional) or getattr(p.type, "dims", None) == ()}


def fitted(feeds: Mapping[str, Any], inputs: Mapping[str, Type]) -> Mapping[str, Any]:
    """The feeds with None for an optional input that is left out, and scalars of arrays of one element.

    >>> from mezzo.ops.types import f32
    >>> fitted({"x": np.ones((1, 1), np.float32)}, {"x": f32()})["x"].shape
    ()
    """
    changed: dict[str, Any] = {}
    for name, type in inputs.items():
        if name not in feeds:
            if isinstance(type, Optional):
                changed[name] = None
        elif isinstance(type, Tensor):
            value = feeds[name]
            if isinstance(value, (list, tuple)) and len(value) == 1:
                value = np.asarray(value, type.dtype.numpy)
            if isinstance(value, np.ndarray) and value.ndim and value.size == 1:
                changed[name] = value.reshape(())
    return {**feeds, **changed} if changed else feeds


def differing(feeds: Mapping[str, Any], ports: Iterable[Port]) -> str:
    """Tell the first dim whose name stands in several inputs, which are fed different sizes of it; "" if there is
    none. ONNX Runtime does not compare them."""
    sizes: dict[str, tuple[int, str]] = {}
    for port in ports:
        dims, shape = getattr(port.type, "dims", None), getattr(feeds.get(port.name), "shape", None)
        if dims is None or not isinstance(shape, tuple) or len(dims) != len(shape):
            continue
        for dim, size in zip(dims, shape, strict=True):
            if isinstance(dim, str) and (first := sizes.setdefault(dim, (size, port.name)))[0] != size:
                return f"the dim {dim!r} is {first[0]} in the input {first[1]!r} and {size} in {port.name!r}"
    return ""


def in_words_of_onnxruntime(feeds: Mapping[str, Any], ports: Iterable[Port]) -> str:
    """Tell what is wrong with feeds in the words that packages and tests look for; "" if they look for none."""
    ports = list(ports)
    if lacks := [p.name for p in ports if p.name not in feeds]:
        return f"Required inputs ({lacks}) are missing from input feed ({[*feeds]})"
    maps = {p.name: p.type.key for p in ports if isinstance(p.type, Map)}
    for name, dtype in maps.items():
        kinds: Any = str if dtype is DType.STRING else (int, np.integer)
        for key in feeds[name] if isinstance(feeds[name], dict) else ():
            if not isinstance(key, kinds):
                kind = "std::string" if kinds is str else "int64_t"
                return f"Unexpected key type  {key.__class__}, it cannot be linked to C type {kind}"
    return ""


def unnamed(graph: Graph) -> Graph:
    """The graph with inputs whose dims have no names, so that each may have a size of its own."""
    types = {name: graph.types[name] for name in graph.inputs if name in graph.types}
    for name, known in types.items():
        if isinstance(known, Tensor) and known.dims is not None:
            types[name] = known.of([None if isinstance(d, str) else d for d in known.dims])
    made = {output for node in graph.nodes for output in node.outputs}  # inferred again, from the inputs
    return graph.but(types={n: t for n, t in graph.types.items() if n not in made} | types)

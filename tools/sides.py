"""Sources of a model's values: our runtime, and the record of an earlier run."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..ops.budget import Budget
from ..ops.errors import BudgetError, InputError
from ..ops.types import Array, DType
from ..runtime.execution.session import Session
from ..runtime.files import replacing
from ..runtime.ir.graph import Graph
from ..runtime.version import __version__
from .report import size

META = "mezzo/recorded"  # the entry of a recording that says what the others are


class Side(Protocol):
    """One side of a comparison. `about` describes it: version, provider, precision."""

    @property
    def about(self) -> str: ...
    @property
    def values(self) -> AbstractSet[str]:
        """The names of values that can be asked for besides the outputs."""
        ...

    def run(self, feeds: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """Return the values of these names for these inputs."""
        ...


class Ours:
    """Our runtime, with its kernels and the defaults of `mezzo.load`."""

    def __init__(self, graph: Graph, label: str = "", budget: Budget | None = None) -> None:
        self.graph, self.budget = graph, Budget.of(budget)
        self.about = " ".join(filter(None, (f"mezzo {__version__}, cpu, fp32", label and f"({label})")))
        self.values = frozenset(o for n in graph.nodes for o in n.outputs if o)
        self.session = Session(graph, budget=budget, instances=1)

    def run(self, feeds: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        if tuple(names) == self.graph.outputs:
            return self.session.run(feeds)
        session = Session(self.graph.but(outputs=tuple(names)), budget=self.budget, instances=1)
        return session.run(feeds)


def digests(graph: Graph) -> dict[str, str]:
    """Return the digest of each weight by name; a changed digest is a changed weight."""
    return {
        name: hashlib.blake2b(np.ascontiguousarray(a).reshape(-1).view(np.uint8).data, digest_size=16).hexdigest()
        for name, a in constants(graph).items()
        if np.asarray(a).dtype != object
    }


def constants(graph: Graph) -> dict[str, Array]:
    """Initialisers and Constant nodes, those of subgraphs included."""
    arrays = dict(graph.initializers)
    for part, node in graph.walk():
        arrays |= part.initializers
        if (node.domain, node.op) == ("", "Constant") and isinstance(node.attrs.get("value"), np.ndarray):
            arrays[node.outputs[0]] = node.attrs["value"]
    return arrays


def write_recording(
    path: Path, feeds: Mapping[str, Any], values: Mapping[str, Any], graph: Graph, *, limit: int
) -> int:
    """Store inputs and values, and what tells whether weights have changed; returns how many bytes. Raises BudgetError
    above `limit`, before anything is written."""
    arrays = {n: np.asarray(a) for n, a in {**feeds, **values}.items() if isinstance(a, np.ndarray | np.generic)}
    total = sum(a.nbytes for a in arrays.values())
    check_recording(total, limit, str(path))
    meta = {
        "made_by": f"mezzo {__version__}",
        "types": {n: str(DType.of(a.dtype)) for n, a in arrays.items()},
        "inputs": sorted(feeds),
        "outputs": list(graph.outputs),
        "weights": digests(graph),
    }
    with (
        replacing(path, "npz", "the recording") as handle,
        zipfile.ZipFile(handle, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
    ):
        for name, array in {META: np.array(json.dumps(meta)), **arrays}.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array(entry, _storable(array), allow_pickle=False)
    return total


def check_recording(total: int, limit: int, where: str) -> None:
    """Raise BudgetError if values of so many bytes are more than is to be recorded."""
    if total > limit:
        raise BudgetError(
            f"all values together take {size(total)}, more than {size(limit)}",
            where=where,
            hint="raise --record-limit, or make the inputs smaller with --dim",
        )


def _storable(array: Array) -> Array:
    """The array in a type that .npy files have: strings as text, narrow floats as their bits."""
    if array.dtype == object:
        return array.astype(np.str_)
    return array if array.dtype.isbuiltin == 1 or array.dtype.kind == "U" else array.view(f"u{array.dtype.itemsize}")


class Recorded:
    """Values in an .npz file: a recording of ours, or any arrays under the names of inputs and outputs."""

    def __init__(self, path: Path, inputs: Iterable[str]) -> None:
        try:
            self._stored = np.load(path, allow_pickle=False)
            names = set(self._stored.files)
            meta = json.loads(str(self._stored[META])) if META in names else {}
        except Exception as error:  # zipfile, zlib and NumPy raise all kinds for damage
            raise InputError(
                f"it is no .npz file: {error}", where=str(path), hint="make one with --record, or with numpy.savez"
            ) from error
        self.path, self._types = path, meta.get("types", {})
        self.weights: dict[str, str] = meta.get("weights", {})
        self.about = f"{path.name}, recorded by {meta.get('made_by', 'others')}"
        self.values = frozenset(names - {META, *inputs})
        self.feeds = {n: self._value(n) for n in inputs if n in names}

    def run(self, feeds: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
        lost = [n for n in names if n not in self.values]
        if lost:
            raise InputError(
                f"it holds no value {lost[0]!r}", where=str(self.path), hint="record it again: the names have changed"
            )
        return {n: self._value(n) for n in names}

    def _value(self, name: str) -> Array:
        try:
            array = self._stored[name]
        except Exception as error:
            raise InputError(
                f"{name!r} cannot be read: {error}", where=str(self.path), hint="is the file damaged? record it again"
            ) from error
        known = next((d for d in DType if str(d) == self._types.get(name)), None)
        if array.dtype.kind in "US":
            return array.astype(object)
        return array if known is None or known.numpy == array.dtype else array.view(known.numpy)

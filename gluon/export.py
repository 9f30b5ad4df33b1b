"""Export of a block as one graph, for inputs of fixed sizes, or with open sizes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import nd
from ..exporters import save_onnx
from ..nd.array import Array
from ..ops import DType, Tensor
from ..ops.errors import InputError, MezzoError
from ..runtime.execution.functions import save_compiled
from ..runtime.ir.autodiff import fresh
from ..runtime.ir.graph import Graph, Node
from ..runtime.ir.infer import infer
from ..runtime.ir.prune import prune
from ..runtime.ir.typed import TypedBuilder
from ..runtime.passes.expand import expand
from ..runtime.passes.identities import PAIRS
from ..runtime.passes.rewrite import rewrite
from .guards import Guards
from .recorder import GraphBreak
from .trace import Trace, trace

if TYPE_CHECKING:
    from .hybrid import HybridBlock

Names = Mapping[int, str]  # of axes
Dynamic = Names | Mapping[int, Names] | Mapping[str, Names] | Mapping[int | str, Names]
Sizes = tuple[int, ...]  # one for each open name
MOST = 4  # open sizes: each doubles the number of traces


def save(graph: Graph, path: str | os.PathLike[str], opset: int | None) -> None:
    """Write a graph to `.mezzo`, where a path says so, else to ONNX."""
    if str(path).endswith(".mezzo"):
        save_compiled(graph, path)
    else:
        save_onnx(graph, path, opset=opset)


def exported(block: HybridBlock, inputs: Sequence[Array], dynamic: Dynamic) -> Graph:
    """The graph of a block, whose outputs are `output0`, ...; see HybridBlock.export."""
    opened = _opened(block, inputs, dynamic)
    return _plain(block, inputs) if not opened else _Open(block, inputs, opened).graph()


def _plain(block: HybridBlock, inputs: Sequence[Array]) -> Graph:
    """The graph for inputs of these sizes."""
    params = block.collect_params()
    try:
        read, way, _ = trace(block.forward, list(inputs), params, cuts=False)
    except GraphBreak as error:
        raise InputError(error.reason, where=error.where, hint=error.remedy) from None
    made = Trace(read, params, Guards())
    made.add(way)
    traced = way[0].traced
    assert traced is not None
    graph = traced.graph
    known = {n: p.data().detach().asnumpy() for n, p in params.items() if n in graph.inputs}
    known |= {n: x.asnumpy() for n, x in traced.captured.items()}
    graph = graph.but(
        inputs=tuple(i for i in graph.inputs if i not in known),
        outputs=graph.outputs[: traced.count],
        initializers={**graph.initializers, **known},
        name=type(block).__name__,
    )
    return prune(_apart(_renamed(graph, {o: f"output{i}" for i, o in enumerate(graph.outputs)}))).verify()


def _apart(graph: Graph) -> Graph:
    """The graph without complex numbers that are put together and taken apart again: ONNX has hardly any."""
    written = expand(graph, lambda n: (n.domain, n.op) == ("mezzo", "Conj"), graph.types)
    return rewrite(graph if written is graph else infer(written), PAIRS)


def _renamed(graph: Graph, names: dict[str, str]) -> Graph:
    """The graph with other names for its outputs."""
    nodes = tuple(replace(n, outputs=tuple(names.get(o, o) for o in n.outputs)) for n in graph.rename(names).nodes)
    types = {names.get(n, n): t for n, t in graph.types.items()}
    return graph.but(nodes=nodes, outputs=tuple(names.get(o, o) for o in graph.outputs), types=types)


def _opened(block: HybridBlock, inputs: Sequence[Array], dynamic: Dynamic) -> dict[int, dict[int, str]]:
    """The names of open axes, by the number of the input."""
    given: Any = dynamic
    if given and all(isinstance(name, str) for name in given.values()):
        if len(inputs) != 1:
            raise _refused(block, f"{len(inputs)} inputs", 'say which: dynamic={0: {0: "batch"}, 1: {0: "batch"}}')
        given = {0: given}
    made: dict[int, dict[int, str]] = {}
    for which, axes in given.items():
        number = which if isinstance(which, int) else int(which[1:]) if which[1:].isdecimal() else -1
        if not 0 <= number < len(inputs) or (isinstance(which, str) and which[:1] != "x"):
            raise _refused(block, f"there is no input {which!r}", f"there are x0 to x{len(inputs) - 1}")
        rank = inputs[number].ndim
        for axis, name in axes.items():
            if not -rank <= axis < rank or not name.isidentifier():
                raise _refused(block, f"axis {axis} named {name!r} of x{number}, of rank {rank}", "an axis and a word")
            made.setdefault(number, {})[axis % rank] = name
    if len(_names(made)) > MOST:
        raise _refused(block, f"{len(_names(made))} open sizes", f"at most {MOST}; axes of one size share a name")
    return made


def _names(opened: Mapping[int, Names]) -> list[str]:
    return list(dict.fromkeys(name for axes in opened.values() for name in axes.values()))


def _refused(block: HybridBlock, what: str, hint: str = "") -> InputError:
    return InputError(what, where=f"{type(block).__name__}.export(dynamic=)", hint=hint)


@dataclass(frozen=True, slots=True)
class _Follows:
    """Integers that depend on the open sizes: the sum of `shares`, each times the product of some sizes."""

    shares: tuple[tuple[tuple[int, ...], np.ndarray[Any, Any]], ...]

    def at(self, sizes: Sizes) -> np.ndarray[Any, Any]:
        made = [share * int(np.prod([sizes[i] for i in which])) for which, share in self.shares]
        return np.asarray(sum(made[1:], made[0]))


class _Open:
    """A block traced at several sizes.

    A constant that differs between them is a sum of products of sizes: found from traces at all combinations of two
    sizes each, and held against two more. Everything else has to be the same.
    """

    def __init__(self, block: HybridBlock, inputs: Sequence[Array], opened: Mapping[int, Names]) -> None:
        self.block, self.inputs, self.opened, self.names = block, inputs, opened, _names(opened)
        found: dict[str, int] = {}
        for number, axes in opened.items():
            for axis, name in axes.items():
                size = inputs[number].shape[axis]
                if found.setdefault(name, size) != size:
                    raise _refused(block, f"{name!r} is {found[name]} and {size}", "axes of one name have one size")
        self.base = tuple(max(found[name], 2) for name in self.names)  # a size of 1 would be stretched to any

    def at(self, sizes: Sizes) -> Graph:
        """The graph at these sizes."""
        own = dict(zip(self.names, sizes, strict=True))
        given = []
        for number, x in enumerate(self.inputs):
            axes = self.opened.get(number, {})
            shape = tuple(own[axes[i]] if i in axes else n for i, n in enumerate(x.shape))
            given.append(x if shape == x.shape else nd.zeros(shape, dtype=x.dtype, device=x.device))
        try:
            return _plain(self.block, given)
        except MezzoError as error:
            raise error.at(f"{type(self.block).__name__} at {self.told(sizes)}") from None

    def told(self, sizes: Sizes) -> str:
        return ", ".join(f"{name}={size}" for name, size in zip(self.names, sizes, strict=True))

    def graph(self) -> Graph:
        """The graph with open sizes. Raises InputError where something else than they decides."""
        steps = list(product((0, 1), repeat=len(self.names)))
        places = self.places()
        graphs = [self.at(sizes) for sizes in places]
        first = graphs[0]
        for sizes, other in zip(places[1:], graphs[1:], strict=True):
            self.same(first, other, sizes)
        follows: dict[str, _Follows] = {}
        for name, array in first.initializers.items():
            several = [graph.initializers[name] for graph in graphs]
            if not all(_equal(array, other) for other in several):
                follows[name] = self.fitted(name, steps, several)
        for sizes in (tuple(3 * b for b in self.base), tuple(b + 1 for b in self.base)):
            self.check(first, follows, sizes)
        return self.made(graphs, follows)

    def same(self, first: Graph, other: Graph, sizes: Sizes) -> None:
        """Raises InputError where another size makes another graph."""
        pairs = zip(first.nodes, other.nodes, strict=False)
        odd = next((n for n, m in pairs if _about(n) != _about(m)), None)
        if (
            odd is None
            and len(first.nodes) == len(other.nodes)
            and first.initializers.keys() == other.initializers.keys()
        ):
            return
        what = "the number of operators" if odd is None else f"{odd.op} at {odd.place}"
        raise _refused(
            self.block,
            f"at {self.told(sizes)} the block does something else: {what}",
            "write it with sizes that reshapes and slices take, or leave that size fixed",
        )

    def fitted(self, name: str, steps: Sequence[Sizes], several: Sequence[np.ndarray[Any, Any]]) -> _Follows:
        """Fit a constant as a function of the open sizes, by inclusion and exclusion over two values of each. Raises an
        error if it is no such function."""
        first = several[0]
        if first.dtype.kind not in "iu" or any(a.shape != first.shape for a in several) or first.ndim > 1:
            raise self.unlike(name, f"{first.dtype} of shape {first.shape}")
        values = {step: a.astype(np.int64) for step, a in zip(steps, several, strict=True)}
        shares = []
        for step in steps:
            which = tuple(i for i, on in enumerate(step) if on)
            # the difference over the cube of these axes, from base to twice the base: a product of the bases
            parts = [s for s in steps if all(on <= top for on, top in zip(s, step, strict=True))]
            total = sum((-1) ** (sum(step) - sum(s)) * values[s] for s in parts)
            volume = int(np.prod([self.base[i] for i in which]))
            if np.any(np.asarray(total) % volume):
                raise self.unlike(name, f"{first.tolist()} at {self.told(self.base)}")
            shares.append((which, np.asarray(total) // volume))
        return _Follows(_powers(shares, self.base))

    def unlike(self, name: str, what: str) -> InputError:
        return _refused(
            self.block,
            f"a constant ({name}, {what}) depends on the open sizes in a way that no sum of products tells",
            "compute it from the input's shape, pass it as an input, or leave that size fixed",
        )

    def check(self, first: Graph, follows: Mapping[str, _Follows], sizes: Sizes) -> None:
        """Hold what was found against one more trace; sizes at which the block cannot run say nothing."""
        try:
            other = self.at(sizes)
        except MezzoError:
            if sizes == tuple(b + 1 for b in self.base):
                return
            raise
        self.same(first, other, sizes)
        for name, array in other.initializers.items():
            expected = follows[name].at(sizes) if name in follows else first.initializers[name]
            if not _equal(array, expected.astype(array.dtype)):
                raise self.unlike(name, f"{array.dtype} of shape {array.shape} at {self.told(sizes)}")

    def made(self, graphs: Sequence[Graph], follows: Mapping[str, _Follows]) -> Graph:
        """The graph in which constants that follow are computed from the inputs' shapes."""
        first = graphs[0]
        dims = {(f"x{i}", axis): name for i, axes in self.opened.items() for axis, name in axes.items()}
        types: dict[str, Any] = {}
        for name in first.inputs:
            known = first.types[name]
            assert isinstance(known, Tensor)
            types[name] = known.of(tuple(dims.get((name, axis), d) for axis, d in enumerate(known.sizes)))
        g = TypedBuilder({**first.types}, prefix=fresh("sizes/", set(first.types)))
        sources = {name: place for place, name in reversed(dims.items()) if place[0] in first.inputs}
        lost = [name for name in self.names if name not in sources]
        if follows and lost:
            raise _refused(self.block, f"no input that is read has the size {lost[0]!r}", "leave it fixed")
        sizes = [
            g.Shape(n, start=axis, end=axis + 1) for n, axis in map(sources.__getitem__, self.names if follows else ())
        ]
        names: dict[str, str] = {}
        for name, how in follows.items():
            array = first.initializers[name]
            total = None
            for which, share in how.shares:
                part = g.const(np.atleast_1d(share).tolist())
                for i in which:
                    part = g.Mul(part, sizes[i])
                total = part if total is None else g.Add(total, part)
            assert total is not None
            total = g.Squeeze(total) if array.ndim == 0 else total
            names[name] = total if array.dtype == np.int64 else g.Cast(total, to=DType.of(array.dtype).onnx)
        kept = {n: a for n, a in first.initializers.items() if n not in follows}
        nodes = tuple(replace(n, inputs=tuple(names.get(i, i) for i in n.inputs)) for n in first.nodes)
        whole = first.but(nodes=(*g.nodes(), *nodes), initializers={**kept, **g.constants()}, types=types)
        return self.named(prune(infer(whole)), graphs).verify()

    def named(self, whole: Graph, graphs: Sequence[Graph]) -> Graph:
        """The graph whose outputs have the names of open sizes too, where they had these sizes in all traces."""
        types = dict(whole.types)
        for o in whole.outputs:
            seen = [t.dims for graph in graphs if isinstance(t := graph.types[o], Tensor)]
            known = types[o]
            if not isinstance(known, Tensor) or any(dims is None for dims in seen):
                continue
            dims: list[Any] = []
            for column in zip(*(d for d in seen if d is not None), strict=True):
                same = [name for i, name in enumerate(self.names) if column == tuple(at[i] for at in self.places())]
                dims.append(column[0] if len({*column}) == 1 else same[0] if same else None)
            if known.dims is None or None in known.dims:
                types[o] = known.of(tuple(dims))
        return whole.but(types=types)

    def places(self) -> list[Sizes]:
        """Combinations of the first size of each open axis and of twice that."""
        steps = product((1, 2), repeat=len(self.names))
        return [tuple(b * s for b, s in zip(self.base, step, strict=True)) for step in steps]


def _powers(
    shares: Sequence[tuple[tuple[int, ...], np.ndarray[Any, Any]]], base: Sizes
) -> tuple[tuple[tuple[int, ...], np.ndarray[Any, Any]], ...]:
    """Shares of (size - base) products as shares of sizes' products; those that are zero are left out."""
    made: dict[tuple[int, ...], Any] = {}
    for which, share in shares:
        for kept in product((False, True), repeat=len(which)):
            own = tuple(i for i, keep in zip(which, kept, strict=True) if keep)
            rest = int(np.prod([-base[i] for i, keep in zip(which, kept, strict=True) if not keep]))
            made[own] = made.get(own, 0) + share * rest
    return tuple((which, np.asarray(share)) for which, share in made.items() if not which or np.any(share))


def _equal(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a is b or (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())


def _about(node: Node) -> Any:
    attrs = sorted((name, value if not isinstance(value, Graph) else str(value)) for name, value in node.attrs.items())
    return node.op, node.domain, node.inputs, node.outputs, str(attrs)

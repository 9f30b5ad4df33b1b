"""A computation traced at several sizes, as one graph whose sizes are open."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from ..ops import DType, Tensor
from ..ops.errors import InputError, MezzoError
from ..runtime.ir.autodiff import unused_name
from ..runtime.ir.graph import Graph, Node
from ..runtime.ir.infer import infer
from ..runtime.ir.prune import prune
from ..runtime.ir.typed import TypedBuilder
from .array import Array
from .creation import zeros

LIKE = {"RandomNormal": "RandomNormalLike", "RandomUniform": "RandomUniformLike"}  # draws of a shape that is given

Names = Mapping[int, str]  # of axes
Sizes = tuple[int, ...]  # one for each open name


def names_of(opened: Mapping[int, Names]) -> list[str]:
    """The names of open sizes, each once."""
    return list(dict.fromkeys(name for axes in opened.values() for name in axes.values()))


@dataclass(frozen=True, slots=True)
class Pattern:
    """An array that its shape tells: equal elements, a range (from `first` on, by `second`), or a matrix with `first`
    on its diagonal and `second` elsewhere."""

    kind: str
    first: Any
    second: Any

    def at(self, sizes: Iterable[int]) -> np.ndarray[Any, Any]:
        shape = tuple(map(int, sizes))
        if self.kind == "range":
            steps = np.arange(int(np.prod(shape))).astype(self.first.dtype)
            return np.asarray(steps * self.second + self.first, self.first.dtype).reshape(shape)
        array = np.full(shape, self.second)
        if self.kind == "diagonal":
            np.fill_diagonal(array, self.first)
        return array

    def add(self, g: TypedBuilder, shape: str) -> str:
        """Add the array of a shape (an int64 vector)."""
        first, second = g.const(self.first), g.const(self.second)
        array: str
        if self.kind == "equal":
            array = g.Expand(second, shape)
        elif self.kind == "diagonal":
            array = g.Where(g.Cast(g.EyeLike(g.Expand(g.const(0), shape)), to=DType.BOOL.onnx), first, second)
        else:
            steps = g.Range(g.const(0), g.ReduceProd(shape, keepdims=0), g.const(1))
            steps = g.Cast(steps, to=DType.of(self.first.dtype).onnx)
            array = g.Reshape(g.Add(g.Mul(steps, second), first), shape)
        return array


def pattern_of(several: Sequence[np.ndarray[Any, Any]]) -> Pattern | None:
    """The pattern that arrays of different shapes have in common."""
    a = several[0]
    if a.size < 2 or any(b.ndim != a.ndim or b.dtype != a.dtype for b in several):
        return None
    flat = a.reshape(-1)
    tried = [Pattern("equal", flat[0], flat[0])]
    if a.ndim == 2:
        tried.append(Pattern("diagonal", flat[0], flat[1]))
    if a.dtype.kind in "iuf":
        tried.append(Pattern("range", flat[0], flat[1] - flat[0]))
    return next((p for p in tried if all(_equal(p.at(b.shape), b) for b in several)), None)


@dataclass(frozen=True, slots=True)
class Follows:
    """Whole numbers that depend on the open sizes: the sum of `shares`, each times the product of some sizes. With a
    `pattern` they are the shape of an array."""

    shares: tuple[tuple[tuple[int, ...], np.ndarray[Any, Any]], ...]
    pattern: Pattern | None = None

    def at(self, sizes: Sizes) -> np.ndarray[Any, Any]:
        terms = [share * int(np.prod([sizes[i] for i in which])) for which, share in self.shares]
        numbers = np.asarray(sum(terms[1:], terms[0]))
        return numbers if self.pattern is None else self.pattern.at(numbers)


class Opened:
    """A computation traced at several sizes: `traced` makes the graph of what `name` does with inputs of fixed sizes,
    and `opened` names the open axes of these, by the number of the input. `where` is where errors are.

    A constant that differs between them is a sum of products of sizes: found from traces at all combinations of two
    sizes each, and held against two more. So is the shape of what is drawn. Everything else has to be the same.
    """

    def __init__(
        self,
        traced: Callable[[Sequence[Array]], Graph],
        inputs: Sequence[Array],
        opened: Mapping[int, Names],
        name: str,
        where: str,
    ) -> None:
        self.traced, self.inputs, self.opened, self.names = traced, inputs, opened, names_of(opened)
        self.name, self.where = name, where
        sizes: dict[str, int] = {}
        for number, axes in opened.items():
            for axis, name in axes.items():
                size = inputs[number].shape[axis]
                if sizes.setdefault(name, size) != size:
                    raise self.refused(f"{name!r} is {sizes[name]} and {size}", "axes of one name have one size")
        self.base = tuple(max(sizes[name], 2) for name in self.names)  # a size of 1 would be stretched to any

    def at(self, sizes: Sizes) -> Graph:
        """The graph at these sizes."""
        own = dict(zip(self.names, sizes, strict=True))
        given = []
        for number, x in enumerate(self.inputs):
            axes = self.opened.get(number, {})
            shape = tuple(own[axes[i]] if i in axes else n for i, n in enumerate(x.shape))
            given.append(x if shape == x.shape else zeros(shape, dtype=x.dtype, device=x.device))
        try:
            return self.traced(given)
        except MezzoError as error:
            raise error.at(f"{self.name} at {self.told(sizes)}") from None

    def told(self, sizes: Sizes) -> str:
        return ", ".join(f"{name}={size}" for name, size in zip(self.names, sizes, strict=True))

    def graph(self) -> Graph:
        """The graph with open sizes. Raises InputError where something else than they decides."""
        steps = list(product((0, 1), repeat=len(self.names)))
        places = self.places()
        graphs = [self.at(sizes) for sizes in places]
        drawn = shapes_drawn(graphs)
        graphs = [with_shapes(graph, drawn) for graph in graphs]
        first = graphs[0]
        for sizes, other in zip(places[1:], graphs[1:], strict=True):
            self.same(first, other, sizes)
        follows: dict[str, Follows] = {}
        for name, array in first.initializers.items():
            several = [graph.initializers[name] for graph in graphs]
            if all(_equal(array, other) for other in several):
                continue
            pattern = None if all(array.shape == other.shape for other in several) else pattern_of(several)
            if pattern is not None:
                several = [np.array(other.shape, np.int64) for other in several]
            follows[name] = replace(self.fitted(name, steps, several), pattern=pattern)
        for sizes in (tuple(3 * b for b in self.base), tuple(b + 1 for b in self.base)):
            self.check(first, follows, sizes, drawn)
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
        raise self.refused(
            f"at {self.told(sizes)} {self.name} does something else: {what}",
            "write it with sizes that reshapes and slices take, or leave that size fixed",
        )

    def fitted(self, name: str, steps: Sequence[Sizes], several: Sequence[np.ndarray[Any, Any]]) -> Follows:
        """Fit a constant as a function of the open sizes, by inclusion and exclusion over two values of each. Raises an
        error if it is no such function."""
        first = several[0]
        whole = first.dtype.kind in "iu" or all(
            a.dtype.kind == "f" and np.all(np.isfinite(a) & (a == np.round(a))) for a in several
        )
        if not whole or any(a.shape != first.shape for a in several) or first.ndim > 1:
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
        return Follows(_powers(shares, self.base))

    def refused(self, what: str, hint: str) -> InputError:
        return InputError(what, where=self.where, hint=hint)

    def unlike(self, name: str, what: str) -> InputError:
        return self.refused(
            f"a constant ({name}, {what}) depends on the open sizes in a way that no sum of products tells",
            "compute it from the input's shape, pass it as an input, or leave that size fixed",
        )

    def check(self, first: Graph, follows: Mapping[str, Follows], sizes: Sizes, drawn: Collection[str]) -> None:
        """Hold what was found against one more trace; sizes at which it cannot run say nothing."""
        try:
            other = with_shapes(self.at(sizes), drawn)
        except MezzoError:
            if sizes == tuple(b + 1 for b in self.base):
                return
            raise
        self.same(first, other, sizes)
        for name, array in other.initializers.items():
            expected = follows[name].at(sizes) if name in follows else first.initializers[name]
            if not _equal(array, expected.astype(array.dtype)):
                raise self.unlike(name, f"{array.dtype} of shape {array.shape} at {self.told(sizes)}")

    def made(self, graphs: Sequence[Graph], follows: Mapping[str, Follows]) -> Graph:
        """The graph in which constants that follow are computed from the inputs' shapes."""
        first = graphs[0]
        dims = {(f"x{i}", axis): name for i, axes in self.opened.items() for axis, name in axes.items()}
        types: dict[str, Any] = {}
        for name in first.inputs:
            known = first.types[name]
            assert isinstance(known, Tensor)
            types[name] = known.of(tuple(dims.get((name, axis), d) for axis, d in enumerate(known.sizes)))
        g = TypedBuilder({**first.types}, prefix=unused_name("sizes/", set(first.types)))
        sources = {name: place for place, name in reversed(dims.items()) if place[0] in first.inputs}
        lost = [name for name in self.names if name not in sources]
        if follows and lost:
            raise self.refused(f"no input that is read has the size {lost[0]!r}", "leave it fixed")
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
            if how.pattern is not None:
                names[name] = how.pattern.add(g, total)
                continue
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


def shapes_drawn(graphs: Sequence[Graph]) -> set[str]:
    """The random values whose shape, an attribute, differs between graphs that are alike otherwise."""
    columns = zip(*(graph.nodes for graph in graphs), strict=False)
    return {n.outputs[0] for n, *others in columns if n.op in LIKE and any(o.attrs != n.attrs for o in others)}


def with_shapes(graph: Graph, drawn: Collection[str]) -> Graph:
    """The graph in which the shapes of these random values are constants. They are the same numbers."""
    nodes: list[Node] = []
    shapes: dict[str, np.ndarray[Any, Any]] = {}
    taken = set(graph.types)
    for n in graph.nodes:
        (name, *_) = n.outputs
        if name not in drawn or n.op not in LIKE:
            nodes.append(n)
            continue
        prefix = unused_name(f"{name}/", taken)
        zero, sizes, like = (prefix + part for part in ("zero", "sizes", "like"))
        shapes |= {zero: np.zeros((), np.bool_), sizes: np.array(n.attrs["shape"], np.int64)}
        nodes.append(Node("Expand", (zero, sizes), (like,), where=n.where))
        attrs = {k: v for k, v in n.attrs.items() if k != "shape"}
        nodes.append(replace(n, op=LIKE[n.op], inputs=(like,), attrs=attrs))
    if not shapes:
        return graph
    return infer(graph.but(nodes=tuple(nodes), initializers={**graph.initializers, **shapes}))


def _powers(
    shares: Sequence[tuple[tuple[int, ...], np.ndarray[Any, Any]]], base: Sizes
) -> tuple[tuple[tuple[int, ...], np.ndarray[Any, Any]], ...]:
    """Shares of (size - base) products as shares of sizes' products; those that are zero are left out."""
    products: dict[tuple[int, ...], Any] = {}
    for which, share in shares:
        for kept in product((False, True), repeat=len(which)):
            own = tuple(i for i, keep in zip(which, kept, strict=True) if keep)
            rest = int(np.prod([-base[i] for i, keep in zip(which, kept, strict=True) if not keep]))
            products[own] = products.get(own, 0) + share * rest
    return tuple((which, np.asarray(share)) for which, share in products.items() if not which or np.any(share))


def _equal(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a is b or (a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())


def _about(node: Node) -> Any:
    attrs = sorted((name, value if not isinstance(value, Graph) else str(value)) for name, value in node.attrs.items())
    return node.op, node.domain, node.inputs, node.outputs, str(attrs)

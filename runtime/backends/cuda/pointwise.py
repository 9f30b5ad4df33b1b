"""Pointwise operators, chains of them, casts and optimizer steps: their scalar expressions, one thread for 16 bytes.

Inputs are read in whatever order their elements lie; the result lies as the largest input does. Axes that lie behind
one another in all operands count as one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ....ops import DType, Tensor
from ....ops.core.expr import Expr, inputs, substitute
from ....ops.core.fused import ABSENT, PREVIOUS, links
from ....ops.core.lowered import Lowered, lower
from ....ops.dataclasses import dataclass
from ....ops.layouts import is_permutation
from ....ops.op import Op
from ....ops.training.update import trees
from ...compile.kernel import Alias, Declined, KernelRequest
from ...ir.graph import Node
from .generated import Generated
from .launch import In, Launch, Operand, Out, Written
from .loops import merged
from .source import element_of, rounded, write
from .text import THREADS, Element, coordinates, dot, index_type, launch, lying, strides_of

CASTS = {"Cast", "CastLike"}
BYTES = 16  # that a thread reads or writes at once


class CudaPointwise(Generated):
    """Operators whose results are expressions of the elements at one place."""

    name = "gpu.pointwise"

    def serves(self, node: Node) -> bool:
        if (node.domain, node.op) == ("mezzo", "Fused"):
            return all(_pointwise(record) for record, _, _ in links(node.attrs["chain"]))
        return _pointwise(node.record) or (node.domain, node.op) == ("mezzo", "Update")

    def write(self, request: KernelRequest) -> Written | Declined:
        results = [t for t in request.outputs if isinstance(t, Tensor) and t.static]
        operands = [t for t in request.inputs if t is None or (isinstance(t, Tensor) and t.static)]
        if len(results) < len(request.outputs) or len(operands) < len(request.inputs):
            return Declined("sizes are not known")
        if len({t.sizes for t in results}) > 1:
            return Declined("results of several sizes")
        code = lower(_trees(request), len(request.inputs))
        for t in (*operands, *results):
            if t is not None:
                element_of(t.dtype)
        return _Kernel(request, operands, results, code).written()


def _pointwise(record: Op) -> bool:
    return record.tree is not None or (record.domain == "" and record.name in CASTS)


def _trees(request: KernelRequest) -> tuple[Expr, ...]:
    """The expressions of the results; constant numbers stand in them."""
    node, dtypes = request.node, [t.dtype if isinstance(t, Tensor) else None for t in request.inputs]
    leaves = [_leaf(request, i, leaf) for i, leaf in enumerate(inputs(dtypes))]
    if (node.domain, node.op) == ("mezzo", "Update"):
        updates = trees([d for d in dtypes if d is not None], node.record.bind(node.attrs))
        return tuple(substitute(t, leaves) for t in updates)
    if node.op != "Fused":
        return (tree_over(node.record, leaves, node.attrs),)
    result: Expr | None = None
    for record, operands, attrs in links(node.attrs["chain"]):
        result = tree_over(
            record, [None if i == ABSENT else result if i == PREVIOUS else leaves[i] for i in operands], attrs
        )
    assert result is not None
    return (result,)


def _leaf(request: KernelRequest, i: int, leaf: Expr | None) -> Expr | None:
    """An input, or its number if it is one that is known beforehand."""
    known = request.inputs[i]
    if leaf is None or not request.constant(i) or not isinstance(known, Tensor) or known.elements != 1:
        return leaf
    return leaf if known.value is None else Expr("const", (), leaf.dtype, known.value.reshape(-1)[0].item())


def tree_over(record: Op, operands: Sequence[Expr | None], attrs: Mapping[str, Any]) -> Expr:
    """The expression of one operator over others."""
    bound = record.bind(attrs)
    if record.tree is not None:
        return substitute(record.tree([x and x.dtype for x in operands], **bound), operands)
    x = operands[0]
    assert x is not None
    if record.name == "CastLike":
        like = operands[1]
        assert like is not None
        return rounded(x, like.dtype)
    return rounded(x, DType.from_onnx(bound["to"]))


@dataclass(frozen=True, slots=True)
class _Array:
    """An operand of the kernel: its element type, its strides along the axes of the loop, its name."""

    element: Element
    strides: tuple[int, ...]
    name: str
    operand: Operand

    @property
    def moves(self) -> bool:
        """True if neighbours along the innermost axis are neighbours here (else they are one element)."""
        return self.strides[-1] == 1

    @property
    def pointer(self) -> str:
        return f"{'const ' if isinstance(self.operand, In) else ''}{self.element.stored}*"


class _Kernel:
    """One launch over the elements of the results, in the order of their memory."""

    def __init__(
        self,
        request: KernelRequest,
        operands: Sequence[Tensor | None],
        results: Sequence[Tensor],
        code: Lowered,
    ) -> None:
        self.request, self.operands, self.results, self.code = request, operands, results, code
        # an update is written over what it renews, whatever the order of the gradient's axes
        led = operands[:1] if request.node.op == "Update" else operands
        self.layout = _layout([t for t in led if t is not None], results[0])
        self.read = code.reads

    def written(self) -> Written:
        out = self.results[0]
        layouts = tuple(t.layout if t and is_permutation(t.layout) else "" for t in self.operands)
        named = (*layouts, *(self.layout for _ in self.results))
        named = named if any(named) else ()
        if not out.elements:
            return Written((), layouts=named)
        order = lying(self.layout, out.rank)
        strides = [(*_broadcast(t, layout, out.sizes),) for t, layout in self._arrays(layouts)]
        loops = merged([out.sizes[d] for d in order], [[s[d] for d in order] for s in strides])
        counted = [t.elements or 0 for t in self.operands if t is not None]
        arrays = [
            *(
                _Array(element_of(self._type(i)), s, f"x{i}", In(i))
                for i, s in zip(self.read, loops.strides, strict=False)
            ),
            *(
                _Array(element_of(t.dtype), s, f"y{i}", Out(i))
                for i, (t, s) in enumerate(zip(self.results, loops.strides[len(self.read) :], strict=True))
            ),
        ]
        aliases = tuple(self._aliases(named))
        return Written((self._launch(loops.sizes, arrays, aliases, max(counted, default=0)),), 0, aliases, named)

    def _type(self, i: int) -> DType:
        known = self.operands[i]
        assert known is not None
        return known.dtype

    def _arrays(self, layouts: Sequence[str]) -> Iterator[tuple[Tensor, str]]:
        for i in self.read:
            known = self.operands[i]
            assert known is not None
            yield known, layouts[i]
        for t in self.results:
            yield t, self.layout

    def _aliases(self, named: Sequence[str]) -> Iterator[Alias]:
        """A result may lie in place of an operand of its type: each thread reads its elements before it writes. Of
        several results each has an operand of its own: what it renews, which are the tensor and the last operands of an
        update (ops/training/update.py)."""
        names, behind = self.request.node.inputs, len(self.operands) - len(self.results)
        free = [
            i
            for i in self.read
            if names.count(names[i]) == 1 and not self.request.constant(i) and (not named or named[i] == self.layout)
        ]
        for o, result in enumerate(self.results):
            own = behind + o if o else 0
            for i in sorted(free, key=lambda i: i != own):
                known = self.operands[i]
                if known is not None and (known.dtype, known.dims) == (result.dtype, result.dims):
                    yield Alias(o, i)
                    if len(self.results) > 1:
                        free.remove(i)
                        break

    def _launch(
        self, sizes: tuple[int, ...], arrays: Sequence[_Array], aliases: Sequence[Alias], largest: int
    ) -> Launch:
        width, flat = _width(sizes, arrays), len(sizes) == 1
        count = math.prod(sizes)
        steps = -(-sizes[-1] // width) * math.prod(sizes[:-1])  # threads with something to do
        index = index_type(count, largest)
        shared = {*(f"x{a.input}" for a in aliases), *(f"y{a.output}" for a in aliases)}
        ins, outs = arrays[: len(self.read)], arrays[len(self.read) :]
        names = [""] * len(self.operands)
        for i in self.read:
            names[i] = f"x{i}"
        code = write(self.code, names)
        before = [code.functions, *_packs(arrays, width), _function(ins, outs, code.lines, code.results)]
        body = [f"const {index} i = ({index})blockIdx.x * {THREADS} + threadIdx.x;", f"if (i >= {steps}) return;"]
        if flat:
            body.append(f"const {index} c0 = i{f' * {width}' if width > 1 else ''};")
        else:
            body += coordinates(index, "i", [*sizes[:-1], sizes[-1] // width])
        for a in arrays:
            scaled = [*a.strides[:-1], a.strides[-1] * (1 if flat else width)]
            body.append(f"{a.pointer} p_{a.name} = {a.name} + {dot(scaled)};")
        full = _whole(ins, outs, width)
        if flat and sizes[0] % width:
            body += [f"if (c0 + {width} <= {count}) {{", *full, "} else {", *_tail(ins, outs, count), "}"]
        else:
            body += full
        alone = {a.name: "" if a.name in shared else " __restrict__" for a in arrays}
        parameters = [(a.pointer + alone[a.name], a.name, a.operand) for a in arrays]
        blocks = -(-steps // THREADS)
        return launch(self._family(), parameters, "\n".join(body), blocks, before="".join(before))

    def _family(self) -> str:
        """A name for profiles: of all operators."""
        node = self.request.node
        ops = [link[1] for link in node.attrs["chain"]] if node.op == "Fused" else [node.op]
        return "_".join(o.lower() for o in ops)[:80]


def _layout(operands: Sequence[Tensor], out: Tensor) -> str:
    """Return the layout of a result: that of its largest operand of full rank."""
    full = [t for t in operands if t.rank == out.rank and (not t.layout or is_permutation(t.layout))]
    largest = max(full, key=lambda t: (t.elements or 0, bool(t.layout)), default=None)
    return largest.layout if largest is not None else ""


def _broadcast(known: Tensor, layout: str, sizes: Sequence[int]) -> Iterator[int]:
    """The strides of an operand along the axes of the result; 0 where it has one element for all."""
    own = strides_of(known.sizes, layout)
    yield from (0 for _ in range(len(sizes) - known.rank))
    yield from (0 if n == 1 else s for n, s in zip(known.sizes, own, strict=True))


def _width(sizes: Sequence[int], arrays: Sequence[_Array]) -> int:
    """Return the number of neighbours that a thread computes: 16 bytes of the widest operand, if all can be read at
    once."""
    if any(a.strides[-1] not in (0, 1) for a in arrays):
        return 1
    width = BYTES // max((a.element.dtype.itemsize for a in arrays if a.moves), default=BYTES)
    steps = [s for a in arrays if a.moves for s in a.strides[:-1]]
    while width > 1 and (any(s % width for s in steps) or (len(sizes) > 1 and sizes[-1] % width)):
        width //= 2
    return width if sizes[-1] >= width else 1


def _packs(arrays: Sequence[_Array], width: int) -> Iterator[str]:
    """Types of neighbours that are read at once."""
    if width > 1:
        for stored in dict.fromkeys(a.element.stored for a in arrays if a.moves):
            size = next(a.element.dtype.itemsize for a in arrays if a.element.stored == stored)
            yield f"struct alignas({size * width}) {_pack(stored)} {{ {stored} v[{width}]; }};\n"


def _pack(stored: str) -> str:
    return f"pack_of_{stored.strip('_').replace(' ', '_')}"


def _function(ins: Sequence[_Array], outs: Sequence[_Array], lines: Sequence[str], results: Sequence[str]) -> str:
    """Return the source of the function for one element."""
    parameters = [f"{a.element.wide} {a.name}" for a in ins] + [f"{a.element.stored}& {a.name}" for a in outs]
    ends = [f"{a.name} = {a.element.write(r)};" for a, r in zip(outs, results, strict=True)]
    inner = "".join(f"    {line}\n" for line in (*lines, *ends))
    return f"__device__ __forceinline__ void one({', '.join(parameters)}) {{\n{inner}}}\n"


def _whole(ins: Sequence[_Array], outs: Sequence[_Array], width: int) -> list[str]:
    """Statements for `width` neighbours."""
    if width == 1:
        operands = [a.element.read(f"*p_{a.name}") for a in ins]
        return [f"one({', '.join([*operands, *(f'*p_{a.name}' for a in outs)])});"]
    lines = []
    for a in ins:
        if a.moves:
            pack = _pack(a.element.stored)
            lines.append(f"const {pack} v_{a.name} = *(const {pack}*)p_{a.name};")
        else:
            lines.append(f"const {a.element.wide} v_{a.name} = {a.element.read(f'*p_{a.name}')};")
    lines += [f"{_pack(a.element.stored)} v_{a.name};" for a in outs]
    operands = [a.element.read(f"v_{a.name}.v[k]") if a.moves else f"v_{a.name}" for a in ins]
    call = f"one({', '.join([*operands, *(f'v_{a.name}.v[k]' for a in outs)])});"
    lines += ["#pragma unroll", f"for (int k = 0; k < {width}; ++k) {call}"]
    return lines + [f"*({_pack(a.element.stored)}*)p_{a.name} = v_{a.name};" for a in outs]


def _tail(ins: Sequence[_Array], outs: Sequence[_Array], count: int) -> list[str]:
    """Statements for the last elements, which are fewer."""
    operands = [a.element.read(f"p_{a.name}[{'k' if a.moves else '0'}]") for a in ins]
    call = f"one({', '.join([*operands, *(f'p_{a.name}[k]' for a in outs)])});"
    return [f"for (int k = 0; c0 + k < {count}; ++k) {call}"]

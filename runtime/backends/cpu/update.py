"""Optimizer steps in blocks that stay in a core's cache: numpy calls with `out=`, generated from the expressions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from ....ops import DType
from ....ops.core.expr import PRIMITIVES, Expr
from ....ops.dataclasses import dataclass
from ....ops.training.update import trees
from ...compile.kernel import Alias, Call, Choice, Declined, KernelArgs, KernelRequest, tensors
from ...ir.graph import Node
from ...memory.liveness import aligned

BLOCK = 16 << 10  # elements: with a handful of temporaries they fit into a second-level cache


@dataclass(frozen=True, slots=True)
class UpdateCode:
    """Code of an update: the scalar parts, which run once, and the parts that run for each block.

    Values are numbered: inputs first, then constants and results in the order of `parts`. `registers` gives the
    temporary of each block result, or -1 - i for output i: a result is written there at once where nobody reads what
    stands there any more. `roots` gives the values of the outputs.
    """

    parts: tuple[tuple[Expr, tuple[int, ...]], ...]
    scalar: tuple[bool, ...]
    registers: tuple[int, ...]
    temps: tuple[DType, ...]
    roots: tuple[int, ...]


@lru_cache(maxsize=256)
def _code(rule: str, dtypes: tuple[DType, ...], states: int, draws: int) -> UpdateCode:
    roots = trees(dtypes, {"rule": rule, "states": states, "draws": draws})
    number: dict[Expr, int] = {}
    parts: list[tuple[Expr, tuple[int, ...]]] = []
    scalar = [i in range(2, len(dtypes) - draws - states) for i in range(len(dtypes))]

    def visit(e: Expr) -> int:
        if e.kind == "input":
            return int(e.value or 0)
        if e not in number:
            args = tuple(map(visit, e.args))
            number[e] = len(dtypes) + len(parts)
            parts.append((e, args))
            scalar.append(all(scalar[a] for a in args))
        return number[e]

    ends = tuple(map(visit, roots))
    direct = _direct(ends, parts, len(dtypes), states)
    last = {a: i for i, (_, args) in enumerate(parts) for a in args} | dict.fromkeys(ends, len(parts))
    free: list[tuple[int, DType]] = []
    temps: list[DType] = []
    registers: list[int] = []
    held: dict[int, tuple[int, DType]] = {}
    for i, (e, args) in enumerate(parts):
        me = len(dtypes) + i
        dying = [held.pop(a) for a in dict.fromkeys(args) if a in held and last[a] == i]
        late = e.kind == "where"  # a choice writes before it has read everything
        free += [] if late else dying
        if scalar[me] or me in direct:
            registers.append(-1 - direct.get(me, 0))
        else:
            fit = next((f for f in free if f[1] is e.dtype), None)
            if fit is None:
                fit = (len(temps), e.dtype)
                temps.append(e.dtype)
            else:
                free.remove(fit)
            held[me] = fit
            registers.append(fit[0])
        free += dying if late else []
    return UpdateCode(tuple(parts), tuple(scalar), tuple(registers), tuple(temps), ends)


def code_of(node: Node, dtypes: Sequence[DType]) -> UpdateCode:
    """The code of a node, whose operands beside numbers of rows have these types."""
    return _code(node.attrs["rule"], tuple(dtypes), node.attrs.get("states", 0), node.attrs.get("draws", 0))


def _direct(
    ends: tuple[int, ...], parts: list[tuple[Expr, tuple[int, ...]]], inputs: int, states: int
) -> dict[int, int]:
    """The results that may be written over the tensor or state of which they are the next value, by output."""
    last = {a: inputs + i for i, (_, args) in enumerate(parts) for a in args}
    old = [0, *range(inputs - states, inputs)]
    found: dict[int, int] = {}
    for output, (end, before) in enumerate(zip(ends, old, strict=True)):
        fresh = end >= inputs and end not in found and parts[end - inputs][0].kind != "where"
        if fresh and last.get(before, -1) <= end:
            found[end] = output
    return found


class Update:
    """Optimizer steps with the temporaries of one block in the workspace; the results of a block overwrite W and its
    states."""

    name = "numpy.update"

    def serves(self, node: Node) -> bool:
        return (node.domain, node.op) == ("mezzo", "Update")

    def select(self, request: KernelRequest) -> Choice | Declined:
        inputs, outputs = tensors(request.inputs), tensors(request.outputs)
        if inputs is None or outputs is None or not all(t.static for t in (*inputs, *outputs)):
            return Declined("an operand is no tensor of known sizes")
        states, draws = request.node.attrs.get("states", 0), request.node.attrs.get("draws", 0)
        whole = [0, 1, *range(len(inputs) - draws - states, len(inputs))]
        if any(inputs[i].sizes != inputs[0].sizes for i in whole) or len(outputs) < 1 + states:
            return Declined("the tensor, its gradient and its states differ in shape, or a result is not wanted")
        code = code_of(request.node, [t.dtype for t in inputs])
        size = min(BLOCK, inputs[0].elements or 0)
        aliases = tuple(Alias(o, i) for o, i in enumerate([0, *range(len(inputs) - states, len(inputs))]))
        return Choice(self.name, workspace=sum(aligned(size * d.itemsize) for d in code.temps), aliases=aliases)

    def prepare(self, args: KernelArgs) -> Call:
        xs = [x for x in args.inputs if x is not None]
        outs = [y.reshape(-1) for y in args.outputs if y is not None]
        code = code_of(args.node, [DType.of(x.dtype) for x in xs])
        temps = [args.scratch(d, (min(BLOCK, xs[0].size),)) for d in code.temps]
        flat = [x if s else x.reshape(-1) for x, s in zip(xs, code.scalar, strict=False)]
        return Blocks(code, flat, outs, temps).run


def update_in_place(rule: str, xs: Sequence[Any], states: int = 0, draws: int = 0) -> None:
    """One step of an optimizer now, over W and its states: `xs` are the inputs of the operator Update
    (ops/training/update.py), where the tensor, its gradient and its states are contiguous, of one size, and may be
    parts of larger ones.

    >>> W, dW = np.ones(2, np.float32), np.full(2, 2, np.float32)
    >>> update_in_place("mul rate dW; sub W #0 -> #1", [W, dW, np.asarray(0.25, np.float32)])
    >>> W
    array([0.5, 0.5], dtype=float32)
    """
    code = _code(rule, tuple(DType.of(x.dtype) for x in xs), states, draws)
    flat = [x if s else x.reshape(-1) for x, s in zip(xs, code.scalar, strict=False)]
    outs = [flat[0], *flat[len(xs) - states :]]
    temps = [np.empty(min(BLOCK, flat[0].size), d.numpy) for d in code.temps]
    with np.errstate(all="ignore"):
        Blocks(code, flat, outs, temps).run()


class Blocks:
    """An update over flat arrays, block by block; `temps` are as large as a block, or as tensors that are smaller."""

    most: ClassVar[int] = BLOCK

    def __init__(self, code: UpdateCode, xs: list[Any], outs: list[Any], temps: list[Any]) -> None:
        self.code, self.outs, self.temps = code, outs, temps
        self.values: list[Any] = [*xs, *[None] * len(code.parts)]  # numbers are computed into arrays of their own
        self._once: list[Written] = []
        self._each: list[tuple[Any, tuple[int, ...], int, int]] = []
        written = {len(xs) + i for i, r in enumerate(code.registers) if r < 0 and not code.scalar[len(xs) + i]}
        self._rest = [(out, root) for i, (out, root) in enumerate(zip(outs, code.roots, strict=True))
                      if root not in written or root in code.roots[:i]]  # fmt: skip
        for i, (e, args) in enumerate(code.parts):
            me = len(xs) + i
            if e.kind == "const":
                self.values[me] = np.asarray(e.value, e.dtype.numpy)
            elif code.scalar[me]:
                given = [self.values[a] for a in args]
                self.values[me] = np.empty(np.broadcast_shapes(*(x.shape for x in given)), e.dtype.numpy)
                self._once += _written(_function(e), given, self.values[me])
            else:
                self._each.append((_function(e), args, me, code.registers[i]))
        whole = 0 < outs[0].size <= BLOCK
        self._whole = self._of_block(0, outs[0].size) if whole else None

    def run(self) -> None:
        """Run all blocks."""
        self.numbers()
        self.each_block()

    def numbers(self) -> list[Any]:
        """Compute the values that are numbers: the arrays of all values, which stay the same; None for those of
        blocks."""
        for function, args in self._once:
            function(*args)
        return self.values

    def each_block(self) -> None:
        """Run all blocks on the numbers as they are."""
        if self._whole is not None:
            for function, args in self._whole:
                function(*args)
            return
        size = self.outs[0].size
        for start in range(0, size, BLOCK):
            for function, args in self._of_block(start, min(start + BLOCK, size)):
                function(*args)

    def _of_block(self, start: int, stop: int) -> list[Written]:
        """The calls of a block."""
        values = [x if s or x is None else x[start:stop] for x, s in zip(self.values, self.code.scalar, strict=True)]
        temps = self.temps if stop - start == BLOCK else [t[: stop - start] for t in self.temps]
        places = [*temps, *(out[start:stop] for out in reversed(self.outs))]  # output i is place -1 - i
        calls: list[Written] = []
        for function, args, me, register in self._each:
            out = values[me] = places[register]
            calls += _written(function, [values[a] for a in args], out)
        return calls + [(np.copyto, (out[start:stop], values[root])) for out, root in self._rest]


Written = tuple[Any, tuple[Any, ...]]  # a function, and its arguments: operands, then the array that it writes


def _function(e: Expr) -> Any:
    """NumPy's function; None for a cast, or a choice by a condition."""
    return None if e.kind in ("cast", "where") else getattr(np, PRIMITIVES[e.kind][0])


def _written(function: Any, args: list[Any], out: Any) -> list[Written]:
    """The calls that write a value: several for a choice by a condition."""
    if function is not None:
        return [(function, (*args, out))]
    return [(_copy, (out, args[-1])), *([(_copy, (out, args[1], args[0]))] if len(args) == 3 else [])]


def _copy(out: Any, x: Any, where: Any = True) -> None:
    np.copyto(out, x, casting="unsafe", where=where)

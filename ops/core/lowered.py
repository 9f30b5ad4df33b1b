"""Expressions as straight-line code over registers: the one form that evaluators read.

NumPy runs the code (ops/core/evaluate.py), and CUDA text is written from it (runtime/backends/cuda/source.py).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from ..dataclasses import dataclass
from ..types import DType
from .expr import Expr, Scalar


@dataclass(frozen=True, slots=True)
class Instruction:
    """One result: a primitive, "cast", "where" or "const". `args` are numbers of values, `value` is that of the
    expression."""

    kind: str
    args: tuple[int, ...]
    dtype: DType
    value: Scalar | None = None


@dataclass(frozen=True, slots=True)
class Lowered:
    """Code of one or several expressions over the same inputs.

    Values are numbered: inputs first, then the results of `code` in order; `roots` are the values of the outputs.
    `inputs` has an element type for each input, None where no expression reads it. `scalar` is True for values that
    follow from constants and inputs of one element alone: they are computed once, the others for each element.

    `registers` has a place for each result: temporary i, or -1 - i for output i; that of a scalar means nothing.
    `temps` lists the element type of each temporary. An output whose root has another register is copied at the end.
    `inplace` lists the inputs whose bytes the only output may take.
    """

    inputs: tuple[DType | None, ...]
    code: tuple[Instruction, ...]
    roots: tuple[int, ...]
    scalar: tuple[bool, ...]
    registers: tuple[int, ...]
    temps: tuple[DType, ...]
    inplace: tuple[int, ...]

    @property
    def reads(self) -> list[int]:
        """The inputs that are read."""
        return [i for i, dtype in enumerate(self.inputs) if dtype is not None]

    def dtype(self, value: int) -> DType:
        """The element type of a value."""
        dtype = self.inputs[value] if value < len(self.inputs) else self.code[value - len(self.inputs)].dtype
        assert dtype is not None
        return dtype


def lower(roots: Sequence[Expr], inputs: int, numbers: Container[int] = (), renews: Sequence[int] = ()) -> Lowered:
    """Order expressions, share equal parts, and give each intermediate value a register.

    `numbers` are the inputs of one element. `renews` names for each output the input in whose memory it may lie: it is
    written where that is read no more. Without it outputs lie in memory of their own, and serve as scratch before.

    >>> from mezzo.ops.core.expr import E, inputs
    >>> x, y = inputs([DType.FLOAT, DType.FLOAT])
    >>> for one in lower([E.max(x, 0) + y], 2).code:
    ...     print(one.kind, one.args)
    const ()
    max (0, 2)
    add (3, 1)
    """
    number: dict[Expr, int] = {}
    code: list[Instruction] = []
    dtypes: list[DType | None] = [None] * inputs
    scalar = [i in numbers for i in range(inputs)]

    def add(*about: Any) -> int:
        code.append(Instruction(*about))
        scalar.append(all(scalar[a] for a in code[-1].args))
        return inputs + len(code) - 1

    def visit(e: Expr) -> int:
        if e.kind == "input":
            dtypes[i := int(e.value or 0)] = e.dtype
            return i
        if e not in number:
            number[e] = add(e.kind, tuple(map(visit, e.args)), e.dtype, e.value)
        return number[e]

    ends = tuple(map(visit, roots))
    if renews:  # what is the next value of another input is read before that input's own next value is written
        moves = [end in renews and end != before for end, before in zip(ends, renews, strict=True)]
        ends = tuple(add("cast", (e,), dtypes[e]) if moved else e for e, moved in zip(ends, moves, strict=True))
    last = _last_reads(code)
    direct = _direct(ends, scalar, last, inputs, renews)
    last |= {end: 2 * len(code) for end in ends if end not in direct}
    registers, temps = _registers(code, scalar, last, direct, inputs, not renews)
    written = [2 * i for i, r in enumerate(registers) if r == -1 and not scalar[inputs + i]]
    first = min(written, default=2 * len(code))
    inplace = tuple(i for i, d in enumerate(dtypes) if d is not None and last.get(i, 0) <= first)
    return Lowered(tuple(dtypes), tuple(code), ends, tuple(scalar), registers, temps, inplace if len(ends) == 1 else ())


def _last_reads(code: Sequence[Instruction]) -> dict[int, int]:
    """The last reads of values: instruction i begins to write at 2 * i. All operands are read by then, but for a
    select, which copies its second choice first, and reads the first choice and the condition afterwards."""
    last: dict[int, int] = {}
    for i, one in enumerate(code):
        for n, a in enumerate(one.args):
            at = 2 * i + (one.kind == "where" and n < 2)
            last[a] = max(last.get(a, 0), at)
    return last


def _direct(
    ends: Sequence[int], scalar: Sequence[bool], last: Mapping[int, int], inputs: int, renews: Sequence[int]
) -> dict[int, int]:
    """The results that are written into an output at once, by value."""
    direct: dict[int, int] = {}
    for output, end in enumerate(ends):
        read = last.get(renews[output], -1) if renews else -1
        if end >= inputs and not scalar[end] and end not in direct and read <= 2 * (end - inputs):
            direct[end] = output
    return direct


def _registers(
    code: Sequence[Instruction],
    scalar: Sequence[bool],
    last: Mapping[int, int],
    direct: Mapping[int, int],
    inputs: int,
    scratch: bool,
) -> tuple[tuple[int, ...], tuple[DType, ...]]:
    """The register of each result, and the element types of temporaries. With `scratch`, an output holds other results
    until its own is written."""
    free: list[int] = []
    until: dict[int, int] = {}  # from where on an output holds its own result
    types: dict[int, DType] = {}
    for end, output in direct.items() if scratch else ():
        free.append(-1 - output)
        until[-1 - output], types[-1 - output] = 2 * (end - inputs), code[end - inputs].dtype
    held: dict[int, int] = {}
    registers: list[int] = []
    temps: list[DType] = []
    for i, one in enumerate(code):
        me = inputs + i
        dying = [a for a in dict.fromkeys(one.args) if a in held and last[a] // 2 == i]
        free += [held.pop(a) for a in dying if last[a] == 2 * i]
        if scalar[me] or me in direct:
            registers.append(-1 - direct.get(me, 0))
        else:
            # the one that is free for longest: many a function of NumPy is slower where it writes over its operand
            fit = (r for r in free if types[r] is one.dtype and last[me] <= until.get(r, last[me]))
            register = next(fit, None)
            if register is None:
                register = len(temps)
                types[register] = one.dtype
                temps.append(one.dtype)
            else:
                free.remove(register)
            held[me] = register
            registers.append(register)
        free += [held.pop(a) for a in dying if a in held]
    return tuple(registers), tuple(temps)

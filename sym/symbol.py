"""Symbols: expressions over variables that become a graph when they are bound, as in MXNet (arXiv 1512.01274, 2.1).
`sym/methods.py` attaches the methods that infer, plan, write and bind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..nd.array import Array
from ..nd.named import attributes
from ..nd.recording import RECORDING
from ..ops import OPS
from ..ops.errors import InputError
from .expression import (
    NAMES,
    Constant,
    Entry,
    Use,
    label,
    line,
    makers,
    output_name,
    replaced,
    variables,
)
from .names import check_names, nearest

if TYPE_CHECKING:
    from .methods import SymbolMethods
else:
    SymbolMethods = object  # its members are attached once what they call is there


class Symbol(SymbolMethods):
    """One or several outputs of an expression. Nothing is computed before it is bound.

    >>> from mezzo import sym
    >>> x = sym.Variable("x")
    >>> net = sym.FullyConnected(x, num_hidden=4, name="fc")
    >>> net.list_arguments(), net.list_outputs()
    (['x', 'fc_weight', 'fc_bias'], ['fc_output'])
    >>> net.infer_shape(x=(2, 3))
    ([(2, 3), (4, 3), (4,)], [(2, 4)], [])
    """

    __slots__ = ("entries",)

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = tuple(entries)
        if not self.entries:
            raise InputError("a symbol without outputs", where=line())

    # -- what it is ---------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """The name of what makes it; of several outputs, that of the first."""
        return label(self.entries[0][0])

    def list_arguments(self) -> list[str]:
        """The names of the variables, in the order in which the expression needs them."""
        return [v.name for v in variables(self.entries) if not v.auxiliary]

    def list_auxiliary_states(self) -> list[str]:
        """The names of the states that a run in training mode changes."""
        return [v.name for v in variables(self.entries) if v.auxiliary]

    def list_inputs(self) -> list[str]:
        """Arguments and auxiliary states together."""
        return [v.name for v in variables(self.entries)]

    def list_outputs(self) -> list[str]:
        """The names of the outputs."""
        return list(map(output_name, self.entries))

    def get_internals(self) -> Symbol:
        """Return every value of the expression as an output, in the order in which they are computed.

        >>> from mezzo import sym
        >>> net = sym.Relu(sym.Variable("x"), name="r")
        >>> net.get_internals()["x"].list_outputs()
        ['x']
        """
        values: list[Entry] = []
        for maker in makers(self.entries):
            if not isinstance(maker, Constant):
                values += [(maker, i) for i in range(maker.outputs if isinstance(maker, Use) else 1)]
        return Symbol(values)

    def get_children(self) -> Symbol | None:
        """Return the operands of the first output; None for a variable."""
        maker = self.entries[0][0]
        return Symbol(tuple(filter(None, maker.inputs))) if isinstance(maker, Use) else None

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Symbol]:
        return (Symbol([e]) for e in self.entries)

    def __bool__(self) -> bool:
        raise InputError(
            "a symbol has no numbers, so that none of them can decide", where=line(), hint="use mz.sym.where"
        )

    def __getitem__(self, key: int | str | slice) -> Symbol:
        """An output by its number or name. Raises InputError for a name that is none of the outputs'."""
        if isinstance(key, slice):
            return Symbol(self.entries[key])
        if isinstance(key, str):
            names = self.list_outputs()
            if key not in names:
                raise InputError(f"there is no output {key!r}{nearest(key, names)}", where=self.name)
            key = names.index(key)
        return Symbol([self.entries[key]])

    def __repr__(self) -> str:
        return f"<Symbol {', '.join(self.list_outputs())}>"

    # -- composing ----------------------------------------------------------------------------------------------------

    def __call__(self, **given: Symbol) -> Symbol:
        """The expression with other symbols in the place of variables. Raises InputError for names that it lacks."""
        check_names(given, self.list_inputs(), "compose", self.name, complete=False)
        return Symbol(replaced(self.entries, {n: s.entry for n, s in given.items()}))

    @property
    def entry(self) -> Entry:
        """The only output. Raises InputError where there are several."""
        if len(self.entries) != 1:
            raise InputError(
                f"one output is needed, here are {', '.join(self.list_outputs())}",
                where=line(),
                hint="take one: sym[0]",
            )
        return self.entries[0]

    def __add__(self, other: Any) -> Symbol:
        return use("Add", self, other)

    def __radd__(self, other: Any) -> Symbol:
        return use("Add", other, self)

    def __sub__(self, other: Any) -> Symbol:
        return use("Sub", self, other)

    def __rsub__(self, other: Any) -> Symbol:
        return use("Sub", other, self)

    def __mul__(self, other: Any) -> Symbol:
        return use("Mul", self, other)

    def __rmul__(self, other: Any) -> Symbol:
        return use("Mul", other, self)

    def __truediv__(self, other: Any) -> Symbol:
        return use("Div", self, other)

    def __rtruediv__(self, other: Any) -> Symbol:
        return use("Div", other, self)

    def __pow__(self, other: Any) -> Symbol:
        return use("Pow", self, other)

    def __matmul__(self, other: Any) -> Symbol:
        return use("MatMul", self, other)

    def __neg__(self) -> Symbol:
        return use("Neg", self)

    def __abs__(self) -> Symbol:
        return use("Abs", self)

    def __lt__(self, other: Any) -> Symbol:
        return use("Less", self, other)

    def __gt__(self, other: Any) -> Symbol:
        return use("Greater", self, other)

    def __le__(self, other: Any) -> Symbol:
        return use("LessOrEqual", self, other)

    def __ge__(self, other: Any) -> Symbol:
        return use("GreaterOrEqual", self, other)


def use(
    op: str, *operands: Any, name: str = "", domain: str = "", outputs: int = 1, loss: Entry | None = None, **attrs: Any
) -> Symbol:
    """An operator over symbols, numbers, arrays and None.

    Raises InputError for an operator that is not carried, and for operands that are no symbols.
    """
    if (domain, op) not in OPS:
        raise InputError(f"there is no operator {domain or 'ai.onnx'}::{op}", where=line())
    like = next((s for s in operands if isinstance(s, Symbol)), None)
    inputs = tuple(None if x is None else operand(x, op, like) for x in operands)
    maker = Use(op, name or NAMES.fresh(op), inputs, attributes(attrs), domain, outputs, line(), loss)
    return Symbol([(maker, i) for i in range(outputs)])


def operand(x: Any, op: str, like: Symbol | None = None) -> Entry:
    """Return the entry of an operand. Raises InputError for one that is no symbol, number or array."""
    if isinstance(x, Symbol):
        return x.entry
    if isinstance(x, bool | int | float) and like is not None:
        return Constant(np.asarray(x), weak=True), 0
    if RECORDING.trace is not None and isinstance(x, Array):
        from ..nd.recorder import ForSymbols  # with the first trace

        raise ForSymbols(f"{op} of symbols is given an array", "use the function of mz.nd")
    try:
        value = np.asarray(x)
    except ValueError as error:
        raise InputError(f"{op} of {type(x).__name__}: {error}", where=line()) from error
    if value.dtype.hasobject:
        raise InputError(f"{op} of {type(x).__name__}", where=line(), hint="give symbols, numbers or arrays")
    return Constant(value), 0

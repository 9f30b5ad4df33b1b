"""Symbols: expressions over variables that become a graph when they are bound, as in MXNet (arXiv 1512.01274, 2.1)."""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..nd.named import attributes
from ..ops import OPS, DType
from ..ops.errors import InputError
from ..runtime.engine.work import OURS

if TYPE_CHECKING:
    from .executor import Executor
    from .memory import Memory

Dims = tuple[int | None, ...]
Shapes = list[tuple[int, ...] | None]


@dataclass(frozen=True, slots=True, eq=False)
class Variable:
    """A leaf: an argument, or (`auxiliary`) a state that a run changes, such as running statistics.

    `dims` is what is known of its shape, None for an open size; `init` names the initialiser meant for it, empty for
    what is fed (data, labels). A `fixed` one keeps what that makes of it: it has no gradient.
    """

    name: str
    dims: Dims | None = None
    dtype: DType = DType.FLOAT
    auxiliary: bool = False
    init: str = ""
    where: str = ""
    fixed: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Constant:
    """A leaf whose numbers are known; a number of Python (`weak`) takes the element type of what it stands beside."""

    value: np.ndarray[Any, Any]
    weak: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """A part of the expression that an operator runs again and again: its own variables, and what it returns. Whatever
    does not depend on these variables belongs to the expression around."""

    inputs: tuple[Variable, ...]
    outputs: tuple[Entry, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """One use of an operator of ONNX (or of another domain). `loss` is the scalar whose gradient stands for that of the
    output, in heads such as SoftmaxOutput."""

    op: str
    name: str
    inputs: tuple[Entry | None, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    domain: str = ""
    outputs: int = 1
    where: str = ""
    loss: Entry | None = None

    def reads(self) -> Iterator[Entry]:
        """What it is made of, the operands of its bodies included."""
        yield from filter(None, self.inputs)
        for value in self.attrs.values():
            if isinstance(value, Body):
                yield from captured(value)


Leaf = Variable | Constant
Maker = Leaf | Use
Entry = tuple[Maker, int]  # an output of an expression: who makes it, and which of its outputs it is


class Names(threading.local):
    """Names for what the user does not name: the operator's, and a number."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def fresh(self, op: str) -> str:
        stem = op.lower()
        self.counts[stem] += 1
        return f"{stem}{self.counts[stem] - 1}"


NAMES = Names()


def line() -> str:
    """The line of the user's program that is being run."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OURS + os.sep):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


class Symbol:
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
        """Every value of the expression as an output, in the order in which they are computed.

        >>> from mezzo import sym
        >>> net = sym.Relu(sym.Variable("x"), name="r")
        >>> net.get_internals()["x"].list_outputs()
        ['x']
        """
        found: list[Entry] = []
        for maker in makers(self.entries):
            if not isinstance(maker, Constant):
                found += [(maker, i) for i in range(maker.outputs if isinstance(maker, Use) else 1)]
        return Symbol(found)

    def get_children(self) -> Symbol | None:
        """What the first output is made of; None for a variable."""
        maker = self.entries[0][0]
        return Symbol(tuple(filter(None, maker.inputs))) if isinstance(maker, Use) else None

    def __len__(self) -> int:
        return len(self.entries)

    def __iter__(self) -> Iterator[Symbol]:
        return (Symbol([e]) for e in self.entries)

    def __getitem__(self, key: int | str | slice) -> Symbol:
        """An output by its number or name. Raises InputError for a name that is none of the outputs'."""
        if isinstance(key, slice):
            return Symbol(self.entries[key])
        if isinstance(key, str):
            from .binding import nearest

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
        from .binding import check_names

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

    def __getattr__(self, name: str) -> Callable[..., Symbol]:
        """Operators and layers as methods, so that they can be chained: `x.FullyConnected(num_hidden=10).Softmax()`."""
        from . import operators

        if not name[:1].isupper():
            raise AttributeError(name)
        function = operators.find(name)
        return lambda *others, **attrs: function(self, *others, **attrs)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The functions that take symbols as those of the array API standard take arrays."""
        from . import standard

        return standard

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

    # -- shapes, memory, files, execution -----------------------------------------------------------------------------

    def infer_shape(self, **shapes: Sequence[int]) -> tuple[Shapes, Shapes, Shapes]:
        """The shapes of arguments, outputs and auxiliary states, from those of some arguments (0: open).

        Raises ShapeError where they do not fit, with the chain of operators that leads there, and InputError naming all
        that stays open.
        """
        from .shapes import shapes_of

        return shapes_of(self, shapes, complete=True)

    def infer_shape_partial(self, **shapes: Sequence[int]) -> tuple[Shapes, Shapes, Shapes]:
        """`infer_shape` that answers None for what stays open."""
        from .shapes import shapes_of

        return shapes_of(self, shapes, complete=False)

    def memory(self, *, train: bool = False, grad_req: Any = "write", **shapes: Sequence[int]) -> Memory:
        """The bytes that an executor for these shapes takes, exactly: they are planned, not guessed."""
        from .memory import memory

        return memory(self, shapes, train, grad_req)

    def tojson(self) -> str:
        """The expression as text; `load_json` reads it."""
        from .text import written

        return written(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `tojson` to a file, which is replaced as a whole."""
        from ..runtime.files import replace_file

        replace_file(path, [self.tojson().encode()])

    def simple_bind(self, ctx: Any = None, grad_req: Any = "write", **shapes: Sequence[int]) -> Executor:
        """An executor with arrays of its own (zeros) for these shapes of the inputs. `grad_req` is "write", "add" or
        "null", for all arguments or by name.

        Raises InputError naming at once all that is missing or unknown, ShapeError where shapes do not fit.
        """
        from .binding import simple_bind

        return simple_bind(self, ctx, grad_req, shapes)

    def bind(
        self,
        ctx: Any = None,
        args: Any = None,
        args_grad: Any = None,
        grad_req: Any = "write",
        aux_states: Any = None,
    ) -> Executor:
        """An executor over arrays that are given: by name, or in the order of `list_arguments`. Gradients of arguments
        without an array in `args_grad` are not computed, if `args_grad` is given.

        Raises InputError naming at once all that is missing or unknown, with the nearest names.
        """
        from .binding import bind

        return bind(self, ctx, args, args_grad, grad_req, aux_states)

    def eval(self, ctx: Any = None, **args: Any) -> list[Any]:
        """Bind, run forward once, and return the outputs."""
        return self.bind(ctx, args, grad_req="null").forward()


def label(maker: Maker) -> str:
    """The name of what makes a value."""
    return "constant" if isinstance(maker, Constant) else maker.name


def output_name(entry: Entry) -> str:
    """The name of an output, as MXNet makes it."""
    maker, index = entry
    if not isinstance(maker, Use):
        return label(maker)
    return f"{maker.name}_output{index}" if maker.outputs > 1 else f"{maker.name}_output"


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
    made = Use(op, name or NAMES.fresh(op), inputs, attributes(attrs), domain, outputs, line(), loss)
    return Symbol([(made, i) for i in range(outputs)])


def operand(x: Any, op: str, like: Symbol | None = None) -> Entry:
    """What an operator reads."""
    if isinstance(x, Symbol):
        return x.entry
    if isinstance(x, bool | int | float) and like is not None:
        return Constant(np.asarray(x), weak=True), 0
    try:
        value = np.asarray(x)
    except ValueError as error:
        raise InputError(f"{op} of {type(x).__name__}: {error}", where=line()) from error
    if value.dtype.hasobject:
        raise InputError(f"{op} of {type(x).__name__}", where=line(), hint="give symbols, numbers or arrays")
    return Constant(value), 0


# -- walking ----------------------------------------------------------------------------------------------------------


def makers(entries: Iterable[Entry]) -> list[Maker]:
    """Everything that the entries are made of, operands first, each once."""
    found: dict[Maker, None] = {}
    todo: list[tuple[Maker, bool]] = [(m, False) for m, _ in reversed(list(entries))]
    while todo:
        maker, ready = todo.pop()
        if maker in found:
            continue
        if ready or not isinstance(maker, Use):
            found[maker] = None
            continue
        todo.append((maker, True))
        reads = [*maker.reads(), *([maker.loss] if maker.loss else [])]
        todo += [(m, False) for m, _ in reversed(reads) if m not in found]
    return list(found)


def variables(entries: Iterable[Entry]) -> list[Variable]:
    """The variables among them. Raises InputError where two of them, or two uses, have one name."""
    known: dict[str, Maker] = {}
    for maker in makers(entries):
        if isinstance(maker, Constant):
            continue
        other = known.setdefault(maker.name, maker)
        if other is not maker and not isinstance(other, Constant):
            raise InputError(
                f"two parts of the expression are named {maker.name!r}: made at {other.where} and at {maker.where}",
                hint="give one of them another name=",
            )
    return [m for m in known.values() if isinstance(m, Variable)]


def inside(body: Body) -> list[Maker]:
    """What belongs to a body: what depends on its variables, operands first."""
    mine: set[Maker] = set(body.inputs)
    found: list[Maker] = []
    for maker in makers(body.outputs):
        if isinstance(maker, Use) and any(m in mine for m, _ in maker.reads()):
            mine.add(maker)
            found.append(maker)
    return found


def captured(body: Body) -> Iterator[Entry]:
    """What a body reads of the expression around."""
    own = {*body.inputs, *inside(body)}
    for maker in own:
        if isinstance(maker, Use):
            yield from (e for e in maker.reads() if e[0] not in own)
    yield from (e for e in body.outputs if e[0] not in own)


def replaced(
    entries: Sequence[Entry], given: Mapping[str, Entry], done: dict[Maker, Entry | Use] | None = None
) -> tuple[Entry, ...]:
    """The entries with other values in the place of variables; `done` has what was replaced before."""
    done = {} if done is None else done

    def entry(old: Entry) -> Entry:
        new = done.get(old[0])
        return old if new is None else (new, old[1]) if isinstance(new, Use) else new

    def value(old: Any) -> Any:
        if not isinstance(old, Body):
            return old
        outputs = replaced(old.outputs, given, done)
        return old if outputs == old.outputs else replace(old, outputs=outputs)

    for maker in makers(entries):
        if isinstance(maker, Variable) and maker.name in given:
            done[maker] = given[maker.name]
        elif isinstance(maker, Use) and maker not in done:
            inputs = tuple(e and entry(e) for e in maker.inputs)
            attrs = {a: value(v) for a, v in maker.attrs.items()}
            loss = maker.loss and entry(maker.loss)
            if inputs != maker.inputs or loss != maker.loss or any(attrs[a] is not v for a, v in maker.attrs.items()):
                done[maker] = replace(maker, inputs=inputs, attrs=attrs, loss=loss)
    return tuple(map(entry, entries))

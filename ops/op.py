"""The operator record, and the two ways to make one: `@op` and `@pointwise`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from .core import expr
from .core.complexes import COMPLEX, check_complex, is_complex
from .core.evaluate import evaluate, steps_of
from .core.standard import written
from .dataclasses import dataclass, field
from .errors import InputError, MezzoError, ShapeError
from .registry import OPSETS, Operators
from .symbolic import may_be_symbolic
from .traits import MIXED
from .types import Array, Dim, DType, Tensor, Type, UnknownRank

if TYPE_CHECKING:
    from typing import Unpack

    from .core.weights import WeightsRule
    from .traits import ComplexNumbers, Kind, MixedPrecision, Moves, Traits

T = TypeVar("T")
Value = Any  # an array, or the name of a graph's value: gradient rules cannot tell, and need not


class Subgraph(Protocol):
    """A body as an operator sees it. An inference rule calls it for result types; a reference passes it to `k.run`."""

    @property
    def inputs(self) -> tuple[str, ...]: ...
    @property
    def outputs(self) -> tuple[str, ...]: ...
    def infer(self, *types: Type) -> tuple[Type, ...]: ...
    def refuse(self, error: MezzoError) -> None:
        """Note that this body cannot run in this place: only running it raises the error."""


class GraphBody(Subgraph, Protocol):
    """A body as the rules of gradients and twins see it."""

    def returns(self, value: str) -> tuple[int, ...]:
        """The numbers of the outputs that are this value."""

    def reached(self, values: Iterable[str]) -> set[int]:
        """The numbers of the outputs that depend on these values through floats."""

    def extend(self) -> Any:
        """A builder of graphs that goes on where this body ends."""


def _no_bodies(body: Subgraph, *args: Array) -> tuple[Array, ...]:
    raise ShapeError("this context cannot run subgraphs", hint="evaluate the graph instead of the bare operator")


def _never() -> None:
    """The check of a context that no deadline holds for."""


@dataclass(frozen=True, slots=True)
class Context:
    """The context `k` of a reference: services besides its inputs.

    `xp` is the array module (NumPy or CuPy); `wanted` says which outputs the node uses; `run(body, *args)` runs a
    subgraph and returns its outputs, which stay valid until the second-next call; `key` holds the random key;
    `numpy_random` asks for NumPy's own stream where a node has a seed. `check()` raises where the run is to end: a loop
    of Python that may be long calls it now and then. `room` is how many bytes a loop may collect. `scores` replaces a
    forest's walk (ops/ml/forest.py), where a kernel has a faster one.
    """

    xp: Any = np
    wanted: tuple[bool, ...] = (True,)
    run: Callable[..., tuple[Array, ...]] = _no_bodies
    key: tuple[int, ...] = (0,)
    numpy_random: bool = False
    check: Callable[[], None] = _never
    room: int = 1 << 62
    scores: Callable[..., tuple[Array, Array]] | None = None

    def each(self, values: Iterable[T], often: int = 1024) -> Iterator[T]:
        """The values, with a look at the clock before one of so many."""
        for i, value in enumerate(values):
            if not i % often:
                self.check()
            yield value


class Builder(Protocol):
    """The builder `g` in a gradient rule or a body: `g.Mul(a, b)` runs an operator on arrays, or adds a node to a
    graph.

    `wants` says which inputs need a gradient, and `captured` names the values around an operator's bodies that need
    one, which may be given wherever a value is. Rules may look at element types and ranks, never at sizes:
    `g.shape_of(x)` is a value.
    """

    wants: tuple[bool, ...]
    captured: tuple[str, ...]

    def const(self, value: Any, dtype: DType | None = None) -> Value:
        """A constant; integers are int64 unless `dtype` says otherwise."""

    def scalar(self, value: float, like: Value) -> Value:
        """A constant of rank 0 in the element type of another value."""

    def type_of(self, x: Value) -> Type:
        """Return the type of a value; at least its element type is known."""

    def rank_of(self, x: Value) -> int:
        """The rank of a tensor; ShapeError where it is not known."""

    def shape_of(self, x: Value) -> Value:
        """The shape of a tensor, as an int64 vector."""

    def sum_to(self, dy: Value, x: Value) -> Value:
        """The sum of `dy` over the dims that broadcasting gave it beyond those of `x`."""

    def total(self, values: Sequence[Value]) -> Value:
        """The sum of several gradients of one value: of sequences, element by element."""

    def again(self, body: GraphBody, inputs: Sequence[Value]) -> tuple[Value, ...]:
        """The outputs of a subgraph that an operator has, run once more; inside of a Body."""

    def grad_of(
        self, body: GraphBody, inputs: Sequence[Value], dys: Sequence[Value | None]
    ) -> tuple[Value | None, ...]:
        """Gradients of a subgraph that is given `inputs`: one for each of them, and one for each of `captured`.
        None where nothing arrives. Inside of a Body."""

    def __getattr__(self, op: str) -> Callable[..., Any]: ...


@dataclass(frozen=True, slots=True)
class Twin:
    """The training form of a node: an operator with the same outputs first, and further ones for the gradient."""

    op: str
    attrs: Mapping[str, Any]
    outputs: int
    domain: str = ""


GradRule = Callable[..., tuple[Value | None, ...]]
TwinRule = Callable[..., Twin | None]
InferRule = Callable[..., Type | tuple[Type, ...]]
BodyRule = Callable[..., Value | tuple[Value, ...] | None]


@dataclass(frozen=True, slots=True)
class Body:
    """A subgraph for a sample's attribute: input types, and a function that builds the outputs with `g`."""

    inputs: Sequence[Type]
    build: Callable[..., Sequence[Value]]


@dataclass(frozen=True, slots=True)
class Held:
    """A host object as a sample's input: a list, a dict, or None for an empty optional; and its type, which an empty
    one does not tell by itself."""

    value: Any
    type: Type


@dataclass(frozen=True, slots=True)
class Sample:
    """One worked example, run by every test. Each input is a type (filled at random), an array, a host object, or None
    (absent); `outputs` is the number of requested outputs."""

    inputs: Sequence[Tensor | np.ndarray[Any, Any] | np.generic | Held | None]
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    outputs: int = 1


@dataclass(frozen=True, slots=True)
class Param:
    """A named input or output; `?` after the name marks it optional, `*` variadic."""

    name: str
    optional: bool = False
    variadic: bool = False

    @classmethod
    def parse(cls, text: str) -> Param:
        return cls(text.rstrip("?*"), text.endswith("?"), text.endswith("*"))

    def __str__(self) -> str:
        return self.name + "?" * self.optional + "*" * self.variadic


NO_ATTRIBUTES: Mapping[str, Any] = {}
REQUIRED, KEYWORD = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY


@dataclass(slots=True)
class Op:
    """The record of one operator: every fact about it that does not depend on a runtime.

    `since` is the opset of the ONNX schema it implements. `attrs` maps attribute names to defaults (REQUIRED where
    there is none). `tree` is the scalar expression of a pointwise operator. `deterministic` is False for operators
    that draw random numbers, which are neither folded nor merged.

    The traits (see ops/traits.py): `kind` is what it computes, `moves` how it moves elements if it does nothing else.
    `mixed` is the precision that it trains in under mixed precision; `follows` is True where inference may compute it
    in 16 bits once an operand is so: its float operands have one type. An operator of a domain of your own, if it
    follows, does so in training too. `jumps` is True where floats come out that change by much as an operand changes by
    little: what such an operator reads is not to be rounded without need. `rounds` is True where the first input comes
    out rounded to steps, `quantized` names the operator (domain::name) that computes the same on quantised operands.
    `planned_from` is the number of elements among its operands from which a planned program is faster than the
    reference, `written_out` is True where its parts have better kernels than the whole. `weights` says which dims it
    asks of trained parameters (see ops/core/weights.py), `complex_numbers` what it makes of complex numbers. `neutral`
    is the element that changes no result of a reduction (of a mean: of its sum). `partial` is True where an elementwise
    operator fails for some integers. `rowwise` is True where each row along the last axis of all results follows
    from the same row of the first input, and of those others that have its leading dims. `appends` are pairs of an
    input and an output that is its first rows with more behind them, in whose place it may lie.
    """

    name: str
    domain: str
    since: int
    inputs: tuple[Param, ...]
    outputs: tuple[Param, ...]
    attrs: Mapping[str, Any]
    reference: Callable[..., Any]
    samples: Sequence[Sample]
    infer_rule: InferRule
    tree: Callable[..., expr.Expr] | None = None
    deterministic: bool = True
    grad_rule: GradRule | None = None
    body_rule: BodyRule | None = None
    twin_rule: TwinRule | None = None
    older_rule: BodyRule | None = None  # the form of an operator of ONNX for opsets that lack it, or what it says
    kind: Kind = ""
    moves: Moves = ""
    mixed: MixedPrecision = ""
    follows: bool = False
    jumps: bool = False
    rounds: bool = False
    quantized: str = ""
    planned_from: int | None = None
    written_out: bool = False
    weights: WeightsRule | None = None
    complex_numbers: ComplexNumbers = ""
    neutral: float | None = None
    partial: bool = False
    rowwise: bool = False
    appends: tuple[tuple[int, int], ...] = ()

    @property
    def elementwise(self) -> bool:
        """True if one scalar expression is applied to each element."""
        return self.tree is not None

    @property
    def unary(self) -> bool:
        """True if it is elementwise, of one operand."""
        return self.elementwise and len(self.inputs) == 1 and not self.inputs[0].variadic

    @property
    def mixed_precision(self) -> MixedPrecision:
        """The precision that it trains in under mixed precision: its own, else that of its kind."""
        return self.mixed or MIXED.get(self.kind, "")

    @property
    def takes_complex(self) -> ComplexNumbers:
        """The use it makes of complex numbers: its own word, else that it moves them or is elementwise."""
        return self.complex_numbers or ("direct" if self.moves else "taken" if self.elementwise else "")

    @property
    def multiplies(self) -> bool:
        """True if it is a product or convolution of its first two inputs: sums of many terms."""
        return self.kind in ("matmul", "convolution")

    def infer(self, rule: InferRule) -> InferRule:
        """Set the inference rule: types in (None where absent), attributes by keyword; types out.

        A rule is told the attributes that it names, and which outputs the node uses if it names `wanted`. It may use
        `Tensor.shape` freely: where a rank is unknown, the answer becomes 'same element type as the first input, rank
        unknown'.
        """
        self.infer_rule = rule
        return rule

    def grad(self, rule: GradRule) -> GradRule:
        """Set the gradient rule `(g, dys, ys, xs, **attrs) -> one gradient or None per input`.

        `dys` are the gradients of the outputs (None where nothing arrives), `ys` the outputs and `xs` the inputs (None
        where absent); attributes come as the node has them, defaults left out. Where inputs of a pointwise operator
        were broadcast, autodiff sums their gradients itself. An operator with bodies returns, behind the gradients of
        its inputs, one for each of `g.captured`.
        """
        self.grad_rule = rule
        return rule

    def results(self, operands: Sequence[Any], attrs: Mapping[str, Any]) -> int:
        """Return the default number of outputs of a call: all required ones; for an operator that divides its operand
        (Split), `num_outputs` or the length of the list of sizes."""
        if "num_outputs" in self.attrs:
            return int(attrs.get("num_outputs") or (np.size(operands[1]) if len(operands) > 1 else 1))
        return max(sum(not (p.optional or p.variadic) for p in self.outputs), 1)

    def derives(self, types: Sequence[Type | None]) -> bool:
        """True if there is a gradient rule, and it holds for inputs of these types."""
        return self.grad_rule is not None and (
            self.takes_complex in ("direct", "holomorphic", "measured") or not any(map(is_complex, types))
        )

    def twin(self, rule: TwinRule) -> TwinRule:
        """Set the rule `(types, wanted, **attrs) -> Twin or None`: what takes the place of a node that a gradient
        passes through, so that the gradient rule finds more among `ys`. `types` are those of the inputs."""
        self.twin_rule = rule
        return rule

    def body(self, rule: BodyRule) -> BodyRule:
        """Set the standard form: `(g, xs, types, **attrs) -> values` builds the operator from standard ones.

        `xs` are the inputs (None where absent), `types` what is known of them; one value per output comes back, or
        None for a use that has no standard form. An exporter expands the operator by it on request.
        """
        self.body_rule = rule
        return rule

    def older(self, rule: BodyRule) -> BodyRule:
        """Set the form of an operator of ONNX for opsets that lack it, or an attribute that a node has; a rule like
        that of `body`. Pointwise operators have one by themselves."""
        self.older_rule = rule
        return rule

    def bind(self, attrs: Mapping[str, Any], named: Container[str] | None = None) -> dict[str, Any]:
        """The attributes that the reference knows, or those of them that a rule names; raises ShapeError for a missing
        required one."""
        missing = [a for a, default in self.attrs.items() if default is REQUIRED and a not in attrs]
        if missing:
            raise ShapeError(f"{self.name} lacks the attribute {' and '.join(missing)}")
        return {a: v for a, v in attrs.items() if a in self.attrs and (named is None or a in named)}

    def inferred(self, *inputs: Type | None, **attrs: Any) -> Any:
        """Return what the inference rule makes of types; it is told the attributes that it names."""
        named, others = _keywords(self.infer_rule)
        return self.infer_rule(*inputs, **{a: v for a, v in attrs.items() if others or a in named})

    def infer_types(
        self, inputs: Sequence[Type | None], attrs: Mapping[str, Any], wanted: tuple[bool, ...] = (True,)
    ) -> tuple[Type, ...]:
        """Result types of one node, one per entry of `wanted`; raises ShapeError where the operands do not fit."""
        named, others = _keywords(self.infer_rule)
        told = self.bind(attrs, None if others else named)
        if "wanted" in named:
            told["wanted"] = wanted
        try:
            results = self.infer_rule(*inputs, **told)
        except UnknownRank:
            first = next(t for t in inputs if isinstance(t, Tensor))
            results = tuple(Tensor(first.dtype, None) for _ in wanted)
        types = results if isinstance(results, tuple) else (results,)
        if len(types) < len(wanted):
            raise ShapeError(f"{self.name} has {len(types)} outputs, and the node asks for {len(wanted)}")
        if any(t.__class__ is Tensor and t.dtype in COMPLEX for t in inputs):
            check_complex(self, inputs, types)
        return types[: len(wanted)]

    def run(self, k: Context, inputs: Sequence[Array | None], attrs: Mapping[str, Any]) -> tuple[Array, ...]:
        """Run the reference: fresh arrays, one per output."""
        result = self.reference(k, *inputs, **self.bind(attrs))
        results = result if isinstance(result, tuple) else (result,)
        return tuple(k.xp.asarray(r) if isinstance(r, np.generic) else r for r in results)

    def __str__(self) -> str:
        ins, outs = (", ".join(map(str, params)) for params in (self.inputs, self.outputs))
        name = f"{self.domain}::{self.name}" if self.domain else self.name
        return f"{name}-{self.since}({ins}; {', '.join(self.attrs)}) -> {outs}"


@cache
def _keywords(rule: InferRule) -> tuple[frozenset[str], bool]:
    """The parameters that a rule names, and whether it takes others."""
    code = getattr(rule, "__code__", None)
    if code is None:
        return frozenset(), True
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return frozenset(named), bool(code.co_flags & inspect.CO_VARKEYWORDS)


OPS = Operators()


@cache
def _expression(name: str, dtype: DType) -> expr.Expr:
    """Return the expression of a pointwise operator of ONNX with one input."""
    tree = OPS["", name].tree
    assert tree is not None
    return tree([dtype])


def as_standard(g: Any, roots: Sequence[expr.Expr], xs: Sequence[Value]) -> tuple[Any, ...] | None:
    """Write expressions over values as standard operators; None where one of them has no such form."""
    return written(g, roots, xs, _expression)


def _element_type(x: Array) -> DType:
    return DType.INT64 if x.dtype == object and may_be_symbolic(x) else DType.of(x.dtype)


def broadcast_dims(*shapes: tuple[Dim, ...] | None) -> tuple[Dim, ...] | None:
    """Dims of a broadcast result; None where a rank is unknown. Raises ShapeError where sizes clash.

    >>> broadcast_dims((2, 1, "n"), (3, "n"))
    (2, 3, 'n')
    """
    known = [s for s in shapes if s is not None]
    if len(known) < len(shapes):
        return None
    if known and all(s == known[0] for s in known):
        return tuple(known[0])
    rank = max((len(s) for s in known), default=0)
    columns = zip(*((1,) * (rank - len(s)) + tuple(s) for s in known), strict=True)

    def one(column: tuple[Dim, ...]) -> Dim:
        rest = list[Dim]()  # not a set: whether symbolic sizes are equal has to be asked
        for d in column:
            if d != 1 and d not in rest:
                rest.append(d)
        sizes = [d for d in rest if isinstance(d, int)]
        if len(sizes) > 1:
            raise ShapeError(f"cannot broadcast {' with '.join(str(list(s)) for s in known)}")
        return sizes.pop() if sizes else rest.pop() if len(rest) == 1 else None if rest else 1

    return tuple(map(one, columns))


def broadcast(*types: Tensor | None) -> Tensor:
    """The commonest inference rule: broadcast dims, element type of the first input."""
    present = [t for t in types if t is not None]
    return Tensor(present[0].dtype, broadcast_dims(*(t.dims for t in present)))


def _same_as_first(*types: Any, **_: Any) -> Type:
    first: Type = types[0]
    return first.forget() if isinstance(first, Tensor) else first


def signature(function: Callable[..., Any]) -> tuple[tuple[Param, ...], dict[str, Any]]:
    """Inputs and attributes, from what comes after `k` or `e`."""
    if not isinstance(function, FunctionType) or {"__signature__", "__wrapped__"} & vars(function).keys():
        shown = [*inspect.signature(function).parameters.values()][1:]
        ins = [(p.name, p.default, str(p.annotation), p.kind is p.VAR_POSITIONAL) for p in shown if p.kind != KEYWORD]
        attrs = {p.name: p.default for p in shown if p.kind == KEYWORD}
    else:  # the same, read at a tenth of the cost: a start has some hundred operators to define
        code, types = function.__code__, function.__annotations__
        before, names, count = code.co_argcount, code.co_varnames, code.co_kwonlyargcount
        given = function.__defaults__ or ()
        defaults = dict(zip(names[before - len(given) : before], given, strict=True))
        ins = [(n, defaults.get(n, REQUIRED), str(types.get(n, "")), False) for n in names[1:before]]
        if code.co_flags & inspect.CO_VARARGS:
            ins.append((names[before + count], REQUIRED, "", True))
        keywords = function.__kwdefaults__ or {}
        attrs = {n: keywords.get(n, REQUIRED) for n in names[before : before + count]}
    params = (Param(n, default is None or type.endswith("| None"), variadic) for n, default, type, variadic in ins)
    return tuple(params), attrs


def _register(record: Op, rule: Callable[..., Any]) -> Op:
    """Enter a record. One in a domain of your own may be defined again (a cell of a notebook runs twice)."""
    key = record.domain, record.name
    # One of ours does not read the index: a start defines some before it looks one up.
    again = OPS.loaded(key) if str(rule.__module__).startswith(f"{__package__}.") else key in OPS
    if again and record.domain in OPSETS:
        raise InputError(
            f"operator {record.domain or 'ai.onnx'}::{record.name} is defined already",
            where="mezzo.op",
            hint="give an operator of your own a domain of its own: domain='org.example'",
        )
    OPS[key] = record
    for forget in OPS.redefined if again else ():
        forget()
    return record


def op(
    name: str,
    *,
    since: int = 1,
    domain: str = "",
    inputs: tuple[str, ...] = (),
    outputs: tuple[str, ...] = ("Y",),
    samples: Sequence[Sample] = (),
    deterministic: bool = True,
    attributes: Mapping[str, Any] = NO_ATTRIBUTES,
    **traits: Unpack[Traits],
) -> Callable[[Callable[..., Any]], Op]:
    """Define an operator from its reference; the signature is the schema.

    After the context `k`, positional parameters are inputs (a default of None or an annotation that ends with
    `| None` makes one optional, `*xs` variadic) and keyword-only ones are attributes with their defaults. Several
    outputs come back as a tuple. `attributes` are more of them with their defaults, which several operators share and a
    reference takes by `**`; `inputs` names the operands of one that takes them by `*`, as `outputs` are named. The
    reference returns fresh arrays. Until `.infer` says otherwise, the result has the type of the first input. `traits`
    say what the operator is to passes and training (see `Op`).

    With a domain of your own this registers an operator that imported models then use; `.infer`, `.grad` and `.body`
    add the result's type, the gradient and the standard operators that it consists of (`to_onnx(standard=True)`).
    Raises InputError if the domain is one of ours and has the operator already.

    >>> @op("Scaled", domain="org.example")
    ... def scaled(k, x, *, by=2.0):
    ...     return x * np.float32(by)
    >>> @scaled.body
    ... def _(g, xs, types, *, by=2.0):
    ...     return g.Mul(xs[0], g.const(by, types[0].dtype))
    >>> print(scaled, *scaled.run(Context(), [np.ones(2, np.float32)], {"by": 3.0}))
    org.example::Scaled-1(x; by) -> Y [3. 3.]
    >>> del OPS["org.example", "Scaled"]
    """

    def define(reference: Callable[..., Any]) -> Op:
        ins, attrs = signature(reference)
        ins = tuple(map(Param.parse, inputs)) if inputs else ins
        attrs = dict(sorted({**attrs, **attributes}.items())) if attributes else attrs
        outs = tuple(map(Param.parse, outputs))
        about = name, domain, since, ins, outs, attrs
        return _register(Op(*about, reference, samples, _same_as_first, None, deterministic, **traits), reference)

    return define


def pointwise(
    name: str,
    *,
    since: int = 1,
    samples: Sequence[Sample] = (),
    domain: str = "",
    output: str = "Y",
    **traits: Unpack[Traits],
) -> Callable[[Callable[..., expr.Expr]], Op]:
    """Define an operator that is one scalar expression over its broadcast inputs.

    The rule gets the expression builder `e` (see ops/core/expr.py), one expression per input (None where absent) and
    the attributes; it may look at element types. Reference, inference, the allocation-free kernels and, outside of
    ONNX's own domains, the body are generated. Raises InputError as `op` does.

    >>> @pointwise("SquaredRelu", domain="org.example")
    ... def squared_relu(e, x):
    ...     return e.max(x, 0) * e.max(x, 0)
    >>> squared_relu.run(Context(), [np.array([-2, 3], np.float32)], {})
    (array([0., 9.], dtype=float32),)
    >>> del OPS["org.example", "SquaredRelu"]
    """

    def define(rule: Callable[..., expr.Expr]) -> Op:
        ins, attrs = signature(rule)

        def tree(dtypes: Sequence[DType | None], **given: Any) -> expr.Expr:
            return expr.tree_of(rule, dtypes, **given)

        def reference(k: Context, *xs: Array, **given: Any) -> Array:
            dtypes = [None if x is None else _element_type(x) for x in xs]
            (result,) = evaluate(steps_of(tree, dtypes, given).code, k.xp, xs)
            shape = np.broadcast_shapes(*(x.shape for x in xs if x is not None))
            return result if result.shape == shape else k.xp.array(k.xp.broadcast_to(result, shape), order="C")

        @lru_cache(maxsize=64)
        def result(dtypes: tuple[DType | None, ...], given: tuple[tuple[str, Any], ...]) -> DType:
            return tree(dtypes, **dict(given)).dtype

        def infer(*types: Tensor | None, **given: Any) -> Tensor:
            key = (tuple([None if t is None else t.dtype for t in types]), tuple(given.items()))
            try:
                hash(key)
            except TypeError:  # an attribute is a list
                dtype = tree(key[0], **given).dtype
            else:
                dtype = result(*key)
            return Tensor(dtype, broadcast_dims(*(t.dims for t in types if t is not None)))

        def body(g: Builder, xs: Sequence[Value | None], types: Sequence[Type | None], **given: Any) -> Any:
            known = [t.dtype if isinstance(t, Tensor) else None for t in types]
            if any(x is not None and d is None for x, d in zip(xs, known, strict=True)):
                return None
            return as_standard(g, [tree(known, **given)], xs)

        record = Op(name, domain, since, ins, (Param(output),), attrs, reference, samples, infer, tree, **traits)
        if domain:
            record.body_rule = body
        else:  # those of ONNX are the standard, of the opsets that have them
            record.older_rule = body
        return _register(record, rule)

    return define

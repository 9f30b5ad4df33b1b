"""Operators that are a few standard ones: reference and body from one rule, by the builder over arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ShapeError, UnsupportedModel
from ..op import NO_ATTRIBUTES, OPS, BodyRule, Context, Op, Sample, op, signature
from ..types import Array, DType, Type, type_of

if TYPE_CHECKING:
    from typing import Unpack

    from ..traits import Traits


class ArrayBuilder:
    """The builder `g` over arrays of the context's module: `g.Mul(a, b)` runs the reference of the operator at once.

    >>> g = ArrayBuilder()
    >>> g.Add(g.const(2), g.const([3, 4]))
    array([5, 6])
    """

    wants: tuple[bool, ...] = (True,)
    captured: tuple[str, ...] = ()

    def __init__(self, k: Context | None = None) -> None:
        self._context = k or Context()

    def const(self, value: Any, dtype: DType | None = None) -> Array:
        array: Array = self._context.xp.asarray(value, dtype.numpy if dtype else None)
        return array

    def scalar(self, value: float, like: Any) -> Array:
        return self.const(value, DType.of(self.value(like).dtype))

    def type_of(self, x: Any) -> Type:
        return type_of(self.value(x), known=True)

    def rank_of(self, x: Any) -> int:
        return int(self.value(x).ndim)

    def shape_of(self, x: Any) -> Array:
        return self.const(self.value(x).shape, DType.INT64)

    def sum_to(self, dy: Array, x: Array) -> Array:
        return dy if dy.shape == x.shape else self.op("SumTo", dy, self.shape_of(x), domain="mezzo")

    def total(self, values: Sequence[Any]) -> Any:
        if isinstance(values[0], list):
            return [self.total(parts) for parts in zip(*values, strict=True)]
        return values[0] if len(values) == 1 else self.op("Sum", *values)

    def again(self, body: Any, inputs: Sequence[Any]) -> tuple[Any, ...]:
        raise _only_inside("run again")

    def grad_of(self, body: Any, inputs: Sequence[Any], dys: Sequence[Any]) -> tuple[Any, ...]:
        raise _only_inside("differentiated")

    def value(self, x: Any) -> Any:
        """The array that stands for an operand."""
        return x

    def context(self, wanted: tuple[bool, ...]) -> Context:
        """The context of one operator, of which these outputs are asked for."""
        k = self._context
        return Context(k.xp, wanted, k.run, k.key, check=k.check, room=k.room)

    def op(self, name: str, *inputs: Any, domain: str = "", outputs: int = 1, **attrs: Any) -> Any:
        """Run an operator; returns its result, or a tuple for several `outputs`."""
        record = OPS.get((domain, name))
        if record is None:
            raise UnsupportedModel(f"operator {domain or 'ai.onnx'}::{name} is not carried")
        results = record.run(self.context((True,) * outputs), [self.value(x) for x in inputs], attrs)
        return results[0] if outputs == 1 else results[:outputs]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *inputs, **attrs: self.op(name, *inputs, **attrs)


def _only_inside(what: str) -> ShapeError:
    return ShapeError(f"a body is {what} inside of a body", hint="give the operator a Body that does so")


def composed(
    name: str,
    *,
    since: int = 1,
    domain: str = "",
    inputs: tuple[str, ...],
    outputs: tuple[str, ...] = ("Y",),
    samples: Sequence[Sample] = (),
    attributes: Mapping[str, Any] = NO_ATTRIBUTES,
    **traits: Unpack[Traits],
) -> Callable[[BodyRule], Op]:
    """Define an operator from its body: a rule as `Op.body` takes it, which has an answer wherever sizes are known.

    Inputs and outputs are named as `op` names outputs; attributes are the keywords of the rule, and `attributes`, which
    it takes by `**`. The reference is the same rule on arrays. Raises InputError as `op` does.

    >>> define = composed("Twice", domain="org.example", inputs=("X",))
    >>> twice = define(lambda g, xs, types: g.Add(xs[0], xs[0]))
    >>> twice.run(Context(), [ArrayBuilder().const([1, 2])], {})
    (array([2, 4]),)
    >>> del OPS["org.example", "Twice"]
    """

    def define(rule: BodyRule) -> Op:
        def reference(k: Context, *xs: Array | None, **attrs: Any) -> tuple[Array, ...]:
            operands = [*xs, *[None] * (len(record.inputs) - len(xs))]
            types = [None if x is None else type_of(x, known=True) for x in operands]
            result = rule(ArrayBuilder(k), operands, types, **attrs)
            results = result if isinstance(result, tuple) else (result,)
            return tuple(y.copy() if any(y is x for x in xs) else y for y in results)

        reference.__doc__, reference.__module__ = rule.__doc__, rule.__module__
        record = op(
            name, since=since, domain=domain, inputs=inputs, outputs=outputs, samples=samples,
            attributes={**signature(rule)[1], **attributes}, **traits,
        )(reference)  # fmt: skip
        record.body_rule = rule
        return record

    return define

"""`mx.sym`: symbols under MXNet's names: layers of ours that bring weights or losses, else MXNet's operators by the
importer's rules, else functions of `mz.sym`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ... import sym as ours
from ...importers.mxnet.rules import WITHOUT_MEANING
from ...sym import Group as our_group  # noqa: N813
from ...sym import Symbol, rules
from ...sym import load as our_load
from ...sym import load_json as our_load_json
from ...sym.expression import Use, group_around, grouped, makers, variables
from ...sym.expression import Variable as Leaf
from ...sym.mxnet import FUNCTIONS
from ...sym.symbol import use
from .names import ATTRIBUTES, MANAGER, group_in
from .ndarray import own

# Heads of ours, which bring losses.
OURS = """
SoftmaxOutput LinearRegressionOutput LogisticRegressionOutput MAERegressionOutput SVMOutput MakeLoss
""".split()
SAME = {"Softmax": "SoftmaxOutput", "make_loss": "MakeLoss", "stop_gradient": "BlockGrad"}
COMPARED = {"eq": "equal", "ne": "not_equal", "lt": "lesser", "le": "lesser_equal", "gt": "greater",
            "ge": "greater_equal"}  # fmt: skip


class MXNetSymbol(Symbol):
    """A symbol with what MXNet's has beside ours."""

    __slots__ = ()
    __hash__ = Symbol.__hash__

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Operators as methods: `x.reshape(shape=(0, -1))`."""
        function = None if name.startswith("_") else found(name)
        if function is None:
            raise AttributeError(f"a symbol has no {name!r}")
        return functools.partial(function, self)

    def attr_dict(self) -> dict[str, dict[str, str]]:
        """Attributes of variables, by their names."""
        attributes = {v.name: {f"__{k}__": t for k, t in v.attrs.items()} for v in self._variables()}
        for maker in makers(self.entries):
            if isinstance(maker, Leaf | Use) and maker.group:
                attributes.setdefault(maker.name, {})["__ctx_group__"] = maker.group
        return {n: {**a, **{k[2:-2]: t for k, t in a.items()}} for n, a in attributes.items() if a}

    def attr(self, key: str) -> str | None:
        return self.attr_dict().get(self.name, {}).get(key)

    def list_attr(self) -> dict[str, str]:
        return self.attr_dict().get(self.name, {})

    def _variables(self) -> list[Any]:
        return variables(self.entries)

    def infer_type(self, **types: Any) -> tuple[list[Any], list[Any], list[Any]]:
        """Element types of arguments, outputs and states: those of the variables."""
        first = next(iter(types.values()), np.float32)
        kinds = {v.name: types.get(v.name, v.dtype.numpy.type) for v in self._variables()}
        return ([kinds[n] for n in self.list_arguments()], [first] * len(self.list_outputs()),
                [kinds[n] for n in self.list_auxiliary_states()])  # fmt: skip

    def __call__(  # type: ignore[override]
        self, *args: Symbol, name: str = "", **given: Symbol
    ) -> Any:
        """The expression with other symbols in the place of variables, in their order or by name."""
        free = dict(zip(self.list_inputs(), args, strict=False))
        symbol = own_symbol(super().__call__(**free, **given))
        maker = symbol.entries[0][0]
        if name and len({id(m) for m, _ in symbol.entries}) == 1 and isinstance(maker, Use):
            renamed = replace(maker, name=name)
            return own_symbol(Symbol([(renamed, i) for _, i in symbol.entries]))
        return symbol

    def ranks(self) -> dict[str, tuple[int, ...]]:
        """Open shapes for variables of which nothing is known but what reads them first."""
        shapes: dict[str, tuple[int, ...]] = {}
        for maker in makers(self.entries):
            if not isinstance(maker, Use):
                continue
            for entry in maker.inputs[:1]:
                if entry is None or not isinstance(entry[0], Leaf) or entry[0].dims is not None:
                    continue
                if not entry[0].name.endswith("label"):
                    kernel = rules.literal(maker.attrs.get("kernel", "()")) if maker.domain == rules.DOMAIN else ()
                    rank = len(kernel) + 2 if kernel else 3 if maker.op == "RNN" else 2
                    shapes.setdefault(entry[0].name, (0,) * rank)
        return shapes

    def bind(self, ctx: Any = None, args: Any = None, args_grad: Any = None, grad_req: Any = "write",
             aux_states: Any = None, group2ctx: Any = None, **_: Any) -> Any:  # fmt: skip
        if args_grad is None and isinstance(grad_req, str):
            grad_req = "null"
        if isinstance(args, dict):
            args = {n: x for n, x in args.items() if n in self.list_arguments()}
        return _executor(super().bind(ctx, args, args_grad, grad_req, aux_states, group2ctx))

    def simple_bind(  # type: ignore[override]
        self, ctx: Any = None, grad_req: Any = "write", type_dict: Any = None, group2ctx: Any = None, **shapes: Any
    ) -> Any:
        known = {k: v for k, v in shapes.items() if k in self.list_inputs()}
        return _executor(super().simple_bind(ctx, grad_req, group2ctx, **known))

    def eval(self, ctx: Any = None, **args: Any) -> Any:
        return own(super().eval(ctx, **args))


def _executor(executor: Any) -> Any:
    executor.__class__ = MXNetExecutor
    own([executor.arg_dict, executor.grad_dict, executor.aux_dict])
    return executor


class MXNetExecutor(ours.Executor):
    """An executor whose outputs are MXNet's arrays."""

    def forward(self, is_train: bool = False, **data: Any) -> Any:
        return own(super().forward(is_train, **data))

    def copy_params_from(self, arg_params: Any, aux_params: Any = None, allow_extra_params: bool = False) -> None:
        if allow_extra_params:
            arg_params = {n: x for n, x in arg_params.items() if n in self.arg_dict}
            aux_params = {n: x for n, x in (aux_params or {}).items() if n in self.aux_dict}
        super().copy_params_from(arg_params, aux_params)


def own_symbol(x: Any) -> Any:
    """Symbols, those of a list too, with MXNet's methods: the same objects."""
    if x.__class__ is Symbol:
        x.__class__ = MXNetSymbol
    elif isinstance(x, list | tuple):
        for part in x:
            own_symbol(part)
    return x


def Variable(  # noqa: N802 (MXNet's name)
    name: str, attr: Any = None, shape: Sequence[int] | None = None, lr_mult: Any = None, wd_mult: Any = None,
    dtype: Any = None, init: Any = None, stype: Any = None, **more: Any,
) -> Any:  # fmt: skip
    """An argument, with attributes for those who train."""
    attributes = {k.strip("_"): v for k, v in {**ATTRIBUTES.current, **(attr or {}), **more}.items()}
    attributes |= {k: v for k, v in (("lr_mult", lr_mult), ("wd_mult", wd_mult)) if v is not None}
    if init is not None:
        attributes["init"] = init if isinstance(init, str) else init.dumps()
    leaf: Any = ours.Variable(name, shape, dtype or np.float32).entry[0]
    variable = replace(leaf, attrs={k: str(v) for k, v in attributes.items()}, group=group_in(attributes))
    return own_symbol(Symbol([(variable, 0)]))


var = Variable


def zeros(shape: Any, dtype: Any = None, **_: Any) -> Any:
    return own_symbol(use("Identity", np.zeros(shape, dtype or np.float32)))


def ones(shape: Any, dtype: Any = None, **_: Any) -> Any:
    return own_symbol(use("Identity", np.ones(shape, dtype or np.float32)))


def _named(function: Callable[..., Any], op: str, rule: bool) -> Callable[..., Any]:
    """The function, with names of the scope around, without settings that have no meaning."""

    def called(*operands: Any, name: str | None = None, attr: Any = None, **settings: Any) -> Any:
        kept = {k: v for k, v in settings.items() if k not in WITHOUT_MEANING and not k.startswith("__")}
        full_name = MANAGER.current.get(name, op)
        with grouped(group_in(attr or {}) or group_around()):
            return make(operands, full_name, kept)

    def make(operands: Any, full_name: str, kept: Any) -> Any:
        if not rule and rules.carried(op) and not _takes(function, kept):
            return own_symbol(rules.symbol(op, *operands, name=full_name, **kept))
        return own_symbol(function(*operands, name=full_name, **kept))

    called.__name__, called.__doc__ = op, function.__doc__
    return called


def _takes(function: Callable[..., Any], settings: Any) -> bool:
    return bool(settings.keys() <= inspect.signature(function).parameters.keys())


def found(name: str) -> Callable[..., Any] | None:
    op = SAME.get(name, name)
    if op in OURS:
        return _named(FUNCTIONS[op], op, rule=False)
    if rules.carried(op):
        return _named(functools.partial(rules.symbol, op), op, rule=True)
    return _named(FUNCTIONS[op], op, rule=False) if op in FUNCTIONS else None


def __getattr__(name: str) -> Any:
    """MXNet's operators, then the functions of `mz.sym` (PEP 562)."""
    return (None if name.startswith("__") else found(name)) or getattr(ours, name)


def _compared(op: str) -> Callable[[Any, Any], Any]:
    def compare(self: Any, other: Any) -> Any:
        if isinstance(other, Symbol):
            return own_symbol(rules.symbol(f"broadcast_{op}", self, other))
        return own_symbol(rules.symbol(f"_{op}_scalar", self, scalar=other))

    return compare


def _attach() -> None:
    names = [f"__{side}{n}__" for n in "add sub mul truediv pow".split() for side in ("", "r")]
    names += ["__neg__", "__getitem__", "get_internals", "get_children", "__iter__"]
    for name in names:
        method = getattr(Symbol, name, None)
        if method is not None:
            setattr(MXNetSymbol, name, lambda self, *a, _method=method, **k: own_symbol(_method(self, *a, **k)))
    MXNetSymbol.__iter__ = lambda self: map(own_symbol, Symbol.__iter__(self))  # type: ignore[method-assign]
    for name, op in COMPARED.items():
        if name != "eq" and name != "ne":
            setattr(MXNetSymbol, f"__{name}__", _compared(op))


_attach()


def Group(symbols: Sequence[Symbol]) -> Any:  # noqa: N802
    return own_symbol(our_group(symbols))


def load(fname: Any) -> Any:
    return own_symbol(our_load(fname))


def load_json(json_str: str) -> Any:
    return own_symbol(our_load_json(json_str))


fromjson = load_json


__all__ = ["Group", "Symbol", "Variable", "fromjson", "load", "load_json", "ones", "var", "zeros"]

"""`mx.init`: initialisers under MXNet's names and settings, which fill arrays by the names of parameters."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

from ...gluon import initializer as ours
from ...nd.array import Array
from ...ops.errors import InputError

BY_NAME = (  # MXNet's defaults: what an initialiser is not asked about
    ("bias", 0.0), ("beta", 0.0), ("moving_mean", 0.0), ("running_mean", 0.0), ("gamma", 1.0), ("moving_var", 1.0),
    ("running_var", 1.0), ("moving_inv_var", 0.0), ("moving_avg", 0.0), ("min", 0.0), ("max", 1.0),
)  # fmt: skip


class InitDesc(str):
    """The name of a parameter, with its attributes."""

    attrs: dict[str, Any]
    global_init: Any

    def __new__(cls, name: str, attrs: Any = None, global_init: Any = None) -> Self:
        desc = super().__new__(cls, name)
        desc.attrs, desc.global_init = dict(attrs or {}), global_init
        return desc


class Initializer:
    """Base: `init(name, array)` fills an array. Subclasses of yours write `_init_weight(name, array)`."""

    def __init__(self, **settings: Any) -> None:
        self._settings = settings

    def __call__(self, desc: Any, arr: Array) -> None:
        for end, value in BY_NAME:
            if str(desc).endswith(end):
                arr[:] = value
                return
        self._init_weight(desc, arr)

    def _init_weight(self, name: Any, arr: Array) -> None:
        raise NotImplementedError("an Initializer writes _init_weight(self, name, arr)")

    def for_gluon(self) -> ours.Initializer:
        """As blocks take initialisers."""
        return _Written(self)

    def dumps(self) -> str:
        """The kind and the settings as JSON, as attributes of variables have them."""
        return json.dumps([type(self).__name__.lower(), self._settings])


def first(name: str, attribute: str | None, init: Any, array: Array) -> None:
    """Fill an array as the attribute of its variable says, else as the initialiser does."""
    if not attribute:
        init(InitDesc(name), array)
        return
    kind, settings = json.loads(attribute) if attribute.startswith("[") else (attribute, {})
    create(kind, **settings)._init_weight(InitDesc(name), array)


class _Written(ours.Initializer):
    """An initialiser of MXNet's kind for blocks: it is asked about weights alone."""

    def __init__(self, of: Initializer) -> None:
        object.__setattr__(self, "of", of)

    def draw(self, shape: tuple[int, ...], ctx: Any) -> Any:
        from ... import nd

        array = nd.zeros(shape, device=ctx)
        self.of._init_weight(InitDesc("weight"), array)  # type: ignore[attr-defined]
        return array


class _Drawn(Initializer):
    """One of ours."""

    of: ours.Initializer

    def _init_weight(self, name: Any, arr: Array) -> None:
        arr[:] = self.of(str(name), arr.shape, arr.dtype, arr.device)

    def for_gluon(self) -> ours.Initializer:
        return self.of


class Uniform(_Drawn):
    def __init__(self, scale: float = 0.07) -> None:
        super().__init__(scale=scale)
        self.of = ours.Uniform(scale)


class Normal(_Drawn):
    def __init__(self, sigma: float = 0.01) -> None:
        super().__init__(sigma=sigma)
        self.of = ours.Normal(sigma)


class Xavier(_Drawn):
    def __init__(self, rnd_type: str = "uniform", factor_type: str = "avg", magnitude: float = 3) -> None:
        super().__init__(rnd_type=rnd_type, factor_type=factor_type, magnitude=magnitude)
        self.of = ours.Xavier(rnd_type, factor_type, magnitude)


class MSRAPrelu(_Drawn):
    def __init__(self, factor_type: str = "avg", slope: float = 0.25) -> None:
        super().__init__(factor_type=factor_type, slope=slope)
        self.of = ours.Xavier("gaussian", factor_type, 2.0 / (1 + slope**2))


class Orthogonal(_Drawn):
    def __init__(self, scale: float = 1.414, rand_type: str = "uniform") -> None:
        super().__init__(scale=scale)
        self.of = ours.Orthogonal(scale)


class Bilinear(_Drawn):
    def __init__(self) -> None:
        super().__init__()
        self.of = ours.Bilinear()


class Constant(_Drawn):
    def __init__(self, value: float = 0.0) -> None:
        super().__init__(value=value)
        self.of = ours.Constant(value)


class Zero(Constant):
    def __init__(self) -> None:
        super().__init__(0.0)


class One(Constant):
    def __init__(self) -> None:
        super().__init__(1.0)


class LSTMBias(_Drawn):
    def __init__(self, forget_bias: float = 1.0) -> None:
        super().__init__(forget_bias=forget_bias)
        self.of = ours.LSTMBias(forget_bias)


class Mixed:
    """Initialisers by patterns: the first that a name matches."""

    def __init__(self, patterns: Sequence[str], initializers: Sequence[Any]) -> None:
        self.map = list(zip(map(re.compile, patterns), initializers, strict=True))

    def __call__(self, name: Any, arr: Array) -> None:
        for pattern, init in self.map:
            if pattern.match(str(name)):
                init(name, arr)
                return
        raise InputError(f"no pattern matches {name!r}", where="mx.init.Mixed", hint="let '.*' be the last")


class Load:
    """Arrays that are given by name, or of a file; others by `default_init`."""

    def __init__(self, param: Any, default_init: Any = None, verbose: bool = False) -> None:
        from .arrays import load

        held: Mapping[str, Array] = param if isinstance(param, Mapping) else load(param)
        self.param = {n.removeprefix("arg:").removeprefix("aux:"): v for n, v in held.items()}
        self.default_init = default_init

    def __call__(self, name: Any, arr: Array) -> None:
        if str(name) in self.param:
            arr[:] = self.param[str(name)]
        elif self.default_init is not None:
            self.default_init(name, arr)
        else:
            raise InputError(f"there is no array for {name!r}", where="mx.init.Load", hint="give default_init=")


OURS = (Uniform, Normal, Xavier, MSRAPrelu, Orthogonal, Bilinear, Constant, Zero, One, LSTMBias)
KINDS: dict[str, Any] = {k.__name__.lower(): k for k in OURS} | {"zeros": Zero, "ones": One, "gaussian": Normal}


def register(kind: type[Initializer]) -> type[Initializer]:
    """Enter an initialiser of yours under its name in lower case."""
    KINDS[kind.__name__.lower()] = kind
    return kind


def create(init: Any, **settings: Any) -> Any:
    """An initialiser by its name, or itself."""
    if not isinstance(init, str):
        return init
    if init.lower() not in KINDS:
        raise InputError(f"there is no initialiser {init!r}", where="mx.init", hint=", ".join(KINDS))
    return KINDS[init.lower()](**settings)


def of_gluon(init: Any) -> Any:
    """An initialiser as blocks of ours take it."""
    return init.for_gluon() if isinstance(init, Initializer) else init


__all__ = [
    "Bilinear", "Constant", "InitDesc", "Initializer", "LSTMBias", "Load", "MSRAPrelu", "Mixed", "Normal", "One",
    "Orthogonal", "Uniform", "Xavier", "Zero", "create", "register",
]  # fmt: skip

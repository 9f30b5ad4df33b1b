"""`dataclasses`, with methods that are compiled when they are first called.

The standard decorator writes a frozen class as source text and compiles it, which takes 0.3 ms; `import mezzo` has a
hundred such classes, and most processes make objects of a third of them. Here a class takes a tenth of that. `fields`,
`replace` and `asdict` work as ever; what is not offered here (`order`, `init`, `repr`, InitVar, `weakref_slot`) raises
TypeError.

>>> @dataclass(frozen=True, slots=True)
... class Point:
...     x: int
...     y: int = 0
>>> replace(Point(1), y=2)
Point(x=1, y=2)
>>> Point(1) == Point(1, 0), hash(Point(1)) == hash(Point(1, 0))
(True, True)
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence
from dataclasses import MISSING, FrozenInstanceError, asdict, field, fields, replace
from types import MemberDescriptorType
from typing import TYPE_CHECKING, Any

__all__ = ["FrozenInstanceError", "asdict", "dataclass", "field", "fields", "replace"]


def _dataclass(
    cls: type | None = None, /, *, frozen: bool = False, slots: bool = False, eq: bool = True, kw_only: bool = False
) -> Any:
    """Make a data class; see dataclasses.dataclass."""
    if cls is None:
        return lambda cls: _dataclass(cls, frozen=frozen, slots=slots, eq=eq, kw_only=kw_only)
    cls.__doc__ = cls.__doc__ or cls.__name__  # else the standard library works out a signature for it
    for base in cls.__mro__[1:]:  # those of the standard library get our parameters too, see there
        theirs = vars(base).get("__dataclass_params__")
        if theirs is not None and not isinstance(theirs, _Parameters):
            base.__dataclass_params__ = _Parameters(theirs.frozen, theirs.eq)  # type: ignore[attr-defined]
    _GATHERING.now = True
    try:  # the standard library gathers the fields, and makes no method
        decorated: Any = dataclasses.dataclass(init=False, repr=False, eq=False, kw_only=kw_only)(cls)
    finally:
        _GATHERING.now = False
    decorated.__dataclass_params__ = _Parameters(frozen, eq)
    if slots:
        decorated = _slotted(decorated)
    own = vars(decorated)
    if own.get("__hash__") is None and eq:  # a class with an __eq__ of its own has None there
        decorated.__hash__ = _FIRST["__hash__"] if frozen else None
    for name in ("__init__", "__repr__", "__eq__")[: 3 if eq else 2]:
        if name not in own:
            setattr(decorated, name, _FIRST[name])
            if name == "__init__":
                decorated.__signature__ = _SIGNATURE
    if frozen:
        decorated.__setattr__, decorated.__delattr__ = _set_attribute, _delete_attribute
        if slots and "__getstate__" not in own:
            decorated.__getstate__, decorated.__setstate__ = _state, _set_state
    return decorated


if TYPE_CHECKING:
    from dataclasses import dataclass
else:
    dataclass = _dataclass


class _Gathering(threading.local):
    """True in a thread whose fields the standard library gathers for us."""

    now = False


_GATHERING = _Gathering()


class _Parameters:
    """`__dataclass_params__`: what the standard library's decorator asks of a class that it is to inherit from. It
    refuses to mix frozen classes and others, and ours are not frozen yet while their fields are gathered."""

    __slots__ = ("_frozen", "eq")
    init = repr = True
    order = unsafe_hash = False

    def __init__(self, frozen: bool, eq: bool) -> None:
        self._frozen, self.eq = frozen, eq

    @property
    def frozen(self) -> bool:
        return self._frozen and not _GATHERING.now


class _First:
    """A method of any class that is made when somebody looks for it, and takes this one's place."""

    __slots__ = ("make", "name")

    def __init__(self, name: str, make: Callable[[Any], Any]) -> None:
        self.name, self.make = name, make

    def __get__(self, instance: object, owner: Any) -> Any:
        cls: Any = next((c for c in owner.__mro__ if vars(c).get(self.name) is self), None)
        if cls is None:  # another thread was here meanwhile
            return getattr(owner if instance is None else instance, self.name)
        method = self.make(cls)
        method.__qualname__, method.__module__ = f"{cls.__qualname__}.{self.name}", cls.__module__
        setattr(cls, self.name, method)
        return method.__get__(instance, owner)


class _Signature:
    """The `__signature__` of a class for `inspect.signature` and editors, before its method is compiled."""

    def __get__(self, instance: object, cls: Any) -> Any:
        if "__dataclass_fields__" not in vars(cls):  # a subclass that is no data class has a method of its own
            raise AttributeError("__signature__")
        from inspect import Parameter, Signature

        parameters = []
        for f in fields(cls):
            default = f.default if f.default_factory is MISSING else f.default_factory
            kind = Parameter.KEYWORD_ONLY if f.kw_only else Parameter.POSITIONAL_OR_KEYWORD
            default = Parameter.empty if default is MISSING else default
            parameters += [Parameter(f.name, kind, default=default, annotation=f.type)] if f.init else []
        return Signature(sorted(parameters, key=lambda p: p.kind))


_SIGNATURE = _Signature()


def _slotted(cls: type) -> type:
    """The class again, with a slot for each of its own fields."""
    names = tuple(f.name for f in fields(cls))
    inherited = {s for c in cls.__mro__[1:] for s in getattr(c, "__slots__", ())}
    content = {k: v for k, v in vars(cls).items() if k not in (*names, "__dict__", "__weakref__")}
    content["__slots__"] = tuple(n for n in names if n not in inherited)
    slotted = type(cls)(cls.__name__, cls.__bases__, content)
    slotted.__qualname__ = cls.__qualname__
    return slotted


def _init(cls: Any) -> Any:
    frozen = cls.__setattr__ is _set_attribute
    known: dict[str, Any] = {"_MISSING": MISSING, "_set": object.__setattr__}
    parameters: list[str] = []
    named: list[str] = []
    body: list[str] = []
    for f in fields(cls):
        name, value = f.name, f.name
        if f.default_factory is not MISSING:
            known[f"_make_{name}"] = f.default_factory
            value = f"_make_{name}() if {name} is _MISSING else {name}" if f.init else f"_make_{name}()"
            default = "=_MISSING"
        elif f.default is not MISSING:
            known[f"_default_{name}"] = f.default
            value = name if f.init else f"_default_{name}"
            default = f"=_default_{name}"
        elif f.init:
            default = ""
        else:
            continue  # for __post_init__ to set
        if f.init:
            (named if f.kw_only else parameters).append(name + default)
        place = getattr(cls, name, None)
        if not frozen:
            body.append(f"self.{name} = {value}")
        elif isinstance(place, MemberDescriptorType):
            known[f"_set_{name}"] = place.__set__
            body.append(f"_set_{name}(self, {value})")
        else:
            body.append(f"_set(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    head = ", ".join(["self", *parameters, *(["*"] if named else []), *named])
    init = _compiled(f"def __init__({head}):\n " + "\n ".join(body or ["pass"]), known)
    init.__annotations__ = {f.name: f.type for f in fields(cls) if f.init} | {"return": None}
    return init


def _repr(cls: Any) -> Any:
    """The standard library's, which looks at nothing but the names of the fields."""
    twin: Any = type("Twin", (), {"__annotations__": {f.name: Any for f in fields(cls) if f.repr}, "__doc__": "a twin"})
    return vars(dataclasses.dataclass(init=False, eq=False)(twin))["__repr__"]


def _eq(cls: Any) -> Any:
    mine, its = (_tuple(side, [f.name for f in fields(cls) if f.compare]) for side in ("self", "other"))
    same = f"{mine} == {its} if other.__class__ is self.__class__ else NotImplemented"
    return _compiled(f"def __eq__(self, other):\n return {same}", {})


def _hash(cls: Any) -> Any:
    hashed = [f.name for f in fields(cls) if (f.compare if f.hash is None else f.hash)]
    return _compiled(f"def __hash__(self):\n return hash({_tuple('self', hashed)})", {})


def _tuple(of: str, names: Sequence[str]) -> str:
    return "(" + "".join(f"{of}.{name}, " for name in names) + ")"


_PLACE = f"{__file__} (made)"  # a part of this package, to whoever looks for the user's line


def _compiled(text: str, known: dict[str, Any]) -> Any:
    exec(compile(text, _PLACE, "exec"), known)
    return known[text[4 : text.index("(")]]


_FIRST = {n: _First(n, make) for n, make in
          (("__init__", _init), ("__repr__", _repr), ("__eq__", _eq), ("__hash__", _hash))}  # fmt: skip


def _set_attribute(self: Any, name: str, value: Any) -> None:
    _refuse(type(self), name, "assign to")
    object.__setattr__(self, name, value)


def _delete_attribute(self: Any, name: str) -> None:
    _refuse(type(self), name, "delete")
    object.__delattr__(self, name)


def _refuse(cls: Any, name: str, what: str) -> None:
    """Refuse a change as the standard library does: a subclass that is no data class may have other attributes."""
    if "__dataclass_fields__" in vars(cls) or name in cls.__dataclass_fields__:
        raise FrozenInstanceError(f"cannot {what} field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, f.name) for f in fields(self)]


def _set_state(self: Any, state: Sequence[Any]) -> None:
    for f, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, f.name, value)

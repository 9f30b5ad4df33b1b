"""Classes of ops/dataclasses.py behave as those of the standard library."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pydoc
from typing import Any

import pytest

from mezzo.ops import dataclasses as quick
from mezzo.runtime.optimizer.record import KINDS

FLAGS = [
    {"frozen": f, "slots": s, "eq": e, "kw_only": k}
    for f in (False, True)
    for s in (False, True)
    for e in (False, True)
    for k in (False, True)
]


def made(dataclass: Any, flags: dict[str, bool]) -> tuple[Any, Any]:
    """A class with all kinds of fields, and one that inherits from it."""

    @dataclass(**flags)
    class Base:
        a: int
        b: tuple[int, ...] = (1, 2)
        c: list[int] = dataclasses.field(default_factory=list)
        d: int = dataclasses.field(default=5, repr=False, compare=False)
        e: int = dataclasses.field(init=False, compare=False)
        f: int = dataclasses.field(init=False, default=3)

        def __post_init__(self) -> None:
            object.__setattr__(self, "e", self.a + 1)

    @dataclass(**flags)
    class Further(Base):
        g: str = "g"

        def __repr__(self) -> str:
            return f"Further {self.g}"

    return Base, Further


def told(what: Any) -> Any:
    """The result of a call, or the type and the text of its error."""
    try:
        return what()
    except Exception as error:
        return type(error).__name__, str(error).replace("made.<locals>.", "")


@pytest.mark.parametrize("flags", FLAGS, ids=lambda f: "-".join(n for n, on in f.items() if on) or "plain")
def test_as_the_standard_library(flags: dict[str, bool]) -> None:
    pairs = zip(made(dataclasses.dataclass, flags), made(quick.dataclass, flags), strict=True)
    for theirs, ours in pairs:
        seen: list[list[Any]] = []
        shown = [str(inspect.signature(kind)).removesuffix(" -> None") for kind in (ours, theirs, ours)]
        assert shown[0].replace("<class 'list'>", "<factory>") == shown[1]
        assert shown[2] == shown[0]
        for kind in (theirs, ours):
            x, y, z = kind(a=1), kind(a=1, d=6), kind(a=2, b=(3,), c=[4])
            changed = told(lambda x=x: setattr(x, "a", 7))
            seen.append(
                [
                    repr(x), repr(z), x == y, x == z, x != 3, x == x,
                    told(lambda x=x, y=y: hash(x) == hash(y)), changed, x.a,
                    None if flags["slots"] else told(lambda x=x: setattr(x, "other", 7)),
                    told(lambda z=z: delattr(z, "b")),
                    dataclasses.asdict(x), [f.name for f in dataclasses.fields(x)], repr(dataclasses.replace(y, a=9)),
                    repr(copy.deepcopy(y)), y.e, x.f, kind.__match_args__, hasattr(x, "__dict__"),
                    told(lambda kind=kind: kind()), repr(told(lambda kind=kind: kind(1))), kind.__hash__ is None,
                ]
            )  # fmt: skip
        assert seen[0] == seen[1]


def test_an_own_equality_and_hash_stay() -> None:
    @quick.dataclass(frozen=True, slots=True)
    class Own:
        a: int

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    assert Own(1) == Own(2)
    assert hash(Own(1)) == 7


def test_methods_are_made_when_they_are_called() -> None:
    @quick.dataclass(frozen=True)
    class Late:
        a: int

    before = vars(Late)["__init__"]
    Late(1)
    after = vars(Late)["__init__"]
    Late(2)
    assert before is not after
    overtaken = Late.__new__(Late)
    before.__get__(overtaken, Late)(3)  # as a thread does that looked it up while another one made it
    assert overtaken == Late(3)
    assert vars(Late)["__init__"] is after


def test_what_is_not_offered_is_refused() -> None:
    with pytest.raises(TypeError, match="order"):
        quick.dataclass(order=True)  # type: ignore[call-overload, unused-ignore]


@pytest.mark.parametrize("frozen", [True, False])
@pytest.mark.parametrize("first", ["ours", "theirs"])
def test_classes_of_the_standard_library_inherit_from_these_and_the_other_way(first: str, frozen: bool) -> None:
    both: list[Any] = [quick.dataclass, dataclasses.dataclass]
    below, above = both if first == "ours" else both[::-1]

    @below(frozen=frozen)
    class Base:
        a: int = 1

    @above(frozen=frozen, kw_only=True)
    class Further(Base):
        b: int = 2

    further: Any = Further
    made = further(3, b=4)
    assert repr(made).endswith("Further(a=3, b=4)")
    assert made == dataclasses.replace(further(b=4), a=3)
    if frozen:
        with pytest.raises(dataclasses.FrozenInstanceError):
            made.a = 5
    if below is quick.dataclass:
        with pytest.raises(TypeError, match="cannot inherit"):
            dataclasses.dataclass(frozen=not frozen)(type("Mixed", (Base,), {}))


@pytest.mark.parametrize("called", [False, True], ids=["", "called"])
def test_methods_show_what_they_take(called: bool) -> None:
    """For `help` and editors, which look at `__init__` too: before its first call, as after it."""

    @quick.dataclass(frozen=True, kw_only=True)
    class Base:
        a: int = 1

    @quick.dataclass(frozen=True, kw_only=True)
    class Kind(Base):
        b: str
        c: float = 2.0

    if called:
        Kind(b="")
    assert str(inspect.signature(Kind.__init__)) == "(self, *, a: 'int' = 1, b: 'str', c: 'float' = 2.0) -> None"
    assert str(inspect.signature(Base.__init__)) == "(self, *, a: 'int' = 1) -> None"
    assert str(inspect.signature(Kind.__eq__)) == "(self, other)"
    assert Kind.__init__.__qualname__.endswith("Kind.__init__")
    assert "__init__(self, *, a: 'int' = 1, b: 'str'" in pydoc.plain(pydoc.render_doc(Kind))
    made = object.__new__(Kind)
    Base.__init__(made, a=5)
    assert made.a == 5


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_optimizers_show_their_settings(kind: Any) -> None:
    names = [f.name for f in dataclasses.fields(kind)]
    assert [*inspect.signature(kind).parameters] == names
    assert [*inspect.signature(kind.__init__).parameters] == ["self", *names]

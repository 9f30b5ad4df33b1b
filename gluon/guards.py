"""Guards on the Python values that a trace has read, which tell whether a later call would make the same trace.

Every function of the user's that runs while a block is traced is looked at: the globals and closures that its code
names, and what the blocks below hold in attributes. Their values are kept as snapshots; one that changes means another
trace.
"""

from __future__ import annotations

import gc
import random
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from types import (
    BuiltinFunctionType,
    CellType,
    CodeType,
    FrameType,
    FunctionType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any, Self

import numpy as np

from ..nd.array import Array
from ..nd.sites import line_of, site
from ..runtime.engine import Variable
from ..runtime.engine.work import OURS
from .block import OWN, Block
from .parameter import Parameter

PLAIN = (bool, int, float, complex, str, bytes, type(None))
LARGEST = 4096  # elements of an array of NumPy that are compared
DEEPEST = 3


class Unguarded(Exception):
    """A value that cannot be guarded."""


def snapshot(value: Any, depth: int = DEEPEST, arrays: list[Array] | None = None) -> Any:
    """A value such that two snapshots are equal where the program would do the same. Arrays inside, whose numbers are
    read anew by each run, are noted down."""

    def inner(v: Any) -> Any:
        return snapshot(v, depth - 1, arrays)

    # Containers are copied before they are gone through: other threads and finalizers may change them meanwhile.
    if isinstance(value, PLAIN):
        return type(value), value if value == value else "nan"
    if isinstance(value, list | tuple):
        return type(value), tuple(map(inner, value)) if depth else len(value)
    if isinstance(value, dict):
        return dict, tuple((snapshot(k, 1), inner(v)) for k, v in dict.copy(value).items()) if depth else len(value)
    if isinstance(value, set | frozenset):
        return type(value), frozenset(map(snapshot, tuple(value))) if depth else len(value)
    if isinstance(value, np.ndarray):
        if value.size > LARGEST:
            raise Unguarded(f"an array of NumPy with {value.size} elements is read as a constant")
        return np.ndarray, value.shape, str(value.dtype), value.tobytes() if not value.dtype.hasobject else id(value)
    if isinstance(value, GENERATORS):
        return type(value), id(value)
    if isinstance(value, np.generic | np.dtype):
        return type(value), str(value)
    if isinstance(value, FunctionType):
        return FunctionType, value.__code__, _bound(value, inner) if depth else None
    if isinstance(value, Array):
        if arrays is not None:
            arrays.append(value)
        return Array, id(value)
    if isinstance(value, Parameter):
        return Parameter, id(value), snapshot(value._data, depth, arrays)
    if isinstance(value, Block | ModuleType | type | MethodType | BuiltinFunctionType):
        return type(value), id(value)
    held = getattr(value, "__dict__", None)
    library = type(value).__module__.partition(".")[0] in sys.stdlib_module_names
    if not depth or not isinstance(held, dict) or (library and not isinstance(value, SimpleNamespace | Namespace)):
        return type(value), id(value)
    return type(value), id(value), tuple((k, inner(v)) for k, v in dict.copy(held).items())


def _bound(function: FunctionType, inner: Callable[[Any], Any]) -> Any:
    """Return the values that distinguish functions with the same code: their defaults and their closure."""
    cells = tuple(inner(_inside(cell)) for cell in function.__closure__ or ())
    return inner(function.__defaults__), inner(function.__kwdefaults__), cells


@dataclass(slots=True)
class Read:
    """One value that a trace has read: how to read it again, the value, and its name."""

    find: Callable[[], Any]
    was: Any
    name: str

    def holds(self) -> bool:
        try:
            return bool(snapshot(self.find()) == self.was)
        except Exception:  # it is gone, or of another kind
            return False


@dataclass(slots=True)
class Guards:
    """All values that a trace has read."""

    reads: list[Read] = field(default_factory=list[Read])
    quick: list[tuple[Callable[[], bool], str]] = field(default_factory=list[tuple[Callable[[], bool], str]])
    codes: set[CodeType] = field(default_factory=set[CodeType])  # whose globals and closures are watched
    variables: dict[int, Variable] = field(default_factory=dict[int, "Variable"])  # of arrays that are watched

    def changed(self) -> str:
        """The name of the first value that is not as it was; empty if all are."""
        for same, name in self.quick:
            if not same():
                return name
        for read in self.reads:
            if not read.holds():
                return read.name
        return ""

    def add(self, name: str, find: Callable[[], Any]) -> None:
        """Watch a value from now on."""
        arrays: list[Array] = []
        self.reads.append(Read(find, snapshot(find(), arrays=arrays), name))
        self.variables |= {id(x._var): x._var for x in arrays}


def of_blocks(guards: Guards, root: Block) -> None:
    """Watch which blocks there are, what they compute with, and what else they hold."""
    for path, block in root.named_blocks():
        name = path.rstrip(".") or type(block).__name__
        guards.quick.append((_unchanged(block), f"an attribute, a child or forward of {name}"))
        for attribute, value in attributes(block).items():
            if not isinstance(value, PLAIN):
                guards.add(f"{name}.{attribute}", lambda b=block, a=attribute: getattr(b, a))  # type: ignore[misc]


def _unchanged(block: Block) -> Callable[[], bool]:
    """Return a predicate: True while the block has the children, the simple attributes and the code that it has now."""
    held, children, kind, forward = vars(block), block._children, type(block), type(block).forward
    plain = [(n, v) for n, v in attributes(block).items() if isinstance(v, PLAIN)]
    count, kept = len(held), tuple(children.values())

    def same() -> bool:
        if len(held) != count or kind.forward is not forward or tuple(children.values()) != kept:
            return False
        for name, value in plain:
            now = held.get(name)
            if now is not value and (now != value or type(now) is not type(value)):
                return False
        return True

    return same


def attributes(block: Block) -> dict[str, Any]:
    """Return the attributes of a block besides parameters and blocks."""
    return {n: v for n, v in vars(block).items() if n not in OWN and not isinstance(v, Block | Parameter)}


class Watch:
    """A context that records every called function of the user, to be guarded afterwards; and the first call whose
    result changes each time (`chance`, with its line): random numbers, the clock."""

    def __init__(self) -> None:
        self.seen: dict[CodeType, FrameType] = {}
        self.others: set[CodeType] = set()  # of libraries
        self.chance: tuple[str, str] | None = None
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = sys.getprofile()
        sys.setprofile(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is None or callable(self._before):
            sys.setprofile(self._before)
        else:  # a profiler of C (cProfile), which Python's hook has put aside
            sys.setprofile(None)
            self._before.enable()

    def _call(self, frame: FrameType, event: str, called: Any) -> None:
        if event == "call":
            code = frame.f_code
            if code not in self.seen and code not in self.others:
                if _of_user(frame):
                    self.seen[code] = frame
                elif not code.co_filename.startswith(OURS):
                    self.others.add(code)
        elif event == "c_call" and self.chance is None and (what := _chance(called)) and _asked_by_user(frame):
            self.chance = what, line_of(*site())

    def may_draw_by_numpy(self) -> bool:
        """True if any of these functions, or of the libraries they called, names a source of NumPy's random numbers."""
        return any(not NUMPYS.isdisjoint(code.co_names) for code in (*self.seen, *self.others))

    def guard(self, guards: Guards) -> None:
        """Watch the globals and closures that these functions name, their defaults too."""
        seen, self.seen = self.seen, {}  # frames hold what they computed; a finalizer may be noted down meanwhile
        new = {code: frame for code, frame in seen.items() if code not in guards.codes}
        inside = {c for code in new for c in code.co_consts if isinstance(c, CodeType)}  # made anew by each run
        functions = _functions([code for code in new if code not in inside])
        for code, frame in new.items():
            guards.codes.add(code)
            for name, find in _named(code, frame.f_globals):
                _refuse(find())
                guards.add(f"the global {name!r} of {code.co_name}", find)
            for function in functions.get(code, ()):
                for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
                    if name != "__class__":
                        _refuse(_inside(cell))
                        guards.add(f"{name!r}, which {code.co_name} takes from around", lambda c=cell: _inside(c))  # type: ignore[misc]
                if function.__defaults__ or function.__kwdefaults__:
                    guards.add(f"the defaults of {code.co_name}", lambda f=function: (f.__defaults__, f.__kwdefaults__))  # type: ignore[misc]


OTHERS = "random numbers are drawn by others than mz.random"
GENERATORS = (np.random.Generator, np.random.RandomState)


NUMPYS = {"random", *(n for n in dir(np.random) if n[:1].islower())}


def numpys_state(root: Block) -> Any:
    """Return the states of NumPy's random generators: the global one, and those in attributes of blocks. Their calls
    cannot be observed."""
    held = [v for _, b in root.named_blocks() for v in attributes(b).values() if isinstance(v, GENERATORS)]
    old: Any = np.random.get_state()
    return old[1].tobytes(), old[2:], [_state(v) for v in held]


def _refuse(value: Any) -> None:
    if isinstance(value, GENERATORS):
        raise Unguarded(f"{OTHERS} ({type(value).__name__})")


def _state(of: Any) -> str:
    return str(of.bit_generator.state if isinstance(of, np.random.Generator) else of.get_state())


def _chance(called: Any) -> str:
    """Return a description of a C function whose result changes each time; empty for others."""
    of = getattr(called, "__self__", None)
    name = called.__name__
    if isinstance(of, random.Random) or name == "urandom":
        return OTHERS
    clock = getattr(called, "__module__", None) == "time" or (isinstance(of, type) and of.__module__ == "datetime")
    return "the clock is read" if clock and name not in ("sleep", "fromisoformat", "fromtimestamp") else ""


def _asked_by_user(frame: FrameType | None) -> bool:
    """True if the user's code makes the call, directly or through a library. Our own code reads the clock too, and so
    do callbacks of Python's garbage collector, which runs between any two lines."""
    collecting = {getattr(getattr(c, "__func__", c), "__code__", None) for c in gc.callbacks}
    while frame is not None:
        if frame.f_code.co_filename.startswith(OURS) or frame.f_code in collecting:
            return False
        if _of_user(frame):
            return True
        frame = frame.f_back
    return False


def _of_user(frame: FrameType) -> bool:
    path = frame.f_code.co_filename
    if path.startswith("<"):  # made from text, as methods of dataclasses are: the module tells whose it is
        return not frame.f_globals.get("__name__", "").startswith("mezzo.") and not path.startswith("<frozen")
    return not (path.startswith((OURS, sys.base_prefix)) or "site-packages" in path)


def _named(code: CodeType, namespace: dict[str, Any]) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The globals that code names, and the attributes of modules and objects among them."""
    for name in code.co_names:
        if name not in namespace:
            continue
        value = namespace[name]
        yield name, lambda n=name: namespace[n]  # type: ignore[misc]
        if isinstance(value, ModuleType) and not value.__name__.startswith(("mezzo", "numpy")):
            for attribute in code.co_names:
                if attribute in vars(value):
                    yield f"{name}.{attribute}", lambda v=value, a=attribute: getattr(v, a)  # type: ignore[misc]


def _inside(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing yet
        return None


def _functions(codes: Sequence[CodeType]) -> dict[CodeType, list[FunctionType]]:
    """The functions of these codes, by one look through all that there is."""
    functions: dict[CodeType, list[FunctionType]] = {}
    for one in gc.get_referrers(*codes) if codes else ():
        if isinstance(one, FunctionType):
            functions.setdefault(one.__code__, []).append(one)
    return functions

"""The bytes in which MXNet keeps states of optimizers, read as data: nothing that they name is imported or called.

Python's pickles are programs for a small stack machine. This is a machine of its own for the few steps that such files
have: numbers, texts, bytes, lists, tuples and dicts are what they say; an object is the name of its class with its
fields (`Named`), of the classes in CLASSES alone. All else is a ModelError, with the byte where it stands.

Source: the comments of `pickletools` in the library of Python, on protocols 0 to 5.
"""

from __future__ import annotations

import codecs
import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from ...ops.dataclasses import dataclass, field
from ...ops.errors import ModelError

MOST_STEPS = 1 << 20  # an array takes about 20
LONGEST = 32  # digits of a number that stands as text
QUOTED = re.compile(rb"(['\"])((?:[^\\]|\\.)*)\1", re.DOTALL)
BYTES = ("builtins.bytearray", "__builtin__.bytearray")
BUILT = ("copy_reg._reconstructor", "copyreg._reconstructor")
ENCODED = "_codecs.encode"
SCALARS = ("numpy.core.multiarray.scalar", "numpy._core.multiarray.scalar")
CLASSES = re.compile(  # objects that may stand in the file, as data
    r"mxnet\.(ndarray|numpy)(\.\w+)*\.\w*(NDArray|ndarray)|mxnet\.optimizer(\.\w+)?\.\w+|mxnet\.lr_scheduler\.\w+"
    r"|numpy\.dtype|(builtins|__builtin__)\.object"
)
NUMBERS = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"}


@dataclass(frozen=True, slots=True)
class Global:
    """The name of a class or a function; never looked up."""

    name: str


@dataclass(slots=True, eq=False)
class Named:
    """An object as data: its class and its fields."""

    kind: str
    args: tuple[Any, ...] = ()
    fields: Any = None


@dataclass(slots=True)
class Machine:
    """The stack, what was put aside (`memo`), and a position in the bytes."""

    content: memoryview
    where: str
    at: int = 0
    stack: list[Any] = field(default_factory=list[Any])
    marks: list[int] = field(default_factory=list[int])
    memo: dict[int, Any] = field(default_factory=dict[int, Any])

    def run(self) -> Any:
        """The value that the bytes stand for. Raises ModelError for what states of MXNet do not have."""
        for _ in range(MOST_STEPS):
            code = self.take(1)[0]
            if code == ord("."):
                value = self.pop()
                if self.stack or self.at != len(self.content):
                    raise self.wrong("something follows its end")
                return value
            step = STEPS.get(code)
            if step is None:
                raise self.wrong(f"the step {bytes([code])!r} is none that states of MXNet have")
            step(self)
        raise self.wrong(f"it has more than {MOST_STEPS} steps")

    def wrong(self, what: str) -> ModelError:
        return ModelError(f"byte {self.at}: {what}", where=self.where, hint="give a file of MXNet's save_states")

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.content) - self.at:
            raise self.wrong(f"{size} bytes are needed, {len(self.content) - self.at} are left")
        self.at += size
        return bytes(self.content[self.at - size : self.at])

    def sized(self, code: str) -> bytes:
        return self.take(self.number(code))

    def number(self, code: str) -> Any:
        return struct.unpack(code, self.take(struct.calcsize(code)))[0]

    def line(self) -> bytes:
        begin = self.at
        while self.take(1) != b"\n":
            pass
        return bytes(self.content[begin : self.at - 1])

    def digits(self, text: bytes) -> int:
        if len(text) > LONGEST or not re.fullmatch(rb"[+-]?\d+", text):
            raise self.wrong(f"{text[:LONGEST]!r} is no number")
        return int(text)

    def text(self, content: bytes, code: str = "utf-8") -> str:
        try:
            return content.decode(code)
        except UnicodeDecodeError as error:
            raise self.wrong(f"a text is no {code}") from error

    # The stack

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self, kind: type[Any] | tuple[type[Any], ...] = object) -> Any:
        floor = self.marks[-1] if self.marks else 0
        if len(self.stack) <= floor:
            raise self.wrong("a value is missing")
        return self.checked(self.stack.pop(), kind)

    def checked(self, value: Any, kind: type[Any] | tuple[type[Any], ...]) -> Any:
        if not isinstance(value, kind):
            raise self.wrong(f"a {type(value).__name__} does not belong there")
        return value

    def top(self, kind: type[Any] | tuple[type[Any], ...]) -> Any:
        value = self.pop(kind)
        self.push(value)
        return value

    def marked(self) -> list[Any]:
        """Return what stands above the last mark."""
        if not self.marks:
            raise self.wrong("a mark is missing")
        begin = self.marks.pop()
        values = self.stack[begin:]
        del self.stack[begin:]
        return values

    def last(self, count: int) -> tuple[Any, ...]:
        return tuple(self.pop() for _ in range(count))[::-1]

    def keep(self, number: int) -> None:
        self.memo[number] = self.top(object)

    def again(self, number: int) -> None:
        if number not in self.memo:
            raise self.wrong(f"nothing was put aside as {number}")
        self.push(self.memo[number])

    def put_in(self, values: list[Any]) -> None:
        """Pairs into the dict on the top."""
        into = self.top(dict)
        if len(values) % 2:
            raise self.wrong("a key has no value")
        for key, value in zip(values[::2], values[1::2], strict=True):
            into[self.checked(key, (int, str, type(None)))] = value

    # Objects

    def named(self, module: str, name: str) -> None:
        known = Global(f"{module}.{name}")
        if known.name not in (*BYTES, *BUILT, *SCALARS, ENCODED) and not CLASSES.fullmatch(known.name):
            raise ModelError(
                f"it has an object of {known.name[:80]}, which is none of MXNet's",
                where=self.where,
                hint="in MXNet, save the states without it: updater.get_states(dump_optimizer=False)",
            )
        self.push(known)

    def made(self, args: tuple[Any, ...], called: Global) -> None:
        """Return what a call stands for: bytes, a number, or an object."""
        if called.name in BYTES or called.name == ENCODED:
            self.push(self.bytes_of(args))
        elif called.name in BUILT:
            kind = self.checked(args[0] if args else None, Global)
            self.push(self.object(kind, ()))
        elif called.name in SCALARS:
            self.push(self.scalar(args))
        else:
            self.push(self.object(called, args))

    def object(self, kind: Global, args: tuple[Any, ...]) -> Named:
        if not CLASSES.fullmatch(kind.name):
            raise self.wrong(f"{kind.name} is no class of MXNet's")
        return Named(kind.name, args)

    def bytes_of(self, args: tuple[Any, ...]) -> bytes:
        if not args:
            return b""
        if isinstance(args[0], bytes):
            return args[0]
        try:
            return bytes(self.checked(args[0], str).encode("latin-1"))
        except UnicodeEncodeError as error:
            raise self.wrong("bytes that are no bytes") from error

    def scalar(self, args: tuple[Any, ...]) -> Any:
        """A number of NumPy's, from its type and its bytes."""
        if len(args) == 2 and isinstance(args[0], Named) and args[0].kind == "numpy.dtype" and args[0].args:
            code, content = args[0].args[0], args[1]
            raw = content.encode("latin-1", "replace") if isinstance(content, str) else content
            if code in NUMBERS and isinstance(raw, bytes) and len(raw) == np.dtype(code).itemsize:
                return np.frombuffer(raw, np.dtype(code).newbyteorder("<"))[0].item()
        raise self.wrong("a number of NumPy's that has no type")

    def fill(self) -> None:
        """Fields into the object below them."""
        fields = self.pop()
        self.top(Named).fields = fields


def _quoted(m: Machine) -> str:
    """A text of Python 2 in quotes."""
    match = QUOTED.fullmatch(m.line())
    if match is None:
        raise m.wrong("a text without quotes")
    try:
        return codecs.escape_decode(match[2])[0].decode("latin-1")
    except ValueError as error:
        raise m.wrong("a text with a wrong escape") from error


def _truth_or_number(m: Machine) -> int:
    line = m.line()
    return {b"00": False, b"01": True}[line] if line in (b"00", b"01") else m.digits(line)


def _decimal(m: Machine) -> float:
    line = m.line()
    try:
        return float(line[: 2 * LONGEST])
    except ValueError as error:
        raise m.wrong("a number that is none") from error


def _stack_global(m: Machine) -> None:
    name, module = m.pop(str), m.pop(str)
    m.named(module, name)


def _global(m: Machine) -> None:
    module, name = m.text(m.line()), m.text(m.line())
    m.named(module, name)


def _reduce(m: Machine) -> None:
    args = m.pop(tuple)
    m.made(args, m.pop(Global))


def _new(m: Machine) -> None:
    args, kind = m.pop(tuple), m.pop(Global)
    m.push(m.object(kind, args))


def _one_item(m: Machine) -> None:
    m.put_in([*m.last(2)])


def _append(m: Machine) -> None:
    value = m.pop()
    m.top(list).append(value)


def _extend(m: Machine) -> None:
    values = m.marked()
    m.top(list).extend(values)


def _items(m: Machine) -> None:
    m.put_in(m.marked())


def _dict(m: Machine) -> None:
    values = m.marked()
    m.push({})
    m.put_in(values)


def _version(m: Machine) -> None:
    if m.take(1)[0] > 5:
        raise m.wrong("it has a protocol that MXNet did not know")


STEPS: dict[int, Callable[[Machine], None]] = {
    0x80: _version,
    0x95: lambda m: m.number("<Q") and None,  # how many bytes belong together: of no meaning here
    ord("("): lambda m: m.marks.append(len(m.stack)),
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("I"): lambda m: m.push(_truth_or_number(m)),
    ord("J"): lambda m: m.push(m.number("<i")),
    ord("K"): lambda m: m.push(m.number("<B")),
    ord("M"): lambda m: m.push(m.number("<H")),
    ord("L"): lambda m: m.push(m.digits(m.line().removesuffix(b"L"))),
    0x8A: lambda m: m.push(int.from_bytes(m.sized("<B"), "little", signed=True)),
    ord("F"): lambda m: m.push(_decimal(m)),
    ord("G"): lambda m: m.push(m.number(">d")),
    ord("S"): lambda m: m.push(_quoted(m)),
    ord("T"): lambda m: m.push(m.text(m.sized("<i"), "latin-1")),
    ord("U"): lambda m: m.push(m.text(m.sized("<B"), "latin-1")),
    ord("V"): lambda m: m.push(m.text(m.line(), "raw-unicode-escape")),
    ord("X"): lambda m: m.push(m.text(m.sized("<I"))),
    0x8C: lambda m: m.push(m.text(m.sized("<B"))),
    0x8D: lambda m: m.push(m.text(m.sized("<Q"))),
    ord("B"): lambda m: m.push(m.sized("<I")),
    ord("C"): lambda m: m.push(m.sized("<B")),
    0x8E: lambda m: m.push(m.sized("<Q")),
    0x96: lambda m: m.push(m.sized("<Q")),
    ord("}"): lambda m: m.push({}),
    ord("d"): _dict,
    ord("s"): _one_item,
    ord("u"): _items,
    ord("]"): lambda m: m.push([]),
    ord("l"): lambda m: m.push(m.marked()),
    ord("a"): _append,
    ord("e"): _extend,
    ord(")"): lambda m: m.push(()),
    ord("t"): lambda m: m.push(tuple(m.marked())),
    0x85: lambda m: m.push(m.last(1)),
    0x86: lambda m: m.push(m.last(2)),
    0x87: lambda m: m.push(m.last(3)),
    ord("c"): _global,
    0x93: _stack_global,
    ord("R"): _reduce,
    0x81: _new,
    ord("b"): lambda m: m.fill(),
    ord("p"): lambda m: m.keep(m.digits(m.line())),
    ord("q"): lambda m: m.keep(m.number("<B")),
    ord("r"): lambda m: m.keep(m.number("<I")),
    0x94: lambda m: m.keep(len(m.memo)),
    ord("g"): lambda m: m.again(m.digits(m.line())),
    ord("h"): lambda m: m.again(m.number("<B")),
    ord("j"): lambda m: m.again(m.number("<I")),
}

"""Functions as text of LLVM's intermediate form: values know their types, blocks close themselves.

A kernel takes one pointer to a block of words of eight bytes, each an address or an integer. Variables live on the
stack until LLVM moves them to registers. Floating-point operations carry no flags: each rounds as it stands, and a
product and sum become one operation only where `fma` asks for it. https://llvm.org/docs/LangRef.html
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

I1, I8, I32, I64, F32, PTR = "i1", "i8", "i32", "i64", "float", "ptr"


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a function: its type and its name, or the constant itself."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


@dataclass(frozen=True, slots=True)
class Local:
    """A place on the stack that holds a value of a type."""

    type: str
    place: str


def vector(width: int, type: str) -> str:
    """The type of so many of a type; one is no vector."""
    return f"<{width} x {type}>" if width > 1 else type


def parts(type: str) -> tuple[int, str]:
    """Width and type of elements."""
    if not type.startswith("<"):
        return 1, type
    width, _, element = type[1:-1].partition(" x ")
    return int(width), element


def number(value: float, type: str = F32) -> Value:
    """A constant; of a vector type, in all lanes."""
    width, element = parts(type)
    if element in ("float", "double"):
        if element == "float":
            (value,) = struct.unpack("<f", struct.pack("<f", value))
        name = f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    else:
        name = str(int(value))
    return Value(type, f"splat ({element} {name})" if width > 1 else name)


def numbers(values: Sequence[int], type: str = I32) -> Value:
    """A vector of constants."""
    return Value(vector(len(values), type), f"<{', '.join(f'{type} {v}' for v in values)}>")


class Function:
    """A function under construction: `void name(ptr)`, or of other arguments and result."""

    def __init__(
        self, name: str, arguments: Sequence[str] = (PTR,), result: str = "void", inside: bool = False
    ) -> None:
        self.name = name
        self.arguments = [Value(t, f"%a{i}") for i, t in enumerate(arguments)]
        linkage = "internal " if inside else ""
        self._head = f"define {linkage}{result} @{name}({', '.join(map(str, self.arguments))}) #0"
        self._stack: list[str] = []
        self._lines: list[str] = []
        self._count = 0
        self.uses: set[str] = set()

    def __str__(self) -> str:
        body = "\n".join([*self._stack, "br label %begin", "begin:", *self._lines])
        return f"{self._head} {{\n{body}\n}}\n"

    # values

    def _name(self) -> str:
        self._count += 1
        return f"%v{self._count}"

    def line(self, text: str) -> None:
        """Append a line that has no result."""
        self._lines.append(f"  {text}")

    def value(self, type: str, text: str) -> Value:
        """Append a line; returns its result."""
        name = self._name()
        self.line(f"{name} = {text}")
        return Value(type, name)

    def binary(self, op: str, a: Value, b: Value | float) -> Value:
        """An operation on two values of one type, or a value and a constant."""
        b = b if isinstance(b, Value) else number(b, a.type)
        return self.value(a.type, f"{op} {a.type} {a.name}, {b.name}")

    def compare(self, how: str, a: Value, b: Value | float) -> Value:
        """A comparison: `slt` and the like of integers, `olt` and the like of others."""
        b = b if isinstance(b, Value) else number(b, a.type)
        width, element = parts(a.type)
        op = "fcmp" if element in ("float", "double") else "icmp"
        return self.value(vector(width, I1), f"{op} {how} {a.type} {a.name}, {b.name}")

    def convert(self, op: str, a: Value, type: str) -> Value:
        """A conversion such as `sitofp` or `zext`."""
        return self.value(type, f"{op} {a} to {type}")

    def choose(self, which: Value, a: Value, b: Value | float) -> Value:
        """`a` where `which` is true, else `b`."""
        b = b if isinstance(b, Value) else number(b, a.type)
        return self.value(a.type, f"select {which}, {a}, {b}")

    def call(self, type: str, function: str, *operands: Value) -> Value:
        """A call of an intrinsic function, which is declared."""
        self.uses.add(f"declare {type} @{function}({', '.join(o.type for o in operands)})")
        return self.value(type, f"call {type} @{function}({', '.join(map(str, operands))})")

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """a * b + c, rounded once."""
        width, element = parts(a.type)
        suffix = "f32" if element == F32 else "f64"
        return self.call(a.type, f"llvm.fma.{f'v{width}{suffix}' if width > 1 else suffix}", a, b, c)

    def shuffle(self, a: Value, order: Sequence[int], b: Value | None = None) -> Value:
        """Lanes of one vector, or of two behind each other."""
        _, element = parts(a.type)
        other = str(b) if b is not None else f"{a.type} poison"
        return self.value(vector(len(order), element), f"shufflevector {a}, {other}, {numbers(order)}")

    def lane(self, a: Value, i: int) -> Value:
        """One element of a vector."""
        return self.value(parts(a.type)[1], f"extractelement {a}, i64 {i}")

    def splat(self, a: Value, width: int) -> Value:
        """A value in all lanes."""
        if width == 1:
            return a
        one = self.value(vector(width, a.type), f"insertelement {vector(width, a.type)} poison, {a}, i64 0")
        return self.shuffle(one, [0] * width)

    def reduce(self, op: str, a: Value) -> Value:
        """All lanes as one, halves with halves: `fadd`, or the name of an operation of two."""
        width, _ = parts(a.type)
        while width > 1:
            width //= 2
            if width == 1:
                low, high = self.lane(a, 0), self.lane(a, 1)
            else:
                low, high = self.shuffle(a, range(width)), self.shuffle(a, range(width, 2 * width))
            a = self.binary(op, low, high)
        return a

    # memory

    def at(self, base: Value, index: Value | int, type: str) -> Value:
        """The address of element `index` behind `base`."""
        index = index if isinstance(index, Value) else number(index, I64)
        return self.value(PTR, f"getelementptr {type}, {base}, {index}")

    def load(self, place: Value, type: str, align: int | None = None) -> Value:
        """Read a value from an address, which has the alignment of one element."""
        return self.value(type, f"load {type}, {place}, align {align or _bytes(type)}")

    def store(self, a: Value, place: Value, align: int | None = None) -> None:
        self.line(f"store {a}, {place}, align {align or _bytes(a.type)}")

    def word(self, block: Value, i: int, type: str = I64) -> Value:
        """Word `i` of a block of arguments."""
        return self.load(self.at(block, i, I64), type, 8)

    def variable(self, first: Value) -> Local:
        """A variable that begins as `first`."""
        variable = Local(first.type, self._name())
        self._stack.append(f"  {variable.place} = alloca {first.type}")
        self.set(variable, first)
        return variable

    def room(self, type: str, count: int) -> Value:
        """The address of so many on the stack, at the beginning of a line of the cache."""
        place = Value(PTR, self._name())
        self._stack.append(f"  {place.name} = alloca [{count} x {type}], align 64")
        return place

    def get(self, variable: Local) -> Value:
        return self.value(variable.type, f"load {variable.type}, ptr {variable.place}")

    def set(self, variable: Local, a: Value) -> None:
        self.line(f"store {a}, ptr {variable.place}")

    # control

    def _label(self) -> str:
        self._count += 1
        return f"l{self._count}"

    def mark(self, label: str) -> None:
        """Begin a block."""
        self._lines.append(f"{label}:")

    @contextmanager
    def loop(self, first: Value | int, end: Value, step: Value | int = 1) -> Iterator[Value]:
        """A loop over integers from `first` up to `end`, which is not among them."""
        first = first if isinstance(first, Value) else number(first, I64)
        head, body, out = self._label(), self._label(), self._label()
        at = self.variable(first)
        self.line(f"br label %{head}")
        self.mark(head)
        here = self.get(at)
        more = self.compare("slt", here, end)
        self.line(f"br {more}, label %{body}, label %{out}")
        self.mark(body)
        yield here
        self.set(at, self.binary("add", here, step if isinstance(step, Value) else float(step)))
        self.line(f"br label %{head}")
        self.mark(out)

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Do only where a condition holds."""
        inside, out = self._label(), self._label()
        self.line(f"br {condition}, label %{inside}, label %{out}")
        self.mark(inside)
        yield
        self.line(f"br label %{out}")
        self.mark(out)

    def either(self, condition: Value) -> tuple[str, str, str]:
        """Branch to one of two blocks; returns their labels, and that of what follows both."""
        yes, no, out = self._label(), self._label(), self._label()
        self.line(f"br {condition}, label %{yes}, label %{no}")
        return yes, no, out

    def go(self, label: str) -> None:
        """Go to a block."""
        self.line(f"br label %{label}")

    @contextmanager
    def forever(self) -> Iterator[str]:
        """A loop that ends where `leave` goes to the label that it gives."""
        head, out = self._label(), self._label()
        self.line(f"br label %{head}")
        self.mark(head)
        yield out
        self.line(f"br label %{head}")
        self.mark(out)

    def leave(self, condition: Value, out: str) -> None:
        """Go to a label where a condition holds."""
        on = self._label()
        self.line(f"br {condition}, label %{out}, label %{on}")
        self.mark(on)

    def give(self, a: Value | None = None) -> None:
        """Return."""
        self.line(f"ret {a or 'void'}")


def _bytes(type: str) -> int:
    element = parts(type)[1]
    return 8 if element == PTR else {"double": 8, "float": 4}.get(element) or max(1, int(element[1:]) // 8)


ATTRIBUTES = 'nounwind "no-builtins" "frame-pointer"="none"'


def module(functions: Sequence[Function]) -> str:
    """The text of functions, with what they use declared."""
    uses = sorted(set().union(*(f.uses for f in functions)))
    return "\n".join([*uses, *map(str, functions), f"attributes #0 = {{ {ATTRIBUTES} }}", ""])

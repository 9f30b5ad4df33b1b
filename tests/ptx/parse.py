"""Reader of the text of a PTX module: kernels with their instructions and variables, and functions, which are written
out where they are called.

The grammar is that of https://docs.nvidia.com/cuda/parallel-thread-execution/, as far as NVRTC writes it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field


class Unreadable(Exception):
    """PTX that is not understood, with the line."""


@dataclass(frozen=True, slots=True)
class Variable:
    """Bytes of a space (global, shared, local): `initial` is what they begin as, empty if nothing says so."""

    name: str
    space: str
    align: int
    nbytes: int
    initial: bytes = b""
    extern: bool = False


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction: `op` with its `modifiers` and operands; done where the register `guard` is true (false, if
    `negated`)."""

    op: str
    modifiers: tuple[str, ...]
    operands: tuple[str, ...]
    guard: str = ""
    negated: bool = False

    @property
    def name(self) -> str:
        return ".".join((self.op, *self.modifiers))

    def __str__(self) -> str:
        guard = f"@{'!' if self.negated else ''}{self.guard} " if self.guard else ""
        return f"{guard}{self.name} {', '.join(self.operands)}".strip()


@dataclass(slots=True)
class Body:
    """What a kernel or a function is: its parameters (name, type), results, registers (type by name), variables,
    instructions and the places of labels among these."""

    name: str
    parameters: list[tuple[str, str]]
    results: list[str] = field(default_factory=list)
    registers: dict[str, str] = field(default_factory=dict)
    variables: list[Variable] = field(default_factory=list)
    code: list[Instruction] = field(default_factory=list)
    labels: dict[str, int] = field(default_factory=dict)
    threads: int = 1024  # of a block, at most


@dataclass(slots=True)
class Module:
    """The kernels of a text and the variables that they share."""

    kernels: dict[str, Body]
    variables: list[Variable]


SIZES = {f"{k}{n}": n // 8 for k in "bsuf" for n in (8, 16, 32, 64)} | {"pred": 1}
_VARIABLE = re.compile(
    r"\.(?P<space>global|shared|local|const)\s+(?:\.align\s+(?P<align>\d+)\s+)?(?:\.attribute\([^)]*\)\s*)?"
    r"\.(?P<type>\w+)\s+(?P<name>[\w$]+)(?P<array>(?:\[\d*\])*)(?:\s*=\s*(?P<values>\{[^}]*\}|[^;]+))?\s*;"
)
_HEAD = re.compile(
    r"(?:\.(?:visible|weak|extern)\s+)*\.(?P<kind>entry|func)\s*(?:\((?P<results>[^)]*)\)\s*)?(?P<name>[\w$]+)\s*"
    r"\((?P<parameters>[^)]*)\)(?P<directives>[^{;]*)(?P<opens>[{;])"
)
_GROUPS = re.compile(r"[{\[(]")
_TOKEN = re.compile(r"\s*([\w$]+:(?!:)|[{}]|[^;{}]*(?:\{[^{};]*\}[^;{}]*)*;)")


def parse(text: str) -> Module:
    """Read a module. Raises Unreadable."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)
    bodies, functions, spans = dict[str, Body](), dict[str, Body](), list[tuple[int, int]]()
    for head in _HEAD.finditer(text):
        if head["opens"] == ";":
            continue
        end = _closing(text, head.end())
        spans.append((head.start(), end))
        parameters = [_parameter(p) for p in head["parameters"].split(",") if p.strip()]
        results = [_parameter(p)[0] for p in (head["results"] or "").split(",") if p.strip()]
        limit = re.search(r"\.(?:maxntid|reqntid)\s+(\d+)(?:\s*,\s*(\d+)\s*,\s*(\d+))?", head["directives"])
        body = Body(head["name"], parameters, results)
        if limit:
            body.threads = int(limit[1]) * int(limit[2] or 1) * int(limit[3] or 1)
        _read(text[head.end() : end - 1], body)
        (bodies if head["kind"] == "entry" else functions)[body.name] = body
    begins, ends = [0, *(end for _, end in spans)], [*(begin for begin, _ in spans), len(text)]
    outside = "".join(text[a:b] for a, b in zip(begins, ends, strict=True))
    variables = [_variable(v) for v in _VARIABLE.finditer(outside)]
    for body in bodies.values():
        _inline(body, functions)
    return Module(bodies, variables)


def _closing(text: str, at: int) -> int:
    depth = 1
    for brace in re.compile(r"[{}]").finditer(text, at):
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return brace.end()
    raise Unreadable("a body has no end")


def _parameter(text: str) -> tuple[str, str]:
    """Name and type of `.param .u64 name`; a structure, `.param .align 8 .b8 name[16]`, has no type."""
    words = text.split()
    return words[-1].partition("[")[0], "" if "[" in text else words[1][1:]


def _variable(v: re.Match[str]) -> Variable:
    size = SIZES[v["type"]]
    counts = [int(n or 0) for n in re.findall(r"\[(\d*)\]", v["array"])]
    nbytes = size
    for n in counts:
        nbytes *= n
    initial = b""
    if v["values"]:
        numbers = re.findall(r"[^\s,{}]+", v["values"])
        initial = b"".join(_bits(n, size) for n in numbers).ljust(nbytes, b"\0")
    return Variable(v["name"], v["space"], int(v["align"] or size), nbytes, initial, nbytes == 0)


def _bits(number: str, size: int) -> bytes:
    value = int(number[2:], 16) if number[:2] in ("0f", "0d") else int(number, 0)
    return (value % (1 << 8 * size)).to_bytes(size, "little")


def _read(text: str, body: Body) -> None:
    """Statements of a body. Registers of inner braces get names of their own."""
    scopes: list[dict[str, str]] = [{}]
    count = at = 0
    text = text.rstrip()
    while at < len(text):
        token = _TOKEN.match(text, at)
        if token is None:
            raise Unreadable(text[at : at + 80])
        words, at = token[1].strip(), token.end()
        if words == "{":
            scopes.append(dict(scopes[-1]))
        elif words == "}":
            scopes.pop()
        elif words.endswith(":"):
            body.labels[words[:-1]] = len(body.code)
        elif words.startswith(".reg"):
            _, kind, names = words.rstrip(";").split(None, 2)
            for name in names.split(","):
                name, _, many = name.strip().partition("<")
                for register in [f"{name}{i}" for i in range(int(many[:-1]))] if many else [name]:
                    count += 1
                    own = register if len(scopes) == 1 else f"{register}'{count}"
                    if own != register or register in scopes[-1]:
                        scopes[-1][register] = own
                    body.registers[own] = kind[1:]
        elif (found := _VARIABLE.match(words)) is not None:
            body.variables.append(_variable(found))
        elif words.startswith((".pragma", ".loc", ".param", ".file")) or words == ";":
            continue
        else:
            body.code.append(_instruction(words.rstrip(";"), scopes[-1]))


def _instruction(text: str, names: Mapping[str, str]) -> Instruction:
    found = re.fullmatch(r"(?:@(!?)([%\w$]+)\s+)?([a-z]\w*)((?:[.:]+\w+)*)\s*(.*)", text, re.S)
    if found is None:
        raise Unreadable(text)
    negated, guard, op, modifiers, rest = found.groups()

    if names:
        rest = re.sub(r"%[\w$]+", lambda r: names.get(r[0], r[0]), rest)
        guard = names.get(guard, guard)
    return Instruction(op, tuple(re.findall(r"\w+", modifiers)), tuple(_split(rest)), guard or "", bool(negated))


def _split(text: str) -> Iterator[str]:
    """Operands between commas outside of braces, brackets and parentheses."""
    if not _GROUPS.search(text):
        yield from (part.strip() for part in text.split(",") if part.strip())
        return
    for part in re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|[^,{\[(])+", text):
        if part.strip():
            yield " ".join(part.split())


def _inline(body: Body, functions: Mapping[str, Body]) -> None:
    """Functions in place of their calls: parameters are registers that caller and function share."""
    while any(i.op == "call" for i in body.code):
        at = next(n for n, i in enumerate(body.code) if i.op == "call")
        call = body.code[at]
        results, name, arguments = _call(call)
        if name not in functions:
            raise Unreadable(f"a call of what is not there: {call}")
        inner, mark = functions[name], f"@{at}"
        cells = dict(zip([*inner.results, *(p for p, _ in inner.parameters)], [*results, *arguments], strict=True))
        code = []
        for i in inner.code:
            operands = tuple(_renamed(o, inner, mark, cells) for o in i.operands)
            guard = f"{i.guard}{mark}" if i.guard else ""
            if i.op == "ret":
                operands = (f"end{mark}",)
                i = Instruction("bra", (), operands)
            code.append(Instruction(i.op, i.modifiers, operands, guard, i.negated))
        longer = len(code) - 1
        body.labels = {n: p + longer * (p > at) for n, p in body.labels.items()}
        body.labels |= {f"{n}{mark}": p + at for n, p in inner.labels.items()} | {f"end{mark}": at + len(code)}
        body.registers |= {f"{n}{mark}": t for n, t in inner.registers.items()}
        body.variables += [Variable(f"{v.name}{mark}", v.space, v.align, v.nbytes, v.initial) for v in inner.variables]
        body.code[at : at + 1] = code


def _call(call: Instruction) -> tuple[Sequence[str], str, Sequence[str]]:
    operands = list(call.operands)
    results = re.findall(r"[\w$]+", operands.pop(0)) if operands[0].startswith("(") else []
    return results, operands[0], re.findall(r"[\w$]+", operands[1]) if len(operands) > 1 else []


def _renamed(operand: str, inner: Body, mark: str, cells: Mapping[str, str]) -> str:
    own = {v.name for v in inner.variables} | set(inner.registers) | set(inner.labels)

    def one(word: re.Match[str]) -> str:
        return cells.get(word[0]) or (f"{word[0]}{mark}" if word[0] in own else word[0])

    return re.sub(r"%?[\w$']+", one, operand)

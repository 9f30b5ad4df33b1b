"""Figures of the structure of the product, read from its source.

    python -m tests.house            # all figures
    python -m tests.house --list     # what each of them counts, by name

Imports inside of functions count, those under TYPE_CHECKING do not.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from mezzo.runtime.compile.collection import collection_paused

ROOT = Path(__file__).parents[1]
TOPS = ("ops", "runtime", "nd", "sym", "importers", "exporters", "kvstore", "train", "data", "models", "gluon", "tools")
# Rooms of the runtime, lowest first: each imports those before it.
ROOMS = ("", "engine", "memory", "ir", "passes", "compile", "file", "execution", "backends")
OPENINGS = re.compile(r"(What|Which|How|Where|Who|Whether|When)\b")


@cache
def tree_of(text: str) -> ast.Module:
    """The syntax of a module, read once. The trees are kept, so that the collector would look through all of them again
    and again, for longer than parsing takes."""
    with collection_paused():
        return ast.parse(text)


def _under_type_checking(tree: ast.AST) -> set[int]:
    return {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }


@dataclass(frozen=True)
class House:
    """The modules of a checkout by dotted name, without `mezzo.`."""

    root: Path

    @cached_property
    def files(self) -> Mapping[str, Path]:
        paths = [p.relative_to(self.root) for top in TOPS for p in sorted((self.root / top).rglob("*.py"))]
        return {".".join(p.with_suffix("").parts).removesuffix(".__init__"): p for p in paths}

    def tree(self, module: str) -> ast.Module:
        return tree_of((self.root / self.files[module]).read_text("utf8"))

    @cached_property
    def imports(self) -> Mapping[str, frozenset[str]]:
        """The modules that each module imports."""
        return {module: frozenset(self._imports(module)) - {module} for module in self.files}

    def _imports(self, module: str) -> Iterator[str]:
        package = module.split(".") if self.files[module].name == "__init__.py" else module.split(".")[:-1]
        tree = self.tree(module)
        left_out = _under_type_checking(tree)
        for node in ast.walk(tree):
            if id(node) in left_out:
                continue
            if isinstance(node, ast.Import):
                names = [alias.name.removeprefix("mezzo.") for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                parts = [*package[: len(package) - node.level + 1]] if node.level else []
                base = ".".join([*parts, *([node.module] if node.module else [])]).removeprefix("mezzo.")
                inner = [f"{base}.{alias.name}" if base else alias.name for alias in node.names]
                names = [name if name in self.files else base for name in inner]
            else:
                continue
            yield from (name for name in names if name in self.files)

    @cached_property
    def circles(self) -> tuple[tuple[str, ...], ...]:
        """Strongly connected components of more than one module, largest first (Tarjan 1972)."""
        index: dict[str, int] = {}
        low: dict[str, int] = {}
        stack: list[str] = []
        found: list[tuple[str, ...]] = []

        def visit(module: str) -> None:
            index[module] = low[module] = len(index)
            stack.append(module)
            for other in sorted(self.imports[module]):
                if other not in index:
                    visit(other)
                    low[module] = min(low[module], low[other])
                elif other in stack:
                    low[module] = min(low[module], index[other])
            if low[module] == index[module]:
                at = stack.index(module)
                component = stack[at:]
                del stack[at:]
                if len(component) > 1:
                    found.append(tuple(sorted(component)))

        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(10_000)
        try:
            for module in self.files:
                if module not in index:
                    visit(module)
        finally:
            sys.setrecursionlimit(limit)
        return tuple(sorted(found, key=lambda circle: (-len(circle), circle)))

    @cached_property
    def upward(self) -> tuple[str, ...]:
        """Imports of the runtime that go from a room to one above it."""
        found = []
        for module, others in self.imports.items():
            for other in others:
                here, there = _room(module), _room(other)
                if here is not None and there is not None and ROOMS.index(here) < ROOMS.index(there):
                    found.append(f"{module} -> {other}")
        return tuple(sorted(found))

    @cached_property
    def at_the_root(self) -> tuple[str, ...]:
        """Files at the root of `runtime/`."""
        return tuple(str(path) for path in self.files.values() if path.parent == Path("runtime"))

    @cached_property
    def names_twice(self) -> tuple[str, ...]:
        """Classes of one name in two modules of a top folder, unless the name is an operator's."""
        operators = _operators()
        where: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
        for module in self.files:
            for node in ast.walk(self.tree(module)):
                if isinstance(node, ast.ClassDef) and node.name not in operators:
                    where[module.partition(".")[0], node.name].append(module)
        return tuple(f"{name}: {', '.join(found)}" for (_, name), found in sorted(where.items()) if len(found) > 1)

    @cached_property
    def riddles(self) -> tuple[str, ...]:
        """Docstrings of modules, classes and functions that open with a question word."""
        return tuple(where for where, text in self._docstrings() if OPENINGS.match(text))

    @cached_property
    def docstrings(self) -> int:
        return sum(1 for _ in self._docstrings())

    def _docstrings(self) -> Iterator[tuple[str, str]]:
        for module in self.files:
            for node in ast.walk(self.tree(module)):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and (text := ast.get_docstring(node)):
                    yield f"{module}.{getattr(node, 'name', '')}", text

    @cached_property
    def tables(self) -> tuple[str, ...]:
        """Tables outside of `ops/` and the kernels that name three operators or more.

        A table is a literal collection: the entries of a set, tuple or list, the keys or values of a dict, the words of
        a string of which the larger part are operators. Of nested ones the outermost that holds three names counts;
        `__all__` does not.
        """
        found = []
        for module in self.files:
            if module.partition(".")[0] != "ops" and not module.startswith("runtime.backends."):
                for node, names in _tables(self.tree(module)):
                    shown = ", ".join(names[:4]) + ", ..." * (len(names) > 4)
                    found.append(f"{self.files[module]}:{node.lineno}: {shown}")
        return tuple(found)

    @cached_property
    def constructing(self) -> tuple[str, ...]:
        """Modules outside of `tools/` that construct sessions."""
        return tuple(
            module
            for module in self.files
            if module.partition(".")[0] != "tools"
            and any(
                isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] == "Session"
                for node in ast.walk(self.tree(module))
            )
        )

    def naming(self, operator: str) -> tuple[str, ...]:
        """Files in which an operator stands as a literal: a string, or a word of a string that is a table."""

        def names(tree: ast.Module) -> bool:
            texts = (n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str))
            return any(text == operator or operator in _words(text) for text in texts)

        return tuple(str(path) for module, path in self.files.items() if names(self.tree(module)))

    @cached_property
    def lines(self) -> int:
        return sum(len((self.root / path).read_text("utf8").splitlines()) for path in self.files.values())


@cache
def _operators() -> frozenset[str]:
    from mezzo.ops import OPS

    return frozenset(name for _, name in OPS.index)


def _words(text: str) -> list[str]:
    """The operators that a string lists; none where it is made of other words."""
    words = text.split()
    named = [name for word in words if (name := word.rpartition("::")[2]) in _operators()]
    return named if len(named) > max(len(words) / 2, 2) else []


def _name(node: ast.AST | None) -> str | None:
    """The operator that an entry names: "Conv", "domain::Conv", or ("domain", "Conv")."""
    if isinstance(node, ast.Tuple) and len(node.elts) == 2 and isinstance(node.elts[0], ast.Constant):
        domain, node = node.elts[0].value, node.elts[1]
        if not isinstance(domain, str) or domain in _operators():
            return None
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return None
    name = node.value.rpartition("::")[2]
    return name if name in _operators() else None


def _tables(tree: ast.Module) -> Iterator[tuple[ast.expr, list[str]]]:
    """Literal collections that hold three names of operators, outermost first."""
    left_out: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
                left_out.update(map(id, ast.walk(node.value)))
        if id(node) in left_out or not isinstance(node, ast.expr):
            continue
        columns: list[list[str | None]] = []
        if isinstance(node, ast.Set | ast.Tuple | ast.List):
            columns = [[_name(entry) for entry in node.elts]]
        elif isinstance(node, ast.Dict):
            columns = [[_name(entry) for entry in column] for column in (node.keys, node.values)]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            columns = [[*_words(node.value)]]
        names = max(([*dict.fromkeys(filter(None, column))] for column in columns), key=len, default=[])
        if len(names) >= 3:
            left_out.update(map(id, ast.walk(node)))
            yield node, names


def _room(module: str) -> str | None:
    """The room of a module of the runtime; None where the order of rooms says nothing of it."""
    top, _, inner = module.partition(".")
    if top != "runtime" or not inner:
        return None
    first, _, deeper = inner.partition(".")
    if first in ROOMS:
        return first
    return None if deeper or first in ("optimizer", "devices", "features", "manifest", "renamed") else ""


def main() -> None:
    house = House(ROOT)
    listed = {
        "circles": [", ".join(circle) for circle in house.circles],
        "imports that go up in runtime/": house.upward,
        "files at the root of runtime/": house.at_the_root,
        "class names twice within a top folder": house.names_twice,
        "tables outside of ops/ and the kernels that name three operators": house.tables,
        "modules outside of tools/ that construct sessions": house.constructing,
        "files that name Conv": house.naming("Conv"),
        f"of {house.docstrings} docstrings open with a question word": house.riddles,
    }
    print(f"{len(house.files)} modules, {house.lines} lines")
    for what, found in listed.items():
        print(f"{len(found)} {what}")
        if "--list" in sys.argv:
            print(*(f"    {one}" for one in found), sep="\n")


if __name__ == "__main__":
    main()

"""Index of operators by module. A module is imported on the first use of one of its operators: a program needs some ten
of three hundred, and a start is a third shorter.

The index is read from the text of the modules, one folder down. It sees `@op("Name"`, `@pointwise("Name"` and
`@composed("Name"`, with `domain="..."` right behind the name if there is one. A module that makes operators by
functions lists them: `OPERATORS = "Name domain::Name"`.

Rules of gradients and standard forms may stand in a module beside the operator's own. Whoever asks for them loads all
modules first (`Operators.load`), as does whoever goes through all operators.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .op import Op

Key = tuple[str, str]  # domain, name

# The opsets whose operators are carried, by domain: the vocabulary of a graph.
OPSETS: dict[str, int] = {
    "": 28,
    "ai.onnx.ml": 5,
    "ai.onnx.preview.training": 1,
    "ai.onnx.preview": 1,
    "com.microsoft": 1,
    "mezzo": 1,
}

_DECORATOR = re.compile(rb'(?:op|pointwise|composed)\(\s*"(\w+)"(?:,\s*domain="([\w.]+)")?')
_FOLDER = os.path.dirname(__file__)
_LISTED = re.compile(rb'^OPERATORS = "+([^"]*)"', re.M)
_LONGEST = 1 << 17  # bytes; tests/test_layers.py allows modules 600 lines


class Operators(dict[Key, "Op"]):
    """Records by domain and name. `redefined` are called once a record has taken the place of another."""

    def __init__(self) -> None:
        super().__init__()
        self._index: dict[Key, str] | None = None
        self._loaded = False
        self.redefined: list[Callable[[], None]] = []

    @property
    def index(self) -> dict[Key, str]:
        """The module of each built-in operator. It is read without importing one, if there is text to read."""
        if self._index is None:
            self._index = _written() or self._imported()
        return self._index

    def _imported(self) -> dict[Key, str]:
        """The index of modules that are in an archive, or compiled without their text: it imports them all."""
        from pkgutil import walk_packages

        for module in walk_packages([_FOLDER], f"{__package__}."):
            import_module(module.name)
        return dict.fromkeys((key for key in super().__iter__() if key[0] in OPSETS), "")

    def load(self) -> None:
        """Import all modules of operators."""
        if not self._loaded:
            for module in dict.fromkeys(self.index.values()):
                _load(module)
            self._loaded = True

    def __missing__(self, key: Key) -> Op:
        module = self.index.get(key)
        if module is not None:
            _load(module)
        record = super().get(key)
        if record is None:
            raise KeyError(key)
        return record

    def loaded(self, key: Key) -> bool:
        """True if the operator is defined, by a module that was imported already."""
        return super().__contains__(key)

    def outside(self) -> list[Key]:
        """The operators that were registered from outside."""
        return [key for key in super().__iter__() if key not in self.index]

    def get(self, key: Key, default: Op | None = None) -> Op | None:  # type: ignore[override]
        """The record of an operator, or what is given instead."""
        try:
            return self[key]
        except KeyError:
            return default

    def __contains__(self, key: object) -> bool:
        return super().__contains__(key) or (key in self.index and self.get(key) is not None)

    def __iter__(self) -> Iterator[Key]:
        self.load()
        return super().__iter__()

    def __len__(self) -> int:
        self.load()
        return super().__len__()

    def keys(self) -> KeysView[Key]:  # type: ignore[override]
        """Domain and name of every operator."""
        self.load()
        return super().keys()

    def values(self) -> ValuesView[Op]:  # type: ignore[override]
        """Return all records."""
        self.load()
        return super().values()

    def items(self) -> ItemsView[Key, Op]:  # type: ignore[override]
        """Return all records with their domains and names."""
        self.load()
        return super().items()


def _written() -> dict[Key, str]:
    """The index, from the text of the modules in the folders beside this one.

    It takes 2 ms, half of them for files; the regular expressions over whole texts would take four more.
    """
    index: dict[Key, str] = {}
    for folder in sorted(os.listdir(_FOLDER)) if os.path.isdir(_FOLDER) else ():
        if "." in folder:
            continue
        for file in sorted(os.listdir(f"{_FOLDER}/{folder}")):
            if not file.endswith(".py"):
                continue
            opened = os.open(f"{_FOLDER}/{folder}/{file}", os.O_RDONLY)
            text = os.read(opened, _LONGEST)
            os.close(opened)
            module = f"{folder}.{file[:-3]}"
            for part in text.split(b"@"):
                if part.startswith((b"op(", b"pointwise(", b"composed(")) and (match := _DECORATOR.match(part)):
                    name, domain = match.groups(b"")
                    index[domain.decode(), name.decode()] = module
            if b"\nOPERATORS" in text and (listed := _LISTED.search(text)):
                for word in listed[1].decode().split():
                    own, _, short = word.rpartition("::")
                    index[own, short] = module
    return index


def _load(module: str) -> None:
    if module:
        import_module(f".{module}", __package__)

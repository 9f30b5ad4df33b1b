"""`mx.name` and `mx.AttrScope`: default names of symbols, and attributes of variables, of a scope."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Self

from ...sym.expression import NAMES, SCOPE, Names


class NameManager:
    """Names of what has none: the operator's, and a number. `with NameManager():` counts anew."""

    def __init__(self, names: Names | None = None) -> None:
        self._names, self._before = names or Names(), list[NameManager]()

    def get(self, name: str | None, hint: str) -> str:
        """The name that is given, or a new one."""
        return name or self._names.fresh(hint.lstrip("_"))

    def __enter__(self) -> Self:
        self._before.append(MANAGER.current)
        MANAGER.current = self
        return self

    def __exit__(self, *_: object) -> None:
        MANAGER.current = self._before.pop()


class Prefix(NameManager):
    """A prefix before all names."""

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = prefix

    def get(self, name: str | None, hint: str) -> str:
        return self._prefix + super().get(name, hint)


class AttrScope:
    """Attributes of all variables that are made inside; `ctx_group` is that of operators too, for `group2ctx`."""

    def __init__(self, **attrs: str) -> None:
        self._attrs, self._before = attrs, list[dict[str, str]]()

    def __enter__(self) -> Self:
        self._before.append(ATTRIBUTES.current)
        ATTRIBUTES.current = {**ATTRIBUTES.current, **self._attrs}
        SCOPE.group = group_in(ATTRIBUTES.current)
        return self

    def __exit__(self, *_: object) -> None:
        ATTRIBUTES.current = self._before.pop()
        SCOPE.group = group_in(ATTRIBUTES.current)


def group_in(attrs: Mapping[str, str]) -> str:
    """The group among attributes, under either of its names."""
    return str(attrs.get("ctx_group") or attrs.get("__ctx_group__") or "")


class _Manager(threading.local):
    current: NameManager = NameManager(NAMES)


class _Attributes(threading.local):
    def __init__(self) -> None:
        self.current: dict[str, str] = {}


MANAGER, ATTRIBUTES = _Manager(), _Attributes()
__all__ = ["AttrScope", "NameManager", "Prefix"]

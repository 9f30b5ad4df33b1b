"""The input and result of an upgrade rule: one node as one opset writes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from ..dataclasses import dataclass, field, replace
from ..types import Array, Tensor


class UpgradeDeclined(Exception):
    """A rule cannot rewrite this node; the message says why."""


@dataclass(frozen=True, slots=True)
class Form:
    """A node as one opset writes it."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    domain: str = ""

    def input(self, index: int) -> str:
        """The name of an input; empty if it is absent."""
        return self.inputs[index] if index < len(self.inputs) else ""

    def with_inputs(self, *inputs: str) -> Form:
        """The same node with these inputs; absent ones at the end are left out."""
        end = len(inputs)
        while end and not inputs[end - 1]:
            end -= 1
        return replace(self, inputs=inputs[:end])

    def without(self, *attrs: str) -> Form:
        """The same node without these attributes."""
        return replace(self, attrs={a: v for a, v in self.attrs.items() if a not in attrs})

    def having(self, **attrs: Any) -> Form:
        """The same node with these attributes besides its own."""
        return replace(self, attrs={**self.attrs, **attrs})

    def named(self, op: str, domain: str = "") -> Form:
        """The same operands for another operator."""
        return replace(self, op=op, domain=domain)


class Scope(Protocol):
    """Surroundings of a node during its rewrite."""

    @property
    def source(self) -> int:
        """The opset that the node's file was written at; 0 for a graph made by hand."""
        ...

    def const(self, stem: str, value: Array) -> str:
        """Make an initialiser with a name like `stem`, and return its name."""
        ...

    def value(self, name: str) -> Array | None:
        """The elements of a value that is a constant."""
        ...

    def take(self, name: str) -> Array:
        """The elements of a constant that the node stops reading (it is dropped if nobody else reads it); Declined
        if the value is not a constant."""
        ...

    def type(self, name: str) -> Tensor | None:
        """Return the known type of a value, or None."""
        ...

    def used(self, name: str) -> bool:
        """True if anything reads a value."""
        ...


Rewrite = Callable[[Form, Scope], Form]


def unchanged(form: Form, scope: Scope) -> Form:
    """A node is written alike before and after."""
    return form


def not_written(form: Form, scope: Scope) -> Form:
    """The way down to opsets below 7, which are read, never written."""
    raise UpgradeDeclined("opsets below 7 are not written")


@dataclass(frozen=True, slots=True)
class Change:
    """The change of an operator at one opset.

    `up` rewrites a node of the opset before into this one, `down` does the inverse; either raises Declined. With
    `same`, a node is written alike in both wherever both schemas allow it; `down` checks it, and may count axes from
    the front.
    `made` names the operator that `up` makes of it, where that has another name.
    """

    up: Rewrite = unchanged
    down: Rewrite = not_written
    same: bool = False
    made: tuple[str, str] | None = None


def rank_of(name: str, scope: Scope) -> int | None:
    """The rank of a value, where it is known."""
    known = scope.type(name)
    return None if known is None or known.dims is None else len(known.dims)

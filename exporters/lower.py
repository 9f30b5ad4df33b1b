"""Conversion of nodes to older opsets: the opsets at which a node can be written, and its form at each.

Going down from our opset, a node crosses one schema change after another: unchanged where the older schema allows
what it has, rewritten where the table of upgrades says how.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import onnx.defs
import onnx.helper

from ..ops import OPSETS, upgrade
from ..ops.dataclasses import dataclass, field
from ..ops.types import Array, Map, Optional, Sequence, Tensor, Type
from ..ops.upgrade import Form, UpgradeDeclined
from ..runtime.ir.graph import Node

LOWEST = 7  # below, operators had broadcast flags and test modes of their own
FREE = 2**31  # a domain that onnx does not know has the version that its user gave it
SCHEMATA = {"", "mezzo", *(s.domain for s in onnx.defs.get_all_schemas())}
Schema = onnx.defs.OpSchema
Choice = onnx.defs.OpSchema.FormalParameterOption


@dataclass(frozen=True, slots=True)
class Way:
    """A node as the opsets `low` to `high` write it, with the initializers that it adds and those that it no longer
    reads."""

    form: Form
    low: int
    high: int
    added: Mapping[str, Array]
    taken: frozenset[str]


@dataclass(slots=True)
class Context:
    """Facts about the graph being written; `upgrade.Scope` for its nodes."""

    source: int
    types: Mapping[str, Type]
    constants: Mapping[str, Array]
    read: frozenset[str]
    names: set[str]
    added: dict[str, Array] = field(default_factory=dict[str, Array])
    taken: set[str] = field(default_factory=set[str])

    def fresh(self, stem: str) -> str:
        """A name like this one that nothing has yet."""
        name, count = stem, 0
        while name in self.names:
            count += 1
            name = f"{stem}.{count}"
        self.names.add(name)
        return name

    def const(self, stem: str, value: Array) -> str:
        name = self.fresh(stem)
        self.added[name] = value
        return name

    def value(self, name: str) -> Array | None:
        constant = self.constants.get(name)
        return self.added.get(name) if constant is None else constant

    def take(self, name: str) -> Array:
        constant = self.value(name)
        if constant is None:
            raise UpgradeDeclined(f"{name!r} would have to be a constant")
        self.taken.add(name)
        return np.asarray(constant)

    def type(self, name: str) -> Tensor | None:
        known = self.types.get(name)
        return known if isinstance(known, Tensor) else None

    def used(self, name: str) -> bool:
        return name in self.read


def is_composed(node: Node) -> bool:
    """True if a node is an operator of ours that no opset of ONNX ever had, so that only its body can be written."""
    key = node.domain, node.op
    return node.domain == "mezzo" and not any(
        change.made == key and schema_of(domain, op, opset - 1)
        for (domain, op, opset), change in upgrade.CHANGES.items()
    )


@cache
def schema_of(domain: str, op: str, opset: int) -> Schema | None:
    """The schema that an operator has at an opset; None if it has none there, or one that is not to be used."""
    try:
        schema = onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else schema


def kind_of(schema: Schema, attr: str) -> int:
    """The number in AttributeProto.AttributeType of what a schema wants as an attribute."""
    kind: Any = schema.attributes[attr].type  # an enum of the extension module, which has no type stubs
    return int(kind.value)


def ways(node: Node, around: Context, limit: int | None) -> tuple[list[Way], str]:
    """Return the forms of a node, newest opset first, and the reason why it cannot be written for older ones. Changes
    that rewrite a node are crossed only above `limit` (None: never)."""
    form = Form(node.op, node.inputs, node.outputs, node.attrs, node.domain)
    at, forms = OPSETS.get(node.domain, 0), list[Way]()
    around.added, around.taken = {}, set()
    if form.domain not in SCHEMATA:
        return [Way(form, 1, FREE, {}, frozenset())], ""
    if form.domain == "mezzo":
        known = [v for v in range(OPSETS[""], 0, -1) if upgrade.before(form, v)]
        if not known:
            return [], f"mezzo::{form.op} is no operator of ONNX"
        form, at = _down(form, known[0], around), known[0] - 1
    elif form.domain:  # a domain that retired the operator is written at the last opset that has it
        at = max((v for v in range(1, at + 1) if schema_of(form.domain, form.op, v)), default=at)
    while True:
        schema = schema_of(form.domain, form.op, at)
        if schema is None:
            return forms, f"{form.op} is not part of opset {at}"
        reason = misfit(form, schema, around.types, around.read)
        if reason:
            return forms, reason
        since = int(schema.since_version)
        forms.append(Way(form, since, at, dict(around.added), frozenset(around.taken)))
        change = upgrade.before(form, since)
        if form.domain or since <= LOWEST or change is None:
            return forms, f"{form.op} came with opset {since}"
        # Down to the opset of its file a node is known to be right; below, its types have to fit.
        if since <= around.source and not _all_known(form, around):
            return forms, "the types of its operands are not known"
        try:
            older = change.down(_plain(form, schema, since) if change.same else form, around)
        except UpgradeDeclined as declined:
            return forms, str(declined)
        if older is not form and (limit is None or since <= limit):
            return forms, f"{form.op} was written otherwise before opset {since}"
        form, at = older, since - 1


def _plain(form: Form, schema: Schema, since: int) -> Form:
    """The node without attributes that an older schema lacks and that say here what it always meant."""
    older = schema_of(form.domain, form.op, since - 1)
    new = [a for a in form.attrs if older is not None and a in schema.attributes and a not in older.attributes]
    defaults = [a for a in new if _is_default(a, form.attrs[a], schema)]
    return form.without(*defaults) if defaults else form


def _is_default(attr: str, value: Any, schema: Schema) -> bool:
    if attr == "dilations":  # schemas do not say how many ones
        return all(v == 1 for v in value)
    default = schema.attributes[attr].default_value
    if not default.name:
        return False
    meant = onnx.helper.get_attribute_value(default)
    return bool(value == (meant.decode() if isinstance(meant, bytes) else meant))


def _down(form: Form, since: int, around: Context) -> Form:
    change = upgrade.before(form, since)
    assert change is not None
    return change.down(form, around)


def _all_known(form: Form, around: Context) -> bool:
    return all(n in around.types for n in (*form.inputs, *form.outputs) if n)


def misfit(form: Form, schema: Schema, types: Mapping[str, Type], read: frozenset[str]) -> str:
    """Why a schema does not allow a node; empty if it does, as far as types are known. The types of outputs that
    nobody reads do not matter."""
    extra = [a for a in form.attrs if a not in schema.attributes]
    if extra:
        return f"opset {schema.since_version} has no attribute {' or '.join(extra)}"
    lacking = [a for a, d in schema.attributes.items() if d.required and a not in form.attrs]
    if lacking:
        return f"opset {schema.since_version} needs the attribute {' and '.join(lacking)}"
    bound = dict[str, str]()  # what each type parameter stands for
    for kind, names, params, least, most in (
        ("inputs", form.inputs, schema.inputs, schema.min_input, schema.max_input),
        ("outputs", form.outputs, schema.outputs, schema.min_output, schema.max_output),
    ):
        if not least <= len(names) <= most:
            return f"opset {schema.since_version} takes {least} to {most} {kind}, here are {len(names)}"
        for index, name in enumerate(names):
            param = params[min(index, len(params) - 1)]
            if not name and kind == "inputs" and param.option is Choice.Single:
                return f"opset {schema.since_version} needs the input {param.name}"
            matters = name in types and (kind == "inputs" or name in read)
            word = type_word(types[name]) if matters else ""
            if word and word not in param.types:
                return f"opset {schema.since_version} does not take {word} for {param.name}"
            if word and param.is_homogeneous and bound.setdefault(param.type_str, word) != word:
                return f"opset {schema.since_version} takes no {word} beside {bound[param.type_str]} for {param.name}"
    return ""


def type_word(kind: Type) -> str:
    """A type as schemas spell it.

    >>> from mezzo.ops.types import f32
    >>> type_word(Sequence(f32(2)))
    'seq(tensor(float))'
    """
    match kind:
        case Tensor():
            return f"tensor({kind.dtype.name.lower()})"
        case Sequence():
            return f"seq({type_word(kind.element)})"
        case Optional():
            return f"optional({type_word(kind.element)})"
        case Map():
            return f"map({kind.key.name.lower()},{type_word(kind.element)})"

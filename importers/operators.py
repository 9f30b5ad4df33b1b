"""The operators that a model uses, and the problems with each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cache

import onnx
import onnx.defs

from ..ops import OPS, OPSETS, upgrade
from .uses import OperatorUse
from .walk import FunctionKey, Place, domain_of, key_of, label, operator_of, opsets_of, places

Used = tuple[str, str, int | None]  # domain, operator, opset


def operator_uses(
    model: onnx.ModelProto,
    functions: Mapping[FunctionKey, onnx.FunctionProto],
    used: list[FunctionKey],
    where: str,
) -> list[OperatorUse]:
    """Return all operators of a model and of the functions that it calls (`used`), in order of first use."""
    count: Counter[Used] = Counter()
    first: dict[Used, str] = {}
    for place in _all_places(model, functions, used, where):
        for index, node in enumerate(place.nodes):
            if key_of(node) not in functions:
                domain = domain_of(node.domain)
                key = (domain, operator_of(domain, node.op_type), place.opsets.get(domain))
                count[key] += 1
                first.setdefault(key, f"{place.where}: {label(index, node)}")
    return [
        OperatorUse(domain, op, opset, times, first[domain, op, opset], *_objection(domain, op, opset))
        for (domain, op, opset), times in count.items()
    ]


def _all_places(
    model: onnx.ModelProto, functions: Mapping[FunctionKey, onnx.FunctionProto], used: list[FunctionKey], where: str
) -> Iterator[Place]:
    yield from places(where, model.graph.node, opsets_of(model))
    for key in used:
        body = functions[key]
        yield from places(f"{where}: function {body.name!r}", body.node, {**opsets_of(model), **opsets_of(body)})


@cache
def schema_opset(domain: str, op: str, opset: int) -> int | None:
    """The opset at which the operator took the form that it has at `opset`; None if onnx knows no such operator."""
    try:
        return int(onnx.defs.get_schema(op, opset, domain).since_version)
    except (onnx.defs.SchemaError, TypeError):  # TypeError: a damaged opset that is no 32-bit number
        return None


def missing_changes(domain: str, op: str, opset: int) -> list[int]:
    """Changes between `opset` and ours that the table of upgrades does not know."""
    known, at, lacking = set(upgrade.changes(domain, op)), OPSETS.get(domain, 0), list[int]()
    while (since := schema_opset(domain, op, at)) is not None and since > opset:
        lacking += [since] if since not in known and schema_opset(domain, op, since - 1) is not None else []
        at = since - 1
    return lacking[::-1]


def shown(domain: str) -> str:
    return domain or "ai.onnx"


def _objection(domain: str, op: str, opset: int | None) -> tuple[str, str]:
    """Why a node of this operator cannot be taken, and what to do; two empty strings if it can."""
    if not upgrade.carried(domain, op):
        return "is not carried", _nearest(domain, op)
    if opset is None:
        return "has no opset", "add the domain to the model's opset_import"
    ours = OPSETS.get(domain, opset)  # a domain of the user's own is taken at whatever version the file says
    if opset > ours:
        newest = onnx.defs.onnx_opset_version() if not domain else max(
            (s.since_version for s in onnx.defs.get_all_schemas() if s.domain == domain), default=ours)  # fmt: skip
        older = f"export the model for opset {ours} of {shown(domain)} or below"
        if not domain and opset > newest:
            return f"is newer than opset {newest}, the newest that the installed onnx knows", older
        since = schema_opset(domain, op, opset)
        if since is not None and since > ours:
            return f"changed at opset {since}, and is carried as of opset {ours}", older
    lacking = missing_changes(domain, op, opset)
    if lacking:
        changed = f"changed at opset {', '.join(map(str, lacking))} in a way that is not known here"
        return changed, "convert the model to a newer opset first (onnx.version_converter)"
    return "", ""


def _nearest(domain: str, op: str) -> str:
    if schema_opset(domain, op, OPSETS.get(domain, 0)) is not None:
        return f"{op} is an operator of ONNX that is not carried yet: export the model without it"
    if domain == "com.microsoft.nchwc":
        return (
            "ONNX Runtime saved this file for one kind of processor: export the model again, or save it with "
            "graph_optimization_level = ORT_ENABLE_EXTENDED instead of ORT_ENABLE_ALL"
        )
    names = {name for d, name in OPS if d == domain}
    if not names:
        return (
            f"operators of the domain {shown(domain)} are not known: export with standard operators, "
            "or register them (mezzo.op)"
        )
    import difflib  # of a start, a millisecond

    alike = difflib.get_close_matches(op, names, 3, 0.6) or [n for n in names if n.lower() == op.lower()]
    return f"{op} may mean {' or '.join(alike)}" if alike else f"{op} has no operator of a similar name"

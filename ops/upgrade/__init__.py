"""Conversion of nodes from older opsets to ours and back: a table of changes by domain, operator and opset.

A graph speaks the opsets of `OPSETS`. An importer reads each node at the opset of its file and takes it through every
change since (`upgrade`); an exporter goes the other way, one change at a time (`before`).
"""

from __future__ import annotations

from ..op import OPS
from ..registry import OPSETS
from . import legacy, moved  # noqa: F401 (they enter their changes)
from .form import Change, Form, Rewrite, Scope, UpgradeDeclined, rank_of, unchanged
from .rules import RULES
from .same import ML_TABLE, TABLE, parse

__all__ = [
    "CHANGES",
    "Change",
    "Form",
    "Rewrite",
    "Scope",
    "UpgradeDeclined",
    "before",
    "carried",
    "changes",
    "upgrade",
]


def _axis_from_front(form: Form, scope: Scope) -> Form:
    known = scope.value(form.input(3 if form.op == "Slice" else 1)) if form.op in ("Slice", "Gather") else None
    if known is not None and known.min(initial=0) < 0:
        raise UpgradeDeclined("before this opset, axes and indices could not be negative")
    rank, positive = rank_of(form.input(0), scope), dict[str, object]()
    for name in ("axis", "axes"):
        value = form.attrs.get(name, 0)
        given = value if isinstance(value, tuple) else (value,)
        if any(n < 0 for n in given):
            if rank is None:
                raise UpgradeDeclined("before this opset, axes could not be negative, and the rank is not known")
            ends = rank + {"Unsqueeze": len(given), "OneHot": 1}.get(form.op, 0)
            front = tuple(n + ends if n < 0 else n for n in given)
            positive[name] = front if isinstance(value, tuple) else front[0]
    return form.having(**positive) if positive else form


def _table() -> dict[tuple[str, str, int], Change]:
    same, axes = Change(down=unchanged, same=True), Change(down=_axis_from_front, same=True)
    changes = {
        (domain, op, v): axes if from_back else same
        for domain, table in (("", TABLE), ("ai.onnx.ml", ML_TABLE))
        for op, opsets in parse(table).items()
        for v, from_back in opsets.items()
    }
    return {**changes, **RULES}


CHANGES: dict[tuple[str, str, int], Change] = _table()

_OPSETS_OF: dict[tuple[str, str], list[int]] = {}
for _domain, _op, _opset in sorted(CHANGES):
    _OPSETS_OF.setdefault((_domain, _op), []).append(_opset)
_MADE_BY = {(c.made, opset): c for (_, _, opset), c in CHANGES.items() if c.made}


def changes(domain: str, op: str) -> list[int]:
    """Opsets at which this operator changed, as far as they are known here, in order.

    >>> changes("", "ReduceSum")
    [11, 13]
    """
    return list(_OPSETS_OF.get((domain, op), []))


def carried(domain: str, op: str) -> bool:
    """True if a node of this operator can become one that has a record."""
    if (domain, op) in OPS:
        return True
    return any(c.made in OPS or carried(*c.made) for v in changes(domain, op) if (c := CHANGES[domain, op, v]).made)


def upgrade(form: Form, opset: int, scope: Scope) -> Form:
    """The node as our opset writes it; Declined if it means something that ours cannot say."""
    while True:
        later = [v for v in changes(form.domain, form.op) if opset < v <= OPSETS.get(form.domain, opset)]
        if not later:
            return form
        opset = later[0]
        form = CHANGES[form.domain, form.op, opset].up(form, scope)


def before(form: Form, opset: int) -> Change | None:
    """The change at `opset` that made a node of this form; None if none is known."""
    return CHANGES.get((form.domain, form.op, opset)) or _MADE_BY.get(((form.domain, form.op), opset))

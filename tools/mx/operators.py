"""Every operator of MXNet on arrays: the importer's rule writes the graph of one use, which is planned for operands of
these sizes, and kept. Gradients and traces go through it as through any block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...gluon.nest import Slot
from ...gluon.trace import Traced
from ...gluon.trace import call as run
from ...importers.mxnet.build import LABELLED
from ...importers.mxnet.converter import Converter
from ...importers.mxnet.operators import RULES
from ...importers.mxnet.rules import Rule
from ...nd.array import Array
from ...nd.recording import RECORDING
from ...nd.running import as_array, assign
from ...ops.errors import InputError, MezzoError, ModelError
from ...runtime.caches import bounded
from ...runtime.ir.graph import Graph, Node
from ...runtime.ir.infer import infer
from ...runtime.passes.modes import inference, training
from .ndarray import own

MOST = 4096
FORMS: dict[Any, Traced] = bounded("operators of MXNet on arrays", MOST, {})


def function(name: str, shown: str = "") -> Callable[..., Any] | None:
    """The function of an operator, under the name that it is shown as; None where it is not carried."""
    rule = RULES.get(name)
    if rule is None:
        return None

    def operator(*operands: Any, out: Array | None = None, **settings: Any) -> Any:
        result = use(rule, operands, settings)
        if out is None:
            return result
        for into, value in zip(_listed(out), _listed(result), strict=True):
            assign(into, value)
        return out

    operator.__name__ = operator.__qualname__ = shown or name
    operator.__doc__ = rule.write.__doc__
    return operator


def use(rule: Rule, operands: Sequence[Any], settings: dict[str, Any]) -> Any:
    """One use of an operator: operands in their order or by name, then attributes in theirs or by name.

    Raises InputError for what it does not take.
    """
    try:
        inputs, attrs = rule.arranged(operands, settings, _operand)
    except ModelError as error:
        raise InputError(error.message, where=rule.name) from None
    while inputs and inputs[-1] is None:
        inputs.pop()
    if rule.name in LABELLED and RECORDING.on:
        hint = "gluon.loss has losses; mx.sym has these heads with their gradients"
        raise InputError(f"{rule.name} of arrays has no gradient of its own", where=rule.name, hint=hint)
    given = [x for x in inputs if x is not None]
    if not given:
        raise InputError(f"{rule.name} is given no array", where=rule.name)
    key = (rule.name, *[None if x is None else x._spec for x in inputs], *sorted(attrs.items()), RECORDING.training)
    form = FORMS.get(key)
    if form is None:
        if len(FORMS) >= MOST:
            FORMS.clear()
        form = FORMS[key] = _form(rule, inputs, attrs)
    return own(run(form, given))


def _form(rule: Rule, inputs: Sequence[Any], attrs: dict[str, str]) -> Traced:
    c = Converter()
    names = ["" if x is None else c.input(f"x{i}", x._spec.tensor) for i, x in enumerate(inputs)]
    try:
        answer = rule(c, [n or None for n in names], attrs)  # type: ignore[misc]
    except MezzoError as error:
        raise error.at(rule.name) from error.__cause__
    results = answer if isinstance(answer, tuple) else (answer,)
    outputs = tuple(f"out{i}" for i in range(len(results)))
    for result, output in zip(results, outputs, strict=True):  # a rule may answer with its operand
        c.add(Node("Identity", (result,), (output,), name=output))
    graph: Graph = c.graph(list(outputs))
    graph = infer((training if RECORDING.training else inference)(graph))
    draws = int(any(not n.record.deterministic for _, n in graph.walk()))
    shell: Any = list(map(Slot, range(len(outputs))))
    return Traced(
        graph, len(outputs), [n for n in names if n], {}, {}, {}, shell if len(shell) > 1 else shell[0], draws
    )


def _operand(x: Any) -> Array | None:
    return as_array(x) if isinstance(x, Array | np.ndarray) else None


def _listed(x: Any) -> list[Any]:
    return list(x) if isinstance(x, list | tuple) else [x]


__all__ = ["RULES", "function", "use"]

"""Softmax, its logarithm, and their gradients: rows that stay in registers, and longer ones that are read twice.

A long row is read once for its largest element and the sum of the exponentials together, the sum being scaled
whenever a larger element turns up (https://arxiv.org/abs/1805.02867).
"""

from __future__ import annotations

from ....ops import DType
from ....ops.core.rules import axis_of
from ...compile.kernel import Declined, KernelRequest, listed
from .generated import Generated, operands
from .launch import In, Launch, Out, Written
from .rows import Rows, larger
from .text import Element, launch, reads, writes


class Softmax(Generated):
    """Softmax and LogSoftmax along one axis, or, as before opset 13, over all axes from one on; and SoftmaxGrad and
    LogSoftmaxGrad."""

    name = "gpu.softmax"
    operators = listed(
        "Softmax LogSoftmax mezzo::SoftmaxGrad mezzo::LogSoftmaxGrad mezzo::SoftmaxFlattened mezzo::LogSoftmaxFlattened"
    )

    def write(self, request: KernelRequest) -> Written | Declined:
        forms, _, y = operands(request, floats=True)
        sizes = y.sizes
        if not y.elements:
            return Written(())
        flattened = request.node.op.endswith("Flattened")
        axis = request.node.attrs.get("axis", 1 if flattened else -1)
        if not (flattened and axis == len(sizes)):  # where it is, each element is a row of its own
            axis = axis_of(axis, len(sizes))
        rows, e = Rows.of(sizes, range(axis, len(sizes)) if flattened else [axis]), forms[0]
        make = _gradient if request.node.op.endswith("Grad") else _in_registers if rows.in_registers else _online
        return Written((make(rows, e, request.node.op.startswith("Log")),))


def _in_registers(rows: Rows, e: Element, log: bool) -> Launch:
    exp, half, rows = e.f("exp"), e.dtype is DType.FLOAT16, rows.wide(e.dtype.itemsize)

    def rounded(value: str) -> str:  # each step of the reference rounds to float16
        return e.read(e.write(value)) if half and not log else value

    term = f"sum += {exp}(v[k] - most);" if log else f"v[k] = {rounded(f'{exp}(v[k] - most)')}; sum += v[k];"
    value = "v[k] - most - total" if log else "v[k] / total"
    total = f"{e.f('log')}(sum)" if log else rounded("sum")
    body = [
        *rows.begin(),
        f"{e.wide} v[{rows.kept}], most = {e.read('x[at]')}, sum = 0;",
        *rows.load(e, "x", "v"),
        *rows.unrolled(f"const {e.wide} other = v[k];", f"most = {larger('most')};"),
        *rows.across(e.wide, "most", larger("most")),
        *rows.unrolled(term),
        *rows.across(e.wide, "sum", "sum + other"),
        f"const {e.wide} total = {total};",
        *rows.store("y", e.write(value)),
    ]
    return _launch(rows, e, "log_softmax" if log else "softmax", body, ("x",))


def _online(rows: Rows, e: Element, log: bool) -> Launch:
    exp = e.f("exp")
    value = "v - most - total" if log else f"{exp}(v - most) / sum"
    body = [
        *rows.begin(),
        f"{e.wide} most = {e.read('x[at]')}, sum = 0;",
        *rows.loop(
            f"const {e.wide} v = {e.read('x[p]')};",
            f"if (v > most || v != v) {{ sum *= {exp}(most - v); most = v; }}",
            f"sum += v == most ? 1 : {exp}(v - most);",
        ),
        f"const {e.wide} own = most;",
        *rows.across(e.wide, "most", larger("most")),
        f"sum *= own == most ? 1 : {exp}(own - most);",
        *rows.across(e.wide, "sum", "sum + other"),
        "sum += most - most;  // infinity makes NaN of all",
        *([f"const {e.wide} total = {e.f('log')}(sum);"] if log else []),
        *rows.loop(f"const {e.wide} v = {e.read('x[p]')};", f"y[p] = {e.write(value)};"),
    ]
    return _launch(rows, e, "log_softmax" if log else "softmax", body, ("x",))


def _gradient(rows: Rows, e: Element, log: bool) -> Launch:
    dy, y, exp = e.read("dy[p]"), e.read("y[p]"), e.f("exp")
    value = f"{dy} - {exp}({y}) * sum" if log else f"{y} * ({dy} - sum)"
    body = [
        *rows.begin(),
        f"{e.wide} sum = 0;",
        *rows.loop(f"sum += {dy};" if log else f"sum += {dy} * {y};"),
        *rows.across(e.wide, "sum", "sum + other"),
        *rows.loop(f"dx[p] = {e.write(value)};"),
    ]
    return _launch(rows, e, "log_softmax_grad" if log else "softmax_grad", body, ("dy", "y"), "dx")


def _launch(rows: Rows, e: Element, family: str, body: list[str], inputs: tuple[str, ...], output: str = "y") -> Launch:
    parameters = [reads(e, name, In(i)) for i, name in enumerate(inputs)]
    parameters.append(writes(e, output, Out(0)))
    return launch(family, parameters, "\n".join(body), rows.blocks, rows.threads, before=rows.piece(e))

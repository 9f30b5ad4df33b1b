"""Control flow: `_foreach` as Scan, `_while_loop` as Loop, `_cond` as If. Their subgraphs are written by the rules of
their operators, within the bodies of ONNX's."""

from __future__ import annotations

from typing import Any

from ....ops import Body, DType, Tensor
from ....ops.errors import ModelError
from ..converter import Converter
from ..rules import rule


def _kept(c: Converter, x: str) -> Tensor:
    """The type of a value that goes round: without its elements, which change."""
    return Tensor(c.dtype(x), c.dims(x))


def _at(inputs: tuple[str, ...], places: Any, what: str) -> list[str]:
    places = places if isinstance(places, tuple) else (places,)
    if not all(isinstance(i, int) and 0 <= i < len(inputs) for i in places):
        raise ModelError(f"{what} names operands that there are not: {places}")
    return [inputs[i] for i in places]


def _ordered(count: int, *parts: tuple[Any, list[str]]) -> list[str]:
    """Operands of a subgraph, each at the place that the file tells."""
    values = [""] * count
    for places, given in parts:
        for place, value in zip(places if isinstance(places, tuple) else (places,), given, strict=True):
            if not isinstance(place, int) or not 0 <= place < count:
                raise ModelError(f"a subgraph of {count} inputs has no input {place}")
            values[place] = value
    if not all(values):
        raise ModelError(f"its subgraph takes {count} inputs, and not all are given")
    return values


@rule("_foreach")
def foreach(
    c: Converter,
    *data: str,
    num_outputs: int,
    num_out_data: int,
    in_data_locs: tuple[int, ...],
    in_state_locs: tuple[int, ...] = (),
    remain_locs: tuple[int, ...] = (),
) -> Any:
    """One step of the subgraph for each element of the first axis: stacked results, then the last states."""
    (part,) = c.parts
    scanned, states = len(in_data_locs), len(in_state_locs)
    rows, first, remaining = data[:scanned], data[scanned : scanned + states], list(data[scanned + states :])
    types = [*(_kept(c, s) for s in first), *(Tensor(c.dtype(r), c.dims(r)[1:]) for r in rows)]

    def step(g: Converter, *values: str) -> list[str]:
        operands = _ordered(
            part.inputs,
            (in_data_locs, [*values[states:]]),
            (in_state_locs, [*values[:states]]),
            (remain_locs, remaining),
        )
        results = part.write(g, operands)
        return [*results[num_out_data:], *results[:num_out_data]]

    outputs = c.op("Scan", *first, *rows, outputs=num_outputs, body=Body(types, step), num_scan_inputs=scanned)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    return (*outputs[states:], *outputs[:states])


@rule("_while_loop")
def while_loop(
    c: Converter,
    *data: str,
    num_outputs: int,
    num_out_data: int,
    max_iterations: int,
    cond_input_locs: tuple[int, ...],
    func_input_locs: tuple[int, ...],
    func_var_locs: tuple[int, ...],
) -> Any:
    """Stacked results of `max_iterations` rows, 0 behind the last step (MXNet leaves them as they are), then the
    variables after it."""
    condition, function = c.parts
    places = [func_input_locs[i] for i in func_var_locs]  # of the variables among the operands
    first = _at(data, tuple(places), "func_var_locs")

    def holds(g: Converter, values: list[str]) -> str:
        given = list(data)
        for place, value in zip(places, values, strict=True):
            given[place] = value
        (result,) = condition.write(g, _at(tuple(given), cond_input_locs, "cond_input_locs"))
        return g.Reshape(g.truth(result), g.ints())  # type: ignore[no-any-return]

    def step(g: Converter, index: str, before: str, *values: str) -> list[str]:
        given = list(data)
        for place, value in zip(places, values, strict=True):
            given[place] = value
        results = function.write(g, _at(tuple(given), func_input_locs, "func_input_locs"))
        after = results[num_out_data:]
        return [holds(g, after), *after, *results[:num_out_data]]

    types = [Tensor(DType.INT64, ()), Tensor(DType.BOOL, ()), *(_kept(c, v) for v in first)]
    outputs = c.op(
        "Loop", c.const(max_iterations), holds(c, first), *first, outputs=num_outputs, body=Body(types, step)
    )
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    stacked = [_filled_up(c, x, max_iterations) for x in outputs[len(first) :]]
    return (*stacked, *outputs[: len(first)])


def _filled_up(c: Converter, x: str, rows: int) -> str:
    """As many rows as the loop may have steps."""
    tail = c.dims(x)[1:]
    missing = c.Sub(c.ints(rows), c.op("Shape", x, start=0, end=1))
    zeros = c.ints(*[0] * len(tail))
    pads = c.op("Concat", c.ints(0), zeros, missing, zeros, axis=0)
    padded = c.Pad(x, pads, c.number(0, x))
    sizes = [c.ints(rows), *(c.dim(x, i) for i in range(1, len(tail) + 1))]
    return c.Reshape(padded, c.shape_with(sizes))  # type: ignore[no-any-return]


@rule("_cond")
def cond(
    c: Converter,
    *data: str,
    num_outputs: int,
    cond_input_locs: tuple[int, ...],
    then_input_locs: tuple[int, ...],
    else_input_locs: tuple[int, ...],
) -> Any:
    """One of two subgraphs."""
    condition, *branches = c.parts
    (result,) = condition.write(c, _at(data, cond_input_locs, "cond_input_locs"))
    bodies = [
        Body([], lambda g, part=part, places=places: part.write(g, _at(data, places, "a branch")))
        for part, places in zip(branches, (then_input_locs, else_input_locs), strict=True)
    ]
    choice = c.Reshape(c.truth(result), c.ints())
    return c.op("If", choice, outputs=num_outputs, then_branch=bodies[0], else_branch=bodies[1])

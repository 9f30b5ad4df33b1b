"""A Scan whose step is stored as data, so that one kernel can run the whole of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from ..errors import ShapeError
from ..op import OPS, Body, Builder, Context, Op, Sample, Value, op
from ..types import Array, DType, Tensor, Type, f32

ABSENT = -1  # an operand of a link that is not there
# domain, operator, operands, how many results, attributes
Link = tuple[str, str, tuple[int, ...], int, tuple[tuple[str, Any], ...]]
_ADDED: tuple[Link, ...] = (("", "MatMul", (0, 2), 1, ()), ("", "Add", (3, 1), 1, ()), ("", "Tanh", (4,), 1, ()))
_GATED: tuple[Link, ...] = (
    ("", "Split", (2,), 2, (("axis", -1), ("num_outputs", 2))),
    ("", "MatMul", (0, 4), 1, ()), ("", "Add", (7, 6), 1, ()), ("", "Sigmoid", (8,), 1, ()),
    ("", "Mul", (9, 1), 1, ()), ("", "Where", (3, 10, 1), 1, ()),
    ("", "Mul", (9, 0), 1, ()), ("", "Concat", (12, 5), 1, (("axis", -1),)),
)  # fmt: skip


@op(
    "Recurrence",
    domain="mezzo",
    since=1,
    outputs=("states_and_results*",),
    samples=[
        Sample([f32(2, 5), f32(4, 2, 5), f32(5, 5)], {"links": _ADDED, "rows": 1, "after": (5,), "made": (5,)}, 2),
        Sample(
            [f32(2, 5), f32(2, 5), f32(3, 2, 10), Tensor(DType.BOOL, (3, 2, 1)), f32(5, 5)],
            {"links": _GATED, "rows": 2, "after": (12, 11), "made": (13, 0), "backwards": (1, 0), "behind": (0, 1)},
            4,
        ),
    ],
)
def recurrence(
    k: Context,
    *values: Array,
    links: tuple[Link, ...],
    rows: int,
    after: tuple[int, ...],
    made: tuple[int, ...] = (),
    backwards: tuple[int, ...] = (),
    behind: tuple[int, ...] = (),
) -> tuple[Array, ...]:
    """Steps over the first axis of `rows` inputs, which stand behind the states; the others are the same in each step.

    Values are counted: the inputs, then the results of the links, one after another. After a step the states are
    those that `after` counts; `made` are collected over all steps. Rows are read from the last to the first where
    `backwards` says so, and collected so where `behind` does.
    """
    n = len(after)
    states, scanned, others = list(values[:n]), values[n : n + rows], values[n + rows :]
    count = len(scanned[0])
    back, last = _ways(backwards, rows), _ways(behind, len(made))
    collected: list[Array] = []
    for t in k.each(range(count or 1), 1):
        rows_now = [x[count - 1 - t if b else t] if count else k.xp.zeros(x.shape[1:], x.dtype)
                    for x, b in zip(scanned, back, strict=True)]  # fmt: skip
        known = stepped([*states, *rows_now, *others], links, lambda o, xs, attrs, some: o.run(
            replace(k, wanted=(True,) * some), xs, attrs))  # fmt: skip
        collected = collected or [k.xp.empty((count, *known[i].shape), known[i].dtype) for i in made]
        if not count:
            break
        for whole, i, b in zip(collected, made, last, strict=True):
            whole[count - 1 - t if b else t] = known[i]
        states = [known[i] for i in after]
    return *(k.xp.array(s) for s in states), *collected


def stepped(values: Sequence[Any], links: Sequence[Link], run: Callable[[Op, list[Any], Any, int], Any]) -> list[Any]:
    """Return all values of one step, where `run(record, operands, attributes, number of results)` computes one link."""
    known = list(values)
    for record, operands, some, attrs in records(links):
        results = run(record, [None if i == ABSENT else known[i] for i in operands], attrs, some)
        known += results if isinstance(results, (tuple, list)) else [results]
    return known


def records(links: Sequence[Link]) -> Iterator[tuple[Op, tuple[int, ...], int, dict[str, Any]]]:
    """The links with their operators' records; ShapeError for one that names none."""
    for domain, name, operands, some, attrs in links:
        record = OPS.get((domain, name))
        if record is None:
            raise ShapeError(f"operator {domain or 'ai.onnx'}::{name} of a recurrence is not carried")
        yield record, tuple(operands), some, dict(attrs)


def _ways(given: Sequence[int], count: int) -> Sequence[int]:
    return given or (0,) * count


def inside_of(values: Sequence[Tensor], n: int, rows: int) -> list[Tensor]:
    """The types of one step's values: a row is without its first axis."""
    states = [t.forget() for t in values[:n]]
    scanned = [t.of(None if t.dims is None else t.dims[1:]) for t in values[n : n + rows]]
    return [*states, *scanned, *values[n + rows :]]


@recurrence.infer
def _(*values: Tensor, links: tuple[Link, ...], rows: int, after: tuple[int, ...], made: Any = (), **_: Any) -> Any:
    n = len(after)
    if not 0 < rows <= len(values) - n:
        raise ShapeError(f"a recurrence over {rows} of {len(values)} inputs, of which {n} are states")
    known: list[Any] = stepped(
        inside_of(values, n, rows), links, lambda o, xs, attrs, some: o.infer_types(xs, attrs, (True,) * some)
    )
    steps = values[n].dims
    states = [_either(before, known[i]) for before, i in zip(values, after, strict=False)]
    whole = [t if t.dims is None else t.of((steps[0] if steps else None, *t.dims)) for t in (known[i] for i in made)]
    return *states, *whole


def _either(before: Tensor, after: Tensor) -> Tensor:
    """Return the common type of a state before and after a step. Raises ShapeError if there is none."""
    if before.dims is None or after.dims is None:
        return after.of(None)
    sizes = list(zip(before.dims, after.dims, strict=False))
    odd = any(a != b and isinstance(a, int) and isinstance(b, int) for a, b in sizes)
    if before.dtype is not after.dtype or len(before.dims) != len(after.dims) or odd:
        raise ShapeError(f"a state is {before} and becomes {after}")
    return after.of([a if a == b or isinstance(a, int) else b if isinstance(b, int) else None for a, b in sizes])


@recurrence.body
def _(
    g: Builder,
    xs: Any,
    types: Sequence[Type | None],
    *,
    links: tuple[Link, ...],
    rows: int,
    after: tuple[int, ...],
    made: tuple[int, ...] = (),
    backwards: tuple[int, ...] = (),
    behind: tuple[int, ...] = (),
) -> tuple[Value, ...]:
    n = len(after)

    def build(b: Builder, *given: Value) -> list[Value]:
        def add(o: Op, operands: list[Any], attrs: Any, some: int) -> Any:
            while operands and operands[-1] is None:
                operands.pop()
            return getattr(b, o.name)(*operands, domain=o.domain, outputs=some, **attrs)

        known = stepped([*given, *xs[n + rows :]], links, add)
        return [b.Identity(v) if v in given else v for v in (known[i] for i in (*after, *made))]

    known: Any = types
    results = g.Scan(
        *xs[: n + rows],
        body=Body(inside_of(known, n, rows)[: n + rows], build),
        num_scan_inputs=rows,
        scan_input_directions=_ways(backwards, rows),
        scan_output_directions=_ways(behind, len(made)),
        outputs=n + len(made),
    )
    return results if isinstance(results, tuple) else (results,)

"""Lazy fusion: pointwise operations are deferred, and a run of them becomes one expression.

A gathered operation is a node. Whoever wants the variable of any array makes all that is gathered go to the engine: so
order is kept, also with writes, and nobody else has to know. A node whose array nobody holds any more is pasted into
those that read it; one that somebody holds is computed on its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import CodeType
from typing import Any
from weakref import ref

import numpy as np

from ..ops import DType, MezzoError
from ..ops.core.expr import Expr, substitute
from ..runtime.caches import bounded
from ..runtime.engine import Variable, engine
from .array import Array
from .pending import MOST as MOST_PENDING
from .pending import flush, lock, put_off, waiting
from .prepared import Call, Pieces, Prepared
from .sites import line_of
from .specs import MOST, TensorSpec

LONGEST = 24  # operations in one expression
_on = False


class LazyNode:
    """A deferred operation. An operand is another node, an array, or a scalar."""

    __slots__ = ("__weakref__", "array", "at", "code", "kind", "length", "operands", "operator", "place")
    length: int  # operations in its expression, if all are pasted

    def __init__(self, operator: Prepared, operands: tuple[Any, ...], out: Any) -> None:
        self.operator, self.operands, self.kind, self.place = operator, operands, out._spec, out._place
        self.code, self.at = out._code, out._at
        self.length = 1 + sum([o.length for o in operands if o.__class__ is LazyNode])
        self.array: Any = ref(out)  # the array that the user holds; the array itself once it is computed

    def push(self) -> None:
        """Compute it, if somebody holds its array and nobody has."""
        if self.array.__class__ is ref and self.array() is not None:
            _push(self)


def fusing() -> bool:
    """Return True if operations are deferred."""
    return _on


@contextmanager
def fusion(on: bool = True) -> Iterator[None]:
    """Gather pointwise operations inside, or do not: runs of them are computed in one go over pieces that stay in the
    cache. Results are the same bits; work begins later, when something else needs it.

    >>> from mezzo import nd
    >>> with fusion():
    ...     a = (nd.ones((2,)) * 2 - 1) / 4
    >>> a.asnumpy()
    array([0.25, 0.25], dtype=float32)
    """
    global _on
    before, _on = _on, on
    try:
        yield
    finally:
        _on = before


def gather(operator: Prepared, given: tuple[Any, ...], out: Any) -> None:
    """Have an array computed later, with others."""
    with lock:
        operands = tuple([x if x.__class__ is np.ndarray or x._lazy is None else x._lazy for x in given])
        out._lazy = node = LazyNode(operator, operands, out)
        put_off(node)
        if node.length >= LONGEST or len(waiting) >= MOST_PENDING:
            flush()


def _push(root: LazyNode) -> None:
    """Compute a node's array by one workload."""
    order: list[LazyNode] = []
    numbers: dict[int, int] = {}
    leaves: list[Any] = []
    _paste_into(order, numbers, leaves, root, root.kind.shape)
    steps = tuple([(n.operator, tuple([numbers[id(o)] for o in n.operands])) for n in order])
    if len(order) == 1:  # its own call takes an operand as often as it reads it
        leaves = [leaves[~i] for i in steps[0][1]]
        steps = ((root.operator, tuple([~i for i in range(len(leaves))])),)
    one = engine()
    held = root.array()
    out = Array(Variable(one, root.operator.name, None), root.kind, root.place)
    out._code, out._at = root.code, root.at
    reads = [x._variable for x in leaves if x.__class__ is not np.ndarray]
    call = order[0].operator.call if len(order) == 1 else fused(steps, leaves, root.kind)
    sites = tuple([(n.code, n.at) for n in order])
    name = root.operator.name if len(order) == 1 else f"{root.operator.name} of {len(order)}"
    one.push(_compute, reads, (out._variable,), name=name, args=(call, tuple(leaves), out, steps, sites))
    root.array, root.operands = out, ()
    if held is not None:
        held._variable, held._lazy = out._variable, None


def _paste_into(
    order: list[LazyNode], numbers: dict[int, int], leaves: list[Any], node: LazyNode, shape: tuple[int, ...]
) -> None:
    """Append a node behind those of its operands that nobody holds, and note their numbers by id: places in `order`,
    or those of `leaves` from -1 downwards. (No function inside of another one: such a pair keeps arrays alive.)"""
    for o in node.operands:
        if id(o) in numbers:
            continue
        if o.__class__ is LazyNode and o.array.__class__ is ref:  # nobody holds it: it would have come before
            if o.kind.shape == shape:
                _paste_into(order, numbers, leaves, o, shape)
                continue
            _push(o)
        numbers[id(o)] = ~len(leaves)
        leaves.append(o.array if o.__class__ is LazyNode else o)
    numbers[id(node)] = len(order)
    order.append(node)


Steps = tuple[tuple[Prepared, tuple[int, ...]], ...]  # operands: steps before, or leaves from -1 downwards
Sites = tuple[tuple[CodeType, int], ...]


def _compute(call: Call, leaves: tuple[Any, ...], out: Any, steps: Steps, sites: Sites) -> None:
    values = [x if x.__class__ is np.ndarray else x._look(x._variable.value) for x in leaves]
    try:
        result = call(*values)
    except Exception:
        _blame(steps, sites, values)
        raise
    out._variable.value = result


def _blame(steps: Steps, sites: Sites, values: Sequence[Any]) -> None:
    """Run the operations one by one: the one that fails says where it was asked for."""
    done: list[Any] = []
    for (operator, operands), site in zip(steps, sites, strict=True):
        try:
            done.append(operator.call(*[values[~i] if i < 0 else done[i] for i in operands]))
        except Exception as error:
            where = f"workload {operator.name!r}, pushed at {line_of(*site)}"
            if isinstance(error, MezzoError):
                error.at(where)
            error.add_note(f"in {where}")
            raise


_FUSED: dict[tuple[Any, ...], Pieces] = bounded("arrays: fused operations", MOST, {})


def fused(steps: Steps, leaves: Sequence[Any], kind: TensorSpec, renews: bool = False) -> Pieces:
    """One call for several operations; made once for operations and operands of one sort. With `renews`, its result may
    be written into the last operand."""
    kinds = tuple([(x.dtype, x.shape) if x.__class__ is np.ndarray else x._spec for x in leaves])
    key = steps, kinds, renews
    call = _FUSED.get(key)
    if call is None:
        if len(_FUSED) >= MOST:
            _FUSED.clear()
        inputs = [Expr("input", (), DType.of(x.dtype), i) for i, x in enumerate(leaves)]
        trees: list[Expr] = []
        for operator, operands in steps:
            assert operator.tree is not None
            given = iter([inputs[~i] if i < 0 else trees[i] for i in operands])
            put = {i: next(given) for i, t in enumerate(operator.template) if t is not None}
            trees.append(substitute(operator.tree, put))
        call = _FUSED[key] = Pieces(trees[-1], [x.shape for x in leaves], kind, renews)
    return call

"""MatMul, Gemm and FusedMatMul, with what follows them, as products."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product as every

from .....ops import DType, Tensor
from .....ops.core.fused import ABSENT, PREVIOUS
from .....ops.dataclasses import dataclass, replace
from ....compile.kernel import KernelRequest
from ...onednn.postops import Link, chain, scalar
from .product import LtProduct, LtRefused, Spread, products, spread, usable

FLOATS = (DType.FLOAT, DType.FLOAT16, DType.BFLOAT16, DType.DOUBLE)
ATTRIBUTES = {  # of operators that are products: what A and B are turned by, and what scales A B and C
    "MatMul": (None, None, None, None),
    "Gemm": ("transA", "transB", "alpha", "beta"),
    "FusedMatMul": ("transA", "transB", "alpha", None),
}


@dataclass(slots=True)
class _Tail:
    """The operations after the product of A and B."""

    alpha: float = 1.0
    beta: float = 0.0
    bias: int | None = None
    added: int | None = None
    epilogue: str = ""


def written(request: KernelRequest) -> LtProduct:
    """The product for a step, in the order of axes that its operands have if that will do, else row-major. Raises
    Refused with the reason where there is none."""
    links = chain(request.node)
    first, y = links[0], request.outputs[0]
    if len(request.outputs) > 1 or not isinstance(y, Tensor):
        raise LtRefused("there are several results")
    for t in (*request.inputs, y):
        if t is not None and (not isinstance(t, Tensor) or not t.static or 0 in t.sizes):
            raise LtRefused("an operand has no known sizes, or no elements")
    if any(first.attrs.get(name) for name in ("transBatchA", "transBatchB")):
        raise LtRefused("batch axes are permuted")
    tail = _tail(request, links, y)
    reasons: list[str] = []
    for layouts in _orders(request, first, y, tail):
        try:
            return _product(request, first, y, tail, *layouts)
        except LtRefused as error:
            reasons.append(str(error))
    raise LtRefused("; ".join(dict.fromkeys(reasons)))


def _tail(request: KernelRequest, links: tuple[Link, ...], y: Tensor) -> _Tail:
    first, tail = links[0], _Tail()
    *_, alpha, beta = ATTRIBUTES[first.op]
    tail.alpha = float(first.attr(alpha)) if alpha else 1.0
    scale = float(first.attr(beta)) if beta else 0.0
    if first.operand(2) != ABSENT and scale:
        _add(request, tail, first.operand(2), y, scale)
    for link in links[1:]:
        others = [i for i in link.operands if i != PREVIOUS]
        number = scalar(request, others[0]) if len(others) == 1 else None
        if tail.epilogue:
            raise LtRefused(f"{link.op} follows an activation")
        if link.op == "Relu":
            if request.target.nan == "kept":
                raise LtRefused("Relu of cuBLASLt loses a NaN")
            tail.epilogue = "relu"
        elif link.op == "Gelu" and link.attr("approximate") == "tanh":
            tail.epilogue = "gelu"
        elif link.op == "Add" and len(others) == 1:
            _add(request, tail, others[0], y, 1.0)
        elif _scales(link) and number and tail.bias is None and tail.added is None:
            tail.alpha *= number if link.op == "Mul" else 1 / number
        else:
            raise LtRefused(f"{link.op} is no epilogue of cuBLASLt")
    if y.dtype is DType.DOUBLE and (tail.bias is not None or tail.epilogue):
        raise LtRefused("products of float64 have no epilogues")
    return tail


def _scales(link: Link) -> bool:
    """True if a link multiplies the previous result, or divides it."""
    return link.op == "Mul" or (link.op == "Div" and link.operands[0] == PREVIOUS)


def _add(request: KernelRequest, tail: _Tail, at: int, y: Tensor, scale: float) -> None:
    """Put down what is added: one number for each column, or a tensor of the result's size."""
    known = request.inputs[at]
    if not isinstance(known, Tensor) or known.dtype is not y.dtype:
        raise LtRefused(f"{known} is added to {y}")
    if known.sizes == y.sizes and tail.added is None:
        tail.added, tail.beta = at, scale
    elif known.sizes[-1:] == y.sizes[-1:] and known.elements == y.sizes[-1] and tail.bias is None and scale == 1:
        tail.bias = at
    else:
        raise LtRefused(f"{known} is spread over {y}, or a third operand is added")


def _orders(request: KernelRequest, first: Link, y: Tensor, tail: _Tail) -> Iterator[tuple[str, str, str]]:
    """The layouts of A, B and D to try: as they lie and are wished for, then row-major, one after the other."""
    held = [request.inputs[i] for i in first.operands[:2]]
    a, b = ((usable(t), "") if isinstance(t, Tensor) else ("",) for t in held)
    layouts = (usable(y), "")
    seen: set[tuple[str, str, str]] = set()
    for d, left, right in every(layouts, a, b):
        if (left, right, d) not in seen:
            seen.add((left, right, d))
            yield left, right, d


def _product(request: KernelRequest, first: Link, y: Tensor, tail: _Tail, left: str, right: str, out: str) -> LtProduct:
    (at_a, at_b), (turn_a, turn_b, *_) = first.operands[:2], ATTRIBUTES[first.op]
    a_type, b_type = request.inputs[at_a], request.inputs[at_b]
    assert isinstance(a_type, Tensor) and isinstance(b_type, Tensor)
    if a_type.dtype not in FLOATS or len({a_type.dtype, b_type.dtype, y.dtype}) > 1:
        raise LtRefused(f"{a_type} times {b_type} is {y}")
    vectors = len(a_type.sizes) == 1, len(b_type.sizes) == 1
    lead = y.sizes[: len(y.sizes) - 2 + sum(vectors)] if any(vectors) else y.sizes[:-2]
    a = spread(("in", at_a), a_type, lead, left, "row" if vectors[0] else "")
    b = spread(("in", at_b), b_type, lead, right, "column" if vectors[1] else "")
    a = a.transposed if turn_a and first.attr(turn_a) else a
    b = b.transposed if turn_b and first.attr(turn_b) else b
    d = _result(y, ("out", 0), lead, out, vectors, (a.sizes[0], b.sizes[1]))
    c = None if tail.added is None else _result(y, ("in", tail.added), lead, out, vectors, d.sizes)
    if d.matrix().turned:  # its transpose is the product of the transposes
        if tail.bias is not None:
            raise LtRefused("the bias is per row")
        product = products(lead, b.transposed, a.transposed, c and c.transposed, d.transposed)
    else:
        product = products(lead, a, b, c, d)
    if any(m.turned for m in (product.d, product.c) if m):
        raise LtRefused("the result has its rows apart")
    bias = None if tail.bias is None else ("in", tail.bias)
    math = "tf32" if request.target.math == "tf32" else "strict"
    return replace(product, bias=bias, alpha=tail.alpha, beta=tail.beta, epilogue=tail.epilogue, math=math)


def _result(
    y: Tensor, place: tuple[str, int], lead: tuple[int, ...], layout: str, vectors: tuple[bool, bool],
    sizes: tuple[int, int],
) -> Spread:  # fmt: skip
    """The result's bytes, or those of an operand of its size, with the axes that vectors have not."""
    matrices = Tensor(y.dtype, (*lead, *sizes))
    return spread(place, matrices, lead, "" if any(vectors) else layout)

"""Post-ops: operators that follow another one as part of its primitive, from a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from ....ops import OPS, Tensor, Type
from ....ops.core.fused import ABSENT, PREVIOUS
from ....ops.dataclasses import dataclass
from ...compile.kernel import KernelRequest
from ...ir.graph import Node
from .api import Refused
from .frames import Frame
from .primitive import PostOp

Attrs = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Link:
    """One operator of a chain: operands are numbers of the step's inputs, PREVIOUS, or ABSENT."""

    op: str
    operands: tuple[int, ...]
    attrs: Attrs
    domain: str = ""

    def attr(self, name: str) -> Any:
        """An attribute, its default included."""
        return self.attrs.get(name, OPS[self.domain, self.op].attrs.get(name))

    def operand(self, i: int) -> int:
        """Operand `i`, ABSENT behind the last."""
        return self.operands[i] if i < len(self.operands) else ABSENT


def chain(node: Node) -> tuple[Link, ...]:
    """The operators that a node stands for: itself, or the links of a `mezzo.Fused`."""
    if (node.domain, node.op) == ("mezzo", "Fused"):
        links = node.attrs["chain"]
        return tuple(Link(op, tuple(operands), dict(attrs), domain) for domain, op, operands, attrs in links)
    return (Link(node.op, tuple(i if n else ABSENT for i, n in enumerate(node.inputs)), node.attrs, node.domain),)


def operators(node: Node) -> list[str]:
    """The names of the operators of `chain`."""
    if (node.domain, node.op) == ("mezzo", "Fused"):
        return [op for _, op, *_ in node.attrs["chain"]]
    return [node.op]


def only(node: Node) -> Link:
    """The operator of a node whose primitive takes no others behind it; Refused where some follow."""
    link, *others = chain(node)
    if others:
        raise Refused(f"nothing follows {link.op} in its primitive")
    return link


Eltwise = Callable[[Link], tuple[str, float, float] | None]


def alone(links: tuple[Link, ...]) -> Link:
    """The operator of a step that is no chain; Refused where another one follows."""
    if len(links) > 1:
        raise Refused(f"{links[1].op} is no post-op")
    return links[0]


def _gelu(link: Link) -> tuple[str, float, float]:
    return ("eltwise_gelu_tanh" if link.attr("approximate") == "tanh" else "eltwise_gelu_erf"), 0.0, 0.0


def _leaky(link: Link) -> tuple[str, float, float] | None:
    """Without a slope oneDNN takes the larger of the number and 0, where ONNX makes NaN of NaN and of -inf."""
    slope = link.attr("alpha")
    return ("eltwise_relu", slope, 0.0) if slope else None


def _elu(link: Link) -> tuple[str, float, float] | None:
    """oneDNN makes 0 of -0. No x is above its result where `alpha` is at most 1, so the larger of the two keeps it."""
    alpha = link.attr("alpha")
    return ("eltwise_elu", alpha, 0.0) if alpha <= 1 else None


NOTHING: Final = -0.0  # to be added: with 0.0 the negative of 0 would be 0, not -0, whose reciprocal is -inf
# https://oneapi-src.github.io/oneDNN/dev_guide_eltwise.html; ONNX's Round is to the nearest even, as oneDNN's is.
# Its logarithm and soft_relu are not here: near their zeros they have an absolute error where a relative one is meant
ELTWISE: Final[dict[str, Eltwise]] = {
    "Abs": lambda n: ("eltwise_abs", 0.0, 0.0),
    "Elu": _elu,
    "Exp": lambda n: ("eltwise_exp", 0.0, 0.0),
    "Gelu": _gelu,
    "HardSigmoid": lambda n: ("eltwise_hardsigmoid", n.attr("alpha"), n.attr("beta")),
    "HardSwish": lambda n: ("eltwise_hardswish", 1 / 6, 0.5),
    "LeakyRelu": _leaky,
    "Mish": lambda n: ("eltwise_mish", 0.0, 0.0),
    "Neg": lambda n: ("eltwise_linear", -1.0, NOTHING),
    "Reciprocal": lambda n: ("eltwise_pow", 1.0, -1.0),
    "Relu": lambda n: ("eltwise_relu", 0.0, 0.0),
    "Round": lambda n: ("eltwise_round", 0.0, 0.0),
    "Sigmoid": lambda n: ("eltwise_logistic", 0.0, 0.0),
    "Sqrt": lambda n: ("eltwise_sqrt", 0.0, 0.0),
    "Swish": lambda n: ("eltwise_swish", n.attr("alpha"), 0.0),
    "Tanh": lambda n: ("eltwise_tanh", 0.0, 0.0),
}
# Operators whose forms here may make numbers of NaN, and those that make NaN of an infinity, where ONNX has another
# number: programs look at the processor's flag behind them (invalid.py), or leave them to NumPy. Softmax leaves at
# least one NaN of a row. NOISY ones compute with what lies in unused lanes too, so that the flag tells nothing.
LOSING: Final = frozenset("Relu Clip HardSigmoid Exp Max Min MaxPool MaxPoolTrain GlobalMaxPool".split())
POOLS: Final = frozenset({"MaxPool", "GlobalMaxPool"})  # which look for NaN themselves (pool.py)
BENDING: Final = frozenset({"Gelu", "PRelu"})
ALTERING: Final = LOSING | BENDING
ROWS: Final = frozenset({"Softmax", "LogSoftmax"})
NOISY: Final = ROWS | frozenset("Sigmoid Tanh Elu Swish Mish HardSwish".split())
FEW: Final = 1 << 12  # elements of which the exact rectifier takes no longer than a look at the flag
SUM: Final = "sum"
SUMS: Final = frozenset({"convolution", "matmul"})  # kinds of operators
BINARY: Final = {
    "Add": "binary_add", "Mul": "binary_mul", "Sub": "binary_sub", "Div": "binary_div", "Max": "binary_max",
    "Min": "binary_min",
}  # fmt: skip
COMMUTE: Final = {"Add", "Mul", "Max", "Min"}
LINEAR: Final[dict[str, Callable[[float], tuple[float, float]]]] = {
    "Add": lambda v: (1.0, v), "Sub": lambda v: (1.0, -v), "Mul": lambda v: (v, NOTHING),
    "Div": lambda v: (1 / v, NOTHING),
}  # fmt: skip


def scalar(request: KernelRequest, at: int) -> float | None:
    """The value of a constant of one finite number; None for any other input."""
    known = request.inputs[at] if at >= 0 and request.constant(at) else None
    if isinstance(known, Tensor) and known.value is not None and known.elements == 1:
        number = float(np.asarray(known.value).reshape(()))
        return number if math.isfinite(number) else None
    return None


def clip_bounds(request: KernelRequest, link: Link) -> tuple[float, float]:
    """The bounds of a Clip; Refused where one is not known."""
    bounds = []
    for i, default in ((1, -np.inf), (2, np.inf)):
        at = link.operand(i)
        value = float(default) if at == ABSENT else None
        if value is None:
            value = scalar(request, at)
            if value is None:
                raise Refused("a bound of Clip is not known")
        bounds.append(value)
    return bounds[0], bounds[1]


POWERS: Final = (2.0, 3.0, 0.5, -1.0, -0.5)  # what oneDNN computes without a logarithm
Algorithm = tuple[str, float, float]  # with alpha and beta
# x if x > 0, else (exp(x) - 1) * -0, and both are NaN if x is; then -0 becomes 0
EXACT_RELU: Final[tuple[Algorithm, ...]] = (("eltwise_elu", -0.0, 0.0), ("eltwise_abs", 0.0, 0.0))


def keeping(request: KernelRequest, link: Link) -> None:
    """Refused where the operator makes something else of a NaN or an infinity, and the program may not."""
    nan = request.target.nan
    lost = {"watched": frozenset[str](), "kept": LOSING - POOLS, "exact": ALTERING | ROWS}[nan]
    if link.op in lost or (nan != "watched" and rectified(link)):
        raise Refused(f"oneDNN's {link.op} does not keep every NaN or infinity")


def rectified(link: Link) -> bool:
    """True if an operator is a recurrence whose function is a rectifier: oneDNN has no exact one for it."""
    return link.op == "RNN" and "relu" in (name.lower() for name in link.attr("activations") or ())


def loses(node: Node, results: Sequence[Type | None]) -> bool:
    """True if a step of oneDNN may lose a NaN or an infinity, given the types of its results."""
    first, *others = operators(node)
    behind = {*others} - {"Relu"} if "Relu" in others and few(results) else others
    return first in ALTERING or not ALTERING.isdisjoint(behind) or rectified(chain(node)[0])


def noisy(node: Node, results: Sequence[Type | None]) -> bool:
    """True if a step of oneDNN may set the invalid flag without cause: it computes exponentials of unused lanes too."""
    _, *behind = ops = operators(node)
    return not NOISY.isdisjoint(ops) or ("Relu" in behind and few(results))


def few(results: Sequence[Type | None]) -> bool:
    """True if a step makes at most FEW elements."""
    return all(isinstance(t, Tensor) and t.static and (t.elements or 0) <= FEW for t in results)


def eltwise(request: KernelRequest, link: Link) -> tuple[Algorithm, ...]:
    """The algorithms, one after the other, of an operator of one operand and constants; none if it is no such one."""
    if link.op == "Relu" and (request.target.nan != "watched" or few(request.outputs)):
        return EXACT_RELU
    operation = applied(request, link)
    return () if operation is None else (operation[1],)


def applied(request: KernelRequest, link: Link) -> tuple[int, Algorithm] | None:
    """The operand that such an operator is applied to, and the algorithm."""
    if link.op == "Relu" and request.target.nan == "kept":
        return link.operands[0], EXACT_RELU[0]  # -0 is kept too
    keeping(request, link)
    if link.op == "Clip":
        return link.operands[0], ("eltwise_clip", *clip_bounds(request, link))
    if link.op in ELTWISE:
        algorithm = ELTWISE[link.op](link)
        return algorithm and (link.operands[0], algorithm)
    if len(link.operands) != 2:
        return None
    first, second = link.operands
    value = scalar(request, second)
    if link.op == "Pow":
        if value not in POWERS:
            raise Refused("the exponent is not one of a few known numbers")
        return first, ("eltwise_pow", 1.0, value)
    if value is None and link.op in COMMUTE:
        first, value = second, scalar(request, first)
    if value is not None and link.op in LINEAR and (link.op != "Div" or abs(value) >= LEAST):
        return first, ("eltwise_linear", *LINEAR[link.op](value))
    return None


LEAST: Final = 2.0**-126  # the inverse of a smaller number may be beyond float32


def _without_negative_zeros(request: KernelRequest, links: tuple[Link, ...]) -> bool:
    """True if what these links make of a step's first result is never -0: sums that begin with 0, and sums of those."""
    first = chain(request.node)[0]
    return OPS[first.domain, first.op].kind in SUMS and all(link.op == "Add" for link in links)


def post_ops(request: KernelRequest, links: tuple[Link, ...], frame: Frame, sums: bool = True) -> tuple[PostOp, ...]:
    """The post-ops for the links after the anchor, whose result the primitive sees so; Refused where one is none.
    `sums`: whether the primitive can add to what its result holds; pooling and softmax cannot."""
    post = []
    for at, link in enumerate(links):
        if link.op == "Elu" and not _without_negative_zeros(request, links[:at]):
            raise Refused("oneDNN's Elu makes 0 of -0")
        algorithms = eltwise(request, link)
        if algorithms:
            post += [PostOp(*algorithm) for algorithm in algorithms]
            continue
        kind = BINARY.get(link.op)
        others = [i for i in link.operands if i != PREVIOUS]
        if kind is None or len(others) != 1 or len(link.operands) != 2:
            raise Refused(f"{link.op} is no post-op")
        if link.operands[0] != PREVIOUS and link.op not in COMMUTE:
            raise Refused(f"the result is the second operand of {link.op}")
        other = request.inputs[others[0]]
        if not isinstance(other, Tensor) or not other.static:
            raise Refused(f"an operand of {link.op} has no known sizes")
        memory, layout = frame.beside(other)
        if sums and not post and link.op == "Add" and request.node.attrs.get("overwrites", -1) == others[0]:
            kind = SUM  # read and written in one go, where another operand would be a third stream of memory
        post.append(PostOp(kind, other=memory, place=("in", others[0]), layout=layout))
    return tuple(post)

"""Fused epilogues: operators that follow another one as operations of the same graph, from a table.

cuDNN's rectifiers and extremes may answer a number to NaN: where a program writes states, so that a NaN would be lost
for good, they are left to others. Its Elu knows alpha 1 only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from .....ops import DType, Tensor
from .....ops.core.fused import PREVIOUS
from ....compile.kernel import KernelRequest
from ...onednn.postops import COMMUTE, Link, scalar
from .draft import GraphRefused, GraphTensor, Place, Value, Writer, strides_of

FLOATS: Final = (DType.FLOAT, DType.FLOAT16, DType.BFLOAT16, DType.DOUBLE)
BINARY: Final = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Max": "max", "Min": "min"}
DIRECT: Final = {
    "Abs": "abs", "Ceil": "ceil", "Cos": "cos", "Erf": "erf", "Exp": "exp", "Floor": "floor", "Log": "log",
    "Neg": "neg", "Reciprocal": "reciprocal", "Relu": "relu", "Sigmoid": "sigmoid", "Sin": "sin",
    "Sqrt": "sqrt", "Tan": "tan", "Tanh": "tanh",
}  # fmt: skip
LOSING: Final = frozenset("Clip HardSigmoid HardSwish LeakyRelu Max Min Relu".split())
Write = Callable[["Epilogue", Link, int], int]


class Epilogue:
    """Writer of the operators behind the first one of a chain.

    `sizes` are those of the result as cuDNN sees it, `layout` that of the step; `clipped` has a Clip that begins at 0
    written as one clipped rectifier, which other engines know than two operations.
    """

    def __init__(
        self,
        request: KernelRequest,
        writer: Writer,
        shape: tuple[int, ...],
        sizes: tuple[int, ...],
        layout: str,
        clipped: bool,
    ) -> None:
        self._ask, self._writer, self._shape, self._sizes = request, writer, shape, sizes
        self._layout, self.clipped = layout, clipped

    def add(self, op: str, *inputs: Value, **settings: float) -> int:
        """One more operation on elements."""
        return self._writer.add(op, *inputs, sizes=self._sizes, **settings)

    def follow(self, links: Sequence[Link], value: int) -> int:
        """The result of the links, the first of which reads `value`. Refused names a link that cannot be written."""
        for link in links:
            if link.op in LOSING and self._ask.target.nan == "kept":
                raise GraphRefused(f"{link.op} of cuDNN may lose a NaN")
            write = UNARY.get(link.op)
            value = self._binary(link, value) if write is None else write(self, link, value)
        return value

    def residual(self, link: Link) -> int | None:
        """The operand of the result's size that an Add adds, if the link is one."""
        others = [i for i in link.operands if i != PREVIOUS]
        if link.op != "Add" or len(link.operands) != 2 or len(others) != 1:
            return None
        known = self._ask.inputs[others[0]]
        same = isinstance(known, Tensor) and known.sizes == self._shape
        return self.beside(("in", others[0]), known) if same and isinstance(known, Tensor) else None

    def beside(self, place: Place, known: Tensor) -> int:
        """An operand that is as large as the result, or spread over some of its dims."""
        if known.dtype not in FLOATS:
            raise GraphRefused(f"{known} stands beside floats")
        rank = len(self._shape)
        dims = (1,) * (rank - len(known.sizes)) + known.sizes
        if len(dims) != rank or any(d not in (1, n) for d, n in zip(dims, self._shape, strict=True)):
            raise GraphRefused(f"{known} would broadcast the result")
        layout = self._layout if dims == self._shape == known.sizes else ""
        seen = (*dims[:2], *(1,) * (len(self._sizes) - rank), *dims[2:])
        strides = strides_of(layout, dims)
        laid = (*strides[:2], *(1,) * (len(self._sizes) - rank), *strides[2:])
        return self._writer.read(GraphTensor(place, seen, laid, known.dtype, layout))

    def bound(self, link: Link, at: int) -> float | None:
        """A bound of a Clip; None where there is none."""
        place = link.operand(at)
        if place < 0:
            return None
        value = scalar(self._ask, place)
        if value is None:
            raise GraphRefused("a bound of Clip is not known")
        return value

    def _binary(self, link: Link, value: int) -> int:
        op, others = BINARY.get(link.op), [i for i in link.operands if i != PREVIOUS]
        if op is None or len(link.operands) != 2 or len(others) > 1:
            raise GraphRefused(f"{link.op} is no operation of cuDNN's epilogues")
        if not others:
            return self.add(op, value, value)
        known = self._ask.inputs[others[0]]
        if not isinstance(known, Tensor) or not known.static:
            raise GraphRefused(f"an operand of {link.op} has no known sizes")
        number = scalar(self._ask, others[0])
        other: Value = float(number) if number is not None else self.beside(("in", others[0]), known)
        if isinstance(other, float) and link.op in COMMUTE:
            return self.add(op, value, other)
        return self.add(op, value, other) if link.operands[0] == PREVIOUS else self.add(op, other, value)


def _gelu(e: Epilogue, link: Link, x: int) -> int:
    return e.add("gelu_approx_tanh" if link.attr("approximate") == "tanh" else "gelu", x)


def _elu(e: Epilogue, link: Link, x: int) -> int:
    if link.attr("alpha") != 1:
        raise GraphRefused("Elu has another alpha than 1")
    return e.add("elu", x)


def _clip(e: Epilogue, link: Link, x: int) -> int:
    low, high = e.bound(link, 1), e.bound(link, 2)
    if low == 0 and high is not None and e.clipped:
        return e.add("relu", x, lower_clip=0.0, upper_clip=high)
    if low is not None:
        x = e.add("relu", x) if low == 0 else e.add("max", x, low)
    return x if high is None else e.add("min", x, high)


def _hard(e: Epilogue, x: int, alpha: float, beta: float) -> int:
    """max(0, min(1, alpha * x + beta))"""
    return e.add("min", e.add("relu", e.add("add", e.add("mul", x, alpha), beta)), 1.0)


UNARY: Final[dict[str, Write]] = {
    **{op: (lambda e, link, x, name=name: e.add(name, x)) for op, name in DIRECT.items()},  # type: ignore[misc]
    "Clip": _clip,
    "Elu": _elu,
    "Gelu": _gelu,
    "HardSigmoid": lambda e, link, x: _hard(e, x, link.attr("alpha"), link.attr("beta")),
    "HardSwish": lambda e, link, x: e.add("mul", x, _hard(e, x, 1 / 6, 0.5)),
    "LeakyRelu": lambda e, link, x: e.add("relu", x, negative_slope=float(link.attr("alpha"))),
    "Swish": lambda e, link, x: e.add("swish", x, swish_beta=float(link.attr("alpha"))),
}

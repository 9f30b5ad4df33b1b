"""A recurrent layer for its training kernels, and the products that they need."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .....ops import DType, Tensor
from .....ops.dataclasses import dataclass
from ....compile.kernel import KernelRequest
from ..api import BIAS, DST, SRC, WEIGHTS, Refused
from ..kernel import FLOATS
from ..memory import Memory
from ..primitive import Attributes, Draft, Operand, PostOp

F32 = DType.FLOAT
SPAN_ROWS = 256  # of a span of steps: its numbers stay in the caches, and its products are no slower than larger ones
SUM = PostOp("sum", place=("held", 0))  # the product is added to what its result held
WAYS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}
Space = tuple[DType, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Layer:
    """Steps, batch, inputs, hidden units; the directions that run backwards; the type of all tensors; the attributes of
    the node, its requested results, and the number of threads for a product."""

    steps: int
    batch: int
    inputs: int
    hidden: int
    backwards: tuple[bool, ...]
    dtype: DType
    attrs: Mapping[str, Any]
    wanted: frozenset[str]
    threads: int

    @property
    def rows(self) -> int:
        """Rows of a matrix of all steps."""
        return self.steps * self.batch

    @property
    def exact(self) -> bool:
        """True if the tensors are in float32, as all arithmetic between products is."""
        return self.dtype is F32

    @property
    def parted(self) -> bool:
        """True if the steps of one direction are not adjacent in the results of the input products."""
        return self.exact and len(self.backwards) > 1

    def order(self, d: int) -> range:
        """The steps of a direction in the order in which they run."""
        return range(self.steps)[:: -1 if self.backwards[d] else 1]

    def step(self, width: int = 1, dtype: DType = F32) -> Space:
        """Numbers of one step, `width` for each hidden unit."""
        return dtype, (self.batch, width * self.hidden)

    @property
    def few(self) -> int:
        """The steps of a span."""
        return min(self.steps, -(-SPAN_ROWS // self.batch))

    @property
    def counts(self) -> set[int]:
        """Lengths of the spans; the last one may be shorter."""
        return {self.few, self.steps % self.few or self.few}

    def span(self, width: int = 1, dtype: DType = F32) -> Space:
        """Numbers of a span of steps, `width` for each hidden unit."""
        return dtype, (self.few, self.batch, width * self.hidden)

    def apart(self, width: int = 1) -> Space:
        """Numbers of a span of steps in float32, gate after gate."""
        return F32, (width, self.few, self.batch, self.hidden)

    def all_steps(self, width: int = 1, dtype: DType = F32) -> Space:
        """Numbers of all steps."""
        return dtype, (self.steps, self.batch, width * self.hidden)


def layer_of(request: KernelRequest) -> Layer:
    """The layer that a node is, if it is one of the usual form; Refused with the reason else."""
    record = request.node.record
    attrs = {**record.attrs, **request.node.attrs}
    odd = [a for a in ("clip", "layout", "input_forget", "activation_alpha", "activation_beta") if attrs.get(a)]
    if odd:
        raise Refused(f"{', '.join(odd)} is set")
    types = {p.name: t for p, t in zip(record.inputs, request.inputs, strict=False) if t is not None}
    wanted = {p.name for p, name in zip(record.outputs, request.node.outputs, strict=False) if name}
    if {"sequence_lens", "P"} & set(types):
        raise Refused("sequences have lengths of their own, or cells peepholes")
    if "dP" in wanted:
        raise Refused("the gradient of peepholes is requested")
    if any(name.startswith("d") and not name.startswith("dY") for name in types):
        raise Refused("a kept result has a gradient")
    tensors = [t for t in types.values() if isinstance(t, Tensor) and t.static and t.elements]
    X, R = types["X"], types["R"]
    if len(tensors) < len(types) or not isinstance(X, Tensor) or not isinstance(R, Tensor):
        raise Refused("an operand is of unknown sizes, or has no elements")
    if X.dtype not in FLOATS or len({t.dtype for t in tensors}) > 1:
        raise Refused("the operands are not all in float32, or all in bfloat16")
    steps, batch, inputs = X.sizes
    return Layer(steps, batch, inputs, R.sizes[2], WAYS[attrs["direction"]], X.dtype, attrs, frozenset(wanted),
                 request.target.threads)  # fmt: skip


def usual(layer: Layer, *names: str) -> None:
    """Refused where the activations are not these in each direction."""
    activations = layer.attrs.get("activations")
    if activations and [n.lower() for n in activations][: len(names) * len(layer.backwards)] != [*names] * len(
        layer.backwards
    ):
        raise Refused(f"the activations are {', '.join(activations)}")


def matrix(rows: int, columns: int, dtype: DType = F32, *, turned: bool = False) -> Memory:
    """A row-major matrix; if it is turned, its transpose is what lies row-major."""
    return Memory((rows, columns), dtype, strides=(1, rows) if turned else (columns, 1))


def product(a: Memory, b: Memory, c: Memory, *post: PostOp, bias: bool = False) -> Draft:
    """c = a b, with one more number for each column (`bias`), then the post-ops."""
    operands = [Operand(SRC, ("a", 0), a), Operand(WEIGHTS, ("b", 0), b), Operand(DST, ("out", 0), c)]
    if bias:
        operands.append(Operand(BIAS, ("bias", 0), matrix(1, c.dims[1])))
    return Draft("matmul", tuple(operands), (), Attributes(post))


def binary(kind: str, name: str, rows: int, columns: int) -> PostOp:
    """A post-op with another matrix, or with one row for all."""
    return PostOp(f"binary_{kind}", other=matrix(rows, columns), place=(name, 0))

"""Traits: what an operator is, in the words that passes, precision, quantisation, training and pictures ask for.

They stand where the operator is defined, `@op("Transpose", moves="permute")`, and are read from its record:
`node.record.moves`. A default says nothing of an operator, which is right for most.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from .core.weights import WeightsRule

Kind = Literal[
    "",
    "attention",
    "convolution",
    "einsum",
    "loss",
    "matmul",
    "normalization",
    "pooling",
    "recurrent",
    "reduction",
    "softmax",
]
# Elements of the first operand come out as they are: in their order (view), with axes in another order (permute) or
# blocks of them along another axis (blocks), some of them (slice), some several times (repeat), beside those of the
# other operands (join), slices (gather) or single ones (pick) where indices say, or with a border (pad).
Moves = Literal["", "view", "permute", "blocks", "slice", "repeat", "join", "gather", "pick", "pad"]
# In mixed precision an operator computes in 16 bits (low); in bfloat16 so and in float32 beside float16 (bf16); in
# float32 (wide); in what its first input has, while the others stay in float32 (first); or in what all its inputs have:
# operators of ONNX's own domain that say nothing, and those of others that follow (`Op.follows`).
MixedPrecision = Literal["", "low", "bf16", "wide", "first"]
# What that is for a kind, where an operator does not say it: products, whose sums are taken in 32 bits, are low; wide
# are sums over many elements, exponentials and powers, losses, and what has a state.
MIXED: dict[str, MixedPrecision] = {
    "attention": "low",
    "convolution": "low",
    "einsum": "low",
    "loss": "wide",
    "matmul": "low",
    "normalization": "wide",
    "recurrent": "bf16",
    "softmax": "wide",
}
# An operator takes complex numbers (taken), as elementwise ones do that say nothing; only as the first or the last of
# its inputs (first, last); or not (""). Results of types of their own lose nothing (unchecked). Gradients of complex
# numbers z are dL/dRe z + 1j * dL/dIm z. The rule of what is taken may give these as it stands (direct), as that of
# everything that moves elements does, or have a complex derivative: the gradient is the conjugate of what it makes of
# the conjugate (holomorphic). Where results have types of their own, and the rule gives these: measured.
ComplexNumbers = Literal["", "taken", "first", "last", "unchecked", "direct", "holomorphic", "measured"]


class Traits(TypedDict, total=False):
    """Keywords of `@op` and `@pointwise` besides the schema; `Op` documents each."""

    kind: Kind
    moves: Moves
    mixed: MixedPrecision
    follows: bool
    jumps: bool
    rounds: bool
    quantized: str
    planned_from: int | None
    written_out: bool
    weights: WeightsRule
    neutral: float
    partial: bool
    rowwise: bool
    appends: tuple[tuple[int, int], ...]
    complex_numbers: ComplexNumbers

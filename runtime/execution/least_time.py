"""The least time that a step takes on any processor: what a run with a deadline looks at before it begins one, since a
call of a library is not interrupted."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...ops import OPS, Tensor, Type
from ...ops.nn.windows import windows
from ..compile.program import Program, ProgramStep
from ..environment import processors

# Multiplications of float32 in a second that no processor of today passes: two units of 16 lanes at 6 GHz.
PEAK = 2e11
WIDE_BITS = 32  # narrower elements are multiplied by other units, whose speed differs more than a bound is worth
TELLING = 1e-3  # seconds: what is shorter is not worth a look


def lengthy_steps(program: Program) -> dict[int, float]:
    """The steps of a program of the CPU that take a millisecond or more wherever they run, by number: their least time
    in seconds."""
    if program.target.sm or program.target.math != "strict":
        return {}
    speed = PEAK * min(processors(), max(1, program.target.threads))
    least = {i: multiplications(step, program.types) / speed for i, step in enumerate(program.steps)}
    return {i: seconds for i, seconds in least.items() if seconds >= TELLING}


def multiplications(step: ProgramStep, types: Mapping[str, Type]) -> int:
    """Return the number of multiplications of 32 bits or more in a convolution or a product, alone or as the first of a
    chain; 0 of other steps, and of sizes that only a run tells."""
    node = step.node
    domain, op, operands, attrs = node.domain, node.op, tuple(range(len(node.inputs))), node.attrs
    if (domain, op) == ("mezzo", "Fused"):
        domain, op, operands, pairs = node.attrs["chain"][0]
        attrs = dict(pairs)
    record = OPS.get((domain, op))
    if domain or record is None or record.kind not in ("convolution", "matmul") or step.dynamic:
        return 0
    x, w, y = (types.get(name) for name in (*(node.inputs[i] for i in operands[:2]), node.outputs[0]))
    if not (isinstance(x, Tensor) and isinstance(w, Tensor) and isinstance(y, Tensor)):
        return 0
    if not (x.static and w.static and y.static) or min(x.dtype.bits, w.dtype.bits) < WIDE_BITS or 0 in w.sizes:
        return 0
    if record.kind == "convolution":
        return _of_convolution(op, x.sizes, w.sizes, y.sizes, attrs)
    return math.prod(y.sizes) * x.sizes[0 if attrs.get("transA", 0) else -1]


def _of_convolution(op: str, x: Sequence[int], w: Sequence[int], y: Sequence[int], attrs: Mapping[str, Any]) -> int:
    """Multiplications of a convolution, without those by padding, which kernels leave out. A transposed one spreads
    what the other gathers: the ends of its windows lie in its result."""
    near, far = (x, y) if op == "ConvTranspose" else (y, x)
    count = near[0] * near[1] * w[1]
    for axis, window in enumerate(windows(far[2:], w[2:], **attrs)):
        if window is None:
            return 0
        places = np.arange(near[2 + axis])[:, None] * window.stride - window.before
        taps = places + np.arange(w[2 + axis]) * window.dilation
        count *= int(((taps >= 0) & (taps < far[2 + axis])).sum())
    return count

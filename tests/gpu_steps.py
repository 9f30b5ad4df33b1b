"""One step of a GPU's kernel, run on the stand-in for CuPy: chosen, prepared, run, its result read back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mezzo.ops import OPS, Context, DType, Tensor
from mezzo.ops.layouts import parse
from mezzo.runtime.backends.cuda.generated import laid
from mezzo.runtime.compile.kernel import Choice, Declined, Kernel, KernelArgs, KernelRequest, TargetSpec

from .cuda_shim import relaid
from .cupy_standin import Standin

Array = np.ndarray[Any, Any]


def on(asked: KernelRequest, math: str = "strict", device: str = "gpu:0", *, trial: bool = False) -> KernelRequest:
    """The question as a GPU is asked it."""
    return replace(asked, target=TargetSpec(device, 1, True, math, 90), trial=trial)


def run_step(
    standin: Standin, kernel: Kernel, asked: KernelRequest, inputs: Sequence[Any]
) -> tuple[Choice, Array] | Declined:
    """The choice and its result, row-major; workspace and result begin as NaN."""
    choice = kernel.select(asked)
    if isinstance(choice, Declined):
        return choice
    chosen = relaid(asked, choice.layouts)
    (y,) = chosen.outputs
    assert isinstance(y, Tensor)
    held = [None if x is None else _there(standin, x, t) for x, t in zip(inputs, chosen.inputs, strict=True)]
    out = standin._array((y.nbytes,), np.uint8)
    out.host[...] = 0xFF
    space = standin._array((max(choice.workspace, 1),), np.uint8)
    taken = 0

    def scratch(dtype: DType, shape: tuple[int, ...]) -> Any:
        nonlocal taken
        begin, taken = taken, taken + int(np.prod(shape)) * dtype.itemsize
        assert taken <= choice.workspace
        return space[begin:taken]

    given = [h for h in held if h is not None]
    before = [h.host.copy() for h in given]
    call = kernel.prepare(KernelArgs(chosen, choice, held, [out], scratch))
    allocated = standin.count("alloc")
    call()
    standin.host_waits()
    assert standin.count("alloc") == allocated, "a prepared call allocates"
    assert all(np.array_equal(b, h.host) for b, h in zip(before, given, strict=True)), "inputs are written"
    return choice, _back(out.host, y)


def _there(standin: Standin, x: Any, type: Any) -> Any:
    array = np.asarray(x)
    made = standin._array((array.nbytes,), np.uint8)
    made.host[...] = laid(array, type.layout) if array.ndim else array.reshape(1).view(np.uint8)
    return made


def _back(raw: Array, type: Tensor) -> Array:
    if not type.layout:
        return raw.view(type.dtype.numpy).reshape(type.sizes)
    order = parse(type.layout, type.rank)[0]
    turned = raw.view(type.dtype.numpy).reshape([type.sizes[d] for d in order])
    return np.transpose(turned, np.argsort(order))


def reference(asked: KernelRequest, inputs: Sequence[Any]) -> Array:
    """What the operator's own body answers, in float64."""
    record = OPS[asked.node.domain, asked.node.op]
    wide = [None if x is None else _wide(x) for x in inputs]
    found: Array = np.asarray(record.run(Context(), wide, asked.node.attrs)[0])
    return found


def _wide(x: Any) -> Array:
    array = np.asarray(x)
    return array.astype(np.float64) if DType.of(array.dtype).floating else array

"""Ask cuDNN for plans with no GPU and no driver: a process of its own, since a library stands in for the driver.

    python tests/cudnn_plans.py float16      # or float32, tf32, bfloat16, attention

Prints one line of JSON for each different convolution of ResNet-50 and MobileNetV2: what was asked, the plan that
cuDNN names first ("" for none, and why), its workspace, whether the rule for machines without cuDNN expects one, and
whether in the same layouts.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# What cuDNN's part for kernels that are compiled at run time takes from the driver; answers 0, for success.
DRIVER = """
#define F(name) int name(void) { return 0; }
F(cuGetErrorString) F(cuGetErrorName) F(cuModuleGetFunction) F(cuModuleLoadData) F(cuModuleUnload)
F(cuTensorMapEncodeIm2col) F(cuTensorMapEncodeTiled) F(cuCtxGetCurrent) F(cuCtxGetLimit) F(cuCtxPopCurrent)
F(cuCtxPushCurrent) F(cuStreamGetCtx) F(cuLinkCreate) F(cuLinkAddData) F(cuLinkComplete) F(cuLinkDestroy)
F(cuLaunchKernel) F(cuLaunchCooperativeKernel) F(cuLaunchKernelEx) F(cuDeviceGet) F(cuLibraryLoadData)
F(cuLibraryLoadFromFile) F(cuLibraryGetKernel) F(cuLibraryUnload) F(cuKernelSetAttribute) F(cuKernelGetAttribute)
F(cuKernelGetFunction) F(cuOccupancyMaxPotentialClusterSize)
int cuDriverGetVersion(int* version) { *version = 13000; return 0; }
int cuDeviceGetCount(int* count) { *count = 0; return 0; }
"""


def stand_in_for_the_driver(folder: Path) -> None:
    """Load a library of the driver's name, if there is no driver."""
    try:
        ctypes.CDLL("libcuda.so.1")
        return
    except OSError:
        pass
    source, made = folder / "driver.c", folder / "libcuda.so.1"
    source.write_text(DRIVER)
    subprocess.run(["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", made, source], check=True)
    ctypes.CDLL(str(made), mode=ctypes.RTLD_GLOBAL)


Convolution = tuple[tuple[int, ...], tuple[int, ...], int, int, int, str]  # image, filters, stride, pad, group, behind


def resnet50() -> Iterator[Convolution]:
    """Its convolutions for one image of 224 x 224; "add relu" ends a block."""
    yield (1, 3, 224, 224), (64, 3, 7, 7), 2, 3, 1, "relu"
    size, inside = 56, 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            image = (1, inside, size, size)
            yield image, (width, inside, 1, 1), 1, 0, 1, "relu"
            yield (1, width, size, size), (width, width, 3, 3), stride, 1, 1, "relu"
            if not block:
                yield image, (4 * width, inside, 1, 1), stride, 0, 1, ""
            size //= stride
            yield (1, width, size, size), (4 * width, width, 1, 1), 1, 0, 1, "add relu"
            inside = 4 * width


def mobilenet_v2() -> Iterator[Convolution]:
    """Its convolutions for one image of 224 x 224."""
    yield (1, 3, 224, 224), (32, 3, 3, 3), 2, 1, 1, "clip"
    size, inside = 112, 32
    for expand, width, blocks, first in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1),
                                         (6, 160, 3, 2), (6, 320, 1, 1)):  # fmt: skip
        for block in range(blocks):
            stride, hidden = 1 if block else first, inside * expand
            if expand > 1:
                yield (1, inside, size, size), (hidden, inside, 1, 1), 1, 0, 1, "clip"
            yield (1, hidden, size, size), (hidden, 1, 3, 3), stride, 1, hidden, "clip"
            size //= stride
            yield (1, hidden, size, size), (width, hidden, 1, 1), 1, 0, 1, "add" if block else ""
            inside = width
    yield (1, inside, size, size), (1280, inside, 1, 1), 1, 0, 1, "clip"


def convolution(which: Convolution, dtype: Any, math: str) -> Any:
    """The question for a convolution with bias and what is behind it."""
    import numpy as np

    from mezzo.ops import OPS, Tensor
    from mezzo.ops.types import type_of
    from mezzo.runtime.compile.kernel import KernelRequest, TargetSpec
    from mezzo.runtime.ir.graph import Node

    image, filters, stride, pad, group, behind = which
    x, w, b = Tensor(dtype, image), Tensor(dtype, filters), Tensor(dtype, filters[:1])
    attrs = {"strides": (stride, stride), "pads": (pad,) * 4, "group": group}
    (y,) = OPS["", "Conv"].infer_types([x, w, b], attrs)
    inputs: list[Any] = [x, w, b]
    links: list[Any] = [("", "Conv", (0, 1, 2), tuple(sorted(attrs.items())))]
    for op in behind.split():
        if op == "add":
            inputs.append(y)
            links.append(("", "Add", (-1, len(inputs) - 1), ()))
        elif op == "clip":
            inputs += [type_of(np.asarray(n, dtype.numpy), known=True) for n in (0, 6)]
            links.append(("", "Clip", (-1, len(inputs) - 2, len(inputs) - 1), ()))
        else:
            links.append(("", "Relu", (-1,), ()))
    node = Node("Fused", tuple(f"x{i}" for i in range(len(inputs))), ("y",), {"chain": tuple(links)}, "mezzo")
    constants = [0 < i < 3 or t.value is not None for i, t in enumerate(inputs)]
    return KernelRequest(node, inputs, [y], constants, TargetSpec("gpu:0@sm_90", 1, True, math, 90))


def attention(dtype: Any) -> Iterator[tuple[str, Any]]:
    """Questions for attention."""
    from mezzo.ops import OPS, Tensor
    from mezzo.runtime.compile.kernel import KernelRequest, TargetSpec
    from mezzo.runtime.ir.graph import Node

    def heads(*dims: int) -> Tensor:
        return Tensor(dtype, dims)

    for name, shapes, attrs in (
        ("BERT-base", [heads(1, 12, 128, 64)] * 3, {}),
        ("BERT-base, batch 32", [heads(32, 12, 128, 64)] * 3, {}),
        ("packed heads", [heads(2, 128, 768)] * 3, {"q_num_heads": 12, "kv_num_heads": 12}),
        ("causal", [heads(1, 8, 256, 128)] * 3, {"is_causal": 1}),
        ("mask", [heads(2, 12, 128, 64)] * 3 + [heads(2, 1, 1, 128)], {}),
        ("shared heads", [heads(1, 12, 64, 64), heads(1, 4, 80, 64), heads(1, 4, 80, 64)], {}),
    ):
        node = Node("Attention", tuple(f"x{i}" for i in range(len(shapes))), ("y",), attrs)
        outputs = OPS["", "Attention"].infer_types(shapes, attrs, (True,))
        yield (
            name,
            KernelRequest(
                node, shapes, outputs[:1], [False] * len(shapes), TargetSpec("gpu:0@sm_90", 1, True, "strict", 90)
            ),
        )


def main(which: str) -> None:
    from mezzo.ops import DType
    from mezzo.runtime.backends.cuda.cudnn import KERNELS
    from mezzo.runtime.backends.cuda.cudnn import kernel as asking
    from mezzo.runtime.backends.cuda.cudnn.library import find
    from mezzo.runtime.compile.kernel import Choice

    math = "tf32" if which == "tf32" else "strict"
    if which == "attention":
        asked = [(f"{n} {d}", a) for d in (DType.FLOAT16, DType.BFLOAT16) for n, a in attention(d)]
    else:
        dtype = {"float32": DType.FLOAT, "tf32": DType.FLOAT, "float16": DType.FLOAT16, "bfloat16": DType.BFLOAT16}
        found = dict.fromkeys([*resnet50(), *mobilenet_v2()])
        asked = [(str(c), convolution(c, dtype[which], math)) for c in found]
    assert not isinstance(find(), str), find()
    for name, request in asked:
        kernel = next(k for k in KERNELS if k.serves(request.node))
        choice = kernel.select(request)
        setattr(asking, "find", lambda: "left out, so that the rule answers")  # noqa: B010
        rule = kernel.select(request)
        setattr(asking, "find", find)  # noqa: B010
        said: dict[str, Any] = {"asked": name, "plan": "", "rule": isinstance(rule, Choice), "same": False}
        if isinstance(choice, Choice):
            same = isinstance(rule, Choice) and rule.layouts == choice.layouts
            said |= {"plan": choice.params["plan"], "workspace": choice.workspace, "same": same}
        else:
            said["why"] = choice.reason
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        os.environ.setdefault("MEZZO_CACHE", made)
        stand_in_for_the_driver(Path(made))
        if importlib.util.find_spec("mezzo") is None:
            sys.path.insert(0, str(ROOT / "src"))
        main(sys.argv[1])

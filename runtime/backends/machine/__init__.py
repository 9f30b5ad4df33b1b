"""Machine code of our own: kernels that no library has.

`emit/` writes them as texts for LLVM, `build.py` compiles them into the blobs of this folder, one for each tier of
instruction sets, `blobs.py` maps the one of this machine. Compiling needs llvmlite; running does not.
"""

from __future__ import annotations

from functools import partial

from ...compile.kernel import Kernel
from ...compile.lazy_kernel import LazyKernel

_later = partial(LazyKernel, __name__, chains=False)
KERNELS: tuple[Kernel, ...] = (
    _later("machine.matmul_n_bits", "n_bits.MatMulNBits", "com.microsoft.MatMulNBits"),
    _later("machine.trees", "trees.TreeEnsembles",
           "ai.onnx.ml.TreeEnsemble ai.onnx.ml.TreeEnsembleClassifier ai.onnx.ml.TreeEnsembleRegressor"),
    _later("machine.rms_norm", "rms_norm.RmsNormalization",
           "RMSNormalization com.microsoft.SkipSimplifiedLayerNormalization"),
)  # fmt: skip

__all__ = ["KERNELS"]

"""GPUs as compilation sees them: their kernels, and the host for all that they do not serve."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Final

from ....ops import Tensor
from ....ops.dataclasses import dataclass
from ...compile.kernel import KernelRequest
from ...compile.target import Chosen, Serving, Target
from ...ir.graph import Node
from ..processor import CPU
from .driver import cupy
from .host import HOST

USUAL_SM: Final = 90  # what is planned for where nobody says: H100 and H200


@dataclass(frozen=True, slots=True)
class GpuTarget(Target):
    """A GPU, or the plan of one: with `planned` nothing is ever asked of a driver.

    `index` counts the devices that CUDA shows, `architecture` is that of `sm_90` as 90.
    """

    index: int = 0
    architecture: int = USUAL_SM
    planned: bool = False

    @property
    def sm(self) -> int:
        return self.architecture

    def choose(self, request: KernelRequest) -> Chosen:
        """Kernels of the device are asked of tensors whose sizes are known; all else belongs to the host."""
        fixed = all(t is None or (isinstance(t, Tensor) and t.static) for t in (*request.inputs, *request.outputs))
        if not fixed or request.node.bodies:
            return HOST.choose(request)
        if self.planned:
            return Target.choose(self, request)
        with self.current():  # libraries are asked there, and timed
            return Target.choose(self, request)

    def _serves(self, node: Node) -> Serving:
        """Kernels here look at the whole of a chain, not only at the operator with which it begins. What a step on the
        host answers depends on what the CPU's kernels look at."""
        if node.op != "Fused":
            serving, remember = Target._serves(self, node)
        else:
            serving = tuple(k for k in self.kernels if k.serves(node))
            remember = all(getattr(k, "remembers", False) for k in serving)
        return serving, remember and CPU._serves(node)[1]

    def current(self) -> AbstractContextManager[Any]:
        """Make the GPU this thread's device for a while."""
        device: AbstractContextManager[Any] = cupy().cuda.Device(self.index)
        return device

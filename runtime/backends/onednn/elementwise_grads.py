"""The gradients of activations and of softmax.

https://oneapi-src.github.io/oneDNN/dev_guide_eltwise.html, https://oneapi-src.github.io/oneDNN/dev_guide_softmax.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from ...compile.kernel import Alias, Call, KernelArgs, KernelRequest
from .api import DIFF_DST, DIFF_SRC, DST, SRC, Refused
from .conv_grads import Training
from .kernel import floats, result
from .looked import Looked
from .memory import Memory
from .postops import Link, alone, chain
from .primitive import Descriptor, Draft, Operand

# operator -> eltwise algorithm with its two numbers; those that end in `use_dst` read the forward result
ELTWISE_GRADS: Final[dict[str, Callable[[Link], tuple[str, float, float]]]] = {
    "ReluGrad": lambda n: ("eltwise_relu_use_dst", 0.0, 0.0),
    "TanhGrad": lambda n: ("eltwise_tanh_use_dst", 0.0, 0.0),
    "SigmoidGrad": lambda n: ("eltwise_logistic_use_dst", 0.0, 0.0),
    "LeakyReluGrad": lambda n: ("eltwise_relu", n.attr("alpha"), 0.0),
    "EluGrad": lambda n: ("eltwise_elu", n.attr("alpha"), 0.0),
    "GeluGrad": lambda n: ("eltwise_gelu_tanh" if n.attr("approximate") == "tanh" else "eltwise_gelu_erf", 0.0, 0.0),
    "HardSwishGrad": lambda n: ("eltwise_hardswish", 1 / 6, 0.5),
    "MishGrad": lambda n: ("eltwise_mish", 0.0, 0.0),
    "SwishGrad": lambda n: ("eltwise_swish", n.attr("alpha"), 0.0),
}


class Overwriting(Training):
    """Gradients that may overwrite the gradient that they are computed from."""

    inplace = True

    def _aliases(
        self, request: KernelRequest, descriptors: Sequence[Descriptor], layouts: Sequence[str]
    ) -> Iterator[Alias]:
        return (a for a in super()._aliases(request, descriptors, layouts) if a.input == 0)


class EltwiseGrad(Overwriting):
    """The gradient of an activation, from its input or its result."""

    name = "onednn.eltwise_grad"
    ops = frozenset(ELTWISE_GRADS)

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """Yield drafts in the layout of the forward value, then of the gradient, then row-major."""
        link, dx = alone(links), result(request)
        dy, x = floats(request, link.operands[:2])
        if not x.sizes or dy.sizes != x.sizes or dy.dtype is not x.dtype:
            raise Refused("the gradient differs from the value in shape or type")
        settings = ELTWISE_GRADS[link.op](link)
        data = DST if settings[0].endswith("use_dst") else SRC
        for layout in dict.fromkeys((x.layout, dy.layout, "")):
            memory = Memory(x.sizes, x.dtype, layout)
            yield Draft(
                "eltwise_backward",
                (
                    Operand(DIFF_DST, ("in", link.operands[0]), memory, layout),
                    Operand(data, ("in", link.operands[1]), memory, layout),
                    Operand(DIFF_SRC, ("out", 0), Memory(dx.sizes, dx.dtype, layout), layout),
                ),
                settings,
            )


class SoftmaxGrad(Overwriting):
    """The gradient of Softmax or LogSoftmax, from its result."""

    name = "onednn.softmax_grad"
    ops = frozenset({"SoftmaxGrad", "LogSoftmaxGrad"})

    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[Draft]:
        """Yield drafts in the layout of the result, then row-major."""
        link, dx = alone(links), result(request)
        dy, y = floats(request, link.operands[:2])
        axis = link.attr("axis") % len(y.sizes)
        algorithm = "softmax_log" if link.op == "LogSoftmaxGrad" else "softmax_accurate"
        for layout in dict.fromkeys((y.layout, dy.layout, "")):
            yield Draft(
                "softmax_backward",
                (
                    Operand(DIFF_DST, ("in", link.operands[0]), Memory(dy.sizes, dy.dtype, layout), layout),
                    Operand(DST, ("in", link.operands[1]), Memory(y.sizes, y.dtype, layout), layout),
                    Operand(DIFF_SRC, ("out", 0), Memory(dx.sizes, dx.dtype, layout), layout),
                ),
                (algorithm, axis),
            )

    def prepare(self, args: KernelArgs) -> Call:
        """The primitive; where a logarithm is NaN, of which its exponential makes a number, the reference."""
        call, link = super().prepare(args), alone(chain(args.node))
        return Looked(call, args, {("in", link.operands[1]): ("nan",)}) if link.op == "LogSoftmaxGrad" else call

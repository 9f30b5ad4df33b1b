"""Base of all cuDNN kernels: tries drafts in order, chooses plans, prepares calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

from .....ops import DType, Tensor
from .....ops.dataclasses import dataclass
from .....ops.types import Array
from ....compile.kernel import Call, Choice, Declined, KernelArgs, KernelRequest, anchor
from ....ir.graph import Node
from ...onednn.postops import Link, chain
from ..generated import laid
from ..memory import check_operand
from .draft import GraphDraft, GraphRefused
from .epilogue import FLOATS
from .library import Cudnn, find, handle, is_plan
from .plans import PLANS, CudnnPlan, load
from .rule import expected

ALIGNED = 16  # bytes: where cuDNN expects tensors to begin, unless it is told otherwise
BY_RULE = "cuDNN, by rule"  # the implementation, where there is no cuDNN to ask


@dataclass(frozen=True, slots=True)
class _Taken:
    """A draft with its number and its plan; None if cuDNN is not installed."""

    number: int
    draft: GraphDraft
    plan: CudnnPlan | None


class CuDnn(ABC):
    """A family of operators that one graph of cuDNN computes, alone or followed by others.

    `drafts` are the graphs that would do, best first; they depend on nothing but what is asked. Those that share the
    layouts of the first with a plan are timed against each other where there is a GPU.
    """

    name: ClassVar[str]
    ops: ClassVar[frozenset[str]]
    domain: ClassVar[str] = ""
    remembers: ClassVar[bool] = (
        False  # what is timed only in the end answers differently before: see KernelRequest.trial
    )

    @abstractmethod
    def drafts(self, request: KernelRequest, links: tuple[Link, ...]) -> Iterator[GraphDraft]:
        """The graphs that would do, best first. Raises Refused with the reason where there are none."""

    def serves(self, node: Node) -> bool:
        return anchor(node) == (self.domain, anchor(node)[1]) and anchor(node)[1] in self.ops

    def select(self, request: KernelRequest) -> Choice | Declined:
        """The first draft that cuDNN has a plan for, with the layouts of its operands."""
        try:
            taken = self._taken(request)
        except GraphRefused as error:
            return Declined(str(error))
        plan, layouts = taken.plan, layouts_of(request, taken.draft)
        params: dict[str, Any] = {"draft": taken.number, "plan": plan.name if plan else ""}
        if plan is not None and plan.milliseconds is not None:
            params["milliseconds"] = plan.milliseconds
        return Choice(
            self.name,
            params,
            workspace=plan.workspace if plan else 0,
            layouts=layouts if any(layouts) else (),
            implementation=f"cuDNN {plan.name}" if plan else BY_RULE,
            primitives=(taken.draft,),
        )

    def recall(self, request: KernelRequest, choice: Choice) -> None:
        """Let `select` answer with the plan that a stored program names. Raises Refused where it is not to be had."""
        name, number = choice.params.get("plan"), choice.params.get("draft")
        if not isinstance(find(), Cudnn) or not isinstance(name, str) or not isinstance(number, int) or not name:
            raise GraphRefused("a program that was made without cuDNN is made again")
        draft = self._draft(request, number)
        milliseconds = choice.params.get("milliseconds")
        PLANS.recall(draft, request.target, name, milliseconds if isinstance(milliseconds, float) else None)

    def prepare(self, args: KernelArgs) -> Call:
        """The plan over the buffers of the step, on CuPy's current stream."""
        (draft,), params, target = args.choice.primitives, args.choice.params, args.request.target
        plan, device = PLANS.best(draft, target), target.device
        if plan.name != params["plan"]:
            PLANS.recall(draft, target, params["plan"], params.get("milliseconds"))
            plan = PLANS.best(draft, target)
        places: dict[str, Sequence[Any]] = {"in": args.inputs, "out": args.outputs}
        for o in draft.all:
            last = sum((n - 1) * s for n, s in zip(o.sizes, o.strides, strict=True))
            check_operand(places[o.place[0]][o.place[1]], (last + 1) * o.dtype.itemsize, ALIGNED, o.place)
        graph = load(plan, device)
        pointers = {uid: int(places[o.place[0]][o.place[1]].data.ptr) for uid, o in enumerate(draft.all, start=1)}
        scratch = args.scratch(DType.UINT8, (plan.workspace,)) if plan.workspace else None
        return partial(_run, graph, pointers, 0 if scratch is None else int(scratch.data.ptr), device)

    def ready(self, device: str) -> None:
        """Make what a thread needs to launch: its handle, which takes memory and cannot be made in a capture."""
        handle(device)

    def pack(self, request: KernelRequest, choice: Choice, index: int, array: Array) -> Array:
        """A constant in a layout that is an order of its dims."""
        return laid(array, choice.layouts[index])

    def _draft(self, request: KernelRequest, number: int) -> GraphDraft:
        for i, draft in enumerate(self.drafts(request, chain(request.node))):
            if i == number:
                return draft
        raise GraphRefused(f"there is no draft {number}")

    def _taken(self, request: KernelRequest) -> _Taken:
        _checked(request)
        library = find()
        planned = is_plan(request.target.device)
        if isinstance(library, str) and not planned:
            raise GraphRefused(library)
        reasons: list[str] = []
        best: _Taken | None = None
        timed = not planned and not request.trial
        drafts = enumerate(self.drafts(request, chain(request.node)))
        while best is None or timed:
            try:
                number, draft = next(drafts)
            except StopIteration:
                break
            except GraphRefused as error:
                reasons.append(str(error))
                break
            if best is not None and layouts_of(request, draft) != layouts_of(request, best.draft):
                break
            try:
                if isinstance(library, Cudnn):
                    taken = _Taken(number, draft, PLANS.best(draft, request.target, timed=timed))
                else:
                    expected(draft)
                    taken = _Taken(number, draft, None)
            except GraphRefused as error:
                reasons.append(str(error))
                continue
            best = taken if best is None or _time(taken) < _time(best) else best
        if best is None:
            raise GraphRefused("; ".join(dict.fromkeys(reasons)))
        return best


def _time(taken: _Taken) -> float:
    milliseconds = taken.plan.milliseconds if taken.plan else None
    return float("inf") if milliseconds is None else milliseconds


def _run(graph: Any, pointers: dict[int, int], scratch: int, device: str) -> None:
    graph.execute(pointers, scratch, handle(device))


def _checked(request: KernelRequest) -> None:
    for t in (*request.inputs, *request.outputs):
        if t is not None and (not isinstance(t, Tensor) or not t.static or 0 in t.sizes):
            raise GraphRefused("an operand has no known sizes, or no elements")


def layouts_of(request: KernelRequest, draft: GraphDraft) -> tuple[str, ...]:
    """The layouts of all inputs, then of all outputs; what the draft does not read stays as it lies."""
    wanted = {o.place: o.layout for o in draft.all}
    held = [(("in", i), t.layout if isinstance(t, Tensor) else "") for i, t in enumerate(request.inputs)]
    held += [(("out", i), "") for i in range(len(request.node.outputs))]
    return tuple(wanted.get(place, layout) for place, layout in held)


def floats(request: KernelRequest, at: Sequence[int]) -> list[Tensor]:
    """Operands of a type of float that cuDNN computes with; Refused for others."""
    operands = [request.inputs[i] if i >= 0 else None for i in at]
    tensors = [t for t in operands if isinstance(t, Tensor) and t.dtype in FLOATS]
    if len(tensors) < len(operands):
        raise GraphRefused(f"operands are {', '.join(map(str, operands))}")
    return tensors


def result(request: KernelRequest) -> Tensor:
    """The type of the one output."""
    y = request.outputs[0]
    if len(request.outputs) > 1 or not isinstance(y, Tensor) or y.dtype not in FLOATS:
        raise GraphRefused(f"the results are {', '.join(map(str, request.outputs))}")
    return y

"""Plans: cuDNN's answers to drafts. Each is looked up once, timed once where there is a GPU, and kept on disk.

Which plan is taken is data (its name, in Choice.params): a stored program names it, and gets it again. Without a GPU
the heuristics' first that can be built is taken.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

from .....ops.dataclasses import dataclass, field, replace
from ....compile.kernel import TargetSpec
from ..cache import key_of, read, write
from ..timing import NEVER, fastest, filled, milliseconds, no_room
from .build import create_plans, graph_of, refusal, uids, words
from .draft import GraphDraft, GraphRefused, GraphTensor
from .library import handle, is_plan, library, properties

FORM = "1"  # of entries in the cache
KIND = "cudnn"
LARGEST = 256 << 20  # bytes of workspace

Built = tuple[int, int]  # the number of a plan and its workspace


@dataclass(frozen=True, slots=True)
class CudnnPlan:
    """An engine of cuDNN with its settings by name, its workspace in bytes, the text that `load` reads, and the time of
    a run if it was measured."""

    name: str
    workspace: int
    data: bytes = field(repr=False)
    milliseconds: float | None = None


class Plans:
    """Cache of this process: the plan of each draft."""

    def __init__(self) -> None:
        self._plans: dict[tuple[GraphDraft, str, int], CudnnPlan | GraphRefused] = {}
        self._lock = threading.RLock()

    def best(self, draft: GraphDraft, target: TargetSpec, *, timed: bool = False) -> CudnnPlan:
        """The plan to take, the fastest where `timed` asks for it. Raises Refused where cuDNN has none."""
        at = draft, target.device, target.sm
        with self._lock:
            plan = self._plans.get(at)
            if plan is None:
                plan = self._plans[at] = self._kept(draft, target)
            if isinstance(plan, GraphRefused):
                raise plan
            if timed and plan.milliseconds is None:
                plan = self._plans[at] = self._fastest(draft, target, plan)
            return plan

    def recall(self, draft: GraphDraft, target: TargetSpec, name: str, milliseconds: float | None) -> None:
        """Take the plan that was chosen elsewhere, on such a device. Raises Refused where it is not to be had."""
        at = draft, target.device, target.sm
        with self._lock:
            known = self._plans.get(at)
            if isinstance(known, CudnnPlan) and (known.name, known.milliseconds) == (name, milliseconds):
                return
            plan = replace(_named(draft, target, name), milliseconds=milliseconds)
            self._plans[at] = plan
            self._keep(draft, target, plan)

    def forget(self) -> None:
        """Let go of all; for tests."""
        with self._lock:
            self._plans.clear()

    def _kept(self, draft: GraphDraft, target: TargetSpec) -> CudnnPlan | GraphRefused:
        """Return the plan from the disk, or the first that the heuristics suggest."""
        held = read(KIND, key(draft, target))
        if held is not None:
            return _unpacked(held)
        plan: CudnnPlan | GraphRefused
        try:
            graph, names = _asked(draft, target)
            errors: list[Exception] = []
            index, workspace = next(_buildable(graph, len(names), errors), (-1, 0))
            if index < 0:
                last = refusal(errors[-1]) if errors else GraphRefused("they want too much workspace")
                refused = GraphRefused(f"none of {len(names)} plans can be built: {last.message}")
                refused.for_now = last.for_now
                raise refused
            plan = CudnnPlan(names[index], workspace, _data(graph))
        except GraphRefused as error:
            if error.for_now:
                raise
            plan = error
        self._keep(draft, target, plan)
        return plan

    def _fastest(self, draft: GraphDraft, target: TargetSpec, first: CudnnPlan) -> CudnnPlan:
        """The fastest plan; the `first` that was suggested where none can be timed now, for want of memory."""
        graph, names = _asked(draft, target)
        try:
            best = fastest(_buildable(graph, len(names)), _clock(graph, draft, target))
        except Exception as error:
            if not no_room(error):
                raise
            best = None
        if best is None:
            return first
        (index, workspace), time = best
        graph.build_plan_at_index(index)  # which makes it the one that is stored
        plan = CudnnPlan(names[index], workspace, _data(graph), time)
        self._keep(draft, target, plan)
        return plan

    def _keep(self, draft: GraphDraft, target: TargetSpec, plan: CudnnPlan | GraphRefused) -> None:
        write(KIND, key(draft, target), _packed(plan))


PLANS = Plans()


def key(draft: GraphDraft, target: TargetSpec) -> str:
    """Return the cache key of a plan: the draft, the versions, and the GPU."""
    cudnn = library()
    return key_of(FORM, repr(draft), cudnn.version, cudnn.frontend, properties(target.device, target.sm)[1])


def load(plan: CudnnPlan, device: str) -> Any:
    """The plan on a device, as an object whose `execute` runs it."""
    graph = library().module.pygraph()
    graph.deserialize(handle(device), list(plan.data))
    return graph


def _asked(draft: GraphDraft, target: TargetSpec) -> tuple[Any, list[str]]:
    module = library().module
    graph = graph_of(module, draft, properties(target.device, target.sm)[0], target.sm)
    return graph, create_plans(module, graph, draft)


def _named(draft: GraphDraft, target: TargetSpec, name: str) -> CudnnPlan:
    graph, names = _asked(draft, target)
    if name not in names:
        raise GraphRefused(f"cuDNN does not name the plan {name} here")
    try:
        graph.build_plan_at_index(names.index(name))
        return CudnnPlan(name, int(graph.get_workspace_size()), _data(graph))
    except Exception as error:
        raise GraphRefused(words(error)) from error


def _buildable(graph: Any, count: int, errors: list[Exception] | None = None) -> Iterator[Built]:
    """Numbers and workspaces of the plans that can be built, best first; the last one yielded is the graph's own.
    `errors` gets what cuDNN has against the others."""
    for index in range(count):
        try:
            graph.build_plan_at_index(index)
            workspace = int(graph.get_workspace_size_plan_at_index(index))
        except Exception as error:  # cuDNN says no in errors of several kinds
            if errors is not None:
                errors.append(error)
            continue
        if workspace <= LARGEST:
            yield index, workspace


def _data(graph: Any) -> bytes:
    return bytes(graph.serialize())


def _packed(plan: CudnnPlan | GraphRefused) -> bytes:
    if isinstance(plan, GraphRefused):
        return json.dumps({"refused": str(plan)}).encode() + b"\n"
    about = {"name": plan.name, "workspace": plan.workspace, "milliseconds": plan.milliseconds}
    return json.dumps(about).encode() + b"\n" + plan.data


def _unpacked(held: bytes) -> CudnnPlan | GraphRefused:
    head, _, data = held.partition(b"\n")
    about = json.loads(head)
    return GraphRefused(about["refused"]) if "refused" in about else CudnnPlan(**about, data=data)


def _clock(graph: Any, draft: GraphDraft, target: TargetSpec) -> Callable[[Built], float]:
    """Return a function that times a plan of a graph on the device, in milliseconds."""
    assert not is_plan(target.device)
    held = {uid: filled(nbytes(operand)) for uid, operand in uids(draft).items()}
    pointers = {uid: int(memory.ptr) for uid, memory in held.items()}

    def clock(built: Built) -> float:
        index, workspace = built
        try:
            held[0] = filled(workspace)  # until all is done
        except Exception as error:
            if not no_room(error):
                raise
            return NEVER
        scratch = int(held[0].ptr)
        return milliseconds(
            lambda: graph.execute_plan_at_index(
                pointers, scratch, index, handle(target.device)
            )  # on the stream of then
        )

    return clock


def nbytes(operand: GraphTensor) -> int:
    """Bytes from the first to the last element of a tensor."""
    last = sum((n - 1) * s for n, s in zip(operand.sizes, operand.strides, strict=True))
    return (last + 1) * operand.dtype.itemsize

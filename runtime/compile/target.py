"""Targets of compilation: which kernels a device has, and which of them takes a step."""

from __future__ import annotations

from functools import cache
from typing import Final

from ...ops import MezzoError
from ...ops.dataclasses import dataclass, field
from ...ops.errors import PlanError
from ..caches import Cache
from ..ir.graph import Node
from .cache_keys import cache_key
from .defects import DEFECTS, Unprepared
from .kernel import Call, Choice, Kernel, KernelArgs, KernelRequest, Packs, anchor, without_layouts
from .lazy_kernel import itself

Operator = tuple[str, str, tuple[str, str]]  # domain and name of a node's operator, and that with which it begins
Serving = tuple[tuple[Kernel, ...], bool]
Chosen = tuple[Choice, tuple[tuple[str, str], ...]]  # and (kernel, reason) of each that declined before

REPORT: Final = "this is a defect of Mezzo, not of the model: please report it; onednn=False leaves the CPU to NumPy"


def _choices() -> Cache[Chosen]:
    return Cache("kernel choices")


@dataclass(frozen=True, slots=True)
class Target:
    """A device as compilation sees it: its name and its own kernels, in the order in which they are asked, after those
    that were registered for it.

    `host` is the target of subgraphs in control flow, where those run on another device than their node; None if they
    run here.
    """

    name: str
    own: tuple[Kernel, ...]
    host: Target | None = None
    registered: dict[str, Kernel] = field(init=False, compare=False, repr=False, default_factory=dict[str, Kernel])
    # answers to earlier questions
    _named: dict[str, Kernel] = field(init=False, compare=False, repr=False, default_factory=dict[str, Kernel])
    _serving: dict[Operator, Serving] = field(
        init=False, compare=False, repr=False, default_factory=dict[Operator, Serving]
    )
    _chosen: Cache[Chosen] = field(init=False, compare=False, repr=False, default_factory=_choices)

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """All kernels, in the order in which they are asked: the latest that was registered comes first."""
        return (*reversed(self.registered.values()), *self.own) if self.registered else self.own

    def register(self, kernel: Kernel) -> None:
        """Ask a kernel before all others; one of the same name that was registered before is no longer asked."""
        self.registered.pop(kernel.name, None)
        self.registered[kernel.name] = kernel

    @property
    def sm(self) -> int:
        """The architecture of a GPU, 90 for sm_90; 0 for all others."""
        return 0

    def kernel(self, name: str) -> Kernel:
        """The kernel of this name."""
        kernel = self.registered.get(name) or self._named.get(name)
        if kernel is None:
            kernel = self._named[name] = next(itself(k) for k in self.own if k.name == name)
        return itself(kernel)

    def choose(self, request: KernelRequest) -> Chosen:
        """The first kernel that serves a request, and (kernel, reason) of each that declined before it."""
        key = cache_key(request)
        if key is None or not self._serves(request.node)[1]:
            return self._choose(request)
        return self._chosen.get(key, lambda: self._choose(request))

    def remembers(self, node: Node) -> bool:
        """Return True if the answer to a request for a node serves all requests of its cache key."""
        return self._serves(node)[1]

    def lengthy(self, node: Node) -> bool:
        """Return True if the first kernel that serves a node is slow to answer."""
        return any(getattr(k, "lengthy", False) for k in self._serves(node)[0][:1])

    def _serves(self, node: Node) -> Serving:
        """The kernels that serve a node, and whether all of them look at nothing but what the cache key of a request
        has."""
        operator = (node.domain, node.op, anchor(node))
        serving = self._serving.get(operator)
        if serving is None:
            kernels = tuple(k for k in self.own if k.serves(node))
            serving = kernels, all(getattr(k, "remembers", False) for k in kernels)
            if node.domain in ("", "mezzo"):  # the records of others come and go
                self._serving[operator] = serving
        before = tuple(k for k in reversed(self.registered.values()) if k.serves(node)) if self.registered else ()
        return ((*before, *serving[0]), False) if before else serving  # those are asked each time: they come and go

    def _choose(self, request: KernelRequest) -> Chosen:
        node, declined = request.node, list[tuple[str, str]]()
        for kernel in map(itself, self._serves(node)[0]):
            reason: str | None
            try:
                answer = kernel.select(request if _knows_layouts(type(kernel)) else without_layouts(request))
            except Exception as error:
                if isinstance(error, MezzoError) and not isinstance(error, PlanError):
                    raise error.at(node.place) from error.__cause__
                reason = DEFECTS.note(kernel.name, node, "chose", error)
            else:
                if isinstance(answer, Choice):
                    reason = DEFECTS.excluded(answer, node)
                    if reason is None:
                        return answer, tuple(declined)
                else:
                    reason = answer.reason
            declined.append((kernel.name, reason))
        raise PlanError(
            f"no kernel of {self.name} serves {node.op}: {'; '.join(f'{name}: {why}' for name, why in declined)}",
            where=node.place,
        )

    def prepare(self, args: KernelArgs) -> Call:
        """The call of a chosen kernel. Raises Unprepared where it fails as no kernel foresees: planned again, another
        kernel takes the step."""
        choice, node = args.choice, args.node
        try:
            return self.kernel(choice.kernel).prepare(args)
        except Exception as error:
            if isinstance(error, MezzoError) and not isinstance(error, PlanError):
                raise error.at(node.place) from error.__cause__
            reason = DEFECTS.note(choice.kernel, node, "prepared", error)
            DEFECTS.exclude(choice, node, reason)
            self._chosen.clear()
            raise Unprepared(f"{choice.kernel} has {reason}", where=node.place, hint=REPORT) from error


@cache
def _knows_layouts(kernel: type[Kernel]) -> bool:
    return issubclass(kernel, Packs) or getattr(kernel, "any_layout", False)

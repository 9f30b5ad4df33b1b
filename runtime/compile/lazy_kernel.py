"""Lazy kernels, imported on first use: a process loads only those that its models need."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

from ..ir.graph import Node
from .kernel import Call, Choice, Declined, Kernel, KernelArgs, KernelRequest, anchor


class LazyKernel:
    """A kernel that is known by its name and operators until it is used.

    `source` is its class or object, as `module.attribute` of a package; `ops` are all operators that it serves, as
    `name` or `domain.name`. `remembers` is what the kernel says of itself (`Kernel`); `chains` tells if it is asked
    for a `mezzo.Fused` that begins with one of them.
    """

    __slots__ = ("_kernel", "chains", "name", "ops", "remembers", "source")

    def __init__(
        self, package: str, name: str, source: str, ops: str, remembers: bool = False, chains: bool = True
    ) -> None:
        self.name, self.source, self.remembers, self.chains = name, f"{package}.{source}", remembers, chains
        self.ops = frozenset((domain, op) for domain, _, op in (entry.rpartition(".") for entry in ops.split()))
        self._kernel: Kernel | None = None

    @property
    def kernel(self) -> Kernel:
        """The kernel itself."""
        if self._kernel is None:
            module, _, attribute = self.source.rpartition(".")
            factory: Any = getattr(import_module(module), attribute)
            self._kernel = cast(Kernel, factory() if isinstance(factory, type) else factory)
        return self._kernel

    def serves(self, node: Node) -> bool:
        return (anchor(node) if self.chains else (node.domain, node.op)) in self.ops

    def select(self, request: KernelRequest) -> Choice | Declined:
        return self.kernel.select(request)

    def prepare(self, args: KernelArgs) -> Call:
        return self.kernel.prepare(args)


def itself(kernel: Kernel) -> Kernel:
    """The kernel that one stands for, imported if it was not yet."""
    return kernel.kernel if isinstance(kernel, LazyKernel) else kernel

"""Blocks: the parts of networks written in Python. They own parameters and other blocks, and compute in `forward`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

from .. import nd
from ..nd.array import Array
from ..nd.place import Place
from ..ops.arguments import check_arguments
from ..ops.errors import InputError
from .initializer import Initializer
from .names import OURS
from .parameter import Parameter

_HERE = f"{__package__}."
Hook = Callable[..., Any]
# What blocks keep for themselves: no part of what forward computes with.
OWN = {
    "_children",
    "_params",
    "_before",
    "_after",
    "_active",
    "_fullgraph",
    "_imperative",
    "_traces",
    "_broken",
    "_cuts",
    "_seconds",
    "_forms",
    "_policy",
}


class Block:
    """Base of blocks: subclass it, assign parameters and blocks to attributes, and write `forward`.

    >>> from mezzo.gluon import nn
    >>> class Twice(Block):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.dense = nn.Dense(3)
    ...     def forward(self, x):
    ...         return self.dense(x) * 2
    >>> net = Twice().initialize("ones")
    >>> net(nd.ones((1, 2))).asnumpy()
    array([[4., 4., 4.]], dtype=float32)
    >>> list(net.collect_params())
    ['dense.weight', 'dense.bias']
    """

    def __new__(cls, *_: Any, **given: Any) -> Self:
        if given and cls.__module__.startswith(_HERE):
            check_arguments(cls, given, OURS)
        return super().__new__(cls)

    def __init__(self) -> None:
        self._children: dict[str, Block] = {}
        self._params: dict[str, Parameter] = {}
        self._before: list[Hook] = []
        self._after: list[Hook] = []

    def __setattr__(self, name: str, value: Any) -> None:
        children, params = self.__dict__.get("_children"), self.__dict__.get("_params")
        if isinstance(value, Block | Parameter) and children is None:
            raise InputError(
                f"{type(self).__name__} owns {name!r} before it is a block",
                where=type(self).__name__,
                hint="call super().__init__() first",
            )
        if children is not None and params is not None:
            children.pop(name, None)
            params.pop(name, None)
            if isinstance(value, Block):
                children[name] = value
            elif isinstance(value, Parameter):
                params[name] = value
        super().__setattr__(name, value)

    def register_child(self, block: Block, name: str | None = None) -> None:
        """Own a block under a name, its number if none is given."""
        self._children[str(len(self._children)) if name is None else name] = block

    def forward(self, *args: Any, **options: Any) -> Any:
        """Compute the block. Raises InputError if the subclass does not define it."""
        name = type(self).__name__
        gluon1 = hasattr(self, "hybrid_forward")
        raise InputError(
            f"{name} has no forward",
            where=name,
            hint="hybrid_forward(self, F, x) is now forward(self, x): mz.nd stands for F, traced or not"
            if gluon1
            else "write forward(self, ...), which takes and returns arrays",
        )

    def __call__(self, *args: Any, **options: Any) -> Any:
        for hook in self._before:
            hook(self, args)
        result = self.forward(*args, **options)
        for hook in self._after:
            hook(self, args, result)
        return result

    def register_forward_pre_hook(self, hook: Hook) -> Hook:
        """Have `hook(block, inputs)` called before each forward."""
        self._before.append(hook)
        return hook

    def register_forward_hook(self, hook: Hook) -> Hook:
        """Have `hook(block, inputs, outputs)` called after each forward."""
        self._after.append(hook)
        return hook

    # -- parameters ---------------------------------------------------------------------------------------------------

    def named_blocks(self, prefix: str = "") -> Iterator[tuple[str, Block]]:
        """Yield this block and all blocks below, each once, with the path of attributes that leads to it."""
        seen: set[int] = set()
        todo: list[tuple[str, Block]] = [(prefix, self)]
        while todo:
            path, block = todo.pop()
            if id(block) in seen:
                continue
            seen.add(id(block))
            yield path, block
            todo += [(f"{path}{n}.", child) for n, child in reversed(block._children.items())]

    def collect_params(self, select: str | None = None) -> dict[str, Parameter]:
        """Return all parameters by the path that leads to them; a shared one has its first path. `select` is a regular
        expression that names have to match."""
        params: dict[str, Parameter] = {}
        seen: set[int] = set()
        for path, block in self.named_blocks():
            for name, p in block._params.items():
                if id(p) not in seen and (select is None or re.match(select, path + name)):
                    seen.add(id(p))
                    params[path + name] = p
        return params

    def initialize(
        self,
        init: Initializer | str | None = None,
        ctx: Place | str | None = None,
        force_reinit: bool = False,
    ) -> Self:
        """Make all parameters: by their own initialisers, else by `init` (uniform in [-0.07, 0.07) if none is given).
        Shapes that are open wait for the first input."""
        for name, p in self.collect_params().items():
            p.name = name
            p.initialize(None, ctx, default_init="uniform" if init is None else init, force_reinit=force_reinit)
        return self

    def zero_grad(self) -> None:
        """Set all gradients to zero."""
        for p in self.collect_params().values():
            p.zero_grad()

    def cast(self, dtype: Any) -> Self:
        """Let all parameters be of another element type."""
        for p in self.collect_params().values():
            p.cast(dtype)
        return self

    def apply(self, function: Callable[[Block], Any]) -> Self:
        """Call a function with each block below, then with this one."""
        for child in self._children.values():
            child.apply(function)
        function(self)
        return self

    def hybridize(self, active: bool = True, **how: Any) -> Self:
        """Have the hybrid blocks below trace what they compute: see HybridBlock."""
        for child in self._children.values():
            child.hybridize(active, **how)
        return self

    def save_parameters(self, path: str | os.PathLike[str]) -> None:
        """Write all parameters to a file (.safetensors or .npz), by name."""
        nd.save(path, {n: p.data().detach() for n, p in self.collect_params().items()})

    def load_parameters(
        self, path: str | os.PathLike[str], *, allow_missing: bool = False, ignore_extra: bool = False
    ) -> Self:
        """Take the numbers that `save_parameters` has written. Raises InputError naming all that is missing or unknown,
        ModelError for a file that cannot be read."""
        stored = nd.load(path)
        assert isinstance(stored, Mapping)
        mine = self.collect_params()
        missing, extra = [n for n in mine if n not in stored], [n for n in stored if n not in mine]
        told = [f"the file lacks {n!r}" for n in missing if not allow_missing]
        told += [f"the block has no {n!r}" for n in extra if not ignore_extra]
        if told:
            raise InputError("; ".join(told), where=str(path), hint="allow_missing=, ignore_extra=")
        for name in mine.keys() - missing:
            mine[name].name = name
            mine[name].set_data(stored[name])
        return self

    # -- pictures -----------------------------------------------------------------------------------------------------

    def __repr__(self) -> str:
        if not self._children:
            return f"{type(self).__name__}({self.extra()})"
        inside = "".join(f"\n  ({n}): " + repr(c).replace("\n", "\n  ") for n, c in self._children.items())
        return f"{type(self).__name__}({inside}\n)"

    def extra(self) -> str:
        """Return the block's own part of its representation, without its children."""
        return ""

    def summary(self, *inputs: Array) -> str:
        """A table of all blocks with the shapes that they answer for these inputs, and how many numbers they own."""
        rows: list[tuple[str, str, int]] = []
        hooks: list[tuple[Block, Hook]] = []
        for path, block in self.named_blocks():

            def note(b: Block, _: Any, result: Any, path: str = path) -> None:
                shapes = [tuple(y.shape) for y in (result if isinstance(result, tuple | list) else [result])]
                own = sum(p.data().size for p in b._params.values())
                name = path.rstrip(".") or "(the whole)"
                rows.append((f"{name} {type(b).__name__}", ", ".join(map(str, shapes)), own))

            hooks.append((block, block.register_forward_hook(note)))
        try:
            self(*inputs)
        finally:
            for block, hook in hooks:
                block._after.remove(hook)
        total = sum(p.data().size for p in self.collect_params().values())
        lines = [f"{name:<44}{shape:<32}{own:>12}" for name, shape, own in rows]
        return "\n".join([f"{'block':<44}{'output':<32}{'numbers':>12}", *lines, f"{'in all':<76}{total:>12}"])

"""Methods of symbols that shapes, files and executors give them, attached to the class once those are there."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

from ..runtime.files import replace_file
from . import binding, operators, standard
from .executor import Executor
from .expression import Shapes
from .memory import Memory, memory
from .shapes import shapes_of
from .symbol import Symbol
from .text import written


class SymbolMethods:
    """Methods of `Symbol`. `self` is a symbol; it is Any where a function asks for one."""

    __slots__ = ()

    def __getattr__(self: Any, name: str) -> Callable[..., Symbol]:
        """Operators and layers as methods, so that they can be chained: `x.FullyConnected(num_hidden=10).Softmax()`."""
        if not name[:1].isupper():
            raise AttributeError(name)
        function = operators.find(name)
        return lambda *others, **attrs: function(self, *others, **attrs)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The functions that take symbols as those of the array API standard take arrays."""
        return standard

    # -- shapes, memory, files, execution -----------------------------------------------------------------------------

    def infer_shape(self: Any, **shapes: Sequence[int]) -> tuple[Shapes, Shapes, Shapes]:
        """The shapes of arguments, outputs and auxiliary states, from those of some arguments (0: open).

        Raises ShapeError where they do not fit, with the chain of operators that leads there, and InputError naming all
        that stays open.
        """
        return shapes_of(self, shapes, complete=True)

    def infer_shape_partial(self: Any, **shapes: Sequence[int]) -> tuple[Shapes, Shapes, Shapes]:
        """`infer_shape` that answers None for what stays open."""
        return shapes_of(self, shapes, complete=False)

    def memory(self: Any, *, train: bool = False, grad_req: Any = "write", **shapes: Sequence[int]) -> Memory:
        """The bytes that an executor for these shapes takes, exactly: they are planned, not guessed."""
        return memory(self, shapes, train, grad_req)

    def tojson(self: Any) -> str:
        """The expression as text; `load_json` reads it."""
        return written(self)

    def save(self: Any, path: str | os.PathLike[str]) -> None:
        """Write `tojson` to a file, which is replaced as a whole."""
        replace_file(path, [self.tojson().encode()])

    def simple_bind(
        self: Any, ctx: Any = None, grad_req: Any = "write", group2ctx: Any = None, **shapes: Sequence[int]
    ) -> Executor:
        """An executor with arrays of its own (zeros) for these shapes of the inputs. `grad_req` is "write", "add" or
        "null", for all arguments or by name. `group2ctx` has the devices of groups (`mx.AttrScope(ctx_group=...)`):
        their operators and arrays are there, others' arrays on `ctx`, others' operators near what they read.

        Raises InputError naming at once all that is missing or unknown, ShapeError where shapes do not fit.
        """
        return binding.simple_bind(self, ctx, grad_req, shapes, group2ctx)

    def bind(
        self: Any,
        ctx: Any = None,
        args: Any = None,
        args_grad: Any = None,
        grad_req: Any = "write",
        aux_states: Any = None,
        group2ctx: Any = None,
    ) -> Executor:
        """An executor over arrays that are given: by name, or in the order of `list_arguments`. Gradients of arguments
        without an array in `args_grad` are not computed, if `args_grad` is given. `group2ctx` is that of `simple_bind`;
        arrays are read and written where they lie.

        Raises InputError naming at once all that is missing or unknown, with the nearest names.
        """
        return binding.bind(self, ctx, args, args_grad, grad_req, aux_states, group2ctx)

    def eval(self: Any, ctx: Any = None, **args: Any) -> list[Any]:
        """Bind, run forward once, and return the outputs."""
        return binding.bind(self, ctx, args, None, "null", None).forward()


def attach() -> None:
    """Give the class its methods."""
    for name, member in vars(SymbolMethods).items():
        if isinstance(member, FunctionType):
            setattr(Symbol, name, member)

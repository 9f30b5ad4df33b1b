"""Executors: a symbol with its arrays, run by the engine in the order in which the arrays are read and written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..nd import Place
from ..nd.array import Array
from ..nd.compiled import CompiledFunction, initial_value
from ..nd.random import generator
from ..nd.recording import RECORDING
from ..nd.running import as_array, assign, inplace, memory, one_place
from ..ops.errors import InputError
from .arrays import Arrays
from .expression import Use, makers, variables
from .names import check_names
from .programs import RunMode, gradient_of, lossless, program
from .symbol import Symbol
from .typed import Typed

TOGETHER = RunMode(train=True, gradients="state")


class Executor:
    """Arrays bound to a symbol. Made by `Symbol.bind` and `Symbol.simple_bind`.

    `arg_dict`, `grad_dict` and `aux_dict` are its arrays by name, `outputs` those of the latest run. Runs return before
    they are computed, and are ordered with everything else that touches these arrays.

    >>> import numpy as np
    >>> from mezzo import sym
    >>> net = sym.Variable("data").FullyConnected(num_hidden=2, name="fc").SoftmaxOutput(name="softmax")
    >>> net = net.simple_bind(data=(4, 3))
    >>> net.forward_backward(data=np.ones((4, 3), np.float32), softmax_label=np.zeros(4, np.float32))
    >>> net.grad_dict["fc_bias"].asnumpy()
    array([-2.,  2.], dtype=float32)
    >>> net.w -= 0.1 * net.g
    >>> net.arg_dict["fc_bias"].asnumpy()
    array([ 0.2, -0.2], dtype=float32)
    """

    def __init__(
        self,
        symbol: Symbol,
        inferred: Typed,
        args: dict[str, Array],
        grads: dict[str, Array],
        wanted: Mapping[str, str],
        states: dict[str, Array],
        place: Place,
        groups: Mapping[str, Place] | None = None,
    ) -> None:
        self.symbol, self.place = symbol, place
        asked = {m.group for m in makers(symbol.entries) if isinstance(m, Use)}
        self._groups = {name: where for name, where in (groups or {}).items() if name in asked}
        self.arg_dict, self.grad_dict, self.aux_dict = args, grads, states
        self.outputs: list[Array] = []
        self._inferred, self._wanted = inferred, wanted
        self._functions: dict[RunMode, CompiledFunction] = {}
        learnt = {v.name for v in variables(symbol.entries) if v.init}
        self._learnt = [n for n in grads if n in learnt]
        self._held: list[Array] | None = None  # gradients of the latest forward run, until `backward` wants them
        self._drawn: tuple[int, ...] | None = None  # what the random numbers of the latest run began with
        self._trained = False
        self._function(RunMode())  # what is wrong with the graph is said here

    @property
    def arg_arrays(self) -> list[Array]:
        return list(self.arg_dict.values())

    @property
    def grad_arrays(self) -> list[Array | None]:
        return [self.grad_dict.get(n) for n in self.arg_dict]

    @property
    def aux_arrays(self) -> list[Array]:
        return list(self.aux_dict.values())

    @property
    def output_dict(self) -> dict[str, Array]:
        """The outputs of the latest run by name."""
        return dict(zip(self.symbol.list_outputs(), self.outputs, strict=bool(self.outputs)))

    @property
    def w(self) -> Arrays:
        """The arguments that are learnt: those with an initialiser and a gradient. Arithmetic goes array by array."""
        return Arrays({n: self.arg_dict[n] for n in self._learnt})

    @w.setter
    def w(self, value: Arrays) -> None:
        _same_arrays(value, self.arg_dict)  # `net.w -= ...` ends here; the arrays have changed already

    @property
    def g(self) -> Arrays:
        """The gradients of `w`, under the same names."""
        return Arrays({n: self.grad_dict[n] for n in self._learnt})

    def forward(self, is_train: bool = False, **data: Any) -> list[Array]:
        """Run; `data` are new numbers for arguments. In training mode `backward` may follow.

        Raises InputError for names and shapes that do not fit.
        """
        self._feed(data)
        self._held, self._trained = None, is_train
        if not is_train:
            self.outputs = self._run(RunMode())
        elif not self.grad_dict or lossless(self.symbol):  # `backward` will be told the gradients of the outputs
            self.outputs = self._run(RunMode(train=True))
        else:
            results = self._run(RunMode(train=True, gradients="output"))
            self.outputs, self._held = results[: len(self.symbol)], results[len(self.symbol) :]
        return self.outputs

    def backward(self, out_grads: Any = None) -> None:
        """The gradients of the latest `forward(is_train=True)`, into the arrays of `grad_dict`.

        `out_grads` are those of the outputs, which outputs without a loss need. Raises InputError where they are
        missing, or nothing was run.
        """
        if not self._trained:
            raise InputError("nothing to go back through", where="backward", hint="run forward(is_train=True) before")
        if out_grads is None and self._held is None:
            if self.grad_dict:
                raise InputError(
                    f"the gradients of {', '.join(lossless(self.symbol))} are needed, which have no loss",
                    where="backward",
                    hint="backward([gradients of the outputs])",
                )
            return
        gradients = self._held
        if out_grads is not None:
            heads = out_grads if isinstance(out_grads, list | tuple) else [out_grads]
            mode = RunMode(train=True, keep=False, gradients="output", heads=True)
            gradients = self._run(mode, [as_array(h, self.place) for h in heads], again=True)[len(self.symbol) :]
        for (name, into), found in zip(self.grad_dict.items(), gradients or (), strict=True):
            gradient = found if found.device is into.device else found.to_device(into.device)
            if self._wanted[name] == "add":
                inplace("Add", into, gradient)
            else:
                assign(into, gradient)

    def forward_backward(self, **data: Any) -> None:
        """Run forward and backward in one program: gradients are written in place. Outputs without a loss count with
        their sum."""
        self._feed(data)
        self._held, self._trained = None, False
        self.outputs = self._run(TOGETHER)

    def reshape(self, **shapes: Sequence[int]) -> Executor:
        """An executor for other shapes of the inputs; what keeps its shape is shared."""
        executor = self.symbol.simple_bind(self.place, dict(self._wanted), group2ctx=self._groups, **shapes)
        for mine, other in ((self.arg_dict, executor.arg_dict), (self.grad_dict, executor.grad_dict),
                            (self.aux_dict, executor.aux_dict)):  # fmt: skip
            other.update({n: a for n, a in mine.items() if n in other and a.shape == other[n].shape})
        executor._functions.clear()
        return executor

    def copy_params_from(self, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any] | None = None) -> None:
        """Take numbers for arguments and auxiliary states. Raises InputError for names that there are not."""
        for given, held in ((arg_params, self.arg_dict), (aux_params or {}, self.aux_dict)):
            check_names(given, list(held), "copy_params_from", self.symbol.name, complete=False)
            for name, value in given.items():
                self._assign(name, held[name], value)

    # -- running ------------------------------------------------------------------------------------------------------

    def _feed(self, data: Mapping[str, Any]) -> None:
        check_names(data, list(self.arg_dict), "run", self.symbol.name, complete=False)
        for name, value in data.items():
            self._assign(name, self.arg_dict[name], value)

    def _assign(self, name: str, into: Array, value: Any) -> None:
        given = as_array(value, into.device)
        if self._groups and given.device is not into.device:
            given = given.to_device(into.device)
        if given.shape != into.shape:
            raise InputError(
                f"{name!r} is {into.dtype}{list(into.shape)}, and is given {list(given.shape)}",
                where=f"run of {self.symbol.name}",
                hint="simple_bind for this shape, or reshape",
            )
        assign(into, given)

    def _function(self, mode: RunMode) -> CompiledFunction:
        """The function of one way to run, over the arrays where they lie."""
        known = self._functions.get(mode)
        if known is not None:
            return known
        held = {**self.arg_dict, **self.aux_dict}
        if mode.gradients == "state":
            held |= {gradient_of(n): a for n, a in self.grad_dict.items()}
        firsts = {n: _initial_value(n, a) for n, a in held.items()}
        lie = {n: named(a.device) for n, a in held.items()} if self._groups else {}
        devices = {name: named(place) for name, place in self._groups.items()}
        graph = program(self.symbol, self._inferred, mode, firsts, self._wanted, devices, lie)
        states = {s.input: held[s.input] for s in graph.states}
        place = self.place if graph.devices else one_place("an executor", [*held.values()])
        function = self._functions[mode] = CompiledFunction(graph, self.symbol.name, place, states)
        return function

    def _run(self, mode: RunMode, heads: Sequence[Array] = (), again: bool = False) -> list[Array]:
        """Ask the engine for a run. `again` draws the random numbers of the latest run once more."""
        if RECORDING.trace is not None:
            RECORDING.trace.broke("an executor runs", "make it a block (SymbolBlock), or keep this part imperative")
        function = self._function(mode)
        if not again:
            self._drawn = generator(self.place).advance() if function.draws else None
        return function(heads, self._drawn)


def named(place: Place) -> str:
    """The name of a place as placements have it, with the number of a processor too."""
    return f"{place.name}:{place.index}"


def _initial_value(name: str, array: Array) -> Any:
    """The initial value of an array as a state. Raises InputError for a part of another one."""
    own = memory(array)
    if not (own.flags.c_contiguous and getattr(own.flags, "writeable", True)):
        raise InputError(f"{name!r} is a part of another array", where="bind", hint="bind a copy: array.copy()")
    return initial_value(array)


def _same_arrays(value: Any, held: Mapping[str, Array]) -> None:
    if not isinstance(value, Arrays) or any(a is not held.get(n) for n, a in value.items()):
        raise InputError("w is changed in place", where="Executor.w", hint="net.w -= rate * net.g, or copy_params_from")

"""Steps of a program as their PTX runs them: compiled by NVRTC for an architecture, and interpreted.

made = compiled([launch.source for ...], "sm_90")    # kernels by name
outputs = interpreted(run, made, seed=0)             # arrays, as cuda_shim.py gives them; Fault says what is wrong
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from mezzo.ops import Context, Tensor
from mezzo.ops.math.random import words_of
from mezzo.runtime.backends.cuda import nvrtc
from mezzo.runtime.backends.cuda.launch import In, Launch, LaunchKey, Out, Scratch, Source

from ..cuda_shim import Array, Run, logical, physical
from .arithmetic import Unknown
from .machine import Machine
from .memory import BASE, Fault, Space
from .parse import Body, Module, Variable, parse
from .registers import Shape, units_of

TOGETHER = 8192  # threads that run at once


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel with the variables of its module."""

    body: Body
    variables: tuple[Variable, ...]


def ptx_of(sources: Sequence[Source], arch: str) -> str:
    """The PTX of these kernels, in one module."""
    binding, text = nvrtc._binding(), nvrtc.joined(sources)
    options = (
        f"--gpu-architecture={arch.replace('sm_', 'compute_')}",
        *nvrtc.OPTIONS,
        *(f"-I{p}" for p in nvrtc.headers()[:1]),
    )
    program = binding.createProgram(text, "mezzo.cu", (), ())
    try:
        binding.compileProgram(program, options)
        made = binding.getPTX(program)
        return made if isinstance(made, str) else made.decode()
    finally:
        binding.destroyProgram(program)


def compiled(sources: Iterable[Source], arch: str) -> dict[str, Kernel]:
    """Kernels of these sources, by their names."""
    each = list({s.name: s for s in sources}.values())
    made = dict[str, Kernel]()
    for i in range(0, len(each), nvrtc.TOGETHER):
        made |= kernels_of(parse(ptx_of(each[i : i + nvrtc.TOGETHER], arch)))
    return made


def kernels_of(module: Module) -> dict[str, Kernel]:
    return {name: Kernel(body, tuple(module.variables)) for name, body in module.kernels.items()}


def census(kernels: Iterable[Kernel]) -> Counter[str]:
    """How often each instruction stands in kernels."""
    return Counter(i.name for k in kernels for i in k.body.code)


class Arena:
    """Global memory with buffers at places that nobody knows beforehand, and nothing between them."""

    def __init__(
        self, sizes: Sequence[tuple[int, bool, bytes | None]], constants: Sequence[Variable], unit: int, rng: Any
    ) -> None:
        self.places: list[int] = []
        at = 256
        order = rng.permutation(len(sizes))
        places = dict[int, int]()
        for i in order.tolist():
            at += int(rng.integers(1, 4)) * 64
            places[i] = at
            at = -(-(at + sizes[i][0]) // 64) * 64
        self.constants = dict[str, int]()
        for v in constants:
            at = -(-at // 64) * 64 + 64
            self.constants[v.name] = at + BASE
            at += v.nbytes
        self.space = Space("global", at + 256, unit, 32, BASE)
        for i, (nbytes, writable, held) in enumerate(sizes):
            self.space.allow(places[i], nbytes, writable, held)
            self.places.append(places[i])
        for v in constants:
            held = v.initial or bytes(v.nbytes)  # tables, which no kernel writes
            self.space.allow(self.constants[v.name] - BASE, v.nbytes, False, held)

    def read(self, i: int, nbytes: int) -> Array:
        begin = self.places[i]
        return self.space.bytes[begin : begin + nbytes]

    def known(self, i: int, nbytes: int) -> bool:
        unit, begin = self.space.unit, self.places[i]
        return bool(self.space.defined[begin // unit : (begin + nbytes) // unit].all())


def interpreted(
    run: Run, kernels: Mapping[str, Kernel], seed: int = 0, groups: int = 2, places: Mapping[int, int] | None = None
) -> list[Array]:
    """The outputs of a run, its outputs in place of inputs where `places` says so. Raises Fault."""
    asked, written, rng, places = run.request, run.written, np.random.default_rng(seed), places or {}
    key = np.array(words_of(Context().key, asked.node.attrs.get("seed")), np.uint32).tobytes()
    inputs, outputs = list(asked.inputs), list(asked.results)
    sizes: list[tuple[int, bool, bytes | None]] = []
    for i, (x, known) in enumerate(zip(run.inputs, inputs, strict=True)):
        held = b"" if x is None or not isinstance(known, Tensor) else physical(np.asarray(x), known)
        sizes.append((len(held), i in places.values(), held))
    for i, made in enumerate(outputs):
        sizes.append((made.nbytes if isinstance(made, Tensor) and i not in places else 0, True, None))
    sizes += [(written.workspace, True, None), (8, False, key)]
    bodies = [kernels[launch.source.name] for launch in written.launches]
    constants = {v.name: v for k in bodies for v in k.variables if v.space in ("global", "const")}
    unit = min([units_of(k.body)["global"] for k in bodies], default=1)
    arena = Arena(sizes, list(constants.values()), unit, rng)
    for launch in written.launches:
        where = []
        for operand in launch.operands:
            match operand:
                case np.generic():
                    where.append(operand)
                    continue
                case In(i):
                    place = arena.places[i]
                case Out(i):
                    place = arena.places[places[i] if i in places else len(inputs) + i]
                case Scratch(offset):
                    place = arena.places[len(inputs) + len(outputs)] + offset
                case LaunchKey():
                    place = arena.places[-1]
            where.append(np.uint64(BASE + place))
        try:
            run_launch(kernels[launch.source.name], launch, where, arena, rng, groups)
        except (Fault, Unknown) as error:
            raise type(error)(f"{launch}: {error}") from error
    found = []
    for i, made in enumerate(outputs):
        if not isinstance(made, Tensor):  # nobody wants it
            continue
        at = places[i] if i in places else len(inputs) + i
        if not arena.known(at, made.nbytes):
            raise Fault(f"{' + '.join(map(str, written.launches))}: output {i} is not written everywhere")
        found.append(logical(arena.read(at, made.nbytes), made))
    return found


def run_launch(kernel: Kernel, launch: Launch, arguments: Sequence[Any], arena: Arena, rng: Any, groups: int) -> int:
    """One launch; the number of instructions that were executed for many threads at once."""
    shape = Shape(launch.grid, launch.block, launch.shared)
    across = -(-prod(launch.block) // 32) * 32
    arena.space.across = across
    arena.space.begin_launch()
    blocks = prod(launch.grid)
    several = max(1, TOGETHER // across)
    numbers, executed = rng.permutation(blocks), 0
    shared = [v for v in kernel.variables if v.space == "shared"]
    for begin in range(0, blocks, several):
        machine = Machine(
            kernel.body, shape, arguments, arena.space, arena.constants, shared, numbers[begin : begin + several], rng
        )
        machine.run(groups if across * min(several, blocks) > 32 else 1)
        executed += machine.executed
    return executed

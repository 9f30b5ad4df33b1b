"""Recurrent networks: the steps of a scan as launches, with the states between them in workspace.

A block has some units of some sequences. Its threads share out the inner axis of the products: neighbours take
neighbouring columns of the weights, which are read once for all sequences of the block, and the threads' sums are added
up in shared memory. A step takes as many launches as it has phases (see steps.py): one for LSTM and RNN, two for GRU.
Where the weights are so small that one multiprocessor holds them, a block has all units of its sequences and goes
through all steps in one launch; a launch takes longer than such a step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ....ops import Tensor
from ....ops.core.lowered import lower
from ...compile.kernel import Declined, KernelRequest, listed
from .generated import ALL, Generated
from .launch import In, Launch, Operand, Out, Scratch, Written
from .source import Unwritten, element_of, write
from .steps import Dot, Phase, Place, Steps
from .text import THREADS, Element, each, launch, reads, writes

BLOCKS = 132  # that keep a large device busy
RESIDENT = 128 << 10  # bytes of weights that stay near a multiprocessor
TOGETHER = 8  # sequences of a block at most
SHARED = 48 << 10  # bytes of shared memory that every device gives without being asked
LAUNCHES = 2048  # of one step at most: more steps go into one launch


class Recurrence(Generated):
    """`mezzo.Recurrence` whose states are matrices: see `Steps` for what its links may be."""

    name = "gpu.recurrence"
    operators = listed("mezzo::Recurrence")
    spares = ALL

    def write(self, request: KernelRequest) -> Written | Declined:
        every = [*request.inputs, *request.outputs]
        if not all(isinstance(t, Tensor) and t.static for t in every):
            return Declined("an operand is no tensor of numbers, or its sizes are not known")
        sizes = [t.elements or 0 for t in every if isinstance(t, Tensor)]
        if max(sizes) >= 2**31:
            return Declined("too many elements for 32-bit indices")
        steps = Steps(request)
        return Written((), 0) if not steps.batch else _Text(steps).written()


class _Text:
    """Writer of the source of the steps."""

    def __init__(self, steps: Steps) -> None:
        self.steps, self.e = steps, element_of(steps.kind)
        self.size = self.e.dtype.itemsize
        self.most = max(len(p.dots) for p in steps.phases)
        weights = sum(d.inner * steps.units * self.size for p in steps.phases for d in p.dots)
        launches = steps.steps * len(steps.phases)
        self.through = weights <= RESIDENT or launches > LAUNCHES
        fits = SHARED // (THREADS * self.size * max(self.most, 1))
        if not fits:
            raise Unwritten(f"{self.most} products at once")
        spread = max(1, steps.batch // BLOCKS) if self.through else steps.batch
        self.together = min(TOGETHER, fits, spread)
        groups = -(-steps.batch // self.together)
        wide = [u for u in (32, 16, 8) if self.through or -(-steps.units // u) * groups >= BLOCKS]
        self.wide = wide[0] if wide else 8
        while self.through and self.wide > 8 and self.wide // 2 >= steps.units:
            self.wide //= 2
        self.deep = THREADS // self.wide
        self.groups, self.tiles = groups, -(-steps.units // self.wide)
        self.before: dict[str, None] = {}  # functions, each once
        names = steps.request.node.outputs
        self.wanted = [i < len(names) and bool(names[i]) for i in range(steps.states + len(self._made))]

    @property
    def _made(self) -> Sequence[int]:
        """The numbers of what is made in each step."""
        numbers: Sequence[int] = self.steps.request.node.attrs["made"]
        return numbers

    def written(self) -> Written:
        steps = self.steps
        if not steps.steps:
            return Written(tuple(self._carried()))
        sizes = [2 * steps.width(i) for i in range(steps.states)] + [n * steps.units for n in steps.kept]
        sizes += [steps.steps * steps.width(self._made[i]) for i in self._unread()]
        places, offset = [], 0
        for n in sizes:
            places.append(offset)
            offset += -(-n * steps.batch * self.size // 64) * 64
        parameters = list(self._parameters(places))
        if self.through:
            body = [f"for (int step = 0; step < {steps.steps}; ++step) {{", *self._pointers()]
            for phase in steps.phases:
                body += [f"for (int tile = 0; tile < {self.tiles}; ++tile) {{", *self._phase(phase), "}"]
            text = "\n".join([*self._begin("blockIdx.x", self.most), *body, "}"])
            all_steps = launch("recurrence", parameters, text, self.groups, before="".join(self.before))
            return Written((all_steps,), offset)
        launches = []
        for phase in steps.phases:
            self.before.clear()
            head = self._begin(f"blockIdx.x / {self.tiles}", len(phase.dots))
            tile = f"const int tile = blockIdx.x % {self.tiles};"
            body = [*head, tile, *self._pointers(), *self._phase(phase)]
            with_step = [*parameters, ("const int", "step", np.int32(0))]
            blocks = self.groups * self.tiles
            launches.append(launch("recurrence_step", with_step, "\n".join(body), blocks, before="".join(self.before)))
        listed = [
            replace(step, operands=(*step.operands[:-1], np.int32(t))) for t in range(steps.steps) for step in launches
        ]
        return Written(tuple(listed), offset)

    def _carried(self) -> Iterator[Launch]:
        """Yield the launches for no steps: the states are copied."""
        for i in filter(self.wanted.__getitem__, range(self.steps.states)):
            count = self.steps.batch * self.steps.width(i)
            parameters = [reads(self.e, "x", In(i)), writes(self.e, "y", Out(i))]
            yield each("carried", parameters, (count,), "y[i] = x[i];")

    def _parameters(self, places: Sequence[int]) -> Iterator[tuple[str, str, Operand]]:
        """Yield all parameters; memory that the kernel writes itself may not be read through another cache."""
        steps = self.steps
        for i, known in enumerate(steps.request.inputs):
            assert isinstance(known, Tensor)
            kind = element_of(known.dtype)
            yield (f"const {kind.stored}*", f"x{i}", In(i)) if i < steps.states else reads(kind, f"x{i}", In(i))
        for i, wanted in enumerate(self.wanted):
            if wanted:
                yield f"{self.e.stored}*", f"y{i}", Out(i)
        names = [f"state{i}" for i in range(steps.states)] + [f"kept{i}" for i in range(len(steps.kept))]
        names += [f"y{i + steps.states}" for i in self._unread()]
        for name, offset in zip(names, places, strict=True):
            yield f"{self.e.stored}*", name, Scratch(offset)

    def _unread(self) -> list[int]:
        """Return the values that each step computes and no output needs: they are in the workspace."""
        return [i for i in range(len(self._made)) if not self.wanted[i + self.steps.states]]

    def _begin(self, group: str, dots: int) -> list[str]:
        return [
            f"const int unit = threadIdx.x % {self.wide}, slice = threadIdx.x / {self.wide};",
            f"const int first = {group} * {self.together};",
            *([f"__shared__ {self.e.wide} shares[{dots * self.together}][{THREADS}];"] if dots else []),
        ]

    def _pointers(self) -> list[str]:
        """Return the pointers to the rows of this step, and to the states before and after it."""
        steps, attrs, lines = self.steps, self.steps.request.node.attrs, []
        last = steps.steps - 1
        for i in range(steps.states):
            count = steps.batch * steps.width(i)
            end = f"step == {last} ? y{i} : " if self.wanted[i] else ""
            lines += [
                f"const {self.e.stored}* now{i} = step ? state{i} + (step & 1) * {count} : x{i};",
                f"{self.e.stored}* next{i} = {end}state{i} + (step + 1 & 1) * {count};",
            ]
        ways = attrs.get("backwards") or (0,) * steps.rows
        for i, back in enumerate(ways, steps.states):
            count = steps.width(i) * self._lead(i)
            kind = element_of(steps.types[i].dtype)
            lines.append(f"const {kind.stored}* __restrict__ row{i} = x{i} + (long long){self._time(back)} * {count};")
        numbers = self._made
        for i, back in enumerate(attrs.get("behind") or (0,) * len(numbers)):
            count = steps.batch * steps.width(numbers[i])
            place = f"y{i + steps.states} + (long long){self._time(back)} * {count}"
            lines.append(f"{self.e.stored}* made{i} = {place};")
        return lines

    def _time(self, back: int) -> str:
        return f"({self.steps.steps - 1} - step)" if back else "step"

    def _lead(self, i: int) -> int:
        """Return the number of rows of an input in a step: the batch, or 1 if all share it."""
        known = self.steps.types[i]
        count: int = known.sizes[0] if known.rank == 2 else 1
        return count

    def _phase(self, phase: Phase) -> list[str]:
        """The products and stores of a block's units and sequences."""
        steps, kind = self.steps, self.e.wide
        text = [f"const int j = tile * {self.wide} + unit;"]
        if phase.dots:
            text += self._products(phase)
        lowered = lower([tree for _, tree in phase.stores], len(steps.leaves))
        names = [""] * len(steps.leaves)
        lines = []
        for n in lowered.reads:
            leaf, names[n] = steps.leaves[n], f"v{n}"
            if isinstance(leaf, Dot):
                at = f"shares[{phase.dots.index(leaf) * self.together} + r]"
                lines.append(f"{kind} v{n} = 0;")
                lines.append(f"for (int q = 0; q < {self.deep}; ++q) v{n} += {at}[q * {self.wide} + unit];")
            else:
                known = self._kind(leaf)
                lines.append(f"const {known.wide} v{n} = {known.read(self._at(leaf))};")
        code = write(lowered, names)
        self.before |= dict.fromkeys(code.functions.splitlines(keepends=True))
        text += [
            f"for (int r = slice; r < {self.together}; r += {self.deep}) {{",
            "    const int b = first + r;",
            f"    if (j >= {steps.units} || b >= {steps.batch}) continue;",
            *(f"    {line}" for line in (*lines, *code.lines)),
            *(f"    {self._at(place)} = {v};" for (place, _), v in zip(phase.stores, code.results, strict=True)),
            "}",
        ]
        return [*text, *(["__syncthreads();"] if self.through else [])]

    def _products(self, phase: Phase) -> list[str]:
        """Return the statements for each thread's part of the products, into shared memory."""
        kind, n = self.e.wide, self.together
        lines = [f"{kind} sums[{len(phase.dots)}][{n}] = {{}};", f"if (j < {self.steps.units}) {{"]
        for left in dict.fromkeys(d.left for d in phase.dots):
            own = [(i, d) for i, d in enumerate(phase.dots) if d.left == left]
            inner, source = own[0][1].inner, self._whole(left)
            lines.append(f"for (int k = slice; k < {inner}; k += {self.deep}) {{")
            for i, d in own:
                place = f"k * {d.columns} + {d.part * self.steps.units} + j"
                lines.append(f"    const {kind} w{i} = x{d.right}[{place}];")
            lines += [
                "    #pragma unroll",
                f"    for (int r = 0; r < {n}; ++r) {{",
                f"        const {kind} h = first + r < {self.steps.batch} ? {source}[(first + r) * {inner} + k] : 0;",
                *(f"        sums[{i}][r] += h * w{i};" for i, _ in own),
                "    }",
                "}",
            ]
        stores = [f"    shares[{i * n} + r][threadIdx.x] = sums[{i}][r];" for i in range(len(phase.dots))]
        return [*lines, "}", "#pragma unroll", f"for (int r = 0; r < {n}; ++r) {{", *stores, "}", "__syncthreads();"]

    # Places

    def _kind(self, leaf: Place) -> Element:
        return element_of(self.steps.types[leaf.index].dtype) if leaf.space == "input" else self.e

    def _whole(self, place: Place) -> str:
        if place.space == "kept":
            return f"kept{place.index}"
        if place.space in ("after", "made"):
            return f"{'next' if place.space == 'after' else 'made'}{place.index}"
        steps, i = self.steps, place.index
        return f"now{i}" if i < steps.states else f"row{i}" if i < steps.states + steps.rows else f"x{i}"

    def _at(self, place: Place) -> str:
        """An element at sequence b and unit j."""
        steps, i = self.steps, place.index
        if place.space == "kept":
            width, lead = steps.kept[i] * steps.units, steps.batch
        else:
            numbers = {"after": steps.after, "made": steps.request.node.attrs["made"]}
            number = numbers[place.space][i] if place.space in numbers else i
            width, lead = steps.width(number), steps.batch if place.space in numbers else self._lead(i)
        row = f"b * {width}" if lead > 1 or steps.batch == 1 else "0"
        unit = f" + {place.part * steps.units} + j" if width > 1 or steps.units == 1 else ""
        return f"{self._whole(place)}[{row}{unit}]"

"""Batch normalisation in training, and its gradient: the sums of channels in one launch, or in two where several blocks
share a channel, and one launch for the elements.

Means and squared distances of parts are put together as in Chan, Golub and LeVeque, Updating formulae and a pairwise
algorithm for computing sample variances (Stanford STAN-CS-79-773): no sum of squares is subtracted from another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....ops import Tensor
from ....ops.dataclasses import dataclass
from ...compile.kernel import Alias, Declined, KernelRequest, listed
from ...memory.liveness import aligned
from .generated import Generated, operands
from .launch import In, Launch, Operand, Out, Scratch, Written
from .rows import BLOCKS, Rows
from .text import Element, each_wide, elements, index_type, launch, permuted, reads, strides_of, writes

Parameter = tuple[str, str, Operand]


class BatchNormalisationTraining(Generated):
    """mezzo::BatchNormalizationTrain and its gradient, in the order of axes that the input has."""

    name = "gpu.batch_training"
    operators = listed("mezzo::BatchNormalizationTrain mezzo::BatchNormalizationGrad")
    spares = (0, 1, 2)

    def write(self, request: KernelRequest) -> Written | Declined:
        gradient = request.node.op == "BatchNormalizationGrad"
        x = request.inputs[1 if gradient else 0]
        forms, *_ = operands(request)
        assert isinstance(x, Tensor)
        if any(not e.dtype.floating for e in forms) or len({e.wide for e in forms}) > 1:
            return Declined("operands are integers, or some are float64")
        if not x.elements or x.rank < 2:
            return Declined("there is nothing to take the mean of")
        layout = permuted(x)
        channels = _Channels(x.sizes, layout, forms[0].wide)
        written = _gradient(request, channels) if gradient else _training(request, channels)
        if not layout:
            return written
        images = 2 if gradient else 1
        vectors = len(request.inputs) - images, len(request.node.outputs) - 1
        layouts = (*[layout] * images, *[""] * vectors[0], layout, *[""] * vectors[1])
        return Written(written.launches, written.workspace, written.aliases, layouts)


@dataclass(frozen=True, slots=True)
class _Channels:
    """The channels of [N, C, ...] in a layout, and the number of parts of each; sums are of type `wide`."""

    sizes: tuple[int, ...]
    layout: str
    wide: str

    @property
    def rows(self) -> Rows:
        return Rows.of(self.sizes, [0, *range(2, len(self.sizes))], self.layout)

    @property
    def count(self) -> int:
        return self.sizes[1]

    @property
    def elements(self) -> int:
        """Number of elements of a channel."""
        return math.prod(self.sizes) // self.sizes[1]

    @property
    def index(self) -> str:
        return index_type(math.prod(self.sizes))

    @property
    def chunk(self) -> int:
        """Elements of a part: as many parts as keep the GPU busy, and none too small."""
        team = self.rows.team
        wanted = -(-BLOCKS * 1024 // (self.count * team))
        most = self.elements // (team * (32 if self.rows.columns else 4))
        return -(-self.elements // max(1, min(wanted, most)))

    @property
    def parts(self) -> int:
        return -(-self.elements // self.chunk)

    def number(self, value: float) -> str:
        return f"({self.wide}){float(value)!r}"

    def inverse(self, variance: str, epsilon: float) -> str:
        root = "sqrt" if self.wide == "double" else "sqrtf"
        return f"1 / {root}({variance} + {self.number(epsilon)})"

    def sums(
        self,
        family: str,
        parameters: Sequence[Parameter],
        start: Sequence[str],
        partial: Sequence[str],
        names: tuple[str, str],
        joined: Sequence[str],
        last: Sequence[str],
        outputs: Sequence[Parameter],
        used: int,
    ) -> tuple[tuple[Launch, ...], int]:
        """The launches for two numbers of each channel, and the workspace, of which `used` bytes are taken.

        `partial` makes both from the elements of a part (loops as in `loop`), `joined` from those of all parts, which
        lie in arrays `parts_NAME` at `p`, with `MANY` elements each. `last` makes the outputs of them, for channel
        `row`.
        """
        rows, wide = self.rows, self.wide
        end = f"min(({self.index}){self.elements}, first + {self.chunk})"
        body = [
            *rows.begin(),
            f"const {self.index} first = ({self.index})blockIdx.y * {self.chunk}, end = {end};",
            f"const {wide} many = ({wide})(end - first);",
            *start,
            *partial,
        ]
        grid = rows.blocks, self.parts, 1
        if self.parts == 1:
            body += ["if (lane == 0) {", *last, "}"]
            summing = launch(family, [*parameters, *outputs], "\n".join(body), grid, rows.threads)
            return (summing,), used
        step = aligned(self.parts * self.count * (8 if wide == "double" else 4))
        places = [(f"parts_{n}", Scratch(used + i * step)) for i, n in enumerate(names)]
        stores = [f"parts_{n}[row * {self.parts} + blockIdx.y] = {n};" for n in names]
        first = launch(
            f"{family}_parts",
            [*parameters, *(writes(wide, n, place) for n, place in places)],
            "\n".join([*body, "if (lane == 0) {", *stores, "}"]),
            grid,
            rows.threads,
        )
        over = Rows.of((self.count, self.parts), [1])
        many = f"const {wide} many = ({wide})min({self.chunk}, {self.elements} - j * {self.chunk});"
        body = [*over.begin()]
        for name, line in zip(names, joined, strict=True):
            term, result = line.split(" -> ")
            body += [
                f"{wide} sum_{name} = 0;",
                *over.loop(many, f"sum_{name} += {term};"),
                *over.across(wide, f"sum_{name}", f"sum_{name} + other"),
                f"const {wide} {name} = {result.format(f'sum_{name}')};",
            ]
        body += ["if (lane == 0) {", *last, "}"]
        ins = [reads(wide, n, place) for n, place in places]
        second = launch(family, [*ins, *outputs], "\n".join(body), over.blocks, over.threads)
        return (first, second), used + 2 * step

    def loop(self, *body: str) -> list[str]:
        """The body for each element of the part that is this thread's, at `p`."""
        rows = self.rows
        lines = "".join(f"    {line}\n" for line in (f"const {self.index} p = at + {rows.place('j')};", *body))
        return [f"for ({self.index} j = first + lane; j < end; j += {rows.team}) {{\n{lines}}}"]

    def across(self, name: str) -> list[str]:
        return self.rows.across(self.wide, name, f"{name} + other")

    def channel(self) -> str:
        """The number of the channel of the element that lies at `i`."""
        return f"const int c = (int)(i / {strides_of(self.sizes, self.layout)[1]} % {self.count});"


def _of(type: object) -> Element:
    forms = elements([type]) if isinstance(type, Tensor) else None
    assert forms  # `written` has looked
    return forms[0]


def _training(request: KernelRequest, ch: _Channels) -> Written:
    wide, attrs, count = ch.wide, request.node.attrs, ch.elements
    places = [i for i, o in enumerate(request.node.outputs) if o]
    outs = {i: _of(t) for i, t in zip(places, request.outputs, strict=True)}
    e, momentum = [_of(t) for t in request.inputs], attrs.get("momentum", 0.9)
    kept, rate = ch.number(momentum), ch.number(1 - momentum)
    last = [f"const {wide} variance = squares / {count};"]
    outputs: list[Parameter] = []
    aliases: list[Alias] = []
    for i, statistic in ((3, "mean"), (4, "variance")):
        if i in outs:
            outputs.append(writes(outs[i], f"saved{i}", Out(i)))
            last.append(f"saved{i}[row] = {outs[i].write(statistic)};")
        if i - 2 in outs:  # each thread reads its old one before it writes
            name, old = f"running{i}", f"old{i}"
            outputs += [(f"{outs[i - 2].stored}*", name, Out(i - 2)), (f"const {e[i].stored}*", old, In(i))]
            value = f"{e[i].read(f'{old}[row]')} * {kept} + {statistic} * {rate}"
            last.append(f"{name}[row] = {outs[i - 2].write(value)};")
            if e[i].dtype is outs[i - 2].dtype and request.node.inputs.count(request.node.inputs[i]) == 1:
                aliases += [] if request.constant(i) else [Alias(i - 2, i)]
    read = f"({wide}){e[0].read('x[p]')}"
    partial = [
        f"{wide} sum = 0, squares = 0;",
        *ch.loop(f"sum += {read};"),
        *ch.across("sum"),
        f"const {wide} mean = sum / many;",
        *ch.loop(f"const {wide} d = {read} - mean;", "squares += d * d;"),
        *ch.across("squares"),
    ]
    distance = "(parts_mean[p] - mean)"
    joined = [f"parts_mean[p] * many -> {{}} / {count}", f"parts_squares[p] + {distance} * {distance} * many -> {{}}"]
    used = aligned(ch.count * (8 if wide == "double" else 4)) if 0 in outs else 0
    if 0 in outs:
        outputs += [reads(e[1], "scale", In(1)), writes(wide, "factor", Scratch(0))]
        inverse = ch.inverse("variance", attrs.get("epsilon", 1e-5))
        last.append(f"factor[row] = {e[1].read('scale[row]')} * ({inverse});")
    launches, workspace = ch.sums(
        "batch_statistics", [reads(e[0], "x", In(0))], [], partial, ("mean", "squares"), joined, last, outputs, used
    )
    if 0 not in outs:
        return Written(launches, workspace, tuple(aliases))
    value = f"(x - {outs[3].read('mean[c]')}) * factor[c] + {e[2].read('bias[c]')}"
    others = [reads(outs[3], "mean", Out(3)), reads(wide, "factor", Scratch(0)), reads(e[2], "bias", In(2))]
    arrays: list[tuple[Element, str, Operand]] = [(e[0], "x", In(0)), (outs[0], "y", Out(0))]
    body = f"{ch.channel()}\ny = {outs[0].write(value)};"
    elementwise = each_wide("batch_norm_train", arrays, others, math.prod(ch.sizes), body)
    return Written((*launches, elementwise), workspace, tuple(aliases))


def _gradient(request: KernelRequest, ch: _Channels) -> Written:
    wide, epsilon, count = ch.wide, request.node.attrs.get("epsilon", 1e-5), ch.elements
    places = [i for i, o in enumerate(request.node.outputs) if o]
    outs = {i: _of(t) for i, t in zip(places, request.outputs, strict=True)}
    dy, x, scale, mean, variance = (_of(t) for t in request.inputs)
    statistics = [reads(mean, "mean", In(3)), reads(variance, "variance", In(4))]
    images = [reads(dy, "dy", In(0)), reads(x, "x", In(1))]
    step = aligned(ch.count * (8 if wide == "double" else 4))
    factors = [(n, Scratch(i * step)) for i, n in enumerate(("middle", "tilt", "factor") if 0 in outs else ())]
    outputs = [writes(wide, n, place) for n, place in factors]
    last = list[str]()
    if 0 in outs:
        outputs += [reads(scale, "scale", In(2)), reads(variance, "spread", In(4))]
        last += [
            f"const {wide} slant = {ch.inverse(variance.read('spread[row]'), epsilon)};",
            f"middle[row] = all / {count};",
            f"tilt[row] = slopes / {count} * slant;",
            f"factor[row] = {scale.read('scale[row]')} * slant;",
        ]
    for i, name, total in ((1, "dscale", "slopes"), (2, "db", "all")):
        if i in outs:
            outputs.append(writes(outs[i], name, Out(i)))
            last.append(f"{name}[row] = {outs[i].write(total)};")
    start = [
        f"const {wide} centre = {mean.read('mean[row]')};",
        f"const {wide} inverse = {ch.inverse(variance.read('variance[row]'), epsilon)};",
    ]
    partial = [
        f"{wide} slopes = 0, all = 0;",
        *ch.loop(
            f"const {wide} d = {dy.read('dy[p]')};",
            "all += d;",
            f"slopes += d * (({x.read('x[p]')} - centre) * inverse);",
        ),
        *ch.across("slopes"),
        *ch.across("all"),
    ]
    launches, workspace = ch.sums(
        "batch_slopes", [*images, *statistics], start, partial, ("slopes", "all"),
        ["parts_slopes[p] -> {}", "parts_all[p] -> {}"], last, outputs, len(factors) * step,
    )  # fmt: skip
    if 0 not in outs:
        return Written(launches, workspace)
    centre = mean.read("mean[c]")
    value = f"(dy - middle[c] - (x - {centre}) * tilt[c]) * factor[c]"
    others = [reads(mean, "mean", In(3)), *(reads(wide, n, place) for n, place in factors)]
    arrays: list[tuple[Element, str, Operand]] = [(dy, "dy", In(0)), (x, "x", In(1)), (outs[0], "dx", Out(0))]
    body = f"{ch.channel()}\ndx = {outs[0].write(value)};"
    elementwise = each_wide("batch_norm_grad", arrays, others, math.prod(ch.sizes), body)
    return Written((*launches, elementwise), workspace)

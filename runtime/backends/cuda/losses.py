"""Losses of classes: NegativeLogLikelihoodLoss, SoftmaxCrossEntropyLoss and its gradient.

Losses of the samples are added in one order: by the blocks of one launch, and by one block of a second one where there
are many. A label that is no class adds nothing, since a kernel cannot raise.
"""

from __future__ import annotations

import math

from ....ops import Tensor
from ....ops.dataclasses import dataclass
from ...compile.kernel import Declined, KernelRequest
from ...ir.graph import Node
from ...memory.liveness import aligned
from .generated import Generated, operands
from .launch import In, Launch, Operand, Out, Scratch, Written
from .rows import Rows, larger
from .source import element_of
from .text import Element, each, elements, has_input, index_type, launch, reads, strides_of, writes

NLL, ENTROPY, GRADIENT = "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyGrad"
KINDS = {("", NLL), ("", ENTROPY), ("mezzo", GRADIENT)}
SHARE = 4096  # samples that one block adds
PARTS = 512  # blocks that add
Parameter = tuple[str, str, Operand]


@dataclass(frozen=True, slots=True)
class _Samples:
    """The labels of a loss as source: the class of a sample and its weight. `scores` are [N, C, ...]; the inputs from
    number `first` on are the labels and, optionally, the weights of the classes."""

    request: KernelRequest
    scores: Tensor
    element: Element
    first: int

    @property
    def count(self) -> int:
        return math.prod((self.scores.sizes[0], *self.scores.sizes[2:]))

    @property
    def index(self) -> str:
        return index_type(self.scores.elements or 0)

    @property
    def ignored(self) -> int | None:
        index = self.request.node.attrs.get("ignore_index")
        return None if index is None else int(index)

    @property
    def reduction(self) -> str:
        return str(self.request.node.attrs.get("reduction", "mean"))

    @property
    def alike(self) -> bool:
        """True if each sample has weight 1."""
        return self.ignored is None and not has_input(self.request, self.first + 1)

    def parameters(self) -> list[Parameter]:
        forms = elements(
            self.request.inputs[self.first : self.first + 2][: 2 if has_input(self.request, self.first + 1) else 1]
        )
        assert forms is not None  # `written` has looked
        names = ("labels", "weights")
        return [reads(e, name, In(self.first + i)) for i, (e, name) in enumerate(zip(forms, names, strict=False))]

    def label(self, sample: str) -> list[str]:
        """Statements: the class of a sample in `label`, its weight in `counts`, whether it is left out in `beside`."""
        wide, classes = self.element.wide, self.scores.sizes[1]
        weight = f"({wide})1"
        if has_input(self.request, self.first + 1):
            weight = self.element.read("weights[label]")
        lines = [
            f"const long long named = labels[{sample}];",
            f"const int label = (int)(named < 0 || named >= {classes} ? -1 : named);",
        ]
        beside = "label < 0"
        if self.ignored is not None:
            beside += f" || named == {self.element.integer(self.ignored)}"
        return [*lines, f"const bool beside = {beside};", f"const {wide} counts = beside ? ({wide})0 : {weight};"]


class Losses(Generated):
    """One launch for the rows of scores, and one or two for the sums."""

    name = "gpu.losses"
    spares = (1,)

    def serves(self, node: Node) -> bool:
        return (node.domain, node.op) in KINDS

    def write(self, request: KernelRequest) -> Written | Declined:
        gradient = request.node.op == GRADIENT
        scores = request.inputs[1 if gradient else 0]
        operands(request)
        assert isinstance(scores, Tensor)
        e = element_of(scores.dtype)
        samples = _Samples(request, scores, e, 2 if gradient else 1)
        floats = {t.dtype for t in (*request.inputs, *request.outputs) if isinstance(t, Tensor) and t.dtype.floating}
        labels = request.inputs[samples.first]
        if not e.dtype.floating or len(floats) > 1 or not isinstance(labels, Tensor) or not labels.dtype.integer:
            return Declined("scores, weights and losses are of several types, or none of floats")
        if samples.reduction not in ("none", "sum", "mean"):
            return Declined(f"reduction {samples.reduction!r}")
        if not scores.elements:
            return Declined("there are no samples, or no classes")
        if gradient:
            return _gradient(samples)
        if request.node.op == NLL:
            step = strides_of(scores.sizes)[1]
            place = (
                f"({samples.index})i / {step} * {step * scores.sizes[1]} + i % {step} + ({samples.index})label * {step}"
            )
            value = f"label < 0 || counts == 0 ? ({e.wide})0 : -{e.read(f'x[{place}]')} * counts"
            return _added(samples, [reads(e, "x", In(0))], value, (), 0)
        return _entropy(samples)


def _entropy(samples: _Samples) -> Written:
    """The logarithms of the softmax of each row, and its loss, which the next launch adds to others."""
    e, x, request = samples.element, samples.scores, samples.request
    rows = Rows.of(x.sizes, [1])
    saved, alone = len(request.node.outputs) > 1 and bool(request.node.outputs[1]), samples.reduction == "none"
    kept, over = rows.in_registers, rows.unrolled if rows.in_registers else rows.loop
    read = e.read("x[p]")
    value, first = ("v[k]", [f"v[k] = {read};"]) if kept else (read, [])
    body = [
        *rows.begin(),
        f"{e.wide} most = {e.read('x[at]')}, sum = 0;",
        *([f"{e.wide} v[{rows.kept}];"] if kept else []),
        *over(*first, f"const {e.wide} other = {value};", f"most = {larger('most')};"),
        *rows.across(e.wide, "most", larger("most")),
        *over(f"sum += {e.f('exp')}({value} - most);"),
        *rows.across(e.wide, "sum", "sum + other"),
        f"const {e.wide} total = {e.f('log')}(sum);",
    ]
    if saved:
        body += over(f"log_prob[p] = {e.write(f'{value} - most - total')};")
    own = f"{e.read(f'x[at + ({rows.index})label * {rows.inner[1][0]}]' if rows.inner[1] else 'x[at]')} - most - total"
    loss = f"beside ? ({e.wide})0 : -({own}) * counts"
    place, result = ("losses[row]", e.write(loss)) if alone else ("losses[row]", loss)
    body += ["if (lane == 0) {", *samples.label("row"), f"{place} = {result};", "}"]
    parameters = [reads(e, "x", In(0)), *samples.parameters()]
    if saved:
        parameters.append(writes(e, "log_prob", Out(1)))
    parameters.append(writes(e, "losses", Out(0)) if alone else writes(e.wide, "losses", Scratch(0)))
    entropy = launch("cross_entropy", parameters, "\n".join(body), rows.blocks, rows.threads)
    if alone:
        return Written((entropy,))
    used = aligned(samples.count * (8 if e.wide == "double" else 4))
    return _added(samples, [reads(e.wide, "losses", Scratch(0))], "losses[i]", (entropy,), used)


def _added(samples: _Samples, read: list[Parameter], value: str, before: tuple[Launch, ...], used: int) -> Written:
    """The sum of a value of each sample `i`, over the sum of what they count for a mean; each alone where nothing is
    added. `used` bytes of the workspace are taken already."""
    e, count = samples.element, samples.count
    parameters = [*read, *samples.parameters()]
    if samples.reduction == "none":
        shape = samples.request.outputs[0]
        assert isinstance(shape, Tensor)
        body = [*samples.label("i"), f"y[i] = {e.write(value)};"]
        added = each(
            "nll", [*parameters, writes(e, "y", Out(0))], (count,), "\n".join(body),
            largest=samples.scores.elements or 0,
        )  # fmt: skip
        return Written((*before, added))
    over = "" if samples.reduction == "sum" else f"({e.wide}){count}" if samples.alike else "counted"
    sums = [("total", value), *([("counted", "counts")] if over == "counted" else [])]
    lines = samples.label("i")
    launches, workspace = _sums(samples, sums, parameters, lines, used, f"{{total}}{f' / {over}' if over else ''}", e)
    return Written((*before, *launches), workspace)


def _sums(
    samples: _Samples,
    sums: list[tuple[str, str]],
    parameters: list[Parameter],
    lines: list[str],
    used: int,
    result: str,
    written: Element | None,
) -> tuple[tuple[Launch, ...], int]:
    """Launches that add values of the samples `i`, by name, and write what is made of the sums: as the first output, or
    in float at `used` in the workspace. And the workspace."""
    e, count = samples.element, samples.count
    itemsize = 8 if e.wide == "double" else 4
    target = writes(e.wide, "y", Scratch(used)) if written is None else writes(written, "y", Out(0))
    workspace = used if written is not None else used + 64
    total = result.replace("{total}", "total")
    final = f"if (lane == 0) y[0] = {total if written is None else written.write(total)};"
    parts = min(PARTS, -(-count // SHARE))
    share = -(-count // parts)
    rows = Rows.of((parts, share), [1])
    declared = [f"{e.wide} {name} = 0;" for name, _ in sums]
    body = [
        *rows.begin(),
        *declared,
        *rows.loop(f"const {samples.index} i = p;", f"if (i >= {count}) break;", *lines,
                   *(f"{name} += {value};" for name, value in sums)),
        *(line for name, _ in sums for line in rows.across(e.wide, name, f"{name} + other")),
    ]  # fmt: skip
    if parts == 1:
        summing = launch("loss", [*parameters, target], "\n".join([*body, final]), rows.blocks, rows.threads)
        return (summing,), workspace
    places = [Scratch(workspace + k * aligned(parts * itemsize)) for k in range(len(sums))]
    body += [f"if (lane == 0) parts{k}[row] = {name};" for k, (name, _) in enumerate(sums)]
    outs = [writes(e.wide, f"parts{k}", place) for k, place in enumerate(places)]
    first = launch("loss_parts", [*parameters, *outs], "\n".join(body), rows.blocks, rows.threads)
    rows = Rows.of((1, parts), [1])
    body = [
        *rows.begin(),
        *declared,
        *rows.loop(*(f"{name} += parts{k}[p];" for k, (name, _) in enumerate(sums))),
        *(line for name, _ in sums for line in rows.across(e.wide, name, f"{name} + other")),
        final,
    ]
    ins = [reads(e.wide, f"parts{k}", place) for k, place in enumerate(places)]
    second = launch("loss", [*ins, target], "\n".join(body), rows.blocks, rows.threads)
    return (first, second), workspace + len(places) * aligned(parts * itemsize)


def _gradient(samples: _Samples) -> Written:
    """The pull of each sample times its probabilities, less one at its label."""
    e, x, mean = samples.element, samples.scores, samples.reduction == "mean"
    launches, workspace, over = tuple[Launch, ...](), 0, ""
    parameters = [reads(e, "dloss", In(0)), reads(e, "log_prob", In(1)), *samples.parameters()]
    if mean and samples.alike:
        over = f" / ({e.wide}){samples.count}"
    elif mean:
        launches, workspace = _sums(
            samples, [("total", "counts")], samples.parameters(), samples.label("i"), 0, "{total}", None
        )
        parameters.append(reads(e.wide, "counted", Scratch(0)))
        over = " / counted[0]"
    step, own = strides_of(x.sizes)[1], "sample" if samples.reduction == "none" else "0"
    body = [
        f"const {samples.index} sample = i / {step * x.sizes[1]} * {step} + i % {step};",
        *samples.label("sample"),
        f"const {e.wide} pull = {e.read(f'dloss[{own}]')}{over} * counts;",
        f"const {e.wide} made = {e.f('exp')}({e.read('log_prob[i]')}) * pull;",
        f"y[i] = {e.write('c1 == label ? made - pull : made')};",
    ]
    gradient = each("cross_entropy_grad", [*parameters, writes(e, "y", Out(0))], x.sizes, "\n".join(body))
    return Written((*launches, gradient), workspace)

"""The forward and the backward part of a training step in micro-batches: a copy for each, whose gradients add up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from ..ops import DType, Tensor
from ..ops.errors import InputError, UnsupportedModel
from ..runtime.ir.autodiff import gradients
from ..runtime.ir.graph import Graph, Node
from ..runtime.ir.infer import infer
from ..runtime.ir.typed import TypedBuilder, prefixed
from ..runtime.passes.place import spread
from .pipeline import Pipeline, in_turns, pipeline_of
from .shares import Samples, batch_axis

WHERE = "micro_batches="
ADD = "add W dW -> #0"  # rule of an update


def pipelined(graph: Graph, count: int, device: str, *, recompute: Any) -> Pipeline | None:
    """The schedule of a training in micro-batches; None without. Raises InputError where values go round in a circle
    of devices, or beside recompute=."""
    if count == 1:
        return None
    if recompute:
        raise InputError("micro_batches= beside recompute=", where="Trainer", hint="leave one of them out")
    return pipeline_of(spread(infer(graph)), count, device)


@dataclass(slots=True)
class Micro:
    """The micro-batches of a step under construction in `g`: after `gradients`, `graph` has the states and outputs that
    are made of those of the parts."""

    g: TypedBuilder
    graph: Graph
    loss: str
    count: int
    samples: Samples
    pipeline: Pipeline = field(init=False)
    turns: dict[str, tuple[str, bool, int]] = field(default_factory=dict[str, tuple[str, bool, int]])  # of values

    def __post_init__(self) -> None:
        self.pipeline = pipeline_of(self.graph, self.count)

    def gradients(self, params: Sequence[str], scale: str | None) -> dict[str, str]:
        """Add both parts for each micro-batch, and return the sums of the gradients, which are those of the mean loss
        of the batch, times the loss scale."""
        g, graph = self.g, self.graph
        axes, batch = self._checked(), self.samples.batch
        counted = next(iter(axes))  # tells how many samples there are
        inner = TypedBuilder(g.types, prefix=f"{g.prefix}part/")
        seed, known = f"{inner.prefix}seed", inner.types[self.loss]
        inner.types[seed] = known
        found = gradients(inner, graph.nodes, {self.loss: seed}, params)
        for name, array in inner.constants().items():
            g.hold(name, array)
        forward = self._before(inner.nodes())
        one = _Parts(self._placed(inner.nodes(), forward), inner.types, graph, {*axes, seed})
        bounds, sizes = self._bounds(counted, axes[counted])
        for node in one.fixed:
            g.add(node, [inner.types.get(o) or known for o in node.outputs])
        sizes, some = self._counted(axes, bounds, sizes, params)
        losses, sums, last = list[str](), dict[str, str](), dict[str, str]()
        outputs: dict[str, list[str]] = {o: [] for o in graph.outputs if o != self.loss}
        for part in range(self.count):
            names = self._slices(one, axes, bounds[part : part + 2], part) | last
            names[seed] = sizes[part] if scale is None else g.Mul(sizes[part], scale)
            for node in one.copies(names, part):
                g.add(node, [g.types.get(o) or inner.types.get(one.old[o]) or known for o in node.outputs if o])
                way = any(one.old[o] in forward for o in node.outputs if o)
                self.turns |= dict.fromkeys(filter(None, node.outputs), (node.device, way, part))
            last = {s.input: names.get(s.output, s.output) for s in graph.states}
            own_loss = g.Mul(names[self.loss], sizes[part])
            losses.append(
                g.Where(g.Equal(sizes[part], g.scalar(0, own_loss)), g.scalar(0, own_loss), own_loss)
                if some
                else own_loss
            )
            for o, parts in outputs.items():
                parts.append(names[o])
            for p, dw in found.items():
                own = names.get(dw, dw)
                sums[p] = self._sum(sums[p], own) if p in sums else own
        self._whole(losses, outputs, batch)
        states = tuple(replace(s, output=last[s.input]) for s in graph.states)
        self.graph = graph.but(states=states)
        return sums

    def ordered(self, nodes: Sequence[Node]) -> tuple[Node, ...]:
        """The nodes of the whole step in the order of the pipeline."""
        return in_turns(nodes, self.pipeline, self.turns)

    def _placed(self, nodes: Sequence[Node], forward: set[str]) -> list[Node]:
        """The nodes, each with a device, where any has one: sums of gradients are on the first of those that they come
        from, so that none goes to a later one; what is made of values of the forward part is on their last."""
        stages = {d: i for i, d in enumerate(self.pipeline.devices)}
        at, backward, made = dict[str, int](), set[str](), list[Node]()
        for node in nodes:
            reads = [n for n in node.reads() if n in at]
            late = [at[n] for n in reads if n in backward]
            if node.device in stages:
                stage = stages[node.device]
            else:
                stage = min(late) if late else max((at[n] for n in reads), default=0)
            if late or (node.device in stages and forward.isdisjoint(node.outputs)):
                backward.update(node.outputs)
            else:
                forward.update(node.outputs)
            at |= dict.fromkeys(filter(None, node.outputs), stage)
            made.append(replace(node, device=self.pipeline.devices[stage]) if self.graph.devices else node)
        return made

    def _before(self, nodes: Sequence[Node]) -> set[str]:
        """The values that lead to the loss, to outputs and states: what runs forward."""
        needed = {self.loss, *self.graph.outputs, *(s.output for s in self.graph.states)}
        for node in reversed(nodes):
            if not needed.isdisjoint(node.outputs):
                needed.update(node.reads())
        return needed

    def _checked(self) -> Mapping[str, int]:
        """The axis of each input along which it is split. Raises InputError for batches that cannot be."""
        first = self.samples.batch
        if isinstance(first, int):
            raise InputError(f"the batch of the model is {first} samples", where=WHERE,
                             hint="export the model with an open batch, which can be split")  # fmt: skip
        if not self.samples.axes:
            raise InputError("no input has samples", where=WHERE, hint="give the inputs an open first dim")
        return self.samples.axes

    def _bounds(self, batch: str, axis: int) -> tuple[list[str], list[str]]:
        """Beginnings of the micro-batches, with the last one's end; the part of the batch in each, in its type."""
        g, dtype = self.g, self.g.types[self.loss]
        assert isinstance(dtype, Tensor)
        many = g.Gather(g.Shape(batch), g.const([axis]), axis=0)
        bounds = [g.Div(g.Mul(many, g.const([i])), g.const([self.count])) for i in range(self.count + 1)]
        whole = g.Cast(many, to=DType.DOUBLE.onnx)
        parts = [g.Cast(g.Sub(end, begin), to=DType.DOUBLE.onnx) for begin, end in pairwise(bounds)]
        return bounds, [g.Squeeze(g.Cast(g.Div(p, whole), to=dtype.dtype.onnx)) for p in parts]

    def _counted(
        self, axes: Mapping[str, int], bounds: Sequence[str], sizes: list[str], params: Sequence[str]
    ) -> tuple[list[str], bool]:
        """The share of each part in the mean of a loss: of what counts, if targets tell that before, else of the
        samples; and whether it may be nothing."""
        g, graph = self.g, self.graph
        ends = {s.input: s.output for s in graph.states}
        added = next((n for n in graph.nodes if self.samples.counted and ends[self.samples.counted] in n.outputs), None)
        if added is None:
            return sizes, False
        (value,) = (n for n in added.inputs if n != self.samples.counted)
        needed, nodes = {value}, list[Node]()
        for node in reversed(graph.nodes):
            if not needed.isdisjoint(node.outputs):
                needed.update(node.reads())
                nodes.insert(0, node)
        if not needed.isdisjoint({*params, *ends}) or not all(n.record.deterministic for n in nodes):
            return sizes, False
        counts = list[str]()
        for part in range(self.count):
            names = {
                n: g.Slice(n, *bounds[part : part + 2], g.const([axis])) for n, axis in axes.items() if n in needed
            }
            for node in nodes:
                outputs = [f"{g.prefix}counted/{o}#{part}" if o else "" for o in node.outputs]
                inputs = tuple(names.get(i, i) for i in node.inputs)
                g.add(replace(node, name=outputs[0], inputs=inputs, outputs=tuple(outputs), device=""))
                names |= dict(zip(node.outputs, outputs, strict=True))
            counts.append(names[value])
        whole = g.Sum(*counts)
        nothing = g.Equal(whole, g.const(0.0, DType.DOUBLE))
        least = g.Where(nothing, g.const(1.0, DType.DOUBLE), whole)
        shares = [g.CastLike(g.Div(c, least), sizes[0]) for c in counts]
        return [g.Where(nothing, size, share) for size, share in zip(sizes, shares, strict=True)], True

    def _slices(self, one: _Parts, axes: Mapping[str, int], bounds: Sequence[str], part: int) -> dict[str, str]:
        """The inputs of a micro-batch, by those of the batch."""
        g, made = self.g, dict[str, str]()
        for name, axis in axes.items():
            if name in one.read:
                made[name] = g.Slice(name, *bounds, g.const([axis]))
        return made

    def _sum(self, total: str, own: str) -> str:
        """The sum of gradients, where the first lies. It is no Add: of a chain of these one sum would be made behind
        all parts, and all gradients would live until then."""
        g = self.g
        kept, g.device = g.device, self.turns[own][0]
        summed: str = g.op("Update", total, own, g.scalar(1, own), domain="mezzo", rule=ADD)
        g.device = kept
        self.turns[summed] = self.turns[own]
        return summed

    def _whole(self, losses: Sequence[str], outputs: Mapping[str, Sequence[str]], batch: Any) -> None:
        """The loss and the outputs of the batch, under their names."""
        g = self.g
        g.add(Node("Sum", tuple(losses), (self.loss,), name=self.loss))
        for name, parts in outputs.items():
            kind = self.graph.types[name]
            axis = batch_axis(kind, batch) if isinstance(kind, Tensor) else None
            if axis is None:
                raise UnsupportedModel(f"the output {name!r} is {kind}, and has no samples", where=WHERE,
                                       hint="leave out the metrics that read it")  # fmt: skip
            g.add(Node("Concat", tuple(parts), (name,), {"axis": axis}, name=name))


class _Parts:
    """The nodes of one micro-batch: `fixed` ones depend on parameters alone, the others are copied for each."""

    def __init__(self, nodes: Sequence[Node], types: Mapping[str, Any], graph: Graph, fed: set[str]) -> None:
        self._types, self.old = types, dict[str, str]()
        varying = fed | {s.input for s in graph.states if s.output != s.input}
        self.fixed, self._nodes = list[Node](), list[Node]()
        for node in nodes:
            if varying.isdisjoint(node.reads()) and node.record.deterministic:
                self.fixed.append(node)
            else:
                self._nodes.append(node)
                varying.update(filter(None, node.outputs))
        self.read = {n for node in self._nodes for n in node.reads()}

    def copies(self, names: dict[str, str], part: int) -> list[Node]:
        """The nodes of a part; `names` has what its inputs are called, and gets what it makes."""
        made = list[Node]()
        for node in self._nodes:
            outputs = tuple(f"{o}#{part}" if o else "" for o in node.outputs)
            inputs = tuple(names.get(i, i) for i in node.inputs)
            attrs = {
                a: prefixed(v, f"part{part}/").rename(names) if isinstance(v, Graph) else v
                for a, v in node.attrs.items()
            }
            self.old |= {new: old for new, old in zip(outputs, node.outputs, strict=True) if new}
            names |= {old: new for new, old in zip(outputs, node.outputs, strict=True) if new}
            name = f"{node.name}#{part}" if node.name else ""
            made.append(replace(node, name=name, inputs=inputs, outputs=outputs, attrs=attrs))
        return made

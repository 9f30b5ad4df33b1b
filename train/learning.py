"""Trainable parameters: the floating initializers that a gradient of the loss reaches, and the reasons why others are
left out.

Some are left out by what they are in the graph (running statistics, scales of quantised numbers, masks, numbers of the
arithmetic); the rest is asked of the gradient itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..ops import DType, Tensor
from ..ops.errors import InputError
from ..ops.types import Array, differentiable
from ..runtime.ir.autodiff import ONES, gradients, has_derivative, unused_name
from ..runtime.ir.graph import PRODUCER, SIGNATURE, Graph, Node
from ..runtime.ir.infer import infer
from ..runtime.ir.typed import TypedBuilder
from ..runtime.optimizer.record import matches
from ..runtime.passes.modes import statistics_of
from ..runtime.passes.straight_through import straight_through

# How PyTorch's newer exporter says of each tensor of a module what it is.
_SPEC = re.compile(r"^\s*\S+: (PARAMETER|BUFFER|CONSTANT_TENSOR) target='([^']*)'", re.MULTILINE)
_PATH = re.compile(r"\w+(\.\w+)*")  # how PyTorch names parameters; what its exporters make has other names
_LARGEST_MASK = 1 << 25  # elements: for texts of some thousand words
_LOWEST = -1e4  # what is added to a score so that softmax leaves it out

STATISTICS = "running statistics of batch normalisation"
SCALE = "a scale or zero point of quantised numbers"
BUFFER = "a buffer of the PyTorch module"
MASK = "a mask"
NUMBER = "a single number of the arithmetic"
LITERAL = "a Constant node, in a file whose weights are initialisers"
INPUT = "an input, whose value a caller may give"
INTEGERS = "only integers, truth values and shapes are made of it"
APART = "the loss does not depend on it"
UNREAD = "nothing reads it"
HELD = "the graph stops its gradient"
REFUSED = "pattern of freeze="
UNASKED = "no pattern of train= names it"
ADAPTERS = "mezzo.adapters"  # key of metadata of a graph with adapters, which alone learn (see lora.py)
BESIDE = ("*.lora_A", "*.lora_B")


@dataclass(frozen=True, slots=True)
class Learning:
    """The trained initializers, and for each other floating one the reason why it is frozen. `overlooked` names frozen
    ones that look like weights, since nothing in the graph says that they are something else."""

    trained: tuple[str, ...]
    frozen: Mapping[str, str]
    overlooked: tuple[str, ...] = ()

    @property
    def warning(self) -> str:
        """A warning about frozen initializers that look like weights; empty if there are none."""
        if not self.overlooked:
            return ""
        shown = "; ".join(f"{n!r}: {self.frozen[n]}" for n in self.overlooked[:5])
        more = f", and {len(self.overlooked) - 5} more" if len(self.overlooked) > 5 else ""
        return f"training leaves out what looks like weights: {shown}{more} (freeze= or train= say what is meant)"


def specs(graph: Graph) -> dict[str, str]:
    """Return the kinds of the module's tensors, as PyTorch's newer exporter records them: PARAMETER, BUFFER or
    CONSTANT_TENSOR."""
    return {name: kind for kind, name in _SPEC.findall(graph.metadata.get(SIGNATURE, ""))}


def weights(graph: Graph, *, scales: bool = False) -> list[str]:
    """The initialisers of a graph that may learn, and from which floats lead to one of its outputs; with `scales` those
    of quantised numbers too."""
    graph = infer(graph)
    candidates, _ = _candidates(graph, scales)
    through = infer(straight_through(graph))
    leads = _leading(through, [o for o in graph.outputs if differentiable(graph.types[o])])
    return [n for n in candidates if n in leads]


def learning(
    graph: Graph,
    judged: Graph,
    losses: Sequence[str],
    train: Sequence[str] | None = None,
    freeze: Sequence[str] = (),
    scales: bool = False,
) -> Learning:
    """Return which floats of a typed graph learn by the gradients of `losses`. `judged` is the typed graph with losses,
    derived from `graph`; with `scales` the scales of quantised numbers learn too.

    `train` and `freeze` are patterns of names; of a graph with adapters these alone learn, unless `train` says more. A
    name that is written out in `train` learns whatever it is, and nothing
    is left out then without a gradient telling so later. Raises InputError for a pattern that fits nothing, and
    UnsupportedModel listing the operators between weights and losses that have no derivative.
    """
    learned, frozen = _candidates(graph, scales)
    guessed = {n for n, reason in frozen.items() if reason == INPUT or _looks(graph, n, reason)}
    if train is None and graph.metadata.get(ADAPTERS):
        train = BESIDE
    if train is not None:
        asked = _named(graph, train, learned, frozen)
        frozen = {n: r for n, r in frozen.items() if n not in asked}
        frozen |= {n: UNASKED for n in learned if n not in asked}
        learned, guessed = asked, set()
    for pattern in freeze:
        _fits(graph, pattern, [*learned, *frozen])
    held = {n for n in (*learned, *guessed) if matches(n, *freeze)}
    frozen |= dict.fromkeys(held, REFUSED)
    learned, guessed = [n for n in learned if n not in held], guessed - held
    if train is None:
        stuck = _stuck(judged, learned)
        reached = _reached(judged, losses, [n for n in learned if n not in stuck])
        for name in learned:
            if name not in reached:
                frozen[name] = stuck.get(name) or _unreached(judged, losses, name)
                if frozen[name] not in (INTEGERS, APART):
                    guessed.add(name)
        learned = [n for n in learned if n in reached]
    order = [n for n in graph.initializers if n in guessed]
    return Learning(tuple(learned), frozen, tuple(order))


def _named(graph: Graph, train: Sequence[str], learned: Sequence[str], frozen: Mapping[str, str]) -> list[str]:
    """Return the names that match the patterns of `train`: those of weights, or else of other floats."""
    asked: set[str] = set()
    for pattern in train:
        _fits(graph, pattern, [*learned, *frozen])
        fitting = [n for n in learned if matches(n, pattern)]
        others = [n for n in frozen if matches(n, pattern) and frozen[n] != STATISTICS]
        if not (fitting or others):
            raise InputError(f"{pattern!r} names {STATISTICS}, which are states", where="train=", hint="leave them out")
        asked.update(fitting or others)
    return [n for n in graph.initializers if n in asked]


def _fits(graph: Graph, pattern: str, names: Sequence[str]) -> None:
    if not any(matches(n, pattern) for n in names):
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        raise InputError(f"no weight matches {pattern!r}", where=graph.name, hint=f"the weights are {shown}")


# -- what initialisers are by their place in the graph ----------------------------------------------------------------


def _candidates(graph: Graph, scales: bool) -> tuple[list[str], dict[str, str]]:
    """The floating initialisers that may learn, in their order, and why the others may not."""
    uses = _uses(graph)
    statistics = {i for _, n in graph.walk() for i in statistics_of(n)}
    states, inputs, kinds = {s.input for s in graph.states}, {*graph.inputs}, specs(graph)
    computed = {o for n in graph.nodes for o in n.outputs}
    learned: list[str] = []
    frozen: dict[str, str] = {}
    for name, array in graph.initializers.items():
        if name in states or not DType.of(array.dtype).floating:
            continue
        kind = kinds.get(name, "")
        if name in statistics:
            reason = STATISTICS
        elif kind not in ("", "PARAMETER"):
            reason = BUFFER
        elif name not in uses:
            reason = UNREAD
        elif name in inputs:
            reason = INPUT
        elif _scales(graph, name, uses):
            if scales:
                learned.append(name)
                continue
            reason = SCALE
        elif not _moves_floats(graph, name, uses):
            reason = INTEGERS
        elif all((n.op, n.domain) == ("StopGradient", "mezzo") for n, _ in uses[name]):
            reason = HELD
        elif not kind and _masks(array, name, uses):
            reason = MASK
        elif not array.size or (array.size == 1 and not kind and _is_number(graph, name, uses, kinds, computed)):
            reason = NUMBER
        else:
            learned.append(name)
            continue
        frozen[name] = reason
    frozen |= {n.outputs[0]: LITERAL for n in graph.nodes if _is_literal(n)}
    return learned, frozen


def _is_literal(node: Node) -> bool:
    """True if a Constant node makes several floats."""
    value = node.attrs.get("value")
    several = isinstance(value, np.ndarray) and value.size > 1 and DType.of(value.dtype).floating
    return (node.op, node.domain) == ("Constant", "") and several


def _looks(graph: Graph, name: str, reason: str) -> bool:
    """True if an array that was taken for a plain number may as well be a weight: it has axes and a readable name."""
    return reason == NUMBER and graph.initializers[name].ndim > 0 and _plain_name(graph, name)


def _plain_name(graph: Graph, name: str) -> bool:
    return not specs(graph) and bool(_PATH.fullmatch(name)) and re.search(r"const|val_?\d", name, re.IGNORECASE) is None


def _uses(graph: Graph) -> dict[str, list[tuple[Node, int]]]:
    """Return the nodes that read each value, with the input index (-1: the output of a body); nodes of bodies
    included."""
    uses: dict[str, list[tuple[Node, int]]] = {}
    for _, node in graph.walk():
        for i, name in enumerate(node.inputs):
            if name:
                uses.setdefault(name, []).append((node, i))
    for _, node in graph.walk():
        for body in node.bodies.values():
            for name in body.outputs:
                uses.setdefault(name, []).append((node, -1))
    return uses


Uses = Mapping[str, Sequence[tuple[Node, int]]]


def _dtype(graph: Graph, name: str) -> DType | None:
    known = graph.types.get(name)
    return known.dtype if isinstance(known, Tensor) else None


def _scales(graph: Graph, name: str, uses: Uses) -> bool:
    """True if all readers of a value deal with quantised numbers: integers of 8 bits and fewer, or operands of
    QuantizeLinear and DequantizeLinear."""

    def quantised(node: Node) -> bool:
        own = not node.domain and node.op in ("QuantizeLinear", "DequantizeLinear")
        return own or any(_quantised(_dtype(graph, n)) for n in (*node.inputs, *node.outputs) if n)

    return all(i > 0 and quantised(node) for node, i in uses[name])


def _quantised(dtype: DType | None) -> bool:
    return dtype is not None and dtype.bits <= 8 and dtype is not DType.BOOL


def _masks(array: Array, name: str, uses: Uses) -> bool:
    """True if an array is a mask: 0 beside numbers that softmax takes for minus infinity, or, as a factor or a
    condition, 0 beside 1."""
    if not 1 < array.size <= _LARGEST_MASK or DType.of(array.dtype).bits < 16:
        return False
    few = np.array(array.flat[:64], np.float64)  # of weights these say it already
    if not ((few == 0) | (few == 1) | (few <= _LOWEST) | ~np.isfinite(few)).all():
        return False
    values = array.astype(np.float64, copy=False).ravel()
    if not np.isfinite(values).all() or values.min() <= _LOWEST:
        return bool(((values == 0) | (values <= _LOWEST) | ~np.isfinite(values)).all())
    binary = bool(((values == 0) | (values == 1)).all()) and 0 < values.sum() < values.size
    return binary and all(node.record.tree is not None for node, _ in uses[name])


def _is_number(graph: Graph, name: str, uses: Uses, kinds: Mapping[str, str], computed: set[str]) -> bool:
    """True if an array of one element is a plain number of the arithmetic, not a weight. Files of PyTorch tell by its
    name; elsewhere all its readers must be elementwise operators."""
    ndim = graph.initializers[name].ndim
    if kinds:  # parameters are listed, what the exporter makes has plain identifiers
        return name.isidentifier()
    if graph.metadata.get(PRODUCER, "").startswith("pytorch"):
        return name.startswith(("/", "onnx::")) or name.isdigit() or (not ndim and name.rpartition(".")[0] in computed)
    return not ndim or all(node.record.tree is not None for node, _ in uses[name])


def _moves_floats(graph: Graph, name: str, uses: Uses) -> bool:
    """True if any node makes floats of a value, or numbers that stand for floats."""

    def stand_for_floats(value: str) -> bool:
        known = graph.types.get(value)
        return known is not None and (differentiable(known) or _quantised(_dtype(graph, value)))

    return any(i < 0 or bool(n.bodies) or any(map(stand_for_floats, n.outputs)) for n, i in uses[name])


# -- what the gradient says -------------------------------------------------------------------------------------------


def _leading(graph: Graph, ends: Iterable[str]) -> set[str]:
    """The values that lead to `ends` through floats."""
    needed = set(ends)
    for node in reversed(graph.nodes):
        if any(o in needed and differentiable(graph.types[o]) for o in node.outputs if o):
            needed.update(node.reads())
    return needed


def _stuck(graph: Graph, names: Sequence[str]) -> dict[str, str]:
    """The arrays that an operator without a derivative reads itself: what it would do with their gradients nobody
    knows."""
    asked, stuck = set(names), dict[str, str]()
    for node in graph.nodes:
        mine = asked.intersection(node.inputs)
        floats = any(differentiable(graph.types[o]) for o in node.outputs if o)
        if mine and floats and not has_derivative(node, graph.types):
            stuck |= dict.fromkeys(mine, f"{node.place} reads it, which has no derivative")
    return stuck


def _reached(graph: Graph, losses: Sequence[str], names: Sequence[str]) -> set[str]:
    """The values that a gradient reaches, as the rules of the operators make it."""
    if not names:
        return set()
    g = TypedBuilder(graph.types, prefix=unused_name("reach/", set(graph.types)))
    return set(gradients(g, graph.nodes, dict.fromkeys(losses, ONES), names))


def _unreached(graph: Graph, losses: Sequence[str], name: str) -> str:
    """Why a gradient does not reach a value."""
    behind, floats = {name}, {name}  # what depends on it at all, and what does through floats alone
    narrow = last = ""
    for node in graph.nodes:
        reads = {*node.reads()}
        if reads.isdisjoint(behind):
            continue
        behind.update(o for o in node.outputs if o)
        if not reads.isdisjoint(floats):
            floats.update(o for o in node.outputs if o and differentiable(graph.types[o]))
            last = node.place
            narrow = narrow or next((node.place for o in node.outputs if o and _quantised(_dtype(graph, o))), "")
    if behind.isdisjoint(losses):
        return APART
    if floats.isdisjoint(losses):
        return f"{narrow} rounds it to integers, which have no gradient" if narrow else INTEGERS
    return f"no gradient of the loss passes back to it, as from {last}"


def says(graph: Graph) -> Iterator[str]:
    """Yield messages about weights that an exporter merged, folded or made, and which training should know about."""
    kinds = specs(graph)
    lost = [n for n, kind in kinds.items() if kind == "PARAMETER" and n not in graph.initializers]
    if lost:
        yield (
            f"{_few(lost)} of the PyTorch module {_are(lost)} not in the file under {_its(lost)}: tied to another "
            "weight, or folded into others or merged with equal ones, which optimize=False leaves alone"
        )
    elif not kinds and graph.metadata.get(PRODUCER, "").startswith("pytorch"):
        folded = [n for n in graph.initializers if n.startswith("onnx::") and graph.initializers[n].size > 1]
        if folded:
            yield (
                f"{_few(folded)} {_are(folded)} made by the exporter of others (batch normalisation folded into "
                "convolutions, matrices transposed, weights that were tied apart); export with "
                "training=TrainingMode.TRAINING and do_constant_folding=False"
            )


def _few(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names[:4])) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _its(names: Sequence[str]) -> str:
    return "its name" if len(names) == 1 else "their names"


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


__all__ = ["Learning", "learning", "says", "specs", "weights"]

"""What must hold of a planned graph besides its first answer."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mezzo.exporters import to_onnx
from mezzo.importers import load_onnx
from mezzo.ops import DType, Tensor
from mezzo.ops.errors import MezzoError, UnsupportedModel
from mezzo.ops.types import type_of
from mezzo.runtime.execution.session import Session
from mezzo.runtime.file import open_file
from mezzo.runtime.ir.graph import Graph
from mezzo.runtime.ir.infer import infer
from mezzo.runtime.ir.typed import TypedBuilder
from mezzo.runtime.optimizer import SGD
from mezzo.tools.finite import by_graph, case_of, disagreement, numeric
from mezzo.train.building import Step
from mezzo.train.step import training_step

from ..gradients import SINGLE_ONLY
from .maker import Case
from .oracle import BFLOAT16, FLOAT32, Worlds, evaluated
from .switches import Switches

RELATIVE = {FLOAT32: 1e-4, BFLOAT16: 2.0**-5}  # of the largest element: what is wrong is rarely so near
TINY = 1e-36  # what float32 may round to zero
PARTED = 4.0  # times as far as the worlds lie apart, results may be off
MANY = 24  # worlds, before a result is called wrong
BATCHES = (1, 2, 3, 5, 8, 16, 17)
Feeds = Mapping[str, Any]


class Wrong(Exception):
    """A property does not hold: what is wrong, in words."""


class NotHere(Exception):
    """The graph does not have what a property asks about."""


@dataclass
class Asked:
    """A graph under some switches; `rng` is for what a property draws."""

    case: Case
    switches: Switches
    rng: np.random.Generator
    worlds: dict[float, Worlds] = field(default_factory=dict[float, Worlds])  # by noise: shared by all switches

    @property
    def graph(self) -> Graph:
        return self.case.graph

    @property
    def noise(self) -> float:
        return BFLOAT16 if self.switches.narrow else FLOAT32

    def expected(self) -> Worlds:
        if self.noise not in self.worlds:
            self.worlds[self.noise] = evaluated(infer(self.graph), self.case.feeds, self.noise)
        return self.worlds[self.noise]

    def session(self, graph: Graph | None = None, **others: Any) -> Session:
        return Session(self.graph if graph is None else graph, **{"instances": 1, **self.switches.given, **others})


def like(got: Mapping[str, Any], worlds: Worlds, names: Mapping[str, str] | None = None, what: str = "") -> None:
    """Results are what the oracle expects: raise Wrong where one is further away than rounding explains. `names` says
    which value a result is, where it is called otherwise."""
    for name, value in got.items():
        meant = (names or {}).get(name, name)
        said = differs(value, worlds, meant)
        if said and differs(value, worlds.again(MANY), meant):
            raise Wrong(f"{what}{name} {said}")


def differs(got: Any, worlds: Worlds, name: str) -> str:
    """How a value differs from what is expected; empty if it does not, or if nothing definite is expected."""
    if name in worlds.unspecified:
        return ""
    want = worlds.exact[name]
    deviation = worlds.deviation(name)
    if isinstance(want, list):
        if not isinstance(got, list) or len(got) != len(want):
            return f"is {type(got).__name__}, a list of {len(want)} is meant"
        return next(filter(None, (apart(g, w, worlds.noise, deviation) for g, w in zip(got, want, strict=True))), "")
    return apart(got, want, worlds.noise, deviation)


def apart(got: Any, want: Any, noise: float, deviation: float) -> str:
    if not isinstance(want, np.ndarray):
        return "" if got == want else f"is {got}, {want} is meant"
    got = np.asarray(got)
    if not np.isfinite(deviation):
        return ""  # rounding decides
    if got.shape != want.shape:
        return f"has shape {got.shape}, {want.shape} is meant"
    if want.dtype.kind not in "fc":
        if deviation == 0 and not np.array_equal(got, want):
            return f"is {_short(got)}, {_short(want)} is meant"
        return ""
    odd = ~np.isfinite(want)
    wide = got.astype(want.dtype)
    if not np.array_equal(wide[odd], want[odd], equal_nan=True):
        return f"is {_short(wide[odd])} where {_short(want[odd])} is meant"
    off = np.abs(wide[~odd] - want[~odd])
    relative = RELATIVE[noise]
    if DType.of(got.dtype).narrow:
        relative = max(relative, 2.0**-7)
    most = relative * np.abs(want[~odd]).max(initial=0.0) + PARTED * deviation + TINY
    if (off <= most).all():  # not where something is NaN
        return ""
    return f"is off by up to {off.max():.3g}, {most:.2g} is allowed\n{_short(wide)}\ninstead of\n{_short(want)}"


def _short(x: Any) -> str:
    return np.array2string(np.asarray(x), threshold=24, edgeitems=2, precision=4)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray) and a.dtype.kind not in "OUS":
        return a.shape == b.shape and a.tobytes() == np.asarray(b).tobytes()
    return bool(np.array_equal(a, b)) if isinstance(a, np.ndarray) else bool(a == b)


def copied(values: Mapping[str, Any]) -> dict[str, Any]:
    return {n: np.copy(v) if isinstance(v, np.ndarray) else v for n, v in values.items()}


def unchanged(before: Mapping[str, Any], after: Mapping[str, Any], what: str) -> None:
    for name, value in before.items():
        if not same(value, after[name]):
            raise Wrong(f"{name}: {what}")


def repeated(a: Asked, session: Session, times: int = 2) -> None:
    """Answers, again and again: equal to the last bit, and neither feeds nor earlier answers change. Runs after the
    first are fed in another order than the graph has its inputs in."""
    given = copied(a.case.feeds)
    first = session.run(a.case.feeds)
    unchanged(given, a.case.feeds, "the run changed what it was fed")
    like(first, a.expected())
    kept = copied(first)
    other = dict(reversed(a.case.feeds.items()))
    for i in range(times):
        again = session.run(other if i % 2 == 0 else a.case.feeds)
        like(again, a.expected(), what=f"in run {i + 2} ")
        unchanged(kept, again, f"run {i + 2} answered otherwise than run 1")
    unchanged(kept, first, "a later run changed what an earlier one had answered")
    unchanged(given, a.case.feeds, "the runs changed what they were fed")


# -- properties, each of a session of its own or of the one that has run ----------------------------------------------


def batches(a: Asked, session: Session) -> None:
    """Other batch sizes, and then the first again, in one session that leaves the batch open: what was planned for one
    size is a template for the next."""
    if not a.case.batched:
        raise NotHere
    sizes = {a.case.feeds[n].shape[0] for n in a.case.batched}
    others = a.rng.choice([b for b in BATCHES if b not in sizes], 2, replace=False).tolist()
    types = dict(a.graph.types)
    for n in a.case.batched:
        known = types[n]
        assert isinstance(known, Tensor)
        assert known.dims
        types[n] = known.of(("batch", *known.dims[1:]))
    graph = a.graph.but(types=types)
    walk = [(other, *_resized(a, graph, int(other))) for other in others]
    opened = a.session(graph)
    first = opened.run(a.case.feeds)
    like(first, a.expected(), what="with an open batch ")
    kept = copied(first)
    for other, feeds, worlds in walk:
        like(opened.run(feeds), worlds, what=f"at batch {other} ")
        unchanged(kept, opened.run(a.case.feeds), f"the first batch after a batch of {other} is answered otherwise")
    for other, feeds, worlds in walk:
        like(opened.run(feeds), worlds, what=f"at batch {other}, again, ")


def _resized(a: Asked, graph: Graph, batch: int) -> tuple[Feeds, Worlds]:
    """The feeds at another batch size, and what comes of them. Raises NotHere where the graph does not fit it."""
    feeds = dict(a.case.feeds)
    for n in a.case.batched:
        x = feeds[n]
        feeds[n] = np.resize(x[::-1], (batch, *x.shape[1:])) if x.size else np.zeros((batch, *x.shape[1:]), x.dtype)
    try:
        infer(graph)
        closed = graph.but(types={**graph.types, **{n: type_like(x) for n, x in feeds.items()}})
        worlds = evaluated(infer(closed), feeds, a.noise)
        fits(graph, worlds)
    except Exception as error:  # sizes that stand in the graph: references raise what they like
        raise NotHere from error
    return feeds, worlds


def fits(graph: Graph, worlds: Worlds) -> None:
    """Raise MezzoError where operands do not fit an operator, which references alone may not notice: behind a body the
    sizes of a graph are not known before it runs."""
    for node in graph.nodes:
        values = [worlds.exact[i] if i else None for i in node.inputs]
        if not node.bodies and all(x is None or isinstance(x, np.ndarray) for x in values):
            types = [
                None if x is None else _declared(graph.types.get(i), x)
                for i, x in zip(node.inputs, values, strict=True)
            ]
            node.record.infer_types(types, node.attrs, node.wanted)


def _declared(known: Any, x: Any) -> Any:
    """The type of a value; floats have the element type that the graph declares."""
    if x.dtype == np.float64:
        return Tensor(known.dtype if isinstance(known, Tensor) else DType.FLOAT, x.shape)
    return type_of(x, known=True)


def type_like(x: Any) -> Tensor:
    return Tensor(DType.of(x.dtype), x.shape)


def threads(a: Asked, session: Session) -> None:
    """Eight threads on one session, two kinds of feeds."""
    shared = a.session(instances=None)
    kinds = [a.case.feeds, {n: otherwise(a.rng, x) for n, x in a.case.feeds.items()}]
    wanted = []
    for feeds in kinds:
        try:
            wanted.append(copied(shared.run(feeds)))
        except MezzoError:  # what is fed otherwise may not fit, as an index does not
            kinds = kinds[:1]
            break

    def one(number: int) -> list[tuple[int, dict[str, Any]]]:
        return [(i, shared.run(kinds[i])) for i in ((number + j) % len(kinds) for j in range(4))]

    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(one, range(8)):
            for i, got in found:
                unchanged(wanted[i], got, "one of eight threads got another answer")


def otherwise(rng: np.random.Generator, x: Any) -> Any:
    """Other numbers of the same kind."""
    if not isinstance(x, np.ndarray) or x.dtype.kind != "f" or not x.size:
        return x
    return rng.permutation(x.reshape(-1)).reshape(x.shape)


@contextmanager
def folder() -> Iterator[Path]:
    root = "/dev/shm" if os.path.isdir("/dev/shm") else None
    with tempfile.TemporaryDirectory(dir=root) as made:
        yield Path(made)


def stored(a: Asked, session: Session) -> None:
    """Written to a `.mezzo` file and read: the same answers, to the last bit, and from the program in the file."""
    with folder() as at:
        session.save(at / "model.mezzo", portable=bool(a.rng.random() < 0.3))
        opened = a.session(open_file(at / "model.mezzo"))  # type: ignore[arg-type]
        got = opened.run(a.case.feeds)
        like(got, a.expected(), what="from a file ")
        unchanged(copied(got), opened.run(a.case.feeds), "a program from a file answers otherwise in its second run")


def exported(a: Asked, session: Session) -> None:
    """Written as ONNX and read."""
    try:
        model = to_onnx(a.graph).SerializeToString()
    except UnsupportedModel as error:
        raise NotHere from error
    graph = load_onnx(model)
    got = a.session(graph).run(a.case.feeds)
    names = dict(zip(graph.outputs, a.graph.outputs, strict=True))
    like(got, a.expected(), names, what="from ONNX ")


def asked(a: Asked, session: Session) -> None:
    """Further values asked for as outputs change nothing."""
    inner = [o for n in a.graph.nodes for o in n.outputs if o and o not in a.graph.outputs]
    if not inner:
        raise NotHere
    more = [str(n) for n in a.rng.permutation(inner)[: int(a.rng.integers(1, 4))]]
    graph = a.graph.but(outputs=(*a.graph.outputs, *more))
    like(a.session(graph).run(a.case.feeds), a.expected(), what=f"with {', '.join(more)} as outputs: ")


def some(a: Asked, session: Session) -> None:
    """Some outputs alone."""
    if len(a.graph.outputs) < 2:
        raise NotHere
    names = [str(n) for n in a.rng.permutation(list(a.graph.outputs))[: int(a.rng.integers(1, len(a.graph.outputs)))]]
    got = session.run(a.case.feeds, names=names)
    like(got, a.expected(), what=f"with {', '.join(names)} alone: ")
    like(session.run(a.case.feeds), a.expected(), what="after some outputs alone ")


def into_buffers(a: Asked, session: Session) -> None:
    """Results written into arrays that are given."""
    answers = session.run(a.case.feeds)
    buffers = {n: np.full_like(v, 1) for n, v in answers.items() if isinstance(v, np.ndarray) and v.dtype != object}
    fixed = {p.name for p in session.program.outputs if isinstance(p.type, Tensor) and p.type.static}
    buffers = {n: b for n, b in buffers.items() if n in fixed}
    if not buffers:
        raise NotHere
    session.run(a.case.feeds, outputs=buffers)
    like(buffers, a.expected(), what="in a buffer that was given ")
    like(session.run(a.case.feeds), a.expected(), what="after a run into buffers ")


def strided(a: Asked, session: Session) -> None:
    """Feeds that do not lie in one piece."""
    feeds = {}
    for n, x in a.case.feeds.items():
        wide = np.zeros((*x.shape, 2), x.dtype) if isinstance(x, np.ndarray) and x.dtype != object else None
        if wide is not None:
            wide[..., 0] = x
            x = wide[..., 0] if not x.ndim or a.rng.random() < 0.5 else np.asfortranarray(x)
        feeds[n] = x
    like(session.run(feeds), a.expected(), what="of strided feeds ")
    like(session.run(a.case.feeds), a.expected(), what="after strided feeds ")


def not_numbers(a: Asked, session: Session) -> None:
    """NaN and infinities among the feeds arrive where the references let them arrive."""
    feeds = a.case.feeds
    floats = [n for n, x in feeds.items() if isinstance(x, np.ndarray) and x.dtype == np.float32 and x.size]
    if not floats or a.switches.narrow:
        raise NotHere
    feeds = dict(feeds)
    name = str(a.rng.choice(floats))
    feeds[name] = np.copy(feeds[name])
    odd = np.float32(a.rng.choice((np.nan, np.nan, np.inf, -np.inf)))
    feeds[name].reshape(-1)[int(a.rng.integers(feeds[name].size))] = odd
    if np.isinf(odd) and any(n.op == "ConvTranspose" for _, n in a.graph.walk()):
        raise NotHere  # its borders are computed with zeros times what lies beside them: NaN, where that is infinite
    try:
        worlds = evaluated(infer(a.graph), feeds)
    except Exception as error:  # what is infinite becomes an index, or a size
        raise NotHere from error
    like(session.run(feeds), worlds, what=f"with {odd} in {name} ")
    like(session.run(a.case.feeds), a.expected(), what=f"after {odd} in {name} ")


def trained(a: Asked, session: Session) -> None:
    """One step of training moves the parameters as the references do, whose gradients agree with differences."""
    graph = infer(a.graph)
    floats = [
        o for o in graph.outputs if getattr(graph.types[o], "dtype", None) is DType.FLOAT and o not in graph.inputs
    ]
    known = [n for n, w in graph.initializers.items() if w.dtype == np.float32 and w.ndim and w.size]
    if not floats or not known:
        raise NotHere
    params = [str(n) for n in a.rng.permutation(known)[:3]]
    g = TypedBuilder(graph.types, prefix="loss/")
    loss = g.ReduceSum(g.Mul(floats[-1], floats[-1]), keepdims=0)
    g_nodes, g_constants = g.nodes(), g.constants()
    graph = graph.but(
        nodes=(*graph.nodes, *g_nodes), initializers={**graph.initializers, **g_constants}, types=g.types,
        outputs=(*graph.outputs, loss),
    )  # fmt: skip
    try:
        step = training_step(graph, loss, params, Step(SGD(rate=0.01)))
    except (UnsupportedModel, MezzoError) as error:
        if isinstance(error, UnsupportedModel) or "does not depend" in str(error):
            raise NotHere from error
        raise
    results = {s.name: s.output for s in step.states if s.name in params}
    whole = infer(step.but(outputs=tuple(dict.fromkeys((*step.outputs, *results.values())))))
    worlds = evaluated(whole, a.case.feeds, a.noise)
    learner = a.session(step)
    like(learner.run(a.case.feeds), worlds, what="while training ")
    like({n: learner.states[n] for n in params}, worlds, results, what="after one step of training ")


def differentiated(a: Asked, session: Session) -> None:
    """Gradients by our rules, and by differences, in float64."""
    if sum(np.size(x) for x in a.case.feeds.values()) > 2000 or len(a.graph.nodes) > 12:
        raise NotHere
    if any(n.op in SINGLE_ONLY for n in a.graph.nodes):
        raise NotHere
    try:
        case = case_of(a.graph, a.case.feeds)
    except MezzoError as error:
        raise NotHere from error  # an operator answers in float32 alone
    if case is None or any(getattr(dy, "dtype", None) == np.float32 for dy in case.dys.values()):
        raise NotHere  # none, or an operator on the way answers in float32 alone: differences would be noise
    try:
        grads = by_graph(case, case.graph)
    except UnsupportedModel as error:
        raise NotHere from error
    name = str(a.rng.choice(case.wrt))
    said = disagreement(case, grads, name, numeric(case.graph, case.feeds, case.dys, name, most=4))
    if said:
        raise Wrong(said)

"""`mezzo train`: trains a model on data, writes the trained model, and checks that the file answers as the training
did."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..importers import load_graph
from ..kvstore.environment import attempt
from ..kvstore.store import KVStore
from ..ops import Tensor
from ..ops.errors import Cancelled, InputError
from ..runtime.ir.graph import Graph
from ..runtime.ir.infer import infer
from ..train.checkpoint import exists
from ..train.head import output_of, with_head
from ..train.loss import loss_named
from ..train.shares import Share
from ..train.trainer import Trainer
from .batches import ALL, Data, Reading
from .curve import draw
from .datasets import read
from .exported import check_export
from .feeds import parse_sizes
from .fit import Course, Every
from .report import Report, Table
from .settings import Settings, check_places, optimizer

CLASSES = "cross_entropy"  # the loss that asks for classes
BATCH = 32
Watch = Callable[[Course], None]


def train(
    model: Path,
    data: Path,
    how: Settings,
    watch: Watch = lambda course: None,
    stop: Callable[[], bool] = lambda: False,
    kvstore: KVStore | None = None,
) -> Report | None:
    """Fine-tune MODEL on DATA and write it. `watch` gets the course before it begins; `stop` is asked after each step.

    With a store every worker of its job calls this; rank 0 writes, and the others return None.

    Raises InputError for settings and data that do not fit, Cancelled where the training was stopped (a checkpoint has
    been written then, if there is one), ExecutionError where the file does not do what was learned.
    """
    check_places(how)
    graph, learn, held, notes = _prepared(model, data, how)
    batch, whole = _batch(graph, how)
    share = ALL
    if kvstore is not None:
        share = Share(kvstore.rank, kvstore.num_workers, how.remainder == "pad")
        notes["workers"] = f"{share.count}, each with {batch} samples of a batch of {batch * share.count}"
        if remainder := share.told(len(learn), batch, whole=whole):
            notes["remainder"] = remainder
    first = share.rank == 0
    updates = how.epochs * share.steps(len(learn), batch, whole=whole) // how.gather
    if not updates:
        raise InputError(
            f"{len(learn)} samples make no update", where=str(data), hint="reduce --batch or --gather, or add --epochs"
        )
    trainer = Trainer(
        graph,
        loss=how.loss,
        optimizer=optimizer(how, updates),
        output=how.predict,
        train=how.train or None,
        freeze=how.freeze,
        clip_norm=how.clip_norm,
        clip_value=how.clip_value,
        gather=how.gather,
        amp=how.amp,
        seed=how.seed,
        device=how.device,
        threads=how.threads,
        kvstore=kvstore,
        zero=how.zero,
        buckets=bool(how.zero or how.wire),
        wire=how.wire,
    )
    course = Course(trainer, learn, held, batch, how.epochs, how.seed, whole, share, how.checkpoint)
    course.every, course.stop = Every.parse(how.every), stop
    if how.resume or (attempt() and how.checkpoint and exists(how.checkpoint)):
        course.resume()
        notes["resumed_at"] = f"epoch {course.epoch + 1}, batch {course.position + 1}"
    if first:
        watch(course)
    done = course.run()
    if how.curve and course.history.points and first:
        draw(course.history, f"{model.name} on {data.name}", how.curve)
        notes["curve"] = str(how.curve)
    if not done:
        kept = f"{how.checkpoint} keeps it" if how.checkpoint else "nothing was written"
        raise Cancelled(
            f"ended in epoch {course.epoch + 1} after {course.position} of {course.batches} batches; {kept}",
            where=str(model),
            hint="--resume goes on from there" if how.checkpoint else "--checkpoint FOLDER keeps what was learned",
        )
    if not first:
        return None
    trainer.export(how.output, opset=how.opset)
    return _report(model, course, how, notes)


# -- before ---------------------------------------------------------------------------------------------------------


def _prepared(model: Path, data: Path, how: Settings) -> tuple[Graph, Data, Data | None, dict[str, Any]]:
    """The graph with its head, the data to learn from and to validate with, and what to tell of them."""
    graph = infer(load_graph(model))
    name = output_of(graph, how.predict)
    notes: dict[str, Any] = {}
    if how.head is not None:
        graph = _headed(graph, how.head, how, notes)
    kind = None if how.loss == CLASSES else loss_named(how.loss).target
    asked = None if kind is None else kind(_tensor(graph, name))
    inputs = {n: _tensor(graph, n) for n in graph.signature.inputs if n not in graph.signature.defaults}
    sources = {n: tuple(text.split(",")) for n, text in parse_sizes(how.inputs).items()}
    unknown = [n for n in sources if n not in inputs]
    if unknown:
        raise InputError(f"there is no input {unknown[0]!r}", where="--input", hint=f"there are {', '.join(inputs)}")
    reading = Reading(inputs, asked, tuple(how.target), sources, (), _size(how.size), how.scale, how.mean, how.std)
    learn = read(data, reading)
    held = None
    if how.validation is not None:
        held = read(how.validation, replace(reading, names=learn.names))
    elif how.validate:
        learn, held = learn.split(how.validate, how.seed)
    if asked is None:
        graph = _for_classes(graph, name, learn, held, how, notes)
        if learn.names:
            notes["classes"] = ", ".join(learn.names[:20]) + (", ..." if len(learn.names) > 20 else "")
    return graph, learn, held, notes


def _size(given: tuple[float, ...]) -> tuple[int, int] | None:
    """Height and width; one number is both."""
    if len(given) > 2 or any(n < 1 or n != int(n) for n in given):
        raise InputError("the size of images is a height and a width", where="--size", hint="write 224 or 200,300")
    return (int(given[0]), int(given[-1])) if given else None


def _tensor(graph: Graph, name: str) -> Tensor:
    kind = graph.types[name]
    if not isinstance(kind, Tensor):
        raise InputError(
            f"{name!r} is {kind}, and no tensor", where=graph.name, hint="such a model is not trained here"
        )
    return kind


def _headed(graph: Graph, size: int, how: Settings, notes: dict[str, Any]) -> Graph:
    notes["head"] = f"a new one of {size}"
    try:
        return with_head(graph, size, output=how.predict, at=how.head_at, seed=how.seed)
    except InputError as error:
        raise InputError(error.message, where=error.where, hint=error.hint.replace("at=", "--head-at")) from error


def _for_classes(
    graph: Graph, name: str, learn: Data, held: Data | None, how: Settings, notes: dict[str, Any]
) -> Graph:
    """The graph with as many classes as the data have: with a new head, unless one was asked for."""
    dims = _tensor(graph, name).dims
    now = dims[1] if dims is not None and len(dims) > 1 else None
    wanted = max(learn.classes, held.classes if held else 0)
    enough = isinstance(now, int) and (now == wanted if learn.names else now >= wanted)
    if not enough and how.head is None and (isinstance(now, int) or how.head_at):
        return _headed(graph, wanted, how, notes)
    if isinstance(now, int) and wanted > now:
        raise InputError(
            f"the data have classes up to {wanted - 1}, the model {now} of them",
            where=learn.place,
            hint="--head gives more",
        )
    return graph


def _batch(graph: Graph, how: Settings) -> tuple[int, bool]:
    """The size of a batch, and whether the model takes no smaller one."""
    fixed = {
        t.dims[0]
        for n, t in graph.signature.inputs.items()
        if n not in graph.signature.defaults and isinstance(t, Tensor) and t.dims and isinstance(t.dims[0], int)
    }
    if not fixed:
        return how.batch or BATCH, False
    size = min(fixed)
    if how.batch not in (None, size) or len(fixed) > 1:
        raise InputError(
            f"the model takes batches of {', '.join(map(str, sorted(fixed)))} alone",
            where=graph.name,
            hint=f"leave --batch out; --gather {how.batch or 2} gathers the gradients of so many batches",
        )
    return size, True


# -- after ----------------------------------------------------------------------------------------------------------


def _report(model: Path, course: Course, how: Settings, notes: Mapping[str, Any]) -> Report:
    trainer, history = course.trainer, course.history
    seconds = sum(e.seconds for e in history.epochs)
    held = course.validation
    facts: dict[str, Any] = {
        "data": f"{len(course.data)} samples from {course.data.place}",
        "validation": f"{len(held)} samples from {held.place}" if held else "none",
        **notes,
        "parameters_trained": f"{sum(a.size for a in trainer.parameters.values()):,} in {len(trainer.trained)} tensors",
        "epochs_done": course.epoch,
        "updates": trainer.updates,
        "seconds": round(seconds, 2),
        "samples_per_second": round(len(course.data) * course.epoch / max(seconds, 1e-9), 1),
        "waiting_for_data": f"{course.waits.share:.0%} of the time",
        "written": str(how.output),
        "written_bytes": how.output.stat().st_size,
        **check_export(course, how.output, how.loss, how.threads),
    }
    if how.checkpoint:
        facts["checkpoint"] = str(how.checkpoint)
    first, last = history.epochs[0], history.epochs[-1]
    loss, accuracy = history.before or (None, None)
    rows = [
        ("loss on validation", _told(loss), _told(last.validation_loss)),
        ("accuracy on validation", _told(accuracy, ".2%"), _told(last.validation_accuracy, ".2%")),
        ("loss in the first and last epoch", _told(first.loss), _told(last.loss)),
        ("accuracy in the first and last epoch", _told(first.accuracy, ".2%"), _told(last.accuracy, ".2%")),
    ]
    result = Table("Result", ("", "before", "after"), [row for row in rows if any(row[1:])])
    numbers = Table("Epochs", tuple(asdict(last)), [tuple(asdict(e).values()) for e in history.epochs])
    return Report(str(model), facts, (result, numbers))


def _told(value: float | None, digits: str = ".4g") -> str:
    return "" if value is None else f"{value:{digits}}"

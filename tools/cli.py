"""The `mezzo` command. Every subcommand makes a report and shows it as tables or, with --json, as JSON."""

from __future__ import annotations

import errno
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np

from ..ops.errors import Cancelled, InputError, MezzoError
from . import feeds as inputs
from .cli_check import check, convert, coverage
from .cli_launch import launch, restarts_option
from .cli_pack import pack
from .cli_report import report
from .cli_serve import serve
from .cli_top import top
from .fills import given_arrays
from .modules import imported
from .replay import replay
from .report import Report, Table, parse_size, show

INTERRUPTED = 130  # what a shell says of a program that Ctrl-C ended


def _numbers(context: click.Context, option: click.Parameter, text: str | None) -> tuple[float, ...]:
    """Numbers with commas between them."""
    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is no list of numbers", context, option) from error


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
device_option = click.option("--device", default="cpu", show_default=True, help="cpu, gpu:0, or gpu:0@sm_90 to plan.")
precision_option = click.option(
    "--precision", default="auto", show_default=True, help="auto, fp32, tf32, bf16, fp16, ..."
)
model_argument = click.argument("model", type=click.Path(path_type=Path))
shape_option = click.option(
    "--dim",
    "--shape",
    "shapes",
    multiple=True,
    metavar="NAME=SIZES",
    help="An input's shape (x=1,3,224,224) or a dim (batch=8).",
)
seed_option = click.option("--seed", default=0, show_default=True, help="Of the random inputs.")


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(package_name="mezzo")
def cli() -> None:
    """Run, explain and check neural networks in ONNX files."""


cli.add_command(check)
cli.add_command(convert)
cli.add_command(launch)
cli.add_command(pack)
cli.add_command(coverage)
cli.add_command(replay)
cli.add_command(report)
cli.add_command(serve)
cli.add_command(top)


@cli.command()
@model_argument
@click.option("--input", "given", multiple=True, metavar="NAME=FILE.npy", help="An input from a .npy file.")
@click.option("--output", type=click.Path(path_type=Path), help="Write the outputs to this .npz file.")
@shape_option
@seed_option
@device_option
@precision_option
@json_option
def run(
    model: Path,
    given: tuple[str, ...],
    output: Path | None,
    shapes: tuple[str, ...],
    seed: int,
    device: str,
    precision: str,
    as_json: bool,
) -> None:
    """Run MODEL once; inputs that are not given are random."""
    from .load import load

    session = load(model, device=device, precision=precision)
    files = given_arrays(given)
    missing = {p.name for p in session.inputs} - set(files)
    feeds: dict[str, Any] = dict(files)
    if missing:
        sizes = inputs.shapes(session, inputs.parse_sizes(shapes))
        feeds |= {n: a for n, a in inputs.random_feeds(session, sizes, seed).items() if n in missing}
    results = session.run(feeds)
    if output:
        _write(output, results)
    rows = [(n, str(a.dtype), str(list(a.shape)), *_summary(a)) for n, a in _arrays(results)]
    facts = {"inputs": ", ".join(f"{n}{' (random)' if n in missing else ''}" for n in feeds)}
    table = Table("Outputs", ("output", "element type", "shape", "min", "mean", "max"), rows)
    show(Report(str(model), facts, (table,)), as_json=as_json)


@cli.command()
@model_argument
@click.option("--graph", is_flag=True, help="Operators before and after the passes.")
@click.option("--kernels", is_flag=True, help="The kernel of each step, and what declined.")
@click.option("--memory", is_flag=True, help="The arena, its bound, and who lives where.")
@click.option(
    "--time", is_flag=True, help="What a model expects of each step on a GPU: microseconds, and what bounds it."
)
@click.option("--card", default="", help="The GPU of --time: A100, H100 or H200 (default: by the architecture).")
@click.option("--html", type=click.Path(path_type=Path), help="Draw the memory plan into this HTML file.")
@click.option("--budget", metavar="SIZE", help="Find the largest batch whose arena fits, e.g. 2GiB.")
@click.option("--sizes", "walks", metavar="DIM=1..512", multiple=True, help="Plan for sizes of a dim; what each costs.")
@click.option("--buckets", type=click.Choice(["auto"]), help="Round sizes up where that is proven to change nothing.")
@click.option("--workers", type=click.IntRange(1), help="Plan a training on so many ranks: the memory of each.")
@click.option("--micro-batches", type=click.IntRange(2), help="Plan a training with a batch in so many parts (1F1B).")
@click.option("--optimizer", default="adam", show_default=True, help="Of --workers and --micro-batches.")
@click.option(
    "--place",
    "places",
    metavar="PATTERN=DEVICE",
    multiple=True,
    help="Parts of the model on other devices; auto: a placement that fits --room.",
)
@click.option("--room", "rooms", metavar="DEVICE=SIZE", multiple=True, help="Memory of a device for --place auto.")
@click.option("--split", metavar="DEVICES", help="Devices that share products of matrices: gpu:0,gpu:1.")
@device_option
@precision_option
@shape_option
@seed_option
@json_option
def explain(
    model: Path,
    card: str,
    html: Path | None,
    budget: str | None,
    walks: tuple[str, ...],
    buckets: Literal["auto"] | None,
    workers: int | None,
    micro_batches: int | None,
    optimizer: str,
    places: tuple[str, ...],
    rooms: tuple[str, ...],
    split: str | None,
    device: str,
    precision: str,
    shapes: tuple[str, ...],
    seed: int,
    as_json: bool,
    **flags: bool,
) -> None:
    """Show what MODEL becomes: graph, kernels and memory (default: all three).

    Open sizes that are not given are chosen: one sample, sides of 64, empty caches, or else what runs.
    """
    from ..runtime.compile.largest_batch import largest_batch
    from .explain import explain as report
    from .fills import first_that_runs
    from .load import load
    from .timeline import timeline

    facts: dict[str, Any] = {}
    if device.partition(":")[0] == "gpu":
        from ..runtime.devices import plannable

        device, missing = plannable(device)
        facts |= {"only_planned": missing} if missing else {}
    if split is not None and (places or workers is not None or micro_batches):
        raise InputError("--split beside --place, --workers or --micro-batches", hint="explain one after the other")
    if workers is not None and (places or micro_batches):
        raise InputError(f"{'--place' if places else '--micro-batches'} beside --workers",
                         hint="explain them one after the other")  # fmt: skip
    if workers is not None:
        from ..importers import load_graph
        from .explain_training import scaling_of, training_table

        graph, asked = load_graph(model), inputs.parse_sizes(shapes)
        planned = [training_table(graph, workers, optimizer, asked, seed, device)]
        if flags.get("time"):
            planned.append(scaling_of(graph, workers, optimizer, asked, seed, device, card))
        show(Report(str(model), facts, planned), as_json=as_json)
        return
    place: Any = inputs.parse_sizes(() if places == ("auto",) else places) or None
    if split is not None:
        from ..runtime.passes.place import TensorParallel

        place = TensorParallel(split)
    room = {d: parse_size(text) for d, text in inputs.parse_sizes(rooms).items()}
    if room and places != ("auto",):
        raise InputError("--room without --place auto", hint="add --place auto")
    if places == ("auto",):
        from .fills import auto_place

        place, device = auto_place(load(model, precision=precision), room, inputs.parse_sizes(shapes), seed), "cpu"
    if micro_batches is not None:
        from .explain_training import pipeline_report

        show(pipeline_report(model, place, micro_batches, optimizer, inputs.parse_sizes(shapes), seed, device, facts),
             as_json=as_json)  # fmt: skip
        return
    session = load(model, device=device, place=place, precision=precision, buckets=buckets)
    limit = parse_size(budget) if budget else None
    parts = tuple(part for part, on in flags.items() if on) or (() if walks else ("graph", "kernels", "memory"))

    def report_of(feeds: dict[str, Any]) -> tuple[Report, dict[str, tuple[int, ...]]]:
        return report(session, feeds, parts, card=card, room=room), {n: np.shape(a) for n, a in feeds.items()}

    chosen, (summary, sizes) = first_that_runs(session, inputs.parse_sizes(shapes), seed, report_of)
    facts |= {"sizes_chosen": chosen} if chosen else {}
    if html:
        html.write_text(timeline(session.program, model.name), "utf8")
        facts["picture"] = str(html)
    if limit is not None:
        dim, batch, arena = largest_batch(session, sizes, limit)
        facts |= {"largest_batch": batch, "its_dim": dim, "its_arena_bytes": arena}
    tables = [*summary.tables]
    for walk in walks:
        from .explain_sizes import explain_sizes, parse_walk

        table, about = explain_sizes(session, *parse_walk(walk), inputs.parse_sizes(shapes), seed)
        tables, facts = [*tables, table], facts | about
    show(Report(summary.title, {**summary.facts, **facts}, tables), as_json=as_json)


@cli.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option(
    "--gpu", is_flag=True, help="Test a GPU and our kernels on it, in less than a minute (3: something fails)."
)
@click.option("--device", default="gpu:0", show_default=True, help="The GPU that --gpu tests.")
@json_option
def doctor(file: Path | None, gpu: bool, device: str, as_json: bool) -> None:
    """Show versions, devices and features, and why one is off; or read all of a .mezzo FILE (exit code 3: damaged)."""
    from . import doctor as reports

    if gpu:
        from .gpu_selftest import self_test

        report, code = self_test(device)
    else:
        report, code = reports.doctor_file(file) if file else (reports.doctor(), 0)
    show(report, as_json=as_json)
    sys.exit(code)


@cli.command(name="compile")
@model_argument
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The .mezzo file to write.")
@click.option("--portable", is_flag=True, help="The graph alone, without programs for this machine.")
@shape_option
@click.option(
    "--sizes",
    "walks",
    multiple=True,
    metavar="DIM=RANGE",
    help="Programs for all sizes of a dim, rounded up where that changes nothing: length=1..512.",
)
@click.option("--conversation", type=int, metavar="ROWS", help="Programs for a decoder's conversations of up to ROWS.")
@json_option
def compile_command(
    model: Path,
    output: Path,
    portable: bool,
    shapes: tuple[str, ...],
    walks: tuple[str, ...],
    conversation: int | None,
    as_json: bool,
) -> None:
    """Write MODEL as a .mezzo file. A --shape name that is given again makes one more program."""
    from .compile import SizesToPlan, compile_model

    planned = SizesToPlan(shapes, walks, conversation)
    show(compile_model(model, output, planned, portable=portable), as_json=as_json)


@cli.command()
@model_argument
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The .pyz file to write.")
@json_option
def bundle(model: Path, output: Path, as_json: bool) -> None:
    """Put MODEL and the runtime into one file that needs numpy alone: python app.pyz --input x=x.npy."""
    from .bundle import bundle as report

    show(report(model, output), as_json=as_json)


@cli.command()
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--rounding", "roundings", multiple=True, help="naive, unpooled, round:EXPONENT; several are compared.")
@click.option("--limit", metavar="SIZE", help="What the pool may take.")
@click.option("--keep", default="256MiB", show_default=True, metavar="SIZE", help="What may lie ready.")
@json_option
def memory(trace: Path, roundings: tuple[str, ...], limit: str | None, keep: str, as_json: bool) -> None:
    """Replay TRACE (of mz.memory.record) on pools of several rules: peaks, waste, and blocks that had to be made."""
    from .memory import memory as report

    result = report(trace, roundings, limit=parse_size(limit) if limit else None, keep=parse_size(keep))
    show(result, as_json=as_json)


@cli.command()
@click.option(
    "--picture", default="digits.png", show_default=True, type=click.Path(path_type=Path), help="Where to draw."
)
@json_option
def demo(picture: Path, as_json: bool) -> None:
    """Read handwritten digits with a network that PyTorch trained, check every answer, and teach it turned digits."""
    from rich.progress import Progress

    from .demo import demo as report
    from .demo import ticks

    with Progress(disable=as_json, transient=True) as progress:
        task = progress.add_task("reading digits", total=ticks())
        result = report(picture, lambda: progress.advance(task))
    show(result, as_json=as_json)


@cli.command()
@model_argument
@click.option("--against", multiple=True, type=click.Choice(["ort"]), help="Compare with this engine (ONNX Runtime).")
@click.option("--accuracy", is_flag=True, help="The error of each --precision against fp32, instead of times.")
@click.option("--precision", "precisions", multiple=True, help="What ours computes in; several for --accuracy.")
@click.option("--rounds", default=15, show_default=True, type=click.IntRange(1), help="Of each engine in turn.")
@click.option("--seconds", default=0.2, show_default=True, help="At least so long for a round.")
@click.option("--threads", default=None, type=click.IntRange(1), help="Of each engine; all processors if not given.")
@click.option("--input", "given", multiple=True, metavar="NAME=FILE.npy", help="An input from a .npy file.")
@shape_option
@seed_option
@click.option(
    "--json", "into", is_flag=False, flag_value="-", metavar="[FILE]", help="Write JSON into FILE, or print it."
)
def bench(
    model: Path, given: tuple[str, ...], shapes: tuple[str, ...], seed: int, into: str | None, **how: Any
) -> None:
    """Time MODEL, each engine in a process of its own and in turn: medians, ratios, peak memory, time to load."""
    from .bench import bench as report

    files = given_arrays(given)
    result = report(model, files, shapes, seed, **how)
    if into and into != "-":
        Path(into).write_text(result.json_text() + "\n", "utf8")
    show(result, as_json=into == "-")


class _Again(click.Command):
    """A command that can be passed on to another process as it was called."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["given"] = list(args)
        return super().parse_args(ctx, args)


@cli.command(cls=_Again)
@model_argument
@click.argument("data", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="The ONNX file to write.")
@click.option(
    "--import", "modules", multiple=True, metavar="MODULE", help="Import it first: what it registers has a name here."
)
@click.option("--loss", default="cross_entropy", show_default=True, help="Or mse, l1, huber, binary_cross_entropy.")
@click.option("--predict", metavar="NAME", help="The output that learns, of a model with several.")
@click.option("--train", multiple=True, metavar="PATTERN", help="Train these weights alone (classifier.*).")
@click.option("--freeze", multiple=True, metavar="PATTERN", help="Leave these weights as they are.")
@click.option(
    "--head", type=click.IntRange(1), help="A new head of so many classes; by default where the data need it."
)
@click.option("--head-at", metavar="NAME", help="The value that the new head reads.")
@click.option(
    "--input", "inputs", multiple=True, metavar="NAME=ARRAY", help="An input's array, or its columns (a,b,c)."
)
@click.option("--target", multiple=True, metavar="NAME", help="The array or column of what is asked for.")
@click.option("--size", callback=_numbers, metavar="H[,W]", help="Of images, where the model leaves it open.")
@click.option("--scale", type=float, help="What pixels (0 to 255) are multiplied by.  [default: 1/255]")
@click.option("--mean", callback=_numbers, metavar="M[,...]", help="Of each channel, after --scale.")
@click.option("--std", callback=_numbers, metavar="S[,...]", help="Of each channel, after --scale.")
@click.option(
    "--validate",
    default=0.1,
    show_default=True,
    type=click.FloatRange(0, 1, max_open=True),
    help="The share of DATA set aside.",
)
@click.option("--validation", type=click.Path(path_type=Path), help="Data to validate with, instead.")
@click.option(
    "--optimizer",
    default="adam",
    show_default=True,
    help="Or sgd, nag, adamw, nadam, lamb, rmsprop, ...: all of mezzo.optimizer by name.",
)
@click.option("--rate", type=float, help="The learning rate.  [default: the optimizer's]")
@click.option("--momentum", type=float)
@click.option("--weight-decay", type=float)
@click.option(
    "--schedule", default="constant", show_default=True, help="Or step, cosine, polynomial, one-cycle, warm-up."
)
@click.option(
    "--warm-up",
    type=click.IntRange(1),
    metavar="UPDATES",
    help="The rate rises for so long, before the schedule begins.",
)
@click.option(
    "--set", "more", multiple=True, metavar="NAME=VALUE", help="More settings of optimizer and schedule (beta2=0.98)."
)
@click.option("--epochs", default=5, show_default=True, type=click.IntRange(1))
@click.option("--batch", type=click.IntRange(1), help="Samples of a batch.  [default: 32, or what the model takes]")
@click.option("--gather", default=1, show_default=True, type=click.IntRange(1), help="Batches of an update.")
@click.option("--clip-norm", type=float, help="The largest norm of all gradients together.")
@click.option("--clip-value", type=float, help="The largest element of a gradient.")
@click.option("--amp", type=click.Choice(["bf16", "fp16"]), help="Mixed precision.")
@click.option("--seed", default=0, show_default=True, help="Of shuffling, setting aside, dropout and a new head.")
@click.option("--device", default="cpu", show_default=True,
              help="cpu, gpu:0, gpu:0,gpu:1 for both; with -n gpu: one for each process.")  # fmt: skip
@click.option("--threads", type=click.IntRange(1), help="Of each step; all processors if not given.")
@click.option("--zero", default="0", show_default=True, type=click.Choice(["0", "1", "2"]),
              callback=lambda _context, _option, level: int(level),
              help="Of -n: share out the optimizer's states (1), and sums of gradients (2).")  # fmt: skip
@click.option("--wire", type=click.Choice(["fp32", "bf16", "fp16"]), help="Of -n: the type of gradients on their way.")
@click.option(
    "-n", "--workers", type=click.IntRange(1), help="Train in so many processes; --batch is what each has of a batch."
)
@click.option(
    "--remainder",
    default="drop",
    show_default=True,
    type=click.Choice(["drop", "pad"]),
    help="Samples that so many processes cannot share: left out, or learned twice.",
)
@click.option(
    "--checkpoint", type=click.Path(path_type=Path), metavar="FOLDER", help="Where the training is kept, at Ctrl-C too."
)
@click.option("--every", default="1epoch", show_default=True, metavar="TIME", help="How often: 2epochs, 500steps.")
@restarts_option
@click.option("--resume", is_flag=True, help="Go on from the checkpoint, to the same bits.")
@click.option(
    "--curve", type=click.Path(path_type=Path), metavar="FILE", help="Draw the training into this .svg or .html file."
)
@click.option("--opset", type=click.IntRange(1), help="Of the ONNX file.  [default: that of MODEL]")
@click.option("--quiet", is_flag=True, help="Show nothing while training.")
@click.option(
    "--json", "into", is_flag=False, flag_value="-", metavar="[FILE]", help="Write JSON into FILE, or print it."
)
@click.pass_context
def train(
    context: click.Context,
    /,
    model: Path,
    data: Path,
    quiet: bool,
    into: str | None,
    workers: int | None,
    restarts: int,
    modules: tuple[str, ...],
    **options: Any,
) -> None:
    """Fine-tune MODEL on DATA: an .npz, a .csv, a .rec, or a folder with a folder of images for each class.

    Exit code 130: stopped by Ctrl-C.
    """
    from ..kvstore.environment import present
    from .settings import Settings
    from .train import train as report
    from .watch import Watch, interruptible

    imported(modules)
    how, kvstore = Settings(**options), None
    if workers is not None:
        if not present():  # before this process has run anything: the workers do the same again, as a job
            from .crew import Member
            from .launch import Scale, gpus_for, launch, members
            from .settings import check_places

            if workers > 1 and how.device.startswith("gpu:"):
                raise click.UsageError(f"{workers} processes on {how.device}: --device gpu gives each one of its own")
            check_places(how)  # a later attempt goes on from the folder's checkpoint
            again = (sys.executable, "-m", "mezzo", "train", *context.meta["given"])
            count, own = workers, gpus_for(workers) if how.device == "gpu" else ()

            def job(scale: Scale) -> tuple[Member, ...]:
                return members(again, count, 0, attempt=scale.attempt, gpus=own)

            if code := launch(job, bare={"worker 0"}, restarts=restarts, workers=workers):
                sys.exit(code)
            return
        from ..kvstore.create import create

        kvstore = create("dist_sync" if how.device == "cpu" else "nccl")
    with kvstore or nullcontext(), interruptible() as asked, Watch(quiet=quiet or into == "-") as watch:
        result = report(model, data, how, watch, asked.is_set, kvstore)
    if result is None:
        return
    if into and into != "-":
        Path(into).write_text(result.json_text() + "\n", "utf8")
    show(result if into == "-" else Report(result.title, result.facts, result.tables[:1]), as_json=into == "-")


def _write(path: Path, results: dict[str, Any]) -> None:
    """Write all outputs into one .npz, replaced atomically."""
    part = path.with_suffix(path.suffix + ".part")
    with part.open("wb") as file:
        np.savez(file, **dict(_arrays(results)))
    part.replace(path)


def _arrays(results: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(n, np.asarray(a)) for n, a in results.items()]


def _summary(array: Any) -> tuple[str, str, str]:
    if not array.size or array.dtype.kind not in "biuf":
        return ("", "", "")
    return (f"{array.min():.6g}", f"{array.mean():.6g}", f"{array.max():.6g}")


def main() -> None:
    """Entry point: errors of ours, and files that cannot be read or written, become one message and exit code 2, a
    training that was stopped 130."""
    try:
        cli()
    except Cancelled as error:
        click.echo(f"mezzo: {error}", err=True)
        sys.exit(INTERRUPTED)
    except MezzoError as error:
        click.echo(f"mezzo: {type(error).__name__}: {error}", err=True)
        sys.exit(2)
    except OSError as error:
        if error.filename is None and error.errno != errno.ENOSPC:  # no file that somebody gave, nor what is printed
            raise
        click.echo(f"mezzo: {error.filename or 'standard output'}: {error.strerror}", err=True)
        if error.filename is None:
            os._exit(2)  # at a usual end Python would write the rest again, and tell of that
        sys.exit(2)
    except MemoryError as error:
        click.echo(f"mezzo: there is not enough memory: {error}", err=True)
        sys.exit(2)


__all__ = ["cli", "main"]

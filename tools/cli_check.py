"""The subcommands `check`, `convert` and `coverage` of the `mezzo` command."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from ..ops.errors import InputError
from .report import parse_size, show

BAD_CALL = 4  # 2, the usual, means here that numbers differ

WIDE = 160  # where nobody looks at a terminal: logs of CI


class Check(click.Command):
    """The command, whose exit code is BAD_CALL where it cannot be read."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            error.exit_code = BAD_CALL  # type: ignore[misc]
            raise


def _places(*files: Path | None) -> None:
    """Raise InputError for a file that cannot be written, before anything is checked."""
    for path in filter(None, files):
        if path.is_dir() or not path.absolute().parent.is_dir():
            why = "this is a folder" if path.is_dir() else "there is no such folder"
            raise InputError(
                f"it cannot be written: {why}", where=str(path), hint="give a file in a folder that is there"
            )


@click.command(cls=Check)
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option("--train", is_flag=True, help="Can it be trained too?")
@click.option("--opset", type=click.IntRange(1), help="Can it be exported at this opset too?")
@click.option("--device", default="cpu", show_default=True, help="Where it is to run.")
@click.option(
    "--against",
    metavar="WHOM",
    help="Compare numbers: onnxruntime, onnxruntime-gpu, reference (ONNX's evaluator), another model file, an .npz "
    "that was recorded, or steps (each step of the program with the operators that it stands for).",
)
@click.option(
    "--dim",
    "--shape",
    "sizes",
    multiple=True,
    metavar="NAME=SIZE",
    help="Of an open dim (n=4), or of an input (x=1,3).",
)
@click.option("--input", "inputs", multiple=True, metavar="NAME=FILE.npy", help="An input, in place of random numbers.")
@click.option(
    "--import",
    "modules",
    multiple=True,
    metavar="MODULE",
    help="Import it first, a name or a file NAME.py: operators that it registers are known.",
)
@click.option("--seed", default=0, show_default=True, help="Of the random inputs.")
@click.option(
    "--tolerance", multiple=True, metavar="[TYPE=]NUMBER", help="Largest difference over largest magnitude (1e-3)."
)
@click.option("--record", metavar="REF.npz", help="Store inputs and all values between, to compare with later.")
@click.option("--record-limit", default="1GiB", show_default=True, metavar="SIZE", help="The most that is stored.")
@click.option(
    "--round-trip/--no-round-trip", default=None, help="Export, import and run again.  [default: with --against]"
)
@click.option("--jobs", type=click.IntRange(1), help="Processes for many models; as many as processors if not given.")
@click.option(
    "--json", "into", is_flag=False, flag_value="-", metavar="[FILE]", help="Write JSON into FILE, or print it."
)
@click.option("--junit", type=click.Path(path_type=Path), metavar="FILE", help="Write a JUnit report.")
@click.option("--sarif", type=click.Path(path_type=Path), metavar="FILE", help="Write SARIF, for code hosts.")
@click.option(
    "--baseline", type=click.Path(path_type=Path), metavar="FILE", help="Known problems: only what is new fails."
)
@click.option(
    "--write-baseline", type=click.Path(path_type=Path), metavar="FILE", help="Make these problems the known ones."
)
@click.option("--markdown", type=click.Path(path_type=Path), metavar="FILE", help="Write a summary in Markdown.")
@click.option(
    "--github/--no-github", default=None, help="Annotations for GitHub.  [default: where GITHUB_ACTIONS is set]"
)
def check(
    models: tuple[str, ...],
    jobs: int | None,
    into: str | None,
    junit: Path | None,
    markdown: Path | None,
    sarif: Path | None,
    baseline: Path | None,
    write_baseline: Path | None,
    github: bool | None,
    record_limit: str,
    **asked: Any,
) -> None:
    """Tell whether each MODEL is covered, and whether its numbers are right: files, or patterns in quotes.

    Exit code: 0 all is good, 1 something is not covered, 2 numbers differ, 3 a file is bad; of many the worst, and
    known problems (--baseline) do not count. A call that makes no sense exits with 4.
    """
    from rich.console import Console
    from rich.progress import Progress

    from . import check_reports as written
    from .check_baseline import Baseline
    from .check_files import check_files, paths
    from .check_options import Options

    errors = Console(stderr=True)
    printed = into == "-"
    try:
        _places(junit, markdown, sarif, None if not into or printed else Path(into))
        known = Baseline.read(baseline) if baseline else Baseline()
        files, options = paths(models), Options(**asked, record_limit=parse_size(record_limit))
        with Progress(console=errors, transient=True, disable=len(files) < 2 or not errors.is_terminal) as progress:
            task = progress.add_task("checking", total=len(files))
            verdicts = check_files(files, options, jobs=jobs, tell=lambda _: progress.advance(task))
        verdicts = [known.marked(verdict) for verdict in verdicts]
        if write_baseline:
            before = Baseline.read(write_baseline) if write_baseline.exists() else Baseline()
            before.write(write_baseline, verdicts)
    except InputError as error:
        click.echo(f"mezzo: {error}", err=True)
        sys.exit(BAD_CALL)
    if printed:
        print(written.as_json(verdicts))
    else:
        for report in written.reports(verdicts):
            show(report, as_json=False, width=WIDE)
    if github if github is not None else "GITHUB_ACTIONS" in os.environ:
        for line in written.github(verdicts):
            click.echo(line, err=printed)  # GitHub reads both; JSON stays JSON
    whole = Path(into) if into and not printed else None
    texts = {junit: written.junit, markdown: written.markdown, sarif: written.sarif, whole: written.as_json}
    try:
        for path, make in texts.items():
            if path:
                path.write_text(make(verdicts) + ("\n" if path is whole else ""), "utf8")
    except OSError as error:
        click.echo(f"mezzo: {error}", err=True)
        sys.exit(BAD_CALL)
    sys.exit(written.worst(verdicts))


@click.command()
@click.argument("source", metavar="IN", type=click.Path(path_type=Path))
@click.argument("output", metavar="OUT", type=click.Path(path_type=Path))
@click.option(
    "--opset", type=click.IntRange(1), help="Of an .onnx file.  [default: the lowest that expresses the model]"
)
@click.option("--precision", type=click.Choice(["fp16", "bf16"]), help="Cast weights and computation.")
@click.option("--keep-io", type=bool, default=True, show_default=True, help="Inputs and outputs keep their types.")
@click.option(
    "--external-data",
    type=click.Choice(["always", "never", "auto"]),
    default="auto",
    show_default=True,
    help="Weights of an .onnx file in a file of their own; auto: where they are too large for one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def convert(as_json: bool, **how: Any) -> None:
    """Write the model in IN as OUT, an .onnx or .mezzo file: at another opset, in 16 bits, weights inside or beside."""
    from .convert import convert as report

    show(report(**how), as_json=as_json)


@click.command()
@click.argument("operators", nargs=-1, metavar="[OPERATOR]...")
@click.option("--jobs", type=click.IntRange(1), help="Processes; as many as processors if not given.")
@click.option(
    "--json", "into", is_flag=False, flag_value="-", metavar="[FILE]", help="Write every cell into FILE, or print it."
)
@click.option("--markdown", type=click.Path(path_type=Path), metavar="FILE", help="Write the page (docs/coverage.md).")
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="Draw every cell into a page.")
def coverage(
    operators: tuple[str, ...], jobs: int | None, into: str | None, markdown: Path | None, html: Path | None
) -> None:
    """Run the samples of each OPERATOR (Relu, ai.onnx.ml::Scaler; all by default) at every opset and in every element
    type, and tell what runs, trains, leaves as ONNX, and on which kernels. All of them take minutes."""
    from rich.console import Console
    from rich.progress import Progress

    from . import coverage_page as written
    from .coverage import coverage as table

    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        task = progress.add_task("running samples", total=None)
        results = table(*operators, jobs=jobs, tell=lambda _, total: progress.update(task, advance=1, total=total))
    for path, make in ((markdown, written.markdown), (html, written.html)):
        if path:
            path.write_text(make(results), "utf8")
    if into and into != "-":
        Path(into).write_text(written.as_json(results) + "\n", "utf8")
    if into == "-":
        print(written.as_json(results))
    else:
        show(written.report(results), as_json=False, width=WIDE)

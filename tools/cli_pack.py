"""`mezzo pack`: images into record files, and the check of such files."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ..ops.errors import InputError
from .report import Report, Table, show

DAMAGED = 3  # exit code


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="The .rec file to write.")
@click.option("--verify", is_flag=True, help="SOURCE is a .rec file: read and decode all of it (exit code 3: damaged).")
@click.option("--index", is_flag=True, help="SOURCE is a .rec file: write its index anew.")
@click.option("--root", type=click.Path(path_type=Path), help="Of the paths in a list.  [default: the list's folder]")
@click.option("--resize", type=click.IntRange(1), metavar="PIXELS", help="The most that a shorter side has.")
@click.option("--quality", default=95, show_default=True, type=click.IntRange(1, 100), help="Of what is encoded again.")
@click.option("--encoding", default="JPEG", show_default=True, type=click.Choice(["JPEG", "PNG", "WEBP"]))
@click.option(
    "--shards", default=1, show_default=True, type=click.IntRange(1), help="Files of equal numbers of images."
)
@click.option("--shuffle/--in-order", default=True, show_default=True, help="The order of records.")
@click.option("--seed", default=0, show_default=True, help="Of the order.")
@click.option("--workers", type=click.IntRange(0), help="Processes.  [default: one for each processor]")
@click.option("--skip-bad", is_flag=True, help="Leave out images that cannot be read, and name them.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def pack(
    source: Path,
    output: Path | None,
    verify: bool,
    index: bool,
    root: Path | None,
    resize: int | None,
    quality: int,
    encoding: str,
    shards: int,
    shuffle: bool,
    seed: int,
    workers: int | None,
    skip_bad: bool,
    as_json: bool,
) -> None:
    """Pack the images of SOURCE (a folder with a folder for each class, or a .lst list) into a record file.

    Images keep their bytes unless they are resized. Beside OUT.rec lie its index (.idx), checksums (.sum) and the names
    of the classes (.classes).
    """
    if verify or index:
        if output is not None or verify == index:
            raise InputError("--verify and --index are alone", where="pack", hint="mezzo pack --verify photos.rec")
        sys.exit(_verify(source, workers, as_json) if verify else _index(source, as_json))
    if output is None:
        raise InputError("nowhere to write to", where="pack", hint="give -o photos.rec")
    from rich.progress import MofNCompleteColumn, Progress

    from ..data.packing import Recipe, items_of, pack_images

    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), disable=as_json, transient=True) as bar:
        task = bar.add_task("packing", total=len(items_of(source, root)[0]))
        packed = pack_images(
            source,
            output,
            Recipe(resize, quality, encoding),
            root=root,
            shards=shards,
            shuffle=shuffle,
            seed=seed,
            workers=workers,
            skip_bad=skip_bad,
            progress=lambda done: bar.advance(task, done),
        )
    facts = {
        "records": packed.records,
        "bytes": packed.bytes,
        "classes": ", ".join(packed.classes[:20]) or "numbers of the list",
        "skipped": len(packed.skipped),
    }
    tables = [Table("Files", ("file",), [(str(f),) for f in packed.files])]
    if packed.skipped:
        tables.append(Table("Skipped images", ("image", "why"), packed.skipped))
    show(Report(str(source), facts, tables), as_json=as_json)


def _verify(path: Path, workers: int | None, as_json: bool) -> int:
    """Report on all records of a file; the exit code."""
    from rich.progress import Progress

    from ..data.packing import verify_records

    with Progress(disable=as_json, transient=True) as bar:
        task = bar.add_task("reading", total=None)
        verified = verify_records(path, workers=workers, progress=lambda done: bar.advance(task, done))
    facts = {
        "records": verified.records,
        "damaged": len(verified.damaged),
        "index": "there" if verified.index else "missing: --index writes it",
        "checksums": "compared" if verified.checksums else "none: damage of pixels is not told",
    }
    tables = [Table("Damaged records", ("record", "why"), verified.damaged)] if verified.damaged else []
    show(Report(str(path), facts, tables), as_json=as_json)
    return DAMAGED if verified.damaged else 0


def _index(path: Path, as_json: bool) -> int:
    """Write the index of a file anew; the exit code."""
    from ..data.records import rebuild_index

    index = rebuild_index(path)
    facts = {"records": len(index.begins) - len(index.damage), "damaged": len(index.damage)}
    rows = [(f"record {n} at byte {index.begins[n]}", why) for n, why in index.damage.items()]
    show(Report(str(path), facts, [Table("Damaged records", ("record", "why"), rows)] if rows else []), as_json=as_json)
    return DAMAGED if index.damage else 0

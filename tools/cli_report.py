"""`mezzo report`: how a job went, from the traces of its workers."""

from __future__ import annotations

from pathlib import Path

import click

from .report import show


@click.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write an HTML page that needs nothing else.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def report(folder: Path, output: Path | None, as_json: bool) -> None:
    """Tell how a job went whose workers have written their traces to FOLDER (`mezzo launch --trace FOLDER`).

    What the steps of each worker were made of, who waited for whom, the slowest keys, bytes by level; and on the page
    the same as pictures, over time, with the loss.
    """
    from ..runtime.files import replace_file
    from .job import TracedJob

    job = TracedJob.read(folder)
    if output is not None:
        from .job_page import page

        replace_file(output, [page(job).encode()])
    show(job.report(), as_json=as_json, width=160)

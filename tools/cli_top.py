"""`mezzo top`: how the processes of a running job get on, once or again and again."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from .report import Report, show

ENDED, FAILED = 0, 3  # exit codes: the job has ended, or failed


@click.command()
@click.argument("job", required=False, type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Show it once.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a line for each look.")
@click.option("--every", default=1.0, show_default=True, type=click.FloatRange(0.1), help="Seconds between two looks.")
def top(job: Path | None, once: bool, as_json: bool, every: float) -> None:
    """Show how a running JOB gets on: the file of `mezzo launch --job FILE`, or the job of the environment.

    For each worker: steps, their rate, loss, what a step is made of, bytes within the host and between hosts, how far
    pulls are behind, and when it was heard last. Exit code 3: the job has failed, and why is shown.
    """
    from ..kvstore.onlooker import Onlooker
    from .top import job_of, show_view, view

    with Onlooker(job_of(job)) as looking:
        try:
            while (overview := looking.look()) is not None:
                show_view(view(overview), as_json, clear=not once)
                if once:
                    return
                looking.rest(every)
        except KeyboardInterrupt:
            return
        end = {"failed": looking.failure} if looking.failure else {"ended": "well"}
        print(json.dumps(end)) if as_json else show(Report("The job", end), as_json=False)
        sys.exit(FAILED if looking.failure else ENDED)

"""`mezzo serve`: models over HTTP."""

from __future__ import annotations

import math
from typing import Any

import click

from .report import parse_size


class Time(click.FloatRange):
    """A number above 0, or 0 where `zero` says so, that is one: a NaN passes all comparisons of a range."""

    def __init__(self, zero: bool = False) -> None:
        super().__init__(0, min_open=not zero)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        return number if math.isfinite(number) else self.fail(f"{value} is no time.", param, ctx)


@click.command()
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
@click.option("--host", default="127.0.0.1", show_default=True, help="0.0.0.0: all networks of this machine.")
@click.option("--port", default=8000, show_default=True, type=click.IntRange(0, 65535))
@click.option(
    "--workers", default=1, show_default=True, type=click.IntRange(1), help="Processes, each with all models."
)
@click.option(
    "--batch", default=1, show_default=True, type=click.IntRange(1, 1024), help="Rows of requests that run together."
)
@click.option(
    "--wait", default=0.0, show_default=True, type=Time(zero=True), help="Milliseconds that a request waits for others."
)
@click.option("--instances", default=1, show_default=True, type=click.IntRange(1), help="Runs of a model at once.")
@click.option("--threads", default=None, type=click.IntRange(1), help="Of each run; all processors if not given.")
@click.option("--device", default="cpu", show_default=True)
@click.option("--precision", default="auto", show_default=True)
@click.option("--dim", "dims", multiple=True, metavar="NAME=SIZE", help="A size of an open dim to plan for at first.")
@click.option("--max-memory", metavar="SIZE", help="Arenas and programs of each model.")
@click.option("--max-request", default="64MiB", show_default=True, metavar="SIZE", help="One request.")
@click.option("--max-json", default="8MiB", show_default=True, metavar="SIZE", help="What of it is JSON.")
@click.option("--max-held", default="256MiB", show_default=True, metavar="SIZE", help="All requests together.")
@click.option("--max-line", default=1000, show_default=True, type=click.IntRange(1), help="Requests in line.")
@click.option("--deadline", default=None, type=Time(), help="Seconds in which a request is answered, or refused.")
@click.option(
    "--arrive", default=30.0, show_default=True, type=Time(), help="Seconds in which a request must have come."
)
@click.option("--log-requests", "every", is_flag=True, help="A line for each request.")
def serve(
    models: tuple[str, ...],
    host: str,
    port: int,
    workers: int,
    batch: int,
    wait: float,
    max_memory: str | None,
    max_request: str,
    max_json: str,
    max_held: str,
    max_line: int,
    deadline: float | None,
    arrive: float,
    every: bool,
    instances: int,
    threads: int | None,
    device: str,
    precision: str,
    dims: tuple[str, ...],
) -> None:
    """Serve MODELs (files, NAME=PATH, or folders of NAME/VERSION/model.onnx) by the Open Inference Protocol over HTTP.

    /v2/health/ready answers 200 when all are loaded and warm; /metrics has counters for Prometheus.
    """
    from .serve.app import Limits
    from .serve.run import serve as run
    from .serve.served import Serving

    settings = Serving(
        rows=batch, wait=wait / 1e3, instances=instances, line=max_line, device=device, precision=precision,
        threads=threads, max_memory=parse_size(max_memory) if max_memory else None, dims=dims,
    )  # fmt: skip
    limits = Limits(parse_size(max_request), parse_size(max_json), parse_size(max_held), arrive, deadline)
    run(models, settings, limits, host, port, workers, every)

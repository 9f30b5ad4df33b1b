"""The view of `mezzo top`: how the processes of a running job get on, as plain data and as tables."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

import click

from ..kvstore.environment import Environment
from ..kvstore.onlooker import job_in
from ..kvstore.protocol.messages import Overview
from ..kvstore.protocol.pace import PARTS, Split, straggler
from ..ops.errors import InputError
from .report import Report, Table, show, size

SILENT = 5.0  # seconds beyond three steps after which a worker is called silent
RATES = {"inside": "inside/s", "between": "between/s"}  # bytes
COLUMNS = ("rank", "host", "state", "steps", "steps/s", "loss", *(f"{part} ms" for part in PARTS), *RATES.values(),
           "behind", "heard s ago")  # fmt: skip


def job_of(path: Path | None) -> Environment:
    """The job in a file or, without one, that of the environment. Raises InputError."""
    if path is not None:
        return job_in(path)
    if "DMLC_PS_ROOT_URI" not in os.environ:
        raise InputError(
            "which job?", where="mezzo top",
            hint="start it with `mezzo launch --job FILE`, then `mezzo top FILE`; or set DMLC_PS_ROOT_URI, "
            "DMLC_PS_ROOT_PORT and the job's key as its processes have them",
        )  # fmt: skip
    least = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1", "DMLC_NUM_SERVER": "0"}
    return Environment.read({**least, **os.environ})


def view(overview: Overview) -> dict[str, Any]:
    """The scheduler's view as plain data: seconds, bytes by the second, None for what is not known."""
    workers, others, splits = list[dict[str, Any]](), list[dict[str, Any]](), list[Split]()
    for role, rank, host, heard, counts in overview.members:
        if role != "worker":
            others.append({"role": role, "rank": rank, "host": host, "heard": round(heard, 3)})
            continue
        split = Split.of(rank, counts)
        splits += [split] if split else []
        split_counts = split.counts() if split else {}
        names = ("steps", "rate", "loss", *PARTS)
        row = {"rank": rank, "host": host, "state": _state(split, heard, counts)}
        row |= {name: _number(split_counts.get(name)) for name in names}
        row |= {name: _number(counts.get(name)) for name in (*RATES, "behind")}
        workers.append({**row, "heard": round(heard, 3)})
    here = {row["rank"] for row in workers}
    workers += [{"rank": rank, "state": "not here"} for rank in range(overview.workers) if rank not in here]
    slow = straggler(splits)
    return {
        "workers": workers,
        "others": others,
        "straggler": None if slow is None else {**asdict(slow), "said": str(slow)},
    }


def _number(value: float | None) -> float | None:
    return value if value is not None and isfinite(value) else None


def report(shown: Mapping[str, Any]) -> Report:
    """The view as tables."""
    rows = [_row(row) for row in shown["workers"]]
    facts = {"straggler": shown["straggler"]["said"] if shown["straggler"] else "none"}
    tables = [Table("Workers", COLUMNS, rows)]
    if shown["others"]:
        cells = [(o["role"], o["rank"], o["host"], f"{o['heard']:.1f}") for o in shown["others"]]
        tables.append(Table("Others", ("role", "rank", "host", "heard s ago"), cells))
    return Report("The job", facts, tables)


def _row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    def cell(name: str, form: Callable[[float], str]) -> str:
        return "" if row.get(name) is None else form(row[name])

    parts = [cell(part, lambda seconds: f"{1e3 * seconds:.1f}") for part in PARTS]
    moved = [cell(name, lambda nbytes: size(int(nbytes))) for name in RATES]
    count, rate, loss = cell("steps", "{:.0f}".format), cell("rate", "{:.2f}".format), cell("loss", "{:.4g}".format)
    behind, heard = cell("behind", "{:.2f}".format), cell("heard", "{:.1f}".format)
    return row["rank"], row.get("host", ""), row["state"], count, rate, loss, *parts, *moved, behind, heard


def _state(split: Split | None, heard: float, counts: Mapping[str, float]) -> str:
    """The state of a worker, in a word or two."""
    if "left" in counts:
        return "has left"
    if split is None:
        return "no steps yet"
    step = split.own + split.others
    return f"silent for {heard:.0f} s" if heard > SILENT + 3 * step else "trains"


def show_view(shown: Mapping[str, Any], as_json: bool, clear: bool) -> None:
    """Show a look: on a terminal in the place of the one before."""
    if as_json:
        print(json.dumps(shown), flush=True)
        return
    if clear and sys.stdout.isatty():
        click.clear()
    show(report(shown), as_json=False, width=160)

"""`mezzo replay`: a recorded training again, and whether it came to the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import click

from ..ops.errors import ExecutionError, InputError, MezzoError
from ..runtime.manifest import REPLAY, Manifest, read
from .report import Report, Table, show

Row = tuple[str, str, str]


@click.command()
@click.argument("manifest", type=click.Path(path_type=Path))
@click.option("--deadline", default=0.0, help="Seconds that it may take (default: any number).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replay(manifest: Path, deadline: float, as_json: bool) -> None:
    """Run what MANIFEST (a file of mz.callbacks.Record, or a folder of `mezzo launch --record`) tells again, and
    compare every digest.

    It runs the command that the file names: give manifests of your own. Ends with 1 where anything is not the same.
    """
    recorded = recorded_at(manifest)
    first = next(iter(recorded.values()))
    again = run_again(first, manifest, deadline)
    digests = [row for name, then in recorded.items() for row in _digests(name, then, again.get(name))]
    digests += [(name, "a worker", "was not there") for name in again if name not in recorded]
    around = [row for name, then in recorded.items() if name in again for row in _around(name, then, again[name])]
    same = all(verdict == "the same" for _, _, verdict in digests)
    seeds = ", ".join(dict.fromkeys(str(one.seed) for one in again.values()))
    facts = {"command": " ".join(first.command), "seed": seeds, "bits": "the same" if same else "others"}
    tables = [Table("Digests", ("of", "digest", "before"), digests)]
    tables += [Table("What is not as it was", ("what", "now", "before"), around)] if around else []
    show(Report(f"replay of {manifest}", facts, tables), as_json=as_json, width=120)
    if not same:
        raise SystemExit(1)


def recorded_at(path: Path) -> Mapping[str, Manifest]:
    """The manifests of a job by the names of its workers, or the one of a run under no name."""
    from ..kvstore.recording import recorded_in

    return recorded_in(path) if path.is_dir() else {"": read(path)}


def _digests(name: str, then: Manifest, now: Manifest | None) -> Iterator[Row]:
    """The digests of a run, or of one worker, now and before; of one that has gone, none."""
    digests = {} if now is None else now.digests
    for what in dict.fromkeys((*then.digests, *digests)):
        before = "was not there" if what not in then.digests else f"was {then.digests[what]}"
        verdict = "the same" if what in digests and digests[what] == then.digests.get(what) else before
        yield f"{name} {what}".strip(), digests.get(what, "not there"), verdict


def _around(name: str, then: Manifest, now: Manifest) -> Iterator[Row]:
    """Versions, facts of the machine and variables that are not as they were."""
    for part in ("versions", "machine", "environment"):
        before, after = getattr(then, part), getattr(now, part)
        for what in dict.fromkeys((*before, *after)):
            if before.get(what) != after.get(what):
                yield f"{name} {part}: {what}".strip(), str(after.get(what)), f"was {before.get(what)}"


def run_again(recorded: Manifest, where: Path, deadline: float = 0.0) -> Mapping[str, Manifest]:
    """Run the command of a manifest in its folder, with the environment variables that it names; the new manifests.

    Raises InputError for a manifest without a command, or of a folder that is gone, and ExecutionError where the
    command fails, takes longer than `deadline` seconds, or records nothing.
    """
    if not recorded.command:
        raise InputError(
            "the manifest names no command",
            where=str(where),
            hint="record a script with mz.callbacks.Record, a job with `mezzo launch --record FOLDER`",
        )
    if not Path(recorded.folder).is_dir():
        raise InputError(f"there is no folder {recorded.folder}", where=str(where), hint="the run began there")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "again"
        environment = {**os.environ, **recorded.environment, REPLAY: str(place)}
        try:
            ended = subprocess.run(
                [sys.executable, *recorded.command], cwd=recorded.folder, env=environment, timeout=deadline or None,
                stdout=2, check=False,  # what it prints goes beside the report
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise ExecutionError(f"it took longer than {deadline} s", where=str(where), hint="--deadline") from error
        if ended.returncode:
            raise ExecutionError(f"the command ended with {ended.returncode}", where=str(where), hint="see above")
        if not place.exists():
            raise ExecutionError("the command recorded nothing", where=str(where), hint="does it still use Record?")
        try:
            return recorded_at(place)
        except MezzoError as error:
            raise ExecutionError(error.message, where=str(where), hint="see above") from error

"""`mezzo replay`: a recorded training again, and whether it came to the same bits."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from ..ops.errors import ExecutionError, InputError
from ..runtime.manifest import REPLAY, Manifest, read
from .report import Report, Table, show


@click.command()
@click.argument("manifest", type=click.Path(path_type=Path))
@click.option("--deadline", default=0.0, help="Seconds that it may take (default: any number).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def replay(manifest: Path, deadline: float, as_json: bool) -> None:
    """Run what MANIFEST (of mz.callbacks.Record) tells again, and compare every digest.

    It runs the command that the file names: give manifests of your own. Ends with 1 where anything is not the same.
    """
    recorded = read(manifest)
    again = run_again(recorded, manifest, deadline)
    rows = [
        (name, now, "the same" if then == now else f"was {then}")
        for name, then in recorded.digests.items()
        for now in [again.digests.get(name, "not there")]
    ]
    rows += [(name, value, "was not there") for name, value in again.digests.items() if name not in recorded.digests]
    around = [
        (f"{part}: {name}", str(now.get(name)), f"was {then.get(name)}")
        for part in ("versions", "machine", "environment")
        for then, now in [(getattr(recorded, part), getattr(again, part))]
        for name in dict.fromkeys((*then, *now))
        if then.get(name) != now.get(name)
    ]
    same = all(said == "the same" for _, _, said in rows)
    facts = {"command": " ".join(recorded.command), "seed": again.seed, "bits": "the same" if same else "others"}
    tables = [Table("Digests", ("of", "digest", "before"), rows)]
    tables += [Table("What is not as it was", ("what", "now", "before"), around)] if around else []
    show(Report(f"replay of {manifest}", facts, tables), as_json=as_json, width=120)
    if not same:
        raise SystemExit(1)


def run_again(recorded: Manifest, where: Path, deadline: float = 0.0) -> Manifest:
    """Run the command of a manifest in its folder, with the environment variables that it names; the new manifest.

    Raises InputError for a manifest without a command, or of a folder that is gone, and ExecutionError where the
    command fails, takes longer than `deadline` seconds, or records nothing.
    """
    if not recorded.command:
        raise InputError(
            "the manifest names no command",
            where=str(where),
            hint="record a script with mz.callbacks.Record",
        )
    if not Path(recorded.folder).is_dir():
        raise InputError(f"there is no folder {recorded.folder}", where=str(where), hint="the run began there")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "again.json"
        environment = {**os.environ, **recorded.environment, REPLAY: str(file)}
        try:
            ended = subprocess.run(
                [sys.executable, *recorded.command], cwd=recorded.folder, env=environment, timeout=deadline or None,
                stdout=2, check=False,  # what it prints goes beside the report
            )  # fmt: skip
        except subprocess.TimeoutExpired as error:
            raise ExecutionError(f"it took longer than {deadline} s", where=str(where), hint="--deadline") from error
        if ended.returncode:
            raise ExecutionError(f"the command ended with {ended.returncode}", where=str(where), hint="see above")
        if not file.exists():
            raise ExecutionError("the command recorded nothing", where=str(where), hint="does it still use Record?")
        return read(file)

"""`mezzo launch`: its options, and the job that they ask for."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

import click
from click.core import ParameterSource

restarts_option = click.option(
    "--restarts",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="How often the job begins again after a failure, from what it has saved.",
)


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-n", "--workers", type=click.IntRange(1), help="Processes that run the script.")
@click.option("--gpus", type=click.IntRange(1), help="So many workers, each with a GPU of its own: device='gpu'.")
@click.option(
    "-s", "--servers", default=1, show_default=True, type=click.IntRange(0), help="0: the workers serve each other."
)
@click.option(
    "--hosts", default="1", show_default=True, metavar="NAMES|N", help="Start on these hosts (a,b), or pretend so many."
)
@click.option(
    "--ssh", "shell", default="ssh", show_default=True, help="With names of hosts: what starts a command there."
)
@click.option(
    "--on",
    type=click.Choice(["ray"]),
    help="Start on the nodes of a Ray cluster (RAY_ADDRESS, or this machine's); --hosts N: on so many of them.",
)
@click.option("--cpus", type=click.IntRange(1), help="With --on: processors that each worker reserves (1).")
@click.option("--address", metavar="ADDRESS", help="With names of hosts: the address at which they reach this machine.")
@click.option("--grace", default=5.0, show_default=True, help="Seconds that a process has to end when it is asked to.")
@restarts_option
@click.option(
    "--rejoin", is_flag=True, help="With --restarts: a worker that is killed is replaced, and the others go on."
)
@click.option(
    "--job",
    "where",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write where the job is, with its key, for `mezzo top FILE`; nobody else may read it.",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Write a manifest for each rank, so that `mezzo replay FOLDER` runs the job again and compares all bits.",
)
@click.option(
    "--trace",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Write a trace for each rank, so that `mezzo report FOLDER` tells how the job went.",
)
@click.option(
    "--metrics",
    metavar="PORT|FILE|URL",
    help="Metrics of the job, once a second: for Prometheus at a port of this machine (0: any), to a file, or to an "
    "OpenTelemetry collector.",
)
@click.option(
    "--dry-run",
    "steps",
    type=click.IntRange(2),
    metavar="STEPS",
    help="End after so many steps, and forecast the step of 8, 64 and 512 workers from what they were made of.",
)
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def launch(
    workers: int | None,
    gpus: int | None,
    servers: int,
    hosts: str,
    shell: str,
    on: str | None,
    cpus: int | None,
    address: str | None,
    grace: float,
    restarts: int,
    rejoin: bool,
    where: Path | None,
    record: Path | None,
    trace: Path | None,
    metrics: str | None,
    steps: int | None,
    script: str,
    args: tuple[str, ...],
) -> None:
    """Run SCRIPT (a .py file or a program) with ARGS as the workers of a job, on this machine or on others.

    `mezzo.kv.create("dist_sync")` in the script then is the store that they share. Everything ends when one process
    ends badly; the exit code is that of the first to do so. SIGUSR1 and SIGUSR2 begin the job again with a worker fewer
    or more.
    """
    from ..kvstore.pace import STEPS
    from ..kvstore.recording import emptied, recorded_into
    from ..kvstore.watching import FOLDER, TRACE
    from ..runtime.environment import switch
    from ..runtime.manifest import REPLAY
    from .crew import Member
    from .forecast import dry_run
    from .hosts import by_shell, evenly, members_on, seen_from
    from .job_outputs import measured
    from .launch import Scale, command_of, gpus_for, members, shown
    from .launch import launch as run
    from .on_ray import Wanted, on_ray

    if len({workers, gpus} - {None}) != 1:
        raise click.UsageError("give the number of workers: -n, or --gpus where each has one")
    if rejoin and not restarts:
        raise click.UsageError("give --restarts: each worker that is replaced counts as one")
    if rejoin and (record or trace or steps):
        raise click.UsageError(
            "--record, --trace and --dry-run are for jobs that begin again as a whole: leave out --rejoin"
        )
    command, count = command_of(script, args), gpus or workers or 1
    variables: dict[str, str] = {} if record is None else recorded_into(switch(REPLAY) or record)
    variables |= {} if trace is None else {FOLDER: str(emptied(trace, TRACE))}
    variables |= {} if steps is None else {STEPS: str(steps)}

    names = () if hosts.isdecimal() else tuple(filter(None, hosts.split(",")))
    if names and (gpus or rejoin or (steps and trace is None)):
        raise click.UsageError("--gpus, --rejoin and --dry-run are for jobs of this machine (--trace: a folder of all)")
    if not names and not (hosts.isdecimal() and int(hosts)):
        raise click.UsageError("--hosts a,b, or a number of hosts to pretend")
    if on and (names or address or rejoin or (steps and trace is None)):
        raise click.UsageError("--on places the workers: leave out names of hosts, --address, --rejoin and --dry-run")
    if cpus and not on:
        raise click.UsageError("--cpus is for --on: here all processors are shared out")
    picked = click.get_current_context().get_parameter_source("hosts") is not ParameterSource.DEFAULT
    wanted = Wanted(int(hosts) if on and picked else 0, cpus or 1, int(bool(gpus)))

    def job(scale: Scale) -> tuple[Member, ...]:
        if cluster is not None:
            return cluster.members(command, scale.workers, scale.attempt, variables)
        if names:
            root, shares = address or seen_from(names[0]), evenly(scale.workers, len(names))
            return members_on(names, shares, command, scale.attempt, variables, root, by_shell(names, shell))
        own = gpus_for(scale.workers) if gpus else ()
        about = (servers, min(int(hosts), scale.workers), scale.attempt, restarts > 0, own, rejoin, variables)
        return members(command, scale.workers, *about)

    following = dry_run(variables, servers) if steps else nullcontext(lambda code: code)
    with on_ray(wanted) if on else nullcontext() as cluster, shown(job, where) as begin:
        job(Scale(0, count))  # numbers that make no job are told before anything starts
        with measured(begin, metrics) as start, following as ended:
            sys.exit(ended(run(start, grace=grace, restarts=restarts, workers=count)))

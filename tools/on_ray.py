"""`mezzo launch --on ray`: the processes of a job on the nodes of a Ray cluster (https://docs.ray.io/en/latest/).

Ray reserves the places (a placement group with one bundle for the workers of each node, which share memory there) and
starts one actor for each process; the actor runs it (tools/remote.py), and its output and exit code come back as the
results of calls of the actor. Values travel over the store's own connections. A node that is lost is a process that was
killed: with --restarts the job begins again on the nodes that are left.
"""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from ..ops.dataclasses import dataclass
from ..ops.errors import InputError, MissingPackage
from . import relay
from .crew import Member
from .hosts import members_on
from .node_process import NodeProcess

WAIT = 60.0  # seconds in which Ray must find the places, which a lost node or another job may have held until now


@dataclass(frozen=True, slots=True)
class Wanted:
    """Resources that each worker of a job on a cluster reserves, and the number of nodes (0: as few as hold them)."""

    nodes: int = 0
    cpus: int = 1
    gpus: int = 0


class RayCluster:
    """The cluster that this process is connected to, and the places of a job in it."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._group: Any = None
        self._starts: dict[str, Callable[[], Any]] = {}  # actors that are to be started, by the token of their relay
        self._folder = Path(mkdtemp(prefix="mezzo-ray-"))
        self._door = socket.socket(socket.AF_UNIX)
        self._door.bind(str(self._folder / "relays"))  # in a folder that nobody else may enter
        self._door.listen(128)
        threading.Thread(target=self._meet, daemon=True).start()

    def members(
        self, command: Sequence[str], workers: int, attempt: int, variables: Mapping[str, str]
    ) -> tuple[Member, ...]:
        """The processes of an attempt at a job: workers in the order of their ranks over the nodes, a server on each,
        and the scheduler here. What an attempt before this one had reserved is given back. Raises InputError where the
        cluster has no room for them."""
        import ray

        self._give_back()
        shares = self._shares(workers)
        group = self._group = self._placed(shares)
        nodes = ray.util.placement_group_table(group)["bundles_to_node_id"]
        names = {node["NodeID"]: f"{node['NodeManagerHostname']}/{node['NodeID'][:6]}" for node in ray.nodes()}
        self._starts.clear()

        def connect(role: str, at: int, line: bytes) -> tuple[tuple[str, ...], bytes]:
            token = secrets.token_hex(16)
            self._starts[token] = lambda: self._start(group, at, role == "worker", line)
            return (sys.executable, "-I", "-S", relay.__file__, str(self._folder / "relays"), token), b""

        hosts, root = [names[nodes[i]] for i in range(len(shares))], ray.util.get_node_ip_address()
        return members_on(hosts, shares, command, attempt, variables, root, connect, gpus=self._wanted.gpus)

    def _shares(self, workers: int) -> list[int]:
        """The number of workers on each of the nodes."""
        import ray

        room = [self._holds(node["Resources"]) for node in ray.nodes() if node["Alive"]]
        shares = shared_out(workers, room, self._wanted.nodes)
        if not shares:
            each = f"{self._wanted.cpus} CPUs" + (f" and {self._wanted.gpus} GPU" if self._wanted.gpus else "")
            on = f" on {self._wanted.nodes} nodes" if self._wanted.nodes else ""
            raise InputError(
                f"there is no room for {workers} workers with {each} each{on}: Ray's {len(room)} nodes hold "
                f"{', '.join(map(str, room))}",
                where="launch --on ray",
                hint="ask for fewer with -n, --cpus or --hosts, or add nodes: ray start --address ADDRESS",
            )
        return shares

    def _holds(self, resources: Mapping[str, float]) -> int:
        """The number of workers for which a node has resources."""
        held = int(resources.get("CPU", 0) // self._wanted.cpus)
        return min(held, int(resources.get("GPU", 0) // self._wanted.gpus)) if self._wanted.gpus else held

    def _placed(self, shares: Sequence[int]) -> Any:
        from ray.util.placement_group import placement_group, remove_placement_group

        each = {"CPU": self._wanted.cpus} | ({"GPU": self._wanted.gpus} if self._wanted.gpus else {})
        bundles = [{name: number * share for name, number in each.items()} for share in shares]
        group = placement_group(bundles, strategy="STRICT_SPREAD")
        if not group.wait(WAIT):
            remove_placement_group(group)
            raise InputError(
                f"Ray finds no room for {' + '.join(map(str, bundles))} on {len(bundles)} nodes within {WAIT:g} s",
                where="launch --on ray",
                hint="other jobs hold it: see `ray status`",
            )
        return group

    def _start(self, group: Any, at: int, worker: bool, line: bytes) -> Any:
        """The actor that runs a process. Servers take what a node has besides: they are busy while workers wait."""
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=at)
        reserved = {"num_cpus": self._wanted.cpus, "num_gpus": self._wanted.gpus} if worker else {"num_cpus": 0}
        kind = ray.remote(NodeProcess).options(scheduling_strategy=where, max_concurrency=2, **reserved)
        return kind.remote(line)

    def _meet(self) -> None:
        """Serve every relay in a thread of its own."""
        while True:
            try:
                sock, _ = self._door.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        """Run what a relay stands for, until it has ended."""
        import ray

        with sock, sock.makefile("rb") as asked, suppress(BrokenPipeError, ConnectionResetError):
            start = self._starts.pop(asked.readline().decode().strip(), None)
            if start is None:
                return
            actor = start()
            threading.Thread(target=_listen, args=(asked, actor), daemon=True).start()
            code: int | None = None
            while code is None:
                try:
                    written, code = ray.get(actor.read.remote())
                except ray.exceptions.RayError as error:
                    lines = str(error).strip().splitlines() or [type(error).__name__]
                    text = f"Ray has lost the actor: {type(error).__name__}: {lines[0]}\n".encode()
                    sock.sendall(relay.FRAME.pack(relay.ERR, len(text)) + text + relay.FRAME.pack(relay.LOST, 0))
                    return
                for kind, data in written:
                    sock.sendall(relay.FRAME.pack(kind, len(data)) + data)
            sock.sendall(relay.FRAME.pack(relay.EXIT, code))
            ray.kill(actor)

    def _give_back(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            from ray.util.placement_group import remove_placement_group

            remove_placement_group(group)

    def close(self) -> None:
        """Give back what the job has reserved."""
        self._give_back()
        self._door.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def shared_out(workers: int, room: Sequence[int], nodes: int = 0) -> list[int]:
    """The number of workers on each of so many nodes (0: as few as hold them), as equal as the room of each allows, the
    largest first; empty where there is none.

    >>> shared_out(4, [2, 8, 2]), shared_out(4, [2, 8, 2], 3), shared_out(9, [2, 8]), shared_out(9, [2, 2])
    ([4], [2, 1, 1], [7, 2], [])
    """
    room = sorted(filter(None, room), reverse=True)
    count = nodes or next((n for n in range(1, len(room) + 1) if sum(room[:n]) >= workers), 0)
    if count > min(len(room), workers) or sum(room[:count]) < workers:
        return []
    shares = [0] * count
    for _ in range(workers):
        shares[min((at for at in range(count) if shares[at] < room[at]), key=shares.__getitem__)] += 1
    return shares


def _listen(asked: Any, actor: Any) -> None:
    """Pass on that a process shall end; end it when its relay is gone."""
    import ray

    with suppress(ValueError, OSError):  # closed, as it is when the process has ended
        while asked.read(1) == relay.END:
            actor.end.remote()
    ray.kill(actor)


@contextmanager
def on_ray(wanted: Wanted) -> Iterator[RayCluster]:
    """A cluster, while this process is connected to it: RAY_ADDRESS, or the one of this machine.

    Raises MissingPackage without Ray, InputError where there is no cluster.
    """
    try:
        import ray
    except ImportError as error:
        raise MissingPackage("Ray is not installed", where="launch", hint="pip install mezzo[ray]") from error
    connected = not ray.is_initialized()
    if connected:
        address = os.environ.get("RAY_ADDRESS", "auto")
        try:
            ray.init(address=address, logging_level="ERROR", log_to_driver=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise InputError(
                f"there is no Ray cluster at {address!r}: {str(error).splitlines()[0]}",
                where="launch --on ray",
                hint="start one with `ray start --head`, or give its address as RAY_ADDRESS",
            ) from error
    try:
        cluster = RayCluster(wanted)
        try:
            yield cluster
        finally:
            cluster.close()
    finally:
        if connected:
            ray.shutdown()

"""Ray Train's way to run a job (https://docs.ray.io/en/latest/train/train.html): Ray starts the workers and calls a
function on each, in which `mezzo.kv.create("dist_sync")` is the store that they share.

Ray is told nothing but who the workers are; rank 0 starts the scheduler and, where there are several nodes, the first
worker of each a server, as beside torchrun (kvstore/schedulers.py). Values travel over the store's own connections.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from functools import cache
from typing import Any

from ..kvstore import secret
from ..ops.errors import MissingPackage


def class_of(name: str) -> type:
    """`__getattr__` of `mezzo.ray`, whose classes exist where Ray does: they extend Ray's."""
    if name.startswith("__"):
        raise AttributeError(name)
    classes = _classes()
    if name not in classes:
        raise AttributeError(f"mezzo.ray has no {name!r}: there are {', '.join(classes)}")
    return classes[name]


@cache
def _classes() -> dict[str, type]:
    try:
        from ray.train.backend import Backend, BackendConfig
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
    except ImportError as error:
        raise MissingPackage(
            f"Ray Train cannot be imported: {error}", where="mezzo.ray", hint='pip install "mezzo[ray]" "ray[train]"'
        ) from error

    class MezzoBackend(Backend):  # type: ignore[misc]
        """Hooks of Ray Train: each worker is told who it is, and where the others meet, before the function begins."""

        def on_start(self, worker_group: Any, backend_config: Any) -> None:
            address, port = worker_group.execute_single(0, _free_address)
            key = backend_config.key or secret.fresh()
            worker_group.execute(_describe, address=address, port=port, key=key)

    class MezzoConfig(BackendConfig):  # type: ignore[misc]
        """Configuration of the store of a job: the secret that its connections prove, a fresh one by default."""

        def __init__(self, key: str = "") -> None:
            self.key = key

        @property
        def backend_cls(self) -> type[Backend]:
            return MezzoBackend

        def __repr__(self) -> str:
            return "MezzoConfig()"  # Ray writes it into logs

    class MezzoTrainer(DataParallelTrainer):  # type: ignore[misc]
        """A trainer in the manner of Ray Train's: `MezzoTrainer(function, scaling_config=ScalingConfig(...))`.

        `train_loop_per_worker` is called on every worker, with `train_loop_config` if that is given; `mezzo_config` is
        a MezzoConfig; the other arguments (`run_config`, `datasets`, ...) are those of Ray Train's DataParallelTrainer.
        Each node needs as many workers as any other.
        """

        def __init__(
            self,
            train_loop_per_worker: Callable[..., Any],
            *,
            train_loop_config: dict[str, Any] | None = None,
            mezzo_config: MezzoConfig | None = None,
            **options: Any,
        ) -> None:
            super().__init__(
                train_loop_per_worker,
                train_loop_config=train_loop_config,
                backend_config=mezzo_config or MezzoConfig(),
                **options,
            )

    return {"MezzoConfig": MezzoConfig, "MezzoTrainer": MezzoTrainer}


def _free_address() -> tuple[str, int]:
    """The address of this node, and a port that is free there now."""
    import ray

    address = str(ray.util.get_node_ip_address())
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as sock:
        sock.bind((address, 0))
        return address, int(sock.getsockname()[1])


def _describe(address: str, port: int, key: str) -> None:
    """Tell this worker who it is, by the variables that torchrun sets."""
    import ray

    context = ray.train.get_context()
    os.environ |= {
        "RANK": str(context.get_world_rank()),
        "WORLD_SIZE": str(context.get_world_size()),
        "LOCAL_RANK": str(context.get_local_rank()),
        "LOCAL_WORLD_SIZE": str(context.get_local_world_size()),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "MEZZO_HOST": f"{socket.gethostname()}/{context.get_node_rank()}",
        "MEZZO_JOB_KEY": key,
    }

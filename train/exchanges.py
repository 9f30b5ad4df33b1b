"""Choice between a store and a communicator for the gradients of a Trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..ops.errors import InputError
from .collective import Collective, wire_named
from .exchange import Exchange

if TYPE_CHECKING:
    from ..kvstore.collective.communicator import Communicator
    from ..kvstore.store import KVStore

Exchanging = Exchange | Collective
GPUS = "nccl"  # the kind of a store


def exchanges_of(
    kvstore: KVStore | Communicator | str | None,
    on_store: bool | None,
    overlap: bool,
    compare_every: int,
    *,
    devices: Sequence[str],
    **how: Any,
) -> tuple[Exchanging | None, ...]:
    """Carriers of gradients, one for each device of this process: of several each is a rank of a communicator. Raises
    what `exchange_of` does, and InputError for other workers beside several devices."""
    if len(devices) == 1:
        return (exchange_of(kvstore, on_store, overlap, compare_every, device=devices[0], **how),)
    from ..kvstore.collective.devices import of_devices

    kind = kvstore if isinstance(kvstore, str) or kvstore is None else getattr(kvstore, "kind", "")
    if kind not in (None, "local", "device"):
        raise InputError(
            f"kvstore={kind!r} beside {len(devices)} devices of one process", where="Trainer",
            hint='leave it out, or give "device"; several workers have one device each (mezzo launch)',
        )  # fmt: skip
    if getattr(kvstore, "steps", False):
        raise InputError("the store has an optimizer", where="kvstore=", hint="the Trainer has one: leave it out there")
    ranks = of_devices(devices)
    exchanges = []
    for rank in ranks:
        exchange = exchange_of(rank, on_store, overlap, compare_every, device=devices[rank.rank], **how)
        assert isinstance(exchange, Collective)
        exchange.one_process = True
        exchanges.append(exchange)
    return tuple(exchanges)


def exchange_of(
    kvstore: KVStore | Communicator | str | None,
    on_store: bool | None,
    overlap: bool,
    compare_every: int,
    *,
    zero: int = 0,
    buckets: bool | int = False,
    wire: str | None = None,
    device: str = "cpu",
) -> Exchanging | None:
    """Carrier of a Trainer's gradients: nothing, the store, or a communicator, where one is given, or where `zero`,
    `buckets` or `wire` ask for what only communicators do. Raises InputError for what cannot be.
    """
    asked = {"zero": zero, "buckets": buckets, "wire": wire}
    named = [f"{name}={value!r}" for name, value in asked.items() if value]
    if kvstore is None:
        if named:
            raise InputError(
                f"{named[0]} is about several ranks", where="Trainer", hint='give kvstore="dist_sync", and mezzo launch'
            )
        return None
    from ..kvstore.collective.communicator import Communicator

    if not isinstance(kvstore, Communicator):
        from ..kvstore.create import create

        kvstore = create(kvstore) if isinstance(kvstore, str) else kvstore
        if not named and kvstore.kind != GPUS:
            return Exchange(kvstore, on_store, overlap, compare_every)
        from ..kvstore.collective.opening import beside, of_gpus

        if kvstore.kind == GPUS and not device.startswith("gpu:"):
            raise InputError(
                f"a {GPUS!r} store is for GPUs, and the device is {device!r}", where="Trainer",
                hint='give device="gpu:0", or kvstore="dist_sync"',
            )  # fmt: skip
        if kvstore.kind == GPUS:
            from ..runtime.backends.cuda.driver import index_of

            kvstore = of_gpus(kvstore, index_of(device))
        else:
            kvstore = beside(kvstore)
    if on_store:
        raise InputError(
            "a communicator keeps no parameters",
            where="update_on_kvstore=True",
            hint="leave it out, or zero= and buckets=",
        )
    if buckets < 0:
        raise InputError(f"buckets={buckets!r}", where="Trainer", hint="True, or the bytes of a bucket")
    most = 0 if isinstance(buckets, bool) else buckets
    how = {"zero": zero, "most": most, "wire": wire_named(wire)}
    return Collective(kvstore, **how, overlap=overlap, compare_every=compare_every)  # type: ignore[arg-type]

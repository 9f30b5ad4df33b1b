"""The devices of this process, by name."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final, Literal, cast

from ..ops.errors import InputError, MezzoError, MissingPackage
from .backends.processor import EXECUTOR
from .caches import caches
from .compile.auto_place import AutoPlace, DeviceNeed, filled_shapes, is_auto, needs_of, proposed
from .compile.kernel import Kernel
from .compile.lower import Options
from .environment import switch
from .execution.executor import Executor
from .execution.feeds import planned_types
from .execution.together import together
from .ir.graph import Graph
from .ir.infer import infer
from .passes.place import TensorParallel, norms_apart, placed, places_of, spread, unplaced

# Patterns and devices, what is to be found, or devices that share products
Placement = Mapping[str, str] | AutoPlace | TensorParallel | Literal["auto"]
DEVICES: Final[dict[str, Executor]] = {"cpu": EXECUTOR}
GPU: Final = "gpu:"
SPARED: Final = 16  # this part of free memory is left to modules, graphs and handles, which no plan counts
CPU: Final = "cpu:"
MINE = "MEZZO_GPU"  # variable of our launcher: the number of this process's GPU
LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID")  # of torchrun, Open MPI and Slurm


def full_name(device: str) -> str:
    """The name of a device with its number: for `gpu` that of this process's own, which its launcher gave it, else that
    of its rank on its host, counted through the GPUs that it sees, else the first.

    Raises InputError for what is no name and for a number that is none, MissingPackage without CuPy.

    >>> full_name("gpu:1"), full_name("cpu")
    ('gpu:1', 'cpu')
    """
    if not isinstance(device, str):
        raise InputError(f"device={device!r} is no name", hint="give 'cpu' or 'gpu:0'")
    if device != "gpu" or device in DEVICES:
        return device
    told = {MINE: switch(MINE), **{n: os.environ.get(n, "") for n in LOCAL_RANKS}}
    name, number = next(((n, text) for n, text in told.items() if text), (MINE, "0"))
    if name == MINE:
        return f"{GPU}{int(number)}"
    if not number.isdecimal():
        raise InputError(f"{name}={number!r} is no number of a GPU", hint="the launcher of the job sets it")
    from .backends.cuda.driver import count  # with the first GPU that is asked for

    return f"{GPU}{int(number) % max(count(), 1)}"


def device_named(name: str) -> Executor:
    """The device of this name: `cpu`, `gpu:0`, `gpu` for this process's own, or `gpu:0@sm_90` to plan for a GPU that is
    not here.

    Raises MissingPackage for one that is missing, and says what of it is; InputError for a number that is none.

    >>> device_named("cpu").name, device_named("gpu:0@sm_80").sm
    ('cpu', 80)
    """
    name = full_name(name)
    device = DEVICES.get(name)
    if device is None and name.startswith(GPU):
        from .backends.cuda.executor import gpu  # with the first GPU that is asked for

        device = DEVICES.setdefault(name, gpu(name, EXECUTOR))
    if device is None:
        raise MissingPackage(
            f"device {name!r} is not available; this build runs on {', '.join(DEVICES)}",
            hint="leave out device=, or see `mezzo doctor` for what this machine has",
        )
    return device


def session_device(name: str) -> str:
    """The device of sessions for one of several: numbered processors are the host, as those of mz.cpu(1).

    >>> session_device("cpu:1"), session_device("gpu:1")
    ('cpu', 'gpu:1')
    """
    return "cpu" if name.startswith(CPU) and name.removeprefix(CPU).isdecimal() else name


def rooms_of(place: Any) -> AutoPlace:
    """Return what a placement that is to be found may take: without room, what is free on the GPUs of this
    machine less a little, none where there is no GPU."""
    asked = place if isinstance(place, AutoPlace) else AutoPlace()
    if asked.room:
        return asked
    from .backends.cuda.driver import count
    from .backends.cuda.memory import gpu_memory_info

    try:
        free = {f"{GPU}{i}": gpu_memory_info(i).free for i in range(count())}
        rooms = {device: size - size // SPARED for device, size in free.items()}
    except MissingPackage:
        rooms = {}
    return AutoPlace(rooms, asked.shapes)


def auto_placed(graph: Graph, place: Any) -> Graph:
    """The typed graph with a device for each node, so that each device has room for what is planned on it: none where
    this machine has no GPU."""
    asked = rooms_of(place)
    if not asked.room:
        return graph
    from .compile.specialize import compile_graph, specialise  # of a start, several ms

    signature = graph.signature
    types = planned_types(signature, filled_shapes(signature, asked.shapes))
    target = device_named(session_device(full_name(asked.devices[0]))).target

    def needs(found: Graph) -> Mapping[str, DeviceNeed]:
        several = norms_apart(found) if len(found.devices) > 1 else unplaced(found)
        place = places_of(several) if several.devices else None
        executable = specialise(compile_graph(several, options=Options(target, place=place)), types)
        return needs_of(executable.program, executable.constants, found.devices[0])

    return proposed(infer(graph, types), asked, needs).but(types=graph.types)


def on_devices(model: Any, name: str, place: Placement | None) -> tuple[Any, Executor]:
    """The model of a session, a graph or an opened file, and its device: that of this name or, where nodes have devices
    or are given some by `place`, a graph in which every node has one, and these together.

    Raises what `placed` and `device_named` raise; InputError for devices of several kinds, and a name beside them;
    BudgetError for a placement that is to be found, and is not.
    """
    if place is None and not model.devices:
        return model, device_named(name)
    if name != "cpu":
        hint = "give the devices in place=; place={'*': " + repr(name) + "} puts all on one"
        raise InputError(f"device={name!r} beside {'place=' if place else 'a model with devices of its own'}",
                         where="Session", hint=hint)  # fmt: skip
    graph: Graph = infer(model if isinstance(model, Graph) else model.graph)
    if is_auto(place):
        graph = auto_placed(graph, place)
        if not graph.devices:
            return graph, device_named(name)
    elif isinstance(place, TensorParallel):
        from .passes.split import tensor_parallel, untied  # with the first model that is shared out

        graph = tensor_parallel(infer(untied(unplaced(graph))), place).graph
    else:
        graph = spread(graph if place is None else placed(graph, cast(Any, place)))
    members = dict[str, Executor]()
    for device in dict.fromkeys((*graph.devices, *(s.device for s in graph.states if s.device))):
        try:
            members[device] = device_named(session_device(full_name(device)))
        except MezzoError as error:
            raise error.at(f"place= on {device!r}") from error.__cause__
    if len(members) == 1:
        return unplaced(graph), next(iter(members.values()))
    graph = norms_apart(graph)
    return graph, together(places_of(graph), members)


def register_kernel(kernel: Kernel, device: str = "cpu") -> None:
    """Ask a kernel before those of a device: sessions that are made from now on have it, and so have operators on
    arrays. One that is registered again takes the place of the former of its name.

    Raises InputError for the name of a kernel that the device has itself, and what `device_named` raises.
    """
    target = device_named(device).target
    if any(k.name == kernel.name for k in target.own):
        raise InputError(
            f"{device} has a kernel {kernel.name!r}", where="register_kernel", hint="give yours another name"
        )
    target.register(kernel)
    caches().clear()  # they hold programs that were made without it


def plannable(name: str) -> tuple[str, str]:
    """The name of a GPU for plans: its own, or where it is not here, that of one which stands for it; and why it is not
    here."""
    name = full_name(name)
    try:
        return device_named(name).name, ""
    except MissingPackage as error:
        from .backends.cuda.executor import NAMES
        from .backends.cuda.target import USUAL_SM

        if NAMES.fullmatch(name) is None:
            raise
        return f"{name}@sm_{USUAL_SM}", error.message


def options_for(device: str, **settings: Any) -> Options:
    """Options to compile for the device of this name, with settings of `Options`."""
    return Options(device_named(device).target, **settings)

"""Topology read from a machine: GPUs and their links through NVML, NUMA nodes and networks through sysfs.

https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html,
https://docs.kernel.org/admin-guide/abi-testing.html (class/net, class/infiniband, bus/pci)
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from importlib import import_module
from itertools import combinations
from pathlib import Path as File
from typing import Any

from ....ops.errors import MissingPackage
from .driver import cupy
from .topology import GB, Gpu, GpuLink, Network, Path, Topology

SYS = File("/sys")
LINKS = 36  # the most NVLinks of a GPU that are asked for; the driver refuses numbers beyond its own
LEVELS = {int(p): p for p in Path}
ACTIVE = 1  # NVML_FEATURE_ENABLED
SWITCH_CHIP = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
BY_ARCHITECTURE = (
    (100, 40.1),
    (90, 20.6),
    (86, 12.0),
    (80, 20.0),
    (70, 20.0),
    (60, 18.0),
)  # GB/s of a link, as NCCL has


def nvml() -> Any:
    """The module of NVML. MissingPackage names the line that installs it."""
    try:
        return import_module("pynvml")
    except ImportError as error:
        raise MissingPackage(f"NVML cannot be asked: {error}", hint="pip install nvidia-ml-py") from error


def read_topology(buses: list[str], sys: File = SYS) -> Topology:
    """The topology of these GPUs, by the PCI addresses that CUDA gives them, in its order.

    Raises MissingPackage without nvidia-ml-py or a driver that answers.
    """
    lib = nvml()
    try:
        lib.nvmlInit()
    except lib.NVMLError as error:
        raise MissingPackage(
            f"NVML does not answer: {error}", hint="`nvidia-smi` shows whether the driver runs"
        ) from error
    try:
        return _read(lib, buses, sys)
    except lib.NVMLError as error:  # of a device that NVML does not know, as in some containers
        why = f"NVML does not tell of the GPUs: {error}"
        raise MissingPackage(why, hint="`nvidia-smi topo -m` shows more") from error
    finally:
        lib.nvmlShutdown()


def topology_here(devices: int) -> Topology:
    """The topology of the first GPUs that CUDA shows. Raises MissingPackage as `read_topology`."""
    runtime = cupy().cuda.runtime
    return read_topology([runtime.deviceGetPCIBusId(i) for i in range(devices)])


def _read(lib: Any, buses: list[str], sys: File) -> Topology:
    handles = [lib.nvmlDeviceGetHandleByPciBusId(bus.encode()) for bus in buses]
    gpus, down = [], list[tuple[int, int]]()
    ends = [_nvlinks(lib, handle) for handle in handles]
    addresses = [_address(bus) for bus in buses]
    for i, (handle, address) in enumerate(zip(handles, addresses, strict=True)):
        gpus.append(
            Gpu(
                i,
                _text(lib.nvmlDeviceGetName(handle)),
                _number(sys / "bus/pci/devices" / address / "numa_node", -1),
                _asked(lib, partial(lib.nvmlDeviceGetMaxPcieLinkGeneration, handle), 3),
                _asked(lib, partial(lib.nvmlDeviceGetCurrPcieLinkWidth, handle), 16),
                _asked(lib, partial(lib.nvmlDeviceGetMaxPcieLinkWidth, handle), 16),
            )
        )
        down += [(i, n) for n, (active, _) in ends[i].items() if not active]
    links = {}
    for i, j in combinations(range(len(handles)), 2):
        level = _asked(lib, partial(lib.nvmlDeviceGetTopologyCommonAncestor, handles[i], handles[j]), 50)
        count = min(_towards(ends[i], addresses[j]), _towards(ends[j], addresses[i]))
        if count:
            links[i, j] = GpuLink(Path.NVLINK, count, _rate(lib, handles[i]))
        else:
            links[i, j] = GpuLink(LEVELS.get(level, Path.SWITCH if level < Path.SWITCH else Path.SYSTEM))
    return Topology(tuple(gpus), links, tuple(_networks(sys)), tuple(down))


def _nvlinks(lib: Any, handle: Any) -> dict[int, tuple[bool, str | None]]:
    """Of each NVLink of a GPU: whether it is active, and the address of the other end; None for a switch, which reaches
    every GPU."""
    links: dict[int, tuple[bool, str | None]] = {}
    for number in range(LINKS):
        try:
            active = lib.nvmlDeviceGetNvLinkState(handle, number) == ACTIVE
        except lib.NVMLError:  # no link has this number
            break
        other = None
        if active:
            kind = _asked(lib, partial(lib.nvmlDeviceGetNvLinkRemoteDeviceType, handle, number), 0)
            if kind != SWITCH_CHIP:
                other = _address(_text(lib.nvmlDeviceGetNvLinkRemotePciInfo(handle, number).busId))
        links[number] = (active, other)
    return links


def _towards(ends: dict[int, tuple[bool, str | None]], address: str) -> int:
    return sum(active and other in (None, address) for active, other in ends.values())


def _rate(lib: Any, handle: Any) -> float:
    major, minor = lib.nvmlDeviceGetCudaComputeCapability(handle)
    return GB * next((rate for sm, rate in BY_ARCHITECTURE if major * 10 + minor >= sm), 18.0)


def _networks(sys: File) -> list[Network]:
    """Network devices of hardware; a card that is both InfiniBand and Ethernet counts once."""
    networks: dict[File, Network] = {}
    for device in sorted((sys / "class/infiniband").glob("*")):
        rates = (re.match(r"[\d.]+", _line(p / "rate")) for p in sorted(device.glob("ports/*")))
        rate = sum(float(m.group()) for m in rates if m) * GB / 8
        networks[(device / "device").resolve()] = Network(device.name, _number(device / "device/numa_node", -1), rate)
    for device in sorted((sys / "class/net").glob("*")):
        card, speed = (device / "device").resolve(), _number(device / "speed", -1)
        if (device / "device").exists() and card not in networks and speed > 0:
            networks[card] = Network(device.name, _number(device / "device/numa_node", -1), speed * 1e6 / 8)
    return list(networks.values())


def _asked(lib: Any, question: Callable[[], Any], otherwise: int) -> int:
    """The answer, or what is assumed where a device or driver does not know it."""
    try:
        return int(question())
    except lib.NVMLError:
        return otherwise


def _address(bus: str) -> str:
    """A PCI address as sysfs has it.

    >>> _address("00000000:3B:00.0"), _address("0000:3b:00.0")
    ('0000:3b:00.0', '0000:3b:00.0')
    """
    domain, _, address = bus.lower().partition(":")
    return f"{domain[-4:]:0>4}:{address}"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _line(path: File) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # interfaces that are down have no speed to read
        return ""


def _number(path: File, otherwise: int) -> int:
    line = _line(path)
    return int(line) if re.fullmatch(r"-?\d+", line) else otherwise

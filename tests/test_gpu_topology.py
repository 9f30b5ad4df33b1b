"""Paths between GPUs that are not there: what NVML and sysfs say, which GPUs are chosen, what is found wrong."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from itertools import combinations
from pathlib import Path as File
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from mezzo.exporters import save_onnx
from mezzo.importers import load_onnx
from mezzo.kvstore.collective import layout
from mezzo.kvstore.collective.threads import team
from mezzo.ops.errors import InputError, MissingPackage
from mezzo.ops.types import f32
from mezzo.runtime.backends.cuda.nvml import read_topology
from mezzo.runtime.backends.cuda.topology import GB, Gpu, GpuLink, Network, Path, Topology, choose, findings, ring
from mezzo.runtime.devices import device_named, full_name
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import GraphBuilder
from mezzo.tools.cli import cli
from mezzo.tools.gpu_paths import measured, path_tables, tables_of
from mezzo.tools.launch import gpus_for, members

from .cupy_standin import Standin

NVLINK4 = GpuLink(Path.NVLINK, 18, 20.6 * GB)


def joined(gpus: int, link: Callable[[int, int], GpuLink], node: Callable[[int], int] = lambda i: 0) -> Topology:
    made = tuple(Gpu(i, "H100", node(i), 5) for i in range(gpus))
    return Topology(made, {(a, b): link(a, b) for a, b in combinations(range(gpus), 2)})


def sockets(a: int, b: int) -> GpuLink:
    """Four GPUs over PCIe: 0 and 2 behind one processor, 1 and 3 behind the other."""
    return GpuLink(Path.SWITCH if a % 2 == b % 2 else Path.SYSTEM)


def pairs(a: int, b: int) -> GpuLink:
    """NVLink bridges between 0 and 3, and between 1 and 2."""
    return GpuLink(Path.NVLINK, 4, 12 * GB) if a + b == 3 else GpuLink(Path.NODE)


def neighbours(order: tuple[int, ...]) -> set[tuple[int, int]]:
    return {(min(a, b), max(a, b)) for a, b in zip(order, (*order[1:], order[0]), strict=True)}


def test_eight_that_a_switch_joins_are_as_good_in_any_order() -> None:
    topology = joined(8, lambda a, b: NVLINK4)
    assert ring(topology, range(8)).gpus == tuple(range(8))
    assert choose(topology, 4).gpus == (0, 1, 2, 3)
    assert choose(topology, 8).rate == pytest.approx(370.8 * GB)
    assert findings(topology) == []


def test_two_of_one_processor_are_chosen() -> None:
    topology = joined(4, sockets, lambda i: i % 2)
    assert choose(topology, 2).gpus == (0, 2)
    (found,) = findings(topology, (0, 1))
    assert "as slow as SYS between 0 and 1" in found.what
    assert "GPUs 0, 2" in found.remedy
    assert findings(topology, (1, 3)) == []
    assert ring(topology, range(4)).gpus == (0, 1, 3, 2), "the processors' link is crossed twice, not four times"


def test_bridges_are_used_and_what_they_do_not_join_is_told() -> None:
    topology = joined(4, pairs)
    assert choose(topology, 2).gpus == (0, 3)
    assert {(0, 3), (1, 2)} <= neighbours(ring(topology, range(4)).gpus)
    (found,) = findings(topology)
    assert found.what.startswith("no NVLink joins GPUs")
    assert found.remedy == "the whole ring goes at the rate of PCIe"


def test_a_link_that_is_down_lanes_that_are_missing_and_a_far_network_are_found() -> None:
    whole = joined(4, lambda a, b: NVLINK4)
    worn = Gpu(2, "H100", 0, 5, lanes=8)
    topology = Topology(
        (*whole.gpus[:2], worn, whole.gpus[3]), whole.links, (Network("mlx5_0", 1, 50 * GB),), ((1, 7),)
    )
    told = [str(f) for f in findings(topology)]
    assert [t.split(";")[0] for t in told] == [
        "NVLink 7 of GPU 1 is down",
        "GPU 2 has 8 of 16 PCIe lanes",
        "network mlx5_0 is at processor 1, the GPUs at 0",
    ]
    assert [str(f) for f in findings(topology, (0, 3))] == told[2:]


def test_a_link_that_is_down_makes_another_choice() -> None:
    topology = joined(4, lambda a, b: GpuLink(Path.NVLINK, 2 if 1 in (a, b) else 4, 20 * GB))
    assert choose(topology, 3).gpus == (0, 2, 3)
    (found,) = findings(topology, (0, 1, 2))
    assert "GPUs 0, 2, 3 have a ring 2.0 times as fast" in found.remedy


def test_more_gpus_than_orders_can_be_tried_for() -> None:
    topology = joined(16, lambda a, b: GpuLink(Path.SWITCH if a // 4 == b // 4 else Path.SYSTEM), lambda i: i // 4)
    assert choose(topology, 4).gpus == (0, 1, 2, 3)
    assert sorted(choose(topology, 16).gpus) == list(range(16))
    assert sum(a // 4 != b // 4 for a, b in neighbours(choose(topology, 16).gpus)) == 4


@pytest.mark.parametrize("count", [0, 5])
def test_more_than_there_are_is_an_error(count: int) -> None:
    with pytest.raises(InputError, match=f"{count} GPUs are asked for, and 4 are there"):
        choose(joined(4, sockets), count)


# -- read from a machine


class NVMLError(Exception):
    pass


def library(buses: list[str], level: Callable[[int, int], int], links: Callable[[int, int], Any]) -> ModuleType:
    """NVML as far as it is asked. `links(gpu, number)`: another GPU, "switch", "down", or None beyond the last."""

    def link(gpu: int, number: int) -> Any:
        found = links(gpu, number)
        if found is None:
            raise NVMLError("Invalid Argument")
        return found

    def remote(gpu: int, number: int) -> Any:
        return SimpleNamespace(busId=f"0000{buses[link(gpu, number)]}".upper().encode())

    names: dict[str, Any] = {
        "NVMLError": NVMLError, "nvmlInit": lambda: None, "nvmlShutdown": lambda: None,
        "nvmlDeviceGetHandleByPciBusId": lambda bus: buses.index(bus.decode()),
        "nvmlDeviceGetName": lambda g: "NVIDIA H100", "nvmlDeviceGetCudaComputeCapability": lambda g: (9, 0),
        "nvmlDeviceGetMaxPcieLinkGeneration": lambda g: 5, "nvmlDeviceGetMaxPcieLinkWidth": lambda g: 16,
        "nvmlDeviceGetCurrPcieLinkWidth": lambda g: 8 if g == 1 else 16,
        "nvmlDeviceGetTopologyCommonAncestor": level,
        "nvmlDeviceGetNvLinkState": lambda g, n: 0 if link(g, n) == "down" else 1,
        "nvmlDeviceGetNvLinkRemoteDeviceType": lambda g, n: 2 if link(g, n) == "switch" else 0,
        "nvmlDeviceGetNvLinkRemotePciInfo": remote,
    }  # fmt: skip
    module = ModuleType("pynvml")
    vars(module).update(names)
    return module


BUSES = ["0000:1b:00.0", "0000:43:00.0", "0000:9d:00.0"]


def sysfs(root: File) -> File:
    for i, bus in enumerate(BUSES):
        (root / "bus/pci/devices" / bus).mkdir(parents=True)
        (root / "bus/pci/devices" / bus / "numa_node").write_text(f"{i // 2}\n")
    card = root / "cards/mlx5"
    card.mkdir(parents=True)
    (card / "numa_node").write_text("1\n")
    for name, path, text in (("mlx5_0", "infiniband/mlx5_0/ports/1/rate", "200 Gb/sec (4X HDR)\n"),
                             ("ib0", "net/ib0/speed", "200000\n"), ("lo", "net/lo/speed", "")):  # fmt: skip
        file = root / "class" / path
        file.parent.mkdir(parents=True)
        file.write_text(text)
        if name != "lo":
            (root / "class" / path.split("/")[0] / name / "device").symlink_to(card)
    return root


def test_links_between_two_and_a_third_without(tmp_path: File, monkeypatch: pytest.MonkeyPatch) -> None:
    def links(gpu: int, number: int) -> Any:
        ends = {0: [1, 1, "down", 1], 1: [0, 0, 0, "down"], 2: []}[gpu]
        return ends[number] if number < len(ends) else None

    monkeypatch.setitem(sys.modules, "pynvml", library(BUSES, lambda a, b: 40 if a + b == 1 else 50, links))
    topology = read_topology(BUSES, sysfs(tmp_path))
    assert {p: str(link) for p, link in topology.links.items()} == {(0, 1): "NV3", (0, 2): "SYS", (1, 2): "SYS"}
    assert topology.rate(0, 1) == pytest.approx(3 * 20.6 * GB)
    assert [(g.node, g.lanes, g.generation) for g in topology.gpus] == [(0, 16, 5), (0, 8, 5), (1, 16, 5)]
    assert topology.down == ((0, 2), (1, 3))
    assert topology.networks == (Network("mlx5_0", 1, 25 * GB),), "InfiniBand's interface is the same card"
    paths, layout = tables_of(topology, {(0, 1): 55e9})
    assert paths.rows[0] == ("gpu:0 NVIDIA H100", "-", "NV3 55 GB/s", "SYS", 0, "16 of 16")
    assert ("finding", "GPU 1 has 8 of 16 PCIe lanes") in {row[:2] for row in layout.rows}


def test_a_gpu_that_nvml_does_not_know(tmp_path: File, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(bus: bytes) -> int:
        raise NVMLError("Not Found")

    module = library(BUSES, lambda a, b: 50, lambda gpu, number: None)
    monkeypatch.setattr(module, "nvmlDeviceGetHandleByPciBusId", refuse)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    with pytest.raises(MissingPackage, match="NVML does not tell of the GPUs: Not Found"):
        read_topology(BUSES, tmp_path)


def test_a_switch_joins_all(tmp_path: File, monkeypatch: pytest.MonkeyPatch) -> None:
    links = library(BUSES, lambda a, b: 50, lambda gpu, number: "switch" if number < 18 else None)
    monkeypatch.setitem(sys.modules, "pynvml", links)
    topology = read_topology(BUSES, tmp_path)
    assert {str(link) for link in topology.links.values()} == {"NV18"}
    assert {g.node for g in topology.gpus} == {-1}, "sysfs does not say"


def test_a_machine_without_nvml(monkeypatch: pytest.MonkeyPatch, standin: Standin) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(MissingPackage, match="pip install nvidia-ml-py"):
        read_topology(BUSES)
    assert path_tables() == (), "one GPU has no path"
    standin.devices = 2
    (table,) = path_tables()
    assert table.rows[0][1] == "not known"


def test_copies_between_devices_are_measured(standin: Standin) -> None:
    standin.devices = 3
    rates = measured(3)
    assert set(rates) == {(a, b) for a in range(3) for b in range(3) if a != b}
    assert all(rate > 0 for rate in rates.values())


def test_ranks_hear_of_a_slow_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "count", lambda: 4)
    monkeypatch.setattr(layout, "topology_here", lambda devices: joined(devices, sockets, lambda i: i % 2))

    def begun(gpus: tuple[int, int]) -> list[str]:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            first, second = team(2, 60)
            other = Thread(target=layout.warn_of_layout, args=(second, gpus[1]))
            other.start()
            layout.warn_of_layout(first, gpus[0])
            other.join()
        return [str(w.message) for w in told if w.category is layout.SlowLayout]

    assert begun((1, 3)) == []
    (said,) = begun((0, 1))
    assert "as slow as SYS between 0 and 1" in said


# -- one GPU for each process


def test_each_worker_has_a_gpu_of_the_fastest_ring(
    standin: Standin, tmp_path: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    standin.devices = 3
    runtime = sys.modules["cupy.cuda.runtime"]
    monkeypatch.setattr(runtime, "deviceGetPCIBusId", lambda i: BUSES[i])
    level = {(0, 1): 50, (0, 2): 10, (1, 2): 50}
    monkeypatch.setitem(sys.modules, "pynvml", library(BUSES, lambda a, b: level[a, b], lambda gpu, number: None))
    assert gpus_for(2) == (0, 2)
    workers = [m for m in members(["true"], 2, 0, gpus=gpus_for(2)) if m.role == "worker"]
    assert [m.environment["MEZZO_GPU"] for m in workers] == ["0", "2"]
    assert all("MEZZO_GPU" not in m.environment for m in members(["true"], 2, 0))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpus_for(3) == (0, 1, 2), "their order is a matter of speed alone"
    with pytest.raises(InputError, match="4 GPUs are asked for, and CUDA shows 3"):
        gpus_for(4)
    told = CliRunner().invoke(cli, ["train", "m.onnx", "d.npz", "-o", "o.onnx", "-n", "2", "--device", "gpu:0"])
    assert "2 processes on gpu:0: --device gpu gives each one of its own" in told.output


def test_a_process_finds_its_own_gpu(standin: Standin, monkeypatch: pytest.MonkeyPatch) -> None:
    standin.devices = 2
    monkeypatch.setenv("MEZZO_GPU", "1")
    g = GraphBuilder()
    session = Session(g.graph([g.Relu(g.input("x", f32(2)))]), device="gpu")
    assert session.device.name == "gpu:1"
    monkeypatch.delenv("MEZZO_GPU")
    assert full_name("gpu") == "gpu:0"
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert full_name("gpu") == "gpu:1"
    standin.devices = 1  # as Slurm shows each task its own
    assert full_name("gpu") == "gpu:0"
    monkeypatch.setenv("MEZZO_GPU", "one")
    with pytest.raises(InputError, match="MEZZO_GPU='one' means nothing"):
        device_named("gpu")


@pytest.mark.parametrize("args", [["true"], ["-n", "2", "--gpus", "3", "true"]])
def test_the_number_of_workers_is_given_once(args: list[str]) -> None:
    told = CliRunner().invoke(cli, ["launch", *args])
    assert told.exit_code == 2
    assert "give the number of workers: -n, or --gpus" in told.output


def test_a_model_is_tuned_on_a_gpu(standin: Standin, tmp_path: File, monkeypatch: pytest.MonkeyPatch) -> None:
    """`mezzo train --device`: on a stand-in that computes, to the numbers of the CPU."""
    monkeypatch.chdir(tmp_path)
    standin.computes = True
    rng = np.random.default_rng(0)
    np.savez("data.npz", x=rng.standard_normal((24, 6), np.float32), label=rng.integers(0, 3, 24))
    g = GraphBuilder()
    weights = g.const(rng.standard_normal((6, 3)).astype(np.float32)), g.const(np.zeros(3, np.float32))
    save_onnx(g.graph([g.Gemm(g.input("x", f32("n", 6)), *weights)]), "model.onnx")
    found = {}
    for device in ("cpu", "gpu"):
        where = ["-o", f"{device}.onnx", "--device", device]
        cli.main(["train", "model.onnx", "data.npz", *where, "--epochs", "2", "--quiet"], standalone_mode=False)
        found[device] = load_onnx(f"{device}.onnx").initializers
    for name, want in found["cpu"].items():
        assert np.abs(found["gpu"][name] - want).max() <= 1e-5 * np.abs(want).max(), name

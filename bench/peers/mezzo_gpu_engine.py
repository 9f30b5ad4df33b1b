"""Ours on a GPU as an engine of a comparison: `mezzo_gpu_engine.py CHILD`, CHILD being the path of
tools/compare_child.py.

Settings: `model`, `precision`. Inputs lie on the device and outputs stay there; a call ends when its answer is there.
What it says of itself: launches of one run, bytes of the arena, and the time of a graph of as many empty kernels.
"""

from __future__ import annotations

import runpy
import sys
from time import perf_counter

from mezzo.ops.types import Tensor
from mezzo.runtime.version import __version__
from mezzo.tools.load import load


def make(settings, feeds):
    import cupy

    begin = perf_counter()
    session = load(settings["model"], device="gpu:0", precision=settings["precision"])
    inputs = {name: cupy.asarray(a) for name, a in feeds.items()}
    session.warmup({name: a.shape for name, a in feeds.items()})
    ports = [p for p in session.program.outputs if isinstance(p.type, Tensor)]
    outputs = {p.name: cupy.empty(p.type.sizes, p.type.dtype.numpy) for p in ports}
    session.run(inputs, outputs=outputs)
    took = perf_counter() - begin
    launches = sum(not s.choice.implementation.startswith("nothing") for s in session.program.steps)
    facts = {
        "version": __version__,
        "precision": settings["precision"],
        "device": cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(),
        "launches": str(launches),
        "arena_bytes": str(session.program.arena_bytes),
        "empty_graph_ms": f"{empty_graph_ms(cupy, launches):.5f}",
    }
    return Ready(
        lambda: session.run(inputs, outputs=outputs), lambda ys: [cupy.asnumpy(y) for y in ys.values()], took, facts
    )


def empty_graph_ms(cupy, launches):
    """A captured chain of kernels that do nothing: what starting so many costs, whatever they compute."""
    nothing = cupy.RawKernel('extern "C" __global__ void nothing() {}', "nothing")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        nothing((1,), (1,), ())
        stream.synchronize()
        stream.begin_capture()
        for _ in range(launches):
            nothing((1,), (1,), ())
        graph = stream.end_capture()
        times = []
        for _ in range(200):
            at = perf_counter()
            graph.launch(stream)
            stream.synchronize()
            times.append(perf_counter() - at)
    return 1e3 * sorted(times)[len(times) // 2]


if __name__ == "__main__":
    child = runpy.run_path(sys.argv[1])
    Ready = child["Ready"]
    child["serve"](make)

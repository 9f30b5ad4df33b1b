"""The engines that `mezzo bench` compares, each run as `python -m mezzo.tools.compare_engines NAME`."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import Any

from .compare_child import Answer, Make, Ready, serve


def mezzo(settings: Answer, feeds: dict[str, Any]) -> Ready:
    """Load Mezzo. Settings: `model`, `threads`, `precision`."""
    from importlib.metadata import version

    from .load import load

    options = {"threads": settings["threads"]}
    if settings.get("precision", "fp32") != "fp32":
        options["precision"] = settings["precision"]
    at = perf_counter()
    session = load(settings["model"], **options)
    took = perf_counter() - at
    facts = {"version": version("mezzo"), "precision": settings.get("precision", "fp32")}
    return Ready(lambda: session.run(feeds), lambda result: list(result.values()), took, facts)


def ort(settings: Answer, feeds: dict[str, Any]) -> Ready:
    """ONNX Runtime on the CPU with its defaults, but for the threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = settings["threads"], 1
    options.log_severity_level = 3
    at = perf_counter()
    session = onnxruntime.InferenceSession(settings["model"], options, providers=["CPUExecutionProvider"])
    took = perf_counter() - at
    given = {i.name for i in session.get_inputs()}
    inputs = {n: a for n, a in feeds.items() if n in given}
    facts = {"version": onnxruntime.__version__, "precision": "fp32"}
    return Ready(lambda: session.run(None, inputs), list, took, facts)


ENGINES: dict[str, Make] = {"mezzo": mezzo, "ort": ort}

if __name__ == "__main__":
    serve(ENGINES[sys.argv[1]])

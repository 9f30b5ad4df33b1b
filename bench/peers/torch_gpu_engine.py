"""PyTorch on a GPU as an engine of a comparison: `torch_gpu_engine.py CHILD`, CHILD being the path of
tools/compare_child.py.

Settings: `net` and `weights` (see nets.py); `precision` fp32 (products in full precision), tf32, fp16 or bf16; `how`
eager, graphs (captured once and replayed) or compile (max-autotune). Inputs lie on the device; a call ends when its
answer is there. Half precisions and TF32 get images channels-last, as PyTorch's documents advise.
"""

from __future__ import annotations

import runpy
import sys
from time import perf_counter

import torch
from torch_engine import network

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def make(settings, feeds):
    if not torch.cuda.is_available():
        raise RuntimeError("PyTorch sees no GPU")
    dtype, how = DTYPES[settings["precision"]], settings["how"]
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = settings["precision"] == "tf32"
    torch.backends.cudnn.benchmark = True
    begin = perf_counter()
    last = settings["precision"] != "fp32" and any(a.ndim == 4 for a in feeds.values())
    layout = {"memory_format": torch.channels_last} if last else {}
    model = network(settings, len(feeds)).to("cuda", dtype, **layout)
    inputs = [torch.from_numpy(a).to("cuda") for a in feeds.values()]
    inputs = [a.to(dtype, **(layout if a.ndim == 4 else {})) if a.is_floating_point() else a for a in inputs]
    run = torch.compile(model, dynamic=False, mode="max-autotune") if how == "compile" else model

    def eager():
        with torch.inference_mode():
            found = run(*inputs)
        torch.cuda.synchronize()
        return found

    call = eager
    if how == "graphs":
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside), torch.inference_mode():
            for _ in range(3):
                model(*inputs)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.inference_mode(), torch.cuda.graph(graph):
            kept = model(*inputs)

        def call():
            graph.replay()
            torch.cuda.synchronize()
            return kept

    facts = {"version": torch.__version__, "precision": settings["precision"], "device": torch.cuda.get_device_name()}
    return Ready(call, lambda ys: [y.float().cpu().numpy() for y in ys], perf_counter() - begin, facts)


if __name__ == "__main__":
    child = runpy.run_path(sys.argv[1])
    Ready = child["Ready"]
    child["serve"](make)

"""PyTorch as an engine that trains: `torch_training.py CHILD`, CHILD being the path of tools/compare_child.py.

Settings: `net` and `weights` (see nets.py), `optimizer` as `Optimizer.to_dict` tells it, `precision` fp32 or bf16
(autocast), `compiled` for torch.compile of the network with its loss and of the optimizer's step.
"""

from __future__ import annotations

import runpy
import sys
from time import perf_counter

import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from torch_engine import network

OPTIMIZERS = {
    "SGD": lambda params, o: torch.optim.SGD(params, lr=o["rate"], momentum=o["momentum"]),
    "Adam": lambda params, o: torch.optim.Adam(params, lr=o["rate"], betas=(o["beta1"], o["beta2"]), eps=o["epsilon"]),
}


def make(settings, feeds):
    torch.set_num_threads(settings["threads"])
    reduced = settings["precision"] == "bf16"
    begin = perf_counter()
    *inputs, target = (torch.from_numpy(a) for a in feeds.values())
    model = network(settings, len(inputs), training=True).requires_grad_(True)
    optimizer = OPTIMIZERS[settings["optimizer"]["kind"]](model.parameters(), settings["optimizer"])

    def judged():
        with torch.autocast("cpu", torch.bfloat16, enabled=reduced):
            (scores,) = model(*inputs)
        return F.cross_entropy(scores.float(), target)

    update = optimizer.step
    if settings["compiled"]:
        judged, update = torch.compile(judged, dynamic=False), torch.compile(update, dynamic=False)

    def call():
        optimizer.zero_grad()
        loss = judged()
        loss.backward()
        update()
        return loss

    facts = {"version": torch.__version__, "precision": "bf16 autocast" if reduced else "fp32"}
    return Ready(call, lambda loss: [loss.detach().numpy()], perf_counter() - begin, facts)


if __name__ == "__main__":
    child = runpy.run_path(sys.argv[1])
    Ready = child["Ready"]
    child["serve"](make)

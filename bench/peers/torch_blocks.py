"""PyTorch's eager modules for `bench/blocks.py`: `torch_blocks.py CHILD`. Settings: `net`."""

from __future__ import annotations

import runpy
import sys
from time import perf_counter

import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(256, 768), nn.Linear(256, 256)
        self.one, self.two = nn.LayerNorm(256), nn.LayerNorm(256)
        self.wide, self.back = nn.Linear(256, 1024), nn.Linear(1024, 256)

    def forward(self, x):
        q, k, v = (a.unflatten(-1, (4, 64)).transpose(1, 2) for a in self.qkv(x).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = self.one(x + self.out(mixed))
        return self.two(x + self.back(nn.functional.gelu(self.wide(x))))


NETS = {
    "mlp": lambda: nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 10)),
    "lenet": lambda: nn.Sequential(
        nn.Conv2d(1, 20, 5), nn.Tanh(), nn.MaxPool2d(2), nn.Conv2d(20, 50, 5), nn.Tanh(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(800, 500), nn.Tanh(), nn.Linear(500, 10),
    ),
    "transformer": Encoder,
}  # fmt: skip


def make(settings, feeds):
    torch.set_num_threads(settings["threads"])
    begin = perf_counter()
    net, x = NETS[settings["net"]]().eval(), torch.from_numpy(feeds["data"])

    def call():
        with torch.no_grad():
            return net(x)

    return Ready(call, lambda _: [], perf_counter() - begin, {"version": torch.__version__, "precision": "fp32"})


if __name__ == "__main__":
    child = runpy.run_path(sys.argv[1])
    Ready = child["Ready"]
    child["serve"](make)

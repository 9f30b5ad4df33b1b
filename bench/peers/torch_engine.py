"""PyTorch as an engine of a comparison: `torch_engine.py CHILD`, CHILD being the path of tools/compare_child.py.

Settings: `net` and `weights` (see nets.py), `precision` fp32 or bf16, `compiled` for torch.compile with weights frozen
into the program, as its documents advise for inference.
"""

from __future__ import annotations

import runpy
import sys
from time import perf_counter

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - its usual name
from nets import NETS, Stored
from torch import nn


class Net(nn.Module):
    """A network over stored weights; made to be traced, so that no Python of ours is left in a run."""

    def __init__(self, name: str, stored: Stored) -> None:
        super().__init__()
        self.net, self.stored, self.count = NETS[name], stored, 0

    def take(self, op: str) -> list[nn.Parameter]:
        return [self.keep(a) for a in self.stored.take(op)]

    def keep(self, array: np.ndarray) -> nn.Parameter:
        self.count += 1
        made = nn.Parameter(torch.from_numpy(np.array(array)), requires_grad=False)
        self.register_parameter(f"p{self.count}", made)
        return made

    def conv(self, x, stride=1, pad=0, depthwise=False):
        w, *bias = self.take("Conv")
        return torch.conv2d(x, w, *(bias or [None]), stride, pad, 1, w.shape[0] if depthwise else 1)

    def norm(self, x):
        scale, bias, mean, variance = self.take("BatchNormalization")
        return F.batch_norm(x, mean, variance, scale, bias, False, 0.1, 1e-5)

    def relu(self, x):
        return torch.relu(x)

    def relu6(self, x):
        return F.relu6(x)

    def max_pool(self, x, kernel, stride, pad):
        return F.max_pool2d(x, kernel, stride, pad)

    def pooled(self, x):
        return torch.flatten(F.adaptive_avg_pool2d(x, 1), 1)

    def gemm(self, x):
        return F.linear(x, *self.take("Gemm"))

    def softmax(self, x):
        return torch.softmax(x, -1)

    def dense(self, x):
        (w,), (b,) = self.stored.take("MatMul"), self.take("Add")
        return F.linear(x, self.keep(np.ascontiguousarray(w.T)), b)

    def gelu(self, x):
        return F.gelu(x)

    def layer_norm(self, x):
        scale, bias = self.take("LayerNormalization")
        return F.layer_norm(x, scale.shape, scale, bias, 1e-12)

    def embedding(self, ids):
        return F.embedding(ids, *self.take("Gather"))

    def places(self, x):
        (table,) = self.stored.take("Gather")
        return x + self.keep(table[None, :128])

    def unseen(self, mask, x):
        return ((1 - mask) * -10000.0).type_as(x)[:, None, None, :]

    def attention(self, query, key, value, unseen, heads):
        def split(x):
            return x.unflatten(-1, (heads, -1)).transpose(1, 2)

        mixed = F.scaled_dot_product_attention(split(query), split(key), split(value), attn_mask=unseen)
        return mixed.transpose(1, 2).flatten(2)


class Recurrent(nn.Module):
    """The LSTM: a layer that brings its own weights."""

    def __init__(self, stored: Stored) -> None:
        super().__init__()
        w, r, b = (a[0] for a in stored.take("LSTM"))
        hidden = r.shape[1]

        def gates(a: np.ndarray) -> torch.Tensor:  # ONNX has i, o, f, c; PyTorch i, f, c, o
            i, o, f, c = np.split(a, 4)
            return torch.from_numpy(np.concatenate([i, f, c, o]))

        self.layer = nn.LSTM(w.shape[1], hidden)
        values = (gates(w), gates(r), gates(b[: 4 * hidden]), gates(b[4 * hidden :]))
        for weight, value in zip(self.layer.parameters(), values, strict=True):
            weight.data = value

    def forward(self, x):
        y, (h, _) = self.layer(x)
        return [y.unsqueeze(1), h]


class OneInput(Net):
    def forward(self, x):
        return self.net(self, x)


class ThreeInputs(Net):
    def forward(self, a, b, c):
        return self.net(self, a, b, c)


def make(settings, feeds):
    torch.set_num_threads(settings["threads"])
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[settings["precision"]]
    begin = perf_counter()
    with np.load(settings["weights"], allow_pickle=False) as weights:
        stored = Stored(dict(weights))
    if settings["net"] == "lstm":
        model = Recurrent(stored).eval().to(dtype)
    else:
        net = (OneInput if len(feeds) == 1 else ThreeInputs)(settings["net"], stored)
        model = torch.fx.symbolic_trace(net.eval()).eval().to(dtype)
    if settings["compiled"]:
        from torch._inductor import config

        config.freezing = True
        model = torch.compile(model, dynamic=False)
    inputs = [torch.from_numpy(a) for a in feeds.values()]
    inputs = [a.to(dtype) if a.is_floating_point() else a for a in inputs]

    def call():
        with torch.inference_mode():
            return model(*inputs)

    facts = {"version": torch.__version__, "precision": settings["precision"]}
    return Ready(call, lambda ys: [y.float().numpy() for y in ys], perf_counter() - begin, facts)


if __name__ == "__main__":
    child = runpy.run_path(sys.argv[1])
    Ready = child["Ready"]
    child["serve"](make)

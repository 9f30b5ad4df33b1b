"""Layers that change sizes, transformers and shared statistics: as in PyTorch; eager = hybridized = exported."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mezzo import nd
from mezzo.gluon import nn
from mezzo.gluon.hybrid import HybridBlock
from mezzo.nd import autograd
from mezzo.nd.array import Array
from mezzo.ops.errors import InputError
from mezzo.tools.load import load

from .models import ort_run, referee
from .peers import peer

RNG = np.random.default_rng(2)


def close(a: Any, b: Any, tolerance: float = 1e-10) -> None:
    a, b = np.asarray(a), np.asarray(b)
    assert a.shape == b.shape
    assert np.abs(a - b).max(initial=0) <= tolerance * max(np.abs(b).max(initial=0), 1e-12)


def is_that_of_pytorch(block: HybridBlock, theirs: Any, *shapes: tuple[int, ...], path: Path | None = None) -> None:
    """Results and gradients at all inputs, in float64, eager and hybridized, for two inputs; then the exported file."""
    torch = peer("torch")
    for hybrid in (False, True):
        block.hybridize(hybrid)
        for shift in (0.0, 1.0):
            given = [RNG.standard_normal(s) + shift for s in shapes]
            tensors = [torch.tensor(x, requires_grad=True) for x in given]
            want = theirs(*tensors)
            weights = RNG.standard_normal(tuple(want.shape))
            (want * torch.tensor(weights)).sum().backward()
            mine = [nd.asarray(x) for x in given]
            for x in mine:
                x.attach_grad()
            with autograd.record(train_mode=False):
                found = block(*mine)
                total = (found * nd.asarray(weights)).sum()
            total.backward()
            close(found.asnumpy(), want.detach().numpy())
            for x, y in zip(mine, tensors, strict=True):
                assert x.grad is not None
                close(x.grad.asnumpy(), y.grad.numpy())
    assert block.report() == "everything is traced"
    if path is not None:
        referee()
        block.cast("float32")
        plain = [x.astype(np.float32) for x in given]
        block.export(path, *map(nd.asarray, plain))
        feeds = {f"x{i}": x for i, x in enumerate(plain)}
        want = theirs(*(torch.tensor(x) for x in given)).detach().numpy().astype(np.float32)
        for found in (load(path).run(feeds), ort_run(path, feeds)):
            (one,) = found.values()
            close(one, want, 2e-5)


LAYERS: dict[str, tuple[Callable[[], HybridBlock], str, tuple[int, ...]]] = {
    "means of 1": (lambda: nn.AdaptiveAvgPool1D(3), "AdaptiveAvgPool1d(3)", (2, 3, 7)),
    "means of 2": (lambda: nn.AdaptiveAvgPool2D((3, 4)), "AdaptiveAvgPool2d((3, 4))", (2, 3, 7, 8)),
    "means that divide": (lambda: nn.AdaptiveAvgPool2D(2), "AdaptiveAvgPool2d(2)", (2, 3, 6, 8)),
    "a size that stays": (lambda: nn.AdaptiveAvgPool2D((None, 5)), "AdaptiveAvgPool2d((None, 5))", (1, 2, 3, 7)),
    "means of 3": (lambda: nn.AdaptiveAvgPool3D(2), "AdaptiveAvgPool3d(2)", (1, 2, 3, 4, 5)),
    "largest of 1": (lambda: nn.AdaptiveMaxPool1D(4), "AdaptiveMaxPool1d(4)", (2, 3, 7)),
    "largest of 2": (lambda: nn.AdaptiveMaxPool2D((3, 2)), "AdaptiveMaxPool2d((3, 2))", (2, 3, 7, 5)),
    "largest that divide": (lambda: nn.AdaptiveMaxPool2D(3), "AdaptiveMaxPool2d(3)", (2, 3, 6, 9)),
    "largest of 3": (lambda: nn.AdaptiveMaxPool3D(2), "AdaptiveMaxPool3d(2)", (1, 2, 3, 4, 5)),
    "enlarged": (lambda: nn.Upsample(2), "Upsample(scale_factor=2)", (2, 3, 4, 5)),
    "enlarged to": (lambda: nn.Upsample(size=(7, 9)), "Upsample((7, 9))", (1, 2, 3, 4)),
    "linear": (lambda: nn.Upsample(2, mode="linear"), "Upsample(scale_factor=2, mode='linear')", (1, 2, 5)),
    "bilinear": (
        lambda: nn.Upsample((2, 4), mode="bilinear"),
        "Upsample(scale_factor=(2, 4), mode='bilinear')",
        (1, 2, 4, 3),
    ),
    "corners": (
        lambda: nn.Upsample(size=(7, 5), mode="bilinear", align_corners=True),
        "Upsample((7, 5), mode='bilinear', align_corners=True)",
        (1, 2, 4, 3),
    ),
    "bicubic": (lambda: nn.Upsample(2, mode="bicubic"), "Upsample(scale_factor=2, mode='bicubic')", (1, 1, 4, 5)),
    "shuffled": (lambda: nn.PixelShuffle2D(2), "PixelShuffle(2)", (2, 8, 3, 4)),
    "reflected": (lambda: nn.ReflectionPad2D((1, 2, 0, 3)), "ReflectionPad2d((1, 2, 0, 3))", (1, 2, 5, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_sizes_change_as_in_pytorch(name: str, tmp_path: Path) -> None:
    make, theirs, shape = LAYERS[name]
    torch = peer("torch")
    is_that_of_pytorch(make(), eval(f"nn.{theirs}", {"nn": torch.nn}), shape, path=tmp_path / "layer.onnx")  # noqa: S307


def test_pixels_of_other_axes() -> None:
    """A factor for each axis: what einops writes as b (c f g) h w -> b c (h f) (w g)."""
    x = RNG.standard_normal((2, 12, 3, 4))
    found = nn.PixelShuffle2D((2, 3))(nd.asarray(x)).asnumpy()
    want = np.einsum("bcfghw->bchfwg", x.reshape(2, 2, 2, 3, 3, 4)).reshape(2, 2, 6, 12)
    close(found, want)
    line = nn.PixelShuffle1D(3)(nd.asarray(x[:, :, 0])).asnumpy()
    close(line, x[:, :, 0].reshape(2, 4, 3, 4).swapaxes(2, 3).reshape(2, 4, 12))
    cube = nn.PixelShuffle3D(2)(nd.asarray(x.reshape(1, 8, 3, 4, 3))).asnumpy()
    want = np.einsum("bcfghxyz->bcxfygzh", x.reshape(1, 1, 2, 2, 2, 3, 4, 3)).reshape(1, 1, 6, 8, 6)
    close(cube, want)


@pytest.mark.parametrize(
    ("make", "shape", "said"),
    [
        (lambda: nn.PixelShuffle2D(2), (1, 6, 3, 3), "a multiple of 4 channels"),
        (lambda: nn.AdaptiveAvgPool2D(2), (1, 6, 3), "rank 3"),
        (lambda: nn.AdaptiveAvgPool2D((1, 2, 3)), (1,), "2 sizes"),
        (lambda: nn.Upsample(2, mode="cubist"), (1,), "a mode of nearest"),
        (lambda: nn.Upsample(), (1,), "give scale or size"),
    ],
)
def test_what_layers_refuse(make: Callable[[], HybridBlock], shape: tuple[int, ...], said: str) -> None:
    with pytest.raises(InputError, match=said):
        make()(nd.ones(shape))


# -- transformers -----------------------------------------------------------------------------------------------------

PARTS = {"self_attn": "attention", "multihead_attn": "cross"}


def taken(block: Any, theirs: Any) -> Any:
    """A block with the weights of PyTorch's layer."""
    block.initialize().cast("float64")
    params = block.collect_params()
    for name, p in theirs.named_parameters():
        value, (part, *rest) = p.detach().numpy(), name.split(".")
        if part in PARTS and rest[0].startswith("in_proj"):
            for one, piece in zip(("query", "key", "value"), np.split(value, 3), strict=True):
                params[f"{PARTS[part]}.{one}.{rest[0].removeprefix('in_proj_')}"].set_data(piece)
        elif part in PARTS:
            params[f"{PARTS[part]}.out.{rest[1]}"].set_data(value)
        elif part.startswith("linear"):
            params[f"feed.{0 if part == 'linear1' else 3}.{rest[0]}"].set_data(value)
        else:
            params[f"{part}.{'gamma' if rest[0] == 'weight' else 'beta'}"].set_data(value)
    return block


@pytest.mark.parametrize("pre_norm", [False, True])
def test_transformer_layers_are_those_of_pytorch(pre_norm: bool, tmp_path: Path) -> None:
    torch = peer("torch")
    how: dict[str, Any] = {
        "dim_feedforward": 16,
        "dropout": 0.0,
        "batch_first": True,
        "norm_first": pre_norm,
        "activation": "gelu",
    }
    ours: dict[str, Any] = {"hidden_size": 16, "dropout": 0.0, "pre_norm": pre_norm, "activation": "gelu"}
    encoder = torch.nn.TransformerEncoderLayer(8, 2, **how).double()
    block = taken(nn.TransformerEncoderLayer(8, 2, **ours), encoder)
    is_that_of_pytorch(block, encoder, (2, 5, 8), path=tmp_path / "encoder.onnx")
    decoder = torch.nn.TransformerDecoderLayer(8, 2, **how).double()
    causal = torch.nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    both = taken(nn.TransformerDecoderLayer(8, 2, **ours), decoder)

    def theirs(x: Any, memory: Any) -> Any:
        return decoder(x, memory, tgt_mask=causal)

    is_that_of_pytorch(both, theirs, (2, 5, 8), (2, 3, 8), path=tmp_path / "decoder.onnx")


def test_masks_of_attention() -> None:
    torch = peer("torch")
    theirs = torch.nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True).double()
    block = taken(nn.TransformerEncoderLayer(8, 2, 16, 0.0), theirs)
    x, seen = RNG.standard_normal((2, 5, 8)), np.arange(5) < np.array([[3], [5]])
    want = theirs(torch.tensor(x), src_key_padding_mask=torch.tensor(~seen)).detach().numpy()
    for hybrid in (False, True):
        block.hybridize(hybrid)
        found = block(nd.asarray(x), nd.asarray(np.broadcast_to(seen[:, None, None], (2, 1, 5, 5)).copy())).asnumpy()
        close(found[seen], want[seen])


def test_positions() -> None:
    """Formulas of section 3.5."""
    found = nn.PositionalEncoding(6)(nd.zeros((1, 4, 6), dtype="float64")).asnumpy()[0]
    want = [[(np.sin, np.cos)[i % 2](p / 10000 ** (i // 2 * 2 / 6)) for i in range(6)] for p in range(4)]
    close(found, want)


# -- statistics of all workers ----------------------------------------------------------------------------------------

WORKER = """
import sys
import numpy as np
import mezzo as mz
from mezzo.gluon import nn

with mz.kv.create("dist_sync") as kv:
    whole = np.load("data.npz")
    cuts = [0, 3, 8] if kv.num_workers == 2 else [0, 8]  # shares need not be equal
    mine = slice(cuts[kv.rank], cuts[kv.rank + 1])
    x, weights = (mz.nd.asarray(whole[n][mine]) for n in ("x", "weights"))
    net = nn.SyncBatchNorm(kv).initialize().cast("float64")
    for _ in range(2):
        x.attach_grad()
        with mz.autograd.record():
            loss = (net(x) * weights).sum()
        loss.backward()
    net.export(f"rank{kv.rank}.onnx", x)
    names = {n: p.data().asnumpy() for n, p in net.collect_params().items()}
    grads = {f"d{n}": p.grad().asnumpy() for n, p in net.collect_params().items() if p.grad_req != "null"}
    np.savez(f"rank{kv.rank}.npz", y=net.forward(x).asnumpy(), dx=x.grad.asnumpy(), **names, **grads)
"""


def test_statistics_of_all_workers(tmp_path: Path) -> None:
    """Two workers with 3 and 5 examples are one with 8."""
    whole = {n: RNG.standard_normal((8, 3, 2, 2)) * 2 + 1 for n in ("x", "weights")}
    np.savez(tmp_path / "data.npz", x=whole["x"], weights=whole["weights"])
    (tmp_path / "worker.py").write_text(WORKER)
    command = [sys.executable, "-m", "mezzo", "launch", "-n", "2", "-s", "0", "worker.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = [np.load(tmp_path / f"rank{i}.npz") for i in (0, 1)]
    alone = nn.BatchNorm().initialize().cast("float64")
    x = nd.asarray(whole["x"])
    for _ in range(2):
        x.attach_grad()
        with autograd.record():
            loss = (alone(x) * nd.asarray(whole["weights"])).sum()
        loss.backward()
    assert x.grad is not None
    close(np.concatenate([f["dx"] for f in found]), x.grad.asnumpy())
    close(np.concatenate([f["y"] for f in found]), alone(x).asnumpy())
    for n in ("running_mean", "running_var"):
        for f in found:
            close(f[n], alone.collect_params()[n].data().asnumpy())
    for n in ("gamma", "beta"):
        close(sum(f[f"d{n}"] for f in found), alone.collect_params()[n].grad().asnumpy())


def test_one_worker_has_its_own_statistics() -> None:
    import mezzo as mz

    with mz.kv.create("local") as kv:
        net, x = nn.SyncBatchNorm(kv).initialize(), nd.asarray(RNG.standard_normal((4, 3)).astype(np.float32))
        with autograd.train_mode():
            y: Array = net(x)
        assert abs(y.asnumpy().mean(0)).max() < 1e-6

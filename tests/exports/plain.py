"""Architectures written here in plain PyTorch: small enough for continuous integration, and recurrent ones."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from .architecture import Architecture, Read

IMAGE = Read("image", ("batch", 3, "height", "width"))
SQUARES = ({"height": 32, "width": 32}, {"height": 64, "width": 32}, {"height": 32, "width": 96})


def mixed_transformer() -> Any:
    """SegFormer's way: overlapping patches, attention to a smaller map, convolution between two linear layers, maps of
    every stage brought to one size."""
    import torch
    from torch import nn
    from torch.nn import functional as f

    class Attention(nn.Module):  # type: ignore[misc]
        def __init__(self, width: int, heads: int, shrink: int) -> None:
            super().__init__()
            self.heads, self.shrink = heads, shrink
            self.q, self.kv, self.out = nn.Linear(width, width), nn.Linear(width, 2 * width), nn.Linear(width, width)
            self.reduce, self.norm = nn.Conv2d(width, width, shrink, shrink), nn.LayerNorm(width)

        def forward(self, x: Any, height: int, width: int) -> Any:
            batch, _, channels = x.shape
            q = self.q(x).reshape(batch, -1, self.heads, channels // self.heads).transpose(1, 2)
            small = self.reduce(x.transpose(1, 2).reshape(batch, channels, height, width))
            small = self.norm(small.reshape(batch, channels, -1).transpose(1, 2))
            k, v = self.kv(small).reshape(batch, -1, 2, self.heads, channels // self.heads).permute(2, 0, 3, 1, 4)
            said = (q @ k.transpose(-2, -1) * (channels // self.heads) ** -0.5).softmax(-1) @ v
            return self.out(said.transpose(1, 2).reshape(batch, -1, channels))

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, width: int, heads: int, shrink: int) -> None:
            super().__init__()
            self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
            self.attention = Attention(width, heads, shrink)
            self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
            self.near = nn.Conv2d(2 * width, 2 * width, 3, 1, 1, groups=2 * width)

        def forward(self, x: Any, height: int, width: int) -> Any:
            x = x + self.attention(self.before(x), height, width)
            wide = self.up(self.between(x))
            wide = self.near(wide.transpose(1, 2).reshape(wide.shape[0], -1, height, width))
            return x + self.down(f.gelu(wide.flatten(2).transpose(1, 2)))

    class Net(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            widths = (3, 16, 24)
            self.patches = nn.ModuleList(nn.Conv2d(a, b, 7, 4, 3) for a, b in pairwise(widths))
            self.norms = nn.ModuleList(nn.LayerNorm(w) for w in widths[1:])
            self.blocks = nn.ModuleList([Block(16, 1, 4), Block(24, 2, 2)])
            self.heads = nn.ModuleList(nn.Linear(w, 20) for w in widths[1:])
            self.fuse, self.norm, self.classes = (
                nn.Conv2d(40, 20, 1, bias=False),
                nn.BatchNorm2d(20),
                nn.Conv2d(20, 5, 1),
            )

        def forward(self, image: Any) -> Any:
            x, maps = image, []
            for patch, norm, block, head in zip(self.patches, self.norms, self.blocks, self.heads, strict=True):
                x = patch(x)
                height, width = x.shape[2:]
                x = block(norm(x.flatten(2).transpose(1, 2)), height, width)
                maps.append(head(x).transpose(1, 2).reshape(x.shape[0], -1, height, width))
                x = x.transpose(1, 2).reshape(x.shape[0], -1, height, width)
            maps = [f.interpolate(m, size=maps[0].shape[2:], mode="bilinear", align_corners=False) for m in maps]
            return self.classes(f.relu(self.norm(self.fuse(torch.cat(maps[::-1], 1)))))

    return Net()


def convnext() -> Any:
    """ConvNeXt's way: a depthwise convolution, the rest of the block with the channels last, a scaled residual."""
    import torch
    from torch import nn

    class First(nn.Module):  # type: ignore[misc]
        """A layer norm of the channels, which come first."""

        def __init__(self, width: int) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

        def forward(self, x: Any) -> Any:
            x = x - x.mean(1, keepdim=True)
            x = x / (x.pow(2).mean(1, keepdim=True) + 1e-6).sqrt()
            return self.weight[:, None, None] * x + self.bias[:, None, None]

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self, width: int) -> None:
            super().__init__()
            self.near = nn.Conv2d(width, width, 7, 1, 3, groups=width)
            self.norm, self.up, self.down = (
                nn.LayerNorm(width),
                nn.Linear(width, 4 * width),
                nn.Linear(4 * width, width),
            )
            self.scale = nn.Parameter(torch.ones(width))

        def forward(self, x: Any) -> Any:
            y = self.norm(self.near(x).permute(0, 2, 3, 1))
            y = self.scale * self.down(nn.functional.gelu(self.up(y)))
            return x + y.permute(0, 3, 1, 2)

    class Net(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(nn.Conv2d(3, 16, 4, 4), First(16), Block(16))
            self.next = nn.Sequential(First(16), nn.Conv2d(16, 24, 2, 2), Block(24))
            self.norm, self.classes = nn.LayerNorm(24), nn.Linear(24, 5)

        def forward(self, image: Any) -> Any:
            found = self.next(self.stem(image))
            return self.classes(self.norm(found.mean((-2, -1)))), found

    return Net()


def reader() -> Any:
    """Two layers of an LSTM that read both ways, and their last states."""
    from torch import nn

    class Net(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.reads = nn.LSTM(6, 10, num_layers=2, bidirectional=True, batch_first=True)

        def forward(self, x: Any) -> Any:
            steps, (h, c) = self.reads(x)
            return steps, h, c

    return Net()


def tagger() -> Any:
    """Words, an LSTM, and a score of each tag with the tags before the words, as a loss wants them."""
    from torch import nn

    class Net(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.words, self.reads = nn.Embedding(30, 12), nn.LSTM(12, 16, batch_first=True, bidirectional=True)
            self.tags = nn.Linear(32, 7)

        def forward(self, words: Any) -> Any:
            return self.tags(self.reads(self.words(words))[0]).transpose(1, 2)

    return Net()


def unet() -> Any:
    """Down with pooling, up with a transposed convolution, and what was seen on the way down beside it."""
    import torch
    from torch import nn

    def two(a: int, b: int) -> Any:
        return nn.Sequential(
            *(nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()),
            *(nn.Conv2d(b, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU()),
        )

    class Net(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.down = nn.ModuleList([two(3, 8), two(8, 16), two(16, 32)])
            self.bigger = nn.ModuleList([nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)])
            self.up, self.classes = nn.ModuleList([two(32, 16), two(16, 8)]), nn.Conv2d(8, 4, 1)

        def forward(self, image: Any) -> Any:
            x, seen = self.down[0](image), []
            for down in self.down[1:]:
                seen.append(x)
                x = down(nn.functional.max_pool2d(x, 2))
            for bigger, up in zip(self.bigger, self.up, strict=True):
                x = up(torch.cat([seen.pop(), bigger(x)], 1))
            return self.classes(x)

    return Net()


LENGTHS = ({"length": 5}, {"length": 1}, {"length": 17})
PLAIN = (
    Architecture(
        "mixed transformer (written here)", mixed_transformer, (IMAGE,), ("classes",), SQUARES, ("torchscript",),
        "an inequality between its sizes that torch.export cannot solve", named=True,
    ),
    Architecture("ConvNeXt blocks (written here)", convnext, (IMAGE,), ("classes", "found"), SQUARES, named=True),
    Architecture(
        "two-layer bidirectional LSTM",
        reader,
        (Read("x", ("batch", "length", 6)),),
        ("y", "h", "c"),
        LENGTHS,
        named=True,
    ),
    Architecture(
        "LSTM tagger", tagger, (Read("words", ("batch", "length"), below=30),), ("scores",), LENGTHS, named=True
    ),
    Architecture("U-Net", unet, (IMAGE,), ("classes",), SQUARES, named=True),
)  # fmt: skip

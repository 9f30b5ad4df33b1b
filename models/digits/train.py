"""Makes digits.onnx and digits.npz: `python -m mezzo.models.digits.train [FOLDER]`, with PyTorch and scikit-learn.

The 1797 real images are split once (seed 0, as many of each digit on both sides as the data allow); 1437 train the
network, 360 are held out. The held-out images, their labels and PyTorch's logits are stored beside the model, so that
whoever runs it can say how many digits it reads and how far its numbers are from PyTorch's.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

HELD_OUT, EPOCHS, BATCH, SEED = 360, 40, 64, 0


def network() -> nn.Module:
    """Three convolutions with batch normalisation, two poolings, one linear layer: 25,978 weights."""

    def block(channels: int, features: int) -> list[nn.Module]:
        return [nn.Conv2d(channels, features, 3, padding=1, bias=False), nn.BatchNorm2d(features), nn.ReLU()]

    return nn.Sequential(
        *block(1, 16),
        *block(16, 32),
        nn.MaxPool2d(2),
        *block(32, 64),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(64 * 2 * 2, 10),
    )


def fit(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Train with Adam and one cycle of the learning rate, moving each image by at most one pixel."""
    steps = EPOCHS * -(-len(images) // BATCH)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-2, total_steps=steps)
    model.train()
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images)).split(BATCH):
            down, right = torch.randint(-1, 2, (2,)).tolist()
            moved = torch.roll(images[batch], (down, right), (2, 3))
            loss = nn.functional.cross_entropy(model(moved), labels[batch], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


def main(folder: Path) -> None:
    torch.manual_seed(SEED)
    torch.use_deterministic_algorithms(True)
    data = load_digits()
    pixels = data.images.astype(np.uint8)[:, None]  # 0..16
    seen, held, seen_labels, labels = train_test_split(
        pixels, data.target.astype(np.uint8), test_size=HELD_OUT, stratify=data.target, random_state=SEED
    )
    model = network()
    fit(model, torch.from_numpy(seen) / 16.0, torch.from_numpy(seen_labels).long())
    model.eval()
    with torch.no_grad():
        logits = model(torch.from_numpy(held) / 16.0).numpy()
    print(f"{(logits.argmax(1) == labels).sum()} of {len(labels)} held-out digits read correctly")

    program = torch.onnx.export(
        model,
        (torch.zeros(2, 1, 8, 8),),
        input_names=["image"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        opset_version=18,
        dynamo=True,
        verbose=False,
    )
    assert program is not None, "the dynamo exporter returns a program"
    proto = program.model_proto
    for node in proto.graph.node:  # stack traces name the folders of the machine that exported
        kept = [entry for entry in node.metadata_props if not entry.key.endswith("stack_trace")]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    onnx.checker.check_model(proto, full_check=True)
    onnx.save(proto, folder / "digits.onnx")
    np.savez_compressed(folder / "digits.npz", images=held, labels=labels, logits=logits)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)

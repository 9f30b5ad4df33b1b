"""Photos of a packed file as torch's tensors, for `bench/data.py`: the calls of Pillow that ours makes, and torch's own
arithmetic. Workers import it.
"""

from __future__ import annotations

import io
import math

import numpy as np
import torch
from PIL import Image

from mezzo.data.image_records import unpack
from mezzo.data.records import RecordFile


class Photos(torch.utils.data.Dataset):
    def __init__(self, path, edge, mean, std):
        self.records, self.edge = RecordFile(path, check=False), edge
        self.mean, self.std = (torch.tensor(x).reshape(3, 1, 1) for x in (mean, std))

    def __len__(self):
        return len(self.records)

    def __getitem__(self, number):
        header, content = unpack(self.records[number])
        with Image.open(io.BytesIO(content)) as opened:
            image = opened.convert("RGB")
        image = image.resize((self.edge, self.edge), Image.Resampling.BILINEAR, box=self.box(*image.size))
        if torch.rand(()) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
        return pixels.to(torch.float32).div(255).sub_(self.mean).div_(self.std), int(header.label)

    def box(self, width, height):
        for _ in range(10):
            share = width * height * torch.empty(1).uniform_(0.08, 1).item()
            ratio = math.exp(torch.empty(1).uniform_(math.log(3 / 4), math.log(4 / 3)).item())
            w, h = round(math.sqrt(share * ratio)), round(math.sqrt(share / ratio))
            if 0 < w <= width and 0 < h <= height:
                top, left = (torch.randint(0, n + 1, (1,)).item() for n in (height - h, width - w))
                return left, top, left + w, top + h
        return 0, 0, width, height

"""Data: reading of records, an image pipeline, a trainer that starves and is fed, memory over epochs.

    python bench/data.py --quick

`records/64KB` is GB/s of reading all records of a file in the page cache; `records/64KB/sum` the same with every byte
summed up. The peer is MXNet 1.9.1's `MXRecordIO.read`, in an environment
of its own; the floor is the page cache: `readinto` of the same file into one buffer, 64 KB at a time. `images/...` are
images per second of decode, random resized crop to 224, flip, normalise and batches of 32 by two workers, from JPEGs of
500 x 375 in a packed file: ours and torch's DataLoader, which reads the same records and calls the same functions of
Pillow. `utilisation/...` is the share of time that a trainer computes (a matrix product of fixed size in its thread): a
loader in its own thread that reads files of full size, then with two workers ahead, then of records packed at 256, then
that of one of two shards, as each of two hosts would read. `memory/10-epochs` is MiB by which trainer and workers grew
from the end of the first epoch to that of the tenth.

Contestants are interleaved, in processes of their own; rows are medians of `--rounds` rounds.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from peers.environment import mxnet_python
from rows import Row, arguments, machine, show, users_environment

ROOT = Path(__file__).parents[1]
KEPT = ROOT / "build" / "bench" / "data"
SIZE = 65536
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
EDGE, BATCH, WORKERS = 224, 32, 2

MXNET = """
import json, sys, time
import numpy as np
if not hasattr(np, "bool"):
    np.bool = bool
import mxnet as mx
def once(sums):
    reader, size = mx.recordio.MXRecordIO(sys.argv[1], "r"), 0
    began = time.perf_counter()
    while True:
        record = reader.read()
        if record is None:
            break
        size += len(record)
        if sums:
            np.add.reduce(np.frombuffer(record, np.uint64))
    taken = time.perf_counter() - began
    reader.close()
    return size / taken / 1e9
once(False)
print(json.dumps([once(False), once(True)]))
"""


def photo(rng: np.random.Generator) -> bytes:
    """A JPEG of 500 x 375 with edges and some noise, of the size that photos have (about 50 KB)."""
    from PIL import Image, ImageDraw

    low = rng.integers(0, 256, (12, 16, 3), np.uint8)
    image = Image.fromarray(low).resize((500, 375), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    for _ in range(30):
        x, y, w, h = rng.integers(0, (500, 375, 120, 120))
        draw.ellipse((x, y, x + w, y + h), tuple(rng.integers(0, 256, 3).tolist()))
    noisy = np.asarray(image).astype(np.int16) + rng.integers(-12, 13, (375, 500, 3))
    out = io.BytesIO()
    Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8)).save(out, "JPEG", quality=90)
    return out.getvalue()


def files(images: int, megabytes: int) -> dict[str, Path]:
    """Records of 64 KB, photos in folders, and photos packed as they are and at 256; made on first use."""
    import mezzo as mz

    KEPT.mkdir(parents=True, exist_ok=True)
    records = KEPT / f"records-{megabytes}.rec"
    rng = np.random.default_rng(0)
    if not records.exists():
        with mz.data.RecordWriter(records, sums=False) as out:
            for _ in range(megabytes * 2**20 // SIZE):
                out.write(rng.bytes(SIZE))
    folder = KEPT / f"photos-{images}"
    if not folder.exists():
        for i in range(images):
            path = folder / f"{i % 10}" / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(photo(rng))
    packed = {}
    for name, edge in (("whole", None), ("small", 256)):
        packed[name] = KEPT / f"photos-{images}-{name}.rec"
        if not packed[name].exists():
            mz.data.pack_images(folder, packed[name], mz.data.Recipe(resize=edge))
    return {"records": records, "folder": folder, **packed}


# -- what each process measures ----------------------------------------------------------------------------------------


def read_all(path: str, *, sums: bool = False) -> float:
    from mezzo.data import RecordFile

    records = RecordFile(path)
    began = perf_counter()
    size = 0
    for i in range(len(records)):
        record = records[i]
        size += len(record)
        if sums:
            np.add.reduce(np.frombuffer(record, np.uint64))
    return size / (perf_counter() - began) / 1e9


def page_cache(path: str) -> float:
    buffer = memoryview(bytearray(SIZE))
    with open(path, "rb", buffering=0) as file:
        began, size = perf_counter(), 0
        while got := file.readinto(buffer):
            size += got
    return size / (perf_counter() - began) / 1e9


class Steps:
    """Ours: pixels of a drawn part, perhaps flipped; the batchify rule normalises."""

    def __init__(self) -> None:
        from mezzo.data import transforms as steps

        self.part, self.flip = steps.RandomResizedCrop(EDGE), steps.RandomFlipLeftRight()

    def __call__(self, record: Any) -> Any:
        from mezzo.data import images, unpack

        header, content = unpack(record)
        return self.flip(self.part(images.pixels(content, upright=False))), int(header.label)


def joined() -> Any:
    from mezzo.data import Group, Stack, transforms

    return Group(transforms.StackNormalized(MEAN, STD), Stack())


def ours(path: str) -> float:
    from mezzo.data import DataLoader, RecordFileDataset

    data = RecordFileDataset(path, check=False).transform(Steps())
    with DataLoader(data, BATCH, shuffle=True, workers=WORKERS, last_batch="discard", batchify_fn=joined()) as loader:
        return _rate(loader)


def _rate(loader: Any) -> float:
    """Images per second from the end of a first epoch to that of two more."""
    for _ in loader:
        pass
    began, count = perf_counter(), 0
    for _ in range(2):
        for images, _labels in loader:
            count += len(images)
    return count / (perf_counter() - began)


def theirs(path: str) -> float:
    """The same of torch: its workers read the same records and call Pillow with the same numbers."""
    import torch

    sys.path.insert(0, str(Path(__file__).parent / "peers"))
    from torch_images import Photos

    torch.set_num_threads(1)
    data = Photos(path, EDGE, MEAN, STD)
    loader = torch.utils.data.DataLoader(
        data,
        BATCH,
        shuffle=True,
        num_workers=WORKERS,
        drop_last=True,
        persistent_workers=True,
        multiprocessing_context="forkserver",
    )
    return _rate(loader)


def utilisation(how: str, place: dict[str, str], seconds: float) -> float:
    """The share of time that a trainer computes."""
    from mezzo import data

    steps = data.transforms.Compose([data.transforms.RandomResizedCrop(EDGE), data.transforms.ToNormalized(MEAN, STD)])
    packed = how in ("packed", "shard")
    where = place["small"] if packed else place["folder"]
    images: Any = (data.ImageRecordDataset if packed else data.ImageFolderDataset)(where, pillow=True)
    samples = images.transform_first(steps)
    random = data.RandomSampler(len(samples), 0)
    sampler = data.ShardSampler(random, 0, 2, remainder="drop") if how == "shard" else random
    size = BATCH // 2 if how == "shard" else BATCH
    workers = 0 if how == "starving" else 1
    with data.DataLoader(samples, size, sampler=sampler, workers=workers, last_batch="discard") as loader:
        for _ in range(2):
            loader.reset_stats()
            for _batch in loader:
                ends = perf_counter() + seconds
                while perf_counter() < ends:
                    np.dot(MATRIX, MATRIX)
        return loader.stats().utilisation * 100


MATRIX = np.ones((256, 256), np.float32)


def growth(path: str) -> float:
    """MiB by which this process and its workers grow from the first epoch to the tenth."""
    from mezzo.data import DataLoader, RecordFileDataset

    data = RecordFileDataset(path, check=False).transform(Steps())
    sizes = []
    with DataLoader(data, BATCH, shuffle=True, workers=WORKERS, batchify_fn=joined()) as loader:
        for _ in range(10):
            for _batch in loader:
                pass
            sizes.append(sum(_private(p) for p in (os.getpid(), *loader.pids)))
    return sizes[-1] - sizes[0]


def _private(pid: int) -> float:
    """Private and shared memory of a process, without files, in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kept = [int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:"))]
    return sum(kept) / 1024


COMPARED = (
    ("records/64KB", "bytes", "mxnet"),
    ("records/64KB", "bytes", "cache"),
    ("records/64KB/sum", "sums", "mxnet/sum"),
    ("images", "ours", "torch"),
)
TASKS = {
    "bytes": lambda place, _: read_all(place["records"]),
    "sums": lambda place, _: read_all(place["records"], sums=True),
    "cache": lambda place, _: page_cache(place["records"]),
    "ours": lambda place, _: ours(place["whole"]),
    "torch": lambda place, _: theirs(place["whole"]),
    "growth": lambda place, _: growth(place["whole"]),
    **{
        f"utilisation/{how}": lambda place, seconds, how=how: utilisation(how, place, seconds)
        for how in ("starving", "prefetch", "packed", "shard")
    },
}


def child(task: str, place: dict[str, str], seconds: float) -> float:
    """What a process of its own measured."""
    command = [sys.executable, __file__, "--task", task, "--place", json.dumps(place), "--seconds", str(seconds)]
    ended = subprocess.run(command, capture_output=True, text=True, env=users_environment() | {"OMP_NUM_THREADS": "1"})
    if ended.returncode:
        raise RuntimeError(ended.stderr[-2000:])
    return float(json.loads(ended.stdout.splitlines()[-1]))


def mxnet(path: str) -> tuple[float, float] | None:
    """MXNet's reader in its environment, without and with the sum; None with a note where it cannot be had."""
    try:
        python = mxnet_python()
        done = subprocess.run([python, "-c", MXNET, path], capture_output=True, text=True, check=True)
        alone, summed = json.loads(done.stdout.splitlines()[-1])
        return float(alone), float(summed)
    except (RuntimeError, subprocess.CalledProcessError, IndexError, ValueError) as error:
        print(f"mxnet is left out: {str(error)[-300:]}", file=sys.stderr)
        return None


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, help="15, or 3 with --quick")
    parser.add_argument("--rows", default="", help="those whose names begin like this")
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("--place", help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, default=0.2, help="that a trainer computes with a batch")


def main() -> None:
    args = arguments(__doc__, options)
    if args.task:
        print(json.dumps(TASKS[args.task](json.loads(args.place), args.seconds)))
        return
    rounds = args.rounds or (3 if args.quick else 15)
    made = files(256 if args.quick else 512, 128 if args.quick else 512)
    place = {name: str(path) for name, path in made.items()}
    groups = {
        "records": ["bytes", "sums", "cache"],
        "images": ["ours", "torch"],
        "utilisation": [t for t in TASKS if t.startswith("utilisation")],
        "memory": ["growth"],
    }
    found: dict[str, list[float]] = {}
    for name, tasks in groups.items():
        if not name.startswith(args.rows.partition("/")[0]):
            continue
        for number in range(
            1 if name == "memory" else min(rounds, 1 if args.quick else 3) if name == "utilisation" else rounds
        ):
            for task in tasks if number % 2 == 0 else tasks[::-1]:
                found.setdefault(task, []).append(child(task, place, args.seconds))
            if name == "records" and (rates := mxnet(place["records"])) is not None:
                found.setdefault("mxnet", []).append(rates[0])
                found.setdefault("mxnet/sum", []).append(rates[1])
    middle = {task: statistics.median(numbers) for task, numbers in found.items()}
    rows = []
    if "bytes" in middle:
        peers = {"mxnet": middle["mxnet"]} if "mxnet" in middle else {}
        rows.append(Row("records/64KB", "GB/s", middle["bytes"], peers, middle["cache"]))
        summed = {"mxnet": middle["mxnet/sum"]} if "mxnet" in middle else {}
        rows.append(Row("records/64KB/sum", "GB/s", middle["sums"], summed))
    if "ours" in middle:
        rows.append(Row("images", "1/s", middle["ours"], {"torch": middle["torch"]}))
    rows += [Row(t, "%", v) for t, v in middle.items() if t.startswith("utilisation")]
    if "growth" in middle:
        rows.append(Row("memory/10-epochs", "MiB", middle["growth"]))
    notes = [machine()]
    for case, one, other in COMPARED:
        if one in found and other in found:
            ratios = [a / b for a, b in zip(found[one], found[other], strict=False)]
            notes.append(f"{case}: {statistics.median(ratios):.2f} x {other} (median of {len(ratios)} ratios)")
    show(rows, args, notes)


if __name__ == "__main__":
    main()

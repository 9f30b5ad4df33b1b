"""Readers of formats: what was written comes back, from other processes too, and damage is named."""

from __future__ import annotations

import gzip
import http.server
import io
import json
import struct
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

import mezzo as mz
from mezzo.data.loader import DataLoader
from mezzo.data.sources import RemoteFile, fetched
from mezzo.ops.errors import InputError, MissingPackage

from .peers import peer

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def found_by_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(__file__).parents[1])])


def picture(path: Path, pixels: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def png(pixels: Any) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def idx(array: Any, kind: int) -> bytes:
    content: bytes = array.tobytes()
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, kind, array.ndim, *array.shape) + content


def test_mnist(tmp_path: Path) -> None:
    images = RNG.integers(0, 256, (5, 28, 28), np.uint8)
    labels = np.arange(5, dtype=np.uint8)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(idx(images, 8))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(labels, 8)))
    data = mz.data.MNIST(tmp_path)
    assert np.array_equal(data[3][0], images[3, ..., None])
    assert data[3][1] == 3
    floats = RNG.random((2, 3)).astype(">f4")
    (tmp_path / "f.idx").write_bytes(idx(floats, 13))
    assert np.array_equal(mz.data.read_idx(tmp_path / "f.idx"), floats)
    whole = idx(images, 8)
    for broken in (
        b"",
        whole[:9],
        whole[:-1],
        whole + b"x",
        b"\1" + whole[1:],
        struct.pack(">BBBB2I", 0, 0, 8, 2, *[2**31] * 2),
    ):
        (tmp_path / "train-images-idx3-ubyte").write_bytes(broken)
        with pytest.raises(InputError, match="train-images"):
            mz.data.MNIST(tmp_path)
    with pytest.raises(InputError, match="there is no t10k"):
        mz.data.MNIST(tmp_path, train=False)


def test_cifar(tmp_path: Path) -> None:
    pixels = RNG.integers(0, 256, (4, 3, 32, 32), np.uint8)
    rows = np.concatenate([np.arange(4, dtype=np.uint8)[:, None], pixels.reshape(4, -1)], 1)
    (tmp_path / "test_batch.bin").write_bytes(rows.tobytes())
    data = mz.data.CIFAR10(tmp_path, train=False)
    assert np.array_equal(data[2][0], pixels[2].transpose(1, 2, 0))
    assert data[2][1] == 2
    (tmp_path / "test.bin").write_bytes(np.insert(rows, 0, 7, axis=1).tobytes())
    assert mz.data.CIFAR100(tmp_path, train=False)[1][1] == 1
    assert mz.data.CIFAR100(tmp_path, train=False, fine=False)[1][1] == 7
    (tmp_path / "test_batch.bin").write_bytes(rows.tobytes()[:-1])
    with pytest.raises(InputError, match="multiple"):
        mz.data.CIFAR10(tmp_path, train=False)
    (tmp_path / "data_batch_1").touch()
    with pytest.raises(InputError, match="pickles"):
        mz.data.CIFAR10(tmp_path)


def test_folders_lists_and_packed_data(tmp_path: Path) -> None:
    shades = {
        f"{kind}/{i}": np.full((6, 8, 3), 40 * i + len(kind), np.uint8) for kind in ("ant", "bee") for i in (0, 1)
    }
    for name, pixels in shades.items():
        picture(tmp_path / "photos" / f"{name}.png", pixels)
    (tmp_path / "photos/notes.txt").touch()
    folder = mz.data.ImageFolderDataset(tmp_path / "photos")
    assert folder.classes == ("ant", "bee")
    assert folder.labels.tolist() == [0, 0, 1, 1]
    assert np.array_equal(folder[1][0], shades["ant/1"])
    assert folder.name(1).endswith("photos/ant/1.png")
    assert mz.data.ImageFolderDataset(tmp_path / "photos", size=3)[0][0].shape == (3, 3, 3)
    assert mz.data.ImageFolderDataset(tmp_path / "photos", pillow=True)[0][0].size == (8, 6)
    (tmp_path / "some.lst").write_text("5\t1.0\tant/1.png\n7\t0.5\t2\tbee/0.png\n")
    listed = mz.data.ImageListDataset(tmp_path / "some.lst", tmp_path / "photos")
    assert listed[0][1] == 1
    assert listed[1][1].tolist() == [0.5, 2]
    mz.data.pack_images(tmp_path / "some.lst", tmp_path / "l.rec", root=tmp_path / "photos", shuffle=False, workers=0)
    packed = mz.data.ImageRecordDataset(tmp_path / "l.rec")
    for (a, label), (b, other) in zip(packed, listed, strict=True):
        assert np.array_equal(a, b)
        assert np.array_equal(label, other)
    raw = mz.data.RecordFileDataset(tmp_path / "l.rec")
    assert mz.data.unpack(raw[0])[0].id == 5
    (tmp_path / "photos/cow").mkdir()
    with pytest.raises(InputError, match="no image in 'cow'"):
        mz.data.ImageFolderDataset(tmp_path / "photos")
    (tmp_path / "some.lst").write_text("5\tx\tant/1.png\n")
    with pytest.raises(InputError, match="line 1"):
        mz.data.ImageListDataset(tmp_path / "some.lst")
    both = mz.data.Joined(packed, listed)
    assert len(both) == 4
    assert both.name(3) == listed.name(1)
    assert np.array_equal(both[2][0], listed[0][0])


def test_labels_of_a_dataset_have_one_element_type(tmp_path: Path) -> None:
    """Whatever numbers a batch happens to have."""
    picture(tmp_path / "a.png", np.zeros((2, 2, 3), np.uint8))

    def listed(*labels: float) -> tuple[Path, Path]:
        lines = tmp_path / "l.lst", tmp_path / "l.rec"
        lines[0].write_text("".join(f"{i}\t{label}\ta.png\n" for i, label in enumerate(labels)))
        mz.data.pack_images(lines[0], lines[1], root=tmp_path, shuffle=False, workers=0)
        return lines

    names = listed(0.5, 2, 3)
    for data in (mz.data.ImageListDataset(names[0]), mz.data.ImageRecordDataset(names[1])):
        assert [label.dtype for _, label in mz.data.DataLoader(data, 1)] == [np.dtype(np.float32)] * 3
    names = listed(2, 3, 0.5)
    assert next(label.dtype for _, label in mz.data.DataLoader(mz.data.ImageListDataset(names[0]), 1)) == np.float32
    with pytest.raises(mz.MezzoError, match=r"(?s)label 0.5 is no whole number.*labels='float'"):
        list(mz.data.DataLoader(mz.data.ImageRecordDataset(names[1]), 1))
    data = mz.data.ImageRecordDataset(names[1], labels="float")
    assert [float(label[0]) for _, label in mz.data.DataLoader(data, 1)] == [2, 3, 0.5]
    with pytest.raises(InputError, match="'int' or 'float'"):
        mz.data.ImageRecordDataset(names[1], labels="text")


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a;b;kind\n1;2.5;dog\n3;4;cat\n\n")
    data = mz.data.CSVDataset(path, target="kind")
    assert data.classes == ("cat", "dog")
    assert [(x.tolist(), y) for x, y in data] == [([1, 2.5], 1), ([3, 4], 0)]
    assert mz.data.CSVDataset(path, target="a", columns=["b"])[1][1] == 3
    assert mz.data.CSVDataset(path, columns=["b", "a"])[0].tolist() == [2.5, 1]
    with pytest.raises(InputError, match=r"line 2: 'dog' under 'kind'"):
        mz.data.CSVDataset(path)
    with pytest.raises(InputError, match="no column"):
        mz.data.CSVDataset(path, target="c")
    path.write_text("a,b\n1,2\n3\n")
    with pytest.raises(InputError, match=r"line 3: 1 cells"):
        mz.data.CSVDataset(path)


@pytest.mark.parametrize(
    ("name", "count", "classes"), [("iris", 150, 3), ("wine", 178, 3), ("breast_cancer", 569, 2), ("digits", 1797, 10)]
)
def test_data_inside_packages(name: str, count: int, classes: int) -> None:
    loaded = getattr(peer("sklearn.datasets"), f"load_{name}")(return_X_y=True)
    data = mz.data.Packaged(name)
    assert len(data) == count
    assert np.allclose(np.stack([x.ravel() for x, _ in data]), loaded[0], rtol=1e-6)
    assert [y for _, y in data] == loaded[1].tolist()
    assert len(data.names) == classes


def table() -> Any:
    pyarrow = peer("pyarrow")
    pixels = [np.full((3, 4, 3), i, np.uint8) for i in range(10)]
    return pyarrow.table(
        {
            "n": list(range(10)),
            "text": [f"t{i}" for i in range(10)],
            "row": [[1.0, float(i)] for i in range(10)],
            "image": [{"bytes": png(p), "path": None} for p in pixels],
        }
    )


def test_parquet(tmp_path: Path) -> None:
    parquet = peer("pyarrow.parquet")
    parquet.write_table(table(), tmp_path / "t.parquet", row_group_size=3)
    data = mz.data.ParquetDataset(tmp_path / "t.parquet", images=["image"], keep=2)
    assert len(data) == 10
    assert [s["n"] for s in data] == [*range(10)]
    assert data[7]["row"].tolist() == [1, 7]
    assert (data[7]["image"] == 7).all()
    some = mz.data.ParquetDataset(tmp_path, columns=["n", "text"])
    with DataLoader(some, 4, shuffle=True, workers=1) as loader:
        found = [(n, t) for batch in loader for n, t in zip(batch["n"].tolist(), batch["text"], strict=True)]
    assert sorted(found) == [(i, f"t{i}") for i in range(10)]
    with pytest.raises(InputError, match="no column"):
        mz.data.ParquetDataset(tmp_path, columns=["m"])
    whole = (tmp_path / "t.parquet").read_bytes()
    (tmp_path / "t.parquet").write_bytes(whole[:-9])
    with pytest.raises(InputError, match="no Parquet file"):
        mz.data.ParquetDataset(tmp_path / "t.parquet")


@pytest.mark.parametrize("kind", ["stream", "file"])
def test_arrow_and_hugging_face_folders(tmp_path: Path, kind: str) -> None:
    """The layout of `Dataset.save_to_disk`: Arrow streams, state.json, dataset_info.json."""
    pyarrow = peer("pyarrow")
    whole = table()
    folder = tmp_path / "set/train"
    folder.mkdir(parents=True)
    parts = [whole.slice(0, 6), whole.slice(6)]
    names = [f"data-{i:05d}-of-00002.arrow" for i in range(2)]
    for name, part in zip(names, parts, strict=True):
        with pyarrow.OSFile(str(folder / name), "wb") as sink:
            new = pyarrow.ipc.new_stream if kind == "stream" else pyarrow.ipc.new_file
            with new(sink, part.schema) as writer:
                writer.write_table(part, max_chunksize=2)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": n} for n in names]}))
    (folder / "dataset_info.json").write_text("{}")
    (tmp_path / "set/dataset_dict.json").write_text('{"splits": ["train"]}')
    data = mz.data.ArrowDataset(tmp_path / "set", split="train", images=["image"])
    assert [s["n"] for s in data] == [*range(10)]
    assert (data[8]["image"] == 8).all()
    assert [s["n"] for s in mz.data.ArrowDataset(folder / names[1])] == [6, 7, 8, 9]
    with DataLoader(mz.data.ArrowDataset(folder, columns=["n"]), 4, workers=1) as loader:
        assert [b["n"].tolist() for b in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    with pytest.raises(InputError, match="no split 'test'"):
        mz.data.ArrowDataset(tmp_path / "set", split="test")
    (folder / names[0]).write_bytes(b"nothing of the kind")
    with pytest.raises(InputError, match="no Arrow file"):
        mz.data.ArrowDataset(folder)


def archive(path: Path, count: int) -> None:
    with tarfile.open(path, "w") as out:
        for i in range(count):
            files = {"png": png(np.full((3, 4, 3), i, np.uint8)), "cls": str(i % 3).encode(), "json": b'{"i": %d}' % i}
            for ending, data in files.items():
                member = tarfile.TarInfo(f"part/{i:04d}.{ending}")
                member.size = len(data)
                out.addfile(member, io.BytesIO(data))


def test_web_datasets(tmp_path: Path) -> None:
    archive(tmp_path / "a.tar", 4)
    archive(tmp_path / "b.tar", 3)
    data = mz.data.WebDataset([tmp_path / "a.tar", tmp_path / "b.tar"])
    assert len(data) == 7
    assert data[5]["__key__"] == "part/0001"
    assert (data[2]["png"] == 2).all()
    assert data[2]["json"] == {"i": 2}
    pairs = mz.data.WebDataset(tmp_path / "a.tar", ("png", "cls"))
    with DataLoader(pairs, 4, workers=1) as loader:
        ((pixels, labels),) = loader
    assert labels.tolist() == [0, 1, 2, 0]
    assert pixels[:, 0, 0, 0].tolist() == [0, 1, 2, 3]
    assert isinstance(mz.data.WebDataset(tmp_path / "a.tar", decode=False)[0]["cls"], bytes)
    with pytest.raises(InputError, match="no 'txt'"):
        mz.data.WebDataset(tmp_path / "a.tar", ("txt",))[0]
    whole = (tmp_path / "a.tar").read_bytes()
    for end in range(0, len(whole), 331):
        (tmp_path / "a.tar").write_bytes(whole[:end])
        try:
            found = [s["json"] for s in mz.data.WebDataset(tmp_path / "a.tar", ("json",)).transform(as_dict)]
        except InputError as error:
            told = str(error)
        else:
            told = ""
            assert found == [{"i": i} for i in range(len(found))]
            assert end >= 512 * 6 * len(found)
        assert not told or "a.tar" in told


def as_dict(json: Any) -> Any:
    return {"json": json}


# -- far away ----------------------------------------------------------------------------------------------------------


class Server(http.server.BaseHTTPRequestHandler):
    """Files of a folder, with ranges; every third request fails."""

    folder: ClassVar[Path]
    requests: ClassVar[list[str]]

    def _answer(self, *, body: bool) -> None:
        self.requests.append(self.headers.get("Range") or self.command)
        path = self.folder / self.path.lstrip("/")
        if not path.is_file():
            self.send_error(404)
            return
        if len(self.requests) % 3 == 0:
            self.send_error(503)
            return
        data = path.read_bytes()
        begin, end = 0, len(data)
        if asked := self.headers.get("Range"):
            low, _, high = asked.removeprefix("bytes=").partition("-")
            begin, end = int(low), min(int(high) + 1 if high else end, end)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(end - begin))
        self.end_headers()
        if body:
            self.wfile.write(data[begin:end])

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def far(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, Callable[[str, bytes], None]]]:
    """An address, and a function that puts a file there."""
    if request.param == "memory":
        fsspec = peer("fsspec")
        yield "memory://place", lambda name, data: fsspec.filesystem("memory").pipe_file(f"/place/{name}", data)
        fsspec.filesystem("memory").store.clear()
        return
    peer("aiohttp")
    (tmp_path / "served").mkdir()
    Server.folder, Server.requests = tmp_path / "served", []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    def put(name: str, data: bytes) -> None:
        (Server.folder / name).write_bytes(data)

    yield f"http://127.0.0.1:{server.server_port}", put
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("far", ["memory", "http"], indirect=True)
def test_files_far_away(far: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address, put = far
    data = RNG.bytes(300_000)
    put("x.bin", data)
    file = RemoteFile(f"{address}/x.bin", block=1 << 16, cache=tmp_path / "blocks", pause=0.01)
    assert len(file) == len(data)
    assert file.read(10) == data[:10]
    file.seek(-7, io.SEEK_END)
    assert file.read() == data[-7:]
    file.seek(65_530)
    assert io.BufferedReader(file).read(100_000) == data[65_530:165_530]
    again = RemoteFile(f"{address}/x.bin", block=1 << 16, cache=tmp_path / "blocks", pause=0.01)
    assert again.read() == data
    path = fetched(f"{address}/x.bin", tmp_path / "cache", pause=0.01)
    assert path.read_bytes() == data
    asked = len(getattr(Server, "requests", []))
    assert fetched(f"{address}/x.bin", tmp_path / "cache", pause=0.01) == path
    assert len(getattr(Server, "requests", [])) <= asked + 3  # what the server says of it, perhaps twice
    with pytest.raises(InputError, match=r"cannot be read|attempts failed"):
        fetched(f"{address}/none.bin", tmp_path / "cache", tries=2, pause=0.01)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "usual"))
    with mz.data.RecordWriter(tmp_path / "r.rec") as out:
        for i in range(5):
            out.write(bytes([i]) * 9)
    for ending in (".rec", ".idx", ".sum"):
        put(f"r{ending}", (tmp_path / f"r{ending}").read_bytes())
    records = mz.data.RecordFile(f"{address}/r.rec")
    assert [r[0] for r in records] == [*range(5)]
    assert records.checked


def test_what_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, use in (
        ("fsspec", lambda: fetched("http://127.0.0.1:9/x")),
        ("pyarrow", lambda: mz.data.ParquetDataset(tmp_path)),
    ):
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(MissingPackage, match="pip install 'mezzo"):
            use()
    with pytest.raises(InputError, match="no data 'none'"):
        mz.data.Packaged("none")


def test_gluons_names() -> None:
    from mezzo import gluon

    data = gluon.data.ArrayDataset(mz.nd.ones((5, 2)), np.arange(5))
    loader = gluon.data.DataLoader(data, batch_size=2, last_batch="discard", num_workers=1, thread_pool=True)
    batches = list(loader)
    assert [type(x).__module__.startswith("mezzo.nd") for x, _ in batches] == [True, True]
    assert batches[1][1].asnumpy().tolist() == [2, 3]
    assert gluon.data.vision.transforms.ToTensor is mz.data.transforms.ToTensor
    assert {"DataLoader", "RecordFile", "transforms"} <= {*dir(mz.data)}
    with pytest.raises(AttributeError):
        _ = mz.data.nothing

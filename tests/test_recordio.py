"""Record files: the bytes of MXNet, damage of every kind, and what readers and writers promise."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mezzo.data.image_records import IRHeader, pack, unpack
from mezzo.data.record_format import MAGIC_BYTES, search
from mezzo.data.record_writer import RecordWriter
from mezzo.data.records import BadRecord, RecordFile, read_index, rebuild_index
from mezzo.ops.errors import InputError, MezzoError

FIXTURES = Path(__file__).parents[2] / "shared/mxnet-fixtures/formats"
MAGIC_PAYLOADS = [
    *(b"", b"x", b"hello", MAGIC_BYTES, b"ab" + MAGIC_BYTES),
    b"abcd" + MAGIC_BYTES + b"efgh" + MAGIC_BYTES * 2 + b"q",
    *(bytes(range(40)), b"\n#\xd7" * 3, MAGIC_BYTES * 3),
]


def written(path: Path, payloads: list[bytes], **how: bool) -> bytes:
    with RecordWriter(path, **how) as out:
        for payload in payloads:
            out.write(payload)
    return path.read_bytes()


def naive(data: bytes) -> list[bytes]:
    """An independent reader of sound files, by the published description alone."""
    found, parts, at = list[bytes](), list[bytes](), 0
    while at < len(data):
        magic, word = struct.unpack_from("<II", data, at)
        assert magic == 0xCED7230A
        size = word & (1 << 29) - 1
        parts.append(data[at + 8 : at + 8 + size])
        if word >> 29 in (0, 3):
            found.append(struct.pack("<I", magic).join(parts))
            parts = []
        at += 8 + (size + 3) // 4 * 4
    return found


@pytest.mark.skipif(not FIXTURES.is_dir(), reason="../shared is not here")
def test_the_bytes_are_those_of_mxnet(tmp_path: Path) -> None:
    with np.load(FIXTURES / "a-records.npz") as stored:
        payloads = [stored[str(i)].tobytes() for i in range(len(stored.files))]
    written(tmp_path / "a.rec", payloads)
    for name in ("a.rec", "a.idx"):
        assert (tmp_path / name).read_bytes() == (FIXTURES / name).read_bytes()
    read = RecordFile(FIXTURES / "a.rec")
    assert [bytes(r) for r in read] == payloads
    assert [bytes(read.at(i)) for i in range(len(read))] == payloads


@settings(max_examples=40)
@given(st.lists(st.lists(st.sampled_from([MAGIC_BYTES, b"\n", b"#", b"abcd", b"\0", b"\xce"]), max_size=9), max_size=9))
def test_any_records_come_back(tmp_path_factory: pytest.TempPathFactory, pieces: list[list[bytes]]) -> None:
    payloads = [b"".join(p) for p in pieces]
    path = tmp_path_factory.mktemp("r") / "r.rec"
    data = written(path, payloads)
    assert naive(data) == payloads
    assert [bytes(r) for r in RecordFile(path)] == payloads
    found = search(memoryview(data))
    assert not found.damage
    assert found.begins.tolist() == read_index(path.with_suffix(".idx"), len(data))[1].tolist()


def answers(path: Path, many: int) -> list[bytes | None] | None:
    """Each record, or None where it is an error that names it; None where the file is an error as a whole."""
    try:
        file = RecordFile(path)
    except InputError as error:
        told: InputError | None = error
    else:
        told = None
    if told is not None:
        assert path.stem in told.where
        return None
    found: list[bytes | None] = []
    for i in range(len(file)):
        try:
            found.append(bytes(file[i]))
        except BadRecord as error:
            found.append(None)
            said = str(error)
        if found[-1] is None:
            assert f"{path}, record {i}" in said
    assert len(found) <= many + 6
    return found


@pytest.fixture
def sums(tmp_path: Path) -> Path:
    written(tmp_path / "a.rec", MAGIC_PAYLOADS)
    return tmp_path / "a.rec"


@pytest.mark.parametrize("ending", [".rec", ".idx", ".sum"])
def test_with_checksums_every_flip_and_truncation_is_told(sums: Path, ending: str) -> None:
    """The right answer or an error, for each byte of the file and what lies beside it."""
    path = sums.with_suffix(ending)
    data, rng, told = path.read_bytes(), Random(0), 0
    for at in range(len(data)):
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ rng.choice((1, 2, 128, 255))]) + data[at + 1 :]):
            path.write_bytes(damaged)
            found = answers(sums, len(MAGIC_PAYLOADS))
            told += found is None or None in found
            if found is not None:
                # keys of the index are the caller's: with another one the records are the same
                assert len(found) == len(MAGIC_PAYLOADS)
                assert all(a is None or a == b for a, b in zip(found, MAGIC_PAYLOADS, strict=True))
    assert told > 1.7 * len(data) * (ending != ".idx")


@pytest.mark.parametrize("index", [True, False])
def test_without_checksums_damage_stays_in_its_record(tmp_path: Path, index: bool) -> None:
    """Flips in a payload cannot be told by the format; every other record is right, and none is invented."""
    path = tmp_path / "a.rec"
    data = written(path, MAGIC_PAYLOADS, index=index, sums=False)
    begins = [*map(int, search(memoryview(data)).begins), len(data)]
    for at in range(len(data)):
        for bits in (1, 2, 32, 128, 255):
            path.write_bytes(data[:at] + bytes([data[at] ^ bits]) + data[at + 1 :])
            found = answers(path, len(MAGIC_PAYLOADS))
            assert found is not None
            number = next(i for i in range(len(begins)) if at < begins[i + 1])
            wrong = [a for a in found if a is not None and a not in MAGIC_PAYLOADS]
            assert len(wrong) <= 2  # of the record itself, which a flip may cut in two
            lost = {i for i, p in enumerate(MAGIC_PAYLOADS) if p not in found}
            near = {number - 1, number}  # a flag that is no beginning: either of two may be wrong
            assert lost <= near, (at, bits)
            if index:
                assert lost <= {number}
                assert len(found) == len(MAGIC_PAYLOADS)


def test_without_an_index_every_truncation_keeps_what_came_before(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    data = written(path, MAGIC_PAYLOADS, index=False, sums=False)
    begins = [*map(int, search(memoryview(data)).begins), len(data)]
    for end in range(len(data)):
        path.write_bytes(data[:end])
        found = answers(path, len(MAGIC_PAYLOADS))
        whole = sum(b <= end for b in begins[1:])
        assert found is not None
        assert found[:whole] == MAGIC_PAYLOADS[:whole]
        assert set(found[whole:]) <= {None}
        assert (len(found) > whole) == (end not in begins)


def test_a_corrupt_record_is_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    data = bytearray(written(path, [b"a" * 9, b"b" * 9, b"c" * 9]))
    data[int(read_index(path.with_suffix(".idx"), len(data))[1][1]) + 10] ^= 1
    path.write_bytes(data)
    with pytest.raises(BadRecord, match=r"a\.rec, record 1 at byte 20: .*checksum"):
        list(RecordFile(path))
    file = RecordFile(path, bad="skip")
    assert [bytes(r)[:1] for r in file] == [b"a", b"c"]
    assert [e.number for e in file.skipped] == [1]


def test_a_lost_index_is_rebuilt(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    written(path, MAGIC_PAYLOADS)
    before = path.with_suffix(".idx").read_bytes()
    path.with_suffix(".idx").unlink()
    assert [bytes(r) for r in RecordFile(path)] == MAGIC_PAYLOADS  # in memory
    rebuild_index(path)
    assert path.with_suffix(".idx").read_bytes() == before


def test_the_index_of_some_records_and_in_another_order(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"
    written(path, MAGIC_PAYLOADS, sums=False)
    lines = path.with_suffix(".idx").read_text().splitlines()
    (tmp_path / "few.idx").write_text("\n".join([lines[7], lines[2], lines[5]]) + "\n")
    file = RecordFile(path, tmp_path / "few.idx")
    assert [bytes(r) for r in file] == [MAGIC_PAYLOADS[i] for i in (7, 2, 5)]
    assert bytes(file.at("5")) == MAGIC_PAYLOADS[5]
    with pytest.raises(InputError, match="no key '0'"):
        file.at("0")


def test_writers_put_nothing_in_place_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.rec"

    def writes(*keys: str) -> None:
        with RecordWriter(path) as out:
            for key in keys:
                out.write(b"x", key=key)
            if not keys:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        writes()
    assert [*tmp_path.iterdir()] == []
    with pytest.raises(InputError, match="twice"):
        writes("same", "same")
    assert [*tmp_path.iterdir()] == []
    with pytest.raises(InputError, match="no key"):
        writes("a\tb")


def test_an_empty_file_and_none(tmp_path: Path) -> None:
    written(tmp_path / "a.rec", [])
    assert len(RecordFile(tmp_path / "a.rec")) == 0
    with pytest.raises(InputError, match="cannot be read"):
        RecordFile(tmp_path / "b.rec")
    with pytest.raises(IndexError):
        RecordFile(tmp_path / "a.rec")[0]


def test_views_outlive_the_file(tmp_path: Path) -> None:
    written(tmp_path / "a.rec", [b"first", b"second"])
    view = RecordFile(tmp_path / "a.rec")[1]
    (tmp_path / "a.rec").unlink()
    assert bytes(view) == b"second"
    with pytest.raises(TypeError):
        view[0] = 1


def test_image_records() -> None:
    header = struct.pack("<IfQQ", 0, 2.5, 7, 9)
    assert pack(IRHeader(5, 2.5, 7, 9), b"image") == header + b"image"  # one label: the flag is 0, as in MXNet
    several = struct.pack("<IfQQ2f", 2, 0.0, 7, 0, 1, -3)
    assert pack(IRHeader(0, np.array([1, -3]), 7), b"image") == several + b"image"
    found, content = unpack(several + b"image")
    assert (found.flag, found.label.tolist(), found.id, bytes(content)) == (2, [1, -3], 7, b"image")  # type: ignore[union-attr]
    for bad in (b"", header[:23], struct.pack("<IfQQ", 3, 0, 0, 0) + bytes(8)):
        with pytest.raises(InputError):
            unpack(bad)
    with pytest.raises(MezzoError, match="no header"):
        pack(IRHeader(0, 1.0, -1), b"")


def test_the_checksum_is_crc32(tmp_path: Path) -> None:
    written(tmp_path / "a.rec", [b"some bytes"])
    body = (tmp_path / "a.sum").read_bytes()
    assert int.from_bytes(body[24:28], "little") == zlib.crc32(b"some bytes")

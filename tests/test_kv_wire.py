"""Messages as bytes: what is written can be read, and what was not written so is refused, whatever it is."""

from __future__ import annotations

import dataclasses
import struct
import tracemalloc
from itertools import pairwise
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mezzo.kvstore import wire
from mezzo.kvstore.protocol import messages as m
from mezzo.kvstore.protocol.consistency import Bounded, Eventual, Sequential, parse
from mezzo.kvstore.protocol.handshake import VERSION
from mezzo.kvstore.protocol.keys import ALIGNMENT, Keys, Shard, cut, element, place, slices
from mezzo.kvstore.shards import Budget, Shards
from mezzo.kvstore.updater import UpdateRule
from mezzo.ops.errors import BudgetError, InputError, MezzoError, ShapeError, WireError
from mezzo.runtime.optimizer import SGD

ranks, counts = st.integers(-1, 1 << 30), st.integers(0, (1 << 63) - 1)
numbers, steps = st.integers(0, (1 << 32) - 1), st.integers(-1, (1 << 63) - 1)
texts, roles = st.text(max_size=20), st.sampled_from(["scheduler", "server", "worker", "agent"])
shapes = st.lists(counts, max_size=4).map(tuple)
scalars = st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False) | texts
reals = st.dictionaries(texts, st.floats(allow_nan=False), max_size=4)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "rank": st.integers(-1, (1 << 31) - 1),
    "key": numbers,
    "step": steps,
    "offset": counts,
    "total": counts,
    "first": counts,
    "role": roles,
    "host": texts,
    "lane": counts,
    "incarnation": counts,
    "address": texts,
    "consistency": texts,
    "deadline": st.floats(0, 1e9),
    **dict.fromkeys(("num_workers", "num_servers"), counts),
    "servers": st.lists(texts, max_size=3).map(tuple),
    "hosts": st.lists(st.tuples(texts, st.lists(ranks, max_size=3).map(tuple)), max_size=3).map(tuple),
    "name": texts,
    "dtype": texts,
    "shape": shapes,
    "width": st.integers(1, wire.FRAME),
    "lo": counts,
    "hi": counts,
    "pull": st.booleans(),
    "scalars": st.dictionaries(texts, scalars, max_size=4),
    "arrays": st.lists(st.tuples(texts, texts, shapes), max_size=3).map(tuple),
    "counts": st.dictionaries(texts, counts, max_size=4),
    "members": st.lists(st.tuples(roles, ranks, texts, st.floats(0, 1e9), reals), max_size=3).map(tuple),
    "workers": counts,
    "reason": texts,
    "said": texts,
    "hint": texts,
    "ranks": st.lists(ranks, max_size=4).map(tuple),
    "code": st.integers(-(1 << 31), 1 << 31),
    **dict.fromkeys(("number", "file", "source", "target"), st.integers(0, (1 << 31) - 1)),
    **dict.fromkeys(("process", "node", "size", "length", "at", "to"), counts),
    "kernel": texts,
    "era": counts,
    "nbytes": st.integers(1, wire.FRAME),
    "scheme": texts,
    "gathering": counts,
}
KNOWN = {1: Shard("w", "float32", (100,), 0, 400), 2: Shard("half", "float64", (100,), 400, 800)}


def of_kind(kind: wire.Kind) -> st.SearchStrategy[m.Message]:
    return st.builds(kind.type, **{name: FIELDS[name] for name in kind.type.__match_args__})


messages = st.one_of([of_kind(kind) for kind in wire.KINDS.values()])


def read(data: bytes) -> m.Message:
    """As a process reads: header, check, metadata."""
    header = wire.parse(data[: wire.HEADER])
    wire.check(header, KNOWN)
    return wire.decode(header, data[wire.HEADER : wire.HEADER + header.metadata])


@given(messages)
def test_what_is_written_is_read(message: m.Message) -> None:
    data = wire.encode(message)
    found = wire.decode(wire.parse(data), data[wire.HEADER :])
    assert (type(found), found) == (type(message), message)


def test_every_message_has_a_kind_and_every_field_a_place() -> None:
    assert {kind.type for kind in wire.KINDS.values()} == set(m.Message.__args__)
    for kind in wire.KINDS.values():
        fields = {*kind.type.__match_args__}
        flags = {"pull"} if kind.type is m.Push else set()
        assert fields == {*kind.header, *kind.metadata, *flags}


@given(st.binary(max_size=200))
def test_random_bytes(data: bytes) -> None:
    with pytest.raises(WireError):
        read(data)


@given(st.integers(1, 15), st.lists(st.integers(0, 255), min_size=40, max_size=40), st.binary(max_size=60))
def test_random_bytes_after_a_good_beginning(kind: int, rest: list[int], metadata: bytes) -> None:
    try_to_read(struct.pack("<4sBB", wire.MAGIC, VERSION, kind) + bytes(rest)[:34] + b"\0" * 8 + metadata)
    try_to_read(struct.pack("<4sBBHiIqQQII", wire.MAGIC, VERSION, kind, 0, 0, 0, 0, 0, 0, len(metadata), 0) + metadata)


def try_to_read(data: bytes) -> m.Message | None:
    try:
        return read(data)
    except MezzoError:
        return None


@given(messages, st.data())
def test_damaged_messages(message: m.Message, data: st.DataObject) -> None:
    """A bit is flipped, or the end is missing: another valid message, or an error of ours."""
    good = wire.encode(message)
    at = data.draw(st.integers(0, len(good) * 8 - 1))
    flipped = bytearray(good)
    flipped[at // 8] ^= 1 << at % 8
    found = try_to_read(bytes(flipped))
    same = type(found) is type(message) and found == message
    assert not same or type(message) in (m.Push, m.Value, m.States)  # their lengths are free
    with pytest.raises(WireError):
        read(good[: data.draw(st.integers(0, len(good) - 1))])


@given(st.recursive(scalars | st.none() | st.binary(max_size=5), st.lists, max_leaves=5) | FIELDS["scalars"])
def test_metadata_of_any_other_kind(value: Any) -> None:
    packed = msgpack.packb(value)
    for number, kind in wire.KINDS.items():
        if kind.metadata and not (isinstance(value, dict) and value.keys() == kind.metadata.keys()):
            with pytest.raises(WireError):
                wire.decode(wire.Header(number, metadata=len(packed)), packed)


@given(messages.filter(lambda message: bool(wire.KINDS[kind_of(message)].metadata)), st.data())
def test_a_field_of_another_type(message: m.Message, data: st.DataObject) -> None:
    header = wire.parse(wire.encode(message))
    fields = {name: getattr(message, name) for name in wire.KINDS[header.kind].metadata}
    name = data.draw(st.sampled_from(sorted(fields)))
    fields[name] = data.draw(st.sampled_from([None, b"x", 1.5, -(1 << 40), [None], {"a": None}, [[1, 2, 3, 4]]]))
    packed = msgpack.packb(fields)
    with pytest.raises(WireError, match=f"{name} is not "):
        wire.decode(header._replace(metadata=len(packed)), packed)


def kind_of(message: m.Message) -> int:
    return wire.parse(wire.encode(message)).kind


def header(of: type, **given: int) -> bytes:
    """A header as nobody of ours would write it."""
    fields = {"magic": wire.MAGIC, "version": VERSION, "kind": kind_of(EMPTY[of]), "flags": 0}
    fields |= {"rank": 0, "key": 1, "step": 1, "offset": 0, "length": 0, "metadata": 0, "zero": 0} | given
    return struct.pack("<4sBBHiIqQQII", *fields.values())


EMPTY: dict[type, m.Message] = {m.Push: m.Push(1, 1, 0), m.Value: m.Value(1, 1, 0), m.Bye: m.Bye(0)}
SAID = {
    f"speaks version {VERSION}": header(m.Push, version=1, length=400),
    "does not speak the protocol": b"GET / HTTP/1.1\r\nHost: 127.0.0.1:9091\r\nAccept: */*\r\n\r\n",
    "a header has 48 bytes, here are 47": header(m.Push)[:-1],
    "no message of kind 99": header(m.Push, kind=99),
    "unknown flags": header(m.Value, flags=1, length=400),
    "bytes of metadata": header(m.Push, metadata=1),
    "70000 bytes of metadata": header(m.Bye, key=0, step=0, metadata=70000),
    "1048577 bytes of payload": header(m.Push, length=wire.FRAME + 1),
    "4 bytes of payload": header(m.Bye, key=0, step=0, metadata=20, length=4),
    "rank -2": header(m.Push, rank=-2),
    "key 1 where none belongs": header(m.Bye, step=0, metadata=20),
    "key number 7 was never declared": header(m.Push, key=7, length=4),
    "key number 0 was never declared": header(m.Push, key=0, length=4),
    "bytes 0 to 404 do not lie in its 400 bytes": header(m.Push, length=404),
    "bytes 396 to 404 do not": header(m.Value, offset=396, length=8),
    "bytes 18446744073709551615 to 18446744073709551619 do not": header(m.Push, offset=(1 << 64) - 1, length=4),
    "bytes 0 to 0 do not": header(m.Push, length=0),
    "bytes 4 to 10 cut an element of 4 bytes": header(m.Push, offset=4, length=6),
    "bytes 4 to 12 cut an element of 8 bytes": header(m.Push, key=2, offset=4, length=8),
}


@pytest.mark.parametrize("reason", SAID)
def test_the_reason_is_named(reason: str) -> None:
    with pytest.raises(WireError) as caught:
        read(SAID[reason])
    assert reason in str(caught.value)


def test_nothing_that_a_header_claims_is_allocated() -> None:
    """Lengths of 2**32 elements and bytes, in headers and in metadata, take no memory."""
    bombs = [b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff"]
    bombs += [b"\x91" * 5000 + b"\xc0", b"\xdc\xff\xff" * 20000, b"\xd4\x05\x00", b"\xc7\xff\x05"]
    tracemalloc.start()
    for bomb in bombs:
        for number, kind in wire.KINDS.items():
            if kind.metadata:
                with pytest.raises(WireError):
                    wire.decode(wire.Header(number, metadata=len(bomb)), bomb)
    for length in (1 << 40, (1 << 64) - 1):
        assert try_to_read(header(m.Push, length=length)) is None
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_too_much_metadata_is_not_written() -> None:
    with pytest.raises(WireError, match="more than 65536"):
        wire.encode(m.Welcome(0, servers=("x" * 200,) * 400))


def states(shape: tuple[int, ...], dtype: str = "float32", length: int = 16) -> int:
    sent = wire.encode(m.States(1, 0, 0, (("momentum", dtype, shape),)), length)
    parsed = wire.parse(sent)
    said = wire.decode(parsed, sent[wire.HEADER :])
    assert isinstance(said, m.States)
    return wire.check_states(parsed, said, 1000)


def test_states_fit_into_their_arrays() -> None:
    assert states((4,)) == 16
    assert states((2, 3)) == 24
    for bad in ((3,), (1 << 62, 1 << 62), (1,) * 33, (251,)):
        with pytest.raises(WireError):
            states(bad)
    with pytest.raises(WireError, match="no values of type 'object'"):
        states((4,), "object")


# ---------------------------------------------------------------------------------------------------------------- keys


WIDTHS = st.sampled_from([1, 5, 64, 333, 140_000])  # the last is longer than a frame


@settings(max_examples=15)
@given(st.integers(1, 4), WIDTHS, st.integers(1, 3), st.lists(st.integers(0, 8), max_size=5))
def test_rows_are_the_slices_that_servers_have(count: int, width: int, servers: int, asked: list[int]) -> None:
    rows = np.array([row % count for row in asked], np.int64)
    value = np.arange(count * width, dtype=np.float32).reshape(count, width)
    found = np.full((len(rows), 4 * width), 0xA5, np.uint8)
    for shard in place("w", "float32", value.shape, servers, split=64).values():
        keys = Keys(most_bytes=1 << 30)
        keys.admit(m.Init("w", "float32", value.shape, shard.lo, shard.hi))
        shards = Shards(keys, Budget(1 << 30))
        shards.declare(1).value.data[:] = value.tobytes()[shard.lo : shard.hi]
        for which, lo, hi in slices(rows, 4 * width, shard):
            assert len(which) * max(8, hi - lo) <= wire.FRAME
            starts = rows[which] * 4 * width + lo - shard.lo
            found[which, lo:hi] = np.frombuffer(shards.slices(1, starts, hi - lo), np.uint8).reshape(len(which), -1)
    assert found.tobytes() == value[rows].tobytes()


def test_slices_that_a_shard_does_not_have() -> None:
    keys = Keys(most_bytes=1 << 30)
    keys.admit(m.Init("w", "float32", (1 << 18,), 0, 1 << 20))
    shards = Shards(keys, Budget(1 << 30))
    shards.declare(1)
    assert len(shards.slices(1, np.array([0, (1 << 20) - 8]), 8)) == 16
    for starts, width in (
        ([-4], 4),
        ([1 << 20], 4),
        ([2], 4),
        ([0], 6),
        ([0], (1 << 20) + 4),
        ([0] * 3, wire.FRAME // 2),
    ):
        with pytest.raises(WireError, match="key 'w'"):
            shards.slices(1, np.array(starts), width)


def test_bytes_that_come_again_take_the_place_of_those_before() -> None:
    """A connection was lost amid the second frame of a push, which comes again on the next one."""
    keys = Keys(most_bytes=1 << 30)
    keys.admit(m.Init("w", "float32", (6,), 0, 24))
    shards = Shards(keys, Budget(1 << 30))
    shards.declare(1)
    pushed = np.arange(6, dtype=np.float32)
    for lo, hi, value in ((0, 16, pushed[:4]), (16, 24, pushed[:2]), (16, 24, pushed[4:])):
        shards.place(1, 3, lo, hi, "staging")[:] = value.view(np.uint8).data
    shards.add(1, 3, 0, 24, first=True)
    assert shards[1].sum.array.tolist() == pushed.tolist()
    assert not shards[1].staged[3]


def test_rows_that_a_table_does_not_have() -> None:
    keys = Keys(most_bytes=1 << 30)
    keys.admit(m.Init("w", "float32", (10, 3), 24, 96))  # from row 2 to row 7
    shards = Shards(keys, Budget(1 << 30))
    shards.declare(1)
    assert shards.most_rows(1) >= 6 * (8 + 12)

    def step(ids: list[int], columns: int = 3) -> None:
        rows = np.ones((len(ids), columns), np.float32)
        shards.step_rows(1, bytearray(np.array(ids, np.int64).tobytes() + rows.tobytes()), 0)

    with pytest.raises(InputError, match="there is no optimizer"):
        step([2])
    shards.set_rule(UpdateRule(SGD(rate=1.0).to_dict()), m.SetOptimizer("SGD"))
    for ids in ([-1], [10], [3, 3], [4, 3]):
        with pytest.raises(WireError, match="are none of float32"):
            step(ids)
    with pytest.raises(WireError, match="are none of float32"):
        step([1], columns=2)
    step([1, 2, 9])
    step([])
    assert shards[1].updates == 2
    assert shards[1].value.array.tolist() == [-1] * 3 + [0] * 15


def test_keys_are_declared_once_and_the_same() -> None:
    keys = Keys(most_bytes=100)
    first = m.Init("w", "float32", (4, 4), 0, 64, rank=0)
    assert [keys.admit(first), keys.admit(dataclasses.replace(first, rank=1))] == [1, 1]
    for other in (
        m.Init("w", "float64", (2, 4), 0, 64, 1),
        m.Init("w", "float32", (16,), 0, 64, 1),
        m.Init("w", "float32", (4, 4), 0, 32, 1),
    ):
        with pytest.raises(InputError, match=r"rank 1 declares .*, rank 0 declared float32\[4, 4\]"):
            keys.admit(other)
    named = Keys(100, ["host 'a'", "host 'b'"])
    named.admit(m.Init("w", "float32", (1,), 0, 4, 0))
    with pytest.raises(InputError, match=r"host 'b' declares float32\[2\].*, host 'a' declared float32\[1\]"):
        named.admit(m.Init("w", "float32", (2,), 0, 4, 1))
    with pytest.raises(BudgetError, match="passes the 100 bytes of MEZZO_KV_MEMORY"):
        keys.admit(m.Init("v", "float32", (10,), 0, 40))
    assert (len(keys), keys.nbytes) == (1, 64)
    assert keys.admit(m.Init("v", "float32", (9,), 0, 36)) == 2


@pytest.mark.parametrize(
    "init",
    [
        m.Init("w", "object", (4,), 0, 16),
        m.Init("w", "O8", (4,), 0, 16),
        m.Init("w", "float32", (-4,), 0, 0),
        m.Init("w", "float32", (1 << 62, 1 << 62), 0, 4),
        m.Init("w", "float32", (1,) * 33, 0, 4),
        m.Init("w", "float32", (4,), 0, 20),
        m.Init("w", "float32", (4,), 8, 4),
        m.Init("w", "float32", (4,), 2, 8),
    ],
    ids=str,
)
def test_what_cannot_be_declared(init: m.Init) -> None:
    with pytest.raises((ShapeError, InputError)) as caught:
        Keys(1 << 60).admit(init)
    assert caught.value.where == "key 'w'"


@given(st.integers(0, 10_000), st.integers(1, 7))
def test_ranges_share_out_evenly(nbytes: int, parts: int) -> None:
    ranges = cut(nbytes, parts)
    assert ranges[0][0] == 0
    assert ranges[-1][1] == nbytes
    assert all(hi == lo for (_, hi), (lo, _) in pairwise(ranges))
    assert all(lo % ALIGNMENT == 0 or lo == nbytes for lo, _ in ranges)
    sizes = [hi - lo for lo, hi in ranges]
    assert max(sizes) - min(sizes) <= 2 * ALIGNMENT


@given(st.lists(st.integers(0, 50), max_size=3), st.sampled_from(["float32", "float64", "bfloat16", "bool"]))
def test_a_key_lies_whole_or_in_parts(shape: list[int], dtype: str) -> None:
    size = element(dtype).itemsize * int(np.prod(shape))
    for servers in (1, 2, 3):
        parts = place("w", dtype, tuple(shape), servers, split=1000)
        assert (len(parts) > 1) == (size > 1000 and servers > 1)
        assert [p.lo for p in parts.values()] == [0, *[p.hi for p in parts.values()][:-1]]
        assert sum(p.nbytes for p in parts.values()) == size
        assert all(p.whole == (len(parts) == 1) for p in parts.values())


def test_small_keys_spread_over_servers() -> None:
    homes = [next(iter(place(f"layer{i}.weight", "float32", (8,), 4))) for i in range(400)]
    assert all(homes.count(server) > 50 for server in range(4))
    with pytest.raises(InputError, match="no server"):
        place("w", "float32", (8,), 0)


@pytest.mark.parametrize("kind", [Sequential(), Bounded(0), Bounded(12), Eventual()], ids=str)
def test_a_consistency_travels_as_a_text(kind: Any) -> None:
    assert parse(str(kind)) == kind


@pytest.mark.parametrize("text", ["", "bounded", "bounded -1", "bounded ²", "bounded 1 2", "dist_sync"])
def test_an_unknown_consistency(text: str) -> None:
    with pytest.raises(InputError, match="there is no consistency"):
        parse(text)

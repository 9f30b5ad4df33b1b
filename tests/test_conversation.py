"""Decoders with caches: inputs and outputs are paired, and conversations keep what the model returns of its past."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.exporters import save_onnx
from mezzo.models.convnets import no_weights, random_weights
from mezzo.models.gpt2 import gpt2
from mezzo.ops import DType, Tensor
from mezzo.ops.errors import BudgetError, DeadlineError, InputError, OutOfRange
from mezzo.ops.types import Array, f32
from mezzo.runtime.compile.padding import rounded_rows, rounded_up
from mezzo.runtime.execution.cache_pairs import CachePair
from mezzo.runtime.execution.cached_session import CachedSession
from mezzo.runtime.execution.conversation import Conversation
from mezzo.runtime.execution.session import Session
from mezzo.runtime.ir.graph import Graph, GraphBuilder, Node

SMALL = {"layers": 2, "width": 32, "heads": 2, "vocabulary": 100, "places": 64}
TEXT = [3, 14, 15, 92, 65, 35, 89, 79]
PER_ROW = 2 * 2 * 32 * 4  # bytes of the caches for each token


def decoder(**options: Any) -> CachedSession:
    return CachedSession(gpt2("batch", random_weights(), **SMALL), **options)


def logits(session: CachedSession, ids: Any, **feeds: Any) -> Array:
    """What the model says to a whole text in one run."""
    ids = np.atleast_2d(ids)
    return session.conversation(len(ids)).run({"input_ids": ids, **feeds})["logits"]


def ids(*tokens: int) -> dict[str, Any]:
    return {"input_ids": [list(tokens)]}


# -- loading -----------------------------------------------------------------------------------------------------------


def test_a_model_of_the_published_size() -> None:
    arrays = gpt2("batch", no_weights).initializers.values()
    assert sum(a.size for a in arrays if a.dtype == np.float32 and a.ndim) == 124_439_808


@pytest.mark.parametrize("suffix", [".onnx", ".mezzo"])
def test_load(tmp_path: Any, suffix: str) -> None:
    path = tmp_path / f"decoder{suffix}"
    if suffix == ".onnx":
        save_onnx(gpt2("batch", random_weights(), **SMALL), path)
    else:
        decoder().save(path)
    for cache in ("auto", {"past_key_values.*": "present.*"}):
        session = mz.load(path, cache=cache, capacity=16, threads=1)
        assert len(session.caches) == 4
        conversation = session.conversation()
        assert conversation.run(ids(*TEXT))["logits"].shape == (1, 8, 100)
    plain = mz.load(path, threads=1)
    assert type(plain) is mz.Session
    feeds = {"input_ids": [TEXT], "position_ids": [range(8)], "attention_mask": [[1] * 8]}
    feeds["position_ids"] = [list(range(8))]
    feeds |= {pair.past: pair.empty(1) for pair in session.caches}
    for by_hand in (plain, session):  # a session with caches is also one without
        answers = by_hand.run(feeds)
        assert list(answers) == list(plain.signature.outputs)
        np.testing.assert_allclose(answers["logits"], logits(session, TEXT), rtol=1e-5, atol=1e-5)


def test_bounds_need_a_cache(tmp_path: Any) -> None:
    save_onnx(gpt2("batch", no_weights, **SMALL), tmp_path / "decoder.onnx")
    with pytest.raises(InputError, match=r"(?s)need a cache.*cache=\"auto\""):
        mz.load(tmp_path / "decoder.onnx", capacity=16)  # type: ignore[call-overload]
    for name in ("capacity", "max_cache_bytes"):
        for bound in (0, -1):
            with pytest.raises(InputError, match=f"{name}={bound}"):
                mz.load(tmp_path / "decoder.onnx", cache="auto", **{name: bound})  # type: ignore[call-overload]


# -- conversations -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [[1] * 8, [3, 5], [7, 1], [2, 2, 4]])
def test_pieces_of_a_text(pieces: list[int]) -> None:
    """A text that is run in pieces gives what it gives as a whole."""
    session = decoder()
    whole, conversation, at = logits(session, TEXT), session.conversation(), 0
    for size in pieces:
        answers = conversation.run({"input_ids": [TEXT[at : at + size]]})
        assert list(answers) == ["logits"]
        np.testing.assert_allclose(answers["logits"], whole[:, at : at + size], rtol=1e-4, atol=1e-5)
        room = rounded_rows(at + size) if at else rounded_up(size)
        at += size
        assert (conversation.length, conversation.nbytes) == (at, room * PER_ROW)


def test_fork_truncate_and_reset() -> None:
    session = decoder()
    conversation = session.conversation()
    conversation.run(ids(*TEXT[:4]))
    other = conversation.fork()
    before = conversation._state.caches.arrays
    assert all(a is b for a, b in zip(before, other._state.caches.arrays, strict=True)), "a fork copies nothing"
    kept = [a.copy() for a in before]
    for each, tokens in ((conversation, TEXT[4:]), (other, [7, 8])):
        answer = each.run(ids(*tokens))["logits"]
        np.testing.assert_allclose(answer, logits(session, [*TEXT[:4], *tokens])[:, 4:], rtol=1e-4, atol=1e-5)
    assert all((a == b).all() for a, b in zip(before, kept, strict=True)), "what forks share is never written again"
    conversation.truncate(3)
    assert (conversation.length, conversation.nbytes) == (3, 64 * PER_ROW), "a cut within the same room"
    again = conversation.run(ids(9))["logits"]
    np.testing.assert_allclose(again, logits(session, [*TEXT[:3], 9])[:, 3:], rtol=1e-4, atol=1e-5)
    for wrong in (-1, 5):
        with pytest.raises(InputError, match=f"{wrong} rows of 4"):
            conversation.truncate(wrong)
    conversation.reset()
    assert (conversation.length, conversation.nbytes, other.length) == (0, 0, 6)
    np.testing.assert_allclose(conversation.run(ids(*TEXT))["logits"], logits(session, TEXT), rtol=1e-4, atol=1e-5)


def wide(places: int = 64, **options: Any) -> CachedSession:
    """A decoder whose caches are too large to be copied to a fixed place."""
    sizes = {**SMALL, "width": 256, "places": places}
    return CachedSession(gpt2("batch", random_weights(), **sizes), **options)


def test_rows_are_written_behind_those_before() -> None:
    """From token to token caches stay where they are, until their room is used up."""
    session = wide(places=160)
    conversation, text = session.conversation(), [*TEXT, *TEXT, 5]
    conversation.run(ids(*text))
    moves = list[int]()
    for token in range(20):
        before = conversation._state.caches
        new = [token] * (1 if token % 2 else 9)
        kept = [a[:, :, : conversation.length].copy() for a in before.arrays]
        conversation.run(ids(*new))
        text += new
        if conversation._state.caches is not before:
            moves.append(conversation.length)
        for a, b in zip(conversation._state.caches.arrays, kept, strict=True):
            np.testing.assert_array_equal(a[:, :, : b.shape[2]], b)
    assert moves == [26, 66]
    answer = conversation.run(ids(7))["logits"]
    np.testing.assert_allclose(answer[:, 0], logits(session, [*text, 7])[:, -1], rtol=1e-4, atol=1e-5)


def test_what_lies_behind_the_rows_is_read_by_nobody() -> None:
    """Rows that were cut off, NaN or otherwise, are not seen again; nor what a run that failed has left."""
    session = wide()
    conversation = session.conversation()
    conversation.run(ids(*TEXT, *TEXT))
    conversation.run(ids(1, 2, 3))
    before = conversation._state.caches
    conversation.truncate(17)
    assert conversation._state.caches is before, "a cut within the same room copies nothing"
    for array in before.arrays:
        array[:, :, 17:] = np.nan
    with pytest.raises(OutOfRange):
        conversation.run(ids(1000))
    answer = conversation.run(ids(9))["logits"]
    expected = logits(session, [*TEXT, *TEXT, 1, 9])[:, -1:]
    np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-5)
    assert np.isfinite(conversation.run(ids(9))["logits"]).all()
    assert session.stats().alarms == 0


def test_forks_write_into_memory_of_their_own() -> None:
    session = wide()
    first = session.conversation()
    first.run(ids(*TEXT, *TEXT, 5))
    second, third = first.fork(), first.fork()
    answers = [
        [c.run(ids(token))["logits"] for token in tokens]
        for c, tokens in ((first, (1, 2)), (second, (3, 4)), (third, (5, 6)), (first, (7,)), (second, (8,)))
    ]
    for answer, tokens in zip(answers, ([1, 2], [3, 4], [5, 6], [1, 2, 7], [3, 4, 8]), strict=True):
        expected = logits(session, [*TEXT, *TEXT, 5, *tokens])[:, -1]
        np.testing.assert_allclose(answer[-1][:, 0], expected, rtol=1e-4, atol=1e-5)


def test_a_nan_in_a_run_in_place() -> None:
    """A run that is made again finds its past as it was."""
    g = GraphBuilder("decoder")
    x, old = g.input("x", f32("b", "s", 512)), g.input("past_0", f32("b", "p", 512))
    g.add(Node("Concat", (old, x), ("present_0",), {"axis": 1}))
    session = CachedSession(g.graph([g.ReduceMax(g.Softmax("present_0"), g.const([1])), "present_0"]))
    conversation, rows = session.conversation(), np.random.default_rng(0).standard_normal((30, 512)).astype(np.float32)
    rows[[12, 13, 25], 3] = np.nan
    for row in rows:
        conversation.run({"x": row[None, None]})
    (array,) = conversation._state.caches.arrays
    np.testing.assert_array_equal(array[0, :30], rows)


@pytest.mark.parametrize("seed", range(4))
def test_calls_in_any_order(seed: int) -> None:
    """Forks, cuts and runs of one to forty tokens, against each text as a whole."""
    draw, session = np.random.default_rng(seed), wide(places=160)
    open_ones: list[tuple[Conversation, list[int]]] = [(session.conversation(), [])]
    for _ in range(60):
        conversation, text = open_ones[draw.integers(len(open_ones))]
        what = draw.choice(["run", "run", "run", "fork", "cut", "wrong"])
        if what == "fork" and len(open_ones) < 4:
            open_ones.append((conversation.fork(), list(text)))
        elif what == "cut":
            del text[int(draw.integers(len(text) + 1)) :]
            conversation.truncate(len(text))
        elif what == "wrong":
            with pytest.raises(OutOfRange):
                conversation.run(ids(1000))
        else:
            new = draw.integers(0, 100, draw.choice([1, 1, 1, 2, 5, 40])).tolist()
            if len(text) + len(new) > 150:
                conversation.reset()
                text.clear()
            text += new
            answer = conversation.run(ids(*new))["logits"]
            np.testing.assert_allclose(answer, logits(session, text)[:, -len(new) :], rtol=1e-4, atol=1e-5)
        assert conversation.length == len(text)
        held = {id(a): a.nbytes for c, _ in open_ones for a in c._state.caches.arrays}
        assert session.cache_memory.used == sum(held.values())


def test_a_past_that_others_read_is_not_written() -> None:
    g = GraphBuilder("decoder")
    x, old = g.input("x", f32("b", "s", 512)), g.input("past_0", f32("b", "p", 512))
    g.add(Node("Concat", (old, x), ("present_0",), {"axis": 1}))
    change = g.Sub(g.ReduceSum("present_0", g.const([1])), g.ReduceSum(old, g.const([1])))
    session = CachedSession(g.graph([change, "present_0"]))
    conversation = session.conversation()
    rows = np.random.default_rng(0).standard_normal((20, 512)).astype(np.float32)
    conversation.run({"x": rows[None, :9]})
    conversation._state.caches.arrays[0][:, 9:] = 7  # as rows that were cut off
    for row in rows[9:]:
        (change,) = conversation.run({"x": row[None, None]}).values()
        np.testing.assert_allclose(change[0, 0], row, rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(conversation._state.caches.arrays[0][0, :20], rows)


def test_pairs_that_cross() -> None:
    """Two caches that change places at each step: neither is written in the other's."""
    g = GraphBuilder("decoder")
    x, a, b = g.input("x", f32("b", "s", 512)), g.input("pa", f32("b", "p", 512)), g.input("pb", f32("b", "p", 512))
    g.add(Node("Concat", (a, x), ("na",), {"axis": 1}))
    g.add(Node("Concat", (b, g.Neg(x)), ("nb",), {"axis": 1}))
    graph = g.graph([g.Add(g.ReduceSum("na", g.const([1])), g.Exp(g.ReduceMax("nb", g.const([1])))), "na", "nb"])
    session, exact = CachedSession(graph, cache={"pa": "nb", "pb": "na"}), Session(graph)
    conversation, pasts = session.conversation(), (np.zeros((1, 0, 512), np.float32),) * 2
    for i in range(6):
        row = np.random.default_rng(i).standard_normal((1, 1, 512)).astype(np.float32)
        if i == 3:
            fork, rooms = conversation.fork(), [r.copy() for r in conversation._state.caches.arrays]
        (answer,) = conversation.run({"x": row}).values()
        want, na, nb = exact.run({"x": row, "pa": pasts[0], "pb": pasts[1]}).values()
        np.testing.assert_allclose(answer, want, rtol=1e-4, atol=1e-4)
        pasts = nb, na
    assert all((p == q).all() for p, q in zip(fork._state.caches.arrays, rooms, strict=True))


@pytest.mark.parametrize("how", ["wrong", "late"])
def test_a_run_that_fails_holds_no_memory(how: str) -> None:
    session = wide(places=400)
    for n in (130, 200, 300):
        conversation = session.conversation()
        conversation.run({"input_ids": np.ones((1, n), np.int64)})
        conversation.run(ids(1))
        with pytest.raises(mz.MezzoError):
            conversation.run(ids(1000 if how == "wrong" else 1), deadline=0.0 if how == "late" else None)
        del conversation
        assert session.cache_memory.used == 0


def test_masks_and_positions() -> None:
    """Padding on the left changes nothing for the tokens behind it, from run to run, forked and cut."""
    session = decoder()
    conversation = session.conversation(2)
    mask = np.array([[0, 0, 1, 1], [1, 1, 1, 1]])
    conversation.run({"input_ids": [[0, 0, *TEXT[:2]], TEXT[:4]], "attention_mask": mask})
    other = conversation.fork()
    answers = [conversation.run({"input_ids": [[token], [token]]})["logits"] for token in (5, 6)]
    for row, text in enumerate(([*TEXT[:2], 5, 6], [*TEXT[:4], 5, 6])):
        alone = logits(session, text)[0, -2:]
        np.testing.assert_allclose([a[row, 0] for a in answers], alone, rtol=1e-4, atol=1e-5)
    # a mask of the new tokens alone stands behind that of the past, a whole one in its place
    new = other.fork().run({"input_ids": [[0, 5], [4, 5]], "attention_mask": [[0, 1], [1, 1]]})["logits"]
    whole = np.concatenate((mask, [[0, 1], [1, 1]]), 1)
    same = other.fork().run({"input_ids": [[0, 5], [4, 5]], "attention_mask": whole})["logits"]
    np.testing.assert_array_equal(new, same)
    np.testing.assert_allclose(new[0, -1], logits(session, [*TEXT[:2], 5])[0, -1], rtol=1e-4, atol=1e-5)
    own = other.run({"input_ids": [[5], [5]], "position_ids": [[2], [4]]})["logits"]
    np.testing.assert_array_equal(own, answers[0])
    other.truncate(3)
    cut = other.run({"input_ids": [[5], [5]]})["logits"]
    np.testing.assert_allclose(cut[0, -1], logits(session, [TEXT[0], 5])[0, -1], rtol=1e-4, atol=1e-5)


def test_outputs_by_name() -> None:
    session = decoder()
    conversation = session.conversation()
    assert list(conversation.run(ids(1), ("logits",))) == ["logits"]
    assert conversation.run(ids(1), ()) == {}
    assert conversation.length == 2
    for names, message in ((["present.0.key"], "keeps 'present.0.key'"), (["nothing"], "nothing")):
        with pytest.raises(mz.MezzoError, match=message):
            conversation.run(ids(1), names)
    assert conversation.length == 2


def failing(conversation: Conversation) -> dict[str, tuple[type[Exception], str, dict[str, Any]]]:
    key = {"past_key_values.0.key": conversation._state.caches.arrays[0]}
    return {
        "a token out of range": (OutOfRange, "1000", ids(1000)),
        "no tokens": (InputError, "no tokens are fed.*feed input_ids", {}),
        "no new token": (InputError, r"\(1, 0\)", ids()),
        "no batch": (InputError, r"sizes \(2,\)", {"input_ids": [1, 2]}),
        "another batch": (InputError, r"sizes \(2, 1\), in a conversation of 1", {"input_ids": [[1], [2]]}),
        "a mask of another size": (
            InputError, r"\(1, 3\).*feed \(1, 5\), or \(1, 1\)", {**ids(1), "attention_mask": [[1] * 3]}
        ),
        "an unknown input": (InputError, "no input 'labels'", {**ids(1), "labels": [1]}),
        "a cache": (InputError, "is fed by the conversation", {**ids(1), **key}),
        "beyond the capacity": (BudgetError, "5 tokens behind 4 pass the capacity of 8", ids(*range(5))),
    }  # fmt: skip


def test_a_run_that_fails_changes_nothing() -> None:
    session = decoder(capacity=8)
    conversation = session.conversation()
    conversation.run(ids(*TEXT[:4]))
    state, used = conversation._state, session.cache_memory.used
    for name, (kind, message, feeds) in failing(conversation).items():
        with pytest.raises(kind, match=f"(?s){message}"):
            conversation.run(feeds)
        assert conversation._state is state, name
    with pytest.raises(DeadlineError):
        conversation.run(ids(1), deadline=0.0)
    assert conversation._state is state
    assert session.cache_memory.used == used
    conversation.run(ids(*TEXT[4:]))
    assert conversation.length == 8


def test_ceiling() -> None:
    """Past and present of a run count both where rows do not lie in place; forks count once; what is dropped counts no
    more. What a text begins with takes its own rows, what follows room for 64."""
    session = decoder(max_cache_bytes=80 * PER_ROW)
    first, second = session.conversation(), session.conversation()
    first.run(ids(*TEXT))
    forks = [first.fork() for _ in range(5)]
    assert session.cache_memory.used == 8 * PER_ROW
    second.run(ids(*TEXT, 1))
    with pytest.raises(BudgetError, match=r"(?s)^conversation: .*would pass the ceiling.*truncate, reset or drop"):
        first.run(ids(1))  # room for 8 + 12 + 64 rows
    assert first.length == 8
    second.reset()
    first.run(ids(1))
    assert session.cache_memory.used == 72 * PER_ROW, "the forks hold the past"
    del forks
    assert session.cache_memory.used == 64 * PER_ROW
    first.truncate(0)
    assert session.cache_memory.used == 0
    first.run(ids(1))
    del first, second
    assert session.cache_memory.used == 0


def test_rows_in_place_need_no_more_memory() -> None:
    per_row = 2 * 2 * 256 * 4
    session = wide(places=160, max_cache_bytes=100 * per_row)
    conversation = session.conversation()
    conversation.run(ids(*TEXT))
    for _ in range(7):
        conversation.run(ids(*TEXT))
        assert session.cache_memory.used == 64 * per_row
    with pytest.raises(BudgetError, match="would pass the ceiling"):
        conversation.run(ids(4))
    other = conversation.fork()
    other.truncate(19)
    with pytest.raises(BudgetError, match="would pass the ceiling"):
        other.run(ids(4))  # the conversation that it was forked from holds the rows
    assert (session.cache_memory.used, other.length) == (64 * per_row, 19)


def test_cut_forks_stay_under_the_ceiling() -> None:
    """A fork that is cut takes memory of its own where that is less."""
    session = wide(places=160, max_cache_bytes=5 * 64 * 2 * 2 * 256 * 4)
    conversation = session.conversation()
    conversation.run(ids(*TEXT * 16))
    conversation.run(ids(1))
    forks = [conversation.fork() for _ in range(3)]
    forks[0].truncate(129)  # lies in the room of 192
    forks[1].truncate(64)
    forks[2].truncate(3)
    with pytest.raises(BudgetError, match="would pass the ceiling"):
        forks[0].truncate(3)
    assert (session.cache_memory.used, forks[0].length) == (5 * 64 * 2 * 2 * 256 * 4, 129)


def test_a_cut_that_fails_counts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> Array:
        raise MemoryError

    session = wide(places=160)
    conversation = session.conversation()
    conversation.run(ids(*TEXT))
    conversation.run(ids(*TEXT * 7, 1))
    monkeypatch.setattr(CachePair, "first", full)
    with pytest.raises(MemoryError):
        conversation.truncate(3)
    assert (session.cache_memory.used, conversation.length) == (128 * 8 * PER_ROW, 65)


def test_two_conversations_in_two_threads() -> None:
    session = decoder()
    expected = {seed: logits(session, [seed, *TEXT]) for seed in (1, 2, 3, 4)}
    wrong: list[int] = []

    def chat(seed: int) -> None:
        for _ in range(5):
            conversation = session.conversation()
            answers = [conversation.run(ids(token))["logits"] for token in (seed, *TEXT)]
            if not np.allclose(np.concatenate(answers, 1), expected[seed], rtol=1e-4, atol=1e-5):
                wrong.append(seed)

    threads = [threading.Thread(target=chat, args=(seed,)) for seed in expected]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_one_conversation_in_two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    session = decoder()
    conversation = session.conversation()
    inside, go_on = threading.Event(), threading.Event()
    run = session.run

    def slow(*args: Any, **options: Any) -> dict[str, Any]:
        inside.set()
        assert go_on.wait(60)
        return run(*args, **options)

    monkeypatch.setattr(session, "run", slow)
    thread = threading.Thread(target=conversation.run, args=(ids(*TEXT),))
    thread.start()
    assert inside.wait(60)
    for call in (lambda: conversation.run(ids(1)), lambda: conversation.truncate(0), conversation.reset):
        with pytest.raises(InputError, match=r"(?s)another thread is running this conversation.*fork\(\)"):
            call()
    other = conversation.fork()
    go_on.set()
    thread.join()
    assert (conversation.length, other.length) == (8, 0)


def renamed(returns: str) -> Graph:
    """A model that takes a past under other names, and whose present is `returns` of the past and the new rows."""
    g = GraphBuilder("renamed")
    x, past = g.input("x", f32("b", "s", 4)), g.input("memory_a", f32("b", "p", 4))
    joined = g.Concat(past, x, axis=1)
    kept = {"whole": joined, "new": x, "last": g.Slice(joined, g.const([-2]), g.const([2**62]), g.const([1]))}[returns]
    g.add(Node("Identity", (kept,), ("kept_a",)))
    return g.graph([g.ReduceSum(joined, g.const([1]), keepdims=0), "kept_a"])


def test_other_names_and_neither_mask_nor_positions() -> None:
    session = CachedSession(renamed("whole"), cache={"memory_*": "kept_*"})
    conversation = session.conversation(3)
    total = np.zeros((3, 4), np.float32)
    for size in (2, 1, 3):
        x = np.random.default_rng(size).standard_normal((3, size, 4)).astype(np.float32)
        total += x.sum(1)
        np.testing.assert_allclose(conversation.run({"x": x})[session.answers[0]], total, rtol=1e-5, atol=1e-5)
    assert conversation.length == 6


@pytest.mark.parametrize("returns", ["new", "last"])
def test_presents_that_do_not_grow(returns: str) -> None:
    conversation = CachedSession(renamed(returns), cache={"memory_a": "kept_a"}).conversation()
    right = {"new": 1, "last": 2}[returns]
    for _ in range(right):
        conversation.run({"x": np.ones((1, 1, 4), np.float32)})
    with pytest.raises(InputError, match=r"(?s)'kept_a' has the sizes .* rows of the past and .* new.*by hand"):
        conversation.run({"x": np.ones((1, 1, 4), np.float32)})
    assert conversation.length == right


def test_caches_of_other_element_types() -> None:
    g = GraphBuilder("half")
    x = g.input("x", Tensor(DType.FLOAT16, ("b", "s", 4)))
    g.add(Node("Concat", (g.input("past_0", Tensor(DType.FLOAT16, ("b", "p", 4))), x), ("present_0",), {"axis": 1}))
    session = CachedSession(g.graph([g.ReduceMax(x), "present_0"]))
    conversation = session.conversation()
    for _ in range(3):
        conversation.run({"x": np.ones((1, 2, 4), np.float16)})
    assert (conversation.length, conversation.nbytes) == (6, 64 * 4 * 2)
    assert str(conversation) == "<Conversation of 1 x 6 rows, 512 bytes>"
    with pytest.raises(InputError, match="a batch of 0"):
        session.conversation(0)

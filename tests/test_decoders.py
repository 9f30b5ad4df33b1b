"""Ten decoders as ONNX Runtime's GenAI builder and Optimum write them: they load, agree with ONNX Runtime, and decode
with their caches in place."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import mezzo as mz

from .decoders import DECODERS, SIZE, VOCABULARY, Decoder, decoder
from .models import ort_run

Array = np.ndarray[Any, Any]
IDS = [made.name for made in DECODERS]
ALL = pytest.mark.parametrize("made", DECODERS, ids=IDS)
RNG = np.random.default_rng(0)


def loaded(made: Decoder, **options: Any) -> tuple[onnx.ModelProto, Any]:
    proto = decoder(made)
    return proto, mz.load(proto.SerializeToString(), cache="auto", capacity=64, threads=1, **options)


def feeds_of(proto: onnx.ModelProto, ids: Array, past: dict[str, Array]) -> dict[str, Array]:
    """The inputs of a run of new ids behind a past."""
    batch, length = ids.shape
    before = next(iter(past.values())).shape[2] if past else 0
    feeds: dict[str, Array] = {}
    for value in proto.graph.input:
        dims = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if value.name == "input_ids":
            feeds[value.name] = ids
        elif value.name == "attention_mask":
            feeds[value.name] = np.ones((batch, before + length), np.int64)
        elif value.name == "position_ids":
            feeds[value.name] = np.repeat(np.arange(before, before + length)[None], batch, 0)
        elif value.name not in past:
            kind = onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
            feeds[value.name] = np.zeros((batch, dims[1], 0, SIZE), kind)
    return {**feeds, **past}


def close(made: Decoder, ours: Array, theirs: Array, what: str) -> None:
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), what
    if theirs.size:
        one, other = ours.astype(np.float64), theirs.astype(np.float64)
        far = np.abs(one - other).max() / max(np.abs(other).max(), 1e-30)
        assert far <= (1.5e-2 if made.half else 2e-4), f"{what}: {far}"


@ALL
def test_agree_with_onnx_runtime(made: Decoder) -> None:
    """A prompt, then single tokens and a few at once, batches of one and three."""
    proto, session = loaded(made)
    for batch in (1, 3):
        past: dict[str, Array] = {}
        # several places behind a past: of one text alone in ONNX Runtime's GroupQueryAttention
        for step, length in enumerate((5, 1, 1, 4, 1) if batch == 1 else (5, 1, 1)):
            feeds = feeds_of(proto, RNG.integers(0, VOCABULARY, (batch, length)), past)
            theirs, ours = ort_run(proto, feeds), session.run(feeds)
            for name in theirs:
                close(made, ours[name], theirs[name], f"batch {batch}, step {step}: {name}")
            past = {n.replace("present", "past_key_values"): a for n, a in theirs.items() if n.startswith("present")}


@ALL
def test_conversations_say_what_whole_texts_do(made: Decoder) -> None:
    """Over growing lengths, with the cache in place: as the whole text at once."""
    proto, session = loaded(made)
    whole = mz.load(proto.SerializeToString(), threads=1)
    for batch in (1, 2):
        chat, ids = session.conversation(batch), RNG.integers(0, VOCABULARY, (batch, 40))
        want = whole.run(feeds_of(proto, ids, {}))["logits"]
        at = 0
        for length in (7, *[1] * 10, 3, *[1] * 20):
            found = chat.run({"input_ids": ids[:, at : at + length]})["logits"]
            at += length
            close(made, found[:, -1], want[:, at - 1], f"batch {batch}, {at} tokens")
    assert 0 < session.stats().rounded <= 8
    assert session.stats().programs == 0, "no length has a program of its own"


@ALL
def test_the_cache_stays_where_it_is(made: Decoder) -> None:
    """Tokens within a room are written behind the others: no array is made for them."""
    _, session = loaded(made)
    chat = session.conversation(24)  # small ones are copied
    chat.run({"input_ids": RNG.integers(0, VOCABULARY, (24, 5))})
    chat.run({"input_ids": np.full((24, 1), 7)})
    arrays = [id(a) for a in chat._state.caches.arrays]
    for token in range(6):
        chat.run({"input_ids": np.full((24, 1), token)})
    assert [id(a) for a in chat._state.caches.arrays] == arrays


@pytest.mark.parametrize(
    "made", [d for d in DECODERS if d.name in ("llama-4-bit", "qwen3", "llama-optimum")], ids=lambda d: d.name
)
def test_generate(made: Decoder) -> None:
    _, session = loaded(made)
    tokens = list(mz.generate(session, [5, 6, 7], max_new_tokens=12))
    text = [5, 6, 7]
    for token in tokens:
        logits = session.conversation().run({"input_ids": [text]})["logits"]
        assert int(logits[0, -1].argmax()) == token
        text.append(token)

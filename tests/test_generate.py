"""Tokens as they come: greedy and drawn, batched, in conversations; as without caches, and as transformers has them."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.models.convnets import random_weights
from mezzo.models.gpt2 import gpt2
from mezzo.ops import DType, Tensor
from mezzo.ops.errors import BudgetError, DeadlineError, ExecutionError, InputError
from mezzo.ops.types import Array, f32
from mezzo.runtime.execution.cached_session import CachedSession
from mezzo.runtime.ir.graph import Graph, GraphBuilder, Node
from mezzo.tools.sampling import Sampler, least_logit

from .peers import peer

SMALL = {"layers": 2, "width": 32, "heads": 2, "vocabulary": 100, "places": 64}
PROMPTS = [[5, 6, 7], [1, 2, 3, 4, 5, 6], [9]]


def decoder(seed: int = 0, **options: Any) -> CachedSession:
    return CachedSession(gpt2("batch", random_weights(seed), **SMALL), **options)


def tokens(*args: Any, **options: Any) -> list[Any]:
    return [token.tolist() if isinstance(token, np.ndarray) else token for token in mz.generate(*args, **options)]


def by_prefix(session: CachedSession, prompt: list[int], count: int) -> list[int]:
    """The most probable tokens, each by a run of all before it, without a cache."""
    text = list(prompt)
    for _ in range(count):
        text.append(int(session.conversation().run({"input_ids": [text]})["logits"][0, -1].argmax()))
    return text[len(prompt) :]


def unigram(logits: Array) -> Graph:
    """A model that says the same whatever it reads, and caches it."""
    g = GraphBuilder("unigram")
    ids = g.input("input_ids", Tensor(DType.INT32, ("b", "s")))
    x = g.Unsqueeze(g.Cast(ids, to=DType.FLOAT.onnx), g.const([2]))
    g.add(Node("Concat", (g.input("past_0", f32("b", "p", 1)), x), ("present_0",), {"axis": 1}))
    return g.graph([g.Add(g.Mul(x, g.const(np.float32(0))), g.const(logits.astype(np.float32))), "present_0"])


def counting() -> Graph:
    """A model without mask and positions that says the number behind the last one, modulo 10."""
    g = GraphBuilder("counting")
    ids = g.input("input_ids", Tensor(DType.INT64, ("b", "s")))
    x = g.Unsqueeze(g.Cast(ids, to=DType.FLOAT.onnx), g.const([2]))
    g.add(Node("Concat", (g.input("past_0", f32("b", "p", 1)), x), ("present_0",), {"axis": 1}))
    behind = g.Mod(g.Add(ids, g.const(1)), g.const(10))
    return g.graph([g.OneHot(behind, g.const(10), g.const(np.array([0, 1], np.float32))), "present_0"])


@pytest.mark.parametrize("seed", range(3))
def test_greedy_is_what_whole_prefixes_give(seed: int) -> None:
    session = decoder(seed)
    for prompt in PROMPTS:
        answer = tokens(session, prompt, 12)
        assert answer == by_prefix(session, prompt, 12)
        assert all(type(token) is int for token in answer)
        assert tokens(session, np.array([prompt]), max_new_tokens=12) == answer


def test_tokens_come_one_by_one() -> None:
    session = decoder()
    conversation = session.conversation()
    stream = mz.generate(conversation, PROMPTS[1], 30)
    assert conversation.length == 0, "nothing runs before the first is asked for"
    for i, token in enumerate(islice(stream, 5)):
        assert conversation.length == 6 + i
        assert conversation.unread is not None
        assert conversation.unread.ids.tolist() == [[token]]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_batch_gives_each_text_what_it_gets_alone(temperature: float) -> None:
    session = decoder()
    several = np.array(tokens(session, PROMPTS, 12, temperature, seed=4)).T.tolist()
    assert several[0] == tokens(session, PROMPTS[0], 12, temperature, seed=4)
    if not temperature:
        assert several == [tokens(session, prompt, 12) for prompt in PROMPTS]
    padded = np.zeros((3, 6), np.int64)
    mask = np.zeros((3, 6), np.int64)
    for row, prompt in enumerate(PROMPTS):
        padded[row, 6 - len(prompt) :], mask[row, 6 - len(prompt) :] = prompt, 1
    own = tokens(session, padded, 12, temperature, seed=4, attention_mask=mask)
    assert np.array(own).T.tolist() == several


def test_logits_of_padded_rows() -> None:
    session = decoder()
    conversation = session.conversation(3)
    for _ in mz.generate(conversation, PROMPTS, 4):
        pass
    assert conversation.unread is not None
    answers = conversation.fork().run({"input_ids": conversation.unread.ids})["logits"]
    for row, prompt in enumerate(PROMPTS):
        text = prompt + tokens(session, prompt, 4)
        alone = session.conversation().run({"input_ids": [text]})["logits"][0, -1]
        np.testing.assert_allclose(answers[row, 0], alone, rtol=1e-4, atol=1e-5)


def test_a_conversation_goes_on() -> None:
    """What was yielded last is read before the next prompt; stopping early, forking and cutting leave no gap."""
    session = decoder()
    conversation, text = session.conversation(), list[int]()
    for prompt, count in (([5, 6, 7], 4), ([8], 3), ([], 2), ([1, 2], 5)):
        answer = list(islice(mz.generate(conversation, prompt, 20), count))
        text += prompt
        assert answer == by_prefix(session, text, count)
        text += answer
        assert conversation.length == len(text) - 1
    other = conversation.fork()
    assert tokens(conversation, [3], 4) == tokens(other, [3], 4) == by_prefix(session, [*text, 3], 4)
    other.truncate(3)
    assert other.unread is None
    assert tokens(other, [8], 4) == by_prefix(session, [5, 6, 7, 8], 4)


def test_texts_of_a_conversation_that_stop() -> None:
    """A text that has ended goes on as padding that nobody sees, and takes up the next prompt as if alone."""
    session = decoder()
    alone = [tokens(session, prompt, 8) for prompt in PROMPTS]
    conversation = session.conversation(3)
    ends = [alone[0][2], (alone[1][4], alone[1][5])]
    until = [
        next((i for i in range(8) if row[i] == ends[0] or row[max(i - 1, 0) : i + 1] == [*ends[1]]), 7) for row in alone
    ]
    assert len({*until}) > 1
    answer = np.array(tokens(conversation, PROMPTS, 8, stop=ends, pad_token_id=99)).T.tolist()
    for row, end in enumerate(until):
        assert answer[row] == alone[row][: end + 1] + [99] * (max(until) - end)
    more = np.array(tokens(conversation, [[11, 12], [13], [14]], 5)).T.tolist()
    for row, (prompt, new) in enumerate(zip(PROMPTS, ([11, 12], [13], [14]), strict=True)):
        assert more[row] == by_prefix(session, prompt + alone[row][: until[row] + 1] + new, 5)


def test_stop() -> None:
    session = decoder()
    answer = tokens(session, PROMPTS[2], 12)
    first = answer.index(answer[5])
    for stop in (answer[5], np.int64(answer[5]), [answer[5]], [(answer[5],)], [98, [answer[5]]]):
        assert tokens(session, PROMPTS[2], 12, stop=stop) == answer[: first + 1]
    pair = next(i for i in range(1, 12) if answer[i - 1 : i + 1] == answer[4:6])
    assert tokens(session, PROMPTS[2], 12, stop=[answer[4:6]]) == answer[: pair + 1]
    assert tokens(session, PROMPTS[2], 12, stop=[[*answer[4:6], 98]]) == answer


def test_a_text_that_stops_early_in_a_model_without_a_mask() -> None:
    plain = CachedSession(counting())
    answer = np.array(tokens(plain, [[1], [4]], 8, stop=5, pad_token_id=9)).T.tolist()
    assert answer == [[2, 3, 4, 5], [5, 9, 9, 9]]


def test_the_capacity_ends_it() -> None:
    session = decoder(capacity=10)
    conversation = session.conversation()
    assert len(tokens(conversation, [1, 2, 3])) == 8  # the last is not run
    assert conversation.length == 10
    assert tokens(session, [1, 2, 3], 8) == tokens(session, [1, 2, 3])
    for args in (([1, 2, 3], 9), ([1] * 11,)):
        with pytest.raises(BudgetError, match=r"(?s)^generate: .* pass the capacity of 10.*larger capacity"):
            mz.generate(session, *args)
    with pytest.raises(BudgetError, match="2 tokens behind 10, and 1 more"):
        mz.generate(conversation, [1])


# -- drawing -----------------------------------------------------------------------------------------------------------


def test_the_same_seed_draws_the_same() -> None:
    session = decoder()
    one, again, other = (tokens(session, PROMPTS[0], 20, 1.0, seed=seed) for seed in (7, 7, 8))
    assert one == again != other
    for least in (1e-9, 1e-320):
        assert tokens(session, PROMPTS[0], 20, least) == tokens(session, PROMPTS[0], 20)
    assert tokens(session, PROMPTS[0], 20, 5.0, top_k=1) == tokens(session, PROMPTS[0], 20)
    assert tokens(session, PROMPTS[0], 20, 5.0, top_p=1e-6) == tokens(session, PROMPTS[0], 20)


# The limits of chi-squared that one of 10,000 draws passes, by degrees of freedom.
LIMITS = {3: 21.11, 6: 27.86, 11: 37.37}
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.5},
    {"temperature": 1.0, "top_k": 4},
    {"temperature": 2.0, "top_k": 8, "top_p": 0.8},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_drawn_tokens_follow_their_distribution(settings: dict[str, Any]) -> None:
    logits = np.log(np.arange(1, 13) / 78).astype(np.float32)
    scaled = logits / settings["temperature"]
    kept = np.argsort(scaled)[-settings.get("top_k", 12) :]
    chances = np.zeros(12)
    chances[kept] = np.exp(scaled[kept]) / np.exp(scaled[kept]).sum()
    if "top_p" in settings:  # of the largest, as few as reach it
        order = np.argsort(-chances)
        few = order[: int(np.searchsorted(np.cumsum(chances[order]), settings["top_p"])) + 1]
        chances = np.where(np.isin(np.arange(12), few), chances, 0) / chances[few].sum()
    session = CachedSession(unigram(logits))
    draws = np.array(tokens(session, [[0]] * 100, 40, seed=1, **settings))
    counts, expected = np.bincount(draws.ravel(), minlength=12), 4000 * chances
    assert not counts[chances == 0].any()
    distance = float(((counts - expected)[chances > 0] ** 2 / expected[chances > 0]).sum())
    assert distance < LIMITS[int((chances > 0).sum()) - 1], distance
    rows = [np.bincount(draws[:, row], minlength=12) for row in range(2)]
    assert (rows[0] != rows[1]).any(), "texts draw apart from each other"


def test_masks_are_those_of_transformers() -> None:
    torch = peer("torch")
    pytest.importorskip("transformers", reason="transformers is not installed: pip install --group exports")
    from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

    rng = np.random.default_rng(0)
    for _ in range(200):
        logits = (rng.standard_normal(200) * rng.choice([0.1, 1, 5])).astype(np.float32)
        if rng.random() < 0.3:
            logits[rng.integers(0, 200, 100)] = -np.inf
        top_k: int | None = int(rng.integers(1, 210))
        top_p: float | None = float(rng.uniform(0.01, 1))
        if rng.random() < 0.3:
            logits = np.round(logits, 1)  # of equal ones, top_k keeps all
            top_p = None
        elif rng.random() < 0.5:
            top_k = None
        theirs = torch.from_numpy(logits)[None]
        if top_k is not None:
            theirs = TopKLogitsWarper(top_k)(None, theirs)
        if top_p is not None:
            theirs = TopPLogitsWarper(top_p)(None, theirs)
        ours = (logits >= least_logit(logits, top_k, top_p)) & (logits > -np.inf)
        np.testing.assert_array_equal(ours, np.isfinite(theirs.numpy()[0]), err_msg=f"{top_k}, {top_p}")


def test_logits_that_are_no_numbers() -> None:
    sampler = Sampler(2)
    assert sampler(np.array([[1, -np.inf, 2], [3, 2, 1]], np.float32)).tolist() == [2, 0]
    for wrong in (np.nan, np.inf):
        with pytest.raises(ExecutionError, match="NaN or infinite"):
            sampler(np.array([[1, 2, 3], [1, wrong, 2]], np.float32))
    with pytest.raises(ExecutionError, match="NaN or infinite"):
        sampler(np.full((2, 3), -np.inf, np.float32))


# -- errors ------------------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no tokens": ({"ids": []}, "the prompt is empty"),
    "one without tokens": ({"ids": [[1], []]}, "prompt 1 is empty"),
    "floats": ({"ids": [1.5]}, r"a prompt of float64\[1\]"),
    "text": ({"ids": "hello"}, "a prompt of"),
    "three axes": ({"ids": [[[1]]]}, r"a prompt of int64\[1, 1\]"),
    "no end": ({"max_new_tokens": None}, "no end is given.*max_new_tokens="),
    "none to draw": ({"max_new_tokens": 0}, "max_new_tokens=0"),
    "temperature": ({"temperature": -1.0}, "temperature=-1.0"),
    "a temperature that is NaN": ({"temperature": float("nan")}, "temperature=nan"),
    "top_k": ({"top_k": 0}, "top_k=0.*from 1 on"),
    "top_k of a float": ({"top_k": 2.5}, "top_k=2.5"),
    "top_p": ({"top_p": 0.0}, "top_p=0.0"),
    "top_p above one": ({"top_p": 1.1}, "top_p=1.1"),
    "seed": ({"seed": -1}, "seed=-1"),
    "stop of text": ({"stop": ["end"]}, r"stop=\['end'\].*give ids"),
    "stop of nothing": ({"stop": [[]]}, r"stop=\[\[\]\]"),
    "a mask of another size": ({"attention_mask": [[1, 1]]}, "an attention_mask of"),
    "padding on the right": ({"ids": [[1, 2]], "attention_mask": [[1, 0]]}, "padded on the left"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    options, message = REFUSED[name]
    conversation = decoder().conversation()
    with pytest.raises(InputError, match=f"(?s)^generate: .*{message}"):
        mz.generate(conversation, **{"ids": [1, 2, 3], "max_new_tokens": 4, **options})


def test_models_that_are_refused() -> None:
    whole = gpt2("batch", random_weights(), **SMALL)
    with pytest.raises(InputError, match=r"(?s)no caches.*cache=\"auto\""):
        mz.generate(mz.Session(whole), [1], 3)
    with pytest.raises(InputError, match="2 prompts for a conversation of 3"):
        mz.generate(decoder().conversation(3), [[1], [2]], 3)
    plain = CachedSession(unigram(np.zeros(4)))
    with pytest.raises(InputError, match=r"(?s)does not take attention_mask and position_ids.*of one length"):
        mz.generate(plain, [[1], [2, 3]], 3)
    with pytest.raises(InputError, match="does not take attention_mask"):
        mz.generate(plain.conversation(2), [[1], [2]], 3, stop=1)
    with pytest.raises(InputError, match="does not take attention_mask"):
        mz.generate(plain.conversation(2), [[1], [2]], 3, stop=0)
    with pytest.raises(InputError, match="does not take attention_mask"):
        mz.generate(plain.conversation(2), [[1], [2]], 3, stop=np.array([3, 0]))
    with pytest.raises(InputError, match="does not take attention_mask"):
        mz.generate(plain, [[0, 1], [2, 3]], 3, attention_mask=[[0, 1], [1, 1]])
    assert tokens(plain, [[1], [2]], 3, stop=1) == [[0, 0]] * 3, "a conversation that nobody goes on with"
    g = GraphBuilder("floats")
    x = g.input("x", f32("b", "s", 4))
    g.add(Node("Concat", (g.input("past_0", f32("b", "p", 4)), x), ("present_0",), {"axis": 1}))
    outputs = [g.Relu(x), g.Neg(x)]
    with pytest.raises(InputError, match=r"no input of .* takes ids"):
        mz.generate(CachedSession(g.graph([*outputs, "present_0"])), [1], 3)


def test_a_run_that_fails_leaves_the_conversation() -> None:
    session = decoder()
    conversation = session.conversation()
    stream = mz.generate(conversation, [5, 6, 7], 20)
    text = [5, 6, 7, next(stream), next(stream)]
    before = conversation.unread
    with pytest.raises(DeadlineError):
        next(mz.generate(conversation, [8], 5, deadline=0.0))
    with pytest.raises(mz.OutOfRange):
        next(mz.generate(conversation, [1000], 5))
    assert conversation.unread is before
    text.append(next(stream))
    assert text[3:] == by_prefix(session, [5, 6, 7], 3)
    other = mz.generate(conversation, [9], 5)
    assert next(other) == by_prefix(session, [*text, 9], 1)[0]
    with pytest.raises(InputError, match=r"(?s)gone on elsewhere.*fork"):
        next(stream)


def test_streams_of_one_conversation() -> None:
    """A stream goes on from the place where the conversation stood when it was asked for, or says why not."""
    conversation = decoder().conversation()
    streams = [mz.generate(conversation, prompt, 5) for prompt in PROMPTS[:2]]
    next(streams[0])
    with pytest.raises(InputError, match=r"(?s)gone on elsewhere.*fork"):
        next(streams[1])
    stream = mz.generate(conversation, PROMPTS[2], 5)
    conversation.reset()
    with pytest.raises(InputError, match=r"(?s)gone on elsewhere.*fork"):
        next(stream)


def test_further_inputs() -> None:
    """What the model takes beside the tokens is fed at each step."""
    g = GraphBuilder("biased")
    bias = g.input("bias", f32(5))
    ids = g.input("input_ids", Tensor(DType.INT64, ("b", "s")))
    x = g.Unsqueeze(g.Cast(ids, to=DType.FLOAT.onnx), g.const([2]))
    g.add(Node("Concat", (g.input("past_0", f32("b", "p", 1)), x), ("present_0",), {"axis": 1}))
    g.add(Node("Add", (g.Mul(x, g.const(np.float32(0))), bias), ("logits",)))
    session = CachedSession(g.graph(["logits", "present_0", g.Neg(x)]))
    assert tokens(session, [1], 4, feeds={"bias": np.eye(5, dtype=np.float32)[3]}) == [3, 3, 3, 3]
    with pytest.raises(InputError, match="input 'bias'"):
        next(mz.generate(session, [1], 4))


# -- beside transformers -----------------------------------------------------------------------------------------------


# Small ones, of two layers with two heads in their caches, of 16 each: positions that are learned, and rotary ones with
# four heads of queries.
ARCHITECTURES: dict[str, dict[str, int]] = {
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64},
    "llama": {
        "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64,
    },
}  # fmt: skip


def exported(architecture: str, path: Path) -> Any:
    """A model of transformers, exported with its caches and positions as Optimum does; returns it."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.cache_utils import DynamicCache

    config = AutoConfig.for_model(
        architecture, vocab_size=120, bos_token_id=119, eos_token_id=119, **ARCHITECTURES[architecture]
    )
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()

    class WithCaches(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, ids: Any, mask: Any, positions: Any, *past: Any) -> tuple[Any, ...]:
            cache = DynamicCache()
            for layer in range(2):
                cache.update(past[2 * layer], past[2 * layer + 1], layer)
            answer = self.model(
                input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache, use_cache=True
            )
            return (answer.logits, *(part for layer in cache.layers for part in (layer.keys, layer.values)))

    caches = [f"{layer}.{part}" for layer in range(2) for part in ("key", "value")]
    takes = ["input_ids", "attention_mask", "position_ids", *(f"past_key_values.{name}" for name in caches)]
    returns = ["logits", *(f"present.{name}" for name in caches)]
    axes = {name: {0: "batch", 1: "sequence"} for name in ("input_ids", "position_ids", "logits")}
    axes |= {"attention_mask": {0: "batch", 1: "total"}}
    axes |= {f"past_key_values.{name}": {0: "batch", 2: "past"} for name in caches}
    axes |= {f"present.{name}": {0: "batch", 2: "total"} for name in caches}
    ids, past = torch.randint(0, 100, (2, 3)), [torch.randn(2, 2, 8, 16) for _ in caches]
    arguments = (ids, torch.ones(2, 11, dtype=torch.long), torch.arange(8, 11).repeat(2, 1), *past)
    torch.onnx.export(
        WithCaches().eval(), arguments, path, input_names=takes, output_names=returns, dynamic_axes=axes, dynamo=False
    )
    return model


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_is_that_of_transformers(tmp_path: Path, architecture: str) -> None:
    torch = peer("torch")
    pytest.importorskip("transformers", reason="transformers is not installed: pip install --group exports")
    model = exported(architecture, tmp_path / "decoder.onnx")
    session = mz.load(tmp_path / "decoder.onnx", cache="auto", capacity=64)
    settings = {"max_new_tokens": 20, "do_sample": False, "pad_token_id": 118}
    for prompt in PROMPTS:
        theirs = model.generate(torch.tensor([prompt]), **settings)[0, len(prompt) :].tolist()
        assert tokens(session, prompt, 20, stop=119) == theirs
    padded = torch.tensor([[118] * (6 - len(prompt)) + prompt for prompt in PROMPTS])
    theirs = model.generate(padded, attention_mask=(padded != 118).long(), **settings)[:, 6:].tolist()
    assert np.array(tokens(session, PROMPTS, 20, stop=119, pad_token_id=118)).T.tolist() == theirs

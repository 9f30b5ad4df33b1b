"""`mz.generate`: tokens of a language model as they come."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import monotonic
from typing import Any

import numpy as np

from ..ops import Tensor
from ..ops.errors import BudgetError, InputError
from ..ops.types import Array
from ..runtime.compile.program import Port
from ..runtime.execution.cached_session import CachedSession
from ..runtime.execution.conversation import MASK, Conversation, Unread
from ..runtime.execution.session import Session
from .sampling import Sampler

Ids = Sequence[int] | Sequence[Sequence[int]] | Array


def generate(
    session: Session | Conversation,
    ids: Ids,
    max_new_tokens: int | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop: int | Iterable[int | Sequence[int]] = (),
    seed: int = 0,
    *,
    attention_mask: Any = None,
    pad_token_id: int = 0,
    feeds: Mapping[str, Any] | None = None,
    deadline: float | None = None,
) -> Iterator[Any]:
    """Yield the tokens that a model writes behind a prompt: an int each for one text, int64 (batch,) for several.

    `session` is one loaded with `cache=`, or a conversation of it, which goes on. `ids` is a prompt, or several; those
    of different lengths are padded on the left with `pad_token_id`, for which the model must take attention_mask and
    position_ids. Prompts that are padded already, (batch, length), come with their `attention_mask`. The prompt is run
    at once, and then a token at a time. `feeds` are further inputs of the model, the same at each step.

    The most probable token is taken, or, with a `temperature`, one that is drawn: of the `top_k` most probable, of the
    smallest set of tokens whose probability is `top_p`. The same `seed` draws the same.

    `stop` has tokens and sequences of tokens that end a text; they are yielded too. It goes on as `pad_token_id`, which
    the others do not see, until all texts have ended, there are `max_new_tokens` of them, or, where that is None, the
    capacity is reached. `deadline` is how many seconds all may take from the first token on.

    Raises InputError for arguments that do not fit each other or the model, and BudgetError where the capacity is too
    small, before anything runs; from the iterator come the errors of `Conversation.run`, which leave the conversation
    as it was after the token before, and ExecutionError for logits that are NaN, whose tokens it has read then.
    """
    rows, mask = _prompts(ids, attention_mask, pad_token_id)
    conversation, stops = _conversation(session, len(rows)), _sequences(stop)
    model, padded = conversation.session, not mask.all()
    counted = (padded and attention_mask is None) or (conversation is session and len(rows) > 1 and stops)
    if (padded and not model.masked) or (counted and not (model.masked and model.positioned)):
        raise _refused(
            "the model does not take attention_mask and position_ids, so that it would count padding as tokens",
            "give prompts of one length, and a new conversation where texts may stop, or one text at a time; a model "
            "of relative positions may take padded ids with their attention_mask=",
        )
    place = _place(conversation)
    before = place[1]
    if before is not None:
        rows, mask = np.concatenate((before.ids, rows), 1), np.concatenate((before.mask, mask), 1)
    if not rows.shape[1]:
        raise _refused("the prompt is empty", "give at least one token")
    count = _count(conversation, rows.shape[1], max_new_tokens)
    sampler = Sampler(len(rows), temperature, top_k, top_p, seed)
    prompt, names = Unread(rows, mask), (_token_input(model), _logits(model))
    return _stream(conversation, place, *names, prompt, count, sampler, stops, pad_token_id, feeds or {}, deadline)


def _place(conversation: Conversation) -> tuple[int, Unread | None]:
    """The place where a conversation stands; it is another one when somebody else has gone on with it."""
    return conversation.length, conversation.unread


def _stream(
    conversation: Conversation,
    place: tuple[int, Unread | None],
    ids: Port,
    logits: str,
    unread: Unread,
    count: int,
    sampler: Sampler,
    stops: Sequence[tuple[int, ...]],
    pad: int,
    feeds: Mapping[str, Any],
    deadline: float | None,
) -> Iterator[Any]:
    """Run what is unread, draw a token for each row, yield them, and go on with them."""
    assert isinstance(ids.type, Tensor)
    kind = ids.type.dtype.numpy
    until = None if deadline is None else monotonic() + deadline
    ended = np.zeros(conversation.batch, np.bool_)
    tails = [deque[int](maxlen=max(map(len, stops), default=1)) for _ in ended]
    for _ in range(count):
        if _place(conversation) != place:
            raise _refused("the conversation has gone on elsewhere meanwhile", "fork() it before")
        fed = {**feeds, ids.name: unread.ids.astype(kind, copy=False)}
        if conversation.session.masked and not unread.mask.all():
            fed[MASK] = unread.mask
        left = None if until is None else max(until - monotonic(), 0.0)
        scores = conversation.run(fed, (logits,), deadline=left)[logits]
        tokens = sampler((scores if scores.ndim == 2 else scores[:, -1]).astype(np.float32, copy=False))
        tokens[ended] = pad
        conversation.unread = unread = Unread(tokens[:, None], ~ended[:, None])
        place = _place(conversation)
        for row, token in enumerate(tokens.tolist()):
            tails[row].append(token)
            ended[row] |= any(tuple(tails[row])[-len(end) :] == end for end in stops)
        yield int(tokens[0]) if len(tokens) == 1 else tokens.copy()
        if ended.all():
            return


def _refused(message: str, hint: str) -> InputError:
    return InputError(message, where="generate", hint=hint)


def _prompts(ids: Ids, mask: Any, pad: int) -> tuple[Array, Array]:
    """Prompts (batch, longest) in int64, padded on the left, and their mask in booleans."""
    texts = [np.asarray(text) for text in (ids if any(np.ndim(text) for text in ids) else [ids])]
    for text in texts:
        if text.ndim != 1 or (text.size and text.dtype.kind not in "iu"):
            raise _refused(
                f"a prompt of {text.dtype}{[*text.shape]}", "give the ids of its tokens: a list of integers, or several"
            )
    sizes = [len(text) for text in texts]
    if max(sizes) and not min(sizes):
        raise _refused(f"prompt {sizes.index(0)} is empty", "give each text at least one token")
    rows, seen = np.full((len(texts), max(sizes)), pad, np.int64), np.zeros((len(texts), max(sizes)), np.bool_)
    for row, text in enumerate(texts):
        rows[row, max(sizes) - len(text) :], seen[row, max(sizes) - len(text) :] = text, True
    if mask is not None:
        mask = np.asarray(mask) != 0
        if not seen.all() or mask.shape != rows.shape or not mask[:, -1:].all():
            raise _refused(
                f"an attention_mask of {mask.shape} for prompts of {sizes} tokens",
                "give one of the sizes of ids (batch, length), which are padded on the left",
            )
        seen = mask
    return rows, seen


def _conversation(session: Session | Conversation, batch: int) -> Conversation:
    """The conversation of so many texts that goes on, or a new one."""
    if isinstance(session, Conversation):
        if session.batch != batch:
            raise _refused(f"{batch} prompts for a conversation of {session.batch}", "give as many prompts as texts")
        return session
    if isinstance(session, CachedSession):
        return session.conversation(batch)
    raise _refused("the session has no caches", 'load the model with mz.load(model, cache="auto")')


def _count(conversation: Conversation, new: int, most: int | None) -> int:
    """The number of tokens to draw at the most; the last is not run, and takes no room."""
    capacity = conversation.session.capacity
    if most is None and capacity is None:
        raise _refused("no end is given", "give max_new_tokens=, or load the model with capacity=")
    if most is not None and (not hasattr(most, "__index__") or most < 1):
        raise _refused(f"max_new_tokens={most}", "give at least 1")
    if capacity is None:
        assert most is not None
        return most
    room = capacity - conversation.length - new + 1
    if room < (most or 1):
        raise BudgetError(
            f"{new} tokens behind {conversation.length}, and {most or 1} more, pass the capacity of {capacity}",
            where="generate",
            hint="ask for fewer, truncate or reset the conversation, or load with a larger capacity",
        )
    return most or room


def _sequences(stop: int | Iterable[int | Sequence[int]]) -> tuple[tuple[int, ...], ...]:
    """The sequences of tokens that end a text."""
    ends = [np.asarray(end) for end in (stop if isinstance(stop, Iterable) else (stop,))]
    for end in ends:
        if end.ndim > 1 or not end.size or end.dtype.kind not in "iu":
            raise _refused(f"stop={stop!r}", "give ids of tokens, or sequences of them")
    return tuple(tuple(end.ravel().tolist()) for end in ends)


def _token_input(model: CachedSession) -> Port:
    """The input that takes ids of tokens."""
    for port in model.inputs:
        if port.name in model.token_inputs and isinstance(port.type, Tensor) and port.type.dtype.integer:
            return port
    raise _refused(f"no input of {model} takes ids of tokens", "run it with a conversation: `conversation.run(feeds)`")


def _logits(model: CachedSession) -> str:
    """The name of the output that scores tokens."""
    if "logits" in model.answers or len(model.answers) == 1:
        return "logits" if "logits" in model.answers else model.answers[0]
    raise _refused(f"none of the outputs {', '.join(model.answers)} is called logits", "rename it")

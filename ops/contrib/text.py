"""The Tokenizer of the domain com.microsoft, as skl2onnx writes it before TfIdfVectorizer.

https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.Tokenizer
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..core.rules import has_rank
from ..errors import ShapeError
from ..op import Context, Sample, op
from ..tensor.regex import compiled
from ..tensor.strings import text
from ..types import Array, Dim, DType, Tensor

START, END = "\x02", "\x03"
LINES = np.array(["Hello World", "I love computer science !", ""], object)
COMMON = {"mark": 0, "mincharnum": 1, "pad_value": "#"}


def _spans(pattern: str, text: str, check: Callable[[], None]) -> Iterator[tuple[int, int]]:
    """The places of a text where a pattern of RE2 is found."""
    automaton = compiled(pattern)
    if automaton.simple is None:
        return automaton.found(text, check)
    return (match.span() for match in automaton.simple.finditer(text))


def _tokens(text: str, separators: Sequence[str], tokenexp: str, check: Callable[[], None]) -> Iterator[str]:
    """The pieces of one string."""
    check()
    if tokenexp == "." or list(separators) == [""]:
        yield from text
    elif tokenexp:
        yield from (text[start:end] for start, end in _spans(tokenexp, text, check))
    else:
        pieces = [text]
        for separator in separators:
            pieces = [piece for whole in pieces for piece in _between(separator, whole, check)]
        yield from pieces


def _between(separator: str, text: str, check: Callable[[], None]) -> Iterator[str]:
    """Yield the text between the matches."""
    last = 0
    for start, end in _spans(separator, text, check):
        yield text[last:start]
        last = end
    yield text[last:]


@op(
    "Tokenizer",
    domain="com.microsoft",
    since=1,
    samples=[
        Sample([LINES], {**COMMON, "separators": [" "]}),
        Sample([LINES[:2].reshape(2, 1)], {**COMMON, "separators": [" ", "o"], "mincharnum": 2}),
        Sample([LINES], {**COMMON, "separators": [""]}),
        Sample([LINES], {**COMMON, "tokenexp": "[a-zA-Z0-9_]+", "mark": 1, "pad_value": ""}),
        Sample([LINES[:2].reshape(1, 2)], {**COMMON, "tokenexp": "[a-z]+", "mincharnum": 3}),
        Sample([LINES], {**COMMON, "tokenexp": ".", "mark": 1}),
        Sample([text("ab abc", "a\u00e9b 9_")], {**COMMON, "tokenexp": r"a|ab|\b\w+"}),  # the longest match
        Sample([text("xaby", "aab")], {**COMMON, "separators": ["a|ab"]}),
        Sample([LINES[2:]], {**COMMON, "separators": [" "]}),
        Sample([LINES[2:]], {**COMMON, "separators": [" "], "mark": 1}),
        *(Sample([np.empty(dims, object)], {**COMMON, "separators": [" "]}) for dims in ((0,), (0, 3), (3, 0))),
    ],
)
def tokenizer(
    k: Context,
    X: Array,
    *,
    mark: int,
    mincharnum: int,
    pad_value: str,
    separators: Sequence[str] | None = None,
    tokenexp: str = "",
) -> Array:
    tokenized = []
    for whole in X.reshape(-1):
        tokens = [t for t in _tokens(str(whole), separators or (), tokenexp, k.check) if len(t) >= mincharnum]
        tokenized.append(tokens)
    if mark and any(tokenized):  # where no text has tokens, ONNX Runtime marks nothing
        tokenized = [[START, *tokens, END] for tokens in tokenized]
    width = max(map(len, tokenized), default=0)
    padded = np.full((len(tokenized), width), pad_value, object)
    for row, tokens in enumerate(tokenized):
        padded[row, : len(tokens)] = tokens
    return padded.reshape(*X.shape, width) if tokenized else np.empty(_without_texts(X.shape), object)


def _without_texts(dims: Sequence[Dim]) -> tuple[Dim, ...]:
    """The dims where there are no texts, as ONNX Runtime has them: none for the tokens, and a list stays a list."""
    return (dims[0], 0) if len(dims) == 2 else (0,)


@tokenizer.infer
def _(X: Tensor, *, mincharnum: int, separators: Sequence[str] | None = None, tokenexp: str = "") -> Tensor:
    if bool(separators) == bool(tokenexp):
        raise ShapeError("Tokenizer takes either separators or tokenexp", hint="correct the attributes")
    if mincharnum < 1:
        raise ShapeError(f"mincharnum {mincharnum} should be at least 1")
    has_rank(X, 1, 2)
    if X.elements is None:  # where a dim may be 0 the rank is not known either
        return Tensor(DType.STRING, None)
    if not X.elements:
        return Tensor(DType.STRING, _without_texts(X.shape))
    return Tensor(DType.STRING, (*X.shape, None))

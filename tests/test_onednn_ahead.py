"""Primitives of a stored program are made in a thread while it is confirmed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.ops.types import f32
from mezzo.runtime.backends import processor
from mezzo.runtime.backends.onednn import ahead, api
from mezzo.runtime.backends.onednn.library import library
from mezzo.runtime.execution.session import Session
from mezzo.runtime.file import Opened, encode
from mezzo.runtime.ir.graph import GraphBuilder


@pytest.mark.skipif(library() is None, reason="oneDNN is not installed")
def test_a_thread_makes_what_is_confirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    g = GraphBuilder()
    weights = g.const(np.ones((24, 40), np.float32))
    session = Session(g.graph([g.Relu(g.MatMul(g.input("x", f32(3, 24)), weights))]))
    x = np.arange(72, dtype=np.float32).reshape(3, 24)
    expected = session(x)
    opened = Opened(b"".join(encode(session.graph, session.variants())))
    makers: list[str] = []
    create = api.create

    def watched(name: str, *arguments: Any) -> int:
        if name == "primitive_create":
            makers.append(threading.current_thread().name)
        return create(name, *arguments)

    @contextmanager
    def awaited() -> Iterator[None]:
        """Let the thread finish before the program is bound, which else makes what the thread has not begun."""
        with ahead.made_ahead():
            yield
        ahead._last.join()

    monkeypatch.setattr(api, "create", watched)
    monkeypatch.setattr(processor, "made_ahead", awaited)
    mz.caches().clear()  # the descriptors of the first session have their primitives already
    again = Session(opened)
    assert np.array_equal(again(x), expected)
    assert again.bound_from == "variant"
    assert set(makers) == {"mezzo-primitives"}
    makers.clear()
    mz.caches().clear()
    Session(session.graph)(x + 1)
    assert set(makers) == {threading.current_thread().name}, "a program that is planned knows late what it will take"

"""Primitives of a stored program are made in a thread while it is confirmed."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from mezzo.ops.types import f32
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

    monkeypatch.setattr(api, "create", watched)
    again = Session(opened)
    assert np.array_equal(again(x), expected)
    assert again.bound_from == "variant"
    ahead._last.join()
    assert sorted(set(makers)) == sorted({"mezzo-primitives", threading.current_thread().name})
    makers.clear()
    Session(session.graph)(x + 1)
    assert "mezzo-primitives" not in makers, "a program that is planned knows late what it will take"

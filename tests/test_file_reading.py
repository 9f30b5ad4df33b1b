"""What of a `.mezzo` file is read when: the signature at once, a program and the graph when they are needed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mezzo.ops.errors import ModelError
from mezzo.ops.types import f32
from mezzo.runtime.file import Opened, encode
from mezzo.runtime.graph import GraphBuilder, State
from mezzo.runtime.session import Session

from .test_file import from_file, same


def fixed() -> Session:
    """A model whose input sizes are all known."""
    g = GraphBuilder("fixed")
    return Session(g.graph([g.Neg(g.Exp(g.input("x", f32(4))))]))


def test_the_graph_is_read_when_it_is_asked_for() -> None:
    first, x = fixed(), np.ones(4, np.float32)
    broken = first.graph.but(nodes=first.graph.nodes[::-1])  # a value is read before it is made
    session = Session(Opened(b"".join(encode(broken, first.variants()))))
    assert same(session(x), first(x))
    assert session.bound_from == "variant"
    for ask in ("graph", "outputs"):
        with pytest.raises(ModelError, match="read before it is made"):
            getattr(session, ask)
    with pytest.raises(ModelError, match="read before it is made"):
        Session(Opened(b"".join(encode(broken))))


def test_a_program_that_lies_ready_is_read_when_it_is_needed() -> None:
    first, x = fixed(), np.ones(4, np.float32)
    (ready,) = first.variants()
    other = (dataclasses.replace(ready[0], isa="sparc"), ready[1])
    for variants, planned in (([ready], 0), ([other], 1), ([], 1)):  # what must be planned is planned at once
        session = Session(Opened(b"".join(encode(first.graph, variants))))
        assert session.stats().planned == planned
        assert same(session(x), first(x))
        assert session.stats().planned == 1
    again = from_file(from_file(first))
    assert again.bound_from == "variant"


def test_files_whose_inputs_contradict_one_another() -> None:
    graph = fixed().graph
    for broken in (graph.but(inputs=("x", "x")), graph.but(types={}), graph.but(states=(State("s", "x", "x"),))):
        with pytest.raises(ModelError, match="no type or no first value"):
            Opened(b"".join(encode(broken)))

"""What of a `.mezzo` file is read when: the signature at once, a program and the graph when they are needed."""

from __future__ import annotations

import dataclasses
import tomllib

import numpy as np
import pytest

from mezzo.ops.errors import ModelError
from mezzo.ops.types import f32
from mezzo.runtime.compile.specialize import compile_graph, specialise
from mezzo.runtime.devices import options_for
from mezzo.runtime.execution.session import Session
from mezzo.runtime.file import Opened, encode, key_here, variants
from mezzo.runtime.ir.graph import GraphBuilder, State
from mezzo.runtime.version import __version__

from .test_file import ROOT, from_file, same


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
    for stored, planned in (([ready], 0), ([other], 1), ([], 1)):  # what must be planned is planned at once
        session = Session(Opened(b"".join(encode(first.graph, stored))))
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


def test_programs_that_need_more_than_a_file_are_not_stored() -> None:
    graph = fixed().graph
    kept = graph.nodes[0].outputs[0]
    for options, said in (
        (options_for("cpu", extern={kept: "outside"}), "needs the buffers outside from outside"),
        (options_for("cpu", parallel=True), "has a parallel plan"),
    ):
        bound = specialise(compile_graph(graph, options=options), graph.signature.inputs)
        key = key_here(options, graph.outputs, graph.signature.inputs)
        assert key != key_here(options_for("cpu"), graph.outputs, graph.signature.inputs)
        with pytest.raises(ModelError, match=said):
            list(encode(graph, [(key, bound)]))


def test_a_program_of_another_version_is_bound_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first, x = fixed(), np.ones(4, np.float32)
    with monkeypatch.context() as older:
        older.setattr(variants, "__version__", "0.0.9")
        data = b"".join(encode(first.graph, first.variants()))
    session = Session(Opened(data))
    assert same(session(x), first(x))
    assert session.bound_from.startswith("graph (kernels 'mezzo 0.0.9, numpy")


def test_the_version_is_that_of_the_package() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]["version"] == __version__

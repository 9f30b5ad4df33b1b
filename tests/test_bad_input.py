"""Bad files end in errors of ours that say where, what, and what to do; never in anything else, never in a crash."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.helper
import onnx.numpy_helper
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mezzo.importers import load_onnx
from mezzo.importers.kinds import KINDS
from mezzo.ops import OPS
from mezzo.ops.budget import Budget
from mezzo.ops.errors import BudgetError, MezzoError, ModelError, PlanError, UnsupportedModel
from mezzo.runtime.execution.session import Session

from .models import BOOL, FLOAT, INT64, model, node, subgraph, value


@contextmanager
def refused(kind: type[MezzoError], *words: str) -> Iterator[None]:
    """The block raises this error, complete, and its text has all of these words."""
    with pytest.raises(kind) as caught:
        yield
    error = caught.value
    assert error.where
    assert error.message
    assert error.hint
    for word in words:
        assert word in str(error)


def relu() -> onnx.ModelProto:
    return model([node("Relu", "x", "y")], [value("x", 2)], [value("y", 2)])


def whole() -> bytes:
    """A model with a bit of everything: weights, a subgraph, a function."""
    branch = subgraph([node("Neg", "h", "r")], [], [value("r", None)])
    made = onnx.helper.make_function(
        "own", "F", ["a"], ["b"], [node("Relu", "a", "b")], [onnx.helper.make_opsetid("", 17)]
    )
    nodes = [
        node("Add", "x w", "g"),
        node("F", "g", "h", domain="own"),
        node("If", "c", "y", then_branch=branch, else_branch=branch),
    ]
    inputs = [value("x", 2), value("c", kind=BOOL)]
    weights: dict[str, Any] = {"w": np.arange(2, dtype=np.float32)}
    proto = model(nodes, inputs, [value("y", 2)], initializers=weights, domains={"own": 1}, functions=[made])
    return bytes(proto.SerializeToString())


WHOLE = whole()


# Files that are none


def test_files_that_are_no_models(tmp_path: Path) -> None:
    with refused(ModelError, "no such file"):
        load_onnx(tmp_path / "absent.onnx")
    (tmp_path / "other.onnx").write_bytes(b"")
    with refused(ModelError, "no such file", "other.onnx"):
        load_onnx(tmp_path / "absent.onnx")
    with refused(ModelError, "is a directory", "other.onnx"):
        load_onnx(tmp_path)
    with refused(ModelError, "is empty"):
        load_onnx(tmp_path / "other.onnx")
    with refused(ModelError, "is empty"):
        load_onnx(b"")
    with refused(ModelError, "cannot be read"):
        load_onnx("nul\0character")
    with refused(ModelError, "int is no source of a model"):
        load_onnx(7)  # type: ignore[arg-type]
    with refused(ModelError, "no ONNX model"):
        load_onnx(onnx.numpy_helper.from_array(np.ones(3), "a tensor").SerializeToString())
    with refused(ModelError, "holds no ONNX graph"):
        load_onnx(onnx.ModelProto(ir_version=8).SerializeToString())
    np.savez(tmp_path / "weights.npz", np.ones(3))
    with refused(ModelError, "no ONNX model, but a zip archive", "torch.onnx.export"):
        load_onnx(tmp_path / "weights.npz")
    for kind in KINDS:
        with refused(ModelError, f"no ONNX model, but {kind.name}"):
            load_onnx(b"\x1c\0\0\0\0\0\0\0"[: kind.offset] + kind.begins + b"\0" * 100)
    os.mkfifo(tmp_path / "pipe")
    with refused(ModelError, "not a regular file"):
        load_onnx(tmp_path / "pipe")


def test_a_file_above_the_budget_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "m.onnx").open("wb") as file:
        file.truncate(1 << 40)
    with refused(BudgetError, "1099511627776 is more than", "Budget(file_bytes=1099511627776)"):
        load_onnx(tmp_path / "m.onnx")
    with refused(BudgetError, "file_bytes"):
        load_onnx(WHOLE, budget=Budget(file_bytes=10))


@given(st.integers(0, len(WHOLE) - 1))
def test_truncated_files(length: int) -> None:
    with refused(MezzoError):
        load_onnx(WHOLE[:length])


@given(st.binary(min_size=1, max_size=200))
@example(b"\x08\x08")
@example(b"\x3a\x00")
@example(b"\x08\x08\x3a\x00")
def test_random_bytes(data: bytes) -> None:
    with refused(MezzoError):
        load_onnx(data)


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_damaged_files(changes: list[tuple[int, int]]) -> None:
    """Some changes are harmless; the others are told in our words."""
    data = bytearray(WHOLE)
    for at, byte in changes:
        data[at] = byte
    told: MezzoError | None = None
    try:
        load_onnx(bytes(data))
    except MezzoError as error:
        told = error
    assert told is None or (told.where and told.hint and not isinstance(told, PlanError))


# Weights


def stored(*tensors: onnx.TensorProto) -> onnx.ModelProto:
    proto = model([node("Identity", "w", "y")], [], [value("y", None)])
    proto.graph.initializer.extend(tensors)
    return proto


def outside(location: str, dims: list[int], **entries: int) -> onnx.TensorProto:
    made = onnx.TensorProto(name="w", data_type=FLOAT, dims=dims, data_location=onnx.TensorProto.EXTERNAL)
    for key, entry in {"location": location, **entries}.items():
        made.external_data.add(key=key, value=str(entry))
    return made


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Write a model with one external tensor into a folder of its own."""

    def write(*tensors: onnx.TensorProto) -> Path:
        path = tmp_path / "models" / "m.onnx"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(stored(*tensors).SerializeToString())
        return path

    (tmp_path / "models").mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(8))
    (tmp_path / "models" / "w.bin").write_bytes(bytes(8))
    return write


def test_missing_external_data_are_all_listed(save: Callable[..., Path]) -> None:
    second = outside("b.bin", [2])
    second.name = "v"
    with refused(ModelError, "'a.bin' (for 1 tensors, 'w' first)", "'b.bin'", "beside the model"):
        load_onnx(save(outside("a.bin", [2]), second))


def test_external_data_stay_inside_the_folder(save: Callable[..., Path], tmp_path: Path) -> None:
    folder = tmp_path / "models"
    load_onnx(save(outside("w.bin", [2])))
    for location in ("../secret.bin", "sub/../../secret.bin", "..\\secret.bin", str(tmp_path / "secret.bin")):
        with refused(ModelError, "tensor 'w'", "outside of the model's folder"):
            load_onnx(save(outside(location, [2])))
    (folder / "link.bin").symlink_to(tmp_path / "secret.bin")
    with refused(ModelError, "tensor 'w'", "link.bin", "outside of the model's folder"):
        load_onnx(save(outside("link.bin", [2])))
    (folder / "sub").symlink_to(tmp_path)
    with refused(ModelError, "tensor 'w'", "outside of the model's folder"):
        load_onnx(save(outside("sub/secret.bin", [2])))
    (folder / "hard.bin").hardlink_to(tmp_path / "secret.bin")
    with refused(ModelError, "tensor 'w'", "other hard links"):
        load_onnx(save(outside("hard.bin", [2])))
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / "pipe.bin")  # to open it waits for a writer
    for location in ("pipe.bin", "sub2") if hasattr(os, "mkfifo") else ("sub2",):
        (folder / "sub2").mkdir(exist_ok=True)
        with refused(ModelError, "tensor 'w'", "not a regular file"):
            load_onnx(save(outside(location, [2])))
    for location in ("", ".", "w.bin/", "x\0y"):
        with refused(ModelError):
            load_onnx(save(outside(location, [2])))


def test_external_data_are_as_long_as_they_should(save: Callable[..., Path], tmp_path: Path) -> None:
    with refused(ModelError, "tensor 'w'", "bytes 4 to 12", "which has 8"):
        load_onnx(save(outside("w.bin", [2], offset=4)))
    with refused(ModelError, "bytes 1099511627776 to"):
        load_onnx(save(outside("w.bin", [2], offset=1 << 40)))
    with refused(ModelError, "tensor 'w'"):
        load_onnx(save(outside("w.bin", [2], offset=-4)))
    with refused(ModelError, "need 8 bytes, here are 4"):
        load_onnx(save(outside("w.bin", [2], length=4)))
    (tmp_path / "models" / "w.bin").write_bytes(b"")
    with refused(ModelError, "which has 0"):
        load_onnx(save(outside("w.bin", [2])))


def test_external_data_without_a_file() -> None:
    with refused(ModelError, "not given as a path"):
        load_onnx(stored(outside("w.bin", [2])))


def test_huge_dims_without_data_take_no_memory() -> None:
    huge = onnx.TensorProto(name="w", data_type=FLOAT, dims=[1 << 20, 1 << 20])
    with refused(BudgetError, "tensor 'w'", "1099511627776 is more than", "tensor_elements=1099511627776"):
        load_onnx(stored(huge))
    with refused(ModelError, "need 1099511627776 entries, here are 0"):
        load_onnx(stored(huge), budget=Budget(tensor_elements=1 << 41))
    sparse = onnx.helper.make_sparse_tensor(
        onnx.numpy_helper.from_array(np.ones(1, np.float32), "w"), onnx.numpy_helper.from_array(np.zeros(1, np.int64)),
        [1 << 20, 1 << 20])  # fmt: skip
    proto = stored()
    proto.graph.sparse_initializer.append(sparse)
    with refused(BudgetError, "sparse tensor"):
        load_onnx(proto)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dims": [3]}, "12 bytes required"),
        ({"dims": [-1, -2]}, "are negative"),
        ({"data_type": 99}, "element type 99 is unknown"),
        ({"data_type": 0}, "element type 0 is unknown"),
        ({"data_type": 8}, "tensor"),
    ],
    ids=str,
)
def test_tensors_that_contradict_themselves(change: dict[str, Any], words: str) -> None:
    tensor = onnx.numpy_helper.from_array(np.ones(2, np.float32), "w")
    for key, entry in change.items():
        if key == "dims":
            tensor.dims[:] = entry
        else:
            setattr(tensor, key, entry)
    with refused(ModelError, words):
        load_onnx(stored(tensor))


# Graphs


def test_shapes_of_shapes_that_no_tensor_has() -> None:
    sizes = onnx.helper.make_tensor_value_info("s", onnx.TensorProto.INT64, [1 << 31])
    proto = model([node("AffineGrid", "t s", "y")], [value("t", 2, 2, 3), sizes], [value("y", None)], opset=20)
    with refused(MezzoError, "2147483648 sizes"):
        Session(load_onnx(proto))


def test_cycles_are_named() -> None:
    nodes = [node("Add", "x b", "a", name="first"), node("Neg", "a", "b", name="second"), node("Neg", "b", "y")]
    with refused(ModelError, "in a circle", "'first'", "'second'"):
        load_onnx(model(nodes, [value("x", 2)], [value("y", 2)]))
    with refused(ModelError, "in a circle"):
        load_onnx(model([node("Add", "x y", "y")], [value("x", 2)], [value("y", 2)]))


def test_a_cycle_through_a_subgraph() -> None:
    body = subgraph([node("Neg", "y", "r")], [], [value("r", None)])
    with refused(ModelError, "in a circle", "'loop'"):
        load_onnx(model([node("If", "c", "y", name="loop", then_branch=body, else_branch=body)],
                        [value("c", kind=BOOL)], [value("y", None)]))  # fmt: skip


def test_names_defined_twice_or_never() -> None:
    nodes = [node("Neg", "x", "y"), node("Relu", "nobody", "y")]
    with refused(ModelError, "defines 'y' a second time", "reads 'nobody', which nothing defines", "2 problems"):
        load_onnx(model(nodes, [value("x", 2)], [value("y", 2)]))
    with refused(ModelError, "nothing defines the outputs 'z'"):
        load_onnx(model([node("Neg", "x", "y")], [value("x", 2)], [value("z", 2)]))
    with refused(ModelError, "the input 'x' is declared twice"):
        load_onnx(model([node("Neg", "x", "y")], [value("x", 2), value("x", 2)], [value("y", 2)]))
    tensor = onnx.numpy_helper.from_array(np.ones(2, np.float32), "w")
    with refused(ModelError, "the initialiser 'w' is declared twice"):
        load_onnx(stored(tensor, tensor))


def test_what_the_checker_says_is_told_with_the_file() -> None:
    with refused(ModelError, "made: the model breaks a rule of ONNX", "Relu"):
        load_onnx(model([node("Relu", "x", "y", surprise=1)], [value("x", 2)], [value("y", 2)]))


# What is not carried


def test_unknown_operators_are_told_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(OPS, ("ai.onnx.preview.training", "Gradient"))  # as if it were one of a later opset
    body = subgraph([node("Relo", "x", "r")], [], [value("r", None)])
    nodes = [
        node("Relo", "x", "a", name="typo"),
        node("Relo", "a", "b"),
        node("GroupNorm", "b b", "d", domain="org.pytorch.aten"),
        node("FusedMatMull", "d d", "e", domain="com.microsoft"),
        node("If", "c", "y", then_branch=body, else_branch=body),
        node("Gradient", "e", "g", domain="ai.onnx.preview.training"),
    ]
    domains = {"com.microsoft": 1, "org.pytorch.aten": 1, "ai.onnx.preview.training": 1}
    proto = model(nodes, [value("x", 2), value("c", kind=BOOL)], [value("y", None)], domains=domains)
    with refused(
        UnsupportedModel,
        "4 problems",
        "ai.onnx::Relo of opset 17 is not carried (4 times, first at node 0 'typo' (Relo))",
        "Relo may mean Relu",
        "org.pytorch.aten::GroupNorm of opset 1 is not carried (1 times",
        "operators of the domain org.pytorch.aten are not known",
        "FusedMatMull may mean FusedMatMul",
        "ai.onnx.preview.training::Gradient",
        "Gradient is an operator of ONNX that is not carried yet",
    ):
        load_onnx(proto)


def test_domains_without_an_opset() -> None:
    proto = relu()
    del proto.opset_import[:]
    with refused(ModelError, "imports no opset"):
        load_onnx(proto)


def test_newer_opsets_and_ir_versions() -> None:
    with refused(UnsupportedModel, "Relu of opset 99 is newer than opset", "export the model for opset"):
        load_onnx(model([node("Relu", "x", "y")], [value("x", 2)], [value("y", 2)], opset=99))
    proto = relu()
    proto.ir_version = 99
    with refused(UnsupportedModel, "IR version 99 is newer"):
        load_onnx(proto)


def test_old_nodes_whose_meaning_is_computed() -> None:
    old = model([node("Tile", "x n a", "y")], [value("x", 2), value("n"), value("a")], [value("y", None)],
                opset=5, ir=3)  # fmt: skip
    with refused(UnsupportedModel, "how often it repeats which of how many axes has to be known", "version_converter"):
        load_onnx(old)


# Depth


def nested(levels: int) -> onnx.ModelProto:
    body = subgraph([node("Relu", "x", "r")], [], [value("r", None)])
    for depth in range(levels - 1):
        inner = [node("If", "c", f"r{depth}", then_branch=body, else_branch=body)]
        body = subgraph(inner, [], [value(f"r{depth}", None)])
    top = node("If", "c", "y", then_branch=body, else_branch=body)
    return model([top], [value("c", kind=BOOL), value("x", 2)], [value("y", None)])


def test_nesting_beyond_the_budget() -> None:
    with refused(BudgetError, "levels of subgraphs", "3 is more than the limit of 2", "Budget(nesting=3)"):
        load_onnx(nested(3), budget=Budget(nesting=2))


def test_nesting_beyond_what_protobuf_reads() -> None:
    """Deeper than any parser goes; made as bytes, since no message of that depth can be written either."""

    def field(number: int, data: bytes) -> bytes:
        length, size = len(data), b""
        while length > 127:
            size, length = size + bytes([length & 127 | 128]), length >> 7
        return bytes([number << 3 | 2]) + size + bytes([length]) + data

    graph = b""
    for _ in range(1000):
        attribute = field(1, b"then_branch") + field(6, graph) + bytes([20 << 3 & 127 | 128, 1, 5])
        graph = field(1, field(1, b"c") + field(2, b"y") + field(4, b"If") + field(5, attribute))
    with refused(ModelError, "no ONNX model, or only a part of one"):
        load_onnx(b"\x08\x08" + field(7, graph))


def test_long_chains_of_functions() -> None:
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("own", 1)]
    functions = [
        onnx.helper.make_function("own", f"F{n}", ["a"], ["b"], [node(f"F{n + 1}", "a", "b", domain="own")], opsets)
        for n in range(3000)
    ]
    last = onnx.helper.make_function("own", "F3000", ["a"], ["b"], [node("Relu", "a", "b")], opsets)
    proto = model([node("F0", "x", "y", domain="own")], [value("x", 2)], [value("y", 2)], domains={"own": 1},
                  functions=[*functions, last])  # fmt: skip
    with refused(BudgetError, "levels of function calls", "65 is more than the limit of 64"):
        load_onnx(proto)


def test_outputs_without_a_type_are_what_the_nodes_make() -> None:
    proto = model([node("Relu", "x", "y"), node("Shape", "x", "z")], [value("x", 2, 3)], [])
    proto.graph.output.add(name="y")
    proto.graph.output.add(name="z").type.tensor_type.shape.dim.add().dim_value = 2
    session = Session(load_onnx(proto))
    assert [str(p) for p in session.outputs] == ["y: float32[2,3]", "z: int64[2]"]
    assert session.run({"x": np.ones((2, 3), np.float32)})["z"].tolist() == [2, 3]
    assert repr(session).endswith(": x -> y, z>")


def test_a_file_for_one_processor_is_told_what_to_do() -> None:
    proto = model([node("Conv", "x", "y")], [value("x", 1, 3, 8, 8)], [value("y", None)])
    proto.graph.node[0].domain = "com.microsoft.nchwc"
    proto.opset_import.add(domain="com.microsoft.nchwc", version=1)
    with refused(UnsupportedModel, "for one kind of processor", "ORT_ENABLE_EXTENDED"):
        load_onnx(proto)


def test_a_body_with_another_number_of_inputs() -> None:
    body = subgraph([node("Identity", "go", "on"), node("Neg", "v", "u")],
                    [value("i", kind=INT64), value("go", kind=BOOL), value("v", 2)],
                    [value("on", kind=BOOL), value("u", 2)])  # fmt: skip
    for inputs, count in (("m -", 2), ("m - x x", 4)):
        proto = model([node("Loop", inputs, "y", body=body)], [value("m", kind=INT64), value("x", 2)],
                      [value("y", None)])  # fmt: skip
        with refused(MezzoError, f"the body takes 3 values, and is given {count}"):
            Session(load_onnx(proto))

"""`.mezzo` files: what is read is what was written; a program of the file answers bit for bit like one bound anew."""

from __future__ import annotations

import dataclasses
import os
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mezzo as mz
from mezzo.exporters import save_onnx
from mezzo.models.digits import digits_model, held_out
from mezzo.ops import OPS, OPSETS, Body, DType, Map, MezzoError, Op, Optional, Tensor
from mezzo.ops import Sequence as ListType
from mezzo.ops.budget import Budget
from mezzo.ops.errors import BudgetError, ModelError, UnsupportedModel
from mezzo.ops.types import f32
from mezzo.runtime.execution.session import Session
from mezzo.runtime.file import Opened, VariantKey, encode, open_file, opsets, store
from mezzo.runtime.file.layout import FORMAT, TABLES
from mezzo.runtime.ir.graph import Graph, GraphBuilder, Node
from mezzo.tools.doctor import doctor_file

from .graphs import sample_graph
from .models import REAL, Real, real_models

ROOT = Path(__file__).parents[1]
DIGITS = digits_model()
OTHERS = {"onnx", "google", "flatbuffers", "ml_dtypes", "rich", "click", "PIL"}


def same(a: Any, b: Any) -> bool:
    """Whether two values are the same, bit for bit: graphs, arrays, and tuples and dicts of them."""
    if isinstance(a, np.ndarray):
        if a.dtype == object or b.dtype == object:
            return bool(a.shape == b.shape and a.tolist() == b.tolist())
        return bool(a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes())
    if isinstance(a, (Graph, Node)):
        return type(a) is type(b) and all(same(getattr(a, f), getattr(b, f)) for f in a.__dataclass_fields__)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(v, b[k]) for k, v in a.items())
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and (a == b or a != a)


def from_file(session: Session, *, portable: bool = False) -> Session:
    """The session after a way through a file in memory."""
    variants = [] if portable else list(session.variants())
    opened = Opened(b"".join(encode(session.graph, variants)))
    return Session(opened)


# Round trips


@pytest.mark.parametrize("record", OPS.values(), ids=lambda r: f"{r.domain}:{r.name}" if r.domain else r.name)
def test_samples(record: Op) -> None:
    for sample in record.samples:
        graph, feeds = sample_graph(record, sample)
        first = Session(graph)
        want = first.run(feeds)
        second, third = from_file(first), from_file(first, portable=True)
        assert same(second.graph, graph)
        for session, origin in ((second, "variant"), (third, "graph (the file holds no variant)")):
            assert same(session.run(feeds), want)
            assert session.bound_from == origin
        assert str(second.program) == str(first.program)
        assert second.program.types == first.program.types


@real_models
def test_real_models(real: Real, tmp_path: Path) -> None:
    path, feeds = real.path(), real.feeds()
    first = mz.load(path)
    want = first.run(feeds)
    first.save(tmp_path / "m.mezzo", source=path.name)
    second = mz.load(tmp_path / "m.mezzo")
    got = second.run(feeds)
    assert second.bound_from == "variant"
    assert same(got, want)
    first.save(tmp_path / "p.mezzo", portable=True)
    third = mz.load(tmp_path / "p.mezzo")
    assert same(third.run(feeds), want)
    assert third.bound_from == "graph (the file holds no variant)"
    assert same(second.graph, first.graph)


@pytest.mark.parametrize("name", ["silero_vad", "light_squeezenet"])
def test_the_export_is_the_same(name: str, tmp_path: Path) -> None:
    (real,) = (r for r in REAL if r.name == name)
    first = mz.load(real.path())
    first.save(tmp_path / "m.mezzo")
    for session, file in ((first, "a.onnx"), (mz.load(tmp_path / "m.mezzo"), "b.onnx")):
        save_onnx(session.graph, tmp_path / file)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def everything() -> Graph:
    """A graph with every kind of attribute, type, state and text."""
    g = GraphBuilder("everything")
    x = g.input("x", f32("n", None))
    g.input("again", f32(2))
    types = {
        "seq": ListType(Tensor(DType.INT64, None)),
        "opt": Optional(ListType(f32(1))),
        "map": Map(DType.STRING, f32()),
        "odd": Tensor(DType.BFLOAT16, ("?", "-1", 7, None)),
    }
    g.state("count", np.zeros(3, np.int64))
    g.update("count", g.Add("count", g.const([1, 2, 3])))
    y = g.If(
        g.const(True, DType.BOOL),
        then_branch=Body([], lambda b: [b.Neg(x)]),
        else_branch=Body([], lambda b: [b.Identity(x)]),
    )
    attrs = {
        "int": -(2**63),
        "float": -0.0,
        "nan": float("nan"),
        "bool": True,
        "str": "ä\ud800\n",
        "bytes": b"\xff\0",
        "none": None,
        "ints": (1, 2, 1),
        "mixed": (1, 1.0, "1", True, b"1", ()),
        "nested": ((1, 2), (1, 2)),
        "array": np.arange(6.0).reshape(2, 3).T,
        "arrays": (np.array(["a", "ä\ud800"], object), np.zeros((0, 2), np.int8)),
        "type": types["odd"],
        "types": (types["seq"], None),
    }
    made = g.graph([y])
    node = dataclasses.replace(
        made.nodes[-1], attrs={**made.nodes[-1].attrs, **attrs}, where="line 1", origin=("a", "b")
    )
    dtypes = {f"w{d.name}": np.zeros((3, 1), d.numpy) for d in DType if d is not DType.STRING}
    dtypes["wSTRING"] = np.array([["x"], ["y"]], object)
    dtypes["again"] = np.ones(2, np.float32)  # an input with a value of its own
    dtypes["scalar"] = np.array(3, np.int16)
    dtypes["large"] = np.arange(5000.0)[::2]
    return made.but(
        nodes=(*made.nodes[:-1], node),
        initializers={**made.initializers, **dtypes},
        types={**made.types, **types},
        doc="what it\nis",
        metadata={"author": "us", "": ""},
        opsets={"": 17, "own": 3},
        ir_version=8,
    )


def test_everything() -> None:
    graph = everything()
    opened = Opened(b"".join(encode(graph, source="a.onnx", producer="we 1")))
    assert same(opened.graph, graph)
    assert (opened.about.source, opened.about.producer) == ("a.onnx", "we 1")
    assert opened.about.written_by == f"mezzo {mz.__version__}"
    assert opened.about.vocabulary == {"": OPSETS[""]}
    assert all(s.at % 64 == 0 for s in opened.stored)
    assert not any(a.flags.writeable for a in opened.graph.initializers.values() if a.dtype != object)


def test_what_files_cannot_hold() -> None:
    graph = everything()
    for value, text in ((2**70, "64 bits"), (object(), "cannot hold a object")):
        node = dataclasses.replace(graph.nodes[0], attrs={"a": value})
        with pytest.raises(ModelError, match=text):
            list(encode(graph.but(nodes=(node, *graph.nodes[1:]))))


def test_states_are_kept() -> None:
    g = GraphBuilder("counter")
    total = g.state("total", np.zeros(2, np.float32))
    g.update("total", g.Add(total, g.input("x", f32(2))))
    first = Session(g.graph([g.Identity(total)]))
    ones = np.ones(2, np.float32)
    for _ in range(3):
        first(ones)
    second = from_file(first)
    assert [second(ones)[0] for _ in range(3)] == [0, 1, 2]
    assert second.bound_from == "variant"
    assert second.graph.states == first.graph.states


def test_several_signatures(tmp_path: Path) -> None:
    first, images = mz.load(DIGITS), held_out().inputs
    for size in (1, 3, 8):
        first.warmup({"image": (size, 1, 8, 8)})
    first.save(tmp_path / "m.mezzo")
    second = mz.load(tmp_path / "m.mezzo")
    for size, origin in (
        (3, "variant"),
        (8, "variant"),
        (2, "graph (no variant has these input types)"),
        (1, "variant"),
    ):
        assert same(second(images[:size]), first(images[:size]))
        assert second.bound_from == origin
    assert same(second.run({"image": images[:3]}, names=["logits"]), first.run({"image": images[:3]}))


def test_a_file_in_memory_and_a_file_replaced_while_it_is_open(tmp_path: Path) -> None:
    path, images = tmp_path / "m.mezzo", held_out().inputs
    first = mz.load(DIGITS)
    want = first(images[:3])
    first.save(path)
    second, third = mz.load(path), mz.load(path.read_bytes())
    second.save(path)
    third.save(path)
    assert all(same(s(images[:3]), want) for s in (second, third, mz.load(path)))
    assert [p.name for p in tmp_path.iterdir()] == ["m.mezzo"]


def test_saving_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be written"):
        mz.load(DIGITS).save(tmp_path / "absent" / "m.mezzo")


# The description


def test_the_schema_is_what_the_code_reads() -> None:
    text = re.sub(r"//.*", "", (ROOT / "docs/mezzo.fbs").read_text("utf8"))
    tables = re.findall(r"table (\w+) \{([^}]*)\}", text)
    declared = {name: dict(re.findall(r"(\w+):([^;]+);", body)) for name, body in tables}
    assert {n: {f: v.kind for f, v in t.fields.items()} for n, t in TABLES.items()} == declared
    assert [list(t.fields) for t in TABLES.values()] == [list(declared[n]) for n in TABLES]


def test_other_readers_of_flatbuffers_understand_it() -> None:
    flatbuffers = pytest.importorskip("flatbuffers")
    data = b"".join(encode(everything()))
    flat = data[store.BEGIN : struct.unpack_from("<Q", data, 16)[0]]
    root = flatbuffers.table.Table(flat, flatbuffers.encode.Get(flatbuffers.packer.uoffset, flat, 0))
    offset = flatbuffers.number_types.UOffsetTFlags.py_type(root.Offset(4 + 2 * TABLES["File"].fields["since"].number))
    assert root.VectorLen(offset) == len({n.op for _, n in everything().walk()})


# Pages


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's /proc")
def test_processes_share_the_pages_of_weights(tmp_path: Path) -> None:
    path = tmp_path / "large.mezzo"
    g = GraphBuilder()
    weight = g.const(np.ones((1024, 2048), np.float32))
    Session(g.graph([g.MatMul(g.input("x", f32(1, 1024)), weight)])).save(path)
    code = (
        "import sys, numpy as np, mezzo as mz\n"
        f"s = mz.load({str(path)!r}); s(np.ones((1, 1024), np.float32)); print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        f"lines = open('/proc/self/smaps').read().split({str(path)!r})[1].splitlines()[1:20]\n"
        "print(*lines, sep=';', flush=True)\n"
        "sys.stdin.readline()\n"
    )
    pipe = subprocess.PIPE
    both = [subprocess.Popen([sys.executable, "-c", code], stdin=pipe, stdout=pipe, text=True) for _ in range(2)]
    assert [talk(process) for process in both] == ["ready", "ready"]
    for process in both:  # while both are there
        facts = {k: int(v.split()[0]) for k, v in (f.split(":") for f in talk(process, "go").split(";")) if "kB" in v}
        assert facts["Rss"] >= 8192
        assert facts["Pss"] <= 0.6 * facts["Rss"]
        assert facts["Private_Dirty"] == facts["Anonymous"] == 0
    for process in both:
        process.communicate("end\n")


def talk(process: subprocess.Popen[str], word: str = "") -> str:
    """Say a word to a process, if any, and hear a line from it."""
    assert process.stdin is not None
    assert process.stdout is not None
    if word:
        print(word, file=process.stdin, flush=True)
    return process.stdout.readline().rstrip()


def test_loading_needs_no_other_package(tmp_path: Path) -> None:
    path = tmp_path / "m.mezzo"
    mz.load(DIGITS).save(path)
    code = (
        "import sys, mezzo as mz\n"
        f"mz.load({str(path)!r})\n"
        f"print(sorted({{m.split('.')[0] for m in sys.modules}} & {OTHERS}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# What is refused, and what is bound again


def saved(tmp_path: Path) -> bytes:
    session = mz.load(DIGITS)
    session.warmup({"image": (2, 1, 8, 8)})
    session.save(tmp_path / "m.mezzo")
    return (tmp_path / "m.mezzo").read_bytes()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_process_may_fork_while_the_library_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "model.mezzo"
    g = GraphBuilder("double")
    x = g.input("x", f32(2))
    Session(g.graph([g.Add(x, x)])).save(path)
    code = f"""if True:
        import os, sys
        import mezzo as mz
        from mezzo.runtime.backends.onednn import library
        model = mz.load({str(path)!r})
        assert not library._fetched.locked()  # with the first run, so that loading does not wait for it
        library.fetch()
        assert library._fetched.locked() and not library.find.cache_info().currsize
        child = os.fork()
        if not child:
            os._exit(not isinstance(library.find(), library.Library))
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    command = [sys.executable, "-W", "ignore", "-c", code]
    subprocess.run(command, check=True, timeout=60, env={**os.environ, "MEZZO_ONEDNN": ""})


def test_a_newer_version_is_refused_by_name(tmp_path: Path) -> None:
    data = bytearray(saved(tmp_path))
    struct.pack_into("<I", data, 8, FORMAT + 1)
    with pytest.raises(UnsupportedModel, match=f"format version {FORMAT + 1}.*versions up to {FORMAT}") as caught:
        mz.load(bytes(data))
    assert "newer Mezzo" in caught.value.hint


def test_other_files_are_refused(tmp_path: Path) -> None:
    data = saved(tmp_path)
    for wrong, text in ((data[:100], "only a part"), (data + b"\0", "was written with"), (data[:-1], "written with")):
        with pytest.raises(ModelError, match=text):
            open_file(wrong)
    with pytest.raises(ModelError, match="cannot be read"):
        open_file(tmp_path / "absent")
    with pytest.raises(ModelError):
        open_file(tmp_path)
    with pytest.raises(BudgetError, match="file_bytes"):
        open_file(tmp_path / "m.mezzo", Budget(file_bytes=100))
    with pytest.raises(BudgetError, match="tensor_elements"):
        _ = open_file(data, Budget(tensor_elements=100)).graph
    with pytest.raises(BudgetError, match="nodes"):
        _ = open_file(data, Budget(nodes=2)).graph


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"isa": "sparc"}, "graph (isa 'sparc', here"),
        ({"kernels": "numpy 1"}, "graph (kernels 'numpy 1', here"),
        ({"strategy": "none"}, "graph (strategy 'none', here 'both')"),
        ({"precision": "bf16"}, "graph (precision 'bf16', here"),
        ({"device": "gpu"}, "graph (device 'gpu', here 'cpu')"),
    ],
)
def test_a_variant_of_another_machine(change: dict[str, str], said: str) -> None:
    first = mz.load(DIGITS)
    images = held_out().inputs[:2]
    want = first(images)
    variants = [(dataclasses.replace(key, **change), bound) for key, bound in first.variants()]
    opened = Opened(b"".join(encode(first.graph, variants)))
    second = Session(opened)
    assert same(second(images), want)
    assert second.bound_from.startswith(said)


def test_options_of_planning_belong_to_the_variant() -> None:
    g = GraphBuilder()
    x = g.Conv(g.input("x", f32(1, 3, 16, 16)), g.const(np.ones((4, 3, 3, 3), np.float32)))
    graph = g.graph([g.MaxPool(g.Relu(x), kernel_shape=(2, 2), strides=(2, 2))])
    image = np.random.default_rng(0).random((1, 3, 16, 16), np.float32)
    fused = Session(graph, fuse=True)
    opened = Opened(b"".join(encode(graph, fused.variants())))
    again, other = Session(opened, fuse=True), Session(opened)
    assert same(again(image), fused(image))
    assert again.bound_from == "variant"
    assert len(again.program.steps) == 1
    assert same(other(image), Session(graph)(image))
    assert other.bound_from == "graph (strategy 'both, fused', here 'both')"


def test_a_variant_with_other_kernels_is_bound_again() -> None:
    first = mz.load(DIGITS)
    images = held_out().inputs[:2]
    want = first(images)
    ((key, bound),) = first.variants()
    steps = list(bound.program.steps)
    steps[1] = dataclasses.replace(steps[1], choice=dataclasses.replace(steps[1].choice, layouts=("blocked",)))
    other = dataclasses.replace(bound, program=dataclasses.replace(bound.program, steps=tuple(steps)))
    opened = Opened(b"".join(encode(first.graph, [(key, other)])))
    second = Session(opened)
    assert same(second(images), want)
    assert "another way" in second.bound_from


def broken_programs(bound: Any) -> dict[str, Any]:
    """Programs that contradict themselves."""
    program, plan = bound.program, bound.program.plan
    inside = [s for s in plan.slots if s.life.space.value == "arena" and s.life.nbytes]

    def slots(old: Any, **changes: Any) -> Any:
        life = {k: changes.pop(k) for k in ("nbytes", "first", "last", "value") if k in changes}
        new = dataclasses.replace(old, life=dataclasses.replace(old.life, **life), **changes)
        made = tuple(new if s is old else s for s in plan.slots)
        return dataclasses.replace(program, plan=dataclasses.replace(plan, slots=made, by_value={}))

    return {
        "size": slots(inside[0], nbytes=64),
        "unaligned": slots(inside[0], offset=inside[0].offset + 4),
        "outside": slots(inside[0], offset=1 << 40),
        "short life": slots(inside[0], last=inside[0].life.first),
        "name": slots(inside[0], value="other"),
        "arena": dataclasses.replace(program, plan=dataclasses.replace(plan, size=1 << 60, by_value={})),
        "order": dataclasses.replace(program, steps=program.steps[::-1]),
        "types": dataclasses.replace(program, types={n: f32(3) for n in program.types}),
        "results": dataclasses.replace(program, results=("image",)),
        "weights": dataclasses.replace(program, weights=()),
        "fewer": dataclasses.replace(program, steps=program.steps[:-1]),
        "device": dataclasses.replace(program, target=dataclasses.replace(program.target, device="gpu")),
    }


def test_programs_that_contradict_themselves() -> None:
    first = mz.load(DIGITS)
    images = held_out().inputs[:2]
    first(images)
    ((key, bound),) = first.variants()
    for name, program in broken_programs(bound).items():
        data = b"".join(encode(first.graph, [(key, dataclasses.replace(bound, program=program))]))
        session = Session(Opened(data))
        with pytest.raises(MezzoError):
            pytest.fail(f"{name}: {session(images)}")


def test_overlapping_slots_are_refused() -> None:
    g = GraphBuilder()
    x = g.input("x", f32(64))
    a, b = g.Exp(x), g.Sqrt(x)
    first = Session(g.graph([g.Add(g.Sin(a), g.Cos(b)), g.Mul(a, b)]))
    ((key, bound),) = first.variants()
    plan = bound.program.plan
    slots = tuple(dataclasses.replace(s, offset=0) if s.life.space.value == "arena" else s for s in plan.slots)
    program = dataclasses.replace(bound.program, plan=dataclasses.replace(plan, slots=slots, by_value={}))
    opened = Opened(b"".join(encode(first.graph, [(key, dataclasses.replace(bound, program=program))])))
    with pytest.raises(MezzoError, match="overlap"):
        _ = Session(opened).program


# Vocabularies


def test_unknown_and_newer_operators_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    g = GraphBuilder()
    data = b"".join(encode(g.graph([g.Relu(g.Exp(g.input("x", f32(2))))])))
    monkeypatch.delitem(OPS, ("", "Exp"))
    monkeypatch.delitem(OPS.index, ("", "Exp"))
    with pytest.raises(UnsupportedModel, match="Exp is not carried"):
        Opened(data)
    monkeypatch.undo()
    newer = {("", "Relu"): OPSETS[""] + 1, ("", "Exp"): 13}
    with pytest.raises(UnsupportedModel, match=r"Relu changed at opset .*, and is carried as of"):
        store.refuse_operators(newer, {"": OPSETS[""] + 1}, "m")
    store.refuse_operators({("", "Exp"): 13}, {"": OPSETS[""] + 1}, "m")


def test_older_files_are_upgraded() -> None:
    nodes = (Node("ReduceSum", ("x",), ("y",), {"axes": (0,), "keepdims": 0}),)
    graph = Graph(("x",), ("y",), nodes, types={"x": f32(2, 3), "y": f32(3)})
    made = opsets.upgraded(graph, {"": 11}).verify()
    assert same(Session(made)(np.ones((2, 3), np.float32)), np.full(3, 2, np.float32))


# Doctor and commands


def test_doctor_finds_a_flipped_weight(tmp_path: Path) -> None:
    data, path = bytearray(saved(tmp_path)), tmp_path / "m.mezzo"
    assert doctor_file(path)[1] == 0
    opened = Opened(bytes(data))
    at = max(opened.place_of(a) for a in opened.graph.initializers.values() if a.nbytes > 4096)
    data[at + 5] ^= 1
    path.write_bytes(data)
    mz.load(path)
    report, code = doctor_file(path)
    assert code == 3
    (row,) = next(t for t in report.tables if t.title == "Damaged arrays").records()
    assert row["at byte"] == at
    weights = mz.load(DIGITS).graph.initializers
    assert row["initialiser"] in weights


def test_every_weight_byte_is_covered(tmp_path: Path) -> None:
    data = bytearray(saved(tmp_path))
    begin = struct.unpack_from("<Q", data, 24)[0]
    for at in range(begin, len(data), 997):
        data[at] ^= 0x10
        assert len(Opened(bytes(data)).damaged()) == 1
        data[at] ^= 0x10


def mezzo(*arguments: str | os.PathLike[str]) -> str:
    done = subprocess.run([sys.executable, "-m", "mezzo", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def digits_onnx(tmp_path: Path) -> Path:
    path = tmp_path / "digits.onnx"
    path.write_bytes(DIGITS.read_bytes())
    return path


def test_the_compile_command(tmp_path: Path) -> None:
    model, output = digits_onnx(tmp_path), tmp_path / "m.mezzo"
    assert "no program" in mezzo("compile", model, "-o", output)
    mezzo("compile", model, "-o", output, "--shape", "batch=1", "--shape", "batch=4")
    opened = open_file(output)
    assert len(opened.variants) == 2
    assert all(isinstance(k, VariantKey) for k in opened.variants)
    assert opened.about.source == "digits.onnx"
    assert "pytorch" in opened.about.producer
    mezzo("compile", output, "-o", output, "--shape", "batch=1", "--portable")
    assert not open_file(output).variants
    assert open_file(output).about.source == "digits.onnx"
    assert "damaged arrays" in mezzo("doctor", output)
    assert "covered" in mezzo("check", output)


NUMPY_ALONE = (
    "import runpy, sys\n"
    "sys.path.insert(0, sys.argv.pop(1))\n"
    "sys.argv = sys.argv[1:]\n"
    "runpy.run_path(sys.argv[0], run_name='__main__')\n"
)


def bundled(tmp_path: Path) -> Path:
    model, app = tmp_path / "m.mezzo", tmp_path / "app.pyz"
    # planned as a machine without oneDNN plans, which is where the bundle is to find its program
    plain = {**os.environ, "MEZZO_ONEDNN": "off"}
    command: list[str | os.PathLike[str]]
    command = [sys.executable, "-m", "mezzo", "compile", digits_onnx(tmp_path), "-o", model, "--shape", "batch=2"]
    subprocess.run(command, check=True, env=plain, capture_output=True)
    mezzo("bundle", model, "-o", app)
    model.unlink()
    np.save(tmp_path / "x.npy", held_out().inputs[:2])
    return app


def check_bundle(python: list[str], app: Path, folder: Path) -> None:
    """Run the bundle, and import from it, with this python."""
    arguments = ["--input", f"image={folder / 'x.npy'}", "--output", str(folder / "y.npz")]
    done = subprocess.run([*python, str(app), *arguments], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert "logits" in done.stdout
    want = mz.load(DIGITS)(held_out().inputs[:2])
    got = np.load(folder / "y.npz")["logits"]
    assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max()  # there, NumPy has the CPU to itself
    done = subprocess.run([*python, str(app), "--input", "nothing"], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 2
    assert "InputError" in done.stderr


def test_a_bundle_answers_with_numpy_alone(tmp_path: Path) -> None:
    app, alone = bundled(tmp_path), tmp_path / "alone"
    alone.mkdir()
    packages = Path(np.__file__).parents[1]
    for name in ("numpy", "numpy.libs"):
        if (packages / name).exists():
            (alone / name).symlink_to(packages / name)
    check_bundle([sys.executable, "-I", "-S", "-c", NUMPY_ALONE, str(alone)], app, tmp_path)
    code = (
        f"import sys; sys.path[:0] = [{str(alone)!r}, {str(app)!r}]\n"
        "import numpy as np, mezzo\n"
        f"s = mezzo.load(); s(np.load({str(tmp_path / 'x.npy')!r})); print(s.bound_from, mezzo.__file__)\n"
        f"print(sorted({{m.split('.')[0] for m in sys.modules}} & {OTHERS}))\n"
        "print({a.ctypes.data % 64 for a in s.graph.initializers.values()})"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"variant {app}/mezzo/__init__.py", "[]", "{0}"], done.stderr


@pytest.mark.soak
def test_a_bundle_in_an_environment_with_numpy_alone(tmp_path: Path) -> None:
    app, environment = bundled(tmp_path), tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    python = environment / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", f"numpy=={np.__version__}"], check=True)
    check_bundle([str(python)], app, tmp_path)

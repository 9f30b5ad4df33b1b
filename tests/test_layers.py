"""Who may import whom, read from the source itself. Each check says what is wrong with a
module, and is shown to find it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from .house import ROOT, tree_of

# Layer -> the layers that it may import.
BELOW: dict[str, set[str]] = {
    "ops": set(),
    "runtime": {"ops"},
    "nd": {"ops", "runtime"},
    "sym": {"ops", "runtime", "nd", "importers"},
    "importers": {"ops", "runtime"},
    "exporters": {"ops", "runtime"},
    "kvstore": {"ops", "runtime", "nd"},
    "train": {"ops", "runtime", "nd", "sym", "importers", "exporters", "kvstore"},
}
BELOW["data"] = {*BELOW["train"], "train"}
BELOW["gluon"] = {*BELOW["data"], "data"}
BELOW["models"] = {*BELOW["gluon"], "gluon"}
BELOW["tools"] = set(BELOW)

# Outside packages that a layer must do without.
WITHOUT: dict[str, set[str]] = {"ops": {"cupy", "ctypes", "onnx"}, "runtime": {"onnx"}}
# Those that tell whether our numbers are right, never used to make them; only where they are compared or trained with.
REFEREES = {
    *("onnxruntime", "torch", "mxnet", "jax", "openvino", "onnx.reference"),
    *("sklearn", "skl2onnx", "onnxscript"),  # these make models, too
}
REFEREES_MAY = ("tools/compare*.py", "models/*/train.py")
# Modules of tests that import one at their top, and are imported inside tests themselves.
BESIDE = tuple(f"{referee}_*.py" for referee in REFEREES)
SKIPPING = ("importorskip", "peer", "referee")  # what skips where a referee is not installed
# Formats that run what a file says.
PICKLED = ("tests/mxnet/states.py", "tests/test_mxnet_states.py")  # write them, for the reader that runs nothing
PICKLES = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "torch.load", "torch.save"}
LONGEST = 600
# Modules imported later by computed names: looked at by tests/test_registry.py and tests/test_later_kernels.py.
TABLES = (
    "ops/registry.py",
    "data/__init__.py",
    "runtime/compile/lazy_kernel.py",
    "runtime/renamed.py",
    "tools/lazy.py",
    "tools/ort/stand_in.py",
    "tools/modules.py",
)  # the last: modules of users

Import = tuple[int, str]  # line, dotted name: "mezzo.ops.types" for ours, however it was written


def sources(root: Path, *folders: str) -> Iterator[tuple[Path, str]]:
    """Every module below the folders of the root, each real file once."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            yield path.relative_to(root), path.read_text("utf8")


def at_top(tree: ast.AST) -> Iterator[ast.AST]:
    """What runs when a module is imported: all but the bodies of functions."""
    yield tree
    body = tree.body if isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) else []
    inside = body if isinstance(body, list) else [body]
    for node in ast.iter_child_nodes(tree):
        if node not in inside:
            yield from at_top(node)


def called(node: ast.AST) -> str:
    """The last word of what is called, if anything is."""
    return ast.unparse(node.func).split(".")[-1] if isinstance(node, ast.Call) else ""


def imports(file: Path, nodes: Iterable[ast.AST]) -> Iterator[Import]:
    """What nodes of a module import: statements, and the strings given to `import_module` and `__import__`."""
    inside = file.parts[:-1]
    package = [*(("mezzo",) if inside[0] != "src" else inside[1:2]), *(inside if inside[0] != "src" else inside[2:])]

    def absolute(name: str, level: int) -> str:
        base = package[: len(package) - level + 1] if level else []
        return ".".join([*base, name] if name else base) or f"{'.' * level}{name}"

    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, absolute(f"{node.module}.{alias.name}" if node.module else alias.name, node.level)
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            match node.args:
                case [ast.Constant(value=str(name)), *_]:
                    bare = name.lstrip(".")
                    yield node.lineno, absolute(bare, len(name) - len(bare))
                case _:
                    yield node.lineno, "a name computed at run time"


def within(name: str, packages: set[str]) -> bool:
    """Whether a dotted name is one of the packages, or inside one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def arrows(file: Path, text: str) -> Iterator[str]:
    """A layer imports only what lies below it, and by name: a computed import could be anything. Tables import the
    modules that they list, which tests compare with what there is."""
    layer = file.parts[0]
    allowed = {f"mezzo.{name}" for name in {layer, *BELOW[layer]}}
    for line, name in imports(file, ast.walk(tree_of(text))):
        computed = " " in name and str(file) not in TABLES
        if (within(name, {"mezzo"}) and not within(name, allowed)) or computed:
            yield f"{file}:{line} imports {name}"


def relative(file: Path, text: str) -> Iterator[str]:
    """Inside the package, ours are imported relatively; nowhere by the bare name of a folder of the root."""
    ours = {*BELOW} if file.parts[0] in ("tests", "bench") else {"mezzo", *BELOW}
    for node in ast.walk(tree_of(text)):
        match node:
            case ast.Import(names=aliases):
                names = [alias.name for alias in aliases]
            case ast.ImportFrom(module=str(name), level=0):
                names = [name]
            case _:
                continue
        yield from (f"{file}:{node.lineno} imports {name}" for name in names if within(name, ours))


def outside(file: Path, text: str) -> Iterator[str]:
    """Each layer does without some outside packages, and all of them without the referees."""
    banned = WITHOUT.get(file.parts[0], set()) | (set() if any(map(file.match, REFEREES_MAY)) else REFEREES)
    found = imports(file, ast.walk(tree_of(text)))
    return (f"{file}:{line} imports {name}" for line, name in found if within(name, banned))


def aside(file: Path, text: str) -> Iterator[str]:
    """No module of tests needs a referee to be imported, and none vanishes as a whole where one is not installed."""
    if any(map(file.match, BESIDE)):
        return
    top = list(at_top(tree_of(text)))
    for line, name in imports(file, top):
        if within(name, REFEREES) or any(Path(f"{part}.py").match(b) for part in name.split(".") for b in BESIDE):
            yield f"{file}:{line} imports {name} at its top"
    for node in top:
        if isinstance(node, ast.Call):
            whole = any(k.arg == "allow_module_level" for k in node.keywords)
            if whole or called(node) in SKIPPING:
                yield f"{file}:{node.lineno} skips all of its tests"


def pickles(file: Path, text: str) -> Iterator[str]:
    """No file is read or written in a format that runs what it says, in tests and benchmarks neither."""
    tree, writes = tree_of(text), file.as_posix() in PICKLED
    found = () if writes else imports(file, ast.walk(tree))
    yield from (f"{file}:{n} imports {name}" for n, name in found if within(name, PICKLES))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node) in PICKLES:
            yield f"{file}:{node.lineno} uses {ast.unparse(node)}"
        elif isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            yield f"{file}:{node.lineno} allows pickle"


def short(file: Path, text: str) -> Iterator[str]:
    """A module that outgrows 600 lines is two modules."""
    lines = len(text.splitlines())
    if lines > LONGEST:
        yield f"{file} has {lines} lines"


def front_door(file: Path, text: str) -> Iterator[str]:
    """src/mezzo holds imports, `__all__` and `__version__`; what `python -m` runs calls what it imports."""
    for node in tree_of(text).body:
        match node:
            case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
                pass
            case ast.Assign(targets=[ast.Name(id="__all__" | "__version__")], value=value) if literal(value):
                pass
            case ast.If(body=[ast.Expr(value=ast.Call())], orelse=[]) if file.name == "__main__.py":
                pass
            case ast.If(body=[ast.Expr(value=ast.Call())], orelse=[ast.Assign()]) if file.name == "as_onnxruntime.py":
                pass
            case _:
                yield f"{file}:{node.lineno} {ast.unparse(node).splitlines()[0]}"


def literal(node: ast.expr) -> bool:
    """Whether an expression is written out: a string, or a list of them."""
    return isinstance(node, ast.Constant) or (isinstance(node, ast.List) and all(map(literal, node.elts)))


Check = Callable[[Path, str], Iterator[str]]
ALL = (*BELOW, "src/mezzo", "tests", "bench")
CHECKS: dict[Check, tuple[str, ...]] = {
    arrows: tuple(BELOW), relative: ALL, outside: tuple(BELOW), aside: ("tests",), pickles: ALL, short: ALL,
    front_door: ("src/mezzo",),
}  # fmt: skip


@cache
def told(check: Check, file: Path, text: str) -> list[str]:
    """What a check finds wrong in a module; once, since copies of the checkout have the same modules."""
    return list(check(file, text))


def wrong(check: Check, root: Path) -> list[str]:
    """What a check finds wrong in a checkout."""
    return [problem for file, text in sources(root, *CHECKS[check]) for problem in told(check, file, text)]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_checkout(check: Check) -> None:
    assert wrong(check, ROOT) == []


# check, file, what is appended to it (or makes it), what the check then says.
BROKEN = [
    (arrows, "ops/new.py", "from ..runtime.memory import plan", "ops/new.py:1 imports mezzo.runtime.memory.plan"),
    (arrows, "ops/new.py", "from .. import runtime", "ops/new.py:1 imports mezzo.runtime"),
    (arrows, "runtime/passes/new.py", "from ...importers.onnx import f", "imports mezzo.importers.onnx.f"),
    (
        arrows,
        "importers/new.py",
        "def f():\n    from ..exporters import g",
        "importers/new.py:2 imports mezzo.exporters.g",
    ),
    (arrows, "models/new.py", "from ..tools import load", "models/new.py:1 imports mezzo.tools.load"),
    (arrows, "tools/new.py", "from .. import __version__", "tools/new.py:1 imports mezzo.__version__"),
    (arrows, "runtime/new.py", "import_module('mezzo.importers')", "runtime/new.py:1 imports mezzo.importers"),
    (arrows, "runtime/new.py", "importlib.import_module('..tools', __package__)", "imports mezzo.tools"),
    (arrows, "runtime/new.py", "m = __import__(name)", "imports a name computed at run time"),
    (relative, "runtime/new.py", "from mezzo.ops import OPS", "runtime/new.py:1 imports mezzo.ops"),
    (relative, "runtime/new.py", "import ops.types", "runtime/new.py:1 imports ops.types"),
    (relative, "tests/test_new.py", "from runtime import plan", "tests/test_new.py:1 imports runtime"),
    (outside, "ops/new.py", "import onnx", "ops/new.py:1 imports onnx"),
    (outside, "ops/new.py", "import ctypes.util", "ops/new.py:1 imports ctypes.util"),
    (outside, "runtime/new.py", "from onnx import helper", "runtime/new.py:1 imports onnx.helper"),
    (outside, "runtime/new.py", "def f():\n    return __import__('onnx')", "runtime/new.py:2 imports onnx"),
    (outside, "importers/new.py", "from onnx import reference", "importers/new.py:1 imports onnx.reference"),
    (outside, "tools/new.py", "import_module('onnxruntime')", "tools/new.py:1 imports onnxruntime"),
    (outside, "models/digits/new.py", "import torch.nn as nn", "models/digits/new.py:1 imports torch.nn"),
    (outside, "tools/new.py", "import jax.numpy as jnp", "tools/new.py:1 imports jax.numpy"),
    (aside, "tests/test_new.py", "import onnxruntime as ort", "tests/test_new.py:1 imports onnxruntime at its top"),
    (aside, "tests/models.py", "from onnx import reference", "tests/models.py:1 imports onnx.reference at its top"),
    (aside, "tests/conftest.py", "import torch.nn as nn", "tests/conftest.py:1 imports torch.nn at its top"),
    (aside, "tests/regressions/test_new.py", "import skl2onnx", "imports skl2onnx at its top"),
    (aside, "tests/test_new.py", "class A:\n    import torch", "tests/test_new.py:2 imports torch at its top"),
    (aside, "tests/test_new.py", "try:\n    import openvino\nexcept ImportError: pass", "imports openvino at its top"),
    (aside, "tests/test_new.py", "ort = import_module('onnxruntime')", "imports onnxruntime at its top"),
    (aside, "tests/test_new.py", "from . import torch_networks", "imports mezzo.tests.torch_networks at its top"),
    (aside, "tests/test_new.py", "from .torch_networks import twin", "mezzo.tests.torch_networks.twin at its top"),
    (aside, "tests/test_new.py", "torch = pytest.importorskip('torch')", "test_new.py:1 skips all of its tests"),
    (aside, "tests/test_new.py", "ort = referee()", "tests/test_new.py:1 skips all of its tests"),
    (aside, "tests/test_new.py", "def f(x=peer('torch')): pass", "tests/test_new.py:1 skips all of its tests"),
    (
        aside,
        "tests/test_new.py",
        "if X:\n    pytest.skip('x', allow_module_level=True)",
        "test_new.py:2 skips all of its tests",
    ),
    (pickles, "tools/new.py", "import pickle", "tools/new.py:1 imports pickle"),
    (pickles, "tests/test_new.py", "np.load(f, allow_pickle=True)", "tests/test_new.py:1 allows pickle"),
    (pickles, "models/digits/train.py", "\nnet = torch.load(f)", "uses torch.load"),
    (short, "ops/new.py", "x = 1\n" * 601, "ops/new.py has 601 lines"),
    (front_door, "src/mezzo/__init__.py", "\ndef load(path): ...", "def load(path):"),
    (front_door, "src/mezzo/__init__.py", "\nCACHE = {}", "CACHE = {}"),
    (front_door, "src/mezzo/__init__.py", "\n__version__ = read()", "__version__ = read()"),
    (front_door, "src/mezzo/__init__.py", "\nif True:\n    main()", "if True:"),
]


@pytest.mark.parametrize(("check", "file", "text", "found"), BROKEN, ids=[f"{b[0].__name__}-{b[3]}" for b in BROKEN])
def test_a_broken_checkout(checkout: Path, check: Check, file: str, text: str, found: str) -> None:
    before = set(wrong(check, checkout))
    path = checkout / file
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf8") as out:
        out.write(text)
    (problem,) = set(wrong(check, checkout)) - before
    assert problem.endswith(found)


def test_what_is_allowed(checkout: Path) -> None:
    before = [wrong(check, checkout) for check in CHECKS]
    for file, text in {
        "tools/compare_new.py": "from ..importers import load\nimport onnxruntime, onnx.reference",
        "runtime/new.py": "import ctypes\nfrom . import plan\nfrom ..ops.types import Tensor",
        "tests/test_new.py": "def test():\n    import onnxruntime\n    torch = peer('torch')\n    lambda: referee()",
        "tests/torch_new.py": "import torch",
        "importers/onnx/new.py": "import onnx\nfrom ...runtime.ir.graph import Graph",
        "src/mezzo/__main__.py": "from .tools.cli import main\n\nif __name__ == '__main__':\n    main()\n",
    }.items():
        (checkout / file).parent.mkdir(parents=True, exist_ok=True)
        (checkout / file).write_text(text)
    assert [wrong(check, checkout) for check in CHECKS] == before

"""Who may import whom, read from the source itself. Each check returns what it finds wrong, and is shown to find it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Layer -> the layers that it may import.
BELOW: dict[str, set[str]] = {
    "ops": set(),
    "runtime": {"ops"},
    "importers": {"ops", "runtime"},
    "exporters": {"ops", "runtime"},
    "kvstore": {"ops", "runtime"},
    "train": {"ops", "runtime", "importers", "exporters", "kvstore"},
}
BELOW |= {layer: {*BELOW["train"], "train"} for layer in ("models", "data", "gluon")}
BELOW["tools"] = set(BELOW)

# Outside packages that a layer must do without.
WITHOUT: dict[str, set[str]] = {"ops": {"cupy", "ctypes", "onnx"}, "runtime": {"onnx"}}
# Those that tell whether our numbers are right, never used to make them; only where they are compared or trained with.
REFEREES = {"onnxruntime", "torch", "mxnet", "onnx.reference", "sklearn"}
REFEREES_MAY = ("tools/compare*.py", "models/*/train.py")
# Formats that run what a file says.
PICKLES = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "torch.load", "torch.save"}
LONGEST = 600
# Tables of what is imported later: looked at by tests/test_registry.py and tests/test_later_kernels.py.
TABLES = ("ops/registry.py", "runtime/kernels/later.py")

Import = tuple[int, str]  # line, dotted name: "mezzo.ops.types" for ours, however it was written


def sources(root: Path, *folders: str) -> Iterator[tuple[Path, ast.Module]]:
    """Every module below the folders of the root, each real file once."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*.py")):
            yield path, ast.parse(path.read_text("utf8"), str(path))


def imports(root: Path, path: Path, tree: ast.AST) -> Iterator[Import]:
    """What a module imports: statements, and the strings given to `import_module` and `__import__`."""
    inside = path.relative_to(root).parts[:-1]
    package = [*(("mezzo",) if inside[0] != "src" else inside[1:2]), *(inside if inside[0] != "src" else inside[2:])]

    def absolute(name: str, level: int) -> str:
        base = package[: len(package) - level + 1] if level else []
        return ".".join([*base, name] if name else base) or f"{'.' * level}{name}"

    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, absolute(f"{node.module}.{alias.name}" if node.module else alias.name, node.level)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
            match node.args:
                case [ast.Constant(value=str(name)), *_]:
                    bare = name.lstrip(".")
                    yield node.lineno, absolute(bare, len(name) - len(bare))
                case _:
                    yield node.lineno, "a name computed at run time"


def within(name: str, packages: set[str]) -> bool:
    """Whether a dotted name is one of the packages, or inside one."""
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def layers(root: Path) -> list[str]:
    """Folders of the root that are layers of ours."""
    return [layer for layer in BELOW if (root / layer).is_dir()]


def arrows(root: Path) -> list[str]:
    """A layer imports only what lies below it, and by name: a computed import could be anything. Tables import the
    modules that they list, which tests compare with what there is."""
    bad = []
    for layer in layers(root):
        for path, tree in sources(root, layer):
            allowed = {f"mezzo.{name}" for name in {layer, *BELOW[layer]}}
            for line, name in imports(root, path, tree):
                computed = " " in name and str(path.relative_to(root)) not in TABLES
                if (within(name, {"mezzo"}) and not within(name, allowed)) or computed:
                    bad.append(f"{path.relative_to(root)}:{line} imports {name}")
    return bad


def relative(root: Path) -> list[str]:
    """Inside the package, ours are imported relatively; nowhere by the bare name of a folder of the root."""
    bad = []
    for path, tree in sources(root, *layers(root), "src/mezzo", "tests", "bench"):
        ours = {*BELOW} if path.relative_to(root).parts[0] in ("tests", "bench") else {"mezzo", *BELOW}
        for node in ast.walk(tree):
            match node:
                case ast.Import(names=aliases):
                    names = [alias.name for alias in aliases]
                case ast.ImportFrom(module=str(name), level=0):
                    names = [name]
                case _:
                    continue
            bad += [f"{path.relative_to(root)}:{node.lineno} imports {name}" for name in names if within(name, ours)]
    return bad


def outside(root: Path) -> list[str]:
    """Each layer does without some outside packages, and all of them without the referees."""
    bad = []
    for layer in layers(root):
        for path, tree in sources(root, layer):
            file = path.relative_to(root)
            banned = WITHOUT.get(layer, set()) | (set() if any(map(file.match, REFEREES_MAY)) else REFEREES)
            bad += [f"{file}:{line} imports {name}" for line, name in imports(root, path, tree) if within(name, banned)]
    return bad


def pickles(root: Path) -> list[str]:
    """No file is read or written in a format that runs what it says, in tests and benchmarks neither."""
    bad = []
    for path, tree in sources(root, *layers(root), "src/mezzo", "tests", "bench"):
        file = path.relative_to(root)
        bad += [f"{file}:{line} imports {name}" for line, name in imports(root, path, tree) if within(name, PICKLES)]
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node) in PICKLES:
                bad.append(f"{file}:{node.lineno} uses {ast.unparse(node)}")
            elif isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
                bad.append(f"{file}:{node.lineno} allows pickle")
    return bad


def short(root: Path) -> list[str]:
    """A module that outgrows 600 lines is two modules."""
    files = [path for path, _ in sources(root, *layers(root), "src/mezzo", "tests", "bench")]
    lengths = {path.relative_to(root): len(path.read_text("utf8").splitlines()) for path in files}
    return [f"{file} has {lines} lines" for file, lines in lengths.items() if lines > LONGEST]


def front_door(root: Path) -> list[str]:
    """src/mezzo holds imports, `__all__` and `__version__`; `__main__.py` also calls what it imports."""
    bad = []
    for path in sorted((root / "src/mezzo").glob("*.py")):
        tree = ast.parse(path.read_text("utf8"))
        for node in tree.body:
            match node:
                case ast.Import() | ast.ImportFrom() | ast.Expr(value=ast.Constant(value=str())):
                    pass
                case ast.Assign(targets=[ast.Name(id="__all__" | "__version__")], value=value) if literal(value):
                    pass
                case ast.If(body=[ast.Expr(value=ast.Call())], orelse=[]) if path.name == "__main__.py":
                    pass
                case _:
                    bad.append(f"src/mezzo/{path.name}:{node.lineno} {ast.unparse(node).splitlines()[0]}")
    return bad


def literal(node: ast.expr) -> bool:
    """Whether an expression is written out: a string, or a list of them."""
    return isinstance(node, ast.Constant) or (isinstance(node, ast.List) and all(map(literal, node.elts)))


Check = Callable[[Path], list[str]]
CHECKS: list[Check] = [arrows, relative, outside, pickles, short, front_door]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_checkout(check: Check) -> None:
    assert check(ROOT) == []


# check, file, what is appended to it (or makes it), what the check then says.
BROKEN = [
    (arrows, "ops/new.py", "from ..runtime import plan", "ops/new.py:1 imports mezzo.runtime.plan"),
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
    before = set(check(checkout))
    path = checkout / file
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf8") as out:
        out.write(text)
    (problem,) = set(check(checkout)) - before
    assert problem.endswith(found)


def test_what_is_allowed(checkout: Path) -> None:
    before = [check(checkout) for check in CHECKS]
    for file, text in {
        "tools/compare_new.py": "from ..importers import load\nimport onnxruntime, onnx.reference",
        "runtime/new.py": "import ctypes\nfrom . import plan\nfrom ..ops.types import Tensor",
        "importers/onnx/new.py": "import onnx\nfrom ...runtime.graph import Graph",
        "src/mezzo/__main__.py": "from .tools.cli import main\n\nif __name__ == '__main__':\n    main()\n",
    }.items():
        (checkout / file).parent.mkdir(parents=True, exist_ok=True)
        (checkout / file).write_text(text)
    assert [check(checkout) for check in CHECKS] == before

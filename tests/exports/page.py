"""docs/exported-architectures.md: what the soak has found, a line for each architecture and exporter."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/exported-architectures.md"
LOCK = ROOT / "build/exported-architectures.lock"
MAKERS = ("torch", "onnxscript", "transformers", "onnxruntime")
HEAD = """\
# Architectures exported from PyTorch

Written by `make soak PEERS=1 ARGS="-k exported_architecture"`, never by hand.

Each line is an architecture, made small with random weights (`tests/exports/`), in the file that an exporter of PyTorch
writes: `dynamo` or `torchscript`. One session reads batches of 1 to 5 at each of the sizes, then the first input again,
and every output has to be that of ONNX Runtime: `max|a-b| <= 1e-4 max|ref|`. So has, at batch 2, that of a session with
`fuse=True` and of one without oneDNN. *Optimised* is the file that ONNX Runtime saves after its extended
optimisations, with operators of com.microsoft in it, read in the same ways. An error is the largest
`max|a-b| / max|ref|` of a tensor, over all inputs and sessions. Where a line tells fewer sizes, the exporter has
written the others into the file.

"""
COLUMNS = (
    "architecture", "exporter", "nodes", "nodes optimised", "inputs", "sizes", "largest error", "optimised",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """What was found of a file and of its optimised form, in the order of the columns."""

    architecture: str
    exporter: str
    nodes: int
    optimised_nodes: int
    inputs: int
    sizes: str
    error: str
    optimised_error: str

    def __str__(self) -> str:
        return f"| {' | '.join(map(str, asdict(self).values()))} |"


def page(rows: Iterable[Row], versions: Mapping[str, str], excused: str) -> str:
    """The page of some rows, in their order, and of what exporters cannot write."""
    made = ", ".join(f"{name} {number}" for name, number in versions.items())
    lines = [f"| {' | '.join(COLUMNS)} |", f"|{' --- |' * len(COLUMNS)}", *map(str, rows)]
    return f"{HEAD}Not written: {excused}.\n\nMade with {made}.\n\n" + "".join(f"{line}\n" for line in lines)


def read(text: str) -> tuple[list[Row], dict[str, str]]:
    """The rows and the versions that a page shows."""
    cells = [[c.strip() for c in line[1:-1].split(" | ")] for line in re.findall(r"^\| .*\|$", text, re.M)[2:]]
    rows = [Row(a, e, int(n), int(o), int(i), *rest) for a, e, n, o, i, *rest in cells]
    made = re.search(r"^Made with (.*)\.$", text, re.M)
    assert made
    return rows, dict(one.split(" ", 1) for one in made[1].split(", "))


def keep(row: Row, order: Sequence[tuple[str, str]], excused: str) -> None:
    """Put a row into the page, beside those of the same versions; `order` has the architectures and exporters."""
    versions = {name: version(name) for name in MAKERS}
    with _alone():
        rows, made = read(PAGE.read_text("utf8")) if PAGE.exists() else ([], {})
        found = {(kept.architecture, kept.exporter): kept for kept in (*(rows if made == versions else ()), row)}
        PAGE.write_text(page([found[key] for key in order if key in found], versions, excused), "utf8")


@contextmanager
def _alone() -> Iterator[None]:
    """While this process writes the page, no other one of the soak does."""
    import fcntl

    LOCK.parent.mkdir(exist_ok=True)
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield

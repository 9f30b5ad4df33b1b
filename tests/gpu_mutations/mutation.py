"""A planted defect."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CUDA = "runtime/backends/cuda/"


@dataclass(frozen=True)
class Mutation:
    """`old` in `file` (of the GPU's backend), where it stands once, becomes `new`; `what` says which defect that is.
    `tests` are those of CI that look at the place, with `only` as pytest's `-k`; `missed` says why they do not find
    it."""

    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    only: str = ""
    missed: str = ""

    def planted(self, root: Path) -> None:
        """Change the file in a copy of the checkout."""
        path = root / CUDA / self.file
        text = path.read_text("utf8")
        assert text.count(self.old) == 1, self.what
        path.write_text(text.replace(self.old, self.new), "utf8")


def of_family(family: str, what: str, file: str, old: str, new: str, missed: str = "") -> Mutation:
    """A defect in the source of a family of kernels."""
    tests = ("test_gpu_ptx", "test_gpu_kernels", "test_gpu_templates", "test_gpu_random", "test_gpu_indices")
    return Mutation(what, file, old, new, tests, family, missed)

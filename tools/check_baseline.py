"""Problems that are known: a file of them, beside which only what is new fails, and what differs between two checks.

A problem is the same as another where part, place and text are the same but for numbers: those of nodes, which end the
names that exporters give too, change with every export, and those of differences with every machine. A file that has a
problem twice may have it twice.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from ..ops.dataclasses import dataclass, field, replace
from ..ops.errors import InputError
from ..runtime.files import replace_file
from ..runtime.version import __version__
from .verdict import Problem, Verdict

FORMAT: Final = 1
LARGEST: Final = 64 << 20  # bytes of a file of known problems
NUMBER: Final = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w.]*\w)|(?<=_)\d+(?=')")
Print = tuple[str, str, str]  # part, place, text; without numbers


def fingerprint(problem: Problem) -> Print:
    """The parts that a problem is known by.

    >>> fingerprint(Problem("numbers", "output 'y': 3.1e-02 apart", "m.onnx: node 7 'conv_7' (Conv)"))
    ('numbers', "m.onnx: node # 'conv_#' (Conv)", "output 'y': # apart")
    """
    return problem.part, NUMBER.sub("#", problem.where), NUMBER.sub("#", problem.message)


def digest(problem: Problem) -> str:
    """A short name of a fingerprint, for reports."""
    return sha256("\0".join(fingerprint(problem)).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Baseline:
    """Known problems by file, as the check that `version` made wrote them."""

    files: Mapping[str, Sequence[Print]] = field(default_factory=dict[str, Sequence[Print]])
    version: str = __version__

    @classmethod
    def read(cls, path: Path) -> Baseline:
        """Raises InputError for what is no such file."""
        try:
            if path.stat().st_size > LARGEST:
                raise ValueError(f"it has more than {LARGEST} bytes")
            content = json.loads(path.read_text("utf8"))
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']!r} is not {FORMAT}")
            files = {str(name): [_print(row) for row in rows] for name, rows in content["files"].items()}
            return cls(files, str(content["mezzo"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            hint = "--write-baseline writes one"
            raise InputError(f"no file of known problems: {error}", where=str(path), hint=hint) from error

    def write(self, path: Path, verdicts: Iterable[Verdict]) -> None:
        """Write what these checks say of their files; what is known of others stays."""
        files = {**self.files, **{_name(v.path): sorted(map(fingerprint, v.problems)) for v in verdicts}}
        kept = {name: list(map(list, rows)) for name, rows in sorted(files.items()) if rows}
        text = json.dumps({"format": FORMAT, "mezzo": __version__, "files": kept}, indent=1, ensure_ascii=False)
        replace_file(path, [text.encode() + b"\n"])

    def marked(self, verdict: Verdict) -> Verdict:
        """The verdict with problems marked that are known, and those listed that are gone."""
        left = Counter(self.files.get(_name(verdict.path), ()))
        problems = []
        for problem in verdict.problems:
            key = fingerprint(problem)
            known = left[key] > 0
            left[key] -= known
            problems.append(replace(problem, known=known))
        gone = tuple(": ".join(filter(None, key)) for key, count in left.items() for _ in range(count))
        return replace(verdict, problems=tuple(problems), gone=gone)


def _name(path: str) -> str:
    return Path(path).as_posix()


def _print(row: Any) -> Print:
    part, where, text = map(str, row)
    return part, where, text

"""Results of `mezzo check` for one file, as data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ..ops.dataclasses import dataclass, field
from ..ops.errors import MezzoError, UnsupportedModel
from .report import Report, Table

GOOD, MISSING, DIFFERENT, BAD_FILE = range(4)
STATUS = ("covered", "not covered", "numbers differ", "bad file")  # by exit code


@dataclass(frozen=True, slots=True)
class Problem:
    """One error: the part of the check, what is wrong, where, what to do, and the exit code for it, unless it is
    known."""

    part: str
    message: str
    where: str = ""
    hint: str = ""
    code: int = MISSING
    known: bool = False

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


def problems_of(error: MezzoError, part: str, code: int) -> Iterator[Problem]:
    """Yield every problem that an error contains."""
    for one in error.parts or (error,):
        yield Problem(part, one.message, one.where, one.hint, code)


def file_problems(error: MezzoError) -> Iterator[Problem]:
    """Yield every problem of reading a file: unsupported features stand against running it, all others against the
    file."""
    for one in error.parts or (error,):
        part, code = ("run", MISSING) if isinstance(one, UnsupportedModel) else ("file", BAD_FILE)
        yield from problems_of(one, part, code)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A checked file. `parts` are the parts of the check, in order, with a message for each; `gone` are known problems
    that it has no more."""

    path: str
    parts: Mapping[str, str]
    problems: tuple[Problem, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tables: tuple[Table, ...] = ()
    seconds: float = 0.0
    gone: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        """The exit code: that of the worst problem that is not known."""
        return max((p.code for p in self.problems if not p.known), default=GOOD)

    @property
    def status(self) -> str:
        """The exit code in words."""
        return STATUS[self.code]

    def said(self, part: str) -> str:
        """Return a short summary of one part."""
        new, known = (sum(p.part == part and p.known == old for p in self.problems) for old in (False, True))
        counts = [
            f"{count} {what}problem{'s' * (count > 1)}" for count, what in ((new, ""), (known, "known ")) if count
        ]
        if counts:
            return ", ".join(counts)
        return self.parts.get(part, "")

    def report(self) -> Report:
        """Return a report of all results, for people and for programs."""
        facts = {"status": self.status, **{p.replace(" ", "_"): self.said(p) for p in self.parts}, **self.facts}
        columns, tables = ("part", "where", "problem", "what to do"), [*self.tables]
        for title, known in (("Known problems", True), ("Problems", False)):
            rows = [(p.part, p.where, p.message, p.hint) for p in self.problems if p.known == known]
            tables += [Table(title, columns, rows)] if rows else []
        if self.gone:
            gone = Table("Known problems that are gone", ("problem",), [(text,) for text in self.gone])
            tables.insert(len(self.tables), gone)  # what fails stays last
        return Report(self.path, facts, tables)

r"""RE2's regular expressions, translated to Python's (https://github.com/google/re2/wiki/Syntax).

What RE2 refuses is refused (references back, looking around, possessive repetition); what both write alike and mean
otherwise is translated: `\d \w \s \b` are ASCII in RE2, and `$` is the very end of the text. Python's engine searches
by trying, and can take exponentially long where RE2 cannot: patterns are part of the model, which is trusted with that.
"""

from __future__ import annotations

import re
from functools import lru_cache

from ..errors import ShapeError

# Inside of brackets.
CLASSES = {
    "d": "0-9",
    "w": "0-9A-Za-z_",
    "s": r"\t\n\f\r ",
    "D": r"\x00-/:-\U0010ffff",
    "W": r"\x00-/:-@\[-^`{-\U0010ffff",
    "S": r"\x00-\x08\x0b\x0e-\x1f!-\U0010ffff",
}
POSIX = {
    "alnum": "0-9A-Za-z",
    "alpha": "A-Za-z",
    "ascii": r"\x00-\x7f",
    "blank": r"\t ",
    "cntrl": r"\x00-\x1f\x7f",
    "digit": "0-9",
    "graph": "!-~",
    "lower": "a-z",
    "print": " -~",
    "punct": r"!-/:-@\[-`{-~",
    "space": r"\t\n\v\f\r ",
    "upper": "A-Z",
    "word": "0-9A-Za-z_",
    "xdigit": "0-9A-Fa-f",
}
GROUP = re.compile(r"\?(?:P?<(?P<name>\w+)>|(?P<flags>[ims]*(?:-[ims]+)?)(?P<end>[:)]))")
REPEAT = re.compile(r"[*+?]|\{\d+(?:,\d*)?\}")
SAME = "tnrfvaAbBz"  # escapes that both know
MOST = 1000  # repetitions that RE2 takes


@lru_cache(maxsize=256)
def compiled(pattern: str) -> re.Pattern[str]:
    """The pattern as Python's; ShapeError where it is no pattern of RE2, or one that Python cannot say.

    >>> [bool(compiled(r"\\d+$").fullmatch(t)) for t in ("12", "12\\n", "\u0663")]
    [True, False, False]
    """
    try:
        return re.compile(_Reader(pattern).translate())
    except re.error as error:
        raise _refused(pattern, str(error)) from error


def _refused(pattern: str, reason: str) -> ShapeError:
    return ShapeError(f"the pattern {pattern!r} is not carried: {reason}", hint="patterns follow RE2's syntax")


class _Reader:
    """Parser of a pattern, in one pass from the front."""

    def __init__(self, pattern: str, lines: bool = False) -> None:
        self.text, self.at = pattern, 0
        self.lines = lines  # whether `$` stands before the end of a line as well

    def translate(self) -> str:
        made: list[str] = []
        while self.at < len(self.text):
            char = self.text[self.at]
            repeat = REPEAT.match(self.text, self.at)
            if char == "\\":
                made.append(self._escape(inside=False))
            elif char == "[":
                made.append(self._brackets())
            elif char == "(":
                made.append(self._group())
            elif repeat:
                made.append(self._repeat(repeat.group()))
            else:
                self.at += 1
                made.append(r"\{" if char == "{" else r"\Z" if char == "$" and not self.lines else char)
        return "".join(made)

    def _refuse(self, reason: str) -> ShapeError:
        return _refused(self.text, f"{reason} at {self.at}")

    def _repeat(self, found: str) -> str:
        if found[0] == "{" and max(int(n) for n in found[1:-1].split(",") if n) > MOST:
            raise self._refuse(f"more than {MOST} repetitions")
        self.at += len(found)
        if self.text.startswith("?", self.at):  # lazy: for a full match all the same
            self.at += 1
            found += "?"
        if REPEAT.match(self.text, self.at):
            raise self._refuse("a repetition of a repetition")
        return found

    def _group(self) -> str:
        self.at += 1
        if not self.text.startswith("?", self.at):
            return "("
        found = GROUP.match(self.text, self.at)
        if not found:
            raise self._refuse(f"(?{self.text[self.at + 1 : self.at + 2]}")
        self.at = found.end()
        if found["name"]:
            return f"(?P<{found['name']}>"
        # flags hold up to the end of their group, or of the one around them, which Python writes as a group as well
        on, _, off = found["flags"].partition("-")
        inner = _Reader(self.text[self.at : self._closing()], "m" in on or (self.lines and "m" not in off))
        self.at += len(inner.text) + (found["end"] == ":")
        return f"(?{found['flags']}:{inner.translate()})"

    def _closing(self) -> int:
        """Return the end of the current group."""
        depth, at, brackets = 0, self.at, False
        while at < len(self.text):
            char = self.text[at]
            if char == "\\":
                at += 1
            elif brackets:
                brackets = char != "]"
            elif char == "[":
                brackets = True
                at += self.text[at + 1 : at + 3] in ("]", "^]")
            elif char == "(":
                depth += 1
            elif char == ")":
                if not depth:
                    return at
                depth -= 1
            at += 1
        return at

    def _escape(self, *, inside: bool) -> str:
        start = self.at
        self.at += 2
        char = self.text[start + 1 : self.at]
        if char in CLASSES and char:
            return CLASSES[char] if inside else f"[{CLASSES[char]}]"
        if char == "z" and not inside:
            return r"\Z"
        if char in ("b", "B") and not inside:
            return rf"(?a:\{char})"
        if char == "Q":
            end = self.text.find(r"\E", self.at)
            quoted = self.text[self.at : end if end >= 0 else None]
            self.at += len(quoted) + 2
            return re.escape(quoted)
        number = re.compile(r"x\{([0-9A-Fa-f]+)\}|x([0-9A-Fa-f]{2})|([0-7]{3}|0[0-7]?)").match(self.text, start + 1)
        if number:
            self.at = number.end()
            code = int(number[3], 8) if number[3] else int(number[1] or number[2], 16)
            if code > 0x10FFFF:
                raise self._refuse("no character")
            return re.escape(chr(code))
        if char.isdigit():
            raise self._refuse("a reference back")
        if char in SAME and char and not (inside and char in "AbBz"):
            return f"\\{char}"
        if not char or char.isalpha():
            raise self._refuse(f"the escape \\{char}")
        return re.escape(char)

    def _brackets(self) -> str:
        made, self.at = ["["], self.at + 1
        if self.text.startswith("^", self.at):
            made.append("^")
            self.at += 1
        first = True
        while first or not self.text.startswith("]", self.at):
            if self.at >= len(self.text):
                raise self._refuse("a bracket without end")
            char = self.text[self.at]
            posix = re.compile(r"\[:(\^?)(\w+):\]").match(self.text, self.at)
            if posix and (posix[2] not in POSIX or posix[1]):
                raise self._refuse(f"the class {posix[0]}")
            if posix:
                made.append(POSIX[posix[2]])
                self.at = posix.end()
            elif char == "\\":
                made.append(self._escape(inside=True))
            else:  # what Python may one day read as an operation on sets is escaped
                made.append(f"\\{char}" if char in "[]&~|" else char)
                self.at += 1
            first = False
        self.at += 1
        return "".join([*made, "]"])

r"""RE2's regular expressions, parsed for an automaton (https://github.com/google/re2/wiki/Syntax).

What RE2 refuses is refused (references back, looking around, possessive repetition); `\d \w \s \b` are ASCII as in RE2,
and `$` is the very end of the text. Python's `re` searches by trying, and can take exponentially long: here it says
only whether a class takes one character (`automaton.py`).
"""

from __future__ import annotations

import re
from functools import lru_cache

from ..errors import ShapeError
from .automaton import Automaton, Chain, Letter, Look, OneOf, Repeat, Tree

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
GROUP = re.compile(r"\?(?:P?<(?P<name>\w+)>|(?P<flags>[imsU]*(?:-[imsU]+)?)(?P<end>[:)]))")
REPEAT = re.compile(r"[*+?]|\{[0-9]+(?:,[0-9]*)?\}")
SAME = "tnrfva"  # escapes that both know
LOOKS = "AzbB"
MOST = 1000  # repetitions that RE2 takes, those inside of one another multiplied
DEEPEST = 100  # groups inside of one another


@lru_cache(maxsize=256)
def compiled(pattern: str) -> Automaton:
    """The pattern as an automaton; ShapeError where it is no pattern of RE2.

    >>> [compiled(r"\\d+$").matches(t, lambda: None) for t in ("12", "12\\n", "\u0663")]
    [True, False, False]
    """
    try:
        return Automaton(_Reader(pattern).whole())
    except re.error as error:  # of a class
        raise _refused(pattern, str(error)) from error
    except ShapeError as error:
        raise error.at(f"the pattern {pattern[:80]!r}") from error.__cause__


def _refused(pattern: str, reason: str) -> ShapeError:
    return ShapeError(f"the pattern {pattern[:80]!r} is not carried: {reason}", hint="patterns follow RE2's syntax")


class _Reader:
    """Parser of a pattern, in one pass from the front."""

    def __init__(self, pattern: str) -> None:
        self.text, self.at, self.depth = pattern, 0, 0

    def whole(self) -> Tree:
        """The tree of the whole pattern."""
        tree = self._alternatives("")
        if self.at < len(self.text):
            raise self._refuse("a ) without its (")
        if _written(tree) > MOST:
            raise self._refuse(f"more than {MOST} repetitions inside of one another")
        return tree

    def _alternatives(self, flags: str) -> Tree:
        """The tree of all up to the end of the group; flags hold up to there too."""
        if self.depth > DEEPEST:
            raise self._refuse(f"more than {DEEPEST} groups inside of one another")
        alternatives, parts = list[Tree](), list[Tree]()
        while not self.text.startswith(")", self.at) and self.at < len(self.text):
            char = self.text[self.at]
            repeat = REPEAT.match(self.text, self.at)
            if char == "|":
                self.at += 1
                alternatives.append(Chain(parts))
                parts = []
            elif char == "(":
                group, flags = self._group(flags)
                parts += group
            elif repeat:
                if not parts:
                    raise self._refuse("a repetition of nothing")
                parts[-1] = self._repeat(repeat.group(), parts[-1])
            else:
                parts += self._one(char, flags)
        return OneOf([*alternatives, Chain(parts)]) if alternatives else Chain(parts)

    def _one(self, char: str, flags: str) -> list[Tree]:
        """A character, a class, or a place between two characters."""
        if char == "^":
            self.at += 1
            return [Look("^" if "m" in flags else "A")]
        if char == "$":
            self.at += 1
            return [Look("$" if "m" in flags else "z")]
        if char == "[":
            return [self._letter(self._brackets(), flags)]
        if char != "\\":
            self.at += 1
            return [self._letter(char if char == "." or char not in "{}*+?" else f"\\{char}", flags)]
        if self.text[self.at + 1 : self.at + 2] in LOOKS and self.at + 1 < len(self.text):
            self.at += 2
            return [Look(self.text[self.at - 1])]
        if self.text.startswith(r"\Q", self.at):
            end = self.text.find(r"\E", self.at)
            quoted = self.text[self.at + 2 : end if end >= 0 else None]
            self.at += len(quoted) + (4 if end >= 0 else 2)
            return [self._letter(re.escape(c), flags) for c in quoted]
        return [self._letter(self._escape(inside=False), flags)]

    def _letter(self, test: str, flags: str) -> Letter:
        plain = test[1:] if len(test) == 2 and test[0] == "\\" and not test[1].isalnum() else test
        if len(plain) == 1 and plain != "." and not ("i" in flags and plain.isalpha()):
            return Letter(plain)
        return Letter(test, (re.I if "i" in flags else 0) | (re.S if "s" in flags else 0))

    def _refuse(self, reason: str) -> ShapeError:
        return _refused(self.text, f"{reason} at {self.at}")

    def _repeat(self, repetition: str, part: Tree) -> Tree:
        counts = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(repetition)
        if counts is None:
            least, comma, most = repetition[1:-1].partition(",")
            low = _count(least)
            counts = (low, _count(most) if most else None if comma else low)
        if max(counts[0], counts[1] or 0) > MOST:
            raise self._refuse(f"more than {MOST} repetitions")
        if counts[1] is not None and counts[1] < counts[0]:
            raise self._refuse(f"the repetition {repetition}")
        self.at += len(repetition)
        if self.text.startswith("?", self.at):  # lazy: for a full match all the same
            self.at += 1
        if REPEAT.match(self.text, self.at):
            raise self._refuse("a repetition of a repetition")
        return Repeat(part, *counts)

    def _group(self, flags: str) -> tuple[list[Tree], str]:
        """A group, or no part and the flags from here on."""
        self.at += 1
        inside = flags
        if self.text.startswith("?", self.at):
            match = GROUP.match(self.text, self.at)
            if not match:
                raise self._refuse(f"(?{self.text[self.at + 1 : self.at + 2]}")
            self.at = match.end()
            if not match["name"]:
                on, _, off = match["flags"].partition("-")
                inside = "".join({*flags, *on} - {*off})
                if match["end"] == ")":
                    return [], inside
        self.depth += 1
        tree = self._alternatives(inside)
        self.depth -= 1
        if not self.text.startswith(")", self.at):
            raise self._refuse("a group without end")
        self.at += 1
        return [tree], flags

    def _escape(self, *, inside: bool) -> str:
        start = self.at
        self.at += 2
        char = self.text[start + 1 : self.at]
        if char in CLASSES and char:
            return CLASSES[char] if inside else f"[{CLASSES[char]}]"
        number = re.compile(r"x\{([0-9A-Fa-f]+)\}|x([0-9A-Fa-f]{2})|([0-7]{3}|0[0-7]?)").match(self.text, start + 1)
        if number:
            self.at = number.end()
            code = int(number[3], 8) if number[3] else int(number[1] or number[2], 16)
            if code > 0x10FFFF:
                raise self._refuse("no character")
            return re.escape(chr(code))
        if char.isdigit():
            raise self._refuse("a reference back")
        if char in SAME and char:
            return f"\\{char}"
        if not char or char.isalpha():
            raise self._refuse(f"the escape \\{char}")
        return re.escape(char)

    def _brackets(self) -> str:
        pieces, self.at = ["["], self.at + 1
        if self.text.startswith("^", self.at):
            pieces.append("^")
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
                pieces.append(POSIX[posix[2]])
                self.at = posix.end()
            elif char == "\\":
                pieces.append(self._escape(inside=True))
            else:  # what Python may one day read as an operation on sets is escaped
                pieces.append(f"\\{char}" if char in "[]&~|" else char)
                self.at += 1
            first = False
        self.at += 1
        return "".join([*pieces, "]"])


def _count(digits: str) -> int:
    return int(digits.lstrip("0")[:9] or 0)


def _written(tree: Tree) -> int:
    """The number of times that counted repetitions repeat their innermost part."""
    if isinstance(tree, Repeat):
        times = tree.most if tree.most is not None else tree.least
        return max(times, 1) * _written(tree.part)
    return max(map(_written, tree.parts), default=1) if isinstance(tree, Chain | OneOf) else 1

"""Regular expressions as automata: a full match in time linear in the text, whatever the pattern.

A pattern becomes a program of characters, branches and looks (Thompson 1968). What is read of a text is the set of
places of the program that are alive; sets are made once and kept with the sets that follow (a lazy automaton), so that
a character costs one look into a table. https://swtch.com/~rsc/regexp/regexp1.html
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from ..dataclasses import dataclass
from ..errors import ShapeError

MOST_PLACES = 1 << 16  # of a program
MOST_KEPT = 1 << 19  # places and moves that a table keeps before it begins anew
BLOCK = 4096  # characters between two looks at the clock
WORD = frozenset("0123456789_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")


@dataclass(frozen=True, slots=True)
class Letter:
    """One character: this one, or one that `test` of Python's syntax takes with `flags`."""

    test: str
    flags: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """A place between two characters: `^` and `$` of lines, `A` and `z` of the text, `b` and `B` of words."""

    kind: str


@dataclass(frozen=True, slots=True)
class Chain:
    """Parts one after another."""

    parts: Sequence[Tree]


@dataclass(frozen=True, slots=True)
class OneOf:
    """One of several parts."""

    parts: Sequence[Tree]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part repeated; without end where `most` is None."""

    part: Tree
    least: int
    most: int | None


Tree = Letter | Look | Chain | OneOf | Repeat


class _Set:
    """The places that are alive after a character, and the sets that follow by the next one."""

    __slots__ = ("before", "ends", "moves", "places")

    def __init__(self, places: tuple[int, ...], before: str) -> None:
        self.places, self.before = places, before
        self.moves: dict[str, _Set] = {}
        self.ends: dict[str, bool] = {}  # whether a match ends here, by the next character


class Automaton:
    """The matcher of a tree. Threads may share it.

    `simple` is the pattern for Python's engine where that finds the same in the same time: characters one after
    another, of which the last may be repeated.

    >>> Automaton(Chain([Repeat(Repeat(Letter("a"), 1, None), 1, None), Letter("b")])).matches("a" * 50, lambda: None)
    False
    """

    def __init__(self, tree: Tree) -> None:
        self.simple = _simple(tree)
        self._tests: list[Callable[[str], object] | None] = []  # by place: None for what is no character
        self._looks: list[str] = []
        self._next: list[tuple[int, ...]] = []
        self._end = self._place(None)
        self._begin = self._made(tree, self._end)
        self._sets: dict[tuple[tuple[int, ...], str], _Set] = {}
        self._kept = 0

    def matches(self, text: str, check: Callable[[], None]) -> bool:
        """True if the pattern takes the whole text. `check` is called now and then, and may raise."""
        state = self._set((self._begin,), "start")
        for start in range(0, len(text), BLOCK):
            check()
            for char in text[start : start + BLOCK]:
                following = state.moves.get(char)
                if following is None:
                    check()
                    following = self._move(state, char)
                    if not following.places:
                        return False
                state = following
        return self._ends(state, "")

    def found(self, text: str, check: Callable[[], None]) -> Iterator[tuple[int, int]]:
        """The parts of a text that the pattern takes, none of them empty: the leftmost, and of these the longest. Takes
        time that grows with the square of the text at most."""
        at = 0
        while at < len(text):
            if not at % BLOCK:
                check()
            end = self._longest(text, at, check)
            if end > at:
                yield at, end
            at = max(end, at + 1)

    def _longest(self, text: str, start: int, check: Callable[[], None]) -> int:
        """The end of the longest match that begins here, -1 where none does."""
        state = self._set((self._begin,), _before(text[start - 1]) if start else "start")
        end = -1
        for at in range(start, len(text) + 1):
            char = text[at : at + 1]
            if self._ends(state, char):
                end = at
            if not char:
                break
            following = state.moves.get(char)
            if following is None:
                check()
                following = self._move(state, char)
            if not following.places:
                break
            if not (at - start + 1) % BLOCK:
                check()
            state = following
        return end

    def _ends(self, state: _Set, char: str) -> bool:
        """True if a match ends before `char`."""
        known = state.ends.get(char)
        if known is None:
            self._kept += 1
            known = state.ends[char] = self._end in self._alive(state, char)
        return known

    def _place(self, test: Callable[[str], object] | None, look: str = "", *following: int) -> int:
        if len(self._next) >= MOST_PLACES:
            raise ShapeError(
                f"the pattern has more than {MOST_PLACES} places with its repetitions written out",
                hint="repeat fewer times, or a smaller part",
            )
        self._tests.append(test)
        self._looks.append(look)
        self._next.append(following)
        return len(self._next) - 1

    def _made(self, tree: Tree, then: int) -> int:
        """The first place of a tree that goes on at `then`."""
        if isinstance(tree, Letter):
            one = len(tree.test) == 1 and not tree.flags and tree.test != "."
            return self._place(tree.test.__eq__ if one else re.compile(tree.test, tree.flags).match, "", then)
        if isinstance(tree, Look):
            return self._place(None, tree.kind, then)
        if isinstance(tree, Chain):
            for part in reversed(tree.parts):
                then = self._made(part, then)
            return then
        if isinstance(tree, OneOf):
            return self._place(None, "", *(self._made(part, then) for part in tree.parts))
        end = then
        if tree.most is None:
            then = self._place(None)
            self._next[then] = (self._made(tree.part, then), end)
        else:
            for _ in range(tree.most - tree.least):
                then = self._place(None, "", self._made(tree.part, then), end)
        for _ in range(tree.least):
            then = self._made(tree.part, then)
        return then

    def _set(self, places: tuple[int, ...], before: str) -> _Set:
        sets = self._sets
        state = sets.get((places, before))
        if state is None:
            self._kept += len(places) + 1
            if self._kept > MOST_KEPT:
                sets = self._sets = {}
                self._kept = len(places) + 1
            state = sets[places, before] = _Set(places, before)
        return state

    def _move(self, state: _Set, char: str) -> _Set:
        tests, following = self._tests, self._next
        after: set[int] = set()
        for place in self._alive(state, char):
            test = tests[place]
            if test is not None and test(char) not in (None, False):
                after.update(following[place])
        next_state = self._set(tuple(sorted(after)), _before(char))
        self._kept += 1
        state.moves[char] = next_state
        return next_state

    def _alive(self, state: _Set, char: str) -> set[int]:
        """Chain places that are reached without a character, where `char` comes next, "" at the end."""
        alive, open_ = set[int](), list(state.places)
        while open_:
            place = open_.pop()
            if place in alive or (self._looks[place] and not _holds(self._looks[place], state.before, char)):
                continue
            alive.add(place)
            if self._tests[place] is None:
                open_ += self._next[place]
        return alive


def _before(char: str) -> str:
    return "word" if char in WORD else "line" if char == "\n" else "other"


def _holds(look: str, before: str, char: str) -> bool:
    if look == "A":
        return before == "start"
    if look == "z":
        return not char
    if look == "^":
        return before in ("start", "line")
    if look == "$":
        return char in ("", "\n")
    return ((before == "word") is not (char in WORD)) is (look == "b")


def _simple(tree: Tree) -> re.Pattern[str] | None:
    parts = list(tree.parts) if isinstance(tree, Chain) else [tree]
    last = parts[-1] if parts else tree
    ending = ""
    if isinstance(last, Repeat) and isinstance(last.part, Letter) and last.least and last.most is None:
        ending = "+" if last.least == 1 else f"{{{last.least},}}"
        parts[-1] = last.part
    if not parts or not all(isinstance(p, Letter) for p in parts):
        return None
    letters = [p for p in parts if isinstance(p, Letter)]
    if len({p.flags for p in letters}) > 1:
        return None
    written = [p.test if len(p.test) > 1 or p.test == "." else re.escape(p.test) for p in letters]
    return re.compile("".join(written) + ending, letters[0].flags)

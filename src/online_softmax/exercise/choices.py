"""A choice among options, by letters or by words."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from .fields import Grade, clean

#: Option that is a word -> other words that mean it.
_TERMS: Final[Mapping[str, tuple[str, ...]]] = {
    "memory": ("bandwidth", "bandwidth bound", "the memory", "the memory bandwidth"),
    "compute": ("computation", "arithmetic", "flops", "compute throughput", "the compute"),
    "yes": ("true", "finite", "it is"),
    "no": ("false", "not finite", "infinite", "inf", "it is not"),
}


@dataclass(frozen=True)
class Choice:
    """One of several options, by its letter or its words.

    Attributes:
        options: as shown, in order; letters a, b, c ... where `lettered`, else the options are short words.
        right: places of the right ones: all of them, and no other, are to be named.
        hints: place -> what to say to whoever chose it.
        many: whether the sheet says that several may be right.
    """

    options: tuple[str, ...]
    right: frozenset[int]
    hints: Mapping[int, str] | None = None
    nudge: str = "Try each option on the smallest case you can think of."
    lettered: bool = True
    many: bool = False

    @property
    def label(self) -> str:
        if not self.lettered:
            return " or ".join(self.options)
        last = chr(ord("a") + len(self.options) - 1)
        many = "every letter that applies" if self.many else "one letter"
        return f"{many}, a to {last}"

    @property
    def answer(self) -> str:
        return ", ".join(self._name(at) for at in sorted(self.right))

    def _name(self, at: int) -> str:
        return chr(ord("a") + at) if self.lettered else self.options[at]

    def grade(self, text: str) -> Grade:
        text = clean(text)
        if not text:
            return Grade("unanswered")
        chosen = self._chosen(text)
        if chosen is None:
            return Grade("wrong", f"cannot be read: {self.label} would do", readable=False)
        if chosen == self.right:
            return Grade("right")
        for at in sorted(chosen - self.right):
            if self.hints and at in self.hints:
                return Grade("wrong", self.hints[at])
        if chosen < self.right:
            return Grade("wrong", "right as far as it goes: there is more")
        if chosen > self.right:
            return Grade("wrong", "not all of these")
        return Grade("wrong", self.nudge)

    def _chosen(self, text: str) -> frozenset[int] | None:
        folded = _folded(text)
        for at, option in enumerate(self.options):
            if folded == _folded(option) or (
                self.lettered and folded == _folded(f"{self._name(at)} {option}")
            ):
                return frozenset({at})
        if not self.lettered:
            meant = [at for at, option in enumerate(self.options) if folded in _other_words(option)]
            return frozenset(meant) if len(meant) == 1 else None
        names = [name for name in re.split(r"[\s,;&()./:]+|\band\b", text.lower()) if name]
        if self.many and len(names) == 1 and len(set(text)) == len(text):
            names = list(names[0])  # `abc`
        places = [ord(name) - ord("a") for name in names if len(name) == 1]
        if len(places) != len(names) or not all(0 <= at < len(self.options) for at in places):
            return None
        return frozenset(places) or None


def _other_words(option: str) -> tuple[str, ...]:
    """What else is written for an option that is a word: its first letter, and the terms of the field."""
    return (option[0], *(f"{option} {word}" for word in ("bound", "bandwidth")), *_TERMS.get(option, ()))


def _folded(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", " ", text.lower()).strip()


def choice(
    options: Sequence[tuple[str, str]], right: int | Sequence[int], order: Sequence[int], nudge: str = ""
) -> Choice:
    """A choice whose (option, hint) are shown in another order. `right` counts in the order given here: one,
    or a list where several may be right."""
    chosen = {right} if isinstance(right, int) else set(right)
    return Choice(
        tuple(options[at][0] for at in order),
        frozenset(place for place, at in enumerate(order) if at in chosen),
        {place: options[at][1] for place, at in enumerate(order) if options[at][1]},
        nudge or "Try each option on the smallest case you can think of.",
        many=not isinstance(right, int),
    )

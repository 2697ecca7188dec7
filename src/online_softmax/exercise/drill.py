"""The exercise in a terminal: one question at a time, graded at once."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from .catalogue import PARTS, parts
from .fields import Grade
from .questions import Ask, Part, Question
from .sheet import options

WIDTH: Final = 100
TRIES: Final = 2
HELP: Final = "? gives a hint, skip goes on, quit ends"


@dataclass
class Score:
    """What came of a drill: keys of the questions by how they went."""

    total: int = 0
    first: list[str] = field(default_factory=list)
    second: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0 where every question was answered rightly, at the first or second try, else 1."""
        return 0 if len(self.first) + len(self.second) == self.total else 1

    def text(self) -> str:
        """One line."""
        asked = len(self.first) + len(self.second) + len(self.missed) + len(self.skipped)
        return (
            f"{len(self.first)} right at once, {len(self.second)} at the second try, {len(self.missed)} "
            f"missed, {len(self.skipped)} skipped, {self.total - asked} not asked"
        )


class _Quit(Exception):
    pass


class Drill:
    """Asks the questions of a seed's exercise.

    Args:
        seed: as for `new_sheet`.
        part: "1" to "6" or "bonus"; None for all of them.
        read: gives the next line typed, without its end, or None when there is no more; it may raise
            KeyboardInterrupt. Both end the drill, with its score.
        write: shows text.

    Raises ValueError for another part or seed.
    """

    def __init__(
        self, seed: int, part: str | None, read: Callable[[], str | None], write: Callable[[str], None]
    ) -> None:
        if part is not None and part not in PARTS:
            raise ValueError(f"part: {part!r} is unknown; {', '.join(PARTS)} would do")
        self.parts = [p for p in parts(seed) if part in (None, p.name)]
        self.read, self.write = read, write
        self.tried: str | None = None
        self.score = Score(sum(1 for p in self.parts for q in p.questions for _ in q.fields()))

    def run(self) -> Score:
        """Ask until the questions or the lines end."""
        self.write(f"{self.score.total} questions; {HELP}.\n")
        try:
            for part in self.parts:
                self._part(part)
        except (_Quit, KeyboardInterrupt):
            if self.tried is not None:
                self.score.missed.append(self.tried)  # its only try was wrong
            self.write("\n")
        self.write(f"{self.score.text()}\n")
        return self.score

    def _part(self, part: Part) -> None:
        name = "Bonus" if part.name == "bonus" else f"Part {part.name}"
        self.write(f"\n{name}. {part.title}\n")
        self._show(part.text)
        for question in part.questions:
            self._question(question)

    def _question(self, question: Question) -> None:
        self.write(f"\n{question.number} {question.title}\n")
        self._show(question.text)
        for ask in question.fields():
            self._ask(ask)

    def _show(self, text: str) -> None:
        if text:
            self.write(textwrap.fill(text, WIDTH) + "\n")

    def _ask(self, ask: Ask) -> None:
        self.write("\n")
        self._show(f"{ask.key}: {ask.text} ({ask.field.label})")
        self.write("".join(f"  {line}\n" for line in options(ask) if line))
        tries, self.tried = 0, None
        while True:
            grade = self._answer(ask)
            if grade is None:
                self.score.skipped.append(ask.key)
                self.tried = None
                return
            if not grade.readable:
                self._show_hint(grade.message)
                continue
            if grade.status == "right":
                self.tried = None
                (self.score.second if tries else self.score.first).append(ask.key)
                self.write("right" + (f": {grade.message}" if grade.message else "") + "\n")
                return
            tries += 1
            self.tried = ask.key if tries < TRIES else None
            if tries == TRIES:
                self.score.missed.append(ask.key)
                self._show_hint(f"wrong: {grade.message}\nthe answer: {ask.field.answer}")
                return
            self._show_hint(f"wrong: {grade.message}")

    def _show_hint(self, message: str) -> None:
        first, *rest = message.split("\n")
        self.write("\n".join([textwrap.fill(first, WIDTH), *rest]) + "\n")

    def _answer(self, ask: Ask) -> Grade | None:
        """The grade of the next answer typed; None to skip it."""
        while True:
            self.write("> ")
            line = self.read()
            if line is None or line.strip().lower() in ("quit", "exit", "q"):
                raise _Quit
            typed = line.strip()
            if typed == "?":
                self._show(f"hint: {ask.field.nudge}")
            elif typed.lower() == "skip":
                return None
            else:
                grade = ask.field.grade(typed)
                if grade.status != "unanswered":
                    return grade
                self.write(f"{HELP}.\n")

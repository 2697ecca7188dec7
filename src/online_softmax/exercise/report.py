"""What a sheet is worth: every answer graded, totals by part, as text and as JSON."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from .catalogue import PARTS, VERSION, fields
from .fields import Status
from .sheet import read_sheet

WIDTH: Final = 110


@dataclass(frozen=True)
class Result:
    """One graded answer.

    Attributes:
        key: "2.2d", or "5.2 [three passes / reads]" for a cell of a table.
        part: "1" to "6" or "bonus".
        status: "right", "wrong" or "unanswered".
        given: the text as it was written.
        message: a hint where wrong, a remark or "" where right.
        answer: the right answer, in one of its forms.
    """

    key: str
    part: str
    status: Status
    given: str
    message: str
    answer: str


@dataclass(frozen=True)
class Report:
    """A graded sheet: `results` in its order."""

    seed: int
    results: tuple[Result, ...]

    def count(self, status: Status, part: str | None = None) -> int:
        """How many answers are of this status, in all or in one part."""
        return sum(r.status == status and part in (None, r.part) for r in self.results)

    @property
    def score(self) -> float:
        """Share of right answers, 0 to 1."""
        return self.count("right") / len(self.results)

    @property
    def exit_code(self) -> int:
        """0 where everything is right, else 1."""
        return 0 if self.count("right") == len(self.results) else 1

    def __getitem__(self, key: str) -> Result:
        """The result of one answer. Raises KeyError."""
        for result in self.results:
            if result.key == key:
                return result
        raise KeyError(key)

    def as_json(self, *, answers: bool = False) -> dict[str, Any]:
        """For `json.dumps`; with `answers` the right ones too."""
        return {
            "seed": self.seed,
            "version": VERSION,
            "right": self.count("right"),
            "wrong": self.count("wrong"),
            "unanswered": self.count("unanswered"),
            "parts": {part: self._totals(part) for part in PARTS},
            "answers": [
                {
                    "key": r.key,
                    "part": r.part,
                    "status": r.status,
                    "given": r.given,
                    "message": r.message,
                    **({"answer": r.answer} if answers else {}),
                }
                for r in self.results
            ],
        }

    def _totals(self, part: str) -> dict[str, int]:
        statuses: Sequence[Status] = ("right", "wrong", "unanswered")
        return {status: self.count(status, part) for status in statuses}

    def text(self, *, answers: bool = False) -> str:
        """Line by line, then the totals; with `answers` the right ones beside what is not right."""
        lines = []
        for part in PARTS:
            results = [r for r in self.results if r.part == part]
            lines.append(f"{_name(part)}: {self._summary(part)}")
            for result in results:
                lines += _lines(result, answers)
            lines.append("")
        lines.append(f"in all: {self._summary(None)}")
        return "\n".join(lines)

    def _summary(self, part: str | None) -> str:
        total = sum(part in (None, r.part) for r in self.results)
        wrong, left = self.count("wrong", part), self.count("unanswered", part)
        return f"{self.count('right', part)} of {total} right, {wrong} wrong, {left} unanswered"


def check_sheet(text: str) -> Report:
    """Grade a filled sheet.

    Args:
        text: of a file made from `new_sheet`. Line ends, blanks, the layout of tables, and what Markdown
            editors escape do not matter.

    Raises SheetError where the text is no sheet: the line of the seed missing or changed, answers missing,
    unknown or twice there. MissingExtra where formulas are to be graded and sympy is not installed (extra
    `symbols`). Cost: well under a second; no answer can make it hang.
    """
    seed, given = read_sheet(text)
    results = []
    for part, ask in fields(seed):
        grade = ask.field.grade(given[ask.key])
        results.append(Result(ask.key, part, grade.status, given[ask.key], grade.message, ask.field.answer))
    return Report(seed, tuple(results))


def _name(part: str) -> str:
    return "bonus" if part == "bonus" else f"part {part}"


def _lines(result: Result, answers: bool) -> list[str]:
    head = f"  {result.key}: {result.status}"
    first, *rest = result.message.split("\n")
    lines = textwrap.wrap(f"{head}: {first}" if first else head, WIDTH, subsequent_indent=" " * 6)
    lines += [f"  {line}" for line in rest]
    if answers and result.status != "right":
        lines.append(f"      answer: {result.answer}")
    return lines

"""The sheet as a file: what editors may do to it, and what they may not."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from online_softmax.exercise import SheetError, check_sheet, decode, fill_sheet, new_sheet
from online_softmax.exercise.catalogue import fields

SEED = 42
KEY = {ask.key: ask.field.answer for _, ask in fields(SEED)}
EMPTY = new_sheet(SEED)
FULL = fill_sheet(EMPTY, KEY)


def reflowed(text: str) -> str:
    """Tables packed, without outer bars, aligned, their columns turned round."""

    def table(match: re.Match[str]) -> str:
        rows = [[c.strip() for c in row.strip("| ").split("|")] for row in match[0].strip().split("\n")]
        rows[1] = [":---:"] * len(rows[1])
        return "\n".join(" | ".join([row[0], *row[:0:-1]]) for row in rows) + "\n"

    return re.sub(r"(?:^\|.*\n)+", table, text, flags=re.M)


def escaped(text: str) -> str:
    """As rich-text editors save Markdown."""
    return re.sub(r"([*_#])", r"\\\1", text)


def wrapped(text: str) -> str:
    """Every paragraph broken after four words."""
    lines = [
        line if line.startswith(("|", "#")) else re.sub(r"((?:\S+ ){3}\S+) ", r"\1\n", line)
        for line in text.split("\n")
    ]
    return "\n".join(lines)


DISTORTIONS: dict[str, Callable[[str], str]] = {
    "CRLF": lambda t: t.replace("\n", "\r\n"),
    "old Mac": lambda t: t.replace("\n", "\r"),
    "mark": lambda t: "\ufeff" + t,
    "trailing blanks": lambda t: t.replace("\n", " \t \n"),
    "tabs": lambda t: t.replace(" ", "\t"),
    "no-break spaces": lambda t: t.replace(" ", "\u00a0"),
    "quoted": lambda t: "".join(f"> {line}\n" for line in t.split("\n")),
    "tables": reflowed,
    "escapes": escaped,
    "wrapped": wrapped,
    "no emphasis": lambda t: t.replace("**", ""),
    "other emphasis": lambda t: t.replace("**", "__"),
    "bold labels with the colon": lambda t: re.sub(r"\*\*(Answer \S+)\*\* (\(.*?\)):", r"**\1 \2:**", t),
    "no labels": lambda t: re.sub(r"(\*\*Answer \S+\*\*) \([^)]*\):", r"\1:", t),
    "questions deleted": lambda t: "\n".join(
        line for line in t.split("\n") if re.match(r"Sheet|\*\*|\||$", line)
    ),
    "no blank lines between answers": lambda t: re.sub(r"\n\n(\*\*Answer)", r"\n\1", t),
    "rows turned": lambda t: re.sub(
        r"(\| three passes .*\n)(\| online.*\n)", lambda m: m[2] + m[1], t
    ),
    "capitals": lambda t: t.replace("Answer", "ANSWER").replace("Sheet: seed", "SHEET: SEED"),
}  # fmt: skip


@pytest.mark.parametrize("name", DISTORTIONS)
def test_editors_do_no_harm(name: str) -> None:
    text = DISTORTIONS[name](FULL)
    assert text != FULL
    report = check_sheet(text)
    assert [(r.key, r.given, r.message) for r in report.results if r.status != "right"] == []


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: "", "no line like 'Sheet: seed 42"),
        (lambda t: t.replace("Sheet: seed 42", "Sheet"), "no line like 'Sheet: seed 42"),
        (lambda t: t.replace("seed 42", "seed 43"), "seed 43 and code .* do not belong together"),
        (lambda t: t.replace("seed 42", f"seed {2**63}"), "do not belong together"),
        (lambda t: t.replace("version 1", "version 2"), "a sheet of version 2, and version 1 is graded"),
        (lambda t: t + new_sheet(1), "two sheets in this file"),
        (lambda t: t + EMPTY, "answer 1.1 is there twice"),
        (lambda t: t.replace("Answer 2.2d", "Answer 2.2a"), "answer 2.2a is there twice"),
        (lambda t: t.replace("Answer 2.2d", "Answer 2.9"), "answer 2.9 is none of this sheet"),
        (lambda t: t.replace("**Answer 2.2d**", "**2.2d**"), "answer 2.2d missing"),
        (lambda t: re.sub(r"\*\*Answer 7.*", "", t), "answer 7.1a, 7.1b, 7.1c and 1 more missing"),
        (lambda t: t.replace("Table 5.2", "Table 5.9"), "table 5.9 is none of this sheet"),
        (lambda t: t.replace("Table 5.2", "Table 5.3"), "table 5.3: its columns are not"),
        (lambda t: t.replace("**Table 5.2**", ""), "answer 5.2 .* missing"),
        (lambda t: t.replace("| three passes", "| four passes", 1), "table 5.2: it has no row 'four passes'"),
        (lambda t: t.replace("| online, two passes", "| three passes", 1), "is there twice"),
        (lambda t: re.sub(r"\| three passes .*\n", "", t, count=1), "answer 5.2 .three passes / re.*missing"),
        (lambda t: t.replace("| traversals |", "| passes |"), "table 5.2: its columns are not reads, writes"),
        (lambda t: re.sub(r"(\| three passes .*)\|\n", r"\1| 1 | 2 |\n", t, count=1), "is a | too many"),
        (lambda t: t + "x" * 2**20, "are no answer sheet: up to 1048576 would do"),
    ],
)  # fmt: skip
def test_a_damaged_sheet_is_refused_and_says_where(change: Callable[[str], str], reason: str) -> None:
    damaged = change(EMPTY)
    assert damaged != EMPTY
    with pytest.raises(SheetError, match=reason.replace("|", r"\|")):
        check_sheet(damaged)


def test_answers_are_written_and_read_back() -> None:
    answers = {"2.2d": "S = s*exp(m - M)\n + exp(x - M)", "5.2 [three passes / reads]": "3", "1.2": " "}
    sheet = fill_sheet(EMPTY, answers)
    report = check_sheet(sheet)
    assert report["2.2d"].given == "S = s*exp(m - M) + exp(x - M)"
    assert (report["2.2d"].status, report["5.2 [three passes / reads]"].status) == ("right", "right")
    assert report["1.2"].status == "unanswered"
    again = fill_sheet(sheet, {"2.1": "max(m, x)"})
    assert check_sheet(again).count("right") == 3
    with pytest.raises(ValueError, match=r"answers: '9\.9' is no answer of this sheet; 1\.1, 1\.2, 1\.3a"):
        fill_sheet(EMPTY, {"9.9": "1"})
    with pytest.raises(KeyError):
        report["9.9"]


def test_an_answer_may_run_over_lines() -> None:
    sheet = EMPTY.replace(
        "**Answer 2.1** (a formula in m, x): ____", "**Answer 2.1** (a formula in m, x):\nmax(m,\n  x)"
    )
    assert check_sheet(sheet)["2.1"].given == "max(m, x)"


def test_files_of_other_encodings() -> None:
    assert decode(FULL.encode("utf-8-sig")) == FULL
    assert check_sheet(decode(FULL.encode("utf-16"))).exit_code == 0
    with pytest.raises(SheetError, match="no text in UTF-8"):
        decode(b"\x89PNG\r\n")
    with pytest.raises(SheetError, match="are no answer sheet"):
        decode(b" " * (2**20 + 1))


def test_no_line_of_prose_is_taken_for_markup() -> None:
    for seed in range(3):
        for line in new_sheet(seed).split("\n"):
            assert len(line) <= 160
            assert not re.match(r"[+*=>]\s|-\s(?![a-g]\) |\*\*)", line), line

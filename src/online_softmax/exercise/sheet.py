"""The answer sheet: Markdown that a person fills in with any editor, and its reading back.

A sheet holds its seed and version, from which the questions are made again when it is graded; of the file
itself only that line, the answer lines and the cells of tables are read, so nothing depends on how an editor
breaks lines, pads tables, ends lines or escapes marks. It never holds the answers.
"""

from __future__ import annotations

import re
import textwrap
import zlib
from collections.abc import Iterator, Mapping
from typing import Final

from .catalogue import LARGEST_SEED, VERSION, fields, parts
from .choices import Choice
from .fields import clean, unescaped
from .questions import Ask, Grid, Question, cell_key

BLANK: Final = "____"
MAX_SIZE: Final = 1 << 20
WIDTH: Final = 100
_SEED: Final = re.compile(r"sheet\W+seed\W+(\d{1,30})\W+version\W+(\d{1,9})\W+code\W+([0-9a-f]{6})\b", re.I)
_ANSWER: Final = re.compile(r"^[\s*_+]*(?:[-+*]\s+)?[*_\s]*Answer\s+(\d+\.\d+[a-z]?)(?![^\W_]|\.\d)", re.I)
_TABLE: Final = re.compile(r"^[\s*_]*Table\s+(\d+\.\d+)(?![^\W_]|\.\d)", re.I)
_QUOTE: Final = re.compile(r"^(?:\s*>)+ ?")
_RULE: Final = re.compile(r"^[\s|:+=-]*-[\s|:+=-]*$")

INTRODUCTION: Final = """\
For paper, a pencil and a pocket calculator. Write each answer in place of `____`, after the colon or
in the table; leave blank what you do not know. Then:

    online-softmax exercise check FILE

- **Numbers**: `16384`, `16,384`, `2^14`, `4 * 4096 B`, `16 KiB`, `134.2 us`, `3.4e38`, `ln(2)`, `-inf`.
  Decimals have a point. Counts are exact; what is worked out is right within 0.5 %, or as the
  question says.
- **Formulas**: `+ - * / ^`, brackets, `exp(...)`, `ln(...)`, `max(a, b)`, in the variables named. Any
  form is right that is equal for all scores and, on a computer, for scores of 800 too.
- **Choices**: the letter, or the letters.
"""


class SheetError(ValueError):
    """A text that is no answer sheet, or one whose lines have been damaged."""


# --- writing ------------------------------------------------------------------------------------------


def seal(seed: int) -> str:
    """Six digits that belong to a seed, so that a typing error in it is noticed."""
    return f"{zlib.crc32(f'online-softmax exercise {VERSION} {seed}'.encode()) & 0xFFFFFF:06x}"


def new_sheet(seed: int) -> str:
    """An empty answer sheet: Markdown, the same text for the same seed.

    Args:
        seed: 0 to 2^63 - 1; every one has other sizes, formats, bandwidths and scores.

    Raises TypeError or ValueError for another seed. Cost: a tenth of a second.
    """
    return _render(seed, {})


def fill_sheet(text: str, answers: Mapping[str, str]) -> str:
    """The sheet with answers written in, laid out anew; those it has already stay where none is given.

    Args:
        text: a sheet.
        answers: key -> text, as "2.2d" or "5.2 [three passes / reads]"; `check_sheet` names the keys.

    Raises SheetError as `check_sheet`, ValueError for a key that the sheet does not have.
    """
    seed, given = read_sheet(text)
    for key in answers:
        if key not in given:
            raise ValueError(
                f"answers: {key!r} is no answer of this sheet; {', '.join(list(given)[:4])} ... are"
            )
    return _render(seed, given | {key: " ".join(value.split()) for key, value in answers.items()})


def _render(seed: int, answers: Mapping[str, str]) -> str:
    lines = ["# Online softmax, worked out by hand", ""]
    lines += [f"Sheet: seed {seed}, version {VERSION}, code {seal(seed)}", "", INTRODUCTION]
    for part in parts(seed):
        heading = "Bonus" if part.name == "bonus" else f"Part {part.name}"
        lines += [f"## {heading}. {part.title}", "", _wrapped(part.text), ""]
        for question in part.questions:
            lines += _question(question, answers)
    return "\n".join(lines).rstrip() + "\n"


def _question(question: Question, answers: Mapping[str, str]) -> Iterator[str]:
    yield from (f"### {question.number} {question.title}", "")
    if question.text:
        yield from (_wrapped(question.text), "")
    for ask in question.asks:
        yield from (_wrapped(f"{ask.key}: {ask.text}"), "")
        yield from options(ask)
        yield from (f"**Answer {ask.key}** ({ask.field.label}): {answers.get(ask.key) or BLANK}", "")
    if question.grid is not None:
        yield from (f"**Table {question.number}**", "", *_table(question.number, question.grid, answers), "")


def _wrapped(text: str) -> str:
    """Lines of an editor's width, none of which begins with what Markdown takes for a list or a heading."""
    tied = re.sub(r" ([-+*/=<>#]) ", "\u00a0\\1\u00a0", text)
    return textwrap.fill(tied, WIDTH, break_long_words=False, break_on_hyphens=False).replace("\u00a0", " ")


def options(ask: Ask) -> list[str]:
    """The options of a choice, a line each, and a blank one; nothing for other fields."""
    field = ask.field
    if not isinstance(field, Choice) or not field.lettered:
        return []
    return [*(f"- {chr(ord('a') + at)}) {text}" for at, text in enumerate(field.options)), ""]


def _table(number: str, grid: Grid, answers: Mapping[str, str]) -> Iterator[str]:
    rows = [[grid.corner, *grid.columns]]
    for row in grid.rows:
        rows.append([row, *(answers.get(cell_key(number, row, column)) or BLANK for column in grid.columns)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for at, cells in enumerate(rows):
        yield "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"
        if at == 0:
            yield "| " + " | ".join("-" * width for width in widths) + " |"


# --- reading ------------------------------------------------------------------------------------------


def decode(data: bytes) -> str:
    """The text of a file: UTF-8, or UTF-16 with its mark. SheetError for anything else."""
    if len(data) > MAX_SIZE:
        raise SheetError(f"{len(data)} bytes are no answer sheet: up to {MAX_SIZE} would do")
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    try:
        return data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise SheetError(f"this is no text in UTF-8 ({error.reason} at byte {error.start})") from error


def read_sheet(text: str) -> tuple[int, dict[str, str]]:
    """Seed and answers of a sheet, as they were written, "" where nothing was.

    Raises SheetError for a text without the line of the seed, one of another version, and one whose answers
    are not those of the seed: some missing, unknown or twice there.
    """
    if len(text) > MAX_SIZE:
        raise SheetError(f"{len(text)} characters are no answer sheet: up to {MAX_SIZE} would do")
    seed = _seed(text)
    labels = {ask.key: ask.field.label for _, ask in fields(seed)}
    found: dict[str, str] = {}
    lines = [_QUOTE.sub("", line) for line in text.lstrip("\ufeff").splitlines()]
    for key, given in _found(lines, seed):
        if key not in labels:
            raise SheetError(f"answer {key} is none of this sheet: was its number or its table changed?")
        if key in found:
            raise SheetError(f"answer {key} is there twice: delete one")
        found[key] = clean(_without_label(given, labels[key]))
    missing = [key for key in labels if key not in found]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise SheetError(
            f"answer {', '.join(missing[:3])}{more} missing: put the line or the table back as it was, blank"
        )
    return seed, {key: found[key] for key in labels}


def _seed(text: str) -> int:
    lines = {match.groups() for match in _SEED.finditer(unescaped(text))}
    if not lines:
        raise SheetError(
            "no line like 'Sheet: seed 42, version 1, code ...' is there: this is no answer sheet, or that "
            "line was changed"
        )
    if len(lines) > 1:
        raise SheetError("there are two sheets in this file: give each a file of its own")
    ((seed, version, code),) = lines
    if int(version) != VERSION:
        raise SheetError(
            f"this is a sheet of version {version}, and version {VERSION} is graded here: make a new one"
        )
    if int(seed) > LARGEST_SEED or code.lower() != seal(int(seed)):
        raise SheetError(f"seed {seed} and code {code} do not belong together: was the seed changed?")
    return int(seed)


def _found(lines: list[str], seed: int) -> Iterator[tuple[str, str]]:
    """(key, text) of every answer line and cell."""
    grids = {q.number: q.grid for part in parts(seed) for q in part.questions if q.grid is not None}
    at = 0
    while at < len(lines):
        line = unescaped(lines[at])
        at += 1
        if match := _ANSWER.match(line):
            given = [line[match.end() :]]
            while at < len(lines) and _continues(lines[at]):
                given.append(unescaped(lines[at]))
                at += 1
            yield match[1].lower(), " ".join(given)
        elif match := _TABLE.match(line):
            if match[1] not in grids:
                raise SheetError(f"table {match[1]} is none of this sheet: was its number changed?")
            while at < len(lines) and not lines[at].strip():
                at += 1
            rows = []
            while at < len(lines) and "|" in lines[at]:
                rows.append(_cells(lines[at]))
                at += 1
            yield from _of_table(match[1], grids[match[1]], rows)


def _continues(line: str) -> bool:
    """Whether a line belongs to the answer above it."""
    plain = unescaped(line)
    return bool(plain.strip()) and not (
        _ANSWER.match(plain) or _TABLE.match(plain) or plain.lstrip().startswith(("#", "|"))
    )


def _without_label(text: str, label: str) -> str:
    """What stands behind "Answer 2.1": without the label in brackets, the colon, and marks of bold print."""
    words = r"\s+".join(re.escape(word) for word in label.split())
    text = re.sub(rf"^[\s*_]*\(\s*{words}\s*\)", "", text)
    return text.lstrip("*_: \t")


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|")
    inner = inner[:-1] if inner.endswith("|") and not inner.endswith("\\|") else inner
    return [clean(cell) for cell in re.split(r"(?<!\\)\|", inner)]


def _of_table(number: str, grid: Grid, rows: list[list[str]]) -> Iterator[tuple[str, str]]:
    """Cells by the labels of their row and column, wherever those stand now."""
    rows = [row for row in rows if not _RULE.match("|".join(row) or "-")]
    if not rows:
        raise SheetError(f"table {number} has no rows: put it back as it was")
    columns = {_plain(name): name for name in grid.columns}
    labels = {_plain(name): name for name in grid.rows}
    header, width = rows[0], 1 + len(columns)
    heads = [columns.get(_plain(cell)) for cell in header[1:]]
    if None in heads or len(header) != width:
        raise SheetError(f"table {number}: its columns are not {', '.join(grid.columns)} any more")
    for row in rows[1:]:
        label = labels.get(_plain(row[0]))
        if label is None:
            raise SheetError(f"table {number}: it has no row {row[0]!r}; was its first column changed?")
        if len(row) > width:
            raise SheetError(
                f"table {number}, row {label}: {len(row)} cells where {width} belong; is a | too many?"
            )
        for name, cell in zip(heads, [*row[1:], *[""] * (width - len(row))], strict=True):
            yield cell_key(number, label, str(name)), cell


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "", text.lower())

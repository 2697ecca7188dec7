"""`online-softmax exercise new`, `check` and `drill`."""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Annotated, TextIO

import typer

from .. import exercise

app = typer.Typer(
    help="An exercise on paper: answer sheets, their grading, and a drill.",
    rich_markup_mode=None,
)

Seed = Annotated[
    int | None, typer.Option(min=0, max=2**63 - 1, show_default=False, help="Which exercise (drawn anew).")
]


def _seed(given: int | None) -> int:
    """What was given, else a short one that can be told to others."""
    return random.SystemRandom().randrange(10**6) if given is None else given


@app.command()
def new(
    seed: Seed = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write there; a new file (stdout).")
    ] = None,
) -> None:
    """Make an answer sheet, to be filled in with any editor: online-softmax exercise new > sheet.md"""
    sheet = exercise.new_sheet(_seed(seed))
    if out is None:
        print(sheet, end="")
        return
    try:
        with out.open("x", encoding="utf-8") as file:
            file.write(sheet)
    except FileExistsError as error:
        raise ValueError(
            f"--out: {out} is there already, perhaps with answers in it; give a new name"
        ) from error


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="SHEET", help="A filled sheet; - reads it from stdin.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    show_answers: Annotated[bool, typer.Option("--show-answers", help="Show right answers too.")] = False,
) -> None:
    """Grade a sheet: every answer right, wrong (with a hint) or unanswered, and totals by part.

    Exit code: 0 everything is right; 1 something is wrong or unanswered; 2 this is no readable sheet.
    """
    data = _stdin().buffer.read(exercise.MAX_SIZE + 1) if str(file) == "-" else _read(file)
    try:
        report = exercise.check_sheet(exercise.decode(data))
    except exercise.SheetError as error:
        raise ValueError(f"{file}: {error}") from error
    if as_json:
        print(json.dumps(report.as_json(answers=show_answers), indent=2, ensure_ascii=False))
    else:
        print(report.text(answers=show_answers))
    raise typer.Exit(report.exit_code)


def _stdin() -> TextIO:
    """Python has none where the shell closed it: `<&-`."""
    if sys.stdin is None:
        raise ValueError("stdin is closed: give a file, or feed one with `< FILE`")
    return sys.stdin


def _read(file: Path) -> bytes:
    with file.open("rb") as stream:
        return stream.read(exercise.MAX_SIZE + 1)


@app.command()
def drill(
    seed: Seed = None,
    part: Annotated[
        str | None, typer.Option(metavar="PART", show_default=False, help="1 to 6, or bonus (all).")
    ] = None,
) -> None:
    """Answer one question at a time: ? gives a hint, skip goes on; quit, Ctrl-D, Ctrl-C end with the score.

    Exit code: 0 if everything was answered rightly, at the first or second try; else 1.
    """
    answers = _stdin()

    def read() -> str | None:
        line = answers.readline()
        return line.rstrip("\n") if line else None

    def write(text: str) -> None:
        print(text, end="", flush=True)

    chosen = _seed(seed)
    session = exercise.Drill(chosen, part, read, write)
    write(f"Seed {chosen}: --seed {chosen} asks the same again.\n")
    raise typer.Exit(session.run().exit_code)

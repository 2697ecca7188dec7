"""`online-softmax exercise`: what it prints, its exit codes, and the drill in a terminal and in a pipe."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from online_softmax.cli import main
from online_softmax.exercise import Drill, check_sheet, fill_sheet, new_sheet
from online_softmax.exercise.catalogue import fields

SEED = 9
DRILL = ["exercise", "drill", "--seed", str(SEED), "--part", "1"]
KEY = {ask.key: ask.field.answer for _, ask in fields(SEED)}


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["exercise", *arguments])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_new_check_and_the_exit_codes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "sheet.md"
    assert run(capsys, "new", "--seed", str(SEED)) == (0, new_sheet(SEED), "")
    assert run(capsys, "new", "--seed", str(SEED), "-o", str(file)) == (0, "", "")
    assert file.read_text("utf-8") == new_sheet(SEED)
    code, _, error = run(capsys, "new", "-o", str(file))
    assert code == 2
    assert "is there already" in error

    code, out, _ = run(capsys, "check", str(file))
    assert code == 1
    assert out.rstrip().endswith(f"in all: 0 of {len(KEY)} right, 0 wrong, {len(KEY)} unanswered")

    renamed = tmp_path / "my answers.txt"
    renamed.write_bytes(fill_sheet(new_sheet(SEED), KEY).replace("\n", "\r\n").encode("utf-8-sig"))
    code, out, _ = run(capsys, "check", str(renamed))
    assert code == 0
    assert f"in all: {len(KEY)} of {len(KEY)} right, 0 wrong, 0 unanswered" in out

    file.write_text(fill_sheet(new_sheet(SEED), KEY | {"2.2d": "s + exp(x - M)", "2.1": "max(m, x"}), "utf-8")
    code, out, _ = run(capsys, "check", str(file))
    assert code == 1
    assert "  2.2d: wrong: a sum that is shifted by m cannot be added" in out
    assert "  2.1: wrong: cannot be read: this bracket is not closed\n      max(m, x\n         ^\n" in out
    assert KEY["2.2d"] not in out
    assert f"      answer: {KEY['2.2d']}" in run(capsys, "check", str(file), "--show-answers")[1]


def test_json_has_every_answer(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "sheet.md"
    file.write_text(fill_sheet(new_sheet(SEED), KEY | {"1.3a": "0", "1.2": ""}), "utf-8")
    code, out, _ = run(capsys, "check", str(file), "--json")
    told = json.loads(out)
    assert code == 1
    assert (told["seed"], told["version"]) == (SEED, 1)
    assert (told["right"], told["wrong"], told["unanswered"]) == (len(KEY) - 2, 1, 1)
    assert told["parts"]["1"] == {"right": 8, "wrong": 1, "unanswered": 1}
    assert sum(sum(part.values()) for part in told["parts"].values()) == len(KEY)
    by_key = {answer["key"]: answer for answer in told["answers"]}
    assert list(by_key) == list(KEY)
    assert by_key["1.3a"]["given"] == "0"
    assert "One of the terms" in by_key["1.3a"]["message"]
    assert "answer" not in by_key["1.3a"]
    shown = json.loads(run(capsys, "check", str(file), "--json", "--show-answers")[1])
    assert {answer["key"]: answer["answer"] for answer in shown["answers"]} == KEY


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"# notes\n", "sheet.md: no line like 'Sheet: seed 42, version 1"),
        (b"\xff\xfe\x00", "sheet.md: this is no text in UTF-8"),
        (
            new_sheet(SEED).replace("seed 9", "seed 8").encode(),
            "seed 8 and code [0-9a-f]+ do not belong together",
        ),
        (new_sheet(SEED).replace("**Answer 1.1**", "").encode(), "sheet.md: answer 1.1 missing"),
        (None, "sheet.md"),
    ],
)
def test_what_is_no_sheet_ends_with_2(
    content: bytes | None, reason: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / "sheet.md").write_bytes(content)
    code, out, error = run(capsys, "check", str(tmp_path / "sheet.md"))
    assert (code, out) == (2, "")
    assert re.fullmatch(rf"online-softmax: error: .*{reason}.*\n", error), error


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "Missing command"),
        (["new", "--seed", "-1"], "--seed"),
        (["new", "--seed", "x"], "--seed"),
        (["check"], "SHEET"),
        (["drill", "--part", "7", "--seed", "1"], "part: '7' is unknown; 1, 2, 3, 4, 5, 6, bonus would do"),
    ],
)
def test_a_wrong_call_ends_with_2(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, error = run(capsys, *arguments)
    assert code == 2
    assert reason in error
    assert error.count("\n") == 1


def test_a_sheet_from_stdin(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    sheet = fill_sheet(new_sheet(SEED), KEY).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(sheet), "utf-8"))
    assert run(capsys, "check", "-")[0] == 0


def test_a_new_seed_is_drawn_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    sheets = {run(capsys, "new")[1] for _ in range(3)}
    assert len(sheets) == 3
    for sheet in sheets:
        assert check_sheet(sheet).seed < 10**6


# --- drill --------------------------------------------------------------------------------------------


Line = str | type[BaseException] | None


class Terminal:
    """Lines typed, and all that was shown; None ends the input, an exception is raised."""

    def __init__(self, lines: Iterable[Line]) -> None:
        self.lines: Iterator[Line] = iter(lines)
        self.shown = ""

    def read(self) -> str | None:
        line = next(self.lines, None)
        if isinstance(line, type):
            raise line
        return line

    def write(self, text: str) -> None:
        self.shown += text


def drilled(part: str | None, *lines: Line) -> tuple[Drill, str]:
    terminal = Terminal(lines)
    drill = Drill(SEED, part, terminal.read, terminal.write)
    drill.run()
    return drill, terminal.shown


def test_all_right_answers_in_a_row() -> None:
    asked = [ask.key for part, ask in fields(SEED) if part == "2"]
    drill, shown = drilled("2", *(KEY[key] for key in asked))
    assert drill.score.first == asked
    assert drill.score.exit_code == 0
    assert shown.endswith(
        f"{len(asked)} right at once, 0 at the second try, 0 missed, 0 skipped, 0 not asked\n"
    )
    assert shown.count("> right") == len(asked)


def test_hint_second_try_answer_skip_and_quit() -> None:
    drill, shown = drilled(
        "1", "", "?", "exp(c", "exp(-c)", "e^c", "skip", "0", "2", KEY["1.3b"], "quit", "never read"
    )
    score = drill.score
    assert (score.first, score.second, score.missed, score.skipped) == (["1.3b"], ["1.1"], ["1.3a"], ["1.2"])
    assert score.exit_code == 1
    hint, unreadable, wrong, missed = (
        shown.index(text)
        for text in (
            "hint: Split exp(x_i - c)",
            "this bracket is not closed\n    exp(c\n       ^",
            "wrong: that is what the shift put in",
            "the answer: 1\n",
        )
    )
    assert hint < unreadable < wrong < missed
    assert "the answer: exp(c)" not in shown
    assert shown.endswith("\n1 right at once, 1 at the second try, 1 missed, 1 skipped, 6 not asked\n")


@pytest.mark.parametrize("end", [None, KeyboardInterrupt, "QUIT"])
def test_the_end_of_input_and_an_interrupt_end_with_the_score(end: Line) -> None:
    drill, shown = drilled(None, "exp(c)", end)
    assert drill.score.first == ["1.1"]
    assert shown.endswith(
        f"\n1 right at once, 0 at the second try, 0 missed, 0 skipped, {len(KEY) - 1} not asked\n"
    )


@pytest.mark.parametrize("end", [None, KeyboardInterrupt, "quit"])
def test_one_wrong_try_before_the_end_counts_as_wrong(end: Line) -> None:
    drill, shown = drilled("1", "exp(-c)", end)
    assert drill.score.missed == ["1.1"]
    assert shown.endswith("\n0 right at once, 0 at the second try, 1 missed, 0 skipped, 9 not asked\n")
    drill, _ = drilled("1", "exp(-c)", "exp(c)", "?", end)
    assert (drill.score.second, drill.score.missed) == (["1.1"], [])
    drill, _ = drilled("1", "exp(-c)", "skip", end)
    assert (drill.score.skipped, drill.score.missed) == (["1.1"], [])
    drill, _ = drilled("1", "exp(-c)", "c", end)
    assert drill.score.missed == ["1.1"]


def test_the_command_in_a_pipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked = [ask.key for part, ask in fields(SEED) if part == "bonus"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\r\n".join(KEY[key] for key in asked)))
    code, out, error = run(capsys, "drill", "--seed", str(SEED), "--part", "bonus")
    assert (code, error) == (0, "")
    assert out.startswith(f"Seed {SEED}: --seed {SEED} asks the same again.\n4 questions;")
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    code, out, error = run(capsys, "drill", "--part", "bonus")
    assert (code, error) == (1, "")
    assert "4 not asked" in out


class Screen:
    """Our end of a pseudo-terminal."""

    def __init__(self, terminal: int) -> None:
        self.terminal, self.shown, self.at = terminal, b"", 0

    def until(self, text: bytes) -> None:
        """Read on until this has appeared. OSError where the other side is closed before."""
        while text not in self.shown[self.at :]:
            assert select.select([self.terminal], [], [], 60)[0], self.shown
            self.shown += os.read(self.terminal, 1 << 16)
        self.at = self.shown.index(text, self.at) + len(text)


@pytest.mark.parametrize("end", ["interrupt", "Ctrl-D"])
def test_the_command_in_a_terminal(end: str) -> None:
    """Prompts are seen before anything is typed; Ctrl-C and Ctrl-D end it with the score and no traceback."""
    script = f"import sys; from online_softmax.cli import main; sys.exit(main({DRILL!r}))"
    ours, theirs = pty.openpty()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", script],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    ) as process:
        os.close(theirs)
        screen = Screen(ours)
        screen.until(b"(a formula in c)\r\n> ")
        os.write(ours, b"e^c\n")
        screen.until(b"right\r\n")
        screen.until(b"> ")
        if end == "interrupt":
            process.send_signal(signal.SIGINT)
            # One that comes just before the child blocks is only seen when a line ends its waiting.
            os.write(ours, b"\n")
        else:
            os.write(ours, b"\x04")
        screen.until(b"9 not asked\r\n")
        assert process.wait(30) == 1
    os.close(ours)
    assert b"1 right at once, 0 at the second try, 0 missed, 0 skipped, 9 not asked" in screen.shown
    assert b"Traceback" not in screen.shown

"""docs/exercise.md: its code runs, its commands exist, its tolerances are those in force."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path

import pytest

from online_softmax.cli import main
from online_softmax.exercise import check_sheet, fill_sheet, new_sheet, tokens
from online_softmax.exercise.catalogue import fields
from online_softmax.exercise.fields import Number
from online_softmax.exercise.formula import MAX_DEPTH

PAGE = (Path(__file__).parents[2] / "docs" / "exercise.md").read_text(encoding="utf-8")


def test_the_code_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.S)
    assert len(blocks) == 2
    exec(compile("\n".join(blocks), "exercise.md", "exec"), {})
    assert "in all: 2 of" in capsys.readouterr().out


def test_the_commands_exist(capsys: pytest.CaptureFixture[str]) -> None:
    named = set(re.findall(r"online-softmax exercise (\w+)", PAGE))
    assert named == {"new", "check", "drill"}
    for name in named:
        assert main(["exercise", name, "--help"]) == 0
    printed = capsys.readouterr().out
    for option in ("--seed", "--json", "--show-answers", "--part"):
        assert option in printed
        assert option in PAGE


def test_the_error_shown_is_the_one_given() -> None:
    shown = re.search(r"^    (2\.2d: wrong: .*\n)    (    .*\n)    (    .*)$", PAGE, re.M)
    assert shown is not None
    text = check_sheet(fill_sheet(new_sheet(1), {"2.2d": shown[2].strip()})).text()
    assert f"  {shown[1]}  {shown[2]}  {shown[3]}" in text


def test_tolerances_and_limits_are_those_in_force() -> None:
    found = {ask.key: ask.field.tolerance for _, ask in fields(1) if isinstance(ask.field, Number)}
    percent = {
        "5.1b": "0.5", "5.3 [three passes / least time]": "0.5", "5.4b": "0.5", "1.4b": "0.2",
        "4.1 [mini / exp is finite up to]": "0.2", "2.4c": "2", "2.4d": "3",
        "5.2 [three passes / reads]": "0",
    }  # fmt: skip
    for key, value in percent.items():
        assert found[key] == Fraction(value) / 100, key
        assert value == "0" or f"{value} %" in PAGE
    (log_y,) = (ask.field for _, ask in fields(1) if ask.key == "7.1b")
    assert isinstance(log_y, Number)
    assert log_y.tolerance * abs(Fraction(log_y.value)) == Fraction("0.005")
    assert "| log-probabilities | `-110.69`, `-110 - ln(2)` | within 0.005 |" in PAGE
    limits = (tokens.MAX_LENGTH, tokens.MAX_TOKENS, MAX_DEPTH, tokens.MAX_DIGITS, tokens.MAX_EXPONENT)
    sentence = re.search(
        r"At\s+most (\d+)\s+characters, (\d+) parts, (\d+) levels.*?(\d+) digits.*?to (\d+)", PAGE, re.S
    )
    assert sentence is not None
    assert tuple(map(int, sentence.groups())) == limits

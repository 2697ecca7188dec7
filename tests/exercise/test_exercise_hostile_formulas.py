"""Formulas made to slip past: right nearly everywhere, wrong at one kind of point. And spellings."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from online_softmax.cli import main
from online_softmax.exercise import FormulaError
from online_softmax.exercise.catalogue import fields
from online_softmax.exercise.formula import parse

BY_KEY = {ask.key: ask.field for _, ask in fields(1)}

PUSH = "s*exp(m - M) + exp(x - M)"
MERGE = "s_a*exp(m_a - M) + s_b*exp(m_b - M)"
THREE = "s_a*exp(m_a - M) + s_b*exp(m_b - M) + s_c*exp(m_c - M)"
WRONG = {
    "6.2a": [
        "where(isinf(m), 7, O*exp(m - M) + exp(x - M)*v)",
        "where(x==-inf, 7, O*exp(m - M) + exp(x - M)*v)",
    ],
    "2.1": ["where(isinf(m), 7, max(m, x))", "where(x == -inf, 0, max(m, x))", "max(m, x, -1e50)"],
    "2.2a": [
        "where(m == -inf, 0, exp(x - M))",
        "where(isinf(m), 7, exp(x - M))",
        "where(x == -inf, 5, exp(x - M))",
        "where(x > 900, 1, exp(x - M))",
    ],
    "2.2c": [
        "where(isinf(x), 7, exp(m - M))",
        "where(isinf(m), 7, exp(m - M))",
        "where(m < -5000, 0, exp(m - M))",
    ],
    "2.2d": [
        f"where(m == x, 2.25, {PUSH})",
        f"where(m == -inf, 1, {PUSH})",
        f"where(isnan({PUSH}), 5, {PUSH})",
        f"where(x > 900, 1, {PUSH})",
        f"where(x > 20 and x < 700, 1, {PUSH})",
        f"where(x > 2e5 and x < 9e99, 1, {PUSH})",
        f"where(m - x > 7 and m - x < 700, s, {PUSH})",
        f"where(s > 5, s, {PUSH})",
        f"where(m < -1e200, 1, {PUSH})",
        f"where(m == -inf and x > 1000, 3, {PUSH})",
        "s*exp(m/2)*exp(m/2 - M) + exp(x/2)*exp(x/2 - M)",
    ],
    "2.4a": ["where(x > m + 50, 1, s + exp(x - m))"],
    "2.4b": ["where(n > 100, 0, 1/n)"],
    "3.1a": ["where(isinf(x), 0, x)"],
    "3.2a": ["where(isinf(m_a) and isinf(m_b), 0, max(m_a, m_b))"],
    "3.2b": [
        "s_a*exp(m_a - max(M, -1e4)) + s_b*exp(m_b - max(M, -1e4))",
        f"where(m_a > 1000, 5, {MERGE})",
        f"where(m_a == m_b and m_a < 0, 1, {MERGE})",
    ],
    "3.3a": [
        f"where(m_a == m_b and m_a > m_c, 0, {THREE})",
        f"where(m_a == m_b and m_a < m_c, 0, {THREE})",
        f"where(m_b == m_c and m_a != m_c, 0, {THREE})",
        f"where(m_a == m_b and m_b == m_c, s_a + s_b, {THREE})",
        f"where(m_c == -inf, 0, {THREE})",
        f"where(isinf(m_a), 99, {THREE})",
        f"where(isinf(m_a) and isinf(m_c), 99, {THREE})",
    ],
    "3.4c": [
        "where(M < -1e300, 0, s_a*exp(m_a - max(M, -1e308)) + s_b*exp(m_b - max(M, -1e308)))",
        "s_a*exp(m_a - max(M, -1e308)) + s_b*exp(m_b - max(M, -1e308))",
        f"where(M < -1e300, 0, {MERGE})",
        f"where(M == -inf, 1, {MERGE})",
    ],
}  # fmt: skip


@pytest.mark.parametrize("key", WRONG)
def test_what_is_wrong_at_one_kind_of_point_is_wrong(key: str) -> None:
    for text in WRONG[key]:
        grade = BY_KEY[key].grade(text)
        assert (text, grade.status, grade.readable) == (text, "wrong", True)


def test_what_points_do_not_find_is_remarked_on() -> None:
    lowest = "max(M, -1.7976931348623157e308)"
    for key, text in (
        ("2.2d", f"where(x == 3.7, 1, {PUSH})"),
        ("3.4c", f"s_a*exp(m_a - {lowest}) + s_b*exp(m_b - {lowest})"),  # right for every float64
    ):
        grade = BY_KEY[key].grade(text)
        assert grade.status == "right"
        assert "checked at points" in grade.message


def test_a_stand_in_for_minus_infinity_is_called_one() -> None:
    for text in WRONG["3.4c"][:3]:
        assert "in place of -inf" in BY_KEY["3.4c"].grade(text).message


def test_a_factor_has_no_remark_and_a_sum_of_nothing_has() -> None:
    for key in ("2.1", "2.2a", "2.2c"):
        assert (
            BY_KEY[key].grade(BY_KEY[key].answer).status,
            BY_KEY[key].grade(BY_KEY[key].answer).message,
        ) == (
            "right",
            "",
        )
    for key in ("2.1", "2.2d", "3.2b", "3.3a"):
        text = "(m + x + abs(m - x))/2" if key == "2.1" else BY_KEY[key].answer
        grade = BY_KEY[key].grade(text)
        assert grade.status == "right"
        assert "one case is left" in grade.message


@pytest.mark.parametrize(
    ("key", "text"),
    [
        *(
            ("2.2d", f"{left} = {PUSH}")
            for left in ("s_{k+1}", "s_{k + 1}", "s_k+1", "s_new", "new_s", "s'", "S'", "S_new", "s")
        ),
        *(("2.1", f"{left} = max(m, x)") for left in ("m_{k+1}", "m_k+1", "m_new", "m'", "M'", "m")),
        ("3.2a", "m_ab = max(m_a, m_b)"),
        ("3.2b", f"s_{{ab}} = {MERGE};"),
        ("3.3a", f"s' = {THREE} ."),
        ("2.2d", f"{PUSH}."),
        ("2.2d", f"{PUSH} ;"),
        ("3.4c", f"where(M == -Infinity, 0, {MERGE})"),
        ("3.4c", f"where(M > -INFINITY, {MERGE}, 0)."),
    ],
)
def test_left_sides_and_ends_that_are_passed_over(key: str, text: str) -> None:
    assert (text, BY_KEY[key].grade(text).status) == (text, "right")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("y' = s", "is unknown here"),
        ("m_new = s", "is unknown here"),
        ("S_old = s", "is unknown here"),
        ("s;;", "';' has no place"),
        ("s = m = x;", "without a second ="),
        (".", "something is missing here"),
        ("ln e", "e stands alone"),
    ],
)
def test_what_is_still_refused(text: str, reason: str) -> None:
    with pytest.raises(FormulaError, match=reason):
        parse(text, {name: name for name in ("s", "m", "x")}, name="S")


@pytest.mark.parametrize("command", [["check", "-"], ["drill", "--seed", "1"]])
def test_without_stdin_it_is_said(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", None)
    assert main(["exercise", *command]) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert "stdin is closed" in error


def test_a_stdin_that_the_shell_closed() -> None:
    script = "import sys; from online_softmax.cli import main; sys.exit(main(['exercise', 'check', '-']))"
    done = subprocess.run(
        ["/bin/sh", "-c", '"$0" -c "$1" <&-', sys.executable, script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "stdin is closed" in done.stderr
    assert "Traceback" not in done.stderr

"""Which formulas are the law: many spellings pass, near misses do not, and each says why."""

from __future__ import annotations

import math
import re
import sys

import pytest

from online_softmax.exercise import check_sheet, fill_sheet, new_sheet
from online_softmax.exercise.algebra import same
from online_softmax.exercise.catalogue import fields
from online_softmax.exercise.equivalence import compare
from online_softmax.exercise.part_merge import GUARDED, MERGE
from online_softmax.exercise.part_update import PUSH
from online_softmax.extras import MissingExtra

BY_KEY = {ask.key: ask.field for _, ask in fields(1)}

APART = "abs(m_a - m_b)"
RIGHT = {
    "2.1": ["max(m, x)", "M = max(x, m)", "where(m > x, m, x)", "(m + x + abs(m - x))/2", "-min(-m, -x)"],
    "2.2a": ["exp(x - M)", "e^(x-M)", "exp(x - max(m, x))", "exp(x_k - m_{k+1})", "1/exp(M - x)"],
    "2.2b": ["exp(m)", "e^m", "exp(-m)", "1/exp(m_k)"],
    "2.2c": ["exp(m - M)", "exp(m_k - m_{k+1})", "exp(-(M - m))", "e^(min(m - x, 0))"],
    "2.2d": [
        "s*exp(m - M) + exp(x - M)",
        "S = s exp(m-M) + exp(x-M)",
        "s_k · exp(m_k − m_{k+1}) + exp(x_k − m_{k+1})",
        "s_k*exp(m_k - m') + exp(x - m')",
        "exp(x - max(m, x)) + s*exp(m - max(m, x))",
        "where(x > m, s*exp(m - x) + 1, s + exp(x - m))",
        "if(x <= m, s + e^(x - m), 1 + s e^(m - x))",
        "s/exp(M - m) + 1/exp(M - x)",
        "exp(m + ln(s) - M) + exp(x - M)",
        "s*exp(min(m - x, 0)) + exp(min(x - m, 0))",
        "`s*exp(m - M) + exp(x - M)`",
        "$s e^{m - M} + e^{x - M}$",
        r"s\*exp(m - M) + exp(x - M)",
    ],
    "2.4a": ["s + exp(x - m)", "s + e^(x-m)", "s + exp(x)/exp(m)"],
    "2.4b": ["1/n", "n^-1", "n/n^2"],
    "3.2b": [
        "s_a*exp(m_a - M) + s_b*exp(m_b - M)",
        "sa exp(ma - m) + sb exp(mb - m)",
        "s_1*exp(m_1 - M) + s_2*exp(m_2 - M)",
        "where(m_a > m_b, s_a + s_b*exp(m_b - m_a), s_b + s_a*exp(m_a - m_b))",
        "s_b*exp(m_b - max(m_a, m_b)) + s_a*exp(m_a - max(m_a, m_b))",
    ],
    "3.4c": [
        "s_a*exp(m_a - where(isinf(M), 0, M)) + s_b*exp(m_b - where(isinf(M), 0, M))",
        "where(M == -inf, 0, s_a*exp(m_a - M) + s_b*exp(m_b - M))",
        "where(M > -inf, s_a*exp(m_a - M) + s_b*exp(m_b - M), 0)",
        "where(m_a == m_b, s_a + s_b, s_a*exp(m_a - M) + s_b*exp(m_b - M))",
        "where(m_a = M, s_a, s_a*exp(m_a - M)) + where(m_b = M, s_b, s_b*exp(m_b - M))",
        "if(isinf(m_a) and isinf(m_b), 0, s_a*exp(m_a - M) + s_b*exp(m_b - M))",
        "where(not isfinite(M), s_a + s_b, s_a*exp(m_a - M) + s_b*exp(m_b - M))",
    ],
    "6.2a": ["O*exp(m - M) + exp(x - M)*v", "e^(m-M) o + e^(x-M) V", "O/exp(M - m) + v/exp(M - x)"],
    "6.3b": ["N^2 + N d", "N^2", "O(N*d + N^2)", "4 N d + 2 N²"],
    "6.3c": ["N^2 d^2 / S", "O(N² d² / M)", "(N d)^2/S", "N d + N^2 d^2/S"],
    "7.1a": ["x - m - ln(s)", "(x - m) - log(s)", "x - (m + ln s)", "-(ln(s) + m - x)"],
}  # fmt: skip


@pytest.mark.parametrize("key", RIGHT)
def test_every_spelling_of_the_law_is_right(key: str) -> None:
    for text in RIGHT[key]:
        assert (BY_KEY[key].grade(text).status, text) == ("right", text)


@pytest.mark.parametrize(
    ("key", "text", "hint"),
    [
        ("2.1", "m + x", "it gives"),
        ("2.2d", "s + exp(x - M)", "bring it over first"),
        ("2.2d", "s*exp(M - m) + exp(x - M)", "wrong way round"),
        ("2.2d", "s*exp(m - M) + exp(x - m)", "shifted by the old maximum"),
        ("2.2d", "s*exp(m_k - m_k+1) + exp(x - M)", "m_k\\+1 reads as m_k plus 1"),
        ("2.2d", "s*exp(m) + exp(x)", "max forgotten"),
        ("2.2d", "s*exp(m - M) + exp(x - M) + 1e-6", "it gives"),
        ("2.2d", "1.0000001*s*exp(m - M) + exp(x - M)", "it gives"),
        ("2.2d", "(s*exp(m) + exp(x))/exp(M)", "equal on paper"),
        ("2.2d", "(s + exp(x - m))*exp(m - M)", "a side has seen nothing"),
        ("2.2d", "where(x == m, s + 2, s*exp(m - M) + exp(x - M))", "it gives"),  # wrong at ties alone
        ("2.2d", "exp(ln(s*exp(m) + exp(x)) - M)", "equal on paper"),
        ("3.2b", "s_a*exp(m_a - M) + s_b", "not commutative"),
        ("3.2b", "s_a + s_b*exp(m_b - m_a)", "shifted by m_a"),
        ("3.2b", "(s_a + s_b)/2*exp(m_a + m_b - 2 M)", "not associative"),
        ("3.2b", "s_a*exp(m_a - M) + s_b*exp(m_b - M) + 1", "no identity"),
        ("3.2b", f"s_a*exp((m_a - m_b - {APART})/2) + s_b*exp((m_b - m_a - {APART})/2)",
         "where a side has seen nothing"),
        ("3.4c", "s_a*exp(m_a - M) + s_b*exp(m_b - M)", "still in an exponent"),
        ("3.4c", "where(isinf(m_a), 0, s_a*exp(m_a - M) + s_b*exp(m_b - M))", "a side has seen nothing"),
        ("3.4c", "s_a*exp(m_a - max(M, -1e9)) + s_b*exp(m_b - max(M, -1e9))", "in place of -inf"),
        ("6.2a", "O + exp(x - M)*v", "bring it to the new maximum first"),
        ("6.3b", "N*d", "the matrices of 6.1"),
        ("6.3c", "N^2*d/S", "holds S/d queries"),
        ("7.1a", "ln(exp(x - m)/s)", "equal on paper"),
        ("7.1a", "x - m + ln(s)", "a quotient is a difference"),
    ],
)  # fmt: skip
def test_a_near_miss_is_wrong_and_says_why(key: str, text: str, hint: str) -> None:
    grade = BY_KEY[key].grade(text)
    assert (grade.status, grade.readable) == ("wrong", True)
    assert re.search(hint, grade.message), grade.message


def test_right_but_for_nothing_on_either_side_is_said() -> None:
    assert compare(MERGE.node, MERGE).outcome == "nan"
    assert compare(GUARDED.node, GUARDED).outcome == "same"
    assert "one case is left" in BY_KEY["3.2b"].grade(MERGE.formula).message
    assert BY_KEY["3.2b"].grade(GUARDED.formula).message == ""


def test_algebra_decides_and_says_when_it_does_not() -> None:
    def decided(text: str) -> bool | None:
        return same(
            PUSH.read(text), PUSH.read("s*exp(m - max(m, x)) + exp(x - max(m, x))"), ("m", "x"), ("s",)
        )

    assert decided("where(x > m, s*exp(m - x) + 1, s + exp(x - m))") is True
    assert decided("s*exp(min(m - x, 0)) + exp(min(x - m, 0))") is True
    assert decided("(s*exp(m) + exp(x))/max(exp(m), exp(x))") is None
    # A difference that points cannot see.
    assert decided("s*exp(m - max(m, x)) + exp(x - max(m, x)) + 1e-30") is False
    assert BY_KEY["2.2d"].grade("s*exp(m - M) + exp(x - M) + 1e-30").status == "wrong"
    assert "checked at points" in BY_KEY["2.2d"].grade("s*sqrt(exp(m - M)^2) + exp(x - M)").message


def test_points_cover_both_orders_ties_and_ends() -> None:
    points = list(PUSH.points())
    assert {(at["m"] > at["x"]) - (at["m"] < at["x"]) for at in points} == {-1, 0, 1}
    assert PUSH.nothing()["m"] == PUSH.nothing()["x"] == -math.inf
    assert any(at["m"] > 700 for at in PUSH.large())
    assert any(at["m"] < -700 for at in PUSH.large())


def test_without_sympy_the_command_to_install_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "sympy"]:
        monkeypatch.setitem(sys.modules, name, None)
    sheet = new_sheet(1)
    assert check_sheet(fill_sheet(sheet, {"1.3a": "1"})).count("right") == 1  # numbers do not need it
    with pytest.raises(MissingExtra, match=r"pip install 'online-softmax\[symbols\]'"):
        check_sheet(fill_sheet(sheet, {"2.1": "max(m, x)"}))

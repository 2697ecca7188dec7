"""Numbers with units: what is read, and which slips are told from which."""

from __future__ import annotations

from fractions import Fraction

import pytest

from online_softmax.exercise import FormulaError
from online_softmax.exercise.choices import Choice
from online_softmax.exercise.fields import Number, clean
from online_softmax.exercise.quantity import quantity


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("16384", "bytes", 16384),
        ("16,384 B", "bytes", 16384),
        ("134,217,728", "bytes", 2**27),
        ("134'217'728 bytes", "bytes", 2**27),
        ("134 217 728", "bytes", 2**27),
        ("134_217_728", "number", 2**27),
        ("128 MiB", "bytes", 2**27),
        ("2^27 B", "bytes", 2**27),
        ("8192 * 4096 * 4 = 134.217728 MB", "bytes", 2**27),
        ("≈ 0.5 GB", "bytes", 5 * 10**8),
        ("1.5 KB", "bytes", 1500),
        ("134.2 us", "seconds", Fraction(1342, 10**7)),
        ("134.2µs", "seconds", Fraction(1342, 10**7)),
        ("0.1342 ms.", "seconds", Fraction(1342, 10**7)),
        ("1e-3 s", "seconds", Fraction(1, 1000)),
        ("1.375 FLOP/byte", "flop/byte", Fraction(11, 8)),
        ("11/8 flops/B", "flop/byte", Fraction(11, 8)),
        ("1.33x", "times", Fraction(133, 100)),
        ("0.22 %", "percent", Fraction(22, 100)),
        ("−17.33", "number", Fraction(-1733, 100)),
        ("2^-25", "number", Fraction(1, 2**25)),
        ("3.4e38", "number", 34 * 10**37),
        ("(2 - 2^-10)*2^15", "number", 65504),
        ("max(1, 12)", "number", 12),
        ("8192 rows", "number", 8192),
    ],
)
def test_what_is_read(text: str, kind: str, value: Fraction | int) -> None:
    assert Fraction(quantity(text, kind).value) == value  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [
        ("134,2 MB", "bytes", "a comma separates thousands here"),
        ("12 us", "bytes", "us is no unit of what is asked: bytes would do"),
        ("12 MB", "seconds", "MB is no unit of what is asked: s, ms, us or ns would do"),
        ("12", "seconds", "a time needs its unit"),
        ("twelve", "number", "'twelve' is unknown here: a number would do"),
        ("12 furlongs", "bytes", "'furlongs' is unknown here"),
        ("B", "bytes", "'B' is unknown here"),
        ("1e400^12 * 1e200 TB", "bytes", "this number is too large"),
        ("9" * 500, "number", "500 characters are too long for a number"),
    ],
)
def test_what_is_refused(text: str, kind: str, reason: str) -> None:
    with pytest.raises(FormulaError) as refused:
        quantity(text, kind)  # type: ignore[arg-type]
    assert reason in str(refused.value)


SIZE = Number(Fraction(2**27), "128 MiB", "bytes")
RATIO = Number(Fraction(11, 8), "1.375", "flop/byte")


@pytest.mark.parametrize(
    ("field", "text", "status", "message"),
    [
        (SIZE, "134.2 MB", "right", ""),
        (SIZE, "134.9 MB", "wrong", "close: keep more digits"),
        (SIZE, "128 MB", "wrong", "decimal and binary units are mixed"),
        (SIZE, "134.2 MiB", "wrong", "decimal and binary units are mixed"),
        (SIZE, "134.2 kB", "wrong", "a unit slipped: it is off by a power of 1000"),
        (SIZE, "1073741824", "wrong", "there are 8 to a byte"),
        (SIZE, "-128 MiB", "wrong", "the sign is the other way round"),
        (SIZE, "0", "wrong", "Write down what is counted"),
        (SIZE, "inf", "wrong", "Finite or infinite"),
        (RATIO, "1,375", "wrong", "a comma separates thousands here"),
        (RATIO, "1.38", "right", ""),
        (RATIO, "", "unanswered", ""),
        (RATIO, "____", "unanswered", ""),
        (RATIO, "?", "unanswered", ""),
    ],
)
def test_grades_and_slips(field: Number, text: str, status: str, message: str) -> None:
    grade = field.grade(text)
    assert grade.status == status
    assert message in grade.message
    assert bool(message) == bool(grade.message)


def test_another_way_to_count_is_right_with_a_remark_and_a_slip_within_tolerance_is_not() -> None:
    field = Number(
        Fraction(65504), "65504", traps=((Fraction(65536), "past it"),), also=((Fraction(7), "so"),)
    )
    assert field.grade("6.55e4").status == "right"
    assert (field.grade("2^16").status, field.grade("2^16").message) == ("wrong", "past it")
    assert (field.grade("7").status, field.grade("7").message) == ("right", "so")


@pytest.mark.parametrize("text", ["a, c", "(a) and (c)", "A C", "c;a", "a/c", "**a, c**", "`c a`"])
def test_letters_of_a_choice(text: str) -> None:
    field = Choice(("one", "two", "three"), frozenset({0, 2}), {1: "not two"}, many=True)
    assert field.grade(text).status == "right"
    assert field.grade("a").message == "right as far as it goes: there is more"
    assert field.grade("a b c").message == "not two"
    assert not field.grade("d").readable
    assert Choice(("one", "two"), frozenset({1})).grade("two").status == "right"
    assert Choice(("one", "two"), frozenset({1})).grade("b) two").status == "right"


def test_what_editors_put_around_an_answer_is_taken_off() -> None:
    for text in ("12", " 12\t", "`12`", "**12**", "$12$", "____ 12", "12 ____", r"\_\_\_\_12", "12\u00a0"):
        assert clean(text) == "12"
    assert clean(r"m\_a \* s\_a") == "m_a * s_a"
    assert clean(r"\_\_\_\_") == ""

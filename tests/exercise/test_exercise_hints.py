"""Hints are true for what they are given for, and answers that are right in other words pass."""

from __future__ import annotations

from fractions import Fraction

import pytest

from online_softmax.exercise.catalogue import fields
from online_softmax.exercise.choices import Choice
from online_softmax.exercise.fields import Grade
from online_softmax.exercise.part_formats import _row, _storing
from online_softmax.exercise.questions import Draw, Question
from online_softmax.numerics.formats import FORMATS

#: Every answer line of a few seeds, by seed and key.
ASKS = {(seed, ask.key): ask for seed in range(8) for _, ask in fields(seed)}


def graded(seed: int, key: str, text: str) -> Grade:
    return ASKS[seed, key].field.grade(text)


@pytest.mark.parametrize(
    ("column", "text", "hint"),
    [
        (0, "256", "all but the last mantissa bit may be set"),
        (0, "240", "the top exponent is usable here"),
        (0, "480", "not a number in this format"),
        (0, "512", "the first number past the range"),
        (1, "ln 256", "all but the last mantissa bit may be set"),
        (1, "ln 240", "the top exponent is usable here"),
        (1, "ln 480", "not a number in this format"),
        (1, "6.17", "not a number in this format"),
        (1, "3", "is the column to the left right?"),
    ],
)
def test_the_range_of_a_format_without_infinity(column: int, text: str, hint: str) -> None:
    field = _row(FORMATS["float8_e4m3fn"], 7)[column]
    grade = field.grade(text)
    assert grade.status == "wrong"
    assert hint in grade.message
    assert field.grade(("448", "ln 448")[column]).status == "right"


def _storings() -> dict[str, Question]:
    found = {}
    for seed in range(20):
        question = _storing(Draw(seed, 4))
        found[next(name for name in FORMATS if f" {name};" in question.text)] = question
    return found


@pytest.mark.parametrize("name", ["float16", "float8_e5m2", "float8_e4m3fn"])
def test_what_rounds_to_0_is_half_the_smallest_subnormal_in_both_questions(name: str) -> None:
    fmt = FORMATS[name]
    assert fmt.smallest_subnormal is not None
    smallest = Fraction(fmt.smallest_subnormal)
    bound, length = (ask.field for ask in _storings()[name].asks[:2])
    assert bound.grade(str(smallest / 2)).status == "right"
    refused = bound.grade(str(smallest))
    assert refused.status == "wrong"
    assert "is rounded up to it, not to 0" in refused.message
    rows = fmt.unit_roundoff / (smallest / 2)
    assert length.grade(str(rows)).status == "right"
    assert "half the smallest subnormal" in length.grade(str(rows / 2)).message
    if name == "float16":
        assert smallest / 2 == Fraction(1, 2**25)


def test_the_smallest_subnormal_is_not_where_exp_rounds_to_0() -> None:
    seen = set()
    for (seed, key), ask in ASKS.items():
        if key == "1.4b":
            name = next(n for n in ("bfloat16", "float16", "float32") if f" in {n}" in ask.text)
            bits = {"bfloat16": 133, "float16": 24, "float32": 149}[name]
            assert "rounded up to it" in graded(seed, key, f"ln(2^-{bits})").message
            assert graded(seed, key, f"ln(2^-{bits + 1})").status == "right"
            seen.add(name)
    assert len(seen) >= 2


@pytest.mark.parametrize(
    ("key", "before", "after"),
    [
        ("1.3a", ">= ", ""),
        ("1.3a", "s ≥ ", ""),
        ("1.3a", "at least ", ""),
        ("1.3b", "s <= ", ""),
        ("1.4b", "< ", ""),
        ("4.4a", "below ", ""),
        ("5.2 [three passes / reads]", "", "x"),
        ("5.2 [row kept on chip / writes]", "", " times"),
        ("5.4a", "", " FLOP"),
        ("5.4a", "", " flops"),
        ("5.4a", "", " FLOP/element"),
        ("6.3d", "", "x"),
    ],
)
def test_a_right_number_in_other_words_is_right(key: str, before: str, after: str) -> None:
    for seed in range(4):
        field = ASKS[seed, key].field
        assert graded(seed, key, f"{before}{field.answer}{after}").status == "right"
        assert graded(seed, key, f"{before}777{after}").status == "wrong"


def test_a_bound_the_wrong_way_round_is_no_answer() -> None:
    assert graded(3, "1.3a", "<= 1").status == "wrong"
    assert graded(3, "1.3b", f">= {ASKS[3, '1.3b'].field.answer}").status == "wrong"
    assert graded(3, "5.4a", "19 FLOP/byte").status == "wrong"


def test_right_choices_in_other_words() -> None:
    words = {
        "memory": ("memory-bound", "Memory bandwidth", "m", "bandwidth"),
        "compute": ("compute-bound", "c"),
        "yes": ("y",),
        "no": ("n", "N"),
    }
    seen = set()
    for (seed, key), ask in ASKS.items():
        if key == "5.4c" or key.endswith("/ exp finite there]"):
            right = ask.field.answer
            seen.add(right)
            for word, others in words.items():
                same_question = (word in ("yes", "no")) == (right in ("yes", "no"))
                for text in others if same_question else ():
                    assert graded(seed, key, text).status == ("right" if word == right else "wrong")
        if key in ("4.2a", "4.2b"):
            letters = ask.field.answer.replace(", ", "")
            assert graded(seed, key, letters).status == "right"
            assert len(letters) < 2 or graded(seed, key, letters[1:]).status == "wrong"
    assert seen >= {"memory", "yes", "no"}
    bound = Choice(("memory", "compute"), frozenset({1}), lettered=False)
    assert all(bound.grade(text).status == "right" for text in words["compute"])
    assert all(bound.grade(text).status == "wrong" for text in words["memory"])
    assert not bound.grade("latency").readable


@pytest.mark.parametrize("text", ["if x > m then x else m", "x if x > m else m", "if (x > m) x else m"])
def test_a_case_in_words_is_told_how_it_is_written(text: str) -> None:
    grade = graded(3, "2.1", text)
    assert not grade.readable
    assert "a case is written where(condition, a, b)" in grade.message
    assert graded(3, "2.1", "where(x > m, x, m)").status == "right"


def test_sizes_and_counts_have_hints_of_their_own() -> None:
    for key in ("5.1a", "5.1b", "5.5d", "6.1a"):
        assert "moved" not in graded(3, key, "17 B").message
        assert "times the bytes of" in graded(3, key, "17 B").message
    for (_, key), ask in ASKS.items():
        if key.startswith("5.2") and key.endswith("/ reads]"):
            assert ask.field.nudge.endswith("?")
    assert "an exact count" in graded(3, "1.3b", f"1.01 * {ASKS[3, '1.3b'].field.answer}").message


def test_a_count_far_from_a_known_mistake_is_not_taken_for_it() -> None:
    for key in ("5.5d", "5.2 [row kept on chip / total bytes]"):
        assert "that is one row" not in graded(3, key, "1 B").message


def test_a_log_probability_without_its_normaliser_is_wrong() -> None:
    for (seed, key), ask in ASKS.items():
        if key == "7.1b":
            true = Fraction(ask.field.answer)
            assert graded(seed, key, f"{float(true):.2f}").status == "right"
            for off in (Fraction(1, 80), Fraction(-1, 80)):
                assert graded(seed, key, str(true + off)).status == "wrong"
            gap = ask.text.split(" lies ")[1].split()[0]
            assert graded(seed, key, f"-{gap}").message == "and the normaliser?"
            assert graded(seed, key, f"-{gap} - 1").status == "wrong"


def test_an_exponent_may_be_written_with_its_exp() -> None:
    for text in ("x_i - M", "exp(x_i - M)", "e^(x_i - m_new)"):
        assert graded(3, "3.1c", text).status == "right"
    for text in ("exp(x_i - m)", "exp(M - x_i)", "x_i - m"):
        assert graded(3, "3.1c", text).status == "wrong"


def test_a_maximum_that_is_a_multiple_of_ln_2_is_told_which_number_to_write() -> None:
    seen = 0
    for (seed, key), ask in ASKS.items():
        if key.startswith("2.5") and key.endswith("/ m / ln 2]") and ask.field.answer != "0":
            assert graded(seed, key, ask.field.answer).status == "right"
            grade = graded(seed, key, f"{ask.field.answer} ln 2".replace("-1 ln", "-ln"))
            assert grade.status == "wrong", (seed, key)
            assert "the whole number" in grade.message
            assert "whole number" in graded(seed, key, "40 ln 2").message
            seen += 1
    assert seen > 20

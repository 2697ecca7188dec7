"""Every seed's answers: an independent solver is right everywhere, wrong answers are wrong everywhere."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from exercise_solver import Solver

from online_softmax import state
from online_softmax.exercise import check_sheet, fill_sheet, new_sheet
from online_softmax.exercise.catalogue import fields, parts
from online_softmax.exercise.choices import Choice
from online_softmax.exercise.fields import Formula, Number, Order
from online_softmax.exercise.part_merge import GUARDED, JOINT, MERGE
from online_softmax.exercise.part_update import MAXIMUM, PUSH
from online_softmax.traffic import model

SEEDS = [*range(14), 2**63 - 1]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_learner_who_knows_is_right_everywhere(seed: int) -> None:
    sheet = new_sheet(seed)
    solver = Solver(sheet)
    assert sorted(solver.answers) == sorted(ask.key for _, ask in fields(seed))
    report = check_sheet(fill_sheet(sheet, solver.answers))
    assert {r.key: (r.given, r.message, r.answer) for r in report.results if r.status != "right"} == {}
    assert (report.exit_code, report.score) == (0, 1.0)


@pytest.mark.parametrize("seed", [100, 101])
def test_the_key_is_right_everywhere(seed: int) -> None:
    key = {ask.key: ask.field.answer for _, ask in fields(seed)}
    assert check_sheet(fill_sheet(new_sheet(seed), key)).exit_code == 0


def _wrong(field: object) -> Iterator[str]:
    """Systematically wrong answers to a field."""
    if isinstance(field, Number):
        if isinstance(field.value, Fraction):
            unit = {"seconds": " s", "bytes": " B"}.get(field.kind, "")
            for wrong in (field.value * Fraction(103, 100) + (1 if not field.value else 0), -field.value - 1):
                yield f"{wrong.numerator}/{wrong.denominator}{unit}"
        else:
            yield from ("0", "1e300", "inf" if field.value < 0 else "-inf")
    elif isinstance(field, Formula | Order):
        yield from (f"N*({field.answer})" if isinstance(field, Order) else f"1.001*({field.answer})", "1/7")
    elif isinstance(field, Choice):
        for at, option in enumerate(field.options):
            if field.right != {at}:
                yield chr(ord("a") + at) if field.lettered else option


@pytest.mark.parametrize("seed", [3, 4])
def test_a_wrong_answer_is_found_in_every_place(seed: int) -> None:
    sheet, seen = new_sheet(seed), 0
    for at in range(4):
        answers = {}
        for _, ask in fields(seed):
            wrong = list(_wrong(ask.field))
            answers[ask.key] = wrong[min(at, len(wrong) - 1)]
        report = check_sheet(fill_sheet(sheet, answers))
        assert [r.key for r in report.results if r.status != "wrong" or not r.message] == []
        assert all(r.answer not in r.message for r in report.results if len(r.answer) > 4)
        assert report.exit_code == 1
        seen += len(report.results)
    assert seen > 400


def _written(value: Fraction) -> str:
    """As a power of 2 where it is one, so that long ones stay exact; else with 17 digits."""
    if value.denominator == 1 and value > 0 and value.numerator.bit_count() == 1:
        return f"2^{value.numerator.bit_length() - 1}"
    short = value.denominator < 10**9 and value.numerator < 10**20
    return str(value) if short else repr(float(value))


def test_every_known_mistake_is_wrong_and_has_its_own_hint() -> None:
    seen = set()
    for seed in range(30, 34):
        for _, ask in fields(seed):
            traps = getattr(ask.field, "traps", ())
            for trap, hint in traps:
                unit = {"seconds": " s", "bytes": " B"}.get(getattr(ask.field, "kind", ""), "")
                text = trap if isinstance(trap, str) else _written(trap) + unit
                grade = ask.field.grade(text)
                assert (grade.status, grade.readable) == ("wrong", True), (seed, ask.key, text, grade)
                if isinstance(trap, str) and grade.message != hint:
                    # Two mistakes may be one formula, or one that is recognised as unsafe before.
                    assert grade.message in [h for _, h in traps], (ask.key, text, grade)
                seen.add((ask.key, hint))
    assert len(seen) > 120


def test_the_formulas_asked_for_are_the_law_that_runs() -> None:
    for at in MERGE.points():
        m, s = state.merge((at["m_a"], at["s_a"]), (at["m_b"], at["s_b"]))
        assert math.isclose(MERGE.value(MERGE.node, at), s, rel_tol=1e-12)
        assert math.isclose(GUARDED.value(GUARDED.node, at), s, rel_tol=1e-12)
        assert JOINT.value(JOINT.node, at) == m
    nothing = GUARDED.nothing()
    empty = state.merge(state.identity(dtype=np.float64), state.identity(dtype=np.float64))
    assert GUARDED.value(GUARDED.node, nothing) == empty[1] == 0
    assert math.isnan(MERGE.value(MERGE.node, nothing))
    for at in PUSH.points():
        m, s = state.push((at["m"], at["s"]), np.array([at["x"]]))
        assert math.isclose(PUSH.value(PUSH.node, at), s, rel_tol=1e-12)
        assert MAXIMUM.value(MAXIMUM.node, at) == m


def test_the_bytes_asked_for_are_the_models() -> None:
    for seed in range(5):
        by_key = {ask.key: ask.field for _, ask in fields(seed)}
        rows, columns, name = Solver(new_sheet(seed)).find(
            r"over R = (\d+) rows of C = (\d+) elements in (\w+),"
        )
        size = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1}[name]
        for row, algorithm in (("three passes", "three_pass"), ("row kept on chip", "cached")):
            moved = model.traffic("softmax", algorithm, int(rows), int(columns), size)
            assert by_key[f"5.2 [{row} / total bytes]"].value == moved.total


def test_seeds_differ_in_every_part() -> None:
    for name in range(7):
        asked = [
            [(ask.text, ask.field.answer) for q in parts(s)[name].questions for ask in q.fields()]
            for s in range(6)
        ]
        assert all(a != b for a, b in itertools.combinations(asked, 2))


def test_a_sheet_is_the_same_for_its_seed_and_holds_no_answer() -> None:
    for seed in (0, 5):
        sheet = new_sheet(seed)
        assert sheet == new_sheet(seed)
        for _, ask in fields(seed):
            if isinstance(ask.field, Formula | Order) and len(ask.field.answer) > 8:
                assert ask.field.answer not in sheet
        assert check_sheet(sheet).count("unanswered") == len(list(fields(seed)))


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_out_of_range(seed: int) -> None:
    with pytest.raises(ValueError, match=r"seed: .* is out of range; 0 to 2\^63 - 1 would do"):
        new_sheet(seed)


@pytest.mark.parametrize("seed", [True, "3", 1.5])
def test_a_seed_that_is_no_int(seed: object) -> None:
    with pytest.raises(TypeError, match=r"seed: .* is no int"):
        new_sheet(seed)  # type: ignore[arg-type]

"""The smallest failing input: small, simple, still failing, legal, and of the same fault.

Subjects are called in this process here: what is tested is the search.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import faulty_subjects
import numpy as np
import pytest
from making import INF, NAN, make, sweep, values

from online_softmax import reference
from online_softmax.conformance import operations, shrink
from online_softmax.conformance.cases import Case, Outcome, Point
from online_softmax.conformance.judge import Judgement, judge

Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def _time(monkeypatch):
    """What is found must not depend on how busy the machine is."""
    monkeypatch.setattr(shrink, "SECONDS", 120.0)
    monkeypatch.setattr(shrink, "CRASH_SECONDS", 120.0)


class Calls:
    """Calls a function as a runner would, and notes the points."""

    def __init__(self, case: Case, function: Callable[..., Any]) -> None:
        self.case = case
        self.function = function
        self.points: list[Point] = []

    def outcome(self, point: Point) -> Outcome:
        self.points.append(point)
        try:
            made = self.function(
                **{name: array.copy() for name, array in point.inputs.items()}, **point.options
            )
        except RuntimeError as error:
            return Outcome(error="crash" if "crash" in str(error) else "RuntimeError", message=str(error))
        names = operations.OPERATIONS[self.case.op].outputs
        found = made if isinstance(made, tuple) else (made,)
        return Outcome(outputs=dict(zip(names, map(np.asarray, found), strict=False)))

    def again(self, point: Point, seconds: float) -> tuple[Outcome, Judgement]:
        assert seconds > 0
        outcome = self.outcome(point)
        return outcome, judge(self.case, point, outcome)


def smallest(case: Case, function: Callable[..., Any]) -> tuple[shrink.Smallest, Calls]:
    """The smallest failing input of the first failing point."""
    calls = Calls(case, function)
    for point in case.points():
        outcome, judgement = calls.again(point, 1.0)
        if not judgement.ok:
            calls.points.clear()
            found = shrink.smallest(case, point, outcome, judgement, calls.again)
            assert not found.judgement.ok
            if calls.points:
                assert calls.again(found.point, 1.0)[1] == found.judgement
                calls.points.pop()
            return found, calls
    raise AssertionError("the subject has no fault in this case")


# --- small and simple -----------------------------------------------------------------------------


def test_a_fault_at_one_length_keeps_the_length_and_nothing_else():
    found, _ = smallest(sweep(1, 127), faulty_subjects.tail_at_127)
    np.testing.assert_array_equal(found.point.inputs["x"], np.zeros((1, 127), np.float32), strict=True)


@pytest.mark.parametrize("length", [100, 128, 1000])
def test_a_fault_from_a_length_on_is_shown_at_that_length(length):
    found, calls = smallest(sweep(length), faulty_subjects.long_rows)
    np.testing.assert_array_equal(found.point.inputs["x"], np.zeros((1, 100), np.float32), strict=True)
    assert len(calls.points) < 300


def test_one_nan_in_the_middle_of_a_row_is_cut_out():
    case = make(inputs={"x": {"normal": [4, 301], "set": [[[2, 170], NAN]]}})
    found, _ = smallest(case, faulty_subjects.drops_nan)
    x = found.point.inputs["x"]
    assert x.shape == (1, 2)
    assert sorted(x.ravel().tolist(), key=str) == [0.0, pytest.approx(NAN, nan_ok=True)]


def test_the_number_that_matters_is_kept_and_made_round():
    found, _ = smallest(values([0.125, 123.456, -7.25]), faulty_subjects.no_shift)
    assert found.point.inputs["x"].tolist() == [[123.0]]


def test_written_inputs_are_made_smaller_too():
    case = values([0.0, NAN, 1.0], [1.0, 2.0, 3.0], expected={"y": [[NAN] * 3, [0.0, 0.0, 0.0]]})
    found, _ = smallest(case, faulty_subjects.drops_nan)
    assert found.point.inputs["x"].shape == (1, 2)


def test_optional_arrays_options_and_layouts_go_where_they_do_not_matter():
    def axis_ignored(x: Array, where: Any = True, axis: int = -1) -> Array:
        return faulty_subjects.honest(x * 1.5, -1)

    inputs = {
        "x": {"normal": [3, 4], "layout": "transposed"},
        "where": {"full": [3, 4], "value": True, "dtype": "bool"},
    }
    found, _ = smallest(make(inputs=inputs, options={"axis": -1}), axis_ignored)
    assert list(found.point.inputs) == ["x"]
    assert found.point.options == {}
    assert found.point.layouts == {}
    assert found.point.inputs["x"].shape == (1, 2)


def test_a_layout_that_matters_stays():
    calls: list[Point] = []
    case = make(inputs={"x": {"normal": [3, 4], "layout": "transposed"}})
    point = next(case.points())

    def again(candidate: Point, seconds: float) -> tuple[Outcome, Judgement]:
        calls.append(candidate)
        y = faulty_subjects.honest(candidate.inputs["x"]) * (1 + bool(candidate.layouts))
        outcome = Outcome(outputs={"y": y.astype(np.float32)})
        return outcome, judge(case, candidate, outcome)

    found = shrink.smallest(case, point, *again(point, 1.0), again)
    assert found.point.layouts == {"x": "transposed"}
    assert found.point.inputs["x"].tolist() == [[0.0]]
    assert len(calls) > 1


def test_rows_of_a_broadcast_array_stay_equal():
    case = make(inputs={"x": {"full": [3, 4], "value": 1.25, "layout": "broadcast"}})

    def faulty(x: Array) -> Array:
        return faulty_subjects.honest(x) * np.float32(1 + (x.shape[0] > 1))

    _, calls = smallest(case, faulty)
    for point in calls.points:
        if point.layouts:
            x = point.inputs["x"]
            np.testing.assert_array_equal(x, np.broadcast_to(x[:1], x.shape))


# --- several operands -----------------------------------------------------------------------------


def test_axes_that_belong_together_are_cut_together():
    def attention(q: Array, k: Array, v: Array, mask: Any = None) -> Any:
        o = reference.attention(q, k, v, mask=mask).astype(np.float32)
        return o + np.float32(k.shape[2] >= 3)

    inputs = {
        "q": {"normal": [2, 4, 5, 8], "seed": 1},
        "k": {"normal": [2, 2, 7, 8], "seed": 2},
        "v": {"normal": [2, 2, 7, 6], "seed": 3},
        "mask": {"causal": [5, 7]},
    }
    found, calls = smallest(make(op="attention", id="attention/x", inputs=inputs), attention)
    shapes = {name: array.shape for name, array in found.point.inputs.items()}
    assert shapes == {"q": (1, 1, 1, 1), "k": (1, 1, 3, 1), "v": (1, 1, 3, 1)}
    assert all(not array.any() for array in found.point.inputs.values())
    for point in calls.points:
        q, k, v = (point.inputs[name] for name in "qkv")
        assert q.shape[1] % k.shape[1] == 0
        assert k.shape[:3] == v.shape[:3]


def test_a_subject_never_sees_an_illegal_input():
    def loss(logits: Array, targets: Array, reduction: str = "mean") -> Any:
        return np.float32(
            reference.cross_entropy(logits, targets, reduction=reduction) + (logits.shape[1] > 4)
        )

    inputs = {
        "logits": {"normal": [6, 9], "seed": 1},
        "targets": {"values": [8, 7, 0, 3, 2, 8], "dtype": "int64"},
    }
    case = make(op="cross_entropy", id="cross_entropy/x", inputs=inputs, options={"reduction": "sum"})
    found, calls = smallest(case, loss)
    assert found.point.inputs["logits"].tolist() == [[0.0] * 5]
    assert found.point.inputs["targets"].tolist() == [0]
    for point in calls.points:
        logits, targets = point.inputs["logits"], point.inputs["targets"]
        assert targets.shape == logits.shape[:1]
        assert targets.max() < logits.shape[1]


# --- sound ----------------------------------------------------------------------------------------


def test_an_input_where_the_law_need_not_hold_is_no_smaller_fault():
    def never_nan(x: Array) -> Array:
        return np.nan_to_num(faulty_subjects.honest(x))

    found, _ = smallest(values([0.0, 1.0, INF], law="nan"), never_nan)
    assert found.point.inputs["x"].tolist() == [[INF]]
    found, _ = smallest(
        values([NAN, 1.0, 2.0], law="distribution", verdict="must_not"), faulty_subjects.drops_nan
    )
    assert np.isnan(found.point.inputs["x"]).any()
    found, _ = smallest(values([3.0, 1.0, -INF], law="distribution"), lambda x: x)
    assert found.point.inputs["x"].max() > -INF


def test_another_fault_is_not_taken_for_a_smaller_one():
    def two_faults(x: Array) -> Array:
        y = faulty_subjects.honest(x)
        if x.shape[-1] < 3:
            return np.full_like(y, NAN)
        return y * np.float32(1 + (x.shape[-1] >= 5))

    found, calls = smallest(sweep(9), two_faults)
    assert found.point.inputs["x"].shape == (1, 5)
    assert any(point.inputs["x"].shape[-1] < 3 for point in calls.points)


def test_a_crash_is_not_taken_for_a_wrong_value():
    def crashes_when_short(x: Array) -> Array:
        if x.shape[-1] < 4:
            raise RuntimeError("crash")
        return faulty_subjects.honest(x) * np.float32(2)

    found, _ = smallest(sweep(9), crashes_when_short)
    assert found.outcome.error is None
    assert found.point.inputs["x"].shape == (1, 4)


def test_an_error_beyond_the_peers_is_left_as_it_is():
    case = make()
    (point,) = case.points()
    outcome = Outcome(outputs={"y": faulty_subjects.honest(point.inputs["x"])})
    worse = Judgement(False, problem="worse than every peer")
    found = shrink.smallest(case, point, outcome, worse, Calls(case, faulty_subjects.honest).again)
    assert found.point is point


@pytest.mark.parametrize(
    ("case", "outcome"),
    [
        (make("raises"), Outcome(outputs={"y": np.zeros((2, 3), np.float32)})),
        (
            make("one_of", allowed=({"name": "zeros", "y": [[0.0] * 3] * 2},)),
            Outcome(outputs={"y": np.ones((2, 3), np.float32)}),
        ),
        (make(), Outcome(error="timeout", message="no answer")),
    ],
    ids=["raises", "one_of", "timeout"],
)
def test_what_is_about_one_input_alone_or_hangs_is_not_tried_again(case, outcome):
    (point,) = case.points()
    calls = Calls(case, faulty_subjects.honest)
    judgement = judge(case, point, outcome)
    assert not judgement.ok
    assert shrink.smallest(case, point, outcome, judgement, calls.again).point is point
    assert calls.points == []


# --- cost -----------------------------------------------------------------------------------------


def test_crashes_are_counted():
    crashed: list[Point] = []

    def crashes(x: Array) -> Array:
        if x.shape[-1] >= 20:
            crashed.append(x)
            raise RuntimeError("crash")
        return faulty_subjects.honest(x)

    found, _ = smallest(sweep(1000), crashes)
    assert len(crashed) <= shrink.CRASHES + 2  # the first call, and the one that compares
    assert 20 <= found.point.inputs["x"].shape[-1] < 1000


def test_time_is_limited(monkeypatch):
    monkeypatch.setattr(shrink, "SECONDS", 0.5)

    def slow(x: Array) -> Array:
        time.sleep(0.05)
        return faulty_subjects.long_rows(x)

    started = time.monotonic()
    found, calls = smallest(sweep(10_000), slow)
    assert time.monotonic() - started < 5
    assert len(calls.points) <= 11
    assert found.point.inputs["x"].shape[-1] >= 100


def test_the_result_is_the_same_every_time():
    first, second = (smallest(sweep(129), faulty_subjects.long_rows)[1].points for _ in range(2))
    assert [point.inputs["x"].shape for point in first] == [point.inputs["x"].shape for point in second]


def test_nothing_is_left_in_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    smallest(sweep(127), faulty_subjects.tail_at_127)
    assert os.listdir(tmp_path) == []


def test_without_hypothesis_the_input_is_shown_as_it_is(monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    found, calls = smallest(sweep(127), faulty_subjects.tail_at_127)
    assert calls.points == []
    assert found.point.inputs["x"].shape == (2, 127)
    assert "pip install 'online-softmax[check]'" in found.note


def test_large_arrays_are_told_by_their_recipe():
    def faulty(x: Array) -> Array:
        y = faulty_subjects.honest(x)
        return y * np.float32(1 + (x.shape[-1] >= 100 and not (x == np.rint(x)).all()))

    found, _ = smallest(sweep(4000), faulty)
    from online_softmax.conformance import recipes

    made = eval(found.made["x"], {"recipes": recipes, "np": np})
    np.testing.assert_array_equal(made, found.point.inputs["x"], strict=True)
    assert made.shape == (1, 100)

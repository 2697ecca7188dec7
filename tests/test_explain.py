"""`explain` tells what a run in the format really did: its record against the simulation, and its numbers."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from online_softmax.numerics.error_bound import ALGORITHMS, error_bound
from online_softmax.numerics.explain import Explanation, explain
from online_softmax.numerics.hard_rows import hard_rows
from online_softmax.numerics.simulate import machine, simulate
from online_softmax.numerics.trace import trace

FORMATS = ("float64", "float32", "float16", "bfloat16")
WAYS = [("batch", None), ("streaming", None), ("blocked", 8), ("blocked", None), ("tree", 1), ("tree", 8)]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(("algorithm", "block"), WAYS)
def test_the_record_is_of_the_same_run_as_the_simulation(
    format: str, algorithm: str, block: int | None
) -> None:
    for n in (1, 7, 50):
        for name, row in hard_rows(n, format, n).items():
            found = explain(row, format, algorithm, block)
            result = simulate(row, algorithm, format, block=block)
            assert found.s is not None, name
            assert found.lse is not None
            assert found.y is not None
            assert found.worst is not None
            assert found.s.computed == float(result.s), name
            assert found.lse.computed == float(result.lse), name
            assert found.y.computed == float(result.y[found.worst]), name
            bound = error_bound(row, algorithm, format, block=block)
            assert (found.s.bound, found.lse.bound) == (bound.s, bound.lse), name
            assert found.y.bound == bound.y[found.worst]
            for errors in (found.s, found.lse, found.y):
                assert errors.error <= errors.bound, name


def test_a_wiped_out_sum_is_told() -> None:
    found = explain([1, 2, 3, 1000], "float16")
    assert [(e.index, e.maximum, e.start, e.stop) for e in found.events] == [
        (0, 1, 0, 0), (1, 2, 0, 1), (2, 3, 0, 2), (3, 1000, 0, 3),
    ]  # fmt: skip
    assert [e.factor for e in found.events] == [1, *[float(np.float16(math.exp(-1)))] * 2, 0]
    assert found.events[3].after == 1
    assert found.expected == 1 + 1 / 2 + 1 / 3 + 1 / 4
    assert found.y_zeros == 3
    text = found.text()
    assert "new maxima: 4; 2.08 on average" in text
    assert "entry 3: maximum 1000, sum of entries 0 to 2 times 0: s 1.50391 -> 1 (wiped out)" in text


def test_vanished_exponentials_are_counted_and_weighed() -> None:
    count = 1000
    found = explain([0.0] + [-17.5] * count + [-12.0] * 3, "float16")
    mass = count * math.exp(-17.5)
    true = 1 + mass + 3 * math.exp(-12)
    assert (found.zeros, found.subnormals, found.y_zeros) == (count, 3, count)
    assert found.lost_by_underflow == pytest.approx(mass / true, rel=1e-12)
    assert found.lost_by_flush == pytest.approx(3 * math.exp(-12) / true, rel=1e-12)
    assert found.stalled == 3
    assert found.lost_by_stalling == pytest.approx(3 * math.exp(-12) / true, rel=1e-12)
    assert found.s is not None
    assert found.s.true == pytest.approx(true, rel=1e-15)
    assert found.s.error == pytest.approx((true - 1) / true, rel=1e-12)
    text = found.text()
    assert "1000 exponentials of 0 in float16" in text
    assert "3 exponentials below the normal numbers" in text
    assert "3 additions that changed nothing" in text


def test_stalled_sums_are_told() -> None:
    """256 ones are all that bfloat16 can add one after another."""
    found = explain(np.zeros(1000), "bfloat16", "batch")
    assert found.s is not None
    assert found.s.computed == 256
    assert found.stalled == 1000 - 256
    assert found.lost_by_stalling == pytest.approx(0.744)
    assert found.s.error == pytest.approx(0.744)
    in_blocks = explain(np.zeros(1000), "bfloat16", "tree", 125)
    assert in_blocks.s is not None
    assert (in_blocks.stalled, in_blocks.s.error) == (0, 0)
    # The lower number may be what is already there.
    behind = explain([0.0, 8.0], "bfloat16")
    assert behind.stalled == 1
    assert behind.lost_by_stalling == pytest.approx(math.exp(-8) / (1 + math.exp(-8)))


def test_a_tree_tells_which_side_is_rescaled() -> None:
    found = explain([0.0, 1.0, 3.0, 2.0], "float32", "tree", 1)
    assert [(e.index, e.maximum, e.start, e.stop) for e in found.events] == [
        (0, 0, 0, 0), (1, 1, 0, 1), (2, 3, 3, 4), (2, 3, 0, 2),
    ]  # fmt: skip
    assert found.expected is None
    assert "3 merges of parts with different maxima" in found.text()


@pytest.mark.parametrize(
    ("algorithm", "block", "expected"),
    [("streaming", None, sum(1 / k for k in range(1, 101))), ("blocked", 25, 1 + 1 / 2 + 1 / 3 + 1 / 4)],
)
def test_new_maxima_are_as_many_as_expected_on_average(
    algorithm: str, block: int | None, expected: float
) -> None:
    rows = np.random.default_rng(0).permuted(np.tile(np.arange(100.0), (400, 1)), axis=1)
    unit = machine("float32")
    counts = [len(trace(row, algorithm, block, unit).events) for row in rows.astype(np.float32)]
    assert explain(rows[0], "float32", algorithm, block).expected == pytest.approx(expected)
    # Independent events, each with variance p * (1 - p) < p: five standard deviations of the mean.
    assert abs(np.mean(counts) - expected) < 5 * math.sqrt(expected / 400)


def test_true_values_are_good_to_the_last_digit_of_float64() -> None:
    rng = np.random.default_rng(0)
    with mpmath.workdps(60):
        for row in (rng.standard_normal(50), 1e10 + rng.standard_normal(50), [1e300, 1e300, 0.0]):
            found = explain(row, "float64", "batch")
            exact = [mpmath.mpf(float(a)) for a in row]
            m = max(exact)
            s = mpmath.fsum(mpmath.exp(a - m) for a in exact)
            assert found.s is not None
            assert found.lse is not None
            assert found.s.true == float(s)
            assert found.lse.true == float(m + mpmath.log(s))
            assert found.lse.error == pytest.approx(
                float(abs(mpmath.mpf(found.lse.computed) - m - mpmath.log(s))), rel=1e-12
            )


def test_rounding_first_counts_as_an_error() -> None:
    found = explain([0.1, 0.2], "float16")
    assert found.rounded == 2
    assert found.lse is not None
    assert found.lse.true == pytest.approx(math.log(math.exp(0.1) + math.exp(0.2)), rel=1e-15)
    assert "2 entries rounded first: not of float16." in found.text()


@pytest.mark.parametrize(
    ("row", "words", "m"),
    [
        ([], "row is empty", -math.inf),
        ([1.0, math.nan], "Entry 1 is NaN", math.nan),
        ([math.inf, 0.0], "Entry 0 is +inf", math.inf),
        ([-math.inf, -math.inf], "Every entry is -inf:", -math.inf),
        ([0.0, 1e6], "Entry 1, 1e+06, overflows to +inf in float16", math.inf),
        ([-1e6, -math.inf], "Every entry is -inf in float16", -math.inf),
    ],
)
def test_special_rows_are_explained_in_words(row: list[float], words: str, m: float) -> None:
    for algorithm in ALGORITHMS:
        found = explain(row, "float16", algorithm)
        assert found.special is not None
        assert words in found.special
        assert found.special in found.text()
        assert found.m == pytest.approx(m, abs=0, nan_ok=True)
        assert found.s is None
        assert found.events == ()


def test_masked_entries_take_no_part() -> None:
    found = explain([-math.inf, 0.0, -math.inf, 0.0], "float32")
    assert found.masked == 2
    assert found.expected == 1.5
    assert found.s is not None
    assert found.s.computed == 2
    assert found.y_zeros == found.zeros == 0
    assert "2 entries of -inf: no part of any sum." in found.text()
    assert "Nothing underflows, and every addition counts." in found.text()


def test_the_text_names_only_so_many_events() -> None:
    found = explain(np.arange(30.0), "float32")
    assert found.text(events=5).count("maximum") == 5
    assert "... and 25 more" in found.text(events=5)
    assert "more" not in found.text(events=30)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (([[1.0, 2.0]], "float32"), "row"),
        ((["a"], "float32"), "row"),
        (([1j], "float32"), "row"),
        (([1.0], "float8"), "dtype"),
        (([1.0], "float32", "online"), "algorithm"),
        (([1.0], "float32", "streaming", 4), "block"),
    ],
)
def test_a_wrong_call_names_its_argument(call: tuple, named: str) -> None:
    with pytest.raises(ValueError, match=rf"^{named}: .* would do$"):
        explain(*call)


def test_an_explanation_can_be_made_by_hand() -> None:
    bare = Explanation(0, "float32", "batch", None, "why", 0, 0, -math.inf)
    assert bare.text() == "0 entries, float32, batch\nwhy"

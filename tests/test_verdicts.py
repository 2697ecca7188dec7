"""Verdicts on number formats: each side of every criterion, and what they claim, done in the formats
themselves; and what the scale of attention scores does."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from online_softmax.numerics.formats import FORMATS, Format, log
from online_softmax.numerics.spread import score_spread, spread
from online_softmax.numerics.verdicts import COLUMNS, LARGEST_LOGIT, TOLERANCE, Judgement, verdict

SCORES = Path(__file__).parents[1] / "examples" / "attention_scores.npy"
FLUSHED = {f"{name}, flush": replace(fmt, flush=True) for name, fmt in FORMATS.items()}
EVERY = FORMATS | FLUSHED
PARTS = ("naive", "safe", "accumulator")
ORDER = ("yes", "limited", "no")


def judged(fmt: Format, part: str, **workload: float) -> Judgement:
    return getattr(verdict(fmt, **workload), part)


# --- criteria -----------------------------------------------------------------------------------------


def test_the_default_logit_is_the_largest_whole_one_of_float32():
    assert math.floor(FORMATS["float32"].exp_overflows_above.x) == LARGEST_LOGIT


@pytest.mark.parametrize("name", EVERY)
def test_naive_ends_where_an_exponential_overflows(name):
    fmt = EVERY[name]
    x = fmt.exp_overflows_above.x
    last = float(x)
    assert judged(fmt, "naive", columns=1, largest_logit=last, smallest_logit=0.0).usable == "yes"
    beyond = judged(fmt, "naive", columns=1, largest_logit=last * 1.2, smallest_logit=0.0)
    assert beyond.usable == "no"
    assert f"above {fmt.exp_overflows_above.real:.2f}" in beyond.why
    assert ("NaN" if fmt.finite_only else "infinite") in beyond.why


@pytest.mark.parametrize("name", EVERY)
def test_naive_ends_where_a_row_is_all_zeros(name):
    fmt = EVERY[name]
    edge = float(fmt.exp_zero_below().real)
    last = edge * (1 - 1e-12)
    here = judged(fmt, "naive", columns=1, largest_logit=0.0, smallest_logit=last)
    if fmt.flush:
        assert here.usable == "yes"
    else:
        assert here.usable == "limited"
        assert here.why == f"exp({last:g}) keeps 1 of {fmt.precision} bits: it is below the normal numbers"
    beyond = judged(fmt, "naive", columns=1, largest_logit=0.0, smallest_logit=edge * (1 + 1e-12))
    assert beyond.usable == "no"
    assert f"below {fmt.exp_zero_below().real:.2f}" in beyond.why


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("columns", [2, 100])
def test_naive_is_limited_where_the_sum_overflows(name, columns):
    fmt = EVERY[name]
    edge = float(log(fmt.overflow_bound / columns))
    low = judged(fmt, "naive", columns=columns, largest_logit=edge - 1e-9, smallest_logit=0.0)
    high = judged(fmt, "naive", columns=columns, largest_logit=edge + 1e-9, smallest_logit=0.0)
    assert (low.usable, high.usable) == ("yes", "limited")
    assert f"a sum of {columns} only up to {edge:.2f}" in high.why


@pytest.mark.parametrize("name", FORMATS)
def test_safe_ends_where_a_uniform_row_is_zero(name):
    fmt = FORMATS[name]
    if fmt.zero_bound * 2**63 < 1:
        assert judged(fmt, "safe", columns=2**63).usable == "yes"
        return
    zero, subnormal = int(1 / fmt.zero_bound), 2**-fmt.min_exponent
    dtype = np.dtype(getattr(ml_dtypes, name, name)).type
    for columns, usable in (
        (subnormal, "yes"),
        (subnormal + 1, "limited"),
        (zero - 1, "limited"),
        (zero, "no"),
    ):
        found = judged(fmt, "safe", columns=columns)
        assert found.usable == usable, columns
        assert (float(dtype(1 / columns)) == 0) == (usable == "no")
    assert f"up to {subnormal} entries" in judged(fmt, "safe", columns=zero - 1).why
    assert f"below 2^{int(math.log2(fmt.zero_bound))} " in found.why


def test_safe_with_flush_loses_more():
    fmt = FLUSHED["float16, flush"]
    # u / 2^-14 = 8 columns; 1/16384 is the smallest normal number, and 1/16388 still rounds to it.
    for columns, usable in ((8, "yes"), (9, "limited"), (16388, "limited"), (16389, "no")):
        assert judged(fmt, "safe", columns=columns).usable == usable


@pytest.mark.parametrize("name", FORMATS)
def test_an_accumulator_ends_where_ones_stall(name):
    fmt = FORMATS[name]
    stall = fmt.sum_of_ones_stalls_at
    at, beyond = (judged(fmt, "accumulator", columns=n) for n in (stall, stall + 1))
    assert (at.usable, beyond.usable) == ("limited", "no")
    enough = int(Fraction(TOLERANCE) * stall) + 1  # (columns - 1) * u <= tolerance
    assert judged(fmt, "accumulator", columns=enough).usable == "yes"
    assert judged(fmt, "accumulator", columns=enough + 1).usable == "limited"
    assert judged(fmt, "accumulator", columns=enough + 1, tolerance=1.0).usable == "yes"
    assert (str(stall) if stall < 10**6 else f"2^{fmt.precision}") in beyond.why


def test_an_accumulator_may_overflow_before_it_stalls():
    fmt = Format("short", emax=5, precision=12)
    assert judged(fmt, "accumulator", columns=63).usable == "limited"
    assert judged(fmt, "accumulator", columns=64).why == "a sum of ones overflows at 64, short of 64"


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("part", PARTS)
def test_longer_rows_are_never_easier(name, part):
    found = [ORDER.index(judged(EVERY[name], part, columns=2**k).usable) for k in range(0, 64, 3)]
    assert found == sorted(found)
    if part == "accumulator":
        assert found[0] == 0
        assert found[-1] == 2


@pytest.mark.parametrize("name", EVERY)
def test_larger_logits_are_never_easier(name):
    found = [
        ORDER.index(judged(EVERY[name], "naive", columns=1, largest_logit=float(x)).usable)
        for x in range(0, 800, 9)
    ]
    assert found == sorted(found)
    assert (found[0], found[-1]) == (0, 2)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"columns": 0}, ValueError, r"columns: 0 is out of range; 1 to 2\^63 would do"),
        ({"columns": 2**63 + 1}, ValueError, "columns: 9223372036854775809 is out of range"),
        ({"columns": 10.0}, TypeError, "columns: 10.0 is no int"),
        ({"largest_logit": math.nan}, ValueError, "largest_logit: nan is out of range"),
        ({"largest_logit": math.inf}, ValueError, "largest_logit: inf is out of range"),
        ({"smallest_logit": -math.inf}, ValueError, "smallest_logit: -inf is out of range"),
        ({"largest_logit": 1.0, "smallest_logit": 2.0}, ValueError, "smallest_logit: 2.0 .* up to 1.0 "),
        ({"tolerance": 0.0}, ValueError, "tolerance: 0.0 is out of range"),
        ({"tolerance": 1.5}, ValueError, "tolerance: 1.5 is out of range"),
        ({"tolerance": math.nan}, ValueError, "tolerance: nan is out of range"),
    ],
)
def test_a_wrong_workload_is_named(given, error, message):
    with pytest.raises(error, match=message):
        verdict(FORMATS["float32"], **given)


# --- what the verdicts claim, done --------------------------------------------------------------------


def test_the_worst_error_of_a_running_sum_is_reached():
    """After 1, terms of u leave no trace: the float32 sum of a default row is 0.78 % off."""
    fmt = FORMATS["float32"]
    terms = np.full(COLUMNS, float(fmt.unit_roundoff), np.float32)
    terms[0] = 1
    total, exact = float(np.cumsum(terms)[-1]), math.fsum(terms.tolist())
    worst = (COLUMNS - 1) * float(fmt.unit_roundoff)
    assert total == 1
    assert exact - total == worst
    assert f"{100 * worst:.2g} %" in judged(fmt, "accumulator").why


@pytest.mark.parametrize("columns", [4096, COLUMNS])
def test_the_mass_said_to_be_lost_can_be(columns):
    """One entry at the maximum, the others as high as float16 still takes for 0."""
    fmt = FORMATS["float16"]
    x = np.full(columns, np.nextafter(np.float16(float(fmt.exp_zero_below().x)), np.float16(-np.inf)))
    x[0] = 0
    exact = np.exp(x.astype(np.float64))
    stored = exact.astype(np.float16)
    lost = float((exact - stored).sum())
    most = columns * float(fmt.zero_bound)
    assert np.count_nonzero(stored) == 1
    assert 0.98 * most < lost < most
    assert (most > fmt.unit_roundoff) == (judged(fmt, "safe", columns=columns).usable == "limited")


@pytest.mark.parametrize("name", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "float32"])
def test_a_naive_softmax_fails_where_the_verdict_says_no(name):
    fmt, dtype = FORMATS[name], np.dtype(getattr(ml_dtypes, name, name))
    usable = {}
    for logit in (1.0, 5.0, 10.0, 20.0, 50.0, 90.0, 120.0):
        usable[logit] = judged(fmt, "naive", columns=2, largest_logit=logit).usable
        with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
            high, low = (
                np.exp(np.float64([s * logit] * 2)).astype(dtype).astype(np.float64) for s in (1, -1)
            )
            total = high.sum().astype(dtype).astype(np.float64)
            fails = not np.isfinite(high).all() or (low.sum() == 0)
        assert (usable[logit] == "no") == fails
        if usable[logit] == "yes":
            assert np.isfinite(total)
    assert {"yes", "no"} <= set(usable.values())


def test_the_verdicts_of_the_default_workload():
    found = {
        name: tuple(getattr(verdict(fmt), part).usable for part in PARTS) for name, fmt in FORMATS.items()
    }
    assert found == {
        "float64": ("yes", "yes", "yes"),
        "float32": ("limited", "yes", "yes"),
        "tf32": ("limited", "yes", "no"),
        "float16": ("no", "limited", "no"),
        "bfloat16": ("limited", "yes", "no"),
        "float8_e4m3fn": ("no", "no", "no"),
        "float8_e5m2": ("no", "no", "no"),
    }


# --- attention scores ---------------------------------------------------------------------------------


def test_the_scale_divides_the_spread_by_the_root_of_head_dim():
    seen = score_spread([[1.0, -3.0, 2.5], [0.5, 0.25, 0.0]], 16)
    assert (seen.head_dim, seen.columns, seen.raw.rows) == (16, 3, 2)
    for scaled, raw in (("spread", 22.0), ("largest", 10.0), ("smallest", -12.0), ("widest_row", 22.0)):
        assert getattr(seen.raw, scaled) == raw == 4 * getattr(seen.scaled, scaled)
    assert seen.raw.std == pytest.approx(4 * seen.scaled.std, rel=1e-15)
    assert score_spread([[4.0, -12.0, 10.0], [2.0, 1.0, 0.0]], 16, scaled=False) == seen


@pytest.mark.parametrize("name", FORMATS)
def test_rows_a_naive_softmax_fails_on_are_counted(name):
    """One exponential too large, a sum too large, all zero, neither."""
    fmt = FORMATS[name]
    over, zero = float(fmt.exp_overflows_above.real), float(fmt.exp_zero_below().real)
    sum_too_large, sum_fits = over - math.log(2) + 0.01, over - math.log(2) - 0.01
    rows = [[over + 0.01, 0.0], [sum_too_large] * 2, [sum_fits] * 2, [zero - 0.01] * 2, [zero + 0.01, -1e4]]
    seen = spread(rows)
    assert (seen.overflow[name], seen.zero[name]) == (2 / 5, 1 / 5)
    assert seen.fails(name) == pytest.approx(3 / 5, rel=1e-15)


def test_real_scores_against_sums_made_another_way():
    scores = np.load(SCORES).astype(np.float64)
    seen = score_spread(scores, 32)
    for found, factor in ((seen.scaled, 1.0), (seen.raw, math.sqrt(32))):
        sums = np.exp(scores * factor).sum(-1)
        assert found.overflow["float16"] == np.mean(sums >= 65520)
        assert found.overflow["float8_e4m3fn"] == np.mean(sums > 464)
        assert found.largest == (scores * factor).max()
        assert found.widest_row == np.ptp(scores * factor, axis=-1).max()
        assert found.std == pytest.approx((scores * factor).std(), rel=1e-13)
    assert seen.raw.fails("float16") > 0.5 > seen.scaled.fails("float16") == 0


def test_random_scores_have_the_stated_deviation_and_their_own_keys_are_not_bounded():
    rng = np.random.default_rng(1)
    for head_dim in (16, 64, 256):
        k = rng.standard_normal((1024, head_dim))
        seen = score_spread(rng.standard_normal((1024, head_dim)) @ k.T, head_dim, scaled=False)
        # The variance of the mean of squares over 2^20 products of 2048 vectors: six deviations.
        assert seen.scaled.std == pytest.approx(1, abs=6 * math.sqrt(2 / head_dim / 1024))
        own = score_spread(k @ k.T, head_dim, scaled=False)
        assert own.scaled.largest >= math.sqrt(head_dim)
        share = own.scaled.fails("float16")
        assert share > 0.99 if head_dim == 256 else share < 0.1


def test_masked_scores_and_rows_are_left_out():
    inf = np.inf
    seen = spread([[1.0, -inf, 3.0], [-inf] * 3, [0.0, -2.0, -inf]])
    assert (seen.rows, seen.smallest, seen.largest, seen.widest_row) == (2, -2.0, 3.0, 2.0)
    assert seen.std == np.std([1, 3, 0, -2])
    assert set(seen.zero.values()) == {0.0}


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (1.0, "scores: a single number has no rows"),
        ([1j], "scores: complex128 has no order"),
        ([1.0, math.nan], "scores: NaN or .inf among them"),
        ([1.0, math.inf], "scores: NaN or .inf among them"),
        ([-math.inf], "scores: every one is masked"),
        ([], "scores: every one is masked .* or there is none"),
        (np.zeros((0, 5)), "scores: every one is masked .* or there is none"),
        (np.zeros((5, 0)), "scores: every one is masked .* or there is none"),
    ],
)
def test_scores_of_no_use_are_refused(scores, message):
    with pytest.raises(ValueError, match=message):
        spread(scores)


@pytest.mark.parametrize(("head_dim", "error"), [(0, ValueError), (-1, ValueError), (64.0, TypeError)])
def test_a_wrong_head_dim_is_named(head_dim, error):
    with pytest.raises(error, match=f"head_dim: {head_dim} is"):
        score_spread([[1.0]], head_dim)

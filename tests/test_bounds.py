"""How tight `error_bound` is, against what runs reach and against first-order formulas; what is said of the
algorithms' errors; and the corners of the closed forms in `bounds`."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers import DEPTH, EXP_UNITS, EXP_UNITS_OF_16_BITS, LOG_UNITS
from test_error_bound import FORMATS, depth_of, hold, rows_of, share, truth, wide

from online_softmax import log_softmax, logsumexp, softmax
from online_softmax.numerics import bounds
from online_softmax.numerics.error_bound import ALGORITHMS, error_bound
from online_softmax.numerics.roundoff import Rounding
from online_softmax.numerics.simulate import simulate

# --- how tight it is ---


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_is_near_on_rows_of_scores(format: str, algorithm: str) -> None:
    """Some of 200 rows of 100 normal scores come within a factor 25 of it in s, and 8 in y."""
    x = np.random.default_rng(3).standard_normal((200, 100)).astype(Rounding.of(format).dtype)
    reached = hold(simulate(x, algorithm, format), truth(x), error_bound(x, algorithm, format))
    assert reached["s"].max() > 1 / 25
    assert reached["y"].max() > 1 / 8


@pytest.mark.parametrize("format", ["float16", "bfloat16"])
def test_it_is_near_where_a_sum_stalls(format: str) -> None:
    """Ones: a running sum ends at 1/u, and the bound grows no faster than the loss."""
    n = round(16 / bounds.unit_roundoff(format))
    stalled = 1 / bounds.unit_roundoff(format)
    x = np.zeros((1, n))
    assert float(simulate(x, "batch", format).s[0]) == stalled
    told = error_bound(x, "batch", format).s[0]
    assert 1 - stalled / n <= told <= 1.1 * (1 - stalled / n)
    assert told == pytest.approx(0.977, abs=5e-4)  # as docs/bounds.md has it


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_it_is_no_wider_than_the_first_order_formulas(algorithm: str) -> None:
    """Against eta summed by hand, with exponentials of 2u: to first order the same or less."""
    u, e, n, block = 2.0**-24, 2.0**-23, 256, 16
    for x in rows_of("float32", n, range(3)).astype(np.float64):
        distance = x.max() - x
        p = np.exp(-distance) / np.exp(-distance).sum()
        tops = np.maximum.accumulate(x)
        changes = np.concatenate(([0], np.cumsum(tops[1:] > tops[:-1])))
        later = changes[-1] - changes
        order = np.arange(n)
        of_blocks = np.repeat(later[block - 1 :: block], block)
        with np.errstate(invalid="ignore"):
            exponents = np.where(p > 0, u * distance, 0)
        eta = {
            "batch": e + n * u,
            "streaming": (n - order + 1) * u + later * u + (1 + later) * e,
            "blocked": (block + n // block - order // block) * u + of_blocks * (u + e) + e,
            "tree": e + block * u + 4 * (2 * u + e),
        }[algorithm]
        of_s = (p * (exponents + eta)).sum() + n * 2.0**-149
        options = {"block": block} if algorithm in ("blocked", "tree") else {}
        v = np.random.default_rng(0).standard_normal((n, 2)).astype(np.float32)
        told = error_bound(x, algorithm, "float32", values=v, **options)
        assert told.s <= 1.001 * of_s
        log_s = np.log(np.exp(-distance).sum())
        assert told.lse <= 1.001 * (of_s + e * log_s + u * abs(x.max() + log_s))
        assert (told.y <= 1.001 * p * (of_s + exponents + e + u) + 2.0**-148).all()
        # Each product with v is rounded too.
        worst = (np.broadcast_to(eta, n) + exponents)[p > 0].max() + u
        assert told.o is not None
        assert (
            told.o <= 1.001 * (worst + of_s + u) * (p[:, None] * np.abs(v)).sum(axis=0) + n * 2.0**-149
        ).all()


# --- numbers that are said of the algorithms ---


def test_the_exponents_errors_add_up_to_less_than_the_logarithm_of_the_length() -> None:
    for n in (2, 100, 4096):
        for x in rows_of("float64", n, range(2)):
            with np.errstate(over="ignore"):
                distance = x.max() - x
            w = np.exp(-distance)
            p = w / w.sum()
            with np.errstate(invalid="ignore"):
                part = np.where(p > 0, p * distance, 0).sum()
            entropy = -(p[p > 0] * np.log(p[p > 0])).sum()
            assert part == pytest.approx(entropy - np.log(w.sum()), abs=1e-9)
            assert part <= np.log(n) + 1e-12


def test_a_slow_ramp_is_streamings_worst_and_leaves_blocks_and_trees_alone() -> None:
    u = bounds.unit_roundoff("float32")
    x = np.stack([np.arange(4096) * step for step in (1e-3, 5e-4, 2e-4)]).astype(np.float32)
    true = truth(x)

    def error(algorithm: str, **way: int | str) -> np.ndarray:
        return (np.abs(simulate(x, algorithm, "float32", **way).s.astype(wide) - true.s) / true.s).astype(
            float
        )

    ratio = error("streaming") / error("batch", order="pairwise")
    assert (ratio > 75).all()
    for way in ({"algorithm": "blocked"}, {"algorithm": "tree"}, {"algorithm": "tree", "block": 16}):
        assert (error(**way) < 8 * u).all()
    told = [error_bound(x, a, "float32").s for a in ("streaming", "blocked", "tree")]
    assert (told[0] > 20 * told[1]).all()
    assert (told[0] > 20 * told[2]).all()


def test_a_rounded_product_as_pivot_is_not_shift_invariant() -> None:
    """exp2(fma(x, c, -fl(m*c))) with rescales exp2((m - m')*c) against subtracting first, in units of u."""
    u = bounds.unit_roundoff("float32")
    c = np.float32(np.log2(np.e))
    worst = {}
    for shift in (0.0, 1e3, 1e4):
        x = (np.random.default_rng(0).standard_normal((400, 64)) + shift).astype(np.float32)
        true = truth(x).s

        def exp2(a: np.ndarray) -> np.ndarray:
            return np.exp2(a.astype(np.float64)).astype(np.float32)

        for way in ("rounded product", "subtracted"):
            s = np.zeros(len(x), np.float32)
            m = x[:, 0]
            for k in range(x.shape[1]):
                new = np.maximum(m, x[:, k])
                if way == "subtracted":
                    term = exp2((x[:, k] - new) * c)
                else:  # one rounding of x*c - fl(m*c), as a fused multiply-add makes
                    term = exp2(
                        (x[:, k].astype(np.float64) * c - (new * c).astype(np.float64)).astype(np.float32)
                    )
                s = s * exp2((m - new) * c) + term
                m = new
            worst[way, shift] = float((np.abs(s - true) / true).max() / u)
    assert 0.5e3 < worst["rounded product", 1e3] < 2e3
    assert 3.5e3 < worst["rounded product", 1e4] < 14e3
    assert worst["subtracted", 1e3] < 10 > worst["subtracted", 1e4]


def lost_row(count: int) -> np.ndarray:
    """One 0 and entries whose exponentials, 2**-25.2, are 0 in float16."""
    row = np.full((1, count), -17.5)
    row[0, 0] = 0
    return row


def test_exponentials_in_float16_break_before_the_sum_in_float32() -> None:
    """Each loses less than 2**-25 of mass, so 1e-3 is lost at 2**25/1000 entries or somewhat more; the sum
    itself is good for 2**24 ones."""
    tolerance = 1e-3

    def measured(count: int, exp_format: str | None) -> float:
        x = lost_row(count)
        true = 1 + (count - 1) * math.exp(-17.5)
        return (
            abs(float(simulate(x, "batch", "float32", order="pairwise", exp_format=exp_format).s[0]) - true)
            / true
        )

    def told(count: int, exp_format: str | None) -> float:
        depth = depth_of("pairwise", count)
        return float(
            error_bound(lost_row(count), "batch", "float32", depth=depth, exp_format=exp_format).s[0]
        )

    for count in (2**10, 2**14, 2**17):
        mass = (count - 1) * math.exp(-17.5)
        assert measured(count, "float16") == pytest.approx(mass / (1 + mass), rel=1e-6)
        assert measured(count, "float16") <= told(count, "float16") <= 1.1 * (count - 1) * 2.0**-25
        assert measured(count, None) <= told(count, None) < 2e-5
    breaks = math.ceil(tolerance / math.exp(-17.5) / (1 - tolerance)) + 1
    assert measured(breaks - 1, "float16") < tolerance < measured(breaks + 1, "float16")
    assert tolerance * 2**25 < breaks < 2**24 / 400
    # The bound says so no later, and without knowing that these entries round down.
    assert told(breaks, "float16") >= tolerance
    # Blocks that take their exponentials at maxima of their own lose nothing before they are merged.
    own = simulate(lost_row(2**17), "tree", "float32", exp_format="float16").s[0]
    assert abs(float(own) / (1 + (2**17 - 1) * math.exp(-17.5)) - 1) < 1e-5


# --- kernels ---


@pytest.mark.parametrize("format", ["float64", "float32", "float16", "bfloat16"])
def test_our_kernels_keep_within_it(format: str) -> None:
    """They sum in lanes, take another pivot than the maximum and compute in float32 up to 32 bits."""
    computed = "float64" if format == "float64" else "float32"
    u = bounds.unit_roundoff(computed)
    units = EXP_UNITS_OF_16_BITS if format in ("float16", "bfloat16") else EXP_UNITS
    options = {"exp_error": units * u, "log_error": LOG_UNITS * u, "exact_top": False, "out_format": format}
    for n in (1, 5, 64, 1000):
        x = rows_of(format, n, range(5))
        true, bound = truth(x), error_bound(x, "batch", computed, depth=DEPTH, **options)
        for call, name in ((softmax, "y"), (log_softmax, "log_y"), (logsumexp, "lse")):
            assert share(name, call(x), getattr(true, name), getattr(bound, name)).max() <= 1, name


# --- the closed forms ---


def test_both_sides_of_a_product_are_within_expm1() -> None:
    """|prod(1 + d) - 1| <= expm1(sum |d|), for d of either sign, up to sums of 3."""
    for d in np.random.default_rng(0).uniform(-0.3, 0.3, (1000, 20)):
        assert abs(np.prod(1 + d) - 1) <= np.expm1(np.abs(d).sum())
    for size in (1e-3, 0.1, 0.9):
        assert abs(np.prod(1 - np.full(5, size)) - 1) <= np.expm1(5 * size)


def test_an_underflow_errs_on_its_way_like_other_terms() -> None:
    row, eta = [0.0, -1000.0], 3.0
    alone = bounds.sum_error(row, eta, u=0.0)
    assert bounds.sum_error(row, eta, u=0.0, tiny=1e-3) - alone == pytest.approx(2 * 1e-3 * math.exp(eta))


def test_an_error_of_all_the_sum_leaves_no_bound_but_at_zeros() -> None:
    """From a relative error of 1 on 1/s may be anything; an exponential of 0 stays one."""
    bound = bounds.softmax_error([0.0, -np.inf], 1.0, u=1e-3, e=1e-3, tiny=1e-8)
    assert bound[0] == np.inf
    assert bound[1] == (2 + 2 * 2e-3) * 1e-8


def test_one_name_leads_to_all_bounds() -> None:
    for name in bounds.__all__:
        assert hasattr(bounds, name)
    assert bounds.error_bound is error_bound

"""`error_bound(order="any")` holds on rows made to break it, and comes near on some."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import exact_rows
import ml_dtypes
import mpmath
import numpy as np
import pytest
from exact_rows import FORMATS, Array
from test_error_bound import hold, rows_of, truth
from test_exact_law import below_the_grid

from online_softmax import exact
from online_softmax.exact import FLOAT32, FLOAT64, Format
from online_softmax.numerics.bounds import error_bound
from online_softmax.numerics.simulate import Simulation

wide = np.longdouble
pytestmark = pytest.mark.skipif(np.finfo(wide).nmant < 63, reason="needs a long double of 64 bits")
formats = pytest.mark.parametrize("form", FORMATS, ids=[form.name for form in FORMATS])


def quotient(m: float, a: list[int], form: Format) -> Fraction:
    """V / T(m) of a state, in full."""
    if abs(m) > form.large:
        return Fraction(a[0])
    p, n = exact.terms(np.array([m], form.dtype), form)
    b = int(exact.bin_of(n, form)[0])
    v = sum(Fraction(s, 2 ** (form.width * k)) for k, s in enumerate(a))
    return v / (Fraction(float(p[0])) * Fraction(2) ** (int(n[0]) - form.width * b))


def longest(v: Fraction) -> Any:
    high = float(v)
    return wide(high) + wide(float(v - Fraction(high)))


def results(x: Array, form: Format) -> Simulation:
    """By the definition; s in full, as longdouble."""
    m, a = exact.state(x, form)
    s = np.array([longest(quotient(*row, form)) for row in zip(m.tolist(), a.tolist(), strict=True)])
    with np.errstate(over="ignore"):
        y = exact.value(x, m[:, None], a[:, None], form)
        log_y = exact.log_value(x, m[:, None], a[:, None], form)
    return Simulation(m, s, exact.lse(m, a, form), y, log_y, None)


def finite(x: Array) -> Array:
    with np.errstate(invalid="ignore"):
        return x[np.isfinite(x.max(axis=-1))]


@formats
@pytest.mark.parametrize("sigma", [0.01, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0])
def test_it_holds_on_rows_of_scores(sigma: float, form: Format) -> None:
    x = (sigma * np.random.default_rng(0).standard_normal((50, 800))).astype(form.dtype)
    hold(results(x, form), truth(x), error_bound(x, order="any"))


@formats
def test_it_holds_on_rows_with_an_edge(form: Format) -> None:
    for x in (
        exact_rows.moderate((100, 50), 50, form.dtype),
        exact_rows.wide((300, 20), 51, form.dtype),
        exact_rows.offset((300, 20), 52, form.dtype),
        exact_rows.ties((100, 40), 53, form.dtype),
        exact_rows.bin_rows((300, 20), 54, form),
        finite(exact_rows.edge_rows((400, 12), 55, form)),
        finite(np.array(exact_rows.edges(form), form.dtype)[:, None]),
    ):
        hold(results(x, form), truth(x), error_bound(x, order="any"))


@formats
def test_it_holds_on_hard_rows(form: Format) -> None:
    for n in (1, 2, 17, 700):
        x = rows_of(form.dtype.name, n, range(6))
        hold(results(x, form), truth(x), error_bound(x, order="any"))


def test_it_holds_in_float64_against_50_digits() -> None:
    x = np.concatenate(
        [exact_rows.moderate((8, 12), 60, FLOAT64.dtype), exact_rows.offset((12, 12), 61, FLOAT64.dtype)]
    )
    made, bound = results(x, FLOAT64), error_bound(x, order="any")
    with mpmath.workdps(50):
        for i, row in enumerate(x.tolist()):
            m = mpmath.mpf(max(row))
            w = [mpmath.exp(mpmath.mpf(v) - m) for v in row]
            s = mpmath.fsum(w)
            v = quotient(float(made.m[i]), exact.state(x[i : i + 1], FLOAT64)[1][0].tolist(), FLOAT64)
            assert abs(mpmath.mpf(v.numerator) / v.denominator / s - 1) <= bound.s[i]
            assert abs(mpmath.mpf(float(made.lse[i])) - m - mpmath.log(s)) <= bound.lse[i]
            for k, v in enumerate(row):
                assert abs(mpmath.mpf(float(made.y[i, k])) - w[k] / s) <= bound.y[i, k]
                true = mpmath.mpf(v) - m - mpmath.log(s)
                assert abs(mpmath.mpf(float(made.log_y[i, k])) - true) <= bound.log_y[i, k]


@pytest.mark.parametrize("count", [2**10, 2**16, 2**20])
@formats
def test_it_holds_where_most_falls_below_the_grid(form: Format, count: int) -> None:
    """A maximum at the bottom of its bin, all others the greatest of which nothing is left: the tail is all
    the error there is, and the bound is no wider than it and the terms' part."""
    m, x = below_the_grid(form)
    row = np.full((1, count), x, form.dtype)
    row[0, 0] = m
    made, bound = results(row, form), error_bound(row, order="any")
    assert made.s == 1
    lost = (count - 1) * np.exp(wide(row[0, 1]) - wide(row[0, 0]))
    assert lost / (1 + lost) <= bound.s[0] <= 1.01 * lost
    unit = 2.0**-43.5 if form.kind == 32 else 2.0**-95.5
    assert (count - 1) * unit * 0.9 < lost < (count - 1) * unit
    hold(made, truth(row), bound)


@formats
def test_it_is_within_the_formula_of_first_order(form: Format) -> None:
    """2*delta + eta * (mean distance) + n * 2**-43.5 at most."""
    delta, eta, tail = (9e-8, 1.335e-8, 2.0**-43.5) if form.kind == 32 else (2.2 * 2.0**-53, 0, 2.0**-95.5)
    for sigma in (0.3, 1.0, 3.0, 10.0, 30.0):
        x = (sigma * np.random.default_rng(1).standard_normal((20, 1000))).astype(form.dtype)
        true = truth(x)
        mean = (true.y * (x.astype(wide).max(axis=-1, keepdims=True) - x)).sum(axis=-1)
        told = error_bound(x, order="any").s
        assert (told <= 1.001 * (2 * delta + eta * mean + x.shape[-1] * tail)).all()
        if sigma <= 1:  # no term of such a row reaches below the grid, and the maximum's own does not err
            assert (told <= 1.001 * (2 * delta * (1 - true.y.max(axis=-1)) + eta * mean)).all()


@formats
def test_some_results_come_near(form: Format) -> None:
    """The best of 200 rows, as shares of the bound."""
    x = (10 * np.random.default_rng(2).standard_normal((200, 500))).astype(form.dtype)
    reached = hold(results(x, form), truth(x), error_bound(x, order="any"))
    assert reached["s"].max() > (0.4 if form.kind == 32 else 0.25)
    assert reached["lse"].max() > 0.8
    assert reached["y"].max() > (0.7 if form.kind == 32 else 0.25)
    assert reached["log_y"].max() > 0.9


def test_a_smaller_bound_would_break() -> None:
    x = (10 * np.random.default_rng(2).standard_normal((200, 500))).astype(np.float32)
    bound = error_bound(x, order="any")
    for name in ("s", "lse", "y", "log_y"):
        parts = {n: getattr(bound, n) for n in ("s", "lse", "y", "log_y")}
        parts[name] = parts[name] * 0.4
        with pytest.raises(AssertionError):
            hold(results(x, FLOAT32), truth(x), type(bound)(**parts))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_a_final_rounding_and_a_rounding_of_rows_are_counted(dtype: type) -> None:
    x = rows_of(np.dtype(dtype).name, 200, range(4))
    made = results(x.astype(np.float32), FLOAT32)
    with np.errstate(over="ignore"):
        rounded = Simulation(
            made.m, made.s, *(part.astype(dtype) for part in (made.lse, made.y, made.log_y)), None
        )
    hold(rounded, truth(x), error_bound(x, order="any", out_format=dtype))
    with pytest.raises(AssertionError):
        hold(rounded, truth(x), error_bound(x, order="any"))
    rows = np.random.default_rng(3).standard_normal((20, 100)) * 9
    hold(
        results(rows.astype(np.float32), FLOAT32),
        truth(rows),
        error_bound(rows, format="float32", order="any"),
    )


def test_the_format_is_that_of_the_rows() -> None:
    x = np.linspace([0, 5], [1, 9], 9, axis=-1, dtype=np.float32)
    assert (error_bound(x, order="any").s == error_bound(x, None, "float32", order="any").s).all()
    narrow = error_bound(x.astype(np.float16), order="any").s
    assert (narrow > 1e-8).all()
    assert (error_bound(x.astype(np.float64), order="any").s < 1e-15).all()
    assert (error_bound(x, order="any").s == error_bound(x, order="any", flush=True).s).all()


def test_rows_without_a_finite_maximum_are_exact() -> None:
    x = np.array([[np.nan, 1.0], [np.inf, 0.0], [-np.inf, -np.inf], [5.0, -np.inf]], np.float32)
    bound = error_bound(x, order="any")
    assert bound.s.tolist() == [0, 0, 0, 0]
    assert bound.lse[:3].tolist() == [0, 0, 0]
    assert bound.y[3, 1] == 0 == bound.log_y[3, 1]
    assert bound.o is None
    assert error_bound(np.zeros((2, 0)), order="any").lse.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"order": "each"}, "order"),
        ({"order": "row"}, "algorithm"),
        ({"order": "row", "algorithm": "batch"}, "format"),
        ({"algorithm": "batch"}, "algorithm"),
        ({"format": "float16"}, "format"),
        ({"format": "nonsense"}, "format"),
        ({"out_format": "int8"}, "out_format"),
        ({"block": 4}, "block"),
        ({"depth": 4}, "depth"),
        ({"exp_error": 1e-7}, "exp_error"),
        ({"log_error": 1e-7}, "log_error"),
        ({"exp_format": "float16"}, "exp_format"),
        ({"values": np.zeros((1, 3, 1))}, "values"),
        ({"exact_top": False}, "exact_top"),
        ({"x": 1.0}, "x"),
    ],
)
def test_a_wrong_call_names_its_argument(options: dict, named: str) -> None:
    call = {"x": np.zeros((1, 3)), "order": "any"} | options
    with pytest.raises(ValueError, match=rf"^{named}: .* would do$"):
        error_bound(**call)

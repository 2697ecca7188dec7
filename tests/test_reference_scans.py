"""logaddexp and logcumsumexp of the reference: 50 digits of mpmath, prefixes one by one, infinities and NaN.

Ids (B...) name reports of faults in other libraries, which are kept with the project's cases.
"""

from __future__ import annotations

from functools import reduce

import ml_dtypes
import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from online_softmax import reference

INF, NAN = np.inf, np.nan
WIDE = np.finfo(np.longdouble).nmant >= 63
#: Unit roundoffs of the wide float and of float64.
OWN, U = (2.0**-64 if WIDE else 2.0**-53), 2.0**-53
few = settings(deadline=None, max_examples=80, derandomize=True)
numbers = st.one_of(st.floats(-10, 10), st.floats(-800, 800), st.just(-INF))


def check(got: float, truth: mpmath.mpf, steps: int, sizes: mpmath.mpf) -> None:
    """Within the last rounding, and `steps` roundings of the wide float of numbers of size `sizes`."""
    allowed = 1.02 * U * abs(truth) + 4 * steps * OWN * sizes + mpmath.mpf(2) ** -1074
    assert abs(mpmath.mpf(float(got)) - truth) <= allowed


@few
@given(a=numbers, b=numbers)
def test_logaddexp_to_the_last_place(a: float, b: float) -> None:
    got = reference.logaddexp(a, b)
    assert got == reference.logaddexp(b, a)
    if max(a, b) == -INF:
        assert got == -INF
        return
    with mpmath.workdps(400):
        terms = [mpmath.exp(mpmath.mpf(x) - max(a, b)) if x > -INF else mpmath.mpf(0) for x in (a, b)]
        log = mpmath.log(mpmath.fsum(terms))
        check(got, max(a, b) + log, 4, log)


@few
@given(row=st.lists(numbers, min_size=1, max_size=24))
def test_every_prefix_to_the_last_place(row: list[float]) -> None:
    got = reference.logcumsumexp(row)
    with mpmath.workdps(400):
        for i, value in enumerate(got):
            m = max(row[: i + 1])
            if m == -INF:
                assert value == -INF
                continue
            log = mpmath.log(mpmath.fsum(mpmath.exp(mpmath.mpf(x) - m) for x in row[: i + 1] if x > -INF))
            check(value, m + log, 2 * (i + 1), log)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_prefixes_are_those_of_logsumexp(axis: int) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3, 17)) * 3
    got = reference.logcumsumexp(x, axis)
    for i in range(x.shape[axis]):
        prefix = reference.logsumexp(x.take(np.arange(i + 1), axis), axis)
        # Both round to float64; what the running sum adds is far below.
        np.testing.assert_allclose(got.take(i, axis), prefix, rtol=4 * U, atol=40 * 4 * OWN)
    # torch has no better than float64 for its running sum, and the logarithms are up to 15.
    expected = torch.logcumsumexp(torch.from_numpy(x), axis).numpy()
    np.testing.assert_allclose(got, expected, rtol=0, atol=40 * 16 * U)


def test_a_long_ramp() -> None:
    # Every entry a new maximum: a geometric series, whose sum is known.
    step, n = 1e-3, 4000
    got = reference.logcumsumexp(step * np.arange(n))
    with mpmath.workdps(40):
        for i in (0, 1, 999, n - 1):
            h = mpmath.mpf(step)
            truth = mpmath.log(mpmath.expm1(h * (i + 1)) / mpmath.expm1(h))
            # The ramp's own entries are rounded too, by u of their size, which the sum averages.
            assert abs(mpmath.mpf(float(got[i])) - truth) <= U * (truth + step * n) + 2 * (i + 1) * OWN


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        pytest.param([-INF, 0], [-INF, 0], id="B017"),
        pytest.param([2, -INF, -INF, 1], [2, 2, 2, 2 + np.log1p(np.exp(-1))], id="B017 later"),
        pytest.param([0, INF, 1], [0, INF, INF], id="B027"),
        pytest.param([NAN, 0, 1], [NAN] * 3, id="B033"),
        ([-INF, -INF], [-INF, -INF]),
        ([-INF, INF, -INF, NAN, 0], [-INF, INF, INF, NAN, NAN]),
        ([INF, INF], [INF, INF]),
        ([0, NAN, INF], [0, NAN, NAN]),
        ([1e308, 1e308, -1e308], [1e308, 1e308, 1e308]),
        ([], []),
    ],
)
def test_special_prefixes(row: list[float], expected: list[float]) -> None:
    np.testing.assert_allclose(reference.logcumsumexp(row), expected, rtol=2 * U, atol=0)


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        pytest.param([1, INF, INF, -INF], [INF, INF, 1, -INF], [INF, INF, INF, -INF], id="B028"),
        ([INF, -INF, NAN, 0], [-INF, INF, INF, NAN], [INF, INF, NAN, NAN]),
        ([-INF, 3], [5, -INF], [5, 3]),
        ([0, 1e4], [0, 1e4], [np.log(2), 1e4 + np.log(2)]),
    ],
)
def test_special_pairs(a: list[float], b: list[float], expected: list[float]) -> None:
    np.testing.assert_array_equal(reference.logaddexp(a, b), expected)


def test_b087_a_fold_from_the_identity() -> None:
    assert reduce(reference.logaddexp, [], -INF) == -INF
    # log(1 + e + e^2), three roundings.
    assert float(reduce(reference.logaddexp, [0, 1, 2], -INF)) == pytest.approx(
        np.log(1 + np.e + np.e**2), rel=4 * U
    )


def test_b183_the_order_of_adding_does_not_matter_at_infinities() -> None:
    add = reference.logaddexp
    assert add(add(-INF, -INF), 2.0) == add(-INF, add(-INF, 2.0)) == 2.0


def test_shapes_and_formats() -> None:
    a, b = np.array([[0.0], [1.0]]), np.array([2.0, 3.0, -INF])
    assert reference.logaddexp(a, b).shape == (2, 3)
    assert reference.logaddexp(1, 2).shape == ()
    assert reference.logcumsumexp(np.zeros((0, 3))).shape == (0, 3)
    assert reference.logcumsumexp(np.zeros((3, 0))).shape == (3, 0)
    assert reference.logcumsumexp(2.0) == 2.0
    x = np.array([1, 2, 3], ml_dtypes.bfloat16)
    assert reference.logcumsumexp(x).dtype == reference.logaddexp(x, x).dtype == np.float64
    np.testing.assert_array_equal(reference.logcumsumexp(x), reference.logcumsumexp([1.0, 2.0, 3.0]))


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda: reference.logcumsumexp([1j]), TypeError, "x holds complex128"),
        (lambda: reference.logcumsumexp([1.0], 1), ValueError, "axis=1"),
        (lambda: reference.logcumsumexp(1.0, 3), ValueError, "axis=3"),
        (lambda: reference.logaddexp([1j], 0), TypeError, "a holds"),
        (lambda: reference.logaddexp([1, 2], [1, 2, 3]), ValueError, r"a has shape \(2,\) and b \(3,\)"),
    ],
)
def test_wrong_calls_name_the_argument(call: object, error: type[Exception], names: str) -> None:
    with pytest.raises(error, match=names):
        call()

"""The reference against 50 digits of mpmath, and its rules for special values, axes, masks and weights."""

from __future__ import annotations

import math

import ml_dtypes
import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from online_softmax import reference

INF, NAN = np.inf, np.nan
#: Half an ulp for the rounding to float64, and what a wider float leaves of its own error; a few ulp without
#: one.
WIDE = np.finfo(np.longdouble).nmant >= 63
UNITS = (1.02 if WIDE else 16.0) * 2.0**-53
few = settings(deadline=None, max_examples=80, derandomize=True)

numbers = st.one_of(
    st.floats(-10, 10), st.floats(-800, 800), st.floats(allow_nan=False, allow_infinity=False), st.just(-INF)
)
rows = st.lists(numbers, min_size=1, max_size=16).filter(lambda row: max(row) > -INF)


def close(got: float, truth: mpmath.mpf, scale: mpmath.mpf | float = 0) -> bool:
    """Within the rounding of the result and of numbers of size `scale` met on the way (those in the wider
    float)."""
    own = 2.0**-63 if WIDE else 2.0**-52
    return abs(mpmath.mpf(got) - truth) <= UNITS * abs(truth) + 8 * own * scale + mpmath.mpf(2) ** -1074


def exact(row: list[float], weights: list[float] | None = None) -> tuple[mpmath.mpf, list[mpmath.mpf]]:
    """Sum of b * exp(x - max), and its terms."""
    m = max(x for x, w in zip(row, weights or [1.0] * len(row), strict=True) if w)
    terms = [mpmath.exp(mpmath.mpf(x) - m) if x > -INF else mpmath.mpf(0) for x in row]
    return mpmath.fsum(t * w for t, w in zip(terms, weights or [1] * len(row), strict=True)), terms


@few
@given(row=rows)
def test_softmax_and_its_logarithms_to_the_last_place(row: list[float]) -> None:
    m = max(row)
    y, log_y, lse = reference.softmax(row), reference.log_softmax(row), reference.logsumexp(row)
    state_m, state_s = reference.state(row)
    # exp(x - max) needs digits for the distance too: up to 617 before the point.
    with mpmath.workdps(400):
        s, terms = exact(row)
        log_s = mpmath.log(s)
        assert close(float(lse), m + log_s, log_s)
        assert state_m == m
        assert close(float(state_s), s)
        for x, term, got, got_log in zip(row, terms, y, log_y, strict=True):
            distance = min(m - mpmath.mpf(x), 746) if x > -INF else 0
            assert close(float(got), term / s, term / s * distance)
            if x == -INF:
                assert got_log == -INF
            else:
                assert close(float(got_log), mpmath.mpf(x) - m - log_s, log_s)


@few
@given(
    pairs=st.lists(
        st.tuples(st.floats(-300, 300), st.one_of(st.floats(-1e3, 1e3), st.just(0.0))),
        min_size=1,
        max_size=12,
    ).filter(lambda pairs: any(b for _, b in pairs))
)
def test_weighted_logsumexp(pairs: list[tuple[float, float]]) -> None:
    row, b = [x for x, _ in pairs], [w for _, w in pairs]
    lse, sign = reference.logsumexp(row, b=b, return_sign=True)
    with mpmath.workdps(400):
        s, terms = exact(row, b)
        weight = mpmath.fsum(abs(t * w) for t, w in zip(terms, b, strict=True))
        # Where the sum cancels, its error is that of its terms.
        if abs(s) < weight * 2.0**-40:
            return
        m = max(x for x, w in pairs if w)
        assert sign == mpmath.sign(s)
        assert close(float(lse), m + mpmath.log(abs(s)), 800 * weight / abs(s) + abs(mpmath.log(abs(s))))
    plain = reference.logsumexp(row, b=b)
    assert np.isnan(plain) if sign < 0 else plain == lse


def test_log_of_a_sum_barely_above_its_largest_term() -> None:
    # log(1 + 1e-30): a sum that is rounded first gives 0.
    assert float(reference.logsumexp([0.0, math.log(1e-30)])) == pytest.approx(1e-30, rel=1e-14)
    assert float(reference.log_softmax([0.0, -80.0])[0]) == pytest.approx(-math.exp(-80), rel=1e-15)
    assert float(reference.logsumexp([0.0, -80.0], b=[1.0, -1.0])) == pytest.approx(-math.exp(-80), rel=1e-15)


@pytest.mark.parametrize(
    ("row", "softmax", "log_softmax", "lse", "state"),
    [
        ([NAN, 1, INF], [NAN] * 3, [NAN] * 3, NAN, (NAN, NAN)),
        ([INF, 1, INF], [NAN] * 3, [NAN] * 3, INF, (INF, 2)),
        ([-INF, -INF], [NAN] * 2, [NAN] * 2, -INF, (-INF, 0)),
        ([-INF, 0.0], [0, 1], [-INF, 0], 0, (0, 1)),
        ([5.0, 5.0], [0.5, 0.5], [-math.log(2)] * 2, 5 + math.log(2), (5, 2)),
        ([1e308, -1e308], [1, 0], [0, -INF], 1e308, (1e308, 1)),
        ([], [], [], -INF, (-INF, 0)),
    ],
)
def test_special_rows(
    row: list[float], softmax: list[float], log_softmax: list[float], lse: float, state: tuple[float, float]
) -> None:
    np.testing.assert_array_equal(reference.softmax(row), softmax)
    np.testing.assert_array_equal(reference.log_softmax(row), log_softmax)
    np.testing.assert_array_equal(reference.logsumexp(row), lse)
    np.testing.assert_array_equal(reference.state(row), state)


@pytest.mark.parametrize(
    ("row", "keep", "softmax", "log_softmax", "lse"),
    [
        ([NAN, 0.0, 0.0], [0, 1, 1], [0, 0.5, 0.5], [-INF, -math.log(2), -math.log(2)], math.log(2)),
        ([NAN, 0.0, 1.0], [1, 0, 1], [NAN, 0, NAN], [NAN, -INF, NAN], NAN),
        ([INF, 0.0, 1.0], [1, 0, 1], [NAN, 0, NAN], [NAN, -INF, NAN], INF),
        ([INF, NAN, 1.0], [0, 0, 0], [0, 0, 0], [-INF, -INF, -INF], -INF),
        ([-INF, 2.0, -INF], [1, 0, 1], [NAN, 0, NAN], [NAN, -INF, NAN], -INF),
    ],
)
def test_masked_elements_take_no_part(
    row: list[float], keep: list[int], softmax: list[float], log_softmax: list[float], lse: float
) -> None:
    mask = np.array(keep, bool)
    np.testing.assert_array_equal(reference.softmax(row, where=mask), softmax)
    np.testing.assert_array_equal(reference.log_softmax(row, where=mask), log_softmax)
    np.testing.assert_array_equal(reference.logsumexp(row, where=mask), lse)


@pytest.mark.parametrize(
    ("row", "b", "lse", "sign"),
    [
        ([INF, 0.0], [2.0, -1.0], INF, 1),
        ([INF, 0.0], [-2.0, 1.0], INF, -1),
        ([INF, INF], [-2.0, 1.0], NAN, NAN),
        ([INF, 0.0], [0.0, 1.0], 0, 1),
        ([NAN, 0.0], [0.0, -1.0], 0, -1),
        ([NAN, 0.0], [1.0, 1.0], NAN, NAN),
        ([0.0, 0.0], [1.0, NAN], NAN, NAN),
        ([0.0, 0.0], [1.0, -1.0], -INF, 0),
        ([0.0, 0.0], [0.0, 0.0], -INF, 0),
        ([-INF, -INF], [1.0, -1.0], -INF, 0),
        ([0.0, 0.0], [INF, 1.0], INF, 1),
        ([0.0, 0.0], [1.0, -INF], INF, -1),
        ([], [], -INF, 0),
    ],
)
def test_weights_and_signs(row: list[float], b: list[float], lse: float, sign: float) -> None:
    np.testing.assert_array_equal(reference.logsumexp(row, b=b, return_sign=True), (lse, sign))
    np.testing.assert_array_equal(reference.logsumexp(row, b=b), NAN if sign == -1 else lse)


def test_sign_without_weights() -> None:
    for row, sign in (([1.0], 1), ([INF], 1), ([-INF], 0), ([], 0), ([NAN], NAN)):
        np.testing.assert_array_equal(reference.logsumexp(row, return_sign=True)[1], sign)


@pytest.mark.parametrize("axis", [0, 1, -1, (0, 2), (1, -1), None, ()])
def test_axes_and_strides(axis: int | tuple[int, ...] | None) -> None:
    base = np.random.default_rng(0).normal(size=(4, 3, 5))
    axes = tuple(range(3)) if axis is None else axis
    for x in (
        base,
        np.asfortranarray(base),
        base[::-1],
        np.broadcast_to(base[:1], base.shape),
        base.transpose(2, 0, 1),
    ):
        e = np.exp(x)
        total = e.sum(axis=axes, keepdims=True)
        np.testing.assert_allclose(reference.softmax(x, axis), e / total, rtol=1e-14)
        np.testing.assert_allclose(reference.log_softmax(x, axis), np.log(e / total), rtol=1e-14, atol=1e-14)
        np.testing.assert_allclose(
            reference.logsumexp(x, axis, keepdims=True), np.log(total), rtol=1e-14, atol=1e-14
        )
        m, s = reference.state(x, axis)
        np.testing.assert_array_equal(m, x.max(axis=axes))
        np.testing.assert_allclose(m + np.log(s), np.log(e.sum(axis=axes)), rtol=1e-14, atol=1e-14)
        assert reference.logsumexp(x, axis).shape == e.sum(axis=axes).shape


def test_empty_and_scalar_shapes() -> None:
    assert reference.softmax(np.zeros((3, 0))).shape == (3, 0)
    np.testing.assert_array_equal(reference.logsumexp(np.zeros((3, 0))), [-INF] * 3)
    assert reference.logsumexp(np.zeros((0, 3))).shape == (0,)
    assert reference.softmax(np.zeros((0, 3))).shape == (0, 3)
    assert reference.softmax(2.0).shape == ()
    assert (reference.softmax(2.0), reference.log_softmax(2.0, 0), reference.logsumexp(2.0)) == (1, 0, 2)


@pytest.mark.parametrize(
    "dtype",
    [
        np.float16,
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e4m3fn,
        ml_dtypes.float8_e5m2,
        np.int8,
        np.uint64,
        bool,
        ">f4",
    ],
)
def test_every_format_gives_the_float64_result_of_its_values(dtype: object) -> None:
    x = np.array([[0, 1, 3, 3], [1, 1, 0, 2]]).astype(dtype)
    for function in (reference.softmax, reference.log_softmax, reference.logsumexp):
        result = function(x)
        assert result.dtype == np.float64
        np.testing.assert_array_equal(result, function(x.astype(np.float64)))


def test_topk_order() -> None:
    x = np.array([[3.0, 1.0, 3.0, -INF], [NAN, 1.0, INF, NAN], [0.0, -0.0, 0.0, 1.0]])
    values, indices, lse = reference.softmax_topk(x, 3)
    np.testing.assert_array_equal(indices, [[0, 2, 1], [0, 3, 2], [3, 0, 1]])
    np.testing.assert_array_equal(values, np.take_along_axis(reference.softmax(x), indices, -1))
    np.testing.assert_array_equal(lse, reference.logsumexp(x))
    assert indices.dtype == np.int64
    turned = reference.softmax_topk(x.T, 3, 0)
    np.testing.assert_array_equal(turned[0], values.T)
    np.testing.assert_array_equal(turned[1], indices.T)
    with pytest.raises(ValueError, match="k=5"):
        reference.softmax_topk(x, 5)


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda: reference.softmax([1j]), TypeError, "x holds complex128"),
        (lambda: reference.softmax(np.ones(2, np.longdouble)), TypeError, "x holds"),
        (lambda: reference.softmax(np.ones(2, object)), TypeError, "x holds object"),
        (lambda: reference.softmax(np.ones(2, "V8")), TypeError, "x holds"),
        (lambda: reference.softmax(np.ma.masked_array([1.0], [True])), TypeError, "masked"),
        (lambda: reference.softmax([1.0], 1), ValueError, "axis=1"),
        (lambda: reference.softmax([[1.0]], (0, -2)), ValueError, "twice"),
        (lambda: reference.softmax([1.0], where=[1]), TypeError, "where holds"),
        (lambda: reference.softmax([1.0], where=[True, True]), ValueError, "where has shape"),
        (lambda: reference.logsumexp([1.0], b=[1.0, 2.0]), ValueError, "b has shape"),
    ],
)
def test_wrong_calls_name_the_argument(call: object, error: type[Exception], names: str) -> None:
    with pytest.raises(error, match=names):
        call()

"""Groups and windows of the reference: by hand, against SciPy's log-sum-exp, and gradients by differences."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.special
from scan_helpers import DIFFERENCE, U, differences

from online_softmax import reference

INF, NAN = np.inf, np.nan


def test_groups_by_hand():
    x = np.log([1.0, 2, 3, 4, 5])
    ids, offsets = [0, 0, 2, 2, 2], [0, 2, 2, 5]
    for groups in ({"ids": ids}, {"offsets": offsets}, {"ids": ids, "num_segments": 3}):
        np.testing.assert_allclose(
            reference.segment_logsumexp(x, **groups), [np.log(3), -INF, np.log(12)], rtol=4 * U
        )
        np.testing.assert_allclose(
            reference.segment_softmax(x, **groups), np.array([4, 8, 3, 4, 5]) / 12, rtol=8 * U
        )
    assert reference.segment_logsumexp(x, ids, num_segments=5)[3:].tolist() == [-INF, -INF]
    assert reference.segment_logsumexp(np.zeros((0, 2)), []).shape == (0, 2)
    assert reference.segment_softmax(np.zeros((2, 0)), [], axis=1).shape == (2, 0)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_groups_along_an_axis(axis):
    x = np.random.default_rng(0).normal(size=(9, 9, 9)) * 3
    offsets = [0, 1, 4, 4, 9]
    lse = reference.segment_logsumexp(x, offsets=offsets, axis=axis)
    y = reference.segment_softmax(x, offsets=offsets, axis=axis)
    for g, (a, b) in enumerate(((0, 1), (1, 4), (4, 4), (4, 9))):
        group = x.take(np.arange(a, b), axis)
        if a == b:
            assert np.all(lse.take(g, axis) == -INF)
            continue
        np.testing.assert_allclose(lse.take(g, axis), scipy.special.logsumexp(group, axis), atol=16 * U * 10)
        np.testing.assert_allclose(
            y.take(np.arange(a, b), axis), scipy.special.softmax(group, axis), rtol=64 * U
        )


def test_windows_by_hand():
    x = np.log([1.0, 2, 3, 4])
    np.testing.assert_allclose(reference.window_logsumexp(x, 2), np.log([1, 3, 5, 7]), rtol=4 * U)
    np.testing.assert_array_equal(reference.window_logsumexp(x, 1), x)
    np.testing.assert_array_equal(reference.window_logsumexp(x, 9), reference.logcumsumexp(x))
    special = [NAN, 1, -INF, -INF, INF, 2, 3]
    expected = [NAN, NAN, 1, -INF, INF, INF, 3 + np.log1p(np.exp(-1))]
    np.testing.assert_allclose(reference.window_logsumexp(special, 2), expected, rtol=4 * U)
    table = np.stack([x, x + 1], axis=1)
    np.testing.assert_array_equal(
        reference.window_logsumexp(table, 3, 0)[:, 0], reference.window_logsumexp(x, 3)
    )
    assert reference.window_logsumexp(2.0, 3) == 2.0


def test_gradients():
    rng = np.random.default_rng(1)
    x, offsets = rng.normal(size=(6, 2)) * 2, [0, 2, 2, 3, 6]
    dlse, dy = rng.normal(size=(4, 2)), rng.normal(size=(6, 2))

    def lse(v):
        y = reference.segment_logsumexp(v, offsets=offsets)
        return np.where(np.isfinite(y), y, 0)  # the empty group is constant

    got = reference.segment_logsumexp_vjp(x, dlse, offsets=offsets)
    np.testing.assert_allclose(got, differences(lse, x, dlse), atol=DIFFERENCE)
    got = reference.segment_softmax_vjp(x, dy, offsets=offsets)
    np.testing.assert_allclose(
        got, differences(lambda v: reference.segment_softmax(v, offsets=offsets), x, dy), atol=DIFFERENCE
    )
    got = reference.window_logsumexp_vjp(x, dy, 3, 0)
    np.testing.assert_allclose(
        got, differences(lambda v: reference.window_logsumexp(v, 3, 0), x, dy), atol=DIFFERENCE
    )
    np.testing.assert_allclose(
        reference.window_logsumexp_vjp(x, dy, 6, 0), reference.logcumsumexp_vjp(x, dy, 0), atol=64 * U
    )


def test_gradients_at_infinities():
    x, dy = np.array([-INF, -INF, NAN, 0, 0, INF, 1]), np.ones(7)
    np.testing.assert_array_equal(
        reference.segment_logsumexp_vjp(x, np.ones(3), offsets=[0, 2, 4, 7]), [0, 0] + [NAN] * 5
    )
    np.testing.assert_array_equal(reference.window_logsumexp_vjp(x, dy, 1), [0, 0, NAN, 1, 1, NAN, 1])
    np.testing.assert_array_equal(reference.window_logsumexp_vjp(x, dy, 2), [0] + [NAN] * 6)


@pytest.mark.parametrize(
    ("options", "error", "names"),
    [
        ({}, ValueError, "ids or offsets"),
        ({"ids": [0, 0, 0], "offsets": [0, 3]}, ValueError, "ids or offsets"),
        ({"ids": [1, 0, 0]}, ValueError, "ids"),
        ({"ids": [-1, 0, 0]}, ValueError, "ids"),
        ({"ids": [0, 0]}, ValueError, "ids has shape"),
        ({"ids": [0.0, 0, 0]}, TypeError, "ids holds float64"),
        ({"ids": [0, 1, 2], "num_segments": 2}, ValueError, "num_segments=2"),
        ({"offsets": [0, 2]}, ValueError, "offsets"),
        ({"offsets": [0, 2, 1, 3]}, ValueError, "offsets"),
        ({"offsets": [0, 3], "num_segments": 2}, ValueError, "num_segments=2"),
        ({"offsets": [0, 3], "axis": 1}, ValueError, "axis=1"),
    ],
)
def test_wrong_calls_name_the_argument(options, error, names):
    for f in (reference.segment_logsumexp, reference.segment_softmax):
        with pytest.raises(error, match=names):
            f(np.zeros(3), **options)


def test_other_wrong_calls():
    with pytest.raises(ValueError, match="window=0"):
        reference.window_logsumexp([1.0], 0)
    with pytest.raises(ValueError, match="axis=1"):
        reference.window_logsumexp([1.0], 2, 1)
    with pytest.raises(ValueError, match="no dimensions"):
        reference.segment_logsumexp(1.0, [0])
    with pytest.raises(ValueError, match="dy has shape"):
        reference.segment_logsumexp_vjp(np.zeros(3), np.zeros(3), offsets=[0, 1, 3])

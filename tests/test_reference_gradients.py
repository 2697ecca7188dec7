"""Gradients of the reference's rows and scans: torch's autograd in float64, 50 digits where it has too few,
and the rules at masks, infinities and NaN.

Ids (B...) name reports of faults in other libraries, which are kept with the project's cases.
"""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
import torch

from online_softmax import reference

INF, NAN = np.inf, np.nan
U = 2.0**-53
#: torch works in float64: sums of up to 40 terms of size up to 4, each with a handful of roundings.
ROUNDING = 40 * 4 * 8 * U


def noise(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape) * scale


def by_torch(function, dy: np.ndarray, *operands: np.ndarray) -> list[np.ndarray]:
    leaves = [torch.from_numpy(np.array(a)).requires_grad_() for a in operands]
    return [g.numpy() for g in torch.autograd.grad(function(*leaves), leaves, torch.from_numpy(np.array(dy)))]


def same(got: np.ndarray, expected: np.ndarray) -> None:
    assert got.dtype == np.float64
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_rows_are_those_of_autograd(axis: int) -> None:
    x, dy = noise(5, 4, 7, scale=3), noise(5, 4, 7, seed=1)
    for name in ("softmax", "log_softmax"):
        (dx,) = by_torch(lambda a, name=name: getattr(torch, name)(a, axis), dy, x)
        same(getattr(reference, f"{name}_vjp")(x, dy, axis), dx)
    reduced = dy.take(0, axis)
    same(
        reference.logsumexp_vjp(x, reduced, axis), by_torch(lambda a: torch.logsumexp(a, axis), reduced, x)[0]
    )
    same(reference.logcumsumexp_vjp(x, dy, axis), by_torch(lambda a: torch.logcumsumexp(a, axis), dy, x)[0])


@pytest.mark.parametrize("axis", [(0, 2), None, ()])
def test_several_axes_are_one_row(axis: tuple[int, ...] | None) -> None:
    x, dy = noise(3, 4, 5), noise(3, 4, 5, seed=1)
    axes = (0, 1, 2) if axis is None else axis

    def log_softmax(a: torch.Tensor) -> torch.Tensor:
        return a - torch.logsumexp(a, axes, keepdim=True) if axes else a - a

    same(reference.log_softmax_vjp(x, dy, axis), by_torch(log_softmax, dy, x)[0])
    same(reference.softmax_vjp(x, dy, axis), by_torch(lambda a: log_softmax(a).exp(), dy, x)[0])
    summed = dy.sum(axis=axes)
    if axes:
        got = reference.logsumexp_vjp(x, summed, axis)
        same(got, by_torch(lambda a: torch.logsumexp(a, axes), summed, x)[0])
    else:
        same(reference.logsumexp_vjp(x, dy, axis), dy)


def test_the_pair_is_that_of_autograd() -> None:
    a, b, dy = noise(3, 1), noise(4, seed=1), noise(3, 4, seed=2)
    for got, expected in zip(
        reference.logaddexp_vjp(a, b, dy), by_torch(torch.logaddexp, dy, a, b), strict=True
    ):
        same(got, expected)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_the_largest_are_those_of_autograd(axis: int) -> None:
    x = noise(5, 4, 7, scale=3)
    dvalues, dlse = noise(5, 4, 7, seed=1).take(range(3), axis), noise(5, 4, 7, seed=2).take(0, axis)

    def both(a: torch.Tensor) -> torch.Tensor:
        values = torch.softmax(a, axis).topk(3, axis).values
        lse = (torch.logsumexp(a, axis) * torch.from_numpy(dlse)).sum()
        return (values * torch.from_numpy(dvalues)).sum() + lse

    (dx,) = by_torch(both, np.float64(1), x)
    same(reference.softmax_topk_vjp(x, 3, dvalues, axis, dlse=dlse), dx)


def test_masked_rows_are_those_of_what_is_left() -> None:
    x, dy = noise(6, 9, scale=3), noise(6, 9, seed=1)
    keep = np.random.default_rng(2).random((6, 9)) < 0.6
    keep[0] = False
    # Neither the logits nor the result's gradient are read where masked.
    x[~keep], dy[~keep] = NAN, INF
    for name in ("softmax", "log_softmax"):
        vjp = getattr(reference, f"{name}_vjp")
        got = vjp(x, dy, where=keep)
        assert not got[~keep].any()
        for row, taken in enumerate(keep):
            np.testing.assert_array_equal(got[row, taken], vjp(x[row, taken], dy[row, taken]))
    got = reference.logsumexp_vjp(x, noise(6), where=keep)
    assert not got[~keep].any()
    for row, taken in enumerate(keep):
        np.testing.assert_array_equal(got[row, taken], reference.logsumexp_vjp(x[row, taken], noise(6)[row]))


def test_weights_are_those_of_the_composed_sum() -> None:
    x, b, dlse = noise(4, 6), noise(4, 6, seed=1), noise(4, seed=2)
    b[0] = np.abs(b[0])
    b[1, 2:] = 0
    weights = torch.from_numpy(b)
    (dx,) = by_torch(lambda a: (weights * a.exp()).sum(-1).abs().log(), dlse, x)
    # The sums may cancel: the gradient is as large as sum(abs(terms)) / abs(sum).
    terms = b * np.exp(x)
    size = np.abs(terms).sum(-1, keepdims=True) / np.abs(terms.sum(-1, keepdims=True))
    got = reference.logsumexp_vjp(x, dlse, b=b)
    assert (np.abs(got - dx) <= ROUNDING * size**2).all()
    assert not got[1, 2:].any()
    # An element whose b is 0 drops out, whatever it holds.
    x[1, 2:] = [NAN, INF, -INF, 1e308]
    np.testing.assert_array_equal(reference.logsumexp_vjp(x, dlse, b=b)[1], got[1])


@pytest.mark.parametrize("dy", [[1.0, 0.25, -3.0], [1.0, 0.0, 0.0]], ids=str)
def test_to_the_last_place_where_differences_cancel(dy: list[float]) -> None:
    x = [0.0, -45.0, -50.0]
    # One rounding to float64; the wide float's few are relative to terms that do not cancel.
    units = (1.05 if np.finfo(np.longdouble).nmant >= 63 else 16) * U
    with mpmath.workdps(60):
        e = [mpmath.exp(v) for v in x]
        y = [v / mpmath.fsum(e) for v in e]
        total = mpmath.fsum(dy)
        mean = mpmath.fsum(p * g for p, g in zip(y, dy, strict=True))
        truth = {
            "softmax": [p * (g - mean) for p, g in zip(y, dy, strict=True)],
            "log_softmax": [g - p * total for p, g in zip(y, dy, strict=True)],
        }
        for name, values in truth.items():
            got = getattr(reference, f"{name}_vjp")(x, dy)
            for a, t in zip(got, values, strict=True):
                assert abs(mpmath.mpf(float(a)) - t) <= units * abs(t)


@pytest.mark.parametrize(
    ("row", "softmax", "log_softmax", "lse"),
    [
        pytest.param([-INF] * 3, [NAN] * 3, [NAN] * 3, [0] * 3, id="B182"),
        ([NAN, 0.0, 1.0], [NAN] * 3, [NAN] * 3, [NAN] * 3),
        ([INF, 0.0, INF], [NAN] * 3, [NAN] * 3, [NAN] * 3),
        ([-INF, 0.0, -INF], [0, 0, 0], [1, -1, 0], [0, 1, 0]),
        ([1e308, -1e308, 1e308], [-0.25, 0, 0.25], [0.5, 0, -0.5], [0.5, 0, 0.5]),
    ],
)
def test_special_rows(
    row: list[float], softmax: list[float], log_softmax: list[float], lse: list[float]
) -> None:
    dy = [1.0, 0.0, 2.0] if row[0] == 1e308 else [1.0, 0.0, 0.0]
    log_dy = [2.0, 0.0, 1.0] if row[0] == 1e308 else dy
    np.testing.assert_array_equal(reference.softmax_vjp(row, dy), softmax)
    np.testing.assert_array_equal(reference.log_softmax_vjp(row, log_dy), log_softmax)
    np.testing.assert_array_equal(reference.logsumexp_vjp(row, 1.0), lse)


def test_b088_b090_nothing_in_nothing_out() -> None:
    assert reference.logsumexp_vjp(np.zeros(0), 1.0).shape == (0,)
    for vjp in (reference.softmax_vjp, reference.log_softmax_vjp, reference.logcumsumexp_vjp):
        assert vjp(np.zeros((10, 0)), np.zeros((10, 0)), 1).shape == (10, 0)
        assert vjp(np.zeros((0, 3)), np.zeros((0, 3))).shape == (0, 3)


def test_b115_a_gradient_that_is_the_same_all_over() -> None:
    np.testing.assert_array_equal(reference.softmax_vjp(noise(8, 8, scale=5), 1.0), np.zeros((8, 8)))


def test_b123_half_and_half() -> None:
    np.testing.assert_array_equal(reference.softmax_vjp([0.0, 0.0], [1.0, 0.0]), [0.25, -0.25])


def test_b148_large_equal_inputs() -> None:
    np.testing.assert_array_equal(reference.logsumexp_vjp([1e50, 1e50], 1.0), [0.5, 0.5])


def test_b183_both_orders_of_adding_have_one_gradient() -> None:
    add, vjp = reference.logaddexp, reference.logaddexp_vjp
    a, b, c = -INF, -INF, 2.0
    d_ab, d_c = vjp(add(a, b), c, 1.0)
    assert (*vjp(a, b, d_ab), d_c) == (0, 0, 1)
    d_a, d_bc = vjp(a, add(b, c), 1.0)
    assert (d_a, *vjp(b, c, d_bc)) == (0, 0, 1)


def test_b184_a_masked_entry_above_the_rest() -> None:
    np.testing.assert_array_equal(reference.logsumexp_vjp([0.0, 100.0], 1.0, where=[True, False]), [1, 0])


def test_b187_two_logs_of_nothing() -> None:
    assert reference.logaddexp_vjp(-INF, -INF, 1.0) == (0, 0)


def test_b189_the_second_derivative_far_apart() -> None:
    # The second derivatives of the log-sum are the gradient of the softmax.
    np.testing.assert_array_equal(reference.softmax_vjp([0.0, 1000.0], [0.0, 1.0]), [-0.0, 0.0])


def test_b190_the_entropy_of_a_masked_softmax() -> None:
    x, keep = [0.0, 0.0, 0.0], np.array([True, True, False])
    log_y = reference.log_softmax(x, where=keep)
    # d(-sum(y log y))/dy = -(log y + 1): +inf at the masked element, where it is not read.
    assert log_y[2] == -INF
    np.testing.assert_array_equal(reference.softmax_vjp(x, -(log_y + 1), where=keep), [0, 0, 0])


def test_b191_zeros_for_masks_do_not_hide_nan() -> None:
    x = np.array([[1.0, 2.0], [NAN, 0.0]])
    got = reference.softmax_vjp(x, np.ones((2, 2)), where=[[False, False], [True, True]])
    np.testing.assert_array_equal(got, [[0, 0], [NAN, NAN]])


def test_prefixes_of_nothing_and_infinite_ones() -> None:
    np.testing.assert_array_equal(reference.logcumsumexp_vjp([-INF, -INF, 0.0], [1.0, 1.0, 1.0]), [0, 0, 1])
    np.testing.assert_array_equal(reference.logcumsumexp_vjp([0.0, INF, 0.0], [1.0, 1.0, 1.0]), [NAN] * 3)


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda: reference.softmax_vjp([1.0, 2.0], [1.0, 2.0, 3.0]), ValueError, "dy has shape"),
        (lambda: reference.log_softmax_vjp([1.0, 2.0], [1j, 0]), TypeError, "dy holds"),
        (lambda: reference.logsumexp_vjp([1.0, 2.0], [1.0, 2.0]), ValueError, "dlse has shape"),
        (lambda: reference.logsumexp_vjp([1.0, 2.0], 1.0, b=[1.0] * 3), ValueError, "b has shape"),
        (lambda: reference.softmax_topk_vjp([1.0, 2.0], 1, [1.0, 2.0]), ValueError, "dvalues has shape"),
        (lambda: reference.softmax_topk_vjp([1.0, 2.0], 3, 1.0), ValueError, "k=3"),
        (lambda: reference.logaddexp_vjp(1.0, 2.0, [1.0, 2.0]), ValueError, "dy has shape"),
        (lambda: reference.logcumsumexp_vjp([1.0], [1.0], 1), ValueError, "axis=1"),
        (lambda: reference.softmax_vjp([1.0], [1.0], where=[1]), TypeError, "where holds"),
    ],
)
def test_wrong_calls_name_the_argument(call: object, error: type[Exception], names: str) -> None:
    with pytest.raises(error, match=names):
        call()

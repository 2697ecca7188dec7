"""Complex numbers and longdouble by SciPy's names."""

from __future__ import annotations

from typing import Any

import mpmath
import numpy as np
import pytest
import scipy.special
from scipy_helpers import assert_alike, theirs

import online_softmax.scipy as ours

WIDE = (np.complex64, np.complex128, np.longdouble, np.clongdouble)
INF, NAN = np.inf, np.nan


def exact_sum(a: Any, b: Any) -> Any:
    """sum(b * exp(a)) of one row in 60 digits, and the sum of its terms' sizes."""
    terms = [mpmath.mpmathify(w) * mpmath.exp(exact(z)) for z, w in zip(a, b, strict=True)]
    return mpmath.fsum(terms), mpmath.fsum(abs(t) for t in terms)


def exact(z: Any) -> Any:
    """A number of any of NumPy's formats, exactly: longdouble as two float64."""

    def real(v: Any) -> Any:
        high = float(v)
        return mpmath.mpf(high) + mpmath.mpf(float(v - type(v)(high)))

    return mpmath.mpc(real(z.real), real(z.imag)) if np.iscomplexobj(z) else real(z)


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("scale", [0.01, 3.0, 300.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_complex_numbers_and_longdouble(dtype: Any, scale: float, weighted: bool) -> None:
    """Against 60 digits. A term's error: exponent, exponential, weight; that of n terms' sum: n more."""
    rng = np.random.default_rng(3)
    x = (scale * rng.standard_normal((4, 9))).astype(dtype)
    if np.iscomplexobj(x):
        x = (x + 1j * (3 * rng.standard_normal((4, 9))).astype(dtype)).astype(dtype)
    b = np.round(8 * rng.standard_normal(9)) if weighted else np.ones(9)
    size, sign = ours.logsumexp(x, 1, b, return_sign=True)
    plain = ours.logsumexp(x, 1, b)
    u = float(np.finfo(dtype).eps)
    with mpmath.workdps(60):
        for i, row in enumerate(x):
            total, sizes = exact_sum(row, b)
            spread = float(max(abs(exact(z)) for z in row))
            relative = float(sizes / abs(total)) * (9 + 8 + 2 * spread) * u
            log = mpmath.log(abs(total))
            assert abs(exact(size[i]) - log) <= relative + 2 * u * abs(log)
            assert abs(exact(sign[i]) - total / abs(total)) <= relative + 2 * u
            if np.iscomplexobj(x):
                assert abs(exact(plain[i]) - mpmath.log(total)) <= 2 * relative + 2 * u * abs(
                    mpmath.log(total)
                )
            elif total < 0:
                assert np.isnan(plain[i])
            else:
                assert plain[i] == size[i]


@pytest.mark.parametrize("dtype", WIDE)
@pytest.mark.parametrize("axis", [None, 0, (1, 0), ()])
def test_softmax_of_complex_numbers_and_longdouble(dtype: Any, axis: Any) -> None:
    rng = np.random.default_rng(5)
    x = (3 * rng.standard_normal((4, 6))).astype(dtype)
    if np.iscomplexobj(x):
        x = (x + 1j * rng.standard_normal((4, 6)).astype(dtype)).astype(dtype)
    for name in ("softmax", "log_softmax"):
        made, expected = getattr(ours, name)(x, axis), theirs(name)(x, axis)
        assert_alike(made, expected)
        # 24 terms at most, in either library, of exponents up to 20.
        np.testing.assert_allclose(
            made, expected, rtol=64 * np.finfo(dtype).eps, atol=64 * np.finfo(dtype).eps
        )


def test_a_small_tail_of_longdouble_is_kept() -> None:
    x = np.array([0, -50], np.longdouble)
    assert ours.log_softmax(x)[0] == -np.log1p(np.exp(np.longdouble(-50)))
    assert ours.logsumexp(x) == np.log1p(np.exp(np.longdouble(-50)))


def test_angles_lie_above_minus_pi_and_up_to_pi() -> None:
    for imaginary in (0.0, 3.0, 4.0, 100.0, -100.0, np.pi, -np.pi):
        made = ours.logsumexp([1 + 1j * imaginary])
        assert_alike(made, theirs("logsumexp")([1 + 1j * imaginary]))
        # 100 less a multiple of 2 pi keeps half a unit of 100.
        np.testing.assert_allclose(
            made, scipy.special.logsumexp([1 + 1j * imaginary]), rtol=0, atol=64 * np.finfo(np.float64).eps
        )
    assert ours.logsumexp([-1j * np.pi]).imag == np.pi


@pytest.mark.parametrize(
    "row",
    [[INF + 1j, 0], [-INF + 1j], [-INF + 1j, 2j], [INF, -INF + 1j], [NAN + 1j, 1], [1, complex(1, np.inf)]],
)
def test_special_complex_rows(row: list[complex]) -> None:
    made, expected = ours.logsumexp(row), theirs("logsumexp")(row)
    assert_alike(made, expected)
    np.testing.assert_allclose(made, expected, rtol=4 * np.finfo(np.float64).eps)

"""Fit the polynomials of native/exp.inl.h: 2**f = 1 + f*q(f) on [-1/2, 1/2], near minimax in relative error.

float32: Lawson's reweighted least squares; the coefficients are rounded to the format one by one, lowest
degree first, and the rest refitted, so that a higher coefficient makes up for the rounding of a lower one.
float64: q interpolated at Chebyshev nodes in 50-digit arithmetic (mpmath); the error is far below the
format's.

    python scripts/fit_exp.py          prints the coefficients as C hexadecimal floats with the error reached
"""

from __future__ import annotations

import numpy as np
from mpmath import mp, mpf

mp.dps = 50
HALF = 0.50002  # the reduction may leave f a little past 1/2 when x - m was rounded


def _q(f: mpf) -> mpf:
    return (mpf(2) ** f - 1) / f if abs(f) > mpf(10) ** -30 else mp.log(2)


def fit_float32(degree: int) -> list[float]:
    """Coefficients c1..c_degree, each a float32."""
    grid = HALF * np.cos(np.pi * (np.arange(800) + 0.5) / 800)
    truth = np.array([float(_q(mpf(f))) for f in grid])
    scale = np.abs(grid) / np.exp2(grid)  # what an error of q does to the relative error of 2**f
    fixed: list[float] = []
    for k in range(degree):
        left = truth - np.polynomial.polynomial.polyval(grid, fixed) if fixed else truth
        basis = np.stack([grid**j for j in range(k, degree)], axis=1) * scale[:, None]
        weight = np.full(grid.shape, 1.0 / grid.size)
        for _ in range(300):
            root = np.sqrt(weight)
            answer = np.linalg.lstsq(basis * root[:, None], left * scale * root, rcond=None)[0]
            weight *= np.abs(basis @ answer - left * scale) + 1e-14
            weight /= weight.sum()
        fixed.append(float(np.float32(answer[0])))
    return fixed


def fit_float64(degree: int) -> list[float]:
    """Coefficients c1..c_degree, each a float64."""
    half = mpf(HALF)
    nodes = [half * mp.cos(mp.pi * (mpf(k) + mpf(1) / 2) / degree) for k in range(degree)]
    matrix = mp.matrix(degree, degree)
    right = mp.matrix(degree, 1)
    for i, f in enumerate(nodes):
        right[i] = _q(f)
        for j in range(degree):
            matrix[i, j] = f**j
    answer = mp.lu_solve(matrix, right)
    return [float(answer[j]) for j in range(degree)]


def fit_log2(degree: int) -> tuple[list[float], float]:
    """Coefficients c0..c_degree of log2(1 + t) on [0, 1] at Chebyshev nodes, and the largest error."""
    nodes = (np.cos(np.pi * (np.arange(400) + 0.5) / 400) + 1) / 2
    coefficients = np.polynomial.polynomial.polyfit(nodes, np.log2(1 + nodes), degree)
    grid = np.linspace(0, 1, 10001)
    error = np.abs(np.polynomial.polynomial.polyval(grid, coefficients) - np.log2(1 + grid)).max()
    return [float(np.float32(c)) for c in coefficients], float(error)


def fit_log1p(degree: int) -> tuple[list[float], float]:
    """Coefficients c0..c_degree of (atanh(r)/r - 1)/r^2 in r^2 on [0, 1/9], and the largest relative error
    that they leave in log(1 + e) = 2*atanh(e/(2 + e)), 0 <= e <= 1."""
    nodes = [(mp.cos(mp.pi * (2 * k + 1) / (2 * degree + 2)) + 1) / 18 for k in range(degree + 1)]
    matrix, right = mp.matrix(degree + 1, degree + 1), mp.matrix(degree + 1, 1)
    for i, t in enumerate(nodes):
        right[i] = (mp.atanh(mp.sqrt(t)) / mp.sqrt(t) - 1) / t
        for j in range(degree + 1):
            matrix[i, j] = t**j
    answer = mp.lu_solve(matrix, right)
    coefficients = [float(answer[j]) for j in range(degree + 1)]
    worst = mpf(0)
    for k in range(1, 1001):
        t = mpf(k) / 9000
        truth = mp.atanh(mp.sqrt(t)) / mp.sqrt(t)
        made = 1 + t * mp.fsum(mpf(c) * t**j for j, c in enumerate(coefficients))
        worst = max(worst, abs(made / truth - 1))
    return coefficients, float(worst)


def worst_error(coefficients: list[float]) -> float:
    worst = mpf(0)
    for k in range(2001):
        f = mpf(HALF) * (2 * mpf(k) / 2000 - 1)
        total = mpf(0)
        for c in reversed(coefficients):
            total = total * f + mpf(c)
        worst = max(worst, abs((1 + f * total) / mpf(2) ** f - 1))
    return float(worst)


def main() -> None:
    fits = [("float32", d, fit_float32(d)) for d in (3, 4, 5, 6)] + [
        ("float64", d, fit_float64(d)) for d in (7, 11)
    ]
    for name, degree, coefficients in fits:
        print(f"{name} degree {degree}: relative error {worst_error(coefficients):.2e}")
        print("    " + ", ".join(c.hex() for c in coefficients))
    coefficients, error = fit_log2(4)
    print(f"log2(1 + t) degree 4 (avx512_log16.cpp): error {error:.2e}")
    print("    " + ", ".join(f"{c:.8g}" for c in coefficients))
    for degree in (3, 5, 10):
        coefficients, error = fit_log1p(degree)
        print(f"log(1 + e) degree {degree} (scans_double.inl.h): relative error {error:.2e}")
        print("    " + ", ".join(c.hex() for c in coefficients))
    log2e = 1 / mp.log(2)
    for dtype in (np.float32, np.float64):
        high = float(dtype(float(log2e)))
        low = float(dtype(float(log2e - mpf(high))))
        print(f"log2(e) {dtype.__name__}: {high.hex()} + {low.hex()}")


if __name__ == "__main__":
    main()

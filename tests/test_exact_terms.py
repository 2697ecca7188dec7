"""The pieces of `exact`: its fused multiply-add without one, its log1p, its terms and how far these are from
exp."""

from __future__ import annotations

from fractions import Fraction

import exact_model
import exact_rows
import mpmath
import numpy as np
import pytest
from exact_rows import FORMATS, Array

from online_softmax import exact
from online_softmax.exact import FLOAT32, FLOAT64, Format
from online_softmax.numerics.any_order import LAWS

NAMES = [form.name for form in FORMATS]
wide = np.longdouble
HAS_WIDE = np.finfo(wide).nmant >= 63


def law_of(form: Format):
    return LAWS[form.dtype.name]


# --- the fused multiply-add ---


def operands(form: Format, seed: int, count: int) -> tuple[Array, Array, Array]:
    """Triples of any sign, exponents within 40 of each other, as doubles that hold numbers of the format."""
    h = exact_rows.hashed((3, count), seed)
    bias = 127 if form.kind == 32 else 1023
    exponents = bias - 20 + (h >> np.uint64(54)) % np.uint64(40)
    a, b, c = exact_rows.floats(h, exponents, form.dtype).astype(np.float64)
    return a, b, c


def near_ties(form: Format, seed: int, count: int) -> tuple[Array, Array, Array]:
    """Sums a hair above, below and on the middle between two numbers, and differences that cancel."""
    bits = exact_model.bits_of(form)
    ulp = 2.0 ** (1 - bits)
    a, b, c = operands(form, seed, count)
    kind = np.arange(count) % 4
    step = (exact_rows.hashed((2, count), seed + 1) >> np.uint64(20)) % np.uint64(3)
    half = np.ldexp(1.0, np.frexp(c)[1] - 1 - bits) * (1 + (step[0].astype(np.float64) - 1) * ulp)
    one = 1 + (step[1].astype(np.float64) - 1) * ulp
    sign = np.where(kind == 1, -1.0, 1.0)
    a, b = np.where(kind < 2, sign * half, a), np.where(kind < 2, one, b)
    close = -(a * b).astype(form.dtype).astype(np.float64)
    c = np.where(kind == 2, close, c)
    c = np.where(kind == 3, np.nextafter(close.astype(form.dtype), form.dtype.type(0)).astype(np.float64), c)
    return a, b, c


@pytest.mark.parametrize("form", FORMATS, ids=NAMES)
@pytest.mark.parametrize("make", [operands, near_ties])
def test_it_rounds_a_product_and_a_sum_once(make, form: Format) -> None:
    bits = exact_model.bits_of(form)
    a, b, c = make(form, 3, 3000)
    made = exact._fused(a, b, c, form.dtype)
    twice = (a * b).astype(form.dtype) + c.astype(form.dtype)
    right = [
        float(exact_model.rounded(Fraction(x) * Fraction(y) + Fraction(z), bits))
        for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    ]
    np.testing.assert_array_equal(made, right)
    assert (twice != right).mean() > 0.05  # two roundings would not do


# --- log1p ---


def test_log1p_is_within_2_ulp() -> None:
    h = exact_rows.hashed((6000,), 5)
    u = np.abs(
        exact_rows.floats(h, np.uint64(1023 - 70) + (h >> np.uint64(52)) % np.uint64(134), FLOAT64.dtype)
    )
    roots = np.ldexp(np.sqrt(0.5), np.arange(0, 60)) - 1
    u = np.concatenate(
        [u, [0.0, 2.0**-1000], roots[1:], np.nextafter(roots[1:], 0), 2.0 ** np.arange(62) - 1]
    )
    made = exact.log1p(u)
    assert made[6000] == 0
    worst = 0.0
    with mpmath.workdps(40):
        for x, y in zip(u.tolist(), made.tolist(), strict=True):
            true = mpmath.log1p(mpmath.mpf(x))
            if true:
                worst = max(worst, float(abs(y - true) / mpmath.mpf(np.spacing(float(true)))))
    assert 0.5 < worst <= 2


def test_log1p_is_the_models() -> None:
    u = np.abs(exact_rows.moderate((500,), 8, FLOAT64.dtype))
    made = exact.log1p(u)
    np.testing.assert_array_equal(made, [float(exact_model.log1p(Fraction(x))) for x in u.tolist()])


# --- terms ---


def polynomial(f: Array, form: Format) -> Array:
    """p of f, as `exact.terms` makes it."""
    p = np.full_like(f, form.coefficients[-1])
    for c in (*form.coefficients[-2::-1], 1.0):
        p = exact._fused(p, f, c, form.dtype)
    return p


@pytest.mark.parametrize("phase", range(64))
def test_float32_terms_are_within_delta_for_every_f(phase: int) -> None:
    """Every 64th of all f from 2**-27 to 1/2, each phase another: all of them with THOROUGH=1. What
    rounding may have taken from f comes on top, whatever it was. Below 2**-27 p is 1, off by less."""
    worst = 0.0
    for exponent in range(-27, -1):
        for sign in (1, -1):
            f = sign * np.ldexp(1 + np.arange(phase, 2**23, 64) / 2**23, exponent)
            f = np.append(f, sign * np.ldexp(1.0, exponent + 1))
            off = np.abs(polynomial(f, FLOAT32) / np.exp2(f) - 1)
            of_f = np.log(2) * np.ldexp(2.0**-24, exponent)
            worst = max(worst, float((off + of_f).max()))
    assert polynomial(np.array([2.0**-27]), FLOAT32)[0] == 1
    # Second-order parts and exp2's own error are far below a tenth of it.
    assert 7.4e-8 < worst < 7.8e-8
    assert law_of(FLOAT32).delta == pytest.approx(9e-8)


@pytest.mark.skipif(not HAS_WIDE, reason="needs a long double of 64 bits")
def test_float64_polynomial_is_within_its_part_of_delta() -> None:
    """1.44u for the polynomial on f up to 1/2, and a little beyond, where a large x brings it."""
    u = 2.0**-53
    h = exact_rows.hashed((2, 100_000), 4)
    worst = 0.0
    for exponent in range(-8, -1):
        f = exact_rows.floats(h[exponent % 2], np.full(h.shape[1], 1023 + exponent, np.uint64), FLOAT64.dtype)
        off = np.abs(polynomial(f, FLOAT64).astype(wide) / np.exp2(f.astype(wide)) - 1)
        worst = max(worst, float(off.max()) / u)
    assert 1.15 < worst < 1.44
    beyond = np.linspace(0.5, 0.516, 20_000)
    for f in (beyond, -beyond):
        assert (np.abs(polynomial(f, FLOAT64).astype(wide) / np.exp2(f.astype(wide)) - 1) < 1.44 * u).all()


def spread(form: Format, far: bool) -> Array:
    """x of every size below `large`, or of those from `far` on."""
    h = exact_rows.hashed((2500,), 6)
    bias = 127 if form.kind == 32 else 1023
    top = int(np.log2(form.large if far else min(form.far, form.large)))
    low = int(np.log2(form.far)) if far else -30
    exponents = np.uint64(bias + low) + (h >> np.uint64(54)) % np.uint64(top - low)
    return exact_rows.floats(h, exponents, form.dtype)


@pytest.mark.parametrize(("form", "far"), [(FLOAT32, False), (FLOAT64, False), (FLOAT64, True)])
def test_terms_of_any_size_are_within_delta_of_powers_of_their_base(form: Format, far: bool) -> None:
    """T(x) against 2**(x*c), c the law's log2(e): the rest, eta, is the base's."""
    x = spread(form, far)
    assert (np.abs(x) >= form.far).any() == far
    p, n = exact.terms(x, form)
    assert p.min() > 0.69 < 1.44 > p.max()
    law, worst = law_of(form), 0.0
    delta = law.delta_far if far else law.delta
    with mpmath.workprec(300):
        c = mpmath.mpf(form.log2e) + mpmath.mpf(form.log2e_low)
        for a, b, k in zip(x.tolist(), p.tolist(), n.tolist(), strict=True):
            worst = max(worst, float(abs(mpmath.mpf(b) / mpmath.power(2, mpmath.mpf(a) * c - k) - 1)))
    assert delta / 3 < worst < delta


@pytest.mark.parametrize("form", FORMATS, ids=NAMES)
def test_the_bounds_constants_are_the_laws(form: Format) -> None:
    law = law_of(form)
    for name in ("width", "slices", "log2e", "least", "far", "large", "smallest"):
        assert getattr(law, name) == getattr(form, name), name
    assert law.bits == exact_model.bits_of(form)
    with mpmath.workdps(60):
        log2e = 1 / mpmath.log(2)
        eta = 1 - (mpmath.mpf(form.log2e) + mpmath.mpf(form.log2e_low)) / log2e
        assert float(abs(eta)) < 1e-33 if form.kind == 64 else 0.999 * law.eta < float(eta) <= law.eta


@pytest.mark.parametrize("form", FORMATS, ids=NAMES)
def test_exponents_rise_with_x(form: Format) -> None:
    """n never falls, though T may by a unit: the bin of a row is that of its maximum."""
    for x in (
        spread(form, False),
        spread(form, True) if form.kind == 64 else exact_rows.moderate((4000,), 9, form.dtype),
    ):
        x = np.sort(np.concatenate([x, np.nextafter(x, form.dtype.type(np.inf))]))
        assert (np.diff(exact.terms(x, form)[1]) >= 0).all()
    borders = np.sort(np.array(exact_rows.borders(form, range(-40, 41)), form.dtype))
    tops = exact.bin_of(exact.terms(borders, form)[1], form)
    assert (np.diff(tops) >= 0).all()
    assert set(range(-39, 40)) <= set(tops.tolist())


@pytest.mark.parametrize("form", FORMATS, ids=NAMES)
def test_slices_are_small_and_add_up_to_the_term_rounded_to_the_grid(form: Format) -> None:
    x = exact_rows.moderate((1500,), 10, form.dtype)
    p, n = exact.terms(x, form)
    b = exact.bin_of(n, form)
    for below in (0, 1, 2):
        cut = exact.slices(p, n, b + below, form)
        assert (np.abs(cut) <= 2 ** (form.width - 1)).all()
        for row, q, e, top in zip(cut.tolist(), p.tolist(), n.tolist(), (b + below).tolist(), strict=True):
            unit = Fraction(2) ** (form.width * (top - form.slices + 1))
            whole = sum(s * 2 ** (form.width * (form.slices - 1 - k)) for k, s in enumerate(row))
            left = Fraction(q) * Fraction(2) ** e / unit - whole
            assert abs(left) <= Fraction(1, 2)
            assert below or left == 0

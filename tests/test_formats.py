"""Number formats: thresholds proven by intervals, tried on every value of the small formats, and the verdicts
made of them."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, replace
from decimal import Decimal
from fractions import Fraction

import flint
import ml_dtypes
import mpmath
import numpy as np
import pytest

from online_softmax.numerics.formats import (
    DIGITS,
    FORMATS,
    LARGEST_EXPONENT,
    LARGEST_PRECISION,
    Format,
    exp_is_above,
    json_number,
    keeps_subnormals,
    log,
)

#: Formats that arrays can have.
DTYPES = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in FORMATS if name != "tf32"}
#: Those small enough to go through every value.
SMALL = [name for name, dtype in DTYPES.items() if dtype.itemsize <= 2]
CUSTOM = {
    "binary128": Format("binary128", emax=16383, precision=113),
    "binary256": Format("binary256", emax=262143, precision=237),
    "tiny": Format("tiny", emax=1, precision=2),
    "tiny without infinity": Format("tiny without infinity", emax=2, precision=2, finite_only=True),
    "no subnormals": Format("no subnormals", emax=15, precision=11, subnormals=False),
    "deep": Format("deep", emax=7, precision=4, emin=-200),
}
EVERY = FORMATS | CUSTOM

# What is known of the formats, rounded to print: largest, ln largest, ln smallest normal, where exp is 0,
# explicit bits, where ones stall.
KNOWN = {
    "float64": ("1.798e+308", "709.78", "-708.40", "-745.13", 52, 2**53),
    "float32": ("3.403e+38", "88.72", "-87.34", "-103.97", 23, 2**24),
    "bfloat16": ("3.390e+38", "88.72", "-87.34", "-92.88", 7, 256),
    "float16": ("6.550e+04", "11.09", "-9.70", "-17.33", 10, 2048),
    "float8_e5m2": ("5.734e+04", "10.96", None, None, 2, 8),
    "float8_e4m3fn": ("4.480e+02", "6.10", None, None, 3, 16),
}


@pytest.fixture
def bits():
    """Digits enough for the largest format here, in both interval libraries."""
    before = flint.ctx.prec, mpmath.iv.prec
    flint.ctx.prec = mpmath.iv.prec = 1200
    yield
    flint.ctx.prec, mpmath.iv.prec = before


def values(name: str) -> np.ndarray:
    """Every finite value of a small format, in it, in order."""
    dtype = DTYPES[name]
    codes = np.arange(256**dtype.itemsize).astype(f"u{dtype.itemsize}")
    x = codes.view(dtype)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        x = x[np.isfinite(x)]
    return x[np.argsort(x.astype(np.float64), kind="stable")]


def as_arb(value: Fraction | Decimal) -> flint.arb:
    exact = Fraction(value)
    return flint.arb(flint.fmpq(exact.numerator, exact.denominator))


def step(fmt: Format, x: Fraction) -> Fraction:
    """Distance from |x| to the next larger number of the format."""
    exponent = abs(x).numerator.bit_length() - x.denominator.bit_length()
    exponent -= abs(x) < Fraction(2) ** exponent
    return Fraction(2) ** (max(exponent, fmt.min_exponent) - fmt.precision + 1)


def bounds(fmt: Format, flush: bool) -> tuple[Fraction, Fraction]:
    """Where the results of exp begin to overflow and to become 0, by the spacing of the format's numbers."""
    top = fmt.largest + step(fmt, fmt.largest) / 2
    normal = Fraction(2) ** fmt.min_exponent
    least = Fraction(2) ** (fmt.min_exponent - fmt.precision + 1) if fmt.subnormals else normal
    return top, normal - step(fmt, normal) / 4 if flush else least / 2


# --- parameters ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KNOWN)
def test_figures_known_of_the_formats(name):
    fmt = FORMATS[name]
    largest, overflow, normal, zero, explicit, stall = KNOWN[name]
    assert f"{float(fmt.largest):.3e}" == largest
    assert f"{fmt.log_largest:.2f}" == overflow
    assert normal is None or f"{log(fmt.smallest_normal):.2f}" == normal
    assert zero is None or f"{fmt.exp_zero_below().real:.2f}" == zero
    assert (fmt.mantissa_bits, fmt.sum_of_ones_stalls_at) == (explicit, stall)


@pytest.mark.parametrize("name", DTYPES)
def test_finfo_agrees(name):
    fmt, info = FORMATS[name], ml_dtypes.finfo(DTYPES[name])
    assert fmt.largest == Fraction(float(info.max))
    assert fmt.smallest_normal == Fraction(float(info.smallest_normal))
    assert fmt.smallest_subnormal == Fraction(float(info.smallest_subnormal))
    assert fmt.mantissa_bits == info.nmant
    assert fmt.unit_roundoff == Fraction(float(info.eps)) / 2
    assert (fmt.min_exponent, fmt.emax) == (info.minexp, info.maxexp - 1)


def test_tf32_is_float32_with_the_mantissa_of_float16():
    tf32, float32, float16 = (FORMATS[name] for name in ("tf32", "float32", "float16"))
    assert (tf32.emax, tf32.emin) == (float32.emax, float32.emin)
    assert tf32.mantissa_bits == float16.mantissa_bits == 10
    # Its numbers are float32's with 13 zero bits.
    largest = np.array([0x7F7FFFFF & ~0x1FFF], np.uint32).view(np.float32)
    assert tf32.largest == Fraction(float(largest[0]))


@pytest.mark.parametrize("name", FORMATS)
def test_a_custom_format_of_the_same_parameters_is_the_same(name):
    known = FORMATS[name]
    given = {"emax": known.emax, "precision": known.precision, "finite_only": known.finite_only}
    if name == "float8_e4m3fn":
        given["emin"] = -6
    own = Format("own", **given)
    assert replace(own, name=name) == known
    assert own.as_json() | {"name": name} == known.as_json()
    assert Format("own", **given | {"emin": known.min_exponent}) == own


def test_a_format_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        FORMATS["float16"].emax = 16


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"emax": 0}, ValueError, "emax: 0 is out of range; 1 to 262144 would do"),
        ({"emax": LARGEST_EXPONENT + 1}, ValueError, "emax: 262145 is out of range"),
        ({"emax": 15.0}, TypeError, "emax: 15.0 is no int"),
        ({"emax": True}, TypeError, "emax: True is no int"),
        ({"precision": 1}, ValueError, "precision: 1 is out of range; 2 to 1024 would do"),
        ({"precision": LARGEST_PRECISION + 1}, ValueError, "precision: 1025 is out of range"),
        ({"precision": None}, TypeError, "precision: None is no int"),
        ({"emin": 1}, ValueError, "emin: 1 is out of range; -262144 to 0 would do"),
        ({"emin": "-6"}, TypeError, "emin: '-6' is no int"),
        ({"subnormals": 1}, TypeError, "subnormals: 1 is no bool"),
        ({"flush": None}, TypeError, "flush: None is no bool"),
        ({"finite_only": "no"}, TypeError, "finite_only: 'no' is no bool"),
    ],
)
def test_a_wrong_parameter_is_named(given, error, message):
    with pytest.raises(error, match=message):
        Format("wrong", **{"emax": 15, "precision": 11} | given)


# --- exp ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("flush", [False, True])
def test_thresholds_are_proven_by_intervals(name, flush, bits):
    fmt = EVERY[name]
    top, bottom = bounds(fmt, flush)
    overflow, zero = fmt.exp_overflows_above, fmt.exp_zero_below(flush)
    for bound, real in ((top, overflow.real), (bottom, zero.real)):
        half_digit = Decimal(5).scaleb(real.adjusted() - DIGITS)
        assert as_arb(Fraction(real) - Fraction(half_digit)).exp() < as_arb(bound)
        assert as_arb(Fraction(real) + Fraction(half_digit)).exp() > as_arb(bound)
    assert as_arb(overflow.x).exp() < as_arb(top)
    assert as_arb(overflow.x + step(fmt, overflow.x)).exp() > as_arb(top)
    assert as_arb(zero.x).exp() > as_arb(bottom)
    if zero.x == -fmt.largest:  # exp of every number of the format is positive in it
        assert name in {"tiny", "deep"}
    else:
        assert as_arb(zero.x - step(fmt, zero.x)).exp() < as_arb(bottom)
    for x in (overflow.x, zero.x):
        assert (x / Fraction(2) ** fmt.min_exponent * 2 ** (fmt.precision - 1)).denominator == 1
        assert (x / step(fmt, x)).denominator == 1


@pytest.mark.parametrize("name", DTYPES)
def test_thresholds_lie_between_neighbours_of_the_dtype(name, bits):
    """The same proof by the other library, with the neighbours and boundaries taken from the dtype."""
    fmt, dtype = FORMATS[name], DTYPES[name]
    info = ml_dtypes.finfo(dtype)
    before = Fraction(float(np.nextafter(info.max, dtype.type(0))))
    top = fmt.largest + (fmt.largest - before) / 2
    bottom = Fraction(float(info.smallest_subnormal)) / 2
    for x, bound, outward in (
        (fmt.exp_overflows_above.x, top, info.max),
        (fmt.exp_zero_below(flush=False).x, bottom, -info.max),
    ):
        here = dtype.type(float(x))
        assert Fraction(float(here)) == x
        inside = mpmath.iv.exp(mpmath.iv.mpf(float(here)))
        outside = mpmath.iv.exp(mpmath.iv.mpf(float(np.nextafter(here, dtype.type(outward)))))
        bound = mpmath.iv.mpf(bound.numerator) / mpmath.iv.mpf(bound.denominator)
        low, high = (inside, outside) if x > 0 else (outside, inside)
        assert low.b < bound.a
        assert high.a > bound.b


@pytest.mark.parametrize("name", SMALL)
def test_every_value_of_a_small_format(name):
    """exp of each, rounded to the format by ml_dtypes or numpy, is finite and positive on the same side."""
    fmt, x = FORMATS[name], values(name)
    for bound in bounds(fmt, flush=False):
        # float64's exp, off by an ulp, and a rounding by way of float32 cannot take the wrong side.
        assert np.min(np.abs(x.astype(np.float64) - float(log(bound)))) > 2.0**-20
    with np.errstate(over="ignore"):
        rounded = np.exp(x.astype(np.float64)).astype(x.dtype).astype(np.float64)
    x = x.astype(np.float64)
    np.testing.assert_array_equal(np.isfinite(rounded), x <= float(fmt.exp_overflows_above.x))
    np.testing.assert_array_equal(rounded != 0, x >= float(fmt.exp_zero_below().x))


@pytest.mark.parametrize("name", SMALL)
def test_every_value_of_a_small_format_with_flush(name):
    fmt, x = FORMATS[name], values(name).astype(np.float64)
    fraction, exponent = np.frexp(np.exp(x[np.abs(x) < 700]))
    rounded = np.ldexp(np.round(np.ldexp(fraction, fmt.precision)), exponent - fmt.precision)
    kept = rounded >= float(fmt.smallest_normal)
    np.testing.assert_array_equal(kept, x[np.abs(x) < 700] >= float(fmt.exp_zero_below(flush=True).x))


@pytest.mark.parametrize("name", FORMATS)
def test_looking_before_rounding_flushes_the_same_numbers(name):
    """Arm calls a result tiny before it is rounded: the boundary is the smallest normal number."""
    fmt = FORMATS[name]
    assert exp_is_above(fmt.exp_zero_below(flush=True).x, fmt.smallest_normal)


def test_flush_is_what_the_format_says_unless_told():
    fmt = FORMATS["float32"]
    flushed = replace(fmt, flush=True)
    assert flushed.exp_zero_below() == flushed.exp_zero_below(flush=True) == fmt.exp_zero_below(flush=True)
    assert fmt.exp_zero_below() == flushed.exp_zero_below(flush=False)
    assert fmt.exp_zero_below().x < fmt.exp_zero_below(flush=True).x
    assert flushed.exp_overflows_above == fmt.exp_overflows_above


def test_a_format_without_subnormals():
    fmt = CUSTOM["no subnormals"]
    assert fmt.smallest_subnormal is None
    assert fmt.zero_bound == fmt.smallest_normal / 2
    assert fmt.effective_bits(fmt.smallest_normal) == fmt.precision
    assert fmt.effective_bits(fmt.smallest_normal * Fraction(3, 4)) == 1
    assert fmt.effective_bits(fmt.smallest_normal / 2) == 0
    assert fmt.exp_zero_below(flush=True) == FORMATS["float16"].exp_zero_below(flush=True)


def test_overflow_in_float8_without_infinity_is_past_the_tie():
    e4m3, e5m2 = FORMATS["float8_e4m3fn"], FORMATS["float8_e5m2"]
    for fmt, bound, at_bound in ((e4m3, 464, False), (e5m2, 61440, True)):
        assert fmt.overflow_bound == bound
        assert fmt.overflows(Fraction(bound)) is at_bound
        assert np.isfinite(np.float32(bound).astype(DTYPES[fmt.name]).astype(np.float32)) != at_bound
        assert fmt.overflows(bound + Fraction(1, 2**80))
        assert not fmt.overflows(bound - Fraction(1, 2**80))


def test_logarithms_are_right_to_the_last_digit(bits):
    rng = np.random.default_rng(0)
    for _ in range(50):
        value = Fraction(int(rng.integers(1, 2**60)), int(rng.integers(1, 2**60)))
        digits = log(value)
        half = Fraction(Decimal(5).scaleb(digits.adjusted() - DIGITS))
        assert abs(as_arb(value).log() - as_arb(digits)) < as_arb(half)
    assert exp_is_above(Fraction(0), Fraction(1)) is False
    assert exp_is_above(Fraction(0), Fraction(99, 100)) is True
    assert exp_is_above(Fraction(-1, 10**30), Fraction(1)) is False
    assert exp_is_above(Fraction(1, 10**30), Fraction(1)) is True


@pytest.mark.parametrize("name", DTYPES)
def test_effective_bits_count_the_numbers_of_a_binade(name):
    """k bits: 2^(k - 1) numbers between neighbouring powers of two."""
    fmt, dtype = FORMATS[name], DTYPES[name]
    for exponent in range(fmt.min_exponent - fmt.precision + 1, fmt.min_exponent + 2):
        low = dtype.type(2.0**exponent)
        spacing = float(np.nextafter(low, dtype.type(1))) - float(low)
        assert 2 ** (fmt.effective_bits(Fraction(2) ** exponent) - 1) == 2.0**exponent / spacing
    assert fmt.effective_bits(fmt.zero_bound) == 0
    assert fmt.effective_bits(fmt.zero_bound * Fraction(3, 2)) == 1
    flushed = replace(fmt, flush=True)
    assert flushed.effective_bits(fmt.smallest_normal / 2) == 0
    assert flushed.effective_bits(flushed.zero_bound) == fmt.precision


def test_exp_of_minus_100_in_float32_keeps_five_bits():
    assert FORMATS["float32"].effective_bits(Fraction(math.exp(-100))) == 5
    with pytest.raises(ValueError, match="value: 0 has no magnitude"):
        FORMATS["float32"].effective_bits(Fraction(0))


# --- sums ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_a_running_sum_of_ones_stalls(name):
    fmt = FORMATS[name]
    stall = fmt.sum_of_ones_stalls_at

    def plus_one(total: float) -> float:
        if name == "tf32":  # exact in float32, then to 11 bits with ties to even
            unit = 2.0 ** (math.frexp(total + 1)[1] - fmt.precision)
            return float(np.round((total + 1) / unit) * unit)
        one = DTYPES[name].type(1)
        return float(DTYPES[name].type(total) + one)

    start = 0 if stall <= 4096 else stall - 3  # below, every whole number is one of the format
    total = float(start)
    for count in range(start + 1, stall + 4):
        total = plus_one(total)
        assert total == min(count, stall)


@pytest.mark.parametrize(("name", "stall"), [("tiny", None), ("deep", 16), ("binary128", 2**113)])
def test_a_format_that_overflows_before_it_stalls(name, stall):
    fmt = CUSTOM[name]
    assert fmt.sum_of_ones_stalls_at == stall
    assert (stall is None) == (fmt.largest < 2**fmt.precision)


@pytest.mark.parametrize("name", ["float16", "float8_e4m3fn", "float8_e5m2"])
def test_the_largest_normaliser(name):
    fmt, dtype = FORMATS[name], DTYPES[name]

    def held(count: int) -> float:
        with np.errstate(over="ignore"):
            return float(np.float64(count).astype(dtype))

    assert held(fmt.largest_normaliser) == fmt.largest_normaliser == float(ml_dtypes.finfo(dtype).max)
    assert held(fmt.normaliser_overflows_at - 1) == fmt.largest
    assert not math.isfinite(held(fmt.normaliser_overflows_at))


def test_the_largest_normaliser_of_float64():
    fmt = FORMATS["float64"]
    assert float(fmt.largest_normaliser) == float(fmt.normaliser_overflows_at - 1) == float(fmt.largest)
    with pytest.raises(OverflowError):
        float(fmt.normaliser_overflows_at)


def test_a_largest_number_that_is_no_whole_one():
    fmt = Format("fraction", emax=7, precision=9)
    assert fmt.largest == Fraction(511, 2)
    assert (fmt.largest_normaliser, fmt.normaliser_overflows_at) == (255, 256)


# --- output -------------------------------------------------------------------------------------------


def test_json_numbers_are_numbers_while_float64_has_them():
    assert json_number(Fraction(65504)) == 65504
    assert json_number(Fraction(1, 3)) == 1 / 3
    assert json_number(Fraction(2) ** -1074) == 5e-324
    assert json_number(Fraction(2) ** -1075) == "2.4703282292062327E-324"
    assert json_number(Fraction(2) ** 64) == 2.0**64
    assert json_number(-(Fraction(2) ** 1024)) == "-1.7976931348623159E+308"


def test_whether_this_thread_flushes_is_measured():
    torch = pytest.importorskip("torch", reason="PyTorch, which can set the processor's flag")
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no flag that PyTorch can set")
    try:
        flushed = keeps_subnormals()
    finally:
        torch.set_flush_denormal(False)
    assert flushed is False
    assert keeps_subnormals() is True
    assert keeps_subnormals(np.float64) is True

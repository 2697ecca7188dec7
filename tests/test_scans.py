"""logaddexp and logcumsumexp: values, special entries, layouts, bits, gradients and wrong calls.

Ids (B...) name reports of faults in other libraries, which are kept with the project's cases.
"""

from __future__ import annotations

from functools import reduce

import ml_dtypes
import mpmath
import numpy as np
import pytest
from helpers import FORMATS, LONG, SIZES, assert_close, assert_same_bits, kept, noise, row, row_kinds, ulp
from scan_helpers import DIFFERENCE, U, allowed, differences

import online_softmax as osm
from online_softmax import cpu, reference

INF, NAN = np.inf, np.nan
each_isa = pytest.mark.parametrize("isa", cpu.isas())
each_format = pytest.mark.parametrize("fmt", FORMATS)


@kept
def prefixes(rows: np.ndarray) -> np.ndarray:
    return reference.logcumsumexp(rows)


def check_prefixes(x: np.ndarray, axis: int = -1, **options) -> np.ndarray:
    """Against the reference, within the bound; returned as it came."""
    wide = np.moveaxis(x.astype(np.float64), axis, -1)
    truth = prefixes(wide)
    with np.errstate(invalid="ignore"):
        m = np.maximum.accumulate(wide, axis=-1)
    got = osm.logcumsumexp(x, axis, **options)
    assert got.dtype == x.dtype
    limit = allowed(truth, m, x.dtype, merges=x.shape[axis] // 32768)
    assert_close(np.moveaxis(got, axis, -1), truth, limit, f"{x.dtype} {x.shape} {options}")
    return got


@each_isa
@each_format
def test_prefixes_of_every_length(isa, fmt):
    for n in SIZES:
        check_prefixes(np.stack([row(kind, FORMATS[fmt], n) for kind in row_kinds(FORMATS[fmt])]), isa=isa)


@pytest.mark.parametrize("fmt", ["f64", "f32"])
def test_long_rows(fmt):
    for n in (LONG[1], LONG[-1]):
        check_prefixes(
            np.stack([row(kind, FORMATS[fmt], n) for kind in ("random", "ramp", "constant", "tail")])
        )


def test_far_from_zero():
    for height in (1e3, 1600.0, -1600.0, 1e5, -1e8, 1e300):
        check_prefixes(height + noise((2, 300), np.dtype(np.float64)))
    # The maximum rises further than exponentials reach, in steps and at once.
    check_prefixes(np.cumsum(np.full(600, 40.0)))
    check_prefixes(np.linspace(-1e5, 1e5, 700))
    check_prefixes(np.array([-1e308, -1e300, 0.0, 1e300, 1.7e308]))


def test_a_tail_beside_zero():
    """log1p: what is far below 1 shows in a sum near 1."""
    x = np.array([0.0, -40.0, -80.0, -0.0])
    truth = [0.0, np.log1p(np.exp(-40.0)), np.log1p(np.exp(-40.0) + np.exp(-80.0)), np.log(2.0)]
    np.testing.assert_allclose(osm.logcumsumexp(x), truth, rtol=8 * U, atol=0)


@each_isa
def test_rows_and_columns_have_the_same_bits(isa):
    """Whatever their neighbours, strides and number are."""
    for kind in ("random", "ramp", "spread", "tail"):
        for fmt, dtype in FORMATS.items():
            x = row(kind, dtype, 700)
            once = osm.logcumsumexp(x, isa=isa)
            for columns in (1, 3, 8, 9, 64, 65, 130):
                table = np.repeat(x[:, None], columns, axis=1)
                table[::2, 1:] = dtype.type(1.5)
                got = osm.logcumsumexp(table, axis=0, isa=isa)
                assert_same_bits(got[:, 0], once, f"{kind} {fmt} {columns}")
            strided = np.zeros((700, 3), dtype)[:, 1]
            strided[...] = x
            assert_same_bits(osm.logcumsumexp(strided, isa=isa), once)
            assert_same_bits(osm.logcumsumexp(np.repeat(x[None], 40, 0)[:, :20], isa=isa)[7], once[:20])


def test_threads_change_nothing():
    rng = np.random.default_rng(0)
    for shape, axis in (((3, 100_000), -1), ((70_000, 70), 0), ((1, 200_001), 1), ((5000, 40), -1)):
        x = rng.normal(size=shape).astype(np.float32)
        one = osm.logcumsumexp(x, axis, threads=1)
        for threads in (2, 3, 8):
            assert_same_bits(osm.logcumsumexp(x, axis, threads=threads), one)
    column = np.ascontiguousarray(rng.normal(size=(70_000, 9)))
    assert_same_bits(osm.logcumsumexp(column, 0)[:, 4], osm.logcumsumexp(column[:, 4].copy()))


def test_a_concatenation_is_a_merge():
    """Prefixes of [x, y] past x are logaddexp(lse(x), prefixes of y)."""
    x, y = noise((300,), np.dtype(np.float64), 1), noise((500,), np.dtype(np.float64), 2)
    both = osm.logcumsumexp(np.concatenate([x, y]))
    assert_same_bits(both[:300], osm.logcumsumexp(x))
    merged = osm.logaddexp(both[299], osm.logcumsumexp(y))
    # Rounded logarithms of some 10, twice.
    np.testing.assert_allclose(both[300:], merged, rtol=0, atol=16 * 10 * U)
    assert both[-1] == pytest.approx(osm.logsumexp(np.concatenate([x, y])), rel=16 * U)


@each_format
def test_reverse_and_exclusive(fmt):
    x = noise((4, 333), FORMATS[fmt])
    plain = osm.logcumsumexp(x)
    assert_same_bits(osm.logcumsumexp(x, reverse=True), osm.logcumsumexp(x[:, ::-1])[:, ::-1])
    shifted = osm.logcumsumexp(x, exclusive=True)
    assert_same_bits(shifted[:, 1:], plain[:, :-1])
    assert np.all(shifted[:, 0] == -INF)
    both = osm.logcumsumexp(x, reverse=True, exclusive=True)
    assert_same_bits(both[:, :-1], osm.logcumsumexp(x, reverse=True)[:, 1:])
    assert np.all(both[:, -1] == -INF)
    columns = osm.logcumsumexp(np.ascontiguousarray(x.T), 0, exclusive=True)
    assert_same_bits(columns.T, shifted)


def test_exclusive_over_pieces_and_in_place():
    x = noise((2, 70_000), np.dtype(np.float32))
    inclusive = osm.logcumsumexp(x)
    for threads in (1, 2):
        held = x.copy()
        assert osm.logcumsumexp(held, exclusive=True, out=held, threads=threads) is held
        assert_same_bits(held[:, 1:], inclusive[:, :-1])
        held = np.ascontiguousarray(x.T)
        osm.logcumsumexp(held, 0, out=held, exclusive=True, threads=threads)
        assert_same_bits(held[1:].T, inclusive[:, :-1])


def test_layouts():
    x = noise((9, 34, 5), np.dtype(np.float32))
    views = (x, x.transpose(2, 0, 1), x[::-1, ::3], np.broadcast_to(x[:1], (4, 34, 5)), np.asfortranarray(x))
    for view in views:
        for axis in range(3):
            got = osm.logcumsumexp(view, axis)
            assert_same_bits(got, osm.logcumsumexp(np.ascontiguousarray(view), axis))
            out = np.empty(view.shape[::-1], view.dtype).T
            assert osm.logcumsumexp(view, axis, out=out) is out
            assert_same_bits(out, got)
    x.flags.writeable = False
    check_prefixes(x, 1)
    swapped = x.astype(">f4")
    assert_same_bits(osm.logcumsumexp(swapped), osm.logcumsumexp(x))


SPECIAL = [
    pytest.param([-INF, 0], [-INF, 0], id="B017"),
    pytest.param([2, -INF, -INF, 1], [2, 2, 2, 2 + np.log1p(np.exp(-1))], id="B017 later"),
    pytest.param([NAN, 0, 1], [NAN] * 3, id="B033"),
    ([0, INF, 1], [0, INF, INF]),
    ([-INF, -INF], [-INF, -INF]),
    ([-INF, INF, -INF, NAN, 0], [-INF, INF, INF, NAN, NAN]),
    ([INF, INF], [INF, INF]),
    ([0, NAN, INF], [0, NAN, NAN]),
    ([1e308, 1e308, -1e308], [1e308, 1e308, 1e308]),
    ([], []),
]


@each_isa
@pytest.mark.parametrize(("entries", "expected"), SPECIAL)
def test_special_prefixes(isa, entries, expected):
    got = osm.logcumsumexp(np.array(entries, np.float64), isa=isa)
    np.testing.assert_allclose(got, expected, rtol=2 * U, atol=0)
    columns = osm.logcumsumexp(np.repeat(np.array(entries, np.float64)[:, None], 9, 1), 0, isa=isa)
    np.testing.assert_array_equal(columns, np.repeat(got[:, None], 9, 1))


@each_isa
@each_format
def test_one_special_entry_anywhere(isa, fmt):
    for n in (1, 2, 7, 17, 33, 257, 515):
        for special in (NAN, INF, -INF):
            x = noise((n, n), FORMATS[fmt], seed=n)
            np.fill_diagonal(x, special)
            for axis in (0, 1):
                check_prefixes(x, axis, isa=isa)
    x = noise((33000,), FORMATS[fmt])[-300:] if fmt != "f32" else noise((33000,), FORMATS[fmt])
    x[-233] = NAN
    got = check_prefixes(x, isa=isa)
    assert np.isnan(got[-233:].astype(np.float64)).all()


def test_scalars_empties_and_formats():
    assert osm.logcumsumexp(2.0) == 2.0
    assert osm.logcumsumexp(2.0, exclusive=True) == -INF
    assert osm.logcumsumexp(np.zeros((2, 0))).shape == (2, 0)
    assert osm.logcumsumexp(np.zeros((0, 3)), 1).shape == (0, 3)
    assert osm.logcumsumexp([1, 2]).dtype == np.float64
    x = np.array([0.5, 1, 2], ml_dtypes.float8_e4m3fn)
    got = osm.logcumsumexp(x)
    assert_same_bits(got, osm.logcumsumexp(x.astype(np.float32)).astype(x.dtype))
    # A running sum in 16 bits stalls.
    zeros = osm.logcumsumexp(np.zeros(5000, np.float16))
    np.testing.assert_array_equal(zeros, np.log(np.arange(1, 5001)).astype(np.float32).astype(np.float16))


# ---- pairs


def exact_pairs(a: np.ndarray, b: np.ndarray) -> list[mpmath.mpf]:
    with mpmath.workprec(1200):
        pairs = zip(a.astype(np.float64), b.astype(np.float64), strict=True)
        return [mpmath.log(mpmath.exp(mpmath.mpf(p)) + mpmath.exp(mpmath.mpf(q))) for p, q in pairs]


@each_isa
@each_format
def test_pairs_near_zero_and_elsewhere(isa, fmt):
    """B026's neighbours: two probabilities that add up to about 1, off it by 1e-17 to 0.3."""
    dtype, rng = FORMATS[fmt], np.random.default_rng(3)
    least = -36 if fmt == "f64" else -5
    a = -0.69 * np.exp(rng.uniform(least, 0, 150))
    b = np.log(-np.expm1(a)) + rng.normal(size=150) * 10.0 ** rng.uniform(-17, -0.5, 150)
    a = np.concatenate([a, rng.normal(size=60), [np.log(0.5), -1e-17, 1e-300, 0, -0.5]]).astype(dtype)
    b = np.concatenate([b, 20 * rng.normal(size=60), [np.log(0.5), -39.1, -690.0, -800, -800]]).astype(dtype)
    got = osm.logaddexp(a, b, isa=isa)
    assert_same_bits(got, osm.logaddexp(b, a, isa=isa))
    # As documented: half an ulp and a double rounding; of float64 4 ulp or 2^-98 of the maximum.
    units = 4 if fmt == "f64" else 0.51
    for p, q, value, truth in zip(a, b, got, exact_pairs(a, b), strict=True):
        step = ulp(np.array(float(truth)), dtype)
        assert abs(mpmath.mpf(float(value)) - truth) <= max(units * float(step), 2.0**-98 * abs(max(p, q))), (
            p,
            q,
            value,
        )


@each_isa
@each_format
def test_pairs_of_every_length(isa, fmt):
    dtype = FORMATS[fmt]
    for n in SIZES:
        a, b = noise((n,), dtype, 1), noise((n,), dtype, 2)
        truth = reference.logaddexp(a, b)
        got = osm.logaddexp(a, b, isa=isa)
        assert got.dtype == dtype
        # Where the reference itself cancels it is off by units of its wide float times the operands' size.
        limit = 4 * ulp(truth, dtype) if fmt == "f64" else 0.51 * ulp(truth, dtype)
        assert_close(got, truth, limit + 2.0**-60, f"{fmt} {n}")


@each_isa
@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        pytest.param([1, INF, INF, -INF], [INF, INF, 1, -INF], [INF, INF, INF, -INF], id="B028"),
        ([INF, -INF, NAN, 0], [-INF, INF, INF, NAN], [INF, INF, NAN, NAN]),
        ([NAN, -INF, NAN], [-INF, NAN, NAN], [NAN, NAN, NAN]),
        ([-INF, 3], [5, -INF], [5, 3]),
        ([0, 1e4, 1.7e308], [0, 1e4, -1.7e308], [np.log(2), 1e4 + np.log(2), 1.7e308]),
        ([0.0, -0.0], [-INF, -INF], [0, 0]),
    ],
)
def test_special_pairs(isa, a, b, expected):
    for repeat in (1, 9, 40):
        got = osm.logaddexp(np.tile(a, repeat), np.tile(b, repeat), isa=isa)
        np.testing.assert_array_equal(got, np.tile(np.array(expected, np.float64), repeat))


def test_b087_a_fold_from_the_identity():
    assert reduce(osm.logaddexp, [], -INF) == -INF
    assert reduce(osm.logaddexp, [0, 1, 2], -INF) == pytest.approx(np.log(1 + np.e + np.e**2), rel=8 * U)
    assert osm.logaddexp(np.zeros((2, 0)), np.zeros((2, 0))).shape == (2, 0)


def test_b183_associative_at_infinities_backward_too():
    add, vjp = osm.logaddexp, osm.logaddexp_vjp
    assert add(add(-INF, -INF), 2.0) == add(-INF, add(-INF, 2.0)) == 2.0
    inner, c = vjp(1.0, add(-INF, -INF), 2.0)
    left = (*vjp(inner, -INF, -INF), c)
    a, outer = vjp(1.0, -INF, add(-INF, 2.0))
    assert left == (a, *vjp(outer, -INF, 2.0)) == (0, 0, 1)


def test_b187_b189_gradients_at_infinity_and_far_apart():
    assert osm.logaddexp_vjp(1.0, -INF, -INF) == (0, 0)
    assert osm.logaddexp_vjp(0.0, -INF, -INF) == (0, 0)
    # No overflow on the way, whose square would make a second derivative of inf/inf.
    with np.errstate(all="raise"):
        a, b = osm.logaddexp_vjp(1.0, 0.0, 700.0)
    assert (a, b) == (np.exp(-700.0), 1.0)
    assert osm.logaddexp_vjp(1.0, 0.0, 1000.0) == (0, 1)
    assert all(np.isnan(osm.logaddexp_vjp(1.0, INF, 0.0)))


def test_broadcasting_strides_and_out():
    a, b = noise((7, 1, 33), np.dtype(np.float32), 1), noise((5, 33), np.dtype(np.float32), 2)
    whole = osm.logaddexp(*(np.ascontiguousarray(x) for x in np.broadcast_arrays(a, b)))
    assert whole.shape == (7, 5, 33)
    assert_same_bits(osm.logaddexp(a, b), whole)
    assert_same_bits(osm.logaddexp(np.asfortranarray(a), b[:, ::-1][:, ::-1]), whole)
    out = np.empty((33, 5, 7), np.float32).T
    assert osm.logaddexp(a, b, out=out) is out
    assert_same_bits(out, whole)
    held = whole.copy()
    np.testing.assert_array_equal(osm.logaddexp(held, b, out=held), osm.logaddexp(whole, b))
    assert osm.logaddexp(np.float32(1), 2.0).dtype == np.float32
    assert osm.logaddexp(1, 2).dtype == np.float64
    assert osm.logaddexp(np.arange(3), np.float32(2)).dtype == np.float64
    assert osm.logaddexp(np.ones(2, np.float16), np.ones(2, np.float32)).dtype == np.float32
    big = noise((300, 400), np.dtype(np.float64))
    assert_same_bits(osm.logaddexp(big, big[3], threads=1), osm.logaddexp(big, big[3], threads=2))


# ---- gradients


def test_gradients_by_differences():
    rng = np.random.default_rng(5)
    a, b = rng.normal(size=(3, 4)) * 2, rng.normal(size=(4,)) * 2
    dy = rng.normal(size=(3, 4))
    da, db = osm.logaddexp_vjp(dy, a, b)
    np.testing.assert_allclose(da, differences(lambda v: osm.logaddexp(v, b), a, dy), atol=DIFFERENCE)
    np.testing.assert_allclose(db, differences(lambda v: osm.logaddexp(a, v), b, dy), atol=DIFFERENCE)
    x, g = rng.normal(size=(2, 5, 3)) * 2, rng.normal(size=(2, 5, 3))
    for options in ({}, {"reverse": True}, {"exclusive": True}, {"reverse": True, "exclusive": True}):
        got = osm.logcumsumexp_vjp(g, x, 1, **options)

        def f(v, options=options):
            y = osm.logcumsumexp(v, 1, **options)
            return np.where(np.isfinite(y), y, 0)

        np.testing.assert_allclose(got, differences(f, x, g), atol=DIFFERENCE)


@each_isa
@each_format
def test_gradient_of_prefixes(isa, fmt):
    dtype = FORMATS[fmt]
    for n in (0, 1, 2, 33, 300):
        x, dy = noise((3, n), dtype, 1), noise((3, n), dtype, 2)
        if n > 2:
            x[0, :2], x[1, 5], x[2, 1] = -INF, -INF, x[2, 0]
        truth = reference.logcumsumexp_vjp(x, dy)
        sizes = reference.logcumsumexp_vjp(x, np.abs(dy).astype(dtype))
        # Weights off by roundings of logarithms up to 20 in size, in the working format of sums.
        limit = ulp(truth, dtype) + sizes * 2**-53 * 40 * 4
        assert_close(osm.logcumsumexp_vjp(dy, x, isa=isa), truth, limit, f"{fmt} {n}")


def test_gradient_of_prefixes_at_infinities():
    x = np.array([[-INF, -INF, 1.0], [-INF, -INF, -INF], [0, INF, 0], [0, 1, NAN]])
    dy = np.array([[NAN, INF, 2.0], [1, 1, 1], [1, 1, 1], [1, 1, 1]])
    expected = [[0, 0, 2], [0, 0, 0], [NAN] * 3, [NAN] * 3]
    np.testing.assert_array_equal(osm.logcumsumexp_vjp(dy, x), expected)
    np.testing.assert_array_equal(osm.logcumsumexp_vjp(dy.T, x.T, 0), np.transpose(expected))
    assert osm.logcumsumexp_vjp(3.0, 1.0) == 3.0
    ones = osm.logcumsumexp_vjp(1.0, np.zeros(4, np.float32))
    assert ones.dtype == np.float32
    np.testing.assert_allclose(ones, [1 + 1 / 2 + 1 / 3 + 1 / 4, 1 / 2 + 1 / 3 + 1 / 4, 7 / 12, 1 / 4])


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda: osm.logcumsumexp([1j]), TypeError, "x is complex128"),
        (lambda: osm.logcumsumexp([1.0], 1), ValueError, "axis=1"),
        (lambda: osm.logcumsumexp(1.0, 3), ValueError, "axis=3"),
        (lambda: osm.logcumsumexp([[1.0]], (0, 1)), TypeError, "one axis"),
        (lambda: osm.logcumsumexp([1.0], reverse=1), TypeError, "reverse=1"),
        (lambda: osm.logcumsumexp([1.0], exclusive="no"), TypeError, "exclusive='no'"),
        (lambda: osm.logcumsumexp([1.0], isa="mmx"), ValueError, "isa is 'mmx'"),
        (lambda: osm.logcumsumexp([1.0], threads=0), ValueError, "threads is 0"),
        (lambda: osm.logcumsumexp(np.zeros(3), out=np.zeros(4)), ValueError, "out has shape"),
        (lambda: osm.logcumsumexp(np.zeros(3), out=np.zeros(3, np.float32)), TypeError, "out is float32"),
        (lambda: osm.logcumsumexp_vjp([1.0, 2], [1.0, 2, 3]), ValueError, r"dout has shape \(2,\)"),
        (lambda: osm.logaddexp([1j], 0), TypeError, "a is complex128"),
        (lambda: osm.logaddexp([1, 2], [1, 2, 3]), ValueError, r"a has shape \(2,\) and b \(3,\)"),
        (lambda: osm.logaddexp([1.0, 2], [1.0, 2], out=np.zeros(3)), ValueError, "out has shape"),
        (lambda: osm.logaddexp_vjp(np.ones(4), [1.0, 2], 1.0), ValueError, "dout has shape"),
    ],
)
def test_wrong_calls_name_the_argument(call, error, names):
    with pytest.raises(error, match=names):
        call()


def test_an_out_that_overlaps_an_operand_in_part():
    memory = np.zeros(20)
    with pytest.raises(ValueError, match="out overlaps b in part"):
        osm.logaddexp(np.zeros(10), memory[:10], out=memory[5:15])
    with pytest.raises(ValueError, match="out overlaps x in part"):
        osm.logcumsumexp(memory[:10], out=memory[5:15])

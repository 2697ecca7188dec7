"""NaN, infinities, masks and nothing at all: one answer at every length, place, instruction set and
algorithm."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import FORMATS, WIDTH, assert_close, assert_same_bits, bound, noise, truth

import online_softmax as osm
from online_softmax import cpu

NAN, INF = np.nan, np.inf
OPS = ("softmax", "log_softmax", "logsumexp")
#: Body, tail and their edges, up to more than two blocks of the widest vector.
LENGTHS = (*range(1, 2 * WIDTH + 2), 63, 64, 65, 127, 128, 129, 257)
SHIFTED = [a for a in cpu.ALGORITHMS if a != "naive"]

each_format = pytest.mark.parametrize("fmt", FORMATS)
each_isa = pytest.mark.parametrize("isa", cpu.isas())
each_algorithm = pytest.mark.parametrize("algorithm", SHIFTED)


def check(x: np.ndarray, axis: int = -1, where=None, **choice) -> None:
    """All three operations against the reference: patterns of NaN and infinity exactly."""
    rows = np.moveaxis(x.astype(np.float64), axis, -1)
    keep = None if where is None else np.moveaxis(where, axis, -1)
    inside = rows if keep is None else np.where(keep, rows, -INF)
    for op in OPS:
        expected = truth(op, rows, keep)
        got = getattr(osm, op)(x, axis, where=where, **choice)
        got = got if op == "logsumexp" else np.moveaxis(got, axis, -1)
        assert_close(got, expected, bound(op, inside, expected, x.dtype), f"{op} {x.shape} {choice}")


@each_algorithm
@each_isa
@each_format
def test_one_special_entry_anywhere(fmt, isa, algorithm):
    """Row i of each operand has the entry at place i."""
    for n in LENGTHS:
        for special in (NAN, INF, -INF):
            x = noise((n, n), FORMATS[fmt], seed=n)
            np.fill_diagonal(x, special)
            check(x, isa=isa, algorithm=algorithm)


@each_algorithm
@each_isa
@each_format
def test_columns_do_not_mix(fmt, isa, algorithm):
    """One special column among ordinary ones, reduced along the other axis."""
    for columns in (1, 3, WIDTH, WIDTH + 1, 70):
        for special in (NAN, INF, -INF):
            x = noise((5, columns), FORMATS[fmt])
            x[2, columns // 2] = special
            check(x, axis=0, isa=isa, algorithm=algorithm)
            x[:, 0] = special
            check(x, axis=0, isa=isa, algorithm=algorithm)


@each_algorithm
@each_isa
@each_format
def test_rows_of_one_value(fmt, isa, algorithm):
    for n in LENGTHS:
        rows = [[v] * n for v in (-INF, INF, NAN, 0.0, -0.0, 1e4, -1e4)]
        check(np.array(rows, FORMATS[fmt]), isa=isa, algorithm=algorithm)


@each_algorithm
@each_isa
@each_format
def test_two_special_entries(fmt, isa, algorithm):
    """NaN wins over +inf, +inf over everything else, whichever comes first and wherever they lie."""
    for n in (2, 3, WIDTH + 1, 129):
        for pair in ((NAN, INF), (INF, NAN), (NAN, -INF), (-INF, NAN), (INF, -INF), (-INF, INF), (INF, INF)):
            x = noise((3, n), FORMATS[fmt])
            x[0, 0], x[0, -1] = pair
            x[1, n // 2 - 1], x[1, n // 2] = pair
            check(x, isa=isa, algorithm=algorithm)


@pytest.mark.parametrize("special", [NAN, INF, -INF])
@each_format
def test_long_rows(fmt, special):
    """Rows cut in pieces whose states are merged."""
    n = 100_003
    for at in (0, 32767, 32768, n - 1):
        x = noise((1, n), FORMATS[fmt])
        x[0, at] = special
        check(x, threads=2)
    check(np.full((1, n), special, FORMATS[fmt]), threads=2)
    x = np.full((1, n), -INF, FORMATS[fmt])
    x[0, -1] = 2
    check(x, threads=2)


@each_isa
@each_format
def test_naive_is_naive(fmt, isa):
    """Without a shift, logits past the exponent's range overflow, and NaN still taints its row."""
    big = {"f64": 800.0, "f32": 100.0, "f16": 100.0, "bf16": 100.0}[fmt]
    x = np.array([[big, big], [0, NAN], [1, 2]], FORMATS[fmt])
    y = osm.softmax(x, algorithm="naive", isa=isa).astype(np.float64)
    np.testing.assert_array_equal(np.isnan(y), [[True, True], [True, True], [False, False]])
    lse = osm.logsumexp(x, algorithm="naive", isa=isa).astype(np.float64)
    np.testing.assert_array_equal(lse[:2], [INF, NAN])


@each_algorithm
@each_isa
@each_format
def test_masked_entries_are_not_read(fmt, isa, algorithm):
    """The bits do not depend on what lies under the mask, and are those of the row it leaves at its place."""
    dtype = FORMATS[fmt]
    rng = np.random.default_rng(5)
    for n in (1, 2, WIDTH - 1, WIDTH, WIDTH + 1, 129):
        for axis in (0, 1):
            shape = (4, n) if axis else (n, 4)
            keep = rng.random(shape) < 0.6
            x = noise(shape, dtype)
            check(x, axis, keep, isa=isa, algorithm=algorithm)
            for op in OPS:
                fn = getattr(osm, op)
                want = fn(x, axis, where=keep, isa=isa, algorithm=algorithm)
                for junk in (NAN, INF, -INF, 3e4):
                    dirty = np.where(keep, x, np.asarray(junk, dtype))
                    assert_same_bits(
                        fn(dirty, axis, where=keep, isa=isa, algorithm=algorithm), want, f"{junk} in {op}"
                    )


@each_format
def test_masks_over_special_rows(fmt):
    x = np.array(
        [
            [1, NAN, 2],  # NaN taking part
            [1, NAN, 2],  # NaN left out
            [-INF, 5, -INF],  # only -inf left
            [1, 2, 3],  # nothing left
            [INF, 0, 1],  # +inf taking part
            [INF, 0, 1],  # +inf left out
        ],
        FORMATS[fmt],
    )
    keep = np.array([[1, 1, 0], [1, 0, 1], [1, 0, 1], [0, 0, 0], [1, 1, 0], [0, 1, 1]], bool)
    check(x, where=keep)
    y = osm.softmax(x, where=keep).astype(np.float64)
    np.testing.assert_array_equal(y[0], [NAN, NAN, 0])
    np.testing.assert_array_equal(y[2], [NAN, 0, NAN])
    np.testing.assert_array_equal(y[3], [0, 0, 0])
    log = osm.log_softmax(x, where=keep).astype(np.float64)
    np.testing.assert_array_equal(log[0], [NAN, NAN, -INF])
    np.testing.assert_array_equal(log[3], [-INF, -INF, -INF])
    lse = osm.logsumexp(x, where=keep).astype(np.float64)
    np.testing.assert_array_equal(lse[[0, 2, 3, 4]], [NAN, -INF, -INF, INF])


@each_format
def test_nothing_is_left_in_some_rows(fmt):
    """Empty rows are the same wherever they lie in the batch."""
    for rows in (1, 2, 8, 9, 33):
        x = noise((rows, 40), FORMATS[fmt])
        for gone in (slice(0, 1), slice(rows // 2, rows), slice(None)):
            keep = np.ones(x.shape, bool)
            keep[gone] = False
            check(x, where=keep)


@pytest.mark.parametrize(
    ("shape", "axis"),
    [((0,), -1), ((0,), None), ((3, 0), -1), ((3, 0), 1), ((3, 0), 0), ((0, 3), -1), ((0, 3), 0), ((0, 0), 0),
     ((2, 0, 3), 1), ((2, 0, 3), (0, 1)), ((2, 0, 3), (0, 2)), ((2, 0, 3), None), ((0, 3, 4), (1, 2))],
)  # fmt: skip
@each_format
def test_empty(fmt, shape, axis):
    x = np.empty(shape, FORMATS[fmt])
    for op in ("softmax", "log_softmax"):
        got = getattr(osm, op)(x, axis)
        assert got.shape == shape
        assert got.dtype == x.dtype
        assert getattr(osm, op)(x, axis, out=got) is got
        assert getattr(osm, op)(x, axis, where=np.ones(shape, bool)).shape == shape
    lse = osm.logsumexp(x, axis)
    expected = np.sum(np.empty(shape), axis=axis) - INF
    assert lse.dtype == x.dtype
    np.testing.assert_array_equal(np.asarray(lse, np.float64), expected)
    kept, sign = osm.logsumexp(x, axis, b=1.0, keepdims=True, return_sign=True)
    assert kept.shape == sign.shape == np.sum(np.empty(shape), axis=axis, keepdims=True).shape
    assert (np.asarray(sign, np.float64) == 0).all()


@each_format
def test_empty_topk(fmt):
    x = np.empty((0, 5), FORMATS[fmt])
    top = osm.softmax_topk(x, 3)
    assert (top.values.shape, top.indices.shape, top.lse.shape) == ((0, 3), (0, 3), (0,))
    none = osm.softmax_topk(np.empty((2, 0), FORMATS[fmt]), 0)
    assert none.values.shape == (2, 0)
    np.testing.assert_array_equal(none.lse, [-INF, -INF])
    some = osm.softmax_topk(np.zeros((2, 4), FORMATS[fmt]), 0)
    assert some.indices.shape == (2, 0)
    np.testing.assert_allclose(some.lse, [np.log(4)] * 2, rtol=2.0**-22)


@each_isa
@each_format
def test_topk_of_special_rows(fmt, isa):
    x = np.array(
        [[1, NAN, 3, NAN], [INF, 0, INF, 1], [-INF] * 4, [-INF, 2, -INF, 2], [0.0, -0.0, 0.0, -1]],
        FORMATS[fmt],
    )
    top = osm.softmax_topk(x, 3, isa=isa)
    np.testing.assert_array_equal(top.indices, [[1, 3, 2], [0, 2, 3], [0, 1, 2], [1, 3, 0], [0, 1, 2]])
    nan = np.isnan(top.values.astype(np.float64))
    np.testing.assert_array_equal(nan, [[True] * 3] * 3 + [[False] * 3] * 2)
    np.testing.assert_array_equal(top.values[3].astype(np.float64), [0.5, 0.5, 0])
    np.testing.assert_array_equal(top.lse[:3], [NAN, INF, -INF])
    wide = noise((1, 300), FORMATS[fmt])
    wide[0, [5, 200]] = NAN
    np.testing.assert_array_equal(osm.softmax_topk(wide, 2, isa=isa).indices, [[5, 200]])


@each_format
def test_zero_dimensions(fmt):
    dtype = FORMATS[fmt]
    for value, y, log in ((5.0, 1.0, 0.0), (INF, NAN, NAN), (-INF, NAN, NAN), (NAN, NAN, NAN)):
        x = np.array(value, dtype)
        for axis in (-1, 0, None, ()):
            for got, want in ((osm.softmax(x, axis), y), (osm.log_softmax(x, axis), log)):
                assert isinstance(got, np.ndarray)
                assert got.shape == ()
                assert got.dtype == dtype
                np.testing.assert_array_equal(got.astype(np.float64), want)
            lse = osm.logsumexp(x, axis)
            assert lse.dtype == dtype
            np.testing.assert_array_equal(float(lse), value)
    out = np.array(0, dtype)
    assert osm.softmax(np.array(3, dtype), out=out) is out
    assert float(out) == 1
    assert float(osm.softmax(2.5)) == 1
    assert float(osm.softmax(7, where=False)) == 0
    assert float(osm.logsumexp(7, where=False)) == -INF


def test_weight_zero_drops_out():
    """Whatever x holds there, in the last axis and in others."""
    x = np.array([[NAN, 1.0], [INF, 2.0], [-INF, 3.0], [NAN, INF]])
    b = np.array([0.0, 1.0])
    np.testing.assert_array_equal(osm.logsumexp(x, b=b), [1, 2, 3, INF])
    np.testing.assert_array_equal(osm.logsumexp(x.T, 0, b=b[:, None]), [1, 2, 3, INF])
    lse, sign = osm.logsumexp(x, b=[0, 0], return_sign=True)
    np.testing.assert_array_equal(lse, [-INF] * 4)
    np.testing.assert_array_equal(sign, [0] * 4)


@pytest.mark.parametrize(
    ("x", "b", "lse", "sign"),
    [
        ([INF], None, INF, 1),
        ([-INF], None, -INF, 0),
        ([NAN, 0], None, NAN, NAN),
        ([INF, 0], [2, 1], INF, 1),
        ([INF, 0], [-2, 1], INF, -1),
        ([INF, INF], [1, -1], NAN, NAN),
        ([-INF, -INF], [1, -1], -INF, 0),
        ([NAN, 0], [1, 1], NAN, NAN),
        ([0, 1], [NAN, 1], NAN, NAN),
        ([3, 3], [1, -1], -INF, 0),
        ([-INF, 0], [5, 1], 0, 1),
        ([0, 0], [-INF, 1], INF, -1),
    ],
)
def test_signs_of_infinite_and_empty_sums(x, b, lse, sign):
    for dtype in (np.float64, np.float32):
        got = osm.logsumexp(np.array(x, dtype), b=b, return_sign=True)
        np.testing.assert_array_equal(got, (lse, sign))
        plain = osm.logsumexp(np.array(x, dtype), b=b)
        np.testing.assert_array_equal(plain, NAN if sign < 0 else lse)


@each_format
def test_operands_of_special_values_raise_no_warning(fmt):
    """pytest turns warnings into errors, so that to run is to pass; numpy's own settings must not matter
    either."""
    x = np.array([[NAN, INF, -INF], [INF, INF, 1], [-INF, -INF, -INF]], FORMATS[fmt])
    with np.errstate(all="raise"):
        for op in OPS:
            getattr(osm, op)(x)
            getattr(osm, op)(x, where=[True, False, True])
            getattr(osm, op)(x, 0)
        osm.logsumexp(x, b=[-1, 0, 1])
        osm.softmax_topk(x, 2)
        osm.softmax(np.array([1e300, -1e300]), dtype="float16")

"""Faults that were found by trying to break the library, each kept as its kind."""

import copy
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from helpers import assert_close, assert_same_bits, bound, noise

import online_softmax as osm
from online_softmax import cpu, reference


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(("shape", "axis"), [((2, 70, 4100), 1), ((3, 5000), 1), ((3, 40, 7), (0, 2))])
def test_write_pass_from_states(shape, axis, dtype, log):
    """Rows, columns and several axes, special rows included; into other memory and in place."""
    x = np.random.default_rng(5).normal(0, 5, shape).astype(dtype)
    x[0, ..., 0] = -np.inf
    x[1, 3] = np.nan if x.ndim == 2 else x[1, 3]
    axes = axis if isinstance(axis, tuple) else (axis,)
    m, s = cpu.state(x, axes, wide=True)
    out = np.empty_like(x)
    cpu.normalize(x, m, s, out, axes, log=log)
    op = "log_softmax" if log else "softmax"
    last = tuple(range(-len(axes), 0))
    rows, got = (np.moveaxis(a, axes, last) for a in (x, out))
    rows, got = (a.reshape(*a.shape[: a.ndim - len(axes)], -1) for a in (rows, got))
    exact = getattr(reference, op)(rows)
    assert_close(got, exact, bound(op, rows.astype(np.float64), exact, x.dtype), op)
    cpu.normalize(x, m, s, x, axes, log=log)
    assert_same_bits(x, out)


@pytest.mark.parametrize(
    ("x", "b", "expected"),
    [
        ([130.0, 0.0], [1e-60, 1.0], np.log1p(np.exp(130.0) * 1e-60)),
        ([200.0, 0.0], [1e-90, 1.0], np.log1p(np.exp(200.0) * 1e-90)),
        ([-2000.0, 0.0], [np.inf, 1.0], np.inf),
        ([np.inf, 0.0], [np.inf, -np.inf], np.nan),
        ([0.0, 0.0], [1e308, 1e308], np.log(1e308) + np.log(2)),
    ],
)
def test_weights_count_in_the_pivot(x, b, expected):
    """The largest term is the largest x + log|b|, not the largest x."""
    for function in (osm.logsumexp, reference.logsumexp):
        np.testing.assert_allclose(function(np.array(x), b=np.array(b)), expected, rtol=1e-13)


def test_broadcast_weights_are_not_written_out():
    x = np.broadcast_to(np.float32(0), (2, 1 << 22))
    weights = cpu._doubles(np.broadcast_to(np.float32(2), x.shape))
    assert weights.strides == (0, 0)
    np.testing.assert_allclose(osm.logsumexp(x, b=np.float32(2)), np.log(2.0 * (1 << 22)), rtol=1e-7)


def test_a_row_alone_has_the_bits_it_has_in_a_batch():
    """Rows whose elements are not adjacent: also as a 1-d view, where no neighbour is left."""
    rng = np.random.default_rng(1)
    for dtype in (np.float32, np.float64, np.float16):
        x, y = rng.normal(size=(300, 2)).astype(dtype), rng.normal(size=(5, 300)).astype(dtype)[:, ::-1]
        for algorithm in ("auto", "online", "cached"):
            assert_same_bits(
                osm.softmax(x, 0, algorithm=algorithm)[:, 0], osm.softmax(x[:, 0], algorithm=algorithm)
            )
            assert_same_bits(osm.softmax(y, algorithm=algorithm)[0], osm.softmax(y[0], algorithm=algorithm))


def test_a_strided_result_has_the_bits_of_a_dense_one():
    x = np.random.default_rng(2).normal(size=(7, 5000)).astype(np.float32)
    for shape in ((7, 10000), (5000, 7)):
        out = np.empty(shape, np.float32)
        out = out[:, ::2] if shape[0] == 7 else out.T
        assert_same_bits(osm.softmax(x, out=out), osm.softmax(x))


def test_every_lse_near_zero_keeps_its_bits():
    x = np.array([[0.0, -40.0]], np.float32)
    exact = np.log1p(np.exp(-40.0))
    for lse in (osm.logsumexp(x)[0], osm.softmax_topk(x, 1).lse[0]):
        assert abs(lse - exact) <= 2.0**-22 * exact


def test_log_softmax_near_zero_is_exact_at_any_gap():
    for gap in (1.0, 20.0, 50.0, 87.0):
        x = np.array([gap / 3, gap / 3 - gap], np.float32)
        exact = -np.log1p(np.exp(np.float64(x[1]) - np.float64(x[0])))
        assert abs(osm.log_softmax(x)[0] - exact) <= 2.0**-22 * abs(exact)


def test_no_memory_is_an_error_and_not_the_end():
    """A thread that finds no memory hands its error to the caller."""
    code = """
import numpy as np, online_softmax as osm
try:
    osm.logsumexp(np.broadcast_to(np.float32(0), (2, 1 << 50)), algorithm="three_pass", threads=2)
except MemoryError:
    print("MemoryError", osm.logsumexp(np.zeros((600, 1000), np.float32), threads=2)[0])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split()[0] == "MemoryError", done.stderr
    np.testing.assert_allclose(float(done.stdout.split()[1]), np.log(1000), rtol=1e-6)


def test_names_of_a_wrong_type_are_named():
    for name in ("algorithm", "precision"):
        with pytest.raises(ValueError, match=name):
            osm.softmax(np.zeros(3), **{name: [1]})


def test_states_copy():
    state = osm.SoftmaxState.of(np.arange(6.0).reshape(2, 3))
    assert copy.deepcopy(state) == state


def test_lse_near_zero_is_exact_whatever_the_maximum():
    """No term dominates, the maximum is far from 0, and the sum still cancels to almost nothing."""
    x = np.array([-1.8568027, -0.42443824, -1.66231], np.float32)
    exact = np.log(np.sum(np.exp(x.astype(np.float64))))  # 8.6e-6, good to 1e-11
    assert abs(exact) < 1e-5
    ways = {
        "row": osm.logsumexp(x, -1),
        "column": osm.logsumexp(np.stack([x] * 5, axis=1), 0)[2],
        "masked": osm.logsumexp(np.append(x, np.float32(7)), where=[True, True, True, False]),
        "gathered": osm.logsumexp(np.repeat(x, 2)[::2]),
        "top-k": osm.softmax_topk(x, 1).lse,
    }
    for way, got in ways.items():
        np.testing.assert_allclose(got, exact, rtol=2.0**-22, err_msg=way)


def test_a_late_maximum_far_above_the_first_elements():
    """The pivot taken from the start of the row does not do: the row is done again by its maximum."""
    for rise in (20.0, 26.0, 39.0, 41.0, 60.0, 89.0, 200.0, 255.0, 300.0, 1e4):
        for n in (300, 5000, 40_000, 200_000):
            x = noise((2, n), np.dtype(np.float32))
            x[0, n - 7] += np.float32(rise)
            wide = x.astype(np.float64)
            exact = reference.softmax(wide)
            assert_close(osm.softmax(x), exact, bound("softmax", wide, exact, x.dtype), f"{rise} {n}")
            exact = reference.logsumexp(wide)
            assert_close(osm.logsumexp(x), exact, bound("logsumexp", wide, exact, x.dtype), f"{rise} {n}")


def test_a_first_element_that_is_no_pivot():
    """Masked, far from 0 or far below the maximum, in every precision."""
    for dtype in (np.dtype(np.float32), np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)):
        for first in (-np.inf, -3e4, -300.0, -90.0, 300.0):
            for n in (40, 300, 3000, 70_000):
                x = noise((3, n), dtype)
                x[1, : min(n - 1, 70)] = first
                wide = x.astype(np.float64)
                exact = reference.softmax(wide)
                for precision in ("exact", "fast"):
                    allowed = bound("softmax", wide, exact, dtype, fast=precision == "fast")
                    got = osm.softmax(x, precision=precision)
                    assert_close(got, exact, allowed, f"{dtype} {first} {n} {precision}")


def test_fast_bfloat16_keeps_what_is_exact():
    one = np.full((9, 257), -np.inf, ml_dtypes.bfloat16)
    one[np.arange(9), np.arange(9) * 29] = np.linspace(-200, 200, 9)
    got = osm.softmax(one, precision="fast").astype(np.float64)
    assert np.array_equal(got, np.isfinite(one.astype(np.float64)).astype(np.float64))
    nan = noise((17, 100), np.dtype(ml_dtypes.bfloat16))
    nan.view(np.uint16)[5, 50] = 0xFFC0  # a negative one
    nan.view(np.uint16)[11, 99] = 0x7FC0
    bad = np.isnan(osm.softmax(nan, precision="fast").astype(np.float32)).all(axis=1)
    assert np.flatnonzero(bad).tolist() == [5, 11]


def test_masked_rows_and_columns_that_come_out_as_nan_keep_their_blanks():
    x = noise((70, 90), np.dtype(np.float32))
    x[3, 5] = x[40, 80] = np.nan
    keep = np.random.default_rng(0).random(x.shape) < 0.5
    keep[3, 5] = keep[40, 80] = True
    keep[50] = False
    for op, blank in ((osm.softmax, 0.0), (osm.log_softmax, -np.inf)):
        for axis in (0, 1):
            got = op(x, axis, where=keep)
            assert np.all(got[~keep] == blank)
            touched = np.isnan(np.where(keep, x, 0)).any(axis=axis, keepdims=True)
            assert np.array_equal(np.isnan(got), keep & touched)


def test_many_of_the_largest():
    """Past the number kept in order: a heap, with NaN first and ties by the lower index."""
    x = np.random.default_rng(0).integers(-50, 50, (4, 5000)).astype(np.float32)
    x[0, 5], x[1, 3], x[2, :600] = np.nan, np.inf, -np.inf
    order = np.argsort(-np.where(np.isnan(x), 1e9, x), axis=1, kind="stable")
    for k in (32, 33, 200, 5000):
        assert np.array_equal(osm.softmax_topk(x, k).indices, order[:, :k])


def test_weights_of_any_size():
    """By the largest x where that serves, by the largest x + log|b| where it does not."""
    assert abs(osm.logsumexp([0.0, -800.0], b=[1e-270, 1e300]) - (300 * np.log(10) - 800)) < 1e-11
    x, b = np.random.default_rng(0).normal(0, 5, (2, 3, 700))
    total = np.sum(b * np.exp(x), axis=-1)
    lse, sign = osm.logsumexp(x, b=b, return_sign=True)
    np.testing.assert_array_equal(sign, np.sign(total))
    np.testing.assert_allclose(lse, np.log(np.abs(total)), rtol=1e-11)


def nan_with(payload: int, dtype: type, negative: bool) -> np.generic:
    """A NaN whose mantissa holds `payload`."""
    word, exponent = (np.uint32, 0x7F800000) if dtype is np.float32 else (np.uint64, 0x7FF0000000000000)
    sign = 1 << (8 * word().nbytes - 1) if negative else 0
    return np.array([exponent | payload | sign], word).view(dtype)[0]


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("algorithm", [a for a in cpu.ALGORITHMS if a != "auto"])
@pytest.mark.parametrize("isa", cpu.isas())
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_nan_taints_whatever_its_bits(dtype, isa, algorithm):
    """Payload bits must not reach an exponent: as an integer they may make a number of a NaN."""
    rng = np.random.default_rng(3)
    top = 22 if dtype is np.float32 else 51
    for n in (1, 3, 33, 300, 5000):
        for payload in (1 << top, 1 << top | 1, 1, 0x7A2, (1 << top + 1) - 1, int(rng.integers(1, 1 << top))):
            x = rng.normal(0, 3, (2, n)).astype(dtype)
            x[0, rng.integers(n)] = nan_with(payload, dtype, bool(payload & 1))
            for axis, rows in ((1, x), (0, np.ascontiguousarray(x.T))):
                options = {"axis": axis, "isa": isa, "algorithm": algorithm}
                for function in (osm.softmax, osm.log_softmax):
                    y = np.moveaxis(function(rows, **options), axis, -1)
                    assert np.isnan(y[0]).all()
                    assert np.isfinite(y[1]).all()
                lse = osm.logsumexp(rows, **options)
                assert np.isnan(lse[0])
                assert np.isfinite(lse[1])
            assert np.isnan(cpu.state(x, (1,), isa=isa)[1][0])
            assert np.isnan(osm.logsumexp(x, b=np.ones(n))[0])
            assert np.isnan(osm.softmax_topk(x, 1)[2][0])


@pytest.mark.parametrize("isa", cpu.isas())
def test_a_tainted_bfloat16_column_holds_nothing_but_nan(isa):
    """Rounding by an addition must not carry a NaN into the sign."""
    for column in ([3.44e18, np.nan], [np.inf, 0, 3.44e18], [-2.984, np.nan, 27, -115]):
        x = np.array(column)[:, None].astype(ml_dtypes.bfloat16)
        assert np.isnan(osm.softmax(x, axis=0, isa=isa).astype(np.float32)).all()


@pytest.mark.parametrize("algorithm", cpu.ALGORITHMS)
@pytest.mark.parametrize("layout", [(0,), (1,), (0, 2)])
def test_a_log_sum_exp_near_zero_by_every_way(layout, algorithm):
    """`naive` carries no maximum; what is made again near 0 has to find it."""
    terms = np.array([-0.17396996, -6.95680828, -30.0, -8.25])
    exact = reference.logsumexp(terms)
    shape = {(0,): (4, 2), (1,): (2, 4), (0, 2): (2, 3, 2)}[layout]
    rows = np.broadcast_to(terms, (2, 4)) if layout != (0, 2) else np.broadcast_to(terms, (3, 4))
    if layout == (0,):
        x = np.ascontiguousarray(rows.T)
    elif layout == (1,):
        x = np.ascontiguousarray(rows)
    else:
        x = np.ascontiguousarray(rows.reshape(3, 2, 2).transpose(1, 0, 2))
    assert x.shape == shape
    lse = osm.logsumexp(x, axis=layout, algorithm=algorithm)
    np.testing.assert_allclose(lse, exact, rtol=0, atol=2 * np.spacing(7.0))


@pytest.mark.parametrize("shape", [(40000,), (3,)])
def test_infinite_terms_of_both_signs_meet_in_any_piece(shape):
    x, b = np.zeros(shape), np.ones(shape)
    x[0] = x[-1] = np.inf
    assert osm.logsumexp(x, b=b, return_sign=True) == (np.inf, 1.0)
    b[-1] = -1
    for more in (False, True):
        x[1] = np.inf if more else 0.0
        assert np.isnan(osm.logsumexp(x, b=b, return_sign=True)).all()


@pytest.mark.parametrize("axis", [0, 1])
def test_a_lone_finite_entry_has_log_probability_zero(axis):
    x = np.full((1, 100000) if axis else (100000, 1), -np.inf, np.float32)
    x.ravel()[-1] = 1
    assert osm.log_softmax(x, axis=axis).ravel()[-1] == 0


def test_the_state_class_names_a_wrong_axis():
    for axis in (1.5, "a", True, (0, True)):
        with pytest.raises(TypeError, match="axis="):
            osm.SoftmaxState.of(np.ones((2, 3)), axis=axis)
    assert osm.SoftmaxState.identity(np.int64(2)).shape == (2,)

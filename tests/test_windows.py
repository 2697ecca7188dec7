"""window_logsumexp and SlidingLogSumExp: every window as `logsumexp` of it, and nothing of what is past."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import FORMATS, assert_close, assert_same_bits, kept, noise, row, row_kinds
from scan_helpers import DIFFERENCE, U, allowed, differences

import online_softmax as osm
from online_softmax import cpu, reference

INF, NAN = np.inf, np.nan
each_isa = pytest.mark.parametrize("isa", cpu.isas())
each_format = pytest.mark.parametrize("fmt", FORMATS)
WINDOWS = (1, 2, 3, 7, 16, 100, 255, 256, 257)


@kept
def windows(rows: np.ndarray, window: int) -> np.ndarray:
    return reference.window_logsumexp(rows, window)


def check(x: np.ndarray, window: int, axis: int = -1, **options) -> None:
    rows = np.moveaxis(x, axis, -1).astype(np.float64)
    truth = windows(rows, window)
    starts = [max(0, i - window + 1) for i in range(rows.shape[-1])]
    m = (
        np.stack([rows[..., a : i + 1].max(axis=-1) for i, a in enumerate(starts)], axis=-1)
        if starts
        else rows
    )
    got = osm.window_logsumexp(x, window, axis, **options)
    assert got.dtype == x.dtype
    assert_close(
        np.moveaxis(got, axis, -1), truth, allowed(truth, m, x.dtype, merges=1), f"{x.dtype} {window}"
    )


@each_isa
@each_format
def test_windows_of_every_length(isa, fmt):
    for n in (0, 1, 2, 17, 300):
        for window in WINDOWS:
            check(noise((2, n), FORMATS[fmt], seed=n), window, isa=isa)


@each_isa
@pytest.mark.parametrize("kind", row_kinds(FORMATS["f64"]))
def test_kinds_of_rows(isa, kind):
    for fmt in ("f64", "f32"):
        for window in (2, 50, 300):
            check(row(kind, FORMATS[fmt], 700), window, isa=isa)
    # Heights come and go: a pivot that served one window does not serve the next.
    x = np.repeat([0.0, -2000.0, 500.0, -400.0, 1e6, -1e6, 3.0], 60) + noise((420,), np.dtype(np.float64))
    for window in (3, 31, 80):
        check(x, window, isa=isa)


@each_isa
def test_what_has_passed_is_forgotten(isa):
    for special in (NAN, INF, -INF, 1e300):
        x = noise((600,), np.dtype(np.float64))
        plain = osm.window_logsumexp(x, 37, isa=isa)
        for at in (0, 36, 37, 300, 599):
            y = x.copy()
            y[at] = special
            check(y, 37, isa=isa)
            got = osm.window_logsumexp(y, 37, isa=isa)
            away = np.ones(600, bool)
            away[at : at + 37] = False
            # The same entries, summed about another pivot: two roundings of the state's.
            np.testing.assert_allclose(got[away], plain[away], rtol=0, atol=40 * U * 10)
    nothing = np.concatenate([np.full(10, -INF), np.zeros(5), np.full(20, -INF)])
    got = osm.window_logsumexp(nothing, 4, isa=isa)
    np.testing.assert_allclose(got[10:18], np.log([1, 2, 3, 4, 4, 3, 2, 1]), rtol=4 * U)
    assert np.all(got[:10] == -INF)
    assert np.all(got[18:] == -INF)


def test_axes_layouts_threads_and_out():
    x = noise((40, 7, 300), np.dtype(np.float32))
    for axis in range(3):
        got = osm.window_logsumexp(x, 5, axis)
        turned = osm.window_logsumexp(np.ascontiguousarray(np.moveaxis(x, axis, -1)), 5)
        assert_same_bits(np.moveaxis(got, axis, -1), turned)
    for window in (3, 100, 20_000):
        y = noise((3, 70_000), np.dtype(np.float32))
        one = osm.window_logsumexp(y, window, threads=1)
        assert_same_bits(osm.window_logsumexp(y, window, threads=3), one)
        assert_same_bits(osm.window_logsumexp(y[1], window), one[1])
        held = y.copy()
        assert osm.window_logsumexp(held, window, out=held) is held
        assert_same_bits(held, one)
    long = noise((30_000,), np.dtype(np.float64))
    got = osm.window_logsumexp(long, 9000)
    for i in (0, 8998, 8999, 9000, 17_999, 18_000, 29_999):
        truth = reference.logsumexp(long[max(0, i - 8999) : i + 1])
        assert got[i] == pytest.approx(truth, rel=16 * U)


def test_a_window_over_everything_is_a_scan():
    x = noise((4, 50), np.dtype(np.float32))
    assert_same_bits(osm.window_logsumexp(x, 50), osm.logcumsumexp(x))
    assert_same_bits(osm.window_logsumexp(x, 10**9), osm.logcumsumexp(x))
    assert osm.window_logsumexp(2.0, 3) == 2.0
    assert osm.window_logsumexp(np.zeros((3, 0)), 2).shape == (3, 0)
    assert osm.window_logsumexp([1, 2], 1).dtype == np.float64
    assert_same_bits(osm.window_logsumexp(x, 1), x)


@each_isa
def test_gradients(isa):
    rng = np.random.default_rng(4)
    for n in (1, 2, 9, 20):
        for window in (1, 2, 3, 4, 7, 8, 30):
            x, dy = rng.normal(size=(2, n)) * 3, rng.normal(size=(2, n))
            got = osm.window_logsumexp_vjp(dy, x, window, isa=isa)
            truth = reference.window_logsumexp_vjp(x, dy, window)
            np.testing.assert_allclose(got, truth, rtol=0, atol=200 * U * window)
    x, dy = rng.normal(size=(3, 6)), rng.normal(size=(3, 6))
    got = osm.window_logsumexp_vjp(dy, x, 2, 0)
    np.testing.assert_allclose(
        got, differences(lambda v: osm.window_logsumexp(v, 2, 0), x, dy), atol=DIFFERENCE
    )


def test_gradients_at_infinities_and_far_apart():
    dy = np.arange(1.0, 9.0)
    for entries in (
        [0, NAN, 0, 0, 0, 1, 2, 3],
        [0, 1, INF, 0, 0, 1, 2, 3],
        [-INF, -INF, -INF, 0, 1, -INF, -INF, -INF],
        [1000, 0, 0, -1000, 0, 3000, 0, 1],
    ):
        x = np.array(entries, np.float64)
        for window in (1, 2, 3, 8):
            got = osm.window_logsumexp_vjp(dy, x, window)
            np.testing.assert_allclose(
                got, reference.window_logsumexp_vjp(x, dy, window), rtol=1e-11, atol=1e-13
            )


# ---- streams


@pytest.mark.parametrize("window", [1, 2, 5, 16])
def test_a_stream_is_a_window(window):
    x = noise((60, 3), np.dtype(np.float64))
    x[7, 0], x[20, 1], x[30:40, 2] = NAN, INF, -INF
    slide = osm.SlidingLogSumExp(window, (3,))
    assert slide.lse.tolist() == [-INF] * 3
    truth = reference.window_logsumexp(x, window, 0)
    got = np.stack([slide.push(entry) for entry in x])
    assert len(slide) == window
    # A state s of up to `window` terms of one exponential each, merged twice; no log1p.
    limit = (8 + np.log2(window)) * 2 * U * (2 + np.nan_to_num(np.abs(truth), posinf=0, neginf=0))
    assert_close(got, truth, limit)
    slide.clear()
    assert len(slide) == 0
    np.testing.assert_array_equal(slide.push(1.0), [1.0, 1.0, 1.0])


def test_a_stream_of_scalars():
    slide = osm.SlidingLogSumExp(3)
    values = [float(slide.push(v)) for v in (5, NAN, -INF, -INF, -INF, 2)]
    np.testing.assert_array_equal(values, [5, NAN, NAN, NAN, -INF, 2])
    assert slide.window == 3
    assert slide.shape == ()
    assert repr(slide) == "SlidingLogSumExp(3, shape=()), 3 entries"


def test_the_work_of_a_push_is_constant_on_average(monkeypatch):
    from online_softmax import state

    count = 0
    merge = state.merge

    def counted(a, b):
        nonlocal count
        count += 1
        return merge(a, b)

    monkeypatch.setattr(state, "merge", counted)
    for window in (4, 64):
        slide, count = osm.SlidingLogSumExp(window), 0
        for _ in range(10 * window):
            slide.push(0.0)
        assert count <= 3 * 10 * window


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda: osm.window_logsumexp([1.0], 0), ValueError, "window=0"),
        (lambda: osm.window_logsumexp([1.0], 2.0), TypeError, "window=2.0"),
        (lambda: osm.window_logsumexp([1.0], True), TypeError, "window=True"),
        (lambda: osm.window_logsumexp([1.0], np.ones(2)), TypeError, "window=array"),
        (
            lambda: osm.segment_softmax([1.0], ids=[0], num_segments=np.ones(2)),
            TypeError,
            "num_segments=array",
        ),
        (lambda: osm.window_logsumexp([1.0], 1, 2), ValueError, "axis=2"),
        (lambda: osm.window_logsumexp([1j], 1), TypeError, "x is complex128"),
        (lambda: osm.window_logsumexp([1.0], 1, threads=-1), ValueError, "threads is -1"),
        (lambda: osm.window_logsumexp([1.0], 1, out=np.zeros(2)), ValueError, "out has shape"),
        (lambda: osm.window_logsumexp_vjp([1.0, 2], [1.0], 1), ValueError, "dout has shape"),
        (lambda: osm.SlidingLogSumExp(0), ValueError, "window=0"),
        (lambda: osm.SlidingLogSumExp(2, (-1,)), ValueError, "shape=-1"),
        (lambda: osm.SlidingLogSumExp(2, (3,)).push([1.0, 2]), ValueError, r"x has shape \(2,\)"),
        (lambda: osm.SlidingLogSumExp(2).push(1j), TypeError, "x is complex128"),
    ],
)
def test_wrong_calls_name_the_argument(call, error, names):
    with pytest.raises(error, match=names):
        call()


@pytest.mark.parametrize("shape", [None, 2.5, "ab", True, (2, -1), (2.0,), [[1]]])
def test_a_stream_of_no_shape_is_refused(shape: object) -> None:
    with pytest.raises((TypeError, ValueError), match="shape="):
        osm.SlidingLogSumExp(3, shape)  # type: ignore[arg-type]  # which is the fault


def test_a_stream_keeps_what_it_has() -> None:
    """Its state is a copy, and what cannot be read changes nothing."""
    slide, other = osm.SlidingLogSumExp(3, np.array([2])), osm.SlidingLogSumExp(3, (2,))
    for step in range(8):
        values = np.array([step, -step], float)
        slide.push(values)
        other.push(values)
        for part in slide.state:
            part[...] = 1e9
        slide.lse[...] = 1e9
        values[...] = 1e9
        for wrong in ("a", [[1], [1, 2]], np.ma.array([1.0, 2.0], mask=[True, False]), [1j, 1], [1, 2, 3]):
            with pytest.raises((TypeError, ValueError), match=r"^x "):
                slide.push(wrong)
        assert len(slide) == len(other)
        assert_same_bits(slide.lse, other.lse)

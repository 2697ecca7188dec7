"""segment_logsumexp and segment_softmax: each group as `logsumexp` and `softmax` of it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from helpers import FORMATS, assert_close, assert_same_bits, bound, noise, ulp
from scan_helpers import DIFFERENCE, differences

import online_softmax as osm
from online_softmax import cpu, reference

INF, NAN = np.inf, np.nan
each_isa = pytest.mark.parametrize("isa", cpu.isas())
each_format = pytest.mark.parametrize("fmt", FORMATS)
#: Around what is done side by side, a register, a block and a row by itself; empty ones among them.
SIZES = (0, 1, 2, 3, 0, 0, 5, 8, 15, 16, 17, 18, 31, 33, 0, 64, 129, 255, 257, 1, 1000, 4, 16, 16, 0)


def offsets_of(sizes) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(sizes)])


def check(x: np.ndarray, offsets: np.ndarray, axis: int = 0, **options) -> None:
    """Each group against the reference, within the bound of a row of its length."""
    lse = np.moveaxis(osm.segment_logsumexp(x, offsets=offsets, axis=axis, **options), axis, -1)
    y = np.moveaxis(osm.segment_softmax(x, offsets=offsets, axis=axis, **options), axis, -1)
    rows = np.moveaxis(x, axis, -1)
    assert lse.dtype == y.dtype == x.dtype
    for g, (a, b) in enumerate(pairwise(offsets)):
        group = rows[..., a:b].astype(np.float64)
        for op, got in (("logsumexp", lse[..., g]), ("softmax", y[..., a:b])):
            truth = getattr(reference, op)(group, axis=-1)
            assert_close(got, truth, bound(op, group, truth, x.dtype), f"{op} {x.dtype} group {g} {options}")


@each_isa
@each_format
def test_groups_of_every_size(isa, fmt):
    offsets = offsets_of(SIZES)
    for scale in (3.0, 50.0):
        check(noise((offsets[-1],), FORMATS[fmt], scale=scale), offsets, isa=isa)


@each_isa
@each_format
def test_features(isa, fmt):
    sizes = (0, 1, 3, 17, 0, 40)
    offsets = offsets_of(sizes)
    for shape, axis in (((61, 1), 0), ((61, 5), 0), ((61, 2, 35), 0), ((3, 61), 1), ((3, 61, 4), -2)):
        check(noise(shape, FORMATS[fmt]), offsets, axis, isa=isa)


def test_the_reference_agrees_group_by_group():
    offsets = offsets_of(SIZES)
    ids = np.repeat(np.arange(len(SIZES)), SIZES)
    x = noise((offsets[-1], 3), np.dtype(np.float64))
    for name in ("segment_logsumexp", "segment_softmax"):
        truth = getattr(reference, name)(x, ids, num_segments=len(SIZES))
        np.testing.assert_array_equal(truth, getattr(reference, name)(x, offsets=offsets))
        np.testing.assert_allclose(getattr(osm, name)(x, offsets=offsets), truth, rtol=1e-14, atol=1e-15)


def test_ids_and_offsets_are_the_same_groups():
    offsets = offsets_of(SIZES)
    ids = np.repeat(np.arange(len(SIZES)), SIZES)
    x = noise((offsets[-1],), np.dtype(np.float32))
    for kind in (np.int64, np.int32, np.uint8):
        got = osm.segment_logsumexp(x, ids=ids.astype(kind), num_segments=len(SIZES))
        assert_same_bits(got, osm.segment_logsumexp(x, offsets=offsets))
    assert osm.segment_logsumexp(x, ids=ids).shape == (len(SIZES) - 1,)  # the last one is empty
    assert_same_bits(osm.segment_softmax(x, ids=ids), osm.segment_softmax(x, offsets=offsets.tolist()))
    np.testing.assert_array_equal(osm.segment_logsumexp([1.0, 2], ids=[3, 7])[[0, 3, 7]], [-INF, 1, 2])


def test_bits_are_the_group_s_own():
    """Not its place's, its neighbours', nor the threads'."""
    rng = np.random.default_rng(1)
    sizes = np.concatenate([rng.integers(0, 40, 3000), [300_000], rng.integers(0, 3000, 60), [40_000]])
    offsets = offsets_of(sizes)
    for dtype in (np.float32, np.float64):
        x = rng.normal(size=offsets[-1]).astype(dtype) * 3
        one = osm.segment_logsumexp(x, offsets=offsets, threads=1)
        soft = osm.segment_softmax(x, offsets=offsets, threads=1)
        for threads in (2, 5):
            assert_same_bits(osm.segment_logsumexp(x, offsets=offsets, threads=threads), one)
            assert_same_bits(osm.segment_softmax(x, offsets=offsets, threads=threads), soft)
        for g in (*range(0, 3000, 131), 3000, 3001, 3050, 3061):
            group = x[offsets[g] : offsets[g + 1]].copy()
            if not group.size:
                continue
            assert_same_bits(osm.segment_logsumexp(group, offsets=[0, group.size])[0], one[g])
            assert_same_bits(
                osm.segment_softmax(group, ids=np.zeros(group.size, int)), soft[slice(*offsets[g : g + 2])]
            )
    table = rng.normal(size=(20_000, 33)).astype(np.float32)
    cut = [0, 0, 5, 12_000, 12_001, 20_000]
    for f in (osm.segment_logsumexp, osm.segment_softmax):
        assert_same_bits(f(table, offsets=cut, threads=2), f(table, offsets=cut, threads=1))


@each_isa
@each_format
def test_special_groups(isa, fmt):
    """One entry of each kind in a group, in small groups and in long ones; neighbours keep their values."""
    dtype = FORMATS[fmt]
    for n in (1, 2, 5, 16, 17, 70):
        for special in (NAN, INF, -INF):
            offsets = np.arange(8) * n
            x = noise((7 * n,), dtype, seed=n)
            x[3 * n + n // 2] = special
            x[5 * n : 6 * n] = -INF
            check(x, offsets, isa=isa)
            check(np.repeat(x[:, None], 3, 1), offsets, isa=isa)
    mixed = np.array([INF, -INF, 0, -INF, INF, NAN, INF, INF], dtype)
    check(mixed, np.array([0, 3, 5, 6, 8]), isa=isa)


def test_nothing():
    assert osm.segment_logsumexp(np.zeros((0, 3)), ids=[]).shape == (0, 3)
    np.testing.assert_array_equal(osm.segment_logsumexp(np.zeros((0,)), ids=[], num_segments=2), [-INF, -INF])
    np.testing.assert_array_equal(osm.segment_logsumexp(np.zeros((0, 2)), offsets=[0, 0]), [[-INF, -INF]])
    assert osm.segment_logsumexp(np.zeros((3, 0)), offsets=[0, 1, 3]).shape == (2, 0)
    assert osm.segment_softmax(np.zeros((0, 3)), offsets=[0]).shape == (0, 3)


def test_near_zero():
    """Probabilities that add up to about 1."""
    for n in (3, 16, 100):
        p = np.random.default_rng(n).dirichlet(np.ones(n), 40)
        x = np.log(p).astype(np.float32).reshape(-1)
        got = osm.segment_logsumexp(x, offsets=np.arange(41) * n)
        truth = reference.logsumexp(x.reshape(40, n), -1)
        # In double: some units of roundoff of terms of size log(n) + log(1/p), and float32's last rounding.
        assert_close(got, truth, 0.5 * ulp(truth, got.dtype) + 2.0**-53 * 16 * np.log(n))


def test_out_and_layouts():
    offsets = np.array([0, 4, 4, 20, 33])
    x = noise((33, 6), np.dtype(np.float32))
    whole = osm.segment_softmax(x, offsets=offsets)
    held = x.copy()
    assert osm.segment_softmax(held, offsets=offsets, out=held) is held
    assert_same_bits(held, whole)
    for view in (np.asfortranarray(x), x[::-1][::-1], np.repeat(x, 2, 1)[:, ::2]):
        got = osm.segment_softmax(view, offsets=offsets)
        np.testing.assert_allclose(got, whole, rtol=1e-6)
        got = osm.segment_logsumexp(view, offsets=offsets)
        np.testing.assert_allclose(got, osm.segment_logsumexp(x, offsets=offsets), rtol=1e-6)
    back = osm.segment_softmax(x[::-1], offsets=[0, 13, 29, 29, 33])[::-1]
    np.testing.assert_allclose(back, whole, rtol=1e-6)
    assert osm.segment_logsumexp([1, 2], offsets=[0, 2]).dtype == np.float64


def test_gradients():
    rng = np.random.default_rng(2)
    offsets = [0, 3, 3, 4, 9]
    ids = np.repeat(np.arange(4), np.diff(offsets))
    for shape, axis in (((9,), 0), ((9, 2), 0), ((2, 9), 1)):
        x = rng.normal(size=shape) * 2
        dy = rng.normal(size=osm.segment_logsumexp(x, offsets=offsets, axis=axis).shape)
        got = osm.segment_logsumexp_vjp(dy, x, ids=ids, num_segments=4, axis=axis)
        truth = reference.segment_logsumexp_vjp(x, dy, offsets=offsets, axis=axis)
        np.testing.assert_allclose(got, truth, rtol=1e-14, atol=1e-15)

        def lse(v, axis=axis):
            y = osm.segment_logsumexp(v, offsets=offsets, axis=axis)
            return np.where(np.isfinite(y), y, 0)

        np.testing.assert_allclose(got, differences(lse, x, dy), atol=DIFFERENCE)
        g = rng.normal(size=shape)
        got = osm.segment_softmax_vjp(g, x, offsets=offsets, axis=axis)
        truth = reference.segment_softmax_vjp(x, g, ids, num_segments=4, axis=axis)
        np.testing.assert_allclose(got, truth, rtol=1e-13, atol=1e-15)

        def soft(v, axis=axis):
            return osm.segment_softmax(v, offsets=offsets, axis=axis)

        np.testing.assert_allclose(got, differences(soft, x, g), atol=DIFFERENCE)
        constant = osm.segment_softmax_vjp(np.full(shape, 1.7), x, offsets=offsets, axis=axis)
        np.testing.assert_array_equal(constant, 0)


@each_format
def test_gradients_of_every_format_and_of_special_groups(fmt):
    dtype = FORMATS[fmt]
    x = noise((12,), dtype)
    x[2], x[5], x[6:9], x[9] = NAN, INF, -INF, -INF
    offsets = [0, 2, 4, 6, 9, 12]
    dy, g = noise((5,), dtype, 1), noise((12,), dtype, 2)
    got, truth = (
        osm.segment_logsumexp_vjp(dy, x, offsets=offsets),
        reference.segment_logsumexp_vjp(x, dy, offsets=offsets),
    )
    assert got.dtype == dtype
    unit = float(np.spacing(np.float32(1))) if dtype.itemsize < 8 else float(np.spacing(1.0))
    size = np.abs(np.nan_to_num(truth))
    assert_close(got, truth, ulp(truth, dtype) + 8 * unit * size)
    assert np.isnan(got[2:6].astype(np.float64)).all()
    np.testing.assert_array_equal(got[6:10].astype(np.float64), 0)
    got, truth = (
        osm.segment_softmax_vjp(g, x, offsets=offsets),
        reference.segment_softmax_vjp(x, g, offsets=offsets),
    )
    assert_close(got, truth, ulp(truth, dtype) + 2.0**-50)


@pytest.mark.parametrize(
    ("options", "error", "names"),
    [
        ({}, ValueError, "neither ids nor offsets"),
        ({"ids": [0, 0, 1], "offsets": [0, 3]}, ValueError, "both"),
        ({"ids": [0, 2, 1]}, ValueError, r"ids\[2\]=1 comes after 2"),
        ({"ids": [-1, 0, 1]}, ValueError, r"ids\[0\]=-1 is negative"),
        ({"ids": [0, 1]}, ValueError, "ids has 2 entries"),
        ({"ids": [0.0, 1.0, 2.0]}, TypeError, "ids holds float64"),
        ({"ids": [[0, 1, 2]]}, ValueError, "ids has shape"),
        ({"ids": [0, 1, 5], "num_segments": 5}, ValueError, "at least 6 would do"),
        ({"ids": [0, 1, 1], "num_segments": -1}, ValueError, "num_segments=-1"),
        ({"ids": [0, 1, 1], "num_segments": 2.0}, TypeError, "num_segments=2.0"),
        ({"offsets": [0, 2, 1, 3]}, ValueError, r"offsets\[2\]=1 comes after 2"),
        ({"offsets": [1, 3]}, ValueError, r"offsets\[0\]=1"),
        ({"offsets": [0, 2]}, ValueError, r"offsets\[-1\]=2"),
        ({"offsets": []}, ValueError, "offsets is empty"),
        ({"offsets": [0, 3], "num_segments": 2}, ValueError, "num_segments=2"),
        ({"offsets": [0, 3], "axis": 1}, ValueError, "axis=1"),
        ({"offsets": [0, 3], "threads": 0}, ValueError, "threads is 0"),
        ({"offsets": [0, 3], "isa": "mmx"}, ValueError, "isa is 'mmx'"),
    ],
)
def test_wrong_calls_name_the_argument(options, error, names):
    for f in (osm.segment_logsumexp, osm.segment_softmax):
        with pytest.raises(error, match=names):
            f(np.zeros(3), **options)


def test_other_wrong_calls():
    with pytest.raises(ValueError, match="no dimensions"):
        osm.segment_logsumexp(1.0, ids=[0])
    with pytest.raises(TypeError, match="x is complex128"):
        osm.segment_softmax([1j], ids=[0])
    with pytest.raises(ValueError, match="dout has shape"):
        osm.segment_logsumexp_vjp(np.ones(3), np.zeros(3), offsets=[0, 1, 3])
    memory = np.zeros(8)
    with pytest.raises(ValueError, match="out overlaps x in part"):
        osm.segment_softmax(memory[:5], offsets=[0, 5], out=memory[2:7])


@pytest.mark.parametrize("name", ["ids", "offsets"])
def test_group_places_that_cannot_be_read_are_named(name: str) -> None:
    masked = np.ma.array([0, 2], mask=[False, True])
    for given, error in ((masked, TypeError), ([[0], [1, 2]], ValueError), ({0, 2}, TypeError)):
        for call in (osm.segment_logsumexp, osm.segment_softmax):
            with pytest.raises(error, match=f"^{name} "):
                call([1.0, 2.0], **{name: given})


@pytest.mark.parametrize("last", [2**45, 2**62, 2**64 - 1])
def test_more_groups_than_memory_has_room_for(last: int) -> None:
    with pytest.raises(ValueError, match=f"ids go to {last}: fewer groups"):
        osm.segment_logsumexp([1.0, 2.0], ids=np.array([0, last], np.uint64))
    with pytest.raises(ValueError, match=f"num_segments={last}: fewer groups"):
        osm.segment_softmax([1.0, 2.0], ids=[0, 1], num_segments=last)


def test_offsets_that_lie_where_the_result_goes() -> None:
    room, x = np.zeros((40, 3)), np.random.default_rng(0).standard_normal((40, 3))
    offsets = room.reshape(-1)[:4].view(np.int64)
    offsets[...] = [0, 7, 7, 40]
    want = osm.segment_softmax(x, offsets=[0, 7, 7, 40])
    assert_same_bits(osm.segment_softmax(x, offsets=offsets, out=room), want)

"""The class over the law: batches, axes, formats, masks, wrong calls, and states as bytes."""

from __future__ import annotations

import math
import pickle
import struct
import zlib
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from online_softmax import state as law
from online_softmax import wire
from online_softmax.numerics import bounds
from online_softmax.state import SoftmaxState

INF, NAN = math.inf, math.nan
Pair = tuple[float, float]
few = settings(deadline=None, max_examples=60, derandomize=True)
states = st.one_of(
    st.tuples(st.floats(-100, 100, width=32), st.floats(1, 2.0**20, width=32)),
    st.sampled_from([(-INF, 0.0), (NAN, NAN), (INF, 3.0)]),
)


def batch() -> np.ndarray:
    x = np.random.default_rng(7).normal(size=(3, 5, 11)).astype(np.float32)
    x[0, 0] = -INF
    x[0, 1, 3] = NAN
    x[0, 2, :2] = INF
    return x


def test_class_follows_the_law_over_every_axis() -> None:
    x = batch()
    for axis, shape in ((-1, (3, 5)), (1, (3, 11)), ((0, 2), (5,)), (None, ()), ((), (3, 5, 11))):
        of = SoftmaxState.of(x, axis)
        assert of.shape == shape
        assert of.dtype == np.float32
        m, s = law.push(
            law.identity(shape, np.float32), x[..., None] if axis == () else x, -1 if axis == () else axis
        )
        np.testing.assert_array_equal(of.m, m)
        np.testing.assert_array_equal(of.s, s)
    of = SoftmaxState.of(x)
    assert (of.m[0, 0], of.s[0, 0], of.lse[0, 0]) == (-INF, 0, -INF)
    assert np.isnan([of.m[0, 1], of.s[0, 1], of.lse[0, 1]]).all()
    assert (of.m[0, 2], of.s[0, 2], of.lse[0, 2]) == (INF, 2, INF)


def test_push_and_merge_give_new_states_and_leave_the_old() -> None:
    x = batch()
    first = SoftmaxState.identity((3, 5))
    second = first.push(x[..., :4])
    third = second.push(x[..., 4:])
    assert first == SoftmaxState.identity((3, 5))
    assert third == SoftmaxState.of(x[..., :4]).merge(SoftmaxState.of(x[..., 4:]))
    assert third == SoftmaxState.merge_many(SoftmaxState.of(part) for part in (x[..., :4], x[..., 4:]))
    with pytest.raises(ValueError, match="read-only"):
        third.m[0, 0] = 0
    with pytest.raises(AttributeError):
        third.m = np.zeros(())


@pytest.mark.parametrize(
    ("given", "state"),
    [("float64", "float64"), ("float32", "float32"), ("float16", "float32"), ("bfloat16", "float32"),
     ("float8_e4m3fn", "float32"), ("float8_e5m2", "float32"), ("int32", "float64"), ("bool", "float64"),
     (">f4", "float32"), (">f8", "float64")],
)  # fmt: skip
def test_formats_of_states_and_values(given: str, state: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, given, given))
    x = np.array([[0, 1, 1, 0]]).astype(kind)
    of = SoftmaxState.of(x)
    assert of.dtype == state
    assert of.m.dtype.isnative
    total = 2 + 2 * math.exp(-1)
    assert float(of.s[0]) == pytest.approx(
        total, rel=4 * bounds.unit_roundoff(state) + 6 * bounds.unit_roundoff(state)
    )
    result = of.value(x)
    expected = np.float64 if kind.kind in "iub" else kind.newbyteorder("=")
    assert result.dtype == expected
    truth = np.array([[math.exp(-1), 1, 1, math.exp(-1)]]) / total
    error = np.abs(result.astype(np.float64) - truth)
    assert (error <= bounds.rounding_error(truth, expected) + 20 * bounds.unit_roundoff(state)).all()


def test_wider_data_widen_a_state() -> None:
    x = np.array([0.1, 0.2])
    narrow_state = SoftmaxState.of(np.float32([1, 2]))
    assert narrow_state.push(x).dtype == np.float64
    assert narrow_state.push(x).m == 2.0
    assert SoftmaxState.of(x).merge(narrow_state) == narrow_state.push(x)


def test_where_leaves_out() -> None:
    x = batch()
    keep = np.random.default_rng(1).random(x.shape) < 0.5
    keep[0] &= np.isfinite(x[0])
    keep[2, 4] = False
    of = SoftmaxState.of(x, where=keep)
    for i in np.ndindex(3, 5):
        assert of.m[i] == np.max(x[i][keep[i]], initial=-INF)
    assert (of.m[2, 4], of.s[2, 4]) == (-INF, 0)
    assert SoftmaxState.identity((3, 5)).push(x, where=keep) == of
    y = of.value(x, where=keep)
    assert (y[~keep] == 0).all()
    log_y = of.log_value(x, where=keep)
    assert (log_y[~keep] == -INF).all()
    np.testing.assert_array_equal(SoftmaxState.of(x, where=True).m, SoftmaxState.of(x).m)


def test_values_of_special_rows() -> None:
    x = batch()
    of = SoftmaxState.of(x)
    for read in (of.value, of.log_value):
        assert np.isnan(read(x)[0, :3]).all()
        assert np.isfinite(read(x)[1:]).all()
    x[1, 1, 1] = -INF
    of = SoftmaxState.of(x)
    assert of.value(x)[1, 1, 1] == 0
    assert of.log_value(x)[1, 1, 1] == -INF


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda: SoftmaxState.of(np.ones(3, complex)), TypeError, "x holds complex128"),
        (lambda: SoftmaxState.of(np.ones(3, np.longdouble)), TypeError, "x holds"),
        (lambda: SoftmaxState.of(["a"]), TypeError, "x holds"),
        (lambda: SoftmaxState.of(np.ma.masked_array([1.0], [True])), TypeError, "x is a masked array"),
        (lambda: SoftmaxState.of(np.ones(3), 1), ValueError, "axis=1"),
        (lambda: SoftmaxState.of(np.ones((3, 3)), (0, -2)), ValueError, "twice"),
        (lambda: SoftmaxState.of(np.ones(3), 0.5), TypeError, "float"),
        (lambda: SoftmaxState.of(np.ones(3), where=[1, 0, 1]), TypeError, "where holds int64"),
        (lambda: SoftmaxState.of(np.ones(3), where=[True, False]), ValueError, r"where has shape \(2,\)"),
        (lambda: SoftmaxState.identity(2).push(np.ones((3, 4))), ValueError, r"block has .* \(3,\)"),
        (lambda: SoftmaxState.identity().merge(SoftmaxState.identity(1)), ValueError, "other has states"),
        (lambda: SoftmaxState.identity(()).merge((0.0, 1.0)), TypeError, "other holds a tuple"),
        (lambda: SoftmaxState.merge_many([]), ValueError, "states is empty"),
        (lambda: SoftmaxState.merge_many([1.0]), TypeError, "states holds a float"),
        (lambda: SoftmaxState.identity((), np.float16), TypeError, "dtype=float16"),
        (lambda: SoftmaxState.of(np.ones((2, 3))).value(np.ones((3, 2))), ValueError, r"x of shape \(3, 2\)"),
        (lambda: SoftmaxState(np.float32(0), np.float64(1)), TypeError, "float32 and float64"),
        (lambda: SoftmaxState(np.zeros(2), np.ones(3)), ValueError, "one shape"),
    ],
)  # fmt: skip
def test_wrong_calls_name_the_argument(
    call: Callable[[], object], error: type[Exception], names: str
) -> None:
    with pytest.raises(error, match=names):
        call()


@pytest.mark.parametrize(
    "pair",
    [(-INF, 1.0), (0.0, 0.0), (0.0, -1.0), (0.0, INF), (0.0, NAN), (NAN, 1.0), (INF, 0.0), (-INF, -0.0)],
)
def test_pairs_no_data_has_are_refused(pair: Pair) -> None:
    with pytest.raises(ValueError, match="no data has"):
        SoftmaxState(np.float64(pair[0]), np.float64(pair[1]))
    with pytest.raises(ValueError, match="no data has"):
        SoftmaxState.from_bytes(wire.pack(1, [np.float64(v) for v in pair]))


def test_equality_is_by_values_and_states_do_not_hash() -> None:
    a, b = SoftmaxState.of(batch()), SoftmaxState.of(batch())
    assert a == b
    assert a != SoftmaxState.of(batch()[:1])
    assert a != SoftmaxState.of(batch().astype(np.float64))
    assert (a == 1) is False
    with pytest.raises(TypeError, match="unhashable"):
        hash(a)
    assert repr(SoftmaxState.of([1.0, 1.0])) == "SoftmaxState(m=array(1.), s=array(2.))"


# -- bytes


@few
@given(
    shape=st.lists(st.integers(0, 3), max_size=4).map(tuple),
    dtype=st.sampled_from(["float32", "float64"]),
    data=st.data(),
)
def test_bytes_round_trip(shape: tuple[int, ...], dtype: str, data: st.DataObject) -> None:
    count = math.prod(shape)
    pairs = data.draw(st.lists(states, min_size=count, max_size=count))
    m, s = (np.array([p[i] for p in pairs], dtype).reshape(shape) for i in (0, 1))
    before = SoftmaxState(m, s)
    raw = before.to_bytes()
    assert len(raw) == 16 + 8 * len(shape) + 2 * count * np.dtype(dtype).itemsize
    for after in (
        SoftmaxState.from_bytes(raw),
        SoftmaxState.from_bytes(memoryview(raw)),
        pickle.loads(pickle.dumps(before)),
    ):
        assert after == before
        assert after.to_bytes() == raw


def test_bytes_are_the_documented_ones() -> None:
    raw = SoftmaxState(np.float32([[1.5]]), np.float32([[2]])).to_bytes()
    body = b"OSMS" + struct.pack("<HHHHQQff", 1, 1, 4, 2, 1, 1, 1.5, 2.0)
    assert raw == body + struct.pack("<I", zlib.crc32(body))


def test_every_changed_byte_is_refused() -> None:
    raw = SoftmaxState.of(batch()[:, :2]).to_bytes()
    for at in range(len(raw)):
        for flip in (0x01, 0x80, 0xFF, 0x5A):
            changed = bytearray(raw)
            changed[at] ^= flip
            with pytest.raises(ValueError, match="data "):
                SoftmaxState.from_bytes(changed)


def test_missing_and_extra_bytes_are_refused() -> None:
    raw = SoftmaxState.of(batch()[:, :2]).to_bytes()
    for cut in range(len(raw)):
        with pytest.raises(ValueError, match="data "):
            SoftmaxState.from_bytes(raw[:cut])
    with pytest.raises(ValueError, match="data "):
        SoftmaxState.from_bytes(raw + b"\0")
    with pytest.raises(TypeError, match="data is a str"):
        SoftmaxState.from_bytes("OSMS")


@few
@given(
    version=st.integers(0, 3),
    kind=st.integers(0, 3),
    itemsize=st.sampled_from([0, 1, 2, 4, 8, 16, 65535]),
    dims=st.lists(st.sampled_from([0, 1, 2, 2**32, 2**63, 2**64 - 1]), max_size=40),
    claimed=st.one_of(st.none(), st.sampled_from([0, 1, 33, 65535])),
    body=st.binary(max_size=32),
)
def test_forged_bytes_with_a_good_checksum_are_refused_or_harmless(
    version: int, kind: int, itemsize: int, dims: list[int], claimed: int | None, body: bytes
) -> None:
    ndim = len(dims) if claimed is None else claimed
    raw = (
        b"OSMS"
        + struct.pack("<HHHH", version, kind, itemsize, ndim)
        + struct.pack(f"<{len(dims)}Q", *dims)
        + body
    )
    raw += struct.pack("<I", zlib.crc32(raw))
    try:
        got = SoftmaxState.from_bytes(raw)
    except ValueError:
        return
    # What passes is a true state: it writes the same bytes again.
    assert got.to_bytes() == raw

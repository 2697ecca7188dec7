"""The class of partial attention results: formats, batches, axes, wrong calls, and states as bytes."""

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

from online_softmax import wire
from online_softmax.attention_state import AttentionState
from online_softmax.numerics import bounds
from online_softmax.state import SoftmaxState

INF, NAN = math.inf, math.nan
DTYPES = ("float32", "float64")
every = pytest.mark.parametrize("dtype", DTYPES)
few = settings(deadline=None, max_examples=60, derandomize=True)
U = 2.0**-53
any_number = st.one_of(
    st.floats(-1e4, 1e4, width=32),
    st.sampled_from([-INF, 0.0, -0.0, INF, NAN, float(np.float32(1e30)), float(np.float32(-1e-45))]),
)


def same(a: AttentionState, b: AttentionState) -> bool:
    """Bit for bit."""
    return a.dtype == b.dtype and a.to_bytes() == b.to_bytes()


@pytest.mark.parametrize(
    ("of_scores", "of_values", "state"),
    [("float32", "float32", "float32"), ("float16", "bfloat16", "float32"), ("float32", "float64", "float64"),
     ("int32", "float32", "float64"), (">f4", ">f4", "float32"), ("float8_e4m3fn", "float16", "float32")],
)  # fmt: skip
def test_formats_of_states(of_scores: str, of_values: str, state: str) -> None:
    x, v = (
        np.array(a).astype(np.dtype(getattr(ml_dtypes, d, d)))
        for a, d in (([0, 1], of_scores), ([[1], [3]], of_values))
    )
    got = AttentionState.of(x, v)
    assert got.dtype == got.o.dtype == state
    assert got.o.dtype.isnative
    share = 1 / (1 + math.exp(-1))
    assert float(got.o[0]) == pytest.approx(
        1 + 2 * share, rel=2 * bounds.unit_roundoff(state) + 20 * U, abs=0
    )
    assert AttentionState.identity((), 1, "float64").merge(got).dtype == np.float64
    assert got.push(np.float64([0]), np.float32([[1]])).dtype == np.float64


def test_statistics_are_those_of_softmax_states() -> None:
    x = np.random.default_rng(1).normal(size=(4, 9)).astype(np.float64)
    lse = AttentionState.of(x, np.ones((9, 1))).lse
    np.testing.assert_allclose(
        lse, SoftmaxState.of(x).lse, rtol=0, atol=2 * 37 * U + 4 * U * np.abs(lse).max()
    )


@every
def test_a_row_does_not_see_the_batch(dtype: str) -> None:
    rng = np.random.default_rng(2)
    x, v = rng.normal(size=(5, 40)).astype(dtype), rng.normal(size=(40, 3)).astype(dtype)
    batch = AttentionState.of(x, v)
    other = AttentionState.of(x[::-1], v)
    pairs, parts = batch.merge(other), [AttentionState.of(x[:, i : i + 2], v[i : i + 2]) for i in range(40)]
    many = AttentionState.merge_many(parts)
    for i in range(5):
        alone = AttentionState.of(x[i], v)
        assert same(alone, AttentionState(batch.o[i], batch.lse[i]))
        assert same(alone.merge(AttentionState.of(x[4 - i], v)), AttentionState(pairs.o[i], pairs.lse[i]))
        row = AttentionState.merge_many(AttentionState(p.o[i], p.lse[i]) for p in parts)
        assert same(row, AttentionState(many.o[i], many.lse[i]))


def test_values_broadcast_over_leading_axes() -> None:
    rng = np.random.default_rng(4)
    x, v = rng.normal(size=(2, 3, 6)), rng.normal(size=(2, 1, 6, 4))
    v[1, 0, 2] = INF
    full = AttentionState.of(x, np.broadcast_to(v, (2, 3, 6, 4)))
    assert same(AttentionState.of(x, v), full)
    assert same(AttentionState.of(x[1], v[1, 0]), AttentionState(full.o[1], full.lse[1]))


def test_axes_are_merged_in_one_step() -> None:
    rng = np.random.default_rng(6)
    a = AttentionState(rng.normal(size=(2, 3, 4, 5)), rng.normal(size=(2, 3, 4)))
    slices = [AttentionState(a.o[i, :, j], a.lse[i, :, j]) for i in range(2) for j in range(4)]
    assert same(a.merge_axis((0, 2)), AttentionState.merge_many(slices))
    assert same(a.merge_axis((2, 0)), a.merge_axis((0, -1)))
    assert a.merge_axis(None).shape == ()
    assert same(a.merge_axis(()), a)
    hollow = AttentionState(np.zeros((2, 0, 5)), np.zeros((2, 0)))
    assert same(hollow.merge_axis(1), AttentionState.identity(2, 5, "float64"))
    assert hollow.merge_axis(0).shape == (0,)


def test_states_do_not_change_and_keep_copies() -> None:
    o, lse = np.ones((2, 3), np.float32), np.zeros(2, np.float32)
    a = AttentionState(o, lse)
    o[:], lse[:] = 7, 7
    assert same(a, AttentionState(np.ones((2, 3), np.float32), np.zeros(2, np.float32)))
    assert a.value is a.o
    for array in (a.o, a.lse):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(AttributeError):
        a.lse = lse
    a.push(np.ones((2, 1), np.float32), np.ones((1, 3), np.float32)).with_sinks(0.0)
    assert same(a, AttentionState(np.ones((2, 3), np.float32), np.zeros(2, np.float32)))


def test_equality_is_by_values_and_states_do_not_hash() -> None:
    a = AttentionState(np.float64([1, NAN]), np.float64(0))
    assert a == AttentionState(np.float64([1, NAN]), np.float64(0))
    assert a != AttentionState(np.float64([1, NAN]), np.float64(1))
    assert a != AttentionState(np.float32([1, NAN]), np.float32(0))
    assert a != AttentionState(np.float64([[1, NAN]]), np.float64([0]))
    assert (a == 1) is False
    with pytest.raises(TypeError, match="unhashable"):
        hash(a)
    assert repr(AttentionState([1.0, 2.0], 0.0)) == "AttentionState(o=array([1., 2.]), lse=array(0.))"


one = AttentionState.identity((2,), 3, "float64")


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda: AttentionState(np.ones((2, 3)), np.ones(3)), ValueError, r"lse has shape \(3,\).*\(2,\)"),
        (lambda: AttentionState(1.0, 1.0), ValueError, "lse has shape"),
        (lambda: AttentionState(np.ones(2, "f4"), np.float64(1)), TypeError, "float32 and float64"),
        (lambda: AttentionState(np.ones(2, "f2"), np.float16(1)), TypeError, "from_lse"),
        (lambda: AttentionState(np.ones(2, complex), 1.0), TypeError, "o holds complex128"),
        (lambda: AttentionState.identity(2, 3, "float16"), TypeError, "dtype=float16"),
        (lambda: AttentionState.identity(2, 2.5), TypeError, r"dv=2\.5"),
        (lambda: AttentionState.identity((2, True), 2), TypeError, "shape="),
        (lambda: AttentionState.identity((2, -1), 2), ValueError, r"shape=\(2, -1\)"),
        (lambda: AttentionState.of(1.0, np.ones((1, 2))), ValueError, r"scores has shape \(\)"),
        (lambda: AttentionState.of(np.ones(3), np.ones(3)), ValueError, r"values has shape \(3,\)"),
        (lambda: AttentionState.of(np.ones(3), np.ones((1, 2))), ValueError, r"\(3, dv\)"),
        (lambda: AttentionState.of(np.ones((2, 3)), np.ones((4, 3, 2))), ValueError, "values has shape"),
        (lambda: AttentionState.of(np.ones(3), np.ones((1, 3, 2))), ValueError, "values has shape"),
        (lambda: AttentionState.of(["a"], np.ones((1, 2))), TypeError, "scores holds"),
        (lambda: AttentionState.of([1.0], [[1j]]), TypeError, "values holds complex128"),
        (lambda: AttentionState.of([1.0], [[1.0]], where=[1]), TypeError, "where holds int64"),
        (lambda: AttentionState.of([1.0], [[1.0]], where=[True] * 2), ValueError, "where has shape"),
        (lambda: one.push(np.ones(4), np.ones((4, 3))), ValueError, r"rows of shape \(\): \(2,\)"),
        (lambda: one.push(np.ones((2, 4)), np.ones((4, 2))), ValueError, "2 features: 3"),
        (lambda: one.merge(AttentionState.identity((2,), 2)), ValueError, "other has states .* dv 2"),
        (lambda: one.merge(AttentionState.identity((1,), 3)), ValueError, r"states of shape \(1,\)"),
        (lambda: one.merge((1.0, 2.0)), TypeError, "other holds a tuple"),
        (lambda: AttentionState.merge_many([]), ValueError, "states is empty"),
        (lambda: AttentionState.merge_many([1.0]), TypeError, "states holds a float"),
        (lambda: AttentionState.merge_many([one, 1.0]), TypeError, "states holds a float"),
        (lambda: one.merge_axis(1), ValueError, "axis=1"),
        (lambda: one.merge_axis(0.5), TypeError, r"axis=0\.5"),
        (lambda: one.with_sinks([1.0, 2, 3]), ValueError, r"sinks has shape \(3,\)"),
        (lambda: one.with_sinks([1.0, 2, 3], axis=0), ValueError, "sinks has shape"),
        (lambda: one.with_sinks([1.0, 2], axis=1), ValueError, "axis=1"),
        (lambda: one.with_sinks([1.0, 2], axis="heads"), TypeError, "axis='heads'"),
        (lambda: AttentionState.identity(1, 1).with_sinks([1e300]), ValueError, "past the range of float32"),
    ],
)  # fmt: skip
def test_wrong_calls_name_the_argument(
    call: Callable[[], object], error: type[Exception], names: str
) -> None:
    with pytest.raises(error, match=names):
        call()


# -- bytes


@few
@given(
    shape=st.lists(st.integers(0, 3), max_size=3).map(tuple), dv=st.integers(0, 3),
    dtype=st.sampled_from(DTYPES), data=st.data(),
)  # fmt: skip
def test_bytes_round_trip(shape: tuple[int, ...], dv: int, dtype: str, data: st.DataObject) -> None:
    count = math.prod(shape)
    lse = np.array(data.draw(st.lists(any_number, min_size=count, max_size=count)), dtype).reshape(shape)
    o = data.draw(st.lists(any_number, min_size=count * dv, max_size=count * dv))
    before = AttentionState(np.array(o, dtype).reshape(*shape, dv), lse)
    raw = before.to_bytes()
    assert len(raw) == 16 + 8 * (len(shape) + 1) + count * (dv + 1) * np.dtype(dtype).itemsize
    copy = pickle.loads(pickle.dumps(before))
    for after in (AttentionState.from_bytes(raw), AttentionState.from_bytes(memoryview(raw)), copy):
        assert after == before
        assert after.to_bytes() == raw


def test_bytes_are_the_documented_ones() -> None:
    raw = AttentionState(np.float32([[1.5, 2.5]]), np.float32([-3])).to_bytes()
    body = b"OSMS" + struct.pack("<HHHHQQfff", 1, 2, 4, 2, 1, 3, 1.5, 2.5, -3.0)
    assert raw == body + struct.pack("<I", zlib.crc32(body))


def test_changed_missing_extra_and_foreign_bytes_are_refused() -> None:
    raw = AttentionState(np.float32([[1, NAN], [0, 2]]), np.float32([0, -INF])).to_bytes()
    changed = [
        bytes([*raw[:at], raw[at] ^ flip, *raw[at + 1 :]]) for at in range(len(raw)) for flip in (1, 255)
    ]
    cut = [raw[:end] for end in range(len(raw))]
    foreign = [b"", b"OSMS", b"\x80\x04N.", SoftmaxState.of([1.0, 2.0]).to_bytes(), raw + b"\0"]
    for data in (*changed, *cut, *foreign):
        with pytest.raises(ValueError, match="data "):
            AttentionState.from_bytes(data)
    with pytest.raises(TypeError, match="data is a str"):
        AttentionState.from_bytes("OSMS")
    version = raw[:4] + struct.pack("<H", 2) + raw[6:-4]
    with pytest.raises(ValueError, match="version 2"):
        AttentionState.from_bytes(version + struct.pack("<I", zlib.crc32(version)))


@pytest.mark.parametrize(
    "array",
    [np.float64(1), np.zeros((2, 0)), np.float64([1, -INF]), np.float64([1, INF]), np.float64([1, NAN]),
     np.float64([1, -0.0]), -np.float64([NAN, 1])],
)  # fmt: skip
def test_sealed_bytes_that_hold_no_normal_form_are_refused(array: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"data (has shape|holds a pair)"):
        AttentionState.from_bytes(wire.pack(2, [np.asarray(array)]))


def test_states_take_another_shape() -> None:
    rng = np.random.default_rng(3)
    state = AttentionState(rng.standard_normal((2, 3, 4, 5)), rng.standard_normal((2, 3, 4)))
    flat = state.reshape((6, 4))
    assert flat.shape == (6, 4)
    np.testing.assert_array_equal(flat.o, state.o.reshape(6, 4, 5))
    assert flat.reshape((2, 3, -1)) == state
    moved = state.moveaxis(1, 2)
    np.testing.assert_array_equal(moved.o, state.o.transpose(0, 2, 1, 3))
    np.testing.assert_array_equal(moved.lse, state.lse.transpose(0, 2, 1))
    assert state.moveaxis(-1, 0).moveaxis(0, -1) == state
    with pytest.raises(ValueError, match="reshape"):
        state.reshape((5, 5))
    with pytest.raises(ValueError, match="source"):
        state.moveaxis(3, 0)

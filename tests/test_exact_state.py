"""ExactState: states whose merge is associative in bits, as a person uses them."""

from __future__ import annotations

import itertools
import pickle
import struct
import zlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import online_softmax as osm
from online_softmax import ExactState, SoftmaxState, exact, exact_state, wire

RNG = np.random.default_rng(8)
DTYPES = (np.float32, np.float64)


def rows(dtype: Any, shape: tuple[int, ...] = (4, 300), scale: float = 6.0) -> Any:
    return (RNG.standard_normal(shape) * scale).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_parts_in_any_order_give_the_bits_of_the_whole(dtype: Any) -> None:
    x = rows(dtype)
    whole = ExactState.of(x)
    for _ in range(20):
        cuts = np.sort(RNG.integers(0, x.shape[-1], 7))
        parts = [ExactState.of(p) for p in np.split(x, cuts, axis=-1)]
        RNG.shuffle(parts)  # type: ignore[arg-type]  # a list shuffles in place
        assert ExactState.merge_many(parts) == whole
        pushed = ExactState.identity(4, dtype)
        for p in np.split(x[:, RNG.permutation(x.shape[-1])], cuts, axis=-1):
            pushed = pushed.push(p)
        assert pushed == whole


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_read_is_softmax(dtype: Any) -> None:
    x = rows(dtype)
    state = ExactState.of(x)
    assert state.dtype == dtype
    assert state.shape == (4,)
    assert state.format == {np.float32: "lse-22x3/1", np.float64: "lse-32x4/1"}[dtype]
    assert state.a.shape == (4, 3 if dtype == np.float32 else 4)
    assert np.array_equal(state.prob(x), osm.softmax(x, order="any"))
    assert np.array_equal(state.logprob(x), osm.log_softmax(x, order="any"))
    assert np.array_equal(state.lse, osm.logsumexp(x, order="any"))
    # Within what error_bound says of the definition: the base of the powers and their rounding.
    wide = x.astype(np.longdouble)
    right = np.exp(wide - wide.max(-1, keepdims=True))
    right /= right.sum(-1, keepdims=True)
    unit = 3e-7 + 1.33e-8 * (wide.max(-1, keepdims=True) - wide) if dtype == np.float32 else 1e-15
    assert (np.abs(state.prob(x) / right - 1) <= unit).all()


def test_the_native_class_has_the_bits_of_the_law_in_numpy() -> None:
    for dtype in DTYPES:
        x = rows(dtype, (3, 5, 40))
        for axis in (-1, 0, (0, 2), None):
            fast, slow = ExactState.of(x, axis), exact_state.ExactState.of(x, axis)
            assert fast == slow
            assert np.array_equal(fast.prob(x, axis), slow.prob(x, axis))


@pytest.mark.parametrize("narrow", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
def test_narrow_rows_give_the_bits_of_their_upcast(narrow: Any) -> None:
    x = rows(np.float32, scale=2.0).astype(narrow)
    assert ExactState.of(x) == ExactState.of(x.astype(np.float32))


def test_where_leaves_out() -> None:
    x, keep = rows(np.float32), RNG.random((4, 300)) < 0.3
    keep[2] = False
    state = ExactState.of(x, where=keep)
    for r in range(4):
        assert ExactState.of(x[r][keep[r]]) == ExactState(state.m[r], state.a[r])
    assert (state.prob(x, where=keep)[~keep] == 0).all()
    assert np.isneginf(state.logprob(x, where=keep)[~keep]).all()
    assert state.lse[2] == -np.inf


def test_special_rows() -> None:
    inf, nan = np.inf, np.nan
    x = np.array([[inf, 1, inf], [nan, 1, inf], [-inf, -inf, -inf], [-0.0, 1e-40, -1e-44]], np.float32)
    state = ExactState.of(x)
    assert np.array_equal(state.m, [inf, nan, -inf, 0], equal_nan=True)
    assert not np.signbit(state.m[3])
    assert state.a.tolist()[:3] == [[2, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert state.a[3].tolist() == [3, 0, 0]  # exp of each is 1, and so is their maximum's
    assert np.array_equal(state.lse, np.float32([inf, nan, -inf, np.log(3)]), equal_nan=True)
    assert np.isnan(state.prob(x)[:3]).all()
    assert (state.prob(x)[3] == np.float32(1 / 3)).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_two_rounds_of_a_collective_give_the_merged_state(dtype: Any) -> None:
    """An all-reduce of the maximum of keys, then one of the sum of sums."""
    x = rows(dtype, (6, 64), 30.0)
    x[1, 5], x[2, 7], x[3] = np.nan, np.inf, -np.inf
    x[4, 60] = 2.0**40
    for parts in (1, 2, 3, 8):
        states = [ExactState.of(p) for p in np.array_split(x, parts, axis=-1)]
        key = np.max([s.key() for s in states], axis=0)
        total = np.sum([s.sums(key) for s in states], axis=0)
        assert ExactState.from_reduced(key, total) == ExactState.of(x)
        assert ExactState.from_reduced(key, total, dtype) == ExactState.of(x)


def test_keys_have_the_order_of_maxima() -> None:
    for dtype in DTYPES:
        m = np.array([-np.inf, -3e38, -1, -1e-30, 0, 1e-30, 2, 3e38, np.inf, np.nan], dtype)
        a = np.zeros((m.size, 3 if dtype == np.float32 else 4), np.int64)
        a[1:-1, 0] = 1 << 40
        a[[1, 7], 0] = a[8, 0] = 1
        keys = ExactState(m, a).key() if dtype == np.float32 else ExactState(m[1:-1][3:6], a[4:7]).key()
        assert (np.diff(keys) > 0).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_bytes_and_pickle(dtype: Any) -> None:
    state = ExactState.of(rows(dtype, (2, 3, 50)))
    for back in (ExactState.from_bytes(state.to_bytes()), pickle.loads(pickle.dumps(state))):
        assert back == state
        assert back.dtype == dtype
        assert back.format == state.format
    assert ExactState.from_bytes(ExactState.identity(()).to_bytes()) == ExactState.identity()


def test_every_changed_byte_is_noticed() -> None:
    raw = ExactState.of(rows(np.float32, (2, 9))).to_bytes()
    for at, bit in itertools.product(range(len(raw)), (1, 128)):
        changed = bytearray(raw)
        changed[at] ^= bit
        with pytest.raises(ValueError, match=r"data (is of|fails|has|does not)"):
            ExactState.from_bytes(changed)
    for cut in range(len(raw)):
        with pytest.raises(ValueError, match="data"):
            ExactState.from_bytes(raw[:cut])


def _sealed(m: Any, a: Any, kind: int = 32) -> bytes:
    return wire.pack_parts(kind, 4, (), (np.array(m), np.array(a, np.int64)))


@pytest.mark.parametrize(
    ("m", "a"),
    [
        (np.float32(-0.0), [1, 0, 0]),
        (np.float32(1e-40), [1, 0, 0]),
        (np.array(0xFFC00000, np.uint32).view(np.float32), [0, 0, 0]),  # NaN of another sign
        (np.array(0x7FC00001, np.uint32).view(np.float32), [0, 0, 0]),
        (np.float32(np.nan), [1, 0, 0]),
        (np.float32(-np.inf), [0, 0, 1]),
        (np.float32(np.inf), [0, 0, 0]),
        (np.float32(np.inf), [2, 1, 0]),
        (np.float32(2.0**31), [1, 1, 0]),
        (np.float32(1.5), [0, 0, 5]),  # less than the term of the maximum
        (np.float32(0), [0, 0, 0]),
    ],
)
def test_pairs_that_no_data_has_are_refused(m: Any, a: list[int]) -> None:
    with pytest.raises(ValueError, match="m and a hold a pair that no data has"):
        ExactState(m, np.array(a))
    with pytest.raises(ValueError, match="m and a hold a pair that no data has"):
        ExactState.from_bytes(_sealed(m, a))


def test_kinds_versions_and_dtypes_never_mix() -> None:
    x = rows(np.float32)
    state, wide, plain = ExactState.of(x), ExactState.of(x.astype(np.float64)), SoftmaxState.of(x)
    with pytest.raises(TypeError, match=r"other has float64 states in lse-32x4/1: lse-22x3/1, which float32"):
        state.merge(wide)
    with pytest.raises(TypeError, match="other holds a SoftmaxState: an ExactState would do"):
        state.merge(plain)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="other holds a ExactState: a SoftmaxState would do"):
        plain.merge(state)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="block has float64 states"):
        state.push(x.astype(np.float64))
    with pytest.raises(TypeError, match="x holds float64 where the states are float32"):
        state.prob(x.astype(np.float64))
    with pytest.raises(
        ValueError, match=r"data is of version 1, a SoftmaxState: version 1, an ExactState in"
    ):
        ExactState.from_bytes(plain.to_bytes())
    with pytest.raises(ValueError, match=r"an ExactState in lse-22x3/1: version 1, a SoftmaxState, would do"):
        SoftmaxState.from_bytes(state.to_bytes())
    head = bytearray(state.to_bytes()[:-4])
    head[4] = 2
    newer = bytes(head) + struct.pack("<I", zlib.crc32(head))
    with pytest.raises(ValueError, match="data is of version 2"):
        ExactState.from_bytes(newer)
    with pytest.raises(ValueError, match="kind 33"):
        ExactState.from_bytes(_sealed(np.float32(0), [1 << 0, 0, 0], kind=33))


def test_what_numpy_cannot_read_is_named() -> None:
    class Tensor:
        def __array__(self, *_: object, **__: object) -> Any:
            raise TypeError("Got unsupported ScalarType BFloat16")

    for kind in (ExactState, SoftmaxState):
        with pytest.raises(TypeError, match=r"x could not be read as an array: Got unsupported.* would do"):
            kind.of(Tensor())  # type: ignore[arg-type]


def test_bad_arguments() -> None:
    state = ExactState.of(rows(np.float32))
    with pytest.raises(TypeError, match=r"m and a are float16 and int64: float32 or float64, and int64"):
        ExactState(np.float16(1), np.zeros(3, np.int64))
    with pytest.raises(ValueError, match=r"a has shape \(4,\): \(3,\) would do"):
        ExactState(np.float32(1), np.zeros(4, np.int64))
    with pytest.raises(ValueError, match=r"other has states of shape \(5,\) where \(4,\) would do"):
        state.merge(ExactState.identity(5))
    with pytest.raises(ValueError, match="states is empty"):
        ExactState.merge_many([])
    with pytest.raises(TypeError, match="dtype=float16 is not a state's"):
        ExactState.identity((), np.float16)
    with pytest.raises(ValueError, match="key has an entry below"):
        state.sums(state.key() - 1)
    with pytest.raises(ValueError, match=r"key is int32 of shape \(4,\): int64"):
        state.sums(state.key().astype(np.int32))
    with pytest.raises(ValueError, match=r"rows of shape \(300,\) over axis=0"):
        state.prob(rows(np.float32), axis=0)
    with pytest.raises(AttributeError):
        state.m = np.zeros(4)  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        state.a[0] = 0


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_order_any_of_the_public_functions(dtype: Any) -> None:
    x = rows(np.float32, (5, 4, 60), 3.0).astype(dtype)
    wide = x.astype(np.float64 if dtype == np.float64 else np.float32)
    y = osm.softmax(x, order="any")
    assert y.dtype == x.dtype
    assert np.array_equal(y, osm.softmax(wide, order="any").astype(dtype))
    turned = np.ascontiguousarray(np.moveaxis(x, -1, 0))
    shuffled = RNG.permutation(60)
    for again in (
        np.moveaxis(osm.softmax(turned, axis=0, order="any"), 0, -1),
        osm.softmax(x[..., ::-1], order="any")[..., ::-1],
        osm.softmax(x[..., shuffled], order="any")[..., np.argsort(shuffled)],
        osm.softmax(x, order="any", threads=1, algorithm="online"),
        osm.softmax(x.copy(), order="any", out=np.empty_like(x)),
    ):
        assert np.array_equal(again, y)
    lse = osm.logsumexp(x, order="any")
    assert np.array_equal(lse, osm.logsumexp(x[..., shuffled], order="any"))
    assert lse.dtype == x.dtype
    top = osm.softmax_topk(x, 5, order="any")
    assert np.array_equal(top.values, np.take_along_axis(y, top.indices, -1))
    assert np.array_equal(top.lse, ExactState.of(x).lse)
    assert np.array_equal(top.indices, osm.softmax_topk(x, 5).indices)


def test_equal_elements_are_exact() -> None:
    for n in (1, 2, 3, 7, 10, 1000, 4095):
        y = osm.softmax(np.full(n, 0.3, np.float32), order="any")
        assert (y == np.float32(1) / np.float32(n)).all()


def test_orders_that_are_not_built() -> None:
    x = rows(np.float32)
    for function in (osm.softmax, osm.log_softmax, osm.logsumexp, lambda x, **k: osm.softmax_topk(x, 2, **k)):
        with pytest.raises(ValueError, match="order='ring' is not built: 'row', 'any' would do"):
            function(x, order="ring")
        with pytest.raises(TypeError, match="order=7 is a int: 'row', 'any' would do"):
            function(x, order=7)
    with pytest.raises(ValueError, match="b with order='any' is not built: b=None, or order='row'"):
        osm.logsumexp(x, b=2.0, order="any")
    with pytest.raises(ValueError, match="algorithm='naive' with order='any': 'auto', 'cached' or 'online'"):
        osm.softmax(x, order="any", algorithm="naive")
    with pytest.raises(ValueError, match="precision='fast' with order='any': 'exact' would do"):
        osm.log_softmax(x, order="any", precision="fast")


def test_the_formats_have_the_names_that_the_bytes_have() -> None:
    for form in (exact.FLOAT32, exact.FLOAT64):
        assert form.name in wire.KINDS[form.kind]

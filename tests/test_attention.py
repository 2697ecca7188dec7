"""Attention on the CPU against the reference: sizes, formats, options alone and in pairs, strides and bits.

The tolerance is that of the conformance kit, the rounding bound of attention in the operands' format.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from attention_cases import (
    INF,
    NAN,
    SHORT,
    chosen,
    every_isa,
    of_reference,
    operands,
    optional_operands,
    pairs,
)
from helpers import assert_same_bits

import online_softmax as osm
from online_softmax import reference
from online_softmax.conformance.tolerance import tolerance


def hold(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, *, isa: str | None = None, threads: int = 2, **options: Any
) -> None:
    """The output and the log-sum-exps are within the bound, NaN and infinities where they have to be."""
    made = osm.attention(q, k, v, return_lse=True, isa=isa, threads=threads, **options)
    right = reference.attention(q, k, v, return_lse=True, **options)
    arrays = {name: options[name] for name in ("mask", "bias", "sinks") if name in options}
    plain = {name: value for name, value in options.items() if name not in arrays}
    truth = {"o": right[0], "lse": right[1]}
    allowed = tolerance("attention", q.dtype.name, {"q": q, "k": k, "v": v} | arrays, plain, truth)
    assert made.output.dtype == q.dtype
    for got, name in ((made.output, "o"), (made.lse, "lse")):
        assert got.shape == truth[name].shape
        finite = np.isfinite(truth[name])
        np.testing.assert_array_equal(got.astype(np.float64)[~finite], truth[name][~finite])
        error = np.abs(np.where(finite, got.astype(np.float64) - np.where(finite, truth[name], 0), 0))
        assert (error <= allowed[name]).all(), (name, float((error / allowed[name]).max()))


@every_isa
@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize(
    ("queries", "keys", "d", "dv"),
    [
        (1, 1, 1, 1), (1, 2, 3, 5), (5, 7, 8, 8), (47, 49, 16, 17), (48, 64, 64, 64), (49, 65, 65, 33),
        (97, 31, 40, 128), (3, 300, 128, 72), (2, 130, 256, 1), (13, 17, 1, 256),
    ],
)  # fmt: skip
def test_sizes(isa: str, dtype: str, queries: int, keys: int, d: int, dv: int) -> None:
    hold(*operands(2, 1, queries, keys, d, dv, dtype), isa=isa)


#: Around tiles of 48 queries, items of 768, panels, grains of 64 keys, chunks (512 keys of 64 features),
#: segments of 4096, and around the features that panels and vectors take.
@pytest.mark.parametrize(
    ("queries", "keys", "d", "dv"),
    [
        *((2, keys, 8, 8) for keys in (15, 16, 31, 32, 33, 63, 64, 65, 1023, 1024, 1025, 4095, 4096, 4097)),
        *((50, keys, 64, 9) for keys in (511, 512, 513, 1021)),
        *((queries, 5, 3, 3) for queries in (95, 96, 767, 768, 769, 1021)),
        *((3, 7, d, 3) for d in (15, 17, 31, 33, 127, 129, 255, 257, 509, 1023, 1024)),
        *((49, 7, 3, dv) for dv in (15, 16, 17, 31, 33, 127, 129, 255, 257, 509, 1024)),
    ],
)  # fmt: skip
def test_sizes_around_blocks(queries: int, keys: int, d: int, dv: int) -> None:
    hold(*operands(1, 1, queries, keys, d, dv, batch=1))


@every_isa
def test_more_tiles_and_segments_than_one(isa: str) -> None:
    hold(*operands(1, 1, 900, 70, 8, 8, batch=1), isa=isa)  # two items
    hold(*operands(2, 1, 2, 9000, 16, 16, batch=1), isa=isa)  # three segments of keys


@pytest.mark.parametrize("names", pairs())
def test_options_alone_and_in_pairs(names: tuple[str, ...]) -> None:
    options = chosen(names)
    q, k, v = optional_operands("float32")
    made = osm.attention(q, k, v, return_lse=True, **options)
    right = reference.attention(q, k, v, return_lse=True, **of_reference(options, (2, 4, 9, 21)))
    for got, truth in zip(made, right, strict=True):
        finite = np.isfinite(truth)
        np.testing.assert_array_equal(got[~finite], truth[~finite])
        # Scores of up to 10 in float32, softcap and slopes included: 2^-24 * 10 * (d + 10) of a weight.
        np.testing.assert_allclose(got[finite], truth[finite], rtol=0, atol=2.0**-24 * 10 * 18 * 3)


@every_isa
def test_what_nobody_may_look_at_is_never_looked_at(isa: str) -> None:
    q, k, v = operands(2, 2, 6, 40, 8, 8)
    mask = np.random.default_rng(3).random((2, 1, 6, 40)) < 0.5
    mask[..., 30:] = False
    clean = osm.attention(q, k, v, mask=mask, isa=isa)
    k[:, :, 30:], v[:, :, 30:] = NAN, INF
    assert_same_bits(osm.attention(q, k, v, mask=mask, isa=isa), clean)
    assert_same_bits(osm.attention(q, k, v, bias=np.where(mask, 0.0, -INF), isa=isa), clean)
    # A value that is NaN reaches the queries that see it, and no others.
    v[0, 0, 5] = NAN
    seen = np.isnan(osm.attention(q, k, v, mask=mask, isa=isa)).all(axis=-1)
    np.testing.assert_array_equal(seen[0, 0], mask[0, 0, :, 5])
    assert not seen[0, 1].any()
    assert not seen[1].any()


@every_isa
def test_special_scores(isa: str) -> None:
    q = np.array([[[1.0], [2.0], [0.0]]], np.float32)
    k = np.array([[[1.0], [INF], [3.0]]], np.float32)
    v = np.array([[[1.0], [2.0], [3.0]]], np.float32)
    got = osm.attention(q, k, v, return_lse=True, isa=isa)
    np.testing.assert_array_equal(got.output, np.full((1, 3, 1), NAN))
    np.testing.assert_array_equal(got.lse, [[INF, INF, NAN]])  # 0 * inf is NaN
    k[0, 1] = -INF
    got = osm.attention(q, k, v, return_lse=True, isa=isa)
    np.testing.assert_allclose(got.output[0, :2, 0], reference.attention(q, k, v)[0, :2, 0], rtol=2.0**-21)
    assert np.isnan(got.output[0, 2, 0])


def test_a_query_that_sees_nothing_gets_zero() -> None:
    q, k, v = operands(2, 1, 4, 3, 8, 5)
    got = osm.attention(q, k, v, causal=True, return_lse=True)
    assert (got.output[:, :, 0] == 0).all()
    assert (got.lse[:, :, 0] == -INF).all()
    sinks = np.array([0.5, -1.0])
    with_sink = osm.attention(q, k, v, causal=True, sinks=sinks, return_lse=True)
    assert (with_sink.output[:, :, 0] == 0).all()
    np.testing.assert_array_equal(with_sink.lse[:, :, 0], [[0.5, -1.0]] * 2)
    for shape in ((0, 2, 4, 8), (2, 2, 0, 8)):
        empty = np.zeros(shape, np.float32)
        assert osm.attention(empty, k[: shape[0]], v[: shape[0]]).shape == (*shape[:3], 5)
    no_keys = osm.attention(q, k[:, :, :0], v[:, :, :0], return_lse=True)
    assert (no_keys.output == 0).all()
    assert (no_keys.lse == -INF).all()
    assert osm.attention(q, k, v[..., :0]).shape == (2, 2, 4, 0)


def test_scores_far_from_zero_and_far_apart() -> None:
    q, k, v = operands(1, 1, 20, 100, 4, 4)
    hold(q, k + np.float32(100.0), v)
    hold(q * 50, k * 50, v)
    rising = np.sort(k, axis=2)
    hold(np.abs(q) * 30, rising, v)  # a new greatest score at every key


def test_any_strides_and_ranks() -> None:
    q, k, v = operands(4, 2, 10, 12, 6, 8)
    whole = osm.attention(q, k, v, return_lse=True)
    moved = [np.ascontiguousarray(np.moveaxis(a, 1, 2)) for a in (q, k, v)]
    bshd = osm.attention(*moved, layout="BSHD", return_lse=True)
    assert_same_bits(np.moveaxis(bshd.output, 2, 1), whole.output)
    assert_same_bits(np.moveaxis(bshd.lse, 2, 1), whole.lse)
    wide = [np.repeat(a, 2, axis=-1)[..., ::2] for a in (q, k, v)]
    assert_same_bits(osm.attention(*wide), whole.output)
    backwards = [np.ascontiguousarray(a[..., ::-1])[..., ::-1] for a in (q, k, v)]
    assert_same_bits(osm.attention(*backwards), whole.output)
    one_key = [np.broadcast_to(a[:, :, :1], a.shape) for a in (k, v)]
    assert_same_bits(osm.attention(q, *one_key), osm.attention(q, *(a.copy() for a in one_key)))
    assert_same_bits(osm.attention(q[1], k[1], v[1]), whole.output[1])
    assert_same_bits(osm.attention(q[1, 3], k[1, 1], v[1, 1]), whole.output[1, 3])


@every_isa
@pytest.mark.parametrize("dtype", SHORT)
def test_bits_depend_on_the_query_alone(isa: str, dtype: str) -> None:
    q, k, v = operands(4, 2, 60, 9000, 8, 8, dtype, batch=1)
    whole = osm.attention(q, k, v, isa=isa, threads=1)
    for threads in (2, 3, 7):
        assert_same_bits(osm.attention(q, k, v, isa=isa, threads=threads), whole)
    assert_same_bits(osm.attention(q[:, :, 17:18], k, v, isa=isa), whole[:, :, 17:18])
    assert_same_bits(osm.attention(q[:, 2:], k[:, 1:], v[:, 1:], isa=isa), whole[:, 2:])


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({name: np.zeros((2, 3, 5, 8), np.float32) for name in "kv"}, ValueError, "multiple of 3"),
        ({"v": np.zeros((2, 2, 4, 8), np.float32)}, ValueError, "v has 4 values for 5 keys"),
        ({"v": np.zeros((2, 1, 5, 8), np.float32)}, ValueError, "v has 1 heads and k 2"),
        ({"k": np.zeros((2, 2, 5, 7), np.float32)}, ValueError, "k has 7 features and q 8"),
        ({"k": np.zeros((1, 2, 5, 8), np.float32)}, ValueError, "batches of 2, 1 and 2"),
        ({"k": np.zeros((2, 2, 5, 8), np.float16)}, TypeError, "k is float16 and q is float32"),
        ({"q": np.zeros((4, 3, 8), np.float32)}, ValueError, "k has 4 dimensions: 3 like q"),
        ({"q": np.zeros(8, np.float32)}, ValueError, "q has 1 dimensions"),
        ({"q": np.zeros((2, 4, 3, 8), complex)}, TypeError, "q is complex128"),
        ({"mask": np.zeros((3, 5))}, TypeError, "mask is float64: bool"),
        ({"mask": np.zeros((3, 6), bool)}, ValueError, r"mask of shape \(3, 6\) does not broadcast to \(2,"),
        ({"bias": np.zeros((1, 1, 1, 1, 1))}, ValueError, "bias has 5 dimensions"),
        ({"bias": "x"}, TypeError, "bias holds"),
        ({"scale": NAN}, ValueError, "scale is nan"),
        ({"scale": "1"}, TypeError, "scale is '1'"),
        ({"softcap": 0.0}, ValueError, "softcap is 0.0: a positive"),
        ({"softcap": -1}, ValueError, "softcap is -1"),
        ({"window": (-1, 0)}, ValueError, "window is"),
        ({"window": 3}, TypeError, "window is 3: a pair"),
        ({"window": (1.5, 0)}, TypeError, "window is"),
        ({"causal": 1}, TypeError, "causal"),
        ({"causal_align": "left"}, ValueError, "causal_align is 'left'"),
        ({"layout": "SBHD"}, ValueError, "layout is 'SBHD'"),
        ({"sinks": np.zeros(3)}, ValueError, r"sinks has shape \(3,\): \(4,\) would do"),
        ({"alibi_slopes": np.zeros((4, 2))}, ValueError, r"alibi_slopes has shape \(4, 2\)"),
        ({"dropout_p": 1.0}, ValueError, "dropout_p is 1.0: at least 0 and below 1"),
        ({"dropout_p": -0.1}, ValueError, "dropout_p is -0.1"),
        ({"seed": -1}, ValueError, "seed is -1: a whole number"),
        ({"seed": 0.5}, TypeError, "seed is 0.5: a whole number"),
        ({"origin": (0, 0, 1)}, TypeError, "origin is"),
        ({"origin": (0, 0, 0, -1)}, ValueError, "origin is"),
        ({"origin": (0, 0, 0, 0.0)}, TypeError, "origin is"),
        ({"origin": (0, 0, 0, 0), "causal_align": "upper_left"}, ValueError, "both say where queries stand"),
        ({"return_lse": 1}, TypeError, "return_lse"),
        ({"return_lse": True, "return_state": True}, ValueError, "return_lse and return_state"),
        ({"return_state": True, "sinks": np.zeros(4)}, ValueError, "sinks with return_state"),
        ({"isa": "mmx"}, ValueError, "isa is 'mmx'"),
        ({"threads": 0}, ValueError, "threads is 0"),
    ],
)  # fmt: skip
def test_wrong_calls_name_what_is_wrong(change: dict[str, Any], error: type[Exception], words: str) -> None:
    call = {
        "q": np.zeros((2, 4, 3, 8), np.float32), "k": np.zeros((2, 2, 5, 8), np.float32),
        "v": np.zeros((2, 2, 5, 8), np.float32),
    } | change  # fmt: skip
    with pytest.raises(error, match=words):
        osm.attention(call.pop("q"), call.pop("k"), call.pop("v"), **call)

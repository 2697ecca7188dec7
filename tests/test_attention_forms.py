"""Where keys lie: side by side, in caches of several lengths, in pages, in 8 bits, in parts that merge."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from attention_cases import INF, NAN, SHORT, every_isa, operands
from helpers import assert_same_bits

import online_softmax as osm
from online_softmax import reference
from online_softmax.conformance.tolerance import tolerance

#: float32 sums over some hundred terms, scores of a few units.
CLOSE = 2.0**-24 * 256


def close(made: Any, right: Any, atol: float = CLOSE, rtol: float = 0) -> None:
    for got, truth in zip(made, right, strict=True):
        assert got.shape == truth.shape
        np.testing.assert_array_equal(np.isneginf(got), np.isneginf(truth))
        finite = np.isfinite(truth)
        np.testing.assert_allclose(got[finite], truth[finite], rtol=rtol, atol=atol)


@every_isa
@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("causal", [False, True])
def test_sequences_side_by_side(isa: str, dtype: str, causal: bool) -> None:
    rng = np.random.default_rng(3)
    shapes = ((80, 4, 9), (170, 2, 9), (170, 2, 6))
    q, k, v = (rng.standard_normal(shape).astype(SHORT[dtype]) for shape in shapes)
    starts_q, starts_k = np.array([0, 1, 1, 60, 78]), np.array([0, 3, 70, 120, 168], np.int32)
    q[78:], k[168:], v[168:] = NAN, NAN, INF
    given = {"cu_seqlens_q": starts_q, "cu_seqlens_k": starts_k}
    made = osm.attention(q, k, v, causal=causal, return_lse=True, isa=isa, **given)
    right = reference.varlen_attention(q, k, v, starts_q, starts_k, causal=causal, return_lse=True)
    options = {"causal": causal, "scale": None}
    allowed = tolerance(
        "varlen_attention",
        dtype,
        {"q": q, "k": k, "v": v} | given,
        options,
        dict(zip(("o", "lse"), right, strict=True)),
    )
    assert made.output.dtype == q.dtype
    for got, truth, name in zip(made, right, ("o", "lse"), strict=True):
        finite = np.isfinite(truth)
        np.testing.assert_array_equal(got.astype(np.float64)[~finite], truth[~finite])
        error = np.where(finite, np.abs(got.astype(np.float64) - np.where(finite, truth, 0)), 0)
        assert (error <= np.where(finite, allowed[name], 0)).all()
    # Each sequence has the bits that it has alone.
    alone = osm.attention(
        *(np.moveaxis(a, 0, 1) for a in (q[1:60], k[70:120], v[70:120])), causal=causal, isa=isa
    )
    assert_same_bits(np.moveaxis(made.output[1:60], 0, 1), alone)


def test_options_of_sequences_side_by_side() -> None:
    rng = np.random.default_rng(4)
    q, k, v = (
        rng.standard_normal(shape).astype(np.float32) for shape in ((11, 4, 8), (19, 2, 8), (19, 2, 5))
    )
    starts = {"cu_seqlens_q": np.array([0, 4, 11]), "cu_seqlens_k": np.array([0, 8, 19])}
    options: dict[str, Any] = {
        "mask": rng.random((11, 19)) < 0.7, "bias": rng.standard_normal((4, 1, 19)), "softcap": 2.0,
        "window": (4, 1), "sinks": rng.standard_normal(4), "alibi_slopes": rng.random(4), "scale": 0.4,
    }  # fmt: skip
    made = osm.attention(q, k, v, return_lse=True, **starts, **options)
    close(made, reference.varlen_attention(q, k, v, *starts.values(), return_lse=True, **options))
    dropped = osm.attention(q, k, v, dropout_p=0.4, seed=8, **starts)
    keep = np.zeros((4, 11, 19), bool)  # of each sequence's own batch number, queries and keys
    mask = osm.dropout_mask((2, 4, 7, 11), 0.4, 8)
    keep[:, :4, :8], keep[:, 4:, 8:] = mask[0, :, :4, :8], mask[1]
    right = reference.varlen_attention(q, k, v, *starts.values(), dropout_p=0.4, keep=keep)
    close([dropped], [right])


def cache(
    batch: int, capacity: int, lengths: np.ndarray, dtype: str = "float32"
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(capacity)
    k, v = (rng.standard_normal((batch, 2, capacity, d)).astype(SHORT[dtype]) for d in (16, 12))
    for b, n in enumerate(lengths):
        k[b, :, n:], v[b, :, n:] = NAN, INF
    return k, v


def paged(k: np.ndarray, size: int, blocks: int) -> tuple[np.ndarray, np.ndarray]:
    """The pool and the table of a cache (batch, heads, capacity, d), blocks in any order."""
    batch, heads, capacity, d = k.shape
    each = -(-capacity // size)
    table = np.random.default_rng(blocks).permutation(blocks)[: batch * each].reshape(batch, each)
    pool = np.full((blocks, size, heads, d), NAN, k.dtype)
    for b in range(batch):
        for j in range(capacity):
            pool[table[b, j // size], j % size] = k[b, :, j]
    return pool, table


@every_isa
@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("queries", [1, 3, 20])
@pytest.mark.parametrize("causal", [False, True])
def test_caches_whole_and_paged(isa: str, dtype: str, queries: int, causal: bool) -> None:
    lengths = np.array([0, 1, 63, 200])
    k, v = cache(4, 200, lengths, dtype)
    q = np.random.default_rng(1).standard_normal((4, 8, queries, 16)).astype(SHORT[dtype])
    options: dict[str, Any] = {"seqlens_k": lengths, "causal": causal, "return_lse": True}
    made = osm.attention(q, k, v, isa=isa, **options)
    right = reference.decode_attention(q, k, v, **options)
    atol = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}[dtype]
    close(
        [a.astype(np.float64) for a in made], right, atol=atol * (256 if dtype.endswith(("32", "64")) else 4)
    )
    for size in (1, 16, 48):
        pools = [paged(a, size, 4 * 200 // size + 20) for a in (k, v)]
        table = pools[0][1]
        assert_same_bits(table, pools[1][1])
        other = osm.attention(q, pools[0][0], pools[1][0], block_table=table, isa=isa, **options)
        assert_same_bits(other.output, made.output)
        assert_same_bits(other.lse, made.lse)


def test_pages_with_queries_side_by_side() -> None:
    lengths = np.array([5, 0, 33])
    k, v = cache(3, 40, lengths)
    (pool_k, table), (pool_v, _) = paged(k, 8, 30), paged(v, 8, 30)
    q = np.random.default_rng(2).standard_normal((6, 4, 16)).astype(np.float32)
    starts = np.array([0, 2, 3, 6])
    made = osm.attention(
        q,
        pool_k,
        pool_v,
        cu_seqlens_q=starts,
        block_table=table,
        seqlens_k=lengths,
        causal=True,
        return_lse=True,
    )
    for b in range(3):
        rows = slice(*starts[b : b + 2])
        alone = osm.attention(
            np.moveaxis(q[rows], 0, 1),
            k[b, :, : lengths[b]],
            v[b, :, : lengths[b]],
            causal=True,
            return_lse=True,
        )
        assert_same_bits(np.moveaxis(made.output[rows], 0, 1), alone.output)
        assert_same_bits(made.lse[rows].T, alone.lse)


@every_isa
@pytest.mark.parametrize("stored", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.int8])
@pytest.mark.parametrize("queries", [1, 60])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
def test_keys_in_8_bits(isa: str, stored: Any, queries: int, dtype: str) -> None:
    rng = np.random.default_rng(6)
    q = rng.standard_normal((2, 4, queries, 16)).astype(SHORT[dtype])
    k, v = (np.round(rng.standard_normal((2, 2, 90, 16)) * 30).astype(stored) for _ in range(2))
    k_scale, v_scale = np.array([0.03, 0.05]), np.array([[0.1, 0.2], [0.3, 0.4]])
    made = osm.attention(q, k, v, k_scale=k_scale, v_scale=v_scale, isa=isa)
    wide_k = k.astype(np.float64) * k_scale[:, None, None]
    wide_v = v.astype(np.float64) * v_scale[..., None, None]
    right = reference.attention(q.astype(np.float64), wide_k, wide_v)
    assert made.dtype == q.dtype
    close([made.astype(np.float64)], [right], atol=12 * CLOSE, rtol=2.0**-8 if dtype == "bfloat16" else 0)
    as_such = [a.astype(SHORT[dtype]) for a in (k, v)]
    assert_same_bits(
        osm.attention(q, k, v, k_scale=1, v_scale=1, isa=isa), osm.attention(q, *as_such, isa=isa)
    )


@every_isa
@pytest.mark.parametrize("stored", [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, np.int8])
def test_every_value_of_8_bits_is_read_right(isa: str, stored: Any) -> None:
    v = np.arange(256, dtype=np.uint8).view(stored).reshape(256, 1, 1)
    q, k = np.zeros((256, 1, 1), np.float32), np.zeros((256, 1, 1), stored)
    made = osm.attention(q, k, v, k_scale=1.0, v_scale=1.0, isa=isa)
    np.testing.assert_array_equal(made.ravel(), v.astype(np.float32).ravel())


@every_isa
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_parts_of_the_keys_merge_to_the_whole(isa: str, dtype: str) -> None:
    q, k, v = operands(4, 2, 7, 60, 8, 5, dtype)
    sinks = np.array([0.5, -1.0, 2.0, -INF])
    whole = osm.attention(q, k, v, sinks=sinks, return_lse=True, isa=isa)
    rng = np.random.default_rng(0)
    for cuts in ([30], [1, 2, 59], [10, 10, 20], list(range(1, 60))):
        edges = [0, *cuts, 60]
        states = [
            osm.attention(q, k[:, :, a:b], v[:, :, a:b], return_state=True, isa=isa)
            for a, b in itertools.pairwise(edges)
        ]
        order = rng.permutation(len(states))
        merged = osm.AttentionState.merge_many([states[i] for i in order])
        assert merged.dtype == (np.float64 if dtype == "float64" else np.float32)
        final = merged.with_sinks(sinks, axis=1)
        # The merge's own bound is a few roundings for each state; the parts are made in float32 or float64.
        atol = 2.0**-53 * 512 if dtype == "float64" else CLOSE
        np.testing.assert_allclose(final.lse, whole.lse, rtol=0, atol=atol)
        rounded = 2.0**-8 * 2 if dtype == "bfloat16" else 0
        np.testing.assert_allclose(final.o, whole.output.astype(np.float64), rtol=rounded, atol=atol)


def test_a_shared_prefix_is_read_once() -> None:
    q, k, v = operands(4, 2, 1, 80, 8, 8, batch=3)
    k[1:, :, :50], v[1:, :, :50] = k[:1, :, :50], v[:1, :, :50]
    whole = osm.attention(q, k, v, return_lse=True)
    # All queries against the prefix as queries of one sequence, each against its own suffix.
    together = np.moveaxis(q[:, :, 0], 0, 1)[None]
    prefix = osm.attention(together, k[:1, :, :50], v[:1, :, :50], return_state=True)
    prefix = osm.AttentionState(np.moveaxis(prefix.o[0], 1, 0)[:, :, None], prefix.lse[0].T[:, :, None])
    merged = prefix.merge(osm.attention(q, k[:, :, 50:], v[:, :, 50:], return_state=True))
    close((merged.o, merged.lse), (whole.output, whole.lse))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"cu_seqlens_q": [0, 3]}, ValueError, "cu_seqlens_q is given without cu_seqlens_k"),
        ({"cu_seqlens_k": [0, 3]}, ValueError, "cu_seqlens_k is given without cu_seqlens_q"),
        (
            {"cu_seqlens_q": [0, 3], "cu_seqlens_k": [0, 3], "seqlens_k": [3]},
            ValueError,
            "both say where keys lie",
        ),
        (
            {"cu_seqlens_q": [1, 3], "cu_seqlens_k": [0, 3]},
            ValueError,
            "cu_seqlens_q starts with 1: 0 would do",
        ),
        ({"cu_seqlens_q": [], "cu_seqlens_k": [0]}, TypeError, "cu_seqlens_q is float64: integers"),
        (
            {"cu_seqlens_q": [0, 3, 2], "cu_seqlens_k": [0, 3, 3]},
            ValueError,
            "cu_seqlens_q falls from 3 to 2 at 2",
        ),
        ({"cu_seqlens_q": [0, 9], "cu_seqlens_k": [0, 3]}, ValueError, "cu_seqlens_q ends with 9: up to 4"),
        ({"cu_seqlens_q": [0, 3], "cu_seqlens_k": [0, 9]}, ValueError, "cu_seqlens_k ends with 9: up to 4"),
        ({"cu_seqlens_q": [0, 3], "cu_seqlens_k": [0, 2, 3]}, ValueError, "cu_seqlens_k has 3 entries: 2"),
        ({"cu_seqlens_q": [[0, 3]], "cu_seqlens_k": [0, 3]}, ValueError, r"cu_seqlens_q has shape \(1, 2\)"),
        (
            {"cu_seqlens_q": [0.0, 3.0], "cu_seqlens_k": [0, 3]},
            TypeError,
            "cu_seqlens_q is float64: integers",
        ),
    ],
)
def test_wrong_sequences_are_named(change: dict[str, Any], error: type[Exception], words: str) -> None:
    arrays = [np.zeros((4, 2, 8), np.float32) for _ in range(3)]
    with pytest.raises(error, match=words):
        osm.attention(*arrays, **change)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({}, ValueError, "seqlens_k is not given"),
        ({"seqlens_k": [3, 4, 5]}, ValueError, r"seqlens_k has shape \(3,\): \(2,\)"),
        ({"seqlens_k": [3, 13]}, ValueError, r"seqlens_k\[1\] is 13: 0 to 12"),
        ({"seqlens_k": [-1, 3]}, ValueError, r"seqlens_k\[0\] is -1"),
        ({"seqlens_k": [3.0, 3.0]}, TypeError, "seqlens_k is float64: integers"),
        ({"seqlens_k": [3, 9]}, ValueError, r"block_table\[1, 2\] is 6: 0 to 5"),
        ({"seqlens_k": [12, 1]}, ValueError, r"block_table\[0, 1\] is -1"),
        ({"seqlens_k": [1, 1], "block_table": [[0, 1]]}, ValueError, "block_table has 1 rows: 2"),
        ({"seqlens_k": [1, 1], "block_table": [0, 1]}, ValueError, r"block_table has shape \(2,\)"),
        ({"seqlens_k": [1, 1], "k": np.zeros((6, 4, 2))}, ValueError, "k has 3 dimensions: 4"),
        ({"seqlens_k": [1, 1], "v": np.zeros((5, 4, 2, 8))}, ValueError, "v has 5 blocks and k 6"),
        (
            {"seqlens_k": [1, 1], "k_scale": np.ones(3)},
            ValueError,
            r"k_scale has shape \(3,\): \(\), \(2,\) or \(2, 2\)",
        ),
        ({"seqlens_k": [1, 1], "v_scale": INF}, ValueError, "v_scale holds inf"),
        ({"seqlens_k": [1, 1], "k_scale": [0.0, 1.0]}, ValueError, "k_scale holds 0.0: positive"),
        (
            {"seqlens_k": [1, 1], "k": np.zeros((6, 2, 4, 8), np.int8), "v": np.zeros((6, 2, 4, 8), np.int8)},
            ValueError,
            "k_scale is not given: int8",
        ),
        (
            {"seqlens_k": [1, 1], "cu_seqlens_q": [0, 1], "mask": True},
            ValueError,
            "mask with cu_seqlens_q and block",
        ),
    ],
)
def test_wrong_tables_are_named(change: dict[str, Any], error: type[Exception], words: str) -> None:
    call: dict[str, Any] = {
        "q": np.zeros((2, 4, 1, 8)), "k": np.zeros((6, 4, 2, 8)), "v": np.zeros((6, 4, 2, 8)),
        "block_table": [[0, -1, 3], [5, 2, 6]],
    } | change  # fmt: skip
    with pytest.raises(error, match=words):
        osm.attention(call.pop("q"), call.pop("k"), call.pop("v"), **call)

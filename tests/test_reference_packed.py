"""Attention over sequences side by side and over caches, and merges of partial results: each against
`reference.attention` of one sequence, or of all keys at once."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from online_softmax import reference

INF, NAN = np.inf, np.nan
U = 2.0**-53
B, HQ, HK, LQ, LK, D, DV = 2, 6, 2, 5, 9, 6, 3


def noise(*shape: int, seed: int = 0, scale: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape) * scale


SINKS = noise(HQ, seed=6)
OPTIONS: dict[str, dict[str, object]] = {
    "": {},
    "causal": {"causal": True},
    "window": {"window": (2, 1)},
    "softcap": {"softcap": 0.8},
    "sinks": {"sinks": SINKS},
    "alibi": {"alibi_slopes": np.linspace(0.1, 0.6, HQ)},
    "scale": {"scale": 0.9},
}


def packed(lengths_q: list[int], lengths_k: list[int], spare: int = 0):
    """(q, k, v, cu_seqlens_q, cu_seqlens_k), with `spare` rows of NaN past the last sequence."""
    arrays = []
    for seed, (lengths, heads, features) in enumerate(
        ((lengths_q, HQ, D), (lengths_k, HK, D), (lengths_k, HK, DV))
    ):
        array = noise(sum(lengths) + spare, heads, features, seed=seed)
        array[sum(lengths) :] = NAN
        arrays.append(array)
    return (*arrays, np.cumsum([0, *lengths_q]), np.cumsum([0, *lengths_k], dtype=np.int32))


@pytest.mark.parametrize("name", [*OPTIONS, "pairs"])
def test_sequences_side_by_side(name: str) -> None:
    lengths_q, lengths_k = [3, 0, 4, 1, 2], [5, 2, 4, 0, 2]
    q, k, v, cu_q, cu_k = packed(lengths_q, lengths_k, spare=2)
    pairs = {
        "mask": np.random.default_rng(3).random((HQ, len(q), len(k))) < 0.7,
        "bias": noise(len(q), len(k), seed=4),
    }
    options = pairs if name == "pairs" else OPTIONS[name]
    do, dlse = noise(len(q), HQ, DV, seed=8), noise(len(q), HQ, seed=9)
    do[10:], dlse[10:] = NAN, NAN
    out, lse = reference.varlen_attention(q, k, v, cu_q, cu_k, return_lse=True, **options)
    made = reference.varlen_attention_vjp(q, k, v, cu_q, cu_k, do, dlse=dlse, **options)
    sinks, bias = np.zeros(HQ), np.zeros((len(q), len(k)))
    for i in range(5):
        rows, keys = slice(*cu_q[i : i + 2]), slice(*cu_k[i : i + 2])
        part = [a[s].swapaxes(0, 1) for a, s in ((q, rows), (k, keys), (v, keys))]
        own = {n: a[..., rows, keys] for n, a in pairs.items()} if name == "pairs" else options
        one, one_lse = reference.attention(*part, return_lse=True, **own)
        np.testing.assert_array_equal(out[rows], one.swapaxes(0, 1))
        np.testing.assert_array_equal(lse[rows], one_lse.T)
        gradients = reference.attention_vjp(*part, do[rows].swapaxes(0, 1), dlse=dlse[rows].T, **own)
        for a, b, s in zip(made[:3], gradients[:3], (rows, keys, keys), strict=True):
            np.testing.assert_array_equal(a[s], b.swapaxes(0, 1))
        sinks += 0 if gradients.sinks is None else gradients.sinks
        if gradients.bias is not None:
            bias[rows, keys] = gradients.bias
    assert not out[10:].any()
    assert (lse[10:] == -INF).all()
    assert not made.q[10:].any()
    assert not made.k[13:].any()
    if name == "sinks":
        np.testing.assert_allclose(made.sinks, sinks, rtol=0, atol=8 * U * np.abs(sinks).max())
    assert (made.bias is None) == (name != "pairs")
    if name == "pairs":
        np.testing.assert_array_equal(made.bias, bias)


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("lq", [1, 3])
def test_keys_in_a_cache(lq: int, paged: bool) -> None:
    size, lengths = 4, [0, 7, 12]
    q = noise(3, HQ, lq, D)
    k, v = noise(3, HK, 12, D, seed=1), noise(3, HK, 12, DV, seed=2)
    mask = np.random.default_rng(3).random((3, 1, 1, 12)) < 0.8
    bias = noise(HQ, lq, 12, seed=4)
    for b, n in enumerate(lengths):
        k[b, :, n:], v[b, :, n:] = NAN, NAN
    caches, table = (k, v), None
    if paged:
        # Places of the blocks in no order, the unused ones of the table nowhere at all.
        table = np.array([[-1, 99, -1], [7, 2, -7], [0, 5, 3]])
        caches = tuple(np.full((8, size, HK, a.shape[-1]), NAN) for a in (k, v))
        for b, n in enumerate(lengths):
            for j in range(-(-n // size)):
                for cache, a in zip(caches, (k, v), strict=True):
                    cache[table[b, j]] = a[b, :, j * size : (j + 1) * size].swapaxes(0, 1)
    for options in ({}, {"causal": True, "softcap": 2.0}, {"window": (4, 0), "sinks": SINKS}):
        out, lse = reference.decode_attention(
            q, *caches, block_table=table, seqlens_k=lengths, mask=mask, bias=bias, return_lse=True, **options
        )
        for b, n in enumerate(lengths):
            one, one_lse = reference.attention(
                q[b],
                k[b, :, :n],
                v[b, :, :n],
                mask=mask[b, ..., :n],
                bias=bias[..., :n],
                return_lse=True,
                **options,
            )
            np.testing.assert_array_equal(out[b], one)
            np.testing.assert_array_equal(lse[b], one_lse)
    whole = reference.decode_attention(q[2:], k[2:], v[2:])
    np.testing.assert_array_equal(whole, reference.attention(q[2:], k[2:], v[2:]))


def test_splits_merge_to_the_whole() -> None:
    q, k, v = (
        noise(B, h, n, d, seed=i) for i, (h, n, d) in enumerate(((HQ, LQ, D), (HK, LK, D), (HK, LK, DV)))
    )
    out, lse = reference.attention(q, k, v, sinks=SINKS, return_lse=True)
    for cuts in ([3], [1, 1, 5], [0, 9], [2, 4, 6, 8]):
        parts = [
            reference.attention(q, k[:, :, a:b], v[:, :, a:b], return_lse=True)
            for a, b in itertools.pairwise([0, *cuts, LK])
        ]
        merged = np.zeros_like(out), np.full(lse.shape, -INF)
        for part in parts:
            merged = reference.merge_attention(*merged, *part)
        sinks = np.broadcast_to(SINKS[:, None], lse.shape)
        merged = reference.merge_attention(*merged, np.zeros_like(out), sinks)
        # Each merge rounds its results to float64: four roundings of numbers of size 1 to 4.
        for a, b in zip(merged, (out, lse), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=4 * 6 * U * 4)


def test_merges_of_attention_at_the_edges() -> None:
    o, lse = noise(4, 3), np.array([0.5, -3.0, 1e4, -1e4])
    nothing = np.full((4, 3), NAN), np.full(4, -INF)
    for got in (reference.merge_attention(o, lse, *nothing), reference.merge_attention(*nothing, o, lse)):
        np.testing.assert_array_equal(got[0], o)
        np.testing.assert_array_equal(got[1], lse)
    out, total = reference.merge_attention(*nothing, *nothing)
    np.testing.assert_array_equal(out, np.zeros((4, 3)))
    np.testing.assert_array_equal(total, [-INF] * 4)
    for bad in (INF, NAN):
        out, total = reference.merge_attention([1.0], 0.0, [2.0], bad)
        np.testing.assert_array_equal((out[0], total), (NAN, bad))
    with pytest.raises(ValueError, match="lse_b has shape"):
        reference.merge_attention(o, lse, o, lse[:3])
    with pytest.raises(ValueError, match=r"o_a has shape .* o_b has shape"):
        reference.merge_attention(o, lse, o[:, :2], lse)


def test_merges_of_states() -> None:
    x = np.array(
        [
            [1.0, -2.0, 3.0, 3.0],
            [-INF, -INF, 0.0, 1.0],
            [INF, 0.0, INF, INF],
            [0.0, 1.0, NAN, 0.0],
            [-INF] * 4,
            [INF, 1.0, 2.0, 3.0],
        ]
    )
    for cut in range(5):
        m, s = reference.merge_states(reference.state(x[:, :cut]), reference.state(x[:, cut:]))
        whole = reference.state(x)
        np.testing.assert_array_equal(m, whole[0])
        # The parts were rounded to float64, and so is the whole.
        np.testing.assert_allclose(s, whole[1], rtol=4 * U, atol=0)
    assert reference.merge_states((-INF, 0), (-INF, 0)) == (-INF, 0)
    with pytest.raises(ValueError, match="the s of b has shape"):
        reference.merge_states(([0.0, 1.0], 1.0), (0.0, [1.0, 2.0, 3.0]))


Q, K, V = (noise(B, h, n, d) for h, n, d in ((HQ, LQ, D), (HK, LK, D), (HK, LK, DV)))
P = packed([2, 3], [4, 5])


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda: reference.varlen_attention(Q, *P[1:]), ValueError, "q has shape"),
        (lambda: reference.varlen_attention(*P[:3], [0, 2.5], P[4]), TypeError, "cu_seqlens_q holds"),
        (lambda: reference.varlen_attention(*P[:3], [0, 3, 2], P[4]), ValueError, "cu_seqlens_q is"),
        (lambda: reference.varlen_attention(*P[:3], [1, 2, 5], P[4]), ValueError, "cu_seqlens_q is"),
        (lambda: reference.varlen_attention(*P[:4], [0, 4, 10]), ValueError, "cu_seqlens_k is"),
        (lambda: reference.varlen_attention(*P[:4], [0, 9]), ValueError, "cu_seqlens_k has 2 entries"),
        (lambda: reference.varlen_attention(*P[:3], P[3][None], P[4]), ValueError, "cu_seqlens_q has shape"),
        (lambda: reference.varlen_attention(*P[:2], P[2][:-1], *P[3:]), ValueError, "v has shape"),
        (lambda: reference.decode_attention(Q[0], K, V), ValueError, "q has shape"),
        (lambda: reference.decode_attention(Q, K, V[:, :, :3]), ValueError, "v_cache has shape"),
        (lambda: reference.decode_attention(Q, K[:1], V[:1]), ValueError, "k_cache has shape"),
        (lambda: reference.decode_attention(Q, K, V, seqlens_k=[1, 10]), ValueError, r"seqlens_k\[1\] = 10"),
        (lambda: reference.decode_attention(Q, K, V, seqlens_k=[1]), ValueError, "seqlens_k has shape"),
        (lambda: reference.decode_attention(Q, K, V, seqlens_k=[1, 2.0]), TypeError, "seqlens_k holds"),
        (
            lambda: reference.decode_attention(
                Q, *(a.swapaxes(1, 2) for a in (K, V)), block_table=[[0], [2]]
            ),
            ValueError,
            r"block_table\[1, 0\] = 2",
        ),
        (
            lambda: reference.decode_attention(Q, *(a.swapaxes(1, 2) for a in (K, V)), block_table=[[0]]),
            ValueError,
            "block_table has shape",
        ),
    ],
)
def test_wrong_calls_name_the_argument(call: object, error: type[Exception], names: str) -> None:
    with pytest.raises(error, match=names):
        call()

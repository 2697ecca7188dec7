"""Faults that users of other libraries reported against attention and merges of it, each with the right
value, which the reference has to give.

The ids (B...) name the reports, which are kept with the project's cases. `weights` shows the softmax itself:
scores are given as keys of one feature, and every value is a unit vector.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.nn.functional as F

from online_softmax import reference

INF, NAN = np.inf, np.nan
U = 2.0**-53
LOWEST = float(np.finfo(np.float32).min)
HALVES = [1 / (1 + np.exp(-1)), 1 / (1 + np.exp(1))]
LN2 = np.log(2.0)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def weights(scores: list[float], queries: int = 1, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    """(weights, lse) of queries that all have these scores."""
    n = len(scores)
    q, k = np.ones((queries, 1)), np.array(scores, np.float64).reshape(n, 1)
    return reference.attention(q, k, np.eye(n), scale=1.0, return_lse=True, **options)


def near(got: object, expected: object) -> None:
    """The four roundings of float64 in what is expected: an exponential, a sum, a division, a logarithm."""
    np.testing.assert_allclose(got, expected, rtol=4 * U, atol=0)


@pytest.mark.parametrize(
    ("scores", "options", "expected", "lse"),
    [
        pytest.param([0.0, 0.0], {"mask": [True, False]}, [1, 0], 0.0, id="B034"),
        pytest.param([1.0, 2.0], {"mask": [False, False]}, [0, 0], -INF, id="B037 B042"),
        pytest.param([-1.0, -2.0], {"bias": [LOWEST, LOWEST]}, [0.5, 0.5], LOWEST, id="B039 B040"),
        pytest.param([1.0, 2.0], {"bias": [-INF, -INF]}, [0, 0], -INF, id="B043 B047"),
        pytest.param([-20000.0, -20001.0], {}, HALVES, -20000 - np.log(HALVES[0]), id="B044"),
        pytest.param([0.0, 0.0], {"bias": [0.0, -INF]}, [1, 0], 0.0, id="B047 one left"),
        pytest.param([1.0, 2.0, 3.0], {"mask": np.zeros(3, bool)}, [0, 0, 0], -INF, id="B048"),
        pytest.param([1.0, 2.0], {"mask": [True, False], "bias": [LOWEST] * 2}, [1, 0], LOWEST, id="B049"),
        pytest.param(
            [-1.0, 0.0, 1.0],
            {"mask": [True, False, True]},
            [1 / (1 + np.exp(2)), 0, 1 / (1 + np.exp(-2))],
            np.log(np.exp(-1) + np.e),
            id="B054",
        ),
        pytest.param([-2e4, -2e4], {}, [0.5, 0.5], -2e4 + LN2, id="B054 all far below"),
        pytest.param([0.0, 0.0], {}, [0.5, 0.5], LN2, id="B059 B060"),
        pytest.param([-524288.0], {}, [1], -524288.0, id="B073"),
        pytest.param([-20000.0, 0.0], {"mask": [True, False]}, [1, 0], -20000.0, id="B074"),
        pytest.param([1.0, 2.0], {"bias": np.array([0.0, -INF], np.float16)}, [1, 0], 1.0, id="B077"),
        pytest.param([1.0, 2.0], {"bias": np.array([-INF, -INF], np.float16)}, [0, 0], -INF, id="B078"),
        pytest.param([100.0, 101.0], {}, HALVES[::-1], 101 - np.log(HALVES[0]), id="B153"),
        pytest.param(
            [0.0, 100.0],
            {"softcap": 50.0},
            [1 / (1 + np.exp(50 * np.tanh(2))), 1.0],
            50 * np.tanh(2),
            id="B228",
        ),
    ],
)
def test_one_query(scores: list[float], options: dict[str, Any], expected: list[float], lse: float) -> None:
    got, got_lse = weights(scores, **options)
    # tanh and its multiple of 50 are rounded before the exponential sees them.
    np.testing.assert_allclose(got[0], expected, rtol=(4 + 100 * ("softcap" in options)) * U, atol=0)
    near(got_lse[0], lse)


def test_b034_nan_in_a_masked_key_and_value() -> None:
    q, k, v = noise(2, 4), noise(2, 4, seed=1), noise(2, 3, seed=2)
    k[1], v[1] = NAN, NAN
    np.testing.assert_array_equal(reference.attention(q, k, v, mask=[True, False]), v[[0, 0]])


def test_b035_padding_past_the_declared_length() -> None:
    q, k, v = (noise(24, 1, 4, seed=i).astype(ml_dtypes.bfloat16) for i in range(3))
    for a in (q, k, v):
        a[21:] = NAN
    got = reference.varlen_attention(q, k, v, [0, 21], [0, 21])
    np.testing.assert_array_equal(
        got[:21], reference.varlen_attention(q[:21], k[:21], v[:21], [0, 21], [0, 21])
    )
    np.testing.assert_array_equal(got[21:], np.zeros((3, 1, 4)))


def test_b036_a_padding_row_through_two_layers() -> None:
    x = noise(3, 4)
    real = np.array([True, True, False])
    mask = real[:, None] & real
    once = reference.attention(x, x, x, mask=mask)
    twice = reference.attention(once, once, once, mask=mask)
    first = reference.attention(x[:2], x[:2], x[:2])
    np.testing.assert_array_equal(twice[:2], reference.attention(first, first, first))
    np.testing.assert_array_equal(twice[2], np.zeros(4))


def test_b045_everything_at_once_leaves_the_first_row_nothing() -> None:
    mask = np.ones((4, 4), bool)
    mask[0] = [False, True, True, True]
    out, lse = weights([1.0, 2.0, 3.0, 4.0], 4, causal=True, mask=mask, softcap=30.0, bias=noise(4, 4))
    assert not out[0].any()
    assert lse[0] == -INF
    near(out[1:].sum(axis=-1), np.ones(3))


@pytest.mark.parametrize("first", [0, 1, 2])
def test_b051_empty_rows_wherever_they_lie(first: int) -> None:
    q, k, v = (noise(16, 512, seed=i).astype(np.float16) for i in range(3))
    bias = np.zeros((16, 16), np.float16)
    bias[first : first + 14] = -INF
    out, lse = reference.attention(q, k, v, bias=bias, return_lse=True)
    empty = np.isin(np.arange(16), np.arange(first, first + 14))
    assert not out[empty].any()
    assert (lse[empty] == -INF).all()
    np.testing.assert_array_equal(out[~empty], reference.attention(q[~empty], k, v))


def test_b052_a_first_block_without_a_key() -> None:
    q, k, v = noise(2, 4), noise(8, 4, seed=1), noise(8, 3, seed=2)
    live = np.arange(8) >= 4
    whole = reference.attention(q, k, v, mask=live, return_lse=True)
    alone = reference.attention(q, k[4:], v[4:], return_lse=True)
    parts = [
        reference.attention(q, k[s], v[s], mask=live[s], return_lse=True) for s in (slice(4), slice(4, 8))
    ]
    for got, expected, merged in zip(
        whole, alone, reference.merge_attention(*parts[0], *parts[1]), strict=True
    ):
        np.testing.assert_array_equal(got, expected)
        np.testing.assert_array_equal(merged, expected)


@pytest.mark.parametrize(
    "lengths",
    [pytest.param([0, 2], id="B053"), pytest.param([1, 3], id="B063"), pytest.param([2, 5], id="B064")],
)
def test_ragged_batches(lengths: list[int]) -> None:
    total, ends = sum(lengths), np.cumsum([0, *lengths])
    q, k, v = (noise(total, 1, 4, seed=i) for i in range(3))
    out, lse = reference.varlen_attention(q, k, v, ends, ends, return_lse=True)
    assert lse.shape == out.shape[:-1] == (total, 1)
    for i in range(2):
        s = slice(*ends[i : i + 2])
        one, one_lse = reference.attention(q[s, 0], k[s, 0], v[s, 0], return_lse=True)
        np.testing.assert_array_equal(out[s, 0], one)
        np.testing.assert_array_equal(lse[s, 0], one_lse)


def test_b055_b065_folds_of_empty_states() -> None:
    nothing = np.zeros((1, 4), np.float16), np.array([-INF], np.float32)
    some = noise(1, 4), np.array([0.7])
    empty, live = nothing, some
    for _ in range(5):
        empty = reference.merge_attention(*empty, *nothing)
        live = reference.merge_attention(*nothing, *live)
        np.testing.assert_array_equal(empty[0], nothing[0])
        assert empty[1] == -INF
        np.testing.assert_array_equal(live[0], some[0])
        assert live[1] == 0.7


def test_b058_a_split_of_three_keys_and_one() -> None:
    left = reference.attention([[0.0]], np.zeros((3, 1)), [[1.0]] * 3, return_lse=True)
    right = reference.attention([[0.0]], [[0.0]], [[0.0]], return_lse=True)
    out, lse = reference.merge_attention(*left, *right)
    near(out, [[0.75]])
    near(lse, [np.log(4)])


def test_b066_a_sink_once_whatever_the_splits() -> None:
    live = [False, False, True, True]
    whole, lse = weights([0.0] * 4, mask=live, sinks=[0.0])
    near(whole, [[0, 0, 1 / 3, 1 / 3]])
    near(lse, [np.log(3)])
    merged = np.zeros((1, 4)), np.array([-INF])
    for s in (slice(0, 2), slice(2, 4)):
        part = reference.attention([[0.0]], np.zeros((2, 1)), np.eye(4)[s], mask=live[s], return_lse=True)
        merged = reference.merge_attention(*merged, *part)
    out, total = reference.merge_attention(*merged, np.zeros((1, 4)), [0.0])
    near(out, whole)
    near(total, lse)


def test_b066_b067_no_key_at_all() -> None:
    for sink in (0.0, 0.5):
        out, lse = reference.attention(
            [[1.0]], np.zeros((0, 1)), np.zeros((0, 2)), sinks=[sink], return_lse=True
        )
        np.testing.assert_array_equal(out, [[0, 0]])
        np.testing.assert_array_equal(lse, [sink])


def test_b067_b068_a_sink_far_above_the_scores() -> None:
    got, lse = weights([0.0, 0.0], sinks=[100.0])
    near(got, [[np.exp(-100)] * 2])
    near(lse, [100.0])
    got, lse = weights([-200.0, -200.0], sinks=[0.0])
    near(got, [[np.exp(-200)] * 2])
    near(lse, [2 * np.exp(-200)])


def test_b069_the_sink_as_a_factor() -> None:
    out, _ = reference.merge_attention([1.0], -30.0, [0.0], 0.0)
    near(out, [1 / (1 + np.exp(30))])


def test_b073_b074_no_finite_stand_in_for_minus_infinity() -> None:
    out, lse = reference.attention([[1.0]], [[-524288.0]], [[3.0]], scale=0.125, return_lse=True)
    assert (out[0, 0], lse[0]) == (3, -65536)
    out = reference.attention([[1.0]], [[-20000.0], [0.0]], [[1.0], [100.0]], mask=[True, False], scale=1.0)
    assert out[0, 0] == 1


def test_b096_no_batch_and_no_key() -> None:
    empty = np.zeros((0, 2, 3, 4), np.float16)
    out, lse = reference.attention(empty, empty, empty, return_lse=True)
    assert (out.shape, lse.shape) == ((0, 2, 3, 4), (0, 2, 3))
    keys = np.zeros((1, 2, 0, 4), np.float16)
    out, lse = reference.attention(np.ones((1, 2, 3, 4), np.float16), keys, keys, return_lse=True)
    np.testing.assert_array_equal(out, np.zeros((1, 2, 3, 4)))
    np.testing.assert_array_equal(lse, np.full((1, 2, 3), -INF))


def test_b121_keys_broadcast_over_heads() -> None:
    q = noise(1, 8, 3, 16).astype(ml_dtypes.bfloat16)
    k, v = (noise(1, 1, 33, 16, seed=i).astype(ml_dtypes.bfloat16) for i in (1, 2))
    mask = np.random.default_rng(3).random((3, 33)) < 0.5
    wide = [np.broadcast_to(a, (1, 8, 33, 16)) for a in (k, v)]
    got = reference.attention(q, *wide, mask=mask)
    np.testing.assert_array_equal(got, reference.attention(q, *(a.copy() for a in wide), mask=mask))
    np.testing.assert_array_equal(got, reference.attention(q, k, v, mask=mask))


@pytest.mark.parametrize(
    ("heads", "length", "width", "biased"),
    [
        pytest.param(1, 4, 128, False, id="B207"),
        pytest.param(1, 4, 72, False, id="B208"),
        pytest.param(1, 192, 8, False, id="B209"),
        pytest.param(2, 65, 8, False, id="B211"),
        pytest.param(1, 300, 4, False, id="B212"),
        pytest.param(1, 100, 4, False, id="B212 less than a block"),
        pytest.param(2, 43, 8, True, id="B214"),
    ],
)
def test_sizes_that_divide_nothing(heads: int, length: int, width: int, biased: bool) -> None:
    arrays = [noise(1, heads, length, width, seed=i) for i in range(3)]
    bias = noise(length, length, seed=4) if biased else None
    leaves = [torch.from_numpy(a).requires_grad_() for a in arrays]
    out = F.scaled_dot_product_attention(*leaves, attn_mask=None if bias is None else torch.from_numpy(bias))
    # torch in float64: sums over the keys and the features of terms of size up to 10, a few roundings each.
    allowed = 4 * (length + width) * 10 * U
    np.testing.assert_allclose(reference.attention(*arrays, bias=bias), out.detach(), rtol=0, atol=allowed)
    do = noise(*out.shape, seed=5)
    wanted = torch.autograd.grad(out, leaves, torch.from_numpy(do))
    for a, b in zip(reference.attention_vjp(*arrays, do, bias=bias), wanted, strict=False):
        np.testing.assert_allclose(a, b, rtol=0, atol=allowed)


def seen(queries: int, keys: int, **options: Any) -> list[list[int]]:
    """The keys that each query sees."""
    out, lse = weights([0.0] * keys, queries, **options)
    counts = (out > 0).sum(axis=-1)
    with np.errstate(divide="ignore"):
        near(lse, np.log(counts))
    return [np.flatnonzero(row).tolist() for row in out]


def test_b215_fewer_queries_than_keys() -> None:
    assert seen(2, 5, causal=True) == [[0, 1, 2, 3], [0, 1, 2, 3, 4]]
    assert seen(2, 5, causal=True, causal_align="upper_left") == [[0], [0, 1]]


def test_b216_more_queries_than_keys() -> None:
    assert seen(4, 2, causal=True) == [[], [], [0], [0, 1]]
    assert seen(4, 2, causal=True, causal_align="upper_left") == [[0], [0, 1], [0, 1], [0, 1]]


def test_b217_a_cache_of_six() -> None:
    assert seen(2, 6, causal=True, causal_align="lower_right") == [[0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]]


def test_b218_b220_a_window_of_inclusive_distances() -> None:
    assert seen(6, 6, causal=True, window=(1, None))[5] == [4, 5]
    assert seen(6, 6, causal=True, window=(2, 0))[5] == [3, 4, 5]
    assert seen(6, 6, window=(1, 1))[2] == [1, 2, 3]


@pytest.mark.parametrize(
    ("heads", "kv_heads"),
    [
        pytest.param(16, 2, id="B223"),
        pytest.param(12, 12, id="B224 12"),
        pytest.param(32, 8, id="B224 32"),
        pytest.param(28, 4, id="B224 28"),
        pytest.param(48, 2, id="B226"),
        pytest.param(4, 2, id="B227"),
    ],
)
def test_heads_of_a_group_are_neighbours(heads: int, kv_heads: int) -> None:
    values = np.arange(kv_heads, dtype=float).reshape(kv_heads, 1, 1)
    out = reference.attention(np.zeros((heads, 1, 1)), np.zeros((kv_heads, 1, 1)), values)
    assert out[:, 0, 0].tolist() == [h // (heads // kv_heads) for h in range(heads)]


def test_b225_heads_that_do_not_divide() -> None:
    with pytest.raises(ValueError, match="k has 2 heads for 3 of q"):
        reference.attention(np.zeros((3, 1, 1)), np.zeros((2, 1, 1)), np.zeros((2, 1, 1)))


def test_b229_every_cap_is_applied() -> None:
    # 0 stands for no cap in some libraries; None does here, and 0 is refused.
    caps = (None, 5.0, 50.0)
    shares = [float(weights([0.0, 10.0], softcap=cap)[0][0, 0]) for cap in caps]
    near(shares[0], 1 / (1 + np.exp(10)))
    for cap, share in zip(caps[1:], shares[1:], strict=True):
        # The score's rounding, of a size of 10, goes through the exponential.
        np.testing.assert_allclose(share, 1 / (1 + np.exp(cap * np.tanh(10 / cap))), rtol=40 * U)
    with pytest.raises(ValueError, match="softcap=0"):
        weights([0.0, 10.0], softcap=0)


def test_b232_a_mask_over_a_long_sequence() -> None:
    q, k, v = noise(2, 8), noise(4096, 8, seed=1), noise(4096, 2, seed=2)
    mask = np.random.default_rng(3).random((2, 4096)) < 0.5
    got = reference.attention(q, k, v, mask=mask)
    for i in range(2):
        np.testing.assert_array_equal(
            got[i : i + 1], reference.attention(q[i : i + 1], k[mask[i]], v[mask[i]])
        )


def test_b236_b237_two_runs_have_the_same_bits() -> None:
    q, k, v, do = (noise(1, 4, 9, 5, seed=i) for i in range(4))
    first, second = (reference.attention_vjp(q, k, v, do, causal=True) for _ in range(2))
    for a, b in zip(first[:3], second[:3], strict=True):
        assert a.tobytes() == b.tobytes()

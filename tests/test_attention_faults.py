"""Faults found by trying to break attention, each with the right value: none may come back."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from attention_cases import INF, NAN, every_isa

import online_softmax as osm
from online_softmax import reference

ONE = np.ones((1, 1), np.float32)


@every_isa
@pytest.mark.parametrize(("keys", "d"), [(1, 1), (129, 64), (257, 64), (257, 128), (513, 64), (1025, 16)])
@pytest.mark.parametrize("options", [{"causal": True}, {"window": (1, 0)}])
def test_a_mask_shared_by_heads_hides_nothing_that_it_shows(
    isa: str, keys: int, d: int, options: dict[str, Any]
) -> None:
    """Rows that see nothing lie between rows of the same range: heads of a group, each with a triangle."""
    rng = np.random.default_rng(keys)
    q = rng.standard_normal((1, 2, 70, d)).astype(np.float32)
    k, v = rng.standard_normal((2, 1, 1, keys, d)).astype(np.float32)
    output, lse = osm.attention(q, k, v, return_lse=True, isa=isa, **options)
    plain = osm.attention_backward(output, q, k, v, output, lse, isa=isa, **options)
    for mask in (np.ones(keys, bool), np.ones((1, 1, 1, keys), bool), np.ones((70, 1), bool)):
        masked = osm.attention(q, k, v, mask=mask, isa=isa, **options)
        # The same sums; scores are rounded once more where a mask is given.
        np.testing.assert_allclose(masked, output, rtol=0, atol=2.0**-24 * 128)
        other = osm.attention_backward(output, q, k, v, output, lse, mask=mask, isa=isa, **options)
        for got, right in zip(other[:3], plain[:3], strict=True):
            np.testing.assert_allclose(got, right, rtol=0, atol=2.0**-24 * 2048)


@every_isa
@pytest.mark.parametrize(
    ("dtype", "size"),
    [(np.float32, 1e2), (np.float32, 1e5), (np.float32, 1e15), (ml_dtypes.bfloat16, 1e5), (np.float64, 1e10)],
)
@pytest.mark.parametrize("scale", [None, 0.57735, 0.6])
def test_scores_whose_rounding_is_more_than_an_exponent(
    isa: str, dtype: Any, size: float, scale: float | None
) -> None:
    """The greatest score stands out by far: its value comes out, however scale * score is rounded."""
    rng = np.random.default_rng(0)
    q, k = ((rng.standard_normal((40, 8)) * size).astype(dtype) for _ in range(2))
    v = rng.standard_normal((40, 8)).astype(dtype)
    output, lse = osm.attention(q, k, v, scale=scale, return_lse=True, isa=isa)
    right, right_lse = reference.attention(q, k, v, scale=scale, return_lse=True)
    # Scores err by (8 + 4) roundings of their parts, which may be larger than they; rows near a tie are left
    # out.
    wide = np.float64 if dtype is np.float64 else np.float32
    scores = (q.astype(np.float64) @ k.astype(np.float64).T) * (1 / 8**0.5 if scale is None else scale)
    error = float(np.finfo(wide).eps) * 12 * size**2 * 16
    top = np.sort(scores, axis=-1)
    clear = top[:, -1] - top[:, -2] > 2 * error + 200
    if size > 1e2:
        assert clear.sum() > 20
        np.testing.assert_array_equal(output[clear].astype(np.float64), right[clear])
    np.testing.assert_allclose(
        lse, right_lse, rtol=0, atol=error + float(np.finfo(wide).eps) * np.abs(right_lse).max()
    )


def test_options_at_the_ends_of_the_range() -> None:
    for scale in (1e-46, 1e-38, 1e-30, 0.0):
        assert osm.attention(ONE, ONE, ONE, scale=scale) == 1
    for softcap in (1e10, 1e20, 1e39, 1e300):
        assert osm.attention(ONE, ONE, ONE, softcap=softcap) == 1
    for bias in (-1e39, 1e39, -1.7e308):
        assert osm.attention(ONE, ONE, ONE, bias=bias) == 1
    lowest = np.full((3, 4), np.finfo(np.float64).min)
    v = np.arange(4, dtype=np.float32)[:, None]
    padded = osm.attention(np.zeros((3, 1), np.float32), np.zeros((4, 1), np.float32), v, bias=lowest)
    np.testing.assert_array_equal(padded, np.full((3, 1), 1.5))
    made = osm.attention(ONE, ONE, ONE, sinks=[INF], return_lse=True)
    np.testing.assert_array_equal(made.output, [[NAN]])
    np.testing.assert_array_equal(made.lse, [INF])


@every_isa
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_infinite_value_counts_wherever_chunks_are_cut(isa: str, dtype: Any) -> None:
    q, k, v = np.ones((1, 1), dtype), np.zeros((9000, 1), dtype), np.zeros((9000, 1), dtype)
    k[-1], v[0] = (90 if dtype is np.float32 else 700), INF
    for step in (1, -1):
        made = osm.attention(q, k[::step], v[::step], scale=1.0, isa=isa)
        np.testing.assert_array_equal(made, [[INF]])


@every_isa
@pytest.mark.parametrize(
    ("dtype", "size"),
    [(np.float32, s) for s in (1e2, 1e4, 1e6, 1e8, 1e12)] + [(np.float64, s) for s in (1e8, 1e16, 1e20)],
)
def test_weights_of_a_gradient_are_not_rounded_with_a_great_lse(isa: str, dtype: Any, size: float) -> None:
    q, k, v = np.full((1, 1), size, dtype), np.ones((2, 1), dtype), np.array([[1], [2]], dtype)
    output, lse = osm.attention(q, k, v, scale=1.0, return_lse=True, isa=isa)
    made = osm.attention_backward(np.ones_like(output), q, k, v, output, lse, scale=1.0, isa=isa)
    np.testing.assert_allclose(made.v, [[0.5], [0.5]], rtol=4 * float(np.finfo(dtype).eps))
    padded = np.full((3, 5), -size)
    ones = [np.zeros((3, 2), dtype), np.zeros((5, 2), dtype), np.ones((5, 2), dtype)]
    output, lse = osm.attention(*ones, bias=padded, return_lse=True, isa=isa)
    made = osm.attention_backward(np.ones_like(output), *ones, output, lse, bias=padded, isa=isa)
    np.testing.assert_allclose(made.v, np.full((5, 2), 0.6), rtol=8 * float(np.finfo(dtype).eps))


def test_the_lse_of_more_keys_counts_as_it_is() -> None:
    """A part of the keys with the lse of all: what each machine of several does."""
    rng = np.random.default_rng(1)
    q, k, v = (rng.standard_normal((1, 1, n, 4)) * 20 for n in (5, 12, 12))
    output, lse = osm.attention(q, k, v, return_lse=True)
    assert np.abs(lse).max() > 64
    whole = osm.attention_backward(output, q, k, v, output, lse)
    parts = [
        osm.attention_backward(output, q, k[:, :, a:b], v[:, :, a:b], output, lse)
        for a, b in ((0, 5), (5, 12))
    ]
    scale = np.abs(whole.q).max() + 1
    np.testing.assert_allclose(parts[0].q + parts[1].q, whole.q, rtol=0, atol=2.0**-53 * 4096 * scale)
    for name in ("k", "v"):
        joined = np.concatenate([getattr(part, name) for part in parts], axis=2)
        right = getattr(whole, name)
        np.testing.assert_allclose(joined, right, rtol=0, atol=2.0**-53 * 4096 * (np.abs(right).max() + 1))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"scale": 1e39}, ValueError, r"scale is 1e\+39: up to 3"),
        ({"scale": 10**400}, ValueError, "scale is a number past the range"),
        ({"softcap": 10**400}, ValueError, "softcap is a number past the range"),
        ({"dropout_p": 10**400}, ValueError, "dropout_p is a number past the range"),
        ({"sinks": [1e39]}, ValueError, "sinks holds a number past the range of float32"),
        ({"alibi_slopes": [1e39]}, ValueError, "alibi_slopes holds a number past the range of float32"),
        ({"mask": np.ma.array([[True]], mask=True)}, TypeError, "mask is a masked array"),
        ({"mask": [[True], [True, False]]}, ValueError, "mask could not be read"),
        ({"seqlens_k": np.ma.array([1], mask=True)}, TypeError, "seqlens_k is a masked array"),
    ],
)
def test_wrong_calls_name_what_is_wrong(change: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        osm.attention(ONE, ONE, ONE, **change)


@pytest.mark.parametrize("ends", [[0, 5, -(2**63)], np.array([0, 5, 2**63], np.uint64)])
def test_ends_that_wrap_are_refused(ends: Any) -> None:
    q = np.ones((6, 2, 8), np.float32)
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        starts = {"cu_seqlens_q": [0, 3, 6], "cu_seqlens_k": [0, 3, 6], name: ends}
        with pytest.raises(ValueError, match=name):
            osm.attention(q, q, q, **starts)

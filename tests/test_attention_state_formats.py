"""Attention partials in the layouts, bases and spellings of other libraries: numbers made by hand, there and
back."""

from __future__ import annotations

import math
from collections.abc import Callable

import ml_dtypes
import numpy as np
import pytest

from online_softmax.attention_state import AttentionState

INF, NAN = math.inf, math.nan
V = 2.0**-24
State = AttentionState


def random_state(*shape: int, dtype: str = "float32") -> AttentionState:
    """Of leading shape `shape` with 3 features, one row of which saw nothing."""
    rng = np.random.default_rng(len(shape))
    o, lse = rng.normal(size=(*shape, 3)).astype(dtype), (20 * rng.normal(size=shape)).astype(dtype)
    lse[(0,) * len(shape)] = -INF
    return State(o, lse)


# -- numbers made by hand


def test_flash_attention_has_queries_before_heads_in_o_and_after_them_in_lse() -> None:
    # One batch element, 2 queries, 3 heads: entry [0, query, head] of o is 10 * query + head.
    o = np.array([[[[0], [1], [2]], [[10], [11], [12]]]], np.float16)
    lse = np.array([[[0, 0.5], [1, 1.5], [2, INF]]], np.float32)
    o[0, 1, 2] = 0
    state = State.from_flash_attention(o, lse)
    assert (state.shape, state.dtype) == ((1, 3, 2), np.float32)
    np.testing.assert_array_equal(state.o[0, :, :, 0], [[0, 10], [1, 11], [2, 0]])
    np.testing.assert_array_equal(state.lse[0], [[0, 0.5], [1, 1.5], [2, -INF]])


def test_flash_attention_varlen_has_heads_first_in_lse() -> None:
    o = np.array([[[0], [1], [2]], [[10], [11], [12]]], ml_dtypes.bfloat16)
    lse = np.array([[0, 0.5], [1, 1.5], [2, -INF]], np.float32)
    state = State.from_flash_attention(o, lse, varlen=True)
    assert (state.shape, state.dtype) == ((2, 3), np.float32)
    np.testing.assert_array_equal(state.o[..., 0], [[0, 1, 2], [10, 11, 0]])
    np.testing.assert_array_equal(state.lse, [[0, 1, 2], [0.5, 1.5, -INF]])


def test_flash_attention_rows_whose_scores_hold_nan_stay_nan() -> None:
    """Their lse is that of an empty row: +inf in 2, -inf in 3 and 4. Their output is NaN, that of an empty
    row 0."""
    o = np.float32([[[0, 0], [NAN, NAN]], [[0, 0], [NAN, 1]]])
    lse = np.float32([[INF, -INF], [INF, -INF]])
    state = State.from_flash_attention(o, lse, True)
    np.testing.assert_array_equal(state.lse, [[-INF, NAN], [-INF, NAN]])
    np.testing.assert_array_equal(state.o, [[[0, 0], [NAN, NAN]], [[0, 0], [NAN, NAN]]])
    unwritten = State.from_flash_attention(o, lse, True, empty_output="any")
    assert unwritten == State.identity((2, 2), 2)


def test_flashinfer_counts_in_bits() -> None:
    # Four equal scores of 0 split 3 and 1: log2(3) and 0; together log2(4) = 2.
    o_a, o_b = np.float16([[[4]]]), np.float16([[[8]]])
    a = State.from_flashinfer(o_a, np.float32([[math.log2(3)]]))
    b = State.from_flashinfer(o_b, np.float32([[0]]))
    assert float(a.lse[0, 0]) == pytest.approx(math.log(3), rel=2 * V, abs=0)
    o, lse = a.merge(b).to_flashinfer()
    assert float(o[0, 0, 0]) == pytest.approx(5, rel=4 * V, abs=0)
    assert float(lse[0, 0]) == pytest.approx(2, rel=4 * V, abs=0)


def test_flashinfer_merge_states_is_a_merge_over_an_axis() -> None:
    rng = np.random.default_rng(0)
    v, s = rng.normal(size=(2, 5, 3, 4)).astype("f4"), rng.normal(size=(2, 5, 3)).astype("f4")
    got = State.from_lse(v, s, "2").merge_axis(1)
    w = np.exp2(s.astype("f8"))[..., None]
    np.testing.assert_allclose(got.o, (w * v).sum(1) / w.sum(1), rtol=0, atol=8 * V * np.abs(v).max())
    assert got.shape == (2, 3)


def test_vllm_counts_both_infinities_as_empty_and_does_not_read_their_outputs() -> None:
    o = np.float16([[[1], [2], [3]], [[NAN], [INF], [6]]])
    lse = np.float32([[0, INF], [1, -INF], [2, 5]])
    state = State.from_vllm(o, lse)
    np.testing.assert_array_equal(state.o[..., 0], [[1, 2, 3], [0, 0, 6]])
    np.testing.assert_array_equal(state.lse, [[0, 1, 2], [-INF, -INF, 5]])


def test_what_plus_infinity_means_is_said_by_the_caller() -> None:
    o, lse = np.float32([[1], [2], [NAN]]), np.float32([INF, -INF, INF])
    np.testing.assert_array_equal(State.from_lse(o, lse).lse, [INF, -INF, INF])
    assert State.from_lse(o, lse, empty="+inf") == State.identity(3, 1)
    np.testing.assert_array_equal(
        State.from_lse(o, lse, empty="+inf", empty_output="zero").lse, [-INF, -INF, NAN]
    )


def test_a_true_plus_infinity_is_written_as_nan_where_it_would_mean_empty() -> None:
    state = State(np.float32([[[1]], [[2]]]), np.float32([[INF], [-INF]]))
    o, lse = state.to_lse(empty="+inf")
    np.testing.assert_array_equal(lse, [[NAN], [INF]])
    np.testing.assert_array_equal(o, [[[NAN]], [[0]]])
    np.testing.assert_array_equal(state.to_vllm()[1], [[NAN, -INF]])
    np.testing.assert_array_equal(state.to_lse()[1], state.lse)
    np.testing.assert_array_equal(state.to_lse("2")[1], state.lse)


# -- there and back


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("empty", ["-inf", "+inf"])
def test_natural_logarithms_come_back_bit_for_bit(dtype: str, empty: str) -> None:
    dense, tokens = random_state(2, 3, 4, dtype=dtype), random_state(5, 3, dtype=dtype)
    o, lse = dense.to_flash_attention(empty=empty)
    assert (o.shape, lse.shape) == ((2, 4, 3, 3), (2, 3, 4))
    assert State.from_flash_attention(o, lse).to_bytes() == dense.to_bytes()
    o, lse = tokens.to_flash_attention(True, empty=empty)
    assert (o.shape, lse.shape) == ((5, 3, 3), (3, 5))
    assert State.from_flash_attention(o, lse, True).to_bytes() == tokens.to_bytes()
    o, lse = tokens.to_vllm()
    assert (o.shape, lse.shape) == ((5, 3, 3), (3, 5))
    assert State.from_vllm(o, lse).to_bytes() == tokens.to_bytes()
    back = State.from_lse(*dense.to_lse(empty=empty), empty=empty)
    assert back.to_bytes() == dense.to_bytes()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_binary_logarithms_come_back_within_their_roundings(dtype: str) -> None:
    state = random_state(5, 3, dtype=dtype)
    o, lse = state.to_flashinfer()
    assert (o.shape, lse.shape, lse.dtype) == ((5, 3, 3), (5, 3), dtype)
    np.testing.assert_array_equal(o, state.o)
    seen = state.lse > -INF
    np.testing.assert_array_equal(lse[~seen], state.lse[~seen])
    # Two products in float64 with a constant that is rounded too, and in float32 two roundings to it.
    units = 4 * 2.0**-53 + (2 * V if dtype == "float32" else 0)
    back = State.from_flashinfer(o, lse)
    np.testing.assert_allclose(back.lse[seen], state.lse[seen], rtol=units, atol=0)
    np.testing.assert_allclose(lse[seen].astype("f8") * math.log(2), state.lse[seen], rtol=units, atol=0)


@pytest.mark.parametrize("narrow", ["float16", "bfloat16", "float32", "float64"])
def test_outputs_are_read_and_written_in_narrow_formats(narrow: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, narrow, narrow))
    state = random_state(5, 3)
    o, lse = state.to_vllm(dtype=kind)
    assert (o.dtype, lse.dtype) == (kind, np.float32)
    np.testing.assert_array_equal(o, state.o.astype(kind))
    back = State.from_vllm(o, lse)
    assert back.dtype == ("float64" if narrow == "float64" else "float32")
    np.testing.assert_array_equal(back.o, o.astype(back.dtype))
    huge = State(np.float32([1e38]), np.float32(0)).to_lse(dtype="float16")
    assert huge[0] == INF


def test_a_float64_log_makes_a_float64_state() -> None:
    state = State.from_lse(np.float32([1]), 0.1)
    assert (state.dtype, float(state.lse)) == ("float64", 0.1)


def test_what_is_written_belongs_to_the_caller() -> None:
    dense, tokens = random_state(2, 3, 4), random_state(5, 3)
    before = dense.to_bytes(), tokens.to_bytes()
    written = (dense.to_flash_attention(), tokens.to_flash_attention(True), tokens.to_vllm(),
               tokens.to_flashinfer(), dense.to_lse())  # fmt: skip
    for array in (array for pair in written for array in pair):
        assert array.flags.c_contiguous
        array[...] = 7
    assert (dense.to_bytes(), tokens.to_bytes()) == before


def test_sides_of_different_libraries_merge() -> None:
    """FlashAttention for one half of the keys, FlashInfer for the other, vLLM for the result."""
    rng = np.random.default_rng(9)
    x, v = rng.normal(size=(4, 2, 10)).astype("f4"), rng.normal(size=(10, 3)).astype("f4")
    parts = [State.of(x[..., i::2], v[i::2]) for i in (0, 1)]
    a = State.from_flash_attention(*parts[0].to_flash_attention(True, empty="+inf"), True)
    b = State.from_flashinfer(*parts[1].to_flashinfer())
    got = State.from_vllm(*a.merge(b).to_vllm())
    # The lse of b is rounded twice on its way, each time by V of it, and all are rounded at the end.
    of_lse = 2 * V * float(np.abs(parts[1].lse).max())
    whole, top = State.of(x, v), float(np.abs(v).max())
    np.testing.assert_allclose(
        got.lse, whole.lse, rtol=0, atol=of_lse + 4 * V * float(np.abs(whole.lse).max())
    )
    np.testing.assert_allclose(got.o, whole.o, rtol=0, atol=(2 * of_lse + 8 * V) * top)


four, three, two = np.ones((2, 3, 4, 5)), np.ones((2, 3, 5)), np.ones((2, 3))


@pytest.mark.parametrize(
    ("call", "error", "names"),
    [
        (lambda: State.from_lse(three, np.ones((3, 2))), ValueError, r"lse has shape \(3, 2\).*\(2, 3\)"),
        (lambda: State.from_lse(three, two, 2), ValueError, "base=2: one of 'e', '2'"),
        (lambda: State.from_lse(three, two, "10"), ValueError, "base='10'"),
        (lambda: State.from_lse(three, two, empty="inf"), ValueError, "empty='inf'"),
        (lambda: State.from_lse(three, two, empty_output="nan"), ValueError, "empty_output='nan'"),
        (lambda: State.from_lse(three, two * 1j), TypeError, "lse holds complex128"),
        (lambda: State.from_flash_attention(three, two), ValueError, r"o has shape .*\(batch, queries"),
        (lambda: State.from_flash_attention(four, np.ones((2, 3, 4))), ValueError, r"\(2, 4, 3\), \(batch"),
        (lambda: State.from_flash_attention(four, four, True), ValueError, r"\(total, heads, dv\)"),
        (lambda: State.from_flash_attention(three, two, True), ValueError, r"\(3, 2\), \(heads, total\)"),
        (lambda: State.from_flash_attention(three, two, 1), TypeError, "varlen=1"),
        (lambda: State.from_flashinfer(four, two), ValueError, r"\(tokens, heads, dv\)"),
        (lambda: State.from_flashinfer(three, two.T), ValueError, r"\(2, 3\), \(tokens, heads\)"),
        (lambda: State.from_vllm(three, two), ValueError, r"\(3, 2\), \(heads, tokens\)"),
        (lambda: random_state(2).to_vllm(), ValueError, r"leading shape \(2,\): \(tokens, heads\)"),
        (lambda: random_state(2).to_flashinfer(), ValueError, r"\(tokens, heads\)"),
        (lambda: random_state(2, 3).to_flash_attention(), ValueError, r"\(batch, heads, queries\)"),
        (lambda: random_state(2, 3, 4).to_flash_attention(True), ValueError, r"\(total, heads\)"),
        (lambda: random_state(2, 3).to_vllm("int32"), TypeError, "dtype=int32"),
        (lambda: random_state(2).to_lse("10"), ValueError, "base='10'"),
        (lambda: random_state(2).to_lse(empty=INF), ValueError, "empty=inf"),
        (lambda: State(np.float32([1]), np.float32(-3e38)).to_lse("2"), ValueError, "range of float32"),
    ],
)  # fmt: skip
def test_wrong_calls_name_the_argument(
    call: Callable[[], object], error: type[Exception], names: str
) -> None:
    with pytest.raises(error, match=names):
        call()

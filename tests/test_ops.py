"""Every row of the table of operations does what the reference does, from pieces merged in any way, within
its tolerance."""

from __future__ import annotations

import dataclasses
import math

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from online_softmax import reference, state
from online_softmax.numerics import bounds
from online_softmax.ops import ALGORITHMS, OPERATIONS, TOP, Operation, Passes

few = settings(deadline=None, max_examples=60, derandomize=True)
each = pytest.mark.parametrize("op", [pytest.param(row, id=name) for name, row in OPERATIONS.items()])
#: numpy's exp in units of u: 2.52 ulp stated for float32, under 1 ulp for float64.
EXP_UNITS = {"float32": 6.0, "float64": 2.0}
#: The reference's own error, in units of float64's u: half an ulp with a wider float, more without.
REFERENCE = (1.02 if np.finfo(np.longdouble).nmant >= 63 else 16.0) * 2.0**-53


def test_the_table_is_frozen() -> None:
    assert tuple(OPERATIONS) == ("softmax", "log_softmax", "logsumexp", "softmax_topk")
    assert ALGORITHMS == ("naive", "three_pass", "online", "cached", "auto")
    with pytest.raises(TypeError):
        OPERATIONS["more"] = OPERATIONS["softmax"]  # type: ignore[index]
    with pytest.raises(dataclasses.FrozenInstanceError):
        OPERATIONS["softmax"].name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        OPERATIONS["softmax"].passes["online"] = Passes(1, 1, 1, 1)  # type: ignore[index]


@each
def test_rows_are_complete(op: Operation) -> None:
    assert OPERATIONS[op.name] is op
    assert set(op.passes) <= set(ALGORITHMS) - {"auto"}
    assert "online" in op.passes
    assert op.reduces == all(p.writes == 0 for p in op.passes.values())
    assert callable(getattr(reference, op.name))


def truth(op: Operation, x: np.ndarray) -> np.ndarray:
    """What `finish` gives: for top-k the probabilities of the entries, before the selection."""
    return {"softmax_topk": reference.softmax}.get(op.name, getattr(reference, op.name))(x)


@each
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("cuts", [(), (1,), (5, 5, 40), (3, 9, 27, 81)])
def test_merged_pieces_finish_within_the_tolerance(op: Operation, dtype: str, cuts: tuple[int, ...]) -> None:
    n = 90
    x = (
        np.random.default_rng(len(cuts)).normal(size=(6, n)) * [[0.01], [1], [5], [30], [200], [1000]]
    ).astype(dtype)
    x[3, ::7] = -np.inf
    merged = op.identity((6,), dtype)
    for i, j in zip((0, *cuts), (*cuts, n), strict=True):
        merged = op.merge(merged, state.push(op.identity((6,), dtype), x[:, i:j]))
    m, s = merged if op.name == "logsumexp" else (part[:, None] for part in merged)
    got = op.finish(x, m, s)
    assert got.dtype == dtype
    u, tiny = bounds.unit_roundoff(dtype), bounds.smallest_subnormal(dtype)
    e = EXP_UNITS[dtype] * u
    eta = bounds.batch_eta(n, u=u, e=e, depth=bounds.pairwise_depth(n) + 1)
    eta = eta + bounds.merge_eta(len(cuts) + 1, u=u, e=e)
    expected = truth(op, x)
    # One unit more for a logarithm that is not rounded correctly.
    log = 2 * u * np.abs(np.where(np.isfinite(expected), expected, 0))
    allowed = op.tolerance(x.astype(np.float64), eta, u=u, e=e, tiny=tiny) + log
    finite = np.isfinite(expected)
    np.testing.assert_array_equal(got[~finite], expected[~finite])
    error = np.abs(np.where(finite, got.astype(np.float64) - np.where(finite, expected, 0), 0))
    assert (error <= allowed + REFERENCE * np.abs(np.where(finite, expected, 0))).all()
    # A bound that nothing could break would show nothing: it stays near the rounding of the arithmetic.
    if dtype == "float32" and op.name != "logsumexp":
        assert (allowed <= 2e-4 * np.maximum(np.abs(np.where(finite, expected, 0)), 1)).all()


@each
def test_finish_of_special_rows(op: Operation) -> None:
    x = np.array([[np.nan, 1, np.inf], [np.inf, 1, 2], [-np.inf] * 3, [0, -np.inf, -np.inf]])
    m, s = state.push(op.identity((4,), np.float64), x)
    got = op.finish(x, m, s) if op.name == "logsumexp" else op.finish(x, m[:, None], s[:, None])
    np.testing.assert_array_equal(got, truth(op, x))


# -- the rider of top-k

logits = st.one_of(st.sampled_from([0.0, -0.0, 1.0, -np.inf, np.inf, np.nan]), st.floats(-5, 5))


@few
@given(row=st.lists(logits, min_size=1, max_size=20), k=st.integers(0, 8), data=st.data())
def test_top_of_any_split_in_any_order_is_the_top_of_the_row(
    row: list[float], k: int, data: st.DataObject
) -> None:
    x = np.array(row)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(row)), max_size=4)))
    parts = [TOP.of(x[i:j], k, i) for i, j in zip([0, *cuts], [*cuts, len(row)], strict=True)]
    while len(parts) > 1:
        a = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        b = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        joined = TOP.merge(a, b, k)
        for left, right in zip(joined, TOP.merge(b, a, k), strict=True):
            assert left.tobytes() == right.tobytes()
        parts.append(joined)
    found, indices = parts[0]
    expected = reference.softmax_topk(x, min(k, len(row)))[1]
    np.testing.assert_array_equal(indices, expected)
    np.testing.assert_array_equal(found, x[expected])
    assert indices.dtype == np.int64


def test_top_is_batched() -> None:
    x = np.random.default_rng(3).normal(size=(2, 3, 17))
    whole = TOP.of(x, 4, 0)
    merged = TOP.merge(TOP.of(x[..., :9], 4, 0), TOP.of(x[..., 9:], 4, 9), 4)
    for a, b in zip(whole, merged, strict=True):
        assert a.shape == (2, 3, 4)
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(whole[1], reference.softmax_topk(x, 4)[1])


# -- the bounds themselves


def test_formats_recomputed() -> None:
    for name, bits in (
        ("float64", 53),
        ("float32", 24),
        ("float16", 11),
        ("bfloat16", 8),
        ("float8_e5m2", 3),
    ):
        kind = np.dtype(getattr(ml_dtypes, name, name))
        assert bounds.unit_roundoff(kind) == 2.0**-bits
    assert bounds.smallest_subnormal("float32") == 2.0**-149
    assert bounds.smallest_subnormal("float64") == 2.0**-1074
    assert bounds.rounding_error([1.0, 0.0], "float16").tolist() == [2.0**-11, 2.0**-25]


def test_pairwise_depth_by_hand() -> None:
    # Eight running sums of 16 take 15 additions, their tree 3; then the start value.
    assert bounds.pairwise_depth(128) == 15 + 3 + 1
    assert bounds.pairwise_depth(127) == 14 + 3 + 7 + 1
    assert bounds.pairwise_depth(256) == 1 + 15 + 3 + 1
    # 250 is 120 and 130, which is 64 and 66.
    assert bounds.pairwise_depth(250) == 1 + max(14 + 3, 1 + 7 + 3 + 2) + 1
    assert [bounds.pairwise_depth(n) for n in (0, 1, 7, 8)] == [1, 2, 8, 4]
    assert max(bounds.pairwise_depth(n) for n in range(1, 100_000)) <= 40


@pytest.mark.parametrize("n", [1, 5, 100, 127, 128, 129, 250, 256, 1000, 4095, 100_000])
def test_pairwise_depth_covers_numpys_sum(n: int) -> None:
    # A running sum would drift by up to n units of u.
    for x in (np.full(n, 1 + 2**-23, np.float32), np.random.default_rng(n).random(n, np.float32)):
        exact = math.fsum(map(float, x))
        assert abs(float(x.sum()) - exact) <= bounds.pairwise_depth(n) * 2.0**-24 * exact


def test_streaming_eta_counts_additions_and_changes() -> None:
    u, e = 1.0, 100.0
    # The maximum changes at the second and the fourth entry.
    got = bounds.streaming_eta([0.0, 1.0, 1.0, 2.0], u=u, e=e)
    np.testing.assert_array_equal(got, [100 + 4 + 2 * 101, 100 + 3 + 101, 100 + 2 + 101, 100 + 1])
    assert bounds.streaming_eta([], u=u, e=e).shape == (0,)


def test_long_tails_cost_no_more_than_the_log_of_the_length() -> None:
    u = 2.0**-24
    for scale in (0.0, 0.1, 1.0, 10.0, 1000.0):
        row = scale * np.random.default_rng(0).normal(size=4096)
        assert bounds.sum_error(row, 0.0, u=u) <= 1.001 * u * np.log(4096)


def test_tree_levels() -> None:
    assert [bounds.tree_levels(p) for p in (0, 1, 2, 3, 4, 5, 1024, 1025)] == [0, 0, 1, 2, 2, 3, 10, 11]
    assert bounds.merge_eta(3, u=1.0, e=5.0) == 21


def test_bounds_refuse_rows_without_a_finite_maximum() -> None:
    for row in ([np.nan, 1.0], [np.inf, 1.0], [-np.inf, -np.inf]):
        with pytest.raises(ValueError, match="maximum"):
            bounds.sum_error(row, 0.0, u=1e-8)

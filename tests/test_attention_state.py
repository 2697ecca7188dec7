"""Laws of partial attention results: identity, order, splits, special values, sinks. Truth has 40
digits (mpmath); tolerances are the bound in the text of `online_softmax.attention_state`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from online_softmax import reference
from online_softmax.attention_state import AttentionState
from online_softmax.numerics import bounds

INF, NAN = math.inf, math.nan
DTYPES = ("float32", "float64")
every = pytest.mark.parametrize("dtype", DTYPES)
few = settings(deadline=None, max_examples=60, derandomize=True)
U = 2.0**-53


def step(o: np.ndarray, lse: np.ndarray, dtype: str) -> tuple[float, float]:
    """The bound of one merge of k sides (or keys): o (k, dv), lse (k,), as they stand. (of o, of lse)"""
    live = lse > -INF
    if not live.any():
        return 0.0, 0.0
    k, m = len(lse), float(lse.max())
    v = 2.0**-24 if dtype == "float32" else 0.0
    gap = min(float((m - lse[live]).max()), 745.0)
    top = float(np.abs(o[live]).max(initial=0.0))
    tiny = bounds.smallest_subnormal(dtype)
    of_lse = (v + U) * (abs(m) + math.log(k)) + (3 * k + 10) * U
    return v * top + (2 * gap + 2 * k + 5) * U * top + k * tiny, of_lse


@dataclass
class Tracked:
    """A state of one row, with what its o and lse may be wrong by."""

    state: AttentionState
    of_o: float
    of_lse: float

    @staticmethod
    def keys(x: np.ndarray, v: np.ndarray) -> Tracked:
        return Tracked(AttentionState.of(x, v), *step(v.astype(float), x.astype(float), x.dtype.name))


def joined(sides: list[Tracked], result: AttentionState) -> Tracked:
    """`result` as the merge of `sides`: their errors carried through it, and its own."""
    o = np.array([s.state.o for s in sides], np.float64)
    lse = np.array([float(s.state.lse) for s in sides])
    of_o, of_lse = step(o, lse, result.dtype.name)
    wrong = max(s.of_lse for s in sides)
    top = np.abs(o).max(initial=0.0) + max(s.of_o for s in sides)
    # No error of the weights makes more of o than twice the largest side.
    carried = max(s.of_o for s in sides) + math.expm1(min(2 * wrong, math.log(3))) * float(top)
    return Tracked(result, of_o + carried, of_lse + wrong)


def merged(a: Tracked, b: Tracked) -> Tracked:
    return joined([a, b], a.state.merge(b.state))


def truth(x: np.ndarray, v: np.ndarray) -> tuple[list[mpmath.mpf], mpmath.mpf]:
    """(o, lse) of the keys of one row to 40 digits."""
    live = [j for j in range(len(x)) if x[j] > -INF]
    with mpmath.workdps(40):
        if not live:
            return [mpmath.mpf(0)] * v.shape[-1], mpmath.mpf(-INF)
        m = max(mpmath.mpf(float(x[j])) for j in live)
        e = {j: mpmath.exp(mpmath.mpf(float(x[j])) - m) for j in live}
        s = mpmath.fsum(e.values())
        o = [mpmath.fsum(e[j] * mpmath.mpf(float(v[j, c])) for j in live) / s for c in range(v.shape[-1])]
        return o, m + mpmath.log(s)


def assert_within(got: Tracked, x: np.ndarray, v: np.ndarray) -> None:
    o, lse = truth(x, v)
    if lse == -INF:
        assert got.state == AttentionState.identity((), v.shape[-1], got.state.dtype)
        return
    assert abs(mpmath.mpf(float(got.state.lse)) - lse) <= got.of_lse
    for mine, right in zip(got.state.o, o, strict=True):
        assert abs(mpmath.mpf(float(mine)) - right) <= got.of_o


def same(a: AttentionState, b: AttentionState) -> bool:
    """Bit for bit."""
    return a.dtype == b.dtype and a.to_bytes() == b.to_bytes()


scores = st.one_of(
    st.floats(-8, 8, width=32),
    st.floats(-1e4, 1e4, width=32),
    st.sampled_from([-INF, 0.0, -0.0, 1e4, -1e4, 2.0**100, -(2.0**100)]),
)
weights = st.floats(-100, 100, width=32)
any_number = st.one_of(scores, st.sampled_from([INF, NAN, np.float32(1e30).item(), -1e-45]))


@st.composite
def keys(draw: st.DrawFn, most: int = 12) -> tuple[np.ndarray, np.ndarray]:
    """Scores (n,) and values (n, 2) that are float32 numbers, as float64."""
    n = draw(st.integers(1, most))
    x = draw(st.lists(scores, min_size=n, max_size=n))
    v = draw(st.lists(weights, min_size=2 * n, max_size=2 * n))
    return np.array(x), np.array(v).reshape(n, 2)


@st.composite
def states(draw: st.DrawFn, dtype: str = "float32") -> AttentionState:
    """States of shape (3,) with 2 features, of any numbers."""
    o = draw(st.lists(any_number, min_size=6, max_size=6))
    lse = draw(st.lists(any_number, min_size=3, max_size=3))
    return AttentionState(np.array(o, dtype).reshape(3, 2), np.array(lse, dtype))


# -- laws


@every
@few
@given(data=st.data())
def test_merging_with_nothing_gives_the_other_bit_for_bit(dtype: str, data: st.DataObject) -> None:
    a, nothing = data.draw(states(dtype)), AttentionState.identity(3, 2, dtype)
    assert same(a.merge(nothing), a)
    assert same(nothing.merge(a), a)
    assert same(AttentionState.merge_many([nothing, nothing, a, nothing]), a)
    assert same(nothing.merge(nothing), nothing)
    assert same(a.with_sinks(-INF), a)
    assert same(a.push(np.full((3, 4), -INF), np.full((4, 2), NAN, dtype)).merge(nothing), AttentionState(
        a.o.astype("float64"), a.lse.astype("float64")))  # fmt: skip


@every
@few
@given(data=st.data())
def test_merging_two_is_commutative_in_bits(dtype: str, data: st.DataObject) -> None:
    a, b = data.draw(states(dtype)), data.draw(states(dtype))
    assert same(a.merge(b), b.merge(a))
    assert same(AttentionState.merge_many([a, b]), a.merge(b))


@every
@few
@given(key=keys(), data=st.data())
def test_any_split_in_any_order_is_attention_over_all_keys(
    dtype: str, key: tuple[np.ndarray, np.ndarray], data: st.DataObject
) -> None:
    x, v = (a.astype(dtype) for a in key)
    assert_within(Tracked.keys(x, v), x, v)
    place = np.array(data.draw(st.lists(st.integers(0, 4), min_size=len(x), max_size=len(x))))
    parts = [Tracked.keys(x[place == i], v[place == i]) for i in data.draw(st.permutations(range(5)))]
    # A chain from the left, one from the right, a tree, and all at once: associativity within the bound.
    assert_within(reduce(merged, parts), x, v)
    assert_within(reduce(lambda a, b: merged(b, a), reversed(parts)), x, v)
    assert_within(merged(merged(merged(parts[0], parts[1]), merged(parts[2], parts[3])), parts[4]), x, v)
    once = AttentionState.merge_many(part.state for part in parts)
    assert_within(joined(parts, once), x, v)


@every
@few
@given(key=keys(), data=st.data())
def test_pushing_is_merging_unrounded(
    dtype: str, key: tuple[np.ndarray, np.ndarray], data: st.DataObject
) -> None:
    x, v = (a.astype(dtype) for a in key)
    cut = data.draw(st.integers(0, len(x)))
    first = Tracked.keys(x[:cut], v[:cut])
    pushed = first.state.push(x[cut:], v[cut:])
    assert pushed.dtype == dtype
    block = AttentionState.of(x[cut:].astype("float64"), v[cut:].astype("float64"))
    wide = Tracked(block, *step(v[cut:].astype(float), x[cut:].astype(float), "float64"))
    assert_within(joined([first, wide], pushed), x, v)
    assert same(AttentionState.identity((), 2, dtype).push(x, v), AttentionState.of(x, v))


@every
def test_a_common_maximum_rounds_once_where_a_chain_rounds_at_every_link(dtype: str) -> None:
    """64 keys at 1000: of their log 64 a chain in float32 loses what 1000 cannot hold."""
    x, v = np.full(64, 1000.0, dtype), np.linspace(-1, 1, 64)[:, None].astype(dtype)
    each = [Tracked.keys(x[i : i + 1], v[i : i + 1]) for i in range(64)]
    once = joined(each, AttentionState.merge_many(part.state for part in each))
    assert_within(once, x, v)
    assert_within(reduce(merged, each), x, v)
    assert once.of_lse < reduce(merged, each).of_lse
    assert float(once.state.lse) == np.array(1000 + math.log(64), dtype)


def test_the_weights_keep_their_digits_where_one_side_outweighs_the_other() -> None:
    a = AttentionState(np.float64([1.0]), np.float64(-30.0))
    b = AttentionState(np.float64([0.0]), np.float64(0.0))
    both = a.merge(b)
    assert float(both.o[0]) == pytest.approx(math.exp(-30) / (1 + math.exp(-30)), rel=70 * U, abs=0)
    assert float(both.lse) == pytest.approx(math.log1p(math.exp(-30)), rel=70 * U, abs=0)


@every
@pytest.mark.parametrize("height", [0.0, 1e4, -1e4, 1e30, -1e30, "max", "-max"])
def test_equal_sides_weigh_one_half_at_any_height(dtype: str, height: float | str) -> None:
    top = np.finfo(dtype).max
    h = np.array({"max": top, "-max": -top}.get(height, height), dtype)
    a, b = AttentionState(np.array([2], dtype), h), AttentionState(np.array([4], dtype), h)
    both = a.merge(b)
    assert both.o == 3
    assert both.lse == np.array(float(h) + math.log(2), dtype)
    far = AttentionState(np.array([7], dtype), np.array(-top, dtype))
    if h > 0:
        assert same(both.merge(far), both)


@every
@pytest.mark.parametrize("splits", [1, 2, 5, 16])
def test_splits_of_the_keys_agree_with_the_reference_of_attention(dtype: str, splits: int) -> None:
    rng = np.random.default_rng(splits)
    q, k, v = (rng.normal(size=(2, 3, n, d)).astype(dtype) for n, d in ((4, 8), (16, 8), (16, 5)))
    mask = rng.random((2, 3, 4, 16)) < 0.6
    mask[0, 0, 0] = False
    right, right_lse = reference.attention(q, k, v, mask=mask, return_lse=True)
    x = np.einsum("bhqd,bhkd->bhqk", q.astype(np.float64), k.astype(np.float64)) / math.sqrt(8)
    cuts = np.array_split(np.arange(16), splits)
    wide = v[:, :, None].astype(np.float64)
    parts = [AttentionState.of(x[..., c], wide[..., c, :], where=mask[..., c]) for c in cuts]
    got = AttentionState.merge_many(parts)
    # Scores in float64: 8 products and sums of at most 8 * 16 / sqrt(8), on both sides, and two merges.
    of_scores = 20 * U * float(np.abs(x).max())
    gap, top = float(np.ptp(x)), float(np.abs(v).max())
    of_lse = of_scores + 2 * (3 * 16 + 10) * U + 2 * U * float(np.abs(x).max() + math.log(16))
    np.testing.assert_allclose(got.lse, right_lse, rtol=0, atol=of_lse)
    of_o = 2 * (2 * gap + 2 * 16 + 5) * U * top + 2 * (of_scores + of_lse) * top
    np.testing.assert_allclose(got.value, right, rtol=0, atol=of_o)
    assert (got.lse[0, 0, 0], got.o[0, 0, 0].tolist()) == (-INF, [0.0] * 5)
    stack = AttentionState(np.stack([p.o for p in parts], 1), np.stack([p.lse for p in parts], 1))
    assert same(stack.merge_axis(1), got)


# -- special values


@few
@given(data=st.data())
def test_special_values_follow_the_reference(data: st.DataObject) -> None:
    """Within the range of its exp: past that it takes a weight for 0, and an infinite o of it for NaN."""
    a, b = data.draw(states("float64")), data.draw(states("float64"))
    near = [np.clip(s.lse, -1e3, 1e3, where=np.isfinite(s.lse), out=s.lse.copy()) for s in (a, b)]
    a, b = (AttentionState(s.o, lse) for s, lse in zip((a, b), near, strict=True))
    right, right_lse = reference.merge_attention(a.o, a.lse, b.o, b.lse)
    got = a.merge(b)
    for mine, theirs in ((got.o, right), (got.lse, right_lse)):
        special = ~np.isfinite(theirs)
        np.testing.assert_array_equal(mine[special], theirs[special])
        assert np.isfinite(mine[~special]).all()


@every
def test_an_empty_side_is_not_read(dtype: str) -> None:
    poison = np.array([[NAN, INF], [1, 2], [-INF, NAN]], dtype)
    a = AttentionState(poison, np.array([-INF, 0, -INF], dtype))
    np.testing.assert_array_equal(a.o, [[0, 0], [1, 2], [0, 0]])
    b = AttentionState(np.array([[5, 7], [NAN, NAN], [INF, 1]], dtype), np.array([0, -INF, -INF], dtype))
    both = a.merge(b)
    np.testing.assert_array_equal(both.o, [[5, 7], [1, 2], [0, 0]])
    np.testing.assert_array_equal(both.lse, [0, 0, -INF])
    assert not np.signbit(both.o).any()


@every
def test_keys_left_out_are_not_read(dtype: str) -> None:
    x = np.array([[0, NAN, 1, INF], [NAN, NAN, NAN, -INF]], dtype)
    v = np.array([[1, 2], [NAN, INF], [3, 5], [-INF, 8]], dtype)
    keep = np.array([[True, False, True, False], [False, False, False, True]])
    masked = AttentionState.of(x, v, where=keep)
    plain = AttentionState.of(x[:1, ::2], v[::2])
    np.testing.assert_array_equal(masked.o[0], plain.o[0])
    assert masked.lse[0] == plain.lse[0]
    assert same(AttentionState.of(x[1:], v, where=keep[1:]), AttentionState.identity(1, 2, dtype))


@every
def test_infinite_and_nan_scores_and_values(dtype: str) -> None:
    def of(x: list[float], v: list[float]) -> tuple[float, float]:
        state = AttentionState.of(np.array(x, dtype), np.array(v, dtype)[:, None])
        return float(state.o[0]), float(state.lse)

    np.testing.assert_array_equal(of([0, INF], [1, 2]), (NAN, INF))
    np.testing.assert_array_equal(of([0, NAN, INF], [1, 2, 3]), (NAN, NAN))
    # An infinite value counts however little it weighs, in one piece or in two.
    assert of([0, -1e4], [1, INF]) == (INF, 0)
    assert of([0, -1e4, 0], [1, -INF, 1])[0] == -INF
    assert math.isnan(of([0, 0], [INF, -INF])[0])
    assert math.isnan(of([0, -1e4], [1, NAN])[0])
    a, b = (AttentionState(np.array([o], dtype), np.array(lse, dtype)) for o, lse in ((1, 0), (INF, -1e4)))
    assert (a.merge(b).o, a.merge(b).lse) == (INF, 0)


def test_states_are_in_normal_form() -> None:
    tainted = np.array([0x7FC12345, 0xFFC00001], np.uint32).view(np.float32)
    a = AttentionState(np.float32([[1, NAN], [2, 3], [4, 5], [-0.0, 6]]), np.float32([NAN, INF, -INF, -0.0]))
    np.testing.assert_array_equal(a.o, [[NAN, NAN], [NAN, NAN], [0, 0], [0, 6]])
    assert not np.signbit(a.lse[3])
    assert np.signbit(a.o[3, 0])
    assert same(AttentionState(tainted[:1], tainted[0]), AttentionState(tainted[1:], tainted[1]))


# -- sinks


def test_sinks_take_their_share_once() -> None:
    a = AttentionState(np.float32([[1.5], [0]]), np.float32([math.log(2), -INF]))
    got = a.with_sinks([0.0, 0.5])
    assert got.dtype == np.float32
    np.testing.assert_allclose(got.o, [[1.0], [0]], rtol=2 * 2.0**-24)
    np.testing.assert_allclose(got.lse, [math.log(3), 0.5], rtol=2 * 2.0**-24)
    sink = AttentionState(np.zeros((2, 1), np.float32), np.float32([0, 0.5]))
    assert same(got, a.merge(sink))


def test_sinks_lie_along_the_axis_that_is_named() -> None:
    rng = np.random.default_rng(3)
    a = AttentionState(rng.normal(size=(2, 3, 4, 5)), rng.normal(size=(2, 3, 4)))
    sinks = np.array([0.0, 1.0, -INF])
    by_axis = a.with_sinks(sinks, axis=1)
    assert same(by_axis, a.with_sinks(sinks[:, None]))
    assert same(by_axis, a.with_sinks(sinks, axis=-2))
    np.testing.assert_array_equal(by_axis.o[:, 2], a.o[:, 2])
    np.testing.assert_allclose(by_axis.lse[:, :2], np.logaddexp(a.lse[:, :2], sinks[:2, None]), rtol=30 * U)


def test_sinks_agree_with_the_reference_of_attention() -> None:
    rng = np.random.default_rng(5)
    q, k, v = (rng.normal(size=(3, n, 4)) for n in (2, 6, 6))
    sinks = np.array([0.3, -2.0, 4.0])
    right, right_lse = reference.attention(q, k, v, sinks=sinks, return_lse=True)
    x = np.einsum("hqd,hkd->hqk", q, k) / 2
    halves = (AttentionState.of(x[..., i::2], v[:, None, i::2]) for i in (0, 1))
    got = AttentionState.merge_many(halves).with_sinks(sinks, axis=0)
    np.testing.assert_allclose(got.o, right, rtol=0, atol=200 * U * np.abs(v).max())
    np.testing.assert_allclose(got.lse, right_lse, rtol=0, atol=100 * U * (1 + np.abs(x).max()))

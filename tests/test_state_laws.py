"""One set of laws for every transcription of the state: a pair (m, s) of Python floats, pushed to and merged.

A transcription is a name, its format, the error of its exp, and two functions. To hold another to the laws,
add it to TRANSCRIPTIONS. Truth is a sum of 40 digits (mpmath); the tolerance is the bound of
`online_softmax.numerics.bounds`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import mpmath
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from online_softmax import _core
from online_softmax import state as law
from online_softmax.numerics import bounds
from online_softmax.state import SoftmaxState

INF, NAN = math.inf, math.nan
IDENTITY = (-INF, 0.0)
Pair = tuple[float, float]
#: Relative error of numpy's exp in units of u: its vectorised float32 exp states 2.52 ulp, its float64 exp
#: under 1 ulp.
EXP_UNITS = {"float32": 6.0, "float64": 2.0}


@dataclass(frozen=True)
class Transcription:
    name: str
    dtype: str
    merge: Callable[[float, float, float, float], Pair]
    push: Callable[[float, float, float], Pair]

    @property
    def u(self) -> float:
        return bounds.unit_roundoff(self.dtype)

    @property
    def e(self) -> float:
        return EXP_UNITS[self.dtype] * self.u

    @property
    def tiny(self) -> float:
        return bounds.smallest_subnormal(self.dtype)


def in_python(dtype: str) -> Transcription:
    kind = np.dtype(dtype).type

    def merge(m_a: float, s_a: float, m_b: float, s_b: float) -> Pair:
        m, s = law.merge((kind(m_a), kind(s_a)), (kind(m_b), kind(s_b)))
        assert m.dtype == s.dtype == kind
        return float(m), float(s)

    def push(m: float, s: float, x: float) -> Pair:
        new = law.push((kind(m), kind(s)), np.array([x], dtype))
        return float(new[0]), float(new[1])

    return Transcription(f"python.{dtype}", dtype, merge, push)


TRANSCRIPTIONS = [
    in_python("float64"),
    in_python("float32"),
    Transcription("core.float64", "float64", _core.law_merge, _core.law_push),
]
every = pytest.mark.parametrize("t", [pytest.param(t, id=t.name) for t in TRANSCRIPTIONS])
few = settings(deadline=None, max_examples=60, derandomize=True)


def narrow(value: float) -> float:
    """Into float32, which float64 holds too; a state's maximum has no -0.0."""
    return float(np.float32(value)) + 0.0


#: Finite entries: some anywhere in float32, most where sums mix, some equal.
entries = st.one_of(
    st.floats(-8, 8).map(narrow),
    st.floats(-120, 120).map(narrow),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(narrow),
    st.sampled_from([0.0, 1.0, 88.0, -104.0, 3.0e38, -3.0e38]).map(narrow),
)
rows = st.lists(entries, min_size=1, max_size=24)
rows_with_holes = st.lists(st.one_of(entries, st.just(-INF)), min_size=1, max_size=24)
seen = st.tuples(entries, st.floats(1, 1e6, width=32))
states = st.one_of(
    seen,
    st.just(IDENTITY),
    st.just((NAN, NAN)),
    st.integers(1, 1000).map(lambda n: (INF, float(n))),
)


def same(a: Pair, b: Pair) -> bool:
    """Bit for bit, but for the payload of NaN."""
    return all(
        (math.isnan(x) and math.isnan(y)) or struct.pack("d", x) == struct.pack("d", y)
        for x, y in zip(a, b, strict=True)
    )


def true_sum(parts: list[Pair]) -> tuple[float, mpmath.mpf]:
    """Maximum and sum of partial states, to 40 digits."""
    m = max(m for m, _ in parts)
    with mpmath.workdps(40):
        return m, mpmath.fsum(mpmath.mpf(s) * mpmath.exp(mpmath.mpf(m_i) - m) for m_i, s in parts if s)


def assert_within(got: Pair, parts: list[Pair], relative: float) -> None:
    m, s = true_sum(parts)
    assert got[0] == m
    error = abs(mpmath.mpf(got[1]) - s) / s
    assert error <= relative, (
        f"s={got[1]!r}, true {mpmath.nstr(s, 20)}: relative error {error} over {relative}"
    )


def pushed(t: Transcription, row: list[float]) -> Pair:
    m, s = IDENTITY
    for x in row:
        m, s = t.push(m, s, x)
    return m, s


# -- laws of every transcription


@every
@few
@given(a=states)
def test_identity_merges_away_bit_for_bit(t: Transcription, a: Pair) -> None:
    assert same(t.merge(*a, *IDENTITY), a)
    assert same(t.merge(*IDENTITY, *a), a)


@every
def test_nothing_and_nothing_is_nothing(t: Transcription) -> None:
    assert same(t.merge(*IDENTITY, *IDENTITY), IDENTITY)
    assert same(t.push(*IDENTITY, -INF), IDENTITY)


@every
@few
@given(a=states, b=states)
def test_merge_commutes_bit_for_bit(t: Transcription, a: Pair, b: Pair) -> None:
    assert same(t.merge(*a, *b), t.merge(*b, *a))


@every
def test_merge_commutes_where_every_bit_counts(t: Transcription) -> None:
    # A product fused into the addition on one side only differs from its mirror image in about one such pair
    # of ten.
    rng = np.random.default_rng(0)
    for m_a, m_b, s_a, s_b in zip(*rng.uniform(-1, 1, (2, 300)), *rng.uniform(1, 4, (2, 300)), strict=True):
        a, b = (narrow(m_a), narrow(s_a)), (narrow(m_b), float(s_b))
        assert same(t.merge(*a, *b), t.merge(*b, *a))


@every
@few
@given(a=seen, b=seen, c=seen)
def test_merge_associates_within_the_bound(t: Transcription, a: Pair, b: Pair, c: Pair) -> None:
    left = t.merge(*t.merge(*a, *b), *c)
    right = t.merge(*a, *t.merge(*b, *c))
    assert left[0] == right[0] == max(a[0], b[0], c[0])
    # Each partial sum goes through two merges at most; the exponents' part counts by what the sum holds of
    # it.
    heights = [m + math.log(s) for m, s in (a, b, c)]
    limit = float(bounds.sum_error(heights, bounds.merge_eta(2, u=t.u, e=t.e), u=t.u, tiny=t.tiny * 1e6))
    # heights are rounded, and lie above m by log(s): the distances they give are short by as much at most.
    limit += t.u * math.log(1e6)
    for got in (left, right):
        assert_within(got, [a, b, c], limit)


@every
@few
@given(row=rows)
def test_pushes_stay_within_the_streaming_bound(t: Transcription, row: list[float]) -> None:
    limit = float(bounds.sum_error(row, bounds.streaming_eta(row, u=t.u, e=t.e), u=t.u, tiny=t.tiny))
    assert_within(pushed(t, row), [(x, 1.0) for x in row], limit)


@every
@few
@given(row=rows_with_holes, data=st.data())
def test_any_split_any_order_any_tree_stays_within_the_bound(
    t: Transcription, row: list[float], data: st.DataObject
) -> None:
    assume(max(row) > -INF)
    row = data.draw(st.permutations(row))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(row)), max_size=5)))
    pieces = [row[i:j] for i, j in zip([0, *cuts], [*cuts, len(row)], strict=True)]
    parts = [pushed(t, piece) for piece in pieces]
    while len(parts) > 1:
        a = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        b = parts.pop(data.draw(st.integers(0, len(parts) - 1)))
        parts.append(t.merge(*a, *b))
    # Whatever the tree, a piece takes part in one merge for each other piece at most.
    eta = np.concatenate([bounds.streaming_eta(piece, u=t.u, e=t.e) for piece in pieces])
    eta = eta + bounds.merge_eta(len(pieces) - 1, u=t.u, e=t.e)
    limit = float(bounds.sum_error(row, eta, u=t.u, tiny=t.tiny))
    assert_within(parts[0], [(x, 1.0) for x in row if x > -INF], limit)


@every
@few
@given(row=rows)
def test_a_push_is_a_merge_with_one_entry(t: Transcription, row: list[float]) -> None:
    a = pushed(t, row[:-1])
    assert same(t.push(*a, row[-1]), t.merge(*a, row[-1], 1.0))


@every
@few
@given(row=st.lists(st.one_of(entries, st.just(-INF), st.just(INF)), max_size=12), at=st.integers(0, 12))
def test_nan_taints_wherever_it_stands(t: Transcription, row: list[float], at: int) -> None:
    tainted = [*row[:at], NAN, *row[at:]]
    assert same(pushed(t, tainted), (NAN, NAN))
    assert same(t.merge(*pushed(t, row), NAN, NAN), (NAN, NAN))


@every
@few
@given(
    row=st.lists(st.one_of(entries, st.just(-INF)), max_size=12),
    at=st.lists(st.integers(0, 12), min_size=1, max_size=4),
)
def test_plus_infinity_is_counted(t: Transcription, row: list[float], at: list[int]) -> None:
    infinite = list(row)
    for i in at:
        infinite.insert(min(i, len(infinite)), INF)
    assert same(pushed(t, infinite), (INF, float(len(at))))
    split = len(infinite) // 2
    halves = pushed(t, infinite[:split]), pushed(t, infinite[split:])
    assert same(t.merge(*halves[0], *halves[1]), (INF, float(len(at))))


@every
@few
@given(row=rows, at=st.integers(0, 24), holes=st.integers(1, 5))
def test_minus_infinity_adds_nothing(t: Transcription, row: list[float], at: int, holes: int) -> None:
    assert same(pushed(t, [*row[:at], *[-INF] * holes, *row[at:]]), pushed(t, row))


@every
def test_a_gap_past_the_formats_range_gives_no_nan(t: Transcription) -> None:
    top = float(np.finfo(t.dtype).max)
    assert t.merge(-top, 1.0, top, 2.0) == (top, 2.0)
    assert t.push(-top, 3.0, top) == (top, 1.0)
    assert t.push(top, 3.0, -top) == (top, 3.0)


# -- the Python law over arrays


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 33])
def test_a_tree_agrees_with_a_left_fold_within_the_bound(dtype: str, count: int) -> None:
    rng = np.random.default_rng(count)
    row = (20 * rng.standard_normal((4, count, 5))).astype(dtype)
    row[0, :, 1:] = -INF
    blocks = [law.push(law.identity((4,), dtype), row[:, i]) for i in range(count)]
    fold = law.identity((4,), dtype)
    for block in blocks:
        fold = law.merge(fold, block)
    u, tiny = bounds.unit_roundoff(dtype), bounds.smallest_subnormal(dtype)
    e = EXP_UNITS[dtype] * u
    leaf = e + 5 * u
    for (m, s), levels in ((fold, count), (law.merge_many(iter(blocks)), bounds.tree_levels(count))):
        for i in range(4):
            flat = row[i].ravel()
            eta = leaf + bounds.merge_eta(levels, u=u, e=e)
            limit = float(bounds.sum_error(flat, eta, u=u, tiny=tiny))
            assert_within((float(m[i]), float(s[i])), [(float(x), 1.0) for x in flat if x > -INF], limit)


def test_a_tree_joins_neighbours_in_order_and_no_deeper_than_log2() -> None:
    for count in range(1, 70):
        depth, text = law.tree(
            ((0, (i,)) for i in range(count)), lambda a, b: (max(a[0], b[0]) + 1, (*a[1], *b[1]))
        )
        assert text == tuple(range(count))
        assert depth == bounds.tree_levels(count) == math.ceil(math.log2(count))
    with pytest.raises(ValueError, match="states is empty"):
        law.merge_many([])


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("n", [1, 7, 128, 129, 1000, 5000])
def test_a_block_stays_within_the_batch_bound(dtype: str, n: int) -> None:
    x = (5 * np.random.default_rng(n).standard_normal(n)).astype(
        ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    )
    computed = "float64" if dtype == "float64" else "float32"
    u, e = bounds.unit_roundoff(computed), EXP_UNITS[computed] * bounds.unit_roundoff(computed)
    m, s = law.push(law.identity((), computed), x)
    assert m.dtype == s.dtype == computed
    # One more addition: the block's sum to the empty state's.
    eta = bounds.batch_eta(n, u=u, e=e, depth=bounds.pairwise_depth(n) + 1)
    limit = float(bounds.sum_error(x.astype(np.float64), eta, u=u, tiny=bounds.smallest_subnormal(computed)))
    assert_within((float(m), float(s)), [(float(v), 1.0) for v in x], limit)


def test_zero_maximum_has_no_sign() -> None:
    for m, _ in (
        law.push(law.identity((), "float32"), np.float32([-0.0, -1])),
        law.merge((np.float32(-0.0), np.float32(1)), (np.float32(-0.0), np.float32(1))),
    ):
        assert not np.signbit(m)
    assert not np.signbit(SoftmaxState(np.float32(-0.0), np.float32(1)).m)


def test_pivot_is_the_maximum_but_zero_where_infinite() -> None:
    m = np.array([3.5, INF, -INF, -2.0])
    np.testing.assert_array_equal(law.pivot(m), [3.5, 0, 0, -2])
    assert math.isnan(law.pivot(np.array(NAN)))

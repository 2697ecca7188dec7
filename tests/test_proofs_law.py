"""The running code against claims of proofs/ over the real numbers that no other test names.

The state is the Python law's and the native core's; the public functions are the native core's. Where a
claim is about the real numbers alone, the tolerance counts the roundings on the way; where floating point
keeps it to the bit, so does the test.
"""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

import online_softmax as osm
from online_softmax import _core, reference
from online_softmax import state as law
from online_softmax.traffic import model

INF, NAN = math.inf, math.nan
U = 2.0**-53
#: Sums of up to 60 positive terms: a rounding an addition, an exp within 2u, a rounded exponent of size up to
#: 60, a few products. All relative to the result, for nothing cancels.
ROUNDED = (60 + 2 + 60 + 10) * U

Row = np.ndarray


def rows() -> list[Row]:
    """Rows within [-30, 30]: short and long, in runs, with ties, with -inf first, last and in between."""
    rng = np.random.default_rng(9)
    plain = [rng.uniform(-30, 30, n) for n in (1, 2, 3, 7, 60)]
    sorted_ = [np.sort(plain[-1]), np.sort(plain[-1])[::-1]]
    ties = [np.full(12, 1.5), rng.integers(-3, 3, 40).astype(float)]
    masked = [
        np.array([-INF, 2.0, -INF]),
        np.array([3.0, -INF, 5.0]),
        np.where(plain[-1] > 10, -INF, plain[-1]),
    ]
    return [*plain, *sorted_, *ties, *masked]


def state(x: Row) -> tuple[float, float]:
    m, s = law.push(law.identity((), "float64"), x)
    native = osm.SoftmaxState.of(x)
    assert native.m == m
    np.testing.assert_allclose(native.s, s, rtol=ROUNDED)
    return float(m), float(s)


def prefixes(x: Row) -> list[tuple[float, float]]:
    """The states after 0, 1, ... entries, one push each; the native core's pushes agree but for their exp."""
    states, core = [law.identity((), "float64")], (-INF, 0.0)
    for entry in x:
        states.append(law.push(states[-1], [entry]))
        core = _core.law_push(*core, float(entry))
        assert core[0] == states[-1][0]
        np.testing.assert_allclose(core[1], states[-1][1], rtol=ROUNDED)
    return [(float(m), float(s)) for m, s in states]


# ---- Law.v, Streaming.v


def test_masses_add() -> None:
    """s * exp(m) of a merge is the sum of both, and with the maximum it tells the state."""
    for x, y in itertools.pairwise(rows()):
        (m, s), (m_x, s_x), (m_y, s_y) = state(np.concatenate([x, y])), state(x), state(y)
        mass = s_x * math.exp(m_x) + s_y * math.exp(m_y)
        assert math.isclose(s * math.exp(m), mass, rel_tol=4 * ROUNDED)
        for merged in (law.merge((m_x, s_x), (m_y, s_y)), _core.law_merge(m_x, s_x, m_y, s_y)):
            assert merged[0] == m
            assert math.isclose(merged[1], mass / math.exp(m), rel_tol=4 * ROUNDED)


def test_states_of_any_rows_are_valid() -> None:
    """(-inf, 0), or a finite maximum with a sum of 1 or more: of rows, of merges, after any push."""
    states = [(-INF, 0.0), state(np.full(4, -INF)), *(state(x) for x in rows())]
    merged = [tuple(map(float, law.merge(a, b))) for a in states for b in states]
    for m, s in [*states, *merged, *prefixes(np.array([-INF, 1.0, -2.0, -INF, 4.0]))]:
        assert (m == -INF and s == 0) or (math.isfinite(m) and s >= 1)
    assert states[:2] == [(-INF, 0.0)] * 2
    # Of a sum below 1, as partial attention and sinks have it, the sign is kept.
    for a, b in itertools.product([(-INF, 0.0), (2.0, 0.25), (-3.0, 1e-9), (40.0, 7.0)], repeat=2):
        m, s = map(float, law.merge(a, b))
        assert (m == -INF and s == 0) or (m == max(a[0], b[0]) and s > 0)


def test_every_exponent_is_at_most_0_and_one_is_0() -> None:
    for x in rows():
        exponents = x - state(x)[0]
        assert exponents.max() == 0


def test_the_normaliser_lies_between_1_and_c() -> None:
    """To the bit: every term is at most 1, one is 1, and rounding keeps the order of numbers."""
    for x in rows():
        for s in (state(x)[1], prefixes(x)[-1][1], float(osm.SoftmaxState.of(x).s)):
            assert 1 <= s <= len(x)
    for count in (1, 2, 5, 1000):
        assert state(np.full(count, -7.25))[1] == count
        assert state(np.array([4.0] + [-INF] * (count - 1)))[1] == 1
        # Finite entries: as near to 1 as one likes, never 1.
        for eps in (1e-3, 1e-12):
            x = np.array([0.0] + [math.log(eps / (count + 1))] * count)
            assert 1 < state(x)[1] < 1 + eps


def test_the_online_update_rescales_by_a_factor_in_0_1() -> None:
    for x in rows():
        for entry, (m, s), (m_new, s_new) in zip(x, prefixes(x), prefixes(x)[1:], strict=False):
            assert m_new == max(m, entry)
            if m == -INF:
                assert s == 0
                continue
            factor = float(law.weight(np.float64(m), np.float64(m_new)))
            assert 0 < factor <= 1
            assert (factor == 1) == (entry <= m)
            # Both forms of the update, to the bit: no product where nothing rises, 1 added where it does.
            term = float(law.weight(np.float64(entry), np.float64(m_new)))
            assert s_new == (s + term if entry <= m else s * factor + 1)


# ---- Guard.v


def unguarded(a: tuple[float, float], b: tuple[float, float]) -> tuple[float, float]:
    m = max(a[0], b[0])
    with np.errstate(invalid="ignore"):
        return m, float(a[1] * np.exp(np.float64(a[0]) - m) + b[1] * np.exp(np.float64(b[0]) - m))


def test_without_the_guard_a_merge_is_nan_where_the_maximum_is_infinite_and_only_there() -> None:
    states = [(-INF, 0.0), (-700.0, 1.0), (0.0, 2.0), (3.5, 1.25), (700.0, 4.0), (INF, 1.0), (INF, 3.0)]
    for a, b in itertools.product(states, repeat=2):
        plain, guarded = unguarded(a, b), tuple(map(float, law.merge(a, b)))
        assert math.isnan(plain[1]) == math.isinf(max(a[0], b[0]))
        if math.isinf(max(a[0], b[0])):
            count = sum(s for m, s in (a, b) if m == INF)
            assert guarded == (max(a[0], b[0]), count)
        else:
            assert guarded == plain
        core = _core.law_merge(*a, *b)
        assert core[0] == guarded[0]
        assert math.isclose(core[1], guarded[1], rel_tol=4 * U)


def test_the_guarded_merge_is_associative_with_plus_infinity_too() -> None:
    """Maxima so far apart, or so equal, that every sum is exact: associative to the bit."""
    states = [(-INF, 0.0), (-1000.0, 3.0), (5.0, 1.0), (5.0, 2.5), (INF, 1.0), (INF, 4.0)]
    for a, b, c in itertools.product(states, repeat=3):
        left, right = law.merge(law.merge(a, b), c), law.merge(a, law.merge(b, c))
        assert tuple(map(float, left)) == tuple(map(float, right))


# ---- Pivots.v


def at(x: Row, r: float) -> float:
    return float(np.exp(x - r).sum())


def test_any_finite_pivot_carries_the_state() -> None:
    """What the merge makes of sums at pivots that are not the maximum reads as the row's lse; brought to its
    maximum it is the row's state."""
    for x, y in itertools.pairwise(rows()):
        m, s = state(np.concatenate([x, y]))
        for r, t in ((0.0, 0.0), (-20.0, 3.0), (25.0, -40.0)):
            pivot, total = map(float, law.merge((r, at(x, r)), (t, at(y, t))))
            assert pivot == max(r, t)
            assert math.isclose(total * math.exp(pivot - m), s, rel_tol=4 * ROUNDED)
            lse = float(law.lse(np.float64(pivot), np.float64(total)))
            assert math.isclose(lse, m + math.log(s), rel_tol=4 * U, abs_tol=4 * ROUNDED)


def test_a_stream_whose_pivot_moves_when_it_will_ends_at_the_state() -> None:
    """A pivot that moves only past a rise of 8, as conditional rescaling does, and one that wanders."""
    for x in rows():
        m, s = state(x)
        wander = np.random.default_rng(1).uniform(-30, 30, len(x))
        for lazy in (True, False):
            pivot, total, greatest = 0.0, 0.0, -INF
            for entry, other in zip(x, wander, strict=True):
                new = other if not lazy else float(entry) if entry > pivot + 8 else pivot
                total = total * math.exp(pivot - new) + math.exp(entry - new)
                pivot, greatest = new, max(greatest, entry - new)
            # Each step rounds a factor, a product, a term and a sum, and exponents of size up to 60.
            assert math.isclose(total * math.exp(pivot - m), s, rel_tol=len(x) * 66 * U)
            assert greatest <= 8 or not lazy


def test_base_2_carries_the_same_sum() -> None:
    log2e = 1 / math.log(2)
    for x in rows():
        m, s = state(x)
        scaled = x * log2e
        # Scaled scores are rounded: up to 44 * u in an exponent of 2.
        assert math.isclose(float(np.exp2(scaled - m * log2e).sum()), s, rel_tol=2 * ROUNDED)
        whole = math.ceil(m * log2e)
        below, above = (float(np.exp2(scaled - k).sum()) for k in (whole - 3, whole))
        assert math.isclose(below * 2.0**-3, above, rel_tol=2 * ROUNDED)
        lse = (whole + math.log2(above)) * math.log(2)
        assert math.isclose(lse, m + math.log(s), rel_tol=4 * U, abs_tol=4 * ROUNDED)
        partial = osm.AttentionState.from_lse(np.ones((1, 1)), np.array([lse * log2e]), "2")
        np.testing.assert_allclose(partial.lse, m + math.log(s), rtol=8 * U, atol=4 * ROUNDED)


# ---- Rescales.v


def test_new_maxima_over_all_orders_of_a_row() -> None:
    """6! rows at once through the law: place k + 1 rescales in one order of k + 1, H_6 times on average."""
    values = [3.0, -1.0, 0.5, 7.25, -4.0, 2.0]
    orders = np.array(list(itertools.permutations(values)))
    assert len(orders) == math.factorial(6)
    current, total = law.identity((len(orders),), "float64"), 0
    for k, column in enumerate(orders.T):
        new = law.push(current, column[:, None])
        rescaled = law.weight(current[0], new[0]) != 1
        assert (k + 1) * int(rescaled.sum()) == len(orders)
        current, total = new, total + int(rescaled.sum())
    assert (
        Fraction(total, len(orders)) == sum(Fraction(1, n) for n in range(1, 7)) == model.expected_maxima(6)
    )


# ---- Softmax.v


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_shift_of_the_row_changes_nothing(dtype: str) -> None:
    """Whole numbers moved by whole numbers, so that the row itself is not rounded: the law's sum keeps its
    bits. The kernels take other pivots than the maximum, and differ by what one result may err twice."""
    x = np.random.default_rng(0).integers(-20, 20, (4, 50)).astype(dtype)
    x[1, ::3] = -INF
    u = float(np.finfo(dtype).eps) / 2
    for c in (1.0, -300.0, 4096.0):
        moved = (x + c).astype(dtype)
        a, b = (law.push(law.identity((4,), dtype), row) for row in (x, moved))
        np.testing.assert_array_equal(b[0], a[0] + np.asarray(c, dtype))
        np.testing.assert_array_equal(b[1], a[1])
        np.testing.assert_allclose(osm.softmax(moved), osm.softmax(x), rtol=32 * u)
        np.testing.assert_allclose(osm.log_softmax(moved), osm.log_softmax(x), rtol=4 * u, atol=32 * u)
        lse = osm.logsumexp(x).astype(np.float64)
        np.testing.assert_allclose(osm.logsumexp(moved), lse + c, rtol=2 * u, atol=30 * u)


def test_any_constant_gives_the_softmax() -> None:
    for x in rows():
        expected = osm.softmax(x)
        for c in (0.0, 13.5, -29.0):
            np.testing.assert_allclose(np.exp(x - c) / at(x, c), expected, rtol=2 * ROUNDED)


def test_results_are_read_off_the_state() -> None:
    """y = exp(x - m) / s, log y = (x - m) - log(s) = x - lse, lse = m + log(s), sum of exp = s * exp(m)."""
    for x in rows():
        m, s = state(x)
        finite = x > -INF
        np.testing.assert_allclose(osm.softmax(x), np.exp(x - m) / s, rtol=2 * ROUNDED)
        lse = float(osm.logsumexp(x))
        assert math.isclose(lse, m + math.log(s), rel_tol=4 * U, abs_tol=2 * ROUNDED)
        for log_y in (
            osm.log_softmax(x),
            np.where(finite, np.log(np.where(finite, osm.softmax(x), 1)), -INF),
        ):
            np.testing.assert_allclose(log_y, (x - m) - math.log(s), rtol=4 * U, atol=4 * ROUNDED)
            np.testing.assert_allclose(log_y, x - lse, rtol=4 * U, atol=4 * ROUNDED)
        assert math.isclose(at(x, 0.0), s * math.exp(m), rel_tol=2 * ROUNDED)


def test_the_lse_lies_between_the_maximum_and_log_c_above() -> None:
    for x in [*rows(), np.full(17, -3.0)]:
        m, lse = float(x.max()), float(osm.logsumexp(x))
        # log C is rounded, and so is its sum with m.
        assert m <= lse <= (m + math.log(len(x))) + 2 * U * (abs(m) + math.log(len(x)))


def test_probabilities_are_probabilities() -> None:
    for x in rows():
        y = osm.softmax(x)
        assert ((y == 0) == (x == -INF)).all()
        assert ((y >= 0) & (y <= 1)).all()
        # Each is off by its share of a relative error, so the sum is by no more than that.
        assert abs(math.fsum(y) - 1) <= 2 * ROUNDED
        # A greater score has the greater probability: apart by 1e-9, far more than errors.
        order = np.argsort(x)
        rises = x[order][1:] > x[order][:-1] + 1e-9
        assert (y[order][1:] > y[order][:-1])[rises].all()


def test_a_part_counts_by_its_share() -> None:
    for x, y in itertools.pairwise(rows()):
        whole = osm.softmax(np.concatenate([x, y]))
        share = 1 / (1 + math.exp(float(osm.logsumexp(y)) - float(osm.logsumexp(x))))
        # An lse near 30 is rounded to 2 ** -49: its error is one of the exponent.
        np.testing.assert_allclose(whole[: len(x)], osm.softmax(x) * share, rtol=4 * ROUNDED + 2 * 30 * U)


# ---- Gradients.v


def test_gradients_are_the_formulas() -> None:
    """p, p_i (delta_ij - p_j), p_j - delta_tj and the products with an upstream gradient; against central
    differences as well."""
    rng = np.random.default_rng(2)
    for n in (1, 2, 9):
        x, g, q = rng.normal(size=n), rng.normal(size=n), rng.dirichlet(np.ones(n))
        p, eye, t, h = osm.softmax(x), np.eye(n), n // 2, 1e-6
        np.testing.assert_allclose(reference.logsumexp_vjp(x, np.float64(1)), p, rtol=1e-14)
        for i in range(n):
            np.testing.assert_allclose(reference.softmax_vjp(x, eye[i]), p[i] * (eye[i] - p), atol=1e-15)
            np.testing.assert_allclose(reference.log_softmax_vjp(x, eye[i]), eye[i] - p, atol=1e-15)
        np.testing.assert_allclose(reference.softmax_vjp(x, g), p * (g - g @ p), atol=1e-14)
        np.testing.assert_allclose(reference.log_softmax_vjp(x, g), g - p * g.sum(), atol=1e-14)
        for target, minus in ((t, eye[t]), (q, q)):
            gradient = osm.cross_entropy_backward(1.0, x, target)
            np.testing.assert_allclose(gradient, p - minus, atol=1e-15)
            assert abs(gradient.sum()) <= 1e-15 * n
            for j in range(n):
                up, down = (float(osm.cross_entropy(x + d * eye[j], target)) for d in (h, -h))
                # Third derivatives are below 1 / 4, values below 8: h ** 2 / 24 and 2 * 8u / h.
                assert abs((up - down) / (2 * h) - gradient[j]) <= h**2 + 16 * U / h

"""What proofs/ shows of floating point, held to the code: simulated runs obey the proved formulas on hard
rows, and the bounds of `numerics` agree with them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from online_softmax.numerics import bounds
from online_softmax.numerics.error_bound import error_bound
from online_softmax.numerics.hard_rows import hard_rows
from online_softmax.numerics.roundoff import Rounding
from online_softmax.numerics.simulate import Machine, machine, simulate

PROOFS = Path(__file__).resolve().parents[1] / "proofs"
FORMATS = ("float32", "float16", "bfloat16")
wide = np.longdouble
N = 150
BLOCK = 16


@dataclass(frozen=True)
class Proved:
    """The constants of proofs/Rounding.v in a format, with an exponential that is good to a rounding."""

    u: float
    tiny: float
    gap: float
    e1: float

    @classmethod
    def of(cls, format: str, *, flush: bool = False) -> Proved:
        rounding = Rounding.of(format, flush=flush)
        e = rounding.u + 2.0**-50  # the simulation rounds a float64's exponential
        gap = rounding.normal if flush else 0.0
        return cls(rounding.u, rounding.tiny, gap, e / (1 - e) + gap)

    def weighted(self, x: np.ndarray, k: np.ndarray) -> np.ndarray:
        """Theorem sum_error: what |s - S| may be, of counts k."""
        d = x.max(axis=-1, keepdims=True) - x
        each = np.exp(-(1 - self.u) * d + k) - np.exp(-d)
        return each.sum(axis=-1) + self.underflow(x, k.max(axis=-1))

    def underflow(self, x: np.ndarray, greatest: np.ndarray) -> np.ndarray:
        return 3 * x.shape[-1] * self.tiny * np.exp(greatest)

    def drift(self, x: np.ndarray, k: np.ndarray) -> np.ndarray:
        """Theorem log_error: what |ln s - ln S| may be, of counts k."""
        greatest = k.max(axis=-1)
        log_n = math.log(x.shape[-1]) - np.log(true_sum(x))
        return self.u * log_n + greatest + self.underflow(x, greatest)

    def counts(self, x: np.ndarray, algorithm: str, *, fused: bool = False) -> np.ndarray:
        """k of each entry of rows (..., n), as FloatStreaming.v, FloatMerge.v and FloatFused.v have them."""
        n = x.shape[-1]
        block = 1 if algorithm == "streaming" else BLOCK
        if algorithm == "batch":
            return np.full(x.shape, (n - 1) * self.u + self.e1)
        blocks = -(-n // block)
        if algorithm == "tree":
            levels = (blocks - 1).bit_length()
            return np.full(x.shape, (block - 1) * self.u + self.e1 + levels * (2 * self.u + self.e1))
        ends = np.minimum(np.arange(1, blocks + 1) * block, n)
        tops = np.maximum.accumulate(x, axis=-1)[..., ends - 1]
        risen = np.cumsum(np.diff(tops, axis=-1) > 0, axis=-1)
        risen = np.concatenate((np.zeros_like(risen[..., :1]), risen), axis=-1)
        later = risen[..., -1:] - risen
        additions = block - 1 + blocks - np.arange(blocks)
        additions[0] -= 1  # the first block's sum is added to nothing
        step = self.e1 if fused else self.e1 + self.u
        return np.repeat(additions * self.u + later * step + self.e1, block, axis=-1)[..., :n]


def true_sum(x: np.ndarray) -> np.ndarray:
    x = x.astype(wide)
    return np.exp(x - x.max(axis=-1, keepdims=True)).sum(axis=-1)


@cache
def rows(format: str) -> np.ndarray:
    """Hard rows of finite entries that are 0 or normal."""
    kept = [row for name, row in hard_rows(N, format, 3).items() if name != "-inf"]
    x = np.stack(kept)
    small = np.abs(x.astype(np.float64)) < Rounding.of(format).normal
    return np.where(small, np.zeros((), x.dtype), x)


def holds(s: np.ndarray, x: np.ndarray, k: np.ndarray, law: Proved) -> np.ndarray:
    """Assert the weighted and the logarithmic form; the share of the latter that is reached."""
    held = x.astype(np.float64)
    true = true_sum(held)
    assert (s.astype(wide) >= 1).all()
    assert (np.abs(s.astype(wide) - true) <= law.weighted(held, k) * (1 + 1e-9) + 1e-17 * true).all()
    off = np.abs(np.log(s.astype(wide)) - np.log(true))
    told = law.drift(held, k)
    assert (off <= told * (1 + 1e-9) + 1e-17).all()
    return np.asarray(off / told, dtype=np.float64)


# --- one operation ---


def test_the_formats_of_the_proofs_are_numpys() -> None:
    text = (PROOFS / "Rounding.v").read_text(encoding="utf-8")
    found = re.findall(r"Definition (\w+) : Format :=\s+\{\| prec := (\d+); emin := (-?\d+);", text)
    assert {name for name, *_ in found} == {"float64", *FORMATS}
    for name, prec, emin in found:
        rounding = Rounding.of(name)
        assert rounding.u == 2.0 ** -int(prec)
        assert rounding.normal == 2.0 ** (int(emin) + int(prec) - 1)
        assert bounds.smallest_subnormal(name) == 2.0 ** int(emin)
        assert Rounding.of(name, flush=True).tiny == rounding.normal


def test_an_addition_is_off_by_no_more_than_either_number() -> None:
    """Every float16 with some others: the rule that bounds sums that stall."""
    a = np.arange(2**16, dtype=np.uint16).view(np.float16)
    a = a[np.isfinite(a)]
    for b in (np.float16(1.0), np.float16(-0.33), np.float16(2.0**-24), np.float16(1500.0)):
        low = a[np.abs(a) < 64000].astype(np.float64)
        exact = low + float(b)
        off = np.abs((low.astype(np.float16) + b).astype(np.float64) - exact)
        told = np.minimum(np.minimum(np.abs(low), abs(float(b))), 2.0**-11 * np.abs(exact))
        assert (off <= told).all()
        assert (off == told).any()


@pytest.mark.parametrize("format", FORMATS)
def test_the_simulations_exponential_is_one_of_the_proofs(format: str) -> None:
    unit, law = machine(format), Rounding.of(format)
    x = -np.abs(rows(format))
    computed = unit.exp(x).astype(np.float64)
    true = np.exp(x.astype(np.float64))
    e = law.u + 2.0**-50
    assert (computed <= 1).all()
    assert (computed[x == 0] == 1).all()
    assert (np.abs(computed - true) <= e * true + np.where((1 - e) * true >= law.normal, 0, law.tiny)).all()


def test_an_entry_of_minus_infinity_changes_no_bit() -> None:
    for format in FORMATS:
        x = rows(format)
        with_some = np.insert(x, [1, 7, 7, N], np.asarray(-np.inf, x.dtype), axis=-1)
        for algorithm in ("batch", "streaming"):
            s, other = simulate(x, algorithm, format).s, simulate(with_some, algorithm, format).s
            assert s.tobytes() == other.tobytes()


# --- algorithms ---


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("algorithm", ["batch", "streaming", "blocked", "tree"])
def test_a_run_keeps_within_the_proved_bound(algorithm: str, format: str, flush: bool) -> None:
    x = rows(format)
    block = BLOCK if algorithm in ("blocked", "tree") else None
    s = simulate(x, algorithm, format, block=block, flush=flush).s
    law = Proved.of(format, flush=flush)
    reached = holds(s, x, law.counts(x.astype(np.float64), algorithm), law)
    assert reached.max() > 1e-3
    if not flush:  # where underflow is all of it, counts do not matter
        with pytest.raises(AssertionError):
            holds(s, x, 1e-3 * law.counts(x.astype(np.float64), algorithm), law)


def test_streaming_is_blocks_of_one_entry() -> None:
    x = rows("float16")
    one, other = (simulate(x, a, "float16", block=b) for a, b in (("streaming", None), ("blocked", 1)))
    assert one.s.tobytes() == other.s.tobytes()
    assert one.m.tobytes() == other.m.tobytes()


def test_streamings_eta_is_the_proved_count_to_first_order() -> None:
    """The first entry is added to nothing, where `numerics` counts an addition."""
    u, e = 2.0**-24, 3 * 2.0**-24
    first_order = Proved(u=u, tiny=0.0, gap=0.0, e1=e)
    for row in rows("float32").astype(np.float64):
        k = first_order.counts(row[None], "streaming")[0]
        eta = bounds.streaming_eta(row, u=u, e=e)
        np.testing.assert_allclose(eta[1:], k[1:], rtol=1e-12)
        assert eta[0] == pytest.approx(k[0] + u, rel=1e-12)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("algorithm", ["batch", "streaming", "blocked", "tree"])
def test_error_bound_says_no_more_than_what_is_proved(algorithm: str, format: str) -> None:
    """But for the slack of some hundredths that it takes for sums that grow."""
    x = rows(format)
    block = {"block": BLOCK} if algorithm in ("blocked", "tree") else {}
    law = Proved.of(format)
    told = error_bound(x, algorithm, format, exp_error=law.u + 2.0**-50, **block).s
    held = x.astype(np.float64)
    proved = law.weighted(held, law.counts(held, algorithm)) / true_sum(held).astype(np.float64)
    assert (told <= 1.02 * proved).all()


def test_a_sum_is_at_least_1_and_at_most_about_n() -> None:
    for format in FORMATS:
        x, law = rows(format), Proved.of(format)
        s = simulate(x, "streaming", format).s.astype(np.float64)
        most = N * np.exp(law.counts(x.astype(np.float64), "streaming").max(axis=-1)) * (1 + 3 * law.tiny)
        assert (s >= 1).all()
        assert (s <= most).all()


# --- fused ---


def exp16(d: np.ndarray) -> np.ndarray:
    return np.exp(d.astype(np.float64)).astype(np.float16)


def fused16(s: np.ndarray, r: np.ndarray, t: np.ndarray) -> np.ndarray:
    """s * r + t with one rounding: in float64 it is exact, for s below 2^11."""
    return (s.astype(np.float64) * r.astype(np.float64) + t.astype(np.float64)).astype(np.float16)


def test_the_fused_update_keeps_within_the_proved_bound() -> None:
    x = np.concatenate([rows("float16"), (np.arange(N) * 2.0**-8).astype(np.float16)[None]])
    x = x[np.ptp(x.astype(np.float64), axis=-1) < 6e4]
    m, s = x[:, 0], np.ones(len(x), np.float16)
    for k in range(1, N):
        top = np.maximum(m, x[:, k])
        s = fused16(s, exp16(m - top), exp16(x[:, k] - top))
        m = top
    law = Proved.of("float16")
    holds(s, x, law.counts(x.astype(np.float64), "streaming", fused=True), law)


@pytest.mark.parametrize("fused", [False, True])
def test_a_chain_of_merges_keeps_within_the_proved_bound(fused: bool) -> None:
    """p states merged one after another: 2u + e a merge, or u + e where product and sum are rounded once."""
    x = rows("float16")
    x = x[np.ptp(x.astype(np.float64), axis=-1) < 6e4]
    unit, law = machine("float16"), Proved.of("float16")
    tops, sums = states(x, unit)
    m, s = tops[:, 0], sums[:, 0]
    for k in range(1, tops.shape[1]):
        m, s = (merge_fused if fused else merge)(m, s, tops[:, k], sums[:, k], unit)
    each = (1 if fused else 2) * law.u + law.e1
    greatest = (BLOCK - 1) * law.u + law.e1 + (tops.shape[1] - 1) * each
    holds(s, x, np.full(x.shape, greatest), law)


def states(x: np.ndarray, unit: Machine) -> tuple[np.ndarray, np.ndarray]:
    """Maxima and sums of blocks, (rows, blocks)."""
    blocks = [x[:, k : k + BLOCK] for k in range(0, x.shape[1], BLOCK)]
    tops = np.stack([b.max(axis=-1) for b in blocks], axis=-1)
    return tops, np.stack([unit.running(unit.leaf(b, b.max(axis=-1)[:, None])) for b in blocks], axis=-1)


def merge(
    m: np.ndarray, s: np.ndarray, other: np.ndarray, by: np.ndarray, unit: Machine
) -> tuple[np.ndarray, np.ndarray]:
    top = np.maximum(m, other)
    return top, unit.add(unit.times(s, unit.factor(m, top)), unit.times(by, unit.factor(other, top)))


def merge_fused(
    m: np.ndarray, s: np.ndarray, other: np.ndarray, by: np.ndarray, unit: Machine
) -> tuple[np.ndarray, np.ndarray]:
    """As `merge` of gpu/state.py: the sum at the higher maximum counts whole."""
    top, under = np.maximum(m, other), m < other
    low, s_low, s_top = np.where(under, m, other), np.where(under, s, by), np.where(under, by, s)
    return top, fused16(s_low, unit.factor(low, top), s_top)


def test_states_in_pairs_take_ceil_log2_levels() -> None:
    for states_ in range(1, 300):
        left, levels = states_, 0
        while left > 1:
            left, levels = left // 2 + left % 2, levels + 1
        assert bounds.tree_levels(states_) == levels == (states_ - 1).bit_length()
        assert states_ <= 2**levels


# --- from entries to the sum ---


def test_the_exponents_errors_weigh_u_log_n_exactly() -> None:
    """Not to first order: for a u of 1/8, too."""
    for v in (2.0**-24, 2.0**-8, 0.125):
        for row in rows("float32").astype(wide):
            d = row.max() - row
            s = np.exp(-d).sum()
            reach = v * (np.log(wide(N)) - np.log(s))
            slack = 1e-16 * N
            assert np.exp(-(1 - v) * d).sum() <= s * np.exp(reach) + slack
            assert np.exp(-(1 + v) * d).sum() >= s * np.exp(-reach) - slack


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_results_keep_within_what_follows_from_the_sum(format: str, flush: bool) -> None:
    x = rows(format)
    law, held = Proved.of(format, flush=flush), rows(format).astype(np.float64)
    result = simulate(x, "blocked", format, block=BLOCK, flush=flush)
    h = law.drift(held, law.counts(held, "blocked"))
    true = true_sum(held)
    d = (held.max(axis=-1, keepdims=True) - held).astype(wide)
    log_s = np.log(true)
    # softmax_error
    w = law.u * d + law.e1 + (h + law.u)[:, None]
    assert (result.y.astype(wide) <= np.exp(w - d) / true[:, None] + 3 * law.tiny + 1e-18).all()
    assert (result.y.astype(wide) >= np.exp(-w - d) / true[:, None] - 3 * law.tiny - 1e-18).all()
    # lse_error and log_softmax_error, of a logarithm that is good to a rounding
    a = h + law.u * (1 + 1e-6) * (log_s + h) + law.tiny
    lse = held.max(axis=-1) + log_s
    assert (np.abs(result.lse.astype(wide) - lse) <= a + law.u * (np.abs(lse) + a) + law.gap).all()
    b = a[:, None] + law.u * d + law.gap
    log_y = -d - log_s[:, None]
    kept = np.isfinite(result.log_y.astype(np.float64))  # a difference beyond the format is no number of it
    told = b + law.u * (np.abs(log_y) + b) + law.gap
    assert (np.abs(result.log_y.astype(wide) - log_y) <= told)[kept].all()
    assert kept.mean() > 0.9


# --- powers of two ---


def merge_powers(a: tuple[int, np.floating], b: tuple[int, np.floating]) -> tuple[int, np.floating]:
    """States (k, s) that stand for s * 2^k."""
    k = max(a[0], b[0])
    return k, np.ldexp(a[1], a[0] - k) + np.ldexp(b[1], b[0] - k)


def test_a_merge_at_powers_of_two_rounds_once() -> None:
    draw = np.random.default_rng(0)
    for _ in range(500):
        a, b = ((int(draw.integers(-14, 14)), np.float32(draw.uniform(1, 2))) for _ in range(2))
        k, s = merge_powers(a, b)
        exact = math.ldexp(float(a[1]), a[0]) + math.ldexp(float(b[1]), b[0])  # 24 + 28 bits
        assert math.ldexp(float(s), k) == float(np.float32(exact))
        assert merge_powers(b, a) == (k, s)


def test_a_tree_at_powers_of_two_errs_by_its_height() -> None:
    """In float16, whatever the pivots: no exponential, no product."""
    draw = np.random.default_rng(1)
    for _ in range(20):
        level = [
            (int(k), np.float16(s))
            for k, s in zip(draw.integers(0, 12, 64), draw.uniform(1, 2, 64), strict=True)
        ]
        true = math.fsum(math.ldexp(float(s), k) for k, s in level)
        height = 0
        while len(level) > 1:
            level = [merge_powers(*pair) for pair in zip(level[::2], level[1::2], strict=True)]
            height += 1
        k, s = level[0]
        assert abs(math.log(math.ldexp(float(s), k) / true)) <= height * 2.0**-11


def test_what_a_power_of_two_pushes_under_is_tiny() -> None:
    """float16: scaled numbers that stay normal are exact, and below that off by half the smallest number."""
    draw = np.random.default_rng(2)
    law = Rounding.of("float16")
    lost = 0
    for _ in range(500):
        a, b = (
            (0, np.float16(draw.uniform(1, 2))),
            (-int(draw.integers(1, 24)), np.float16(draw.uniform(1, 2))),
        )
        scaled = float(np.ldexp(b[1], b[0]))
        exact = math.ldexp(float(b[1]), b[0])
        if exact >= law.normal:
            assert scaled == exact
        lost += scaled != exact
        v = float(a[1]) + exact
        k, s = merge_powers(a, b)
        assert k == 0
        assert (v - law.tiny) * math.exp(-law.u) <= float(s) <= (v + law.tiny) * math.exp(law.u)
    assert lost > 20


# --- the output of attention ---


@pytest.mark.parametrize("flush", [False, True])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("algorithm", ["batch", "streaming", "blocked", "tree"])
def test_an_output_keeps_within_the_proved_bound(algorithm: str, format: str, flush: bool) -> None:
    """Values of both signs, whose weighted sums cancel."""
    x, law = rows(format), Proved.of(format, flush=flush)
    v = np.random.default_rng(4).standard_normal((*x.shape, 2)).astype(x.dtype)
    block = BLOCK if algorithm in ("blocked", "tree") else None
    o = simulate(x, algorithm, format, block=block, flush=flush, values=v).o
    assert o is not None
    held, values = x.astype(np.float64), v.astype(wide)
    k = law.counts(held, algorithm)
    h, greatest = law.drift(held, k), k.max(axis=-1) + law.u  # each product with v is rounded
    d = (held.max(axis=-1, keepdims=True) - held).astype(wide)
    true = true_sum(held)[:, None]
    p = np.exp(-d) / true
    exact = (p[..., None] * values).sum(axis=-2)
    wider = np.exp(law.u * d + (greatest + h + law.u)[:, None] - d) / true - p
    operations = 3 * N  # a product, an addition and a rescale for each entry at the most
    underflow = law.tiny * np.exp(greatest + law.u)[:, None] * (3 * np.abs(values).sum(axis=-2) + operations)
    told = (wider[..., None] * np.abs(values)).sum(axis=-2) + underflow + law.tiny
    assert (np.abs(o.astype(wide) - exact) <= told + 1e-17).all()
    # The bounds of `numerics` say about the same where the sum's own error leaves a lower bound of it.
    options: dict = {"block": block} if block else {}
    options |= {"values": v, "exp_error": law.u + 2.0**-50, "flush": flush}
    bound = error_bound(x, algorithm, format, **options)
    assert bound.o is not None
    kept = bound.s < 0.5
    assert kept.sum() >= 6
    assert (bound.o <= 1.02 * told)[kept].all()

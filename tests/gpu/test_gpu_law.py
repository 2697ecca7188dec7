"""The law as Triton's device functions, held to what `online_softmax.state` says of it."""

# ruff: noqa: E402  # what is imported last needs the two libraries
from __future__ import annotations

import numpy as np
import pytest
from helpers import assert_same_bits, noise

pytest.importorskip("triton", reason="triton is not installed: pip install 'online-softmax[triton]'")
torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'online-softmax[torch]'")

import ml_dtypes
import triton
import triton.language as tl
from gpu_helpers import BF16, EXP_UNITS, TINY, U, exp_error, to_numpy, to_torch

from online_softmax import reference
from online_softmax import state as law
from online_softmax.gpu import state
from online_softmax.numerics import bounds

INF, NAN = np.inf, np.nan


@triton.jit
def merge_kernel(ma_ptr, sa_ptr, mb_ptr, sb_ptr, m_ptr, s_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    m, s = state.merge(tl.load(ma_ptr + i), tl.load(sa_ptr + i), tl.load(mb_ptr + i), tl.load(sb_ptr + i))
    tl.store(m_ptr + i, m)
    tl.store(s_ptr + i, s)


@triton.jit
def block_kernel(x_ptr, m_ptr, s_ptr, R: tl.constexpr, C: tl.constexpr):
    """States of rows of C, through of_block, push to nothing, and join of one state an element."""
    i = tl.arange(0, R)[:, None]
    x = tl.load(x_ptr + i * C + tl.arange(0, C)[None, :])
    m, s, _ = state.of_block(x, 1, True)
    tl.store(m_ptr + i, m)
    tl.store(s_ptr + i, s)
    m, s = state.identity([R, 1])
    m, s = state.push(m, s, x, 1, True)
    tl.store(m_ptr + R + i, m)
    tl.store(s_ptr + R + i, s)
    m, s = state.identity([R, C])
    m, s = state.merge(m, s, x, tl.where(x == -float("inf"), 0.0, tl.where(x == x, 1.0, x)))
    m, s = state.join(m, s, 1)
    tl.store(m_ptr + 2 * R + i, m)
    tl.store(s_ptr + 2 * R + i, s)


@triton.jit
def finish_kernel(x_ptr, m_ptr, s_ptr, y_ptr, log_ptr, lse_ptr, guard_ptr, N: tl.constexpr):
    i = tl.arange(0, N)
    x, m, s = tl.load(x_ptr + i), tl.load(m_ptr + i), tl.load(s_ptr + i)
    tl.store(y_ptr + i, state.value(x, m, s, True))
    tl.store(log_ptr + i, state.log_value(x, m, s))
    tl.store(lse_ptr + i, state.lse(m, s))
    tl.store(guard_ptr + i, state.guard(m))


@triton.jit
def function_kernel(x_ptr, y_ptr, N: tl.constexpr, NAME: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(x_ptr + i)
    if NAME == "log":
        tl.store(y_ptr + i, state.log(x))
    elif NAME == "wide":
        tl.store(y_ptr + i, state.wide(x))
    elif NAME == "narrow":
        tl.store(y_ptr + i, state.narrow(x, y_ptr.dtype.element_ty))
    else:
        tl.store(y_ptr + i, state.exp(x, NAME == "exact"))


def merge(ma: np.ndarray, sa: np.ndarray, mb: np.ndarray, sb: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    m, s = torch.empty(ma.size), torch.empty(ma.size)
    with np.errstate(all="ignore"):
        merge_kernel[(1,)](*(to_torch(a) for a in (ma, sa, mb, sb)), m, s, ma.size)
    return m.numpy(), s.numpy()


def states_of(x: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """States of the rows of x in the three ways of `block_kernel`, (3, rows) each."""
    m, s = torch.empty(3, len(x)), torch.empty(3, len(x))
    with np.errstate(all="ignore"):
        block_kernel[(1,)](to_torch(x), m, s, *x.shape)
    return m, s


def apply(name: str, x: np.ndarray, dtype: torch.dtype = torch.float32) -> np.ndarray:
    y = torch.empty(x.size, dtype=dtype)
    with np.errstate(all="ignore"):
        function_kernel[(1,)](to_torch(x), y, x.size, name)
    return to_numpy(y)


def states() -> tuple[np.ndarray, np.ndarray]:
    """All kinds of states: of nothing, tied maxima, zeros, +inf counted, NaN, and ordinary ones."""
    m = np.array([-INF, 0, 0, 1.5, -2, 3e38, -3e38, INF, INF, NAN], np.float32)
    s = np.array([0, 1, 3, 1, 7.25, 2, 2, 1, 4, NAN], np.float32)
    more = noise((6,), np.dtype(np.float32), scale=20)
    return np.concatenate([m, more]), np.concatenate([s, np.exp(np.abs(more)) + 1])


def pairs() -> tuple[np.ndarray, ...]:
    m, s = states()
    a, b = (part.ravel() for part in np.meshgrid(np.arange(m.size), np.arange(m.size)))
    return m[a], s[a], m[b], s[b]


def test_the_state_of_nothing_changes_nothing() -> None:
    m, s = states()
    nothing = np.full(m.size, -INF, np.float32), np.zeros(m.size, np.float32)
    for got in (merge(m, s, *nothing), merge(*nothing, m, s)):
        assert_same_bits(got[0], m)
        assert_same_bits(got[1], s)


def test_merging_is_commutative_bit_for_bit() -> None:
    ma, sa, mb, sb = pairs()
    ab, ba = merge(ma, sa, mb, sb), merge(mb, sb, ma, sa)
    for x, y in zip(ab, ba, strict=True):
        np.testing.assert_array_equal(x.view(np.uint32), y.view(np.uint32))


def test_a_maximum_of_negative_zero_comes_out_positive() -> None:
    zeros, ones = np.full(2, -0.0, np.float32), np.ones(2, np.float32)
    for other in (np.full(2, -INF, np.float32), zeros):
        m, _ = merge(zeros, ones, other, ones)
        assert not np.signbit(m).any()


def test_merging_is_that_of_python() -> None:
    ma, sa, mb, sb = pairs()
    m, s = merge(ma, sa, mb, sb)
    wide = law.merge(
        (ma.astype(np.float64), sa.astype(np.float64)), (mb.astype(np.float64), sb.astype(np.float64))
    )
    assert_same_bits(m, wide[0].astype(np.float32))
    assert not np.signbit(m[m == 0]).any()
    with np.errstate(invalid="ignore"):
        distance = np.where(np.isfinite(ma) & np.isfinite(mb), np.abs(ma.astype(np.float64) - mb), 0)
        allowed = (2 * U + exp_error(distance, corrected=True) + U * distance) * wide[1] + TINY
        close = np.abs(s - wide[1]) <= allowed
    assert (close | (np.isnan(s) & np.isnan(wide[1]))).all()


def blocks() -> np.ndarray:
    x = noise((8, 16), np.dtype(np.float32), scale=5)
    x[1, 3] = NAN
    x[2, [4, 9]] = INF
    x[3] = -INF
    x[4] = NAN
    x[5, 0], x[5, 1] = INF, NAN
    x[6] = -0.0
    x[7, 2:] = -INF
    return x


def test_states_of_blocks_are_those_of_the_reference() -> None:
    x = blocks()
    m, s = states_of(x)
    true_m, true_s = reference.state(x)
    finite = np.isfinite(true_m)
    rows = np.where(finite[:, None], x, 0).astype(np.float64)
    eta = (
        exp_error(rows.max(axis=1, keepdims=True) - rows, corrected=True)
        + (2 + bounds.pairwise_depth(16)) * U
    )
    allowed = np.where(finite, bounds.sum_error(rows, eta, u=U, tiny=TINY) * np.where(finite, true_s, 0), 0)
    for way in range(3):
        got_m, got_s = m[way].numpy(), s[way].numpy()
        np.testing.assert_array_equal(got_m, true_m.astype(np.float32))
        assert not np.signbit(got_m[got_m == 0]).any()
        np.testing.assert_array_equal(np.isnan(got_s), np.isnan(true_s))
        known = ~np.isnan(true_s)
        assert (np.abs(got_s - true_s)[known] <= allowed[known]).all()
    assert s[0, 2] == 2  # entries that are +inf


def test_splits_merge_to_the_whole_within_the_bound() -> None:
    x = noise((8, 16), np.dtype(np.float32), scale=30)
    m, s = states_of(x)
    parts = [(m[0, i : i + 1].numpy(), s[0, i : i + 1].numpy()) for i in range(8)]
    left = parts[0]
    for part in parts[1:]:
        left = merge(*left, *part)
    tree = law.tree(parts, lambda a, b: merge(*a, *b))
    row = x.astype(np.float64).ravel()
    distance = row.max() - row
    true_m, true_s = reference.state(row)
    for got, levels in ((left, 7), (tree, bounds.tree_levels(8))):
        eta = exp_error(distance, corrected=True) + bounds.pairwise_depth(16) * U
        eta = eta + bounds.merge_eta(levels, u=U, e=EXP_UNITS * U)
        assert got[0] == np.float32(true_m)
        assert abs(got[1] - true_s) <= bounds.sum_error(row, eta, u=U, tiny=TINY) * true_s


def test_finished_values_of_special_states() -> None:
    x = np.array([1, 1, 1, INF, -INF, 0.5, -INF, 2], np.float32)
    m = np.array([-INF, INF, NAN, INF, -INF, 0.5, 1, 2], np.float32)
    s = np.array([0, 2, NAN, 1, 0, 1, 3, 4], np.float32)
    y, log, lse, pivot = (torch.empty(8) for _ in range(4))
    with np.errstate(all="ignore"):
        finish_kernel[(1,)](*map(to_torch, (x, m, s)), y, log, lse, pivot, 8)
    np.testing.assert_array_equal(y.numpy(), [NAN, NAN, NAN, NAN, NAN, 1, 0, 0.25])
    np.testing.assert_array_equal(log.numpy()[:7], [NAN, NAN, NAN, NAN, NAN, 0, -INF])
    np.testing.assert_array_equal(lse.numpy()[:6], [-INF, INF, NAN, INF, -INF, 0.5])
    np.testing.assert_array_equal(pivot.numpy(), [0, 0, NAN, 0, 0, 0.5, 1, 2])


def test_the_logarithm_is_good_to_one_ulp() -> None:
    rng = np.random.default_rng(0)
    x = np.concatenate(
        [1 + np.arange(-40, 40) * 2.0**-23, rng.uniform(0.4, 3, 900), np.exp2(rng.uniform(-126, 127, 1068))]
    ).astype(np.float32)
    true = np.log(x.astype(np.float64))
    error = np.abs(apply("log", x) - true) / np.spacing(np.abs(true).astype(np.float32))
    assert error[true != 0].max() <= 1
    assert apply("log", np.ones(16, np.float32)).max() == 0
    special = np.array([0, INF, NAN, 2.0**-140] * 4, np.float32)
    np.testing.assert_array_equal(apply("log", special)[:3], [-INF, INF, NAN])
    assert apply("log", special)[3] == pytest.approx(-140 * np.log(2), rel=1e-6)


@pytest.mark.parametrize("name", ["exact", "plain"])
def test_the_exponential_keeps_its_bound(name: str) -> None:
    x = np.linspace(-86, 0, 2048).astype(np.float32)
    true = np.exp(x.astype(np.float64))
    error = np.abs(apply(name, x) - true) / true
    assert (error <= exp_error(-x.astype(np.float64), corrected=name == "exact")).all()
    ends = np.array([-INF, INF, 0, -200, 200, NAN, -0.0, -150] * 2, np.float32)
    np.testing.assert_array_equal(apply(name, ends)[:8], [0, INF, 1, 0, INF, NAN, 1, 0])


def test_bfloat16_is_rounded_to_nearest_and_read_exactly() -> None:
    """All of bfloat16, and float32 around the ties between its neighbours."""
    every = np.arange(2**16, dtype=np.uint16)
    np.testing.assert_array_equal(apply("wide", every.view(BF16)), every.view(BF16).astype(np.float32))
    high = np.random.default_rng(0).integers(0, 2**16, 2**12, dtype=np.uint32)
    for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF):
        x = (high << 16 | low).view(np.float32)
        got = apply("narrow", x, torch.bfloat16)
        with np.errstate(all="ignore"):
            assert_same_bits(got, x.astype(ml_dtypes.bfloat16), hex(low))

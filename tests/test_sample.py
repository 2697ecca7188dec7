"""sample: the distribution of what is drawn, and that nothing but (seed, draw, row, token) decides it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from helpers import FORMATS, noise
from sampling import MOST, deviation, gumbel, kept, log_probabilities

from online_softmax import cpu, sample

OPTIONS = {
    "plain": {},
    "hot": {"temperature": 1.7},
    "cold": {"temperature": 0.4},
    "top_k": {"top_k": 7},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.05},
    "all": {"temperature": 0.8, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
}


def expected(row: np.ndarray, options: dict) -> np.ndarray:
    """Probabilities of a row's tokens."""
    mask, z = kept(
        row, options.get("temperature", 1.0), *(options.get(n) for n in ("top_k", "top_p", "min_p"))
    )
    return np.exp(log_probabilities(z, mask))


@pytest.mark.parametrize("name", OPTIONS)
def test_tokens_come_as_often_as_their_probabilities(name: str) -> None:
    row = noise((40,), FORMATS["f32"], seed=1, scale=2.0)
    tokens = sample(np.broadcast_to(row, (200_000, 40)), seed=11, **OPTIONS[name]).tokens
    p = expected(row, OPTIONS[name])
    counts = np.bincount(tokens, minlength=40)
    assert counts[p == 0].sum() == 0
    assert abs(deviation(counts, p)) < MOST


@pytest.mark.parametrize("short", FORMATS)
def test_the_distribution_holds_in_every_format(short: str) -> None:
    row = noise((75,), FORMATS[short], seed=2, scale=1.5)
    tokens = sample(np.broadcast_to(row, (100_000, 75)), seed=3).tokens
    assert abs(deviation(np.bincount(tokens, minlength=75), expected(row, {}))) < MOST


def test_what_is_far_less_likely_than_the_leading_bits_tell_is_drawn_rightly() -> None:
    """3999 tokens of 1.1e-7 each, where the kernel compares 16 bits: some 137 draws in 300000."""
    row = np.full(4000, -16.0, np.float32)
    row[1234] = 0
    tokens = sample(np.broadcast_to(row, (300_000, 4000)), seed=5).tokens
    rare = int(np.count_nonzero(tokens != 1234))
    mean = 300_000 * expected(row, {})[np.arange(4000) != 1234].sum()
    assert abs(rare - mean) < MOST * math.sqrt(mean)
    assert np.unique(tokens[tokens != 1234]).size > 0.9 * rare


def test_the_winners_noise_is_continuous() -> None:
    """-log(u) of the winner of n equal tokens is exponential with mean 1/n, and no lattice of few bits."""
    n, rows = 1 << 17, 2000
    state = sample(np.broadcast_to(np.float32(0), (rows, n)), seed=7, return_state=True)
    waited = np.sort(np.exp(-state.key)) * n
    steps = np.arange(rows) / rows
    distance = np.abs(-np.expm1(-waited) - steps).max()
    assert distance < 1.95 / math.sqrt(rows)  # Kolmogorov: 1 in 1000
    assert np.unique(waited).size == rows


@pytest.mark.parametrize("origin", [(0, 0), (3, 1), (2**40, 2**33 + 17)])
@pytest.mark.parametrize("short", FORMATS)
def test_tokens_are_those_of_the_greatest_keys(short: str, origin: tuple[int, int]) -> None:
    """The race by a bound and candidates against all keys, made by the definition."""
    x = noise((3, 1201), FORMATS[short], seed=4)
    state = sample(x, seed=9, draw=2, temperature=0.9, origin=origin, return_state=True)
    for r, row in enumerate(x):
        z = row.astype(np.float64) / 0.9
        keys = z + [gumbel(9, 2, origin[0] + r, origin[1] + t) for t in range(z.size)]
        best = int(np.argmax(keys))
        assert state.tokens[r] == origin[1] + best
        assert state.logit[r] == z[best]
        assert state.key[r] == pytest.approx(keys[best], rel=1e-14, abs=1e-14)
    assert np.array_equal(sample(x, seed=9, draw=2, temperature=0.9, origin=origin).tokens, state.tokens)


@pytest.mark.parametrize("isa", cpu.isas())
@pytest.mark.parametrize("name", OPTIONS)
def test_no_instruction_set_and_no_number_of_threads_shows(name: str, isa: str) -> None:
    x = noise((6, 70_001), FORMATS["f32"], seed=6)
    one = sample(x, seed=1, threads=1, **OPTIONS[name])
    for threads in (1, 2, 3):
        other = sample(x, seed=1, isa=isa, threads=threads, **OPTIONS[name])
        assert np.array_equal(one.tokens, other.tokens)
        if isa == cpu.default_isa():
            assert np.array_equal(one.log_probabilities, other.log_probabilities)
        else:
            np.testing.assert_allclose(one.log_probabilities, other.log_probabilities, rtol=0, atol=4e-6)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("short", FORMATS)
def test_where_rows_lie_does_not_show(short: str, name: str) -> None:
    x = noise((4, 5, 333), FORMATS[short], seed=8)
    plain = sample(x, seed=3, **OPTIONS[name])
    turned = np.ascontiguousarray(x.transpose(2, 1, 0)).transpose(2, 1, 0)
    spread = np.zeros((4, 5, 999), x.dtype)[..., ::3]
    spread[...] = x
    backward = np.ascontiguousarray(x[..., ::-1])[..., ::-1]
    for other in (turned, spread, backward):
        got = sample(other, seed=3, **OPTIONS[name])
        assert np.array_equal(got.tokens, plain.tokens)
        assert np.array_equal(got.log_probabilities, plain.log_probabilities)
    middle = sample(np.moveaxis(x, -1, 1), 1, seed=3, **OPTIONS[name])
    assert np.array_equal(middle.tokens, plain.tokens)


def test_a_part_of_the_rows_draws_as_the_whole() -> None:
    x = noise((9, 500), FORMATS["f32"], seed=10)
    whole = sample(x, seed=4)
    for options in ({}, {"top_p": 0.5}):
        whole = sample(x, seed=4, **options)
        part = sample(x[3:7], seed=4, origin=(3, 0), **options)
        assert np.array_equal(part.tokens, whole.tokens[3:7])


def test_rows_draws_and_seeds_are_independent() -> None:
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1]))
    p = np.exp(row)
    rows = np.broadcast_to(row.astype(np.float32), (50_000, 4))
    first = sample(rows, seed=1).tokens
    pairs = {
        "draw": sample(rows, seed=1, draw=1).tokens,
        "seed": sample(rows, seed=2).tokens,
        "next row": sample(rows, seed=1, origin=(1, 0)).tokens,
        "far row": sample(rows, seed=1, origin=(1 << 32, 0)).tokens,
        "next tokens": sample(rows, seed=1, origin=(0, 4)).tokens - 4,
        "next block": sample(rows, seed=1, origin=(0, 32)).tokens - 32,
    }
    for name, second in pairs.items():
        counts = np.bincount(4 * first + second, minlength=16)
        assert abs(deviation(counts, np.outer(p, p).ravel())) < MOST, name


def test_the_first_number_of_a_draw_is_kept() -> None:
    """The same tokens for ever: what was drawn once can be drawn again from its seed."""
    x = (np.arange(64) % 7).astype(np.float32)
    expect = [max(range(64), key=lambda t, d=draw: float(x[t]) + gumbel(2026, d, 0, t)) for draw in range(8)]
    assert [int(sample(x, seed=2026, draw=draw).tokens) for draw in range(8)] == expect


def test_minus_infinity_is_never_drawn() -> None:
    x = np.full((3000, 70), -np.inf, np.float32)
    x[:, [3, 40]] = -1e30
    x[:, 66] = -1e30
    for options in OPTIONS.values():
        assert set(np.unique(sample(x, seed=1, **options).tokens)) <= {3, 40, 66}
    assert set(np.unique(sample(x, seed=1).tokens)) == {3, 40, 66}


@pytest.mark.parametrize("name", [*OPTIONS, "greedy"])
@pytest.mark.parametrize("short", FORMATS)
@pytest.mark.parametrize("n", [1, 31, 5000, 40_000])
def test_a_row_without_a_distribution_has_no_token_and_spoils_no_other(n: int, short: str, name: str) -> None:
    options = OPTIONS.get(name, {"temperature": 0})
    x = noise((5, n), FORMATS[short], seed=12)
    whole = sample(x, seed=2, **options)
    x[0, n // 2], x[1, n - 1], x[3] = np.nan, np.inf, -np.inf
    got = sample(x, seed=2, **options)
    bad = [0, 1, 3]
    assert np.array_equal(got.tokens[bad], [-1, -1, -1])
    assert np.isnan(got.log_probabilities[bad]).all()
    assert np.array_equal(got.tokens[[2, 4]], whole.tokens[[2, 4]])
    assert np.array_equal(got.log_probabilities[[2, 4]], whole.log_probabilities[[2, 4]])


@pytest.mark.parametrize("bits", [0xFFC00000, 0x7FC00001, 0x7F800001, 0xFFFFFFFF])
def test_no_nan_is_missed_whatever_its_bits(bits: int) -> None:
    x = noise((1, 300), FORMATS["f32"])
    x.view(np.uint32)[0, 77] = bits
    assert sample(x).tokens[0] == -1
    assert sample(x, top_k=5).tokens[0] == -1


@pytest.mark.parametrize("shift", [-3e4, -500.0, 0.0, 500.0, 3e4])
def test_a_shift_of_the_logits_changes_no_token(shift: float) -> None:
    x = np.round(noise((50, 1000), FORMATS["f32"], seed=3) * 64) / 64
    for temperature in (0.25, 1.0, 2.0):  # quotients stay exact
        one = sample(x, seed=5, temperature=temperature)
        two = sample(x + np.float32(shift), seed=5, temperature=temperature)
        assert np.array_equal(one.tokens, two.tokens)
        np.testing.assert_allclose(one.log_probabilities, two.log_probabilities, atol=5e-6)


def test_a_rising_row_is_drawn_rightly() -> None:
    """Elements far above the first ones, by which a pivot is taken at first."""
    row = np.linspace(-400, 0, 3000).astype(np.float32)
    tokens = sample(np.broadcast_to(row, (20_000, 3000)), seed=5).tokens
    assert abs(deviation(np.bincount(tokens, minlength=3000), expected(row, {}))) < MOST

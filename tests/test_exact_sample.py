"""sample with order="any": the same tokens and the bits of ExactState's log-probabilities, whatever the cut,
the threads and the instruction set."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import sampling
from exact_loss_cases import CLASSES, CUTS, Array, bits, digest, numbers

import online_softmax as osm
from online_softmax import ExactSampleState, ExactState, SampleState, cpu, exact

ROWS = 40
FORMATS = (np.float32, np.float64, np.float16, ml_dtypes.bfloat16)
HEAT = numbers((ROWS,), 7, 0.9, np.float64) + 1.0
FILTERS: dict[str, dict[str, Any]] = {
    "none": {},
    "temperature": {"temperature": 0.7},
    "greedy": {"temperature": 0},
    "each its own": {"temperature": np.where(np.arange(ROWS) % 5 == 0, 0, HEAT)},
    "top_k": {"top_k": 9},
    "top_p": {"top_p": 0.8},
    "min_p": {"min_p": 0.05},
    "all": {"temperature": HEAT, "top_k": 100, "top_p": np.linspace(0.3, 1, ROWS), "min_p": 0.01},
}
every_format = pytest.mark.parametrize("dtype", FORMATS)
every_filter = pytest.mark.parametrize("options", FILTERS.values(), ids=FILTERS)


def case(dtype: Any = np.float32) -> Array:
    return numbers((ROWS, CLASSES), 1, 9.0).astype(dtype)


def form_of(x: Array) -> Any:
    return exact.format_of(x.dtype)


def scores(x: Array, options: dict[str, Any]) -> Array:
    dtype = form_of(x).dtype
    heat = np.broadcast_to(np.float64(options.get("temperature", 1.0)), ROWS)
    return x.astype(dtype) / np.where(heat == 0, 1, heat).astype(dtype)[:, None]


@every_format
@every_filter
def test_threads_instruction_sets_layouts_and_batches_do_not_matter(dtype: Any, options: Any) -> None:
    x = case(dtype)
    options = options | {"seed": 5, "draw": 2, "order": "any"}
    expected = osm.sample(x, **options)
    assert expected.log_probabilities.dtype == form_of(x).dtype
    for isa in cpu.isas():
        for threads in (1, 3):
            assert bits(*osm.sample(x, isa=isa, threads=threads, **options)) == bits(*expected)
    assert bits(*osm.sample(np.asfortranarray(x), **options)) == bits(*expected)
    assert bits(*osm.sample(x.T.copy(), 0, **options)) == bits(*expected)
    halves = [
        osm.sample(
            x[rows], origin=(rows.start, 0),
            **{k: v[rows] if isinstance(v, np.ndarray) else v for k, v in options.items()},
        )
        for rows in (slice(0, 13), slice(13, ROWS))
    ]  # fmt: skip
    for part, whole in zip(zip(*halves, strict=True), expected, strict=True):
        assert bits(np.concatenate(part)) == bits(whole)


def test_rows_that_are_worked_on_in_pieces_give_the_bits_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    x = case().reshape(4, 10, CLASSES)
    options = {"temperature": 0.6, "top_p": 0.9, "order": "any", "seed": 3}
    expected = osm.sample(x, **options)
    for size in (1, 3 * CLASSES, 20 * CLASSES):
        monkeypatch.setattr("online_softmax.frontends.exact_rows.PIECE", size)
        assert bits(*osm.sample(x, **options)) == bits(*expected)
    one = osm.sample(x[1, 2], origin=(12, 0), **options)
    assert bits(*one) == bits(*(part[1, 2] for part in expected))


@every_format
@pytest.mark.parametrize("heat", [1.0, 0.7])
def test_the_log_probability_is_that_of_the_trainer(dtype: Any, heat: float) -> None:
    x = case(dtype)
    drawn = osm.sample(x, temperature=heat, seed=1, order="any")
    loss = osm.cross_entropy(x, drawn.tokens, temperature=heat, reduction="none", order="any")
    z = scores(x, {"temperature": heat})
    rows = np.arange(ROWS)
    assert np.array_equal(drawn.log_probabilities, -loss)
    assert np.array_equal(drawn.log_probabilities, osm.log_softmax(z, order="any")[rows, drawn.tokens])
    assert np.array_equal(drawn.log_probabilities, ExactState.of(z).logprob(z)[rows, drawn.tokens])


@every_format
@pytest.mark.parametrize("options", [FILTERS["none"], FILTERS["each its own"]], ids=["plain", "temperatures"])
@pytest.mark.parametrize("cuts", CUTS, ids=lambda c: f"{len(c) - 1} parts")
def test_shards_give_the_bits_of_the_whole(dtype: Any, options: Any, cuts: tuple[int, ...]) -> None:
    x = case(dtype)
    options = options | {"seed": 8, "draw": 1, "order": "any"}
    whole = osm.sample(x, **options)
    states = [
        osm.sample(x[:, a:b], origin=(0, a), return_state=True, **options)
        for a, b in itertools.pairwise(cuts)
    ]
    for seed in range(3):
        np.random.default_rng(seed).shuffle(states)
        merged = ExactSampleState.merge_many(states)
        assert bits(merged.tokens, merged.log_probabilities) == bits(*whole)
    assert merged.law == ExactState.of(scores(x, options))


# ---- the noise


def log_of(r: float, c: float = 0.0) -> float:
    """log(r + c) by the operations of `exact.log1p`."""
    k = (int(np.float64(r).view(np.int64)) - exact._SQRT_HALF_BITS) >> 52
    scale = math.ldexp(1.0, -k)
    z = (r * scale - 1.0) + c * scale
    s = z / (2.0 + z)

    def fused(a: float, b: float, c: float) -> float:
        return float(Fraction(a) * Fraction(b) + Fraction(c))

    q = exact._SERIES[-1]
    for one in exact._SERIES[-2::-1]:
        q = fused(q, s * s, one)
    series = fused((s + s) * (s * s), q, s + s)
    return fused(k, exact._LOG2, fused(k, exact._LOG2_LOW, series))


def log1p_of(u: float) -> float:
    r = 1.0 + u
    back = r - 1.0
    return log_of(r, (1.0 - (r - back)) + (u - back))


def noise_of(row: int, token: int, seed: int, draw: int) -> float:
    leading, more, last = sampling.words(seed, draw, row, token)
    if leading >= 0x8000:
        left = float(0xFFFF - leading) + (float((1 << 64) - 1 - more) + 0.5) * 2.0**-64
        waited = -log_of(left * 2.0**-16)
    else:
        rest = (float(more) + 0.5) * 2.0**-64
        if leading == 0 and more < 1 << 53:
            rest = (float(more) + (float(last) + 0.5) * 2.0**-64) * 2.0**-64
        waited = -log1p_of(-(float(leading) + rest) * 2.0**-16)
    return -log_of(waited)


def test_the_noise_has_the_bits_of_its_definition_and_its_value() -> None:
    """With logits of 0 a state of one token has the noise alone as its key."""
    x = np.zeros((1, 1), np.float32)
    for token in [*range(300), *range(1 << 40, (1 << 40) + 50)]:
        options = {"seed": 9, "draw": 4, "origin": (3, token), "return_state": True}
        state = osm.sample(x, order="any", **options)
        assert float(state.key[0] + state.rest[0]) == noise_of(3, token, 9, 4)
        right = sampling.gumbel(9, 4, 3, token)
        assert abs(float(state.key[0]) - right) <= 8 * 2.0**-53 * max(1.0, abs(right))
        plain = osm.sample(x, **options)
        assert abs(float(state.key[0]) - float(plain.key[0])) <= 8 * 2.0**-53 * max(1.0, abs(right))


def test_the_token_has_the_greatest_key() -> None:
    x = case()[:6]
    drawn = osm.sample(x, seed=2, draw=7, order="any")
    for row in range(6):
        keys = [Fraction(float(x[row, t])) + Fraction(noise_of(row, t, 2, 7)) for t in range(CLASSES)]
        assert keys.index(max(keys)) == drawn.tokens[row]


@every_filter
def test_tokens_are_those_of_order_row_but_for_ties(options: dict[str, Any]) -> None:
    """Of rows without near ties; their probabilities differ by roundings."""
    x = case()
    here, there = (osm.sample(x, seed=4, order=order, **options) for order in ("any", "row"))
    assert np.array_equal(here.tokens, there.tokens)
    assert np.allclose(here.log_probabilities, there.log_probabilities, rtol=1e-6, atol=3e-6)


# ---- filters


def test_filters_keep_what_they_say() -> None:
    x = np.float32([[0, 0, -1, 3, 3, -2, 3, -np.inf, 1, 0]])

    def support(**options: Any) -> set[int]:
        return {
            int(osm.sample(x, seed=s, order="any", temperature=8.0, **options).tokens[0]) for s in range(400)
        }

    assert support(top_k=1) == {3}
    assert support(top_k=2) == {3, 4}
    assert support(top_k=5) == {3, 4, 6, 8, 0}  # of equal ones the lowest
    assert support(top_k=100) == set(range(10)) - {7}
    even = np.zeros((1, 8), np.float32)
    for p, most in ((1e-9, 1), (0.125, 1), (0.12500001, 2), (0.5, 4), (0.99, 8), (1.0, 8)):
        drawn = {int(osm.sample(even, seed=s, order="any", top_p=p).tokens[0]) for s in range(300)}
        assert drawn == set(range(most))
    assert support(min_p=1.0) == {3, 4, 6}
    assert support(top_k=4, top_p=0.5) == {3, 4}
    sharp = osm.sample(x, order="any", top_k=3)
    assert sharp.log_probabilities[0] == np.float32(-np.log(3))


def test_top_p_of_shares_that_whole_numbers_tell_apart() -> None:
    """The fewest whose terms reach p of the sum, against rational sums of the definition's own terms."""
    for dtype in (np.float32, np.float64):
        x = numbers((20, 60), 3, 6.0, dtype)
        form = form_of(x)
        for row in x:
            p, n = exact.terms(row, form)
            t = [Fraction(a) * Fraction(2) ** int(b) for a, b in zip(p.tolist(), n, strict=True)]
            ordered = sorted(range(60), key=lambda i: (-row[i], i))
            for count in (1, 7, 30):
                share = float(sum(t[i] for i in ordered[:count]) / sum(t))
                for moved in (share * (1 - 2.0**-30), share * (1 + 2.0**-30)):
                    kept = count if moved < share else count + 1
                    log = osm.sample(row, order="any", top_p=moved, temperature=0).log_probabilities
                    left = row[ordered[:kept]]
                    assert log == osm.log_softmax(left, order="any")[0]


# ---- special rows, errors


def test_special_rows() -> None:
    x = np.zeros((5, 4), np.float32)
    x[0, 1], x[1, 1], x[2] = np.nan, np.inf, -np.inf
    x[3] = [-np.inf, 2, -np.inf, -np.inf]
    x[4] = [2.0**40, 0, 0, 0]
    for options in ({}, {"temperature": 0.5}, {"top_k": 2}, {"top_p": 0.5, "min_p": 0.1}, {"temperature": 0}):
        drawn = osm.sample(x, order="any", **options)
        assert drawn.tokens.tolist() == [-1, -1, -1, 1, 0]
        assert np.array_equal(drawn.log_probabilities, [np.nan, np.nan, np.nan, 0, 0], equal_nan=True)
    past = osm.sample(np.float32([[1e30, 0]]), temperature=1e-20, order="any")  # no float32 holds its score
    assert past.tokens[0] == -1
    assert np.isnan(past.log_probabilities[0])
    assert osm.sample(np.zeros((0, 3), np.float32), order="any").tokens.shape == (0,)


def test_kinds_of_states_do_not_mix() -> None:
    x = case()
    exactly = osm.sample(x[:, :9], return_state=True, order="any")
    plain = osm.sample(x[:, 9:], origin=(0, 9), return_state=True)
    assert type(plain) is SampleState
    with pytest.raises(TypeError, match="other is a SampleState: a ExactSampleState"):
        exactly.merge(plain)
    with pytest.raises(TypeError, match="other is a ExactSampleState: a SampleState"):
        plain.merge(exactly)
    with pytest.raises(TypeError, match=r"states\[1\] is a SampleState"):
        ExactSampleState.merge_many([exactly, plain])
    with pytest.raises(TypeError, match="law is a SoftmaxState: a ExactState"):
        ExactSampleState(plain.token, plain.key, plain.rest, plain.logit, plain.law, np.float32)  # type: ignore[arg-type]
    other = osm.sample(x[:, 9:], origin=(0, 9), return_state=True, order="any", seed=1)
    with pytest.raises(ValueError, match="seed 1"):
        exactly.merge(other)


def test_what_is_not_built_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="order='each' is not built: 'row', 'any' would do"):
        osm.sample(case(), order="each")
    with pytest.raises(ValueError, match="top_k with return_state"):
        osm.sample(case(), order="any", top_k=3, return_state=True)


def test_the_golden_bits() -> None:
    """Of numbers that every machine makes alike: these hold on all of them."""
    found: list[Any] = []
    for dtype in (np.float32, np.float64, np.float16):
        for options in FILTERS.values():
            found += osm.sample(case(dtype), seed=11, draw=6, order="any", **options)
    state = osm.sample(case(), seed=11, return_state=True, order="any")
    found += [state.key, state.rest, state.logit, state.law.m, state.law.a]
    assert digest(*found) == "2e31ffe458d532405e98a0c9f3809a3abccd9cb1e9b2d07cea1d987ec70ec515"

"""sample: filters, greedy draws, per-row options, log-probabilities, states that merge, and refusals."""

from __future__ import annotations

import itertools
import pickle
import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from helpers import FORMATS, assert_close, bound, noise
from numpy.exceptions import AxisError
from sampling import kept, log_probabilities

from online_softmax import SampleState, cpu, sample

FILTERS = [
    {"top_k": 1},
    {"top_k": 6},
    {"top_p": 1e-9},
    {"top_p": 0.5},
    {"top_p": 0.97},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"top_k": 30, "top_p": 0.6},
    {"top_p": 0.9, "min_p": 0.2},
    {"top_p": 0.5, "min_p": 1e-6},
    {"top_k": 12, "top_p": 0.9, "min_p": 0.05},
]


def truth(row: np.ndarray, options: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """The tokens kept, and every token's log-probability among them."""
    filters = (options.get(name) for name in ("top_k", "top_p", "min_p"))
    mask, z = kept(row, options.get("temperature", 1.0), *filters)
    return mask, log_probabilities(z, mask)


def rows(kind: str, n: int, dtype: np.dtype) -> np.ndarray:
    """Rows whose kept sets are hard to find."""
    rng = np.random.default_rng(n)
    if kind == "ties":
        return rng.integers(-3, 3, (4, n)).astype(dtype)
    if kind == "equal":
        return np.full((4, n), 2.5, dtype)
    if kind == "masked":
        x = np.where(rng.random((4, n)) < 0.7, -np.inf, rng.standard_normal((4, n)))
        x[:, n // 3] = 1.0
        return x.astype(dtype)
    return (2.5 * rng.standard_normal((4, n))).astype(dtype)


@pytest.mark.parametrize("options", FILTERS, ids=str)
@pytest.mark.parametrize("kind", ["normal", "ties", "equal", "masked"])
@pytest.mark.parametrize("n", [1, 5, 64, 700, 20_011])
def test_filters_keep_what_sorting_keeps(n: int, kind: str, options: dict[str, Any]) -> None:
    """The log-probability gives the weight of all that was kept away; ties show in which tokens come."""
    for short, temperature in (("f64", 1.0), ("f32", 0.7), ("bf16", 1.3)):
        dtype = FORMATS[short]
        x = rows(kind, n, dtype)
        given = {**options, "temperature": temperature}
        masks, logs = zip(*(truth(row, given) for row in x), strict=True)
        for seed in range(3 if n > 1000 else 12):
            got = sample(x, seed=seed, **given)
            for r in range(len(x)):
                token = got.tokens[r]
                assert masks[r][token], (short, r, seed)
                rounding = 0 if short == "f64" else 2.0**-24
                # Where all is kept the sum is that of a row without filters, in its own format.
                loose = 2.0**-21 if (masks[r] == (x[r] > -np.inf)).all() and short != "f64" else 1e-12
                assert (
                    abs(float(got.log_probabilities[r]) - logs[r][token])
                    <= rounding * abs(logs[r][token]) + loose
                )


def test_every_token_that_is_kept_comes() -> None:
    row = np.array([3, 1, 3, 1, 2, 1, -np.inf, 2], np.float32)
    for options in ({"top_k": 3}, {"top_k": 5}, {"top_p": 0.6}, {"min_p": 0.3}):
        mask, _ = truth(row, options)
        tokens = sample(np.broadcast_to(row, (2000, 8)), **options).tokens
        assert np.array_equal(np.unique(tokens), np.flatnonzero(mask))


@pytest.mark.parametrize(("n", "p", "count"), [(4, 0.5, 2), (10, 0.3, 3), (8, 0.500001, 5), (900, 0.25, 225)])
def test_top_p_keeps_the_token_that_reaches_it_and_no_more(n: int, p: float, count: int) -> None:
    x = np.zeros((40 * n, n), np.float32)
    got = sample(x, top_p=p)
    assert np.array_equal(np.unique(got.tokens), np.arange(count))
    np.testing.assert_allclose(got.log_probabilities, -np.log(count), rtol=1e-7)


def test_a_top_k_past_the_vocabulary_and_filters_that_keep_all_change_nothing() -> None:
    x = noise((20, 300), FORMATS["f32"])
    plain = sample(x, seed=1)
    for options in ({"top_k": 300}, {"top_k": 2**60}, {"top_p": 1.0}, {"min_p": 0.0}, {"top_k": None}):
        got = sample(x, seed=1, **options)
        assert np.array_equal(got.tokens, plain.tokens)
        assert np.array_equal(got.log_probabilities, plain.log_probabilities)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.int32, np.uint32, np.int64, np.uint64])
def test_top_k_in_any_integer_format(dtype: Any) -> None:
    x, k = noise((5, 300), np.dtype(np.float32)), np.array([1, 2, 40, 100, 127])
    want = sample(x, top_k=[int(n) for n in k])
    for given in (k.astype(dtype), k.astype(dtype).astype(np.dtype(dtype).newbyteorder())):
        got = sample(x, top_k=given)
        np.testing.assert_array_equal(got.tokens, want.tokens)
        np.testing.assert_array_equal(got.log_probabilities, want.log_probabilities)
    most = np.iinfo(dtype).max
    np.testing.assert_array_equal(sample(x[:, :90], top_k=dtype(most)).tokens, sample(x[:, :90]).tokens)


def test_filters_draw_the_token_of_the_greatest_key_kept() -> None:
    """top_k of all but one leaves the noise of every token as it was."""
    x = noise((200, 100), FORMATS["f32"])
    plain, filtered = sample(x, seed=1), sample(x, seed=1, top_k=99)
    least = np.argmin(x, axis=1)
    same = plain.tokens != least
    assert np.array_equal(plain.tokens[same], filtered.tokens[same])


@pytest.mark.parametrize("short", FORMATS)
@pytest.mark.parametrize("n", [1, 40, 3001, 70_000])
def test_temperature_0_takes_the_greatest_and_the_lowest_of_equals(n: int, short: str) -> None:
    x = np.round(noise((6, n), FORMATS[short], seed=1).astype(np.float64)).astype(FORMATS[short])
    got = sample(x, temperature=0)
    assert np.array_equal(got.tokens, np.argmax(x.astype(np.float64), axis=-1))
    wide = x.astype(np.float64)
    logs = np.stack([truth(row, {})[1] for row in x])
    chosen = np.take_along_axis(logs, got.tokens[:, None], -1)[:, 0]
    allowed = bound("log_softmax", wide, logs, cpu.state_dtype(x.dtype))
    assert_close(got.log_probabilities, chosen, np.take_along_axis(allowed, got.tokens[:, None], -1)[:, 0])
    top = sample(x, temperature=0, top_k=3, top_p=0.9)
    assert np.array_equal(top.tokens, got.tokens)
    for row, found in zip(x, top.log_probabilities, strict=True):
        mask, z = kept(row, 1.0, 3, 0.9, None)
        assert found == pytest.approx(log_probabilities(z, mask).max(), rel=1e-6, abs=1e-12)


@pytest.mark.parametrize("scale", [0.1, 3.0, 30.0])
@pytest.mark.parametrize("temperature", [1.0, 0.6, 3.0])
@pytest.mark.parametrize("short", FORMATS)
def test_log_probabilities_are_within_their_bound(short: str, temperature: float, scale: float) -> None:
    dtype = FORMATS[short]
    out = cpu.state_dtype(dtype)
    for n in (1, 2, 33, 1000, 66_000):
        x = noise((8, n), dtype, seed=n, scale=scale)
        got = sample(x, temperature=temperature, seed=n)
        z = x.astype(np.float64) / temperature
        logs = np.stack([log_probabilities(row, np.ones(n, bool)) for row in z])
        allowed = bound("log_softmax", z, logs, out)
        if out == np.float64 and temperature != 1:  # a quotient is rounded, there and here
            allowed = allowed + 2 * 2.0**-53 * np.abs(z).max(axis=-1, keepdims=True)
        at = got.tokens[:, None]
        chosen, limit = (np.take_along_axis(a, at, -1)[:, 0] for a in (logs, allowed))
        assert got.log_probabilities.dtype == out
        assert_close(got.log_probabilities, chosen, limit, f"{short} {n}")


@pytest.mark.parametrize("short", ["f32", "f64", "bf16"])
@pytest.mark.parametrize("lead", [4.0, 9.0, 14.0])
def test_log_probabilities_near_0_keep_their_bits(short: str, lead: float) -> None:
    x = noise((3, 5000), FORMATS[short], scale=0.5)
    for place in (0, 2000, 4999):
        y = x.copy()
        y[:, place] = 12 + lead
        got = sample(y, seed=1)
        for r, row in enumerate(y):
            if got.tokens[r] == place:
                expected = truth(row, {})[1][place]
                assert abs(float(got.log_probabilities[r]) - expected) <= 1e-6 * abs(expected)
        assert (got.tokens == place).any()


def test_options_may_differ_by_row() -> None:
    x = noise((2, 6, 400), FORMATS["f32"])
    options: dict[str, Any] = {
        "temperature": np.array([0, 0.5, 1, 1.5, 2, 0]),
        "top_k": np.array([[3], [400]]),
        "top_p": np.array([1.0, 0.5, 0.9, 1.0, 1.0, 0.7], np.float32),
        "min_p": np.array([[0.0], [0.1]]),
    }
    got = sample(x, seed=5, **options)
    for number, (i, j) in enumerate(itertools.product(range(2), range(6))):
        own = {name: np.broadcast_to(value, (2, 6))[i, j] for name, value in options.items()}
        one = sample(x[i, j], seed=5, origin=(number, 0), **own)
        assert one.tokens == got.tokens[i, j]
        assert one.log_probabilities == got.log_probabilities[i, j]


@pytest.mark.parametrize("temperature", [0, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("short", FORMATS)
def test_shards_of_a_vocabulary_merge_to_the_draw_of_the_whole(short: str, temperature: float) -> None:
    rng = np.random.default_rng(4)
    for n in (3, 90, 1000, 70_000):
        x = noise((5, n), FORMATS[short], seed=n)
        whole = sample(x, temperature=temperature, seed=8, origin=(2, 5))
        for shards in (1, 2, 7):
            cuts = [0, *sorted(rng.integers(0, n + 1, shards - 1)), n]
            parts = [
                sample(x[:, a:b], temperature=temperature, seed=8, origin=(2, 5 + a), return_state=True)
                for a, b in itertools.pairwise(cuts)
                if a < b
            ]
            for order in (parts, parts[::-1]):
                merged = SampleState.merge_many(order)
                assert np.array_equal(merged.tokens, whole.tokens)
                z = x.astype(np.float64) / (temperature or 1)
                logs = np.stack([log_probabilities(row, np.ones(n, bool)) for row in z])
                allowed = bound("log_softmax", z, logs, merged.log_probabilities.dtype)
                at = whole.tokens[:, None] - 5
                chosen, limit = (np.take_along_axis(a, at, -1)[:, 0] for a in (logs, allowed))
                assert_close(merged.log_probabilities, chosen, limit)


def test_a_state_holds_the_law_of_its_shard() -> None:
    x = noise((4, 50), FORMATS["f64"])
    x[1, 3], x[2, :2], x[3] = np.nan, np.inf, -np.inf
    state = sample(x, temperature=2.0, return_state=True)
    m, s = cpu.state(x / 2, (1,))
    assert np.array_equal(state.law.m, m, equal_nan=True)
    np.testing.assert_allclose(state.law.s, s, rtol=1e-14)
    assert np.array_equal(state.tokens < 0, [False, True, True, True])
    good = sample(noise((4, 50), FORMATS["f64"], seed=1), temperature=2.0, origin=(0, 50), return_state=True)
    merged = state.merge(good)
    assert np.array_equal(merged.tokens < 0, [False, True, True, False])
    assert merged.tokens[3] == good.tokens[3]
    assert np.isnan(merged.log_probabilities[1:3]).all()
    assert np.array_equal(good.merge(state).tokens, merged.tokens)


def test_a_state_survives_pickling() -> None:
    state = sample(noise((4, 50), FORMATS["f32"]), return_state=True)
    again = pickle.loads(pickle.dumps(state))
    assert np.array_equal(again.tokens, state.tokens)
    assert np.array_equal(again.log_probabilities, state.log_probabilities)
    assert again.spans == ((0, 50),)
    rest = sample(noise((4, 7), FORMATS["f32"]), origin=(0, 50), return_state=True)
    assert np.array_equal(again.merge(rest).tokens, state.merge(rest).tokens)
    assert again.log_probabilities.dtype == np.float32


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seed": 2}, "seed 2 where this one has 0"),
        ({"draw": 3}, "draw 3"),
        ({"temperature": 0.5}, "temperature"),
        ({"origin": (1, 50)}, "first row 1"),
        ({"origin": (0, 49)}, "tokens 49 to 56, of which 0 to 50"),
        ({"origin": (0, 0)}, "origin="),
    ],
)
def test_shards_of_different_draws_do_not_merge(change: dict[str, Any], words: str) -> None:
    state = sample(noise((4, 50), FORMATS["f32"]), return_state=True)
    other = sample(noise((4, 7), FORMATS["f32"]), **{"origin": (0, 50), "return_state": True, **change})
    with pytest.raises(ValueError, match=words):
        state.merge(other)


def test_states_refuse_what_does_not_fit() -> None:
    state = sample(noise((4, 50), FORMATS["f32"]), return_state=True)
    other = sample(noise((3, 50), FORMATS["f32"]), return_state=True)
    with pytest.raises(ValueError, match="shape"):
        state.merge(other)
    with pytest.raises(TypeError, match="other"):
        state.merge(3)
    with pytest.raises(ValueError, match="key"):
        SampleState(state.token, state.key[:2], state.rest, state.logit, state.law, np.float32)
    with pytest.raises(ValueError, match="states"):
        SampleState.merge_many([])


def test_shapes_and_formats_of_the_results() -> None:
    for dtype, out in (
        (np.float64, np.float64),
        (np.float32, np.float32),
        (np.float16, np.float32),
        (ml_dtypes.bfloat16, np.float32),
        (ml_dtypes.float8_e4m3fn, np.float32),
        (ml_dtypes.float8_e5m2, np.float32),
        (np.int32, np.float64),
        (np.bool_, np.float64),
    ):
        got = sample(np.ones((2, 3, 4), dtype), 1)
        assert got.tokens.shape == got.log_probabilities.shape == (2, 4)
        assert got.tokens.dtype == np.int64
        assert got.log_probabilities.dtype == out
    assert sample(np.zeros(5)).tokens.shape == ()
    assert sample([0.0, -np.inf]).tokens == 0
    none = sample(np.zeros((0, 7), np.float32), top_k=3)
    assert none.tokens.shape == none.log_probabilities.shape == (0,)
    x = noise((3, 9), FORMATS["f32"])
    x.flags.writeable = False
    assert sample(x).tokens.shape == (3,)


@pytest.mark.parametrize(
    ("given", "kind", "name"),
    [
        ({"temperature": -1}, ValueError, "temperature"),
        ({"temperature": np.nan}, ValueError, "temperature"),
        ({"temperature": np.inf}, ValueError, "temperature"),
        ({"temperature": 1e-40}, ValueError, "temperature"),
        ({"temperature": "warm"}, TypeError, "temperature"),
        ({"temperature": True}, TypeError, "temperature"),
        ({"temperature": [1, 2, 3]}, ValueError, "temperature"),
        ({"top_k": 0}, ValueError, "top_k"),
        ({"top_k": -1}, ValueError, "top_k"),
        ({"top_k": 1.5}, TypeError, "top_k"),
        ({"top_k": True}, TypeError, "top_k"),
        ({"top_k": [1, 2, 3]}, ValueError, "top_k"),
        ({"top_p": 0.0}, ValueError, "top_p"),
        ({"top_p": 1.1}, ValueError, "top_p"),
        ({"top_p": np.nan}, ValueError, "top_p"),
        ({"min_p": -0.1}, ValueError, "min_p"),
        ({"min_p": 1.1}, ValueError, "min_p"),
        ({"seed": -1}, ValueError, "seed"),
        ({"seed": 1 << 64}, ValueError, "seed"),
        ({"seed": 1.0}, TypeError, "seed"),
        ({"draw": True}, TypeError, "draw"),
        ({"draw": -1}, ValueError, "draw"),
        ({"origin": 3}, TypeError, "origin"),
        ({"origin": (0, 0, 0)}, TypeError, "origin"),
        ({"origin": (0, -1)}, ValueError, "origin"),
        ({"return_state": 1}, TypeError, "return_state"),
        ({"return_state": True, "top_k": 4}, ValueError, "top_k with return_state"),
        ({"return_state": True, "top_p": 0.5}, ValueError, "top_p with return_state"),
        ({"return_state": True, "min_p": 0.5}, ValueError, "min_p with return_state"),
        ({"axis": 2}, AxisError, "axis"),
        ({"axis": None}, TypeError, "axis"),
        ({"isa": "abacus"}, ValueError, "isa"),
        ({"threads": 0}, ValueError, "threads"),
    ],
    ids=str,
)
def test_a_wrong_argument_is_named(given: dict[str, Any], kind: type[Exception], name: str) -> None:
    with pytest.raises(kind, match=f"^{re.escape(name)}"):
        sample(np.zeros((2, 5), np.float32), **given)


@pytest.mark.parametrize("logits", [np.zeros((2, 0)), np.zeros((0, 0))])
def test_an_empty_vocabulary_is_refused(logits: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"^logits .*vocabulary of no tokens"):
        sample(logits)


def test_logits_of_no_dimensions_and_of_other_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^logits"):
        sample(np.float32(1))
    for bad in (np.zeros(3, complex), np.array(["a"]), np.ma.masked_array(np.zeros(3), [0, 1, 0])):
        with pytest.raises(TypeError, match=r"^logits"):
            sample(bad)


def test_a_state_of_other_kinds_of_parts_is_refused() -> None:
    made = sample(np.zeros((2, 3)), return_state=True)
    parts = made.token, made.key, made.rest, made.logit
    with pytest.raises(TypeError, match="law is a NoneType: a SoftmaxState would do"):
        SampleState(*parts, None, np.float32)  # type: ignore[arg-type]  # which is the fault
    for dtype in ("bogus", np.int8, np.float16, 3):
        with pytest.raises(TypeError, match=r"dtype is .*: float32 or float64 would do"):
            SampleState(*parts, made.law, dtype)


@pytest.mark.parametrize("options", [{}, {"top_k": 2}, {"top_p": 0.9}, {"min_p": 0.5}], ids=str)
def test_logits_past_the_range_over_their_temperature(options: dict[str, Any]) -> None:
    x = np.array([[1e300, 2e300, 0], [-2e300, -1e300, -np.inf], [1, 2e300, 2e300], [0, 1, 2], [0, -1e300, 0]])
    temperature = np.array([1e-10, 1e-30, 1e-10, 1e-10, 1e-10])
    for draw in range(8):
        made = sample(x, temperature=temperature, draw=draw, **options)
        np.testing.assert_array_equal(made.tokens[[0, 1, 3]], [1, 1, 2])
        assert made.tokens[2] in (1, 2)
        assert made.tokens[4] in (0, 2)
        np.testing.assert_array_equal(made.log_probabilities[[0, 1, 3]], 0)
        one = sample(x[2], temperature=1e-10, origin=(2, 0), draw=draw, **options)
        assert (one.tokens, one.log_probabilities) == (made.tokens[2], made.log_probabilities[2])
    if options != {"top_p": 0.9}:
        np.testing.assert_allclose(made.log_probabilities[[2, 4]], -np.log(2), rtol=2.0**-50)
    bad = np.array([[np.nan, 1e300], [np.inf, 1e300], [-np.inf, -np.inf]])
    np.testing.assert_array_equal(sample(bad, temperature=1e-20, **options).tokens, -1)


@pytest.mark.parametrize("n", [1000, 100_000])
def test_sums_of_long_lists_do_not_lose_bits(n: int) -> None:
    """Filters that keep all: what adding one by one would round off grows with the tokens."""
    x = np.rint(np.random.default_rng(0).standard_normal((16, n)))
    plain, kept_all = sample(x), sample(x, min_p=1e-12)
    np.testing.assert_array_equal(kept_all.tokens, plain.tokens)
    np.testing.assert_allclose(kept_all.log_probabilities, plain.log_probabilities, rtol=8 * 2.0**-52)
    sure = np.concatenate([np.full((1, 1), 20.0), np.zeros((1, n - 1))], axis=1)
    made = sample(sure, min_p=1e-12, temperature=[1.0])
    assert made.tokens == 0
    np.testing.assert_allclose(made.log_probabilities, -np.log1p((n - 1) * np.exp(-20.0)), rtol=8 * 2.0**-52)

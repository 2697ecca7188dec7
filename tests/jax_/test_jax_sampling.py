"""Drawing from JAX arrays: the tokens of the NumPy function, and its rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import online_softmax as osm
from online_softmax.frontends.jax import counter
from online_softmax.frontends.jax.sampling import sample

LOGITS = (3 * np.random.default_rng(0).standard_normal((40, 300))).astype(np.float32)
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "seed and draw": {"seed": 12345678901234567890, "draw": 2**63 + 5},
    "cold": {"temperature": 0.3, "seed": 1},
    "greedy": {"temperature": 0},
    "a part": {"origin": (3, 45)},
    "filters": {"top_k": 50, "top_p": 0.9, "min_p": 0.05, "temperature": 1.5, "seed": 2},
}


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tokens_are_those_of_numpys_function(name: str, dtype: str) -> None:
    x = LOGITS.astype(getattr(ml_dtypes, dtype, dtype))
    made, right = sample(x, **OPTIONS[name]), osm.sample(x, **OPTIONS[name])
    np.testing.assert_array_equal(made.tokens, right.tokens)
    assert made.log_probabilities.dtype == np.float32
    # The quotient by the temperature is rounded here, and so are difference and sum.
    size = np.abs(x.astype(np.float64)).max() / (OPTIONS[name].get("temperature") or 1.0)
    np.testing.assert_allclose(
        made.log_probabilities, right.log_probabilities, rtol=0, atol=2.0**-24 * 4 * (size + 10)
    )


def test_float64_draws_too_and_a_cold_row_may_have_its_own_temperature() -> None:
    warmth = np.where(np.arange(40) % 2, 0.0, 0.7)
    with jax.enable_x64(True):
        made = sample(LOGITS.astype(np.float64), temperature=warmth, seed=4)
    right = osm.sample(LOGITS.astype(np.float64), temperature=warmth, seed=4)
    np.testing.assert_array_equal(made.tokens, right.tokens)
    np.testing.assert_allclose(made.log_probabilities, right.log_probabilities, rtol=0, atol=1e-13)


def test_a_step_may_be_traced() -> None:
    """In a loop of decoding, `draw` is the step."""
    steps = jax.jit(jax.vmap(lambda step: sample(LOGITS[0], draw=step).tokens))(jnp.arange(6))
    assert steps.tolist() == [int(osm.sample(LOGITS[0], draw=step).tokens) for step in range(6)]
    words = np.array([7, 9], np.uint32)
    by_words = jax.jit(lambda seed: sample(LOGITS, seed=seed).tokens)(words)
    np.testing.assert_array_equal(by_words, osm.sample(LOGITS, seed=(7 << 32) + 9).tokens)
    key = jax.random.wrap_key_data(words)
    np.testing.assert_array_equal(sample(LOGITS, seed=key).tokens, by_words)


def test_rows_without_a_distribution_draw_nothing() -> None:
    x = np.array([[0, np.nan], [np.inf, 0], [-np.inf, -np.inf], [-np.inf, 0]], np.float32)
    made = sample(x)
    assert made.tokens.tolist() == [-1, -1, -1, 1]
    np.testing.assert_array_equal(made.log_probabilities, [np.nan, np.nan, np.nan, 0])


def test_other_axes_and_shapes() -> None:
    x = LOGITS[:6].reshape(2, 3, 300)
    whole = sample(x, seed=3)
    assert whole.tokens.shape == (2, 3)
    np.testing.assert_array_equal(sample(np.moveaxis(x, -1, 0), 0, seed=3).tokens, whole.tokens)
    assert sample(np.zeros((0, 4), np.float32)).tokens.shape == (0,)


def test_the_log_probability_has_a_gradient() -> None:
    """Of the logits: 1 at the token less the probabilities."""
    x = jnp.asarray(LOGITS[:2])
    made = jax.grad(lambda x: sample(x, seed=5).log_probabilities.sum())(x)
    right = np.eye(300)[np.asarray(sample(x, seed=5).tokens)] - osm.softmax(LOGITS[:2].astype(np.float64))
    np.testing.assert_allclose(made, right, rtol=0, atol=2.0**-24 * 64)


def test_words_of_64_bits_multiply_as_integers_do() -> None:
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, 2**64, (200, 2), np.uint64).astype(object).tolist()
    for a, b in pairs:
        folded = counter.fold(counter.word(a), counter.word(b))
        assert (int(folded.high) << 32) + int(folded.low) == (a * b ^ a * b >> 64) & (2**64 - 1)
        times = counter.times(counter.word(a), counter.word(b))
        assert (int(times.high) << 32) + int(times.low) == a * b & (2**64 - 1)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"temperature": -1.0}, ValueError, r"temperature is -1\.0"),
        ({"temperature": np.ones(3)}, ValueError, r"temperature has shape \(3,\)"),
        ({"top_k": 0}, ValueError, "top_k is 0"),
        ({"top_p": 0.0}, ValueError, r"top_p is 0\.0"),
        ({"min_p": 1.5}, ValueError, r"min_p is 1\.5"),
        ({"seed": -1}, ValueError, "seed is -1"),
        ({"seed": True}, TypeError, "seed is True"),
        ({"draw": np.zeros(3, np.int32)}, TypeError, r"draw has shape \(3,\)"),
        ({"origin": 3}, TypeError, "origin is 3"),
        ({"origin": (0, 2**31)}, ValueError, "origin is"),
        ({"axis": 2}, ValueError, "axis 2 is out of range"),
    ],
)
def test_wrong_calls_name_what_is_wrong(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        sample(LOGITS, **options)
    no_tokens: Callable[[], Any] = lambda: sample(np.zeros((2, 0)))  # noqa: E731
    with pytest.raises(ValueError, match="a vocabulary of no tokens"):
        no_tokens()

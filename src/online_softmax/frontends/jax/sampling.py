"""sample: one token a row of JAX arrays, drawn from softmax(logits / temperature)."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..sampling import Sample
from . import checks, counter, noise, pure_rows
from .pure_rows import wide_dtype

Array = Any
_MOST: Final = 1 << 31
_COLDEST: Final = 1e-30
_WARMEST: Final = 1e30


def sample(
    logits: Any, axis: Any = -1, *, temperature: Any = 1.0, top_k: Any = None, top_p: Any = None,
    min_p: Any = None, seed: Any = 0, draw: Any = 0, origin: Any = (0, 0),
) -> Sample:  # fmt: skip
    """One token a row, drawn from softmax(logits / temperature) as the filters leave it.

    The noise of a token is that of `online_softmax.sample`, a hash of (seed, draw, row, token): the same
    arguments draw the same tokens there and here. Rows are numbered in row-major order of the rows' shape.
    Filters go in this order, each on what the one before left, renormalised: top_k, top_p, min_p.

    Args:
        logits: real (..., vocabulary, ...).
        axis: of the vocabulary.
        temperature: 0, or 1e-30 to 1e30: a number, or an array that broadcasts to the rows' shape. 0 takes
            the greatest logit, the lowest token where several are equal; its filters and log-probability are
            those of temperature 1. Traced ones are not checked.
        top_k: the k greatest are kept, of equal ones the lowest tokens; None for all.
        top_p: in (0, 1]: the fewest of the greatest are kept whose probabilities come to top_p, at least one.
        min_p: in [0, 1]: those are kept whose probability is at least min_p times the greatest.
        seed, draw: a stream of draws, and which of them this is: 0 to 2**64 - 1; or, for a seed or step that
            is traced, an array of one integer, two words (2,) uint32, high and low, or a key of jax.random.
            Nothing is random unless one of them changes.
        origin: (row, token): what number the first row and token of this call have in a whole of which it is
            a part, below 2**31. Tokens are returned by their numbers there.

    axis, the filters and origin must be known when the computation is built.

    Returns: Sample(tokens, log_probabilities) of the rows' shape: int32, and the natural log of the token's
        probability under what was drawn from, float32 (float64 for float64 logits), differentiable in logits
        and temperature. A row with NaN or +inf, or of -inf alone, has token -1 and NaN.

    Raises: TypeError and ValueError, naming the argument, when the call is traced; ValueError too for a
        vocabulary of no tokens.

    Cost: some 200 integer operations and three logarithms in float64 a token: keys are exact. Filters sort
        the rows.
    """
    given = checks.real(logits, "logits")
    if not given.ndim:
        raise ValueError("logits has no dimensions: (vocabulary,) or (rows, vocabulary) would do")
    (at,) = checks.axes(checks.integer(axis, "axis"), given.ndim)
    if not given.shape[at]:
        raise ValueError(f"logits has shape {given.shape}, a vocabulary of no tokens: at least one would do")
    rows = given.shape[:at] + given.shape[at + 1 :]
    filters = (_most(top_k), _share(top_p, "top_p", True), _share(min_p, "min_p", False))
    tokens, found = _sample(
        given, _temperature(temperature, rows, wide_dtype(given.dtype)), counter.words_of(seed, "seed"),
        counter.words_of(draw, "draw"), at, filters, _origin(origin, given.shape[at]),
    )  # fmt: skip
    return Sample(tokens, found)


@partial(jax.jit, static_argnums=(4, 5, 6), inline=True)
@checks.any_rank
def _sample(
    logits: Array, temperature: Array, seed: Array, draw: Array, axis: int,
    filters: tuple[int | None, float | None, float | None], origin: tuple[int, int],
) -> tuple[Array, Array]:  # fmt: skip
    x = jnp.moveaxis(logits, axis, -1)
    shape, vocabulary = x.shape[:-1], x.shape[-1]
    x = x.reshape(math.prod(shape), vocabulary).astype(wide_dtype(x.dtype))
    warmth = jnp.broadcast_to(temperature, shape).reshape(-1, 1)
    fixed, warm = lax.stop_gradient((x, warmth))
    kept = _kept(fixed, warm, filters)
    drawn = _drawn(jnp.where(kept, fixed, -jnp.inf), warm, seed, draw, origin)
    top = jnp.max(fixed, -1)
    good = jnp.isfinite(top)
    log_p = pure_rows.log_softmax(x / jnp.where(warmth == 0, 1, warmth), (1,), kept)
    found = jnp.take_along_axis(log_p, jnp.where(good, drawn, 0)[:, None], -1)[:, 0]
    tokens = jnp.where(good, drawn + origin[1], -1)
    return tokens.reshape(shape), jnp.where(good, found, jnp.nan).reshape(shape)


def _drawn(logits: Array, temperature: Array, seed: Array, draw: Array, origin: tuple[int, int]) -> Array:
    with _numbers_of_64_bits():
        rows, tokens = logits.shape
        made = noise.gumbel(seed, draw, rows, tokens, origin)
        return noise.winners(logits.astype(jnp.float64), temperature.astype(jnp.float64), made)


def _numbers_of_64_bits() -> Any:
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(True)
    from jax.experimental import enable_x64  # where JAX had it first

    return enable_x64()


def _kept(x: Array, temperature: Array, filters: tuple[int | None, float | None, float | None]) -> Array:
    """Which tokens the filters leave, (rows, vocabulary) bool."""
    top_k, top_p, min_p = filters
    if top_k is None and top_p is None and min_p is None:
        return jnp.ones(x.shape, jnp.bool_)
    z = x / jnp.where(temperature == 0, 1, temperature)
    order = jnp.argsort(-z, axis=-1, stable=True)
    sorted_z = jnp.take_along_axis(z, order, -1)
    rank = lax.broadcasted_iota(jnp.int32, z.shape, 1)
    left = rank < (z.shape[1] if top_k is None else top_k)
    if top_p is not None and top_p < 1:
        p = pure_rows.softmax(sorted_z, (1,), left)
        left = left & ((jnp.cumsum(p, -1) - p < top_p) | (rank == 0))
    if min_p is not None and min_p > 0:
        left = left & (sorted_z >= sorted_z[:, :1] + math.log(min_p))
    places = jnp.argsort(order, axis=-1)
    return jnp.take_along_axis(left, places, -1)


def _temperature(value: Any, rows: tuple[int, ...], wide: Any) -> Array:
    would = f"0, or a number from {_COLDEST} to {_WARMEST}, would do"
    given = checks.real(value, "temperature")
    try:
        fits = jnp.broadcast_shapes(given.shape, rows) == rows
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"temperature has shape {given.shape}, which does not broadcast to the shape {rows} of the rows: "
            f"one number, or a shape that does, would do"
        )
    if not isinstance(given, jax.core.Tracer):
        known = np.asarray(given, np.float64)
        wrong = ~((known == 0) | ((known >= _COLDEST * (1 - 1e-6)) & (known <= _WARMEST * (1 + 1e-6))))
        if wrong.any():
            raise ValueError(f"temperature is {known[wrong].flat[0]}: {would}")
    return given.astype(wide)


def _most(value: Any) -> int | None:
    if value is None:
        return None
    found = checks.integer(value, "top_k")
    if found < 1:
        raise ValueError(f"top_k is {found}: a whole number of at least 1, or None, would do")
    return min(found, _MOST)


def _share(value: Any, name: str, above: bool) -> float | None:
    if value is None:
        return None
    found = checks.number(value, name)
    if not 0 <= found <= 1 or (above and not found):
        would = "a number above 0 and up to 1" if above else "a number from 0 to 1"
        raise ValueError(f"{name} is {found}: {would}, or None, would do")
    return found


def _origin(value: Any, vocabulary: int) -> tuple[int, int]:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise TypeError(f"origin is {value!r}: (row, token) would do")
    row, token = (checks.integer(number, "origin") for number in value)
    if not (0 <= row < _MOST and 0 <= token < _MOST - vocabulary):
        raise ValueError(f"origin is {value!r}: whole numbers whose sums with the sizes int32 holds would do")
    return row, token

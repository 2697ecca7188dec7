"""The noise of a token, that of the native core: a hash of (seed, draw, row, token) and nothing else.

Keys are made in float64 whatever JAX's default, because fewer bits would draw other tokens. The definition
and its reasons are in native/sample_table.h.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp

from . import counter
from .counter import Word

Array = Any

#: Tokens whose leading bits come from one group of words.
_BLOCK: Final = 32
_WORDS: Final = _BLOCK // 4
_STEP: Final = 0x6A09E667F3BCC909


class _Streams(NamedTuple):
    """What tells a row's noise from all others: words (rows, 1)."""

    start: Word
    twist: Word
    fine: Word
    finer: Word


def gumbel(seed: Any, draw: Any, rows: int, tokens: int, origin: tuple[int, int]) -> Array:
    """-log(-log(u)) of each row and token, (rows, tokens) float64.

    Must be called where JAX has numbers of 64 bits.
    """
    first_row, first = origin
    places = counter.add(counter.of_integers(jnp.arange(rows, dtype=jnp.uint32)), counter.constant(first_row))
    streams = _streams(
        counter.word(seed), counter.word(draw), Word(places.high[:, None], places.low[:, None])
    )
    token = counter.add(counter.of_integers(jnp.arange(tokens, dtype=jnp.uint32)), counter.constant(first))
    leading = _leading(streams, first, tokens)
    more = counter.mixed(counter.xor(streams.fine, counter.mixed(counter.add(token, streams.finer))))
    last = counter.mixed(counter.xor(streams.finer, counter.mixed(counter.add(token, streams.fine))))
    tail = _double(more) + 0.5
    tiny = (leading == 0) & (more.high < jnp.uint32(1 << 21))
    rest = jnp.where(tiny, _double(more) + (_double(last) + 0.5) * 2.0**-64, tail) * 2.0**-64
    under = (leading.astype(jnp.float64) + rest) * 2.0**-16
    # u itself, from its complement, where it is the lesser.
    u = (
        (0xFFFF - leading).astype(jnp.float64) + (_double(Word(~more.high, ~more.low)) + 0.5) * 2.0**-64
    ) * 2.0**-16
    waited = jnp.where(leading >= 0x8000, -jnp.log(u), -jnp.log1p(-under))
    return -jnp.log(waited)


def _streams(seed: Word, draw: Word, row: Word) -> _Streams:
    def step(times: int) -> Word:
        return counter.constant(counter.GOLDEN * times)

    h = counter.mixed(counter.add(seed, step(1)))
    h = counter.mixed(counter.add(h, counter.mixed(counter.add(draw, step(2)))))
    h = counter.mixed(counter.add(h, counter.mixed(counter.add(row, step(3)))))
    return _Streams(*(counter.mixed(counter.add(h, step(i))) for i in (1, 2, 3, 4)))


def _leading(streams: _Streams, first: int, tokens: int) -> Array:
    """The 16 leading bits of 1 - u: (rows, tokens) uint32."""
    block = first // _BLOCK
    blocks = -(-(first + tokens) // _BLOCK) - block
    index = counter.add(
        counter.of_integers(jnp.arange(blocks * _WORDS, dtype=jnp.uint32)), counter.constant(block * _WORDS)
    )
    at = counter.add(streams.start, counter.times(index, counter.constant(_STEP)))
    words = counter.fold(at, counter.xor(at, streams.twist))
    # Lane i of a block, half of a word, holds tokens i and i + 16.
    lanes = jnp.stack([words.low, words.high], -1).reshape(-1, blocks, 1, 2 * _WORDS)
    bits = jnp.concatenate([lanes & 0xFFFF, lanes >> 16], 2).reshape(-1, blocks * _BLOCK)
    skipped = first - block * _BLOCK
    return bits[:, skipped : skipped + tokens]


def _double(word: Word) -> Array:
    """A word as float64, rounded once."""
    return word.high.astype(jnp.float64) * 2.0**32 + word.low.astype(jnp.float64)


def winners(logits: Array, temperature: Array, noise: Array) -> Array:
    """The place of the greatest key in each row, int32; the lower where keys are equal. float64 operands.

    A key is logit / temperature + noise, with what rounding left out of it in a second number. Without a
    temperature (0) it is the logit.
    """
    cold = temperature == 0
    z = logits / jnp.where(cold, 1, temperature)
    noise = jnp.where(cold, 0, noise)
    key = z + noise
    back = key - z
    rest = (z - (key - back)) + (noise - back)
    best = key == jnp.max(key, -1, keepdims=True)
    rest = jnp.where(best & jnp.isfinite(rest), rest, -jnp.inf)
    best = best & (rest == jnp.max(rest, -1, keepdims=True))
    places = jax.lax.broadcasted_iota(jnp.int32, best.shape, best.ndim - 1)
    return jnp.min(jnp.where(best, places, logits.shape[-1]), -1)

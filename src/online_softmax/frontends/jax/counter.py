"""Hashes of counters in 32-bit words: the numbers of the native core, where JAX has no 64-bit integers.

A word of 64 bits is a pair (high, low) of uint32 arrays. Whoever holds a Python integer makes a pair of it
with `word`.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from . import checks

Array = Any

GOLDEN: Final = 0x9E3779B97F4A7C15
_FIRST: Final = 0xBF58476D1CE4E5B9
_SECOND: Final = 0x94D049BB133111EB


class Word(NamedTuple):
    """64 bits."""

    high: Array
    low: Array


def word(value: Any) -> Word:
    """A Python integer of 64 bits, or an array of integers, or a key's two words (2,) of uint32, as a pair.

    Arrays of up to 32 bits count as they are, negative ones modulo 2**32.
    """
    if isinstance(value, int):
        return Word(jnp.uint32(value >> 32), jnp.uint32(value & 0xFFFFFFFF))
    value = jnp.asarray(value)
    if value.ndim and value.shape[-1] == 2 and value.dtype == jnp.uint32:
        return Word(value[..., 0], value[..., 1])
    return of_integers(value)


def of_integers(value: Array) -> Word:
    """An array of integers as pairs; what does not fit into its 32 bits is 0."""
    low = value.astype(jnp.uint32)
    if value.dtype.itemsize == 8:
        return Word((value >> 32).astype(jnp.uint32), low)
    return Word(jnp.zeros_like(low), low)


def words_of(value: Any, name: str) -> Array:
    """A seed as a caller gives it, as two words: (2,) uint32, high and low, an operand of a computation.

    Raises: TypeError, ValueError.
    """
    would = "a whole number from 0 to 2**64 - 1, two words of uint32 or a key of jax.random would do"
    if isinstance(value, np.ndarray) and not value.ndim:
        value = value[()]  # all its bits, which JAX without float64 would cut to 32
    if isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} is {value!r}: {would}")
    if isinstance(value, (int, np.integer)):
        if not 0 <= value < 1 << 64:
            raise ValueError(f"{name} is {value}: {would}")
        return np.array([int(value) >> 32, int(value) & 0xFFFFFFFF], np.uint32)
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key) and not value.ndim:
        return jax.random.key_data(value).reshape(-1)[-2:]
    given = jnp.asarray(checks.array(value, name, as_given=True))
    if given.shape == (2,) and given.dtype == jnp.uint32:
        return given
    if given.shape or not jnp.issubdtype(given.dtype, jnp.integer):
        raise TypeError(f"{name} has shape {given.shape} and holds {given.dtype}: {would}")
    return jnp.stack(of_integers(given))


def add(a: Word, b: Word) -> Word:
    low = a.low + b.low
    return Word(a.high + b.high + (low < a.low).astype(jnp.uint32), low)


def xor(a: Word, b: Word) -> Word:
    return Word(a.high ^ b.high, a.low ^ b.low)


def product(a: Array, b: Array) -> Word:
    """The 64 bits of a product of two numbers of 32."""
    a_high, a_low, b_high, b_low = a >> 16, a & 0xFFFF, b >> 16, b & 0xFFFF
    low = a_low * b_low
    first = a_high * b_low + (low >> 16)
    second = a_low * b_high + (first & 0xFFFF)
    return Word(a_high * b_high + (first >> 16) + (second >> 16), a * b)


def times(a: Word, b: Word) -> Word:
    """The lower 64 bits of a product."""
    made = product(a.low, b.low)
    return Word(made.high + a.high * b.low + a.low * b.high, made.low)


def fold(a: Word, b: Word) -> Word:
    """Both halves of the product of 128 bits, one xor the other."""
    lowest, cross, other, highest = (
        product(a.low, b.low),
        product(a.low, b.high),
        product(a.high, b.low),
        product(a.high, b.high),
    )
    zero = jnp.zeros_like(lowest.low)
    middle = add(add(Word(zero, lowest.high), Word(zero, cross.low)), Word(zero, other.low))
    upper = add(add(highest, Word(zero, cross.high)), add(Word(zero, other.high), Word(zero, middle.high)))
    return xor(Word(middle.low, lowest.low), upper)


def shifted(a: Word, bits: int) -> Word:
    """To the right by fewer than 32 bits."""
    return Word(a.high >> bits, a.low >> bits | a.high << 32 - bits)


def mixed(x: Word) -> Word:
    """SplitMix64's finalizer."""
    x = times(xor(x, shifted(x, 30)), constant(_FIRST))
    x = times(xor(x, shifted(x, 27)), constant(_SECOND))
    return xor(x, shifted(x, 31))


def constant(value: int) -> Word:
    value &= (1 << 64) - 1
    return Word(np.uint32(value >> 32), np.uint32(value & 0xFFFFFFFF))


def dropout_rows(seed: Any, batch: int, heads: int, queries: Array) -> Word:
    """What tells the rows of dropout from each other: pairs of shape (batch, heads, queries)."""
    row = word(seed)
    places = (jnp.arange(batch)[:, None, None], jnp.arange(heads)[:, None], queries)
    for place in places:
        step = times(of_integers(place + 1), constant(GOLDEN))
        row = mixed(add(row, step))
    return row


def dropout_numbers(rows: Word, keys: Array) -> Array:
    """The number of 32 bits of each row and key: uint32 of the shape that both broadcast to."""
    x = keys.astype(jnp.uint32) * np.uint32(0x9E3779B9) + rows.low
    x = (x ^ x >> 16) * np.uint32(0x7FEB352D)
    x = ((x ^ x >> 15) + rows.high) * np.uint32(0x846CA68B)
    return x ^ x >> 16

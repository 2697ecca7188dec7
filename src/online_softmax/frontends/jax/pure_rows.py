"""softmax, log_softmax and logsumexp in JAX's own operations: what runs where the native core does not.

Reductions over several axes need no transposition. Statistics are in float32, for float64 in float64, and a
result is rounded once. All three have rules of their own for derivatives, forward and reverse, which can be
differentiated again.

A row with a NaN is NaN throughout. One with +inf has softmax and log_softmax NaN, logsumexp +inf; one of -inf
alone has NaN, NaN and -inf. What `where` leaves out never enters arithmetic and gives 0 (-inf for the
logarithm); a row with nothing left gives zeros.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from . import checks

Array = Any
Axes = tuple[int, ...]


def softmax(x: Array, axis: Axes, where: Array | None = None) -> Array:
    """exp(x) / sum(exp(x)) over `axis`, non-negative ints: of x's shape and format.

    where: bool, broadcastable to x's shape.
    """
    y = _softmax(_taken(x, where), axis).astype(x.dtype)
    return y if where is None else jnp.where(where, y, jnp.zeros((), x.dtype))


def log_softmax(x: Array, axis: Axes, where: Array | None = None) -> Array:
    """x - logsumexp(x) over `axis`, with its relative accuracy near 0: of x's shape and format."""
    y = _log_softmax(_taken(x, where), axis).astype(x.dtype)
    return y if where is None else jnp.where(where, y, jnp.asarray(-jnp.inf, x.dtype))


def logsumexp(x: Array, axis: Axes, where: Array | None = None) -> Array:
    """log(sum(exp(x))) over `axis`: x's shape without the reduced axes, in x's format."""
    return _logsumexp(_taken(x, where), axis).astype(x.dtype)


def wide_dtype(dtype: Any) -> Any:
    """The format of statistics: float32 up to 32 bits, float64 for float64."""
    return jnp.dtype(jnp.float64 if jnp.dtype(dtype) == jnp.float64 else jnp.float32)


def pivot(m: Array) -> Array:
    """A maximum that can be taken off: -inf - -inf would be NaN where nothing has been seen."""
    return jnp.where(m == -jnp.inf, jnp.zeros_like(m), m)


def _taken(x: Array, where: Array | None) -> Array:
    """x widened, -inf where it takes no part: whatever lies there, no gradient comes back from it."""
    z = x.astype(wide_dtype(x.dtype))
    return z if where is None else jnp.where(where, z, jnp.asarray(-jnp.inf, z.dtype))


def _statistics(z: Array, axis: Axes) -> tuple[Array, Array]:
    """The maximum of each row, reduced axes kept, and what the other terms sum to: s = 1 + t."""
    m = jnp.max(z, axis, keepdims=True, initial=-jnp.inf)
    top = z == m
    terms = jnp.where(top, 0, jnp.exp(z - pivot(m)))
    more = jnp.sum(top, axis, dtype=z.dtype, keepdims=True) - 1
    return m, jnp.sum(terms, axis, keepdims=True) + more


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _softmax(z: Array, axis: Axes) -> Array:
    m = jnp.max(z, axis, keepdims=True, initial=-jnp.inf)
    e = jnp.exp(z - pivot(m))
    return e / jnp.sum(e, axis, keepdims=True)


@_softmax.defjvp
@checks.any_rank
def _softmax_jvp(axis: Axes, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    y, (dz,) = _softmax(*primals, axis), tangents
    return y, y * (dz - jnp.sum(y * dz, axis, keepdims=True))


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _log_softmax(z: Array, axis: Axes) -> Array:
    m, t = _statistics(z, axis)
    y = (z - pivot(m)) - jnp.log1p(t)
    return jnp.where(jnp.isfinite(m), y, jnp.nan)


@_log_softmax.defjvp
@checks.any_rank
def _log_softmax_jvp(axis: Axes, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (z,), (dz,) = primals, tangents
    return _log_softmax(z, axis), dz - jnp.sum(_softmax(z, axis) * dz, axis, keepdims=True)


@partial(jax.custom_jvp, nondiff_argnums=(1,))
def _logsumexp(z: Array, axis: Axes) -> Array:
    m, t = _statistics(z, axis)
    lse = jnp.where(jnp.isfinite(m), m + jnp.log1p(t), m)
    return jnp.squeeze(lse, axis)


@_logsumexp.defjvp
@checks.any_rank
def _logsumexp_jvp(axis: Axes, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (z,), (dz,) = primals, tangents
    lse = _logsumexp(z, axis)
    # The log of nothing, a natural zero of recursions, has gradient 0.
    y = jnp.where(jnp.expand_dims(lse, axis) == -jnp.inf, 0, _softmax(z, axis))
    return lse, jnp.sum(y * dz, axis)

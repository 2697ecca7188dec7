"""The k largest softmax values of JAX arrays, with the log-sum-exp of the whole row."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from . import checks, pure_rows
from .pure_rows import pivot, wide_dtype

Array = Any


class TopK(NamedTuple):
    """Result of `softmax_topk`."""

    values: Array
    indices: Array
    lse: Array


def softmax_topk(x: Any, k: Any, axis: Any = -1) -> TopK:
    """The k largest softmax values over one axis, their indices, and the lse of the whole row.

    Args:
        x: real, at least one dimension; integers and bool as JAX's default float.
        k: from 0 to the axis' length, known when the computation is built, as is axis.

    Returns: `TopK(values, indices, lse)`. values: probabilities in x's format, x's shape with k in place of
        the axis, descending by logit, ties by the lower index (NaN counts as the largest). indices: int32,
        the same shape. lse: x's shape without the axis; float32, float64 where x is. values and lse are
        differentiable to any order; indices are constants.

    Raises: TypeError and ValueError, naming the argument, when the call is traced.

    Cost: JAX's `lax.top_k`, and two passes over x that XLA fuses.
    """
    given = checks.real(x, "x")
    if not given.ndim:
        raise ValueError("x has no dimensions: at least one, of which the k largest are taken, would do")
    (at,) = checks.axes(checks.integer(axis, "axis"), given.ndim)
    entries = checks.integer(k, "k")
    if not 0 <= entries <= given.shape[at]:
        raise ValueError(f"k is {entries}: 0 to {given.shape[at]}, the length of axis {at}, would do")
    return TopK(*_topk(given, entries, at))


@partial(jax.jit, static_argnums=(1, 2), inline=True)
@checks.any_rank
def _topk(x: Array, k: int, axis: int) -> tuple[Array, Array, Array]:
    z = jnp.moveaxis(x.astype(wide_dtype(x.dtype)), axis, -1)
    # In the order that top_k sorts by, -0 is less than 0, and a NaN's sign counts.
    key = lax.stop_gradient(jnp.where(jnp.isnan(z), jnp.nan, jnp.where(z == 0, 0, z)))
    indices = lax.top_k(key, k)[1]
    top = jnp.take_along_axis(z, indices, -1)
    m = pivot(jnp.max(key, -1, keepdims=True, initial=-jnp.inf))
    values = jnp.exp(top - m) / jnp.sum(jnp.exp(z - m), -1, keepdims=True)
    lse = pure_rows.logsumexp(z, (z.ndim - 1,))
    return (
        jnp.moveaxis(values.astype(x.dtype), -1, axis),
        jnp.moveaxis(indices.astype(jnp.int32), -1, axis),
        lse,
    )

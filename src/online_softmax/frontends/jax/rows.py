"""softmax, log_softmax and logsumexp of JAX arrays: document, check and route.

On CPUs the native core does the work, elsewhere JAX's own operations; both by the same law, with statistics
in float32 (float64 for float64) and one rounding at the end. Every transformation of JAX applies, to any
order, and a computation may be sharded over all axes but the reduced ones.

Formats: float64, float32, float16 and bfloat16 as they are, 8-bit floats through float32, integers and bool
as JAX's default float. A row with a NaN is NaN throughout. One with +inf has softmax and log_softmax NaN,
logsumexp +inf; one of -inf alone has NaN, NaN and -inf.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from . import checks
from .pure_rows import wide_dtype
from .row_primitives import rows

Array = Any


def softmax(x: Any, axis: Any = -1, where: Any = None) -> Array:
    """exp(x) / sum(exp(x)) over `axis`: an array of x's shape in [0, 1], as jax.nn.softmax.

    Args:
        x: real array of any shape.
        axis: an int, a tuple of ints, or None for all axes together.
        where: bool, broadcastable to x's shape: True takes part. The rest is never read into arithmetic and
            gives 0; a row with nothing left gives zeros.

    Raises: TypeError and ValueError, naming the argument, when the call is traced.

    Cost: on a CPU one read of x and one write; a derivative reads the result and the tangent once.
    """
    return _map(checks.array(x, "x"), _mask(where), op="softmax", axis=checks.axis_key(axis))


def log_softmax(x: Any, axis: Any = -1, where: Any = None) -> Array:
    """x - logsumexp(x) over `axis` without the cancellation of that formula, as jax.nn.log_softmax.

    Arguments, errors and cost as for `softmax`; what `where` leaves out gives -inf. Near 0 the result keeps
    its relative accuracy.
    """
    return _map(checks.array(x, "x"), _mask(where), op="log_softmax", axis=checks.axis_key(axis))


def logsumexp(
    x: Any,
    axis: Any = None,
    b: Any = None,
    keepdims: Any = False,
    return_sign: Any = False,
    where: Any = None,
) -> Any:
    """log(sum(b * exp(x))) over `axis`, as jax.nn.logsumexp: in x's format.

    Args:
        axis: an int, a tuple of ints, or None, the default, for all axes together.
        b: real weights, broadcastable to x's shape; an element of weight 0 drops out. With weights the sum is
            made by `jax.scipy.special.logsumexp`, in float32 or float64.
        keepdims: keep each reduced axis with length 1.
        return_sign: the pair (log(abs(sum)), sign) with sign -1, 0 or 1; a negative sum gives NaN otherwise.
        where: bool, broadcastable to x's shape: True takes part.

    Nothing to sum gives -inf. Within 1/4 of 0 the native core makes the sum in float64, so that results near
    0 keep their relative accuracy.

    Raises: TypeError and ValueError, naming the argument, when the call is traced.

    Cost: one read of x; the gradient one more.
    """
    return _logsumexp(
        checks.array(x, "x"), None if b is None else checks.array(b, "b"), _mask(where),
        axis=checks.axis_key(axis),
        keepdims=checks.flag(keepdims, "keepdims"), return_sign=checks.flag(return_sign, "return_sign"),
    )  # fmt: skip


def _mask(where: Any) -> Array | None:
    return None if where is None else checks.array(where, "where", as_given=True)


@partial(jax.jit, static_argnames=("op", "axis"), inline=True)
@checks.any_rank
def _map(x: Array, where: Array | None, *, op: str, axis: Any) -> Array:
    given = checks.real(x, "x")
    keep = checks.mask(where, given.shape)
    over = checks.axes(axis, given.ndim)
    operand = checks.computed(given)
    if not over:
        operand, keep, over = _as_rows(operand), _as_rows(keep), (given.ndim,)
    return rows(operand, keep, op=op, axes=over).reshape(given.shape).astype(given.dtype)


@partial(jax.jit, static_argnames=("axis", "keepdims", "return_sign"), inline=True)
@checks.any_rank
def _logsumexp(
    x: Array, b: Array | None, where: Array | None, *, axis: Any, keepdims: bool, return_sign: bool
) -> Any:
    given = checks.real(x, "x")
    over = checks.axes(axis, given.ndim)
    keep = checks.mask(where, given.shape)
    if b is not None:
        return _weighted(given, checks.real(b, "b"), keep, over, keepdims, return_sign)
    operand = checks.computed(given)
    if over:
        lse = rows(operand, keep, op="logsumexp", axes=over)
    else:
        lse = rows(_as_rows(operand), _as_rows(keep), op="logsumexp", axes=(given.ndim,))
    if keepdims:
        lse = jnp.expand_dims(lse, over)
    if not return_sign:
        return lse.astype(given.dtype)
    sign = jnp.where(lse == -jnp.inf, 0, jnp.where(jnp.isnan(lse), jnp.nan, 1))
    return lse.astype(given.dtype), sign.astype(given.dtype)


def _weighted(
    x: Array, b: Array, where: Array | None, over: tuple[int, ...], keepdims: bool, return_sign: bool
) -> Any:
    try:
        fits = jnp.broadcast_shapes(b.shape, x.shape) == x.shape
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(f"b of shape {b.shape} does not broadcast to {x.shape}: a shape that does would do")
    wide = jnp.promote_types(wide_dtype(x.dtype), wide_dtype(b.dtype))
    made = jax.scipy.special.logsumexp(
        x.astype(wide), over, b.astype(wide), keepdims=keepdims, return_sign=return_sign, where=where
    )
    return jax.tree.map(lambda a: a.astype(x.dtype), made)


def _as_rows(a: Array | None) -> Array | None:
    """Every element a row of its own: how 0-d arrays and axis=() reach the core."""
    return None if a is None else a[..., None]

"""Log-sum-exps of pairs, prefixes and windows of JAX arrays, from states that merge.

A state is (m, t): the greatest element, and the sum of the others' exp(x - m), so that a tail of 1e-7 beside
a maximum of 0 keeps its bits: log(sum of exp) = m + log1p(t). The state of nothing is (-inf, -1). To
derivatives m is a constant, and t of one element is exp(x - m) - 1, 0 with a slope of 1: all orders follow.

Computed in float32, float64 for float64, and rounded once. A result is off by a few units of roundoff times
the greater of the maximum's size and the logarithm's.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from . import checks
from .pure_rows import pivot, wide_dtype

Array = Any


class State(NamedTuple):
    """Of some elements: see the text above."""

    m: Array
    t: Array


def logaddexp(a: Any, b: Any) -> Array:
    """log(exp(a) + exp(b)), element by element: of the shape and format that a and b broadcast to.

    Args:
        a, b: real. Formats promote as in jax.numpy; integers and bool count as JAX's default float.

    Returns: +inf where either is +inf, -inf where both are -inf, NaN where either is NaN. Differentiable to
        any order: the gradients are 0 where both are -inf, so that the order of adding does not matter to
        them, and NaN where either is +inf.

    Raises: TypeError and ValueError, naming the argument, when the call is traced.

    Cost: two reads and one write; one exponential and one logarithm an element.
    """
    left, right = checks.array(a, "a"), checks.array(b, "b")
    target = jnp.result_type(a, b)
    if not jnp.issubdtype(target, jnp.floating):
        target = jnp.promote_types(target, jnp.result_type(float))
    for value, name in ((left, "a"), (right, "b")):
        checks.real(value, name)
    try:
        jnp.broadcast_shapes(jnp.shape(left), jnp.shape(right))
    except ValueError as error:
        shapes = f"a has shape {jnp.shape(left)} and b {jnp.shape(right)}"
        raise ValueError(f"{shapes}: shapes that broadcast to each other would do") from error
    return _logaddexp(left, right, jnp.dtype(target).name)


@partial(jax.jit, static_argnums=2, inline=True)
@checks.any_rank
def _logaddexp(a: Array, b: Array, target: str) -> Array:
    wide = wide_dtype(target)
    # To the result's format first: both operands count with its bits.
    p, q = jnp.broadcast_arrays(*(jnp.asarray(x).astype(target).astype(wide) for x in (a, b)))
    return _pair(p, q).astype(target)


@jax.custom_jvp
def _pair(a: Array, b: Array) -> Array:
    m = jnp.maximum(a, b)
    y = m + jnp.log1p(jnp.exp(-jnp.abs(a - b)))
    return jnp.where(jnp.isinf(m), m, y)


@_pair.defjvp
@checks.any_rank
def _pair_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    a, b = primals
    y = _pair(a, b)
    d = jnp.where(jnp.isfinite(y), a - b, jnp.where(y == -jnp.inf, 0, jnp.nan))
    counts = jnp.where(y == -jnp.inf, 0, jnp.ones_like(y))
    return y, counts * (lax.logistic(d) * tangents[0] + lax.logistic(-d) * tangents[1])


def logcumsumexp(x: Any, axis: Any = -1, *, reverse: Any = False, exclusive: Any = False) -> Array:
    """log(sum(exp(x[:i + 1]))) for every i along one axis: x's shape and format.

    Args:
        x: real; integers and bool as JAX's default float.
        axis: one int. A 0-d x is one row of one element.
        reverse: of suffixes, x[i:], in place of prefixes.
        exclusive: without x[i] itself: the first result (the last, with `reverse`) is -inf.

    All but x must be known when the computation is built.

    Returns: -inf as long as only -inf has been seen, +inf from the first +inf on, NaN from the first NaN on.
        Differentiable to any order; a prefix that is all -inf adds 0 to gradients, one with a NaN or +inf
        makes them NaN.

    Raises: TypeError and ValueError, naming the argument, when the call is traced.

    Cost: `lax.associative_scan`: about two merges an element, in 2 * log2(length) steps.
    """
    given = checks.real(x, "x")
    at = _axis(axis, given.ndim)
    flags = checks.flag(reverse, "reverse"), checks.flag(exclusive, "exclusive")
    return _logcumsumexp(given, at, *flags)


@partial(jax.jit, static_argnums=(1, 2, 3), inline=True)
@checks.any_rank
def _logcumsumexp(x: Array, axis: int, reverse: bool, exclusive: bool) -> Array:
    z = jnp.atleast_1d(x)
    if not z.size:
        return x
    state = lax.associative_scan(_merged, _elements(z), reverse=reverse, axis=axis)
    y = _lse(state)
    if exclusive:
        first = jnp.full_like(lax.slice_in_dim(y, 0, 1, axis=axis), -jnp.inf)
        n = z.shape[axis]
        rest = lax.slice_in_dim(y, 1, n, axis=axis) if reverse else lax.slice_in_dim(y, 0, n - 1, axis=axis)
        y = jnp.concatenate([rest, first] if reverse else [first, rest], axis)
    return y.astype(x.dtype).reshape(x.shape)


def window_logsumexp(x: Any, window: Any, axis: Any = -1) -> Array:
    """log(sum(exp(x[max(0, i - window + 1) : i + 1]))) for every i along one axis: x's shape and format.

    Args:
        x: real; integers and bool as JAX's default float.
        window: entries of a window, at least 1. The first windows are shorter; one that is as long as the
            axis gives `logcumsumexp`.
        axis: one int.

    window and axis must be known when the computation is built.

    Returns: windows of nothing but -inf are -inf; those that hold a NaN are NaN, others with +inf are +inf:
        what leaves the window is forgotten exactly, since nothing is ever taken out of a sum. Differentiable
        to any order.

    Raises: TypeError and ValueError, naming the argument, when the call is traced.

    Cost: 2 * log2(window) merges an element: windows of 1, 2, 4, ... entries, and of them what `window` is
        made of.
    """
    given = checks.real(x, "x")
    at = _axis(axis, given.ndim)
    length = checks.integer(window, "window")
    if length < 1:
        raise ValueError(f"window={length}: a whole number of at least 1 would do")
    return _window_logsumexp(given, length, at)


@partial(jax.jit, static_argnums=(1, 2), inline=True)
@checks.any_rank
def _window_logsumexp(x: Array, window: int, axis: int) -> Array:
    z = jnp.moveaxis(jnp.atleast_1d(x), axis, -1)
    left = max(1, min(window, z.shape[-1]))
    doubled, made, size, held = _elements(z), None, 1, 0
    while True:
        if left & size:
            made = doubled if made is None else _merged(_earlier(doubled, held), made)
            held += size
        size *= 2
        if size > left:
            break
        doubled = _merged(_earlier(doubled, size // 2), doubled)
    assert made is not None  # left has a bit set
    return jnp.moveaxis(_lse(made), -1, axis).astype(x.dtype).reshape(x.shape)


def _earlier(state: State, steps: int) -> State:
    """The states of `steps` places before, of nothing where there are none."""
    n = state.m.shape[-1]

    def shifted(array: Array, nothing: float) -> Array:
        pad = jnp.full((*array.shape[:-1], min(steps, n)), nothing, array.dtype)
        return jnp.concatenate([pad, array[..., : max(n - steps, 0)]], -1)

    return State(shifted(state.m, -jnp.inf), shifted(state.t, -1))


def _elements(x: Array) -> State:
    """The state of each element by itself."""
    z = x.astype(wide_dtype(x.dtype))
    m = lax.stop_gradient(z)
    nothing = m == -jnp.inf
    return State(m, jnp.where(nothing, -1, jnp.expm1(jnp.where(nothing, 0, z) - pivot(m))))


def _merged(a: State, b: State) -> State:
    """The law. The lesser maximum's sum is faded; the sum that stays is 1 + t."""
    first = a.m >= b.m
    low, high = (jnp.where(first, b.m, a.m), jnp.where(first, a.m, b.m))
    m = jnp.maximum(a.m, b.m)
    kept, faded = jnp.where(first, a.t, b.t), jnp.where(first, b.t, a.t)
    # NaN in either is in m, and in the difference.
    return State(m, kept + jnp.exp(low - pivot(high)) * (1 + faded))


def _lse(state: State) -> Array:
    live = state.m != -jnp.inf
    y = state.m + jnp.log1p(jnp.where(live, state.t, 0))
    return _shown(jnp.where(jnp.isinf(state.m), state.m, y), jnp.where(live, y, 0))


@jax.custom_jvp
def _shown(value: Array, source: Array) -> Array:
    """The value, with the derivatives of the source: NaN beside +inf, which is a constant to JAX."""
    del source
    return value


@_shown.defjvp
@checks.any_rank
def _shown_jvp(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    return _shown(*primals), tangents[1]


def _axis(axis: Any, ndim: int) -> int:
    """The one axis of a scan; of a 0-d operand, one row of one element, axis 0."""
    number = checks.integer(axis, "axis")
    if not ndim and number in (0, -1):
        return 0
    (at,) = checks.axes(number, ndim)
    return at

"""Log-sum-exp and softmax of ragged groups of JAX arrays.

Groups are given by ids, one an entry of the axis, in any order, or by offsets, where each group starts and
the last one ends. Other axes than `axis` are features: every group has a result for each of them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import checks
from .pure_rows import pivot, wide_dtype

Array = Any


def segment_logsumexp(
    x: Any, *, ids: Any = None, offsets: Any = None, num_segments: Any = None, axis: Any = 0
) -> Array:
    """log(sum(exp(x))) of each group along `axis`: x's shape with the groups in place of the axis, in x's
    format.

    Args:
        x: real, with at least one dimension; integers and bool as JAX's default float.
        ids: integers, the group of each entry of the axis, in any order. Those that are negative or at least
            num_segments raise where they are known, and belong to no group where they are traced.
        offsets: integers, one more than there are groups, from 0 to the length of the axis, not decreasing:
            group g is [offsets[g], offsets[g + 1]). Either ids or offsets is given. Traced ones are not
            checked.
        num_segments: number of groups. Default: one more than the greatest id, which then has to be known;
            with offsets it has to be what they say.
        axis: one int.

    num_segments and axis must be known when the computation is built.

    Returns: -inf of an empty group and of one that is all -inf; +inf and NaN as `logsumexp`. Differentiable
        in x to any order; a group that is all -inf has gradient 0.

    Raises: TypeError and ValueError, naming the argument, when the call is traced.

    Cost: JAX's segment_max and segment_sum, and what they are gathered back with.
    """
    given, groups, count, at = _groups(x, ids, offsets, num_segments, axis)
    return _run(given, groups, count, at, False)


def segment_softmax(
    x: Any, *, ids: Any = None, offsets: Any = None, num_segments: Any = None, axis: Any = 0
) -> Array:
    """exp(x) / sum(exp(x)) within each group along `axis`: x's shape and format.

    Arguments, errors and cost as for `segment_logsumexp`. Returns: as `softmax` of each group by itself,
    special values included; an entry that belongs to no group has NaN.
    """
    given, groups, count, at = _groups(x, ids, offsets, num_segments, axis)
    return _run(given, groups, count, at, True)


@partial(jax.jit, static_argnums=(2, 3, 4), inline=True)
@checks.any_rank
def _run(x: Array, groups: Array, count: int, axis: int, softmax: bool) -> Array:
    z = jnp.moveaxis(x.astype(wide_dtype(x.dtype)), axis, 0)
    # An id below 0 would count from the end. The number of groups is one that a narrow format may not hold.
    ids = groups.astype(jnp.int32) if groups.dtype.itemsize < 4 else groups
    ids = jnp.where(ids < 0, count, ids)
    y = (_softmax if softmax else _logsumexp)(z, ids, count)
    return jnp.moveaxis(y, 0, axis).astype(x.dtype)


def _statistics(z: Array, ids: Array, count: int) -> tuple[Array, Array, Array]:
    """(exp(z - m), m of each group, its sum less the 1 of a greatest entry)."""
    m = jax.ops.segment_max(z, ids, count)
    mine = m.at[ids].get(mode="fill", fill_value=jnp.nan)
    top = z == mine
    e = jnp.exp(z - pivot(mine))
    rest = jax.ops.segment_sum(jnp.where(top, 0, e), ids, count)
    tops = jax.ops.segment_sum(top.astype(z.dtype), ids, count)
    return e, m, rest + (tops - 1)


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _logsumexp(z: Array, ids: Array, count: int) -> Array:
    _, m, t = _statistics(z, ids, count)
    return jnp.where(jnp.isfinite(m), m + jnp.log1p(t), m)


@_logsumexp.defjvp
@checks.any_rank
def _logsumexp_jvp(count: int, primals: Any, tangents: Any) -> tuple[Array, Array]:
    z, ids = primals
    lse = _logsumexp(z, ids, count)
    nothing = (lse == -jnp.inf).at[ids].get(mode="fill", fill_value=True)
    p = jnp.where(nothing, 0, _softmax(z, ids, count))
    return lse, jax.ops.segment_sum(p * tangents[0], ids, count)


@partial(jax.custom_jvp, nondiff_argnums=(2,))
def _softmax(z: Array, ids: Array, count: int) -> Array:
    e, m, t = _statistics(z, ids, count)
    return e / jnp.where(jnp.isfinite(m), 1 + t, jnp.nan).at[ids].get(mode="fill", fill_value=jnp.nan)


@_softmax.defjvp
@checks.any_rank
def _softmax_jvp(count: int, primals: Any, tangents: Any) -> tuple[Array, Array]:
    z, ids = primals
    y, dz = _softmax(z, ids, count), tangents[0]
    mean = jax.ops.segment_sum(y * dz, ids, count).at[ids].get(mode="fill", fill_value=0)
    return y, y * (dz - mean)


def _groups(x: Any, ids: Any, offsets: Any, num_segments: Any, axis: Any) -> tuple[Array, Array, int, int]:
    """x, the group of each entry, how many groups there are, and the axis."""
    given = checks.real(x, "x")
    (at,) = checks.axes(checks.integer(axis, "axis"), given.ndim)
    length = given.shape[at]
    if (ids is None) == (offsets is None):
        both = "neither ids nor offsets was" if ids is None else "ids and offsets were both"
        raise ValueError(f"{both} given: one of them would do")
    count = None if num_segments is None else checks.integer(num_segments, "num_segments")
    if count is not None and count < 0:
        raise ValueError(f"num_segments={count}: a whole number of at least 0 would do")
    if ids is not None:
        groups = _integers(ids, "ids")
        if groups.shape[0] != length:
            would = f"one for each of the {length} along axis would do"
            raise ValueError(f"ids has {groups.shape[0]} entries: {would}")
        return given, groups, _count(groups, count), at
    bounds = _integers(offsets, "offsets")
    if not bounds.shape[0]:
        raise ValueError("offsets is empty: one entry more than there are groups would do")
    made = bounds.shape[0] - 1
    if count is not None and count != made:
        raise ValueError(f"num_segments={count} where offsets make {made} groups: that would do")
    _check_offsets(bounds, length)
    return given, jnp.searchsorted(bounds[1:], jnp.arange(length), side="right"), made, at


def _count(ids: Array, count: int | None) -> int:
    """The number of groups, of ids that are checked where they are known."""
    if isinstance(ids, jax.core.Tracer):
        if count is None:
            raise TypeError("ids is traced and num_segments not given: the number of groups would do")
        return count
    known = np.asarray(ids)
    wrong = known < 0 if count is None else (known < 0) | (known >= count)
    if wrong.any():
        at = int(np.argmax(wrong))
        would = (
            "numbers from 0 on would do" if known[at] < 0 else f"numbers below num_segments={count} would do"
        )
        raise ValueError(f"ids[{at}]={known[at]}: {would}")
    return count if count is not None else int(known.max(initial=-1)) + 1


def _check_offsets(offsets: Array, length: int) -> None:
    if isinstance(offsets, jax.core.Tracer):
        return
    known = np.asarray(offsets)
    if known[0] != 0:
        raise ValueError(f"offsets[0]={known[0]}: 0 would do")
    falls = known[1:] < known[:-1]
    if falls.any():
        at = int(np.argmax(falls)) + 1
        would = "offsets that do not decrease would do"
        raise ValueError(f"offsets[{at}]={known[at]} comes after {known[at - 1]}: {would}")
    if known[-1] != length:
        raise ValueError(f"offsets[-1]={known[-1]}: the length of axis, {length}, would do")


def _integers(value: Any, name: str) -> Array:
    given = checks.array(
        value, name, as_given=True
    )  # not yet JAX's: within `jit` what is known would be traced
    if not jnp.issubdtype(given.dtype, jnp.integer):
        raise TypeError(f"{name} holds {given.dtype}: integers would do")
    if given.ndim != 1:
        raise ValueError(f"{name} has shape {given.shape}: one dimension would do")
    return given

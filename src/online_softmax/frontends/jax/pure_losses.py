"""Cross-entropy of rows of logits and its gradient in JAX's own operations.

The target of a row is kept apart from the other classes. With d = lse of the others - score of the target,

    -log p = softplus(d),  1 - p = logistic(d),  lse = score + softplus(d)

so neither loss nor gradient of a row that is sure of its target cancels. Both functions can be differentiated
by JAX, any number of times: the maxima that are taken off are constants to it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from . import checks
from .pure_rows import pivot, wide_dtype

Array = Any


class _Row(NamedTuple):
    """What is known of each row: shape (..., 1), but for x, scores, own and exps, (..., classes)."""

    x: Array
    scores: Array
    own: Array  # bool: the target
    exps: Array  # exp(score - m) of the others, 0 at the target
    m: Array  # the maximum of the others, 0 where there is none
    s: Array  # the sum of exps
    above: Array  # its logarithm
    target: Array  # its score, -inf without one
    d: Array
    lse: Array
    kept: Array  # bool: not ignored
    sound: Array  # 1, or NaN where a row that counts has no distribution or no class for a target
    left_out: Array  # bool: ignored, and without a distribution: x is 0 there


def cross_entropy_rows(
    logits: Array, targets: Array, *, class_weight: Array | None, label_smoothing: float, megatron: bool,
    z_loss: float, softcap: float | None, temperature: float, ignore_index: int,
) -> tuple[Array, Array]:  # fmt: skip
    """The loss and the lse of each row: (...,) in float32, float64 for float64.

    logits: (..., classes). targets: integers (...). One that is neither a class nor ignore_index gives NaN:
    under `jit` nothing can be raised for it. Ignored rows have loss 0, and an lse.
    """
    row = _row(logits, targets, softcap, temperature, ignore_index)
    sharp, uniform = shares(label_smoothing, megatron, logits.shape[-1])
    of_target = _softplus(row.d)
    if class_weight is None:
        loss = sharp * of_target
    else:
        weight = class_weight.astype(row.scores.dtype)
        own_weight = jnp.sum(jnp.where(row.own, weight, 0), -1, keepdims=True)
        # A class of weight 0 counts nothing, though its score be -inf.
        loss = jnp.where(own_weight == 0, 0, sharp * own_weight * jnp.where(own_weight == 0, 0, of_target))
    if uniform:
        loss = loss + uniform * _distances(row, class_weight)
    if z_loss:
        loss = loss + z_loss * row.lse * row.lse
    loss = jnp.where(row.kept, loss * row.sound, 0)
    return loss[..., 0], row.lse[..., 0]


def cross_entropy_rows_grad(
    d_loss: Array, d_lse: Array | None, logits: Array, targets: Array, *, class_weight: Array | None,
    label_smoothing: float, megatron: bool, z_loss: float, softcap: float | None, temperature: float,
    ignore_index: int,
) -> Array:  # fmt: skip
    """The gradient of the logits, in their format, from those of loss and lse, (...,) or broadcastable.

    Rows that are ignored have that of the lse alone, 0 where d_lse is 0, whatever their logits hold.
    """
    row = _row(logits, targets, softcap, temperature, ignore_index)
    wide = row.scores.dtype
    sharp, uniform = shares(label_smoothing, megatron, logits.shape[-1])
    shape = row.lse.shape[:-1]
    g = jnp.broadcast_to(jnp.asarray(d_loss, wide), shape)[..., None]
    h = jnp.zeros_like(g) if d_lse is None else jnp.broadcast_to(jnp.asarray(d_lse, wide), shape)[..., None]
    here, rest = lax.logistic(-row.d), lax.logistic(row.d)
    p = jnp.where(row.own, here, row.exps * _share(row, here, rest)) * row.sound
    weight = jnp.ones((), wide) if class_weight is None else class_weight.astype(wide)
    flat = uniform * weight
    own_weight = jnp.sum(jnp.where(row.own, weight, 0), -1, keepdims=True)
    of_own = sharp * own_weight
    all_flat = uniform * (logits.shape[-1] if class_weight is None else jnp.sum(weight))
    # At the target p * (sum of the other coefficients) - c * (1 - p): nothing cancels.
    at_target = here * (all_flat - flat) - (of_own + flat) * rest
    dz = jnp.where(row.own, at_target * row.sound, p * (of_own + all_flat) - flat)
    if z_loss:
        dz = dz + 2 * z_loss * row.lse * p
    dz = jnp.where(row.kept, g * dz, 0)
    if d_lse is not None:
        nothing = jnp.where((h == 0) | (row.lse == -jnp.inf), 0.0, jnp.nan).astype(wide)
        dz = dz + jnp.where(row.left_out, nothing, h * p)
    return (dz * _slope(row.x, softcap, temperature)).astype(logits.dtype)


def shares(label_smoothing: float, megatron: bool, classes: int) -> tuple[float, float]:
    """What the target counts, and what every class does: see `online_softmax.loss_rules`."""
    e = label_smoothing * classes / (classes - 1) if megatron and label_smoothing else label_smoothing
    return 1 - e, e / max(classes, 1)


def _row(logits: Array, targets: Array, softcap: float | None, temperature: float, ignore_index: int) -> _Row:
    wide = wide_dtype(logits.dtype)
    x, classes = logits.astype(wide), logits.shape[-1]
    t = _signed(targets)[..., None]
    kept = t != ignore_index
    has = (t >= 0) & (t < classes) & kept
    # Scores rise with logits: the greatest is that of the greatest logit.
    top = _scores(lax.stop_gradient(jnp.max(x, -1, keepdims=True, initial=-jnp.inf)), softcap, temperature)
    odd = ~jnp.isfinite(top)
    left_out = odd & ~kept
    x = jnp.where(left_out, 0, x)
    z = _scores(x, softcap, temperature)
    own = (lax.broadcasted_iota(t.dtype, z.shape, z.ndim - 1) == t) & has
    target = jnp.where(has, jnp.sum(jnp.where(own, z, 0), -1, keepdims=True), -jnp.inf)
    others = jnp.where(own, -jnp.inf, z)
    m = pivot(lax.stop_gradient(jnp.max(others, -1, keepdims=True, initial=-jnp.inf)))
    exps = jnp.exp(others - m)
    s = jnp.sum(exps, -1, keepdims=True)
    above = jnp.where(s == 0, -jnp.inf, jnp.log(jnp.where(s == 0, 1, s)))
    # Not lse of the others - target: where m is great, log(s) is lost in it.
    d = (m - target) + above
    lse = jnp.where(d > 0, m + (above + _softplus(-d)), target + _softplus(d))
    sound = jnp.where(kept & (odd | ~has), jnp.nan, jnp.ones((), wide))
    lse = jnp.where(odd, top, lse)
    return _Row(x, z, own, exps, m, s, above, target, d, lse, kept, sound, left_out)


def _share(row: _Row, here: Array, rest: Array) -> Array:
    """What exps are multiplied by for probabilities. Not by the lse, whose rounding grows with it."""
    beside = jnp.exp(jnp.where(row.d > 0, 0, row.m - row.target)) * here
    s = jnp.where(row.s == 0, 1, row.s)
    return jnp.where(row.s == 0, 0, jnp.where(row.d > 0, rest / s, beside))


def _distances(row: _Row, class_weight: Array | None) -> Array:
    """Sum over the classes of weight * (lse - score), each from the greatest score: no large numbers
    cancel."""
    by_target = (row.d <= 0) | (row.target > row.m)
    top = jnp.where(by_target, row.target, row.m)
    over = jnp.where(by_target, _softplus(row.d), row.above + _softplus(-row.d))
    each = (top - row.scores) + over
    if class_weight is not None:
        weight = class_weight.astype(row.scores.dtype)
        each = jnp.where(weight == 0, 0, jnp.where(weight == 0, 0, each) * weight)
    return jnp.sum(each, -1, keepdims=True)


def _scores(x: Array, softcap: float | None, temperature: float) -> Array:
    if softcap:
        x = softcap * jnp.tanh(x / softcap)
    return x if temperature == 1 else x * (1 / temperature)


def _slope(x: Array, softcap: float | None, temperature: float) -> Array | float:
    """The derivative of scores: 1 / cosh(x / softcap)**2, without the cancellation of 1 - tanh**2."""
    if not softcap:
        return 1 / temperature
    e = jnp.exp(-2 * jnp.abs(x / softcap))
    return 4 * e / ((1 + e) * (1 + e)) * (1 / temperature)


@jax.custom_jvp
def _softplus(x: Array) -> Array:
    """log(1 + exp(x)). JAX's rule for the absolute value would give 0 at 0."""
    return jnp.maximum(x, 0) + jnp.log1p(jnp.exp(-jnp.abs(x)))


@_softplus.defjvp
@checks.any_rank
def _softplus_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    return _softplus(x), lax.logistic(x) * dx


def _signed(targets: Array) -> Array:
    """Integers that hold a negative ignore_index."""
    narrow = jnp.iinfo(targets.dtype).min == 0 or targets.dtype.itemsize < 4
    return targets.astype(jnp.int64 if targets.dtype.itemsize == 8 else jnp.int32) if narrow else targets

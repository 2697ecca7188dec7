"""Cross-entropy of JAX arrays of hidden states and a weight: the logits never exist as a whole.

A scan over chunks of tokens makes their logits, takes the loss and forgets them. Where the losses are summed
the tangent is a product with gradients made in that same scan, so that logits are made once; else, and for
derivatives past the first, they are made anew. Memory is that of a chunk in every case.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ...loss_rules import REDUCTIONS, SMOOTHINGS
from ..linear_arguments import MEMORY
from ..losses import Loss
from . import checks
from .attention_scores import product
from .loss_primitives import Options
from .losses import _by_row, _denominator, indices, options_of, reduced, weights_of, whole_targets
from .manual import alike
from .pure_losses import cross_entropy_rows, cross_entropy_rows_grad
from .pure_rows import wide_dtype

Array = Any
#: Arrays of a chunk's logits that forward and derivatives hold at a time, about.
_COPIES = 4


def linear_cross_entropy(
    hidden: Any, weight: Any, targets: Any, *, bias: Any = None, softcap: Any = None, temperature: Any = 1.0,
    class_weight: Any = None, row_weight: Any = None, ignore_index: Any = -100, label_smoothing: Any = 0.0,
    smoothing: Any = "pytorch", z_loss: Any = 0.0, reduction: Any = "mean", empty: Any = "nan",
    return_lse: Any = False, memory: Any = MEMORY,
) -> Any:  # fmt: skip
    """Cross-entropy of the logits hidden @ weight.T + bias, a chunk of tokens at a time.

    The options, and what comes back, are those of `cross_entropy`, whose `weight` is `class_weight` here.

    Args:
        hidden: (..., D), weight: (V, D), bias: (V,): real. Products and sums are in float32, in float64 where
            hidden or weight is.
        targets: integers (...): 0 to V - 1, or ignore_index. One out of range gives NaN: nothing can be
            raised for a value that is not known yet.
        ignore_index: rows with this index have loss 0 and gradient 0, whatever hidden holds there.
        memory: bytes for the logits of a chunk and what is made of them.

    All but the arrays must be known when the computation is built.

    Returns: a number, or the rows' shape for "none"; float32, float64 where products are; Loss(loss, lse)
        with return_lse. Differentiable to any order, forward and reverse, in hidden, weight, bias and
        row_weight.

    Raises: TypeError and ValueError, naming the argument, when the call is traced.

    Cost: one product of 2 N V D flops; three together with the gradient, four with reduction="none" or
        return_lse. A weight of 16 bits is copied in float32, in which its gradient is summed and rounded
        once.
    """
    cap = None if softcap is None else checks.number(softcap, "softcap")
    options = Options(
        checks.number(label_smoothing, "label_smoothing"),
        checks.word(smoothing, "smoothing", SMOOTHINGS) == "megatron",
        checks.number(z_loss, "z_loss"), cap, checks.number(temperature, "temperature"),
        checks.integer(ignore_index, "ignore_index"),
    )  # fmt: skip
    budget = checks.integer(memory, "memory")
    if budget < 1:
        raise ValueError(f"memory is {budget}: a positive number of bytes would do")
    arrays = {"bias": bias, "class_weight": class_weight, "row_weight": row_weight}
    return _linear_cross_entropy(
        checks.array(hidden, "hidden"), checks.array(weight, "weight"), whole_targets(targets),
        **{name: None if value is None else checks.array(value, name) for name, value in arrays.items()},
        options=options, reduction=checks.word(reduction, "reduction", REDUCTIONS),
        empty=checks.word(empty, "empty", ("nan", "zero")), return_lse=checks.flag(return_lse, "return_lse"),
        memory=budget,
    )  # fmt: skip


@partial(jax.jit, static_argnames=("options", "reduction", "empty", "return_lse", "memory"), inline=True)
@checks.any_rank
def _linear_cross_entropy(
    hidden: Array, weight: Array, targets: Array, *, bias: Array | None, class_weight: Array | None,
    row_weight: Array | None, options: Options, reduction: str, empty: str, return_lse: bool, memory: int,
) -> Any:  # fmt: skip
    states, matrix = checks.real(hidden, "hidden"), checks.real(weight, "weight")
    if not states.ndim:
        raise ValueError("hidden has no dimensions: (..., features) would do")
    if matrix.ndim != 2 or matrix.shape[1] != states.shape[-1] or not matrix.shape[0]:
        would = f"(classes, {states.shape[-1]}), at least one class, would do"
        raise ValueError(f"weight has shape {matrix.shape} for hidden of shape {states.shape}: {would}")
    shape, classes = states.shape[:-1], matrix.shape[0]
    wide = jnp.promote_types(wide_dtype(states.dtype), wide_dtype(matrix.dtype))
    options = options_of(options, classes, wide)
    index = indices(targets, shape, options.ignore_index)
    if class_weight is not None and jnp.shape(class_weight) != (classes,):
        would = f"{(classes,)}, one for each class, would do"
        raise ValueError(f"class_weight has shape {jnp.shape(class_weight)}: {would}")
    counts = weights_of(class_weight, classes, wide)
    by_row = None if row_weight is None else _by_row(row_weight, shape, wide)
    offset = None if bias is None else checks.real(bias, "bias")
    if offset is not None and offset.shape != (classes,):
        raise ValueError(f"bias has shape {offset.shape}: {(classes,)}, one for each class, would do")
    kept = index != options.ignore_index
    flat = states.reshape(math.prod(shape), matrix.shape[1])
    rest = (matrix.astype(wide), None if offset is None else offset.astype(wide))
    counted = _denominator(index, kept, counts, by_row, wide) if reduction == "mean" else None
    if reduction != "none" and not return_lse:
        factors = jnp.ones(shape, wide) if by_row is None else by_row
        given = alike(flat, *rest, factors.reshape(-1), index.reshape(-1), counts)
        total = _total(*given, options, memory)
        return reduced(total, counted, empty)
    flat, matrix, offset, targets, counts = alike(flat, *rest, index.reshape(-1), counts)
    loss, lse = _rows(flat, matrix, offset, targets, counts, options, return_lse, memory)
    loss, lse = loss.reshape(shape), lse.reshape(shape)
    if by_row is not None:
        loss = jnp.where(kept, loss * by_row, 0)
    if reduction != "none":
        loss = reduced(loss, counted, empty)
    return Loss(loss, lse) if return_lse else loss


def _rows(
    hidden: Array, weight: Array, bias: Array | None, index: Array, class_weight: Array | None,
    options: Options, lse_too: bool, memory: int,
) -> tuple[Array, Array]:  # fmt: skip
    """Loss and lse of each token, (tokens,). weight and bias: in the format of sums."""
    tokens, wide = hidden.shape[0], weight.dtype
    if not tokens:
        return jnp.zeros(0, wide), jnp.zeros(0, wide)
    chunks = _chunks(hidden, weight, index, None, options, memory)

    @partial(jax.checkpoint, prevent_cse=False)
    def chunk(carry: None, given: tuple[Array, Array]) -> tuple[None, tuple[Array, Array]]:
        rows, targets = given
        read = targets != options.ignore_index
        spoilt = ~read & ~jnp.all(jnp.isfinite(rows), -1)
        # 0 * NaN is NaN: what an ignored row holds must not come near the sums.
        clean = jnp.where((spoilt if lse_too else ~read)[:, None], 0, rows)
        logits = _logits(clean, weight, bias)
        loss, lse = cross_entropy_rows(logits, targets, class_weight=class_weight, **options._asdict())
        return carry, (loss, jnp.where(spoilt, jnp.nan, lse))

    _, (loss, lse) = lax.scan(chunk, None, chunks)
    return loss.reshape(-1)[:tokens], lse.reshape(-1)[:tokens]


@partial(jax.custom_jvp, nondiff_argnums=(6, 7))
def _total(
    hidden: Array, weight: Array, bias: Array | None, factors: Array, index: Array,
    class_weight: Array | None, options: Options, memory: int,
) -> Array:  # fmt: skip
    """The sum of the tokens' losses, each times its factor."""
    loss = _rows(hidden, weight, bias, index, class_weight, options, False, memory)[0]
    return jnp.sum(jnp.where(index == options.ignore_index, 0, factors * loss))


@_total.defjvp
@checks.any_rank
def _total_jvp(options: Options, memory: int, primals: Any, tangents: Any) -> tuple[Array, Array]:
    """Linear in the tangents by gradients: in reverse mode these are all that is kept."""
    hidden, weight, bias, factors, index, class_weight = primals
    loss, *gradients = _gradients(hidden, weight, bias, factors, index, class_weight, options, memory)
    kept = jnp.where(index == options.ignore_index, 0, loss)
    pairs = [(kept, tangents[3]), *zip(gradients, tangents[:3], strict=True)]
    moved = sum(jnp.sum(g * t.astype(g.dtype)) for g, t in pairs if g is not None)
    return jnp.sum(kept * factors), moved


def _gradients(
    hidden: Array, weight: Array, bias: Array | None, factors: Array, index: Array,
    class_weight: Array | None, options: Options, memory: int,
) -> tuple[Array, Array, Array, Array | None]:  # fmt: skip
    """The loss of each token, and the gradients of `_total` with respect to hidden, weight and bias."""
    tokens, wide = hidden.shape[0], weight.dtype
    sums = alike(jnp.zeros_like(weight), jnp.zeros(weight.shape[0], wide), hidden)[:2]
    if not tokens:
        return jnp.zeros(0, wide), jnp.zeros(hidden.shape, wide), sums[0], None if bias is None else sums[1]
    narrow = hidden.dtype.itemsize < 4
    settings = {"class_weight": class_weight, **options._asdict()}

    @partial(jax.checkpoint, prevent_cse=False)
    def chunk(sums: tuple[Array, Array], given: tuple[Array, ...]) -> tuple[Any, tuple[Array, Array]]:
        rows, targets, factor = given
        rows = jnp.where((targets == options.ignore_index)[:, None], 0, rows)
        logits = _logits(rows, weight, bias)
        loss = cross_entropy_rows(logits, targets, **settings)[0]
        dz = cross_entropy_rows_grad(factor, None, logits, targets, **settings)
        by_rows = product("nv,vd->nd", dz, weight, wide, narrow=narrow)
        by_weight = sums[0] + product("nv,nd->vd", dz, rows, wide, narrow=narrow)
        return (by_weight, sums[1] + jnp.sum(dz, 0)), (loss, by_rows)

    chunks = _chunks(hidden, weight, index, factors, options, memory)
    (by_weight, by_bias), (loss, by_rows) = lax.scan(chunk, sums, chunks)
    by_hidden = by_rows.reshape(-1, hidden.shape[1])[:tokens]
    return loss.reshape(-1)[:tokens], by_hidden, by_weight, None if bias is None else by_bias


def _chunks(
    hidden: Array, weight: Array, index: Array, factors: Array | None, options: Options, memory: int
) -> tuple[Array, ...]:
    """hidden, index and factors as (chunks, tokens of one, ...). What fills the last chunk is ignored."""
    tokens = hidden.shape[0]
    most = max(1, memory // (_COPIES * weight.shape[0] * weight.dtype.itemsize))
    chunks = -(-tokens // most)
    size = -(-tokens // chunks)
    more = chunks * size - tokens
    made = (
        jnp.pad(hidden, ((0, more), (0, 0))).reshape(chunks, size, hidden.shape[1]),
        jnp.pad(index, (0, more), constant_values=options.ignore_index).reshape(chunks, size),
    )
    return made if factors is None else (*made, jnp.pad(factors, (0, more)).reshape(chunks, size))


def _logits(hidden: Array, weight: Array, bias: Array | None) -> Array:
    logits = product("nd,vd->nv", hidden, weight, weight.dtype)
    return logits if bias is None else logits + bias

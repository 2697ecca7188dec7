"""Attention of JAX arrays: documents, checks and routes."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..attention import Attention
from ..attention_arguments import ALIGNMENTS, LAYOUTS, MOST_FEATURES
from . import checks, counter
from .attention_factors import ORDER
from .attention_primitives import Options
from .attention_primitives import attention as primitive
from .pure_rows import wide_dtype

Array = Any


class _Static(NamedTuple):
    """Options as given, checked as far as that goes without the operands."""

    scale: float | None
    lower_right: bool
    left: int
    right: int
    softcap: float
    drop: float
    bshd: bool


def attention(
    q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, scale: Any = None, causal: Any = False,
    causal_align: Any = "lower_right", window: Any = None, softcap: Any = None, sinks: Any = None,
    alibi_slopes: Any = None, dropout_p: Any = 0.0, seed: Any = 0, return_lse: Any = False,
    layout: Any = "BSHD",
) -> Any:  # fmt: skip
    """softmax(scale * q k^T) v, a chunk of keys at a time: the matrix of scores is never there.

    A score goes through scale, softcap, bias, slopes and mask, in this order; statistics and sums are in
    float32 for operands of up to 32 bits, in float64 for float64.

    Args:
        q: (batch, queries, heads, d), or without batch, or (queries, d).
        k, v: (batch, keys, key heads, d) and (batch, keys, key heads, d of the output), in q's format. A
            multiple of key heads are query heads: head h of q uses head h // (heads // key heads).
        mask: bool, broadcastable to (batch, heads, queries, keys): True takes part. Where it is False neither
            key nor value is read into arithmetic.
        bias: real, broadcastable likewise, added to the scores; -inf is a mask.
        scale: default 1/sqrt(d).
        causal: query i sees the keys up to i + keys - queries, or up to i with causal_align="upper_left", the
            rule of jax.nn.dot_product_attention.
        window: (left, right): the keys at most so far from the query's own place; None for no limit.
        softcap: scores become softcap * tanh(score / softcap).
        sinks: (heads,) logits with a value of 0, which take their share of the sum.
        alibi_slopes: (heads,) or (batch, heads): slope * distance is subtracted from the scores. Constants to
            derivatives.
        dropout_p: each weight is dropped with this probability, below 1, the others are divided by
            1 - dropout_p.
        seed: of dropout: an integer from 0 to 2**64 - 1, an integer array of no axes, two words (high, low)
            of uint32, or a key of jax.random. Which weights are dropped follows from (seed, batch, head,
            query, key) alone, as `online_softmax.dropout_mask` has it; `vmap` does not count as batch.
        return_lse: Attention(output, lse), with the log-sum-exps of the scores, q's shape without features,
            float32 (float64 for float64), sinks included.
        layout: "BHSD" for (batch, heads, length, d) in all of q, k, v, output and lse.

    All but the arrays and the seed must be known when the computation is built.

    Returns: the output, in q's format, or Attention(output, lse). A query that sees nothing gets 0, with an
        lse of -inf (of its sink, where there is one). Differentiable in q, k, v, bias and sinks, forward and
        reverse, to any order.

    Raises: TypeError and ValueError, naming the argument, when the call is traced; ValueError too for more
        than 1024 features a head.

    Cost: as `online_softmax.attention` on a CPU, 2.5 times that for the gradient (3.5 with bias), neither
        with memory for the scores. Tangents of forward mode go by blocks of keys in JAX's own operations. A
        derivative of the gradient keeps what reverse mode keeps of these: up to the matrix of scores. Where
        the bias is broadcast and a batch is cut over devices, its gradient is summed over them.
    """
    left, right = _window(window)
    static = _Static(
        None if scale is None else checks.number(scale, "scale"),
        checks.word(causal_align, "causal_align", ALIGNMENTS) == "lower_right",
        left, 0 if checks.flag(causal, "causal") else right, _softcap(softcap), _dropout(dropout_p),
        checks.word(layout, "layout", LAYOUTS) == "BSHD",
    )  # fmt: skip
    arrays = {name: checks.array(a, name) for name, a in (("q", q), ("k", k), ("v", v))}
    optional = {"mask": mask, "bias": bias, "sinks": sinks, "slopes": alibi_slopes}
    named = {"slopes": "alibi_slopes"}
    for name, a in optional.items():
        if a is not None:
            arrays[name] = checks.array(a, named.get(name, name), as_given=name == "mask")
    words = counter.words_of(seed, "seed")
    if static.drop:
        arrays["seed"] = words
    out, lse = _attention(arrays, static=static)
    return Attention(out, lse) if checks.flag(return_lse, "return_lse") else out


def _window(window: Any) -> tuple[int, int]:
    if window is None:
        return -1, -1
    would = "a pair (left, right) of distances would do, None for no limit"
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise TypeError(f"window is {window!r}: {would}")
    sides = [-1 if side is None else checks.integer(side, "window") for side in window]
    if any(side is not None and side < 0 for side in window):
        raise ValueError(f"window is {window!r}: distances are at least 0")
    return min(sides[0], 1 << 30), min(sides[1], 1 << 30)


def _softcap(softcap: Any) -> float:
    if softcap is None:
        return 0.0
    cap = checks.number(softcap, "softcap")
    if cap <= 0:
        raise ValueError(f"softcap is {softcap}: a positive number would do, None for no cap")
    return cap


def _dropout(dropout_p: Any) -> float:
    p = checks.number(dropout_p, "dropout_p")
    if not 0 <= p < 1:
        raise ValueError(f"dropout_p is {dropout_p}: at least 0 and below 1 would do")
    return p


@partial(jax.jit, static_argnames=("static",), inline=True)
@checks.any_rank
def _attention(arrays: dict[str, Array], *, static: _Static) -> tuple[Array, Array]:
    given = {name: checks.real(arrays[name], name) for name in "qkv"}
    result = given["q"].dtype
    for name in "kv":
        if given[name].dtype != result:
            raise TypeError(f"{name} is {given[name].dtype} and q is {result}: one format for all would do")
    rank = given["q"].ndim
    four = {name: _four(checks.computed(a), name, static.bshd, rank) for name, a in given.items()}
    batch, heads, queries, keys = _sizes(four, static.bshd)
    wide = wide_dtype(four["q"].dtype)
    scores = (batch, heads, queries, keys)
    operands = dict(four)
    if "mask" in arrays:
        operands["mask"] = _of_scores(arrays["mask"], "mask", scores, rank)
    if "bias" in arrays:
        operands["bias"] = _within(_of_scores(arrays["bias"], "bias", scores, rank), wide)
    if "sinks" in arrays:
        sinks = checks.real(arrays["sinks"], "sinks")
        if sinks.shape != (heads,):
            raise ValueError(f"sinks has shape {sinks.shape}: ({heads},) would do")
        operands["sinks"] = sinks.astype(wide)[None]
    if "slopes" in arrays:
        slopes = jax.lax.stop_gradient(checks.real(arrays["slopes"], "alibi_slopes"))
        if slopes.shape not in {(heads,), (batch, heads)}:
            raise ValueError(
                f"alibi_slopes has shape {slopes.shape}: ({heads},) or {(batch, heads)} would do"
            )
        operands["slopes"] = jnp.broadcast_to(slopes.astype(wide), (batch, heads))
    if "seed" in arrays:
        number = jnp.arange(batch, dtype=jnp.uint32)[:, None]
        words = jnp.broadcast_to(arrays["seed"], (batch, 2))
        operands["numbers"] = jnp.concatenate([words, number], 1)
        operands["firsts"] = jnp.arange(heads, dtype=jnp.int32)
    out, lse = primitive(operands, _options(static, four["q"].shape[3], wide, tuple(operands), batch))
    leave = tuple(range(4 - rank)) if rank > 2 or not static.bshd else (0, 2)
    return jnp.squeeze(out, leave).astype(result), jnp.squeeze(lse, leave)


def _options(static: _Static, d: int, wide: Any, names: tuple[str, ...], batch: int) -> Options:
    most = float(jnp.finfo(wide).max)
    scale = 1 / math.sqrt(max(d, 1)) if static.scale is None else static.scale
    if abs(scale) > most:
        raise ValueError(f"scale is {scale}: up to {most}, the range of {jnp.dtype(wide).name}, would do")
    softcap = 0.0 if static.softcap > math.sqrt(most) else static.softcap
    present = tuple(name for name in ORDER if name in names)
    return Options(
        scale,
        softcap,
        static.lower_right,
        static.left,
        static.right,
        static.drop,
        static.bshd,
        present,
        batch,
    )


def _four(array: Array, name: str, bshd: bool, rank: int) -> Array:
    """Of four axes; heads of 1 where there are none."""
    if array.ndim != rank or not 2 <= rank <= 4:
        would = f"{rank} like q" if 2 <= rank <= 4 else "2, 3 or 4"
        raise ValueError(f"{name} has {array.ndim} dimensions: {would} would do")
    if rank == 2:
        return array[None, :, None] if bshd else array[None, None]
    return array[None] if rank == 3 else array


def _sizes(four: dict[str, Array], bshd: bool) -> tuple[int, int, int, int]:
    """Batch, heads, queries and keys, which fit together."""
    at, along = (2, 1) if bshd else (1, 2)
    (q, k, v) = (four[name].shape for name in "qkv")
    if not q[0] == k[0] == v[0]:
        raise ValueError(f"q, k and v have batches of {q[0]}, {k[0]} and {v[0]}: the same would do")
    if k[3] != q[3]:
        raise ValueError(f"k has {k[3]} features and q {q[3]}: the same number would do")
    if v[along] != k[along]:
        raise ValueError(f"v has {v[along]} values for {k[along]} keys: one value a key would do")
    if v[at] != k[at]:
        raise ValueError(f"v has {v[at]} heads and k {k[at]}: the same number would do")
    heads, groups = q[at], k[at]
    if groups == 0 if heads else groups:
        raise ValueError(f"k has {groups} heads for {heads} of q: a divisor of {heads} would do")
    if groups and heads % groups:
        raise ValueError(f"q has {heads} heads and k {groups}: a multiple of {groups} would do")
    for name, size in (("q", q[3]), ("v", v[3])):
        if size > MOST_FEATURES:
            raise ValueError(f"{name} has {size} features a head: up to {MOST_FEATURES} would do")
    return q[0], heads, q[along], k[along]


def _of_scores(value: Array, name: str, scores: tuple[int, ...], rank: int) -> Array:
    """mask or bias with four axes, each as long as that of the scores or 1."""
    if name == "mask" and value.dtype != jnp.bool_:
        raise TypeError(f"mask is {value.dtype}: bool would do, True takes part; scores to add go into bias")
    given = jnp.asarray(value) if name == "mask" else checks.real(value, name)
    if given.ndim > rank:
        raise ValueError(f"{name} has {given.ndim} dimensions: up to {rank} would do")
    four = given.reshape((1,) * (4 - given.ndim) + given.shape)
    if any(n not in (1, m) for n, m in zip(four.shape, scores, strict=True)):
        axes = "(batch, heads, queries, keys), or the last of them, each as long as there or 1, would do"
        raise ValueError(f"{name} of shape {given.shape} does not broadcast to {scores[4 - rank :]}: {axes}")
    return four


def _within(bias: Array, wide: Any) -> Array:
    """In the format of statistics. The lowest float64 often says "hardly": it stays finite."""
    if bias.dtype == wide or jnp.finfo(bias.dtype).max <= jnp.finfo(wide).max:
        return bias.astype(wide)
    most = float(jnp.finfo(wide).max)
    return jnp.where(jnp.isfinite(bias), jnp.clip(bias, -most, most), bias).astype(wide)

"""Attention of NumPy arrays: documents and routes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import attention_state, cpu, cpu_attention
from ..attention_state import AttentionState
from . import arrays, checks, exact_attention
from . import attention_arguments as arguments
from .attention_call import Call, Options, described
from .exact_attention import ExactAttentionState

Array = checks.Array

#: `attention_state.merge_attention_vjp`, which knows NumPy alone, for arrays of any library.
merge_attention_vjp = arrays.routed(attention_state.merge_attention_vjp)


class Attention(NamedTuple):
    """An attention output with its log-sum-exps."""

    output: Array
    lse: Array


class AttentionGradients(NamedTuple):
    """Gradients of the operands of `attention`, in their formats and shapes."""

    q: Array
    k: Array
    v: Array
    #: None where it was not asked for.
    bias: Array | None
    #: None where no sinks were given.
    sinks: Array | None


@arrays.routed
def attention(
    q: Any, k: Any, v: Any, *, mask: Any = None, bias: Any = None, scale: Any = None, causal: Any = False,
    causal_align: str = "lower_right", window: Any = None, softcap: Any = None, sinks: Any = None,
    alibi_slopes: Any = None, dropout_p: Any = 0.0, seed: Any = 0, cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None, seqlens_k: Any = None, block_table: Any = None, k_scale: Any = None,
    v_scale: Any = None, origin: Any = None, return_lse: Any = False, return_state: Any = False,
    layout: str = "BHSD", order: str = "row", isa: str | None = None, threads: int | None = None,
) -> Any:  # fmt: skip
    """softmax(scale * q k^T) v, a chunk of keys at a time: the matrix of scores is never there.

    A score goes through scale, softcap, bias, slopes and mask, in this order; statistics and sums are in
    float32 for operands of up to 32 bits, in float64 for float64.

    Args:
        q: (batch, heads, queries, d), or without batch, or without batch and heads.
        k, v: (batch, key heads, keys, d) and (batch, key heads, keys, d of the output), in q's format. A
            multiple of key heads are query heads: head h of q uses head h // (heads // key heads). Both may
            be float8_e4m3fn, float8_e5m2 or int8 instead, see k_scale.
        mask: bool, broadcastable to (batch, heads, queries, keys): True takes part. Where it is False neither
            key nor value is read into arithmetic.
        bias: real, broadcastable likewise, added to the scores; -inf is a mask.
        scale: default 1/sqrt(d).
        causal: query i sees the keys up to i + keys - queries, or up to i with causal_align="upper_left".
        window: (left, right): the keys at most so far from the query's own place; None for no limit.
        softcap: scores become softcap * tanh(score / softcap).
        sinks: (heads,) logits with a value of 0, which take their share of the sum.
        alibi_slopes: (heads,) or (batch, heads): slope * distance is subtracted from the scores.
        dropout_p, seed: each weight is dropped with this probability, below 1, the others are divided by
            1 - dropout_p. Which ones follows from (seed, batch, head, query, key) alone, counted from origin:
            see `dropout_mask`.
        origin: (batch, head, query, key): what number the first of each has in a whole of which this call is
            a part. Dropout counts from there, and causal, window and slopes go by these places: query i
            stands at query + i, key j at key + j. Without it they go by this call alone, and parts of the
            keys with causal, window or slopes do not merge to the whole.
        cu_seqlens_q, cu_seqlens_k: sequences side by side: q (total, heads, d), k and v (total keys, key
            heads, features), sequence i of q from cu_seqlens_q[i] to cu_seqlens_q[i + 1]. Output and lse are
            (total, heads, ...), 0 and -inf past the last sequence; mask and bias broadcast to (heads, total,
            total keys).
        seqlens_k: (batch,) keys that count of each batch element; those past them are never read. The last
            query stands at the last key that counts: for padded queries beside padded keys take a mask, or
            causal_align="upper_left".
        block_table: (batch, blocks of a sequence): k and v are pools (blocks, block size, key heads,
            features), and key j of a sequence lies at j % block size of the block that its row names at
            j // block size. seqlens_k says how many keys there are; what a row names past them is not looked
            at. q is dense, or side by side with cu_seqlens_q alone.
        k_scale, v_scale: what a stored number of k or v is multiplied by: one, (key heads,) or (batch, key
            heads). Needed for int8, else 1.
        return_lse: with the log-sum-exps of the scores, q's shape without features, float32 (float64 for
            float64), sinks included.
        return_state: an `AttentionState` instead, in float32 (float64 for float64), to be merged with those
            of other keys. Not with sinks: these are merged once, at the end, by `AttentionState.with_sinks`.
        layout: "BSHD" for (batch, length, heads, d) in all of q, k, v, output and lse.
        order: "row": the bits of a query's output and lse follow from the query, its keys and values in their
            order from the sequence's first key on, and what bias and masks do to its scores; not from the
            batch, other queries, threads, pages, layouts or strides. "any": they follow from the set of
            super-tiles of 512 keys as well, in whatever order they are merged: return_state then gives an
            `ExactAttentionState`, to be merged with those of other keys; origin's key is a multiple of 512.
            docs/same_bits_attention.md says what is promised.

    Returns: the output, in q's format, or Attention(output, lse), or the state. A query that sees nothing
        gets 0, with an lse of -inf (of its sink, where there is one).

    Raises: TypeError and ValueError, naming the argument, before anything is computed; ValueError too for
        more than 1024 features a head; RuntimeError for order="any" where arithmetic is not that of IEEE 754
        rounded to nearest.

    Cost: 2 * queries * keys * (d + d of the output) flops a head, less what lies outside mask blocks, causal
        triangle and window; scratch of some 2 MiB a thread. Few queries over many keys read K and V once for
        all heads of a group. With order="any" some twenty operations a feature for each super-tile more, and
        21 bytes (float64: 29) a feature of up to 768 queries, for each thread.
    """
    options = Options(
        mask, bias, scale, causal, causal_align, window, softcap, sinks, alibi_slopes, dropout_p, seed,
        cu_seqlens_q, cu_seqlens_k, seqlens_k, block_table, k_scale, v_scale, origin, layout,
    )  # fmt: skip
    lse_wanted, state_wanted = (
        checks.flag(return_lse, "return_lse"),
        checks.flag(return_state, "return_state"),
    )
    if state_wanted and lse_wanted:
        raise ValueError("return_lse and return_state were both given: a state has the lse, one would do")
    exact = checks.order(order)
    if state_wanted and sinks is not None:
        kind = "ExactAttentionState" if exact else "AttentionState"
        raise ValueError(
            f"sinks with return_state would be counted in every state: {kind}.with_sinks would do"
        )
    call = described(q, k, v, options)
    if exact:
        exact_attention.check(call, isa)
    if exact and state_wanted:
        return ExactAttentionState._wrap(exact_attention.sums_of(call, isa=isa, threads=threads))
    wide = cpu.state_dtype(call.problem.q.dtype)
    output = cpu.empty(call.shape, wide if state_wanted else call.problem.q.dtype)
    lse = np.empty(call.shape[:-1], wide)
    if call.side_by_side:
        output[call.ends :], lse[call.ends :] = 0, -np.inf
    elif call.problem.empty:
        output[...], lse[...] = 0, -np.inf
    cpu_attention.forward(
        call.problem, call.four(output, "out"), call.three(lse), any_order=exact, isa=isa, threads=threads
    )  # fmt: skip
    if state_wanted:
        return AttentionState(output, lse)
    output = checks.cast(output, call.result)
    return Attention(output, lse) if lse_wanted else output


@arrays.routed
def attention_backward(
    do: Any, q: Any, k: Any, v: Any, output: Any, lse: Any, *, dlse: Any = None, bias_grad: Any = False,
    mask: Any = None, bias: Any = None, scale: Any = None, causal: Any = False,
    causal_align: str = "lower_right", window: Any = None, softcap: Any = None, sinks: Any = None,
    alibi_slopes: Any = None, dropout_p: Any = 0.0, seed: Any = 0, cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None, seqlens_k: Any = None, origin: Any = None, layout: str = "BHSD",
    isa: str | None = None, threads: int | None = None,
) -> AttentionGradients:  # fmt: skip
    """The gradients of `attention`, its scores made anew a tile at a time.

    Args:
        do: gradient of the output, real, of its shape; rounded to its format.
        output, lse: what `attention` returned, with return_lse=True and the same options.
        dlse: gradient of the lse, real, of its shape; None for 0.
        bias_grad: whether the gradient of bias is wanted, which has bias's own shape.

    The other arguments are those of the forward; k and v have q's format. Not for block_table, k_scale and
    v_scale.

    Returns: gradients of q, k, v, and of bias and sinks (float32; float64 for float64 operands) or None. A
        query that sees nothing gets 0, and what it has in do is not read.

    Raises: TypeError and ValueError, naming the argument, before anything is computed.

    Cost: 2.5 times the flops of the forward, 3.5 times with bias_grad. Memory beside the results: one q in
        float32 (float64) for each head in flight, two where there are more than 1024 keys. Sums have a fixed
        order: the same bits on any number of threads.
    """
    options = Options(
        mask, bias, scale, causal, causal_align, window, softcap, sinks, alibi_slopes, dropout_p, seed,
        cu_seqlens_q, cu_seqlens_k, seqlens_k, origin=origin, layout=layout,
    )  # fmt: skip
    for name, value in (("k", k), ("v", v)):
        found = checks.array(value, name).dtype
        if found in arguments.QUANTISED and found != checks.array(q, "q").dtype:
            raise TypeError(f"{name} is {found} and q is not: one format for all would do for gradients")
    if checks.flag(bias_grad, "bias_grad") and bias is None:
        raise ValueError("bias_grad is True without a bias: with one would do")
    call = described(q, k, v, options)
    problem = call.problem
    compute, wide = problem.q.dtype, cpu.state_dtype(problem.q.dtype)
    given = {
        "d_out": call.four(_like(do, "do", call.shape, compute), "do"),
        "o": call.four(_like(output, "output", call.shape, compute), "output"),
        "lse": call.three(_like(lse, "lse", call.shape[:-1], wide)),
    }
    if dlse is not None:
        given["d_lse"] = call.three(_like(dlse, "dlse", call.shape[:-1], checks.FLOAT64))
    gradients = {name: np.zeros(np.shape(value), compute) for name, value in (("q", q), ("k", k), ("v", v))}
    made = {f"{name}_grad": call.four(gradient, name) for name, gradient in gradients.items()}
    delta = np.zeros(call.shape[:-1])
    made["delta"] = call.three(delta)
    of_bias = bias_room(call, np.shape(bias), wide) if bias_grad else None
    if of_bias is not None:
        made["bias_grad"] = of_bias
    cpu_attention.backward(problem, given, made, isa=isa, threads=threads)
    final = {name: checks.cast(gradient, call.result) for name, gradient in gradients.items()}
    of_sinks = (
        None
        if problem.sinks is None
        else sinks_gradient(problem.sinks, given["lse"], made["delta"]).astype(wide)
    )
    d_bias = None if of_bias is None else of_bias.astype(wide, copy=False).reshape(np.shape(bias))
    return AttentionGradients(**final, bias=d_bias, sinks=of_sinks)


def dropout_mask(shape: Any, dropout_p: Any, seed: Any = 0, origin: Any = (0, 0, 0, 0)) -> Array:
    """Which weights `attention` keeps with this dropout: bool of `shape` (batch, heads, queries, keys).

    A number of 32 bits is made of (seed, batch, head, query, key), and the weight is kept where it is at
    least dropout_p * 2**32. Batch, head, query and key count from `origin`, as in `attention`, so that a part
    has its part of the mask of the whole. Of sequences side by side the batch is the sequence's number, and
    query and key count in the sequence.

    Raises: TypeError and ValueError for arguments out of range. Cost: a byte and about ten operations an
    entry.
    """
    p, number = arguments.dropout_of(dropout_p, seed)
    if not isinstance(shape, tuple) or len(shape) != 4:
        raise ValueError(f"shape is {shape!r}: (batch, heads, queries, keys) would do")
    for size in shape:
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < 0:
            raise ValueError(f"shape is {shape!r}: whole numbers of at least 0 would do")
    return cpu_attention.keep(p, number, shape, arguments.origin_of(origin) or (0, 0, 0, 0))


def _like(value: Any, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    given = checks.array(value, name)
    if given.shape != shape:
        raise ValueError(f"{name} has shape {given.shape}: {shape} would do")
    return checks.cast(given, dtype)


def bias_room(call: Call, shape: tuple[int, ...], wide: np.dtype[Any]) -> Array:
    """Zeros for the gradient of a bias, of four axes. Where it is summed over an axis, in float64."""
    four = (1,) * (4 - len(shape)) + shape
    whole = call.problem.bias
    assert whole is not None
    return np.zeros(four, wide if four == whole.shape else checks.FLOAT64)


def sinks_gradient(sinks: Array, lse: Array, delta: Array) -> Array:
    """-sum(share of the sink * delta) of each head: its value is 0, so only what it takes away counts."""
    made = np.zeros(len(sinks))
    for head, sink in enumerate(sinks):
        if sink != -np.inf:
            seen = lse[:, head] != -np.inf  # the others belong to no sequence
            share = np.exp(sink - lse[:, head][seen].astype(np.float64))
            made[head] = -np.sum(share * delta[:, head][seen])
    return made

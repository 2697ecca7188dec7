"""Attention of tensors: documents, checks, routes."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch

from .. import checks as shared
from . import attention_arguments as arguments
from . import attention_direct as direct
from . import attention_ops as ops
from . import checks
from .attention_options import Rest

_ALL_KEYS: Final = direct.Numbers()
_ROW: Final = "row"


class AttentionOutput(NamedTuple):
    """An attention output with its log-sum-exps."""

    output: torch.Tensor
    lse: torch.Tensor


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, mask: torch.Tensor | None = None,
    bias: torch.Tensor | None = None, scale: float | None = None, causal: bool = False,
    causal_align: str = "lower_right", window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None, sinks: torch.Tensor | None = None, alibi_slopes: torch.Tensor | None = None,
    dropout_p: float = 0.0, seed: int | torch.Tensor | None = None, generator: torch.Generator | None = None,
    cu_seqlens_q: torch.Tensor | None = None, cu_seqlens_k: torch.Tensor | None = None,
    seqlens_k: torch.Tensor | None = None, block_table: torch.Tensor | None = None,
    k_scale: torch.Tensor | float | None = None, v_scale: torch.Tensor | float | None = None,
    origin: tuple[int, int, int, int] | None = None, return_lse: bool = False, layout: str = "BHSD",
    order: str = "row",
) -> Any:  # fmt: skip
    """softmax(scale * q k^T) v, a chunk of keys at a time: the matrix of scores is never there.

    A score goes through scale, softcap, bias, slopes and mask, in this order; statistics and sums are in
    float32 for operands of up to 32 bits, in float64 for float64.

    Args:
        q: (batch, heads, queries, d), or without batch, or without batch and heads: float64, float32,
            float16 or bfloat16 (float8_e4m3fn and float8_e5m2 without gradient), any strides.
        k, v: (batch, key heads, keys, d) and (batch, key heads, keys, d of the output), in q's format. A
            multiple of key heads are query heads: head h of q uses head h // (heads // key heads). Both may
            be float8_e4m3fn, float8_e5m2 or int8 instead, without gradient: see k_scale.
        mask: bool, broadcastable to (batch, heads, queries, keys): True takes part. Where it is False neither
            key nor value is read into arithmetic.
        bias: floating point, broadcastable likewise, added to the scores; -inf is a mask. Its gradient has
            its shape.
        scale: default 1/sqrt(d).
        causal: query i sees the keys up to i + keys - queries, or up to i with causal_align="upper_left".
        window: (left, right): the keys at most so far from the query's own place; None for no limit.
        softcap: scores become softcap * tanh(score / softcap).
        sinks: (heads,) logits with a value of 0, which take their share of the sum.
        alibi_slopes: (heads,) or (batch, heads): slope * distance is subtracted from the scores. They get no
            gradient.
        dropout_p: each weight is dropped with this probability, below 1, the others are divided by
            1 - dropout_p.
        seed: which ones follows from (seed, batch, head, query, key) alone, as `online_softmax.dropout_mask`
            says. None draws one from `generator`, or from PyTorch's own, which torch.manual_seed sets.
        cu_seqlens_q, cu_seqlens_k: integers: sequences side by side: q (total, heads, d), k and v (total
            keys, key heads, features), sequence i of q from cu_seqlens_q[i] to cu_seqlens_q[i + 1]. Output
            and lse are (total, heads, ...), 0 and -inf past the last sequence; mask and bias broadcast to
            (heads, total, total keys).
        seqlens_k: integers (batch,): keys that count of each batch element; those past them are never read.
            The last query stands at the last key that counts.
        block_table: integers (batch, blocks of a sequence): k and v are pools (blocks, block size, key heads,
            features), and key j of a sequence lies at j % block size of the block that its row names at
            j // block size. seqlens_k says how many keys there are. q is dense, or side by side with
            cu_seqlens_q alone. Without gradient.
        k_scale, v_scale: what a stored number of k or v is multiplied by: one, (key heads,) or (batch, key
            heads). Needed for int8, else 1. Without gradient.
        origin: (batch, head, query, key): what number the first of each has in a whole of which this call is
            a part. Dropout counts from there, and causal, window and slopes go by these places.
        return_lse: with the log-sum-exps of the scores, q's shape without features, float32 (float64 for
            float64), sinks included. They are differentiable too.
        layout: "BSHD" for (batch, length, heads, d) in all of q, k, v, output and lse.
        order: "row": the bits of a query's output and lse follow from the query, its keys and values in their
            order from the sequence's first key on, and what bias and masks do to its scores. "any": they
            follow from the set of super-tiles of 512 keys as well, in whatever order they are merged;
            origin's key is a multiple of 512. Derivatives are made from this output and lse, and sum over
            keys as for "row" (docs/same_bits.md).

    Returns: the output, in q's format, or AttentionOutput(output, lse). A query that sees nothing gets 0,
        with an lse of -inf (of its sink, where there is one). In memory the output is laid out as q is: of a
        transposed (batch, length, heads, d), turning the output back gives a contiguous tensor.

    Output and lse are what the arrays' `online_softmax.attention` gives, bit for bit; partial results of
    several calls merge in an `online_softmax.AttentionState`, which takes NumPy arrays.

    Differentiable by q, k, v, bias and sinks, from output and lse. The gradient, its gradient and forward
    mode go by tiles and keep q, k, v, output and lse. Everything past that (forward mode over the gradient,
    third derivatives) is composed of PyTorch's operations on the matrix of scores: several times (batch,
    heads, queries, keys) of memory. Compiles, exports, vmaps: a new batch dimension is folded into batch
    (into heads with sinks); with dropout, or starts of sequences that differ, the examples run one after the
    other. Under autocast q, k, v and bias are cast as torch.nn.functional.scaled_dot_product_attention casts
    them.

    Raises: TypeError and ValueError naming the argument, RuntimeError for tensors of several devices,
        NotImplementedError for gradients that are not there and for devices without a kernel. What integers
        hold (cu_seqlens, seqlens_k, block_table) is checked where they are read, before anything is computed.

    Cost: 2 * queries * keys * (d + d of the output) flops a head, less what lies outside mask blocks, causal
        triangle and window; the gradient 2.5 times that, 3.5 times with a bias that needs one. Scratch of
        some 2 MiB a thread, in the gradient one q in float32 (float64) for each head in flight. What
        order="any" takes beside is said at `online_softmax.attention`.
    """
    if (
        sinks is alibi_slopes is seed is seqlens_k is cu_seqlens_q is cu_seqlens_k is block_table is None
        and (k_scale is v_scale is origin is generator is None and type(dropout_p) is float and not dropout_p)
        and (type(layout) is str and layout == "BHSD" and type(return_lse) is bool and order is _ROW)
    ):
        if (
            scale is softcap is None
            and window is None
            and causal is False
            and type(causal_align) is str
            and causal_align == "lower_right"
        ):
            plain = _ALL_KEYS
        else:
            made = arguments.numbers(scale, causal, causal_align, window, softcap, dropout_p, None)
            plain = direct.Numbers(*made[:5])
        found = direct.attention(q, k, v, bias, mask, plain, return_lse)
        if found is not None:
            return AttentionOutput(*found) if return_lse else found
    any_order = shared.order(order)
    stored = arguments.operands(q, k, v) or not block_table is k_scale is v_scale is None
    by_place = arguments.layout(layout)
    numbers = arguments.numbers(scale, causal, causal_align, window, softcap, dropout_p, origin)
    paged, rank, side_by_side = block_table is not None, q.ndim, cu_seqlens_q is not None
    if side_by_side or cu_seqlens_k is not None:
        _starts(cu_seqlens_q, cu_seqlens_k, seqlens_k, paged)
        rank = 3
        q = arguments.packed(q, "q")
        k, v = (k, v) if paged else (arguments.packed(k, "k"), arguments.packed(v, "v"))
    elif rank != 4 or by_place or k.ndim != 4 or v.ndim != 4:
        q = arguments.four(q, "q", by_place, rank)
        if not paged:
            k, v = (arguments.four(t, n, by_place, rank) for t, n in ((k, "k"), (v, "v")))
    sizes = arguments.sizes(q, *_pools(k, v) if paged else (k, v), paged=paged)
    batch, keys = q.shape[0], k.shape[2]
    if block_table is not None:
        keys = block_table.shape[-1] * k.shape[1]
    scores = (batch, sizes.heads, sizes.queries, keys)
    batch = cu_seqlens_q.shape[0] - 1 if cu_seqlens_q is not None else batch
    if alibi_slopes is not None:
        per_head = ((sizes.heads,), (batch, sizes.heads))
        alibi_slopes = arguments.heads(alibi_slopes, "alibi_slopes", q, per_head)
        checks.without_gradient(alibi_slopes, "alibi_slopes", "a bias made of them")
    own = (
        q, k, v,
        arguments.bias(bias, q, scores, rank),
        arguments.heads(sinks, "sinks", q, ((sizes.heads,),)),
    )  # fmt: skip
    rest = Rest(
        arguments.mask(mask, q, scores, rank), alibi_slopes,
        arguments.seed(seed, generator, numbers[5]) if numbers[5] or not seed is generator is None else None,
        arguments.places(seqlens_k, "seqlens_k", (batch,)), cu_seqlens_q, cu_seqlens_k, *numbers,
    )  # fmt: skip
    if stored:
        kept = arguments.stored(own, block_table, k_scale, v_scale, batch)
        results = (ops.STORED_ANY if any_order else ops.STORED)(*own, *kept, *rest)
    else:
        results = (ops.FORWARD_ANY if any_order else ops.FORWARD)(*own, *rest)
    output, lse = results
    return _returned(output, lse, rank, by_place, side_by_side, return_lse)


def _starts(cu_q: Any, cu_k: Any, seqlens_k: Any, paged: bool) -> None:
    """Checks the starts of sequences."""
    if cu_q is None:
        raise ValueError("cu_seqlens_k is given without cu_seqlens_q: both would do")
    for name, given in (("cu_seqlens_q", cu_q), ("cu_seqlens_k", cu_k)):
        found = arguments.places(given, name)
        if found is not None and (found.ndim != 1 or not found.shape[0]):
            raise ValueError(f"{name} has shape {tuple(found.shape)}: (sequences + 1,) would do")
    if cu_k is None:
        if paged:
            return
        raise ValueError(
            "cu_seqlens_q is given without cu_seqlens_k: both would do, or block_table and seqlens_k"
        )
    if seqlens_k is not None or paged:
        other = "block_table" if paged else "seqlens_k"
        raise ValueError(f"cu_seqlens_k and {other} both say where keys lie: one of them would do")
    if cu_q.shape != cu_k.shape:
        raise ValueError(
            f"cu_seqlens_k has {cu_k.shape[0]} entries: {cu_q.shape[0]}, as cu_seqlens_q, would do"
        )


def _pools(k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(blocks, heads, places, features), views."""
    for name, t in (("k", k), ("v", v)):
        if t.ndim != 4:
            would = "4, (blocks, block size, heads, features), would do with block_table"
            raise ValueError(f"{name} has {t.ndim} dimensions: {would}")
    return k.transpose(1, 2), v.transpose(1, 2)


def _returned(
    output: torch.Tensor, lse: torch.Tensor, rank: int, by_place: bool, side_by_side: bool, return_lse: Any
) -> Any:
    """The results as the caller sees them, views."""
    if not isinstance(return_lse, bool):
        raise TypeError(f"return_lse={return_lse!r} is a {type(return_lse).__name__}: True or False would do")
    if side_by_side or (by_place and rank > 2):
        output = output.transpose(1, 2)
        lse = lse.transpose(1, 2) if return_lse else lse
    if rank < 4:
        output = output[0] if rank == 3 else output[0, 0]
        if return_lse:
            lse = lse[0] if rank == 3 else lse[0, 0]
    return AttentionOutput(output, lse) if return_lse else output

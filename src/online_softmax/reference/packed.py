"""Attention over sequences that lie side by side (varlen), and over keys in a cache, paged or not (decode).

Each sequence is one call of `attention`, on its own part of the arrays: what lies past the end of a sequence
is never read. Options without a word here are those of `attention`; causal and window are relative to the
sequence's own lengths, alibi_slopes is (HQ,).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .attention import AttentionGradients, attention, wide_gradients
from .wide import Array, Wide, as_wide, broadcast, integers, mask_of, narrow, real, summed_to

_Options = dict[str, Any]


def varlen_attention(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike,
    *,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    keep: ArrayLike | None = None,
    return_lse: bool = False,
    **options: Any,
) -> Any:
    """Attention of q (total_q, HQ, D) to k (total_k, HK, D) and v (total_k, HK, DV), sequence by sequence:
    float64 (total_q, HQ, DV); with `return_lse` the pair (output, lse), lse (total_q, HQ).

    Sequence i is cu_seqlens_q[i] to cu_seqlens_q[i + 1] of q and alike of k and v. Rows of q past the last
    sequence have output 0 and lse -inf. mask, bias and keep broadcast to (HQ, total_q, total_k), of which the
    blocks of the sequences are read. Raises as `attention`, TypeError where the cu_seqlens are not integers,
    ValueError where they do not start at 0, fall, go past the end or differ in number.
    """
    arrays = [_packed(a, n) for a, n in ((q, "q"), (k, "k"), (v, "v"))]
    total, heads, _ = arrays[0].shape
    output = np.zeros((total, heads, arrays[2].shape[-1]))
    lse = np.full((total, heads), -np.inf)
    pairs = {"mask": mask, "bias": bias, "keep": keep}
    for rows, keys, scores in _sequences(arrays, cu_seqlens_q, cu_seqlens_k, pairs):
        part, part_lse = attention(**_parts(arrays, rows, keys), return_lse=True, **scores, **options)
        output[rows], lse[rows] = np.swapaxes(part, 0, 1), part_lse.T
    return (output, lse) if return_lse else output


def varlen_attention_vjp(
    q: ArrayLike,
    k: ArrayLike,
    v: ArrayLike,
    cu_seqlens_q: ArrayLike,
    cu_seqlens_k: ArrayLike,
    do: ArrayLike,
    *,
    dlse: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    keep: ArrayLike | None = None,
    **options: Any,
) -> AttentionGradients:
    """The gradients of `varlen_attention`, 0 past the last sequence.

    do and dlse (None for 0) have the shapes of output and lse, or broadcast to them.
    """
    arrays = [_packed(a, n) for a, n in ((q, "q"), (k, "k"), (v, "v"))]
    total, heads, _ = arrays[0].shape
    d_out = broadcast(real(do, "do"), (total, heads, arrays[2].shape[-1]), "do")
    d_lse = broadcast(real(0.0 if dlse is None else dlse, "dlse"), (total, heads), "dlse")
    dq, dk, dv = (np.zeros(a.shape, Wide) for a in arrays)
    full, d_sinks = np.zeros((heads, total, arrays[1].shape[0]), Wide), np.zeros(heads, Wide)
    pairs = {"mask": mask, "bias": bias, "keep": keep}
    for rows, keys, scores in _sequences(arrays, cu_seqlens_q, cu_seqlens_k, pairs):
        gradients = wide_gradients(
            **_parts(arrays, rows, keys),
            do=np.swapaxes(d_out[rows], 0, 1),
            dlse=d_lse[rows].T,
            **scores,
            **options,
        )
        dq[rows], dk[keys], dv[keys] = (np.swapaxes(d, 0, 1) for d in gradients[:3])
        if gradients.bias is not None:
            full[:, rows, keys] = gradients.bias
        if gradients.sinks is not None:
            d_sinks = d_sinks + gradients.sinks
    return AttentionGradients(
        narrow(dq),
        narrow(dk),
        narrow(dv),
        None if bias is None else narrow(summed_to(full, np.shape(bias))),
        None if options.get("sinks") is None else narrow(d_sinks),
    )


def decode_attention(
    q: ArrayLike,
    k_cache: ArrayLike,
    v_cache: ArrayLike,
    *,
    block_table: ArrayLike | None = None,
    seqlens_k: ArrayLike | None = None,
    mask: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    keep: ArrayLike | None = None,
    return_lse: bool = False,
    **options: Any,
) -> Any:
    """Attention of q (B, HQ, Lq, D) to the first seqlens_k[b] keys of a cache: float64 (B, HQ, Lq, DV); with
    `return_lse` the pair (output, lse), lse (B, HQ, Lq).

    The caches are (B, HK, S, D) and (B, HK, S, DV), or with a block table (blocks, block_size, HK, D) and
    (blocks, block_size, HK, DV): key j of sequence b is at [block_table[b, j // block_size], j % block_size].
    seqlens_k (B,): all of the cache's S, or the table's width times block_size, where None. Nothing past them
    is read, of the table neither. mask, bias and keep broadcast to (B, HQ, Lq, S). Raises as `attention`,
    TypeError where table or lengths are no integers, ValueError for shapes that do not fit, lengths past the
    cache and blocks that are not there.
    """
    query, keys, values = real(q, "q"), real(k_cache, "k_cache"), real(v_cache, "v_cache")
    for array, name in ((query, "q"), (keys, "k_cache"), (values, "v_cache")):
        if array.ndim != 4:
            raise ValueError(f"{name} has shape {array.shape}: 4 dimensions would do")
    if keys.shape[:3] != values.shape[:3]:
        raise ValueError(f"v_cache has shape {values.shape}: {keys.shape[:3]}, as k_cache, and any features")
    batch, heads, queries, _ = query.shape
    table = None if block_table is None else _table(block_table, batch)
    if table is None and keys.shape[0] != batch:
        raise ValueError(f"k_cache has shape {keys.shape}: the batch of q, {batch}, would do")
    size = keys.shape[2] if table is None else table.shape[1] * keys.shape[1]
    lengths = _lengths(seqlens_k, batch, size)
    places = None if table is None else _blocks(table, lengths, keys.shape)
    full = (batch, heads, queries, size)
    scores = _scores({"mask": mask, "bias": bias, "keep": keep}, full)
    output = np.zeros((batch, heads, queries, values.shape[-1]))
    lse = np.full((batch, heads, queries), -np.inf)
    for b, n in enumerate(lengths):
        if places is None:
            own = [cache[b, :, :n] for cache in (keys, values)]
        else:
            own = [
                np.moveaxis(cache[places[b], np.arange(n) % cache.shape[1]], 0, 1) for cache in (keys, values)
            ]
        parts = {name: array[b, :, :, :n] for name, array in scores.items()}
        output[b], lse[b] = attention(query[b], own[0], own[1], return_lse=True, **parts, **options)
    return (output, lse) if return_lse else output


def _packed(value: ArrayLike, name: str) -> Array:
    array = real(value, name)
    if array.ndim != 3:
        raise ValueError(f"{name} has shape {array.shape}: (total, heads, features) would do")
    return array


def _parts(arrays: list[Array], rows: slice, keys: slice) -> _Options:
    """One sequence of q, k and v, heads first."""
    parts = zip("qkv", arrays, (rows, keys, keys), strict=True)
    return {name: np.swapaxes(a[s], 0, 1) for name, a, s in parts}


def _sequences(
    arrays: list[Array], cu_seqlens_q: ArrayLike, cu_seqlens_k: ArrayLike, pairs: _Options
) -> Iterator[tuple[slice, slice, _Options]]:
    """(rows of q, rows of k and v, the blocks of what belongs to pairs of them), one sequence after the
    other."""
    total, heads, _ = arrays[0].shape
    length = arrays[1].shape[0]
    if arrays[2].shape[0] != length:
        raise ValueError(f"v has shape {arrays[2].shape}: as many rows as k, {length}, would do")
    starts_q = _starts(cu_seqlens_q, total, "cu_seqlens_q", "q")
    starts_k = _starts(cu_seqlens_k, length, "cu_seqlens_k", "k")
    if len(starts_q) != len(starts_k):
        would = f"{len(starts_q)}, as cu_seqlens_q, would do"
        raise ValueError(f"cu_seqlens_k has {len(starts_k)} entries: {would}")
    scores = _scores(pairs, (heads, total, length))
    for i in range(len(starts_q) - 1):
        rows, keys = (slice(*starts[i : i + 2]) for starts in (starts_q, starts_k))
        yield rows, keys, {name: array[:, rows, keys] for name, array in scores.items()}


def _scores(pairs: _Options, full: tuple[int, ...]) -> _Options:
    """The given ones of mask, bias and keep, broadcast to all pairs of a query and a key."""
    return {
        name: broadcast(as_wide(a, name).astype(np.float64), full, name)
        if name == "bias"
        else mask_of(a, full, name)
        for name, a in pairs.items()
        if a is not None
    }


def _starts(value: ArrayLike, total: int, name: str, of: str) -> list[int]:
    """Where the sequences start, and where the last one ends."""
    array = integers(value, name)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"{name} has shape {array.shape}: (sequences + 1,) would do")
    starts = [int(n) for n in array]
    if starts[0] != 0 or starts[-1] > total or sorted(starts) != starts:
        would = f"from 0 on, never falling, to {of}'s {total} rows at most, would do"
        raise ValueError(f"{name} is {starts}: {would}")
    return starts


def _table(block_table: ArrayLike, batch: int) -> Array:
    table = integers(block_table, "block_table")
    if table.ndim != 2 or table.shape[0] != batch:
        raise ValueError(f"block_table has shape {table.shape}: ({batch}, blocks of a sequence) would do")
    return table


def _lengths(seqlens_k: ArrayLike | None, batch: int, size: int) -> list[int]:
    if seqlens_k is None:
        return [size] * batch
    array = integers(seqlens_k, "seqlens_k")
    if array.shape != (batch,):
        raise ValueError(f"seqlens_k has shape {array.shape}: {(batch,)} would do")
    lengths = [int(n) for n in array]
    for b, n in enumerate(lengths):
        if not 0 <= n <= size:
            raise ValueError(f"seqlens_k[{b}] = {n}: 0 to the {size} keys of the cache would do")
    return lengths


def _blocks(table: Array, lengths: list[int], shape: tuple[int, ...]) -> list[Array]:
    """For each sequence the block of each of its keys."""
    found = []
    for b, n in enumerate(lengths):
        used = [int(block) for block in table[b, : -(-n // shape[1]) if n else 0]]
        for at, block in enumerate(used):
            if not 0 <= block < shape[0]:
                raise ValueError(f"block_table[{b}, {at}] = {block}: 0 to {shape[0] - 1} would do")
        found.append(np.array(used, np.int64)[np.arange(n) // max(shape[1], 1)])
    return found

"""Checks of attention's arguments, shared by the forward and its derivatives.

Every function takes what the caller gave and returns it in the one form that the kernels read, or raises
TypeError or ValueError, naming the argument, what was given and what would do.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import ml_dtypes
import numpy as np

from . import checks

Array = checks.Array
LAYOUTS: Final = ("BHSD", "BSHD")
ALIGNMENTS: Final = ("lower_right", "upper_left")
#: Features of a head at most.
MOST_FEATURES: Final = 1024
#: Formats that k and v may have whatever that of q, each number standing for k_scale or v_scale times itself.
QUANTISED: Final = (np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2), np.dtype(np.int8))
_SEEDS: Final = 1 << 64
_LARGEST: Final = np.iinfo(np.int64).max


class Sizes(NamedTuple):
    heads: int
    groups: int
    queries: int
    d: int
    dv: int


def formats(arrays: dict[str, Array]) -> np.dtype[Any]:
    """The format of q, which k and v share or are stored narrower than. Integers count as float64."""
    result = checks.result_dtype(arrays["q"].dtype, None)
    for name in ("k", "v"):
        found = arrays[name].dtype
        if checks.result_dtype(found, None) != result and found not in QUANTISED:
            narrow = ", ".join(dtype.name for dtype in QUANTISED)
            raise TypeError(
                f"{name} is {found} and q is {result}: one format for all would do, or {narrow} in k and v"
            )
    if arrays["k"].dtype != arrays["v"].dtype and {arrays["k"].dtype, arrays["v"].dtype} & set(QUANTISED):
        raise TypeError(
            f"v is {arrays['v'].dtype} and k is {arrays['k'].dtype}: one format for both would do"
        )
    return result


def four(array: Array, name: str, layout: str, rank: int) -> Array:
    """(batch, heads, length, features), a view."""
    if array.ndim != rank or not 2 <= rank <= 4:
        would = f"{rank} like q" if 2 <= rank <= 4 else "2, 3 or 4"
        raise ValueError(f"{name} has {array.ndim} dimensions: {would} would do")
    if rank == 2:
        return array[None, None]
    if layout == "BSHD":
        array = np.moveaxis(array, -2, -3)
    return array[None] if rank == 3 else array


def shape_of(layout: str, rank: int, batch: int, sizes: Sizes) -> tuple[int, ...]:
    whole = (batch, sizes.heads, sizes.queries, sizes.dv)
    if layout == "BSHD" and rank > 2:
        whole = (batch, sizes.queries, sizes.heads, sizes.dv)
    return whole[4 - rank :]


def sizes_of(q: Array, k: Array, v: Array, *, paged: bool) -> Sizes:
    """Sizes that fit together. `paged`: the first axis of k and v counts blocks."""
    (batch, heads, queries, d), (batch_k, groups, keys, d_k), (batch_v, groups_v, keys_v, dv) = (
        q.shape,
        k.shape,
        v.shape,
    )
    if batch_k != batch_v if paged else not batch == batch_k == batch_v:
        if paged:
            raise ValueError(f"v has {batch_v} blocks and k {batch_k}: the same number would do")
        raise ValueError(f"q, k and v have batches of {batch}, {batch_k} and {batch_v}: the same would do")
    if d_k != d:
        raise ValueError(f"k has {d_k} features and q {d}: the same number would do")
    if keys_v != keys:
        raise ValueError(f"v has {keys_v} values for {keys} keys: one value a key would do")
    if groups_v != groups:
        raise ValueError(f"v has {groups_v} heads and k {groups}: the same number would do")
    axes = " (the third axis of a pool: blocks, block size, heads, features)" if paged else ""
    if groups == 0 if heads else groups:
        raise ValueError(f"k has {groups} heads{axes} for {heads} of q: a divisor of {heads} would do")
    if groups and heads % groups:
        raise ValueError(f"q has {heads} heads and k {groups}{axes}: a multiple of {groups} would do")
    for name, size in (("q", d), ("v", dv)):
        if size > MOST_FEATURES:
            raise ValueError(f"{name} has {size} features a head: up to {MOST_FEATURES} would do")
    if paged and keys == 0:
        raise ValueError("k has blocks of 0 keys: at least 1 would do")
    return Sizes(heads, groups, queries, d, dv)


def _broadcast(array: Array, name: str, shape: tuple[int, ...], rank: int) -> Array:
    """A view of `shape` (batch, heads, queries, keys), of which the caller knows the last `rank`."""
    if array.ndim > rank:
        raise ValueError(f"{name} has {array.ndim} dimensions: up to {rank} would do")
    try:
        return np.broadcast_to(array, shape)
    except ValueError as error:
        axes = "(batch, heads, queries, keys), or the last of them, each as long as there or 1, would do"
        raise ValueError(
            f"{name} of shape {array.shape} does not broadcast to {shape[4 - rank :]}: {axes}"
        ) from error


def mask_of(mask: Any, shape: tuple[int, ...], rank: int) -> Array | None:
    if mask is None:
        return None
    given = _plain(mask, "mask")
    if given.dtype != np.bool_:
        raise TypeError(f"mask is {given.dtype}: bool would do, True takes part; scores to add go into bias")
    return _broadcast(given, "mask", shape, rank)


def bias_of(bias: Any, shape: tuple[int, ...], rank: int, wide: np.dtype[Any]) -> Array | None:
    if bias is None:
        return None
    given = checks.array(bias, "bias")
    if given.dtype == np.float64 and wide != np.float64:
        # The lowest float64 often says "hardly": it stays finite, as a row of nothing else has a mean.
        most = float(np.finfo(wide).max)
        past = np.isfinite(given) & (np.abs(given) > most)
        if past.any():
            given = np.where(past, np.copysign(most, given), given)
    return _broadcast(checks.cast(given, wide), "bias", shape, rank)


def _plain(values: Any, name: str) -> Array:
    """An array of what is no number to compute with: a mask, places, lengths."""
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, whose mask would be lost: a plain array would do")
    try:
        return np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} could not be read as an array: {error}") from error


def scale_of(scale: Any, d: int, wide: np.dtype[Any]) -> float:
    number = 1 / math.sqrt(max(d, 1)) if scale is None else checks.number(scale, "scale")
    if abs(number) > float(np.finfo(wide).max):
        raise ValueError(
            f"scale is {scale}: up to {float(np.finfo(wide).max)}, the range of {wide}, would do"
        )
    return number


def softcap_of(softcap: Any, wide: np.dtype[Any]) -> float:
    """0 for none, and for one so large that no score is changed by it."""
    if softcap is None:
        return 0.0
    cap = checks.number(softcap, "softcap")
    if cap <= 0:
        raise ValueError(f"softcap is {softcap}: a positive number would do, None for no cap")
    return 0.0 if cap > math.sqrt(float(np.finfo(wide).max)) else cap


def band_of(
    causal: Any, align: Any, window: Any, origin: tuple[int, ...] | None
) -> tuple[bool, tuple[int, int]]:
    """(whether places are counted from the last key, (keys seen to the left of a query's place, to the
    right)); -1: all."""
    if not isinstance(align, str) or align not in ALIGNMENTS:
        raise ValueError(f"causal_align is {align!r}: one of {', '.join(ALIGNMENTS)} would do")
    if origin is not None and align != ALIGNMENTS[0]:
        raise ValueError(f"causal_align={align!r} and origin both say where queries stand: one would do")
    left, right = _window(window)
    if checks.flag(causal, "causal"):
        right = 0
    return align == "lower_right", (left, right)


def origin_of(origin: Any) -> tuple[int, int, int, int] | None:
    if origin is None:
        return None
    would = "four whole numbers, (batch, head, query, key), would do"
    if not isinstance(origin, (tuple, list)) or len(origin) != 4:
        raise TypeError(f"origin is {origin!r}: {would}")
    for number in origin:
        if isinstance(number, bool) or not isinstance(number, (int, np.integer)):
            raise TypeError(f"origin is {origin!r}: {would}")
        if not 0 <= number < 1 << 62:
            raise ValueError(f"origin is {origin!r}: {would}, from 0 on")
    batch, head, query, key = (int(number) for number in origin)
    return batch, head, query, key


def _window(window: Any) -> tuple[int, int]:
    if window is None:
        return -1, -1
    would = "a pair (left, right) of distances would do, None for no limit"
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise TypeError(f"window is {window!r}: {would}")
    sides = []
    for side in window:
        if side is not None and (isinstance(side, bool) or not isinstance(side, (int, np.integer))):
            raise TypeError(f"window is {window!r}: {would}")
        if side is not None and side < 0:
            raise ValueError(f"window is {window!r}: distances are at least 0")
        sides.append(-1 if side is None else min(int(side), 1 << 62))
    return sides[0], sides[1]


def heads_of(
    values: Any, name: str, heads: int, wide: np.dtype[Any], batch: int | None = None
) -> Array | None:
    """A float64 number for each head, (heads,), or with `batch` (batch, heads), C-contiguous."""
    if values is None:
        return None
    given = checks.array(values, name)
    if given.dtype == np.float64 and (np.isfinite(given) & (np.abs(given) > float(np.finfo(wide).max))).any():
        raise ValueError(
            f"{name} holds a number past the range of {wide}, in which scores are: smaller ones would do"
        )
    shape = (heads,) if batch is None else (batch, heads)
    if given.shape not in {(heads,), shape}:
        would = f"({heads},)" if batch is None else f"({heads},) or {shape}"
        raise ValueError(f"{name} has shape {given.shape}: {would} would do")
    return np.ascontiguousarray(np.broadcast_to(given, shape), dtype=np.float64)


def per_head(values: Any, name: str, batch: int, groups: int, stored: np.dtype[Any]) -> Array | None:
    """A float64 number for each head of k: one for all, (groups,) or (batch, groups), C-contiguous."""
    if values is None:
        if stored == np.int8:
            raise ValueError(
                f"{name} is not given: int8 says little without, 1.0 would do for the numbers as such"
            )
        return None
    given = checks.array(values, name)
    if given.shape not in {(), (groups,), (batch, groups)}:
        raise ValueError(f"{name} has shape {given.shape}: (), ({groups},) or {(batch, groups)} would do")
    made = np.ascontiguousarray(np.broadcast_to(given, (batch, groups)), dtype=np.float64)
    good = np.isfinite(made) & (made > 0)
    if not good.all():
        raise ValueError(f"{name} holds {made[~good][0]}: positive, finite numbers would do")
    return made


def dropout_of(dropout_p: Any, seed: Any) -> tuple[float, int]:
    p = checks.number(dropout_p, "dropout_p")
    if not 0 <= p < 1:
        raise ValueError(f"dropout_p is {dropout_p}: at least 0 and below 1 would do")
    would = "a whole number from 0 to 2**64 - 1 would do"
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)):
        raise TypeError(f"seed is {seed!r}: {would}")
    if not 0 <= seed < _SEEDS:
        raise ValueError(f"seed is {seed}: {would}")
    return p, int(seed)


def integers(values: Any, name: str, ndim: int, shape: str) -> Array:
    """An int64 array of `ndim` axes, C-contiguous."""
    given = _plain(values, name)
    if given.dtype.kind not in "iu":
        raise TypeError(f"{name} is {given.dtype}: integers would do")
    if given.ndim != ndim:
        raise ValueError(f"{name} has shape {given.shape}: {shape} would do")
    if given.dtype == np.uint64 and given.size and given.max() > _LARGEST:
        raise ValueError(f"{name} holds {given.max()}: numbers up to {_LARGEST} would do")
    return np.ascontiguousarray(given, np.int64)


def starts_of(values: Any, name: str, total: int, of: str) -> Array:
    """Where sequences start in `total` rows, and where the last one ends."""
    starts = integers(values, name, 1, "(sequences + 1,)")
    if not starts.size or starts[0] != 0:
        first = f"starts with {starts[0]}" if starts.size else "is empty"
        raise ValueError(f"{name} {first}: 0 would do, then the end of each sequence")
    falls = np.flatnonzero(starts[1:] < starts[:-1])
    if falls.size:
        i = int(falls[0])
        raise ValueError(
            f"{name} falls from {starts[i]} to {starts[i + 1]} at {i + 1}: ends that never fall would do"
        )
    if starts[-1] > total:
        raise ValueError(f"{name} ends with {starts[-1]}: up to {total}, the rows of {of}, would do")
    return starts


def lengths_of(values: Any, batch: int, capacity: int) -> Array:
    lengths = integers(values, "seqlens_k", 1, f"({batch},)")
    if lengths.shape != (batch,):
        raise ValueError(f"seqlens_k has shape {lengths.shape}: ({batch},) would do")
    wrong = np.flatnonzero((lengths < 0) | (lengths > capacity))
    if wrong.size:
        b = int(wrong[0])
        raise ValueError(
            f"seqlens_k[{b}] is {lengths[b]}: 0 to {capacity}, the keys there is room for, would do"
        )
    return lengths


def table_of(values: Any, batch: int, blocks: int, size: int, seqlens_k: Any) -> tuple[Array, Array]:
    """The table of blocks and the keys of each sequence. Entries past a sequence's last block are not looked
    at."""
    table = integers(values, "block_table", 2, f"({batch}, blocks of a sequence)")
    if table.shape[0] != batch:
        raise ValueError(f"block_table has {table.shape[0]} rows: {batch}, one a sequence, would do")
    if seqlens_k is None:
        raise ValueError("seqlens_k is not given: with block_table the keys of each sequence would do")
    lengths = lengths_of(seqlens_k, batch, table.shape[1] * size)
    used = np.arange(table.shape[1]) * size < lengths[:, None]
    wrong = np.argwhere(used & ((table < 0) | (table >= blocks)))
    if wrong.size:
        b, i = (int(n) for n in wrong[0])
        raise ValueError(f"block_table[{b}, {i}] is {table[b, i]}: 0 to {blocks - 1} would do")
    return table, lengths

"""What a call of attention comes to: its arguments checked and put into the core's one form.

The forms of a call, dense, sequences side by side and paged, differ in where a sequence's queries and keys
lie; here they become one, `cpu_attention.Problem`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import cpu
from ..cpu_attention import Problem
from . import attention_arguments as arguments
from . import checks

Array = checks.Array


@dataclass(frozen=True)
class Options:
    """The keywords of a call, as given."""

    mask: Any = None
    bias: Any = None
    scale: Any = None
    causal: Any = False
    causal_align: Any = "lower_right"
    window: Any = None
    softcap: Any = None
    sinks: Any = None
    alibi_slopes: Any = None
    dropout_p: Any = 0.0
    seed: Any = 0
    cu_seqlens_q: Any = None
    cu_seqlens_k: Any = None
    seqlens_k: Any = None
    block_table: Any = None
    k_scale: Any = None
    v_scale: Any = None
    origin: Any = None
    layout: Any = "BHSD"


@dataclass(frozen=True)
class Call:
    """A checked call.

    Attributes:
        problem: for the core.
        result: format of the output; `problem` may compute in a wider one.
        shape: of the output as the caller sees it.
        ends: queries from here on belong to no sequence.
    """

    problem: Problem
    result: np.dtype[Any]
    shape: tuple[int, ...]
    ends: int
    rank: int
    layout: str
    side_by_side: bool

    def four(self, array: Array, name: str) -> Array:
        """An array of the output's layout as (batch, heads, length, features), a view."""
        if self.side_by_side:
            return np.moveaxis(array, 0, 1)[None]
        return arguments.four(array, name, self.layout, self.rank)

    def three(self, array: Array) -> Array:
        """The same of one without features."""
        return self.four(array[..., None], "lse")[..., 0]


def described(q: Any, k: Any, v: Any, options: Options) -> Call:
    """The call, checked before anything is computed. Raises TypeError and ValueError."""
    arrays = {name: checks.array(value, name) for name, value in (("q", q), ("k", k), ("v", v))}
    result = arguments.formats(arrays)
    layout = options.layout
    if not isinstance(layout, str) or layout not in arguments.LAYOUTS:
        raise ValueError(f"layout is {layout!r}: one of {', '.join(arguments.LAYOUTS)} would do")
    _fit_together(options)
    compute = checks.compute_dtype(result)
    cast = {
        name: a
        if name != "q" and a.dtype in arguments.QUANTISED and compute != np.float64
        else checks.cast(a, compute)
        for name, a in arrays.items()
    }
    rank = cast["q"].ndim
    side_by_side, paged = options.cu_seqlens_q is not None, options.block_table is not None
    if side_by_side:
        four = {name: _packed(a, name) for name, a in cast.items() if name == "q" or not paged}
    else:
        four = {
            name: arguments.four(a, name, layout, rank)
            for name, a in cast.items()
            if name == "q" or not paged
        }
    if paged:
        four |= {name: _pool(cast[name], name) for name in ("k", "v")}
    sizes = arguments.sizes_of(**four, paged=paged)
    sequences, table = _sequences(options, four["q"], four["k"])
    keys = four["k"].shape[2] if table is None else table.shape[1] * four["k"].shape[2]
    scores = (four["q"].shape[0], sizes.heads, sizes.queries, keys)
    seen = 3 if side_by_side else rank
    wide = cpu.state_dtype(compute)
    origin = arguments.origin_of(options.origin)
    lower_right, window = arguments.band_of(options.causal, options.causal_align, options.window, origin)
    batch, groups = len(sequences), sizes.groups
    # Beside integers in q, 8-bit integers are numbers like any others.
    stored = arrays["k"].dtype if arrays["q"].dtype.kind not in "iub" else compute
    dropout_p, seed = arguments.dropout_of(options.dropout_p, options.seed)
    problem = Problem(
        **four, sequences=sequences, scale=arguments.scale_of(options.scale, sizes.d, wide),
        softcap=arguments.softcap_of(options.softcap, wide), lower_right=lower_right, window=window,
        mask=arguments.mask_of(options.mask, scores, seen),
        bias=arguments.bias_of(options.bias, scores, seen, wide),
        sinks=arguments.heads_of(options.sinks, "sinks", sizes.heads, wide),
        slopes=arguments.heads_of(options.alibi_slopes, "alibi_slopes", sizes.heads, wide, batch),
        k_scales=arguments.per_head(options.k_scale, "k_scale", batch, groups, stored),
        v_scales=arguments.per_head(options.v_scale, "v_scale", batch, groups, stored),
        table=table, dropout_p=dropout_p, seed=seed, origin=origin,
    )  # fmt: skip
    if side_by_side:
        shape: tuple[int, ...] = (sizes.queries, sizes.heads, sizes.dv)
        ends = int(sequences[-1, :2].sum()) if batch else 0
    else:
        shape, ends = arguments.shape_of(layout, rank, four["q"].shape[0], sizes), sizes.queries
    return Call(problem, result, shape, ends, rank, layout, side_by_side)


def _fit_together(options: Options) -> None:
    """Refuses arguments that say where keys lie in two ways, or not at all."""
    given = {
        name
        for name in ("cu_seqlens_q", "cu_seqlens_k", "seqlens_k", "block_table")
        if getattr(options, name) is not None
    }
    if "cu_seqlens_k" in given and "cu_seqlens_q" not in given:
        raise ValueError("cu_seqlens_k is given without cu_seqlens_q: both would do")
    if "cu_seqlens_q" in given and not given & {"cu_seqlens_k", "block_table"}:
        raise ValueError(
            "cu_seqlens_q is given without cu_seqlens_k: both would do, or block_table and seqlens_k"
        )
    if "cu_seqlens_k" in given and given & {"seqlens_k", "block_table"}:
        other = sorted(given & {"seqlens_k", "block_table"})[0]
        raise ValueError(f"cu_seqlens_k and {other} both say where keys lie: one of them would do")
    if {"cu_seqlens_q", "block_table"} <= given:
        for name in ("mask", "bias"):
            if getattr(options, name) is not None:
                raise ValueError(
                    f"{name} with cu_seqlens_q and block_table has no shape to fit: without it would do"
                )


def _packed(array: Array, name: str) -> Array:
    """(1, heads, all rows, features) of (all rows, heads, features)."""
    if array.ndim != 3:
        raise ValueError(
            f"{name} has {array.ndim} dimensions: 3, (total, heads, features), would do with cu_seqlens_q"
        )
    return np.moveaxis(array, 0, 1)[None]


def _pool(array: Array, name: str) -> Array:
    """(blocks, heads, places, features) of (blocks, places, heads, features)."""
    if array.ndim != 4:
        would = "4, (blocks, block size, heads, features), would do with block_table"
        raise ValueError(f"{name} has {array.ndim} dimensions: {would}")
    return np.moveaxis(array, 1, 2)


def _sequences(options: Options, q: Array, k: Array) -> tuple[Array, Array | None]:
    """(first query, queries, first key, keys) of each sequence, and the table of blocks."""
    if options.cu_seqlens_q is None:
        batch = q.shape[0]
        first = np.zeros(batch, np.int64)
        count = np.full(batch, q.shape[2], np.int64)
    else:
        starts = arguments.starts_of(options.cu_seqlens_q, "cu_seqlens_q", q.shape[2], "q")
        first, count = starts[:-1], np.diff(starts)
        batch = len(first)
    key, table = np.zeros(batch, np.int64), None
    if options.block_table is not None:
        table, keys = arguments.table_of(
            options.block_table, batch, k.shape[0], k.shape[2], options.seqlens_k
        )
    elif options.cu_seqlens_k is not None:
        starts = arguments.starts_of(options.cu_seqlens_k, "cu_seqlens_k", k.shape[2], "k")
        if len(starts) != batch + 1:
            raise ValueError(
                f"cu_seqlens_k has {len(starts)} entries: {batch + 1}, as cu_seqlens_q, would do"
            )
        key, keys = starts[:-1], np.diff(starts)
    elif options.seqlens_k is not None:
        keys = arguments.lengths_of(options.seqlens_k, batch, k.shape[2])
    else:
        keys = np.full(batch, k.shape[2], np.int64)
    return np.stack([first, count, key, keys], axis=1), table

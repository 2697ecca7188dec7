"""Attention in order="any": super-tiles made by the native core, merged by `attention_sums`."""

from __future__ import annotations

from typing import Any, Final, Self

import numpy as np

from .. import attention_exact, attention_sums, cpu, cpu_attention, cpu_exact, exact
from ..attention_sums import TILE, Sums
from . import checks
from .attention_call import Call, Options, described

Array = checks.Array

_FAR: Final = 1 << 62


class ExactAttentionState(attention_exact.ExactAttentionState):
    __doc__ = attention_exact.ExactAttentionState.__doc__

    @classmethod
    def _joint(cls, left: Sums, right: Sums) -> Sums:
        return cpu_attention.merged(left, right)

    @classmethod
    def _results(cls, sums: Sums) -> tuple[Array, Array]:
        exact.nearest()
        return cpu_attention.read(sums)

    @classmethod
    def of(
        cls, q: Any, k: Any, v: Any, *, first_key: Any = 0, first_query: Any = None, mask: Any = None,
        bias: Any = None, scale: Any = None, causal: Any = False, window: Any = None, softcap: Any = None,
        alibi_slopes: Any = None, seqlens_k: Any = None, k_scale: Any = None, v_scale: Any = None,
        layout: str = "BHSD", isa: str | None = None, threads: int | None = None,
    ) -> Self:  # fmt: skip
        """The states of queries over a shard of the keys.

        Args:
            q, k, v, mask, bias, scale, causal, window, softcap, alibi_slopes, seqlens_k, k_scale, v_scale,
                layout: as `attention` has them, of this shard: mask and bias have its keys, seqlens_k counts
                its keys.
            first_key: place of the shard's first key in the whole sequence, a multiple of 512 (`TILE`). All
                shards but the one with the sequence's last keys have a multiple of 512 keys.
            first_query: place of the first query in the whole, needed with causal, window and alibi_slopes:
                keys - queries, of the whole, where the last query stands at the last key.

        Returns: states of q's shape without features, float64 for float64, else float32.

        Raises: TypeError and ValueError, naming the argument, before anything is computed; RuntimeError where
            arithmetic is not that of IEEE 754 rounded to nearest.

        Cost: that of `attention` over these keys, and some twenty operations a feature for each super-tile.
        """
        key = _place(first_key, "first_key")
        if key % TILE:
            would = f"a multiple of {TILE}, the keys of a super-tile, would do"
            raise ValueError(
                f"first_key is {key}: {would} ({key // TILE * TILE} or {-(-key // TILE) * TILE})"
            )
        placed = checks.flag(causal, "causal") or window is not None or alibi_slopes is not None
        if first_query is None and placed:
            raise ValueError(
                "first_query is not given: with causal, window and alibi_slopes the place of the first query "
                "in the whole sequence would do"
            )
        origin = None if first_query is None else (0, 0, _place(first_query, "first_query"), key)
        options = Options(
            mask, bias, scale, causal, "lower_right", window, softcap, None, alibi_slopes, 0.0, 0, None, None,
            seqlens_k, None, k_scale, v_scale, origin, layout,
        )  # fmt: skip
        call = described(q, k, v, options)
        check(call, isa)
        return cls._wrap(sums_of(call, isa=isa, threads=threads))


def check(call: Call, isa: str | None) -> None:
    """Raises ValueError for keys that begin within a super-tile, RuntimeError where this process does not
    compute as order="any" assumes."""
    origin = call.problem.origin
    if origin is not None and origin[3] % TILE:
        would = f"a multiple of {TILE}, the keys of a super-tile, would do"
        raise ValueError(f"origin begins at key {origin[3]} with order='any': {would}")
    cpu_exact.self_test(isa)


def sums_of(call: Call, *, isa: str | None, threads: int | None) -> Sums:
    """The sums of a call over all its keys, sinks left out."""
    wide = cpu.state_dtype(call.problem.q.dtype)
    form = attention_sums.FORMATS[wide]
    shape, features = call.shape[:-1], 1 + call.shape[-1]
    level, bins, a, odd = attention_sums.identity(shape, features - 1, form)
    # The core has the slices one after another.
    flat = a.reshape(*shape, form.slices * features)
    arrays = {"bins": bins, "a": flat, "odd": odd}
    cpu_attention.sums(
        call.problem, call.three(level), {name: call.four(array, name) for name, array in arrays.items()},
        isa=isa, threads=threads,
    )  # fmt: skip
    return Sums(level, bins, np.swapaxes(flat.reshape(*shape, form.slices, features), -1, -2), odd)


def _place(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} is {value!r}: a whole number would do")
    if not 0 <= value < _FAR:
        raise ValueError(f"{name} is {value}: a whole number from 0 on would do")
    return int(value)

"""Attention partials in other forms: as bytes, and as other libraries write them, each with a layout, a base
and a spelling of its own for a row that saw nothing.

| library | output | lse | base | saw nothing |
| --- | --- | --- | --- | --- |
| FlashAttention 2 | (batch, queries, heads, dv) | (batch, heads, queries) | e | 0, +inf |
| FlashAttention 3, 4 | (batch, queries, heads, dv) | (batch, heads, queries) | e | 0, -inf (*) |
| FlashAttention, varlen | (total, heads, dv) | (heads, total) | e | as above |
| FlashInfer | (tokens, heads, dv) | (tokens, heads) | 2 | -inf, or finite (see `from_flashinfer`) |
| vLLM | (tokens, heads, dv) | (heads, tokens) | e | either infinity, output any |

(*) 3 gives +inf where a call has no keys at all. An lse is float32 in all of them, an output mostly 16-bit.
`AttentionState` has what is here as methods.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Self

import ml_dtypes
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from . import wire
from .state import Array, real

BASES: Final = ("e", "2")
EMPTY: Final = ("-inf", "+inf")
EMPTY_OUTPUT: Final = ("any", "zero")
#: What `wire` calls this kind of state.
_KIND: Final = 2
_LN2: Final = math.log(2)
_FORMATS: Final = tuple(np.dtype(t) for t in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16))


class Converters:
    """What `AttentionState` reads from other libraries and writes for them."""

    __slots__ = ()

    # Given by AttentionState.
    _o: Array
    _lse: Array
    if TYPE_CHECKING:

        @classmethod
        def _wrap(cls, o: Array, lse: Array, dtype: np.dtype[Any]) -> Self:
            """The state with this pair, unchecked, rounded to dtype."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_bytes, (self.to_bytes(),)

    def reshape(self, shape: int | tuple[int, ...]) -> Self:
        """The same states under another shape, C order, as `numpy.reshape` has it.

        Raises ValueError where the numbers of states differ.
        """
        lse = self._lse.reshape(shape)
        return self._wrap(self._o.reshape(*lse.shape, self._o.shape[-1]), lse, lse.dtype)

    def moveaxis(self, source: int, destination: int) -> Self:
        """The same states with an axis of their shape elsewhere: (batch, heads, queries) of FlashAttention
        becomes (batch, queries, heads) by moveaxis(1, 2).

        Raises ValueError for axes out of range.
        """
        lse = np.moveaxis(self._lse, source, destination)
        axes = source % lse.ndim, destination % lse.ndim
        return self._wrap(np.moveaxis(self._o, *axes), lse, lse.dtype)

    def to_bytes(self) -> bytes:
        """The states as bytes, the same on every machine: 16 bytes and 8 an axis around one array, o with lse
        as a further feature (see `wire`)."""
        return wire.pack(_KIND, [_joined(self)])

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        """What `to_bytes` wrote.

        Raises TypeError where data is not bytes; ValueError where a byte is missing, extra or changed, or
        where a pair is not in normal form.
        """
        (both,) = wire.unpack(data, _KIND, 1)
        if not both.ndim or not both.shape[-1]:
            raise ValueError(f"data has shape {both.shape}: o and lse along a last axis would do")
        made = cls._wrap(both[..., :-1], both[..., -1], both.dtype)
        if _joined(made).tobytes() != both.tobytes():
            raise ValueError("data holds a pair that is not in normal form: bytes from to_bytes would do")
        return made

    @classmethod
    def from_lse(
        cls,
        o: ArrayLike,
        lse: ArrayLike,
        base: str = "e",
        *,
        empty: str = "-inf",
        empty_output: str = "any",
    ) -> Self:
        """The state of a normalised output and its log-sum-exp.

        Args:
            o: output, leading shape + (dv,), real: float16, bfloat16, float32 or float64.
            lse: log of the sum of exp of the scores, of the leading shape.
            base: "e" for natural logarithms, "2" for binary ones.
            empty: the lse of a row that saw no key: "-inf", or "+inf". With "+inf" both infinities mean it:
                a sum of 0 has no other logarithm than -inf.
            empty_output: "any" where the output of such a row may hold anything and is not read. "zero" where
                it is known to be 0: NaN there then is a row whose scores held NaN, and stays NaN.

        Returns: a state in float64 where o or lse is, else in float32. From base 2 the lse is rounded once.

        Raises TypeError or ValueError, naming the argument. Cost: a read of both arrays, a write of both.
        """
        outputs, logs = real(o, "o"), real(lse, "lse")
        check_shapes(outputs, logs)
        return cls._read(outputs, logs, base, empty, empty_output)

    def to_lse(
        self, base: str = "e", *, empty: str = "-inf", dtype: DTypeLike | None = None
    ) -> tuple[Array, Array]:
        """(o, lse) in arrays of their own: what `from_lse` reads with the same base and empty.

        dtype is the format of o: float16, bfloat16, float32 or float64, by default the state's; lse keeps the
        state's. Rows that saw nothing have o = 0. With empty="+inf" a row whose lse is +inf, for it had
        a score of +inf, gets NaN in its place.

        Raises TypeError for another dtype; ValueError for another base or empty, and where an lse in base 2
        is past the range of the state's format.
        """
        _one_of(base, "base", BASES)
        _one_of(empty, "empty", EMPTY)
        given = self._o.dtype if dtype is None else np.dtype(dtype)
        if given not in _FORMATS:
            raise TypeError(f"dtype={given}: float16, bfloat16, float32 or float64 would do")
        with np.errstate(over="ignore"):
            logs = self._lse.astype(np.float64) / (_LN2 if base == "2" else 1.0)
            lse = logs.astype(self._lse.dtype)
            if np.any(np.isinf(lse) & np.isfinite(self._lse)):
                would = "a state nearer 0, or base='e', would do"
                raise ValueError(f"base='2' takes an lse past the range of {lse.dtype}: {would}")
            if empty == "+inf":
                lse = np.select([lse == np.inf, lse == -np.inf], [np.nan, np.inf], lse).astype(lse.dtype)
            return self._o.astype(given), lse

    @classmethod
    def from_flashinfer(cls, o: ArrayLike, lse: ArrayLike) -> Self:
        """The state, of shape (tokens, heads), of what FlashInfer returns with return_lse=True.

        o (tokens, heads, dv), lse (tokens, heads) in base 2. For the operands of merge_states, (tokens,
        states, heads, dv): from_lse(v, s, "2").merge_axis(1). With return_lse_base_on_e: from_lse(o, lse).

        Its kernels of version 0.6 mask with -5e4 in place of -inf: a row that saw nothing may come with
        a finite lse far below 0, and an output that means nothing. It weighs nothing beside a row that saw
        keys. Where all sides of a merge may be empty set such lse to -inf first.

        Sources: docs.flashinfer.ai/generated/flashinfer.cascade.merge_state.html (shapes);
        flashinfer-ai/flashinfer issue 2113 and include/flashinfer/attention/state.cuh (get_lse) for the base;
        issues 4450 and 4452 for -5e4. Raises as `from_lse`.
        """
        outputs, logs = _ranked(o, lse, 3, "(tokens, heads, dv)")
        if logs.shape != outputs.shape[:2]:
            raise ValueError(_mismatch(outputs, logs, outputs.shape[:2], "(tokens, heads)"))
        return cls._read(outputs, logs, "2", "-inf", "any")

    def to_flashinfer(self, dtype: DTypeLike | None = None) -> tuple[Array, Array]:
        """(o, lse) as `from_flashinfer` reads them; lse comes back to within two roundings of its format.

        dtype as in `to_lse`. Raises ValueError where the leading shape is not (tokens, heads).
        """
        self._leading(2, "(tokens, heads)")
        return self.to_lse("2", dtype=dtype)

    @classmethod
    def from_flash_attention(
        cls, o: ArrayLike, lse: ArrayLike, varlen: bool = False, *, empty_output: str = "zero"
    ) -> Self:
        """The state of what FlashAttention 2, 3 and 4 return: out and softmax_lse, a natural logarithm.

        Args:
            o: (batch, queries, heads, dv); with varlen (total, heads, dv).
            lse: (batch, heads, queries); with varlen (heads, total).
            varlen: whether they are those of flash_attn_varlen_func.
            empty_output: as in `from_lse`. The default is what these functions write; for partial results of
                their splits, which are not written where a split saw nothing, "any".

        Returns: a state of leading shape (batch, heads, queries); with varlen (total, heads).

        Both infinities are read as "saw nothing". These libraries give the same lse to a row whose scores
        hold NaN: its output is NaN, and by that it is told apart and kept.

        Sources: Dao-AILab/flash-attention, docstrings of flash_attn/flash_attn_interface.py (2),
        hopper/flash_attn_interface.py (3), lse_shape in flash_attn/cute/interface.py (4); for empty rows
        csrc/flash_attn/src/softmax.h, hopper/softmax.h and flash_attn/cute/softmax.py. Raises as `from_lse`.
        """
        varlen = _flag(varlen, "varlen")
        layout = "(total, heads, dv)" if varlen else "(batch, queries, heads, dv)"
        outputs, logs = _ranked(o, lse, 3 if varlen else 4, layout)
        shape = (*outputs.shape[:-3], outputs.shape[-2], outputs.shape[-3])
        if logs.shape != shape:
            names = "(heads, total)" if varlen else "(batch, heads, queries)"
            raise ValueError(_mismatch(outputs, logs, shape, names))
        if varlen:
            return cls._read(outputs, logs.T, "e", "+inf", empty_output)
        return cls._read(np.swapaxes(outputs, 1, 2), logs, "e", "+inf", empty_output)

    def to_flash_attention(
        self, varlen: bool = False, *, empty: str = "-inf", dtype: DTypeLike | None = None
    ) -> tuple[Array, Array]:
        """(o, lse) as `from_flash_attention` reads them.

        empty: "-inf" as FlashAttention 3 and 4 have it, "+inf" as 2. dtype as in `to_lse`. Raises ValueError
        where the leading shape is not (batch, heads, queries), with varlen (total, heads).
        """
        varlen = _flag(varlen, "varlen")
        self._leading(2 if varlen else 3, "(total, heads)" if varlen else "(batch, heads, queries)")
        o, lse = self.to_lse("e", empty=empty, dtype=dtype)
        return (o, lse.T.copy()) if varlen else (np.swapaxes(o, 1, 2).copy(), lse)

    @classmethod
    def from_vllm(cls, o: ArrayLike, lse: ArrayLike) -> Self:
        """The state, of shape (tokens, heads), of the operands and results of vLLM's merge_attn_states.

        o (tokens, heads, dv), lse (heads, tokens), a natural logarithm. Both infinities mean that a row saw
        nothing; its output is not read.

        Sources: docs.vllm.ai/en/v0.22.1/api/vllm/v1/attention/ops/merge_attn_states/ (shapes);
        vllm-project/vllm csrc/attention/merge_attn_states.cu and triton_merge_attn_states.py (infinities).
        Raises as `from_lse`.
        """
        outputs, logs = _ranked(o, lse, 3, "(tokens, heads, dv)")
        shape = outputs.shape[1::-1]
        if logs.shape != shape:
            raise ValueError(_mismatch(outputs, logs, shape, "(heads, tokens)"))
        return cls._read(outputs, logs.T, "e", "+inf", "any")

    def to_vllm(self, dtype: DTypeLike | None = None) -> tuple[Array, Array]:
        """(o, lse) as `from_vllm` reads them, -inf where a row saw nothing and NaN for an lse of +inf.

        dtype as in `to_lse`. Raises ValueError where the leading shape is not (tokens, heads).
        """
        self._leading(2, "(tokens, heads)")
        o, lse = self.to_lse("e", dtype=dtype)
        # There +inf would say that the row saw nothing.
        return o, np.where(lse == np.inf, lse.dtype.type(np.nan), lse).T.copy()

    @classmethod
    def _read(cls, o: Array, lse: Array, base: str, empty: str, empty_output: str) -> Self:
        """The state of arrays whose shapes were checked: o leading shape + (dv,), lse leading shape."""
        _one_of(base, "base", BASES)
        _one_of(empty, "empty", EMPTY)
        _one_of(empty_output, "empty_output", EMPTY_OUTPUT)
        wide = np.float64 in (o.dtype, lse.dtype)
        logs = lse.astype(np.float64) * (_LN2 if base == "2" else 1.0)
        if empty == "+inf":
            logs = np.where(logs == np.inf, -np.inf, logs)
        if empty_output == "zero":
            logs = np.where((logs == -np.inf) & np.isnan(o).any(axis=-1), np.nan, logs)
        return cls._wrap(o, np.asarray(logs), np.dtype(np.float64 if wide else np.float32))

    def _leading(self, ndim: int, names: str) -> None:
        if self._lse.ndim != ndim:
            raise ValueError(f"this state has leading shape {self._lse.shape}: {names} would do")


def check_shapes(o: Array, lse: Array) -> None:
    """Raises ValueError unless lse has the shape of o without its last axis."""
    if not o.ndim or lse.shape != o.shape[:-1]:
        raise ValueError(_mismatch(o, lse, o.shape[:-1], "the shape of o without its last axis"))


def _joined(state: Converters) -> Array:
    return np.concatenate((state._o, state._lse[..., None]), axis=-1)


def _ranked(o: ArrayLike, lse: ArrayLike, ndim: int, layout: str) -> tuple[Array, Array]:
    outputs, logs = real(o, "o"), real(lse, "lse")
    if outputs.ndim != ndim:
        raise ValueError(f"o has shape {outputs.shape}: {layout} would do")
    return outputs, logs


def _mismatch(o: Array, lse: Array, shape: tuple[int, ...], names: str) -> str:
    return f"lse has shape {lse.shape} where o has {o.shape}: {shape}, {names}, would do"


def _one_of(value: object, name: str, allowed: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"{name}={value!r}: one of {', '.join(map(repr, allowed))} would do")


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}={value!r}: True or False would do")
    return bool(value)

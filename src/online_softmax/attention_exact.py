"""States of attention whose merge is associative and commutative in bits (`attention_sums`)."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from . import attention_sums as law
from . import wire
from .attention_sums import FLOAT32, FLOAT64, FORMATS, LARGE, Format, Sums
from .state import real

Array = NDArray[Any]

_BITS: Final = {FLOAT32.kind: np.int32, FLOAT64.kind: np.int64}


class ExactAttentionState:
    """Attention over the super-tiles seen so far, one for each entry of `shape`: the same bits in whatever
    order, on however many shards and in whatever tree they were merged. Immutable.

    A super-tile is counted once: what two states have both seen counts twice. Super-tiles are `TILE` keys at
    multiples of `TILE` in the whole sequence, so that shards are cut at multiples of `TILE`.

    Attributes:
        level: float32 or float64, of `shape`, read-only: 0, or see `online_softmax.attention_sums`.
        bins: int32, shape + (1 + dv,), read-only: where the grid of the weight, and of each feature, begins.
        a: int64, shape + (1 + dv, 2) (float64: 3), read-only: the sums in whole numbers.
        odd: uint8, shape + (dv,), read-only: 1, 2, 4 where o had +inf, -inf, NaN, added up.

    Equal where format, shape and every bit are. Pickles through `to_bytes`. 21 bytes a feature (float64: 29).
    """

    __slots__ = ("_sums",)
    __hash__ = None  # type: ignore[assignment]  # it compares by the values of arrays

    _sums: Sums

    @classmethod
    def _wrap(cls, sums: Sums) -> Self:
        made = cls.__new__(cls)
        made._sums = sums
        for array in sums:
            array.flags.writeable = False
        return made

    # Hooks: front ends put a faster core here, with the same bits.

    @classmethod
    def _joint(cls, left: Sums, right: Sums) -> Sums:
        return law.merge(left, right)

    @classmethod
    def _results(cls, sums: Sums) -> tuple[Array, Array]:
        """o, rounded to the format, and lse, in float64."""
        with np.errstate(over="ignore", under="ignore"):
            o, lse = law.read(sums)
            return o.astype(sums.level.dtype), lse

    @classmethod
    def identity(cls, shape: int | tuple[int, ...], dv: int, dtype: DTypeLike = np.float32) -> Self:
        """States of no key, for `dv` features of the values.

        Raises TypeError for a dtype other than float32 and float64 and lengths that are no integers,
        ValueError for negative ones.
        """
        leading = tuple(_length(n, "shape", shape) for n in (shape if isinstance(shape, tuple) else (shape,)))
        return cls._wrap(law.identity(leading, _length(dv, "dv", dv), _form(np.dtype(dtype), "dtype")))

    @classmethod
    def of_partial(cls, o: ArrayLike, weight: ArrayLike, pivot: ArrayLike) -> Self:
        """States of one super-tile each, from a kernel that made its sums.

        Args:
            o: sum of exp(score - pivot) * v over the keys, shape + (dv,), float32 or float64.
            weight: sum of exp(score - pivot), of `shape`, float32 or float64.
            pivot: natural, of `shape`, in a number of o's format; -inf, with a weight of 0, of no key.

        The bits of a merge follow from those given here, which are the kernel's to keep: made of the query
        and of these keys alone, in one order.

        Raises TypeError or ValueError, naming the argument.
        """
        given, total, base = (real(a, name) for a, name in ((o, "o"), (weight, "weight"), (pivot, "pivot")))
        form = _form(given.dtype, "o")
        for name, array in (("weight", total), ("pivot", base)):
            if not given.ndim or array.shape != given.shape[:-1]:
                would = f"{given.shape[:-1]}, that of o without features, would do"
                raise ValueError(f"{name} has shape {array.shape} where o has {given.shape}: {would}")
        wide = total.astype(np.float64)
        with np.errstate(over="ignore"):
            rounded = base.astype(form.dtype)
        if np.any(rounded.astype(np.float64) != base.astype(np.float64), where=~np.isnan(base)):
            raise ValueError(f"pivot holds a number that is none of {form.dtype}: those that are would do")
        if np.any((wide > 0) == np.isneginf(rounded), where=~np.isnan(wide) & ~np.isnan(rounded)):
            would = "a weight of 0 where pivot is -inf, and above 0 elsewhere, would do"
            raise ValueError(f"weight and pivot disagree on what was seen: {would}")
        return cls._wrap(law.partial(rounded, wide, given, form))

    def merge(self, other: ExactAttentionState) -> Self:
        """The states of what both have seen: no key may be in both.

        Raises TypeError where other is no ExactAttentionState or of another dtype, ValueError where its shape
        or dv differs.
        """
        return self._wrap(self._joint(self._sums, self._alike(other, "other")))

    @classmethod
    def merge_many(cls, states: Iterable[ExactAttentionState]) -> Self:
        """All of them merged, one after another: no order makes other bits.

        Raises ValueError where there are none or shapes differ, TypeError as `merge`.
        """
        total: Self | None = None
        for state in states:
            if total is None:
                if not isinstance(state, ExactAttentionState):
                    raise TypeError(f"states holds a {type(state).__name__}: an ExactAttentionState would do")
                total = cls._wrap(state._sums)
            else:
                total = cls._wrap(cls._joint(total._sums, total._alike(state, "states")))
        if total is None:
            raise ValueError(
                "states is empty: one state or more would do (an identity where there is no key)"
            )
        return total

    def _alike(self, other: object, name: str) -> Sums:
        if not isinstance(other, ExactAttentionState):
            raise TypeError(f"{name} is a {type(other).__name__}: an ExactAttentionState would do")
        if other.dtype != self.dtype:
            would = f"{self.format}, which {self.dtype} has, would do"
            raise TypeError(f"{name} has {other.dtype} states in {other.format}: {would}")
        if other.shape != self.shape or other.dv != self.dv:
            would = f"{self.shape} and {self.dv} would do"
            raise ValueError(f"{name} has states of shape {other.shape} with dv {other.dv} where {would}")
        return other._sums

    def with_sinks(self, sinks: ArrayLike) -> Self:
        """The states with a sink each: a logit with a value of 0, which takes its share of the sum and is in
        the lse. Once, after or before any merge: every call adds its sinks again.

        sinks: real, broadcastable to `shape`: (heads, 1) for (batch, heads, queries); -inf is no sink.

        Raises TypeError or ValueError, naming the argument, also for a finite sink past the format's range.
        """
        logits = real(sinks, "sinks").astype(np.float64)
        try:
            logits = np.broadcast_to(logits, self.shape)
        except ValueError as error:
            would = f"one that broadcasts to {self.shape} would do"
            raise ValueError(f"sinks has shape {logits.shape}: {would}") from error
        if np.any(np.isfinite(logits) & (np.abs(logits) > np.finfo(self.dtype).max)):
            raise ValueError(f"sinks holds a logit past the range of {self.dtype}: smaller ones would do")
        # A level is a number of the format.
        far = np.abs(logits) > LARGE
        logits = np.where(far, logits.astype(self.dtype), logits)
        weight = np.where(np.isneginf(logits), 0.0, 1.0)
        own = law.partial(logits, weight, np.zeros((*self.shape, self.dv)), FORMATS[self.dtype])
        return self._wrap(self._joint(self._sums, own))

    @property
    def level(self) -> Array:
        return self._sums.level

    @property
    def bins(self) -> Array:
        return self._sums.bins

    @property
    def a(self) -> Array:
        return self._sums.a

    @property
    def odd(self) -> Array:
        return self._sums.odd

    @property
    def shape(self) -> tuple[int, ...]:
        return self._sums.level.shape

    @property
    def dv(self) -> int:
        """Features of the values."""
        return int(self._sums.odd.shape[-1])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._sums.level.dtype

    @property
    def format(self) -> str:
        """The definition that the bits follow: "attention-32x2/1" for float32, "attention-32x3/1" for
        float64."""
        return FORMATS[self.dtype].name

    @property
    def output(self) -> Array:
        """The attention output over the keys seen, shape + (dv,), in the state's dtype; 0 of none."""
        # Which sign a zero has that underflowed says nothing.
        return np.asarray(self._results(self._sums)[0] + self.dtype.type(0))

    @property
    def lse(self) -> Array:
        """Natural log of the sum of exp of the scores seen: `shape`, the state's dtype; -inf of none."""
        return self._results(self._sums)[1].astype(self.dtype)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ExactAttentionState):
            return NotImplemented
        if self.dtype != other.dtype or self.a.shape != other.a.shape:
            return False
        pairs = zip(self._sums, other._sums, strict=True)
        return all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in pairs)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.format}, shape {self.shape}, dv {self.dv}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_bytes, (self.to_bytes(),)

    def to_bytes(self) -> bytes:
        """The states as bytes, the same on every machine: 16 bytes and 8 an axis around 13 + 8 * slices bytes
        a feature and two for the row (see `wire`), under the number of their format."""
        form, (level, bins, a, odd) = FORMATS[self.dtype], self._sums
        # One more entry before the others holds the level, as a number of the format.
        first = np.zeros((*self.shape, 1, form.slices), np.int64)
        first[..., 0, 0] = level.view(_BITS[form.kind])
        zeros = np.zeros((*self.shape, 1), np.int32)
        parts = (
            np.concatenate([zeros, bins], axis=-1),
            np.concatenate([first, a], axis=-2),
            np.concatenate([zeros, zeros, odd], axis=-1).astype(np.uint8),
        )
        return wire.pack_parts(form.kind, 4, parts[0].shape, parts)

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        """What `to_bytes` wrote.

        Raises TypeError where data is not bytes; ValueError where a byte is missing, extra or changed, where
        it is another kind of state or another version, or where it holds sums that no data has.
        """
        form = FLOAT64 if wire.kind_of(data) == FLOAT64.kind else FLOAT32
        bins, a, odd = wire.unpack_parts(data, form.kind, (("<i4", ()), ("<i8", (form.slices,)), ("u1", ())))
        if not bins.ndim or bins.shape[-1] < 2:
            raise ValueError(f"data has shape {bins.shape}: level, weight and features last would do")
        level = a[..., 0, 0].astype(_BITS[form.kind]).view(form.dtype)
        sums = Sums(level, bins[..., 1:].copy(), a[..., 1:, :].copy(), odd[..., 2:].copy())
        made = cls._wrap(sums)
        if not law.possible(sums) or made.to_bytes() != bytes(data):
            raise ValueError("data holds sums that no data has: bytes from to_bytes would do")
        return made


def _form(dtype: np.dtype[Any], name: str) -> Format:
    if dtype not in FORMATS:
        raise TypeError(f"{name}={dtype} is not a state's: float32 or float64 would do")
    return FORMATS[dtype]


def _length(entry: object, name: str, given: object) -> int:
    if isinstance(entry, bool | np.bool_) or not hasattr(entry, "__index__"):
        raise TypeError(f"{name}={given!r}: integers would do")
    length = operator.index(entry)
    if length < 0:
        raise ValueError(f"{name}={given!r}: lengths of 0 or more would do")
    return length

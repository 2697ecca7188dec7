"""Partial attention results that merge: of the keys seen, the normalised output and the log-sum-exp.

    state       lse = log(sum(exp(x_j))), o = sum(exp(x_j - lse) * v_j); of nothing: (0, -inf)
    merge       m = max(lse_i);  e_i = exp(lse_i - m);  s = sum(e_i)
                lse = m + log(s);  o = sum(e_i / s * o_i)
    push        a key is a state too: its score for lse, its value for o
    sink        a state with o = 0 and the sink for lse, merged once

This is the pair (m, s) of `state` in normal form, m = lse and s = 1, with the values carried along.

A side with lse -inf has seen nothing: it adds nothing and its o is not read. An lse of +inf or NaN makes o
NaN. An infinite entry of an o counts however little its side weighs, so that where sums are cut does not
show; +inf beside -inf is NaN. Every state is in normal form: o is 0 where lse is -inf, and NaN where lse is
+inf or NaN; no lse is -0.0 and every NaN is the same one, so that states that are equal are equal in bits.

**Arithmetic and error.** All is computed in float64, whatever the state's format, and rounded to it once, at
the end. log(s) is log(c) + log1p(r / c), c terms being exactly 1 and r the sum of the others, so that nothing
is lost where one side outweighs the rest. With u = 2**-53, k sides (or keys), G the widest gap of an lse
to m (745 at most), and v = 2**-24 in float32, 0 in float64, one merge of the states as they stand errs by

    lse     (v + u) * abs(lse) + (3 * k + 10) * u
    o       v * abs(o) + (2 * G + 2 * k + 5) * u * max(abs(o_i)) + k smallest subnormals

while nothing overflows, and so does `of` with scores and values. In a chain of merges errors add up: o takes
over those of its sides, and 2 * max(abs(o_i)) times that of their lse, for they decide the weights. In
float32 this is what counts: an lse of 1000 is only known to 2**-24 * 1000, and so are the weights.
`merge_many` rounds once where a chain rounds at every link; in float64 states it is 2**-53 * 1000.

Merging two is commutative in bits; merging is associative, and equal to attention over all keys at once,
within that bound. One that saw nothing leaves the other as it is, bit for bit. Merging outputs by their lse:
Ye et al. 2025, arXiv:2501.01005, section 2.2.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from . import state as law
from .attention_formats import Converters, check_shapes
from .state import Array, Axis, real, reduced_axes, state_dtype

__all__ = ["AttentionState", "MergeGradients", "merge_attention_vjp"]

#: (o, lse)
Part = tuple[Array, Array]

_FLOAT64: Final = np.dtype(np.float64)
_FLOAT32: Final = np.dtype(np.float32)


class AttentionState(Converters):
    """Attention over the keys seen so far, one for each entry of `shape`. Immutable.

    Attributes:
        o: the normalised output, shape + (dv,), float32 or float64, read-only; 0 where no key was seen.
        lse: natural log of the sum of exp of the scores seen, of `shape`, alike; -inf of none.

    Equal where dtype, shape and every o and lse are (NaN equals NaN). Pickles through `to_bytes`. Special
    values, arithmetic and error: see the text of this module.
    """

    __slots__ = ("_lse", "_o")
    __hash__ = None  # type: ignore[assignment]  # it compares by the values of arrays

    def __init__(self, o: ArrayLike, lse: ArrayLike) -> None:
        """The state with this output and lse (copied), brought to normal form.

        Raises:
            TypeError: they are not both float32 or both float64 (`from_lse` takes other formats).
            ValueError: lse does not have the shape of o without its last axis.
        """
        arrays = real(o, "o"), real(lse, "lse")
        given = [np.asarray(a).dtype.newbyteorder("=") for a in (o, lse)]
        if given[0] != given[1] or given[0] not in (_FLOAT32, _FLOAT64):
            would = "both float32 or both float64 would do (from_lse takes others)"
            raise TypeError(f"o and lse are {given[0]} and {given[1]}: {would}")
        check_shapes(*arrays)
        self._set(*arrays, given[0])

    def _set(self, o: Array, lse: Array, dtype: np.dtype[Any]) -> None:
        logs = np.array(lse, dtype=dtype, order="C")
        logs[...] = np.where(np.isnan(logs), dtype.type(np.nan), logs + dtype.type(0))
        output = np.array(o, dtype=dtype, order="C")
        output[np.isnan(output)] = np.nan
        output[logs == -np.inf] = 0
        output[np.isnan(logs) | (logs == np.inf)] = np.nan
        self._o, self._lse = output, logs
        output.flags.writeable = logs.flags.writeable = False

    @classmethod
    def _wrap(cls, o: Array, lse: Array, dtype: np.dtype[Any]) -> Self:
        made = cls.__new__(cls)
        made._set(o, lse, dtype)
        return made

    @classmethod
    def identity(cls, shape: int | tuple[int, ...], dv: int, dtype: DTypeLike = np.float32) -> Self:
        """States of no key: o 0, lse -inf, for `dv` features of the values.

        Raises TypeError for a dtype other than float32 and float64 and lengths that are no integers,
        ValueError for negative ones.
        """
        given = np.dtype(dtype)
        if given not in (_FLOAT32, _FLOAT64):
            raise TypeError(f"dtype={given} is not a state's: float32 or float64 would do")
        leading = tuple(_length(n, "shape", shape) for n in (shape if isinstance(shape, tuple) else (shape,)))
        output = np.zeros((*leading, _length(dv, "dv", dv)))
        return cls._wrap(output, np.full(leading, -np.inf), given)

    @classmethod
    def of(cls, scores: ArrayLike, values: ArrayLike, *, where: ArrayLike | None = None) -> Self:
        """States of keys by their scores and values.

        Args:
            scores: (..., n), real: final scores, the exponents of the softmax. -inf is a key left out.
            values: (..., n, dv), real; the leading axes broadcast to those of scores.
            where: bool, broadcastable to scores: False leaves a key out, neither score nor value is read.

        Returns: states of the leading shape of scores; float64 where scores or values are float64 or
        integers, else float32.

        Raises TypeError or ValueError, naming the argument. Cost: 2 * n * dv flops a row, float64 copies of
        scores and values.
        """
        x, v, dtype = _keys(scores, values, where)
        return cls._wrap(*_attended(x, v), dtype)

    def push(self, scores: ArrayLike, values: ArrayLike, *, where: ArrayLike | None = None) -> Self:
        """The states after these keys too: scores (*shape, n), values (..., n, dv) as in `of`.

        Rounds once, so that it is no worse than a merge with `of`. float64 where state, scores or values are.
        Raises TypeError or ValueError, naming the argument.
        """
        x, v, dtype = _keys(scores, values, where)
        if x.shape[:-1] != self.shape:
            raise ValueError(f"scores have rows of shape {x.shape[:-1]}: {self.shape}, the state's, would do")
        if v.shape[-1] != self.dv:
            raise ValueError(f"values have {v.shape[-1]} features: {self.dv}, the state's dv, would do")
        parts = (self._o, self._lse), _attended(x, v)
        return self._wrap(*_merged(parts), np.promote_types(self.dtype, dtype))

    def merge(self, other: AttentionState) -> Self:
        """The states of the keys of both; float64 where either is. Commutative in bits.

        Raises TypeError where other is no AttentionState, ValueError where its shape or dv differs.
        """
        return type(self)._of_parts((self, _alike(other, self, "other")))

    @classmethod
    def merge_many(cls, states: Iterable[AttentionState]) -> Self:
        """All of them merged at once, with their common maximum and one rounding; float64 where one is.

        Raises ValueError where there are none or shapes differ, TypeError where one is no AttentionState.
        Cost: one exponential a state and row; all states are held.
        """
        given = list(states)
        if not given:
            raise ValueError(
                "states is empty: one state or more would do (an identity where there is no key)"
            )
        return cls._of_parts([_alike(state, given[0], "states") for state in given])

    @classmethod
    def _of_parts(cls, states: Sequence[AttentionState]) -> Self:
        dtype = _FLOAT64 if any(state.dtype == _FLOAT64 for state in states) else _FLOAT32
        return cls._wrap(*_merged([(state._o, state._lse) for state in states]), dtype)

    def merge_axis(self, axis: Axis) -> Self:
        """The states along an axis of `shape`, or several (None: all), merged at once: shape without it.

        As `merge_many` of the slices; of an axis of length 0 the identity. Raises TypeError or ValueError
        where axis is no axis of `shape`. Cost: a step of Python for each slice.
        """
        ndim = self._lse.ndim
        axes = reduced_axes(axis, ndim)
        kept = [a for a in range(ndim) if a not in axes]
        shape = tuple(self.shape[a] for a in kept)
        count = math.prod(self.shape[a] for a in axes)
        if not count:
            return type(self).identity(shape, self.dv, self.dtype)
        o = self._o.transpose(*axes, *kept, ndim).reshape(count, *shape, self.dv)
        lse = self._lse.transpose(*axes, *kept).reshape(count, *shape)
        return self._wrap(*_merged(list(zip(o, lse, strict=True))), self.dtype)

    def with_sinks(self, sinks: ArrayLike, axis: int | None = None) -> Self:
        """The states with a sink each: a logit with a value of 0, which takes its share of the sum and is in
        the lse. Call it once, after the last merge: every call adds its sinks again.

        Args:
            sinks: real; -inf is no sink. Broadcastable to `shape`: (heads,) for states of (tokens, heads).
            axis: where given, sinks is (length of that axis of `shape`,): (heads,) with axis=1 for states of
                (batch, heads, queries).

        Returns: states of the same dtype. Raises TypeError or ValueError, naming the argument, also for
        a finite sink past the range of the state's format.
        """
        logits = real(sinks, "sinks").astype(_FLOAT64)
        if axis is not None:
            axes = reduced_axes(axis, self._lse.ndim)
            if logits.shape != tuple(self.shape[a] for a in axes) or len(axes) != 1:
                would = f"one sink for each entry of axis={axis!r} of {self.shape} would do"
                raise ValueError(f"sinks has shape {logits.shape}: {would}")
            logits = np.expand_dims(logits, [a for a in range(self._lse.ndim) if a not in axes])
        try:
            logits = np.broadcast_to(logits, self.shape)
        except ValueError as error:
            would = f"one that broadcasts to {self.shape}, or axis=, would do"
            raise ValueError(f"sinks has shape {logits.shape}: {would}") from error
        if np.any(np.isfinite(logits) & (np.abs(logits) > np.finfo(self.dtype).max)):
            raise ValueError(f"sinks holds a logit past the range of {self.dtype}: smaller ones would do")
        return self._wrap(*_merged(((self._o, self._lse), (np.zeros(1), logits))), self.dtype)

    @property
    def o(self) -> Array:
        return self._o

    @property
    def lse(self) -> Array:
        return self._lse

    @property
    def value(self) -> Array:
        """The attention output over the keys seen: `o`."""
        return self._o

    @property
    def shape(self) -> tuple[int, ...]:
        """The leading shape: that of lse."""
        return self._lse.shape

    @property
    def dv(self) -> int:
        """Features of the values: the length of o's last axis."""
        return int(self._o.shape[-1])

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._lse.dtype

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, AttentionState):
            return NotImplemented
        if self.dtype != other.dtype or self._o.shape != other._o.shape:
            return False
        pairs = (self._o, other._o), (self._lse, other._lse)
        return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(o={self._o!r}, lse={self._lse!r})"


class MergeGradients(NamedTuple):
    """Gradients of a merge, each of the shape and dtype of its operand (float64 for integers)."""

    o_a: Array
    lse_a: Array
    o_b: Array
    lse_b: Array


def merge_attention_vjp(
    o_a: ArrayLike, lse_a: ArrayLike, o_b: ArrayLike, lse_b: ArrayLike, do: ArrayLike,
    dlse: ArrayLike | None = None,
) -> MergeGradients:  # fmt: skip
    """Gradients of the four operands of a merge, from those of the merged output and lse.

        w = exp(lse_side - lse);  d o_side = w * do
        d lse_a = w_a * dlse + w_a * w_b * sum(do * (o_a - o_b));  d lse_b likewise

    Args:
        o_a, o_b, do: (..., dv), real, of one shape.
        lse_a, lse_b, dlse: (...), natural logarithms; dlse is 0 where it is not given.

    Returns: gradients, computed in float64. A side with lse -inf gets 0, and its o is not read. Where an lse
    is +inf or NaN those of all other sides are NaN.

    Raises TypeError or ValueError, naming the argument. Cost: a few passes over the outputs.
    """
    given = {"o_a": o_a, "lse_a": lse_a, "o_b": o_b, "lse_b": lse_b, "do": do}
    given["dlse"] = np.zeros(np.shape(lse_a)) if dlse is None else dlse
    arrays = {name: real(value, name) for name, value in given.items()}
    shape = arrays["o_a"].shape
    if not shape:
        raise ValueError("o_a has shape (): a last axis of features would do")
    for name, array in arrays.items():
        would = shape[:-1] if "lse" in name else shape
        if array.shape != would:
            raise ValueError(f"{name} has shape {array.shape} where o_a has {shape}: {would} would do")
    wide = {name: array.astype(_FLOAT64) for name, array in arrays.items()}
    x = np.stack((wide["lse_a"], wide["lse_b"]), axis=-1)
    seen = x != -np.inf
    tainted = ~np.isfinite(x.max(axis=-1)) & seen.any(axis=-1)
    with np.errstate(all="ignore"):
        weights, _ = _statistics(x)
        dot = np.sum(wide["do"] * (wide["o_a"] - wide["o_b"]), axis=-1)
        slope = np.where(seen.all(axis=-1), weights[..., 0] * weights[..., 1] * dot, 0.0)
        found = {}
        for i, (side, sign) in enumerate((("a", 1.0), ("b", -1.0))):
            of_lse = np.where(tainted, np.nan, weights[..., i] * wide["dlse"] + sign * slope)
            of_o = np.where(tainted[..., None], np.nan, weights[..., i, None] * wide["do"])
            found[f"lse_{side}"] = np.where(seen[..., i], of_lse, 0.0)
            found[f"o_{side}"] = np.where(seen[..., i, None], of_o, 0.0)
        return MergeGradients(**{n: np.asarray(g, dtype=arrays[n].dtype) for n, g in found.items()})


def _statistics(x: Array) -> Part:
    """(weights, lse) of scores over the last axis, in float64: exp(x - lse) and lse.

    The weights of a row whose maximum is not finite mean nothing. The last axis is contiguous: numpy sums it
    row by row, so that no row sees its neighbours.
    """
    with np.errstate(all="ignore"):
        m = np.max(x, axis=-1, keepdims=True, initial=-np.inf)
        e = np.exp(x - law.pivot(m))
        top = x == m
        count = np.sum(top, axis=-1, keepdims=True, dtype=_FLOAT64)
        rest = np.sum(np.where(top, 0.0, e), axis=-1, keepdims=True)
        lse = np.where(np.isfinite(m), m + (np.log(count) + np.log1p(rest / count)), m)
        return e / (count + rest), lse[..., 0]


def _merged(parts: Sequence[Part]) -> Part:
    """(o, lse) of all parts, float64, o not in normal form where lse is infinite or NaN. Each o is
    (..., dv), or broadcasts to that of the first."""
    x = np.stack([lse.astype(_FLOAT64) for _, lse in parts], axis=-1)
    weights, lse = _statistics(x)
    # -0.0 is what a sum starts from to keep the sign of a lone zero.
    total = np.full(parts[0][0].shape, -0.0)
    with np.errstate(all="ignore"):
        for i, (o, _) in enumerate(parts):
            share = o * weights[..., i, None]
            if not np.isfinite(o).all():
                share = np.where(np.isinf(o), o, share)
            np.add(total, share, out=total, where=x[..., i, None] > -np.inf)
    return total, lse


def _keys(
    scores: ArrayLike, values: ArrayLike, where: ArrayLike | None
) -> tuple[Array, Array, np.dtype[Any]]:
    """Scores, -inf where left out, and values, both float64 and contiguous, and the format of their state."""
    x, v = real(scores, "scores"), real(values, "values")
    if not x.ndim:
        raise ValueError("scores has shape (): a last axis of keys would do")
    fits = v.ndim >= 2 and v.shape[-2] == x.shape[-1] and v.ndim <= x.ndim + 1
    if not fits or any(n not in (1, own) for n, own in zip(v.shape[-3::-1], x.shape[-2::-1], strict=False)):
        would = f"({', '.join(map(str, x.shape))}, dv), or leading axes that broadcast to it, would do"
        raise ValueError(f"values has shape {v.shape} where scores has {x.shape}: {would}")
    mask = law.mask_of(where, x.shape)
    wide = x if mask is None else np.where(mask, x, x.dtype.type(-np.inf))
    dtype = np.promote_types(state_dtype(x.dtype), state_dtype(v.dtype))
    return np.array(wide, dtype=_FLOAT64, order="C"), np.array(v, dtype=_FLOAT64, order="C"), dtype


def _attended(x: Array, v: Array) -> Part:
    """softmax(x) @ v and the lse of x; x (..., n), v (..., n, dv), float64."""
    weights, lse = _statistics(x)
    with np.errstate(all="ignore"):
        finite = np.isfinite(v)
        if finite.all():
            return _rows_times(weights, v), lse
        o = _rows_times(weights, np.where(finite, v, 0.0))
        takes_part = (x > -np.inf).astype(_FLOAT64)
        plus, minus, tainted = (
            _rows_times(takes_part, kind.astype(_FLOAT64)) > 0
            for kind in (v == np.inf, v == -np.inf, np.isnan(v))
        )
        o = np.where(plus, np.inf, np.where(minus, -np.inf, o))
        return np.where(tainted | (plus & minus), np.nan, o), lse


def _rows_times(rows: Array, v: Array) -> Array:
    # One product a row, so that its bits do not depend on the other rows.
    return np.asarray(np.matmul(rows[..., None, :], v)[..., 0, :])


def _alike(given: AttentionState, first: AttentionState, name: str) -> AttentionState:
    for state in (first, given):
        if not isinstance(state, AttentionState):
            raise TypeError(f"{name} holds a {type(state).__name__}: an AttentionState would do")
    if given._o.shape != first._o.shape:
        would = f"{first.shape} and {first.dv} would do"
        raise ValueError(f"{name} has states of shape {given.shape} with dv {given.dv} where {would}")
    return given


def _length(entry: object, name: str, given: object) -> int:
    if isinstance(entry, bool | np.bool_) or not hasattr(entry, "__index__"):
        raise TypeError(f"{name}={given!r}: integers would do")
    length = operator.index(entry)
    if length < 0:
        raise ValueError(f"{name}={given!r}: lengths of 0 or more would do")
    return length

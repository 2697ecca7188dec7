"""Draws that merge: of each shard of a vocabulary the best token so far, beside the state of its logits.

A token's key is its logit over the temperature plus noise that its number alone decides, so the greatest key
of all shards is the one a draw from the whole would have found. The statistics follow the law of `state`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike

from . import state

Array = state.Array
_DTYPES: Final = (np.dtype(np.float32), np.dtype(np.float64))


class Draws:
    """What states of draws have in common: see `SampleState`. Subclasses say what kind of law they have."""

    __slots__ = ("_dtype", "_key", "_law", "_logit", "_rest", "_token", "made", "spans")
    _kind: type[Any]
    _how: str  # `sample` makes one

    def __init__(
        self,
        token: ArrayLike,
        key: ArrayLike,
        rest: ArrayLike,
        logit: ArrayLike,
        law: Any,
        dtype: Any,
        made: Mapping[str, Any] | None = None,
        spans: tuple[tuple[int, int], ...] = (),
    ) -> None:
        """The state with these parts; `dtype`, float32 or float64, is that of `log_probabilities`.

        Raises TypeError where law is of another kind or dtype another, ValueError where shapes differ.
        """
        if not isinstance(law, self._kind):
            raise TypeError(f"law is a {type(law).__name__}: a {self._kind.__name__} would do")
        try:
            known = np.dtype(dtype) in _DTYPES
        except TypeError:
            known = False
        if not known:
            raise TypeError(f"dtype is {dtype!r}: float32 or float64 would do")
        parts = [np.array(token, np.int64), *(np.array(part, np.float64) for part in (key, rest, logit))]
        for part, name in zip(parts, ("token", "key", "rest", "logit"), strict=True):
            if part.shape != law.shape:
                raise ValueError(f"{name} has shape {part.shape} where the {law.shape} of law would do")
            part.flags.writeable = False
        self._token, self._key, self._rest, self._logit = parts
        self._law, self._dtype = law, np.dtype(dtype)
        self.made, self.spans = made, spans

    @property
    def token(self) -> Array:
        return self._token

    @property
    def key(self) -> Array:
        return self._key

    @property
    def rest(self) -> Array:
        return self._rest

    @property
    def logit(self) -> Array:
        return self._logit

    @property
    def shape(self) -> tuple[int, ...]:
        return self._token.shape

    @property
    def tokens(self) -> Array:
        """The tokens drawn, int64: -1 where what was seen has NaN or +inf, or nothing above -inf."""
        return np.where(np.isfinite(self._law.m), self._token, -1)

    def merge(self, other: Self) -> Self:
        """The draw from what either has seen. Shards are of one seed, draw, temperature and set of rows, with
        no token in common.

        Raises TypeError where other is another kind of state, ValueError where its shape differs, where it
        was drawn with another seed, draw, first row or temperature, or where it has seen a token that this
        one has.
        """
        self._own(other, "other")
        law = self._law.merge(other._law)
        self._check(other)
        # Equal keys go to the lower token; -1 is none at all.
        same = other._key == self._key
        tie = same & (other._rest == self._rest) & (other._token >= 0)
        tie &= (other._token < self._token) | (self._token < 0)
        theirs = (other._key > self._key) | (same & (other._rest > self._rest)) | tie
        token = np.where(theirs, other._token, self._token)
        key, rest = np.where(theirs, other._key, self._key), np.where(theirs, other._rest, self._rest)
        logit = np.where(theirs, other._logit, self._logit)
        spans = tuple(sorted(self.spans + other.spans)) if self.spans and other.spans else ()
        made = self.made if other.made is None else other.made
        dtype = np.promote_types(self._dtype, other._dtype)
        return type(self)(token, key, rest, logit, law, dtype, made, spans)

    def _check(self, other: Draws) -> None:
        if self.made is not None and other.made is not None:
            for name, mine in self.made.items():
                if not np.array_equal(mine, other.made[name]):
                    theirs = f"other was drawn with {name} {other.made[name]} where this one has {mine}"
                    raise ValueError(f"{theirs}: the same would do")
        for start, stop in self.spans:
            for a, b in other.spans:
                if start < b and a < stop:
                    raise ValueError(
                        f"other has tokens {a} to {b}, of which {start} to {stop} are in this one too: "
                        "origin=(row, token) says where a shard starts"
                    )

    @classmethod
    def _own(cls, value: Any, name: str) -> None:
        if not isinstance(value, cls):
            would = f"a {cls.__name__} ({cls._how}) would do"
            raise TypeError(f"{name} is a {type(value).__name__}: {would}")

    @classmethod
    def merge_many(cls, states: Iterable[Any]) -> Self:
        """All of them merged in a balanced tree. ValueError where there are none, or shapes differ."""
        listed = list(states)
        for i, one in enumerate(listed):
            cls._own(one, f"states[{i}]")
        merged: Self = state.tree(listed, lambda a, b: a.merge(b))
        return merged

    def __repr__(self) -> str:
        return f"{type(self).__name__}(token={self._token!r}, key={self._key!r}, law={self._law!r})"


class SampleState(Draws):
    """One draw a row from what was seen of its logits. Immutable: merging gives a new one.

    Attributes:
        token: int64, the token with the greatest key, counted in the whole; -1 where there is none.
        key, rest: float64, whose sum is exactly its logit over the temperature plus its noise: key is that
            rounded; -inf where there is none.
        logit: float64, its logit over the temperature.
        law: the `SoftmaxState` of the logits over the temperature, float64.

        made: what has to be the same in all shards (seed, draw, first row, temperature), None where unknown.
        spans: (start, stop) of the tokens seen, ascending; empty where unknown.

    Of temperature 0 the key is the logit itself, and the law is that of temperature 1.
    """

    __slots__ = ()
    _kind = state.SoftmaxState
    _how = "return_state=True"

    @property
    def law(self) -> state.SoftmaxState:
        law: state.SoftmaxState = self._law
        return law

    @property
    def log_probabilities(self) -> Array:
        """Natural log of the tokens' probabilities under all that was seen; NaN where there is no token."""
        found = self.tokens >= 0
        logit = np.where(found, self._logit, 0.0)
        values = state.log_value(logit, self._law.m, self._law.s)
        with np.errstate(over="ignore", under="ignore"):
            return np.where(found, np.minimum(values, 0.0), np.nan).astype(self._dtype)

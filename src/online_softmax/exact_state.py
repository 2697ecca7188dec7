"""States of rows whose merge is associative and commutative in bits (`exact`)."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any, Final, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from . import exact, wire
from .exact import FLOAT32, FLOAT64, Format, State
from .state import Axis, mask_of, real, reduced_axes

Array = NDArray[Any]
T = TypeVar("T")

#: Where the bits of a float have their sign.
_SIGN: Final = {FLOAT32.kind: np.int32, FLOAT64.kind: np.int64}
_MOST_SUM: Final = 1 << 62


class ExactState:
    """States of rows, one for each entry of `shape`, the same bits however the rows were cut and merged.

    Immutable: push and merge give a new one. Whatever the order of elements and merges, the threads, the
    instruction set or the device, states of the same elements are equal bit for bit, and so are the
    log-sum-exps and probabilities read from them. docs/same_bits.md says what is promised.

    Attributes:
        m: the maximum of what was seen, float32 or float64, of `shape`, read-only; 0.0 for -0.0 and
            subnormal numbers.
        a: int64 of `shape` and 3 (float64: 4): the terms exp(x - m) of all elements in whole numbers,
            read-only.

    Equal where format, shape and every bit are. Pickles through `to_bytes`. 28 bytes a row (float64: 40); up
    to 2**41 elements (2**31).
    """

    __slots__ = ("_a", "_m")
    __hash__ = None  # type: ignore[assignment]  # it compares by the values of arrays

    def __init__(self, m: ArrayLike, a: ArrayLike) -> None:
        """The state with this m and a (copied).

        Raises:
            TypeError: m is not float32 or float64, or a not int64.
            ValueError: shapes do not fit, or no data has that state: m -0.0, subnormal or a NaN of another
                pattern; sums that are not 0 under -inf and NaN, or smaller than the maximum alone makes.
        """
        given, sums = np.asarray(m), np.asarray(a)
        if given.dtype not in (FLOAT32.dtype, FLOAT64.dtype) or sums.dtype != np.int64:
            would = "float32 or float64, and int64, would do"
            raise TypeError(f"m and a are {given.dtype} and {sums.dtype}: {would}")
        form = exact.format_of(given.dtype)
        if sums.shape != (*given.shape, form.slices):
            raise ValueError(f"a has shape {sums.shape}: {(*given.shape, form.slices)} would do")
        if not _possible(given, sums, form):
            would = f"a canonical maximum with sums of elements up to it, {_most(form)}, would do"
            raise ValueError(f"m and a hold a pair that no data has: {would}")
        self._set((given, sums))

    def _set(self, pair: State) -> None:
        self._m, self._a = (np.array(part, dtype=part.dtype.newbyteorder("=")) for part in pair)
        self._m.flags.writeable = self._a.flags.writeable = False

    @classmethod
    def _wrap(cls, pair: State) -> Self:
        """The state with this pair, unchecked."""
        made = cls.__new__(cls)
        made._set(pair)
        return made

    # Hooks: front ends put a faster core here, with the same bits.

    @classmethod
    def _block_state(cls, x: Array, axes: tuple[int, ...], where: Array | None) -> State:
        """(m, a) of `x` over `axes`, which are non-negative, sorted and not empty."""
        form = exact.format_of(x.dtype)
        wide = x.astype(form.dtype)
        if where is not None:
            wide = np.where(where, wide, form.dtype.type(-np.inf))
        kept = tuple(a for a in range(wide.ndim) if a not in axes)
        turned = np.ascontiguousarray(wide.transpose(*kept, *axes))
        shape = turned.shape[: len(kept)]
        length = turned.size // max(1, int(np.prod(shape))) if turned.size else 0
        return exact.state(turned.reshape(*shape, length), form)

    @classmethod
    def _joint(cls, a: State, b: State) -> State:
        return exact.merge(a, b, exact.format_of(a[0].dtype))

    @classmethod
    def _lse(cls, pair: State) -> Array:
        return exact.lse(*pair, exact.format_of(pair[0].dtype))

    @classmethod
    def _normalized(cls, x: Array, pair: State, axes: tuple[int, ...], log: bool) -> Array:
        """Probabilities, or their logarithms, of x under states of its shape without `axes`; x's dtype."""
        form = exact.format_of(x.dtype)
        m, a = np.expand_dims(pair[0], axes), np.expand_dims(pair[1], axes)
        with np.errstate(over="ignore", under="ignore"):
            law = exact.log_value if log else exact.value
            return law(x.astype(form.dtype), m, a, form).astype(x.dtype)

    @classmethod
    def identity(cls, shape: int | tuple[int, ...] = (), dtype: DTypeLike = np.float32) -> Self:
        """States of no data. Raises TypeError for a dtype other than float32 and float64, and TypeError or
        ValueError for a shape that is none."""
        wanted = np.dtype(dtype)
        if wanted not in (FLOAT32.dtype, FLOAT64.dtype):
            raise TypeError(f"dtype={wanted} is not a state's: float32 or float64 would do")
        sizes = _sizes(shape)
        return cls._wrap(exact.identity(sizes, exact.format_of(wanted)))

    @classmethod
    def of(cls, x: ArrayLike, axis: Axis = -1, *, where: ArrayLike | None = None) -> Self:
        """States of `x` over `axis`: x's shape without those axes.

        Args:
            x: real numbers of any shape. States are float64 for float64 and integers, else float32: float16,
                bfloat16 and float8 give the bits of their float32 upcast.
            axis: an int, a tuple, or None for all. 0-d data count as one row.
            where: bool, broadcastable to x's shape; entries where it is False are left out.

        Raises TypeError or ValueError, naming the argument. Cost: one read of x.
        """
        array = real(x, "x")
        axes, mask = reduced_axes(axis, array.ndim), mask_of(where, array.shape)
        if not axes:
            # Each entry is a row of its own.
            axes, array, mask = (array.ndim,), array[..., None], None if mask is None else mask[..., None]
        return cls._wrap(cls._block_state(array, axes, mask))

    def push(self, block: ArrayLike, axis: Axis = -1, *, where: ArrayLike | None = None) -> Self:
        """The states after `block` too, whose shape without `axis` is this one's, and whose states have this
        one's dtype. Arguments, errors and cost as in `of`."""
        return self._joined(type(self).of(block, axis, where=where), "block")

    def merge(self, other: ExactState) -> Self:
        """The states of what either has seen.

        Raises TypeError where other is no ExactState or of another dtype, ValueError where its shape differs,
        or both have more elements than a state holds.
        """
        return self._joined(_a_state(other, "other"), "other")

    @classmethod
    def merge_many(cls, states: Iterable[ExactState]) -> Self:
        """All of them merged, one after another: no order makes other bits.

        Raises ValueError where there are none or shapes differ, TypeError as `merge`.
        """
        total: Self | None = None
        for given in several(states):
            state = _a_state(given, "states")
            total = cls._wrap((state.m, state.a)) if total is None else total._joined(state, "states")
        if total is None:
            raise ValueError(
                "states is empty: at least one state would do (an identity, where there is no data)"
            )
        return total

    def _joined(self, other: ExactState, name: str) -> Self:
        if other.dtype != self.dtype:
            would = f"{self.format}, which {self.dtype} has, would do"
            raise TypeError(f"{name} has {other.dtype} states in {other.format}: {would}")
        if other.shape != self.shape:
            raise ValueError(f"{name} has states of shape {other.shape} where {self.shape} would do")
        m, a = self._joint((self._m, self._a), (other.m, other.a))
        if _beyond(a):
            would = f"as many as sums hold, {_most(exact.format_of(self.dtype))}, would do"
            raise ValueError(f"{name} makes a row of too many elements: {would}")
        return self._wrap((m, a))

    @property
    def m(self) -> Array:
        return self._m

    @property
    def a(self) -> Array:
        return self._a

    @property
    def shape(self) -> tuple[int, ...]:
        return self._m.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._m.dtype

    @property
    def format(self) -> str:
        """The definition that the bits follow: "lse-22x3/1" for float32, "lse-32x4/1" for float64."""
        return exact.format_of(self._m.dtype).name

    @property
    def lse(self) -> Array:
        """Natural log of the sum of exp of all entries seen: this shape and dtype; -inf of none."""
        return self._lse((self._m, self._a))

    def prob(self, x: ArrayLike, axis: Axis = -1, *, where: ArrayLike | None = None) -> Array:
        """Probabilities of the entries of `x` under these states: x's shape and dtype (float64 for integers).

        Where every entry of x was seen these are its softmax values. x's shape without `axis` is this one's,
        and its states would have this one's dtype; `where` gives 0 where it is False. Raises TypeError or
        ValueError, naming the argument.
        """
        return self._read(x, axis, where, False)

    def logprob(self, x: ArrayLike, axis: Axis = -1, *, where: ArrayLike | None = None) -> Array:
        """Log-probabilities: as `prob`, with -inf where `where` is False."""
        return self._read(x, axis, where, True)

    def _read(self, x: ArrayLike, axis: Axis, where: ArrayLike | None, log: bool) -> Array:
        array = real(x, "x")
        axes, mask = reduced_axes(axis, array.ndim), mask_of(where, array.shape)
        if exact.format_of(array.dtype).dtype != self.dtype:
            raise TypeError(
                f"x holds {array.dtype} where the states are {self.dtype}: {self.format} would do"
            )
        kept = tuple(n for a, n in enumerate(array.shape) if a not in axes)
        if kept != self.shape:
            would = f"rows of shape {self.shape} would do"
            raise ValueError(f"x of shape {array.shape} has rows of shape {kept} over axis={axis!r}: {would}")
        if axes:
            y = self._normalized(array, (self._m, self._a), axes, log)
        else:
            y = self._normalized(array[..., None], (self._m, self._a), (array.ndim,), log)[..., 0]
        if mask is not None:
            y = np.where(mask, y, y.dtype.type(-np.inf if log else 0))
        given = np.asarray(x).dtype
        with np.errstate(over="ignore", invalid="ignore"):
            return y.astype(array.dtype if given.kind in "iub" else given.newbyteorder("="), copy=False)

    # ---- two rounds: for collectives that know maximum and sum alone

    def key(self) -> Array:
        """The order of the maxima as int64 of this shape: first round, an all-reduce of their maximum.

        NaN comes last, so that it wins; -inf, of nothing, first.
        """
        bits = self._m.view(_SIGN[exact.format_of(self.dtype).kind])
        top = bits.dtype.type(np.iinfo(bits.dtype).max)
        return np.asarray(np.where(bits < 0, bits ^ top, bits)).astype(np.int64)

    def sums(self, key: ArrayLike) -> Array:
        """The sums `a` of these states as they count under the maxima of `key`, int64 of this shape and 3
        (4): second round, an all-reduce of their sum, which with the key is the merged state
        (`from_reduced`).

        Raises ValueError where a key is less than this state's own or none of the format.
        """
        joint = np.asarray(key)
        if joint.dtype != np.int64 or joint.shape != self.shape:
            given = f"{joint.dtype} of shape {joint.shape}"
            raise ValueError(f"key is {given}: int64 of shape {self.shape} would do")
        if (joint < self.key()).any():
            raise ValueError("key has an entry below that of these states: the maximum of all keys would do")
        m = _maximum(joint, exact.format_of(self.dtype))
        return self._joint((self._m, self._a), (m, np.zeros_like(self._a)))[1]

    @classmethod
    def from_reduced(cls, key: ArrayLike, a: ArrayLike, dtype: DTypeLike | None = None) -> Self:
        """The merged states from the maximum of the keys and the sum of the `sums` of all parts.

        a has to be the sum of what `sums(key)` gave for this key, and not of the states' own `a`: these
        belong to other maxima, which nothing here can see. dtype: the states'; by default that which has so
        many sums.

        Raises TypeError or ValueError as the constructor.
        """
        joint, sums = np.asarray(key), np.asarray(a)
        if dtype is None:
            dtype = FLOAT64.dtype if sums.shape[-1:] == (FLOAT64.slices,) else FLOAT32.dtype
        wanted = np.dtype(dtype)
        if wanted not in (FLOAT32.dtype, FLOAT64.dtype):
            raise TypeError(f"dtype={wanted} is not a state's: float32 or float64 would do")
        if joint.dtype != np.int64:
            raise TypeError(f"key holds {joint.dtype}: int64, from key(), would do")
        return cls(_maximum(joint, exact.format_of(wanted)), a)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ExactState):
            return NotImplemented
        if self.dtype != other.dtype or self.shape != other.shape:
            return False
        return np.array_equal(self._m, other.m, equal_nan=True) and np.array_equal(self._a, other.a)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(m={self._m!r}, a={self._a!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_bytes, (self.to_bytes(),)

    def to_bytes(self) -> bytes:
        """The states as bytes, the same on every machine: 16 bytes and 8 an axis around m and a (see
        `wire`), under the number of their format."""
        form = exact.format_of(self.dtype)
        return wire.pack_parts(form.kind, self.dtype.itemsize, self.shape, (self._m, self._a))

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        """What `to_bytes` wrote.

        Raises TypeError where data is not bytes; ValueError where a byte is missing, extra or changed, where
        it is another kind of state or another version, or where a pair is one that no data has.
        """
        form = FLOAT64 if wire.kind_of(data) == FLOAT64.kind else FLOAT32
        m, a = wire.unpack_parts(data, form.kind, ((form.dtype.str, ()), ("<i8", (form.slices,))))
        return cls(m, a)


def _sizes(shape: Any) -> tuple[int, ...]:
    would = "a whole number from 0 on, or a tuple of them, would do"
    entries = tuple(shape) if isinstance(shape, Iterable) else (shape,)
    if not all(hasattr(n, "__index__") for n in entries):
        raise TypeError(f"shape is {shape!r}: {would}")
    sizes = tuple(operator.index(n) for n in entries)
    if any(n < 0 for n in sizes):
        raise ValueError(f"shape is {shape!r}: {would}")
    return sizes


def _maximum(key: Array, form: Format) -> Array:
    """The maxima that have these keys. Raises ValueError where a key is none of the format."""
    bits = key.astype(_SIGN[form.kind])
    top = bits.dtype.type(np.iinfo(bits.dtype).max)
    m = np.where(bits < 0, bits ^ top, bits).view(form.dtype)
    if (bits != key).any() or not _is_canonical(m, form):
        raise ValueError(f"key has an entry that no maximum in {form.name} has: maxima of key() would do")
    return m


def _is_canonical(m: Array, form: Format) -> bool:
    kind = _SIGN[form.kind]
    return np.array_equal(exact.canonical(m, form).view(kind), m.astype(form.dtype).view(kind))


def _beyond(a: Array) -> bool:
    """Whether a sum is of more elements than a state has room for.

    Slices are of up to half a unit of the next higher one, 2**(W - 1). Two states within these bounds have a
    sum that int64 holds, but for 2**63, which turns up as -2**63."""
    return bool((a > _MOST_SUM).any() or (a < -_MOST_SUM).any())


def _most(form: Format) -> str:
    return f"at most 2**{63 - form.width} of them"


def _possible(m: Array, a: Array, form: Format) -> bool:
    """Whether some data has these statistics, pair by pair."""
    if _beyond(a) or not _is_canonical(m, form):
        return False
    none = np.isnan(m) | np.isneginf(m)
    counted = ~none & ~(np.abs(m) <= form.large)
    if a[none].any() or a[counted][..., 1:].any() or (a[counted][..., 0] < 1).any():
        return False
    plain = ~none & ~counted
    return bool((exact.rest_of(m[plain], a[plain], form)[0] >= 0).all())


def several(states: Iterable[T]) -> Iterable[T]:
    """`states`. Raises TypeError where it is nothing to go over, such as one state."""
    if not isinstance(states, Iterable):
        raise TypeError(f"states is a {type(states).__name__}: a list, or an iterator, of states would do")
    return states


def _a_state(given: ExactState, name: str) -> ExactState:
    if not isinstance(given, ExactState):
        raise TypeError(f"{name} holds a {type(given).__name__}: an ExactState would do")
    return given

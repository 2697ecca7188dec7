"""The law: a row's statistics as a pair that can be pushed to, merged in any order, and read.

    state       m = max(x), s = sum(exp(x - m)); of nothing: (-inf, 0)
    push        m' = max(m, x);   s' = s * exp(m - m') + exp(x - m')
    merge       m = max(m_a, m_b);  s = s_a * exp(m_a - m) + s_b * exp(m_b - m)
    read        lse = m + log(s);  y = exp(x - m) / s;  log y = (x - m) - log(s)

One guard serves them all: inside an exponent the pivot is 0 where m is infinite, m itself stays true. So
(-inf, 0) is an identity bit for bit, and no finite stand-in for -inf exists. An m of +inf has no finite
pivot; terms then take their limits, 1 for +inf and 0 for the rest, so that s counts the +inf entries. NaN
taints m and s both. m is never -0.0: the sign of a zero maximum would otherwise depend on the order of
merging, for no use.

m and s are float64 for float64 data, float32 for narrower floats. Merging is commutative bit for bit;
associative, as any sum in floating point, within the bound of `numerics.bounds`.

The law as a pair that merges: Milakov and Gimelshein 2018, arXiv:1805.02867.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any, Final, Self, TypeVar

import ml_dtypes
import numpy as np
from numpy.exceptions import AxisError
from numpy.typing import ArrayLike, DTypeLike, NDArray

from . import wire

Array = NDArray[Any]
State = tuple[Array, Array]
Axis = int | tuple[int, ...] | None
T = TypeVar("T")
_Law = Callable[[Array, Array, Array], Array]

_FLOAT64: Final = np.dtype(np.float64)
_FLOAT32: Final = np.dtype(np.float32)
_NARROW: Final = tuple(np.dtype(t) for t in (np.float16, ml_dtypes.bfloat16))
_FLOAT8: Final = tuple(np.dtype(t) for t in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2))


def identity(shape: tuple[int, ...] = (), dtype: DTypeLike = np.float32) -> State:
    """The state of nothing: m all -inf, s all 0, of `shape` and `dtype`."""
    return np.full(shape, -np.inf, dtype=dtype), np.zeros(shape, dtype=dtype)


def pivot(m: Array) -> Array:
    """What to subtract inside an exponent: m, or 0 where m is infinite."""
    return np.where(np.isinf(m), m.dtype.type(0), m)


def weight(x: Array, m: Array) -> Array:
    """exp(x - m) under the guard, for x <= m: what a term or partial sum at height x counts in a sum at m."""
    with np.errstate(all="ignore"):
        height = x - pivot(m)
        if np.isposinf(m).any():
            one, none = height.dtype.type(0), height.dtype.type(-np.inf)
            height = np.where(np.isposinf(m), np.where(np.isposinf(x), one, none), height)
        return np.asarray(np.exp(height))


def push(state: State, block: ArrayLike, axis: Axis = -1) -> State:
    """The state after the entries of `block` over `axis`; the other axes match the state's shape.

    One exponential an entry, however often the maximum rises in between. float64 where state or block is.
    """
    m, s = (np.asarray(part) for part in state)
    x = real(block, "block")
    dtype = np.promote_types(m.dtype, state_dtype(x.dtype))
    m, s, x = m.astype(dtype), s.astype(dtype), _rows(x, reduced_axes(axis, x.ndim)).astype(dtype)
    with np.errstate(all="ignore"):
        new = _joint(m, np.max(x, axis=-1, initial=-np.inf))
        # The last axis is contiguous: numpy sums it pairwise, with an error that grows with log(n) alone.
        return new, np.asarray(s * weight(m, new) + np.sum(weight(x, new[..., None]), axis=-1))


def merge(a: State, b: State) -> State:
    """The state of what either has seen. Shapes broadcast; float64 where either is. Two exponentials."""
    (m_a, s_a), (m_b, s_b) = ((np.asarray(m), np.asarray(s)) for m, s in (a, b))
    with np.errstate(all="ignore"):
        m = _joint(m_a, m_b)
        return m, np.asarray(s_a * weight(m_a, m) + s_b * weight(m_b, m))


def merge_many(states: Iterable[State]) -> State:
    """All of `states` merged in a balanced tree, ceil(log2(p)) deep. ValueError where there are none."""
    return tree(states, merge)


def lse(m: Array, s: Array) -> Array:
    """Natural log of the sum of exp: m + log(s); -inf of nothing, +inf where m is, NaN where tainted."""
    with np.errstate(all="ignore"):
        return np.asarray(m + np.log(s))


def value(x: Array, m: Array, s: Array) -> Array:
    """exp(x - m) / s: the probability of x under the state. NaN where m is infinite or NaN."""
    with np.errstate(all="ignore"):
        y = np.exp(x - pivot(m)) / s
        return np.asarray(np.where(np.isfinite(m), y, y.dtype.type(np.nan)))


def log_value(x: Array, m: Array, s: Array) -> Array:
    """(x - m) - log(s): the log-probability of x under the state. NaN where m is infinite or NaN."""
    with np.errstate(all="ignore"):
        y = (x - pivot(m)) - np.log(s)
        return np.asarray(np.where(np.isfinite(m), y, y.dtype.type(np.nan)))


def tree(items: Iterable[T], join: Callable[[T, T], T]) -> T:
    """`items` joined pairwise in their order, in a balanced tree. Raises ValueError where there are none."""
    # Like a binary counter: the stack holds joins of 2**k items, k falling, each waiting for its equal.
    stack: list[T] = []
    for count, item in enumerate(items, start=1):
        stack.append(item)
        while count % 2 == 0:
            right = stack.pop()
            stack.append(join(stack.pop(), right))
            count //= 2
    if not stack:
        raise ValueError("states is empty: at least one state would do (an identity, where there is no data)")
    while len(stack) > 1:
        right = stack.pop()
        stack.append(join(stack.pop(), right))
    return stack[0]


def state_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Format of m and s for data of `dtype`: float32 for floats below float64, else float64."""
    return _FLOAT32 if dtype == _FLOAT32 or dtype in _NARROW or dtype in _FLOAT8 else _FLOAT64


def real(values: ArrayLike, name: str) -> Array:
    """`values` as float64, float32, float16 or bfloat16: integers become float64, float8 becomes float32.

    Raises TypeError, naming the argument, for anything but real numbers up to float64, and for masked arrays.
    """
    if isinstance(values, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, whose mask would be lost: pass its data and where=")
    try:
        array = np.asarray(values)
    except (TypeError, RuntimeError) as error:  # tensors of PyTorch that NumPy cannot read
        hint = "t.detach().cpu().numpy() of a tensor would do, in bfloat16 of its float32"
        raise TypeError(f"{name} could not be read as an array: {error} ({hint})") from error
    if array.dtype.kind in "iub":
        return array.astype(_FLOAT64)
    if array.dtype in _FLOAT8:
        return array.astype(_FLOAT32)
    if array.dtype.newbyteorder("=") in (_FLOAT64, _FLOAT32, *_NARROW):
        return array.astype(array.dtype.newbyteorder("="), copy=False)
    raise TypeError(f"{name} holds {array.dtype}: real numbers up to float64 would do")


def reduced_axes(axis: Axis, ndim: int) -> tuple[int, ...]:
    """The axes an `axis` argument names, non-negative and sorted; empty for 0-d data.

    Raises TypeError for what is no integer, ValueError where one is out of range or named twice.
    """
    if axis is None:
        return tuple(range(ndim))
    given = [_index(a, axis) for a in (axis if isinstance(axis, tuple) else (axis,))]
    bound = max(ndim, 1)
    if any(not -bound <= a < bound for a in given):
        would = f"{-bound} to {bound - 1} would do"
        raise AxisError(f"axis={axis!r} is out of range for {ndim} dimensions: {would}")
    found = sorted(a % bound for a in given)
    if len(set(found)) != len(found):
        raise ValueError(f"axis={axis!r} names an axis twice: each axis once would do")
    return tuple(found) if ndim else ()


def _index(entry: object, axis: object) -> int:
    if isinstance(entry, bool | np.bool_) or not hasattr(entry, "__index__"):
        kind = type(entry).__name__
        raise TypeError(f"axis={axis!r} holds a {kind}: an int, a tuple of them, or None would do")
    return operator.index(entry)


def _joint(m_a: Array, m_b: Array) -> Array:
    """The larger maximum, NaN where either is. Adding 0 turns -0.0 into 0.0 and changes nothing else."""
    m = np.maximum(m_a, m_b)
    return np.asarray(m + m.dtype.type(0))


def _rows(x: Array, axes: tuple[int, ...]) -> Array:
    """`x` with the axes to be reduced as one last, contiguous axis."""
    kept = [a for a in range(x.ndim) if a not in axes]
    shape = [x.shape[a] for a in kept]
    length = math.prod(x.shape[a] for a in axes)
    return np.ascontiguousarray(x.transpose(*kept, *axes)).reshape(*shape, length)


class SoftmaxState:
    """States of rows, one for each entry of `shape`. Immutable: push and merge give a new one.

    Attributes:
        m: the true maximum of what was seen, float32 or float64, of `shape`, read-only.
        s: the sum of exp(x - m), alike.

    Equal where dtype, shape and every m and s are (NaN equals NaN). Pickles through `to_bytes`.
    """

    __slots__ = ("_m", "_s")
    __hash__ = None  # type: ignore[assignment]  # it compares by the values of arrays

    def __init__(self, m: ArrayLike, s: ArrayLike) -> None:
        """The state with this m and s (copied).

        Raises:
            TypeError: they are not both float32 or both float64.
            ValueError: shapes differ, or no data has that state: s must be positive and finite, but 0 where m
                is -inf and NaN where m is NaN.
        """
        arrays = np.asarray(m), np.asarray(s)
        if arrays[0].dtype != arrays[1].dtype or arrays[0].dtype not in (_FLOAT32, _FLOAT64):
            given = f"{arrays[0].dtype} and {arrays[1].dtype}"
            raise TypeError(f"m and s are {given}: float32 both or float64 both would do")
        if arrays[0].shape != arrays[1].shape:
            raise ValueError(f"m has shape {arrays[0].shape} and s {arrays[1].shape}: one shape would do")
        if not _possible(*arrays):
            would = "s positive and finite, (-inf, 0) or (NaN, NaN) would do"
            raise ValueError(f"m and s hold a pair that no data has: {would}")
        self._set(*arrays)

    def _set(self, m: Array, s: Array) -> None:
        # Copies of its own, in native order; m + 0 for the sign of zero, as in `_joint`.
        self._m, self._s = (np.array(a, dtype=a.dtype.newbyteorder("=")) for a in (m + m.dtype.type(0), s))
        self._m.flags.writeable = self._s.flags.writeable = False

    @classmethod
    def _wrap(cls, state: State) -> Self:
        """The state with this pair, unchecked."""
        made = cls.__new__(cls)
        made._set(*(np.asarray(part) for part in state))
        return made

    @classmethod
    def _block_state(cls, x: Array, axes: tuple[int, ...], where: Array | None) -> State:
        """(m, s) of `x` over `axes`. A hook: front ends put a faster core here.

        x is float64, float32, float16 or bfloat16 with at least one axis; axes are non-negative, sorted and
        not empty; where is bool of x's shape, or None. The result is of the other axes' shape, float32 or,
        for float64, float64.
        """
        if where is not None:
            x = np.where(where, x, x.dtype.type(-np.inf))
        kept = tuple(n for a, n in enumerate(x.shape) if a not in axes)
        return push(identity(kept, state_dtype(x.dtype)), x, axes)

    @classmethod
    def identity(cls, shape: int | tuple[int, ...] = (), dtype: DTypeLike = np.float32) -> Self:
        """States of no data. Raises TypeError for a dtype other than float32 and float64."""
        if np.dtype(dtype) not in (_FLOAT32, _FLOAT64):
            raise TypeError(f"dtype={np.dtype(dtype)} is not a state's: float32 or float64 would do")
        return cls._wrap(
            identity((operator.index(shape),) if hasattr(shape, "__index__") else tuple(shape), dtype)
        )

    @classmethod
    def of(cls, x: ArrayLike, axis: Axis = -1, *, where: ArrayLike | None = None) -> Self:
        """States of `x` over `axis`: x's shape without those axes.

        Args:
            x: real numbers of any shape. Statistics are float64 for float64 and integers, else float32.
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
        """The states after `block` too, whose shape without `axis` is this one's. Arguments, errors, cost as
        in `of`."""
        return self._joined(type(self).of(block, axis, where=where), "block")

    def merge(self, other: SoftmaxState) -> Self:
        """The states of what either has seen; float64 where either is.

        Raises TypeError where other is no state, ValueError where its shape differs.
        """
        return self._joined(_a_state(other, "other"), "other")

    @classmethod
    def merge_many(cls, states: Iterable[SoftmaxState]) -> Self:
        """All of them merged in a balanced tree; any iterable, log2 of its length held at once.

        Raises ValueError where it is empty or shapes differ, TypeError where one is no state.
        """
        own = (cls._wrap((s.m, s.s)) for s in (_a_state(given, "states") for given in states))
        return tree(own, lambda a, b: a._joined(b, "states"))

    def _joined(self, other: SoftmaxState, name: str) -> Self:
        if other.shape != self.shape:
            raise ValueError(f"{name} has states of shape {other.shape} where {self.shape} would do")
        return self._wrap(merge((self._m, self._s), (other._m, other._s)))

    @property
    def m(self) -> Array:
        return self._m

    @property
    def s(self) -> Array:
        return self._s

    @property
    def shape(self) -> tuple[int, ...]:
        return self._m.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._m.dtype

    @property
    def lse(self) -> Array:
        """Natural log of the sum of exp of all entries seen: this shape and dtype; -inf of none."""
        return lse(self._m, self._s)

    def value(self, x: ArrayLike, axis: Axis = -1, *, where: ArrayLike | None = None) -> Array:
        """Probabilities of the entries of `x` under these states: x's shape and dtype (float64 for integers).

        Where every entry of x was seen these are its softmax values. x's shape without `axis` is this one's;
        `where` gives 0 where it is False. Raises TypeError or ValueError, naming the argument.
        """
        return self._read(value, x, axis, where, 0)

    def log_value(self, x: ArrayLike, axis: Axis = -1, *, where: ArrayLike | None = None) -> Array:
        """Log-probabilities: as `value`, with -inf where `where` is False."""
        return self._read(log_value, x, axis, where, -np.inf)

    def _read(self, law: _Law, x: ArrayLike, axis: Axis, where: ArrayLike | None, fill: float) -> Array:
        array = real(x, "x")
        axes, mask = reduced_axes(axis, array.ndim), mask_of(where, array.shape)
        kept = tuple(n for a, n in enumerate(array.shape) if a not in axes)
        if kept != self.shape:
            would = f"rows of shape {self.shape} would do"
            raise ValueError(f"x of shape {array.shape} has rows of shape {kept} over axis={axis!r}: {would}")
        wide = array.astype(np.promote_types(self.dtype, state_dtype(array.dtype)), copy=False)
        y = law(wide, np.expand_dims(self._m, axes), np.expand_dims(self._s, axes))
        if mask is not None:
            y = np.where(mask, y, y.dtype.type(fill))
        given = np.asarray(x).dtype
        # A log-probability may be past the range of a narrow format: its infinity (or NaN) is the rounded
        # value.
        with np.errstate(over="ignore", invalid="ignore"):
            return y.astype(array.dtype if given.kind in "iub" else given.newbyteorder("="), copy=False)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SoftmaxState):
            return NotImplemented
        if self.dtype != other.dtype or self.shape != other.shape:
            return False
        pairs = (self._m, other._m), (self._s, other._s)
        return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(m={self._m!r}, s={self._s!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_bytes, (self.to_bytes(),)

    def to_bytes(self) -> bytes:
        """The states as bytes, the same on every machine: 16 bytes and 8 an axis around m and s (see
        `wire`)."""
        return wire.pack(_KIND, (self._m, self._s))

    @classmethod
    def from_bytes(cls, data: bytes | bytearray | memoryview) -> Self:
        """What `to_bytes` wrote.

        Raises TypeError where data is not bytes; ValueError where a byte is missing, extra or changed, or
        where a pair is one that no data has.
        """
        return cls(*wire.unpack(data, _KIND, 2))


#: What `wire` calls this kind of state.
_KIND: Final = 1


def _possible(m: Array, s: Array) -> bool:
    """Whether some data has these statistics, pair by pair."""
    seen = (s > 0) & np.isfinite(s) & (m > -np.inf)
    none = (m == -np.inf) & (s == 0) & ~np.signbit(s)
    return bool(np.all(seen | none | (np.isnan(m) & np.isnan(s))))


def _a_state(given: SoftmaxState, name: str) -> SoftmaxState:
    if not isinstance(given, SoftmaxState):
        raise TypeError(f"{name} holds a {type(given).__name__}: a SoftmaxState would do")
    return given


def mask_of(where: ArrayLike | None, shape: tuple[int, ...]) -> Array | None:
    if where is None:
        return None
    mask = np.asarray(where)
    if mask.dtype != np.bool_:
        raise TypeError(f"where holds {mask.dtype}: bool would do, True where an entry takes part")
    try:
        return np.broadcast_to(mask, shape)
    except ValueError as error:
        raise ValueError(f"where has shape {mask.shape}: one that broadcasts to {shape} would do") from error

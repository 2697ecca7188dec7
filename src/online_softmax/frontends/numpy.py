"""softmax, log_softmax, logsumexp and softmax_topk of NumPy arrays.

Arguments common to all four:

x
    Real numbers of any shape, strides, alignment and byte order; also lists and scalars. Served as they
    are: float64, float32, float16 and, from ml_dtypes, bfloat16, float8_e4m3fn, float8_e5m2 (computed in
    float32). Integers and bool count as float64. Complex, longdouble, object and string arrays, and masked
    arrays, raise TypeError. Arrays of other libraries are answered in their own kind: docs/arrays.md.
axis, dim
    One argument under two names: an int, a tuple of ints, or (axis only) None for all axes together. The
    default is the last axis, as in PyTorch and JAX; SciPy's is None.
order
    "row": a row's bits depend on the row, the format, the instruction set and the algorithm alone.
    "any": they depend on the elements of the row alone, in whatever order or in how many parts they were
    read, on how many threads, by which instruction set, device or build (docs/same_bits.md). `algorithm` is
    then "auto", "cached" or "online", which give the same bits, and `precision` "exact". A probability below
    2**-125 (float64: 2**-1021) is 0.
algorithm, precision, isa, threads
    Force a choice that is otherwise made from the sizes and the machine; `online_softmax.info()` lists what
    there is. algorithm: "cached" (a row is read from memory once and its exponentials are kept), "online"
    (statistics in one read, results in a second), "three_pass" (maximum, sum, results), "naive" (no maximum
    taken out: it overflows to NaN from logits of 89 on and is there to be compared with), or "auto": what
    ONLINE_SOFTMAX_ALGORITHM was when the package was imported, else the fastest for the size.
    precision: "exact" rounds once; "fast" may be off by one ulp in float16, and by 2**-6 relatively in
    bfloat16 (2**-7 in most rows), whose softmax it may flush to 0 below 2**-126. Other formats, and
    log_softmax, ignore it.

A row with a NaN is NaN throughout. One with +inf has softmax and log_softmax NaN, logsumexp +inf; one of
-inf alone has NaN, NaN and -inf. Nothing to sum, by an empty axis or by `where=`, gives logsumexp -inf. All
lse are natural logs. The law in use (one mergeable pair, maximum and shifted sum): Milakov and Gimelshein
2018, arXiv:1805.02867.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import _core, cpu, cpu_exact, exact_state, state
from . import arrays, checks
from .checks import LAST_AXIS, Array

# Identity tests against these keep the way to the small-call path at a fraction of a microsecond.
_ndarray = np.ndarray
_MINUS_ONE = -1
_AUTO = "auto"
_EXACT = "exact"
_ROW = "row"
_PLAIN = arrays.PLAIN


class TopK(NamedTuple):
    """Result of `softmax_topk`."""

    values: Array
    indices: Array
    lse: Array


class SoftmaxState(state.SoftmaxState):
    """`online_softmax.state.SoftmaxState` whose block states come from the native core."""

    @classmethod
    def _block_state(cls, x: Array, axes: tuple[int, ...], where: Array | None) -> tuple[Array, Array]:
        return cpu.state(checks.aligned(x), axes, where=where)


class ExactState(exact_state.ExactState):
    __doc__ = exact_state.ExactState.__doc__

    @classmethod
    def _block_state(cls, x: Array, axes: tuple[int, ...], where: Array | None) -> tuple[Array, Array]:
        return cpu_exact.state(checks.aligned(x), axes, where=where)

    @classmethod
    def _joint(cls, a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
        return cpu_exact.merge(a, b)

    @classmethod
    def _lse(cls, pair: tuple[Array, Array]) -> Array:
        return cpu_exact.lse(*pair)

    @classmethod
    def _normalized(cls, x: Array, pair: tuple[Array, Array], axes: tuple[int, ...], log: bool) -> Array:
        out = np.empty(x.shape, x.dtype)
        cpu_exact.normalize(checks.aligned(x), *pair, out, axes, log=log)
        return out


def softmax(
    x: Any, axis: Any = LAST_AXIS, *, dim: Any = None, where: Any = None, out: Array | None = None,
    dtype: Any = None, algorithm: str = "auto", precision: str = "exact", order: str = "row",
    isa: str | None = None, threads: int | None = None,
) -> Array:  # fmt: skip
    """exp(x) / sum(exp(x)) over `axis`: an array of x's shape in [0, 1].

    Args:
        where: bool, broadcastable to x's shape: True takes part. The rest is never read into arithmetic and
            gives 0; a row with nothing left gives zeros.
        out: array of x's shape and the result's format, written and returned: x itself, or memory apart
            from it.
        dtype: format of the result; x is rounded to it first. Default: x's own, float64 for integers.
        order: "row": the bits of a row depend on the row, its layout, the format, the instruction set and the
            algorithm. "any": on its elements alone, in whatever order, parts, threads or machine
            (docs/same_bits.md).

    Raises:
        RuntimeError: with order="any", arithmetic that is not as IEEE 754 has it, rounded to nearest.
        TypeError: x, axis, where, out, dtype, threads of a wrong kind.
        ValueError: axis out of range or twice; axis and dim both given; where not broadcastable; out of
            another shape, read-only, or overlapping x in part; an unknown algorithm, precision, order or
            isa.

    Cost: one read of x from memory while a row fits a core's cache, two beyond, and one write. Two
    exponentials an element at most. No temporary, but a copy of x where it has to be converted.
    """
    if (
        type(x) is _ndarray and (axis is LAST_AXIS or axis is _MINUS_ONE) and algorithm is _AUTO
        and where is None and dtype is None and dim is None and isa is None
        and (threads is None or (type(threads) is int and threads > 0))
        and precision is _EXACT and order is _ROW
    ):  # fmt: skip
        if out is None:
            small: Array | None = _core.softmax_small(x)
            if small is not None:
                return small
        elif type(out) is _ndarray and _core.softmax_small_out(x, out):
            return out
    if type(x) not in _PLAIN or type(where) not in _PLAIN or type(out) not in _PLAIN:
        found = arrays.elsewhere(_SERVED_SOFTMAX, {
            "x": x, "axis": axis, "dim": dim, "where": where, "out": out, "dtype": dtype,
            "algorithm": algorithm, "precision": precision, "order": order, "isa": isa,
            "threads": threads,
        })  # fmt: skip
        if found is not NotImplemented:
            return found  # type: ignore[no-any-return]  # the caller's kind of array
    return _rows(x, axis, dim, where, out, dtype, order, False, (algorithm, precision, isa, threads))


def log_softmax(
    x: Any, axis: Any = LAST_AXIS, *, dim: Any = None, where: Any = None, out: Array | None = None,
    dtype: Any = None, algorithm: str = "auto", precision: str = "exact", order: str = "row",
    isa: str | None = None, threads: int | None = None,
) -> Array:  # fmt: skip
    """x - logsumexp(x) over `axis`, without the cancellation of that formula: 0 at most,
    of x's shape.

    Arguments, errors and cost as for `softmax`; what `where` leaves out gives -inf (NaN in float8_e4m3fn,
    which has no infinity). Near 0 the result keeps its relative accuracy: the largest term is taken out of
    the sum (log1p). With order="any" it does down to about 1e-11 (float64: 1e-27); the grid of that state
    ends at 2**-44 (2**-96) of the largest term.
    """
    if (
        type(x) is _ndarray and (axis is LAST_AXIS or axis is _MINUS_ONE) and algorithm is _AUTO
        and where is None and dtype is None and dim is None and isa is None
        and (threads is None or (type(threads) is int and threads > 0))
        and precision is _EXACT and order is _ROW
    ):  # fmt: skip
        if out is None:
            small: Array | None = _core.log_softmax_small(x)
            if small is not None:
                return small
        elif type(out) is _ndarray and _core.log_softmax_small_out(x, out):
            return out
    if type(x) not in _PLAIN or type(where) not in _PLAIN or type(out) not in _PLAIN:
        found = arrays.elsewhere(_SERVED_LOG_SOFTMAX, {
            "x": x, "axis": axis, "dim": dim, "where": where, "out": out, "dtype": dtype,
            "algorithm": algorithm, "precision": precision, "order": order, "isa": isa,
            "threads": threads,
        })  # fmt: skip
        if found is not NotImplemented:
            return found  # type: ignore[no-any-return]  # the caller's kind of array
    return _rows(x, axis, dim, where, out, dtype, order, True, (algorithm, precision, isa, threads))


def logsumexp(
    x: Any, axis: Any = LAST_AXIS, *, dim: Any = None, b: Any = None, where: Any = None,
    keepdims: bool = False, return_sign: bool = False, algorithm: str = "auto", order: str = "row",
    isa: str | None = None, threads: int | None = None,
) -> Any:  # fmt: skip
    """log(sum(b * exp(x))) over `axis`: x's shape without the reduced axes, in x's format.

    Args:
        b: real weights, broadcastable to x's shape, default 1. An element of weight 0 drops out whatever x
            holds there.
        where: bool, broadcastable to x's shape: True takes part.
        keepdims: keep each reduced axis with length 1.
        return_sign: return the pair (log(abs(sum)), sign) with sign -1, 0 or 1; a negative sum
            gives NaN otherwise.
        order: as for `softmax`, without weights.

    Raises: as `softmax`; TypeError or ValueError for b alike.

    Within 1/4 of 0 the sum is made in double, so that results near 0 keep their relative accuracy; with
    weights they do not, and with order="any" their error is absolute. A float16 or bfloat16 result is rounded
    to that format; the `lse` of `softmax_topk` and of a state is not.

    Cost: one read of x. Weights are read as float64 and the exponentials are then made in double. A
    scalar is returned where no axis is left.
    """
    if (
        type(x) is _ndarray and (axis is LAST_AXIS or axis is _MINUS_ONE) and algorithm is _AUTO
        and b is None and where is None and keepdims is False and return_sign is False and dim is None
        and isa is None
        and (threads is None or (type(threads) is int and threads > 0)) and order is _ROW
    ):  # fmt: skip
        small = _core.logsumexp_small(x)
        if small is not None:
            return small
    if type(x) not in _PLAIN or type(b) not in _PLAIN or type(where) not in _PLAIN:
        other = arrays.elsewhere(_SERVED_LOGSUMEXP, {
            "x": x, "axis": axis, "dim": dim, "b": b, "where": where, "keepdims": keepdims,
            "return_sign": return_sign, "algorithm": algorithm, "order": order, "isa": isa,
            "threads": threads,
        })  # fmt: skip
        if other is not NotImplemented:
            return other
    exact = checks.order(order)
    keepdims, return_sign = checks.flag(keepdims, "keepdims"), checks.flag(return_sign, "return_sign")
    given = checks.array(x, "x")
    target = checks.result_dtype(given.dtype, None)
    over = checks.axes(axis, dim, given.ndim)
    values = checks.cast(given, checks.compute_dtype(target))
    keep, weights = checks.mask(where, given.shape), checks.weights(b, given.shape)
    rows, reduced = values, over
    if not over:
        rows, keep, weights, reduced = _as_rows(values), _as_rows(keep), _as_rows(weights), (given.ndim,)
    sign: Array | None = None
    if exact:
        checks.any_order(algorithm)
        if weights is not None:
            raise ValueError("b with order='any' is not built: b=None, or order='row', would do")
        lse = cpu_exact.logsumexp(rows, reduced, where=keep, isa=isa, threads=threads)
    else:
        lse, sign = cpu.logsumexp(
            rows, reduced, b=weights, where=keep, algorithm=algorithm, isa=isa, threads=threads
        )
    if sign is not None and not return_sign:
        lse = np.where(sign < 0, np.nan, lse)
    if return_sign and sign is None:
        sign = cpu.sign_of(lse)
    found = [checks.cast(np.asarray(a), target) for a in ((lse, sign) if return_sign else (lse,))]
    if keepdims:
        found = [np.expand_dims(a, over) for a in found]
    # a[()] makes a scalar of a 0-d array, as numpy's own reductions do, and leaves the others alone.
    return (found[0][()], found[1][()]) if return_sign else found[0][()]


@arrays.routed
def softmax_topk(
    x: Any, k: int, axis: Any = LAST_AXIS, *, dim: Any = None, order: str = "row",
    isa: str | None = None, threads: int | None = None,
) -> TopK:  # fmt: skip
    """The k largest softmax values over one axis, their indices, and the lse of the whole row, in one read
    of x.

    Returns: `TopK(values, indices, lse)`. values: probabilities in x's format, x's shape with k in place of
    the axis, descending by logit, ties by the lower index (NaN counts as the largest). indices: int64, the
    same shape. lse: x's shape without the axis; float32, or float64 where x is.

    order: as for `softmax`; which entries come first no order changes.

    Raises: as `softmax`; ValueError for k outside 0 to the axis' length, and for a 0-d x.

    Cost: one read of x, one exponential an element, and about log2(k) comparisons for each entry that is
    among the k largest so far: of rows in random order some k*log(n/k) are.
    """
    exact = checks.order(order)
    given = checks.array(x, "x")
    target = checks.result_dtype(given.dtype, None)
    over = checks.single_axis(axis, dim, given.ndim)
    entries = checks.count(k, given.shape[over])
    values = checks.cast(given, checks.compute_dtype(target))
    top, indices, lse = cpu.topk(values, entries, over, isa=isa, threads=threads)
    if exact:  # which entries they are no order changes
        m, a = cpu_exact.state(values, (over,), isa=isa, threads=threads)
        chosen = np.take_along_axis(values, indices, over)
        cpu_exact.normalize(chosen, m, a, top, (over,), isa=isa, threads=threads)
        lse = cpu_exact.lse(m, a)
    return TopK(checks.cast(top, target), indices, lse[()])


_SERVED_SOFTMAX = arrays.served(softmax)
_SERVED_LOG_SOFTMAX = arrays.served(log_softmax)
_SERVED_LOGSUMEXP = arrays.served(logsumexp)


def _rows(
    x: Any,
    axis: Any,
    dim: Any,
    where: Any,
    out: Any,
    dtype: Any,
    order: Any,
    log: bool,
    choice: tuple[Any, ...],
) -> Array:
    """The general path of `softmax` and `log_softmax`."""
    exact = checks.order(order)
    given = checks.array(x, "x")
    target = checks.result_dtype(given.dtype, dtype)
    over = checks.axes(axis, dim, given.ndim)
    keep = checks.mask(where, given.shape)
    # Against the caller's own x: `given` is a copy where bytes had to be swapped or aligned.
    asked = checks.output(out, x if isinstance(x, np.ndarray) else given, target, keep)
    compute = checks.compute_dtype(target)
    values = checks.cast(given, target, compute)
    direct = asked is not None and compute == target and asked.flags.aligned
    result = asked if asked is not None and direct else cpu.empty(given.shape, compute, like=values)
    algorithm, precision, isa, threads = choice
    if exact:
        checks.any_order(algorithm, precision)
    rows, written, reduced = values, result, over
    if not over:
        rows, written, keep, reduced = _as_rows(values), _as_rows(result), _as_rows(keep), (given.ndim,)
    if exact:
        cpu_exact.softmax(rows, written, reduced, where=keep, log=log, isa=isa, threads=threads)
    else:
        cpu.softmax(
            rows, written, reduced, where=keep, log=log,
            isa=isa, algorithm=algorithm, threads=threads, precision=precision,
        )  # fmt: skip
    if asked is None:
        return checks.cast(result, target)
    if not direct:
        asked[...] = checks.cast(result, target)
    return out  # type: ignore[no-any-return]


def _as_rows(a: Any) -> Any:
    """A view in which every element is a row of its own: how 0-d arrays and `axis=()` reach the core."""
    return None if a is None else a[..., None]

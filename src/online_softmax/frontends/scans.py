"""Log-sum-exps of pairs and of prefixes of NumPy arrays, and their gradients.

Everything is computed in double and rounded once to the format of the result. Operands as in
`online_softmax.softmax`: real numbers of any strides, alignment and byte order, read-only too; integers count
as float64, float8 formats are computed in float32.

A state is never taken from a rounded logarithm: what goes from one step to the next is the maximum and the
sum of the other exponentials, so that m + log1p(sum) keeps a tail of 1e-20 beside a maximum of 0. A result is
off by a few units of roundoff of float64 times the greater of the maximum's size and the logarithm's, before
its rounding to the format.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .. import cpu, cpu_scans
from . import arrays, checks
from .checks import LAST_AXIS, Array


class PairGradients(NamedTuple):
    """Gradients of the two operands of `logaddexp`."""

    a: Array
    b: Array


@arrays.routed
def logaddexp(
    a: Any, b: Any, *, out: Array | None = None, isa: str | None = None, threads: int | None = None
) -> Any:
    """log(exp(a) + exp(b)), element by element: of the shape and format that a and b broadcast to.

    Args:
        a, b: real numbers. A Python number takes the other operand's format; any other integer makes the
            result float64.
        out: array of the result's shape and format, written and returned: the memory of a or b with the same
            strides, or apart from both.
        isa, threads: as in `softmax`.

    Returns: +inf where either is +inf, -inf where both are -inf, NaN where either is NaN. Near 0, where
    max + log1p(exp(-distance)) would cancel, some 100 bits are carried. A float64 result of any size is off
    by 4 ulp at most, or by 2**-98 of the greater operand where that is more; narrower ones by 0.51 ulp.

    Raises: TypeError and ValueError, naming the argument, for operands that are not real, shapes that do not
    broadcast, and an out that does not fit, before anything is computed.

    Cost: two reads and one write; one exponential and one logarithm an element.
    """
    target = _promoted(a, b)
    left, right = checks.array(a, "a"), checks.array(b, "b")
    shape = _shape_of(left, right)
    compute = checks.compute_dtype(target)
    # Against the callers' own arrays: `left` and `right` are copies where bytes had to be swapped or aligned.
    asked = None
    for given, array, name in ((a, left, "a"), (b, right, "b")):
        whole = np.broadcast_to(given if isinstance(given, np.ndarray) else array, shape)
        asked = checks.output(out, whole, target, None, name)
    left, right = (np.broadcast_to(checks.cast(x, target, compute), shape) for x in (left, right))
    direct = asked is not None and compute == target and asked.flags.aligned
    result = asked if asked is not None and direct else cpu.empty(shape, compute)
    cpu_scans.add(left, right, result, isa=isa, threads=threads)
    if asked is None:
        return checks.cast(result, target)[()]
    if not direct:
        asked[...] = checks.cast(result, target)
    return out


@arrays.routed
def logaddexp_vjp(dout: Any, a: Any, b: Any) -> PairGradients:
    """Gradients of a and b from dout, the gradient of `logaddexp(a, b)`: PairGradients(a, b).

    dout times the logistic functions of a - b and b - a, from exp(-|a - b|): nothing overflows. Each has its
    operand's shape (summed over what was broadcast) and format (float64 for integers). 0 where both are
    -inf, so that the order of adding does not matter to gradients either; NaN where either is +inf or NaN.

    dout broadcasts to the result's shape. Raises as `logaddexp`. Cost: float64 temporaries, in NumPy.
    """
    left, right = checks.array(a, "a"), checks.array(b, "b")
    shape = _shape_of(left, right)
    g = gradient_of(dout, shape)
    p, q = (np.broadcast_to(x.astype(np.float64), shape) for x in (left, right))
    with np.errstate(all="ignore"):
        m, distance = np.maximum(p, q), p - q
        e = np.exp(-np.abs(distance))
        great, small = 1 / (1 + e), e / (1 + e)
        odd = np.where(np.isneginf(m), 0.0, np.nan)
        shares = (np.where(distance >= 0, great, small), np.where(distance >= 0, small, great))
        nothing = np.isneginf(m)
        parts = [np.where(nothing, 0, g * np.where(np.isfinite(m), share, odd)) for share in shares]
    return PairGradients(
        *(_summed(part, x.shape, x.dtype) for part, x in zip(parts, (left, right), strict=True))
    )


@arrays.routed
def logcumsumexp(
    x: Any, axis: Any = LAST_AXIS, *, reverse: bool = False, exclusive: bool = False,
    out: Array | None = None, dim: Any = None, isa: str | None = None, threads: int | None = None,
) -> Any:  # fmt: skip
    """log(sum(exp(x[:i + 1]))) for every i along one axis: x's shape and format.

    Args:
        reverse: of suffixes, x[i:], in place of prefixes.
        exclusive: without x[i] itself: the first result (the last, with `reverse`) is -inf.
        out: array of x's shape and format, written and returned: x itself, or memory apart from it.
        axis, dim, isa, threads: as in `softmax`; axis is one int.

    Returns: -inf as long as only -inf has been seen, +inf from the first +inf on, NaN from the first NaN on.
    A row's bits depend on its values, format and instruction set alone: not on threads, strides, axis or
    other rows. Rows are cut every 32768 elements wherever they lie; each piece starts from the merged states
    of those before it. Exclusive results are the inclusive ones, one place later, bit for bit.

    Raises: TypeError and ValueError, naming the argument, before anything is computed.

    Cost: one read and one write, one exponential and one logarithm an element; rows longer than 32768 are
    read twice and have two exponentials. Long rows are shared out among threads by their pieces.
    """
    given = checks.array(x, "x")
    target = checks.result_dtype(given.dtype, None)
    reverse, exclusive = checks.flag(reverse, "reverse"), checks.flag(exclusive, "exclusive")
    place = scanned_axis(axis, dim, given.ndim)
    asked = checks.output(out, x if isinstance(x, np.ndarray) else given, target, None)
    compute = checks.compute_dtype(target)
    values = checks.cast(given, target, compute)
    direct = asked is not None and compute == target and asked.flags.aligned
    result = asked if asked is not None and direct else cpu.empty(given.shape, compute, like=values)
    rows, written = (np.atleast_1d(array) for array in (values, result))
    if reverse:
        rows, written = np.flip(rows, place), np.flip(written, place)
    cpu_scans.prefixes(rows, written, place, exclusive, isa=isa, threads=threads)
    if asked is None:
        return checks.cast(result, target)[()]
    if not direct:
        asked[...] = checks.cast(result, target)
    return out


@arrays.routed
def logcumsumexp_vjp(
    dout: Any, x: Any, axis: Any = LAST_AXIS, *, reverse: bool = False, exclusive: bool = False,
    dim: Any = None, isa: str | None = None, threads: int | None = None,
) -> Any:  # fmt: skip
    """The gradient of x from dout, that of `logcumsumexp(x, axis)`: sum over i of dout[i]*softmax(x[:i + 1]).

    Args:
        dout: broadcasts to x's shape. What it holds at prefixes that are all -inf is not read.
        The others: as in `logcumsumexp`.

    Returns: x's shape and format. A prefix that is all -inf adds 0; a row that holds a NaN or +inf has
    gradient NaN.

    Raises: as `logcumsumexp`; ValueError where dout does not broadcast.

    Cost: two reads of x, one of dout, one write; three exponentials and one logarithm an element, scratch of
    a row in float64 a thread. Rows are shared out among threads, one row is not. With lse of size L the
    result is off by some L units of roundoff of float64, relatively to the sum of the terms' sizes.
    """
    given = checks.array(x, "x")
    target = checks.result_dtype(given.dtype, None)
    reverse, exclusive = checks.flag(reverse, "reverse"), checks.flag(exclusive, "exclusive")
    place = scanned_axis(axis, dim, given.ndim)
    compute = checks.compute_dtype(target)
    g = gradient_of(dout, given.shape)

    def turned(array: Array) -> Array:
        last = np.moveaxis(np.atleast_1d(array), place, -1)
        return last[..., ::-1] if reverse else last

    rows = turned(checks.cast(given, target, compute))
    # float64 gradients of narrow operands would be rounded twice: everything is widened then.
    wide = (
        compute if compute == np.float32 and np.result_type(g, compute) == compute else np.dtype(np.float64)
    )
    up = turned(g)
    if exclusive:
        up = np.concatenate([up[..., 1:], np.zeros_like(up[..., :1])], axis=-1) if up.shape[-1] else up
    shape = rows.shape
    flat = (-1, shape[-1]) if rows.size else (0, 1)
    dx = cpu_scans.prefixes_gradient(
        np.ascontiguousarray(rows, wide).reshape(flat), np.ascontiguousarray(up, wide).reshape(flat),
        isa=isa, threads=threads,
    ).reshape(shape)  # fmt: skip
    result = np.moveaxis(dx[..., ::-1] if reverse else dx, -1, place).reshape(given.shape)
    return checks.cast(np.ascontiguousarray(result).reshape(given.shape), target)[()]


def scanned_axis(axis: Any, dim: Any, ndim: int) -> int:
    """The one axis of a scan; of a 0-d operand, one row of one element, axis 0."""
    if ndim:
        return checks.single_axis(axis, dim, ndim)
    checks.axes(axis, dim, 0)
    return 0


def gradient_of(dout: Any, shape: tuple[int, ...]) -> Array:
    """The result's gradient as real numbers, broadcast to a result's shape. ValueError where it is not."""
    g = checks.array(dout, "dout")
    g = checks.cast(g, checks.compute_dtype(checks.result_dtype(g.dtype, None)))
    if g.dtype.itemsize < 4:
        g = g.astype(np.float32)
    try:
        return np.broadcast_to(g, shape)
    except ValueError as error:
        raise ValueError(
            f"dout has shape {g.shape}: one that broadcasts to the result's, {shape}, would do"
        ) from error


def _shape_of(a: Array, b: Array) -> tuple[int, ...]:
    try:
        return checks.common_shape(a.shape, b.shape)
    except ValueError as error:
        shapes = f"a has shape {a.shape} and b {b.shape}"
        raise ValueError(f"{shapes}: shapes that broadcast to each other would do") from error


def _promoted(a: Any, b: Any) -> checks.DType:
    """Format of a result of two operands: NumPy's rule, float64 for integers; Python numbers are weak."""
    weak = [type(x) in (int, float, bool) for x in (a, b)]
    formats = [
        checks.result_dtype(checks.array(x, name).dtype, None)
        for x, name, number in zip((a, b), "ab", weak, strict=True)
        if not number or all(weak)
    ]
    try:
        return checks.result_dtype(np.result_type(*formats), None)
    except TypeError as error:
        names = " and ".join(f.name for f in formats)
        raise TypeError(
            f"a and b are {names}, which promote to no common format: one format would do"
        ) from error


def _summed(part: Array, shape: tuple[int, ...], dtype: checks.DType) -> Any:
    """A gradient with respect to what was broadcast from `shape`: summed over its copies, in its format."""
    lead = part.ndim - len(shape)
    copied = tuple(d for d in range(part.ndim) if d < lead or shape[d - lead] != part.shape[d])
    with np.errstate(all="ignore"):
        total = np.asarray(part.sum(axis=copied)) if copied else part
    return checks.cast(total.reshape(shape), checks.result_dtype(dtype, None))[()]

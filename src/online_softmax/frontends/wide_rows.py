"""The law for numbers that the native core does not serve, in NumPy: complex ones and longdouble.

A row is its greatest element t (by real parts), the element's weight w, and the ratio r of all other terms to
its own, so that the sum is w * exp(t) * (1 + r): nothing overflows, and where r is small log1p keeps it.
complex64 is computed in complex128. An infinity or NaN among the greatest leaves it to C's rules for exp and
log of the plain sum.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .checks import Array

_WIDEST = np.dtype(np.float64).itemsize


class _Sums(NamedTuple):
    """Of each row, along a last axis of length 1."""

    #: The element that is greatest by its real part, and its weight.
    top: Array
    weight: Array
    #: All other terms together, over the greatest's own.
    ratio: Array


class _Logs(NamedTuple):
    """Of each row's sum: log(abs(sum)), the angle in (-pi, pi], and sum / abs(sum) or 0."""

    size: Array
    angle: Array
    sign: Array


def serves(dtype: np.dtype[Any]) -> bool:
    """Whether numbers of this format are to be computed here."""
    return dtype.kind == "c" or (dtype.kind == "f" and dtype.itemsize > _WIDEST)


def softmax(x: Array, over: tuple[int, ...], log: bool) -> Array:
    """Softmax, or log-softmax, over `over`, of x's shape and format. A row has at least one entry."""
    if not x.size:
        return x.copy()
    rows = _as_rows(x.astype(_computed(x.dtype)), over)
    with np.errstate(all="ignore"):
        found = _sums(rows, None)
        if log:
            finite = np.isfinite(found.top)
            plain = np.log(np.sum(np.exp(rows), axis=-1, keepdims=True))
            less = np.where(finite, _log1p(found.ratio), plain)
            result = rows - np.where(finite, found.top, 0) - less
        else:
            e = np.exp(rows - found.top)
            result = e / np.sum(e, axis=-1, keepdims=True)
        kept = [n for d, n in enumerate(x.shape) if d not in over]
        apart = result.reshape(kept + [x.shape[d] for d in over]).astype(x.dtype)
    return np.moveaxis(apart, range(len(kept), x.ndim), over)


def logsumexp(
    a: Array, b: Array | None, over: tuple[int, ...], keepdims: bool, return_sign: bool, dtype: np.dtype[Any]
) -> Any:
    """log(sum(b * exp(a))) in format `dtype`, one that `serves` names; with the sign where that is wanted.

    b has a's shape.
    """
    work = _computed(dtype)
    rows = _as_rows(a.astype(work), over)
    weights = None if b is None else _as_rows(b.astype(work), over)
    real = np.zeros(0, dtype).real.dtype
    with np.errstate(all="ignore"):
        found = _logs(rows, weights)
        if return_sign:
            made = [found.size.astype(real), found.sign.astype(dtype)]
        elif dtype.kind == "c":
            # By its parts: 1j * angle makes a NaN of an infinite size.
            whole = np.empty(found.size.shape, dtype)
            whole.real, whole.imag = found.size, found.angle
            made = [whole]
        else:
            made = [np.where(found.sign < 0, np.nan, found.size).astype(dtype)]
    shape = [1 if d in over else n for d, n in enumerate(a.shape) if keepdims or d not in over]
    results = [r.reshape(shape)[()] for r in made]
    return (results[0], results[1]) if return_sign else results[0]


def _computed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.promote_types(dtype, np.complex128) if dtype.kind == "c" else dtype


def _as_rows(x: Array, over: tuple[int, ...]) -> Array:
    """(rows..., entries): the reduced axes together, last."""
    kept = [d for d in range(x.ndim) if d not in over]
    length = math.prod(x.shape[d] for d in over)
    return x.transpose([*kept, *over]).reshape([*(x.shape[d] for d in kept), length])


def _sums(rows: Array, weights: Array | None) -> _Sums:
    """Weights of 0 go with rows of -inf."""
    place = np.argmax(rows, axis=-1, keepdims=True)
    top = np.take_along_axis(rows, place, axis=-1)
    terms = np.exp(rows - top)
    weight = np.ones_like(top)
    if weights is not None:
        terms, weight = terms * weights, np.take_along_axis(weights, place, axis=-1)
    np.put_along_axis(terms, place, 0, axis=-1)
    return _Sums(top, weight, np.sum(terms, axis=-1, keepdims=True) / weight)


def _logs(rows: Array, weights: Array | None) -> _Logs:
    if not rows.shape[-1]:
        empty = rows.shape[:-1]
        zeros = np.zeros(empty, rows.dtype)
        return _Logs(np.full(empty, -np.inf), zeros.real, zeros)
    if weights is not None:
        rows = np.where(weights == 0, -np.inf, rows)
    found = _sums(rows, weights)
    e = np.exp(rows)
    plain = np.sum(e if weights is None else np.where(weights == 0, 0, weights * e), axis=-1, keepdims=True)
    size = found.top.real + np.log(np.abs(found.weight)) + _log1p(found.ratio).real
    sign = np.exp(1j * found.top.imag) if np.iscomplexobj(rows) else np.ones_like(found.top)
    sign = sign * _unit(found.weight) * _unit(1 + found.ratio)
    # Weights that cancel exactly make a size of -inf about a finite element.
    good = np.isfinite(found.top.real) & (size < np.inf)
    size = np.where(good, size, np.log(np.abs(plain)))
    angle = np.angle(np.where(good, sign, plain))
    sign = np.where(good, sign, _unit(plain))
    return _Logs(*(part[..., 0] for part in (size, np.where(angle == -np.pi, np.pi, angle), sign)))


def _unit(z: Array) -> Array:
    """z / abs(z), and 0 for 0."""
    return np.asarray(np.where(z == 0, 0, z / np.abs(z)) if np.iscomplexobj(z) else np.sign(z))


def _log1p(r: Array) -> Array:
    """log(1 + r); of real numbers log(abs(1 + r))."""
    if not np.iscomplexobj(r):
        return np.asarray(np.log1p(np.where(r < -1, -2 - r, r)))
    x, y, made = r.real, r.imag, np.asarray(np.log(1 + r))
    made.real = np.where(np.abs(r) < 0.5, np.log1p(x * (2 + x) + y * y) / 2, made.real)
    return made

"""Statistics, softmax and log-sum-exp of rows whose bits depend on the elements alone: `exact`, native.

Arrays as in `cpu`: a served dtype, any strides. float16 and bfloat16 count as their float32 upcast, results
are rounded to the format once. NaN, infinities and empty rows as in `cpu`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import exact

Array = NDArray[Any]


def _rows(x: Array, axes: tuple[int, ...], where: Array | None) -> Array:
    """x in the dtype of its format, the axes to be reduced last and one; what `where` leaves out is -inf."""
    kept = tuple(a for a in range(x.ndim) if a not in axes)
    wide = x.astype(exact.format_of(x.dtype).dtype)
    if where is not None:
        wide = np.where(where, wide, wide.dtype.type(-np.inf))
    turned = wide.transpose(*kept, *axes)
    return np.ascontiguousarray(turned).reshape(*turned.shape[: len(kept)], -1 if wide.size else 0)


def state(
    x: Array,
    axes: tuple[int, ...],
    *,
    where: Array | None = None,
    isa: str | None = None,
    threads: int | None = None,
) -> exact.State:
    """States (m, a) of x over `axes`, which are removed; a has a last axis of `Format.slices`."""
    return exact.state(_rows(x, axes, where), exact.format_of(x.dtype))


def logsumexp(
    x: Array,
    axes: tuple[int, ...],
    *,
    where: Array | None = None,
    isa: str | None = None,
    threads: int | None = None,
) -> Array:
    """Log-sum-exp over `axes`, which are removed; float64 where x is, else float32."""
    return exact.lse(*state(x, axes, where=where, isa=isa, threads=threads), exact.format_of(x.dtype))


def softmax(
    x: Array,
    out: Array,
    axes: tuple[int, ...],
    *,
    where: Array | None = None,
    log: bool = False,
    isa: str | None = None,
    threads: int | None = None,
) -> None:
    """Softmax, or log-softmax, of x over `axes` into `out`: x's shape and dtype, x itself or memory apart.

    What `where` leaves out gives 0, or -inf; a row with nothing left alike.
    """
    m, a = state(x, axes, where=where, isa=isa, threads=threads)
    normalize(x, m, a, out, axes, log=log, isa=isa, threads=threads)
    if where is not None:
        out[np.broadcast_to(~where, out.shape)] = -np.inf if log else 0


def normalize(
    x: Array,
    m: Array,
    a: Array,
    out: Array,
    axes: tuple[int, ...],
    *,
    log: bool = False,
    isa: str | None = None,
    threads: int | None = None,
) -> None:
    """The write pass alone: probabilities, or their logarithms, of x under states of longer rows."""
    form = exact.format_of(x.dtype)
    m = np.expand_dims(m, axes)
    a = np.expand_dims(a, axes)
    law = exact.log_value if log else exact.value
    out[...] = law(x.astype(form.dtype), m, a, form)


def merge(left: exact.State, right: exact.State) -> exact.State:
    """The states of what either has seen; one shape and format."""
    return exact.merge(left, right, exact.format_of(left[0].dtype))


def lse(m: Array, a: Array) -> Array:
    """Log-sum-exp of states."""
    return exact.lse(m, a, exact.format_of(m.dtype))


def log_sum(m: Array, a: Array) -> Array:
    """What lse has above m, float64."""
    return exact.log_sum(m, a, exact.format_of(m.dtype))

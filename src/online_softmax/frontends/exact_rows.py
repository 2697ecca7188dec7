"""Scores of rows with order="any", and their states: operations of IEEE 754 and whole numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from .. import cpu_exact, exact, exact_sums
from ..exact import Format, State
from ..exact_sums import Sums
from . import checks

Array = checks.Array
#: Elements of the copies that are worked on.
PIECE: Final = 1 << 19
#: Of those that several passes go over.
CACHED: Final = 1 << 18


def blocks(shape: tuple[int, ...], most: int) -> Iterator[tuple[Any, ...]]:
    """Indices that cut an array of `shape` into runs of row-major order, of up to `most` entries."""
    inner, at = 1, len(shape)
    while at and inner * shape[at - 1] <= most:
        at -= 1
        inner *= shape[at]
    if not at:
        yield (...,)
        return
    step = max(1, most // inner)
    for index in np.ndindex(shape[: at - 1]):
        for start in range(0, shape[at - 1], step):
            yield (*index, slice(start, min(start + step, shape[at - 1])))


def scores(x: Array, temperature: Any, form: Format) -> Array:
    """x / temperature in the format of the states: x itself at temperature 1.

    Args:
        temperature: a number, rounded to the format first; or an array of the format that broadcasts to x.
    """
    if isinstance(temperature, float) and temperature == 1:
        return x
    divisor = np.asarray(temperature).astype(form.dtype)
    with np.errstate(all="ignore"):
        return np.asarray(np.divide(x.astype(form.dtype), divisor))


def states(
    x: Array, axis: int, temperature: float, *, isa: str | None = None, threads: int | None = None
) -> State:
    """(m, a) of the scores of rows of x along `axis`, of x's shape without it."""
    if temperature == 1:
        return cpu_exact.state(x, (axis,), isa=isa, threads=threads)
    form = exact.format_of(x.dtype)
    rows = np.moveaxis(x, axis, -1)
    m, a = exact.identity(rows.shape[:-1], form)
    for block in blocks(m.shape, max(1, PIECE // max(1, rows.shape[-1]))):
        z = scores(rows[block], temperature, form)
        m[block], a[block] = cpu_exact.state(z, (z.ndim - 1,), isa=isa, threads=threads)
    return m, a


def sums(x: Array, axis: int, temperature: float, weights: Array | None) -> Sums:
    """Sums of weight * score along `axis` of x, of its rows in one axis."""
    form = exact.format_of(x.dtype)
    rows = np.moveaxis(x, axis, -1)
    made = Sums.of(np.zeros((*rows.shape[:-1], 0)), form)
    for block in blocks(rows.shape[:-1], max(1, PIECE // rows.shape[-1])):
        z = scores(rows[block], temperature, form)
        some = Sums.of(exact_sums.weighted(z, weights), form)
        made.top[block], made.a[block], made.odd[block] = some.top, some.a, some.odd
    return Sums(made.top.reshape(-1), made.a.reshape(-1, form.slices), made.odd.reshape(-1), form)


def taken(x: Array, axis: int, places: Array) -> Array:
    """The entries of x at `places`, of x's shape without `axis`: one a row."""
    rows = np.moveaxis(x, axis, -1)
    return np.asarray(np.take_along_axis(rows, places.reshape(*rows.shape[:-1], 1), axis=-1)[..., 0])

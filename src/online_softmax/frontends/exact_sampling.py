"""sample with order="any": the same token and the same bits of its log-probability for any cut of the row,
threads, instruction set and build.

Scores are logits / temperature, rounded to float32 (float64) by the one division; a token's key is its score
plus noise in double, whose logarithms are made of operations that IEEE 754 defines; the log-probability is
ExactState's. Filters go by whole numbers: top_p by sums of slices, min_p by terms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from .. import cpu_exact, cpu_sampling, exact
from ..cpu_sampling import Draw
from ..exact import Format
from ..exact_sample_state import log_probabilities
from . import checks, exact_rows
from .numpy import ExactState

Array = checks.Array
#: Tokens that are tried first for top_p.
_FEW: Final = 64


def tokens(given: Draw, isa: str | None, threads: int | None) -> tuple[Array, Array]:
    """(tokens, log-probabilities) of the rows' shape, int64 and the states' dtype."""
    form = exact.format_of(given.x.dtype)
    drawn, found = np.empty(given.rows, np.int64), np.empty(given.rows, form.dtype)
    for block, piece in _pieces(given, form, isa, threads):
        m, a = cpu_exact.state(piece.x, (piece.axis,), isa=isa, threads=threads)
        some = cpu_sampling.tokens(piece, isa=isa, threads=threads)[0]
        some = np.where(np.isfinite(m), some, -1)
        places = np.where(some >= 0, some - given.origin[1], 0)
        scores = exact_rows.taken(piece.x, piece.axis, places)
        drawn[block], found[block] = some, log_probabilities(some, scores, ExactState._wrap((m, a)))
    return drawn, found


def parts(
    given: Draw, isa: str | None, threads: int | None
) -> tuple[tuple[Array, Array, Array, Array], ExactState]:
    """What merges: (tokens, keys, rests, scores) and the state of the scores, of the rows' shape."""
    form = exact.format_of(given.x.dtype)
    made = (np.empty(given.rows, np.int64), np.empty(given.rows), np.empty(given.rows), np.empty(given.rows))
    m, a = exact.identity(given.rows, form)
    for block, piece in _pieces(given, form, isa, threads):
        m[block], a[block] = cpu_exact.state(piece.x, (piece.axis,), isa=isa, threads=threads)
        for to, values in zip(made, cpu_sampling.parts(piece, isa=isa, threads=threads), strict=False):
            to[block] = values
    return made, ExactState._wrap((m, a))


def _pieces(
    given: Draw, form: Format, isa: str | None, threads: int | None
) -> Iterator[tuple[tuple[Any, ...], Draw]]:
    """Draws, without temperature or filters, from the scores of the rows at some places: (places, draw)."""
    plain = Draw(
        given.x, given.axis, np.minimum(given.temperature, 1.0), None, None, None, given.seed, given.draw,
        given.origin, same=True,
    )  # fmt: skip
    filters = (given.top_k, given.top_p, given.min_p)
    filtered = any(values is not None for values in filters)
    if not filtered and np.isin(given.temperature, (0, 1)).all():
        yield (...,), plain
        return
    rows, temperature = np.moveaxis(given.x, given.axis, -1), given.temperature
    divisor = np.where(temperature == 0, 1.0, temperature).astype(form.dtype)[..., None]
    # A place for the temperature of greedy rows, which stays 0; all others are 1 now.
    warm = (temperature > 0).astype(np.float64)
    done = 0
    for block in exact_rows.blocks(given.rows, max(1, exact_rows.PIECE // rows.shape[-1])):
        z = np.ascontiguousarray(exact_rows.scores(rows[block], divisor[block], form))
        if filtered:
            some = [None if v is None else np.asarray(v[block]) for v in filters]
            _filter(z, some, form, isa, threads)
        origin = given.origin[0] + done, given.origin[1]
        heat = np.ascontiguousarray(warm[block])
        yield block, replace(plain, x=z, axis=z.ndim - 1, temperature=heat, origin=origin)
        done += heat.size


def _filter(
    z: Array, filters: list[Array | None], form: Format, isa: str | None, threads: int | None
) -> None:
    """-inf for what the filters leave out of rows z, (..., vocabulary)."""
    flat = z.reshape(-1, z.shape[-1])  # a view: z is dense
    sums = np.zeros((len(flat), form.slices), np.int64)
    if filters[1] is not None:
        sums = cpu_exact.state(flat, (1,), isa=isa, threads=threads)[1]
    options = [np.zeros(len(flat)) if v is None else v.reshape(-1) for v in filters]
    absent = [v is None for v in filters]
    for row, whole, k, p, least in zip(flat, sums, *options, strict=True):
        top = row.max()
        if not np.isfinite(top):
            continue
        places = np.arange(len(row))
        if not absent[0] and 0 < k < len(row):
            places = _greatest(row, int(k))
        if not absent[1] and p < 1:
            # Of what top_k has left there are no sums yet.
            places = _reaching(row, places, float(p), whole if len(places) == len(row) else None, form)
        if not absent[2] and least > 0:
            places = places[_shares(row[places], top, form) >= least * _shares(top, top, form)]
        left_out = np.ones(len(row), np.bool_)
        left_out[places] = False
        row[left_out] = -np.inf


def _greatest(row: Array, k: int) -> Array:
    """Places of the k greatest, ascending; of equal ones the first."""
    cut = np.partition(row, len(row) - k)[len(row) - k]
    above = np.flatnonzero(row > cut)
    equal = np.flatnonzero(row == cut)[: k - len(above)]
    return np.sort(np.concatenate([above, equal]))


def _plain(top: Array, form: Format) -> bool:
    return bool(np.abs(top) <= form.large)


def _reaching(row: Array, places: Array, p: float, whole: Array | None, form: Format) -> Array:
    """Places of the fewest of the greatest whose terms come to p of the sum of them all; in whole numbers.

    `whole`: the sums of slices of all of them, where they are known and are those of a row.
    """
    share, of = p.as_integer_ratio()
    most = len(places) if whole is None else _FEW
    while True:
        candidates = places
        if most < len(places):
            # All that are as great as the last one, so that no other belongs among them.
            candidates = places[row[places] >= np.partition(row[places], -most)[-most]]
        ordered = candidates[np.argsort(-row[candidates], kind="stable")]
        sums = _running_sums(row[ordered], form)
        target = share * _weight(sums[-1] if whole is None else whole, form)
        if len(candidates) == len(places) or _weight(sums[-1], form) * of >= target:
            break
        most *= 8
    low, high = 0, len(sums) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if _weight(sums[middle], form) * of >= target else (middle + 1, high)
    return np.sort(ordered[: low + 1])


def _running_sums(z: Array, form: Format) -> Array:
    """Sums of slices of the first, the first two, ... of falling scores; those far below the first, which
    add nothing, are left out."""
    if _plain(z[0], form):
        near = z >= z[0] - form.dtype.type(form.width * (form.slices + 2))
        power, n = exact.terms(z[: np.count_nonzero(near)], form)
        return exact.slices(power, n, exact.bin_of(n[0], form), form).cumsum(axis=0)
    sums = np.zeros((np.count_nonzero(z == z[0]), form.slices), np.int64)
    sums[:, 0] = np.arange(1, len(sums) + 1)
    return sums


def _weight(sums: Array, form: Format) -> int:
    """Sums of slices as one whole number."""
    return sum(int(part) << form.width * (form.slices - k) for k, part in enumerate(sums))


def _shares(z: Array, top: Array, form: Format) -> Array:
    """Terms of z in units of the power of two of the top's, double."""
    z = np.asarray(z)
    if not _plain(top, form):
        return np.asarray(z == top, np.float64)
    near = z >= -form.large
    power, n = exact.terms(np.where(near, z, form.dtype.type(0)), form)
    down = n - exact.terms(np.asarray(top), form)[1]
    return np.asarray(np.where(near, np.ldexp(power, np.clip(down, -2000, 64).astype(np.int32)), 0.0))

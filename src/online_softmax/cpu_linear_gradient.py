"""The gradients of a linear cross-entropy, piece by piece: see `cpu_linear`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from . import cpu, cpu_losses, linear_plan
from .cpu_linear import Array, Linear, Rows, Upstream, loss_of, of_rows, pieces, spans, whole_rows
from .cpu_product import product
from .linear_plan import Tiles
from .loss_rules import Whole

#: Blocks whose gradients are left out together where they are negligible.
BLOCK_TOKENS: Final = 128
BLOCK_CLASSES: Final = 512


@dataclass(frozen=True)
class Gradients:
    """Where gradients go: of the shapes of hidden (tokens, D), weight and bias, C-contiguous, any float
    format; bias float64 or None. `below`: entries of blocks that are all smaller are taken as 0; None for
    none."""

    hidden: Array
    weight: Array
    bias: Array | None
    below: float | None


def gradients(
    p: Linear,
    rows: Array,
    made: dict[str, Array],
    upstream: Upstream,
    to: Gradients,
    *,
    tokens: Array | None = None,
    whole: Whole | None = None,
    others: Array | None = None,
) -> None:
    """What `cpu_losses.run` makes, and the gradients of the tokens at `rows`, those of others left 0.

    Chunks of tokens that have all classes: logits, their gradient in place, the rows of hidden's gradient
    complete. The weight's gradient is summed over the chunks where it is in `wide` itself, or its sum fits
    into the memory; else it is made in a second sweep, over tiles of classes, whose sums over the tokens are
    rounded once: four products instead of three.

    Args:
        whole: of a vocabulary of which the weight has a part.
        others: places of rows whose results are made as well, without a gradient.

    Raises: ValueError, before anything is computed, where the memory is too small for any of it.
    """
    others = np.zeros(0, np.intp) if others is None else others
    plan = linear_plan.made(lambda memory: _planned(replace(p, memory=memory), rows, to, others), p.memory)
    if len(others):
        whole_rows(p, others, made, tokens)
    for part in (to.weight, to.bias):
        if part is not None and (not len(rows) or part is to.bias or to.below is not None):
            part[...] = 0
    if plan is None:
        to.hidden[...] = 0
        return
    if len(rows) < len(to.hidden):
        to.hidden[...] = 0
    statistics_of: dict[str, Array] = {}
    if plan.second_sweep is not None:
        names = ("m", "s", "target_score") if p.probabilities is None else ("lse",)
        statistics_of = {name: np.empty(len(to.hidden)) for name in names if name not in made}
    _first_sweep(p, rows, made | statistics_of, upstream, to, plan, tokens, whole)
    if plan.second_sweep is not None:
        found = whole or _whole_of(p, made | statistics_of)
        _second_sweep(p, rows, upstream, to, plan.second_sweep, found)


def _planned(p: Linear, rows: Array, to: Gradients, others: Array) -> _Plan | None:
    """None where there are no rows."""
    if len(others):
        linear_plan.tokens_a_chunk(p.sizes(others))
    return _Plan.of(p, rows, to) if len(rows) else None


@dataclass(frozen=True)
class _Plan:
    chunk: int  # tokens
    second_sweep: Tiles | None
    sums: bool  # the weight's gradient is summed apart, and rounded at the end
    hidden_apart: bool  # rows of hidden's gradient are made apart
    weight_apart: bool

    @classmethod
    def of(cls, p: Linear, rows: Array, to: Gradients) -> _Plan:
        s = p.sizes(rows, per_class=_per_class(to))
        filtered = to.below is not None
        hidden_apart = s.gathered or _apart(to.hidden, p.wide, filtered)
        weight_apart = _apart(to.weight, p.wide, filtered)
        rounded = p.wide.itemsize == 4 and (to.hidden.itemsize == 2 or to.weight.itemsize == 2)
        extra = s.features * p.wide.itemsize if hidden_apart else 0
        chunk = linear_plan.tokens_a_chunk(s, extra=extra, rounded=rounded)
        if to.weight.dtype == p.wide or (chunk >= s.tokens and not weight_apart):
            return cls(chunk, None, False, hidden_apart, weight_apart)
        apart = s.classes * s.features * p.wide.itemsize
        enough = min(s.tokens, linear_plan.ENOUGH_TOKENS) * (s.classes * s.item + s.row_extra + extra)
        if apart + enough + 8 * s.per_class * s.classes <= p.memory // 2:
            chunk = linear_plan.tokens_a_chunk(s, extra=extra, apart=apart, rounded=rounded)
            return cls(chunk, None, True, hidden_apart, False)
        narrow = p.wide.itemsize == 4 and to.weight.itemsize == 2
        tiles = linear_plan.tiles(s, of_weight=True, rounded=narrow)
        return cls(chunk, tiles, False, hidden_apart, weight_apart)


def _per_class(to: Gradients) -> int:
    """Doubles a class made on the way: the bias's gradient, and extremes where blocks are left out."""
    return (0 if to.bias is None else 2) + (0 if to.below is None else 2)


def _apart(result: Array, wide: np.dtype[Any], filtered: bool) -> bool:
    """Whether a product cannot be written where it belongs: it is added to, or of another format."""
    if result.dtype == wide:
        return False
    return filtered or wide.itemsize == 8 or result.itemsize != 2


def _first_sweep(
    p: Linear,
    rows: Array,
    made: dict[str, Array],
    upstream: Upstream,
    to: Gradients,
    plan: _Plan,
    tokens: Array | None,
    whole: Whole | None,
) -> None:
    buffer = cpu.empty((plan.chunk, p.classes), p.wide)
    features = p.weight.shape[1]
    apart = cpu.empty((plan.chunk, features), p.wide) if plan.hidden_apart else None
    d_weight = cpu.empty((p.classes, features), p.wide) if plan.sums else to.weight
    if plan.sums and to.below is not None:
        d_weight[...] = 0
    first = True
    for piece in pieces(rows, plan.chunk):
        hidden = p.hidden[piece]
        g = buffer[: len(hidden)]
        p.logits(hidden, slice(0, p.classes), g)
        loss_of(p, g, piece, made, tokens, upstream, whole)
        d_hidden = to.hidden[piece] if apart is None else apart[: len(hidden)]
        live = None if to.below is None else _live(g, to.below)
        _hidden_gradient(p, g, p.weight, d_hidden, live)
        if apart is not None:
            _rounded(d_hidden, to.hidden, piece)
        if plan.second_sweep is None:
            _weight_gradient(p, g, hidden, d_weight, live, add=not first)
        if to.bias is not None:
            with np.errstate(all="ignore"):
                np.add(to.bias, g.sum(axis=0, dtype=np.float64), out=to.bias)
        first = False
    if plan.sums:
        for span in spans(p.classes, BLOCK_CLASSES):
            _rounded(d_weight[span], to.weight, span)


def _rounded(values: Array, to: Array, at: Rows) -> None:
    with np.errstate(all="ignore"):
        to[at] = values


def _whole_of(p: Linear, made: dict[str, Array]) -> Whole:
    """What a first sweep over all classes has found, for tiles of them."""
    weights = p.class_weights
    with np.errstate(all="ignore"):
        total = float(p.classes) if weights is None else float(weights.sum())
    if p.index is None:
        assert p.probabilities is not None
        nothing = np.full(len(made["lse"]), np.nan)
        return Whole(made["lse"], np.ones_like(nothing), nothing, _coefficient_sums(p), total)
    here = p.index >= 0
    of_target = np.where(here, 1.0 if weights is None else weights[np.where(here, p.index, 0)], 0.0)
    return Whole(made["m"], made["s"], made["target_score"], of_target, total)


def _coefficient_sums(p: Linear) -> Array:
    """Of each token what its classes count together."""
    assert p.probabilities is not None
    weights = np.ones(p.classes) if p.class_weights is None else p.class_weights
    found = np.empty(len(p.probabilities))
    with np.errstate(all="ignore"):
        for span in spans(len(found), max(1, p.memory // (32 * p.classes))):
            found[span] = p.probabilities[span].astype(np.float64) @ weights
        return np.asarray(p.rule.sharp * found + p.rule.uniform * weights.sum())


def _second_sweep(
    p: Linear, rows: Array, upstream: Upstream, to: Gradients, tiles: Tiles, whole: Whole
) -> None:
    """The weight's gradient, tile by tile of classes, each complete and rounded once."""
    buffer = cpu.empty((tiles.tokens, tiles.classes), p.wide)
    apart = tiles.tokens < len(rows) or _apart(to.weight, p.wide, to.below is not None)
    sums = cpu.empty((tiles.classes, p.weight.shape[1]), p.wide) if apart else None
    for classes in spans(p.classes, tiles.classes):
        out = to.weight[classes] if sums is None else sums[: classes.stop - classes.start]
        if to.below is not None:
            out[...] = 0
        first = True
        for piece in pieces(rows, tiles.tokens):
            hidden = p.hidden[piece]
            g = buffer[: len(hidden), : classes.stop - classes.start]
            p.logits(hidden, classes, g)
            d_loss, d_lse = upstream.of(piece)
            cpu_losses.run(
                p.problem(g, piece, classes), {}, gradient=g, d_loss=d_loss, d_lse=d_lse,
                whole=of_rows(whole, piece), isa=p.isa, threads=p.threads,
            )  # fmt: skip
            live = None if to.below is None else _live(g, to.below)
            _weight_gradient(p, g, hidden, out, live, add=not first)
            first = False
        if sums is not None:
            _rounded(out, to.weight, classes)


# ---- the two products, whole or without negligible blocks


def _live(g: Array, below: float) -> Array:
    """Which blocks of a gradient have an entry that is not smaller than `below`, NaN among them."""
    starts = np.arange(0, g.shape[1], BLOCK_CLASSES)
    with np.errstate(all="ignore"):
        found = [
            np.maximum.reduceat(np.maximum(g[span].max(axis=0), -g[span].min(axis=0)), starts)
            for span in spans(len(g), BLOCK_TOKENS)
        ]
        return ~(np.asarray(found) < below)


def _live_runs(live: Array, tokens: int, classes: int) -> Iterator[tuple[slice, slice]]:
    """Spans of tokens and classes whose blocks are live, neighbours along the classes together."""
    for row, span in zip(live, spans(tokens, BLOCK_TOKENS), strict=True):
        edges = np.flatnonzero(np.diff(np.concatenate(([False], row, [False]))))
        for start, stop in edges.reshape(-1, 2):
            yield span, slice(int(start) * BLOCK_CLASSES, min(classes, int(stop) * BLOCK_CLASSES))


def _hidden_gradient(p: Linear, g: Array, weight: Array, out: Array, live: Array | None) -> None:
    if live is None:
        product(g, weight, out, isa=p.isa, threads=p.threads)
        return
    out[...] = 0
    for tokens, classes in _live_runs(live, *g.shape):
        product(g[tokens, classes], weight[classes], out[tokens], add=True, isa=p.isa, threads=p.threads)


def _weight_gradient(
    p: Linear, g: Array, hidden: Array, out: Array, live: Array | None, *, add: bool
) -> None:
    if live is None:
        product(g.T, hidden, out, add=add, isa=p.isa, threads=p.threads)
        return
    for tokens, classes in _live_runs(live, *g.shape):
        product(g[tokens, classes].T, hidden[tokens], out[classes], add=True, isa=p.isa, threads=p.threads)

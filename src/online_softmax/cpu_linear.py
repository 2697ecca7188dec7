"""Cross-entropy of logits that are a product, piece by piece: products, the loss of a piece, products again.

The logits of all tokens never exist. A piece is a buffer of logits, which the loss kernel turns into their
gradient in place. `linear_plan` says how large it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import cpu, cpu_exact, cpu_losses, exact, exact_sums, linear_plan
from . import state as law
from .cpu_losses import ELSEWHERE, Problem
from .cpu_product import product
from .exact_sums import Sums
from .linear_plan import Sizes
from .loss_rules import Rule, Whole

Array = NDArray[Any]
Rows = slice | Array


@dataclass(frozen=True)
class Linear:
    """One call, checked by whoever makes it.

    Attributes:
        hidden: (tokens, D), weight: (classes, D), of served dtypes, any strides, both float64 or neither.
        bias: (classes,) of `wide`, contiguous, or None.
        wide: what logits and sums are made in, float32 or float64.
        rule, index, class_weights, row_weights: as `Problem` has them.
        probabilities: (tokens, classes) or None.
        memory: bytes for all that is neither operand nor result.
    """

    hidden: Array
    weight: Array
    bias: Array | None
    wide: np.dtype[Any]
    rule: Rule
    index: Array | None
    probabilities: Array | None
    class_weights: Array | None
    row_weights: Array | None
    memory: int
    isa: str | None
    threads: int | None

    @property
    def classes(self) -> int:
        return int(self.weight.shape[0])

    def sizes(self, rows: Array, *, per_class: int = 0) -> Sizes:
        """For tokens at the places `rows`."""
        weights = 0 if self.class_weights is None else 2
        return Sizes(
            tokens=len(rows),
            classes=self.classes,
            features=int(self.weight.shape[1]),
            item=self.wide.itemsize,
            hidden_item=self.hidden.itemsize,
            gathered=not isinstance(run_of(rows), slice),
            mapped=self.rule.softcap > 0 or self.rule.inverse_temperature != 1,
            each=self.probabilities is not None,
            per_class=per_class + weights + (self.bias is not None),
            memory=self.memory,
        )

    def logits(self, hidden: Array, classes: slice, out: Array, *, fused: bool = False) -> None:
        bias = None if self.bias is None else self.bias[classes]
        product(
            hidden, self.weight[classes].T, out,
            bias=bias, fused=fused, isa=self.isa, threads=self.threads,
        )  # fmt: skip

    def problem(self, logits: Array, rows: Rows, classes: slice) -> Problem:
        """The loss of a piece: of all classes, or of some, whose targets are then numbered from the first."""
        index = self.index
        if index is not None:
            index = index[rows]
            if logits.shape[1] < self.classes:
                inside = (index >= classes.start) & (index < classes.stop)
                index = np.where(inside, index - classes.start, np.where(index < 0, index, ELSEWHERE))
            index = np.ascontiguousarray(index)
        weights = self.row_weights
        return Problem(
            logits,
            1,
            self.rule,
            index,
            None if self.probabilities is None else self.probabilities[rows, classes],
            None if self.class_weights is None else self.class_weights[classes],
            None if weights is None else np.ascontiguousarray(weights[rows]),
        )


@dataclass(frozen=True)
class Upstream:
    """Gradients of the rows' losses, () or (tokens,), and of their lse, (tokens,) or None: float64."""

    loss: Array
    lse: Array | None

    def of(self, rows: Rows) -> tuple[Array, Array | None]:
        loss = self.loss if not self.loss.ndim else np.ascontiguousarray(self.loss[rows])
        return loss, None if self.lse is None else np.ascontiguousarray(self.lse[rows])


def run_of(rows: Array) -> Rows:
    """Places that follow each other as a slice."""
    if not len(rows):
        return slice(0, 0)
    first, last = int(rows[0]), int(rows[-1])
    return slice(first, last + 1) if last - first + 1 == len(rows) else rows


def pieces(rows: Array, tokens: int) -> Iterator[Rows]:
    for at in range(0, len(rows), tokens):
        yield run_of(rows[at : at + tokens])


def spans(end: int, size: int) -> Iterator[slice]:
    for at in range(0, end, size):
        yield slice(at, min(end, at + size))


# ---- forward


def statistics(p: Linear, rows: Array, made: dict[str, Array]) -> None:
    """ "m", "s", "target_score" and, if it is there, "scores" of `made`, at the places `rows`.

    By tiles over tokens and classes, whose states are merged from the first classes to the last. Class
    indices alone.
    """
    tiles = linear_plan.tiles(p.sizes(rows))
    buffer = cpu.empty((tiles.tokens, tiles.classes), p.wide)
    for piece in pieces(rows, tiles.tokens):
        hidden = p.hidden[piece]
        all_: dict[str, Array] | None = None
        for classes in spans(p.classes, tiles.classes):
            logits = buffer[: len(hidden), : classes.stop - classes.start]
            p.logits(hidden, classes, logits)
            one = {name: np.empty(len(hidden)) for name in made}
            cpu_losses.run(p.problem(logits, piece, classes), one, isa=p.isa, threads=p.threads)
            all_ = one if all_ is None else _merged(all_, one)
        for name, values in (all_ or {}).items():
            made[name][piece] = values


def exact_statistics(
    p: Linear, rows: Array, temperature: float, *, sums: bool
) -> tuple[exact.State, Array, Sums | None]:
    """(m, a) of every token's scores, the score of its target, NaN where that is not among the classes, and
    with `sums` those of class weight * score: (tokens,) of `wide`, of nothing where `rows` has no such token.

    A logit is one sum in an order that D alone fixes (`cpu_product.product`, fused), divided by `temperature`
    rounded to `wide`; the states of tiles merge in bits. So neither tiles nor threads nor the instruction
    set show. Class indices alone.
    """
    form = exact.format_of(p.wide)
    tiles = linear_plan.tiles(p.sizes(rows))
    buffer = cpu.empty((tiles.tokens, tiles.classes), p.wide)
    m, a = exact.identity((len(p.hidden),), form)
    target, scores = np.full(len(p.hidden), np.nan, p.wide), Sums.of(np.zeros((len(p.hidden), 0)), form)
    assert p.index is not None  # who calls has seen to it
    for piece in pieces(rows, tiles.tokens):
        hidden, index = p.hidden[piece], p.index[piece]
        all_, found = exact.identity((len(hidden),), form), target[piece]
        total = Sums.of(np.zeros((len(hidden), 0)), form)
        for classes in spans(p.classes, tiles.classes):
            z = buffer[: len(hidden), : classes.stop - classes.start]
            p.logits(hidden, classes, z, fused=True)
            if temperature != 1:
                with np.errstate(all="ignore"):
                    np.divide(z, p.wide.type(temperature), out=z)
            all_ = cpu_exact.merge(all_, cpu_exact.state(z, (1,), isa=p.isa, threads=p.threads))
            if sums:
                weights = None if p.class_weights is None else p.class_weights[classes]
                total = total.merge(Sums.of(exact_sums.weighted(z, weights), form))
            here = np.flatnonzero((index >= classes.start) & (index < classes.stop))
            found[here] = z[here, index[here] - classes.start]
        m[piece], a[piece] = all_
        target[piece] = found
        scores.top[piece], scores.a[piece], scores.odd[piece] = total.top, total.a, total.odd
    return (m, a), target, scores if sums else None


def _merged(a: dict[str, Array], b: dict[str, Array]) -> dict[str, Array]:
    with np.errstate(all="ignore"):
        m, s = law.merge((a["m"], a["s"]), (b["m"], b["s"]))
        target = np.where(np.isnan(a["target_score"]), b["target_score"], a["target_score"])
        found = {"m": m, "s": s, "target_score": target}
        return found | ({"scores": a["scores"] + b["scores"]} if "scores" in a else {})


def whole_rows(p: Linear, rows: Array, made: dict[str, Array], tokens: Array | None = None) -> None:
    """What `cpu_losses.run` makes, by chunks that have all classes, at the places `rows`."""
    chunk = linear_plan.tokens_a_chunk(p.sizes(rows)) if len(rows) else 1
    buffer = cpu.empty((chunk, p.classes), p.wide)
    for piece in pieces(rows, chunk):
        hidden = p.hidden[piece]
        logits = buffer[: len(hidden)]
        p.logits(hidden, slice(0, p.classes), logits)
        loss_of(p, logits, piece, made, tokens, None, None)


def loss_of(
    p: Linear,
    logits: Array,
    piece: Rows,
    made: dict[str, Array],
    tokens: Array | None,
    upstream: Upstream | None,
    whole: Whole | None,
) -> None:
    """The results of a chunk and, with `upstream`, the gradient in place of its logits."""
    one = {name: np.empty((len(logits), *values.shape[1:]), values.dtype) for name, values in made.items()}
    problem = p.problem(logits, piece, slice(0, p.classes))
    if tokens is not None:
        problem = replace(problem, tokens=np.ascontiguousarray(tokens[piece]))
    d_loss, d_lse = (None, None) if upstream is None else upstream.of(piece)
    cpu_losses.run(
        problem, one, gradient=None if upstream is None else logits, d_loss=d_loss, d_lse=d_lse,
        whole=None if whole is None else of_rows(whole, piece), isa=p.isa, threads=p.threads,
    )  # fmt: skip
    for name, values in one.items():
        made[name][piece] = values


def of_rows(whole: Whole, piece: Rows) -> Whole:
    m, s, target, target_weight = (
        np.ascontiguousarray(values[piece])
        for values in (whole.m, whole.s, whole.target, whole.target_weight)
    )
    return Whole(m, s, target, target_weight, whole.weight_sum)

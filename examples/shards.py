"""Statistics of rows from shards of unequal length, over torch.distributed: the same bits on any number
of ranks.

Every rank holds some of the columns. Two schedules merge their states:

    gather      one all-gather of the states (28 bytes a row and rank), merged as they come
    reduce      an all-reduce of the maximum of their keys, then one of the sum of their integer sums

Beside them stands what ranks usually do, an all-reduce of the maximum and one of the sum of exp(x - m) in
float32: its bits change with the number of ranks.

    python examples/shards.py [--rows 64] [--cols 50257] [--ranks 1 2 3 8]
"""

from __future__ import annotations

import argparse
import hashlib
import os
import socket
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import online_softmax as osm

Array = np.ndarray[Any, np.dtype[Any]]


def scores(rows: int, cols: int) -> Array:
    """What every rank can make its own part of: logits of a language model's range."""
    return (np.random.default_rng(17).standard_normal((rows, cols)) * 5).astype(np.float32)


def part_of(cols: int, rank: int, ranks: int) -> slice:
    """Columns of a rank: rank r has r + 1 shares, so that no two are alike."""
    shares = ranks * (ranks + 1) // 2
    return slice(cols * (rank * (rank + 1) // 2) // shares, cols * ((rank + 1) * (rank + 2) // 2) // shares)


def by_gathering(state: osm.ExactState) -> osm.ExactState:
    """One round: every rank has all states, and merges them beginning with its own."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    m, a = torch.tensor(state.m), torch.tensor(state.a)
    all_m = [torch.empty_like(m) for _ in range(ranks)]
    all_a = [torch.empty_like(a) for _ in range(ranks)]
    dist.all_gather(all_m, m)
    dist.all_gather(all_a, a)
    found = [osm.ExactState(m.numpy(), a.numpy()) for m, a in zip(all_m, all_a, strict=True)]
    return osm.ExactState.merge_many(found[rank:] + found[:rank])


def by_reducing(state: osm.ExactState) -> osm.ExactState:
    """Two rounds of plain all-reduces."""
    key = torch.tensor(state.key())
    dist.all_reduce(key, dist.ReduceOp.MAX)
    sums = torch.tensor(state.sums(key.numpy()))
    dist.all_reduce(sums, dist.ReduceOp.SUM)
    return osm.ExactState.from_reduced(key.numpy(), sums.numpy(), state.dtype)


def as_usual(x: torch.Tensor) -> tuple[Array, Array]:
    """The statistics by an all-reduce of the maximum and one of a float32 sum."""
    m = x.amax(-1)
    dist.all_reduce(m, dist.ReduceOp.MAX)
    s = (x - m[:, None]).exp().sum(-1)
    dist.all_reduce(s, dist.ReduceOp.SUM)
    return m.numpy(), s.numpy()


def digest(*arrays: Array) -> str:
    return hashlib.sha256(b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)).hexdigest()[:16]


def work(rank: int, ranks: int, port: int, rows: int, cols: int, results: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    x = scores(rows, cols)[:, part_of(cols, rank, ranks)]
    own = osm.ExactState.of(x)
    found = {"gather": by_gathering(own), "reduce": by_reducing(own)}
    results.put(
        {
            **{name: digest(state.m, state.a, state.lse) for name, state in found.items()},
            "usual": digest(*as_usual(torch.tensor(x))),
        }
    )
    dist.barrier()
    dist.destroy_process_group()


def run(ranks: int, rows: int, cols: int) -> dict[str, set[str]]:
    """The digests that the ranks found, by what they did: one each where all ranks agree."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    results = mp.get_context("fork").SimpleQueue()
    mp.start_processes(work, (ranks, port, rows, cols, results), nprocs=ranks, start_method="fork")
    every = [results.get() for _ in range(ranks)]
    return {name: {each[name] for each in every} for name in every[0]}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--cols", type=int, default=50257)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 3, 8])
    asked = parser.parse_args(argv)
    print(f"{asked.rows} rows of {asked.cols} float32 scores; digests of what every rank found\n")
    print(f"{'ranks':>5}  {'gather':<18}{'reduce':<18}max and float32 sum")
    for ranks in asked.ranks:
        found = run(ranks, asked.rows, asked.cols)
        print(
            f"{ranks:>5}  " + "".join(f"{' '.join(sorted(v)):<18}" for v in found.values()).rstrip(),
            flush=True,
        )
    whole = osm.ExactState.of(scores(asked.rows, asked.cols))
    print(f"\none array, no ranks: {digest(whole.m, whole.a, whole.lse)}")


if __name__ == "__main__":
    main()

"""What attention's order="any" costs, and how many results a query has: results/attention_orders.json.

    python -m benchmarks.attention_orders [--quick]

Two parts. Times of order="any" over those of order="row", in the same rounds. And, of one query whose answer
is one number for each feature, how many different outputs come out when only things change that should not
matter: what stands beside it in the batch, threads, and the cuts and order of the parts that are merged.
"""

from __future__ import annotations

import argparse
import itertools
import random
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import THREADS, record
from benchmarks.attention_cases import Sizes
from benchmarks.attention_work import TORCH_MISSING, Arrays, flat, operands, tensor
from benchmarks.contender import Contender
from benchmarks.data import Array
from benchmarks.measure import interleave, warm
from online_softmax import AttentionState, ExactAttentionState, attention
from online_softmax.attention_sums import TILE

#: Batch, heads, heads of k, queries, keys, features: prefills, a decode, a decode of grouped heads.
SIZES = (
    Sizes(1, 8, 8, 1024, 1024, 64, 64),
    Sizes(1, 8, 2, 512, 4096, 128, 128),
    Sizes(1, 8, 8, 1, 16384, 128, 128),
    Sizes(1, 32, 8, 1, 16384, 128, 128),
)
DTYPES = ("float32", "bfloat16")
#: Time of order="any" over that of order="row" at most.
BAR = 1.3
BUDGET = 6.0  # seconds a case
ONE = Sizes(8, 2, 2, 1, 4096, 64, 64)
SHARDS = (1, 2, 3, 8)


def costs(quick: bool) -> Iterator[dict[str, Any]]:
    """A line for each of sizes and dtypes, causal and not."""
    for sizes in SIZES:
        made = replace(sizes, queries=min(sizes.queries, 8), keys=600) if quick else sizes
        for dtype in DTYPES:
            arrays = operands(made, dtype)
            for causal in (False, True) if made.queries > 1 else (False,):
                calls = {order: _call(arrays, order, causal) for order in ("row", "any")}
                contenders = [Contender(order, call, flat) for order, call in calls.items()]
                for contender in contenders:
                    warm(contender)
                timed = interleave(contenders, {}, 0.05 if quick else BUDGET)
                ratio = timed["any"].median / timed["row"].median
                yield {
                    "dtype": dtype,
                    **asdict(made),
                    "causal": causal,
                    "seconds": {order: asdict(timing) for order, timing in timed.items()},
                    "ratio": ratio,
                    "bar": BAR,
                    "reached": ratio <= BAR,
                }


def _call(arrays: Arrays, order: str, causal: bool) -> Callable[[], Array]:
    return lambda: np.asarray(attention(*arrays, order=order, causal=causal, threads=THREADS))


def distinct(outputs: Iterator[Array]) -> int:
    """How many different arrays there are, bit for bit."""
    return len({np.ascontiguousarray(output).tobytes() for output in outputs})


def alone_and_not(arrays: Arrays, order: str) -> Iterator[Array]:
    """The first query's output in batches of several sizes, beside other queries, on one thread and more."""
    q, k, v = arrays
    for batch in (1, 2, len(q)):
        for threads in (1, THREADS, 8):
            part = attention(q[:batch], k[:batch], v[:batch], order=order, threads=threads)
            yield part[0]
    many = np.repeat(q[:1], 70, axis=2)
    for i in (0, 33, 69):
        yield attention(many, k[:1], v[:1], order=order, threads=THREADS)[0, :, i : i + 1]


def torch_alone_and_not(arrays: Arrays) -> Iterator[Array]:
    """The same of PyTorch's function."""
    import torch

    q, k, v = (tensor(a) for a in arrays)
    sdpa = torch.nn.functional.scaled_dot_product_attention
    for batch in (1, 2, len(q)):
        for threads in (1, THREADS):
            torch.set_num_threads(threads)
            yield sdpa(q[:batch], k[:batch], v[:batch])[0].numpy()
    many = q[:1].repeat_interleave(70, dim=2)
    for i in (0, 33, 69):
        yield sdpa(many, k[:1], v[:1])[0, :, i : i + 1].numpy()


def merges(arrays: Arrays, exact: bool, tries: int) -> Iterator[Array]:
    """Outputs of parts cut at random super-tiles and merged one after another in a random order."""
    q, k, v = (a[:1] for a in arrays)
    order, tiles = random.Random(0), k.shape[2] // TILE
    for shards in SHARDS:
        for _ in range(tries):
            cuts = [0, *sorted(order.sample(range(1, tiles), min(shards, tiles) - 1)), tiles]
            parts = [_part(q, k, v, a * TILE, b * TILE, exact) for a, b in itertools.pairwise(cuts)]
            order.shuffle(parts)
            total = parts[0]
            for part in parts[1:]:
                total = total.merge(part)
            yield total.output if exact else total.o


def _part(q: Array, k: Array, v: Array, a: int, b: int, exact: bool) -> Any:
    keys, values = k[:, :, a:b], v[:, :, a:b]
    if exact:
        return ExactAttentionState.of(q, keys, values, first_key=a)
    state = attention(q, keys, values, return_state=True)
    assert isinstance(state, AttentionState)
    return state


def results_of_one(quick: bool) -> list[dict[str, Any]]:
    """How many different outputs one query has, by what made them."""
    arrays = operands(replace(ONE, keys=4 * TILE) if quick else ONE, "float32")
    tries = 2 if quick else 20
    found = {
        'alone and not, order="row"': distinct(alone_and_not(arrays, "row")),
        'alone and not, order="any"': distinct(alone_and_not(arrays, "any")),
        "merges of AttentionState": distinct(merges(arrays, False, tries)),
        "merges of ExactAttentionState": distinct(merges(arrays, True, tries)),
    }
    if not TORCH_MISSING:
        found["alone and not, PyTorch"] = distinct(torch_alone_and_not(arrays))
    return [{"of": name, "different outputs": count} for name, count in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does the harness run?")
    quick = parser.parse_args().quick
    lines, counts = list(costs(quick)), results_of_one(quick)
    grid = Table(title='Attention, seconds of order="any" over order="row"')
    for heading in ("dtype", "heads", "queries", "keys", "d", "causal", "row, ms", "any, ms", "ratio"):
        grid.add_column(heading)
    for line in lines:
        seconds = [f"{line['seconds'][order]['median'] * 1e3:.3f}" for order in ("row", "any")]
        heads = f"{line['heads']} of {line['kv_heads']}"
        cells = [line["dtype"], heads, *(str(line[name]) for name in ("queries", "keys", "d"))]
        grid.add_row(*cells, "yes" if line["causal"] else "no", *seconds, f"{line['ratio']:.3f}")
    console = Console(width=None if Console().is_terminal else 120)
    console.print(grid)
    for count in counts:
        console.print(f"{count['of']}: {count['different outputs']} different outputs")
    console.print(f"wrote {record.write('attention_orders', {'costs': lines, 'outputs': counts}, quick)}")


if __name__ == "__main__":
    main()

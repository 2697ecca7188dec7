"""How many different log-sum-exps a row has: cut into parts and merged, shuffled, in batches of other sizes.

Each library merges by its own means: log-sum-exps of parts by logsumexp or logaddexp once more, states of
this one by `merge`. A cell is the number of different float32 results of the row that has most of them, 1
where the bits are always the same, and in how many rows there is more than one. The last column is the
largest error of them all, in units in the last place. Fails where order="any" has more than one result, or
one beyond its bound.

    python examples/same_bits.py [--cols 32768] [--rows 32] [--sigma 4]
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import sys
from collections.abc import Callable, Iterator
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

import online_softmax as osm
from online_softmax.numerics.bounds import error_bound

Array = np.ndarray[Any, np.dtype[Any]]

PARTS = range(1, 33)
SHUFFLES = 32
BATCHES = (1, 2, 3, 7, 32)
NAMES = ("1 to 32 parts", "32 shuffles", "other batches")
ANY = 'this library, order="any"'


class Library(NamedTuple):
    """`whole`: rows (r, n) to log-sum-exps (r,). `merged`: parts of rows, (r, n_k) each, to the same."""

    whole: Callable[[Array], Array]
    merged: Callable[[list[Array]], Array]


def again(whole: Callable[[Array], Array]) -> Library:
    """Parts merged by the same function."""
    return Library(whole, lambda parts: whole(np.stack([whole(part) for part in parts], axis=-1)))


def of_torch() -> dict[str, Library]:
    import torch

    def whole(x: Array) -> Array:
        return torch.logsumexp(torch.from_numpy(x), -1).numpy()

    def added(parts: list[Array]) -> Array:
        return reduce(torch.logaddexp, [torch.from_numpy(whole(part)) for part in parts]).numpy()

    return {"PyTorch, logsumexp": again(whole), "PyTorch, logaddexp": Library(whole, added)}


def of_jax() -> dict[str, Library]:
    import jax
    from jax.scipy.special import logsumexp

    compiled = jax.jit(lambda x: logsumexp(x, axis=-1))
    return {"JAX, logsumexp": again(lambda x: np.asarray(compiled(x)))}


def of_scipy() -> dict[str, Library]:
    from scipy.special import logsumexp

    return {"SciPy, logsumexp": again(lambda x: logsumexp(x, axis=-1))}


def of_numpy() -> dict[str, Library]:
    return {"NumPy, logaddexp": again(lambda x: np.logaddexp.reduce(x, axis=-1))}


def of_this() -> dict[str, Library]:
    def by_default(parts: list[Array]) -> Array:
        return osm.SoftmaxState.merge_many([osm.SoftmaxState.of(part) for part in parts]).lse

    def in_any_order(parts: list[Array]) -> Array:
        return osm.ExactState.merge_many([osm.ExactState.of(part) for part in parts]).lse

    return {
        'this library, order="row"': Library(osm.logsumexp, by_default),
        ANY: Library(lambda x: osm.logsumexp(x, order="any"), in_any_order),
    }


#: What a library is imported as -> its ways.
LIBRARIES = {
    "torch": of_torch,
    "jax": of_jax,
    "scipy": of_scipy,
    "numpy": of_numpy,
    "online_softmax": of_this,
}


def truth(row: Array) -> float:
    """Of a float32 row, in double and with sums that round once: good to a millionth of a float32's ulp."""
    m = float(row.max())
    return m + math.log(math.fsum(np.exp(row.astype(np.float64) - m).tolist()))


def results(library: Library, rows: Array) -> Iterator[list[Array]]:
    """All log-sum-exps (r,) of rows in each experiment of NAMES."""
    yield [library.merged([np.ascontiguousarray(p) for p in np.array_split(rows, k, axis=1)]) for k in PARTS]
    draw = np.random.default_rng(1)
    yield [
        library.whole(np.ascontiguousarray(rows[:, draw.permutation(rows.shape[1])])) for _ in range(SHUFFLES)
    ]
    sizes = [size for size in BATCHES if size <= len(rows)]
    groups = ([rows[at : at + size] for at in range(0, len(rows), size)] for size in sizes)
    yield [np.concatenate([library.whole(np.ascontiguousarray(g)) for g in group]) for group in groups]


def measure(library: Library, rows: Array, true: Array) -> tuple[list[tuple[int, int]], Array]:
    """For each experiment (most results of a row, rows with more than one); and a row's largest error, in
    ulp."""
    counts, worst = [], np.zeros(len(rows))
    for found in results(library, rows):
        table = np.stack(found, axis=-1).astype(np.float32)
        different = np.array([len(set(row)) for row in table.tolist()])
        counts.append((int(different.max()), int((different > 1).sum())))
        error = np.abs(table - true[:, None]).max(axis=-1) / ulps(true)
        worst = np.maximum(worst, error)
    return counts, worst


def ulps(true: Array) -> Array:
    """Units in the last place of float32."""
    return np.spacing(np.abs(true).astype(np.float32)).astype(np.float64)


def faults(counts: list[tuple[int, int]], worst: Array, rows: Array, true: Array) -> list[str]:
    """What order="any" promises and was not kept."""
    told = error_bound(rows, order="any").lse / ulps(true)
    found = [
        f"{ANY}: {most} results in {what}" for what, (most, _) in zip(NAMES, counts, strict=True) if most > 1
    ]
    return found + ([f"{ANY}: an error of {worst.max():.3g} ulp"] if (worst > told).any() else [])


def at_least(least: int) -> Callable[[str], int]:
    def number(text: str) -> int:
        if not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text}: {least} or more would do")
        return int(text)

    return number


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cols", type=at_least(max(PARTS)), default=32768)
    parser.add_argument("--rows", type=at_least(2), default=32)
    parser.add_argument("--sigma", type=float, default=4.0)
    given = parser.parse_args()
    draw = np.random.default_rng(0)
    rows = (given.sigma * draw.standard_normal((given.rows, given.cols))).astype(np.float32)
    true = np.array([truth(row) for row in rows])
    print(f"{given.rows} rows of {given.cols} float32 scores, sigma {given.sigma:g}")
    print("different log-sum-exps of a row (rows with more than one)\n")
    print(f"{'':26}" + "".join(f"{name:>15}" for name in NAMES) + f"{'error, ulp':>13}")
    wrong = []
    for module, make in LIBRARIES.items():
        if importlib.util.find_spec(module) is None:
            print(f"{module}: not installed")
            continue
        for name, library in make().items():
            counts, worst = measure(library, rows, true)
            cells = "".join(f"{f'{most} ({many})':>15}" for most, many in counts)
            print(f"{name:26}{cells}{worst.max():13.2f}", flush=True)
            if name == ANY:
                wrong = faults(counts, worst, rows, true)
    for fault in wrong:
        print(fault, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())

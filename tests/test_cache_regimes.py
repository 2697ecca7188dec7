"""What a cache and on-chip memory hold, counted element by element.

Regimes against a simulated cache, least recently used, with the rows in flight going pass by pass; blocks of
attention and the bound no schedule goes under.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from online_softmax.traffic import attention, cache, model
from online_softmax.traffic.count import Operand, Traffic
from online_softmax.traffic.shapes import Attention, Projection, Rows

few = settings(deadline=None, max_examples=150, derandomize=True)


class Cache:
    """Fully associative, least recently used: bytes that come from memory."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.held: OrderedDict[tuple[int, int], None] = OrderedDict()
        self.missed = 0

    def read(self, element: tuple[int, int], itemsize: int) -> None:
        if element in self.held:
            self.held.move_to_end(element)
            return
        self.missed += itemsize
        self.held[element] = None
        while len(self.held) * itemsize > self.capacity:
            self.held.popitem(last=False)


def missed(shape: Rows, capacity: int, resident: int, passes: int) -> int:
    """Bytes read from memory when `resident` rows at a time go through their passes together."""
    kept = Cache(capacity)
    for start in range(0, shape.rows, resident):
        for _ in range(passes):
            for row in range(start, min(start + resident, shape.rows)):
                for column in range(shape.columns):
                    kept.read((row, column), shape.itemsize)
    return kept.missed


@given(
    rows=st.integers(1, 8),
    columns=st.integers(1, 10),
    itemsize=st.sampled_from([2, 4, 8]),
    capacity=st.integers(1, 400),
    resident=st.one_of(st.none(), st.integers(1, 9)),
)
@few
def test_passes_count_only_where_the_rows_in_flight_outgrow_the_cache(
    rows: int, columns: int, itemsize: int, capacity: int, resident: int | None
) -> None:
    got = cache.regime(rows, columns, itemsize, capacity, resident)
    shape = Rows(rows, columns, itemsize)
    in_flight = rows if resident is None else min(rows, resident)
    once = rows * columns * itemsize
    assert (got.row_bytes, got.tensor_bytes, got.last_level) == (columns * itemsize, once, capacity)
    assert got.resident_rows == in_flight
    for algorithm in ("online", "three_pass"):
        moved = model.count("logsumexp", algorithm, shape)
        memory = cache.from_memory(moved, kept=got.kept)
        if rows % in_flight == 0:
            assert memory["x"].read == missed(shape, capacity, in_flight, moved.reads or 0)
    again = Cache(capacity)
    for _ in range(2):
        for row in range(rows):
            for column in range(columns):
                again.read((row, column), itemsize)
    # The whole tensor in the cache: going over it again costs memory nothing.
    assert (got.name == "tensor in cache") == (again.missed == once)


@given(rows=st.integers(1, 20), capacity=st.integers(0, 4000), resident=st.integers(1, 30))
@few
def test_the_deciding_row_is_the_longest_that_is_kept(rows: int, capacity: int, resident: int) -> None:
    deciding = cache.regime(rows, 1, 1, capacity, resident).deciding_row_bytes
    in_flight = min(rows, resident)
    assert in_flight * deciding <= capacity < in_flight * (deciding + 1)
    if deciding:
        assert cache.regime(rows, deciding, 1, capacity, resident).kept
    assert not cache.regime(rows, deciding + 1, 1, capacity, resident).kept


@pytest.mark.parametrize(
    ("columns", "last_level", "name"),
    [
        (8192, 256 << 20, "tensor in cache"),
        (8193, 256 << 20, "rows past cache"),
        (7812, 256_000_000, "tensor in cache"),
        (7813, 256_000_000, "rows past cache"),
        (128, 256_000_000, "tensor in cache"),
    ],
)
def test_8192_rows_of_float32_against_256_megabytes(columns: int, last_level: int, name: str) -> None:
    got = cache.regime(8192, columns, 4, last_level)
    assert got.name == name
    assert got.deciding_row_bytes == {256 << 20: 32_768, 256_000_000: 31_250}[last_level]


def test_fewer_rows_in_flight_let_longer_rows_be_kept() -> None:
    got = cache.regime(8192, 65_536, 4, 50 << 20, resident_rows=132)
    assert got.name == "rows in cache"
    assert got.deciding_row_bytes == (50 << 20) // 132
    assert cache.regime(8192, 131_072, 4, 50 << 20, resident_rows=132).name == "rows past cache"
    # There are no more rows in flight than rows.
    assert cache.regime(8, 4, 4, 1024, resident_rows=132).resident_rows == 8


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((0, 1, 4, 64), "rows=0"),
        ((1, 0, 4, 64), "columns=0"),
        ((1, -1, 4, 64), "columns=-1"),
        ((1, 1, 4, 64, 0), "resident_rows=0"),
        ((1, 1, 4, 64, -2), "resident_rows=-2"),
    ],
)
def test_wrong_sizes_are_named(arguments: tuple[int, ...], names: str) -> None:
    with pytest.raises(ValueError, match=f"{names}: a size of at least 1 would do"):
        cache.regime(*arguments)


# ---- what memory sees


SHAPES = {
    Rows: Rows(7, 1001, 2, 5),
    Projection: Projection(7, 5, 11, 4, 3, 4),
    Attention: Attention(2, 6, 2, 7, 12, 3, 2, 3, 5, 5),
}
PAIRS = [
    (name, algorithm)
    for name in model.OPERATIONS
    if model.shape_of(name) in SHAPES
    for algorithm in model.algorithms(name)
]


@pytest.mark.parametrize(("operation", "algorithm"), PAIRS)
def test_kept_means_at_most_once_each_way(operation: str, algorithm: str) -> None:
    moved = model.count(operation, algorithm, SHAPES[model.shape_of(operation)], write_allocate=True)
    assert cache.from_memory(moved, kept=False) is moved
    once = cache.from_memory(moved, kept=True)
    assert [o.name for o in once.operands] == [o.name for o in moved.operands]
    for operand in once.operands:
        asked = moved[operand.name]
        assert operand == replace(
            asked, read=min(asked.read, asked.size), written=min(asked.written, asked.size)
        )
    assert once.total <= moved.total
    assert once.workspace == moved.workspace
    assert (once.exps, once.flops, once.write_allocate) == (moved.exps, moved.flops, True)
    assert cache.from_memory(once, kept=True) == once


def test_every_algorithm_of_softmax_is_the_same_to_memory_while_rows_are_kept() -> None:
    shape = Rows(64, 100, 4)
    totals = {
        cache.from_memory(model.count("softmax", name, shape), kept=True).total
        for name in model.algorithms("softmax")
    }
    assert totals == {2 * 64 * 100 * 4}


def test_a_part_of_a_tensor_stays_a_part() -> None:
    moved = Traffic("any", "any", (Operand("x", 100, read=250), Operand("y", 100, read=30, written=7)))
    once = cache.from_memory(moved, kept=True)
    assert [(o.read, o.written) for o in once.operands] == [(100, 0), (30, 7)]


# ---- what auto means on the CPU


@pytest.mark.parametrize("itemsize", [2, 4, 8])
@pytest.mark.parametrize("size", [1 << 14, 1 << 20, 2_000_001])
def test_a_row_given_to_cached_fits_the_cache_it_is_kept_in(itemsize: int, size: int) -> None:
    """A softmax keeps what it reads, what it writes and its exponentials in L2; the others a row in L1."""
    kept = max(4, itemsize)
    assert cache.working_set(10, itemsize, kept) == 10 * (itemsize + itemsize + kept)
    longest = cache.cached_columns("softmax", itemsize, {"L1": 1, "L2": size})
    assert 0 < cache.working_set(longest, itemsize, kept) <= size
    for operation in ("log_softmax", "logsumexp", "state"):
        assert 0 < cache.cached_columns(operation, itemsize, {"L1": size, "L2": 1}) * itemsize <= size


def test_typical_caches_stand_in_for_those_not_told() -> None:
    for operation in ("softmax", "log_softmax"):
        assert cache.cached_columns(operation, 4, {}) == cache.cached_columns(operation, 4, cache.TYPICAL)
    assert dict(cache.TYPICAL) == {"L1": 32 << 10, "L2": 1 << 20}


# ---- on-chip blocks and the lower bound


def fits(onchip: int, queries: int, keys: int, d: int) -> bool:
    """q and o, m and s of the queries; k and v of the keys; a score for each pair."""
    return 2 * queries * d + 2 * queries + 2 * keys * d + queries * keys <= onchip


@given(onchip=st.integers(1, 300_000), d=st.sampled_from([1, 3, 16, 64, 80, 128, 256]))
@settings(deadline=None, max_examples=400, derandomize=True)
@example(onchip=58_112, d=64)
@example(onchip=64 * 64 + 255, d=64)
@example(onchip=64 * 64 + 256, d=64)
def test_blocks_fit_and_the_next_larger_ones_do_not(onchip: int, d: int) -> None:
    if not fits(onchip, 1, 1, d):
        with pytest.raises(ValueError, match=f"onchip={onchip}: at least {4 * d + 3} elements would do"):
            attention.blocks_for(onchip, d)
        return
    got = attention.blocks_for(onchip, d)
    assert got.block_k in (1, 16)
    assert (
        got.elements
        == 2 * got.block_q * d + 2 * got.block_q + 2 * got.block_k * d + got.block_q * got.block_k
    )
    assert fits(onchip, got.block_q, got.block_k, d)
    step = 16 if got.block_q >= 16 else 1
    assert got.block_q % step == 0
    assert not fits(onchip, got.block_q + step, got.block_k, d)


@pytest.mark.parametrize("d", [1, 2, 16, 64, 128])
def test_the_least_that_blocks_need(d: int) -> None:
    assert attention.blocks_for(4 * d + 3, d) == attention.Blocks(1, 1, 4 * d + 3)
    with pytest.raises(ValueError, match="would do"):
        attention.blocks_for(4 * d + 2, d)


def test_sixteen_keys_come_with_sixteen_queries() -> None:
    """A tile of 16 by 16 takes 64 d + 288 elements; with fewer, keys come one at a time."""
    for d in (1, 2, 16, 64, 128):
        need = next(n for n in range(64 * d, 65 * d + 512) if fits(n, 16, 16, d))
        assert need == 64 * d + 288
        for onchip in (need - 1, need):
            got = attention.blocks_for(onchip, d)
            assert got.block_q >= 16
            assert got.block_k == (16 if onchip == need else 1)


def test_the_lower_bound() -> None:
    n, d = 4096, 64
    # S >= d^2: N^2 d^2 / S.
    assert attention.lower_bound(n, n, d, 4096) == n * n
    assert attention.lower_bound(n, n, d, 8192) == Fraction(n * n, 2)
    assert attention.lower_bound(n, n, d, 50_000) == Fraction(n * n * d * d, 50_000)
    # S < d^2: the plain product's N^2 d / sqrt(S), which meets the other at S = d^2.
    assert attention.lower_bound(n, n, d, 1024) == n * n * 2
    assert attention.lower_bound(n, n, d, 4096) == n * n * d / math.sqrt(4096)
    assert attention.lower_bound(n, n, d, 2048) == pytest.approx(n * n * d / math.sqrt(2048), rel=1e-15)
    # Never under reading q, k, v and writing o.
    assert attention.lower_bound(n, n, d, 10**9) == 4 * n * d
    assert attention.lower_bound(1, 1, 64, 1) == 256
    # One query: the keys and values have to come whatever there is on chip.
    assert attention.lower_bound(1, 1000, 64, 10**6) == 2 * 1001 * 64


def test_the_lower_bound_falls_with_memory_and_no_schedule_goes_under() -> None:
    n, d = 2048, 64
    sizes = [2**e for e in range(9, 24)]
    bounds = [attention.lower_bound(n, n, d, size) for size in sizes]
    assert bounds == sorted(bounds, reverse=True)
    for size, bound in zip(sizes, bounds, strict=True):
        blocks = attention.blocks_for(size, d)
        shape = Attention(1, 1, 1, n, n, d, 4, blocks.block_q, blocks.block_k)
        assert Fraction(model.count("attention", "flash", shape).total, 4) > bound


@pytest.mark.parametrize("name", ["seq_q", "seq_k", "head_dim", "onchip"])
def test_the_lower_bound_of_nothing(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0: a size of at least 1 would do"):
        attention.lower_bound(**({"seq_q": 8, "seq_k": 8, "head_dim": 8, "onchip": 8} | {name: 0}))

"""Bytes and exponentials of operations on rows against algorithms that run, each load and store counted.

`Memory` holds tensors and counts what is asked of them. Each algorithm is written here tile by tile, as its
description has it, and must both compute the operation and move the bytes the model says, tensor by tensor.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from online_softmax.traffic import model, rows
from online_softmax.traffic.count import LINE, Operand, Traffic
from online_softmax.traffic.shapes import Chunks, Rows, statistic

few = settings(deadline=None, max_examples=60, derandomize=True)


class Memory:
    """Tensors by name, each with the bytes of its elements; counts bytes loaded and stored, and arithmetic.

    The numbers are float64 whatever the size of an element is said to be: only the count depends on it.
    """

    def __init__(self) -> None:
        self.tensors: dict[str, np.ndarray] = {}
        self.itemsize: dict[str, int] = {}
        self.read: Counter[str] = Counter()
        self.written: Counter[str] = Counter()
        self.exps = 0
        self.matrix_flops = 0

    def put(self, name: str, value: Any, itemsize: int) -> None:
        self.tensors[name] = np.array(value)
        self.itemsize[name] = itemsize

    def make(self, name: str, shape: tuple[int, ...], itemsize: int) -> None:
        """A tensor to be written; what nobody writes stays NaN."""
        self.put(name, np.full(shape, math.nan), itemsize)

    def load(self, name: str, *index: Any) -> Any:
        part = self.tensors[name][index]
        self.read[name] += np.size(part) * self.itemsize[name]
        return part

    def store(self, name: str, index: tuple[Any, ...], value: Any) -> None:
        self.written[name] += np.size(self.tensors[name][index]) * self.itemsize[name]
        self.tensors[name][index] = value

    def exp(self, x: Any) -> Any:
        self.exps += np.size(x)
        return np.exp(x)

    def matmul(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """a times b: two flops for each element of a in each column of b."""
        self.matrix_flops += 2 * a.size * b.shape[1]
        return a @ b

    def size(self, name: str) -> int:
        return self.tensors[name].size * self.itemsize[name]


def tiles(length: int, block: int) -> list[slice]:
    return [slice(start, min(start + block, length)) for start in range(0, length, block)]


def assert_counted(got: Traffic, memory: Memory) -> None:
    """Each tensor of the model has the size, and moves the bytes, that were counted; there is no other."""
    assert {o.name: (o.size, o.read, o.written) for o in got.operands} == {
        name: (memory.size(name), memory.read[name], memory.written[name]) for name in memory.tensors
    }
    assert got.exps == memory.exps
    assert got.matrix_flops == memory.matrix_flops
    assert got.read == memory.read.total()
    assert got.written == memory.written.total()
    assert got.total == got.read + got.written


# ---- rows in memory: each kernel takes (memory, row, tiles, kept) and does one row


def push(memory: Memory, m: float, s: float, x: np.ndarray) -> tuple[float, float]:
    """The state with a tile pushed; the rescale per new maximum is not counted, as the model says."""
    new = max(m, x.max())
    return new, s * math.exp(m - new) + memory.exp(x - new).sum()


def _statistics(memory: Memory, row: int, parts: list[slice], algorithm: str) -> tuple[float, float]:
    """(m, s) of a row: naive takes m = 0; three_pass two passes; online one."""
    m, s = (0.0 if algorithm == "naive" else -math.inf), 0.0
    if algorithm == "three_pass":
        for part in parts:
            m = max(m, memory.load("x", row, part).max())
    for part in parts:
        x = memory.load("x", row, part)
        if algorithm == "online":
            m, s = push(memory, m, s, x)
        else:
            s += memory.exp(x - m).sum()
    return m, s


def softmax(memory: Memory, row: int, parts: list[slice], algorithm: str) -> None:
    if algorithm == "cached":
        x = [memory.load("x", row, part) for part in parts]
        m = max((part.max() for part in x), default=-math.inf)
        kept = [memory.exp(part - m) for part in x]
        for part, e in zip(parts, kept, strict=True):
            memory.store("out", (row, part), e / sum(e.sum() for e in kept))
        return
    m, s = _statistics(memory, row, parts, algorithm)
    for part in parts:
        memory.store("out", (row, part), memory.exp(memory.load("x", row, part) - m) / s)


def log_softmax(memory: Memory, row: int, parts: list[slice], algorithm: str) -> None:
    if algorithm == "cached":
        x = [memory.load("x", row, part) for part in parts]
        m = max((part.max() for part in x), default=-math.inf)
        s = sum(memory.exp(part - m).sum() for part in x)
        for part, kept in zip(parts, x, strict=True):
            memory.store("out", (row, part), kept - m - math.log(s))
        return
    m, s = _statistics(memory, row, parts, algorithm)
    for part in parts:
        memory.store("out", (row, part), memory.load("x", row, part) - m - math.log(s))


def lse_of(m: float, s: float) -> float:
    return m + math.log(s) if s else -math.inf


def logsumexp(memory: Memory, row: int, parts: list[slice], algorithm: str) -> None:
    if algorithm == "cached":
        x = [memory.load("x", row, part) for part in parts]
        m = max((part.max() for part in x), default=-math.inf)
        memory.store("lse", (row,), lse_of(m, sum(memory.exp(part - m).sum() for part in x)))
        return
    memory.store("lse", (row,), lse_of(*_statistics(memory, row, parts, algorithm)))


KERNELS = {"softmax": softmax, "log_softmax": log_softmax, "logsumexp": logsumexp}
SIZES = {
    "count": st.integers(0, 4),
    "columns": st.integers(0, 20),
    "itemsize": st.sampled_from([1, 2, 4, 8]),
    "block": st.integers(1, 24),
}


def data(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(0, 2, shape)


def reference(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Log-probabilities and lse of rows that are not empty."""
    lse = np.log(np.exp(x).sum(-1))
    return x - lse[:, None], lse


@pytest.mark.parametrize("algorithm", ["naive", "three_pass", "online", "cached"])
@pytest.mark.parametrize("operation", KERNELS)
@given(**SIZES)
@few
def test_forward(operation: str, algorithm: str, count: int, columns: int, itemsize: int, block: int) -> None:
    memory, x = Memory(), data(count, columns)
    memory.put("x", x, itemsize)
    result = "lse" if operation == "logsumexp" else "out"
    if operation == "logsumexp":
        memory.make("lse", (count,), statistic(itemsize))
    else:
        memory.make("out", (count, columns), itemsize)
    for row in range(count):
        KERNELS[operation](memory, row, tiles(columns, block), algorithm)
    assert_counted(model.count(operation, algorithm, Rows(count, columns, itemsize)), memory)
    if columns:
        logs, lse = reference(x)
        exact = {"softmax": np.exp(logs), "log_softmax": logs, "logsumexp": lse}[operation]
        np.testing.assert_allclose(memory.tensors[result], exact, rtol=1e-12, atol=1e-12)


@given(**SIZES, k=st.integers(0, 20))
@few
def test_topk_forward(count: int, columns: int, itemsize: int, block: int, k: int) -> None:
    k = min(k, columns)
    memory, x = Memory(), data(count, columns)
    memory.put("x", x, itemsize)
    if k:
        memory.make("values", (count, k), itemsize)
        memory.make("indices", (count, k), 8)
    memory.make("lse", (count,), statistic(itemsize))
    for row in range(count):
        m, s, best = -math.inf, 0.0, []
        for part in tiles(columns, block):
            tile = memory.load("x", row, part)
            m, s = push(memory, m, s, tile)
            best = sorted([*best, *zip(-tile, range(part.start, part.stop), strict=True)])[:k]
        memory.store("lse", (row,), lse_of(m, s))
        if k:
            logits, indices = zip(*best, strict=True)
            memory.store("values", (row,), memory.exp(-np.array(logits) - m) / s)
            memory.store("indices", (row,), indices)
    assert_counted(model.count("softmax_topk", "online", Rows(count, columns, itemsize, k)), memory)
    if k:
        exact = -np.sort(-np.exp(reference(x)[0]), axis=-1)[:, :k]
        np.testing.assert_allclose(memory.tensors["values"], exact, rtol=1e-12)


# ---- backward


def softmax_backward(memory: Memory, row: int, parts: list[slice], algorithm: str) -> None:
    if algorithm == "cached":
        y = [memory.load("y", row, part) for part in parts]
        dy = [memory.load("dy", row, part) for part in parts]
        total = sum((a * b).sum() for a, b in zip(y, dy, strict=True))
        for part, a, b in zip(parts, y, dy, strict=True):
            memory.store("dx", (row, part), a * (b - total))
        return
    total = sum((memory.load("y", row, part) * memory.load("dy", row, part)).sum() for part in parts)
    for part in parts:
        y, dy = memory.load("y", row, part), memory.load("dy", row, part)
        memory.store("dx", (row, part), y * (dy - total))


def log_softmax_backward(memory: Memory, row: int, parts: list[slice], algorithm: str) -> None:
    if algorithm == "cached":
        dy = [memory.load("dy", row, part) for part in parts]
        total = sum(b.sum() for b in dy)
        for part, b in zip(parts, dy, strict=True):
            memory.store("dx", (row, part), b - memory.exp(memory.load("y", row, part)) * total)
        return
    total = sum(memory.load("dy", row, part).sum() for part in parts)
    for part in parts:
        y, dy = memory.load("y", row, part), memory.load("dy", row, part)
        memory.store("dx", (row, part), dy - memory.exp(y) * total)


@pytest.mark.parametrize("algorithm", ["cached", "online"])
@pytest.mark.parametrize("kernel", [softmax_backward, log_softmax_backward])
@given(**SIZES)
@few
def test_backward(
    kernel: Callable[..., None], algorithm: str, count: int, columns: int, itemsize: int, block: int
) -> None:
    memory, operation = Memory(), kernel.__name__
    y, dy = data(count, columns), data(count, columns, seed=1)
    for name, value in (("y", y), ("dy", dy)):
        memory.put(name, value, itemsize)
    memory.make("dx", (count, columns), itemsize)
    for row in range(count):
        kernel(memory, row, tiles(columns, block), algorithm)
    assert_counted(model.count(operation, algorithm, Rows(count, columns, itemsize)), memory)
    if operation == "softmax_backward":
        exact = y * (dy - (y * dy).sum(-1, keepdims=True))
    else:
        exact = dy - np.exp(y) * dy.sum(-1, keepdims=True)
    np.testing.assert_allclose(memory.tensors["dx"], exact, rtol=1e-12, atol=1e-12)


@given(**SIZES)
@few
def test_logsumexp_backward(count: int, columns: int, itemsize: int, block: int) -> None:
    memory, x, dlse = Memory(), data(count, columns + 1), data(count, seed=1)
    lse = reference(x)[1]
    memory.put("x", x, itemsize)
    memory.put("lse", lse, statistic(itemsize))
    memory.put("dlse", dlse, statistic(itemsize))
    memory.make("dx", x.shape, itemsize)
    for row in range(count):
        m, d = memory.load("lse", row), memory.load("dlse", row)
        for part in tiles(columns + 1, block):
            memory.store("dx", (row, part), memory.exp(memory.load("x", row, part) - m) * d)
    assert_counted(model.count("logsumexp_backward", "cached", Rows(count, columns + 1, itemsize)), memory)
    exact = np.exp(reference(x)[0]) * dlse[:, None]
    np.testing.assert_allclose(memory.tensors["dx"], exact, rtol=1e-12)


# ---- rows cut into chunks


@pytest.mark.parametrize("operation", ["softmax", "log_softmax", "logsumexp"])
@given(
    count=st.integers(1, 4),
    columns=st.integers(1, 20),
    itemsize=st.sampled_from([1, 2, 4, 8]),
    block=st.integers(1, 24),
)
@few
def test_split(operation: str, count: int, columns: int, itemsize: int, block: int) -> None:
    memory, x, chunks = Memory(), data(count, columns), tiles(columns, block)
    memory.put("x", x, itemsize)
    memory.make("states", (count, len(chunks), 2), statistic(itemsize))
    writes = operation != "logsumexp"
    result = "out" if writes else "lse"
    memory.make(result, x.shape if writes else (count,), itemsize if writes else statistic(itemsize))
    for row in range(count):
        for i, part in enumerate(chunks):
            memory.store("states", (row, i), push(memory, -math.inf, 0.0, memory.load("x", row, part)))

    def merged(row: int) -> tuple[float, float]:
        states = memory.load("states", row)
        m = states[:, 0].max()
        return m, (states[:, 1] * memory.exp(states[:, 0] - m)).sum()

    for row in range(count):
        for part in chunks if writes else ():
            m, s = merged(row)
            gap = memory.load("x", row, part) - m
            memory.store(
                "out", (row, part), memory.exp(gap) / s if operation == "softmax" else gap - math.log(s)
            )
        if not writes:
            memory.store("lse", (row,), lse_of(*merged(row)))
    got = rows.SPLIT[operation]["split"](Chunks(count, columns, itemsize, block))
    assert_counted(got, memory)
    assert got.workspace == memory.size("states")
    assert (got.reads, got.writes) == ((2, 1) if writes else (1, 0))
    logs, lse = reference(x)
    exact = {"softmax": np.exp(logs), "log_softmax": logs, "logsumexp": lse}[operation]
    np.testing.assert_allclose(memory.tensors[result], exact, rtol=1e-12, atol=1e-12)


# ---- traversals, lines, sizes


@pytest.mark.parametrize(
    ("operation", "algorithm", "reads", "writes"),
    [
        ("softmax_backward", "cached", 2, 1),
        ("softmax_backward", "online", 4, 1),
        ("log_softmax_backward", "cached", 2, 1),
        ("log_softmax_backward", "online", 3, 1),
        ("logsumexp_backward", "cached", 1, 1),
        ("cross_entropy", "standard", 1, 1),
        ("cross_entropy", "three_pass", 2, 0),
        ("cross_entropy", "online", 1, 0),
        ("cross_entropy_backward", "standard", 1, 1),
        ("cross_entropy_backward", "online", 1, 1),
    ],
)
def test_traversals(operation: str, algorithm: str, reads: int, writes: int) -> None:
    got = model.count(operation, algorithm, Rows(3, 5, 4))
    assert (got.reads, got.writes, got.traversals) == (reads, writes, reads + writes)


@given(
    sizes=st.lists(st.integers(0, 200), max_size=4),
    allocate=st.booleans(),
)
@few
def test_lines_are_allocated_for_every_tensor_from_a_start_of_its_own(
    sizes: list[int], allocate: bool
) -> None:
    operands = tuple(Operand(str(i), n, read=1, written=n) for i, n in enumerate(sizes))
    got = Traffic("any", "any", operands, write_allocate=allocate)
    lines = sum(len({byte // LINE for byte in range(n)}) for n in sizes)
    assert got.allocated == (LINE * lines if allocate else 0)
    assert got.total == got.read + got.written + got.allocated


@pytest.mark.parametrize(
    ("make", "error", "names"),
    [
        (lambda: Rows(-1, 1, 4), ValueError, "rows=-1"),
        (lambda: Rows(1, -1, 4), ValueError, "columns=-1"),
        (lambda: Rows(1, 1, 3), ValueError, "itemsize=3"),
        (lambda: Rows(1, 1, 0), ValueError, "itemsize=0"),
        (lambda: Rows(1, 4, 4, 5), ValueError, "k=5"),
        (lambda: Rows(1, 4, 4, -1), ValueError, "k=-1"),
        (lambda: Rows(1.0, 4, 4), TypeError, "rows=1.0"),
        (lambda: Rows(True, 4, 4), TypeError, "rows=True"),
        (lambda: Rows(1, "4", 4), TypeError, "columns='4'"),
        (lambda: Chunks(0, 1, 4, 1), ValueError, "rows=0"),
        (lambda: Chunks(1, 0, 4, 1), ValueError, "columns=0"),
        (lambda: Chunks(1, 1, 4, 0), ValueError, "block=0"),
    ],
)
def test_wrong_sizes_are_named(make: Callable[[], object], error: type[Exception], names: str) -> None:
    with pytest.raises(error, match=names):
        make()


def test_wrong_calls_of_count_are_named() -> None:
    with pytest.raises(ValueError, match="algorithm='cached'"):
        model.count("cross_entropy", "cached", Rows(1, 1, 4))
    with pytest.raises(ValueError, match="operation='x'"):
        model.shape_of("x")
    with pytest.raises(TypeError, match=r"softmax is counted for Rows\(\.\.\.\)"):
        model.count("softmax", "online", Chunks(1, 1, 4, 1))
    with pytest.raises(ValueError, match="operation='attention'"):
        model.traffic("attention", "flash", 1, 1, 4)

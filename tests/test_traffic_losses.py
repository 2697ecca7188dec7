"""Bytes of cross-entropy, of logits and of a product, against kernels that run, each load and store
counted."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_traffic_rows import SIZES, Memory, assert_counted, data, lse_of, push, reference, tiles

from online_softmax.traffic import model
from online_softmax.traffic.shapes import Projection, Rows, statistic

few = settings(deadline=None, max_examples=80, derandomize=True)

# ---- cross-entropy


def cross_entropy(memory: Memory, row: int, parts: list[slice], algorithm: str) -> None:
    """Loss and lse; the target's logit is taken from the tile it lies in."""
    target, m, s, picked = memory.load("targets", row), -math.inf, 0.0, math.nan
    if algorithm == "three_pass":
        for part in parts:
            m = max(m, memory.load("logits", row, part).max())
    for part in parts:
        x = memory.load("logits", row, part)
        if part.start <= target < part.stop:
            picked = x[target - part.start]
        if algorithm == "online":
            m, s = push(memory, m, s, x)
        else:
            s += memory.exp(x - m).sum()
    memory.store("loss", (row,), lse_of(m, s) - picked)
    memory.store("lse", (row,), lse_of(m, s))


def _cross_entropy_memory(count: int, columns: int, itemsize: int) -> Memory:
    memory = Memory()
    memory.put("logits", data(count, columns), itemsize)
    memory.put("targets", np.random.default_rng(columns).integers(0, columns, count), 8)
    return memory


@pytest.mark.parametrize("algorithm", ["three_pass", "online"])
@given(**SIZES)
@few
def test_cross_entropy(algorithm: str, count: int, columns: int, itemsize: int, block: int) -> None:
    memory = _cross_entropy_memory(count, columns + 1, itemsize)
    for name in ("loss", "lse"):
        memory.make(name, (count,), statistic(itemsize))
    for row in range(count):
        cross_entropy(memory, row, tiles(columns + 1, block), algorithm)
    assert_counted(model.count("cross_entropy", algorithm, Rows(count, columns + 1, itemsize)), memory)
    logs = reference(memory.tensors["logits"])[0]
    exact = -logs[np.arange(count), memory.tensors["targets"]]
    np.testing.assert_allclose(memory.tensors["loss"], exact, rtol=1e-12, atol=1e-12)


@given(**SIZES)
@few
def test_cross_entropy_standard(count: int, columns: int, itemsize: int, block: int) -> None:
    memory = _cross_entropy_memory(count, columns + 1, itemsize)
    memory.make("log_probs", (count, columns + 1), itemsize)
    memory.make("loss", (count,), statistic(itemsize))
    for row in range(count):
        x = [memory.load("logits", row, part) for part in tiles(columns + 1, block)]
        m = max(part.max() for part in x)
        s = sum(memory.exp(part - m).sum() for part in x)
        for part, kept in zip(tiles(columns + 1, block), x, strict=True):
            memory.store("log_probs", (row, part), kept - m - math.log(s))
    for row in range(count):
        target = memory.load("targets", row)
        memory.store("loss", (row,), -memory.load("log_probs", row, target))
    got = model.count("cross_entropy", "standard", Rows(count, columns + 1, itemsize))
    assert_counted(got, memory)
    assert [o.name for o in got.operands if o.temporary] == ["log_probs"]
    assert got.workspace == memory.size("log_probs")
    exact = -reference(memory.tensors["logits"])[0][np.arange(count), memory.tensors["targets"]]
    np.testing.assert_allclose(memory.tensors["loss"], exact, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("algorithm", ["standard", "online"])
@given(**SIZES)
@few
def test_cross_entropy_backward(algorithm: str, count: int, columns: int, itemsize: int, block: int) -> None:
    memory = _cross_entropy_memory(count, columns + 1, itemsize)
    logs, lse = reference(memory.tensors["logits"])
    dloss = data(count, seed=1)
    memory.put("dloss", dloss, statistic(itemsize))
    memory.make("dlogits", logs.shape, itemsize)
    if algorithm == "standard":
        del memory.tensors["logits"]
        memory.put("log_probs", logs, itemsize)
    else:
        memory.put("lse", lse, statistic(itemsize))
    for row in range(count):
        target, d = memory.load("targets", row), memory.load("dloss", row)
        shift = 0.0 if algorithm == "standard" else memory.load("lse", row)
        source = "log_probs" if algorithm == "standard" else "logits"
        for part in tiles(columns + 1, block):
            p = memory.exp(memory.load(source, row, part) - shift)
            onehot = np.arange(part.start, part.stop) == target
            memory.store("dlogits", (row, part), (p - onehot) * d)
    got = model.count("cross_entropy_backward", algorithm, Rows(count, columns + 1, itemsize))
    assert_counted(got, memory)
    onehot = np.arange(columns + 1) == memory.tensors["targets"][:, None]
    exact = (np.exp(logs) - onehot) * dloss[:, None]
    np.testing.assert_allclose(memory.tensors["dlogits"], exact, rtol=1e-12, atol=1e-12)


# ---- logits that are a product

ALL = slice(None)

SHAPES = st.builds(
    Projection,
    tokens=st.integers(1, 9),
    hidden=st.integers(1, 7),
    vocab=st.integers(1, 12),
    itemsize=st.sampled_from([1, 2, 4, 8]),
    block_tokens=st.integers(1, 11),
    block_vocab=st.integers(1, 14),
)
#: Tails on both sides; blocks that divide; one block larger than everything.
TAILS = Projection(7, 5, 11, 2, 3, 4)
EVEN = Projection(6, 4, 8, 4, 3, 4)
LARGE = Projection(3, 2, 5, 8)


def shapes(test: Callable[..., None]) -> Callable[..., None]:
    for case in (TAILS, EVEN, LARGE):
        test = example(shape=case)(test)
    return few(given(shape=SHAPES)(test))


def operands(shape: Projection) -> Memory:
    memory = Memory()
    memory.put("hidden", data(shape.tokens, shape.hidden), shape.itemsize)
    memory.put("weight", data(shape.vocab, shape.hidden), shape.itemsize)
    memory.put("targets", np.random.default_rng(1).integers(0, shape.vocab, shape.tokens), 8)
    return memory


def exact(memory: Memory) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Logits, loss and lse."""
    logits = memory.tensors["hidden"] @ memory.tensors["weight"].T
    logs, lse = reference(logits)
    return logits, -logs[np.arange(len(logs)), memory.tensors["targets"]], lse


def assert_loss(memory: Memory) -> None:
    _, loss, lse = exact(memory)
    np.testing.assert_allclose(memory.tensors["loss"], loss, rtol=1e-11, atol=1e-11)
    np.testing.assert_allclose(memory.tensors["lse"], lse, rtol=1e-11, atol=1e-11)


def results(memory: Memory, shape: Projection) -> None:
    for name in ("loss", "lse"):
        memory.make(name, (shape.tokens,), statistic(shape.itemsize))


@shapes
def test_standard(shape: Projection) -> None:
    memory = operands(shape)
    results(memory, shape)
    memory.make("logits", (shape.tokens, shape.vocab), shape.itemsize)
    for i in tiles(shape.tokens, shape.block_tokens):
        for j in tiles(shape.vocab, shape.block_vocab):
            product = memory.matmul(memory.load("hidden", i), memory.load("weight", j).T)
            memory.store("logits", (i, j), product)
    for row in range(shape.tokens):
        cross_entropy(memory, row, tiles(shape.vocab, shape.block_vocab), "online")
    got = model.count("linear_cross_entropy", "standard", shape)
    assert_counted(got, memory)
    assert got.workspace == memory.size("logits")
    assert_loss(memory)


@shapes
def test_fused(shape: Projection) -> None:
    memory, columns = operands(shape), tiles(shape.vocab, shape.block_vocab)
    results(memory, shape)
    # m, s, and the target's logit or 0 where another tile holds it.
    memory.make("states", (shape.tokens, len(columns), 3), statistic(shape.itemsize))
    for i in tiles(shape.tokens, shape.block_tokens):
        for c, j in enumerate(columns):
            logits = memory.matmul(memory.load("hidden", i), memory.load("weight", j).T)
            targets = memory.load("targets", i)
            held = np.arange(j.start, j.stop) == targets[:, None]
            m = logits.max(-1)
            s = memory.exp(logits - m[:, None]).sum(-1)
            memory.store("states", (i, c), np.stack([m, s, (logits * held).sum(-1)], -1))
    for row in range(shape.tokens):
        m, s, target = memory.load("states", row).T
        whole = (s * memory.exp(m - m.max())).sum()
        lse = m.max() + math.log(whole)
        memory.store("loss", (row,), lse - target.sum())
        memory.store("lse", (row,), lse)
    got = model.count("linear_cross_entropy", "fused", shape)
    assert_counted(got, memory)
    assert got.workspace == memory.size("states")
    assert_loss(memory)


# ---- backward


def gradients(memory: Memory, shape: Projection) -> tuple[np.ndarray, np.ndarray]:
    """What the kernels need besides, places for their results, and dlogits."""
    logits, _, lse = exact(memory)
    dloss = data(shape.tokens, seed=2)
    memory.put("lse", lse, statistic(shape.itemsize))
    memory.put("dloss", dloss, statistic(shape.itemsize))
    memory.make("dhidden", (shape.tokens, shape.hidden), shape.itemsize)
    memory.make("dweight", (shape.vocab, shape.hidden), shape.itemsize)
    onehot = np.arange(shape.vocab) == memory.tensors["targets"][:, None]
    return logits, (np.exp(logits - lse[:, None]) - onehot) * dloss[:, None]


def assert_gradients(memory: Memory, dlogits: np.ndarray) -> None:
    for name, value in (
        ("dhidden", dlogits @ memory.tensors["weight"]),
        ("dweight", dlogits.T @ memory.tensors["hidden"]),
    ):
        np.testing.assert_allclose(memory.tensors[name], value, rtol=1e-10, atol=1e-10)


def tile_of_dlogits(memory: Memory, logits: np.ndarray, j: slice, statistics: tuple[np.ndarray, ...]):
    lse, targets, dloss = (value[:, None] for value in statistics)
    return (memory.exp(logits - lse) - (np.arange(j.start, j.stop) == targets)) * dloss


def load_statistics(memory: Memory, i: slice) -> tuple[np.ndarray, ...]:
    return tuple(memory.load(name, i) for name in ("lse", "targets", "dloss"))


@shapes
def test_standard_backward(shape: Projection) -> None:
    memory = operands(shape)
    logits, dlogits = gradients(memory, shape)
    memory.put("logits", logits, shape.itemsize)
    memory.make("dlogits", logits.shape, shape.itemsize)
    for row in range(shape.tokens):
        one = slice(row, row + 1)
        statistics = load_statistics(memory, one)
        for j in tiles(shape.vocab, shape.block_vocab):
            tile = tile_of_dlogits(memory, memory.load("logits", one, j), j, statistics)
            memory.store("dlogits", (one, j), tile)
    # Tiles of a result are block_tokens by block_vocab, whatever its sides stand for.
    for i in tiles(shape.tokens, shape.block_tokens):
        for j in tiles(shape.hidden, shape.block_vocab):
            product = memory.matmul(memory.load("dlogits", i), memory.load("weight", ALL, j))
            memory.store("dhidden", (i, j), product)
    for i in tiles(shape.vocab, shape.block_tokens):
        for j in tiles(shape.hidden, shape.block_vocab):
            product = memory.matmul(memory.load("dlogits", ALL, i).T, memory.load("hidden", ALL, j))
            memory.store("dweight", (i, j), product)
    got = model.count("linear_cross_entropy_backward", "standard", shape)
    assert_counted(got, memory)
    assert got.workspace == memory.size("dlogits")
    assert_gradients(memory, dlogits)


@shapes
def test_fused_backward(shape: Projection) -> None:
    memory = operands(shape)
    _, dlogits = gradients(memory, shape)
    rows, columns = tiles(shape.tokens, shape.block_tokens), tiles(shape.vocab, shape.block_vocab)
    for i in rows:
        total = np.zeros((i.stop - i.start, shape.hidden))
        statistics = load_statistics(memory, i)
        for j in columns:
            logits = memory.matmul(memory.load("hidden", i), memory.load("weight", j).T)
            gradient = tile_of_dlogits(memory, logits, j, statistics)
            total += memory.matmul(gradient, memory.load("weight", j))
        memory.store("dhidden", (i,), total)
    for j in columns:
        total = np.zeros((j.stop - j.start, shape.hidden))
        for i in rows:
            logits = memory.matmul(memory.load("hidden", i), memory.load("weight", j).T)
            gradient = tile_of_dlogits(memory, logits, j, load_statistics(memory, i))
            total += memory.matmul(gradient.T, memory.load("hidden", i))
        memory.store("dweight", (j,), total)
    got = model.count("linear_cross_entropy_backward", "fused", shape)
    assert_counted(got, memory)
    assert got.workspace == 0
    assert_gradients(memory, dlogits)


def test_the_loss_of_the_standard_way_is_that_of_rows() -> None:
    """The logits and all that follows cost what cross_entropy does, and their writing."""
    whole = model.count("linear_cross_entropy", "standard", TAILS)
    loss = model.count("cross_entropy", "online", Rows(TAILS.tokens, TAILS.vocab, TAILS.itemsize))
    product = [whole[name].read for name in ("hidden", "weight")]
    assert whole.total == sum(product) + whole["logits"].written + loss.total
    assert whole.vector_flops == loss.vector_flops


@pytest.mark.parametrize("field", ["tokens", "hidden", "vocab", "block_tokens", "block_vocab"])
@pytest.mark.parametrize("size", [0, -1])
def test_sizes_are_of_at_least_one(field: str, size: int) -> None:
    sizes = {"tokens": 2, "hidden": 3, "vocab": 4, "itemsize": 4, field: size}
    with pytest.raises(ValueError, match=f"{field}={size}: a size of at least 1 would do"):
        Projection(**sizes)

"""Bytes of attention against kernels that run block by block, their every load and store counted.

Each kernel is written from its description and computes attention or its gradients, so that the blocks it
goes over are enough; a tile is needed where any of its queries sees any of its keys, place by place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from test_traffic_rows import Memory, assert_counted, data, tiles

from online_softmax.traffic import attention, model
from online_softmax.traffic.shapes import Attention, statistic

few = settings(deadline=None, max_examples=150, derandomize=True)


@st.composite
def _shapes(draw: Callable[..., Any]) -> Attention:
    kv_heads, seq_k = draw(st.integers(1, 2)), draw(st.integers(1, 13))
    return Attention(
        batch=draw(st.integers(1, 2)),
        heads=kv_heads * draw(st.integers(1, 3)),
        kv_heads=kv_heads,
        seq_q=draw(st.integers(1, 13)),
        seq_k=seq_k,
        head_dim=draw(st.integers(1, 4)),
        itemsize=draw(st.sampled_from([1, 2, 4, 8])),
        block_q=draw(st.integers(1, 15)),
        block_k=draw(st.integers(1, 15)),
        splits=draw(st.integers(1, seq_k)),
        causal=draw(st.booleans()),
    )


CASES = (
    # Tails on both sides, more keys than queries, shared heads.
    Attention(2, 6, 2, 7, 12, 3, 2, block_q=3, block_k=5, splits=5, causal=True),
    # More queries than keys: the first ones see nothing, one block of them nothing at all.
    Attention(1, 2, 1, 11, 4, 3, 4, block_q=3, block_k=3, splits=3, causal=True),
    # Blocks that divide; as many queries as keys.
    Attention(1, 1, 1, 8, 8, 4, 8, block_q=4, block_k=2, splits=4, causal=True),
    # Blocks larger than the sequences, the sizes of the model.
    Attention(1, 2, 2, 5, 9, 2, 1, splits=2, causal=False),
    # Decoding: one query for many keys.
    Attention(2, 4, 2, 1, 13, 4, 2, block_q=2, block_k=4, splits=4, causal=True),
)


def shapes(test: Callable[..., None]) -> Callable[..., None]:
    for case in CASES:
        test = example(shape=case)(test)
    return few(given(shape=_shapes())(test))


def seen(shape: Attention, i: slice, j: slice) -> np.ndarray:
    """Which queries see which keys: the last query stands at the last key."""
    places = np.arange(shape.seq_q)[i, None] + (shape.seq_k - shape.seq_q)
    keys = np.arange(shape.seq_k)[None, j]
    return (keys <= places) if shape.causal else np.full((places.size, keys.size), True)


def heads(shape: Attention) -> Iterator[tuple[int, int, int]]:
    """(batch, query head, its key-value head)."""
    group = shape.heads // shape.kv_heads
    for b in range(shape.batch):
        for h in range(shape.heads):
            yield b, h, h // group


def operands(shape: Attention) -> Memory:
    memory = Memory()
    for seed, (name, count, length) in enumerate(
        (
            ("q", shape.heads, shape.seq_q),
            ("k", shape.kv_heads, shape.seq_k),
            ("v", shape.kv_heads, shape.seq_k),
        )
    ):
        memory.put(name, data(shape.batch, count, length, shape.head_dim, seed=seed), shape.itemsize)
    return memory


def of_queries(shape: Attention) -> tuple[int, int, int]:
    return shape.batch, shape.heads, shape.seq_q


def exact(memory: Memory, shape: Attention) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Weights, output and lse; a query that sees nothing has weights and output 0, lse -inf."""
    group = shape.heads // shape.kv_heads
    k, v = (memory.tensors[name].repeat(group, axis=1) for name in "kv")
    whole = seen(shape, slice(None), slice(None))
    e = np.exp(memory.tensors["q"] @ k.swapaxes(-1, -2)) * whole
    total = e.sum(-1, keepdims=True)
    weights = e / np.where(total, total, 1.0)
    with np.errstate(divide="ignore"):
        return weights, weights @ v, np.log(total[..., 0])


def close(memory: Memory, name: str, value: np.ndarray) -> None:
    np.testing.assert_allclose(memory.tensors[name], value, rtol=1e-9, atol=1e-9)


# ---- forward


@shapes
def test_standard(shape: Attention) -> None:
    memory = operands(shape)
    for name in ("scores", "weights"):
        memory.make(name, (*of_queries(shape), shape.seq_k), shape.itemsize)
    memory.make("out", memory.tensors["q"].shape, shape.itemsize)
    rows, columns = tiles(shape.seq_q, shape.block_q), tiles(shape.seq_k, shape.block_k)
    for b, h, g in heads(shape):
        for i in rows:
            for j in columns:
                q, k = memory.load("q", b, h, i), memory.load("k", b, g, j)
                memory.store("scores", (b, h, i, j), memory.matmul(q, k.T))
    for b, h, _ in heads(shape):
        for row in range(shape.seq_q):
            # All the scores are there, and all of them go through the softmax, whoever sees them.
            scores = memory.load("scores", b, h, row)
            e = memory.exp(scores) * seen(shape, slice(row, row + 1), slice(None))[0]
            memory.store("weights", (b, h, row), e / (e.sum() or 1.0))
    for b, h, g in heads(shape):
        for i in rows:
            product = memory.matmul(memory.load("weights", b, h, i), memory.load("v", b, g))
            memory.store("out", (b, h, i), product)
    got = model.count("attention", "standard", shape)
    assert_counted(got, memory)
    assert got.workspace == memory.size("scores") + memory.size("weights")
    close(memory, "out", exact(memory, shape)[1])


@shapes
def test_flash(shape: Attention) -> None:
    memory = operands(shape)
    memory.make("out", memory.tensors["q"].shape, shape.itemsize)
    memory.make("lse", of_queries(shape), statistic(shape.itemsize))
    for b, h, g in heads(shape):
        for i in tiles(shape.seq_q, shape.block_q):
            q = memory.load("q", b, h, i)
            o, s = np.zeros(q.shape), np.zeros(len(q))
            for j in tiles(shape.seq_k, shape.block_k):
                mask = seen(shape, i, j)
                if not mask.any():
                    continue
                # Small scores: a pivot of 0 is as good as the running maximum, and the bytes are the same.
                p = memory.exp(memory.matmul(q, memory.load("k", b, g, j).T)) * mask
                o += memory.matmul(p, memory.load("v", b, g, j))
                s += p.sum(-1)
            memory.store("out", (b, h, i), o / np.where(s, s, 1.0)[:, None])
            with np.errstate(divide="ignore"):
                memory.store("lse", (b, h, i), np.log(s))
    got = model.count("attention", "flash", shape)
    assert_counted(got, memory)
    assert got.workspace == 0
    _, out, lse = exact(memory, shape)
    close(memory, "out", out)
    close(memory, "lse", lse)


# ---- backward


def gradients(shape: Attention) -> tuple[Memory, dict[str, np.ndarray]]:
    """Inputs and places for the results, dk and dv by query head; and what the results must be."""
    memory = operands(shape)
    weights, out, lse = exact(memory, shape)
    dout = data(*memory.tensors["q"].shape, seed=4)
    group = shape.heads // shape.kv_heads
    k, v = (memory.tensors[name].repeat(group, axis=1) for name in "kv")
    dscores = weights * (dout @ v.swapaxes(-1, -2) - (dout * out).sum(-1, keepdims=True))
    memory.put("dout", dout, shape.itemsize)
    memory.make("dq", dout.shape, shape.itemsize)
    for name in ("dk", "dv"):
        memory.make(name, k.shape, shape.itemsize)
    exactly = {
        "dq": dscores @ k,
        "dk": dscores.swapaxes(-1, -2) @ memory.tensors["q"],
        "dv": weights.swapaxes(-1, -2) @ dout,
    }
    return memory, exactly | {"weights": weights, "out": out, "lse": lse}


def assert_gradients(
    shape: Attention, algorithm: str, memory: Memory, exactly: dict[str, np.ndarray]
) -> None:
    got = model.count("attention_backward", algorithm, shape)
    # What is written of dk and dv is held to the count here, the room for it in a test of its own.
    sized = [replace(o, size=memory.size(o.name)) if o.name in ("dk", "dv") else o for o in got.operands]
    assert_counted(replace(got, operands=tuple(sized)), memory)
    for name in ("dq", "dk", "dv"):
        close(memory, name, exactly[name])


@pytest.mark.parametrize("algorithm", ["standard", "flash"])
def test_gradients_written_by_query_head_have_room_for_each(algorithm: str) -> None:
    """Heads that share keys each write a dk and dv of their own: as many places as are written."""
    got = model.count("attention_backward", algorithm, CASES[0])
    for name in ("dk", "dv"):
        assert got[name].size >= got[name].written


@shapes
def test_standard_backward(shape: Attention) -> None:
    memory, exactly = gradients(shape)
    memory.put("weights", exactly["weights"], shape.itemsize)
    for name in ("dweights", "dscores"):
        memory.make(name, exactly["weights"].shape, shape.itemsize)
    rows, columns = tiles(shape.seq_q, shape.block_q), tiles(shape.seq_k, shape.block_k)
    by_keys = tiles(shape.seq_k, shape.block_q)  # block_q rows of a result, the whole width
    for b, h, g in heads(shape):
        for j in by_keys:
            p, dout = memory.load("weights", b, h, slice(None), j), memory.load("dout", b, h)
            memory.store("dv", (b, h, j), memory.matmul(p.T, dout))
        for i in rows:
            for j in columns:
                dout, v = memory.load("dout", b, h, i), memory.load("v", b, g, j)
                memory.store("dweights", (b, h, i, j), memory.matmul(dout, v.T))
        for row in range(shape.seq_q):
            p, dp = memory.load("weights", b, h, row), memory.load("dweights", b, h, row)
            memory.store("dscores", (b, h, row), p * (dp - (p * dp).sum()))
        for i in rows:
            product = memory.matmul(memory.load("dscores", b, h, i), memory.load("k", b, g))
            memory.store("dq", (b, h, i), product)
        for j in by_keys:
            ds = memory.load("dscores", b, h, slice(None), j)
            memory.store("dk", (b, h, j), memory.matmul(ds.T, memory.load("q", b, h)))
    assert_gradients(shape, "standard", memory, exactly)
    room = memory.size("dweights") + memory.size("dscores")
    assert model.count("attention_backward", "standard", shape).workspace >= room


def _again(memory: Memory, shape: Attention, loaded: dict[str, Any], i: slice, j: slice) -> tuple[Any, Any]:
    """P and dS of a tile, from what was loaded of it."""
    scores = memory.matmul(loaded["q"], loaded["k"].T)
    seen_by = seen(shape, i, j)
    lse = np.where(np.isinf(loaded["lse"]), 0.0, loaded["lse"])
    p = memory.exp(scores - lse[:, None]) * seen_by
    dp = memory.matmul(loaded["dout"], loaded["v"].T)
    return p, p * (dp - loaded["delta"][:, None])


OF_QUERIES, OF_KEYS = ("q", "dout", "lse", "delta"), ("k", "v")


@shapes
def test_flash_backward(shape: Attention) -> None:
    memory, exactly = gradients(shape)
    memory.put("out", exactly["out"], shape.itemsize)
    memory.put("lse", exactly["lse"], statistic(shape.itemsize))
    memory.make("delta", of_queries(shape), statistic(shape.itemsize))
    rows, columns = tiles(shape.seq_q, shape.block_q), tiles(shape.seq_k, shape.block_k)
    for b, h, _ in heads(shape):
        for i in rows:
            product = memory.load("out", b, h, i) * memory.load("dout", b, h, i)
            memory.store("delta", (b, h, i), product.sum(-1))
    for b, h, g in heads(shape):
        for j in columns:
            mine = {name: memory.load(name, b, g, j) for name in OF_KEYS}
            dk, dv = np.zeros(mine["k"].shape), np.zeros(mine["v"].shape)
            for i in rows:
                if seen(shape, i, j).any():
                    loaded = mine | {name: memory.load(name, b, h, i) for name in OF_QUERIES}
                    p, ds = _again(memory, shape, loaded, i, j)
                    dv += memory.matmul(p.T, loaded["dout"])
                    dk += memory.matmul(ds.T, loaded["q"])
            memory.store("dk", (b, h, j), dk)
            memory.store("dv", (b, h, j), dv)
    for b, h, g in heads(shape):
        for i in rows:
            mine = {name: memory.load(name, b, h, i) for name in OF_QUERIES}
            dq = np.zeros(mine["q"].shape)
            for j in columns:
                if seen(shape, i, j).any():
                    loaded = mine | {name: memory.load(name, b, g, j) for name in OF_KEYS}
                    dq += memory.matmul(_again(memory, shape, loaded, i, j)[1], loaded["k"])
            memory.store("dq", (b, h, i), dq)
    assert_gradients(shape, "flash", memory, exactly)
    assert model.count("attention_backward", "flash", shape).workspace >= memory.size("delta")


# ---- decoding


def whole(shape: Attention) -> Attention:
    """Decoding as it is counted: every query sees every key."""
    return replace(shape, causal=False)


@shapes
def test_decode_single(shape: Attention) -> None:
    shape = whole(shape)
    memory, group = operands(shape), shape.heads // shape.kv_heads
    memory.make("out", memory.tensors["q"].shape, shape.itemsize)
    for b in range(shape.batch):
        for g in range(shape.kv_heads):
            mine = slice(g * group, (g + 1) * group)
            q = memory.load("q", b, mine).reshape(-1, shape.head_dim)
            p = memory.exp(memory.matmul(q, memory.load("k", b, g).T))
            o = memory.matmul(p, memory.load("v", b, g)) / p.sum(-1, keepdims=True)
            memory.store("out", (b, mine), o.reshape(group, shape.seq_q, -1))
    assert_counted(model.count("decode", "single", shape), memory)
    close(memory, "out", exact(memory, shape)[1])


@shapes
def test_decode_split_kv(shape: Attention) -> None:
    shape = whole(shape)
    memory, group = operands(shape), shape.heads // shape.kv_heads
    memory.make("out", memory.tensors["q"].shape, shape.itemsize)
    partial = (*of_queries(shape), shape.splits)
    memory.make("partial_out", (*partial, shape.head_dim), statistic(shape.itemsize))
    memory.make("partial_lse", partial, statistic(shape.itemsize))
    for b in range(shape.batch):
        for g in range(shape.kv_heads):
            mine = slice(g * group, (g + 1) * group)
            for part, places in enumerate(np.array_split(np.arange(shape.seq_k), shape.splits)):
                keys = slice(places[0], places[-1] + 1)
                q = memory.load("q", b, mine).reshape(-1, shape.head_dim)
                p = memory.exp(memory.matmul(q, memory.load("k", b, g, keys).T))
                s = p.sum(-1)
                o = memory.matmul(p, memory.load("v", b, g, keys)) / s[:, None]
                where = (b, mine, slice(None), part)
                memory.store("partial_out", where, o.reshape(group, shape.seq_q, -1))
                memory.store("partial_lse", where, np.log(s).reshape(group, -1))
    for b, h, _ in heads(shape):
        for row in range(shape.seq_q):
            lse, o = memory.load("partial_lse", b, h, row), memory.load("partial_out", b, h, row)
            w = memory.exp(lse - lse.max())
            memory.store("out", (b, h, row), w @ o / w.sum())
    got = model.count("decode", "split_kv", shape)
    assert_counted(got, memory)
    assert got.workspace == memory.size("partial_out") + memory.size("partial_lse")
    close(memory, "out", exact(memory, shape)[1])


def test_one_query_sees_every_key_causal_or_not() -> None:
    shape = Attention(2, 4, 2, 1, 100, 8, 2, splits=3, causal=True)
    for operation in ("attention", "decode"):
        for algorithm in model.algorithms(operation):
            assert model.count(operation, algorithm, shape) == model.count(
                operation, algorithm, replace(shape, causal=False)
            )


# ---- what blocks see, place by place


@shapes
def test_visible_keys_and_queries(shape: Attention) -> None:
    rows, columns = tiles(shape.seq_q, shape.block_q), tiles(shape.seq_k, shape.block_k)
    for n, i in enumerate(rows):
        needed = [j for j in columns if seen(shape, i, j).any()]
        assert attention.visible_keys(shape, n) == sum(j.stop - j.start for j in needed)
    for n, j in enumerate(columns):
        needed = [i for i in rows if seen(shape, i, j).any()]
        assert attention.visible_queries(shape, n) == sum(i.stop - i.start for i in needed)


def test_half_of_the_tiles_and_the_diagonal_with_causal() -> None:
    """8 by 8 square tiles: 36 of 64 are needed, in every kernel."""
    shape = Attention(1, 1, 1, 1024, 1024, 64, 2, block_q=128, block_k=128)
    full, causal = (
        model.count("attention", "flash", replace(shape, causal=causal)) for causal in (False, True)
    )
    assert causal["q"] == full["q"]
    assert Fraction(causal["k"].read, full["k"].read) == Fraction(36, 64)
    assert Fraction(causal.exps, full.exps) == Fraction(36, 64)
    back, half = (
        model.count("attention_backward", "flash", replace(shape, causal=causal)) for causal in (False, True)
    )
    assert Fraction(half.matrix_flops, back.matrix_flops) == Fraction(36, 64)


# ---- wrong sizes


@pytest.mark.parametrize(
    ("change", "error", "names"),
    [
        ({"heads": 3}, ValueError, "heads=3: a multiple of kv_heads=2 would do"),
        ({"heads": 1}, ValueError, "heads=1: a multiple of kv_heads=2"),
        ({"kv_heads": 0}, ValueError, "kv_heads=0"),
        ({"splits": 9}, ValueError, "splits=9: 1 to seq_k=8 would do"),
        ({"splits": 0}, ValueError, "splits=0"),
        ({"seq_q": 0}, ValueError, "seq_q=0"),
        ({"seq_k": -1}, ValueError, "seq_k=-1"),
        ({"block_q": 0}, ValueError, "block_q=0"),
        ({"head_dim": 2.5}, TypeError, "head_dim=2.5"),
        ({"itemsize": 16}, ValueError, "itemsize=16"),
    ],
)
def test_wrong_sizes_are_named(change: dict[str, Any], error: type[Exception], names: str) -> None:
    sizes = {"batch": 1, "heads": 4, "kv_heads": 2, "seq_q": 4, "seq_k": 8, "head_dim": 4, "itemsize": 2}
    with pytest.raises(error, match=names):
        Attention(**(sizes | change))

"""What attention promises about bits: order="row" for a query whatever stands beside it, order="any" for a
set of super-tiles however it was cut and merged."""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from attention_cases import every_isa

import online_softmax as osm
from online_softmax import attention

RNG = np.random.default_rng(8)
DTYPES = {
    "float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
}  # fmt: skip
every_dtype = pytest.mark.parametrize("dtype", DTYPES)
both_orders = pytest.mark.parametrize("order", ["row", "any"])
B, H, G, L, S = 2, 4, 2, 60, 700
INF, NAN = np.inf, np.nan


def normal(dtype: str, *shape: int) -> np.ndarray:
    return (RNG.standard_normal(shape) * 2).astype(DTYPES[dtype])


def operands(dtype: str, d: int = 40, dv: int = 24) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return normal(dtype, B, H, L, d), normal(dtype, B, G, S, d), normal(dtype, B, G, S, dv)


def bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


class Same:
    """Bits of output and lse, rows in front: (batch, heads, queries)."""

    def __init__(self, *operands: np.ndarray, **options: Any) -> None:
        made = attention(*operands, return_lse=True, **options)
        self.output, self.lse = bits(made.output), bits(made.lse)

    def __getitem__(self, at: Any) -> Same:
        part = object.__new__(Same)
        part.output, part.lse = self.output[at], self.lse[at]
        return part

    def __eq__(self, other: object) -> bool:
        assert isinstance(other, Same)
        return np.array_equal(self.output, other.output) and np.array_equal(self.lse, other.lse)

    __hash__ = None  # type: ignore[assignment]


# ---- what neither order depends on


@both_orders
@every_isa
@every_dtype
def test_neither_batch_nor_other_queries_nor_heads_change_a_bit(isa: str, dtype: str, order: str) -> None:
    q, k, v = operands(dtype)
    whole = Same(q, k, v, isa=isa, order=order, threads=1)
    assert Same(q[1:], k[1:], v[1:], isa=isa, order=order) == whole[1:]
    for i in (0, 17, L - 1):  # alone: keys are packed piece by piece on the way
        assert Same(q[:, :, i : i + 1], k, v, isa=isa, order=order) == whole[:, :, i : i + 1]
    assert Same(q[:, :, 5:12], k, v, isa=isa, order=order) == whole[:, :, 5:12]
    assert Same(q[:, 3:], k[:, 1:], v[:, 1:], isa=isa, order=order) == whole[:, 3:]
    repeated = np.repeat(k, H // G, axis=1), np.repeat(v, H // G, axis=1)
    assert Same(q, *repeated, isa=isa, order=order) == whole
    assert Same(q, k, v, isa=isa, order=order, threads=3) == whole


@both_orders
@every_dtype
def test_neither_layout_nor_pages_nor_padding_change_a_bit(dtype: str, order: str) -> None:
    q, k, v = operands(dtype)
    whole = Same(q, k, v, order=order)
    turned = [np.asfortranarray(a) for a in (q, k, v)]
    assert Same(*turned, order=order) == whole
    swapped = Same(*(a.swapaxes(1, 2) for a in (q, k, v)), layout="BSHD", order=order)
    assert swapped.output.swapaxes(1, 2).tolist() == whole.output.tolist()

    beside = [np.concatenate([a[b].swapaxes(0, 1) for b in range(B)]) for a in (q, k, v)]
    packed = Same(*beside, cu_seqlens_q=np.arange(B + 1) * L, cu_seqlens_k=np.arange(B + 1) * S, order=order)
    assert np.array_equal(packed.output.reshape(B, L, H, -1).swapaxes(1, 2), whole.output)
    assert np.array_equal(packed.lse.reshape(B, L, H).swapaxes(1, 2), whole.lse)

    rest = [normal(dtype, B, G, 37, a.shape[-1]) for a in (k, v)]
    rest[0][:] = rest[1][:] = NAN
    padded = [np.concatenate(pair, axis=2) for pair in zip((k, v), rest, strict=True)]
    assert Same(q, *padded, seqlens_k=np.full(B, S), order=order) == whole
    mask = np.arange(S + 37) < S
    assert Same(q, *padded, mask=mask, order=order) == whole
    assert Same(q, *padded, bias=np.where(mask, 0, -INF), order=order) == whole


@both_orders
@pytest.mark.parametrize("size", [1, 48, 512, 700])
def test_pages_change_no_bit(size: int, order: str) -> None:
    q, k, v = operands("bfloat16")
    blocks = -(-S // size)
    table = RNG.permutation(B * blocks).reshape(B, blocks)
    pools = [np.full((B * blocks, size, G, a.shape[-1]), NAN, a.dtype) for a in (k, v)]
    for pool, a in zip(pools, (k, v), strict=True):
        for b, j in np.ndindex(B, S):
            pool[table[b, j // size], j % size] = a[b, :, j]
    paged = Same(q, *pools, block_table=table, seqlens_k=np.full(B, S), order=order)
    assert paged == Same(q, k, v, order=order)


@both_orders
@every_dtype
@pytest.mark.parametrize("d", [16, 40, 96])
def test_a_mask_or_bias_that_changes_nothing_changes_no_bit(dtype: str, d: int, order: str) -> None:
    q, k, v = operands(dtype, d)
    plain = Same(q, k, v, order=order)
    assert Same(q, k, v, mask=np.ones((S,), bool), order=order) == plain
    assert Same(q, k, v, bias=np.zeros((1, S)), order=order) == plain
    assert Same(q, k, v, alibi_slopes=np.zeros(H), order=order) == plain
    assert Same(q, k, v, window=(S, S), order=order) == plain
    own = np.arange(L)[:, None] + S - L
    far = own - np.arange(S)
    causal = Same(q, k, v, causal=True, order=order)
    assert Same(q, k, v, mask=far >= 0, order=order) == causal
    low = np.where(far >= 0, 0.0, -1e9)  # as masks are often written: such a weight vanishes
    assert Same(q, k, v, bias=low if dtype == "float64" else low.astype(np.float32), order=order) == causal
    windowed = Same(q, k, v, causal=True, window=(99, None), order=order)
    assert Same(q, k, v, mask=(far >= 0) & (far <= 99), order=order) == windowed
    assert causal != windowed


@both_orders
@every_isa
@pytest.mark.parametrize("cuts", [(512,), (1, 2, 100, 699), (640, 641)])
def test_a_prefill_in_pieces_has_the_bits_of_the_whole(isa: str, cuts: tuple[int, ...], order: str) -> None:
    q, k, v = normal("float32", 1, 2, S, 80), normal("float32", 1, 1, S, 80), normal("float32", 1, 1, S, 80)
    for options in ({"causal": True}, {"causal": True, "window": (150, None), "softcap": 20.0}):
        whole = Same(q, k, v, isa=isa, order=order, **options)
        for a, b in itertools.pairwise((0, *cuts, S)):
            piece = Same(q[:, :, a:b], k[:, :, :b], v[:, :, :b], isa=isa, order=order, **options)
            assert piece == whole[:, :, a:b]


@pytest.mark.parametrize(("order", "gone"), [("row", 4096), ("any", 512), ("any", 4096)])
def test_keys_that_left_the_window_may_leave_the_cache_in_whole_pieces(order: str, gone: int) -> None:
    q, k, v = (normal("float32", 1, 2, n, 24) for n in (5, 4700, 4700))
    options: dict[str, Any] = {"causal": True, "window": (300, None), "order": order}
    whole = Same(q, k, v, **options)
    assert Same(q, k[:, :, gone:], v[:, :, gone:], **options) == whole


@both_orders
def test_the_gradient_takes_either_order(order: str) -> None:
    q, k, v = operands("float64")
    do = normal("float64", B, H, L, v.shape[-1])
    row = attention(q, k, v, causal=True, return_lse=True)
    made = attention(q, k, v, causal=True, return_lse=True, order=order)
    expected = osm.attention_backward(do, q, k, v, *row, causal=True)
    got = osm.attention_backward(do, q, k, v, *made, causal=True)
    for name in ("q", "k", "v"):
        assert np.allclose(getattr(got, name), getattr(expected, name), rtol=1e-11, atol=1e-11)


@both_orders
def test_threads_that_share_out_the_keys_change_no_bit(order: str) -> None:
    q, k, v = (normal("float32", 1, 1, n, 16) for n in (3, 9000, 9000))
    one = Same(q, k, v, threads=1, order=order)
    for threads in (2, 5, 16):
        assert Same(q, k, v, threads=threads, order=order) == one
    assert Same(q[:, :, :1], k, v, threads=4, order=order) == one[:, :, :1]


@both_orders
def test_zeros_and_nans_are_one_of_a_kind(order: str) -> None:
    q, k, v = normal("float32", 1, 1, 1, 8), normal("float32", 1, 1, 3, 8), np.zeros((1, 1, 3, 8), np.float32)
    v[0, 0, 0] = [-1e-45, 1e-45, -0.0, 0.0, NAN, -NAN, INF, -INF]
    small = attention(q, k, v, bias=np.array([[-40.0, 0, 0]]), order=order)[0, 0, 0]
    assert not np.signbit(small[:4]).any()
    assert (bits(small[4:6]) == bits(np.float32([NAN]))).all()
    assert small[6:].tolist() == [INF, -INF]

"""softmax_topk in one pass: values, order, ties, NaN, any k up to the limit."""

# ruff: noqa: E402  # what is imported last needs the two libraries
from __future__ import annotations

import numpy as np
import pytest
from helpers import assert_close, assert_same_bits, noise

pytest.importorskip("triton", reason="triton is not installed: pip install 'online-softmax[triton]'")
torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'online-softmax[torch]'")

from gpu_helpers import NARROW, gpu_bound, to_numpy, to_torch

from online_softmax import reference
from online_softmax.gpu import launch, ops

BLOCK = 16
INF, NAN = np.inf, np.nan


def check(x: np.ndarray, k: int, block: int | None) -> None:
    got = ops.softmax_topk(to_torch(x), k, block=block)
    values, indices, lse = reference.softmax_topk(x, k)
    assert got.indices.dtype == torch.int64
    np.testing.assert_array_equal(got.indices.numpy(), indices)
    wide = x.astype(np.float64)
    every = reference.softmax(x)
    allowed = gpu_bound("softmax", wide, every, x.dtype, block, shifted=True)
    assert_close(to_numpy(got.values), values, np.take_along_axis(allowed, indices, axis=-1))
    assert got.lse.dtype == torch.float32
    assert_close(got.lse.numpy(), lse, gpu_bound("logsumexp", wide, lse, x.dtype, block, shifted=True))


@pytest.mark.parametrize("dtype", NARROW.values(), ids=NARROW)
@pytest.mark.parametrize("k", [1, 2, 5, 16, 17, 35])
def test_the_largest_in_order(k: int, dtype: np.dtype) -> None:
    check(noise((2, 35), dtype, seed=k), k, BLOCK)


def test_sizes_around_a_block() -> None:
    for columns in (1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK):
        check(noise((1, columns), NARROW["f32"], seed=columns), min(3, columns), BLOCK)
    for columns in (513, 1025):
        check(noise((1, columns), NARROW["f32"], seed=columns), 4, None)


def test_as_many_as_the_limit() -> None:
    columns = launch.MAX_K + 3
    x = to_torch(np.arange(columns, dtype=np.float32)[None, :] / 64)
    got = ops.softmax_topk(x, launch.MAX_K)
    assert torch.equal(got.indices, torch.arange(columns - 1, 2, -1)[None, :])
    with pytest.raises(
        ValueError, match=r"^k=1025: 0 to 1024 would do for .* \(the limit on a GPU is 1024\)$"
    ):
        ops.softmax_topk(x, launch.MAX_K + 1)


def test_rising_and_falling_rows() -> None:
    """At its worst and at its best."""
    x = np.arange(3 * BLOCK, dtype=np.float32)
    check(np.stack([x, -x]), 10, BLOCK)


def test_ties_go_to_the_lower_index_and_zeros_of_both_signs_tie() -> None:
    x = np.zeros((3, 2 * BLOCK + 1), np.float32)
    x[1, ::2] = -0.0
    x[2, [3, 20, 30]] = 1
    check(x, 5, BLOCK)


def test_special_rows() -> None:
    columns = 2 * BLOCK + 1
    x = noise((6, columns), NARROW["f32"])
    x[0, [4, 20]] = NAN
    x[0, 20:21].view(np.uint32)[:] |= 0x80000000  # the sign of NaN orders nothing
    x[1, [3, 18]] = INF
    x[2] = -INF
    x[3, 2:] = -INF
    x[4, [0, 7]] = INF, NAN
    x[5, -1] = INF
    check(x, 4, BLOCK)


def test_another_axis_in_any_strides() -> None:
    x = to_torch(noise((2, 20, 3), NARROW["f16"]))
    got = ops.softmax_topk(x, 4, 1)
    assert [tuple(part.shape) for part in got] == [(2, 4, 3), (2, 4, 3), (2, 3)]
    rows = ops.softmax_topk(x.movedim(1, -1).reshape(6, 20).contiguous(), 4)
    for part, flat in zip(got[:2], rows[:2], strict=True):
        assert_same_bits(to_numpy(part.movedim(1, -1).reshape(6, 4)), to_numpy(flat))
    assert torch.equal(got.lse.reshape(6), rows.lse)
    spread = torch.zeros(4, 2, 6, 20)[::2, :, ::2]
    spread.copy_(x.movedim(1, -1).unsqueeze(1).expand(2, 2, 3, 20))
    assert torch.equal(ops.softmax_topk(spread, 4).indices[:, 1].reshape(6, 4), rows.indices)


def test_none_of_them() -> None:
    x = to_torch(noise((2, 20), NARROW["f32"]))
    got = ops.softmax_topk(x, 0)
    assert got.values.shape == got.indices.shape == (2, 0)
    assert torch.equal(got.lse, ops.logsumexp(x))
    empty = ops.softmax_topk(torch.zeros(3, 0), 0)
    assert (empty.lse == -INF).all()
    assert ops.softmax_topk(torch.zeros(0, 5), 2).values.shape == (0, 2)

"""The gradients, against their formulas in float64, which are held to torch's autograd."""

# ruff: noqa: E402  # what is imported last needs the two libraries
from __future__ import annotations

import numpy as np
import pytest
from helpers import assert_close, assert_same_bits, noise, ulp

pytest.importorskip("triton", reason="triton is not installed: pip install 'online-softmax[triton]'")
torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'online-softmax[torch]'")

from gpu_helpers import NARROW, TINY, U, exp_error, to_numpy, to_torch

from online_softmax import reference
from online_softmax.gpu import launch, ops
from online_softmax.numerics import bounds

BLOCK = 16
SIZES = (1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5)
each_dtype = pytest.mark.parametrize("dtype", NARROW.values(), ids=NARROW)
INF, NAN = np.inf, np.nan


def formula(op: str, y: np.ndarray, dy: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(gradient, size of its terms, sum of the sizes of what is summed) in float64."""
    terms = y * dy if op == "softmax" else dy
    total, size = terms.sum(axis=-1, keepdims=True), np.abs(terms).sum(axis=-1, keepdims=True)
    factor = y if op == "softmax" else np.exp(y)
    dx = y * (dy - total) if op == "softmax" else dy - factor * total
    parts = np.abs(factor) * (np.abs(total) + (np.abs(dy) if op == "softmax" else 0))
    return dx, parts + (np.abs(dy) if op != "softmax" else 0), np.abs(factor) * size


def check(op: str, y: np.ndarray, dy: np.ndarray, **options) -> None:
    got = to_numpy(getattr(ops, f"{op}_backward")(to_torch(y), to_torch(dy), **options))
    wide = y.astype(np.float64)
    dx, parts, sums = formula(op, wide, dy.astype(np.float64))
    block = max(options.get("block") or 0, launch.covering(y.shape[-1]))
    steps = y.shape[-1] // BLOCK + 1
    allowed = 4 * U * parts + (bounds.pairwise_depth(block) + steps + 1) * U * sums + TINY
    if op == "log_softmax":
        allowed = allowed + exp_error(-wide, corrected=y.dtype == np.float32) * sums
    assert_close(got, dx, allowed + 0.5 * ulp(dx, y.dtype), f"{op} {y.shape} {options}")


@each_dtype
@pytest.mark.parametrize("algorithm", ["online", "cached"])
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_from_the_result(op: str, algorithm: str, dtype: np.dtype) -> None:
    for columns in SIZES:
        if algorithm == "cached" and columns > 2 * BLOCK:
            continue
        block = 2 * BLOCK if algorithm == "cached" else BLOCK
        y = getattr(reference, op)(noise((2, columns), dtype, seed=columns)).astype(dtype)
        check(op, y, noise((2, columns), dtype, seed=1), algorithm=algorithm, block=block)


@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_by_the_tables(op: str) -> None:
    for rows, columns in ((3, 14), (130, 5), (1, 1025), (1, launch.MAX_BACKWARD_BLOCK + 1)):
        y = getattr(reference, op)(noise((rows, columns), NARROW["f32"])).astype(np.float32)
        check(op, y, noise((rows, columns), NARROW["f32"], seed=1))


@pytest.mark.parametrize("op", ["softmax", "log_softmax", "logsumexp"])
def test_the_formulas_are_those_of_autograd(op: str) -> None:
    x = noise((3, 50), np.dtype(np.float64))
    leaf = torch.from_numpy(x).requires_grad_()
    y = getattr(torch, op)(leaf, -1)
    dy = torch.from_numpy(noise(tuple(y.shape), np.dtype(np.float64), seed=1))
    (dx,) = torch.autograd.grad(y, leaf, dy)
    made = y.detach().numpy()
    if op == "logsumexp":
        formed = np.exp(x - made[:, None]) * dy.numpy()[:, None]
    else:
        formed = formula(op, made, dy.numpy())[0]
    np.testing.assert_allclose(formed, dx.numpy(), rtol=0, atol=1e-14)


@each_dtype
@pytest.mark.parametrize("block", [None, BLOCK])
def test_of_the_log_sum_exp(block: int | None, dtype: np.dtype) -> None:
    for rows, columns in ((2, 1), (2, BLOCK), (1, 3 * BLOCK + 1), (70, 9)):
        x = noise((rows, columns), dtype, seed=columns)
        lse = reference.logsumexp(x).astype(np.float32)
        dlse = noise((rows,), NARROW["f32"], seed=2)
        got = to_numpy(ops.logsumexp_backward(to_torch(x), to_torch(lse), to_torch(dlse), block=block))
        distance = lse[:, None].astype(np.float64) - x.astype(np.float64)
        dx = np.exp(-distance) * dlse[:, None]
        relative = exp_error(distance, corrected=dtype == np.float32) + U * np.abs(distance) + U
        assert_close(got, dx, np.abs(dx) * np.expm1(relative) + TINY + 0.5 * ulp(dx, dtype))


def test_special_rows_of_the_log_sum_exp() -> None:
    x = torch.tensor([[1.0, -INF, 2.0], [-INF, -INF, -INF], [INF, 1.0, 0.0], [NAN, 0.0, 1.0]])
    lse = ops.logsumexp(x)
    dx = ops.logsumexp_backward(x, lse, torch.ones(4))
    assert dx[0, 1] == 0
    assert dx[0].sum().item() == pytest.approx(1, abs=1e-6)
    assert (dx[1] == 0).all()
    assert torch.isnan(dx[2:]).all()


@pytest.mark.parametrize("algorithm", ["online", "cached"])
def test_any_strides(algorithm: str) -> None:
    y = to_torch(reference.softmax(noise((2, 3, 18), NARROW["f32"])).astype(np.float32))
    dy = to_torch(noise((2, 3, 18), NARROW["f32"], seed=1))
    scattered = torch.zeros(18, 3, 4)[:, :, ::2].permute(2, 1, 0)
    scattered.copy_(dy)
    for name in ("softmax_backward", "log_softmax_backward"):
        run = getattr(ops, name)
        expected = to_numpy(run(y, dy, algorithm=algorithm))
        assert_same_bits(to_numpy(run(y, scattered, algorithm=algorithm)), expected)
        moved = run(y.movedim(-1, 0), scattered.movedim(-1, 0), 0, algorithm=algorithm)
        assert_same_bits(to_numpy(moved.movedim(0, -1)), expected)
        one = run(y, torch.ones(1, 1, 1).expand(2, 3, 18), algorithm=algorithm)
        assert torch.equal(one, run(y, torch.ones(2, 3, 18), algorithm=algorithm))


def test_statistics_in_any_strides() -> None:
    x = to_torch(noise((2, 18, 3), NARROW["f32"]))
    lse = ops.logsumexp(x, 1)
    dx = ops.logsumexp_backward(x, lse.T.contiguous().T, torch.ones(()).expand(2, 3), 1)
    assert torch.equal(dx, ops.logsumexp_backward(x, lse, torch.ones(2, 3), 1))


def test_a_cached_gradient_of_rows_that_fit_no_block_is_refused() -> None:
    y = torch.zeros(1, 17)
    wrong = r"^algorithm='cached': rows of 17 columns do not fit a block of 16: 'online' or 'auto' would do$"
    for run in (ops.softmax_backward, ops.log_softmax_backward):
        with pytest.raises(ValueError, match=wrong):
            run(y, y, algorithm="cached", block=16)

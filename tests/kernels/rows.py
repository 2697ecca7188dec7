"""Kernels over the rows of a matrix, as a user might write them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def three_pass(x, out, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x += row * n
    out += row * n
    m = -float("inf")
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        m = tl.maximum(m, tl.max(tl.load(x + at, mask=at < n, other=-float("inf")), 0))
    s = 0.0
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        s += tl.sum(tl.exp(tl.load(x + at, mask=at < n, other=-float("inf")) - m), 0)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        tl.store(out + at, tl.exp(tl.load(x + at, mask=at < n, other=-float("inf")) - m) / s, mask=at < n)


@triton.jit
def cached(x, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.program_id(0).to(tl.int64) * n
    values = tl.load(x + row + at, mask=at < n, other=-float("inf"))
    e = tl.exp(values - tl.max(values, 0))
    tl.store(out + row + at, e / tl.sum(e, 0), mask=at < n)


@triton.jit
def scaled(values, factor):
    return values * factor


@triton.jit
def scale(x, out, n, factor, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, scaled(tl.load(x + at, mask=at < n), factor), mask=at < n)


@triton.jit
def described(x, out, rows, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    source = tl.make_tensor_descriptor(x, [rows, n], [n, 1], [ROWS, COLUMNS])
    target = tl.make_tensor_descriptor(out, [rows, n], [n, 1], [ROWS, COLUMNS])
    row = tl.program_id(0) * ROWS
    column = tl.program_id(1) * COLUMNS
    target.store([row, column], source.load([row, column]) + 1)


@triton.jit
def matmul(a, b, c, K, N: tl.constexpr, M: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * M + tl.arange(0, M)
    j = tl.arange(0, N)
    total = tl.zeros([M, N], tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        left = tl.load(a + i[:, None] * K + k[None, :])
        total = tl.dot(left, tl.load(b + k[:, None] * N + j[None, :]), total)
    tl.store(c + i[:, None] * N + j[None, :], total)

"""Kernels that touch memory in the ways a meter has to tell apart."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def unmasked(x, out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at))


@triton.jit
def shifted(x, out, by, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at + by))


@triton.jit
def strided(x, out, STEP: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at * STEP))


@triton.jit
def backwards(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + (BLOCK - 1 - at)))


@triton.jit
def straddling(x, out, offset):
    at = (x + offset).to(tl.pointer_type(tl.float32))
    tl.store(out, tl.load(at))


@triton.jit
def tiled(x, out, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    j = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    at = i[:, None] * n + j[None, :]
    tl.store(out + at, tl.load(x + at))


@triton.jit
def histogram(labels, counts, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(counts + tl.load(labels + at, mask=at < n, other=0), 1, mask=at < n)


@triton.jit
def lock(word):
    tl.atomic_cas(word, 0, 1)


@triton.jit
def mixed(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(tl.where(at % 4 == 0, x + at, y + at), mask=at < n), mask=at < n)


@triton.jit
def twice(parts, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(parts[0] + at) + tl.load(parts[1] + at))


@triton.jit
def indirect(table, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    source = tl.load(table).to(tl.pointer_type(tl.float32))
    tl.store(out + at, tl.load(source + at))


@triton.jit
def write_then_read(out, sums, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, at.to(tl.float32))
    tl.store(sums, tl.sum(tl.load(out + at), 0))


@triton.jit
def blocks(x, out, n, BLOCK: tl.constexpr):
    source = tl.make_block_ptr(x, (n,), (1,), (0,), (BLOCK,), (0,))
    target = tl.make_block_ptr(out, (n,), (1,), (0,), (BLOCK,), (0,))
    tl.store(target, tl.load(source, boundary_check=(0,)), boundary_check=(0,))


@triton.jit
def fill_out_of_bounds(out, at):
    tl.store(out + at, 1.0)


@triton.jit
def nested_fault(out, at):
    fill_out_of_bounds(out, at)


@triton.jit
def broken(x, FAIL: tl.constexpr):
    tl.load(x)
    tl.static_assert(not FAIL, "as intended")


@triton.jit
def without_tensors(n):
    tl.device_assert(n > 0)


NOT_A_KERNEL = 3

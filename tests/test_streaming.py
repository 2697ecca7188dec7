"""Files larger than memory: every shape, order and type against the reference, bytes counted, and what a
failing, killed or interrupted run leaves behind."""

from __future__ import annotations

import os
import tracemalloc
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from online_softmax import reference, state
from online_softmax.streaming import Kernels, NpyReader, RunResult, plan, run, writers

OPERATIONS = ("softmax", "log_softmax", "logsumexp")
# Budgets: a few elements at a time; some rows; everything at once.
BUDGETS = (4 << 10, 40 << 10, 1 << 24)


def _value(x: np.ndarray, m: np.ndarray, s: np.ndarray, log: bool) -> np.ndarray:
    m, s = (np.expand_dims(part.astype(np.float64), 1) for part in (m, s))
    return (state.log_value if log else state.value)(x.astype(np.float64), m, s)


def float64_kernels(operation: str) -> Kernels:
    """Arithmetic in float64 whatever the file holds: what is left is the streaming's own error."""
    log = operation == "log_softmax"

    def write(x, m, s, out, axes):
        assert axes == (1,)
        with np.errstate(all="ignore"):
            out[...] = _value(x, m, s, log)

    return Kernels(lambda x, axes: reference.state(x, axes), None if operation == "logsumexp" else write)


def expected(operation: str, x: np.ndarray, axis: int) -> np.ndarray:
    return getattr(reference, operation)(x, axis=axis)


def allowed(operation: str, exact: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Half an ulp of the result's type; and s, handed on in float32 (float64 for float64), off by u of it.

    The 16 u of float64 are the reference's and the test kernels' own sums, exponentials and logarithms.
    """
    u = 2.0**-53 if dtype == np.float64 else 2.0**-24
    info = ml_dtypes.finfo(dtype)
    size = np.where(np.isfinite(exact), np.abs(exact), 0.0)
    exponent = np.maximum(np.where(size == 0, info.minexp, np.frexp(size)[1] - 1), info.minexp)
    half_ulp = np.ldexp(0.5, exponent - info.nmant)
    carried = 0.0 if operation == "logsumexp" else u * (size if operation == "softmax" else 1.0)
    return half_ulp + carried * (1 + 2.0**-10) + 2.0**-49 * (size + 1)


def check(operation: str, x: np.ndarray, axis: int, got: np.ndarray) -> None:
    dtype = x.dtype if x.dtype.kind == "f" else np.dtype(np.float64)
    exact = expected(operation, x, axis)
    assert got.dtype == dtype.newbyteorder("=")
    assert got.shape == exact.shape
    got = np.asarray(got, np.float64)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(exact))
    finite = np.isfinite(exact)
    np.testing.assert_array_equal(got[~finite], exact[~finite])
    error = np.abs(got[finite] - exact[finite])
    assert (error <= allowed(operation, exact, dtype)[finite]).all(), error.max(initial=0)


def stream(
    tmp_path: Path, x: np.ndarray, operation: str, axis: int = -1, **options
) -> tuple[np.ndarray, RunResult]:
    source, target = tmp_path / "in.npy", tmp_path / "out.npy"
    np.save(source, x)
    kernels = options.pop("kernels", None) or float64_kernels(operation)
    result = run(source, target, operation=operation, kernels=kernels, axis=axis, **options)
    assert sorted(os.listdir(tmp_path)) == ["in.npy", "out.npy"]
    assert result.bytes_written == target.stat().st_size
    return np.load(target), result


# --- values ---------------------------------------------------------------------------------------

SHAPES = [
    ((5000,), 0),
    ((7, 700), -1),
    ((3, 5, 311), 1),
    ((700, 9), 0),
    ((2, 3, 4, 50), -2),
    ((1, 1), 1),
    ((3, 2000), -2),
]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("memory", BUDGETS)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(("shape", "axis"), SHAPES, ids=str)
def test_every_shape_axis_order_and_budget(tmp_path, shape, axis, order, memory, operation):
    x = np.asarray(np.random.default_rng(1).normal(0, 20, shape), np.float32, order=order)
    y, result = stream(tmp_path, x, operation, axis, memory=memory)
    check(operation, x, axis, y)
    assert result.axis == axis % len(shape)
    assert result.block_bytes <= memory


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("memory", BUDGETS)
@pytest.mark.parametrize(
    "dtype", ["<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "|b1", "|i1", "<i4", ">i8", "|u1", ">u2"]
)
def test_every_type_and_byte_order(tmp_path, dtype, memory, operation):
    x = np.random.default_rng(2).normal(0, 3, (3, 4000)).astype(dtype)
    y, _ = stream(tmp_path, x, operation, memory=memory)
    check(operation, x, -1, y)


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("memory", BUDGETS)
def test_special_rows_keep_their_meaning_when_cut(tmp_path, memory, operation):
    x = np.random.default_rng(3).normal(size=(7, 3000)).astype(np.float32)
    x[0, 2900] = np.nan
    x[1, [10, 2500]] = np.inf
    x[2] = -np.inf
    x[3, :2000] = -np.inf
    x[4, 5], x[4, 2800] = np.inf, np.nan
    x[5] = 3e38
    x[6] = -3e38
    y, _ = stream(tmp_path, x, operation, memory=memory)
    check(operation, x, -1, y)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_an_upward_ramp_costs_no_accuracy(tmp_path, operation):
    x = np.arange(20000, dtype=np.float32)[None] * np.float32(1e-3)
    y, result = stream(tmp_path, x, operation, memory=4 << 10)
    assert result.reads == (1 if operation == "logsumexp" else 2)
    check(operation, x, -1, y)


@pytest.mark.parametrize(
    ("shape", "axis", "operation", "rows"),
    [((0, 5), 1, "softmax", None), ((5, 0), 1, "log_softmax", None), ((4, 0, 3), 1, "logsumexp", (4, 3)),
     ((0, 4), 1, "logsumexp", (0,)), ((3, 0), 0, "logsumexp", (0,)), ((2000, 0), 1, "logsumexp", (2000,))],
)  # fmt: skip
def test_no_elements(tmp_path, shape, axis, operation, rows):
    y, result = stream(tmp_path, np.zeros(shape, np.float32), operation, axis, memory=4 << 10)
    assert y.shape == (shape if rows is None else rows)
    assert (y == -np.inf).all()
    assert result.bytes_read == 128


@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize(("operation", "value"), [("softmax", 1.0), ("log_softmax", 0.0), ("logsumexp", 2.5)])
def test_no_axes(tmp_path, operation, axis, value):
    y, _ = stream(tmp_path, np.array(2.5), operation, axis)
    assert y.shape == ()
    assert y == value


def test_whole_rows_go_to_the_whole_kernel_and_cut_rows_do_not(tmp_path):
    shapes = []

    def whole(x, out, axes):
        shapes.append(x.shape)
        assert out is x
        assert axes == (1,)
        out[...] = 7

    kernels = replace(float64_kernels("softmax"), whole=whole)
    x = np.ones((30, 500), np.float32)
    y, _ = stream(tmp_path, x, "softmax", kernels=kernels, memory=10 << 10)
    assert (y == 7).all()
    assert sum(rows for rows, _ in shapes) == 30
    assert all(length == 500 for _, length in shapes)
    shapes.clear()
    y, _ = stream(tmp_path, x.reshape(3, 5000), "softmax", kernels=kernels, memory=10 << 10)
    assert not shapes
    assert (y == np.float32(1 / 5000)).all()


# --- reads and memory -----------------------------------------------------------------------------


def test_a_row_that_fits_is_read_once(tmp_path):
    _, result = stream(tmp_path, np.ones((64, 512), np.float32), "softmax", memory=8 << 10)
    assert result.reads == 1
    assert result.bytes_read == 128 + 64 * 512 * 4


def test_a_long_row_is_read_twice_less_its_last_part(tmp_path):
    moved = []
    planned = []
    _, result = stream(
        tmp_path, np.ones((2, 10000), np.float32), "softmax", memory=8 << 10,
        progress=lambda read, written: moved.append((read, written)), on_plan=planned.append,
    )  # fmt: skip
    part = result.block_bytes // 4
    last = (10000 - 1) % part + 1
    assert result.reads == 2
    assert result.bytes_read == 128 + 2 * 4 * (2 * 10000 - last)
    assert planned == [result.bytes_read - 128 + result.bytes_written - 128]
    assert sum(read + written for read, written in moved) == planned[0]


def test_log_sum_exp_of_a_long_row_reads_once(tmp_path):
    _, result = stream(tmp_path, np.ones((2, 10000), np.float32), "logsumexp", memory=8 << 10)
    assert result.reads == 1
    assert result.bytes_read == 128 + 2 * 10000 * 4


def test_columns_are_read_in_strips_where_that_saves_the_second_read(tmp_path):
    x = np.random.default_rng(4).normal(size=(50, 4000)).astype(np.float32)
    y, result = stream(tmp_path, x, "softmax", 0, memory=100 << 10, min_run=512)
    check("softmax", x, 0, y)
    assert result.reads == 1
    assert result.bytes_read == 128 + x.nbytes
    y, result = stream(tmp_path, x, "softmax", 0, memory=100 << 10)
    check("softmax", x, 0, y)
    assert result.reads == 2


def test_buffers_stay_within_the_memory_given(tmp_path):
    def count(x, axes):
        return x.max(axis=1), np.full(len(x), float(x.shape[1]))

    def write(x, m, s, out, axes):
        np.divide(1.0, s[:, None], out=out, dtype=np.float32)

    memory = 2 << 20
    source, target = tmp_path / "in.npy", tmp_path / "out.npy"
    for dtype in (np.float32, np.int16):
        np.save(source, np.ones((2, 4 << 20), dtype))
        tracemalloc.start()
        try:
            run(source, target, operation="softmax", kernels=Kernels(count, write), memory=memory)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < memory + (200 << 10)  # the headers, the interpreter's own small objects
        assert (np.load(target, mmap_mode="r")[:, ::99991] == 1 / (4 << 20)).all()


@settings(deadline=None)  # a busy machine is no failure
@given(
    outer=st.integers(1, 9), length=st.integers(1, 60), inner=st.integers(1, 60),
    element=st.sampled_from([2, 4, 8, 9, 16]), memory=st.integers(4 << 10, 1 << 16),
    needs_rows=st.booleans(), min_run=st.sampled_from([1, 64, 1 << 18]),
)  # fmt: skip
def test_a_plan_covers_every_element_once_within_its_memory(
    outer, length, inner, element, memory, needs_rows, min_run
):
    rows = plan.Rows(outer, length, inner)
    chosen = plan.make_plan(rows, element, memory, needs_rows=needs_rows, min_run=min_run)
    seen = np.zeros(outer * length * inner, int)
    grid = np.arange(seen.size).reshape(outer, length, inner)
    for group in chosen.groups():
        for block in [group] if chosen.whole_rows else chosen.parts(group):
            a, c, b = block.shape
            assert a * c * b <= chosen.block_size
            assert a * c * b * element + a * b * plan.STATE_BYTES <= memory
            numbers = np.concatenate([np.arange(first, first + count) for first, count in block.runs(rows)])
            window = grid[block.a0 : block.a1, block.c0 : block.c1, block.b0 : block.b1]
            np.testing.assert_array_equal(numbers, window.ravel())
            seen[numbers] += 1
    assert (seen == 1).all()


def test_positions_past_32_bits(tmp_path):
    """2^31 + 9 numbers in a sparse file: positions are those of the last ones, in elements and in bytes."""
    count = 2**31 + 9
    with open(tmp_path / "in.npy", "wb") as file:
        file.write(writers.header_bytes((count,), np.dtype(np.float32), False))
        file.truncate(128 + 4 * count)
        file.seek(128 + 4 * (count - 2))
        file.write(np.array([3, 4], np.float32).tobytes())
    got = np.empty(4, np.float32)
    with NpyReader(tmp_path / "in.npy") as reader:
        reader.read(count - 4, got)
        with writers.AtomicFile(tmp_path / "out.npy", 0, reader.stat) as out:
            out.write(4 * count, got)
            out.commit()
    np.testing.assert_array_equal(got, [0, 0, 3, 4])
    assert (tmp_path / "out.npy").stat().st_size == 4 * count + 16
    rows = plan.Rows(1, count, 1)
    chosen = plan.make_plan(rows, 4, 1 << 30, needs_rows=True)
    last = chosen.parts(next(chosen.groups()))[-1]
    [(first, length)] = last.runs(rows)
    assert first + length == count
    assert first > 2**30

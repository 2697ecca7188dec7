"""Indices and strides past 31 and 32 bits, without the memory: views of few elements, and files that are
mostly holes."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from helpers import FORMATS, assert_close, assert_same_bits, bound, noise

import online_softmax as osm
from online_softmax import reference

INT31, INT32 = 2**31, 2**32


@pytest.mark.parametrize("fmt", ["f16", "f32"])
@pytest.mark.parametrize(
    "length", [pytest.param(INT31 - 1, id="B127-just below 2^31"), pytest.param(INT31 + 5, id="past 2^31")]
)
def test_one_row_of_equal_values(fmt, length):
    """ln(length), which a counter of 31 bits gets wrong and a 16-bit sum never reaches."""
    # Zeros that nobody writes are one page of memory, mapped many times.
    check_equal_values(np.zeros(length, FORMATS[fmt]), 0.0)


@pytest.mark.parametrize("length", [2**24 + 5, INT31 + 5])
def test_one_broadcast_row(length):
    """Past what a float32 counts, and past 31 bits: gathered one by one, which takes a minute."""
    check_equal_values(np.broadcast_to(np.float32(3.25), (length,)), 3.25)


def check_equal_values(x: np.ndarray, value: float) -> None:
    expected = value + np.log(x.size)
    # Sums of equal powers of two are exact: what rounds is the logarithm, its addition and the result.
    allowed = 0.5 * float(np.spacing(x.dtype.type(expected))) + 3 * 2.0**-24 * expected
    assert abs(float(osm.logsumexp(x)) - expected) <= allowed


def test_sliding_windows_past_32_bits():
    """B125: 86000 rows of 50000, more than 2^32 elements over a buffer of 136 thousand; every row checked."""
    base, n = noise((136_000,), FORMATS["f32"]), 50_000
    x = np.lib.stride_tricks.sliding_window_view(base, n)[:86_000]
    assert x.size > INT32
    running = np.concatenate([[0.0], np.cumsum(np.exp(base.astype(np.float64)))])
    expected = np.log(running[n : n + 86_000] - running[:86_000])
    # The bound of one row holds for all: it grows with ln n alone. Differences of running sums cost 1e-10.
    wide = x[:1].astype(np.float64)
    allowed = bound("logsumexp", wide, reference.logsumexp(wide), x.dtype)[0] + 1e-10
    assert_close(osm.logsumexp(x), expected, 2 * allowed)


def test_more_rows_than_a_launch_counts():
    """B128, in which rows and their length are each small and their product is not: 2^27 rows of 17."""
    x = np.broadcast_to(np.ones(17, np.float32), (2**27, 17))
    lse = osm.logsumexp(x)
    assert lse.shape == (2**27,)
    assert lse.min() == lse.max()
    expected = 1 + np.log(17)
    assert abs(float(lse[-1]) - expected) <= 2 * np.spacing(np.float32(expected))


@pytest.fixture
def holes(tmp_path):
    """A float32 file of 20 GiB of which only the touched pages exist."""
    size = 5 * INT32 // 4 * 4
    path = tmp_path / "holes.bin"
    with open(path, "wb") as file:
        file.truncate(4 * size)
    return np.memmap(path, np.float32, "r+", shape=(size,))


@pytest.mark.parametrize(
    ("shape", "strides"),
    [
        pytest.param((4, 33), (2**30, 1), id="B131-rows 2^30 apart"),
        pytest.param((3, 70), (INT31 // 2 + 12_345, 1), id="rows past 2^32 bytes apart"),
        pytest.param((5, 20), (1, 2**27 + 1), id="entries of a row 2^29 bytes apart"),
        pytest.param((3, 2, 17), (2**30 + 7, 2**29 + 3, 5), id="every stride large"),
    ],
)
def test_far_apart(holes, shape, strides):
    """Products of stride and index past 31 and 32 bits, in what is read and in what is written."""
    values = noise(shape, FORMATS["f32"])
    view = np.lib.stride_tricks.as_strided
    in_bytes = tuple(4 * s for s in strides)
    x = view(holes, shape, in_bytes)
    out = view(holes[1000:], shape, in_bytes)
    for axis in range(len(shape)):
        x[...] = values
        assert_close(osm.logsumexp(x, axis), *truth("logsumexp", values, axis))
        osm.softmax(x, axis, out=out)
        assert_close(np.moveaxis(out, axis, -1), *truth("softmax", values, axis))
        assert_same_bits(np.asarray(x), values)
        osm.log_softmax(x, axis, out=x)
        assert_close(np.moveaxis(x, axis, -1), *truth("log_softmax", values, axis))


def truth(op: str, values: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    rows = np.moveaxis(values, axis, -1).astype(np.float64)
    expected = getattr(reference, op)(rows)
    return expected, bound(op, rows, expected, values.dtype)


def test_backwards_from_the_far_end(holes):
    """Negative strides whose products do not fit 32 bits."""
    values = noise((4, 50), FORMATS["f32"])
    x = np.lib.stride_tricks.as_strided(holes[-1:], (4, 50), (-4 * 2**30 - 400, -4))
    x[...] = values
    assert_close(osm.softmax(x), *truth("softmax", values, -1))


def test_integers_are_converted_without_their_copies():
    """An int8 view of more than 2^31 elements holds a thousand: converting it must not make them all."""
    row = (np.arange(1000) % 100).astype(np.int8)
    x = np.broadcast_to(row, (INT31 // 1000 + 5, 1000))
    tracemalloc.start()
    lse = osm.logsumexp(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100 * 2**20
    expected = reference.logsumexp(row)
    assert lse.min() == lse.max()
    assert abs(lse[-1] - expected) <= 8 * 2.0**-53 * expected

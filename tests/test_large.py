"""Indices and strides past 31 and 32 bits, without the memory: views of few elements, and files that are
mostly holes."""

from __future__ import annotations

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
    """x + ln(length), which a counter of 31 bits gets wrong and a 16-bit sum never reaches."""
    x = np.broadcast_to(np.array(3.25, FORMATS[fmt]), (length,))
    expected = 3.25 + np.log(length)
    # Sums of equal powers of two are exact; what rounds is the logarithm, its addition to x and the result.
    step = float(np.spacing(FORMATS[fmt].type(expected)))
    assert (
        abs(float(osm.logsumexp(x)) - expected) <= step * (0.5 if fmt == "f16" else 1) + 2.0**-24 * expected
    )


def test_sliding_windows_past_32_bits():
    """B125: 86000 rows of 50000, more than 2^32 elements over a buffer of 136 thousand; the last rows as
    good as the first."""
    base = noise((136_000,), FORMATS["f32"])
    x = np.lib.stride_tricks.sliding_window_view(base, 50_000)[:86_000]
    assert x.size > INT32
    lse = osm.logsumexp(x)
    at = np.array([0, 1, 42_949, 42_950, 85_899, 85_998, 85_999])
    wide = x[at].astype(np.float64)
    expected = reference.logsumexp(wide)
    assert_close(lse[at], expected, bound("logsumexp", wide, expected, x.dtype))
    # Every window of this one shares all but one element with its neighbour: none may stray.
    assert np.abs(np.diff(lse.astype(np.float64))).max() < 1e-2


def test_more_rows_than_a_launch_counts():
    """B128: 2^28 rows of 9."""
    x = np.broadcast_to(np.ones((), np.float32), (2**28, 9))
    lse = osm.logsumexp(x)
    expected = np.float64(1 + np.log(9))
    assert lse.shape == (2**28,)
    assert lse.min() == lse.max()
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
    """An int8 view of 2^31 + 5 elements holds three: converting it must not make them all."""
    x = np.broadcast_to(np.array([[1], [2], [3]], np.int8), (3, INT31 // 3 + 5))
    lse = osm.logsumexp(x)
    np.testing.assert_allclose(lse, np.array([1, 2, 3]) + np.log(INT31 // 3 + 5), rtol=8 * 2.0**-53)

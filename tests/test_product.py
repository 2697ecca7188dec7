"""The core's matrix products against float64, their bits, and what they refuse."""

from __future__ import annotations

import itertools

import ml_dtypes
import numpy as np
import pytest

from online_softmax import cpu, cpu_product

BF16 = np.dtype(ml_dtypes.bfloat16)
F16, F32, F64 = (np.dtype(t) for t in (np.float16, np.float32, np.float64))
#: Formats of a, b and the result.
FORMATS = [
    (F32, F32, F32), (F64, F64, F64), (BF16, BF16, F32), (F32, BF16, BF16), (F16, F16, F16), (F16, F32, F32),
]  # fmt: skip
#: Around a tile and its edges, the cuts of k (384; 192 in float64), items, and nothing to sum.
SIZES = [(1, 1, 1), (6, 16, 8), (7, 17, 193), (13, 33, 385), (5, 1600, 3), (400, 40, 5), (3, 4, 0)]
LIES = ("rows", "columns", "apart")
UNIT = {F16: 2.0**-11, BF16: 2.0**-8, F32: 2.0**-24, F64: 2.0**-53}


def lying(values: np.ndarray, how: str) -> np.ndarray:
    """`values` with rows adjacent, columns adjacent, or neither and backwards."""
    if how == "rows":
        return np.ascontiguousarray(values)
    if how == "columns":
        return np.asfortranarray(values)
    room = np.zeros((2 * values.shape[0], 3 * values.shape[1]), values.dtype)
    room[::2, ::3] = values[::-1, ::-1]
    return room[::2, ::3][::-1, ::-1]


def operands(sizes: tuple[int, int, int], formats: tuple[np.dtype, ...]) -> tuple[np.ndarray, np.ndarray]:
    m, n, k = sizes
    random = np.random.default_rng(m + n + k)
    return (
        random.standard_normal((m, k)).astype(formats[0]),
        random.standard_normal((k, n)).astype(formats[1]),
    )


@pytest.mark.parametrize("formats", FORMATS, ids=lambda f: "-".join(d.name for d in f))
@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("isa", cpu.isas())
def test_values_and_bits(isa: str, sizes: tuple[int, int, int], formats: tuple[np.dtype, ...]) -> None:
    a, b = operands(sizes, formats)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    true, size = wide_a @ wide_b, np.abs(wide_a) @ np.abs(wide_b)
    sums = UNIT[F64 if formats[2] == F64 else F32]
    rounding = 0.0 if formats[2] in (F32, F64) else UNIT[formats[2]]
    bound = (sizes[2] + 1) * sums * size * (1 + rounding) + rounding * np.abs(true)
    found = []
    for a_lies, b_lies, threads in itertools.product(LIES, LIES, (1, 3)):
        out = np.full(true.shape, 7, formats[2])
        cpu_product.product(lying(a, a_lies), lying(b, b_lies), out, isa=isa, threads=threads)
        found.append(out)
    assert (np.abs(found[0].astype(np.float64) - true) <= bound).all()
    for out in found:
        assert np.array_equal(out, found[0])


@pytest.mark.parametrize("formats", FORMATS, ids=lambda f: "-".join(d.name for d in f))
@pytest.mark.parametrize("isa", cpu.isas())
def test_an_element_knows_its_row_and_column_alone(isa: str, formats: tuple[np.dtype, ...]) -> None:
    a, b = operands((50, 70, 800), formats)
    whole, turned = np.empty((50, 70), formats[2]), np.empty((70, 50), formats[2]).T
    cpu_product.product(a, b, whole, isa=isa)
    cpu_product.product(a, b, turned, isa=isa)
    assert np.array_equal(whole, turned)
    for rows, columns in (
        (slice(3, 4), slice(5, 6)),
        (slice(1, 49), slice(17, 70)),
        (slice(20, 27), slice(0, 3)),
    ):
        part = np.empty(whole[rows, columns].shape, formats[2])
        cpu_product.product(a[rows], b[:, columns], part, isa=isa)
        assert np.array_equal(part, whole[rows, columns])


@pytest.mark.parametrize("dtype", [F32, F64], ids=str)
def test_added_and_with_a_bias(dtype: np.dtype) -> None:
    a, b = operands((9, 40, 500), (dtype, dtype))
    bias = np.linspace(-1, 1, 40).astype(dtype)
    room = np.full((9, 60), 3, dtype)
    cpu_product.product(a, b, room[:, 7:47], bias=bias)
    added = np.tile(bias, (9, 1))
    cpu_product.product(a, b, added, add=True)
    assert np.array_equal(room[:, 7:47], added)
    assert (room[:, :7] == 3).all()
    assert (room[:, 47:] == 3).all()
    bound = 502 * UNIT[dtype] * (np.abs(a).astype(np.float64) @ np.abs(b) + np.abs(bias))
    assert (np.abs(added - (a.astype(np.float64) @ b + bias)) <= bound).all()


def test_what_is_not_finite_stays_in_its_rows_and_columns() -> None:
    a, b = operands((20, 50, 30), (F32, F32))
    a[3, 4], a[5, 6], b[7, 8] = np.nan, np.inf, np.nan
    out = np.empty((20, 50), F32)
    cpu_product.product(a, b, out)
    odd = ~np.isfinite(out)
    assert odd[3].all()
    assert odd[5].all()
    assert odd[:, 8].all()
    assert odd.sum() == 2 * 50 + 20 - 2


A, B = np.ones((2, 3), F32), np.ones((3, 4), F32)
REFUSED = [
    ((A, B.T, np.empty((2, 4), F32)), {}, "b"),
    ((A, B, np.empty((2, 5), F32)), {}, "out"),
    ((A, B, np.empty((2, 4), F64)), {}, "float64"),
    ((A, B, np.empty((2, 4), np.int32)), {}, "int32"),
    ((A, B, np.empty((2, 4), F16)), {"add": True}, "add"),
    ((A, B, np.empty((4, 8), F32)[::2, ::2]), {}, "strides"),
    ((A, B, np.empty((2, 4), F32)), {"bias": np.ones(3, F32)}, "bias"),
    ((A, B, np.empty((2, 4), F32)), {"bias": np.ones(4, F64)}, "bias"),
    ((A, B, np.empty((2, 4), F32)), {"bias": np.ones(4, F32), "add": True}, "bias"),
]


@pytest.mark.parametrize(("arrays", "options", "named"), REFUSED)
def test_refused(arrays: tuple[np.ndarray, ...], options: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        cpu_product.product(*arrays, **options)

"""The float32 exp of the kernels, over every float32 in (-104, 0]."""

import numpy as np
import pytest

from online_softmax import cpu

LAST = np.float32(-104).view(np.uint32)  # bit patterns from -0 to -104 are consecutive integers
CHUNK = (
    1 << 14
)  # arguments looked at together: their arrays stay in the cache; LAST and a binade are multiples
#: Units in the last place of float32; the largest error found is 1.0033 (AVX-512). Half a unit is the final
#: rounding; the rest is the reduction's, the polynomial's and, for subnormal results, a second rounding.
BOUND = 1.01


def error_of(x: np.ndarray, exact: np.ndarray, isa: str) -> float:
    """Largest error over these arguments, in ulps of the true value."""
    # 2**(exponent - 23), by taking the mantissa's bits off: far quicker than frexp and ldexp.
    unit = ((exact.view(np.int64) & (0x7FF << 52)) - (23 << 52)).view(np.float64)
    return float(np.max(np.abs(cpu.exp(x, isa=isa) - exact) / np.maximum(unit, 2.0**-149)))


def test_every_argument():
    """All 1.1e9 of them, with the default instruction set.

    The numbers of a binade are steps apart: exp(x - i*step) = exp(x) * exp(-i*step), two roundings of float64
    more, and the second factor is the same for every chunk of the binade.
    """
    first = int(np.float32(-0.0).view(np.uint32))
    places = np.arange(CHUNK, dtype=np.uint32)
    error = 0.0
    for start in range(first, int(LAST), 1 << 23):
        step = 2.0 ** (max(start - first >> 23, 1) - 150)
        factors = np.exp(-step * places)
        for chunk in range(start, min(start + (1 << 23), int(LAST)), CHUNK):
            x = (places + np.uint32(chunk)).view(np.float32)
            assert float(x[0]) - float(x[-1]) == step * (CHUNK - 1)
            error = max(error, error_of(x, np.exp(float(x[0])) * factors, cpu.default_isa()))
    assert 0.5 <= error <= BOUND
    print(f"exp: at most {error:.4f} ulp with {cpu.default_isa()}")


@pytest.mark.parametrize("isa", cpu.isas())
def test_a_sample_with_each_instruction_set(isa):
    x = np.arange(np.float32(-0.0).view(np.uint32), LAST, 4001, dtype=np.uint32).view(np.float32)
    assert error_of(x, np.exp(x.astype(np.float64)), isa) <= BOUND


def test_edges():
    x = np.array([0.0, -0.0, -np.inf, np.nan, np.inf, 88.72, 89.0, -103.97, -104.0], np.float32)
    with np.errstate(over="ignore"):
        expected = np.exp(x.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(cpu.exp(x), expected, rtol=2.0**-22)

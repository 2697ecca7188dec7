"""What the tests of scans, windows and segments share: their bound, and gradients by differences."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from helpers import REFERENCE_UNITS, ulp

U = 2.0**-53
#: What the rounding of a state may do to t, the sum of all terms but the greatest, in units of u: an
#: exponential and a factor of one ulp each, and the roundings of their product, of the sum and of a distance.
STATE_UNITS = 2 + 2 + 1 + 1 + 1
#: Merging two states once more: an exponential, a distance, a product and a sum.
MERGE_UNITS = 2 + 1 + 1 + 1
#: A logarithm, log1p within two ulp.
LOG_UNITS = 4
#: log1p(t) >= log(2) * min(t, 1): what an error of t, in units of it, is at most in units of its logarithm.
STEEP = 1 / np.log(2)


def allowed(y: np.ndarray, m: np.ndarray, dtype: np.dtype, merges: int = 0) -> np.ndarray:
    """Largest error of a log-sum-exp that is truly y, whose greatest term is m, in format `dtype`: of the
    logarithm y - m by its state, of the sum of both, and of the last rounding. Nothing of it is relative to
    m but the last two."""
    logarithm = np.where(np.isfinite(y) & np.isfinite(m), y - np.where(np.isfinite(m), m, 0), 0)
    size = np.where(np.isfinite(y), np.abs(y), 0)
    own = (STEEP * (STATE_UNITS + merges * MERGE_UNITS) + LOG_UNITS) * U * logarithm
    # float16 and bfloat16 are rounded twice, through float32; ties of bfloat16 go away from zero.
    twice = 2.0**-24 * size if dtype.itemsize == 2 else 0
    return own + U * (1 + REFERENCE_UNITS) * size + 0.5 * ulp(y, dtype) + twice


def differences(f: Callable[[np.ndarray], np.ndarray], x: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """The gradient of sum(f(x) * dy) with respect to x, by central differences of float64."""
    step, result = 1e-5, np.zeros_like(x)
    for at in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[at] += step
        down[at] -= step
        result[at] = np.sum(dy * (f(up) - f(down))) / (2 * step)
    return result


#: Error of `differences` with values and third derivatives of size 10: roundings over twice the step, and its
#: square.
DIFFERENCE = 10 * U / 1e-5 * 4 + 10 * 1e-10

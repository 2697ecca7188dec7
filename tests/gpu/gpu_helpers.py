"""What the tests of the GPU kernels share: tensors from arrays and back, and the bound results are held to.

The interpreter computes with numpy, in the order of the kernels: the bounds are those of
`online_softmax.numerics` for the kernels' scheme, with the error of their exponential.
"""

from __future__ import annotations

from functools import cache

import ml_dtypes
import numpy as np
import torch
import triton
from helpers import FORMATS, LOG_UNITS, ulp
from triton import language as tl

from online_softmax.gpu import launch
from online_softmax.numerics import bounds

BF16 = np.dtype(ml_dtypes.bfloat16)
NARROW = {name: FORMATS[name] for name in ("f32", "f16", "bf16")}
U = bounds.unit_roundoff(np.float32)
TINY = bounds.smallest_subnormal(np.float32)
#: exp2, by numpy or by a GPU (PTX: 2^-22 relatively), and the multiply-add behind it.
EXP_UNITS = 5.0
#: Error of (x - m) * log2(e) in units of u * |x - m|: the product's rounding, and that of log2(e) to float32.
PRODUCT_UNITS = 1.25


def to_torch(x: np.ndarray) -> torch.Tensor:
    """A tensor of a copy of x."""
    x = np.array(x, order="C")
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16) if x.dtype == BF16 else torch.from_numpy(x)


def to_numpy(x: torch.Tensor) -> np.ndarray:
    x = x.contiguous()
    return x.view(torch.int16).numpy().view(BF16) if x.dtype == torch.bfloat16 else x.numpy()


@triton.jit
def _residual(x, o):
    v = tl.load(x)
    tl.store(o, tl.fma(v, v, -(v * v)))


@cache
def fused() -> bool:
    """Whether this version's interpreter rounds a multiply-add once, as GPUs do."""
    x, o = torch.tensor([1 + 2.0**-12 + 2.0**-20]), torch.zeros(1)
    _residual[(1,)](x, o)
    return bool(o != 0)


def exp_error(distance: np.ndarray, *, corrected: bool) -> np.ndarray:
    """Relative error of a kernel's exp(-distance)."""
    # The correction stops where results are subnormal.
    corrected = corrected & fused() & (distance < 87)
    return U * (
        EXP_UNITS + np.where(corrected, 0, PRODUCT_UNITS * np.where(np.isfinite(distance), distance, 0))
    )


def gpu_bound(op: str, x: np.ndarray, y: np.ndarray, dtype: np.dtype, block: int | None, *, shifted: bool):
    """Largest error allowed to `op` of the rows of x (float64, reduced axis last) whose true result is y.

    Each element goes through a block's sum and one step or merge per block. `shifted=False` is for "naive".
    """
    columns = x.shape[-1]
    block = block or launch.look_up(launch.LOOP_BLOCK, columns)
    steps = launch.chunks_of(columns, block) + 1
    result = np.dtype(np.float32) if op == "logsumexp" else dtype
    final = 0.5 * ulp(y, result)
    with np.errstate(invalid="ignore"):
        finite = np.isfinite(np.max(x, axis=-1, keepdims=True))
    rows = np.where(finite, x, 0.0)
    distance = np.max(rows, axis=-1, keepdims=True) - rows if shifted else np.abs(rows)
    e = exp_error(distance, corrected=dtype == np.float32)
    depth = bounds.pairwise_depth(max(block, launch.covering(columns)))
    eta = e + (depth + steps) * U + bounds.merge_eta(steps, u=U, e=EXP_UNITS * U)
    with np.errstate(all="ignore"):
        if op == "softmax":  # one more rounding: the product with 1 / s
            return final + bounds.softmax_error(rows, eta, u=U, e=e + U, tiny=TINY)
        error = {"log_softmax": bounds.log_softmax_error, "logsumexp": bounds.lse_error}[op]
        allowed = final + error(rows, eta, u=U, e_log=LOG_UNITS * U, tiny=TINY)
        if not shifted:  # logarithms of the size of the logits
            size = np.max(np.abs(rows), axis=-1, keepdims=op == "log_softmax") + np.log(columns)
            allowed = allowed + (LOG_UNITS + 1) * U * 2 * size
        return allowed

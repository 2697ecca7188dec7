"""What the tests of the meter share: numbered tensors, one metered launch, and softmax in three passes."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from kernels import rows

from online_softmax.traffic.meter import Meter

R, C = 64, 4096
T = R * C * 4


def floats(*shape: int) -> torch.Tensor:
    return torch.arange(int(np.prod(shape)), dtype=torch.float32).reshape(shape)


def metered(kernel, grid, *arguments, **constants) -> Meter:
    with Meter() as meter:
        kernel[grid](*arguments, **constants)
    return meter


@cache
def three_pass() -> Meter:
    """Softmax of (64, 4096) float32 in blocks of 1024, with the log."""
    x, out = torch.randn(R, C, generator=torch.Generator().manual_seed(0)), torch.empty(R, C)
    with Meter(log=True) as meter:
        rows.three_pass[(R,)](x, out, C, BLOCK=1024)
    torch.testing.assert_close(out, torch.softmax(x, 1))
    return meter

"""What the tests of operations on tensors share: tensors, NumPy's view of them, and PyTorch's own answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from online_softmax.frontends.torch import memory

FORMATS = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
)  # fmt: skip
WIDE = FORMATS[:4]


def noise(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator, dtype=torch.float64) * 3).to(dtype)


def layouts(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """The same kinds of numbers in memory of every kind that a tensor may have."""
    return {
        "contiguous": noise(3, 4, 5, dtype=dtype),
        "long rows": noise(2, 700, dtype=dtype),
        "large": noise(600, 1024, dtype=dtype),
        "transposed": noise(5, 4, 3, dtype=dtype).permute(2, 0, 1),
        "sliced": noise(3, 8, 10, dtype=dtype)[:, ::2, 1::3],
        "expanded": noise(3, 1, 5, dtype=dtype).expand(3, 4, 5),
        "no rows": noise(0, 5, dtype=dtype),
        "one": noise(dtype=dtype),
    }


def numpy_of(t: torch.Tensor) -> np.ndarray[Any, Any]:
    return memory.array(t)


def assert_same_bits(found: torch.Tensor, expected: Any, what: str = "") -> None:
    """Equal format, shape and bits; any NaN is like another."""
    given, wanted = numpy_of(found), np.asarray(expected)
    assert given.dtype == wanted.dtype, (what, given.dtype, wanted.dtype)
    assert given.shape == wanted.shape, (what, given.shape, wanted.shape)
    integers = f"u{given.dtype.itemsize}"
    a, b = (np.ascontiguousarray(part) for part in (given, wanted))
    nans = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    same = (a.view(integers) == b.view(integers)).reshape(given.shape) | nans
    assert same.all(), (what, given[~same][:4], wanted[~same][:4])

"""CPU tensors as NumPy arrays over the same memory, and back; where results go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import ml_dtypes
import numpy as np
import torch

from ... import cpu

Array = np.ndarray[Any, np.dtype[Any]]

#: Formats that NumPy knows by ml_dtypes alone: seen through an integer of the same size.
_THROUGH: Final[dict[Any, tuple[Any, Any, Any]]] = {
    torch.bfloat16: (torch.int16, np.dtype(np.int16), np.dtype(ml_dtypes.bfloat16)),
    torch.float8_e4m3fn: (torch.uint8, np.dtype(np.uint8), np.dtype(ml_dtypes.float8_e4m3fn)),
    torch.float8_e5m2: (torch.uint8, np.dtype(np.uint8), np.dtype(ml_dtypes.float8_e5m2)),
}
_BACK: Final = {known: (storage, dtype) for dtype, (_, storage, known) in _THROUGH.items()}
#: NumPy's formats by PyTorch's.
NUMPY: Final = {
    torch.float64: np.dtype(np.float64),
    torch.float32: np.dtype(np.float32),
    torch.float16: np.dtype(np.float16),
    **{dtype: known for dtype, (_, _, known) in _THROUGH.items()},
}
#: Fresh results from this size on (bytes) come from the library's pool of large pages.
LARGE: Final = 1 << 20
_CONTIGUOUS: Final = tuple(range(8))


def array(t: torch.Tensor) -> Array:
    """A view of the tensor's memory, whatever its strides. Nothing is copied but a lazy negation."""
    t = t.detach()
    if t.is_neg():
        t = t.resolve_neg()
    if t._is_zerotensor():  # zeros without memory
        t = torch.zeros_like(t)
    through = _THROUGH.get(t.dtype)
    if through is None:
        return t.numpy()
    integers, _, known = through
    return t.view(integers).numpy().view(known)


def optional(t: torch.Tensor | None) -> Array | None:
    return None if t is None else array(t)


def tensor(a: Array) -> torch.Tensor:
    """A tensor over the array's memory, which it keeps alive."""
    if not a.flags.writeable:
        a = a.copy()
    through = _BACK.get(a.dtype)
    if through is None:
        return torch.from_numpy(a)
    storage, dtype = through
    integers = torch.from_numpy(a.view(storage))
    # Not integers.view(dtype): forward mode holds a result that is a view of something to more rules.
    return torch.empty(0, dtype=dtype).set_(
        integers.untyped_storage(), integers.storage_offset(), integers.shape, integers.stride()
    )


def empty_like(x: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
    """What `torch.empty_like` gives; from 1 MiB on in memory that costs no page faults on repeated calls."""
    dtype = x.dtype if dtype is None else dtype
    if x.numel() * dtype.itemsize < LARGE or not x.is_contiguous():
        return torch.empty_like(x, dtype=dtype, requires_grad=False)
    return tensor(cpu.empty(tuple(x.shape), NUMPY[dtype]))


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """A contiguous CPU tensor, likewise."""
    return empty_permuted(shape, tuple(range(len(shape))), dtype)


def empty_permuted(shape: tuple[int, ...], order: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """What `torch.empty_permuted` gives, `order` being the dimensions from the slowest to the fastest."""
    small = math.prod(shape) * dtype.itemsize < LARGE
    if small and order == _CONTIGUOUS[: len(order)]:
        return torch.empty(shape, dtype=dtype)
    if small:
        return torch.empty_permuted(shape, order, dtype=dtype)
    made = cpu.empty(tuple(shape[d] for d in order), NUMPY[dtype])
    return tensor(made.transpose([order.index(d) for d in range(len(order))]))


def place(t: torch.Tensor | None) -> tuple[int, Sequence[int]]:
    """Address and strides in bytes of a CPU tensor without lazy negation, as the core takes
    them: at a tenth of what a view costs. 0 for None."""
    if t is None:
        return 0, ()
    size = t.itemsize
    return t.data_ptr(), [size * step for step in t.stride()]

"""Arguments of the PyTorch faces, checked: TypeError, ValueError and IndexError name the argument; tensors of
different devices raise RuntimeError, as in PyTorch."""

from __future__ import annotations

from typing import Any, Final

import torch

from .. import checks
from ..checks import LAST_AXIS

SERVED: Final = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
CONVERTED: Final = (torch.float8_e4m3fn, torch.float8_e5m2)
_DEVICES: Final = ("cpu", "cuda", "meta")


def tensor(value: Any, name: str, *, converted: bool = False) -> torch.Tensor:
    """A dense tensor of a served format, on a device that is served."""
    t = any_tensor(value, name)
    formats = SERVED + CONVERTED if converted else SERVED
    if t.dtype not in formats:
        would = ", ".join(str(dtype).removeprefix("torch.") for dtype in formats)
        hint = f"; {name}.float() converts" if not t.dtype.is_complex else ""
        raise TypeError(f"{name} is {str(t.dtype).removeprefix('torch.')}: one of {would} would do{hint}")
    return t


def any_tensor(value: Any, name: str) -> torch.Tensor:
    """A dense tensor of any format, on a device that is served."""
    if not isinstance(value, torch.Tensor):
        kind = f"{type(value).__module__.split('.')[0]}.{type(value).__name__}"
        raise TypeError(f"{name} is a {kind}: a torch.Tensor would do, as the other arguments are")
    if value.is_nested:
        raise TypeError(f"{name} is a nested tensor: a dense one, by .to_padded_tensor(0.0), would do")
    if isinstance(value, torch.masked.MaskedTensor):
        raise TypeError(
            f"{name} is a torch.masked.MaskedTensor: {name}.get_data() would do, with {name}.get_mask() as "
            f"where= or mask= of the functions that have it"
        )
    if value.layout is not torch.strided:
        raise TypeError(f"{name} has layout {value.layout}: a dense tensor, by .to_dense(), would do")
    if value.ndim > checks.MOST_DIMENSIONS:
        raise ValueError(f"{name} has {value.ndim} dimensions: {checks.MOST_DIMENSIONS} at most would do")
    if value.device.type not in _DEVICES:
        raise NotImplementedError(f"{name} lies on {value.device}: a tensor on the CPU or on CUDA would do")
    return value


def same_device(**tensors: torch.Tensor | None) -> None:
    """Raises RuntimeError where tensors lie on several devices."""
    given = [(name, t) for name, t in tensors.items() if t is not None]
    first, of = given[0]
    for name, t in given[1:]:
        if t.device != of.device:
            raise RuntimeError(
                f"{name} lies on {t.device} and {first} on {of.device}: one device for all would do"
            )


def without_gradient(value: torch.Tensor | None, name: str, instead: str) -> None:
    """Raises NotImplementedError for a tensor that requires a gradient."""
    if value is not None and value.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(f"{name} requires a gradient, which it does not get: {instead} would do")


def mask(value: Any, name: str) -> torch.Tensor | None:
    if value is None:
        return None
    t = any_tensor(value, name)
    if t.dtype != torch.bool:
        raise TypeError(f"{name} is {t.dtype}: torch.bool would do, True where an element takes part")
    return t


def dims(axis: Any, dim: Any, ndim: int) -> list[int]:
    """The reduced dimensions, non-negative and sorted."""
    if isinstance(axis, list):
        axis = tuple(axis)
    if isinstance(dim, list):
        dim = tuple(dim)
    return list(checks.axes(axis, dim, ndim))


def dtype(value: Any, x: torch.Tensor) -> torch.dtype:
    """The format of a result."""
    if value is None:
        return x.dtype
    if not isinstance(value, torch.dtype) or value not in SERVED + CONVERTED:
        would = ", ".join(map(str, SERVED + CONVERTED))
        raise TypeError(f"dtype={value!r}: one of {would} would do")
    return value


__all__ = [
    "CONVERTED", "LAST_AXIS", "SERVED", "any_tensor", "dims", "dtype", "mask", "same_device", "tensor",
    "without_gradient",
]  # fmt: skip

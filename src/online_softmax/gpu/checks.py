"""Argument checks of the GPU face: each message names the argument, what was given and what would do.

Nothing here reads the data, and nothing is written.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import numpy as np
import torch
from numpy.exceptions import TooHardError

#: Formats served: kernels compute in float32.
SERVED: Final = (torch.float32, torch.float16, torch.bfloat16)
_NAMES: Final = ", ".join(str(dtype).removeprefix("torch.") for dtype in SERVED)
#: Steps allowed to the exact overlap test before the answer counts as "they overlap".
_OVERLAP_WORK: Final = 100_000


def tensor(value: Any, name: str, *, interpreted: bool) -> torch.Tensor:
    """`value` once a kernel can read it: apart from any autograd graph, and a copy where torch negates
    lazily.

    Raises TypeError for what is no strided tensor of a served format, ValueError for one that kernels can't
    reach, or whose gradient is asked for and would be lost.
    """
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}: a torch.Tensor would do")
    if value.layout != torch.strided:
        raise TypeError(f"{name} has layout {value.layout}: torch.strided would do")
    if value.dtype not in SERVED:
        raise TypeError(f"{name} is {str(value.dtype).removeprefix('torch.')}: {_NAMES} would do")
    if value.device.type != "cuda" and not (interpreted and value.device.type == "cpu"):
        raise ValueError(
            f"{name} is on {value.device}: a tensor on a GPU would do "
            "(or one on the CPU, with TRITON_INTERPRET=1 set before Python starts)"
        )
    if not value.ndim:
        raise ValueError(f"{name} has no dimensions: at least one would do, for example {name}.reshape(1)")
    no_gradient(value, name)
    return value.detach().resolve_neg()


def no_gradient(value: torch.Tensor, name: str) -> None:
    """Raises ValueError where autograd would expect this call to be recorded."""
    if value.requires_grad and torch.is_grad_enabled():
        raise ValueError(
            f"{name} requires a gradient, which is not recorded here: {name}.detach(), or a call under "
            "torch.no_grad(), would do"
        )


def axis(dim: Any, ndim: int) -> int:
    """`dim`, not negative. Raises TypeError or ValueError where it names no axis."""
    if isinstance(dim, bool):
        raise TypeError(f"dim={dim!r} is a bool: an int would do")
    try:
        number = operator.index(dim)
    except TypeError as error:
        raise TypeError(f"dim={dim!r} is a {type(dim).__name__}: an int would do") from error
    if not -ndim <= number < ndim:
        raise ValueError(
            f"dim={number} is out of range for {ndim} dimensions: {-ndim} to {ndim - 1} would do"
        )
    return number % ndim


def count(k: Any) -> int:
    """`k` as an int. Raises TypeError where it is none."""
    if isinstance(k, bool):
        raise TypeError(f"k={k!r} is a bool: an int would do")
    try:
        return operator.index(k)
    except TypeError as error:
        raise TypeError(f"k={k!r} is a {type(k).__name__}: an int would do") from error


def any_order(order: Any, algorithm: str) -> bool:
    """Whether bits are to depend on the elements alone. Raises TypeError for what is no str, ValueError
    for an order that is not built, and beside "any" for an algorithm that would make other bits."""
    if not isinstance(order, str):
        raise TypeError(f"order={order!r} is a {type(order).__name__}: 'row', 'any' would do")
    if order not in ("row", "any"):
        raise ValueError(f"order={order!r} is not built: 'row', 'any' would do")
    if order == "any" and algorithm not in ("auto", "cached", "online"):
        would = "'auto', 'cached' or 'online', whose bits are the same, would do"
        raise ValueError(f"algorithm={algorithm!r} with order='any': {would}")
    return order == "any"


def same(
    value: torch.Tensor, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, of: str
) -> None:
    """Raises where `value` differs from what goes with the argument called `of`."""
    if tuple(value.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(value.shape)}: {shape}, that of {of}, would do")
    if value.dtype != dtype:
        raise TypeError(f"{name} is {value.dtype}: {dtype}, that of {of}, would do")
    if value.device != device:
        raise ValueError(f"{name} is on {value.device}: {device}, where {of} is, would do")


def output(out: Any, x: torch.Tensor) -> torch.Tensor:
    """`out`, once it is known to be safe to write the result of x to.

    It may be the memory of x itself, or none of it. Raises TypeError and ValueError. Cost: constant, but for
    an exact overlap test of two tensors whose memory ranges cross.
    """
    if not isinstance(out, torch.Tensor):
        raise TypeError(f"out is a {type(out).__name__}: a torch.Tensor would do")
    if out.layout != torch.strided:
        raise TypeError(f"out has layout {out.layout}: torch.strided would do")
    same(out, "out", tuple(x.shape), x.dtype, x.device, "x")
    no_gradient(out, "out")
    if out.is_neg():
        raise ValueError("out is a view that torch negates when it is read: memory of its own would do")
    out = out.detach()
    if _overlaps_itself(out):
        raise ValueError(
            f"out has strides {out.stride()}, by which its elements share memory: distinct ones would do"
        )
    if not _same_memory(out, x) and _may_overlap(out, x):
        raise ValueError(
            "out overlaps x in part: the memory of x itself, with the same strides, or none of it would do"
        )
    return out


def _same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.data_ptr() == b.data_ptr() and all(
        n <= 1 or s == t for n, s, t in zip(a.shape, a.stride(), b.stride(), strict=True)
    )


def _overlaps_itself(a: torch.Tensor) -> bool:
    """Whether two elements may share memory: exact for every layout torch itself makes, else on the safe
    side."""
    if not a.numel():
        return False
    reach = 1
    for stride, length in sorted((s, n) for s, n in zip(a.stride(), a.shape, strict=True) if n > 1):
        if stride < reach:
            return True
        reach += stride * (length - 1)
    return False


def _may_overlap(a: torch.Tensor, b: torch.Tensor) -> bool:
    try:
        shared = np.shares_memory(_addresses(a), _addresses(b), max_work=_OVERLAP_WORK)  # type: ignore[arg-type]  # any count works
        return bool(shared)
    except TooHardError:
        return True


def _addresses(a: torch.Tensor) -> Any:
    """An array of the same addresses, wherever they are: to be compared, never read."""
    size = a.element_size()

    class Span:
        __array_interface__ = {  # noqa: RUF012  # numpy looks for a dict
            "version": 3,
            "typestr": f"|V{size}",
            "data": (a.data_ptr(), True),
            "shape": tuple(a.shape),
            "strides": tuple(stride * size for stride in a.stride()),
        }

    return np.asarray(Span())

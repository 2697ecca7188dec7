"""logaddexp, logcumsumexp and window_logsumexp of tensors.

States that merge and windows over streams (`SoftmaxState`, `SlidingLogSumExp`) take NumPy arrays: of a tensor
in CPU memory, t.detach().numpy().
"""

from __future__ import annotations

from typing import Any

import torch

from .. import checks as arguments
from .. import windows
from . import checks, scan_ops
from .checks import LAST_AXIS


def logaddexp(a: torch.Tensor | float, b: torch.Tensor | float) -> torch.Tensor:
    """log(exp(a) + exp(b)), element by element, of the shape that a and b broadcast to.

    Args:
        a, b: float64, float32, float16 or bfloat16 of one device, any strides; PyTorch's promotion decides
            the format. One of them may be a number.

    Special values and accuracy as `online_softmax.logaddexp`. Differentiable to any order; where both are
    -inf both gradients are 0.

    Raises: TypeError and ValueError naming the argument; RuntimeError for tensors of two devices.

    Cost: two reads and one write; the first gradients take float64 temporaries.
    """
    if not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor):
        raise TypeError(f"a is a {type(a).__name__} and b a {type(b).__name__}: one tensor at least would do")
    left, right = _operand(a, b, "a"), _operand(b, a, "b")
    dtype = _promoted(left, right, not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor))
    checks.same_device(a=left, b=right)
    try:
        shape = torch.broadcast_shapes(left.shape, right.shape)
    except RuntimeError as error:
        shapes = f"a has shape {tuple(left.shape)} and b {tuple(right.shape)}"
        raise ValueError(f"{shapes}: shapes that broadcast to each other would do") from error
    result: torch.Tensor = scan_ops.ADD(left.to(dtype).expand(shape), right.to(dtype).expand(shape))
    return result


def logcumsumexp(
    x: torch.Tensor,
    axis: Any = LAST_AXIS,
    *,
    dim: Any = None,
    reverse: bool = False,
    exclusive: bool = False,
) -> torch.Tensor:
    """log(sum(exp(x[:i + 1]))) for every i along one dimension: x's shape and format.

    Args:
        x: float64, float32, float16, bfloat16 (float8: computed in float32), any strides.
        axis, dim: one argument under two names, an int. Default: the last.
        reverse: of suffixes, x[i:], in place of prefixes.
        exclusive: without x[i] itself: the first result (the last, with `reverse`) is -inf.

    Special values and accuracy as `online_softmax.logcumsumexp`. Differentiable to any order, forward and
    backward.

    Raises: TypeError, ValueError and IndexError naming the argument.

    Cost: one read and one write (rows longer than 32768: two reads), the gradient one pass more. Gradients in
    forward mode and of gradients take 2 * log2(n) passes over float64 temporaries.
    """
    x, over = _scanned(x, axis, dim)
    reverse, exclusive = arguments.flag(reverse, "reverse"), arguments.flag(exclusive, "exclusive")
    found: torch.Tensor = scan_ops.WINDOW(x, 0, over, reverse)
    if not exclusive or not x.ndim:
        return _nothing(found) if exclusive else found
    length = x.shape[over]
    first = _nothing(found.narrow(over, 0, min(1, length)))
    rest = found.narrow(over, 1 if reverse else 0, max(length - 1, 0))
    return torch.cat([rest, first] if reverse else [first, rest], over)


def window_logsumexp(x: torch.Tensor, window: int, axis: Any = LAST_AXIS, *, dim: Any = None) -> torch.Tensor:
    """log(sum(exp(x[max(0, i - window + 1) : i + 1]))) for every i along one dimension: x's shape and format.

    Args:
        window: entries of a window, at least 1. The first windows are shorter.
        x, axis, dim: as in `logcumsumexp`.

    Special values and accuracy as `online_softmax.window_logsumexp`. Differentiable to any order.

    Raises: as `logcumsumexp`; ValueError for a window below 1.

    Cost: two reads and one write, whatever the window; gradients take 2 * log2(window) passes over float64
    temporaries.
    """
    x, over = _scanned(x, axis, dim)
    length = windows.whole(window, "window", 1)
    result: torch.Tensor = scan_ops.WINDOW(x, min(length, 2**62), over, False)
    return result


def _nothing(like: torch.Tensor) -> torch.Tensor:
    """-inf, or NaN in the format that has none."""
    value = torch.nan if like.dtype == torch.float8_e4m3fn else -torch.inf
    return torch.full(like.shape, value, dtype=torch.float32, device=like.device).to(like.dtype)


def _operand(value: Any, other: Any, name: str) -> torch.Tensor:
    if isinstance(value, int | float) and not isinstance(value, bool) and isinstance(other, torch.Tensor):
        return torch.full((), value, dtype=other.dtype, device=other.device)
    return checks.tensor(value, name)


def _promoted(a: torch.Tensor, b: torch.Tensor, number: bool) -> torch.dtype:
    """torch.result_type of floating tensors, which torch.compile does not trace: those without dimensions
    count for nothing beside others."""
    if number or a.dtype == b.dtype:
        return a.dtype
    if bool(a.ndim) != bool(b.ndim):
        return a.dtype if a.ndim else b.dtype
    return torch.promote_types(a.dtype, b.dtype)


def _scanned(x: Any, axis: Any, dim: Any) -> tuple[torch.Tensor, int]:
    x = checks.tensor(x, "x", converted=True)
    if not x.ndim:
        arguments.axes(axis, dim, 0)
        return x, 0
    return x, arguments.single_axis(axis, dim, x.ndim)

"""softmax, log_softmax and logsumexp of tensors."""

from __future__ import annotations

from typing import Any, Final

import torch

from .. import checks as arguments
from . import checks, mode, row_kernels, weighted
from .checks import LAST_AXIS
from .row_ops import LOG_SOFTMAX, LOG_SOFTMAX_ANY, LSE, LSE_ANY, SOFTMAX, SOFTMAX_ANY

# Identity tests against this, and names of this module, keep the way to a small call short.
_LAST: Final = -1
_MOST: Final = arguments.MOST_DIMENSIONS
_ROW: Final = "row"
_eager: Final = mode.eager
_is_grad_enabled: Final = torch.is_grad_enabled
_softmax_small, _log_softmax_small, _logsumexp_small = row_kernels.SMALL.values()


def softmax(
    x: torch.Tensor, axis: Any = LAST_AXIS, *, dim: Any = None, where: torch.Tensor | None = None,
    dtype: torch.dtype | None = None, order: str = "row",
) -> torch.Tensor:  # fmt: skip
    """exp(x) / sum(exp(x)) over `axis`: a tensor of x's shape in [0, 1].

    Args:
        x: float64, float32, float16, bfloat16 (float8_e4m3fn, float8_e5m2: computed in float32), any strides.
        axis, dim: one argument under two names: an int, several ints, or (axis only) None for all dimensions
            together. Default: the last.
        where: bool, broadcastable to x's shape: True takes part. The rest gives 0 and has no gradient; a row
            with nothing left gives zeros.
        dtype: format of the result; x is rounded to it first.
        order: "row": a row's bits depend on the row, the format and the instruction set alone. "any": on its
            elements alone, in whatever order, split or device they are read (docs/same_bits.md). Gradients
            are made from these results, but where a backward sums over a row it does so as for "row".

    Differentiable to any order, forward and backward; compiles, vmaps, exports. Under autocast on CUDA in
    float32, on the CPU in x's format, as PyTorch's own.

    Raises: TypeError, ValueError, IndexError naming the argument; RuntimeError for tensors of two devices.

    Cost: one read and one write of x; kept for the gradient is the result.
    """
    if (
        where is None and dtype is None and order is _ROW
        and ((axis is LAST_AXIS and (dim is None or dim is _LAST)) or (axis is _LAST and dim is None))
        and _eager(x)
    ):  # fmt: skip
        if not (x.requires_grad and _is_grad_enabled()):
            small: torch.Tensor | None = _softmax_small(x)
            if small is not None:
                return small
            if _served(x):
                return row_kernels.map_rows("softmax", x, [x.ndim - 1], None)
        elif _served(x):
            return SOFTMAX.direct(x, [x.ndim - 1], None)
    return _normalised(x, axis, dim, where, dtype, order, False)


def log_softmax(
    x: torch.Tensor, axis: Any = LAST_AXIS, *, dim: Any = None, where: torch.Tensor | None = None,
    dtype: torch.dtype | None = None, order: str = "row",
) -> torch.Tensor:  # fmt: skip
    """x - logsumexp(x) over `axis`, without the cancellation of that formula.

    Arguments (order too), errors and cost as for `softmax`; what `where` leaves out gives -inf.
    """
    if (
        where is None and dtype is None and order is _ROW
        and ((axis is LAST_AXIS and (dim is None or dim is _LAST)) or (axis is _LAST and dim is None))
        and _eager(x)
    ):  # fmt: skip
        if not (x.requires_grad and _is_grad_enabled()):
            small: torch.Tensor | None = _log_softmax_small(x)
            if small is not None:
                return small
            if _served(x):
                return row_kernels.map_rows("log_softmax", x, [x.ndim - 1], None)
        elif _served(x):
            return LOG_SOFTMAX.direct(x, [x.ndim - 1], None)
    return _normalised(x, axis, dim, where, dtype, order, True)


def logsumexp(
    x: torch.Tensor, axis: Any = LAST_AXIS, *, dim: Any = None, b: torch.Tensor | None = None,
    where: torch.Tensor | None = None, keepdim: bool = False, keepdims: bool | None = None,
    return_sign: bool = False, order: str = "row",
) -> Any:  # fmt: skip
    """log(sum(b * exp(x))) over `axis`, in x's format.

    Arguments and errors as for `softmax`; nothing to sum gives -inf, and gradient 0.

    Args:
        b: real weights, broadcastable to x's shape, default 1. An element of weight 0 drops out whatever x
            holds there. Differentiable too.
        keepdim, keepdims: keep each reduced dimension with length 1; PyTorch's name and NumPy's.
        return_sign: return the pair (log(abs(sum)), sign) with sign -1, 0 or 1, which has no gradient; a
            negative sum gives NaN otherwise.
        order: as for `softmax`, without weights; so is the gradient, which has no sum.

    Cost: one read of x; the backward reads x again and writes the gradient. With weights the gradients are
    composed of PyTorch's operations, with temporaries of x's size.
    """
    if (
        b is None and where is None and keepdim is False and keepdims is None and return_sign is False
        and order is _ROW
        and ((axis is LAST_AXIS and (dim is None or dim is _LAST)) or (axis is _LAST and dim is None))
        and _eager(x)
    ):  # fmt: skip
        if not (x.requires_grad and _is_grad_enabled()):
            small: torch.Tensor | None = _logsumexp_small(x)
            if small is not None:
                return small
            if _served(x):
                return row_kernels.lse_rows(x, [x.ndim - 1], None)
        elif _served(x):
            return LSE.direct(x, [x.ndim - 1], None)
    x = checks.tensor(x, "x", converted=True)
    over = checks.dims(axis, dim, x.ndim)
    keep = _where(where, x)
    keepdim = arguments.flag(keepdim, "keepdim") if keepdims is None else arguments.flag(keepdims, "keepdims")
    return_sign = arguments.flag(return_sign, "return_sign")
    op = LSE
    if arguments.order(order):
        if b is not None:
            raise ValueError("b with order='any' is not built: b=None, or order='row', would do")
        op = LSE_ANY
    if b is None and not return_sign:
        lse = op(x, over, keep)
        found = (lse, lse)
    elif b is None:
        lse = op(x, over, keep)
        sign = torch.where(lse.isnan(), lse, torch.where(lse == -torch.inf, 0, torch.ones_like(lse)))
        found = (lse, sign.detach())
    else:
        found = weighted.logsumexp(x, over, keep, b, return_sign)
    for d in over if keepdim else ():
        found = (found[0].unsqueeze(d), found[1].unsqueeze(d))
    return found if return_sign else found[0]


def _served(x: torch.Tensor) -> bool:
    """Whether the kernels take this plain tensor, along its last dimension, without a further look."""
    return x.is_cpu and x.dtype in row_kernels.CODES and x.layout is torch.strided and 0 < x.ndim <= _MOST


def _normalised(x: Any, axis: Any, dim: Any, where: Any, dtype: Any, order: Any, log: bool) -> torch.Tensor:
    x = checks.tensor(x, "x", converted=True)
    over = checks.dims(axis, dim, x.ndim)
    keep = _where(where, x)
    if dtype is not None and checks.dtype(dtype, x) != x.dtype:
        x = x.to(dtype)
    ops = (SOFTMAX_ANY, LOG_SOFTMAX_ANY) if arguments.order(order) else (SOFTMAX, LOG_SOFTMAX)
    op = ops[log]
    result: torch.Tensor = op(x, over, keep)
    return result


def _where(where: Any, x: torch.Tensor) -> torch.Tensor | None:
    keep = checks.mask(where, "where")
    if keep is None:
        return None
    checks.same_device(x=x, where=keep)
    if keep.ndim > x.ndim or any(
        n not in (1, m) for n, m in zip(reversed(keep.shape), reversed(x.shape), strict=False)
    ):
        raise ValueError(
            f"where has shape {tuple(keep.shape)}: one that broadcasts to {tuple(x.shape)}, x's, would do"
        )
    return keep

"""softmax, log_softmax and logsumexp of tensors."""

from __future__ import annotations

from typing import Any, Final

import torch

from .. import checks as arguments
from . import checks, mode, row_kernels, weighted
from .checks import LAST_AXIS
from .registry import Op, Rule, front

# Identity tests against this, and names of this module, keep the way to a small call short.
_LAST: Final = -1
_MOST: Final = arguments.MOST_DIMENSIONS
_eager: Final = mode.eager
_is_grad_enabled: Final = torch.is_grad_enabled
_softmax_small, _log_softmax_small, _logsumexp_small = row_kernels.SMALL.values()


def softmax(
    x: torch.Tensor, axis: Any = LAST_AXIS, *, dim: Any = None, where: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:  # fmt: skip
    """exp(x) / sum(exp(x)) over `axis`: a tensor of x's shape in [0, 1].

    Args:
        x: float64, float32, float16, bfloat16 (float8_e4m3fn, float8_e5m2: computed in float32), any strides.
        axis, dim: one argument under two names: an int, several ints, or (axis only) None for all dimensions
            together. Default: the last.
        where: bool, broadcastable to x's shape: True takes part. The rest gives 0 and has no gradient; a row
            with nothing left gives zeros.
        dtype: format of the result; x is rounded to it first.

    Differentiable to any order, forward and backward; compiles, vmaps, exports. Under autocast on CUDA in
    float32, on the CPU in x's format, as PyTorch's own.

    Raises: TypeError, ValueError, IndexError naming the argument; RuntimeError for tensors of two devices.

    Cost: one read and one write of x; kept for the gradient is the result.
    """
    if (
        where is None and dtype is None
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
            return _SOFTMAX.direct(x, [x.ndim - 1], None)
    return _normalised(x, axis, dim, where, dtype, False)


def log_softmax(
    x: torch.Tensor, axis: Any = LAST_AXIS, *, dim: Any = None, where: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:  # fmt: skip
    """x - logsumexp(x) over `axis`, without the cancellation of that formula.

    Arguments, errors and cost as for `softmax`; what `where` leaves out gives -inf.
    """
    if (
        where is None and dtype is None
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
            return _LOG_SOFTMAX.direct(x, [x.ndim - 1], None)
    return _normalised(x, axis, dim, where, dtype, True)


def logsumexp(
    x: torch.Tensor, axis: Any = LAST_AXIS, *, dim: Any = None, b: torch.Tensor | None = None,
    where: torch.Tensor | None = None, keepdim: bool = False, keepdims: bool | None = None,
    return_sign: bool = False,
) -> Any:  # fmt: skip
    """log(sum(b * exp(x))) over `axis`, in x's format.

    Arguments and errors as for `softmax`; nothing to sum gives -inf, and gradient 0.

    Args:
        b: real weights, broadcastable to x's shape, default 1. An element of weight 0 drops out whatever x
            holds there. Differentiable too.
        keepdim, keepdims: keep each reduced dimension with length 1; PyTorch's name and NumPy's.
        return_sign: return the pair (log(abs(sum)), sign) with sign -1, 0 or 1, which has no gradient; a
            negative sum gives NaN otherwise.

    Cost: one read of x; the backward reads x again and writes the gradient. With weights the gradients are
    composed of PyTorch's operations, with temporaries of x's size.
    """
    if (
        b is None and where is None and keepdim is False and keepdims is None and return_sign is False
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
            return _LSE.direct(x, [x.ndim - 1], None)
    x = checks.tensor(x, "x", converted=True)
    over = checks.dims(axis, dim, x.ndim)
    keep = _where(where, x)
    keepdim = arguments.flag(keepdim, "keepdim") if keepdims is None else arguments.flag(keepdims, "keepdims")
    return_sign = arguments.flag(return_sign, "return_sign")
    if b is None and not return_sign:
        lse = _LSE(x, over, keep)
        found = (lse, lse)
    elif b is None:
        lse = _LSE(x, over, keep)
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


def _normalised(x: Any, axis: Any, dim: Any, where: Any, dtype: Any, log: bool) -> torch.Tensor:
    x = checks.tensor(x, "x", converted=True)
    over = checks.dims(axis, dim, x.ndim)
    keep = _where(where, x)
    if dtype is not None and checks.dtype(dtype, x) != x.dtype:
        x = x.to(dtype)
    op = _LOG_SOFTMAX if log else _SOFTMAX
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


# Shapes


def _same(x: torch.Tensor, dims: list[int], where: torch.Tensor | None) -> torch.Tensor:
    return torch.empty_like(x, requires_grad=False)


def _reduced(x: torch.Tensor, dims: list[int], where: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty([n for d, n in enumerate(x.shape) if d not in dims])


# Derivatives


def _softmax_product(
    y: torch.Tensor, t: torch.Tensor, dims: list[int], where: torch.Tensor | None
) -> torch.Tensor:
    """The Jacobian of softmax, which is symmetric, times t."""
    if where is not None:
        t = torch.where(where, t, 0)
    if len(dims) == 1 and y.dtype in checks.SERVED:
        return torch._softmax_backward_data(t, y, dims[0], y.dtype)
    if not dims:
        return torch.zeros_like(y)
    return y * (t - (y * t).sum(dims, keepdim=True))


class _Softmax(Rule):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        _, ctx.dims, where = inputs
        ctx.save_for_backward(output, where)
        ctx.save_for_forward(output, where)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        y, where = ctx.saved_tensors
        return _softmax_product(y, dy, ctx.dims, where), None, None

    @staticmethod
    def jvp(ctx: Any, t: torch.Tensor, *_: Any) -> torch.Tensor:
        y, where = ctx.saved_tensors
        return _softmax_product(y, t, ctx.dims, where)


class _LogSoftmax(Rule):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        _, ctx.dims, where = inputs
        ctx.save_for_backward(output, where)
        ctx.save_for_forward(output, where)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        y, where = ctx.saved_tensors
        if where is not None:
            dy = torch.where(where, dy, 0)
        if len(ctx.dims) == 1 and y.dtype in checks.SERVED:
            return torch._log_softmax_backward_data(dy, y, ctx.dims[0], y.dtype), None, None
        if not ctx.dims:
            return torch.zeros_like(y), None, None
        return dy - y.exp() * dy.sum(ctx.dims, keepdim=True), None, None

    @staticmethod
    def jvp(ctx: Any, t: torch.Tensor, *_: Any) -> torch.Tensor:
        y, where = ctx.saved_tensors
        if not ctx.dims:
            return torch.zeros_like(y)
        if where is not None:
            t = torch.where(where, t, 0)
        made = t - (y.exp() * t).sum(ctx.dims, keepdim=True)
        return made if where is None else torch.where(where, made, 0)


class _LogSumExp(Rule):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        x, ctx.dims, where = inputs
        ctx.save_for_backward(x, where)
        ctx.save_for_forward(x, where)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        x, where = ctx.saved_tensors
        for d in ctx.dims:
            dy = dy.unsqueeze(d)
        return dy * WEIGHTS(x, ctx.dims, where), None, None

    @staticmethod
    def jvp(ctx: Any, t: torch.Tensor, *_: Any) -> torch.Tensor:
        x, where = ctx.saved_tensors
        if not ctx.dims:
            return t if where is None else torch.where(where, t, 0)
        if where is not None:
            t = torch.where(where, t, 0)
        return (t * WEIGHTS(x, ctx.dims, where)).sum(ctx.dims)


def _batched(name: str) -> Any:
    def vmap(
        info: Any, in_dims: tuple[Any, ...], x: torch.Tensor, dims: list[int], where: torch.Tensor | None
    ) -> Any:
        along, _, along_where = in_dims
        inner = x.ndim - (along is not None)
        x = front(x, along) if along is not None else x.unsqueeze(0).expand(info.batch_size, *x.shape)
        if where is not None and along_where is not None:
            where = where.movedim(along_where, 0)
            missing = inner - (where.ndim - 1)
            where = where.reshape(where.shape[0], *(1,) * missing, *where.shape[1:])
        return getattr(torch.ops.online_softmax, name)(x, [d + 1 for d in dims], where), 0

    return vmap


def _float32(args: tuple[Any, ...], device: str) -> tuple[Any, ...]:
    """PyTorch's rule: in float32 on CUDA, as it comes on the CPU."""
    x, *rest = args
    narrow = device == "cuda" and x.dtype in (torch.float16, torch.bfloat16)
    return (x.float() if narrow else x, *rest)


_ARGUMENTS = "(Tensor x, int[] dims, Tensor? where) -> Tensor"
_SOFTMAX = Op(
    "softmax" + _ARGUMENTS, cpu=row_kernels.softmax_cpu, cuda=row_kernels.cuda("softmax"), fake=_same,
    rule=_Softmax, vmap=_batched("softmax"), policy=_float32,
)  # fmt: skip
_LOG_SOFTMAX = Op(
    "log_softmax" + _ARGUMENTS, cpu=row_kernels.log_softmax_cpu, cuda=row_kernels.cuda("log_softmax"),
    fake=_same, rule=_LogSoftmax, vmap=_batched("log_softmax"), policy=_float32,
)  # fmt: skip
_LSE = Op(
    "logsumexp" + _ARGUMENTS, cpu=row_kernels.logsumexp_cpu, cuda=row_kernels.cuda("logsumexp"),
    fake=_reduced, rule=_LogSumExp, vmap=_batched("logsumexp"), policy=_float32,
)  # fmt: skip
# Its Jacobian is that of the softmax that it is.
WEIGHTS = Op(
    "logsumexp_weights" + _ARGUMENTS, cpu=row_kernels.weights_cpu, cuda=row_kernels.weights_cuda,
    fake=_same, rule=type("_Weights", (_Softmax,), {}), vmap=_batched("logsumexp_weights"),
)  # fmt: skip

"""softmax, log_softmax and logsumexp of tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .. import numpy as arrays
from . import checks, memory, mode
from .checks import LAST_AXIS
from .registry import Op, Rule, front


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
    return _normalised(x, axis, dim, where, dtype, False)


def log_softmax(
    x: torch.Tensor, axis: Any = LAST_AXIS, *, dim: Any = None, where: torch.Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:  # fmt: skip
    """x - logsumexp(x) over `axis`, without the cancellation of that formula.

    Arguments, errors and cost as for `softmax`; what `where` leaves out gives -inf.
    """
    return _normalised(x, axis, dim, where, dtype, True)


def logsumexp(
    x: torch.Tensor,
    axis: Any = LAST_AXIS,
    *,
    dim: Any = None,
    where: torch.Tensor | None = None,
    keepdim: bool = False,
) -> torch.Tensor:
    """log(sum(exp(x))) over `axis`, in x's format.

    Arguments and errors as for `softmax`; nothing to sum gives -inf, and gradient 0.

    Cost: one read of x; the backward reads x again and writes the gradient.
    """
    x = checks.tensor(x, "x", converted=True)
    over = checks.dims(axis, dim, x.ndim)
    keep = _where(where, x)
    if not isinstance(keepdim, bool):
        raise TypeError(f"keepdim={keepdim!r} is a {type(keepdim).__name__}: True or False would do")
    found: torch.Tensor = _LSE(x, over, keep)
    for d in over if keepdim else ():
        found = found.unsqueeze(d)
    return found


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


# Kernels


def _map_cpu(x: torch.Tensor, dims: list[int], where: torch.Tensor | None, log: bool) -> torch.Tensor:
    y = memory.empty_like(x)
    function = arrays.log_softmax if log else arrays.softmax
    function(
        memory.array(x),
        tuple(dims),
        where=memory.optional(where),
        out=memory.array(y),
        threads=mode.threads(),
    )
    return y


def _softmax_cpu(x: torch.Tensor, dims: list[int], where: torch.Tensor | None) -> torch.Tensor:
    return _map_cpu(x, dims, where, False)


def _log_softmax_cpu(x: torch.Tensor, dims: list[int], where: torch.Tensor | None) -> torch.Tensor:
    return _map_cpu(x, dims, where, True)


def _lse_cpu(x: torch.Tensor, dims: list[int], where: torch.Tensor | None) -> torch.Tensor:
    found = arrays.logsumexp(
        memory.array(x), tuple(dims), where=memory.optional(where), threads=mode.threads()
    )
    return memory.tensor(np.asarray(found))


def _weights_cpu(x: torch.Tensor, dims: list[int], where: torch.Tensor | None) -> torch.Tensor:
    """Softmax, 0 in rows that have nothing but -inf: the gradient of their log-sum-exp."""
    keep = x != -torch.inf
    return _map_cpu(x, dims, keep if where is None else keep & where, False)


def _cuda(name: str) -> Any:
    def kernel(x: torch.Tensor, dims: list[int], where: torch.Tensor | None) -> torch.Tensor:
        from ...gpu import ops as gpu  # Triton is loaded when a CUDA tensor asks for it

        if len(dims) != 1 or where is not None:
            what = "where" if where is not None else f"dim={tuple(dims)}"
            raise NotImplementedError(f"{what} with CUDA tensors: one dimension and no where would do")
        function = {
            "softmax": gpu.softmax, "log_softmax": gpu.log_softmax, "logsumexp": gpu.logsumexp,
        }[name]  # fmt: skip
        return function(x.detach(), dims[0]).to(x.dtype)

    return kernel


def _weights_cuda(x: torch.Tensor, dims: list[int], where: torch.Tensor | None) -> torch.Tensor:
    from ...gpu import ops as gpu

    if len(dims) != 1 or where is not None:
        raise NotImplementedError("where or several dimensions with CUDA tensors: one and no where would do")
    lse = gpu.logsumexp(x.detach(), dims[0])
    return gpu.logsumexp_backward(x.detach(), lse, torch.ones_like(lse), dims[0])


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
        return torch.ops.aten._softmax_backward_data(t, y, dims[0], y.dtype)
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
            return torch.ops.aten._log_softmax_backward_data(dy, y, ctx.dims[0], y.dtype), None, None
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
        return dy * _WEIGHTS(x, ctx.dims, where), None, None

    @staticmethod
    def jvp(ctx: Any, t: torch.Tensor, *_: Any) -> torch.Tensor:
        x, where = ctx.saved_tensors
        if not ctx.dims:
            return t if where is None else torch.where(where, t, 0)
        if where is not None:
            t = torch.where(where, t, 0)
        return (t * _WEIGHTS(x, ctx.dims, where)).sum(ctx.dims)


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
    "softmax" + _ARGUMENTS, cpu=_softmax_cpu, cuda=_cuda("softmax"), fake=_same, rule=_Softmax,
    vmap=_batched("softmax"), policy=_float32,
)  # fmt: skip
_LOG_SOFTMAX = Op(
    "log_softmax" + _ARGUMENTS, cpu=_log_softmax_cpu, cuda=_cuda("log_softmax"), fake=_same,
    rule=_LogSoftmax, vmap=_batched("log_softmax"), policy=_float32,
)  # fmt: skip
_LSE = Op(
    "logsumexp" + _ARGUMENTS, cpu=_lse_cpu, cuda=_cuda("logsumexp"), fake=_reduced, rule=_LogSumExp,
    vmap=_batched("logsumexp"), policy=_float32,
)  # fmt: skip
# Its Jacobian is that of the softmax that it is.
_WEIGHTS = Op(
    "logsumexp_weights" + _ARGUMENTS, cpu=_weights_cpu, cuda=_weights_cuda, fake=_same,
    rule=type("_Weights", (_Softmax,), {}), vmap=_batched("logsumexp_weights"),
)  # fmt: skip

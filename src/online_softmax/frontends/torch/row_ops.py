"""The operations behind softmax, log_softmax and logsumexp of tensors: shapes, derivatives, vmap, autocast.

Of each there is one for either order of combination: the names of those for "any" end in `_any`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from . import checks, row_kernels
from .registry import Op, Policy, Rule, front

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


def _log_sum_exp(weights: Callable[..., torch.Tensor]) -> type[Rule]:
    """The derivatives of a log-sum-exp whose gradient is what `weights` makes of its arguments."""

    class LogSumExp(Rule):
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
            return dy * weights(x, ctx.dims, where), None, None

        @staticmethod
        def jvp(ctx: Any, t: torch.Tensor, *_: Any) -> torch.Tensor:
            x, where = ctx.saved_tensors
            if not ctx.dims:
                return t if where is None else torch.where(where, t, 0)
            if where is not None:
                t = torch.where(where, t, 0)
            return (t * weights(x, ctx.dims, where)).sum(ctx.dims)

    return LogSumExp


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


def _op(name: str, rule: type[Rule], fake: Callable[..., torch.Tensor], policy: Policy | None) -> Op:
    # An operation writes itself into its rule: each has a class of its own.
    metaclass: Any = type(rule)
    own = metaclass(rule.__name__, (rule,), {})
    return Op(
        name + _ARGUMENTS, cpu=row_kernels.CPU[name], cuda=row_kernels.cuda(name), fake=fake, rule=own,
        vmap=_batched(name), policy=policy,
    )  # fmt: skip


SOFTMAX = _op("softmax", _Softmax, _same, _float32)
LOG_SOFTMAX = _op("log_softmax", _LogSoftmax, _same, _float32)
# The gradient of a log-sum-exp; its Jacobian is that of the softmax that it is.
WEIGHTS = _op("logsumexp_weights", _Softmax, _same, None)
LSE = _op("logsumexp", _log_sum_exp(WEIGHTS), _reduced, _float32)

SOFTMAX_ANY = _op("softmax_any", _Softmax, _same, _float32)
LOG_SOFTMAX_ANY = _op("log_softmax_any", _LogSoftmax, _same, _float32)
WEIGHTS_ANY = _op("logsumexp_weights_any", _Softmax, _same, None)
LSE_ANY = _op("logsumexp_any", _log_sum_exp(WEIGHTS_ANY), _reduced, _float32)

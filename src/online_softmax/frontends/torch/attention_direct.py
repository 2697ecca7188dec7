"""The way of plain calls from tensors to the native core, with nothing in Python between: q, k and v of one
format, with a mask or bias or without, and none of the rarer options. Whatever else there is goes by
`attention_kernels`, which is also where what does not fit together is refused."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch

from ... import _core
from . import memory, mode
from .attention_options import Rest, rows_by_place, wide

_forward: Final = _core.attention_tensors
_backward: Final = _core.attention_gradient_tensors
_threads: Final = torch.get_num_threads
_is_grad_enabled: Final = torch.is_grad_enabled
_is_autocast_enabled: Final = torch.is_autocast_enabled
_PLAIN_TYPES: Final = mode.PLAIN_TYPES

Results = tuple[torch.Tensor, Any]


class Numbers(NamedTuple):
    """Those of `Rest` that a plain call has, in their order there."""

    scale: float | None = None
    softcap: float = 0.0
    left: int = -1
    right: int = -1
    lower_right: bool = True


def numbers_of(rest: Rest, sinks: torch.Tensor | None) -> Numbers | None:
    """None where the call is not plain."""
    if (
        sinks is rest.slopes is rest.seed is rest.seqlens_k is rest.cu_seqlens_q is rest.cu_seqlens_k is None
        and rest.origin is None
    ):
        return Numbers(rest.scale, rest.softcap, rest.left, rest.right, rest.lower_right)
    return None


def rest_of(mask: torch.Tensor | None, numbers: Numbers) -> Rest:
    return Rest(mask, None, None, None, None, None, *numbers)


def like(t: torch.Tensor, features: int) -> torch.Tensor:
    """Memory for (batch, heads, length, features) laid out like `t`."""
    order = (0, 2, 1, 3) if rows_by_place(t) else (0, 1, 2, 3)
    return memory.empty_permuted((*t.shape[:3], features), order, t.dtype)


def _statistics(q: torch.Tensor) -> torch.Tensor:
    return torch.empty(q.shape[:-1], dtype=wide(q))


def forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None, mask: torch.Tensor | None,
    numbers: Numbers, with_lse: bool = True,
) -> Results | None:  # fmt: skip
    """Output and lse of tensors in CPU memory; None, and nothing done, where the call is not plain. Without
    `with_lse` None stands for the lse."""
    if (
        q.is_neg()
        or k.is_neg()
        or v.is_neg()
        or (bias is not None and bias.is_neg())
        or (mask is not None and mask.is_neg())
    ):
        return None
    return _forward(q, k, v, mask, bias, *numbers, _threads(), like, _statistics if with_lse else None)


def backward(
    do: torch.Tensor, dlse: torch.Tensor | None, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor,
    bias: torch.Tensor | None, mask: torch.Tensor | None, output: torch.Tensor, lse: torch.Tensor,
    numbers: Numbers,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None:  # fmt: skip
    """Gradients of q, k and v, likewise."""
    for t in (do, dlse, q, k, v, bias, mask, output, lse):
        if t is not None and t.is_neg():
            return None
    return _backward(do, dlse, q, k, v, output, lse, mask, bias, *numbers, _threads(), like)


class _Plain(torch.autograd.Function):
    """A plain eager call with its gradient: of results that are there already."""

    @staticmethod
    def forward(
        ctx: Any, q: Any, k: Any, v: Any, bias: Any, mask: Any, made: list[Any], with_lse: bool,
        numbers: Numbers,
    ) -> Any:  # fmt: skip
        ctx.numbers = numbers
        if with_lse:
            ctx.set_materialize_grads(False)
        ctx.save_for_backward(q, k, v, bias, mask, *made)
        return tuple(made) if with_lse else made[0]

    @staticmethod
    def backward(ctx: Any, do: Any, dlse: Any = None) -> tuple[Any, ...]:
        q, k, v, bias, mask, output, lse = ctx.saved_tensors
        if do is None and dlse is None:
            return (None,) * 8
        of_bias = bias is not None and ctx.needs_input_grad[3]
        if do is not None and not of_bias and not _is_grad_enabled() and type(do) in _PLAIN_TYPES:
            found = mode.plain() and backward(do, dlse, q, k, v, bias, mask, output, lse, ctx.numbers)
            if found:
                return (*found, None, None, None, None, None)
        if do is None:
            do = torch.zeros_like(output)
        rest = rest_of(mask, ctx.numbers)
        op = torch.ops.online_softmax.attention_backward
        dq, dk, dv, d_bias, _ = op(do, dlse, q, k, v, bias, None, output, lse, of_bias, *rest)
        return dq, dk, dv, d_bias if of_bias else None, None, None, None, None


# Not Function.apply: what that does in Python takes as long as all else here, and is for torch.func.
_apply: Final = super(torch.autograd.Function, _Plain).apply


def attention(q: Any, k: Any, v: Any, bias: Any, mask: Any, numbers: Numbers, with_lse: bool) -> Any:
    """The output, or (output, lse), of a plain call where nothing traces, transforms or casts; None for all
    others. q and the rest may be anything."""
    if (
        type(q) not in _PLAIN_TYPES
        or type(k) not in _PLAIN_TYPES
        or type(v) not in _PLAIN_TYPES
        or not (bias is None or type(bias) in _PLAIN_TYPES)
        or not (mask is None or type(mask) in _PLAIN_TYPES)
        or not mode.plain()
        or _is_autocast_enabled("cpu")
    ):
        return None
    wants = (
        q.requires_grad or k.requires_grad or v.requires_grad or (bias is not None and bias.requires_grad)
    ) and _is_grad_enabled()
    found = forward(q, k, v, bias, mask, numbers, with_lse or wants)
    if found is None:
        return None
    if wants:
        return _apply(q, k, v, bias, mask, list(found), with_lse, numbers)
    return found if with_lse else found[0]

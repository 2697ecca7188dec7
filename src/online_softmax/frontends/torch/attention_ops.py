"""The registered operations of attention on (batch, heads, length, features): shapes and derivatives."""

from __future__ import annotations

from typing import Any

import torch

from . import attention_kernels as kernels
from .attention_options import SCHEMA, TENSORS, Rest, rows_by_place, split, wide
from .registry import Op, Rule


def _rows_like(t: torch.Tensor, features: Any) -> torch.Tensor:
    batch, heads, length, _ = t.shape
    if rows_by_place(t):
        return t.new_empty((batch, length, heads, features)).transpose(1, 2)
    return t.new_empty((batch, heads, length, features))


def _fake(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    (q, _, v, *_), _ = split(args)
    return _rows_like(q, v.shape[3]), q.new_empty(q.shape[:-1], dtype=wide(q))


def _fake_backward(*args: Any) -> tuple[torch.Tensor, ...]:
    (_, _, q, k, v, bias, sinks, _, _, bias_grad), _ = split(args)
    return (
        *(_rows_like(t, t.shape[3]) for t in (q, k, v)),
        bias.new_empty(bias.shape) if bias_grad else q.new_empty(0),
        q.new_empty(0) if sinks is None else sinks.new_empty(sinks.shape),
    )


def _keep(ctx: Any, own: tuple[Any, ...], rest: Rest) -> None:
    """Tensors are saved as such, so that they are freed and that a change of them is seen."""
    ctx.numbers = rest.numbers()
    kept = (*own, *rest.tensors())
    ctx.save_for_backward(*kept)
    ctx.save_for_forward(*kept)


def _kept(ctx: Any) -> tuple[tuple[Any, ...], Rest]:
    saved = ctx.saved_tensors
    return saved[:-TENSORS], Rest(*saved[-TENSORS:], *ctx.numbers)


class _Attention(Rule):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        own, rest = split(inputs)
        ctx.set_materialize_grads(False)
        _keep(ctx, (*own, *output), rest)

    @staticmethod
    def backward(ctx: Any, do: Any, dlse: Any) -> tuple[Any, ...]:
        (q, k, v, bias, sinks, output, lse), rest = _kept(ctx)
        if do is None:
            if dlse is None:
                return (None,) * len(ctx.needs_input_grad)
            do = torch.zeros_like(output)
        of_bias = bias is not None and ctx.needs_input_grad[3]
        dq, dk, dv, d_bias, d_sinks = BACKWARD(do, dlse, q, k, v, bias, sinks, output, lse, of_bias, *rest)
        return (
            dq, dk, dv, d_bias if of_bias else None, None if sinks is None else d_sinks,
            *(None,) * len(rest),
        )  # fmt: skip


def _autocast(args: tuple[Any, ...], device: str) -> tuple[Any, ...]:
    """PyTorch's rule for its own: q, k, v and what is added to the scores in the lower precision."""
    to = torch.get_autocast_dtype(device)
    cast = (
        a.to(to) if a is not None and a.dtype in (torch.float32, torch.float16, torch.bfloat16) else a
        for a in args[:4]
    )
    return (*cast, *args[4:])


_OPERANDS = "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? sinks, "
FORWARD = Op(
    f"attention({_OPERANDS}{SCHEMA}) -> (Tensor output, Tensor lse)",
    cpu=kernels.forward, fake=_fake, rule=_Attention, policy=_autocast,
)  # fmt: skip
BACKWARD = Op(
    f"attention_backward(Tensor d_output, Tensor? d_lse, {_OPERANDS}Tensor output, Tensor lse, "
    f"bool bias_grad, {SCHEMA}) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    cpu=kernels.backward, fake=_fake_backward,
)  # fmt: skip

"""The operations behind segment_logsumexp and segment_softmax, and their derivatives.

First gradients are native; further ones and tangents are compositions over softmaxes of the groups, sums over
groups and their repetition, all of them differentiable.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .. import segments
from . import memory, mode
from .registry import Op, Rule, front

# Kernels


def _options(places: torch.Tensor, is_ids: bool, groups: int, dim: int) -> dict[str, Any]:
    given = memory.array(places)
    named = {"ids": given, "num_segments": groups} if is_ids else {"offsets": given}
    return {**named, "axis": dim, "threads": mode.threads()}


def _lse_cpu(x: torch.Tensor, places: torch.Tensor, is_ids: bool, groups: int, dim: int) -> torch.Tensor:
    lse = segments.segment_logsumexp(memory.array(x), **_options(places, is_ids, groups, dim))
    return memory.tensor(np.ascontiguousarray(lse))


def _softmax_cpu(x: torch.Tensor, places: torch.Tensor, is_ids: bool, groups: int, dim: int) -> torch.Tensor:
    y = memory.empty_like(x)
    options = _options(places, is_ids, groups, dim)
    segments.segment_softmax(memory.array(x), out=memory.array(y), **options)
    return y


def _lse_gradient_cpu(
    dout: torch.Tensor, x: torch.Tensor, places: torch.Tensor, is_ids: bool, groups: int, dim: int
) -> torch.Tensor:
    options = _options(places, is_ids, groups, dim)
    dx = segments.segment_logsumexp_vjp(memory.array(dout), memory.array(x), **options)
    return memory.tensor(np.ascontiguousarray(dx))


def _softmax_gradient_cpu(
    dout: torch.Tensor, x: torch.Tensor, places: torch.Tensor, is_ids: bool, groups: int, dim: int
) -> torch.Tensor:
    options = _options(places, is_ids, groups, dim)
    dx = segments.segment_softmax_vjp(memory.array(dout), memory.array(x), **options)
    return memory.tensor(np.ascontiguousarray(dx))


# Shapes


def _groups_fake(x: torch.Tensor, places: Any, is_ids: bool, groups: int, dim: int) -> torch.Tensor:
    return x.new_empty([groups if d == dim else n for d, n in enumerate(x.shape)])


def _like_x(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(x, requires_grad=False)


def _gradient_fake(dout: torch.Tensor, x: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


# Derivatives


class _Groups:
    """Sums over groups and their repetition, in torch operations."""

    def __init__(self, x: torch.Tensor, places: torch.Tensor, is_ids: bool, groups: int, dim: int) -> None:
        self.x, self.groups, self.dim = x, groups, dim
        if is_ids:
            self.ids = places.long()
        else:
            # By places and not by repetition: that would ask for numbers in a tensor.
            steps = torch.arange(x.shape[dim], device=x.device)
            self.ids = torch.searchsorted(places[1:].long().contiguous(), steps, right=True)

    def add(self, t: torch.Tensor) -> torch.Tensor:
        shape = [self.groups if d == self.dim else n for d, n in enumerate(t.shape)]
        return t.new_zeros(shape).index_add(self.dim, self.ids, t)

    def repeat(self, t: torch.Tensor) -> torch.Tensor:
        return t.index_select(self.dim, self.ids)

    def centred(self, y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """The Jacobian of a softmax y of groups, which is symmetric, times t."""
        return y * (t - self.repeat(self.add(y * t)))


class _Grouped(Rule):
    """What the rules share: arguments (tensors, places, is_ids, groups, dim)."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        *tensors, ctx.is_ids, ctx.groups, ctx.dim = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def options(ctx: Any) -> tuple[Any, ...]:
        return ctx.saved_tensors[-1], ctx.is_ids, ctx.groups, ctx.dim


def _weights(x: torch.Tensor, options: tuple[Any, ...], over: _Groups) -> torch.Tensor:
    """Softmax of the groups, 0 in those that are all -inf: the gradient of their lse."""
    nothing = over.repeat(over.add((x != -torch.inf).to(x.dtype))) == 0
    return torch.where(nothing, 0, SOFTMAX(x, *options))


class _LSE(_Grouped):
    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        return LSE_GRADIENT(dy, ctx.saved_tensors[0], *_Grouped.options(ctx)), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, t: torch.Tensor, *_: Any) -> torch.Tensor:
        x, options = ctx.saved_tensors[0], _Grouped.options(ctx)
        over = _Groups(x, *options)
        return over.add(_weights(x, options, over) * t)


class _LSEGradient(_Grouped):
    @staticmethod
    def backward(ctx: Any, v: torch.Tensor) -> Any:
        g, x, _ = ctx.saved_tensors
        options = _Grouped.options(ctx)
        over = _Groups(x, *options)
        p = _weights(x, options, over)
        return over.add(p * v), over.centred(p, v * over.repeat(g)), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tg: Any, tx: Any, *_: Any) -> torch.Tensor:
        g, x, _places = ctx.saved_tensors
        options = _Grouped.options(ctx)
        over = _Groups(x, *options)
        p = _weights(x, options, over)
        made = torch.zeros_like(x) if tg is None else p * over.repeat(tg)
        return made if tx is None else made + over.repeat(g) * over.centred(p, tx)


class _Softmax(_Grouped):
    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        return SOFTMAX_GRADIENT(dy, ctx.saved_tensors[0], *_Grouped.options(ctx)), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, t: torch.Tensor, *_: Any) -> torch.Tensor:
        x, options = ctx.saved_tensors[0], _Grouped.options(ctx)
        return _Groups(x, *options).centred(SOFTMAX(x, *options), t)


class _SoftmaxGradient(_Grouped):
    """y * (g - sums of y * g), linear in g and symmetric."""

    @staticmethod
    def backward(ctx: Any, v: torch.Tensor) -> Any:
        g, x, _ = ctx.saved_tensors
        options = _Grouped.options(ctx)
        over, y = _Groups(x, *options), SOFTMAX(x, *options)
        dy = v * (g - over.repeat(over.add(y * g))) - g * over.repeat(over.add(v * y))
        return over.centred(y, v), over.centred(y, dy), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tg: Any, tx: Any, *_: Any) -> torch.Tensor:
        g, x, _places = ctx.saved_tensors
        options = _Grouped.options(ctx)
        over, y = _Groups(x, *options), SOFTMAX(x, *options)
        made = torch.zeros_like(x) if tg is None else over.centred(y, tg)
        if tx is None:
            return made
        dy = over.centred(y, tx)
        return made + dy * (g - over.repeat(over.add(y * g))) - y * over.repeat(over.add(dy * g))


# vmap


def _batched(name: str, count: int) -> Any:
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        op = getattr(torch.ops.online_softmax, name)
        *tensors, places, is_ids, groups, dim = args
        along = in_dims[:count]
        if in_dims[count] is None:
            moved = []
            for t, d in zip(tensors, along, strict=True):
                whole = t.unsqueeze(0).expand(info.batch_size, *t.shape) if d is None else front(t, d)
                moved.append(whole)
            return op(*moved, places, is_ids, groups, dim + 1), 0
        # Groups of their own for each: one call each.
        made = [
            op(
                *(t if d is None else t.select(d, i) for t, d in zip(tensors, along, strict=True)),
                places.select(in_dims[count], i), is_ids, groups, dim,
            )
            for i in range(info.batch_size)
        ]  # fmt: skip
        return torch.stack(made), 0

    return vmap


_OPTIONS = ", Tensor places, bool is_ids, int groups, int dim) -> Tensor"
LSE = Op(
    "segment_logsumexp(Tensor x" + _OPTIONS, cpu=_lse_cpu, fake=_groups_fake, rule=_LSE,
    vmap=_batched("segment_logsumexp", 1),
)  # fmt: skip
SOFTMAX = Op(
    "segment_softmax(Tensor x" + _OPTIONS, cpu=_softmax_cpu, fake=_like_x, rule=_Softmax,
    vmap=_batched("segment_softmax", 1),
)  # fmt: skip
LSE_GRADIENT = Op(
    "segment_logsumexp_backward(Tensor dout, Tensor x" + _OPTIONS, cpu=_lse_gradient_cpu,
    fake=_gradient_fake, rule=_LSEGradient, vmap=_batched("segment_logsumexp_backward", 2),
)  # fmt: skip
SOFTMAX_GRADIENT = Op(
    "segment_softmax_backward(Tensor dout, Tensor x" + _OPTIONS, cpu=_softmax_gradient_cpu,
    fake=_gradient_fake, rule=_SoftmaxGradient, vmap=_batched("segment_softmax_backward", 2),
)  # fmt: skip

"""Cross-entropy as operations of `torch.library`: kernels, shapes, derivatives, batching."""

from __future__ import annotations

import math
from typing import Any, Final

import torch
from torch import Tensor

from . import loss_calculus as calculus
from . import loss_kernels as kernels
from . import memory, mode
from .loss_batching import alike, one_by_one, rows_weight
from .loss_calculus import Given
from .loss_kernels import ENTROPY, LOSS_COUNT, LSE, NOTHING, OPTIONS, RANK
from .loss_options import NONE, SCHEMA, Options, wide_of
from .registry import Op, Rule

_TENSORS: Final = "Tensor logits, Tensor targets, Tensor? weight, Tensor? row_weight, "


_PLAIN_TYPES: Final = mode.PLAIN_TYPES
_plain: Final = mode.plain
_is_grad_enabled: Final = torch.is_grad_enabled


# ---- shapes


def _loss_fake(
    logits: Tensor, targets: Tensor, weight: Tensor | None, row_weight: Tensor | None, made: int, *o: Any
) -> tuple[Tensor, Tensor]:
    wide, options = wide_of(logits), Options(*o)
    shape = calculus.rows_shape(logits, options)
    loss = logits.new_empty(shape if options.reduction == NONE else (), dtype=wide)
    return loss, logits.new_empty(shape if made else NOTHING, dtype=wide)


def _gradient_fake(dloss: Tensor, dlse: Tensor | None, logits: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(logits, requires_grad=False)


def _report_fake(
    logits: Tensor, targets: Tensor, weight: Tensor | None, row_weight: Tensor | None, tokens: Tensor | None,
    kl_to: Tensor | None, made: int, *o: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    loss, lse = _loss_fake(logits, targets, weight, row_weight, LSE, *o)
    shape = lse.shape

    def one(wanted: bool, dtype: torch.dtype = lse.dtype, more: tuple[int, ...] = ()) -> Tensor:
        return logits.new_empty((*shape, *more) if wanted else NOTHING, dtype=dtype)

    return (
        loss,
        lse,
        one(bool(made & ENTROPY)),
        one(bool(made & RANK), torch.int64),
        one(tokens is not None, more=() if tokens is None else (tokens.shape[-1],)),
        one(kl_to is not None),
    )


# ---- derivatives


class LossRule(Rule):
    """Of `cross_entropy`, and of `cross_entropy_report`, whose other results have none."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        logits, targets, weight, row_weight = inputs[:4]
        ctx.o = Options(*inputs[-OPTIONS:])
        ctx.has_lse = bool(inputs[-OPTIONS - 1])
        ctx.count = len(inputs)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, targets, weight, row_weight)
        ctx.save_for_forward(logits, targets, weight, row_weight)
        ctx.mark_non_differentiable(*(output[2:] if ctx.has_lse else output[1:]))

    @staticmethod
    def backward(ctx: Any, dloss: Tensor | None, dlse: Tensor | None, *_: Any) -> tuple[Any, ...]:
        logits, *rest = ctx.saved_tensors
        if dloss is None:
            dloss = _zero(logits)
        d_logits = d_targets = None
        if not ctx.has_lse:
            dlse = None
        if ctx.needs_input_grad[0]:
            d_logits = GRADIENT(dloss, dlse, logits, *rest, *ctx.o)
        if ctx.needs_input_grad[1]:
            d_targets = calculus.of_targets(dloss, logits, Given(*rest), ctx.o)
        return d_logits, d_targets, *(None,) * (ctx.count - 2)

    @staticmethod
    def jvp(ctx: Any, t_logits: Tensor | None, t_targets: Tensor | None, *_: Any) -> tuple[Any, ...]:
        t_loss, t_lse = loss_jvp(t_logits, t_targets, ctx.saved_tensors, ctx.o, ctx.has_lse)
        return t_loss, t_lse, *(None,) * (4 if ctx.count > LOSS_COUNT else 0)


class GradientRule(Rule):
    """Of `cross_entropy_backward`: see `loss_calculus`."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.o = Options(*inputs[6:])
        ctx.save_for_backward(*inputs[:6])
        ctx.save_for_forward(*inputs[:6])

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Any, ...]:
        return *gradient_vjp(v, ctx.saved_tensors, ctx.o, ctx.needs_input_grad), *(None,) * (2 + OPTIONS)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        return gradient_jvp(tangents, ctx.saved_tensors, ctx.o)


def gradient_vjp(v: Tensor, saved: Any, o: Options, wanted: Any) -> tuple[Tensor | None, ...]:
    """Gradients of dloss, dlse, logits and targets, where `v` is that of the loss's own gradient."""
    dloss, dlse, logits, *rest = saved
    g, wide = Given(*rest), dloss.dtype
    d_dloss = d_dlse = d_logits = d_targets = None
    if wanted[0]:
        made = GRADIENT(torch.ones_like(dloss), None, logits, *rest, *o) * v.to(wide)
        d_dloss = made.sum(o.axis) if dloss.ndim else made.sum()
    if wanted[1] and dlse is not None:
        made = GRADIENT(torch.zeros_like(dloss), torch.ones_like(dlse), logits, *rest, *o) * v.to(wide)
        d_dlse = made.sum(o.axis)
    if wanted[2]:
        itself = GRADIENT(dloss, dlse, logits, *rest, *o) if o.softcap else None
        d_logits = calculus.curvature(v, itself, dloss, dlse, logits, g, o)
    if wanted[3]:
        d_targets = calculus.back_to_targets(v, dloss, logits, g, o)
    return d_dloss, d_dlse, d_logits, d_targets


def gradient_jvp(tangents: tuple[Any, ...], saved: Any, o: Options) -> Tensor:
    t_dloss, t_dlse, t_logits, t_targets, *_ = tangents
    dloss, dlse, logits, *rest = saved
    g, made = Given(*rest), torch.zeros_like(logits)
    if t_dloss is not None or t_dlse is not None:
        up = torch.zeros_like(dloss) if t_dloss is None else t_dloss
        made = made + GRADIENT(up, t_dlse, logits, *rest, *o)
    if t_logits is not None:
        itself = GRADIENT(dloss, dlse, logits, *rest, *o) if o.softcap else None
        made = made + calculus.curvature(t_logits, itself, dloss, dlse, logits, g, o)
    if t_targets is not None and g.probabilities:
        made = made + calculus.along_targets(t_targets, dloss, logits, g, o)
    return made


def loss_jvp(
    t_logits: Tensor | None, t_targets: Tensor | None, saved: Any, o: Options, has_lse: bool
) -> tuple[Tensor, Tensor | None]:
    """The tangents of the loss and of the lse."""
    logits, *rest = saved
    shape = calculus.rows_shape(logits, o)
    one, zero = _one(logits, o), _zero(logits)
    t_loss, t_lse = zero.expand(one.shape), zero.expand(shape)
    if t_logits is not None:
        t = t_logits.to(one.dtype)
        t_loss = t_loss + calculus.collected(GRADIENT(one, None, logits, *rest, *o) * t, o)
        if has_lse:
            of_lse = GRADIENT(zero.expand(one.shape), torch.ones_like(t_lse), logits, *rest, *o)
            t_lse = (of_lse * t).sum(o.axis)
    if t_targets is not None and rest[0].is_floating_point():
        made = calculus.of_targets(one, logits, Given(*rest), o) * t_targets
        t_loss = t_loss + calculus.collected(made.to(one.dtype), o)
    return t_loss, t_lse if has_lse else None


def _zero(logits: Tensor) -> Tensor:
    return logits.new_zeros((), dtype=wide_of(logits))


def _one(logits: Tensor, o: Options) -> Tensor:
    shape = calculus.rows_shape(logits, o) if o.reduction == NONE else ()
    return logits.new_ones(shape, dtype=wide_of(logits))


# ---- batching


def _batched(
    in_dims: tuple[Any, ...], size: int, args: tuple[Any, ...], at: int
) -> tuple[list[Any], Options]:
    """logits, targets, weight and row_weight, from `at` on, with the batch in front."""
    logits, targets, weight, row_weight = args[at : at + 4]
    along = in_dims[at : at + 4]
    o = Options(*args[-OPTIONS:])
    rows = logits.ndim - (along[0] is not None)  # of the rows with the batch: the classes are not among them
    tensors = [
        alike(logits, along[0], size),
        alike(targets, along[1], size),
        weight,
        rows_weight(row_weight, along[3], rows),
    ]
    return tensors, o._replace(axis=o.axis + 1)


def _loss_vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    name = "cross_entropy" if len(args) == LOSS_COUNT else "cross_entropy_report"
    op = getattr(torch.ops.online_softmax, name)
    if in_dims[2] is not None:
        return one_by_one(op, info, in_dims, args)
    tensors, o = _batched(in_dims, info.batch_size, args, 0)
    others = [
        alike(a, d, info.batch_size) if isinstance(a, Tensor) else a
        for a, d in zip(args[4 : -len(o)], in_dims[4 : -len(o)], strict=True)
    ]
    loss, *rest = op(*tensors, *others, *o._replace(reduction=NONE))
    loss = calculus.reduced(loss, Given(*tensors[1:]), o, 1)
    empty = [r.new_empty((info.batch_size, *NOTHING)) if r.shape == NOTHING else r for r in rest]
    return (loss, *empty), (0,) * (1 + len(rest))


def _gradient_vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    op = torch.ops.online_softmax.cross_entropy_backward
    if in_dims[4] is not None:
        return one_by_one(op, info, in_dims, args)
    dloss, dlse = args[:2]
    tensors, o = _batched(in_dims, info.batch_size, args, 2)
    shape = calculus.rows_shape(tensors[0], o)
    dloss = alike(dloss, in_dims[0], info.batch_size)
    if o.reduction == NONE and dloss.ndim == 1:
        dloss = dloss.reshape((info.batch_size, *(1,) * (len(shape) - 1)))
    up = calculus.upstream(dloss, Given(*tensors[1:]), o, shape, 1)
    dlse = None if dlse is None else alike(dlse, in_dims[1], info.batch_size)
    return op(up, dlse, *tensors, *o._replace(reduction=NONE)), 0


class _Training(torch.autograd.Function):
    """A loss that is trained on, in plain eager code: the gradient is made where the loss is, which saves
    the backward's reading. Calls of a backward after the first make it anew. `made`: loss and gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        weight: Tensor | None,
        row_weight: Tensor | None,
        made: list[Tensor],
        o: Options,
    ) -> Tensor:
        loss, gradient = made
        ctx.o, ctx.unused = o, iter((True,))
        ctx.save_for_backward(logits, targets, weight, row_weight, gradient)
        return loss

    @staticmethod
    def backward(ctx: Any, dloss: Tensor) -> tuple[Any, ...]:
        *saved, gradient = ctx.saved_tensors
        if torch.is_grad_enabled() or not mode.plain() or not next(ctx.unused, False):
            gradient = GRADIENT(dloss, None, *saved, *ctx.o)
        else:
            gradient = _scaled(gradient, dloss, saved, ctx.o)
        return gradient, None, None, None, None, None


def _scaled(gradient: Tensor, dloss: Tensor, saved: list[Any], o: Options) -> Tensor:
    """The gradient that the forward made, times `dloss`, in its own memory."""
    by = dloss.item()
    # With a count of versions of its own: what the caller writes into the gradient, or what is written here,
    # is no change of what a graph that is retained has saved, and does not read again.
    gradient = gradient.data
    if by == 1:
        return gradient
    if gradient.dtype != torch.bfloat16 or math.frexp(by)[0] == 0.5:
        return gradient.mul_(by)
    # Rounded twice it would be off by more than half a unit; by a power of two it is rounded once.
    return GRADIENT(dloss, None, *saved, *o)


# Not Function.apply: what that does in Python is for torch.func, and takes long beside a small call.
_train_on: Final = super(torch.autograd.Function, _Training).apply


def direct(logits: Any, targets: Any, ignore_index: int, reduction: int) -> Tensor | None:
    """The loss of class indices with no other options, where nothing traces or transforms the call; None for
    all else. logits and targets may be anything."""
    if type(logits) not in _PLAIN_TYPES or type(targets) not in _PLAIN_TYPES:
        return None
    if not _plain() or logits.is_neg():
        return None
    axis = 1 if logits.ndim > 1 else 0
    if not (logits.requires_grad and _is_grad_enabled()):
        return kernels.of_indices(logits, targets, axis, ignore_index, reduction, None)
    if reduction == NONE or logits.dtype is torch.float16 or not logits.is_cpu:
        return None
    to = memory.empty_like(logits)
    loss = kernels.of_indices(logits, targets, axis, ignore_index, reduction, to)
    if loss is None:
        return None
    o = Options(axis, ignore_index, 0.0, False, 0.0, 0.0, 1.0, reduction, False)
    trained: Tensor = _train_on(logits, targets, None, None, [loss, to], o)
    return trained


def _train(*args: Any) -> tuple[Tensor, Tensor | None]:
    logits, targets, *_, with_lse = args[:5]
    # In float16 a gradient that is still to be scaled may fall below the format's range.
    alone = logits.requires_grad and not targets.requires_grad and not with_lse
    if alone and args[-2] != NONE and logits.dtype != torch.float16:
        weight, row_weight = args[2:4]
        o = Options(*args[5:])
        made = kernels.loss_and_gradient(logits, targets, weight, row_weight, o)
        return _train_on(logits, targets, weight, row_weight, list(made), o), None
    return LossRule.apply(*args)


LOSS = Op(
    f"cross_entropy({_TENSORS}int made, {SCHEMA}) -> (Tensor, Tensor)",
    cpu=kernels.loss, fake=_loss_fake, rule=LossRule, vmap=_loss_vmap, training=_train,
)  # fmt: skip
REPORT_OP = Op(
    f"cross_entropy_report({_TENSORS}Tensor? tokens, Tensor? kl_to, int made, {SCHEMA}) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    cpu=kernels.report, fake=_report_fake, rule=type("_Report", (LossRule,), {}), vmap=_loss_vmap,
)  # fmt: skip
GRADIENT = Op(
    f"cross_entropy_backward(Tensor dloss, Tensor? dlse, {_TENSORS}{SCHEMA}) -> Tensor",
    cpu=kernels.gradient, fake=_gradient_fake, rule=GradientRule, vmap=_gradient_vmap,
)  # fmt: skip

__all__ = [
    "GRADIENT", "LOSS", "REPORT_OP", "GradientRule", "LossRule", "gradient_jvp", "gradient_vjp", "loss_jvp",
]  # fmt: skip

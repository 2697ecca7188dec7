"""Cross-entropy as operations of `torch.library`: kernels, shapes, derivatives, batching."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from .. import losses as arrays
from . import loss_calculus as calculus
from . import memory, mode
from .loss_calculus import Given
from .loss_options import NONE, SCHEMA, Options, wide_of
from .registry import Op, Rule, front

Tensor = torch.Tensor

#: What is asked for beside the loss, as bits.
LSE, ENTROPY, RANK = 1, 2, 4
NOTHING: Final = (0,)
OPTIONS: Final = len(Options._fields)
_LOSS_COUNT: Final = 5 + OPTIONS
_TENSORS: Final = "Tensor logits, Tensor targets, Tensor? weight, Tensor? row_weight, "


def keywords(weight: Tensor | None, row_weight: Tensor | None, o: Options) -> dict[str, Any]:
    return {
        "axis": o.axis,
        "weight": memory.optional(weight),
        "row_weight": memory.optional(row_weight),
        "threads": mode.threads(),
        **o.keywords(),
    }


def number(value: Any) -> Tensor:
    """A result of a NumPy face, which may be a lone number."""
    return memory.tensor(np.asarray(value))


# ---- kernels


def _loss_cpu(
    logits: Tensor, targets: Tensor, weight: Tensor | None, row_weight: Tensor | None, made: int, *o: Any
) -> tuple[Tensor, Tensor]:
    found = arrays.cross_entropy(
        memory.array(logits),
        memory.array(targets),
        return_lse=bool(made),
        **keywords(weight, row_weight, Options(*o)),
    )
    if made:
        return number(found.loss), number(found.lse)
    loss = number(found)
    return loss, loss.new_empty(NOTHING)


def _gradient_cpu(
    dloss: Tensor, dlse: Tensor | None, logits: Tensor, targets: Tensor, weight: Tensor | None,
    row_weight: Tensor | None, *o: Any,
) -> Tensor:  # fmt: skip
    gradient = memory.empty_like(logits)
    arrays.cross_entropy_backward(
        memory.array(dloss),
        memory.array(logits),
        memory.array(targets),
        dlse=memory.optional(dlse),
        out=memory.array(gradient),
        **keywords(weight, row_weight, Options(*o)),
    )
    return gradient


def _report_cpu(
    logits: Tensor, targets: Tensor, weight: Tensor | None, row_weight: Tensor | None, tokens: Tensor | None,
    kl_to: Tensor | None, made: int, *o: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    riders = tuple(name for name, bit in (("entropy", ENTROPY), ("rank", RANK)) if made & bit)
    found = arrays.cross_entropy(
        memory.array(logits),
        memory.array(targets),
        return_lse=True,
        riders=riders or ("entropy",),
        tokens=memory.optional(tokens),
        kl_to=memory.optional(kl_to),
        **keywords(weight, row_weight, Options(*o)),
    )
    wide, whole = wide_of(logits), torch.int64

    def one(value: Any, dtype: torch.dtype = wide, wanted: bool = True) -> Tensor:
        return number(value) if wanted and value is not None else torch.empty(NOTHING, dtype=dtype)

    return (
        one(found.loss),
        one(found.lse),
        one(found.entropy, wanted=bool(made & ENTROPY)),
        one(found.rank, whole),
        one(found.log_probabilities),
        one(found.divergence),
    )


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


class _Loss(Rule):
    """Of `cross_entropy`, and of `cross_entropy_report`, whose other results have none."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        logits, targets, weight, row_weight = inputs[:4]
        ctx.o = Options(*inputs[-OPTIONS :])
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
        return t_loss, t_lse, *(None,) * (4 if ctx.count > _LOSS_COUNT else 0)


class _Gradient(Rule):
    """Of `cross_entropy_backward`: see `loss_calculus`."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.o = Options(*inputs[6:])
        ctx.save_for_backward(*inputs[:6])
        ctx.save_for_forward(*inputs[:6])

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Any, ...]:
        return *gradient_vjp(v, ctx.saved_tensors, ctx.o, ctx.needs_input_grad), *(None,) * (
            2 + OPTIONS
        )

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


def alike(t: Tensor, along: int | None, size: int) -> Tensor:
    moved = front(t, along)
    return moved if along is not None and moved is not None else t.unsqueeze(0).expand(size, *t.shape)


def rows_weight(row_weight: Tensor | None, along: int | None, ndim: int) -> Tensor | None:
    if row_weight is None or along is None:
        return row_weight
    moved = row_weight.movedim(along, 0)
    return moved.reshape(moved.shape[0], *(1,) * (ndim - moved.ndim), *moved.shape[1:])


def one_by_one(call: Any, info: Any, in_dims: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
    """Where weights of classes differ within the batch: a call each."""
    made = [
        call(*(a if d is None else a.select(d, i) for a, d in zip(args, in_dims, strict=True)))
        for i in range(info.batch_size)
    ]
    if isinstance(made[0], Tensor):
        return torch.stack(made), 0
    return tuple(torch.stack(parts) for parts in zip(*made, strict=True)), (0,) * len(made[0])


def _batched(in_dims: tuple[Any, ...], size: int, args: tuple[Any, ...], at: int) -> tuple[list[Any], Options]:
    """logits, targets, weight and row_weight, from `at` on, with the batch in front."""
    logits, targets, weight, row_weight = args[at : at + 4]
    along = in_dims[at : at + 4]
    o = Options(*args[-OPTIONS :])
    rows = logits.ndim - (along[0] is not None)  # of the rows with the batch: the classes are not among them
    tensors = [
        alike(logits, along[0], size),
        alike(targets, along[1], size),
        weight,
        rows_weight(row_weight, along[3], rows),
    ]
    return tensors, o._replace(axis=o.axis + 1)


def _loss_vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    name = "cross_entropy" if len(args) == _LOSS_COUNT else "cross_entropy_report"
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
    the backward's reading. Calls of a backward after the first make it anew."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, Tensor]:
        logits, targets, weight, row_weight, _, *rest = args
        o = Options(*rest)
        gradient = memory.empty_like(logits)
        found = arrays.cross_entropy_with_gradient(
            memory.array(logits),
            memory.array(targets),
            out=memory.array(gradient),
            **keywords(weight, row_weight, o),
        )
        ctx.o, ctx.unused = o, [True]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(logits, targets, weight, row_weight, gradient)
        loss = number(found.loss)
        nothing = loss.new_empty(NOTHING)
        ctx.mark_non_differentiable(nothing)
        return loss, nothing

    @staticmethod
    def backward(ctx: Any, dloss: Tensor | None, _: Any) -> tuple[Any, ...]:
        *saved, gradient = ctx.saved_tensors
        if dloss is None:
            return (None,) * (5 + OPTIONS)
        if torch.is_grad_enabled() or not mode.plain() or not (ctx.unused and ctx.unused.pop()):
            gradient = GRADIENT(dloss, None, *saved, *ctx.o)
        else:
            gradient = _scaled(gradient, dloss, saved, ctx.o)
        return gradient, *(None,) * (4 + OPTIONS)


def _scaled(gradient: Tensor, dloss: Tensor, saved: list[Any], o: Options) -> Tensor:
    """The gradient that the forward made, times `dloss`, in its own memory."""
    by = dloss.item()
    if by == 1:
        return gradient
    if gradient.dtype in (torch.float32, torch.float64):
        gradient.detach().data.mul_(by)  # no new version: what was saved is not read again
        return gradient
    # Rounded twice it would be off by more than half a unit.
    return GRADIENT(dloss, None, *saved, *o)


def _train(*args: Any) -> tuple[Tensor, Tensor]:
    logits, targets, *_, made = args[:5]
    # In float16 a gradient that is still to be scaled may fall below the format's range.
    alone = logits.requires_grad and not targets.requires_grad and not made
    if alone and args[-2] != NONE and logits.dtype != torch.float16:
        return _Training.apply(*args)
    return _Loss.apply(*args)


LOSS = Op(
    f"cross_entropy({_TENSORS}int made, {SCHEMA}) -> (Tensor, Tensor)",
    cpu=_loss_cpu, fake=_loss_fake, rule=_Loss, vmap=_loss_vmap, training=_train,
)  # fmt: skip
REPORT_OP = Op(
    f"cross_entropy_report({_TENSORS}Tensor? tokens, Tensor? kl_to, int made, {SCHEMA}) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    cpu=_report_cpu, fake=_report_fake, rule=type("_Report", (_Loss,), {}), vmap=_loss_vmap,
)  # fmt: skip
GRADIENT = Op(
    f"cross_entropy_backward(Tensor dloss, Tensor? dlse, {_TENSORS}{SCHEMA}) -> Tensor",
    cpu=_gradient_cpu, fake=_gradient_fake, rule=_Gradient, vmap=_gradient_vmap,
)  # fmt: skip

__all__ = ["ENTROPY", "GRADIENT", "LOSS", "LSE", "RANK", "REPORT_OP"]

"""Linear cross-entropy as operations of `torch.library`: kernels, shapes, derivatives, batching."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from .. import linear_losses as arrays
from . import linear_calculus as composed
from . import loss_calculus as calculus
from . import memory, mode
from .linear_calculus import Operands
from .loss_batching import alike, one_by_one, rows_weight
from .loss_kernels import ENTROPY, LSE, NOTHING, OPTIONS, RANK, number
from .loss_options import NONE, SCHEMA, Options
from .registry import Op, Rule

_TENSORS: Final = (
    "Tensor hidden, Tensor weight, Tensor targets, Tensor? bias, Tensor? class_weight, Tensor? row_weight"
)
_HOW: Final = f"int memory, float filter_below, {SCHEMA}"
_WITHOUT: Final = "linear_cross_entropy has no derivative with order='any': order='row' would do"
#: Arguments of the forward before its options: operands, tokens, made, gradients, memory, filter_below.
_BEFORE: Final = 11


def _keywords(p: Operands, memory_: int, o: Options) -> dict[str, Any]:
    return {
        "bias": memory.optional(p.bias),
        "class_weight": memory.optional(p.class_weight),
        "row_weight": memory.optional(p.row_weight),
        "memory": memory_,
        "threads": mode.threads(),
        **o.keywords(),
    }


def _arrays(p: Operands) -> tuple[Any, ...]:
    return memory.array(p.hidden), memory.array(p.weight), memory.array(p.targets)


def _filter(below: float) -> float | None:
    return None if below < 0 else below


# ---- kernels


def _loss_cpu(*args: Any) -> tuple[Tensor, ...]:
    p, tokens, made, gradients, budget, below = Operands(*args[:6]), *args[6:_BEFORE]
    o = Options(*args[_BEFORE:])
    riders = tuple(name for name, bit in (("entropy", ENTROPY), ("rank", RANK)) if made & bit)
    asked = {
        "return_lse": bool(made & LSE),
        "riders": riders,
        "tokens": memory.optional(tokens),
        **_keywords(p, budget, o),
    }
    of: tuple[Any, ...] = (None, None, None)
    if gradients:
        found = arrays.linear_cross_entropy_with_gradient(*_arrays(p), filter_below=_filter(below), **asked)
        loss, of = found.loss, found.gradients
    else:
        loss = arrays.linear_cross_entropy(*_arrays(p), **asked)
    wide = p.wide

    def one(value: Any, dtype: torch.dtype = wide) -> Tensor:
        return torch.empty(NOTHING, dtype=dtype) if value is None else number(value)

    formats = (p.hidden.dtype, p.weight.dtype, wide if p.bias is None else p.bias.dtype)
    return (
        one(loss.loss if made else loss),
        one(loss.lse if made else None),
        *(one(gradient, dtype) for gradient, dtype in zip(of, formats, strict=True)),
        one(getattr(loss, "entropy", None)),
        one(getattr(loss, "rank", None), torch.int64),
        one(getattr(loss, "log_probabilities", None)),
    )


def _gradient_cpu(dloss: Tensor, dlse: Tensor | None, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    p, budget, below, o = Operands(*args[:6]), args[6], args[7], Options(*args[8:])
    found = arrays.linear_cross_entropy_backward(
        memory.array(dloss),
        *_arrays(p),
        dlse=memory.optional(dlse),
        filter_below=_filter(below),
        **_keywords(p, budget, o),
    )
    bias = torch.empty(NOTHING, dtype=p.wide) if found.bias is None else number(found.bias)
    return number(found.hidden), number(found.weight), bias


def _loss_any_cpu(*args: Any) -> tuple[Tensor, Tensor]:
    p, made, budget, o = Operands(*args[:6]), args[6], args[7], Options(*args[8:])
    found = arrays.linear_cross_entropy(
        *_arrays(p), return_lse=bool(made), order="any", **_keywords(p, budget, o)
    )
    if made:
        return number(found.loss), number(found.lse)
    loss = number(found)
    return loss, loss.new_empty(NOTHING)


# ---- shapes


def _loss_fake(*args: Any) -> tuple[Tensor, ...]:
    p, tokens, made, gradients, o = Operands(*args[:6]), args[6], args[7], args[8], Options(*args[_BEFORE:])
    wide, rows = p.wide, p.rows

    def one(wanted: Any, shape: tuple[int, ...], dtype: torch.dtype = wide) -> Tensor:
        return p.hidden.new_empty(shape if wanted else NOTHING, dtype=dtype)

    bias = p.bias
    return (
        one(True, rows if o.reduction == NONE else ()),
        one(made, rows),
        one(gradients, tuple(p.hidden.shape), p.hidden.dtype),
        one(gradients, tuple(p.weight.shape), p.weight.dtype),
        one(gradients and bias is not None, tuple(p.weight.shape[:1]), wide if bias is None else bias.dtype),
        one(made & ENTROPY, rows),
        one(made & RANK, rows, torch.int64),
        one(tokens is not None, () if tokens is None else tuple(tokens.shape)),
    )


def _loss_any_fake(*args: Any) -> tuple[Tensor, Tensor]:
    p, made, o = Operands(*args[:6]), args[6], Options(*args[8:])
    loss = p.hidden.new_empty(p.rows if o.reduction == NONE else (), dtype=p.wide)
    return loss, p.hidden.new_empty(p.rows if made else NOTHING, dtype=p.wide)


def _gradient_fake(dloss: Tensor, dlse: Tensor | None, *args: Any) -> tuple[Tensor, Tensor, Tensor]:
    p = Operands(*args[:6])
    bias = p.hidden.new_empty(NOTHING, dtype=p.wide) if p.bias is None else p.bias.new_empty(p.bias.shape)
    return p.hidden.new_empty(p.hidden.shape), p.weight.new_empty(p.weight.shape), bias


# ---- derivatives


class _Loss(Rule):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.made, ctx.gradients, ctx.memory, ctx.below = inputs[7:_BEFORE]
        ctx.o = Options(*inputs[_BEFORE:])
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*inputs[:6], *output[2:5])
        ctx.save_for_forward(*inputs[:6])
        ctx.mark_non_differentiable(*output[2 if ctx.made else 1 :])

    @staticmethod
    def backward(ctx: Any, dloss: Tensor | None, dlse: Tensor | None, *_: Any) -> tuple[Any, ...]:
        *saved, d_hidden, d_weight, d_bias = ctx.saved_tensors
        if dlse is None and dloss is not None and ctx.gradients and not torch.is_grad_enabled():
            made = tuple((d * dloss).to(d.dtype) for d in (d_hidden, d_weight, d_bias))
        else:
            made = _anew(ctx, dloss, dlse if ctx.made else None, saved)
        return _placed(ctx, made, saved, dloss)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        p = Operands(*ctx.saved_tensors[:6])
        return *composed.forward_jvp(tangents, p, ctx.o, bool(ctx.made)), *(None,) * 6


def _anew(ctx: Any, dloss: Tensor | None, dlse: Tensor | None, saved: list[Any]) -> tuple[Tensor, ...]:
    up = saved[0].new_zeros((), dtype=Operands(*saved).wide) if dloss is None else dloss
    return GRADIENT(up, dlse, *saved, ctx.memory, ctx.below, *ctx.o)


def _placed(ctx: Any, made: tuple[Tensor, ...], saved: list[Any], dloss: Tensor | None) -> tuple[Any, ...]:
    """Gradients in the order of the forward's arguments."""
    wanted, p = ctx.needs_input_grad, Operands(*saved)
    d_targets = None
    if wanted[2] and dloss is not None:
        d_targets = calculus.of_targets(dloss, composed.logits_of(p), p.given, ctx.o)
    d_hidden, d_weight = (d if w else None for d, w in zip(made, wanted[:2], strict=False))
    d_bias = made[2] if wanted[3] else None
    return d_hidden, d_weight, d_targets, d_bias, *(None,) * (_BEFORE - 4 + OPTIONS)


class _Gradient(Rule):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.o = Options(*inputs[10:])
        ctx.save_for_backward(*inputs[:8])
        ctx.save_for_forward(*inputs[:8])

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        dloss, dlse, *operands = ctx.saved_tensors
        made = composed.backward_vjp(
            cotangents, dloss, dlse, Operands(*operands), ctx.o, ctx.needs_input_grad
        )
        return *made, *(None,) * (4 + OPTIONS)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        dloss, dlse, *operands = ctx.saved_tensors
        of = composed.backward_jvp(tangents, dloss, dlse, Operands(*operands), ctx.o)
        return *of[:2], of[2] if of[2] is not None else dloss.new_zeros(NOTHING)


class _LossAny(Rule):
    """No derivatives: what asks for one is told so."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Nothing is kept."""

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
        raise NotImplementedError(_WITHOUT)

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Any, ...]:
        raise NotImplementedError(_WITHOUT)


class _Training(torch.autograd.Function):
    """A loss that is trained on, in plain eager code: see `loss_ops`. The gradients are handed over as they
    were made; calls of a backward after the first make them anew."""

    @staticmethod
    def forward(ctx: Any, *args: Any) -> tuple[Tensor, ...]:
        found = _loss_cpu(*args)
        ctx.made, ctx.gradients, ctx.memory, ctx.below = args[7:_BEFORE]
        ctx.o, ctx.unused = Options(*args[_BEFORE:]), iter((True,))
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*args[:6], *found[2:5])
        results = *found[:2], *(f.new_empty(NOTHING) for f in found[2:5]), *found[5:]
        ctx.mark_non_differentiable(*results[2 if ctx.made else 1 :])
        return results

    @staticmethod
    def backward(ctx: Any, dloss: Tensor | None, dlse: Tensor | None, *_: Any) -> tuple[Any, ...]:
        *saved, d_hidden, d_weight, d_bias = ctx.saved_tensors
        again = torch.is_grad_enabled() or not mode.plain() or dlse is not None or dloss is None
        if again or not mode.on_cpu((dloss,)) or not next(ctx.unused, False):
            return _placed(ctx, _anew(ctx, dloss, dlse, saved), saved, dloss)
        assert dloss is not None
        by = dloss.item()
        # With counts of versions of their own: see `loss_ops`.
        made = (d_hidden.data, d_weight.data, d_bias.data)
        if by != 1:
            for d, wanted in zip(made, (*ctx.needs_input_grad[:2], ctx.needs_input_grad[3]), strict=True):
                if wanted:
                    d.mul_(by)
        return _placed(ctx, made, saved, dloss)


def _train(*args: Any) -> tuple[Tensor, ...]:
    return (_Training if args[8] else _Loss).apply(*args)


# ---- batching


def _loss_vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    op = torch.ops.online_softmax.linear_cross_entropy
    p, tokens, made, gradients = Operands(*args[:6]), args[6], args[7], args[8]
    if gradients or any(in_dims[i] is not None for i in (1, 3, 4)):
        return one_by_one(op, info, in_dims, args)
    o, size = Options(*args[_BEFORE:]), info.batch_size
    moved = _moved(p, in_dims[:6], size)
    tokens = None if tokens is None else alike(tokens, in_dims[6], size)
    folded = o._replace(axis=o.axis + 1, reduction=NONE)
    loss, *rest = op(*moved, tokens, made, 0, *args[9:_BEFORE], *folded)
    loss = calculus.reduced(loss, moved.given, o, 1)
    rest = [r.new_empty((size, *NOTHING)) if r.shape == NOTHING else r for r in rest]
    return (loss, *rest), (0,) * 8


def _moved(p: Operands, in_dims: tuple[Any, ...], size: int) -> Operands:
    rows = p.hidden.ndim - 1 + (in_dims[0] is None)
    return p._replace(
        hidden=alike(p.hidden, in_dims[0], size),
        targets=alike(p.targets, in_dims[2], size),
        row_weight=rows_weight(p.row_weight, in_dims[5], rows),
    )


def _gradient_vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    # The weight's gradient is one a member of the batch, so nothing is saved by going together.
    return one_by_one(torch.ops.online_softmax.linear_cross_entropy_backward, info, in_dims, args)


def _loss_any_vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
    return one_by_one(torch.ops.online_softmax.linear_cross_entropy_any, info, in_dims, args)


def _autocast(args: tuple[Any, ...], device: str) -> tuple[Any, ...]:
    """PyTorch's rule for products: operands in autocast's format, float64 as it comes."""
    made = _cast(args, device)
    # Gradients in float16 would be too small before they are scaled.
    return made if made[0].dtype != torch.float16 else (*made[:8], 0, *made[9:])


def _cast(args: tuple[Any, ...], device: str) -> tuple[Any, ...]:
    to = torch.get_autocast_dtype(device)
    hidden, weight, targets, bias, *rest = args
    if torch.float64 in (hidden.dtype, weight.dtype):
        return args
    return hidden.to(to), weight.to(to), targets, None if bias is None else bias.to(to), *rest


LOSS = Op(
    f"linear_cross_entropy({_TENSORS}, Tensor? tokens, int made, int gradients, {_HOW}) -> "
    f"({', '.join(['Tensor'] * 8)})",
    cpu=_loss_cpu, fake=_loss_fake, rule=_Loss, vmap=_loss_vmap, policy=_autocast, training=_train,
)  # fmt: skip
LOSS_ANY = Op(
    f"linear_cross_entropy_any({_TENSORS}, int made, int memory, {SCHEMA}) -> (Tensor, Tensor)",
    cpu=_loss_any_cpu, fake=_loss_any_fake, rule=_LossAny, vmap=_loss_any_vmap, policy=_cast,
)  # fmt: skip
GRADIENT = Op(
    f"linear_cross_entropy_backward(Tensor dloss, Tensor? dlse, {_TENSORS}, {_HOW}) -> "
    "(Tensor, Tensor, Tensor)",
    cpu=_gradient_cpu, fake=_gradient_fake, rule=_Gradient, vmap=_gradient_vmap,
)  # fmt: skip

"""Cross-entropy of tensors with order="any" as operations of `torch.library`: the NumPy face's own bits."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from .. import losses as arrays
from . import loss_calculus as calculus
from . import memory
from .loss_batching import one_by_one
from .loss_kernels import NOTHING, keywords, number
from .loss_ops import GradientRule, LossRule, loss_jvp
from .loss_options import NONE, SCHEMA, Options, wide_of
from .registry import Op

_TENSORS: Final = "Tensor logits, Tensor targets, Tensor? weight, Tensor? row_weight, "


def _loss(
    logits: Tensor, targets: Tensor, weight: Tensor | None, row_weight: Tensor | None, tokens: Tensor | None,
    made: int, *o: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The loss, the lse where it is `made`, and the log-probabilities of tokens."""
    found = arrays.cross_entropy(
        memory.array(logits),
        memory.array(targets),
        return_lse=True,
        tokens=memory.optional(tokens),
        order="any",
        **keywords(weight, row_weight, Options(*o)),
    )
    loss = number(found.loss)
    return (
        loss,
        number(found.lse) if made else loss.new_empty(NOTHING),
        loss.new_empty(NOTHING) if tokens is None else number(found.log_probabilities),
    )


def _loss_fake(
    logits: Tensor, targets: Tensor, weight: Tensor | None, row_weight: Tensor | None, tokens: Tensor | None,
    made: int, *o: Any,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    options, wide = Options(*o), wide_of(logits)
    shape = calculus.rows_shape(logits, options)
    chosen = NOTHING if tokens is None else tuple(tokens.shape)
    return (
        logits.new_empty(shape if options.reduction == NONE else (), dtype=wide),
        logits.new_empty(shape if made else NOTHING, dtype=wide),
        logits.new_empty(chosen, dtype=wide),
    )


def _gradient(
    dloss: Tensor, dlse: Tensor | None, logits: Tensor, targets: Tensor, weight: Tensor | None,
    row_weight: Tensor | None, *o: Any,
) -> Tensor:  # fmt: skip
    to = memory.empty_like(logits)
    arrays.cross_entropy_backward(
        memory.array(dloss),
        memory.array(logits),
        memory.array(targets),
        dlse=memory.optional(dlse),
        out=memory.array(to),
        order="any",
        **keywords(weight, row_weight, Options(*o)),
    )
    return to


def _gradient_fake(dloss: Tensor, dlse: Tensor | None, logits: Tensor, *rest: Any) -> Tensor:
    return torch.empty_like(logits, requires_grad=False)


class _Loss(LossRule):
    """Forward mode sums over a row, and does so as for order="row"."""

    @staticmethod
    def backward(ctx: Any, dloss: Tensor | None, dlse: Tensor | None, *_: Any) -> tuple[Any, ...]:
        logits, *rest = ctx.saved_tensors
        if dloss is None:
            dloss = logits.new_zeros((), dtype=wide_of(logits))
        d_logits = GRADIENT(dloss, dlse if ctx.has_lse else None, logits, *rest, *ctx.o)
        return d_logits, *(None,) * (ctx.count - 1)

    @staticmethod
    def jvp(ctx: Any, t_logits: Tensor | None, *_: Any) -> tuple[Any, ...]:
        return *loss_jvp(t_logits, None, ctx.saved_tensors, ctx.o, ctx.has_lse), None


class _Gradient(GradientRule):
    """Derivatives of the gradient are those of the other order's."""


def _alone(name: str) -> Any:
    """A call each: what is reduced together is then the exact sum of one member's rows."""

    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        return one_by_one(getattr(torch.ops.online_softmax, name), info, in_dims, args)

    return vmap


LOSS = Op(
    f"cross_entropy_any({_TENSORS}Tensor? tokens, int made, {SCHEMA}) -> (Tensor, Tensor, Tensor)",
    cpu=_loss, fake=_loss_fake, rule=_Loss, vmap=_alone("cross_entropy_any"),
)  # fmt: skip
GRADIENT = Op(
    f"cross_entropy_any_backward(Tensor dloss, Tensor? dlse, {_TENSORS}{SCHEMA}) -> Tensor",
    cpu=_gradient, fake=_gradient_fake, rule=_Gradient, vmap=_alone("cross_entropy_any_backward"),
)  # fmt: skip

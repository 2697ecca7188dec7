"""Cross-entropy in differentiable operations of PyTorch: what batching and derivatives of derivatives need.

With z the scores of a row (logits through softcap and temperature, f their derivative), p their softmax, W
the sum of the coefficients c, u the gradient of the row's loss and l that of its lse, the gradient is

    f * (a * p - u * c),    a = u * (W + 2 * z_loss * lse) + l

and its derivative along a vector t of logits, which is symmetric in t and the result's cotangent,

    f * p * (a * (f * t - s) + 2 * u * z_loss * s) + f' / f * gradient * t,    s = sum(p * f * t)

Numbers of classes and rows are held as a whole here: the first derivative, in native code, does not.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from . import rows
from .loss_options import MEAN, NONE, Options


class Given(NamedTuple):
    """The operands of a loss beside the logits."""

    targets: Tensor
    weight: Tensor | None
    row_weight: Tensor | None

    @property
    def probabilities(self) -> bool:
        return self.targets.is_floating_point()


def _kept(g: Given, o: Options) -> tuple[Tensor, Tensor]:
    """Rows that are not ignored, and class numbers with 0 for the others."""
    index = g.targets.long()
    kept = index != o.ignore_index
    return kept, torch.where(kept, index, 0)


def denominators(g: Given, o: Options, shape: tuple[int, ...], over: list[int]) -> Tensor:
    """What means divide by, float64, for rows of `shape` summed over the dimensions `over`."""
    if g.probabilities:
        each = torch.ones((), dtype=torch.float64, device=g.targets.device)
    else:
        kept, index = _kept(g, o)
        each = kept.double()
        if g.weight is not None:
            each = each * g.weight.double()[index]
    if g.row_weight is not None:
        row_weight = g.row_weight.double().expand(shape)
        each = each * (row_weight if g.probabilities else torch.where(kept, row_weight, 0))
    each = each.expand(shape)
    return each.sum(over) if over else each


def reduced(loss: Tensor, g: Given, o: Options, lead: int) -> Tensor:
    """Losses of rows, reduced over all but the first `lead` dimensions."""
    if o.reduction == NONE:
        return loss
    over = list(range(lead, loss.ndim))
    total = loss.double().sum(over) if over else loss.double()
    if o.reduction == MEAN:
        by = denominators(g, o, tuple(loss.shape), over)
        total = torch.where(by == 0, 0, total / by) if o.empty_zero else total / by
    return total.to(loss.dtype)


def upstream(dloss: Tensor, g: Given, o: Options, shape: tuple[int, ...], lead: int = 0) -> Tensor:
    """The gradient of each row's loss where that of the reduced loss is `dloss`, without weights of rows."""
    if o.reduction == NONE:
        return dloss.expand(shape)
    over = list(range(lead, len(shape)))
    if o.reduction == MEAN:
        by = denominators(g, o, shape, over)
        each = dloss.double() / by
        dloss = (torch.where(by == 0, 0, each) if o.empty_zero else each).to(dloss.dtype)
    return dloss.reshape((*dloss.shape, *(1,) * (len(shape) - dloss.ndim))).expand(shape)


class Scores(NamedTuple):
    """Scores of the classes: z, and the logits' own dz/dx; bend is d(log dz/dx)/dx, None without a cap."""

    z: Tensor
    slope: Tensor | float
    bend: Tensor | None


def scores(logits: Tensor, o: Options, wide: torch.dtype) -> Scores:
    x = logits.to(wide)
    if not o.softcap:
        return Scores(x if o.temperature == 1 else x / o.temperature, 1 / o.temperature, None)
    tanh = torch.tanh(x / o.softcap)
    return Scores(
        tanh * (o.softcap / o.temperature), (1 - tanh * tanh) / o.temperature, tanh * (-2 / o.softcap)
    )


def rows_shape(logits: Tensor, o: Options) -> tuple[int, ...]:
    shape = tuple(logits.shape)
    return shape[: o.axis] + shape[o.axis + 1 :]


def loss_weights(logits: Tensor, g: Given, o: Options, wide: torch.dtype) -> Tensor:
    """(classes, 1, ...): what the probability of a class counts."""
    sharp, _ = o.smoothing(logits.shape[o.axis])
    weight = torch.ones((), dtype=wide, device=logits.device) if g.weight is None else g.weight.to(wide)
    after = logits.ndim - 1 - o.axis
    return sharp * (weight if g.weight is None else weight.reshape((-1, *(1,) * after)))


def _row_factors(
    dloss: Tensor, logits: Tensor, g: Given, o: Options, wide: torch.dtype
) -> tuple[Tensor, Tensor]:
    """u and u * W of the rows, with a dimension of length 1 for the classes."""
    classes, shape = logits.shape[o.axis], rows_shape(logits, o)
    sharp, uniform = o.smoothing(classes)
    total = float(classes) if g.weight is None else g.weight.to(wide).sum()
    u = upstream(dloss, g, o, shape).to(wide)
    if g.row_weight is not None:
        u = u * g.row_weight.to(wide)
    if g.probabilities:
        u = u.unsqueeze(o.axis)
        of_targets = (g.targets.to(wide) * loss_weights(logits, g, o, wide)).sum(o.axis, keepdim=True)
        return u, u * (of_targets + uniform * total)
    kept, index = _kept(g, o)
    u = torch.where(kept, u, 0)
    each = u * (sharp + uniform * total) if g.weight is None else (
        u * (sharp * g.weight.to(wide)[index] + uniform * total)
    )  # fmt: skip
    return u.unsqueeze(o.axis), each.unsqueeze(o.axis)


def curvature(
    t: Tensor, gradient: Tensor | None, dloss: Tensor, dlse: Tensor | None, logits: Tensor, g: Given,
    o: Options,
) -> Tensor:  # fmt: skip
    """The derivative of the gradient along `t`; `gradient` itself is wanted with a softcap alone."""
    wide, over = dloss.dtype, [o.axis]
    s = scores(logits, o, wide)
    u, a = _row_factors(dloss, logits, g, o, wide)
    p = rows.softmax(s.z, o.axis)
    along = t.to(wide) * s.slope
    mean = (p * along).sum(over, keepdim=True)
    if o.z_loss:
        a = a + 2 * o.z_loss * u * rows.logsumexp(s.z, o.axis, keepdim=True)
    if dlse is not None:
        a = a + dlse.to(wide).expand(rows_shape(logits, o)).unsqueeze(o.axis)
    made = a * (along - mean)
    if o.z_loss:
        made = made + 2 * o.z_loss * u * mean
    made = s.slope * p * made
    if s.bend is not None and gradient is not None:
        made = made + s.bend * gradient.to(wide) * t.to(wide)
    if dlse is None and not g.probabilities:
        # Rows that are ignored may hold anything.
        made = torch.where(u == 0, 0, made)
    return made.to(logits.dtype)


def along_targets(t: Tensor, dloss: Tensor, logits: Tensor, g: Given, o: Options) -> Tensor:
    """The derivative of the gradient with respect to class probabilities, along `t`."""
    wide = dloss.dtype
    s, (u, _) = scores(logits, o, wide), _row_factors(dloss, logits, g, o, wide)
    moved = loss_weights(logits, g, o, wide) * t.to(wide)
    p = rows.softmax(s.z, o.axis)
    return (s.slope * u * (p * moved.sum(o.axis, keepdim=True) - moved)).to(logits.dtype)


def back_to_targets(v: Tensor, dloss: Tensor, logits: Tensor, g: Given, o: Options) -> Tensor:
    """Its transpose: `v` of the gradient to the class probabilities."""
    wide = dloss.dtype
    s, (u, _) = scores(logits, o, wide), _row_factors(dloss, logits, g, o, wide)
    back = s.slope * v.to(wide)
    p = rows.softmax(s.z, o.axis)
    made = u * loss_weights(logits, g, o, wide) * ((p * back).sum(o.axis, keepdim=True) - back)
    return made.to(g.targets.dtype)


def of_targets(dloss: Tensor, logits: Tensor, g: Given, o: Options) -> Tensor:
    """The gradient of the loss with respect to class probabilities."""
    wide = dloss.dtype
    s, (u, _) = scores(logits, o, wide), _row_factors(dloss, logits, g, o, wide)
    made = -u * loss_weights(logits, g, o, wide) * rows.log_softmax(s.z, o.axis)
    return made.to(g.targets.dtype)


def collected(products: Tensor, o: Options) -> Tensor:
    """Products of gradients and tangents as a tangent of the loss."""
    return products.sum(o.axis) if o.reduction == NONE else products.sum()


def count(shape: tuple[int, ...]) -> int:
    return math.prod(shape)

"""Linear cross-entropy in differentiable operations of PyTorch, with its logits as a whole: what derivatives
of derivatives need. See `loss_calculus`."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .loss_calculus import Given
from .loss_ops import GRADIENT, gradient_jvp, gradient_vjp, loss_jvp
from .loss_options import Options


class Operands(NamedTuple):
    """What a linear loss is of."""

    hidden: Tensor
    weight: Tensor
    targets: Tensor
    bias: Tensor | None
    class_weight: Tensor | None
    row_weight: Tensor | None

    @property
    def wide(self) -> torch.dtype:
        double = torch.float64 in (self.hidden.dtype, self.weight.dtype)
        return torch.float64 if double else torch.float32

    @property
    def given(self) -> Given:
        return Given(self.targets, self.class_weight, self.row_weight)

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(self.hidden.shape[:-1])


class _Whole(NamedTuple):
    """Operands as matrices, and the logits."""

    hidden: Tensor
    weight: Tensor
    logits: Tensor
    shape: tuple[int, ...]


def _whole(p: Operands, o: Options | None) -> _Whole:
    """Without options, ignored rows too."""
    hidden, weight = p.hidden.to(p.wide), p.weight.to(p.wide)
    if o is not None and not p.given.probabilities:
        # Rows that are ignored may hold anything.
        hidden = torch.where((p.targets.long() == o.ignore_index).unsqueeze(-1), 0, hidden)
    logits = hidden @ weight.T
    if p.bias is not None:
        logits = logits + p.bias.to(p.wide)
    return _Whole(hidden.reshape(-1, hidden.shape[-1]), weight, logits, tuple(logits.shape))


def logits_of(p: Operands) -> Tensor:
    return _whole(p, None).logits


def _along(w: _Whole, t_hidden: Tensor | None, t_weight: Tensor | None, t_bias: Tensor | None) -> Tensor:
    """Logits of a tangent, (tokens, classes)."""
    made = w.hidden.new_zeros((w.hidden.shape[0], w.weight.shape[0]))
    wide = w.weight.dtype
    if t_hidden is not None:
        made = made + t_hidden.to(wide).reshape(w.hidden.shape) @ w.weight.T
    if t_weight is not None:
        made = made + w.hidden @ t_weight.to(wide).T
    if t_bias is not None:
        made = made + t_bias.to(wide)
    return made


def forward_jvp(
    tangents: tuple[Any, ...], p: Operands, o: Options, has_lse: bool
) -> tuple[Tensor, Tensor | None]:
    t_hidden, t_weight, t_targets, t_bias = tangents[:4]
    w = _whole(p, None if has_lse else o)
    t = _along(w, t_hidden, t_weight, t_bias).reshape(w.shape)
    return loss_jvp(t, t_targets, (w.logits, *p.given), o, has_lse)


def backward_vjp(
    cotangents: tuple[Any, ...], dloss: Tensor, dlse: Tensor | None, p: Operands, o: Options, wanted: Any
) -> tuple[Tensor | None, ...]:
    """Gradients of dloss, dlse, hidden, weight, targets and bias, where those of the gradients of hidden,
    weight and bias are given."""
    v_hidden, v_weight, v_bias = cotangents
    w = _whole(p, None if dlse is not None else o)
    of_logits = _along(w, v_hidden, v_weight, v_bias if p.bias is not None else None).reshape(w.shape)
    saved = (dloss, dlse, w.logits, *p.given)
    d_dloss, d_dlse, d_logits, d_targets = gradient_vjp(
        of_logits, saved, o, (wanted[0], wanted[1], True, wanted[4])
    )
    assert d_logits is not None
    d = d_logits.reshape(w.hidden.shape[0], w.weight.shape[0])
    g = GRADIENT(*saved, *o).reshape(d.shape)
    d_hidden, d_weight = d @ w.weight, d.T @ w.hidden
    if v_weight is not None:
        d_hidden = d_hidden + g @ v_weight.to(p.wide)
    if v_hidden is not None:
        d_weight = d_weight + g.T @ v_hidden.to(p.wide).reshape(w.hidden.shape)
    d_bias = None if p.bias is None else d.sum(0).to(p.bias.dtype)
    return (
        d_dloss,
        d_dlse,
        d_hidden.reshape(p.hidden.shape).to(p.hidden.dtype),
        d_weight.to(p.weight.dtype),
        d_targets,
        d_bias,
    )


def backward_jvp(
    tangents: tuple[Any, ...], dloss: Tensor, dlse: Tensor | None, p: Operands, o: Options
) -> tuple[Tensor, Tensor, Tensor | None]:
    t_dloss, t_dlse, t_hidden, t_weight, t_targets, t_bias, *_ = tangents
    w = _whole(p, None if dlse is not None else o)
    t_logits = _along(w, t_hidden, t_weight, t_bias).reshape(w.shape)
    saved = (dloss, dlse, w.logits, *p.given)
    t = gradient_jvp((t_dloss, t_dlse, t_logits, t_targets), saved, o)
    t = t.reshape(w.hidden.shape[0], w.weight.shape[0])
    g = GRADIENT(*saved, *o).reshape(t.shape)
    of_hidden, of_weight = t @ w.weight, t.T @ w.hidden
    if t_weight is not None:
        of_hidden = of_hidden + g @ t_weight.to(p.wide)
    if t_hidden is not None:
        of_weight = of_weight + g.T @ t_hidden.to(p.wide).reshape(w.hidden.shape)
    return (
        of_hidden.reshape(p.hidden.shape).to(p.hidden.dtype),
        of_weight.to(p.weight.dtype),
        None if p.bias is None else t.sum(0).to(p.bias.dtype),
    )

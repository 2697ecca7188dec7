"""Cross-entropy of tensors' product, the logits of which never exist."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import exact_losses, linear_arguments, loss_arguments
from . import checks, linear_ops, loss_kernels, loss_options
from .losses import Loss, LossReport, tokens_of
from .memory import NUMPY


def linear_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, bias: Tensor | None = None,
    softcap: float | None = None, temperature: float = 1.0, class_weight: Tensor | None = None,
    row_weight: Tensor | None = None, ignore_index: int = -100, label_smoothing: float = 0.0,
    smoothing: str = "pytorch", z_loss: float = 0.0, reduction: str = "mean", empty: str = "nan",
    return_lse: bool = False, riders: Any = (), tokens: Tensor | None = None,
    filter_below: float | None = None, memory: int = linear_arguments.MEMORY, order: str = "row",
) -> Any:  # fmt: skip
    """Cross-entropy of the logits hidden @ weight.T + bias, which never exist as a whole.

    What it is, is said at `online_softmax.linear_cross_entropy`; what comes back, at `cross_entropy`.

    Args:
        hidden: (..., D), weight: (V, D), bias: (V,): float64, float32, float16, bfloat16, any strides, and
            any mixture. Products and sums are in float32, in float64 where hidden or weight is.
        targets: integers (...): 0 to V - 1, or ignore_index; or class probabilities (..., V), which may
            require a gradient.
        class_weight: (V,), row_weight: broadcastable to the rows. Neither has a gradient.
        filter_below: leaves small entries out of the gradients: see
            `online_softmax.linear_cross_entropy_backward`.
        memory: bytes for all that is neither operand nor result nor a few numbers a token.
        order: "any": bits that depend on hidden, weight, bias and options alone, those of
            `online_softmax.linear_cross_entropy` with order="any". Class indices alone, without softcap,
            riders, tokens and gradients.

    The other options are those of `cross_entropy`.

    Returns: a tensor in float32, float64 where products are; a Loss or LossReport where more is asked for.

    A loss that is reduced makes its gradients in the forward, where something requires them: the logits are
    at hand once, and the backward hands the gradients over, times the gradient of the loss. That is one
    product of four less, and takes hidden's and weight's own sizes until the backward. Losses of rows, those
    in float16 (whose gradients would be too small before a GradScaler has scaled them) and what goes through
    the lse make logits anew in the backward. Second derivatives, forward mode and the gradient of class
    probabilities hold some tensors of the logits' size.

    Under autocast hidden, weight and bias are rounded to its format; the loss stays in float32.

    Raises: as `cross_entropy`; NotImplementedError for operands that require a gradient with order="any".

    Cost: one product of 2 N V D flops; with gradients three, four where the weight's sum fits neither in its
        own format nor into `memory`.
    """
    any_order = exact_losses.asked(order, softcap, riders, tokens)
    hidden, weight, bias = _operands(hidden, weight, bias)
    shape, classes, device = tuple(hidden.shape[:-1]), weight.shape[0], hidden.device
    o = loss_options.options(
        len(shape), classes, loss_options.wide_of(hidden, weight), ignore_index, label_smoothing, smoothing,
        z_loss, softcap, temperature, reduction, empty,
    )  # fmt: skip
    goal = loss_options.targets(targets, shape, len(shape), classes, ignore_index, device)
    of_classes = loss_options.class_weight(class_weight, "class_weight", classes, device)
    of_rows = loss_options.row_weight(row_weight, shape, device)
    if not isinstance(return_lse, bool):
        raise TypeError(f"return_lse={return_lse!r} is a {type(return_lse).__name__}: True or False would do")
    below = linear_arguments.filter_of(filter_below)
    if any_order:
        operands = (hidden, weight, goal, bias, of_classes, of_rows)
        return _of_any_order(operands, return_lse, linear_arguments.memory_of(memory), o)
    names = () if (type(riders) is tuple and not riders) else loss_arguments.riders_of(riders)
    ranked = "rank" in names or "correct" in names
    if ranked and goal.is_floating_point():
        raise ValueError("riders has a rank with class probabilities: class indices would do")
    chosen = tokens_of(tokens, shape, device)
    report = bool(names) or chosen is not None
    made = loss_kernels.LSE * (return_lse or report)
    made |= loss_kernels.ENTROPY * ("entropy" in names) | loss_kernels.RANK * ranked
    loss, lse, _, _, _, entropy, rank, log_probabilities = linear_ops.LOSS(
        hidden, weight, goal, bias, of_classes, of_rows, chosen, made,
        int(_at_once(hidden, weight, bias, o.reduction)), linear_arguments.memory_of(memory),
        -1.0 if below is None else below, *o,
    )  # fmt: skip
    if not report:
        return Loss(loss, lse) if return_lse else loss
    return LossReport(
        loss,
        lse,
        entropy if "entropy" in names else None,
        rank if "rank" in names else None,
        rank == 0 if "correct" in names else None,
        None if chosen is None else log_probabilities,
    )


def _of_any_order(operands: tuple[Any, ...], return_lse: bool, memory: int, o: loss_options.Options) -> Any:
    hidden, weight, goal, bias = operands[:4]
    wide = loss_options.wide_of(hidden, weight)
    exact_losses.served(goal.is_floating_point(), o.temperature, NUMPY[wide])
    for name, t in (("hidden", hidden), ("weight", weight), ("bias", bias)):
        checks.without_gradient(t, f"{name} with order='any'", "torch.no_grad(), or order='row',")
    loss, lse = linear_ops.LOSS_ANY(*operands, int(return_lse), memory, *o)
    return Loss(loss, lse) if return_lse else loss


def _at_once(hidden: Tensor, weight: Tensor, bias: Tensor | None, reduction: int) -> bool:
    """Whether the forward makes the gradients too."""
    if reduction == loss_options.NONE or not torch.is_grad_enabled():
        return False
    if torch.float16 in (hidden.dtype, weight.dtype):
        return False
    if not torch.compiler.is_compiling() and torch._C._are_functorch_transforms_active():
        return False  # these differentiate the backward as well
    return any(t is not None and t.requires_grad for t in (hidden, weight, bias))


def _operands(hidden: Any, weight: Any, bias: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    states, matrix = checks.tensor(hidden, "hidden"), checks.tensor(weight, "weight")
    if not states.ndim:
        raise ValueError("hidden has no dimensions: (..., features) would do")
    if matrix.ndim != 2 or matrix.shape[1] != states.shape[-1] or not matrix.shape[0]:
        would = f"(classes, {states.shape[-1]}), at least one class, would do"
        raise ValueError(
            f"weight has shape {tuple(matrix.shape)} for hidden of shape {tuple(states.shape)}: {would}"
        )
    offset = None if bias is None else checks.tensor(bias, "bias")
    if offset is not None and offset.shape != matrix.shape[:1]:
        would = f"{(matrix.shape[0],)}, one for each class, would do"
        raise ValueError(f"bias has shape {tuple(offset.shape)}: {would}")
    checks.same_device(hidden=states, weight=matrix, bias=offset)
    return states, matrix, offset

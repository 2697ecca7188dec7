"""Cross-entropy of tensors."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from ...loss_rules import REDUCTIONS
from .. import exact_losses, loss_arguments
from . import checks, loss_any_ops, loss_kernels, loss_ops, loss_options, memory
from .loss_options import wide_of

_NUMBERS: Final = (float, int)
_ROW: Final = "row"
_EVERYDAY: Final = (0.0, "pytorch", 0.0, None, 1.0, "nan")
_CODES: Final = {name: code for code, name in enumerate(REDUCTIONS)}


class Loss(NamedTuple):
    """A loss with the log-sum-exps of the rows' scores."""

    loss: Tensor
    lse: Tensor


class LossReport(NamedTuple):
    """A loss with what was asked for beside it, of the shape of the rows; None for what was not. Only loss
    and lse have gradients.

    entropy, divergence and log_probabilities are in natural units, float32 (float64 for float64 logits).
    """

    loss: Tensor
    lse: Tensor
    #: Entropy of the row's distribution.
    entropy: Tensor | None = None
    #: Classes that come before the target in descending order of scores, equal ones by their number; int64.
    #: -1 for rows that are ignored or have no distribution.
    rank: Tensor | None = None
    #: Whether the target comes first.
    correct: Tensor | None = None
    #: Of the classes in `tokens`, of its shape.
    log_probabilities: Tensor | None = None
    #: sum(p * (log p - log q)), with q of the logits in `kl_to`.
    divergence: Tensor | None = None


def cross_entropy(
    logits: Tensor, targets: Tensor, *, axis: int | None = None, weight: Tensor | None = None,
    row_weight: Tensor | None = None, ignore_index: int = -100, label_smoothing: float = 0.0,
    smoothing: str = "pytorch", z_loss: float = 0.0, softcap: float | None = None, temperature: float = 1.0,
    reduction: str = "mean", empty: str = "nan", return_lse: bool = False, riders: Any = (),
    tokens: Tensor | None = None, kl_to: Tensor | None = None, order: str = "row",
) -> Any:  # fmt: skip
    """Cross-entropy of logits against targets, in one read of the logits.

    What it is, is said at `online_softmax.cross_entropy`; with the options of
    torch.nn.functional.cross_entropy it is that function, but for the format of the result.

    Args:
        logits: (rows, classes, ...) as PyTorch has it, or (classes,): float64, float32, float16, bfloat16
            (float8_e4m3fn, float8_e5m2), any strides.
        targets: integers of any kind of logits' shape without the classes: 0 to classes - 1, or ignore_index.
            Or floats of logits' shape: class probabilities from 0 on, which may require a gradient.
        axis: of the classes, where it is not the second (the only one of a lone row).
        weight: (classes,), finite; row_weight: broadcastable to the rows. Neither has a gradient.
        return_lse: Loss(loss, lse), both with gradients.
        riders, tokens, kl_to: a LossReport is returned: see there.
        order: "row": a row's bits depend on the row, the format and the instruction set. "any": on its
            elements and options alone, in whatever order, split or machine; a loss that is reduced is the
            exact sum rounded once, and the gradient has such bits too: those of
            `online_softmax.cross_entropy` and its backward (docs/same_bits.md). Class indices alone, without
            softcap, riders and kl_to. The backward makes the statistics anew; forward mode and second
            derivatives have the bits of "row".

    The other options are those of `online_softmax.cross_entropy`.

    Returns: a tensor in float32, in float64 for float64 logits, whatever autocast says: a mean over many rows
        has more digits than 16 bits hold.

    The gradient is made by the native core. Where a loss is reduced, in plain eager code, it is made along
    with the loss, of whose logits it is then a copy in size: what log-probabilities take elsewhere.
    Second derivatives and those of class probabilities go through PyTorch's operations and hold some tensors
    of logits' size.

    Raises: TypeError, ValueError, and IndexError for a class out of range with its place, each naming the
        argument, before anything is computed; RuntimeError for tensors of several devices and for weights
        that require a gradient.

    Cost: one read of the logits; with the gradient one read and one write.
    """
    if (
        axis is weight is row_weight is None and tokens is kl_to is None and order is _ROW
        and return_lse is False and type(riders) is tuple and not riders
        and type(ignore_index) is int and type(reduction) is type(smoothing) is type(empty) is str
        and type(label_smoothing) in _NUMBERS and type(z_loss) in _NUMBERS and type(temperature) in _NUMBERS
        and (softcap is None or type(softcap) in _NUMBERS)
        and (label_smoothing, smoothing, z_loss, softcap, temperature, empty) == _EVERYDAY
    ):  # fmt: skip
        found = loss_ops.direct(logits, targets, ignore_index, _CODES.get(reduction, -1))
        if found is not None:
            return found
    any_order = exact_losses.asked(order, softcap, riders, kl_to=kl_to)
    logits = checks.tensor(logits, "logits", converted=True)
    at = loss_options.class_axis(axis, logits.ndim)
    shape, classes = logits.shape[:at] + logits.shape[at + 1 :], logits.shape[at]
    if not classes:
        given = tuple(logits.shape)
        raise ValueError(f"logits has shape {given}, without classes: at least one along axis {at} would do")
    o = loss_options.options(
        at, classes, wide_of(logits), ignore_index, label_smoothing, smoothing, z_loss, softcap, temperature,
        reduction, empty,
    )  # fmt: skip
    device = logits.device
    goal = loss_options.targets(targets, tuple(shape), at, classes, ignore_index, device)
    of_classes = loss_options.class_weight(weight, "weight", classes, device)
    of_rows = loss_options.row_weight(row_weight, tuple(shape), device)
    if not isinstance(return_lse, bool):
        raise TypeError(f"return_lse={return_lse!r} is a {type(return_lse).__name__}: True or False would do")
    operands = (logits, goal, of_classes, of_rows)
    if any_order:
        return _of_any_order(operands, return_lse, tokens_of(tokens, tuple(shape), device), o)
    if (type(riders) is tuple and not riders) and tokens is None and kl_to is None:
        loss, lse = loss_ops.LOSS(*operands, int(return_lse), *o)
        return Loss(loss, lse) if return_lse else loss
    names = loss_arguments.riders_of(riders)
    if not goal.is_floating_point() or not {"rank", "correct"} & set(names):
        chosen = tokens_of(tokens, tuple(shape), device)
        return _report(operands, names, chosen, _other(kl_to, logits), o)
    name = next(n for n in ("correct", "rank") if n in names)
    raise ValueError(f"riders has {name!r} with class probabilities: class indices would do")


def _of_any_order(
    operands: tuple[Any, ...], return_lse: bool, tokens: Tensor | None, o: loss_options.Options
) -> Any:
    logits, targets = operands[:2]
    exact_losses.served(targets.is_floating_point(), o.temperature, memory.NUMPY[wide_of(logits)])
    report = tokens is not None
    loss, lse, chosen = loss_any_ops.LOSS(*operands, tokens, int(return_lse or report), *o)
    if report:
        return LossReport(loss, lse, log_probabilities=chosen)
    return Loss(loss, lse) if return_lse else loss


def _report(operands: tuple[Any, ...], names: tuple[str, ...], tokens: Any, kl_to: Any, o: Any) -> LossReport:
    ranked = "rank" in names or "correct" in names
    made = loss_kernels.LSE | loss_kernels.ENTROPY * ("entropy" in names) | loss_kernels.RANK * ranked
    loss, lse, entropy, rank, chosen, divergence = loss_ops.REPORT_OP(*operands, tokens, kl_to, made, *o)
    return LossReport(
        loss,
        lse,
        entropy if "entropy" in names else None,
        rank if "rank" in names else None,
        rank == 0 if "correct" in names else None,
        chosen if tokens is not None else None,
        divergence if kl_to is not None else None,
    )


def tokens_of(tokens: Any, shape: tuple[int, ...], device: torch.device) -> Tensor | None:
    if tokens is None:
        return None
    t = checks.any_tensor(tokens, "tokens")
    if t.dtype.is_floating_point or t.dtype.is_complex or t.dtype == torch.bool:
        raise TypeError(f"tokens holds {str(t.dtype).removeprefix('torch.')}: integers would do")
    if t.ndim != len(shape) + 1 or t.shape[:-1] != shape:
        raise ValueError(f"tokens has shape {tuple(t.shape)}: {(*shape, 'k')}, k classes a row, would do")
    if t.device != device:
        raise RuntimeError(f"tokens lies on {t.device} and logits on {device}: one device would do")
    return t


def _other(kl_to: Any, logits: Tensor) -> Tensor | None:
    if kl_to is None:
        return None
    t = checks.tensor(kl_to, "kl_to", converted=True)
    checks.same_device(logits=logits, kl_to=t)
    if t.shape != logits.shape:
        would = f"the shape {tuple(logits.shape)} of logits would do"
        raise ValueError(f"kl_to has shape {tuple(t.shape)}: {would}")
    return t.detach()

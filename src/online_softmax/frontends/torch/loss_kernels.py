"""Cross-entropy of tensors in CPU memory."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from ... import _core
from .. import losses as arrays
from . import memory, mode
from .loss_options import NONE, Options, wide_of

#: What is asked for beside the loss, as bits.
LSE, ENTROPY, RANK = 1, 2, 4
NOTHING: Final = (0,)
OPTIONS: Final = len(Options._fields)
LOSS_COUNT: Final = 5 + OPTIONS


_of_indices: Final = _core.cross_entropy_tensors
_threads: Final = torch.get_num_threads


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


def loss(
    logits: Tensor, targets: Tensor, weight: Tensor | None, row_weight: Tensor | None, made: int, *o: Any
) -> tuple[Tensor, Tensor]:
    options = Options(*o)
    if not made and weight is None and row_weight is None:
        short = _ruled(logits, targets, options, None)
        if short is not None:
            return short, short.new_empty(NOTHING)
    found = arrays.cross_entropy(
        memory.array(logits),
        memory.array(targets),
        return_lse=bool(made),
        **keywords(weight, row_weight, options),
    )
    if made:
        return number(found.loss), number(found.lse)
    result = number(found)
    return result, result.new_empty(NOTHING)


def loss_and_gradient(
    logits: Tensor, targets: Tensor, weight: Tensor | None, row_weight: Tensor | None, o: Options
) -> tuple[Tensor, Tensor]:
    """A loss that is reduced, and its gradient."""
    to = memory.empty_like(logits)
    if weight is None and row_weight is None:
        short = _ruled(logits, targets, o, to)
        if short is not None:
            return short, to
    found = arrays.cross_entropy_with_gradient(
        memory.array(logits), memory.array(targets), out=memory.array(to), **keywords(weight, row_weight, o)
    )
    return number(found.loss), to


def of_indices(
    logits: Tensor, targets: Tensor, axis: int, ignore_index: int, reduction: int, to: Tensor | None,
    rule: tuple[float, float, float, float, float] = (1.0, 0.0, 0.0, 0.0, 1.0),
) -> Tensor | None:  # fmt: skip
    """The everyday case, with nothing in Python around the kernel: class indices without weights.

    The loss, and its gradient in `to`; None, and nothing done, for what goes by the NumPy face: what it
    would refuse among the rest. logits without lazy negation.
    """
    return _of_indices(logits, targets, axis, ignore_index, *rule, reduction, _threads(), _room, to)


def _ruled(logits: Tensor, targets: Tensor, o: Options, to: Tensor | None) -> Tensor | None:
    if logits.is_neg():
        return None
    rule = (*o.smoothing(logits.shape[o.axis]), o.z_loss, o.softcap, 1 / o.temperature)
    return of_indices(logits, targets, o.axis, o.ignore_index, o.reduction, to, rule)


def _room(logits: Tensor, targets: Tensor, reduction: int) -> Tensor:
    return torch.empty(targets.shape if reduction == NONE else (), dtype=wide_of(logits))


def gradient(
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
        **keywords(weight, row_weight, Options(*o)),
    )
    return to


def report(
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

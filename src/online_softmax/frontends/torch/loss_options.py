"""Options of the losses on tensors: checked, and as the numbers that an operation takes."""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

import torch

from ...loss_rules import REDUCTIONS, SMOOTHINGS, word
from .. import checks as shared
from . import checks

NONE, MEAN, SUM = range(3)
_EMPTY: Final = ("nan", "zero")
_INTEGERS: Final = (
    torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
)  # fmt: skip
#: Part of the schema of every operation that takes `Options`, in their order.
SCHEMA: Final = (
    "int axis, int ignore_index, float label_smoothing, bool megatron, float z_loss, float softcap, "
    "float temperature, int reduction, bool empty_zero"
)


class Options(NamedTuple):
    """What a loss is, beside its tensors. softcap: 0 for none; reduction: a place in REDUCTIONS."""

    axis: int
    ignore_index: int
    label_smoothing: float
    megatron: bool
    z_loss: float
    softcap: float
    temperature: float
    reduction: int
    empty_zero: bool

    def keywords(self) -> dict[str, Any]:
        """As the NumPy faces have them, but for the axis."""
        return {
            "ignore_index": self.ignore_index,
            "label_smoothing": self.label_smoothing,
            "smoothing": SMOOTHINGS[self.megatron],
            "z_loss": self.z_loss,
            "softcap": self.softcap or None,
            "temperature": self.temperature,
            "reduction": REDUCTIONS[self.reduction],
            "empty": _EMPTY[self.empty_zero],
        }

    def smoothing(self, classes: int) -> tuple[float, float]:
        """What the target counts, and what every class does beside."""
        e = self.label_smoothing
        if self.megatron and e:
            e = e * classes / (classes - 1)
        return 1 - e, e / classes


_PLAIN: Final = (-100, 0.0, "pytorch", 0.0, None, 1.0, "mean", "nan")
_PLAIN_TYPES: Final = tuple(map(type, _PLAIN))
_REST: Final = (-100, 0.0, False, 0.0, 0.0, 1.0, MEAN, False)


def options(
    axis: int, classes: int, wide: torch.dtype, ignore_index: Any, label_smoothing: Any, smoothing: Any,
    z_loss: Any, softcap: Any, temperature: Any, reduction: Any, empty: Any,
) -> Options:  # fmt: skip
    """Options of a call, checked: ValueError or TypeError names the one that will not do."""
    given = (ignore_index, label_smoothing, smoothing, z_loss, softcap, temperature, reduction, empty)
    # Types first: True equals 1.0, and tensors and arrays compare element by element.
    if tuple(map(type, given)) == _PLAIN_TYPES and given == _PLAIN:
        return Options(axis, *_REST)
    if isinstance(ignore_index, bool) or not isinstance(ignore_index, int):
        raise TypeError(f"ignore_index is {ignore_index!r}: an integer would do")
    e = shared.number(label_smoothing, "label_smoothing")
    if not 0 <= e < 1:
        raise ValueError(f"label_smoothing is {label_smoothing}: from 0 on and below 1 would do")
    word(smoothing, "smoothing", SMOOTHINGS)
    megatron = smoothing == "megatron"
    if megatron and e * classes > classes - 1:
        would = f"up to {(classes - 1) / classes} for {classes} classes, or smoothing='pytorch', would do"
        raise ValueError(f"label_smoothing is {e} with smoothing='megatron': {would}")
    most = torch.finfo(wide).max
    heat = shared.number(temperature, "temperature")
    if not heat > 0 or not 1 / heat <= most:
        name = str(wide).removeprefix("torch.")
        would = f"a positive number, whose inverse {name} holds, would do"
        raise ValueError(f"temperature is {temperature}: {would}")
    cap = 0.0
    if softcap is not None:
        cap = shared.number(softcap, "softcap")
        if cap <= 0:
            raise ValueError(f"softcap is {softcap}: a positive number would do, None for no cap")
        # One so large changes nothing, and its square would overflow.
        cap = 0.0 if cap > math.sqrt(most) else cap
    z = shared.number(z_loss, "z_loss")
    word(reduction, "reduction", REDUCTIONS)
    word(empty, "empty", _EMPTY)
    return Options(
        axis, ignore_index, e, megatron, z, cap, heat, REDUCTIONS.index(reduction), empty == "zero"
    )


def wide_of(*tensors: torch.Tensor) -> torch.dtype:
    """The format of losses and statistics."""
    return torch.float64 if any(t.dtype == torch.float64 for t in tensors) else torch.float32


def class_axis(axis: Any, ndim: int) -> int:
    """The axis of the classes: the second, or that of a lone row, where it is not said."""
    if not ndim:
        raise ValueError("logits has no dimensions: (classes,) or (rows, classes, ...) would do")
    if axis is None:
        return 1 if ndim > 1 else 0
    return shared.single_axis(axis, None, ndim)


def targets(
    given: Any, shape: tuple[int, ...], axis: int, classes: int, ignore_index: Any, device: torch.device
) -> torch.Tensor:
    """Class indices of the rows' shape, or class probabilities with the classes along `axis`."""
    t = checks.any_tensor(given, "targets")
    if t.device != device:
        raise RuntimeError(f"targets lies on {t.device} and the scores on {device}: one device would do")
    if t.dtype in _INTEGERS:
        if t.shape != shape:
            would = f"{shape} would do for class indices, floats for class probabilities"
            would += "; for logits whose classes are last axis=-1" if len(shape) > 1 else ""
            raise ValueError(f"targets has shape {tuple(t.shape)}: {would}")
        return t
    name = str(t.dtype).removeprefix("torch.")
    if t.dtype not in checks.SERVED + checks.CONVERTED:
        raise TypeError(
            f"targets holds {name}: integers for class indices, floats for class probabilities would do"
        )
    if isinstance(ignore_index, int) and ignore_index >= 0:
        would = "class probabilities have no index to ignore: a negative one would do"
        raise ValueError(f"ignore_index is {ignore_index}: {would}")
    expected = (*shape[:axis], classes, *shape[axis:])
    if t.shape != expected:
        would = f"{expected} would do for class probabilities, integers of shape {shape} for class indices"
        raise ValueError(f"targets has shape {tuple(t.shape)} and holds {name}: {would}")
    return t


def class_weight(given: Any, name: str, classes: int, device: torch.device) -> torch.Tensor | None:
    """(classes,) or None."""
    if given is None:
        return None
    t = _constant(given, name, device)
    if t.shape != (classes,):
        raise ValueError(f"{name} has shape {tuple(t.shape)}: {(classes,)}, one for each class, would do")
    return t


def row_weight(given: Any, shape: tuple[int, ...], device: torch.device) -> torch.Tensor | None:
    """Broadcastable to the rows, or None."""
    if given is None:
        return None
    t = _constant(given, "row_weight", device)
    fits = t.ndim <= len(shape) and all(
        n in (1, m) for n, m in zip(reversed(t.shape), reversed(shape), strict=False)
    )
    if not fits:
        would = f"a shape that broadcasts to {shape}, one number a row, would do"
        raise ValueError(f"row_weight has shape {tuple(t.shape)}: {would}")
    return t


def _constant(given: Any, name: str, device: torch.device) -> torch.Tensor:
    t = checks.any_tensor(given, name)
    if t.dtype.is_complex:
        raise TypeError(f"{name} is {str(t.dtype).removeprefix('torch.')}: real numbers would do")
    if t.device != device:
        raise RuntimeError(f"{name} lies on {t.device} and the scores on {device}: one device would do")
    if t.requires_grad and torch.is_grad_enabled():
        would = f"{name}.detach() would do"
        if name == "row_weight":
            would += ", or reduction='none' and a product with it outside"
        raise RuntimeError(f"{name} requires grad, and has no gradient here: {would}")
    return t

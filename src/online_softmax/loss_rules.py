"""How the losses of rows become one, and what a class counts: the options that are numbers and words."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

REDUCTIONS: Final = ("none", "mean", "sum")
SMOOTHINGS: Final = ("pytorch", "megatron")


@dataclass(frozen=True)
class Rule:
    """What a class counts in the loss of a row, and what logits go through.

    Attributes:
        sharp, uniform: class c counts weight[c] * (sharp * (c is the target, or its probability) + uniform).
        z_loss: times lse**2, added to the loss.
        softcap: 0 for none; before the temperature, whose inverse multiplies.
    """

    sharp: float = 1.0
    uniform: float = 0.0
    z_loss: float = 0.0
    softcap: float = 0.0
    inverse_temperature: float = 1.0


@dataclass(frozen=True)
class Whole:
    """What is known of a vocabulary of which a call has a part: float64, one a row.

    Attributes:
        m, s: of the classes but the target, sum of exp(z - m).
        target: score of the target, NaN where the row has none.
        target_weight: class weight of the target, 0 where the row has none.
        weight_sum: of all class weights.
    """

    m: Array
    s: Array
    target: Array
    target_weight: Array
    weight_sum: float


@dataclass(frozen=True)
class Rules:
    """The options that are numbers and words."""

    ignore_index: int
    label_smoothing: float
    smoothing: str
    z_loss: float
    softcap: float
    temperature: float
    reduction: str
    empty: str

    def unlike(self, other: Rules) -> str:
        """The first option that differs, as a message has it: what the other has, and what would do."""
        name = next(f.name for f in fields(self) if getattr(self, f.name) != getattr(other, f.name))
        return f"{name}={getattr(other, name)!r} where this one has {getattr(self, name)!r}: the same"

    def rule(self, classes: int) -> Rule:
        """For a vocabulary of so many classes.

        Raises: ValueError where Megatron's smoothing asks for more than there is to share out.
        """
        e = self.label_smoothing
        if self.smoothing == "megatron" and e:
            if e * classes > classes - 1:
                would = (
                    f"up to {(classes - 1) / classes} for {classes} classes, or smoothing='pytorch', would do"
                )
                raise ValueError(f"label_smoothing is {e} with smoothing='megatron': {would}")
            e = e * classes / (classes - 1)
        return Rule(1 - e, e / classes, self.z_loss, self.softcap, 1 / self.temperature)


def checked(rules: Rules) -> Rules:
    """Raises ValueError where reduction or empty is none of the words that would do."""
    word(rules.reduction, "reduction", REDUCTIONS)
    word(rules.empty, "empty", ("nan", "zero"))
    return rules


def reduced(
    loss: Array, rules: Rules, denominator: float, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Any:
    """Losses of rows, (rows,) float64, as the caller wants them."""
    with np.errstate(all="ignore"):
        if rules.reduction == "none":
            return loss.reshape(shape).astype(dtype)[()]
        total = loss.sum()
        if rules.reduction == "mean":
            if denominator == 0 and rules.empty == "zero":
                return dtype.type(0)
            total = np.float64(total) / np.float64(denominator)
        return dtype.type(total)


def word(value: Any, name: str, words: tuple[str, ...]) -> None:
    """Raises ValueError where `value` is none of `words`."""
    if not isinstance(value, str) or value not in words:
        raise ValueError(f"{name} is {value!r}: {', '.join(map(repr, words))} would do")

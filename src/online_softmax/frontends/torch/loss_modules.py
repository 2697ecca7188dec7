"""Losses as modules: options fixed at construction."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .. import exact_losses, linear_arguments
from . import checks, loss_options
from .linear import linear_cross_entropy
from .losses import cross_entropy

_DEFAULTS: dict[str, Any] = {
    "ignore_index": -100,
    "label_smoothing": 0.0,
    "smoothing": "pytorch",
    "z_loss": 0.0,
    "softcap": None,
    "temperature": 1.0,
    "reduction": "mean",
    "empty": "nan",
    "return_lse": False,
    "filter_below": None,
    "memory": linear_arguments.MEMORY,
    "order": "row",
}


class _Loss(torch.nn.Module):
    """What both have in common: the options, which are looked up at every call."""

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        # Checked here for any number of classes; Megatron's smoothing asks for their number, and so later.
        apart = ("return_lse", "memory", "filter_below", "order")
        rest = {n: v for n, v in options.items() if n not in apart}
        exact_losses.asked(options["order"], options["softcap"])
        loss_options.options(0, 1 << 62, torch.float64, **rest)
        if not isinstance(options["return_lse"], bool):
            kind = type(options["return_lse"]).__name__
            raise TypeError(f"return_lse={options['return_lse']!r} is a {kind}: True or False would do")
        self._names = tuple(options)
        for name, value in options.items():
            setattr(self, name, value)

    def options(self) -> dict[str, Any]:
        """By the names of the function's arguments."""
        return {name: getattr(self, name) for name in self._names}

    def _changed(self) -> str:
        given = ((n, v) for n, v in self.options().items() if v != _DEFAULTS[n])
        return ", ".join(f"{name}={value!r}" for name, value in given)


class CrossEntropyLoss(_Loss):
    """`cross_entropy` with its options fixed: forward(logits, targets, row_weight=None) -> loss.

    Args:
        weight, ignore_index, reduction, label_smoothing: as torch.nn.CrossEntropyLoss has them; its
            size_average and reduce, which are deprecated there, have to be None.
        smoothing, z_loss, softcap, temperature, empty, return_lse, axis, order: as in `cross_entropy`.

    `weight` is a buffer: it moves with the module, and is in its state_dict as PyTorch's is.

    The loss is in float32 for logits of 16 bits: see `cross_entropy`.

    Raises: TypeError and ValueError, naming the argument, when it is made; `cross_entropy`'s own when called.
    """

    weight: Tensor | None

    def __init__(
        self, weight: Tensor | None = None, size_average: None = None, ignore_index: int = -100,
        reduce: None = None, reduction: str = "mean", label_smoothing: float = 0.0, *,
        smoothing: str = "pytorch", z_loss: float = 0.0, softcap: float | None = None,
        temperature: float = 1.0, empty: str = "nan", return_lse: bool = False, axis: int | None = None,
        order: str = "row",
    ) -> None:  # fmt: skip
        for name, value in (("size_average", size_average), ("reduce", reduce)):
            if value is not None:
                raise TypeError(f"{name}={value!r}, which PyTorch deprecates: reduction would do")
        super().__init__({
            "ignore_index": ignore_index, "label_smoothing": label_smoothing, "smoothing": smoothing,
            "z_loss": z_loss, "softcap": softcap, "temperature": temperature, "reduction": reduction,
            "empty": empty, "return_lse": return_lse, "order": order,
        })  # fmt: skip
        self.axis = axis
        self.register_buffer("weight", None if weight is None else checks.any_tensor(weight, "weight"))

    def forward(self, logits: Tensor, targets: Tensor, row_weight: Tensor | None = None) -> Any:
        return cross_entropy(
            logits, targets, weight=self.weight, row_weight=row_weight, axis=self.axis, **self.options()
        )

    def extra_repr(self) -> str:
        parts = (self._changed(), "" if self.axis is None else f"axis={self.axis}")
        return ", ".join(part for part in parts if part)


class LinearCrossEntropyLoss(_Loss):
    """`linear_cross_entropy` with its options fixed.

    With sizes it is a head: it has a weight (classes, features) and a bias of its own, made as
    torch.nn.Linear makes them and by the same names, so that a head's state_dict loads into it, and
    forward(hidden, targets, row_weight=None) is the loss. A weight that belongs to another module is given in
    place of sizes and is shared with it (`LinearCrossEntropyLoss(weight=embedding.weight)`), a tied weight.
    Without either it has no parameters and takes them in the call: forward(hidden, targets, row_weight=None,
    weight=..., bias=...).

    Args:
        features, classes: of the head.
        bias: whether the head has a bias; or the Parameter (classes,) that goes with `weight`.
        weight: a Parameter (classes, features) that is shared.
        class_weight: (classes,), a buffer.
        device, dtype: of the parameters that are made.
        order: as in `linear_cross_entropy`: "any" for losses under torch.no_grad().

    The other options are those of `linear_cross_entropy`. `logits(hidden)` gives what the loss never makes:
    scores for generation, with softcap and temperature.

    Raises: TypeError and ValueError, naming the argument, when it is made; the function's own when called.
    """

    class_weight: Tensor | None

    def __init__(
        self, features: int | None = None, classes: int | None = None,
        bias: bool | torch.nn.Parameter = False, *, weight: torch.nn.Parameter | None = None,
        class_weight: Tensor | None = None,
        ignore_index: int = -100, label_smoothing: float = 0.0, smoothing: str = "pytorch",
        z_loss: float = 0.0, softcap: float | None = None, temperature: float = 1.0, reduction: str = "mean",
        empty: str = "nan", return_lse: bool = False, filter_below: float | None = None,
        memory: int = linear_arguments.MEMORY, device: Any = None, dtype: torch.dtype | None = None,
        order: str = "row",
    ) -> None:  # fmt: skip
        super().__init__({
            "ignore_index": ignore_index, "label_smoothing": label_smoothing, "smoothing": smoothing,
            "z_loss": z_loss, "softcap": softcap, "temperature": temperature, "reduction": reduction,
            "empty": empty, "return_lse": return_lse,
            "filter_below": linear_arguments.filter_of(filter_below),
            "memory": linear_arguments.memory_of(memory), "order": order,
        })  # fmt: skip
        found = None if class_weight is None else checks.any_tensor(class_weight, "class_weight")
        self.register_buffer("class_weight", found)
        if (features is None) != (classes is None) or (features is not None and weight is not None):
            raise ValueError("features and classes, or a weight, or none of them would do")
        if weight is not None and not isinstance(weight, torch.nn.Parameter):
            raise TypeError(
                f"weight is a {type(weight).__name__}: a Parameter of (classes, features) would do"
            )
        if not isinstance(bias, bool | torch.nn.Parameter) or (features is None and bias is True):
            raise TypeError(f"bias is {bias!r}: True or False with sizes, a Parameter beside weight would do")
        offset = bias if isinstance(bias, torch.nn.Parameter) else None
        if features is not None and classes is not None:
            sizes = {"features": features, "classes": classes}
            for name, size in sizes.items():
                if isinstance(size, bool) or not isinstance(size, int) or size < 1:
                    raise ValueError(f"{name} is {size!r}: a positive number would do")
            made = {"device": device, "dtype": dtype}
            weight = torch.nn.Parameter(torch.empty(classes, features, **made))
            offset = torch.nn.Parameter(torch.empty(classes, **made)) if bias is True else offset
        self.register_parameter("weight", weight)
        self.register_parameter("bias", offset)
        if features is not None:
            self.reset_parameters()

    def reset_parameters(self) -> None:
        """As torch.nn.Linear does."""
        if self.weight is None:
            return
        torch.nn.init.kaiming_uniform_(self.weight, a=math.sqrt(5))
        if self.bias is not None:
            bound = 1 / math.sqrt(self.weight.shape[1])
            torch.nn.init.uniform_(self.bias, -bound, bound)

    def forward(
        self, hidden: Tensor, targets: Tensor, row_weight: Tensor | None = None, *,
        weight: Tensor | None = None, bias: Tensor | None = None,
    ) -> Any:  # fmt: skip
        matrix, offset = self._operands(weight, bias)
        return linear_cross_entropy(
            hidden, matrix, targets, bias=offset, class_weight=self.class_weight, row_weight=row_weight,
            **self.options(),
        )  # fmt: skip

    def logits(self, hidden: Tensor, *, weight: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
        """(..., classes): the scores of which the loss is."""
        found = torch.nn.functional.linear(hidden, *self._operands(weight, bias))
        options = self.options()
        if options["softcap"] is not None:
            found = torch.tanh(found / options["softcap"]) * options["softcap"]
        return found if options["temperature"] == 1 else found / options["temperature"]

    def _operands(self, weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        if self.weight is not None:
            if weight is not None or bias is not None:
                raise ValueError("weight or bias is given to a loss that has its own: none would do")
            return self.weight, self.bias
        if weight is None:
            raise ValueError(
                "weight is missing: this loss has none of its own, weight=(classes, features) would do"
            )
        return weight, bias

    def extra_repr(self) -> str:
        sizes = "" if self.weight is None else "features={1}, classes={0}".format(*self.weight.shape)
        parts = (sizes, f"bias={self.bias is not None}" if sizes else "", self._changed())
        return ", ".join(part for part in parts if part)

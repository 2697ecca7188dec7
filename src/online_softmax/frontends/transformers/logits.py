"""Logits that are not made: hidden states, a head, and what the model has done to their product since."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

import torch
from torch.nn import functional as F

from ..torch import linear_cross_entropy
from ..torch.swap_functions import PLACES


@dataclass(frozen=True, eq=False)
class Logits:
    """The product hidden @ weight.T + bias, times a factor and through a softcap, as a tensor might be used
    between the head of a model and `torch.nn.functional.cross_entropy`.

    What else is asked of it raises NotImplementedError: nothing that a model does is left out silently.

    Attributes:
        hidden: (..., D), weight: (V, D), bias: (V,) or None.
        dtype: what a tensor would have.
        factor: what the product has been multiplied by.
        outer: what its tanh has been multiplied by; None where there was no tanh.
    """

    hidden: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor | None
    dtype: torch.dtype
    factor: float = 1.0
    outer: float | None = None

    # --- what a tensor tells ---

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.hidden.shape[:-1], self.weight.shape[0]))

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def device(self) -> torch.device:
        return self.hidden.device

    @property
    def requires_grad(self) -> bool:
        return self.hidden.requires_grad or self.weight.requires_grad

    def size(self, dim: int | None = None) -> Any:
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        return self.ndim

    # --- what leaves each logit as it is ---

    def float(self) -> Logits:
        return replace(self, dtype=torch.float32)

    def to(self, *args: Any, **kwargs: Any) -> Logits:
        """A format, or the device it is on."""
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.dtype):
                return replace(self, dtype=value)
            if isinstance(value, (str, torch.device)) and torch.device(value) == self.device:
                continue
            _refused(f"to({value!r})")
        return self

    def contiguous(self) -> Logits:
        return self

    def view(self, *shape: Any) -> Logits:
        return self.reshape(*shape)

    def reshape(self, *shape: Any) -> Logits:
        sizes = tuple(shape[0]) if len(shape) == 1 and not isinstance(shape[0], int) else shape
        if not sizes or sizes[-1] not in (self.shape[-1], -1):
            _refused(f"reshape{sizes}")
        return replace(self, hidden=self.hidden.reshape(*sizes[:-1], self.hidden.shape[-1]))

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Logits:
        if end_dim % self.ndim == self.ndim - 1:
            _refused("flatten over the classes")
        return replace(self, hidden=self.hidden.flatten(start_dim, end_dim))

    def __getitem__(self, index: Any) -> Logits:
        items = index if isinstance(index, tuple) else (index,)
        if Ellipsis in [i for i in items if not isinstance(i, torch.Tensor)]:
            whole = items[-1] == slice(None) if len(items) > 1 else True
        else:
            whole = len(items) < self.ndim or items[-1] == slice(None)
        if not whole or any(isinstance(i, torch.Tensor) and i.ndim > 1 for i in items):
            _refused(f"indexing by {index!r}")
        return replace(self, hidden=self.hidden[index])

    # --- what changes it ---

    def __mul__(self, other: Any) -> Logits:
        if isinstance(other, torch.Tensor):
            if other.requires_grad or other.numel() != 1:
                _refused("multiplication by a tensor")
            other = other.item()
        if self.outer is not None:
            return replace(self, outer=self.outer * other)
        return replace(self, factor=self.factor * other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Logits:
        return self * (1 / other)

    def tanh(self) -> Logits:
        if self.outer is not None:
            _refused("a second tanh")
        return replace(self, outer=1.0)

    def __add__(self, other: Any) -> NoReturn:
        _refused("a sum")

    __radd__ = __sub__ = __rsub__ = __add__

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):  # Python's own questions
            raise AttributeError(name)
        _refused(name)

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        served = _SERVED.get(func)
        if served is None:
            _refused(getattr(func, "__name__", str(func)))
        return served(*args, **(kwargs or {}))


def _loss(
    logits: Any, target: Any, weight: Any = None, size_average: Any = None, ignore_index: int = -100,
    reduce: Any = None, reduction: str = "mean", label_smoothing: float = 0.0,
) -> torch.Tensor:  # fmt: skip
    """`torch.nn.functional.cross_entropy`, its input a `Logits` with the classes last."""
    if not isinstance(logits, Logits) or logits.ndim > 2:
        _refused("cross_entropy of this form")
    if size_average is not None or reduce is not None:
        _refused("cross_entropy with size_average or reduce")
    made = linear_cross_entropy(
        logits.hidden, logits.weight, target, bias=logits.bias, class_weight=weight,
        ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction, **_scores(logits),
    )  # fmt: skip
    return made.to(logits.dtype)


def _scores(logits: Logits) -> dict[str, Any]:
    """softcap * tanh(factor * x / softcap) / temperature, in the words of `linear_cross_entropy`."""
    if logits.outer is None:
        return {} if logits.factor == 1 else {"temperature": 1 / logits.factor}
    if logits.factor <= 0 or logits.outer <= 0:
        _refused(f"{logits.outer} * tanh({logits.factor} * logits)")
    softcap = 1 / logits.factor
    temperature = softcap / logits.outer
    # A model divides by its cap and multiplies by it: what is left of that is rounding.
    plain = abs(temperature - 1) < 2**-40
    return {"softcap": logits.outer if plain else softcap, **({} if plain else {"temperature": temperature})}


#: PyTorch asks for its functions by what stands in their place: `online_softmax.torch.enable` may put ours
#: there before or after this file is read, so either is served, and none is looked up in PyTorch here.
_SERVED: Final[dict[Any, Callable[..., Any]]] = {
    **{function: _loss for _, name, *either in PLACES if name == "cross_entropy" for function in either},
    torch.tanh: Logits.tanh,
    F.tanh: Logits.tanh,
    torch.mul: Logits.__mul__,
    torch.div: Logits.__truediv__,
}


def _refused(what: str) -> NoReturn:
    raise NotImplementedError(
        f"the model asks for {what} of its logits, which linear_loss does not make: a factor, a softcap, "
        "slices of tokens and cross-entropy would do; linear_loss(model).remove() brings the logits back"
    )

"""Logits that are not made: hidden states, a head, and what the model has done to their product since."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

import torch
from torch.nn import functional as F

from ..torch import linear_cross_entropy, mode
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
        return any(x is not None and x.requires_grad for x in (self.hidden, self.weight, self.bias))

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
        classes, rows = self.shape[-1], math.prod(self.shape[:-1])
        # What -1 stands for is the classes only where the rest says how many rows there are.
        if not sizes or not (sizes[-1] == classes or (sizes[-1] == -1 and math.prod(sizes[:-1]) == rows)):
            _refused(f"reshape{sizes}")
        return replace(self, hidden=self.hidden.reshape(*sizes[:-1], self.hidden.shape[-1]))

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Logits:
        if end_dim % self.ndim == self.ndim - 1:
            _refused("flatten over the classes")
        return replace(self, hidden=self.hidden.flatten(start_dim, end_dim))

    def __getitem__(self, index: Any) -> Logits:
        if not _leaves_classes(index if isinstance(index, tuple) else (index,), self.ndim):
            _refused(f"indexing by {index!r}")
        return replace(self, hidden=self.hidden[index])

    def __len__(self) -> int:
        return self.shape[0]

    def __iter__(self) -> Iterator[Logits]:
        return (self[i] for i in range(len(self)))

    # --- what changes it ---

    def __mul__(self, other: Any) -> Logits:
        if isinstance(other, torch.Tensor):
            if other.requires_grad or other.numel() != 1 or other.ndim > self.ndim:
                _refused("multiplication by a tensor")
            other = other.item()
        if not isinstance(other, (int, float, torch.SymInt, torch.SymFloat)):
            _refused(f"multiplication by a {type(other).__name__}")
        if self.outer is not None:
            return replace(self, outer=self.outer * other)
        return replace(self, factor=self.factor * other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Logits:
        if not isinstance(other, (int, float, torch.SymInt, torch.SymFloat, torch.Tensor)):
            _refused(f"division by a {type(other).__name__}")
        return self * (1 / other)

    def tanh(self) -> Logits:
        if self.outer is not None:
            _refused("a second tanh")
        return replace(self, outer=1.0)

    def __add__(self, other: Any) -> Logits:
        """One number for each class, as a bias: (V,), or with dimensions of 1 before."""
        served = (
            isinstance(other, torch.Tensor)
            and other.dtype == self.weight.dtype
            and 0 < other.ndim <= self.ndim
            and other.numel() == other.shape[-1] == self.shape[-1]
        )
        if not served or self.outer is not None or self.factor == 0:
            _refused("a sum")
        bias = other.reshape(-1) / self.factor
        return replace(self, bias=bias if self.bias is None else self.bias + bias)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Logits:
        return self + -other

    def __bool__(self) -> bool:
        _refused("truth")

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


def _leaves_classes(items: tuple[Any, ...], ndim: int) -> bool:
    """Whether an index takes all of the last of some dimensions, and leaves it the last."""
    if any(isinstance(i, list) and any(isinstance(j, (list, tuple)) for j in i) for i in items):
        return False
    taken = [_dimensions(i) for i in items]
    of_last = ndim - sum(taken)  # that an ellipsis stands for
    at = [n for n, i in enumerate(items) if i is Ellipsis]
    if at and of_last > 0:  # those after it are the last ones
        items, taken = items[at[0] + 1 :], taken[at[0] + 1 :]
        return not items or (taken[-1] == 1 and isinstance(items[-1], slice) and items[-1] == slice(None))
    items = tuple(i for i in items if i is not Ellipsis)
    if of_last > 0:
        return True
    return bool(items) and isinstance(items[-1], slice) and items[-1] == slice(None)


def _dimensions(item: Any) -> int:
    """How many dimensions an item of an index stands for."""
    if item is None or item is Ellipsis or isinstance(item, bool):
        return 0
    if getattr(item, "ndim", 0) and str(item.dtype).removeprefix("torch.") in ("bool", "uint8"):
        return int(item.ndim)
    return 1


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
    # Autocast has PyTorch's in float32 whatever the logits are.
    return made if mode.autocast(logits.device.type) else made.to(logits.dtype)


def _scores(logits: Logits) -> dict[str, Any]:
    """softcap * tanh(factor * x / softcap) / temperature, in the words of `linear_cross_entropy`."""
    if logits.outer is None:
        if not 0 < logits.factor < math.inf:
            _refused(f"{logits.factor} times logits")
        return {} if logits.factor == 1 else {"temperature": 1 / logits.factor}
    if not (0 < logits.factor < math.inf and 0 < logits.outer < math.inf):
        _refused(f"{logits.outer} * tanh({logits.factor} * logits)")
    softcap = 1 / logits.factor
    temperature = softcap / logits.outer
    # A model divides by its cap and multiplies by it: what is left of that is rounding.
    plain = abs(temperature - 1) < 2**-40
    return {"softcap": logits.outer if plain else softcap, **({} if plain else {"temperature": temperature})}


def _product(input: Any, other: Any) -> Logits:
    return input * other if isinstance(input, Logits) else other * input


def _quotient(input: Any, other: Any, *, rounding_mode: str | None = None) -> Logits:
    if rounding_mode is not None or not isinstance(input, Logits):
        _refused("division of this form")
    return input / other


def _sum(input: Any, other: Any, *, alpha: Any = 1) -> Logits:
    if alpha != 1:
        _refused("a sum with alpha")
    return input + other if isinstance(input, Logits) else other + input


#: PyTorch asks for its functions by what stands in their place: `online_softmax.torch.enable` may put ours
#: there before or after this file is read, so either is served, and none is looked up in PyTorch here.
_SERVED: Final[dict[Any, Callable[..., Any]]] = {
    **{function: _loss for _, name, *either in PLACES if name == "cross_entropy" for function in either},
    torch.tanh: Logits.tanh,
    F.tanh: Logits.tanh,
    torch.mul: _product,
    torch.Tensor.mul: _product,
    torch.div: _quotient,
    torch.add: _sum,
    torch.Tensor.add: _sum,
}


def _refusing(name: str) -> Any:
    def refuse(self: Any, *_: Any) -> NoReturn:
        _refused(name)

    return refuse


# Python does not look these up by __getattr__, and has answers of its own to some of them.
for _name in (
    "abs", "array", "contains", "delitem", "divmod", "eq", "float", "floordiv", "ge", "gt", "index",
    "int", "invert", "le", "lt", "matmul", "mod", "ne", "neg", "pos", "pow", "rdivmod", "rfloordiv",
    "rmatmul", "rmod", "rpow", "rsub", "rtruediv", "setitem",
):  # fmt: skip
    setattr(Logits, f"__{_name}__", _refusing(_name))
Logits.__hash__ = object.__hash__  # type: ignore[method-assign]


def _refused(what: str) -> NoReturn:
    raise NotImplementedError(
        f"the model asks for {what} of its logits, which linear_loss does not make: a factor, a bias, "
        "a softcap, slices of tokens and cross-entropy would do; linear_loss(model).remove() brings them back"
    )

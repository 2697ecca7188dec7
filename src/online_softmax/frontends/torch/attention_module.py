"""Attention as a module: options fixed at construction."""

from __future__ import annotations

from typing import Any

import torch

from .. import checks
from . import attention_arguments as arguments
from .attention import attention


class Attention(torch.nn.Module):
    """`attention` with its options fixed: forward(q, k, v, mask=None, bias=None) -> output.

    Args:
        causal, causal_align, window, softcap, scale, layout, order: as in `attention`.
        dropout_p: active in training only; seeds are drawn from PyTorch's generator.
        sinks: a number of heads gives the module a learned parameter `sinks` of so many logits, zeros at
            first; None for no sinks.
        return_lse: forward gives (output, lse).
        device, dtype: of the parameter.

    Raises: TypeError and ValueError, naming the argument, when it is made; `attention`'s own when called.

    Heads are not projected, split or merged: q, k and v are those of `attention`.
    """

    def __init__(
        self,
        *,
        causal: bool = False,
        causal_align: str = "lower_right",
        window: tuple[int | None, int | None] | None = None,
        softcap: float | None = None,
        scale: float | None = None,
        dropout_p: float = 0.0,
        sinks: Any = None,
        return_lse: Any = False,
        layout: str = "BHSD",
        order: str = "row",
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        arguments.numbers(scale, causal, causal_align, window, softcap, dropout_p, None)
        arguments.layout(layout)
        checks.order(order)
        if not isinstance(return_lse, bool):
            kind = type(return_lse).__name__
            raise TypeError(f"return_lse={return_lse!r} is a {kind}: True or False would do")
        self.causal, self.causal_align, self.window = causal, causal_align, window
        self.softcap, self.scale, self.dropout_p = softcap, scale, dropout_p
        self.return_lse, self.layout, self.order = return_lse, layout, order
        if sinks is None:
            self.register_parameter("sinks", None)
            return
        if isinstance(sinks, bool) or not isinstance(sinks, int):
            raise TypeError(f"sinks is {sinks!r}: a number of heads would do, None for no sinks")
        if sinks < 1:
            raise ValueError(f"sinks is {sinks}: at least 1 head would do, None for no sinks")
        self.sinks = torch.nn.Parameter(torch.empty(sinks, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.sinks is not None:
            torch.nn.init.zeros_(self.sinks)

    def forward(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        mask: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> Any:
        return attention(
            q, k, v, mask=mask, bias=bias, scale=self.scale, causal=self.causal,
            causal_align=self.causal_align, window=self.window, softcap=self.softcap, sinks=self.sinks,
            dropout_p=self.dropout_p if self.training else 0.0, return_lse=self.return_lse,
            layout=self.layout, order=self.order,
        )  # fmt: skip

    def extra_repr(self) -> str:
        shown = []
        for name, default in _DEFAULTS.items():
            value = getattr(self, name)
            if value != default:
                shown.append(f"{name}={value!r}")
        if self.sinks is not None:
            shown.append(f"sinks={len(self.sinks)}")
        return ", ".join(shown)


_DEFAULTS = {
    "causal": False,
    "causal_align": "lower_right",
    "window": None,
    "softcap": None,
    "scale": None,
    "dropout_p": 0.0,
    "return_lse": False,
    "layout": "BHSD",
    "order": "row",
}

"""logsumexp with weights: the operation and its derivatives."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ... import cpu
from . import checks, memory, mode
from .registry import Op, Rule


def logsumexp(
    x: torch.Tensor, dims: list[int], where: torch.Tensor | None, b: Any, signed: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """(log(abs(sum(b * exp(x)))), sign) over dimensions, in x's format; unless `signed`, a negative sum gives
    NaN. Raises for b as `checks` does."""
    weights = checks.tensor(b, "b") if not _integers(b) else b.double()
    checks.same_device(x=x, b=weights)
    if weights.dtype != torch.float64:
        weights = weights.float()
    if weights.ndim > x.ndim or any(
        n not in (1, m) for n, m in zip(reversed(weights.shape), reversed(x.shape), strict=False)
    ):
        raise ValueError(
            f"b has shape {tuple(weights.shape)}: one that broadcasts to {tuple(x.shape)}, x's, would do"
        )
    values = x.float() if x.dtype in checks.CONVERTED else x
    weights = weights.expand(x.shape)
    if where is not None:
        weights = torch.where(where, weights, 0)
    if not dims:
        values, weights, dims = values.unsqueeze(-1), weights.unsqueeze(-1), [x.ndim]
    lse, sign = _WEIGHTED(values, weights, dims)
    if not signed:
        lse = torch.where(sign < 0, torch.nan, lse)
    if x.dtype == torch.float8_e4m3fn:  # has no infinities, and PyTorch would round them to numbers
        lse = torch.where(lse.isinf(), torch.nan, lse)
    return lse.to(x.dtype), sign.to(x.dtype)


def _integers(b: Any) -> bool:
    return isinstance(b, torch.Tensor) and not b.dtype.is_floating_point and not b.dtype.is_complex


def _cpu(x: torch.Tensor, b: torch.Tensor, dims: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    lse, sign = cpu.logsumexp(memory.array(x), tuple(dims), b=memory.array(b), threads=mode.threads())
    assert sign is not None  # with weights there is one
    return memory.tensor(np.asarray(lse)), memory.tensor(np.asarray(sign))


def _fake(x: torch.Tensor, b: torch.Tensor, dims: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    shape = [n for d, n in enumerate(x.shape) if d not in dims]
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    return x.new_empty(shape, dtype=wide), x.new_empty(shape, dtype=wide)


def _terms(ctx: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The derivatives of lse by x and by b, in lse's format: b * w and w with w = sign * exp(x - lse)."""
    x, b, lse, sign = ctx.saved_tensors
    for d in ctx.dims:
        lse, sign = lse.unsqueeze(d), sign.unsqueeze(d)
    x, b = x.to(lse.dtype), b.to(lse.dtype)
    # Nothing comes from -inf, not even where nothing else is there.
    w = torch.where(x == -torch.inf, 0, sign * (x - lse).exp())
    return torch.where(b == 0, 0, b * w), w


class _Weighted(Rule):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
        x, b, ctx.dims = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, b, *output)
        ctx.save_for_forward(x, b, *output)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor, _: Any) -> Any:
        x, b, *_rest = ctx.saved_tensors
        by_x, by_b = _terms(ctx)
        for d in ctx.dims:
            dy = dy.unsqueeze(d)
        return (dy * by_x).to(x.dtype), (dy * by_b).to(b.dtype), None

    @staticmethod
    def jvp(ctx: Any, tx: Any, tb: Any, *_: Any) -> Any:
        by_x, by_b = _terms(ctx)
        moved = torch.zeros_like(by_x)
        for part, t in ((by_x, tx), (by_b, tb)):
            if t is not None:
                moved = moved + torch.where(part == 0, 0, part * t)
        return moved.sum(ctx.dims), None


def _vmap(info: Any, in_dims: tuple[Any, ...], x: torch.Tensor, b: torch.Tensor, dims: list[int]) -> Any:
    x, b = (
        t.unsqueeze(0).expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
        for t, d in zip((x, b), in_dims, strict=False)
    )
    return torch.ops.online_softmax.logsumexp_weighted(x, b, [d + 1 for d in dims]), (0, 0)


_WEIGHTED = Op(
    "logsumexp_weighted(Tensor x, Tensor b, int[] dims) -> (Tensor, Tensor)", cpu=_cpu, fake=_fake,
    rule=_Weighted, vmap=_vmap,
)  # fmt: skip

"""The operations behind logaddexp, logcumsumexp and window_logsumexp, and their derivatives.

First gradients are native. All others come from one linear map that is its own derivative: P(a, c, g)[i] =
sum over the window of i of g[j] * exp(a[j] + c[i]). With n = -lse, the tangent of a window's lse is
P(x, n, t), and its gradient is the transpose, P over the windows turned round, of (n, x, dout).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from .. import scans, windows
from . import memory, mode
from .registry import Op, Rule, front

# Kernels: window 0 is a window of everything so far.


def _window_cpu(x: torch.Tensor, window: int, dim: int, reverse: bool) -> torch.Tensor:
    y, given = memory.empty_like(x), memory.array(x)
    out = memory.array(y)
    if window:
        windows.window_logsumexp(given, window, dim, out=out, threads=mode.threads())
    else:
        scans.logcumsumexp(given, dim, reverse=reverse, out=out, threads=mode.threads())
    return y


def _window_gradient_cpu(
    dout: torch.Tensor, x: torch.Tensor, window: int, dim: int, reverse: bool
) -> torch.Tensor:
    g, given = memory.array(dout), memory.array(x)
    if window:
        dx = windows.window_logsumexp_vjp(g, given, window, dim, threads=mode.threads())
    else:
        dx = scans.logcumsumexp_vjp(g, given, dim, reverse=reverse, threads=mode.threads())
    return memory.tensor(np.ascontiguousarray(dx).reshape(given.shape))


def _products_cpu(
    a: torch.Tensor, c: torch.Tensor, g: torch.Tensor, window: int, dim: int, reverse: bool
) -> torch.Tensor:
    shape, dtype = memory.array(a).shape, a.dtype
    rows = [np.moveaxis(np.atleast_1d(memory.array(t)), dim, -1).astype(np.float64) for t in (a, c, g)]
    if not rows[0].size:
        return torch.empty(shape, dtype=dtype)
    if not reverse:
        rows = [row[..., ::-1] for row in rows]
    exponents, scales, terms = rows
    length = exponents.shape[-1]
    entries = exponents, np.where(np.isneginf(exponents), 0, terms)
    with np.errstate(all="ignore"):
        m, s = windows.ahead(entries, min(window or length, length))
        made = np.where(np.isneginf(m) | np.isneginf(scales), 0, np.exp(m + scales) * s)
    made = np.moveaxis(made if reverse else made[..., ::-1], -1, dim)
    return memory.tensor(np.ascontiguousarray(made).reshape(shape)).to(dtype)


def _add_cpu(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    y = torch.empty(a.shape, dtype=a.dtype)
    scans.logaddexp(memory.array(a), memory.array(b), out=memory.array(y), threads=mode.threads())
    return y


def _add_gradient_cpu(
    dout: torch.Tensor, a: torch.Tensor, b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    made = scans.logaddexp_vjp(memory.array(dout), memory.array(a), memory.array(b))
    da, db = (memory.tensor(np.ascontiguousarray(part).reshape(a.shape)) for part in made)
    return da, db


# Shapes


def _like_x(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return torch.empty_like(x, requires_grad=False)


def _contiguous(x: torch.Tensor, *_: Any) -> torch.Tensor:
    return x.new_empty(x.shape)


def _two_contiguous(dout: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> Any:
    return a.new_empty(a.shape), b.new_empty(b.shape)


# Derivatives


def _negated(x: torch.Tensor, window: int, dim: int, reverse: bool) -> torch.Tensor:
    """Minus the windows' lse in double, so made that exp(it) is 0 for empty windows and NaN for those with
    an infinity, whose gradients are."""
    lse = WINDOW(x, window, dim, reverse)
    return torch.where(lse == -torch.inf, -torch.inf, torch.where(lse == torch.inf, torch.nan, -lse))


class _Window(Rule):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        x, *ctx.options = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return WINDOW_GRADIENT(dy, x, *ctx.options), None, None, None

    @staticmethod
    def jvp(ctx: Any, t: torch.Tensor, *_: Any) -> torch.Tensor:
        x = ctx.saved_tensors[0].double()
        return PRODUCTS(x, _negated(x, *ctx.options), t.double(), *ctx.options).to(t.dtype)


class _WindowGradient(Rule):
    """dx = P'(n, x, g), where P' goes over the windows turned round and n = -lse(x)."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        g, x, *ctx.options = inputs
        ctx.save_for_backward(g, x)
        ctx.save_for_forward(g, x)

    @staticmethod
    def backward(ctx: Any, v: torch.Tensor) -> Any:
        narrow_g, narrow_x = ctx.saved_tensors
        g, x, v = narrow_g.double(), narrow_x.double(), v.double()
        q = PRODUCTS(x, _negated(x, *ctx.options), v, *ctx.options)
        dx = v * WINDOW_GRADIENT(g, x, *ctx.options) - WINDOW_GRADIENT(g * q, x, *ctx.options)
        return q.to(narrow_g.dtype), dx.to(narrow_x.dtype), None, None, None

    @staticmethod
    def jvp(ctx: Any, tg: torch.Tensor | None, tx: torch.Tensor | None, *_: Any) -> torch.Tensor:
        narrow_g, narrow_x = ctx.saved_tensors
        g, x = narrow_g.double(), narrow_x.double()
        moved = torch.zeros_like(g) if tg is None else tg.double()
        made = torch.zeros_like(x)
        if tx is not None:
            t = tx.double()
            moved = moved - g * PRODUCTS(x, _negated(x, *ctx.options), t, *ctx.options)
            made = t * WINDOW_GRADIENT(g, x, *ctx.options)
        return (made + WINDOW_GRADIENT(moved, x, *ctx.options)).to(narrow_x.dtype)


class _Products(Rule):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        *tensors, ctx.window, ctx.dim, ctx.reverse = inputs
        ctx.save_for_backward(*tensors)
        ctx.save_for_forward(*tensors)

    @staticmethod
    def backward(ctx: Any, v: torch.Tensor) -> Any:
        a, c, g = ctx.saved_tensors
        turned = PRODUCTS(c, a, v, ctx.window, ctx.dim, not ctx.reverse)
        made = PRODUCTS(a, c, g, ctx.window, ctx.dim, ctx.reverse)
        return g * turned, v * made, turned, None, None, None

    @staticmethod
    def jvp(ctx: Any, ta: Any, tc: Any, tg: Any, *_: Any) -> torch.Tensor:
        a, c, g = ctx.saved_tensors
        options = ctx.window, ctx.dim, ctx.reverse
        moved = torch.zeros_like(g) if tg is None else tg
        made = PRODUCTS(a, c, moved if ta is None else moved + g * ta, *options)
        return made if tc is None else made + tc * PRODUCTS(a, c, g, *options)


def _shares(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The parts of a and b in their sum; 0 where both are -inf, NaN where one is +inf."""
    nothing = (a == -torch.inf) & (b == -torch.inf)
    infinite = (a == torch.inf) | (b == torch.inf)
    d = torch.where(nothing, 0, torch.where(infinite, torch.nan, a - b))
    return torch.where(nothing, 0, d.sigmoid()), torch.where(nothing, 0, (-d).sigmoid())


class _Add(Rule):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, dy: torch.Tensor) -> Any:
        return ADD_GRADIENT(dy, *ctx.saved_tensors)

    @staticmethod
    def jvp(ctx: Any, ta: torch.Tensor | None, tb: torch.Tensor | None) -> torch.Tensor:
        parts = [s * t for s, t in zip(_shares(*ctx.saved_tensors), (ta, tb), strict=True) if t is not None]
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]


class _AddGradient(Rule):
    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, va: torch.Tensor, vb: torch.Tensor) -> Any:
        g, a, b = ctx.saved_tensors
        p, q = _shares(a, b)
        da = g * (va - vb) * p * q
        return va * p + vb * q, da, -da

    @staticmethod
    def jvp(ctx: Any, tg: Any, ta: Any, tb: Any) -> Any:
        g, a, b = ctx.saved_tensors
        p, q = _shares(a, b)
        moved = torch.zeros_like(g) if tg is None else tg
        turn = torch.zeros_like(g)
        for t, sign in ((ta, 1), (tb, -1)):
            if t is not None:
                turn = turn + sign * g * p * q * t
        return moved * p + turn, moved * q - turn


# vmap


def batch(info: Any, along: tuple[Any, ...], tensors: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """Tensors of one shape with the hidden dimension in front, repeated (as a view) where it is missing."""
    found = []
    for t, dim in zip(tensors, along, strict=False):
        moved = front(t, dim)
        found.append(t.unsqueeze(0).expand(info.batch_size, *t.shape) if dim is None else moved)
    return found


def _batched(name: str, count: int) -> Any:
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> Any:
        tensors, options = batch(info, in_dims, args[:count]), args[count:]
        if not options:
            made = getattr(torch.ops.online_softmax, name)(*tensors)
            return made, 0 if count == 2 else (0, 0)
        window, dim, reverse = options
        # A scalar is a row of one element: it needs a dimension beside the hidden one.
        flat = tensors[0].ndim == 1
        shaped = [t.unsqueeze(-1) if flat else t for t in tensors]
        made = getattr(torch.ops.online_softmax, name)(*shaped, window, dim + 1, reverse)
        return made.squeeze(-1) if flat else made, 0

    return vmap


_OPTIONS = ", int window, int dim, bool reverse) -> Tensor"
WINDOW = Op(
    "window_logsumexp(Tensor x" + _OPTIONS, cpu=_window_cpu, fake=_like_x, rule=_Window,
    vmap=_batched("window_logsumexp", 1),
)  # fmt: skip
WINDOW_GRADIENT = Op(
    "window_logsumexp_backward(Tensor dout, Tensor x" + _OPTIONS, cpu=_window_gradient_cpu,
    fake=lambda dout, x, *_: _contiguous(x), rule=_WindowGradient,
    vmap=_batched("window_logsumexp_backward", 2),
)  # fmt: skip
PRODUCTS = Op(
    "window_products(Tensor a, Tensor c, Tensor g" + _OPTIONS, cpu=_products_cpu, fake=_contiguous,
    rule=_Products, vmap=_batched("window_products", 3),
)  # fmt: skip
ADD = Op(
    "logaddexp(Tensor a, Tensor b) -> Tensor", cpu=_add_cpu, fake=_contiguous, rule=_Add,
    vmap=_batched("logaddexp", 2),
)  # fmt: skip
ADD_GRADIENT = Op(
    "logaddexp_backward(Tensor dout, Tensor a, Tensor b) -> (Tensor, Tensor)", cpu=_add_gradient_cpu,
    fake=_two_contiguous, rule=_AddGradient, vmap=_batched("logaddexp_backward", 3),
)  # fmt: skip

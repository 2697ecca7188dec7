"""Attention's arguments, checked and put into the form of the operations."""

from __future__ import annotations

import math
from typing import Any, Final

import torch

from .. import attention_arguments as arrays
from . import checks, mode

#: Formats that k and v may be stored in whatever q's.
STORED: Final = (torch.float8_e4m3fn, torch.float8_e5m2, torch.int8)
_INTEGERS: Final = (torch.int64, torch.int32, torch.int16, torch.uint8, torch.int8)
_LARGEST_SIDE: Final = 1 << 62


def operands(q: Any, k: Any, v: Any) -> bool:
    """Checks what q, k and v are. Returns whether k and v are stored in a format of their own."""
    checks.tensor(q, "q", converted=True)
    for name, t in (("k", k), ("v", v)):
        checks.any_tensor(t, name)
        if t.dtype is not q.dtype and t.dtype not in STORED and not _autocast(q, t):
            shown = str(t.dtype).removeprefix("torch.")
            raise TypeError(
                f"{name} is {shown} and q is {str(q.dtype).removeprefix('torch.')}: one format for all would "
                f"do, or float8_e4m3fn, float8_e5m2 or int8 in k and v"
            )
    if not q.device == k.device == v.device:
        checks.same_device(q=q, k=k, v=v)
    return q.dtype in checks.CONVERTED or (k.dtype is not q.dtype and k.dtype in STORED)


def _autocast(q: torch.Tensor, t: torch.Tensor) -> bool:
    """Whether autocast will bring both to one format."""
    casts = (torch.float32, torch.float16, torch.bfloat16)
    return q.dtype in casts and t.dtype in casts and mode.autocast(q.device.type)


def layout(value: Any) -> bool:
    """Whether heads come after places."""
    if not isinstance(value, str) or value not in arrays.LAYOUTS:
        raise ValueError(f"layout is {value!r}: one of {', '.join(arrays.LAYOUTS)} would do")
    return value == "BSHD"


def four(t: torch.Tensor, name: str, by_place: bool, rank: int) -> torch.Tensor:
    """(batch, heads, length, features), a view."""
    if t.ndim != rank or not 2 <= rank <= 4:
        would = f"{rank} like q" if 2 <= rank <= 4 else "2, 3 or 4"
        raise ValueError(f"{name} has {t.ndim} dimensions: {would} would do")
    if rank == 2:
        return t[None, None]
    if by_place:
        t = t.transpose(-3, -2)
    return t if rank == 4 else t[None]


def packed(t: torch.Tensor, name: str) -> torch.Tensor:
    """(1, heads, all rows, features) of (all rows, heads, features), a view."""
    if t.ndim != 3:
        raise ValueError(
            f"{name} has {t.ndim} dimensions: 3, (total, heads, features), would do with cu_seqlens_q"
        )
    return t.transpose(0, 1)[None]


def mask(value: Any, q: torch.Tensor, shape: tuple[int, ...], rank: int) -> torch.Tensor | None:
    if value is None:
        return None
    t = checks.any_tensor(value, "mask")
    if t.dtype is not torch.bool:
        raise TypeError(f"mask is {t.dtype}: bool would do, True takes part; scores to add go into bias")
    return _fits(t, "mask", q, shape, rank)


def bias(value: Any, q: torch.Tensor, shape: tuple[int, ...], rank: int) -> torch.Tensor | None:
    if value is None:
        return None
    return _fits(checks.tensor(value, "bias"), "bias", q, shape, rank)


def _fits(t: torch.Tensor, name: str, q: torch.Tensor, shape: tuple[int, ...], rank: int) -> torch.Tensor:
    checks.same_device(q=q, **{name: t})
    if t.ndim > rank:
        raise ValueError(f"{name} has {t.ndim} dimensions: up to {rank} would do")
    for n, m in zip(reversed(t.shape), reversed(shape), strict=False):
        if n != m and n != 1:
            would = "(batch, heads, queries, keys), or the last of them, each as long as there or 1, would do"
            raise ValueError(
                f"{name} of shape {tuple(t.shape)} does not broadcast to {tuple(shape[4 - rank :])}: {would}"
            )
    return t


def heads(value: Any, name: str, q: torch.Tensor, shapes: tuple[tuple[int, ...], ...]) -> torch.Tensor | None:
    """A number for each head."""
    if value is None:
        return None
    t = checks.tensor(value, name)
    checks.same_device(q=q, **{name: t})
    if tuple(t.shape) not in shapes:
        would = " or ".join(str(tuple(shape)) for shape in shapes)
        raise ValueError(f"{name} has shape {tuple(t.shape)}: {would} would do")
    return t


def places(value: Any, name: str, shape: tuple[int, ...] | None = None) -> torch.Tensor | None:
    """Integers that say where something lies."""
    if value is None:
        return None
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}: a torch.Tensor of integers would do")
    if value.dtype not in _INTEGERS:
        raise TypeError(f"{name} is {str(value.dtype).removeprefix('torch.')}: integers would do")
    if shape is not None and tuple(value.shape) != shape:
        raise ValueError(f"{name} has shape {tuple(value.shape)}: {shape} would do")
    return value


def numbers(
    scale: Any, causal: Any, causal_align: Any, window: Any, softcap: Any, dropout_p: Any, origin: Any
) -> tuple[float | None, float, int, int, bool, float, list[int] | None]:
    """The numbers of `Rest`, in its order."""
    if scale is not None:
        scale = _number(scale, "scale")
    if softcap is not None and not _number(softcap, "softcap") > 0:
        raise ValueError(f"softcap is {softcap}: a positive number would do, None for no cap")
    if not isinstance(causal_align, str) or causal_align not in arrays.ALIGNMENTS:
        raise ValueError(f"causal_align is {causal_align!r}: one of {', '.join(arrays.ALIGNMENTS)} would do")
    if not isinstance(causal, bool):
        raise TypeError(f"causal={causal!r} is a {type(causal).__name__}: True or False would do")
    lower_right = causal_align == "lower_right"
    if origin is not None:
        origin = list(arrays.origin_of(origin) or ())
        if not lower_right:
            raise ValueError(
                f"causal_align={causal_align!r} and origin both say where queries stand: one would do"
            )
    left, right = (-1, -1) if window is None else _window(window)
    p = _number(dropout_p, "dropout_p")
    if not 0 <= p < 1:
        raise ValueError(f"dropout_p is {dropout_p}: at least 0 and below 1 would do")
    cap = 0.0 if softcap is None else float(softcap)
    return scale, cap, left, 0 if causal else right, lower_right, p, origin


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name} is {value!r}: a number would do")
    if not -math.inf < value < math.inf:  # as a comparison, which torch.compile can trace for any number
        raise ValueError(f"{name} is {value}: a finite number would do")
    return float(value)


def _window(window: Any) -> tuple[int, int]:
    would = "a pair (left, right) of distances would do, None for no limit"
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise TypeError(f"window is {window!r}: {would}")
    for side in window:
        if side is not None and (isinstance(side, bool) or not isinstance(side, int)):
            raise TypeError(f"window is {window!r}: {would}")
        if side is not None and side < 0:
            raise ValueError(f"window is {window!r}: distances are at least 0")
    left, right = (-1 if side is None else min(side, _LARGEST_SIDE) for side in window)
    return left, right


def seed(value: Any, generator: Any, p: float) -> torch.Tensor | None:
    """The seed as a tensor; drawn from PyTorch's generator where none is given. None where nothing is
    dropped."""
    if generator is not None and not isinstance(generator, torch.Generator):
        raise TypeError(f"generator is a {type(generator).__name__}: a torch.Generator would do")
    if value is not None and isinstance(value, torch.Tensor):
        if value.dtype is not torch.int64 or value.numel() != 1:
            raise TypeError(
                f"seed is a tensor of {value.dtype} and shape {tuple(value.shape)}: one int64 would do"
            )
    elif value is not None:
        would = "a whole number from 0 to 2**64 - 1 would do, None to draw one"
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"seed is {value!r}: {would}")
        if not 0 <= value < 1 << 64:
            raise ValueError(f"seed is {value}: {would}")
    if p == 0:
        return None
    if value is None:
        return torch.randint(0, (1 << 63) - 1, (), dtype=torch.int64, generator=generator)
    if isinstance(value, torch.Tensor):
        return value
    return torch.tensor(value - (1 << 64) if value >= 1 << 63 else value, dtype=torch.int64)


def sizes(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, paged: bool = False) -> arrays.Sizes:
    """Sizes that fit together. Raises ValueError."""
    return arrays.sizes_of(q, k, v, paged=paged)


def stored(
    own: tuple[Any, ...], block_table: Any, k_scale: Any, v_scale: Any, batch: int
) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """What goes with keys and values in pools, or stored in 8 bits. Nothing of it has a gradient."""
    for name, t in zip(("q", "k", "v", "bias", "sinks"), own, strict=True):
        checks.without_gradient(
            t, name, "keys and values that are dense and in q's format, or torch.no_grad(),"
        )
    table = places(block_table, "block_table")
    if table is not None and (table.ndim != 2 or table.shape[0] != batch):
        raise ValueError(
            f"block_table has shape {tuple(table.shape)}: ({batch}, blocks of a sequence) would do"
        )
    made: list[torch.Tensor | None] = []
    for name, value in (("k_scale", k_scale), ("v_scale", v_scale)):
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = torch.tensor(float(value), dtype=torch.float64)
        elif value is not None:
            value = checks.tensor(value, name)
            checks.same_device(q=own[0], **{name: value})
            checks.without_gradient(value, name, f"{name}.detach()")
        made.append(value)
    return table, made[0], made[1]

"""Calls of attention of tensors, and the truth beside them: PyTorch's own operations in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

import online_softmax as om
from online_softmax.frontends.torch import memory

#: name -> options, for queries and keys of these sizes.
BATCH, HEADS, GROUPS, QUERIES, KEYS, D, DV = 2, 4, 2, 5, 7, 6, 3


def options() -> dict[str, dict[str, Any]]:
    """Every option, alone and together, with the tensors that go with it."""
    draw = torch.Generator().manual_seed(5)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    mask = torch.rand(BATCH, 1, QUERIES, KEYS, generator=draw) > 0.3
    mask[0, 0, 2] = False
    hidden = normal(QUERIES, KEYS)
    hidden[1, ::2] = -torch.inf
    return {
        "plain": {},
        "scale": {"scale": 0.3},
        "causal": {"causal": True},
        "upper left": {"causal": True, "causal_align": "upper_left"},
        "window": {"window": (2, 1)},
        "softcap": {"softcap": 1.5},
        "mask": {"mask": mask},
        "bias": {"bias": normal(HEADS, QUERIES, KEYS)},
        "bias hides": {"bias": hidden},
        "bias of keys": {"bias": normal(BATCH, 1, 1, KEYS)},
        "sinks": {"sinks": normal(HEADS)},
        "slopes": {"alibi_slopes": normal(HEADS).abs()},
        "lengths": {"seqlens_k": torch.tensor([3, 7]), "causal": True},
        "all": {
            "mask": mask,
            "bias": normal(1, HEADS, 1, KEYS),
            "sinks": normal(HEADS),
            "softcap": 2.0,
            "causal": True,
            "window": (3, None),
            "alibi_slopes": normal(BATCH, HEADS).abs(),
        },
    }


def operands(
    dtype: torch.dtype = torch.float64, *, seed: int = 0, grad: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    shapes = (BATCH, HEADS, QUERIES, D), (BATCH, GROUPS, KEYS, D), (BATCH, GROUPS, KEYS, DV)
    q, k, v = (torch.randn(*s, generator=draw, dtype=torch.float64).to(dtype) for s in shapes)
    return q.requires_grad_(grad), k.requires_grad_(grad), v.requires_grad_(grad)


def truth(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, mask: Any = None, bias: Any = None,
    scale: Any = None, causal: bool = False, causal_align: str = "lower_right", window: Any = None,
    softcap: Any = None, sinks: Any = None, alibi_slopes: Any = None, seqlens_k: Any = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(output, lse) in float64, the scores there in full. Queries that see nothing give 0 and -inf."""
    q, k, v = q.double(), k.double(), v.double()
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    s = q @ k.mT * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    s = s if softcap is None else softcap * torch.tanh(s / softcap)
    s = s if bias is None else s + bias.double()
    keys = torch.full((len(q),), k.shape[2]) if seqlens_k is None else seqlens_k
    place = torch.arange(q.shape[2])[None, :]
    if causal_align == "lower_right":
        place = place + (keys - q.shape[2])[:, None]
    distance = torch.arange(k.shape[2]) - place[:, None, :, None]
    left, right = window or (None, None)
    seen = torch.arange(k.shape[2]) < keys[:, None, None, None]
    seen = seen & (distance <= (0 if causal else right)) if causal or right is not None else seen
    seen = seen & (distance >= -left) if left is not None else seen
    seen = seen if mask is None else seen & mask
    if alibi_slopes is not None:
        s = s - alibi_slopes.double()[..., None, None] * distance.abs()
    s = s.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        s = torch.cat([s, sinks.double()[None, :, None, None].expand(*s.shape[:3], 1)], 3)
    empty = (s == -torch.inf).all(-1, keepdim=True)
    lse = torch.logsumexp(s.masked_fill(empty, 0), -1).masked_fill(empty[..., 0], -torch.inf)
    p = torch.softmax(s.masked_fill(empty, 0), -1).masked_fill(empty, 0)[..., : k.shape[2]]
    return p @ v, lse


def arrays(options: dict[str, Any]) -> dict[str, Any]:
    """The same options for the array face."""
    return {n: memory.array(o) if isinstance(o, torch.Tensor) else o for n, o in options.items()}


def of_arrays(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> Any:
    """What the array face gives: (output, lse)."""
    return om.attention(*(memory.array(t) for t in (q, k, v)), return_lse=True, **arrays(options))


def equal_bits(t: torch.Tensor, a: np.ndarray[Any, Any]) -> bool:
    """NaN of any payload apart."""
    return bool(np.array_equal(memory.array(t).astype(np.float64), a.astype(np.float64), equal_nan=True))


def strided(t: torch.Tensor, way: str) -> torch.Tensor:
    """The same values laid out otherwise."""
    if way == "transposed":
        return t.transpose(1, 2).contiguous().transpose(1, 2)
    if way == "every other":
        return torch.stack([t, t + 1], -1).flatten(-2)[..., ::2]
    if way == "offset":
        return torch.cat([t[:1], t])[1:]
    return t.mT.contiguous().mT

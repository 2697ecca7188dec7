"""Contenders of the families "sample" and "scans"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import online_softmax
from benchmarks.attention_work import TORCH_MISSING, tensor
from benchmarks.contender import Absent, Contender
from benchmarks.data import Array
from benchmarks.losses_cases import (
    JAX,
    NUMPY,
    OURS,
    READ,
    SEGMENT,
    SOFTMAX_MULTINOMIAL,
    TOP_K,
    TOP_P,
    TORCH,
    WINDOW,
    Case,
)
from benchmarks.losses_work import JAX_MISSING, NO_JAX, NO_TORCH, Ceilings, Entry, logits_of, probes, wide
from benchmarks.peers import POOL_SETTLE, TORCH_SETTLE

FILTERED = "top_k, top_p"


def tokens(result: Any) -> Array:
    """Draws of different libraries have nothing in common but what they are."""
    return np.asarray(result).astype(np.int64).ravel()


def sample_entries(case: Case) -> tuple[list[Entry], Ceilings]:
    """One token a row, of the whole vocabulary and of what top-k and top-p leave."""
    x = logits_of(case.shape, case.dtype)
    sample, threads = online_softmax.sample, case.threads

    def read(result: Any) -> Array:
        return tokens(result.tokens)

    entries: list[Entry] = [
        Contender(OURS, lambda: sample(x, threads=threads), read),
        Contender(f"{OURS} {FILTERED}", lambda: sample(x, top_k=TOP_K, top_p=TOP_P, threads=threads), read),
    ]
    if TORCH_MISSING:
        entries += [Absent(name, NO_TORCH) for name in (SOFTMAX_MULTINOMIAL, f"{TORCH} {FILTERED}")]
    else:
        entries += _torch_samples(x)
    entries += [Absent(JAX, NO_JAX)] if JAX_MISSING else [_jax_sample(x)]
    return entries, probes((READ,), x, None, threads)


def _torch_samples(x: Array) -> list[Entry]:
    import torch

    logits = tensor(x)

    def plain() -> Any:
        return torch.multinomial(torch.softmax(logits, dim=-1), 1)

    def filtered() -> Any:
        values, places = torch.topk(logits, TOP_K)  # descending
        p = torch.softmax(values, dim=-1)
        p = torch.where(p.cumsum(dim=-1) - p < TOP_P, p, 0)
        return places.gather(-1, torch.multinomial(p, 1))

    return [
        Contender(SOFTMAX_MULTINOMIAL, plain, tokens, TORCH_SETTLE),
        Contender(f"{TORCH} {FILTERED}", filtered, tokens, TORCH_SETTLE),
    ]


def _jax_sample(x: Array) -> Contender:
    import jax

    draw = jax.jit(lambda key, logits: jax.random.categorical(key, logits, axis=-1))
    key, logits = jax.random.key(0), jax.device_put(x)
    draw(key, logits).block_until_ready()  # compiled before the first call that counts
    return Contender(JAX, lambda: draw(key, logits).block_until_ready(), tokens, POOL_SETTLE)


def scans_entries(case: Case) -> tuple[list[Entry], Ceilings]:
    """A prefix, pairwise, ragged or windowed log-sum-exp by ours, PyTorch, and NumPy where it has it."""
    x = logits_of(case.shape, case.dtype)
    table: dict[str, Callable[[Array, int], tuple[dict[str, Callable[[], Any]], Array | None]]] = {
        "logaddexp": _logaddexp,
        "logcumsumexp": _logcumsumexp,
        "segment_logsumexp": _segments,
        "window_logsumexp": _window,
    }
    calls, out = table[case.kind](x, case.threads)
    entries: list[Entry] = []
    for name, call in calls.items():
        settle = TORCH_SETTLE if name == TORCH else Contender.settle
        entries.append(Contender(name, call, lambda result: wide(result).ravel(), settle))
    if TORCH_MISSING:
        entries.append(Absent(TORCH, NO_TORCH))
    return entries, probes((READ,) if out is None else ("copy", "copy_nt"), x, out, case.threads)


def _logaddexp(x: Array, threads: int) -> tuple[dict[str, Callable[[], Any]], Array | None]:
    a, b = np.ascontiguousarray(x.reshape(2, -1)[0]), np.ascontiguousarray(x.reshape(2, -1)[1])
    calls: dict[str, Callable[[], Any]] = {
        OURS: lambda: online_softmax.logaddexp(a, b, threads=threads),
        NUMPY: lambda: np.logaddexp(a, b),
    }
    if not TORCH_MISSING:
        import torch

        tensors = tensor(a), tensor(b)
        calls[TORCH] = lambda: torch.logaddexp(*tensors)
    return calls, None


def _logcumsumexp(x: Array, threads: int) -> tuple[dict[str, Callable[[], Any]], Array | None]:
    calls: dict[str, Callable[[], Any]] = {
        OURS: lambda: online_softmax.logcumsumexp(x, threads=threads),
        NUMPY: lambda: np.logaddexp.accumulate(x, axis=-1),
    }
    if not TORCH_MISSING:
        import torch

        rows = tensor(x)
        calls[TORCH] = lambda: torch.logcumsumexp(rows, dim=-1)
    return calls, np.zeros_like(x)


def _segments(x: Array, threads: int) -> tuple[dict[str, Callable[[], Any]], Array | None]:
    """Segments of uneven lengths, none of them empty: NumPy knows no empty ones."""
    count = max(1, x.size // SEGMENT)
    cuts = np.random.default_rng(1).choice(np.arange(1, x.size), count - 1, replace=False)
    offsets = np.concatenate([[0], np.sort(cuts), [x.size]]).astype(np.int64)
    starts = offsets[:-1]
    calls: dict[str, Callable[[], Any]] = {
        OURS: lambda: online_softmax.segment_logsumexp(x, offsets=offsets, threads=threads),
        NUMPY: lambda: np.logaddexp.reduceat(x, starts),
    }
    if not TORCH_MISSING:
        import torch

        values = tensor(x)
        ids = torch.from_numpy(np.repeat(np.arange(count), np.diff(offsets)))

        def scatter() -> Any:
            top = torch.full((count,), -torch.inf).scatter_reduce(0, ids, values, "amax")
            total = torch.zeros(count).index_add(0, ids, (values - top[ids]).exp())
            return top + total.log()

        calls[TORCH] = scatter
    return calls, None


def _window(x: Array, threads: int) -> tuple[dict[str, Callable[[], Any]], Array | None]:
    """Whole windows alone, which are all that `unfold` makes."""
    whole = slice(WINDOW - 1, None)
    calls: dict[str, Callable[[], Any]] = {
        OURS: lambda: online_softmax.window_logsumexp(x, WINDOW, threads=threads)[..., whole]
    }
    if not TORCH_MISSING:
        import torch

        rows = tensor(x)
        calls[TORCH] = lambda: torch.logsumexp(rows.unfold(-1, WINDOW, 1), dim=-1)
    return calls, np.zeros_like(x)

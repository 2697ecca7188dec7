"""Contenders of the family "linear": a language model's head, its loss, and the gradients of both operands.

A product of 2048 tokens, 2048 features and 50257 classes takes seconds: `sized` takes fewer tokens where this
machine is slow, by a short product timed beforehand.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

import online_softmax
from benchmarks.attention_work import TORCH_MISSING, tensor
from benchmarks.contender import Absent, Contender
from benchmarks.data import DTYPES, Array
from benchmarks.losses_cases import CHUNKED, LINEAR, OURS, PRODUCTS, TOKENS, Case, fewer_tokens
from benchmarks.losses_work import NO_TORCH, Ceilings, Entry, targets_of, wide
from benchmarks.peers import TORCH_SETTLE

#: Seconds that the contenders of a case may take together, one call each.
SECONDS = 80.0
COMPARED = 8


def operands(tokens: int, features: int, classes: int, dtype: str) -> tuple[Array, Array, Array]:
    """hidden, weight and targets: logits with a standard deviation of 4."""
    rng = np.random.default_rng(0)
    hidden = rng.standard_normal((tokens, features), np.float32)
    weight = rng.standard_normal((classes, features), np.float32)
    weight *= np.float32(4 / np.sqrt(features))
    kind = DTYPES[dtype]
    return hidden.astype(kind, copy=False), weight.astype(kind, copy=False), targets_of(tokens, classes)


def sized(case: Case) -> Case:
    """The case with as many tokens as fit SECONDS on this machine, by a trial with the fewest of TOKENS.

    The trial is that of the slowest contender that takes part; the others are taken to be as slow. Calls of
    few tokens have the cost of a weight's gradient whatever the tokens are, so the estimate is a high one.
    """
    tokens, features, classes = case.shape
    trial = fewer_tokens(case, TOKENS[-1])
    # A part of the classes, so that the trial itself is short.
    part = max(1, classes // 16)
    arrays = operands(trial.shape[0], features, part, case.dtype)
    seconds = 0.0
    for entry in _entries(arrays, case.threads):
        if isinstance(entry, Contender):
            entry.call()
            start = time.perf_counter()
            entry.call()
            seconds += time.perf_counter() - start
    each = seconds * classes / part / trial.shape[0]
    fitting = [n for n in (tokens, *TOKENS) if n <= tokens and n * each <= SECONDS]
    return fewer_tokens(case, fitting[0] if fitting else TOKENS[-1])


def gradients(result: Any) -> Array:
    """The loss and some rows of both gradients, each over its norm: they weigh alike."""
    parts = []
    for a in result:
        rows = wide(a)[None] if a.ndim == 0 else wide(a[:: max(1, a.shape[0] // COMPARED)])
        parts.append((rows / max(float(np.linalg.norm(rows)), 1e-30)).ravel() if rows.ndim > 1 else rows)
    return np.concatenate(parts)


def linear_entries(case: Case) -> tuple[list[Entry], Ceilings]:
    """Ours with the default budget, both ways of PyTorch, and the products alone."""
    tokens, features, classes = case.shape
    return _entries(operands(tokens, features, classes, case.dtype), case.threads), {}


def _entries(arrays: tuple[Array, Array, Array], threads: int) -> list[Entry]:
    hidden, weight, t = arrays

    def ours() -> Any:
        loss, made = online_softmax.linear_cross_entropy_with_gradient(hidden, weight, t, threads=threads)
        return np.asarray(loss), made.hidden, made.weight

    entries: list[Entry] = [Contender(OURS, ours, gradients)]
    if TORCH_MISSING:
        return [*entries, *(Absent(name, NO_TORCH) for name in (LINEAR, CHUNKED, PRODUCTS))]
    import torch

    functional = torch.nn.functional
    leaves, targets = [tensor(a).requires_grad_() for a in (hidden, weight)], torch.from_numpy(t)

    def call(loss: Callable[[], Any]) -> Callable[[], Any]:
        def all_() -> Any:
            value = loss()
            return value.detach(), *torch.autograd.grad(value, leaves)

        return all_

    reference = call(lambda: functional.cross_entropy(functional.linear(*leaves), targets))
    entries.append(Contender(LINEAR, reference, gradients, TORCH_SETTLE))
    if hasattr(functional, "linear_cross_entropy"):
        chunks = torch.nn.LinearCrossEntropyOptions()
        chunked = call(lambda: functional.linear_cross_entropy(*leaves, targets, options=chunks))
        entries.append(Contender(CHUNKED, chunked, gradients, TORCH_SETTLE))
    else:
        entries.append(Absent(CHUNKED, f"torch {torch.__version__} has no linear_cross_entropy"))
    return [*entries, _products(*(leaf.detach() for leaf in leaves))]


def _products(hidden: Any, weight: Any) -> Contender:
    """hidden W^T, G W and G^T hidden by torch.mm into kept memory; G is what the first left."""
    import torch

    logits = torch.empty(hidden.shape[0], weight.shape[0], dtype=hidden.dtype)
    made = [torch.empty_like(hidden), torch.empty_like(weight)]

    def call() -> Any:
        torch.mm(hidden, weight.T, out=logits)
        torch.mm(logits, weight, out=made[0])
        torch.mm(logits.T, hidden, out=made[1])
        return made

    return Contender(PRODUCTS, call, lambda result: wide(result[0][:1]).ravel(), TORCH_SETTLE)

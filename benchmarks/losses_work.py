"""Contenders of the families "loss" and "options": cross-entropy and its gradient, on the same logits."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import online_softmax
from benchmarks import THREADS
from benchmarks.attention_work import TORCH_MISSING, tensor
from benchmarks.contender import Absent, Contender
from benchmarks.data import DTYPES, Array, like
from benchmarks.losses_cases import (
    COMPILED,
    COMPILED_ROWS,
    COPIES,
    JAX,
    OPTIONS,
    OURS,
    OURS_FORWARD,
    OURS_IN_PLACE,
    OURS_OUT,
    READ,
    SMOOTHING,
    SPREAD,
    TORCH,
    TORCH_FORWARD,
    Z_LOSS,
    Case,
)
from benchmarks.ours import LINE
from benchmarks.peers import POOL_SETTLE, TORCH_SETTLE
from online_softmax import _core

Entry = Contender | Absent
Ceilings = dict[str, Callable[[], float]]

NO_TORCH, NO_JAX = "torch not installed", "jax not installed"
JAX_MISSING = importlib.util.find_spec("jax") is None
#: Rows whose gradients are compared, and how long a tiny loss may take to compile.
COMPARED, COMPILE_SECONDS = 16, 180
#: Compiled in a process of its own first, since a compiler that hangs cannot be stopped from within.
COMPILE = """
import torch
loss = torch.compile(lambda x, t: torch.nn.functional.cross_entropy(x, t))
x = torch.zeros(8, 64, requires_grad=True)
torch.autograd.grad(loss(x, torch.zeros(8, dtype=torch.long)), x)
"""

_base: dict[tuple[int, ...], Array] = {}


def logits_of(shape: tuple[int, ...], dtype: str) -> Array:
    """Normal numbers, the same for every format but for rounding to it; one shape is kept."""
    if shape not in _base:
        _base.clear()
        made = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        _base[shape] = np.multiply(made, np.float32(SPREAD), out=made)
    return _base[shape].astype(DTYPES[dtype], copy=False)


def forget() -> None:
    """Let go of the logits that are kept."""
    _base.clear()


def targets_of(rows: int, classes: int) -> Array:
    return np.random.default_rng(1).integers(0, classes, rows)


def probes(kinds: tuple[str, ...], x: Array, out: Array | None, threads: int) -> Ceilings:
    """One pass over memory of x's size for each kind: a call that returns its seconds. Keeps the arrays."""
    # Non-temporal stores need whole lines: the same memory but for at most two of them.
    source = -(-x.ctypes.data // LINE) * LINE
    target = 0 if out is None else -(-out.ctypes.data // LINE) * LINE
    nbytes = (x.nbytes - LINE) // LINE * LINE

    def probe(kind: str) -> Callable[[], float]:
        into = 0 if kind == READ else target

        def seconds(held: tuple[Array, Array | None] = (x, out)) -> float:
            return float(_core.probe(kind, source, into, nbytes, threads))

        return seconds

    return {kind: probe(kind) for kind in kinds}


def wide(a: Any) -> Array:
    """An array or tensor of any of the libraries, as float32."""
    if hasattr(a, "detach"):
        a = a.detach().float().numpy()
    return np.asarray(a, np.float32)


def sampled(result: Any) -> Array:
    """The loss, and some rows of the gradient times the number of rows: loss and gradient weigh alike."""
    loss, gradient = result[0], result[1]
    rows = gradient.shape[0]
    picked = gradient[:: max(1, rows // COMPARED)]
    value = loss.loss if hasattr(loss, "loss") else loss
    return np.concatenate([wide(value).ravel(), rows * wide(picked).ravel()])


def of_loss(result: Any) -> Array:
    return wide(result).ravel()


# --- loss ---------------------------------------------------------------------------------------------------


def loss_entries(case: Case, quick: bool) -> tuple[list[Entry], Ceilings]:
    """Loss and gradient by everybody, and the loss alone by ours and PyTorch."""
    x, out = _operands(case)
    t = targets_of(*case.shape)
    options: dict[str, Any] = {"threads": case.threads}
    fused = online_softmax.cross_entropy_with_gradient
    entries: list[Entry] = [
        Contender(OURS, lambda: fused(x, t, **options), sampled),
        Contender(OURS_OUT, lambda: fused(x, t, out=out, **options), sampled),
        # The logits are put back before every call, into the memory of the kept gradient.
        Contender(
            OURS_IN_PLACE,
            lambda: fused(out, t, out=out, **options),
            sampled,
            prepare=lambda: np.copyto(out, x),
        ),
        Contender(OURS_FORWARD, lambda: online_softmax.cross_entropy(x, t, **options), of_loss),
    ]
    entries += _torch_entries(x, t, quick)
    entries += [Absent(JAX, NO_JAX)] if JAX_MISSING else [_jax(x, t)]
    return entries, probes((*COPIES, READ), x, out, case.threads)


def _operands(case: Case) -> tuple[Array, Array]:
    x = logits_of(case.shape, case.dtype)
    return x, like(x)


def _torch_entries(x: Array, t: Array, quick: bool) -> list[Entry]:
    if TORCH_MISSING:
        return [Absent(name, NO_TORCH) for name in (TORCH, TORCH_FORWARD, COMPILED)]
    import torch

    function = torch.nn.functional.cross_entropy
    leaf, targets = tensor(x).requires_grad_(), torch.from_numpy(t)
    fixed = leaf.detach()

    def call(loss: Callable[..., Any]) -> Callable[[], Any]:
        def both() -> Any:
            value = loss(leaf, targets)
            return value.detach(), torch.autograd.grad(value, leaf)[0]

        return both

    entries: list[Entry] = [
        Contender(TORCH, call(function), sampled, TORCH_SETTLE),
        Contender(TORCH_FORWARD, lambda: function(fixed, targets), of_loss, TORCH_SETTLE),
    ]
    if quick or x.shape[0] != COMPILED_ROWS:
        trouble: str | None = "not tried with --quick" if quick else f"left out but at {COMPILED_ROWS} rows"
    else:
        trouble = _compile_trouble()
    if trouble is not None:
        return [*entries, Absent(COMPILED, trouble)]
    compiled = call(torch.compile(lambda a, b: function(a, b)))
    compiled()  # what a first call takes to compile counts nothing
    return [*entries, Contender(COMPILED, compiled, sampled, TORCH_SETTLE)]


@functools.cache
def _compile_trouble() -> str | None:
    """Why torch.compile cannot take part on this machine; None where it can."""
    try:
        command = [sys.executable, "-c", COMPILE]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"a tiny loss takes more than {COMPILE_SECONDS} s to compile"
    if done.returncode == 0:
        return None
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return f"does not compile here: {lines[-1] if lines else done.returncode}"


def _jax(x: Array, t: Array) -> Contender:
    import jax
    import jax.numpy as jnp

    def mean(logits: Any, targets: Any) -> Any:
        chosen = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - chosen)

    both = jax.jit(jax.value_and_grad(mean))
    logits, targets = jax.device_put(x), jax.device_put(t.astype(np.int32))
    jax.block_until_ready(both(logits, targets))  # compiled before the first call that counts
    return Contender(JAX, lambda: jax.block_until_ready(both(logits, targets)), sampled, POOL_SETTLE)


# --- options ------------------------------------------------------------------------------------------------


def options_entries(case: Case) -> tuple[list[Entry], Ceilings]:
    """Loss and gradient, plain and with each of OPTIONS; ours into a kept array."""
    x, out = _operands(case)
    rows, classes = case.shape
    t = targets_of(rows, classes)
    weight = np.random.default_rng(2).uniform(0.5, 1.5, classes).astype(np.float32)
    table: dict[str, dict[str, Any]] = {
        "": {},
        "label_smoothing": {"label_smoothing": SMOOTHING},
        "weight": {"weight": weight},
        "z_loss": {"z_loss": Z_LOSS},
        "entropy": {"riders": ("entropy",)},
    }
    assert set(table) == {"", *OPTIONS}
    entries: list[Entry] = [
        Contender(f"{OURS} {name}".strip(), _ours_call(x, t, out, options, case.threads), sampled)
        for name, options in table.items()
    ]
    if TORCH_MISSING:
        entries += [Absent(f"{TORCH} {name}".strip(), NO_TORCH) for name in table]
    else:
        calls = _torch_calls(x, t, weight)
        assert set(calls) == set(table)
        entries += [
            Contender(f"{TORCH} {name}".strip(), call, sampled, TORCH_SETTLE) for name, call in calls.items()
        ]
    return entries, probes(COPIES, x, out, case.threads)


def _ours_call(
    x: Array, t: Array, out: Array, options: dict[str, Any], threads: int = THREADS
) -> Callable[[], Any]:
    fused = online_softmax.cross_entropy_with_gradient
    return lambda: fused(x, t, out=out, threads=threads, **options)


def _torch_calls(x: Array, t: Array, weight: Array) -> dict[str, Callable[[], Any]]:
    """The same in PyTorch, as its users write it."""
    import torch

    functional = torch.nn.functional
    leaf, targets = tensor(x).requires_grad_(), torch.from_numpy(t)
    weights = torch.from_numpy(weight).to(leaf.dtype)

    def with_z(a: Any) -> Any:
        return functional.cross_entropy(a, targets) + Z_LOSS * torch.logsumexp(a, dim=-1).square().mean()

    def with_entropy() -> Any:
        log_p = torch.log_softmax(leaf, dim=-1)
        loss = functional.nll_loss(log_p, targets)
        with torch.no_grad():
            entropy = -(log_p.exp() * log_p).sum(dim=-1)
        return loss.detach(), torch.autograd.grad(loss, leaf)[0], entropy

    def call(loss: Callable[[Any], Any]) -> Callable[[], Any]:
        def both() -> Any:
            value = loss(leaf)
            return value.detach(), torch.autograd.grad(value, leaf)[0]

        return both

    return {
        "": call(lambda a: functional.cross_entropy(a, targets)),
        "label_smoothing": call(lambda a: functional.cross_entropy(a, targets, label_smoothing=SMOOTHING)),
        "weight": call(lambda a: functional.cross_entropy(a, targets, weight=weights)),
        "z_loss": call(with_z),
        "entropy": with_entropy,
    }

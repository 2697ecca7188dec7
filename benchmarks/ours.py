"""Our contenders and the ceilings of this machine, measured in the same rounds as the peers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import online_softmax
from benchmarks import THREADS
from benchmarks.cases import OURS_FAST, OURS_FRESH, OURS_OUT, Workload
from benchmarks.contender import Contender
from benchmarks.data import Array
from online_softmax import _core

# The ceilings behind each kind: the best of them is what a workload is measured against.
CEILINGS = {"copy": ("copy", "copy_nt"), "read": ("read",)}
LINE = 64  # bytes of a cache line


def ours(workload: Workload, x: Array, out: Array | None) -> list[Contender]:
    """A fresh result, a caller's `out=`, and `precision="fast"` where the workload has a goal for it."""
    function: Callable[..., Any] = getattr(online_softmax, workload.op)
    axis = workload.axis
    entries = [Contender(OURS_FRESH, lambda: function(x, axis=axis, threads=THREADS), np.asarray)]
    if out is not None:
        entries.append(
            Contender(OURS_OUT, lambda: function(x, axis=axis, out=out, threads=THREADS), np.asarray)
        )
        if any(goal.subject == OURS_FAST for goal in workload.goals):
            entries.append(
                Contender(
                    OURS_FAST,
                    lambda: function(x, axis=axis, out=out, precision="fast", threads=THREADS),
                    np.asarray,
                )
            )
    return entries


def ceilings(workload: Workload, x: Array, out: Array | None) -> dict[str, Callable[[], float]]:
    """One pass over memory of the workload's own size: name to a call that returns its seconds.

    A reduction reads x alone. Anything else reads as many bytes as x has and writes as many to `out`.
    """
    # Non-temporal stores need whole lines: the same memory but for at most two of them.
    source = -(-x.ctypes.data // LINE) * LINE
    target = 0 if out is None else -(-out.ctypes.data // LINE) * LINE
    nbytes = (x.nbytes - LINE) // LINE * LINE

    def probe(kind: str) -> Callable[[], float]:
        return lambda: float(_core.probe(kind, source, target, nbytes, THREADS))

    return {kind: probe(kind) for kind in CEILINGS[workload.ceiling]}

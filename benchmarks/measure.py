"""Interleaved rounds: all contenders in each, in a new order, so that no state of the machine favours one."""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.contender import Contender

MAX_ROUNDS = 101
MIN_ROUNDS = 3
ONCE = 3.0  # seconds: a call slower than this is timed once, and the result says so


@dataclass(frozen=True)
class Timing:
    """Seconds a call: median and least over `rounds` rounds."""

    median: float
    least: float
    rounds: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Timing:
        return cls(statistics.median(samples), min(samples), len(samples))


def seconds(contender: Contender) -> float:
    """One call, the release of a fresh result included: who allocates pays for it."""
    if contender.prepare is not None:
        contender.prepare()
    start = time.perf_counter()
    contender.call()
    return time.perf_counter() - start


def settle(length: float) -> None:
    """Keep this core busy for `length` seconds while the worker threads of the last call stop spinning.

    Not a sleep: after one, the kernel now and then wakes a library's worker on the core of the caller that
    spins for it, and a call of 0.1 ms takes 8.
    """
    end = time.perf_counter() + length
    while time.perf_counter() < end:
        pass


def plan(first: Sequence[float], budget: float) -> list[int]:
    """Rounds for each contender: equal shares of `budget` seconds, within the limits above."""
    share = budget / len(first)
    return [
        1 if each > ONCE else max(MIN_ROUNDS, min(MAX_ROUNDS, int(share / max(each, 1e-9)))) for each in first
    ]


def interleave(
    contenders: Sequence[Contender],
    ceilings: dict[str, Callable[[], float]],
    budget: float,
    seed: int = 0,
) -> dict[str, Timing]:
    """Time contenders and ceilings in the same rounds; about `budget` seconds, more where a call is slow.

    Contenders are expected to have run once already (compiled, caches and pools filled). A contender with
    fewer rounds than the rest takes part in evenly spread ones.
    """
    calls: dict[str, tuple[Callable[[], float], float]] = {
        c.name: ((lambda c=c: seconds(c)), c.settle) for c in contenders
    }
    calls |= {name: (call, 0.001) for name, call in ceilings.items()}
    names = list(calls)
    if not names:
        return {}
    samples: dict[str, list[float]] = {name: [calls[name][0]()] for name in names}
    wanted = dict(zip(names, plan([samples[name][0] for name in names], budget), strict=True))
    rounds, order = max(wanted.values()), random.Random(seed)
    enabled = gc.isenabled()
    gc.disable()
    try:
        for i in range(rounds):
            takes_part = [n for n in names if (i + 1) * wanted[n] // rounds > i * wanted[n] // rounds]
            order.shuffle(takes_part)
            for name in takes_part:
                if wanted[name] == 1:
                    continue
                call, pause = calls[name]
                samples[name].append(call())
                settle(pause)
    finally:
        if enabled:
            gc.enable()
    # The first call only planned the rounds, except where it is the only one.
    return {name: Timing.of(all_[1:] or all_) for name, all_ in samples.items()}


def warm(contender: Contender) -> Any:
    """The first call of a contender, with its result."""
    if contender.prepare is not None:
        contender.prepare()
    return contender.result(contender.call())

"""What is timed: a call that can be repeated, and how to read its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.data import Array


@dataclass(frozen=True)
class Contender:
    """`call` does the work once; `result` turns what it returned into an array of the workload's dtype.

    `settle`: seconds to wait after a call before another contender starts, because the worker threads of its
    library keep spinning on their core for about that long. `prepare`: what has to be done before each call
    and is not timed.
    """

    name: str
    call: Callable[[], Any]
    result: Callable[[Any], Array]
    settle: float = 0.001
    prepare: Callable[[], None] | None = None


@dataclass(frozen=True)
class Absent:
    """A contender that cannot take part, and why."""

    name: str
    reason: str

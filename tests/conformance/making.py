"""Cases made in a line, for tests."""

from __future__ import annotations

from typing import Any

from online_softmax.conformance.cases import CALLS, Case

NAN, INF = float("nan"), float("inf")


def make(law: str = "value", **fields: Any) -> Case:
    """A case of softmax on x = [[0, 1, 2], [3, 4, 5]], but for the fields given."""
    given: dict[str, Any] = {
        "id": f"softmax/{law}",
        "op": "softmax",
        "dtype": "float32",
        "verdict": "must",
        "reason": "Because.",
        "tags": ("size",),
        "sources": ("B001",),
        "inputs": {"x": {"values": [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]}},
        "options": {},
        "sweep": {},
        "expected": {},
        "calls": CALLS.get(law, 1),
        "origin": "making.py",
    }
    return Case(law=law, **(given | fields))


def sweep(*lengths: int, **fields: Any) -> Case:
    """A case with rows of these lengths."""
    inputs = {"x": {"normal": [2, "n"], "seed": 1, "scale": 3.0}}
    return make(id="softmax/lengths", inputs=inputs, sweep={"n": lengths}, **fields)


def values(*rows: Any, **fields: Any) -> Case:
    """A case on x as written."""
    return make(inputs={"x": {"values": list(rows)}}, **fields)

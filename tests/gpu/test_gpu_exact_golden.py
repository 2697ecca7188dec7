"""The Triton kernels make the bits of tests/golden/: in their interpreter, in one push and in parts."""

# ruff: noqa: E402  # what is imported last needs the two libraries
from __future__ import annotations

import exact_golden
import exact_rows
import numpy as np
import pytest

pytest.importorskip("triton", reason="triton is not installed: pip install 'online-softmax[triton]'")
torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'online-softmax[torch]'")

from exact_golden import Results
from gpu_helpers import to_numpy, to_torch

from online_softmax.exact import FLOAT32
from online_softmax.gpu import any_order, ops

FAMILIES = [
    (dtype, family)
    for dtype in ("float32", "float16", "bfloat16")
    for family in exact_golden.golden(FLOAT32)[dtype]
]


def by_states(rows: np.ndarray) -> Results:
    """The states of three parts, merged, and what they say of the row."""
    x = to_torch(rows)
    third = rows.shape[1] // 3
    parts = [any_order.state(part.contiguous()) for part in (x[:, third:], x[:, :third], x[:, :0])]
    states = any_order.States(*(torch.stack(fields) for fields in zip(*parts, strict=True)))
    merged = any_order.merge_many(states)
    y, log_y = (any_order.normalize(x, merged, log=log) for log in (False, True))
    return Results(*map(to_numpy, (merged.m, merged.a, any_order.lse(merged), y, log_y)))


def by_functions(rows: np.ndarray) -> Results:
    """The functions on tensors."""
    x = to_torch(rows)
    state = any_order.state(x)
    made = (f(x, order="any") for f in (ops.softmax, ops.log_softmax))
    return Results(*map(to_numpy, (*state, ops.logsumexp(x, order="any"), *made)))


@pytest.mark.parametrize("path", [by_states, by_functions])
@pytest.mark.parametrize(("dtype", "family"), FAMILIES)
def test_triton_makes_the_bits_of_the_golden_file(path: exact_golden.Path_, dtype: str, family: str) -> None:
    kind = exact_rows.DTYPES[dtype]
    rows = exact_golden.families(kind)[family]
    assert exact_golden.digest(path(rows), FLOAT32, kind) == exact_golden.golden(FLOAT32)[dtype][family]

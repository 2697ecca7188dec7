"""What proofs/Traffic*.v count is what the model counts, and machines as in TrafficBound.v obey its bound."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Hashable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from online_softmax.reference import rows as reference
from online_softmax.traffic import model
from online_softmax.traffic.shapes import Attention, Rows, statistic

PROOFS = Path(__file__).resolve().parents[1] / "proofs"


def times(text: str) -> int:
    """How often C of a count: "2 * C", "C" or "0"."""
    found = re.fullmatch(r"(?:(\d+) \* )?C|0", text)
    assert found is not None, text
    return 0 if text == "0" else int(found[1] or 1)


COSTS = {
    name: (times(reads), times(writes))
    for name, reads, writes in re.findall(
        r"Theorem (\w+)_costs : cost \w+ = \(([^,]+), ([^)]+)\)%nat\.",
        (PROOFS / "Traffic.v").read_text(encoding="utf-8"),
    )
}


def test_all_algorithms_are_counted() -> None:
    assert COSTS.keys() == {*model.algorithms("softmax"), "logsumexp"}


@pytest.mark.parametrize("name", COSTS)
def test_the_counts_are_the_models(name: str) -> None:
    operation, algorithm = ("logsumexp", "online") if name == "logsumexp" else ("softmax", name)
    rows, columns, b = 7, 1000, 2
    got = model.count(operation, algorithm, Rows(rows, columns, b))
    reads, writes = COSTS[name]
    assert (got.reads, got.writes) == (reads, writes)
    lse = rows * statistic(b) if name == "logsumexp" else 0  # a number a row, which the proof does not count
    assert got.total - lse == (reads + writes) * rows * columns * b


# ---- attention


def attention_numbers(n: int, m: int, d: int, block_q: int, block_k: int) -> dict[str, tuple[int, int]]:
    """Numbers loaded and stored, as the theorems of TrafficAttention.v have them."""
    over_q, over_k = -(-n // block_q), -(-m // block_k)
    return {
        "flash": (n * d + over_q * 2 * m * d, n * d + n),
        "standard": (2 * n * m + over_k * n * d + over_q * 2 * m * d, 2 * n * m + n * d),
    }


@pytest.mark.parametrize("sizes", [(13, 9, 4, 5, 2), (8, 8, 3, 4, 8), (1, 17, 2, 16, 3), (6, 5, 1, 7, 9)])
def test_attention_counts_are_the_models(sizes: tuple[int, int, int, int, int]) -> None:
    text = (PROOFS / "TrafficAttention.v").read_text(encoding="utf-8")
    for statement in (
        "loaded flash = N * d + tiles N B_q * (2 * (M * d)).",
        "stored flash = N * d + N.",
        "loaded standard = 2 * (N * M) + tiles M B_k * (N * d) + tiles N B_q * (2 * (M * d)).",
        "stored standard = 2 * (N * M) + N * d.",
    ):
        assert statement in text
    n, m, d, block_q, block_k = sizes
    shape = Attention(1, 1, 1, n, m, d, 4, block_q=block_q, block_k=block_k)
    for algorithm, (loaded, stored) in attention_numbers(*sizes).items():
        got = model.count("attention", algorithm, shape)
        assert (got.read, got.written) == (4 * loaded, 4 * stored)  # statistics of float32 have 4 bytes too


# ---- machines: a state says what it does, and with a value read what comes next; "go" only changes the state

State = Hashable
Act = Callable[[Any], tuple[Any, ...]]
WEIGHTS = (1, 2, 3)  # exp of what an element may be; whole numbers, so that a machine's sums are exact


def online(columns: int) -> tuple[Act, State]:
    """("sum", place, s) over the row, then ("out", place, s) over it again."""

    def act(state: Any) -> tuple[Any, ...]:
        phase, place, s, *value = state
        if place == columns:
            return ("halt",) if phase == "out" else ("go", ("out", 0, s))
        if value:
            return "write", place, Fraction(value[0], s), ("out", place + 1, s)
        if phase == "sum":
            return "read", place, lambda v: ("sum", place + 1, s + v)
        return "read", place, lambda v: ("out", place, s, v)

    return act, ("sum", 0, 0)


def cached(columns: int) -> tuple[Act, State]:
    """The row itself is the state; then with the number of outputs written."""

    def act(state: Any) -> tuple[Any, ...]:
        row, done = state
        if len(row) < columns:
            return "read", len(row), lambda v: ((*row, v), 0)
        if done == columns:
            return ("halt",)
        return "write", done, Fraction(row[done], sum(row)), (row, done + 1)

    return act, ((), 0)


def run(machine: tuple[Act, State], row: tuple[int, ...]) -> Iterator[tuple[State, tuple[Any, ...]]]:
    """Each state with what happens in it, until the machine halts."""
    act, state = machine
    while (step := act(state))[0] != "halt":
        yield state, step
        state = step[2](row[step[1]]) if step[0] == "read" else step[-1]
    yield state, step


@pytest.mark.parametrize(("make", "columns", "passes"), [(online, 8, 2), (cached, 5, 1)])
def test_machines_obey_the_bound(make: Callable[[int], tuple[Act, State]], columns: int, passes: int) -> None:
    machine, states = make(columns), set()
    most = 0
    for row in itertools.product(WEIGHTS, repeat=columns):
        reads: list[int] = []
        outputs: dict[int, Fraction] = {}
        for state, step in run(machine, row):
            states.add(state)
            if step[0] == "read":
                reads.append(step[1])
            elif step[0] == "write":
                assert set(reads) == set(range(columns))  # nothing_is_written_before_all_is_read
                outputs[step[1]] = step[2]
        assert outputs == {i: Fraction(w, sum(row)) for i, w in enumerate(row)}
        assert len(reads) == passes * columns
        most = max(most, len(reads))
    # The elements' worth of states, the least k with v**k of them.
    k = next(k for k in itertools.count() if len(states) <= len(WEIGHTS) ** k)
    assert most >= max(2 * columns - 1 - k, columns)
    if make is online:
        assert k < columns - 1  # less than a row: the bound asks for more than one pass
        assert 2 * columns - 1 - k > columns
    else:
        assert k >= columns - 1  # it holds a row


def test_every_output_depends_on_every_element_and_rows_that_begin_alike_differ() -> None:
    """softmax_depends and softmax_separates, on the outputs of the definition."""
    columns, values = 4, (-1.0, 0.0, 2.5)
    table = {x: reference.softmax(np.array(x)) for x in itertools.product(values, repeat=columns)}
    for x, y in table.items():
        for j, v in itertools.product(range(columns), values):
            if v != x[j]:
                assert (table[*x[:j], v, *x[j + 1 :]] != y).all()
    for first in values:
        outputs = {tuple(y.tolist()) for x, y in table.items() if x[0] == first}
        assert len(outputs) == len(values) ** (columns - 1)
    shifted = reference.softmax(np.array([0.0, 1.0]) + 1)
    assert math.isclose(shifted[0], reference.softmax(np.array([0.0, 1.0]))[0])

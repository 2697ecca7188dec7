"""Bytes and flops of operations on rows: softmax and its kin, their backward passes, cross-entropy.

The model: data of R rows by C columns, T = R * C * itemsize bytes, is too large to stay in a cache between
two passes, so that each pass moves all of it once; `cached` keeps the one row it works on. What a smaller
working set saves is no matter of this file (`cache.py`). A cache that allocates on write reads each line
before it is overwritten: ordinary stores of a CPU do, non-temporal ones and GPUs' do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Final

from ..ops import OPERATIONS, Passes, Results
from .count import Operand, Traffic, ceil_div
from .shapes import INDEX, Chunks, Rows, statistic

RowFormula = Callable[[Rows], Traffic]
ChunkFormula = Callable[[Chunks], Traffic]


def _forward(operation: str, algorithm: str, passes: Passes, results: Callable[[int], Results]) -> RowFormula:
    """From the table of operations: passes over the data, and what is written for each row besides."""

    def formula(shape: Rows) -> Traffic:
        rows, elements, b = shape.rows, shape.rows * shape.columns, shape.itemsize
        data, per_row = elements * b, results(shape.k)
        operands = [Operand("x", data, read=passes.reads * data)]
        if passes.writes:
            operands.append(Operand("out", data, written=passes.writes * data))
        for name, count, size in (
            ("values", per_row.values, b),
            ("indices", per_row.indices, INDEX),
            ("lse", per_row.statistics, statistic(b)),
        ):
            if count != 0:
                operands.append(Operand(name, rows * count * size, written=rows * count * size))
        exps = passes.exps * elements + rows * per_row.exps
        return Traffic(
            operation,
            algorithm,
            tuple(operands),
            exps=exps,
            # A result made apart takes a difference and a product beside its exponential.
            plain_flops=passes.flops * elements + 2 * rows * per_row.exps,
            reads=passes.reads,
            writes=passes.writes,
        )

    return formula


def _elementwise(
    operation: str,
    algorithm: str,
    reads: Mapping[str, int],
    *,
    exps: int,
    flops: int,
    per_row: Mapping[str, int] = MappingProxyType({}),
    writes: str = "dx",
) -> RowFormula:
    """A backward pass: arrays of the data's shape read so often, numbers per row of so many bytes read once.

    `per_row` gives bytes, 0 standing for a statistic's own size.
    """

    def formula(shape: Rows) -> Traffic:
        elements = shape.rows * shape.columns
        data = elements * shape.itemsize
        operands = [Operand(name, data, read=times * data) for name, times in reads.items()]
        for name, size in per_row.items():
            nbytes = shape.rows * (size or statistic(shape.itemsize))
            operands.append(Operand(name, nbytes, read=nbytes))
        operands.append(Operand(writes, data, written=data))
        return Traffic(
            operation,
            algorithm,
            tuple(operands),
            exps=exps * elements,
            plain_flops=flops * elements,
            reads=sum(reads.values()),
            writes=1,
        )

    return formula


# y, dy -> dx = y * (dy - sum(y * dy)):            *, + | -, *
# y = log p, dy -> dx = dy - exp(y) * sum(dy):      + | exp, *, -
# x, lse, dlse -> dx = exp(x - lse) * dlse:         -, exp, *
_BACKWARD: Final[Mapping[str, Mapping[str, RowFormula]]] = {
    "softmax_backward": {
        "cached": _elementwise("softmax_backward", "cached", {"y": 1, "dy": 1}, exps=0, flops=4),
        "online": _elementwise("softmax_backward", "online", {"y": 2, "dy": 2}, exps=0, flops=4),
    },
    "log_softmax_backward": {
        "cached": _elementwise("log_softmax_backward", "cached", {"y": 1, "dy": 1}, exps=1, flops=3),
        "online": _elementwise("log_softmax_backward", "online", {"y": 1, "dy": 2}, exps=1, flops=3),
    },
    "logsumexp_backward": {
        "cached": _elementwise(
            "logsumexp_backward", "cached", {"x": 1}, exps=1, flops=2, per_row={"lse": 0, "dlse": 0}
        ),
    },
}


def _cross_entropy(algorithm: str, reads: int) -> RowFormula:
    """The logits are read, the target's among them; a loss and the lse, which the gradient needs, are
    written."""

    def formula(shape: Rows) -> Traffic:
        passes = OPERATIONS["logsumexp"].passes[algorithm]
        elements, number = shape.rows * shape.columns, statistic(shape.itemsize)
        data = elements * shape.itemsize
        return Traffic(
            "cross_entropy",
            algorithm,
            (
                Operand("logits", data, read=reads * data),
                Operand("targets", shape.rows * INDEX, read=shape.rows * INDEX),
                Operand("loss", shape.rows * number, written=shape.rows * number),
                Operand("lse", shape.rows * number, written=shape.rows * number),
            ),
            exps=passes.exps * elements,
            plain_flops=passes.flops * elements + shape.rows,
            reads=reads,
            writes=0,
        )

    return formula


def _cross_entropy_standard(shape: Rows) -> Traffic:
    """Log-probabilities of everything are written, and one a row is read back."""
    whole = _forward("log_softmax", "cached", *_row_of("log_softmax", "cached"))(shape)
    rows, number = shape.rows, statistic(shape.itemsize)
    log_probs = replace(whole["out"], name="log_probs", read=rows * shape.itemsize, temporary=True)
    return replace(
        whole,
        operation="cross_entropy",
        algorithm="standard",
        operands=(
            replace(whole["x"], name="logits"),
            log_probs,
            Operand("targets", rows * INDEX, read=rows * INDEX),
            Operand("loss", rows * number, written=rows * number),
        ),
    )


def _row_of(operation: str, algorithm: str) -> tuple[Passes, Callable[[int], Results]]:
    row = OPERATIONS[operation]
    return row.passes[algorithm], row.results


_LOSSES: Final[Mapping[str, Mapping[str, RowFormula]]] = {
    "cross_entropy": {
        "standard": _cross_entropy_standard,
        "three_pass": _cross_entropy("three_pass", 2),
        "online": _cross_entropy("online", 1),
    },
    # dlogits = (exp(log_probs) - onehot) * dloss, or with exp(logits - lse): one read either way.
    "cross_entropy_backward": {
        "standard": _elementwise(
            "cross_entropy_backward",
            "standard",
            {"log_probs": 1},
            exps=1,
            flops=2,
            per_row={"targets": INDEX, "dloss": 0},
            writes="dlogits",
        ),
        "online": _elementwise(
            "cross_entropy_backward",
            "online",
            {"logits": 1},
            exps=1,
            flops=3,
            per_row={"lse": 0, "targets": INDEX, "dloss": 0},
            writes="dlogits",
        ),
    },
}

FORMULAS: Final[Mapping[str, Mapping[str, RowFormula]]] = MappingProxyType(
    {
        name: {
            algorithm: _forward(name, algorithm, passes, row.results)
            for algorithm, passes in row.passes.items()
        }
        for name, row in OPERATIONS.items()
    }
    | dict(_BACKWARD)
    | dict(_LOSSES)
)


def _split(operation: str, writes: bool) -> ChunkFormula:
    """Rows cut into p chunks: a kernel makes a state of each, a second merges the p states of its row.

    The second runs for every chunk where there is a result to write, and reads that chunk again; once a row
    where the lse alone is asked for.
    """

    def formula(shape: Chunks) -> Traffic:
        elements = shape.rows * shape.columns
        data, parts = elements * shape.itemsize, ceil_div(shape.columns, shape.block)
        state = 2 * statistic(shape.itemsize)
        states, readers = shape.rows * parts * state, parts if writes else 1
        number = shape.rows * statistic(shape.itemsize)
        result = Operand("out", data, written=data) if writes else Operand("lse", number, written=number)
        passes = OPERATIONS[operation].passes["online"]
        return Traffic(
            operation,
            "split",
            (
                Operand("x", data, read=(2 if writes else 1) * data),
                Operand("states", states, read=states * readers, written=states, temporary=True),
                result,
            ),
            exps=passes.exps * elements + shape.rows * parts * readers,
            plain_flops=passes.flops * elements + 2 * shape.rows * parts * readers,
            reads=2 if writes else 1,
            writes=1 if writes else 0,
        )

    return formula


SPLIT: Final[Mapping[str, Mapping[str, ChunkFormula]]] = MappingProxyType(
    {
        "softmax": {"split": _split("softmax", True)},
        "log_softmax": {"split": _split("log_softmax", True)},
        "logsumexp": {"split": _split("logsumexp", False)},
    }
)

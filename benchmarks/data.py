"""The arrays of a workload, and the worst error of a result against float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks.cases import Workload

Array = np.ndarray[Any, Any]

DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
# Bits of the significand, the hidden one included: what an ulp is.
PRECISION = {"float32": 24, "float16": 11, "bfloat16": 8}
# Standard deviation of the scores: attention scores and logits of trained models lie between 2 and 10.
SPREAD = 4.0
BLOCK = 1 << 20  # elements of float64 at a time, so that checking 10^8 elements costs megabytes
SAMPLED_ROWS = 16
SAMPLED_ELEMENTS = 1 << 16

_base: dict[tuple[int, ...], Array] = {}


def scores(workload: Workload) -> Array:
    """The input: normal scores, the same for every dtype of one shape but for rounding to it."""
    shape = workload.shape[::-1] if workload.layout == "transposed" else workload.shape
    if shape not in _base:
        _base.clear()
        base = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        _base[shape] = np.multiply(base, np.float32(SPREAD), out=base)
    x = _base[shape].astype(DTYPES[workload.dtype], copy=False)
    return x.T if workload.layout == "transposed" else x


def like(x: Array) -> Array:
    """Memory for a result with the strides of `x`, every page of it touched."""
    out = np.empty_like(x)
    out.fill(0)
    return out


@dataclass(frozen=True)
class Error:
    """Worst relative error of the sampled results, and the worst error in ulps of the result's format."""

    relative: float
    ulps: float


class Truth:
    """The float64 results of sampled rows of one workload, to hold any contender's result against."""

    def __init__(self, workload: Workload, x: Array) -> None:
        self.workload = workload
        rows = np.moveaxis(x, workload.axis, -1)
        lead = rows.shape[:-1]
        count = int(np.prod(lead, dtype=np.int64))
        picked = np.unique(np.linspace(0, count - 1, min(count, SAMPLED_ROWS)).astype(np.int64))
        self.rows = [tuple(int(i) for i in np.unravel_index(p, lead)) for p in picked]
        self.columns = self._columns(rows)
        self.expected = np.stack([self._row(rows[index]) for index in self.rows])

    def _columns(self, rows: Array) -> Array:
        """Sampled positions along the axis: evenly spread, and the largest score of the first row."""
        length = rows.shape[-1]
        each = max(1, SAMPLED_ELEMENTS // len(self.rows))
        columns = np.linspace(0, length - 1, min(length, each)).astype(np.int64)
        return np.unique(np.append(columns, int(np.argmax(rows[self.rows[0]]))))

    def _row(self, row: Array) -> Array:
        """The row's true log-sum-exp, or its log-softmax or softmax at the sampled columns; by blocks."""
        top = np.float64(row.max())
        starts = range(0, row.shape[0], BLOCK)
        total = sum(float(np.exp(row[i : i + BLOCK].astype(np.float64) - top).sum()) for i in starts)
        if self.workload.op == "logsumexp":
            return np.asarray(top + np.log(total))
        shifted = row[self.columns].astype(np.float64) - top
        return shifted - np.log(total) if self.workload.op == "log_softmax" else np.exp(shifted) / total

    def error(self, result: Array) -> Error:
        """The worst error of `result` (the whole result, in the workload's dtype); NaN counts as infinite."""
        if self.workload.op == "logsumexp":
            got = np.stack([result[index] for index in self.rows])
        else:
            rows = np.moveaxis(result, self.workload.axis, -1)
            got = np.stack([rows[index][self.columns] for index in self.rows])
        # Below the smallest normal number a format keeps no relative accuracy, whoever computes.
        normal = np.abs(self.expected) >= float(ml_dtypes.finfo(DTYPES[self.workload.dtype]).smallest_normal)
        if not normal.any():
            return Error(0.0, 0.0)
        want = self.expected[normal]
        wrong = np.abs(got.astype(np.float64)[normal] - want)
        wrong[np.isnan(wrong)] = np.inf
        ulp = np.exp2(np.floor(np.log2(np.abs(want))) + 1 - PRECISION[self.workload.dtype])
        return Error(float(np.max(wrong / np.abs(want))), float(np.max(wrong / ulp)))

"""The values that the library and the explorer are both held to: what tests/golden/explorer.json is made of.

Inputs and results of the law, of rounding, of rows in each format, of bytes and floors, and of attention.
Formats narrower than float64 are held bit for bit: exp there is float64's, rounded, on both sides. In float64
itself exp may differ in its last bit between machines, and such values are compared within a few units.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from online_softmax import reference, state
from online_softmax.numerics.explain import explain
from online_softmax.numerics.simulate import Machine, machine, simulate
from online_softmax.numerics.trace import trace
from online_softmax.traffic import cache, devices, model, units
from online_softmax.traffic.compare import Line, compare
from online_softmax.traffic.predict import ITEMSIZES
from online_softmax.traffic.roofline import Machine as Rates
from online_softmax.traffic.roofline import floor, given, of_device
from online_softmax.traffic.shapes import Rows

FORMATS = ("float32", "float16", "bfloat16")
#: Long rows go through one format each, the one they are hard for: by length.
LONG_IN = {300: "bfloat16", 41: "float16", 130: "bfloat16"}
INF, NAN = math.inf, math.nan
Array = NDArray[np.float64]

ROWS: tuple[list[float], ...] = (
    [1, 2, 3, 1000],
    [7, 6, 5, 4, 3, 2, 1, 0],
    [0, 1, 2, 3, 4, 5, 6, 7],
    [-INF, -INF, 1, 2],
    [-INF, -12.5, -INF, -11.25, 3, -INF],
    [0.3, -1.2, 2.1, 0.7, 1.9, -0.4, 2.6, 0.1, -7.7, 2.6],
    [0.0] * 300,
    [0.0] + [-17.4] * 40,
    [k / 128 for k in range(130)],
    [0, -9.0, -12.0, -16.5, -88.0, -95.0, -104.0, -5.5, 11.0, 0.5],
    [3.25],
)
SPECIAL: tuple[float, ...] = (-INF, -1000.0, -3.5, -0.0, 0.0, 0.7, 88.5, 1e30, INF, NAN)


def plain(value: Any) -> Any:
    """For JSON, which has no infinities and no NaN: they become the strings "inf", "-inf", "nan"."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return plain(value.astype(np.float64).tolist() if value.dtype != bool else value.tolist())
    if isinstance(value, (float, np.floating, ml_dtypes.bfloat16)):
        return float(value) if math.isfinite(value) else str(float(value))
    return value


def law_values() -> dict[str, Any]:
    """state.py in float64: push, merge and reading, at the ends of the number line too."""

    def state_of(*row: float) -> tuple[Array, Array]:
        return state.push(state.identity((), np.float64), np.array(row))

    states = [
        state_of(*row) for row in ((), (-INF,), (-3.5,), (0.7, 0.2, -40), (88.5, 88.5), (INF, 1, INF), (NAN,))
    ]
    pairs = [(a, b) for a in states for b in states]
    return {
        "push": [(*a, x, *state.push(a, np.array([x]))) for a in states for x in SPECIAL],
        "merge": [(*a, *b, *state.merge(a, b)) for a, b in pairs],
        "read": [
            (x, *a, state.lse(*a), state.value(np.float64(x), *a), state.log_value(np.float64(x), *a))
            for a in states
            for x in SPECIAL
            if not x > a[0]
        ],
    }


def rounding_values() -> dict[str, Any]:
    """Float64 numbers in each format: ties, subnormals, the largest, what rounds to infinity and to 0."""
    rng = np.random.default_rng(9)
    found = {}
    for name in FORMATS:
        dtype = np.dtype(getattr(ml_dtypes, name, name))
        info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        eps, low, high = float(info.eps), float(info.smallest_subnormal), float(info.max)
        edges = [
            1 + eps / 2,
            1 + 3 * eps / 2,
            1 + eps * 0.75,
            low / 2,
            low * 0.75,
            low * 1.5,
            low * 2.5,
            high,
        ]
        edges += [
            high * (1 + eps / 4),
            high * (1 - eps / 4 + eps / 2),
            high * 1.5,
            float(info.smallest_normal) - low / 2,
        ]
        some = rng.standard_normal(24) * 2.0 ** rng.integers(-20, 12, 24)
        values = np.array([*edges, *(-np.array(edges)), *some])
        with np.errstate(all="ignore"):
            found[name] = list(
                zip(values.tolist(), values.astype(dtype).astype(np.float64).tolist(), strict=True)
            )
    return found


def stream_values(row: list[float], name: str) -> dict[str, Any]:
    """A row, one entry at a time, in a format: states of all prefixes, what was lost, what is read."""
    unit = machine(name)
    held = np.array(row).astype(unit.dtype)
    prefixes = [simulate(held[: k + 1], "streaming", name) for k in range(len(row))]
    with np.errstate(all="ignore"):
        steps = trace(held, "streaming", None, unit)
    told = explain(row, name)
    assert told.s is not None
    assert told.lse is not None
    last = prefixes[-1]
    return {
        "row": row,
        "format": name,
        "m": [p.m for p in prefixes],
        "s": [p.s for p in prefixes],
        "lse": last.lse,
        "y": last.y,
        "zeros": np.flatnonzero(steps.zeros).tolist(),
        "subnormals": np.flatnonzero(steps.subnormals).tolist(),
        "vanished": np.flatnonzero(steps.vanished).tolist(),
        "unheard": np.flatnonzero(steps.unheard).tolist(),
        "stalled": steps.stalled,
        "events": [vars(event) for event in steps.events],
        "true_s": told.s.true,
        "true_lse": told.lse.true,
        "lost_by_underflow": told.lost_by_underflow,
        "lost_by_stalling": told.lost_by_stalling,
    }


def merged(a: tuple[Any, Any], b: tuple[Any, Any], unit: Machine) -> tuple[Any, Any]:
    """The law's merge in a format's arithmetic, each operation rounded once; `unit` holds the guard."""
    m = np.maximum(a[0], b[0])
    return m, unit.add(unit.times(a[1], unit.factor(a[0], m)), unit.times(b[1], unit.factor(b[0], m)))


def split_values(row: list[float], name: str, cuts: list[int]) -> dict[str, Any]:
    """A row in parts, each streamed by itself, and their states merged from the left."""
    unit = machine(name)
    held = np.array(row).astype(unit.dtype)
    parts = []
    for start, stop in zip([0, *cuts], [*cuts, len(row)], strict=True):
        if start == stop:
            parts.append(state.identity((), unit.dtype))
        else:
            part = simulate(held[start:stop], "streaming", name)
            parts.append((part.m, part.s))
    whole = parts[0]
    with np.errstate(all="ignore"):
        for part in parts[1:]:
            whole = merged(whole, part, unit)
    return {"row": row, "format": name, "cuts": cuts, "parts": parts, "whole": whole}


def cost_values() -> list[dict[str, Any]]:
    """What `compare` says of shapes on devices, as the page's table, curve and roofline show it."""
    book = given(2.0e12, 35.0, 256_000_000)
    found = []
    for rows, columns, dtype, key, allocate, resident in (
        (8192, 4096, "float32", None, False, None),
        (8192, 4096, "float32", "h100", False, None),
        (8192, 4096, "float32", "h100", False, 132),
        (8192, 128, "float16", "h200", False, None),
        (4096, 50257, "bfloat16", "a100", False, 108),
        (3, 1_000_003, "float64", "mi300x", True, None),
        (65536, 1024, "float32", "apple-m4-max", False, None),
        (1, 1, "float16", "l4", False, None),
    ):
        rates = book if key is None else of_device(devices.device(key), dtype)
        found.append(cost_of(Rows(rows, columns, ITEMSIZES[dtype]), dtype, key, rates, allocate, resident))
    return found


def cost_of(
    shape: Rows, dtype: str, key: str | None, rates: Rates, allocate: bool, resident: int | None
) -> dict[str, Any]:
    """One shape on one machine: lines as the page has them, the regime, points of the curve."""
    softmax = compare("softmax", shape, rates, write_allocate=allocate, resident_rows=resident)
    sums = compare("logsumexp", shape, rates, write_allocate=allocate, resident_rows=resident)
    lines = {line.moved.algorithm: line for line in softmax.lines}
    lines["logsumexp"] = next(line for line in sums.lines if line.moved.algorithm == "online")
    where = softmax.regime
    curve = {}
    for name, line in lines.items():
        points = []
        for columns in (32, 1000, 8192, 262_144):
            moved = model.traffic(
                line.moved.operation,
                line.moved.algorithm,
                shape.rows,
                columns,
                shape.itemsize,
                write_allocate=allocate,
            )
            if where is not None:
                at = cache.regime(shape.rows, columns, shape.itemsize, where.last_level, where.resident_rows)
                moved = cache.from_memory(moved, kept=at.kept)
            points.append([columns, floor(moved, rates).seconds])
        curve[name] = points
    return {
        "rows": shape.rows, "columns": shape.columns, "dtype": dtype, "device": key, "allocate": allocate,
        "resident": resident, "ridge": rates.ridge,
        "lines": {name: line_values(line, softmax.lines[1].floor.seconds) for name, line in lines.items()},
        "curve": curve,
        "regime": where
        and [where.name, where.row_bytes, where.resident_rows, where.deciding_row_bytes],
    }  # fmt: skip


def line_values(line: Line, baseline: float) -> dict[str, Any]:
    """What the table and the roofline show of an algorithm."""
    return {
        "read": line.moved.read, "written": line.moved.written, "total": line.moved.total,
        "exps": line.moved.exps, "flops": line.moved.flops, "intensity": float(line.moved.intensity),
        "seconds": line.floor.seconds,
        "bound": line.floor.bound, "speedup": baseline / line.floor.seconds,
        "once_total": line.once.total, "once_seconds": line.once_floor.seconds,
    }  # fmt: skip


def operands(queries: int, keys: int, width: int, seed: int) -> list[Array]:
    """q, k, v of the page's attention: multiples of 1/64 from a linear congruence on 32 bits."""
    at, made = seed, []
    for rows in (queries, keys, keys):
        numbers = []
        for _ in range(rows * width):
            at = (at * 1664525 + 1013904223) % 2**32
            numbers.append(((at >> 24) - 128) / 64)
        made.append(np.array(numbers).reshape(rows, width))
    return made


def attention_values(
    queries: int, keys: int, width: int, tiles: tuple[int, int], causal: bool, seed: int
) -> dict[str, Any]:
    """Outputs and log-sum-exps over all keys, and after each tile of keys: what its queries hold then."""
    q, k, v = operands(queries, keys, width, seed)
    sees = np.arange(keys) <= np.arange(queries)[:, None] + (keys - queries if causal else keys)
    scores = np.where(sees, q @ k.T / math.sqrt(width), -INF)
    o, lse = reference.attention(q, k, v, causal=causal, return_lse=True)
    steps = []
    for row in range(0, queries, tiles[0]):
        rows = slice(row, min(row + tiles[0], queries))
        for key in range(0, keys, tiles[1]):
            stop = min(key + tiles[1], keys)
            if not sees[rows, key:stop].any():
                continue
            seen, prefix = np.isfinite(scores[rows, :stop]), state.identity((rows.stop - row,), np.float64)
            m, s = state.push(prefix, scores[rows, :stop])
            part = reference.attention(q[rows], k[:stop], v[:stop], mask=seen)
            steps.append({"rows": [row, rows.stop], "keys": [key, stop], "m": m, "s": s, "o": part})
    return {
        "queries": queries, "keys": keys, "width": width, "tileQueries": tiles[0], "tileKeys": tiles[1],
        "causal": causal, "seed": seed, "q": q, "o": o, "lse": lse, "steps": steps,
    }  # fmt: skip


def values() -> dict[str, Any]:
    """All of tests/golden/explorer.json."""
    made = {
        "made_by": "scripts/explorer_data.py",
        "law": law_values(),
        "rounding": rounding_values(),
        "streams": [
            stream_values(row, name)
            for row in ROWS
            for name in FORMATS
            if len(row) < 20 or name == LONG_IN.get(len(row))
        ],
        "splits": [
            split_values(ROWS[row], name, cuts)
            for row, cuts in (
                (0, [2]),
                (3, [1]),
                (3, [2, 2]),
                (5, [3, 4, 8]),
                (8, [1, 60]),
                (6, [0, 150]),
                (7, [20]),
            )
            for name in FORMATS
            if len(ROWS[row]) < 20 or name == LONG_IN[len(ROWS[row])]
        ],
        "costs": cost_values(),
        "units": [
            [n, units.bytes_text(n), units.seconds_text(n * 1e-9), units.rate_text(float(n))]
            for n in (
                1,
                999,
                1024,
                999_949,
                999_951,
                134_217_728,
                1250,
                31_250,
                402_653_184,
                10**12,
                2**43,
                3 * 10**15,
            )
        ],
        "attention": [
            attention_values(6, 8, 2, (2, 4), False, 1),
            attention_values(5, 7, 3, (2, 3), True, 12),
            attention_values(4, 2, 4, (2, 2), True, 3),
        ],
    }
    return dict(plain(made))

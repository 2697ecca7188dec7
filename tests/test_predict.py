"""Predicted times, worked out by hand for a machine of round numbers; and what this machine's benchmark
said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from online_softmax import _core, cpu, host
from online_softmax.traffic import cache, kernels, predict
from online_softmax.traffic.predict import EXPOSED, Cpu, RowCosts

RESULTS = Path(__file__).parent.parent / "benchmarks" / "results"
MIB = 1 << 20
#: A nanosecond an element whatever the algorithm, 10 GB/s in cache past L2, 1 GB/s of memory.
FLAT = RowCosts((1, 1 << 20), (1e-9, 2**20 * 1e-9))


def machine(threads: int = 2, **costs: RowCosts) -> Cpu:
    return Cpu(
        threads=threads,
        caches={"L1": 32 << 10, "L2": MIB, "L3": 32 * MIB},
        call=1e-6,
        wake=1e-5,
        costs=lambda operation, dtype, algorithm: costs.get(algorithm, FLAT),
        rates=lambda nbytes: (1e10, 1e10) if nbytes <= 32 * MIB else (1e9, 1e9),
    )


def test_costs_between_and_beyond_the_lengths_measured() -> None:
    costs = RowCosts((4, 16, 64), (1.0, 2.0, 8.0))
    assert [costs.of(n) for n in (1, 4, 16, 64)] == [1.0, 1.0, 2.0, 8.0]
    assert costs.of(8) == pytest.approx(2**0.5, rel=1e-14)
    assert costs.of(640) == pytest.approx(80.0, rel=1e-14)


def test_a_small_call_is_one_threads_and_moves_nothing() -> None:
    got = predict.predict("softmax", "cached", 90, 1000, "float32", machine())
    assert got.arithmetic == pytest.approx(9e-5, rel=1e-12)
    assert (got.memory, got.call) == (0.0, 1e-6)
    assert got.seconds == pytest.approx(9.1e-5, rel=1e-12)
    assert got.bound == "compute"


def test_a_large_tensor_waits_for_memory_and_rows_in_cache_are_read_once() -> None:
    rows, columns = 8192, 4096
    nbytes = rows * columns * 4
    for algorithm in predict.SAFE:
        got = predict.predict("softmax", algorithm, rows, columns, "float32", machine())
        assert got.memory == pytest.approx(2 * nbytes / 1e9, rel=1e-12)
        assert got.arithmetic == pytest.approx(rows * columns * 1e-9 / 2, rel=1e-9)
        assert got.call == pytest.approx(1.1e-5, rel=1e-12)
        assert got.seconds == pytest.approx(got.memory + EXPOSED * got.arithmetic + got.call, rel=1e-12)
        assert got.bound == "memory"


@pytest.mark.parametrize(
    ("operation", "algorithm", "again"),
    [
        ("softmax", "three_pass", 2),
        ("softmax", "online", 1),
        ("softmax", "cached", 2),  # exponentials there and back
        ("log_softmax", "three_pass", 2),
        ("log_softmax", "online", 1),
        ("log_softmax", "cached", 2),  # nothing is kept: two passes more
        ("logsumexp", "three_pass", 1),
        ("logsumexp", "online", 0),
        ("logsumexp", "cached", 0),
    ],
)
def test_rows_past_the_cache_are_read_again(operation: str, algorithm: str, again: int) -> None:
    """Rows of 16 MiB: with two in flight they have left the third level too."""
    rows, columns = 16, 4 * MIB
    nbytes = rows * columns * 4
    got = predict.predict(operation, algorithm, rows, columns, "float32", machine())
    once = nbytes + (rows * 4 if operation == "logsumexp" else nbytes)
    # The first MiB of what is in flight stays in the second level: x and out, and exponentials where kept.
    in_flight = 3 if (operation, algorithm) == ("softmax", "cached") else 2
    outside = 1 - MIB / (in_flight * 4 * columns)
    assert got.memory == pytest.approx((once + outside * again * nbytes) / 1e9, rel=1e-9)


def test_what_lies_in_the_third_level_comes_faster() -> None:
    """Rows of 1 MiB: in flight they are 4 MiB, the arrays 128."""
    rows, columns = 64, MIB // 4
    nbytes = rows * columns * 4
    got = predict.predict("softmax", "online", rows, columns, "float32", machine())
    assert got.memory == pytest.approx(2 * nbytes / 1e9 + 0.5 * nbytes / 1e10, rel=1e-9)


def test_one_long_row_is_shared_by_online_alone() -> None:
    for algorithm, threads in (("online", 2), ("cached", 1), ("three_pass", 1)):
        got = predict.predict("softmax", algorithm, 1, MIB, "float32", machine())
        assert got.arithmetic == pytest.approx(MIB * 1e-9 / threads, rel=1e-9)


def test_the_best_is_the_least() -> None:
    slow = RowCosts((1, 1 << 20), (4e-9, 2**20 * 4e-9))
    host_ = machine(cached=slow)
    assert predict.best("softmax", 100, 1000, "float32", host_).algorithm == "three_pass"
    assert predict.best("softmax", 16, 4 * MIB, "float32", machine()).algorithm == "online"


def test_auto_takes_its_limits_from_the_model() -> None:
    caches = host.caches()
    for operation, op in (("softmax", 0), ("log_softmax", 1), ("logsumexp", 2), ("state", 3)):
        for code, size in enumerate((4, 8, 2, 2)):
            limit = cache.cached_columns(operation, size, caches)
            assert _core.choose_algorithm(op, code, limit) == 3
            assert _core.choose_algorithm(op, code, limit + 1) == 2


@pytest.mark.parametrize(
    ("operation", "itemsize", "columns"),
    [
        ("softmax", 4, (512 << 10) // 12),
        ("softmax", 8, (512 << 10) // 24),
        ("softmax", 2, (1 << 20) // 8),
        ("log_softmax", 4, (32 << 10) * 2 // 3 // 4),
        ("logsumexp", 2, (32 << 10) * 2 // 3 // 2),
        ("state", 8, (32 << 10) * 2 // 3 // 8),
    ],
)
def test_limits_by_the_caches(operation: str, itemsize: int, columns: int) -> None:
    assert cache.cached_columns(operation, itemsize, {"L1": 32 << 10, "L2": 1 << 20}) == columns
    assert cache.cached_columns(operation, itemsize, {}) == columns
    twice = cache.cached_columns(operation, itemsize, {"L1": 64 << 10, "L2": 2 << 20})
    assert twice in (2 * columns, 2 * columns + 1)


def test_columns_keep_their_exponentials_in_a_quarter_of_the_second_level() -> None:
    assert cache.cached_column_length({"L2": 1 << 20}) == 1024
    assert cache.cached_column_length({}) == 1024
    assert cache.cached_column_length({"L2": 2 << 20}) == 2048


def test_measured_costs_are_those_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that gives a microsecond a call and one per row: the costs are the rows'."""
    kernels.row_costs.cache_clear()
    monkeypatch.setattr(kernels, "_empty_call", lambda: 1e-6)
    monkeypatch.setattr(
        kernels, "interleaved", lambda calls, budget: dict.fromkeys(calls, 1e-6 + _rows(calls) * 1e-6)
    )
    costs = kernels.row_costs("softmax", "float32")
    kernels.row_costs.cache_clear()
    assert set(costs) == set(predict.SAFE)
    for each in costs.values():
        assert each.columns == kernels.COST_COLUMNS
        assert each.seconds == pytest.approx([1e-6] * len(each.columns), rel=1e-9)


def _rows(calls: dict) -> int:
    """Rows of the array that the calls work on."""
    first = next(iter(calls.values()))
    return len(next(cell.cell_contents for cell in first.__closure__ if hasattr(cell.cell_contents, "shape")))


@pytest.mark.parametrize(
    ("operation", "dtype", "message"),
    [("softmax_topk", "float32", "operation='softmax_topk'"), ("softmax", "int8", "dtype='int8'")],
)
def test_what_is_not_measured_is_refused(operation: str, dtype: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kernels.row_costs(operation, dtype)


def test_this_machine_can_be_predicted() -> None:
    got = kernels.predictor()
    assert got.threads == cpu.default_threads()
    assert got.call > 0
    assert min(got.rates(8 * MIB)) > 1e8


def test_the_predicted_best_won_on_the_grid() -> None:
    """The committed benchmark: at least 90 % of its shapes, for the prediction and for what auto takes."""
    results = json.loads((RESULTS / "choice.json").read_text(encoding="utf-8"))
    lines = results["results"]
    assert len(lines) == results["shapes"] >= 150
    for key, counted in (("loses", "agreed"), ("auto_loses", "auto_agreed")):
        agreed = sum(line[key] <= 1.05 for line in lines)
        assert agreed == results[counted]
        assert agreed >= 0.9 * len(lines)

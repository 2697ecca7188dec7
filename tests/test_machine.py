"""The measured rates: their arithmetic exactly, their sizes within what any machine can do."""

from __future__ import annotations

import os

import pytest

from online_softmax import _core
from online_softmax.traffic import machine

# A byte a second to a petabyte a second: a unit or a factor lost would leave this.
SLOWEST, FASTEST = 1e6, 1e14


@pytest.fixture(autouse=True)
def _forget():
    machine._memory.cache_clear()
    machine._disk.cache_clear()
    yield
    machine._memory.cache_clear()
    machine._disk.cache_clear()


def test_rates_are_bytes_moved_over_median_seconds(monkeypatch):
    calls = []
    seconds = {"read": [1.0, 4.0, 2.0] * 3, "copy": [8.0] * 9, "copy_nt": [5.0, 3.0, 4.0] * 3}

    def probe(kind, source, target, nbytes, threads):
        assert source % 64 == target % 64 == 0
        assert abs(source - target) >= nbytes
        calls.append((kind, nbytes, threads))
        return seconds[kind][sum(1 for name, *_ in calls if name == kind) - 1]

    monkeypatch.setattr(_core, "probe", probe)
    rates = machine.memory(3, nbytes=1 << 16)
    assert (rates.read, rates.copy, rates.copy_nt) == (65536 / 2, 2 * 65536 / 8, 2 * 65536 / 4)
    assert rates.best_copy == 32768
    assert calls[:6] == [(kind, 65536, 3) for kind in machine.KINDS] * 2
    assert machine.memory(3, nbytes=1 << 16) is rates
    assert len(calls) == 3 * machine.PASSES


def test_floor_of_memory_pairs_reads_with_writes():
    rates = machine.MemoryRates(read=10.0, copy=4.0, copy_nt=8.0, buffer_bytes=1, threads=1)
    assert rates.floor_seconds(40, 40) == 80 / 8
    assert rates.floor_seconds(120, 40) == 80 / 10 + 80 / 8
    assert rates.floor_seconds(120, 0) == 120 / 10
    assert rates.floor_seconds(0, 40) == 40 / 8


def test_floor_of_a_disk_is_read_then_write():
    assert machine.DiskRates(read=10.0, write=5.0, test_bytes=1).floor_seconds(40, 40) == 4 + 8


def test_memory_is_measured():
    rates = machine.memory(1, nbytes=8 << 20)
    for rate in (rates.read, rates.copy, rates.copy_nt):
        assert SLOWEST < rate < FASTEST
    assert (rates.buffer_bytes, rates.threads) == (8 << 20, 1)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [({"threads": 0}, "threads: 0 is less than 1"), ({"nbytes": 64}, "nbytes: 64 is too small a buffer")],
)
def test_memory_refuses(arguments, match):
    with pytest.raises(ValueError, match=match):
        machine.memory(**arguments)


def test_a_disk_is_measured_and_left_as_it_was(tmp_path):
    rates = machine.disk(tmp_path, nbytes=5 << 20)
    assert SLOWEST / 1e3 < rates.write < FASTEST
    assert SLOWEST / 1e3 < rates.read < FASTEST
    assert rates.test_bytes <= 5 << 20
    assert os.listdir(tmp_path) == []
    assert machine.disk(f"{tmp_path}/.", nbytes=5 << 20) is rates


def test_a_slow_disk_gets_a_small_test(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    ticks = iter([0.0, 2.0, 3.0, 10.0, 11.0])
    monkeypatch.setattr(machine.time, "perf_counter", lambda: next(ticks))
    rates = machine.disk(tmp_path, nbytes=64 << 20, seconds=2.5)
    assert rates.test_bytes == 5 << 20  # 4 MiB took 2 s, so 2.5 s would take 5 MiB
    assert rates.write == (5 << 20) / 3
    assert rates.read == 5 << 20


@pytest.mark.parametrize(
    ("arguments", "match"),
    [({"nbytes": 0}, "nbytes: 0 is not"), ({"seconds": 0.0}, "seconds: 0.0 is not"),
     ({"seconds": float("nan")}, "seconds: nan is not")],
)  # fmt: skip
def test_disk_refuses(tmp_path, arguments, match):
    with pytest.raises(ValueError, match=match):
        machine.disk(tmp_path, **arguments)


def test_disk_needs_its_folder(tmp_path):
    with pytest.raises(FileNotFoundError):
        machine.disk(tmp_path / "none")


def test_interleaved_takes_turns_and_medians(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(machine.time, "perf_counter", lambda: clock[0])
    order = []
    costs = {"a": iter([9.0, 1.0, 2.0, 30.0, 2.0, 2.0]), "b": iter([9.0, 5.0, 5.0, 4.0, 6.0, 50.0])}

    def call(name):
        def run():
            order.append(name)
            clock[0] += next(costs[name])

        return run

    medians = machine.interleaved({"a": call("a"), "b": call("b")}, budget=1.0, rounds=(5, 9))
    assert medians == {"a": 2.0, "b": 5.0}
    assert order == [*"ab", *"ab", *"ba", *"ab", *"ba", *"ab"]


def test_interleaved_repeats_short_calls_and_fits_its_budget(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(machine.time, "perf_counter", lambda: clock[0])
    count = [0]

    def call():
        count[0] += 1
        clock[0] += 2.0**-12  # a quarter of a millisecond: 4 fit a sample

    assert machine.interleaved({"a": call}, budget=2.0**-10 * 7) == {"a": 2.0**-12}
    assert count[0] == 1 + 4 * 7

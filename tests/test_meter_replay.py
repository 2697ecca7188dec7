"""Replays of metered kernels through a cache, against counts by hand and a slow cache."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported, and kernels are defined

import random

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from kernels import lanes, rows  # noqa: E402
from kernels.metered import T, floats, metered, three_pass  # noqa: E402

from online_softmax.traffic.meter import Meter  # noqa: E402
from online_softmax.traffic.meter.replay import Cache, in_flight  # noqa: E402


@pytest.mark.parametrize(
    ("size", "interleave", "passes"),
    [
        (64 << 10, 1, 1),  # one row of 16 KiB and its results
        (64 << 10, 8, 3),  # 8 rows of 16 KiB outgrow it
        (1 << 20, 8, 1),
        (1 << 20, 64, 1),  # all 64 rows are the megabyte
        (512 << 10, 64, 3),
        (8 << 10, 1, 3),
    ],
)
def test_rows_in_flight_decide_what_three_passes_read(size, interleave, passes):
    replay = three_pass().replay(size, interleave=interleave)
    assert (replay["x"].read, replay["out"].written) == (passes * T, T)
    assert (replay.read, replay.written, replay.atomic) == (passes * T, T, 0)


def test_the_lines_of_a_cpu():
    assert three_pass().replay(1 << 20, ways=16, line=64, sector=64, interleave=1).read == T


def test_wide_sectors_fetch_what_was_not_asked_for():
    with Meter(log=True) as meter:
        lanes.strided[(1,)](floats(2048), torch.zeros(128), STEP=16, BLOCK=128)
    # Each lane is 64 bytes from the next.
    found = {sector: meter.replay(1 << 16, line=128, sector=sector)["x"].read for sector in (32, 64, 128)}
    assert found == {32: 128 * 32, 64: 128 * 64, 128: 64 * 128}


def test_stores_past_the_cache_leave_nothing_to_read():
    with Meter(log=True) as meter:
        lanes.write_then_read[(1,)](torch.zeros(1024), torch.zeros(1), BLOCK=1024)
    kept, passed = (meter.replay(1 << 16, write_allocate=way)["out"] for way in (True, False))
    assert (kept.written, kept.read) == (4096, 0)
    assert (passed.written, passed.read) == (4096, 4096)


def test_atomic_updates_stay_in_the_cache():
    labels, counts = torch.zeros(256, dtype=torch.int64), torch.zeros(8, dtype=torch.int32)
    with Meter(log=True) as meter:
        lanes.histogram[(4,)](labels, counts, 256, BLOCK=64)
    misses = meter.replay(1 << 16)["counts"]
    assert (misses.read, misses.written, misses.atomic) == (0, 0, 32)


def test_what_one_launch_leaves_in_the_cache_the_next_one_finds():
    x, middle, out = floats(1024), torch.zeros(1024), torch.zeros(1024)
    with Meter(log=True) as meter:
        rows.scale[(1,)](x, middle, 1024, 2.0, BLOCK=1024)
        rows.scale[(1,)](middle, out, 1024, 2.0, BLOCK=1024)
    replay = meter.replay(1 << 16)
    first, second = replay.launches
    assert (first["x"].read, second["x"].read) == (4096, 0)
    assert meter.replay(2048, ways=16, line=128).launches[1]["x"].read == 4096
    with pytest.raises(KeyError, match="'x' of 2 launches"):
        replay["x"]
    with pytest.raises(KeyError, match="'y' is no tensor of scale: 'x', 'out' would do"):
        first["y"]


def test_a_replay_without_the_log():
    meter = metered(rows.scale, (1,), floats(64), torch.zeros(64), 64, 1.0, BLOCK=64)
    with pytest.raises(ValueError, match=r"log: a replay needs the accesses, which Meter\(log=True\) keeps"):
        meter.replay(1 << 16)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"size": 1000}, "size=1000: a positive multiple of 2048 would do"),
        ({"size": 0}, "size=0: at least 1 would do"),
        ({"ways": 0}, "ways=0: at least 1 would do"),
        ({"line": 100}, "line=100: a positive multiple of 32 would do"),
        ({"sector": 48}, "sector=48: a positive multiple of 32 would do"),
        ({"interleave": 0}, "interleave=0: 1 program in flight or more would do"),
        ({"interleave": 1.5}, "interleave=1.5: 1 program in flight or more would do"),
        ({"interleave": 10**30}, "interleave=1000.*: 1 program in flight or more would do"),
    ],
)
def test_caches_that_cannot_be(wrong, message):
    with pytest.raises(ValueError, match=message):
        three_pass().replay(**{"size": 4096, **wrong})


def test_the_least_recently_used_line_goes():
    cache = Cache(256, 2, 128, 32, write_allocate=True)  # one set of two lines
    a, b, c = (range(4 * i, 4 * i + 1) for i in range(3))
    assert [cache.missed(0, line) for line in (a, b, a, c, b, c, a)] == [1, 1, 0, 1, 1, 0, 1]
    # The other sectors of a line that is there have to be fetched all the same.
    assert [cache.missed(0, range(4)), cache.missed(0, range(4))] == [3, 0]


def test_the_cache_agrees_with_a_slow_one():
    rng = random.Random(0)
    sets, ways, per_line = 3, 2, 4
    cache = Cache(sets * ways * 128, ways, 128, 32, write_allocate=True)
    held: list[tuple[int, set[int]]] = []  # oldest use first
    for _ in range(3000):
        sector = rng.randrange(60)
        line = sector // per_line
        entry = next((e for e in held if e[0] == line), None)
        expected = int(entry is None or sector not in entry[1])
        if entry is None:
            entry = (line, set())
            same_set = [e for e in held if e[0] % sets == line % sets]
            if len(same_set) == ways:
                held.remove(same_set[0])
        else:
            held.remove(entry)
        entry[1].add(sector)
        held.append(entry)
        assert cache.missed(0, range(sector, sector + 1)) == expected


def test_programs_take_turns():
    programs = [[(p, 0, range(i, i + 1)) for i in range(n)] for p, n in enumerate((2, 1, 3))]
    order = [(p, s.start) for p, _, s in in_flight(programs, 2)]
    assert order == [(0, 0), (1, 0), (0, 1), (2, 0), (2, 1), (2, 2)]
    assert [p for p, _, _ in in_flight(programs, 1)] == [0, 0, 1, 2, 2, 2]


def test_storages_lie_in_the_order_of_the_arguments():
    low, high = sorted((floats(100), floats(100)), key=lambda tensor: tensor.data_ptr())
    for x, out in ((low, high), (high, low)):
        with Meter(log=True) as meter:
            rows.scale[(1,)](x, out, 100, 2.0, BLOCK=128)
        (((load, store),),) = (launch.programs for launch in meter._logged)
        # 400 bytes, and the next storage at 512.
        assert (load[2], store[2]) == (range(13), range(16, 29))


def test_programs_start_with_the_first_axis_fastest():
    x, out = floats(32, 64), torch.zeros(32, 64)
    with Meter(log=True) as meter:
        lanes.tiled[(4, 2)](x, out, 64, ROWS=8, COLUMNS=32)
    (launch,) = meter._logged
    # Tiles in the order of (x, y) = (0, 0), (1, 0), ...: 8 rows of 256 bytes further down each time.
    assert [int(program[0][2][0]) for program in launch.programs] == [0, 64, 128, 192, 4, 68, 132, 196]


def test_a_large_empty_cache_costs_nothing():
    meter = three_pass()
    assert meter.replay(1 << 40)["x"].read == meter["x"].loads.distinct_bytes

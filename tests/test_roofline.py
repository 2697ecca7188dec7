"""Floors, what bounds them, and algorithms side by side: each number worked out here from the sizes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from online_softmax.traffic import attention, cache, compare, devices, model, plot, roofline
from online_softmax.traffic.count import Operand, Traffic
from online_softmax.traffic.roofline import Floor, Machine
from online_softmax.traffic.shapes import Attention, Chunks, Projection, Rows, States

R, C = 8192, 4096
T = R * C * 4
CASE = Rows(R, C, 4)
#: 2 TB/s, a ridge of 35 flop/byte and 256 MB of cache: the machine of the worked example.
GIVEN = roofline.given(2.0e12, 35.0, 256_000_000)
#: Every rate apart from the others, so that a floor tells which it was made from.
APART = Machine(
    "apart",
    1e3,
    vector_peak=7e3,
    matrix_peak=11e3,
    exp_rate=5e2,
    launch=1e-3,
    last_level=4096,
    resident_rows=2,
)


def moved(**numbers: Any) -> Traffic:
    return Traffic("any", "any", (Operand("x", 2000, read=1500, written=500),), **numbers)


# ---- floors


def test_a_floor_is_each_amount_over_its_rate() -> None:
    got = roofline.floor(moved(exps=100, plain_flops=700, matrix_flops=2200), APART)
    assert got == Floor(memory=2.0, vector=0.1, matrix=0.2, exp=0.2, launch=1e-3)
    assert got.seconds == 2.0
    assert got.bound == "memory"


def test_exponentials_are_eight_flops_where_their_rate_is_not_known() -> None:
    got = roofline.floor(moved(exps=100, plain_flops=600), replace(APART, exp_rate=None))
    assert got.vector == (8 * 100 + 600) / 7e3
    assert got.exp == 0.0


def test_what_is_not_known_bounds_nothing() -> None:
    got = roofline.floor(moved(exps=10**9, plain_flops=10**9, matrix_flops=10**9), Machine("bare", 1e3))
    assert got == Floor(memory=2.0, vector=0.0, matrix=0.0, exp=0.0, launch=0.0)


@pytest.mark.parametrize(
    ("times", "bound"),
    [
        ((5, 1, 1, 1, 1), "memory"),
        ((1, 5, 1, 1, 1), "compute"),
        ((1, 1, 5, 1, 1), "compute"),
        ((1, 1, 1, 5, 1), "exp"),
        ((1, 1, 1, 1, 5), "launch"),
        ((5, 5, 5, 5, 5), "memory"),
        ((1, 5, 1, 5, 5), "compute"),
        ((0, 0, 0, 0, 0), "memory"),
    ],
)
def test_the_slowest_resource_bounds_and_memory_where_two_are_equal(
    times: tuple[float, ...], bound: str
) -> None:
    assert Floor(*times).bound == bound
    assert Floor(*times).seconds == max(times)


def test_the_read_of_written_lines_is_in_the_floor() -> None:
    got = roofline.floor(moved(write_allocate=True), APART)
    assert got.memory == (2000 + 512) / 1e3


# ---- machines


def test_a_machine_that_is_given() -> None:
    assert GIVEN.ridge == 35.0
    assert (GIVEN.bandwidth, GIVEN.vector_peak, GIVEN.matrix_peak) == (2e12, 70e12, 70e12)
    assert (GIVEN.exp_rate, GIVEN.launch, GIVEN.last_level) == (None, None, 256_000_000)
    assert roofline.given(1.0).ridge is None


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((0.0,), "bandwidth=0.0"),
        ((-1.0,), "bandwidth=-1.0"),
        ((math.nan,), "bandwidth=nan"),
        ((1.0, 0.0), "ridge=0.0"),
        ((1.0, -2.0), "ridge=-2.0"),
        ((1.0, math.nan), "ridge=nan"),
        ((1.0, 1.0, -1), "last_level=-1"),
    ],
)
def test_a_machine_that_makes_no_sense(arguments: tuple[float, ...], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        roofline.given(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", devices.names())
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16", "float8"])
def test_a_device_as_a_machine(name: str, dtype: str) -> None:
    device = devices.device(name)
    got = roofline.of_device(device, dtype)
    assert (got.name, got.bandwidth) == (device.name, device.memory_bandwidth)
    assert (got.exp_rate, got.launch, got.last_level) == (
        device.exps_per_second,
        device.launch_seconds,
        device.last_level,
    )
    assert got.vector_peak == device.peak.get("float32")
    if dtype in device.matrix_peak:
        assert got.matrix_peak == device.matrix_peak[dtype]
    if got.vector_peak is not None:
        assert got.ridge == got.vector_peak / device.memory_bandwidth


# ---- the worked example


def test_8192_rows_of_4096_float32() -> None:
    got = compare.compare("softmax", CASE, GIVEN)
    assert got.baseline == "three_pass"
    lines = {line.moved.algorithm: line for line in got.lines}
    for name, traversals, microseconds, speedup in (
        ("naive", 3, 201.3, Fraction(4, 3)),
        ("three_pass", 4, 268.4, Fraction(1)),
        ("online", 3, 201.3, Fraction(4, 3)),
        ("cached", 2, 134.2, Fraction(2)),
    ):
        line = lines[name]
        assert line.moved.total == traversals * T
        assert line.floor.seconds == traversals * T / 2e12
        assert round(line.floor.seconds * 1e6, 1) == microseconds
        assert line.speedup == pytest.approx(float(speedup), rel=1e-15)
        assert line.floor.bound == "memory"
        assert line.once.total == 2 * T
    assert got.regime == cache.regime(R, C, 4, 256_000_000)
    assert got.regime.name == "tensor in cache"


def has(remarks: tuple[str, ...], *parts: str) -> bool:
    return any(all(part in remark for part in parts) for remark in remarks)


def test_remarks_of_the_worked_example() -> None:
    remarks = compare.compare("softmax", CASE, GIVEN).remarks
    assert has(remarks, "31.2 kB", "7812 columns", "256.0 MB", "8192 rows in flight")
    assert has(remarks, "134.2 MB (128 MiB)", "fits the 256.0 MB cache")
    assert has(remarks, "1.375 flop/byte", "25 times under", "35")
    remarks = compare.compare("softmax", CASE, replace(GIVEN, last_level=256 << 20)).remarks
    assert has(remarks, "(32 KiB)", "8192 columns", "(256 MiB)")
    # Past the cache there is nothing to say of it but where it ends; without one, nothing.
    remarks = compare.compare("softmax", replace(CASE, columns=8193), GIVEN).remarks
    assert has(remarks, "31.2 kB")
    assert not has(remarks, "fit")
    assert not has(compare.compare("softmax", CASE, roofline.given(2e12)).remarks, "cache")


def test_remark_on_rows_that_fit_while_the_tensor_does_not() -> None:
    got = compare.compare("softmax", CASE, replace(GIVEN, last_level=1 << 20, resident_rows=64))
    assert got.regime is not None
    assert (got.regime.name, got.regime.deciding_row_bytes) == ("rows in cache", 16_384)
    assert has(got.remarks, "rows in flight fit the cache")
    asked = compare.compare(
        "softmax", CASE, replace(GIVEN, last_level=1 << 20, resident_rows=64), resident_rows=65
    )
    assert asked.regime is not None
    assert asked.regime.name == "rows past cache"


@pytest.mark.parametrize(("times", "said"), [(1, True), (4, True), (5, False)])
def test_launch_decides_up_to_four_times_its_cost(times: int, said: bool) -> None:
    shape = Rows(8192, 128, 4)
    bandwidth = 2e12
    least = 2 * 8192 * 128 * 4 / bandwidth
    got = compare.compare("softmax", shape, Machine("any", bandwidth, launch=least / times))
    assert has(got.remarks, "launch", "decide") == said


def test_4_mib_on_a_device_is_a_matter_of_launch() -> None:
    got = compare.compare(
        "softmax", Rows(8192, 128, 4), roofline.of_device(devices.device("h200"), "float32")
    )
    assert got.regime is not None
    assert got.regime.tensor_bytes == 4 << 20
    assert has(got.remarks, "launch", "decide")
    assert has(got.remarks, "(4 MiB)", "fits")


# ---- any operation


SHAPES: dict[str, Any] = {
    name: {
        Rows: Rows(64, 1000, 2, 4),
        Projection: Projection(512, 64, 1000, 2),
        Attention: Attention(2, 4, 2, 128, 256, 64, 2, splits=2),
        States: States(64, 8, 16),
    }[model.shape_of(name)]
    for name in model.OPERATIONS
}


@pytest.mark.parametrize("operation", model.OPERATIONS)
@pytest.mark.parametrize("machine", [GIVEN, APART, Machine("bare", 1e9)], ids=lambda m: m.name)
@pytest.mark.parametrize("allocate", [False, True])
def test_every_operation_side_by_side(operation: str, machine: Machine, allocate: bool) -> None:
    shape = SHAPES[operation]
    got = compare.compare(operation, shape, machine, write_allocate=allocate)
    assert [line.moved.algorithm for line in got.lines] == list(model.algorithms(operation))
    assert got.sizes == vars(shape)
    base = next(line for line in got.lines if line.moved.algorithm == got.baseline)
    for line in got.lines:
        assert line.moved == model.count(operation, line.moved.algorithm, shape, write_allocate=allocate)
        assert line.floor == roofline.floor(line.moved, machine)
        assert line.speedup == base.floor.seconds / line.floor.seconds
        assert line.once == cache.from_memory(line.moved, kept=True)
        assert line.once_floor == roofline.floor(line.once, machine)
    assert (got.regime is None) == (not isinstance(shape, Rows) or not machine.last_level)


@pytest.mark.parametrize("operation", model.OPERATIONS)
def test_as_json_is_plain_and_whole(operation: str) -> None:
    got = compare.compare(operation, SHAPES[operation], GIVEN, write_allocate=True)
    written = json.loads(json.dumps(got.as_json(), allow_nan=False))
    assert written == got.as_json()
    assert written["machine"]["bandwidth_bytes_per_second"] == 2e12
    assert written["machine"]["ridge_flops_per_byte"] == 35.0
    for line, entry in zip(got.lines, written["algorithms"], strict=True):
        once = entry["each_tensor_once"]
        assert (entry["bytes_total"], once["bytes_total"]) == (line.moved.total, line.once.total)
        assert entry["bytes_total"] == entry["bytes_read"] + entry["bytes_written"] + entry["bytes_allocated"]
        assert sum(operand["read"] for operand in entry["operands"]) == entry["bytes_read"]
        assert sum(operand["written"] for operand in entry["operands"]) == entry["bytes_written"]
        assert entry["workspace_bytes"] == sum(o["bytes"] for o in entry["operands"] if o["temporary"])
        assert (entry["floor_seconds"], once["floor_seconds"]) == (
            line.floor.seconds,
            line.once_floor.seconds,
        )
        assert entry["intensity"] * entry["bytes_total"] == pytest.approx(entry["flops"], rel=1e-15)


def test_baselines() -> None:
    machine = Machine("bare", 1e9)
    baselines = {name: compare.compare(name, SHAPES[name], machine).baseline for name in model.OPERATIONS}
    assert baselines == {
        "softmax": "three_pass",
        "log_softmax": "three_pass",
        "logsumexp": "three_pass",
        "softmax_topk": "online",
        "softmax_backward": "cached",
        "log_softmax_backward": "cached",
        "logsumexp_backward": "cached",
        "cross_entropy": "three_pass",
        "cross_entropy_backward": "standard",
        "linear_cross_entropy": "standard",
        "linear_cross_entropy_backward": "standard",
        "attention": "standard",
        "attention_backward": "standard",
        "decode": "single",
        "merge": "flat",
    }


def test_one_part_merged_by_a_tree_is_compared_as_well() -> None:
    got = compare.compare("merge", States(10, 1), Machine("bare", 1e9))
    assert [line.speedup for line in got.lines] == [1.0, 1.0]


def test_attention_says_what_the_bound_is_and_how_far_off_flash_is() -> None:
    n, d, onchip = 4096, 64, 50_000
    shape = Attention(1, 1, 1, n, n, d, 2)
    remarks = compare.compare("attention", shape, GIVEN, onchip=onchip).remarks
    blocks = attention.blocks_for(onchip, d)
    flash = model.count("attention", "flash", replace(shape, block_q=blocks.block_q, block_k=blocks.block_k))
    bound = Fraction(n * n * d * d, onchip)
    assert has(
        remarks,
        f"the {onchip} elements on chip",
        f"{blocks.block_q} queries by {blocks.block_k} keys",
        f"{float(flash.total // 2 / bound):.1f} times",
        f"{float(bound):.4g}",
    )
    assert has(remarks, attention.ASYMPTOTIC["standard"], attention.ASYMPTOTIC["flash"])
    assert not has(compare.compare("attention", shape, GIVEN).remarks, "times the order of the lower bound")
    with pytest.raises(ValueError, match="onchip=10: at least 259 elements would do"):
        compare.compare("attention", shape, GIVEN, onchip=10)


@pytest.mark.parametrize(("seq_q", "seq_k"), [(1, 100_000), (64, 8192), (8192, 64)])
def test_no_schedule_goes_under_the_bound_of_unequal_lengths(seq_q: int, seq_k: int) -> None:
    shape = Attention(1, 1, 1, seq_q, seq_k, 64, 2)
    remarks = compare.compare("attention", shape, GIVEN, onchip=50_000).remarks
    said = next(remark for remark in remarks if " times the order of the lower bound" in remark)
    assert float(said.split(" times the order")[0].split()[-1]) >= 1.0


def test_wrong_calls_are_named() -> None:
    with pytest.raises(ValueError, match="operation='x'"):
        compare.compare("x", CASE, GIVEN)
    with pytest.raises(TypeError, match=r"softmax is counted for Rows\(\.\.\.\)"):
        compare.compare("softmax", Chunks(1, 1, 4, 1), GIVEN)
    for shape in (Rows(0, 5, 4), Rows(5, 0, 4)):
        with pytest.raises(ValueError, match="nothing is read"):
            compare.compare("softmax", shape, GIVEN)
    for resident in (0, -1):
        with pytest.raises(ValueError, match=f"resident_rows={resident}"):
            compare.compare("softmax", CASE, GIVEN, resident_rows=resident)


# ---- the curve of time against length


def test_the_curve_meets_the_table_where_the_rows_are_past_the_cache() -> None:
    """At the length asked for the curve shows the floor of the table, with allocated lines as without."""
    shape = Rows(8192, 65_536, 4)
    for allocate in (False, True):
        result = compare.compare("softmax", shape, GIVEN, write_allocate=allocate)
        assert result.regime is not None
        assert result.regime.name == "rows past cache"
        for line in result.lines:
            assert plot._seconds(result, line.moved.algorithm, shape, shape.columns) == line.floor.seconds


@pytest.mark.parametrize("seq_q", [1, 64, 1000])
def test_the_curve_of_attention_meets_the_table(seq_q: int) -> None:
    shape = Attention(1, 2, 2, seq_q, 1000, 64, 2)
    result = compare.compare("attention", shape, GIVEN)
    for line in result.lines:
        assert plot._seconds(result, line.moved.algorithm, shape, shape.seq_k) == line.floor.seconds

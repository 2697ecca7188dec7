"""The meter on real Triton kernels under the interpreter: every count worked out by hand."""

from __future__ import annotations

import os

os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported, and kernels are defined

import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("triton", reason="triton is not installed")

from kernels import lanes, rows  # noqa: E402
from kernels.metered import C, R, T, floats, metered, three_pass  # noqa: E402
from triton.runtime import interpreter  # noqa: E402

from online_softmax.traffic import model  # noqa: E402
from online_softmax.traffic.meter import Meter, OutOfBounds  # noqa: E402

TESTS = Path(__file__).parent


def test_three_passes_read_three_times_and_write_once():
    meter = three_pass()
    x, out = meter["x"], meter["out"]
    assert (x.read_bytes, x.written_bytes, x.loads.distinct_bytes, x.size) == (3 * T, 0, T, T)
    assert (out.read_bytes, out.written_bytes, out.stores.distinct_bytes) == (0, T, T)
    assert (x.loads.operations, x.loads.lanes, x.loads.masked) == (3 * R * 4, 3 * R * C, 0)
    assert (x.loads.sectors, x.loads.distinct_sectors) == (3 * T // 32, T // 32)
    launch = three_pass().report.launches[0]
    assert (launch.kernel, launch.grid) == ("three_pass", (R, 1, 1))
    assert (launch.read, launch.written, launch.atomic) == (3 * T, T, 0)
    np.testing.assert_array_equal(launch.read_by_program, np.full((R, 1, 1), 3 * C * 4), strict=True)
    np.testing.assert_array_equal(launch.written_by_program, np.full((R, 1, 1), C * 4), strict=True)


def test_the_kernel_moves_what_the_model_says():
    same = three_pass().report.against(model.traffic("softmax", "three_pass", R, C, 4))
    assert same.exact
    assert str(same) == "equal to the model: read 3,145,728, written 1,048,576 bytes"
    other = three_pass().report.against(model.traffic("softmax", "online", R, C, 4))
    assert (other.exact, other.read, other.written) == (False, T, 0)
    assert "3,145,728 bytes, +1,048,576 to the model's 2,097,152" in str(other)


def test_the_cached_kernel_reads_once():
    x, out = torch.randn(8, 1000), torch.empty(8, 1000)
    meter = metered(rows.cached, (8,), x, out, 1000, BLOCK=1024)
    assert meter.report.against(model.traffic("softmax", "cached", 8, 1000, 4)).exact
    assert meter["x"].loads.masked == meter["out"].stores.masked == 8 * 24


def test_a_masked_tail():
    x, y, out = floats(1000), floats(1000), torch.zeros(1000)
    meter = metered(lanes.add, (4,), x, y, out, 1000, BLOCK=256)
    for counts in (meter["x"].loads, meter["y"].loads, meter["out"].stores):
        assert (counts.operations, counts.lanes, counts.masked) == (4, 1000, 24)
        assert (counts.bytes, counts.distinct_bytes) == (4000, 4000)
        assert (counts.sectors, counts.distinct_sectors) == (125, 125)
    assert meter.report.launches[0].read_by_program[:, 0, 0].tolist() == [2048, 2048, 2048, 1856]
    assert torch.equal(out, x + y)


def test_a_program_with_every_lane_masked_off_says_so():
    x, y, out = floats(100), floats(100), torch.zeros(100)
    launch = metered(lanes.add, (2,), x, y, out, 100, BLOCK=128).report.launches[0]
    assert (launch.idle_operations, launch.unattributed_masked) == (3, 3 * 128)
    assert launch["x"].loads.masked == 28


@pytest.mark.parametrize(
    ("step", "sectors", "distinct"), [(0, 1, 4), (1, 16, 512), (2, 32, 512), (8, 128, 512), (9, 128, 512)]
)
def test_sectors_of_strided_loads(step, sectors, distinct):
    loads = metered(lanes.strided, (1,), floats(2048), torch.zeros(128), STEP=step, BLOCK=128)["x"].loads
    assert (loads.lanes, loads.bytes, loads.distinct_bytes) == (128, 512, distinct)
    assert (loads.sectors, loads.distinct_sectors) == (sectors, sectors)


def test_loads_in_descending_order():
    loads = metered(lanes.backwards, (1,), floats(64), torch.zeros(64), BLOCK=64)["x"].loads
    assert (loads.bytes, loads.distinct_bytes) == (256, 256)
    assert (loads.sectors, loads.distinct_sectors) == (8, 8)


def test_several_launches_are_kept_apart():
    x, out = floats(128), torch.zeros(64)
    with Meter() as meter:
        lanes.shifted[(1,)](x, out, 64, BLOCK=64)
        lanes.strided[(1,)](x, out, STEP=1, BLOCK=32)
    first, second = meter.report.launches
    assert (first.kernel, first["x"].read_bytes, second.kernel, second["x"].read_bytes) == (
        *("shifted", 256),
        *("strided", 128),
    )
    assert (meter.report.read, meter.report.written) == (384, 384)
    with pytest.raises(KeyError, match=r"'x' of 2 launches: report.launches\[i\]\['x'\] would do"):
        meter["x"]


@pytest.mark.parametrize(("offset", "sectors"), [(0, 1), (28, 1), (30, 2), (31, 2), (32, 1)])
def test_an_element_across_two_sectors(offset, sectors):
    loads = metered(lanes.straddling, (1,), torch.zeros(64, dtype=torch.uint8), torch.zeros(1), offset)[
        "x"
    ].loads
    assert (loads.bytes, loads.distinct_bytes) == (4, 4)
    assert (loads.sectors, loads.distinct_sectors) == (sectors, sectors)


def test_tiles_and_a_grid_of_two_axes():
    x, out = floats(32, 64), torch.zeros(32, 64)
    meter = metered(lanes.tiled, (4, 2), x, out, 64, ROWS=8, COLUMNS=32)
    launch = meter.report.launches[0]
    assert launch.grid == (4, 2, 1)
    np.testing.assert_array_equal(launch.read_by_program, np.full((4, 2, 1), 1024), strict=True)
    # A row of a tile is 128 bytes: 4 sectors, 8 rows, 8 programs.
    assert (meter["x"].loads.sectors, meter["x"].loads.distinct_sectors) == (256, 256)
    assert torch.equal(out, x)


@pytest.mark.parametrize(
    ("dtype", "itemsize"), [("float64", 8), ("float16", 2), ("bfloat16", 2), ("int8", 1), ("int64", 8)]
)
def test_widths(dtype, itemsize):
    x = torch.ones(64, dtype=getattr(torch, dtype))
    meter = metered(lanes.strided, (1,), x, torch.zeros_like(x), STEP=1, BLOCK=64)
    assert (meter["x"].read_bytes, meter["out"].written_bytes) == (64 * itemsize, 64 * itemsize)
    assert meter["x"].loads.sectors == 2 * itemsize
    assert meter["x"].dtype == dtype


def test_nested_functions_count_in_their_kernel():
    x, out = floats(256), torch.zeros(256)
    meter = metered(rows.scale, (2,), x, out, 256, 2.0, BLOCK=128)
    meter.assert_bytes(read={"x": 1024}, written={"out": 1024}, atomic=0)
    assert torch.equal(out, 2 * x)


def test_tensor_descriptors():
    x, out = floats(6, 40), torch.zeros(6, 40)
    meter = metered(rows.described, (2, 2), x, out, 6, 40, ROWS=4, COLUMNS=32)
    # Tiles hang over both edges: what lies outside is masked off by the descriptor.
    meter.assert_bytes(read={"x": 960}, written={"out": 960})
    assert meter["x"].loads.masked == 4 * 128 - 240
    assert torch.equal(out, x + 1)


@pytest.mark.skipif(
    not hasattr(interpreter.InterpreterBuilder, "create_make_block_ptr"),
    reason="this triton has no block pointers: they left it in 3.9",
)
@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
def test_block_pointers():
    x, out = floats(100), torch.zeros(100)
    meter = metered(lanes.blocks, (1,), x, out, 100, BLOCK=128)
    meter.assert_bytes(read={"x": 400}, written={"out": 400})
    assert meter["x"].loads.masked == 28


def test_parts_of_a_tuple_have_names():
    a, b, out = floats(64), floats(64), torch.zeros(64)
    meter = metered(lanes.twice, (1,), (a, b), out, BLOCK=64)
    meter.assert_bytes(read={"parts[0]": 256, "parts[1]": 256}, written={"out": 256})


def test_atomics_are_neither_loads_nor_stores():
    labels, counts = torch.arange(100) % 10, torch.zeros(10, dtype=torch.int32)
    meter = metered(lanes.histogram, (2,), labels, counts, 100, BLOCK=64)
    found = meter["counts"]
    assert (found.read_bytes, found.written_bytes, found.atomic_bytes) == (0, 0, 400)
    assert (found.atomics.lanes, found.atomics.masked, found.atomics.operations) == (100, 28, 2)
    assert (found.atomics.distinct_bytes, found.atomics.sectors, found.atomics.distinct_sectors) == (40, 4, 2)
    launch = meter.report.launches[0]
    assert launch.atomic_by_program[:, 0, 0].tolist() == [256, 144]
    assert counts.tolist() == [10] * 10


def test_compare_and_swap():
    word = torch.zeros(1, dtype=torch.int32)
    atomics = metered(lanes.lock, (3,), word)["word"].atomics
    assert (atomics.operations, atomics.lanes, atomics.bytes, atomics.distinct_bytes) == (3, 3, 12, 4)
    assert word.item() == 1


def test_an_operation_on_several_tensors():
    x, y, out = floats(64), floats(64), torch.zeros(64)
    meter = metered(lanes.mixed, (1,), x, y, out, 60, BLOCK=64)
    meter.assert_bytes(read={"x": 60, "y": 180}, written={"out": 240})
    assert meter["x"].loads.operations == meter["y"].loads.operations == 1
    # Whose the masked lanes of the load are, no address says; those of the store are out's.
    assert meter["x"].loads.masked == meter["y"].loads.masked == 0
    assert meter.report.launches[0].unattributed_masked == meter["out"].stores.masked == 4


# --- arguments that share memory ----------------------------------------------------------------------


def test_in_place_has_a_joint_name():
    x = floats(256)
    meter = metered(rows.scale, (2,), x, x, 256, 2.0, BLOCK=128)
    assert [tensor.name for tensor in meter.report.launches[0].tensors] == ["x = out"]
    assert meter["x"] is meter["out"] is meter["x = out"]
    meter.assert_bytes(read={"out": 1024}, written={"x": 1024})
    assert meter["x"].size == 1024


def test_interleaved_views_are_told_apart():
    packed = floats(64, 3)
    out = torch.zeros(64)
    meter = metered(lanes.mixed, (1,), packed[:, 0], packed[:, 1], out, 64, BLOCK=64)
    # The kernel ignores the strides and walks the packed storage: 22 of its lanes meet elements of x, 21
    # those of y, and 21 those of the third column, which lie between elements of both.
    assert {t.name: t.read_bytes for t in meter.report.launches[0].tensors} == {
        "x": 88,
        "y": 84,
        "x = y": 84,
        "out": 0,
    }


def test_partial_overlap_has_three_parts():
    buffer = floats(96)
    meter = metered(lanes.unmasked, (1,), buffer[:64], buffer[32:], BLOCK=64)
    found = {t.name: (t.size, t.read_bytes, t.written_bytes) for t in meter.report.launches[0].tensors}
    assert found == {"x": (128, 128, 0), "x = out": (128, 128, 128), "out": (128, 0, 128)}
    with pytest.raises(KeyError, match=r"'x' of unmasked lies in several parts.* 'x', 'x = out', 'out'"):
        meter["x"]
    assert meter["x = out"].read_bytes == 128
    meter.assert_bytes(read={"x": 128, "x = out": 128}, written={"x = out": 128, "out": 128})


def test_the_size_of_a_strided_view_ends_with_its_last_element():
    x = floats(64, 4)[:, 1]
    meter = metered(lanes.strided, (1,), x, torch.zeros(64), STEP=4, BLOCK=64)
    assert meter["x"].size == 63 * 16 + 4
    assert meter["x"].loads.sectors == 32
    with pytest.raises(OutOfBounds, match="byte offset 1024 of x"):
        metered(lanes.strided, (1,), x, torch.zeros(128), STEP=4, BLOCK=128)


def test_sectors_count_from_the_storage():
    x = floats(128)
    assert metered(lanes.shifted, (1,), x[2:], torch.zeros(64), 0, BLOCK=64)["x"].loads.sectors == 9
    assert metered(lanes.shifted, (1,), x[8:], torch.zeros(64), 0, BLOCK=64)["x"].loads.sectors == 8


def test_assert_bytes_says_which_tensor_differs():
    meter = metered(lanes.add, (1,), floats(64), floats(64), torch.zeros(64), 64, BLOCK=64)
    meter.assert_bytes(read=512, written=256, atomic=0)
    with pytest.raises(AssertionError) as error:
        meter.assert_bytes(read={"x": 512}, written=1000)
    assert str(error.value).splitlines() == [
        "x: read 256 bytes, expected 512 (-256)",
        "y: read 256 bytes, expected 0 (+256)",
        "all: written 256 bytes, expected 1,000 (-744) (x 0, y 0, out 256)",
    ]
    with pytest.raises(KeyError, match="'z' is no tensor of add: 'x', 'y', 'out' would do"):
        meter.assert_bytes(read={"z": 1})


def test_json_holds_the_counts():
    found = json.loads(json.dumps(three_pass().report.as_json(programs=True)))
    assert (found["read"], found["written"], found["atomic"]) == (3 * T, T, 0)
    (launch,) = found["launches"]
    assert launch["grid"] == [R, 1, 1]
    assert launch["tensors"][0]["loads"]["bytes"] == 3 * T
    assert launch["read_by_program"] == [[[3 * C * 4]]] * R
    assert "read_by_program" not in three_pass().report.as_json()["launches"][0]


def test_the_example_of_the_guide_prints_what_the_guide_says(tmp_path, fresh_python):
    guide = (TESTS.parent / "docs" / "meter.md").read_text(encoding="utf-8")
    first, model_check, replayed = (part.split("```")[0] for part in guide.split("```python\n")[1:4])
    (printed,) = (line.strip() for line in guide.splitlines() if line.startswith("    Counts("))
    script = tmp_path / "softmax_bytes.py"
    script.write_text(first + model_check + replayed, encoding="utf-8")
    done = fresh_python(f"import runpy; runpy.run_path({str(script)!r})", TRITON_INTERPRET="1")
    assert done.stderr == ""
    assert done.stdout.splitlines() == [printed, "256000 256000"]
